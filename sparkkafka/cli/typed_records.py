"""Keys and values with a schema: decode them for `read`, encode them for `write`.

The options are those of Spark's side (valueFormat, valueSchema, schema.registry.url, …), checked by
the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparkkafka.cli.files import set_column
from sparkkafka.config.formats import ColumnFormat, FormatOptions, formats_from
from sparkkafka.config.kinds import JSON
from sparkkafka.config.option_table import Side
from sparkkafka.config.parsed_options import ParsedOptions, warn
from sparkkafka.errors import BadRecordError, OptionError, RegistryError
from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.schemas.arrays import as_nullable
from sparkkafka.schemas.column import (
    ColumnDecoder,
    ColumnEncoder,
    ColumnPlan,
    compile_for_tasks,
    format_module,
    in_pieces,
)
from sparkkafka.schemas.envelopes.decode import Envelope, full_type
from sparkkafka.schemas.framings import IN_HEADERS, name_framings, unframe_column
from sparkkafka.schemas.json.syntax import JsonSyntaxError, parse
from sparkkafka.schemas.registry.client import SUBJECT_NOT_FOUND, RegistryClient, open_registry
from sparkkafka.schemas.schema_choice import column_schema, encode_plan, reader_schema
from sparkkafka.schemas.values import Decoded, Schema, ValueRowError

# --- decoding ---------------------------------------------------------------------------------


def parse_formats(options: Mapping[str, str], side: Side) -> FormatOptions:
    """Parse the formats of a read or a write (`side`). Raises OptionError naming the option."""
    return formats_from(ParsedOptions(options, side)) or FormatOptions()


class Decoding(ExitStack):
    """Decodes keys and values of batches; use it under `with`. The constructor raises OptionError,
    SchemaError, RegistryError.

    With `as_text` to JSON texts in binary columns, otherwise to typed columns. With `skips_bad`
    rows that no schema can read are skipped, with one warning, and counted in `skipped`.
    """

    def __init__(
        self, formats: FormatOptions, topic: str, *, as_text: bool, skips_bad: bool = False
    ) -> None:
        super().__init__()
        self._as_text = as_text
        self._skips_bad = skips_bad
        self.skipped = 0
        registry = self.enter_context(open_registry(formats.registry))
        depth = formats.recursive_fields_max_depth
        self._columns: dict[str, _TextDecoder | _TypedDecoder] = {}
        for column in (formats.key, formats.value):
            name = column.column
            if column.infer:
                raise OptionError(
                    f"{name}Schema=infer is for Spark: leave it out, and texts stay as they are"
                )
            if column.format == JSON and column.schema is None and (as_text or registry is None):
                self._columns[name] = _TextDecoder(column)
            elif column.has_schema:
                try:
                    self._columns[name] = _TypedDecoder(column, topic, registry, as_text, depth)
                except RegistryError as error:  # a table without a primary key has no keys
                    if not column.is_optional or error.code != SUBJECT_NOT_FOUND:
                        raise

    @property
    def json_columns(self) -> frozenset[str]:
        """The columns that are decoded to JSON texts."""
        return frozenset(self._columns) if self._as_text else frozenset()

    @property
    def schemas(self) -> dict[str, Schema]:
        """The schemas with which the columns are decoded, by column."""
        columns = self._columns.items()
        return {name: column.schema for name, column in columns if column.schema is not None}

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the decoded columns, with all their fields nullable."""
        return {name: as_nullable(column.type) for name, column in self._columns.items()}

    def decode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Decode the batch, in several slices if that takes too much memory. Raises BadRecordError
        with the location of the first bad record, and RegistryError."""
        return in_pieces(
            lambda start, stop: self._decode(batch.slice(start, stop - start)), 0, batch.num_rows
        )

    def _decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode all rows of a batch. Raises the errors of `decode`."""
        bad: dict[int, str] = {}  # the reason for each bad row
        decoded = batch
        for name, column in self._columns.items():
            values, reasons = column.decode(batch.column(name), batch.column("headers"))
            decoded = set_column(decoded, name, values)
            for row, reason in reasons.items():
                bad.setdefault(row, f"column {name}: {reason}")
        return self._drop_bad_rows(decoded, bad) if bad else decoded

    def _drop_bad_rows(self, batch: pa.RecordBatch, bad: Mapping[int, str]) -> pa.RecordBatch:
        """Return the batch without the bad rows, and count them; `bad` has the reason for each.
        Raises BadRecordError for the first one unless `skips_bad`."""
        row = min(bad)
        topic, partition, offset = (
            batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
        )
        reason = f"topic {topic} partition {partition} offset {offset}: {bad[row]}"
        if not self._skips_bad:
            raise BadRecordError(f"{reason} (--on-bad skip leaves such records out)")
        warn(f"cli bad record of {topic}", f"records that no schema reads are left out: {reason}")
        self.skipped += len(bad)
        keep = [row not in bad for row in range(batch.num_rows)]
        return batch.filter(pa.array(keep))


