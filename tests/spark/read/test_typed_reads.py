"""valueFormat and keyFormat in a read, by the calls that Spark makes. No Spark: a fake cluster and
a registry of one process."""

from __future__ import annotations

import json
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import nullcontext
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from sparkkafka.errors import (
    BadRecordError,
    BrokerError,
    ErrorCode,
    KafkaError,
    OptionError,
    RegistryError,
    SchemaError,
)
from sparkkafka.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from sparkkafka.spark.datasource import KafkaDataSource
from tests.schemas.small_registry import SmallRegistry
from tests.spark.typed_support import ORDER_1, ORDER_2, Topics, framed, struct


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    return Topics(fake_cluster, registry)


@pytest.fixture
def orders(topics: Topics) -> Topics:
    """Two good records, a tombstone, and one that is cut off, in topic orders."""
    number = topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("orders")
    good = [framed(number, ORDER_1, {"id": n, "who": f"w{n}"}) for n in (1, 2)]
    topics.put(
        "orders",
        [good[0], None, good[1][:-1], good[1]],
        keys=[b"a", b"b", b"c", None],
        headers=[None, None, [("h", b"1")], None],
    )
    return topics


def test_values(topics: Topics) -> None:
    number = topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("orders")
    topics.put("orders", [framed(number, ORDER_1, {"id": 1, "who": "a"}), None])
    rows = topics.read(topics.options("orders"))
    assert [row["value"] for row in rows] == [{"id": 1, "who": "a"}, None]
    assert [row["offset"] for row in rows] == [0, 1]


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_a_field_that_no_column_can_be_is_left_out(topics: Topics, format: str) -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "id", "type": "long"}],
    }
    frame, text = framed(1, node, {"next": {"next": None, "id": 8}, "id": 7}), json.dumps(node)
    if format == "protobuf":
        frame = b"\0\0\0\0\x01\0" + b"\x12\x02\x08\x08" + b"\x08\x07"
        text = 'syntax = "proto3"; message Node { int64 id = 1; Node next = 2; }'
    topics.registry.add("orders-value", text, format.upper())
    topics.cluster.create_topic("orders")
    topics.put("orders", [frame])
    options = topics.options("orders", valueFormat=format)
    with pytest.raises(SchemaError, match=r"subject orders-value cannot be a column.* itself"):
        KafkaDataSource(options).schema()
    rows = topics.read(options, struct(value=struct(id=LongType())))
    assert rows == [{"value": {"id": 7}}]


