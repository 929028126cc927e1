"""`cdc.apply`: a table has the source's rows, whatever is applied again, late or twice."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from sparkkafka import cdc
from sparkkafka.errors import OptionError, SchemaError
from tests.cdc.source_table import SourceTable, frame, row_of, versions_of
from tests.cdc.test_latest import record
from tests.support.postgres_server import find_postgres, postgres_server

pytestmark = pytest.mark.spark

Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    programs = find_postgres()
    if programs is None:
        pytest.skip("no Postgres was found: `apt-get install postgresql`")
    with postgres_server(programs) as database:
        yield database


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    if request.param == "sqlite":
        return lambda: sqlite3.connect(tmp_path / "shop.db")
    import psycopg  # here: each process of the tests imports all test modules

    database = request.getfixturevalue("postgres")
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return lambda: psycopg.connect(database)


def rows(connect: Connect, columns: str = "*", table: str = "orders") -> list[tuple[Any, ...]]:
    with closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2")
        return [tuple(row) for row in cursor.fetchall()]


def table(connect: Connect) -> dict[Any, Any]:
    found = rows(connect, "id, part, note, amount, tags")
    return {(id, part): row_of(*values) for id, part, *values in found}


def test_a_table_has_the_source_s_rows_after_any_batches(spark: Any, connect: Connect) -> None:
    """The batches of a topic that was given a partition come in any order, some twice."""
    source = SourceTable(1, one_record=True)
    source.change(90)
    source.partitions = 3
    source.change(90)
    batches = source.batches(90)
    order = [*batches, source.random.choice(batches)]
    source.random.shuffle(order)
    for batch in order:
        cdc.apply(frame(spark, batch), "orders", connect=connect)
    assert len(source.rows) > 3
    assert table(connect) == source.rows


@pytest.mark.parametrize("connect", ["postgres"], indirect=True)
def test_values_that_are_not_sent_stay_when_old_batches_come_again(
    spark: Any, connect: Connect
) -> None:
    source = SourceTable(24, toast=True)
    source.change(150)
    for number, batch in enumerate(batches := source.batches(120)):
        cdc.apply(frame(spark, batch), "orders", connect=connect)
        if number % 3 == 1:
            cdc.apply(frame(spark, batches[number - 1]), "orders", connect=connect)
    assert len(source.rows) > 3
    assert table(connect) == source.rows


def history(connect: Connect) -> list[tuple[Any, ...]]:
    columns = "id, part, note, amount, tags, valid_from, valid_to, is_current"
    return versions_of(rows(connect, columns))


def test_a_history_has_all_versions_after_any_batches(spark: Any, connect: Connect) -> None:
    source = SourceTable(2, one_record=True)
    source.change(60)
    source.partitions = 3
    source.change(60)
    batches = source.batches(60)
    order = [*batches, batches[0]]
    source.random.shuffle(order)
    for batch in order:
        cdc.apply(frame(spark, batch), "orders", connect=connect, scd=2)
    assert len(source.ended) > 30
    assert history(connect) == source.versions()


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_a_history_fills_values_that_are_not_sent(spark: Any, connect: Connect) -> None:
    source = SourceTable(150, toast=True, snapshots=True)
    source.change(80)
    batches = source.batches(60)
    for batch in (*batches, batches[1]):
        cdc.apply(frame(spark, batch), "orders", connect=connect, scd=2)
    assert any("+" in position for position, _ in rows(connect, "_position, id"))
    assert history(connect) == source.versions()
    unknown = frame(spark, [record(9, "u", "9", unavailable=["note"], key=(999, "a"))])
    with pytest.raises(SchemaError, match="Columns: note; table orders"):
        cdc.apply(unknown, "orders", connect=connect, scd=2)


class KilledError(Exception):
    pass


class Killed:
    """A connection of a driver that dies at a statement."""

    def __init__(self, connection: Any, at: str) -> None:
        self.connection, self.at = connection, at

    def cursor(self) -> Any:
        cursor = self.connection.cursor()
        test = self

        class Cursor:
            def __getattr__(self, name: str) -> Any:
                return getattr(cursor, name)

            def execute(self, statement: str) -> None:
                if statement.startswith(test.at):
                    raise KilledError
                cursor.execute(statement)

        return Cursor()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_a_killed_driver_leaves_nothing_half_done(
    spark: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceTable(4)
    source.change(60)
    cdc.apply(frame(spark, source.records), "orders", connect=connect)
    before = rows(connect), rows(connect, table="orders__deletes")
    source.records.clear()
    source.change(60)
    second = frame(spark, source.records)
    tables = cdc.database_tables
    dialect_of = tables._dialect_of
    monkeypatch.setattr(
        cdc.database_tables, "_dialect_of", lambda made: dialect_of(made.connection)
    )
    for statement in ('DELETE FROM "orders"', 'INSERT INTO "orders" '):
        with pytest.raises(KilledError):
            cdc.apply(second, "orders", connect=lambda at=statement: Killed(connect(), at))
        assert (rows(connect), rows(connect, table="orders__deletes")) == before
    monkeypatch.undo()
    cdc.apply(second, "orders", connect=connect)
    assert table(connect) == source.rows


def test_new_columns_are_an_error_or_added(spark: Any, connect: Connect) -> None:
    batch = frame(spark, [record(0, "c", "1", "first")])
    cdc.apply(batch.drop("tags"), "orders", connect=connect)
    with pytest.raises(
        OptionError, match=r'table "orders" has no column tags\. .*new_columns=.add'
    ):
        cdc.apply(batch, "orders", connect=connect)
    cdc.apply(batch, "orders", connect=connect, new_columns="add")
    assert rows(connect, "id, note, tags") == [(1, "first", None)]
    # An older reader does not know the column, and leaves it as it is.
    later = frame(spark, [record(1, "u", "2", "second")]).drop("tags")
    cdc.apply(later, "orders", connect=connect)
    assert rows(connect, "id, note") == [(1, "second")]


@pytest.mark.parametrize("connect", ["postgres"], indirect=True)
def test_a_change_after_a_snapshot_s_row_is_newer(spark: Any, connect: Connect) -> None:
    """In the source's log it is earlier, see test_latest.py. SQLite has such changes above."""
    of_snapshot, later = (
        {id: record(10 * id + offset, op, position, note, key=(id, "a")) for id in (1, 2, 3)}
        for offset, op, position, note in (
            (5, "r", "100", "of the snapshot"),
            (6, "u", "090", "later"),
        )
    )
    again = [of_snapshot[1], later[2], of_snapshot[3], later[3]]
    batches = ([*of_snapshot.values()], [*later.values()], again)
    for batch, note in zip(batches, ("of the snapshot", "later", "later"), strict=True):
        cdc.apply(frame(spark, batch), "orders", connect=connect)
        assert rows(connect, "note, id") == [(note, id) for id in (1, 2, 3)]
    for batch in batches:
        cdc.apply(frame(spark, batch), "versions", connect=connect, scd=2)
    assert rows(connect, "is_current, id, note", "versions") == [
        *((False, id, "of the snapshot") for id in (1, 2, 3)),
        *((True, id, "later") for id in (1, 2, 3)),
    ]


