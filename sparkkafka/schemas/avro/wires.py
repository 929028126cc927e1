"""How Avro values are laid out, as far as skipping them needs it.

Items of arrays are found by moving over them, all arrays' j-th items in one step; then they are
read as one column. Where few arrays are left, each is followed value by value, without NumPy.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from typing import Final

import numpy as np

from sparkkafka.protocol.records.varint_columns import Ints
from sparkkafka.schemas.avro.cursor import (
    CUT_OFF,
    LONG_VARINT,
    PARKED,
    Bools,
    BrokenError,
    Cursor,
    step_long,
)

_FEW: Final = 128
"""Entries below which following each takes less time than steps of NumPy."""

_OTHER_SIZE: Final = "a block of another size than it says"

_LONG_RUN: Final = 64
"""Items from which on a single array's items of one kind of number are found by NumPy."""


Walk = Generator[tuple["Wire", int], int, int]


class Wire:
    """One type. `least`: the fewest bytes of a value. `size`: the bytes of each, if all have the
    same. `recursive`: a record that stands in itself is in it."""

    recursive = False

    def __init__(self, path: str, least: int, size: int | None = None) -> None:
        self.path = path
        self.least = least
        self.size = size

    def skip(self, cursor: Cursor) -> None:
        """Over one value of each entry."""
        raise NotImplementedError

    def step(self, data: bytes, at: int, end: int) -> int:
        """Over one value, without NumPy. Raises BrokenError."""
        raise NotImplementedError

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        """As `step`, but it asks for what is recursive inside, and is sent where that ends."""
        raise NotImplementedError


class FixedWire(Wire):
    """Also null, which has no bytes."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path, size, size)
        self._bytes = size

    def skip(self, cursor: Cursor) -> None:
        if self._bytes:
            cursor.skip(self._bytes, self.path)

    def step(self, data: bytes, at: int, end: int) -> int:
        at += self._bytes
        if at > end:
            raise BrokenError(self.path, CUT_OFF)
        return at


class VarintWire(Wire):
    """int, long and enum."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 1)

    def skip(self, cursor: Cursor) -> None:
        cursor.skip_longs(self.path)

    def step(self, data: bytes, at: int, end: int) -> int:
        if at < end and data[at] < 0x80:
            return at + 1
        return step_long(data, at, end, self.path)[1]


