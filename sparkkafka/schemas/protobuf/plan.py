"""Plans which fields of a message are read or written, as which Arrow types (see `types.py`)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.schema_errors import (
    MAX_FIELDS,
    RECURSION_HINT,
    child_path,
    names_hint,
    too_deep_error,
)
from sparkkafka.schemas.values import type_name

MAX_NAME: Final = 255
MAX_DEFAULT: Final = 1000
"""Characters of an enum's name and of a default: one or two payload bytes become that text."""


class Cardinality(enum.Enum):
    """How many values a field has: one, a list (a repeated field), or a map."""

    ONE = "one"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, eq=False)
class ProtobufField:
    """A field that is read or written.

    kind: a protobuf type (`types.INT32` …). special: what a message becomes, if not a struct.
    presence: an absent field is null, unless there is a `default`. Without presence, an absent
    field is `default`. oneof: the index of its oneof, -1 without one; such a field has no default.
    type: the column's; value_type: that of one value in it, which for a list is another (None for a
    map).
    message: of a nested message, special or not, or of a map's entry with its fields key and value.
    text_message: the descriptor of a message that becomes JSON text or bytes. is_json_text: the
    list or map of such messages becomes one JSON text.
    names: an enum's, by number; aliases: all its names, with their numbers. closed: a closed enum,
    whose unknown numbers count as absent.
    checks_range: the writer's field has another range or encoding, so a number that does not fit 32
    bits is a bad value. Otherwise such a number is cut to 32 bits.
    """

    number: int
    name: str
    path: str
    kind: int
    cardinality: Cardinality
    presence: bool
    required: bool
    default: Any
    oneof: int
    packed: bool
    special: types.Special | None
    message: ProtobufMessage | None
    names: dict[int, str]
    aliases: tuple[tuple[str, int], ...]
    closed: bool
    text_message: Any
    is_json_text: bool
    type: pa.DataType
    value_type: pa.DataType | None
    checks_range: bool = False

    @cached_property
    def max_name_size(self) -> int:
        """Characters of the longest name that a number becomes; 0 if it stays a number."""
        if self.value_type is None or not pa.types.is_string(self.value_type):
            return 0
        return max(map(len, self.names.values()), default=0)

    @property
    def text_message_name(self) -> str:
        """The name of `text_message`, for messages."""
        is_json = self.special is types.Special.JSON
        return str(self.text_message.name if is_json else self.text_message.full_name)

    @cached_property
    def text_message_class(self) -> Any:
        """The runtime's class of `text_message`."""
        protobuf = library()
        if self.special is types.Special.JSON:
            return getattr(protobuf.struct_pb2, self.text_message.name)
        return protobuf.message_factory.GetMessageClass(self.text_message)


@dataclass(frozen=True, eq=False)
class ProtobufMessage:
    """A message that is read or written, as a struct of the type `type`. `fields` are in its order.
    `skipped`: (number, wire type) of all other fields of the message."""

    full_name: str
    descriptor: Any
    fields: tuple[ProtobufField, ...]
    skipped: tuple[tuple[int, int], ...]
    type: pa.StructType


def plan(
    descriptor: Any, target: pa.DataType | None, *, writing: bool = False, depth: int | None = None
) -> ProtobufMessage:
    """Plan how a message is read as `target`, or written from it. None: all fields are read, with
    `depth` levels of recursive messages, the outermost counted, and JSON text for the next. Raises
    SchemaError for a message that is recursive or too deep, OptionError for a `target` that does
    not fit."""
    return _Planner(writing, depth).plan_message(descriptor, target, (), "")


