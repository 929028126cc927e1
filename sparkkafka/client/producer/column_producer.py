"""The producer of a Spark task: columns of records to the accumulator and the sender.

There is only the caller's thread: `append` takes columns, the sender sends their batches while the
caller prepares its next rows, `flush` waits for all of them.

Every later call of a ColumnProducer that failed raises its first error again, so that no caller
continues after a gap. The error has the number of records of each partition that are written, not
written, and perhaps written (`KafkaError.partitions`).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.topic_lookup import TopicLookup
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.partitioner import PartitionedRecords
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.producer.record_accumulator import RecordAccumulator
from sparkkafka.client.producer.sender import ProducerMetrics, Sender
from sparkkafka.config.options import ProducerOptions
from sparkkafka.protocol.columns.encode import oversized_record
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from sparkkafka.client.producer.transactions import SingleTransaction


def _raise_failure(error: errors.KafkaError) -> errors.KafkaError:
    """Raise the error of a batch, because the first failure ends the producer."""
    cause = error.__cause__
    # A request that cannot be expressed at all is no fault of this partition.
    raise cause if isinstance(cause, errors.UnsupportedVersionError | errors.EncodeError) else error


class ColumnProducer:
    """Producer of one thread, idempotent unless `options` say otherwise. Use it under `with`.

    >>> with ColumnProducer(cluster, options) as producer:          # doctest: +SKIP
    ...     producer.append(partitioner.partition_rows(rows, timestamp_ms))
    ...     producer.flush()

    Leaving the block without an exception flushes; with one it drops what is not sent. Records are
    part of the `transaction`, if there is one, which the caller ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: SingleTransaction | None = None,
    ) -> None:
        self._options = options
        self._prefix = cluster.options.prefix
        lookup = TopicLookup(cluster, grace_ms=cluster.options.request_timeout_ms)
        self._sender = Sender(
            cluster, options, transaction, lookup=lookup, on_failure=_raise_failure
        )
        self._accumulator = RecordAccumulator(
            options, lambda tp, batches, *_: self._sender.append(tp, batches)
        )
        self._step_at_s = 0.0  # before it the sender makes no step unless memory is missing
        self._failure: errors.KafkaError | None = None
        self.held_bytes = 0
        """The bytes of columns that the caller holds. They count as buffered, up to half of
        buffer.memory: the rest is for records in flight."""

    @property
    def metrics(self) -> ProducerMetrics:
        return self._sender.metrics

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records that are not acknowledged. Together with `held_bytes` they are
        bounded by buffer.memory."""
        return self._accumulator.pending_bytes + self._sender.queued_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *rest: object
    ) -> None:
        if exc_type is None:
            self.flush()
        elif isinstance(error, errors.KafkaError):
            error.add_outcomes(self.outcomes())

    def check_sizes(self, records: PartitionedRecords) -> None:
        """Raise ProduceError if a record is larger than max.request.size."""
        oversized = oversized_record(
            records.columns, self._options.max_request_size - RECORD_BATCH_OVERHEAD
        )
        if oversized is not None:
            row, size_bytes = oversized
            tp = records.tps[bisect_right(records.run_ends, row)]
            size_bytes += RECORD_BATCH_OVERHEAD
            raise too_large(tp.topic, tp.partition, size_bytes, self._options, self._prefix)

    def append(self, records: PartitionedRecords) -> None:
        """Queue records, and send those that are ready. Wait while more than buffer.memory is
        queued and held, at most for max.block.ms.

        Raises ProduceError if an earlier record failed; KafkaTimeoutError after max.block.ms.
        """
        appended_bytes = 0
        with self._keep_failure():
            for tp, rows, size_bytes in records.runs():
                self._accumulator.append(tp, rows, size_bytes=size_bytes)
                appended_bytes += size_bytes
                if appended_bytes > 4 << 20:  # between two checks of buffer.memory
                    self._accumulator.close_lingering()
                    self._wait_for_memory()
                    appended_bytes = 0
            self._accumulator.close_lingering()
            self._wait_for_memory()

    def close_batches(self) -> None:
        """Close all batches without regard to linger.ms, because their rows are views of the
        caller's columns, which stay in memory until then."""
        with self._keep_failure():
            self._accumulator.close_all()

    def flush(self) -> None:
        """Send everything and wait for the acknowledgements. Raises ProduceError."""
        with self._keep_failure():
            self._accumulator.close_all()
            self._sender.finish()

    def outcomes(self) -> dict[tuple[str, int], errors.PartitionOutcome]:
        """Return the outcome of each partition's records so far."""
        outcomes = self._sender.outcomes()
        for tp, rows in self._accumulator.record_counts():
            known = outcomes.get(tp, errors.PartitionOutcome(0, 0, 0))
            outcomes[tp] = known._replace(not_written_records=known.not_written_records + rows)
        return {(tp.topic, tp.partition): outcome for tp, outcome in outcomes.items()}

    @contextmanager
    def _keep_failure(self) -> Iterator[None]:
        """Keep a KafkaError that this block raises: later blocks raise it again and run nothing."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except errors.KafkaError as error:
            error.add_outcomes(self.outcomes())
            self._failure = error
            raise

    def _wait_for_memory(self) -> None:
        """Send what is ready; wait for acknowledgements only if buffer.memory is exceeded. Raises
        KafkaTimeoutError after max.block.ms."""
        buffer_memory = self._options.buffer_memory
        limit_bytes = buffer_memory - min(self.held_bytes, buffer_memory // 2)
        if self.buffered_bytes <= limit_bytes:
            # A step visits every partition with something to send, and there can be thousands: not
            # after each handful of rows.
            if time.monotonic() >= self._step_at_s:
                self._sender.step(0.0)
                self._step_at_s = time.monotonic() + 0.002
            return
        deadline = Deadline(self._options.max_block_ms)
        self._accumulator.close_all()
        self._sender.step(0.0)
        while self._sender.queued_bytes > limit_bytes:
            if deadline.expired:
                failures = {str(error) for error in self._sender.errors()}
                raise errors.KafkaTimeoutError(
                    "the brokers take records too slowly: "
                    f"{self._sender.queued_bytes} bytes wait, more than {limit_bytes} of "
                    f"{self._prefix}buffer.memory={buffer_memory}, for longer than "
                    f"{self._prefix}max.block.ms={self._options.max_block_ms}"
                    f"{'; last failures: ' + '; '.join(sorted(failures)[:3]) if failures else ''}"
                )
            self._sender.step()
