"""The recipe moves a topic: the same records, and consumers that go on where they were."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Admin, Consumer, Producer, TopicPartition
from tests.client.support import commit_offsets, open_cluster
from tests.docs import snippets

PAGE = "docs/recipes/move-topic.md"
T_MS = 1_700_000_000_000
COUNT = 40


def fill(fake: Any, topic: str) -> None:
    """Two partitions with records whose times repeat, and an empty one; the first 5 are gone."""
    fake.create_topic(topic, partitions=3)
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for n in range(2 * COUNT):
            producer.send(
                topic,
                None if n % 10 == 4 else b"%d" % n,
                key=b"k%d" % (n % 7),
                headers={"n": b"%d" % n} if n % 3 else None,
                partition=n % 2,
                timestamp_ms=T_MS + n // 6,
            )
    fake.advance_log_start(topic, 0, 5)


def read(servers: str, topic: str, group: str | None = None) -> dict[int, list[Any]]:
    """The records by partition: all of them, or those that a group has not read."""
    settings = {"bootstrap.servers": servers, "isolation.level": "read_committed"}
    records: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    with Consumer(settings | ({"group.id": group} if group else {})) as consumer:
        partitions = [TopicPartition(topic, number) for number in records]
        consumer.assign(partitions)
        if group is None:
            consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for record in consumer.poll(timeout_s=10):
                records[record.partition].append(
                    (record.key, record.value, tuple(record.headers or ()), record.timestamp_ms)
                )
    return records


@pytest.mark.real
@pytest.mark.spark
def test_move_topic(
    spark: Any, fake_cluster: Any, kafka_cluster: Any, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    old, new = fake_cluster.bootstrap_servers, kafka_cluster.bootstrap_servers
    topic = "orders-to-move"  # no other test has it
    fill(fake_cluster, topic)
    P0, P1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with open_cluster(fake_cluster) as cluster:
        commit_offsets(cluster, "shipping", {P0: 13, P1: COUNT})  # no offset in partition 2
    text = snippets.page(PAGE).replace("localhost:9093", new).replace("/data/", f"{tmp_path}/")
    text = text.replace('"orders"', f'"{topic}"').replace(" orders", f" {topic}")
    monkeypatch.setattr(snippets, "page", lambda name: text)
    lines = [
        line for kind, lines in snippets.blocks(text) if kind == "sh" for line in lines.split("\n")
    ]
    commands = [shlex.split(line.replace("localhost:9092", old))[1:] for line in lines if line]
    describe, create, reset, copy = commands
    assert main(describe) == main(create) == 0
    snippets.run(PAGE, capsys, old)
    expected = read(old, topic)
    assert [len(records) for records in expected.values()] == [COUNT - 5, COUNT, 0]
    assert read(new, topic) == expected

    # The time of the first unread record is that of the two before it.
    unread = read(new, topic, "shipping")
    first_time = expected[0][13 - 5][3]
    assert unread[0] == [record for record in expected[0] if record[3] >= first_time]
    assert unread[0][-(COUNT - 13) :] == expected[0][13 - 5 :]
    assert unread[1] == unread[2] == []

    assert main(reset) == 0
    assert read(new, topic, "billing") == {0: [], 1: [], 2: []}

    copy[copy.index(topic) + 1] = f"{topic}-again"
    kafka_cluster.create_topic(f"{topic}-again", partitions=3)
    assert main(copy) == 0
    assert read(new, f"{topic}-again") == expected
    with Admin({"bootstrap.servers": new}) as admin:
        admin.delete_topics([topic, f"{topic}-again"]).all()
