"""The Producer for asyncio: `send` returns when the record is written, and many tasks may send.

A record takes the path of `Producer.send`. If something waits for it, its asyncio future is among
the `waiters` of its `TopicRecords`: the I/O thread passes each batch's outcome to the loop, which
wakes up once for all.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkkafka.client.aio.worker import AsyncClient, LoopQueue, Worker, awaited, call_soon
from sparkkafka.client.metrics import Metrics
from sparkkafka.client.producer.futures import (
    Indexes,
    RecordFutures,
    RecordMetadata,
    TableDelivery,
    WrittenRange,
)
from sparkkafka.client.producer.producer import Headers, Producer
from sparkkafka.client.producer.topic_records import AppendedRecords, ArrowStream
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaTimeoutError

DRAINS_PER_TURN = 256  # less than a millisecond; the I/O thread may take some more
BATCHES_PER_TURN = 16  # wake the I/O thread before the turn ends
OUTCOMES_PER_ITEM = 1024  # of one batch, which may have more; about a millisecond

Bytes = bytes | bytearray | memoryview | str | None


@dataclass(frozen=True)
class _Callback:
    """What an asyncio future calls, with its delivery, which asyncio's `as_completed` looks up.
    Two of the same function and delivery are equal, for `remove_done_callback`."""

    function: Callable[[Any], object]
    delivery: AsyncDelivery

    def __call__(self, _: asyncio.Future[RecordMetadata], /) -> None:
        self.function(self.delivery)


class AsyncDelivery:
    """A record that was sent: `await` it. Made by `AsyncProducer.send_nowait`.

    It has the methods of an asyncio future, and asyncio's functions take it as one (`gather`,
    `wait`, `shield`). The loop has work with it only if something waits for it.
    """

    __slots__ = ("_future", "_index", "_records")

    _asyncio_future_blocking = False  # marks a future for asyncio

    def __init__(self, records: RecordFutures, index: int) -> None:
        self._records = records
        self._index = index
        self._future: asyncio.Future[RecordMetadata] | None = None

    def __repr__(self) -> str:
        return f"<AsyncDelivery {self._records.outcome_text(self._index)}>"

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self.waiter().__await__()

    def waiter(self) -> asyncio.Future[RecordMetadata]:
        """Return the asyncio future that gets the outcome."""
        future, records = self._future, self._records
        if future is None:
            future = self._future = records.notifier.loop.create_future()
            records.waiters[self._index] = future
        # The count first, which is cheap: of records that the I/O thread has not taken.
        if records.pending_count >= 0 and not future.done() and records.is_done(self._index):
            _set_outcome(records, self._index, future)
        return future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of its producer."""
        loop: asyncio.AbstractEventLoop = self._records.notifier.loop
        return loop

    def done(self) -> bool:
        """Whether the record is written or has failed, or this was cancelled."""
        return self._records.is_done(self._index) or self.cancelled()

    def result(self) -> RecordMetadata:
        """Where the record was written. Raises its error; asyncio.InvalidStateError if it is
        pending, CancelledError if this was cancelled."""
        return self.waiter().result()

    def exception(self) -> BaseException | None:
        """The record's error, None if it is written. Raises as `result` otherwise."""
        return self.waiter().exception()

    def cancel(self, msg: Any = None) -> bool:
        """Wait for the outcome no longer; the record is still sent. False if it is done."""
        return self.waiter().cancel(msg)

    def cancelled(self) -> bool:
        """Whether `cancel` came before the outcome."""
        return self._future is not None and self._future.cancelled()

    def add_done_callback(
        self,
        callback: Callable[[AsyncDelivery], object],
        *,
        context: contextvars.Context | None = None,
    ) -> None:
        """Call `callback` on the loop with this delivery once it is done."""
        self.waiter().add_done_callback(_Callback(callback, self), context=context)

    def remove_done_callback(self, callback: Callable[[AsyncDelivery], object]) -> int:
        """Undo `add_done_callback`; return how many callbacks were removed."""
        return self.waiter().remove_done_callback(_Callback(callback, self))

    # asyncio.gather asks a cancelled future for these.

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        return self.waiter()._make_cancelled_error()  # type: ignore[attr-defined, no-any-return]

    @property
    def _cancel_message(self) -> Any:
        return self.waiter()._cancel_message  # type: ignore[attr-defined]


def _set_outcome(
    records: RecordFutures, index: int, future: asyncio.Future[RecordMetadata]
) -> None:
    """Give a record's outcome to the future that waits for it."""
    records.waiters.pop(index, None)
    if future.done():  # cancelled: the user has not seen an error
        return
    error = records.error_of(index)
    if error is None:
        future.set_result(records.metadata_of(index))
    else:
        future.set_exception(error)


