"""Takes frames off a column's payloads and groups the rows by the schema that wrote them.

Rows are grouped with numpy, without a Python object for a row. In the usual case, one schema for
all rows, each payload is copied once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.arrow import (
    blob_offsets,
    from_numpy,
    is_valid,
    or_zero,
    repeat_text,
)
from sparkkafka.protocol.records.varint_columns import read_unsigned, unzigzag, windows
from sparkkafka.schemas.framing import (
    GUID_BYTES,
    ID_BYTES,
    MAGIC_GUID,
    MAGIC_ID,
    MAX_INDEXES,
    NO_FRAME,
    WriterId,
    header_name,
)
from sparkkafka.schemas.values import FIRST_MESSAGE

_FEW = 16
"""Ids in one batch that are found one by one."""

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Group(NamedTuple):
    """Payloads of one writer, without their frames.

    rows: where they stand in the column, ascending; None if they are all of its rows. Then those
    without a payload are there too, as nulls; else they are in no group.
    """

    writer: WriterId
    rows: Ints | None
    payloads: pa.Array


class Unframed(NamedTuple):
    """A column's rows by writer; bad rows, ascending, are in no group."""

    groups: list[Group]
    bad_rows: Ints
    reasons: list[str]


def unframe(
    payloads: pa.Array,
    headers: pa.Array | None,
    column: str,
    *,
    with_indexes: bool,
    only_headers: bool = False,
) -> Unframed:
    """The payloads of a column by the schema that wrote them.

    `payloads` is binary, null for no payload; `headers` of HEADERS_TYPE, or None to look for none.
    `with_indexes`: frames have a message's indexes. `only_headers`: no payload has a frame, so a
    row without the header is bad.
    """
    count = len(payloads)
    has_payload = is_valid(payloads) if payloads.null_count else None
    if count == 0 or (has_payload is not None and not has_payload.any()):
        return Unframed([], _no_rows(), [])
    offsets = blob_offsets(payloads).astype(np.int64)
    content = payloads.buffers()[2]
    pieces = _Pieces(content if content is not None else pa.py_buffer(b""), offsets)

    found = None if headers is None else _last_headers(headers, header_name(column))
    if only_headers:
        found = found or (_no_rows(), pa.nulls(0, pa.binary()))
    if found is None:
        rows = None if has_payload is None else np.flatnonzero(has_payload)
        frames = _frames_of(pieces, rows, with_indexes, column)
        return _grouped(pieces, rows, frames, has_payload)

    header_rows, values = found
    if has_payload is not None:
        keep = has_payload[header_rows]
        header_rows, values = header_rows[keep], values.filter(from_numpy(keep))
    others = np.ones(count, np.bool_) if has_payload is None else has_payload.copy()
    others[header_rows] = False
    parts = []
    if len(header_rows):
        frames = _header_frames(values, with_indexes, column)
        frames = frames._replace(bodies=pieces.offsets[:-1][header_rows])
        whole = len(header_rows) == count
        parts.append(_grouped(pieces, None if whole else header_rows, frames, None))
    rest = np.flatnonzero(others)
    if len(rest) and only_headers:
        reason = f"the record has no header {header_name(column)}"
        parts.append(Unframed([], rest, [reason] * len(rest)))
    elif len(rest):
        frames = _frames_of(pieces, rest, with_indexes, column)
        parts.append(_grouped(pieces, rest, frames, None))
    return _together(parts)


def plain(payloads: pa.Array) -> Unframed:
    """Payloads without frames, as one group."""
    return Unframed([Group(NO_FRAME, None, payloads)], _no_rows(), [])


