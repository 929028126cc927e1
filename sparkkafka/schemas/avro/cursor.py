"""Where the rows of a chunk are being read, and which of them are bad.

A cursor has one position for each entry: of a row, or inside of arrays of an item of a row. Each
read takes one value of every entry and moves all of them. An entry that is not to be read (its row
is null or bad, or it is in another branch of a union) is parked: its position is in zeros behind
the data, where every type reads as its zero, and its end is beyond all. So all columns keep one
value for each entry, and none needs to be filtered.

Entries that are read lie between their position and their end, always: what a read would move
beyond it makes the row bad, and parks it. Positions never leave the data but for the zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.varint_columns import (
    Bytes,
    Ints,
    read_unsigned,
    unzigzag,
)
from sparkkafka.protocol.wire.varints import BadVarintError, read_zigzag
from sparkkafka.schemas.avro.schema import place
from sparkkafka.schemas.bounds import BYTES_PER_BYTE, ROW_BYTES, cut
from sparkkafka.schemas.values import MemoryBudget

Bools = NDArray[np.bool_]

PARKED: Final = 1 << 62
"""The end of an entry that is not read."""

PADDING: Final = 32
"""Zeros behind the data."""

FREE_ITEMS: Final = 64
"""So many items that take no bytes (nulls) an array may have, and one more for each byte of the
payload; else a payload of a few bytes could ask for any amount of memory."""

CUT_OFF: Final = "the payload ends in the middle of it"
LONG_VARINT: Final = "a number of more than 64 bits"
WIDE_INT: Final = "a number of more than 32 bits"


class BrokenError(Exception):
    """A single value that is not what its type says; for reads of one value alone."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class Chunk:
    """The payloads that are decoded together, and what is wrong with them.

    `data`: the payloads' bytes and PADDING zeros. `sizes`: the bytes of each. `budget`: the call's.
    """

    def __init__(self, data: Bytes, sizes: Ints, budget: MemoryBudget) -> None:
        self.data = data
        self.budget = budget
        self.buffer = pa.py_buffer(data)
        self.park = len(data) - PADDING
        self.dead = np.zeros(len(sizes), np.bool_)
        self.reasons: dict[int, str] = {}
        self.failures = 0
        self._free = sizes + FREE_ITEMS
        self._row_room = sizes * BYTES_PER_BYTE + ROW_BYTES
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The data, for reads of one value alone: indexing bytes is faster."""
        if self._raw is None:
            self._raw = self.data.tobytes()
        return self._raw

    def fail(self, rows: Ints, path: str, reason: str | Callable[[int], str]) -> None:
        """Makes rows bad; `reason` may be a function of the position in `rows`."""
        self.failures += 1
        fresh = np.flatnonzero(~self.dead[rows])
        self.dead[rows] = True
        where = place(path)
        same = cut(f"{where}: {reason}") if isinstance(reason, str) else ""
        # Of one row many items may be bad at once; it has one reason.
        bad, first = np.unique(rows[fresh], return_index=True)
        for index, row in zip(fresh[first].tolist(), bad.tolist(), strict=True):
            words = reason if isinstance(reason, str) else reason(index)
            self.reasons[row] = same or cut(f"{where}: {words}")

    def take_room(self, rows: Ints, sizes: Ints) -> Bools:
        """Takes bytes of columns off what the items of each row may have; True where it is used
        up."""
        np.subtract.at(self._row_room, rows, sizes)
        refused: Bools = (self._row_room[rows] < 0) & (sizes > 0)
        return refused

    def free_items(self, rows: Ints, counts: Ints) -> Bools:
        """Takes items without bytes off the rows' allowance; True where it was too small."""
        most = len(self.data) + FREE_ITEMS
        asked = np.minimum(counts, most)  # no overflow
        np.subtract.at(self._free, rows, asked)
        refused: Bools = (self._free[rows] < 0) & (counts > 0)
        return refused