class _LoopProducer(Producer):
    """A Producer whose `send` returns an AsyncDelivery, and never waits on a loop."""

    _handle = AsyncDelivery

    def __init__(self, config: Mapping[str, Any]) -> None:
        if isinstance(config, Mapping):  # else an error
            # `_wake` lets records come together. A task that waits for one sends no more of them.
            config = {"linger.ms": 0, **config}
        super().__init__(config)
        self.missing_bytes = 0
        """The size of the last record for which there was no memory."""
        self._turn_bytes = min(BATCHES_PER_TURN * self._buffer.wake_bytes, self._buffer.full_bytes)
        self._wakes_soon = False

    def bind(
        self,
        loop: asyncio.AbstractEventLoop,
        on_outcome: Callable[[RecordFutures, Indexes], None],
        on_freed: Callable[[], None],
    ) -> None:
        """Report outcomes, and memory that is freed, of a producer of this loop."""
        self._notifier.loop = loop
        self._notifier.on_outcome = on_outcome
        self._buffer.on_freed = on_freed

    def _wake(self, records: AppendedRecords) -> None:
        """As Producer's, but at the end of the loop's turn: while the I/O thread runs, the turn
        waits for the interpreter's lock. Earlier if a turn sends many batches."""
        if records.size_bytes >= self._turn_bytes:
            self._buffer.wake()
        elif not self._wakes_soon:
            loop: asyncio.AbstractEventLoop = self._notifier.loop
            if asyncio._get_running_loop() is loop:
                self._wakes_soon = True
                loop.call_soon(self._end_of_turn)
            else:
                self._buffer.wake()

    def _end_of_turn(self) -> None:
        self._wakes_soon = False
        self._buffer.wake()

    def _wait_for_memory(self, size_bytes: int) -> None:
        if asyncio._get_running_loop() is None:  # send_table, in the worker's thread
            super()._wait_for_memory(size_bytes)
            return
        self._buffer.raise_refusal()
        if not self._buffer.has_memory(size_bytes):
            self.missing_bytes = size_bytes
            raise KafkaTimeoutError(
                f"buffer.memory={self._limit_bytes} is full: call `await drain()` before the next "
                "send_nowait, or `await send`, which waits"
            )


