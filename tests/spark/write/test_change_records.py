"""Writes with envelope=debezium: what is written is read back as it was. No Spark: a fake cluster
and a registry of one process."""

from __future__ import annotations

import datetime
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.spark.datasource import KafkaDataSource
from tests.schemas.small_registry import SmallRegistry
from tests.spark.schemas import arrow_schema_of
from tests.spark.typed_support import Topics, struct

TOPIC = "shop.goods"
CHANGE = struct(
    op=StringType(),
    kind=StringType(),
    ts_ms=LongType(),
    source=struct(lsn=LongType()),
    key=struct(id=LongType()),
    unavailable=ArrayType(StringType()),
)
ROW = struct(
    id=LongType(),
    small=ShortType(),
    flag=BooleanType(),
    weight=DoubleType(),
    price=DecimalType(12, 2),
    note=StringType(),
    raw=BinaryType(),
    day=DateType(),
    at=TimestampType(),
    local=TimestampNTZType(),
    took=DayTimeIntervalType(),
    tags=ArrayType(StringType()),
    days=ArrayType(DateType()),
    names=MapType(StringType(), StringType()),
    place=struct(x=DoubleType(), at=TimestampNTZType()),
)
SCHEMA = StructType([*ROW.fields]).add("change", CHANGE)
LOCAL = datetime.datetime(2024, 2, 29, 12, 34, 56, 789_012)
FULL: dict[str, Any] = {
    "id": 1,
    "small": -7,
    "flag": True,
    "weight": 1.5,
    "price": Decimal("-1234567890.12"),
    "note": 'é "q"',
    "raw": b"\0\xff",
    "day": datetime.date(1969, 12, 31),
    "at": LOCAL.replace(tzinfo=datetime.UTC),
    "local": LOCAL,
    "took": datetime.timedelta(microseconds=-5),
    "tags": ["a", None],
    "days": [datetime.date(2024, 2, 29)],
    "names": [("k", "v")],
    "place": {"x": 2.5, "at": LOCAL},
}
NOTHING = dict.fromkeys(FULL)


def change(op: str | None, kind: str = "row", **more: Any) -> dict[str, Any]:
    source = {"lsn": 9}
    own = {"op": op, "kind": kind, "ts_ms": 5, "source": source, "key": {"id": 1}}
    return {**own, "unavailable": None, **more}


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic(TOPIC)
    return Topics(fake_cluster, registry)


def write(
    topics: Topics, rows: list[dict[str, Any]], schema: StructType = SCHEMA, **more: str
) -> dict[str, str]:
    """Write rows as Spark does, and return the options of a read."""
    options = topics.options(TOPIC, valueFormat="json", envelope="debezium")
    del options["subscribe"]
    options |= {"topic": TOPIC, **more}
    if options["valueFormat"] == "json":
        del options["schema.registry.url"]
    else:
        options["auto.register.schemas"] = "true"
    writer = KafkaDataSource(options).writer(schema, overwrite=False)
    copy = pickle.loads(pickle.dumps(writer))
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema_of(schema))
    writer.commit([copy.write(iter([batch.slice(0, 1), batch.slice(1)]))])
    read = topics.options(TOPIC, valueFormat=options["valueFormat"], envelope="debezium")
    if options["valueFormat"] == "json":
        del read["schema.registry.url"]
    return read


ROWS = [
    {**FULL, "change": change("c")},
    {**NOTHING, "id": 1, "change": change("u", ts_ms=None)},
    {**FULL, "change": change("d")},
    {**NOTHING, "change": change(None, "tombstone")},
    {**NOTHING, "change": change("t", "truncate", key=None)},
]


@pytest.mark.parametrize("format", ["json", "avro"])
def test_what_is_written_is_read_back(topics: Topics, format: str) -> None:
    read = write(topics, ROWS, valueFormat=format)
    rows = topics.read(read)
    assert len(rows) == len(ROWS)
    for row, written in zip(rows, ROWS, strict=True):
        found = row["change"]
        assert {name: row[name] for name in FULL} == {name: written[name] for name in FULL}
        for name in ("op", "kind", "key"):
            assert found[name] == written["change"][name]
    assert [row["change"]["source"] for row in rows] == [{"lsn": 9}] * 3 + [None, {"lsn": 9}]
    assert [row["change"]["ts_ms"] == 5 for row in rows] == [True, False, True, False, True]
    assert rows[1]["change"]["ts_ms"] > 1_700_000_000_000
    schema = KafkaDataSource(read).schema()
    for field in ROW.fields:
        expected = field.dataType.simpleString()
        if format == "avro" and expected == "smallint":  # which Avro does not have
            expected = "int"
        assert schema[field.name].dataType.simpleString() == expected


