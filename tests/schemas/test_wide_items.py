"""Items of few bytes that have many columns: memory stays in proportion to payloads and rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka import functions
from sparkkafka.cli.typed_records import Decoding, parse_formats
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.option_table import Side
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import BadRecordError, SchemaError
from sparkkafka.functions import _DecodeFunction
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, DecodedRecords
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas import values
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.column import ColumnPlan, format_module, in_pieces
from sparkkafka.schemas.json import normalizer
from sparkkafka.schemas.json.format import decoder as json_decoder
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Decoded, Decoder, Schema, TooManyRowsError
from sparkkafka.spark.read.decoding import BAD_RECORD_ARROW_TYPE, TaskDecoder
from sparkkafka.spark.read.read_task import BatchShaper
from sparkkafka.spark.schema import ReadColumn
from tests.schemas.test_hostile_schemas import made, record
from tests.support import forks

pytestmark = pytest.mark.slow

START = """
import re, resource
import pyarrow as pa
from tests.schemas.test_wide_items import *
"""
END = """
payloads = pa.array([good] * 30 + [bomb] * 2 + [good] * 30)
decoder.decode(payloads[:30])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bad, reasons, rows = [], [], 0
for start, decoded in parts(decoder, payloads):
    assert start == rows
    bad += (start + decoded.bad_rows).tolist()
    reasons += decoded.reasons
    rows += len(decoded.values)
    assert decoded.values.null_count == len(decoded.bad_rows)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert rows == 62
