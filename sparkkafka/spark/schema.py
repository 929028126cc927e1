"""The columns of a read, as Spark types (`arrow_types` has them as Arrow types).

Names, order, types and nullability are those of Spark's own Kafka source, unless the user names
columns (`.schema(…)`): any of them, in any order, key and value also as strings.

This imports no Arrow: Spark requests the schema in a process of its own.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sparkkafka.config.formats import ANY_WITH_SCHEMA, ColumnFormat, FormatOptions
from sparkkafka.config.kinds import BINARY, STRING
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.schemas.column import ColumnPlan

COLUMN_TYPES: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}

BAD_RECORD_TYPE = StructType(
    [
        StructField("error", StringType()),
        StructField("schema_id", IntegerType()),
        StructField("raw", BinaryType()),
    ]
)
"""The column bad_record of onBadRecord=column."""


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column of a read; `as_text`: key or value as a string.

    A column with a schema has `plans`, which say by topic how it is decoded. `kind` is the type of
    such a column, and of the columns bad_record and rescued; None for all others. `metadata`: that
    of the column in Spark's schema, as JSON; "" for none.
    """

    name: str
    as_text: bool = False
    nullable: bool = True
    kind: pa.DataType | None = None
    metadata: str = ""
    plans: tuple[tuple[str, ColumnPlan], ...] = ()


def default_columns(include_headers: bool) -> tuple[ReadColumn, ...]:
    """Return the columns of Spark's Kafka source."""
    return tuple(ReadColumn(name) for name in COLUMN_TYPES if name != "headers" or include_headers)


def spark_schema(include_headers: bool) -> StructType:
    """Return the schema of Spark's Kafka source: seven nullable columns, and perhaps headers."""
    names = [column.name for column in default_columns(include_headers)]
    return StructType([StructField(name, COLUMN_TYPES[name]) for name in names])


def schema_by_format(
    plain: StructType,
    formats: FormatOptions,
    typed_field: Callable[[ColumnFormat], StructField],
) -> StructType:
    """Return the schema with key and value as their formats have them: as they are, as text, or as
    the field that `typed_field` returns for a format with a schema."""
    columns = {column.column: column for column in (formats.key, formats.value)}

    def field_of(field: StructField) -> StructField:
        column = columns.get(field.name)
        if column is None or column.format == BINARY:
            return field
        if column.format == STRING:
            return StructField(field.name, StringType())
        return typed_field(column)

    return StructType([field_of(field) for field in plain.fields])


def chosen_columns(
    schema: StructType, free: Collection[str] = (), texts: Collection[str] = ()
) -> tuple[ReadColumn, ...]:
    """Return the columns that a schema names. Raises OptionError for a column that does not exist,
    has another type, is named twice, or is NOT NULL although its values may be null.

    `free`: columns that may have any type. `texts`: columns that must be text.
    """
    names = ", ".join(COLUMN_TYPES)
    if not schema.fields:
        raise OptionError(f"the schema has no columns; there are {names}")
    columns = []
    for number, field in enumerate(schema.fields):
        expected = COLUMN_TYPES.get(field.name)
        is_free = field.name in free
        if expected is None and not is_free:
            by_lower_name = {name.lower(): name for name in COLUMN_TYPES}
            near = difflib.get_close_matches(field.name.lower(), by_lower_name, n=1)
            hint = f"; did you mean {by_lower_name[near[0]]!r}?" if near else ""
            typed_column = next((name for name in ("value", "key") if name in free), None)
            if typed_column is not None:
                others = {*COLUMN_TYPES, *free}
                fields = StructType([other for other in schema if other.name not in others])
                hint += (
                    f". A field of the records ({typed_column}Format) belongs into the column "
                    f'{typed_column}: .schema("{typed_column} {fields.simpleString()}")'
                )
            if field.name == "bad_record":
                hint = "; bad_record needs onBadRecord=column, beside valueFormat or keyFormat"
            elif field.name == "rescued":
                hint = "; rescued needs rescuedColumn=true, beside valueFormat=json"
            raise OptionError(
                f"column {field.name!r} of the schema does not exist in a Kafka source: there are "
                f"{names}{hint}"
            )
        if field.name in [other.name for other in schema.fields[:number]]:
            raise OptionError(f"column {field.name!r} appears twice in the schema")
        as_text = field.name in ("key", "value") and isinstance(field.dataType, StringType)
        as_text &= not is_free
        must_be_text = field.name in texts
        checked = expected is not None and not as_text and not is_free
        # Types are compared by their names: nullability inside has no effect on data.
        actual = field.dataType.simpleString()
        if expected and checked and (must_be_text or actual != expected.simpleString()):
            type_names = "string" if must_be_text else expected.simpleString()
            advice = "cast it after the read"
            if field.name in ("key", "value") and not must_be_text:
                type_names += " or string"
                typed = f"set {field.name}Format to {ANY_WITH_SCHEMA}"
                nested = isinstance(field.dataType, (ArrayType, MapType, StructType))
                advice = typed if nested else f"{advice}, or {typed}"
            raise OptionError(
                f"column {field.name!r} of the schema must be {type_names}, not {actual}: {advice}"
            )
        if not field.nullable and (is_free or field.name in ("key", "value", "headers")):
            raise OptionError(
                f"column {field.name!r} of the schema cannot be NOT NULL: records without one exist"
            )
        metadata = json.dumps(field.metadata) if field.metadata else ""
        columns.append(ReadColumn(field.name, as_text, field.nullable, metadata=metadata))
    return tuple(columns)
