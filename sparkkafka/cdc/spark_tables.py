"""`apply` merges changes into a table: of Spark, or of a database (`database_tables.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.errors import UnsupportedOperationException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegralType,
    StructField,
    StructType,
    TimestampType,
)

from sparkkafka.cdc.database_tables import apply_to_database
from sparkkafka.cdc.merge_sql import HistoryMerge, Merge, check_types, columns_to_add
from sparkkafka.cdc.net_changes import (
    DELETED,
    IS_CURRENT,
    OUT_OF_ORDER,
    PARTITION_AND_OFFSET,
    POSITION,
    TRUNCATED,
    UNAVAILABLE,
    VALID_FROM,
    VALID_TO,
    Changes,
    column_at,
    is_after_snapshot,
    is_snapshot_position,
    lower_bound,
)
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ADD, FAIL = "add", "fail"
_MAX_LONG = 2**63 - 1


def apply(
    batch: DataFrame,
    target: str,
    *,
    keys: Sequence[str] | None = None,
    connect: Callable[[], Any] | None = None,
    scd: int = 1,
    new_columns: str = FAIL,
) -> None:
    """Merge a batch of changes into a table, in one transaction.

    `target` is the name of a Spark table that supports MERGE (Delta, Iceberg). With `connect`, a
    function that returns a new connection of sqlite3 or psycopg, it is a table of that database,
    which is created unless it exists. Postgres folds parts of the name without quotes to lower
    case. `keys` are the columns of the key, by default the fields of `change.key`. If the table
    lacks columns, new_columns="add" adds them and "fail" raises OptionError.

    With scd=1 the table has the rows of the source's table. With scd=2 it keeps all versions of a
    row, with `valid_from`, `valid_to` and `is_current`. A history ignores tombstones, and the topic
    must not be compacted, since compaction removes versions.

    The table's column `_position` has the position of each row's last change, and the table
    `TARGET__deletes` has the position of each delete. So a change that is older than the table's,
    or a batch that is applied again, changes nothing.

    Raises OptionError for bad arguments, and SchemaError for a batch that the table cannot take.
    """
    if not isinstance(target, str) or not target:
        raise OptionError(f"target={target!r} is not a table's name.")
    if connect is not None and (hasattr(connect, "cursor") or not callable(connect)):
        raise OptionError(
            f"connect is a {type(connect).__name__}. Pass a function that returns a new connection."
        )
    if scd not in (1, 2):
        raise OptionError(f"scd={scd!r} is unknown. Use 1 (rows) or 2 (history).")
    if new_columns not in (ADD, FAIL):
        raise OptionError(f"new_columns={new_columns!r} is unknown. Use {ADD!r} or {FAIL!r}.")
    changes = Changes.of(batch, keys)
    reserved = {VALID_FROM, VALID_TO, IS_CURRENT} if scd == 2 else set()
    taken = [name for name in (*changes.keys, *changes.values) if name.lower() in reserved]
    if taken:
        raise OptionError(
            f"The changes have a column {taken[0]!r}, but apply writes a column of this name to "
            f"{target}. Rename it first."
        )
    if connect is not None:
        apply_to_database(changes, target, connect, new_columns == ADD, scd)
    else:
        _apply_to_spark_table(changes, target, new_columns == ADD, scd)


def _apply_to_spark_table(changes: Changes, target: str, add_columns: bool, scd: int) -> None:
    """Merge the changes into a Spark table with one MERGE. Deletes are written before it, so that a
    batch that fails between the two can be applied again."""
    if "/" in target:
        raise OptionError(
            f"target={target!r} is a path, and the table of deletes needs a name beside the "
            "target's. Name it: CREATE TABLE customers USING delta LOCATION '/…'."
        )
    spark = changes.df.sparkSession
    view = f"sparkkafka_changes_{uuid4().hex}"
    read = changes.net if scd == 1 else changes.history
    columns = (*changes.keys, *changes.values)
    merge = (Merge if scd == 1 else HistoryMerge)(
        target=target,
        changes=view,
        keys=changes.keys,
        columns=columns if scd == 1 else (*columns, VALID_FROM),
        quote="`",
    )
    rows = changes.net_in_order() if scd == 1 else read()
    number_keys = _number_keys(merge, rows, _prepare(spark, merge, rows, add_columns))
    cached = _cache(rows)
    try:
        facts = _facts(cached, number_keys)
        if facts.out_of_order:
            cached.unpersist()
            cached = _cache(read())
            facts = _facts(cached, number_keys)
        if facts.unavailable and (filled := changes.to_fill(_unavailable(cached))):
            cached.unpersist()
            cached = _cache(read(filled))
            merge = replace(merge, unsent_columns=frozenset(filled))
        rows = cached.select("row.*")
        (rows if scd == 1 else _move_after_snapshots(rows, merge)).createOrReplaceTempView(view)
        truncate = facts.truncate
        if truncate is None:  # a truncate may delete rows of other keys
            merge = replace(merge, key_ranges=_key_ranges(number_keys, facts))
        has_deletes = facts.has_deletes or truncate is not None
        has_table = spark.catalog.tableExists(merge.deletes)
        are_newer = scd == 1 and (not has_table or _are_newer(spark, merge, facts))
        if not has_table and (has_deletes or scd == 2):
            _create_deletes(spark, merge, rows)
            has_table = True
        if has_deletes:
            spark.sql(merge.add_deletes if are_newer else merge.remember_deletes)
        if has_table and not (are_newer and truncate is None):
            # Not as a view: MERGE cannot plan views of Iceberg's tables (Spark's issue 56515).
            merge = replace(merge, changes=f"({merge.spark_rows(truncate is not None)})")
        spark.sql(merge.spark_merge(truncate))
    except UnsupportedOperationException as error:
        raise OptionError(
            f"Spark cannot MERGE into the table {target}. Use a table of Delta or Iceberg, or pass "
            "connect=… for a table of a database."
        ) from error
    finally:
        spark.catalog.dropTempView(view)
        cached.unpersist()


def _cache(rows: DataFrame) -> DataFrame:
    """Persist the rows as one column `row`. Spark's cache keeps a struct as its bytes; it would
    encode the values of each other column, and decode them at each read."""
    return rows.select(F.struct("*").alias("row")).persist()


def _facts(cached: DataFrame, number_keys: Sequence[str]) -> Row:
    """Compute the rows that `_cache` persists, and return the facts that decide how they are
    merged."""
    rows = cached.select("row.*")
    ranges = [
        aggregate(column_at(key)).alias(f"{aggregate.__name__} {key}")
        for key in number_keys
        for aggregate in (F.min, F.max)
    ]
    out_of_order = F.col(OUT_OF_ORDER) if OUT_OF_ORDER in rows.columns else F.lit(False)
    [facts] = rows.agg(
        F.max(DELETED).alias("has_deletes"),
        F.max(F.when(F.col(TRUNCATED), F.col(POSITION))).alias("truncate"),
        F.max(F.when(~F.col(DELETED), F.col(UNAVAILABLE))).alias("unavailable"),
        F.max(out_of_order).alias("out_of_order"),
        F.min(F.expr(lower_bound(POSITION))).alias("first_position"),
        *ranges,
    ).collect()
    return facts


def _number_keys(merge: Merge, rows: DataFrame, target_types: Mapping[str, DataType]) -> list[str]:
    """Return the columns of the key that are integers, in the changes and in the target: a target's
    column of another type would be compared with bounds in another way than with keys."""
    return [
        key
        for key in merge.keys
        if isinstance(rows.schema[key].dataType, IntegralType)
        and isinstance(target_types[key.lower()], IntegralType)
    ]


def _key_ranges(number_keys: Sequence[str], facts: Row) -> dict[str, tuple[int, int]]:
    """Return bounds for each of these columns, unless there are no rows."""
    found = {key: (facts[f"min {key}"], facts[f"max {key}"]) for key in number_keys}
    return {key: _widened(low, high) for key, (low, high) in found.items() if low is not None}


def _widened(low: int, high: int) -> tuple[int, int]:
    """Return bounds around the values from low to high, which are the same in many batches: Spark
    compiles a query again if its numbers are other ones."""
    size = 1 << (high - low).bit_length()
    start = low // size * size
    return max(start, -_MAX_LONG - 1), min(start + 2 * size - 1, _MAX_LONG)


def _unavailable(cached: DataFrame) -> list[str]:
    """Return the distinct texts `_sparkkafka_unavailable` of the rows."""
    rows = cached.select("row.*").where(~F.col(DELETED)).select(UNAVAILABLE).distinct()
    return [text for (text,) in rows.collect()]


def _are_newer(spark: SparkSession, merge: Merge, facts: Row) -> bool:
    """Return whether all changes are newer than all known deletes, as in most batches. Then no
    change must be compared with the delete of its key. Spark skips most files of the deletes by
    their statistics."""
    is_later = F.col(POSITION) >= (facts.first_position or "")
    return spark.table(merge.deletes).where(is_later).isEmpty()


def _move_after_snapshots(rows: DataFrame, merge: Merge) -> DataFrame:
    """Give a change that arrived after its key's snapshot row in the target a position after that
    row's."""
    (first,) = rows.where(f"{PARTITION_AND_OFFSET} IS NOT NULL").agg(F.min(POSITION)).collect()[0]
    snapshots = (
        rows.sparkSession.table(merge.target)
        .where(F.col(POSITION) > first)
        .where(is_snapshot_position(POSITION))
        .groupBy(*map(column_at, merge.keys))
        .agg(F.collect_list(POSITION).alias("_sparkkafka_snapshots"))
    )
    if first is None or snapshots.isEmpty():
        return rows
    is_after = is_after_snapshot(POSITION, PARTITION_AND_OFFSET, "r")
    found = f"array_max(filter(_sparkkafka_snapshots, r -> {is_after}))"
    moved = F.expr(f"coalesce({found} || '+', '') || {POSITION}")
    # MERGE cannot plan a view that reads a table of Iceberg (Spark's issue 56515).
    return (
        rows.join(snapshots, list(merge.keys), "left").withColumn(POSITION, moved).localCheckpoint()
    )