def test_records_have_debezium_s_form(topics: Topics) -> None:
    row = struct(id=LongType(), day=DateType())
    schema = StructType([*row.fields]).add(
        "change", struct(op=StringType(), key=struct(id=LongType()))
    )
    rows = [{"id": 1, "day": datetime.date(1970, 1, 3), "change": {"op": "u", "key": {"id": 1}}}]
    write(topics, rows, schema, **{"envelope.schemas": "false"})
    servers = topics.cluster.bootstrap_servers
    [record] = topics.read({"kafka.bootstrap.servers": servers, "subscribe": TOPIC})
    assert json.loads(record["key"]) == {"id": 1}
    envelope = json.loads(record["value"])
    assert envelope.pop("ts_ms") > 0
    assert envelope == {"before": None, "after": {"id": 1, "day": 2}, "op": "u"}
    write(topics, rows, schema)
    [_, record] = topics.read({"kafka.bootstrap.servers": servers, "subscribe": TOPIC})
    document = json.loads(record["value"])
    assert document["schema"]["name"] == "shop.goods.Envelope"
    after = document["schema"]["fields"][1]
    assert after["field"] == "after"
    assert after["fields"][1] == {
        "type": "int32",
        "optional": True,
        "name": "io.debezium.time.Date",
        "version": 1,
        "field": "day",
    }


def test_values_that_were_not_sent_stay_unknown(topics: Topics) -> None:
    rows = [{**FULL, "note": None, "raw": None}]
    rows[0]["change"] = change("u", unavailable=["note", "raw"])
    [row] = topics.read(write(topics, rows))
    assert row["change"]["unavailable"] == ["note", "raw"]
    rows[0]["change"] = change("u", unavailable=["day"])
    with pytest.raises(EncodeError, match=r"row 0 of this task: change.unavailable names day"):
        write(topics, rows)


def test_changes_that_no_envelope_can_have(topics: Topics) -> None:
    rows = [ROWS[0], {**NOTHING, "change": change(None, "heartbeat")}]
    with pytest.raises(EncodeError, match=r"row 1 of this task: change.op is None .*'heartbeat'"):
        write(topics, rows)


def test_a_change_of_the_key_is_two_rows(topics: Topics) -> None:
    key = struct(id=LongType())
    schema = struct(id=LongType(), change=struct(op=StringType(), key=key, old_key=key))
    rows = [
        {"id": 1, "change": {"op": "u", "key": {"id": 1}, "old_key": None}},
        {"id": 2, "change": {"op": "u", "key": {"id": 2}, "old_key": {"id": 1}}},
    ]
    with pytest.raises(EncodeError, match=r"row 1 of this task: change.old_key is set"):
        write(topics, rows, schema)


def with_change(**fields: Any) -> StructType:
    return struct(id=LongType(), change=struct(**{"op": StringType(), **fields}))


@pytest.mark.parametrize(
    ("more", "schema", "match"),
    [
        ({}, with_change(ts_ms=StringType()), "change.ts_ms of the schema must be int64"),
        ({}, with_change(op=LongType()), "change.op of the schema must be string"),
        ({}, with_change(lsn=LongType()), "change.lsn, which does not exist"),
        ({}, struct(change=CHANGE), "no column of the table"),
        ({}, ROW, "needs the column change"),
        ({"envelope": "canal"}, SCHEMA, "envelope=canal with valueFormat=json is for reads"),
        ({"valueFormat": "string"}, SCHEMA, "needs valueFormat: set it to avro or json"),
        ({"keyFormat": "json"}, SCHEMA, "keyFormat and envelope=debezium exclude each other"),
        ({"valueFormat": "avro", "envelope.schemas": "true"}, SCHEMA, "envelope.schemas has no"),
    ],
)
def test_writes_that_are_refused(
    topics: Topics, more: dict[str, str], schema: StructType, match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        write(topics, [], schema, **more)
