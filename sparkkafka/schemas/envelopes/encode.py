"""Encode rows and changes as Debezium's envelopes: the schemas, and the values to be encoded.

Semantic types are those of Debezium's connectors: date is io.debezium.time.Date, a timestamp
ZonedTimestamp, one without a zone MicroTimestamp, a decimal Connect's Decimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.errors import OptionError
from sparkkafka.protocol.records.arrow import binary_array, from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import Flags
from sparkkafka.schemas.arrays import as_type, flags_of, scalar, struct_of
from sparkkafka.schemas.envelopes.connect_types import DECIMAL
from sparkkafka.schemas.envelopes.debezium import ROW, TOMBSTONE, TRUNCATE
from sparkkafka.schemas.envelopes.semantic_types import CYCLE_US, INFINITIES, PLACEHOLDER
from sparkkafka.schemas.schema_errors import child_path, label
from sparkkafka.schemas.values import ValueRowError, type_name

_TIME: Final = "io.debezium.time."

_NUMBERS: Final = {
    pa.int8(): ("int8", "int"),
    pa.int16(): ("int16", "int"),
    pa.int32(): ("int32", "int"),
    pa.int64(): ("int64", "long"),
    pa.float32(): ("float", "float"),
    pa.float64(): ("double", "double"),
}
_FIRST_US, _LAST_US = -62_167_219_200_000_000, 253_402_300_799_999_999
"""The first and last microsecond, since 1970, of the years 0 to 9999."""
_JSON_NUMBERS: Final = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class EncodedType:
    """How values of a type are written: the type of the values that are encoded (`wire`), and their
    schema in Kafka Connect's JSON, as a JSON Schema and in Avro."""

    wire: pa.DataType
    connect: dict[str, Any]
    json: dict[str, Any]
    avro: Any


def encoded_type(arrow_type: pa.DataType, name: str, path: str = "") -> EncodedType:
    """Return how values of a type are written. `name`: the full name of a struct. Raises
    OptionError for a type that Debezium's envelopes cannot have."""
    types = pa.types
    if types.is_struct(arrow_type):
        parts = {
            field.name: encoded_type(
                field.type, f"{name}.{field.name}", child_path(path, field.name)
            )
            for field in arrow_type
        }
        return EncodedType(
            pa.struct([(field, part.wire) for field, part in parts.items()]),
            {
                "type": "struct",
                "fields": [{**part.connect, "field": field} for field, part in parts.items()],
                "optional": True,
                "name": name,
            },
            {"type": "object", "properties": {field: part.json for field, part in parts.items()}},
            {
                "type": "record",
                "name": name.rpartition(".")[2],
                "namespace": name.rpartition(".")[0],
                "fields": [
                    {"name": field, "type": ["null", part.avro], "default": None}
                    for field, part in parts.items()
                ],
                "connect.name": name,
            },
        )
    if types.is_list(arrow_type):
        item = encoded_type(arrow_type.value_type, f"{name}.item", f"{path}[]")
        return EncodedType(
            pa.list_(pa.field("element", item.wire)),
            {"type": "array", "items": item.connect, "optional": True},
            {"type": "array", "items": item.json},
            {"type": "array", "items": ["null", item.avro]},
        )
    if types.is_map(arrow_type) and types.is_string(arrow_type.key_type):
        item = encoded_type(arrow_type.item_type, f"{name}.value", f"{path}{{}}")
        keys = {"type": "string", "optional": False}
        return EncodedType(
            pa.map_(pa.string(), pa.field("value", item.wire)),
            {"type": "map", "keys": keys, "values": item.connect, "optional": True},
            {"type": "object", "additionalProperties": item.json},
            {"type": "map", "values": ["null", item.avro]},
        )
    if arrow_type in _NUMBERS:
        connect, avro = _NUMBERS[arrow_type]
        is_float = connect in _JSON_NUMBERS
        wire = arrow_type if is_float or arrow_type.bit_width > 32 else pa.int32()
        json = {
            "type": "number" if is_float else "integer",
            "connect.type": _JSON_NUMBERS.get(connect, f"int{wire.bit_width}"),
        }
        return EncodedType(wire, {"type": connect, "optional": True}, json, avro)
    if types.is_decimal128(arrow_type) and arrow_type.scale >= 0:
        return _encoded_decimal(arrow_type)
    for matches, wire, connect, semantic in (
        (types.is_boolean, pa.bool_(), "boolean", ""),
        (types.is_string, pa.string(), "string", ""),
        (types.is_binary, pa.binary(), "bytes", ""),
        (types.is_date32, pa.int32(), "int32", f"{_TIME}Date"),
        (_is_instant, pa.string(), "string", f"{_TIME}ZonedTimestamp"),
        (types.is_timestamp, pa.int64(), "int64", f"{_TIME}MicroTimestamp"),
        (types.is_duration, pa.int64(), "int64", f"{_TIME}MicroDuration"),
    ):
        if matches(arrow_type):
            return _encoded_leaf(wire, connect, semantic)
    raise OptionError(
        f"{label(path)}: Debezium's envelopes have no {type_name(arrow_type)}: cast it"
    )


