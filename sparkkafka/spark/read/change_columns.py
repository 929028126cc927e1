"""The columns of a read with envelope.columns=row: those of the table, and the column change.

Value and key are decoded into hidden columns: the value as struct<row, change>, of which the
columns of the read are made together with what Kafka knows of each record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from sparkkafka.client.consumer.record import partition_column, times_as_us, topic_column
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.columns import DecodedRecords
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import Flags
from sparkkafka.schemas.arrays import item_counts, scalar, struct_of
from sparkkafka.schemas.envelopes.debezium import CHANGE, TOMBSTONE, change_type
from sparkkafka.spark.arrow_types import from_arrow_type, to_arrow_type
from sparkkafka.spark.schema import ReadColumn

_KAFKA_FIELDS: Final = {
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
}
"""Fields of the change that Kafka knows."""
_KEYS: Final = ("key", "old_key")
_ENVELOPE_HINT: Final = "set envelope.columns=envelope, whose columns are those of Kafka"


def changes_schema(
    value: types.StructField, key: types.StructField | None, pins_key: str, added: Sequence[str]
) -> types.StructType:
    """Return the columns of a read, whose value and key have these types: `value` is a struct of
    the row and its change, or an array of such structs. `added`: the names of the columns that
    options add. What planning chose for the value and the key (their metadata under `pins_key`)
    becomes metadata of the column `change`. Raises OptionError if a column of the table has one of
    the other columns' names."""
    struct = value.dataType
    if isinstance(struct, types.ArrayType):  # records with several rows
        struct = struct.elementType
    row, change = (field.dataType for field in cast(types.StructType, struct))
    row, change = cast(types.StructType, row), cast(types.StructType, change)
    for name in row.names:
        if name.lower() in (CHANGE, *added):
            raise OptionError(
                f"the table has a column {name!r}, which is the name of a column of the read: "
                f"{_ENVELOPE_HINT}"
            )
    fields = []
    for field in change.fields:
        if field.name == "unavailable" and key is not None:  # the last field; keys are before it
            fields += [types.StructField(name, key.dataType) for name in _KEYS]
        fields.append(field)
    fields += [types.StructField(name, kind) for name, kind in _KAFKA_FIELDS.items()]
    pins = {
        field.name: field.metadata[pins_key]
        for field in (value, key)
        if field is not None and field.metadata.get(pins_key)
    }
    metadata = {pins_key: pins} if pins else None
    return types.StructType(
        [*row.fields, types.StructField(CHANGE, types.StructType(fields), True, metadata)]
    )


def unwrapped_type(value: pa.DataType) -> types.StructType:
    """Return the Spark type of what `unwrapped_values` returns for values of this Arrow type."""
    row, change = cast(types.StructType, from_arrow_type(value)).fields
    return types.StructType([*cast(types.StructType, row.dataType).fields, change])


def unwrapped_values(values: pa.Array, payloads: pa.Array) -> pa.Array:
    """Return struct<row, change> as structs of the table's columns and change. Payloads that are
    null are tombstones."""
    row, change = values.flatten()
    parts = change.flatten()
    if (index := change.type.get_field_index("kind")) >= 0:
        is_tombstone = arrow.from_numpy(~arrow.is_valid(payloads))
        parts[index] = pc.if_else(is_tombstone, scalar(TOMBSTONE), parts[index])
    change_structs = struct_of(change.type, len(change), None, parts)
    columns = [*row.type, pa.field(CHANGE, change_structs.type)]
    return struct_of(pa.struct(columns), len(values), None, [*row.flatten(), change_structs])


class ChangeColumns(NamedTuple):
    """The columns that the schema of a read names. `value`: the type of the value, struct<row,
    change>; `key`: that of the key, None if it is not read; `names`: the semantic types that the
    comments of columns name."""

    columns: tuple[ReadColumn, ...]
    value: pa.DataType
    key: pa.DataType | None
    names: tuple[tuple[str, str], ...]


def split_columns(
    schema: types.StructType, added: Sequence[str], *, keys_from_rows: bool, has_lists: bool
) -> ChangeColumns:
    """Return the columns that the schema of a read names. `keys_from_rows`: the key is not decoded;
    `has_lists`: a value has several rows. Raises OptionError for a schema that no read of changes
    can have."""
    names = []
    columns: list[ReadColumn] = []
    row: list[pa.Field] = []
    change: list[pa.Field] = []
    key = None
    for field in schema.fields:
        arrow_type = to_arrow_type(field.dataType, field.name)
        if not field.nullable:
            raise OptionError(
                f"column {field.name!r} of the schema cannot be NOT NULL: not all records are rows"
            )
        if field.name == CHANGE:
            change_key = check_change(arrow_type)
            key = None if keys_from_rows else change_key
            from_kafka = {*_KAFKA_FIELDS, *(() if keys_from_rows else ("key",))}
            change = [part for part in arrow_type if part.name not in from_kafka]
        elif field.name not in added:
            row.append(pa.field(field.name, arrow_type))
            comment = str(field.metadata.get("comment", "")).strip()
            if comment.startswith(("io.debezium.", "org.apache.kafka.connect.data.")):
                names.append((field.name, comment))
        metadata = json.dumps(field.metadata) if field.metadata else ""
        columns.append(ReadColumn(field.name, arrow_type=arrow_type, metadata=metadata))
    if not row:
        raise OptionError(f"the schema has no column of the table: name one, or {_ENVELOPE_HINT}")
    is_value = [field.name for field in row] == ["value"] and pa.types.is_struct(row[0].type)
    if is_value and CHANGE not in schema.names:
        raise OptionError(
            "the schema has a struct 'value' instead of the columns of the table: name these, as "
            f"'id int, city string', or {_ENVELOPE_HINT}. If it is the table's only column, also "
            "name a field of change, as 'change struct<op string>'"
        )
    value = pa.struct([("row", pa.struct(row)), ("change", pa.struct(change))])
    if has_lists:
        value = pa.list_(pa.field("element", value))
    return ChangeColumns(tuple(columns), value, key, tuple(names))


