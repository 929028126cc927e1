"""Tokens of messages -> Arrow columns: one call for each message type, one for each of its fields.

A row that cannot be right is noted in `Notes`: `odd` if protobuf's runtime must look at it, `bad`
with a reason if it cannot be a value of the column's type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.columns import gather, validity
from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.schemas.bounds import slot_bytes
from sparkkafka.schemas.protobuf import scalars, specials, types
from sparkkafka.schemas.protobuf.plan import Count, Field, Message
from sparkkafka.schemas.protobuf.tokens import SKIP, Chunk, Entry, Tokens, tokenize
from sparkkafka.schemas.protobuf.wire import Data, Flags, Ints
from sparkkafka.schemas.values import BUDGET_PER_BYTE, MemoryBudget


@dataclass(slots=True)
class Notes:
    """What is wrong with which row of the whole column, and the budget that its call has left."""

    odd: Flags
    budget: MemoryBudget
    bad: dict[int, str] = field(default_factory=dict)

    def bad_rows(self, rows: Ints, path: str, reasons: Callable[[int], str]) -> None:
        """`reasons` of the index in `rows`."""
        for index, row in enumerate(rows.tolist()):
            if row not in self.bad:
                self.bad[row] = f"field {path}: {reasons(index)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A message's tags, in the order in which they are looked for, and its fields' layouts.

    Slots: 2i is field i, 2i + 1 the same packed; then come unwanted members of `oneofs`, which have
    the slots of each oneof. `size`: bytes of columns that one takes at most, without what it has
    itself. `strict`: some field is required, here or below: what is absent must not be looked at.
    """

    message: Message
    entries: tuple[Entry, ...]
    inner: tuple[Layout | None, ...]
    slots: int
    oneofs: tuple[tuple[int, ...], ...]
    size: int
    strict: bool


def layout(message: Message, *, normal: bool) -> Layout:
    """`normal`: for what `normal.py` has rewritten, where groups have a length as messages have."""
    entries: list[Entry] = []
    inner: list[Layout | None] = []
    oneofs: dict[int, list[int]] = {}
    size, strict = 1, False
    for index, one in enumerate(message.fields):
        many = one.count is not Count.ONE
        wire = types.WIRE[one.kind]
        if one.kind == types.GROUP:
            wire = types.LEN if normal else types.START
        entries.append(Entry(one.number << 3 | wire, 2 * index, many))
        if many and wire not in (types.LEN, types.START):
            entries.append(Entry(one.number << 3 | types.LEN, 2 * index + 1, many))
        if one.oneof >= 0:
            oneofs.setdefault(one.oneof, []).append(2 * index)
        below = None if one.message is None else layout(one.message, normal=normal)
        inner.append(below)
        size += slot_bytes(one.type) if below is None or many else below.size
        size += len(one.default) if isinstance(one.default, (str, bytes)) else 0
        strict = strict or one.required or (below is not None and below.strict)
    slots = 2 * len(message.fields)
    for number, wire in message.skipped:
        slot = SKIP
        oneof = message.descriptor.fields_by_number[number].containing_oneof
        if oneof is not None and oneof.index in oneofs:
            oneofs[oneof.index].append(slots)  # it clears a wanted member that stands before it
            slot, slots = slots, slots + 1
        entries.append(Entry(number << 3 | wire, slot, True))
    entries = [entry for entry in entries if entry.tag & 7 != types.START]
    return Layout(
        message,
        tuple(sorted(entries)),
        tuple(inner),
        slots,
        tuple(tuple(group) for group in oneofs.values() if len(group) > 1),
        size,
        strict,
    )


def fields_of(plan: Layout, data: Data, starts: Ints, ends: Ints, owner: Ints, notes: Notes) -> Any:
    """One Arrow array for each field of the message. owner: the column's row of each message."""
    fields = plan.message.fields
    tokens, odd = tokenize(data, starts, ends, plan.entries, plan.slots)
    if odd.any():
        notes.odd[owner[odd]] = True
    for group in plan.oneofs:
        _only_one(group, tokens, len(starts), owner, notes)
    maker = _Maker(data, starts, owner, notes)
    return [
        maker.column(one, plan.inner[index], tokens[2 * index], tokens[2 * index + 1])
        for index, one in enumerate(fields)
    ]


