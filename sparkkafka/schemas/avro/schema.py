"""Parses Avro schemas: JSON text becomes a tree of nodes with all names resolved.

The rules are those of the specification (1.12), applied as leniently as Java's parser does for a
schema that is already registered: names may have characters that the specification forbids, and an
unknown or invalid logical type is ignored. Trees that are too deep or too large raise SchemaError.
A type that can be skipped but not become a column (a record that contains itself, a decimal of more
than 38 digits) has a `refusal`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.schema_errors import (
    RECURSION_HINT,
    child_path,
    count_steps,
    cut,
    label,
    schema_errors,
)
from sparkkafka.schemas.values import Schema

NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE = "null", "boolean", "int", "long", "float", "double"
BYTES, STRING, RECORD, ENUM = "bytes", "string", "record", "enum"
ARRAY, MAP, UNION, FIXED = "array", "map", "union", "fixed"
PRIMITIVES: Final = frozenset({NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING})
NAMED: Final = frozenset({RECORD, ENUM, FIXED})

DECIMAL, UUID, DATE, DURATION = "decimal", "uuid", "date", "duration"
MAX_DIGITS: Final = 38  # the limit of Arrow's decimal128 and Spark's decimal

# The types that may have a logical type; on others it is ignored.
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
"""The nanoseconds in each unit, which is the last part of a logical type's name."""

INTERVAL: Final = "day-time-interval"
"""Our logical type for a long of microseconds that Spark marks by the property CATALYST."""

CATALYST: Final = "spark.sql.catalyst.type"
"""The property in which Spark writes the Spark type of a number."""

_MAX_DEPTH = 64
_MAX_NODES = 20_000  # of one schema; a type that is used twice counts twice, as in columns
_MAX_PARSED = 100_000  # nodes in the texts of a schema and its references
_MAX_BRANCHES = 2000


class _Missing:
    """The type of MISSING: a field without a default. None is the default null."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


@dataclass(frozen=True, eq=False, slots=True)
class AvroField:
    """A field of a record. `default` is JSON, or MISSING."""

    name: str
    node: Node
    default: Any = MISSING
    aliases: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    """In Confluent's property `confluent:tags`."""


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One type.

    `kind` is its name in the specification: "int", "record" …. `name` and `aliases` are the full
    names of a named type; `default_symbol` is an enum's default; `items` is the type of an array's
    items, or of a map's values; `logical` the logical type, "" without one. `connect_name` and
    `connect_parameters` are Kafka Connect's properties. `weight` counts the node and all below it;
    `depth` is how many levels they have. `refusal` says why the type cannot become a column.
    `recurs`: the node or one below it is a record that contains itself.

    A record inside itself is a node of its own, with a refusal and the same fields, so the tree
    below it has no end. All nodes of one such record share the list `skippers`, which keeps how the
    record is skipped and whose identity is the record's."""

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
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
    connect_name: str = ""
    connect_parameters: dict[str, Any] = field(default_factory=dict)
    skippers: list[Any] = field(default_factory=list)

    @property
    def identity(self) -> int:
        """The same number for all nodes of a record that contains itself."""
        return id(self.skippers) if self.kind == RECORD else id(self)

    @property
    def item(self) -> Node:
        """`items` of an array or map, for which it is never None."""
        if self.items is None:
            raise SchemaError(f"Avro schema: {self.kind} without items")
        return self.items

    @property
    def value_branches(self) -> list[int]:
        """The numbers of a union's branches that are not null."""
        return [number for number, branch in enumerate(self.branches) if branch.kind != NULL]

    @property
    def null_branch(self) -> int | None:
        """The number of a union's null branch; None without one, and for other types."""
        return next(
            (number for number, branch in enumerate(self.branches) if branch.kind == NULL), None
        )

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
        """A short text for messages."""
        if self.kind in NAMED:
            logical = f" ({self.logical})" if self.logical else ""
            return f"{self.kind} {cut(self.name, 200)}{logical}"
        if self.kind == UNION:
            more = ", …" if len(self.branches) > 10 else ""
            return f"union [{', '.join(map(str, self.branches[:10]))}{more}]"
        if self.kind in (ARRAY, MAP):
            return f"{self.kind} of {self.item}"
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


