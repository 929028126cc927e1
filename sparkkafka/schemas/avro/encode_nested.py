"""Writers of records, arrays, maps and unions. See `encode_scalars` for the two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import NO_ROOM, PAD, Bytes, Ints, Room
from sparkkafka.schemas.avro.cursor import Bools
from sparkkafka.schemas.avro.encode_scalars import (
    ConstantWriter,
    Counted,
    Filler,
    Plain,
    Rows,
    Varints,
    Writer,
    offsets_of,
)


class RecordWriter(Writer):
    """`fields`, in the schema's order: a writer and the place of its column in the struct, None for
    a default."""

    def __init__(self, path: str, fields: Sequence[tuple[Writer, int | None]]) -> None:
        super().__init__(path)
        self._fields = fields

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        return Joined(
            [
                writer.prepare(array if place is None else array.field(place), rows)
                for writer, place in self._fields
            ]
        )


class Joined(Filler):
    """Values one behind the other."""

    def __init__(self, parts: Sequence[Filler]) -> None:
        total: Any = 0
        for part in parts:
            total = total + part.sizes
        super().__init__(total, sum(part.least for part in parts))
        self._parts = parts

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        rest = self.least
        for part in self._parts:
            rest -= part.least
            part.write(out, at, room.before(rest))
            at = at + part.sizes


class ListWriter(Writer):
    """Arrays: one block of all items, and the count 0 behind it."""

    def __init__(self, path: str, item: Writer) -> None:
        super().__init__(path)
        self._item = item

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        edges, counts = _edges(array)
        items = array.values.slice(int(edges[0]), int(edges[-1] - edges[0]))
        found = self._item.prepare(items, _rows_of_items(rows, counts))
        return _numbers(counts, found) or _Blocks(counts, found)


class MapWriter(Writer):
    def __init__(self, path: str, key: Writer, value: Writer) -> None:
        super().__init__(path)
        self._key = key
        self._value = value

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        edges, counts = _edges(array)
        inner = _rows_of_items(rows, counts)
        begin, count = int(edges[0]), int(edges[-1] - edges[0])
        keys, values = array.keys.slice(begin, count), array.items.slice(begin, count)
        entries = Joined([self._key.prepare(keys, inner), self._value.prepare(values, inner)])
        return _Blocks(counts, entries)


def _edges(array: pa.Array) -> tuple[Ints, Ints]:
    """Where the items of each list begin in its values, and how many there are."""
    if not len(array):
        return np.zeros(1, np.int64), np.zeros(0, np.int64)
    edges = offsets_of(array, large=pa.types.is_large_list(array.type))
    return edges, edges[1:] - edges[:-1]


def _rows_of_items(rows: Rows, counts: Ints) -> Rows:
    def row_of(item: int) -> int:
        entry = int(np.searchsorted(np.cumsum(counts), item, side="right"))
        return entry if rows is None else rows(entry)

    return row_of


def _rows_among(rows: Rows, entries: Ints) -> Rows:
    return lambda at: int(entries[at]) if rows is None else rows(int(entries[at]))


def _numbers(counts: Ints, items: Filler) -> Filler | None:
    """Arrays of numbers: put together first, then written as texts are."""
    if not isinstance(items, Varints) or not len(counts):
        return None
    packed = items.packed()
    edges = _item_edges(int(counts.sum()), items.sizes)
    last = np.cumsum(counts)
    starts = edges[last - counts]
    return _Closed(Counted(packed, starts, edges[last] - starts, counts))


class _Closed(Filler):
    """Arrays that have no 0 at their end yet; an empty one is its count, 0, alone."""

    def __init__(self, inner: Counted) -> None:
        self._inner = inner
        more = inner.lengths > 0
        least = inner.least if inner.least == 1 else inner.least + 1
        super().__init__(inner.sizes + more, least)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        self._inner.write(out, at, room)
        out[at + self.sizes - 1] = 0


def _item_edges(total: int, sizes: Any) -> Ints:
    """Where each item's bytes begin, and where the last ones end."""
    edges = np.zeros(total + 1, np.int64)
    np.cumsum(np.full(total, sizes) if np.ndim(sizes) == 0 else sizes, out=edges[1:])
    return edges


