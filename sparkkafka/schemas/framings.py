"""Reads and writes the frames of whole columns: a frame before the payload or in a header names the
schema that wrote a record.

Confluent's frame, as its serializers write it:

    0x00  schema id, 4 bytes, big-endian        or   0x01  GUID of the schema, 16 bytes
    with Protobuf only: the message's indexes, as zigzag varints with their count in front; the one
    byte 0 stands for the first message of the file

It is before the payload, or the value of the header `__value_schema_id` (`__key_schema_id`), which
is looked up first. If a record has several such headers the last one counts, as in Java.

Other serializers (AWS Glue, Apicurio, Azure's Schema Registry, Avro's single-object encoding) have
other frames, by the names of the option valueFraming:

    0x03  0x00 or 0x05 (zlib)  schema version, 16 bytes                     glue, glue-zlib
        with Protobuf only: the message's number, a varint, compressed with the payload
    0x00  global id or content id, 8 bytes, big-endian                      apicurio, …-content-id
    0xC3  0x01  fingerprint, 8 bytes, little-endian                         single-object
    header apicurio.value.globalId or .contentId, 8 bytes, big-endian       apicurio…
    header content-type: avro/binary+ID, where ID is 32 hexadecimal digits  azure

With `auto` each record has one of these frames or Confluent's, which differ in their first bytes.
The exception are Apicurio's frames of 8 bytes, which do not show what kind of id they have: they
are bad. No registry assigns the id 0, so they are not taken for Confluent's.

Frames are read for a whole column by NumPy, without a Python object for a row, and the rows are
grouped by the schema that wrote them. In the usual case, one schema for all rows, each payload is
copied once. The reason of a bad record names its framing, if another one is recognized.

Sources: AWSSchemaRegistryConstants and MessageIndexFinder (AWS Glue), Legacy8ByteIdHandler and
KafkaSerdeHeaders (Apicurio), Azure's KafkaAvroSerializer, Avro's specification ("Single-object
encoding", "Object Container Files"), RFC 1952 (gzip).
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.config.kinds import (
    APICURIO,
    APICURIO_CONTENT,
    APICURIO_HEADERS,
    AUTO,
    AZURE,
    CONFLUENT,
    GLUE,
    GLUE_ZLIB,
    HEADERS,
    NO_FRAMING,
    SINGLE_OBJECT,
)
from sparkkafka.config.parsed_options import warn
from sparkkafka.errors import printable
from sparkkafka.protocol.columns.columns import append_headers, gather
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import (
    Bytes,
    Flags,
    Ints,
    read_unsigned,
    unzigzag,
    windows,
)
from sparkkafka.protocol.wire.varints import VARINT_BITS, read_zigzag, zigzag_bytes
from sparkkafka.schemas.arrays import flags_of, item_counts, scalar
from sparkkafka.schemas.values import FIRST_MESSAGE, MemoryBudget

_MAGIC_ID = 0
_MAGIC_GUID = 1
_ID_BYTES = 5
_GUID_BYTES = 17

GLOBAL_ID = "global id"
CONTENT_ID = "content id"
FINGERPRINT = "fingerprint"

MAX_INDEXES = 32
"""How deep a message may be nested in others. Protobuf's own compiler has the same limit."""


@dataclass(frozen=True, slots=True)
class WriterId:
    """The schema that wrote a payload, as its frame says. Without id and GUID there is no frame.

    `kind` says what `schema_id` is: "" an id of Confluent's API, GLOBAL_ID or CONTENT_ID of
    Apicurio's, or the FINGERPRINT of Avro's single-object encoding. `is_zlib`: the payload is
    compressed (AWS Glue). `message_number`: AWS Glue's name of a message, in place of `message`.
    """

    schema_id: int | None = None
    guid: bytes | None = None
    message: tuple[int, ...] = FIRST_MESSAGE
    kind: str = ""
    is_zlib: bool = False
    message_number: int | None = None

    def __str__(self) -> str:
        """Return the id for error messages: "schema id 7"."""
        if self.kind == FINGERPRINT:
            return f"schema fingerprint 0x{self.schema_id:016x}"
        if self.kind:
            return f"{self.kind} {self.schema_id}"
        if self.guid is not None:
            return f"schema GUID {uuid.UUID(bytes=self.guid)}"
        return "no schema id" if self.schema_id is None else f"schema id {self.schema_id}"

    @property
    def note(self) -> str:
        """The schema in parentheses, behind a space; empty if the payload names none."""
        return "" if self == NO_FRAME else f" ({self})"


NO_FRAME = WriterId()


def header_name(column: str) -> str:
    """Return the name of the header that has the frame of this column (`key` or `value`)."""
    return f"__{column}_schema_id"


IN_HEADERS: Final = frozenset({HEADERS, APICURIO_HEADERS, AZURE})
"""Framings whose writes leave the payload bare and add a header."""

AZURE_TYPE: Final = b"avro/binary+"
MAX_UNPACKED: Final = 64 << 20
"""The most bytes of one decompressed payload."""

