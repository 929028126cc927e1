"""Columns with a schema (valueFormat and keyFormat) on the driver: their types and schemas.

`typed_schema` returns the columns of a read to Spark, with the versions of the subjects that it
chose in the fields' metadata. Spark passes these to `typed_columns` with the schema, so that the
reader and all tasks agree, whatever is registered in between.

This needs Arrow, which planning of other reads does not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from sparkkafka import errors
from sparkkafka.client.deadline import Deadline
from sparkkafka.config import kinds
from sparkkafka.config.formats import ANY_WITH_SCHEMA, ColumnFormat, FormatOptions
from sparkkafka.config.options import ReadOptions, parse_read_options, parse_stream_options
from sparkkafka.config.source import FROM_EARLIEST, TO_LATEST
from sparkkafka.schemas.arrays import as_nullable
from sparkkafka.schemas.column import ColumnPlan, compile_for_tasks, decoder_of, format_module
from sparkkafka.schemas.envelopes import decode as envelopes
from sparkkafka.schemas.envelopes.debezium import CHANGE
from sparkkafka.schemas.envelopes.other_envelopes import FORMS
from sparkkafka.schemas.envelopes.semantic_types import Placeholder
from sparkkafka.schemas.framings import WriterId, unframe_column
from sparkkafka.schemas.registry import client
from sparkkafka.schemas.schema_choice import ChosenSchema, reader_schema, subject_of
from sparkkafka.schemas.values import Schema
from sparkkafka.spark.arrow_types import first_stricter_field, from_arrow_type, to_arrow_type
from sparkkafka.spark.read.change_columns import changes_schema, split_columns
from sparkkafka.spark.read.input_partitions import KafkaInputPartition, compile_pattern
from sparkkafka.spark.schema import (
    BAD_RECORD_TYPE,
    ReadColumn,
    columns_of_schema,
    schema_of_formats,
    spark_schema,
)

log = logging.getLogger(__name__)

PINS_KEY = "sparkkafka"
"""The key in a column's metadata of the schemas that `typed_schema` chose:
{topic: {"subject": …, "id": …, "version": …}}, or {"*": {}} of a sample of changes."""

ALL_TOPICS = "*"
"""Stands for the topic where all topics have the same schema."""

SAMPLE_ROWS = 1_000
"""The maximum number of records in the sample of valueSchema=infer."""
_SAMPLE_BYTES = 4 << 20

SUBJECT_CHECK_S = 60.0
"""The time between two checks of a running stream for newer versions of its subjects."""


def typed_schema(options_by_name: Mapping[str, Any]) -> StructType:
    """Return the columns of a read with these options. Raises OptionError, SchemaError,
    RegistryError."""
    # Spark does not say whether the read is a stream. Options are parsed as a stream's, unless one
    # of them is only for batch reads: then no option is warned of here that the read uses.
    batch_only = ("ending", "filterpushdown", "limitpushdown", "maxtimestampdisorder")
    is_batch = any(name.lower().startswith(batch_only) for name in options_by_name)
    parse = parse_read_options if is_batch else parse_stream_options
    options: ReadOptions = parse(options_by_name)
    kafka_schema = spark_schema(options.include_headers)
    formats = options.formats
    if formats is None:
        return kafka_schema
    if formats.unwraps and options.include_headers:
        raise errors.OptionError(
            "option includeHeaders has no effect with envelope.columns=row: remove it, or set "
            "envelope.columns=envelope"
        )
    with client.open_registry(formats.registry) as registry:
        read = _TypedRead(options, formats, registry)
        if formats.unwraps:
            value = read.typed_field(formats.value)
            key = read.key_field()
            schema = changes_schema(value, key, PINS_KEY, list(_added_columns(formats)))
            infers = {
                "valueSchema": formats.value.infer,
                "keySchema": key is not None and formats.key.infer,
            }
            if inferred := [name for name, is_inferred in infers.items() if is_inferred]:
                log.warning(
                    "%s=infer: by a sample of the records, the columns are %s. Fields that the "
                    "sample lacks are not read: name these columns, or better types, in "
                    ".schema(…), so that all runs use them",
                    " and ".join(inferred),
                    ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema),
                )
        else:

            def typed_field(column: ColumnFormat) -> StructField:
                """Return the field of a column with a format; bytes for an optional key without a
                schema."""
                if column.is_optional:
                    return read.key_field() or StructField(column.column, BinaryType())
                return read.typed_field(column)

            schema = schema_of_formats(kafka_schema, formats, typed_field)
    for name, spark_type in _added_columns(formats).items():
        schema = schema.add(name, spark_type)
    return schema


def _added_columns(formats: FormatOptions) -> dict[str, DataType]:
    """Return the columns that rescuedColumn and onBadRecord=column add to those of a Kafka source,
    with their types."""
    columns: dict[str, DataType] = {}
    if formats.rescued_column:
        columns["rescued"] = StringType()
    if formats.on_bad_record == kinds.COLUMN:
        columns["bad_record"] = BAD_RECORD_TYPE
    return columns


@dataclass(frozen=True)
class _TypedRead:
    """A read of columns with a schema: its options, and the client of the registry, which is open
    while their schemas are chosen."""

    options: ReadOptions
    formats: FormatOptions
    registry: client.RegistryClient | None

    @cached_property
    def table_topics(self) -> list[str] | None:
        """With envelope.columns=row, those topics of the read whose schema is that of a table's
        changes; None if all are, or if that is not known. (Heartbeats and transactions have topics
        of their own.)"""
        column = self.formats.value
        if (
            self.registry is None
            or column.schema is not None
            or column.envelope != kinds.DEBEZIUM
            or not self.formats.unwraps
        ):
            return None
        topics = _topics_of(self.options, column)
        if len(topics) < 2:
            return None
        module = format_module(column.format)
        with_rows = [
            topic
            for topic, chosen in self._choose_schemas(column, topics, {}).items()
            if envelopes.has_rows(module, chosen.schema, chosen.message)
        ]
        return with_rows if 0 < len(with_rows) < len(topics) else None

    def key_field(self) -> StructField | None:
        """Return the field of the keys of changes; None if records have none, or their type is not
        known and keyFormat is not set."""
        column = self.formats.key
        if not column.has_schema or (self.formats.unwraps and self.formats.envelope in FORMS):
            return None
        try:
            return self.typed_field(column)
        except errors.RegistryError as error:
            if not column.is_optional or error.code != client.SUBJECT_NOT_FOUND:
                raise
        except errors.OptionError:
            if not column.is_optional:
                raise
        log.info(
            "no type of keys is known, so change has no field key: set keyFormat and keySchema"
        )
        return None

    def typed_field(self, column: ColumnFormat) -> StructField:
        """Return the field of a column with a schema; its metadata has the chosen schemas' ids."""
        name = column.column
        if column.envelope and column.schema is None and self.registry is None:
            sampled = from_arrow_type(_infer_type(self.options, column))
            return StructField(name, sampled, True, {PINS_KEY: {ALL_TOPICS: {}}})
        if column.infer:
            return StructField(name, from_arrow_type(_infer_type(self.options, column)))
        if column.schema is None and self.registry is None:
            raise errors.OptionError(
                f"{name}Format={column.format} needs the type of {name}: call .schema('{name} "
                f"struct<…>'), or set {name}Schema to a JSON Schema or to infer, or "
                "schema.registry.url"
            )
        topics = self.table_topics or _topics_of(self.options, column)
        schemas = self._choose_schemas(column, topics, {})
        arrow_type = _common_type(column, schemas, self.formats.recursive_fields_max_depth)
        pins = {}
        for topic, chosen in schemas.items():
            if chosen.subject is not None:
                pins[topic] = {
                    "subject": chosen.subject,
                    **({"guid": chosen.guid.hex()} if chosen.guid else {"id": chosen.schema_id}),
                    "version": chosen.version or 0,
                }
                log.info(
                    "column %s of topic %s is read as version %s of the subject %s (%s)",
                    *(name, topic, chosen.version, chosen.subject),
                    WriterId(chosen.schema_id, chosen.guid),
                )
        metadata = {PINS_KEY: pins} if pins else None
        return StructField(name, from_arrow_type(arrow_type), True, metadata)

    def plans_by_topic(
        self,
        column: ColumnFormat,
        arrow_type: pa.DataType,
        pins: Mapping[str, Any],
        names: tuple[tuple[str, str], ...] = (),
    ) -> tuple[tuple[str, ColumnPlan], ...]:
        """Return how a column of type `arrow_type` is decoded, by topic. `pins`: the schemas that
        `typed_schema` has chosen, by topic, empty if the type is the user's own; `names`: pairs of
        a column of the envelope's rows and its semantic type (see `Envelope`)."""
        pinned_ids: dict[str, int | bytes] = {
            topic: bytes.fromhex(pin["guid"]) if "guid" in pin else int(pin["id"])
            for topic, pin in pins.items()
            if pin
        }
        if column.schema is None and (column.infer or self.registry is None):
            # JSON of the type that the user gave, or that was inferred.
            schemas = {ALL_TOPICS: ChosenSchema(Schema(column.format, ""))}
        else:
            topics = self.table_topics or _topics_of(self.options, column)
            if pinned_ids and set(topics) != set(pinned_ids):
                pins = pinned_ids = {}  # the field's metadata comes from a read of other topics
            schemas = self._choose_schemas(column, topics, pinned_ids)
        is_from_schema = bool(pins)  # with pins `arrow_type` comes from `typed_schema`
        return tuple(
            (topic, _plan(column, self.formats, chosen, arrow_type, is_from_schema, names))
            for topic, chosen in schemas.items()
        )

    def _choose_schemas(
        self, column: ColumnFormat, topics: Sequence[str], pinned_ids: Mapping[str, int | bytes]
    ) -> dict[str, ChosenSchema]:
        """Return the schema of each topic: the one whose id `typed_schema` has pinned
        (`pinned_ids`, by topic), else that of the options or of the subject."""
        schemas: dict[str, ChosenSchema] = {}
        # Topics often share a schema. It is pickled only once if it is the same object for all.
        known: dict[Schema, Schema] = {}
        for topic in topics:
            try:
                chosen = reader_schema(column, topic, self.registry, pinned_ids.get(topic))
            except errors.RegistryError as error:
                if error.code != client.SUBJECT_NOT_FOUND or topic == ALL_TOPICS:
                    raise
                text = f"topic {topic}: {error}{_unknown_topic_hint(self.options, topic)}"
                raise errors.RegistryError(text, status=error.status, code=error.code) from error
            schemas[topic] = replace(chosen, schema=known.setdefault(chosen.schema, chosen.schema))
        return schemas