def test_no_version_ends_before_it_starts(spark: Any, connect: Connect) -> None:
    """After a blocking snapshot Debezium sends changes that the snapshot's rows already have."""
    records = [
        record(offset, op, f"{time:03}", note)
        for offset, (op, time, note) in enumerate(
            [("c", 10, "a"), ("r", 100, "c"), ("u", 20, "b"), ("u", 30, "c")]
        )
    ]
    changes = frame(spark, records)
    time = F.col("change.position").cast("long")
    changes = changes.withColumn("change", F.col("change").withField("ts_ms", time))
    whole, one_by_one = [changes], [changes.where(f"change.offset = {n}") for n in range(4)]
    columns = "id, part, note, amount, tags, valid_from, valid_to, is_current"
    for batches, name in ((whole, "whole"), (one_by_one, "one_by_one")):
        for batch in batches:
            cdc.apply(batch, name, connect=connect, scd=2)
        found = versions_of(rows(connect, columns, name))
        assert [(row[0], *times) for _, row, *times in found] == [
            ("a", 10, 20),
            ("b", 20, 30),
            ("c", 30, None),
            ("c", 100, 100),
        ]


@pytest.mark.parametrize("connect", ["postgres"], indirect=True)
def test_a_table_of_one_s_own_keeps_its_columns(spark: Any, connect: Connect) -> None:
    with closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE TABLE orders (id numeric, part uuid, note varchar(9), seen text DEFAULT 'no',"
            " paid text, flags text[], PRIMARY KEY (id, part))"
        )
        part = "6f1e3c1a-0000-4000-8000-000000000001"
        cursor.execute(f"INSERT INTO orders VALUES (1, '{part}', 'before', 'yes')")
        connection.commit()
    first, second, third = ((id, part) for id in (1, 2, 3))
    batch = frame(
        spark,
        [
            record(0, "u", "1", "after", key=first),
            record(1, "c", "2", key=second),
            record(2, "d", "3", key=third),
        ],
    )
    batch = batch.drop("amount", "tags").withColumn("paid", F.col("note").isNotNull())
    batch = batch.withColumn("flags", F.array("paid", F.lit(None)))
    cdc.apply(batch, "orders", connect=connect, new_columns="add")
    assert rows(connect, "id, note, seen, paid, flags") == [
        (1, "after", "yes", "true", ["true", None]),
        (2, None, "no", "false", ["false", None]),
    ]


