"""Normalizes JSON texts one by one, or says why a text is bad.

A normalized text is an object with one field `v`. Its value has only the fields of the column's
type, each in the form that pyarrow's reader takes for its type, so that this reader can make all
columns (see `decode.py`). Here it is decided which values are valid.

This is much slower than reading many texts at once. It is used for texts that pyarrow cannot read:
maps, values of any type, numbers in other notations, repeated names, and everything invalid.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Collection
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.schemas.json import syntax
from sparkkafka.schemas.json.object_fields import FieldTree
from sparkkafka.schemas.json.plan import JsonNode
from sparkkafka.schemas.json.schema import JsonKind
from sparkkafka.schemas.json.syntax import UnfitError
from sparkkafka.schemas.schema_errors import MAX_KEY, cut, names_hint
from sparkkafka.schemas.values import (
    BASE_BUDGET,
    BUDGET_PER_BYTE,
    COLUMN_BYTES_PER_BYTE,
    ROW_BYTES,
    bytes_per_value,
)

Writer = Callable[[Any], str]
"""Returns the normalized text of a value, as `syntax.parse` returns it and not None. Raises
UnfitError."""

# Looked up for each value: on Python 3.11 a member of an enum takes 0.1 µs.
_LIST, _MAP, _STRUCT = JsonKind.LIST, JsonKind.MAP, JsonKind.STRUCT

NOTHING: Final = object()
"""The rest of a value if a field takes all of it."""


class JsonNormalizer:
    """Normalizes the texts of one node. With `rest`, values that do not fit and fields that the
    type lacks are returned as the row's rest; with `exact`, a field that the type lacks makes the
    row bad. `item_bytes` is the result of the function of this name."""

    def __init__(self, root: JsonNode, rest: bool, exact: bool = False) -> None:
        self._root = root
        self._rest = rest
        self.item_bytes = item_bytes(root)
        self._write = make_writer(root, exact=exact)
        self._writers: dict[int, Writer] = {}  # nodes without fields, by Python id

    @cached_property
    def field_names(self) -> tuple[list[bytes], dict[bytes, FieldTree]]:
        """The arguments `known` and `structs` of `other_fields`: the names of the type's fields
        that have no fields themselves; and by the names of the others, the names of their
        fields."""
        nested = {name: child for name, child in self._root.children.items() if _has_fields(child)}
        return [name.encode() for name in self._root.children if name not in nested], {
            name.encode(): _field_tree(child) if child.kind is _STRUCT else {}
            for name, child in nested.items()
        }

    def read(self, payload: bytes) -> tuple[str, str | None]:
        """Return (the normalized text, the rest as JSON text or None). Raises UnfitError, whose
        message is the reason."""
        value = syntax.parse(payload)
        if value is None:
            return "null", None
        if self.item_bytes and takes_too_much(self._root, payload, value, self.item_bytes):
            raise UnfitError(
                "has items that take too much memory as columns, for a payload of "
                f"{len(payload):,} bytes"
            )
        if not self._rest:
            return self._write(value), None
        if type(value) is not dict:
            raise UnfitError(f"is {syntax.json_type_name(value)}, not an object")
        text, rest = self.split(self._root, value)
        return text, None if rest is NOTHING else syntax.to_json(rest)

    def rest_of(self, value: Any) -> str | None:
        """Return the rest of a parsed text as JSON text, or None."""
        _, rest = self.split(self._root, value)
        return None if rest is NOTHING else syntax.to_json(rest)

    def split(self, node: JsonNode, value: Any) -> tuple[str, Any]:
        """Return the normalized text of a value, with null for what does not fit, and its rest: the
        parts that match no field, with the objects and arrays around them. Objects lack the fields
        that match, and arrays have null for items that match. NOTHING if all parts match."""
        if value is None:
            return "null", NOTHING
        python_type = type(value)
        texts: list[str] = []
        rests: dict[Any, Any] = {}
        if node.kind in (_STRUCT, _MAP) and python_type is dict:
            write_part = _entry if node.kind is _MAP else _member
            for name, item in value.items():
                rest = item
                child = node.item if node.kind is _MAP else node.children.get(name)
                if child is not None:
                    text, rest = self.split(child, item)
                    texts.append(write_part(name, text))
                if rest is not NOTHING:
                    rests[name] = rest
            joined = ",".join(texts)
            return f"[{joined}]" if node.kind is _MAP else f"{{{joined}}}", rests or NOTHING
        if node.kind is _LIST and python_type is list:
            for index, item in enumerate(value):
                text, rest = self.split(node.item, item)
                texts.append(text)
                if rest is not NOTHING:
                    rests[index] = rest
            left = [rests.get(index) for index in range(len(value))] if rests else NOTHING
            return f"[{','.join(texts)}]", left
        write = self._writers.get(id(node))
        if write is None:
            write = self._writers[id(node)] = make_writer(node)
        try:
            return write(value), NOTHING
        except UnfitError:
            return "null", value


def _has_fields(node: JsonNode) -> bool:
    """Return whether values of the node may have fields that its type lacks, at any level."""
    if node.kind is _STRUCT:
        return True
    return bool(node.children) and _has_fields(node.item)


def _field_tree(node: JsonNode) -> FieldTree:
    """Return the fields of a struct, but not arrays and maps whose items may have fields."""
    return {
        name.encode(): _field_tree(child) if child.kind is _STRUCT else {}
        for name, child in node.children.items()
        if child.kind is _STRUCT or not _has_fields(child)
    }


def _unknown_field(name: str, names: Collection[str]) -> UnfitError:
    """Return the error for a field that the type does not have. `names`: the fields that it has."""
    error = UnfitError(f"the schema has no such field; {names_hint(name, names)}")
    error.path.append(f".{cut(name, MAX_KEY)}")
    return error


# --- memory ---------------------------------------------------------------------------------------
#
# An item of an array or map takes memory in each column of its type, even if its text is only {}.

_MIN_ITEM_TEXT: Final = 3  # {} and a comma


def item_bytes(root: JsonNode) -> int:
    """Return the most bytes that one item of an array or map takes in columns, of all arrays and
    maps of the type; 0 if these are so few that the number of items needs no limit."""
    size = _largest_item(root)
    return size if size > _MIN_ITEM_TEXT * BUDGET_PER_BYTE else 0


def _largest_item(node: JsonNode) -> int:
    """Return the most bytes that one item of an array or map in `node` takes in columns; 0 without
    arrays and maps."""
    size = max(map(_largest_item, node.children.values()), default=0)
    if node.kind in (_LIST, _MAP):
        size = max(size, bytes_per_value(node.item.type))
    return size


def max_item_bytes(data: Bytes, size: int) -> int:
    """Return the most bytes that the items of all texts can take in columns. `data` has the texts,
    concatenated, and `size` is the most bytes of one item."""
    return int(np.count_nonzero(_item_starts(data))) * size


def may_take_too_much(data: Bytes, starts: Ints, ends: Ints, size: int) -> Flags:
    """Return which texts, from `starts` to `ends` in `data`, may have items that take too much
    memory, of at most `size` bytes each. All objects and nulls in a text are counted as items."""
    if size <= _MIN_ITEM_TEXT * COLUMN_BYTES_PER_BYTE:
        return np.zeros(len(starts), np.bool_)
    items = np.flatnonzero(_item_starts(data))
    counts = np.searchsorted(items, ends) - np.searchsorted(items, starts)
    flags: Flags = counts * size > ROW_BYTES + (ends - starts) * COLUMN_BYTES_PER_BYTE
    return flags


def _item_starts(data: Bytes) -> Flags:
    """Return at which bytes an object or a null begins (or, in a string, may seem to)."""
    first = data[:-1]
    starts: Flags = (first == ord("{")) | ((first == ord("n")) & (data[1:] == ord("u")))
    return starts


def takes_too_much(root: JsonNode, payload: bytes, value: Any, size: int) -> bool:
    """Return whether the objects and nulls in a value take too much memory as columns, compared
    with the length of its payload. `size`: the most bytes that one of them takes."""
    length = len(payload)
    limit = min(ROW_BYTES + length * COLUMN_BYTES_PER_BYTE, BASE_BUDGET + length * BUDGET_PER_BYTE)
    # First a bound that is fast to compute: each { is an object at most, and each "nu" a null.
    if (payload.count(b"{") + payload.count(b"nu")) * size <= limit:
        return False
    return _items_size(root, value, limit) > limit


def _items_size(node: JsonNode, value: Any, limit: int) -> int:
    """Return the bytes that the items of a value take as columns, or any number above `limit`."""
    python_type = type(value)
    if node.kind is _STRUCT and python_type is dict:
        children = node.children
        return sum(
            _items_size(children[name], value[name], limit) for name in value if name in children
        )
    if node.kind not in (_LIST, _MAP) or python_type not in (list, dict):
        return 0
    list_bytes = len(value) * bytes_per_value(node.item.type)
    if list_bytes > limit or not node.item.children:
        return list_bytes
    items = value.values() if python_type is dict else value
    return list_bytes + sum(_items_size(node.item, item, limit) for item in items)


# --- writers of normalized texts ------------------------------------------------------------------


def make_writer(node: JsonNode, *, exact: bool = False) -> Writer:
    """Return the Writer of a node. With `exact` it refuses fields that the type lacks."""
    if node.kind is _STRUCT:
        return _struct_writer(node, exact)
    if node.kind is _LIST:
        return _list_writer(node, exact)
    if node.kind is _MAP:
        return _map_writer(node, exact)
    if node.kind is JsonKind.INTEGER:
        bits = node.type.bit_width
        return _integer_writer(bits, f"a whole number of {bits} bits")
    if node.kind is JsonKind.FLOAT:
        return _float_writer(pa.types.is_float32(node.type))
    if node.kind is JsonKind.DECIMAL:
        return _decimal_writer(node.type.precision, node.type.scale)
    if node.kind is JsonKind.DECIMAL_BYTES:
        return _decimal_bytes_writer(node.type.precision, node.type.scale)
    return _WRITERS[node.kind]


def _struct_writer(node: JsonNode, exact: bool) -> Writer:
    """Return the Writer of a struct, which writes its fields and leaves out all others, or refuses
    them if `exact`."""
    fields = [
        (name, f"{syntax.quote(name)}:", make_writer(child, exact=exact))
        for name, child in node.children.items()
    ]

    def write(value: Any) -> str:
        """Return an object as JSON text, with only the fields of the struct. Raises UnfitError."""
        if type(value) is not dict:
            raise _wrong_type(value, "an object")
        for name in value if exact else ():
            if name not in node.children:
                raise _unknown_field(name, node.children)
        parts = []
        name = ""
        try:
            for name, label, write_field in fields:
                item = value.get(name)
                if item is not None:
                    parts.append(label + write_field(item))
        except UnfitError as error:
            error.path.append(f".{name}")
            raise
        return "{" + ",".join(parts) + "}"

    return write


def _list_writer(node: JsonNode, exact: bool) -> Writer:
    """Return the Writer of a list."""
    write_item = make_writer(node.item, exact=exact)

    def write(value: Any) -> str:
        """Return an array as JSON text. Raises UnfitError, whose path has the index of the bad
        item."""
        if type(value) is not list:
            raise _wrong_type(value, "an array")
        parts: list[str] = []
        try:
            for item in value:
                parts.append("null" if item is None else write_item(item))  # noqa: PERF401
        except UnfitError as error:
            error.path.append(f"[{len(parts)}]")
            raise
        return "[" + ",".join(parts) + "]"

    return write


def _map_writer(node: JsonNode, exact: bool) -> Writer:
    """Return the Writer of a map."""
    write_item = make_writer(node.item, exact=exact)

    def write(value: Any) -> str:
        """Return an object as the JSON text of a list of {"key": …, "value": …}. Raises
        UnfitError."""
        if type(value) is not dict:
            raise _wrong_type(value, "an object")
        parts = []
        name = ""
        try:
            for name, item in value.items():
                parts.append(_entry(name, "null" if item is None else write_item(item)))
        except UnfitError as error:
            error.path.append(f".{cut(name, MAX_KEY)}")
            raise
        return "[" + ",".join(parts) + "]"

    return write


def _member(name: str, text: str) -> str:
    """Return a field of a struct as JSON. `text`: its value."""
    return f"{syntax.quote(name)}:{text}"


def _entry(name: str, text: str) -> str:
    """Return an item of a map as JSON, an object with key and value: pyarrow reads no maps, so
    `decode.py` makes maps of lists of these. `text`: its value."""
    return f'{{"key":{syntax.quote(name)},"value":{text}}}'


class WrongTypeError(UnfitError):
    """A value of another JSON type than its field's: all values of its Python type are wrong."""