def _topics_of(options: ReadOptions, column: ColumnFormat) -> list[str]:
    """Return the topics whose schemas are needed; only ALL_TOPICS if all have the same one."""
    if column.schema is not None or column.subject or column.infer:
        return [ALL_TOPICS]
    subscription = options.subscription
    if subscription.strategy == "assign":
        return sorted({topic for topic, _ in subscription.partitions})
    if subscription.strategy == "subscribe":
        return sorted(subscription.topics)
    from sparkkafka.client.cluster.cluster import Cluster
    from sparkkafka.spark.read.offset_reader import OffsetReader

    with Cluster(options.client) as cluster:
        offset_reader = OffsetReader(cluster, options)
        topics = offset_reader.with_attempts(
            "looking up the topics of the read", offset_reader.topics_of_pattern
        )
    if not topics:
        raise errors.OptionError(
            f"subscribePattern {subscription.pattern!r} matches no topic, so the subject of "
            f"column {column.column} is not known: set {column.column}Subject or "
            f"{column.column}Schema"
        )
    return sorted(topics)


def _unknown_topic_hint(options: ReadOptions, topic: str) -> str:
    """Return a hint if the topic does not exist in Kafka, else ""."""
    from sparkkafka.client.cluster.cluster import Cluster

    try:
        with Cluster(options.client) as cluster:
            deadline = Deadline(min(options.client.default_api_timeout_ms, 5_000))
            cluster.topics([topic], deadline, grace_ms=0)
    except errors.UnknownTopicError:
        return f". The topic {topic} does not exist in Kafka, either: is its name right?"
    except errors.KafkaError:  # the caller raises the registry's error
        pass
    return ""


