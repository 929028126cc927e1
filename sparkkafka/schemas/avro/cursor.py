"""The positions at which the rows of a chunk of payloads are being decoded, and which rows are bad.

A cursor has one position for each entry. An entry is a row, or an item of a row's array or map; it
is named by its index in the cursor. Each read takes one value of every entry and moves all
positions. An entry that must not be read (its row is null or bad, or its union has another branch)
is inactive: its position is in the zeros after the data, where each type reads as its zero, and its
end is beyond all positions. So every column has one value for each entry, and no column needs to be
filtered.

The position of an active entry is never beyond its end: a read that would move it there makes the
row bad and the entry inactive. Positions are always in the data or in the zeros after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.varint_columns import (
    Bytes,
    Flags,
    Ints,
    has_any,
    operand,
    read_unsigned,
    unzigzag,
    words_at,
)
from sparkkafka.protocol.wire.varints import BadVarintError, read_zigzag
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS, OTHER_REASON, cut, label
from sparkkafka.schemas.values import COLUMN_BYTES_PER_BYTE, ROW_BYTES, MemoryBudget

INACTIVE: Final = 1 << 62
"""The end of an inactive entry."""

_PADDING: Final = 32
"""Zeros behind the data."""

_FREE_ITEMS: Final = 64
"""How many free items (items that have no bytes: nulls) a payload may have, besides one for each of
its bytes. Without a limit, a payload of a few bytes could allocate any amount of memory."""

CUT_OFF: Final = "the payload ends in the middle of it"
NOT_UTF8: Final = "the text is not UTF-8"
LONG_VARINT: Final = "a number of more than 64 bits"

Reason = str | Callable[[int], str]
"""Why entries are bad: a text, or a function of the entry's index that returns it."""


