"""Planning of columns with a schema: valueFormat and keyFormat. Runs on the driver.

`typed_schema` answers Spark's question for the columns of a read and notes in the field's metadata
which versions of which subjects it chose; Spark hands these to `typed_columns` with the schema, so
that the reader and all tasks agree, whatever is registered in between.

This needs Arrow, which planning of other reads does not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from sparkkafka.client.deadline import Deadline
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.kinds import COLUMN, FAIL, STRING
from sparkkafka.config.options import ReadOptions, parse_read_options, parse_stream_options
from sparkkafka.errors import (
    KafkaError,
    OptionError,
    RegistryError,
    SchemaError,
    UnknownTopicError,
    some,
)
from sparkkafka.schemas.choice import Chosen, reader_schema
from sparkkafka.schemas.column import ColumnPlan, decoder_of, format_module, prepared
from sparkkafka.schemas.registry.client import SUBJECT_NOT_FOUND, RegistryClient
from sparkkafka.schemas.registry.subjects import subject_of
from sparkkafka.schemas.values import Schema
from sparkkafka.spark.arrow_types import first_stricter_field, from_arrow, nullable, to_arrow
from sparkkafka.spark.schema import ReadColumn, chosen_columns, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

PINS = "sparkkafka"
"""In the metadata of a column: {topic: {"subject": …, "id": …, "version": …}}."""

_OF_BATCHES = ("ending", "filterpushdown", "maxtimestampdisorder")
"""How options begin that streams do not have."""

ALL_TOPICS = "*"

_LOOK_MS = 5_000
"""How long Kafka is asked for a topic that the registry has no subject of."""

BAD_RECORD = "bad_record"
RESCUED = "rescued"

BAD_RECORD_TYPE = StructType(
    [
        StructField("error", StringType()),
        StructField("schema_id", IntegerType()),
        StructField("raw", BinaryType()),
    ]
)


@contextmanager
def open_registry(formats: FormatOptions) -> Iterator[RegistryClient | None]:
    """The registry's client; None if there is no registry."""
    if formats.registry is None:
        yield None
        return
    with RegistryClient(formats.registry) as registry:
        yield registry


def typed_schema(given: Mapping[str, Any]) -> StructType:
    """The columns of a read with these options. Raises OptionError, SchemaError, RegistryError."""
    # Spark does not say whether it asks for a stream. Options of a stream are taken as such, so
    # that nothing is said of them; a reader looks at them again.
    batch = any(name.lower().startswith(_OF_BATCHES) for name in given)
    options = parse_read_options(given) if batch else parse_stream_options(given)
    plain = spark_schema(options.include_headers)
    formats = options.formats
    if formats is None:
        return plain
    fields = []
    with open_registry(formats) as registry:
        for field in plain.fields:
            column = column_format(formats, field.name)
            if column is None:
                fields.append(field)
            elif column.format == STRING:
                fields.append(StructField(field.name, StringType()))
            elif column.has_schema:
                fields.append(_typed_field(column, options, registry))
            else:
                fields.append(field)
    if formats.rescued_column:
        fields.append(StructField(RESCUED, StringType()))
    if formats.on_bad_record == COLUMN:
        fields.append(StructField(BAD_RECORD, BAD_RECORD_TYPE))
    return StructType(fields)


def column_format(formats: FormatOptions, name: str) -> ColumnFormat | None:
    return {"key": formats.key, "value": formats.value}.get(name)


def _typed_field(
    column: ColumnFormat, options: ReadOptions, registry: RegistryClient | None
) -> StructField:
    name = column.column
    if column.infer:
        from sparkkafka.spark.read.sample import infer_type

        return StructField(name, from_arrow(infer_type(options, column)))
    if column.schema is None and registry is None:
        raise OptionError(
            f"{name}Format={column.format} needs the type of {name}: call .schema('{name} "
            f"struct<…>'), or set {name}Schema to a JSON Schema or to infer, or schema.registry.url"
        )
    chosen = _chosen(column, topics_of(options, column), options, registry, {})
    kind = _one_type(column, chosen, _depth_of(options.formats))
    pins = {
        topic: {"subject": one.subject, "id": one.schema_id, "version": one.version or 0}
        for topic, one in chosen.items()
        if one.schema_id is not None
    }
    for topic, one in chosen.items():
        if one.schema_id is not None:
            log.info(
                "column %s of topic %s is read as version %s of the subject %s (schema id %d)",
                name,
                topic,
                one.version,
                one.subject,
                one.schema_id,
            )
    return StructField(name, from_arrow(kind), True, {PINS: pins} if pins else None)


