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
    """Return the kind whose values may contain references, ${env:NAME}.

    A value without one is checked immediately, the others once their references are resolved.
    """

    def parse(text: str) -> str | Secret:
        """Check the text now, if it has no reference."""
        if not has_reference(text):
            value = kind.parse(text)
            # The parser may trim it, or change case.
            text = value if isinstance(value, str) else text
        return Secret(text) if secret else text.strip()

    return Referable(kind.values, parse, kind.parse)


def kind(values: str) -> Callable[[Callable[[str], Any]], Kind]:
    """Make a Kind of the decorated parser; `values` describes what it takes."""
    return lambda parse: Kind(values, parse)


# --- numbers, times, choices, text ------------------------------------------------------------

TEXT = Kind("text", str)
TRIMMED_TEXT = Kind("text", str.strip)
PATH = Kind("the path of a file", str.strip)
PEM = Kind("PEM text", str)


@kind("true or false")
def boolean(text: str) -> bool:
    return bool(one_of("true", "false", fold=str.lower).parse(text) == "true")


def integer(low: int, high: int = INT32_MAX) -> Kind:
    """Return the kind of whole numbers from `low` to `high`, which is the largest of the protocol's
    field or of Java's setting."""

    def parse(text: str) -> int:
        """Raises ValueError for a text that is not a whole number, or out of range."""
        # int() alone would take "1_000", and digits of other scripts.
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()):
            raise ValueError
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    shown = f"from {low} to {high}" if high not in (INT32_MAX, INT64_MAX) else f"of {low} or more"
    if high == INT32_MAX:
        shown += " (32 bits)"
    return Kind(f"a whole number {shown}", parse)


def time_limit_ms() -> Kind:
    """Return the kind of milliseconds where 0 means no limit: INT32_MAX ms (24 days)."""
    inner = integer(0)
    return Kind(f"{inner.values}; 0: no limit", lambda text: inner.parse(text) or INT32_MAX)


