"""The columns that a read gives, as Spark types and as Arrow types.

Names, order, types and nullability are those of Spark's own Kafka source, unless the user names
columns (`.schema(…)`): any of them, in any order, key and value also as strings. Spark compares the
first Arrow schema of a read with the declared one field by field, so both are written down here.
Arrow itself is imported where it is used: Spark asks for the schema in a process of its own.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
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

from sparkkafka.config.formats import ANY_WITH_SCHEMA
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.schemas.column import ColumnPlan

METADATA_KEY = "SPARK::metadata::json"
"""Where Spark (ArrowUtils.metadataKey, and PySpark's `to_arrow_schema`) has a field's metadata in
Arrow: rows that come with a stream's plan must have them, and tasks' rows may."""

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_MAY_BE_TEXT = ("key", "value")
_MAY_BE_NULL = ("key", "value", "headers")
_WITH_OPTIONS = {
    "bad_record": "onBadRecord=column, beside valueFormat or keyFormat",
    "rescued": "rescuedColumn=true, beside valueFormat=json",
}


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """One column of a read; `as_text`: key or value as a string.

    Of a column with a schema, `plans` say by topic how it is read, and `kind` is its type; that of
    the columns beside them (bad_record, rescued) too. `metadata`: of the column in Spark's schema,
    JSON; "" for none.
    """

    name: str
    as_text: bool = False
    nullable: bool = True
    kind: pa.DataType | None = None
    metadata: str = ""
    plans: tuple[tuple[str, ColumnPlan], ...] = ()


def default_columns(include_headers: bool) -> tuple[ReadColumn, ...]:
    """Those of Spark's Kafka source."""
    return tuple(ReadColumn(name) for name in _TYPES if name != "headers" or include_headers)


def spark_schema(include_headers: bool) -> StructType:
    """Seven columns, all nullable; with `include_headers` an eighth, headers."""
    names = [column.name for column in default_columns(include_headers)]
    return StructType([StructField(name, _TYPES[name]) for name in names])


def chosen_columns(
    schema: StructType, free: Collection[str] = (), texts: Collection[str] = ()
) -> tuple[ReadColumn, ...]:
    """The columns that a schema names. Raises OptionError for a column that does not exist, exists
    with another type, is named twice, or cannot promise what it says (NOT NULL).

    `free`: columns with any type, that may be there besides. `texts`: columns that must be text.
    """
    if not schema.fields:
        raise OptionError(f"the schema has no columns; there are {_names()}")
    columns = []
    for number, field in enumerate(schema.fields):
        expected = _TYPES.get(field.name)
        is_free = field.name in free
        if expected is None and not is_free:
            names = {name.lower(): name for name in _TYPES}
            near = difflib.get_close_matches(field.name.lower(), names, n=1)
            hint = f"; did you mean {names[near[0]]!r}?" if near else ""
            typed_column = next((name for name in ("value", "key") if name in free), None)
            if typed_column is not None:
                others = {*_TYPES, *free}
                fields = StructType([other for other in schema if other.name not in others])
                hint += (
                    f". A field of the records ({typed_column}Format) belongs into the column "
                    f'{typed_column}: .schema("{typed_column} {fields.simpleString()}")'
                )
            if field.name in _WITH_OPTIONS:
                hint = f"; {field.name} is there with the option {_WITH_OPTIONS[field.name]}"
            raise OptionError(
                f"column {field.name!r} of the schema does not exist in a Kafka source: there are "
                f"{_names()}{hint}"
            )
        if field.name in [other.name for other in schema.fields[:number]]:
            raise OptionError(f"column {field.name!r} appears twice in the schema")
        as_text = field.name in _MAY_BE_TEXT and isinstance(field.dataType, StringType)
        as_text &= not is_free
        must_be_text = field.name in texts
        checked = expected is not None and not as_text and not is_free
        if expected and checked and (must_be_text or not _same_type(field.dataType, expected)):
            type_names = "string" if must_be_text else expected.simpleString()
            advice = "cast it after the read"
            if field.name in _MAY_BE_TEXT and not must_be_text:
                type_names += " or string"
                typed = f"set {field.name}Format to {ANY_WITH_SCHEMA}"
                nested = isinstance(field.dataType, (ArrayType, MapType, StructType))
                advice = typed if nested else f"{advice}, or {typed}"
            raise OptionError(
                f"column {field.name!r} of the schema must be {type_names}, not "
                f"{field.dataType.simpleString()}: {advice}"
            )
        if not field.nullable and (is_free or field.name in _MAY_BE_NULL):
            raise OptionError(
                f"column {field.name!r} of the schema cannot be NOT NULL: records without one exist"
            )
        metadata = json.dumps(field.metadata) if field.metadata else ""
        columns.append(ReadColumn(field.name, as_text, field.nullable, metadata=metadata))
    return tuple(columns)


def arrow_schema(columns: tuple[ReadColumn, ...]) -> pa.Schema:
    """Return the Arrow schema of the columns, as Spark expects it from a reader."""
    import pyarrow as pa

    from sparkkafka.protocol.columns.columns import HEADERS_TYPE

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": HEADERS_TYPE,
    }

    def kind_of(column: ReadColumn) -> pa.DataType:
        if column.kind is not None:  # a struct without fields is false
            return column.kind
        return pa.string() if column.as_text else types[column.name]

    return pa.schema(
        [
            pa.field(
                column.name,
                kind_of(column),
                nullable=column.nullable,
                metadata={METADATA_KEY: column.metadata} if column.metadata else None,
            )
            for column in columns
        ]
    )


def _same_type(first: DataType, second: DataType) -> bool:
    """Return whether they are equal apart from nullability inside, which has no effect on data."""
    return first.simpleString() == second.simpleString()


def _names() -> str:
    return ", ".join(_TYPES)