class _Planner:
    """Plans one message and all in it. `parents`: the full names of the messages around it, the
    outermost first; `path`: the path of the field whose message it is, "" for the outermost."""

    def __init__(self, writing: bool, depth: int | None) -> None:
        self.field_count = 0  # of all messages planned so far, which is limited
        self.writing = writing  # else reading
        self.depth = depth  # recursive.fields.max.depth
        self.is_recursive = cache(types.is_recursive)
        self.check_names = cache(_check_names)

    def plan_message(
        self, descriptor: Any, target: pa.DataType | None, parents: tuple[str, ...], path: str
    ) -> ProtobufMessage:
        """Plan a message of type `descriptor` as the struct `target` (None: as one with all of its
        fields, up to `depth` levels of recursion). Raises SchemaError for a message that is
        recursive or has too many levels or fields, OptionError for a `target` that does not fit."""
        name = descriptor.full_name
        depth = self.depth if target is None else None
        if target is None and depth is None and name in parents:
            raise SchemaError(
                f"field {path}: message {name} contains itself, which no Spark type can. "
                f"{RECURSION_HINT}"
            )
        if len(parents) >= types.MAX_LEVELS:
            if depth is not None:
                raise too_deep_error(depth, f"nests in more than {types.MAX_LEVELS} levels")
            raise SchemaError(
                f"field {path}: messages are nested in more than {types.MAX_LEVELS} levels"
            )
        if target is not None and not pa.types.is_struct(target):
            raise OptionError(
                f"{path or name} is a message, which becomes a struct, not {type_name(target)}"
            )
        parents = (*parents, name)
        known = {field.name: field for field in descriptor.fields}
        if target is None:
            fields = [self.plan_field(field, None, parents, path) for field in known.values()]
        else:
            fields = []
            for column in target:
                if column.name not in known:
                    hint = names_hint(column.name, known)
                    if not known:
                        hint += "; if another message is meant, name it in valueSchemaMessage"
                    raise OptionError(
                        f"message {path or name} has no field {column.name!r}: {hint}"
                    )
                fields.append(self.plan_field(known[column.name], column.type, parents, path))
        self.field_count += len(known)
        if self.field_count > MAX_FIELDS:
            if depth is not None:
                raise too_deep_error(depth, f"has more than {MAX_FIELDS:,} fields")
            raise SchemaError(f"{parents[0]} has more than {MAX_FIELDS} fields in all its messages")
        numbers = {field.number for field in fields}
        skipped: list[tuple[int, int]] = []
        for field in known.values():
            if field.number not in numbers:
                wire_types = {types.FIELD_TYPES[field.type].wire}
                if types.is_repeated(field):  # scalars may be packed, whatever the schema says
                    wire_types.add(types.LEN)
                skipped += [(field.number, wire) for wire in sorted(wire_types)]
        struct = target or pa.struct(
            [pa.field(field.name, field.type, nullable=not field.required) for field in fields]
        )
        return ProtobufMessage(name, descriptor, tuple(fields), tuple(skipped), struct)

    def plan_field(
        self,
        field: Any,
        target: pa.DataType | None,
        parents: tuple[str, ...],
        parent_path: str,
        options_field: Any = None,
    ) -> ProtobufField:
        """Plan a field as a column of type `target` (None: any). `options_field`: the field that
        has its options, which is the map for the value of a map."""
        path = child_path(parent_path, field.name)
        if types.is_map(field):
            return self.plan_map(field, target, parents, path)
        value_type = target
        if types.is_repeated(field):
            if self.becomes_json_text(field.message_type, target):
                texts = self.plan_field(field, pa.list_(pa.string()), parents, parent_path)
                return replace(texts, is_json_text=True, type=pa.string())
            if target is not None and not pa.types.is_list(target):
                raise OptionError(
                    f"field {path} is repeated, which becomes an array, not {type_name(target)}"
                )
            value_type = None if target is None else target.value_type
        special, message = None, None
        if field.message_type is not None:
            special = types.special_of(field.message_type) or self.special_of_recursive(
                field.message_type, value_type, parents
            )
            is_struct = value_type is not None and pa.types.is_struct(value_type)
            # The message's fields are columns; those of google.protobuf.Struct only of a struct.
            if special not in types.FROM_BYTES or (special is types.Special.JSON and is_struct):
                if is_struct:
                    special = None
                inside = None if special is not None else value_type
                if special is types.Special.WRAPPER and value_type is not None:
                    inside = pa.struct([pa.field("value", value_type)])
                message = self.plan_message(field.message_type, inside, parents, path)
        if special is not None:
            value_type = types.special_type(
                special, field, options_field or field, value_type, path, self.writing
            )
        elif message is not None:
            value_type = message.type
        else:
            value_type = types.scalar_type(field, value_type, path, self.writing)
        cardinality, column_type = Cardinality.ONE, value_type
        if types.is_repeated(field):
            cardinality = Cardinality.LIST
            column_type = target or pa.list_(pa.field("element", value_type, nullable=False))
        planned = _make_field(field, path, cardinality, special, message, column_type, value_type)
        # Rows without the field would be wrong. Only unsigned numbers are read as a narrower type.
        is_read_as_int = not self.writing and pa.types.is_integer(value_type)
        if is_read_as_int and (planned.default or 0) >= 1 << (value_type.bit_width - 1):
            raise OptionError(
                f"field {path}: its default {planned.default} does not fit {type_name(value_type)}"
            )
        return planned

    def special_of_recursive(
        self, descriptor: Any, target: pa.DataType | None, parents: tuple[str, ...]
    ) -> types.Special | None:
        """Return what a recursive message becomes, or None if it becomes a struct."""
        if target is None:
            is_text = self.depth is not None and parents.count(descriptor.full_name) >= self.depth
        else:
            is_text = bool(pa.types.is_string(target)) and self.is_recursive(descriptor)
        if is_text:
            self.check_names(descriptor)
            return types.Special.TEXT
        if target is not None and pa.types.is_binary(target) and self.is_recursive(descriptor):
            return types.Special.BYTES
        return None

    def becomes_json_text(self, descriptor: Any, target: pa.DataType | None) -> bool:
        """Return whether a list or map of these recursive messages becomes one JSON text."""
        if target is None or descriptor is None or not pa.types.is_string(target):
            return False
        return types.special_of(descriptor) is None and self.is_recursive(descriptor)

    def plan_map(
        self, field: Any, target: pa.DataType | None, parents: tuple[str, ...], path: str
    ) -> ProtobufField:
        """Plan a map as a column of type `target` (None: any). A map of recursive messages becomes
        one JSON text if `target` is a string."""
        entry = field.message_type
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if self.becomes_json_text(value.message_type, target):
            map_type = pa.map_(types.scalar_type(key, None, path), pa.string())
            texts = self.plan_map(field, map_type, parents, path)
            return replace(texts, is_json_text=True, type=pa.string())
        if target is not None and not pa.types.is_map(target):
            raise OptionError(f"field {path} is a map, not {type_name(target)}")
        key_type, value_type = (
            (None, None) if target is None else (target.key_type, target.item_type)
        )
        values = self.plan_field(value, value_type, parents, path, field)
        keys = self.plan_field(key, key_type, parents, path)
        # An entry always has both, if only as the type's zero.
        if value.message_type is None:
            values = replace(values, presence=False, default=value.default_value)
        if key.message_type is None:
            keys = replace(keys, presence=False, default=key.default_value)
        columns = [pa.field("key", keys.type, nullable=False), pa.field("value", values.type)]
        message = ProtobufMessage(entry.full_name, entry, (keys, values), (), pa.struct(columns))
        column_type = target or pa.map_(columns[0], pa.field("value", values.type, nullable=False))
        return _make_field(field, path, Cardinality.MAP, None, message, column_type, None)