_GLUE_KINDS: Final = {b"\x03\x00": False, b"\x03\x05": True}
_SINGLE_MARK: Final = b"\xc3\x01"


# --- writing ------------------------------------------------------------------------------------


def frame_of(writer: WriterId, *, with_indexes: bool) -> bytes:
    """Return the bytes of a frame: with the GUID if there is one, else with the id; none without
    either. `with_indexes`: add the message indexes that frames of Protobuf have."""
    if writer.guid is not None:
        frame = bytes([_MAGIC_GUID]) + writer.guid
    elif writer.schema_id is not None:
        frame = bytes([_MAGIC_ID]) + writer.schema_id.to_bytes(4, "big")
    else:
        return b""
    if not with_indexes:
        return frame
    if writer.message == FIRST_MESSAGE:
        return frame + b"\0"  # no indexes stand for the first message
    return frame + b"".join(map(zigzag_bytes, (len(writer.message), *writer.message)))


def add_header(headers: pa.Array | None, name: str, frame: bytes, payloads: pa.Array) -> pa.Array:
    """Append a header of this name with the frame to the headers of each row that has a payload.

    `headers` has a list of (key, value) structs for each row, or null; None: no row has headers.
    """
    counts = arrow.is_valid(payloads).astype(np.int64)
    total = int(counts.sum())
    return append_headers(
        headers, counts, arrow.repeat_text(name, total), arrow.repeat_text(frame, total)
    )


def frame_to_write(framing: str, writer: WriterId, *, with_indexes: bool) -> bytes:
    """Return the bytes of the frame that names this writer, which a write puts before the payload
    or in a header. `framing` is the option …Framing; `with_indexes`: see `frame_of`."""
    number, guid = writer.schema_id or 0, writer.guid or b""
    # The layout of each frame is in the module's docstring.
    match framing:
        case "glue" | "glue-zlib":
            return (b"\x03\x05" if framing == GLUE_ZLIB else b"\x03\x00") + guid
        case "apicurio" | "apicurio-content-id":
            return b"\0" + number.to_bytes(8, "big")
        case "apicurio-headers":
            return number.to_bytes(8, "big")
        case "azure":
            return AZURE_TYPE + guid.hex().encode()
        case "single-object":
            return _SINGLE_MARK + number.to_bytes(8, "little")
    return frame_of(writer, with_indexes=with_indexes)


def header_to_write(framing: str, column: str) -> str:
    """Return the name of the header in which a write with this framing puts the frame of a
    column."""
    if framing == AZURE:
        return "content-type"
    return f"apicurio.{column}.globalId" if framing == APICURIO_HEADERS else header_name(column)


def compress(payloads: pa.Array) -> pa.Array:
    """Compress each payload, as AWS Glue's serializer does; null stays null."""
    packed = [None if value is None else zlib.compress(value) for value in payloads.to_pylist()]
    return arrow.binary_array(packed)


# --- reading a column ---------------------------------------------------------------------------


def unframe_column(
    payloads: pa.Array,
    headers: pa.Array | None,
    column: str,
    framing: str,
    *,
    with_indexes: bool = False,
    is_text: bool = False,
    budget: MemoryBudget | None = None,
) -> Unframed:
    """Group the payloads of a column by the schema that wrote them.

    `payloads` is binary, null for no payload; `headers` of HEADERS_TYPE, or None to use none.
    `with_indexes`: frames have a message's indexes, or its number. `is_text`: payloads are JSON,
    which may have no frame; headers are not needed. `budget`: the caller's, which decompressed
    payloads use up. Raises TooManyRowsError.
    """
    if framing == NO_FRAMING:
        return unframe_bare(payloads)
    # Only Confluent's frames have indexes; AWS Glue puts a number before the payload.
    has_numbers = with_indexes and framing not in (CONFLUENT, HEADERS)
    unframer = Unframer(payloads, column, framing, with_indexes=with_indexes and not has_numbers)
    is_filled = arrow.is_valid(payloads).copy()
    if is_text:
        unframed = _unframe_texts(unframer, payloads, is_filled)
    else:
        unframed = _unframe(unframer, headers, is_filled)
    if any(group.writer.is_zlib for group in unframed.groups):
        unframed = _decompress(unframed, budget or MemoryBudget(payloads))
    return _split_by_message(unframed) if has_numbers else unframed


def _unframe_texts(unframer: Unframer, payloads: pa.Array, is_bare: Flags) -> Unframed:
    """Group the payloads of a column of JSON by writer. Those that begin with a byte below 4 have a
    frame, since no JSON text begins so; the others are a group without one."""
    rows = np.flatnonzero(is_bare & (unframer.ends > unframer.starts))
    rows = rows[unframer.data[unframer.starts[rows]] < 4]
    if not len(rows):
        return unframe_bare(payloads)
    parts = [unframer.group(rows, _read_frames(unframer, rows))]
    is_bare[rows] = False
    bare = np.flatnonzero(is_bare)
    if len(bare):
        parts.append(Unframed([unframer.group_of_writer(NO_FRAME, bare)], NO_ROWS, []))
    return join_parts(parts)


