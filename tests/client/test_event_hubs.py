"""Azure Event Hubs as far as it differs from Kafka, on a fake broker that is limited as it is.

Facts: learn.microsoft.com/azure/event-hubs, apache-kafka-configurations and
apache-kafka-troubleshooting-guide; ApiVersions: github.com/twmb/franz-go issue 1025.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import ErrorCode, ProduceError, Written
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.records.compression import Codec
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop, RecordedRequest, Throttle
from sparkkafka.testing.fake.log.records import parse_header
from tests.client.support import (
    log_values,
    numbers,
    open_cluster,
    read,
    read_range,
    settings,
    write,
)
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

MAX_REQUEST_BYTES = 1_046_527
SERVERS = "my-namespace.servicebus.windows.net:9093"


def resets_version_4(request: RecordedRequest) -> Drop | None:
    return Drop.BEFORE if request.version > 3 else None


def takes_gzip_only(request: RecordedRequest) -> ErrorCode | None:
    codecs = {
        parse_header(row.records).codec
        for topic in request.message.topic_data
        for row in topic.partition_data
    }
    taken = codecs <= {Codec.NONE, Codec.GZIP}
    return None if taken else ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.fixture
def event_hubs(fake_cluster_factory: Any) -> FakeCluster:
    cluster: FakeCluster = fake_cluster_factory(
        1,
        api_versions={"ApiVersions": (0, 3)},
        max_request_bytes=MAX_REQUEST_BYTES,
        max_offset_metadata_bytes=1024,
    )
    cluster.fault(resets_version_4, api="ApiVersions", times=None)
    cluster.fault(takes_gzip_only, api="Produce", times=None)
    cluster.create_topic("t", partitions=4)
    return cluster


def test_the_handshake_asks_for_version_3_of_api_versions(event_hubs: FakeCluster) -> None:
    """It resets a connection at version 4, instead of the response that KIP-511 wants."""
    write(event_hubs, "t", 10)
    assert read(event_hubs, "t") == numbers(10)
    assert {row.version for row in event_hubs.requests_of("ApiVersions")} == {3}


@pytest.mark.parametrize(
    ("kafka_version", "versions"), [("2.1", [3, 0]), ("2.8", [3]), ("4.0", [3])]
)
def test_a_refused_handshake_is_repeated_in_a_version_that_the_broker_knows(
    fake_cluster_factory: Any, kafka_version: str, versions: list[int]
) -> None:
    cluster = fake_cluster_factory(1, kafka_version=kafka_version)
    cluster.create_topic("t")
    with open_cluster(cluster) as client:
        client.request_metadata(["t"], client.deadline())
    assert [row.version for row in cluster.requests_of("ApiVersions")] == versions


def test_a_refusal_that_names_its_range_is_followed(fake_cluster_factory: Any) -> None:
    """KIP-511, since Kafka 2.4."""
    cluster = fake_cluster_factory(1, kafka_version="2.8", api_versions={"ApiVersions": (0, 2)})
    cluster.create_topic("t")
    with open_cluster(cluster) as client:
        client.request_metadata(["t"], client.deadline())
    assert [row.version for row in cluster.requests_of("ApiVersions")] == [3, 2]


MAX_RECORD_OVERHEAD = 1_046_600 - 100  # with its headers just above the limit of the service


def send_a_megabyte(cluster: Cluster, servers: Any, *, batches: int, **config: Any) -> None:
    """Records for one request above the limit of the service, if max.request.size allows it."""
    options = parse_producer_options(settings(servers, linger_ms=60_000, **config))
    record = RecordColumns(
        keys=None,
        values=pa.array([b"x" * (MAX_RECORD_OVERHEAD // batches)], pa.binary()),
        headers=None,
        timestamps_ms=np.array([1_700_000_000_000]),
    )
    with PartitionProducer(cluster, options) as producer:
        for partition in range(batches):
            producer.send("t", partition, record)
        producer.flush()


def test_requests_are_kept_below_the_limit_of_the_service(event_hubs: FakeCluster) -> None:
    with open_cluster(event_hubs) as cluster:
        send_a_megabyte(cluster, SERVERS, batches=4)
    assert len(event_hubs.requests_of("Produce")) == 2
    assert [len(log_values(event_hubs, "t", partition)) for partition in range(4)] == [1] * 4


def test_a_record_above_the_limit_of_the_service_is_refused_before_it_is_sent(
    event_hubs: FakeCluster,
) -> None:
    message = "more than max.request.size=1000000 allows"
    with open_cluster(event_hubs) as cluster, pytest.raises(ProduceError, match=message):
        send_a_megabyte(cluster, SERVERS, batches=1)
    assert event_hubs.requests_of("Produce") == []


def test_elsewhere_the_error_of_a_closed_connection_names_the_option(
    event_hubs: FakeCluster,
) -> None:
    message = r"had 10\d{5} bytes of records: .* lower max\.request\.size=1048576"
    with open_cluster(event_hubs) as cluster, pytest.raises(ProduceError, match=message) as raised:
        send_a_megabyte(cluster, event_hubs, batches=1, retries=3)
    assert raised.value.written is Written.UNKNOWN


def test_a_small_request_that_is_closed_names_no_size(event_hubs: FakeCluster) -> None:
    event_hubs.clear_faults()
    event_hubs.fault(Drop.BEFORE, api="Produce", times=None)
    with pytest.raises(ProduceError) as raised:
        write(event_hubs, "t", 100, retries=2)
    assert "max.request.size" not in str(raised.value)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_codecs_that_it_takes(event_hubs: FakeCluster, codec: str) -> None:
    write(event_hubs, "t", 100, compression_type=codec)
    assert log_values(event_hubs, "t") == numbers(100)


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_the_error_of_another_codec_names_the_option(event_hubs: FakeCluster, codec: str) -> None:
    with pytest.raises(ProduceError, match=f"does not take compression.type={codec}: set another"):
        write(event_hubs, "t", 100, compression_type=codec)
    assert len(event_hubs.requests_of("Produce")) == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.INVALID_REQUEST]
)
def test_so_do_the_codes_of_other_brokers(fake_cluster: FakeCluster, code: ErrorCode) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(code, api="Produce", times=None)
    with pytest.raises(ProduceError, match=r"compression\.type(=| than )lz4"):
        write(fake_cluster, "t", 10, compression_type="lz4")
    with pytest.raises(ProduceError) as raised:
        write(fake_cluster, "t", 10)
    assert "compression.type" not in str(raised.value)


def test_a_write_that_is_throttled_for_too_long_says_so(event_hubs: FakeCluster) -> None:
    event_hubs.clear_faults()
    event_hubs.fault(ErrorCode.POLICY_VIOLATION, api="Produce")
    with pytest.raises(ProduceError, match=r"throttles for longer than request\.timeout\.ms"):
        write(event_hubs, "t", 10)


# --- throttled reads ------------------------------------------------------------------------------


@pytest.mark.parametrize("throttle_ms", [0, 100])
def test_a_read_of_a_range_goes_on_after_empty_responses(
    event_hubs: FakeCluster, throttle_ms: int
) -> None:
    write(event_hubs, "t", 1_000, batch_size=1_000)
    event_hubs.clear_requests()
    rule = event_hubs.fault(Throttle(throttle_ms, empty=True), api="Fetch", nth=2, times=3)
    with (
        open_cluster(event_hubs) as cluster,
    ):
        found = read_range(cluster, "t", 0, 1_000, max_partition_fetch_bytes=1_500)
    assert (found, rule.fired) == (numbers(1_000), 3)


def test_a_consumer_goes_on_after_empty_responses(event_hubs: FakeCluster) -> None:
    write(event_hubs, "t", 1_000, batch_size=1_000)
    event_hubs.clear_requests()
    rule = event_hubs.fault(Throttle(100, empty=True), api="Fetch", times=3)
    found: list[bytes | None] = []
    with Consumer(settings(event_hubs)) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        while len(found) < 1_000:
            found += [record.value for record in consumer.poll(1_000)]
    assert (found, rule.fired) == (numbers(1_000), 3)
    assert len(event_hubs.requests_of("Fetch")) < 20


# --- connections that are closed while they are idle ----------------------------------------------


@pytest.mark.parametrize(
    "config",
    [{}, {"acks": "1"}, {"acks": "0"}, {"transactional_id": "x"}],
    ids=["idempotent", "acks=1", "acks=0", "transactional"],
)
def test_a_producer_whose_connection_was_cut_while_idle(
    event_hubs: FakeCluster, config: dict[str, str]
) -> None:
    with Producer(settings(event_hubs, linger_ms=0, **config)) as producer:
        if config.get("transactional_id"):
            producer.init_transactions()
        for number in range(6):
            if config.get("transactional_id"):
                producer.begin_transaction()
            producer.send("t", b"%d" % number, partition=0)
            producer.flush()
            if config.get("transactional_id"):
                producer.commit_transaction()
            event_hubs.disconnect(0)
    assert [value for value in log_values(event_hubs, "t") if value] == numbers(6)


def test_a_consumer_whose_connections_were_cut_while_idle(event_hubs: FakeCluster) -> None:
    found: list[bytes | None] = []
    with Consumer(settings(event_hubs, group_id="g", auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        for number in range(3):
            write(event_hubs, "t", 10)
            while len(found) < 10 * (number + 1):
                found += [record.value for record in consumer.poll(1_000)]
            consumer.commit()
            event_hubs.disconnect(0)
        assert event_hubs.committed("g") == {("t", 0): 30}
    assert found == numbers(10) * 3
