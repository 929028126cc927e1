"""A leader that reads nothing, with large requests half sent to it, holds up nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparkkafka.client.producer.producer import Producer
from sparkkafka.errors import ProduceError
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import RecordedRequest
from tests.client.support import open_cluster, read_range, settings
from tests.support.certificates import signed
from tests.support.waiting import finish

MIB = 2**20
VALUE = bytes(1000)
MAX_S = 10
AUTHORITY = signed("authority")
SERVER = signed("broker", AUTHORITY, hosts=("127.0.0.1",))


class Paused(NamedTuple):
    """The leader of partition 0 reads nothing behind its second Produce request until `over`."""

    cluster: FakeCluster
    is_here: threading.Event
    over: threading.Event
    config: dict[str, str]

    def producer(self, **more: Any) -> Producer:
        given = {
            "max_request_size": 24 * MIB,
            "batch_size": 16 * MIB,
            "buffer_memory": 256 * MIB,
            "linger_ms": 0,
            "request_timeout_ms": 30_000,
            **more,
        }
        return Producer(settings(self.cluster, **given) | self.config)


@pytest.fixture(params=["plaintext", "tls"])
def paused(request: Any, fake_cluster_factory: Any, tmp_path: Path) -> Iterator[Paused]:
    config: dict[str, str] = {}
    context = None
    if request.param == "tls":
        context = SERVER.server_context(tmp_path)
        config = {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.pem}
    cluster = fake_cluster_factory(2, tls_context=context, configs={"max.message.bytes": 32 * MIB})
    cluster.create_topic("t", partitions=2)
    is_here, over = threading.Event(), threading.Event()

    def wait(_: RecordedRequest) -> None:
        is_here.set()
        over.wait(60)

    cluster.fault(wait, api="Produce", broker=cluster.leader("t", 0), nth=2, times=None)
    yield Paused(cluster, is_here, over, config)
    over.set()


def values(paused: Paused, partition: int) -> list[bytes]:
    with open_cluster(
        paused.cluster, **{name.replace(".", "_"): value for name, value in paused.config.items()}
    ) as client:
        end = paused.cluster.log("t", partition).end_offset
        return read_range(client, "t", 0, end, partition=partition)


@pytest.mark.slow
def test_the_other_leader_s_records_are_acknowledged(paused: Paused) -> None:
    with paused.producer() as producer:
        producer.send("t", b"alone", partition=0).result()  # as the first of a producer id goes
        first = producer.send("t", b"first", partition=0)
        assert paused.is_here.wait(MAX_S)
        # More than all buffers of the system hold, so that a part of it cannot be sent.
        large = [producer.send("t", VALUE * 1000, partition=0) for _ in range(40)]
        for number in range(5):
            producer.send("t", b"%d" % number, partition=1).result(timeout_s=MAX_S)
        assert not first.done()
        assert not any(item.done() for item in large)
        paused.over.set()
        producer.flush()
        assert [item.result().offset for item in [first, *large]] == list(range(1, 42))
    assert values(paused, 1) == [b"%d" % number for number in range(5)]
    assert values(paused, 0) == [b"alone", b"first"] + [VALUE * 1000] * 40


@pytest.mark.slow
def test_the_paused_one_fails_alone_and_in_time(paused: Paused) -> None:
    with paused.producer(request_timeout_ms=1_500, delivery_timeout_ms=3_000) as producer:
        producer.send("t", b"alone", partition=0).result()
        lost = producer.send("t", b"first", partition=0)
        assert paused.is_here.wait(MAX_S)
        large = [producer.send("t", VALUE * 1000, partition=0) for _ in range(40)]
        began_s = time.monotonic()
        while not all(item.done() for item in [lost, *large]):
            producer.send("t", b"x", partition=1).result(timeout_s=MAX_S)
            time.sleep(0.02)
            assert time.monotonic() - began_s < 60
        for item in [lost, *large]:
            with pytest.raises(ProduceError, match="topic t partition 0"):
                item.result()


def test_with_a_leader_that_never_reads_closing_ends(paused: Paused) -> None:
    producer = paused.producer()
    producer.send("t", b"alone", partition=0).result()
    producer.send("t", b"first", partition=0)
    assert paused.is_here.wait(MAX_S)
    for _ in range(40):
        producer.send("t", VALUE * 1000, partition=0)
    producer.send("t", b"x", partition=1).result(timeout_s=MAX_S)
    with pytest.raises(ProduceError):
        finish(lambda: producer.close(timeout_s=1), MAX_S)
