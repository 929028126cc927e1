"""AsyncProducer: waiting without blocking the loop, cancelled sends, loops, many tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sparkkafka.client import Consumer, TopicPartition
from sparkkafka.client.aio import AsyncConsumer, AsyncProducer, worker
from sparkkafka.client.aio.producer import DRAINS_PER_CHECK, OUTCOMES_PER_ITEM
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    ProduceError,
    UnknownTopicError,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.aio.cancelling import CancelledAt, begun_or_not
from tests.client.support import log_values, settings
from tests.support.waiting import WAIT_S, Hold, wait_until

FOREVER_MS = 600_000


@pytest.fixture
def fake(fake_cluster: FakeCluster) -> FakeCluster:
    fake_cluster.create_topic("t")
    return fake_cluster


def producer(fake: Any, **config: Any) -> AsyncProducer:
    return AsyncProducer(settings(fake, **config))


def test_a_record_is_written_when_send_returns(fake: FakeCluster) -> None:
    async def main() -> None:
        no_limits = {"request_timeout_ms": 0, "default_api_timeout_ms": 0, "delivery_timeout_ms": 0}
        async with producer(fake, **no_limits) as opened:
            metadata = await opened.send("t", "v", key="k", headers={"h": "1"}, partition=0)
            assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 0, 0)
            assert log_values(fake, "t") == [b"v"]
            futures = [opened.send_nowait("t", b"%d" % number) for number in range(100)]
            found = await asyncio.gather(*futures)
            assert [row.offset for row in found] == list(range(1, 101))
            written = await opened.send_many("t", [b"a", {"value": b"b", "key": b"k"}])
            assert written[TopicPartition("t", 0)].record_count == 2
            assert opened.metrics()["producer-metrics"]["record-send-total"] == 103

    asyncio.run(main())


def test_the_sends_of_one_iteration_of_the_loop_share_a_request(fake: FakeCluster) -> None:
    async def main() -> None:
        async with producer(fake) as opened:
            await opened.send("t", b"first")
            while not opened._client._buffer.is_sleeping:  # before, it takes what is there
                await asyncio.sleep(0)
            await asyncio.gather(*(opened.send("t", bytes(1000)) for _ in range(100)))

    asyncio.run(main())
    assert len(fake.requests_of("Produce")) == 2


def test_records_linger_until_a_task_awaits_one(fake: FakeCluster) -> None:
    async def main() -> None:
        async with producer(fake) as opened:
            opened._client._io_thread._accumulator._linger_s = FOREVER_MS
            await asyncio.wait_for(opened.send("t", b"1"), WAIT_S)
            later = opened.send_nowait("t", b"2")
            await opened.partitions_for("t")  # from here on the I/O thread has it
            assert len(fake.requests_of("Produce")) == 1
            opened.send_nowait("t", b"3")
            await asyncio.wait_for(later, WAIT_S)
            opened.send_nowait("t", b"4")
            await opened.partitions_for("t")
            await asyncio.wait_for(opened.send("t", b"5"), WAIT_S)
            await asyncio.wait_for(opened.send_many("t", [b"6"]), WAIT_S)
        async with producer(fake, linger_ms=FOREVER_MS, delivery_timeout_ms=2 * FOREVER_MS) as p:
            for _ in range(3):
                await p.drain()  # before the first record
            task = asyncio.create_task(p.send("t", b"7"))
            await p.partitions_for("t")
            await p.partitions_for("t")
            assert log_values(fake, "t")[-1] == b"6"
            await p.flush()
            assert (await task).offset == 6

    asyncio.run(main())
    assert log_values(fake, "t") == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_a_failed_send_raises_the_records_error(fake: FakeCluster) -> None:
    async def main() -> None:
        async with producer(fake) as opened:
            with pytest.raises(UnknownTopicError, match="partition 7 of topic t"):
                await opened.send("t", b"", partition=7)
            with pytest.raises(UnknownTopicError, match="partition 8 of topic t"):
                await opened.send_many("t", [b"a"], partition=8)
            future = opened.send_nowait("t", b"", partition=9)
            with pytest.raises(UnknownTopicError, match="partition 9 of topic t"):
                await opened.flush()
            with pytest.raises(UnknownTopicError, match="partition 9"):
                await future
            await opened.flush()  # the error was raised once
            with contextlib.suppress(UnknownTopicError):
                await opened.send_nowait("t", b"", partition=10)
            await opened.flush()  # it was read

    asyncio.run(main())


def test_an_error_that_nobody_read_is_raised_at_the_end(fake: FakeCluster) -> None:
    fake.fault(ErrorCode.INVALID_RECORD, api="Produce", times=None)

    async def main() -> None:
        with pytest.raises(ProduceError, match="INVALID_RECORD"):
            async with producer(fake) as opened:
                opened.send_nowait("t", b"lost")

    asyncio.run(main())


def test_a_full_buffer_blocks_tasks_and_not_the_loop(fake: FakeCluster) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", times=None)

    async def main() -> None:
        async with producer(fake, buffer_memory=5_000, batch_size=1_000) as opened:
            tasks = [
                asyncio.create_task(opened.send("t", b"%0100d" % number)) for number in range(200)
            ]
            await asyncio.to_thread(fake.wait_for_requests, "Produce")
            while not opened._memory_lock.locked():
                await asyncio.sleep(0.01)
            with pytest.raises(KafkaTimeoutError, match=r"buffer\.memory=5000 is full: .*drain"):
                opened.send_nowait("t", bytes(100))
            assert not any(task.done() for task in tasks)
            hold.release()
            rows = await asyncio.gather(*tasks)
            assert sorted(row.offset for row in rows) == list(range(200))

    asyncio.run(main())
    assert log_values(fake, "t") == [b"%0100d" % number for number in range(200)]


def test_drain_lets_a_loop_of_send_nowait_go_on(fake: FakeCluster) -> None:
    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with producer(fake, buffer_memory=20_000) as opened:
            task = asyncio.create_task(other())
            for number in range(2_000):
                opened.send_nowait("t", b"%0100d" % number)
                await opened.drain()
            task.cancel()
        return turns

    assert asyncio.run(main()) > 10
    assert log_values(fake, "t") == [b"%0100d" % number for number in range(2_000)]


def test_a_buffer_that_stays_full_is_an_error_after_max_block_ms(fake: FakeCluster) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", times=None)

    async def main() -> None:
        async with producer(fake, buffer_memory=1_000, max_block_ms=200) as opened:
            tasks = [asyncio.create_task(opened.send("t", bytes(300))) for _ in range(5)]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            errors = [task.exception() for task in done]
            assert "buffer.memory=1000 had no room for max.block.ms=200" in str(errors[0])
            assert all(isinstance(error, KafkaTimeoutError) for error in errors)
            hold.release()
            await asyncio.wait(pending)

    asyncio.run(main())


@begun_or_not
def test_a_cancelled_send_is_written_once_wherever_it_was_cancelled(
    fake: FakeCluster, turns: int
) -> None:
    written: list[bytes] = []
    unknown: list[bytes] = []

    async def send_all(opened: AsyncProducer, step: int) -> None:
        values = [b"%d-%d" % (step, number) for number in range(4)]
        unknown.extend(values)
        for value in values[:2]:
            await opened.send("t", value)
            written.append(value)
        await opened.send_many("t", values[2:])
        written.extend(values[2:])
        await opened.partitions_for("t")
        await opened.flush()

    async def main() -> int:
        async with producer(fake) as opened:
            for step in range(100):
                cancelled = CancelledAt(send_all(opened, step), step, turns)
                await cancelled
                if cancelled.is_complete:
                    return step
            raise AssertionError("it never ended")

    assert asyncio.run(main()) >= 5
    found = log_values(fake, "t")
    assert len(found) == len(set(found))
    assert set(written) <= set(found) <= set(unknown)


def test_cancelled_while_it_waits_for_memory_nothing_is_sent(fake: FakeCluster) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", times=None)

    async def main() -> None:
        async with producer(fake, buffer_memory=1_000) as opened:
            first = [asyncio.create_task(opened.send("t", b"a" * 300)) for _ in range(3)]
            number = 0
            while not opened._memory_lock.locked():
                number += 1
                first.append(asyncio.create_task(opened.send("t", b"%0300d" % number)))
                await asyncio.sleep(0.01)
            waiting = first.pop()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            hold.release()
            await asyncio.gather(*first)
            await opened.flush()
            assert b"%0300d" % number not in log_values(fake, "t")
            assert len(log_values(fake, "t")) == len(first)

    asyncio.run(main())


@pytest.fixture
def two(fake_cluster_factory: Any) -> FakeCluster:
    fake: FakeCluster = fake_cluster_factory(2)
    fake.create_topic("t", partitions=4)
    return fake


def test_10_000_tasks_and_a_killed_broker(two: FakeCluster) -> None:
    async def main() -> None:
        async with producer(two) as opened:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(opened.send("t", b"%d" % number)) for number in range(10_000)
                ]
                await asyncio.sleep(0)
                await asyncio.to_thread(two.broker_down, 0)
                await asyncio.to_thread(two.broker_up, 0)
            positions = {(task.result().partition, task.result().offset) for task in tasks}
            assert len(positions) == 10_000

    asyncio.run(main())
    found = [value for number in range(4) for value in log_values(two, "t", number)]
    assert sorted(found) == sorted(b"%d" % number for number in range(10_000))


def test_the_outcomes_of_a_large_batch_let_other_tasks_run_in_between(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "YIELD_AFTER_S", 0.0)

    async def main() -> None:
        done: list[object] = []
        counts = [0]
        async with producer(fake, batch_size=1 << 20) as opened:
            for _ in range(5_000):
                opened.send_nowait("t", b"v").add_done_callback(done.append)
            while len(done) < 5_000:
                await asyncio.sleep(0)
                counts.append(len(done))
        steps = [after - before for before, after in itertools.pairwise(counts)]
        # Twice in a turn, if both threads see at the same moment that the loop is not woken.
        assert max(steps) <= 2 * OUTCOMES_PER_ITEM

    asyncio.run(main())
    # The I/O thread wakes up once a second anyway, perhaps between two of the records.
    assert len(fake.requests_of("Produce")) <= 2


def test_many_tasks_share_the_time_after_which_drain_yields(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(1).__next__)  # a second for each check
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(worker, "YIELD_AFTER_S", 5)
    sent = [0]

    async def send_some(opened: AsyncProducer) -> None:
        for _ in range(100):
            opened.send_nowait("t", b"v")
            sent[0] += 1
            await opened.drain()

    async def main() -> None:
        async with producer(fake) as opened:
            tasks = [asyncio.create_task(send_some(opened)) for _ in range(50)]
            counts = [0]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                counts.append(sent[0])
        steps = [after - before for before, after in itertools.pairwise(counts)]
        assert max(steps) <= 5 * DRAINS_PER_CHECK + 50  # not 50 * 5

    asyncio.run(main())


def test_a_transaction_with_a_consumers_offsets(fake: FakeCluster) -> None:
    async def main() -> None:
        async with producer(fake, transactional_id="tid") as opened:
            await opened.init_transactions()
            await opened.begin_transaction()
            await opened.send("t", b"aborted")
            await opened.abort_transaction()
            await opened.begin_transaction()
            futures = [opened.send_nowait("t", b"committed") for _ in range(3)]
            await opened.send_offsets_to_transaction({TopicPartition("t", 0): 3}, "g")
            await opened.commit_transaction()
            assert all(future.done() for future in futures)
        assert fake.committed("g") == {("t", 0): 3}

    asyncio.run(main())
    config = settings(fake, isolation_level="read_committed", auto_offset_reset="earliest")
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert [record.value for record in consumer.poll(WAIT_S)] == [b"committed"] * 3


@begun_or_not
def test_a_transaction_is_whole_wherever_it_was_cancelled(fake: FakeCluster, turns: int) -> None:
    """A call that has begun ends in the background, before the next call."""

    async def transact(opened: AsyncProducer, step: int) -> None:
        await opened.begin_transaction()
        for number in range(2):
            opened.send_nowait("t", b"%d-%d" % (step, number))
        await opened.send_offsets_to_transaction({TopicPartition("t", 0): step}, f"g{step}")
        await opened.commit_transaction()

    async def main(step: int) -> bool:
        async with producer(fake, transactional_id="tid") as opened:
            await opened.init_transactions()
            cancelled = CancelledAt(transact(opened, step), step, turns)
            await cancelled
            await opened.partitions_for("t")  # `close` would abort what has not ended
        return cancelled.is_complete

    steps = 0
    while not asyncio.run(main(steps)):
        steps += 1
    config = settings(fake, isolation_level="read_committed", auto_offset_reset="earliest")
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        found = [record.value for record in consumer.poll(WAIT_S)]
    committed = [step for step in range(steps + 1) if fake.committed(f"g{step}")]
    # Cancelled in the commit, and not at all.
    assert {steps - 1, steps} <= set(committed) if turns else committed == [steps]
    assert found == [b"%d-%d" % (step, number) for step in committed for number in range(2)]


def test_a_subclass_has_a_send_nowait_of_its_own(fake: FakeCluster) -> None:
    class Orders(AsyncProducer):
        def send_nowait(self, topic: str, value: Any = None, *args: Any) -> Any:
            return super().send_nowait(topic, b"order " + value, *args)

    async def main() -> None:
        async with Orders(settings(fake)) as orders:
            for number in (b"1", b"2"):
                await orders.send_nowait("t", number)

    asyncio.run(main())
    assert log_values(fake, "t") == [b"order 1", b"order 2"]


def test_a_delivery_is_a_future(fake: FakeCluster) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", nth=1)

    async def main() -> None:
        async with producer(fake) as opened:
            delivery = opened.send_nowait("t", b"1")
            await asyncio.to_thread(fake.wait_for_requests, "Produce")
            assert asyncio.isfuture(delivery)
            assert delivery.get_loop() is asyncio.get_running_loop()
            assert repr(delivery) == "<AsyncDelivery pending>"
            assert not delivery.done()
            with pytest.raises(asyncio.InvalidStateError):
                delivery.result()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(delivery), 0.01)
            other = opened.send_nowait("t", b"2")
            assert other.cancel()
            assert (other.done(), other.cancelled(), other.cancel()) == (True, True, False)
            with pytest.raises(asyncio.CancelledError):
                await other
            called: list[object] = []
            delivery.add_done_callback(called.append)
            delivery.add_done_callback(print)
            assert delivery.remove_done_callback(print) == 1
            hold.release()
            assert (await asyncio.shield(delivery)).offset == 0
            assert (await delivery).offset == delivery.result().offset == 0
            assert delivery.exception() is None
            assert not delivery.cancel()
            assert called == [delivery]
            third = opened.send_nowait("t", b"3")
            done, pending = await asyncio.wait({third, delivery})
            assert (done, pending) == ({third, delivery}, set())
            more = [opened.send_nowait("t", b"4") for _ in range(3)]
            found = [(await each).offset for each in asyncio.as_completed(more)]
            assert sorted(found) == [3, 4, 5]
            for is_returned in (False, True):
                two = [opened.send_nowait("t", b"4") for _ in range(2)]
                gathered = asyncio.gather(*two, return_exceptions=is_returned)
                gathered.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(gathered, WAIT_S)
            await opened.flush()
            assert third.result().offset == 2
            assert opened.send_nowait("t", b"5").done() is False

    asyncio.run(main())
    assert log_values(fake, "t") == [b"1", b"2", b"3", *[b"4"] * 7, b"5"]


def test_each_loop_needs_its_own(fake: FakeCluster) -> None:
    opened = producer(fake)
    with pytest.raises(KafkaError, match="outside of a running event loop of asyncio"):
        opened.send_nowait("t", b"")
    asyncio.run(opened.send("t", b"first"))

    async def main() -> None:
        with pytest.raises(KafkaError, match="belongs to another event loop"):
            await opened.send("t", b"")
        with pytest.raises(KafkaError, match="belongs to another event loop"):
            await opened.flush()
        async with producer(fake) as mine:
            await mine.send("t", b"second")
            # A thread with a loop of its own, beside this one.
            await asyncio.to_thread(asyncio.run, other(mine))

    async def other(theirs: AsyncProducer) -> None:
        with pytest.raises(KafkaError, match="belongs to another event loop"):
            await theirs.send("t", b"")
        async with producer(fake) as mine:
            await mine.send("t", b"third")

    asyncio.run(main())
    opened._client.close()
    assert log_values(fake, "t") == [b"first", b"second", b"third"]


def test_a_loop_that_is_closed_early_loses_no_record(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", times=None)
    opened = producer(fake)

    async def main() -> None:
        for number in range(10):
            opened.send_nowait("t", b"%d" % number)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
        hold.release()
        opened._client.close()
    assert log_values(fake, "t") == [b"%d" % number for number in range(10)]
    assert not caplog.records


def test_leaving_a_cancelled_task_delivers_what_it_can(fake: FakeCluster) -> None:
    async def main() -> None:
        ready = asyncio.Event()

        async def service() -> None:
            async with producer(
                fake, linger_ms=FOREVER_MS, delivery_timeout_ms=2 * FOREVER_MS
            ) as p:
                await p.partitions_for("t")
                p.send_nowait("t", b"queued")
                ready.set()
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(service())
            await ready.wait()
            task.cancel()

    asyncio.run(main())
    assert log_values(fake, "t") == [b"queued"]


def test_a_task_group_that_fails_closes_its_clients(fake: FakeCluster) -> None:
    async def main() -> None:
        ready = asyncio.Event()

        async def service() -> None:
            config = settings(fake, group_id="g", auto_offset_reset="earliest")
            async with producer(fake) as opened, AsyncConsumer(config) as consumer:
                await consumer.subscribe(["t"])
                await opened.send("t", b"read")
                async for record in consumer:
                    opened.send_nowait("t", b"queued after %s" % record.value)
                    ready.set()
                    await asyncio.Event().wait()

        async def fail() -> None:
            await ready.wait()
            raise ValueError("of a task beside it")

        async with asyncio.TaskGroup() as group:
            group.create_task(service())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(main())
    assert [str(error) for error in raised.value.exceptions] == ["of a task beside it"]
    assert log_values(fake, "t") == [b"read", b"queued after read"]
    assert fake.committed("g") == {}


def test_leaving_does_not_wait_for_a_flush_that_was_cancelled(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", times=None)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with producer(fake) as opened, asyncio.timeout(0.05):
                opened.send_nowait("t", b"v")
                await opened.flush()

    asyncio.run(main())
    assert "1 record not delivered" in caplog.text
    hold.release()


def test_a_close_whose_task_is_cancelled_ends(fake: FakeCluster) -> None:
    hold = Hold()
    fake.fault(hold, api="Produce", times=None)

    async def main() -> None:
        opened = producer(fake)
        opened.send_nowait("t", b"v")
        await asyncio.to_thread(fake.wait_for_requests, "Produce")
        closing = asyncio.create_task(opened.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        hold.release()
        await opened.close()
        with pytest.raises(KafkaError, match="closed"):
            await opened.send("t", b"")
        for call in (opened.flush, opened.drain):
            with pytest.raises(KafkaError, match="closed"):
                await call()

    asyncio.run(main())
    assert log_values(fake, "t") == [b"v"]


def test_a_producer_that_nobody_has_any_more_ends(fake: FakeCluster) -> None:
    async def main() -> Any:
        opened = producer(fake)
        await opened.send("t", b"v")
        return opened._client._io_thread

    with pytest.warns(ResourceWarning, match="Producer was not closed"):
        thread = asyncio.run(main())
        gc.collect()
    assert thread.join(WAIT_S)


def test_anyio_on_asyncio_works(fake: FakeCluster) -> None:
    anyio = pytest.importorskip("anyio")
    hold = Hold()

    async def main() -> None:
        async with producer(fake) as opened:
            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(opened.send, "t", b"%d" % number)
            fake.fault(hold, api="Produce", times=None)
            with anyio.move_on_after(0.02) as scope:
                await opened.send("t", b"10")
            assert scope.cancelled_caught
            hold.release()

    anyio.run(main)
    assert sorted(log_values(fake, "t")) == sorted(b"%d" % number for number in range(11))


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as made:
        yield made


def test_other_loops_work(fake: FakeCluster, runner: asyncio.Runner) -> None:
    async def main() -> None:
        async with producer(fake) as opened:
            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(opened.send("t", b"%d" % number))
            await opened.flush()
        found = set()
        async with AsyncConsumer(settings(fake, auto_offset_reset="earliest")) as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            async for record in consumer:
                found.add(record.value)
                if len(found) == 100:
                    break

    runner.run(main())
    assert len(log_values(fake, "t")) == 100


@pytest.mark.parametrize("has_outcome", [False, True])
@pytest.mark.parametrize("config", [{}, {"buffer_memory": 1000}])
def test_a_producer_ends_whose_loop_was_closed_before_a_task_got_the_outcome(
    fake: FakeCluster, has_outcome: bool, config: dict[str, int]
) -> None:
    """The outcome, which no task awaits, kept the producer and its two threads alive. So did a task
    that waits for memory."""
    tasks: list[asyncio.Task[Any]] = []
    threads: list[Any] = []
    hold = Hold()
    fake.fault(hold, api="Produce")

    async def main() -> None:
        opened = producer(fake, **config)
        tasks.extend(asyncio.create_task(opened.send("t", bytes(600))) for _ in range(2))
        threads.append(opened._client._io_thread)
        await asyncio.sleep(0)

    def end() -> None:
        hold.release()
        wait_until(lambda: not threads[0].has_undelivered)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    fake.wait_for_requests("Produce", 1)
    with pytest.warns(ResourceWarning, match="Producer was not closed"):
        for step in (end, loop.close) if has_outcome else (loop.close, end):
            step()
        tasks.clear()
        wait_until(lambda: gc.collect() >= 0 and not threads[0].is_alive)


def test_no_thread_stays_if_the_loop_is_closed_during_close(fake: FakeCluster) -> None:
    closing: list[asyncio.Task[None]] = []

    async def main() -> None:
        opened = producer(fake)
        await opened.send("t", b"v")
        closing.append(asyncio.create_task(opened.close()))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    closing.clear()
    name = f"sparkkafka-{AsyncProducer.__name__}"
    wait_until(
        lambda: (
            gc.collect() >= 0
            and not [thread for thread in threading.enumerate() if thread.name == name]
        )
    )