def _prepare(
    spark: SparkSession, merge: Merge, rows: DataFrame, add_columns: bool
) -> dict[str, DataType]:
    """Add the columns that the target lacks, or raise OptionError. Return the types of those that
    it had, by name in lower case."""
    if not spark.catalog.tableExists(merge.target):
        columns = ", ".join(_definitions(merge, rows, merge.all_columns))
        raise OptionError(
            f"The table {merge.target} does not exist. Create it: "
            f"CREATE TABLE {merge.target} ({columns}) USING delta (or iceberg). For a table of a "
            "database, pass connect=…"
        )
    existing = spark.table(merge.target).schema
    missing = columns_to_add(merge, existing.names, add_columns)
    types = {field.name.lower(): field.dataType for field in existing}
    old = {name: types[name.lower()] for name in merge.columns if name not in missing}
    check_types(merge, {field.name: field.dataType for field in rows.schema}, old)
    if missing:
        columns = ", ".join(_definitions(merge, rows, missing))
        spark.sql(f"ALTER TABLE {merge.target} ADD COLUMNS ({columns})")
    return types


def _create_deletes(spark: SparkSession, merge: Merge, rows: DataFrame) -> None:
    """Create the table of deletes, in the format of the target."""
    # `collect` alone: a condition would be a query, which Spark compiles.
    facts = spark.sql(f"DESCRIBE TABLE EXTENDED {merge.target}").collect()
    using = "".join(f" USING {fact.data_type}" for fact in facts if fact.col_name == "Provider")
    columns = ", ".join(_definitions(merge, rows, [*merge.keys, *merge.delete_values, POSITION]))
    spark.sql(f"CREATE TABLE IF NOT EXISTS {merge.deletes} ({columns}){using}")


def _definitions(merge: Merge, rows: DataFrame, names: Sequence[str]) -> list[str]:
    """Return "name type" for each of these columns, as CREATE TABLE takes them."""
    types = {field.name: field.dataType for field in rows.schema}
    types |= {VALID_TO: TimestampType(), IS_CURRENT: BooleanType()}
    return [f"{merge.name(name)} {_type_sql(types[name])}" for name in names]


def _type_sql(type: DataType) -> str:
    """Return the SQL of a type, with quotes around names of fields, and nulls allowed in them."""
    return StructType([StructField("c", type)]).toDDL().removeprefix("c ").replace(" NOT NULL", "")
