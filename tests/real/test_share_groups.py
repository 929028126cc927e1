"""Share groups on real brokers (KIP-932): beside Java's share consumer, with killed members, with
all that records can be, and what an admin sees."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client import (
    AcknowledgeType,
    Admin,
    ConfigResource,
    Producer,
    ShareConsumer,
    ShareRecord,
    TopicPartition,
)
from sparkkafka.errors import AcknowledgeError, BrokerError
from tests.real.java_clients import newest_java_clients
from tests.real.peers import (
    CODECS,
    Row,
    confluent_read,
    confluent_transaction,
    confluent_write,
    mixed_records,
)

pytestmark = pytest.mark.real

WAIT_S = 60.0
BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"

MEMBER = """
import sys, time
from sparkkafka.client import ShareConsumer
with ShareConsumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2]}) as consumer:
    consumer.subscribe([sys.argv[3]])
    rows = []
    while not rows:
        rows = consumer.poll(1.0)
    print(len(rows), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def servers(kafka_cluster: Any) -> dict[str, str]:
    return {"bootstrap.servers": kafka_cluster.bootstrap_servers}


@pytest.fixture
def admin(servers: dict[str, str]) -> Iterator[Admin]:
    with Admin(servers) as found:
        yield found


def new_group(admin: Admin, **configs: str) -> str:
    """A group that reads from the start."""
    name = f"share-{uuid.uuid4().hex[:8]}"
    changes = {"share.auto.offset.reset": "earliest"}
    changes |= {f"share.{key.replace('_', '.')}": value for key, value in configs.items()}
    admin.incremental_alter_configs({ConfigResource("group", name): changes}).all()
    return name


def new_topic(admin: Admin, partitions: int = 1) -> str:
    name = f"jobs-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions=partitions)
    return name


def fill(servers: dict[str, str], topic: str, count: int) -> None:
    with Producer(servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """Polls until there are so many, accepting as it goes on."""
    found: list[ShareRecord] = []
    end_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} records of {count}"
        found += consumer.poll(0.5)
    return found


def java_consumer(jvm: Any, servers: dict[str, str], group: str, topic: str) -> Any:
    settings = jvm.java.util.Properties()
    for name, value in {
        **servers,
        "group.id": group,
        "key.deserializer": BYTES,
        "value.deserializer": BYTES,
        "max.poll.records": "50",
    }.items():
        settings.put(name, value)
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaShareConsumer(settings)
    topics = jvm.java.util.ArrayList()
    topics.add(topic)
    consumer.subscribe(topics)
    return consumer


def test_beside_javas_share_consumer(admin: Admin, servers: dict[str, str]) -> None:
    """Both work on the same partitions: each record is accepted once, by one of them."""
    topic, group, count = new_topic(admin, 3), new_group(admin), 1_000
    fill(servers, topic, count)
    seen: Counter[bytes] = Counter()
    by_java = by_us = 0
    with newest_java_clients() as jvm:
        java = java_consumer(jvm, servers, group, topic)
        second = jvm.java.time.Duration.ofMillis(300)
        config = servers | {"group.id": group, "max.poll.records": 50}
        with ShareConsumer(config) as ours:
            ours.subscribe([topic])
            end_s = time.monotonic() + WAIT_S
            while sum(seen.values()) < count:
                assert time.monotonic() < end_s, (by_java, by_us)
                rows = ours.poll(0.3)
                assert all(row.delivery_count == 1 for row in rows)
                seen.update(row.value for row in rows if row.value is not None)
                by_us += len(rows)
                records = java.poll(second).iterator()
                while records.hasNext():
                    row = records.next()
                    assert row.deliveryCount().get() == 1
                    seen[bytes(row.value())] += 1
                    by_java += 1
            ours.commit()
            java.commitSync()
            reported = admin.describe_share_group(group)
            assert len(reported.members) == 2
            assert {row.client_id for row in reported.members} >= {"sparkkafka"}
        java.close()
    assert seen == {b"%d" % number: 1 for number in range(count)}
    assert by_us > 100
    assert by_java > 100
    with ShareConsumer(config) as late:
        late.subscribe([topic])
        assert late.poll(2) == [], "all is accepted"


def test_all_that_records_can_be(admin: Admin, servers: dict[str, str]) -> None:
    topic, group = new_topic(admin), new_group(admin)
    bootstrap = servers["bootstrap.servers"]
    for codec in CODECS:
        confluent_write(bootstrap, topic, mixed_records(100), compression_type=codec, linger_ms=50)
    with ShareConsumer(servers | {"group.id": group}) as consumer:
        consumer.subscribe([topic])
        rows = take(consumer, 500)
    seen = [
        Row(
            row.partition, row.offset, row.timestamp_type, row.timestamp_ms, row.key, row.value,
            row.headers or None,
        )
        for row in rows
    ]  # fmt: skip
    assert seen == confluent_read(bootstrap, topic, 1)


def test_transactions(admin: Admin, servers: dict[str, str]) -> None:
    """With share.isolation.level=read_committed, and markers never keep a group from its end."""
    topic, group = new_topic(admin), new_group(admin, isolation_level="read_committed")
    rows = mixed_records(30)
    batches = [(True, rows[:10]), (False, rows[10:20]), (True, rows[20:])]
    confluent_transaction(servers["bootstrap.servers"], topic, "t", batches)
    with ShareConsumer(servers | {"group.id": group}) as consumer:
        consumer.subscribe([topic])
        found = take(consumer, 20)
        assert [row.value for row in found] == [row.value for row in rows[:10] + rows[20:]]
        end_s = time.monotonic() + WAIT_S
        while True:
            assert consumer.poll(0.2) == []
            consumer.commit()
            offset = admin.list_share_group_offsets(group)[TopicPartition(topic, 0)]
            if offset is not None and offset.lag == 0:
                break
            assert time.monotonic() < end_s, offset


def test_a_killed_members_records_come_again(admin: Admin, servers: dict[str, str]) -> None:
    topic, group = new_topic(admin), new_group(admin)
    fill(servers, topic, 100)
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, servers["bootstrap.servers"], group, topic],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    with ShareConsumer(servers | {"group.id": group}) as consumer:
        consumer.subscribe([topic])
        rows = take(consumer, 100)
        consumer.commit()
    assert sorted(int(row.value or b"") for row in rows) == list(range(100))
    assert max(row.delivery_count for row in rows) == 2