def _wrong_type(value: Any, expected: str) -> UnfitError:
    """Return the error for a value of another JSON type than `expected`, such as "a boolean"."""
    return WrongTypeError(f"is {syntax.json_type_name(value)}, not {expected}")


def _integer_writer(bits: int, expected: str) -> Writer:
    """Return the Writer of integers of this many bits. `expected` names them in errors."""
    limit = 2 ** (bits - 1)

    def write(value: Any) -> str:
        """Return an integer as JSON text. Raises UnfitError for any other value."""
        number = value
        # 1.0 and 1e3 are integers (JSON Schema, draft 6 and later). 64 bits have 19 digits.
        if type(value) is syntax.Number:
            number = syntax.scale_number(value, 0, 19)
        elif type(value) is not int:
            raise _wrong_type(value, expected)
        if number is None or not -limit <= number < limit:
            raise UnfitError(f"is a number that does not fit: it is not {expected}")
        return str(number)

    return write


def _float_writer(single: bool) -> Writer:
    """Return the Writer of float32 (`single`) or float64."""

    def write(value: Any) -> str:
        """Return a number as JSON text. Raises UnfitError for any other value, and for one that
        overflows."""
        if type(value) is int and -(2**53) <= value <= 2**53:  # which a double has exactly
            return str(value)
        if type(value) is not syntax.Number and type(value) is not int:
            raise _wrong_type(value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number) or (single and _overflows_float32(value, number)):
            raise UnfitError(f"is a number too large for a {'float' if single else 'double'}")
        # A float32 keeps its text: by way of a float64 it would be rounded twice.
        return str(value) if single and number else repr(number)

    return write


