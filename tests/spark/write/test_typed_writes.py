"""valueFormat and keyFormat in a write, by the calls that Spark makes. No Spark: a fake cluster and
a registry of one process."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import (
    EncodeError,
    KafkaTimeoutError,
    OptionError,
    RegistryError,
    SchemaError,
)
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.write.commit_message import KafkaCommitMessage
from tests.client.support import QUICK
from tests.schemas.small_registry import (
    SmallRegistry,
    open_registry_clients,
)

ORDER = StructType().add("id", LongType(), nullable=False).add("who", StringType())
SCHEMA = StructType().add("value", ORDER)
KIND = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("who", pa.string())])
ROWS = [{"id": 1, "who": "a"}, None, {"id": 2, "who": None}]

MADE = {
    "type": "record",
    "name": "orders_value",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": ["string", "null"]}],
}


class Target:
    def __init__(self, cluster: Any, registry: SmallRegistry) -> None:
        self.cluster, self.registry = cluster, registry

    def options(self, **more: str) -> dict[str, str]:
        given = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "topic": "orders",
            "valueFormat": "avro",
            "schema.registry.url": self.registry.url,
            **{f"kafka.{name}": value for name, value in QUICK.items()},
            **{name.replace("__", "."): value for name, value in more.items()},
        }
        return {name: value for name, value in given.items() if value}

    def write(
        self, *batches: pa.RecordBatch, schema: StructType = SCHEMA, **more: str
    ) -> KafkaCommitMessage:
        writer = KafkaDataSource(self.options(**more)).writer(schema, False)
        copy = pickle.loads(pickle.dumps(writer))
        message: KafkaCommitMessage = copy.write(iter(batches))
        return message

    def rows(self) -> list[dict[str, Any]]:
        reader = KafkaBatchReader(
            parse_read_options(
                {
                    "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
                    "subscribe": "orders",
                    "includeHeaders": "true",
                }
            )
        )
        return [
            row
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def target(fake_cluster: Any, registry: SmallRegistry) -> Target:
    fake_cluster.create_topic("orders")
    return Target(fake_cluster, registry)


def batch(rows: list[Any] = ROWS, kind: pa.DataType = KIND, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(rows, kind), **columns})


def decoded(payload: bytes, schema: Any) -> Any:
    parsed = fastavro.parse_schema(dict(schema) if isinstance(schema, dict) else schema)
    return fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)


def test_a_schema_is_made_and_registered_once(target: Target) -> None:
    message = target.write(batch(), batch(), auto__register__schemas="true")
    assert message.rows == 6
    assert list(target.registry.subjects) == ["orders-value"]
    text = json.loads(target.registry.schemas[0]["schema"])
    assert text["name"] == "orders_value"
    rows = target.rows()
    assert [row["value"] and row["value"][:5] for row in rows[:3]] == [
        b"\0\0\0\0\1",
        None,
        b"\0\0\0\0\1",
    ]
    assert [decoded(row["value"][5:], text) for row in rows[:3] if row["value"]] == [
        {"id": 1, "who": "a"},
        {"id": 2, "who": None},
    ]


def test_a_schema_that_is_not_registered(target: Target) -> None:
    with pytest.raises(OptionError, match=r"subject orders-value .*auto\.register\.schemas=true"):
        target.write(batch())
    assert target.rows() == []
    target.registry.add("orders-value", json.dumps(MADE))
    target.registry.incompatible = ["reader field 'x' has no default"]
    with pytest.raises(OptionError, match=r"not compatible: reader field 'x' has no default"):
        target.write(batch())


def test_a_refused_schema_is_said_before_a_row_is_sent(target: Target) -> None:
    target.registry.add("orders-value", '"long"')
    target.registry.incompatible = ["the field 'who' …"]
    with pytest.raises(RegistryError, match="field 'who'"):
        target.write(batch(), auto__register__schemas="true")
    assert target.rows() == []


def test_the_latest_version(target: Target) -> None:
    text = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "who", "type": ["null", "string"]},
            {"name": "id", "type": "long"},
            {"name": "more", "type": "int", "default": 7},
        ],
    }
    target.registry.add("orders-value", '"long"')
    number = target.registry.add("orders-value", json.dumps(text))
    target.write(batch(), use__latest__version="true")
    first = target.rows()[0]["value"]
    assert first[:5] == b"\0" + number.to_bytes(4, "big")
    assert decoded(first[5:], text) == {"who": "a", "id": 1, "more": 7}
    with pytest.raises(OptionError, match="column value: "):
        target.write(batch(), valueSchemaVersion="1")


def test_ids_in_headers(target: Target) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None, None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    options: Any = {"auto__register__schemas": "true", "valueFraming": "headers"}
    target.write(batch(), **options)
    frame = {"key": "__value_schema_id", "value": b"\0\0\0\0\1"}
    assert [row["headers"] for row in target.rows()] == [[frame], None, [frame]]
    from pyspark.sql.types import BinaryType

    from tests.spark.schemas import headers_type

    schema = StructType().add("value", ORDER).add("headers", headers_type(BinaryType()))
    target.write(batch(headers=headers), schema=schema, **options)
    assert [row["headers"] for row in target.rows()[3:]] == [
        [{"key": "h", "value": b"1"}, frame],
        None,
        [frame],
    ]


def test_bare_payloads(target: Target) -> None:
    target.write(
        batch(),
        schema__registry__url="",
        valueFraming="none",
        valueSchema=json.dumps(MADE),
    )
    assert decoded(target.rows()[0]["value"], MADE) == {"id": 1, "who": "a"}


def test_keys(target: Target) -> None:
    schema = StructType().add("key", LongType()).add("value", StringType())
    rows = pa.record_batch({"key": pa.array([5, None]), "value": pa.array(["a", None])})
    target.write(
        rows,
        schema=schema,
        valueFormat="string",
        keyFormat="avro",
        auto__register__schemas="true",
    )
    assert list(target.registry.subjects) == ["orders-key"]
    assert [(row["key"], row["value"]) for row in target.rows()] == [
        (b"\0\0\0\0\1\x0a", b"a"),
        (None, None),
    ]


def test_a_value_that_cannot_be_written(target: Target) -> None:
    text = json.dumps({**MADE, "fields": [{"name": "id", "type": "long"}]})
    kind = pa.struct([("id", pa.int64())])
    schema = StructType().add("value", StructType().add("id", LongType()))
    target.registry.add("orders-value", text)
    with pytest.raises(EncodeError, match=r"column value, row 3 of this task: .*id"):
        target.write(
            batch([{"id": 1}] * 2, kind),
            batch([{"id": 1}, {"id": None}], kind),
            schema=schema,
            use__latest__version="true",
        )


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (StructType().add("value", ORDER), {"valueFormat": ""}, "valueFormat to write it with"),
        (StructType().add("value", ORDER), {"keyFormat": "avro"}, "needs a column key"),
        (
            StructType().add("value", ORDER).add("topic", StringType()),
            {"topic": ""},
            "set the option topic, or valueSubject",
        ),
        (StructType().add("value", IntegerType()), {"valueFormat": "string"}, "of type string"),
    ],
)
def test_mistakes(
    target: Target, schema: StructType, options: dict[str, str], message: str
) -> None:
    given = {"auto__register__schemas": "true", **options}
    if given.get("valueFormat", "avro") != "avro":
        given |= {"schema__registry__url": "", "auto__register__schemas": ""}
    if given.get("valueFormat") == "":
        given |= {"schema__registry__url": "", "auto__register__schemas": ""}
    with pytest.raises(OptionError, match=message):
        KafkaDataSource(target.options(**given)).writer(schema, False)


def test_records_of_several_subjects_by_name(target: Target) -> None:
    target.write(
        batch(),
        value__subject__name__strategy="record",
        valueSchema=json.dumps({**MADE, "namespace": "shop"}),
        auto__register__schemas="true",
    )
    assert list(target.registry.subjects) == ["shop.orders_value"]


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
@pytest.mark.parametrize("framing", ["confluent", "headers", "none"])
def test_what_is_written_is_read(target: Target, format: str, framing: str) -> None:
    options = {"valueFormat": format, "valueFraming": framing}
    schema, more = SCHEMA, {"auto__register__schemas": "true"}
    if framing == "none":
        proto = 'syntax = "proto3"; message Order { int64 id = 1; optional string who = 2; }'
        text = {"avro": json.dumps(MADE), "protobuf": proto, "json": ""}[format]
        more = {"schema__registry__url": "", "valueSchema": text}
    target.write(batch(), schema=schema, **options, **more)
    given = {
        "kafka.bootstrap.servers": target.cluster.bootstrap_servers,
        "subscribe": "orders",
        "schema.registry.url": "" if framing == "none" else target.registry.url,
        "valueSchema": more.get("valueSchema", ""),
        **options,
    }
    source = KafkaDataSource({name: value for name, value in given.items() if value})
    kind = StructType().add("id", LongType()).add("who", StringType())
    reader = source.reader(StructType().add("value", kind))
    (partition,) = reader.partitions()
    assert [row["value"] for item in reader.read(partition) for row in item.to_pylist()] == ROWS


def test_a_stream_s_commit_needs_no_registry(target: Target) -> None:
    options = target.options(use__latest__version="true")
    target.registry.add("orders-value", json.dumps(MADE))
    target.registry.refuse = 503
    options |= {
        "schema.registry.api.timeout.ms": "500",
        "schema.registry.request.timeout.ms": "300",
    }
    writer = KafkaDataSource(options).streamWriter(SCHEMA, False)
    writer.commit([], 0)
    with pytest.raises(KafkaTimeoutError, match="503"):
        pickle.loads(pickle.dumps(writer)).write(iter([batch()]))
    target.registry.refuse = 403
    with pytest.raises(RegistryError, match="403"):
        KafkaDataSource(options).streamWriter(SCHEMA, False)
    target.registry.refuse = None
    writer = KafkaDataSource(options).streamWriter(SCHEMA, False)
    assert pickle.loads(pickle.dumps(writer)).write(iter([batch()])).rows == 3


ENCRYPTS = {
    "ruleSet": {
        "domainRules": [
            {"name": "pii", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITEREAD"}
            | {"tags": ["PII"]}
        ]
    }
}
TAGGED = json.dumps(
    {
        **MADE,
        "fields": [MADE["fields"][0], {**MADE["fields"][1], "confluent:tags": ["PII"]}],
    }
)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("option", ["use.latest.version", "auto.register.schemas"])
def test_what_must_be_encrypted_is_not_written(target: Target, streams: bool, option: str) -> None:
    target.registry.add("orders-value", TAGGED, **ENCRYPTS)
    source = KafkaDataSource(target.options(**{option: "true"}))
    make = source.streamWriter if streams else source.writer
    with pytest.raises(SchemaError, match=r"encrypt orders_value\.who \(tagged PII\): pii \(ENC"):
        make(SCHEMA, False)
    assert target.rows() == []
    assert len(target.registry.schemas) == 1


@pytest.mark.usefixtures("no_warnings_so_far")
def test_a_read_names_the_encrypted_fields(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    target.registry.add("orders-value", TAGGED, **ENCRYPTS)
    target.write(batch(), use__latest__version="true", ignoreEncryptionRules="true")
    given = target.options(topic="", subscribe="orders")
    source = KafkaDataSource(given)
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    assert [row["value"] for item in reader.read(partition) for row in item.to_pylist()] == ROWS
    written, read = (
        record.getMessage() for record in caplog.records if "encrypt" in record.getMessage()
    )
    assert "written in plain text (ignoreEncryptionRules=true)" in written
    assert "version 1 has rules that encrypt orders_value.who (tagged PII): pii (ENC" in read


def test_columns_of_a_view_that_is_written(target: Target) -> None:
    """Spark asks for them where SQL names none."""
    options = target.options(keyFormat="string")
    with pytest.raises(RegistryError, match="no subject 'orders-value'"):
        KafkaDataSource(options).schema()
    target.registry.add("orders-value", json.dumps(MADE))
    schema = KafkaDataSource(options).schema()
    assert schema["value"].dataType == ORDER
    assert schema["key"].dataType == StringType()
    del options["topic"]
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        KafkaDataSource(options).schema()


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
}


@pytest.mark.parametrize("source", ["valueSchema", "latest version", "type of the rows"])
def test_the_depth_of_a_recursive_schema_is_for_types_that_the_schema_gives(
    target: Target, source: str
) -> None:
    options = target.options(**{"recursive.fields.max.depth": "2"})
    if source == "valueSchema":
        options |= {"valueSchema": json.dumps(NODE), "auto.register.schemas": "true"}
    elif source == "latest version":
        target.registry.add("orders-value", json.dumps(NODE))
        options["use.latest.version"] = "true"
    if source != "type of the rows":
        # A view without columns: Spark asks for the schema, and writes rows of these types.
        written = KafkaDataSource(options).schema()
        nodes = written["value"].dataType.simpleString()
        assert nodes == "struct<id:bigint,next:struct<id:bigint,next:string>>"
        written = StructType().add(written["value"])
        KafkaDataSource(options).writer(written, False)
        KafkaDataSource(options).streamWriter(written, False)
    node = StructType().add("id", LongType()).add("next", StringType())
    rows = StructType().add("value", node)
    for writer in (KafkaDataSource(options).writer, KafkaDataSource(options).streamWriter):
        with pytest.raises(
            OptionError,
            match=r"^option recursive\.fields\.max\.depth has no effect on the column value: it is "
            r"written with the type of its rows, struct<id:bigint,next:string>\. Remove the .*$",
        ):
            writer(rows, False)
    del options["recursive.fields.max.depth"]
    if source == "type of the rows":
        options["auto.register.schemas"] = "true"
    KafkaDataSource(options).writer(rows, False)


def test_the_registry_s_client_is_closed_after_planning(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.registry.add("orders-value", json.dumps(MADE))
    options = target.options(use__latest__version="true")
    source = KafkaDataSource(options)
    open_clients = open_registry_clients(monkeypatch)
    written = StructType().add(source.schema()["value"])
    source.writer(written, False)
    assert not open_clients
    with pytest.raises(OptionError, match="needs a column key"):
        KafkaDataSource({**options, "keyFormat": "avro"}).writer(SCHEMA, False)
    assert not open_clients