class BlobWire(Wire):
    """string and bytes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 1)

    def skip(self, cursor: Cursor) -> None:
        cursor.blobs(self.path)

    def step(self, data: bytes, at: int, end: int) -> int:
        length, at = step_long(data, at, end, self.path)
        if length < 0:
            raise BrokenError(self.path, f"a length of {length:,} bytes")
        if length > end - at:
            raise BrokenError(self.path, f"{length:,} bytes, but the payload has {end - at:,} more")
        return at + length


class RecordWire(Wire):
    def __init__(self, path: str, parts: Sequence[Wire]) -> None:
        sizes = [part.size for part in parts]
        fixed = [size for size in sizes if size is not None]
        super().__init__(
            path,
            sum(part.least for part in parts),
            sum(fixed) if len(fixed) == len(sizes) else None,
        )
        self.recursive = any(part.recursive for part in parts)
        self._parts = parts

    def skip(self, cursor: Cursor) -> None:
        for part in self._parts:
            part.skip(cursor)

    def step(self, data: bytes, at: int, end: int) -> int:
        for part in self._parts:
            at = part.step(data, at, end)
        return at

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        for part in self._parts:
            at = (yield part, at) if part.recursive else part.step(data, at, end)
        return at


class UnionWire(Wire):
    def __init__(self, path: str, branches: Sequence[Wire]) -> None:
        super().__init__(path, 1 + min(branch.least for branch in branches))
        self.recursive = any(branch.recursive for branch in branches)
        self.branches = branches

    def index(self, cursor: Cursor) -> Ints:
        """Which branch each entry has; 0 for what is parked."""
        index = cursor.longs(self.path, 32)
        count = len(self.branches)
        bad = (index < 0) | (index >= count)
        if bad.any():
            cursor.fail(
                bad, self.path, lambda entry: f"branch {index[entry]} of a union that has {count}"
            )
            index = np.where(bad, 0, index)
        return index

    def skip(self, cursor: Cursor) -> None:
        index = self.index(cursor)
        for number, branch in enumerate(self.branches):
            mask = index == number
            if branch.size == 0 or not mask.any():
                continue
            failures = cursor.chunk.failures
            inner = cursor.only(mask)
            branch.skip(inner)
            cursor.take_over(mask, inner, failures)

    def step(self, data: bytes, at: int, end: int) -> int:
        branch, at = self._branch(data, at, end)
        return branch.step(data, at, end)

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        branch, at = self._branch(data, at, end)
        return (yield branch, at) if branch.recursive else branch.step(data, at, end)

    def _branch(self, data: bytes, at: int, end: int) -> tuple[Wire, int]:
        index, at = step_long(data, at, end, self.path)
        if not 0 <= index < len(self.branches):
            raise BrokenError(self.path, f"branch {index} of a union that has {len(self.branches)}")
        return self.branches[index], at


class ItemsWire(Wire):
    """Arrays and maps: blocks of items, each with their count before it; a negative count has the
    block's size in bytes behind it. The count 0 ends the array."""

    def __init__(self, path: str, item: Wire) -> None:
        super().__init__(path, 1)
        self.recursive = item.recursive
        self.item = item

    def skip(self, cursor: Cursor) -> None:
        self._walk(cursor, None)

    def find(self, cursor: Cursor) -> tuple[Ints, Cursor]:
        """Moves over the arrays: how many items each has, and a cursor at the items of all, in
        order."""
        found: list[tuple[Ints, Ints]] = []
        counts = self._walk(cursor, found)
        return counts, self._items(cursor, counts, found)

    def _walk(self, cursor: Cursor, found: list[tuple[Ints, Ints]] | None) -> Ints:
        """Moves over the arrays: how many items each has. Adds to `found` the entries and starts of
        items, if it is given."""
        counts = np.zeros(len(cursor), np.int64)
        active = np.arange(len(cursor))
        failures = cursor.chunk.failures
        inner = Cursor(cursor.chunk, cursor.at, cursor.end, cursor.rows)
        while len(active) >= _FEW:
            block, ends = self._block(inner, kept=found is not None)
            going_on = np.flatnonzero(block)
            if len(going_on) < len(active):
                self._put_back(cursor, active, inner)
                inner = inner.part(going_on)
                active, block, ends = active[going_on], block[going_on], ends[going_on]
            counts[active] += block
            if found is None:
                self._starts(inner, block, None)
            else:
                starts = np.full(int(block.sum()), cursor.chunk.park, np.int64)
                self._starts(inner, block, starts)
                found.append((np.repeat(active, block), starts))
            wrong = (ends >= 0) & (inner.at != ends)
            if wrong.any():
                inner.fail(wrong, self.path, _OTHER_SIZE)
        if len(active):
            if found is None:
                step_all(self, inner)
            else:
                entries, starts, more = self._follow_all(inner)
                counts[active] += more
                found.append((active[entries], starts))
            self._put_back(cursor, active, inner)
        cursor.settle(failures)
        return counts

    @staticmethod
    def _put_back(cursor: Cursor, entries: Ints, inner: Cursor) -> None:
        if len(entries) < len(cursor):
            cursor.put_back(entries, inner)
        else:
            cursor.at, cursor.end = inner.at, inner.end

    def _items(self, cursor: Cursor, counts: Ints, found: list[tuple[Ints, Ints]]) -> Cursor:
        if not found:
            starts = np.zeros(0, np.int64)
        elif len(found) == 1:
            starts = found[0][1]
        else:  # several blocks: together again
            order = np.argsort(np.concatenate([rows for rows, _ in found]), kind="stable")
            starts = np.concatenate([places for _, places in found])[order]
        entries = np.repeat(np.arange(len(cursor)), counts)
        end = cursor.end[entries]
        parked = end == PARKED
        if parked.any():
            starts = np.where(parked, cursor.chunk.park, starts)
        return Cursor(cursor.chunk, starts, end, cursor.rows_of(entries))

    def _block(self, cursor: Cursor, *, kept: bool) -> tuple[Ints, Ints]:
        """The count of the next block of each array, and where it should end, or -1. `kept`: its
        items are going to be read, and so take memory."""
        counts = cursor.longs(self.path)
        ends = np.full(len(counts), -1, np.int64)
        if len(counts) and int(counts.min()) < 0:
            sized = np.flatnonzero(counts < 0)
            inner = cursor.part(sized)
            sizes = inner.longs(self.path)
            bad = (sizes < 0) | (sizes > inner.end - inner.at)
            if bad.any():
                inner.fail(
                    bad, self.path, lambda entry: f"a block of {sizes[entry]:,} bytes is too large"
                )
            dead = inner.end == PARKED
            counts[sized] = np.where(dead, 0, -counts[sized])
            ends[sized] = np.where(dead, -1, inner.at + sizes)
            cursor.put_back(sized, inner)
        if self.item.least:
            bad = (counts < 0) | (counts > (cursor.end - cursor.at) // self.item.least)
        else:
            bad = counts < 0
            if kept:
                rows = cursor.rows_of(np.arange(len(cursor)))
                bad |= cursor.chunk.free_items(rows, np.maximum(counts, 0))
        if bad.any():
            cursor.fail(bad, self.path, lambda entry: too_many(int(counts[entry])))
            counts = np.where(bad, 0, counts)
        return counts, ends

    def _starts(self, cursor: Cursor, counts: Ints, starts: Ints | None) -> None:
        """Moves over `counts` items of each entry, and fills in where each begins, if asked to."""
        size = self.item.size
        slot = np.cumsum(counts) - counts
        if size is not None:
            if starts is not None:
                within = np.arange(len(starts)) - np.repeat(slot, counts)
                starts[:] = np.repeat(cursor.at, counts) + within * size
            cursor.move(cursor.at + counts * size, self.path)
            return
        active = np.flatnonzero(counts)
        inner = cursor.part(active)
        left, slot = counts[active], slot[active]
        while len(active) >= _FEW:
            if starts is not None:
                starts[slot] = inner.at
                slot = slot + 1
            self.item.skip(inner)
            left = left - 1
            if not left.all():
                cursor.put_back(active, inner)
                going_on = np.flatnonzero(left)
                active, left, slot = active[going_on], left[going_on], slot[going_on]
                inner = inner.part(going_on)
        if len(active):
            self._follow_items(inner, left, slot, starts)
            cursor.put_back(active, inner)

    # --- array by array

    def _follow_items(self, cursor: Cursor, counts: Ints, slots: Ints, starts: Ints | None) -> None:
        """As `_starts`, for few entries; `slots`: where in `starts` each one's items are."""
        cursor.at, cursor.end = cursor.at.copy(), cursor.end.copy()
        for entry, count in enumerate(counts.tolist()):
            if cursor.end[entry] == PARKED:
                continue
            at, end = int(cursor.at[entry]), int(cursor.end[entry])
            slot = int(slots[entry])
            try:
                places, at = self._run(cursor, at, end, count)
            except BrokenError as error:
                _broken(cursor, entry, error)
                continue
            if starts is not None:
                starts[slot : slot + count] = places
            cursor.at[entry] = at

    def _follow_all(self, cursor: Cursor) -> tuple[Ints, Ints, Ints]:
        """Moves over all that is left of each array: entries and starts of the items, in order, and
        their counts."""
        cursor.at, cursor.end = cursor.at.copy(), cursor.end.copy()
        counts = np.zeros(len(cursor), np.int64)
        places = [np.zeros(0, np.int64)]
        for entry in range(len(cursor)):
            if cursor.end[entry] == PARKED:
                continue
            try:
                own, at = self._follow(cursor, entry)
            except BrokenError as error:
                _broken(cursor, entry, error)
                continue
            cursor.at[entry] = at
            counts[entry] = sum(map(len, own))
            places += own
        return np.repeat(np.arange(len(cursor)), counts), np.concatenate(places), counts

    def _follow(self, cursor: Cursor, entry: int) -> tuple[list[Ints], int]:
        """Starts of one array's items by blocks, and the position after it. Raises BrokenError."""
        raw = cursor.chunk.raw
        at, end = int(cursor.at[entry]), int(cursor.end[entry])
        found: list[Ints] = []
        small = array("q")  # of small blocks: an array for each would take more time and memory
        while True:
            count, at, stop = self._head(raw, at, end)
            if not count:
                break
            if self.item.least:
                refused = count > (end - at) // self.item.least
            else:
                row = cursor.rows_of(np.array([entry]))
                refused = bool(cursor.chunk.free_items(row, np.array([min(count, end + 2**32)])))
            if refused:
                raise BrokenError(self.path, too_many(count))
            if count < _LONG_RUN:
                for _ in range(count):
                    small.append(at)
                    at = self.item.step(raw, at, end)
            else:
                if small:
                    found.append(np.array(small, np.int64))
                    small = array("q")
                places, at = self._run(cursor, at, end, count)
                found.append(places)
            if stop not in (-1, at):
                raise BrokenError(self.path, _OTHER_SIZE)
        if small:
            found.append(np.array(small, np.int64))
        return found, at

    def _run(self, cursor: Cursor, at: int, end: int, count: int) -> tuple[Ints, int]:
        """Starts of `count` items of one array, and the position after them. Raises BrokenError."""
        size = self.item.size
        if size is not None:
            after = at + count * size
            if after > end:
                raise BrokenError(self.path, CUT_OFF)
            return at + np.arange(count) * size, after
        if count >= _LONG_RUN and isinstance(self.item, VarintWire):
            # A number has at most ten bytes; one that is longer is told when it is read.
            window = min(end - at, 10 * count)
            last = np.flatnonzero(cursor.chunk.data[at : at + window] < 0x80)[:count]
            if len(last) < count:
                cut_off = at + window == end
                raise BrokenError(self.item.path, CUT_OFF if cut_off else LONG_VARINT)
            starts = np.empty(count, np.int64)
            starts[0] = at
            starts[1:] = at + 1 + last[:-1]
            return starts, at + 1 + int(last[-1])
        raw, step = cursor.chunk.raw, self.item.step
        found = array("q")
        for _ in range(count):
            found.append(at)
            at = step(raw, at, end)
        return np.array(found, np.int64), at

    def _head(self, data: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Of a block: its count, its first item's place, and where it should end, or -1."""
        count, at = step_long(data, at, end, self.path)
        if count >= 0:
            return count, at, -1
        size, at = step_long(data, at, end, self.path)
        if not 0 <= size <= end - at:
            raise BrokenError(self.path, f"a block of {size:,} bytes is too large")
        if count == -(1 << 63):  # more than a number of 64 bits can say
            raise BrokenError(self.path, too_many(count))
        return -count, at, at + size

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        while True:
            count, at, stop = self._head(data, at, end)
            if not count:
                return at
            if count > (end - at) // max(self.item.least, 1):
                raise BrokenError(self.path, too_many(count))
            for _ in range(count):
                at = yield self.item, at
            if stop not in (-1, at):
                raise BrokenError(self.path, _OTHER_SIZE)

    def step(self, data: bytes, at: int, end: int) -> int:
        while True:
            count, at, stop = self._head(data, at, end)
            if not count:
                return at
            size = self.item.size
            if size != 0 and count > (end - at) // max(self.item.least, 1):
                raise BrokenError(self.path, too_many(count))
            if size is not None:
                at += count * size
            else:
                step = self.item.step
                for _ in range(count):
                    at = step(data, at, end)
            if stop not in (-1, at):
                raise BrokenError(self.path, _OTHER_SIZE)


def step_all(wire: Wire, cursor: Cursor) -> None:
    """Over one value of each entry, one after the other."""
    cursor.at, cursor.end = cursor.at.copy(), cursor.end.copy()
    raw = cursor.chunk.raw
    for entry in np.flatnonzero(cursor.live()).tolist():
        try:
            cursor.at[entry] = wire.step(raw, int(cursor.at[entry]), int(cursor.end[entry]))
        except BrokenError as error:
            _broken(cursor, entry, error)


def _broken(cursor: Cursor, entry: int, error: BrokenError) -> None:
    mask: Bools = np.zeros(len(cursor), np.bool_)
    mask[entry] = True
    cursor.fail(mask, error.path, error.reason)


def too_many(count: int) -> str:
    return f"{abs(count):,} items, which the payload has no bytes for"
