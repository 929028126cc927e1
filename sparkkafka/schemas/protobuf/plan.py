"""Which fields of a message are read or written, and as which Arrow type.

Types are those of Spark's own Protobuf functions (SchemaConverters), with unsigned integers in the
next wider type and wrappers as nullable scalars, which are options there. See `types.py`.
"""

from __future__ import annotations

import difflib
import enum
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.bounds import RECURSION_HINT, too_deep_error
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.values import type_name

MAX_LEVELS: Final = 64
MAX_FIELDS: Final = 20_000
MAX_NAME: Final = 255
MAX_DEFAULT: Final = 1000
"""Characters of an enum's name and of a default: a byte or two of a payload become as many."""


class Count(enum.Enum):
    """How often a field stands in a message."""

    ONE = "one"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, eq=False)
class Field:
    """A field that is read or written.

    kind: a protobuf type (`types.INT32` …). special: what a well-known message becomes.
    presence: absent is null, unless there is a `default`; without presence absent is `default`.
    Members of a oneof have none.
    type: of the column. item: of one value (for a map: None).
    message: of a nested message, special or not, or a map's entry with its fields key and value.
    json: the simple name of a message that becomes JSON. nested: the descriptor of a message that
    contains itself and becomes text or bytes. joined: of a list or map of such texts, which is one
    text itself.
    names: of an enum, by number; aliases: all its names. closed: unknown numbers count as absent.
    exact: the writer's field has other numbers. One of 32 bits is not cut from these: what does not
    fit is a bad value.
    """

    number: int
    name: str
    path: str
    kind: int
    count: Count
    presence: bool
    required: bool
    default: Any
    oneof: int
    packed: bool
    special: types.Special | None
    message: Message | None
    names: dict[int, str]
    aliases: tuple[tuple[str, int], ...]
    closed: bool
    json: str | None
    nested: Any
    joined: bool
    type: pa.DataType
    item: pa.DataType | None
    exact: bool = False

    @cached_property
    def longest(self) -> int:
        """Characters of the longest name that a number becomes; 0 if it stays a number."""
        if self.item is None or not pa.types.is_string(self.item):
            return 0
        return max(map(len, self.names.values()), default=0)


@dataclass(frozen=True, eq=False)
class Message:
    """fields: in the order of `type`. skipped: numbers and wire types of others that are known."""

    full_name: str
    descriptor: Any
    fields: tuple[Field, ...]
    skipped: tuple[tuple[int, int], ...]
    type: pa.StructType


def plan(
    descriptor: Any,
    wanted: pa.DataType | None,
    *,
    writing: bool = False,
    depth: int | None = None,
) -> Message:
    """`wanted`: what is read, or given if the message is written; None: all, with messages that
    contain themselves to this `depth`, the outermost counted, and then as JSON text. Raises
    SchemaError for a message that is recursive or too deep, OptionError for what is wanted and
    cannot be."""
    return _Planner(writing, depth).message(descriptor, wanted, (), "")


