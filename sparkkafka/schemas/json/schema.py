"""JSON Schema: what a schema says about the types of values, and the schema of an Arrow type.

draft-07 and 2020-12 are read as far as they type values (draft-04 reads the same); keywords that
only validate (minimum, pattern, if, not …) are ignored. Keywords beside `$ref` count as in `allOf`
if `$schema` names draft 2019-09 or later; the drafts before, and a schema without `$schema`, which
Confluent's clients read as draft-07, ignore them. Kafka Connect's hints (`connect.type`, the
titles of its logical types) count: io.confluent.connect.json.JsonSchemaData writes them.

`schema_text` writes draft-07, the same text for the same type, with null and Connect's hints as
JsonSchemaData writes them. Reading it back gives the same type, except for durations, which are
read as strings. Objects are closed (additionalProperties false): by Confluent's rules of
compatibility optional fields can then be added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.schema_errors import (
    RECURSION_HINT,
    check_distinct,
    child_path,
    count_steps,
    names_hint,
)
from sparkkafka.schemas.values import Schema, type_name

MAX_LEVELS: Final = 64
"""Levels of objects and arrays in a schema."""
MAX_SUBSCHEMAS: Final = 20_000
"""Subschemas that are read: references can multiply them without end."""

LOCAL_TIMESTAMP_TYPE: Final = pa.timestamp("us")

_MICROS = pa.timestamp("us", "UTC")
_INTEGERS = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
_CONNECT = "org.apache.kafka.connect.data."


class JsonKind(StrEnum):
    """How a JSON value is read or written."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    DECIMAL_BYTES = "decimal in base64"  # Kafka Connect's Decimal, unless decimal.format=NUMERIC
    TEXT = "text"  # only a string
    AS_TEXT = "as text"  # a string as it is, any other value as its JSON text
    JSON_TEXT = "json"  # any value as its JSON text, strings in quotes; also as UTF-8 bytes
    BINARY = "binary"  # base64
    DATE = "date"
    TIMESTAMP = "timestamp"  # with an offset from UTC
    LOCAL_TIMESTAMP = "local timestamp"  # without one
    DURATION = "duration"  # ISO 8601
    EPOCH_MILLIS = "epoch millis"  # Kafka Connect's Timestamp
    EPOCH_DAYS = "epoch days"  # Kafka Connect's Date
    NULL = "null"
    LIST = "list"
    MAP = "map"
    STRUCT = "struct"
    # only for writing
    DECIMAL_TEXT = "decimal text"  # a decimal as a string
    OBJECT_TEXT = "object text"  # a string that is the JSON text of an object already
    ARRAY_TEXT = "array text"
    OWN_TEXT = "own text"  # a JSON text that the encoder has made itself, and does not check


def kind_of_type(arrow_type: pa.DataType) -> JsonKind | None:
    """Return the kind of a type that has no fields; None if JSON has nothing for it."""
    types = pa.types
    for matches, kind in (
        (types.is_boolean, JsonKind.BOOL),
        (types.is_signed_integer, JsonKind.INTEGER),
        (types.is_float32, JsonKind.FLOAT),
        (types.is_float64, JsonKind.FLOAT),
        (types.is_decimal128, JsonKind.DECIMAL),
        (types.is_string, JsonKind.AS_TEXT),
        (types.is_binary, JsonKind.BINARY),
        (types.is_date32, JsonKind.DATE),
        (types.is_null, JsonKind.NULL),
    ):
        if matches(arrow_type):
            return kind
    if arrow_type == pa.duration("us"):
        return JsonKind.DURATION
    if arrow_type == LOCAL_TIMESTAMP_TYPE:
        return JsonKind.LOCAL_TIMESTAMP
    if types.is_timestamp(arrow_type) and arrow_type.unit == "us" and arrow_type.tz is not None:
        return JsonKind.TIMESTAMP
    return None


# --- documents and their parts --------------------------------------------------------------------