class _Blocks(Filler):
    def __init__(self, counts: Ints, items: Filler) -> None:
        edges = _item_edges(int(counts.sum()), items.sizes)
        self._ends = edges
        self._first = np.cumsum(counts) - counts
        self._counts = counts
        self._front = Varints(counts)
        self._items = items
        content = edges[self._first + counts] - edges[self._first]
        # An empty array is its count, 0, alone.
        super().__init__(content + np.where(counts > 0, self._front.sizes + 1, 1), 1)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        if not len(at):
            return
        self._front.write(out, at, NO_ROOM)
        out[at + self.sizes - 1] = 0
        begin = at + self._front.sizes - self._ends[self._first]
        places = np.repeat(begin, self._counts) + self._ends[:-1]
        self._items.write(out, places, Room(0, self._items.least))


class UnionWriter(Writer):
    """`null`: the number of the branch of null, None if there is none. `branches`: number and
    writer; several if the column is a struct of members, of which just one has a value."""

    def __init__(
        self, path: str, null: int | None, branches: Sequence[tuple[int, Writer]], *, members: bool
    ) -> None:
        super().__init__(path)
        self._null = null
        self._branches = branches
        self._members = members

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        if self._null is None:
            self.need_all(array, rows)
        valid = is_valid(array)
        parts: list[tuple[int, Ints, Filler]] = []
        if self._null is not None and not valid.all():
            nothing = ConstantWriter(self.path, b"").prepare(array, rows)
            parts.append((self._null, np.flatnonzero(~valid), nothing))
        if not self._members:
            if len(parts) == len(self._branches) == 1:
                number, writer = self._branches[0]
                found = writer.prepare_valid(array, rows, valid)
                if found is not None and self._null is not None:
                    return _Nullable(self._null, number, valid, found)
            for number, writer in self._branches:
                parts.append(self._part(number, writer, array, valid, rows))
            return _Branches(len(array), parts)
        set_members = np.zeros(len(array), np.int64)
        columns = [array.field(place) for place in range(len(self._branches))]
        masks = [is_valid(column) & valid for column in columns]
        for mask in masks:
            set_members += mask
        self.refuse(
            valid & (set_members != 1),
            rows,
            lambda entry: f"{set_members[entry]} members of the union have a value, not one",
        )
        for (number, writer), column, mask in zip(self._branches, columns, masks, strict=True):
            if mask.any():
                parts.append(self._part(number, writer, column, mask, rows))
        return _Branches(len(array), parts)

    @staticmethod
    def _part(
        number: int, writer: Writer, column: pa.Array, mask: Any, rows: Rows
    ) -> tuple[int, Ints, Filler]:
        entries = np.flatnonzero(mask)
        if len(entries) == len(column):
            return number, entries, writer.prepare(column, rows)
        inner = _rows_among(rows, entries)
        return number, entries, writer.prepare(column.take(from_numpy(entries)), inner)


class _Nullable(Filler):
    """A number of null or of the one branch that values have, and these."""

    def __init__(self, null: int, number: int, valid: Bools, values: Filler) -> None:
        self._numbers: Filler
        if max(null, number) < 64:
            self._numbers = Plain(np.where(valid, np.uint8(2 * number), np.uint8(2 * null)))
        else:
            self._numbers = Varints(np.where(valid, number, null))
        self._values = values
        super().__init__(self._numbers.sizes + values.sizes, self._numbers.least)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        self._numbers.write(out, at, room)
        self._values.write(out, at + self._numbers.sizes, room)


class _Branches(Filler):
    """`parts`: number of the branch, the entries that have it, and their values."""

    def __init__(self, count: int, parts: Sequence[tuple[int, Ints, Filler]]) -> None:
        self._parts = [
            (Varints(np.array([number])), entries, values) for number, entries, values in parts
        ]
        sizes = np.zeros(count, np.int64)
        for front, entries, values in self._parts:
            sizes[entries] = values.sizes + front.least
        super().__init__(sizes, int(sizes.min()) if count else 0)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        for front, entries, values in self._parts:
            places = at if len(entries) == len(at) else at[entries]
            size = front.least
            number = np.zeros(size + PAD, np.uint8)
            front.write(number, np.zeros(1, np.int64), NO_ROOM)
            for index, byte in enumerate(number[:size].tolist()):
                out[places + index] = byte
            values.write(out, places + size, room)
