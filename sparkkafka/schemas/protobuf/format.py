"""The interface of Protobuf (see `schemas/values.py`), and the messages of a schema.

Messages are found by name or by Confluent's message indexes, which are a path: (1,) is the second
message of the file, (1, 0) the first one nested in it. Descriptors are those of protobuf's runtime,
in a pool of each schema's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf.compiler import compiled, descriptor_set, library
from sparkkafka.schemas.protobuf.decode import ProtobufDecoder
from sparkkafka.schemas.protobuf.encode import ProtobufEncoder
from sparkkafka.schemas.protobuf.plan import plan, resolve
from sparkkafka.schemas.protobuf.types import field_meta, schema_of
from sparkkafka.schemas.schema_errors import check_levels, names_hint, schema_errors
from sparkkafka.schemas.values import FIRST_MESSAGE, Decoder, Encoder, Schema

__all__ = [
    "arrow_type",
    "compiled",
    "decoder",
    "encoder",
    "glue_messages",
    "inline_tags",
    "message_indexes",
    "message_name",
    "schema_of",
]


@schema_errors("Protobuf schema")
def arrow_type(
    schema: Schema, *, message: tuple[int, ...] = FIRST_MESSAGE, depth: int | None = None
) -> pa.DataType:
    """Return the struct that a message becomes. Raises SchemaError for one that cannot."""
    return check_levels(plan(_find_by_indexes(schema, message), None, depth=depth).type, depth)


@schema_errors("Protobuf schema")
def decoder(
    writer: Schema,
    reader: Schema | None,
    target: pa.DataType | None,
    *,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """Return a decoder of the reader's fields, which are matched by number.

    `message`: the indexes of the message in the writer's schema; the reader's message is that of
    the same name. Raises SchemaError if there is none, or if a reader's field would read the
    writer's bytes wrong.
    """
    if rest:
        raise OptionError("Protobuf has no rest: unknown fields have no names")
    written = _find_by_indexes(writer, message)
    if reader is None or reader == writer:
        return ProtobufDecoder(plan(written, target))
    try:
        own_message = file_of(reader).pool.FindMessageTypeByName(written.full_name)
    except KeyError:
        raise SchemaError(f"the reader's schema has no message {written.full_name}") from None
    return ProtobufDecoder(resolve(written, plan(own_message, target)))


@schema_errors("Protobuf schema")
def encoder(
    schema: Schema, source: pa.DataType, *, message: tuple[int, ...] = FIRST_MESSAGE
) -> Encoder:
    """Return an encoder of a struct, whose columns are fields by name. Raises OptionError for a
    column that the message lacks, or whose type does not fit, and for a required field without a
    column."""
    return ProtobufEncoder(plan(_find_by_indexes(schema, message), source, writing=True))


@schema_errors("Protobuf schema")
def inline_tags(schema: Schema) -> dict[str, frozenset[str]]:
    """Return the tags in Confluent's option `(confluent.field_meta)` by the fields' full names,
    `package.Message.field`, for the file's messages and all messages in their fields. Raises
    SchemaError for a schema that cannot be used."""
    file = file_of(schema)
    tags_by_path: dict[str, frozenset[str]] = {}
    seen: set[str] = set()
    waiting: list[Any] = [file.pool.FindMessageTypeByName(name) for name, _ in file.messages()]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            meta = field_meta(field)
            if meta is not None and meta.tags:
                tags_by_path[field.full_name] = frozenset(meta.tags)
            if field.message_type is not None:
                waiting.append(field.message_type)
    return tags_by_path


# --- messages of a schema -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class File:
    """A schema's own file: its FileDescriptorProto, and the pool that has all messages."""

    proto: Any
    pool: Any

    def messages(self, *, with_entries: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the full name and message indexes of each message, nested ones after the outer one.
        Entries of maps are messages with an index too, and are left out unless `with_entries`."""
        package = f"{self.proto.package}." if self.proto.package else ""
        waiting: list[tuple[str, tuple[int, ...], Any]] = [(package, (), self.proto.message_type)]
        while waiting:
            prefix, path, messages = waiting.pop()
            for index, message in enumerate(messages):
                if message.options.map_entry and not with_entries:
                    continue
                name = prefix + message.name
                yield name, (*path, index)
                waiting.append((f"{name}.", (*path, index), message.nested_type))

    def name_of(self, indexes: tuple[int, ...]) -> str:
        """Return the full name of the message with these indexes. Raises SchemaError."""
        level, names = self.proto.message_type, [self.proto.package] if self.proto.package else []
        if not level:
            raise SchemaError("the .proto declares no message")
        for index in indexes:
            if not 0 <= index < len(level):
                where = ".".join(names) or "the file"
                raise SchemaError(
                    f"message indexes {list(indexes)} do not exist: {where} has {len(level)} "
                    "messages"
                )
            names.append(level[index].name)
            level = level[index].nested_type
        return ".".join(names)


@lru_cache(64)
def file_of(schema: Schema) -> File:
    """Return a schema's own file, compiled and cached. Raises SchemaError for a schema that cannot
    be used, OptionError without the extra."""
    protobuf = library()
    data = descriptor_set(schema)
    try:
        files = protobuf.descriptor_pb2.FileDescriptorSet.FromString(data)
    except protobuf.message.DecodeError as error:
        raise SchemaError("the schema's text is damaged: it has no descriptors") from error
    if not files.file:
        raise SchemaError("the schema's text is damaged: it has no file")
    pool = protobuf.descriptor_pool.DescriptorPool()
    for file in files.file:
        try:
            pool.Add(file)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"{file.name} cannot be used: {str(error)[:500]}") from error
    return File(files.file[-1], pool)


def _find_by_indexes(schema: Schema, indexes: tuple[int, ...]) -> Any:
    """Return the descriptor of the message with these indexes. Raises SchemaError."""
    file = file_of(schema)
    return file.pool.FindMessageTypeByName(file.name_of(indexes))


@schema_errors("Protobuf schema")
def message_name(schema: Schema, message: tuple[int, ...]) -> str:
    """Return the message's full name, with its package."""
    return file_of(schema).name_of(message)


@schema_errors("Protobuf schema")
def glue_messages(schema: Schema) -> list[tuple[int, ...]]:
    """Return the indexes of all messages, sorted by their full names: a message's position there is
    its number for AWS Glue (MessageIndexFinder)."""
    return [path for _, path in sorted(file_of(schema).messages(with_entries=True))]


@schema_errors("Protobuf schema")
def message_indexes(schema: Schema, name: str) -> tuple[int, ...]:
    """Return the message indexes of a message by its full name. The package and outer messages can
    be left out if only one message fits. Raises OptionError with near names."""
    file = file_of(schema)
    indexes = dict(file.messages())
    target = name.removeprefix(".")
    if target in indexes:
        return indexes[target]
    fits = [full for full in indexes if full.endswith(f".{target}")]
    if f"{file.proto.package}.{target}" in fits:
        return indexes[f"{file.proto.package}.{target}"]
    if len(fits) == 1:
        return indexes[fits[0]]
    if fits:
        raise OptionError(f"message {name!r} can be {' or '.join(fits)}: give the full name")
    simple_names = dict.fromkeys(full.rpartition(".")[2] for full in indexes)
    hint = names_hint(target.rpartition(".")[2], simple_names)
    raise OptionError(f"the schema has no message {name!r}: {hint}")
