"""Items of few bytes that have many columns: memory stays in proportion to payloads and rows."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.errors import SchemaError
from sparkkafka.protocol.columns.columns import DecodedRecords
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
        pa.array([b"\2"] * 1000)
    )
    assert decoded.values.null_count == 0
    assert len(decoded.values[999].as_py()["x"]) == 10_000


def test_defaults_of_all_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.schemas.avro.decoder._MOST_DEFAULTS", 10_000_000)
    field = {"name": "x", "type": "string", "default": "y" * 1000}
    payloads = pa.array([b""] * 20_000 + [None, b""])
    decoded = made(record(), record(field)).decode(payloads)
    first = 2 * 8192  # chunks are bad as a whole
    assert decoded.bad_rows.tolist() == [*range(first, 20_000), 20_001]
    assert decoded.values.null_count == 20_002 - first
    assert "defaults" in decoded.reasons[0]


WRITER = Schema("avro", json.dumps(record({"name": "f", "type": "int"})))
LONG = {"name": "x", "type": "string", "default": "y" * 16_000}
READER = Schema("avro", json.dumps(record({"name": "f", "type": "int"}, LONG)))


class OneWriter:
    def by_id(self, *of: object) -> Schema:
        return WRITER


def shaper():  # type: ignore[no-untyped-def]
    """Of a read of a topic whose writers lack the field x."""
    from sparkkafka.config.options import parse_read_options
    from sparkkafka.schemas.column import ColumnPlan
    from sparkkafka.spark.read.read_task import BatchShaper
    from sparkkafka.spark.read.typed_task import Typed
    from sparkkafka.spark.schema import ReadColumn

    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:9",
            "subscribe": "t",
            "valueFormat": "avro",
            "schema.registry.url": "http://127.0.0.1:9",
        }
    )
    kind = avro.arrow_type(READER)
    plan = ColumnPlan("value", "avro", "confluent", READER, kind, schema_id=8)
    columns = ReadColumn("value", kind=kind, plans=(("t", plan),)), ReadColumn("offset")
    typed = Typed(options, options.formats, columns)  # type: ignore[arg-type]
    typed._registry = OneWriter()  # type: ignore[assignment]
    return BatchShaper("t", 0, columns, typed=typed)


def records(count: int) -> DecodedRecords:
    values = pa.array([bytes([0, 0, 0, 0, 7, 2])] * count)
    numbers = np.arange(count)
    return DecodedRecords(numbers, numbers, np.zeros(count, np.int32), None, values, None)


MANY = """
import resource
from tests.schemas.test_wide_items import *
made = shaper()
for batch in made.batches(records(10)): pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
offsets = 0
for batch in made.batches(records(8192)):
    assert batch.nbytes < 40 << 20, batch.nbytes
    assert batch.column(0).null_count == 0
    assert batch.column(1).to_pylist() == list(range(offsets, offsets + len(batch)))
    assert len(batch.column(0)[-1]["x"].as_py()) == 16_000
    offsets += len(batch)
assert offsets == 8192
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 128 << 10, grown
"""


def test_rows_whose_defaults_are_many_bytes_come_in_several_batches() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_function_takes_such_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkkafka.functions import _Decode
    from sparkkafka.schemas.column import ColumnPlan

    monkeypatch.setattr("sparkkafka.schemas.column.MOST_DEFAULTS_AT_ONCE", 70_000)
    plan = ColumnPlan("value", "avro", "confluent", READER, avro.arrow_type(READER), schema_id=8)
    decode = _Decode(plan, OneWriter(), null_for_bad=False)  # type: ignore[arg-type]
    payloads = pa.array([bytes([0, 0, 0, 0, 7, 2 * n]) for n in range(30)])
    values = decode(payloads)
    assert values.field("f").to_pylist() == list(range(30))
    assert values.field("x").to_pylist() == ["y" * 16_000] * 30
