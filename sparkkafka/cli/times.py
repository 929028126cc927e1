"""Times as people write them at a prompt."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from sparkkafka.errors import OptionError

FORMS: Final = (
    "ms since 1970 (1767225600000), ISO 8601 (2026-01-31T12:00, with +01:00 behind it if it is not "
    "UTC), or how long ago (-90s, -15m, -2h, -1d)"
)
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,9})([smhd])")
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")

ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="The oldest record.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="The end.")]
ToTime = Annotated[
    str | None,
    typer.Option(
        "--to-time", metavar="TIME", help="The first record of this time or later: ms, ISO, -2h."
    ),
]


def timestamp_ms_of(text: str, option: str) -> int:
    """Milliseconds since 1970 UTC. Raises OptionError, which names the option and the forms."""
    word = text.strip()
    if word.isascii() and word.isdecimal() and len(word) <= 18:
        return int(word)
    ago = _AGO.fullmatch(word)
    if ago is not None:
        return max(int(time.time() * 1000) - int(ago[1]) * _UNITS_MS[ago[2]], 0)
    try:
        found = datetime.fromisoformat(word)
        # As Kafka's own tools take it, so that all who read a command mean the same time.
        moment_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        moment_s = -1.0
    if moment_s < 0:
        raise OptionError(f"{option} is {FORMS}; got {text[:100]!r}")
    return round(moment_s * 1000)


def seconds_of(text: str, option: str) -> float:
    """A span of time, 30s, 15m, 2h or 1d. Raises OptionError."""
    span = _SPAN.fullmatch(text.strip())
    if span is None:
        raise OptionError(f"{option} is a time like 30s, 15m, 2h or 1d; got {text[:100]!r}")
    return int(span[1]) * _UNITS_MS[span[2]] / 1000


def iso_of(timestamp_ms: int) -> str:
    """For people, in this machine's zone, to the second."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    return moment.isoformat(" ", timespec="seconds")