def _is_instant(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(arrow_type)) and arrow_type.tz is not None


def _encoded_leaf(wire: pa.DataType, connect: str, semantic: str) -> EncodedType:
    """Return how a column without inner fields is written: its Arrow type `wire`, and its type in
    the schemas of Connect, JSON and Avro. `semantic`: the name of Debezium's or Connect's type."""
    json = {"boolean": "boolean", "string": "string", "bytes": "string"}.get(connect, "integer")
    avro: Any = {"int32": "int", "int64": "long"}.get(connect, connect)
    names: dict[str, Any] = {"name": semantic, "version": 1} if semantic else {}
    if semantic:
        avro = {"type": avro, "connect.version": 1, "connect.name": semantic}
    return EncodedType(
        wire,
        {"type": connect, "optional": True, **names},
        {"type": json, "connect.type": connect},
        avro,
    )


def _encoded_decimal(decimal: pa.DataType) -> EncodedType:
    """Return how decimals of type `decimal` are written: as bytes for Connect and Avro, as text in
    JSON."""
    parameters = {"scale": str(decimal.scale), "connect.decimal.precision": str(decimal.precision)}
    connect = {"type": "bytes", "optional": True, "name": DECIMAL, "version": 1}
    names = {"connect.version": 1, "connect.parameters": parameters}
    return EncodedType(
        decimal,
        {**connect, "parameters": parameters},
        {"type": "string", "title": DECIMAL, "connect.type": "bytes", **names},
        {
            "type": "bytes",
            "logicalType": "decimal",
            "scale": decimal.scale,
            "precision": decimal.precision,
            "connect.name": DECIMAL,
            **names,
        },
    )


def wire_values(values: pa.Array, wire: pa.DataType) -> pa.Array:
    """Convert values to the type `wire`, which `encoded_type` returned for theirs, so that a
    format's encoder writes Debezium's semantic types."""
    return as_type(values, wire, _wire_leaf)


def _wire_leaf(values: pa.Array, wire: pa.DataType) -> pa.Array:
    """Return values that are not nested as they are encoded."""
    if _is_instant(values.type):
        return _instant_texts(values.view(pa.int64()))
    return values.cast(wire) if pa.types.is_integer(values.type) else values.view(wire)


def _instant_texts(times_us: pa.Array) -> pa.Array:
    """Return microseconds since 1970 as Debezium's ZonedTimestamp. Arrow has no texts for all years
    beyond 0 to 9999, but the calendar repeats."""
    numbers = times_us.fill_null(0).to_numpy()
    is_far = (numbers < _FIRST_US) | (numbers > _LAST_US)
    near = pc.if_else(from_numpy(is_far), from_numpy(numbers % CYCLE_US), times_us)
    texts = pc.replace_substring(near.view(pa.timestamp("us")).cast(pa.string()), " ", "T")
    texts = pc.binary_join_element_wise(texts, scalar("Z"), scalar(""))
    if not is_far.any():
        return texts
    infinities = {time_us: text for text, time_us in INFINITIES.items()}
    far = []
    for number, text in zip(
        numbers[is_far].tolist(), texts.filter(from_numpy(is_far)).to_pylist(), strict=True
    ):
        year = int(text[:4]) + number // CYCLE_US * 400
        far.append(infinities.get(number, f"{year:+05}{text[4:]}").encode())
    return pc.replace_with_mask(texts, from_numpy(is_far), binary_array(far).view(pa.string()))


