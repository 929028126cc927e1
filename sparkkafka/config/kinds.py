"""Kinds of option values: what each takes, in text for messages and docs, and its parser.

A parser raises ValueError; its message, if there is one, says what is wrong with the value.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sparkkafka.config.security.java import LOGIN_HANDLERS, known_class
from sparkkafka.config.security.references import has_reference
from sparkkafka.config.security.settings import TLS_VERSIONS
from sparkkafka.secret import Secret

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# In place of Java's "for ever", Long.MAX_VALUE ms, which overflows the timers of operating systems.
FOREVER_MS = 10**12


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that an option takes: `values` describes them, `parse` raises ValueError."""

    values: str
    parse: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Referable(Kind):
    """A kind whose values may contain references: `parse` returns text, or a Secret.

    `final` parses the text once its references are resolved.
    """

    final: Callable[[str], Any]


def referable(kind: Kind, *, secret: bool = False) -> Referable:
    """Return the kind for values that may contain references. Others are checked immediately."""

    def parse(text: str) -> str | Secret:
        if not has_reference(text):
            value = kind.parse(text)
            text = value if isinstance(value, str) else text  # perhaps folded or trimmed
        return Secret(text) if secret else text.strip()

    return Referable(kind.values, parse, kind.parse)


# --- numbers, times, choices, text ------------------------------------------------------------


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[one_of("true", "false", fold=str.lower).parse(text)]


_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def integer(low: int, high: int = INT32_MAX) -> Kind:
    """Whole numbers in [low, high]. `high` is that of the wire field or of Java's setting."""

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
    """Milliseconds that are a long in Java. More than FOREVER_MS is FOREVER_MS."""
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


def one_of(*choices: str, fold: Callable[[str], str] = str, hint: str = "") -> Kind:
    """One of these values. `fold` ignores case where Java does; `hint` is added to the error."""

    def parse(text: str) -> str:
        value = fold(text.strip())
        if value not in choices:
            raise ValueError(hint)
        return value

    listed = " or ".join(choices) if len(choices) < 3 else "one of " + ", ".join(choices)
    return Kind(listed, parse)


def split_list(text: str) -> tuple[str, ...]:
    """Split a list at commas, colons and blanks."""
    return tuple(item for item in re.split(r"[,:\s]+", text) if item)


def _acks(text: str) -> int:
    return {"all": -1, "-1": -1, "0": 0, "1": 1}[one_of("all", "-1", "0", "1").parse(text)]


MAX_NAME_BYTES = 32_000
"""A length has 16 bits on the wire; this leaves bytes for suffixes."""


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
    """Return the pairs of a JSON object of plain values, in the form of Kafka's settings."""
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)  # JSONDecodeError is a ValueError
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    if not isinstance(pairs, tuple):
        raise ValueError
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a name is there twice")
    values = []
    for name, value in pairs:
        if not isinstance(value, str | int | float):
            raise ValueError(f"the value of {name!r} must be a string or a number")
        if isinstance(value, float) and not math.isfinite(value):  # NaN, Infinity, 1e999
            raise ValueError(f"the value of {name!r} is no number that JSON or Kafka has")
        values.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return tuple(values)


BOOLEAN = Kind("true or false", _boolean)
DURATION_MS = Kind(
    "a duration like 500ms, 30s, 15m or 1h (milliseconds without a unit)", parse_duration_ms
)
TEXT = Kind("text", str)
TRIMMED = Kind("text", str.strip)
PATH = Kind("the path of a file", str.strip)
PEM = Kind("PEM text", str)
JSON_TEXT = Kind("JSON", str)
TIMESTAMP_TEXT = Kind("milliseconds since 1970", str)
WIRE_NAME = Kind(f"text of at most {MAX_NAME_BYTES} bytes", _wire_name)
STRING_MAP = Kind('JSON {"name":"value"}', _string_map)
ACKS = Kind("all, -1, 0 or 1", _acks)
GZIP_LEVEL = Kind("-1 or a whole number from 1 to 9", _gzip_level)

# --- partitioners -----------------------------------------------------------------------------

RANDOM = "random"
ROUND_ROBIN = "round_robin"
# librdkafka's name for each Java class, where it has one. Kafka 4 has only the last class.
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
    name = text.strip()
    name = _JAVA_PARTITIONERS.get(name, name)
    if name not in PARTITIONERS:
        raise ValueError("no Java class runs here" if "." in name else "")
    return name


