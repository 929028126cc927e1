"""Payloads -> values: as many as can be at once, the others one by one."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.schemas.json.columns import ColumnReader, NotReadError, at_once, doubtful
from sparkkafka.schemas.json.plan import Node
from sparkkafka.schemas.json.rows import RowReader, UnfitError
from sparkkafka.schemas.values import Decoded

FEWEST_AT_ONCE: Final = 64
"""Fewer texts are read one by one: a call of the reader costs as much."""
MOST_BYTES_AT_ONCE: Final = 16 << 20
MOST_FAILURES: Final = 24
"""After so many of a batch all the rest of it is read one by one: it is full of what the fast
reader does not take."""


class JsonDecoder:
    """Decodes JSON texts into the values of one node. With `rest`, see `rows.RowReader`."""

    def __init__(self, root: Node, rest: bool = False) -> None:
        self._root = root
        self._rest = rest
        self._rows = RowReader(root, rest)
        self._clean = ColumnReader(root, clean=True)
        self._raw = ColumnReader(root, clean=False, all_fields=rest) if at_once(root) else None

    @property
    def type(self) -> pa.DataType:
        return self._root.type

    def decode(self, payloads: pa.Array) -> Decoded:
        """See `schemas.values.Decoder`."""
        return _Batch(self._root, self._rows, self._raw, self._clean, self._rest, payloads).run()


class _Batch:
    """One call's work. Rows here count in the payloads that are not null."""

    def __init__(
        self,
        root: Node,
        rows: RowReader,
        raw: ColumnReader | None,
        clean: ColumnReader,
        rest: bool,
        payloads: pa.Array,
    ) -> None:
        self._root, self._rows, self._raw, self._clean = root, rows, raw, clean
        self._rest = rest
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
        alone: list[int] = []
        if self._raw is None or not len(self._texts):
            alone.extend(range(len(self._texts)))
        else:
            alone.extend(self._at_once(self._raw))
        for row in sorted(alone):
            self._one(row)
        self._read_clean()
        return self._decoded()

    def _at_once(self, reader: ColumnReader) -> list[int]:
        """Reads what can be read at once; returns the other rows."""
        offsets = self._offsets
        full = np.flatnonzero(np.diff(offsets))
        alone = np.ones(len(self._texts), np.bool_)
        if len(full):
            first, last = offsets[0], offsets[-1]
            starts, ends = offsets[full] - first, offsets[full + 1] - first
            alone[full] = doubtful(self._data[first:last], starts, ends)
        rows = np.flatnonzero(~alone)
        others = np.flatnonzero(alone).tolist()
        texts = self._texts if len(rows) == len(self._texts) else _taken(self._texts, rows)
        ends = np.cumsum(offsets[rows + 1] - offsets[rows])
        at, failures, size = 0, 0, len(rows)
        while at < len(rows):
            before = int(ends[at - 1]) if at else 0
            fits = int(np.searchsorted(ends, before + MOST_BYTES_AT_ONCE, side="right")) - at
            count = min(size, fits, len(rows) - at)
            if count < FEWEST_AT_ONCE or failures > MOST_FAILURES:
                count = min(max(count, FEWEST_AT_ONCE), len(rows) - at)
                others.extend(rows[at : at + count].tolist())
                at += count
                size = max(size, 2 * FEWEST_AT_ONCE)
                continue
            try:
                self._pieces.append(reader.read(texts.slice(at, count)))
            except NotReadError as error:
                failures += 1
                if error.row is not None and error.row < count:
                    size = error.row
                    if not size:
                        others.append(int(rows[at]))
                        at += 1
                        size = len(rows)
                else:
                    size = count // 4
                continue
            self._piece_rows.append(rows[at : at + count])
            at += count
            size = max(4 * size, 2 * FEWEST_AT_ONCE)
        return others

    def _one(self, row: int) -> None:
        payload = self._data[self._offsets[row] : self._offsets[row + 1]].tobytes()
        try:
            text, left = self._rows.read(payload)
        except UnfitError as error:
            self._bad.append((row, str(error)))
            return
        self._clean_rows.append(row)
        self._clean_texts.append(f'{{"v":{text}}}')
        if left is not None:
            self._left.append((row, left))

    def _read_clean(self) -> None:
        if not self._clean_texts:
            return
        texts = _strings([text.encode() for text in self._clean_texts], pa.binary())
        rows = np.array(self._clean_rows, np.int64)
        try:
            self._pieces.append(self._clean.read(texts))
            self._piece_rows.append(rows)
        except NotReadError:  # no such text is known; if there is one, it is bad and alone
            for at, row in enumerate(self._clean_rows):
                try:
                    self._pieces.append(self._clean.read(texts.slice(at, 1)))
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
            reasons=tuple(reason for _, reason in bad),
            rest=self._rests() if self._rest else None,
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
            return _nulls(self._root.type, self._count)
        values = self._pieces[0] if len(self._pieces) == 1 else pa.concat_arrays(self._pieces)
        return values.take(_with_nulls(places))

    def _rests(self) -> pa.Array:
        left = dict(self._left)
        if not left:
            return _nulls(pa.string(), self._count)
        texts = _strings([text.encode() for text in left.values()], pa.string())
        places = np.full(self._count, -1, np.int64)
        rows = np.array(list(left), np.int64)
        places[rows if self._present is None else self._present[rows]] = np.arange(len(rows))
        return texts.take(_with_nulls(places))


def _binary(payloads: pa.Array) -> pa.Array:
    if pa.types.is_binary(payloads.type):
        return payloads
    return payloads.cast(pa.binary())


def _taken(texts: pa.Array, rows: NDArray[np.int64]) -> pa.Array:
    return texts.take(from_numpy(rows))


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, kind)


def _with_nulls(places: NDArray[np.int64]) -> pa.Array:
    """Indexes, null where they are negative."""
    valid = from_numpy(places >= 0).buffers()[1]
    return pa.Array.from_buffers(pa.int64(), len(places), [valid, pa.py_buffer(places)])


def _strings(texts: list[bytes], kind: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    data = pa.py_buffer(b"".join(texts))
    return pa.Array.from_buffers(kind, len(texts), [None, pa.py_buffer(offsets), data])