# --- envelopes ----------------------------------------------------------------------------------


def envelope_type(row: pa.DataType, change: pa.DataType) -> pa.DataType:
    """Return the type of the envelopes of rows and changes: with `source` and `transaction` if the
    changes have them."""
    optional = [field for field in change if field.name in ("source", "transaction")]
    return pa.struct(
        [
            ("before", row),
            ("after", row),
            *((field.name, field.type) for field in optional),
            ("op", pa.string()),
            ("ts_ms", pa.int64()),
        ]
    )


def envelopes(row: pa.Array, change: pa.Array, arrow_type: pa.DataType, now_ms: int) -> pa.Array:
    """Return the envelopes, of `envelope_type`, of rows and changes; null for tombstones.

    Raises ValueRowError for a change that no envelope can have.
    """
    count = len(row)
    names = {field.name: child for field, child in zip(change.type, change.flatten(), strict=True)}
    op = names["op"]
    kinds = names.get("kind")
    is_tombstone = (
        np.zeros(count, np.bool_) if kinds is None else flags_of(pc.equal(kinds, scalar(TOMBSTONE)))
    )
    ops = {letter: flags_of(pc.equal(op, scalar(letter))) for letter in "crudt"}
    known = np.logical_or.reduce([*ops.values(), is_tombstone])
    if not known.all():
        index = int(np.argmin(known))
        shown = None if kinds is None else kinds[index].as_py()
        raise ValueRowError(
            index,
            f"change.op is {op[index].as_py()!r} and change.kind {shown!r}: only {ROW} (op c, u, "
            f"d, r), {TRUNCATE} (t) and {TOMBSTONE} can be written. Filter the others",
        )
    old_keys = names.get("old_key")
    if old_keys is not None and len(old_keys) > old_keys.null_count:
        raise ValueRowError(
            int(np.argmax(is_valid(old_keys))),
            "change.old_key is set: Debezium's envelopes have a delete of the old key and a create "
            "of the new one for such a change. Write these two rows instead",
        )
    row = _with_placeholders(row, names.get("unavailable"))
    is_delete = ops["d"]
    is_after = ~is_delete & ~ops["t"]
    ts_ms = names.get("ts_ms")
    now = scalar(now_ms)
    parts = {
        **names,
        "before": _rows_where(row, is_delete),
        "after": _rows_where(row, is_after),
        # The time of each change; without one, an array that repeats `now`.
        "ts_ms": pc.if_else(from_numpy(np.ones(count, np.bool_)), now, now)
        if ts_ms is None
        else pc.coalesce(ts_ms, now),
    }
    return struct_of(arrow_type, count, ~is_tombstone, [parts[field.name] for field in arrow_type])


def _rows_where(row: pa.Array, flags: Flags) -> pa.Array:
    """Return the rows, null where the flags are false."""
    return struct_of(row.type, len(row), flags & is_valid(row), row.flatten())


def _with_placeholders(row: pa.Array, unavailable: pa.Array | None) -> pa.Array:
    """Return the rows with Debezium's placeholder for values that the source did not send. Raises
    ValueRowError for a column whose type has none."""
    if unavailable is None or not len(names := unavailable.flatten()):
        return row
    parents = pc.list_parent_indices(unavailable)
    children = row.flatten()
    for number, field in enumerate(row.type):
        placed = parents.filter(pc.equal(names, scalar(field.name)))
        if not len(placed):
            continue
        flags = np.zeros(len(row), np.bool_)
        flags[placed.to_pylist()] = True
        is_text, is_bytes = pa.types.is_string(field.type), pa.types.is_binary(field.type)
        if not is_text and not is_bytes:
            raise ValueRowError(
                int(np.argmax(flags)),
                f"change.unavailable names {field.name}, and Debezium's envelopes have no "
                f"placeholder for {type_name(field.type)}: take its value from the table first",
            )
        placeholder = scalar(PLACEHOLDER.text if is_text else PLACEHOLDER.bytes)
        children[number] = pc.if_else(from_numpy(flags), placeholder, children[number])
    return struct_of(row.type, len(row), is_valid(row), children)
