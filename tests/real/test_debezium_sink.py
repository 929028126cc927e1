"""Debezium's JDBC sink takes what `envelope=debezium` writes: its tables have the rows."""

from __future__ import annotations

import datetime
import uuid
from contextlib import ExitStack, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkkafka import cdc
from sparkkafka.testing.kafka.ports import ReservedPorts
from tests.support.debezium_connector import JSON, SINK_JARS, ConnectWorker, avro, jdbc_settings
from tests.support.postgres_server import find_postgres, postgres_server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak]

FOLLOW_S = 60.0
TIME = datetime.datetime(2024, 2, 29, 12, 34, 56, 789_012)

#: The type of each key, and values of it.
KEYS: dict[str, tuple[str, list[Any]]] = {
    "number": ("bigint", [1, -2, 3, 2**62]),
    "text": ("string", ["é b", str(uuid.UUID(int=7)), "c'd", ""]),
    "amount": ("decimal(12,2)", [Decimal(text) for text in ("1.50", "-2.25", "0.00", "9.99")]),
    "instant": ("timestamp", [TIME.replace(year=year) for year in (1960, 2000, 2024, 9996)]),
    "local": ("timestamp_ntz", [TIME.replace(year=year) for year in (1960, 2000, 2024, 9996)]),
    "day": ("date", [datetime.date(1960 + number, 1, 31) for number in range(4)]),
    "raw": ("binary", [b"\0\xff", b"a", b"", b"b"]),
    "flag": ("boolean", [True, False]),
}
COLUMNS: dict[str, tuple[str, Any]] = {
    "small": ("smallint", -7),
    "whole": ("int", 8),
    "weight": ("double", 0.1),
    "size": ("float", 0.25),
    "price": ("decimal(20,4)", Decimal("-1234567890.1234")),
    "note": ("string", 'é "q"'),
    "bytes": ("binary", b"\0\1"),
    "born": ("date", datetime.date(1969, 12, 31)),
    "seen": ("timestamp", TIME),
    "made": ("timestamp_ntz", TIME),
    "is_new": ("boolean", True),
    "tags": ("array<string>", ["a", "b"]),
}


def changes(spark: SparkSession, kind: str, keys: list[Any]) -> DataFrame:
    """The table is filled, truncated and filled again; then one row is updated, one is deleted, and
    one has its key changed."""
    full = [value for _, value in COLUMNS.values()]
    nothing: list[Any] = [None] * len(full)
    first, second, *others = keys
    steps = [("c", "row", first, full), ("t", "truncate", None, nothing)]
    steps += [("r", "row", key, full) for key in keys]
    steps += [("u", "row", first, [*nothing[:-1], ["c"]]), ("d", "row", second, nothing)]
    steps += [(None, "tombstone", second, nothing)]
    for old, new in [others] if others else []:
        steps += [("d", "row", old, full), (None, "tombstone", old, nothing)]
        steps += [("d", "row", new, full), ("c", "row", new, nothing)]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    change = (
        f"struct<op: string, kind: string, position: string, key: struct<id: {kind}>,"
        " unavailable: array<string>, partition: int, offset: bigint, timestamp: timestamp>"
    )
    rows = []
    for number, (op, of, key, values) in enumerate(steps):
        record_key = None if key is None else (key,)
        kafka = (f"{number:020}", record_key, None, 0, number, None)
        rows.append((None if of == "tombstone" else key, *values, (op, of, *kafka)))
    return spark.createDataFrame(rows, f"id {kind}, {columns}, change {change}").coalesce(1)


@pytest.mark.parametrize("form", ["json", "avro"])
def test_the_sink_s_tables_have_the_rows(
    form: str, spark: SparkSession, kafka_cluster: Any, schema_registry: Any, tmp_path: Path
) -> None:
    programs = find_postgres()
    if programs is None:
        pytest.skip("no Postgres was found: `apt-get install postgresql`")
    import psycopg  # here: each process of the tests imports all test modules
    from psycopg.rows import dict_row

    servers = kafka_cluster.bootstrap_servers
    options = {"kafka.bootstrap.servers": servers, "valueFormat": form, "envelope": "debezium"}
    converters = JSON
    if form == "avro":
        options["schema.registry.url"] = schema_registry.url
        options["auto.register.schemas"] = "true"
        converters = avro(schema_registry.url)
    expected = {}
    for name, (kind, keys) in KEYS.items():
        written = changes(spark, kind, keys)
        writer = written.write.format("pykafka").options(**options, createTopic="true")
        writer.option("topic", f"{form}_{name}").mode("append").save()
        rows = cdc.latest(written).drop("change").toArrow().to_pylist()
        expected[name] = {row["id"]: row for row in rows}
        assert len(rows) == len(keys) - 1 - (len(keys) > 2)
    with ExitStack() as stack:
        port = stack.enter_context(ReservedPorts()).take()
        database = stack.enter_context(postgres_server(programs, port=port))
        worker = stack.enter_context(ConnectWorker(servers, tmp_path, SINK_JARS))
        topics = [f"{form}_{name}" for name in KEYS]
        worker.start("sink", jdbc_settings(port, topics) | converters)
        db = stack.enter_context(psycopg.connect(database, autocommit=True, row_factory=dict_row))

        def found() -> dict[str, Any]:
            tables = {}
            for name in KEYS:
                with suppress(psycopg.errors.UndefinedTable):
                    rows = db.execute(f"SELECT * FROM {form}_{name}").fetchall()
                    tables[name] = {row["id"]: row for row in rows}
            return tables

        with suppress(AssertionError):
            wait_until(lambda: found() == expected, "the tables have the rows", FOLLOW_S)
        worker.stop("sink")  # fails with its error if it has one
        assert found() == expected
