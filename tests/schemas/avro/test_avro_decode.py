"""Rules of reading: bad rows and their reasons, bounds of memory, wanted types, kinds of input."""

from __future__ import annotations

import datetime
import decimal
import pickle
import subprocess
import sys
import textwrap
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError
from sparkkafka.schemas import values
from sparkkafka.schemas.avro import decode as decode_module
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.avro import skip
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS
from tests.schemas.avro.avro_cases import decode, decoded, plain, record, schema, written

ORDER = record(
    ("id", "long"),
    ("name", "string"),
    ("note", ["null", "string"]),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
    ("tags", {"type": "array", "items": "string"}),
    ("customer", record(("age", "int"), ("vip", "boolean"), name="Customer")),
    ("prices", {"type": "map", "values": "double"}),
)


def order(i: int) -> dict[str, Any]:
    return {
        "id": i * 1_000_003,
        "name": f"name {i}",
        "note": ("string", f"größe {i}") if i % 3 else None,
        "kind": "AB"[i % 2],
        "tags": [f"tag{j}" for j in range(i % 4)],
        "customer": {"age": i % 90, "vip": bool(i % 2)},
        "prices": {f"p{j}": i / (j + 1) for j in range(i % 3)},
    }


# ---------------------------------------------------------------------------- bad rows


@pytest.mark.parametrize(
    ("definition", "payload", "reason"),
    [
        ("long", b"", "the value: the payload ends in the middle of it"),
        ("long", b"\x80", "the value: the payload ends in the middle of it"),
        ("long", b"\x02\x00", "the value: 1 byte left over"),
        ("long", b"\xff" * 10, "the value: a number of more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "the value: a number of more than 64 bits"),
        ("int", b"\xff\xff\xff\xff\x10", "the value: a number of more than 32 bits"),
        ("int", b"\x82\x80\x80\x80\x80\x00", "the value: a number of more than 32 bits"),
        ("boolean", b"\x02", "the value: a boolean of 2, not 0 or 1"),
        ("double", b"1234567", "the value: the payload ends in the middle of it"),
        ("string", b"\x08abc", "the value: 4 bytes, but the payload has 3 more"),
        ("string", b"\x01", "the value: a length of -1 bytes"),
        ("string", b"\x04\xc3(", "the value: the text is not UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "the value: the text is not UTF-8"),  # a surrogate
        (
            "bytes",
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "the value: 9,223,372,036,854,775,807 bytes, but the payload has 0 more",
        ),
        (["null", "int"], b"\x04", "the value: branch 2 of a union that has 2"),
        (["null", "int"], b"\x01", "the value: branch -1 of a union that has 2"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\x02",
            "the value: symbol 1 of an enum that has 1",
        ),
        (
            {"type": "array", "items": "int"},
            b"\x08\x00",
            "the value: 4 items, which the payload has no bytes for",
        ),
        (
            {"type": "array", "items": "int"},
            b"\x02\x00",
            "the value: the payload ends in the middle of it",
        ),
        (  # its lower 64 bits are 2**40
            {"type": "array", "items": "int"},
            b"\x80" * 5 + b"\xc0\x80\x80\x80\x02",
            "the value: a number of more than 64 bits",
        ),
        (
            {"type": "array", "items": "int"},
            b"\x01\x04\x02\x00",
            "the value: a block of another size than it says",
        ),
        (
            {"type": "array", "items": "int"},
            b"\x01\x20\x02\x00",
            "the value: a block of 16 bytes is too large",
        ),
        ({"type": "array", "items": "string"}, b"\x02\x06a\x00", "field []: 3 bytes, but"),
        ({"type": "array", "items": "string"}, b"\x02\x01\x00", "field []: a length of -1 bytes"),
        ({"type": "map", "values": "boolean"}, b"\x02\x02a\x07\x00", "field {}: a boolean of 7"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\x02\x64",
            "the value: a decimal of more than 2 digits",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\x00",
            "the value: a decimal of no bytes",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38},
            b"\x22\x01" + bytes(16),
            "the value: a decimal of more than 38 digits",
        ),
        (  # its lower 16 bytes are -1
            {"type": "bytes", "logicalType": "decimal", "precision": 38},
            b"\x22\x00" + b"\xff" * 16,
            "the value: a decimal of more than 38 digits",
        ),
        (  # -2**127, which has no positive one beside it
            {"type": "bytes", "logicalType": "decimal", "precision": 38},
            b"\x20\x80" + bytes(15),
            "the value: a decimal of more than 38 digits",
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "long"}},
            b"\x02\x0c\x02\x61" + b"\x00" * 6,
            "field []: 6 items, which the payload has no bytes for",
        ),
        (
            {"type": "array", "items": {"type": "array", "items": "null"}},
            b"\x02" + b"\xff" * 9 + b"\x01\x00\x00\x00",
            "field []: 9,223,372,036,854,775,808 items, which the payload has no bytes for",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe" + b"\xff" * 8 + b"\x01",
            "the value: the time 9,223,372,036,854,775,807 is out of range",
        ),
        (record(("a", record(("b", "boolean"), name="In"))), b"\x05", "field a.b: a boolean of 5"),
        ("null", b"\x00", "the value: 1 byte left over"),
    ],
)
@pytest.mark.parametrize("few", [1, 10**9])
def test_bad_rows_say_what_is_wrong(
    definition: Any, payload: bytes, reason: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skip, "_MIN_VECTOR", few)
    result = decode(definition, [payload, None, payload])
    assert result.bad_rows.tolist() == [0, 2]
    assert all(each.startswith(reason) for each in result.reasons), result.reasons
    assert result.values.null_count == 3 or definition == "null"