def topics_of(options: ReadOptions, column: ColumnFormat) -> list[str]:
    """The topics whose schemas are wanted; of one schema for all, ALL_TOPICS."""
    if column.schema is not None or column.subject or column.infer:
        return [ALL_TOPICS]
    subscription = options.subscription
    if subscription.strategy == "assign":
        return sorted({topic for topic, _ in subscription.partitions})
    if subscription.strategy == "subscribe":
        return sorted(subscription.topics)
    from sparkkafka.client.cluster.cluster import Cluster
    from sparkkafka.spark.read.offset_reader import topics_of_pattern, with_attempts
    from sparkkafka.spark.read.planning import compile_pattern

    pattern = compile_pattern(subscription.pattern)
    with Cluster(options.client) as cluster:
        found = with_attempts(
            cluster,
            options,
            "looking up the topics of the read",
            lambda deadline: topics_of_pattern(cluster, pattern, deadline),
        )
    if not found:
        raise OptionError(
            f"subscribePattern {subscription.pattern!r} matches no topic, so the subject of "
            f"column {column.column} is not known: set {column.column}Subject or "
            f"{column.column}Schema"
        )
    return sorted(found)


def _chosen(
    column: ColumnFormat,
    topics: Sequence[str],
    options: ReadOptions,
    registry: RegistryClient | None,
    pins: Mapping[str, int],
) -> dict[str, Chosen]:
    chosen: dict[str, Chosen] = {}
    # Many topics often have one schema, which is pickled once if it is one object.
    known: dict[Schema, Schema] = {}
    for topic in topics:
        try:
            one = reader_schema(column, topic, registry, pins.get(topic))
        except RegistryError as error:
            if error.code != SUBJECT_NOT_FOUND or topic == ALL_TOPICS:
                raise
            text = f"topic {topic}: {error}{_misspelt(options, topic)}"
            raise RegistryError(text, status=error.status, code=error.code) from error
        chosen[topic] = replace(one, schema=known.setdefault(one.schema, one.schema))
    return chosen


def _misspelt(options: ReadOptions, topic: str) -> str:
    """A sentence if Kafka says that there is no such topic, else ""."""
    from sparkkafka.client.cluster.cluster import Cluster

    limit_ms = min(options.client.default_api_timeout_ms, _LOOK_MS)
    try:
        with Cluster(options.client) as cluster:
            cluster.topics([topic], Deadline(limit_ms), grace_ms=0)
    except UnknownTopicError:
        return f". The topic {topic} does not exist in Kafka, either: is its name right?"
    except KafkaError:  # the registry's error says enough
        pass
    return ""


def _depth_of(formats: FormatOptions | None) -> int | None:
    return None if formats is None else formats.recursive_fields_max_depth


def _one_type(column: ColumnFormat, chosen: Mapping[str, Chosen], depth: int | None) -> pa.DataType:
    """The type that the schemas of all topics have. Raises OptionError if there are several."""
    found: dict[str, pa.DataType] = {}
    for topic, one in chosen.items():
        found[topic] = _type_of(column, one, depth)
    first, kind = next(iter(found.items()))
    for topic, other in found.items():
        if not nullable(other).equals(nullable(kind)):
            name = column.column
            raise OptionError(
                f"one column {name} cannot have the schemas of several topics: "
                f"{subject_of(column, first)} gives {from_arrow(kind).simpleString()}, "
                f"{subject_of(column, topic)} gives {from_arrow(other).simpleString()}. Read them "
                f"one by one, or set {name}Subject or {name}Schema to one that fits all"
            )
        if other != kind:
            kind = nullable(kind)  # what is NOT NULL in one of them only
    return kind


