"""The net effect of many changes: the last change of each key, in the order of the source.

Changes are ordered by a text, `sequence`: the position in the source's log, and then the partition
and the offset in Kafka. These break ties, since a connector that restarts sends changes again with
the same position. Some records have no position although others have one: a tombstone after the
delete of its key, or a row of Maxwell's bootstrap. Such a record gets the position of the record
before it that has the same key and partition.

If a transaction is open while the connector takes its snapshot, its changes have positions in the
source's log before that of the snapshot, but arrive after the snapshot's rows. So a change is newer
than a snapshot's row of the same key and partition if it is after the row in Kafka, whatever its
position is.

Tables store these texts as `_position`. The partition has 10 digits, the offset 19, and the time in
milliseconds 13, of which the first is a minus for a row of a snapshot:

    rows, the sequence                  POSITION PARTITION OFFSET TIME
    history                             POSITION
    history, a snapshot's row           POSITIONrPARTITIONOFFSET
    history, a change after such a row  POSITIONrPARTITIONOFFSET+POSITION

A change without a position has the text of rows, also in a history. It begins with a space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkkafka.errors import OptionError
from sparkkafka.schemas.envelopes.debezium import CHANGE, ROW, TOMBSTONE, TRUNCATE

POSITION = "_position"
DELETED = "_sparkkafka_deleted"
TRUNCATED = "_sparkkafka_truncated"
UNAVAILABLE = "_sparkkafka_unavailable"
"""The names of the columns whose value is not known, between separators; empty if all are known."""
SEPARATOR = "\x1f"
PARTITION_AND_OFFSET = "_sparkkafka_partition_and_offset"
"""The partition and offset of a change that may be after a snapshot's row in the target."""
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
STARTED = "_sparkkafka_started"
"""Whether these changes insert or delete the row, so that the values in a table are outdated."""
OUT_OF_ORDER = "_sparkkafka_out_of_order"
"""Whether `Changes.net_in_order` cannot determine the net effect."""

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
"""Debezium always sends values of these types, since databases store them in the row."""


def latest(df: DataFrame, keys: Sequence[str] | None = None, deletes: str = DROP) -> DataFrame:
    """Return one row per key: its last change in the order of the source.

    `keys` are the columns of the key, by default the fields of `change.key`. With deletes="drop"
    the result is the table. With "keep" it also has deleted keys, as rows with `change.op` d or as
    tombstones, and the last truncate, as a row without a key.

    If the last change does not have a value (`change.unavailable`), an earlier change of the row
    provides it. If no change has it, the column is null and stays in `change.unavailable`.

    Raises OptionError immediately for a DataFrame without `change` or without keys. The query fails
    if a row has no key.
    """
    if deletes not in (DROP, KEEP):
        raise OptionError(f"deletes={deletes!r} is unknown. Use {DROP!r} or {KEEP!r}.")
    changes = Changes.of(df, keys)
    # This reads the changes a second time, for the truncates, which are few.
    truncates = changes.df.where(F.col("change.kind") == TRUNCATE).select("change.*")
    cut = truncates.agg(F.max(_sequence(F.col("position"))).alias("_sparkkafka_cut"))
    rows = (
        changes.net(changes.unsent_columns(), with_change=True)
        .crossJoin(F.broadcast(cut))
        .where(newer(POSITION, "_sparkkafka_cut"))
    )
    if deletes == DROP:
        rows = rows.where(f"NOT {DELETED} AND NOT {TRUNCATED}")
    return rows.select(*map(column_at, df.columns))


def newer(sequence: str, other: str) -> str:
    """Return the SQL condition that a change is not older than another. `other` may be null.

    Changes without a position, whose sequence begins with a space, are compared by offset, or by
    timestamp if they are in different partitions. A row of a snapshot, whose time begins with a
    minus, is older than the changes after it in its partition.
    """
    partition, offset, time = _parts(other)
    own_partition, own_offset, own_time = _parts(sequence)
    follows_row = f"{time} LIKE '-%' AND {own_partition} = {partition} AND {own_offset} > {offset}"
    is_row_before = (
        f"{own_time} LIKE '-%' AND {own_partition} = {partition} AND {own_offset} < {offset}"
    )
    return (
        f"({other} IS NULL OR CASE WHEN {sequence} NOT LIKE ' %'"
        f" THEN ({sequence} >= {other} OR {follows_row}) AND NOT ({is_row_before})"
        f" WHEN {own_partition} = {partition} THEN {own_offset} >= {offset}"
        f" ELSE {own_time} >= {time} END)"
    )


