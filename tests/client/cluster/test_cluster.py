"""Finding the cluster, its topics and leaders, when something is missing or answers wrongly."""

from __future__ import annotations

import dataclasses

import pytest

from sparkkafka.client.cluster import cluster as cluster_module
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup, largest_timestamps
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
)
from sparkkafka.protocol.constants import LATEST
from sparkkafka.protocol.messages import MetadataRequest
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse, Garbage
from tests.client.support import numbers, open_cluster, read, write


@pytest.mark.parametrize(
    "prefix", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50"]
)
def test_a_port_that_is_not_kafka_is_named(fake_cluster, prefix):
    fake_cluster.fault(Garbage(prefix), api="ApiVersions", times=None)
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:\d+.*(HTTP|TLS)"):
        read(fake_cluster, "t")


def test_an_unreachable_cluster_names_each_address_within_the_deadline():
    with open_cluster("127.0.0.1:1,[::1]:1", default_api_timeout_ms=700) as cluster:
        with pytest.raises(KafkaTimeoutError, match=r"0\.7 s") as raised:
            cluster.topics(["t"])
    assert "127.0.0.1:1" in str(raised.value)
    assert "::1" in str(raised.value)


def test_a_host_that_has_no_address():
    with open_cluster("no-such-host.invalid:9092", default_api_timeout_ms=500) as cluster:
        with pytest.raises(KafkaTimeoutError, match=r"no-such-host\.invalid:9092.*resolved"):
            cluster.topics(["t"])


def test_a_cluster_on_ipv6(fake_cluster_factory):
    cluster = fake_cluster_factory(2, host="::1")
    cluster.create_topic("t")
    write(cluster, "t", 100)
    assert read(cluster, "t") == numbers(100)


def test_an_unknown_topic_is_an_error_that_names_it(fake_cluster):
    with open_cluster(fake_cluster, default_api_timeout_ms=1_000) as cluster:
        with pytest.raises(UnknownTopicError, match=r"topic nowhere.*does not exist"):
            cluster.topics(["nowhere"])


# --- mistyped topics -----------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch):
    """Only a response of all brokers makes a topic count as missing before the deadline."""
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_GRACE_MS", 300_000)
    monkeypatch.setattr(cluster_module, "UNKNOWN_TO_ALL_GRACE_MS", 50)


@pytest.mark.usefixtures("patient")
def test_a_topic_that_no_broker_knows_is_missing_soon_and_the_nearest_is_named(
    fake_cluster_factory,
):
    fake = fake_cluster_factory(3)
    for topic in ("orders", "customers"):
        fake.create_topic(topic)
    with open_cluster(fake) as cluster:
        with pytest.raises(UnknownTopicError) as caught:
            cluster.topics(["customers", "ordres"])
        assert caught.value.topics == ("ordres",)
        assert "check its name (the nearest is orders), or create it first" in str(caught.value)
        asked = {
            row.broker
            for row in fake.requests_of("Metadata")
            if [topic.name for topic in row.message.topics or ()] == ["ordres"]
        }
        assert asked == {0, 1, 2}
        with pytest.raises(UnknownTopicError, match="the nearest: orders for order, customers for"):
            cluster.topics(["order", "nothing-like-it", "customer"])
        with pytest.raises(UnknownTopicError, match="check its name, or create it first"):
            cluster.topics(["nothing-like-it"])


@pytest.mark.usefixtures("patient")
def test_requests_to_leaders_of_a_mistyped_topic_fail_soon_and_name_the_nearest(fake_cluster):
    fake_cluster.create_topic("orders")
    wanted = {TopicPartition("ordres", 0): LATEST, TopicPartition("orders", 0): LATEST}
    with open_cluster(fake_cluster, default_api_timeout_ms=300_000) as cluster:
        with pytest.raises(
            UnknownTopicError, match=r"Metadata of ordres-0: .*\(the nearest is orders\)"
        ):
            OffsetLookup(cluster).list(wanted)


@pytest.mark.usefixtures("patient")
def test_a_broker_that_does_not_answer_is_not_waited_for_only_to_name_the_nearest(fake_cluster):
    fake_cluster.create_topic("orders")
    with open_cluster(fake_cluster) as cluster:
        cluster.request_metadata(["orders"], cluster.deadline())
        fake_cluster.fault(Delay(60_000), api="Metadata")
        deadline = Deadline(300_000)
        assert cluster.nearest_topics(["ordres"], deadline) == {}
        assert deadline.remaining_s() > 200


@pytest.mark.usefixtures("patient")
def test_a_topic_that_one_broker_knows_is_waited_for(fake_cluster_factory):
    fake = fake_cluster_factory(2)
    fake.create_topic("t")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fault = fake.fault(unknown, api="Metadata", topic="t", broker=0, times=6)
    with open_cluster(fake.address(0)) as cluster:
        assert cluster.topics(["t"]).keys() == {"t"}
    assert fault.fired == 6


