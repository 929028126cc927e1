"""The messages of a schema: found by name or by Confluent's message indexes.

Message indexes are a path: (1,) is the second message of the file, (1, 0) the first one nested in
it. Descriptors are those of protobuf's runtime, in a pool of each schema's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.bounds import of_schema
from sparkkafka.schemas.protobuf.compiler import descriptor_set, library
from sparkkafka.schemas.values import Schema

_KEPT: Final = 64


@dataclass(frozen=True, eq=False)
class File:
    """A schema's own file: its FileDescriptorProto, and the pool that has all messages."""

    proto: Any
    pool: Any

    def names(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Full name and message indexes of each message, nested ones after the outer one. Entries
        of maps have an index too, and are not named."""
        package = f"{self.proto.package}." if self.proto.package else ""
        open_: list[tuple[str, tuple[int, ...], Any]] = [(package, (), self.proto.message_type)]
        while open_:
            prefix, path, messages = open_.pop()
            for index, message in enumerate(messages):
                if message.options.map_entry:
                    continue
                name = prefix + message.name
                yield name, (*path, index)
                open_.append((f"{name}.", (*path, index), message.nested_type))


@lru_cache(_KEPT)
def file_of(schema: Schema) -> File:
    """Raises SchemaError for a schema that cannot be used, OptionError without the extra."""
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


def message_of(schema: Schema, message: tuple[int, ...]) -> Any:
    """The descriptor of the message with these indexes. Raises SchemaError if there is none."""
    file = file_of(schema)
    return file.pool.FindMessageTypeByName(_name_of(file, message))


def find_message(schema: Schema, name: str) -> Any:
    """The descriptor of the message with this full name, in any file; None: there is none."""
    try:
        return file_of(schema).pool.FindMessageTypeByName(name)
    except KeyError:
        return None


@of_schema
def message_name(schema: Schema, message: tuple[int, ...]) -> str:
    """The message's full name, with its package."""
    return _name_of(file_of(schema), message)


@of_schema
def message_names(schema: Schema) -> tuple[str, ...]:
    """Full names of all messages of the schema's own file, in their order."""
    found = sorted(file_of(schema).names(), key=lambda pair: pair[1])
    return tuple(name for name, _ in found)


@of_schema
def message_indexes(schema: Schema, name: str) -> tuple[int, ...]:
    """The message indexes of a message by its full name; the package, and outer messages, can be
    left out as long as one message only fits. Raises OptionError with near names."""
    found = dict(file_of(schema).names())
    wanted = name.removeprefix(".")
    if wanted in found:
        return found[wanted]
    fits = [full for full in found if full.endswith(f".{wanted}")]
    package = file_of(schema).proto.package
    if f"{package}.{wanted}" in fits:
        return found[f"{package}.{wanted}"]
    if len(fits) == 1:
        return found[fits[0]]
    if fits:
        raise OptionError(f"message {name!r} can be {' or '.join(fits)}: give the full name")
    near = difflib.get_close_matches(wanted, [*found, *(n.rpartition(".")[2] for n in found)], 3)
    shown = near or list(found)[:5]
    hint = f": near names are {', '.join(shown)}" if near else f": it has {', '.join(shown)}"
    raise OptionError(f"the schema has no message {name!r}{hint if shown else ''}")


def _name_of(file: File, message: tuple[int, ...]) -> str:
    level, name = file.proto.message_type, [file.proto.package] if file.proto.package else []
    if not level:
        raise SchemaError("the .proto declares no message")
    if not message:
        raise SchemaError("message indexes are empty: (0,) is the first message")
    for index in message:
        if not 0 <= index < len(level):
            where = ".".join(name) or "the file"
            raise SchemaError(
                f"message indexes {list(message)} lead nowhere: {where} has {len(level)} messages"
            )
        name.append(level[index].name)
        level = level[index].nested_type
    return ".".join(name)
