"""Where one field of many records lies in a byte array, and copying it into an Arrow array."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.varints import Bytes, Ints


class Pieces(NamedTuple):
    """One at each of these positions, of so many bytes; -1 is null. Ascending, not overlapping."""

    at: Ints
    lengths: Ints

    def take(self, data: pa.Buffer, keep: NDArray[np.bool_] | None = None) -> pa.Array:
        """Arrow's binary array, of the rows to `keep`."""
        if keep is None:
            return gather(data, self.at, self.lengths)
        return gather(data, self.at[keep], self.lengths[keep])


class GridPart(NamedTuple):
    """`batches` times `records` places. The first is at `begin`; the same record of the next batch
    lies `batch_step` bytes behind, the next record of a batch `record_step`."""

    begin: int
    batches: int
    batch_step: int
    records: int
    record_step: int

    def moved(self, by: int) -> GridPart:
        return self._replace(begin=self.begin + by)

    def view(self, data: Bytes, kind: type[Any], *, bytes_each: int = 0) -> NDArray[Any]:
        """What lies there in two dimensions, or three with `bytes_each`. Raises ValueError for
        places outside `data`."""
        shape: tuple[int, ...] = (self.batches, self.records)
        strides: tuple[int, ...] = (self.batch_step, self.record_step)
        if bytes_each:
            shape, strides = (*shape, bytes_each), (*strides, 1)
        return np.ndarray(shape, kind, data.data, self.begin, strides)

    def positions(self) -> Ints:
        """In one dimension."""
        in_batch = np.arange(self.records) * self.record_step
        batches = np.arange(self.batches) * self.batch_step + self.begin
        return (batches[:, None] + in_batch).ravel()


class GridRows(NamedTuple):
    """Rows from `row` on, in batches of `per_batch` rows: `part` is what those from `first` on have
    in each."""

    row: int
    per_batch: int
    first: int
    part: GridPart

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """Their place in a column of all rows, in as many dimensions as `GridPart.view`."""
        part = self.part
        some = column[self.row : self.row + part.batches * self.per_batch]
        whole = some.reshape(part.batches, self.per_batch, *column.shape[1:])
        return whole[:, self.first : self.first + part.records]


class Grid(NamedTuple):
    """Places of one length (-1: all null), which cover `rows` rows."""

    rows: int
    length: int
    parts: list[GridRows]

    def take(self, data: pa.Buffer, keep: NDArray[np.bool_] | None = None) -> pa.Array:
        """As `Pieces.take`: twice as fast, as nothing is looked up."""
        if keep is not None:
            return self._pieces().take(data, keep)
        if self.length < 0:
            return pa.nulls(self.rows, pa.binary())
        content = pa.allocate_buffer(self.rows * self.length)
        if self.length:
            source = np.frombuffer(data, np.uint8)
            target = np.frombuffer(content, np.uint8).reshape(self.rows, self.length)
            for rows in self.parts:
                rows.of(target)[...] = rows.part.view(source, np.uint8, bytes_each=self.length)
        ends = np.arange(self.rows + 1, dtype=np.int32)
        ends *= self.length
        return pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(ends), content])

    def _pieces(self) -> Pieces:
        at = np.empty(self.rows, np.int64)
        for rows in self.parts:
            target = rows.of(at)
            target[...] = rows.part.positions().reshape(target.shape)
        return Pieces(at, np.full(self.rows, self.length, np.int64))


_EVEN: list[pa.Array] = [from_numpy(np.arange(0, 2 << 14, 2, dtype=np.int32))]  # grows


def gather(data: pa.Buffer, starts: Ints, lengths: Ints) -> pa.Array:
    """Arrow binary array of the given pieces of `data`, null where the length is -1.

    The pieces ascend and do not overlap. Arrow copies: the pairs (start, end) are the offsets of
    an array with twice as many entries, of which every other one is taken.
    """
    count = len(starts)
    smallest = int(lengths.min()) if count else 0
    if count == 0 or (smallest < 0 and int(lengths.max()) < 0):
        return pa.nulls(count, pa.binary())
    pairs = np.empty(2 * count, np.int32)
    pairs[0::2] = starts
    pairs[1::2] = starts + (lengths if smallest >= 0 else np.maximum(lengths, 0))
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(pairs), data])
    while len(_EVEN[0]) < count:
        _EVEN[0] = from_numpy(np.arange(0, 4 * len(_EVEN[0]), 2, dtype=np.int32))
    taken = both.take(_EVEN[0].slice(0, count))
    if smallest >= 0:
        return taken
    _, offsets, content = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [validity(lengths >= 0), offsets, content])


def validity(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
