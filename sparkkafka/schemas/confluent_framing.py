"""Confluent's wire format: a frame before the payload or in a header names the writer's schema.

A frame, as Confluent's serializers write it:

    0x00  schema id, 4 bytes, big-endian        or   0x01  GUID of the schema, 16 bytes
    with Protobuf only: the message's indexes, as zigzag varints with their count in front; the one
    byte 0 stands for the first message of the file

It is before the payload, or the value of the header `__value_schema_id` (`__key_schema_id`), which
is looked up first. If a record has several such headers the last one counts, as in Java.

Frames are read for a whole column by NumPy, without a Python object for a row, and the rows are
grouped by the schema that wrote them. In the usual case, one schema for all rows, each payload is
copied once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.protocol.columns.columns import HEADERS_TYPE, gather, validity
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import (
    Bytes,
    Ints,
    read_unsigned,
    unzigzag,
    windows,
)
from sparkkafka.protocol.wire.varints import VARINT_BITS, read_zigzag, zigzag_bytes
from sparkkafka.schemas.arrays import offsets_of, scalar
from sparkkafka.schemas.values import FIRST_MESSAGE

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


# --- writing ------------------------------------------------------------------------------------


def frame_of(writer: WriterId, *, with_indexes: bool) -> bytes:
    """Return the bytes of a frame: with the GUID if there is one, else with the id; none without
    either."""
    if writer.guid is not None:
        frame = bytes([_MAGIC_GUID]) + writer.guid
    elif writer.schema_id is not None:
        frame = bytes([_MAGIC_ID]) + writer.schema_id.to_bytes(4, "big")
    else:
        return b""
    if not with_indexes:
        return frame
    if writer.message == FIRST_MESSAGE:
        return frame + b"\0"
    return frame + b"".join(map(zigzag_bytes, (len(writer.message), *writer.message)))


def add_header(headers: pa.Array | None, name: str, frame: bytes, payloads: pa.Array) -> pa.Array:
    """Append a header of this name with the frame to the headers of each row that has a payload.

    `headers` has a list of (key, value) structs for each row, or null; None: no row has headers.
    """
    count = len(payloads)
    added = arrow.is_valid(payloads).astype(np.int64)
    names, values = arrow.repeat_text(name, 1), arrow.binary_array([frame])
    before = 0
    old = np.zeros(count, np.int64)
    if headers is not None:
        old = arrow.or_zero(pc.list_value_length(headers)).astype(np.int64)
        before = int(old.sum())
        entries = headers.flatten()
        old_names, old_values = (
            entries.flatten()[entries.type.get_field_index(name)] for name in ("key", "value")
        )
        names = pa.concat_arrays([old_names.cast(names.type), names])
        values = pa.concat_arrays([old_values.cast(values.type), values])
    offsets = offsets_of(old + added, np.int32)
    indexes = np.full(int(offsets[-1]), before, np.int64)  # where each header is in `names`
    is_old = np.ones(len(indexes), np.bool_)
    is_old[offsets[1:][added > 0] - 1] = False
    indexes[is_old] = np.arange(before)
    taken = arrow.from_numpy(indexes)
    entries = pa.StructArray.from_arrays(
        [names.take(taken), values.take(taken)], fields=list(HEADERS_TYPE.value_type)
    )
    buffers = [validity(np.diff(offsets) > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(HEADERS_TYPE, count, buffers, children=[entries])


# --- reading ------------------------------------------------------------------------------------


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
    """Return payloads without frames as one group."""
    return Unframed([PayloadGroup(NO_FRAME, None, payloads)], NO_ROWS, [])


NO_ROWS = np.empty(0, np.int64)


class Frames(NamedTuple):
    """The frames of some rows. `writer_indexes`: the index of each row's writer in `writers`, -1
    for a bad frame; None if all rows have the only writer. `bodies`: where each payload begins
    behind its frame. `reasons`: for each bad frame."""

    writers: list[WriterId]
    writer_indexes: Ints | None
    bodies: Ints
    reasons: list[str]


class Unframer:
    """Reads the frames of a column's payloads and groups the rows by writer. `starts` and `ends`:
    where each payload begins and ends in `data`."""

    def __init__(self, payloads: pa.Array, column: str, *, with_indexes: bool) -> None:
        offsets = arrow.blob_offsets(payloads).astype(np.int64)
        self.starts, self.ends = offsets[:-1], offsets[1:]
        self._content = (payloads.buffers()[2] if len(payloads) else None) or pa.py_buffer(b"")
        self.data = np.frombuffer(self._content, np.uint8)
        self._column = column
        self._with_indexes = with_indexes

    def read_frames(self, rows: Ints) -> Frames:
        """Read the frames before the payloads of these rows."""
        data, starts, lengths = self.data, self.starts[rows], self.ends[rows] - self.starts[rows]
        # The usual case: all rows have the same id (and the first message).
        min_size = _ID_BYTES + self._with_indexes
        if int(lengths.min()) >= min_size:
            ids = windows(data, ">u4")[starts + 1]
            is_same = not data[starts].any() and bool((ids == ids[0]).all())
            if is_same and not (self._with_indexes and data[starts + _ID_BYTES].any()):
                return Frames([WriterId(int(ids[0]))], None, starts + min_size, [])
        sizes = np.full(len(starts), _ID_BYTES)
        filled = np.flatnonzero(lengths)
        sizes[filled[data[starts[filled]] == _MAGIC_GUID]] = _GUID_BYTES
        if self._with_indexes and len(data):
            sizes = _skip_indexes(data, starts + sizes) - starts
        heads = gather(self._content, starts, np.minimum(lengths, sizes))
        parse = partial(parse_frame, column=self._column, with_indexes=self._with_indexes)
        return frames_of(heads, starts + sizes, parse)

    def heads(self, rows: Ints, size: int) -> pa.Array:
        """Return the first `size` bytes of these rows' payloads, or fewer."""
        starts = self.starts[rows]
        return gather(self._content, starts, np.minimum(self.ends[rows] - starts, size))

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
        """Group these rows by writer. `with_nulls`: they are all rows that have a payload, so if
        they have one writer, its group has all rows of the column, the others as nulls."""
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
            some = order[starts[index] : starts[index + 1]]
            groups.append(self.group_of_writer(writer, rows[some], frames.bodies[some]))
        return Unframed(groups, rows[order[: starts[0]]], frames.reasons)


