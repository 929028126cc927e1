"""Reads with envelope=debezium, by the calls that Spark makes: the columns of the table and change.
No Spark: a fake cluster and a registry of one process."""

from __future__ import annotations

import datetime
import json
import re
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from sparkkafka.errors import BadRecordError, OptionError, SchemaError
from sparkkafka.spark.datasource import KafkaDataSource
from tests.schemas.envelopes.debezium_records import (
    avro_envelope,
    connect_envelope,
    connect_field,
    payload,
    with_schema,
)
from tests.schemas.small_registry import SmallRegistry
from tests.spark.typed_support import Topics, framed, struct

TOPIC = "shop.public.customers"
COLUMNS = [
    connect_field("id", "int64", optional=False),
    connect_field("city", "string"),
    connect_field("born", "int32", "io.debezium.time.Date"),
]
KEY = {"type": "struct", "fields": [COLUMNS[0]], "name": "shop.public.customers.Key"}


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic(TOPIC)
    return Topics(fake_cluster, registry)


ROWS = [
    {"id": 1, "city": "Bonn", "born": 7305},
    {"id": 1, "city": "Kiel", "born": None},
    {"id": 2, "city": "Ulm", "born": None},
]


def put_changes(topics: Topics) -> None:
    """A create, an update, a delete and its tombstone, with schemas beside the payloads."""
    schema = connect_envelope(COLUMNS)
    values = [
        with_schema(schema, payload("c", None, ROWS[0], lsn=8)),
        with_schema(schema, payload("u", ROWS[0], ROWS[1], lsn=9)),
        with_schema(schema, payload("d", ROWS[2], None, lsn=10)),
        None,
    ]
    keys = [with_schema(KEY, {"id": number}) for number in (1, 1, 2, 2)]
    topics.put(TOPIC, values, keys)


def test_a_topic_with_schemas_is_a_table(topics: Topics) -> None:
    put_changes(topics)
    options = topics.json_changes(TOPIC)
    schema = KafkaDataSource(options).schema()
    assert schema.names == ["id", "city", "born", "change"]
    change = schema["change"].dataType
    assert isinstance(change, StructType)
    assert change.names == [
        *("op", "kind", "ts_ms", "ts_us", "position", "source", "transaction", "key", "old_key"),
        *("unavailable", "topic", "partition", "offset", "timestamp"),
    ]
    rows = topics.read(options)
    changes = [row.pop("change") for row in rows]
    assert rows == [
        {"id": 1, "city": "Bonn", "born": datetime.date(1990, 1, 1)},
        {"id": 1, "city": "Kiel", "born": None},
        {"id": 2, "city": "Ulm", "born": None},
        {"id": None, "city": None, "born": None},
    ]
    assert [(row["op"], row["kind"]) for row in changes] == [
        ("c", "row"),
        ("u", "row"),
        ("d", "row"),
        (None, "tombstone"),
    ]
    assert [row["key"]["id"] for row in changes] == [1, 1, 2, 2]
    assert [row["old_key"] for row in changes] == [None] * 4
    assert [row["offset"] for row in changes] == [0, 1, 2, 3]
    assert {row["topic"] for row in changes} == {TOPIC}
    assert [row["position"] for row in changes] == [f"{lsn:020}" for lsn in (8, 9, 10)] + [None]
    assert changes[0]["source"]["table"] == "t"
    assert changes[3]["timestamp"] is not None


def test_a_schema_names_some_columns_without_any_in_the_records(topics: Topics) -> None:
    topics.put(
        TOPIC,
        [
            json.dumps(payload("c", None, ROWS[0])).encode(),
            b'{"ts_ms": 5}',
            b'{"status": "BEGIN", "id": "7:1", "ts_ms": 5}',
            b'{"source": {"lsn": 4}, "ddl": "CREATE TABLE t (id int)", "ts_ms": 5}',
            json.dumps(payload("t", None, None)).encode(),
            json.dumps(payload("m", None, None)).encode(),
        ],
    )
    text = StringType()
    schema = struct(born=DateType(), id=IntegerType(), change=struct(op=text, kind=text))
    rows = topics.read(topics.json_changes(TOPIC), schema)
    assert rows[0] == {
        "born": datetime.date(1990, 1, 1),
        "id": 1,
        "change": {"op": "c", "kind": "row"},
    }
    assert [row["change"]["kind"] for row in rows] == [
        *("row", "heartbeat", "transaction", "schema_change", "truncate", "message"),
    ]
    assert all(row["id"] is None for row in rows[1:])