class _Planner:
    def __init__(self, writing: bool, depth: int | None) -> None:
        self.fields = 0
        self.writing = writing
        self.depth = depth
        self.recurs = cache(types.recurs)
        self.check_names = cache(_check_names)

    def message(
        self, descriptor: Any, wanted: pa.DataType | None, above: tuple[str, ...], path: str
    ) -> Message:
        name = descriptor.full_name
        place = path or name
        if wanted is None and self.depth is None and name in above:
            raise SchemaError(
                f"field {path}: message {name} contains itself, which no Spark type can. "
                f"{RECURSION_HINT}"
            )
        if len(above) >= MAX_LEVELS:
            if wanted is None and self.depth is not None:
                raise too_deep_error(self.depth, f"nests in more than {MAX_LEVELS} levels")
            raise SchemaError(f"field {path}: messages are nested in more than {MAX_LEVELS} levels")
        if wanted is not None and not pa.types.is_struct(wanted):
            raise OptionError(
                f"{place} is a message, which becomes a struct, not {type_name(wanted)}"
            )
        above = (*above, name)
        known = {field.name: field for field in descriptor.fields}
        if wanted is None:
            fields = [self.field(field, None, above, path) for field in known.values()]
        else:
            fields = [self._wanted(known, column, above, place, path) for column in wanted]
        self.fields += len(known)
        if self.fields > MAX_FIELDS:
            if wanted is None and self.depth is not None:
                raise too_deep_error(self.depth, f"has more than {MAX_FIELDS:,} fields")
            raise SchemaError(f"{above[0]} has more than {MAX_FIELDS} fields in all its messages")
        taken = {field.number for field in fields}
        skipped = tuple(
            (field.number, wire)
            for field in known.values()
            if field.number not in taken
            for wire in sorted({types.WIRE[field.type], *_packed_wire(field)})
        )
        kept = wanted or pa.struct(
            [pa.field(field.name, field.type, nullable=not field.required) for field in fields]
        )
        return Message(name, descriptor, tuple(fields), skipped, kept)

    def _wanted(
        self, known: dict[str, Any], column: pa.Field, above: tuple[str, ...], place: str, path: str
    ) -> Field:
        field = known.get(column.name)
        if field is None:
            near = difflib.get_close_matches(column.name, list(known), 3)
            hint = f"near names are {', '.join(near)}" if near else f"it has {', '.join(known)}"
            if not known:
                hint = (
                    "it has no fields; if another message is meant, name it in valueSchemaMessage"
                )
            raise OptionError(f"message {place} has no field {column.name!r}: {hint[:500]}")
        return self.field(field, column.type, above, path)

    def field(
        self,
        field: Any,
        wanted: pa.DataType | None,
        above: tuple[str, ...],
        path: str,
        noted: Any = None,
    ) -> Field:
        """noted: the field that has the options; of a map's value that is the map."""
        parent, path = path, _join(path, field.name)
        if is_map(field):
            return self._map(field, wanted, above, path)
        item = wanted
        if types.is_repeated(field):
            if self._is_joined(field.message_type, wanted):
                made = self.field(field, pa.list_(pa.string()), above, parent)
                return replace(made, joined=True, type=pa.string())
            if wanted is not None and not pa.types.is_list(wanted):
                raise OptionError(
                    f"field {path} is repeated, which becomes an array, not {type_name(wanted)}"
                )
            item = None if wanted is None else wanted.value_type
        special, message = None, None
        if field.message_type is not None:
            special = types.special_of(field.message_type) or self._text(
                field.message_type, item, above
            )
            is_struct = item is not None and pa.types.is_struct(item)
            if special not in types.TEXTS or (special is types.Special.JSON and is_struct):
                if is_struct:
                    special = None
                inside = None if special is not None else item
                if special is types.Special.WRAPPER and item is not None:
                    inside = pa.struct([pa.field("value", item)])
                message = self.message(field.message_type, inside, above, path)
        if special is not None:
            item = types.special_type(special, field, noted or field, item, path, self.writing)
        elif message is not None:
            item = message.type
        else:
            item = types.scalar_type(field, item, path, self.writing)
        count, kind = Count.ONE, item
        if types.is_repeated(field):
            count = Count.LIST
            kind = wanted or pa.list_(pa.field("element", item, nullable=False))
        return self._made(field, path, count, special, message, kind, item)

    def _text(
        self, descriptor: Any, wanted: pa.DataType | None, above: tuple[str, ...]
    ) -> types.Special | None:
        """What a message becomes that contains itself, if no struct."""
        if wanted is None:
            is_text = self.depth is not None and above.count(descriptor.full_name) >= self.depth
        else:
            is_text = bool(pa.types.is_string(wanted)) and self.recurs(descriptor)
        if is_text:
            self.check_names(descriptor)
            return types.Special.TEXT
        if wanted is not None and pa.types.is_binary(wanted) and self.recurs(descriptor):
            return types.Special.BYTES
        return None

    def _is_joined(self, descriptor: Any, wanted: pa.DataType | None) -> bool:
        """Whether all messages of a list or map are wanted as one text."""
        if wanted is None or descriptor is None or not pa.types.is_string(wanted):
            return False
        return types.special_of(descriptor) is None and self.recurs(descriptor)

    def _map(
        self, field: Any, wanted: pa.DataType | None, above: tuple[str, ...], path: str
    ) -> Field:
        entry = field.message_type
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        if self._is_joined(value.message_type, wanted):
            kind = pa.map_(types.scalar_type(key, None, path), pa.string())
            made = self._map(field, kind, above, path)
            return replace(made, joined=True, type=pa.string())
        if wanted is not None and not pa.types.is_map(wanted):
            raise OptionError(f"field {path} is a map, not {type_name(wanted)}")
        inside = self.field(value, None if wanted is None else wanted.item_type, above, path, field)
        keys = self.field(key, None if wanted is None else wanted.key_type, above, path)
        # In an entry both are always there, be it as the type's zero.
        keys, inside = (
            replace(one, presence=False, default=types.zero_of(of))
            if of.message_type is None
            else one
            for one, of in ((keys, key), (inside, value))
        )
        types_ = [pa.field("key", keys.type, nullable=False), pa.field("value", inside.type)]
        message = Message(entry.full_name, entry, (keys, inside), (), pa.struct(types_))
        kind = wanted or pa.map_(
            types_[0], pa.field("value", inside.type, nullable=False), keys_sorted=False
        )
        return self._made(field, path, Count.MAP, None, message, kind, None)

    def _made(
        self,
        field: Any,
        path: str,
        count: Count,
        special: types.Special | None,
        message: Message | None,
        kind: pa.DataType,
        item: pa.DataType | None,
    ) -> Field:
        values = {} if field.enum_type is None else types.enum_names(field.enum_type)
        oneof = field.containing_oneof
        one = count is Count.ONE and field.message_type is None
        # A default would pass for a member of a oneof that is set.
        default = types.default_of(field) if one and oneof is None else None
        if isinstance(default, bytes) and field.type == types.STRING:
            raise SchemaError(f"field {path}: its default is not UTF-8")
        if isinstance(default, (str, bytes)) and len(default) > MAX_DEFAULT:
            raise SchemaError(f"field {path}: its default is longer than {MAX_DEFAULT} characters")
        if any(len(name) > MAX_NAME for name in values.values()):
            raise SchemaError(
                f"field {path}: its enum has a name of more than {MAX_NAME} characters"
            )
        return Field(
            number=field.number,
            name=field.name,
            path=path,
            kind=field.type,
            count=count,
            presence=count is Count.ONE and field.has_presence,
            required=types.is_required(field),
            default=default,
            oneof=-1 if oneof is None else oneof.index,
            packed=count is Count.LIST and field.is_packed,
            special=special,
            message=message,
            names=values,
            aliases=types.aliases(field.enum_type),
            closed=field.enum_type is not None and field.enum_type.is_closed,
            json=field.message_type.name if special is types.Special.JSON else None,
            nested=field.message_type
            if special in (types.Special.TEXT, types.Special.BYTES)
            else None,
            joined=False,
            type=kind,
            item=item,
        )


