"""The cases that Debezium tests with its own serde, and Materialize with its Debezium sources.

Only the facts are theirs: what a connector writes, and the rows that it means. Cases that other
tests have are not here again: operations, all types, large values, unsent values, and truncates.
"""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType

from sparkkafka.errors import BadRecordError, OptionError
from tests.schemas.envelopes.debezium_records import (
    avro_envelope,
    connect_envelope,
    connect_field,
    payload,
    with_schema,
)
from tests.schemas.small_registry import SmallRegistry
from tests.spark.typed_support import Topics, framed, struct

TOPIC = "shop.public.goods"
TIME = "io.debezium.time."
Row = dict[str, Any]


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic(TOPIC)
    return Topics(fake_cluster, registry)


def decimal(precision: int, scale: int) -> Row:
    digits = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return connect_field("x", "bytes", "org.apache.kafka.connect.data.Decimal", **digits)


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(4, "big", signed=True)).decode()


def column(kind: str, semantic: str = "") -> Row:
    return connect_field("x", kind, semantic)


DATE, MICROS = column("int32", f"{TIME}Date"), column("int64", f"{TIME}MicroTimestamp")
ARRAY = {"type": "array", "items": {"type": "string", "optional": True}, "field": "x"}
NOON = datetime.datetime(2011, 11, 11, 12)
NOON_US = 1_321_012_800_000_000


@pytest.mark.parametrize(
    ("columns", "values", "expected"),
    [
        pytest.param(
            [DATE, MICROS], [15_289, NOON_US], [NOON.replace(hour=0), NOON], id="date to timestamp"
        ),
        pytest.param([MICROS, DATE], [NOON_US, 15_289], [NOON.date()] * 2, id="timestamp to date"),
        pytest.param(
            [decimal(5, 3), decimal(6, 4)],
            [unscaled(12_345), unscaled(345_670)],
            [Decimal("12.345"), Decimal("34.567")],
            id="another scale",
        ),
        pytest.param(
            [decimal(10, 3), column("double")], ["MDk=", 2.5], [12.345, 2.5], id="mode double"
        ),
        pytest.param(
            [decimal(10, 3), column("string")], ["MDk=", "2.500"], ["12.345", "2.500"], id="string"
        ),
        pytest.param([column("int32"), None], [5, ...], [5, None], id="dropped"),
        pytest.param([decimal(5, 3)] * 2, [None, "MDk="], [None, Decimal("12.345")], id="NaN"),
        pytest.param([ARRAY] * 2, [["foo", None], []], [["foo", None], []], id="array with null"),
        pytest.param(
            [column("int64", f"{TIME}NanoTimestamp")] * 2,
            [1_289_567_655_123_456_700, -1],
            [
                datetime.datetime(2010, 11, 12, 13, 14, 15, 123_456),
                datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            ],
            id="datetime2 of SQL Server",
        ),
        pytest.param(
            [column("string", f"{TIME}ZonedTimestamp")] * 2,
            ["2025-12-10T12:32:10+01:00", None],
            [datetime.datetime(2025, 12, 10, 11, 32, 10, tzinfo=datetime.UTC), None],
            id="datetimeoffset of SQL Server",
        ),
    ],
)
def test_a_column_of_two_schemas(
    topics: Topics, columns: list[Any], values: list[Any], expected: list[Any]
) -> None:
    """A connector changes the schema in the middle of a topic, after ALTER TABLE or a setting."""
    own = connect_field("id", "int32")
    records = [
        with_schema(
            connect_envelope([own, field] if field else [own]),
            payload("c", None, {"id": 1} | ({"x": value} if field else {})),
        )
        for field, value in zip(columns, values, strict=True)
    ]
    topics.put(TOPIC, records)
    assert [row["x"] for row in topics.read(topics.json_changes(TOPIC))] == expected


def test_a_column_that_cannot_become_the_new_type_makes_its_records_bad(topics: Topics) -> None:
    records = [
        with_schema(connect_envelope([column(kind)]), payload("c", None, {"x": value}))
        for kind, value in (("boolean", True), ("int16", 7))
    ]
    topics.put(TOPIC, records)
    rows = topics.read(topics.json_changes(TOPIC, onBadRecord="column"))
    assert [row["x"] for row in rows] == [None, 7]
    assert "field x is boolean, which cannot become smallint" in rows[0]["bad_record"]["error"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'{"a": null}', {"a": None}),
        (b'{"a": 1, "b": 2}', {"a": 1}),
        (b"null", None),
        (b'{"schema": null, "payload": null}', None),
        (b'{"payload": {"a": 1}}', {"a": 1}),
        (b'{"payload": 1}', {"a": None}),  # of a table whose key is the column payload
        (b"1", "key: the value is a number, not an object"),
        (b'{"schema": {"type": "int32"}, "payload": 1}', "key: .* int, which cannot become struct"),
    ],
)
def test_a_key_without_a_schema(topics: Topics, key: bytes, expected: Any) -> None:
    topics.put(TOPIC, [json.dumps(payload("c", None, {"a": 1})).encode()], [key])
    schema = struct(a=LongType(), change=struct(key=struct(a=LongType())))
    options = topics.json_changes(TOPIC)
    if isinstance(expected, str):
        with pytest.raises(BadRecordError, match=expected):
            topics.read(options, schema)
    else:
        assert topics.read(options, schema) == [{"a": 1, "change": {"key": expected}}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"op": "u", "before": None, "after": {"a": 1, "unknown": 2}}, (1, "row")),
        ({"op": "c", "after": {"a": 1}}, (1, "row")),
        ({"op": "c", "after": {}}, (None, "row")),
        ({"op": "d"}, (None, "row")),
        (None, (None, "tombstone")),
        ({"schema": None, "payload": None}, (None, "tombstone")),
        ({"payload": {"op": "c", "after": {"a": 1}}}, (1, "row")),  # its schema was cut off
        ({"payload": 1}, "field op: it is missing"),
        # Materialize's own sink writes no op.
        ({"before": None, "after": {"a": 1}}, "field op: it is missing"),
        ([], "the value is an array, not an object"),
    ],
)
def test_a_value_without_a_schema(topics: Topics, value: Any, expected: Any) -> None:
    topics.put(TOPIC, [json.dumps(value).encode()])
    schema = struct(a=LongType(), change=struct(kind=StringType()))
    options = topics.json_changes(TOPIC)
    if isinstance(expected, str):
        with pytest.raises(BadRecordError, match=expected):
            topics.read(options, schema)
    else:
        [row] = topics.read(options, schema)
        assert (row["a"], row["change"]["kind"]) == expected