NODE_TEXTS = {
    "avro": json.dumps(
        {
            "type": "record",
            "name": "Node",
            "fields": [{"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
        }
    ),
    "protobuf": 'syntax = "proto3"; message Node { optional int32 id = 1; Node next = 2; }',
    "json": '{"properties": {"id": {"type": "integer"}, "next": {"$ref": "#"}}}',
}
NODES = {
    "avro": b"\0\0\0\0\x01" + b"\x02\x02\x04\x02\x06\0",
    "protobuf": b"\0\0\0\0\x01\0" + b"\x08\x01\x12\x06\x08\x02\x12\x02\x08\x03",
    "json": b'\0\0\0\0\x01{"id":1,"next":{"id":2,"next":{"id":3}}}',
}
"""1, 2 and 3, each in the one before."""


@pytest.mark.parametrize("format", ["avro", "protobuf", "json"])
def test_a_schema_that_contains_itself(topics: Topics, format: str) -> None:
    topics.registry.add("orders-value", NODE_TEXTS[format], format.upper())
    topics.cluster.create_topic("orders")
    topics.put("orders", [NODES[format], None])
    options = topics.options("orders", valueFormat=format)
    ways = r"Set recursive\.fields\.max\.depth to .*, or in \.schema\(…\) .*string .* binary$"
    with pytest.raises(SchemaError, match=rf"subject orders-value cannot be a column: .*{ways}"):
        KafkaDataSource(options).schema()
    id_ = "int" if format == "protobuf" else "bigint"
    kind = "string"
    for depth in (1, 2, 3, 4):
        kind = f"struct<id:{id_},next:{kind}>"
        given = {**options, "recursive.fields.max.depth": str(depth)}
        schema = KafkaDataSource(given).schema()
        assert schema["value"].dataType.simpleString() == kind
        row, nothing = topics.read(given, schema)
        assert nothing["value"] is None
        assert ids(row["value"]) == [1, 2, 3]
    with pytest.raises(OptionError, match=r"max\.depth has no effect on the column value, whose"):
        topics.read(given, struct(value=struct(next=StringType())))
    id_type = IntegerType() if format == "protobuf" else LongType()
    row = topics.read(options, struct(value=struct(id=id_type, next=StringType())))[0]
    assert ids(row["value"]) == [1, 2, 3]
    row = topics.read(options, struct(value=struct(id=id_type, next=BinaryType())))[0]
    assert row["value"]["id"] == 1 and row["value"]["next"] in NODES[format]
    levels = struct(value=struct(next=struct(next=struct(id=id_type))))
    assert topics.read(options, levels)[0]["value"] == {"next": {"next": {"id": 3}}}


def ids(node: Any) -> list[int]:
    """Of a chain of nodes, of which the last ones may be JSON text."""
    if node is None:
        return []
    found = json.loads(node) if isinstance(node, str) else node
    return [found["id"], *ids(found.get("next"))]


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_a_record_without_fields(topics: Topics, format: str) -> None:
    nothing = {"type": "record", "name": "Ping", "fields": []}
    frame, text = framed(1, nothing, {}), json.dumps(nothing)
    if format == "protobuf":
        frame, text = b"\0\0\0\0\x01\0", 'syntax = "proto3"; message Ping {}'
    topics.registry.add("orders-value", text, format.upper())
    topics.cluster.create_topic("orders")
    topics.put("orders", [frame, None])
    options = topics.options("orders", valueFormat=format)
    assert KafkaDataSource(options).schema()["value"].dataType == StructType([])
    assert [row["value"] for row in topics.read(options)] == [{}, None]


def test_what_was_chosen_is_pinned(topics: Topics) -> None:
    first = topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("orders")
    options = topics.options("orders")
    schema = KafkaDataSource(options).schema()
    assert schema["value"].metadata == {
        "sparkkafka": {"orders": {"subject": "orders-value", "id": first, "version": 1}}
    }
    second = topics.registry.add("orders-value", json.dumps(ORDER_2))
    topics.put("orders", [framed(second, ORDER_2, {"id": 1, "who": "a", "note": "n"})])
    rows = topics.read(options, schema)
    assert [row["value"] for row in rows] == [{"id": 1, "who": "a"}]
    # Anew, it is the latest.
    rows = topics.read(options)
    assert [row["value"] for row in rows] == [{"id": 1, "who": "a", "note": "n"}]


def test_writers_of_several_schemas(topics: Topics) -> None:
    first = topics.registry.add("orders-value", json.dumps(ORDER_1))
    second = topics.registry.add("orders-value", json.dumps(ORDER_2))
    topics.cluster.create_topic("orders")
    topics.put(
        "orders",
        [
            framed(second, ORDER_2, {"id": 1, "who": "a", "note": "n"}),
            framed(first, ORDER_1, {"id": 2, "who": "b"}),
            None,
            framed(second, ORDER_2, {"id": 3, "who": "c", "note": None}),
        ],
    )
    rows = topics.read(topics.options("orders"))
    assert [row["value"] for row in rows] == [
        {"id": 1, "who": "a", "note": "n"},
        {"id": 2, "who": "b", "note": None},
        None,
        {"id": 3, "who": "c", "note": None},
    ]


def test_only_the_fields_that_the_user_names(orders: Topics) -> None:
    options = orders.options("orders", onBadRecord="null")
    schema = StructType().add("value", struct(who=StringType())).add("offset", LongType())
    rows = orders.read(options, schema)
    assert rows == [
        {"value": {"who": "w1"}, "offset": 0},
        {"value": None, "offset": 1},
        {"value": None, "offset": 2},
        {"value": {"who": "w2"}, "offset": 3},
    ]


def test_fail(orders: Topics) -> None:
    message = r"topic orders partition 0 offset 2 \(schema id 1\): value: .*who.*onBadRecord=null"
    with pytest.raises(BadRecordError, match=message) as caught:
        orders.read(orders.options("orders"))
    payload = framed(1, ORDER_1, {"id": 2, "who": "w2"})[:-1]
    assert f"The value has {len(payload)} bytes. " in str(caught.value)
    assert payload[-3:].hex(" ") not in str(caught.value)


def test_bad_record_column(orders: Topics) -> None:
    rows = orders.read(orders.options("orders", onBadRecord="column"))
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, None, 2]
    bad = [row["bad_record"] for row in rows]
    assert bad[:2] == [None, None]
    assert bad[3] is None
    assert bad[2]["schema_id"] == 1
    assert bad[2]["raw"] == framed(1, ORDER_1, {"id": 2, "who": "w2"})[:-1]
    assert "value: " in bad[2]["error"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_topic_without_a_subject_may_be_misspelt(orders: Topics, exists: bool) -> None:
    if exists:
        orders.cluster.create_topic("ordrs")
    with pytest.raises(RegistryError, match="near names are 'orders-value'") as caught:
        KafkaDataSource(orders.options("ordrs")).schema()
    assert "topic ordrs: " in str(caught.value)
    assert ("topic ordrs does not exist in Kafka" in str(caught.value)) is not exists


def test_dead_letters(orders: Topics) -> None:
    orders.cluster.create_topic("dead", partitions=2)
    options = orders.options("orders", onBadRecord="deadLetter", **{"deadLetter.topic": "dead"})
    rows = orders.read(options)
    assert [row["offset"] for row in rows] == [0, 1, 3]
    (letter,) = orders.read(
        {
            "kafka.bootstrap.servers": orders.cluster.bootstrap_servers,
            "subscribe": "dead",
            "includeHeaders": "true",
        }
    )
    assert letter["key"] == b"c"
    assert letter["value"] == framed(1, ORDER_1, {"id": 2, "who": "w2"})[:-1]
    assert letter["timestamp"].timestamp() == 1_700_000_000
    headers = [(item["key"], item["value"]) for item in letter["headers"]]
    assert headers[0] == ("h", b"1")
    named = dict(headers[1:])
    assert named.pop("__connect.errors.exception.message").startswith(b"value: ")
    assert named == {
        "__connect.errors.topic": b"orders",
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": b"2",
        "__connect.errors.timestamp": b"1700000000000",
        "__connect.errors.stage": b"VALUE_CONVERTER",
        "__connect.errors.exception.class.name": b"sparkkafka.errors.BadRecordError",
    }


def test_rows_are_not_handed_on_before_their_dead_letters_are_written(
    orders: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300)
    options = orders.options(
        "orders",
        onBadRecord="deadLetter",
        **{"deadLetter.topic": "dead", "kafka.request.timeout.ms": "2000"},
    )
    reader = KafkaDataSource(options).reader(KafkaDataSource(options).schema())
    with pytest.raises(OptionError, match=r"deadLetter\.topic=dead does not exist: create it"):
        reader.partitions()
    orders.cluster.create_topic("dead")
    (partition,) = reader.partitions()
    orders.cluster.delete_topic("dead")
    with pytest.raises(OptionError, match=r"deadLetter\.topic=dead no longer exists"):
        next(reader.read(partition))
    orders.cluster.create_topic("dead")
    orders.cluster.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Produce")
    denied = r"deadLetter\.topic=dead cannot be written by this user: grant WRITE on topic dead"
    with pytest.raises(BrokerError, match=denied):
        next(reader.read(partition))
    assert orders.cluster.log("dead", 0).end_offset == 0
    assert sum(batch.num_rows for batch in reader.read(partition)) == 3
    assert orders.cluster.log("dead", 0).end_offset == 1


def test_a_dead_letter_above_the_topic_s_limit(orders: Topics) -> None:
    """The cluster's own limit is meant for batches as they are sent: compressed, if they can be."""
    orders.cluster.create_topic("dead", configs={"max.message.bytes": "2000"})
    options = orders.options("orders", onBadRecord="deadLetter", **{"deadLetter.topic": "dead"})
    orders.put("orders", [b"x" * 100_000])
    assert [row["offset"] for row in orders.read(options)] == [0, 1, 3]
    orders.put("orders", [random.Random(0).randbytes(4_000), b"x"])
    with pytest.raises(KafkaError) as caught:
        orders.read(options)
    text = str(caught.value)
    assert (
        "deadLetter.topic=dead did not accept the bad records of topic orders partition 0" in text
    )
    assert "raise that, or read with onBadRecord=column" in text
    assert "max.message.bytes=2000" in text


@pytest.mark.parametrize(
    ("rights", "denied"), [(1 << 8, True), (1 << 8 | 1 << 4, False), (0, False)]
)
def test_a_dead_letter_topic_that_may_not_be_written_is_an_error_when_the_read_is_planned(
    orders: Topics, rights: int, denied: bool
) -> None:
    orders.cluster.create_topic("dead")
    options = orders.options("orders", onBadRecord="deadLetter", **{"deadLetter.topic": "dead"})
    reader = KafkaDataSource(options).reader(KafkaDataSource(options).schema())

    def tells(request: Any) -> Any:
        if not request.message.include_topic_authorized_operations:
            return None
        row = MetadataResponseTopic(name="dead", topic_authorized_operations=rights)
        return MetadataResponse(brokers=[broker], topics=[row])

    host, _, port = orders.cluster.bootstrap_servers.partition(",")[0].rpartition(":")
    broker = MetadataResponseBroker(node_id=0, host=host, port=int(port))
    asked = orders.cluster.fault(tells, api="Metadata", times=None)
    message = r"deadLetter\.topic=dead cannot be written by this user: grant WRITE on topic dead"
    with pytest.raises(BrokerError, match=message) if denied else nullcontext():
        reader.partitions()
    assert asked.fired


def test_a_dead_letter_topic_that_may_not_be_seen(orders: Topics) -> None:
    orders.cluster.create_topic("dead")
    options = orders.options("orders", onBadRecord="deadLetter", **{"deadLetter.topic": "dead"})
    reader = KafkaDataSource(options).reader(KafkaDataSource(options).schema())
    orders.cluster.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Metadata", topic="dead")
    with pytest.raises(BrokerError, match=r"deadLetter\.topic=dead .* grant WRITE on topic dead"):
        reader.partitions()


KILLED = """
import os, pickle, signal, sys
from sparkkafka.spark.read import dead_letters

write = dead_letters.DeadLetters.write

def killed(*given):
    write(*given)  # acknowledged
    os.kill(os.getpid(), signal.SIGKILL)

dead_letters.DeadLetters.write = killed
reader, partition = pickle.load(sys.stdin.buffer)
print(sum(batch.num_rows for batch in reader.read(partition)))
"""


@pytest.mark.slow
def test_a_worker_killed_between_dead_letters_and_rows_loses_nothing(orders: Topics) -> None:
    """Spark's retry writes the dead letter again: twice there, and never a row less."""
    orders.cluster.create_topic("dead")
    options = orders.options("orders", onBadRecord="deadLetter", **{"deadLetter.topic": "dead"})
    reader = KafkaDataSource(options).reader(KafkaDataSource(options).schema())
    (partition,) = reader.partitions()
    task = pickle.dumps((reader, partition))
    first = subprocess.run(
        [sys.executable, "-c", KILLED], input=task, capture_output=True, timeout=120, check=False
    )
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, b""), first.stderr
    assert orders.cluster.log("dead", 0).end_offset == 1
    rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [0, 1, 3]
    letters = orders.read(
        {
            "kafka.bootstrap.servers": orders.cluster.bootstrap_servers,
            "subscribe": "dead",
            "includeHeaders": "true",
        }
    )
    assert len(letters) == 2
    assert letters[0]["headers"] == letters[1]["headers"]
    assert letters[0]["value"] == letters[1]["value"]


def test_dead_letters_are_not_read_again(orders: Topics) -> None:
    options = orders.options("orders", onBadRecord="deadLetter", **{"deadLetter.topic": "orders"})
    schema = KafkaDataSource(options).schema()
    with pytest.raises(OptionError, match="is one of the topics that are read"):
        KafkaDataSource(options).reader(schema)
    del options["subscribe"]
    with pytest.raises(OptionError, match="is one of the topics that are read"):
        KafkaDataSource({**options, "subscribePattern": "or.*"}).reader(schema)


def test_one_subject_for_all_topics(topics: Topics) -> None:
    number = topics.registry.add("s", json.dumps(ORDER_1))
    for name in ("a", "b"):
        topics.cluster.create_topic(name)
        topics.put(name, [framed(number, ORDER_1, {"id": 1, "who": name})])
    options = topics.options("a,b", valueSubject="s")
    assert [row["value"]["who"] for row in topics.read(options)] == ["a", "b"]


def test_options_of_a_stream_or_of_a_batch(orders: Topics) -> None:
    for more in (
        {"startingOffsets": "latest", "maxOffsetsPerTrigger": "5"},
        {"endingOffsets": "latest"},
    ):
        assert "value" in KafkaDataSource(orders.options("orders", **more)).schema().names


def test_ids_in_headers(topics: Topics) -> None:
    number = topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("orders")
    frame = framed(number, ORDER_1, {"id": 1, "who": "a"})
    topics.put(
        "orders",
        [frame[5:], frame],
        headers=[[("__value_schema_id", frame[:5])], [("x", b"")]],
    )
    rows = topics.read(topics.options("orders"))
    assert [row["value"] for row in rows] == [{"id": 1, "who": "a"}] * 2


def test_records_of_other_serializers_are_named(topics: Topics) -> None:
    topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("orders")
    bare = framed(1, ORDER_1, {"id": 1, "who": "a"})[5:]
    topics.put(
        "orders",
        [b"\3\0" + bytes(16) + bare, bare, b"\0" + (7).to_bytes(8, "big") + bare],
        headers=[None, [("content-type", b"avro/binary+64a1")], None],
    )
    rows = topics.read(topics.options("orders", onBadRecord="column"))
    assert [row["bad_record"]["error"].partition("; it looks like ")[2] for row in rows] == [
        f"AWS Glue's framing (schema version {uuid.UUID(int=0)})",
        "the framing of Azure's Schema Registry in headers (schema id 64a1)",
        "Apicurio's framing with ids of 8 bytes (id 7)",
    ]
    with pytest.raises(BadRecordError, match="it looks like AWS Glue's framing"):
        topics.read(topics.options("orders"))


def test_an_unknown_id_is_a_bad_record_and_an_absent_registry_an_error(topics: Topics) -> None:
    topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("orders")
    topics.put("orders", [framed(77, ORDER_1, {"id": 1, "who": "a"}), b"\0\0\0\0\x63{}", b"{}"])
    few = {"schema.registry.api.timeout.ms": "500"}
    options = topics.options("orders", onBadRecord="column", **few)
    rows = topics.read(options)
    assert [row["bad_record"]["error"] for row in rows] == [
        "value: the registry does not know schema id 77",
        "value: the registry does not know schema id 99",
        "value: it begins with byte 0x7b, not with 0x00 and a schema id (valueFraming=none reads "
        "payloads without an id); it looks like plain JSON",
    ]
    assert [row["bad_record"]["schema_id"] for row in rows] == [77, 99, None]
    schema = KafkaDataSource(options).schema()
    reader = KafkaDataSource(options).reader(schema)
    topics.registry.refuse = 500
    (partition,) = reader.partitions()
    with pytest.raises(KafkaError, match="500"):
        list(reader.read(partition))


def test_a_task_outlives_a_registry_that_starts_again(topics: Topics) -> None:
    """The driver, where somebody waits, gives up after three retries."""
    number = topics.registry.add("orders-value", json.dumps(ORDER_2))
    topics.cluster.create_topic("orders")
    topics.put("orders", [framed(number, ORDER_2, {"id": 1, "who": "a", "note": None})])
    quick = {"schema.registry.retries.wait.ms": "1", "schema.registry.retries.max.wait.ms": "20"}
    options = topics.options("orders", valueSchema=json.dumps(ORDER_1), **quick)
    schema = KafkaDataSource(options).schema()
    reader = KafkaDataSource(options).reader(schema)
    (partition,) = reader.partitions()
    topics.registry.refuse = 503
    with pytest.raises(KafkaError, match=r"tried 4 times \(schema\.registry\.max\.retries=3\)"):
        KafkaDataSource(topics.options("orders", **quick)).schema()
    asked = len(topics.registry.requests)

    def start_again() -> None:
        while len(topics.registry.requests) < asked + 8:
            time.sleep(0.01)
        topics.registry.refuse = None

    thread = threading.Thread(target=start_again, daemon=True)
    thread.start()
    (batch,) = reader.read(partition)
    assert batch.num_rows == 1
    thread.join()


def test_an_id_of_another_subject(topics: Topics) -> None:
    topics.registry.add("orders-value", json.dumps(ORDER_1))
    other = topics.registry.add("clicks-value", '{"type": "string"}')
    topics.cluster.create_topic("orders")
    topics.put("orders", [framed(other, "string", "x")])
    with pytest.raises(BadRecordError, match="id 2 belongs to 'clicks-value'"):
        topics.read(topics.options("orders"))


def test_a_schema_that_cannot_be_a_column(topics: Topics) -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}
    topics.registry.add("orders-value", json.dumps(tree))
    with pytest.raises(SchemaError, match=r"subject orders-value cannot be a column: .*T"):
        KafkaDataSource(topics.options("orders")).schema()


