"""Readers of records, arrays, maps and unions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from sparkkafka.errors import SchemaError
from sparkkafka.protocol.records.arrow import from_numpy, is_valid, to_numpy
from sparkkafka.protocol.records.varint_columns import Ints
from sparkkafka.schemas.avro.cursor import Bools, Cursor
from sparkkafka.schemas.avro.scalars import Reader
from sparkkafka.schemas.avro.schema import place
from sparkkafka.schemas.avro.wires import ItemsWire, UnionWire, Wire
from sparkkafka.schemas.bounds import BYTES_PER_BYTE, MAX_DEFAULTS, slot_bytes
from sparkkafka.schemas.values import BUDGET_PER_BYTE


class RecordReader(Reader):
    """`steps`, in the writer's order: a reader and its place in the struct, or a wire to move over.
    `defaults`: place -> an array of one value, for fields that the writer lacks."""

    def __init__(
        self,
        kind: pa.DataType,
        wire: Wire,
        steps: Sequence[tuple[Reader, int] | Wire],
        defaults: dict[int, pa.Array],
    ) -> None:
        super().__init__(kind, wire)
        self._steps = steps
        self._defaults = defaults
        self.defaults = sum(
            max(0, value.nbytes - 4 - slot_bytes(value.type)) for value in defaults.values()
        ) + sum(step[0].defaults for step in steps if not isinstance(step, Wire))
        if self.defaults > MAX_DEFAULTS:
            raise SchemaError(
                f"{place(wire.path)}: the defaults of fields that the writer's Avro schema lacks "
                f"have {self.defaults:,} bytes; {MAX_DEFAULTS:,} are allowed"
            )

    def read(self, cursor: Cursor) -> pa.Array:
        count = len(cursor)
        children: list[pa.Array] = [None] * self.type.num_fields
        for step in self._steps:
            if isinstance(step, Wire):
                step.skip(cursor)
            else:
                reader, index = step
                children[index] = reader.read(cursor)
        for index, value in self._defaults.items():
            children[index] = repeated(value, count)
        return pa.Array.from_buffers(self.type, count, [None], children=children)


class ListReader(Reader):
    def __init__(self, kind: pa.DataType, wire: ItemsWire, item: Reader) -> None:
        super().__init__(kind, wire)
        self._items = wire
        self._item = item
        self._bytes = slot_bytes(item.type) + item.defaults

    def read(self, cursor: Cursor) -> pa.Array:
        failures = cursor.chunk.failures
        counts, inner = self._items.find(cursor)
        counts, inner = _bounded(cursor, counts, inner, self._items, self._bytes)
        values = self._item.read(inner)
        cursor.settle(failures)
        buffers = [None, _offsets(counts)]
        return pa.Array.from_buffers(self.type, len(counts), buffers, children=[values])


class MapReader(Reader):
    """`entry` reads key and value as a struct. Of a key that comes twice, the last value counts, as
    in Java and fastavro."""

    def __init__(self, kind: pa.DataType, wire: ItemsWire, entry: Reader) -> None:
        super().__init__(kind, wire)
        self._items = wire
        self._entry = entry
        self._bytes = slot_bytes(entry.type) + entry.defaults

    def read(self, cursor: Cursor) -> pa.Array:
        failures = cursor.chunk.failures
        counts, inner = self._items.find(cursor)
        counts, inner = _bounded(cursor, counts, inner, self._items, self._bytes)
        entries = self._entry.read(inner)
        cursor.settle(failures)
        counts, entries = _last_of_each_key(counts, entries)
        buffers = [None, _offsets(counts)]
        return pa.Array.from_buffers(self.type, len(counts), buffers, children=[entries])


def _bounded(
    cursor: Cursor, counts: Ints, inner: Cursor, wire: ItemsWire, size: int
) -> tuple[Ints, Cursor]:
    """The items without those of rows where they take too much memory: an item of one byte has a
    slot, of `size` bytes in all, in each column below it. Such rows become bad."""
    least = wire.item.least
    if size <= least * BUDGET_PER_BYTE or not len(inner):
        return counts, inner
    refused = np.zeros(len(cursor), np.bool_)
    if size > least * BYTES_PER_BYTE:
        rows = cursor.rows_of(np.arange(len(cursor)))
        refused = cursor.chunk.take_room(rows, counts * size)
    if not cursor.chunk.budget.take(int(counts[~refused].sum()) * size):
        refused = counts > 0
    if not refused.any():
        return counts, inner
    cursor.fail(
        refused,
        wire.path,
        lambda entry: f"{counts[entry]:,} items take too much memory as columns, for so few bytes",
    )
    kept = np.flatnonzero(~np.repeat(refused, counts))
    return np.where(refused, 0, counts), inner.part(kept)


def _last_of_each_key(counts: Ints, entries: pa.Array) -> tuple[Ints, pa.Array]:
    total = len(entries)
    if total == 0 or int(counts.max()) < 2:
        return counts, entries
    keys = entries.field(0).dictionary_encode()
    map_of = np.repeat(np.arange(len(counts)), counts)
    code = map_of * len(keys.dictionary) + to_numpy(keys.indices)
    ordered = np.sort(code)
    if not (ordered[1:] == ordered[:-1]).any():
        return counts, entries
    _, from_the_end = np.unique(code[::-1], return_index=True)
    keep = np.sort(total - 1 - from_the_end)
    kept = entries.take(from_numpy(keep.astype(np.int64)))
    return np.bincount(map_of[keep], minlength=len(counts)), kept


class Branch(NamedTuple):
    """A branch of the writer's union. `reader` None: it is null. `member`: to which member of the
    reader's union it goes, where that is a struct. `refusal`: why it cannot be read, if so."""

    reader: Reader | None
    member: int = 0
    refusal: str = ""