def _unframe(unframer: Unframer, headers: pa.Array | None, has_no_frame: Flags) -> Unframed:
    """Group the payloads of a column by the schema that wrote them, as headers and frames say.
    Payloads that AWS Glue has compressed stay compressed."""
    parts = []
    parsers = _header_parsers(unframer)
    for rows, frames in _header_frames(unframer, headers, has_no_frame, parsers):
        parts.append(unframer.group(rows, frames))
        has_no_frame[rows] = False
    remaining = np.flatnonzero(has_no_frame)
    if len(remaining) and unframer.framing in IN_HEADERS:
        reason = f"the record has no header {' or '.join(parser.name for parser in parsers)}"
        parts.append(Unframed([], remaining, [reason] * len(remaining)))
    elif len(remaining):
        frames = _read_frames(unframer, remaining)
        parts.append(unframer.group(remaining, frames, with_nulls=not parts))
    if not parts:
        return Unframed([], remaining, [])
    return parts[0] if len(parts) == 1 else join_parts(parts)


def _split_by_message(unframed: Unframed) -> Unframed:
    """Group payloads by AWS Glue's number of the message, which is before each."""
    parts = [unframed._replace(groups=[])]  # the bad rows so far
    for group in unframed.groups:
        unframer = Unframer(group.payloads, "", NO_FRAMING, with_indexes=False)
        rows = np.flatnonzero(arrow.is_valid(group.payloads))
        if not len(rows):
            continue
        data = unframer.data if len(unframer.data) else np.zeros(1, np.uint8)  # all are empty
        values, bodies, too_long = read_unsigned(data, unframer.starts[rows], 32)
        is_good = bodies <= unframer.ends[rows]
        if too_long is not None:
            is_good &= ~too_long
        numbers, indexes = np.unique(values[is_good], return_inverse=True)
        writer_indexes = np.full(len(rows), -1, np.int64)
        writer_indexes[is_good] = indexes
        reason = f"the number of its message is cut off ({group.writer})"
        frames = Frames(
            [replace(group.writer, message_number=number) for number in numbers.tolist()],
            None if len(numbers) == 1 and is_good.all() else writer_indexes,
            bodies,
            [reason] * int(len(rows) - is_good.sum()),
        )
        by_number = unframer.group(rows, frames, with_nulls=True)
        if group.rows is not None:  # from rows of the group to rows of the column
            by_number = Unframed(
                [
                    part._replace(rows=group.rows if part.rows is None else group.rows[part.rows])
                    for part in by_number.groups
                ],
                group.rows[by_number.bad_rows],
                by_number.reasons,
            )
        parts.append(by_number)
    return join_parts(parts)


def _decompress(unframed: Unframed, budget: MemoryBudget) -> Unframed:
    """Return the same groups, with the payloads of compressed groups decompressed. Rows whose
    payload cannot be decompressed become bad."""
    parts = [unframed._replace(groups=[])]  # the bad rows so far
    for group in unframed.groups:
        if not group.writer.is_zlib:
            parts.append(Unframed([group], NO_ROWS, []))
            continue
        values, reasons = _decompress_payloads(group.payloads, budget)
        bad = np.array([*reasons], np.int64)
        if group.rows is not None:
            bad = group.rows[bad]
        writer = replace(group.writer, is_zlib=False)
        texts = [f"{reason} ({writer})" for reason in reasons.values()]
        parts.append(Unframed([group._replace(writer=writer, payloads=values)], bad, texts))
    return join_parts(parts)


def _decompress_payloads(
    payloads: pa.Array, budget: MemoryBudget
) -> tuple[pa.Array, dict[int, str]]:
    """Decompress each payload: (payloads, why rows are bad). Raises TooManyRowsError if several
    rows need more memory than `budget` has."""
    unpacked: list[bytes | None] = []
    bad: dict[int, str] = {}
    for row, packed in enumerate(payloads.to_pylist()):
        value = None
        if packed is not None:
            stream = zlib.decompressobj()
            try:
                value = stream.decompress(packed, MAX_UNPACKED)
            except zlib.error as error:
                bad[row] = f"it cannot be decompressed with zlib: {error}"
            if value is not None and not stream.eof:
                is_long = len(value) == MAX_UNPACKED
                bad[row] = (
                    f"it has more than {MAX_UNPACKED} bytes when it is decompressed with zlib"
                    if is_long
                    else "its zlib stream is cut off"
                )
                value = None
            elif stream.unused_data:
                bad[row], value = "there are bytes after the end of its zlib stream", None
            # Twice: the bytes are copied from `unpacked` to the array.
            elif value is not None and not budget.take(2 * len(value)):
                bad[row], value = "it takes too much memory when it is decompressed", None
        unpacked.append(value)
    return arrow.binary_array(unpacked), bad


# --- rows by writer -----------------------------------------------------------------------------


class PayloadGroup(NamedTuple):
    """The payloads of one writer's schema, without their frames.

    rows: their rows in the column, ascending; None if they are all of its rows. Only then are rows
    without a payload among them, as nulls; else these are in no group.
    """

    writer: WriterId
    rows: Ints | None
    payloads: pa.Array


