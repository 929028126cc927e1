"""One whole key or value column: payloads -> a typed column and bad rows, and back.

Reading: frames say which schema wrote each row (`framing`), the registry has that schema, its
format decodes the rows, and the rows are put together in their order. Writing: the format encodes,
and the schema's id, which the driver looked up or registered, is put before each payload or into a
header. Decoders are made once for each schema and kept by the process.
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

from sparkkafka.config.given_options import warn
from sparkkafka.config.kinds import HEADERS, JSON, NO_FRAMING, PROTOBUF
from sparkkafka.errors import EncodeError, KafkaError, RegistryError, SchemaError
from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.schemas.data_contract import DataContract, Rule, listed
from sparkkafka.schemas.foreign_framing import name_framings
from sparkkafka.schemas.registry.client import RegistryClient, call_concurrently
from sparkkafka.schemas.registry.responses import is_unknown_path
from sparkkafka.schemas.values import (
    FIRST_MESSAGE,
    Decoded,
    Decoder,
    Encoder,
    MemoryBudget,
    Schema,
    TooManyRowsError,
    ValueRowError,
)
from sparkkafka.schemas.wire_format import (
    NO_FRAME,
    PayloadGroup,
    WriterId,
    add_header,
    frame_of,
    unframe,
    unframe_bare,
    unframe_texts,
)

Made = TypeVar("Made")

_MAX_ASKED = 64
"""Of which the schemas' texts are held at once, of up to 4 MiB each."""
_MAX_WRITERS = 10_000
_MAX_DECODERS = 128
"""Kept by a process. One takes some KB, and its schema's text."""


_NO_GUIDS: Final = frozenset({400, 405, 501})
"""What registries without GUIDs (Confluent's before 8.0 among them) say, if not that there is no
such page."""

_ASK_AGAIN_S: Final = 60.0
"""The command and functions keep a decoder for days, and an unknown id may be registered."""


def format_module(name: str) -> Any:
    """The five functions of a format. Imported when it is used first: planning a read of text
    needs none of them."""
    return import_module(f"sparkkafka.schemas.{name}.format")


def warn_of_rules(
    column: str, schema: Schema, whose: str, subject: str | None, *, writes: bool = False
) -> None:
    """Log which of the registry's rules for this schema are not run here: the same rules of a
    subject once in this process. `whose` names the schema: "subject orders-value, version 3"."""
    contract = schema.contract
    if contract is None:
        return
    if rules := contract.encryption(writes=writes):
        fields = encrypted_fields(schema, rules)
        warn(
            f"{column} of {subject}: {fields} encrypted, writes {writes}",
            f"column {column}: {whose} has rules that encrypt {fields}: {listed(rules)}. "
            + (
                "They are written in plain text (ignoreEncryptionRules=true)"
                if writes
                else "What is encrypted stays so here, since no rules of a registry are run: "
                "Confluent's deserializers decrypt it"
            ),
        )
    if others := contract.others(writes=writes):
        warn(
            f"{column} of {subject}: {others} not run, writes {writes}",
            f"column {column}: rules of {whose} are not run here: {listed(others)}. Values are "
            + ("written as they are" if writes else "read as they were written")
            + "; Confluent's clients check or change them by these rules",
        )


def encrypted_fields(schema: Schema, rules: Collection[Rule]) -> str:
    """What these rules of the schema encrypt, for messages."""
    contract = schema.contract or DataContract()
    try:
        tags = format_module(schema.format).inline_tags(schema)
    except KafkaError:  # the schema cannot be used: whoever uses it says why
        tags = {}
    return contract.encrypted(rules, tags)


@cache
def _keep_memory() -> None:
    """Has the C library keep what one batch has freed for the next one, up to twice so much.

    glibc begins with a limit of 128 KB, above which it gives memory back and gets it again page by
    page: a third of the time of decoding. It learns from the largest block that was freed.
    """
    np.empty(_KEPT_BYTES, np.uint8)


