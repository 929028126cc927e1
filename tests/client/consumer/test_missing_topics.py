"""Topics that do not exist: what waits for them, what reports them, and what creates them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, Producer, ShareConsumer
from sparkkafka.client.cluster import topic_lookup
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import missing_topics_text
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import (
    parse_admin_settings,
    parse_consumer_settings,
    parse_producer_settings,
)
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError
from sparkkafka.protocol.messages import MetadataRequest, MetadataRequestTopic
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import fill, log_values, open_cluster, settings

WAIT_S = 20.0
AUTO = {"allow.auto.create.topics": True}


def subscribed(cluster: Any, protocol: str, *topics: str, **more: Any) -> Consumer:
    given = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
    source = Consumer(settings(cluster, **given) | more)
    source.subscribe(topics)
    return source


def poll_until(source: Consumer, done: Callable[[], bool]) -> list[Any]:
    found: list[Any] = []
    until_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < until_s
        found += source.poll(0.1)
    return found


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    rows = [row.getMessage() for row in caplog.records if row.levelno == logging.WARNING]
    return [row for row in rows if "(needs DESCRIBE" in row]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_subscription_waits_for_what_may_come_and_says_so(
    fake_cluster: FakeCluster,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 200)
    monkeypatch.setattr(topic_lookup, "MISSING_TOPICS_LOOKUP_S", 0.3)
    fake_cluster.create_topic("here")
    fill(fake_cluster, "here", 5)
    with subscribed(fake_cluster, protocol, "here", "later") as source:
        found = poll_until(source, lambda: len(warnings(caplog)) >= 3)
        assert [row.topic for row in found] == ["here"] * 5
        assert all("topic later does not exist (yet)" in row for row in warnings(caplog))
        creating = [
            row.message.allow_auto_topic_creation for row in fake_cluster.requests_of("Metadata")
        ]
        assert not any(creating)
        fake_cluster.create_topic("later")
        fill(fake_cluster, "later", 3)
        late: list[Any] = []
        until_s = time.monotonic() + WAIT_S
        while len(late) < 3:
            assert time.monotonic() < until_s
            late += source.poll(0.2)
        caplog.clear()
        source.poll(1.0)
        assert not warnings(caplog)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_subscription_creates_topics_if_the_setting_says_so(
    fake_cluster_factory: Any, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = fake_cluster_factory(1, configs={"auto.create.topics.enable": "true"})
    with subscribed(cluster, protocol, "new", **AUTO) as source:
        poll_until(source, lambda: bool(source.assignment()))
        assert {tp.topic for tp in source.assignment()} == {"new"}
        assert not warnings(caplog)
        assert source.partitions_for("asked")[0].topic == "asked"
        source.unsubscribe()
        source.assign([("assigned", 0)])  # type: ignore[list-item]
        assert source.position(("assigned", 0)) == 0  # type: ignore[arg-type]


def test_a_share_consumer_creates_topics_if_the_setting_says_so(fake_cluster_factory: Any) -> None:
    configs = {"auto.create.topics.enable": "true"}
    cluster = fake_cluster_factory(1, kafka_version="4.2", configs=configs)
    with ShareConsumer(settings(cluster, group_id="g") | AUTO) as source:
        source.subscribe(["new"])
        poll_until(source, lambda: bool(source.assignment()))  # type: ignore[arg-type]
        assert {tp.topic for tp in source.assignment()} == {"new"}


@pytest.mark.parametrize("protocol", ["classic", "consumer", "share"])
def test_a_name_that_no_topic_can_have_is_an_error(
    fake_cluster_factory: Any, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Java. With a protocol in which brokers assign partitions, only a lookup shows it."""
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 200)
    cluster = fake_cluster_factory(1, kafka_version="4.2")
    cluster.create_topic("t")
    source: Any
    if protocol == "share":
        source = ShareConsumer(settings(cluster, group_id="g"))
        source.subscribe(["t", "no topic!"])
    else:
        source = subscribed(cluster, protocol, "t", "no topic!")
    with source, pytest.raises(BrokerError, match=r"INVALID_TOPIC_EXCEPTION .* no topic!"):
        poll_until(source, lambda: False)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_broker_s_own_failure_does_not_end_a_member(
    fake_cluster_factory: Any,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 200)
    cluster = fake_cluster_factory(1, kafka_version="4.2")
    cluster.create_topic("t", partitions=1)
    fill(cluster, "t", 3)
    with open_cluster(cluster) as asking:
        failure = asking.call(MetadataRequest(topics=[MetadataRequestTopic(name="u")]))
    failure.topics[0].error_code = ErrorCode.UNKNOWN_SERVER_ERROR
    with subscribed(cluster, protocol, "t", "u") as source:
        found = poll_until(source, lambda: bool(source.assignment()))
        cluster.fault(lambda _: failure, api="Metadata", topic="u", times=None)
        found += poll_until(source, lambda: "it is looked up again" in caplog.text)
        fill(cluster, "t", 1)
        found += poll_until(source, lambda: source.position(TopicPartition("t", 0)) == 4)
    assert len(found) == 4
    assert "UNKNOWN_SERVER_ERROR from Metadata of topic u" in caplog.text


