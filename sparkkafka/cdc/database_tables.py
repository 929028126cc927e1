"""Merge changes into tables of SQLite and Postgres, over DB-API connections."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
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

from sparkkafka.cdc import net_changes
from sparkkafka.cdc.merge_sql import UNKNOWN_VALUE, HistoryMerge, Merge, check_types, columns_to_add
from sparkkafka.errors import OptionError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark's default formats have only milliseconds."""
_CSV_OPTIONS = {
    "dateFormat": "yyyy-MM-dd G",
    "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSXXX G",
    "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS G",
    "timeZone": "UTC",
}
_STAGED_COLUMNS = {
    net_changes.POSITION: net_changes.POSITION,
    net_changes.DELETED: "1 = 1",
    net_changes.TRUNCATED: "1 = 1",
    net_changes.UNAVAILABLE: "''",
    net_changes.STARTED: "1 = 1",
}
"""The other columns of the staging table, and an SQL value that gives each its type."""
_STAGING_TABLE = "sparkkafka_changes"


@dataclass(frozen=True)
class Dialect:
    """The SQL of one database, and what its driver does."""

    stage: Callable[[Any, int, Iterator[tuple[Any, ...]]], None]
    """Writes rows with a cursor to the staging table, which has this number of columns."""
    staged_types: tuple[type[DataType], ...]
    """The types whose values `stage` writes as they are. Those of others are cast to text."""
    collate: str  # the clause with which texts are compared by their bytes
    types: Mapping[type[DataType], str]
    """The SQL types of columns that are created. Types that are not listed become text."""
    has_arrays: bool
    has_nan: bool
    """Whether a column of floating-point numbers stores NaN, and not null instead."""
    fold: Callable[[str], str]
    """Folds the case of a name without quotes, as the database does."""
    fold_quoted: Callable[[str], str]
    """The same for a name in quotes."""
    max_name_bytes: float
    """Longer names are cut off, silently."""
    begin: str
    """The statement that locks out other writers until the end of the transaction."""
    autocommit: int
    """The driver's default for `autocommit`: with other values a commit may do nothing."""
    column_types: str | None
    """The query of a table's columns and types; None if values of any types can be compared."""

    def type_of(self, type: DataType) -> str:
        """Return the SQL type of a column that is created."""
        if self.has_arrays and _is_plain_array(type):
            return f"{self.type_of(type.elementType)}[]"  # type: ignore[attr-defined]
        if isinstance(type, DecimalType) and DecimalType in self.types:
            return f"numeric({type.precision}, {type.scale})"
        return next((text for known, text in self.types.items() if isinstance(type, known)), "text")


def _insert_rows(cursor: Any, columns: int, rows: Iterator[tuple[Any, ...]]) -> None:
    values = ", ".join("?" * columns)
    cursor.executemany(f"INSERT INTO {_STAGING_TABLE} VALUES ({values})", rows)


def _copy_rows(cursor: Any, _: int, rows: Iterator[tuple[Any, ...]]) -> None:
    with cursor.copy(f"COPY {_STAGING_TABLE} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


_DIALECTS = {
    "sqlite3": Dialect(
        stage=_insert_rows,
        staged_types=(BinaryType, BooleanType, DoubleType, FloatType, IntegralType, StringType),
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
        has_arrays=False,
        has_nan=False,
        fold=str,
        fold_quoted=str.lower,
        max_name_bytes=math.inf,
        begin="BEGIN IMMEDIATE",
        autocommit=-1,
        column_types=None,
    ),
    "psycopg": Dialect(
        stage=_copy_rows,
        # Not booleans: COPY writes t and f, which a column of type text would keep.
        staged_types=(
            BinaryType,
            DayTimeIntervalType,
            DoubleType,
            FloatType,
            IntegralType,
            StringType,
        ),
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
            DayTimeIntervalType: "interval",
            BinaryType: "bytea",
            MapType: "jsonb",
            StructType: "jsonb",
            ArrayType: "jsonb",
        },
        has_arrays=True,
        has_nan=True,
        fold=str.lower,
        fold_quoted=str,
        max_name_bytes=63,
        begin="LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE",
        autocommit=False,
        column_types=(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass"
        ),
    ),
}