@pytest.mark.parametrize("connect", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("numeric(10,2)", "'1.2345'"),
        ("numeric(10,2)[]", "array(CAST(1.2345 AS decimal(12,4)))"),
        ("bigint", "1.7d"),
        ("integer", "CAST(1.5 AS decimal(5,1))"),
        ("real", "1.1d"),
        ("date", "timestamp '2026-01-02 03:04:05Z'"),
    ],
)
def test_a_type_that_would_round_is_an_error(
    spark: Any, connect: Connect, type: str, value: str
) -> None:
    with closing(connect()) as connection:
        connection.cursor().execute(
            f"CREATE TABLE orders (id int, part text, number {type}, PRIMARY KEY (id, part))"
        )
        connection.commit()
    batch = frame(spark, [record(0, "c", "1")]).withColumn("number", F.expr(value))
    with pytest.raises(OptionError, match=r"column number .* would be rounded or cut"):
        cdc.apply(batch, "orders", connect=connect, new_columns="add")


def test_a_key_that_the_source_renamed_is_an_error(spark: Any, connect: Connect) -> None:
    batch = frame(spark, [record(0, "c", "1")])
    cdc.apply(batch, "orders", connect=connect)
    renamed = batch.withColumnRenamed("part", "PART2")
    with pytest.raises(OptionError, match=r"no column PART2, which is part of the key"):
        cdc.apply(renamed, "orders", keys=["id", "PART2"], connect=connect, new_columns="add")


@pytest.mark.parametrize("connect", ["postgres"], indirect=True)
def test_names_that_postgres_would_cut_off_or_not_find(spark: Any, connect: Connect) -> None:
    batch = frame(spark, [record(0, "c", "1")])
    with pytest.raises(OptionError, match="more than 63 bytes"):
        cdc.apply(batch, "o" * 60, connect=connect)
    with closing(connect()) as connection:
        connection.cursor().execute(
            "CREATE TABLE orders (id int, part text, note text, PRIMARY KEY (id, part))"
        )
        connection.commit()
    upper = batch.withColumnRenamed("note", "NOTE")
    with pytest.raises(OptionError, match="has no column NOTE"):
        cdc.apply(upper, "orders", connect=connect)