class Document:
    """One schema's parsed text, with the documents that it refers to. `uri`: the URI by which
    others refer to it, which is the base of its own `$id`."""

    def __init__(self, schema: Schema, name: str = "", uri: str = "") -> None:
        self.name = name
        self.references = dict(schema.references)
        self._referenced: dict[str, Document] = {}
        self.visited = [0]  # how many subschemas were read; all documents of a schema share it
        try:
            self.root: Any = json.loads(schema.text)
        except RecursionError:
            raise SchemaError(f"the JSON Schema{self.label} is nested too deep") from None
        except ValueError as error:
            raise SchemaError(f"the JSON Schema{self.label} is not JSON: {error}") from None
        root = self.root if isinstance(self.root, dict) else {}
        own_id = root.get("$id", "")
        self.base = _join_uri(uri, own_id) if isinstance(own_id, str) else uri
        draft = re.search(r"/draft/20\d\d-", str(root.get("$schema")))
        self.applies_keywords_beside_ref = draft is not None
        # By Python id of a subschema, and keywords: the subschema without these keywords.
        self._parts: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}

    @property
    def label(self) -> str:
        """The name of a referenced document, for messages; "" for the schema's own."""
        return f" {self.name!r}" if self.name else ""

    def without(self, node: dict[str, Any], *keywords: str) -> dict[str, Any]:
        """Return a subschema without these keywords: always the same object for the same node,
        since recursion is found by the identities of subschemas."""
        key = id(node), keywords
        if key not in self._parts:
            self._parts[key] = {name: node[name] for name in node if name not in keywords}
        return self._parts[key]

    @cached_property
    def identified(self) -> dict[str, Any]:
        """The subschemas of the document by their $id (as it is written, and as a URI), and by
        their anchors (with a # before)."""
        subschemas: dict[str, Any] = {}
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, list):
                waiting.extend(node)
            elif isinstance(node, dict):
                waiting.extend(node.values())
                for keyword, prefix in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                    name = node.get(keyword)
                    if isinstance(name, str):
                        subschemas[f"{prefix}{name}"] = node
                        if not prefix:
                            subschemas.setdefault(_join_uri(self.base, name), node)
        return subschemas

    @cached_property
    def _names_by_uri(self) -> dict[str, str]:
        """Names of references by URI. A relative name is resolved against the schema's `$id`, as
        Confluent's JsonSchema registers it."""
        return {_join_uri(self.base, name): name for name in self.references}

    def referenced(self, name: str) -> Document | None:
        """Return the document of one of the registry's references, by its name or URI."""
        if name not in self.references:
            name = self._names_by_uri.get(name, name)
        if name not in self._referenced:
            if name not in self.references:
                return None
            document = Document(self.references[name], name, _join_uri(self.base, name))
            document.visited = self.visited
            self._referenced[name] = document
        return self._referenced[name]


def _join_uri(base: str, uri: str) -> str:
    """Resolve a URI against a base, without an empty fragment; return it unchanged if it is not a
    URI."""
    try:
        return urljoin(base, uri).rstrip("#")
    except ValueError:  # such as a bad IPv6 address
        return uri


@dataclass(frozen=True)
class Subschema:
    """A part of a schema that types a value. `node`: its JSON; `path`: the field's; `parents`:
    Python ids of the nodes of the subschemas around it, which show recursion; `levels`: how many
    objects and arrays are around it. `depth`: how many levels of a recursive subschema are read;
    the next is JSON text. None: a recursive subschema is an error."""

    document: Document
    node: Any
    path: str = ""
    parents: tuple[int, ...] = field(default=(), repr=False)
    levels: int = 0
    depth: int | None = None

    def at(self, node: Any, path: str | None = None) -> Subschema:
        """Return the subschema `node` of the same value; with a `path`, of a value inside of it."""
        self.document.visited[0] += 1
        if self.document.visited[0] > MAX_SUBSCHEMAS:
            raise TooLargeSchemaError(
                f"the JSON Schema has more than {MAX_SUBSCHEMAS} parts, references followed"
            )
        if path is None:
            return replace(self, node=node)
        if self.levels >= MAX_LEVELS:
            raise TooLargeSchemaError(
                f"the JSON Schema nests {self.path} deeper than {MAX_LEVELS} levels"
            )
        return replace(self, node=node, path=path, levels=self.levels + 1)

    def error(self, message: str) -> SchemaError:
        """Return an error that names the document and the field."""
        where = f"field {self.path}: " if self.path else ""
        return SchemaError(f"JSON Schema{self.document.label}: {where}{message}")


