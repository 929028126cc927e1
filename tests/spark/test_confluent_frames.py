"""What Confluent's serializers wrote is read, and its deserializers read what was written: ids and
GUIDs, before payloads and in headers, in three formats. No Spark: a fake cluster, a registry of one
process. (tests/real has them on a real registry.)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.types import LongType, StringType, StructType

from sparkkafka.spark.datasource import KafkaDataSource
from tests.client.support import QUICK
from tests.schemas.small_registry import SmallRegistry, small_registry
from tests.spark.typed_support import ORDER_1, Topics

# Payloads of six bytes or more: theirs take shorter ones for frames that are cut off.
ROWS = [{"id": 1, "who": "anna"}, {"id": 2, "who": "böhme"}]
JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "who": {"type": "string"}},
    }
)


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        one.guids = True
        yield one


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic("t")
    return Topics(fake_cluster, registry)


@pytest.fixture
def theirs(registry: SmallRegistry) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": registry.url})
    yield client
    client._rest_client.session.close()  # it has no other way


def context(headers: list[Any]) -> SerializationContext:
    return SerializationContext("t", MessageField.VALUE, headers)


@pytest.mark.parametrize("position", ["prefix", "headers"])
@pytest.mark.parametrize("format", ["avro", "json"])
def test_read(topics: Topics, theirs: SchemaRegistryClient, format: str, position: str) -> None:
    conf = {
        "schema.id.serializer": (
            prefix_schema_id_serializer if position == "prefix" else header_schema_id_serializer
        )
    }
    if format == "avro":
        serialize: Any = AvroSerializer(theirs, json.dumps(ORDER_1), conf=conf)
    else:
        serialize = JSONSerializer(JSON_SCHEMA, theirs, conf=conf)
    payloads, all_headers = [], []
    for row in ROWS:
        headers: list[Any] = [("own", b"1")]
        payloads.append(serialize(row, context(headers)))
        all_headers.append(headers)
    assert any(name == "__value_schema_id" for name, _ in all_headers[0]) == (position == "headers")
    topics.put("t", payloads, headers=all_headers)
    assert [row["value"] for row in topics.read(topics.options("t", valueFormat=format))] == ROWS


@pytest.mark.parametrize("position", ["confluent", "headers"])
@pytest.mark.parametrize("format", ["avro", "json"])
def test_write(topics: Topics, theirs: SchemaRegistryClient, format: str, position: str) -> None:
    options = {
        **topics.options("t", valueFormat=format, valueFraming=position),
        "topic": "t",
        "auto.register.schemas": "true",
        **{f"kafka.{name}": value for name, value in QUICK.items()},
    }
    del options["subscribe"]
    kind = StructType().add("id", LongType(), False).add("who", StringType(), False)
    writer = KafkaDataSource(options).writer(StructType().add("value", kind), False)
    arrow = pa.struct([pa.field("id", pa.int64(), False), pa.field("who", pa.string(), False)])
    writer.write(iter([pa.record_batch({"value": pa.array(ROWS, arrow)})]))
    records = topics.read(
        {
            "kafka.bootstrap.servers": topics.cluster.bootstrap_servers,
            "subscribe": "t",
            "includeHeaders": "true",
        }
    )
    deserialize: Any = AvroDeserializer(theirs)
    if format == "json":
        deserialize = JSONDeserializer(None, schema_registry_client=theirs)
    found = []
    for record in records:
        headers = [(item["key"], item["value"]) for item in record["headers"] or ()]
        assert len(headers) == (position == "headers")
        if headers:
            assert headers[0][1][0] == 1
            assert len(headers[0][1]) == 17
        found.append(deserialize(record["value"], context(headers)))
    assert found == ROWS
