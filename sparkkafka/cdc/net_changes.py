"""The net effect of many changes: one row per key, by the order of the source.

The order of a change is a text, `sequence`: the position in the source's log, then the partition
and the offset in Kafka, which break ties (a connector that restarts sends changes again, with the
same position). A tombstone has no position. It follows the delete of its key, so it gets the
position of the record before it, of the same key in the same partition.

A transaction that is open while the connector makes its snapshot writes to the source's log before
the snapshot's position, and its changes come after the snapshot's rows. So a change behind a row of
a snapshot, of the same key in the same partition, is newer than that row, whatever its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

CHANGE = "change"
POSITION = "_position"
DELETED = "_deleted"
TRUNCATED = "_truncated"
UNAVAILABLE = "_unavailable"
"""The columns whose value nobody knows, each between separators; empty if there are none."""
SEPARATOR = "\x1f"
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
STARTED = "_started"
"""Whether these changes insert or delete the row, so that a table's own values are out of date."""

ROW, TOMBSTONE, TRUNCATE = "row", "tombstone", "truncate"
DROP, KEEP = "drop", "keep"

_FIXED_SIZE = (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)
"""Databases store values of these types in the row, so that a change always has them."""


def latest(df: DataFrame, keys: Sequence[str] | None = None, deletes: str = DROP) -> DataFrame:
    """Return one row per key: its last change in the order of the source.

    `keys` are the columns of the key, by default the fields of `change.key`. With deletes="drop"
    the result is the table; with "keep" a deleted key is a row with `change.op` d or a tombstone,
    and the last truncate is a row without a key.

    A value that the last change does not have (`change.unavailable`) is that of an earlier change
    of the row. If there is none, the column is null and stays in `change.unavailable`.

    Raises OptionError immediately for a DataFrame without `change` or without keys; the query fails
    at a row without a key.
    """
    if deletes not in (DROP, KEEP):
        raise OptionError(f"deletes={deletes!r} is unknown. Use {DROP!r} or {KEEP!r}.")
    changes = Changes.of(df, keys)
    # This reads the changes a second time, for the truncates, of which there are few or none.
    cut = changes.truncates().agg(F.max(POSITION).alias("_cut"))
    rows = changes.net().crossJoin(F.broadcast(cut)).where(newer(POSITION, "_cut"))
    if deletes == DROP:
        rows = rows.where(f"NOT {DELETED} AND NOT {TRUNCATED}")
    return rows.select(*map(column_at, df.columns))


def newer(sequence: str, other: str) -> str:
    """Return the SQL condition that a change is not older than another. `other` may be null.

    Without a position the offset decides, or for records of two partitions their timestamp. A row
    of a snapshot is older than changes behind it in its partition.
    """
    partition, offset, time = _parts(other)
    own_partition, own_offset, own_time = _parts(sequence)
    is_behind = f"{time} LIKE '-%' AND {own_partition} = {partition} AND {own_offset} > {offset}"
    is_before = (
        f"{own_time} LIKE '-%' AND {own_partition} = {partition} AND {own_offset} < {offset}"
    )
    return (
        f"({other} IS NULL OR CASE WHEN {sequence} NOT LIKE ' %'"
        f" THEN ({sequence} >= {other} OR {is_behind}) AND NOT ({is_before})"
        f" WHEN substr({sequence}, 2, 10) = {partition} THEN substr({sequence}, 13, 19) >= {offset}"
        f" ELSE substr({sequence}, 33) >= {time} END)"
    )


def _parts(sequence: str) -> tuple[str, str, str]:
    """Return SQL of the partition, the offset, and the time of a sequence."""
    partition, offset, time = (
        f"substr({sequence}, length({sequence}) - {end}, {digits})"
        for end, digits in ((43, 10), (32, 19), (12, 13))
    )
    return partition, offset, time


