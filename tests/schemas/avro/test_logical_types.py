"""Every pair of logical types, as writer's and reader's: the same instant, or a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.avro import format as avro
from tests.schemas.avro.avro_cases import decode, number, plain, record, schema, written

Json = Any


def logical(kind: str, name: str, **more: Any) -> Json:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, **more: Any) -> Json:
    return {"type": "fixed", "name": "F", "size": size, **more}


INTERVAL = {"type": "long", "spark.sql.catalyst.type": "interval day to second"}

# name -> (Avro type, meaning, nanoseconds of its unit)
NUMBERS: dict[str, tuple[Json, str, int]] = {
    "int": ("int", "", 0),
    "long": ("long", "", 0),
    "date": (logical("int", "date"), "date", 0),
    "time-millis": (logical("int", "time-millis"), "time", 10**6),
    "time-micros": (logical("long", "time-micros"), "time", 10**3),
    "interval": (INTERVAL, "interval", 0),
    **{
        f"{meaning}-{unit}": (logical("long", f"{meaning}-{unit}"), meaning, nanoseconds)
        for meaning in ("timestamp", "local-timestamp")
        for unit, nanoseconds in (("millis", 10**6), ("micros", 10**3), ("nanos", 1))
    },
}

BYTES: dict[str, tuple[Json, str]] = {
    "bytes": ("bytes", ""),
    "string": ("string", ""),
    "uuid": (logical("string", "uuid"), "uuid"),
    "decimal": (logical("bytes", "decimal", precision=20, scale=2), "decimal"),
    "fixed of 16": (fixed(16), ""),
    "fixed uuid": (fixed(16, logicalType="uuid"), "uuid"),
    "fixed decimal": (fixed(16, logicalType="decimal", precision=20, scale=2), "decimal"),
    "fixed of 12": (fixed(12), ""),
    "duration": (fixed(12, logicalType="duration"), "duration"),
    "fixed decimal of 12": (fixed(12, logicalType="decimal", precision=20, scale=2), "decimal"),
}

INTS = [0, 1, -1, 999, -999, 1000, -1000, -1001, 1_500_000, -1_500_001, 2**31 - 1, -(2**31)]
LONGS = [
    *INTS,
    1_700_000_000_123,
    1_700_000_000_123_456,
    -1_700_000_000_123_456_789,
    (2**63 - 1) // 1000,
    (2**63 - 1) // 1000 + 1,
    -((2**63 - 1) // 1000),
    -((2**63 - 1) // 1000) - 1,
    (2**63 - 1) // 10**6,
    (2**63 - 1) // 10**6 + 1,
    2**63 - 1,
    -(2**63),
]


def kind_of(definition: Json) -> str:
    return definition if isinstance(definition, str) else definition["type"]


Wrapped = tuple[Json, Callable[[Any], Any], Callable[[Any], Any]]


def in_record(kind: Json) -> Wrapped:
    """A schema with the type in it, a value as fastavro takes it, and a value out of `plain`."""
    return record(("x", kind)), lambda x: {"x": x}, lambda row: row["x"]


def in_union(kind: Json) -> Wrapped:
    branch = kind.get("name", kind["type"]) if isinstance(kind, dict) else kind
    return (
        record(("x", ["null", kind])),
        lambda x: {"x": None if x is None else (branch, x)},
        lambda row: row["x"],
    )


def in_array(kind: Json) -> Wrapped:
    definition = record(("x", {"type": "array", "items": kind}))
    return definition, lambda x: {"x": [x]}, lambda row: row["x"][0]


def in_map(kind: Json) -> Wrapped:
    definition = record(("x", {"type": "map", "values": kind}))
    return definition, lambda x: {"x": {"k": x}}, lambda row: row["x"]["k"]


def in_nested_record(kind: Json) -> Wrapped:
    definition = record(("x", record(("y", kind), name="Inner")))
    return definition, lambda x: {"x": {"y": x}}, lambda row: row["x"]["y"]


WRAPPERS = [in_record, in_union, in_array, in_map, in_nested_record]
REFUSED = "refused"


def read(
    wrap: Callable[[Json], Wrapped], writer: Json, reader: Json, values: list[Any]
) -> list[Any]:
    """What comes of each value: a number or bytes, or REFUSED with the reason."""
    written_as, put, _ = wrap(writer)
    read_as, _, get = wrap(reader)
    payloads: list[bytes | None] = [written(written_as, put(value)) for value in values]
    try:
        result = decode(written_as, payloads, read_as)
    except SchemaError as error:
        return [(REFUSED, str(error))] * len(values)
    reasons = dict(zip(result.bad_rows.tolist(), result.reasons, strict=True))
    rows = plain(result.values)
    return [
        (REFUSED, reasons[row]) if row in reasons else get(rows[row]) for row in range(len(values))
    ]


def expected_number(writer: str, reader: str, value: int) -> Any:
    """By exact integers; None where it does not fit the column."""
    _, writers_meaning, writers_unit = NUMBERS[writer]
    _, meaning, unit = NUMBERS[reader]
    if writers_meaning and meaning and writers_meaning != meaning:
        return "different meanings"
    if not unit:
        return value
    instant = value * (writers_unit or unit)
    is_column_of_times = meaning != "time" and unit > 1
    number = instant // (1000 if is_column_of_times else unit)
    return number if -(2**63) <= number < 2**63 else "out of range in"


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("writer", NUMBERS)
def test_every_pair_of_numbers(writer: str, wrap: Callable[[Json], Wrapped]) -> None:
    definition = NUMBERS[writer][0]
    values = INTS if kind_of(definition) == "int" else LONGS
    for reader in NUMBERS:
        wanted = NUMBERS[reader][0]
        if kind_of(definition) == "long" and kind_of(wanted) == "int":
            expected: list[Any] = ["cannot be read as"] * len(values)
        else:
            expected = [expected_number(writer, reader, value) for value in values]
        for value, want, got in zip(
            values, expected, read(wrap, definition, wanted, values), strict=True
        ):
            if isinstance(want, str):
                assert got[0] == REFUSED, (reader, value, got)
                assert want in got[1], (reader, value, got)
            else:
                assert got == want, (reader, value)


@pytest.mark.parametrize("writer", NUMBERS)
def test_a_time_as_a_float_is_its_number(writer: str) -> None:
    """In its writer's unit, as for any type without a logical type."""
    for reader in ("float", "double", ["null", "double"]):
        got = read(in_record, NUMBERS[writer][0], reader, [-5, 1000])
        assert got == [number(-5.0), number(1000.0)]


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("writer", BYTES)
def test_every_pair_of_bytes(writer: str, wrap: Callable[[Json], Wrapped]) -> None:
    definition, meaning = BYTES[writer]
    kind = kind_of(definition)
    value: Any = b"\x00" * 8 + b"12345678"
    if kind == "string":
        value = "a7c5c1b0-3d5b-4f0e-9f57-0c9f8f3d2a11"
    elif kind == "bytes":
        value = b"12345678"
    elif definition["size"] == 12:
        value = b"\x00" * 4 + b"12345678"
    for reader, (wanted, other) in BYTES.items():
        [got] = read(wrap, definition, wanted, [value])
        both = {kind, kind_of(wanted)}
        if "fixed" in both and (len(both) > 1 or definition["size"] != wanted["size"]):
            assert got[0] == REFUSED, reader
        elif (meaning and other and meaning != other) or (
            "decimal" in (meaning, other) and "string" in both
        ):
            assert got[0] == REFUSED, reader
            assert "different meanings" in got[1]
        elif other == "decimal":
            assert got == int.from_bytes(value, "big"), reader
        elif kind_of(wanted) == "string":
            assert got == (value if kind == "string" else value.decode()), reader
        else:
            assert got == (value.encode() if kind == "string" else value), reader