_KEPT_BYTES: Final = 8 << 20  # never touched


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnPlan:
    """How one column is read; made on the driver, and the same for all tasks.

    reader: the schema whose type counts; prepared: the same, ready for tasks (Protobuf: compiled).
    wanted: the type that the user gave, else None. type: the column's, exactly as Spark has it.
    subject: where the registry is asked for writers' schemas; schema_id: the reader's there. rest:
    whether to keep what no field takes (JSON).
    """

    column: str
    format: str
    framing: str
    reader: Schema
    type: pa.DataType
    wanted: pa.DataType | None = None
    message: tuple[int, ...] = FIRST_MESSAGE
    subject: str | None = None
    schema_id: int | None = None
    rest: bool = False
    prepared: Schema | None = None

    @property
    def known(self) -> Schema:
        """The reader's schema, as decoders take it."""
        return self.prepared or self.reader


class BadRow(NamedTuple):
    """A row of a column that its schema cannot read. `reason` names the field; the writer says
    which schema."""

    row: int
    reason: str
    writer: WriterId


@dataclass(frozen=True)
class DecodedColumn:
    """`values` are null where the payload is null or bad; `bad` ascends by row. `rest`: JSON text
    of what no field took, null for nothing; None if it was not asked for."""

    values: pa.Array
    bad: list[BadRow]
    rest: pa.Array | None = None


def in_pieces(decode: Callable[[int, int], Made], start: int, stop: int) -> Iterator[Made]:
    """What `decode` makes of the rows from start to stop: of all, or of fewer at once where it
    raises TooManyRowsError."""
    try:
        yield decode(start, stop)
        return
    except TooManyRowsError:
        pass  # and out of here: the error holds what was made until then
    middle = (start + stop) // 2
    yield from in_pieces(decode, start, middle)
    yield from in_pieces(decode, middle, stop)


