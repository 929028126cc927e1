"""Schemas and values of Avro, made by Hypothesis, and the oracle: fastavro, value by value.

fastavro reads without logical types here, so that numbers are compared as they are written, and
`expected` does to them what the logical type says. Of a union with several types it does not tell
which branch a value had: `plain` takes the one member that is set.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import Decoded, Schema

Json = Any


def schema(definition: Json) -> Schema:
    return Schema("avro", json.dumps(definition))


def record(*fields: tuple[str, Json] | tuple[str, Json, Json], name: str = "Value") -> Json:
    """A record; a field's third item is its default."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field[0], "type": field[1], **({"default": field[2]} if field[2:] else {})}
            for field in fields
        ],
    }


# --- the oracle ---------------------------------------------------------------------------------


def without_logical(definition: Json) -> Json:
    if isinstance(definition, dict):
        return {
            key: value if key == "default" else without_logical(value)
            for key, value in definition.items()
            if key not in ("logicalType", "precision", "scale")
        }
    if isinstance(definition, list):
        return [without_logical(each) for each in definition]
    return definition


def parsed(definition: Json) -> Any:
    return fastavro.parse_schema(json.loads(json.dumps(without_logical(definition))))


def written(definition: Json, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed(definition), value)
    return out.getvalue()


def oracle(definition: Json, payload: bytes, reader: Json | None = None) -> Any:
    """fastavro's value, in the form of `plain`. Raises for a payload that it cannot read."""
    source = io.BytesIO(payload)
    value = fastavro.schemaless_reader(
        source, parsed(definition), None if reader is None else parsed(reader)
    )
    if source.read(1):
        raise ValueError("bytes are left over")
    return expected(reader or definition, value, {})


def expected(definition: Json, value: Any, names: dict[str, Json]) -> Any:
    """A value of fastavro, in the form of `plain`."""
    if isinstance(definition, str):
        definition = names.get(definition, definition)
    if isinstance(definition, list):
        if value is None:
            return None
        kinds = {each if isinstance(each, str) else each["type"] for each in definition} - {"null"}
        if kinds == {"int", "long"}:
            return value
        if kinds == {"float", "double"}:
            return number(value)
        rest = [each for each in definition if each != "null"]
        results = []
        for each in rest:
            if fits(each, value, names):
                # A map may be taken for a record, and a record for a map, whose values do not fit.
                with contextlib.suppress(TypeError, AttributeError, ValueError):
                    results.append(expected(each, value, names))
        return results[0] if len(results) == 1 else Either(results)
    kind = definition if isinstance(definition, str) else definition["type"]
    if isinstance(definition, dict) and "name" in definition:
        names[definition["name"]] = definition
    if kind == "record":
        return {
            field["name"]: expected(field["type"], value[field["name"]], names)
            for field in definition["fields"]
        }
    if kind == "array":
        return [expected(definition["items"], each, names) for each in value]
    if kind == "map":
        return {key: expected(definition["values"], each, names) for key, each in value.items()}
    if isinstance(definition, dict) and isinstance(kind, (dict, list)):
        return expected(kind, value, names)
    logical = definition.get("logicalType", "") if isinstance(definition, dict) else ""
    if logical == "decimal":
        return int.from_bytes(value, "big", signed=True)
    if logical.endswith("timestamp-millis"):
        return value * 1000
    if kind == "float":
        with np.errstate(over="ignore"):  # perhaps of another branch
            # fastavro promotes integers to Python's floats.
            return number(float(np.float32(value)))
    return number(value) if kind == "double" else value


