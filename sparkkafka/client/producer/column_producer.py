"""Columns of records -> batches of partitions -> the sender: batching and back-pressure.

`Batcher` keeps rows until they fill a batch or linger.ms is over, and encodes them; Spark's writes
and the library's Producer both use it. A task of Spark writes with a `ColumnProducer`: `send` takes
columns, `sender.py` sends their batches while the caller prepares its next rows, `flush` waits for
all of them. There is only the caller's thread.

Every later call of a ColumnProducer that failed raises its first error again, so that no caller
goes on after a gap. The error has the number of records of each partition that are written, not
written, and perhaps written (`KafkaError.partitions`).
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.partition_queue import BatchCallback
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.producer.sender import ProducerMetrics, Sender
from sparkkafka.client.producer.sender_transaction import ProducerTransaction
from sparkkafka.client.producer.topic_lookup import TopicLookup
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    EncodeError,
    KafkaError,
    KafkaTimeoutError,
    PartitionOutcome,
    ProduceError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.columns.encode import (
    EncodedBatch,
    RecordColumns,
    encode_runs,
    record_sizes,
    size_estimate,
    sliced,
)
from sparkkafka.protocol.records.arrow import BATCH_POOL
from sparkkafka.protocol.records.batches import HEADER_BYTES

STEP_INTERVAL_S = 0.002

SIZE_SLACK_BYTES = 64
"""Records that may be too large by so little are measured one by one."""

Piece = TypeVar("Piece")

_TOGETHER_BYTES = 4 << 20
"""Encoded together at most. All its batches stay in memory until the last is acknowledged."""

_HELD_SHARE = 0.5
"""Of buffer.memory: the rest is for records on their way, however large the columns are."""

_ALONE_BYTES = 256 << 10
"""A partition's rows of this size are encoded by themselves, which saves a copy."""


Rows = tuple[RecordColumns, int, int]
"""A table, and its first row and the row behind its last. Rows are cut out of their table only when
they are encoded: by then, neighbours have often come together again."""


@dataclass(slots=True, eq=False)
class _Pending(Generic[Piece]):
    """A partition's rows that do not fill a batch yet; the first one came at `since_s`."""

    since_s: float
    rows: list[Rows] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    size_bytes: int = 0