@pytest.mark.parametrize("meaning", ["timestamp", "local-timestamp"])
@pytest.mark.parametrize("unit", ["millis", "micros", "nanos"])
@pytest.mark.parametrize("readers_unit", ["millis", "micros", "nanos"])
def test_a_type_that_was_asked_for_has_one_unit(meaning: str, unit: str, readers_unit: str) -> None:
    """bigint is the number that the reader's schema would have written, whoever wrote it; a
    timestamp keeps the microseconds of a writer's."""
    writer, _, written_unit = NUMBERS[f"{meaning}-{unit}"]
    reader, _, read_unit = NUMBERS[f"{meaning}-{readers_unit}"]
    values = [1_700_000_000_123_456, -1, -1001, -1_000_001]
    payloads: list[bytes | None] = [written("long", value) for value in values]
    got = decode(writer, payloads, reader, pa.int64())
    assert got.values.to_pylist() == [
        value * written_unit // read_unit if not fails else None
        for value, fails in ((v, abs(v * written_unit // read_unit) >= 2**63) for v in values)
    ]
    kind = pa.timestamp("us", "UTC" if meaning == "timestamp" else None)
    got = decode(writer, payloads, reader, kind)
    assert got.reasons == ()
    assert plain(got.values) == [value * written_unit // 1000 for value in values]


def test_the_reason_says_what_would_help() -> None:
    date, timestamp = NUMBERS["date"][0], NUMBERS["timestamp-millis"][0]
    with pytest.raises(
        SchemaError,
        match=r"^field x: int \(date\) of the writer's Avro schema cannot be read as long "
        r"\(timestamp-millis\) of the reader's: the two have different meanings. The type int "
        r"without a logicalType in the reader's schema gives what is written$",
    ):
        decode(record(("x", date)), [], record(("x", timestamp)))
    uuid, money = BYTES["fixed uuid"][0], BYTES["fixed decimal"][0]
    with pytest.raises(SchemaError, match=r"fixed F \(uuid\) .* as fixed F \(decimal\)"):
        decode(record(("x", uuid)), [], record(("x", money)))
    nanos = NUMBERS["timestamp-nanos"][0]
    result = decode(timestamp, [written("long", 253_402_300_799_999)], nanos)
    assert result.reasons == (
        "the value: the time 253,402,300,799,999 is out of range in nanoseconds",
    )


@pytest.mark.parametrize("reader", NUMBERS)
def test_defaults_are_in_the_unit_of_the_readers_schema(reader: str) -> None:
    kind, _, unit = NUMBERS[reader]
    for default in (5, -1):
        result = decode(record(), [b""], record(("x", kind, default)))
        is_column_of_times = "timestamp" in reader and unit > 1
        assert plain(result.values) == [
            {"x": default * unit // 1000 if is_column_of_times else default}
        ]


def test_a_default_that_is_out_of_range() -> None:
    reader = record(("x", logical("long", "timestamp-millis"), 2**62))
    with pytest.raises(SchemaError, match=r"the default of field x: the time .* out of range"):
        decode(record(), [b""], reader)


def test_branches_of_a_union_are_converted_each_in_its_unit() -> None:
    """int and long together are a bigint in Spark, whatever they mean."""
    writer = ["null", logical("int", "time-millis"), "string", logical("long", "timestamp-millis")]
    reader = ["null", logical("long", "timestamp-nanos"), "string"]
    values = [None, ("long", -5), ("int", 5), ("string", "x")]
    result = decode(writer, [written(writer, value) for value in values], reader)
    assert result.values.to_pylist() == [
        None,
        {"member0": -5_000_000, "member1": None},
        None,
        {"member0": None, "member1": "x"},
    ]
    assert result.bad_rows.tolist() == [2]
    assert "int (time-millis) of the writer's" in result.reasons[0]
    assert "different meanings" in result.reasons[0]


TIME_COLUMNS = {
    "date": pa.date32(),
    "interval": pa.duration("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "local-timestamp": pa.timestamp("us"),
}


@pytest.mark.parametrize("column", TIME_COLUMNS)
@pytest.mark.parametrize("writer", NUMBERS)
def test_a_column_is_written_in_the_unit_of_the_schema(column: str, writer: str) -> None:
    kind = TIME_COLUMNS[column]
    definition, meaning, unit = NUMBERS[writer]
    if meaning != column:
        with pytest.raises(OptionError, match="cannot be written as"):
            avro.encoder(schema(definition), kind)
        return
    values = [0, 1, -1, 999, -1001, 1_700_000_000]
    storage = pa.int32() if column == "date" else pa.int64()
    encoded = avro.encoder(schema(definition), kind).encode(pa.array(values, storage).cast(kind))
    numbers = [value * 1000 // unit if unit else value for value in values]
    assert encoded.to_pylist() == [written("long", number) for number in numbers]
    for readers_unit in ("millis", "micros", "nanos"):
        if unit:
            reader = NUMBERS[f"{column}-{readers_unit}"][0]
            got = decode(definition, encoded.to_pylist(), reader, kind)
            assert plain(got.values) == [number * unit // 1000 for number in numbers]