def json_of(text: str) -> Any:
    """Parse the JSON of a schema's text, which may have comments (`//` and `/* */`), as Java's
    `Schema.Parser` allows. Raises ValueError, RecursionError."""

    def without_comment(match: re.Match[str]) -> str:
        # A comment becomes blanks, so that messages name the right line and column.
        return match[1] or match[2] or re.sub(r"[^\r\n]", " ", match[0])

    # A string, a comment, or a comment without an end. Linear in the text, whatever it is.
    string_or_comment = r'("[^"\\]*+(?:\\.?[^"\\]*+)*+"?)|/\*.*?\*/|//[^\r\n]*|(/\*.*)'
    return json.loads(re.sub(string_or_comment, without_comment, text, flags=re.DOTALL))


def parse(schema: Schema) -> Node:
    """Parse a schema with its references. Raises SchemaError, which names the field."""
    names: dict[str, Node] = {}
    parsed: dict[int, Node] = {}
    type_count = [0]
    for name, reference in schema.references:
        _add_reference(name, reference, names, parsed, type_count, depth=0)
    return _Parser(names, type_count).parse(schema.text)


def _add_reference(
    name: str,
    schema: Schema,
    names: dict[str, Node],
    parsed: dict[int, Node],
    type_count: list[int],
    depth: int,
) -> None:
    """Add the named types of a referenced schema to `names`. `name`: the one by which it is
    referred to; `parsed`: the nodes of schemas by their Python id, since several names may refer to
    one schema; `type_count`: the number of types so far (see `_Parser`); `depth`: how many
    references lead to it."""
    if depth > _MAX_DEPTH:
        raise SchemaError(f"Avro schema: references are nested too deeply at {cut(name, 200)!r}")
    node = parsed.get(id(schema))
    if node is None:
        for inner, reference in schema.references:
            _add_reference(inner, reference, names, parsed, type_count, depth + 1)
        try:
            # The references may have two versions of a schema, which define the same names.
            own_names = dict(names)
            node = _Parser(own_names, type_count, may_redefine=True).parse(schema.text)
        except SchemaError as error:
            raise SchemaError(f"reference {cut(name, 200)!r}: {error}") from None
        names.update(own_names)
        parsed[id(schema)] = node
    if node.kind in NAMED:
        names.setdefault(name, node)