def lower_bound(sequence: str) -> str:
    """Return the SQL of a text for a change, which is `newer` than all changes with a lower text.

    The text is empty for a row of a snapshot and a change without a position.
    """
    _, _, time = _parts(sequence)
    return f"CASE WHEN {sequence} LIKE ' %' OR {time} LIKE '-%' THEN '' ELSE {sequence} END"


def _parts(sequence: str) -> tuple[str, str, str]:
    """Return the SQL of the partition, the offset and the time in a sequence."""
    widths = (_PARTITION_DIGITS, 1, _OFFSET_DIGITS, 1, _TIME_DIGITS)
    partition, _, offset, _, time = _last_fields(sequence, *widths)
    return partition, offset, time


def _last_fields(text: str, *widths: int) -> list[str]:
    """Return the SQL of the fields of these widths at the end of a text."""
    return [
        f"substr({text}, length({text}) - {sum(widths[index:]) - 1}, {width})"
        for index, width in enumerate(widths)
    ]


@dataclass(frozen=True)
class Changes:
    """A DataFrame of changes, with the columns of its key and of its other values."""

    df: DataFrame
    keys: tuple[str, ...]
    values: tuple[str, ...]
    """The columns of the row that are not in the key."""

    @classmethod
    def of(cls, df: DataFrame, keys: Sequence[str] | None) -> Changes:
        """Check the DataFrame, and drop rows that are no changes. Raises OptionError."""
        if df.isStreaming:
            raise OptionError("A stream has no last change. Call this function in foreachBatch.")
        if CHANGE not in df.columns:
            raise OptionError(
                f"The DataFrame has no column {CHANGE!r}, only {', '.join(df.columns)}. Read the "
                "topic with an option envelope, as envelope=debezium. If .schema(…) is set, it "
                f"must name change, too: change struct<{_column_list(_FIELDS)}, key struct<…>>."
            )
        names = [name.lower() for name in df.columns]
        duplicates = [name for name in df.columns if names.count(name.lower()) > 1]
        if duplicates:
            raise OptionError(
                f"The columns {', '.join(duplicates)} differ only in case, which tables ignore. "
                "Rename all but one of them with toDF(…)."
            )
        reserved = [name for name in names if name == POSITION or name.startswith("_sparkkafka_")]
        if reserved:
            raise OptionError(
                f"The changes have a column {reserved[0]!r}, a name that this function uses. "
                "Rename the column first."
            )
        lacking = [name for name in _FIELDS if name not in _fields(df)]
        if lacking:
            raise OptionError(
                f"The struct change has no field {', '.join(lacking)}. Add to change in "
                f".schema(…): {_column_list(lacking)}; or leave .schema(…) out (and set "
                "valueSchema=infer if it is JSON without schemas)."
            )
        if isinstance(keys, str):
            raise OptionError(f"keys={keys!r} is a string. Pass a list of columns: [{keys!r}].")
        chosen = tuple(_fields(df, "key") if keys is None else keys)
        if keys is not None and (not chosen or len({*chosen}) < len(chosen)):
            raise OptionError(
                f"keys={keys!r} is empty or names a column twice. Name each column of the key, or "
                "pass no keys."
            )
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

    def unsent_columns(self) -> list[str]:
        """Return the columns that an update may lack because they did not change: for GoldenGate
        columns of any type, for Debezium not those of `_FIXED_SIZE`."""
        is_debezium = "connector" in _fields(self.df, "source")
        fixed = _FIXED_SIZE if is_debezium else ()
        return [name for name in self.values if not isinstance(self.type(name), fixed)]

    def net(self, filled: Sequence[str] = (), *, with_change: bool = False) -> DataFrame:
        """Return one row per key, also for deleted keys, and one without a key for the last
        truncate.

        If the last change does not have a value of a `filled` column, an earlier change provides
        it.
        """
        change_columns = [CHANGE] if with_change else []
        # A row of a record may have a key that another row of the same record had before.
        order = F.struct("sequence", ~F.col("deleted"))
        has_no_position = F.col("sequence").startswith(" ")  # it begins with the position
        tombstone_sequence = F.when(F.col("deleted") & has_no_position, F.col("sequence"))
        aggregates = {
            "last": F.max_by(F.struct("row", "unsent", "kind", "deleted", *change_columns), order),
            "sequence": F.max("sequence"),
            "started": F.max("started"),
            "last_delete": F.max(F.when(F.col("deleted"), F.col("sequence"))),
            "tombstone_sequence": F.max(tombstone_sequence),
        }
        if with_change:
            aggregates["tombstone_change"] = F.max_by(CHANGE, tombstone_sequence)
        if filled:
            change_values = F.struct("sequence", "unsent", "row")
            aggregates["earlier"] = F.collect_list(F.when(~F.col("deleted"), change_values))
        # A tombstone without a position may be newer than the last change that has one.
        is_newer = newer("tombstone_sequence", "sequence")
        is_after = f"tombstone_sequence <> sequence AND {is_newer}"
        deleted_by_tombstone = F.col("deleted_by_tombstone")
        net = (
            self._ordered()
            .groupBy(*self._key_names)
            .agg(*(value.alias(name) for name, value in aggregates.items()))
            .withColumn("deleted_by_tombstone", F.expr(f"coalesce({is_after}, false)"))
            .withColumn("row", F.when(~deleted_by_tombstone, F.col("last.row")))
        )
        if filled:
            lacks = ~deleted_by_tombstone & (F.size("last.unsent") > 0)
            net = net.withColumn("earlier", F.when(lacks, _since_last_delete()))
        # The values that the last change lacks: those of the newest earlier change that has them.
        found, values = [], {}
        for name in filled:
            source = F.get(F.filter("earlier", _sent(name)), F.lit(0))
            source = F.when(F.array_contains("last.unsent", name), source)
            values[name] = source["row"][name]
            found.append(F.when(source.isNotNull(), F.lit(name)))
        columns = self._columns(values)
        missing = _without(F.col("last.unsent"), found)
        if with_change:
            change = F.when(deleted_by_tombstone, F.col("tombstone_change")).otherwise(
                F.col("last.change")
            )
            columns.append(change.withField("unavailable", missing).alias(CHANGE))
        return net.select(
            *columns,
            F.when(deleted_by_tombstone, F.col("tombstone_sequence"))
            .otherwise(F.col("sequence"))
            .alias(POSITION),
            (deleted_by_tombstone | F.col("last.deleted")).alias(DELETED),
            (F.col("last.kind") == TRUNCATE).alias(TRUNCATED),
            _as_text(missing).alias(UNAVAILABLE),
            F.col("started").alias(STARTED),
        )

    def net_in_order(self) -> DataFrame:
        """Return the rows of `net`, computed without windows. They are right only if no row is
        `_sparkkafka_out_of_order`.

        A key's change with the last position is the net effect if all changes of the key are in one
        partition, and this change is also the last one there, except for tombstones. Then no
        snapshot's row can replace it, and a tombstone after it belongs to its row.
        """
        # The struct is one column, so that the aggregation copies its bytes and not each field.
        last = F.struct("row", "op", "unavailable", "position", "offset")
        row_offset = F.when(F.col("kind") != TOMBSTONE, F.col("offset"))
        aggregates = {
            "last": F.max_by("last", "row_offset"),
            "position": F.max("last.position"),
            "partition": F.max("partition"),
            "partitions": F.min("partition") != F.max("partition"),
            "offset": F.max("offset"),
            "timestamp": F.max_by("timestamp", "offset"),
            "moves": F.max("moves"),
        }
        # If all changes of the key are tombstones, there is no `last`.
        has_tombstone = F.coalesce(F.col("offset") > F.col("last.offset"), F.lit(True))
        is_last = F.col("last.position").eqNullSafe(F.col("position"))
        rows = (
            self._events(split=False)
            .withColumns({"last": last, "row_offset": row_offset})
            .groupBy(*self._key_names)
            .agg(*(value.alias(name) for name, value in aggregates.items()))
            .withColumns(
                {name: F.when(~has_tombstone, column_at("last", name)) for name in ("row", "op")}
            )
        )
        return rows.select(
            *self._columns({}),
            _sequence(F.col("position")).alias(POSITION),
            (has_tombstone | F.coalesce(F.col("op") == "d", F.lit(False))).alias(DELETED),
            F.col(self._key_names[0]).isNull().alias(TRUNCATED),
            _as_text(F.col("last.unavailable")).alias(UNAVAILABLE),
            (F.col("partitions") | F.col("moves") | ~is_last).alias(OUT_OF_ORDER),
        )

    def history(self, filled: Sequence[str] = ()) -> DataFrame:
        """Return one row per change of a row, also for deletes, and one without a key per truncate.

        `_position` does not contain the offset, so that a change that was sent again has the same
        position. Exceptions are a snapshot's row and the changes after it.
        """
        position, partition_and_offset = F.col("position"), F.concat(*_partition_and_offset())
        snapshot_position = F.concat(position, F.lit("r"), partition_and_offset)
        of_snapshot = F.when(_is_of_snapshot(), snapshot_position)
        before = Window.partitionBy(*self._key_names, "partition").orderBy("offset")
        snapshot = F.last("of_snapshot", ignorenulls=True).over(before)
        after_snapshot = F.when(position < snapshot, F.concat(snapshot, F.lit("+"), position))
        sequence = F.coalesce("of_snapshot", after_snapshot, position, _sequence(F.lit("")))
        may_move = F.col("sequence") == position
        events = (
            self._events()
            .where(F.col("kind") != TOMBSTONE)
            .repartition(*self._key_names)  # for both windows
            .withColumn("of_snapshot", of_snapshot)
            .withColumn("sequence", sequence)
            .withColumn(PARTITION_AND_OFFSET, F.when(may_move, partition_and_offset))
        )
        order = Window.partitionBy(*self._key_names)
        order = order.orderBy("sequence", "offset", F.desc("deleted"))
        last_delete = F.max(F.when(F.col("deleted"), F.col("sequence"))).over(order)
        started = F.max("started").over(order)
        found, values = [], {}
        for name in filled:
            value = F.struct("sequence", column_at("row", name).alias("value"))
            has_value = ~F.col("deleted") & ~F.array_contains("unsent", name)
            earlier = F.last(F.when(has_value, value), ignorenulls=True).over(order)
            known = F.array_contains("unsent", name) & F.coalesce(
                earlier["sequence"] > F.coalesce(last_delete, F.lit("")), F.lit(False)
            )
            values[name] = F.when(known, earlier["value"])
            found.append(F.when(known, F.lit(name)))
        # If several changes have the same position, the last one is the version.
        is_last = ~F.col("sequence").eqNullSafe(F.lead("sequence").over(order))
        rows = events.select(
            *self._columns(values),
            F.col("time").alias(VALID_FROM),
            F.col("sequence").alias(POSITION),
            F.col("deleted").alias(DELETED),
            (F.col("kind") == TRUNCATE).alias(TRUNCATED),
            _as_text(_without(F.col("unsent"), found)).alias(UNAVAILABLE),
            started.alias(STARTED),
            PARTITION_AND_OFFSET,
            is_last.alias("is_last"),
        )
        return rows.where("is_last").drop("is_last")

    def to_fill(self, unavailable: Iterable[str]) -> list[str]:
        """Return the columns that some rows lack. `unavailable` are the rows' texts
        `_sparkkafka_unavailable`.

        Filling a column takes time, and in most batches no row lacks one. So `apply` fills none at
        first, and reads the changes again if some rows lack a column.
        """
        lacking = {name for text in set(unavailable) for name in text.split(SEPARATOR)}
        return [name for name in self.values if name in lacking]

    @property
    def _key_names(self) -> list[str]:
        return [f"key{index}" for index in range(len(self.keys))]

    def _columns(self, values: Mapping[str, Column]) -> list[Column]:
        """Return the columns of the row. A value in `values` replaces that of the row, unless it
        is null."""
        columns = dict(zip(self.keys, map(F.col, self._key_names), strict=True))
        for name in self.values:
            columns[name] = column_at("row", name)
            if name in values:
                columns[name] = F.coalesce(values[name], columns[name])
        return [column.alias(name) for name, column in columns.items()]

    def _ordered(self) -> DataFrame:
        """Return the changes with their sequence, without most changes that later ones replace."""
        # Spark drops all but the first row of a window before it exchanges rows, so it exchanges
        # few. A row replaces earlier rows that lack the same columns. A tombstone needs its delete.
        kind = F.when(F.col("kind") == TOMBSTONE, "t").otherwise(
            F.when(F.col("op").isin("d", "r"), F.col("op")).otherwise("")
        )
        lacks = F.concat_ws(SEPARATOR, "op", "unsent")
        replaces = Window.partitionBy(
            *self._key_names,
            "partition",
            F.col("position").isNull(),
            F.when(F.size("unsent") > 0, lacks).otherwise(kind),
        ).orderBy(F.desc("position"), F.desc("offset"))
        before = Window.partitionBy(*self._key_names, "partition").orderBy("offset")
        position = F.col("position")
        known = F.last(position, ignorenulls=True).over(before)
        snapshot = F.last(F.when(_is_of_snapshot(), position), ignorenulls=True).over(before)
        return (
            self._events()
            .withColumn("rank", F.row_number().over(replaces))
            .where("rank = 1")
            .repartition(*self._key_names)  # for the window and the aggregation after it
            .withColumns({"position": known, "snapshot": snapshot})
            .withColumn("position", F.when(position.isNotNull(), F.greatest(position, "snapshot")))
            .withColumn("sequence", _sequence(position))
        )

    def _events(self, *, split: bool = True) -> DataFrame:
        """Return the changes, also tombstones, with the columns of the key and the row as a struct.

        With `split`, a record that changes the key (`moves`) becomes two: the delete of the old key
        and the insert of the new one. The names of the columns do not depend on the row's columns.
        """
        kind = F.col("kind")
        times = [
            F.timestamp_millis(column_at(CHANGE, *path, "ts_ms"))
            for path in (("source",), ())
            if "ts_ms" in _fields(self.df, *path)
        ]
        columns = {
            "row": F.struct(*map(column_at, self.values)),
            CHANGE: F.col(CHANGE),
            "time": F.coalesce(*times, "change.timestamp"),
            **{name: column_at(CHANGE, name) for name in _FIELDS},
            **self._keys_of_records(),
        }
        events = self.df.select(*(column.alias(name) for name, column in columns.items()))
        if split and self._has_old_keys:
            events = self._split_moves(events)
        deleted = (kind == TOMBSTONE) | (kind == ROW) & F.coalesce(F.col("op") == "d", F.lit(False))
        flags = {
            "deleted": deleted,
            "started": deleted | F.coalesce(F.col("op").isin("c", "r"), F.lit(False)),
            "unsent": F.coalesce("unavailable", F.array().cast("array<string>")),
        }
        # If a tombstone's key lacks these columns, the delete before it has them.
        unknown = (kind == TOMBSTONE) & F.col(self._key_names[0]).isNull()
        return events.withColumns(self._checked_keys() | flags).where(~unknown)

    @property
    def _has_old_keys(self) -> bool:
        """Whether records have the key before the change, so that it is known if it changes."""
        return set(self.keys) <= set(_fields(self.df, "old_key"))

    def _keys_of_records(self) -> dict[str, Column]:
        """Return the key's columns (those of the record's key, or of its row), the columns
        `old_key…` of the key before the change, if records have it, and `moves`."""
        columns = {}
        moves = F.lit(False)
        for key, name in zip(self._key_names, self.keys, strict=True):
            sources = [column_at(name)]
            if name in _fields(self.df, "key"):
                sources.insert(0, column_at(CHANGE, "key", name).cast(self.type(name)))
            columns[key] = F.coalesce(*sources)
            if self._has_old_keys:
                sources.insert(0, column_at(CHANGE, "old_key", name).cast(self.type(name)))
                columns[f"old_{key}"] = F.coalesce(*sources)
                # keys=[…] may be a part of the key, which need not change.
                moves |= ~columns[f"old_{key}"].eqNullSafe(columns[key])
        if self._has_old_keys:
            moves &= (F.col("change.kind") == ROW) & F.col("change.old_key").isNotNull()
        return columns | {"moves": moves}

    def _split_moves(self, events: DataFrame) -> DataFrame:
        """Make two rows of each change that moves: the delete of the old key, with `is_old` true,
        and the insert of the new one."""
        two_rows, one_row = F.array(F.lit(True), F.lit(False)), F.array(F.lit(False))
        is_old = F.explode(F.when(F.col("moves"), two_rows).otherwise(one_row))
        delete = F.col(CHANGE).withField("op", F.lit("d"))
        delete = delete.withField("key", F.col("change.old_key"))
        old = {key: F.col(f"old_{key}") for key in self._key_names}
        old |= {"op": F.lit("d"), CHANGE: delete}
        return events.select("*", is_old.alias("is_old")).withColumns(
            {
                name: F.when(F.col("is_old"), value).otherwise(F.col(name))
                for name, value in old.items()
            }
        )

    def _checked_keys(self) -> dict[str, Column]:
        """Return the key's columns, null for truncates. The query fails for a row without a key."""
        kind = F.col("kind")
        no_key = F.raise_error(
            F.format_string(
                "The change in partition %d at offset %d has no value, or NaN, for the key "
                + ", ".join(self.keys).replace("%", "%%"),
                "partition",
                "offset",
            )
        )
        keys = {}
        for key, name in zip(self._key_names, self.keys, strict=True):
            value = F.col(key)
            if isinstance(self.type(name), DoubleType | FloatType):
                value = F.when(~F.isnan(value), value)
            row = F.when(kind == ROW, F.coalesce(value, no_key))
            keys[key] = row.when(kind == TOMBSTONE, value)
        return keys