@pytest.mark.usefixtures("patient")
def test_a_broker_that_does_not_answer_has_not_said_that_a_topic_is_missing(fake_cluster_factory):
    fake = fake_cluster_factory(2)
    fake.fault(Drop.BEFORE, api="Metadata", broker=1, times=None)
    with open_cluster(fake.address(0), default_api_timeout_ms=1_500) as cluster:
        with pytest.raises(UnknownTopicError) as caught:
            cluster.topics(["t"])
        assert isinstance(caught.value.__cause__, KafkaTimeoutError)  # it was the deadline


def test_a_silent_broker_does_not_hold_up_the_error_of_a_missing_topic(
    fake_cluster_factory, monkeypatch
):
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_GRACE_MS", 300)
    monkeypatch.setattr(cluster_module, "UNKNOWN_TO_ALL_GRACE_MS", 50)
    fake = fake_cluster_factory(2)
    silence = fake.fault(Delay(300_000), api="Metadata", broker=1, times=None)
    with open_cluster(fake.address(0), default_api_timeout_ms=20_000) as cluster:
        with pytest.raises(UnknownTopicError) as caught:
            cluster.topics(["t"])
        assert caught.value.__cause__ is None  # not the deadline
    assert silence.fired


def test_the_partitions_of_a_task_wait_for_their_topic_together(fake_cluster, monkeypatch):
    monkeypatch.setattr(cluster_module, "KNOWN_TOPIC_GRACE_MS", 200)
    options = parse_read_options(
        {"kafka.bootstrap.servers": fake_cluster.bootstrap_servers, "subscribe": "t"}
    )
    with Cluster(options.client, for_task=True) as cluster:
        cluster.assume_exists("t")
        with pytest.raises(UnknownTopicError):
            OffsetLookup(cluster).list({TopicPartition("t", 0): LATEST})
        fake_cluster.clear_requests()
        with pytest.raises(UnknownTopicError):
            OffsetLookup(cluster).list({TopicPartition("t", 1): LATEST})
        assert len(fake_cluster.requests_of("Metadata")) == 1


@pytest.mark.usefixtures("patient")
def test_topics_that_brokers_may_be_making_are_waited_for(fake_cluster):
    with open_cluster(fake_cluster, default_api_timeout_ms=1_000) as cluster:
        cluster.options = dataclasses.replace(cluster.options, allow_auto_create_topics=True)
        with pytest.raises(UnknownTopicError) as caught:
            cluster.topics(["t"])
        assert isinstance(caught.value.__cause__, KafkaTimeoutError)


def test_a_last_lookup_that_is_not_answered_hides_nothing(fake_cluster):
    def silence_from_now_on(request):
        fake_cluster.fault(Delay(5_000), api="Metadata", times=None)

    # The first request is the one for the brokers, the second sees that the topic is missing.
    fake_cluster.fault(silence_from_now_on, api="Metadata", nth=2)
    with open_cluster(fake_cluster, default_api_timeout_ms=800) as cluster:
        with pytest.raises(UnknownTopicError, match=r"topic nowhere.*create it first"):
            cluster.topics(["nowhere"])


def test_a_topic_that_appears_late_is_waited_for(fake_cluster):
    def create(request):
        fake_cluster.create_topic("late")

    fake_cluster.fault(create, api="Metadata", nth=3)
    with open_cluster(fake_cluster) as cluster:
        assert len(cluster.topics(["late"])["late"].partitions) == 1


def test_no_permission_to_see_a_topic(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Metadata", times=None)
    with open_cluster(fake_cluster) as cluster:
        with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED.*topic t"):
            cluster.topics(["t"])


def test_a_partition_without_leader_is_waited_for(fake_cluster):
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 10)
    fake_cluster.move_leader("t", 0, -1)
    fake_cluster.clear_requests()

    def elect(request):
        if len(fake_cluster.requests_of("Metadata")) > 3:
            fake_cluster.move_leader("t", 0, 1)

    fake_cluster.fault(elect, api="Metadata", times=None)
    assert read(fake_cluster, "t") == numbers(10)