class Unframed(NamedTuple):
    """A column's rows by writer; bad rows, ascending, are in no group."""

    groups: list[PayloadGroup]
    bad_rows: Ints
    reasons: list[str]


def unframe_bare(payloads: pa.Array) -> Unframed:
    """Return a column of payloads without frames as one group."""
    return Unframed([PayloadGroup(NO_FRAME, None, payloads)], NO_ROWS, [])


NO_ROWS = np.empty(0, np.int64)


class Frames(NamedTuple):
    """The frames of some rows. `writer_indexes`: the index of each row's writer in `writers`, -1
    for a bad frame; None if all rows have the only writer. `bodies`: where the content behind each
    frame begins. `reasons`: why each bad frame is bad."""

    writers: list[WriterId]
    writer_indexes: Ints | None
    bodies: Ints
    reasons: list[str]


class Unframer:
    """Reads the frames of a column's payloads and groups the rows by writer. `starts` and `ends`:
    where each payload begins and ends in `data`. With `with_indexes` a frame has the indexes of a
    Protobuf message behind the schema's id. `column` is the name for errors."""

    def __init__(self, payloads: pa.Array, column: str, framing: str, with_indexes: bool) -> None:
        offsets = arrow.blob_offsets(payloads).astype(np.int64)
        self.starts, self.ends = offsets[:-1], offsets[1:]
        self._content = (payloads.buffers()[2] if len(payloads) else None) or pa.py_buffer(b"")
        self.data = np.frombuffer(self._content, np.uint8)
        self.column, self.framing, self.with_indexes = column, framing, with_indexes

    def confluent_frames(self, rows: Ints) -> Frames:
        """Read Confluent's frames (magic byte, schema id, for Protobuf the message's indexes) at
        the beginning of these rows, at least one."""
        data, starts, lengths = self.data, self.starts[rows], self.ends[rows] - self.starts[rows]
        # The usual case: all rows begin with magic byte 0 and the same id (and a 0 for the schema's
        # first message).
        min_size = _ID_BYTES + self.with_indexes
        if int(lengths.min()) >= min_size:
            ids = windows(data, ">u4")[starts + 1]
            is_same = not data[starts].any() and bool((ids == ids[0]).all())
            if is_same and not (self.with_indexes and data[starts + _ID_BYTES].any()):
                return Frames([WriterId(int(ids[0]))], None, starts + min_size, [])
        sizes = np.full(len(starts), _ID_BYTES)
        filled = np.flatnonzero(lengths)
        sizes[filled[data[starts[filled]] == _MAGIC_GUID]] = _GUID_BYTES
        if self.with_indexes and len(data):
            sizes = _skip_indexes(data, starts + sizes) - starts
        heads = self.heads(rows, sizes)
        parse = partial(parse_frame, column=self.column, with_indexes=self.with_indexes)
        return frames_of(heads, starts + sizes, parse)

    def heads(self, rows: Ints, sizes: Ints | int) -> pa.Array:
        """Return the first bytes of these rows' payloads: as many as `sizes` says, or fewer."""
        starts = self.starts[rows]
        return gather(self._content, starts, np.minimum(self.ends[rows] - starts, sizes))

    def group_of_writer(
        self, writer: WriterId, rows: Ints, bodies: Ints | None = None, *, with_nulls: bool = False
    ) -> PayloadGroup:
        """Return the payloads of some rows, which begin at `bodies` (None: they have no frames), as
        a group. `with_nulls`: it has the column's other rows as nulls."""
        bodies = self.starts[rows] if bodies is None else bodies
        lengths = self.ends[rows] - bodies
        if len(rows) == len(self.starts):
            return PayloadGroup(writer, None, gather(self._content, bodies, lengths))
        if not with_nulls:
            return PayloadGroup(writer, rows, gather(self._content, bodies, lengths))
        all_bodies, all_lengths = self.starts.copy(), np.full(len(self.starts), -1, np.int64)
        all_bodies[rows], all_lengths[rows] = bodies, lengths
        return PayloadGroup(writer, None, gather(self._content, all_bodies, all_lengths))

    def group(self, rows: Ints, frames: Frames, *, with_nulls: bool = False) -> Unframed:
        """Group these rows by writer. `with_nulls`: the column's other rows have no payload; then,
        if the rows have one writer, the group has all rows of the column, with nulls for the
        others."""
        if frames.writer_indexes is None:
            group = self.group_of_writer(
                frames.writers[0], rows, frames.bodies, with_nulls=with_nulls
            )
            return Unframed([group], NO_ROWS, [])
        writer_indexes = frames.writer_indexes
        if len(frames.writers) < 1 << 15:
            writer_indexes = writer_indexes.astype(np.int16)  # sorted much faster
        order = np.argsort(writer_indexes, kind="stable")
        # The start of each writer's rows in `order`. Rows of bad frames (-1) come first.
        starts = np.searchsorted(writer_indexes[order], np.arange(len(frames.writers) + 1))
        groups = []
        for index, writer in enumerate(frames.writers):
            group_rows = order[starts[index] : starts[index + 1]]
            groups.append(self.group_of_writer(writer, rows[group_rows], frames.bodies[group_rows]))
        return Unframed(groups, rows[order[: starts[0]]], frames.reasons)


