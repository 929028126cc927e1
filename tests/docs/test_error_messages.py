"""The headings of the error messages are in the messages themselves: a reader searches for them."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.client import Admin, Consumer, Producer, TopicPartition
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.kinds import CONFLUENT
from sparkkafka.config.options import parse_read_options
from sparkkafka.config.source import OffsetBound
from sparkkafka.errors import KafkaError
from sparkkafka.schemas.framings import unframe_column
from sparkkafka.spark.read.data_loss import Loss, loss_error
from sparkkafka.spark.read.input_partitions import check_named
from sparkkafka.spark.write.writer import input_columns
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.docs.snippets import page
from tests.spark.schemas import ddl

ELSEWHERE = {  # Spark's own
    "ClassNotFoundException, NoClassDefFoundError",
    "DATA_SOURCE_NOT_FOUND",
    'cannot be written in the "ErrorIfExists" mode',
    "does not support Update mode",
    "Python worker exited unexpectedly",
}


def message(error: pytest.ExceptionInfo[KafkaError]) -> str:
    return str(error.value)


def messages() -> list[str]:
    found = []
    with pytest.raises(KafkaError) as error:
        Admin({"bootstrap.servers": "localhost:1", "default.api.timeout.ms": 500}).list_topics()
    found.append(message(error))
    for wrong in ({"startingOffset": "earliest"}, {"topic": "orders"}):
        with pytest.raises(KafkaError) as error:
            parse_read_options({"kafka.bootstrap.servers": "localhost:1", **wrong})
        found.append(message(error))
    for columns in ("id bigint", "value bigint"):
        with pytest.raises(KafkaError) as error:
            input_columns(ddl(columns), "orders", None)
        found.append(message(error))
    with pytest.raises(KafkaError) as error:
        check_named("startingOffsets", OffsetBound("specific", {}), [TopicPartition("orders", 0)])
    found.append(message(error))
    with FakeCluster(sasl_users={"alice": "hush"}) as fake:
        settings = {"bootstrap.servers": fake.bootstrap_servers, "default.api.timeout.ms": 500}
        with pytest.raises(KafkaError) as error:
            Admin(settings).list_topics()
        found.append(message(error))
    with FakeCluster() as fake:
        with (
            BoundedAdmin({"bootstrap.servers": fake.bootstrap_servers}, Deadline(10_000)) as admin,
            pytest.raises(KafkaError) as error,
        ):
            raise admin.with_nearest_group("a", admin.describe_consumer_groups(["a"]).errors["a"])
        found.append(message(error))
        fake.create_topic("orders", partitions=1)
        servers = {"bootstrap.servers": fake.bootstrap_servers}
        with Producer(servers | {"max.request.size": 10_000}) as producer:
            with pytest.raises(KafkaError) as error:
                producer.partitions_for("order")
            found.append(message(error))
            with pytest.raises(KafkaError) as error:
                producer.send("orders", b"x" * 20_000).result()
            found.append(message(error))
        with Consumer(servers | {"auto.offset.reset": "none"}) as consumer:
            consumer.assign({TopicPartition("orders", 0): 77})
            with pytest.raises(KafkaError) as error:
                consumer.poll(timeout_s=10)
            found.append(message(error))
        fake.fault(Drop.BEFORE, api="Produce", times=1000)
        short = {"delivery.timeout.ms": 300, "request.timeout.ms": 200, "linger.ms": 0}
        with Producer(servers | short) as producer:
            with pytest.raises(KafkaError) as error:
                producer.send("orders", b"x").result()
            found.append(message(error))
    found.append(str(loss_error([Loss("KAFKA_DATA_LOSS", "gone", 1)], streaming=True)))
    json = pa.array([b'{"id": 1}'], pa.binary())
    found.extend(unframe_column(json, None, "value", CONFLUENT).reasons)
    return found


def test_each_heading_is_a_part_of_a_message() -> None:
    section = page("docs/client-errors.md").partition("## Error messages")[2].partition("\n## ")[0]
    headings = set(re.findall(r"^### (.*)$", section, re.MULTILINE)) - ELSEWHERE
    texts = [re.sub(r"\b\d+\b", "N", re.sub(r"=\d+", "", text)) for text in messages()]
    assert len(headings) == len(texts)
    assert [heading for heading in headings if not any(heading in text for text in texts)] == []