def _make_field(
    field: Any,
    path: str,
    cardinality: Cardinality,
    special: types.Special | None,
    message: ProtobufMessage | None,
    column_type: pa.DataType,
    value_type: pa.DataType | None,
) -> ProtobufField:
    """Return the ProtobufField of a descriptor (`field`) with its default, oneof and enum, as a
    column of type `column_type`. `value_type`: the type of one value, which for a list or map
    differs. Raises SchemaError for a default or a name that is too long."""
    oneof, enum_type = field.containing_oneof, field.enum_type
    names = {} if enum_type is None else types.enum_names(enum_type)
    has_default = not field.has_presence or field.has_default_value  # otherwise absent is null
    default = None
    # A default would look like a member of a oneof that is set.
    if (
        cardinality is Cardinality.ONE
        and field.message_type is None
        and oneof is None
        and has_default
    ):
        default = field.default_value
    if isinstance(default, bytes) and field.type == types.STRING:
        raise SchemaError(f"field {path}: its default is not UTF-8")
    if isinstance(default, (str, bytes)) and len(default) > MAX_DEFAULT:
        raise SchemaError(f"field {path}: its default is longer than {MAX_DEFAULT} characters")
    if any(len(name) > MAX_NAME for name in names.values()):
        raise SchemaError(f"field {path}: its enum has a name of more than {MAX_NAME} characters")
    return ProtobufField(
        number=field.number,
        name=field.name,
        path=path,
        kind=field.type,
        cardinality=cardinality,
        presence=cardinality is Cardinality.ONE and field.has_presence,
        required=types.is_required(field),
        default=default,
        oneof=-1 if oneof is None else oneof.index,
        packed=cardinality is Cardinality.LIST and field.is_packed,
        special=special,
        message=message,
        names=names,
        aliases=()
        if enum_type is None
        else tuple((value.name, value.number) for value in enum_type.values),
        closed=enum_type is not None and enum_type.is_closed,
        text_message=field.message_type if special in types.FROM_BYTES else None,
        is_json_text=False,
        type=column_type,
        value_type=value_type,
    )


