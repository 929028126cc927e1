"""Decodes and encodes a whole key or value column.

Decoding: frames name the schema that wrote each row (`framings`), the registry has that
schema, its format decodes the rows, and the rows are brought back into their order. Encoding: the
format encodes the values, and the schema's id, which the driver looked up or registered, is written
before each payload or into a header. A process makes the decoder of a schema once and keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparkkafka.config import kinds
from sparkkafka.config.parsed_options import warn
from sparkkafka.errors import EncodeError, KafkaError, RegistryError, SchemaError
from sparkkafka.protocol.records.arrow import is_valid
from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas import framings
from sparkkafka.schemas.arrays import as_type, spread, with_small_offsets
from sparkkafka.schemas.avro.schema import fingerprint
from sparkkafka.schemas.data_contract import DataContract, Rule, name_some
from sparkkafka.schemas.envelopes import decode as envelopes
from sparkkafka.schemas.envelopes.decode import Envelope
from sparkkafka.schemas.framings import (
    CONTENT_ID,
    FINGERPRINT,
    GLOBAL_ID,
    NO_FRAME,
    PayloadGroup,
    WriterId,
    add_header,
    name_framings,
)
from sparkkafka.schemas.registry.client import RegistryClient, call_concurrently
from sparkkafka.schemas.registry.responses import is_unknown_path
from sparkkafka.schemas.values import (
    FIRST_MESSAGE,
    Decoder,
    Encoder,
    MemoryBudget,
    Schema,
    TooManyRowsError,
    ValueRowError,
    with_prefix,
)

Made = TypeVar("Made")

_MAX_SCHEMAS = 64
"""How many schemas are requested together: the text of each may have 4 MiB."""

_RETRY_S: Final = 60.0
"""When an unknown schema is requested again: the command and functions keep a decoder for days, and
the id may be registered meanwhile."""


def format_module(name: str) -> Any:
    """Import and return the module of a format, as `schemas/avro/format.py`. The import takes time,
    and planning a read of text needs none of these modules."""
    return import_module(f"sparkkafka.schemas.{name}.format")


def warn_of_rules(
    column: str, schema: Schema, whose: str, subject: str | None, *, writes: bool = False
) -> None:
    """Warn of the registry's rules for this schema that are not run, once in a process for the same
    rules of a subject. `whose` names the schema: "subject orders-value, version 3"."""
    contract = schema.contract
    if contract is None:
        return
    if rules := contract.encryption_rules(writes=writes):
        fields = encrypted_fields(schema, rules)
        warn(
            f"{column} of {subject}: {fields} encrypted, writes {writes}",
            f"column {column}: {whose} has rules that encrypt {fields}: {name_some(rules)}. "
            + (
                "They are written in plain text (ignoreEncryptionRules=true)"
                if writes
                else "Encrypted fields stay encrypted, since no rules of a registry are run here: "
                "Confluent's deserializers decrypt them"
            ),
        )
    if others := contract.other_rules(writes=writes):
        warn(
            f"{column} of {subject}: {others} not run, writes {writes}",
            f"column {column}: rules of {whose} are not run here: {name_some(others)}. Values are "
            + ("written as they are" if writes else "read as they were written")
            + "; Confluent's clients check or change them by these rules",
        )


def encrypted_fields(schema: Schema, rules: Collection[Rule]) -> str:
    """Describe what these rules of the schema encrypt, for messages."""
    contract = schema.contract or DataContract()
    try:
        tags = format_module(schema.format).inline_tags(schema)
    except KafkaError:  # the schema cannot be used, which is reported where it is used
        tags = {}
    return contract.describe_encrypted(rules, tags)


@cache
def _keep_memory() -> None:
    """Have the C library keep the memory that one batch frees for the next batch.

    glibc returns freed blocks above 128 KB to the system, and getting them again page by page takes
    a third of the time of decoding. Freeing one larger block raises that limit.
    """
    np.empty(8 << 20, np.uint8)


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnPlan:
    """How one column is read. The driver makes it, and all tasks use the same.

    column: "key" or "value". reader: the schema that determines the column's type; compiled: the
    same schema as of `compile_for_tasks`. message: the reader's message (Protobuf). target: the
    type that the user chose, or None. type: the column's type, exactly as Spark has it. subject:
    the subject of the writers' schemas in the registry; schema_id, guid: the reader's id
    there. rest: keep the parts that match no field (JSON). envelope: of change data capture.
    """

    column: str
    format: str
    framing: str
    reader: Schema
    type: pa.DataType
    target: pa.DataType | None = None
    message: tuple[int, ...] = FIRST_MESSAGE
    subject: str | None = None
    schema_id: int | None = None
    guid: bytes | None = None
    rest: bool = False
    compiled: Schema | None = None
    envelope: Envelope | None = None

    @property
    def decoder_schema(self) -> Schema:
        """The reader's schema as decoders get it: compiled, if its format needs compiling."""
        return self.compiled or self.reader