def test_text_has_no_bad_records(topics: Topics) -> None:
    topics.cluster.create_topic("t")
    options = topics.options("t", valueFormat="string", onBadRecord="null")
    del options["schema.registry.url"]
    with pytest.raises(OptionError, match="invalidUtf8=null"):
        topics.read(options)


def test_topics_of_one_type(topics: Topics) -> None:
    for name in ("orders", "returns"):
        number = topics.registry.add(f"{name}-value", json.dumps({**ORDER_1, "name": name}))
        topics.cluster.create_topic(name)
        topics.put(name, [framed(number, ORDER_1, {"id": 1, "who": name})])
    rows = topics.read(topics.options("orders,returns"))
    assert [row["value"]["who"] for row in rows] == ["orders", "returns"]
    assert sorted(KafkaDataSource(topics.options("orders,returns")).schema()["value"].metadata[
        "sparkkafka"
    ]) == ["orders", "returns"]  # fmt: skip
    topics.registry.add("returns-value", json.dumps(ORDER_2))
    with pytest.raises(OptionError, match=r"orders-value gives struct<id:bigint,who:string>, ret"):
        KafkaDataSource(topics.options("orders,returns")).schema()


def test_a_schema_of_many_topics_travels_once(topics: Topics) -> None:
    text = json.dumps({**ORDER_1, "doc": "x" * 10_000})
    names = [f"t{n}" for n in range(20)]
    for name in names:
        topics.registry.add(f"{name}-value", text)
    options = topics.options(",".join(names))
    reader = KafkaDataSource(options).reader(KafkaDataSource(options).schema())
    assert len(pickle.dumps(reader)) < 40_000


