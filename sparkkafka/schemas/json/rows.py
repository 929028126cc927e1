"""Texts one by one: JSON -> a clean text that columns.py reads without a doubt, or why it is bad.

A clean text has an object with the one field `v`; its value holds the wanted fields alone, each in
the form that its type needs. So one reader makes all columns, and what a value may be is said here
only. It is slower than that reader by far, and has what it does not take at once: maps, values of
any type, numbers written otherwise, names that are there twice, and whatever is wrong.
"""

from __future__ import annotations

import binascii
import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import some
from sparkkafka.schemas.bounds import cut
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.json.memory import item_bytes, too_large
from sparkkafka.schemas.json.plan import Node
from sparkkafka.schemas.json.texts import (
    BrokenTextError,
    Number,
    name_of,
    parse,
    quoted,
    scaled,
    text_of,
)
from sparkkafka.schemas.json.times import date_text, micros_of, time_text

Writer = Callable[[Any], str]
"""A value of texts.parse, not None, -> the clean text. Raises UnfitError."""

NOTHING: Final = object()
"""What is left of a value that a field took whole."""


class UnfitError(ValueError):
    """A value that its field cannot have: the field's path, inmost first, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        path = "".join(reversed(self.path)).removeprefix(".")
        return cut(f"field {path}: {self.reason}" if path else f"the value {self.reason}")


class RowReader:
    """Makes clean texts. With `rest`, a value that does not fit is left over instead of bad, and so
    is what no field has asked for; with `exact`, that is bad."""

    def __init__(self, root: Node, rest: bool, exact: bool = False) -> None:
        self._root = root
        self._rest = rest
        self._exact = exact
        self.item_bytes = item_bytes(root)
        self._write = _writer(root, forgiving=False)
        self._forgive = _writer(root, forgiving=True) if rest else self._write
        self._checks: dict[int, Writer] = {}  # by the node's id
        self._deep = {id(node) for node in _nodes(root) if _has_fields(node)}

    def read(self, payload: bytes) -> tuple[str, str | None]:
        """(the clean text, what is left over as JSON text). Raises UnfitError, whose message is the
        reason."""
        try:
            value = parse(payload)
        except BrokenTextError as error:
            raise UnfitError(str(error)) from None
        if value is None:
            return "null", None
        if self.item_bytes and too_large(self._root, payload, value, self.item_bytes):
            raise UnfitError(
                "has items that take too much memory as columns, for a payload of "
                f"{len(payload):,} bytes"
            )
        if self._exact and id(self._root) in self._deep:
            self._check_names(self._root, value)
        if not self._rest:
            return self._write(value), None
        if type(value) is not dict:
            raise UnfitError(f"is {name_of(value)}, not an object")
        try:  # most values fit, and then only names must be looked at
            text = self._write(value)
            left = self._unknown(self._root, value)
        except UnfitError:
            text = self._forgive(value)
            left = self._left(self._root, value)
        return text, None if left is NOTHING else text_of(left)

    def unknown(self, payload: bytes) -> str | None:
        """What is left over of a text that is known to fit. Raises BrokenTextError."""
        value = parse(payload)
        left = self._unknown(self._root, value)
        return None if left is NOTHING else text_of(left)

    def _check_names(self, node: Node, value: Any) -> None:
        """Raises UnfitError for a name that is no field, of a node with fields. What else does not
        fit is the writers' to refuse."""
        steps: Iterable[tuple[str, Node, Any]] = ()
        if node.kind == plan.LIST and type(value) is list:
            steps = ((f"[{number}]", node.item, each) for number, each in enumerate(value))
        elif node.kind == plan.MAP and type(value) is dict:
            steps = ((f".{_cut_name(name)}", node.item, each) for name, each in value.items())
        elif node.kind == plan.STRUCT and type(value) is dict:
            for name in value:
                if name not in node.children:
                    raise _unknown_field(name, list(node.children))
            steps = ((f".{name}", node.children[name], each) for name, each in value.items())
        for step, child, each in steps:
            if id(child) in self._deep:
                try:
                    self._check_names(child, each)
                except UnfitError as error:
                    error.path.append(step)
                    raise

    def _unknown(self, node: Node, value: Any) -> Any:
        """As `_left`, of a value that fits its node."""
        if value is None:
            return NOTHING
        if node.kind == plan.LIST:
            return _items([self._unknown(node.item, each) for each in value])
        children = dict.fromkeys(value, node.item) if node.kind == plan.MAP else node.children
        left = {}
        for name, each in value.items():
            child = children.get(name)
            if child is None:
                left[name] = each
            elif id(child) in self._deep:
                below = self._unknown(child, each)
                if below is not NOTHING:
                    left[name] = below
        return left or NOTHING

    def _left(self, node: Node, value: Any) -> Any:
        """What no field takes of a value: in objects the fields concerned, in arrays null for
        items that are taken; NOTHING if all is taken."""
        if value is None:
            return NOTHING
        kind = type(value)
        if node.kind == plan.STRUCT and kind is dict:
            left = {}
            for name, each in value.items():
                child = node.children.get(name)
                below = each if child is None else self._left(child, each)
                if below is not NOTHING:
                    left[name] = below
            return left or NOTHING
        if node.kind == plan.MAP and kind is dict:
            pairs = ((name, self._left(node.item, each)) for name, each in value.items())
            return {name: below for name, below in pairs if below is not NOTHING} or NOTHING
        if node.kind == plan.LIST and kind is list:
            return _items([self._left(node.item, each) for each in value])
        check = self._checks.get(id(node))
        if check is None:
            check = self._checks[id(node)] = _writer(node, forgiving=False)
        try:
            check(value)
        except UnfitError:
            return value
        return NOTHING