@dataclass(frozen=True)
class Changes:
    """A DataFrame of changes, and what its schema says."""

    df: DataFrame
    keys: tuple[str, ...]
    values: tuple[str, ...]
    """The columns of the row that are no keys."""

    @classmethod
    def of(cls, df: DataFrame, keys: Sequence[str] | None) -> Changes:
        if df.isStreaming:
            raise OptionError("A stream has no last change. Call this function in foreachBatch.")
        if CHANGE not in df.columns:
            raise OptionError(
                f"The DataFrame has no column {CHANGE!r}, only {', '.join(df.columns)}. Read the "
                "topic with an option envelope, as envelope=debezium."
            )
        lacking = [name for name in _FIELDS if name not in _fields(df)]
        if lacking:
            raise OptionError(
                f"The struct change has no field {', '.join(lacking)}. Name all of these in "
                f".schema(…), or none: {', '.join(_FIELDS)}."
            )
        if isinstance(keys, str):
            raise OptionError(f"keys={keys!r} is a text. Pass a list of columns: [{keys!r}].")
        chosen = tuple(keys or _fields(df, "key"))
        if not chosen:
            raise OptionError("The changes have no change.key. Name the table's key: keys=[…].")
        rows = [name for name in df.columns if name != CHANGE]
        missing = [name for name in chosen if name not in rows]
        if missing:
            raise OptionError(
                f"The key column {missing[0]!r} is not in the row's columns {', '.join(rows)}. "
                "Choose others with keys=[…]."
            )
        kinds = F.col("change.kind").isin(ROW, TOMBSTONE, TRUNCATE)
        return cls(df.where(kinds), chosen, tuple(name for name in rows if name not in chosen))

    def type(self, name: str) -> DataType:
        return self.df.schema[name].dataType

    def toasted(self) -> list[str]:
        """Return the columns whose values may be missing in an update."""
        return [name for name in self.values if not isinstance(self.type(name), _FIXED_SIZE)]

    def net(self, *, with_change: bool = True) -> DataFrame:
        """Return one row per key, deleted ones too, and one without a key for the last truncate."""
        toasted = self.toasted()
        whole = (CHANGE,) if with_change else ()
        last = F.struct(
            *map(column_at, self.values), "change.unavailable", "change.kind", *whole, DELETED
        )
        alone = F.col(DELETED) & F.col(POSITION).startswith(" ")
        aggregates = {
            "_last": F.max_by(last, POSITION),
            POSITION: F.max(POSITION),
            "_delete": F.max(F.when(F.col(DELETED), F.col(POSITION))),
            STARTED: F.max(F.col(DELETED) | F.col("change.op").isin("c", "r")),
            "_alone": F.max_by(F.struct(POSITION, *whole), F.when(alone, F.col(POSITION))),
        }
        for name in toasted:
            lacks = F.coalesce(F.array_contains("change.unavailable", name), F.lit(False))
            has = F.when(~F.col(DELETED) & ~lacks, F.col(POSITION))
            aggregates[_VALUE + name] = F.max_by(F.struct(POSITION, column_at(name)), has)
        keys = [column_at(key) for key in self.keys]
        net = self._ordered().groupBy(*keys).agg(*(v.alias(n) for n, v in aggregates.items()))

        # A tombstone without a position may still be after the last change that has one.
        buried = F.expr(f"_alone IS NOT NULL AND {newer(f'_alone.{POSITION}', POSITION)}")

        unavailable = F.coalesce("_last.unavailable", F.array().cast("array<string>"))
        columns, found = {}, []
        for name in self.values:
            column = column_at("_last", name)
            if name in toasted:
                # A value of a row that was deleted since is not that of the row inserted later.
                earlier = column_at(_VALUE + name, POSITION) > F.coalesce("_delete", F.lit(""))
                known = F.array_contains(unavailable, name) & F.coalesce(earlier, F.lit(False))
                column = F.when(known, column_at(_VALUE + name, name)).otherwise(column)
                found.append(F.when(known, F.lit(name)))
            columns[name] = F.when(~buried, column)
        missing = F.array_except(unavailable, F.array(*found)) if found else unavailable
        if with_change:
            change = F.when(buried, F.col("_alone.change")).otherwise(F.col("_last.change"))
            columns[CHANGE] = change.withField("unavailable", missing)
        return net.select(
            *keys,
            *(value.alias(name) for name, value in columns.items()),
            F.when(buried, F.col(f"_alone.{POSITION}")).otherwise(F.col(POSITION)).alias(POSITION),
            (buried | F.col(f"_last.{DELETED}")).alias(DELETED),
            (F.col("_last.kind") == TRUNCATE).alias(TRUNCATED),
            _as_text(missing).alias(UNAVAILABLE),
            STARTED,
        )

    def history(self) -> DataFrame:
        """Return one row per change of a row, also deletes, and one without a key per truncate.

        `_position` does not contain the offset, so that a change that was sent again is the same.
        """
        keys = [column_at(key) for key in self.keys]
        position = F.coalesce("change.position", _sequence(F.lit("")))
        row = F.col("change.kind") == ROW
        times = [
            F.timestamp_millis(column_at(CHANGE, *path, "ts_ms"))
            for path in (("source",), ())
            if "ts_ms" in _fields(self.df, *path)
        ]
        events = (
            self._keyed()
            .where(F.col("change.kind") != TOMBSTONE)
            .withColumn(POSITION, position)
            .withColumn(DELETED, row & (F.col("change.op") == "d"))
            .withColumn(VALID_FROM, F.coalesce(*times, "change.timestamp"))
            .dropDuplicates([*self.keys, POSITION, DELETED])
        )
        order = Window.partitionBy(*keys).orderBy(POSITION)
        unavailable = F.coalesce("change.unavailable", F.array().cast("array<string>"))
        ended = F.max(F.when(F.col(DELETED), F.col(POSITION))).over(order)
        events = events.withColumns(
            {
                "_ended": F.coalesce(ended, F.lit("")),
                UNAVAILABLE: unavailable,
                STARTED: F.max(F.col(DELETED) | F.col("change.op").isin("c", "r")).over(order),
            }
        )
        columns, found = {}, []
        for name in self.values:
            columns[name] = column_at(name)
            if name in self.toasted():
                lacks = F.array_contains(UNAVAILABLE, name)
                has = F.when(~lacks & ~F.col(DELETED), F.struct(POSITION, column_at(name)))
                earlier = F.last(has, ignorenulls=True).over(order)
                known = lacks & F.coalesce(earlier[POSITION] > F.col("_ended"), F.lit(False))
                columns[name] = F.when(known, earlier[name]).otherwise(columns[name])
                found.append(F.when(known, F.lit(name)))
        missing = F.array_except(UNAVAILABLE, F.array(*found)) if found else F.col(UNAVAILABLE)
        return events.select(
            *keys,
            *(value.alias(name) for name, value in columns.items()),
            VALID_FROM,
            POSITION,
            DELETED,
            (F.col("change.kind") == TRUNCATE).alias(TRUNCATED),
            _as_text(missing).alias(UNAVAILABLE),
            STARTED,
        )

    def truncates(self) -> DataFrame:
        """Return the sequence of each truncate, as the column `_position`."""
        found = self.df.where(F.col("change.kind") == TRUNCATE)
        return found.select(_sequence("change.position").alias(POSITION))

    def _ordered(self) -> DataFrame:
        """Return the changes with their key, sequence, and whether they delete the row."""
        before = Window.partitionBy(*map(column_at, self.keys)).orderBy(
            "change.partition", "change.offset"
        )
        where = F.struct("change.partition", "change.position")
        previous = F.last(F.when(F.col("change.position").isNotNull(), where), ignorenulls=True)
        tombstone = F.col("change.kind") == TOMBSTONE
        same = tombstone & (F.col("_previous.partition") == F.col("change.partition"))
        position = F.coalesce("change.position", F.when(same, F.col("_previous.position")))
        snapshot = F.last(F.when(_is_of_snapshot(), where), ignorenulls=True)
        behind = F.col("_snapshot.partition") == F.col("change.partition")
        position = F.when(
            position.isNotNull(),
            F.greatest(position, F.when(behind, F.col("_snapshot.position"))),
        )
        deletes = (F.col("change.kind") == ROW) & (F.col("change.op") == "d")
        return (
            self._keyed()
            .withColumn("_previous", previous.over(before))
            .withColumn("_snapshot", snapshot.over(before))
            .withColumn(POSITION, _sequence(position))
            .withColumn(DELETED, tombstone | deletes)
        )

    def _keyed(self) -> DataFrame:
        """Fill the key's columns, also those of tombstones, and split a record that changes the key
        into the delete of the old key and the insert of the new one."""
        df, change, kind = self.df, F.col(CHANGE), F.col("change.kind")
        if set(self.keys) <= set(_fields(df, "old_key")):
            moves = (kind == ROW) & F.col("change.old_key").isNotNull()
            delete = change.withField("op", F.lit("d")).withField("key", F.col("change.old_key"))
            parts = F.when(moves, F.array(delete, change)).otherwise(F.array(change))
            df = df.withColumn(CHANGE, F.explode(parts))
        of_key = _fields(df, "key")
        no_key = F.raise_error(
            F.format_string(
                "The change in partition %d at offset %d has no value, or NaN, for the key "
                + ", ".join(self.keys).replace("%", "%%"),
                "change.partition",
                "change.offset",
            )
        )
        columns = {}
        for name in self.keys:
            value = column_at(name)
            if name in of_key:
                value = F.coalesce(column_at(CHANGE, "key", name).cast(self.type(name)), value)
            if isinstance(self.type(name), DoubleType | FloatType):
                value = F.when(~F.isnan(value), value)
            row = F.when(kind == ROW, F.coalesce(value, no_key))
            columns[name] = row.when(kind == TOMBSTONE, value)
        # A tombstone whose key lacks these columns follows a delete that has them.
        unknown = (kind == TOMBSTONE) & column_at(self.keys[0]).isNull()
        return df.withColumns(columns).where(~unknown)