def test_a_pattern_s_topics_are_looked_up(orders: Topics) -> None:
    options = orders.options("orders", onBadRecord="null")
    del options["subscribe"]
    rows = orders.read({**options, "subscribePattern": "ord.*"})
    assert len(rows) == 4
    with pytest.raises(OptionError, match="matches no topic"):
        KafkaDataSource({**options, "subscribePattern": "none.*"}).schema()


def test_keys_too(topics: Topics) -> None:
    topics.registry.add("t-key", '"long"')
    topics.cluster.create_topic("t")
    topics.put("t", [b"text", b"text"], keys=[framed(1, "long", 7), None])
    options = topics.options("t", valueFormat="string", keyFormat="avro")
    rows = topics.read(options)
    assert [(row["key"], row["value"]) for row in rows] == [(7, "text"), (None, "text")]


def test_the_subject_is_missing(topics: Topics) -> None:
    topics.registry.add("orders-value", json.dumps(ORDER_1))
    topics.cluster.create_topic("order")
    with pytest.raises(RegistryError, match="near names are 'orders-value'"):
        KafkaDataSource(topics.options("order")).schema()


def test_a_schema_without_frames(topics: Topics) -> None:
    topics.cluster.create_topic("t")
    topics.put("t", [framed(1, ORDER_1, {"id": 1, "who": "a"})[5:]])
    options = topics.options("t", valueFraming="none", valueSchema=json.dumps(ORDER_1))
    del options["schema.registry.url"]
    assert [row["value"] for row in topics.read(options)] == [{"id": 1, "who": "a"}]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (struct(value=struct(ids=LongType())), "ids"),
        (struct(value=struct(id=LongType(), who=IntegerType())), "who"),
        (struct(value=StringType()), "string"),
        (struct(value=struct(id=LongType()), bad_record=StringType()), "does not exist"),
        (struct(value=struct(id=LongType()), key=LongType()), "'key' of the schema must be binary"),
        (
            struct(id=LongType(), offset=LongType(), who=StringType()),
            r"column 'id' .* belongs to the column value: "
            r'\.schema\("value struct<id:bigint,who:string>"\)',
        ),
    ],
)
def test_types_that_the_schema_does_not_give(
    orders: Topics, schema: StructType, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaDataSource(orders.options("orders")).reader(schema)


def test_the_topic_whose_schema_does_not_give_the_type(orders: Topics) -> None:
    orders.registry.add("more-value", json.dumps(ORDER_2))
    orders.cluster.create_topic("more")
    schema = struct(value=struct(note=StringType()))
    with pytest.raises(OptionError, match=r"column value, subject orders-value: .*note"):
        KafkaDataSource(orders.options("more,orders")).reader(schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onBadRecord": "column"}, r"add 'bad_record struct<error: string, schema_id: int, raw: "),
        ({"valueFormat": "json", "rescuedColumn": "true"}, "add 'rescued string'"),
    ],
)
def test_columns_beside_that_a_schema_must_have(
    topics: Topics, options: dict[str, str], message: str
) -> None:
    topics.registry.add("t-value", "{}", "JSON")
    schema = struct(value=struct(id=LongType()))
    with pytest.raises(OptionError, match=message):
        KafkaDataSource(topics.options("t", **options)).reader(schema)