class Cursor:
    """`rows`: the chunk's row of each entry; None if they are the rows themselves."""

    __slots__ = ("at", "chunk", "end", "rows")

    def __init__(self, chunk: Chunk, at: Ints, end: Ints, rows: Ints | None = None) -> None:
        self.chunk = chunk
        self.at = at
        self.end = end
        self.rows = rows

    def __len__(self) -> int:
        return len(self.at)

    def rows_of(self, entries: Ints) -> Ints:
        return entries if self.rows is None else self.rows[entries]

    # --- other cursors on the same chunk

    def only(self, mask: Bools) -> Cursor:
        """All entries, of which those outside the mask are parked."""
        at = np.where(mask, self.at, self.chunk.park)
        return Cursor(self.chunk, at, np.where(mask, self.end, PARKED), self.rows)

    def take_over(self, mask: Bools, other: Cursor, failures: int) -> None:
        """Goes on where another cursor of all entries has ended, for those of the mask. Since
        `chunk.failures` was `failures`, some may have become bad."""
        self.at = np.where(mask, other.at, self.at)
        self.settle(failures)

    def part(self, entries: Ints) -> Cursor:
        """These entries alone."""
        return Cursor(self.chunk, self.at[entries], self.end[entries], self.rows_of(entries))

    def put_back(self, entries: Ints, other: Cursor) -> None:
        """Goes on where a `part` of it has ended."""
        self.at, self.end = self.at.copy(), self.end.copy()  # perhaps shared
        self.at[entries] = other.at
        self.end[entries] = other.end

    # --- bad rows

    def fail(self, mask: Bools, path: str, reason: str | Callable[[int], str]) -> None:
        """Makes the rows of these entries bad, unless they are parked, and parks the entries.
        `reason` may be a function of the entry."""
        entries = np.flatnonzero(mask & (self.end != PARKED))
        if not len(entries):
            return
        words: Any = reason
        if not isinstance(reason, str):
            words = lambda index: reason(int(entries[index]))  # noqa: E731
        self.chunk.fail(self.rows_of(entries), path, words)
        self.park(entries)

    def park(self, entries: Ints) -> None:
        self.at, self.end = self.at.copy(), self.end.copy()  # perhaps shared
        self.at[entries] = self.chunk.park
        self.end[entries] = PARKED

    def settle(self, failures: int) -> None:
        """Parks what has become bad through another cursor since `chunk.failures` was so many."""
        if self.chunk.failures == failures:
            return
        dead = self.chunk.dead if self.rows is None else self.chunk.dead[self.rows]
        entries = np.flatnonzero(dead & (self.end != PARKED))
        if len(entries):
            self.park(entries)

    def live(self) -> Bools:
        """False for parked entries."""
        live: Bools = self.end != PARKED
        return live

    # --- moves

    def move(self, after: Ints, path: str, reason: str = CUT_OFF) -> Bools | None:
        """Moves all entries; the mask of those that would pass their end, if any."""
        self.at = after
        over: Bools = after > self.end
        if not over.any():
            return None
        self.fail(over, path, reason)
        return over

    def skip(self, size: int, path: str) -> None:
        """Over `size` bytes of each entry."""
        self.move(self.at + size, path)

    # --- reads

    def bytes_at(self, at: Ints) -> Bytes:
        return self.chunk.data.take(at, mode="clip")

    def longs(self, path: str, bits: int = 64) -> Ints:
        """Zigzag varints. 0 for what is parked or becomes bad."""
        raw, after, wrong = read_unsigned(self.chunk.data, self.at, bits)
        values = unzigzag(raw)
        bad = self._move_over(after, wrong, path, LONG_VARINT if bits == 64 else WIDE_INT)
        if bad is not None:
            values[bad] = 0
        return values

    def skip_longs(self, path: str) -> None:
        """Over varints."""
        _, after, wrong = read_unsigned(self.chunk.data, self.at)
        self._move_over(after, wrong, path, LONG_VARINT)

    def _move_over(self, after: Ints, wrong: Bools | None, path: str, reason: str) -> Bools | None:
        """Moves behind varints, of which some may be wrong; which have become bad."""
        if wrong is not None:
            # Where it is cut off, this is what is wrong: what follows is another row's.
            wrong &= after <= self.end
            self.fail(wrong, path, reason)
            after = np.where(wrong, self.at, after)
        over = self.move(after, path)
        return wrong if over is None else over if wrong is None else wrong | over

    def blobs(self, path: str) -> tuple[Ints, Ints]:
        """Starts and lengths of strings or bytes."""
        lengths = self.longs(path)
        at = self.at
        if len(lengths) and int(lengths.min()) < 0:
            bad = lengths < 0
            self.fail(bad, path, lambda entry: f"a length of {lengths[entry]:,} bytes")
            lengths = np.where(bad, 0, lengths)
            at = self.at
        over = lengths > self.end - at
        if over.any():
            left = self.end - at
            self.fail(
                over,
                path,
                lambda entry: f"{lengths[entry]:,} bytes, but the payload has {left[entry]:,} more",
            )
            lengths = np.where(over, 0, lengths)
            at = self.at
        self.at = at + lengths
        return at, lengths

    def gather(self, starts: Ints, lengths: Ints) -> pa.Array:
        """Binary array of pieces of the data.

        Arrow copies: starts and ends are the offsets of an array, of which every other entry is
        taken. The first offset and the last one bound them, since Arrow guesses sizes by them.
        """
        count = len(starts)
        if not count:
            return pa.nulls(0, pa.binary())
        offsets = np.empty(2 * count + 2, np.int32)
        offsets[0] = 0
        offsets[1:-1:2] = starts
        offsets[2:-1:2] = starts + lengths
        offsets[-1] = len(self.chunk.data)
        size = 2 * count + 1
        all_of_them = pa.Array.from_buffers(
            pa.binary(), size, [None, pa.py_buffer(offsets), self.chunk.buffer]
        )
        return all_of_them.take(_odd(count))


_ODD: list[pa.Array] = [from_numpy(np.arange(1, 2 << 14, 2, dtype=np.int32))]  # grows


def _odd(count: int) -> pa.Array:
    while len(_ODD[0]) < count:
        _ODD[0] = from_numpy(np.arange(1, 4 * len(_ODD[0]), 2, dtype=np.int32))
    return _ODD[0].slice(0, count)


def step_long(data: bytes, at: int, end: int, path: str) -> tuple[int, int]:
    """One varint: (value, position after it). Raises BrokenError. Has the rules of `longs`."""
    try:
        return read_zigzag(data, at, end)
    except IndexError:
        raise BrokenError(path, CUT_OFF) from None
    except BadVarintError:
        raise BrokenError(path, LONG_VARINT) from None