def unframe_texts(payloads: pa.Array, column: str) -> Unframed:
    """Payloads that are text (JSON), with or without a frame: no text begins with byte 0 or 1."""
    has_payload = is_valid(payloads) if payloads.null_count else np.ones(len(payloads), np.bool_)
    offsets = blob_offsets(payloads).astype(np.int64)
    content = payloads.buffers()[2] if len(payloads) else None
    if content is None:
        return plain(payloads)
    framed = has_payload & (offsets[1:] > offsets[:-1])
    rows = np.flatnonzero(framed)
    if len(rows):
        first = np.frombuffer(content, np.uint8)[offsets[rows]]
        rows = rows[first <= MAGIC_GUID]
    if not len(rows):
        return plain(payloads)
    pieces = _Pieces(content, offsets)
    parts = [_grouped(pieces, rows, _frames_of(pieces, rows, False, column), None)]
    others = has_payload
    others[rows] = False
    bare = np.flatnonzero(others)
    if len(bare):
        lengths = offsets[1:][bare] - offsets[:-1][bare]
        parts.append(
            Unframed(
                [Group(NO_FRAME, bare, gather(content, offsets[:-1][bare], lengths))],
                _no_rows(),
                [],
            )
        )
    return _together(parts)


class _Pieces(NamedTuple):
    data: pa.Buffer
    offsets: Ints
    """Row i is bytes offsets[i]..offsets[i + 1]."""


class _Frames(NamedTuple):
    """Of some rows: which of the writers, -1 for a bad frame; and where payloads begin.

    `which` is None if all have the one writer. `bad`: a reason for each -1, in order.
    """

    writers: list[WriterId]
    which: Ints | None
    bodies: Ints
    bad: list[str]


def _no_rows() -> Ints:
    return np.empty(0, np.int64)


def _frames_of(pieces: _Pieces, rows: Ints | None, with_indexes: bool, column: str) -> _Frames:
    starts, ends = pieces.offsets[:-1], pieces.offsets[1:]
    if rows is not None:
        starts, ends = starts[rows], ends[rows]
    return _parse(np.frombuffer(pieces.data, np.uint8), starts, ends, with_indexes, column)