class BadRow(NamedTuple):
    """A row that cannot be decoded. `reason` names the field, `writer` the schema."""

    row: int
    reason: str
    writer: WriterId


@dataclass(frozen=True)
class DecodedColumn:
    """`values` are null where the payload is null or bad; `bad` ascends by row. `rest`: JSON text
    of the properties that match no field, null for none; None if the plan does not keep it."""

    values: pa.Array
    bad: list[BadRow]
    rest: pa.Array | None = None


def in_pieces(decode: Callable[[int, int], Made], start: int, stop: int) -> Iterator[Made]:
    """Yield what `decode` returns for the rows from start to stop: of one call, or, if that raises
    TooManyRowsError, of several calls with fewer rows each."""
    try:
        yield decode(start, stop)
        return
    except TooManyRowsError:
        pass  # leave the handler first: the error holds the memory of the columns so far
    middle = (start + stop) // 2
    yield from in_pieces(decode, start, middle)
    yield from in_pieces(decode, middle, stop)


class ColumnDecoder:
    """Decodes batches of one column. `get_registry` returns the registry's client; it is called for
    each schema that is not known yet."""

    def __init__(
        self, plan: ColumnPlan, get_registry: Callable[[], RegistryClient] | None = None
    ) -> None:
        _keep_memory()
        self.plan = plan
        self._get_registry = get_registry
        self._decoders: dict[WriterId, Decoder | str] = {}  # a str: why its payloads are bad
        self._retry_at_s = time.monotonic() + _RETRY_S

    def decode(self, payloads: pa.Array, headers: pa.Array | None) -> DecodedColumn:
        """Decode the column's payloads (binary). `headers`: the records' headers, of HEADERS_TYPE,
        or None.

        Raises RegistryError if a request to the registry fails, OptionError for a type that cannot
        be read or a missing library, and SchemaError for a change with a new column (see
        `Envelope`). Records never raise otherwise, except TooManyRowsError for several rows:
        decoding fewer rows gives the same values.
        """
        plan = self.plan
        budget = MemoryBudget(payloads)
        unframed = framings.unframe_column(
            payloads,
            headers,
            plan.column,
            plan.framing,
            with_indexes=plan.format == kinds.PROTOBUF,
            is_text=plan.format == kinds.JSON,  # the writer's schema is not needed
            budget=budget,
        )
        bad = [
            BadRow(row, reason, NO_FRAME)
            for row, reason in zip(unframed.bad_rows.tolist(), unframed.reasons, strict=True)
        ]
        values: list[tuple[PayloadGroup, pa.Array]] = []
        rests: list[tuple[PayloadGroup, pa.Array]] = []
        self._add_decoders([group.writer for group in unframed.groups])
        for group in unframed.groups:
            decoder = self._decoders[group.writer]
            rows = np.arange(len(payloads)) if group.rows is None else group.rows
            if isinstance(decoder, str):
                rows = rows[is_valid(group.payloads)]
                bad += [BadRow(row, decoder, group.writer) for row in rows.tolist()]
                continue
            decoded = decoder.decode(group.payloads, budget)
            values.append((group, decoded.values))
            if decoded.rest is not None:
                rests.append((group, decoded.rest))
            bad_rows = rows[decoded.bad_rows].tolist()
            bad += [
                BadRow(row, reason, group.writer)
                for row, reason in zip(bad_rows, decoded.reasons, strict=True)
            ]
        bad.sort(key=lambda bad_row: bad_row.row)
        if bad:
            reasons = name_framings(
                {row.row: row.reason for row in bad},
                payloads,
                headers,
                plan.column,
                framing=plan.framing,
                is_json=plan.format == kinds.JSON,
            )
            bad = [row._replace(reason=reasons[row.row]) for row in bad]
        return DecodedColumn(
            _in_row_order(values, len(payloads), plan.type),
            bad,
            _in_row_order(rests, len(payloads), pa.string()) if plan.rest else None,
        )

    def _add_decoders(self, writers: list[WriterId]) -> None:
        """Add the decoders of these writers to `_decoders`, or why their payloads are bad."""
        decoders = self._decoders
        if time.monotonic() > self._retry_at_s:
            self._retry_at_s = time.monotonic() + _RETRY_S
            for writer in [writer for writer, made in decoders.items() if isinstance(made, str)]:
                del decoders[writer]
        if all(writer in decoders for writer in writers):
            return
        # So many writers are payloads whose first bytes are not ids.
        if len(decoders) >= 10_000:
            decoders.clear()
        new = [writer for writer in writers if writer not in decoders]
        for start in range(0, len(new), _MAX_SCHEMAS):
            group = new[start : start + _MAX_SCHEMAS]
            schemas = call_concurrently(
                self._fetch_schema,
                (_without_message(writer) for writer in group if not self._is_of_reader(writer)),
            )
            for writer in group:
                is_of_reader = self._is_of_reader(writer)
                schema = None if is_of_reader else schemas[_without_message(writer)]
                if isinstance(schema, Schema):
                    self._check_columns(writer, schema)
                decoders[writer] = self._make_decoder(writer, schema)

    def _is_of_reader(self, writer: WriterId) -> bool:
        """Return whether payloads of this writer are decoded by the reader's schema, without a
        request."""
        plan = self.plan
        # `a == b is not None`: both are the same id, and not both unknown.
        return (
            writer == NO_FRAME
            or plan.format == kinds.JSON
            or writer.guid == plan.guid is not None
            or (writer.kind == FINGERPRINT and writer.schema_id == fingerprint(plan.reader))
            or (
                writer.schema_id == plan.schema_id is not None
                and writer.message == plan.message
                and writer.kind
                == ("" if plan.framing in (kinds.CONFLUENT, kinds.HEADERS) else GLOBAL_ID)
                and plan.framing != kinds.AUTO  # the registry's ids may be of either kind
            )
        )

    def _fetch_schema(self, writer: WriterId) -> Schema | str:
        """Return this writer's schema, or why its payloads are bad. Raises RegistryError."""
        if self._get_registry is None:
            if writer.kind == FINGERPRINT:
                return (
                    f"{writer} is not that of {self.plan.column}Schema: set it to the schema that "
                    "wrote the record, or schema.registry.url to a registry that has it"
                )
            return (
                f"{writer} is not known: there is no registry; set schema.registry.url, or "
                "valueFraming=none if payloads are bare"
            )
        plan, registry = self.plan, self._get_registry()
        try:
            if writer.kind == FINGERPRINT:
                match = _find_fingerprint(registry, writer.schema_id, plan)
                if match is None:
                    return f"no version of subject {plan.subject!r} has {writer}"
                schema = match
            elif writer.kind == CONTENT_ID:
                schema = registry.by_content_id(writer.schema_id or 0, plan.format)
            elif writer.guid is None and writer.kind != registry.id_kind:
                return (
                    f"{writer} is not an id of {registry.address}: "
                    "set schema.registry.url to its own"
                )
            elif writer.guid is not None:
                schema = registry.by_guid(writer.guid, plan.format)
            else:
                schema = registry.by_id(writer.schema_id or 0, plan.subject, plan.format)
        except RegistryError as error:
            no_page = is_unknown_path(error.status, error.code)
            if error.status == 404 and not no_page:
                return f"the registry does not know {writer}"
            # Registries without GUIDs, such as Confluent's before 8.0, have no such path or
            # response with one of these. It is not a failure: any bytes may look like a GUID.
            if writer.guid is not None and (no_page or error.status in (400, 405, 501)):
                return f"the registry cannot look up {writer} (it knows ids, not GUIDs)"
            raise
        except SchemaError as error:
            return f"{writer} cannot be read: {error}"
        warn_of_rules(plan.column, schema, str(writer), plan.subject)
        return schema

    def _check_columns(self, writer: WriterId, schema: Schema) -> None:
        """Raise SchemaError for a schema of changes that is newer than the reader's and has a
        column more."""
        plan = self.plan
        # A schema that was registered later has a higher id.
        if plan.envelope is None or (writer.schema_id or 0) <= (plan.schema_id or 0):
            return
        try:
            node = envelopes.node_of(format_module(plan.format), schema, writer.message)
        except SchemaError:  # `_make_decoder` says why
            return
        envelopes.check_columns(plan.envelope, node, f"{writer}, subject {plan.subject}")

    def _make_decoder(self, writer: WriterId, schema: Schema | str | None) -> Decoder | str:
        """Return a decoder for the writer's schema (None: the reader's), or why its payloads are
        bad."""
        plan = self.plan
        if isinstance(schema, str):
            return schema
        try:
            if writer.message_number is not None:
                numbered = schema or plan.decoder_schema
                paths = format_module(plan.format).glue_messages(numbered)
                if writer.message_number >= len(paths):
                    return (
                        f"it is message number {writer.message_number} of {len(paths)} ({writer})"
                    )
                writer = replace(writer, message=paths[writer.message_number])
                schema = schema if writer.message == plan.message else numbered
            if schema is None or (schema == plan.reader and writer.message == plan.message):
                return decoder_of(plan)
            if plan.format == kinds.PROTOBUF:
                name = message_name(schema, writer.message)
                target = message_name(plan.decoder_schema, plan.message)
                if name != target:
                    return (
                        f"it is a message {name} ({writer}), not {target}, which "
                        f"{plan.column}SchemaMessage chooses"
                    )
            # Protobuf is decoded by the reader's schema, if the fields of both have the same wire
            # types.
            return decoder_of(plan, schema, writer.message)
        except SchemaError as error:
            return f"{writer} cannot be read: {error}"


