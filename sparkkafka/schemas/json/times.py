"""Dates, times and durations in texts: ISO 8601 as RFC 3339 has it, and a little more.

What is taken here must contain all that pyarrow's conversion of strings takes, with the same
result: columns.py asks that one first.
"""

from __future__ import annotations

import re
from calendar import monthrange
from typing import Final

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?)?"
    r"([Zz]|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
# Most times by far: the common form, on a day that each month has.
_COMMON = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
    r"(?:\.\d{1,6})?(Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?",
    re.ASCII,
)
_DURATION = re.compile(
    r"([+-]?)P(?:(\d{1,9})D)?(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,13})(?:\.(\d+))?S)?)?",
    re.ASCII,
)
MAX_MICROS: Final = 2**63 - 1


def date_text(text: str) -> str | None:
    """The date if it is one of the calendar, as YYYY-MM-DD; else None."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day = map(int, match.groups())
    return text if 1 <= month <= 12 and 1 <= day <= _days(year, month) else None


def _days(year: int, month: int) -> int:
    return monthrange(year or 4, month)[1]  # the year 0 is a leap year, like 4


def time_text(text: str) -> tuple[str, bool] | None:
    """(the time in the form that pyarrow takes, whether it has an offset from UTC); None for what
    is no time. Digits below microseconds are cut off, as Spark does."""
    match = _COMMON.fullmatch(text)
    if match is not None:
        return text, match.lastindex is not None
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    date, hour, minute, second, fraction, offset = match.groups()
    if date_text(date) is None:
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


def micros_of(text: str) -> int | None:
    """An ISO 8601 duration of days to seconds in microseconds; None for what is none. Years and
    months have no fixed length."""
    match = _DURATION.fullmatch(text)
    if match is None or text[-1] in "PT":
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    total = int(days or 0) * 24 + int(hours or 0)
    total = (total * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    total = total * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))
    return None if total > MAX_MICROS else -total if sign == "-" else total


def duration_text(micros: int) -> str:
    """The duration as ISO 8601: PT1.5S, -PT90S."""
    seconds, below = divmod(abs(micros), 1_000_000)
    fraction = f".{below:06}".rstrip("0") if below else ""
    return f"{'-' if micros < 0 else ''}PT{seconds}{fraction}S"
