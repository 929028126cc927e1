"""The library's Producer: records one by one, or a table at once, from any thread.

    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        handle = producer.send("orders", value=b"…", key=b"17")
        print(handle.result(timeout_s=10))

`send` puts a record into `SendBuffer` and returns. The producer's I/O thread (`io_thread`) takes
it, chooses its partition (`partitioner`) and appends it to a batch, which closes when it is full or
has waited for linger.ms (`record_accumulator`); the `sender` sends it, and the handle gets its
outcome (`futures`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sparkkafka.client.arguments import ClientBase, as_bytes, checked_headers, checked_int
from sparkkafka.client.deadline import CUT_AFTER_S, CloseSignal, Deadline, deadline_of
from sparkkafka.client.metrics import Metrics, SendMetrics
from sparkkafka.client.producer.futures import (
    Delivery,
    OutcomeNotifier,
    TableDelivery,
    TopicRecords,
    closed_error,
    forked_error,
)
from sparkkafka.client.producer.io_thread import CLOSE_IN_ERROR_S, ProducerThread, close_collected
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.producer.producer_records import (
    MAX_RECORD_OVERHEAD,
    AppendedRecords,
    ArrowStream,
    max_record_bytes,
    series_records,
    table_records,
)
from sparkkafka.client.producer.record_accumulator import SendBuffer
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, checked_topic
from sparkkafka.config.client_settings import parse_producer_settings
from sparkkafka.config.kinds import INT32_MAX, address_text
from sparkkafka.errors import KafkaError, KafkaTimeoutError, TransactionError
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from sparkkafka.client.group.committed_offsets import GroupMetadata
    from sparkkafka.client.producer.transactions import TransactionManager

log = logging.getLogger(__name__)

Headers = (
    Mapping[str, bytes | bytearray | memoryview | str | None]
    | Sequence[tuple[str, bytes | bytearray | memoryview | str | None]]
)

_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer(ClientBase):
    """Sends records to Kafka. Settings and defaults are those of Java's KafkaProducer, except
    batch.size (512 KB) and allow.auto.create.topics (false).

    All methods may be called from any thread, those of transactions from one at a time. Values and
    keys are bytes, bytearray, memoryview, str (sent as UTF-8) or None; a value of None is a
    tombstone. `partitioner.class` may be a callable `(topic, key, value, partition_count) -> int`,
    which is called in the producer's thread.

    Under `with`: leaving without an exception calls `close()`; with one, records not sent within a
    second fail, and the log says how many.

    Raises OptionError for a wrong setting.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = parse_producer_settings(config)
        self._settings = settings
        options = settings.producer
        self._notifier = OutcomeNotifier()
        self._metrics = SendMetrics(options.buffer_memory)
        self._buffer = SendBuffer(options, self._notifier, self._metrics)
        self._close_signal = CloseSignal()
        self._transactions: TransactionManager | None = None
        if settings.transactional_id is not None:
            from sparkkafka.client.producer.transactions import TransactionManager

            self._transactions = TransactionManager(
                settings,
                settings.transactional_id,
                self._buffer,
                self._notifier,
                self._close_signal,
            )
        self._io_thread = ProducerThread(
            settings,
            self._buffer,
            self._notifier,
            self._transactions,
            self._close_signal,
            self._metrics,
        )
        if self._transactions is not None:
            self._transactions.use_thread(self._io_thread)
        # `send` reads these for each record.
        self._lock = self._buffer.lock
        self._max_record_bytes = max_record_bytes(options)
        self._limit_bytes = self._buffer.limit_bytes
        self._closed = False
        self._process_id = os.getpid()
        _producers.add(self)
        self._io_thread.start()
        # At the end of the interpreter `io_thread` ends all threads.
        weakref.finalize(self, close_collected, self._io_thread, os.getpid()).atexit = False

    def __repr__(self) -> str:
        servers = ",".join(address_text(*at) for at in self._settings.client.bootstrap_servers)
        return f"<Producer {servers}{' closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the producer. After an exception in the block it waits at most a second for
        records."""
        if exc_type is None:
            self.close()
            return
        try:
            self._close(Deadline(CLOSE_IN_ERROR_S * 1000))
        except KafkaError as failure:  # the block's own exception says more
            log.warning("while leaving after %s: %s", exc_type.__name__, failure)

    # --- records --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | bytearray | memoryview | str | None = None,
        key: bytes | bytearray | memoryview | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Queue a record, and return a handle for its outcome.

        `headers` are a dict or (key, value) pairs, with values as those of records. `timestamp_ms`
        is in milliseconds since 1970 UTC, now by default. Without a `partition` the key chooses
        one, or, without a key, the producer.

        Waits only while buffer.memory is full, at most max.block.ms. Raises, with nothing queued,
        OptionError for an argument, ProduceError for a record above max.request.size,
        KafkaTimeoutError for a full buffer, TransactionError outside of a transaction, KafkaError
        after close. Errors that show later, such as a missing topic or partition, are raised by
        the handle.
        """
        size = MAX_RECORD_OVERHEAD
        if value is not None:
            if value.__class__ is not bytes:
                value = as_bytes("value", value)
            size += len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes("key", key)
            size += len(key)
        if headers is not None or partition is not None or timestamp_ms is not None:
            if headers is not None:
                headers, headers_size = checked_headers(headers)
                size += headers_size
            if partition is not None and (
                partition.__class__ is not int or not 0 <= partition <= INT32_MAX
            ):
                partition = checked_int(partition, "partition", 0, INT32_MAX)
            if timestamp_ms is not None:
                timestamp_ms = checked_int(timestamp_ms, "timestamp_ms", 0)
        if size > self._max_record_bytes:
            size += RECORD_BATCH_OVERHEAD
            error = too_large(topic, partition, size, self._settings.producer)
            with self._lock:
                self._record_lost(error)
            raise error
        buffer = self._buffer
        must_wake = False
        with self._lock:
            if buffer.used_bytes + buffer.taken_bytes + size > self._limit_bytes:
                self._wait_for_memory(size)
            try:
                records: Any = buffer.open.get(topic)
            except TypeError:  # not even a name
                records = None
            if records is None:
                records = buffer.open_records(checked_topic(topic))
                must_wake = True
            values = records.values
            index = len(values)
            used_bytes, records_bytes = buffer.used_bytes, records.size_bytes
            try:
                values.append(value)
                records.keys.append(key)
                records.sent_at_s.append(time.time())
                if headers:
                    records.headers[index] = headers
                if partition is not None:
                    records.partitions[index] = partition
                if timestamp_ms is not None:
                    records.explicit_times_ms[index] = timestamp_ms
                buffer.used_bytes = used_bytes + size
                records.size_bytes = size = records_bytes + size
            except BaseException:  # Ctrl-C: half a record would shift all later ones
                records.remove_from(index, records_bytes)
                buffer.used_bytes = used_bytes
                raise
            if size >= buffer.wake_bytes:
                must_wake = True
                if size >= buffer.full_bytes:
                    buffer.ready.append(records)
                    del buffer.open[topic]
        if must_wake and buffer.is_sleeping:
            self._wake(records)
        handle: Delivery = self._handle()
        handle._records, handle._index = records, index
        return handle

    def _wake(self, records: AppendedRecords) -> None:
        """Wake the I/O thread, because a topic has its first open record, or enough open records
        for a batch."""
        self._buffer.wake()

    _handle: Any = Delivery  # the class of a record's handle; an AsyncProducer has another one

    def _wait_for_memory(self, size_bytes: int) -> None:
        """Wait until `size_bytes` fit into buffer.memory. The caller holds the lock. Raises
        KafkaTimeoutError; an open transaction can then only be aborted, because it lacks a record.
        """
        try:
            self._buffer.wait_for_memory(size_bytes, self._io_thread.failure_text)
        except KafkaTimeoutError as error:
            self._record_lost(error)
            raise

    def send_table(self, table: ArrowStream, topic: str | None = None) -> TableDelivery:
        """Queue all rows of an Arrow table: column value and, if there, key, headers, partition,
        topic and timestamp, as for the Spark sink; other columns are ignored. `table` is a pyarrow
        Table or RecordBatch, or what else exports Arrow's C stream: a DataFrame of Polars or
        pandas, a relation of DuckDB.

        An argument `topic` replaces the column. All rows are checked before any is queued. Raises
        OptionError for the type of a column, EncodeError for a value (null topic, null header key,
        time before 1970), ProduceError for a row above max.request.size, and the errors of `send`.
        If the table is larger than buffer.memory, `send_table` may time out (KafkaTimeoutError)
        when some of its rows are queued already.
        """
        if topic is not None:
            checked_topic(topic)
        with self._lock:
            self._buffer.raise_refusal()
        return self._queue(table_records(table, topic, self._notifier, self._settings.producer))

    def send_many(
        self,
        topic: str | None,
        records: Iterable[bytes | bytearray | memoryview | str | Mapping[str, Any] | None],
        partition: int | None = None,
    ) -> TableDelivery:
        """Queue a series of records in one call, in order: faster than a loop of `send`.

        A record is a value, or a dict of arguments of `send`: topic, value, key, headers,
        partition, timestamp_ms. `topic` and `partition` are for records that name none; with
        topic=None each must name one. The handle's callback is called once, when all are done; its
        `failures` lists each record that failed, with its index in the series, topic, partition
        and error. The series stays in order with earlier and later calls of `send`.

        The whole series is read and checked before any of it is queued. Raises OptionError or
        ProduceError with the number of the record (from 0), and the errors of `send`. If the series
        is larger than buffer.memory, `send_many` may time out (KafkaTimeoutError) when some of its
        records are queued already.
        """
        if topic is not None:
            checked_topic(topic)
        if partition is not None:
            partition = checked_int(partition, "partition", 0, INT32_MAX)
        with self._lock:
            self._buffer.raise_refusal()
        return self._queue(
            series_records(
                records,
                topic,
                partition,
                self._notifier,
                self._settings.producer,
                self._buffer.full_bytes,
            )
        )

    def _queue(self, parts: Sequence[TopicRecords]) -> TableDelivery:
        """Queue the records of a table or series, which `parts` has in order. Return the handle for
        all of them."""
        for records in parts:
            with self._lock:
                if self._buffer.used_bytes + self._buffer.taken_bytes + records.size_bytes > (
                    self._limit_bytes
                ):
                    self._wait_for_memory(records.size_bytes)
                self._buffer.add(records)
        return TableDelivery(self._notifier, list(parts))

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all queued records without lingering, and wait until each is delivered or failed and
        their callbacks have run. Must not be called in a callback.

        Raises the error of a record that failed, unless its handle was read; KafkaTimeoutError
        after `timeout_s` (None: delivery.timeout.ms bounds the wait); KafkaError after close.
        """
        deadline = deadline_of(timeout_s)
        self._check_process()
        if self._closed:
            raise closed_error()
        self._io_thread.wait_for_all(deadline)
        if self._settings.producer.acks == 0 and not self._closed:
            request = Deadline(self._settings.client.request_timeout_ms)
            self._io_thread.call(self._io_thread.sender.barrier, request, "flush")
        self._notifier.raise_failures()

    def partitions_for(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions.

        Raises UnknownTopicError, BrokerError, KafkaTimeoutError after max.block.ms, or KafkaError
        after close.
        """
        checked_topic(topic)
        self._check_process()
        deadline = Deadline(self._settings.producer.max_block_ms)
        what = f"partitions of topic {topic}"
        if self._closed:
            raise closed_error(what)
        while True:
            count = self._io_thread.call(
                lambda: self._io_thread.look_up_partition_count(topic), deadline, what
            )
            if count is not None:
                return list(range(count))
            if deadline.expired:
                raise KafkaTimeoutError(
                    f"{what}: no response within {deadline.text}{self._io_thread.failure_text()}"
                )
            deadline.pause(50)

    def metrics(self) -> Metrics:
        """Return metrics of this producer under Kafka's names, by group.

            producer.metrics()["producer-metrics"]["record-send-rate"]

        See `Consumer.metrics`. A topic's are in "producer-topic-metrics,topic=orders".
        """
        with self._lock:
            held_bytes = self._buffer.held_bytes()
        return self._metrics.figures(held_bytes, self._buffer.waiting_threads)

    # --- transactions ---------------------------------------------------------------------------

    def init_transactions(self, timeout_s: float | None = None) -> None:
        """Take transactional.id over: abort an open transaction of an earlier producer with this
        id, and fence that producer. Call this once, before all other methods.

        Raises TransactionError if it is called in a wrong order, BrokerError, KafkaTimeoutError
        after `timeout_s` (max.block.ms by default).
        """
        self._transactions_for("init_transactions").init_transactions(timeout_s)

    def begin_transaction(self) -> None:
        """Begin a transaction. Records that are sent from now on are part of it.

        Sends a request only if the last transaction had an error (for the next epoch, at most for
        max.block.ms). Raises TransactionError, BrokerError, KafkaTimeoutError; ProducerFencedError
        if another producer took transactional.id over: then close this one.
        """
        self._transactions_for("begin_transaction").begin_transaction()

    def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Wait until all records are delivered and their callbacks have run, then commit the
        transaction: readers with read_committed see its records, and its offsets are committed.

        Raises TransactionError if a record failed: then abort. Raises ProducerFencedError if
        another producer took transactional.id over: then close this one and make a new one. Raises
        BrokerError, and KafkaTimeoutError if the outcome is not known: then only commit may be
        called again.
        """
        self._transactions_for("commit_transaction").commit_transaction(timeout_s)

    def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Abort the transaction. Records that are not sent are dropped; readers with read_committed
        never see those that were sent.

        Raises the errors of `commit_transaction`. After ProducerFencedError the transaction is
        aborted: the other producer has done it.
        """
        self._transactions_for("abort_transaction").abort_transaction(timeout_s)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | str,
        timeout_s: float | None = None,
    ) -> None:
        """Add offsets of a consumer group to the transaction: they are committed with it.

        An offset is the next one to read. With a consumer's group metadata the group's coordinator
        refuses offsets of a member that lost its partitions (KIP-447, Kafka 2.5); with the name of
        a group it cannot.

        Raises TransactionError, BrokerError (then the transaction can only be aborted;
        UnknownTopicError for a topic or partition that is not there, CommitFailedError if the
        consumer is not in its group), UnsupportedVersionError for a member before Kafka 2.5,
        KafkaTimeoutError.
        """
        manager = self._transactions_for("send_offsets_to_transaction")
        manager.send_offsets_to_transaction(offsets, group, timeout_s)

    def _transactions_for(self, name: str) -> TransactionManager:
        """Return the TransactionManager for a call of the method `name`. Raises KafkaError after
        close or a fork, TransactionError without a transactional.id."""
        self._check_process()
        if self._closed:
            raise closed_error(name)
        if self._transactions is None:
            raise TransactionError(f"{name}: transactions need the setting transactional.id")
        return self._transactions

    def _record_lost(self, error: KafkaError) -> None:
        """Note that a record of an open transaction was not queued, so that the transaction can
        only be aborted. The caller holds the lock."""
        if self._transactions is not None:
            self._transactions.record_failed(error)

    # --- the end --------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver all queued records, run their callbacks, abort an open transaction, and free
        everything. May be called again; in a callback it does not wait for the end.

        Raises the errors of `flush`. Records not delivered after `timeout_s` (None: as long as it
        takes) are failed: their handles raise, and the log says so.
        """
        options = self._settings.producer
        # By then all records have an outcome, and requests for the transaction's end gave up.
        longest_ms = options.delivery_timeout_ms + options.max_block_ms
        self._close(deadline_of(timeout_s) or Deadline(longest_ms))

    def _close(self, deadline: Deadline) -> None:
        """Abort an open transaction, refuse records, end the I/O thread, free connections, and
        raise failures that the user has not seen. A callback does not wait for the end."""
        if os.getpid() != self._process_id:
            return  # a fork: the parent closes it
        must_abort = (
            not self._closed and self._transactions is not None and self._transactions.must_abort
        )
        remaining_s = deadline.remaining_s()
        if must_abort:
            remaining_s = max(remaining_s, 1.0)  # an abort without time would always fail
        self._close_signal.close_in(remaining_s)  # the thread may be in a wait of its own
        if self._transactions is not None and must_abort:
            cut_timer = threading.Timer(remaining_s + CUT_AFTER_S, self._close_signal.cut_sockets)
            cut_timer.daemon = True
            cut_timer.start()
            try:
                self._transactions.abort_open(remaining_s)
            finally:
                cut_timer.cancel()
                cut_timer.join()
        with self._lock:
            self._closed = True
            self._buffer.close_open()
            self._buffer.refuse(closed_error)
        self._io_thread.stop(deadline)
        if threading.current_thread() is self._notifier.io_thread:
            return  # a callback; a later call, which can wait, raises failures
        if not self._io_thread.join(deadline.remaining_s() + CUT_AFTER_S):
            self._close_signal.cut_sockets()
            if not self._io_thread.join(5.0):
                log.warning("the producer's thread has not ended yet")
        if self._transactions is not None and not self._io_thread.is_alive:
            with self._lock:
                self._transactions.close()
        if self._transactions is None or not self._transactions.is_fence_reported:
            self._notifier.raise_failures()

    def _check_process(self) -> None:
        """Raise KafkaError in the child of a fork."""
        if os.getpid() != self._process_id:
            raise forked_error()

    def _after_fork(self) -> None:
        """Let this producer refuse records, because this process is the child of a fork."""
        self._buffer.set_forked()
        self._lock = self._buffer.lock
        with self._lock:
            self._buffer.refuse(forked_error)


def _refuse_after_fork() -> None:
    """Let all producers refuse records, because this process is the child of a fork."""
    for producer in list(_producers):
        producer._after_fork()


os.register_at_fork(after_in_child=_refuse_after_fork)