class Batcher(Generic[Piece]):
    """Pending rows of all partitions.

    Sealed batches go to `add(partition, batches, pieces, since_s)`: `pieces` are those of the calls
    of `hold`, and the first row came at `since_s`.
    """

    def __init__(
        self,
        options: ProducerOptions,
        add: Callable[[TopicPartition, list[EncodedBatch], Sequence[Piece], float], None],
    ) -> None:
        self._options = options
        self._add = add
        self._batch_bytes = max(min(options.batch_size, options.max_request_size), 1)
        self._room_bytes = max(self._batch_bytes - HEADER_BYTES, 1)  # for a batch's records
        self._pending: dict[TopicPartition, _Pending[Piece]] = {}
        self._full: list[tuple[TopicPartition, _Pending[Piece]]] = []
        # (since, number, partition) of pending rows, as a heap; sealed rows are skipped.
        self._lingering: list[tuple[float, int, TopicPartition]] = []
        self._numbers = itertools.count()
        self.pending_bytes = 0

    def put(
        self, tp: TopicPartition, columns: RecordColumns, piece: Piece, *, size_bytes: int
    ) -> None:
        """Append rows of a partition and seal full batches. The size is that of `size_estimate`."""
        self.hold(tp, (columns, 0, len(columns.timestamps_ms)), piece, size_bytes=size_bytes)
        self.seal_full()

    def hold(
        self,
        tp: TopicPartition,
        rows: Rows,
        piece: Piece,
        *,
        size_bytes: int,
        since_s: float | None = None,
    ) -> None:
        """As `put`, but seals nothing before `seal_full`: sealing rows together costs less."""
        pending = self._pending.get(tp)
        if (
            pending is not None
            and pending.size_bytes + size_bytes > self._room_bytes
            and size_bytes <= self._room_bytes // 2
        ):
            # As in Java, a batch is full when the next rows do not fit. Together they would become
            # two of half the size.
            self._full.append((tp, self._pending.pop(tp)))
            pending = None
        if pending is None:
            pending = _Pending(time.monotonic() if since_s is None else since_s)
            self._pending[tp] = pending
            heapq.heappush(self._lingering, (pending.since_s, next(self._numbers), tp))
        pending.rows.append(rows)
        pending.pieces.append(piece)
        pending.size_bytes += size_bytes
        self.pending_bytes += size_bytes
        if pending.size_bytes >= self._options.batch_size or self._options.linger_ms == 0:
            self._full.append((tp, self._pending.pop(tp)))

    def size_of(self, tp: TopicPartition) -> int:
        pending = self._pending.get(tp)
        return pending.size_bytes if pending is not None else 0

    def rows(self) -> Iterator[tuple[TopicPartition, int]]:
        """The number of pending rows of each partition."""
        for tp, pending in self._pending.items():
            yield tp, sum(high - low for _, low, high in pending.rows)

    def next_seal_s(self) -> float | None:
        """When `seal_lingering` is due (monotonic seconds), None for never."""
        self._pass_over_sealed()
        return self._lingering[0][0] + self._options.linger_ms / 1000 if self._lingering else None

    def seal_full(self) -> None:
        self._seal_later([])

    def seal_lingering(self) -> None:
        limit_s = time.monotonic() - self._options.linger_ms / 1000
        due = []
        self._pass_over_sealed()
        while self._lingering and self._lingering[0][0] <= limit_s:
            tp = heapq.heappop(self._lingering)[2]
            due.append((tp, self._pending.pop(tp)))
            self._pass_over_sealed()
        self._seal_later(due)

    def seal_all(self) -> None:
        due = list(self._pending.items())
        self._pending.clear()
        self._lingering.clear()
        self._seal_later(due)

    def drop_all(self) -> list[Piece]:
        """Forget all pending rows, and return their pieces."""
        waiting = [*(pending for _, pending in self._full), *self._pending.values()]
        dropped = [piece for pending in waiting for piece in pending.pieces]
        self._pending.clear()
        self._full.clear()
        self._lingering.clear()
        self.pending_bytes = 0
        return dropped

    def _pass_over_sealed(self) -> None:
        while self._lingering:
            since_s, _, tp = self._lingering[0]
            pending = self._pending.get(tp)
            if pending is not None and pending.since_s == since_s:
                return
            heapq.heappop(self._lingering)

    def _seal_later(self, due: list[tuple[TopicPartition, _Pending[Piece]]]) -> None:
        """Seal what is full, then what is due."""
        waiting, self._full = [*self._full, *due], []
        together: list[tuple[TopicPartition, _Pending[Piece]]] = []
        size_bytes = 0
        for one in waiting:
            own_bytes = one[1].size_bytes
            if together and own_bytes >= _ALONE_BYTES:
                self._seal(together)  # first: a partition can be there twice, in its order
                together, size_bytes = [], 0
            together.append(one)
            size_bytes += own_bytes
            if own_bytes >= _ALONE_BYTES or size_bytes >= _TOGETHER_BYTES:
                self._seal(together)
                together, size_bytes = [], 0
        if together:
            self._seal(together)

    def _seal(self, due: list[tuple[TopicPartition, _Pending[Piece]]]) -> None:
        """Encode pending rows into batches of at most batch.size."""
        self.pending_bytes -= sum(pending.size_bytes for _, pending in due)
        parts: list[Rows] = []
        run_ends = []
        end = 0
        for _, pending in due:
            for rows in pending.rows:
                columns, low, high = rows
                if parts and parts[-1][0] is columns and parts[-1][2] == low:
                    rows = (columns, parts.pop()[1], high)
                parts.append(rows)
                end += high - low
            run_ends.append(end)
        joined = concat_columns([sliced(*rows) for rows in parts])
        runs = encode_runs(joined, run_ends, max_batch_bytes=self._batch_bytes)
        for (tp, pending), batches in zip(due, runs, strict=True):
            self._add(tp, batches, pending.pieces, pending.since_s)


def concat_columns(parts: list[RecordColumns]) -> RecordColumns:
    """The records in order. A column that some lack is filled with nulls."""
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
            ],
            BATCH_POOL,
        )

    return RecordColumns(
        keys=join("keys"),
        values=join("values"),
        headers=join("headers"),
        timestamps_ms=np.concatenate([part.timestamps_ms for part in parts]),
    )


class _AllOrNothing:
    """The owner of all batches: the first failure ends the producer."""

    def acknowledged(self, base_offset: int, log_append_time_ms: int) -> None:
        pass

    def failed(self, error: ProduceError, record_messages: Mapping[int, str | None]) -> None:
        cause = error.__cause__
        # A request that cannot be expressed at all is no fault of this partition.
        raise cause if isinstance(cause, UnsupportedVersionError | EncodeError) else error

    def split(self, counts: Sequence[int]) -> Sequence[BatchCallback]:
        return [self] * len(counts)


_OWNER = _AllOrNothing()


