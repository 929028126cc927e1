"""The Producer for asyncio: `send` returns when the record is written, and many tasks may send.

A record takes the path of `Producer.send`. If a task awaits it, its asyncio future is in the
`waiters` of its `TopicRecords`. The I/O thread passes the outcome of each batch to the loop, which
wakes up once for all batches that completed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any

from sparkkafka.client.aio.worker import AsyncClient, LoopQueue, Turn, Worker, awaited, call_soon
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.futures import (
    Indexes,
    OutcomeNotifier,
    RecordMetadata,
    TableDelivery,
    TopicRecords,
    WrittenRange,
)
from sparkkafka.client.producer.producer import Headers, Producer
from sparkkafka.client.producer.producer_records import AppendedRecords, ArrowStream
from sparkkafka.client.producer.record_accumulator import SendBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaTimeoutError

DRAINS_PER_CHECK = 32
"""`drain` checks after as many calls whether it must yield to other tasks."""

OUTCOMES_PER_ITEM = 1024  # the loop handles the outcomes of a large batch in parts of about 1 ms

Bytes = bytes | bytearray | memoryview | str | None


@dataclass(frozen=True)
class _DoneCallback:
    """A done callback for the asyncio future that passes the AsyncDelivery to the user's function.
    asyncio's `as_completed` looks up this object. Two callbacks with the same function and delivery
    are equal, for `remove_done_callback`."""

    function: Callable[[Any], object]
    delivery: AsyncDelivery

    def __call__(self, _: asyncio.Future[RecordMetadata], /) -> None:
        self.function(self.delivery)


class AsyncDelivery:
    """The future of a record, from `AsyncProducer.send_nowait`: `await` it for the metadata.

    It has the methods of an asyncio future, and asyncio's functions accept it (`gather`, `wait`,
    `shield`). It costs the loop no time unless a task awaits it. `Producer.send` sets both
    attributes.
    """

    __slots__ = ("_index", "_records")

    _records: TopicRecords
    _index: int
    _asyncio_future_blocking = False  # marks a future for asyncio

    def __repr__(self) -> str:
        return f"<AsyncDelivery {self._records.outcome_text(self._index)}>"

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self.waiter().__await__()

    def waiter(self) -> asyncio.Future[RecordMetadata]:
        """Return the asyncio future of the record, which is created at the first call."""
        records = self._records
        future: asyncio.Future[RecordMetadata] | None = records.waiters.get(self._index)
        if future is None:
            notifier = records.notifier
            future = records.waiters[self._index] = notifier.loop.create_future()
            if not notifier.is_awaited:
                notifier.on_awaited()
        # -1, the cheap check: the I/O thread has not drained these records yet.
        if records.pending_count >= 0 and not future.done() and records.is_done(self._index):
            _set_outcome(records, self._index, future)
        return future

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the producer's event loop."""
        loop: asyncio.AbstractEventLoop = self._records.notifier.loop
        return loop

    def done(self) -> bool:
        """Return whether the record is written, has failed, or the future was cancelled."""
        return self._records.is_done(self._index) or self.cancelled()

    def result(self) -> RecordMetadata:
        """Return the record's metadata. Raises its error; asyncio.InvalidStateError while it is
        pending; CancelledError if the future was cancelled."""
        return self.waiter().result()

    def exception(self) -> BaseException | None:
        """Return the record's error, or None if it is written. Raises InvalidStateError and
        CancelledError as `result`."""
        return self.waiter().exception()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the future; the record is still sent. Returns False if the future is done."""
        return self.waiter().cancel(msg)

    def cancelled(self) -> bool:
        """Return whether `cancel` was called before the outcome was known."""
        future = self._records.waiters.get(self._index)
        return future is not None and future.cancelled()

    def add_done_callback(
        self,
        callback: Callable[[AsyncDelivery], object],
        *,
        context: contextvars.Context | None = None,
    ) -> None:
        """Call `callback(delivery)` on the loop once the future is done."""
        self.waiter().add_done_callback(_DoneCallback(callback, self), context=context)

    def remove_done_callback(self, callback: Callable[[AsyncDelivery], object]) -> int:
        """Undo `add_done_callback`; return how many callbacks were removed."""
        return self.waiter().remove_done_callback(_DoneCallback(callback, self))

    # asyncio.gather reads these of a cancelled future.

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        return self.waiter()._make_cancelled_error()  # type: ignore[attr-defined, no-any-return]

    @property
    def _cancel_message(self) -> Any:
        return self.waiter()._cancel_message  # type: ignore[attr-defined]


def _set_outcome(records: TopicRecords, index: int, future: asyncio.Future[RecordMetadata]) -> None:
    """Set a record's metadata or error on its asyncio future."""
    if future.done():  # cancelled; `flush` still raises the record's error
        return
    error = records.error_of(index)
    if error is None:
        future.set_result(records.metadata_of(index))
    else:
        future.set_exception(error)


