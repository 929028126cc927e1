"""Our decoders and encoders beside other libraries', on one core, without Kafka and Spark: payloads
to Arrow columns, and back. What both make is compared before the first run.

pyruhvro (Avro) and ptars (Protobuf) are written in Rust and have Arrow columns at one side, as we
do. The others have Python objects there: fastavro and orjson make rows, which pyarrow turns into
columns. Of upb only parsing and serializing counts, without columns.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from sparkkafka.schemas.column import format_module
from sparkkafka.schemas.envelopes import decode as envelopes
from sparkkafka.schemas.envelopes.decode import Envelope
from sparkkafka.schemas.values import FIRST_MESSAGE, Schema
from tests.bench.checks import compare
from tests.bench.library_rows import one_core
from tests.bench.results import WRITTEN, Row
from tests.bench.shapes import AVRO, JSON, PROTOBUF, SHAPES, Rows, Shape, plain
from tests.bench.turns import take_turns

TITLES = {AVRO: "Avro", PROTOBUF: "Protobuf", JSON: "JSON"}
#: Least ratios wanted, by the rival's first word: of the fastest library for a format.
DECODE_TARGETS = {"pyruhvro": 0.5, "ptars": 0.7, "orjson": 1.0}
ENCODE_TARGETS = {"pyruhvro": 0.5}
#: Of envelope=debezium beside our decoder of the same records without it.
ENVELOPE_FORMATS = (AVRO, JSON)
UNWRAP_TARGETS = {"without": 0.7}

_RUN_SECONDS = 0.02  # of ours: a run repeats its work that long

Work = Callable[[], Any]


def names() -> Iterator[tuple[str, str]]:
    """Group and name of each row of a whole run."""
    for form in (AVRO, PROTOBUF, JSON):
        for shape in SHAPES:
            yield f"decode {TITLES[form]}", shape.name
            yield f"encode {TITLES[form]}", shape.name
            if _is_envelope(shape, form):
                yield f"unwrap {TITLES[form]}", shape.name


def _is_envelope(shape: Shape, form: str) -> bool:
    return form in ENVELOPE_FORMATS and "before" in dict(shape.fields)


def shape_rows(
    wanted: Callable[[str], bool], *, quick: bool, say: Callable[[str], None]
) -> Iterator[Row]:
    """The rows of `names` whose "group: name" is wanted."""
    pairs = 2 if quick else 5
    with one_core():
        for form in (AVRO, PROTOBUF, JSON):
            for shape in SHAPES:
                bench = _Shape(shape, form, pairs, say)
                for group, rows in (
                    ("decode", bench.decode),
                    ("encode", bench.encode),
                    ("unwrap", bench.unwrap),
                ):
                    if wanted(f"{group} {TITLES[form]}: {shape.name}"):
                        yield from rows()


class _Shape:
    """One shape in one format, and the rivals' functions for it."""

    def __init__(self, shape: Shape, form: str, pairs: int, say: Callable[[str], None]) -> None:
        self._shape, self._form, self._pairs, self._say = shape, form, pairs, say
        schema = Schema(form, shape.texts[form])
        module = format_module(form)
        self._payloads = shape.payloads(form)
        self._column = pa.array(self._payloads, pa.binary())
        self._type = module.arrow_type(schema)
        self._decoder = module.decoder(schema, None, self._type)
        self._encoder = module.encoder(schema, self._type)
        self._values = self._decode()
        self._rivals = {AVRO: _avro, PROTOBUF: _protobuf, JSON: _json}[form](
            shape, self._payloads, self._values
        )

    def _decode(self) -> pa.Array:
        decoded = self._decoder.decode(self._column)
        if len(decoded.bad_rows):
            raise AssertionError(f"{self._shape.name}: {decoded.reasons[0]}")
        return decoded.values

    def decode(self) -> Iterator[Row]:
        for rival, (decode, _, note) in self._rivals.items():
            row = self._row("decode", rival, DECODE_TARGETS, note)
            found = {WRITTEN: self._shape.rows, "pykafka": plain(self._values, self._shape.fields)}
            theirs = decode()
            if isinstance(theirs, pa.RecordBatch | pa.Table):
                theirs = pa.Table.to_struct_array(_table(theirs))
                found[rival] = plain(theirs, self._shape.fields)
            elif isinstance(theirs, pa.Array):
                found[rival] = plain(theirs, self._shape.fields)
            else:  # upb's messages
                found[rival] = self._shape.rows if theirs == self._shape.messages else []
            yield self._measured(row, found, self._decode, decode)

    def encode(self) -> Iterator[Row]:
        for rival, (_, encode, note) in self._rivals.items():
            if encode is None:
                continue
            row = self._row("encode", rival, ENCODE_TARGETS, note)
            ours = self._encoder.encode(self._values)
            found = {
                WRITTEN: self._shape.rows,
                "pykafka": self._rows_of(ours.to_pylist()),
                rival: self._rows_of(_joined(encode())),
            }
            yield self._measured(row, found, lambda: self._encoder.encode(self._values), encode)

    def unwrap(self) -> Iterator[Row]:
        """Rows and changes out of envelopes, if the shape is one."""
        if not _is_envelope(self._shape, self._form):
            return
        schema, module = (
            Schema(self._form, self._shape.texts[self._form]),
            format_module(self._form),
        )
        envelope = Envelope("debezium", unwraps=True)
        target = envelopes.full_type(module, envelope, schema, FIRST_MESSAGE, None)
        decoder = envelopes.decoder(module, envelope, schema, None, target)
        rival = "without envelope"
        ours = decoder.decode(self._column)
        found = {
            WRITTEN: [row["after"] for row in self._shape.rows],
            "pykafka": ours.values.field("row").to_pylist(),
            rival: self._values.field("after").to_pylist(),
        }
        row = self._row("unwrap", rival, UNWRAP_TARGETS, "")
        yield self._measured(row, found, lambda: decoder.decode(self._column), self._decode)

    def _rows_of(self, payloads: list[bytes]) -> Rows:
        decoded = self._decoder.decode(pa.array(payloads, pa.binary()))
        return plain(decoded.values, self._shape.fields)

    def _row(self, group: str, rival: str, targets: dict[str, float], note: str) -> Row:
        return Row(
            *(f"{group} {TITLES[self._form]}", self._shape.name, "records/s", rival),
            target=targets.get(rival.split()[0]),
            note=note,
        )

    def _measured(self, row: Row, found: dict[str, Rows], ours: Work, theirs: Work) -> Row:
        row.checks = {name: _sums(rows) for name, rows in found.items()}
        compare(row.checks, f"{row.group} of {row.name}")
        times = [max(1, int(_RUN_SECONDS / _seconds(work, 1))) for work in (ours, theirs)]
        row.work = [len(self._payloads) * count for count in times]
        return take_turns(
            row,
            lambda: _seconds(ours, times[0]),
            lambda: _seconds(theirs, times[1]),
            self._pairs,
            self._say,
            collects=True,
        )