def struct(plan: Layout, arrays: list[pa.Array], count: int, valid: Flags | None) -> pa.Array:
    mask = None if valid is None else validity(valid)
    return pa.Array.from_buffers(plan.message.type, count, [mask], children=arrays)


def _only_one(
    group: tuple[int, ...], tokens: list[Tokens], count: int, owner: Ints, notes: Notes
) -> None:
    """Marks messages that have several fields of a oneof: the last counts."""
    having = [joined for slot in group if (joined := tokens[slot].joined(count)) is not None]
    if len(having) < 2:
        return
    seen = np.zeros(count, np.int64)
    for chunk in having:
        if chunk.rows is None:
            seen += 1
        else:
            seen[chunk.rows] += 1  # once for each field, also where it stands twice
    if int(seen.max()) > 1:
        notes.odd[owner[seen > 1]] = True


class _Maker:
    """Columns of the fields of `len(starts)` messages."""

    def __init__(self, data: Data, starts: Ints, owner: Ints, notes: Notes) -> None:
        self.data, self.starts, self.owner, self.notes = data, starts, owner, notes
        self.count = len(starts)

    def column(self, one: Field, inner: Layout | None, tokens: Tokens, packed: Tokens) -> pa.Array:
        found = tokens.joined(self.count)
        if one.count is Count.ONE:
            return self._one(one, inner, found)
        spans = packed.joined(self.count)
        rows: Ints | None = None
        if spans is not None:
            counts, child = self._packed(one, found, spans)
        else:
            rows, child = self._elements(one, inner, found)
            counts = self._counts(rows)
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets)]
        if one.count is Count.MAP and rows is not None and len(rows):
            self._no_key_twice(rows, counts, child.field(0))
        if one.joined:
            return specials.joined_texts(one, offsets.tolist(), child)
        return pa.Array.from_buffers(one.type, self.count, buffers, children=[child])

    # --- one value --------------------------------------------------------------------------------

    def _one(self, one: Field, inner: Layout | None, found: Chunk | None) -> pa.Array:
        present = None if found is None or found.rows is None else self._flags(found.rows)
        if one.required and (found is None or present is not None):
            missing = np.ones(self.count, np.bool_) if present is None else ~present
            rows = self.owner[missing]
            self.notes.bad_rows(rows, one.path, lambda _: "it is required, and missing")
        if found is None:
            return self._absent(one)
        if types.WIRE[one.kind] in (types.LEN, types.START) or one.closed:
            self._not_twice(found)
        if inner is not None and one.special not in types.TEXTS:
            return self._message(one, inner, found, present)
        if found.size is not None:
            at, size = found.at, found.size
            if found.rows is not None:
                at, size = self.starts.copy(), np.zeros(self.count, np.int64)
                at[found.rows], size[found.rows] = found.at, found.size
            if present is not None and one.special in types.TEXTS:
                having = np.flatnonzero(present)
                some = self._texts(one, at[having], size[having], self.owner[having])
                return some.take(_places(having, self.count))
            array = self._texts(one, at, size, self.owner)
        else:
            if found.value is not None:
                raw: Any = found.value
            else:
                raw = scalars.fixed(self.data, found.at, one.kind)
            if found.rows is not None:
                values = np.zeros(self.count, raw.dtype)
                values[found.rows] = raw
                raw = values
            array = self._numbers(one, raw, present, lambda: self.owner)
        if present is None or present.all():
            return array
        if one.default is None:
            return _with_validity(array, present)
        if one.default:  # not the zero that is there already, but proto2's, or an enum's first
            fill = scalars.constant(one, self.count)
            return _choose(present, array, fill)
        return array

    def _absent(self, one: Field) -> pa.Array:
        if one.default is None or one.message is not None:
            return pa.nulls(self.count, one.type)
        return scalars.constant(one, self.count)

    def _flags(self, rows: Ints) -> Flags:
        flags = np.zeros(self.count, np.bool_)
        flags[rows] = True
        return flags

    def _numbers(
        self, one: Field, raw: Any, present: Flags | None, owner: Callable[[], Ints]
    ) -> pa.Array:
        if one.longest > BUDGET_PER_BYTE and not self.notes.budget.take(len(raw) * one.longest):
            reason = f"the names of its {len(raw):,} values are too many bytes"
            self.notes.bad_rows(owner()[:1], one.path, lambda _: reason)
            return pa.nulls(len(raw), one.item)
        array, odd, wrong = scalars.numbers(one, raw, present)
        if odd is not None:
            self.notes.odd[owner()[odd]] = True
        if wrong is not None:
            at = np.flatnonzero(wrong)
            self.notes.bad_rows(
                owner()[at], one.path, lambda index: scalars.misfit(one, int(raw[at[index]]))
            )
        return array

    def _texts(self, one: Field, at: Ints, size: Ints, owner: Ints) -> pa.Array:
        """string, bytes, and messages that become JSON."""
        array = gather(self.data.buffer, at, size)
        if one.special is types.Special.JSON or one.special is types.Special.TEXT:
            array, wrong = specials.json_texts(one, array, self.notes.budget)
            self._say(one, owner, wrong)
            return array
        if one.kind == types.BYTES or one.special is types.Special.BYTES:
            return array
        try:
            return array.cast(pa.string()).cast(one.item)
        except pa.ArrowInvalid:
            wrong_ = scalars.not_utf8(array)
        self.notes.bad_rows(owner[wrong_], one.path, lambda _: "its text is not UTF-8")
        size = size.copy()
        size[wrong_] = 0
        return gather(self.data.buffer, at, size).cast(pa.string()).cast(one.item)

    def _message(self, one: Field, inner: Layout, found: Chunk, present: Flags | None) -> pa.Array:
        at, size, rows = found.at, found.size, found.rows
        if size is None:
            return pa.nulls(self.count, one.type)
        if rows is None:
            return self._messages(one, inner, at, size, self.owner, None)
        if present is None:
            present = self._flags(rows)
        distinct = int(np.count_nonzero(present))
        starts, sizes = self.starts.copy(), np.zeros(self.count, np.int64)
        starts[rows], sizes[rows] = at, size
        if not inner.strict and 2 * distinct >= self.count:
            return self._messages(one, inner, starts, sizes, self.owner, present)
        having = np.flatnonzero(present)
        some = self._messages(one, inner, starts[having], sizes[having], self.owner[having], None)
        return some.take(_places(having, self.count))

    def _not_twice(self, found: Chunk) -> None:
        """Marks where a field stands twice: messages are merged, texts are all checked, and an
        unknown number of a closed enum counts as absent."""
        if found.rows is None or found.once:
            return
        times = np.bincount(found.rows, minlength=self.count)
        if int(times.max()) > 1:
            self.notes.odd[self.owner[times > 1]] = True

    def _say(self, one: Field, owner: Ints, wrong: dict[int, str]) -> None:
        at = np.array(sorted(wrong), np.int64)
        self.notes.bad_rows(owner[at], one.path, lambda index: wrong[int(at[index])])

    def _messages(
        self,
        one: Field,
        inner: Layout,
        at: Ints,
        size: Ints,
        owner: Ints,
        present: Flags | None,
    ) -> pa.Array:
        arrays = fields_of(inner, self.data, at, at + size, owner, self.notes)
        if one.special is None:
            return struct(inner, arrays, len(at), present)
        array, wrong = specials.made(one, arrays, present)
        self._say(one, owner, wrong)
        return array if present is None else _with_validity(array, present)

    # --- many values ------------------------------------------------------------------------------

    def _counts(self, rows: Ints | None) -> Ints:
        """How often each message is among `rows`; None: each is once."""
        if rows is None:
            return np.ones(self.count, np.int64)
        return np.bincount(rows, minlength=self.count)

    def _elements(
        self, one: Field, inner: Layout | None, found: Chunk | None
    ) -> tuple[Ints | None, pa.Array]:
        """All values of a repeated field, in order, and which message each is of."""
        if found is None:
            return np.zeros(0, np.int64), pa.nulls(0, _child_type(one))
        rows, at, value, size, _ = _sorted(found)
        where = slice(None) if rows is None else rows
        owner = self.owner[where]
        if size is None:
            raw = value if value is not None else scalars.fixed(self.data, at, one.kind)
            return rows, self._numbers(one, raw, None, lambda: owner)
        if inner is None or one.special in types.TEXTS:
            return rows, self._texts(one, at, size, owner)
        if not self.notes.budget.take(len(at) * inner.size):
            reason = f"its {len(at):,} messages take too much memory as columns, for so few bytes"
            self.notes.bad_rows(owner[:1], one.path, lambda _: reason)
            return np.zeros(0, np.int64), pa.nulls(0, _child_type(one))
        if one.count is Count.MAP:
            return rows, self._entries(one, inner, at, size, owner)
        return rows, self._messages(one, inner, at, size, owner, None)

    def _packed(self, one: Field, found: Chunk | None, spans: Chunk) -> tuple[Ints, pa.Array]:
        """How many values of a repeated field each message has, and all, in order."""
        of, at, _, size, _ = _sorted(spans)
        if size is None:
            raise ValueError("packed values without a length")
        raw, counts, wrong = scalars.unpack(self.data, at, size, one.kind)
        if wrong is not None:
            marked = wrong if of is None else of[wrong]
            self.notes.odd[self.owner[marked]] = True
        if found is None and of is None:
            return counts, self._numbers(one, raw, None, lambda: np.repeat(self.owner, counts))
        rows = np.repeat(np.arange(self.count) if of is None else of, counts)
        if found is not None:
            other = _sorted(found)
            other_rows = np.arange(self.count) if other.rows is None else other.rows
            both = np.intersect1d(rows, other_rows)
            if len(both):  # which comes first is not known any more
                self.notes.odd[self.owner[both]] = True
            single = other.value
            if single is None:
                single = scalars.fixed(self.data, other.at, one.kind)
            rows = np.concatenate([rows, other_rows])
            order = np.argsort(rows, kind="stable")
            rows, raw = rows[order], np.concatenate([raw, single])[order]
        return self._counts(rows), self._numbers(one, raw, None, lambda: self.owner[rows])

    def _entries(self, one: Field, inner: Layout, at: Ints, size: Ints, owner: Ints) -> pa.Array:
        arrays = fields_of(inner, self.data, at, at + size, owner, self.notes)
        if arrays[1].null_count:  # a message that is absent is an empty one here
            self.notes.odd[owner[~is_valid(arrays[1])]] = True
        return pa.Array.from_buffers(_child_type(one), len(at), [None], children=arrays)

    def _no_key_twice(self, rows: Ints, counts: Ints, keys: pa.Array) -> None:
        """Marks messages that have a key of a map twice: the last counts."""
        if int(counts.max()) < 2:
            return
        codes = scalars.codes(keys)
        both = rows * (int(codes.max()) + 1) + codes
        unique, times = np.unique(both, return_counts=True)
        if len(unique) < len(both):
            twice = np.unique(unique[times > 1] // (int(codes.max()) + 1))
            self.notes.odd[self.owner[twice]] = True


def _child_type(one: Field) -> pa.DataType:
    if one.joined and one.message is not None:
        return one.message.type
    if one.count is Count.MAP:
        return pa.struct([one.type.key_field, one.type.item_field])
    return one.item


def _sorted(chunk: Chunk) -> Chunk:
    """The same tokens by message, in each in their order."""
    rows = chunk.rows
    if rows is None or chunk.once or bool((rows[1:] >= rows[:-1]).all()):
        return chunk
    order = np.argsort(rows, kind="stable")
    return Chunk(
        rows[order],
        chunk.at[order],
        None if chunk.value is None else chunk.value[order],
        None if chunk.size is None else chunk.size[order],
        False,
    )


def _with_validity(array: pa.Array, valid: Flags) -> pa.Array:
    """The array, null where not valid. It may have nulls of its own, and children."""
    if array.null_count:
        valid = valid & is_valid(array)
    buffers = array.buffers()
    kind = array.type
    if pa.types.is_struct(kind):
        children = [array.field(index) for index in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [validity(valid)], children=children)
    return pa.Array.from_buffers(kind, len(array), [validity(valid), *buffers[1:]])


def _places(having: Ints, count: int) -> pa.Array:
    """Indexes for `take`: of the i-th of `having` at its place, null elsewhere."""
    index = np.zeros(count, np.int32)
    index[having] = np.arange(len(having), dtype=np.int32)
    valid = np.zeros(count, np.bool_)
    valid[having] = True
    return pa.Array.from_buffers(pa.int32(), count, [validity(valid), pa.py_buffer(index)])


def _choose(first: Flags, one: pa.Array, other: pa.Array) -> pa.Array:
    """`one` where `first`, else `other`."""
    index = np.arange(len(one), dtype=np.int32)
    index[~first] = len(one)
    both = pa.concat_arrays([one, other.slice(0, 1)])
    return both.take(from_numpy(index))
