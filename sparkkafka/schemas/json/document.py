"""A JSON Schema's text: references followed, and what each part says of a value's type.

draft-07 and 2020-12 as far as they type values (draft-04 reads the same); what only checks them
(minimum, pattern, if, not …) is not looked at. Kafka Connect's hints (`connect.type`, titles of its
logical types) count: io.confluent.connect.json.JsonSchemaData writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

import pyarrow as pa

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.bounds import MAX_PATH, RECURSION_HINT, cut, spend
from sparkkafka.schemas.values import Schema, type_name

MAX_LEVELS: Final = 64
"""How deep objects and arrays of a schema may be nested."""
MAX_PARTS: Final = 20_000
"""How many parts of a schema are looked at: references can multiply them without end."""

_MICROS = pa.timestamp("us", "UTC")
_CONNECT = "org.apache.kafka.connect.data."


class Document:
    """One schema's parsed text, with those that it refers to. `address`: the URI that it has for
    who refers to it, the base of its own `$id`."""

    def __init__(self, schema: Schema, name: str = "", address: str = "") -> None:
        self.name = name
        self.references = dict(schema.references)
        self._loaded: dict[str, Document] = {}
        self.count = [0]
        try:
            self.root: Any = json.loads(schema.text)
        except RecursionError:
            raise SchemaError(f"the JSON Schema{self.called} is nested too deep") from None
        except ValueError as error:
            raise SchemaError(f"the JSON Schema{self.called} is not JSON: {error}") from None
        own = self.root.get("$id", "") if isinstance(self.root, dict) else ""
        self.base = _joined(address, own) if isinstance(own, str) else address

    @property
    def called(self) -> str:
        return f" {self.name!r}" if self.name else ""

    @cached_property
    def named(self) -> dict[str, Any]:
        """Parts by what they call themselves: $id, also as a URI, or an anchor after #."""
        found: dict[str, Any] = {}
        waiting = [self.root]
        while waiting:
            part = waiting.pop()
            if isinstance(part, list):
                waiting.extend(part)
            elif isinstance(part, dict):
                waiting.extend(part.values())
                for word, mark in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                    name = part.get(word)
                    if isinstance(name, str):
                        found[f"{mark}{name}"] = part
                        if not mark:
                            found.setdefault(_joined(self.base, name), part)
        return found

    @cached_property
    def _names(self) -> dict[str, str]:
        """The references' names by their URIs: a relative name is below the schema's `$id`, as
        Confluent's JsonSchema registers it."""
        return {_joined(self.base, name): name for name in self.references}

    def referred(self, name: str) -> Document | None:
        """The document of a reference of the registry, by its name or its URI."""
        if name not in self.references:
            name = self._names.get(name, name)
        if name not in self._loaded:
            if name not in self.references:
                return None
            document = Document(self.references[name], name, _joined(self.base, name))
            document.count = self.count
            self._loaded[name] = document
        return self._loaded[name]


def _joined(base: str, address: str) -> str:
    """An address as a URI, without an empty fragment; as it is if it is no URI."""
    try:
        return urljoin(base, address).rstrip("#")
    except ValueError:  # such as a bad IPv6 address
        return address


@dataclass(frozen=True)
class Place:
    """A part of a schema. `path`: the field that it types; `above`: the parts around it, by which
    recursion is seen; `levels`: how many objects and arrays are around it. `depth`: how often a
    part may be around itself, with itself; then it is JSON text. None: not at all."""

    document: Document
    node: Any
    path: str = ""
    above: tuple[int, ...] = field(default=(), repr=False)
    levels: int = 0
    depth: int | None = None

    def at(self, node: Any, path: str | None = None) -> Place:
        """A part of the same value, or of one below it (then with its path)."""
        self.document.count[0] += 1
        if self.document.count[0] > MAX_PARTS:
            raise TooLargeSchemaError(
                f"the JSON Schema has more than {MAX_PARTS} parts, references followed"
            )
        if path is None:
            return replace(self, node=node)
        if self.levels >= MAX_LEVELS:
            raise TooLargeSchemaError(
                f"the JSON Schema nests {self.path} deeper than {MAX_LEVELS} levels"
            )
        return replace(self, node=node, path=path, levels=self.levels + 1)


@dataclass(frozen=True)
class Shape:
    """What a schema says of a value. `kind`: one of plan.py's. `words`: the same for people."""

    kind: str
    type: pa.DataType = None
    fields: Mapping[str, Place] = field(default_factory=dict)
    items: tuple[Place, ...] = ()
    nullable: bool = False
    required: frozenset[str] = frozenset()
    stated: frozenset[str] | None = None
    """The types that the schema names, without null, and with integer for a number; None if it
    names none: then `properties` says nothing of a value that is no object."""

    @property
    def only(self) -> Place:
        return self.items[0]

    @property
    def words(self) -> str:
        if self.kind == "struct":
            return "an object"
        return {"map": "a map", "list": "an array"}.get(
            self.kind
        ) or f"{self.kind} ({type_name(self.type)})"