class ColumnProducer:
    """Idempotent (unless told otherwise) producer of one thread. Use it under `with`.

    >>> with ColumnProducer(cluster, options) as producer:          # doctest: +SKIP
    ...     producer.send("orders", 0, RecordColumns(keys, values, None, timestamps_ms))
    ...     producer.flush()

    Leaving the block without an exception flushes; with one it drops what is not sent. Records are
    part of the `transaction`, if there is one, which the caller ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self._options = options
        self._prefix = cluster.options.prefix
        lookup = TopicLookup(cluster, grace_ms=cluster.options.request_timeout_ms)
        self._sender = Sender(cluster, options, transaction, lookup=lookup)
        self._batcher: Batcher[None] = Batcher(
            options,
            lambda tp, batches, *_: self._sender.append(tp, batches, itertools.repeat(_OWNER)),
        )
        self._next_step_s = 0.0
        self._failure: KafkaError | None = None
        self.held_bytes = 0
        """What the caller holds of columns. It counts as buffered, up to `_HELD_SHARE`."""

    @property
    def metrics(self) -> ProducerMetrics:
        return self._sender.metrics

    @property
    def buffered_bytes(self) -> int:
        """Records that are not acknowledged yet; with `held_bytes`, what buffer.memory bounds."""
        return self._batcher.pending_bytes + self._sender.queued_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *rest: object
    ) -> None:
        if exc_type is None:
            self.flush()
        elif isinstance(error, KafkaError):
            error.add_outcomes(self.outcomes())

    def send(self, topic: str, partition: int, columns: RecordColumns) -> None:
        """Queue records of one partition, in order, and send what is ready.

        Waits while more than buffer.memory is queued and held, at most max.block.ms. Raises
        ProduceError if a record is larger than max.request.size (before any of `columns` is sent)
        or an earlier record failed; KafkaTimeoutError after max.block.ms.
        """
        size_bytes, largest_bytes = size_estimate(columns)
        if not size_bytes:
            return
        tp = TopicPartition(topic, partition)
        if self._perhaps_too_large(largest_bytes):
            self._check_sizes(tp, record_sizes(columns))
        self._guard(lambda: self._send(tp, columns, size_bytes))

    def surely_fit(self, columns: RecordColumns) -> bool:
        """Whether each record is surely below max.request.size; if not, call `check_sizes`."""
        return not self._perhaps_too_large(size_estimate(columns)[1])

    def check_sizes(self, topic: str, partition: int, columns: RecordColumns) -> None:
        """Raise the error of `send` if a record is too large."""
        if columns.timestamps_ms.size:
            self._check_sizes(TopicPartition(topic, partition), record_sizes(columns))

    def seal(self) -> None:
        """Put pending rows into batches, whatever linger.ms says.

        Pending rows are views of the caller's columns, and keep all of these in memory.
        """
        self._guard(self._batcher.seal_all)

    def flush(self) -> None:
        """Send everything and wait for the acknowledgements. Raises ProduceError."""
        self._guard(self._flush)

    def outcomes(self) -> dict[tuple[str, int], PartitionOutcome]:
        """What is known about the records of each partition."""
        found = self._sender.outcomes()
        for tp, rows in self._batcher.rows():
            known = found.get(tp, PartitionOutcome(0, 0, 0))
            found[tp] = known._replace(not_written_records=known.not_written_records + rows)
        return {(tp.topic, tp.partition): outcome for tp, outcome in found.items()}

    def _guard(self, action: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            action()
        except KafkaError as error:
            error.add_outcomes(self.outcomes())
            self._failure = error
            raise

    def _send(self, tp: TopicPartition, columns: RecordColumns, size_bytes: int) -> None:
        self._batcher.put(tp, columns, None, size_bytes=size_bytes)
        self._batcher.seal_lingering()
        self._make_room()

    def _flush(self) -> None:
        self._batcher.seal_all()
        self._sender.finish()

    def _make_room(self) -> None:
        most = self._options.buffer_memory
        limit = most - min(self.held_bytes, int(most * _HELD_SHARE))
        now_s = time.monotonic()
        if self.buffered_bytes <= limit:
            # A step visits every partition with something to send, and there can be thousands: not
            # after each handful of rows.
            if now_s >= self._next_step_s:
                self._sender.step(wait=False)
                self._next_step_s = time.monotonic() + STEP_INTERVAL_S
            return
        deadline = Deadline(self._options.max_block_ms)
        self._batcher.seal_all()
        self._sender.step(wait=False)
        while self._sender.queued_bytes > limit:
            if deadline.expired:
                raise KafkaTimeoutError(
                    "the brokers take records too slowly: "
                    f"{self._sender.queued_bytes} bytes wait, more than {limit} of "
                    f"{self._prefix}buffer.memory={most}, for longer than "
                    f"{self._prefix}max.block.ms={self._options.max_block_ms}"
                    f"{self._last_errors()}"
                )
            self._sender.step(wait=True)

    def _last_errors(self) -> str:
        errors = {str(error) for error in self._sender.errors()}
        return "; last failures: " + "; ".join(sorted(errors)[:3]) if errors else ""

    def _perhaps_too_large(self, largest_bytes: int) -> bool:
        limit = self._options.max_request_size
        return HEADER_BYTES + largest_bytes + SIZE_SLACK_BYTES > limit

    def _check_sizes(self, tp: TopicPartition, sizes: np.ndarray) -> None:
        size_bytes = HEADER_BYTES + int(sizes.max())
        if size_bytes > self._options.max_request_size:
            raise too_large(tp.topic, tp.partition, size_bytes, self._options, self._prefix)