def _common_type(
    column: ColumnFormat, schemas: Mapping[str, ChosenSchema], depth: int | None
) -> pa.DataType:
    """Return the type of all topics' schemas. Raises OptionError if they have several."""
    types = {topic: _type_of(column, chosen, depth) for topic, chosen in schemas.items()}
    first, arrow_type = next(iter(types.items()))
    for topic, other in types.items():
        if not as_nullable(other).equals(as_nullable(arrow_type)):
            name = column.column
            raise errors.OptionError(
                f"one column {name} cannot have the schemas of several topics: "
                f"{subject_of(column, first)} gives {from_arrow_type(arrow_type).simpleString()}, "
                f"{subject_of(column, topic)} gives {from_arrow_type(other).simpleString()}. Read "
                f"them one by one, or set {name}Subject or {name}Schema to one that fits all"
            )
        if other != arrow_type:
            arrow_type = as_nullable(arrow_type)  # fields that are NOT NULL in one schema only
    return arrow_type


def _type_of(column: ColumnFormat, chosen: ChosenSchema, depth: int | None) -> pa.DataType:
    """Return the type that a schema gives the column. `depth`: recursive.fields.max.depth."""
    module = format_module(column.format)
    try:
        if envelope := _envelope(column):
            return envelopes.full_type(module, envelope, chosen.schema, chosen.message, depth)
        arrow_type: pa.DataType = module.arrow_type(
            chosen.schema, message=chosen.message, depth=depth
        )
    except errors.SchemaError as error:
        source = f"subject {chosen.subject}" if chosen.subject else f"{column.column}Schema"
        raise errors.SchemaError(f"{source} cannot be a column: {error}") from error
    return arrow_type