assert bad == [30, 31], bad
assert all(re.search("too m(uch memory|any bytes)", reason) for reason in reasons), reasons
assert grown < 300_000, grown
"""
BOMBS = {
    "avro array": "decoder, good, bomb = wide('array'), b'\\0', nulls(300_000)",
    "avro map": "decoder, good, bomb = wide('map'), b'\\0', keyed(150_000)",
    "json objects": "decoder, good, bomb = wide_json(), b'{}', objects(b'{}', 300_000)",
    "json nulls": "decoder, good, bomb = wide_json(), b'{}', objects(b'null', 200_000)",
    "json, 4 MB": "decoder, good, bomb = wide_json(110), b'{}', objects(b'null', 800_000)",
    "avro symbols": "decoder, good, bomb = symbols(), nulls(1), nulls(300_000)",
    "avro symbols of fields": "decoder, good, bomb = enums(), b'\\2' * 1_000, bytes(1_000)",
    "protobuf messages": "decoder, good, bomb = messages(), b'', b'\\n\\0' * 100_000",
    "names": "decoder, good, bomb = names(), b'', b'\\n\\x80\\x89\\x7a' + bytes(2_000_000)",
}


def wide(kind: str, columns: int = 400) -> avro.AvroDecoder:
    item = record(*({"name": f"f{i}", "type": "double"} for i in range(columns)), name="item")
    of = {"type": kind, "items" if kind == "array" else "values": ["null", item]}
    return made(record({"name": "a", "type": of}, name="top"))  # type: ignore[return-value]


def nulls(count: int) -> bytes:
    return zigzag_bytes(count) + b"\0" * count + b"\0"


def keyed(count: int) -> bytes:
    return zigzag_bytes(count) + b"\0\0" * count + b"\0"


def wide_json(columns: int = 400):  # type: ignore[no-untyped-def]
    item = {"type": "object", "properties": {f"f{i}": {"type": "number"} for i in range(columns)}}
    top = {"type": "object", "properties": {"a": {"type": "array", "items": item}}}
    return json_decoder(Schema("json", json.dumps(top)), None, None)


def parts(decoder: Decoder, payloads: pa.Array) -> Iterator[tuple[int, Decoded]]:
    """What comes of payloads, and from which row on."""
    return in_pieces(
        lambda start, stop: (start, decoder.decode(payloads[start:stop])), 0, len(payloads)
    )


def symbols() -> avro.AvroDecoder:
    enum = {"type": "enum", "name": "e", "symbols": ["x" * 10_000, "y"]}
    return made({"type": "array", "items": enum})  # type: ignore[return-value,arg-type]


def enums() -> avro.AvroDecoder:
    first = {"type": "enum", "name": "e", "symbols": ["x" * 100_000, "y"]}
    fields = [{"name": f"f{i}", "type": "e" if i else first} for i in range(1_000)]
    return made(record(*fields, name="top"))  # type: ignore[return-value]


def messages(columns: int = 200):  # type: ignore[no-untyped-def]
    fields = " ".join(f"string f{i} = {i + 1};" for i in range(columns))
    text = f'syntax = "proto3"; message M {{ repeated N ns = 1; }} message N {{ {fields} }}'
    return protobuf.decoder(Schema("protobuf", text), None, None)


def names():  # type: ignore[no-untyped-def]
    text = 'syntax = "proto3"; message M { repeated E es = 1; } enum E { %s = 0; }' % ("X" * 255)
    return protobuf.decoder(Schema("protobuf", text), None, None)


def objects(item: bytes, count: int) -> bytes:
    return b'{"a":[' + b",".join([item] * count) + b"]}"


def test_bombs() -> None:
    ended = forks.run(START, {name: f"{bomb}\n{END}" for name, bomb in BOMBS.items()})
    assert {name: each.text[-2000:] for name, each in ended.items() if each.code} == {}


def test_wide_items_that_are_honest() -> None:
    full = b"\2" + b"\1" * 8 * 400
    payload = zigzag_bytes(1040) + (full + b"\0" * 12) * 80 + b"\0"
    decoded = wide("array").decode(pa.array([payload] * 4 + [nulls(60)] * 40))
    assert not len(decoded.bad_rows)
    assert len(decoded.values.field("a")[0]) == 1040
    text = objects(b'{"f1":1.5,"f2":null,"f3":12345}', 5000)
    for count in (1, 3):
        payloads = pa.array([text] * count + [objects(b"{}", 60)])
        for start, read in parts(wide_json(), payloads):
            assert not len(read.bad_rows)
            assert len(read.values.field("a")[0]) == (5000 if start < count else 60)


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


def test_defaults_of_all_rows_count_for_the_memory_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BASE_BUDGET", 10_000_000)
    field = {"name": "x", "type": "string", "default": "y" * 1000}
    decoder = made(record(), record(field))
    with pytest.raises(TooManyRowsError):
        decoder.decode(pa.array([b""] * 20_000))
    assert decoder.decode(pa.array([b""] * 8_000 + [None])).values.null_count == 1


WRITER = Schema("avro", json.dumps(record({"name": "f", "type": "int"})))
LONG = {"name": "x", "type": "string", "default": "y" * 16_000}
READER = Schema("avro", json.dumps(record({"name": "f", "type": "int"}, LONG)))


class OneWriter:
    id_kind = ""  # as of a Schema Registry by Confluent

    def by_id(self, *of: object) -> Schema:
        return WRITER


def shaper(options: dict[str, str], *columns: ReadColumn) -> BatchShaper:
    read = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}
    parsed = parse_read_options({**read, **options})
    decoder = TaskDecoder(parsed, parsed.formats, columns)  # type: ignore[arg-type]
    decoder._registry = OneWriter()  # type: ignore[assignment]
    return BatchShaper(TopicPartition("t", 0), columns, decoder=decoder)


def of_writers_that_lack_a_field() -> BatchShaper:
    kind = avro.arrow_type(READER)
    plan = ColumnPlan("value", "avro", "confluent", READER, kind, schema_id=8)
    return shaper(
        {"valueFormat": "avro", "schema.registry.url": "http://127.0.0.1:9"},
        ReadColumn("value", arrow_type=kind, plans=(("t", plan),)),
        ReadColumn("offset"),
    )


def records(payloads: pa.Array, first: int = 0) -> DecodedRecords:
    numbers = np.arange(first, first + len(payloads))
    types = np.zeros(len(payloads), np.int32)
    return DecodedRecords(numbers, numbers, types, None, payloads, None)


def framed(count: int) -> DecodedRecords:
    return records(pa.array([bytes([0, 0, 0, 0, 7, 2])] * count))


MANY = """
import resource
from tests.schemas.test_wide_items import *
made = of_writers_that_lack_a_field()
for batch in made.batches(framed(10)): pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
offsets = 0
for batch in made.batches(framed(8192)):
    assert batch.nbytes < 70 << 20, batch.nbytes
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


def avro_row(number: int, count: int) -> bytes:
    return zigzag_bytes(number) + (zigzag_bytes(count) + b"\0" * count if count else b"") + b"\0"


def json_row(number: int, count: int) -> bytes:
    return json.dumps({"id": number, "a": [None] * count}).encode()


def protobuf_row(number: int, count: int) -> bytes:
    return b"\x08" + bytes([number]) + b"\x12\0" * count


