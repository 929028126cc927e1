"""Rows with a schema that come with a micro-batch's plan are those of a task, whatever is null."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from sparkkafka.client.producer.producer import Producer
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.stream import reader as stream_reader
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.schemas.envelopes.debezium_records import payload
from tests.spark.stream.stream_support import opened, plan, stop_readers  # noqa: F401
from tests.spark.stream.test_driver_read import take
from tests.spark.typed_support import struct

FIELDS: dict[str, DataType] = {
    "i": ArrayType(IntegerType()),
    "aa": ArrayType(ArrayType(LongType())),
    "st": ArrayType(struct(a=ArrayType(DoubleType()), s=StringType())),
    "m": MapType(StringType(), IntegerType()),
    "ms": MapType(StringType(), struct(x=FloatType(), d=MapType(StringType(), DateType()))),
    "texts": ArrayType(StringType()),
    "decimals": ArrayType(DecimalType(10, 2)),
    "flags": ArrayType(BooleanType()),
    "days": ArrayType(DateType()),
    "times": ArrayType(TimestampType()),
    "local": ArrayType(TimestampNTZType()),
    "d": DecimalType(20, 4),
    "day": DateType(),
    "at": TimestampType(),
    "ntz": TimestampNTZType(),
    "s": struct(x=IntegerType(), y=struct(z=StringType(), w=ArrayType(IntegerType()))),
}
SCHEMA = struct(value=struct(**FIELDS), offset=LongType())
DAY, TIME = "2024-02-29", "2024-02-29T01:02:03.000004"
FULL: dict[str, Any] = {
    "i": [1, 2],
    "aa": [[1], [], [2, 3]],
    "st": [{"a": [1.5], "s": "a"}, {"a": [], "s": "é"}],
    "m": {"a": 1, "b": 2},
    "ms": {"a": {"x": 1.5, "d": {"k": DAY}}},
    "texts": ["a", "", "é"],
    "decimals": [1.25, -3],
    "flags": [True, False],
    "days": [DAY],
    "times": [TIME + "Z"],
    "local": [TIME],
    "d": 12345678901.5,
    "day": DAY,
    "at": TIME + "Z",
    "ntz": TIME,
    "s": {"x": 1, "y": {"z": "z", "w": [1]}},
}
EMPTY = {name: type(value)() for name, value in FULL.items() if isinstance(value, list | dict)}
# Nulls everywhere but in an array or map of what Spark copies at once.
NULLS = {
    "aa": [None, [1], None],
    "st": [None, {"a": None, "s": None}, {"a": [2.5], "s": "b"}],
    "ms": {"a": None, "b": {"x": None, "d": None}, "c": {"x": 1, "d": {}}},
    "texts": [None, "b", None],
    "s": {"x": None, "y": {"z": None, "w": None}},
}
# Spark copies these at once, and fails at a null among them.
ITEMS: list[dict[str, Any]] = [
    {"i": [1, None]},
    {"aa": [[1], None, [None, 2]]},
    {"st": [{"a": [None, 1.5]}]},
    {"m": {"a": None, "b": 2}},
    {"ms": {"a": {"d": {"k": None}}}},
    {"decimals": [None, 1.25]},
    {"flags": [None]},
    {"days": [None, DAY]},
    {"times": [TIME + "Z", None]},
    {"local": [None, TIME]},
    {"s": {"y": {"w": [None, 7]}}},
]
SMOOTH = [FULL, None, EMPTY, {}, NULLS, {**FULL, "s": {"x": 3, "y": None}, "i": []}, FULL]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(stream_reader, "DRIVER_READ_MS", 30_000)
    with FakeCluster() as fake:
        yield fake


def put(cluster: FakeCluster, topic: str, values: list[Any]) -> dict[str, str]:
    """The options of a stream of these values."""
    cluster.create_topic(topic)
    with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
        for value in values:
            producer.send(topic, None if value is None else json.dumps(value).encode())
    return {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "json",
    }


def rows_of_the_driver(options: dict[str, str]) -> Any:
    opened.append(KafkaDataSource(options).streamReader(SCHEMA))
    plan(opened[-1])
    return take(opened[-1])


def test_the_driver_reads_what_has_no_null_items(cluster: FakeCluster) -> None:
    rows = rows_of_the_driver(put(cluster, "smooth", SMOOTH))
    assert rows is not None
    assert sum(batch.num_rows for batch in rows) == len(SMOOTH)


@pytest.mark.parametrize("value", ITEMS, ids=str)
def test_null_items_are_left_to_a_task(cluster: FakeCluster, value: dict[str, Any]) -> None:
    assert rows_of_the_driver(put(cluster, "items", [FULL, value])) is None


@pytest.mark.spark
def test_the_rows_are_those_of_a_task(cluster: FakeCluster, spark: Any, tmp_path: Path) -> None:
    smooth = put(cluster, "smooth", SMOOTH)
    both = put(cluster, "both", [*SMOOTH, *ITEMS])

    def rows(options: dict[str, str], most: int) -> list[Any]:
        found: list[Any] = []
        query = (
            spark.readStream.format("pykafka")
            .options(**options, maxRecordsReadByDriver=str(most))
            .schema(SCHEMA)
            .load()
            .writeStream.foreachBatch(
                lambda frame, _: found.extend(frame.orderBy("offset").collect())
            )
            .option("checkpointLocation", str(tmp_path / f"{options['subscribe']}-{most}"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return found

    of_tasks = rows(both, 0)
    assert len(of_tasks) == len(SMOOTH) + len(ITEMS)
    assert of_tasks[0].value.texts == FULL["texts"]
    assert of_tasks[0].value.s.y.w == [1]
    assert rows(smooth, 10_000) == of_tasks[: len(SMOOTH)]
    assert rows(both, 10_000) == of_tasks


def test_changes_come_with_the_plan_and_are_those_of_a_task(cluster: FakeCluster) -> None:
    records = [payload("c", None, {"id": number, "city": None}) for number in range(5)]
    options = {**put(cluster, "changes", [*records, None, {"ts_ms": 1}]), "envelope": "debezium"}
    change = struct(op=StringType(), kind=StringType(), offset=LongType(), topic=StringType())
    source = KafkaDataSource(options).streamReader(struct(id=LongType(), change=change))
    opened.append(source)
    (task,) = plan(source)
    rows = take(source)
    assert rows is not None
    by_driver = pa.Table.from_batches(rows)
    assert by_driver.equals(pa.Table.from_batches(source.read(task)))
    assert by_driver["id"].to_pylist() == [*range(5), None, None]
    kinds = [row["kind"] for row in by_driver["change"].to_pylist()]
    assert kinds == [*["row"] * 5, "tombstone", "heartbeat"]