def _check_names(descriptor: Any) -> None:
    """Raises SchemaError for a name that is too long to be repeated in many texts."""
    for message in types.reachable_messages(descriptor):
        for field in message.fields:
            names = [field.name]
            if field.enum_type is not None:
                names += types.enum_names(field.enum_type).values()
            if any(len(name) > MAX_NAME for name in names):
                raise SchemaError(
                    f"message {message.full_name} has a field or enum with a name of more than "
                    f"{MAX_NAME} characters, which cannot become JSON text"
                )


# --- the writer's schema --------------------------------------------------------------------------


def resolve(writer: Any, message: ProtobufMessage) -> ProtobufMessage:
    """Plan how the reader's message is read from what the writer's descriptor writes, with fields
    matched by number. Raises SchemaError for a field whose bytes would be read as something else,
    or not at all: protobuf itself treats a field of another wire type as unknown."""
    known = {field.number: field for field in writer.fields}
    fields = []
    for field in message.fields:
        other = known.get(field.number)
        if other is None:
            fields.append(field)
            continue
        label = f"field {field.path} (number {field.number})"
        _check_field(
            label,
            other,
            field.kind,
            is_map=field.cardinality is Cardinality.MAP,
            is_repeated=field.cardinality is not Cardinality.ONE,
        )
        if field.special is types.Special.TEXT:
            # Text is made with the reader's fields; bytes stay as the writer wrote them.
            _check_nested(other.message_type, field.text_message, field.path, set())
        elif field.special not in (None, types.Special.BYTES):  # a well-known type
            is_same = types.special_of(other.message_type) is field.special
            if field.special is types.Special.JSON:  # Struct, Value or ListValue
                is_same = is_same and other.message_type.name == field.text_message.name
            if not is_same:
                raise SchemaError(
                    f"{label} is a {other.message_type.full_name} in the writer's schema, and not "
                    "in the reader's"
                )
        checks_range = types.VARINT32.get(field.kind) != types.VARINT32.get(other.type)
        inner = field.message
        if inner is not None and field.special in (None, types.Special.WRAPPER):
            inner = resolve(other.message_type, inner)
        fields.append(replace(field, message=inner, checks_range=checks_range))
    return replace(message, fields=tuple(fields))


def _check_field(label: str, writer: Any, kind: int, *, is_map: bool, is_repeated: bool) -> None:
    """Raises SchemaError if a reader's field of the protobuf type `kind` cannot read the bytes of
    the writer's field. `label` names the field in the error."""
    if types.is_map(writer) != is_map:
        raise SchemaError(f"{label} is a map on one side only")
    if types.is_repeated(writer) and not is_repeated:
        raise SchemaError(f"{label} is repeated in the writer's schema, and not in the reader's")
    written, read = types.FIELD_TYPES[writer.type], types.FIELD_TYPES[kind]
    if written.encoding != read.encoding:
        raise SchemaError(
            f"{label} is {written.name} in the writer's schema and {read.name} in the reader's, "
            "which read each other's bytes wrong"
        )


def _check_nested(writer: Any, reader: Any, path: str, seen: set[tuple[str, str]]) -> None:
    """Raises SchemaError if fields of a reader's message, at any level, cannot read the bytes of
    the writer's. `seen`: the pairs of messages that are checked already."""
    if (writer.full_name, reader.full_name) in seen:
        return
    seen.add((writer.full_name, reader.full_name))
    known = {field.number: field for field in writer.fields}
    for field in reader.fields:
        other = known.get(field.number)
        if other is None:
            continue
        label = f"field {path}: {field.full_name} (number {field.number})"
        _check_field(
            label,
            other,
            field.type,
            is_map=types.is_map(field),
            is_repeated=types.is_repeated(field),
        )
        if field.message_type is not None:
            _check_nested(other.message_type, field.message_type, path, seen)
