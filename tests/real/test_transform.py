"""Consume, transform, produce: exactly once through kills, leaves and joins of two workers."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from sparkkafka.client import Admin, ConfigResource
from tests.real.transform_process import TransformJob

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
WAIT_S = 90.0
PER_ROUND = 400


def start(job: TransformJob, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.real.transform_process", job.as_json()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=file,
        )


def end(worker: subprocess.Popen[bytes], how: signal.Signals) -> None:
    worker.send_signal(how)
    worker.wait(WAIT_S)
    if worker.stdin is not None:
        worker.stdin.close()


def read_committed(bootstrap_servers: str, topic: str, expected: int) -> list[bytes]:
    """All committed values, once there are as many as expected and none comes after them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"{topic}-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    values: list[bytes] = []
    until = time.monotonic() + WAIT_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        while len(values) < expected:
            assert time.monotonic() < until, f"{len(values)} of {expected}"
            values += [message.value() for message in consumer.consume(1000, 0.5)]
        values += [message.value() for message in consumer.consume(1000, 1.0)]
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.soak)])
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_each_message_once(
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    tmp_path: Path,
    group_protocol: str,
    rounds: int,
) -> None:
    source, target = new_topic(partitions=PARTITIONS), new_topic(partitions=PARTITIONS)
    servers = kafka_cluster.bootstrap_servers
    job = TransformJob(servers, f"transform-{source}", source, target, group_protocol)
    if group_protocol == "consumer":  # in which brokers, not members, say how long a session is
        with Admin({"bootstrap.servers": servers}) as admin:
            group = ConfigResource("group", job.group_id)
            admin.incremental_alter_configs({group: {"consumer.session.timeout.ms": "6000"}}).all()
    log = tmp_path / "workers.log"
    chance = random.Random(11)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    workers = [start(job, log), start(job, log)]
    written = 0
    try:
        for number in range(rounds):
            for _ in range(PER_ROUND):
                producer.produce(source, str(written).encode(), partition=written % PARTITIONS)
                written += 1
            producer.flush(30)
            time.sleep(chance.uniform(0.3, 1.5))  # so that they are somewhere in the middle
            worker = chance.choice(workers)
            workers.remove(worker)
            end(worker, signal.SIGTERM if number % 3 == 1 else signal.SIGKILL)
            workers.append(start(job, log))
        values = read_committed(servers, target, written)
    finally:
        for worker in workers:
            end(worker, signal.SIGKILL)
    counts = Counter(values)
    twice = [value for value, count in counts.items() if count > 1]
    words = log.read_text("utf-8", "replace")[-3000:]
    assert twice == [], words
    assert set(counts) == {f"<{number}>".encode() for number in range(written)}, words
