"""A broker that refuses: errors come soon, name the topic and say which permission is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka.admin
import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.errors import PySparkException

from sparkkafka.client.arguments import InputColumns
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.config.options import parse_read_options, parse_write_options
from sparkkafka.errors import BrokerError, ProduceError
from sparkkafka.spark.read.dead_letters import check_dead_letter_topic
from sparkkafka.spark.write.write_task import write_rows
from tests.client.support import read as client_read
from tests.real.peers import Record, confluent_write
from tests.real.secured import Secured

pytestmark = [pytest.mark.real, pytest.mark.spark]

# What alice may do with a topic, by the topic's name. A topic that has any
# rule allows nothing else; READ and WRITE include DESCRIBE, so "hidden" denies that.
RULES = {
    "write-only": [(AclOperation.WRITE, AclPermissionType.ALLOW)],
    "read-only": [(AclOperation.READ, AclPermissionType.ALLOW)],
    "hidden": [(AclOperation.DESCRIBE, AclPermissionType.DENY)],
}


@pytest.fixture(scope="module")
def guarded(secured: Secured) -> Secured:
    """Alice may do anything to what has no rules: so only these topics are guarded."""
    servers = secured.cluster.bootstrap_servers
    for name in RULES:
        secured.cluster.create_topic(name)
        confluent_write(servers, name, [Record(None, b"v")])
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    rules = [
        AclBinding(ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:alice", "*", *rule)
        for name, of_topic in RULES.items()
        for rule in of_topic
    ]
    for future in admin.create_acls(rules, request_timeout=30).values():
        future.result(30)
    return secured


def login(secured: Secured) -> dict[str, str]:
    """Options of a job of alice's."""
    settings = secured.ours("SASLTEXT", "SCRAM-SHA-512")
    return {f"kafka.{name}": value for name, value in settings.items()}


def read(spark: Any, secured: Secured, **options: str) -> list[Any]:
    return spark.read.format("pykafka").options(**login(secured), **options).load().collect()


def write(spark: Any, secured: Secured, topic: str, **options: str) -> None:
    (
        spark.createDataFrame([("v",)], "value string")
        .write.format("pykafka")
        .options(**login(secured), **options)
        .option("topic", topic)
        .mode("append")
        .save()
    )


def refused(topic: str, permission: str, error: Exception) -> None:
    text = str(error)
    assert "KafkaTimeoutError:" not in text  # nothing is tried again
    assert "TOPIC_AUTHORIZATION_FAILED" in text
    # One sentence has both: the topic's name elsewhere (Spark prints the plan) proves nothing.
    (line, *_) = [line for line in text.splitlines() if "TOPIC_AUTHORIZATION_FAILED" in line]
    assert topic in line
    assert permission in line


@pytest.mark.parametrize(("topic", "strategy"), [("write-only", "subscribe"), ("hidden", "assign")])
def test_reading(spark: Any, guarded: Secured, topic: str, strategy: str) -> None:
    value = topic if strategy == "subscribe" else f'{{"{topic}":[0]}}'
    with pytest.raises(PySparkException) as caught:
        read(spark, guarded, **{strategy: value})
    refused(topic, "READ", caught.value)


@pytest.mark.parametrize(("topic", "idempotence"), [("read-only", "true"), ("hidden", "false")])
def test_writing(spark: Any, guarded: Secured, topic: str, idempotence: str) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark, guarded, topic, **{"kafka.enable.idempotence": idempotence})
    refused(topic, "WRITE", caught.value)


def test_writing_when_the_permission_is_withdrawn(guarded: Secured) -> None:
    """In the middle of a task: what is written is what the error says."""
    topic = "withdrawn"
    guarded.cluster.create_topic(topic)
    servers = guarded.cluster.bootstrap_servers
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    rule = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*")

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(200):
            if number == 50:
                deny = AclBinding(*rule, AclOperation.WRITE, AclPermissionType.DENY)
                admin.create_acls([deny])[deny].result(20)
            time.sleep(0.02)  # the broker learns of it a moment later
            yield pa.record_batch([pa.array([b"%d" % number])], names=["value"])

    options = parse_write_options({**login(guarded), "topic": topic, "kafka.linger.ms": "0"})
    with pytest.raises(ProduceError, match=f"{topic}.*TOPIC_AUTHORIZATION_FAILED") as raised:
        write_rows(batches(), InputColumns(value=0, fixed_topic=topic), options)
    allow = AclBinding(*rule, AclOperation.ALL, AclPermissionType.ALLOW)
    deny = AclBindingFilter(*rule, AclOperation.WRITE, AclPermissionType.DENY)
    admin.create_acls([allow])[allow].result(20)
    admin.delete_acls([deny])[deny].result(20)
    time.sleep(0.5)
    values = client_read(guarded.cluster, topic)
    written, _, unknown = raised.value.partitions[topic, 0]
    assert values == [b"%d" % number for number in range(len(values))]
    assert 0 < written <= len(values) <= written + unknown


def test_what_is_allowed_works(spark: Any, guarded: Secured) -> None:
    write(spark, guarded, "write-only")
    assert [bytes(row.value) for row in read(spark, guarded, subscribe="read-only")] == [b"v"]


def test_a_pattern_finds_what_this_user_may_see(spark: Any, guarded: Secured) -> None:
    """Brokers leave hidden topics out of a list of all topics; that is no error."""
    rows = read(spark, guarded, subscribePattern="^(read-only|hidden)$")
    assert [row.topic for row in rows] == ["read-only"]


def test_a_dead_letter_topic(guarded: Secured) -> None:
    guarded.cluster.create_topic("no-rules")
    refused = []
    for topic in (*RULES, "no-rules"):
        options = parse_read_options(
            {
                **login(guarded),
                "subscribe": "write-only",
                "valueFormat": "avro",
                "schema.registry.url": "http://127.0.0.1:1",
                "onBadRecord": "deadLetter",
                "deadLetter.topic": topic,
            }
        )
        with Cluster(options.client) as cluster:
            try:
                check_dead_letter_topic(cluster, options, topic)
            except BrokerError as error:
                assert f"deadLetter.topic={topic} cannot be written by this user" in str(error)
                refused.append(topic)
    assert refused == ["read-only", "hidden"]