def test_the_timeout_names_the_partition_without_a_leader(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.move_leader("t", 1, -1)
    with open_cluster(fake_cluster, default_api_timeout_ms=500) as cluster:
        with pytest.raises(KafkaTimeoutError, match="partition 1 of topic t has no leader"):
            OffsetLookup(cluster).list(
                {TopicPartition("t", 0): LATEST, TopicPartition("t", 1): LATEST}
            )


@pytest.mark.parametrize("turn", range(8))
def test_a_bootstrap_entry_that_is_not_kafka_does_not_spoil_the_list(fake_cluster_factory, turn):
    """The list is asked in a random order, so several times."""
    good, bad = fake_cluster_factory(1), fake_cluster_factory(1)
    good.create_topic("t")
    bad.fault(Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"), api="ApiVersions", times=None)
    with open_cluster(f"{bad.bootstrap_servers},{good.bootstrap_servers}") as cluster:
        assert list(cluster.topics(["t"])) == ["t"]


def test_a_topic_whose_partitions_a_broker_does_not_know_yet_is_not_an_empty_topic(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    rule = fake_cluster.fault(ErrorCode.LEADER_NOT_AVAILABLE, api="Metadata", topic="t", times=2)
    with open_cluster(fake_cluster) as cluster:
        assert len(cluster.topics(["t"])["t"].partitions) == 3
    assert rule.fired == 2


def test_a_pattern_waits_for_topics_that_are_not_known_at_the_moment(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.LEADER_NOT_AVAILABLE, api="Metadata", times=2)
    with open_cluster(fake_cluster) as cluster:
        assert list(cluster.all_topics()) == ["t"]


def test_offsets_by_timestamp_ask_all_leaders_at_once(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    write(fake_cluster, "t", 300, partitions=3)
    tps = [TopicPartition("t", p) for p in range(3)]
    fake_cluster.clear_requests()
    with open_cluster(fake_cluster) as cluster:
        before = OffsetLookup(cluster).list(dict.fromkeys(tps, 1_600_000_000_000))
        exact = OffsetLookup(cluster).list(dict.fromkeys(tps, 1_700_000_000_000))
        after = OffsetLookup(cluster).list(dict.fromkeys(tps, 1_700_000_000_001))
    assert {row.offset for row in before.values()} == {0}
    assert {(row.offset, row.timestamp_ms) for row in exact.values()} == {(0, 1_700_000_000_000)}
    assert {row.offset for row in after.values()} == {-1}
    asked = fake_cluster.requests_of("ListOffsets")
    assert [request.broker for request in asked[:3]] != [asked[0].broker] * 3
    assert len(asked) == 9  # three look-ups, one request to each of three leaders


def test_largest_timestamps(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    write(fake_cluster, "t", 300, partitions=2)
    tps = [TopicPartition("t", p) for p in range(3)]
    with open_cluster(fake_cluster) as cluster:
        found = largest_timestamps(cluster, tps)
        assert largest_timestamps(cluster, []) == {}
    assert found == dict.fromkeys(tps[:2], 1_700_000_000_000)  # the third has no record


@pytest.mark.parametrize("version", [6, 7])
def test_an_old_broker_is_not_asked_for_the_largest_timestamp(fake_cluster_factory, version):
    """It would look for the first record of the time -3 ms or later: any record at all."""
    cluster = fake_cluster_factory(1, api_versions={"ListOffsets": (2, version)})
    cluster.create_topic("t")
    write(cluster, "t", 10)
    cluster.clear_requests()
    with open_cluster(cluster) as client:
        known = largest_timestamps(client, [TopicPartition("t", 0)])
    assert len(known) == len(cluster.requests_of("ListOffsets")) == version - 6


def test_a_topic_with_a_lasting_error_is_not_left_out_of_a_pattern(fake_cluster):
    for name in ("pat1", "pat2", "other"):
        fake_cluster.create_topic(name)
    options = {
        "kafka.bootstrap.servers": fake_cluster.bootstrap_servers,
        "subscribePattern": "^pat",
    }
    fake_cluster.fault(
        ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR), api="Metadata", topic="pat2", times=None
    )
    with pytest.raises(BrokerError, match=r"UNKNOWN_SERVER_ERROR.*topic pat2"):
        KafkaBatchReader(parse_read_options(options)).partitions()


@pytest.mark.slow
def test_bootstrap_servers_that_never_answer_leave_time_for_the_others(fake_cluster_factory):
    good, silent = fake_cluster_factory(1), fake_cluster_factory(2)
    good.create_topic("t")
    silent.fault(Delay(60_000), api="ApiVersions", times=None)
    servers = f"{silent.bootstrap_servers},{good.bootstrap_servers}"
    for _ in range(3):
        with open_cluster(
            servers, default_api_timeout_ms=3_000, request_timeout_ms=1_500
        ) as cluster:
            assert list(cluster.topics(["t"])) == ["t"]


def test_responses_that_an_interrupted_call_left_behind_are_nobodys(
    fake_cluster_factory, monkeypatch
):
    """Else the next call on the connection would read them as its own."""
    fake = fake_cluster_factory(3)
    fake.create_topic("t", 3)

    def ask(cluster):
        return OffsetLookup(cluster).list(
            {TopicPartition("t", number): LATEST for number in range(3)}
        )

    def interrupted(*_):
        raise KeyboardInterrupt

    with open_cluster(fake) as cluster:
        before = ask(cluster)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Connection, "receive", interrupted)
            ask(cluster)
        for node in range(3):
            connection = cluster.connection(node, cluster.deadline())
            response = connection.call(MetadataRequest(topics=[]))
            assert [row.node_id for row in response.brokers] == [0, 1, 2]
        assert ask(cluster) == before
