"""Keys and values with a schema: decode them for `read`, encode them for `write`.

The options are those of Spark's side (valueFormat, valueSchema, schema.registry.url, …), checked by
the same table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.given_options import warn
from sparkkafka.config.kinds import HEADERS, JSON
from sparkkafka.config.options import parse_read_options, parse_write_options
from sparkkafka.errors import BadRecordError, OptionError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.schemas.choice import column_schema, encode_plan, reader_schema
from sparkkafka.schemas.column import (
    ColumnDecoder,
    ColumnEncoder,
    ColumnPlan,
    format_module,
    in_pieces,
    prepared,
)
from sparkkafka.schemas.foreign_framing import name_framings
from sparkkafka.schemas.json.syntax import JsonSyntaxError, parse
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.unframing import plain, unframe_texts
from sparkkafka.schemas.values import Decoded, Schema, ValueRowError

# --- decoding ---------------------------------------------------------------------------------


def read_formats(topic: str, options: Mapping[str, str]) -> FormatOptions:
    """The formats of a read with these options. Raises OptionError naming the option."""
    # The rules are those of a read; where it reads from does not matter to them.
    read = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": topic}
    return parse_read_options({**read, **options}).formats or FormatOptions()


class Decoding(ExitStack):
    """Decodes keys and values of batches; use it under `with`.

    `as_text`: JSON texts in binary columns; without it typed columns. `skips_bad`: rows that no
    schema reads are left out, with one warning, and counted in `skipped`.
    """

    def __init__(
        self, formats: FormatOptions, topic: str, *, as_text: bool, skips_bad: bool = False
    ) -> None:
        super().__init__()
        self._as_text = as_text
        self._skips_bad = skips_bad
        self.skipped = 0
        registry = None
        if formats.registry is not None:
            registry = self.enter_context(RegistryClient(formats.registry))
        self._columns = {
            column.column: _column(
                column, topic, registry, as_text, formats.recursive_fields_max_depth
            )
            for column in (formats.key, formats.value)
            if column.has_schema
        }

    @property
    def json_columns(self) -> frozenset[str]:
        """The columns that hold JSON texts."""
        return frozenset(self._columns) if self._as_text else frozenset()

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the columns that are decoded."""
        return {name: column.type for name, column in self._columns.items()}

    def decoded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch with the columns decoded, in several where they take too much memory. Raises
        BadRecordError with the first bad record's place, and RegistryError."""
        return in_pieces(
            lambda start, stop: self._decoded(batch.slice(start, stop - start)), 0, batch.num_rows
        )

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        bad: dict[int, str] = {}
        found: dict[str, pa.Array] = {}
        for name, column in self._columns.items():
            payloads = batch.column(name)
            found[name], reasons = column.read(payloads, batch.column("headers"))
            for row, reason in reasons.items():
                bad.setdefault(row, f"column {name}: {reason}")
        for name, values in found.items():
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, pa.field(name, values.type), values)
        return self._without(batch, bad) if bad else batch

    def _without(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> pa.RecordBatch:
        row = min(bad)
        topic, partition, offset = (
            batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
        )
        place = f"topic {topic} partition {partition} offset {offset}: {bad[row]}"
        if not self._skips_bad:
            raise BadRecordError(f"{place} (--on-bad skip leaves such records out)")
        warn(f"cli bad record of {topic}", f"records that no schema reads are left out: {place}")
        self.skipped += len(bad)
        keep = [row not in bad for row in range(batch.num_rows)]
        return batch.filter(pa.array(keep))


class _TextColumn:
    """JSON texts, with or without a frame, as they are. Needs no schema."""

    type = pa.binary()

    def __init__(self, column: ColumnFormat) -> None:
        self._name = column.column
        self._is_plain = column.framing == "none"

    def read(self, payloads: pa.Array, headers: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        unframed = plain(payloads) if self._is_plain else unframe_texts(payloads, self._name)
        bad = dict(zip(unframed.bad_rows.tolist(), unframed.reasons, strict=True))
        texts: list[bytes | None] = [None] * len(payloads)
        for group in unframed.groups:
            rows = range(len(payloads)) if group.rows is None else group.rows.tolist()
            for row, text in zip(rows, group.payloads.to_pylist(), strict=True):
                if text is None:
                    continue
                try:
                    json.loads(text, parse_constant=_no_constant)
                except (ValueError, RecursionError) as error:
                    bad[row] = f"it is no JSON: {error}"
                else:
                    # A line end in JSON is white space, and would end the line that it stands in.
                    texts[row] = text.replace(b"\n", b" ").replace(b"\r", b" ")
        if bad:
            bad = name_framings(
                bad, payloads, headers, self._name, framed=not self._is_plain, is_json=True
            )
        return binary_array(texts), bad


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _TypedColumn:
    """Avro or Protobuf, or JSON with a schema."""

    def __init__(
        self,
        column: ColumnFormat,
        topic: str,
        registry: RegistryClient | None,
        as_text: bool,
        depth: int | None,
    ) -> None:
        chosen = reader_schema(column, topic, registry)
        kind = format_module(column.format).arrow_type(
            chosen.schema, message=chosen.message, depth=depth
        )
        plan = ColumnPlan(
            column=column.column,
            format=column.format,
            framing=column.framing,
            reader=chosen.schema,
            type=kind,
            wanted=None if depth is None else kind,
            message=chosen.message,
            subject=chosen.subject,
            schema_id=chosen.schema_id,
            prepared=prepared(chosen.schema),
        )
        self._decoder = ColumnDecoder(plan, None if registry is None else lambda: registry)
        self._encoder: Any = None
        self.type = kind
        if as_text:
            by_schema = chosen.schema if column.format == JSON else None
            self._encoder = format_module(JSON).text_encoder(kind, by_schema)
            self.type = pa.binary()

    def read(self, payloads: pa.Array, headers: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        decoded = self._decoder.decode(payloads, headers)
        values = decoded.values
        if self._encoder is not None:
            values = self._encoder.encode(values)
        return values, {one.row: f"{one.reason} ({one.writer})" for one in decoded.bad}


def _column(
    column: ColumnFormat,
    topic: str,
    registry: RegistryClient | None,
    as_text: bool,
    depth: int | None,
) -> _TextColumn | _TypedColumn:
    if column.infer:
        raise OptionError(
            f"{column.column}Schema=infer is for Spark: leave it out, and texts stay as they are"
        )
    if column.format == JSON and column.schema is None and (as_text or registry is None):
        return _TextColumn(column)
    return _TypedColumn(column, topic, registry, as_text, depth)


# --- encoding ---------------------------------------------------------------------------------

PLACES: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "headers", "key")
"""Columns of a file that are no part of a value."""


def write_formats(topic: str, options: Mapping[str, str]) -> FormatOptions:
    """The formats of a write with these options. Raises OptionError naming the option."""
    write = {"kafka.bootstrap.servers": "localhost:9092", "topic": topic}
    return parse_write_options({**write, **options}).formats or FormatOptions()


def with_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a column value: of a file without one, a struct of all other columns."""
    if "value" in batch.schema.names:
        return batch
    fields = [name for name in batch.schema.names if name not in PLACES]
    if not fields:
        raise OptionError(
            f"--input: there is no column value, nor another to make it of; there are "
            f"{', '.join(batch.schema.names)}"
        )
    struct = pa.StructArray.from_arrays(
        [batch.column(name) for name in fields],
        fields=[batch.schema.field(name) for name in fields],
    )
    return batch.drop_columns(fields).append_column("value", struct)


class _BadRowError(ValueRowError):
    """A row of a batch without a payload; the reason names the column and the field."""


class Encoding(ExitStack):
    """Encodes keys and values of batches; use it under `with`."""

    def __init__(self, formats: FormatOptions, topic: str) -> None:
        super().__init__()
        self._formats = formats
        self._topic = topic
        self._registry: RegistryClient | None = None
        if formats.registry is not None:
            self._registry = self.enter_context(RegistryClient(formats.registry))
        self._columns = [c for c in (formats.value, formats.key) if c.has_schema]
        self._ready: dict[str, tuple[Any, ColumnEncoder | None]] = {}

    def encoded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, str | None]:
        """The rows before the first that has no payload, and why it has none (None: all have one).

        They have payloads, and headers with ids if the framing has them there. Raises OptionError,
        SchemaError, RegistryError.
        """
        reason = None
        while True:
            try:
                return self._encoded(batch), reason
            except _BadRowError as error:  # of another column an earlier row may be bad
                batch, reason = batch.slice(0, error.row), error.reason

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        headers = batch.column("headers") if "headers" in names else None
        for column in self._columns:
            name = column.column
            if name not in names:
                raise OptionError(f"{name}Format={column.format}: the input has no {name}s")
            values = batch.column(name)
            if name not in self._ready:
                self._ready[name] = self._prepared(column, values.type)
            texts, encoder = self._ready[name]
            if texts is not None:
                values = self._parsed(name, texts, values)
            if encoder is None:
                continue
            try:
                payloads, headers = encoder.encoded(values, headers)
            except ValueRowError as error:
                raise _BadRowError(error.row, f"column {name}: {error.reason}") from None
            batch = batch.set_column(batch.schema.get_field_index(name), name, payloads)
            if encoder.plan.framing == HEADERS and headers is not None:
                batch = _with_headers(batch, headers)
        return batch

    def _prepared(
        self, column: ColumnFormat, kind: pa.DataType
    ) -> tuple[Any, ColumnEncoder | None]:
        """What reads JSON texts (None: the column is typed), and what encodes (None: they stay as
        they are)."""
        if not _is_text(kind):
            plan = encode_plan(self._formats, column, self._topic, kind, self._registry)
            return None, ColumnEncoder(plan)
        if column.schema is None and self._registry is None:
            return _PlainJson(), None  # the rules of options let no other format come here
        if column.schema is None:
            for option, is_on in (
                ("auto.register.schemas", self._formats.auto_register_schemas),
                ("normalize.schemas", self._formats.normalize_schemas),
            ):
                if is_on:
                    raise OptionError(
                        f"option {option}=true needs {column.column}Schema: lines have no types of "
                        "which a schema could be made"
                    )
        # The texts are read as the schema types them, and so they fit it.
        chosen = column_schema(column, self._topic, self._registry)
        wanted = format_module(column.format).arrow_type(
            chosen.schema, message=chosen.message, depth=self._formats.recursive_fields_max_depth
        )
        given = chosen.schema if column.format == JSON else Schema(JSON, "")
        reader = format_module(JSON).exact_decoder(given, wanted)
        if column.schema is None and not self._formats.use_latest_version:
            plan = encode_plan(
                _of_latest(self._formats), column, self._topic, wanted, self._registry
            )
        else:
            plan = encode_plan(self._formats, column, self._topic, wanted, self._registry)
        return reader, ColumnEncoder(plan)

    def _parsed(self, name: str, reader: Any, texts: pa.Array) -> pa.Array:
        decoded = reader.decode(texts.cast(pa.binary()))
        if len(decoded.bad_rows):
            raise _BadRowError(int(decoded.bad_rows[0]), f"column {name}: {decoded.reasons[0]}")
        return decoded.values


class _PlainJson:
    """Texts that must be JSON, and stay as they are."""

    def decode(self, texts: pa.Array) -> Decoded:
        rows, reasons = [], []
        for row, text in enumerate(texts.to_pylist()):
            try:
                if text is not None:
                    parse(text)
            except JsonSyntaxError as error:
                rows.append(row)
                reasons.append(f"the value {error}")
        return Decoded(texts, np.array(rows, np.int64), tuple(reasons))


def _of_latest(formats: FormatOptions) -> FormatOptions:
    from dataclasses import replace

    return replace(formats, use_latest_version=True)


def _is_text(kind: pa.DataType) -> bool:
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary")


def _with_headers(batch: pa.RecordBatch, headers: pa.Array) -> pa.RecordBatch:
    at = batch.schema.get_field_index("headers")
    if at < 0:
        return batch.append_column(pa.field("headers", HEADERS_TYPE), headers)
    return batch.set_column(at, pa.field("headers", HEADERS_TYPE), headers)