def _without_message(writer: WriterId) -> WriterId:
    """Return the id of the writer's schema without the message in it: the registry is asked once
    for all messages of a schema."""
    return replace(writer, message=FIRST_MESSAGE, message_number=None)


def _find_fingerprint(
    registry: RegistryClient, number: int | None, plan: ColumnPlan
) -> Schema | None:
    """Return the schema with this fingerprint (`number`) among the newest versions of the plan's
    subject; None if there is none."""
    if plan.subject is None:
        return None
    for version in reversed(registry.versions(plan.subject)[-_MAX_SCHEMAS:]):
        schema = registry.version(plan.subject, version, plan.format).schema
        try:
            if fingerprint(schema) == number:
                return schema
        except SchemaError:  # another version may have it
            continue
    return None


@lru_cache(64)
def compile_for_tasks(schema: Schema) -> Schema | None:
    """Return the schema compiled, so that tasks need not do it (Protobuf); None if its format needs
    no compiling. It is the same object for all topics with the schema, so it is pickled once."""
    if schema.format != kinds.PROTOBUF:
        return None
    compiled: Schema = format_module(kinds.PROTOBUF).compiled(schema)
    return compiled


def message_name(schema: Schema, message: tuple[int, ...]) -> str:
    """Return the full name of a Protobuf message. Raises SchemaError."""
    name: str = format_module(kinds.PROTOBUF).message_name(schema, message)
    return name


