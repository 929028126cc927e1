"""Reads and writes of topics whose schemas are in the registries of AWS Glue and Azure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from sparkkafka.errors import BadRecordError, OptionError
from sparkkafka.spark.datasource import KafkaDataSource
from tests.client.support import QUICK
from tests.schemas.cloud_registries import CloudRegistry, cloud_registry
from tests.spark.typed_support import Topics

ROWS = [{"id": 1, "who": "anna"}, {"id": 2, "who": "böhme"}]
KIND = StructType().add("id", LongType(), False).add("who", StringType(), False)
ARROW = pa.struct([pa.field("id", pa.int64(), False), pa.field("who", pa.string(), False)])


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRegistry]:
    with cloud_registry(monkeypatch) as registry:
        yield registry


@pytest.fixture
def topics(fake_cluster: Any) -> Topics:
    fake_cluster.create_topic("t")
    return Topics(fake_cluster, None)  # type: ignore[arg-type]


def options_of(topics: Topics, clouds: CloudRegistry, framing: str) -> dict[str, str]:
    url = "glue://eu-central-1/shop" if "glue" in framing else f"{clouds.url}/$schemaGroups/shop"
    return {
        "kafka.bootstrap.servers": topics.cluster.bootstrap_servers,
        "valueFormat": "avro",
        "valueFraming": framing,
        "schema.registry.url": url,
        **{f"kafka.{name}": value for name, value in QUICK.items()},
    }


def write(options: dict[str, str], **more: str) -> None:
    data_source = KafkaDataSource({**options, "topic": "t", **more})
    writer = data_source.writer(StructType().add("value", KIND), False)
    writer.write(iter([pa.record_batch({"value": pa.array(ROWS, ARROW)})]))


@pytest.mark.parametrize(
    ("framing", "format"),
    [("glue", "avro"), ("glue-zlib", "avro"), ("azure", "avro"), ("glue-zlib", "protobuf")],
)
def test_write_and_read(topics: Topics, clouds: CloudRegistry, framing: str, format: str) -> None:
    options = options_of(topics, clouds, framing) | {"valueFormat": format}
    if format == "protobuf":  # the process keeps schemas by region and GUID
        options["schema.registry.url"] = "glue://eu-west-1/shop"
    names = {"valueSubject": "t_value"} if framing == "azure" else {}
    with pytest.raises(OptionError, match=r"auto\.register\.schemas"):
        write(options)
    write(options, **{"auto.register.schemas": "true"})
    write(options, **names)  # the schema is there
    assert {name for name, _, _ in clouds.schemas.values()} == {names.get("valueSubject", "t")}
    reads = {**options, "subscribe": "t", **names}
    assert [row["value"] for row in topics.read(reads)] == ROWS * 2
    if format == "protobuf":
        return
    named = {"valueFraming": "auto", "valueSubject": names.get("valueSubject", "t")}
    assert [row["value"] for row in topics.read({**reads, **named})] == ROWS * 2


def test_a_bad_record_is_named(topics: Topics, clouds: CloudRegistry) -> None:
    options = options_of(topics, clouds, "glue")
    write(options, **{"auto.register.schemas": "true"})
    (guid,) = clouds.schemas
    unknown = b"\3\0" + bytes(16) + b"\2\2a"
    topics.put("t", [b"\3\0" + bytes.fromhex(guid.replace("-", "")) + b"\2", unknown])
    reads = {**options, "subscribe": "t"}
    with pytest.raises(BadRecordError, match=f"topic t partition 0 offset 2 .schema GUID {guid}"):
        topics.read(reads)
    rows = topics.read({**reads, "onBadRecord": "column"})
    assert [row["value"] for row in rows] == [*ROWS, None, None]
    assert "does not know schema GUID 00000000-" in rows[3]["bad_record"]["error"]
    with pytest.raises(BadRecordError, match="it looks like AWS Glue's framing"):
        topics.read({**reads, "valueFraming": "single-object", "valueSubject": "t"})


def test_another_version_that_is_registered_later_does_not_change_the_column(
    topics: Topics, clouds: CloudRegistry
) -> None:
    options = options_of(topics, clouds, "glue")
    write(options, **{"auto.register.schemas": "true"})
    reads = {**options, "subscribe": "t"}
    schema = StructType.fromJson(KafkaDataSource(reads).schema().jsonValue())
    clouds.add("t", '{"type": "record", "name": "t_value", "fields": []}')
    assert [row["value"] for row in topics.read(reads, schema)] == ROWS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema.registry.url": "http://h:1"}, "set valueFraming to confluent or headers"),
        ({"valueFraming": "azure"}, "set valueFraming to glue or glue-zlib for this registry"),
        ({"valueFraming": "azure", "valueFormat": "json"}, "valueFormat=avro, not json"),
        (
            {"valueFormat": "protobuf", "valueFraming": "apicurio"},
            "avro and json, not protobuf: its frames do not show which message",
        ),
        ({"keyFormat": "avro", "keyFraming": "azure"}, "keyFraming=none and keySchema"),
        ({"schema.registry.ssl.enabled.protocols": "TLSv1.3"}, "has no effect on AWS Glue"),
        ({"schema.registry.url": "glue://"}, "is written glue://region/registry"),
        ({"schema.registry.url": "http://h:1/$schemaGroups"}, r"\$schemaGroups/GROUP"),
        (
            {"schema.registry.url": "http://h:1,http://g:1/apis/registry/v3"},
            "the URLs are of several registries",
        ),
    ],
)
def test_options_that_do_not_match(changes: dict[str, str], message: str) -> None:
    options = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "t",
        "valueFormat": "avro",
        "valueFraming": "glue",
        "schema.registry.url": "glue://eu-central-1/shop",
    }
    with pytest.raises(OptionError, match=message):
        KafkaDataSource({**options, **changes}).schema()


def test_auto_is_for_reads(topics: Topics, clouds: CloudRegistry) -> None:
    with pytest.raises(OptionError, match="is for reads"):
        write(options_of(topics, clouds, "auto"))


def test_single_objects_need_no_registry(topics: Topics) -> None:
    schema = (
        '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}, '
        '{"name": "who", "type": "string"}]}'
    )
    options = {
        "kafka.bootstrap.servers": topics.cluster.bootstrap_servers,
        "valueFormat": "avro",
        "valueFraming": "single-object",
        "valueSchema": schema,
        **{f"kafka.{name}": value for name, value in QUICK.items()},
    }
    write(options)
    assert [row["value"] for row in topics.read({**options, "subscribe": "t"})] == ROWS
