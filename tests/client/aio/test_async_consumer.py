"""AsyncConsumer and AsyncShareConsumer: iteration, cancelled calls, callbacks, shared ones."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from sparkkafka.client import Record, TopicPartition
from sparkkafka.client.aio import AsyncAdmin, AsyncConsumer, AsyncShareConsumer
from sparkkafka.client.aio.consumer import SLICE_RECORDS
from sparkkafka.client.aio.worker import Worker
from sparkkafka.errors import ConsumerStateError, KafkaError, WakeupError
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay
from tests.client.aio.cancelling import CancelledAt, begun_or_not
from tests.client.support import fill, settings
from tests.support.waiting import WAIT_S, Hold, wait_until

COUNT = 300
TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    """300 numbers in one partition, in batches of about 50."""
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", COUNT, batch_size=500, linger_ms=0)
    fake_cluster.clear_requests()
    return fake_cluster


def consumer(fake: Any, **config: Any) -> AsyncConsumer:
    usual = {"auto_offset_reset": "earliest", "group_id": "g", "max_poll_records": 100}
    return AsyncConsumer(settings(fake, **(usual | {"fetch_max_wait_ms": 20} | config)))


async def take(source: AsyncConsumer, count: int) -> list[Record]:
    found = []
    async for record in source:
        found.append(record)
        if len(found) == count:
            return found
    raise AssertionError("an iteration has no end")


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def test_an_iteration_goes_on_after_a_break(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled) as source:
            await source.subscribe(["t"])
            assert offsets(await take(source, 30)) == list(range(30))
            rest = await source.poll(WAIT_S)  # what the iteration has left
            assert offsets(list(rest)) == list(range(30, 100))
            assert offsets(await take(source, 20)) == list(range(100, 120))
            rest = await source.poll(WAIT_S)  # more than max.poll.records are left
            assert offsets(list(rest)) == list(range(120, 220))
            assert offsets(await take(source, 80)) == list(range(220, 300))
            assert not await source.poll(0)

    asyncio.run(main())


def test_async_for_yields_to_other_tasks(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.aio.worker.YIELD_AFTER_S", 0)

    async def main() -> int:
        async with consumer(filled) as source:
            await source.assign([TP])
            await take(source, 1)
            turns: list[None] = []
            asyncio.get_running_loop().call_soon(turns.append, None)
            await take(source, SLICE_RECORDS)  # records that were fetched: nothing to wait for
            return len(turns)

    assert asyncio.run(main()) == 1


def test_tasks_that_poll_one_consumer_share_its_records(fake_cluster: FakeCluster) -> None:
    """Polls that wait do not interrupt each other, and step aside for other calls."""
    fake_cluster.create_topic("t")

    async def main() -> None:
        async with consumer(fake_cluster) as source, asyncio.timeout(WAIT_S):
            await source.assign([TP])
            wakeups: list[None] = []
            wakeup = source._client.wakeup
            source._client.wakeup = lambda: wakeups.append(wakeup())  # type: ignore[method-assign]
            polls = [asyncio.create_task(source.poll(WAIT_S)) for _ in range(3)]
            await asyncio.sleep(0)  # all of them have begun
            assert not wakeups
            assert await source.position(TP) == 0
            assert wakeups
            left, found = set(polls), []
            while left:
                fill(fake_cluster, "t", 1)
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                found += [record.offset for poll in done for record in poll.result()]
            assert sorted(found) == list(range(len(found)))
            assert all(poll.result() for poll in polls)

    asyncio.run(main())


def test_a_poll_beside_an_iteration_returns_no_record_twice(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled) as source, asyncio.timeout(WAIT_S):
            await source.assign([TP])
            iteration = asyncio.create_task(take(source, 30))
            await asyncio.sleep(0)  # its poll is the first
            table = await source.poll_arrow(WAIT_S, 50)
            found = offsets(await iteration) + table["offset"].to_pylist()
            while len(found) < COUNT:
                found += (await source.poll_arrow(WAIT_S))["offset"].to_pylist()
            assert sorted(found) == list(range(COUNT))

    asyncio.run(main())


def test_a_record_counts_as_read_once_the_loop_has_it(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled, enable_auto_commit=False) as source:
            await source.assign([TP])
            number = 0
            async for record in source:
                await source.commit()
                assert filled.committed("g") == {("t", 0): record.offset + 1}
                assert await source.position(TP) == record.offset + 1
                number += 1
                if number == 150:
                    break
            assert (await source.lag())[TP].lag == 150
            assert len(filled.requests_of("Fetch")) <= 3

    asyncio.run(main())


def test_an_automatic_commit_excludes_what_the_iteration_has_not_returned(
    filled: FakeCluster,
) -> None:
    async def main() -> None:
        async with consumer(filled, auto_commit_interval_ms=600_000) as source:
            await source.subscribe(["t"])
            await take(source, 42)

    asyncio.run(main())
    assert filled.committed("g") == {("t", 0): 42}


def test_leaving_with_an_exception_commits_nothing(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled) as source:
            await source.subscribe(["t"])
            await take(source, 42)
            raise RuntimeError("of the block")

    with pytest.raises(RuntimeError, match="of the block"):
        asyncio.run(main())
    assert filled.committed("g") == {}


def test_a_seek_or_pause_gives_back_what_the_iteration_has_left(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2)
    fill(fake_cluster, "t", 200, partitions=2)

    async def main() -> None:
        async with consumer(fake_cluster) as source:
            await source.assign([TP, OTHER])
            first = await take(source, 10)
            other = OTHER if first[0].partition == 0 else TP
            paused = TopicPartition("t", first[0].partition)
            await source.pause([paused])
            found = await take(source, 50)
            assert {record.partition for record in found} == {other.partition}
            await source.seek(other, 5)
            assert offsets(await take(source, 3)) == [5, 6, 7]
            await source.resume([paused])
            await source.pause([other])
            assert offsets(await take(source, 2)) == [10, 11]
            assert (await source.poll_arrow(WAIT_S))["offset"][0].as_py() == 12

    asyncio.run(main())


def test_each_way_to_go_elsewhere_drops_what_the_iteration_has_left(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.create_topic("other")
    fill(fake_cluster, "t", 200, partitions=2)

    async def main() -> None:
        async with consumer(fake_cluster) as source, asyncio.timeout(WAIT_S):
            await source.assign([TP, OTHER])
            (first,) = await take(source, 1)
            kept = OTHER if first.partition == 0 else TP
            await source.assign([kept])
            assert {record.partition for record in await take(source, 20)} == {kept.partition}
            await source.commit()
            await source.seek_to_beginning([kept])
            assert offsets(await take(source, 2)) == [0, 1]
            await source.seek_to_committed([kept])
            assert offsets(await take(source, 2)) == [20, 21]
            await source.seek_to_end([kept])
            assert not await source.poll(0.1)
            await source.seek(kept, 0)
            await take(source, 1)
            await source.unsubscribe()
            with pytest.raises(ConsumerStateError):
                await source.poll(0)
            await source.subscribe(["t"])
            await take(source, 1)
            await source.subscribe(["other"])
            assert not await source.poll(0.1)

    asyncio.run(main())


def test_a_seek_or_poll_inside_of_an_iteration(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled) as source:
            await source.assign([TP])
            found = []
            async for record in source:
                found.append(record.offset)
                if len(found) == 3:
                    await source.seek(TP, 200)
                if len(found) == 6:
                    found += offsets(list(await source.poll(WAIT_S)))[:1]
                if record.offset == COUNT - 1 or len(found) == 10:
                    break
                if len(found) == 7:
                    await source.seek(TP, 50)
            assert found == [0, 1, 2, 200, 201, 202, 203, 50, 51, 52]

    asyncio.run(main())


def test_batches_are_records_or_arrow_tables(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled) as source:
            await source.assign([TP])
            found: list[int] = []
            async for records in source.batches():
                found += records.next_offsets.values()
                if len(found) == 2:
                    break
            assert found == [100, 200]
            rows = 0
            async for table in source.arrow_batches(max_records=60):
                rows += table.num_rows
                if rows == 100:
                    break
            assert await source.position(TP) == COUNT
            fetched = source.metrics()["consumer-fetch-manager-metrics"]
            assert fetched["records-consumed-total"] == COUNT

    asyncio.run(main())


@begun_or_not
def test_wherever_it_is_cancelled_no_record_is_lost_or_returned_twice(
    filled: FakeCluster, turns: int
) -> None:
    async def read(source: AsyncConsumer, found: list[int]) -> None:
        await source.subscribe(["t"])
        found += offsets(list(await source.poll(WAIT_S)))
        await source.commit()
        async for record in source:
            found.append(record.offset)
            if len(found) % 50 == 0:
                await source.commit()
            if len(found) >= 250:
                break
        table = await source.poll_arrow(WAIT_S, 20)
        found += table["offset"].to_pylist()
        await source.position(TP)
        await source.committed([TP])

    async def main(step: int) -> bool:
        group_id = f"g{step}"
        async with consumer(filled, group_id=group_id, enable_auto_commit=False) as source:
            found: list[int] = []
            cancelled = CancelledAt(read(source, found), step, turns)
            await cancelled
            await source.subscribe(["t"])
            assert filled.committed(group_id).get(("t", 0), 0) <= len(found)
            while len(found) < COUNT:
                found += offsets(list(await source.poll(WAIT_S)))
            assert found == list(range(COUNT)), f"cancelled at step {step}"
            return cancelled.is_complete

    steps = 0
    while not asyncio.run(main(steps)):
        steps += 1
    assert steps > 8


def test_a_poll_cancelled_while_records_are_on_their_way_keeps_them(filled: FakeCluster) -> None:
    hold = Hold()
    filled.fault(hold, api="Fetch", nth=1)

    async def main() -> None:
        async with consumer(filled) as source:
            await source.assign([TP])
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await take(source, 1)
            hold.release()
            assert offsets(await take(source, COUNT)) == list(range(COUNT))

    asyncio.run(main())


def test_a_commit_beside_a_poll_excludes_what_the_poll_returns(filled: FakeCluster) -> None:
    hold = Hold()
    filled.fault(hold, api="Fetch", nth=1)

    async def main() -> None:
        async with consumer(filled, enable_auto_commit=False) as source:
            await source.assign([TP])
            reading = asyncio.create_task(take(source, 1))
            await asyncio.to_thread(filled.wait_for_requests, "Fetch")
            hold.release()
            while not reading.done():
                await source.commit()
                assert filled.committed("g").get(("t", 0), 0) <= 1
            await source.commit()
            assert filled.committed("g") == {("t", 0): 1}

    asyncio.run(main())


async def commit_on_its_way(
    fake: FakeCluster, source: AsyncConsumer
) -> tuple[asyncio.Task[None], Hold]:
    """A commit behind 10 records, which the broker answers once the hold is released."""
    hold = Hold()
    fake.fault(hold, api="OffsetCommit", nth=1)
    await source.assign([TP])
    await take(source, 10)
    commit = asyncio.create_task(source.commit())
    await asyncio.to_thread(fake.wait_for_requests, "OffsetCommit")
    return commit, hold


def test_a_poll_cancelled_before_it_runs_keeps_the_unread_records(
    filled: FakeCluster,
) -> None:
    async def main() -> None:
        async with consumer(filled, enable_auto_commit=False) as source:
            commit, hold = await commit_on_its_way(filled, source)
            polling = asyncio.create_task(source.poll_arrow(WAIT_S))
            await asyncio.sleep(0)
            polling.cancel()
            await asyncio.wait([polling])
            hold.release()
            await commit
            assert offsets(await take(source, 100)) == list(range(10, 110))

    asyncio.run(main())


def test_a_poll_cancelled_when_its_records_arrive_loses_none(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with consumer(filled) as source:
            await source.assign([TP])
            assert offsets(await take(source, 100)) == list(range(100))
            polling = asyncio.create_task(source.poll(WAIT_S))
            resolve = Worker._resolve

            def resolve_and_cancel(self: Worker, *args: Any) -> None:
                resolve(self, *args)
                assert not polling.done()
                polling.cancel()

            monkeypatch.setattr(Worker, "_resolve", resolve_and_cancel)
            later = asyncio.create_task(source.commit())
            with pytest.raises(asyncio.CancelledError):
                await polling
            monkeypatch.undo()
            await later
            assert filled.committed("g") == {("t", 0): 100}
            fetches = len(filled.requests_of("Fetch"))
            assert offsets(await take(source, 100)) == list(range(100, 200))
            # A loop of short timeouts gets on: what has arrived is not fetched again.
            assert len(filled.requests_of("Fetch")) == fetches

    asyncio.run(main())


def test_a_cancelled_commit_ends_before_the_next_call(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled, enable_auto_commit=False) as source:
            commit, hold = await commit_on_its_way(filled, source)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            await take(source, 10)
            later = asyncio.create_task(source.commit())
            await asyncio.sleep(0)
            hold.release()
            await later
            assert filled.committed("g") == {("t", 0): 20}

    asyncio.run(main())


def test_a_poll_that_waits_steps_aside_for_calls_of_other_tasks(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled, auto_offset_reset="latest") as source:
            await source.subscribe(["t"])
            assert await source.position(TP) == COUNT if await source.assignment() else True
            waiting = asyncio.create_task(take(source, 1))
            for _ in range(20):
                await asyncio.wait_for(source.subscription(), WAIT_S)
            while not await source.assignment():
                await asyncio.sleep(0.01)
            while await source.position(TP) != COUNT:
                await asyncio.sleep(0.01)
            assert not waiting.done()
            await asyncio.to_thread(fill, filled, "t", 1)
            assert offsets(await waiting) == [COUNT]

    asyncio.run(main())


def test_wakeup_ends_a_poll(filled: FakeCluster) -> None:
    async def main() -> None:
        async with consumer(filled) as source:
            await source.assign({TP: COUNT})
            waiting = asyncio.create_task(source.poll(WAIT_S))
            await asyncio.sleep(0.05)
            source.wakeup()
            with pytest.raises(WakeupError):
                await waiting
            assert not await source.poll(0)

    asyncio.run(main())


def test_callbacks_are_coroutines_that_may_call_the_consumer(filled: FakeCluster) -> None:
    calls: list[Any] = []

    async def main() -> None:
        source = consumer(filled, enable_auto_commit=False)
        thread = threading.current_thread()

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            assert threading.current_thread() is thread
            async with asyncio.TaskGroup() as group:
                for tp in partitions:
                    group.create_task(source.seek(tp, 50))
            calls.append(("assigned", partitions, await source.position(TP)))

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            await source.commit()
            calls.append(("revoked", partitions))

        async with source:
            await source.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
            assert offsets(await take(source, 7)) == list(range(50, 57))
        calls.append("closed")

    asyncio.run(main())
    assert calls == [("assigned", [TP], 50), ("revoked", [TP]), "closed"]
    assert filled.committed("g") == {("t", 0): 57}


def test_an_error_of_a_callback_is_raised_by_poll(filled: FakeCluster) -> None:
    async def on_assigned(partitions: list[TopicPartition]) -> None:
        raise ValueError("of the callback")

    async def main() -> None:
        async with consumer(filled) as source:
            await source.subscribe(["t"], on_assigned=on_assigned)
            with pytest.raises(ValueError, match="of the callback"):
                await source.poll(WAIT_S)
            with pytest.raises(TypeError, match="callback"):
                await source.commit(asynchronous=True, callback=lambda: None)
                while True:
                    await source.poll(0.1)

    asyncio.run(main())


def test_a_slow_callback_does_not_block_the_loop(filled: FakeCluster) -> None:
    turns = 0

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        begin = turns
        while turns < begin + 5:
            await asyncio.sleep(0.01)

    async def main() -> None:
        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        async with consumer(filled) as source:
            task = asyncio.create_task(other())
            await source.subscribe(["t"], on_assigned=on_assigned)
            assert len(await take(source, COUNT)) == COUNT
            task.cancel()

    asyncio.run(main())


def test_close_cancels_a_callback_that_does_not_return(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.aio.worker.CHECK_INTERVAL_S", 0.01)
    cancelled = []

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.extend(partitions)
            raise

    async def main() -> None:
        source = consumer(filled)
        await source.subscribe(["t"], on_revoked=on_revoked)
        await take(source, 1)
        with pytest.raises(KafkaError, match=r"was cancelled after the timeout of close\(\)"):
            await source.close(0.01)
        with pytest.raises(ConsumerStateError, match="closed"):
            await source.poll(0)

    asyncio.run(main())
    assert cancelled == [TP]


@pytest.mark.parametrize("shared", [False, True])
def test_close_ends_in_its_time_though_a_cancelled_call_gets_no_response(
    fake_cluster_factory: Any, shared: bool
) -> None:
    fake = fake_cluster_factory(1, kafka_version="4.2")
    fake.create_topic("t")
    fill(fake, "t", 10)

    async def main() -> None:
        config = settings(fake, group_id="g")
        source = AsyncShareConsumer(config) if shared else consumer(fake)
        await source.subscribe(["t"])
        assert await source.poll(WAIT_S)
        fake.fault(Delay(60_000, before=True), times=None)
        commit = asyncio.create_task(source.commit(timeout_s=60))
        await asyncio.sleep(0.1)
        commit.cancel()
        async with asyncio.timeout(2.9):  # less than twice the time
            await source.close(1.5)

    asyncio.run(main())


def test_close_without_time_sends_the_commit_like_that_of_a_consumer(filled: FakeCluster) -> None:
    async def main() -> None:
        source = consumer(filled)
        await source.subscribe(["t"])
        assert await source.poll(WAIT_S)
        await source.close(0)

    asyncio.run(main())
    wait_until(lambda: filled.committed("g") == {("t", 0): 100})


def test_a_close_on_another_loop_closes_nothing(filled: FakeCluster) -> None:
    async def close(theirs: AsyncConsumer | AsyncAdmin) -> None:
        with pytest.raises(KafkaError, match="belongs to another event loop"):
            await theirs.__aexit__(None, None, None)
        if isinstance(theirs, AsyncConsumer):
            with pytest.raises(KafkaError, match="belongs to another event loop"):
                await theirs.close(0)

    async def main() -> None:
        async with consumer(filled) as source, AsyncAdmin(settings(filled)) as admin:
            await source.assign([TP])
            for client in (source, admin):
                await asyncio.to_thread(asyncio.run, close(client))
            filled.fault(Delay(100, before=True), times=None)
            for call in (source.end_offsets([TP]), admin.describe_topics(["t"])):
                task, turns = asyncio.ensure_future(call), 0
                while not task.done():
                    turns += 1
                    await asyncio.sleep(0.01)
                assert TP in task.result() or "t" in task.result()
                assert turns > 1  # the call ran in the thread

    asyncio.run(main())


def test_many_tasks_share_one_iteration(filled: FakeCluster) -> None:
    async def main() -> None:
        found: list[int] = []

        async def read(source: AsyncConsumer) -> None:
            async for record in source:
                found.append(record.offset)
                await asyncio.sleep(0)

        async with consumer(filled) as source:
            await source.subscribe(["t"])
            tasks = [asyncio.create_task(read(source)) for _ in range(20)]
            while len(found) < COUNT:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert sorted(found) == list(range(COUNT))

    asyncio.run(main())


def test_a_killed_broker_is_survived(fake_cluster_factory: Any) -> None:
    fake = fake_cluster_factory(2)
    fake.create_topic("t", partitions=2)
    fill(fake, "t", COUNT, partitions=2)

    async def main() -> None:
        async with consumer(fake) as source:
            await source.subscribe(["t"])
            found = await take(source, 10)
            await asyncio.to_thread(fake.broker_down, fake.leader("t", 0))
            found += await take(source, COUNT - 10)
            positions = {(record.partition, record.offset) for record in found}
            assert len(positions) == COUNT

    asyncio.run(main())


def test_after_close_the_error_is_that_of_the_consumer(filled: FakeCluster) -> None:
    async def main() -> None:
        source = consumer(filled)
        await source.assign([TP])
        await source.close()
        await source.close()
        for call in (source.poll(0), source.commit(), source.assignment()):
            with pytest.raises(ConsumerStateError, match="this AsyncConsumer is closed"):
                await call
        with pytest.raises(ConsumerStateError, match="nothing to read"):
            async with consumer(filled) as other:
                await other.poll(0)

    asyncio.run(main())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "AsyncConsumer" in thread.name]


def test_the_thread_ends_with_close_or_with_the_consumer(filled: FakeCluster) -> None:
    async def closed() -> None:
        async with consumer(filled) as source:
            await source.assign([TP])
            await take(source, 1)

    async def dropped() -> None:
        source = consumer(filled)
        clients.append(source._client)
        await source.assign([TP])
        await take(source, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(source.commit(timeout_s=0), 0)

    clients: list[Any] = []
    asyncio.run(closed())
    wait_until(lambda: not threads())
    asyncio.run(dropped())
    gc.collect()
    wait_until(lambda: not threads())
    clients[0].close()


def test_a_loop_that_is_closed_while_it_polls(filled: FakeCluster) -> None:
    clients: list[Any] = []

    async def main() -> None:
        source = consumer(filled)
        clients.append(source._client)
        await source.assign({TP: COUNT})
        asyncio.get_running_loop().call_later(0.05, asyncio.get_running_loop().stop)
        await source.poll(WAIT_S)

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    loop.run_forever()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    del task
    wait_until(lambda: gc.collect() >= 0 and not threads())
    clients[0].close()


def test_a_task_that_is_dropped_with_its_loop_prints_no_error(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", errors.append)
    clients: list[Any] = []

    async def main() -> None:
        async with consumer(filled) as source:
            clients.append(source._client)
            await source.assign([TP])
            asyncio.get_running_loop().stop()
            await source.commit()

    loop = asyncio.new_event_loop()
    loop.create_task(main())  # noqa: RUF006 - the loop drops it
    loop.run_forever()
    loop.close()
    wait_until(lambda: gc.collect() >= 0 and not threads())
    clients[0].close()
    assert not errors


@begun_or_not
def test_a_cancelled_poll_of_a_share_group_releases_its_records(
    fake_cluster_factory: Any, turns: int
) -> None:
    fake = fake_cluster_factory(1, kafka_version="4.2")
    fake.create_topic("t")

    async def read(source: AsyncShareConsumer, found: list[int]) -> None:
        await source.subscribe(["t"])
        for _ in range(3):
            records = await source.poll(WAIT_S)
            found += [record.offset for record in records]
            await source.commit()

    async def main(step: int) -> bool:
        config = settings(fake, group_id="g", fetch_max_wait_ms=50, max_poll_records=10)
        async with AsyncShareConsumer(config) as source:
            found: list[int] = []
            await source.subscribe(["t"])
            while not await source.assignment():
                await source.poll(0.05)
            first = fake.log("t", 0).end_offset
            await asyncio.to_thread(fill, fake, "t", 30)
            cancelled = CancelledAt(read(source, found), step, turns)
            await cancelled
            while len(set(found)) < 30:
                found += [record.offset for record in await source.poll(WAIT_S)]
                await source.commit()
            await source.commit()  # if that of the last records was cancelled
            # What the user has accepted does not come again; a commit may have been cancelled.
            assert set(found) == set(range(first, first + 30))
            assert cancelled.is_complete or len(found) <= 40
            return cancelled.is_complete

    steps = 0
    while not asyncio.run(main(steps)):
        steps += 1
    assert steps >= 4


def test_an_admin_in_many_tasks(fake_cluster: FakeCluster) -> None:
    async def main() -> None:
        async with AsyncAdmin(settings(fake_cluster)) as admin:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(admin.create_topic(f"t{number}", partitions=1))
            assert len(await admin.list_topics()) == 20
        with pytest.raises(KafkaError, match="this Admin is closed"):
            await admin.list_topics()

    asyncio.run(main())