@pytest.mark.parametrize("what", ["null", "deadLetter"])
def test_bad_records_of_a_schema_without_the_column(orders: Topics, what: str) -> None:
    more = {"deadLetter.topic": "dead"} if what == "deadLetter" else {}
    options = orders.options("orders", onBadRecord=what, **more)
    message = (
        rf"onBadRecord={what} has no effect: the schema has no column value, .*or remove onBad"
    )
    with pytest.raises(OptionError, match=message):
        KafkaDataSource(options).reader(struct(offset=LongType()))
    rows = orders.read(orders.options("orders"), struct(offset=LongType()))
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]


def test_not_null_where_null_may_be(topics: Topics) -> None:
    topics.registry.add("t-value", json.dumps(ORDER_2))
    schema = struct(value=StructType().add("note", StringType(), nullable=False))
    with pytest.raises(OptionError, match=r"value\.note of the schema cannot be NOT NULL"):
        KafkaDataSource(topics.options("t")).reader(schema)


def test_a_task_asks_no_registry_for_the_reader_s_own_schema(orders: Topics) -> None:
    options = orders.options("orders", onBadRecord="null")
    reader = KafkaDataSource(options).reader(KafkaDataSource(options).schema())
    orders.registry.refuse = 500
    assert (
        sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))
        == 4
    )