def test_explicit_kinds_and_the_limit_of_deliveries(admin: Admin, servers: dict[str, str]) -> None:
    topic, group = new_topic(admin), new_group(admin)
    fill(servers, topic, 3)
    config = servers | {"group.id": group, "share.acknowledgement.mode": "explicit"}
    counts: Counter[bytes] = Counter()
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        end_s = time.monotonic() + WAIT_S
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < end_s, counts
            rows = consumer.poll(0.5)
            quiet = 0 if rows or not counts else quiet + 1
            for row in rows:
                counts[row.value or b""] += 1
                kind = {
                    b"0": AcknowledgeType.ACCEPT,
                    b"1": AcknowledgeType.RELEASE,
                    b"2": AcknowledgeType.REJECT,
                }[row.value or b""]
                consumer.acknowledge(row, kind)
            consumer.commit()
    # group.share.delivery.count.limit is 5.
    assert counts == {b"0": 1, b"1": 5, b"2": 1}


def test_a_limit_of_records(admin: Admin, servers: dict[str, str]) -> None:
    topic, group = new_topic(admin), new_group(admin)
    with Producer(servers) as producer:
        producer.send_many(topic, [b"%d" % n for n in range(100)])  # one batch
    config = servers | {
        "group.id": group,
        "max.poll.records": 7,
        "share.acquire.mode": "record_limit",
    }
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        sizes = []
        while sum(sizes) < 100:
            rows = take(consumer, 1)
            sizes.append(len(rows))
    assert max(sizes) == 7


