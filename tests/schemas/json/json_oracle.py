"""A second, slow JSON decoder by the standard library: what payloads must decode to."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
import struct
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa


class BadError(Exception):
    pass


NESTED = 200
_UTC = pa.array([0], pa.timestamp("us", "UTC"))[0].as_py().tzinfo  # pytz's with old pyarrow


def _constant(name: str) -> Any:
    raise BadError(name)


class _Float:
    """A number with fraction or exponent, or -0, by its text."""

    def __init__(self, text: str) -> None:
        self.text = text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in pairs:  # also those that a later one of the same name replaces
        _check([name, value], 0)
    return dict(pairs)


def parsed(payload: bytes) -> Any:
    if payload[:3] == b"\xef\xbb\xbf":
        payload = payload[3:]
    try:
        text = payload.decode()
        value = json.loads(
            text,
            parse_float=_Float,
            parse_int=lambda digits: _Float(digits) if digits == "-0" else int(digits),
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except (ValueError, RecursionError) as error:
        raise BadError(str(error)) from error
    _check(value, 0)
    return value


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if any(0xD800 <= ord(char) < 0xE000 for char in value):
            raise BadError("surrogate")
    elif isinstance(value, list | dict):
        if depth == NESTED:
            raise BadError("depth")
        parts = value if isinstance(value, list) else [*value.keys(), *value.values()]
        for part in parts:
            _check(part, depth + 1)


def decoded(payload: bytes, kind: pa.DataType) -> Any:
    """As to_pylist says it. Raises BadError."""
    return fitted(parsed(payload), kind)


def fitted(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        if not isinstance(value, dict):
            raise BadError("no object")
        return {each.name: fitted(value.get(each.name), each.type) for each in kind}
    if types.is_map(kind):
        if not isinstance(value, dict):
            raise BadError("no object")
        return [(name, fitted(each, kind.item_type)) for name, each in value.items()]
    if types.is_list(kind):
        if not isinstance(value, list):
            raise BadError("no list")
        return [fitted(each, kind.value_type) for each in value]
    if types.is_string(kind):
        return value if isinstance(value, str) else compact(value)
    if types.is_boolean(kind):
        return _only(isinstance(value, bool), value)
    if types.is_null(kind):
        raise BadError("not null")
    if types.is_decimal(kind) and isinstance(value, str):
        _only(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII), value)
        return _decimal(_exact(value), kind)
    if isinstance(value, bool) or (types.is_integer(kind) and isinstance(value, str)):
        raise BadError("no number")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        if not isinstance(value, int | _Float):
            raise BadError("no number")
        return _number(value.text if isinstance(value, _Float) else str(value), kind)
    if not isinstance(value, str):
        raise BadError("no string")
    try:
        if types.is_binary(kind):
            return base64.b64decode(value, validate=True)
        if types.is_date(kind):
            _only(re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII), value)
            return datetime.date.fromisoformat(value)
        return _time(value, kind)
    except ValueError as error:
        raise BadError(str(error)) from error


_NONE = object()


def with_rest(payload: bytes, kind: pa.DataType) -> tuple[Any, str | None]:
    """(the value, what no field took of it). Raises BadError."""
    value = parsed(payload)
    if value is not None and not isinstance(value, dict):
        raise BadError("no object")
    taken, left = _shared(value, kind)
    return taken, None if left is _NONE else compact(left)


def _shared(value: Any, kind: pa.DataType) -> tuple[Any, Any]:
    types = pa.types
    if value is None:
        return None, _NONE
    if types.is_struct(kind) and isinstance(value, dict):
        known = {each.name: each.type for each in kind}
        both = {name: _shared(each, known[name]) for name, each in value.items() if name in known}
        left = {name: both[name][1] if name in known else each for name, each in value.items()}
        left = {name: each for name, each in left.items() if each is not _NONE}
        return {name: both.get(name, (None,))[0] for name in known}, left or _NONE
    if types.is_map(kind) and isinstance(value, dict):
        both = {name: _shared(each, kind.item_type) for name, each in value.items()}
        left = {name: each for name, (_, each) in both.items() if each is not _NONE}
        return [(name, each) for name, (each, _) in both.items()], left or _NONE
    if types.is_list(kind) and isinstance(value, list):
        items = [_shared(each, kind.value_type) for each in value]
        rests = [None if each is _NONE else each for _, each in items]
        some = any(each is not _NONE for _, each in items)
        return [each for each, _ in items], rests if some else _NONE
    try:
        return fitted(value, kind), _NONE
    except BadError:
        return None, value


def _only(condition: Any, value: Any) -> Any:
    if not condition:
        raise BadError("another type")
    return value


def _exact(text: str) -> Decimal:
    if not re.search("[1-9]", re.split("[eE]", text)[0]):
        return Decimal(0)  # also with an exponent that Decimal refuses
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise BadError("exponent") from error


def _number(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind):
        number = float(text)
        if math.isinf(number):
            raise BadError("fit")
        if pa.types.is_float32(kind):
            try:
                return struct.unpack("<f", struct.pack("<f", number))[0]
            except OverflowError as error:
                raise BadError("fit") from error
        return number
    exact = _exact(text)
    if pa.types.is_decimal(kind):
        return _decimal(exact, kind)
    most = 2 ** (kind.bit_width - 1)
    if exact.adjusted() > 40 or not -most <= exact < most or exact != int(exact):
        raise BadError("fit")
    return int(exact)


def _decimal(exact: Decimal, kind: pa.DataType) -> Any:
    if not exact:
        return Decimal(0).scaleb(-kind.scale)
    sign, digits, _ = exact.as_tuple()
    text = "".join(map(str, digits)).strip("0")
    last = exact.adjusted() - len(text) + 1  # exponent of the last digit that is not 0
    if last < -kind.scale or exact.adjusted() >= kind.precision - kind.scale:
        raise BadError("fit")
    unscaled = int(text) * 10 ** (last + kind.scale)
    return Decimal((sign, tuple(map(int, str(unscaled))), -kind.scale))


_TIME = re.compile(
    r"\d{4}-\d\d-\d\d([Tt ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?(?P<zone>[Zz]|[+-]\d\d(:?\d\d)?)?",
    re.ASCII,
)


def _time(value: str, kind: pa.DataType) -> datetime.datetime:
    match = _only(_TIME.fullmatch(value), _TIME.fullmatch(value))
    if (kind.tz is not None) != (match["zone"] is not None):
        raise BadError("zone")
    zone = match["zone"] or ""
    rest = value[: len(value) - len(zone)]
    if zone and len(rest) == 10:
        raise BadError("a date with a zone")
    rest = re.sub(r"(\.\d{6})\d+", r"\1", rest)
    if zone not in ("", "Z", "z"):
        digits = zone[1:].replace(":", "").ljust(4, "0")
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            raise BadError("zone")
        zone = f"{zone[0]}{digits[:2]}:{digits[2:]}"
    time = datetime.datetime.fromisoformat(rest.upper() + zone.upper())
    return time.astimezone(_UTC) if zone else time


def compact(value: Any) -> str:
    if isinstance(value, _Float):
        return value.text
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(name, ensure_ascii=False)}:{compact(v)}" for name, v in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
