"""The consumers for asyncio: a thread polls, and passes the records to the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, Self, TypeVar

import pyarrow as pa

from sparkkafka.client.aio.worker import AsyncClient, Turn, Worker, awaited
from sparkkafka.client.consumer.consumer import CLOSE_TIMEOUT_S, Consumer
from sparkkafka.client.consumer.record import Record, Records
from sparkkafka.client.deadline import CUT_AFTER_S, MAX_WAIT_S, Deadline, seconds_of
from sparkkafka.client.share import ShareConsumer, ShareRecord
from sparkkafka.errors import WakeupError

T = TypeVar("T")

SLICE_RECORDS = 64  # `async for` checks after as many whether it must yield to other tasks

C = TypeVar("C", bound=Consumer | ShareConsumer)


class _AsyncPollingClient(AsyncClient[C]):
    """Base of both consumers: polls that other calls can interrupt."""

    def __init__(self, client: C, undo_poll: Callable[[], None]) -> None:
        """`undo_poll` makes the next poll return the records of the last one again."""
        super().__init__(client)
        client._guard.what = type(self).__name__
        self._undo_poll = undo_poll
        self._has_wakeup = False

    async def _poll(
        self,
        poll: Callable[[float], T],
        timeout_s: float,
        prepare: Callable[[], object] | None = None,
    ) -> T:
        """Call `poll` in steps until it returns records or `timeout_s` is over. Other tasks' calls
        run between the steps. `prepare` is called on the loop before each step."""
        deadline = Deadline(seconds_of(timeout_s) * 1000)
        while True:
            found = await self._worker.run(
                partial(self._poll_step, poll, deadline),
                prepare=prepare,
                undo=self._undo_poll,
                interrupt=self._client.wakeup,
            )
            if found is not None and (len(found) or deadline.expired):  # type: ignore[arg-type]
                return found

    def _poll_step(self, poll: Callable[[float], T], deadline: Deadline) -> T | None:
        """Poll in the worker's thread; return None if another call interrupted it. Raises
        WakeupError after `wakeup`."""
        # At most 1 s, so that the thread can see a closed loop. After an interrupt, poll again
        # without waiting: else frequent calls could starve the poll.
        for wait_s in (min(1.0, deadline.remaining_s()), 0.0):
            try:
                return poll(wait_s)
            except WakeupError:
                if self._has_wakeup:
                    self._has_wakeup = False
                    raise
        return None

    def wakeup(self) -> None:
        """Make the waiting `poll`, or else the next one, raise WakeupError."""
        self._has_wakeup = True
        self._client.wakeup()

    async def _end(self, close: Callable[[], object], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the client after the calls that run. If brokers do not answer these, perhaps
        cancelled ones, cut them off after `timeout_s`."""
        loop, signal = self._worker.bind(), self._client._cluster.close_signal
        signal.close_in(timeout_s)
        loop.call_later(timeout_s + CUT_AFTER_S, signal.cut_sockets)
        await super()._end(close, timeout_s)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the group and close the connections, within `timeout_s` (see `Consumer.close` and
        `ShareConsumer.close`). If the task is cancelled, closing continues in the background."""
        await self._end(partial(self._client.close, timeout_s), seconds_of(timeout_s))


class AsyncConsumer(_AsyncPollingClient[Consumer]):
    """`Consumer` for asyncio: the same settings, methods and errors, awaited.

        async with AsyncConsumer({"bootstrap.servers": "…", "group.id": "g"}) as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                ...
                await consumer.commit()

    Tasks of one loop may share it. Callbacks may be functions or coroutine functions, and run on
    the loop. In `async for record in consumer`, `commit()` and automatic commits include the
    records that the loop has returned, and exclude those that were fetched with them.

    If an exception leaves `async with` (CancelledError is one), nothing is committed, as with
    `Consumer`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` has the settings of `Consumer`, by Kafka's names. Raises OptionError."""
        client = Consumer(config)
        super().__init__(client, client._loop.restore_positions)
        self._records = Records()  # of the last poll
        self._iterator: Iterator[Record] = iter(())  # over those after `_slice`
        self._slice: Iterator[Record] = iter(())  # the records that `async for` returns next
        self._slice_end = 0  # how many of `_records` are before the end of `_slice`
        self._turn = Turn()  # when other tasks must run
        self._polled_at_s = 0.0
        self._poll_lock = asyncio.Lock()

    # --- reading ----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        """Iterate over the records, without end. After a `break` the next `async for` continues."""
        return self

    async def __anext__(self) -> Record:
        """Return the next record, and poll if none is left."""
        # An async generator would be about as fast, a class with `__await__` half as fast.
        for record in self._slice:
            return record
        return await self._next_after_slice()

    async def _next_after_slice(self) -> Record:
        """Return the first record of the next slice. Lets other tasks run if it is time, and polls
        if all records are returned."""
        while True:
            if self._turn.is_over():
                await asyncio.sleep(0)
            if not length_hint(self._slice):  # otherwise another task has made it
                records = list(islice(self._iterator, SLICE_RECORDS))
                self._slice_end += len(records)
                self._slice = iter(records)
            for record in self._slice:
                return record
            async with self._poll_lock:
                if not self._unread:  # otherwise another task has polled
                    # A loop that consumes the records of a poll in less than 0.1 s gets up to
                    # 16,384 (all of a megabyte of small ones), since a call in the thread costs as
                    # much as some hundred records. A slower one gets max.poll.records (0), so that
                    # it polls again within max.poll.interval.ms.
                    is_fast = time.monotonic() - self._polled_at_s < 0.1
                    await self._fill(16_384 if is_fast else 0, MAX_WAIT_S)
                    self._polled_at_s = time.monotonic()
                    self._turn.begin()

    async def _fill(self, max_records: int, timeout_s: float) -> None:
        """Poll in the thread until there are unread records, or until the timeout. If the task is
        cancelled meanwhile, the records of its poll become the unread ones (`keep`)."""
        deadline = Deadline(seconds_of(timeout_s) * 1000)
        while not self._unread or self._client._guard.is_closed:  # then poll raises
            self._set_unread(Records())  # frees the last poll's memory
            records = await self._worker.run(
                partial(self._poll_step, partial(self._poll_many, max_records), deadline),
                prepare=self._exclude_unread,
                keep=self._set_unread,
                interrupt=self._client.wakeup,
            )
            if records:
                self._set_unread(records)
            elif records is not None and deadline.expired:
                return  # after None another call has interrupted the poll: it is repeated

    def _poll_many(self, max_records: int, timeout_s: float) -> Records:
        """Poll in the thread for max.poll.records, or for `max_records` if that is more. Return
        none if an earlier poll has left unread records."""
        with self._client._guard:
            if self._client._subscription.unread:  # by `_exclude_unread`, before this call
                return Records()
            return self._client._loop.poll_records(timeout_s, max_records)

    @property
    def _unread(self) -> Records:
        """The polled records that no task has got."""
        _, unread = self._records.split(self._slice_end - length_hint(self._slice))
        return unread

    def _set_unread(self, records: Records) -> None:
        """Let tasks get these records next."""
        self._records, self._iterator = records, iter(records)
        self._slice, self._slice_end = iter(()), 0

    async def _rewind_and_run(self, call: Callable[[], T]) -> T:
        """Run a call that changes which records are read next, after a seek to the unread ones in
        the same call of the thread: another task may iterate between two."""

        def run() -> T:
            self._seek_to_unread()
            return call()

        return await self._worker.run(run, prepare=self._prepare_rewind)

    def _prepare_rewind(self) -> None:
        """Note the offsets of the unread records for `_seek_to_unread`, and drop these records."""
        self._exclude_unread()
        self._set_unread(Records())

    def _seek_to_unread(self) -> None:
        """Let records that were polled and that no task has got be read again, after
        `_prepare_rewind`. Runs in the worker's thread."""
        subscription = self._client._subscription
        offsets, subscription.unread = subscription.unread, {}
        for tp, offset in offsets.items():
            if tp in subscription:
                subscription.state(tp).seek(offset)

    async def _run(self, call: Callable[[], T], worker: Worker | None = None) -> T:
        """Run a call of a Consumer's method in the thread; commits in it exclude the unread
        records."""
        return await (worker or self._worker).run(call, prepare=self._exclude_unread)

    def _exclude_unread(self) -> None:
        """Exclude the unread records from commits. Runs on the loop, while the thread is idle."""
        self._client._subscription.unread = self._unread.first_offsets

    async def poll(self, timeout_s: float) -> Records:
        """Return up to max.poll.records, as soon as there are some or `timeout_s` is over (see
        `Consumer.poll`). If it is cancelled, the next poll returns its records."""
        await self._fill(0, timeout_s)
        records, unread = self._unread.split(self._client._options.max_poll_records)
        self._set_unread(unread)
        return records

    async def poll_arrow(self, timeout_s: float, max_records: int | None = None) -> pa.Table:
        """Return all fetched records, at most `max_records`, as an Arrow table (see
        `Consumer.poll_arrow`). If it is cancelled, the next poll returns its records."""

        def poll(wait_s: float) -> pa.Table:
            self._seek_to_unread()
            return self._client.poll_arrow(wait_s, max_records)

        return await self._poll(poll, timeout_s, self._prepare_rewind)

    async def batches(self) -> AsyncIterator[Records]:
        """Iterate over polls, without end: each item has the records of one poll."""
        while True:
            yield await self.poll(MAX_WAIT_S)

    async def arrow_batches(self, max_records: int | None = None) -> AsyncIterator[pa.Table]:
        """Iterate over polls, without end: each item is the Arrow table of one `poll_arrow`."""
        while True:
            yield await self.poll_arrow(MAX_WAIT_S, max_records)

    # --- subscription, positions ------------------------------------------------------------------

    assign = awaited(Consumer.assign, "_rewind_and_run")
    assignment = awaited(Consumer.assignment)
    subscribe = awaited(Consumer.subscribe, "_rewind_and_run")
    subscription = awaited(Consumer.subscription)
    unsubscribe = awaited(Consumer.unsubscribe, "_rewind_and_run")
    seek = awaited(Consumer.seek, "_rewind_and_run")
    seek_to_beginning = awaited(Consumer.seek_to_beginning, "_rewind_and_run")
    seek_to_end = awaited(Consumer.seek_to_end, "_rewind_and_run")
    seek_to_committed = awaited(Consumer.seek_to_committed, "_rewind_and_run")
    position = awaited(Consumer.position)
    lag = awaited(Consumer.lag)
    pause = awaited(Consumer.pause, "_rewind_and_run")
    resume = awaited(Consumer.resume)
    paused = awaited(Consumer.paused)

    # --- offsets ----------------------------------------------------------------------------------

    commit = awaited(Consumer.commit)
    committed = awaited(Consumer.committed)
    group_metadata = awaited(Consumer.group_metadata)
    beginning_offsets = awaited(Consumer.beginning_offsets)
    end_offsets = awaited(Consumer.end_offsets)
    offsets_for = awaited(Consumer.offsets_for)
    offsets_for_times = awaited(Consumer.offsets_for_times)
    partitions_for = awaited(Consumer.partitions_for)
    list_topics = awaited(Consumer.list_topics)


class AsyncShareConsumer(_AsyncPollingClient[ShareConsumer]):
    """`ShareConsumer` for asyncio: the same settings, methods and errors, awaited.

        async with AsyncShareConsumer({"bootstrap.servers": "…", "group.id": "g"}) as consumer:
            await consumer.subscribe(["jobs"])
            async for records in consumer.batches():
                ...

    As with `ShareConsumer`, the next poll accepts the records of the last one, unless
    share.acknowledgement.mode is explicit.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` has the settings of `ShareConsumer`, by Kafka's names. Raises OptionError."""
        client = ShareConsumer(config)
        super().__init__(client, client._release_polled)

    async def poll(self, timeout_s: float) -> list[ShareRecord]:
        """Return the records that the group delivers to this member, within `timeout_s` (see
        `ShareConsumer.poll`). If it is cancelled, its records are released: the group delivers them
        again."""
        return await self._poll(self._client.poll, timeout_s)

    async def batches(self) -> AsyncIterator[list[ShareRecord]]:
        """Iterate over polls, without end: each item has the records of one poll."""
        while True:
            yield await self.poll(MAX_WAIT_S)

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long this member acquires records for, by the last response; None before the first
        one. It is share.record.lock.duration.ms of the group."""
        return self._client.acquisition_lock_timeout_ms

    subscribe = awaited(ShareConsumer.subscribe)
    subscription = awaited(ShareConsumer.subscription)
    assignment = awaited(ShareConsumer.assignment)
    unsubscribe = awaited(ShareConsumer.unsubscribe)
    acknowledge = awaited(ShareConsumer.acknowledge)
    acknowledge_offset = awaited(ShareConsumer.acknowledge_offset)
    commit = awaited(ShareConsumer.commit)
    set_acknowledgement_commit_callback = awaited(ShareConsumer.set_acknowledgement_commit_callback)
