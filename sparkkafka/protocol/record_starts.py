"""Where each record of a fetch starts: the one step of decoding that is sequential by nature.

A record is known to start only where the one before it ends, so the plain way is to follow the
length prefixes one by one. Three ways go faster; which one depends on the shape of the batches:

- `equal_runs`: records of one size. If the same length prefix stands at every multiple of the first
  record's size, a whole run of starts is an arithmetic series. Many producers write this.
- `lockstep`: follow the prefixes of many chains at once, one numpy step for the next record of all.
  The chains are the batches of a fetch (16 KB producers: ~120 records each), and pieces of large
  batches: `_seeds` guesses positions inside that look like starts.
- `chase`: the plain loop, for what is left.

Nothing here raises or is believed: a guess may be wrong, bytes may be damaged. `verify` says which
batches have a gapless series of records from their first to their last byte with the right count,
and that alone makes the starts right: the first start is given, and each record's own length
leads to the next. `find` follows a batch that fails with the plain loop before it gives up on it.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from sparkkafka.protocol.records import MIN_RECORD_BYTES
from sparkkafka.protocol.varints import BadVarintError, Bytes, Ints, read

_MIN_BODY_BYTES = MIN_RECORD_BYTES - 1

_FEW_CHAINS = 8  # below, a numpy step costs more than the plain loop's steps (measured)
_LARGE_BATCH_RECORDS = 256  # from here on, equal runs and seeds are worth a try
_RECORDS_PER_SEED = 64
_MAX_SEEDED_RECORD_BYTES = 4096  # larger mean: so few records that the plain loop costs nothing

_FEW_RECORDS_BYTES = 2048
_STEPS = 16  # of all chains between looks at which chains are done


def _advance_table() -> Ints:
    """Bytes to the next record for the first two bytes (little endian) of a length prefix.

    0 for longer prefixes, and where no record can be.
    """
    first = np.arange(65536, dtype=np.int64) & 0xFF
    second = np.arange(65536, dtype=np.int64) >> 8
    one_byte = first < 0x80
    two_bytes = ~one_byte & (second < 0x80)
    raw = np.where(one_byte, first, (first & 0x7F) | second << 7)
    body = raw >> 1
    known = (one_byte | two_bytes) & (raw & 1 == 0) & (body >= _MIN_BODY_BYTES)
    return np.where(known, body + np.where(one_byte, 1, 2), 0)


_ADVANCE = _advance_table()


class Layout(NamedTuple):
    """Where records lie; `sound` says for each batch whether that is certain."""

    starts: Ints
    """The length prefix of each record."""
    bodies: Ints
    """What follows the prefix: the attributes byte."""
    ends: Ints
    sound: NDArray[np.bool_]


def find(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Layout:
    """All records of all batches, and which batches are sound.

    `begins` and `ends` delimit each batch's uncompressed records in `data`, ascending and not
    overlapping; `counts` (all positive) are the record counts of the batch headers; a batch has at
    least MIN_RECORD_BYTES for each. The positions in a batch that is not sound mean nothing.
    """
    found: list[Ints | None] = [None] * len(begins)
    chains: list[Ints] = []  # begins of chains
    limits: list[Ints] = []
    in_lockstep = np.ones(len(begins), np.bool_)
    large = np.flatnonzero(counts >= _LARGE_BATCH_RECORDS)
    for index in large.tolist():
        begin, end, count = int(begins[index]), int(ends[index]), int(counts[index])
        found[index] = equal_runs(data, begin, end, count)
        if found[index] is not None:
            in_lockstep[index] = False
            continue
        seeds = _seeds(data, begin, end, count)
        if len(seeds) > 1:
            in_lockstep[index] = False
            chains.append(seeds)
            limits.append(np.append(seeds[1:], end))
    if in_lockstep.any():
        chains.append(begins[in_lockstep])
        limits.append(ends[in_lockstep])
    # Too few chains: left to the plain loop below, which knows their counts.
    if sum(map(len, chains)) >= _FEW_CHAINS:
        pending = [index for index, starts in enumerate(found) if starts is None]
        positions = lockstep(data, np.concatenate(chains), np.concatenate(limits))
        lows = np.searchsorted(positions, begins)
        highs = np.searchsorted(positions, ends)
        if len(pending) == len(begins) and np.array_equal(highs - lows, counts):
            layout = verify(data, positions, begins, ends, counts)
            if layout.sound.all():
                return layout
        for index in pending:
            found[index] = positions[lows[index] : highs[index]]
    for index, some in enumerate(found):
        count = int(counts[index])
        if some is None or len(some) != count:
            found[index] = chase(data, int(begins[index]), int(ends[index]), count)
    starts = np.concatenate([some for some in found if some is not None])
    layout = verify(data, starts, begins, ends, counts)
    if not layout.sound.all():
        # A wrong guess looks like damage: only the plain loop can tell.
        firsts = np.cumsum(counts) - counts
        for index in np.flatnonzero(~layout.sound).tolist():
            first, count = int(firsts[index]), int(counts[index])
            starts[first : first + count] = chase(data, int(begins[index]), int(ends[index]), count)
        layout = verify(data, starts, begins, ends, counts)
    return layout


def verify(data: Bytes, starts: Ints, begins: Ints, ends: Ints, counts: Ints) -> Layout:
    """Whether the records of each batch follow each other without a gap, from begin to end."""
    firsts = np.cumsum(counts) - counts
    record_ends = np.empty_like(starts)  # the next one's start, or the batch's end
    record_ends[:-1] = starts[1:]
    record_ends[firsts + counts - 1] = ends
    try:
        lengths, bodies = read(data, starts)
    except BadVarintError:
        sound = np.zeros(len(begins), np.bool_)
        if len(begins) > 1:  # one bad number must not make all batches look bad
            for index, (first, count) in enumerate(zip(firsts, counts, strict=True)):
                one = slice(index, index + 1)
                part = starts[first : first + count]
                sound[one] = verify(data, part, begins[one], ends[one], counts[one]).sound
        return Layout(starts, starts, record_ends, sound)
    bad = bodies + lengths != record_ends
    bad[firsts] |= starts[firsts] != begins
    if bad.any():
        return Layout(starts, bodies, record_ends, ~np.logical_or.reduceat(bad, firsts))
    return Layout(starts, bodies, record_ends, np.ones(len(begins), np.bool_))


def chase(data: Bytes, begin: int, end: int, count: int) -> Ints:
    """Follows the length prefixes one by one. After damage the rest of the positions are `end`."""
    # Indexing bytes is twice as fast as indexing a view, but takes a copy.
    few = count * _FEW_RECORDS_BYTES < end - begin
    raw: memoryview | bytes = data[begin:end].data if few else data[begin:end].tobytes()
    offsets = array("q", bytes(8 * count))
    position = 0
    index = 0
    try:
        for index in range(count):
            offsets[index] = position
            byte = raw[position]
            if byte < 0x80:
                position += (byte >> 1) + 1
                continue
            second = raw[position + 1]
            if second < 0x80:
                position += ((byte & 0x7F) >> 1) + (second << 6) + 2
                continue
            prefix, value = 2, byte & 0x7F | (second & 0x7F) << 7
            while (byte := raw[position + prefix]) >= 0x80 and prefix < 5:
                value |= (byte & 0x7F) << 7 * prefix
                prefix += 1
            position += ((value | byte << 7 * prefix) >> 1) + prefix + 1
    except IndexError:
        pass
    else:
        index = count
    starts = np.frombuffer(offsets, np.int64) + begin
    starts[index:] = end
    return np.minimum(starts, end, out=starts)


def equal_runs(data: Bytes, begin: int, end: int, count: int) -> Ints | None:
    """Starts as arithmetic series, or None when runs of equal sizes are too short to pay.

    Sizes change even for equal values, where an offset or timestamp delta grows by a byte.
    """
    pieces: list[Ints] = []
    position, left = begin, count
    while left:
        if position + 2 > len(data):
            return None
        byte, second = int(data[position]), int(data[position + 1])
        size = int(_ADVANCE[byte | second << 8])
        if size == 0:
            size = _long_advance(data, position)
            if size == 0:
                return None
        most = min(left, (end - position) // size)
        if most == 0:
            return None
        run = 0
        window = 64  # grows, so that a short run does not look at the whole batch
        while run < most:
            part = min(window, most - run)
            same = _same_prefix(data, position + run * size, size, part, position)
            run += same
            if same < part:
                break
            window *= 8
        pieces.append(np.arange(position, position + run * size, size, dtype=np.int64))
        position += run * size
        left -= run
        if len(pieces) >= 4 and count - left < 24 * len(pieces):
            return None
    return np.concatenate(pieces)


def _same_prefix(data: Bytes, at: int, stride: int, count: int, model: int) -> int:
    """How many records from `at` on, `stride` apart, have the same length prefix as `model`."""
    prefix = data[model : model + 5].tobytes()
    for index, byte in enumerate(prefix):
        column = data[at + index :: stride][:count]
        equal = column == byte
        if not equal.all():
            count = int(equal.argmin())
        if byte < 0x80 or count == 0:
            break
    return count


def _long_advance(data: Bytes, position: int) -> int:
    """Bytes to the next record when the table cannot tell; 0 if no record can start here."""
    value = 0
    for index, byte in enumerate(data[position : position + 5].tolist()):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            body = value >> 1
            return 0 if value & 1 or body < _MIN_BODY_BYTES else body + index + 1
    return 0


def lockstep(data: Bytes, begins: Ints, limits: Ints) -> Ints:
    """All record starts of many chains, ascending.

    A chain goes from its begin to its limit; it is left early where no record can start.
    """
    # One gather reads two bytes. No record starts in the last byte, so chains stop before it.
    if len(data) < 2:
        return np.empty(0, np.int64)
    pairs: NDArray[np.uint16] = np.ndarray((len(data) - 1,), "<u2", data, strides=(1,))
    position = begins.astype(np.int64)
    limit = np.minimum(limits, len(data) - 2)
    pieces: list[Ints] = []
    while len(position) >= _FEW_CHAINS:
        steps = np.empty((_STEPS, len(position)), np.int64)
        for row in steps:
            row[:] = position
            # Where the table cannot tell it says 0: the chain waits for the end of this block.
            position += _ADVANCE.take(pairs[position])
            np.minimum(position, limit, out=position)
        last = steps[-1]
        for index in np.flatnonzero((position == last) & (last < limit)).tolist():
            advance = _long_advance(data, int(last[index]))
            position[index] = min(last[index] + advance, limit[index]) if advance else limit[index]
        pieces.append(steps[steps < limit])
        active = position < limit
        if not active.all():
            position, limit = position[active], limit[active]
    for begin, end in zip(position.tolist(), limit.tolist(), strict=True):
        pieces.append(_chase_all(data, begin, end))
    starts = np.sort(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)
    again = starts[1:] == starts[:-1]
    return np.delete(starts, np.flatnonzero(again)) if again.any() else starts


def _chase_all(data: Bytes, begin: int, end: int) -> Ints:
    """`chase` without a count."""
    pieces: list[Ints] = []
    while begin < end:
        block = min(1024, (end - begin) // MIN_RECORD_BYTES + 1)
        starts = chase(data, begin, end, block + 1)
        begin = int(starts[-1])  # the next block's first, or `end`
        pieces.append(starts[:-1][starts[:-1] < end])
    return np.concatenate(pieces)


def _seeds(data: Bytes, begin: int, end: int, count: int) -> Ints:
    """Positions in one large batch that look like record starts, `begin` first.

    Looks for a zero byte (attributes) behind a length prefix that leads to another such place, four
    times in a row, and takes the last place: chains that begin wrong often meet the right one. A
    wrong seed costs time, never a wrong record: see `find`.
    """
    mean = (end - begin) // count
    pieces = count // _RECORDS_PER_SEED
    first = np.array([begin], np.int64)
    if mean > _MAX_SEEDED_RECORD_BYTES or pieces < _FEW_CHAINS:
        return first
    window = 2 * mean + 16
    anchors = begin + (end - begin) // pieces * np.arange(1, pieces, dtype=np.int64)
    anchors = anchors[anchors + window < end]
    if not len(anchors):
        return first
    windows = as_strided(data, (len(data) - window + 1, window), (1, 1))[anchors]
    piece, column = np.nonzero(windows[:, 2:] == 0)
    attributes = anchors[piece] + column + 2
    # The prefix is two bytes long if the byte before the last one says that it goes on.
    start = attributes - 1 - (data[attributes - 2] >> 7)
    alive = np.arange(len(start))
    position = start
    last = end - MIN_RECORD_BYTES
    for _ in range(4):
        first_byte = data[position].astype(np.int64)
        second_byte = data[position + 1].astype(np.int64)
        advance = _ADVANCE.take(first_byte | second_byte << 8)
        attributes = position + 1 + (first_byte >> 7)
        good = (advance != 0) & (data[attributes] == 0)
        position = position + advance
        good &= position <= last
        alive, position = alive[good], position[good]
    _, index = np.unique(piece[alive], return_index=True)
    return np.concatenate([first, np.unique(position[index])])