def _overflows_float32(value: syntax.Number | int, number: float) -> bool:
    """Return whether a number is nearer to 2**128 than to the largest float32, 2**128 - 2**104.
    `number`: the value as a float, which rules out most values quickly."""
    return abs(number) >= 3.4e38 and Decimal(value).copy_abs() >= 2**128 - 2**103


def _decimal_writer(precision: int, scale: int) -> Writer:
    """Return the Writer of decimals of this precision and scale, which takes numbers and
    strings."""

    def write(value: Any) -> str:
        """Return a number as a JSON string that pyarrow reads as a decimal. Raises UnfitError if it
        has too many digits."""
        if type(value) not in (int, syntax.Number, str):
            raise _wrong_type(value, "a number")
        number = syntax.scale_number(str(value), scale, precision)
        if number is None:
            if type(value) is str:
                raise UnfitError(
                    f"is a string that is not a number of decimal({precision},{scale})"
                )
            raise UnfitError(f"is a number that does not fit into decimal({precision},{scale})")
        return f'"{number}e-{scale}"'

    return write


def _decimal_bytes_writer(precision: int, scale: int) -> Writer:
    """Return the Writer of decimals from their bytes in base64, as Kafka Connect writes them."""

    def write(value: Any) -> str:
        """Return a number in base64 as a JSON string that pyarrow reads as a decimal. Raises
        UnfitError."""
        _write_binary(value)  # raises unless it is base64
        digits = binascii.a2b_base64(value)
        # More bytes than these hold no decimal, and long numbers take long to compute.
        number = int.from_bytes(digits, "big", signed=True) if len(digits) <= 32 else None
        if number is None or abs(number) >= 10**precision:
            raise UnfitError(f"is a number that does not fit into decimal({precision},{scale})")
        return f'"{number}e-{scale}"'

    return write