# --- Protobuf -----------------------------------------------------------------------------------

PROTO = """
syntax = "proto3";
package shop;
message Other { string x = 1; }
message Order {
  message Line { int32 n = 1; }
  int64 id = 1;
  repeated string tags = 2;
  Line line = 3;
}
"""


@pytest.fixture
def protos(topics: Topics) -> Topics:
    number = topics.registry.add("t-value", PROTO, "PROTOBUF")
    topics.cluster.create_topic("t")
    head = b"\0" + number.to_bytes(4, "big")
    topics.put(
        "t",
        [
            head + b"\2\2" + b"\x08\x07\x12\x01a\x12\x01b",
            head + b"\0" + b"\x0a\x01x",
            None,
            head + b"\2\2" + b"\x08",
            head + b"\2\2",
        ],
    )
    return topics


def test_protobuf_messages_by_name(protos: Topics) -> None:
    options = protos.options(
        "t", valueFormat="protobuf", valueSchemaMessage="Order", onBadRecord="column"
    )
    rows = protos.read(options)
    assert [row["value"] for row in rows] == [
        {"id": 7, "tags": ["a", "b"], "line": None},
        None,
        None,
        None,
        {"id": 0, "tags": [], "line": None},
    ]
    assert [row["bad_record"] and row["bad_record"]["schema_id"] for row in rows] == [
        None,
        1,
        None,
        1,
        None,
    ]
    assert rows[1]["bad_record"]["error"] == (
        "value: it is a message shop.Other (schema id 1), not shop.Order, which "
        "valueSchemaMessage chooses"
    )
    with pytest.raises(OptionError, match=r"no message .Orders.: did you mean Order"):
        KafkaDataSource({**options, "valueSchemaMessage": "Orders"}).schema()


