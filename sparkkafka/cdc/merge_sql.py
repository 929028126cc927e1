"""The SQL of a merge of changes into a table, for Spark's tables and for databases.

Both use the same conditions, with different quotes around names. The changes are the relation `_s`
(Spark takes `s.id` in a subquery for a field of a column `s` of the inner table), and the table is
`t`. `d` is the table of deletes: without it, an older change that arrives late could insert a
deleted row again. In `d` a truncate is a row without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkkafka.cdc.net_changes import (
    DELETED,
    IS_CURRENT,
    PARTITION_AND_OFFSET,
    POSITION,
    SEPARATOR,
    STARTED,
    TRUNCATED,
    UNAVAILABLE,
    VALID_FROM,
    VALID_TO,
    is_after_snapshot,
    newer,
)
from sparkkafka.errors import OptionError


@dataclass(frozen=True)
class Merge:
    """The SQL of one merge. `target` and `changes` are quoted table names, `columns` the columns of
    the row."""

    target: str
    changes: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    quote: str
    unsent_columns: frozenset[str] = frozenset()
    """The columns that the source did not send in some changes."""

    collate: str = ""
    """The clause with which a database compares positions by their bytes, as Spark does."""

    key_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bounds of the key's columns of numbers in the changes. With them Spark skips files of the
    target by their statistics."""

    known_operator: str = ">="
    """The SQL operator with which a stored delete makes a new one unnecessary."""

    @property
    def deletes(self) -> str:
        """The name of the table of deletes."""
        suffix, last = "__deletes", self.target[-1]
        return f"{self.target[:-1]}{suffix}{last}" if last in '`"' else f"{self.target}{suffix}"

    def name(self, column: str) -> str:
        """Return the column's name in quotes."""
        return self.quote + column.replace(self.quote, self.quote * 2) + self.quote

    def names(self, *columns: str, prefix: str = "") -> str:
        """Return a list of columns, each after the prefix (as `t.`)."""
        return ", ".join(f"{prefix}{self.name(column)}" for column in columns)

    def match(self, left: str, right: str) -> str:
        """Return the condition that rows of two relations have the same key."""
        return " AND ".join(
            f"{left}.{self.name(key)} = {right}.{self.name(key)}" for key in self.keys
        )

    def newer(self, sequence: str, other: str) -> str:
        """Return the condition that a sequence is not older than another (`net_changes.newer`)."""
        return newer(f"{sequence}{self.collate}", other)

    @property
    def after_target(self) -> str:
        """The condition that a change of `_s` is newer than the row of `t`."""
        return self.newer(f"_s.{POSITION}", f"t.{POSITION}")

    @property
    def after_deletes(self) -> str:
        """The SQL condition that a change is newer than its key's deletes and all truncates."""
        after_delete = self.newer(f"_s.{POSITION}", f"d.{POSITION}")
        return (
            f"NOT EXISTS (SELECT 1 FROM {self.deletes} d"
            f" WHERE {self.match('d', '_s')} AND NOT {after_delete})"
            f" AND {self.newer(f'_s.{POSITION}', self.last_truncate)}"
        )

    @property
    def last_truncate(self) -> str:
        """The SELECT of the position of the last truncate."""
        return f"(SELECT max({POSITION}) FROM {self.deletes} WHERE {self.is_truncate()})"

    def is_truncate(self, prefix: str = "") -> str:
        """Return the condition that a row of the table of deletes is a truncate: it has no key."""
        return f"{prefix}{self.name(self.keys[0])} IS NULL"

    @property
    def add_deletes(self) -> str:
        """The INSERT of the deletes of `_s` into `d`, which must not have them yet."""
        columns = (*self.keys, *self.delete_values, POSITION)
        return (
            f"INSERT INTO {self.deletes} ({self.names(*columns)})"
            f" SELECT {self.names(*columns, prefix='_s.')} FROM {self.changes} _s"
            f" WHERE (_s.{DELETED} OR _s.{TRUNCATED})"
        )

    @property
    def remember_deletes(self) -> str:
        """The INSERT of the deletes of `_s` into `d`, unless `d` has it or a newer one."""
        known = f"d.{POSITION}{self.collate} {self.known_operator} _s.{POSITION}"
        known = f"SELECT 1 FROM {self.deletes} d WHERE {known}"
        return (
            f"{self.add_deletes} AND NOT EXISTS ({known} AND {self.match('d', '_s')})"
            f" AND NOT (_s.{TRUNCATED} AND EXISTS ({known} AND {self.is_truncate('d.')}))"
        )

    @property
    def all_columns(self) -> tuple[str, ...]:
        """All columns of the target."""
        return (*self.columns, POSITION)

    @property
    def delete_values(self) -> tuple[str, ...]:
        """The columns of `d` besides key and position."""
        return ()

    def lacks(self, column: str) -> str:
        """Return the SQL condition that the source did not send the column's value in a change."""
        text = _text(SEPARATOR + column + SEPARATOR)
        return f"replace(_s.{UNAVAILABLE}, {text}, '') <> _s.{UNAVAILABLE}"

    def previous(self, column: str) -> str:
        """Return the SQL of the column's value before a change."""
        return f"t.{self.name(column)}"

    def value(self, column: str) -> str:
        """Return the SQL of the column's new value: the previous one if the change lacks it."""
        value = f"_s.{self.name(column)}"
        if column not in self.unsent_columns:
            return value
        return f"CASE WHEN {self.lacks(column)} THEN {self.previous(column)} ELSE {value} END"

    # Spark

    def spark_rows(self, truncated: bool) -> str:
        """The SELECT of the changes that are newer than the known deletes."""
        return f"SELECT * FROM {self.changes} _s WHERE NOT {TRUNCATED} AND {self.after_deletes}"

    def match_target(self, changes: str) -> str:
        """Return the condition that a relation of changes and the table have the same key, which
        is in `key_ranges`."""
        ranges = (
            f" AND t.{self.name(key)} BETWEEN {low} AND {high}"
            for key, (low, high) in self.key_ranges.items()
        )
        return self.match(changes, "t") + "".join(ranges)

    def spark_merge(self, truncate: str | None) -> str:
        """Return the MERGE statement, which is one commit of a Delta or Iceberg table. A value that
        was not sent is kept; the query fails if the table has none. `truncate`: the position of the
        last truncate in the changes, None without one."""
        columns = (*self.columns, POSITION)
        values = {column: self.value(column) for column in self.columns}
        values[POSITION] = inserted = f"_s.{POSITION}"
        if self.unsent_columns:
            unknown = f"_s.{UNAVAILABLE} <> ''"
            values[POSITION] = self._or_error(f"{unknown} AND _s.{STARTED}")
            inserted = self._or_error(unknown)
        sets = ", ".join(f"t.{self.name(column)} = {values[column]}" for column in columns)
        inserted = f"{self.names(*self.columns, prefix='_s.')}, {inserted}"
        text = (
            f"MERGE INTO {self.target} t USING {self.changes} _s ON {self.match_target('_s')}"
            f" WHEN MATCHED AND _s.{DELETED} AND {self.after_target} THEN DELETE"
            f" WHEN MATCHED AND {self.after_target} THEN UPDATE SET {sets}"
            f" WHEN NOT MATCHED AND NOT _s.{DELETED}"
            f" THEN INSERT ({self.names(*columns)}) VALUES ({inserted})"
        )
        if truncate is not None:
            old = f"NOT {self.newer(f't.{POSITION}', repr(truncate))}"
            text += f" WHEN NOT MATCHED BY SOURCE AND (t.{POSITION} IS NULL OR {old}) THEN DELETE"
        return text

    def _or_error(self, unknown: str, value: str = f"_s.{POSITION}") -> str:
        """Return the SQL for `value`, which raises an error with the key and the names of the
        unsent columns if the condition `unknown` is true."""
        key = ", ' ', ".join(f"_s.{self.name(key)}" for key in self.keys)
        names = f"replace(_s.{UNAVAILABLE}, '{SEPARATOR}', ' ')"
        message = f"concat({_text(UNKNOWN_VALUE)}, {names}, ' key ', {key})"
        return f"CASE WHEN {unknown} THEN raise_error({message}) ELSE {value} END"

    # Databases

    @property
    def unknown_values(self) -> str:
        """The SELECT of a row that would be inserted without a value that the source did not
        send."""
        return (
            f"SELECT _s.{UNAVAILABLE}, {self.names(*self.keys, prefix='_s.')}"
            f" FROM {self.changes} _s"
            f" LEFT JOIN {self.target} t ON {self.match('_s', 't')}"
            f" WHERE _s.{UNAVAILABLE} <> '' AND NOT _s.{DELETED}"
            f" AND (_s.{STARTED} OR t.{self.name(self.keys[0])} IS NULL)"
            f" AND {self.after_target} AND {self.after_deletes} LIMIT 1"
        )

    @property
    def delete_truncated(self) -> str:
        """The DELETE of the rows that are older than the last truncate."""
        after = self.newer(f"t.{POSITION}", self.last_truncate)
        return f"DELETE FROM {self.target} AS t WHERE t.{POSITION} IS NULL OR NOT {after}"

    @property
    def delete_rows(self) -> str:
        """The DELETE of the rows that the source has deleted."""
        return (
            f"DELETE FROM {self.target} AS t WHERE EXISTS (SELECT 1 FROM {self.changes} _s"
            f" WHERE _s.{DELETED} AND {self.match('_s', 't')} AND {self.after_target}"
            f" AND {self.after_deletes})"
        )

    @property
    def insert_changes(self) -> str:
        """The INSERT of the new values of all changes of `_s`, to which conditions are added."""
        values = ", ".join([*map(self.value, self.columns), f"_s.{POSITION}"])
        return (
            f"INSERT INTO {self.target} ({self.names(*self.columns, POSITION)})"
            f" SELECT {values} FROM {self.changes} _s"
        )

    @property
    def upsert_rows(self) -> str:
        """The INSERT of the new rows, which updates rows that exist."""
        changed = [column for column in (*self.columns, POSITION) if column not in self.keys]
        sets = ", ".join(f"{self.name(name)} = excluded.{self.name(name)}" for name in changed)
        return (
            f"{self.insert_changes} LEFT JOIN {self.target} t ON {self.match('_s', 't')}"
            f" WHERE NOT _s.{DELETED} AND NOT _s.{TRUNCATED}"
            f" AND {self.after_target} AND {self.after_deletes}"
            f" ON CONFLICT ({self.names(*self.keys)}) DO UPDATE SET {sets}"
        )


