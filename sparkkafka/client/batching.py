"""Rows of partitions wait until they fill a batch, or for linger.ms, and are then encoded."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from sparkkafka.client.metadata import TopicPartition
from sparkkafka.options import ProducerOptions
from sparkkafka.protocol.columns import EncodedBatch, RecordColumns, encode_batches
from sparkkafka.protocol.records import HEADER_BYTES

Piece = TypeVar("Piece")


class _Pending(Generic[Piece]):
    """A partition's rows that do not fill a batch yet. `since_s` is when the first of them came."""

    __slots__ = ("columns", "largest_bytes", "pieces", "since_s", "size_bytes")

    def __init__(self) -> None:
        self.columns: list[RecordColumns] = []
        self.pieces: list[Piece] = []
        self.size_bytes = 0
        self.largest_bytes = 0
        self.since_s = 0.0


class Batcher(Generic[Piece]):
    """Pending rows of all partitions.

    Sealed batches go to `add(partition, batches, pieces, since_s)`: `pieces` are what `put` was
    given along with the rows, one for each call, and `since_s` is when the first of them came.
    """

    def __init__(
        self,
        options: ProducerOptions,
        add: Callable[[TopicPartition, list[EncodedBatch], Sequence[Piece], float], None],
    ) -> None:
        self._options = options
        self._add = add
        self._pending: dict[TopicPartition, _Pending[Piece]] = {}
        # (since, number, partition) of pending rows, as a heap; what was sealed since is passed
        # over.
        self._lingering: list[tuple[float, int, TopicPartition]] = []
        self._numbers = itertools.count()
        self.pending_bytes = 0

    def put(
        self,
        tp: TopicPartition,
        columns: RecordColumns,
        piece: Piece,
        *,
        size_bytes: int,
        largest_bytes: int,
        since_s: float | None = None,
    ) -> None:
        """Rows behind those that the partition has; the two sizes are `size_estimate`'s."""
        pending = self._pending.get(tp)
        if pending is None:
            pending = self._pending[tp] = _Pending()
        if not pending.columns:
            pending.since_s = time.monotonic() if since_s is None else since_s
            heapq.heappush(self._lingering, (pending.since_s, next(self._numbers), tp))
        pending.columns.append(columns)
        pending.pieces.append(piece)
        pending.size_bytes += size_bytes
        pending.largest_bytes = max(pending.largest_bytes, largest_bytes)
        self.pending_bytes += size_bytes
        if pending.size_bytes >= self._options.batch_size or self._options.linger_ms == 0:
            self._seal(tp, pending)

    def size_of(self, tp: TopicPartition) -> int:
        """Bytes of a partition's rows that wait."""
        pending = self._pending.get(tp)
        return pending.size_bytes if pending is not None else 0

    def rows(self) -> Iterator[tuple[TopicPartition, int]]:
        """How many rows of each partition wait."""
        for tp, pending in self._pending.items():
            yield tp, sum(len(columns.timestamps_ms) for columns in pending.columns)

    def next_seal_s(self) -> float | None:
        """When `seal_lingering` has something to do (monotonic seconds), None for never."""
        self._pass_over_sealed()
        return self._lingering[0][0] + self._options.linger_ms / 1000 if self._lingering else None

    def seal_lingering(self) -> None:
        """Seal what has waited for linger.ms."""
        limit_s = time.monotonic() - self._options.linger_ms / 1000
        self._pass_over_sealed()
        while self._lingering and self._lingering[0][0] <= limit_s:
            tp = heapq.heappop(self._lingering)[2]
            self._seal(tp, self._pending[tp])
            self._pass_over_sealed()

    def seal_all(self) -> None:
        for tp, pending in self._pending.items():
            self._seal(tp, pending)

    def drop_all(self) -> list[Piece]:
        """Forget all rows that wait; their pieces."""
        dropped = [piece for pending in self._pending.values() for piece in pending.pieces]
        self._pending.clear()
        self._lingering.clear()
        self.pending_bytes = 0
        return dropped

    def _pass_over_sealed(self) -> None:
        while self._lingering:
            since_s, _, tp = self._lingering[0]
            pending = self._pending[tp]
            if pending.columns and pending.since_s == since_s:
                return
            heapq.heappop(self._lingering)

    def _seal(self, tp: TopicPartition, pending: _Pending[Piece]) -> None:
        """Encode a partition's pending rows into batches of at most batch.size."""
        if not pending.columns:
            return
        columns = concat_columns(pending.columns)
        pieces, total, largest = pending.pieces, pending.size_bytes, pending.largest_bytes
        self.pending_bytes -= total
        pending.columns, pending.pieces, pending.size_bytes, pending.largest_bytes = [], [], 0, 0
        # Even cuts: 1.1 batches' worth becomes two of 0.55, not one full and one almost empty.
        options = self._options
        limit = max(min(options.batch_size, options.max_request_size) - HEADER_BYTES, 1)
        share = -(-total // -(-total // limit))
        cut = min(limit, share + largest) + HEADER_BYTES
        batches = encode_batches(columns, max_batch_bytes=cut)
        self._add(tp, batches, pieces, pending.since_s)


def concat_columns(parts: list[RecordColumns]) -> RecordColumns:
    """Several columns of records as one, in order. A column that some lack is filled with nulls."""
    if len(parts) == 1:
        return parts[0]
    lengths = [len(part.timestamps_ms) for part in parts]

    def join(name: str) -> pa.Array | None:
        arrays = [getattr(part, name) for part in parts]
        known = next((array for array in arrays if array is not None), None)
        if known is None:
            return None
        return pa.concat_arrays(
            [
                array if array is not None else pa.nulls(length, known.type)
                for array, length in zip(arrays, lengths, strict=True)
            ]
        )

    return RecordColumns(
        keys=join("keys"),
        values=join("values"),
        headers=join("headers"),
        timestamps_ms=np.concatenate([part.timestamps_ms for part in parts]),
    )
