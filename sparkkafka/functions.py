"""Formats as functions of columns, for any source and sink.

    from sparkkafka.functions import from_avro, to_avro

    registry = {"schema.registry.url": "http://registry:8081"}
    df.select(from_avro("value", registry, subject="orders-value").alias("order"))

Options are those of a read or a write with `valueFormat`, without the format: the registry's
(`schema.registry.*`), `valueSchema`, `valueSchemaVersion`, `valueSchemaMessage`, `valueFraming`,
`recursive.fields.max.depth`, and for reads `onBadRecord` (fail or null). The process that calls the
function looks the schema up in the registry immediately; the plan contains it.

They are Arrow UDFs. Spark 4.0 has none: there they are pandas and Python UDFs, which are much
slower, and those that decode need pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC
from importlib import import_module
from typing import Any

import pyarrow as pa

from sparkkafka.config.formats import FormatOptions, formats_from
from sparkkafka.config.kinds import AVRO, DEBEZIUM, DEPTH_OPTION, FAIL, JSON, NULL, PROTOBUF
from sparkkafka.config.option_table import Side
from sparkkafka.config.parsed_options import ParsedOptions
from sparkkafka.errors import BadRecordError, OptionError, SchemaError
from sparkkafka.protocol.records.arrow import as_binary
from sparkkafka.schemas.column import (
    ColumnDecoder,
    ColumnEncoder,
    ColumnPlan,
    EncodePlan,
    format_module,
    in_pieces,
)
from sparkkafka.schemas.framings import IN_HEADERS
from sparkkafka.schemas.registry.client import RegistryClient, connect, open_registry
from sparkkafka.schemas.schema_choice import encode_plan
from sparkkafka.spark.registration import needs_pyspark

with needs_pyspark("sparkkafka.functions"):
    from pyspark.sql import Column, functions, types
    from pyspark.sql.types import DataType

    from sparkkafka.spark.arrow_types import from_arrow_type, to_arrow_type

__all__ = [
    "from_avro",
    "from_json_registry",
    "from_protobuf",
    "to_avro",
    "to_protobuf",
    "unwrap_debezium",
]

_Options = Mapping[str, Any] | None
_Type = DataType | str | None
_ArrayFunction = Callable[[pa.Array], pa.Array]
_Udf = Callable[["Column | str"], Column]

_MAX_VALUE_BYTES = 1 << 30
"""Maximum bytes of a batch's values beyond those of its payloads. A small payload may have large
values, and Spark needs all values of a batch in one array."""


def from_avro(
    data: Column | str,
    options: Mapping[str, Any] | None = None,
    *,
    subject: str | None = None,
    schema: str | None = None,
    type: DataType | str | None = None,
) -> Column:
    """Decode binary Avro to a typed column.

    Payloads have the framing of Confluent's serializers, and their schemas are in the registry;
    with the option valueFraming=none they have no framing, and all have the one `schema`. The
    column's type is that of `schema` (its text, or a file's path), or of the subject's latest
    version (or the option valueSchemaVersion); `type` selects some of the fields.

    Raises OptionError, SchemaError, RegistryError immediately; BadRecordError in the query for a
    payload that cannot be decoded, unless the option onBadRecord is null.
    """
    return _decode_column(AVRO, data, options, type, valueSubject=subject, valueSchema=schema)


def from_protobuf(
    data: Column | str,
    options: Mapping[str, Any] | None = None,
    *,
    subject: str | None = None,
    schema: str | None = None,
    message: str | None = None,
    type: DataType | str | None = None,
) -> Column:
    """Decode binary Protobuf, framed like Confluent's unless valueFraming=none, to a typed column.

    `message` is the message's name, by default the first of the file; `subject`, `schema` and
    `type` choose the column's type, and errors are raised, as in `from_avro`.
    """
    names = {"valueSubject": subject, "valueSchema": schema, "valueSchemaMessage": message}
    return _decode_column(PROTOBUF, data, options, type, **names)


def from_json_registry(
    data: Column | str,
    options: Mapping[str, Any] | None = None,
    *,
    subject: str | None = None,
    schema: str | None = None,
    type: DataType | str | None = None,
) -> Column:
    """Decode JSON text (binary), with or without the registry's framing, to a typed column.

    The column's type is that of the JSON Schema (`schema`, or the subject's latest version); `type`
    selects some of its fields, or is the type if there is no schema. Errors are raised as in
    `from_avro`.
    """
    return _decode_column(JSON, data, options, type, valueSubject=subject, valueSchema=schema)


def unwrap_debezium(
    data: Column | str,
    format: str,
    options: Mapping[str, Any] | None = None,
    *,
    subject: str | None = None,
    schema: str | None = None,
    message: str | None = None,
    type: DataType | str | None = None,
) -> Column:
    """Decode Debezium's envelopes (`format`: avro, json or protobuf) to a struct of the table's
    columns and `change`, as a read with the option envelope=debezium has them, without the record's
    key, topic, partition and offset. A tombstone (null) has the kind tombstone.

    The table's columns come from `schema`, or from the subject; or from `type`, which JSON without
    a JSON Schema needs: "id bigint, born date, change struct<op string, kind string>".

    Raises OptionError, SchemaError, RegistryError immediately; BadRecordError in the query for a
    bad envelope, unless the option onBadRecord is null.
    """
    from sparkkafka.spark.read.change_columns import split_columns, unwrapped_type
    from sparkkafka.spark.read.typed_columns import column_plan

    names = {"valueSubject": subject, "valueSchema": schema, "valueSchemaMessage": message}
    formats = _parse_options(format, options, Side.READ, names, envelope=DEBEZIUM)
    chosen = _spark_type(type)
    split = None
    if chosen is not None:
        if not isinstance(chosen, types.StructType):
            raise OptionError("type must have the columns of the table: 'id bigint, name string'")
        split = split_columns(chosen, (), keys_from_rows=False, has_lists=False)
        if split.key is not None:
            raise OptionError("a function has no key: remove change.key and change.old_key of type")
    with open_registry(formats.registry) as registry:
        plan = column_plan(
            formats,
            registry,
            None if split is None else from_arrow_type(split.value),
            () if split is None else split.names,
        )
    task_registry = None if formats.registry is None else connect(formats.registry.for_tasks())
    returned = unwrapped_type(plan.type)
    decode = _UnwrapFunction(plan, task_registry, formats.on_bad_record == NULL)
    return _make_udf(decode, returned, pa.binary())(data)


def to_avro(
    data: Column | str,
    options: Mapping[str, Any] | None = None,
    *,
    subject: str | None = None,
    schema: str | None = None,
    type: DataType | str | None = None,
) -> Column:
    """Encode a column as binary Avro, with the registry's framing unless valueFraming is none.

    The schema is `schema`, which the subject must have (or the option auto.register.schemas=true
    registers it); or the subject's latest version; or that of `type`, which is the column's type: a
    function cannot see it. Null stays null.

    Raises OptionError, SchemaError, RegistryError immediately; EncodeError in the query for a value
    that the schema does not allow.
    """
    return _encode_column(AVRO, data, options, type, valueSubject=subject, valueSchema=schema)


def to_protobuf(
    data: Column | str,
    options: Mapping[str, Any] | None = None,
    *,
    subject: str | None = None,
    schema: str | None = None,
    message: str | None = None,
    type: DataType | str | None = None,
) -> Column:
    """Encode a struct as binary Protobuf, with the registry's framing unless valueFraming is none.

    `message` is the message's name, by default the first of the file; `subject`, `schema` and
    `type` choose the schema, and errors are raised, as in `to_avro`.
    """
    names = {"valueSubject": subject, "valueSchema": schema, "valueSchemaMessage": message}
    return _encode_column(PROTOBUF, data, options, type, **names)


# --- planning -----------------------------------------------------------------------------------


def _parse_options(
    format: str, options: _Options, side: Side, arguments: Mapping[str, str | None], **more: str
) -> FormatOptions:
    """Parse and check the options of a function, and `more` of them; its `arguments` are those that
    are options too, None if they are not given. `side`: READ for from_…, WRITE for to_…. Raises
    OptionError."""
    if not isinstance(options, Mapping | None):
        raise OptionError(
            f"options is a dict of options, got a {type(options).__name__}. Pass a schema by its "
            'name: schema=…, with the options {"valueFraming": "none"} if payloads have no framing'
        )
    set_options = {**(options or {}), **more}
    names = {name.lower() for name in set_options}
    for name, value in arguments.items():
        if value is not None:
            if name.lower() in names:
                raise OptionError(f"the argument and the option {name} are both given: remove one")
            set_options[name] = value
    for name in set_options:
        not_of_column = ("valueformat", "rescuedcolumn", "envelope.columns")
        if name.lower() in not_of_column or name.lower().startswith("key"):
            raise OptionError(f"option {name} has no meaning for a function of one column")
    formats = formats_from(ParsedOptions({**set_options, "valueFormat": format}, side))
    if formats is None:
        raise OptionError(f"valueFormat={format} is not supported")
    if formats.on_bad_record not in (FAIL, NULL):
        raise OptionError(
            f"onBadRecord={formats.on_bad_record} is for reads: a function has {FAIL} and {NULL}"
        )
    column, writes = formats.value, side is Side.WRITE
    if writes and column.framing in IN_HEADERS:
        raise OptionError(
            f"valueFraming={column.framing} is for writes: a function returns only payloads"
        )
    needs_subject = writes or (column.schema is None and format != JSON)
    if formats.registry is not None and needs_subject and not column.subject:
        or_schema = "" if writes else " or schema"
        raise OptionError(f"a function has no topic: set subject{or_schema}")
    return formats


def _decode_column(
    format: str, data: Column | str, options: _Options, type: _Type, **arguments: str | None
) -> Column:
    """Return the column of decoded payloads, for the functions from_…."""
    from sparkkafka.spark.read.typed_columns import column_plan

    formats = _parse_options(format, options, Side.READ, arguments)
    if formats.value.infer:
        raise OptionError("valueSchema=infer is for reads of topics: set type")
    with open_registry(formats.registry) as registry:
        plan = column_plan(formats, registry, _spark_type(type))
    task_registry = None if formats.registry is None else connect(formats.registry.for_tasks())
    decode = _DecodeFunction(plan, task_registry, formats.on_bad_record == NULL)
    return _make_udf(decode, from_arrow_type(plan.type), pa.binary())(data)


def _encode_column(
    format: str, data: Column | str, options: _Options, type: _Type, **arguments: str | None
) -> Column:
    """Return the column of encoded values, for the functions to_…."""
    formats = _parse_options(format, options, Side.WRITE, arguments)
    column, depth = formats.value, formats.recursive_fields_max_depth
    spark_type = _spark_type(type)
    if spark_type is not None and depth is not None:
        raise OptionError(
            f"option {DEPTH_OPTION} has no effect beside the argument type, which is the column's "
            "type: remove one of them"
        )
    if spark_type is None and column.schema is None and column.schema_version is None:
        if formats.registry is None:
            raise OptionError("set schema, or type to the type of the column")
        for is_set, name in (
            (formats.auto_register_schemas, "auto.register.schemas"),
            (formats.normalize_schemas, "normalize.schemas"),
        ):
            if is_set:
                raise OptionError(
                    f"option {name}=true needs a schema, and a function cannot see the type of its "
                    "column: set type= (as type=df.schema['value'].dataType) or schema=. Without "
                    f"{name} rows are written with the subject's latest version"
                )
        formats = replace(formats, use_latest_version=True)
    arrow_type = None if spark_type is None else to_arrow_type(spark_type, "the column")
    column_name = data if isinstance(data, str) else "of the function"
    with open_registry(formats.registry) as registry:
        try:
            plan = replace(
                encode_plan(formats, column, None, arrow_type, registry), column=column_name
            )
        except (OptionError, SchemaError) as error:
            raise error.__class__(
                f"{error} (column value is the function's, valueSchema its argument schema)"
            ) from error
    if arrow_type is None:
        arrow_type = format_module(format).arrow_type(
            plan.schema, message=plan.writer.message, depth=depth
        )
    return _make_udf(_EncodeFunction(plan), types.BinaryType(), arrow_type)(data)


def _spark_type(type: _Type) -> DataType | None:
    """Return Spark's type. Text is parsed as DDL: "id bigint, name string"."""
    if not isinstance(type, str):
        return type
    return DataType.fromDDL(type)