def long_ms(low: int) -> Kind:
    """Return the kind of milliseconds that are a long in Java. More than FOREVER_MS becomes
    FOREVER_MS."""
    inner = integer(low, INT64_MAX)
    return Kind(inner.values, lambda text: min(inner.parse(text), FOREVER_MS))


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration: "90s", "15m", "250" (milliseconds) or "P1DT2H".

    Numbers with or without a unit are Spark's form (JavaUtils.timeStringAs); the last one is ISO
    8601 (Java's Duration.parse) without a sign. Raises ValueError.
    """
    text = text.strip()
    iso_8601 = (  # (?=.): something must follow P and T
        r"P(?=.)(?:([0-9]{1,9})D)?"
        r"(?:T(?=.)(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
    )
    if match := re.fullmatch(r"([0-9]{1,18})\s*(us|ms|s|m|min|h|d|)", text, re.IGNORECASE):
        units_ms = {"us": 0.001, "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000}
        units_ms |= {"h": 3_600_000, "d": 86_400_000}
        duration_ms = int(match[1]) * units_ms[match[2].lower()]
    elif match := re.fullmatch(iso_8601, text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        duration_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    else:
        raise ValueError
    return min(int(duration_ms), FOREVER_MS)


duration_ms = Kind(
    "a duration like 500ms, 30s, 15m or 1h (milliseconds without a unit)", parse_duration_ms
)


def one_of(*choices: str, fold: Callable[[str], str] = str, hint: str = "") -> Kind:
    """Return the kind of an option with these values. `fold` changes the case of the text, where
    Java ignores case; `hint` is added to the error."""

    def parse(text: str) -> str:
        """Return the choice that the text names, once `fold` has changed its case."""
        value = fold(text.strip())
        if value not in choices:
            raise ValueError(hint)
        return value

    listed = " or ".join(choices) if len(choices) < 3 else "one of " + ", ".join(choices)
    return Kind(listed, parse)


def split_list(text: str) -> tuple[str, ...]:
    """Split a list at commas, colons and blanks."""
    return tuple(item for item in re.split(r"[,:\s]+", text) if item)


@kind("all, -1, 0 or 1")
def acks(text: str) -> int:
    return {"all": -1, "-1": -1, "0": 0, "1": 1}[one_of("all", "-1", "0", "1").parse(text)]


@kind("text of at most 32000 bytes")
def wire_name(text: str) -> str:
    """Return a name, such as a topic's or a group's, that fits into a request."""
    name = text.strip()
    # The wire allows 32767, and the client may append a suffix. A lone surrogate is a ValueError.
    if len(name.encode()) > 32_000:
        raise ValueError
    return name


@kind("-1 or a whole number from 1 to 9")
def gzip_level(text: str) -> int:
    """Parse a compression level of gzip. Raises ValueError for a level that Java refuses."""
    value: int = integer(-1, 9).parse(text)
    if value == 0:  # GzipCompression.MIN_LEVEL is 1
        raise ValueError
    return value


@kind('JSON {"name":"value"}')
def string_map(text: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a JSON object of strings, numbers and booleans: topic settings."""
    try:
        # An object becomes a tuple of pairs, a list stays a list. JSONDecodeError is a ValueError.
        pairs = json.loads(text, object_pairs_hook=tuple)
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    if not isinstance(pairs, tuple):
        raise ValueError
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a name occurs twice")
    values = []
    for name, value in pairs:
        if not isinstance(value, str | int | float):
            raise ValueError(f"the value of {name!r} must be a string or a number")
        if isinstance(value, float) and not math.isfinite(value):  # NaN, Infinity, 1e999
            raise ValueError(f"the value of {name!r} is not a number that JSON or Kafka has")
        values.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return tuple(values)


# --- partitioners -----------------------------------------------------------------------------

RANDOM = "random"
ROUND_ROBIN = "round_robin"
# librdkafka's names, and round_robin, which only Java has.
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
# Java's classes, by which of the names above has the same effect. Kafka 4 has only the last class.
_JAVA_PARTITIONERS = {
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2_random",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": RANDOM,
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": ROUND_ROBIN,
}


@kind(f"one of {', '.join((*PARTITIONERS, *_JAVA_PARTITIONERS))}")
def partitioner(text: str) -> str:
    """Return the name in PARTITIONERS, also from a Java class with the same effect."""
    name = text.strip()
    name = _JAVA_PARTITIONERS.get(name, name)
    if name not in PARTITIONERS:
        raise ValueError("no Java class runs here" if "." in name else "")
    return name


# --- consumers --------------------------------------------------------------------------------


@kind("earliest, latest, none or by_duration:P1DT2H")
def auto_offset_reset(text: str) -> str:
    """Return the value of auto.offset.reset. by_duration has an ISO 8601 duration (KIP-1106)."""
    value = text.strip()
    if value.startswith("by_duration:P"):
        parse_duration_ms(value.removeprefix("by_duration:"))
    elif value not in ("earliest", "latest", "none"):
        raise ValueError
    return value


ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The assignors' names on the wire and in librdkafka."""


@kind(f"a list of {', '.join(ASSIGNORS)}, or of Java's classes")
def assignors(text: str) -> tuple[str, ...]:
    """Return the names in ASSIGNORS, each once, also from Java's classes."""
    java = (
        f"org.apache.kafka.clients.consumer.{name}Assignor"
        for name in ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
    )
    by_name = dict(zip((*ASSIGNORS, *java), ASSIGNORS * 2, strict=True))
    try:
        names = [by_name[name] for name in re.split(r"[,\s]+", text.strip()) if name]
    except KeyError:
        raise ValueError from None
    if not names:
        raise ValueError
    return tuple(dict.fromkeys(names))


# --- addresses ----------------------------------------------------------------------------------


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `host:port,[::1]` into ((host, port), ...), in this order, without brackets.

    The default port is 9092, as in librdkafka; Java requires one. Raises ValueError naming the
    entry that cannot be parsed.
    """
    # Java's pattern (Utils.HOST_PORT_PATTERN) allows a listener name before the address.
    server_pattern = (
        r"(?:[a-zA-Z][a-zA-Z0-9+._-]*://)?(\[[^\[\]'\"]+\]|[^\[\]:/\s'\"]+)(?::([0-9]{1,5}))?"
    )
    servers: list[tuple[str, int]] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        match = re.fullmatch(server_pattern, entry)
        port = int(match[2] or 9092) if match is not None else 0
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


servers = Kind("host:port,host:port,…", parse_servers)


def address_text(host: str, port: int) -> str:
    """Return host:port; an IPv6 address has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HttpUrl(NamedTuple):
    """A parsed http:// or https:// URL. Its text leaves out the query, which may contain a key."""

    secure: bool
    host: str
    port: int
    path: str
    query: str = ""

    def __str__(self) -> str:
        address = address_text(self.host, self.port)
        return f"{'https' if self.secure else 'http'}://{address}{self.path}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


class MetricsAddress(NamedTuple):
    """The value of metricsAddress: where tasks send their metrics, and the key that signs them.

    `host` is an IP address, so that tasks resolve no name. `repr` hides the key, of 16 bytes.
    """

    host: str
    port: int
    key: bytes

    def __repr__(self) -> str:
        return f"MetricsAddress({address_text(self.host, self.port)}/***)"

    @property
    def text(self) -> str:
        """The option's text: 10.0.0.7:40123/6f1c…"""
        return f"{address_text(self.host, self.port)}/{self.key.hex()}"


@kind("the value in sparkkafka.metrics(…).options")
def metrics_address(text: str) -> MetricsAddress:
    """Parse `MetricsAddress.text`."""
    pattern = r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{1,5})/([0-9a-f]{32})"
    match = re.fullmatch(pattern, text.strip())
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError
    host = match[1].strip("[]")
    ipaddress.ip_address(host)
    return MetricsAddress(host, int(match[2]), bytes.fromhex(match[3]))