_FIELDS = {
    "op": "string",
    "kind": "string",
    "position": "string",
    "unavailable": "array<string>",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}


def _column_list(names: Iterable[str]) -> str:
    """Return fields of `change` in the form that `.schema(…)` accepts."""
    return ", ".join(f"{name} {_FIELDS[name]}" for name in names)


def _sent(name: str) -> Callable[[Column], Column]:
    return lambda change: ~F.array_contains(change["unsent"], name)


def _since_last_delete() -> Column:
    """Return those changes of `earlier` that are after the `last_delete` of the row, the newest
    first. If a row was deleted and inserted again, values from before the delete do not count."""
    last_delete = F.coalesce("last_delete", F.lit(""))
    return F.array_sort(
        F.filter("earlier", lambda change: change["sequence"] > last_delete),
        lambda left, right: (
            F.when(left["sequence"] > right["sequence"], -1)
            .when(left["sequence"] < right["sequence"], 1)
            .otherwise(0)
        ),
    )


_PARTITION_DIGITS, _OFFSET_DIGITS, _TIME_DIGITS = 10, 19, 13


def _sequence(position: Column) -> Column:
    """Return the text by which changes are sorted before they are applied: the source's position,
    the partition and offset, and the record's time, which for a snapshot's row is marked with a
    minus."""
    time = F.coalesce(F.unix_millis("timestamp"), F.lit(0))
    partition, offset = _partition_and_offset()
    time = F.lpad(time.cast("string"), _TIME_DIGITS, "0")
    marked = F.concat(F.lit("-"), F.substr(time, F.lit(2)))
    time = F.when(_is_of_snapshot(), marked).otherwise(time)
    return F.concat_ws(" ", F.coalesce(position, F.lit("")), partition, offset, time)