def parse_frame(
    head: bytes, column: str, *, with_indexes: bool, in_header: bool = False
) -> WriterId | str:
    """Return the writer that a frame names, or why it is none."""
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
        some = np.flatnonzero(counts > number)
        if not len(some):
            break
        after[some] = read_unsigned(data, after[some])[1]
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
    return tuple(indexes) or FIRST_MESSAGE, at


Parse = Callable[[bytes], WriterId | str]
"""Returns the writer of a frame, or why it is none."""


def frames_of(heads: pa.Array, bodies: Ints, parse: Parse) -> Frames:
    """Return the frames with these bytes, each of which `parse` gets once. `bodies`: where each
    payload begins."""
    coded = heads.fill_null(scalar(b"")).dictionary_encode()
    parsed = [parse(head) for head in coded.dictionary.to_pylist()]
    writers = list(dict.fromkeys(one for one in parsed if isinstance(one, WriterId)))
    numbers: dict[WriterId | str, int] = {writer: number for number, writer in enumerate(writers)}
    codes = arrow.to_numpy(coded.indices)
    writer_indexes = np.array([numbers.get(one, -1) for one in parsed], np.int64)[codes]
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
    """Return the rows that have this header, and its last value in each; None if no row has it."""
    if headers.null_count == len(headers):
        return None
    names, values = headers.flatten().flatten()
    if not len(names):
        return None
    equal = pc.equal(names, arrow.repeat_text(name, 1)[0])
    is_named = arrow.bits(equal.buffers()[1], equal.offset, len(equal)).view(
        np.bool_
    ) & arrow.is_valid(equal)
    at = np.flatnonzero(is_named)
    if not len(at):
        return None
    counts = arrow.or_zero(pc.list_value_length(headers)).astype(np.int64)
    rows = np.searchsorted(np.cumsum(counts), at, "right")
    is_last = np.append(rows[1:] != rows[:-1], True)
    return rows[is_last], values.take(arrow.from_numpy(at[is_last]))