_VALUE = "_value_"
_FIELDS = (
    "op",
    "kind",
    "position",
    "unavailable",
    "partition",
    "offset",
    "timestamp",
)


def _sequence(position: Column | str) -> Column:
    """Return the text that sorts as the changes are to be applied. The time of a snapshot's row
    begins with a minus."""
    time = F.coalesce(F.unix_millis("change.timestamp"), F.lit(0))
    numbers = ((F.col("change.partition"), 10), (F.col("change.offset"), 19), (time, 13))
    partition, offset, time = (F.lpad(n.cast("string"), size, "0") for n, size in numbers)
    marked = F.concat(F.lit("-"), F.substr(time, F.lit(2)))
    time = F.when(_is_of_snapshot(), marked).otherwise(time)
    return F.concat_ws(" ", F.coalesce(position, F.lit("")), partition, offset, time)


def _is_of_snapshot() -> Column:
    """Whether a change is a row of a snapshot, and its position is known."""
    return (F.col("change.op") == "r") & F.col("change.position").isNotNull()


def _as_text(names: Column) -> Column:
    text = F.concat(F.lit(SEPARATOR), F.concat_ws(SEPARATOR, names), F.lit(SEPARATOR))
    return F.when(F.size(names) > 0, text).otherwise("")


def column_at(*path: str) -> Column:
    return F.col(".".join(f"`{name.replace('`', '``')}`" for name in path))


def _fields(df: DataFrame, *path: str) -> list[str]:
    """Return the names of the fields of `change`, or of a struct in it; none if it is absent."""
    type: DataType = df.schema[CHANGE].dataType
    for name in path:
        if not isinstance(type, StructType) or name not in type.names:
            return []
        type = type[name].dataType
    return type.names if isinstance(type, StructType) else []
