"""Merging changes into a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkkafka.cdc.databases import apply_to_database, missing_columns
from sparkkafka.cdc.merge_sql import UNKNOWN_VALUE, HistoryMerge, Merge
from sparkkafka.cdc.net_changes import (
    DELETED,
    IS_CURRENT,
    POSITION,
    STARTED,
    TRUNCATED,
    UNAVAILABLE,
    VALID_FROM,
    VALID_TO,
    Changes,
)
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
    scd: int = 1,
    new_columns: str = FAIL,
) -> None:
    """Merge a batch of changes into a table.

    `target` is the name of a table of Spark with MERGE (Delta, Iceberg). With `connect`, which
    returns a new connection of sqlite3 or psycopg, it is a table of that database, which is created
    unless it exists. `keys` are as for `latest`. With new_columns="add" columns that the table
    lacks are added, with "fail" they are an error.

    With scd=1 the table has the rows of the source's table; with 2 it keeps all versions of a row,
    with `valid_from`, `valid_to` and `is_current`. It gets them from changes: tombstones are
    ignored, and a compacted topic has no history.

    The table's column `_position` has the position of each row's last change, and the table
    `TARGET__deletes` that of each delete. A change that is older than what the table has, and a
    batch that is applied again, change nothing. The batch is one transaction.
    """
    if scd not in (1, 2):
        raise OptionError(f"scd={scd!r} is unknown. Use 1 (rows) or 2 (history).")
    if new_columns not in (ADD, FAIL):
        raise OptionError(f"new_columns={new_columns!r} is unknown. Use {ADD!r} or {FAIL!r}.")
    changes = Changes.of(batch, keys)
    if connect is not None:
        apply_to_database(changes, target, connect, new_columns == ADD, scd)
    else:
        _apply_to_spark_table(changes, target, new_columns == ADD, scd)


def _apply_to_spark_table(changes: Changes, target: str, add_columns: bool, scd: int) -> None:
    spark = changes.df.sparkSession
    view = f"sparkkafka_changes_{uuid4().hex}"
    columns = (*changes.keys, *changes.values)
    merge = (Merge if scd == 1 else HistoryMerge)(
        target=target,
        changes=view,
        keys=changes.keys,
        columns=columns if scd == 1 else (*columns, VALID_FROM),
        toasted=frozenset(changes.toasted()),
        quote="`",
    )
    rows = (changes.net(with_change=False) if scd == 1 else changes.history()).persist()
    views = (view, f"{view}_merged")
    try:
        _prepare(spark, merge, rows, add_columns)
        rows.createOrReplaceTempView(view)
        ((deletes, truncate),) = rows.agg(
            F.count_if(DELETED), F.max(F.when(F.col(TRUNCATED), F.col(POSITION)))
        ).collect()
        if deletes or truncate is not None:
            _create_deletes(spark, merge, rows)
            spark.sql(merge.remember_deletes)
        has_deletes = spark.catalog.tableExists(merge.deletes)
        if isinstance(merge, HistoryMerge):
            merged = _versions(spark, merge, rows, has_deletes, of_all=truncate is not None)
            merged = merged.localCheckpoint()  # Iceberg cannot merge what reads the target itself
        elif has_deletes:
            merged = spark.sql(
                f"SELECT * FROM {view} s WHERE NOT {TRUNCATED} AND {merge.after_deletes}"
            )
        else:
            merged = rows
        merged.createOrReplaceTempView(views[1])
        spark.sql(replace(merge, changes=views[1]).spark_merge(truncate))
    finally:
        for name in views:
            spark.catalog.dropTempView(name)
        rows.unpersist()


def _versions(
    spark: SparkSession, merge: HistoryMerge, rows: DataFrame, has_deletes: bool, *, of_all: bool
) -> DataFrame:
    """Return the versions of changed keys, or of all keys, with their end."""
    table = spark.table(merge.target).select(*merge.columns, POSITION)
    kept = table if of_all else table.join(rows.select(*merge.keys), [*merge.keys], "left_semi")
    flags = {DELETED: F.lit(False), UNAVAILABLE: F.lit(""), STARTED: F.lit(False)}
    names = [*merge.columns, POSITION, *flags]
    new = rows.where(f"NOT {DELETED} AND NOT {TRUNCATED}")
    new = new.join(kept, [*merge.keys, POSITION], "left_anti").select(*names)
    events = kept.withColumns(flags).select(*names).unionByName(new)
    truncates: list[Any] = []
    if has_deletes:
        deletes = spark.table(merge.deletes)
        is_truncate = F.col(merge.name(merge.keys[0])).isNull()
        truncates = deletes.where(is_truncate).select(POSITION, VALID_FROM).distinct().collect()
        ends = deletes.join(events.select(*merge.keys).distinct(), [*merge.keys], "left_semi")
        deleted = ends.withColumns({**flags, DELETED: F.lit(True)})
        events = events.unionByName(deleted, allowMissingColumns=True)
    order = Window.partitionBy(*map(merge.name, merge.keys)).orderBy(POSITION)
    has_version = F.max(~F.col(DELETED)).over(order.rowsBetween(Window.unboundedPreceding, -1))
    columns = {}
    for name in sorted(merge.toasted):
        lacks = F.expr(merge.lacks(name).replace("s.", ""))
        known = F.last(F.when(~lacks & ~F.col(DELETED), F.struct(merge.name(name))), True)
        columns[name] = F.when(lacks, known.over(order)[name]).otherwise(F.col(merge.name(name)))
    unknown = F.when(
        (F.col(UNAVAILABLE) != "") & (F.col(STARTED) | ~F.coalesce(has_version, F.lit(False))),
        F.raise_error(F.concat(F.lit(UNKNOWN_VALUE), UNAVAILABLE)),
    )
    following = F.lead(F.struct(POSITION, VALID_FROM)).over(order)
    later = [
        F.when(F.col(POSITION) < position, F.struct(F.lit(position), F.lit(time)))
        for position, time in truncates
    ]
    end = F.array_min(F.array_compact(F.array(following, *later)))
    return (
        events.withColumns({**columns, "_end": end, POSITION: F.coalesce(unknown, POSITION)})
        .where(~F.col(DELETED))
        .withColumns({VALID_TO: F.col(f"_end.{VALID_FROM}"), IS_CURRENT: F.col("_end").isNull()})
    )


def _prepare(spark: SparkSession, merge: Merge, rows: DataFrame, add_columns: bool) -> None:
    """Add the columns that the target lacks, or raise OptionError."""
    if not spark.catalog.tableExists(merge.target):
        columns = ", ".join(_definitions(merge, rows, merge.all_columns))
        raise OptionError(
            f"The table {merge.target} does not exist. Create it: "
            f"CREATE TABLE {merge.target} ({columns}) USING delta (or iceberg)."
        )
    found = {name.lower() for name in spark.table(merge.target).columns}
    missing = [name for name in merge.all_columns if name.lower() not in found]
    if missing and not add_columns:
        raise missing_columns(merge.target, missing)
    if missing:
        columns = ", ".join(_definitions(merge, rows, missing))
        spark.sql(f"ALTER TABLE {merge.target} ADD COLUMNS ({columns})")


def _create_deletes(spark: SparkSession, merge: Merge, rows: DataFrame) -> None:
    facts = spark.sql(f"DESCRIBE TABLE EXTENDED {merge.target}")
    provider = facts.where("col_name = 'Provider'").first()
    columns = ", ".join(_definitions(merge, rows, [*merge.keys, *merge.of_delete, POSITION]))
    using = f" USING {provider.data_type}" if provider else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {merge.deletes} ({columns}){using}")


def _definitions(merge: Merge, rows: DataFrame, names: Sequence[str]) -> list[str]:
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    types |= {VALID_TO: "timestamp", IS_CURRENT: "boolean"}
    return [f"{merge.name(name)} {types[name]}" for name in names]
