"""Finds where each field lies in the messages. All messages of one type at once, in waves.

A wave is one field of all messages that have it next. Writers put fields in the order of their
numbers, so one pass over the known fields takes most messages to their end; what is left (unknown
fields, another order) takes another pass. Few messages that go on for long are read one by one.

A message that is not plain (a damaged one, but also groups) is only marked as odd here: protobuf's
own runtime then decides what it is, see `normal.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.schemas.protobuf.types import I32, I64, LEN, VARINT
from sparkkafka.schemas.protobuf.wire import (
    DONE,
    Data,
    Flags,
    Ints,
    read_tags,
    read_varints,
    varint,
)

FEW: Final = 12
"""Up to so many messages are read one by one: about what a wave costs."""

SKIP: Final = -1


class Entry(NamedTuple):
    """A tag that messages of a type have. slot: whose tokens these are, or SKIP."""

    tag: int
    slot: int
    repeated: bool


class Chunk(NamedTuple):
    """Tokens of one field. rows: of which messages; None: of each message, once, in their order.
    at: where the value begins, behind its length. value: of varints; size: of what has a length.
    """

    rows: Ints | None
    at: Ints
    value: NDArray[Any] | None
    size: Ints | None
    once: bool
    """Rows ascend, and each is there once at most."""


@dataclass(slots=True)
class Tokens:
    """All tokens of a field. One message's stand in their order, not those of all."""

    chunks: list[Chunk]

    def joined(self, count: int) -> Chunk | None:
        """As one chunk, where rows need not ascend; None if there are none."""
        chunks = self.chunks
        if not chunks:
            return None
        if len(chunks) == 1:
            return chunks[0]
        rows = [np.arange(count) if chunk.rows is None else chunk.rows for chunk in chunks]
        at = np.concatenate([chunk.at for chunk in chunks])
        if chunks[0].value is not None:
            value = np.concatenate([c.value for c in chunks if c.value is not None])
            return Chunk(np.concatenate(rows), at, value, None, False)
        if chunks[0].size is not None:
            size = np.concatenate([c.size for c in chunks if c.size is not None])
            return Chunk(np.concatenate(rows), at, None, size, False)
        return Chunk(np.concatenate(rows), at, None, None, False)


def tokenize(
    data: Data, starts: Ints, ends: Ints, entries: tuple[Entry, ...], slots: int
) -> tuple[list[Tokens], Flags]:
    """The tokens of each slot, and which messages are odd: their tokens mean nothing, but lie
    inside of them."""
    run = _Run(data, len(starts), entries, slots)
    if len(starts) <= FEW:
        run.finish(np.arange(len(starts)), starts, ends)
    else:
        run.waves(starts, ends)
    run.close()
    return run.tokens, run.odd


