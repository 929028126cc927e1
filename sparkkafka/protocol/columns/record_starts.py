"""Finds where each record of a fetch starts, the one step of decoding that is sequential by nature.

A record starts where the one before it ends, so the plain way is to follow the length prefixes one
by one (`follow_prefixes`). Faster ways, which depend on the shape of the batches:

- `equal_runs`: records of one size in a large batch. If the same length prefix stands at every
  multiple of the first record's size, the starts are an arithmetic series.
- `lockstep`: follows the prefixes of many chains of records together, one numpy step for the next
  record of all chains. A chain is a batch (of a producer with 16 KB batches: ~120 records), or a
  part of a large batch, where `_likely_starts` guesses positions that look like record starts.

Arrays of the batches have one entry for each batch: `begins` and `ends` are positions in `data` (of
its first byte, after its last), `counts` its records. `starts` have one entry for each record of
all batches, in order; the records of batch i are those from `firsts[i]` on.

Nothing here raises, and no guess is trusted. `verify` says which batches have a gapless series of
records from their first to their last byte with the right count. That proves the starts: the first
one is known, and each record's own length leads to the next. If a batch fails, `find_records` first
tries the plain loop on it, and only then reports it as damaged.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from sparkkafka.protocol.records.batches import MIN_RECORD_BYTES
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, read
from sparkkafka.protocol.wire.varints import VARINT_BITS, BadVarintError, read_varint

_MIN_BODY_BYTES = MIN_RECORD_BYTES - 1

_MIN_CHAINS = 8  # below, a numpy step costs more than the plain loop's steps (measured)
_RECORDS_PER_CHAIN = 64

_BLOCK_STEPS = 16  # steps of all chains, before the finished chains are dropped


def _advance_table() -> Ints:
    """Make a table of the bytes to the next record, by the first two bytes (little endian) of a
    length prefix; 0 for longer prefixes, and where no record can be."""
    first = np.arange(65536, dtype=np.int64) & 0xFF
    second = np.arange(65536, dtype=np.int64) >> 8
    has_one_byte = first < 0x80
    has_two_bytes = ~has_one_byte & (second < 0x80)
    raw = np.where(has_one_byte, first, (first & 0x7F) | second << 7)
    body = raw >> 1
    known = (has_one_byte | has_two_bytes) & (raw & 1 == 0) & (body >= _MIN_BODY_BYTES)
    return np.where(known, body + np.where(has_one_byte, 1, 2), 0)


_ADVANCE = _advance_table()
_ADVANCE_PAIRS = np.repeat(_ADVANCE, 2).reshape(-1, 2)  # the same twice in a row: `_follow_steps`


class RecordBounds(NamedTuple):
    """Positions of each record in `data`, for all records in order."""

    starts: Ints
    """The first byte of the length prefix."""
    bodies: Ints
    """The attributes byte, which follows the prefix."""
    ends: Ints
    """The position after the last byte."""
    proven: Flags
    """For each batch, whether the positions of its records are proven."""


def find_records(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> RecordBounds:
    """Find all records of all batches.

    `begins` and `ends` delimit each batch's uncompressed records in `data`, ascending and not
    overlapping; `counts` (all positive) are the record counts of the batch headers; a batch has at
    least MIN_RECORD_BYTES for each. The positions in a batch that is not proven mean nothing.
    """
    bounds = verify(data, _guess_starts(data, begins, ends, counts), begins, ends, counts)
    if not bounds.proven.all():
        # A wrong guess looks like damage: these batches are read record by record.
        bad = ~bounds.proven
        rows = np.repeat(bad, counts)  # the records of these batches
        batches = (begins[bad], ends[bad], counts[bad])
        followed = verify(data, _follow_each(data, *batches), *batches)
        bounds.starts[rows] = followed.starts
        bounds.bodies[rows] = followed.bodies
        bounds.ends[rows] = followed.ends
        bounds.proven[bad] = followed.proven
    return bounds


def find_complete(data: Bytes, max_count: int) -> RecordBounds:
    """Find the complete records at the beginning of `data`, at most `max_count`: the uncompressed
    records of one batch, from the first byte of a record on, of which the end may be missing.

    What follows the complete records may be cut or damaged. Empty if not even the first is
    complete.
    """
    size = len(data)
    if not max_count or size < MIN_RECORD_BYTES:
        nothing = np.empty(0, np.int64)
        return RecordBounds(nothing, nothing, nothing, proven=np.ones(1, np.bool_))
    begins, ends = np.zeros(1, np.int64), np.array([size])
    # First as records of equal sizes.
    equal = equal_runs(data, 0, size, max_count, may_be_cut=True)
    if equal is not None:
        bounds = _complete_records(data, equal)
        if len(bounds.starts) == len(equal):
            return bounds
    # Then in chains, or else with the plain loop. The first records show about how many there are.
    sample = follow_prefixes(data, 0, size, min(max_count, _RECORDS_PER_CHAIN) + 1)
    count = min(max_count, max(1, len(sample) * size // max(int(sample[-1]), 1)))
    chains, limits = _likely_starts(data, begins, ends, np.array([count]))
    attempts: list[Callable[[], Ints]] = [lambda: _follow_to_end(data, 0, size)]
    if len(chains) >= _MIN_CHAINS:
        attempts.insert(0, lambda: lockstep(data, chains, limits))
    for attempt in attempts:
        starts = attempt()[:max_count]
        bounds = _complete_records(data, starts)
        # The rest of a right guess is at most one record, which is cut.
        if len(bounds.starts) >= len(starts) - 1:
            break
    return bounds


def _complete_records(data: Bytes, starts: Ints) -> RecordBounds:
    """Return the bounds of the records, from the first on, that follow each other without a gap and
    end inside `data`."""
    lengths, bodies, invalid = _read_lengths(data, starts)
    ends = bodies + lengths
    proven = (lengths >= _MIN_BODY_BYTES) & (ends <= len(data))
    proven[0] &= starts[0] == 0
    proven[1:] &= starts[1:] == ends[:-1]
    if invalid is not None:
        proven &= ~invalid
    count = len(proven) if proven.all() else int(proven.argmin())
    return RecordBounds(starts[:count], bodies[:count], ends[:count], proven=np.ones(1, np.bool_))


def _guess_starts(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """Return the start of each record in all batches, batch by batch. Starts are wrong if the bytes
    are damaged or misleading: `verify` shows that.

    A large batch is read as runs of equal sizes, else as chains from guessed starts, else by the
    plain loop. (A chain is followed from length prefix to length prefix.) A small batch is one
    chain.
    """
    is_large = counts >= 256  # records
    if not is_large.any():
        return lockstep_counted(data, begins, ends, counts)
    starts = np.empty(int(counts.sum()), np.int64)
    firsts = np.cumsum(counts) - counts
    found = {  # by the index of the batch
        index: equal_runs(data, int(begins[index]), int(ends[index]), int(counts[index]))
        for index in np.flatnonzero(is_large).tolist()
    }
    pending = [index for index, found_starts in found.items() if found_starts is None]
    # The chains of all pending batches are followed together. If they are too few, the plain loop
    # below is faster.
    chains, limits = _likely_starts(data, begins[pending], ends[pending], counts[pending])
    if len(chains) >= _MIN_CHAINS:
        positions = lockstep(data, chains, limits)
        lows, highs = np.searchsorted(positions, (begins[pending], ends[pending]))
        for index, low, high in zip(pending, lows, highs, strict=True):
            found[index] = positions[low:high]
    for index, found_starts in found.items():
        first, count = int(firsts[index]), int(counts[index])
        if found_starts is None or len(found_starts) != count:
            found_starts = follow_prefixes(data, int(begins[index]), int(ends[index]), count)
        starts[first : first + count] = found_starts
    is_small = ~is_large
    if is_small.any():
        starts[np.repeat(is_small, counts)] = lockstep_counted(
            data, begins[is_small], ends[is_small], counts[is_small]
        )
    return starts


def _follow_each(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """Return the starts of all records in all batches, found by following length prefixes one by
    one. Batch i lies from begins[i] to ends[i] and has counts[i] records."""
    batches = zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True)
    return np.concatenate(
        [follow_prefixes(data, begin, end, count) for begin, end, count in batches]
    )


def verify(data: Bytes, starts: Ints, begins: Ints, ends: Ints, counts: Ints) -> RecordBounds:
    """Return the bounds of the records at `starts`, and for each batch whether they are proven: its
    `counts` records follow each other without a gap from its begin to its end."""
    firsts = np.cumsum(counts) - counts
    record_ends = np.empty_like(starts)  # the next one's start, or the batch's end
    record_ends[:-1] = starts[1:]
    record_ends[firsts + counts - 1] = ends
    lengths, bodies, invalid = _read_lengths(data, starts)
    bad = bodies + lengths != record_ends
    if invalid is not None:
        bad |= invalid
    bad[firsts] |= starts[firsts] != begins
    if bad.any():
        return RecordBounds(starts, bodies, record_ends, ~np.logical_or.reduceat(bad, firsts))
    return RecordBounds(starts, bodies, record_ends, proven=np.ones(len(begins), np.bool_))


def _read_lengths(data: Bytes, starts: Ints) -> tuple[Ints, Ints, Flags | None]:
    """Read the length prefix of each record: (bytes of its body, position of its body, whether the
    prefix is no varint of 32 bits; None if all are).

    An invalid prefix must not make other batches look damaged.
    """
    try:
        return (*read(data, starts), None)
    except BadVarintError:
        # A varint with such a fifth byte exceeds 32 bits.
        invalid: Flags = data.take(starts + 4, mode="clip") >= 1 << (VARINT_BITS - 28)
        for index in range(4):
            invalid &= data.take(starts + index, mode="clip") >= 0x80
    lengths, bodies = np.zeros_like(starts), starts.copy()
    fine = ~invalid
    if fine.any():
        lengths[fine], bodies[fine] = read(data, starts[fine])
    return lengths, bodies, invalid


def follow_prefixes(data: Bytes, begin: int, end: int, count: int) -> Ints:
    """Find `count` starts from `begin` on by following the length prefixes one by one. After a
    damaged prefix all further starts are `end`."""
    # Indexing bytes is twice as fast as indexing a view, but takes a copy.
    # If records are larger, copying the bytes costs more than it saves.
    is_sparse = count * 2048 < end - begin
    raw: memoryview | bytes = data[begin:end].data if is_sparse else data[begin:end].tobytes()
    offsets = array("q", bytes(8 * count))
    position = 0
    index = 0
    try:
        for index in range(count):
            offsets[index] = position
            # Prefixes of one and two bytes, which nearly all are, get code of their own. They are
            # zigzag varints: half of their number is the bytes of the record after the prefix.
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
    """Return the starts of the `count` records in data[begin:end] as arithmetic series, one for
    each run of records of one size. None if the runs are too short for this to be the fastest way,
    or if no record can start where the last one ends.

    Sizes change even for equal values, where an offset or timestamp delta grows by a byte. If the
    bytes `may_be_cut`, fewer than `count` records may lie in them.
    """
    runs: list[Ints] = []
    position, remaining = begin, count
    # Each step reads the size of the next record, and looks how many more have the same prefix.
    while remaining:
        if may_be_cut and runs and position + MIN_RECORD_BYTES > end:
            break
        if position + 2 > len(data):
            return None
        byte, second = int(data[position]), int(data[position + 1])
        size = int(_ADVANCE[byte | second << 8])  # the bytes from this record to the next
        if size == 0:  # it takes more than the two bytes of the table
            size = _long_advance(data, position)
            if size == 0:
                return None
        max_records = min(remaining, (end - position) // size)
        if max_records == 0 and may_be_cut and runs:
            break
        if max_records == 0:
            return None
        records = 0
        window = 64  # grows, so that a short run does not compare the whole batch
        while records < max_records:
            compared = min(window, max_records - records)
            same = _count_same_prefix(data, position + records * size, size, compared, position)
            records += same
            if same < compared:
                break
            window *= 8
        runs.append(np.arange(position, position + records * size, size, dtype=np.int64))
        position += records * size
        remaining -= records
        # If runs have fewer records on average, the other ways are faster.
        if len(runs) >= 4 and count - remaining < 24 * len(runs):
            return None
    return np.concatenate(runs)


def _count_same_prefix(data: Bytes, at: int, stride: int, count: int, first: int) -> int:
    """Count the positions `at`, `at + stride`, … (at most `count`) before the first one whose
    length prefix differs from that of the record at `first`."""
    prefix = data[first : first + 5].tobytes()  # a prefix has at most five bytes
    for index, byte in enumerate(prefix):
        column = data[at + index :: stride][:count]
        equal = column == byte
        if not equal.all():
            count = int(equal.argmin())
        if byte < 0x80 or count == 0:  # below 0x80: the last byte of the varint
            break
    return count


def _long_advance(data: Bytes, position: int) -> int:
    """Return the bytes to the next record for a length prefix of any size; 0 if no record can start
    here."""
    try:
        value, size = read_varint(data[position : position + 5].tobytes(), 0, 5)
    except IndexError:
        return 0
    body = value >> 1
    return 0 if value & 1 or body < _MIN_BODY_BYTES else body + size


def lockstep_counted(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """Return the starts of the records in each batch, batch by batch, by following the length
    prefixes of all batches together. After a prefix that is not in `_ADVANCE` (longer than two
    bytes, or invalid) the starts of the batch are wrong."""
    total = int(counts.sum())
    if len(begins) < _MIN_CHAINS:
        return _follow_each(data, begins, ends, counts)
    max_count = int(counts.max())
    if max_count * len(begins) > 2 * total:
        # Unused entries would take more memory than the starts. Chains above twice the mean are
        # fewer than half, so the recursion ends.
        long = counts * len(begins) > 2 * total
        starts = np.empty(total, np.int64)
        rows = np.repeat(long, counts)
        starts[rows] = lockstep_counted(data, begins[long], ends[long], counts[long])
        short = ~long
        starts[~rows] = _follow_counted(data, begins[short], counts[short])
        return starts
    return _follow_counted(data, begins, counts)


def _follow_counted(data: Bytes, begins: Ints, counts: Ints) -> Ints:
    """Return the starts of the records in each batch, batch by batch, in as many numpy steps as the
    largest batch has records. A chain is the records of one batch."""
    max_count = int(counts.max())
    steps = np.empty((max_count, len(begins), 2), np.int64)
    _follow_steps(data, begins, steps)
    positions = steps[:, :, 0].T  # [chain, step]; a chain has `counts` steps
    if int(counts.min()) == max_count:
        return positions.ravel()
    return positions[np.arange(max_count) < counts[:, None]]


def _follow_steps(data: Bytes, begins: Ints, steps: Ints) -> Ints:
    """Follow the length prefixes from each of `begins`, the start of a chain of records: fill
    `steps` with positions, and return where the next record of each chain begins. A chain stays at
    a prefix that is not in `_ADVANCE`.

    steps[i, j] are the positions of the first two bytes of the i-th record of chain j: both, so
    that one `take` reads the two bytes, which are together an index of `_ADVANCE_PAIRS`.
    """
    steps[0, :, 0] = begins
    np.add(begins, 1, out=steps[0, :, 1])
    pair = np.empty((len(begins), 2), np.uint8)
    index = pair.view("<u2").ravel()  # the same memory, as one number for each chain
    advance = np.empty((len(begins), 2), np.int64)
    for row in range(len(steps)):
        # Positions may leave the data: `verify` checks the outcome.
        data.take(steps[row], out=pair, mode="clip")
        _ADVANCE_PAIRS.take(index, axis=0, out=advance, mode="clip")
        if row + 1 < len(steps):
            np.add(steps[row], advance, out=steps[row + 1])
    return steps[-1, :, 0] + advance[:, 0]


def lockstep(data: Bytes, begins: Ints, limits: Ints) -> Ints:
    """Return all record starts of many chains, ascending. A chain begins at a record start in
    `begins` and is followed from length prefix to length prefix; how many records it has is not
    known.

    It ends at its limit (exclusive), or earlier where no record can start. All chains
    are followed together in blocks of _BLOCK_STEPS records, and the last few one by one. Then the
    starts, which lie in blocks, are written to the result chain by chain.
    """
    # No record starts in the last byte, so chains stop before it.
    limit = np.minimum(limits, max(len(data) - 2, 0))
    # `chain` has the numbers of the chains that are not done; `position` and `limit` are theirs.
    chain = np.flatnonzero(begins < limit)
    position, limit = begins[chain], limit[chain]
    counts = np.zeros(len(begins), np.int64)  # found so far
    blocks: list[tuple[Ints, Ints, Ints, Flags]] = []
    while len(chain) >= _MIN_CHAINS:
        block = np.empty((_BLOCK_STEPS, len(chain), 2), np.int64)
        following = _follow_steps(data, position, block)
        steps = block[:, :, 0].T
        inside = steps < limit[:, None]
        # A prefix that is not in the table advances by 0, so the chain repeats its position until
        # the end of the block. Here it continues after that record, whose repeats are not starts.
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
        found_starts = _follow_to_end(data, begin, end)
        ends_of_chains.append((index, int(counts[index]), found_starts))
        counts[index] += len(found_starts)
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    # `before` is the number of starts that the chain has before the block.
    for chain, before, steps, inside in blocks:
        indexes = (firsts[chain] + before)[:, None] + np.arange(_BLOCK_STEPS)
        starts[indexes[inside]] = steps[inside]
    for index, before_end, found_starts in ends_of_chains:
        first = int(firsts[index]) + before_end
        starts[first : first + len(found_starts)] = found_starts
    return starts


def _follow_to_end(data: Bytes, begin: int, end: int) -> Ints:
    """Return all record starts from `begin`, which is one, up to `end` by following the length
    prefixes one by one. They end early at a damaged prefix."""
    blocks: list[Ints] = []
    while begin < end:
        block_records = min(1024, (end - begin) // MIN_RECORD_BYTES + 1)
        starts = follow_prefixes(data, begin, end, block_records + 1)
        begin = int(starts[-1])  # the next block's first, or `end`
        blocks.append(starts[:-1][starts[:-1] < end])
    return np.concatenate(blocks)


def _likely_starts(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Guess positions of record starts in large batches, to begin chains there: (begins of chains,
    with those of all batches, and the limits where the chains end).

    Evenly spaced positions in a batch, the anchors, say where further chains should begin. After
    each anchor a window of bytes is searched for the first likely start: a length prefix before a
    zero byte (the attributes) that leads to another such position, four times in a row. The last of
    the four is taken: chains that begin wrong often meet the right one. A wrong guess costs time,
    never a wrong record: see `find_records`.
    """
    sizes = ends - begins
    means = sizes // counts
    chain_counts = counts // _RECORDS_PER_CHAIN
    # Batches have so few larger records that the plain loop is fast.
    chain_counts[(means > 4096) | (chain_counts < _MIN_CHAINS)] = 1
    is_cut = chain_counts > 1
    if not is_cut.any():
        return begins, ends
    # Two records of mean size mostly hold a record start, and are a small part of the bytes. One
    # size for all batches, as one view of all windows needs.
    window = 2 * int(sizes[is_cut].sum() // counts[is_cut].sum()) + 16
    anchor_counts = chain_counts - 1
    # 1, 2, … in each batch
    number = np.arange(1, int(anchor_counts.sum()) + 1)
    number -= np.repeat(np.cumsum(anchor_counts) - anchor_counts, anchor_counts)
    spacing = sizes // chain_counts
    anchors = np.repeat(begins, anchor_counts) + np.repeat(spacing, anchor_counts) * number
    batch_end = np.repeat(ends, anchor_counts)
    inside = anchors + window < batch_end
    anchors, last = anchors[inside], batch_end[inside] - MIN_RECORD_BYTES
    if not len(anchors):
        return begins, ends
    windows = as_strided(data, (len(data) - window + 1, window), (1, 1))[anchors]
    # Each zero byte: the index of its anchor, and its column in the window. (`nonzero` of two
    # dimensions takes ten times as long.)
    anchor, column = np.divmod(np.flatnonzero(windows == 0), window)
    inside = column >= 2
    anchor, column = anchor[inside], column[inside]
    attributes = anchors[anchor] + column
    # The prefix is two bytes long if the byte before the last one has its high bit set.
    position = attributes - 1 - (data[attributes - 2] >> 7)
    for _ in range(4):
        first_byte = data[position]
        advance = _ADVANCE.take(first_byte | data[position + 1].astype(np.int64) << 8)
        attributes = position + 1 + (first_byte >> 7)
        position = position + advance
        good = (advance != 0) & (data[attributes] == 0) & (position <= last[anchor])
        anchor, position = anchor[good], position[good]
    _, index = np.unique(anchor, return_index=True)  # the first likely start of each anchor
    chains = np.unique(np.concatenate([begins, position[index]]))
    limits = np.minimum(
        np.append(chains[1:], ends[-1]), ends[np.searchsorted(begins, chains, "right") - 1]
    )
    return chains, limits