def parse_frame(
    head: bytes, column: str, *, with_indexes: bool, in_header: bool = False
) -> WriterId | str:
    """Return the writer that one of Confluent's frames names, or why the bytes are not a frame.
    `head` has the first bytes of a payload, or with `in_header` a header's value; `with_indexes`:
    see `frame_of`."""
    what = f"header {header_name(column)}" if in_header else "it"
    size = _GUID_BYTES if head[:1] == bytes([_MAGIC_GUID]) else _ID_BYTES
    if head and head[0] not in (_MAGIC_ID, _MAGIC_GUID):
        return (
            f"{what} begins with byte 0x{head[0]:02x}, not with 0x00 and a schema id "
            f"({column}Framing=none reads payloads without an id)"
        )
    if len(head) < size:
        return f"{what} has {len(head)} bytes, and a schema id takes {size}"
    if head[0] == _MAGIC_GUID:
        writer = WriterId(guid=head[1:size])
    else:
        writer = WriterId(int.from_bytes(head[1:size], "big"))
    if with_indexes:
        try:
            message, size = _read_indexes(head, size)
        except (ValueError, IndexError):
            return f"{what} has broken message indexes behind {writer}"
        writer = replace(writer, message=message)
    if len(head) > size:
        return f"{what} has {len(head) - size} bytes behind the schema's id"
    return writer


def _skip_indexes(data: Bytes, at: Ints) -> Ints:
    """Return the positions after the message indexes at these positions."""
    raw, after, _ = read_unsigned(data, at)
    counts = unzigzag(raw)
    for number in range(MAX_INDEXES):
        unfinished = np.flatnonzero(counts > number)
        if not len(unfinished):
            break
        after[unfinished] = read_unsigned(data, after[unfinished])[1]
    return after


