"""JSON's syntax, strictly: one text -> Python values, and values -> text. RFC 8259.

The standard library's parser does it. What it takes beyond the standard is refused: NaN, Infinity,
lone surrogates. What could harm is bounded: nesting, and numbers of many digits, which stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

MAX_NESTED: Final = 200
"""How deep objects and arrays may be nested, those in fields that nobody wants too."""

_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# What remains of a text without whole surrogate pairs and all other escapes: lone surrogates.
_WHOLE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]|\\u(?![dD][89a-fA-F])"
)

quoted = json.encoder.encode_basestring
"""A string as JSON, with quotes. Not more is escaped than must be."""


class Number(str):
    """A number's own text: one with a fraction or an exponent, one of very many digits, or -0."""

    __slots__ = ()


class BrokenTextError(ValueError):
    """Bytes that are no JSON text; the message says why."""


def _constant(name: str) -> Any:
    raise BrokenTextError(f"{name} is not JSON")


_FAST = json.JSONDecoder(parse_float=Number, parse_constant=_constant)
_NEGATIVE_ZERO = re.compile(rb"-0(?![0-9.eE])")
_SIGNED = json.JSONDecoder(
    parse_float=Number,
    parse_int=lambda text: Number(text) if text == "-0" else int(text),
    parse_constant=_constant,
)
_LONG = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_constant)


def parse(payload: bytes) -> Any:
    """A text's value: dict (the last of equal names counts), list, str, int, Number, bool, None.
    Raises BrokenTextError."""
    if payload.startswith(_BOM):  # RFC 8259 8.1 lets parsers ignore it
        payload = payload[3:]
    if len(payload) > 2 * MAX_NESTED and too_deep(payload):
        raise BrokenTextError(f"is nested deeper than {MAX_NESTED} levels")
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise BrokenTextError(f"is not UTF-8 (at byte {error.start})") from None
    if b"\\u" in payload and _SURROGATE.search(payload) and b"\\u" in _WHOLE.sub(b"", payload):
        raise BrokenTextError("has half of a surrogate pair, which is no character")
    decoder = _SIGNED if _NEGATIVE_ZERO.search(payload) else _FAST
    try:
        scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]
        value, end = scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError, RecursionError):
        pass
    try:  # the same again, by way of what says why
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise BrokenTextError("is empty, which is not JSON") from None
        raise BrokenTextError(_reason(error)) from None
    except BrokenTextError:
        raise
    except (ValueError, RecursionError):
        pass  # an integer of more digits than Python converts (sys.set_int_max_str_digits)
    try:
        return _LONG.decode(text)
    except json.JSONDecodeError as error:
        raise BrokenTextError(_reason(error)) from None
    except RecursionError:
        raise BrokenTextError("is nested too deep") from None


def _reason(error: json.JSONDecodeError) -> str:
    what = error.msg[:1].lower() + error.msg[1:]
    return f"is not JSON: {what} at character {error.pos}"


def too_deep(payload: bytes) -> bool:
    """Whether a JSON text nests deeper than MAX_NESTED. Of bytes that are no JSON it says
    anything, in time and memory of their length."""
    if len(payload) <= 2 * MAX_NESTED or payload.count(b"[") + payload.count(b"{") <= MAX_NESTED:
        return False
    plain = np.frombuffer(payload.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    inside = np.cumsum(plain == ord('"'), dtype=np.uint8) & 1  # strings: after an odd quote
    marks = (plain | 0x20) * (1 - inside)  # makes [ and {, ] and } alike
    steps = (marks == 0x7B).astype(np.int8) - (marks == 0x7D)
    return bool(np.cumsum(steps, dtype=np.int32).max(initial=0) > MAX_NESTED)


def text_of(value: Any) -> str:
    """A value of `parse` as compact JSON text. Numbers keep their digits."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is dict:
        return "{" + ",".join([f"{quoted(name)}:{text_of(v)}" for name, v in value.items()]) + "}"
    if kind is list:
        return "[" + ",".join([text_of(each) for each in value]) + "]"
    if kind is bool:
        return "true" if value else "false"
    return "null" if value is None else str(value)


def name_of(value: Any) -> str:
    """What a value is, for people. Never the value: it may be a secret, or long."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | Number):
        return "a number"
    names: dict[type[Any], str] = {str: "a string", dict: "an object", list: "an array"}
    return names.get(type(value), "null")


_EXACT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")
_MAX_EXPONENT = 12  # digits of an exponent, leading zeros aside: more is out of any type's range


def scaled(number: str, scale: int, most_digits: int) -> int | None:
    """A number's text times 10 to the `scale`, as an exact integer of at most `most_digits`
    digits; None if it has more, or a fraction is left. Not slower for absurd exponents."""
    match = _EXACT.fullmatch(number)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups(default="")
    if not whole and not fraction:
        return None
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return 0
    power = exponent.lstrip("+-").lstrip("0") or "0"
    if len(power) > _MAX_EXPONENT:
        return None
    ten = int(power) * (-1 if exponent.startswith("-") else 1)
    shift = ten - len(fraction) + len(digits) - len(kept) + scale
    if shift < 0 or len(kept) + shift > most_digits:
        return None
    return int(f"{sign}{kept}{'0' * shift}")