# --- security ---------------------------------------------------------------------------------

LOGIN_CALLBACK_OPTION = "sasl.login.callback.handler.class"
"""The option whose value may also be a callable in the client library."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI")

JWT_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_NO_JAVA = "no Java class runs here, except those that this package replaces"

BROKEN_TLS = ("TLSv1.1", "TLSv1", "SSLv3", "SSLv2Hello", "SSLv2")
"""Insecure versions, which ssl.enabled.protocols may list beside safe ones: they are not used."""


@kind(f"a list of {', '.join(TLS_VERSIONS)}")
def tls_versions(text: str) -> tuple[str, ...]:
    """Return the safe versions of the list. A list with only insecure ones is an error."""
    names = split_list(text)
    if not names or not {*names} <= {*TLS_VERSIONS, *BROKEN_TLS}:
        raise ValueError
    safe = tuple(name for name in names if name in TLS_VERSIONS)
    if not safe:
        raise ValueError("TLS before 1.2 is broken")
    return safe


@kind("https or empty")
def hostname_check(text: str) -> bool:
    """Return whether the broker's name must be in its certificate. Java's "" and librdkafka's none
    turn the check off."""
    return bool(one_of("https", "", "none", fold=str.lower).parse(text) == "https")


@kind("module:function")
def login_handler(text: str) -> str:
    """Return module:function, or the full name of a Java class that this package replaces."""
    name = text.strip()
    known = known_class(name, LOGIN_HANDLERS)
    if known is None and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
        raise ValueError(_NO_JAVA if "." in name and ":" not in name else "")
    return known or name


def java_class(classes: tuple[str, ...], instead: str) -> Kind:
    """Return the kind of an option whose value is one of these Java classes, in any package. The
    error for another class has the advice `instead`."""

    def parse(text: str) -> str:
        """Return the known class that the text names. Raises ValueError for another one."""
        known = known_class(text, classes)
        if known is None:
            raise ValueError(f"{_NO_JAVA}: {instead}")
        return known

    return Kind(f"Java's {' or '.join(name.rpartition('.')[2] for name in classes)}", parse)


@kind("name=value,name=value,…")
def sasl_extensions(text: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of name and value (KIP-342)."""
    pairs = []
    for part in filter(str.strip, text.split(",")):
        match = re.fullmatch(r"\s*([A-Za-z]+)=([\x21-\x7E]+)\s*", part)
        if match is None:
            raise ValueError
        pairs.append((match[1], match[2]))
    return tuple(pairs)


# --- formats and the Schema Registry ----------------------------------------------------------

BINARY: Final = "binary"
STRING: Final = "string"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
JSON: Final = "json"

CONFLUENT: Final = "confluent"
HEADERS: Final = "headers"
GLUE: Final = "glue"
GLUE_ZLIB: Final = "glue-zlib"
APICURIO: Final = "apicurio"
APICURIO_CONTENT: Final = "apicurio-content-id"
APICURIO_HEADERS: Final = "apicurio-headers"
AZURE: Final = "azure"
SINGLE_OBJECT: Final = "single-object"
AUTO: Final = "auto"
NO_FRAMING: Final = "none"

