"""Columns with a schema in a write: the driver plans their encoding, and tasks encode them.

Planning needs Arrow and the registry, which other writes do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from sparkkafka.client.arguments import InputColumns
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.kinds import DEPTH_OPTION
from sparkkafka.config.options import parse_write_options
from sparkkafka.errors import EncodeError, OptionError, RegistryError, SchemaError
from sparkkafka.schemas.arrays import as_nullable
from sparkkafka.schemas.column import ColumnEncoder, EncodePlan, format_module
from sparkkafka.schemas.framings import IN_HEADERS
from sparkkafka.schemas.registry.client import RegistryClient, open_registry
from sparkkafka.schemas.schema_choice import column_schema, encode_plan
from sparkkafka.spark.arrow_types import from_arrow_type, to_arrow_type
from sparkkafka.spark.schema import schema_of_formats, spark_schema


def plan_encoding(
    formats: FormatOptions, schema: StructType, columns: InputColumns
) -> tuple[EncodePlan, ...]:
    """Return how each column with a schema is written. Looks up or registers the schemas.

    Raises OptionError, SchemaError, RegistryError.
    """
    plans = []
    with open_registry(formats.registry) as registry:
        for column in (formats.value, formats.key):
            if not column.has_schema:
                continue
            index = columns.value if column.column == "value" else columns.key
            if index is None:
                raise OptionError(
                    f"{column.column}Format={column.format} needs a column {column.column}: there "
                    f"is none among {', '.join(schema.names)}"
                )
            arrow_type = to_arrow_type(schema.fields[index].dataType, column.column)
            if formats.recursive_fields_max_depth is not None:
                _check_depth(arrow_type, column, formats, columns.fixed_topic, registry)
            plans.append(encode_plan(formats, column, columns.fixed_topic, arrow_type, registry))
    return tuple(plans)


def _check_depth(
    arrow_type: pa.DataType,
    column: ColumnFormat,
    formats: FormatOptions,
    topic: str | None,
    registry: RegistryClient | None,
) -> None:
    """Raise OptionError if recursive.fields.max.depth has no effect on a written column, whose type
    is `arrow_type`.

    The option has an effect only where the schema gives the type of a column: in a view that was
    created without columns (`written_schema`). The columns of a DataFrame have types of their own.
    """
    try:
        expected = _type_of_schema(column, formats, topic, registry)
    except (SchemaError, RegistryError):
        expected = None
    if expected is None or not as_nullable(arrow_type).equals(as_nullable(expected)):
        raise OptionError(
            f"option {DEPTH_OPTION} has no effect on the column {column.column}: it is written "
            f"with the type of its rows, {from_arrow_type(arrow_type).simpleString()}. Remove the "
            "option"
        )


def _type_of_schema(
    column: ColumnFormat, formats: FormatOptions, topic: str | None, registry: RegistryClient | None
) -> pa.DataType | None:
    """Return the type that `valueSchema` or the subject's latest version gives the column; None if
    there is neither a schema nor a subject. Raises SchemaError, RegistryError."""
    if column.schema is None and (registry is None or topic is None):
        return None
    chosen = column_schema(column, topic or "", registry)
    arrow_type: pa.DataType = format_module(column.format).arrow_type(
        chosen.schema, message=chosen.message, depth=formats.recursive_fields_max_depth
    )
    return arrow_type


def written_schema(options_by_name: Mapping[str, Any]) -> StructType:
    """Return the columns of a table or view that is only written. SQL needs them for INSERT.

    A column with a schema has the type of `valueSchema`, or of the subject's latest version. Raises
    OptionError, SchemaError, RegistryError.
    """
    options = parse_write_options(options_by_name)
    kafka_schema = spark_schema(include_headers=False)
    formats = options.formats
    if formats is None:
        return kafka_schema

    def typed_field(column: ColumnFormat) -> StructField:
        """Return the field of a column whose type is known. Raises OptionError."""
        name = column.column
        arrow_type = _type_of_schema(column, formats, options.topic, registry)
        if arrow_type is None:
            raise OptionError(
                f"the type of column {name} is not known: name the columns, as in CREATE "
                f"TEMPORARY VIEW name ({name} STRUCT<…>) USING …, or set {name}Schema"
            )
        return StructField(name, from_arrow_type(arrow_type))

    with open_registry(formats.registry) as registry:
        return schema_of_formats(kafka_schema, formats, typed_field)


class BatchEncoder:
    """Encodes the columns of one task's Arrow batches."""

    def __init__(self, plans: tuple[EncodePlan, ...], columns: InputColumns) -> None:
        self._columns = columns
        self._encoders = [ColumnEncoder(plan) for plan in plans]
        self._adds_headers = columns.headers is None and any(
            plan.framing in IN_HEADERS for plan in plans
        )
        self._rows_before = 0  # rows of earlier batches, as errors name the row in the task

    def encoded_columns(self, column_count: int) -> InputColumns:
        """Return the column indexes of an encoded batch, which had `column_count` columns before:
        headers with schema ids may be added as the last one."""
        return replace(self._columns, headers=column_count) if self._adds_headers else self._columns

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with encoded columns, and with headers if they have the schema ids.

        Raises EncodeError, which names column, row and reason, for a value that does not fit the
        schema.
        """
        for batch in batches:
            yield self._encode_batch(batch)
            self._rows_before += batch.num_rows

    def _encode_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with encoded key and value. Raises EncodeError."""
        columns = self._columns
        arrays = list(batch.columns)
        names = list(batch.schema.names)
        headers = None if columns.headers is None else arrays[columns.headers]
        for encoder in self._encoders:
            index = columns.value if encoder.plan.column == "value" else columns.key
            if index is None:  # plan_encoding has checked this
                raise EncodeError(f"there is no column {encoder.plan.column}")
            arrays[index], headers = encoder.encode(arrays[index], headers, self._rows_before)
        if columns.headers is not None:
            arrays[columns.headers] = headers
        elif self._adds_headers:
            arrays.append(headers)
            names.append("headers")
        return pa.RecordBatch.from_arrays(arrays, names=names)