def test_times_keep_their_microseconds_zones_and_infinity(
    spark: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setenv("TZ", "America/New_York")
        time.tzset()
        at = "timestamp '2026-01-02 03:04:05.123456Z'"
        columns = {
            "times": F.expr(f"array({at}, timestamp_micros(9223372036825200000), NULL)"),
            "local": F.expr("array(timestamp_ntz '2026-01-02 03:04:05.123456')"),
            "numbers": F.expr("array(array(1.5d))"),
            "days": F.expr("array(date '2026-01-02')"),
            "nested": F.expr(f"struct({at} AS t)"),
            "ends": F.expr("timestamp_micros(-9223372036832400000)"),
            "late": F.expr("timestamp '+12345-03-15 00:00:00Z'"),
            "late_day": F.expr("date '+12345-03-15'"),
            "early": F.expr("date '-0043-03-15'"),
            "last_day": F.expr("date_from_unix_date(106751991)"),
            "first_day": F.expr("date_from_unix_date(-106751992)"),
            "early_time": F.expr("timestamp_ntz '-0043-03-15 01:02:03'"),
            "same": F.expr(at),  # in any session
            "none": F.expr("CAST(NULL AS timestamp)"),
        }
        batch = frame(spark, [record(0, "c", "1")]).withColumns(columns)
        cdc.apply(batch, "orders", connect=connect)
    time.tzset()
    [(times, local, days, nested, ends, late, late_day, early, *day, early_time, same, none)] = (
        rows(connect, ", ".join(f"CAST({name} AS text)" for name in columns if name != "numbers"))
    )
    assert "2026-01-02 03:04:05.123456" in local.replace("T", " ")
    assert "2026-01-02" in days
    assert ends == "-infinity"
    assert none is None
    assert late.startswith("12345-03-15 00:00:00")
    assert late_day == "12345-03-15"
    assert early == "0044-03-15 BC"
    assert day == ["infinity", "-infinity"]
    assert early_time.startswith("0044-03-15 01:02:03")
    assert early_time.endswith(" BC")
    assert same.startswith("2026-01-02 03:04:05.123456")
    for text in (times, nested):
        text = re.search(r"2026-01-0\d.*?(Z|[+-]\d\d(:?\d\d)?)\b", text)[0]
        assert datetime.fromisoformat(text) == datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_an_unknown_value_is_an_error(spark: Any, connect: Connect) -> None:
    batch = frame(spark, [record(0, "u", "1", unavailable=["note"])])
    with pytest.raises(SchemaError, match=r"REPLICA IDENTITY FULL.*Columns: note; table orders"):
        cdc.apply(batch, "orders", connect=connect)
    assert rows(connect) == []


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_columns_have_any_name(spark: Any, connect: Connect) -> None:
    name = "x,amount,`\"'b"
    for text, amount, unavailable in (("first", 1, []), (None, 2, [name])):
        changes = [
            record(amount, "u" if unavailable else "c", str(amount), text, "row", unavailable)
        ]
        batch = frame(spark, changes).withColumn("amount", F.lit(str(amount)))
        cdc.apply(batch.withColumnRenamed("note", name), "orders", connect=connect)
    assert rows(connect, '"x,amount,`""\'b", amount') == [("first", "2")]


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_numbers_that_sqlite_cannot_store(spark: Any, connect: Connect) -> None:
    """Its decimals are texts, and its NaN is null."""
    for offset, id in enumerate(("1.20", "1.200", "10.00")):
        batch = frame(spark, [record(offset, "c", str(offset))])
        digits = len(id.partition(".")[2])
        batch = batch.withColumn("id", F.lit(id).cast(f"decimal(10, {digits})"))
        batch = batch.withColumn("change", F.col("change").dropFields("key", "old_key"))
        cdc.apply(batch, "orders", keys=["id"], connect=connect)
    assert rows(connect, "id, part") == [("1.2", "a"), ("10", "a")]
    not_a_number = batch.withColumn("note", F.lit(float("nan")))
    with pytest.raises(
        SchemaError, match=r"column note of the key \(.10.,\) is NaN, .* Cast the col"
    ):
        cdc.apply(not_a_number, "orders", keys=["id"], connect=connect)


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_a_number_that_an_update_omits_stays(spark: Any, connect: Connect) -> None:
    """GoldenGate's updates have the columns that changed, of any type."""
    for offset, op, count, unavailable in ((0, "c", 7, None), (1, "u", None, ["count"])):
        batch = frame(spark, [record(offset, op, str(offset), str(offset), "row", unavailable)])
        batch = batch.drop("amount", "tags").withColumn("count", F.lit(count).cast("int"))
        cdc.apply(batch, "orders", connect=connect)
    assert rows(connect, "note, count") == [("1", 7)]


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_a_constraint_of_the_table_is_named(spark: Any, connect: Connect) -> None:
    with closing(connect()) as connection:
        connection.execute(
            "CREATE TABLE orders (id int, part text, seen text NOT NULL, PRIMARY KEY (id, part))"
        )
        connection.commit()
    batch = frame(spark, [record(0, "c", "1")]).drop("note", "amount", "tags")
    with pytest.raises(SchemaError, match=r'table "orders" refuses a row: NOT NULL .*orders\.seen'):
        cdc.apply(batch, "orders", connect=connect, new_columns="add")


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_a_table_without_the_key_is_an_error(spark: Any, connect: Connect) -> None:
    with closing(connect()) as connection:
        connection.execute("CREATE TABLE orders (id integer, part text)")
        connection.commit()
    batch = frame(spark, [record(0, "c", "1")])
    with pytest.raises(OptionError, match=r'table "orders" has no primary key .* id, part'):
        cdc.apply(batch, "orders", connect=connect, new_columns="add")


def test_tables_have_any_name(spark: Any, connect: Connect) -> None:
    batch = frame(spark, [record(0, "c", "1"), record(1, "d", "2")])
    with closing(connect()) as connection:
        schema = "main" if isinstance(connection, sqlite3.Connection) else "public"
    for target, deletes in (
        ("Order", "order__deletes"),  # Postgres folds names without quotes
        (f"{schema}.a table; drop", "a table; drop__deletes"),
        (f'{schema}."A.B"', "A.B__deletes"),
    ):
        cdc.apply(batch, target, connect=connect)
        assert rows(connect, "id, part", f'"{deletes}"') == [(1, "a")]
    for target in ("a..b", '"a', "", None):
        with pytest.raises(OptionError, match="is not a table's name"):
            cdc.apply(batch, target, connect=connect)  # type: ignore[arg-type]


@pytest.mark.parametrize("connect", ["sqlite"], indirect=True)
def test_a_table_stays_one_of_rows_or_a_history(spark: Any, connect: Connect) -> None:
    batch = frame(spark, [record(0, "c", "1")])
    for scd, text in ((1, r"has one row per key \(scd=1\)"), (2, r"has a history \(scd=2\)")):
        cdc.apply(batch, f"made_with_{scd}", connect=connect, scd=scd)
        with pytest.raises(OptionError, match=f'"made_with_{scd}" {text}.* needs another table'):
            cdc.apply(batch, f"made_with_{scd}", connect=connect, scd=3 - scd, new_columns="add")


def test_other_connections_and_tables_are_refused(spark: Any, tmp_path: Path) -> None:
    batch = frame(spark, [])
    with pytest.raises(OptionError, match=r"connection of posix\. Return one of sqlite3"):
        cdc.apply(batch, "orders", connect=lambda: os.scandir("."))
    made = {"__module__": "psycopg", "autocommit": True, "close": lambda self: None}
    with pytest.raises(OptionError, match=r"psycopg with autocommit=True.*Leave autocommit out"):
        cdc.apply(batch, "orders", connect=type("Connection", (), made))
    doc = F.expr("named_struct('first-name', array(struct(1 AS `a b`)))")
    types = r"`id` INT, .*`doc` STRUCT<`first-name`: ARRAY<STRUCT<`a b`: INT>>>"
    with pytest.raises(
        OptionError, match=rf"CREATE TABLE no_table \({types}.*USING delta.* connect="
    ):
        cdc.apply(batch.withColumn("doc", doc), "no_table")
    with pytest.raises(OptionError, match="is a path, and the table of deletes"):
        cdc.apply(batch, "delta.`/lake/orders`")
    types = ", ".join(f"{name} string" for name in (*batch.columns, "_position"))
    spark.sql(f"CREATE TABLE no_merge ({types}) USING parquet LOCATION '{tmp_path}'")
    try:
        with pytest.raises(OptionError, match=r"cannot MERGE into the table no_merge\. .*Delta"):
            cdc.apply(batch, "no_merge", new_columns="add")
    finally:
        spark.sql("DROP TABLE no_merge")
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(OptionError, match="connect is a Connection"):
            cdc.apply(batch, "orders", connect=connection)
    for keys in ([], ["id", "id"]):
        with pytest.raises(OptionError, match="is empty or names a column twice"):
            cdc.apply(batch, "orders", keys=keys)
    with pytest.raises(OptionError, match="new_columns='no' is unknown"):
        cdc.apply(batch, "orders", new_columns="no")
    with pytest.raises(OptionError, match=r"have a column 'valid_from', .* to orders"):
        cdc.apply(batch.withColumnRenamed("note", "valid_from"), "orders", scd=2)
    with pytest.raises(OptionError, match="have a column '_position', a name"):
        cdc.latest(batch.withColumnRenamed("note", "_Position"))
    made |= {"autocommit": False, "row_factory": dict}
    with pytest.raises(OptionError, match="psycopg whose row_factory makes no tuples"):
        cdc.apply(batch, "orders", connect=type("Connection", (), made))
    with pytest.raises(OptionError, match="columns note, NOTE differ only in case"):
        cdc.apply(batch.withColumn("x", F.lit(1)).toDF(*batch.columns, "NOTE"), "orders")
    with pytest.raises(OptionError, match="scd=3 is unknown"):
        cdc.apply(batch, "orders", scd=3)
