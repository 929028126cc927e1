"""librdkafka's mock cluster, which answers some requests in forms that Kafka does not have."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from sparkkafka.client import Admin, Connection, Consumer, Producer, TopicPartition
from sparkkafka.protocol.framing import Framing
from sparkkafka.protocol.messages import ApiVersionsRequest, ApiVersionsResponse


@pytest.fixture(scope="module")
def mock_brokers() -> Iterator[str]:
    """Both brokers of a mock cluster, which lives as long as the producer that made it."""
    owner = confluent_kafka.Producer(
        {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 2, "log_level": 0}
    )
    brokers = owner.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{row.host}:{row.port}" for row in brokers)
    owner.flush(0)


def test_a_connection_agrees_on_versions(mock_brokers: str) -> None:
    with Connection.to({"bootstrap.servers": mock_brokers.split(",")[0]}) as connection:
        assert connection.versions[ApiVersionsRequest.API_KEY] == (0, 2)


def test_records_are_written_and_read(mock_brokers: str) -> None:
    settings = {"bootstrap.servers": mock_brokers}
    with Admin(settings) as admin:
        assert len(admin.describe_cluster().brokers) == 2
    # The mock cluster has no CreateTopics: a topic comes with its first Metadata.
    confluent = confluent_kafka.Producer({"bootstrap.servers": mock_brokers, "log_level": 0})
    assert "made" in confluent.list_topics("made", timeout=10).topics
    with Producer(settings) as producer:
        sent = [producer.send("made", f"value {i}".encode(), partition=0) for i in range(5)]
        producer.flush()
        assert [handle.result().offset for handle in sent] == list(range(5))
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("made", 0)])
        values: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(values) < 5 and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(1.0)]
    assert values == [f"value {i}".encode() for i in range(5)]


@pytest.mark.parametrize(
    "body",
    [
        "0023 01 0012 0000 0002 00000000",  # librdkafka 2.16: neither version 0 nor 3
        "0023",
        "0023 02 0012 0000 0002 00 00000000 00",  # version 3
        "0023 ffffffff",
    ],
)
def test_a_refusal_in_another_form_is_still_a_refusal(body: str) -> None:
    framing = Framing("c")
    correlation_id, _ = framing.send(ApiVersionsRequest(), 3)
    payload = struct.pack(">i", correlation_id) + bytes.fromhex(body)
    assert framing.receive(payload) == (correlation_id, ApiVersionsResponse(error_code=35))
