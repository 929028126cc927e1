"""Three real brokers in three racks: who gives the bytes, and what happens when that one dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.net.connection import Connection
from tests.client.support import numbers, open_cluster, read_range, reader, write

pytestmark = pytest.mark.real

RACKS = ["left", "middle", "right"]
COUNT = 20_000


@pytest.fixture(scope="module")
def racks() -> Iterator[Any]:
    from sparkkafka.testing.kafka.cluster import KafkaCluster

    properties = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    own = {number: {"broker.rack": rack} for number, rack in enumerate(RACKS)}
    with KafkaCluster(3, properties, broker_properties=own) as cluster:
        cluster.create_topic("t", replication_factor=3)
        write(cluster, "t", COUNT, batch_size=2_000, linger_ms=0)
        yield cluster


@pytest.fixture
def bytes_of(racks: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes of records that came from each broker, counted at the connections."""
    brokers = {racks.address(number)[1]: number for number in racks.broker_ids}
    counted: Counter[int] = Counter()
    plain = Connection.receive_ready

    def receive_ready(self: Connection, *args: Any) -> tuple[int, Any] | None:
        received = plain(self, *args)
        for topic in () if received is None else getattr(received[1], "responses", ()):
            for row in getattr(topic, "partitions", ()):
                counted[brokers[self.port]] += len(getattr(row, "records", None) or b"")
        return received

    monkeypatch.setattr(Connection, "receive_ready", receive_ready)
    return counted


def leader(racks: Any) -> int:
    with open_cluster(racks) as cluster:
        return cluster.topics(["t"])["t"].partitions[0].leader


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_bytes_come_from_ones_own_rack(racks, bytes_of, step):
    """From a follower (1, 2) or, if that is in the rack, from the leader (0)."""
    near = (leader(racks) + step) % 3
    with open_cluster(racks) as cluster:
        assert read_range(cluster, "t", 0, COUNT, client_rack=RACKS[near]) == numbers(COUNT)
    assert list(+bytes_of) == [near]
    assert bytes_of[near] > COUNT * 5


def test_without_a_rack_they_come_from_the_leader(racks, bytes_of):
    with open_cluster(racks) as cluster:
        assert read_range(cluster, "t", 0, COUNT) == numbers(COUNT)
    assert list(+bytes_of) == [leader(racks)]


def test_what_was_just_written_is_read_from_a_replica_that_lags(racks, bytes_of):
    """The follower learns of the new end a moment later: no data loss, and no long wait."""
    racks.create_topic("fresh", replication_factor=3)
    with open_cluster(racks) as cluster:
        at = cluster.topics(["fresh"])["fresh"].partitions[0].leader
        near = (at + 1) % 3
        for turn in range(5):
            write(racks, "fresh", 100)
            start = 100 * turn
            values = read_range(cluster, "fresh", start, start + 100, client_rack=RACKS[near])
            assert values == numbers(100)
    assert bytes_of[near] > 0


def test_the_read_goes_on_when_the_replica_is_killed(racks, bytes_of):
    """The last test: it leaves one broker dead. The leader goes on to name it for seconds."""
    at = leader(racks)
    near = (at + 1) % 3
    values: list[bytes] = []
    with (
        open_cluster(racks) as cluster,
        reader(
            cluster,
            "t",
            0,
            COUNT,
            client_rack=RACKS[near],
            max_partition_fetch_bytes=4_000,
            poll_timeout_ms=30_000,
        ) as source,
    ):
        for _, records in source:
            values += records.values.to_pylist()
            if len(values) > COUNT // 3 and racks.is_running(near):
                racks.kill(near)
    assert values == numbers(COUNT)
    assert set(+bytes_of) == {near, at}