def _items(left: list[Any]) -> Any:
    """What is left of an array, by what is left of its items."""
    if all(below is NOTHING for below in left):
        return NOTHING
    return [None if below is NOTHING else below for below in left]


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from _nodes(child)


def _has_fields(node: Node) -> bool:
    """Whether there are names below a node that it may not know."""
    if node.kind == plan.STRUCT:
        return True
    return bool(node.children) and _has_fields(node.item)


def _writer(node: Node, forgiving: bool) -> Writer:
    """`forgiving`: null for what does not fit."""
    if node.kind == plan.STRUCT:
        write = _struct(node, forgiving)
    elif node.kind == plan.LIST:
        write = _list(node, forgiving)
    elif node.kind == plan.MAP:
        write = _map(node, forgiving)
    elif node.kind == plan.INTEGER:
        write = _integer(node.type.bit_width, f"a whole number of {node.type.bit_width} bits")
    elif node.kind == plan.FLOAT:
        write = _float(pa.types.is_float32(node.type))
    elif node.kind == plan.DECIMAL:
        write = _decimal(node.type.precision, node.type.scale)
    elif node.kind == plan.DECIMAL_BYTES:
        write = _decimal_bytes(node.type.precision, node.type.scale)
    else:
        write = _PLAIN[node.kind]
    return _forgiving(write) if forgiving else write


def _forgiving(write: Writer) -> Writer:
    def write_or_null(value: Any) -> str:
        try:
            return write(value)
        except UnfitError:
            return "null"

    return write_or_null


def _struct(node: Node, forgiving: bool) -> Writer:
    fields = [
        (name, f"{quoted(name)}:", _writer(child, forgiving), *_usual(child))
        for name, child in node.children.items()
    ]

    def write(value: Any) -> str:
        if type(value) is not dict:
            raise _refused(value, "an object")
        parts = []
        name = ""
        try:
            for name, label, below, usual, most in fields:
                each = value.get(name)
                if each is None:
                    continue
                kind = type(each)
                if kind is not usual:
                    parts.append(label + below(each))
                elif kind is str:  # strings and integers without a call for each
                    parts.append(label + quoted(each))
                elif -most <= each < most:
                    parts.append(f"{label}{each}")
                else:
                    parts.append(label + below(each))
        except UnfitError as error:
            error.path.append(f".{name}")
            raise
        return "{" + ",".join(parts) + "}"

    return write


def _usual(node: Node) -> tuple[type[Any], int]:
    """The type of values that need no writer, and for integers 1 more than the largest."""
    if node.kind in (plan.TEXT, plan.LENIENT):
        return str, 0
    if node.kind == plan.INTEGER:
        return int, 2 ** (node.type.bit_width - 1)
    return (int, 2**53) if node.kind == plan.FLOAT else (_Never, 0)


class _Never:
    """The type of no value."""


def _list(node: Node, forgiving: bool) -> Writer:
    below = _writer(node.item, forgiving)

    def write(value: Any) -> str:
        if type(value) is not list:
            raise _refused(value, "an array")
        parts: list[str] = []
        try:
            for each in value:
                parts.append("null" if each is None else below(each))  # noqa: PERF401
        except UnfitError as error:
            error.path.append(f"[{len(parts)}]")
            raise
        return "[" + ",".join(parts) + "]"

    return write


def _map(node: Node, forgiving: bool) -> Writer:
    """pyarrow reads no maps: a list of pairs, of which columns.py makes one."""
    below = _writer(node.item, forgiving)

    def write(value: Any) -> str:
        if type(value) is not dict:
            raise _refused(value, "an object")
        parts = []
        name = ""
        try:
            for name, each in value.items():
                text = "null" if each is None else below(each)
                parts.append(f'{{"key":{quoted(name)},"value":{text}}}')
        except UnfitError as error:
            error.path.append(f".{_cut_name(name)}")
            raise
        return "[" + ",".join(parts) + "]"

    return write


def _cut_name(name: str) -> str:
    return name if len(name) <= 40 else name[:37] + "…"


def _unknown_field(name: str, names: list[str]) -> UnfitError:
    near = difflib.get_close_matches(name[:100], names, n=3, cutoff=0.6)
    near = near or [other for other in names if other.lower() == name.lower()]
    there = some(names, most=10) or "no fields"
    error = UnfitError(
        f"the schema has no such field; did you mean {' or '.join(near)}?"
        if near
        else f"the schema has no such field; there are {there}"
    )
    error.path.append(f".{_cut_name(name)}")
    return error