FAIL: Final = "fail"
NULL: Final = "null"
COLUMN: Final = "column"
DEAD_LETTER: Final = "deadLetter"

TOPIC_NAME: Final = "topic"
RECORD_NAME: Final = "record"
TOPIC_RECORD_NAME: Final = "topic-record"

column_format = one_of(BINARY, STRING, AVRO, PROTOBUF, JSON, fold=str.lower)
framing = one_of(
    *(CONFLUENT, HEADERS, GLUE, GLUE_ZLIB, APICURIO, APICURIO_CONTENT, APICURIO_HEADERS, AZURE),
    *(SINGLE_OBJECT, AUTO, NO_FRAMING),
    fold=str.lower,
)

DEBEZIUM: Final = "debezium"
DEBEZIUM_FLAT: Final = "debezium-flat"
MAXWELL: Final = "maxwell"
CANAL: Final = "canal"
OGG: Final = "ogg"
PLACEHOLDER: Final = "__debezium_unavailable_value"
ROW_COLUMNS: Final = "row"
ENVELOPE_COLUMN: Final = "envelope"

envelope = one_of(DEBEZIUM, DEBEZIUM_FLAT, MAXWELL, CANAL, OGG, fold=str.lower)
envelope_columns = one_of(ROW_COLUMNS, ENVELOPE_COLUMN, fold=str.lower)

DEPTH_OPTION: Final = "recursive.fields.max.depth"
"""Spark's name in from_protobuf; in from_avro it is recursiveFieldMaxDepth."""

REGISTRY_PREFIX: Final = "schema.registry."

STATIC_TOKEN: Final = "STATIC_TOKEN"  # noqa: S105
OAUTHBEARER: Final = "OAUTHBEARER"


@kind("topic, record, topic-record, or Confluent's class for it")
def subject_name_strategy(text: str) -> str:
    """Return the strategy, also from Confluent's Java class, with or without its package, or from
    its Python function."""
    value = text.strip()
    name = value.removeprefix("io.confluent.kafka.serializers.subject.").lower()
    for strategy in (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME):
        words = strategy.split("-")
        java, python = "".join(words) + "namestrategy", "_".join(words) + "_subject_name_strategy"
        if value.lower() == strategy or name in (java, python):
            return strategy
    raise ValueError("no Java class runs here but Confluent's three" if "." in value else "")


bad_record_action = one_of(
    *(FAIL, NULL, COLUMN, DEAD_LETTER),
    fold=lambda text: DEAD_LETTER if text.lower() == DEAD_LETTER.lower() else text.lower(),
)


class GlueUrl(NamedTuple):
    """AWS Glue's registry of this name: glue://REGION/REGISTRY."""

    region: str
    registry: str

    def __str__(self) -> str:
        return f"glue://{self.region}/{self.registry}"


def parse_registry_urls(text: str) -> tuple[HttpUrl, ...] | GlueUrl:
    """Parse `https://one:8081,https://two:8081`, in this order, or `glue://region/registry`.

    Raises ValueError, which says what is wrong, and never shows what may be a password.
    """
    urls: list[HttpUrl] = []
    if text.strip().lower().startswith("glue:"):
        match = re.fullmatch(r"\s*(?i:glue)://([a-z0-9-]+)(?:/([A-Za-z0-9_$#.-]*))?\s*", text)
        if match is None:
            raise ValueError("AWS Glue's registry is written glue://region/registry")
        return GlueUrl(match[1], match[2] or "default-registry")
    for entry in filter(None, map(str.strip, text.split(","))):
        url = _registry_url_or_problem(entry)
        if isinstance(url, str):
            raise ValueError(url)
        if url not in urls:
            urls.append(url)
    if not urls:
        raise ValueError("no URL is given")
    return tuple(urls)


def _registry_url_or_problem(entry: str) -> HttpUrl | str:
    """Return the URL, or the error's text. It does not raise, because an error's frames may be
    shown with their variables, and `entry` may have a password."""
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
        return "a URL has a query or a fragment, which a registry's URL cannot have"
    if url is None:
        return f"{shown} is not a URL of the form https://host:port/path (port 1 to 65535)"
    return url._replace(path=url.path.rstrip("/"))


registry_urls: Final = referable(
    Kind("https://host:port,https://host:port,… or glue://region/registry", parse_registry_urls)
)
