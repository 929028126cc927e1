"""SQLite and Postgres as targets, through their DB-API connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkkafka.cdc.merge_sql import UNKNOWN_VALUE, Merge, deletes_table
from sparkkafka.cdc.net_changes import DELETED, POSITION, STARTED, TRUNCATED, UNAVAILABLE, Changes
from sparkkafka.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TAKEN = (BinaryType, BooleanType, DoubleType, FloatType, IntegralType, StringType)
"""What the drivers of both databases take; other values are passed as text."""
_FLAGS = (POSITION, DELETED, TRUNCATED, UNAVAILABLE, STARTED)
_STAGED = "sparkkafka_changes"


@dataclass(frozen=True)
class Dialect:
    parameter: str
    collate: str
    types: Mapping[type[DataType], str]
    """Of columns that are added; text for all others."""
    arrays: bool
    begin: str
    """Lets one writer in at a time, for the rest of the transaction."""

    def type_of(self, type: DataType) -> str:
        if self.arrays and _is_plain_array(type):
            return f"{self.type_of(type.elementType)}[]"  # type: ignore[attr-defined]
        if isinstance(type, DecimalType) and DecimalType in self.types:
            return f"numeric({type.precision}, {type.scale})"
        return next((text for known, text in self.types.items() if isinstance(type, known)), "text")


_DIALECTS = {
    "sqlite3": Dialect(
        parameter="?",
        collate="",
        types={
            BooleanType: "integer",
            ByteType: "integer",
            ShortType: "integer",
            IntegerType: "integer",
            LongType: "integer",
            FloatType: "real",
            DoubleType: "real",
            BinaryType: "blob",
        },
        arrays=False,
        begin="BEGIN IMMEDIATE",
    ),
    "psycopg": Dialect(
        parameter="%s",
        collate=' COLLATE "C"',
        types={
            BooleanType: "boolean",
            ByteType: "smallint",
            ShortType: "smallint",
            IntegerType: "integer",
            LongType: "bigint",
            FloatType: "real",
            DoubleType: "double precision",
            DecimalType: "numeric",
            DateType: "date",
            TimestampType: "timestamptz",
            TimestampNTZType: "timestamp",
            BinaryType: "bytea",
            MapType: "jsonb",
            StructType: "jsonb",
            ArrayType: "jsonb",
        },
        arrays=True,
        begin="LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE",
    ),
}


def apply_to_database(
    changes: Changes, target: str, connect: Callable[[], Any], add_columns: bool
) -> None:
    """Merge the changes in one transaction. The driver writes the rows."""
    with closing(connect()) as connection:
        dialect = _dialect_of(connection)
        cursor = connection.cursor()
        merge = Merge(
            target=target,
            changes=_STAGED,
            keys=changes.keys,
            columns=(*changes.keys, *changes.values),
            toasted=frozenset(changes.toasted()),
            quote='"',
            collate=dialect.collate,
        )
        _prepare(connection, dialect, merge, changes, add_columns)
        truncated = _stage(cursor, dialect, merge, changes)
        connection.commit()
        cursor.execute(dialect.begin.format(target=target))
        cursor.execute(merge.remember_deletes)
        if truncated:
            cursor.execute(merge.delete_truncated)
        cursor.execute(merge.unknown_values)
        unknown = cursor.fetchone()
        if unknown is not None:
            columns, *key = unknown
            raise SchemaError(f"{UNKNOWN_VALUE}{columns.strip(',')}; table {target}, key {key}")
        cursor.execute(merge.delete_rows)
        cursor.execute(merge.upsert_rows)
        connection.commit()


def _dialect_of(connection: Any) -> Dialect:
    module = type(connection).__module__.partition(".")[0]
    if module not in _DIALECTS:
        raise OptionError(
            f"connect returned a connection of {module}. Return one of {' or '.join(_DIALECTS)}."
        )
    return _DIALECTS[module]


def _prepare(
    connection: Any, dialect: Dialect, merge: Merge, changes: Changes, add_columns: bool
) -> None:
    """Create the tables unless they exist, and add the columns that the target lacks."""
    cursor = connection.cursor()
    position = f"{POSITION} text{dialect.collate}"
    types = {name: dialect.type_of(changes.df.schema[name].dataType) for name in merge.columns}
    columns = [f"{merge.name(name)} {types[name]}" for name in merge.columns]
    keys = merge.names(*merge.keys)
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {merge.target}"
        f" ({', '.join(columns)}, {position}, PRIMARY KEY ({keys}))"
    )
    cursor.execute(f"SELECT * FROM {merge.target} WHERE 1 = 0")
    found = {column[0].lower() for column in cursor.description}
    missing = [name for name in (*merge.columns, POSITION) if name.lower() not in found]
    if missing and not add_columns:
        raise missing_columns(merge.target, missing)
    for name in missing:
        column = position if name == POSITION else f"{merge.name(name)} {types[name]}"
        cursor.execute(f"ALTER TABLE {merge.target} ADD COLUMN {column}")
    of_keys = ", ".join(f"{merge.name(key)} {types[key]}" for key in merge.keys)
    deletes = deletes_table(merge.target)
    cursor.execute(f"CREATE TABLE IF NOT EXISTS {deletes} ({of_keys}, {position})")
    connection.commit()


def _stage(cursor: Any, dialect: Dialect, merge: Merge, changes: Changes) -> bool:
    """Write the changes to a temporary table. Return whether there is a truncate among them."""
    names = (*merge.columns, *_FLAGS)
    cursor.execute(
        f"CREATE TEMPORARY TABLE {_STAGED} AS SELECT {merge.names(*merge.columns)}, {POSITION},"
        f" 1 = 1 AS {DELETED}, 1 = 1 AS {TRUNCATED}, '' AS {UNAVAILABLE}, 1 = 1 AS {STARTED}"
        f" FROM {merge.target} WHERE 1 = 0"
    )
    net = changes.net(with_change=False)
    rows = net.select(
        *(_portable(net, name, dialect.arrays).alias(name) for name in merge.columns), *_FLAGS
    )
    truncated = False

    def values() -> Iterator[tuple[Any, ...]]:
        nonlocal truncated
        for row in rows.toLocalIterator():
            truncated = truncated or row[TRUNCATED]
            yield tuple(row)

    parameters = ", ".join([dialect.parameter] * len(names))
    cursor.executemany(f"INSERT INTO {_STAGED} VALUES ({parameters})", values())
    return truncated


def _portable(df: DataFrame, name: str, arrays: bool) -> Column:
    """Return the column as a type that the drivers of databases take: others become text."""
    column, type = F.col(f"`{name}`"), df.schema[name].dataType
    if isinstance(type, TimestampType):
        return F.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSSXXX")
    if arrays and _is_plain_array(type):
        return column
    if isinstance(type, MapType | StructType | ArrayType):
        return F.to_json(column)
    if isinstance(type, _TAKEN):
        return column
    return column.cast("string")


def _is_plain_array(type: DataType) -> bool:
    return isinstance(type, ArrayType) and not isinstance(
        type.elementType, MapType | StructType | ArrayType
    )


def missing_columns(target: str, missing: list[str]) -> OptionError:
    return OptionError(
        f"The table {target} has no column {', '.join(missing)}. Add it, or let apply do so with "
        "new_columns='add'."
    )