def apply_to_database(
    changes: net_changes.Changes,
    target: str,
    connect: Callable[[], Any],
    add_columns: bool,
    scd: int,
) -> None:
    """Merge the changes into a table of a database, in one transaction. Spark's driver process
    writes the rows. `connect` opens a connection of the database's driver (DB API 2.0);
    `add_columns` and `scd`, 1 (rows) or 2 (history), are those of `apply`.

    Raises SchemaError for a value that no change and no row of the table has, and OptionError.
    """
    read = changes.net if scd == 1 else changes.history
    with closing(connect()) as connection:
        dialect = _dialect_of(connection)
        cursor = connection.cursor()
        columns = (*changes.keys, *changes.values)
        merge = (Merge if scd == 1 else HistoryMerge)(
            target=_quoted(target, dialect),
            changes=_STAGING_TABLE,
            keys=changes.keys,
            columns=columns if scd == 1 else (*columns, net_changes.VALID_FROM),
            quote='"',
            collate=dialect.collate,
        )
        for name in (merge.deletes.rpartition(".")[2].strip('"'), *columns):
            if len(name.encode()) > dialect.max_name_bytes:
                raise OptionError(
                    f"The name {name!r} has more than {dialect.max_name_bytes} bytes, which the "
                    "database would cut off. Choose a shorter one."
                )
        rows = read()
        _prepare(connection, dialect, merge, rows, add_columns)
        truncated, unavailable = _stage(cursor, dialect, merge, rows)
        # Some rows lack values of columns: they are staged again, filled from earlier changes.
        if filled := changes.to_fill(unavailable):
            cursor.execute(f"DROP TABLE {_STAGING_TABLE}")
            _stage(cursor, dialect, merge, read(filled))
            merge = replace(merge, unsent_columns=frozenset(filled))
        connection.commit()  # staging may take long: other writers are locked out only from here on
        cursor.execute(dialect.begin.format(target=merge.target))
        if isinstance(merge, HistoryMerge):
            cursor.execute(merge.move_after_snapshots)
        cursor.execute(merge.remember_deletes)
        if truncated and scd == 1:
            cursor.execute(merge.delete_truncated)
        cursor.execute(merge.unknown_values)
        unknown = cursor.fetchone()
        if unknown is not None:
            text, *key = unknown
            text = ", ".join(text.strip(net_changes.SEPARATOR).split(net_changes.SEPARATOR))
            raise SchemaError(f"{UNKNOWN_VALUE}{text}; table {target}, key {key}")
        if isinstance(merge, HistoryMerge):
            _insert(cursor, merge, merge.insert_versions)
            cursor.execute(merge.end_versions(all_keys=truncated))
        else:
            cursor.execute(merge.delete_rows)
            _insert(cursor, merge, merge.upsert_rows)
        connection.commit()


def _quoted(target: str, dialect: Dialect) -> str:
    """Return the name `schema.table` with quotes around both parts. Quoted parts stay as they are.
    Raises OptionError if it is not a table's name."""
    part = r'"(?:[^"]|"")+"|[^".]+'
    if not re.fullmatch(rf"(?:{part})(?:\.(?:{part}))*", target):
        raise OptionError(
            f"target={target!r} is not a table's name. Use the form schema.table, with quotes "
            'around parts that have dots: "a.b".'
        )
    parts = re.findall(part, target)
    return ".".join(name if name[0] == '"' else f'"{dialect.fold(name)}"' for name in parts)