def _type_of(column: ColumnFormat, one: Chosen, depth: int | None) -> pa.DataType:
    try:
        kind: pa.DataType = format_module(column.format).arrow_type(
            one.schema, message=one.message, depth=depth
        )
    except SchemaError as error:
        whose = f"subject {one.subject}" if one.subject else f"{column.column}Schema"
        raise SchemaError(f"{whose} cannot be a column: {error}") from error
    return kind


# --- what the reader and the tasks get ----------------------------------------------------------


def typed_columns(schema: StructType, options: ReadOptions) -> tuple[ReadColumn, ...]:
    """The columns that a schema names: the one of `typed_schema`, or the user's own.

    Raises OptionError for a column that does not exist or cannot have its type, SchemaError,
    RegistryError.
    """
    formats = options.formats
    if formats is None:
        return chosen_columns(schema)
    both = (formats.value, formats.key)
    typed = {column.column: column for column in both if column.has_schema}
    _check_dead_letters(options, formats.dead_letter_topic)
    beside: dict[str, DataType] = {}
    if formats.rescued_column:
        beside[RESCUED] = StringType()
    if formats.on_bad_record == COLUMN:
        beside[BAD_RECORD] = BAD_RECORD_TYPE
    columns = chosen_columns(
        schema,
        free=[*typed, *beside],
        texts=[column.column for column in both if column.format == STRING],
    )
    names = [column.name for column in columns]
    if formats.on_bad_record != FAIL:
        _check_effect(formats.on_bad_record, names, typed)
    _check_sense(names, typed, beside)
    made = []
    with open_registry(formats) as registry:
        for column in columns:
            field = schema[column.name]
            if column.name in beside:
                made.append(replace(column, kind=_beside(field, beside[column.name])))
            elif column.name in typed:
                plans = _plans(typed[column.name], field, options, registry)
                kind = to_arrow(field.dataType, column.name)
                made.append(replace(column, kind=kind, plans=plans))
            else:
                made.append(column)
    return tuple(made)


def _check_dead_letters(options: ReadOptions, topic: str) -> None:
    """A read of its own dead letters would find them bad again, for ever."""
    subscription = options.subscription
    reads = topic in subscription.topics or topic in {name for name, _ in subscription.partitions}
    if subscription.strategy == "subscribePattern":
        from sparkkafka.spark.read.planning import compile_pattern

        reads = bool(topic) and bool(compile_pattern(subscription.pattern).search(topic))
    if reads:
        raise OptionError(
            f"deadLetter.topic={topic} is one of the topics that are read, so its records would be "
            "read, and be bad, again: choose another name, or read others"
        )


def _check_effect(
    on_bad_record: str, names: Sequence[str], typed: Mapping[str, ColumnFormat]
) -> None:
    option = f"option onBadRecord={on_bad_record} has no effect"
    if not typed:
        raise OptionError(f"{option} on text: invalidUtf8=null gives null for what is not UTF-8")
    if not set(typed) & set(names):
        raise OptionError(
            f"{option}: the schema has no column {some(typed, between=' or ')}, so no record is "
            "decoded, and none is found bad. Name the column in the schema, or leave onBadRecord "
            "out"
        )


def _beside(field: StructField, wanted: DataType) -> pa.DataType:
    if field.dataType.simpleString() != wanted.simpleString():
        raise OptionError(
            f"column {field.name!r} of the schema must be {wanted.simpleString()}, not "
            f"{field.dataType.simpleString()}"
        )
    return to_arrow(field.dataType, field.name)


def _check_sense(
    names: Sequence[str], typed: Mapping[str, ColumnFormat], beside: Mapping[str, DataType]
) -> None:
    for name, kind in beside.items():
        if name not in names:
            option = "onBadRecord=column" if name == BAD_RECORD else "rescuedColumn=true"
            raise OptionError(
                f"{option} needs the column {name} in the schema: add '{name} "
                f"{_ddl(kind)}', or remove the option"
            )
    if RESCUED in names and "value" not in names:
        raise OptionError(f"column {RESCUED} of the schema needs the column value beside it")


