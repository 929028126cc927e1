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

from pyspark.sql import types

from sparkkafka.config.formats import ANY_WITH_SCHEMA, ColumnFormat, FormatOptions
from sparkkafka.config.kinds import BINARY, STRING
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.schemas.column import ColumnPlan

COLUMN_TYPES: Mapping[str, types.DataType] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(types.StructType().add("key", "string").add("value", "binary")),
}

BAD_RECORD_TYPE = types.StructType(
    [
        types.StructField("error", types.StringType()),
        types.StructField("schema_id", types.IntegerType()),
        types.StructField("raw", types.BinaryType()),
    ]
)
"""The column bad_record of onBadRecord=column."""


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column of a read.

    `as_text`: key or value as a string. `metadata`: that of the column in Spark's schema, as JSON;
    "" for none. A column with a schema (valueFormat, keyFormat) has `plans`, which say by topic how
    it is decoded. `arrow_type` is the type of such a column and of the columns bad_record and
    rescued; None for other columns, which have those of COLUMN_TYPES. `is_hidden`: other columns
    of the read are made of it.
    """

    name: str
    as_text: bool = False
    nullable: bool = True
    arrow_type: pa.DataType | None = None
    metadata: str = ""
    plans: tuple[tuple[str, ColumnPlan], ...] = ()
    is_hidden: bool = False


def default_columns(include_headers: bool) -> tuple[ReadColumn, ...]:
    """Return the columns of Spark's Kafka source."""
    return tuple(ReadColumn(name) for name in COLUMN_TYPES if name != "headers" or include_headers)


def spark_schema(include_headers: bool) -> types.StructType:
    """Return the schema of Spark's Kafka source: seven nullable columns, and headers on request."""
    names = [column.name for column in default_columns(include_headers)]
    return types.StructType([types.StructField(name, COLUMN_TYPES[name]) for name in names])


def schema_of_formats(
    kafka_schema: types.StructType,
    formats: FormatOptions,
    typed_field: Callable[[ColumnFormat], types.StructField],
) -> types.StructType:
    """Return `kafka_schema`, that of Spark's Kafka source, with key and value of the types that
    their formats give them. `typed_field` returns the field of a format with a schema."""
    columns = {column.column: column for column in (formats.key, formats.value)}

    def with_format(field: types.StructField) -> types.StructField:
        """Return a field of Kafka's schema with the type of its column's format."""
        column = columns.get(field.name)
        if column is None or column.format == BINARY:
            return field
        if column.format == STRING:
            return types.StructField(field.name, types.StringType())
        return typed_field(column)

    return types.StructType([with_format(field) for field in kafka_schema.fields])


def columns_of_schema(
    schema: types.StructType, any_type: Collection[str] = (), text_only: Collection[str] = ()
) -> tuple[ReadColumn, ...]:
    """Return the columns that a schema names. Raises OptionError for a column that does not exist,
    has another type, is named twice, or is NOT NULL although its values may be null.

    `any_type`: columns that may have any type. `text_only`: columns that must be strings.
    """
    if not schema.fields:
        raise OptionError(f"the schema has no columns; there are {', '.join(COLUMN_TYPES)}")
    columns: dict[str, ReadColumn] = {}
    for field in schema.fields:
        name = field.name
        has_any_type = name in any_type
        if name not in COLUMN_TYPES and not has_any_type:
            raise _unknown_column_error(name, schema, any_type)
        if name in columns:
            raise OptionError(f"column {name!r} appears twice in the schema")
        as_text = (
            name in ("key", "value")
            and isinstance(field.dataType, types.StringType)
            and not has_any_type
        )
        if not as_text and not has_any_type:
            _check_type(field, must_be_text=name in text_only)
        if not field.nullable and (has_any_type or name in ("key", "value", "headers")):
            raise OptionError(
                f"column {name!r} of the schema cannot be NOT NULL: records without one exist"
            )
        metadata = json.dumps(field.metadata) if field.metadata else ""
        columns[name] = ReadColumn(name, as_text, field.nullable, metadata=metadata)
    return tuple(columns.values())


def _check_type(field: types.StructField, *, must_be_text: bool) -> None:
    """Raise OptionError unless a column of a Kafka source has the type that the field declares."""
    expected = COLUMN_TYPES[field.name].simpleString()
    # Types are compared by their names: nullability inside has no effect on data.
    actual = field.dataType.simpleString()
    if actual == expected and not must_be_text:
        return
    type_names = "string" if must_be_text else expected
    advice = "cast it after the read"
    if field.name in ("key", "value") and not must_be_text:
        type_names += " or string"
        set_format = f"set {field.name}Format to {ANY_WITH_SCHEMA}"
        is_nested = isinstance(field.dataType, (types.ArrayType, types.MapType, types.StructType))
        advice = set_format if is_nested else f"{advice}, or {set_format}"
    raise OptionError(
        f"column {field.name!r} of the schema must be {type_names}, not {actual}: {advice}"
    )


def _unknown_column_error(
    name: str, schema: types.StructType, any_type: Collection[str]
) -> OptionError:
    """Return the error for a column that does not exist. `any_type` has the columns (key, value)
    that may have any type, since a format decodes them."""
    by_lower_name = {column.lower(): column for column in COLUMN_TYPES}
    near = difflib.get_close_matches(name.lower(), by_lower_name, n=1)
    hint = f"; did you mean {by_lower_name[near[0]]!r}?" if near else ""
    typed_column = next((column for column in ("value", "key") if column in any_type), None)
    if typed_column is not None:
        known = {*COLUMN_TYPES, *any_type}
        fields = types.StructType([field for field in schema if field.name not in known])
        hint += (
            f". A field of the records ({typed_column}Format) belongs to the column "
            f'{typed_column}: .schema("{typed_column} {fields.simpleString()}")'
        )
    if name == "bad_record":
        hint = "; bad_record needs onBadRecord=column, beside valueFormat or keyFormat"
    elif name == "rescued":
        hint = "; rescued needs rescuedColumn=true, beside valueFormat=json"
    return OptionError(
        f"column {name!r} of the schema does not exist in a Kafka source: there are "
        f"{', '.join(COLUMN_TYPES)}{hint}"
    )
