"""Consumer on a real broker: what others and we wrote, codecs, transactions, compaction, groups."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from sparkkafka.client import Admin, NewTopic
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.consumer.record import Record as OurRecord
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import NoOffsetError, UnknownTopicError
from tests.client.support import write
from tests.real.peers import (
    CODECS,
    WAIT_S,
    Row,
    confluent_read,
    confluent_transaction,
    confluent_write,
    mixed_records,
)

pytestmark = pytest.mark.real


def reading(cluster: Any, topic: str, partitions: int = 1, **config: Any) -> Consumer:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
    opened = Consumer(settings | {name.replace("_", "."): value for name, value in config.items()})
    opened.assign([TopicPartition(topic, number) for number in range(partitions)])
    return opened


def read_to_end(source: Consumer) -> list[OurRecord]:
    """Everything up to the end offsets of now."""
    found: list[OurRecord] = []
    ends = source.end_offsets(source.assignment())
    until_s = time.monotonic() + WAIT_S
    while any(source.position(tp) < end for tp, end in ends.items()):
        assert time.monotonic() < until_s
        found += source.poll(1.0)
    return found


def rows(records: list[OurRecord]) -> list[Row]:
    """As `confluent_read` has them."""
    return sorted(
        (
            Row(
                record.partition,
                record.offset,
                record.timestamp_type,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers or None,
            )
            for record in records
        ),
        key=lambda row: row[:2],
    )


def test_all_codecs_of_others_and_our_own(kafka_cluster, new_topic):
    topic = new_topic(partitions=2)
    servers = kafka_cluster.bootstrap_servers
    for number, codec in enumerate(CODECS):
        confluent_write(servers, topic, mixed_records(100), number % 2, compression_type=codec)
        write(servers, topic, 200, partitions=2, compression_type=codec)
    theirs = confluent_read(servers, topic, 2)
    assert len(theirs) == 1_500
    with reading(kafka_cluster, topic, 2) as source:
        assert rows(read_to_end(source)) == theirs
        source.seek_to_beginning()
        tables = []
        while sum(table.num_rows for table in tables) < 1_500:
            tables.append(source.poll_arrow(WAIT_S))
            assert tables[-1].num_rows
        values = sorted(
            (row["partition"], row["offset"], row["key"], row["value"])
            for table in tables
            for row in table.to_pylist()
        )
        assert values == [(row.partition, row.offset, row.key, row.value) for row in theirs]
    with reading(kafka_cluster, topic, 2, max_partition_fetch_bytes=2_000) as source:
        assert rows(read_to_end(source)) == theirs


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_transactions(kafka_cluster, new_topic, isolation):
    topic = new_topic()
    some = mixed_records(30)
    batches = [(True, some[:10]), (False, some[10:20]), (True, some[20:25]), (False, some[25:])]
    confluent_transaction(kafka_cluster.bootstrap_servers, topic, f"tx-{uuid.uuid4()}", batches)
    theirs = confluent_read(kafka_cluster.bootstrap_servers, topic, isolation=isolation)
    with reading(kafka_cluster, topic, isolation_level=isolation) as source:
        found = read_to_end(source)
        assert rows(found) == theirs
        # Behind the last marker, which nobody sees.
        (end,) = source.end_offsets(source.assignment()).values()
        assert (end, source.lag()) == (34, {TopicPartition(topic, 0): (34, 34, 0)})


def test_offsets_of_a_group_are_shared_with_others(kafka_cluster, new_topic):
    topic, group = new_topic(), f"group-{uuid.uuid4().hex[:12]}"
    servers = kafka_cluster.bootstrap_servers
    write(servers, topic, 100)
    tp = TopicPartition(topic, 0)
    with reading(kafka_cluster, topic, group_id=group, max_poll_records=10) as source:
        assert len(source.poll(WAIT_S)) == 10
        source.commit()
        assert source.committed([tp])[tp] == (10, "", 0)
        assert len(source.poll(WAIT_S)) == 10
    theirs = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        (found,) = theirs.committed([confluent_kafka.TopicPartition(topic, 0)], WAIT_S)
        assert found.offset == 20  # close committed what the last poll returned
        theirs.commit(
            offsets=[confluent_kafka.TopicPartition(topic, 0, 70, "by another")],
            asynchronous=False,
        )
    finally:
        theirs.close()
    with reading(kafka_cluster, topic, group_id=group) as source:
        row = source.committed([tp])[tp]
        assert row is not None
        # confluent-kafka adds a byte of value 0 to the text.
        assert (row.offset, row.metadata.rstrip("\0")) == (70, "by another")
        assert source.poll(WAIT_S)[0].offset == 70


def test_deleted_records_and_times(kafka_cluster, new_topic):
    topic = new_topic()
    records = [row._replace(timestamp_ms=1_000 * n) for n, row in enumerate(mixed_records(50))]
    confluent_write(kafka_cluster.bootstrap_servers, topic, records)
    tp = TopicPartition(topic, 0)
    admin = confluent_kafka.admin.AdminClient(
        {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    )
    for future in admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 20)]).values():
        future.result(WAIT_S)
    with reading(kafka_cluster, topic) as source:
        assert source.beginning_offsets([tp]) == {tp: 20}
        found = source.offsets_for_times({tp: 29_500})[tp]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (30, 30_000)
        source.seek(tp, 5)  # out of range: on from the beginning
        assert read_to_end(source)[0].offset == 20


def test_assign_and_seek_say_where_to_begin(kafka_cluster, new_topic):
    topic = new_topic(partitions=2)
    write(kafka_cluster.bootstrap_servers, topic, 200, partitions=2, per_send=1)
    first, second = (TopicPartition(topic, number) for number in (0, 1))
    with Consumer({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as source:
        source.assign({first: 90, second: OffsetSpec.latest()})
        assert [source.position(tp) for tp in (first, second)] == [90, 100]
        assert {row.partition for row in read_to_end(source)} == {0}
        source.seek(second, OffsetSpec.max_timestamp())
        assert 0 <= source.position(second) < 100
        source.seek(second, -2)
        assert source.poll(WAIT_S)[0].offset == 0
        source.seek(second, OffsetSpec.earliest_local())
        assert source.position(second) == 0
        source.seek(second, OffsetSpec.latest_tiered())
        with pytest.raises(NoOffsetError, match="no tiered storage"):
            source.position(second)
        source.seek(second, 0)
        found = source.offsets_for(topic)
        assert found == {first: (0, 100), second: (0, 100)}
        assert found == {
            tp: (source.beginning_offsets([tp])[tp], source.end_offsets([tp])[tp]) for tp in found
        }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_asynchronous_commits_are_in_order_and_reported(kafka_cluster, new_topic, protocol):
    topic, group = new_topic(), uuid.uuid4().hex
    tp = TopicPartition(topic, 0)
    servers = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    reported: list[tuple[int, Exception | None]] = []
    with Consumer(servers | {"group.protocol": protocol, "enable.auto.commit": False}) as source:
        source.subscribe([topic])
        until_s = time.monotonic() + WAIT_S
        while not source.assignment():
            assert time.monotonic() < until_s
            source.poll(0.2)
        for offset in range(1, 101):
            source.commit(
                {tp: offset},
                asynchronous=True,
                callback=lambda offsets, error: reported.append((offsets[tp].offset, error)),
            )
        source.commit({tp: 7})
        assert reported == [(offset, None) for offset in range(1, 101)]
        committed = source.committed([tp])[tp]
        assert committed is not None
        assert committed.offset == 7
        source.commit({tp: 8}, asynchronous=True)
    with Consumer(servers) as source:
        committed = source.committed([tp])[tp]
        assert committed is not None
        assert committed.offset == 8


def test_a_recreated_topic_does_not_get_the_offset_of_the_old_one(kafka_cluster, new_topic):
    topic, group = new_topic(), uuid.uuid4().hex
    write(kafka_cluster, topic, 20)
    servers = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    settings = servers | {"group.protocol": "consumer", "auto.offset.reset": "earliest"}

    def read(source: Consumer, count: int) -> list[int]:
        found: list[int] = []
        until_s = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < until_s
            found += [record.offset for record in source.poll(0.2)]
        return found

    with (
        Consumer(settings | {"enable.auto.commit": False}) as source,
        Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as admin,
    ):
        source.subscribe([topic])
        read(source, 20)
        source.commit()
        admin.delete_topics([topic]).all()
        with pytest.raises(UnknownTopicError, match=topic):
            source.commit()
        admin.create_topics([NewTopic(topic, 1, 1)]).all()
        write(kafka_cluster, topic, 40)
        with pytest.raises(UnknownTopicError, match="deleted and recreated"):
            source.commit()
        with Producer(servers_of(servers) | {"transactional.id": group}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            offsets = {TopicPartition(topic, 0): 20}
            with pytest.raises(UnknownTopicError, match="deleted and recreated"):
                producer.send_offsets_to_transaction(offsets, source.group_metadata())
            producer.abort_transaction()
    with Consumer(settings) as source:
        source.subscribe([topic])
        assert read(source, 40) == list(range(40))


def test_a_topic_is_made_on_first_use_where_both_allow_it(kafka_cluster_factory):
    kafka = kafka_cluster_factory(1, {"auto.create.topics.enable": "true"})
    servers = {"bootstrap.servers": kafka.bootstrap_servers, "auto.offset.reset": "earliest"}
    auto = {"allow.auto.create.topics": True}
    with Producer(servers_of(servers)) as producer:
        with pytest.raises(UnknownTopicError, match="written"):
            producer.send("written", b"0").result(WAIT_S)
    with Producer(servers_of(servers) | auto) as producer:
        assert producer.send("written", b"1").result(WAIT_S).offset == 0
    for protocol in ("classic", "consumer"):
        group = {"group.id": protocol, "group.protocol": protocol}
        with Consumer(servers | group) as source:  # without the setting: it waits
            source.subscribe([f"read-{protocol}"])
            assert not source.poll(1.0)
            assert f"read-{protocol}" not in source.list_topics()
        with Consumer(servers | group | auto) as source:
            source.subscribe([f"read-{protocol}", "written"])
            until_s = time.monotonic() + WAIT_S
            rows = []
            while len(source.assignment()) < 2 or not rows:
                assert time.monotonic() < until_s
                rows += source.poll(0.2)
            assert [row.value for row in rows] == [b"1"]
            assert f"read-{protocol}" in source.list_topics()


def servers_of(config: dict[str, Any]) -> dict[str, Any]:
    return {"bootstrap.servers": config["bootstrap.servers"]}