def _ddl(kind: DataType) -> str:
    if isinstance(kind, StructType):
        fields = (f"{one.name}: {one.dataType.simpleString()}" for one in kind.fields)
        return f"struct<{', '.join(fields)}>"
    return kind.simpleString()


def _plans(
    column: ColumnFormat, field: StructField, options: ReadOptions, registry: RegistryClient | None
) -> tuple[tuple[str, ColumnPlan], ...]:
    name = column.column
    kind = to_arrow(field.dataType, name)
    formats = options.formats
    depth = _depth_of(formats)
    rest = bool(formats and formats.rescued_column and name == "value")
    pins = {topic: int(one["id"]) for topic, one in (field.metadata or {}).get(PINS, {}).items()}
    if column.schema is None and (column.infer or registry is None):
        # JSON of the type that the user gave, or that was inferred.
        chosen = {ALL_TOPICS: Chosen(Schema(column.format, ""))}
    else:
        topics = topics_of(options, column)
        if pins and set(topics) != set(pins):
            pins = {}  # they belong to another read
        chosen = _chosen(column, topics, options, registry, pins)
    ready = {schema: prepared(schema) for schema in {one.schema for one in chosen.values()}}
    return tuple(
        (topic, _plan(column, one, ready[one.schema], kind, rest, depth, pinned=bool(pins)))
        for topic, one in chosen.items()
    )


def column_plan(
    formats: FormatOptions, registry: RegistryClient | None, wanted: DataType | None
) -> ColumnPlan:
    """How a column outside a read is decoded: with the schema of the options or of the subject, as
    `wanted` (None: all of it). Raises OptionError, SchemaError, RegistryError."""
    column, depth = formats.value, formats.recursive_fields_max_depth
    if column.schema is None and registry is None:
        chosen = Chosen(Schema(column.format, ""))
    else:
        chosen = reader_schema(column, "", registry)
    if wanted is not None:
        kind = to_arrow(wanted, "the column")
    elif chosen.schema.text:
        kind = to_arrow(from_arrow(_type_of(column, chosen, depth)), "the column")
    else:
        raise OptionError(f"{column.format} without a schema needs the type of the column")
    ready = prepared(chosen.schema)
    return _plan(column, chosen, ready, kind, False, depth, pinned=wanted is None)


def _plan(
    column: ColumnFormat,
    one: Chosen,
    ready: Schema | None,
    kind: pa.DataType,
    rest: bool,
    depth: int | None,
    *,
    pinned: bool,
) -> ColumnPlan:
    """`ready`: the prepared schema. `pinned`: the type is the schema's own."""
    name = column.column
    own = nullable(kind)
    same = True
    if one.schema.text:
        try:
            own = _type_of(column, one, depth)
            same = nullable(own).equals(nullable(kind))
        except SchemaError:  # of a field that is not asked for: else the decoder says so
            same = False
    path = first_stricter_field(kind, own, name) if not (pinned and same) else None
    if path is not None:
        raise OptionError(f"{path} of the schema cannot be NOT NULL: records without it may exist")
    plan = ColumnPlan(
        column=name,
        format=column.format,
        framing=column.framing,
        reader=one.schema,
        type=kind,
        wanted=None if same and one.schema.text and depth is None else kind,
        message=one.message,
        subject=one.subject,
        schema_id=one.schema_id,
        rest=rest,
        prepared=ready,
    )
    if plan.wanted is not None or rest:
        # Says here, not in each task, which field of the type does not exist.
        try:
            decoder_of(plan.format, plan.known, None, plan.wanted, plan.message, plan.rest)
        except (OptionError, SchemaError) as error:
            if not one.subject:
                raise
            raise type(error)(f"column {name}, subject {one.subject}: {error}") from None
    return plan
