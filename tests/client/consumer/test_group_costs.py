"""What a member of a group costs: connections, requests at the start, wake-ups while it waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.subscription_state import SubscriptionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group import committed_offsets
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_consumer_settings
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import fill, open_cluster, settings

WAIT_S = 10.0


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fake(fake_cluster: FakeCluster) -> FakeCluster:
    fake_cluster.create_topic("t", partitions=3)
    return fake_cluster


def member(fake: FakeCluster, protocol: str, **config: Any) -> Consumer:
    given = {"group_id": "g", "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consumer = Consumer(settings(fake, **(given | config)))
    consumer.subscribe(["t"])
    return consumer


def test_a_poll_that_waits_is_not_woken_without_a_reason(fake, protocol, monkeypatch):
    wakeups = 0
    receive = Fetcher.receive

    def counting(fetcher: Fetcher, wait_s: float) -> None:
        nonlocal wakeups
        wakeups += 1
        receive(fetcher, wait_s)

    fill(fake, "t", 30, partitions=3)
    with member(fake, protocol, fetch_max_wait_ms=int(WAIT_S * 1000)) as consumer:
        unread = 30
        while unread:
            unread -= len(consumer.poll(WAIT_S))
        consumer.poll(0)  # requests more from all leaders
        monkeypatch.setattr(Fetcher, "receive", counting)
        assert not consumer.poll(1.5)
    # One each second, so that the wait counts as polling, and one for each response that was
    # still on its way (three leaders, the auto commit); a poll every 100 ms would wake 15 times.
    assert wakeups < 10


def test_changes_in_the_group_wake_a_poll_that_waits(fake, protocol, monkeypatch):
    fill(fake, "t", 30, partitions=3)
    monkeypatch.setattr(Fetcher, "step_wait_s", WAIT_S)
    with member(fake, protocol, enable_auto_commit=False) as consumer:
        assert consumer.poll(WAIT_S)


def test_one_bootstrap_and_no_request_twice(fake, protocol, monkeypatch):
    monkeypatch.setattr(committed_offsets, "MAX_ID_AGE_S", WAIT_S)
    fill(fake, "t", 30, partitions=3)
    fake.clear_requests()
    with member(fake, protocol) as consumer:
        assert consumer.poll(WAIT_S)
        consumer.commit()
        asynchronous = threading.Event()
        consumer.commit(asynchronous=True, callback=lambda *_: asynchronous.set())
        while not asynchronous.is_set():
            consumer.poll(WAIT_S / 10)
    assert len(fake.requests_of("FindCoordinator")) == 1
    assert len(fake.requests_of("Metadata")) == 1
    # Fetch has a connection to each leader; commits in the background have one to the coordinator.
    assert len({row.connection for row in fake.requests}) <= 3 + 4


def test_a_recreated_topic_is_noticed_whoever_refreshed_the_metadata(fake):
    tp = TopicPartition("t", 0)
    with open_cluster(fake) as cluster, cluster.for_thread() as of_the_membership:
        of_the_membership.request_metadata(["t"], Deadline(WAIT_S * 1000))
        assignment = SubscriptionState(cluster)
        options = parse_consumer_settings(settings(fake, fetch_max_wait_ms=10)).fetch
        fetcher = Fetcher(cluster, options, assignment, FetchMetrics())
        assignment.assign([tp])
        assignment.state(tp).seek(0)
        while not fake.requests_of("Fetch"):
            fetcher.send(Deadline(WAIT_S * 1000))
            fetcher.receive(0.1)
        fake.delete_topic("t")
        fake.create_topic("t", partitions=3)
        of_the_membership.request_metadata(["t"], Deadline(WAIT_S * 1000))
        deadline = Deadline(WAIT_S * 1000)
        while not assignment.state(tp).is_out_of_range:
            assert not deadline.expired
            fetcher.send(deadline)
            fetcher.receive(0.1)
        fetcher.close()


TO_COORDINATOR = ("Heartbeat", "ConsumerGroupHeartbeat", "JoinGroup", "SyncGroup", "OffsetCommit")


def test_two_connections_to_the_coordinator(fake, protocol):
    """One of the thread that calls poll, and one of the membership: heartbeats wait for nobody."""
    quick = {"heartbeat_interval_ms": 40} if protocol == "classic" else {}
    heartbeat = "Heartbeat" if protocol == "classic" else "ConsumerGroupHeartbeat"
    with member(fake, protocol, **quick) as consumer:
        while not consumer.assignment() or len(fake.requests_of(heartbeat)) < 3:
            consumer.poll(0.05)
        consumer.commit(dict.fromkeys(consumer.assignment(), 0))
    used = {row.connection for row in fake.requests if row.api in TO_COORDINATOR}
    assert len(used) == 2