def _envelope(
    column: ColumnFormat, names: tuple[tuple[str, str], ...] = ()
) -> envelopes.Envelope | None:
    """Return how a column of changes is read; None for another column. `names`: see `Envelope`."""
    if not column.envelope:
        return None
    return envelopes.Envelope(
        column.envelope, column.unwraps, names, Placeholder(column.placeholder)
    )


# --- the type of inferred JSON -------------------------------------------------------------------


def _infer_type(options: ReadOptions, column: ColumnFormat) -> pa.DataType:
    """Return the type that a sample of the topics' records gives the column: the first and last
    records of each partition. Raises OptionError if there are no records, and the errors of a
    read."""
    name = column.column
    sample_options = replace(
        options,
        formats=None,
        fail_on_data_loss=False,
        bind_offsets="plan",
        min_partitions=None,
        max_records_per_partition=None,
    )
    samples = _read_sample(sample_options, column)
    if not samples:  # a stream that starts at latest
        sample_options = replace(sample_options, starting=FROM_EARLIEST, ending=TO_LATEST)
        samples = _read_sample(sample_options, column)
    if not samples:
        option = f"option envelope={column.envelope}" if column.envelope else f"{name}Schema=infer"
        columns = "(…) with the columns" if column.unwraps else f"('{name} struct<…>')"
        raise errors.OptionError(
            f"{option}: no record has a {name}, so its type is not known. Call .schema{columns}, "
            f"or set {name}Schema to a JSON Schema"
        )
    module = format_module(column.format)
    if envelope := _envelope(column):
        keys: list[bytes] = []
        if column.unwraps and column.envelope in FORMS:
            keys = _read_sample(sample_options, replace(column, column="key"))
        sampled = envelopes.sample_type(module, envelope, samples, keys, infers=column.infer)
        if sampled is None and column.envelope in FORMS:
            raise errors.OptionError(
                f"the records of envelope={column.envelope} do not say the types of the columns: "
                f"call .schema(…) with the columns, or set {name}Schema to infer"
            )
        if sampled is None:
            raise errors.OptionError(
                f"the records of {name}Format={column.format} have no schema beside their payload, "
                f"so the types of the columns are not known: set schemas.enable=true in the "
                f"connector's {name} converter, or call .schema(…) with the columns, or set "
                f"{name}Schema to infer"
            )
        if not column.infer:
            return sampled
        arrow_type: pa.DataType = sampled
    else:
        arrow_type = module.infer(samples)
    if options.formats is not None and options.formats.unwraps:
        return arrow_type  # `typed_schema` warns of all columns
    log.warning(
        "%sSchema=infer: by a sample of %d records, column %s is %s. Fields that the sample lacks "
        "are not read: name this type, or a better one, in .schema(…), so that all runs use it",
        name,
        len(samples),
        name,
        from_arrow_type(arrow_type).simpleString(),
    )
    return arrow_type