class ColumnDecoder:
    """Decodes batches of one column. `writers` is called when the first frame is met."""

    def __init__(
        self, plan: ColumnPlan, writers: Callable[[], RegistryClient] | None = None
    ) -> None:
        _keep_memory()
        self.plan = plan
        self._writers = writers
        self._decoders: dict[WriterId, Decoder | str] = {}
        self._ask_again_s = time.monotonic() + _ASK_AGAIN_S

    def decode(self, payloads: pa.Array, headers: pa.Array | None) -> DecodedColumn:
        """`payloads` is binary; `headers` of HEADERS_TYPE, or None.

        Raises RegistryError if the registry cannot be asked, OptionError for a type that cannot be
        read or a missing library. Nothing else that records hold raises, but TooManyRowsError for
        several rows: the caller gives fewer, and gets the same values.
        """
        plan = self.plan
        if plan.framing == NO_FRAMING:
            unframed = unframe_bare(payloads)
        elif plan.format == JSON:  # which schema wrote a text does not matter
            unframed = unframe_texts(payloads, plan.column)
        else:
            unframed = unframe(
                payloads,
                headers,
                plan.column,
                with_indexes=plan.format == PROTOBUF,
                only_headers=plan.framing == HEADERS,
            )
        bad = [
            BadRow(row, reason, NO_FRAME)
            for row, reason in zip(unframed.bad_rows.tolist(), unframed.reasons, strict=True)
        ]
        parts: list[tuple[PayloadGroup, Decoded]] = []
        budget = MemoryBudget(payloads)
        self._meet([group.writer for group in unframed.groups])
        for group in unframed.groups:
            decoder = self._decoders[group.writer]
            if isinstance(decoder, str):
                rows = _present(group)
                bad += [BadRow(row, decoder, group.writer) for row in rows]
                continue
            decoded = decoder.decode(group.payloads, budget)
            parts.append((group, decoded))
            where = decoded.bad_rows if group.rows is None else group.rows[decoded.bad_rows]
            bad += [
                BadRow(row, reason, group.writer)
                for row, reason in zip(where.tolist(), decoded.reasons, strict=True)
            ]
        bad.sort(key=lambda one: one.row)
        if bad:
            reasons = name_framings(
                {row.row: row.reason for row in bad},
                payloads,
                headers,
                plan.column,
                framed=plan.framing != NO_FRAMING,
                is_json=plan.format == JSON,
            )
            bad = [row._replace(reason=reasons[row.row]) for row in bad]
        values = _in_order([(g, d.values) for g, d in parts], len(payloads), plan.type)
        rest = None
        if plan.rest:
            found = [(g, d.rest) for g, d in parts if d.rest is not None]
            rest = _in_order(found, len(payloads), pa.string())
        return DecodedColumn(values, bad, rest)

    def _meet(self, writers: list[WriterId]) -> None:
        """Has in `_decoders` what decodes payloads of each writer, or why they are bad."""
        known = self._decoders
        if time.monotonic() > self._ask_again_s:
            self._ask_again_s = time.monotonic() + _ASK_AGAIN_S
            for writer in [one for one, made in known.items() if isinstance(made, str)]:
                del known[writer]
        if all(writer in known for writer in writers):
            return
        if len(known) >= _MAX_WRITERS:  # bytes that are no ids at all
            known.clear()
        new = [writer for writer in writers if writer not in known]
        for start in range(0, len(new), _MAX_ASKED):
            some = new[start : start + _MAX_ASKED]
            asked = call_concurrently(
                self._asked, (_schema_of(w) for w in some if not self._is_readers(w))
            )
            for writer in some:
                schema = None if self._is_readers(writer) else asked[_schema_of(writer)]
                known[writer] = self._make(writer, schema)

    def _is_readers(self, writer: WriterId) -> bool:
        """Whether there is nothing to ask: what an id means never changes."""
        plan = self.plan
        return (
            writer == NO_FRAME
            or plan.format == JSON
            or (writer.schema_id == plan.schema_id is not None and writer.message == plan.message)
        )

    def _asked(self, writer: WriterId) -> Schema | str:
        """This writer's schema, or why its payloads are bad. Raises RegistryError."""
        if self._writers is None:
            return (
                f"{writer} is not known: there is no registry to ask; set schema.registry.url, or "
                "valueFraming=none if payloads are bare"
            )
        plan, registry = self.plan, self._writers()
        try:
            if writer.guid is not None:
                schema = registry.by_guid(writer.guid, plan.format)
            else:
                schema = registry.by_id(writer.schema_id or 0, plan.subject, plan.format)
        except RegistryError as error:
            no_page = is_unknown_path(error.status, error.code)
            if error.status == 404 and not no_page:
                return f"the registry does not know {writer}"
            if writer.guid is not None and (no_page or error.status in _NO_GUIDS):
                # Not the registry's failure: any bytes may look like a GUID.
                return f"the registry cannot look up {writer} (it knows ids, not GUIDs)"
            raise
        except SchemaError as error:
            return _unreadable(writer, error)
        warn_of_rules(plan.column, schema, str(writer), plan.subject)
        return schema

    def _make(self, writer: WriterId, schema: Schema | str | None) -> Decoder | str:
        """`schema`: what `_asked` says; None: the reader's."""
        plan = self.plan
        if schema is None:
            return self._reader_s()
        if isinstance(schema, str):
            return schema
        try:
            if schema == plan.reader and writer.message == plan.message:
                return self._reader_s()
            if plan.format == PROTOBUF:
                name = message_name(schema, writer.message)
                wanted = message_name(plan.known, plan.message)
                if name != wanted:
                    return (
                        f"it is a message {name} ({writer}), not {wanted}, which "
                        f"{plan.column}SchemaMessage chooses"
                    )
                # The reader's schema reads the bytes, if both have the same wire types.
                return decoder_of(
                    plan.format, schema, plan.known, plan.wanted, writer.message, plan.rest
                )
            return decoder_of(plan.format, schema, plan.reader, plan.wanted, rest=plan.rest)
        except SchemaError as error:
            return _unreadable(writer, error)

    def _reader_s(self) -> Decoder:
        """For payloads that the reader's schema wrote, or might have."""
        plan = self.plan
        return decoder_of(plan.format, plan.known, None, plan.wanted, plan.message, plan.rest)


def _schema_of(writer: WriterId) -> WriterId:
    """The same for all messages of a schema."""
    return replace(writer, message=FIRST_MESSAGE)


def _unreadable(writer: WriterId, error: SchemaError) -> str:
    return f"{writer} cannot be read: {error}"


def prepared(schema: Schema) -> Schema | None:
    """The schema in a form that tasks need not compile, if there is one."""
    if schema.format != PROTOBUF:
        return None
    found: Schema = format_module(PROTOBUF).compiled(schema)
    return found


def message_name(schema: Schema, message: tuple[int, ...]) -> str:
    """Of a Protobuf message, with its package. Raises SchemaError."""
    name: str = format_module(PROTOBUF).message_name(schema, message)
    return name