def _header_frames(values: pa.Array, with_indexes: bool, column: str) -> _Frames:
    offsets = blob_offsets(values).astype(np.int64)
    content = values.buffers()[2]
    data = np.frombuffer(content if content is not None else b"", np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    if values.null_count:
        ends = np.where(is_valid(values), ends, starts)
    frames = _parse(data, starts, ends, with_indexes, column, in_header=True)
    which = frames.which
    behind = frames.bodies != ends
    if which is not None:
        behind &= which >= 0
    if not behind.any():
        return frames
    # What stands behind the frame belongs to nothing.
    if which is None:
        which = np.zeros(len(starts), np.int64)
    reasons = iter(frames.bad)
    bad = []
    for at in np.flatnonzero(behind | (which < 0)).tolist():
        if which[at] < 0:
            bad.append(next(reasons))
        else:
            extra = int(ends[at] - frames.bodies[at])
            bad.append(f"header {header_name(column)} has {extra} bytes behind the schema's id")
    return frames._replace(which=np.where(behind, -1, which), bad=bad)


def _parse(
    data: Bytes, starts: Ints, ends: Ints, with_indexes: bool, column: str, in_header: bool = False
) -> _Frames:
    """Frames that begin at `starts` and have room until `ends`; at least one."""
    lengths = ends - starts
    least = ID_BYTES + with_indexes
    if int(lengths.min()) >= least:
        ids = _numbers(data, starts + 1, ">u4")
        alike = not data[starts].any() and bool((ids == ids[0]).all())
        if alike and not (with_indexes and data[starts + ID_BYTES].any()):
            return _Frames([WriterId(int(ids[0]))], None, starts + least, [])
    return _parse_any(data, starts, ends, with_indexes, column, in_header)


def _parse_any(
    data: Bytes, starts: Ints, ends: Ints, with_indexes: bool, column: str, in_header: bool
) -> _Frames:
    count = len(starts)
    lengths = ends - starts
    magic = np.full(count, -1, np.int64)
    some = np.flatnonzero(lengths)
    magic[some] = data[starts[some]]
    sizes = np.where(magic == MAGIC_GUID, GUID_BYTES, ID_BYTES)
    good = ((magic == MAGIC_ID) | (magic == MAGIC_GUID)) & (lengths >= sizes)
    bodies = starts + sizes

    # magic, id or GUID in two halves; then the number of indexes and the indexes.
    keys = np.zeros((count, 4 + MAX_INDEXES if with_indexes else 3), np.int64)
    keys[:, 0] = magic
    with_id = np.flatnonzero(good & (magic == MAGIC_ID))
    keys[with_id, 1] = _numbers(data, starts[with_id] + 1, ">u4")
    with_guid = np.flatnonzero(good & (magic == MAGIC_GUID))
    for place in (0, 1):
        halves = _numbers(data, starts[with_guid] + 1 + 8 * place, ">u8")
        keys[with_guid, 1 + place] = halves.astype(np.uint64).view(np.int64)
    framed = good.copy()
    if with_indexes:
        rows = np.flatnonzero(good)
        sound, bodies[rows] = _read_indexes(data, bodies[rows], ends[rows], keys, rows)
        good[rows[~sound]] = False

    def reason(at: int) -> str:
        what = f"header {header_name(column)}" if in_header else "it"
        if framed[at]:
            return f"{what} has broken message indexes behind {_writer(keys[at][:3])}"
        size, length = int(sizes[at]), int(lengths[at])
        if length and magic[at] not in (MAGIC_ID, MAGIC_GUID):
            return (
                f"{what} begins with byte 0x{int(magic[at]):02x}, not with 0x00 and a schema id "
                f"({column}Framing=none reads payloads without an id)"
            )
        return f"{what} has {length} bytes, and a schema id takes {size}"

    bad = [reason(at) for at in np.flatnonzero(~good).tolist()]
    kept = np.flatnonzero(good)
    which = np.full(count, -1, np.int64)
    if not len(kept):
        return _Frames([], which, bodies, bad)
    simple = not keys[kept, 0].any() and not (with_indexes and keys[kept, 3].any())
    if simple:
        ids, inverse = _distinct(keys[kept, 1])
        writers = [WriterId(one) for one in ids]
    else:
        unique, inverse = np.unique(keys[kept], axis=0, return_inverse=True)
        writers = [_writer(key) for key in unique]
    if len(writers) == 1 and len(kept) == count:
        return _Frames(writers, None, bodies, [])
    which[kept] = inverse.reshape(-1)
    return _Frames(writers, which, bodies, bad)


def _distinct(ids: Ints) -> tuple[list[int], Ints]:
    """The different ones, and which of them each is. (`np.unique` sorts, and they are few.)"""
    found: list[int] = []
    which = np.full(len(ids), -1, np.int64)
    rest = ids
    while len(found) < _FEW:
        found.append(int(rest[0]))
        which[ids == rest[0]] = len(found) - 1
        rest = ids[which < 0]
        if not len(rest):
            return found, which
    unique, which = np.unique(ids, return_inverse=True)
    return unique.tolist(), which


def _writer(key: Ints) -> WriterId:
    message = FIRST_MESSAGE
    if len(key) > 3 and key[3]:
        message = tuple(key[4 : 4 + int(key[3])].tolist())
    if key[0] == MAGIC_ID:
        return WriterId(int(key[1]), message=message)
    return WriterId(guid=key[1:3].astype(">i8").tobytes(), message=message)


def _numbers(data: Bytes, at: Ints, kind: str) -> NDArray[np.generic]:
    """The big-endian numbers at these places, which have room for them."""
    found: NDArray[np.generic] = windows(data, kind)[at]
    return found


def _read_indexes(
    data: Bytes, at: Ints, ends: Ints, keys: Ints, rows: Ints
) -> tuple[NDArray[np.bool_], Ints]:
    """Puts the indexes of `rows` into `keys` (from column 3). Returns which are sound, and the
    places behind them."""
    sound = at < ends
    after = at.copy()
    first = np.ones(len(at), np.uint8)
    first[sound] = data[at[sound]]
    after[sound & (first == 0)] += 1  # the short form
    left = np.flatnonzero(sound & (first != 0))
    if not len(left):
        return sound, after
    counts, behind, fine = _varints(data, at[left], ends[left])
    fine &= (counts >= 0) & (counts <= MAX_INDEXES)
    sound[left[~fine]] = False
    left, counts, at = left[fine], counts[fine], behind[fine]
    keys[rows[left], 3] = counts
    after[left] = at
    number = 0
    while len(left):
        more = counts > number
        left, counts, at = left[more], counts[more], at[more]
        if not len(left):
            break
        values, at, fine = _varints(data, at, ends[left])
        fine &= values >= 0
        sound[left[~fine]] = False
        left, counts, at, values = left[fine], counts[fine], at[fine], values[fine]
        keys[rows[left], 4 + number] = values
        after[left] = at
        number += 1
    # [0] may be written in full; it is the same message.
    same = (keys[rows, 3] == 1) & (keys[rows, 4] == 0)
    keys[rows[same], 3] = 0
    return sound, after


def _varints(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Zigzag varints of at most 5 bytes, the positions after them, and which are sound."""
    raw, after, _ = read_unsigned(data, at)
    return unzigzag(raw), after, (after <= ends) & (after - at <= 5)


def _grouped(
    pieces: _Pieces, rows: Ints | None, frames: _Frames, has_payload: NDArray[np.bool_] | None
) -> Unframed:
    """Rows (None: all) as groups. With `has_payload`, of all rows, one writer's group has those
    without a payload too."""
    ends = pieces.offsets[1:]
    if frames.which is None:
        (writer,) = frames.writers
        if rows is None:
            payloads = gather(pieces.data, frames.bodies, ends - frames.bodies)
            return Unframed([Group(writer, None, payloads)], _no_rows(), [])
        if has_payload is not None:
            starts, lengths = pieces.offsets[:-1].copy(), np.full(len(ends), -1, np.int64)
            starts[rows] = frames.bodies
            lengths[rows] = ends[rows] - frames.bodies
            group = Group(writer, None, gather(pieces.data, starts, lengths))
            return Unframed([group], _no_rows(), [])
        payloads = gather(pieces.data, frames.bodies, ends[rows] - frames.bodies)
        return Unframed([Group(writer, rows, payloads)], _no_rows(), [])
    # Numbers of 16 bits are sorted much faster.
    which = frames.which.astype(np.int16) if len(frames.writers) < 1 << 15 else frames.which
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(len(frames.writers) + 1))
    groups = []
    for number, writer in enumerate(frames.writers):
        some = order[edges[number] : edges[number + 1]]
        where = some if rows is None else rows[some]
        bodies = frames.bodies[some]
        groups.append(Group(writer, where, gather(pieces.data, bodies, ends[where] - bodies)))
    bad = order[: edges[0]]
    return Unframed(groups, bad if rows is None else rows[bad], frames.bad)


def _together(parts: list[Unframed]) -> Unframed:
    """Of distinct rows."""
    if len(parts) == 1:
        return parts[0]
    bad_rows = np.concatenate([part.bad_rows for part in parts])
    order = np.argsort(bad_rows, kind="stable")
    reasons = [reason for part in parts for reason in part.reasons]
    groups = [group for part in parts for group in part.groups]
    return Unframed(groups, bad_rows[order], [reasons[at] for at in order.tolist()])


def _last_headers(headers: pa.Array, name: str) -> tuple[Ints, pa.Array] | None:
    """Rows that have this header, and the value of the last one of each; None if no row has."""
    if headers.null_count == len(headers):
        return None
    names, values = headers.flatten().flatten()
    if not len(names):
        return None
    at = np.flatnonzero(_are(names, name))
    if not len(at):
        return None
    counts = or_zero(pc.list_value_length(headers)).astype(np.int64)
    rows = np.searchsorted(np.cumsum(counts), at, "right")
    last = np.ones(len(rows), np.bool_)
    last[:-1] = rows[1:] != rows[:-1]
    return rows[last], values.take(from_numpy(at[last]))


def _are(names: pa.Array, name: str) -> NDArray[np.bool_]:
    equal = pc.equal(names, repeat_text(name, 1)[0])
    bits = np.unpackbits(np.frombuffer(equal.buffers()[1], np.uint8), bitorder="little")
    same = bits[equal.offset : equal.offset + len(equal)].view(np.bool_)
    return same & is_valid(equal)