def _insert(cursor: Any, merge: Merge, statement: str) -> None:
    """Execute an INSERT. Raises OptionError if the table has no key for ON CONFLICT, and
    SchemaError if a constraint refuses a row."""
    try:
        cursor.execute(statement)
    except Exception as error:
        message = str(error).partition("\n")[0]
        if "ON CONFLICT" in message:
            raise OptionError(
                f"The table {merge.target} has no primary key or unique index on the columns "
                f"{', '.join(merge.keys)}. Add one, or pass the table's key: keys=[…]."
            ) from error
        if "constraint" in message:
            raise SchemaError(
                f"The table {merge.target} refuses a row: {message}. Drop the constraint, or give "
                "the column a default if the source lacks it."
            ) from error
        raise


def _dialect_of(connection: Any) -> Dialect:
    """Return the dialect of a connection. Raises OptionError for other drivers, and for autocommit,
    with which a batch would not be one transaction."""
    module = type(connection).__module__.partition(".")[0]
    if module not in _DIALECTS:
        raise OptionError(
            f"connect returned a connection of {module}. Return one of {' or '.join(_DIALECTS)}."
        )
    dialect = _DIALECTS[module]
    factory = getattr(connection, "row_factory", None)
    if factory is not None and getattr(factory, "__name__", "") not in ("Row", "tuple_row"):
        raise OptionError(
            f"connect returned a connection of {module} whose row_factory makes no tuples. Leave "
            "row_factory out."
        )
    if getattr(connection, "autocommit", dialect.autocommit) != dialect.autocommit:
        raise OptionError(
            f"connect returned a connection of {module} with autocommit={connection.autocommit}, "
            "but a batch is one transaction. Leave autocommit out."
        )
    return dialect


def _prepare(
    connection: Any, dialect: Dialect, merge: Merge, rows: DataFrame, add_columns: bool
) -> None:
    """Create the target and its table of deletes unless they exist, and add the columns that the
    target lacks."""
    cursor = connection.cursor()
    types = {field.name: dialect.type_of(field.dataType) for field in rows.schema}
    types |= {net_changes.POSITION: f"text{dialect.collate}"}
    names, keys = merge.all_columns, merge.keys
    if isinstance(merge, HistoryMerge):
        types |= {
            net_changes.VALID_TO: types[net_changes.VALID_FROM],
            net_changes.IS_CURRENT: dialect.types[BooleanType],
        }
        keys = (*keys, net_changes.POSITION)
    columns = {name: f"{merge.name(name)} {types[name]}" for name in names}
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {merge.target}"
        f" ({', '.join(columns.values())}, PRIMARY KEY ({merge.names(*keys)}))"
    )
    cursor.execute(f"SELECT * FROM {merge.target} WHERE 1 = 0")
    found = (column[0] for column in cursor.description)
    for name in columns_to_add(merge, found, add_columns, dialect.fold_quoted):
        cursor.execute(f"ALTER TABLE {merge.target} ADD COLUMN {columns[name]}")
    if dialect.column_types is not None:  # the target may be a table that the user created
        cursor.execute(dialect.column_types, [merge.target])
        existing = dict(cursor.fetchall())
        old = {name: type for name, text in existing.items() if (type := _type_of_postgres(text))}
        check_types(merge, {field.name: field.dataType for field in rows.schema}, old)
        types |= {name: text for name, text in existing.items() if name in merge.keys}
    delete_columns = ", ".join(
        f"{merge.name(name)} {types[name]}"
        for name in (*merge.keys, *merge.delete_values, net_changes.POSITION)
    )
    unique = merge.names(*merge.keys, net_changes.POSITION)  # also the index for lookups by key
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {merge.deletes} ({delete_columns}, UNIQUE ({unique}))"
    )
    connection.commit()


_POSTGRES_TYPES: Mapping[str, DataType] = {
    "smallint": ShortType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "real": FloatType(),
    "date": DateType(),
}