def _in_row_order(
    parts: list[tuple[PayloadGroup, pa.Array]], count: int, arrow_type: pa.DataType
) -> pa.Array:
    """Return the values of groups as one array of `count` rows; null for rows of no group."""
    typed = [(group, as_type(values, arrow_type)) for group, values in parts]
    if not typed:
        return pa.nulls(count, arrow_type)
    rows = [group.rows for group, _ in typed if group.rows is not None]
    if not rows:  # one group has all rows
        return typed[0][1]
    return spread(pa.concat_arrays([values for _, values in typed]), np.concatenate(rows), count)


def decoder_of(
    plan: ColumnPlan, writer: Schema | None = None, message: tuple[int, ...] | None = None
) -> Decoder:
    """Return the decoder of payloads of the writer's schema and message, by default the reader's
    own. The process keeps it for the next task, and for all topics with these schemas. Raises
    SchemaError, OptionError."""
    plan = replace(plan, column="", framing="", subject=None, schema_id=None, guid=None)
    return _kept_decoder(plan, writer, message)


@lru_cache(128)  # a decoder takes some KB, and its schema's text
def _kept_decoder(
    plan: ColumnPlan, writer: Schema | None, message: tuple[int, ...] | None
) -> Decoder:
    """Return the decoder of `decoder_of`. The plan lacks what differs between topics."""
    schema, reader = plan.decoder_schema, None
    if writer is not None:
        schema, reader = writer, plan.decoder_schema
    message, module = message or plan.message, format_module(plan.format)
    if plan.envelope is not None and plan.target is not None:
        return envelopes.decoder(module, plan.envelope, schema, reader, plan.target, message)
    decoder: Decoder = module.decoder(schema, reader, plan.target, message=message, rest=plan.rest)
    return decoder