def test_protobuf_of_a_newer_schema(protos: Topics) -> None:
    newer = protos.registry.add(
        "t-value", PROTO.replace("int64 id = 1;", "int64 id = 1; string more = 9;"), "PROTOBUF"
    )
    value = b"\0" + newer.to_bytes(4, "big") + b"\2\2" + b"\x08\x09\x4a\x01m"
    protos.put("t", [value])
    options = protos.options(
        "t",
        valueFormat="protobuf",
        valueSchemaMessage="shop.Order",
        onBadRecord="null",
        valueSchemaVersion="1",
    )
    schema = struct(value=struct(id=LongType()))
    assert [row["value"] for row in protos.read(options, schema)] == [
        {"id": 7}, None, None, None, {"id": 0}, {"id": 9},
    ]  # fmt: skip
    del options["valueSchemaVersion"]
    assert protos.read(options)[-1]["value"] == {"id": 9, "tags": [], "line": None, "more": "m"}


# --- JSON ---------------------------------------------------------------------------------------


@pytest.fixture
def texts(topics: Topics) -> Topics:
    topics.cluster.create_topic("t")
    topics.put(
        "t",
        [b'{"id": 1, "who": "a"}', None, b'\0\0\0\0\1{"id": 2, "who": "b", "more": [1]}', b"{"],
    )
    return topics


