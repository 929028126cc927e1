"""JSON text to Python values and back, strictly by RFC 8259; and dates, times and durations in it.

The standard library's parser reads it. What that accepts beyond the standard is refused: NaN,
Infinity, lone surrogates. What could do harm is limited: nesting, and numbers with very many
digits, which stay text.
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from typing import Any, Final

import numpy as np

from sparkkafka.schemas.schema_errors import cut

MAX_NESTING: Final = 200
"""Levels of objects and arrays, including those in fields that are not read."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Matches surrogate pairs and all other escapes. After their removal lone surrogates remain.
_NO_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]|\\u(?![dD][89a-fA-F])"
)

quote = json.encoder.encode_basestring
"""Return a string as JSON, with quotes, escaping only what must be escaped."""


class Number(str):
    """The text of a number with a fraction, an exponent or very many digits, or of -0."""

    __slots__ = ()


class UnfitError(ValueError):
    """A value does not fit its field: the field's path, innermost step first, and the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        path = "".join(self.path[::-1]).removeprefix(".")
        return cut(f"field {path}: {self.reason}" if path else f"the value {self.reason}")


class JsonSyntaxError(UnfitError):
    """Bytes that are not a JSON text. The reason says why, and begins with "is" or "has"."""


def _refuse_constant(name: str) -> Any:
    """Raise JsonSyntaxError for NaN and Infinity, which the standard library's parser accepts."""
    raise JsonSyntaxError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=Number, parse_constant=_refuse_constant)
_NEGATIVE_ZERO = re.compile(rb"-0(?![0-9.eE])")
_NEGATIVE_ZERO_DECODER = json.JSONDecoder(
    parse_float=Number,
    parse_int=lambda text: Number(text) if text == "-0" else int(text),
    parse_constant=_refuse_constant,
)
_LONG_NUMBER_DECODER = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
)


BLANKS: Final = " \t\r\n"


def parse(payload: bytes, *, is_shallow: bool = False) -> Any:
    """Return a text's value: dict (of equal names the last counts), list, str, int, Number, bool or
    None. `is_shallow`: its nesting was checked. Raises JsonSyntaxError."""
    if payload.startswith(b"\xef\xbb\xbf"):  # a BOM, which parsers may ignore (RFC 8259, 8.1)
        payload = payload[3:]
    if not is_shallow and len(payload) > 2 * MAX_NESTING and nests_too_deep(payload):
        raise JsonSyntaxError(f"is nested deeper than {MAX_NESTING} levels")
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise JsonSyntaxError(f"is not UTF-8 (at byte {error.start})") from None
    if (
        b"\\u" in payload
        and _SURROGATE.search(payload)
        and b"\\u" in _NO_LONE_SURROGATE.sub(b"", payload)
    ):
        raise JsonSyntaxError("has half of a surrogate pair, which is not a character")
    has_negative_zero = b"-0" in payload and _NEGATIVE_ZERO.search(payload)
    decoder = _NEGATIVE_ZERO_DECODER if has_negative_zero else _DECODER
    begin = len(text) - len(text.lstrip(BLANKS))
    for parser in (decoder, _LONG_NUMBER_DECODER):
        try:
            value, end = parser.scan_once(text, begin)  # type: ignore[attr-defined]
        except StopIteration as error:
            if begin == len(text):
                raise JsonSyntaxError("is empty, which is not JSON") from None
            raise _syntax_error("Expecting value", error.value) from None
        except json.JSONDecodeError as error:
            raise _syntax_error(error.msg, error.pos) from None
        except JsonSyntaxError:
            raise
        except (ValueError, RecursionError):
            continue  # an integer of more digits than Python converts (sys.set_int_max_str_digits)
        if trailing := text[end:].lstrip(BLANKS):
            raise _syntax_error("Extra data", len(text) - len(trailing))
        return value
    raise JsonSyntaxError("is nested too deep")


def is_json(text: str) -> bool:
    """Return whether a text without white space around it is JSON, or would be without NaN and lone
    surrogates. That takes a third of the time of `parse`."""
    try:
        return bool(_CHECKER.scan_once(text, 0)[1] == len(text))  # type: ignore[attr-defined]
    except (StopIteration, json.JSONDecodeError):
        return False
    except (ValueError, RecursionError):  # an integer of very many digits, for `parse` to say
        return True


_CHECKER: Final = json.JSONDecoder()


def _syntax_error(message: str, position: int) -> JsonSyntaxError:
    """Return the error for a text that is no JSON: the parser's message, and the character's
    position."""
    reason = f"{message[:1].lower()}{message[1:]}"
    return JsonSyntaxError(f"is not JSON: {reason} at character {position}")


