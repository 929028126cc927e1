"""Where each record of a fetch starts: the one step of decoding that is sequential by nature.

A record starts where the one before it ends, so the plain way is to follow the length prefixes one
by one. Faster ways, by the shape of the batches:

- `equal_runs`: records of one size in a large batch. If the same length prefix stands at every
  multiple of the first record's size, a whole run of starts is an arithmetic series.
- `lockstep`: follow the prefixes of many chains at once, one numpy step for the next record of all.
  The chains are the batches of a fetch (16 KB producers: ~120 records each), where counts are
  known; and pieces of large batches: `_seeds_of_all` guesses positions that look like starts.
- `chase`: the plain loop, for what is left.

Nothing here raises, and no guess is trusted. `verify` says which batches have a gapless series of
records from their first to their last byte with the right count, which proves the starts: the first
one is given, and each record's own length leads to the next. `find` tries the plain loop on a batch
that fails before it gives up on it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from sparkkafka.protocol.records.batches import MIN_RECORD_BYTES
from sparkkafka.protocol.records.varint_columns import Bytes, Ints, read
from sparkkafka.protocol.wire.varints import VARINT_BITS, BadVarintError, read_varint

_MIN_BODY_BYTES = MIN_RECORD_BYTES - 1

_FEW_CHAINS = 8  # below, a numpy step costs more than the plain loop's steps (measured)
_LARGE_BATCH_RECORDS = 256  # from here on, equal runs and seeds are worth a try
_RECORDS_PER_SEED = 64
_MAX_SEEDED_RECORD_BYTES = 4096  # larger mean: so few records that the plain loop costs nothing

_FEW_RECORDS_BYTES = 2048
_FIFTH_BYTE_END = 1 << (VARINT_BITS - 28)  # from here on a fifth byte leaves 32 bits, or goes on
_STEPS = 16  # of all chains between looks at which chains are done


def _advance_table() -> Ints:
    """Bytes to the next record for the first two bytes (little endian) of a length prefix; 0 for
    longer prefixes, and where no record can be."""
    first = np.arange(65536, dtype=np.int64) & 0xFF
    second = np.arange(65536, dtype=np.int64) >> 8
    one_byte = first < 0x80
    two_bytes = ~one_byte & (second < 0x80)
    raw = np.where(one_byte, first, (first & 0x7F) | second << 7)
    body = raw >> 1
    known = (one_byte | two_bytes) & (raw & 1 == 0) & (body >= _MIN_BODY_BYTES)
    return np.where(known, body + np.where(one_byte, 1, 2), 0)


_ADVANCE = _advance_table()
_ADVANCE_PAIRS = np.repeat(_ADVANCE, 2).reshape(-1, 2)  # for the positions of both bytes


class Layout(NamedTuple):
    """Where records lie; `sound` tells for each batch whether that is proven."""

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
    layout = verify(data, _guess(data, begins, ends, counts), begins, ends, counts)
    if not layout.sound.all():
        # A wrong guess looks like damage: only the plain loop can tell.
        bad = ~layout.sound
        rows = np.repeat(bad, counts)
        batches = (begins[bad], ends[bad], counts[bad])
        again = verify(data, _chase_each(data, *batches), *batches)
        layout.starts[rows] = again.starts
        layout.bodies[rows] = again.bodies
        layout.ends[rows] = again.ends
        layout.sound[bad] = again.sound
    return layout


def find_whole(data: Bytes, most: int) -> Layout:
    """The whole records in the beginning of a batch, at most `most`.

    They follow each other from the first byte on; what follows them may be cut or damaged. Empty if
    not even the first is whole.
    """
    size = len(data)
    if not most or size < MIN_RECORD_BYTES:
        nothing = np.empty(0, np.int64)
        return Layout(nothing, nothing, nothing, np.ones(1, np.bool_))
    begins, ends = np.zeros(1, np.int64), np.array([size])
    equal = equal_runs(data, 0, size, most, may_be_cut=True)
    if equal is not None:
        layout = _whole(data, equal)
        if len(layout.starts) == len(equal):
            return layout
    some = chase(data, 0, size, min(most, _RECORDS_PER_SEED) + 1)
    count = min(most, max(1, len(some) * size // max(int(some[-1]), 1)))
    chains, limits = _seeds_of_all(data, begins, ends, np.array([count]))
    looks: list[Callable[[], Ints]] = [lambda: _chase_all(data, 0, size)]
    if len(chains) >= _FEW_CHAINS:
        looks.insert(0, lambda: lockstep(data, chains, limits))
    for look in looks:
        starts = look()[:most]
        layout = _whole(data, starts)
        # The rest of a right guess is at most one record, which is cut.
        if len(layout.starts) >= len(starts) - 1:
            break
    return layout


def _whole(data: Bytes, starts: Ints) -> Layout:
    """The records, from the first on, that follow each other and lie in `data`."""
    lengths, bodies, endless = _lengths(data, starts)
    ends = bodies + lengths
    sound = (lengths >= _MIN_BODY_BYTES) & (ends <= len(data))
    sound[0] &= starts[0] == 0
    sound[1:] &= starts[1:] == ends[:-1]
    if endless is not None:
        sound &= ~endless
    whole = len(sound) if sound.all() else int(sound.argmin())
    return Layout(starts[:whole], bodies[:whole], ends[:whole], np.ones(1, np.bool_))


def _guess(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """The starts in all batches, in the way that suits each; wrong if the bytes are damaged or
    misleading."""
    large = counts >= _LARGE_BATCH_RECORDS
    if not large.any():
        return lockstep_counted(data, begins, ends, counts)
    starts = np.empty(int(counts.sum()), np.int64)
    firsts = np.cumsum(counts) - counts
    chosen = np.flatnonzero(large)
    found = [
        equal_runs(data, int(begins[index]), int(ends[index]), int(counts[index]))
        for index in chosen.tolist()
    ]
    pending = chosen[[some is None for some in found]]
    # Too few chains: left to the plain loop below, which knows their counts.
    chains, limits = _seeds_of_all(data, begins[pending], ends[pending], counts[pending])
    if len(chains) >= _FEW_CHAINS:
        positions = lockstep(data, chains, limits)
        lows = np.searchsorted(positions, begins)
        highs = np.searchsorted(positions, ends)
    for index, some in zip(chosen.tolist(), found, strict=True):
        if some is None and len(chains) >= _FEW_CHAINS:
            some = positions[lows[index] : highs[index]]
        first, count = int(firsts[index]), int(counts[index])
        if some is None or len(some) != count:
            some = chase(data, int(begins[index]), int(ends[index]), count)
        starts[first : first + count] = some
    small = ~large
    if small.any():
        starts[np.repeat(small, counts)] = lockstep_counted(
            data, begins[small], ends[small], counts[small]
        )
    return starts


def _chase_each(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    rows = zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True)
    return np.concatenate([chase(data, begin, end, count) for begin, end, count in rows])


def verify(data: Bytes, starts: Ints, begins: Ints, ends: Ints, counts: Ints) -> Layout:
    """Whether the records of each batch follow each other without a gap, from begin to end."""
    firsts = np.cumsum(counts) - counts
    record_ends = np.empty_like(starts)  # the next one's start, or the batch's end
    record_ends[:-1] = starts[1:]
    record_ends[firsts + counts - 1] = ends
    lengths, bodies, endless = _lengths(data, starts)
    bad = bodies + lengths != record_ends
    if endless is not None:
        bad |= endless
    bad[firsts] |= starts[firsts] != begins
    if bad.any():
        return Layout(starts, bodies, record_ends, ~np.logical_or.reduceat(bad, firsts))
    return Layout(starts, bodies, record_ends, np.ones(len(begins), np.bool_))


def _lengths(data: Bytes, starts: Ints) -> tuple[Ints, Ints, NDArray[np.bool_] | None]:
    """`read` of the length prefixes, and which are invalid (or None): one bad number must not make
    all batches look bad, nor cost more than a few reads of each."""
    try:
        return (*read(data, starts), None)
    except BadVarintError:
        endless: NDArray[np.bool_] = data.take(starts + 4, mode="clip") >= _FIFTH_BYTE_END
        for index in range(4):
            endless &= data.take(starts + index, mode="clip") >= 0x80
    lengths, bodies = np.zeros_like(starts), starts.copy()
    fine = ~endless
    if fine.any():
        lengths[fine], bodies[fine] = read(data, starts[fine])
    return lengths, bodies, endless


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


def equal_runs(
    data: Bytes, begin: int, end: int, count: int, *, may_be_cut: bool = False
) -> Ints | None:
    """Starts as arithmetic series, or None when runs of equal sizes are too short to pay.

    Sizes change even for equal values, where an offset or timestamp delta grows by a byte. If the
    bytes `may_be_cut`, fewer than `count` records may lie in them.
    """
    pieces: list[Ints] = []
    position, left = begin, count
    while left:
        if may_be_cut and pieces and position + MIN_RECORD_BYTES > end:
            break
        if position + 2 > len(data):
            return None
        byte, second = int(data[position]), int(data[position + 1])
        size = int(_ADVANCE[byte | second << 8])
        if size == 0:
            size = _long_advance(data, position)
            if size == 0:
                return None
        most = min(left, (end - position) // size)
        if most == 0 and may_be_cut and pieces:
            break
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
    """Bytes to the next record for prefixes beyond the table; 0 if no record can start here."""
    try:
        value, size = read_varint(data[position : position + 5].tobytes(), 0, 5)
    except IndexError:
        return 0
    body = value >> 1
    return 0 if value & 1 or body < _MIN_BODY_BYTES else body + size


def lockstep_counted(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """The starts in all chains, one chain after the other; wrong from a prefix that is not in the
    table on."""
    total = int(counts.sum())
    if len(begins) < _FEW_CHAINS:
        return _chase_each(data, begins, ends, counts)
    most = int(counts.max())
    if most * len(begins) > 2 * total:
        # Rows of zeros would take more room than the starts. Those above twice the mean are
        # fewer than half, so this ends.
        long = counts * len(begins) > 2 * total
        starts = np.empty(total, np.int64)
        rows = np.repeat(long, counts)
        starts[rows] = lockstep_counted(data, begins[long], ends[long], counts[long])
        short = ~long
        starts[~rows] = _walk(data, begins[short], counts[short])
        return starts
    return _walk(data, begins, counts)


def _walk(data: Bytes, begins: Ints, counts: Ints) -> Ints:
    most = int(counts.max())
    steps = np.empty((most, len(begins), 2), np.int64)
    _step(data, begins, steps)
    positions = steps[:, :, 0].T
    if int(counts.min()) == most:
        return positions.ravel()
    return positions[np.arange(most) < counts[:, None]]


def _step(data: Bytes, begins: Ints, steps: Ints) -> Ints:
    """Fills `steps` (steps, chains, 2) with the positions of the two bytes that begin each record,
    and returns where the next records begin. A chain stays where the table cannot tell."""
    steps[0, :, 0] = begins
    np.add(begins, 1, out=steps[0, :, 1])
    pair = np.empty((len(begins), 2), np.uint8)
    index = pair.view("<u2").ravel()
    advance = np.empty((len(begins), 2), np.int64)
    for row in range(len(steps)):
        # Positions may leave the data: `verify` checks the outcome.
        data.take(steps[row], out=pair, mode="clip")
        _ADVANCE_PAIRS.take(index, axis=0, out=advance, mode="clip")
        if row + 1 < len(steps):
            np.add(steps[row], advance, out=steps[row + 1])
    return steps[-1, :, 0] + advance[:, 0]


def lockstep(data: Bytes, begins: Ints, limits: Ints) -> Ints:
    """All record starts of many chains, ascending.

    A chain goes from its begin to its limit; it is left early where no record can start.
    """
    # No record starts in the last byte, so chains stop before it.
    limit = np.minimum(limits, max(len(data) - 2, 0))
    chain = np.flatnonzero(begins < limit)  # those that are not done
    position, limit = begins[chain], limit[chain]
    counts = np.zeros(len(begins), np.int64)  # found so far
    blocks: list[tuple[Ints, Ints, Ints, NDArray[np.bool_]]] = []
    while len(chain) >= _FEW_CHAINS:
        block = np.empty((_STEPS, len(chain), 2), np.int64)
        following = _step(data, position, block)
        steps = block[:, :, 0].T
        inside = steps < limit[:, None]
        # Where the table cannot tell it says 0: the chain waits for the end of the block.
        last = steps[:, -1]
        for index in np.flatnonzero((following == last) & (last < limit)).tolist():
            advance = _long_advance(data, int(last[index]))
            following[index] = last[index] + advance if advance else limit[index]
            inside[index, 1:] &= steps[index, 1:] != steps[index, :-1]
        blocks.append((chain, counts[chain], steps, inside))
        counts[chain] += inside.sum(axis=1)
        active = following < limit
        chain, position, limit = chain[active], following[active], limit[active]
    ends_of_chains = []
    for index, begin, end in zip(chain.tolist(), position.tolist(), limit.tolist(), strict=True):
        some = _chase_all(data, begin, end)
        ends_of_chains.append((index, int(counts[index]), some))
        counts[index] += len(some)
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    for chain, before, steps, inside in blocks:
        place = (firsts[chain] + before)[:, None] + np.arange(_STEPS)
        starts[place[inside]] = steps[inside]
    for index, before_it, some in ends_of_chains:
        first = int(firsts[index]) + before_it
        starts[first : first + len(some)] = some
    return starts


def _chase_all(data: Bytes, begin: int, end: int) -> Ints:
    """`chase` without a count."""
    pieces: list[Ints] = []
    while begin < end:
        block = min(1024, (end - begin) // MIN_RECORD_BYTES + 1)
        starts = chase(data, begin, end, block + 1)
        begin = int(starts[-1])  # the next block's first, or `end`
        pieces.append(starts[:-1][starts[:-1] < end])
    return np.concatenate(pieces)


def _seeds_of_all(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Positions in large batches that look like record starts, the batches' begins among them, and
    where a chain from each has to end: (begins of chains, limits).

    Looks for a zero byte (attributes) behind a length prefix that leads to another such place, four
    times in a row, and takes the last place: chains that begin wrong often meet the right one. A
    wrong seed costs time, never a wrong record: see `find`.
    """
    sizes = ends - begins
    means = sizes // counts
    pieces = counts // _RECORDS_PER_SEED
    pieces[(means > _MAX_SEEDED_RECORD_BYTES) | (pieces < _FEW_CHAINS)] = 1
    seeded = pieces > 1
    if not seeded.any():
        return begins, ends
    # One size of window for all: with the mean it is sure to take a small part of the bytes.
    window = 2 * int(sizes[seeded].sum() // counts[seeded].sum()) + 16
    more = pieces - 1  # anchors; `number` counts 1, 2, … in each batch
    number = np.arange(1, int(more.sum()) + 1) - np.repeat(np.cumsum(more) - more, more)
    anchors = np.repeat(begins, more) + np.repeat(sizes // pieces, more) * number
    batch_end = np.repeat(ends, more)
    inside = anchors + window < batch_end
    anchors, last = anchors[inside], batch_end[inside] - MIN_RECORD_BYTES
    if not len(anchors):
        return begins, ends
    windows = as_strided(data, (len(data) - window + 1, window), (1, 1))[anchors]
    # `nonzero` of two dimensions takes ten times as long.
    piece, column = np.divmod(np.flatnonzero(windows == 0), window)
    inside = column >= 2
    piece, column = piece[inside], column[inside]
    attributes = anchors[piece] + column
    # The prefix is two bytes long if the byte before the last one says that it goes on.
    position = attributes - 1 - (data[attributes - 2] >> 7)
    for _ in range(4):
        first_byte = data[position]
        advance = _ADVANCE.take(first_byte | data[position + 1].astype(np.int64) << 8)
        attributes = position + 1 + (first_byte >> 7)
        position = position + advance
        good = (advance != 0) & (data[attributes] == 0) & (position <= last[piece])
        piece, position = piece[good], position[good]
    _, index = np.unique(piece, return_index=True)
    chains = np.unique(np.concatenate([begins, position[index]]))
    limits = np.minimum(
        np.append(chains[1:], ends[-1]), ends[np.searchsorted(begins, chains, "right") - 1]
    )
    return chains, limits