# --- in the query -------------------------------------------------------------------------------


class _DecodeFunction:
    """A function that decodes an array of payloads. Spark pickles it into tasks.

    `null_for_bad`: payloads that cannot be decoded become null, and raise no BadRecordError.
    """

    def __init__(
        self, plan: ColumnPlan, registry: RegistryClient | None, null_for_bad: bool
    ) -> None:
        self._plan, self._registry, self._null_for_bad = plan, registry, null_for_bad
        self._decoder: ColumnDecoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def __call__(self, payloads: pa.Array) -> pa.Array:
        """Return the decoded values. Raises BadRecordError, also if the values of a batch of Spark
        are larger than one array may be."""
        if self._decoder is None:
            registry = self._registry
            self._decoder = ColumnDecoder(
                self._plan, None if registry is None else lambda: registry
            )
        payloads = as_binary(payloads, "payload")
        decoder = self._decoder

        def decode(start: int, stop: int) -> pa.Array:
            """Return the values of the payloads from row `start` to `stop`."""
            part = payloads.slice(start, stop - start)
            decoded = decoder.decode(part.cast(pa.binary()), None)
            if decoded.bad and not self._null_for_bad:
                bad = decoded.bad[0]
                raw = part[bad.row].as_py()
                raise BadRecordError(
                    f"a payload of {len(raw)} bytes{bad.writer.note}: {bad.reason}. "
                    "onBadRecord=null gives null for such payloads"
                )
            return decoded.values

        arrays: list[pa.Array] = []
        # Arrow's offsets have 32 bits.
        budget_bytes = min(_MAX_VALUE_BYTES + payloads.nbytes, (1 << 31) - 1)
        for start, stop in _row_ranges(payloads):
            for values in in_pieces(decode, start, stop):
                arrays.append(values)
                budget_bytes -= values.nbytes
                if budget_bytes < 0:
                    raise BadRecordError(
                        f"{len(payloads):,} payloads of {payloads.nbytes:,} bytes have too large "
                        "values for one batch of Spark: set "
                        "spark.sql.execution.arrow.maxRecordsPerBatch to fewer"
                    )
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