class _LoopWaker:
    """Wakes the I/O thread in the loop's next iteration, once for the records of all tasks: the
    loop waits for the interpreter's lock while that thread runs.

    It has no reference to the producer, which the I/O thread must not keep alive.
    """

    def __init__(self, buffer: SendBuffer, notifier: OutcomeNotifier) -> None:
        self._buffer = buffer
        self._notifier = notifier
        self._is_scheduled = False

    def wake_later(self) -> None:
        """Wake the I/O thread at the end of this turn of the loop: once for all records of the
        turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._notifier.loop.call_soon(self._wake)

    def hasten(self) -> None:
        """Let no record linger, because a task awaits one: it sends no more until then."""
        self._notifier.is_awaited = True
        with self._buffer.lock:  # the I/O thread may be about to sleep
            self._buffer.is_awaited = True
        self.wake_later()

    def _wake(self) -> None:
        """Wake the I/O thread if there are records to send; those that a task awaits do not
        linger."""
        self._is_scheduled = False
        buffer = self._buffer
        if self._notifier.is_awaited:
            self._notifier.is_awaited = False
            with buffer.lock:  # the thread may have taken some records since `hasten`
                buffer.is_awaited = buffer.is_awaited or bool(buffer.open)
        if buffer.open or buffer.is_awaited:
            buffer.wake()


class _LoopProducer(Producer):
    """A Producer whose `send` returns an AsyncDelivery, and never blocks the event loop."""

    _handle = AsyncDelivery

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._waker = _LoopWaker(self._buffer, self._notifier)
        if "linger.ms" not in config:
            self._notifier.on_awaited = self._waker.hasten
        self._limit_bytes = self._buffer.limit_bytes * 3 // 4  # from here on `drain` waits
        self.missing_bytes = 0
        """The size of the last record for which there was no memory."""
        self.checks: Iterator[bool] = repeat(True)
        """Whether the next call of `drain` checks the memory and the time."""

    def _wake(self, records: AppendedRecords) -> None:
        """Wake the I/O thread soon, or immediately if a batch is full."""
        is_full = records.size_bytes >= self._buffer.wake_bytes
        if is_full or asyncio._get_running_loop() is not self._notifier.loop:
            self._buffer.wake()
        else:
            self._waker.wake_later()

    def _wait_for_memory(self, size_bytes: int) -> None:
        """Raise KafkaTimeoutError on a loop if the memory is full; wait for memory in a thread."""
        if asyncio._get_running_loop() is None:  # send_table, in the worker's thread
            super()._wait_for_memory(size_bytes)
            return
        self._buffer.raise_refusal()
        self.checks = repeat(True)  # the next `drain` checks the memory
        if not self._buffer.has_memory(size_bytes):
            self.missing_bytes = size_bytes
            raise KafkaTimeoutError(
                f"buffer.memory={self._buffer.limit_bytes} is full: call `await drain()` before "
                "the next send_nowait, or `await send`, which waits"
            )

    def _close(self, deadline: Deadline) -> None:
        """Close the client, and let the next call of `drain` notice that."""
        try:
            super()._close(deadline)
        finally:
            self.checks = repeat(True)


class AsyncProducer(AsyncClient[_LoopProducer]):
    """`Producer` for asyncio: the same settings, arguments and errors. Any number of tasks may use
    it. Their records are sent in the order of the calls. Unless linger.ms is set, records linger
    only until a task awaits one.

        async with AsyncProducer({"bootstrap.servers": "localhost:9092"}) as producer:
            metadata = await producer.send("orders", b"…", key=b"17")

    Leaving `async with` without an exception calls `close()`. If an exception leaves it
    (CancelledError is one), records that are not sent within a second fail, and a warning in the
    log says how many.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` has the settings of `Producer`, by Kafka's names. Raises OptionError."""
        super().__init__(_LoopProducer(config))
        self._closer = Worker(self)
        self._thread_id = 0  # of the loop's thread; 0 before the first call
        # `_bind` sets these three.
        self._loop: asyncio.AbstractEventLoop
        self._drained: asyncio.Future[None]  # done: what `drain` returns if it need not wait
        self._outcomes: LoopQueue[tuple[TopicRecords, Indexes] | asyncio.Future[None]]
        self._freed = asyncio.Event()  # set when memory is freed
        self._memory_lock = asyncio.Lock()  # held by the task that waits for memory
        self._buffer = self._client._buffer
        self._turn = Turn()

    def _bind(self) -> None:
        """Bind to the running loop at the first call. Raises KafkaError on another loop."""
        loop = self._worker.bind()
        if not self._thread_id:
            self._outcomes = LoopQueue(loop, _handle_outcome)
            # Weak: they lead to tasks that await records, and so to this object, which the I/O
            # thread would keep alive if the loop is closed before these tasks run again.
            outcomes, freed = weakref.ref(self._outcomes), weakref.ref(self._freed)
            notifier = self._client._notifier
            notifier.loop, notifier.on_outcome = loop, partial(_put_outcomes, loop, outcomes)
            self._buffer.on_freed = lambda: (event := freed()) and call_soon(loop, event.set)
            self._loop, self._thread_id = loop, threading.get_ident()
            self._drained = loop.create_future()
            self._drained.set_result(None)
            if type(self).send_nowait is AsyncProducer.send_nowait:  # else a subclass calls ours
                self.send_nowait = self._client.send  # type: ignore[assignment, method-assign]

    async def _run(self, call: Callable[[], Any], worker: Worker | None = None) -> Any:
        """Run a call of a Producer's method in the thread, bound to the running loop."""
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
        """Send a record, and return its metadata once the broker has acknowledged it.

        `Producer.send` documents the arguments. While buffer.memory is full, this waits for at most
        max.block.ms without blocking the loop. Raises the errors of `Producer.send` and of
        `Delivery.result`.

        If it is cancelled while it waits for memory, nothing is sent. If it is cancelled later, the
        record stays queued and is written once. If it fails then, `flush` raises its error.
        """
        # `_get_running_loop` would call getpid.
        if threading.get_ident() != self._thread_id or not self._loop.is_running():
            self._bind()
        if not self._memory_lock.locked():
            try:
                delivery: AsyncDelivery = self._client.send(  # type: ignore[assignment]
                    topic, value, key, headers, partition, timestamp_ms
                )
            except KafkaTimeoutError:  # buffer.memory is full
                pass
            else:
                return await delivery.waiter()
        send = partial(self.send_nowait, topic, value, key, headers, partition, timestamp_ms)
        delivery = await self._call_with_memory(send)
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
        """Queue a record, and return the future of its metadata. Never waits.

        `Producer.send` documents the arguments and errors. While buffer.memory is full, this raises
        KafkaTimeoutError immediately and queues nothing: `await drain()` between calls prevents
        that. A cancelled future does not stop its record.
        """
        # The first call replaces this method by the client's, which saves a call for each record.
        if not self._thread_id:
            self._bind()
        found: Any = self._client.send(topic, value, key, headers, partition, timestamp_ms)
        return found  # type: ignore[no-any-return]

    def drain(self) -> Awaitable[None]:
        """Wait while buffer.memory is nearly full: await it in a loop of `send_nowait`.

        If less than a quarter of the memory is free, it waits until half is, for at most
        max.block.ms. It also yields to other tasks. Raises KafkaTimeoutError after max.block.ms,
        and KafkaError after close. (What it returns may be a future, which `create_task` refuses.)
        """
        # Most calls return a future that is done: a coroutine would take three times as long.
        return self._drain() if next(self._client.checks) else self._drained

    async def _drain(self) -> None:
        """Wait for memory if it is nearly full, and yield to other tasks if it is time."""
        self._bind()
        buffer, client = self._buffer, self._client
        if buffer.used_bytes + buffer.taken_bytes > client._limit_bytes or client._closed:
            check = partial(self._check_memory, buffer.limit_bytes // 2)
            await self._call_with_memory(check)
        if self._turn.is_over():  # every task yields at its next call
            await asyncio.sleep(0)
        else:  # the next calls of `drain` need no check
            client.checks = chain(repeat(False, DRAINS_PER_CHECK - 1), repeat(True))

    def _check_memory(self, size_bytes: int) -> None:
        """Raise KafkaTimeoutError if less than `size_bytes` of buffer.memory are free."""
        with self._client._lock:
            self._client._wait_for_memory(size_bytes)

    async def _call_with_memory(self, action: Callable[[], Any]) -> Any:
        """Call `action` again each time memory was freed, until it raises no KafkaTimeoutError, and
        return its result. Only one caller at a time tries. Raises KafkaTimeoutError after
        max.block.ms."""
        buffer = self._buffer
        max_block_ms = self._client._settings.producer.max_block_ms
        try:
            async with asyncio.timeout(max_block_ms / 1000), self._memory_lock:
                with buffer.lock:  # lets the I/O thread send batches at once, without lingering
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
        """Send many records, and return the written offsets by partition once all are acknowledged.

        `Producer.send_many` documents the arguments; raises its errors and those of
        `TableDelivery.result`. If it is cancelled, the queued records are written.
        """
        return await self._written_ranges(lambda: self._client.send_many(topic, records, partition))

    async def send_table(
        self, table: ArrowStream, topic: str | None = None
    ) -> dict[TopicPartition, WrittenRange]:
        """Send the rows of an Arrow table, and return the written offsets by partition once all are
        acknowledged.

        `Producer.send_table` documents the arguments; raises its errors and those of
        `TableDelivery.result`. If it is cancelled, the queued rows are written.
        """
        return await self._written_ranges(lambda: self._client.send_table(table, topic))

    async def _written_ranges(
        self, send: Callable[[], TableDelivery]
    ) -> dict[TopicPartition, WrittenRange]:
        """Call `send` in the worker's thread, wait until its records are written or have failed,
        and return the written offsets by partition."""
        delivery = await self._run(send)
        self._client._notifier.on_awaited()  # so that its records do not linger
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcomes = self._outcomes
        delivery.add_callback(lambda _: outcomes.put(done))
        await done
        written: dict[TopicPartition, WrittenRange] = delivery.result()
        return written

    flush = awaited(Producer.flush)
    partitions_for = awaited(Producer.partitions_for)

    # --- transactions -----------------------------------------------------------------------------

    init_transactions = awaited(Producer.init_transactions)
    begin_transaction = awaited(Producer.begin_transaction)
    commit_transaction = awaited(Producer.commit_transaction)
    abort_transaction = awaited(Producer.abort_transaction)
    send_offsets_to_transaction = awaited(Producer.send_offsets_to_transaction)

    # --- the end ----------------------------------------------------------------------------------

    async def close(self, timeout_s: float | None = None) -> None:
        """Send the queued records, abort an open transaction, and close the connections (see
        `Producer.close`). If the task is cancelled, closing continues in the background."""
        await self._end(partial(self._client.close, timeout_s))


def _put_outcomes(
    loop: asyncio.AbstractEventLoop,
    reference: weakref.ref[LoopQueue[Any]],
    records: TopicRecords,
    indexes: Indexes,
) -> None:
    """Pass the outcome of the records at these indexes, which are of one batch, to the loop: in
    parts between which other tasks can run. The queue is gone if only futures are left of the
    producer."""
    queue = reference()
    put = partial(call_soon, loop, _handle_outcome) if queue is None else queue.put
    for first in range(0, len(indexes), OUTCOMES_PER_ITEM):
        put((records, indexes[first : first + OUTCOMES_PER_ITEM]))


def _handle_outcome(item: tuple[TopicRecords, Indexes] | asyncio.Future[None]) -> None:
    """Set the outcome of a batch's records on their futures, or complete the future of a table.

    This is no method of AsyncProducer because the I/O thread must not keep that object alive."""
    if isinstance(item, asyncio.Future):
        if not item.done():
            item.set_result(None)
        return
    records, indexes = item
    waiters = records.waiters
    rows = records.each_metadata(indexes)
    if rows is None:  # the batch failed
        for index in [index for index in indexes if index in waiters]:
            _set_outcome(records, int(index), waiters[index])
        return
    for index, row in zip(indexes, rows, strict=False):
        future = waiters.get(index)
        if future is not None and not future.done():
            future.set_result(row)