@dataclass(frozen=True)
class HistoryMerge(Merge):
    """The merge of all changes into a table with each row's history (SCD 2).

    `columns` includes `valid_from`. A version ends at the first time of all later versions and
    deletes of its row, but not before it starts: after a blocking snapshot Debezium sends changes
    whose time is before that of the snapshot's rows.
    """

    known_operator: str = "="

    @property
    def all_columns(self) -> tuple[str, ...]:
        return (*self.columns, POSITION, VALID_TO, IS_CURRENT)

    @property
    def delete_values(self) -> tuple[str, ...]:
        return (VALID_FROM,)

    # Spark

    def spark_rows(self, truncated: bool) -> str:
        """The SELECT of all versions of the changed keys with their ends, from the table and the
        changes. After a truncate, all keys are changed."""
        keys = self.names(*self.keys)
        changed = f"SELECT DISTINCT {keys} FROM {self.changes}"
        if truncated:
            changed = f"SELECT {keys} FROM {self.changes} UNION SELECT {keys} FROM {self.target}"
        changed = f"({changed}) k"
        no_values = ["NULL"] * (len(self.columns) - len(self.keys) - 1)
        end = ", ".join([self.names(*self.keys, prefix="k."), *no_values, f"d.{VALID_FROM}"])
        end = f"SELECT {end}, d.{POSITION}, true, '', false FROM {self.deletes} d"
        events = (
            f"SELECT {self.names(*self.columns, POSITION, prefix='t.')}, false AS {DELETED},"
            f" '' AS {UNAVAILABLE}, false AS {STARTED}"
            f" FROM {self.target} t LEFT SEMI JOIN {changed} ON {self.match_target('k')}"
            f" UNION ALL SELECT {self.names(*self.columns, POSITION, prefix='_s.')}, false,"
            f" _s.{UNAVAILABLE}, _s.{STARTED} FROM {self.changes} _s WHERE {self._is_new}"
            f" UNION ALL {end} JOIN {changed} ON {self.match('k', 'd')}"
            f" UNION ALL {end} CROSS JOIN {changed} WHERE {self.is_truncate('d.')}"
        )
        values = ", ".join(
            f"{self._spark_value(name)} AS {self.name(name)}" for name in self.columns
        )
        versions = (
            f"SELECT {values}, {POSITION}, {DELETED},"
            f" {self._end(VALID_FROM, f'min({VALID_FROM}) OVER later')} AS {VALID_TO},"
            f" min({POSITION}) OVER later IS NULL AS {IS_CURRENT} FROM ({events}) _s"
            f" WINDOW by_key AS (PARTITION BY {keys} ORDER BY {POSITION}),"
            f" later AS (PARTITION BY {keys} ORDER BY {POSITION} DESC"
            " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        return f"SELECT * FROM ({versions}) WHERE NOT {DELETED}"

    def _end(self, start: str, first: str) -> str:
        """Return the SQL of a version's end, from its start and the first time of all later ones,
        which is null for the current version."""
        return f"CASE WHEN {first} < {start} THEN {start} ELSE {first} END"

    def _spark_value(self, column: str) -> str:
        """Return the SQL of a version's value: if it was not sent, that of an earlier version."""
        name = f"_s.{self.name(column)}"
        if column not in self.unsent_columns:
            return name
        known = f"named_struct('known', NOT _s.{DELETED}, 'value', {name})"
        known = f"last_value(CASE WHEN NOT {self.lacks(column)} THEN {known} END, true) OVER by_key"
        unknown = f"_s.{STARTED} OR NOT coalesce(({known}).known, false)"
        value = self._or_error(unknown, f"({known}).value")
        return f"CASE WHEN {self.lacks(column)} THEN {value} ELSE {name} END"

    def spark_merge(self, truncate: str | None) -> str:
        """Return the MERGE statement, which is one commit of a Delta or Iceberg table."""
        ends = (VALID_TO, IS_CURRENT)
        same = " AND ".join(f"t.{name} <=> _s.{name}" for name in ends)
        return (
            f"MERGE INTO {self.target} t USING {self.changes} _s"
            f" ON {self.match_target('_s')} AND _s.{POSITION} = t.{POSITION}"
            f" WHEN MATCHED AND NOT ({same})"
            f" THEN UPDATE SET {', '.join(f't.{name} = _s.{name}' for name in ends)}"
            f" WHEN NOT MATCHED THEN INSERT ({self.names(*self.all_columns)})"
            f" VALUES ({self.names(*self.all_columns, prefix='_s.')})"
        )

    # Databases

    @property
    def move_after_snapshots(self) -> str:
        """The UPDATE of the position of a change that arrived after its key's snapshot row but has
        a lower source position: it becomes the row's position, a plus, and its own."""
        is_after = is_after_snapshot(
            f"_s.{POSITION}{self.collate}", f"_s.{PARTITION_AND_OFFSET}", f"t.{POSITION}"
        )
        found = (
            f"SELECT max(t.{POSITION}) FROM {self.target} t"
            f" WHERE {self.match('t', '_s')} AND {is_after}"
        )
        return (
            f"UPDATE {self.changes} AS _s SET {POSITION} ="
            f" coalesce(({found}) || '+', '') || _s.{POSITION}"
            f" WHERE _s.{PARTITION_AND_OFFSET} IS NOT NULL"
        )

    @property
    def _is_new(self) -> str:
        """The condition that a change is a version that the target does not have."""
        return (
            f"NOT _s.{DELETED} AND NOT _s.{TRUNCATED} AND NOT EXISTS (SELECT 1 FROM {self.target} t"
            f" WHERE {self.match('_s', 't')} AND t.{POSITION} = _s.{POSITION})"
        )

    def previous(self, column: str) -> str:
        """Return the SQL of the column's value in the version before a change."""
        return (
            f"(SELECT p.{self.name(column)} FROM {self.target} p WHERE {self.match('p', '_s')}"
            f" AND p.{POSITION}{self.collate} < _s.{POSITION} ORDER BY p.{POSITION} DESC LIMIT 1)"
        )

    @property
    def unknown_values(self) -> str:
        """The SELECT of one change with a value that neither the change nor the table has: the
        columns' names, and the key. No row if there is none."""
        return (
            f"SELECT _s.{UNAVAILABLE}, {self.names(*self.keys, prefix='_s.')}"
            f" FROM {self.changes} _s"
            f" WHERE _s.{UNAVAILABLE} <> '' AND {self._is_new}"
            f" AND (_s.{STARTED} OR {self.previous(POSITION)} IS NULL) LIMIT 1"
        )

    @property
    def insert_versions(self) -> str:
        """The INSERT of the new versions, as yet without an end."""
        return f"{self.insert_changes} WHERE {self._is_new}"

    def end_versions(self, *, all_keys: bool) -> str:
        """Return the UPDATE that sets the ends of the changed keys' versions, or of all. Another
        version, a delete and a truncate end a version."""
        columns = self.names(*self.keys, POSITION, VALID_FROM)
        after = f"e.{POSITION}{self.collate} > t.{POSITION}"
        following = (
            f"FROM (SELECT {columns} FROM {self.target}"
            f" UNION ALL SELECT {columns} FROM {self.deletes}) e"
            f" WHERE (({self.match('e', 't')}) OR {self.is_truncate('e.')}) AND {after}"
        )
        changed = f"EXISTS (SELECT 1 FROM {self.changes} _s WHERE {self.match('_s', 't')})"
        return (
            f"UPDATE {self.target} AS t SET {VALID_TO} ="
            f" (SELECT {self._end(f't.{VALID_FROM}', f'min(e.{VALID_FROM})')} {following}),"
            f" {IS_CURRENT} = NOT EXISTS (SELECT 1 {following})"
            f" WHERE {'1 = 1' if all_keys else changed}"
        )


UNKNOWN_VALUE = (
    "The source did not send a column's value, no earlier change has it, and the table has no such "
    "row. Let the source send all values (Postgres: ALTER TABLE … REPLICA IDENTITY FULL) and take "
    "a new snapshot. Columns: "
)


def columns_to_add(
    merge: Merge, existing: Iterable[str], add_columns: bool, fold: Callable[[str], str] = str.lower
) -> list[str]:
    """Return the columns that the target lacks; `existing` are those that it has. `fold` returns a
    name as the database compares it.

    Raises OptionError if it lacks columns and `add_columns` is false, or if it lacks one of the
    key, or was created with another scd."""
    names = {fold(name) for name in existing}
    missing = [name for name in merge.all_columns if fold(name) not in names]
    is_history = isinstance(merge, HistoryMerge)
    if is_history and IS_CURRENT in missing and POSITION in names:
        raise OptionError(
            f"The table {merge.target} has one row per key (scd=1). A history (scd=2) needs "
            "another table."
        )
    of_history = {VALID_FROM, VALID_TO, IS_CURRENT}
    if not is_history and of_history <= names - {fold(name) for name in merge.columns}:
        raise OptionError(
            f"The table {merge.target} has a history (scd=2). One row per key (scd=1) needs "
            "another table."
        )
    if lost_keys := [name for name in missing if name in merge.keys]:
        raise OptionError(
            f"The table {merge.target} has no column {', '.join(lost_keys)}, which is part of the "
            "key. If the source has renamed it, rename it in the table and in "
            f"{merge.deletes}; or choose other keys=[…]."
        )
    if missing and not add_columns:
        raise OptionError(
            f"The table {merge.target} has no column {', '.join(missing)}. Add it, or set "
            "new_columns='add'."
        )
    return missing


def check_types(
    merge: Merge, changes: Mapping[str, DataType], existing: Mapping[str, DataType]
) -> None:
    """Raise OptionError if a column of the target cannot hold all that the changes have: MERGE and
    databases round, or cut off the time, silently. `changes` and `existing` are types by name."""
    for name in merge.columns:
        old, new = existing.get(name), changes[name]
        if old is not None and _is_narrower(old, new):
            raise OptionError(
                f"The column {name} of the table {merge.target} has the type "
                f"{old.simpleString()}, and the changes have {new.simpleString()}, whose values "
                "would be rounded or cut. Change the column's type, or cast the column of the batch"
            )


def _is_narrower(old: DataType, new: DataType) -> bool:
    """Whether values of the type `new` lose something in a column of the type `old`."""
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _is_narrower(old.elementType, new.elementType)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _is_narrower(old.valueType, new.valueType)
    if isinstance(old, StructType) and isinstance(new, StructType):
        return any(
            _is_narrower(old[name].dataType, new[name].dataType)
            for name in new.names
            if name in old.names
        )
    scale = new.scale if isinstance(new, DecimalType) else 0
    if isinstance(old, DecimalType):
        return scale > old.scale or isinstance(new, StringType)
    if isinstance(old, IntegralType):
        return scale > 0 or isinstance(new, FloatType | DoubleType)
    if isinstance(old, FloatType):
        return isinstance(new, DoubleType)
    return isinstance(old, DateType) and isinstance(new, TimestampType | TimestampNTZType)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
