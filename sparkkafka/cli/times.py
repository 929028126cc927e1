"""Times and durations as users write them at a prompt."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from sparkkafka.config.kinds import parse_duration_ms
from sparkkafka.errors import OptionError


def timestamp_ms_of(text: str, option: str) -> int:
    """Parse milliseconds, ISO 8601, or how long ago (-2h); return milliseconds since 1970 UTC.
    Raises OptionError, which names the option and these forms."""
    word = text.strip()
    if word.isascii() and word.isdecimal() and len(word) <= 18:
        return int(word)
    try:
        if word.startswith("-"):
            return max(int(time.time() * 1000) - _duration_ms(word[1:]), 0)
        parsed = datetime.fromisoformat(word)
        # UTC without a zone, as Kafka's own tools take it: the same moment on every machine.
        timestamp_s = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        timestamp_s = -1.0
    if timestamp_s < 0:
        raise OptionError(
            f"{option} is ms since 1970 (1767225600000), ISO 8601 (2026-01-31T12:00, with +01:00 "
            "behind it if it is not UTC), or how long ago (-90s, -15m, -2h, -1d); got "
            f"{text[:100]!r}"
        )
    return round(timestamp_s * 1000)


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a duration like 30s, 15m, 2h or 1d. Raises OptionError."""
    try:
        return _duration_ms(text) / 1000
    except ValueError:
        raise OptionError(
            f"{option} is a time with a unit, like 500ms, 30s, 15m or 2h; got {text[:100]!r}"
        ) from None


def _duration_ms(text: str) -> int:
    """Parse a duration as options do, but refuse a number without a unit, which in options is
    milliseconds. Raises ValueError."""
    if text.strip()[-1:].isdecimal():
        raise ValueError("a number without a unit")
    return parse_duration_ms(text)


def local_time(timestamp_ms: int) -> str:
    """Format a timestamp for people, in this machine's zone, to the second."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    return moment.isoformat(" ", timespec="seconds")