class Either:
    """One of several values: of a union in which several branches have values of this form."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return other in self.values

    def __repr__(self) -> str:
        return f"Either({self.values})"


def fits(definition: Json, value: Any, names: dict[str, Json]) -> bool:
    if isinstance(definition, str):
        definition = names.get(definition, definition)
    kind = definition if isinstance(definition, str) else definition["type"]
    if kind == "record":
        own = [field["name"] for field in definition["fields"]]
        return isinstance(value, dict) and set(value) == set(own)
    kinds: dict[str, Any] = {
        "boolean": bool,
        "int": int,
        "long": int,
        "float": float,
        "double": float,
        "string": str,
        "enum": str,
        "bytes": bytes,
        "fixed": bytes,
        "array": list,
        "map": dict,
    }
    return isinstance(value, kinds[kind]) and isinstance(value, bool) == (kind == "boolean")


def number(value: float) -> Any:
    """So that NaN equals itself and -0.0 is not 0.0."""
    return "nan" if math.isnan(value) else float(value).hex()


def plain(array: pa.Array) -> list[Any]:
    """The values as simple ones: times and decimals as numbers, unions as their value."""
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [plain(array.field(i)) for i in range(len(names))]
        rows: list[Any] = []
        for row in range(len(array)):
            values = {name: column[row] for name, column in zip(names, columns, strict=True)}
            if names and all(name.startswith("member") for name in names):
                there = [value for value in values.values() if value is not None]
                assert len(there) == 1 or not valid[row], values
                rows.append(there[0] if there else None)
            else:
                rows.append(values)
    elif pa.types.is_map(kind):
        edges = array.offsets.to_pylist()
        pairs = list(zip(plain(array.keys), plain(array.items), strict=True))
        rows = [pairs[edges[i] : edges[i + 1]] for i in range(len(array))]
        for each in rows:
            assert len({key for key, _ in each}) == len(each), "a key stands twice"
        rows = [dict(each) for each in rows]
    elif pa.types.is_list(kind):
        edges = array.offsets.to_pylist()
        values = plain(array.values)
        rows = [values[edges[i] : edges[i + 1]] for i in range(len(array))]
    elif pa.types.is_decimal(kind):
        content = array.buffers()[1] if len(array) else b""
        words = np.frombuffer(content, np.uint64).reshape(-1, 2)
        words = words[array.offset : array.offset + len(array)].tolist()
        rows = [low + (high << 64) - (1 << 128 if high >> 63 else 0) for low, high in words]
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        rows = array.cast(pa.int64()).to_pylist()
    elif pa.types.is_date(kind):
        rows = array.cast(pa.int32()).to_pylist()
    elif pa.types.is_floating(kind):
        rows = [None if value is None else number(value) for value in array.to_pylist()]
    else:
        rows = array.to_pylist()
    return [value if there else None for value, there in zip(rows, valid, strict=True)]


def decode(
    definition: Json,
    payloads: list[bytes | None],
    reader: Json | None = None,
    wanted: pa.DataType | None = None,
) -> Decoded:
    made = avro.decoder(schema(definition), None if reader is None else schema(reader), wanted)
    result = made.decode(pa.array(payloads, pa.binary()))
    result.values.validate(full=True)
    assert result.values.type == made.type
    assert len(result.values) == len(payloads)
    assert len(result.bad_rows) == len(result.reasons)
    return result


def decoded(
    definition: Json, payloads: list[bytes | None], reader: Json | None = None
) -> list[Any]:
    """The values, all of which are good."""
    result = decode(definition, payloads, reader)
    assert result.reasons == ()
    return plain(result.values)


# --- schemas and values -------------------------------------------------------------------------

PRIMITIVES = ["boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL: list[Json] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-nanos"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
]


@st.composite
def schemas(draw: st.DrawFn, *, nulls: bool = True) -> Json:
    """Any record. Names of types are never used twice. `nulls`: also items without bytes."""
    count = iter(range(1000))

    def named(definition: Json) -> Json:
        return {**definition, "name": f"T{next(count)}"}

    def any_type(depth: int, in_union: bool = False) -> Json:
        choices = ["primitive"] * 3 + ["logical", "enum", "fixed", "decimal"]
        if depth:
            choices += ["record", "array", "map"] + ["union"] * 2 * (not in_union)
        choice = draw(st.sampled_from(choices))
        if choice == "primitive":
            return draw(st.sampled_from(PRIMITIVES + ["null"] * (nulls and not in_union)))
        if choice == "logical":
            return draw(st.sampled_from(LOGICAL))
        if choice == "enum":
            size = draw(st.integers(1, 5))
            return named({"type": "enum", "symbols": [f"S{i}" for i in range(size)]})
        if choice == "fixed":
            return named({"type": "fixed", "size": draw(st.sampled_from([1, 3, 12, 17]))})
        if choice == "decimal":
            size, digits = draw(st.sampled_from([(1, 2), (4, 9), (8, 18), (9, 20), (16, 38)]))
            made = {"type": "fixed", "size": size, "logicalType": "decimal"}
            return named({**made, "precision": digits, "scale": draw(st.integers(0, digits))})
        if choice == "record":
            names = "abcd"[: draw(st.integers(0 if nulls else 1, 4))]
            fields = [{"name": name, "type": any_type(depth - 1)} for name in names]
            return named({"type": "record", "fields": fields})
        if choice == "array":
            return {"type": "array", "items": any_type(depth - 1)}
        if choice == "map":
            return {"type": "map", "values": any_type(depth - 1)}
        branches: list[Json] = ["null"] if draw(st.booleans()) else []
        for _ in range(draw(st.integers(1, 3))):
            branch = any_type(depth - 1, in_union=True)
            taken = [kind_of(each) for each in branches]
            if kind_of(branch) not in taken or kind_of(branch) in ("record", "enum", "fixed"):
                branches.insert(draw(st.integers(0, len(branches))), branch)
        return branches

    fields = [{"name": f"f{i}", "type": any_type(2)} for i in range(draw(st.integers(1, 5)))]
    return {"type": "record", "name": "Top", "fields": fields}


def kind_of(definition: Json) -> str:
    return definition if isinstance(definition, str) else definition["type"]


INTS = st.one_of(st.integers(-70, 70), st.integers(-(2**31), 2**31 - 1))
LONGS = st.one_of(INTS, st.integers(-(2**63), 2**63 - 1))
# Times 1000 they still have 64 bits.
MILLIS = st.integers(-((2**63 - 1) // 1000), (2**63 - 1) // 1000)


def values(definition: Json) -> st.SearchStrategy[Any]:
    """Values that fastavro writes; of a union, with its branch."""
    if isinstance(definition, list):
        return st.one_of([_branch_values(each) for each in definition])
    kind = kind_of(definition)
    logical = definition.get("logicalType", "") if isinstance(definition, dict) else ""
    if kind == "record":
        return st.fixed_dictionaries(
            {field["name"]: values(field["type"]) for field in definition["fields"]}
        )
    if kind == "array":
        return st.lists(values(definition["items"]), max_size=5)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), values(definition["values"]), max_size=3)
    if kind == "enum":
        return st.sampled_from(definition["symbols"])
    if logical == "decimal":
        most = 10 ** definition["precision"] - 1
        numbers = st.one_of(st.integers(-most, most), st.integers(-9, 9), st.sampled_from([most]))
        if kind == "fixed":
            return numbers.map(lambda n: n.to_bytes(definition["size"], "big", signed=True))
        return st.builds(
            lambda n, more: n.to_bytes((n.bit_length() + 8) // 8 + more, "big", signed=True),
            numbers,
            st.sampled_from([0, 0, 0, 1, 20]),
        )
    if kind == "fixed":
        return st.binary(min_size=definition["size"], max_size=definition["size"])
    if logical.endswith("timestamp-millis"):
        return MILLIS
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": INTS,
        "long": LONGS,
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.binary(max_size=20),
        "string": st.text(max_size=20),
    }[kind]


def _branch_values(definition: Json) -> st.SearchStrategy[Any]:
    kind = kind_of(definition)
    name = definition["name"] if kind in ("record", "enum", "fixed") else kind
    if kind == "null":
        return st.none()
    return values(definition).map(lambda value: (name, value))