def _refused(value: Any, wanted: str) -> UnfitError:
    return UnfitError(f"is {name_of(value)}, not {wanted}")


def _integer(bits: int, wanted: str) -> Writer:
    most = 2 ** (bits - 1)

    def write(value: Any) -> str:
        number = value
        if type(value) is Number:  # 1.0 and 1e3 are whole (JSON Schema, draft 6 and later)
            number = scaled(value, 0, 19)
        elif type(value) is not int:
            raise _refused(value, wanted)
        if number is None or not -most <= number < most:
            raise UnfitError(f"is a number that does not fit: it is not {wanted}")
        return str(number)

    return write


def _float(single: bool) -> Writer:
    def write(value: Any) -> str:
        if type(value) is int and -(2**53) <= value <= 2**53:
            return str(value)
        if type(value) is not Number and type(value) is not int:
            raise _refused(value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        # A float takes the text as it is: by way of a double it would be rounded twice.
        if math.isinf(number) or (single and abs(number) >= _NEAR_INFINITY and _is_large(value)):
            raise UnfitError(f"is a number too large for a {'float' if single else 'double'}")
        return str(value) if single and number else repr(number)

    return write


_NEAR_INFINITY: Final = 3.4e38
_ROUNDED_UP: Final = 2**128 - 2**103
"""From here on a number is nearer to 2**128, which no float has, than to the largest float."""


def _is_large(value: Number | int) -> bool:
    """Whether a number, finite as a double, is too large for a float."""
    return Decimal(value).copy_abs() >= _ROUNDED_UP


def _decimal(precision: int, scale: int) -> Writer:
    def write(value: Any) -> str:
        if type(value) not in (int, Number, str):
            raise _refused(value, "a number")
        number = scaled(str(value), scale, precision)
        if number is None:
            if type(value) is str:
                raise UnfitError(f"is a string that is no number of decimal({precision},{scale})")
            raise UnfitError(f"is a number that does not fit into decimal({precision},{scale})")
        return f'"{number}e-{scale}"'

    return write


def _decimal_bytes(precision: int, scale: int) -> Writer:
    def write(value: Any) -> str:
        if type(value) is not str:
            raise _refused(value, "a string")
        _binary(value)
        digits = binascii.a2b_base64(value)
        number = int.from_bytes(digits, "big", signed=True) if len(digits) <= 32 else None
        if number is None or abs(number) >= 10**precision:
            raise UnfitError(f"is a number that does not fit into decimal({precision},{scale})")
        return f'"{number}e-{scale}"'

    return write


def _boolean(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    raise _refused(value, "a boolean")


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _refused(value, "a string")
    return quoted(value)


def _lenient(value: Any) -> str:
    return quoted(value if type(value) is str else text_of(value))


def _json(value: Any) -> str:
    return quoted(text_of(value))


def _null(value: Any) -> str:
    raise _refused(value, "null")


def _binary(value: Any) -> str:
    if type(value) is not str:
        raise _refused(value, "a string")
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise UnfitError("is a string that is not base64") from None
    return quoted(value)


def _date(value: Any) -> str:
    if type(value) is not str:
        raise _refused(value, "a string")
    if date_text(value) is None:
        raise UnfitError("is a string that is no date like 2024-01-31")
    return quoted(value)


def _timestamp(value: Any) -> str:
    text, has_offset = _time(value)
    if not has_offset:
        raise UnfitError(
            "is a time without offset from UTC (2024-01-31T10:00:00Z has one); read it as"
            " timestamp_ntz, or as string"
        )
    return text


def _local_timestamp(value: Any) -> str:
    text, has_offset = _time(value)
    if has_offset:
        raise UnfitError("is a time with an offset from UTC; read it as timestamp, or as string")
    return text


def _time(value: Any) -> tuple[str, bool]:
    if type(value) is not str:
        raise _refused(value, "a string")
    found = time_text(value)
    if found is None:
        raise UnfitError("is a string that is no time like 2024-01-31T10:00:00Z")
    return quoted(found[0]), found[1]


def _duration(value: Any) -> str:
    if type(value) is not str:
        raise _refused(value, "a string")
    micros = micros_of(value)
    if micros is None:
        raise UnfitError("is a string that is no duration of days to seconds like PT1H30M")
    return str(micros)


def _millis(value: Any) -> str:
    text = _MILLIS(value)
    if abs(int(text)) > 2**63 // 1000:
        raise UnfitError("is a number of milliseconds too large for a timestamp")
    return text


_MILLIS = _integer(64, "a whole number of milliseconds")

_PLAIN: Final[dict[str, Writer]] = {
    plan.BOOL: _boolean,
    plan.TEXT: _text,
    plan.LENIENT: _lenient,
    plan.JSON_TEXT: _json,
    plan.NULL: _null,
    plan.BINARY: _binary,
    plan.DATE: _date,
    plan.TIMESTAMP: _timestamp,
    plan.LOCAL_TIMESTAMP: _local_timestamp,
    plan.DURATION: _duration,
    plan.EPOCH_MILLIS: _millis,
    plan.EPOCH_DAYS: _integer(32, "a whole number of days"),
}