NAMES = [f"f{i}" for i in range(12)]
ITEM = record(*({"name": name, "type": "double"} for name in NAMES), name="item")
JSON_ITEM = {"type": "object", "properties": {name: {"type": "number"} for name in NAMES}}
FORMATS = {
    "avro": (
        avro_row,
        json.dumps(
            record(
                {"name": "id", "type": "int"},
                {"name": "a", "type": {"type": "array", "items": ["null", ITEM]}},
            )
        ),
    ),
    "json": (
        json_row,
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "a": {"type": "array", "items": JSON_ITEM},
                },
            }
        ),
    ),
    "protobuf": (
        protobuf_row,
        'syntax = "proto3"; message M { int32 id = 1; repeated N a = 2; } message N {'
        + " ".join(f"double {name} = {i + 1};" for i, name in enumerate(NAMES))
        + "}",
    ),
}


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (values, normalizer):
        monkeypatch.setattr(module, "BASE_BUDGET", 20_000)
        monkeypatch.setattr(module, "BUDGET_PER_BYTE", 0)


def typed(name: str, text: str) -> dict[str, str]:
    return {"valueFormat": name, "valueFraming": "none", "valueSchema": text}


@pytest.mark.parametrize("on_bad", ["null", "column", "fail"])
@pytest.mark.parametrize("name", FORMATS)
def test_pieces_keep_rows_and_offsets(name: str, on_bad: str, small_budget: None) -> None:
    payload, text = FORMATS[name]
    schema = Schema(name, text)
    kind = format_module(name).arrow_type(schema)
    plan = ColumnPlan("value", name, "none", schema, kind)
    columns = [ReadColumn("value", arrow_type=kind, plans=(("t", plan),)), ReadColumn("offset")]
    if on_bad == "column":
        columns.append(ReadColumn("bad_record", arrow_type=BAD_RECORD_ARROW_TYPE))
    made = shaper({**typed(name, text), "onBadRecord": on_bad}, *columns)
    payloads = pa.array([payload(row, 400 if row == 17 else 10) for row in range(30)])
    batches = made.batches(records(payloads, 1000))
    if on_bad == "fail":
        with pytest.raises(BadRecordError, match=r"offset 1017: .*too much memory"):
            list(batches)
        return
    batches = list(batches)
    table = pa.Table.from_batches(batches)
    assert len(batches) > 2
    assert table["offset"].to_pylist() == list(range(1000, 1030))
    good = [None if row == 17 else row for row in range(30)]
    assert [value and value["id"] for value in table["value"].to_pylist()] == good
    assert {len(value["a"]) for value in table["value"].to_pylist() if value} == {10}
    if on_bad == "column":
        bad = [item and item["raw"] for item in table["bad_record"].to_pylist()]
        assert bad == [payloads[row].as_py() if row == 17 else None for row in range(30)]


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_takes_such_rows_in_pieces(name: str, small_budget: None) -> None:
    payload, text = FORMATS[name]
    formats = parse_formats({**typed(name, text), "onBadRecord": "null"}, Side.READ)
    payloads = pa.array([payload(row, 400 if row == 17 else 10) for row in range(30)])
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * 30,
            "partition": [0] * 30,
            "offset": list(range(30)),
            "headers": pa.nulls(30, HEADERS_TYPE),
            "value": payloads,
        }
    )
    with Decoding(formats, "t", as_text=True, skips_bad=True) as decoding:
        batches = list(decoding.decode(rows))
    assert len(batches) > 2
    table = pa.Table.from_batches(batches)
    good = [row for row in range(30) if row != 17]
    assert table["offset"].to_pylist() == good
    assert [json.loads(text)["id"] for text in table["value"].to_pylist()] == good
    assert decoding.skipped == 1


def test_a_function_takes_such_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BASE_BUDGET", 70_000)
    plan = ColumnPlan("value", "avro", "confluent", READER, avro.arrow_type(READER), schema_id=8)
    decode = _DecodeFunction(plan, OneWriter(), null_for_bad=False)  # type: ignore[arg-type]
    payloads = pa.array([bytes([0, 0, 0, 0, 7, 2 * n]) for n in range(30)])
    found = decode(payloads)
    assert found.field("f").to_pylist() == list(range(30))
    assert found.field("x").to_pylist() == ["y" * 16_000] * 30
    monkeypatch.setattr(functions, "_MAX_VALUE_BYTES", 200_000)
    with pytest.raises(BadRecordError, match="maxRecordsPerBatch to fewer"):
        decode(payloads)
