"""The oldest Kafka that is supported, a real one: 2.1.1 with its ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sparkkafka.client import (
    AclBinding,
    AclBindingFilter,
    Admin,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from sparkkafka.errors import UnsupportedVersionError
from sparkkafka.testing.kafka.jars import ensure_jars
from sparkkafka.testing.kafka.process import UnavailableError
from sparkkafka.testing.pytest_plugin import _not_available
from tests.real.old_kafka import JARS, OldKafka

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def old() -> Iterator[str]:
    try:
        ensure_jars(JARS)
    except UnavailableError as error:
        _not_available("Kafka", str(error))
    with OldKafka() as kafka:
        yield kafka.bootstrap_servers


def test_what_it_lacks_is_said_with_the_kafka_that_has_it(old: str) -> None:
    with Admin({"bootstrap.servers": old}) as admin:
        for message, act in {
            "open_for_ms needs Kafka 3.8": lambda: admin.list_transactions(open_for_ms=1),
            "ListTransactions needs Kafka 3.0": admin.list_transactions,
            "needs Kafka 2.4 or later: set partitions": lambda: admin.create_topics(
                [NewTopic("short")]
            ).all(),
            "resource_type user needs Kafka 3.3": lambda: admin.describe_acls(
                AclBindingFilter("user")
            ),
            "DescribeUserScramCredentials needs Kafka 2.7": admin.describe_user_scram_credentials,
            "require_stable needs Kafka 2.5": lambda: admin.list_consumer_group_offsets(
                "g", require_stable=True
            ),
        }.items():
            with pytest.raises(UnsupportedVersionError, match=message):
                act()


def test_acls(old: str) -> None:
    read = AclBinding("topic", "orders", "User:alice", "READ")
    prefix = AclBinding("group", "ord", "User:bob", "ALL", pattern_type="PREFIXED")
    of_orders = AclBindingFilter("group", "orders", pattern_type="MATCH")
    with Admin({"bootstrap.servers": old}) as admin:
        admin.create_acls([read, prefix]).all()
        assert admin.describe_acls(of_orders) == [prefix]
        found = admin.delete_acls([of_orders, AclBindingFilter(principal="User:alice")])
        assert list(found.all().values()) == [[prefix], [read]]
        assert admin.describe_acls() == []


def test_a_transaction_with_offsets_of_a_group(old: str) -> None:
    tp = TopicPartition("in", 0)
    settings = {"bootstrap.servers": old}
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("in", 1, 1), NewTopic("out", 1, 1)]).all()
    with Producer(settings) as producer:
        sent = producer.send("in", b"v")
        producer.flush()
        assert sent.result().offset == 0
    consumer = Consumer(
        settings | {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    with consumer, Producer(settings | {"transactional.id": "tid"}) as producer:
        consumer.subscribe(["in"])
        end_s = time.monotonic() + 30
        while not (records := consumer.poll(0.5)):
            assert time.monotonic() < end_s
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("out", records[0].value)
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 2\.5 or later"):
            producer.send_offsets_to_transaction({tp: 1}, consumer.group_metadata())
        producer.abort_transaction()
        assert consumer.committed([tp]) == {tp: None}
        producer.begin_transaction()
        producer.send("out", records[0].value)
        producer.send_offsets_to_transaction({tp: 1}, "g")
        producer.commit_transaction()
        # Without require_stable nobody waits for the end of the transaction in the group.
        end_s = time.monotonic() + 60
        while (found := consumer.committed([tp])[tp]) is None:
            assert time.monotonic() < end_s
            time.sleep(0.02)
        assert found.offset == 1
    reader = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    with Consumer(settings | reader) as consumer:
        consumer.assign([TopicPartition("out", 0)])
        values: list[bytes | None] = []
        while not values and time.monotonic() < end_s:
            values += [record.value for record in consumer.poll(0.5)]
        assert values == [b"v"]
