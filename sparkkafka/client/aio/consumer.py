"""The consumers for asyncio: a thread polls, the loop gets the records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import pyarrow as pa

from sparkkafka.client.aio.worker import AsyncClient, SyncClient, Worker, awaited
from sparkkafka.client.consumer.consumer import CLOSE_TIMEOUT_S, Consumer, SingleThreadGuard
from sparkkafka.client.consumer.record import Record, Records
from sparkkafka.client.deadline import Deadline, seconds_of
from sparkkafka.client.metrics import Metrics
from sparkkafka.client.share.acknowledgements import ShareRecord
from sparkkafka.client.share.share_consumer import ShareConsumer
from sparkkafka.errors import WakeupError

T = TypeVar("T")
P = ParamSpec("P")

FAST_RECORDS, FAST_S = 8192, 0.1
"""If an iteration takes less time than this for the records of a poll, the next poll may return as
many: a thread's turn costs as much as some hundred records. A slow one gets max.poll.records, so
that it polls within max.poll.interval.ms."""
SLICE_RECORDS, TURN_S = 64, 0.002
"""An iteration looks at the time after as many records, and gives other tasks their turn after as
much time."""
SLICE_S = 1.0
"""The longest poll of the thread: after it, it notices that its loop is closed."""
UNLIMITED_S = 1e8


class _PollingClient(SyncClient, Protocol):
    _guard: SingleThreadGuard

    def wakeup(self) -> None: ...

    def metrics(self) -> Metrics: ...


C = TypeVar("C", bound=_PollingClient)


class _AsyncPollingClient(AsyncClient[C]):
    """What both consumers have."""

    def __init__(self, client: C, undo_poll: Callable[[], None]) -> None:
        """`undo_poll` lets the next poll return the records of the last one."""
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
        """Return what `poll(timeout_s)` returns, in steps between which other calls run."""
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
        # After an interrupt once without a wait: polls get on, however often they are interrupted.
        for wait_s in (min(SLICE_S, deadline.remaining_s()), 0.0):
            try:
                return poll(wait_s)
            except WakeupError:
                if self._has_wakeup:
                    self._has_wakeup = False
                    raise
        return None

    def wakeup(self) -> None:
        """Let the `poll` that waits now, else the next one, raise WakeupError."""
        self._has_wakeup = True
        self._client.wakeup()

    def metrics(self) -> Metrics:
        """As `Consumer.metrics`."""
        return self._client.metrics()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """As `Consumer.close`, also if the task is cancelled meanwhile."""
        await self._end(partial(self._client.close, timeout_s), seconds_of(timeout_s))  # type: ignore[attr-defined]


def _discarding_fetched(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """As `awaited`, of a method that changes what is read next: first the records that an iteration
    has not returned go back, to be fetched again."""
    call = awaited(method)

    @wraps(method)
    async def after_return(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._return_rest()
        return await call(self, *args, **kwargs)

    after_return.__qualname__ = call.__qualname__
    return after_return


class AsyncConsumer(_AsyncPollingClient[Consumer]):
    """`Consumer` for asyncio: the same settings, methods and errors, awaited.

        async with AsyncConsumer({"bootstrap.servers": "…", "group.id": "g"}) as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                ...
                await consumer.commit()

    Tasks of one loop may share it. Callbacks may be functions or coroutine functions, and run on
    the loop. While `async for record in consumer` goes on, a record counts as read once the loop
    has got it: `commit()` and automatic commits exclude fetched records that it has not.

    Leaving `async with` with an exception (also a cancelled task) commits nothing, as `Consumer`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        client = Consumer(config)
        super().__init__(client, client._loop.restore_positions)
        self._records = Records()  # of the iteration; those up to `_last` are returned
        self._iterator: Iterator[Record] = iter(())
        self._slice: Iterator[Record] = iter(())  # the next ones of them
        self._turn_s = 0.0
        self._last: Record | None = None
        self._polled_s = 0.0
        self._next_poll = asyncio.Lock()

    # --- reading ----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        """Iterate over all records, without end. Another iteration continues after a `break`."""
        return self

    async def __anext__(self) -> Record:
        # An async generator costs about the same, a class with `__await__` twice as much.
        for record in self._slice:
            self._last = record
            return record
        return await self._next_slice()

    async def _next_slice(self) -> Record:
        """Return the next record after those of a slice: let other tasks run, and poll if it was
        the last slice."""
        while True:
            if time.monotonic() - self._turn_s >= TURN_S:
                await asyncio.sleep(0)
                self._turn_s = time.monotonic()
            self._slice = islice(self._iterator, SLICE_RECORDS)
            for record in self._slice:
                self._last = record
                return record
            async with self._next_poll:
                if not self._rest:  # else another task has polled
                    is_fast = time.monotonic() - self._polled_s < FAST_S
                    self._take_rest()
                    poll = partial(self._poll_many, FAST_RECORDS if is_fast else 0)
                    self._records = await self._poll(poll, UNLIMITED_S)
                    self._iterator = iter(self._records)
                    self._polled_s = self._turn_s = time.monotonic()

    def _poll_many(self, max_records: int, timeout_s: float) -> Records:
        """As `Consumer.poll`, with up to `max_records` if that is more."""
        with self._client._guard:
            return self._client._loop.poll_records(timeout_s, max_records)

    @property
    def _rest(self) -> Records:
        """The records that the iteration has not returned yet."""
        return self._records.after(self._last) if self._records else self._records

    def _take_rest(self) -> Records:
        """Take the rest; the iteration polls next."""
        rest = self._rest
        self._records, self._last = Records(), None
        self._iterator = self._slice = iter(())
        return rest

    async def _return_rest(self) -> None:
        """Let the next poll return the rest."""
        if self._rest:
            back = self._worker.run(self._seek_back, prepare=self._mark_rest_unread)
            await asyncio.shield(back)  # even if it is cancelled before its turn

    def _mark_rest_unread(self) -> None:
        self._note_unread()
        self._take_rest()

    def _seek_back(self) -> None:
        """Let the next poll return what is unread, in the worker's thread."""
        subscription = self._client._subscription
        offsets, subscription.unread = subscription.unread, {}
        for tp, offset in offsets.items():
            if tp in subscription:
                subscription.state(tp).seek(offset)

    async def _run(self, call: Callable[[], T], worker: Worker | None = None) -> T:
        return await (worker or self._worker).run(call, prepare=self._note_unread)

    def _note_unread(self) -> None:
        """Let commits exclude the rest. The thread runs no call now."""
        self._client._subscription.unread = self._rest.first_offsets

    async def poll(self, timeout_s: float) -> Records:
        """As `Consumer.poll`. If it is cancelled, the next poll returns its records."""
        rest, client = self._rest, self._client
        if rest and len(rest) <= client._options.max_poll_records and not client._is_closing:
            return self._take_rest()
        return await self._poll_behind_rest(self._client.poll, timeout_s)

    async def _poll_behind_rest(self, poll: Callable[[float], T], timeout_s: float) -> T:
        """Let the rest go back in the same turn as the poll: another task may iterate meanwhile."""

        def run(wait_s: float) -> T:
            self._seek_back()
            return poll(wait_s)

        return await self._poll(run, timeout_s, self._mark_rest_unread)

    async def poll_arrow(self, timeout_s: float, max_records: int | None = None) -> pa.Table:
        """As `Consumer.poll_arrow`. If it is cancelled, the next poll returns its records."""
        poll = partial(self._client.poll_arrow, max_records=max_records)
        return await self._poll_behind_rest(poll, timeout_s)

    async def batches(self) -> AsyncIterator[Records]:
        """Iterate over the records of one poll after the other, without end."""
        while True:
            yield await self.poll(UNLIMITED_S)

    async def arrow_batches(self, max_records: int | None = None) -> AsyncIterator[pa.Table]:
        """As `batches`, but as the Arrow tables of `poll_arrow`."""
        while True:
            yield await self.poll_arrow(UNLIMITED_S, max_records)

    # --- what to read, and from where -------------------------------------------------------------

    assign = _discarding_fetched(Consumer.assign)
    assignment = awaited(Consumer.assignment)
    subscribe = _discarding_fetched(Consumer.subscribe)
    subscription = awaited(Consumer.subscription)
    unsubscribe = _discarding_fetched(Consumer.unsubscribe)
    seek = _discarding_fetched(Consumer.seek)
    seek_to_beginning = _discarding_fetched(Consumer.seek_to_beginning)
    seek_to_end = _discarding_fetched(Consumer.seek_to_end)
    seek_to_committed = _discarding_fetched(Consumer.seek_to_committed)
    position = awaited(Consumer.position)
    lag = awaited(Consumer.lag)
    pause = _discarding_fetched(Consumer.pause)
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

    async with AsyncShareConsumer({"bootstrap.servers": "…", "group.id": "work"}) as consumer:
        await consumer.subscribe(["jobs"])
        async for records in consumer.batches():
            ...
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        client = ShareConsumer(config)
        super().__init__(client, client._release_polled)

    async def poll(self, timeout_s: float) -> list[ShareRecord]:
        """As `ShareConsumer.poll`. If it is cancelled, its records are released: the group hands
        them out again."""
        return await self._poll(self._client.poll, timeout_s)

    async def batches(self) -> AsyncIterator[list[ShareRecord]]:
        """Iterate over the records of one poll after the other, without end."""
        while True:
            yield await self.poll(UNLIMITED_S)

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """As `ShareConsumer.acquisition_lock_timeout_ms`."""
        return self._client.acquisition_lock_timeout_ms

    subscribe = awaited(ShareConsumer.subscribe)
    subscription = awaited(ShareConsumer.subscription)
    assignment = awaited(ShareConsumer.assignment)
    unsubscribe = awaited(ShareConsumer.unsubscribe)
    acknowledge = awaited(ShareConsumer.acknowledge)
    acknowledge_offset = awaited(ShareConsumer.acknowledge_offset)
    commit = awaited(ShareConsumer.commit)
    set_acknowledgement_commit_callback = awaited(ShareConsumer.set_acknowledgement_commit_callback)
