"""Moves cursors over values that are not decoded, and finds the items of arrays and maps.

A Skipper is made from the writer's type only. An item is an element of an array, or a key and its
value of a map; to skip and to locate them, maps are arrays of such pairs. Items are located by
skipping them, the j-th items of all arrays in one step; then they are decoded as one column. Once
few arrays are left, the items of each are skipped one by one, without NumPy.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, read_unsigned, unzigzag
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.cursor import (
    CUT_OFF,
    INACTIVE,
    BadValueError,
    Cursor,
    ItemsCursor,
    StepValues,
    length_reason,
    read_long,
)
from sparkkafka.schemas.avro.schema import Node
from sparkkafka.schemas.schema_errors import MAX_PATH, child_path, cut

_MIN_VECTOR: Final = 128
"""Fewer entries are skipped one by one, which is faster than steps of NumPy."""

_MAX_NESTED: Final = 20_000
"""How deep skipped values may be nested, which is about twice the levels of recursive records."""

_OTHER_SIZE: Final = "a block of another size than it says"

Walk = Generator[tuple["Skipper", int], int, int]
"""Yields (a recursive part's skipper, its position), is sent the position after the part, and
returns the position after the whole value. So recursion needs no Python stack."""


class Round(NamedTuple):
    """One item of each array, skipped in one step: their indexes among all items, where they start,
    and the columns that were read."""

    indexes: Ints
    starts: Ints
    columns: StepValues


class _Block(NamedTuple):
    """The items of one block of each of some arrays, in order: the index of each array's entry, how
    many items it has in the block, and where each item starts."""

    entries: Ints
    counts: Ints
    starts: Ints


class Skipper:
    """Skips the values of one type. `min_size`: the fewest bytes of a value. `size`: the bytes of
    every value, if all have the same. `is_recursive`: the type has a recursive record in it.
    `keeps_values`: `step` can keep the values that it reads."""

    is_recursive = False
    keeps_values = False

    def __init__(self, path: str, min_size: int, size: int | None = None) -> None:
        self.path = path
        self.min_size = min_size
        self.size = size

    def skip(self, cursor: Cursor) -> None:
        """Skip one value of each entry."""
        raise NotImplementedError

    def step(self, data: Bytes, at: Ints, values: StepValues | None = None) -> Ints | None:
        """Return the position after the value at each position, in few steps: nothing is compared
        with the end of payloads, which the caller does. None if a value may be bad, or the type
        needs `skip`. Append what is read to `values`, if that is not None (and `keeps_values`)."""
        return None

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        """Skip one value without NumPy; return the position after it. Raises BadValueError."""
        raise NotImplementedError

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        """Skip one value of a recursive type without NumPy; the caller skips recursive parts (see
        `Walk`)."""
        raise NotImplementedError


class BlobSkipper(Skipper):
    """Skips values whose bytes are taken as they are."""

    def locate(self, cursor: Cursor) -> tuple[Ints, Ints]:
        """Skip one value of each entry; return the starts and lengths of their bytes."""
        raise NotImplementedError


class FixedSkipper(BlobSkipper):
    """fixed, and other types of one size: null, boolean, float and double."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path, size, size)
        self._size = size

    def skip(self, cursor: Cursor) -> None:
        if self._size:
            cursor.skip(self._size, self.path)

    def locate(self, cursor: Cursor) -> tuple[Ints, Ints]:
        starts = cursor.at
        cursor.skip(self._size, self.path)
        # An inactive entry has no bytes: the size may be larger than the zeros behind the data.
        return starts, np.where(cursor.is_active(), self._size, 0)

    def step(self, data: Bytes, at: Ints, values: StepValues | None = None) -> Ints | None:
        return at + self._size

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        at += self._size
        if at > end:
            raise BadValueError(self.path, CUT_OFF)
        return at


class VarintSkipper(Skipper):
    """Skips an int, long or enum, whose values have `bits` bits."""

    keeps_values = True

    def __init__(self, path: str, bits: int) -> None:
        super().__init__(path, 1)
        self._bits = bits
        self._last_were_long = False

    def skip(self, cursor: Cursor) -> None:
        cursor.read_varints(self.path)

    def step(self, data: Bytes, at: Ints, values: StepValues | None = None) -> Ints | None:
        """Return the position after the varint at each position `at`; None if one may have more
        than 64 bits. To `values`, if it is given, the unsigned numbers are appended."""
        if values is not None:
            raw, after, wrong = read_unsigned(data, at, self._bits, are_long=self._last_were_long)
            self._last_were_long = raw.itemsize == 8
            values.append(raw)
            return after if wrong is None else None
        byte = data.take(at, mode="clip")
        after = at + 1
        for _ in range(8):
            longer = byte >> 7
            if not longer.any():
                return after
            byte = data.take(after, mode="clip")
            byte *= longer
            after += longer
        return None  # nine bytes, or more: it may be too long

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        if at < end and data[at] < 0x80:
            return at + 1
        return read_long(data, at, end, self.path)[1]


class BytesSkipper(BlobSkipper):
    """string and bytes."""

    keeps_values = True

    def __init__(self, path: str) -> None:
        super().__init__(path, 1)

    def skip(self, cursor: Cursor) -> None:
        cursor.read_blobs(self.path)

    def locate(self, cursor: Cursor) -> tuple[Ints, Ints]:
        return cursor.read_blobs(self.path)

    def step(self, data: Bytes, at: Ints, values: StepValues | None = None) -> Ints | None:
        """Return the position after each length and its bytes; None if a length is negative or very
        long. To `values`, if it is given, the lengths and the positions of the bytes are
        appended."""
        raw, after, _ = read_unsigned(data, at)
        if raw.itemsize == 8 or np.bitwise_or.reduce(raw) & 1:  # long, or negative: for `skip`
            return None
        raw >>= 1
        if values is not None:
            values += raw, after
        return after + raw.astype(np.int64)

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        """Return the position after a length and its bytes. Raises BadValueError."""
        length, at = read_long(data, at, end, self.path)
        if not 0 <= length <= end - at:
            raise BadValueError(self.path, length_reason(length, end - at))
        return at + length


class RecordSkipper(Skipper):
    """A record, or a key and its value of a map: its fields, one after the other."""

    def __init__(self, path: str, fields: Sequence[Skipper]) -> None:
        sizes = [field.size for field in fields if field.size is not None]
        super().__init__(
            path,
            sum(field.min_size for field in fields),
            sum(sizes) if len(sizes) == len(fields) else None,
        )
        self.is_recursive = any(field.is_recursive for field in fields)
        self.keeps_values = all(field.keeps_values for field in fields)
        self._fields = fields

    def skip(self, cursor: Cursor) -> None:
        for field in self._fields:
            field.skip(cursor)

    def step(self, data: Bytes, at: Ints, values: StepValues | None = None) -> Ints | None:
        """Return the position after the record at each position; None if a field may be bad, or
        needs `skip`."""
        after: Ints | None = at
        for field in self._fields:
            if after is not None:
                after = field.step(data, after, values)
        return after

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        for field in self._fields:
            at = field.skip_one(data, at, end)
        return at

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        """Skip all fields; those that are recursive are yielded to the caller (see `Walk`)."""
        for field in self._fields:
            at = (yield field, at) if field.is_recursive else field.skip_one(data, at, end)
        return at


class RecursiveSkipper(Skipper):
    """A recursive record. Entries are skipped one by one, at any depth, without Python's stack.
    Each value has at least one byte, since a value without bytes would have no end."""

    is_recursive = True

    def __init__(self, node: Node) -> None:
        super().__init__(cut(node.name, MAX_PATH), 1)  # one skipper for all fields of this type
        self._node = node

    @cached_property
    def _record(self) -> RecordSkipper:
        return _record_skipper(self._node, self.path)

    def skip(self, cursor: Cursor) -> None:
        skip_one_by_one(self, cursor)

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        return self._record.walk(data, at, end)

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        """Return the position after the record. The walks of the records inside it are kept on a
        list, since Python's own stack is too short for them. Raises BadValueError."""
        # The walks that have begun, each inside the one before it.
        stack = [self.walk(data, at, end)]
        after: int | None = None
        while stack:
            try:
                inner, at = stack[-1].send(after)  # type: ignore[arg-type]  # None starts it
            except StopIteration as stop:
                stack.pop()
                at = after = stop.value
            else:
                if len(stack) == _MAX_NESTED:
                    raise BadValueError(self.path, "it is nested too deep to be skipped")
                stack.append(inner.walk(data, at, end))
                after = None
        return at


class UnionSkipper(Skipper):
    """A union: the number of a branch, then its value."""

    def __init__(self, path: str, branches: Sequence[Skipper]) -> None:
        super().__init__(path, 1 + min(branch.min_size for branch in branches))
        self.is_recursive = any(branch.is_recursive for branch in branches)
        self.branches = branches

    def read_branches(self, cursor: Cursor) -> NDArray[Any]:
        """Read the number of each entry's branch (0 for inactive entries), as integers of any
        type."""
        raw, failed = cursor.read_varints(self.path, 32)
        if failed is None and raw.max(initial=0) < 2 * len(self.branches) and not (raw & 1).any():
            return raw >> 1  # decodes a zigzag number that is not negative
        numbers = unzigzag(raw)
        if failed is not None:
            numbers[failed] = 0
        bad = (numbers < 0) | (numbers >= len(self.branches))
        if bad.any():
            cursor.fail(bad, self.path, lambda entry: self._no_branch_reason(numbers[entry]))
            numbers = np.where(bad, 0, numbers)
        return numbers

    def skip(self, cursor: Cursor) -> None:
        """Skip one value of each entry: the entries of each branch together."""
        numbers = self.read_branches(cursor)
        for number, branch in enumerate(self.branches):
            mask = numbers == number
            if branch.size == 0 or not mask.any():
                continue
            failures = cursor.chunk.failures
            inner = cursor.where(mask)
            branch.skip(inner)
            cursor.advance(mask, inner, failures)

    def step(self, data: Bytes, at: Ints, values: StepValues | None = None) -> Ints | None:
        """Return the position after each value. Each branch is skipped at all positions, and only
        the results at its own are used; so a branch must be able to step over any bytes."""
        raw, at, _ = read_unsigned(data, at, 32)  # a zigzag varint: 2 n for the branch n
        if raw.max(initial=0) >= 2 * len(self.branches) or (raw & 1).any():
            return None
        for number, branch in enumerate(self.branches):
            mask = raw == 2 * number
            if branch.size == 0 or not mask.any():
                continue
            after = branch.step(data, at)
            if after is None:
                return None
            at = np.where(mask, after, at)
        return at

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        branch, at = self._read_branch(data, at, end)
        return branch.skip_one(data, at, end)

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        branch, at = self._read_branch(data, at, end)
        return (yield branch, at) if branch.is_recursive else branch.skip_one(data, at, end)

    def _read_branch(self, data: bytes, at: int, end: int) -> tuple[Skipper, int]:
        """Read the number of one value's branch: (its skipper, the position after the number)."""
        number, at = read_long(data, at, end, self.path)
        if not 0 <= number < len(self.branches):
            raise BadValueError(self.path, self._no_branch_reason(number))
        return self.branches[number], at

    def _no_branch_reason(self, number: int) -> str:
        return f"branch {number} of a union that has {len(self.branches)}"


class ItemsSkipper(Skipper):
    """Arrays and maps. They are blocks of items, each with its count in front. A negative count is
    followed by the block's size in bytes. The count 0 ends the array."""

    def __init__(self, path: str, item: Skipper) -> None:
        super().__init__(path, 1)
        self.is_recursive = item.is_recursive
        self.item = item

    def skip(self, cursor: Cursor) -> None:
        self._skip(cursor, None)

    def locate(self, cursor: Cursor, *, keep_values: bool) -> tuple[Ints, Cursor]:
        """Skip one array of each entry; return how many items each has, and a cursor of the items
        of all arrays, in order. `keep_values`: it may be an ItemsCursor."""
        located: list[_Block] = []
        rounds: list[Round] | None = [] if keep_values and self.item.keeps_values else None
        failures = cursor.chunk.failures
        counts = self._skip(cursor, located, rounds)
        if rounds and len(located) > 1:  # values are kept only if each array is one block
            _put_starts(rounds, located[0].starts)
            rounds = None
        if not located:
            starts = np.zeros(0, np.int64)
        elif len(located) == 1:
            starts = located[0].starts
        else:  # several blocks: bring the items of each array together
            entries_of = [np.repeat(block.entries, block.counts) for block in located]
            order = np.argsort(np.concatenate(entries_of), kind="stable")
            starts = np.concatenate([block.starts for block in located])[order]
        if cursor.chunk.failures > failures and not rounds:
            # Bad arrays may claim to have many items, none of which is read.
            active = cursor.is_active()
            starts = starts[np.repeat(active, counts)]
            counts = counts * active
        ends, rows = cursor.end, cursor.rows

        def items() -> Cursor:
            """Return a cursor at all items, with an entry for each."""
            entries = np.repeat(np.arange(len(counts)), counts)
            end = ends[entries]
            at = np.where(end == INACTIVE, cursor.chunk.zeros_at, starts)
            return Cursor(cursor.chunk, at, end, entries if rows is None else rows[entries])

        if rounds:
            columns = _in_order(rounds, len(starts))
            return counts, ItemsCursor(cursor.chunk, len(starts), columns, items)
        return counts, items()

    def _skip(
        self, cursor: Cursor, located: list[_Block] | None, rounds: list[Round] | None = None
    ) -> Ints:
        """Skip one array of each entry; return how many items each has. Unless `located` is None,
        append to it each block of the arrays. `rounds`: see `_skip_items`."""
        counts = np.zeros(len(cursor), np.int64)
        # The entries whose array has not ended, and a cursor of them.
        entries = np.arange(len(cursor))
        inner = Cursor(cursor.chunk, cursor.at, cursor.end, cursor.rows)
        failures = cursor.chunk.failures
        while len(entries) >= _MIN_VECTOR:
            block_counts = self._skip_block(inner, entries, located, rounds)
            if len(entries) == len(counts):  # all
                counts += block_counts
            else:
                counts[entries] += block_counts
            unfinished = np.flatnonzero(_skip_ends(inner, block_counts != 0))
            self._move_entries(cursor, entries, inner)
            entries, inner = entries[unfinished], inner.select(unfinished)
        if len(entries):
            if located is None:
                skip_one_by_one(self, inner)
            else:
                starts, more = self._locate_one_by_one(inner)
                counts[entries] += more
                located.append(_Block(entries, more, starts))
            self._move_entries(cursor, entries, inner)
        cursor.deactivate_bad(failures)
        return counts

    def _skip_block(
        self,
        cursor: Cursor,
        entries: Ints,
        located: list[_Block] | None,
        rounds: list[Round] | None,
    ) -> Ints:
        """Skip the next block of each array; return how many items it has, 0 if the array has
        ended. `entries`, `located` and `rounds`: see `_skip`."""
        counts, ends = self._read_block_heads(cursor, is_decoded=located is not None)
        if located is None:
            self._skip_items(cursor, counts, None)
        else:
            starts = np.full(int(counts.sum()), cursor.chunk.zeros_at, np.int64)
            self._skip_items(cursor, counts, starts, None if located else rounds)
            located.append(_Block(entries, counts, starts))
        if ends is not None:
            cursor.fail((ends >= 0) & (cursor.at != ends), self.path, _OTHER_SIZE)
        return counts

    @staticmethod
    def _move_entries(cursor: Cursor, entries: Ints, inner: Cursor) -> None:
        """Move these entries of the cursor to the positions of `inner`, without a copy if they are
        all."""
        if len(entries) < len(cursor):
            cursor.update(entries, inner)
        else:
            cursor.at, cursor.end = inner.at, inner.end

    def _read_block_heads(self, cursor: Cursor, *, is_decoded: bool) -> tuple[Ints, Ints | None]:
        """Read the head of the next block of each array: its count, and its size if the count is
        negative. Return how many items each block has, and where it should end (-1 if it has no
        size; None if none has). A count that the payload has no bytes for is bad. If items may have
        no bytes, but are decoded into columns (`is_decoded`), each row may have a number of them.
        """
        counts = cursor.read_longs(self.path)
        ends = None
        if len(counts) and int(counts.min()) < 0:  # else no block has a size
            sized = np.flatnonzero(counts < 0)
            inner = cursor.select(sized)
            sizes = inner.read_longs(self.path)
            bad = (sizes < 0) | (sizes > inner.end - inner.at)
            if bad.any():
                inner.fail(
                    bad, self.path, lambda entry: f"a block of {sizes[entry]:,} bytes is too large"
                )
            inactive = ~inner.is_active()
            counts[sized] = np.where(inactive, 0, -counts[sized])
            ends = np.full(len(counts), -1, np.int64)
            ends[sized] = np.where(inactive, -1, inner.at + sizes)
            cursor.update(sized, inner)
        bad = counts < 0  # -2**63 has no positive counterpart
        if self.item.min_size:
            max_counts = cursor.end - cursor.at
            if self.item.min_size > 1:
                max_counts //= self.item.min_size
            bad |= counts > max_counts
        elif is_decoded:
            rows = cursor.rows_of(np.arange(len(cursor)))
            bad |= cursor.chunk.take_free_items(rows, np.maximum(counts, 0))
        if bad.any():
            cursor.fail(bad, self.path, lambda entry: _too_many_reason(int(counts[entry])))
            counts = np.where(bad, 0, counts)
        return counts, ends

    def _skip_items(
        self, cursor: Cursor, counts: Ints, starts: Ints | None, rounds: list[Round] | None = None
    ) -> None:
        """Skip `counts` items of each entry, and write where each item starts into `starts`, if it
        is not None. If `step` can keep the values of all items, `rounds` gets them instead.

        Items of one size are skipped without reading the data. Otherwise each round skips one item
        of every entry that has items left, while enough entries are left for NumPy to be faster
        than a loop. The rest is skipped entry by entry.
        """
        size = self.item.size
        next_items = np.cumsum(counts) - counts  # the index in `starts` of each entry's next item
        if size is not None:
            if starts is not None:
                within = np.arange(len(starts)) - np.repeat(next_items, counts)
                starts[:] = np.repeat(cursor.at, counts) + within * size
            cursor.skip(counts * size, self.path)
            return
        # The longest arrays first: those that have items left are a prefix in each round.
        max_count = int(counts.max())
        counts = counts.astype(np.min_scalar_type(max_count))  # narrow integers are sorted faster
        entries = np.argsort(counts.dtype.type(max_count) - counts, kind="stable")
        entries = entries[: np.count_nonzero(counts)]
        next_items = next_items[entries]
        skipped = self._step_items(cursor, entries, counts, next_items, starts, rounds)
        unfinished = int(np.count_nonzero(counts > skipped))
        if not unfinished:
            return
        next_items += skipped
        inner = cursor.select(entries)
        counts = counts[entries]
        while unfinished >= _MIN_VECTOR:
            failures = cursor.chunk.failures
            prefix = inner.prefix(unfinished)
            if starts is not None:
                starts[next_items[:unfinished]] = prefix.at
                next_items[:unfinished] += 1
            self.item.skip(prefix)
            inner.at[:unfinished], inner.end[:unfinished] = prefix.at, prefix.end
            skipped += 1
            if cursor.chunk.failures > failures:  # without those that have become inactive
                cursor.update(entries, inner)
                active = np.flatnonzero(inner.is_active())
                entries, counts, next_items = entries[active], counts[active], next_items[active]
                inner = inner.select(active)
            unfinished = int(np.count_nonzero(counts > skipped))
        for index in range(unfinished):
            if inner.end[index] == INACTIVE:
                continue
            item_starts = array("q")
            at, end, remaining = (
                int(inner.at[index]),
                int(inner.end[index]),
                int(counts[index]) - skipped,
            )
            try:
                inner.at[index] = self._locate_items(inner, at, end, remaining, item_starts)
            except BadValueError as error:
                inner.fail_one(index, error)
                continue
            if starts is not None:
                next_item = int(next_items[index])
                starts[next_item : next_item + remaining] = item_starts
        cursor.update(entries, inner)

    def _step_items(
        self,
        cursor: Cursor,
        entries: Ints,
        counts: NDArray[Any],
        next_items: Ints,
        starts: Ints | None,
        kept_rounds: list[Round] | None,
    ) -> int:
        """Skip items of all entries by `Skipper.step` while that is faster than a loop. Return the
        number of items that were skipped of each entry, at most all that it has. That is less if a
        step returns None, and 0, with nothing skipped, if one went past the end of a payload.
        `entries`: those that have items, by `counts` in descending order; `next_items`: the index
        in `starts` of each entry's first item. If `starts` is not None, where the items start is
        written into it; or, if all items were skipped, appended to `kept_rounds` with what was
        read, unless that is None."""
        before = cursor.at[entries]
        at, done = before.copy(), 0
        rounds: list[Round] = []
        while 4 * len(before) >= _MIN_VECTOR:  # a step takes a quarter of the time of `skip`
            columns: StepValues = []
            after = self.item.step(
                cursor.chunk.data, before, None if kept_rounds is None else columns
            )
            if after is None:
                break
            if starts is not None:
                rounds.append(Round(next_items[: len(before)] + done, before, columns))
                if kept_rounds is None:
                    _put_starts([rounds.pop()], starts)
            at[: len(before)] = after
            done += 1
            before = after[: np.count_nonzero(counts > done)]
        moved = cursor.at.copy()
        moved[entries] = at
        if (moved > cursor.end).any():
            return 0
        cursor.at = moved
        if kept_rounds is not None and not len(before):
            kept_rounds += rounds
        elif starts is not None:
            _put_starts(rounds, starts)
        return done

    # --- one array after the other

    def _locate_one_by_one(self, cursor: Cursor) -> tuple[Ints, Ints]:
        """Skip the rest of each array; return the starts of all items, in order, and how many each
        array has."""
        counts = np.zeros(len(cursor), np.int64)
        starts = array("q")
        cursor.at, cursor.end = cursor.at.copy(), cursor.end.copy()
        for entry in np.flatnonzero(cursor.is_active()).tolist():
            before = len(starts)
            try:
                cursor.at[entry] = self._locate_one(cursor, entry, starts)
            except BadValueError as error:
                del starts[before:]
                cursor.fail_one(entry, error)
            counts[entry] = len(starts) - before
        return np.array(starts, np.int64), counts

    def _locate_one(self, cursor: Cursor, entry: int, starts: array[int]) -> int:
        """Skip the rest of one entry's array, and append its items' starts to `starts`; return the
        position after it. Raises BadValueError."""
        at, end = int(cursor.at[entry]), int(cursor.end[entry])
        while True:
            count, at, block_end = self._read_block_head(cursor.chunk.raw, at, end)
            if not count:
                return at
            if not self.item.min_size:
                # Items of no bytes cost the writer nothing, so a payload may have only a number of
                # them. A count may not fit int64.
                row = cursor.rows_of(np.array([entry]))
                if cursor.chunk.take_free_items(row, np.array([min(count, end + 2**32)])):
                    raise BadValueError(self.path, _too_many_reason(count))
            at = self._locate_items(cursor, at, end, count, starts)
            if block_end not in (-1, at):  # -1: the block has no size
                raise BadValueError(self.path, _OTHER_SIZE)

    def _locate_items(
        self, cursor: Cursor, at: int, end: int, count: int, starts: array[int]
    ) -> int:
        """Skip `count` items of one array, which begin at `at`, and append their starts to
        `starts`; return the position after them. Raises BadValueError."""
        size = self.item.size
        if size is not None:
            after = at + count * size
            if after > end:
                raise BadValueError(self.path, CUT_OFF)
            starts.frombytes((at + np.arange(count) * size).tobytes())
            return after
        data, skip_one = cursor.chunk.raw, self.item.skip_one
        for _ in range(count):
            starts.append(at)
            at = skip_one(data, at, end)
        return at

    def _read_block_head(self, data: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Read the head of a block of one array: (the count of its items, where they begin, where
        the block should end; -1 if it does not say). Raises BadValueError."""
        count, at = read_long(data, at, end, self.path)
        block_end = -1
        if count < 0:
            count = -count
            size, at = read_long(data, at, end, self.path)
            if not 0 <= size <= end - at:
                raise BadValueError(self.path, f"a block of {size:,} bytes is too large")
            block_end = at + size
        min_size = self.item.min_size
        if count >= 1 << 63 or (min_size and count > (end - at) // min_size):
            raise BadValueError(self.path, _too_many_reason(count))
        return count, at, block_end

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        """Skip all blocks; each item is yielded to the caller, which skips it (see `Walk`)."""
        while True:
            count, at, block_end = self._read_block_head(data, at, end)
            if not count:
                return at
            for _ in range(count):
                at = yield self.item, at
            if block_end not in (-1, at):  # -1: the block has no size
                raise BadValueError(self.path, _OTHER_SIZE)

    def skip_one(self, data: bytes, at: int, end: int) -> int:
        """Skip all blocks; return the position after the last one. Raises BadValueError."""
        size, skip_item = self.item.size, self.item.skip_one
        while True:
            count, at, block_end = self._read_block_head(data, at, end)
            if not count:
                return at
            if size is not None:
                at += count * size
            else:
                for _ in range(count):
                    at = skip_item(data, at, end)
            if block_end not in (-1, at):  # -1: the block has no size
                raise BadValueError(self.path, _OTHER_SIZE)


def _put_starts(rounds: Sequence[Round], starts: Ints) -> None:
    """Write where the items of each round start to their indexes in `starts`."""
    for indexes, item_starts, _ in rounds:
        starts[indexes] = item_starts


def _in_order(rounds: Sequence[Round], count: int) -> StepValues:
    """Return the columns of `count` items, of which each round has read some."""
    ordered: StepValues = []
    for pieces in zip(*(kept_round.columns for kept_round in rounds), strict=True):
        values = np.empty(count, np.result_type(*pieces))
        for kept_round, piece in zip(rounds, pieces, strict=True):
            values[kept_round.indexes] = piece
        ordered.append(values)
    return ordered


def _skip_ends(cursor: Cursor, had_items: Flags) -> Flags:
    """Return which arrays have not ended yet. `had_items`: which had items in the last block; the
    others ended there, because its count was 0. If the next count is 0 in all arrays that had
    items, skip it: then all have ended."""
    following = cursor.chunk.data.take(cursor.at, mode="clip")
    following *= had_items
    if following.any() or ((cursor.at >= cursor.end) & had_items).any():
        return had_items
    cursor.at = cursor.at + had_items
    return np.zeros_like(had_items)


def skip_one_by_one(skipper: Skipper, cursor: Cursor) -> None:
    """Skip one value of each entry, in a loop over the entries."""
    cursor.at, cursor.end = cursor.at.copy(), cursor.end.copy()
    for entry in np.flatnonzero(cursor.is_active()).tolist():
        try:
            cursor.at[entry] = skipper.skip_one(
                cursor.chunk.raw, int(cursor.at[entry]), int(cursor.end[entry])
            )
        except BadValueError as error:
            cursor.fail_one(entry, error)


def _too_many_reason(count: int) -> str:
    return f"{abs(count):,} items, which the payload has no bytes for"


# --- the skipper of a type ----------------------------------------------------------------------


def skipper_of(node: Node, path: str) -> Skipper:
    """Return the Skipper of the values of a type. `path`: the field's, for errors."""
    kind = node.kind
    if kind == avro.RECORD:
        if not node.refusal:  # only a record that contains itself is refused
            return _record_skipper(node, path)
        if not node.skippers:  # made once for all nodes of the record
            node.skippers.append(RecursiveSkipper(node))
        recursive: Skipper = node.skippers[0]
        return recursive
    if kind == avro.UNION:
        return UnionSkipper(path, [skipper_of(branch, path) for branch in node.branches])
    if kind == avro.ARRAY:
        return ItemsSkipper(path, skipper_of(node.item, f"{path}[]"))
    if kind == avro.MAP:
        inner = f"{path}{{}}"
        pair = RecordSkipper(inner, [BytesSkipper(inner), skipper_of(node.item, inner)])
        return ItemsSkipper(path, pair)
    if kind in (avro.INT, avro.LONG, avro.ENUM):
        return VarintSkipper(path, 64 if kind == avro.LONG else 32)
    return blob_skipper_of(node, path)


def blob_skipper_of(node: Node, path: str) -> BlobSkipper:
    """Return the Skipper of a type that is not a union, varint or nested; it also locates the bytes
    of values."""
    if node.kind in (avro.STRING, avro.BYTES):
        return BytesSkipper(path)
    sizes = {avro.NULL: 0, avro.BOOLEAN: 1, avro.FLOAT: 4, avro.DOUBLE: 8}
    return FixedSkipper(path, sizes.get(node.kind, node.size))


def _record_skipper(node: Node, path: str) -> RecordSkipper:
    return RecordSkipper(
        path, [skipper_of(field.node, child_path(path, field.name)) for field in node.fields]
    )