def test_a_key_that_is_one_value(topics: Topics) -> None:
    value = with_schema(connect_envelope([column("int32")]), payload("c", None, {"x": 1}))
    topics.put(TOPIC, [value], [with_schema({"type": "int32", "optional": False}, 1)])
    [row] = topics.read(topics.json_changes(TOPIC))
    assert row["change"]["key"] == 1


def test_the_primary_key_loses_a_column_that_is_dropped(topics: Topics) -> None:
    """A table without a key gets one of two columns, and later one of one column."""
    first, second = connect_field("f1", "int32"), connect_field("f2", "int32")
    wide, narrow = connect_envelope([first, second]), connect_envelope([first])
    keys = [{"type": "struct", "fields": fields} for fields in ([first, second], [first])]
    changes = [
        (wide, ("c", None, {"f1": 1, "f2": 2}), None),
        (wide, ("c", None, {"f1": 3, "f2": 4}), with_schema(keys[0], {"f1": 3, "f2": 4})),
        (narrow, ("c", None, {"f1": 5}), with_schema(keys[1], {"f1": 5})),
        (narrow, ("d", {"f1": 1}, None), with_schema(keys[1], {"f1": 1})),
    ]
    values = [with_schema(schema, payload(*change)) for schema, change, _ in changes]
    topics.put(TOPIC, values, [key for _, _, key in changes])
    rows = topics.read(topics.json_changes(TOPIC))
    assert [(row["f1"], row["f2"]) for row in rows] == [(1, 2), (3, 4), (5, None), (1, None)]
    assert [row["change"]["key"] for row in rows] == [
        *(None, {"f1": 3, "f2": 4}, {"f1": 5, "f2": None}, {"f1": 1, "f2": None}),
    ]


@pytest.mark.parametrize("kinds", [["long", ["null", "long"]], [["null", "long"], "long"]])
def test_avro_whose_column_becomes_or_ceases_to_be_not_null(
    topics: Topics, kinds: list[Any]
) -> None:
    frames = []
    for kind in kinds:
        text = avro_envelope([("id", "long"), ("x", "long")])
        text["fields"][0]["type"][1]["fields"][1] = {"name": "x", "type": kind}
        number = topics.registry.add(f"{TOPIC}-value", json.dumps(text))
        values = [5, None] if isinstance(kind, list) else [5]
        frames += [
            framed(number, text, payload("c", None, {"id": 1, "x": value})) for value in values
        ]
    topics.put(TOPIC, frames)
    rows = topics.read(topics.options(TOPIC, envelope="debezium"))
    assert sorted(row["x"] or 0 for row in rows) == [0, 5, 5]


def test_documents_of_mongodb_name_two_ways_to_read_them(topics: Topics) -> None:
    document = connect_field("after", "string", "io.debezium.data.Json")
    schema = {"type": "struct", "fields": [document, connect_field("op", "string")]}
    value = {"after": '{"_id": {"$oid": "65a1"}, "name": "Bonn"}', "op": "c"}
    topics.put(TOPIC, [with_schema(schema, value)])
    columns = struct(name=StringType())
    hint = "documents as JSON text; .* from_json, or set envelope=debezium-flat .*DocumentState"
    with pytest.raises(OptionError, match=hint):
        topics.read(topics.json_changes(TOPIC))
    with pytest.raises(BadRecordError, match=hint):
        topics.read(topics.json_changes(TOPIC), columns)
    topics.put(TOPIC, [json.dumps(value).encode()])
    with pytest.raises(BadRecordError, match=f"offset 1: .*is a string, not an object: .*{hint}"):
        topics.read(
            topics.json_changes(TOPIC, startingOffsets='{"shop.public.goods":{"0":1}}'), columns
        )
    flat = {"_id": "65a1", "name": "Bonn", "__op": "c", "__deleted": False, "__ord": 1}
    topics.put(TOPIC, [json.dumps(flat).encode()])
    options = topics.json_changes(TOPIC, startingOffsets='{"shop.public.goods":{"0":2}}')
    options["envelope"] = "debezium-flat"
    assert topics.read(options, columns) == [{"name": "Bonn"}]


def test_avro_without_before_and_source(topics: Topics) -> None:
    text = avro_envelope([("id", "long")])
    before, _, _, _, op, *_ = text["fields"]
    text["fields"] = [{**before, "name": "after"}, op]
    number = topics.registry.add(f"{TOPIC}-value", json.dumps(text))
    topics.put(TOPIC, [framed(number, text, {"after": {"id": 7}, "op": "c"})])
    [row] = topics.read(topics.options(TOPIC, envelope="debezium"))
    assert (row["id"], row["change"]["op"], row["change"]["position"]) == (7, "c", None)