def test_the_position_of_each_connector(topics: Topics) -> None:
    """Without a schema."""
    lsn = "00000027:00000758:0003"
    sources: list[tuple[dict[str, Any], str]] = [
        ({"lsn": 24_023_128}, f"{24_023_128:020}"),
        ({"file": "mysql-bin.000003", "pos": 154, "row": 1}, f"{3:020}:{154:020}:{1:010}"),
        ({"change_lsn": None, "commit_lsn": lsn, "event_serial_no": None}, f"{lsn}:{0:010}"),
        ({"change_lsn": lsn, "commit_lsn": "z", "event_serial_no": "2"}, f"{lsn}:{2:010}"),
        ({"change_lsn": "99999", "commit_lsn": "1000000"}, f"{99_999:020}:{0:010}"),  # Informix
        ({"scn": "2122185"}, f"{2_122_185:020}"),
    ]
    topics.put(
        TOPIC,
        [
            json.dumps({"op": "c", "after": {"id": 1}, "source": source}).encode()
            for source, _ in sources
        ],
    )
    schema = struct(id=LongType(), change=struct(position=StringType()))
    rows = topics.read(topics.json_changes(TOPIC), schema)
    assert [row["change"]["position"] for row in rows] == [position for _, position in sources]


def test_a_table_whose_only_column_is_named_value(topics: Topics) -> None:
    topics.put(TOPIC, [json.dumps(payload("c", None, {"value": {"a": 1}})).encode()])
    schema = struct(value=struct(a=LongType()), change=struct(op=StringType()))
    rows = topics.read(topics.json_changes(TOPIC), schema)
    assert rows == [{"value": {"a": 1}, "change": {"op": "c"}}]


def test_a_flattened_row_is_no_envelope(topics: Topics) -> None:
    schema = {"type": "struct", "fields": [COLUMNS[0], connect_field("__op", "string")]}
    topics.put(TOPIC, [with_schema(schema, {"id": 1, "__op": "c"})])
    with pytest.raises(SchemaError, match=r"it has id, __op.* set envelope=debezium-flat"):
        KafkaDataSource(topics.json_changes(TOPIC)).schema()