def resolve(writer: Any, message: Message) -> Message:
    """The plan for what a writer's descriptor writes, whose fields are found by their numbers.
    Raises SchemaError for a field whose bytes would be taken for something else, or for nothing:
    protobuf itself takes a field of another wire type for an unknown one."""
    known = {field.number: field for field in writer.fields}
    fields = []
    for one in message.fields:
        other = known.get(one.number)
        if other is None:
            fields.append(one)
            continue
        said = f"field {one.path} (number {one.number})"
        _check_bytes_agree(
            said, other, one.kind, maps=one.count is Count.MAP, repeated=one.count is not Count.ONE
        )
        if one.nested is not None:
            # Text is made with the reader's fields, bytes are the writer's as they are.
            if one.special is types.Special.TEXT:
                _check_nested(other.message_type, one.nested, one.path, set())
        elif one.special is not None and (
            types.special_of(other.message_type) is not one.special
            or one.json not in (None, other.message_type.name)
        ):
            raise SchemaError(
                f"{said} is a {other.message_type.full_name} in the writer's schema, and not in "
                f"the reader's"
            )
        exact = types.VARINT32.get(one.kind) != types.VARINT32.get(other.type)
        inner = one.message
        if inner is not None and one.special in (None, types.Special.WRAPPER):
            inner = resolve(other.message_type, inner)
        fields.append(replace(one, message=inner, exact=exact))
    return replace(message, fields=tuple(fields))


def _check_names(descriptor: Any) -> None:
    """Raises SchemaError for a name that is too long to be in each of many texts."""
    for one in types.closure(descriptor):
        for field in one.fields:
            names = [field.name]
            if field.enum_type is not None:
                names += types.enum_names(field.enum_type).values()
            if any(len(name) > MAX_NAME for name in names):
                raise SchemaError(
                    f"message {one.full_name} has a field or enum with a name of more than "
                    f"{MAX_NAME} characters, which cannot become JSON text"
                )


def _check_bytes_agree(said: str, writer: Any, kind: int, *, maps: bool, repeated: bool) -> None:
    """Raise SchemaError if a reader's field of this protobuf type cannot read the writer's bytes.

    `said` names the field in the message.
    """
    if is_map(writer) != maps:
        raise SchemaError(f"{said} is a map on one side only")
    if types.is_repeated(writer) and not repeated:
        raise SchemaError(f"{said} is repeated in the writer's schema, and not in the reader's")
    if types.WIRE_GROUP[writer.type] != types.WIRE_GROUP[kind]:
        raise SchemaError(
            f"{said} is {types.NAMES[writer.type]} in the writer's schema and "
            f"{types.NAMES[kind]} in the reader's, which read each other's bytes wrong"
        )


def _check_nested(writer: Any, reader: Any, path: str, seen: set[tuple[str, str]]) -> None:
    """The checks of `resolve` for all fields of a message, at any depth."""
    if (writer.full_name, reader.full_name) in seen:
        return
    seen.add((writer.full_name, reader.full_name))
    known = {field.number: field for field in writer.fields}
    for field in reader.fields:
        other = known.get(field.number)
        if other is None:
            continue
        said = f"field {path}: {field.full_name} (number {field.number})"
        _check_bytes_agree(
            said, other, field.type, maps=is_map(field), repeated=types.is_repeated(field)
        )
        if field.message_type is not None:
            _check_nested(other.message_type, field.message_type, path, seen)


def is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and types.is_repeated(field) and bool(kind.GetOptions().map_entry)


def _packed_wire(field: Any) -> tuple[int, ...]:
    """A repeated scalar can stand packed on the wire, whatever its schema says."""
    return (2,) if types.is_repeated(field) else ()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
