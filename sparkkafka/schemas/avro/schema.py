"""Avro schemas: JSON text -> a tree of nodes, all names resolved.

Rules are those of the specification (1.12), read as leniently as Java's parser reads a schema that
is registered already: names may have characters that the specification forbids, an unknown or
invalid logical type is ignored. Trees that are too deep or too large are refused with their place.
What cannot become a column, but can be skipped, has a `refusal`: a record that contains itself, a
decimal of more than 38 digits.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.bounds import MAX_PATH, RECURSION_HINT, cut, spend
from sparkkafka.schemas.values import Schema

NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE = "null", "boolean", "int", "long", "float", "double"
BYTES, STRING, RECORD, ENUM = "bytes", "string", "record", "enum"
ARRAY, MAP, UNION, FIXED = "array", "map", "union", "fixed"
PRIMITIVES: Final = frozenset({NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING})
NAMED: Final = frozenset({RECORD, ENUM, FIXED})

DECIMAL, UUID, DATE, DURATION = "decimal", "uuid", "date", "duration"
MAX_DIGITS: Final = 38  # of Arrow's decimal128, and of Spark's decimal

# Logical type -> the types that it may stand on; on others it is ignored.
_LOGICAL: Final = {
    DECIMAL: (BYTES, FIXED),
    UUID: (STRING, FIXED),
    DATE: (INT,),
    DURATION: (FIXED,),
    "time-millis": (INT,),
    "time-micros": (LONG,),
    "timestamp-millis": (LONG,),
    "timestamp-micros": (LONG,),
    "timestamp-nanos": (LONG,),
    "local-timestamp-millis": (LONG,),
    "local-timestamp-micros": (LONG,),
    "local-timestamp-nanos": (LONG,),
}

NANOSECONDS: Final = {"millis": 1_000_000, "micros": 1000, "nanos": 1}
"""Nanoseconds of the units that names of logical types end in."""

INTERVAL: Final = "day-time-interval"
"""Logical type of ours: Spark's mark for a long of microseconds, a property of its own."""

CATALYST: Final = "spark.sql.catalyst.type"
"""The property in which Spark says which type of its own a number stands for."""

_MAX_DEPTH = 64
_MAX_NODES = 20_000  # a type that is used twice counts twice: columns are made of each use
_MAX_PARSED = 100_000  # types of all texts together
_MAX_BRANCHES = 2000
_MAX_FIXED = (1 << 31) - 1