def nests_too_deep(payload: bytes) -> bool:
    """Return whether a JSON text nests deeper than MAX_NESTING, in time and memory that grow with
    its length only. For bytes that are not JSON, the result means nothing."""
    if len(payload) <= 2 * MAX_NESTING or payload.count(b"[") + payload.count(b"{") <= MAX_NESTING:
        return False
    # Without escaped quotes, each quote begins or ends a string: a string is after an odd number.
    unescaped = np.frombuffer(payload.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    in_string = np.cumsum(unescaped == ord('"'), dtype=np.uint8) & 1
    brackets = (unescaped | 0x20) * (1 - in_string)  # makes [ and {, ] and } the same
    steps = (brackets == ord("{")).astype(np.int8) - (brackets == ord("}"))
    return bool(np.cumsum(steps, dtype=np.int32).max(initial=0) > MAX_NESTING)


def to_json(value: Any) -> str:
    """Return a value of `parse` as compact JSON text. Numbers keep their digits."""
    kind = type(value)
    if kind is str:
        return quote(value)
    if kind is dict:
        return "{" + ",".join([f"{quote(name)}:{to_json(v)}" for name, v in value.items()]) + "}"
    if kind is list:
        return "[" + ",".join([to_json(item) for item in value]) + "]"
    if kind is bool:
        return "true" if value else "false"
    return "null" if value is None else str(value)


def json_type_name(value: Any) -> str:
    """Return the JSON type of a value of `parse`, for messages: never the value, which may be long
    or a secret."""
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES: Final = {
    bool: "a boolean",
    int: "a number",
    Number: "a number",
    str: "a string",
    dict: "an object",
    list: "an array",
    type(None): "null",
}

_NUMBER = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?", re.ASCII)


def scale_number(number: str, scale: int, max_digits: int) -> int | None:
    """Return a number times 10 to the `scale`, exactly; None if that has more than `max_digits`
    digits or a fraction. Huge exponents take no longer."""
    match = _NUMBER.fullmatch(number)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups(default="")
    if not whole and not fraction:
        return None
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    power = exponent.lstrip("+-").lstrip("0") or "0"
    if len(power) > 12:  # an exponent that is out of any type's range
        return None
    exponent_value = int(power) * (-1 if exponent.startswith("-") else 1)
    # The result is `significant` times 10 to the `shift`.
    shift = exponent_value - len(fraction) + len(digits) - len(significant) + scale
    if shift < 0 or len(significant) + shift > max_digits:
        return None
    return int(f"{sign}{significant}{'0' * shift}")


# --- dates, times and durations in strings ------------------------------------------------------
#
# ISO 8601 as in RFC 3339, and a little more: all that pyarrow's conversion of strings accepts must
# be accepted here, with the same result, since decode.py tries that one first.

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?)?"
    r"([Zz]|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
# The form of nearly all times, on a day that each month has.
_USUAL_TIME = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
    r"(?:\.\d{1,6})?(Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?",
    re.ASCII,
)
_DURATION = re.compile(
    r"([+-]?)P(?:(\d{1,9})D)?(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,13})(?:\.(\d+))?S)?)?",
    re.ASCII,
)


def is_date(text: str) -> bool:
    """Return whether a text is a date of the calendar, as YYYY-MM-DD."""
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    # The year 0 is a leap year, like 4.
    return 1 <= month <= 12 and 1 <= day <= monthrange(year or 4, month)[1]


def normalize_time(text: str) -> tuple[str, bool] | None:
    """Return (the time as pyarrow parses it, whether it has an offset from UTC); None for any other
    text. Digits below microseconds are cut off, as Spark does."""
    match = _USUAL_TIME.fullmatch(text)
    if match is not None:
        return text, match.lastindex is not None
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    date, hour, minute, second, fraction, offset = match.groups()
    if not is_date(date):
        return None
    if int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        return None
    if offset and offset not in "Zz" and (int(offset[1:3]) > 23 or int(offset[3:][-2:] or 0) > 59):
        return None
    if offset and hour is None:
        return None
    micros = f".{fraction[:6]}" if fraction else ""
    time = f"{date}T{hour or '00'}:{minute or '00'}:{second or '00'}{micros}{offset or ''}"
    return time.replace("z", "Z"), offset is not None


def duration_micros(text: str) -> int | None:
    """Return the microseconds of an ISO 8601 duration in days to seconds; None for any other text.
    Years and months have no fixed length."""
    match = _DURATION.fullmatch(text)
    if match is None or text[-1] in "PT":
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    total = int(days or 0) * 24 + int(hours or 0)
    total = (total * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    total = total * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))
    total = -total if sign == "-" else total
    return total if -(2**63) <= total < 2**63 else None


def duration_text(micros: int) -> str:
    """Return a duration as ISO 8601: PT1.5S, -PT90S."""
    seconds, fraction_micros = divmod(abs(micros), 1_000_000)
    fraction = f".{fraction_micros:06}".rstrip("0") if fraction_micros else ""
    return f"{'-' if micros < 0 else ''}PT{seconds}{fraction}S"
