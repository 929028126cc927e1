"""A group's commits while a topic is deleted and recreated: the old offset never becomes one of the
new topic, whose first records a later reader would skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import UnknownTopicError
from sparkkafka.protocol.wire.primitives import NULL_UUID
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import fill, open_cluster, settings
from tests.support.waiting import wait_until

TP, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)

# Brokers before Kafka 4.2 know the topic of a commit by its name only.
RELEASES = pytest.mark.parametrize(
    ("release", "protocol"), [("3.9", "classic"), ("4.4", "classic"), ("4.4", "consumer")]
)


@pytest.fixture
def cluster(fake_cluster_factory: Any) -> Callable[[str], FakeCluster]:
    """`cluster(release)`: with 200 records in each of two topics."""

    def make(release: str) -> FakeCluster:
        fake: FakeCluster = fake_cluster_factory(1, kafka_version=release)
        for topic in ("t", "other"):
            fake.create_topic(topic)
            fill(fake, topic, 200)
        return fake

    return make


def member(fake: FakeCluster, protocol: str, **config: Any) -> Consumer:
    given = {"group_id": "g", "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consumer = Consumer(settings(fake, **given, fetch_max_wait_ms=10, **config))
    consumer.subscribe(["t", "other"])
    return consumer


def read_until(consumer: Consumer, fake: FakeCluster, count: int) -> list[int]:
    """Poll until the consumer has this many records of topic t; return their offsets."""
    found: list[int] = []

    def has_all() -> bool:
        found.extend(record.offset for record in consumer.poll(0.1) if record.topic == "t")
        return len(found) >= count

    wait_until(has_all)
    return found


@RELEASES
def test_the_end_of_the_old_topic_is_not_committed_to_the_new_one(
    cluster: Callable[[str], FakeCluster], release: str, protocol: str
) -> None:
    """The user processes records while the topic is recreated, longer than before. What a new
    member reads then is whole. Other topics are committed."""
    fake = cluster(release)
    with member(fake, protocol, enable_auto_commit=False) as consumer:
        read_until(consumer, fake, 200)
        wait_until(lambda: consumer.poll(0.1) is not None and consumer.position(OTHER) == 200)
        fake.recreate_topic("t")
        fill(fake, "t", 400)
        # Before Kafka 4.2 only metadata shows it, and that is recent for a second.
        with open_cluster(fake) as outside:
            outside.topics(["t"])
        consumer.partitions_for("t")
        with pytest.raises(UnknownTopicError, match=r"t-0 of group 'g'.* deleted and recreated"):
            consumer.commit()
        consumer.commit({OTHER: 150})
        consumer.commit({TP: 200}, asynchronous=True, callback=lambda *_: None)
    assert fake.committed("g") == {("other", 0): 150}
    with member(fake, protocol) as consumer:
        assert read_until(consumer, fake, 400) == list(range(400))


@RELEASES
@pytest.mark.parametrize("automatic", [True, False])
def test_a_commit_that_is_retried_until_the_topic_is_back(
    cluster: Callable[[str], FakeCluster], release: str, protocol: str, automatic: bool
) -> None:
    fake = cluster(release)
    config = {"enable_auto_commit": automatic, "auto_commit_interval_ms": 50}
    with member(fake, protocol, **config) as consumer:
        read_until(consumer, fake, 200)
        fake.delete_topic("t")

        def create(_: object) -> None:
            if "t" not in fake.state.topics:
                fake.create_topic("t")
                fill(fake, "t", 400)

        # The commit notices that the topic is gone, and then it is there again.
        fake.fault(create, api="Metadata", nth=len(fake.requests_of("Metadata")) + 2)
        if not automatic:
            with pytest.raises(UnknownTopicError, match=r"t-0 of group 'g'"):
                consumer.commit()
            assert ("t", 0) not in fake.committed("g")
        assert read_until(consumer, fake, 400) == list(range(400))
        consumer.commit()
    assert fake.committed("g")["t", 0] == 400


@pytest.mark.parametrize(
    ("release", "version", "transaction_version"), [("3.9", 3, 1), ("4.3", 5, 2), ("4.4", 6, 2)]
)
def test_a_transaction_does_not_commit_offsets_of_the_old_topic(
    fake_cluster_factory: Any, release: str, version: int, transaction_version: int
) -> None:
    """Offsets of other topics, and those of the new topic, are committed."""
    fake: FakeCluster = fake_cluster_factory(
        1, kafka_version=release, transaction_version=transaction_version
    )
    for topic in ("t", "other"):
        fake.create_topic(topic)
        fill(fake, topic, 200)
    with (
        member(fake, "classic", enable_auto_commit=False) as consumer,
        Producer(settings(fake, transactional_id="tid")) as producer,
    ):
        producer.init_transactions()
        read_until(consumer, fake, 200)
        old = consumer.group_metadata()
        fake.recreate_topic("t")
        fill(fake, "t", 400)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({OTHER: 150}, old)
        with pytest.raises(
            UnknownTopicError, match=r"TxnOffsetCommit of t-0 of group 'g'.* deleted"
        ):
            producer.send_offsets_to_transaction({TP: 200}, old)
        producer.abort_transaction()
        read_until(consumer, fake, 400)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TP: 400}, consumer.group_metadata())
        producer.commit_transaction()
    assert fake.committed("g") == {("t", 0): 400}
    assert fake.requests_of("TxnOffsetCommit")[-1].version == version


def test_a_broker_that_knows_no_ids_yet(cluster: Callable[[str], FakeCluster]) -> None:
    """In an upgrade to Kafka 2.8 only some brokers have topic ids in their metadata: that is no
    recreation, for commits and for a batch that may have been written."""
    fake = cluster("2.8")
    handler = fake.handlers["Metadata"]

    def without_ids(call: Any) -> Any:
        response = handler(call)
        for topic in response.topics:
            topic.topic_id = NULL_UUID
        return response

    with (
        member(fake, "classic", enable_auto_commit=False) as consumer,
        Producer(settings(fake, delivery_timeout_ms=60_000)) as producer,
    ):
        read_until(consumer, fake, 200)
        producer.send("t", b"1", partition=0).result()
        fake.handlers["Metadata"] = without_ids
        consumer.partitions_for("t")
        consumer.commit()
        fake.fault(Drop.AFTER, api="Produce")
        producer.send("t", b"2", partition=0).result()
    assert fake.committed("g")["t", 0] == 200
    assert [row.value for row in fake.log("t", 0).records()][200:] == [b"1", b"2"]


def test_a_position_that_was_never_fetched_from_has_the_id_of_its_topic(
    cluster: Callable[[str], FakeCluster],
) -> None:
    fake = cluster("3.9")
    with Consumer(settings(fake, group_id="g", enable_auto_commit=False)) as consumer:
        consumer.partitions_for("t")
        consumer.assign([TP])
        consumer.seek(TP, 150)
        fake.recreate_topic("t")
        consumer.partitions_for("t")
        with pytest.raises(UnknownTopicError, match="deleted and recreated"):
            consumer.commit()
    assert fake.committed("g") == {}


def test_metadata_is_requested_at_most_once_a_second_for_commits_by_name(
    cluster: Callable[[str], FakeCluster],
) -> None:
    fake = cluster("3.9")
    with member(fake, "classic", enable_auto_commit=False) as consumer:
        read_until(consumer, fake, 200)
        before = len(fake.requests_of("Metadata"))
        deadline = Deadline(950)
        for _ in range(50):
            consumer.commit()
        if not deadline.expired:
            assert len(fake.requests_of("Metadata")) <= before + 1
    assert len(fake.requests_of("OffsetCommit")) >= 50
