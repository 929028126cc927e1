"""What old brokers lack is said with the Kafka that has it, and never left out in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from sparkkafka.client.group.committed_offsets import GroupMetadata
from sparkkafka.errors import CommitFailedError, TransactionError, UnsupportedVersionError
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import settings

TP = TopicPartition("t", 0)


@pytest.fixture
def old(fake_cluster_factory: Any) -> FakeCluster:
    cluster: FakeCluster = fake_cluster_factory(1, kafka_version="2.1")
    cluster.create_topic("t")
    return cluster


@pytest.fixture
def admin(old: FakeCluster) -> Iterator[Admin]:
    with Admin(settings(old)) as admin:
        yield admin


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda admin: admin.list_transactions(), r"ListTransactions needs Kafka 3\.0"),
        (lambda admin: admin.list_transactions(open_for_ms=5), r"open_for_ms needs Kafka 3\.8"),
        (
            lambda admin: admin.list_transactions(open_for_ms=5, transactional_id_pattern="a.*"),
            r"transactional_id_pattern needs Kafka 4\.1",
        ),
        (
            lambda admin: admin.list_consumer_groups(states=["Empty"], types=["classic"]),
            r"a filter of types needs Kafka 3\.8",
        ),
        (
            lambda admin: admin.list_consumer_group_offsets("g", require_stable=True),
            r"require_stable needs Kafka 2\.5",
        ),
        (
            lambda admin: admin.list_consumer_group_offsets("g", [TP], require_stable=True).all(),
            r"require_stable needs Kafka 2\.5",
        ),
        (
            lambda admin: admin.create_topics([NewTopic("new")]).all(),
            r"default of partitions needs Kafka 2\.4 or later: set partitions",
        ),
        (
            lambda admin: admin.create_topics([NewTopic("new", 3)]).all(),
            r"default of replication_factor needs Kafka 2\.4 or later: set replication_factor",
        ),
        (
            lambda admin: admin.describe_transactions(["tid"]).all(),
            r"DescribeTransactions needs Kafka 3\.0",
        ),
        (
            lambda admin: admin.delete_consumer_group_offsets("g", [TP]).all(),
            r"OffsetDelete needs Kafka 2\.4",
        ),
    ],
)
def test_the_kafka_that_is_needed_is_named(
    admin: Admin, act: Callable[[Admin], Any], message: str
) -> None:
    with pytest.raises(UnsupportedVersionError, match=message):
        act(admin)


def test_a_filter_that_a_broker_between_lacks(fake_cluster_factory: Any) -> None:
    with Admin(settings(fake_cluster_factory(1, kafka_version="3.9"))) as admin:
        assert admin.list_transactions(open_for_ms=5).all() == []
        with pytest.raises(UnsupportedVersionError, match=r"pattern needs Kafka 4\.1"):
            admin.list_transactions(transactional_id_pattern="a.*")


def test_topics_with_numbers_or_brokers_of_their_own_are_made(admin: Admin) -> None:
    topics = [NewTopic("a", 2, 1), NewTopic("b", replica_assignment={0: [0]})]
    assert set(admin.create_topics(topics).all()) == {"a", "b"}
    assert admin.list_consumer_group_offsets("g", [TP]).all() == {TP: None}


def test_offsets_of_a_member_are_refused_where_brokers_cannot_check_it(old: FakeCluster) -> None:
    with Producer(settings(old, transactional_id="tid")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        message = r"member of group 'g' .*Kafka 2\.5 or later.*give the group's name, 'g'"
        with pytest.raises(UnsupportedVersionError, match=message):
            producer.send_offsets_to_transaction({TP: 5}, GroupMetadata("g", 1, "member"))
        with pytest.raises(TransactionError, match="can only be aborted"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert old.committed("g") == {}
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TP: 5}, "g")
        producer.commit_transaction()
    assert old.committed("g") == {("t", 0): 5}


KINDS = {"classic": {"heartbeat_interval_ms": 50}, "brokers": {"group_protocol": "consumer"}}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost", "left", "not joined"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_offsets_of_a_consumer_that_is_not_in_the_group_are_never_committed(
    fake_cluster: FakeCluster, kind: dict[str, Any], how: str
) -> None:
    """The coordinator would take them: without a generation they are anybody's."""
    fake_cluster.create_topic("t")
    config = {"group_id": "g", "enable_auto_commit": False, **kind}
    with (
        Consumer(settings(fake_cluster, **config)) as one,
        Producer(settings(fake_cluster, transactional_id="tid")) as producer,
    ):
        lost: list[Any] = []
        one.subscribe(["t"], on_lost=lost.append)
        if how != "not joined":
            while not one.assignment():
                one.poll(0.05)
        before = one.group_metadata()
        assert before.is_outside == (how == "not joined")
        if how == "left":
            one.unsubscribe()
        elif how == "lost":
            fake_cluster.remove_member("g", before.member_id)
            while not lost:
                one.poll(0)
        known = [before] if how == "not joined" else [before, one.group_metadata()]
        producer.init_transactions()
        if how == "lost" and one.group_metadata().generation_id >= 0:
            known.pop()  # it has joined again meanwhile
        for who in known:
            producer.begin_transaction()
            with pytest.raises(Exception, match="not in the group any more") as caught:
                producer.send_offsets_to_transaction({TP: 5}, who)
            assert isinstance(caught.value, CommitFailedError) or who is before
            producer.abort_transaction()
        assert fake_cluster.committed("g") == {}
        if how == "left":
            one.assign([TP])  # nobody's member, as Java's consumer
            producer.begin_transaction()
            producer.send_offsets_to_transaction({TP: 7}, one.group_metadata())
            producer.commit_transaction()
            assert fake_cluster.committed("g") == {("t", 0): 7}