def _write_bool(value: Any) -> str:
    """Return a boolean as JSON. Raises UnfitError for another value."""
    if type(value) is bool:
        return "true" if value else "false"
    raise _wrong_type(value, "a boolean")


def _refuse_all(value: Any) -> str:
    """Raise UnfitError for a value where only null fits: null is written without a Writer."""
    raise _wrong_type(value, "null")


def _checked_string(value: Any) -> str:
    """Return the value if it is a string. Raises UnfitError."""
    if type(value) is not str:
        raise _wrong_type(value, "a string")
    return value


def _write_binary(value: Any) -> str:
    """Return a string of Base64 unchanged, as JSON. Raises UnfitError for another value."""
    text = _checked_string(value)
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise UnfitError("is a string that is not base64") from None
    return syntax.quote(text)


def _write_date(value: Any) -> str:
    """Return a string like "2024-01-31" unchanged, as JSON. Raises UnfitError for another value."""
    if not syntax.is_date(_checked_string(value)):
        raise UnfitError("is a string that is not a date like 2024-01-31")
    return syntax.quote(value)


def _write_timestamp(value: Any) -> str:
    """Return a time with an offset from UTC as pyarrow parses it, as JSON. Raises UnfitError for
    another value."""
    time, has_offset = _parse_time(value)
    if not has_offset:
        raise UnfitError(
            "is a time without offset from UTC (2024-01-31T10:00:00Z has one); read it as"
            " timestamp_ntz, or as string"
        )
    return syntax.quote(time)


