"""Names of topics that no request can hold: an immediate error, and none for the other topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.errors import BrokerError, EncodeError, OptionError
from tests.client.support import settings

BAD = {"not UTF-8": "\udc80", "too long": "x" * 40_000, "too many bytes": "ä" * 20_000}
ALL_BAD = pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))

GOOD = TopicPartition("good", 0)


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("good", partitions=1)
    return fake_cluster


@ALL_BAD
def test_a_name_that_cannot_be_sent_is_shortened_in_the_error(bad):
    with pytest.raises(OptionError, match=r"is not a valid topic name.*249") as caught:
        checked_topic(bad)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()  # it can be printed


@pytest.mark.parametrize("name", ["t", "x" * 32_767, "ä" * 16_383, "no good!", ".."])
def test_what_can_be_sent_is_for_brokers_to_judge(name):
    assert checked_topic(name) == name


@ALL_BAD
def test_records_beside_it_are_sent(fake, bad):
    with Producer(settings(fake, linger_ms=50)) as producer:
        first = producer.send("good", b"1")
        with pytest.raises(OptionError, match="not a valid topic name"):
            producer.send(bad, b"x")
        with pytest.raises(OptionError, match="not a valid topic name"):
            producer.partitions_for(bad)
        with pytest.raises(OptionError, match="not a valid topic name"):
            producer.send_table(pa.table({"value": ["x"]}), bad)
        second = producer.send("good", b"2")
        assert [first.result(10).offset, second.result(10).offset] == [0, 1]


def test_a_table_with_such_a_name_is_not_sent_at_all(fake):
    with Producer(settings(fake)) as producer:
        table = pa.table({"value": ["1", "x"], "topic": ["good", BAD["too long"]]})
        with pytest.raises(EncodeError, match=r"row of the table: .*not a valid topic name"):
            producer.send_table(table)
        assert producer.send("good", b"1").result(10).offset == 0


def test_a_name_that_brokers_refuse_fails_its_own_records(fake):
    with Producer(settings(fake, linger_ms=50)) as producer:
        first, second = producer.send("good", b"1"), producer.send("b" * 250, b"x")
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            second.result(10)
        assert first.result(10).offset == 0


@pytest.mark.parametrize(
    "bad", [*(TopicPartition(name, 0) for name in BAD.values()), TopicPartition("good", 1 << 31)]
)
def test_a_transaction_goes_on(fake, bad):
    with Producer(settings(fake, transactional_id="x")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        handle = producer.send("good", b"1")
        with pytest.raises(OptionError):
            producer.send_offsets_to_transaction({bad: 1}, "g")
        if bad.topic != "good":
            with pytest.raises(OptionError):
                producer.send(bad.topic, b"x")
        producer.commit_transaction()
        assert handle.result(0).offset == 0


@ALL_BAD
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_subscription_says_so_at_once_and_the_one_before_stays(fake, bad, protocol):
    given = {"group_id": "g", "group_protocol": protocol, "auto_offset_reset": "earliest"}
    with Producer(settings(fake)) as producer, Consumer(settings(fake, **given)) as source:
        producer.send("good", b"1").result(10)
        source.subscribe(["good"])
        with pytest.raises(OptionError, match="not a valid topic name"):
            source.subscribe(["good", bad])
        assert source.subscription() == {"good"}
        assert [record.value for record in source.poll(10)] == [b"1"]


CALLS: dict[str, Callable[[Consumer, TopicPartition], Any]] = {
    "assign": lambda source, tp: source.assign([GOOD, tp]),
    "commit": lambda source, tp: source.commit({GOOD: 1, tp: 1}),
    "committed": lambda source, tp: source.committed([tp]),
    "end_offsets": lambda source, tp: source.end_offsets([tp]),
    "offsets_for_times": lambda source, tp: source.offsets_for_times({tp: 0}),
}


@pytest.mark.parametrize(
    "bad", [*(TopicPartition(name, 0) for name in BAD.values()), TopicPartition("good", 1 << 31)]
)
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_consumer_says_so_at_once(bad, call):
    source = Consumer(settings("unused:1", group_id="g"))
    with pytest.raises(OptionError):
        call(source, bad)
    if bad.topic != "good":
        with pytest.raises(OptionError):
            source.partitions_for(bad.topic)
    assert source.assignment() == frozenset()
    source.close()


@ALL_BAD
def test_admin_answers_for_the_others(fake, bad):
    with Admin(settings(fake)) as admin:
        found = admin.list_offsets(
            {tp: OffsetSpec.latest() for tp in (GOOD, TopicPartition(bad, 0))}
        )
        assert found[GOOD].offset == 0
        (error,) = found.errors.values()
        assert isinstance(error, OptionError)
        deleted = admin.delete_records({GOOD: 0, TopicPartition(bad, 0): 0})
        assert deleted[GOOD] == 0
        assert isinstance(deleted.errors[TopicPartition(bad, 0)], OptionError)
        described = admin.describe_topics(["good", bad])
        assert described["good"].name == "good"
        assert set(described.errors) == {bad}