class _TextDecoder:
    """Decodes valueFormat=json without a schema: removes the framing, if there is one, and checks
    that the payload is JSON."""

    type = pa.binary()
    schema: Schema | None = None

    def __init__(self, column: ColumnFormat) -> None:
        self._name = column.column
        self._framing = column.framing

    def decode(self, payloads: pa.Array, headers: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the texts, and the reason for each bad row."""
        unframed = unframe_column(payloads, headers, self._name, self._framing, is_text=True)
        bad = dict(zip(unframed.bad_rows.tolist(), unframed.reasons, strict=True))
        texts: list[bytes | None] = [None] * len(payloads)
        for group in unframed.groups:
            # No rows are named if the group has all of them.
            rows = range(len(payloads)) if group.rows is None else group.rows.tolist()
            for row, text in zip(rows, group.payloads.to_pylist(), strict=True):
                if text is None:
                    continue
                try:
                    parse(text)
                except JsonSyntaxError as error:
                    bad[row] = f"it {error.reason}"
                else:
                    # Line ends in JSON are white space, and would break the line of output.
                    texts[row] = text.replace(b"\n", b" ").replace(b"\r", b" ")
        if bad:
            bad = name_framings(
                bad, payloads, headers, self._name, framing=self._framing, is_json=True
            )
        return binary_array(texts), bad


class _TypedDecoder:
    """Decodes Avro, Protobuf, or JSON with a schema: to typed values, or with `as_text` to JSON
    texts."""

    def __init__(
        self,
        column: ColumnFormat,
        topic: str,
        registry: RegistryClient | None,
        as_text: bool,
        depth: int | None,
    ) -> None:
        chosen = reader_schema(column, topic, registry)
        self.schema: Schema | None = chosen.schema
        module = format_module(column.format)
        envelope = Envelope(column.envelope, unwraps=False) if column.envelope else None
        if envelope is None:
            value_type = module.arrow_type(chosen.schema, message=chosen.message, depth=depth)
        else:
            value_type = full_type(module, envelope, chosen.schema, chosen.message, depth)
        plan = ColumnPlan(
            column=column.column,
            format=column.format,
            framing=column.framing,
            reader=chosen.schema,
            type=value_type,
            # None: the decoder gives the schema's type by itself.
            target=None if depth is None and envelope is None else value_type,
            envelope=envelope,
            message=chosen.message,
            subject=chosen.subject,
            schema_id=chosen.schema_id,
            guid=chosen.guid,
            compiled=compile_for_tasks(chosen.schema),
        )
        self._decoder = ColumnDecoder(plan, None if registry is None else lambda: registry)
        self._encoder: Any = None
        self.type = value_type
        if as_text:
            json_schema = chosen.schema if column.format == JSON else None
            self._encoder = format_module(JSON).text_encoder(value_type, json_schema)
            self.type = pa.binary()

    def decode(self, payloads: pa.Array, headers: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, and the reason for each bad row."""
        decoded = self._decoder.decode(payloads, headers)
        reasons = {bad.row: f"{bad.reason}{bad.writer.note}" for bad in decoded.bad}
        if self._encoder is None:
            return decoded.values, reasons
        try:
            return self._encoder.encode(decoded.values), reasons
        except ValueRowError:  # JSON cannot have a value of some rows, such as NaN
            texts = [self._text(decoded.values, row, reasons) for row in range(len(payloads))]
            return pa.concat_arrays(texts), reasons

    def _text(self, values: pa.Array, row: int, reasons: dict[int, str]) -> pa.Array:
        """Return the JSON text of one row. If JSON cannot have its value, add the reason to
        `reasons`, and return null."""
        try:
            return self._encoder.encode(values.slice(row, 1))
        except ValueRowError as error:
            reasons[row] = error.reason
            return pa.nulls(1, pa.binary())


# --- encoding ---------------------------------------------------------------------------------


class Encoding(ExitStack):
    """Encodes keys and values of batches in their formats; use it under `with`."""

    def __init__(self, formats: FormatOptions, topic: str) -> None:
        super().__init__()
        self._formats = formats
        self._topic = topic
        self._registry = self.enter_context(open_registry(formats.registry))
        self._columns = [c for c in (formats.value, formats.key) if c.has_schema]
        # By column: what `_codecs` returned for the type of the first batch.
        self._prepared: dict[str, tuple[Any, ColumnEncoder | None]] = {}

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, str | None]:
        """Encode the rows before the first that cannot be encoded. Return them, and the reason for
        that row (None: all rows are encoded).

        The ids of schemas are added to the headers, if the framing puts them there. Raises
        OptionError, SchemaError, RegistryError.
        """
        reason = None
        while True:
            try:
                return self._encode(batch), reason
            except ValueRowError as error:  # in another column an earlier row may be bad
                batch, reason = batch.slice(0, error.row), error.reason

    def _encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Encode all rows. Raises ValueRowError, whose reason names the column and the field."""
        names = batch.schema.names
        headers = batch.column("headers") if "headers" in names else None
        for column in self._columns:
            name = column.column
            if name not in names:
                raise OptionError(f"{name}Format={column.format}: the input has no {name}s")
            values = batch.column(name)
            if name not in self._prepared:
                self._prepared[name] = self._codecs(column, values.type)
            text_decoder, encoder = self._prepared[name]
            if text_decoder is not None:
                decoded = text_decoder.decode(values.cast(pa.binary()))
                if len(decoded.bad_rows):
                    raise ValueRowError(
                        int(decoded.bad_rows[0]), f"column {name}: {decoded.reasons[0]}"
                    )
                values = decoded.values
            if encoder is None:
                continue
            try:
                payloads, headers = encoder.encode_values(values, headers)
            except ValueRowError as error:
                raise ValueRowError(error.row, f"column {name}: {error.reason}") from None
            batch = set_column(batch, name, payloads)
            if encoder.plan.framing in IN_HEADERS and headers is not None:
                batch = set_column(batch, "headers", headers)
        return batch

    def _codecs(
        self, column: ColumnFormat, input_type: pa.DataType
    ) -> tuple[Any, ColumnEncoder | None]:
        """Return a decoder of JSON texts and an encoder, for a column that has this type in the
        input. The decoder is None if the column is typed already; the encoder is None if the texts
        are only checked."""
        text_types = ("string", "large_string", "string_view", "binary", "large_binary")
        if str(input_type) not in text_types:
            plan = encode_plan(self._formats, column, self._topic, input_type, self._registry)
            return None, ColumnEncoder(plan)
        if column.schema is None and self._registry is None:
            return _JsonChecker(), None  # any other format without a schema is an OptionError
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
        # The texts are parsed to the types of the schema, so that the values fit it.
        try:
            chosen = column_schema(column, self._topic, self._registry)
        except RegistryError as error:
            if error.code != SUBJECT_NOT_FOUND:
                raise
            ways = f"set {column.column}Schema and auto.register.schemas=true"
            raise RegistryError(
                f"{error}. To register a schema, {ways}", status=error.status, code=error.code
            ) from error
        value_type = format_module(column.format).arrow_type(
            chosen.schema, message=chosen.message, depth=self._formats.recursive_fields_max_depth
        )
        json_schema = chosen.schema if column.format == JSON else Schema(JSON, "")
        text_decoder = format_module(JSON).exact_decoder(json_schema, value_type)
        formats = self._formats
        if column.schema is None:
            formats = replace(formats, use_latest_version=True)
        plan = encode_plan(formats, column, self._topic, value_type, self._registry)
        return text_decoder, ColumnEncoder(plan)


class _JsonChecker:
    """Checks that texts are JSON, and leaves them as they are."""

    def decode(self, texts: pa.Array) -> Decoded:
        """Return the texts, and the rows that are not JSON with the reason for each."""
        rows, reasons = [], []
        for row, text in enumerate(texts.to_pylist()):
            try:
                if text is not None:
                    parse(text)
            except JsonSyntaxError as error:
                rows.append(row)
                reasons.append(str(error))
        return Decoded(texts, np.array(rows, np.int64), tuple(reasons))