class UnionReader(Reader):
    """The union of a writer, to a single type that may be null; or, with `members`, to a struct
    with a field for each branch of the reader's union, of which one has a value."""

    def __init__(
        self,
        kind: pa.DataType,
        wire: UnionWire,
        branches: Sequence[Branch],
        *,
        members: bool = False,
    ) -> None:
        super().__init__(kind, wire)
        self._union = wire
        self._branches = branches
        self._members = members
        made = [branch.reader.defaults for branch in branches if branch.reader is not None]
        self.defaults = max(made, default=0)

    def read(self, cursor: Cursor) -> pa.Array:
        index = self._union.index(cursor)
        found: list[list[tuple[Bools, pa.Array]]] = [
            [] for _ in range(self.type.num_fields if self._members else 1)
        ]
        valid = np.ones(len(index), np.bool_)
        for number, branch in enumerate(self._branches):
            mask = index == number
            if not mask.any():
                continue
            if branch.refusal:
                cursor.fail(mask, self.path, branch.refusal)
                valid &= ~mask
            elif branch.reader is None:
                self._union.branches[number].skip(cursor.only(mask))
                valid &= ~mask
            else:
                values = _read_branch(branch.reader, cursor, mask)
                if branch.member >= 0:
                    found[branch.member].append((mask, values))
        if not self._members:
            return chosen(self.type, len(index), found[0])
        children = [
            chosen(field.type, len(index), own) for field, own in zip(self.type, found, strict=True)
        ]
        bitmap = None if valid.all() else pack(valid)
        return pa.Array.from_buffers(self.type, len(index), [bitmap], children=children)


def _read_branch(reader: Reader, cursor: Cursor, mask: Bools) -> pa.Array:
    """Values for all entries, of which those outside of the mask mean nothing."""
    failures = cursor.chunk.failures
    count = int(np.count_nonzero(mask))
    if _FEW_PARTS * count >= len(mask):
        inner = cursor.only(mask)
        values = reader.read(inner)
        cursor.take_over(mask, inner, failures)
        return values
    # Few have this branch: they are read alone, and put between nulls.
    entries = np.flatnonzero(mask)
    inner = cursor.part(entries)
    values = reader.read(inner)
    cursor.put_back(entries, inner)
    cursor.settle(failures)
    places = np.zeros(len(mask), np.int32)
    places[entries] = np.arange(count, dtype=np.int32)
    return values.take(masked(from_numpy(places), mask))


_FEW_PARTS: Final = 4
"""A branch that less than one in so many has is read alone."""


class MemberReader(Reader):
    """What is no union for the writer, to a struct of the reader's union: one field has it."""

    def __init__(self, kind: pa.DataType, inner: Reader, member: int) -> None:
        super().__init__(kind, inner.wire)
        self._inner = inner
        self._member = member
        self.defaults = inner.defaults

    def read(self, cursor: Cursor) -> pa.Array:
        values = self._inner.read(cursor)
        count = len(values)
        children = [pa.nulls(count, field.type) for field in self.type]
        if self._member >= 0:
            children[self._member] = values
        return pa.Array.from_buffers(self.type, count, [None], children=children)


# --- arrays put together ------------------------------------------------------------------------


def pack(valid: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(counts: Ints) -> pa.Buffer:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.py_buffer(offsets)


def repeated(value: pa.Array, count: int) -> pa.Array:
    """The one value of an array, `count` times."""
    return value.take(from_numpy(np.zeros(count, np.int32)))


def chosen(kind: pa.DataType, count: int, found: Sequence[tuple[Bools, pa.Array]]) -> pa.Array:
    """Each entry from the array whose mask has it; null where none does."""
    if not found:
        return pa.nulls(count, kind)
    if len(found) == 1:
        mask, values = found[0]
        return values if mask.all() else masked(values, mask)
    index = np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    for number, (mask, _) in enumerate(found):
        index[mask] = np.flatnonzero(mask) + number * count
        valid |= mask
    taken = pa.concat_arrays([values for _, values in found]).take(from_numpy(index))
    return taken if valid.all() else masked(taken, valid)


def masked(values: pa.Array, mask: Bools) -> pa.Array:
    """Null outside of the mask, sharing the memory of the values."""
    kind = values.type
    if pa.types.is_null(kind):
        return values
    if values.null_count:
        mask = mask & is_valid(values)
    if values.offset:  # made by none of the readers
        values = pa.concat_arrays([values])
    children = None
    if pa.types.is_struct(kind):
        children = [values.field(i) for i in range(kind.num_fields)]
        own: list[pa.Buffer | None] = []
    elif pa.types.is_map(kind):
        children = [_map_entries(values)]
        own = values.buffers()[1:2]
    elif pa.types.is_list(kind):
        children = [values.values]
        own = values.buffers()[1:2]
    else:
        own = values.buffers()[1:]
    return pa.Array.from_buffers(kind, len(values), [pack(mask), *own], children=children)


def _map_entries(values: pa.Array) -> pa.Array:
    """Key and value of a map array as the structs that they are in it."""
    kind = pa.struct([values.type.key_field, values.type.item_field])
    return pa.Array.from_buffers(
        kind, len(values.keys), [None], children=[values.keys, values.items]
    )
