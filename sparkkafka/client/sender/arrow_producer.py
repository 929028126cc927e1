"""Write columns of records to partitions: batching and back-pressure.

`send` takes columns and cuts them into batches; `sender.py` carries these to the leaders while the
caller prepares its next rows; `flush` waits for all of them. One thread does everything.

A producer that failed stays failed: its first error is raised again by every later call, so nobody
can go on after a gap by mistake. The error says of each partition how many records are written, how
many are not, and of how many nobody knows (`KafkaError.partitions`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.sender.batching import Batcher
from sparkkafka.client.sender.deliveries import ProducerMetrics
from sparkkafka.client.sender.partition_queue import BatchOwner
from sparkkafka.client.sender.sender import Sender
from sparkkafka.client.sender.topic_lookup import TopicLookup
from sparkkafka.client.transactions.producer_transaction import ProducerTransaction
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    PartitionOutcome,
    ProduceError,
    UnsupportedVersionError,
    Written,
)
from sparkkafka.protocol.columns.encode import RecordColumns, record_sizes, size_estimate
from sparkkafka.protocol.records.batches import HEADER_BYTES

STEP_INTERVAL_S = 0.002

SIZE_SLACK_BYTES = 64
"""Records that may be too large by so little are measured one by one."""


class _AllOrNothing:
    """The owner of all batches: the first that fails ends the producer."""

    def delivered(self, base_offset: int, log_append_time_ms: int) -> None:
        pass

    def failed(self, error: ProduceError, record_messages: Mapping[int, str | None]) -> None:
        cause = error.__cause__
        # What no request to the broker can express is not about this partition.
        raise cause if isinstance(cause, UnsupportedVersionError | EncodeError) else error

    def split(self, counts: Sequence[int]) -> Sequence[BatchOwner]:
        return [self] * len(counts)


_OWNER = _AllOrNothing()


class ColumnProducer:
    """Idempotent (unless told otherwise) producer of one thread. Use it under `with`.

    >>> with ColumnProducer(cluster, options) as producer:          # doctest: +SKIP
    ...     producer.send("orders", 0, RecordColumns(keys, values, None, timestamps_ms))
    ...     producer.flush()

    Leaving the block without an exception flushes; with one it drops what is not sent. With a
    `transaction` the records are part of it; to end it is left to others.
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
        self._deliveries = self._sender.deliveries
        self._batcher: Batcher[None] = Batcher(
            options,
            lambda tp, batches, *_: self._deliveries.add(tp, batches, itertools.repeat(_OWNER)),
        )
        self._next_step_s = 0.0
        self._failure: KafkaError | None = None

    @property
    def metrics(self) -> ProducerMetrics:
        return self._deliveries.metrics

    @property
    def buffered_bytes(self) -> int:
        """What buffer.memory bounds: records that are not acknowledged yet."""
        return self._batcher.pending_bytes + self._deliveries.queued_bytes

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
        """Queue records for one partition, in their order, and send what is ready.

        Waits while more than buffer.memory is queued, at most max.block.ms. Raises ProduceError if
        a record is larger than max.request.size (before anything of `columns` is sent), or for
        anything that went wrong with earlier records; KafkaTimeoutError after max.block.ms.
        """
        size_bytes, largest_bytes = size_estimate(columns)
        if not size_bytes:
            return
        tp = TopicPartition(topic, partition)
        if self._perhaps_too_large(largest_bytes):
            self._check_sizes(tp, record_sizes(columns))
        self._guard(lambda: self._send(tp, columns, size_bytes))

    def surely_fit(self, columns: RecordColumns) -> bool:
        """Whether each of these records is smaller than max.request.size, wherever it goes; False
        if that takes a closer look (`check_sizes`)."""
        return not self._perhaps_too_large(size_estimate(columns)[1])

    def check_sizes(self, topic: str, partition: int, columns: RecordColumns) -> None:
        """Raises the error that `send` would, if a record is too large. Sends nothing."""
        if columns.timestamps_ms.size:
            self._check_sizes(TopicPartition(topic, partition), record_sizes(columns))

    def seal(self) -> None:
        """Put what waits for more records into batches, whatever linger.ms says.

        Rows that wait are views of their caller's columns and keep all of these in memory.
        """
        self._guard(self._batcher.seal_all)

    def flush(self) -> None:
        """Send everything and wait until it is acknowledged. Raises ProduceError."""
        self._guard(self._flush)

    def outcomes(self) -> dict[tuple[str, int], PartitionOutcome]:
        """What is known now about the records of each partition that was sent to."""
        found = self._deliveries.outcomes()
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
        limit = self._options.buffer_memory
        now_s = time.monotonic()
        if self.buffered_bytes <= limit:
            # A step looks at every partition that has something to send, and rows can go to
            # thousands of them: not after each handful of rows.
            if now_s >= self._next_step_s:
                self._sender.step(wait=False)
                self._next_step_s = time.monotonic() + STEP_INTERVAL_S
            return
        deadline = Deadline(self._options.max_block_ms)
        self._batcher.seal_all()
        self._sender.step(wait=False)
        while self._deliveries.queued_bytes > limit:
            if deadline.expired:
                raise KafkaTimeoutError(
                    "the brokers take records too slowly: "
                    f"{self._deliveries.queued_bytes} bytes wait, more than "
                    f"{self._prefix}buffer.memory={limit}, for longer than "
                    f"{self._prefix}max.block.ms={self._options.max_block_ms}"
                    f"{self._deliveries.last_errors()}"
                )
            self._sender.step(wait=True)

    def _perhaps_too_large(self, largest_bytes: int) -> bool:
        limit = self._options.max_request_size
        return HEADER_BYTES + largest_bytes + SIZE_SLACK_BYTES > limit

    def _check_sizes(self, tp: TopicPartition, sizes: np.ndarray) -> None:
        largest = int(sizes.argmax())
        if HEADER_BYTES + sizes[largest] > self._options.max_request_size:
            raise ProduceError(
                f"a record takes {int(sizes[largest])} bytes, more than "
                f"{self._prefix}max.request.size={self._options.max_request_size} allows; raise it "
                "(and max.message.bytes of the topic), or write smaller records",
                topic=tp.topic,
                partition=tp.partition,
                written=Written.NO,
                code=ErrorCode.MESSAGE_TOO_LARGE,
            )