PARTITIONER = Kind(f"one of {', '.join((*PARTITIONERS, *_JAVA_PARTITIONERS))}", _partitioner)

# --- addresses ----------------------------------------------------------------------------------

DEFAULT_PORT = 9092
"""The port of an entry without one, as in librdkafka. Java requires a port."""

# Java's pattern (Utils.HOST_PORT_PATTERN) allows a listener name before the address.
_SERVER = re.compile(
    r"(?:[a-zA-Z][a-zA-Z0-9+._-]*://)?(\[[^\[\]]+\]|[^\[\]:/\s]+)(?::([0-9]{1,5}))?"
)


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,[::1]` into ((host, port), ...), in this order, without brackets.

    Raises ValueError naming the entry that cannot be parsed.
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
            # Text before an @ may be a password; Kafka has no such form.
            shown = f"…@{entry.rpartition('@')[2]}" if "@" in entry else entry
            raise ValueError(f"{shown[:200]!r} is not host:port{hint}")
        server = match[1].strip("[]"), port
        if server not in servers:
            servers.append(server)
    if not servers:
        raise ValueError("no server is given")
    return tuple(servers)


SERVERS = Kind("host:port,host:port,…", parse_servers)


class HttpUrl(NamedTuple):
    """A parsed http:// or https:// URL. Its text leaves out the query, which may contain a key."""

    secure: bool
    host: str
    port: int
    path: str
    query: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.path}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_http_url(text: str) -> HttpUrl | None:
    """Return the URL, None if it is not one of HTTP. Never raises: the text may have a password,
    and an error's frames may be shown with their variables."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if (
        parts.scheme not in ("https", "http")
        or not parts.hostname
        or not re.fullmatch("[!-~]+", text)
    ):
        return None
    secure = parts.scheme == "https"
    if port is None:
        port = 443 if secure else 80
    return HttpUrl(secure, parts.hostname, port, parts.path, parts.query) if port else None


METRICS_KEY_BYTES = 16
_ADDRESS = re.compile(
    rf"(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{{1,5}})/([0-9a-f]{{{2 * METRICS_KEY_BYTES}}})"
)


class MetricsAddress(NamedTuple):
    """Where tasks send their metrics, and the key that signs them: metricsAddress.

    An IP address, so that tasks resolve no name. As text: 10.0.0.7:40123/6f1c…
    """

    host: str
    port: int
    key: bytes

    def __repr__(self) -> str:
        return f"MetricsAddress({self._address}/***)"

    @property
    def _address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        """The value of the option."""
        return f"{self._address}/{self.key.hex()}"


def _metrics_address(text: str) -> MetricsAddress:
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError
    host = match[1].strip("[]")
    ipaddress.ip_address(host)
    return MetricsAddress(host, int(match[2]), bytes.fromhex(match[3]))


METRICS_ADDRESS = Kind("what sparkkafka.metrics(…).options has", _metrics_address)

# --- security ---------------------------------------------------------------------------------

CALLBACK_OPTION = "sasl.login.callback.handler.class"
"""The option whose value may be a callable, in the client library."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI")

JWT_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

NO_JAVA = "no Java class runs here but those whose work is done here"

BROKEN_TLS = ("TLSv1.1", "TLSv1", "SSLv3", "SSLv2Hello", "SSLv2")
"""Versions that are dropped if a safe one is listed too."""


def _versions(text: str) -> tuple[str, ...]:
    names = split_list(text)
    safe = tuple(name for name in names if name in TLS_VERSIONS)
    if not names or {*names} - {*safe, *BROKEN_TLS}:
        raise ValueError
    if not safe:
        raise ValueError("TLS before 1.2 is broken")
    return safe


def _identification(text: str) -> bool:
    """Return whether the broker's name must be in its certificate. Java's "" and librdkafka's none
    turn the check off."""
    return bool(one_of("https", "", "none", fold=str.lower).parse(text) == "https")


def _login_handler(text: str) -> str:
    name = text.strip()
    known = known_class(name, LOGIN_HANDLERS)
    if known is None and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
        raise ValueError(NO_JAVA if "." in name and ":" not in name else "")
    return known or name


def java_class(classes: tuple[str, ...], instead: str) -> Kind:
    """One of these Java classes, none of which has an effect here."""

    def parse(text: str) -> str:
        known = known_class(text, classes)
        if known is None:
            raise ValueError(f"{NO_JAVA}: {instead}")
        return known

    return Kind(f"Java's {' or '.join(name.rpartition('.')[2] for name in classes)}", parse)


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(str.strip, text.split(",")):
        match = re.fullmatch(r"\s*([A-Za-z]+)=([\x21-\x7E]+)\s*", part)
        if match is None:
            raise ValueError
        pairs.append((match[1], match[2]))
    return tuple(pairs)


TLS_VERSION_LIST = Kind(f"a list of {', '.join(TLS_VERSIONS)}", _versions)
IDENTIFICATION = Kind("https, or nothing", _identification)
LOGIN_HANDLER = Kind("module:function", _login_handler)
SASL_EXTENSIONS = Kind("name=value,name=value,…", _extensions)

# --- formats and the Schema Registry ----------------------------------------------------------

BINARY: Final = "binary"
STRING: Final = "string"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
JSON: Final = "json"

CONFLUENT: Final = "confluent"
HEADERS: Final = "headers"
NO_FRAMING: Final = "none"

FAIL: Final = "fail"
NULL: Final = "null"
COLUMN: Final = "column"
DEAD_LETTER: Final = "deadLetter"

TOPIC_NAME: Final = "topic"
RECORD_NAME: Final = "record"
TOPIC_RECORD_NAME: Final = "topic-record"

DEPTH_OPTION: Final = "recursive.fields.max.depth"
"""Spark's name in from_protobuf; in from_avro it is recursiveFieldMaxDepth."""

REGISTRY_PREFIX: Final = "schema.registry."

STATIC_TOKEN: Final = "STATIC_TOKEN"  # noqa: S105
OAUTHBEARER: Final = "OAUTHBEARER"

# Confluent's Java classes, with or without their package, and its Python functions.
_STRATEGIES = {
    "topicnamestrategy": TOPIC_NAME,
    "recordnamestrategy": RECORD_NAME,
    "topicrecordnamestrategy": TOPIC_RECORD_NAME,
    "topic_subject_name_strategy": TOPIC_NAME,
    "record_subject_name_strategy": RECORD_NAME,
    "topic_record_subject_name_strategy": TOPIC_RECORD_NAME,
}


def _strategy(text: str) -> str:
    value = text.strip()
    if value.lower() in (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME):
        return value.lower()
    name = value.removeprefix("io.confluent.kafka.serializers.subject.").lower()
    if name not in _STRATEGIES:
        raise ValueError("no Java class runs here but Confluent's three" if "." in value else "")
    return _STRATEGIES[name]


STRATEGY = Kind("topic, record, topic-record, or Confluent's class for it", _strategy)
BAD_RECORD_ACTION = one_of(
    *(FAIL, NULL, COLUMN, DEAD_LETTER),
    fold=lambda text: DEAD_LETTER if text.lower() == DEAD_LETTER.lower() else text.lower(),
)


def parse_registry_urls(text: str) -> tuple[HttpUrl, ...]:
    """Parse `https://one:8081,https://two:8081`, in this order.

    Raises ValueError, which says what is wrong, without what may be a password.
    """
    urls: list[HttpUrl] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        url = _registry_url(entry)
        if isinstance(url, str):
            raise ValueError(url)
        if url not in urls:
            urls.append(url)
    if not urls:
        raise ValueError("no URL is given")
    return tuple(urls)


def _registry_url(entry: str) -> HttpUrl | str:
    """Return the URL, or what is wrong: no frame that raises has the entry in a variable."""
    if "@" in entry:
        return (
            f"a URL has a user or a password in it: set {REGISTRY_PREFIX}basic.auth.user.info "
            "instead"
        )
    shown = repr(entry[:200])
    if "://" not in entry:
        return f"{shown} begins neither with https:// nor with http://"
    url = parse_http_url(entry)
    if "?" in entry or "#" in entry:
        return "a URL has a query or a fragment, which a registry's has not"
    if url is None:
        return f"{shown} is no URL of the kind https://host:port/path (port 1 to 65535)"
    return url._replace(path=url.path.rstrip("/"))


REGISTRY_URLS: Final = referable(Kind("https://host:port,https://host:port,…", parse_registry_urls))