def test_numbers_longer_than_they_need_to_be() -> None:
    """As Java accepts them."""
    assert decoded("int", [b"\x82\x00", b"\x82\x80\x80\x80\x00"]) == [1, 1]
    assert decoded("long", [b"\x82" + b"\x80" * 8 + b"\x00"]) == [1]


@pytest.mark.slow
def test_hundred_bad_rows_among_many() -> None:
    """Rows cut off, with bytes changed and bytes too many; all others are whole."""
    chance = np.random.default_rng(1)
    payloads: list[bytes | None] = [written(ORDER, order(i)) for i in range(3000)]
    good = decoded(ORDER, payloads)
    bad = sorted(chance.choice(3000, 100, replace=False).tolist())
    for row in bad:
        payload = payloads[row] or b""
        cut = int(chance.integers(0, len(payload)))
        payloads[row] = [payload[:cut], payload + b"\0", b"\xff" * 40, b""][row % 4]
    nulls = sorted({*chance.choice(3000, 50, replace=False).tolist()} - set(bad))
    for row in nulls:
        payloads[row] = None
    result = decode(ORDER, payloads)
    assert result.bad_rows.tolist() == bad
    got = plain(result.values)
    gone = {*bad, *nulls}
    assert all(got[row] == (None if row in gone else good[row]) for row in range(3000))


def test_all_rows_bad() -> None:
    result = decode(ORDER, [b"\xff"] * 20_000)
    assert result.bad_rows.tolist() == list(range(20_000))
    assert result.values.null_count == 20_000


def test_the_first_of_many_bad_rows_have_figures() -> None:
    reasons = decode("string", [b"\x01"] * 300).reasons
    assert set(reasons[:MAX_OWN_REASONS]) == {"the value: a length of -1 bytes"}
    assert set(reasons[MAX_OWN_REASONS:]) == {"the value: the value is not what its schema says"}


def test_one_row_has_one_reason() -> None:
    definition = {"type": "array", "items": "boolean"}
    result = decode(definition, [b"\x0a" + b"\x02" * 5 + b"\x00", b"\x02\x01\x00"])
    assert result.reasons == ("field []: a boolean of 2, not 0 or 1",)
    assert result.values.to_pylist() == [None, [True]]


