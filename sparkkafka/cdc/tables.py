"""Merging changes into a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F

from sparkkafka.cdc.databases import apply_to_database, missing_columns
from sparkkafka.cdc.merge_sql import Merge
from sparkkafka.cdc.net_changes import DELETED, POSITION, TRUNCATED, Changes
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADD, FAIL = "add", "fail"


def apply(
    batch: DataFrame,
    target: str,
    *,
    keys: Sequence[str] | None = None,
    connect: Callable[[], Any] | None = None,
    new_columns: str = FAIL,
) -> None:
    """Merge a batch of changes into a table, so that it has the rows of the source's table.

    `target` is the name of a table of Spark with MERGE (Delta, Iceberg). With `connect`, which
    returns a new connection of sqlite3 or psycopg, it is a table of that database, which is created
    unless it exists. `keys` are as for `latest`. With new_columns="add" columns that the table
    lacks are added, with "fail" they are an error.

    The table's column `_position` has the position of each row's last change, and the table
    `TARGET__deletes` that of each delete. A change that is older than what the table has, and a
    batch that is applied again, change nothing. The batch is one transaction.
    """
    if new_columns not in (ADD, FAIL):
        raise OptionError(f"new_columns={new_columns!r} is unknown. Use {ADD!r} or {FAIL!r}.")
    changes = Changes.of(batch, keys)
    if connect is not None:
        apply_to_database(changes, target, connect, new_columns == ADD)
    else:
        _apply_to_spark_table(changes, target, new_columns == ADD)


def _apply_to_spark_table(changes: Changes, target: str, add_columns: bool) -> None:
    spark = changes.df.sparkSession
    columns = (*changes.keys, *changes.values)
    view = f"sparkkafka_changes_{uuid4().hex}"
    merge = Merge(
        target=target,
        changes=view,
        keys=changes.keys,
        columns=columns,
        toasted=frozenset(changes.toasted()),
        quote="`",
    )
    _add_columns(spark, merge, changes, add_columns)
    net = changes.net(with_change=False).persist()
    try:
        net.createOrReplaceTempView(view)
        found = net.agg(
            F.count_if(DELETED).alias("deletes"),
            F.max(F.when(F.col(TRUNCATED), F.col(POSITION))).alias("truncate"),
        ).collect()
        deletes, truncate = found[0]
        if deletes or truncate is not None:
            _create_deletes(spark, merge, changes)
            spark.sql(merge.remember_deletes)
        if spark.catalog.tableExists(merge.deletes):
            live = f"SELECT * FROM {view} s WHERE NOT {TRUNCATED} AND {merge.after_deletes}"
            spark.sql(live).createOrReplaceTempView(f"{view}_live")
            merge = replace(merge, changes=f"{view}_live")
        spark.sql(merge.spark_merge(truncate))
    finally:
        for name in (view, f"{view}_live"):
            spark.catalog.dropTempView(name)
        net.unpersist()


def _add_columns(spark: SparkSession, merge: Merge, changes: Changes, add_columns: bool) -> None:
    """Add the columns that the target lacks, or raise OptionError."""
    if not spark.catalog.tableExists(merge.target):
        columns = ", ".join(_definitions(merge, changes, *merge.columns, POSITION))
        raise OptionError(
            f"The table {merge.target} does not exist. Create it: "
            f"CREATE TABLE {merge.target} ({columns}) USING delta (or iceberg)."
        )
    found = {name.lower() for name in spark.table(merge.target).columns}
    missing = [name for name in (*merge.columns, POSITION) if name.lower() not in found]
    if missing and not add_columns:
        raise missing_columns(merge.target, missing)
    if missing:
        columns = ", ".join(_definitions(merge, changes, *missing))
        spark.sql(f"ALTER TABLE {merge.target} ADD COLUMNS ({columns})")


def _create_deletes(spark: SparkSession, merge: Merge, changes: Changes) -> None:
    facts = spark.sql(f"DESCRIBE TABLE EXTENDED {merge.target}")
    provider = facts.where("col_name = 'Provider'").first()
    columns = ", ".join(_definitions(merge, changes, *merge.keys, POSITION))
    using = f" USING {provider.data_type}" if provider else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {merge.deletes} ({columns}){using}")


def _definitions(merge: Merge, changes: Changes, *names: str) -> list[str]:
    types = {field.name: field.dataType.simpleString() for field in changes.df.schema}
    return [f"{merge.name(name)} {types.get(name, 'string')}" for name in names]