class _Parser:
    """Parses one text. Adds its named types to `names`, by full name, and how many types it has to
    the one number in `type_count`, which all texts of a schema share.

    `value` is the JSON of a type, `namespace` the one around it, `path` the field's, and `depth`
    the level of the type, 1 for the outermost."""

    def __init__(
        self, names: dict[str, Node], type_count: list[int], *, may_redefine: bool = False
    ) -> None:
        self._names = names
        self._type_count = type_count
        self._own: set[str] = set()  # the names that the text defines
        self._may_redefine = may_redefine
        # The records that are being parsed, by full name, each with the nodes inside of it that are
        # the same record again: they get its fields at its end.
        self._open: dict[str, list[Node]] = {}

    def parse(self, text: str) -> Node:
        """Parse the text; a primitive type may be written without quotes."""
        try:
            value: Any = text.strip() if text.strip() in PRIMITIVES else json_of(text)
        except ValueError as error:
            raise SchemaError(f"the Avro schema is not JSON: {error}") from None
        except RecursionError:
            raise SchemaError("the Avro schema is nested too deeply") from None
        return self._parse_type(value, "", "", 1)

    def _parse_type(self, value: Any, namespace: str, path: str, depth: int) -> Node:
        """Parse any type: a name, an object, or a list (a union)."""
        if depth > _MAX_DEPTH:
            raise _error(path, f"types are nested more than {_MAX_DEPTH} deep")
        self._type_count[0] += 1
        if self._type_count[0] > _MAX_PARSED:
            raise _error(path, f"it has more than {_MAX_PARSED:,} types, with its references")
        if isinstance(value, str):
            node = self._find_named(value, namespace, path)
        elif isinstance(value, list):
            node = self._parse_union(value, namespace, path, depth)
        elif isinstance(value, dict):
            node = self._parse_object(value, namespace, path, depth)
        else:
            raise _error(path, f"a type must be a name, an object or a list, not {_brief(value)}")
        if node.weight > _MAX_NODES:
            raise _error(path, f"it has more than {_MAX_NODES:,} types, uses counted one by one")
        if node.depth + depth > _MAX_DEPTH + 1:
            raise _error(path, f"types are nested more than {_MAX_DEPTH} deep")
        return node

    def _find_named(self, name: str, namespace: str, path: str) -> Node:
        """Return the type of this name. A record that is still being parsed is a node of its own,
        whose fields are set once they are known."""
        if name in PRIMITIVES:
            return Node(name)
        full = _qualified(name, namespace)
        for candidate in (full, name):
            if candidate in self._open:
                refusal = (
                    f"Avro schema, {label(path)}: type {candidate} contains itself, which no Spark "
                    f"type can. {RECURSION_HINT}"
                )
                inner = Node(RECORD, candidate, refusal=refusal, recurs=True)
                self._open[candidate].append(inner)
                return inner
            if candidate in self._names:
                return self._names[candidate]
        raise _error(
            path, f"type {full!r} is not defined before it is used, nor in the schema's references"
        )

    def _parse_union(self, value: list[Any], namespace: str, path: str, depth: int) -> Node:
        """Parse a list of branches. Raises SchemaError if it is empty or too long, or if two have
        one type."""
        if not value:
            raise _error(path, "a union has no branches")
        if len(value) > _MAX_BRANCHES:
            raise _error(path, f"a union has more than {_MAX_BRANCHES:,} branches")
        branches = tuple(self._parse_type(branch, namespace, path, depth + 1) for branch in value)
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == UNION:
                raise _error(path, "a union stands directly in a union")
            key = branch.name or branch.kind
            if key in seen:
                raise _error(path, f"a union has two branches of type {key}")
            seen.add(key)
        return Node(UNION, branches=branches, **_totals(branches))

    def _parse_object(self, value: dict[str, Any], namespace: str, path: str, depth: int) -> Node:
        """Parse a type that is written as an object, which may define a name."""
        kind = value.get("type")
        if isinstance(kind, (dict, list)):
            return self._parse_type(kind, namespace, path, depth + 1)
        if not isinstance(kind, str):
            raise _error(path, f"a type has no 'type': {_brief(value)}")
        if kind in PRIMITIVES:
            return Node(kind, **_parse_logical(kind, value, 0, path), **_connect(value))
        if kind in (ARRAY, MAP):
            key, step = ("items", "[]") if kind == ARRAY else ("values", "{}")
            items = self._parse_type(
                _require(value, key, path), namespace, f"{path}{step}", depth + 1
            )
            return Node(kind, items=items, **_totals((items,)), **_connect(value))
        if kind not in (*NAMED, "error"):
            return self._find_named(kind, namespace, path)
        kind = RECORD if kind == "error" else kind
        name, namespace = _parse_full_name(value, namespace, path)
        aliases = tuple(
            _qualified(alias, namespace)
            for alias in _require_strings(value.get("aliases", []), "aliases", path)
        )
        if name in self._own or (name in self._names and not self._may_redefine):
            raise _error(path, f"type {name} is defined twice")
        self._own.add(name)
        if kind == RECORD:
            node = self._parse_record(name, aliases, value, namespace, path, depth)
        elif kind == ENUM:
            node = _parse_enum(name, aliases, value, path)
        else:
            node = _parse_fixed(name, aliases, value, path)
        self._names[name] = node
        return node

    def _parse_record(
        self,
        name: str,
        aliases: tuple[str, ...],
        value: dict[str, Any],
        namespace: str,
        path: str,
        depth: int,
    ) -> Node:
        """Parse a record; `namespace` is its own. Complete the nodes inside that are this
        record."""
        definitions = _require(value, "fields", path)
        if not isinstance(definitions, list):
            raise _error(path, f"'fields' of record {name} is not a list")
        recurring = self._open[name] = []
        fields: list[AvroField] = []
        seen: set[str] = set()
        for definition in definitions:
            if not isinstance(definition, dict) or not isinstance(definition.get("name"), str):
                raise _error(path, f"a field of record {name} has no name")
            field_name = definition["name"]
            at = child_path(path, field_name)
            if not field_name or field_name in seen:
                raise _error(at, f"record {name} has two fields of this name")
            seen.add(field_name)
            # A logical type beside the field's type, not in it, is a common mistake. It is ignored,
            # as in Java.
            node = self._parse_type(_require(definition, "type", at), namespace, at, depth + 1)
            aliases_of_field = _require_strings(definition.get("aliases", []), "aliases", at)
            default = definition.get("default", MISSING)
            tags = definition.get("confluent:tags")
            texts = filter(lambda tag: isinstance(tag, str), tags if isinstance(tags, list) else ())
            fields.append(AvroField(field_name, node, default, aliases_of_field, frozenset(texts)))
        del self._open[name]
        totals = _totals(tuple(field.node for field in fields))
        node = Node(RECORD, name, aliases, fields=tuple(fields), **totals, **_connect(value))
        if recurring:
            count_steps(node.weight)  # the node is compiled again for the levels below the first
        for inner in recurring:  # frozen except here: these were made before the record's fields
            object.__setattr__(inner, "aliases", aliases)
            object.__setattr__(inner, "fields", node.fields)
            object.__setattr__(inner, "skippers", node.skippers)
        return node


