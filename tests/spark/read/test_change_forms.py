"""Reads with the envelopes of Maxwell, Canal and GoldenGate, and of flattened Debezium."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from sparkkafka.errors import OptionError
from sparkkafka.spark.datasource import KafkaDataSource
from tests.schemas.envelopes.debezium_records import avro_type
from tests.schemas.small_registry import SmallRegistry
from tests.spark.typed_support import Topics, framed, struct

TOPIC = "shop"


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic(TOPIC)
    return Topics(fake_cluster, registry)


def read(
    topics: Topics, envelope: str, records: list[Any], schema: StructType | None = None, **more: str
) -> list[dict[str, Any]]:
    keys = more.pop("keys", None)
    topics.put(
        TOPIC,
        [None if record is None else json.dumps(record).encode() for record in records],
        keys=[str(keys).encode()] * len(records) if keys else None,
    )
    options = topics.options(TOPIC, valueFormat="json", envelope=envelope, **more)
    del options["schema.registry.url"]
    return topics.read(options, schema)


def row_of(change: dict[str, Any], *names: str) -> list[Any]:
    return [change[name] for name in names]


def maxwell(kind: str, data: Any = None, old: Any = None, position: int = 7) -> dict[str, Any]:
    record = {"database": "shop", "table": "goods", "type": kind, "ts": 1_596_684_883, "xid": 71}
    record |= {"xoffset": 1, "position": f"binlog.000012:{position}"}
    return {**record, **({"data": data} if data else {}), **({"old": old} if old else {})}


def test_maxwell(topics: Topics) -> None:
    rows = read(
        topics,
        "maxwell",
        [
            maxwell("insert", {"id": 1, "name": "scooter", "weight": 3.14}),
            maxwell("update", {"id": 1, "name": "scooter", "weight": 5.5}, {"weight": 3.14}),
            maxwell("update", {"id": 2, "name": "scooter", "weight": 5.5}, {"id": 1}),
            maxwell("delete", {"id": 2, "name": "scooter", "weight": 5.5}),
            maxwell("bootstrap-start"),
            maxwell("bootstrap-insert", {"id": 3, "name": "hammer", "weight": None}),
            maxwell("table-alter"),
        ],
        keys='{"database":"shop","table":"goods","pk.id":1}',
        valueSchema="infer",
    )
    assert list(rows[0]) == ["id", "name", "weight", "change"]
    assert [row_of(row, "id", "weight") for row in rows] == [
        *([1, 3.14], [1, 5.5], [2, 5.5], [2, 5.5], [None, None], [3, None], [None, None]),
    ]
    changes = [row["change"] for row in rows]
    assert [row_of(change, "op", "kind") for change in changes] == [
        *(["c", "row"], ["u", "row"], ["u", "row"], ["d", "row"], ["m", "message"]),
        *(["r", "row"], [None, "schema_change"]),
    ]
    ids = [change["key"] and change["key"]["id"] for change in changes]
    assert ids == [1, 1, 2, 2, None, 3, None]
    assert [change["old_key"] for change in changes] == [None, None, {"id": 1}, *[None] * 4]
    assert changes[0]["position"] == f"{12:020}:{7:020}:{1:010}"
    assert changes[0]["ts_ms"] == 1_596_684_883_000
    assert changes[0]["source"]["table"] == "goods"
    assert changes[0]["transaction"]["id"] == "71"


def canal(kind: str, data: Any, old: Any = None, *, is_ddl: bool = False) -> dict[str, Any]:
    types = {"id": "int(11)", "price": "decimal(10,2)", "made": "date", "note": "varchar(20)"}
    record = {"data": data, "old": old, "type": kind, "database": "shop", "table": "goods"}
    record |= {"es": 1_589_373_515_000, "ts": 1_589_373_515_477, "id": 3, "isDdl": is_ddl}
    return record | {"pkNames": None if is_ddl else ["id"], "mysqlType": types, "sql": ""}


def test_canal(topics: Topics) -> None:
    goods = [{"id": str(n), "price": f"{n}.50", "made": "2020-05-13", "note": None} for n in (1, 2)]
    moved = {**goods[1], "id": "9"}
    rows = read(
        topics,
        "canal",
        [
            canal("INSERT", goods),
            canal("UPDATE", [moved], [{"id": "2"}]),
            None,
            canal("DELETE", [moved]),
            canal("CREATE", None, is_ddl=True),
            canal("TRUNCATE", None, is_ddl=True),
        ],
    )
    assert list(rows[0]) == ["id", "price", "made", "note", "change"]
    assert [row["id"] for row in rows] == [1, 2, 9, None, 9, None, None]
    assert rows[0]["price"] == Decimal("1.50")
    assert rows[0]["made"] == datetime.date(2020, 5, 13)
    changes = [row["change"] for row in rows]
    assert [row_of(change, "op", "kind", "offset") for change in changes] == [
        ["c", "row", 0],
        ["c", "row", 0],
        ["u", "row", 1],
        [None, "tombstone", 2],
        ["d", "row", 3],
        [None, "schema_change", 4],
        ["t", "truncate", 5],
    ]
    assert [change["old_key"] for change in changes] == [None, None, {"id": 2}, *[None] * 4]
    assert changes[2]["key"] == {"id": 9}


def test_a_bad_row_makes_the_record_of_canal_bad(topics: Topics) -> None:
    goods = [{"id": text, "price": None, "made": None, "note": None} for text in ("1", "x", "3")]
    records = [canal("INSERT", goods[:1]), canal("INSERT", goods)]
    rows = read(topics, "canal", records, onBadRecord="column")
    assert [row["id"] for row in rows] == [1, None]
    assert "field id: 'x' is not of type int" in rows[1]["bad_record"]["error"]
    assert rows[1]["change"]["kind"] is None


def test_a_record_of_canal_that_would_fill_the_memory_is_bad(topics: Topics) -> None:
    """Each of its rows would have the text of its statement."""
    goods = [{"id": "1"}] * 20_000
    large = canal("INSERT", goods) | {"sql": "x" * 100_000}
    rows = read(topics, "canal", [canal("INSERT", goods[:1]), large], onBadRecord="column")
    assert [row["id"] for row in rows] == [1, None]
    assert "too many rows for the length" in rows[1]["bad_record"]["error"]


def ogg(op: str, before: Any, after: Any, position: int) -> dict[str, Any]:
    record = {"table": "SHOP.GOODS", "op_type": op, "op_ts": "2020-05-13 13:39:35.766000"}
    record |= {"current_ts": "2020-05-13T13:39:36.100001", "pos": f"{position:020}"}
    return {**record, "primary_keys": ["id"], "before": before, "after": after}


def test_ogg(topics: Topics) -> None:
    first, second, third = ({"id": n, "name": f"n{n}"} for n in (1, 1, 2))
    rows = read(
        topics,
        "ogg",
        [
            ogg("I", None, first, 1),
            ogg("U", first, second, 2),
            ogg("U", second, third, 3),
            ogg("D", third, None, 4),
            ogg("T", None, None, 5),
        ],
        valueSchema="infer",
    )
    assert [row["id"] for row in rows] == [1, 1, 2, 2, None]
    changes = [row["change"] for row in rows]
    assert [change["op"] for change in changes] == ["c", "u", "u", "d", "t"]
    assert [change["old_key"] for change in changes] == [None, None, {"id": 1}, None, None]
    assert [change["key"] for change in changes] == [{"id": n} for n in (1, 1, 2, 2)] + [None]
    assert [change["position"] for change in changes] == [f"{n:020}" for n in range(1, 6)]
    assert changes[0]["ts_ms"] == 1_589_377_176_100


def test_types_that_the_records_do_not_say(topics: Topics) -> None:
    records = [maxwell("insert", {"id": 1, "name": "a", "weight": 2.5})]
    with pytest.raises(OptionError, match=r"envelope=maxwell do not say .* or set valueSchema"):
        read(topics, "maxwell", records)
    key = struct(id=LongType())
    schema = struct(id=LongType(), weight=DoubleType(), change=struct(op=StringType(), key=key))
    [row, _] = read(topics, "maxwell", records, schema)
    assert row == {"id": 1, "weight": 2.5, "change": {"op": "c", "key": {"id": 1}}}


@pytest.mark.parametrize("format", ["avro", "json"])
def test_flattened_debezium(topics: Topics, format: str) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", avro_type(("long", "io.debezium.time.MicroTimestamp"))]},
        {"name": "__op", "type": ["null", "string"]},
        {"name": "__deleted", "type": ["null", "string"]},
        {"name": "__table", "type": ["null", "string"]},
        {"name": "__source_lsn", "type": ["null", "long"]},
        {"name": "__ts_ms", "type": ["null", "long"]},
    ]
    record = {"type": "record", "name": "Value", "fields": fields}
    number = topics.registry.add(f"{TOPIC}-value", json.dumps(record))

    def row(id: int, op: str | None, deleted: str) -> dict[str, Any]:
        row = {"id": id, "at": 1_700_000_000_123_456, "__op": op, "__deleted": deleted}
        return {**row, "__table": "t", "__source_lsn": id, "__ts_ms": 5}

    records = [row(1, "c", "false"), row(1, None, "false"), row(1, "u", "true")]
    if format == "avro":
        topics.put(TOPIC, [*(framed(number, record, item) for item in records), None])
        rows = topics.read(topics.options(TOPIC, envelope="debezium-flat"))
        at = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_456)
    else:
        rows = read(topics, "debezium-flat", [*records, None], valueSchema="infer")
        at = 1_700_000_000_123_456
    assert list(rows[0]) == ["id", "at", "change"]
    assert [row["at"] for row in rows] == [at, at, at, None]
    changes = [row["change"] for row in rows]
    assert [change["op"] for change in changes] == ["c", "u", "d", None]
    assert [change["kind"] for change in changes] == ["row", "row", "row", "tombstone"]
    assert changes[0]["source"] == {"table": "t", "lsn": 1}
    assert changes[0]["position"] == f"{1:020}"
    assert changes[0]["ts_ms"] == 5


@pytest.mark.parametrize("envelope", ["maxwell", "canal", "ogg", "debezium-flat"])
def test_the_columns_of_kafka(topics: Topics, envelope: str) -> None:
    """envelope.columns=envelope: the value as the tool wrote it."""
    records = {
        "maxwell": maxwell("insert", {"id": 1}),
        "canal": canal("INSERT", [{"id": "1"}]),
        "ogg": ogg("I", None, {"id": 1}, 1),
        "debezium-flat": {"id": 1, "__op": "c"},
    }
    more = {"envelope.columns": "envelope", "valueSchema": "infer"}
    [row, _] = read(topics, envelope, [records[envelope], None], **more)
    assert row["offset"] == 0
    assert row["key"] is None
    value = row["value"]
    for step in {"maxwell": ["data"], "canal": ["data", 0], "ogg": ["after"]}.get(envelope, []):
        value = value[step]
    assert int(value["id"]) == 1


def test_only_json_has_these_envelopes(topics: Topics) -> None:
    with pytest.raises(OptionError, match="envelope=canal is for valueFormat=json, not avro"):
        KafkaDataSource(topics.options(TOPIC, envelope="canal")).schema()