def check_change(change: pa.DataType) -> pa.DataType | None:
    """Raise OptionError unless the fields of the column change have their names and types. Return
    the type of the key, None if it is not among them."""
    if not pa.types.is_struct(change):
        raise OptionError("column 'change' of the schema must be a struct: see the docs' page cdc")
    key = None
    for field in change:
        expected = _EXPECTED.get(field.name)
        if field.name in _KEYS:
            if key is not None and key != field.type:
                raise OptionError("change.key and change.old_key must have one type")
            key = field.type
        elif field.name == "source":
            if not pa.types.is_struct(field.type):
                raise OptionError("field change.source of the schema must be a struct")
        elif expected is None:
            raise OptionError(
                f"the schema has change.{field.name}, which does not exist: there are "
                f"{', '.join([*_EXPECTED, 'source', *_KEYS])}"
            )
        elif not _can_be_declared(field.type, expected):
            raise OptionError(f"field change.{field.name} of the schema must be {expected}")
    return key


def _can_be_declared(declared: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether a field of change may be declared so: as the type that it has, or as a struct
    of some of its fields."""
    if pa.types.is_struct(expected):
        return bool(pa.types.is_struct(declared)) and all(
            expected.get_field_index(field.name) >= 0
            and field.type == expected.field(field.name).type
            for field in declared
        )
    if pa.types.is_list(expected):
        return bool(pa.types.is_list(declared) and declared.value_type == expected.value_type)
    return bool(declared == expected)


_EXPECTED: Final = {
    field.name: field.type for field in change_type(pa.struct([])) if field.name != "source"
} | {name: to_arrow_type(kind, name) for name, kind in _KAFKA_FIELDS.items()}
"""The types of the fields of change, but for those that depend on the table (key, source)."""


def are_other_records(values: pa.Array) -> Flags:
    """Return which values, as struct<row, change>, are no changes of rows, but records such as
    transactions, whose keys are not those of the table."""
    if pa.types.is_list(values.type):
        return np.zeros(len(values), np.bool_)
    return arrow.is_valid(values) & ~arrow.is_valid(pc.struct_field(values, [0]))


def table_columns(
    columns: Sequence[tuple[str, pa.DataType]],
    decoded: Mapping[str, pa.Array],
    is_bad: Flags,
    records: DecodedRecords,
    tp: TopicPartition,
) -> dict[str, pa.Array]:
    """Return the columns of a read by name, out of the decoded value and key of a partition's
    records; `columns` has their names and types. `is_bad`: rows whose value could not be decoded;
    their change.kind is null."""
    value = decoded["value"]
    record_of_row = None  # its index; None: each record has one row
    if pa.types.is_list(value.type):
        value, record_of_row = _explode(value)
        decoded = {
            name: array.take(record_of_row) for name, array in decoded.items() if name != "value"
        }
        is_bad = is_bad[arrow.to_numpy(record_of_row)]
    row = pc.struct_field(value, [0])
    result: dict[str, pa.Array] = {}
    for name, arrow_type in columns:
        field_index = row.type.get_field_index(name)
        if name == CHANGE:
            kafka = {
                "topic": topic_column(tp.topic, len(records)),
                "partition": partition_column(tp.partition, len(records)),
                "offset": arrow.from_numpy(records.offsets),
                "timestamp": times_as_us(records, f"topic {tp.topic} partition {tp.partition}"),
            }
            if record_of_row is not None:
                kafka = {field: array.take(record_of_row) for field, array in kafka.items()}
            result[name] = _change(arrow_type, value, decoded.get("key"), is_bad, kafka)
        elif field_index >= 0:
            result[name] = pc.struct_field(row, [field_index])
        else:
            result[name] = decoded[name]
    return result


def _explode(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the items of all lists as one array, and for each item the index of its list. A list
    without items has one item, null."""
    counts = item_counts(lists)
    steps = np.maximum(counts, 1)
    has_item = np.repeat(counts > 0, steps)
    items = lists.flatten().take(arrow.filtered_positions(has_item))  # null without an item
    return items, arrow.from_numpy(np.repeat(np.arange(len(lists)), steps))


def _change(
    arrow_type: pa.DataType,
    value: pa.Array,
    key: pa.Array | None,
    is_bad: Flags,
    kafka: Mapping[str, pa.Array],
) -> pa.Array:
    """Return the column change, as structs of type `arrow_type`. `value` has struct<row, change> of
    each record, `key` the records' keys, `kafka` the columns of the fields that Kafka knows.
    `is_bad`: rows whose value could not be decoded."""
    change, count = pc.struct_field(value, [1]), len(value)
    columns = []
    for field in arrow_type:
        name = field.name
        index = change.type.get_field_index(name)
        if index >= 0:
            column = pc.struct_field(change, [index])
        elif name == "key":
            column = key if key is not None else pa.nulls(count, field.type)
        else:
            column = kafka[name]
        if name == "kind":
            is_tombstone = ~arrow.is_valid(value) & ~is_bad
            if is_tombstone.any():
                column = pc.if_else(arrow.from_numpy(is_tombstone), scalar(TOMBSTONE), column)
        columns.append(column)
    return struct_of(arrow_type, count, None, columns)