class AsyncProducer(AsyncClient[_LoopProducer]):
    """`Producer` for asyncio: the same settings, arguments and errors, but linger.ms=0 by default.
    Any number of tasks may use it; each send takes its turn in the order of the calls.

        async with AsyncProducer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"…", key=b"17")

    Under `async with`: leaving without an exception calls `close()`; with one (also a cancelled
    task), records not sent within a second fail, and the log says how many.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(_LoopProducer(config))
        self._closer = Worker(type(self).__name__)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: LoopQueue[tuple[RecordFutures, Indexes] | asyncio.Future[None]]
        self._freed = asyncio.Event()
        self._memory_turn = asyncio.Lock()
        self._buffer = self._client._buffer
        self._half_bytes = self._buffer.limit_bytes // 2
        self._drain_bytes = self._buffer.limit_bytes * 3 // 4
        self._drain_count = 0

    def _bind(self) -> None:
        """Bind to the loop of the first call. Raises KafkaError on another one."""
        loop = self._worker.bind()
        if self._loop is None:
            self._outcomes = LoopQueue(loop, _handle_outcome)
            outcomes, freed = self._outcomes, self._freed
            self._client.bind(
                loop,
                lambda records, indexes: _put_outcomes(outcomes, records, indexes),
                lambda: _set_on_loop(loop, freed),
            )
            self._loop = loop

    async def _run(self, call: Callable[[], Any], worker: Worker | None = None) -> Any:
        self._bind()
        return await super()._run(call, worker)

    # --- records ----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Bytes = None,
        key: Bytes = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and return where it was written once brokers have acknowledged it.

        Arguments as of `Producer.send`. While buffer.memory is full it waits, at most max.block.ms,
        without blocking the loop. Raises the errors of `Producer.send` and of `Delivery.result`.

        Cancelled while it waits for memory, nothing is sent. Cancelled later, the record stays
        queued and is written once: only its outcome is not reported here (`flush` raises its error
        if it fails).
        """
        if asyncio._get_running_loop() is not self._loop:
            self._bind()
        if not self._memory_turn.locked():
            try:
                delivery: AsyncDelivery = self._client.send(  # type: ignore[assignment]
                    topic, value, key, headers, partition, timestamp_ms
                )
            except KafkaTimeoutError:  # no memory
                pass
            else:
                return await delivery.waiter()
        send = partial(self.send_nowait, topic, value, key, headers, partition, timestamp_ms)
        delivery = await self._once_free(send)
        return await delivery.waiter()

    def send_nowait(
        self,
        topic: str,
        value: Bytes = None,
        key: Bytes = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncDelivery:
        """Queue a record, and return a future of where it is written. Never waits.

        Arguments and errors as of `Producer.send`; KafkaTimeoutError immediately, with nothing
        queued, while buffer.memory is full: `await drain()` between calls prevents that. To cancel
        the future does not stop the record.
        """
        # Only `await` needs the loop: to look which one runs costs as much as half a send.
        if self._loop is None:
            self._bind()
        found: Any = self._client.send(topic, value, key, headers, partition, timestamp_ms)
        return found  # type: ignore[no-any-return]

    async def drain(self) -> None:
        """If less than a quarter of buffer.memory is free, wait until half is, at most
        max.block.ms; also gives other tasks turns. For loops of `send_nowait`.

        Raises KafkaTimeoutError, and KafkaError after close.
        """
        buffer = self._buffer
        if buffer.used_bytes + buffer.io_bytes > self._drain_bytes or self._client._closed:
            self._bind()
            await self._once_free(partial(self._check_memory, self._half_bytes))
        self._drain_count += 1
        if self._drain_count >= DRAINS_PER_TURN:
            self._drain_count = 0
            await asyncio.sleep(0)

    def _check_memory(self, size_bytes: int) -> None:
        """Raises KafkaTimeoutError if `size_bytes` exceed the free memory."""
        with self._client._lock:
            self._client._wait_for_memory(size_bytes)

    async def _once_free(self, action: Callable[[], Any]) -> Any:
        """Return what `action` returns once there is memory for it, and it does not raise
        KafkaTimeoutError; callers take turns. Raises KafkaTimeoutError after max.block.ms."""
        buffer = self._buffer
        max_block_ms = self._client._settings.producer.max_block_ms
        try:
            async with asyncio.timeout(max_block_ms / 1000), self._memory_turn:
                with buffer.lock:
                    buffer.waiting_threads += 1
                try:
                    while True:
                        self._freed.clear()
                        with suppress(KafkaTimeoutError):
                            return action()
                        buffer.wake()
                        await self._freed.wait()
                finally:
                    with buffer.lock:
                        buffer.waiting_threads -= 1
        except TimeoutError:
            why = self._client._io_thread.failure_text()
            with buffer.lock:
                failure = buffer.buffer_full_error(self._client.missing_bytes, why)
                self._client._record_lost(failure)
            raise failure from None

    async def send_many(
        self,
        topic: str | None,
        records: Iterable[bytes | bytearray | memoryview | str | Mapping[str, Any] | None],
        partition: int | None = None,
    ) -> dict[TopicPartition, WrittenRange]:
        """Send a series of records, and return where they are written once all are.

        Arguments and errors as of `Producer.send_many` and `TableDelivery.result`. If it is
        cancelled, what is queued is written.
        """
        return await self._delivered(lambda: self._client.send_many(topic, records, partition))

    async def send_table(
        self, table: ArrowStream, topic: str | None = None
    ) -> dict[TopicPartition, WrittenRange]:
        """Send all rows of an Arrow table, and return where they are written once all are.

        Arguments and errors as of `Producer.send_table` and `TableDelivery.result`. If it is
        cancelled, what is queued is written.
        """
        return await self._delivered(lambda: self._client.send_table(table, topic))

    async def _delivered(
        self, queue: Callable[[], TableDelivery]
    ) -> dict[TopicPartition, WrittenRange]:
        """Queue a table in the worker's thread, and wait until its records have an outcome."""
        delivery = await self._run(queue)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcomes = self._outcomes
        delivery.add_callback(lambda _: outcomes.put(done))
        await done
        written: dict[TopicPartition, WrittenRange] = delivery.result()
        return written

    flush = awaited(Producer.flush)
    partitions_for = awaited(Producer.partitions_for)

    def metrics(self) -> Metrics:
        """As `Producer.metrics`."""
        return self._client.metrics()

    # --- transactions -----------------------------------------------------------------------------

    init_transactions = awaited(Producer.init_transactions)
    begin_transaction = awaited(Producer.begin_transaction)
    commit_transaction = awaited(Producer.commit_transaction)
    abort_transaction = awaited(Producer.abort_transaction)
    send_offsets_to_transaction = awaited(Producer.send_offsets_to_transaction)

    # --- the end ----------------------------------------------------------------------------------

    async def close(self, timeout_s: float | None = None) -> None:
        """As `Producer.close`, also if the task is cancelled meanwhile."""
        await self._end(partial(self._client.close, timeout_s))


def _set_on_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event, from any thread."""
    call_soon(loop, event.set)


def _put_outcomes(outcomes: LoopQueue[Any], records: RecordFutures, indexes: Indexes) -> None:
    """Pass the outcome of a batch to the loop, in parts between which other tasks may run."""
    for first in range(0, len(indexes), OUTCOMES_PER_ITEM):
        outcomes.put((records, indexes[first : first + OUTCOMES_PER_ITEM]))


def _handle_outcome(item: tuple[RecordFutures, Indexes] | asyncio.Future[None]) -> None:
    """Give the outcome of records of a batch to their futures. (Not a method of AsyncProducer: the
    I/O thread must not keep that alive.)"""
    if isinstance(item, asyncio.Future):
        if not item.done():
            item.set_result(None)
        return
    records, indexes = item
    waiters = records.waiters
    rows = records.each_metadata(indexes)
    if rows is None:
        for index in [index for index in indexes if index in waiters]:
            _set_outcome(records, int(index), waiters[index])
        return
    for index, row in zip(indexes, rows, strict=False):
        future = waiters.pop(index, None)
        if future is not None and not future.done():
            future.set_result(row)