class _Missing:
    """There is no default: null is one."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


@dataclass(frozen=True, eq=False, slots=True)
class Field:
    """A field of a record. `default` is JSON, or MISSING."""

    name: str
    node: Node
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One type. `name` and `aliases` are full names, of named types; `symbol` is an enum's default;
    `items` are an array's, or the values of a map; `weight` counts the nodes below, itself too;
    `refusal`: why it cannot become a column, if so; `recurs`: a record that contains itself is here
    or below.

    A record in itself is a node of its own, with a refusal, and has the same fields: so a tree of
    types that goes on below it has no end. All nodes of one such record share `wires`, where how
    they are skipped is kept: the list's identity is the record's."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    symbols: tuple[str, ...] = ()
    symbol: str | None = None
    items: Node | None = None
    branches: tuple[Node, ...] = ()
    size: int = 0
    logical: str = ""
    precision: int = 0
    scale: int = 0
    weight: int = 1
    depth: int = 1
    refusal: str = ""
    recurs: bool = False
    wires: list[Any] = field(default_factory=list)

    @property
    def identity(self) -> int:
        """The same for all nodes of a record that contains itself."""
        return id(self.wires) if self.kind == RECORD else id(self)

    @property
    def item(self) -> Node:
        """`items` of an array or map, which always has them."""
        if self.items is None:
            raise SchemaError(f"Avro schema: {self.kind} without items")
        return self.items

    @property
    def time_unit(self) -> str:
        """The unit of a timestamp or a time of day, a key of NANOSECONDS; "" for other types."""
        unit = self.logical.rpartition("-")[2]
        return unit if unit in NANOSECONDS else ""

    @property
    def meaning(self) -> str:
        """The logical type without its unit: "timestamp", "local-timestamp", "time", "date" …; ""
        for a type without one. Values of different meanings cannot be converted."""
        return self.logical.removesuffix(f"-{self.time_unit}")

    def __str__(self) -> str:
        """Short, for messages."""
        if self.kind in NAMED:
            logical = f" ({self.logical})" if self.logical else ""
            return f"{self.kind} {cut(self.name, 200)}{logical}"
        if self.kind == UNION:
            more = ", …" if len(self.branches) > 10 else ""
            return f"union [{', '.join(map(str, self.branches[:10]))}{more}]"
        if self.kind in (ARRAY, MAP):
            return f"{self.kind} of {self.item}"
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


def place(path: str) -> str:
    """How messages call a place: "field customer.age", or "the value" for all of it."""
    return f"field {path}" if path else "the value"


def below(path: str, name: str) -> str:
    """For messages: names and depth multiply, so what is long is cut."""
    return cut(f"{path}.{name}" if path else name, MAX_PATH)


# A string, a comment, or a comment without an end. Linear in the text, whatever it is.
_STRING_OR_COMMENT = re.compile(
    r'("[^"\\]*+(?:\\.?[^"\\]*+)*+"?)|/\*.*?\*/|//[^\r\n]*|(/\*.*)', re.DOTALL
)


def json_of(text: str) -> Any:
    """The JSON of a schema's text, which may have comments (`//` and `/* */`) as Java's
    `Schema.Parser` allows them. Raises ValueError, RecursionError."""
    return json.loads(_STRING_OR_COMMENT.sub(_blank, text))


def _blank(found: re.Match[str]) -> str:
    """Blanks for a comment: what follows keeps its line and column in messages."""
    kept: str | None = found[1] or found[2]
    return kept or re.sub(r"[^\r\n]", " ", found[0])


def parse(schema: Schema) -> Node:
    """The tree of a schema. Raises SchemaError, with the place in it."""
    names: dict[str, Node] = {}
    parsed: dict[int, Node] = {}
    count = [0]
    for name, reference in schema.references:
        _add_reference(name, reference, names, parsed, count, depth=0)
    return _Parser(names, count).parse(schema.text)


def _add_reference(
    name: str,
    schema: Schema,
    names: dict[str, Node],
    parsed: dict[int, Node],
    count: list[int],
    depth: int,
) -> None:
    """`parsed`: what came of schemas, by their id: many names may refer to the same one."""
    if depth > _MAX_DEPTH:
        raise SchemaError(f"Avro schema: references are nested too deeply at {cut(name, 200)!r}")
    node = parsed.get(id(schema))
    if node is None:
        for inner, reference in schema.references:
            _add_reference(inner, reference, names, parsed, count, depth + 1)
        try:
            # Two versions of a schema may be referred to: each defines its names again.
            own = dict(names)
            node = _Parser(own, count, again=True).parse(schema.text)
        except SchemaError as error:
            raise SchemaError(f"reference {cut(name, 200)!r}: {error}") from None
        names.update(own)
        parsed[id(schema)] = node
    if node.kind in NAMED:
        names.setdefault(name, node)


class _Parser:
    """`names`: the types known so far, by full name; those of the text are added, and to `count`
    how many types it has."""

    def __init__(self, names: dict[str, Node], count: list[int], *, again: bool = False) -> None:
        self._names = names
        self._count = count
        self._own: set[str] = set()
        self._again = again
        # Records that are being parsed, by full name, and where they stand in themselves.
        self._open: dict[str, list[Node]] = {}

    def parse(self, text: str) -> Node:
        try:
            value: Any = text.strip() if text.strip() in PRIMITIVES else json_of(text)
        except ValueError as error:
            raise SchemaError(f"the Avro schema is not JSON: {error}") from None
        except RecursionError:
            raise SchemaError("the Avro schema is nested too deeply") from None
        return self._node(value, "", "", 1)

    def _node(self, value: Any, namespace: str, path: str, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise _error(path, f"types are nested more than {_MAX_DEPTH} deep")
        self._count[0] += 1
        if self._count[0] > _MAX_PARSED:
            raise _error(path, f"it has more than {_MAX_PARSED:,} types, with its references")
        if isinstance(value, str):
            node = self._named(value, namespace, path)
        elif isinstance(value, list):
            node = self._union(value, namespace, path, depth)
        elif isinstance(value, dict):
            node = self._object(value, namespace, path, depth)
        else:
            raise _error(path, f"a type must be a name, an object or a list, not {_short(value)}")
        if node.weight > _MAX_NODES:
            raise _error(path, f"it has more than {_MAX_NODES:,} types, uses counted one by one")
        if node.depth + depth > _MAX_DEPTH + 1:
            raise _error(path, f"types are nested more than {_MAX_DEPTH} deep")
        return node

    def _named(self, name: str, namespace: str, path: str) -> Node:
        if name in PRIMITIVES:
            return Node(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self._open:
                refusal = _recursion(candidate, path)
                inner = Node(RECORD, candidate, refusal=refusal, recurs=True)
                self._open[candidate].append(inner)
                return inner
            if candidate in self._names:
                return self._names[candidate]
        raise _error(
            path, f"type {full!r} is not defined before it is used, nor in the schema's references"
        )

    def _union(self, value: list[Any], namespace: str, path: str, depth: int) -> Node:
        if not value:
            raise _error(path, "a union has no branches")
        if len(value) > _MAX_BRANCHES:
            raise _error(path, f"a union has more than {_MAX_BRANCHES:,} branches")
        branches = tuple(self._node(each, namespace, path, depth + 1) for each in value)
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == UNION:
                raise _error(path, "a union stands directly in a union")
            key = branch.name or branch.kind
            if key in seen:
                raise _error(path, f"a union has two branches of type {key}")
            seen.add(key)
        return Node(UNION, branches=branches, **_totals(branches))

    def _object(self, value: dict[str, Any], namespace: str, path: str, depth: int) -> Node:
        kind = value.get("type")
        if isinstance(kind, (dict, list)):
            return self._node(kind, namespace, path, depth + 1)
        if not isinstance(kind, str):
            raise _error(path, f"a type has no 'type': {_short(value)}")
        if kind in PRIMITIVES:
            return Node(kind, **_logical(kind, value, 0, path))
        if kind == ARRAY:
            items = self._node(_need(value, "items", path), namespace, f"{path}[]", depth + 1)
            return Node(ARRAY, items=items, **_totals((items,)))
        if kind == MAP:
            items = self._node(_need(value, "values", path), namespace, f"{path}{{}}", depth + 1)
            return Node(MAP, items=items, **_totals((items,)))
        if kind not in (*NAMED, "error"):
            return self._named(kind, namespace, path)
        kind = RECORD if kind == "error" else kind
        name, space = _full_name(value, namespace, path)
        aliases = tuple(
            alias if "." in alias or not space else f"{space}.{alias}"
            for alias in _texts(value.get("aliases", []), "aliases", path)
        )
        if name in self._own or (name in self._names and not self._again):
            raise _error(path, f"type {name} is defined twice")
        self._own.add(name)
        if kind == RECORD:
            node = self._record(name, aliases, value, space, path, depth)
        elif kind == ENUM:
            node = _enum(name, aliases, value, path)
        else:
            node = _fixed(name, aliases, value, path)
        self._names[name] = node
        return node

    def _record(
        self,
        name: str,
        aliases: tuple[str, ...],
        value: dict[str, Any],
        space: str,
        path: str,
        depth: int,
    ) -> Node:
        given = _need(value, "fields", path)
        if not isinstance(given, list):
            raise _error(path, f"'fields' of record {name} is no list")
        recurring = self._open[name] = []
        fields: list[Field] = []
        seen: set[str] = set()
        for each in given:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise _error(path, f"a field of record {name} has no name")
            field_name = each["name"]
            at = below(path, field_name)
            if not field_name or field_name in seen:
                raise _error(at, f"record {name} has two fields of this name")
            seen.add(field_name)
            node = self._node(_need(each, "type", at), space, at, depth + 1)
            # A logical type beside the field's type, instead of in it, is a common mistake, which
            # Java ignores too.
            fields.append(
                Field(
                    field_name,
                    node,
                    each.get("default", MISSING),
                    _texts(each.get("aliases", []), "aliases", at),
                )
            )
        del self._open[name]
        totals = _totals(tuple(field.node for field in fields))
        node = Node(RECORD, name, aliases, fields=tuple(fields), **totals)
        if recurring:
            spend(node.weight)  # it is compiled once more, and what recurs in it again
        for inner in recurring:  # frozen but for this: they are older than what they contain
            object.__setattr__(inner, "aliases", aliases)
            object.__setattr__(inner, "fields", node.fields)
            object.__setattr__(inner, "wires", node.wires)
        return node


def _enum(name: str, aliases: tuple[str, ...], value: dict[str, Any], path: str) -> Node:
    symbols = _texts(_need(value, "symbols", path), "symbols", path)
    if len(set(symbols)) < len(symbols):
        raise _error(path, f"enum {name} has a symbol twice")
    default = value.get("default")
    if default is not None and default not in symbols:
        raise _error(path, f"enum {name}: its default {_short(default)} is none of its symbols")
    return Node(ENUM, name, aliases, symbols=symbols, symbol=default)


def _fixed(name: str, aliases: tuple[str, ...], value: dict[str, Any], path: str) -> Node:
    size = value.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_FIXED:
        raise _error(path, f"fixed {name}: its size must be a number of bytes, not {_short(size)}")
    return Node(FIXED, name, aliases, size=size, **_logical(FIXED, value, size, path))


def _logical(kind: str, value: dict[str, Any], size: int, path: str) -> dict[str, Any]:
    """Fields of the node for the logical type, if it is a valid one."""
    logical = value.get("logicalType")
    if logical is None and kind == LONG and str(value.get(CATALYST, "")).startswith("interval "):
        words = str(value[CATALYST])
        return {"logical": INTERVAL} if "year" not in words and "month" not in words else {}
    if not isinstance(logical, str) or kind not in _LOGICAL.get(logical, ()):
        return {}
    if (logical == UUID and kind == FIXED and size != 16) or (logical == DURATION and size != 12):
        return {}
    if logical != DECIMAL:
        return {"logical": logical}
    precision, scale = value.get("precision"), value.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return {}
    if not 0 <= scale <= precision or precision < 1:
        return {}
    # A small fixed may hold fewer digits: then it is not valid.
    small = kind == FIXED and size <= 16
    if small and (precision > MAX_DIGITS or 10**precision > 1 << max(8 * size - 1, 0)):
        return {}
    found = {"logical": logical, "precision": precision, "scale": scale}
    if precision > MAX_DIGITS:
        words = f"decimal({precision}, {scale}): Spark and Arrow have at most {MAX_DIGITS} digits"
        found["refusal"] = _refusal(path, words)
    return found


def _full_name(value: dict[str, Any], namespace: str, path: str) -> tuple[str, str]:
    """Full name and its namespace."""
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _error(path, f"a type {value.get('type')} has no name")
    if "." in name:
        return name.removeprefix("."), name.rpartition(".")[0]
    space = value.get("namespace")
    if not isinstance(space, str):
        space = namespace
    if name in PRIMITIVES:
        raise _error(path, f"a type may not be called {name!r}, which is a primitive type")
    return (f"{space}.{name}" if space else name), space


def _totals(parts: tuple[Node, ...]) -> dict[str, Any]:
    return {
        "weight": 1 + sum(part.weight for part in parts),
        "depth": 1 + max((part.depth for part in parts), default=0),
        "recurs": any(part.recurs for part in parts),
    }


def _texts(value: Any, what: str, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _error(path, f"'{what}' must be a list of strings, not {_short(value)}")
    return tuple(value)


def _need(value: dict[str, Any], key: str, path: str) -> Any:
    if key not in value:
        raise _error(path, f"'{key}' is missing in {_short(value)}")
    return value[key]


def _error(path: str, reason: str) -> SchemaError:
    return SchemaError(f"Avro schema, {place(path)}: {reason}")


def _refusal(path: str, reason: str) -> str:
    return (
        f"Avro schema, {place(path)}: {reason}. Name the fields to be read, without this one: "
        ".schema(…), or type= of a function"
    )


def _recursion(name: str, path: str) -> str:
    return (
        f"Avro schema, {place(path)}: type {name} contains itself, which no Spark type can. "
        f"{RECURSION_HINT}"
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