def _type_of_postgres(text: str) -> DataType | None:
    """Return Spark's type for a type of Postgres that may be too narrow; None for others."""
    if match := re.fullmatch(r"numeric\((\d+),(-?\d+)\)", text):
        return DecimalType(int(match[1]), int(match[2]))
    if text.endswith("[]"):
        item = _type_of_postgres(text[:-2])
        return item and ArrayType(item)
    return _POSTGRES_TYPES.get(text)


def _stage(cursor: Any, dialect: Dialect, merge: Merge, rows: DataFrame) -> tuple[bool, set[str]]:
    """Write the changes to a temporary table. Return whether one of them is a truncate, and the
    texts `_sparkkafka_unavailable` of the rows."""
    flags = _STAGED_COLUMNS | (
        {net_changes.PARTITION_AND_OFFSET: "''"} if isinstance(merge, HistoryMerge) else {}
    )
    names = (*merge.columns, *flags)
    cursor.execute(
        f"CREATE TEMPORARY TABLE {_STAGING_TABLE} AS SELECT {merge.names(*merge.columns)},"
        f" {', '.join(f'{value} AS {name}' for name, value in flags.items())}"
        f" FROM {merge.target} WHERE 1 = 0"
    )
    portable, without_nan = [], []
    for name in merge.columns:
        type = rows.schema[name].dataType
        column = _portable(net_changes.column_at(name), type, dialect)
        if isinstance(type, DecimalType) and name in merge.keys:
            # In SQLite a text: 1.0 and 1.00 are one key.
            column = F.regexp_replace(column, r"\.0+$|(\.\d*[1-9])0+$", "$1")
        portable.append(column.alias(name))
        if isinstance(type, DoubleType | FloatType) and not dialect.has_nan:
            without_nan.append(name)
    staged = rows.select(*portable, *flags)
    truncated, unavailable = False, set()

    def values() -> Iterator[tuple[Any, ...]]:
        """Yield the rows, and collect what `_stage` returns."""
        nonlocal truncated
        for row in staged.toLocalIterator():
            truncated = truncated or row[net_changes.TRUNCATED]
            if not row[net_changes.DELETED]:
                unavailable.add(row[net_changes.UNAVAILABLE])
                for name in without_nan:
                    if row[name] is not None and math.isnan(row[name]):
                        raise SchemaError(
                            f"The column {name} of the key {row[: len(merge.keys)]} is NaN, which "
                            f"would be null in the table {merge.target}. Cast the column to string."
                        )
            yield tuple(row)

    dialect.stage(cursor, len(names), values())
    return truncated, unavailable


def _portable(column: Column, type: DataType, dialect: Dialect) -> Column:
    """Cast a column to a type that the database's driver accepts: other types become text or
    JSON."""
    if isinstance(type, TimestampType | TimestampNTZType | DateType):
        # The same text in sessions of any time zone, with the era: "0044-03-15 BC". A row of nulls
        # only ends in a NullPointerException of Spark's.
        text = F.when(column.isNotNull(), F.to_csv(F.struct(column), _CSV_OPTIONS))
        # Debezium sends Postgres's infinity as a timestamp in one of these years.
        text = F.regexp_replace(text, r"^\+?294247-.*", "infinity")
        text = F.regexp_replace(text, r"^\+?290309-.* BC$", "-infinity")
        return F.regexp_replace(text, r"^\+| AD$", "")  # Spark's sign of years after 9999
    if dialect.has_arrays and _is_plain_array(type):
        item_type = type.elementType  # type: ignore[attr-defined]
        return F.transform(column, lambda item: _portable(item, item_type, dialect))
    if isinstance(type, MapType | StructType | ArrayType):
        return F.to_json(column, _JSON_OPTIONS)
    if isinstance(type, dialect.staged_types):
        return column
    return column.cast("string")


def _is_plain_array(type: DataType) -> bool:
    """Return whether a column is an array of values that are not nested."""
    return isinstance(type, ArrayType) and not isinstance(
        type.elementType, MapType | StructType | ArrayType
    )