def test_texts_of_several_fields_that_are_not_utf8() -> None:
    """The texts of all fields are copied together; a bad row still has its first reason."""
    definition = record(("a", "string"), ("b", ["null", "string"]), ("n", "int"))
    rows = [{"a": f"a{i}", "b": None if i % 3 else f"größe {i}", "n": i} for i in range(50)]
    payloads = [written(definition, row) for row in rows]
    payloads[10] = b"\x04\xc3(" + b"\x02\x02x"  # also cut off
    payloads[20] = b"\x02x" + b"\x02\x04\xc3(" + b"\x02"
    payloads[30] = payloads[30][:-1]
    result = decode(definition, payloads)
    assert dict(zip(result.bad_rows.tolist(), result.reasons, strict=True)) == {
        10: "field a: the text is not UTF-8",
        20: "field b: the text is not UTF-8",
        30: "field n: the payload ends in the middle of it",
    }
    assert result.values.to_pylist() == [
        None if i in (10, 20, 30) else row for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", "text"),
        ("long", 7),
        ("double", 0.5),
        (record(("b", "string"), name="Inner"), {"b": "text"}),
    ],
)
def test_branch_numbers_that_are_wrong_or_longer_than_needed(kind: Any, value: Any) -> None:
    """A wrong branch number leaves the other rows of a union as they are."""
    definition = record(("u", ["null", kind]), ("n", "int"))
    bytes_of_value = written(kind, value)
    branches = [b"\x02" + bytes_of_value, b"\x00", b"\x82\x00" + bytes_of_value, b"\x80\x00"]
    rows = [{"u": each, "n": 5} for each in (value, None, value, None)]
    payloads = [branch + b"\x0a" for branch in branches]
    for wrong in (b"\x05" + bytes_of_value, b"\x04", b"\xff" * 11, b""):
        result = decode(definition, [payloads[0], wrong, *payloads, wrong])
        assert result.values.to_pylist() == [rows[0], None, *rows, None]
        assert result.bad_rows.tolist() == [1, 6]
        assert all(reason.startswith("field u: ") for reason in result.reasons)


# ---------------------------------------------------------------------------- input


def test_kinds_of_input() -> None:
    payloads = [written("string", f"v{i}") for i in range(5)]
    decoder = avro.decoder(schema("string"), None, None)
    expected = [f"v{i}" for i in range(5)]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert decoder.decode(pa.array(payloads, kind)).values.to_pylist() == expected
    sliced = pa.array([b"junk", *payloads, b"junk"], pa.binary()).slice(1, 5)
    assert decoder.decode(sliced).values.to_pylist() == expected
    assert decoder.decode(pa.nulls(3)).values.to_pylist() == [None] * 3
    assert decoder.decode(pa.nulls(2, pa.binary())).bad_rows.tolist() == []
    empty = decoder.decode(pa.nulls(0, pa.binary())).values
    assert (len(empty), empty.type) == (0, pa.string())


@pytest.mark.parametrize("payload", [None, b"\0"])
def test_batches_without_values_after_one_with_long_numbers(payload: bytes | None) -> None:
    definition = ["null", record(("a", "long"))]
    decoder = avro.decoder(schema(definition), None, None)
    row = {"a": 2**40}
    payloads = [written(definition, row)] * 9
    assert decoder.decode(pa.array(payloads, pa.binary())).values.to_pylist() == [row] * 9
    result = decoder.decode(pa.array([payload] * 9, pa.binary()))
    assert (result.values.to_pylist(), result.reasons) == ([None] * 9, ())


def test_many_chunks_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "CHUNK_ROWS", 8192)
    monkeypatch.setattr(decode_module, "CHUNK_BYTES", 1 << 20)
    texts = ["x" * (3_000_000 if i == 700 else i % 5000) for i in range(2000)]
    payloads: list[bytes | None] = [written("string", text) for text in texts]
    payloads[1500] = b"\x01"
    result = decode("string", payloads)
    assert result.bad_rows.tolist() == [1500]
    texts[1500] = None  # type: ignore[call-overload]
    assert result.values.to_pylist() == texts
    many = decode("int", [written("int", i) for i in range(20_000)])
    assert many.values.to_pylist() == list(range(20_000))


