"""Keys and values of a schema, for writing: JSON texts or typed columns become payloads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.config.format_rows import HEADERS, JSON
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.options import parse_write_options
from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.schemas.choice import column_schema, encode_plan
from sparkkafka.schemas.column import ColumnEncoder, format_module
from sparkkafka.schemas.json.texts import BrokenTextError, parse
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.values import Decoded, Schema, ValueRowError

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
            except BrokenTextError as error:
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