def _read_sample(options: ReadOptions, column: ColumnFormat) -> list[bytes]:
    """Return the payloads of the sample, at most SAMPLE_ROWS and about _SAMPLE_BYTES."""
    from sparkkafka.spark.read.read_task import read_ranges
    from sparkkafka.spark.read.reader import KafkaBatchReader

    name = column.column
    columns = (ReadColumn(name),)
    # JSON without a frame passes with any framing.
    framing = kinds.CONFLUENT if column.framing == kinds.NO_FRAMING else column.framing
    ranges = [
        planned
        for planned in KafkaBatchReader(options, columns).partitions()
        if isinstance(planned, KafkaInputPartition)  # SmallRanges are empty ones
    ]
    payloads: list[bytes] = []
    size_bytes = 0
    ends = list(_range_ends(ranges))

    def payloads_of(planned: KafkaInputPartition) -> Iterator[bytes]:
        """Yield the payloads of a range's records, without the frames before them."""
        for batch in read_ranges(options, columns, (planned,)):
            for group in unframe_column(batch.column(0), None, name, framing, is_text=True).groups:
                yield from filter(lambda payload: payload is not None, group.payloads.to_pylist())

    for number, planned in enumerate(ends, 1):
        for payload in payloads_of(planned):
            payloads.append(payload)
            size_bytes += len(payload)
            if len(payloads) >= SAMPLE_ROWS:
                return payloads
            # Each range has its share: the last one has the newest fields.
            if size_bytes * len(ends) >= _SAMPLE_BYTES * number:
                break
    return payloads