class _UnwrapFunction(_DecodeFunction):
    """A function that decodes envelopes to structs of the table's columns and change."""

    def __call__(self, payloads: pa.Array) -> pa.Array:
        from sparkkafka.spark.read.change_columns import unwrapped_values

        return unwrapped_values(super().__call__(payloads), payloads)


class _EncodeFunction:
    """A function that encodes an array of values. Spark pickles it into tasks."""

    def __init__(self, plan: EncodePlan) -> None:
        self._plan = plan
        self._encoder: ColumnEncoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoder": None}

    def __call__(self, values: pa.Array) -> pa.Array:
        """Return the payloads. Raises EncodeError for a value that the schema does not allow."""
        if self._encoder is None:
            self._encoder = ColumnEncoder(self._plan)
        payloads, _ = self._encoder.encode(values, None, scope="batch")  # there are no headers
        return payloads


def _row_ranges(payloads: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, (first row, end), of about 4 MiB and at most 16,384 rows, which are
    decoded in one step; one empty range if there are no payloads."""
    count = len(payloads)
    step = max(1, min(1 << 14, count * 4 * 2**20 // max(1, payloads.nbytes)))
    for start in range(0, max(count, 1), step):
        yield start, min(start + step, count)


def _make_udf(function: _ArrayFunction, returned: DataType, argument: pa.DataType) -> _Udf:
    """Return a UDF that calls `function` with the Arrow arrays of a column. `argument` is the type
    of the column, `returned` that of the result. Spark names the result's column after the inner
    function, `column` or `row`."""
    if hasattr(functions, "arrow_udf"):  # Spark 4.1

        def column(argument: pa.Array) -> pa.Array:
            return function(argument)

        udf: _Udf = functions.arrow_udf(column, returnType=returned)
        return udf
    if argument == pa.binary():
        return _make_pandas_udf(function, returned)
    return _make_python_udf(function, argument)


def _make_pandas_udf(function: _ArrayFunction, returned: DataType) -> _Udf:
    """Return a pandas UDF of a binary column, for Spark 4.0. Its result is the field of a struct,
    since pandas has no null struct."""
    from pyspark.sql.pandas.functions import pandas_udf

    try:
        pandas: Any = import_module("pandas")
    except ModuleNotFoundError as error:
        raise OptionError(
            "functions that decode a column need pandas on Spark 4.0: pip install 'pandas<3' for "
            "the driver and the workers, or use Spark 4.1 or later, which needs no pandas"
        ) from error

    def frame(payloads: Any) -> Any:
        """Decode a pandas Series of payloads into a DataFrame with the one column `value`."""
        values = function(pa.array(payloads.tolist(), pa.binary(), from_pandas=True))
        rows = values.to_pylist(maps_as_pydicts="strict")
        return pandas.DataFrame({"value": pandas.Series(rows, dtype=object)})

    frame.__annotations__ = {"payloads": pandas.Series, "return": pandas.DataFrame}
    make: Any = pandas_udf
    udf = make(frame, returnType=types.StructType().add("value", returned))

    def apply(data: Column | str) -> Column:
        result: Column = udf(data)["value"]
        return result

    return apply


def _make_python_udf(function: _ArrayFunction, argument_type: pa.DataType) -> _Udf:
    """Return a UDF, for Spark 4.0, that calls `function` with one row of `argument_type` at a time.
    It returns binary, and null for null. (In pandas, times in structs lose their zone.)"""
    spark_type = from_arrow_type(argument_type)

    def row(value: Any) -> bytes | None:
        """Return the value of one row as bytes."""
        if value is None:
            return None
        values = pa.array([_for_arrow(value, spark_type)], argument_type)
        encoded: bytes | None = function(values)[0].as_py()
        return encoded

    row.__annotations__ = {}  # Spark reads them, and warns about those that are strings
    python_udf: _Udf = functions.udf(row, types.BinaryType())
    return python_udf


def _for_arrow(value: Any, spark_type: DataType) -> Any:
    """Return a value that Spark hands to a Python UDF as Arrow takes it: times, which are in this
    process's time zone, in UTC, rows as dictionaries, and maps as pairs."""
    if value is None:
        return None
    if isinstance(spark_type, types.TimestampType):
        return value.astimezone(UTC)
    if isinstance(spark_type, types.StructType):
        return {
            field.name: _for_arrow(item, field.dataType)
            for field, item in zip(spark_type.fields, value, strict=True)
        }
    if isinstance(spark_type, types.ArrayType):
        return [_for_arrow(item, spark_type.elementType) for item in value]
    if isinstance(spark_type, types.MapType):
        return [(key, _for_arrow(item, spark_type.valueType)) for key, item in value.items()]
    return value