def root_of(schema: Schema, depth: int | None = None) -> Subschema:
    """Return the root of a schema. Raises SchemaError if its text is not JSON."""
    document = Document(schema)
    return Subschema(document, document.root, depth=depth)


class RecursiveSchemaError(SchemaError):
    """A subschema contains itself, and no depth ends that."""


class TooLargeSchemaError(SchemaError):
    """A schema has too many subschemas or levels, references followed."""


# --- references -----------------------------------------------------------------------------------


_TYPING: Final = frozenset(
    {"type", "properties", "items", "prefixItems", "enum", "const", "oneOf", "anyOf", "allOf"}
)
"""Keywords that say something about the type of a value."""


def _follow(subschema: Subschema) -> Subschema:
    """Return the subschema to which a chain of $ref and $dynamicRef leads: the first one without a
    reference, or with keywords beside its reference that apply."""
    count = 0
    while (keyword := _ref_keyword(subschema.node)) and not _beside_ref(subschema):
        ref = subschema.node[keyword]
        if not isinstance(ref, str):
            raise subschema.error(f"{keyword} is {_brief(ref)}, not a text")
        count += 1
        count_steps(1 + len(ref) // 50)
        document, node = _find_target(subschema, ref)
        subschema = replace(subschema, document=document, node=node)
        if count > MAX_LEVELS:
            raise subschema.error(f"$ref {_brief(ref)} leads to more than {MAX_LEVELS} others")
        if subschema.depth is None and id(node) in subschema.parents:
            message = f"{_brief(ref)} contains itself, which no Spark type can. {RECURSION_HINT}"
            raise RecursiveSchemaError(str(subschema.error(message)))
    return subschema


def _ref_keyword(node: Any) -> str:
    """Return the keyword by which a subschema refers to another; "" if it does not."""
    if not isinstance(node, dict):
        return ""
    return next((keyword for keyword in ("$ref", "$dynamicRef") if keyword in node), "")


def _beside_ref(subschema: Subschema) -> dict[str, Any] | None:
    """Return the subschema without its reference, if that says something about the type and the
    draft applies it."""
    node, document = subschema.node, subschema.document
    if not document.applies_keywords_beside_ref or not _ref_keyword(node):
        return None
    rest = document.without(node, _ref_keyword(node))
    return rest if (_TYPING | {"required", "$dynamicRef"}) & rest.keys() else None


def _find_target(subschema: Subschema, ref: str) -> tuple[Document, Any]:
    """Return the document and the node that a reference names by path, anchor or $id, in this
    document or in another. Raises SchemaError if there is none."""
    document = subschema.document
    try:
        address, fragment = urldefrag(ref)
        uri = urljoin(document.base, address)
    except ValueError as error:  # such as a bad IPv6 address
        raise subschema.error(f"$ref {_brief(ref)} is not a reference: {error}") from None
    node = document.root
    if address and uri != document.base:
        other = document.referenced(address) or document.referenced(uri)
        identified = document.identified.get(address, document.identified.get(uri))
        if other is not None:
            document, node = other, other.root
        elif identified is not None:
            node = identified
        else:
            known = ", ".join(map(repr, document.references)) or "none"
            raise subschema.error(
                f"$ref {_brief(ref)} is not among the schema's references, which are: {known}"
            )
    if not fragment:
        return document, node
    where = f" in {document.name!r}" if document.name else ""
    not_found = f"$ref {_brief(ref)} does not exist{where}"
    if not fragment.startswith("/"):
        if f"#{fragment}" not in document.identified:
            raise subschema.error(not_found)
        return document, document.identified[f"#{fragment}"]
    for step in unquote(fragment)[1:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and step in node:
            node = node[step]
        elif isinstance(node, list) and step in map(str, range(len(node))):
            node = node[int(step)]
        else:
            raise subschema.error(not_found)
    return document, node


# --- the types of values --------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What a subschema says about the type of a value.

    type: the column's; None for a struct, list or map. nullable: the schema allows null. required:
    the properties that an object must have. children: a struct's fields by name; the one item of a
    list, or value of a map, under "".
    """

    kind: JsonKind
    type: pa.DataType = None
    children: Mapping[str, Subschema] = field(default_factory=dict)
    nullable: bool = False
    required: frozenset[str] = frozenset()
    named_types: frozenset[str] | None = None
    """The JSON types that the schema names, without null, and with integer for number; None if it
    names none: then `properties` says nothing about a value that is not an object."""

    @property
    def item(self) -> Subschema:
        """The subschema of a list's items, or of a map's values."""
        return self.children[""]

    @property
    def description(self) -> str:
        """What messages call a value of this shape, with its type."""
        if self.kind == JsonKind.STRUCT:
            return "an object"
        return {JsonKind.MAP: "a map", JsonKind.LIST: "an array"}.get(
            self.kind
        ) or f"{self.kind} ({type_name(self.type)})"

    def field_shape(self, name: str, path: str) -> Shape:
        """Return the shape of a struct's field, or of a map's values. Raises OptionError if there
        is no such field."""
        subschema = self.children.get("" if self.kind == JsonKind.MAP else name)
        if subschema is not None:
            return shape_of_field(subschema)
        raise OptionError(f"the JSON Schema has no field {path}: {names_hint(name, self.children)}")


ANY: Final = Shape(JsonKind.JSON_TEXT, pa.string(), nullable=True)
_NULL: Final = Shape(JsonKind.NULL, pa.null(), nullable=True)


def shape_of(subschema: Subschema) -> Shape:
    """Return the shape of a subschema. Raises SchemaError, with the field."""
    subschema = _follow(subschema)
    node = subschema.node
    if subschema.depth is not None and subschema.parents.count(id(node)) >= subschema.depth:
        return ANY
    count_steps(1 + (len(node) // 50 if isinstance(node, dict) else 0))
    if node is True or node == {}:
        return ANY
    if not isinstance(node, dict):
        if node is False:
            return _NULL
        raise subschema.error(f"a schema is an object or a boolean, not {_brief(node)}")
    subschema = replace(subschema, parents=(*subschema.parents, id(node)))
    if beside := _beside_ref(subschema):
        return _merged_shape(subschema, [subschema.document.without(node, *beside), beside])
    for keyword in ("oneOf", "anyOf"):
        if keyword in node:
            return _union_shape(subschema, node[keyword], keyword)
    if "allOf" in node:
        parts = node["allOf"]
        if not isinstance(parts, list) or not parts:
            raise subschema.error(f"allOf is {_brief(parts)}, not a list of schemas")
        return _merged_shape(subschema, [*parts, subschema.document.without(node, "allOf")])
    types = _json_types(subschema)
    shapes = [
        _shape_of_json_type(subschema, name) for name in types if name != "null" or len(types) == 1
    ]
    if not shapes:
        return replace(ANY, required=_required(node))
    shape = _with_null(_common_shape(shapes) or ANY, "null" in types)
    if not {"type", "enum", "const"} & node.keys():
        return shape
    named = {*types, "integer"} if "number" in types else set(types)
    return replace(shape, named_types=frozenset(named - {"null"}))


def shape_of_field(subschema: Subschema) -> Shape:
    """Return the shape of a field that a column's type selects. The type bounds the number of
    subschemas, and ends recursion."""
    subschema.document.visited[0] = 0
    return shape_of(replace(subschema, parents=()))


def is_recursive(shape: Shape) -> bool:
    """Return whether something inside a shape contains itself."""
    try:
        for subschema in shape.children.values():
            type_of(replace(subschema, parents=(), depth=None))
    except RecursiveSchemaError:
        return True
    return False


def type_of(subschema: Subschema) -> pa.DataType:
    """Return the type that all fields of a subschema become. It is only compared with others."""
    return _full_type(shape_of(subschema))


def _full_type(shape: Shape) -> pa.DataType:
    """Return the type that all fields of a shape become. It is only compared with others."""
    return type_of_shape(shape, {name: type_of(child) for name, child in shape.children.items()})


def _full_kind(shape: Shape) -> tuple[Any, ...]:
    """Return how all fields of a shape are read, which types do not say: text and JSON text are
    both strings. It is only compared with others."""
    children = shape.children.items()
    return shape.kind, shape.type, [(name, _full_kind(shape_of(part))) for name, part in children]


def type_of_shape(shape: Shape, children: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type that a shape becomes, by the types of its children."""
    if shape.kind == JsonKind.STRUCT:
        return pa.struct(list(children.items()))
    if shape.kind == JsonKind.LIST:
        return pa.list_(children[""])
    if shape.kind == JsonKind.MAP:
        return pa.map_(pa.string(), children[""])
    return shape.type


def _with_null(shape: Shape, nullable: bool) -> Shape:
    """Return the shape, which also allows null if `nullable`."""
    return replace(shape, nullable=True) if nullable else shape


def _json_types(subschema: Subschema) -> list[str]:
    """Return the names of the JSON types that a value may have."""
    names = subschema.node.get("type")
    if names is None:
        names = list(_implied_types(subschema.node))
    types = [names] if isinstance(names, str) else names
    if not isinstance(types, list) or not all(isinstance(name, str) for name in types):
        raise subschema.error(f"type is {_brief(names)}, not a name or names of types")
    known = {"null", "boolean", "integer", "number", "string", "object", "array"}
    if unknown := [name for name in types if name not in known]:
        raise subschema.error(f"no type of JSON Schema is called {unknown[0]!r}")
    if "number" in types:  # integers are numbers too
        types = [name for name in types if name != "integer"]
    return list(dict.fromkeys(types))


def _implied_types(node: dict[str, Any]) -> Iterator[str]:
    """Yield the types that a schema without "type" implies by enum, const or other keywords."""
    values = node.get("enum")
    if "const" in node:
        values = [node["const"]]
    if isinstance(values, list):
        for value in values:
            if isinstance(value, bool):
                yield "boolean"
            elif isinstance(value, int | float):
                yield "integer" if isinstance(value, int) else "number"
            else:
                names: dict[type[Any], str] = {str: "string", dict: "object", list: "array"}
                yield names.get(type(value), "null")
    elif "properties" in node:
        yield "object"
    elif "items" in node or "prefixItems" in node:
        yield "array"


def _shape_of_json_type(subschema: Subschema, json_type: str) -> Shape:
    """Return the shape of a value of one JSON type, "object", "array", "string" and so on, by the
    other keywords of its subschema."""
    node = subschema.node
    if json_type == "object":
        return _object_shape(subschema)
    if json_type == "array":
        return _array_shape(subschema)
    if json_type == "boolean":
        return Shape(JsonKind.BOOL, pa.bool_())
    if json_type == "null":
        return _NULL
    title, connect_type, format_ = node.get("title"), node.get("connect.type"), node.get("format")
    if title == f"{_CONNECT}Decimal" and (decimal := _decimal_shape(subschema, json_type)):
        return decimal
    if json_type == "string":
        if connect_type == "bytes" or node.get("contentEncoding") == "base64":
            return Shape(JsonKind.BINARY, pa.binary())
        if format_ == "date":
            return Shape(JsonKind.DATE, pa.date32())
        if format_ == "date-time":
            return Shape(JsonKind.TIMESTAMP, _MICROS)
        if format_ == "local-date-time":
            return Shape(JsonKind.LOCAL_TIMESTAMP, LOCAL_TIMESTAMP_TYPE)
        return Shape(JsonKind.TEXT, pa.string())
    if json_type == "integer":
        if title == f"{_CONNECT}Timestamp":
            return Shape(JsonKind.EPOCH_MILLIS, _MICROS)
        if title == f"{_CONNECT}Date":
            return Shape(JsonKind.EPOCH_DAYS, pa.date32())
        for name in (connect_type, format_):
            if isinstance(name, str) and name in _INTEGERS:
                return Shape(JsonKind.INTEGER, _INTEGERS[name])
        return Shape(JsonKind.INTEGER, pa.int64())
    if connect_type == "float32" or format_ == "float":
        return Shape(JsonKind.FLOAT, pa.float32())
    return Shape(JsonKind.FLOAT, pa.float64())


def _decimal_shape(subschema: Subschema, json_type: str) -> Shape | None:
    """Return the shape of Kafka Connect's Decimal, which is a number or a string with its bytes in
    Base64 (`json_type`); None if the subschema does not give the scale."""
    parameters = subschema.node.get("connect.parameters")
    if not isinstance(parameters, dict) or "scale" not in parameters:
        return None
    try:
        scale = int(parameters["scale"])
        precision = int(parameters.get("connect.decimal.precision", 38))
        if not 0 <= scale <= precision <= 38 or not precision:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise subschema.error(
            f"{_brief(parameters)} does not have a valid scale and precision (at most 38)"
        ) from None
    kind = JsonKind.DECIMAL_BYTES if json_type == "string" else JsonKind.DECIMAL
    return Shape(kind, pa.decimal128(precision, scale))


def _object_shape(subschema: Subschema) -> Shape:
    """Return the shape of an object: a struct if it has properties, whose fields are its children;
    a map if all others have one schema, which is its only child; or else any value."""
    node, path = subschema.node, subschema.path
    properties = node.get("properties", {})
    if not isinstance(properties, dict):
        raise subschema.error(f"properties is {_brief(properties)}, not an object")
    if properties:
        fields = {
            name: subschema.at(field_schema, child_path(path, name))
            for name, field_schema in properties.items()
            if field_schema is not False
        }
        return Shape(JsonKind.STRUCT, children=fields, required=_required(node))
    additional = node.get("additionalProperties")
    if isinstance(additional, dict) and additional:
        return Shape(JsonKind.MAP, children={"": subschema.at(additional, f"{path}{{}}")})
    return replace(ANY, required=_required(node))


def _required(node: dict[str, Any]) -> frozenset[str]:
    """Return the names of the properties that an object must have."""
    names = node.get("required")
    return frozenset(
        name for name in (names if isinstance(names, list) else ()) if isinstance(name, str)
    )


def _array_shape(subschema: Subschema) -> Shape:
    """Return the shape of an array. The items of a tuple are any value, unless all have one
    type."""
    node = subschema.node
    items = node.get("items", True)
    first = node.get("prefixItems", [])
    if isinstance(items, list):  # draft-07's tuples
        first, items = items, node.get("additionalItems", True)
    if not isinstance(first, list):
        raise subschema.error(f"prefixItems is {_brief(first)}, not a list")
    path = f"{subschema.path}[]"
    if not first:
        item = subschema.at(True if items is False else items, path)
    else:
        rest = [] if items is False else [items]
        item, *others = [subschema.at(node, path) for node in (*first, *rest)]
        kind = _full_kind(shape_of(item))
        if any(_full_kind(shape_of(other)) != kind for other in others):
            item = subschema.at(True, path)
    return Shape(JsonKind.LIST, children={"": item})


def _union_shape(subschema: Subschema, branches: Any, keyword: str) -> Shape:
    """Return the shape of oneOf or anyOf (`keyword`): that which all branches have, else any value.
    If the keywords beside it give the type, and the branches only restrict it, it is theirs."""
    if not isinstance(branches, list) or not branches:
        raise subschema.error(f"{keyword} is {_brief(branches)}, not a list of schemas")
    siblings = subschema.document.without(subschema.node, "oneOf", "anyOf")
    if isinstance(known := siblings.get("properties"), dict):  # those of an object in each branch
        if any(_adds_properties(branch, known) for branch in branches):
            return ANY
        return shape_of(subschema.at(siblings))
    if siblings and all(_only_validates(branch) for branch in branches):
        return shape_of(subschema.at(siblings))
    all_shapes = [shape_of(subschema.at(branch)) for branch in branches]
    shapes = [shape for shape in all_shapes if shape.kind != JsonKind.NULL]
    if not shapes:
        return _NULL
    nullable = any(shape.nullable for shape in all_shapes)
    shape = _with_null(_common_shape(shapes) or ANY, nullable)
    named = [shape.named_types for shape in shapes]
    if any(names is None for names in named):
        return replace(shape, named_types=None)
    return replace(shape, named_types=frozenset().union(*filter(None, named)))


def _adds_properties(branch: Any, known: dict[str, Any]) -> bool:
    """Return whether a branch has other properties than those that all branches share."""
    if not isinstance(branch, dict) or "$ref" in branch:
        return True
    properties = branch.get("properties", {})
    return not (isinstance(properties, dict) and properties.keys() <= known.keys())


def _only_validates(branch: Any) -> bool:
    """Return whether a branch says nothing about types, as {"required": […]}."""
    return isinstance(branch, dict) and not (_TYPING | {"$ref"}) & branch.keys()


def _merged_shape(subschema: Subschema, parts: list[Any]) -> Shape:
    """Return the shape of a value that fits all parts (allOf): it has the properties of all. A
    property to which parts give different types is JSON text, and so is a value that may be of
    several types in all parts that name types."""
    all_shapes = [shape_of(subschema.at(part)) for part in parts]
    shapes = [shape for shape in all_shapes if shape.kind != JsonKind.JSON_TEXT]
    named = [shape.named_types for shape in all_shapes if shape.named_types is not None]
    common = frozenset.intersection(*named) if named else None
    has_several_types = common is not None and len(common) > 1 and common != {"number", "integer"}
    if not shapes or has_several_types:
        return replace(ANY, named_types=common)
    if all(shape.kind == JsonKind.STRUCT for shape in shapes):
        fields: dict[str, Subschema] = {}
        for shape in shapes:
            for name, child in shape.children.items():
                if name not in fields:
                    fields[name] = child
                elif type_of(fields[name]) != type_of(child):
                    fields[name] = child.at(True)
        return Shape(
            JsonKind.STRUCT,
            children=fields,
            required=frozenset().union(*(shape.required for shape in all_shapes)),
            nullable=all(shape.nullable for shape in shapes),
            named_types=common,
        )
    common_shape = _common_shape(shapes, _full_type)
    if common_shape is None and not common:
        ref = _ref_keyword(subschema.node)
        parts_of = f"{ref} and the keywords beside it" if ref else "parts of allOf"
        raise subschema.error(f"{parts_of} give it different types")
    return replace(common_shape or ANY, named_types=common)


def _common_shape(
    shapes: list[Shape], description: Callable[[Shape], Any] = _full_kind
) -> Shape | None:
    """Return the shape that all shapes have; None if they differ. Integers are numbers too.
    Objects and arrays differ if their `description` does."""
    if len(shapes) == 1:
        return shapes[0]
    if {shape.kind for shape in shapes} == {JsonKind.INTEGER, JsonKind.FLOAT}:
        return Shape(JsonKind.FLOAT, pa.float64())
    first = shapes[0]
    if any(shape.kind != first.kind for shape in shapes):
        return None
    if first.kind in (JsonKind.STRUCT, JsonKind.MAP, JsonKind.LIST):
        descriptions = [description(shape) for shape in shapes]
        if any(other != descriptions[0] for other in descriptions):
            return None
        # A value of any shape may be written: a field is required if all shapes require it.
        return replace(first, required=frozenset.intersection(*(s.required for s in shapes)))
    if first.kind == JsonKind.INTEGER:
        return max(shapes, key=lambda shape: int(shape.type.bit_width))
    return first if all(shape.type == first.type for shape in shapes) else None


def _brief(value: Any) -> str:
    """Return the first characters of a value, for messages."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# --- the schema of a type -------------------------------------------------------------------------


def schema_text(arrow_type: pa.DataType, title: str) -> str:
    """Return the JSON Schema of a type. Raises OptionError for a type that JSON has nothing for."""
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
    return json.dumps({**head, **_schema_of_type(arrow_type, "")}, ensure_ascii=False)


def _schema_of_type(arrow_type: pa.DataType, path: str) -> dict[str, Any]:
    """Return the JSON Schema of values of a type that are not null."""
    types = pa.types
    if types.is_struct(arrow_type):
        check_distinct(arrow_type, path)
        properties = {
            column.name: _schema_of_field(column, child_path(path, column.name))
            for column in arrow_type
        }
        required = [column.name for column in arrow_type if not column.nullable]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
    if types.is_map(arrow_type):
        if not types.is_string(arrow_type.key_type):
            raise OptionError(
                f"field {path}: JSON has strings as keys, not {type_name(arrow_type.key_type)}"
            )
        values = _schema_of_field(arrow_type.item_field, f"{path}{{}}")
        return {"type": "object", "additionalProperties": values}
    if types.is_list(arrow_type):
        return {"type": "array", "items": _schema_of_field(arrow_type.value_field, f"{path}[]")}
    kind = kind_of_type(arrow_type)
    if kind is None:
        raise OptionError(f"field {path}: {type_name(arrow_type)} cannot be written as JSON")
    if kind == JsonKind.INTEGER:
        return {"type": "integer", "connect.type": f"int{arrow_type.bit_width}"}
    if kind == JsonKind.FLOAT:
        return {"type": "number", "connect.type": f"float{arrow_type.bit_width}"}
    if kind == JsonKind.DECIMAL:
        return {
            "type": "number",
            "title": f"{_CONNECT}Decimal",
            "connect.type": "bytes",
            "connect.version": 1,
            "connect.parameters": {
                "scale": str(arrow_type.scale),
                "connect.decimal.precision": str(arrow_type.precision),
            },
        }
    return dict(_SCHEMAS[kind])


def _schema_of_field(column: pa.Field, path: str) -> dict[str, Any]:
    """Return the JSON Schema of a field, which allows null if the field does."""
    node = _schema_of_type(column.type, path)
    if not column.nullable or node == _SCHEMAS[JsonKind.NULL]:
        return node
    return {"oneOf": [{"type": "null"}, node]}


_SCHEMAS: Final[dict[JsonKind, dict[str, Any]]] = {
    JsonKind.BOOL: {"type": "boolean"},
    JsonKind.AS_TEXT: {"type": "string"},
    JsonKind.BINARY: {"type": "string", "contentEncoding": "base64", "connect.type": "bytes"},
    JsonKind.DATE: {"type": "string", "format": "date"},
    JsonKind.TIMESTAMP: {"type": "string", "format": "date-time"},
    JsonKind.LOCAL_TIMESTAMP: {"type": "string", "format": "local-date-time"},
    JsonKind.DURATION: {"type": "string", "format": "duration"},
    JsonKind.NULL: {"type": "null"},
}


# --- tags -----------------------------------------------------------------------------------------


def inline_tags(schema: Schema) -> dict[str, frozenset[str]]:
    """Return the values of Confluent's keyword `confluent:tags` by the properties' paths, as
    `$.customer.email`. A path in a definition, or in a referenced schema, begins with its name."""
    tags_by_path: dict[str, frozenset[str]] = {}
    schemas = [("$", schema)]
    seen: set[int] = set()
    while schemas:
        root, current = schemas.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        schemas += current.references
        try:
            waiting: list[tuple[Any, str]] = [(json.loads(current.text), root)]
        except (ValueError, RecursionError):  # reported where the schema is used
            continue
        while waiting:
            node, path = waiting.pop()
            if isinstance(node, list):
                waiting += [(part, path) for part in node]
            if not isinstance(node, dict):
                continue
            tags = node.get("confluent:tags")
            if isinstance(tags, list):
                tags_by_path[path] = frozenset(tag for tag in tags if isinstance(tag, str))
            for keyword, part in node.items():
                if keyword == "properties" and isinstance(part, dict):
                    waiting += [(child, f"{path}.{name}") for name, child in part.items()]
                elif keyword in ("definitions", "$defs") and isinstance(part, dict):
                    waiting += [(child, name) for name, child in part.items()]
                else:
                    waiting.append((part, path))
    return tags_by_path