def _range_ends(ranges: Sequence[KafkaInputPartition]) -> Iterator[KafkaInputPartition]:
    """Yield two ranges for each range: its first offsets and its last ones (the range itself if it
    is short), about SAMPLE_ROWS offsets in all."""
    if not ranges:
        return
    half = max(1, SAMPLE_ROWS // (2 * len(ranges)))
    for planned in ranges:
        if planned.count <= 2 * half:
            yield planned
            continue
        yield replace(planned, end=planned.start + half)
        yield replace(planned, start=planned.end - half)


# --- the columns of a reader --------------------------------------------------------------------


def typed_columns(
    schema: StructType, options: ReadOptions, formats: FormatOptions
) -> tuple[ReadColumn, ...]:
    """Return the columns that a schema names: one from `typed_schema`, or the user's own. `formats`
    are those of the options.

    Raises OptionError for a column that does not exist or cannot have its type, SchemaError,
    RegistryError.
    """
    if formats.unwraps:
        return _change_columns(schema, options, formats)
    both = (formats.value, formats.key)
    typed = {column.column: column for column in both if column.has_schema}
    # An optional key of bytes or text is not decoded: `typed_schema` found no schema for it.
    if (
        formats.key.is_optional
        and "key" in schema.names
        and isinstance(schema["key"].dataType, BinaryType | StringType)
    ):
        del typed["key"]
    _check_dead_letter_topic(options, formats.dead_letter_topic)
    added = _added_columns(formats)
    columns = columns_of_schema(
        schema,
        any_type=[*typed, *added],
        text_only=[column.column for column in both if column.format == kinds.STRING],
    )
    names = [column.name for column in columns]
    if formats.on_bad_record != kinds.FAIL:
        _check_on_bad_record(formats.on_bad_record, names, typed)
    _check_added_columns(schema, added)

    def with_plans(column: ReadColumn, read: _TypedRead) -> ReadColumn:
        """Return a column that a format decodes with its type and decoding plans, and any other
        column as it is."""
        name = column.name
        if name not in added and name not in typed:
            return column
        arrow_type = to_arrow_type(schema[name].dataType, name)
        if name in added:
            return replace(column, arrow_type=arrow_type)
        pins = schema[name].metadata.get(PINS_KEY, {})
        plans = read.plans_by_topic(typed[name], arrow_type, pins)
        return replace(column, arrow_type=arrow_type, plans=plans)

    with client.open_registry(formats.registry) as registry:
        read = _TypedRead(options, formats, registry)
        return tuple(with_plans(column, read) for column in columns)


def _change_columns(
    schema: StructType, options: ReadOptions, formats: FormatOptions
) -> tuple[ReadColumn, ...]:
    """Return the columns of changes (envelope.columns=row) that a schema names. Raises OptionError,
    SchemaError, RegistryError."""
    if options.filter_pushdown:
        raise errors.OptionError(
            "option filterPushdown has no effect with envelope.columns=row, whose columns are not "
            "those of Kafka: remove it, or set envelope.columns=envelope"
        )
    _check_dead_letter_topic(options, formats.dead_letter_topic)
    added = _added_columns(formats)
    _check_added_columns(schema, added)
    form = FORMS.get(formats.envelope)
    split = split_columns(
        schema,
        list(added),
        keys_from_rows=form is not None,
        has_lists=form is not None and form.has_lists,
    )
    pins = schema[CHANGE].metadata.get(PINS_KEY, {}) if CHANGE in schema.names else {}
    hidden = []
    with client.open_registry(formats.registry) as registry:
        read = _TypedRead(options, formats, registry)
        for column, arrow_type in ((formats.value, split.value), (formats.key, split.key)):
            if arrow_type is None:
                continue
            name = column.column
            if not column.has_schema:
                raise errors.OptionError(
                    "the schema has change.key, whose format is not known: set keyFormat to "
                    f"{ANY_WITH_SCHEMA}"
                )
            plans = read.plans_by_topic(column, arrow_type, pins.get(name, {}), split.names)
            hidden.append(ReadColumn(name, arrow_type=arrow_type, plans=plans, is_hidden=True))
    return (*split.columns, *hidden)


def _check_dead_letter_topic(options: ReadOptions, topic: str) -> None:
    """Raise OptionError if a read would read its own dead letters, which would be bad again, for
    ever."""
    subscription = options.subscription
    reads = topic in subscription.topics or topic in {name for name, _ in subscription.partitions}
    if subscription.strategy == "subscribePattern":
        reads = bool(topic) and bool(compile_pattern(subscription.pattern).search(topic))
    if reads:
        raise errors.OptionError(
            f"deadLetter.topic={topic} is one of the topics that are read, so its records would be "
            "read, and be bad, again: choose another name, or read others"
        )


def _check_on_bad_record(
    on_bad_record: str, names: Sequence[str], typed: Mapping[str, ColumnFormat]
) -> None:
    """Raise OptionError if onBadRecord has no effect, because none of the columns with a schema
    (`typed`) is among those that are read (`names`)."""
    option = f"option onBadRecord={on_bad_record} has no effect"
    if not typed:
        raise errors.OptionError(
            f"{option} on text: invalidUtf8=null gives null for what is not UTF-8"
        )
    if not set(typed) & set(names):
        raise errors.OptionError(
            f"{option}: the schema has no column {errors.some(typed, separator=' or ')}, so no "
            "record is decoded. Name the column in the schema, or remove onBadRecord"
        )


def _check_added_columns(schema: StructType, added: Mapping[str, DataType]) -> None:
    """Check that the schema has the columns that options add, with their types. Raises
    OptionError."""
    for name, spark_type in added.items():
        if name not in schema.names:
            option = "onBadRecord=column" if name == "bad_record" else "rescuedColumn=true"
            ddl = spark_type.simpleString().replace(":", ": ").replace(",", ", ")
            raise errors.OptionError(
                f"{option} needs the column {name} in the schema: add '{name} {ddl}', or remove "
                "the option"
            )
        actual = schema[name].dataType.simpleString()
        if actual != spark_type.simpleString():
            raise errors.OptionError(
                f"column {name!r} of the schema must be {spark_type.simpleString()}, not {actual}"
            )
    if "rescued" in schema.names and "value" not in schema.names:
        raise errors.OptionError("column rescued of the schema needs the column value beside it")


def column_plan(
    formats: FormatOptions,
    registry: client.RegistryClient | None,
    result_type: DataType | None,
    names: tuple[tuple[str, str], ...] = (),
) -> ColumnPlan:
    """Return how a function decodes a column, with the schema of the options or of the subject.
    `result_type`: the type of the result, None for the schema's own; `names`: those of `Envelope`.
    Raises OptionError, SchemaError, RegistryError."""
    column, depth = formats.value, formats.recursive_fields_max_depth
    if column.schema is None and registry is None:
        chosen = ChosenSchema(Schema(column.format, ""))
    else:
        chosen = reader_schema(column, "", registry)
    if result_type is not None:
        arrow_type = to_arrow_type(result_type, "the column")
    elif chosen.schema.text:
        arrow_type = to_arrow_type(from_arrow_type(_type_of(column, chosen, depth)), "the column")
    else:
        raise errors.OptionError(f"{column.format} without a schema needs the type of the column")
    return _plan(column, formats, chosen, arrow_type, result_type is None, names)


def _plan(
    column: ColumnFormat,
    formats: FormatOptions,
    chosen: ChosenSchema,
    arrow_type: pa.DataType,
    is_from_schema: bool,
    names: tuple[tuple[str, str], ...],
) -> ColumnPlan:
    """Return how a column of type `arrow_type` is decoded with the chosen schema.

    `is_from_schema`: `arrow_type` is the type that the schema gave, not the user's. `names`: those
    of `Envelope`. Raises OptionError and SchemaError for a type that the schema cannot give.
    """
    name, depth = column.column, formats.recursive_fields_max_depth
    rescues = formats.rescued_column and name == "value"
    plan = ColumnPlan(
        column=name,
        format=column.format,
        framing=column.framing,
        reader=chosen.schema,
        type=arrow_type,
        target=arrow_type,
        message=chosen.message,
        subject=chosen.subject,
        schema_id=chosen.schema_id,
        guid=chosen.guid,
        rest=rescues and not column.envelope,
        compiled=compile_for_tasks(chosen.schema),
        envelope=_envelope(column, names),
    )
    if plan.envelope is not None:
        if plan.envelope.unwraps and is_from_schema:
            struct = arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type
            columns = tuple(field.name for field in struct.field("row").type)
            plan = replace(plan, envelope=replace(plan.envelope, columns=columns))
        _check_nullable(arrow_type, as_nullable(arrow_type), name)
        decoder_of(plan)  # if the type does not fit, the read fails here, and not in each task
        return plan
    schema_type = as_nullable(arrow_type)  # JSON without a schema: any field may be missing
    is_same_type = True
    if chosen.schema.text:
        try:
            schema_type = _type_of(column, chosen, depth)
            is_same_type = as_nullable(schema_type).equals(as_nullable(arrow_type))
        except errors.SchemaError:  # perhaps of a field that is not read: the decoder checks that
            is_same_type = False
    if depth is not None and not is_same_type:
        raise errors.OptionError(
            f"option {kinds.DEPTH_OPTION} has no effect on the column {name}, whose type you give: "
            f"{from_arrow_type(arrow_type).simpleString()}. Remove one of them"
        )
    if not (is_from_schema and is_same_type):
        _check_nullable(arrow_type, schema_type, name)
    if is_same_type and chosen.schema.text and depth is None:
        plan = replace(plan, target=None)  # the decoder gives the schema's type by itself
    if plan.target is not None or rescues:
        # If a field of the type does not exist, the read fails here, and not in each task.
        try:
            decoder_of(plan)
        except (errors.OptionError, errors.SchemaError) as error:
            if not chosen.subject:
                raise
            raise type(error)(f"column {name}, subject {chosen.subject}: {error}") from None
    return plan


def _check_nullable(declared: pa.DataType, actual: pa.DataType, name: str) -> None:
    """Raise OptionError for a field of the column `name` that is NOT NULL in the type `declared`
    and may be null by the type `actual`."""
    path = first_stricter_field(declared, actual, name)
    if path is not None:
        raise errors.OptionError(
            f"{path} of the schema cannot be NOT NULL: records without it may exist"
        )


# --- newer versions of a stream's schemas ------------------------------------------------------


class NewerSchemas:
    """Checks in a thread whether subjects have newer versions than a stream's columns, and logs
    each of them once.

    A running stream keeps the schemas with which it started. A registry that cannot be reached is
    no error here: the stream needs it only for ids that it does not know yet.
    """

    def __init__(self, formats: FormatOptions, columns: tuple[ReadColumn, ...]) -> None:
        self._registry = formats.registry
        with_version = {
            format.column
            for format in (formats.key, formats.value)
            if format.schema_version is not None
        }
        self._plans = [  # those that use a subject's latest version
            plan
            for column in columns
            if column.name not in with_version
            for _, plan in column.plans
            if plan.schema_id is not None and plan.subject
        ]
        self._check_at_s = time.monotonic() + SUBJECT_CHECK_S
        self._logged: set[tuple[str | None, int | None]] = set()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Start a check in a thread if the last one is long enough ago. Returns immediately."""
        if not self._plans or time.monotonic() < self._check_at_s:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._check_at_s = time.monotonic() + SUBJECT_CHECK_S
        self._thread = threading.Thread(
            target=self._log_newer_versions, name="sparkkafka-newer-schemas", daemon=True
        )
        self._thread.start()

    def _log_newer_versions(self) -> None:
        """Look up the latest version of each subject, and log it once if a plan has another."""
        if self._registry is None:
            return
        options = replace(
            self._registry, api_timeout_ms=5_000, request_timeout_ms=5_000, max_retries=0
        )
        try:
            with client.connect(options) as registry:
                for plan in self._plans:
                    latest = registry.latest(plan.subject or "")
                    key = plan.subject, latest.id
                    if latest.id != plan.schema_id and key not in self._logged:
                        self._logged.add(key)
                        log.warning(
                            "subject %s has a newer version, %s (schema id %d); this query "
                            "continues with schema id %d, and uses the newer one after its next "
                            "start",
                            *(plan.subject, latest.version, latest.id, plan.schema_id),
                        )
        except errors.KafkaError as error:
            log.debug("newer versions of schemas were not looked up: %s", error)