@pytest.mark.parametrize("few", [1, 128, 10**9])
def test_blocks_of_arrays(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks, with their sizes or without; long and short arrays beside each other."""
    monkeypatch.setattr(skip, "_MIN_VECTOR", few)

    def blocks(*counts: int, sized: bool) -> bytes:
        made = b""
        number = 0
        for count in counts:
            items = b"".join(written("string", str(number + i)) for i in range(count))
            number += count
            size = written("long", len(items)) if sized else b""
            made += written("long", -count if sized else count) + size + items
        return made + b"\0"

    shapes = [(3, 1), (), (1,), (2, 200, 3), (70,), (1,) * 20]
    rows = [(shape, sized) for shape in shapes * 40 for sized in (True, False)]
    payloads = [blocks(*shape, sized=sized) for shape, sized in rows]
    got = decoded({"type": "array", "items": "string"}, payloads)
    assert got == [[str(i) for i in range(sum(shape))] for shape, _ in rows]


def test_items_of_several_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of one step have different branches."""
    monkeypatch.setattr(skip, "_MIN_VECTOR", 1)
    items = {"type": "array", "items": ["null", "int", "boolean"]}
    definition = record(("items", items), ("last", "bytes"))
    values = [None, 300, True, 7, False]
    lists = [[values[(row + i) % 5] for i in range(row % 4)] for row in range(60)]
    rows = [{"items": each, "last": bytes(99)} for each in lists]
    assert decoded(definition, [written(definition, row) for row in rows]) == rows


@pytest.mark.parametrize("items", ["int", "double", "string"])
def test_long_arrays(items: str) -> None:
    numbers = [i * 37 % 100_000 for i in range(50_000)]
    rows: Any = [numbers, [], numbers[:1000]]
    if items == "string":
        rows = [[str(number) for number in row] for row in rows]
    elif items == "double":
        rows = [[float(number) for number in row] for row in rows]
    definition = {"type": "array", "items": items}
    got = decode(definition, [written(definition, row) for row in rows])
    assert got.values.to_pylist() == rows


@pytest.mark.slow
def test_unions_of_many_branches() -> None:
    """A branch that few rows have is read alone; bad rows in it are bad alone."""
    kinds: Any = [
        record(("x", "int"), ("y", {"type": "array", "items": "string"}), name=f"R{i}")
        for i in range(10)
    ]
    definition = ["null", *kinds, "string"]
    rows: list[Any] = [
        None
        if i % 12 == 0
        else ("string", f"s{i}")
        if i % 12 == 11
        else (f"R{i % 12 - 1}", {"x": i, "y": ["a"] * (i % 3)})
        for i in range(1000)
    ]
    payloads: list[bytes | None] = [written(definition, row) for row in rows]
    payloads[500] = (payloads[500] or b"")[:-1]
    result = decode(definition, payloads)
    assert result.bad_rows.tolist() == [500]
    expected = [row and row[1] for row in rows]
    expected[500] = None
    assert plain(result.values) == expected


def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    payload = b"\x06\x02a\x02\x02b\x04\x02a\x06\x00"
    definition = {"type": "map", "values": "int"}
    result = decode(definition, [payload, b"\x00", payload])
    assert [dict(row) for row in result.values.to_pylist()] == [
        {"b": 2, "a": 3},
        {},
        {"b": 2, "a": 3},
    ]
    assert len(result.values.items) == 4


# ---------------------------------------------------------------------------- bounds

BOMBS: dict[str, tuple[Any, str]] = {
    "2^60 nulls": ({"type": "array", "items": "null"}, "count"),
    "2^60 empty records": ({"type": "array", "items": record(name="Nothing")}, "count"),
    "nulls in arrays": ({"type": "array", "items": {"type": "array", "items": "null"}}, "nested"),
    "2^60 ints": ({"type": "array", "items": "int"}, "count"),
    "2^60 entries": ({"type": "map", "values": "string"}, "count"),
    "a text of 2^60 bytes": ("string", "count"),
    "many blocks of one item": ({"type": "array", "items": "int"}, "blocks"),
    "bytes of items": ({"type": "array", "items": "boolean"}, "dense"),
    "a large fixed": (["null", {"type": "fixed", "name": "F", "size": 1 << 30}], "fixed"),
}

BOMB_CODE = """
    import json, pickle, resource, sys
    import pyarrow as pa
    from sparkkafka.schemas.avro import format as avro
    from sparkkafka.schemas.values import Schema

    def most():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    bombs = pickle.loads(sys.stdin.buffer.read())
    start = None
    for name, definition, payload, rows in bombs:
        made = avro.decoder(Schema("avro", json.dumps(definition)), None, None)
        made.decode(pa.array([b"\\0"] * 3, pa.binary()))
        start = start or most()
        made.decode(pa.array([payload] * rows, pa.binary()))
        print(name, (most() - start) // 1024, sep="\\t")
"""


@pytest.mark.slow
def test_bombs() -> None:
    """Payloads that ask for more than they are: memory stays within a multiple of their bytes."""
    huge = written("long", 1 << 60) + b"\0"
    shapes = {
        "count": (huge, 2048),
        "nested": ((written("long", 64) + b"\0") * 30, 2048),
        "blocks": (b"\x02\x02" * (1 << 18), 2),
        "dense": (b"\x02\x01" * (1 << 19), 2),
        "fixed": (b"\x02", 8192),
    }
    bombs = [(name, definition, *shapes[shape]) for name, (definition, shape) in BOMBS.items()]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BOMB_CODE)],
        input=pickle.dumps(bombs),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    grown = dict(line.split("\t") for line in done.stdout.decode().splitlines())
    assert list(grown) == list(BOMBS)
    assert max(map(int, grown.values())) < 150, f"MB: {grown}"


