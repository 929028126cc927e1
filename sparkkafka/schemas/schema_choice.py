"""Chooses the schema with which a column is read or written. The driver does this once.

column_schema     the schema of the options, or the registry's
reader_schema     the same for a read, with a warning of the registry's rules
encode_plan       the schema and id of a write: the schema of the options, the registry's, or one
                  that is made from the rows' type
subject_of        the subject of a topic's schemas, by Confluent's subject name strategies
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from sparkkafka.config import kinds
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.errors import KafkaError, OptionError, RegistryError, SchemaError
from sparkkafka.schemas.avro.schema import UNION, fingerprint
from sparkkafka.schemas.avro.schema import parse as parse_avro_schema
from sparkkafka.schemas.column import (
    EncodePlan,
    compile_for_tasks,
    encrypted_fields,
    format_module,
    message_name,
    warn_of_rules,
)
from sparkkafka.schemas.data_contract import name_some
from sparkkafka.schemas.framings import WriterId
from sparkkafka.schemas.registry.client import RegisteredSchema, RegistryClient
from sparkkafka.schemas.values import FIRST_MESSAGE, Schema


@dataclass(frozen=True)
class ChosenSchema:
    """The schema of a column, with its subject, id and version if it comes from the registry."""

    schema: Schema
    message: tuple[int, ...] = FIRST_MESSAGE
    subject: str | None = None
    schema_id: int | None = None
    guid: bytes | None = None
    version: int | None = None


def reader_schema(
    column: ColumnFormat,
    topic: str,
    registry: RegistryClient | None,
    pinned: int | bytes | None = None,
) -> ChosenSchema:
    """Return the schema that determines a read column's type. Warns of rules that are not run.

    `pinned`: its id or GUID in the registry, if it was chosen before. Raises OptionError,
    SchemaError, RegistryError.
    """
    chosen = column_schema(column, topic, registry, pinned)
    version = "" if chosen.version is None else f", version {chosen.version}"
    whose = f"subject {chosen.subject}{version}"
    warn_of_rules(column.column, chosen.schema, whose, chosen.subject)
    return chosen


def column_schema(
    column: ColumnFormat,
    topic: str,
    registry: RegistryClient | None,
    pinned: int | bytes | None = None,
) -> ChosenSchema:
    """Return the schema of the options, or of the registry, as `reader_schema` does, but without a
    warning of rules."""
    if column.schema is not None:
        schema = Schema(column.format, column.schema)
        return ChosenSchema(schema, _message_indexes(column, schema))
    if registry is None:
        raise OptionError(
            f"{column.column}Format={column.format} needs a schema: set schema.registry.url, or "
            f"{column.column}Schema"
        )
    subject = subject_of(column, topic)
    if pinned is not None:
        if isinstance(pinned, bytes):
            schema = registry.by_guid(pinned, column.format)
            return ChosenSchema(schema, _message_indexes(column, schema), subject, guid=pinned)
        schema = registry.by_id(pinned, subject, column.format)
        return ChosenSchema(schema, _message_indexes(column, schema), subject, pinned)
    if column.schema_version is not None:
        registered = registry.version(subject, column.schema_version, column.format)
    else:
        registered = registry.latest(subject, column.format)
    # Where each schema has one id, its GUID is not needed.
    guid = registered.guid if registered.id is None else None
    indexes = _message_indexes(column, registered.schema)
    return ChosenSchema(
        registered.schema, indexes, subject, registered.id, guid, registered.version
    )


def _message_indexes(column: ColumnFormat, schema: Schema) -> tuple[int, ...]:
    """Return the indexes of the message that the option …SchemaMessage names, else of the first."""
    if not column.message:
        return FIRST_MESSAGE
    try:
        indexes: tuple[int, ...] = format_module(kinds.PROTOBUF).message_indexes(
            schema, column.message
        )
    except OptionError as error:
        raise OptionError(f"option {column.column}SchemaMessage: {error}") from None
    return indexes


# --- writing ------------------------------------------------------------------------------------


def encode_plan(
    formats: FormatOptions,
    column: ColumnFormat,
    topic: str | None,
    source: pa.DataType | None,
    registry: RegistryClient | None,
) -> EncodePlan:
    """Plan how a column of type `source` is written to `topic` (None: to topics that rows name).
    Without a type (None) the schema is not checked against it.

    The schema is that of the options, of the registry, or made from the type. Its id is looked up,
    or the schema is registered. Raises OptionError, SchemaError, RegistryError before any row is
    sent.
    """
    name = column.column
    if column.schema is not None:
        schema = Schema(column.format, column.schema)
    elif registry is not None and (column.schema_version is not None or formats.use_latest_version):
        subject = _WrittenSubject(registry, formats, column, _subject_of_write(column, topic, None))
        if column.schema_version is not None:
            subject.check_latest_rules()
            registered = registry.version(subject.name, column.schema_version, column.format)
        else:
            registered = registry.latest(subject.name, column.format)
        subject.check_rules(registered.schema)
        return _make_plan(column, source, registered.schema, registered)
    elif source is None:
        raise OptionError(f"column {name} needs a schema, or a type from which one is made")
    else:
        try:
            schema = format_module(column.format).schema_of(source, _record_name(topic, name))
        except SchemaError as error:
            raise SchemaError(f"column {name}: {error}") from error
    plan = _make_plan(column, source, schema, None)  # checks the schema
    if registry is None or column.framing in (kinds.SINGLE_OBJECT, kinds.NO_FRAMING):
        return plan
    subject = _WrittenSubject(registry, formats, column, _subject_of_write(column, topic, schema))
    subject.check_latest_rules()  # before anything is registered
    try:
        registered = subject.register_or_look_up(schema)
    except RegistryError as error:
        if error.status == 409 and column.schema is None:  # incompatible
            text = (
                f"{error}\nThe schema was made from the rows' type: its fields have no defaults, "
                "and a column that may be null has another type than one that may not. Write with "
                f"use.latest.version=true, or with a schema of your own in {name}Schema, whose new "
                "fields have defaults"
            )
            raise RegistryError(text, status=error.status, code=error.code) from None
        raise
    subject.check_rules(registered.schema)
    return _make_plan(column, source, schema, registered)


def _make_plan(
    column: ColumnFormat,
    source: pa.DataType | None,
    schema: Schema,
    registered: RegisteredSchema | None,
) -> EncodePlan:
    """Plan a write with a schema, in whose text the message is looked up. `registered`: its ids;
    None if it is not registered, so that payloads have no frame. Raises the errors of
    `encode_plan`."""
    message = _message_indexes(column, schema)
    if source is not None:
        try:
            format_module(column.format).encoder(schema, source, message=message)
        except (OptionError, SchemaError) as error:  # which names the field
            raise type(error)(f"column {column.column}: {error}") from error
    framing, writer = column.framing, WriterId(message=message)
    if framing == kinds.SINGLE_OBJECT:
        writer = WriterId(fingerprint(schema))
    elif framing == kinds.NO_FRAMING or registered is None:
        framing = kinds.NO_FRAMING
    elif framing in (kinds.CONFLUENT, kinds.HEADERS):
        # A frame before the payload has the id, which all readers know. A header has the GUID, if
        # the registry has GUIDs, as with Confluent's serializers.
        guid = registered.guid if framing == kinds.HEADERS else None
        writer = WriterId(None if guid else registered.id, guid, message)
    else:
        is_content = framing == kinds.APICURIO_CONTENT
        number = registered.content_id if is_content else registered.id
        writer = WriterId(number, registered.guid, message)
    compiled = compile_for_tasks(schema) or schema
    return EncodePlan(column.column, column.format, framing, compiled, writer)


class _WrittenSubject(NamedTuple):
    """The subject `name` of a registry, with whose schemas a column is written."""

    registry: RegistryClient
    formats: FormatOptions
    column: ColumnFormat
    name: str

    def check_latest_rules(self) -> None:
        """Raises SchemaError if rules of the latest version encrypt values: rows of a version
        without rules would be in plain text beside the encrypted ones."""
        try:
            contract = self.registry.contract(self.name)
        except RegistryError as error:
            if error.status != 403:
                raise
            return  # the user may only register; the response to that has the rules
        if contract is not None and contract.encryption_rules(writes=True):
            self.check_rules(self.registry.latest(self.name).schema)

    def check_rules(self, schema: Schema) -> None:
        """Raises SchemaError if rules of the schema would encrypt the values, unless the user
        allows plain text. Warns of rules that are not run."""
        rules = schema.contract.encryption_rules(writes=True) if schema.contract else ()
        column = self.column.column
        if rules and not self.formats.ignore_encryption_rules:
            raise SchemaError(
                f"subject {self.name} has rules that encrypt {encrypted_fields(schema, rules)}: "
                f"{name_some(rules)}. No rules of a registry are run here, so column {column} "
                "would be written in plain text: write it with Confluent's serializers, or set "
                "ignoreEncryptionRules=true if plain text is meant"
            )
        warn_of_rules(column, schema, f"subject {self.name}", self.name, writes=True)

    def register_or_look_up(self, schema: Schema) -> RegisteredSchema:
        """Register the schema (autoRegister), or look it up. Raises OptionError if the subject does
        not have the schema."""
        registry, normalize = self.registry, self.formats.normalize_schemas
        try:
            if self.formats.auto_register_schemas:
                return registry.register(self.name, schema, normalize=normalize)
            registered = registry.lookup(self.name, schema, normalize=normalize)
        except RegistryError as error:
            if error.status is not None:  # some registries say only "unknown type" of a format
                self._check_format()
            raise
        if registered is None:
            self._check_format()
            raise OptionError(self._not_registered_message(schema))
        return registered

    def _check_format(self) -> None:
        """Raises OptionError if the subject has schemas of another format."""
        try:
            latest = self.registry.latest(self.name)
        except KafkaError:  # the caller reports its own error
            return
        there, column = latest.schema.format, self.column.column
        if there != self.column.format:
            raise OptionError(
                f"the subject {self.name} has {there} schemas (version {latest.version}, the "
                f"latest), and column {column} is written as {self.column.format}: set "
                f"{column}Format={there}, or {column}Subject to another subject, or write to "
                "another topic"
            )

    def _not_registered_message(self, schema: Schema) -> str:
        """Return the message for a schema that the subject lacks: what to do, and what makes it
        incompatible."""
        column = self.column.column
        text = (
            f"the subject {self.name} has no version with the schema of column {column}: set "
            "auto.register.schemas=true to register it, use.latest.version=true to write the rows "
            f"with the latest version, or {column}Schema to a schema that is registered"
        )
        try:
            messages = self.registry.incompatibilities(self.name, schema)
        except RegistryError:
            return text
        return f"{text}. It is not compatible: {'; '.join(messages)}" if messages else text


def _subject_of_write(column: ColumnFormat, topic: str | None, schema: Schema | None) -> str:
    """Return the subject of a write. Raises OptionError or SchemaError if the strategy needs a
    topic or a record's name that is not known."""
    name = column.column
    if not column.subject and column.strategy != kinds.RECORD_NAME and topic is None:
        raise OptionError(
            f"{name}.subject.name.strategy={column.strategy} needs the topic, and the rows name "
            f"theirs: set the option topic, or {name}Subject"
        )
    record = ""
    if not column.subject and (
        column.strategy != kinds.TOPIC_NAME or column.framing == kinds.AZURE
    ):
        if schema is None:
            raise OptionError(
                f"{name}.subject.name.strategy={column.strategy} needs the record's name, and the "
                f"schema is the registry's: set {name}Subject"
            )
        if schema.format == kinds.PROTOBUF:
            record = message_name(schema, _message_indexes(column, schema))
        else:
            record = record_name(schema)
    return subject_of(column, topic or "", record)