def test_a_lock_that_has_passed(admin: Admin, servers: dict[str, str]) -> None:
    topic = new_topic(admin)
    group = new_group(admin, record_lock_duration_ms="2000")
    fill(servers, topic, 5)
    with ShareConsumer(servers | {"group.id": group}) as consumer:
        consumer.subscribe([topic])
        take(consumer, 5)
        assert consumer.acquisition_lock_timeout_ms == 2_000
        time.sleep(2.5)
        with pytest.raises(AcknowledgeError, match="had passed since they were handed out"):
            consumer.commit()
        assert {row.delivery_count for row in take(consumer, 5)} == {2}
        consumer.commit()


def test_a_lock_that_is_renewed(admin: Admin, servers: dict[str, str]) -> None:
    topic = new_topic(admin)
    group = new_group(admin, record_lock_duration_ms="3000")
    fill(servers, topic, 5)
    config = servers | {"group.id": group, "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(config) as consumer, ShareConsumer(config) as other:
        consumer.subscribe([topic])
        rows = take(consumer, 5)
        other.subscribe([topic])
        for _ in range(3):  # each 1.2 s of a lock of 3 s
            assert other.poll(1.2) == []
            for row in rows:
                slow = row.offset in (1, 3)
                consumer.acknowledge(row, AcknowledgeType.RENEW if slow else AcknowledgeType.ACCEPT)
            rows = take(consumer, 2)
            assert [(row.offset, row.delivery_count) for row in rows] == [(1, 1), (3, 1)]
        for row in rows:
            consumer.acknowledge(row)
        consumer.commit()
        assert other.poll(1.0) == []


def test_what_an_admin_does(admin: Admin, servers: dict[str, str]) -> None:
    topic, group = new_topic(admin, 2), new_group(admin)
    fill(servers, topic, 50)
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with ShareConsumer(servers | {"group.id": group, "client.rack": "r1"}) as consumer:
        consumer.subscribe([topic])
        take(consumer, 50)
        consumer.commit()
        (listed,) = [row for row in admin.list_share_groups(states=["Stable"])
                     if row.group_id == group]  # fmt: skip
        assert (listed.type, listed.protocol_type, listed.state) == ("share", "share", "Stable")
        assert group not in {row.group_id for row in admin.list_consumer_groups()}
        (either,) = [row for row in admin.list_groups(types=["share"]) if row.group_id == group]
        assert either == listed
        reported = admin.describe_share_group(group)
        (one,) = reported.members
        assert (reported.state, reported.assignor) == ("Stable", "simple")
        assert (one.assignment, one.topics, one.rack_id) == (set(tps), {topic}, "r1")
        with pytest.raises(BrokerError, match="the group has members: stop its consumers"):
            admin.alter_share_group_offsets(group, {tps[0]: 0}).all()
        with pytest.raises(BrokerError, match="the group has members: stop its consumers"):
            admin.delete_share_group_offsets(group, [topic]).all()
        with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
            admin.delete_share_groups([group]).all()
    assert admin.describe_share_group(group).members == ()
    found = admin.list_share_group_offsets(group)
    assert {tp: row.lag for tp, row in found.values_by_item.items() if row} == dict.fromkeys(tps, 0)
    ends = admin.list_share_group_offsets(group, [*tps, TopicPartition("nowhere", 0)])
    assert ends.values_by_item.get(TopicPartition("nowhere", 0)) is None
    admin.alter_share_group_offsets(group, {tps[0]: 1}).all()
    changed = admin.list_share_group_offsets(group)[tps[0]]
    assert changed is not None
    assert changed.start_offset == 1
    admin.delete_share_group_offsets(group, [topic]).all()
    assert len(admin.list_share_group_offsets(group)) == 0
    admin.delete_share_groups([group]).all()
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        admin.describe_share_group(group)
    assert group not in {row.group_id for row in admin.list_share_groups()}


def test_a_group_of_another_kind(admin: Admin, servers: dict[str, str]) -> None:
    topic, group = new_topic(admin), f"classic-{uuid.uuid4().hex[:8]}"
    admin.alter_consumer_group_offsets(group, {TopicPartition(topic, 0): 0}).all()
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        admin.describe_share_group(group)
    with (
        ShareConsumer(servers | {"group.id": group}) as consumer,
        pytest.raises(BrokerError, match=group),
    ):
        consumer.subscribe([topic])
        take(consumer, 1)