def test_json_with_a_json_schema(topics: Topics) -> None:
    """As Confluent's JsonSchemaConverter writes it: the title is the semantic type, and decimals
    are base64 or numbers, whatever the schema's type is."""
    connect = "org.apache.kafka.connect.data"
    scale = {"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}}
    columns = {
        "id": {"type": "integer", "connect.type": "int32"},
        "price": {"type": "number", "title": f"{connect}.Decimal", **scale},
        "day": {"type": "integer", "title": f"{connect}.Date", "connect.type": "int32"},
        "at": {"type": "integer", "title": f"{connect}.Timestamp", "connect.type": "int64"},
        "born": {"type": "integer", "title": "io.debezium.time.Date", "connect.type": "int32"},
    }
    row = {"oneOf": [{"type": "null"}, {"type": "object", "properties": columns}]}
    fields = {"before": row, "after": row, "op": {"type": "string"}}
    envelope = json.dumps({"type": "object", "properties": fields})
    number = topics.registry.add(f"{TOPIC}-value", envelope, "JSON")
    values = {"id": 1, "day": 7305, "at": 1_700_000_000_000, "born": 7305}
    topics.put(
        TOPIC,
        [
            b"\0"
            + number.to_bytes(4, "big")
            + json.dumps({"op": "c", "after": values | {"price": price}}).encode()
            for price in ("MDk=", 1234)
        ],
    )
    day, at = datetime.date(1990, 1, 1), datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    rows = topics.read(topics.options(TOPIC, valueFormat="json", envelope="debezium"))
    assert [row["price"] for row in rows] == [Decimal("123.45"), Decimal("1234.00")]
    assert [rows[0][name] for name in ("day", "at", "born")] == [day, at, day]


def test_a_comment_names_the_semantic_type_of_a_column(topics: Topics) -> None:
    row = {"id": 1, "at": 1_700_000_000_123_456, "price": "MDk="}
    topics.put(TOPIC, [json.dumps(payload("c", None, row)).encode()])
    comments = ["io.debezium.time.MicroTimestamp", "org.apache.kafka.connect.data.Decimal"]
    at, price = ({"comment": comment} for comment in comments)
    schema = StructType().add("at", TimestampType(), True, at)
    schema = schema.add("price", DecimalType(10, 2), True, price)
    [found] = topics.read(topics.json_changes(TOPIC), schema)
    assert found["at"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert found["price"] == Decimal("123.45")


def test_records_without_a_schema_need_the_columns(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.put(TOPIC, [json.dumps(payload("c", None, ROWS[0])).encode()])
    with pytest.raises(OptionError, match=r"schemas.enable=true .* call .schema.* infer"):
        KafkaDataSource(topics.json_changes(TOPIC)).schema()
    [row] = topics.read(topics.json_changes(TOPIC, valueSchema="infer"))
    assert {name: row[name] for name in ROWS[0]} == ROWS[0]
    [warning] = {text for text in caplog.messages if "infer" in text}
    assert re.search(r"the columns are .*id bigint, .*change struct<op:string,.*offset:", warning)


def test_inferred_keys_are_warned_of_too(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    topics.put(TOPIC, [json.dumps(payload("c", None, ROWS[0])).encode()], keys=[b'{"id": 1}'])
    row = {"type": "object", "properties": {"id": {"type": "integer"}}}
    sides = {"before": row, "after": row, "op": {"type": "string"}}
    schema = json.dumps({"type": "object", "properties": sides})
    options = topics.json_changes(TOPIC, valueSchema=schema, keyFormat="json", keySchema="infer")
    KafkaDataSource(options).schema()
    [warning] = [text for text in caplog.messages if "infer" in text]
    assert warning.startswith("keySchema=infer: ")
    assert "key:struct<id:bigint>" in warning


def test_a_column_is_added_in_the_middle(topics: Topics) -> None:
    wider = [*COLUMNS, connect_field("zip", "string")]
    topics.put(
        TOPIC,
        [
            with_schema(connect_envelope(COLUMNS), payload("c", None, ROWS[0])),
            with_schema(connect_envelope(wider), payload("u", None, {**ROWS[1], "zip": "24103"})),
        ],
    )
    rows = topics.read(topics.json_changes(TOPIC))
    assert [(row["id"], row["zip"]) for row in rows] == [(1, None), (1, "24103")]


def without_metadata(schema: StructType) -> StructType:
    return struct(**{field.name: field.dataType for field in schema})


@pytest.mark.parametrize("form", ["json", "avro"])
def test_a_read_that_began_before_a_column_was_added_fails_there(topics: Topics, form: str) -> None:
    """A running query would lose its values; its next start has the column."""
    new_row = {**ROWS[1], "born": 1, "zip": "24103"}
    if form == "json":
        options = topics.json_changes(TOPIC)
        wider = connect_envelope([*COLUMNS, connect_field("zip", "string")])
        changes = [
            with_schema(connect_envelope(COLUMNS), payload("c", None, ROWS[0])),
            with_schema(wider, payload("u", None, new_row)),
        ]
    else:
        options = topics.options(TOPIC, envelope="debezium")
        old = [("id", "long"), ("city", "string"), ("born", "int")]
        texts = [avro_envelope(old), avro_envelope([*old, ("zip", "string")])]
        ids = [topics.registry.add(f"{TOPIC}-value", json.dumps(texts[0]))]
        changes = [framed(ids[0], texts[0], payload("c", None, ROWS[0]))]
    topics.put(TOPIC, changes[:1])
    began_with = StructType.fromJson(json.loads(KafkaDataSource(options).schema().json()))
    if form == "avro":
        ids.append(topics.registry.add(f"{TOPIC}-value", json.dumps(texts[1])))
        changes.append(framed(ids[1], texts[1], payload("u", None, new_row)))
    topics.put(TOPIC, changes[1:])
    with pytest.raises(SchemaError, match=r"column zip of .*: the table did not have it"):
        topics.read(options, began_with)
    assert [row["zip"] for row in topics.read(options)] == [None, "24103"]
    heartbeat = {"type": "struct", "fields": [connect_field("ts_ms", "int64")]}
    heartbeat["name"] = "io.debezium.connector.common.Heartbeat"
    if form == "json":
        topics.put(TOPIC, [with_schema(heartbeat, {"ts_ms": 5})])
        assert topics.read(options)[2]["change"]["kind"] == "heartbeat"
    chosen = topics.read(options, without_metadata(began_with))  # the user's columns
    assert [row["city"] for row in chosen[:2]] == ["Bonn", "Kiel"]


@pytest.mark.parametrize("columns", ["row", "envelope"])
def test_avro_evolves_to_the_latest_schema(topics: Topics, columns: str) -> None:
    old = avro_envelope([("id", "long"), ("at", ("long", "io.debezium.time.Timestamp"))])
    new = avro_envelope(
        [("id", "long"), ("at", ("long", "io.debezium.time.MicroTimestamp")), ("zip", "string")]
    )
    heartbeat = {
        "type": "record",
        "name": "Heartbeat",
        "namespace": "io.debezium.connector.common",
        "fields": [{"name": "ts_ms", "type": "long"}],
    }
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    ids = [topics.registry.add(f"{TOPIC}-value", json.dumps(text)) for text in (old, new)]
    beat = topics.registry.add("heartbeat-value", json.dumps(heartbeat))
    key_id = topics.registry.add(f"{TOPIC}-key", json.dumps(key))
    first = payload("c", None, {"id": 1, "at": 1_700_000_000_123})
    second = payload("d", {"id": 1, "at": 1_700_000_000_123_456, "zip": "1"}, None)
    topics.put(
        TOPIC,
        [
            framed(ids[0], old, first),
            framed(ids[1], new, second),
            framed(beat, heartbeat, {"ts_ms": 1}),
        ],
        keys=[framed(key_id, key, {"id": 1})] * 3,
    )
    options = topics.options(TOPIC, envelope="debezium", **{"envelope.columns": columns})
    rows = topics.read(options)
    if columns == "row":
        assert [row["at"] for row in rows[:2]] == [
            datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000),
            datetime.datetime(2023, 11, 14, 22, 13, 20, 123_456),
        ]
        assert [row["zip"] for row in rows] == [None, "1", None]
        assert [row["change"]["kind"] for row in rows] == ["row", "row", "heartbeat"]
        assert rows[0]["change"]["key"] == {"id": 1}
    else:
        assert rows[1]["value"]["before"]["at"].microsecond == 123_456
        assert rows[0]["value"]["after"] == {
            "id": 1,
            "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000),
            "zip": None,
        }
        assert rows[2]["value"]["ts_ms"] == 1
        assert rows[0]["key"] == {"id": 1}


def test_topics_of_heartbeats_beside_a_table(topics: Topics) -> None:
    beat_topic, text = "__debezium-heartbeat.shop", avro_envelope([("id", "long")])
    records = {
        f"{TOPIC}-value": text,
        f"{TOPIC}-key": {
            "type": "record",
            "name": "Key",
            "fields": [{"name": "id", "type": "long"}],
        },
        f"{beat_topic}-value": {
            "type": "record",
            "name": "Heartbeat",
            "fields": [{"name": "ts_ms", "type": "long"}],
        },
        f"{beat_topic}-key": {
            "type": "record",
            "name": "ServerNameKey",
            "fields": [{"name": "serverName", "type": "string"}],
        },
    }
    ids = [topics.registry.add(subject, json.dumps(schema)) for subject, schema in records.items()]
    values = [payload("c", None, {"id": 7}), {"id": 7}, {"ts_ms": 5}, {"serverName": "shop"}]
    frames = [
        framed(number, schema, value)
        for number, schema, value in zip(ids, records.values(), values, strict=True)
    ]
    topics.cluster.create_topic(beat_topic)
    topics.put(TOPIC, frames[:1], keys=frames[1:2])
    topics.put(beat_topic, frames[2:3], keys=frames[3:])
    options = topics.options(f"{TOPIC},{beat_topic}", envelope="debezium")
    chosen = struct(id=LongType(), change=struct(kind=StringType(), key=struct(id=LongType())))
    for schema in (None, chosen):
        rows = topics.read(options, schema)
        found = {row["change"]["kind"]: (row["id"], row["change"]["key"]) for row in rows}
        assert found == {"row": (7, {"id": 7}), "heartbeat": (None, {"id": None})}


@pytest.mark.parametrize("order", [1, -1])
def test_a_topic_of_transactions_beside_a_table_with_another_id(topics: Topics, order: int) -> None:
    names = [TOPIC, "shop.transaction"]
    begin = {"status": "BEGIN", "id": "571:53195829", "ts_ms": 5}
    fields = [connect_field(field, "string") for field in ("status", "id")]
    name = "io.debezium.connector.common.TransactionMetadata"
    transaction = {"type": "struct", "fields": fields, "name": f"{name}Value"}
    key = {"type": "struct", "fields": [connect_field("id", "string")], "name": f"{name}Key"}
    row = with_schema(connect_envelope(COLUMNS), payload("c", None, ROWS[0]))
    topics.cluster.create_topic(names[1])
    topics.put(names[0], [row], [with_schema(KEY, {"id": 1})])
    topics.put(names[1], [with_schema(transaction, begin)], [with_schema(key, {"id": begin["id"]})])
    options = topics.json_changes(",".join(names[::order]))
    chosen = struct(id=LongType(), change=struct(kind=StringType(), key=struct(id=LongType())))
    for schema in (None, chosen):
        rows = topics.read(options, schema)
        found = {row["change"]["kind"]: (row["id"], row["change"]["key"]) for row in rows}
        assert found == {"row": (1, {"id": 1}), "transaction": (None, None)}


@pytest.mark.parametrize("envelope", ["debezium", "debezium-flat"])
def test_a_placeholder_of_the_connector(topics: Topics, envelope: str) -> None:
    row = {"id": 1, "city": "(not sent)"}
    value = row if envelope == "debezium-flat" else payload("u", None, row)
    topics.put(TOPIC, [json.dumps(value).encode()])
    options = topics.json_changes(TOPIC, **{"envelope.unavailable": "(not sent)"})
    unavailable = struct(unavailable=ArrayType(StringType()))
    schema = struct(id=LongType(), city=StringType(), change=unavailable)
    assert topics.read(options | {"envelope": envelope}, schema) == [
        {"id": 1, "city": None, "change": {"unavailable": ["city"]}}
    ]


def test_a_column_gets_another_type(topics: Topics) -> None:
    """Values of older schemas become the latest type, where they fit it."""
    texts = [avro_envelope([("id", "long"), ("zip", kind)]) for kind in ("string", "int", "long")]
    ids = [topics.registry.add(f"{TOPIC}-value", json.dumps(text)) for text in texts]
    values = ["24103", 24103, 24103]
    records = [
        framed(number, text, payload("c", None, {"id": 1, "zip": value}))
        for number, text, value in zip(ids, texts, values, strict=True)
    ]
    records.append(framed(ids[0], texts[0], payload("c", None, {"id": 1, "zip": "D-1"})))
    topics.put(TOPIC, records)
    rows = topics.read(topics.options(TOPIC, envelope="debezium", onBadRecord="column"))
    assert [row["zip"] for row in rows] == [24103, 24103, 24103, None]
    assert "field zip: 'D-1' is not of type bigint" in rows[3]["bad_record"]["error"]


def test_a_schema_loses_all_columns_that_are_read(topics: Topics) -> None:
    schema = connect_envelope([connect_field("other", "int64")])
    topics.put(TOPIC, [with_schema(schema, payload("c", None, {"other": 1}))])
    rows = topics.read(topics.json_changes(TOPIC), struct(id=LongType()))
    assert rows == [{"id": None}]


def test_avro_without_keys_has_no_key(topics: Topics) -> None:
    text = avro_envelope([("id", "long")])
    number = topics.registry.add(f"{TOPIC}-value", json.dumps(text))
    topics.put(TOPIC, [framed(number, text, payload("c", None, {"id": 1}))])
    [row] = topics.read(topics.options(TOPIC, envelope="debezium"))
    assert row["id"] == 1
    assert "key" not in row["change"]


def test_protobuf(topics: Topics) -> None:
    text = """
        syntax = "proto3";
        message Envelope {
          Value before = 1; Value after = 2; Source source = 3; string op = 4; int64 ts_ms = 5;
          message Value { int64 id = 1; string city = 2; }
          message Source { int64 lsn = 1; string table = 2; }
        }
    """
    number = topics.registry.add(f"{TOPIC}-value", text, "PROTOBUF")
    frame = b"\0" + number.to_bytes(4, "big") + b"\0"
    row, source = b"\x08\x07\x12\x04Bonn", b"\x08\x09\x12\x01t"
    end = b"\x1a\x05" + source + b"\x22\x01"
    create = frame + b"\x12\x08" + row + end + b"c"
    delete = frame + b"\x0a\x08" + row + end + b"d"
    topics.put(TOPIC, [create, delete, None, frame + end + b"u"])
    options = topics.options(TOPIC, valueFormat="protobuf", envelope="debezium", onBadRecord="null")
    rows = topics.read(options)
    assert [(row["id"], row["city"]) for row in rows] == [(7, "Bonn")] * 2 + [(None, None)] * 2
    kinds = [(row["change"]["op"], row["change"]["kind"]) for row in rows]
    assert kinds == [("c", "row"), ("d", "row"), (None, "tombstone"), (None, None)]
    assert rows[0]["change"]["position"] == f"{9:020}"
    assert rows[0]["change"]["source"] == {"lsn": 9, "table": "t"}


def put_bad(topics: Topics) -> None:
    schema = connect_envelope(COLUMNS)
    topics.put(
        TOPIC,
        [
            with_schema(schema, payload("c", None, ROWS[0])),
            with_schema(schema, payload("x", None, ROWS[0])),
            None,
            with_schema(schema, payload("u", ROWS[0], None)),
            b'{"schema":7,"payload":{}}',
        ],
        keys=[b'{"id": 1}'] * 5,
    )


def test_bad_envelopes_fail_by_default(topics: Topics) -> None:
    put_bad(topics)
    with pytest.raises(BadRecordError, match=r"offset 1: .*'x' is none of c, u, d, r, t, m"):
        topics.read(topics.json_changes(TOPIC))


def test_bad_envelopes_are_no_tombstones(topics: Topics) -> None:
    put_bad(topics)
    rows = topics.read(topics.json_changes(TOPIC, onBadRecord="column"))
    assert [row["change"]["kind"] for row in rows] == ["row", None, "tombstone", None, None]
    errors = [row["bad_record"] and row["bad_record"]["error"] for row in rows]
    assert errors[0] is errors[2] is None
    assert "after" in errors[3]
    assert "schema beside the payload" in errors[4]
    assert [row["id"] for row in rows] == [1, None, None, None, None]


def test_bad_envelopes_become_dead_letters(topics: Topics) -> None:
    put_bad(topics)
    topics.cluster.create_topic("dead")
    options = topics.json_changes(TOPIC, onBadRecord="deadLetter", **{"deadLetter.topic": "dead"})
    rows = topics.read(options)
    assert [row["change"]["offset"] for row in rows] == [0, 2]
    servers = options["kafka.bootstrap.servers"]
    dead = topics.read({"kafka.bootstrap.servers": servers, "subscribe": "dead"})
    assert len(dead) == 3


def test_names_that_the_read_needs_are_refused(topics: Topics) -> None:
    schema = connect_envelope([connect_field("Change", "string")])
    topics.put(TOPIC, [with_schema(schema, payload("c", None, {"Change": "a"}))])
    with pytest.raises(OptionError, match=r"'Change'.*envelope.columns=envelope"):
        KafkaDataSource(topics.json_changes(TOPIC)).schema()
    rows = topics.read(topics.json_changes(TOPIC, **{"envelope.columns": "envelope"}))
    assert rows[0]["value"]["after"] == {"Change": "a"}


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"valueFormat": "string"}, "envelope=debezium needs valueFormat"),
        ({"rescuedColumn": "true"}, "rescuedColumn and envelope=debezium exclude each other"),
        ({"includeHeaders": "true"}, "includeHeaders has no effect with envelope.columns=row"),
        ({"envelope": "mine"}, "envelope"),
        (
            {"envelope.unavailable": "x", "envelope.columns": "envelope"},
            "envelope.unavailable has no effect",
        ),
        ({"envelope.unavailable": "x", "envelope": "canal"}, "envelope.unavailable has no effect"),
        ({"envelope.unavailable": ""}, "envelope.unavailable is empty"),
    ],
)
def test_options_that_exclude_each_other(topics: Topics, more: dict[str, str], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        KafkaDataSource({**topics.json_changes(TOPIC), **more}).schema()


def test_an_empty_topic_needs_the_columns(topics: Topics) -> None:
    topics.put(TOPIC, [])
    with pytest.raises(OptionError, match=r"envelope=debezium: no .*\.schema\(…\) with the col"):
        KafkaDataSource(topics.json_changes(TOPIC)).schema()


def test_envelope_columns_needs_an_envelope(topics: Topics) -> None:
    options = {**topics.json_changes(TOPIC), "envelope.columns": "row"}
    del options["envelope"]
    with pytest.raises(OptionError, match="without envelope"):
        KafkaDataSource(options).schema()


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (StructType().add("id", LongType(), False), "cannot be NOT NULL"),
        (struct(change=struct(op=StringType())), "no column of the table"),
        (struct(value=struct(row=struct(id=LongType()))), "'value' instead of the columns"),
        (struct(value=struct(a=LongType())), "also name a field of change"),
        (
            struct(id=LongType(), change=struct(what=LongType())),
            "change.what, which does not exist",
        ),
        (struct(id=LongType(), change=struct(op=LongType())), "change.op .* must be string"),
        (struct(id=LongType(), change=StringType()), "must be a struct"),
    ],
)
def test_schemas_that_no_read_can_have(topics: Topics, schema: StructType, match: str) -> None:
    put_changes(topics)
    with pytest.raises(OptionError, match=match):
        topics.read(topics.json_changes(TOPIC), schema)


def test_a_column_that_the_table_lacks(topics: Topics) -> None:
    text = avro_envelope([("id", "long")])
    topics.registry.add(f"{TOPIC}-value", json.dumps(text))
    options = topics.options(TOPIC, envelope="debezium")
    with pytest.raises(OptionError, match=r"field ide of the requested schema.*mean id\?"):
        topics.read(options, struct(ide=LongType()))


def test_another_schema_than_an_envelopes(topics: Topics) -> None:
    text = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    topics.registry.add(f"{TOPIC}-value", json.dumps(text))
    with pytest.raises(SchemaError, match=r"not one of Debezium's envelopes.* it has id"):
        KafkaDataSource(topics.options(TOPIC, envelope="debezium")).schema()