def _record_name(topic: str | None, column: str) -> str:
    """Return the record's name in a schema that is made from the rows' type: TOPIC_value."""
    name = re.sub("[^A-Za-z0-9_]", "_", f"{topic}_{column}" if topic else column)
    return name if not name[0].isdigit() else f"_{name}"


# --- subjects ----------------------------------------------------------------------------------
#
# Sources: TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy of Confluent's
# kafka-schema-serializer.


def subject_of(column: ColumnFormat, topic: str, record_name: str = "") -> str:
    """Return the subject of the column's schemas in this topic.

    `record_name`: the record's full name, if the strategy needs it. Raises SchemaError without it.
    """
    if column.subject:
        return column.subject
    if column.strategy == kinds.TOPIC_NAME and column.framing != kinds.AZURE:
        # AWS's serializers name the schema of keys and values after the topic.
        return (
            topic if column.framing in (kinds.GLUE, kinds.GLUE_ZLIB) else f"{topic}-{column.column}"
        )
    if not record_name:
        if column.framing == kinds.AZURE:
            raise SchemaError(
                f"{column.column}Framing={kinds.AZURE} needs a name for the schema in Azure: set "
                f"{column.column}Subject to it, or {column.column}Schema to a schema with a name"
            )
        raise SchemaError(
            f"{column.column}.subject.name.strategy={column.strategy} needs a schema with a name: "
            "a record of Avro, a message of Protobuf, or a JSON Schema with a title; set "
            f"{column.column}Subject, or the strategy {kinds.TOPIC_NAME}"
        )
    if column.strategy == kinds.RECORD_NAME or column.framing == kinds.AZURE:
        # Azure's serializers name a schema after the record.
        return record_name
    return f"{topic}-{record_name}"


def record_name(schema: Schema) -> str:
    """Return the full name of an Avro schema (the type's for a primitive), or the title of a JSON
    Schema; "" if it has none, and for Protobuf, whose text would have to be compiled."""
    if schema.format == kinds.AVRO:
        try:
            node = parse_avro_schema(schema)
        except SchemaError:  # which is reported where the schema is used
            return ""
        return node.name or ("" if node.kind == UNION else node.kind)
    if schema.format != kinds.JSON:
        return ""
    try:
        parsed = json.loads(schema.text)
    except (ValueError, RecursionError):
        return ""
    title = parsed.get("title") if isinstance(parsed, dict) else None
    return title if isinstance(title, str) else ""