class BadValueError(Exception):
    """A single value that does not match its type. Raised where values are read one by one."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class Chunk:
    """Payloads that are decoded together, and which of their rows are bad.

    `data`: the bytes of the payloads, then zeros if `zeros_at` was used. `sizes`: the bytes of each
    payload. `budget`: the memory budget of the decode call. `failures` counts the calls of `fail`:
    code that reads by several cursors compares it, to find out whether rows have become bad
    meanwhile.
    """

    def __init__(self, data: Bytes, sizes: Ints, budget: MemoryBudget) -> None:
        self.data = data if len(data) else np.zeros(_PADDING, np.uint8)
        self.budget = budget
        self.is_bad = np.zeros(len(sizes), np.bool_)
        self.failures = 0
        # By row: how many items without bytes, and bytes of decoded values, it may still have.
        self._free_items = sizes + _FREE_ITEMS
        self._row_budgets = sizes * COLUMN_BYTES_PER_BYTE + ROW_BYTES

    @cached_property
    def zeros_at(self) -> int:
        """The position of zeros after the data, which the first use appends."""
        begin = len(self.data)
        padded = np.empty(begin + _PADDING, np.uint8)
        padded[:begin] = self.data
        padded[begin:] = 0
        self.data = padded
        return begin

    @cached_property
    def reasons(self) -> NDArray[Any]:
        """Why each row is bad; None for good ones."""
        return np.full(len(self.is_bad), None)

    @cached_property
    def raw(self) -> bytes:
        """The data for reads of single values: indexing bytes is faster than indexing an array."""
        return self.data.tobytes()

    def fail(self, rows: Ints, path: str, reason: Reason, *, is_first: bool = False) -> None:
        """Mark rows as bad. `reason` may be a function of the index in `rows`: it is called for the
        chunk's first MAX_OWN_REASONS bad rows, and the others get OTHER_REASON. `is_first`: it (a
        text) replaces the reasons of rows that are bad already."""
        self.failures += 1
        own_reasons_left = MAX_OWN_REASONS - np.count_nonzero(self.is_bad)
        bad = rows
        if not is_first:
            new = np.flatnonzero(~self.is_bad[rows])
            bad = rows[new]
        self.is_bad[rows] = True
        if not isinstance(reason, str):
            if own_reasons_left > 0:
                # Many items of one row may be bad; the row keeps the first one's reason.
                bad, first = np.unique(bad, return_index=True)
                indexes = new[first[:own_reasons_left]].tolist()
                for index, row in zip(indexes, bad[:own_reasons_left].tolist(), strict=True):
                    self.reasons[row] = cut(f"{label(path)}: {reason(index)}")
                bad = bad[own_reasons_left:]
            reason = OTHER_REASON
        # One text for all rows: `limit_reasons` counts it once.
        self.reasons[bad] = cut(f"{label(path)}: {reason}")

    def take_row_budgets(self, rows: Ints, sizes: Ints) -> Flags:
        """Take `sizes` bytes of columns from the budget of each row; True where it is exceeded."""
        np.subtract.at(self._row_budgets, rows, sizes)
        exceeded: Flags = (self._row_budgets[rows] < 0) & (sizes > 0)
        return exceeded

    def take_free_items(self, rows: Ints, counts: Ints) -> Flags:
        """Take items that have no bytes from the allowance of each row; True where it is
        exceeded."""
        # So that nothing overflows: one item more than any row may have.
        counts = np.minimum(counts, len(self.data) + _FREE_ITEMS + 1)
        np.subtract.at(self._free_items, rows, counts)
        exceeded: Flags = (self._free_items[rows] < 0) & (counts > 0)
        return exceeded


class Cursor:
    """The position of each entry (`at`), and where its payload ends (`end`). `rows`: the chunk's
    row of each entry; None if the entries are the rows."""

    __slots__ = ("at", "chunk", "end", "rows")

    def __init__(self, chunk: Chunk, at: Ints, end: Ints, rows: Ints | None = None) -> None:
        self.chunk = chunk
        self.at = at
        self.end = end
        self.rows = rows

    def __len__(self) -> int:
        return len(self.at)

    def rows_of(self, entries: Ints) -> Ints:
        """Return the chunk's rows of these entries."""
        return entries if self.rows is None else self.rows[entries]

    def is_active(self) -> Flags:
        """Return which entries are active."""
        active: Flags = self.end != INACTIVE
        return active

    # --- other cursors on the same chunk

    def where(self, mask: Flags) -> Cursor:
        """Return a cursor of all entries, of which those outside of the mask are inactive."""
        at = np.where(mask, self.at, self.chunk.zeros_at)
        return Cursor(self.chunk, at, np.where(mask, self.end, INACTIVE), self.rows)

    def advance(self, mask: Flags, other: Cursor, failures: int) -> None:
        """Move the entries of the mask to the positions of `other`, a cursor of all entries.
        `failures`: the value of `chunk.failures` before `other` was read."""
        self.at = np.where(mask, other.at, self.at)
        self.deactivate_bad(failures)

    def select(self, entries: Ints) -> Cursor:
        """Return a cursor of only these entries."""
        return Cursor(self.chunk, self.at[entries], self.end[entries], self.rows_of(entries))

    def prefix(self, count: int) -> Cursor:
        """Return a cursor of the first entries."""
        rows = None if self.rows is None else self.rows[:count]
        return Cursor(self.chunk, self.at[:count], self.end[:count], rows)

    def update(self, entries: Ints, selected: Cursor) -> None:
        """Move the entries to the positions of `selected`, a cursor of only these entries."""
        self.at = self.at.copy()
        self.at[entries] = selected.at
        if (self.end[entries] != selected.end).any():  # some have become inactive
            self.end = self.end.copy()
            self.end[entries] = selected.end

    # --- bad rows

    def fail(self, mask: Flags, path: str, reason: Reason, *, is_first: bool = False) -> None:
        """Mark the rows of these entries as bad and the entries as inactive, unless they already
        are. `reason` may be a function of the entry's index. `is_first`: it replaces the reasons of
        entries that became inactive after what is bad now was read; it is a text then."""
        entries = np.flatnonzero(mask if is_first else mask & self.is_active())
        if not len(entries):
            return
        if isinstance(reason, str):
            self.chunk.fail(self.rows_of(entries), path, reason, is_first=is_first)
        else:
            numbers = entries.tolist()
            self.chunk.fail(self.rows_of(entries), path, lambda index: reason(numbers[index]))
        self._deactivate(entries)

    def fail_one(self, entry: int, error: BadValueError) -> None:
        """Mark the row of one entry as bad, and the entry as inactive. `at` and `end` are changed
        in place: for many entries, one by one, copies of them would be slow."""
        chunk, row = self.chunk, entry if self.rows is None else self.rows[entry]
        if not chunk.is_bad[row]:
            chunk.reasons[row] = cut(f"{label(error.path)}: {error.reason}")
        chunk.is_bad[row] = True
        chunk.failures += 1
        self.at[entry], self.end[entry] = chunk.zeros_at, INACTIVE

    def deactivate_bad(self, failures: int) -> None:
        """Make the entries of bad rows inactive, if other cursors have marked rows as bad since
        `chunk.failures` was `failures`."""
        if self.chunk.failures == failures:
            return
        bad = self.chunk.is_bad if self.rows is None else self.chunk.is_bad[self.rows]
        entries = np.flatnonzero(bad & self.is_active())
        if len(entries):
            self._deactivate(entries)

    def _deactivate(self, entries: Ints) -> None:
        """Make these entries inactive."""
        self.at, self.end = self.at.copy(), self.end.copy()  # other cursors may share them
        self.at[entries] = self.chunk.zeros_at
        self.end[entries] = INACTIVE

    # --- reads

    def skip(self, sizes: Ints | int, path: str) -> Flags | None:
        """Skip bytes of each entry. Return which entries have fewer bytes left, and failed; None if
        none has."""
        return self._move(self.at + sizes, path)

    def _move(self, after: Ints, path: str) -> Flags | None:
        """Move to these positions. Return which of them are beyond the end, and failed; None if
        none is."""
        self.at = after
        over: Flags = after > self.end
        if not has_any(over):
            return None
        self.fail(over, path, CUT_OFF)
        return over

    def read_words(self, size: int, path: str) -> NDArray[np.uint64]:
        """Read `size` bytes of each entry, at most eight, as the lowest ones of words."""
        words = words_at(self.chunk.data, self.at)
        self._move(self.at + operand(size, np.int64), path)
        return words

    def read_varints(
        self, path: str, bits: int = 64, *, are_long: bool = False
    ) -> tuple[NDArray[Any], Flags | None]:
        """Read varints, before zigzag decoding. Return also which entries failed, if any."""
        return self._check_varints(
            *read_unsigned(self.chunk.data, self.at, bits, are_long=are_long), path, bits
        )

    def _check_varints(
        self, raw: NDArray[Any], after: Ints, wrong: Flags | None, path: str, bits: int
    ) -> tuple[NDArray[Any], Flags | None]:
        """Move behind varints as `read_unsigned` returns them; return what `read_varints` does."""
        if wrong is not None:
            # A varint beyond the payload's end is cut off: its last bytes are another row's.
            wrong &= after <= self.end
            self.fail(wrong, path, LONG_VARINT if bits == 64 else "a number of more than 32 bits")
            after = np.where(wrong, self.at, after)
        over = self._move(after, path)
        return raw, wrong if over is None else over if wrong is None else wrong | over

    def read_longs(self, path: str, bits: int = 64) -> Ints:
        """Read zigzag varints; 0 for inactive and bad entries."""
        raw, bad = self.read_varints(path, bits)
        values = unzigzag(raw, overwrite=True)
        if bad is not None:
            values[bad] = 0
        return values

    def read_blobs(self, path: str) -> tuple[Ints, Ints]:
        """Read strings or bytes with their length in front. Return where they start and how long
        they are; the length is 0 for inactive and bad entries."""
        raw, starts, wrong = read_unsigned(self.chunk.data, self.at)
        # The usual case: all lengths are short, and none is negative (in zigzag, those are odd).
        if raw.itemsize < 8 and not np.bitwise_or.reduce(raw) & 1:
            lengths = (raw >> 1).astype(np.int64)
            after = starts + lengths
            if not has_any(after > self.end):
                self.at = after
                return starts, lengths
        raw, failed = self._check_varints(raw, starts, wrong, path, 64)
        lengths = unzigzag(raw)
        if failed is not None:
            lengths[failed] = 0
        remaining = self.end - self.at
        over = lengths.view(np.uint64) > remaining.view(np.uint64)  # or negative
        if over.any():
            self.fail(
                over,
                path,
                lambda entry: length_reason(lengths.item(entry), remaining.item(entry)),
            )
            lengths = np.where(over, 0, lengths)
        starts = self.at
        self.at = starts + lengths
        return starts, lengths

    def gather(self, starts: Ints, lengths: Ints) -> pa.Array:
        """Return slices of the data as a binary array."""
        return gather(pa.py_buffer(self.chunk.data), starts, lengths)


