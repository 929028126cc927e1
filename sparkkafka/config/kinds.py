"""What an option is: a row of the table, and the kind of its values with words and a parser.

A parser raises ValueError; its message, if there is one, says what is wrong with the value.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# In place of Java's "for ever", Long.MAX_VALUE ms, which overflows the timers of operating systems.
FOREVER_MS = 10**12
RANDOM = "random"
ROUND_ROBIN = "round_robin"


@dataclass(frozen=True, slots=True)
class Kind:
    """What values an option takes: words for people, and the parser (raises ValueError)."""

    values: str
    parse: Callable[[str], Any]


class Status(enum.Enum):
    """What happens to an option that is given."""

    USED = "used"
    IGNORED = "ignored"  # accepted, one warning: it has no meaning here
    UNNEEDED = "unneeded"  # accepted: what it says is done anyway, or never looked at by Java
    REFUSED = "refused"


class Side(enum.Enum):
    READ = "read"
    WRITE = "write"
    BOTH = "both"

    def covers(self, other: Side) -> bool:
        return self is Side.BOTH or other is Side.BOTH or self is other


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row. `field` is "client.x", "fetch.x", "producer.x", "read.x", "security.x" or "write.x",
    or begins with one of `format_rows.FORMAT_GROUPS`.

    `alias_of`: another name, librdkafka's, of the row of that name.
    """

    name: str
    side: Side
    status: Status
    doc: str
    kind: Kind | None = None
    field: str | None = None
    default_text: str | None = None  # where the default cannot be shown as a value
    secret: bool = False
    alias_of: str = ""

    @property
    def key(self) -> str:
        """The name as Spark hands it over: lower case."""
        return self.name.lower()


def used(name: str, side: Side, field: str, kind: Kind, doc: str, **more: Any) -> Option:
    return Option(name=name, side=side, status=Status.USED, field=field, kind=kind, doc=doc, **more)


def each(status: Status, side: Side, names: str, doc: str, **more: Any) -> list[Option]:
    return [Option(name=name, side=side, status=status, doc=doc, **more) for name in names.split()]


# --- kinds --------------------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError
    return word == "true"


_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def integer(low: int, high: int = INT32_MAX) -> Kind:
    """A whole number in [low, high]; high is the type of the wire field or of Java's setting."""

    def parse(text: str) -> int:
        # int() alone would take "1_000", and digits of other scripts.
        if not _INTEGER.fullmatch(text.strip()):
            raise ValueError
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    shown = f"from {low} to {high}" if high not in (INT32_MAX, INT64_MAX) else f"of {low} or more"
    if high == INT32_MAX:
        shown += " (32 bits)"
    return Kind(f"a whole number {shown}", parse)


def long_ms(low: int) -> Kind:
    """Milliseconds that Java keeps in a long; "for ever" is cut to FOREVER_MS."""
    inner = integer(low, INT64_MAX)
    return Kind(inner.values, lambda text: min(inner.parse(text), FOREVER_MS))


