"""Confluent-kafka and kafka-python at their best: seconds to read or write so many records.

Wall time, as for ours. Making a client is part of it, closing it is not (librdkafka waits for its
threads). Every record's key, value and offset are touched, or a rival could leave the work undone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import confluent_kafka
import kafka

CONFLUENT = f"confluent-kafka {confluent_kafka.__version__}"
KAFKA_PYTHON = f"kafka-python {kafka.__version__}"

LIMIT_S = 120.0
LINGER_MS = 20
BATCH_BYTES = 1 << 20

# By default librdkafka stops fetching a partition once it holds 100,000 of its records (11 MB at
# 100 B), and looks again a second later: three quarters of the time go by in waiting.
TUNED_FETCH: dict[str, Any] = {
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 4 << 20,
}


def confluent_read(
    bootstrap: str, topic: str, ends: Mapping[int, int], config: Mapping[str, Any]
) -> float:
    """Seconds for offsets [0, end) of each partition. librdkafka decodes in a thread of its own."""
    left = sum(ends.values())
    begin = time.perf_counter()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
        | dict(config)
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in ends])
        while left > 0:
            # It waits for as many messages as it is asked for: not for more than there are.
            for message in consumer.consume(num_messages=min(left, 10_000), timeout=1.0):
                error = message.error()
                if error is not None:
                    raise confluent_kafka.KafkaException(error)
                message.key(), message.value(), message.offset()
                left -= 1
            _check_time(begin, left, topic)
        seconds = time.perf_counter() - begin
    finally:
        consumer.close()
    if left:
        raise AssertionError(f"{-left} records too many from {topic}")
    return seconds


def kafka_python_read(bootstrap: str, topic: str, ends: Mapping[int, int]) -> float:
    """Seconds for offsets [0, end) of each partition."""
    left = sum(ends.values())
    begin = time.perf_counter()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_poll_records=10_000
    )
    try:
        assigned = [kafka.TopicPartition(topic, p) for p in ends]
        consumer.assign(assigned)
        for tp in assigned:
            consumer.seek(tp, 0)
        while left > 0:
            for tp, messages in consumer.poll(timeout_ms=1000).items():
                end = ends[tp.partition]
                for message in messages:
                    message.key, message.value  # noqa: B018
                    # The topic goes on behind the few records that a slow reader is given.
                    left -= message.offset < end
                if messages[-1].offset >= end - 1:
                    consumer.pause(tp)
            _check_time(begin, left, topic)
        seconds = time.perf_counter() - begin
    finally:
        consumer.close()
    return seconds


def confluent_write(bootstrap: str, topic: str, values: list[bytes], partitions: int) -> float:
    """Seconds until all values, spread over the partitions, are acknowledged."""
    begin = time.perf_counter()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            # The queue never fills, so the loop is not stopped.
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    produce = producer.produce
    for number, value in enumerate(values):
        produce(topic, value, partition=number % partitions)
    left = producer.flush(LIMIT_S)
    seconds = time.perf_counter() - begin
    assert left == 0, f"{left} records of confluent-kafka were not acknowledged"
    return seconds


def kafka_python_write(bootstrap: str, topic: str, values: list[bytes], partitions: int) -> float:
    """Seconds until all values, spread over the partitions, are acknowledged."""
    begin = time.perf_counter()
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )
    try:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions)
        producer.flush(LIMIT_S)
        return time.perf_counter() - begin
    finally:
        producer.close()


def confluent_send_each(bootstrap: str, topic: str, value: bytes, count: int) -> float:
    """Seconds until all records are acknowledged, each sent after the one before."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
    )
    acknowledged = 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    producer.produce(topic, value, on_delivery=on_delivery)
    assert producer.flush(LIMIT_S) == 0
    begin = time.perf_counter()
    for number in range(2, count + 2):
        producer.produce(topic, value, on_delivery=on_delivery)
        while acknowledged < number:
            producer.poll(1.0)
            _check_time(begin, number - acknowledged, topic)
    return time.perf_counter() - begin


def kafka_python_send_each(bootstrap: str, topic: str, value: bytes, count: int) -> float:
    """As `confluent_send_each`."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=0
    )
    try:
        producer.send(topic, value).get(LIMIT_S)
        begin = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value).get(LIMIT_S)
        return time.perf_counter() - begin
    finally:
        producer.close()


def confluent_send_loop(bootstrap: str, topic: str, values: list[bytes]) -> float:
    """Seconds until all values are acknowledged, with its default batches and acks=1."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    producer.produce(topic, values[0])
    assert producer.flush(LIMIT_S) == 0
    begin = time.perf_counter()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(LIMIT_S) == 0
    return time.perf_counter() - begin


def kafka_python_send_loop(bootstrap: str, topic: str, values: list[bytes]) -> float:
    """As `confluent_send_loop`."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks=1, enable_idempotence=False)
    try:
        producer.send(topic, values[0]).get(LIMIT_S)
        begin = time.perf_counter()
        for value in values:
            producer.send(topic, value)
        producer.flush(LIMIT_S)
        return time.perf_counter() - begin
    finally:
        producer.close()


def _check_time(begin: float, left: int, topic: str) -> None:
    if time.perf_counter() - begin > LIMIT_S:
        raise TimeoutError(f"{left} records of {topic} did not come")