StepValues = list[NDArray[Any]]
"""Columns that were read: varints; or the lengths of bytes, then where they start."""


class ItemsCursor(Cursor):
    """A cursor of `count` items whose values were read while they were located: `columns` has what
    the next reads return, in their order. `make` returns a cursor with the positions and rows of
    these items, which is made only if an item is bad."""

    __slots__ = ("_columns", "_count", "_make")

    def __init__(
        self, chunk: Chunk, count: int, columns: StepValues, make: Callable[[], Cursor]
    ) -> None:
        self.chunk = chunk
        self._count = count
        self._columns = iter(columns)
        self._make = make

    def __len__(self) -> int:
        return self._count

    def select(self, entries: Ints) -> Cursor:
        selected = [column[entries] for column in self._columns]
        return ItemsCursor(self.chunk, len(entries), selected, lambda: Cursor.select(self, entries))

    def __getattr__(self, name: str) -> Any:  # called for a slot that has no value yet
        items = self._make()
        self.at, self.end, self.rows = items.at, items.end, items.rows
        return getattr(items, name)

    def read_varints(
        self, path: str, bits: int = 64, *, are_long: bool = False
    ) -> tuple[NDArray[Any], Flags | None]:
        return next(self._columns), None

    def read_blobs(self, path: str) -> tuple[Ints, Ints]:
        lengths = next(self._columns).astype(np.int64)
        return next(self._columns), lengths  # in the order of BytesSkipper.step


def length_reason(length: int, remaining: int) -> str:
    """Return why a length is wrong if the payload has `remaining` more bytes."""
    if length < 0:
        return f"a length of {length:,} bytes"
    return f"{length:,} bytes, but the payload has {remaining:,} more"


def read_long(data: bytes, at: int, end: int, path: str) -> tuple[int, int]:
    """Read a `long`, a zigzag varint of at most 64 bits, from `at` on: (value, position after it).
    Raises BadValueError, which names the field `path`, if it does not end before `end`."""
    try:
        return read_zigzag(data, at, end)
    except IndexError:
        raise BadValueError(path, CUT_OFF) from None
    except BadVarintError:
        raise BadValueError(path, LONG_VARINT) from None