def test_a_share_group_s_missing_topic_is_reported(
    fake_cluster_factory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 200)
    monkeypatch.setattr(topic_lookup, "MISSING_TOPICS_LOOKUP_S", 0.3)
    cluster = fake_cluster_factory(1, kafka_version="4.2")
    cluster.create_topic("orders")
    with ShareConsumer(settings(cluster, group_id="g")) as source:
        source.subscribe(["orders", "ordres"])
        poll_until(source, lambda: len(warnings(caplog)) >= 2)  # type: ignore[arg-type]
        assert "group g: topic ordres does not exist (yet; the nearest is orders)" in caplog.text
        cluster.create_topic("ordres")
        poll_until(source, lambda: len(source.assignment()) == 2)  # type: ignore[arg-type]


def test_brokers_that_make_none_are_named(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_lookup, "TOPIC_CREATION_S", 0.2)
    with subscribed(fake_cluster, "classic", "new", **AUTO) as source:
        poll_until(source, lambda: bool(warnings(caplog)))
    message = "the brokers do not create it (auto.create.topics.enable"
    assert message in warnings(caplog)[0]
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 200)
    for given, said in ((AUTO, True), ({}, False)):
        with (
            Consumer(settings(fake_cluster) | given) as source,
            Producer(settings(fake_cluster) | given) as producer,
        ):
            with pytest.raises(UnknownTopicError, match="create it first") as looked_up:
                source.offsets_for("new")
            with pytest.raises(UnknownTopicError, match="create it first") as sent:
                producer.send("new", b"1").result(WAIT_S)
        assert [message in str(looked_up.value), message in str(sent.value)] == [said, said]


def test_a_mistyped_topic_is_reported_with_the_nearest_one(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300)
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 200)
    fake_cluster.create_topic("orders")
    meant = "topic ordres does not exist (yet; the nearest is orders)"
    with Consumer(settings(fake_cluster)) as source:
        source.assign([TopicPartition("ordres", 0)])
        with pytest.raises(UnknownTopicError, match="the nearest is orders"):
            source.poll(WAIT_S)
    with subscribed(fake_cluster, "classic", "ordres") as source:
        poll_until(source, lambda: bool(warnings(caplog)))
    assert meant in warnings(caplog)[0]


def test_several_missing_topics_are_named_in_the_plural() -> None:
    assert missing_topics_text(["a"]) == "topic a does not exist (yet)"
    assert missing_topics_text(["a", "b"]) == "topics a, b do not exist (yet)"


def test_an_ipv6_address_is_shown_as_it_is_written() -> None:
    for kind in (Admin, Producer):
        with kind({"bootstrap.servers": "[::1],h:1"}) as client:
            assert "[::1]:9092,h:1" in repr(client)


def test_a_producer_creates_topics_if_the_setting_says_so(
    fake_cluster_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300)
    cluster = fake_cluster_factory(1, configs={"auto.create.topics.enable": "true"})
    with Producer(settings(cluster)) as producer:
        with pytest.raises(UnknownTopicError, match="new"):
            producer.send("new", b"1").result(WAIT_S)
    with Producer(settings(cluster) | AUTO) as producer:
        assert producer.send("new", b"1").result(WAIT_S).topic == "new"
    assert log_values(cluster, "new") == [b"1"]


def test_it_is_off_unless_it_is_set_and_only_of_topics_by_name(fake_cluster_factory: Any) -> None:
    servers = {"bootstrap.servers": "h"}
    assert not parse_consumer_settings(servers).client.allow_auto_create_topics
    assert not parse_producer_settings(servers).client.allow_auto_create_topics
    assert parse_consumer_settings(servers | AUTO).client.allow_auto_create_topics
    assert parse_producer_settings(servers | AUTO).client.allow_auto_create_topics
    # Of others it has no effect, and Spark has createTopic for its sink.
    assert not parse_admin_settings(servers | AUTO).allow_auto_create_topics
    spark = {f"kafka.{name}": str(value) for name, value in (servers | AUTO).items()}
    assert not parse_read_options(spark | {"subscribe": "t"}).client.allow_auto_create_topics
    cluster = fake_cluster_factory(1, configs={"auto.create.topics.enable": "true"})
    options = parse_consumer_settings(settings(cluster) | AUTO).client
    with Cluster(options) as asking:
        assert asking.all_topics() == {}
        assert set(asking.topics(["new"])) == {"new"}


@pytest.mark.parametrize("assigned", [True, False])
def test_who_names_a_partition_gets_an_error(fake_cluster: FakeCluster, assigned: bool) -> None:
    """Responses about a topic are an error after the grace, whether it is assigned or not."""
    with Consumer(settings(fake_cluster)) as source:
        if assigned:
            source.assign([("t", 0)])  # type: ignore[list-item]
        with pytest.raises(UnknownTopicError, match="the topic does not exist"):
            source.end_offsets([("t", 0)], timeout_s=0.3)  # type: ignore[list-item]
