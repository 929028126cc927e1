"""The asyncio clients record by record, beside ours of the threads and confluent-kafka's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.aio import AIOConsumer, AIOProducer

from sparkkafka.client import Consumer, Producer, TopicPartition
from sparkkafka.client.aio import AsyncConsumer, AsyncProducer
from tests.bench import rivals
from tests.bench.client_rows import write_checks
from tests.bench.data import make_topic, open_cluster, remove_topic
from tests.bench.results import Row
from tests.bench.turns import take_turns

THREADS = "our client of the threads"
AIO = f"{rivals.CONFLUENT}, its asyncio client"
SHARE_TARGET = 0.8  # of the rate of the threads
AIO_TARGET = 5.0
TASKS = 100
_FULL, _QUICK = 200_000, 50_000
_FEW_SHARE = 20  # confluent-kafka's asyncio client reads one record in so many
_LIMIT_S = 120.0


def aio_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Rows of `send_nowait`, of `send` in many tasks, and of `async for`."""
    topic = "bench-library-asyncio"
    count, pairs = (_QUICK, 2) if quick else (_FULL, 5)
    few = count // _FEW_SHARE
    config = {"bootstrap.servers": bootstrap_servers}
    value = bytes(100)
    rows: list[Row] = []

    def row(
        name: str,
        rival: str,
        target: float,
        ours: Callable[[], Awaitable[float]],
        theirs: Callable[[], float],
        work: list[float],
    ) -> None:
        made = Row(
            *("client library", f"{name} of 100 B", "M records/s", rival, work),
            target=target,
            checks=checks,
        )
        rows.append(take_turns(made, lambda: _seconds(ours()), theirs, pairs, say))

    def both(
        name: str,
        ours: Callable[[], Awaitable[float]],
        threads: Callable[[], float],
        confluent: Callable[[], Awaitable[float]],
    ) -> None:
        row(name, THREADS, SHARE_TARGET, ours, threads, [count, count])
        row(name, AIO, AIO_TARGET, ours, lambda: _seconds(confluent()), [count, few])

    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic, 1)
    try:
        checks = write_checks(
            *(bootstrap_servers, topic, 1, [value] * (count + 1)),
            lambda: _seconds(send_nowait(config, topic, value, count)),
        )
        both(
            "AsyncProducer.send_nowait, default batches,",
            lambda: send_nowait(config, topic, value, count),
            lambda: send(config, topic, value, count),
            lambda: confluent_send(config, topic, value, few),
        )
        row(
            f"AsyncProducer.send in {TASKS} tasks",
            AIO,
            AIO_TARGET,
            lambda: send_in_tasks(config, topic, value, count // 4),
            lambda: _seconds(confluent_send_in_tasks(config, topic, value, few)),
            [count // 4, few],
        )
        both(
            "async for record in AsyncConsumer",
            lambda: iterate(config, topic, count),
            lambda: poll(config, topic, count),
            lambda: confluent_iterate(config, topic, few),
        )
    finally:
        remove_topic(bootstrap_servers, topic)
    return rows


def _seconds(work: Awaitable[float]) -> float:
    async def main() -> float:
        return await asyncio.wait_for(work, _LIMIT_S)

    return asyncio.run(main())


async def send_nowait(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    async with AsyncProducer(config) as producer:
        await producer.send(topic, value)
        begin = time.perf_counter()
        for _ in range(count):
            producer.send_nowait(topic, value)
            await producer.drain()
        await producer.flush()
        return time.perf_counter() - begin


def send(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    with Producer(config) as producer:
        producer.send(topic, value).result(_LIMIT_S)
        begin = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush(_LIMIT_S)
        return time.perf_counter() - begin


async def confluent_send(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    producer = AIOProducer(config | {"enable.idempotence": True})
    try:
        begin = time.perf_counter()
        futures = [await producer.produce(topic, value=value) for _ in range(count)]
        await producer.flush()
        await asyncio.gather(*futures)
        return time.perf_counter() - begin
    finally:
        await producer.close()


async def _in_tasks(send_one: Callable[[], Awaitable[object]], count: int) -> float:
    async def task() -> None:
        for _ in range(count // TASKS):
            await send_one()

    await send_one()
    begin = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    return time.perf_counter() - begin


async def send_in_tasks(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    async with AsyncProducer(config) as producer:
        return await _in_tasks(lambda: producer.send(topic, value), count)


async def confluent_send_in_tasks(
    config: dict[str, str], topic: str, value: bytes, count: int
) -> float:
    # A batch for the records of all tasks, which is sent without a wait.
    producer = AIOProducer(
        config | {"enable.idempotence": True}, batch_size=TASKS, buffer_timeout=0.001
    )

    async def send_one() -> None:
        await (await producer.produce(topic, value=value))

    try:
        return await _in_tasks(send_one, count)
    finally:
        await producer.close()


async def iterate(config: dict[str, str], topic: str, count: int) -> float:
    begin = time.perf_counter()
    async with AsyncConsumer(config) as consumer:
        await consumer.assign({TopicPartition(topic, 0): 0})
        left = count
        async for record in consumer:
            record.key, record.value, record.offset  # noqa: B018
            left -= 1
            if not left:
                break
        return time.perf_counter() - begin


def poll(config: dict[str, str], topic: str, count: int) -> float:
    begin = time.perf_counter()
    with Consumer(config) as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        left = count
        while left > 0:
            for record in consumer.poll(1.0):
                record.key, record.value, record.offset  # noqa: B018
                left -= 1
        return time.perf_counter() - begin


async def confluent_iterate(config: dict[str, str], topic: str, count: int) -> float:
    begin = time.perf_counter()
    consumer = AIOConsumer(config | {"group.id": "bench", "enable.auto.commit": False})
    try:
        await consumer.assign([ConfluentPartition(topic, 0, 0)])
        left = count
        while left > 0:
            message = await consumer.poll(1.0)
            if message is not None:
                message.key(), message.value(), message.offset()
                left -= 1
        return time.perf_counter() - begin
    finally:
        await consumer.close()
