"""`lag` without a group, on fake brokers; the lag of one group is in test_cli_errors.py."""

from __future__ import annotations

import pytest

from sparkkafka.client import Consumer, OffsetAndMetadata, Producer, TopicPartition
from sparkkafka.client.cluster.request_driver import ApiHandler
from sparkkafka.errors import ErrorCode
from sparkkafka.spark.decision_text import Decision, WriterNames


@pytest.fixture
def groups(fake, admin):
    """Groups that are 5 and 7 behind, in two topics, one without members that has read all, and one
    with a member and no offsets."""
    for topic in ("t", "u"):
        fake.create_topic(topic, partitions=2)
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for number in range(20):
            producer.send(("t", "u")[number % 2], b"", partition=number // 2 % 2)
    for group, offsets in {
        "audit": {("t", 0): 0},
        "billing": {("t", 0): 3, ("t", 1): 0},
        "done": {("u", 0): 5},
    }.items():
        committed = {TopicPartition(*tp): offset for tp, offset in offsets.items()}
        admin.alter_consumer_group_offsets(group, committed).all()
    settings = {
        "bootstrap.servers": fake.bootstrap_servers,
        "group.id": "new",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    with Consumer(settings) as consumer:
        consumer.subscribe(["u"])
        assert consumer.poll(timeout_s=60)
        yield


def test_all_groups_with_the_largest_lag_first(groups, command) -> None:
    lines = command("lag").out.splitlines()
    assert [line.split() for line in lines] == [
        ["GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG"],
        ["billing", "Empty", "0", "2", "7"],
        ["audit", "Empty", "0", "1", "5"],
        ["done", "Empty", "0", "1", "0"],
        ["new", "Stable", "1", "0", "-"],
        ["4", "groups:", "12", "behind", "in", "all"],
    ]


def test_all_groups_as_json(groups, command) -> None:
    rows = command("lag", "--json").json
    assert [(row["group"], row["lag"]) for row in rows] == [
        ("billing", 7),
        ("audit", 5),
        ("done", 0),
        ("new", None),
    ]
    assert rows[0] == {
        "group": "billing",
        "state": "Empty",
        "members": 0,
        "partitions": 2,
        "lag": 7,
        "gone": 0,
        "unknown": 0,
    }


def test_offsets_that_retention_deleted_and_unknown_ends(fake, groups, command, admin) -> None:
    admin.delete_records({TopicPartition("t", 1): 2}).all()
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    fake.fault(denied, api="ListOffsets", topic="u", times=None)
    run = command("lag", "--json", code=1)
    rows = {row["group"]: row for row in run.json}
    assert rows["billing"]["gone"] == 2
    assert (rows["done"]["lag"], rows["done"]["unknown"]) == (None, 1)
    assert "TOPIC_AUTHORIZATION_FAILED" in run.error


def test_a_group_that_may_not_be_read_is_an_error_beside_the_others(fake, groups, command) -> None:
    fake.fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, api="OffsetFetch")
    run = command("lag", code=1)
    assert "GROUP_AUTHORIZATION_FAILED" in run.err


def test_no_groups(command) -> None:
    assert command("lag").out == "no consumer groups\n"
    assert command("lag", "--json").json == []


def decision_offsets(tp: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what an exactly-once query commits as its decision about a micro-batch."""
    decision = Decision(
        query_id="q", run="r", batch_id=3, number=4, application="host", transactions=()
    )
    (text,) = decision.texts()
    return {tp: OffsetAndMetadata(0, metadata=text)}


def test_decisions_of_exactly_once_queries_are_no_lag(groups, command, admin) -> None:
    name = WriterNames("sparkkafka-q", "r").decisions
    admin.alter_consumer_group_offsets(name, decision_offsets(TopicPartition("t", 0))).all()
    # A consumer may have a name like it.
    admin.alter_consumer_group_offsets("loan-decisions", {TopicPartition("t", 0): 4}).all()
    rows = {row["group"]: row["lag"] for row in command("lag", "--json").json}
    assert rows == {"billing": 7, "audit": 5, "loan-decisions": 1, "done": 0, "new": None}
    document = command("top", "--json", "--every", "500ms").json
    assert {row["group"]: row["lag"] for row in document["groups"]} == rows
    assert (document["totals"]["lag"], document["totals"]["groups"]) == (13, 5)
    assert command("lag", name, "--no-ages", "--json").json["lag"] == 5  # it is named


def test_the_offsets_of_a_deleted_topic_are_not_waited_for(
    fake, groups, command, admin, monkeypatch
) -> None:
    fake.create_topic("gone", partitions=1)
    offsets = {TopicPartition("gone", 0): 1, TopicPartition("t", 1): 1}
    admin.alter_consumer_group_offsets("past", offsets).all()
    # The coordinator has not deleted the offsets yet.
    del fake.state.topics["gone"], fake.state.topics["t"]
    fake.create_topic("t", partitions=1)  # now it has fewer partitions
    monkeypatch.setattr(ApiHandler, "grace_ms", 90_000)  # longer than --timeout
    run = command("lag", "--json")
    rows = {row["group"]: row for row in run.json}
    assert (rows["past"]["lag"], rows["past"]["unknown"]) == (None, 2)
    assert rows["done"]["lag"] == 0
    run = command("lag", "past", code=1)
    assert "gone-0: error 3 UNKNOWN_TOPIC_OR_PARTITION" in run.err
    assert "partition 1 of topic t does not exist: it has partitions 0 to 0" in run.err