# --- writing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodePlan:
    """How one column is written. The driver makes it. `writer` is NO_FRAME without framing."""

    column: str
    format: str
    framing: str
    schema: Schema
    writer: WriterId = NO_FRAME


class ColumnEncoder:
    """Encodes batches of one column."""

    def __init__(self, plan: EncodePlan) -> None:
        _keep_memory()
        self.plan = plan
        # Glue's number of the message is part of what GLUE_ZLIB compresses, its frame is not.
        self._frame = self._number = b""
        if plan.framing != kinds.NO_FRAMING:
            with_indexes = plan.format == kinds.PROTOBUF
            self._frame = framings.frame_to_write(
                plan.framing, plan.writer, with_indexes=with_indexes
            )
            if with_indexes and plan.framing in (kinds.GLUE, kinds.GLUE_ZLIB):
                paths = format_module(plan.format).glue_messages(plan.schema)
                self._number = varint_bytes(paths.index(plan.writer.message))
        self._encoder: tuple[pa.DataType, pa.DataType, Encoder] | None = None
        """The type of the last values, the type that their encoder takes, and the encoder."""

    def encode(
        self, values: pa.Array, headers: pa.Array | None, first_row: int = 0, scope: str = "task"
    ) -> tuple[pa.Array, pa.Array | None]:
        """Return (payloads, headers) of one batch's values. A null value gives a null payload,
        which is a tombstone.

        Raises EncodeError for a value that the schema does not allow. In its text, `scope` says
        what the rows belong to, and `first_row` is the number that the first of them has there."""
        try:
            return self.encode_values(values, headers)
        except ValueRowError as error:
            raise EncodeError(
                f"column {self.plan.column}, row {first_row + error.row} of this {scope}: "
                f"{error.reason}"
            ) from None

    def encode_values(
        self, values: pa.Array, headers: pa.Array | None
    ) -> tuple[pa.Array, pa.Array | None]:
        """Return (payloads, headers) of a batch's values; a null value gives a null payload. Raises
        ValueRowError, with the row in the batch, for a value that the schema does not allow."""
        plan = self.plan
        if self._encoder is None or self._encoder[0] != values.type:
            source = values.type
            if plan.format != kinds.AVRO:  # which takes both
                # With spark.sql.execution.arrow.useLargeVarTypes, offsets have 64 bits.
                source = with_small_offsets(source)
            encoder = format_module(plan.format).encoder(
                plan.schema, source, message=plan.writer.message
            )
            self._encoder = values.type, source, encoder
        _, source, encoder = self._encoder
        if values.type != source:
            values = values.cast(source)
        in_header = plan.framing in framings.IN_HEADERS
        is_bare = in_header or plan.framing == kinds.GLUE_ZLIB  # the frame is put elsewhere below
        prefix = self._number if is_bare else self._frame + self._number
        payloads = encoder.encode(values, prefix)
        if in_header:
            name = framings.header_to_write(plan.framing, plan.column)
            headers = add_header(headers, name, self._frame, payloads)
        elif is_bare:
            payloads = with_prefix(self._frame, framings.compress(payloads))
        return payloads, headers