ANY: Final = Shape("json", pa.string(), nullable=True)
_NULL: Final = Shape("null", pa.null(), nullable=True)
_INTEGERS = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}


def place_of(schema: Schema, depth: int | None = None) -> Place:
    """The whole of a schema. Raises SchemaError if its text is not JSON."""
    document = Document(schema)
    return Place(document, document.root, depth=depth)


def shape_of(place: Place) -> Shape:
    """What the schema says at a place. Raises SchemaError, with the field."""
    place = _followed(place)
    if place.depth is not None and place.above.count(id(place.node)) >= place.depth:
        return ANY
    node = place.node
    spend(1 + (len(node) // 50 if isinstance(node, dict) else 0))
    if node is True or node == {}:
        return ANY
    if not isinstance(node, dict):
        if node is False:
            return _NULL
        raise _error(place, f"a schema is an object or a boolean, not {_brief(node)}")
    place = replace(place, above=(*place.above, id(node)))
    for word in ("oneOf", "anyOf"):
        if word in node:
            return _union(place, node[word], word)
    if "allOf" in node:
        return _merged(place, node["allOf"])
    types = _types(place, node)
    shapes = [_typed(place, each) for each in types if each != "null" or len(types) == 1]
    if not shapes:
        return ANY
    shape = _nullable(_same(place, shapes) or ANY, "null" in types)
    if not {"type", "enum", "const"} & node.keys():
        return shape
    stated = {*types, "integer"} if "number" in types else set(types)
    return replace(shape, stated=frozenset(stated - {"null"}))


def _nullable(shape: Shape, nullable: bool) -> Shape:
    return replace(shape, nullable=True) if nullable else shape


def _types(place: Place, node: dict[str, Any]) -> list[str]:
    """The names of types that a value may have."""
    given = node.get("type")
    if given is None:
        given = list(_implied(node))
    types = [given] if isinstance(given, str) else given
    if not isinstance(types, list) or not all(isinstance(each, str) for each in types):
        raise _error(place, f"type is {_brief(given)}, not a name or names of types")
    known = {"null", "boolean", "integer", "number", "string", "object", "array"}
    if unknown := [each for each in types if each not in known]:
        raise _error(place, f"no type of JSON Schema is called {unknown[0]!r}")
    if "number" in types:
        types = [each for each in types if each != "integer"]
    return list(dict.fromkeys(types))


def _implied(node: dict[str, Any]) -> Iterator[str]:
    """Types that a schema without "type" implies: those of enum and const, or of its keywords."""
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


def _typed(place: Place, kind: str) -> Shape:
    node = place.node
    if kind == "object":
        return _object(place)
    if kind == "array":
        return _array(place)
    if kind == "boolean":
        return Shape("bool", pa.bool_())
    if kind == "null":
        return _NULL
    title, hint, shape = node.get("title"), node.get("connect.type"), node.get("format")
    if title == f"{_CONNECT}Decimal" and (decimal := _decimal(place, kind)):
        return decimal
    if kind == "string":
        if hint == "bytes" or node.get("contentEncoding") == "base64":
            return Shape("binary", pa.binary())
        if shape == "date":
            return Shape("date", pa.date32())
        if shape == "date-time":
            return Shape("timestamp", _MICROS)
        if shape == "local-date-time":
            return Shape("local timestamp", pa.timestamp("us"))
        return Shape("text", pa.string())
    if kind == "integer":
        if title == f"{_CONNECT}Timestamp":
            return Shape("epoch millis", _MICROS)
        if title == f"{_CONNECT}Date":
            return Shape("epoch days", pa.date32())
        for word in (hint, shape):
            if isinstance(word, str) and word in _INTEGERS:
                return Shape("integer", _INTEGERS[word])
        return Shape("integer", pa.int64())
    if hint == "float32" or shape == "float":
        return Shape("float", pa.float32())
    return Shape("float", pa.float64())


def _decimal(place: Place, kind: str) -> Shape | None:
    """Connect's Decimal, a number or its bytes in base64: scale and precision stand beside it."""
    given = place.node.get("connect.parameters")
    if not isinstance(given, dict) or "scale" not in given:
        return None
    try:
        scale = int(given["scale"])
        precision = int(given.get("connect.decimal.precision", 38))
        if not 0 <= scale <= precision <= 38 or not precision:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _error(place, f"{_brief(given)} is no scale and precision up to 38") from None
    how = "decimal in base64" if kind == "string" else "decimal"
    return Shape(how, pa.decimal128(precision, scale))


def _object(place: Place) -> Shape:
    node = place.node
    properties = node.get("properties", {})
    if not isinstance(properties, dict):
        raise _error(place, f"properties is {_brief(properties)}, not an object")
    if properties:
        fields = {
            name: place.at(each, cut(f"{place.path}.{name}" if place.path else name, MAX_PATH))
            for name, each in properties.items()
            if each is not False
        }
        needed = node.get("required", [])
        required = (
            [each for each in needed if isinstance(each, str)] if isinstance(needed, list) else ()
        )
        return Shape("struct", fields=fields, required=frozenset(required))
    others = node.get("additionalProperties")
    if isinstance(others, dict) and others:
        return Shape("map", items=(place.at(others, f"{place.path}{{}}"),))
    return ANY


def _array(place: Place) -> Shape:
    node = place.node
    items = node.get("items", True)
    first = node.get("prefixItems", [])
    if isinstance(items, list):  # draft-07's tuples
        first, items = items, node.get("additionalItems", True)
    if not isinstance(first, list):
        raise _error(place, f"prefixItems is {_brief(first)}, not a list")
    below = f"{place.path}[]"
    if not first:
        return Shape("list", items=(place.at(True if items is False else items, below),))
    each = [place.at(item, below) for item in (*first, *([] if items is False else [items]))]
    if all(type_at(item) == type_at(each[0]) for item in each):
        return Shape("list", items=(each[0],))
    return Shape("list", items=(place.at(True, below),))


def _union(place: Place, given: Any, word: str) -> Shape:
    if not isinstance(given, list) or not given:
        raise _error(place, f"{word} is {_brief(given)}, not a list of schemas")
    siblings = {key: each for key, each in place.node.items() if key not in ("oneOf", "anyOf")}
    if isinstance(known := siblings.get("properties"), dict):
        return ANY if any(_adds(each, known) for each in given) else shape_of(place.at(siblings))
    if all(_adds_nothing(each) for each in given) and siblings:
        return shape_of(place.at(siblings))
    all_shapes = [shape_of(place.at(each)) for each in given]
    shapes = [shape for shape in all_shapes if shape.kind != "null"]
    if not shapes:
        return _NULL
    nullable = any(shape.nullable for shape in all_shapes)
    shape = _nullable(_same(place, shapes) or ANY, nullable)
    stated = [shape.stated for shape in shapes]
    names_all = all(each is not None for each in stated)
    return replace(shape, stated=frozenset().union(*filter(None, stated)) if names_all else None)


def _adds(branch: Any, known: dict[str, Any]) -> bool:
    """Whether a branch has more properties than those that all branches share."""
    if not isinstance(branch, dict) or "$ref" in branch:
        return True
    properties = branch.get("properties", {})
    return not (isinstance(properties, dict) and properties.keys() <= known.keys())


def _adds_nothing(branch: Any) -> bool:
    """Whether a branch only checks, as {"required": […]} does."""
    typing = {"type", "properties", "items", "$ref", "enum", "const", "oneOf", "anyOf", "allOf"}
    return isinstance(branch, dict) and not typing & branch.keys()


def _merged(place: Place, given: Any) -> Shape:
    """allOf: the properties of all parts together. A property to which parts give different types
    is JSON text, and so is what may be of several types in all parts that name types."""
    if not isinstance(given, list) or not given:
        raise _error(place, f"allOf is {_brief(given)}, not a list of schemas")
    siblings = {key: each for key, each in place.node.items() if key != "allOf"}
    shapes = [shape_of(place.at(each)) for each in (*given, siblings)]
    said = [shape for shape in shapes if shape.kind != "json"]
    stated = [shape.stated for shape in shapes if shape.stated is not None]
    common = frozenset.intersection(*stated) if stated else None
    if not said or (common is not None and len(common) > 1 and common != {"number", "integer"}):
        return replace(ANY, stated=common)
    if all(shape.kind == "struct" for shape in said):
        fields: dict[str, Place] = {}
        for shape in said:
            for name, each in shape.fields.items():
                if name not in fields:
                    fields[name] = each
                elif type_at(fields[name]) != type_at(each):
                    fields[name] = each.at(True)
        required = frozenset().union(*(shape.required for shape in said))
        nullable = all(shape.nullable for shape in said)
        return Shape("struct", fields=fields, required=required, nullable=nullable, stated=common)
    same = _same(place, said)
    if same is None and not common:
        raise _error(place, "parts of allOf give it different types")
    return replace(same or ANY, stated=common)


def _same(place: Place, shapes: list[Shape]) -> Shape | None:
    """The one shape of all, integers being numbers too; None if they differ."""
    if len(shapes) == 1:
        return shapes[0]
    if {shape.kind for shape in shapes} == {"integer", "float"}:
        return Shape("float", pa.float64())
    first = shapes[0]
    if any(shape.kind != first.kind for shape in shapes):
        return None
    if first.kind in ("struct", "map", "list"):
        types = [_type(shape) for shape in shapes]
        if any(each != types[0] for each in types):
            return None
        # A value of any of them may be written: only what all require is required.
        return replace(first, required=frozenset.intersection(*(s.required for s in shapes)))
    if first.kind == "integer":
        return max(shapes, key=lambda shape: int(shape.type.bit_width))
    return first if all(shape.type == first.type for shape in shapes) else None


def type_at(place: Place) -> pa.DataType:
    return _type(shape_of(place))


def _type(shape: Shape) -> pa.DataType:
    """The type of all that a shape has; only for comparison."""
    if shape.kind == "struct":
        return pa.struct([(name, type_at(each)) for name, each in shape.fields.items()])
    if shape.kind == "list":
        return pa.list_(type_at(shape.only))
    if shape.kind == "map":
        return pa.map_(pa.string(), type_at(shape.only))
    return shape.type


def _followed(place: Place) -> Place:
    """The place that a reference, or one after the other, leads to."""
    seen: list[str] = []
    while isinstance(place.node, dict) and ("$ref" in place.node or "$dynamicRef" in place.node):
        ref = place.node.get("$ref", place.node.get("$dynamicRef"))
        if not isinstance(ref, str):
            raise _error(place, f"$ref is {_brief(ref)}, not a text")
        seen.append(ref)
        spend(1 + len(ref) // 50)
        document, node = _target(place, ref)
        place = replace(place, document=document, node=node)
        if len(seen) > MAX_LEVELS:
            raise _error(place, f"$ref {_brief(ref)} leads to more than {MAX_LEVELS} others")
        if place.depth is None and id(node) in place.above:
            words = f"{_brief(ref)} contains itself, which no Spark type can. {RECURSION_HINT}"
            raise RecursiveSchemaError(str(_error(place, words)))
    return place


class RecursiveSchemaError(SchemaError):
    """A part of a schema that contains itself, where no depth ends that."""


class TooLargeSchemaError(SchemaError):
    """A schema of too many parts or levels, references followed."""


def inside(place: Place) -> Shape:
    """As `shape_of`, of a part that a finite type reaches: that ends what contains itself, and says
    how many of the parts there are."""
    place.document.count[0] = 0
    return shape_of(replace(place, above=()))


def recurs(shape: Shape) -> bool:
    """Whether something inside of a shape contains itself."""
    try:
        for place in (*shape.fields.values(), *shape.items):
            type_at(replace(place, above=(), depth=None))
    except RecursiveSchemaError:
        return True
    return False


def _target(place: Place, ref: str) -> tuple[Document, Any]:
    """What a reference names: a part of this document by path, anchor or $id, or of another."""
    document = place.document
    try:
        address, fragment = urldefrag(ref)
        whole = urljoin(document.base, address)
    except ValueError as error:  # such as a bad IPv6 address
        raise _error(place, f"$ref {_brief(ref)} is no reference: {error}") from None
    node = document.root
    if address and whole != document.base:
        other = document.referred(address) or document.referred(whole)
        inside = document.named.get(address, document.named.get(whole))
        if other is not None:
            document, node = other, other.root
        elif inside is not None:
            node = inside
        else:
            known = ", ".join(map(repr, document.references)) or "none"
            raise _error(
                place,
                f"$ref {_brief(ref)} is not among the schema's references, which are: {known}",
            )
    if not fragment:
        return document, node
    nowhere = f"$ref {_brief(ref)} leads to nothing{_inside(document)}"
    if not fragment.startswith("/"):
        if f"#{fragment}" not in document.named:
            raise _error(place, nowhere)
        return document, document.named[f"#{fragment}"]
    for step in unquote(fragment)[1:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and step in node:
            node = node[step]
        elif isinstance(node, list) and step in map(str, range(len(node))):
            node = node[int(step)]
        else:
            raise _error(place, nowhere)
    return document, node


def _inside(document: Document) -> str:
    return f" in {document.name!r}" if document.name else ""


def _error(place: Place, message: str) -> SchemaError:
    where = f"field {place.path}: " if place.path else ""
    return SchemaError(f"JSON Schema{place.document.called}: {where}{message}")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