def _write_local_timestamp(value: Any) -> str:
    """Return a time without an offset from UTC as pyarrow parses it, as JSON. Raises UnfitError for
    another value."""
    time, has_offset = _parse_time(value)
    if has_offset:
        raise UnfitError("is a time with an offset from UTC; read it as timestamp, or as string")
    return syntax.quote(time)


def _parse_time(value: Any) -> tuple[str, bool]:
    """Return (the time as pyarrow parses it, whether it has an offset from UTC). Raises
    UnfitError."""
    text = syntax.normalize_time(_checked_string(value))
    if text is None:
        raise UnfitError("is a string that is not a time like 2024-01-31T10:00:00Z")
    return text


def _write_duration(value: Any) -> str:
    """Return a duration of ISO 8601 as its number of microseconds. Raises UnfitError for another
    value."""
    micros = syntax.duration_micros(_checked_string(value))
    if micros is None:
        raise UnfitError("is a string that is not a duration of days to seconds like PT1H30M")
    return str(micros)


def _write_millis(value: Any) -> str:
    """Return a number of milliseconds unchanged. Raises UnfitError for one that no timestamp can
    have."""
    text = _write_whole_millis(value)
    if abs(int(text)) > 2**63 // 1000:  # its microseconds do not fit into 64 bits
        raise UnfitError("is a number of milliseconds too large for a timestamp")
    return text


_write_whole_millis = _integer_writer(64, "a whole number of milliseconds")

_WRITERS: Final[dict[JsonKind, Writer]] = {
    JsonKind.BOOL: _write_bool,
    JsonKind.TEXT: lambda value: syntax.quote(_checked_string(value)),
    JsonKind.AS_TEXT: lambda value: syntax.quote(
        value if type(value) is str else syntax.to_json(value)
    ),
    JsonKind.JSON_TEXT: lambda value: syntax.quote(syntax.to_json(value)),
    JsonKind.NULL: _refuse_all,
    JsonKind.BINARY: _write_binary,
    JsonKind.DATE: _write_date,
    JsonKind.TIMESTAMP: _write_timestamp,
    JsonKind.LOCAL_TIMESTAMP: _write_local_timestamp,
    JsonKind.DURATION: _write_duration,
    JsonKind.EPOCH_MILLIS: _write_millis,
    JsonKind.EPOCH_DAYS: _integer_writer(32, "a whole number of days"),
}