class _Run:
    def __init__(self, data: Data, count: int, entries: tuple[Entry, ...], slots: int) -> None:
        self.data = data
        self.entries = entries
        self.known = {entry.tag: entry.slot for entry in entries}
        self.tags = np.array(sorted(self.known), np.int64)
        self.tokens = [Tokens([]) for _ in range(slots)]
        self.odd = np.zeros(count, np.bool_)
        self.single: dict[int, tuple[list[int], list[int], list[int]]] = {}
        self.wires: dict[int, int] = {}

    # --- in waves ---------------------------------------------------------------------------------

    def waves(self, starts: Ints, ends: Ints) -> None:
        self.rows: Ints | None = None
        self.at, self.end = starts.copy(), ends
        self.tag, self.body = read_tags(self.data, self.at, self.end)
        while True:
            for entry in self.entries:
                while self._wave(self.tag == entry.tag, entry.tag & 7, entry.slot):
                    if not entry.repeated:
                        break
            if not self._rest():
                return
            unknown = ~np.isin(self.tag, self.tags) & (self.tag != DONE)
            if unknown.any():
                wire = np.where(unknown, self.tag & 7, 7)
                for kind in (VARINT, I64, LEN, I32):
                    self._wave(wire == kind, kind, SKIP)
                strange = unknown & ((wire == 3) | (wire == 4) | (wire >= 6))
                self._give_up(np.flatnonzero(strange))

    def _rest(self) -> bool:
        """Keeps the rows that have not ended. Odd ones have."""
        rest = np.flatnonzero(self.tag)
        if not len(rest):
            return False
        self.rows = rest if self.rows is None else self.rows[rest]
        self.at, self.end = self.at[rest], self.end[rest]
        self.tag, self.body = self.tag[rest], self.body[rest]
        # A number of 0, which no field has, is in tags below 8.
        self._give_up(np.flatnonzero((self.tag < 8) & (self.tag != DONE)))
        return True

    def _wave(self, hit: Flags, wire: int, slot: int) -> bool:
        """Reads one field of the rows that are hit; False if there were none."""
        count = int(np.count_nonzero(hit))
        if not count:
            return False
        some = None if count == len(hit) else np.flatnonzero(hit)
        if count <= FEW:
            rows = np.flatnonzero(hit)
            original = rows if self.rows is None else self.rows[rows]
            self.finish(original, self.at[rows], self.end[rows])
            self.tag[rows] = DONE
            return True
        at, end = (self.body, self.end) if some is None else (self.body[some], self.end[some])
        value: NDArray[Any] | None = None
        size: Ints | None = None
        wrong: Flags | None = None
        if wire == VARINT:
            value, after, wrong = read_varints(self.data, at)
        elif wire == LEN:
            raw, at, wrong = read_varints(self.data, at)
            size = raw.astype(np.int64)
            if raw.itemsize == 8:  # may be more than an int64 can have
                over = raw > np.uint64(1 << 31)
                size[over] = 1 << 31  # beyond any end
            after = at + size
        else:
            after = at + (8 if wire == I64 else 4)
        over = after > end
        if over.any():
            wrong = over if wrong is None else wrong | over
        if wrong is not None:
            rows = np.arange(count) if some is None else some
            self._give_up(rows[wrong])
            good = ~wrong
            some, at, after, end = rows[good], at[good], after[good], end[good]
            value = None if value is None else value[good]
            size = None if size is None else size[good]
        if slot != SKIP:
            rows_ = some if self.rows is None or some is None else self.rows[some]
            if rows_ is None:
                rows_ = self.rows
            self.tokens[slot].chunks.append(Chunk(rows_, at, value, size, True))
        tags, body = read_tags(self.data, after, end)
        if some is None:
            self.at, self.tag, self.body = after, tags, body
        else:
            if tags.itemsize > self.tag.itemsize:
                self.tag = self.tag.astype(tags.dtype)
            self.at[some], self.tag[some], self.body[some] = after, tags, body
        return True

    def _give_up(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            self.odd[rows if self.rows is None else self.rows[rows]] = True
            self.tag[rows] = DONE

    # --- one by one -------------------------------------------------------------------------------

    def finish(self, rows: Ints, starts: Ints, ends: Ints) -> None:
        """The rest of some messages, in plain Python."""
        for row, at, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            try:
                self._finish(row, at, end)
            except ValueError:
                self.odd[row] = True

    def _finish(self, row: int, at: int, end: int) -> None:
        raw, known = self.data.raw, self.known
        while at < end:
            tag = raw[at]
            at += 1
            if tag >= 0x80:
                start = at - 1
                tag, at = varint(raw, start, end)
                if at - start > 5 or tag > 0xFFFFFFFF:
                    raise ValueError("a tag is too long")
            wire = tag & 7
            value = 0
            if wire == VARINT:
                begin = at
                value, at = varint(raw, at, end)
            elif wire == LEN:
                value, begin = varint(raw, at, end)
                at = begin + value
            elif wire in (I64, I32):
                begin, at = at, at + (8 if wire == I64 else 4)
            else:
                raise ValueError("a group")
            if at > end or tag < 8:
                raise ValueError("a field goes beyond the message's end")
            slot = known.get(tag, SKIP)
            if slot == SKIP:
                continue
            lists = self.single.get(slot)
            if lists is None:
                lists = self.single[slot] = ([], [], [])
                self.wires[slot] = wire
            lists[0].append(row)
            lists[1].append(begin)
            lists[2].append(value)

    def close(self) -> None:
        for slot, (rows, at, values) in self.single.items():
            numbers = np.array(values, np.uint64)
            wire = self.wires[slot]
            self.tokens[slot].chunks.append(
                Chunk(
                    np.array(rows, np.int64),
                    np.array(at, np.int64),
                    numbers if wire == VARINT else None,
                    numbers.view(np.int64) if wire == LEN else None,
                    False,
                )
            )