@pytest.mark.parametrize("few", [1, 10**9])
def test_items_without_bytes(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the payload has bytes, and 64 more; they count once, however deep they stand."""
    monkeypatch.setattr(skip, "_MIN_VECTOR", few)
    nulls: Any = {"type": "array", "items": "null"}
    assert decoded(nulls, [written(nulls, [None] * 60)]) == [[None] * 60]
    deep = {"type": "array", "items": {"type": "map", "values": nulls}}
    row = [{"a": [None] * 30}, {"b": [], "c": [None] * 30}]
    assert decoded(deep, [written(deep, row)] * 3) == [row] * 3
    many = written(nulls, [None] * 100)
    assert decode(nulls, [many, b"\0"]).bad_rows.tolist() == [0]
    for count in (100, 1 << 60):  # of the only payload
        assert decode(nulls, [written("long", count) + b"\0"]).bad_rows.tolist() == [0]
    # Where they are skipped they take no memory.
    around = record(("xs", nulls), ("y", "int"))
    wanted = pa.struct([("y", pa.int32())])
    assert decode(around, [many + b"\2"], wanted=wanted).values.to_pylist() == [{"y": 1}]


@pytest.mark.parametrize("few", [1, 10**9])
def test_rows_beside_one_of_too_many_items(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The items of the others, good or bad, stay theirs."""
    monkeypatch.setattr(skip, "_MIN_VECTOR", few)
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    added = [(f"f{i}", ["null", "double"], None) for i in range(100)]
    writer = {"type": "array", "items": record(("t", "long"), name="T")}
    reader = {"type": "array", "items": record(("t", millis), *added, name="T")}
    rows = [[5], [1] * 3000, [1 << 62], [7, 8]]
    payloads = [written(writer, [{"t": time} for time in row]) for row in rows]
    result = decode(writer, payloads, reader)
    assert result.bad_rows.tolist() == [1, 2]
    times = [row and [item["t"] for item in row] for row in plain(result.values)]
    assert times == [[5000], None, None, [7000, 8000]]


def test_symbols_are_longer_than_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BASE_BUDGET", 300)
    monkeypatch.setattr(values, "BUDGET_PER_BYTE", 0)
    enum = {"type": "enum", "name": "E", "symbols": ["A" * 100, "B"]}
    rows = [["B"], ["A" * 100] * 2, ["A" * 100] * 5, ["A" * 100] * 2, ["B"] * 200]
    definition = {"type": "array", "items": enum}
    payloads = [written(definition, row) for row in rows]
    with pytest.raises(values.TooManyRowsError):
        decode(definition, payloads)
    alone = [decode(definition, [payload]) for payload in payloads]
    assert [each.values[0].as_py() for each in alone] == [*rows[:2], None, *rows[3:]]
    assert alone[2].reasons == ("field []: the symbols of all its items are too many bytes",)


# ---------------------------------------------------------------------------- types


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


UTC = datetime.UTC
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000)
IDS = [uuid.UUID(int=0), uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210")]


@pytest.mark.parametrize(
    ("definition", "raw", "kind", "value"),
    [
        (logical("int", "date"), -1, pa.date32(), datetime.date(1969, 12, 31)),
        (logical("int", "time-millis"), 5, pa.int32(), 5),
        (logical("long", "time-micros"), 5, pa.int64(), 5),
        (
            logical("long", "timestamp-millis"),
            -1,
            pa.timestamp("us", "UTC"),
            MOMENT.replace(tzinfo=UTC),
        ),
        (
            logical("long", "timestamp-micros"),
            -1000,
            pa.timestamp("us", "UTC"),
            MOMENT.replace(tzinfo=UTC),
        ),
        (logical("long", "timestamp-nanos"), -1, pa.int64(), -1),
        (logical("long", "local-timestamp-millis"), -1, pa.timestamp("us"), MOMENT),
        (logical("long", "local-timestamp-micros"), -1000, pa.timestamp("us"), MOMENT),
        (logical("long", "local-timestamp-nanos"), -1, pa.int64(), -1),
        (logical("string", "uuid"), str(IDS[1]), pa.string(), str(IDS[1])),
        (
            {**logical("fixed", "uuid", size=16), "name": "U"},
            IDS[1].bytes,
            pa.binary(),
            IDS[1].bytes,
        ),
        (
            {**logical("fixed", "duration", size=12), "name": "D"},
            b"123456789abc",
            pa.binary(),
            b"123456789abc",
        ),
        (
            logical("bytes", "decimal", precision=5, scale=2),
            b"\xff\x85",
            pa.decimal128(5, 2),
            decimal.Decimal("-1.23"),
        ),
        (
            {**logical("fixed", "decimal", precision=38, scale=0, size=16), "name": "D"},
            (10**38 - 1).to_bytes(16, "big"),
            pa.decimal128(38, 0),
            decimal.Decimal(10**38 - 1),
        ),
        (
            {"type": "long", "spark.sql.catalyst.type": "interval day to second"},
            1_500_000,
            pa.duration("us"),
            datetime.timedelta(seconds=1.5),
        ),
        # what the specification says of logical types that are not valid: the type below
        (logical("int", "timestamp-millis"), 5, pa.int32(), 5),
        (logical("bytes", "decimal", precision=2, scale=3), b"\1", pa.binary(), b"\1"),
        (
            {**logical("fixed", "decimal", precision=5, size=2), "name": "D"},
            b"\0\1",
            pa.binary(),
            b"\0\1",
        ),
        (logical("long", "no-such-type"), 5, pa.int64(), 5),
        # unions
        (["int", "long"], ("long", 2**40), pa.int64(), 2**40),
        (["int", "long"], ("int", 4), pa.int64(), 4),
        (["null", "float", "double"], ("float", 0.5), pa.float64(), 0.5),
        (["string"], "x", pa.string(), "x"),
        (["null"], None, pa.null(), None),
        (
            ["null", "int", "string"],
            ("string", "x"),
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            {"member0": None, "member1": "x"},
        ),
        (
            ["null", "int", "string"],
            None,
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            None,
        ),
    ],
)
def test_types_are_those_of_spark(definition: Any, raw: Any, kind: pa.DataType, value: Any) -> None:
    assert avro.arrow_type(schema(definition)) == kind
    result = decode(definition, [written(definition, raw)])
    assert result.values.type == kind
    assert result.values.to_pylist() == [value]


def test_fields_that_may_be_null() -> None:
    definition = record(
        ("a", "int"),
        ("b", ["null", "int"]),
        ("c", {"type": "array", "items": ["int", "null"]}),
        ("d", {"type": "map", "values": "int"}),
        ("e", ["int", "string"]),
    )
    kind = avro.arrow_type(schema(definition))
    assert [field.nullable for field in kind] == [False, True, False, False, False]
    assert kind.field("c").type.value_field.nullable
    assert not kind.field("d").type.item_field.nullable
    assert all(field.nullable for field in kind.field("e").type)


@pytest.mark.parametrize(
    ("definition", "raw", "wanted", "value"),
    [
        ("int", 5, pa.int64(), 5),
        ("int", 5, pa.float64(), 5.0),
        ("float", 0.5, pa.float64(), 0.5),
        ("string", "x", pa.binary(), b"x"),
        (logical("int", "date"), 5, pa.int32(), 5),
        (logical("long", "timestamp-millis"), 5, pa.int64(), 5),
        (
            logical("long", "timestamp-nanos"),
            -1,
            pa.timestamp("us", "UTC"),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        ),
        (
            logical("long", "local-timestamp-nanos"),
            1999,
            pa.timestamp("us"),
            datetime.datetime(1970, 1, 1, 0, 0, 0, 1),
        ),
        (
            {**logical("fixed", "uuid", size=16), "name": "U"},
            IDS[1].bytes,
            pa.string(),
            str(IDS[1]),
        ),
        (
            logical("bytes", "decimal", precision=5, scale=2),
            b"\x7b",
            pa.decimal128(10, 4),
            decimal.Decimal("1.2300"),
        ),
        (["null", "int"], ("int", 3), pa.int64(), 3),
        (["int", "long"], ("int", 3), pa.int64(), 3),
        (
            ["null", "int", "string"],
            ("int", 3),
            pa.struct([("member0", pa.int64())]),
            {"member0": 3},
        ),
        (
            ["null", "int", "string"],
            ("string", "x"),
            pa.struct([("member0", pa.int64())]),
            {"member0": None},
        ),
        ({"type": "array", "items": "int"}, [1], pa.list_(pa.int64()), [1]),
        ({"type": "map", "values": "int"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    ],
)
def test_wanted_types(definition: Any, raw: Any, wanted: pa.DataType, value: Any) -> None:
    result = decode(definition, [written(definition, raw)], wanted=wanted)
    assert result.values.type == wanted
    assert result.values.to_pylist() == [value]


def test_wanted_fields_in_their_order() -> None:
    wanted = pa.struct(
        [
            ("prices", pa.map_(pa.string(), pa.float64())),
            ("customer", pa.struct([("vip", pa.bool_())])),
            ("id", pa.int64()),
        ]
    )
    result = decode(ORDER, [written(ORDER, order(5)), None, b"\0"], wanted=wanted)
    assert result.values.to_pylist() == [
        {"prices": [("p0", 5.0), ("p1", 2.5)], "customer": {"vip": True}, "id": 5_000_015},
        None,
        None,
    ]
    assert result.bad_rows.tolist() == [2]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"nam": pa.string()},
            "field nam .* is not in the Avro schema: did you mean name.* It has id, name",
        ),
        ({"ID": pa.int64()}, "field ID .* did you mean id"),
        (
            {"customer": pa.struct([("ages", pa.int32())])},
            "field customer.ages .* did you mean age",
        ),
        ({"id": pa.int32()}, "field id: long of the Avro schema cannot become int without loss"),
        ({"name": pa.int64()}, "field name: string .* cannot become bigint"),
        ({"customer": pa.string()}, "field customer: record Customer .* cannot become string"),
        ({"tags": pa.list_(pa.int32())}, r"field tags\[\]: string"),
        ({"tags": pa.string()}, "field tags: array of string"),
        ({"prices": pa.map_(pa.string(), pa.float32())}, r"field prices\{\}: double"),
        ({"note": pa.float64()}, "field note: string"),
    ],
)
def test_wanted_mistakes(wanted: dict[str, pa.DataType], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        decode(ORDER, [], wanted=pa.struct(list(wanted.items())))


def test_wanted_cannot_promise_that_nothing_is_null() -> None:
    wanted = pa.struct([pa.field("note", pa.string(), nullable=False)])
    with pytest.raises(OptionError, match=r"field note .* cannot be NOT NULL"):
        decode(ORDER, [], wanted=wanted)
    fine = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    assert decode(ORDER, [], wanted=fine).values.type == fine
