"""The asyncio clients record by record, beside ours of the threads, aiokafka and confluent-kafka's;
the time of one acknowledged record, and how long the loop waits while batches are decoded.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import time
from collections.abc import Awaitable, Callable

import aiokafka
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.aio import AIOConsumer, AIOProducer

from sparkkafka.client import Consumer, Producer, TopicPartition
from sparkkafka.client.aio import AsyncConsumer, AsyncProducer
from sparkkafka.config.options import ProducerOptions
from tests.bench import rivals
from tests.bench.client_rows import write_checks
from tests.bench.data import make_topic, open_cluster, remove_topic
from tests.bench.results import Row
from tests.bench.turns import take_turns

THREADS = "our client of the threads"
AIOKAFKA = f"aiokafka {aiokafka.__version__}"
CONFLUENT = f"{rivals.CONFLUENT}, its asyncio client"
# Of the rate of each.
TARGETS = {THREADS: 0.8, AIOKAFKA: 3.0, CONFLUENT: 5.0}
LONGEST_WAIT_MS = 10.0
TASKS = 100
MEGA_BATCH = 1 << 20
BATCH_BYTES = ProducerOptions.batch_size  # our default, for aiokafka too; confluent-kafka's is more
# By size of values.
_FULL, _QUICK = {100: 200_000, 1000: 60_000}, {100: 50_000, 1000: 20_000}
_SHARES = {THREADS: 1, AIOKAFKA: 2, CONFLUENT: 20}  # a slow side gets one record in as many
_LATENCY_RECORDS = {AIOKAFKA: 500, CONFLUENT: 100}  # of both sides; confluent-kafka's take 0.1 s
_LIMIT_S = 120.0

Side = Callable[[dict[str, str], str, bytes, int], float | Awaitable[float]]
"""A run, with settings, topic, value and number of records; returns seconds."""


def aio_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """All rows. Makes topics and deletes them."""
    pairs = 2 if quick else 5
    config = {"bootstrap.servers": bootstrap_servers}
    rows: list[Row] = []
    for size, count in (_QUICK if quick else _FULL).items():
        topic, value = f"bench-library-asyncio-{size}", bytes(size)
        text = "100 B" if size == 100 else "1 KB"
        with open_cluster(bootstrap_servers) as cluster:
            make_topic(cluster, topic, 1)
        try:
            checks = write_checks(
                *(bootstrap_servers, topic, 1, [value] * (count + 1)),
                functools.partial(_seconds, send_nowait, config, topic, value, count),
            )
            for name, ours, rival, theirs, share in _SIDES:
                counts = [count // share, count // share // _SHARES[rival]]
                row = Row(
                    *("client library", f"{name} of {text}", "records/s", rival),
                    work=[float(records) for records in counts],
                    target=TARGETS[rival],
                    checks=checks,
                )
                run_ours, run_theirs = (
                    functools.partial(_seconds, side, config, topic, value, records)
                    for side, records in zip((ours, theirs), counts, strict=True)
                )
                rows.append(take_turns(row, run_ours, run_theirs, pairs, say))
            for quantile, rival, theirs in _LATENCIES if size == 100 else ():
                row = Row(
                    *("client library", f"await send of {text}, p{quantile}", "ms", rival),
                    checks=checks,
                )
                run_ours, run_theirs = (
                    functools.partial(
                        *(_latency, side, config, topic, value, _LATENCY_RECORDS[rival], quantile)
                    )
                    for side in (send_each, theirs)
                )
                rows.append(take_turns(row, run_ours, run_theirs, pairs, say))
            for codec in ("gzip", "zstd", "lz4") if size == 100 else ():
                rows.append(_wait_row(config, topic, value, count, codec, checks, pairs, say))
        finally:
            remove_topic(bootstrap_servers, topic)
    return rows


def _wait_row(
    config: dict[str, str],
    topic: str,
    value: bytes,
    count: int,
    codec: str,
    checks: dict[str, list[int | None]],
    pairs: int,
    say: Callable[[str], None],
) -> Row:
    """How long other tasks wait at most while 1 MB batches are decoded, beside an idle loop."""
    name = f"{topic}-{codec}"
    with open_cluster(config["bootstrap.servers"]) as cluster:
        make_topic(cluster, name, 1)
    try:
        settings = {"compression.type": codec, "batch.size": str(MEGA_BATCH)}
        with Producer(config | settings | {"max.request.size": str(4 * MEGA_BATCH)}) as producer:
            producer.send_many(name, [value] * count).result(_LIMIT_S)
        row = Row(
            "client library",
            f"processor time between a task's turns while 1 MB batches of {codec} are read, max.",
            *("ms", "an idle loop"),
            target=LONGEST_WAIT_MS,
            target_kind="difference",
            checks=checks,
        )
        return take_turns(
            row,
            lambda: asyncio.run(longest_wait(iterate(config, name, value, count))),
            lambda: asyncio.run(longest_wait(asyncio.sleep(0.2))),
            pairs,
            say,
        )
    finally:
        remove_topic(config["bootstrap.servers"], name)


async def longest_wait(work: Awaitable[object]) -> float:
    """The most processor time of this process between two turns of a task, in seconds. Time in
    which other programs have the processor does not count."""
    longest_s = 0.0

    async def beat() -> None:
        nonlocal longest_s
        last_s = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now_s = time.process_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    task = asyncio.create_task(beat())
    await work
    task.cancel()
    return longest_s


def _seconds(side: Side, config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    """Run a side, in a loop of its own if it is a coroutine function."""

    async def main(work: Awaitable[float]) -> float:
        return await asyncio.wait_for(work, _LIMIT_S)

    found = side(config, topic, value, count)
    return found if isinstance(found, float) else asyncio.run(main(found))


def _latency(
    side: Callable[..., Awaitable[list[float]]],
    config: dict[str, str],
    topic: str,
    value: bytes,
    count: int,
    quantile: int,
) -> float:
    """A percentile of the seconds in which a record is acknowledged, one after the other."""
    seconds = asyncio.run(asyncio.wait_for(side(config, topic, value, count), _LIMIT_S))
    return statistics.quantiles(seconds, n=100)[quantile - 1]


# --- ours ---


async def send_nowait(
    config: dict[str, str], topic: str, value: bytes, count: int, tasks: int = 1
) -> float:
    async with AsyncProducer(config) as producer:

        async def task() -> None:
            for _ in range(count // tasks):
                producer.send_nowait(topic, value)
                await producer.drain()

        await producer.send(topic, value)
        begin = time.perf_counter()
        await asyncio.gather(*(task() for _ in range(tasks)))
        await producer.flush()
        return time.perf_counter() - begin


async def send_in_tasks(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    async with AsyncProducer(config) as producer:
        return await _in_tasks(lambda: producer.send(topic, value), count)


async def _in_tasks(send_one: Callable[[], Awaitable[object]], count: int) -> float:
    async def task() -> None:
        for _ in range(count // TASKS):
            await send_one()

    await send_one()
    begin = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    return time.perf_counter() - begin


async def send_each(config: dict[str, str], topic: str, value: bytes, count: int) -> list[float]:
    async with AsyncProducer(config) as producer:
        return await _each(lambda: producer.send(topic, value), count)


async def _each(send_one: Callable[[], Awaitable[object]], count: int) -> list[float]:
    await send_one()
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        await send_one()
        seconds.append(time.perf_counter() - begin)
    return seconds


async def iterate(
    config: dict[str, str], topic: str, value: bytes, count: int, tasks: int = 1
) -> float:
    left = count

    async def task() -> None:
        nonlocal left
        async for record in consumer:
            record.key, record.value, record.offset  # noqa: B018
            left -= 1
            if left <= 0:
                break

    begin = time.perf_counter()
    async with AsyncConsumer(config) as consumer:
        await consumer.assign({TopicPartition(topic, 0): 0})
        running = [asyncio.create_task(task()) for _ in range(tasks)]
        _, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return time.perf_counter() - begin


# --- our client of the threads ---


def send(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    with Producer(config) as producer:
        producer.send(topic, value).result(_LIMIT_S)
        begin = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush(_LIMIT_S)
        return time.perf_counter() - begin


def poll(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    begin = time.perf_counter()
    with Consumer(config) as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        left = count
        while left > 0:
            for record in consumer.poll(1.0):
                record.key, record.value, record.offset  # noqa: B018
                left -= 1
        return time.perf_counter() - begin


# --- aiokafka ---


def _aiokafka(config: dict[str, str]) -> aiokafka.AIOKafkaProducer:
    servers = config["bootstrap.servers"]
    return aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, max_batch_size=BATCH_BYTES
    )


async def aiokafka_send(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    async with _aiokafka(config) as producer:
        await producer.send_and_wait(topic, value)
        begin = time.perf_counter()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        return time.perf_counter() - begin


async def aiokafka_send_in_tasks(
    config: dict[str, str], topic: str, value: bytes, count: int
) -> float:
    async with _aiokafka(config) as producer:
        return await _in_tasks(lambda: producer.send_and_wait(topic, value), count)


async def aiokafka_send_each(
    config: dict[str, str], topic: str, value: bytes, count: int
) -> list[float]:
    async with _aiokafka(config) as producer:
        return await _each(lambda: producer.send_and_wait(topic, value), count)


async def aiokafka_iterate(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
    begin = time.perf_counter()
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=config["bootstrap.servers"])
    async with consumer:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        left = count
        async for record in consumer:
            record.key, record.value, record.offset  # noqa: B018
            left -= 1
            if not left:
                break
        return time.perf_counter() - begin


# --- confluent-kafka ---


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


async def confluent_send_each(
    config: dict[str, str], topic: str, value: bytes, count: int
) -> list[float]:
    producer = AIOProducer(
        config | {"enable.idempotence": True, "linger.ms": 0}, batch_size=1, buffer_timeout=0.001
    )

    async def send_one() -> None:
        await (await producer.produce(topic, value=value))

    try:
        return await _each(send_one, count)
    finally:
        await producer.close()


async def confluent_iterate(config: dict[str, str], topic: str, value: bytes, count: int) -> float:
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


_NOWAIT, _SEND = "AsyncProducer.send_nowait", f"AsyncProducer.send in {TASKS} tasks"
_ITERATE = "async for record in AsyncConsumer"
_in_many_tasks = functools.partial(send_nowait, tasks=TASKS)
_iterate_in_tasks = functools.partial(iterate, tasks=TASKS)

_SIDES: list[tuple[str, Side, str, Side, int]] = [
    (_NOWAIT, send_nowait, THREADS, send, 1),
    (f"{_NOWAIT} in {TASKS} tasks", _in_many_tasks, THREADS, send, 1),
    (_NOWAIT, send_nowait, AIOKAFKA, aiokafka_send, 1),
    (_NOWAIT, send_nowait, CONFLUENT, confluent_send, 1),
    (_SEND, send_in_tasks, AIOKAFKA, aiokafka_send_in_tasks, 4),
    (_SEND, send_in_tasks, CONFLUENT, confluent_send_in_tasks, 4),
    (_ITERATE, iterate, THREADS, poll, 1),
    (f"{_ITERATE}, {TASKS} tasks", _iterate_in_tasks, THREADS, poll, 1),
    (_ITERATE, iterate, AIOKAFKA, aiokafka_iterate, 1),
    (_ITERATE, iterate, CONFLUENT, confluent_iterate, 1),
]
"""Name, ours, the rival, its run, and which share of the records is sent or read."""

_LATENCIES = [
    (50, AIOKAFKA, aiokafka_send_each),
    (99, AIOKAFKA, aiokafka_send_each),
    (50, CONFLUENT, confluent_send_each),
    (99, CONFLUENT, confluent_send_each),
]