def _avro(shape: Shape, payloads: list[bytes], values: pa.Array) -> dict[str, Any]:
    import fastavro
    import pyruhvro

    text = shape.texts[AVRO]
    parsed = fastavro.parse_schema(json.loads(text))
    batch = pyruhvro.deserialize_array(payloads, text)

    def decode() -> pa.Array:
        read = fastavro.schemaless_reader
        return pa.array([read(io.BytesIO(payload), parsed) for payload in payloads], values.type)

    def encode() -> list[bytes]:
        made = []
        for row in values.to_pylist(maps_as_pydicts="strict"):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, row)
            made.append(out.getvalue())
        return made

    return {
        _version("pyruhvro"): (
            lambda: pyruhvro.deserialize_array(payloads, text),
            lambda: pyruhvro.serialize_record_batch(batch, text, 1),
            "",
        ),
        _version("fastavro"): (decode, encode, "rows become columns with pa.array, and to_pylist"),
    }


def _protobuf(shape: Shape, payloads: list[bytes], values: pa.Array) -> dict[str, Any]:
    from ptars import HandlerPool

    descriptor = shape.message.DESCRIPTOR
    handler = HandlerPool([descriptor.file]).get_for_message(descriptor)
    batch = handler.list_to_record_batch(payloads)
    parse = shape.message.FromString
    messages = shape.messages
    return {
        _version("ptars"): (
            lambda: handler.list_to_record_batch(payloads),
            lambda: handler.record_batch_to_array(batch),
            "",
        ),
        f"upb (protobuf {importlib.metadata.version('protobuf')})": (
            lambda: [parse(payload) for payload in payloads],
            lambda: [message.SerializeToString() for message in messages],
            "from and to its messages, no columns",
        ),
    }


def _json(shape: Shape, payloads: list[bytes], values: pa.Array) -> dict[str, Any]:
    import orjson
    import pyarrow.json

    loads, dumps, kind = orjson.loads, orjson.dumps, values.type
    options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(list(kind)))
    serial = pyarrow.json.ReadOptions(use_threads=False, block_size=64 << 20)

    def read() -> pa.Table:
        lines = pa.py_buffer(b"\n".join(payloads))
        return pyarrow.json.read_json(pa.BufferReader(lines), serial, options)

    rivals = {
        f"{_version('orjson')} and pa.array": (
            lambda: pa.array([loads(payload) for payload in payloads], kind),
            lambda: [dumps(row) for row in values.to_pylist(maps_as_pydicts="strict")],
            "rows become columns with pa.array, and to_pylist",
        ),
        f"pyarrow.json {pa.__version__}": (read, None, ""),
    }
    try:
        read()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # it has no maps
        rivals.popitem()
    return rivals


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def _table(found: pa.RecordBatch | pa.Table) -> pa.Table:
    table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
    return table.combine_chunks()


def _joined(payloads: Any) -> list[bytes]:
    """A list, an array (ptars) or a list of arrays (pyruhvro)."""
    if isinstance(payloads, pa.Array):
        return payloads.to_pylist()
    if isinstance(payloads[0], pa.Array):
        return [value for array in payloads for value in array.to_pylist()]
    return payloads


def _sums(rows: Rows) -> list[int | None]:
    hashes = [zlib.crc32(json.dumps(row, sort_keys=True).encode()) for row in rows]
    return [len(hashes), sum(hashes)]


def _seconds(work: Work, times: int) -> float:
    """Of the processor: neither side waits for anything."""
    begin = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - begin