def _partition_and_offset() -> tuple[Column, Column]:
    """Return the partition and the offset as texts of fixed width."""
    partition, offset = F.col("partition").cast("string"), F.col("offset").cast("string")
    return F.lpad(partition, _PARTITION_DIGITS, "0"), F.lpad(offset, _OFFSET_DIGITS, "0")


def is_snapshot_position(stored: str) -> str:
    """Return the SQL condition that a stored position of a history is a snapshot row's."""
    mark, *_ = _last_fields(stored, 1, _PARTITION_DIGITS, _OFFSET_DIGITS)
    return f"{mark} = 'r'"


def is_after_snapshot(position: str, partition_and_offset: str, stored: str) -> str:
    """Return the SQL condition that a change of a history is after a snapshot's row in Kafka, but
    has a lower source position. `stored` is the row's stored position."""
    digits = (_PARTITION_DIGITS, _OFFSET_DIGITS)
    partition, offset = _last_fields(stored, *digits)
    own_partition, own_offset = _last_fields(partition_and_offset, *digits)
    return (
        f"{is_snapshot_position(stored)} AND {stored} > {position}"
        f" AND {partition} = {own_partition} AND {offset} < {own_offset}"
    )


def _is_of_snapshot() -> Column:
    """Return the condition that a change is a row of a snapshot whose position is known."""
    return F.coalesce(F.col("op") == "r", F.lit(False)) & F.col("position").isNotNull()


def _without(names: Column, found: list[Column]) -> Column:
    """Return the names without those in `found`, of which some may be null."""
    return F.array_except(names, F.array_compact(F.array(*found))) if found else names


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
