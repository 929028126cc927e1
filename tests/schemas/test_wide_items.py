"""Items of few bytes that have many columns: memory stays in proportion to payloads and rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.avro.defaults import long_bytes
from sparkkafka.schemas.json.format import decoder as json_decoder
from sparkkafka.schemas.values import Schema
from tests import forks
from tests.schemas.test_hostile_schemas import made, record

pytestmark = pytest.mark.slow

START = """
import json, resource
import pyarrow as pa
from tests.schemas.test_wide_items import *
"""
END = """
decoder.decode(pa.array([good] * 100))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decoded = decoder.decode(pa.array([good] * 100 + [bomb]))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert decoded.bad_rows.tolist() == [100], decoded.bad_rows
assert "too much memory" in decoded.reasons[0], decoded.reasons
assert decoded.values[:100].null_count == 0
assert grown < 400_000, grown
"""
BOMBS = {
    "avro array": "decoder, good, bomb = wide('array'), b'\\0', nulls(1_000_000)",
    "avro map": "decoder, good, bomb = wide('map'), b'\\0', keyed(500_000)",
    "json objects": "decoder, good, bomb = wide_json(), b'{}', objects(b'{}', 300_000)",
    "json nulls": "decoder, good, bomb = wide_json(), b'{}', objects(b'null', 200_000)",
}


def wide(kind: str, columns: int = 400) -> avro.AvroDecoder:
    item = record(*({"name": f"f{i}", "type": "double"} for i in range(columns)), name="item")
    of = {"type": kind, "items" if kind == "array" else "values": ["null", item]}
    return made(record({"name": "a", "type": of}, name="top"))  # type: ignore[return-value]


def nulls(count: int) -> bytes:
    return long_bytes(count) + b"\0" * count + b"\0"


def keyed(count: int) -> bytes:
    return long_bytes(count) + b"\0\0" * count + b"\0"


def wide_json(columns: int = 400):  # type: ignore[no-untyped-def]
    item = {"type": "object", "properties": {f"f{i}": {"type": "number"} for i in range(columns)}}
    top = {"type": "object", "properties": {"a": {"type": "array", "items": item}}}
    return json_decoder(Schema("json", json.dumps(top)), None, None)


def objects(item: bytes, count: int) -> bytes:
    return b'{"a":[' + b",".join([item] * count) + b"]}"


def test_bombs() -> None:
    ended = forks.run(START, {name: f"{bomb}\n{END}" for name, bomb in BOMBS.items()})
    assert {name: each.text[-2000:] for name, each in ended.items() if each.code} == {}


def test_wide_items_that_are_honest() -> None:
    full = b"\2" + b"\1" * 8 * 400
    payload = long_bytes(1040) + (full + b"\0" * 12) * 80 + b"\0"
    decoded = wide("array").decode(pa.array([payload] * 4 + [nulls(60)] * 40))
    assert not len(decoded.bad_rows)
    assert len(decoded.values.field("a")[0]) == 1040
    text = objects(b'{"f1":1.5,"f2":null,"f3":12345}', 5000)
    for count in (1, 3):
        read = wide_json().decode(pa.array([text] * count + [objects(b"{}", 60)]))
        assert not len(read.bad_rows)
        assert len(read.values.field("a")[0]) == 5000


def test_a_default_that_all_rows_would_have() -> None:
    writer = record({"name": "f", "type": "int"})
    longer = {"name": "x", "type": "string", "default": "y" * 1_000_000}
    with pytest.raises(SchemaError, match=r"have 999,\d+ bytes; 16,384 are allowed"):
        made(writer, record({"name": "f", "type": "int"}, longer))
    shorter = {"name": "x", "type": "string", "default": "y" * 10_000}
    decoded = made(writer, record({"name": "f", "type": "int"}, shorter)).decode(
        pa.array([b"\2"] * 20_000)
    )
    assert decoded.values.null_count == 0
    assert len(decoded.values[19_999].as_py()["x"]) == 10_000


def test_defaults_of_all_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.schemas.avro.decoder._MOST_DEFAULTS", 10_000_000)
    field = {"name": "x", "type": "string", "default": "y" * 1000}
    payloads = pa.array([b""] * 20_000 + [None, b""])
    decoded = made(record(), record(field)).decode(payloads)
    first = 2 * 8192  # chunks are bad as a whole
    assert decoded.bad_rows.tolist() == [*range(first, 20_000), 20_001]
    assert decoded.values.null_count == 20_002 - first
    assert "defaults" in decoded.reasons[0]