def _parse_enum(name: str, aliases: tuple[str, ...], value: dict[str, Any], path: str) -> Node:
    """Parse an enum. Raises SchemaError for a symbol twice, or a default that is not a symbol."""
    symbols = _require_strings(_require(value, "symbols", path), "symbols", path)
    if len(set(symbols)) < len(symbols):
        raise _error(path, f"enum {name} has a symbol twice")
    default = value.get("default")
    if default is not None and default not in symbols:
        raise _error(path, f"enum {name}: its default {_brief(default)} is none of its symbols")
    return Node(ENUM, name, aliases, symbols=symbols, default_symbol=default, **_connect(value))


def _parse_fixed(name: str, aliases: tuple[str, ...], value: dict[str, Any], path: str) -> Node:
    """Parse a fixed type, `value` in the schema's JSON; `path` names it in errors."""
    size = value.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
        raise _error(path, f"fixed {name}: its size must be a number of bytes, not {_brief(size)}")
    logical = _parse_logical(FIXED, value, size, path)
    return Node(FIXED, name, aliases, size=size, **logical, **_connect(value))


def _connect(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Node for Kafka Connect's properties."""
    parameters = value.get("connect.parameters")
    return {
        "connect_name": str(value.get("connect.name") or ""),
        "connect_parameters": parameters if isinstance(parameters, dict) else {},
    }


def _parse_logical(kind: str, value: dict[str, Any], size: int, path: str) -> dict[str, Any]:
    """Return the fields of Node for the logical type; none if it is not valid. `size`: a
    fixed's."""
    logical = value.get("logicalType")
    if logical is None and kind == LONG and str(value.get(CATALYST, "")).startswith("interval "):
        interval = str(value[CATALYST])
        return {"logical": INTERVAL} if "year" not in interval and "month" not in interval else {}
    if not isinstance(logical, str) or kind not in _LOGICAL.get(logical, ()):
        return {}
    # The specification says these sizes.
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
    fields = {"logical": logical, "precision": precision, "scale": scale}
    if precision > MAX_DIGITS:
        fields["refusal"] = (
            f"Avro schema, {label(path)}: decimal({precision}, {scale}): Spark and Arrow have at "
            f"most {MAX_DIGITS} digits. Name the fields to be read, without this one: .schema(…), "
            "or type= of a function"
        )
    return fields


def _parse_full_name(value: dict[str, Any], namespace: str, path: str) -> tuple[str, str]:
    """Return the full name of a named type, and its namespace."""
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _error(path, f"a type {value.get('type')} has no name")
    if "." in name:
        return name.removeprefix("."), name.rpartition(".")[0]
    own_namespace = value.get("namespace")
    namespace = own_namespace if isinstance(own_namespace, str) else namespace
    if name in PRIMITIVES:
        raise _error(path, f"a type may not be called {name!r}, which is a primitive type")
    return _qualified(name, namespace), namespace


def _qualified(name: str, namespace: str) -> str:
    """Return the full name of a type that is named in this namespace."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _totals(parts: tuple[Node, ...]) -> dict[str, Any]:
    """Return the fields of Node that depend on the types inside of it."""
    return {
        "weight": 1 + sum(part.weight for part in parts),
        "depth": 1 + max((part.depth for part in parts), default=0),
        "recurs": any(part.recurs for part in parts),
    }


def _require_strings(value: Any, key: str, path: str) -> tuple[str, ...]:
    """Return the list of strings that stands under `key`. Raises SchemaError for any other
    value."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _error(path, f"'{key}' must be a list of strings, not {_brief(value)}")
    return tuple(value)


def _require(value: dict[str, Any], key: str, path: str) -> Any:
    """Return what stands under `key`. Raises SchemaError if nothing does."""
    if key not in value:
        raise _error(path, f"'{key}' is missing in {_brief(value)}")
    return value[key]


def _error(path: str, reason: str) -> SchemaError:
    return SchemaError(f"Avro schema, {label(path)}: {reason}")


def _brief(value: Any) -> str:
    """Return the beginning of a JSON value, for messages."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- tags and fingerprints ----------------------------------------------------------------------


def inline_tags(root: Node) -> dict[str, frozenset[str]]:
    """Return the tags of fields, by the fields' full names (`namespace.Record.field`)."""
    tags: dict[str, frozenset[str]] = {}
    nodes = [root]
    seen: set[str] = set()
    while nodes:
        node = nodes.pop()
        nodes += node.branches
        if node.items is not None:
            nodes.append(node.items)
        if node.kind == RECORD and node.name not in seen:
            seen.add(node.name)
            nodes += [field.node for field in node.fields]
            tags |= {f"{node.name}.{field.name}": field.tags for field in node.fields if field.tags}
    return tags


_EMPTY_CRC: Final = 0xC15D213AA4D7A795


@lru_cache(256)
def fingerprint(schema: Schema) -> int:
    """Return the schema's 64-bit fingerprint: CRC-64-AVRO of its Parsing Canonical Form. Raises
    SchemaError for a schema that is invalid, or whose types are in other schemas.

    Source: Avro's specification, "Transforming into Parsing Canonical Form" and "Schema
    Fingerprints"."""
    with schema_errors("Avro schema"):
        if schema.references:
            raise SchemaError(
                "the Avro schema refers to other schemas, and a fingerprint is of one whole schema"
            )
        form = _canonical(parse(schema), set())
    value = _EMPTY_CRC
    for byte in json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode():
        value = (value >> 8) ^ _crc_table()[(value ^ byte) & 0xFF]
    return value


def _canonical(node: Node, named: set[str]) -> Any:
    """Return the canonical form of a type: full names, only the attributes that parsing needs, in
    the order of the specification. `named`: the types that are written already."""
    if node.kind == UNION:
        return [_canonical(branch, named) for branch in node.branches]
    if node.kind in (ARRAY, MAP):
        key = "items" if node.kind == ARRAY else "values"
        return {"type": node.kind, key: _canonical(node.item, named)}
    if node.kind in PRIMITIVES or node.name in named:
        return node.name or node.kind
    named.add(node.name)
    form: dict[str, Any] = {"name": node.name, "type": node.kind}
    if node.kind == ENUM:
        form["symbols"] = node.symbols
    elif node.kind == FIXED:
        form["size"] = node.size
    else:
        form["fields"] = [
            {"name": field.name, "type": _canonical(field.node, named)} for field in node.fields
        ]
    return form


@cache
def _crc_table() -> tuple[int, ...]:
    """Return the table of Avro's Rabin fingerprint (CRC-64-AVRO): an entry for each byte."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY_CRC & -(value & 1))
        table.append(value)
    return tuple(table)