def _read_indexes(head: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return message indexes, and the position after them. Raises ValueError, IndexError."""
    count, at = read_zigzag(head, at, len(head), VARINT_BITS)
    if not 0 <= count <= MAX_INDEXES:
        raise ValueError(count)
    indexes = []
    for _ in range(count):
        index, at = read_zigzag(head, at, len(head), VARINT_BITS)
        if index < 0:
            raise ValueError(index)
        indexes.append(index)
    return tuple(indexes) or FIRST_MESSAGE, at  # a 0 alone stands for the first message


Parse = Callable[[bytes], WriterId | str]
"""Returns the writer that the bytes of a frame name, or why they are not a frame."""


def frames_of(heads: pa.Array, bodies: Ints, parse: Parse) -> Frames:
    """Return the frames of rows whose frames have the bytes `heads`. `parse` is called once for
    equal bytes. `bodies`: where each row's payload begins."""
    coded = heads.fill_null(scalar(b"")).dictionary_encode()
    parsed = [parse(head) for head in coded.dictionary.to_pylist()]
    writers = list(dict.fromkeys(frame for frame in parsed if isinstance(frame, WriterId)))
    numbers: dict[WriterId | str, int] = {writer: number for number, writer in enumerate(writers)}
    codes = arrow.to_numpy(coded.indices)
    writer_indexes = np.array([numbers.get(frame, -1) for frame in parsed], np.int64)[codes]
    bad = codes[writer_indexes < 0].tolist()
    if len(writers) == 1 and not bad:
        return Frames(writers, None, bodies, [])
    return Frames(writers, writer_indexes, bodies, [str(parsed[code]) for code in bad])


def join_parts(parts: list[Unframed]) -> Unframed:
    """Join the groups and bad rows of distinct rows."""
    bad_rows = np.concatenate([part.bad_rows for part in parts])
    order = np.argsort(bad_rows, kind="stable")
    reasons = [reason for part in parts for reason in part.reasons]
    groups = [group for part in parts for group in part.groups]
    return Unframed(groups, bad_rows[order], [reasons[index] for index in order.tolist()])


def last_headers(headers: pa.Array, name: str) -> tuple[Ints, pa.Array] | None:
    """Return the rows that have a header of this name, and the last such header's value in each
    row; None if no row has one."""
    if headers.null_count == len(headers):
        return None
    names, values = headers.flatten().flatten()
    if not len(names):
        return None
    at = np.flatnonzero(flags_of(pc.equal(names, scalar(name))))
    if not len(at):
        return None
    rows = np.searchsorted(np.cumsum(item_counts(headers)), at, "right")
    is_last = np.append(rows[1:] != rows[:-1], True)
    return rows[is_last], values.take(arrow.from_numpy(at[is_last]))


# --- frames before payloads ---------------------------------------------------------------------


def _read_frames(unframer: Unframer, rows: Ints) -> Frames:
    """Read the frames before the payloads of these rows."""
    column, framing = unframer.column, unframer.framing
    if framing in (CONFLUENT, HEADERS):
        return unframer.confluent_frames(rows)
    if framing == AUTO:
        return _read_auto(unframer, rows)
    size, parse = _FRAMES["apicurio" if framing == APICURIO_HEADERS else framing]
    return _read_heads(unframer, rows, size, partial(_parse_or_advise, parse, framing, column))


def _read_heads(unframer: Unframer, rows: Ints, size: int, parse: Parse) -> Frames:
    """Read frames of `size` bytes. `parse` gets each different frame once."""
    starts = unframer.starts[rows]
    lengths = unframer.ends[rows] - starts
    if int(lengths.min()) >= size:  # the usual case: all rows have the same frame
        words = windows(unframer.data, ">u8")
        for at in {*range(0, size - 7, 8), size - 8}:
            heads = words[starts + at]
            if not (heads == heads[0]).all():
                break
        else:
            writer = parse(unframer.data[starts[0] : starts[0] + size].tobytes())
            if isinstance(writer, WriterId):
                return Frames([writer], None, starts + size, [])
    return frames_of(unframer.heads(rows, size), starts + size, parse)


def _parse_or_advise(parse: Parse, framing: str, column: str, head: bytes) -> WriterId | str:
    """Return what `parse` returns for a frame; if that is an error, with the option that chose this
    framing."""
    parsed = parse(head)
    return parsed if isinstance(parsed, WriterId) else f"{parsed} ({column}Framing={framing})"


def _parse_glue(head: bytes) -> WriterId | str:
    """Return the writer that AWS Glue's frame of 18 bytes names, or why `head` is not such a
    frame."""
    if len(head) < 18 or head[:2] not in _GLUE_KINDS:
        return f"it begins with {_hex(head[:2])}, not with AWS Glue's 18 bytes"
    return WriterId(guid=head[2:], is_zlib=_GLUE_KINDS[head[:2]])


def _parse_apicurio(head: bytes, kind: str = GLOBAL_ID) -> WriterId | str:
    """Return the writer that Apicurio's frame of nine bytes names, or why `head` is not such a
    frame. `kind`: what its id is, GLOBAL_ID or CONTENT_ID."""
    if len(head) < 9 or head[0]:
        return f"it begins with {_hex(head[:1])}, not with a zero byte and Apicurio's id of 8 bytes"
    return _apicurio_id(head[1:], kind)


def _apicurio_id(value: bytes, kind: str = GLOBAL_ID) -> WriterId | str:
    """Return the writer that an id of Apicurio names, or why the bytes are not an id. `kind`:
    GLOBAL_ID or CONTENT_ID."""
    if len(value) != 8:
        return f"an id of Apicurio has {len(value)} bytes, not 8"
    return WriterId(int.from_bytes(value, "big"), kind=kind)


def _parse_single(head: bytes) -> WriterId | str:
    """Return the writer that the ten bytes before a single object of Avro name, or why `head` does
    not begin with such bytes."""
    if len(head) < 10 or head[:2] != _SINGLE_MARK:
        return (
            f"it begins with {_hex(head[:2])}, not with the marker 0xc301 of Avro's single objects"
        )
    return WriterId(int.from_bytes(head[2:], "little"), kind=FINGERPRINT)


def _hex(data: bytes) -> str:
    """Return bytes as 0x and hexadecimal digits, for messages; "nothing" for no bytes."""
    return f"0x{data.hex()}" if data else "nothing"


_FRAMES: Final[dict[str, tuple[int, Parse]]] = {
    GLUE: (18, _parse_glue),
    GLUE_ZLIB: (18, _parse_glue),
    APICURIO: (9, _parse_apicurio),
    APICURIO_CONTENT: (9, partial(_parse_apicurio, kind=CONTENT_ID)),
    SINGLE_OBJECT: (10, _parse_single),
}
"""Size of a frame, and what parses it."""


def _read_auto(unframer: Unframer, rows: Ints) -> Frames:
    """Read frames of all kinds but Apicurio's, whose kind of id the bytes do not show."""
    starts = unframer.starts[rows]
    lengths = unframer.ends[rows] - starts
    sizes = np.full(len(rows), 5)  # of Confluent's
    long_enough = np.flatnonzero(lengths >= 5)
    begins = windows(unframer.data, ">u2")[starts[long_enough]]
    sizes[long_enough[np.isin(begins, (0x0300, 0x0305))]] = 18  # AWS Glue's
    sizes[long_enough[begins == 0xC301]] = 10  # Avro's single objects
    sizes[long_enough[begins >> 8 == 1]] = 17  # Confluent's with a GUID
    parse = partial(_parse_auto, column=unframer.column)
    return frames_of(unframer.heads(rows, sizes), starts + sizes, parse)


def _parse_auto(head: bytes, column: str) -> WriterId | str:
    """Return the writer that a frame of any kind names, or why the bytes are not a frame."""
    if head[:5] == bytes(5):
        return (
            f"it begins with zeros, perhaps Apicurio's id of 8 bytes: set {column}Framing to "
            f"{APICURIO} or {APICURIO_CONTENT}, as its serializers are configured"
        )
    if len(head) >= 5 and head[0] <= 1:
        return parse_frame(head, column, with_indexes=False)
    writer = (_parse_glue if head[:2] in _GLUE_KINDS else _parse_single)(head)
    return (
        writer
        if isinstance(writer, WriterId)
        else f"it has no frame that {column}Framing=auto knows: set {column}Framing to the "
        "serializer's, or to none if payloads are bare"
    )


# --- frames in headers --------------------------------------------------------------------------


class HeaderParser(NamedTuple):
    """A header that may have a frame: what parses its value, and the framings that read it."""

    name: str
    parse: Parse
    framings: frozenset[str]


def _header_parsers(unframer: Unframer) -> list[HeaderParser]:
    """Return the headers in which the framing puts the schema's id, each with its parser."""
    column, with_indexes = unframer.column, unframer.with_indexes
    apicurio = frozenset({APICURIO, APICURIO_CONTENT, APICURIO_HEADERS, AUTO})
    confluent = partial(parse_frame, column=column, with_indexes=with_indexes, in_header=True)
    content_id = partial(_apicurio_id, kind=CONTENT_ID)
    parsers = [
        HeaderParser(header_name(column), confluent, frozenset({CONFLUENT, HEADERS, AUTO})),
        HeaderParser(f"apicurio.{column}.globalId", _apicurio_id, apicurio),
        HeaderParser(f"apicurio.{column}.contentId", content_id, apicurio),
    ]
    if column == "value":
        parsers.append(HeaderParser("content-type", _azure_id, frozenset({AZURE, AUTO})))
    return [parser for parser in parsers if unframer.framing in parser.framings]


def _azure_id(value: bytes) -> WriterId | str:
    """Return the writer that Azure's header content-type names, or why its value names none."""
    text = value.removeprefix(AZURE_TYPE).decode("ascii", "replace")
    if not value.startswith(AZURE_TYPE) or not re.fullmatch("[0-9a-fA-F]{32}", text):
        shown = value[:64].decode("utf-8", "replace")
        return f"the header content-type is {shown!r}, not avro/binary+ and an id of 32 digits"
    return WriterId(guid=uuid.UUID(text).bytes)


def _header_frames(
    unframer: Unframer, headers: pa.Array | None, has_payload: Flags, parsers: list[HeaderParser]
) -> Iterator[tuple[Ints, Frames]]:
    """Yield rows and their frames for each header that has frames. The caller clears `has_payload`
    of these rows, so that a row is yielded once."""
    if headers is None:
        return
    for name, parse, _ in parsers:
        with_header = last_headers(headers, name)
        if with_header is None:
            continue
        rows, values = with_header
        keep = has_payload[rows]
        if unframer.framing == AUTO and parse is _azure_id:
            keep = keep & flags_of(pc.starts_with(values, pattern=AZURE_TYPE))
        rows, values = rows[keep], values.filter(arrow.from_numpy(keep))
        if len(rows):
            yield rows, frames_of(values, unframer.starts[rows], parse)


# --- bad records in another framing -------------------------------------------------------------
#
# Only bad rows are examined, since good rows may have the same first bytes. The reason of a row
# names its framing, and a warning, once in a process, says how such records can be read.


class _OtherFraming(NamedTuple):
    """A framing that a bad record seems to have, and that is not the column's. `name` and `detail`
    (of this record) are for the reason. `hint` says how such records are read, with {} for the
    column; `framings` are the values of valueFraming that read them."""

    name: str
    detail: str
    hint: str
    framings: tuple[str, ...] = ()


def name_framings(
    reasons: Mapping[int, str],
    payloads: pa.Array,
    headers: pa.Array | None,
    column: str,
    *,
    framing: str,
    is_json: bool,
) -> dict[int, str]:
    """Add the framing's name to the reasons of bad rows where it is recognized; log a hint.

    `payloads` is binary, `headers` of HEADERS_TYPE, or None to use none. `framing`: that of the
    read, whose frames are not foreign; bare payloads (none) may begin with zeros. `is_json`: the
    column is read as JSON, so plain JSON is not a foreign framing.
    """
    framed = framing != NO_FRAMING
    # pa.array would import pandas, which no task needs.
    rows = arrow.from_numpy(np.fromiter(reasons, np.int64))
    heads = pc.binary_slice(payloads, 0, 18).take(rows).to_pylist()
    tails = pc.binary_slice(payloads, -16).take(rows).to_pylist()
    by_headers = {} if headers is None or not framed else _recognize_headers(headers, rows, column)
    named = {}
    recognized: dict[str, _OtherFraming] = {}
    for index, (row, reason) in enumerate(reasons.items()):
        foreign = by_headers.get(index)
        if foreign is None and framed:
            foreign = _recognize_apicurio(heads[index] or b"")
        if foreign is None:
            foreign = _recognize_bytes(heads[index] or b"", tails[index] or b"", is_json)
        # A framing that the read knows is not foreign; with `auto` it knows all that options have.
        if foreign is None or framing in foreign.framings or (framing == AUTO and foreign.framings):
            named[row] = reason
            continue
        detail = f" ({foreign.detail})" if foreign.detail else ""
        named[row] = f"{reason}; it looks like {foreign.name}{detail}"
        recognized[foreign.name] = foreign
    for foreign in recognized.values():
        warn(
            f"{column} framed as {foreign.name}",
            f"column {column}: some records look like {foreign.name}. "
            f"{foreign.hint.format(column)}",
        )
    return named


def _recognize_apicurio(head: bytes) -> _OtherFraming | None:
    """Recognize Apicurio's frame with an id of 8 bytes: it looks like schema id 0, which no
    registry assigns."""
    if head[:5] == bytes(5) and len(head) >= 9 and any(head[5:9]):
        return _OtherFraming(
            "Apicurio's framing with ids of 8 bytes",
            f"id {int.from_bytes(head[1:9], 'big')}",
            f"{{0}}Framing={APICURIO} reads them, with "
            f"schema.registry.url=…/apis/registry/v3 (v2 for Apicurio 2); {APICURIO_CONTENT} "
            "if the serializers use content ids",
            (APICURIO, APICURIO_CONTENT, APICURIO_HEADERS),
        )
    return None


def _recognize_bytes(head: bytes, tail: bytes, is_json: bool) -> _OtherFraming | None:
    """Return the framing that a payload's first and last bytes show, None if they show none."""
    if head[:2] in _GLUE_KINDS and len(head) >= 18:
        version = f"schema version {uuid.UUID(bytes=head[2:18])}"
        version += ", compressed with zlib" if _GLUE_KINDS[head[:2]] else ""
        return _OtherFraming(
            "AWS Glue's framing",
            version,
            f"{{0}}Framing={GLUE} reads them, with schema.registry.url=glue://region/registry",
            (GLUE, GLUE_ZLIB),
        )
    if isinstance(writer := _parse_single(head[:10]), WriterId):
        return _OtherFraming(
            "Avro's single-object encoding",
            str(writer),
            f"{{0}}Framing={SINGLE_OBJECT} reads them, with the schema in {{0}}Schema",
            (SINGLE_OBJECT,),
        )
    if head.startswith(b"Obj\x01"):
        return _OtherFraming(
            "an Avro file",
            "",
            "Each record is a whole file with a schema of its own: read the column as binary, and "
            "each file with a library for Avro",
        )
    if head.startswith(b"\x1f\x8b\x08"):  # 8 is deflate, the only method there is
        return _OtherFraming(
            "gzip",
            "",
            "The producer has compressed each record, beside Kafka's own compression: read the "
            "column as binary, and unpack it before it is decoded",
        )
    if not is_json and head.lstrip()[:1] in (b"{", b"[") and tail.rstrip()[-1:] in (b"}", b"]"):
        return _OtherFraming("plain JSON", "", "{}Format=json reads it")
    return None


def _recognize_headers(headers: pa.Array, rows: pa.Array, column: str) -> dict[int, _OtherFraming]:
    """Recognize framings by headers: Apicurio's have names of their own, and Azure's a content
    type. Return them by the index of the row in `rows`."""
    row_headers = headers.take(rows)
    names, values = row_headers.flatten().flatten()
    kinds_of_id = ("globalId", "contentId", "contentHash", "artifactId")
    id_headers = {f"apicurio.{column}.{kind}": kind for kind in kinds_of_id}
    wanted = arrow.binary_array([name.encode() for name in (*id_headers, "content-type")])
    at = pc.indices_nonzero(pc.is_in(names, wanted.view(names.type)))
    framings = {}
    for index, name, value in zip(
        pc.list_parent_indices(row_headers).take(at).to_pylist(),
        names.take(at).to_pylist(),
        values.take(at).to_pylist(),
        strict=True,
    ):
        if name in id_headers:
            framings[index] = _OtherFraming(
                "Apicurio's framing in headers",
                f"{id_headers[name]} {_id_text(value or b'')}",
                f"{{0}}Framing={APICURIO_HEADERS} reads them, with schema.registry.url="
                "…/apis/registry/v3 (v2 for Apicurio 2)",
                (APICURIO, APICURIO_CONTENT, APICURIO_HEADERS),
            )
        elif value is not None and value.startswith(AZURE_TYPE):
            framings[index] = _OtherFraming(
                "the framing of Azure's Schema Registry in headers",
                f"schema id {_printable(value[len(AZURE_TYPE) :])}",
                f"{{0}}Framing={AZURE} reads them, with schema.registry.url=https://NAMESPACE."
                "servicebus.windows.net/$schemaGroups/GROUP",
                (AZURE,),
            )
    return framings


def _id_text(value: bytes) -> str:
    """Return an id as text: a number of 4 or 8 bytes, or the text of a name or hash."""
    return str(int.from_bytes(value, "big")) if len(value) in (4, 8) else _printable(value)


def _printable(value: bytes) -> str:
    """Return the beginning of a text, for messages."""
    return printable(value[:64].decode("utf-8", "replace"), "�")