def message_indexes(schema: Schema, name: str) -> tuple[int, ...]:
    """The place of a Protobuf message in its file. Raises OptionError with near names."""
    found: tuple[int, ...] = format_module(PROTOBUF).message_indexes(schema, name)
    return found


def _present(group: PayloadGroup) -> list[int]:
    rows = group.rows
    if rows is None:
        rows = np.flatnonzero(is_valid(group.payloads))
    return list(rows.tolist())


def _in_order(
    parts: list[tuple[PayloadGroup, pa.Array]], count: int, kind: pa.DataType
) -> pa.Array:
    """The parts' values in the rows' order; null where none has one."""
    typed = [(group, as_type(values, kind)) for group, values in parts]
    if len(typed) == 1 and typed[0][0].rows is None:
        return typed[0][1]
    if not typed:
        return pa.nulls(count, kind)
    # One null behind all values, for rows of no part.
    joined = pa.concat_arrays([*(values for _, values in typed), pa.nulls(1, kind)])
    places = np.full(count, len(joined) - 1, np.int64)
    at = 0
    for group, values in typed:
        rows = slice(None) if group.rows is None else group.rows
        places[rows] = np.arange(at, at + len(values))
        at += len(values)
    return joined.take(from_numpy(places))


@lru_cache(_MAX_DECODERS)
def decoder_of(
    format: str,
    writer: Schema,
    reader: Schema | None,
    wanted: pa.DataType | None,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """The format's decoder, kept by the process for the next task. Raises SchemaError,
    OptionError."""
    made: Decoder = format_module(format).decoder(
        writer, reader, wanted, message=message, rest=rest
    )
    return made


# --- types --------------------------------------------------------------------------------------


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as `kind`: names of list items and nullability are changed without a copy."""
    if array.type.equals(kind, check_metadata=True):
        return array
    own = array.type
    if pa.types.is_struct(kind) and pa.types.is_struct(own) and own.num_fields == kind.num_fields:
        children = [
            as_type(array.field(i).slice(0, len(array)), kind.field(i).type)
            for i in range(kind.num_fields)
        ]
        if not array.offset:
            return pa.Array.from_buffers(
                kind, len(array), [array.buffers()[0]], array.null_count, children=children
            )
    if not array.offset:
        if pa.types.is_map(kind) and pa.types.is_map(own):
            entries = as_type(_entries(array), _entry_type(kind))
            return pa.Array.from_buffers(
                kind, len(array), array.buffers()[:2], array.null_count, children=[entries]
            )
        if pa.types.is_list(kind) and pa.types.is_list(own):
            items = as_type(array.values, kind.value_type)
            return pa.Array.from_buffers(
                kind, len(array), array.buffers()[:2], array.null_count, children=[items]
            )
    if pa.types.is_null(own):
        return pa.nulls(len(array), kind)
    return array.cast(kind)


def _entries(array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _entry_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])


# --- writing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodePlan:
    """How one column is written; made on the driver. `writer` is NO_FRAME with framing none."""

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
        self._frame = frame_of(plan.writer, with_indexes=plan.format == PROTOBUF)
        self._encoder: tuple[pa.DataType, Encoder] | None = None

    def encode(
        self, values: pa.Array, headers: pa.Array | None, first_row: int = 0, of: str = "task"
    ) -> tuple[pa.Array, pa.Array | None]:
        """As `encoded`, but raises EncodeError with the row's number; `first_row` is the number of
        the first one, in the task, or what else they are `of`."""
        try:
            return self.encoded(values, headers)
        except ValueRowError as error:
            raise EncodeError(
                f"column {self.plan.column}, row {first_row + error.row} of this {of}: "
                f"{error.reason}"
            ) from None

    def encoded(
        self, values: pa.Array, headers: pa.Array | None
    ) -> tuple[pa.Array, pa.Array | None]:
        """(payloads, headers). A null value is no payload, a tombstone.

        Raises ValueRowError for a value that the schema cannot have.
        """
        plan = self.plan
        if self._encoder is None or self._encoder[0] != values.type:
            made = format_module(plan.format).encoder(
                plan.schema, values.type, message=plan.writer.message
            )
            self._encoder = values.type, made
        in_header = plan.framing == HEADERS
        payloads = self._encoder[1].encode(values, b"" if in_header else self._frame)
        if in_header:
            headers = add_header(headers, plan.column, self._frame, payloads)
        return payloads, headers