def json_options(topics: Topics, **more: str) -> dict[str, str]:
    options = topics.options("t", valueFormat="json", onBadRecord="null", **more)
    del options["schema.registry.url"]
    return options


def test_json_of_a_given_type(texts: Topics) -> None:
    rows = texts.read(json_options(texts), struct(value=struct(who=StringType())))
    assert [row["value"] for row in rows] == [{"who": "a"}, None, {"who": "b"}, None]


def test_json_of_an_inferred_type(texts: Topics) -> None:
    options = json_options(texts, valueSchema="infer")
    rows = texts.read(options)
    assert [row["value"] for row in rows] == [
        {"id": 1, "more": None, "who": "a"},
        None,
        {"id": 2, "more": [1], "who": "b"},
        None,
    ]
    texts.cluster.create_topic("empty")
    with pytest.raises(OptionError, match="no record has a value"):
        KafkaDataSource({**options, "subscribe": "empty"}).schema()


def test_the_sample_of_large_records_has_the_newest(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit in bytes does not leave out the last records, which have the newest fields."""
    monkeypatch.setattr("sparkkafka.spark.read.typed_columns.SAMPLE_ROWS", 10)
    monkeypatch.setattr("sparkkafka.spark.read.typed_columns._SAMPLE_BYTES", 1_000)
    topics.cluster.create_topic("t")
    old = json.dumps({"old": "o" * 300}).encode()
    topics.put("t", [old] * 30 + [b'{"new": 1}'] * 5)
    schema = KafkaDataSource(json_options(topics, valueSchema="infer")).schema()
    assert schema["value"].dataType.names == ["old", "new"]


def test_json_without_a_type(texts: Topics) -> None:
    with pytest.raises(OptionError, match="valueFormat=json needs the type of value"):
        KafkaDataSource(json_options(texts)).schema()


def test_json_by_the_registry_s_schema_with_the_rest(texts: Topics) -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "who": {"type": "string"}},
    }
    texts.registry.add("t-value", json.dumps(schema), "JSON")
    options = texts.options("t", valueFormat="json", onBadRecord="column", rescuedColumn="true")
    rows = texts.read(options)
    assert [row["value"] for row in rows] == [
        {"id": 1, "who": "a"},
        None,
        {"id": 2, "who": "b"},
        None,
    ]
    assert [row["rescued"] for row in rows] == [None, None, '{"more":[1]}', None]
    assert [row["bad_record"] is None for row in rows] == [True, True, True, False]


# --- secrets ------------------------------------------------------------------------------------


def test_no_secret_leaves_the_driver(
    orders: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REGISTRY_USER", "user:hidden-word")
    options = orders.options("orders", onBadRecord="null")
    options["schema.registry.basic.auth.credentials.source"] = "USER_INFO"
    options["schema.registry.basic.auth.user.info"] = "${env:REGISTRY_USER}"
    source = KafkaDataSource(options)
    schema = source.schema()
    reader = source.reader(schema)
    copy = pickle.dumps(reader)
    assert b"hidden-word" not in copy
    assert "hidden-word" not in schema.json() + repr(reader.options) + caplog.text
    assert (
        len(
            [row for partition in reader.partitions() for row in pickle.loads(copy).read(partition)]
        )
        == 1
    )