_DURATION = re.compile(r"([0-9]{1,18})\s*(us|ms|s|m|min|h|d|)", re.IGNORECASE)
_ISO_DURATION = re.compile(
    r"P(?=.)(?:([0-9]{1,9})D)?"
    r"(?:T(?=.)(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
)
_UNITS_MS = {"us": 0.001, "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000}
_UNITS_MS |= {"h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of "90s" or "15m", of "250" (milliseconds) or of "P1DT2H".

    The first two are Spark's form (JavaUtils.timeStringAs), the third is ISO 8601 (Java's
    Duration.parse) without a sign. Raises ValueError.
    """
    if match := _DURATION.fullmatch(text.strip()):
        duration_ms = int(match[1]) * _UNITS_MS[match[2].lower()]
    elif match := _ISO_DURATION.fullmatch(text.strip()):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        duration_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    else:
        raise ValueError
    return min(int(duration_ms), FOREVER_MS)


def one_of(*words: str, fold: Callable[[str], str] = str) -> Kind:
    """One of a few words; `fold` makes it insensitive to case where Java is."""

    def parse(text: str) -> str:
        word = fold(text.strip())
        if word not in words:
            raise ValueError
        return word

    return Kind(" or ".join(words) if len(words) < 3 else "one of " + ", ".join(words), parse)


def _acks(text: str) -> int:
    return {"all": -1, "-1": -1, "0": 0, "1": 1}[one_of("all", "-1", "0", "1").parse(text)]


DEFAULT_PORT = 9092
"""Of an entry without one, as in librdkafka; Java wants a port."""

# Java's pattern (Utils.HOST_PORT_PATTERN) allows a listener name before the address.
_SERVER = re.compile(
    r"(?:[a-zA-Z][a-zA-Z0-9+._-]*://)?(\[[^\[\]]+\]|[^\[\]:/\s]+)(?::([0-9]{1,5}))?"
)


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port,[::1]` -> ((host, port), ...), without brackets, in the given order; DEFAULT_PORT
    where none is given.

    Raises ValueError naming the entry that cannot be read.
    """
    servers: list[tuple[str, int]] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        match = _SERVER.fullmatch(entry)
        port = int(match[2] or DEFAULT_PORT) if match is not None else 0
        if match is None or not 1 <= port <= 65535 or match[1].isdecimal():
            hint = ""
            if entry.count(":") > 1 and "[" not in entry and "://" not in entry:
                hint = "; an IPv6 address needs brackets: [::1]:9092"
            elif entry.endswith(":"):
                hint = "; the port is missing"
            elif entry.isdecimal():
                hint = "; the host is missing"
            # What stands before an @ may be a password; Kafka has no such form.
            shown = f"…@{entry.rpartition('@')[2]}" if "@" in entry else entry
            raise ValueError(f"{shown[:200]!r} is not host:port{hint}")
        server = match[1].strip("[]"), port
        if server not in servers:
            servers.append(server)
    if not servers:
        raise ValueError("no server is given")
    return tuple(servers)


MAX_NAME_BYTES = 32_000
"""Lengths of names have 16 bits on the wire; this leaves room for suffixes."""


def _wire_name(text: str) -> str:
    name = text.strip()
    if len(name.encode()) > MAX_NAME_BYTES:  # a lone surrogate is a ValueError as well
        raise ValueError
    return name


def _gzip_level(text: str) -> int:
    value: int = integer(-1, 9).parse(text)
    if value == 0:  # Java refuses it: GzipCompression.MIN_LEVEL is 1
        raise ValueError
    return value


def _string_map(text: str) -> tuple[tuple[str, str], ...]:
    """A JSON object of plain values -> its pairs, values as Kafka's settings have them."""

    def pairs(found: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        return tuple(found)

    try:
        found = json.loads(text, object_pairs_hook=pairs)  # JSONDecodeError is a ValueError
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    if not isinstance(found, tuple):
        raise ValueError
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise ValueError("a name is there twice")
    values = []
    for name, value in found:
        if not isinstance(value, str | int | float):
            raise ValueError(f"the value of {name!r} must be a string or a number")
        if isinstance(value, float) and not math.isfinite(value):  # NaN, Infinity, 1e999
            raise ValueError(f"the value of {name!r} is no number that JSON or Kafka has")
        values.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return tuple(values)


STRING_MAP = Kind('JSON {"name":"value"}', _string_map)
# Java's classes under librdkafka's names, where it has one. Kafka 4 only has the last of the three;
# many settings still name the others.
_JAVA_PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2_random",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": RANDOM,
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": ROUND_ROBIN,
}
PARTITIONERS = (
    "murmur2_random",
    "murmur2",
    "consistent_random",
    "consistent",
    "fnv1a_random",
    "fnv1a",
    RANDOM,
    ROUND_ROBIN,
)


def _partitioner(text: str) -> str:
    word = text.strip()
    word = _JAVA_PARTITIONERS.get(word, word)
    if word not in PARTITIONERS:
        raise ValueError("no Java class runs here" if "." in word else "")
    return word


DURATION_MS = Kind(
    "a duration like 500ms, 30s, 15m or 1h (milliseconds without a unit)", parse_duration_ms
)
TRIMMED = Kind("text", str.strip)
WIRE_NAME = Kind(f"text of at most {MAX_NAME_BYTES} bytes", _wire_name)
BOOLEAN = Kind("true or false", _boolean)
SERVERS = Kind("host:port,host:port,…", parse_servers)  # a port may be left out: DEFAULT_PORT
ACKS = Kind("all, -1, 0 or 1", _acks)
GZIP_LEVEL = Kind("-1 or a whole number from 1 to 9", _gzip_level)
PARTITIONER = Kind(f"one of {', '.join((*PARTITIONERS, *_JAVA_PARTITIONERS))}", _partitioner)
