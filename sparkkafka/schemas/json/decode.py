"""Payloads -> values: as many as can be at once, the others one by one."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.schemas.bounds import limit_reasons, slot_bytes
from sparkkafka.schemas.json.columns import ColumnReader, NotReadError, at_once, doubtful
from sparkkafka.schemas.json.memory import most_bytes, suspects
from sparkkafka.schemas.json.plan import Node
from sparkkafka.schemas.json.rows import RowReader, UnfitError
from sparkkafka.schemas.json.texts import BrokenTextError
from sparkkafka.schemas.values import Decoded, MemoryBudget

FEWEST_AT_ONCE: Final = 64
"""Fewer texts are read one by one: a call of the fast reader costs as much."""
MAX_AFTER_FAILURE: Final = 1024
MAX_BYTES_AT_ONCE: Final = 16 << 20
CALL_COSTS: Final = 256
"""A call of the fast reader costs as much as so many rows that it reads."""
MAX_IN_VAIN: Final = 2
"""When so many times a batch's rows were read at once in vain, what is left is read one by one:
it is full of what the fast reader does not take."""


class JsonDecoder:
    """Decodes JSON texts into the values of one node. With `with_rest` or `exact`, see
    `rows.RowReader`.

    rows: reads texts one by one, `clean` what that makes of them. raw: reads them at once; None if
    a type is not for it. complete: the same, and fails for a field that was not asked for.
    """

    def __init__(self, root: Node, with_rest: bool = False, *, exact: bool = False) -> None:
        self.type = root.type
        self._row_bytes = slot_bytes(root.type)
        self.with_rest = with_rest
        self.exact = exact
        self.rows = RowReader(root, with_rest, exact)
        self.clean = ColumnReader(root, clean=True)
        self.raw = ColumnReader(root, clean=False) if at_once(root) else None
        self.complete = self.raw
        if self.raw and (with_rest or exact):
            self.complete = ColumnReader(root, clean=False, all_fields=True)

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """See `schemas.values.Decoder`."""
        budget = budget or MemoryBudget(payloads)
        budget.take(len(payloads) * self._row_bytes)
        batch = _Batch(self, payloads)
        if self.rows.item_bytes:  # of one row alone, RowReader says whether it is too large
            budget.take(most_bytes(batch.content, self.rows.item_bytes))
        return batch.run()


class _Batch:
    """One call's work. Rows here count in the payloads that are not null."""

    def __init__(self, decoder: JsonDecoder, payloads: pa.Array) -> None:
        self._decoder = decoder
        self._count = len(payloads)
        self._present = np.flatnonzero(is_valid(payloads)) if payloads.null_count else None
        self._texts = _binary(payloads.drop_null() if payloads.null_count else payloads)
        offsets = np.frombuffer(self._texts.buffers()[1], np.int32)
        at = self._texts.offset
        self._offsets = offsets[at : at + len(self._texts) + 1].astype(np.int64)
        data = self._texts.buffers()[2]
        self._data = np.frombuffer(data if data is not None else b"", np.uint8)
        self._pieces: list[pa.Array] = []
        self._piece_rows: list[NDArray[np.int64]] = []
        self._clean_texts: list[str] = []
        self._clean_rows: list[int] = []
        self._left: list[tuple[int, str]] = []
        self._bad: list[tuple[int, str]] = []

    def run(self) -> Decoded:
        complete, raw = self._decoder.complete, self._decoder.raw
        if complete is None or raw is None or len(self._texts) < FEWEST_AT_ONCE:
            self._one_by_one(np.arange(len(self._texts)))
        else:
            self._one_by_one(np.sort(np.concatenate(self._at_once(complete, raw))))
        self._read_clean()
        return self._decoded()

    def _at_once(self, complete: ColumnReader, raw: ColumnReader) -> list[NDArray[np.int64]]:
        """Reads what can be read at once; returns the other rows."""
        offsets = self._offsets
        full = np.flatnonzero(np.diff(offsets))
        doubts = np.ones(len(self._texts), np.bool_)
        if len(full):
            starts, ends = offsets[full] - offsets[0], offsets[full + 1] - offsets[0]
            doubts[full] = doubtful(self._content, starts, ends)
            if size := self._decoder.rows.item_bytes:
                doubts[full] |= suspects(self.content, starts, ends, size)
        alone = [np.flatnonzero(doubts)]
        waiting = self._blocks(np.flatnonzero(~doubts))
        patience = MAX_IN_VAIN * len(self._texts)
        while waiting:
            rows = waiting.pop()
            if len(rows) < FEWEST_AT_ONCE or patience < 0:
                alone.append(rows)
                continue
            texts = self._taken(rows)
            try:
                try:
                    piece = complete.read(texts)
                except NotReadError as error:
                    if not error.unknown:
                        raise
                    if self._decoder.exact:  # one by one tells which row it is
                        alone.append(rows)
                        continue
                    piece = raw.read(texts)
                    self._left += self._unknown(rows)
            except NotReadError as error:
                stopped = min(error.row if error.row is not None else len(rows), len(rows))
                patience -= stopped + CALL_COSTS
                parts = self._parted(rows, stopped, error.text)
                alone.append(parts[0])
                waiting.extend(parts[1:])
                continue
            self._pieces.append(piece)
            self._piece_rows.append(rows)
        return alone

    def _unknown(self, rows: NDArray[np.int64]) -> list[tuple[int, str]]:
        """What is left over of rows that were read at once."""
        unknown = self._decoder.rows.unknown
        try:
            lefts = [(row, unknown(text)) for row, text in self._each(rows)]
        except BrokenTextError:  # that the two parsers differ is not known to happen
            raise NotReadError from None
        return [(row, left) for row, left in lefts if left is not None]

    def _blocks(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Rows in parts of bounded size."""
        ends = np.cumsum(self._offsets[rows + 1] - self._offsets[rows])
        if not len(rows) or ends[-1] <= MAX_BYTES_AT_ONCE:
            return [rows]
        return np.split(rows, np.flatnonzero(np.diff(ends // MAX_BYTES_AT_ONCE)) + 1)

    def _parted(
        self, rows: NDArray[np.int64], stopped: int, text: bytes | None
    ) -> list[NDArray[np.int64]]:
        """What to do after a failure at a row, or because of a text that some rows have: first the
        rows that are suspect, then parts of the others."""
        if stopped < len(rows):
            after = rows[stopped + 1 :]
            cuts = range(MAX_AFTER_FAILURE, len(after), MAX_AFTER_FAILURE)
            return [rows[stopped : stopped + 1], rows[:stopped], *np.split(after, list(cuts))]
        if text:
            starts = self._offsets - self._offsets[0]
            first, end = int(starts[rows[0]]), int(starts[rows[-1] + 1])
            at = self._content.find(text, first, end)
            suspect: list[int] = []
            while at >= 0 and len(suspect) <= len(rows) // 8:
                row = bisect.bisect_right(starts, at) - 1
                suspect.append(row)
                at = self._content.find(text, int(starts[row + 1]), end)
            has_it = np.isin(rows, suspect)
            if at < 0 and np.any(has_it):
                return [rows[has_it], rows[~has_it]]
        return [rows[:0], *np.array_split(rows, 4)]

    def _taken(self, rows: NDArray[np.int64]) -> pa.Array:
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            return self._texts.slice(first, len(rows))
        return self._texts.take(from_numpy(rows))

    @property
    def content(self) -> NDArray[np.uint8]:
        """All texts, one after the other."""
        return self._data[self._offsets[0] : self._offsets[-1]]

    @cached_property
    def _content(self) -> bytes:
        return self.content.tobytes()

    def _each(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
        """Rows with their texts."""
        data, first = self._content, self._offsets[0]
        starts = (self._offsets[rows] - first).tolist()
        ends = (self._offsets[rows + 1] - first).tolist()
        for row, start, end in zip(rows.tolist(), starts, ends, strict=True):
            yield row, data[start:end]

    def _one_by_one(self, rows: NDArray[np.int64]) -> None:
        read = self._decoder.rows.read
        for row, payload in self._each(rows):
            try:
                text, left = read(payload)
            except UnfitError as error:
                self._bad.append((row, str(error)))
                continue
            self._clean_rows.append(row)
            self._clean_texts.append(text)
            if left is not None:
                self._left.append((row, left))

    def _read_clean(self) -> None:
        if not self._clean_texts:
            return
        texts = _strings([f'{{"v":{text}}}'.encode() for text in self._clean_texts], pa.binary())
        rows = np.array(self._clean_rows, np.int64)
        try:
            self._pieces.append(self._decoder.clean.read(texts))
            self._piece_rows.append(rows)
        except NotReadError:  # no such text is known; if there is one, it is bad and alone
            for at, row in enumerate(self._clean_rows):
                try:
                    self._pieces.append(self._decoder.clean.read(texts.slice(at, 1)))
                    self._piece_rows.append(rows[at : at + 1])
                except NotReadError:
                    self._bad.append((row, "the value cannot be read as its type"))

    def _decoded(self) -> Decoded:
        bad = sorted(self._bad)
        rows = np.array([row for row, _ in bad], np.int64)
        present = self._present
        return Decoded(
            values=self._values(),
            bad_rows=rows if present is None else present[rows],
            reasons=limit_reasons([reason for _, reason in bad]),
            rest=self._rests() if self._decoder.with_rest else None,
        )

    def _values(self) -> pa.Array:
        """The pieces in the rows' order, with null for all other rows."""
        if len(self._pieces) == 1 and len(self._pieces[0]) == self._count:
            return self._pieces[0]
        places = np.full(self._count, -1, np.int64)
        at = 0
        for rows in self._piece_rows:
            there = rows if self._present is None else self._present[rows]
            places[there] = np.arange(at, at + len(rows))
            at += len(rows)
        if not at:
            return pa.nulls(self._count, self._decoder.type)
        values = self._pieces[0] if len(self._pieces) == 1 else pa.concat_arrays(self._pieces)
        return values.take(_with_nulls(places))

    def _rests(self) -> pa.Array:
        left = dict(self._left)
        if not left:
            return pa.nulls(self._count, pa.string())
        texts = _strings([text.encode() for text in left.values()], pa.string())
        places = np.full(self._count, -1, np.int64)
        rows = np.array(list(left), np.int64)
        places[rows if self._present is None else self._present[rows]] = np.arange(len(rows))
        return texts.take(_with_nulls(places))


def _binary(payloads: pa.Array) -> pa.Array:
    if pa.types.is_binary(payloads.type):
        return payloads
    return payloads.cast(pa.binary())


def _with_nulls(places: NDArray[np.int64]) -> pa.Array:
    """Indexes, null where they are negative."""
    valid = from_numpy(places >= 0).buffers()[1]
    return pa.Array.from_buffers(pa.int64(), len(places), [valid, pa.py_buffer(places)])


def _strings(texts: list[bytes], kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    data = pa.py_buffer(b"".join(texts))
    return pa.Array.from_buffers(kind, len(texts), [None, pa.py_buffer(offsets), data])
