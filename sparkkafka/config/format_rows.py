"""The rows of the option table about formats and the Schema Registry.

The registry's settings have Confluent's names (`SchemaRegistryClientConfig`,
`AbstractKafkaSchemaSerDeConfig`), with its prefix `schema.registry.`. Those about TLS are the
brokers', under that prefix. Values of settings about identity, TLS and address may hold references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from sparkkafka.config.kinds import (
    BOOLEAN,
    TRIMMED,
    WIRE_NAME,
    Kind,
    Option,
    Side,
    Status,
    each,
    integer,
    long_ms,
    one_of,
    used,
)
from sparkkafka.config.security.rows import SECURITY, referable

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
"""Spark's name for it in from_protobuf; from_avro has recursiveFieldMaxDepth."""

REGISTRY_PREFIX: Final = "schema.registry."

USER_INFO: Final = "USER_INFO"
STATIC_TOKEN: Final = "STATIC_TOKEN"  # noqa: S105
OAUTHBEARER: Final = "OAUTHBEARER"

FORMAT_GROUPS: Final = ("key", "value", "format", "registry", "registry_tls")
"""The first words of `Option.field` of the rows here."""

# --- kinds -----------------------------------------------------------------------------------

# Of Confluent's clients: Java's classes, with or without their package, and Python's functions.
_STRATEGIES = {
    "topicnamestrategy": TOPIC_NAME,
    "recordnamestrategy": RECORD_NAME,
    "topicrecordnamestrategy": TOPIC_RECORD_NAME,
    "topic_subject_name_strategy": TOPIC_NAME,
    "record_subject_name_strategy": RECORD_NAME,
    "topic_record_subject_name_strategy": TOPIC_RECORD_NAME,
}
_JAVA_PACKAGE = "io.confluent.kafka.serializers.subject."


def _strategy(text: str) -> str:
    word = text.strip()
    if word.lower() in (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME):
        return word.lower()
    name = word.removeprefix(_JAVA_PACKAGE).lower()
    if name not in _STRATEGIES:
        raise ValueError("no Java class runs here but Confluent's three" if "." in word else "")
    return _STRATEGIES[name]


def _on_bad_record(text: str) -> str:
    return {word.lower(): word for word in (FAIL, NULL, COLUMN, DEAD_LETTER)}[text.strip().lower()]


def _bad_record_kind() -> Kind:
    def parse(text: str) -> str:
        try:
            return _on_bad_record(text)
        except KeyError:
            raise ValueError from None

    return Kind(f"one of {FAIL}, {NULL}, {COLUMN}, {DEAD_LETTER}", parse)


def _source(known: tuple[str, ...], instead: str) -> Kind:
    """Where an identity is; Confluent's other words for it are refused with what to do."""

    def parse(text: str) -> str:
        word = text.strip().upper()
        if word not in known:
            raise ValueError(instead)
        return word

    return Kind(" or ".join(known), parse)


class RegistryUrl(NamedTuple):
    """Where a registry is; `path` begins with a slash or is empty, and ends without one."""

    secure: bool
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.path}"


def parse_urls(text: str) -> tuple[RegistryUrl, ...]:
    """`https://one:8081,https://two:8081` -> the places, in this order.

    Raises ValueError, which says what is wrong, without what may be a password.
    """
    found: list[RegistryUrl] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        url = _url(entry)
        if isinstance(url, str):
            raise ValueError(url)
        if url not in found:
            found.append(url)
    if not found:
        raise ValueError("no URL is given")
    return tuple(found)


def _url(entry: str) -> RegistryUrl | str:
    """The place, or what is wrong: no frame that raises has the entry in a variable."""
    if "@" in entry:
        return (
            f"a URL has a user or a password in it: set {REGISTRY_PREFIX}basic.auth.user.info "
            "instead"
        )
    shown = repr(entry[:200])
    if "://" not in entry:
        return f"{shown} begins neither with https:// nor with http://"
    try:
        parts = urlsplit(entry)
        port, host = parts.port, parts.hostname
    except ValueError:
        return f"{shown} is no URL"
    if parts.scheme not in ("https", "http") or not host or not re.fullmatch("[!-~]+", entry):
        return f"{shown} is no URL of the kind https://host:port/path"
    if parts.query or parts.fragment or "?" in entry or "#" in entry:
        return "a URL has a query or a fragment, which a registry's has not"
    secure = parts.scheme == "https"
    if port == 0:
        return f"{shown} has no port that can be connected to"
    return RegistryUrl(secure, host, port or (443 if secure else 80), parts.path.rstrip("/"))


URLS: Final = referable(Kind("https://host:port,https://host:port,…", parse_urls))
_TEXT: Final = Kind("text", str)
_USER_INFO: Final = Kind("user:password", str)
_SCHEMA: Final = Kind("a schema's text, or the path of a file with it", str)
_FORMATS: Final = (BINARY, STRING, AVRO, PROTOBUF, JSON)
_READ, _WRITE, _BOTH = Side.READ, Side.WRITE, Side.BOTH

# --- rows ------------------------------------------------------------------------------------


def _column(column: str) -> list[Option]:
    """The rows of keys, or of values."""
    what = f"{column}s"
    return [
        used(
            f"{column}Format", _BOTH, f"{column}.format", one_of(*_FORMATS, fold=str.lower),
            f"What {what} are: bytes as they are, UTF-8 text, or one of three formats with a "
            "schema, whose columns are typed.",
        ),
        used(
            f"{column}Schema", _BOTH, f"{column}.schema", _SCHEMA,
            f"The schema of the column {column}: in reads the one that rows are read as, in writes "
            "the one that they are written with. A text with one of the characters { } [ ] \" ; or "
            "a line end is the schema itself, and so is the name of an Avro type like long; any "
            "other is the path of a file on the driver. infer, for JSON in reads: made from a "
            "sample of the records.",
            default_text="in reads the registry's latest; in writes that of the rows",
        ),
        used(
            f"{column}SchemaVersion", _BOTH, f"{column}.schema_version", integer(1),
            "The version of the subject, in place of the latest (reads) and of the rows' own "
            "schema (writes).",
            default_text="",
        ),
        used(
            f"{column}SchemaMessage", _BOTH, f"{column}.message", TRIMMED,
            "Protobuf: the message's name, with or without its package.",
            default_text="in reads the first of the schema",
        ),
        used(
            f"{column}Subject", _BOTH, f"{column}.subject", WIRE_NAME,
            f"The registry's subject, whatever {column}.subject.name.strategy says.",
            default_text="",
        ),
        used(
            f"{column}Framing", _BOTH, f"{column}.framing",
            one_of(CONFLUENT, HEADERS, NO_FRAMING, fold=str.lower),
            f"Where the schema's id is. confluent: a byte 0 and four bytes before the {column}; "
            f"reads look for the header __{column}_schema_id first. headers: only there. none: "
            f"nowhere, and the {column} is the bare payload.",
        ),
        used(
            f"{column}.subject.name.strategy", _BOTH, f"{column}.strategy",
            Kind("topic, record, topic-record, or Confluent's class for it", _strategy),
            f"The subject's name: TOPIC-{column}, the record's full name, or TOPIC-RECORD.",
        ),
    ]  # fmt: skip


def _registry(
    name: str,
    field: str,
    kind: Kind,
    doc: str,
    *,
    also: str = "",
    secret: bool = False,
    default_text: str | None = None,
) -> list[Option]:
    """The row, and those of its names without the prefix, which Confluent's clients take too."""
    row = used(
        REGISTRY_PREFIX + name,
        _BOTH,
        f"registry.{field}",
        kind,
        doc,
        secret=secret,
        default_text=default_text,
    )
    others = [replace(row, name=other, alias_of=row.name) for other in also.split()]
    return [row, *others]


def _identity(name: str, field: str, doc: str, *, secret: bool = False) -> list[Option]:
    kind = referable(_USER_INFO if field == "user_info" else _TEXT, secret=secret)
    return _registry(name, field, kind, doc, secret=secret, also=name, default_text="")


_TLS_DOCS: Mapping[str, str] = {
    "ssl.truststore.location": "Authorities that the registry's certificate is checked against: "
    "PEM, PKCS#12 or JKS, on the driver and each executor. The issuer of tokens is checked with "
    "them too, as in Confluent's clients.",
    "ssl.truststore.certificates": "The same as text, PEM.",
    "ssl.truststore.password": "Password of a truststore of PKCS#12 or JKS.",
    "ssl.keystore.location": "The client's certificate, its chain, and its key: PEM, PKCS#12 or "
    "JKS.",
    "ssl.keystore.certificate.chain": "The client's certificate and chain as text, PEM; needs "
    f"{REGISTRY_PREFIX}ssl.keystore.key.",
    "ssl.keystore.key": "The client's key as text, PEM.",
    "ssl.keystore.password": "Password of a keystore of PKCS#12 or JKS.",
    "ssl.certificate.location": "A PEM file with the client's certificate and chain.",
    "ssl.key.location": "A PEM file with the client's key.",
    "ssl.key.password": "Password of an encrypted key.",
    "ssl.endpoint.identification.algorithm": "https: the registry's name must be in its "
    "certificate. Empty: not checked, so that any certificate of the authorities can pose as the "
    "registry.",
    "ssl.enabled.protocols": "Versions of TLS.",
    "ssl.cipher.suites": "Cipher suites up to TLS 1.2; those of TLS 1.3 are OpenSSL's.",
}


def _tls_rows() -> list[Option]:
    """The brokers' rows under the registry's prefix."""
    rows = []
    for row in SECURITY:
        doc = _TLS_DOCS.get(row.alias_of or row.name)
        if doc is not None and row.field is not None:
            also = f" Also: `{REGISTRY_PREFIX}{_ALSO[row.name]}`." if row.name in _ALSO else ""
            rows.append(
                replace(
                    row,
                    name=REGISTRY_PREFIX + row.name,
                    alias_of=row.alias_of and REGISTRY_PREFIX + row.alias_of,
                    field=row.field.replace("security.", "registry_tls."),
                    doc=doc + also,
                )
            )
    return rows


_ALSO = {row.alias_of: row.name for row in SECURITY if row.alias_of in _TLS_DOCS}

FORMATS: tuple[Option, ...] = (
    *_column("value"),
    *_column("key"),
    used(
        "onBadRecord", _READ, "format.on_bad_record", _bad_record_kind(),
        "What becomes of a record whose key or value is not what its schema says. fail: the read "
        "fails and names it. null: its key or value is null. column: likewise, and the column "
        "bad_record has the error, the schema's id and the bytes. deadLetter: the record goes to "
        "deadLetter.topic and is left out.",
    ),
    used(
        "deadLetter.topic", _READ, "format.dead_letter_topic", WIRE_NAME,
        "Where onBadRecord=deadLetter writes bad records, on the cluster that is read.",
        default_text="",
    ),
    used(
        "rescuedColumn", _READ, "format.rescued_column", BOOLEAN,
        "valueFormat=json: adds the column rescued, JSON text of what no field of the schema "
        "takes.",
    ),
    used(
        DEPTH_OPTION, _BOTH, "format.recursive_fields_max_depth", integer(1, 15),
        "How often a record or message that contains itself is there as a struct, one in another, "
        "in the type that a schema gives; the next one is a string with its JSON text. Without it "
        "such a schema is an error. As Spark's option of from_protobuf, which leaves the next one "
        "out. In writes it counts where the schema gives the type: in SQL views, functions and the "
        "command.",
        default_text="",
    ),
    used(
        "auto.register.schemas", _WRITE, "format.auto_register_schemas", BOOLEAN,
        "true: a schema that the registry does not have is registered. false: it is an error.",
    ),
    used(
        "use.latest.version", _WRITE, "format.use_latest_version", BOOLEAN,
        "true: rows are written with the subject's latest schema, in place of their own.",
    ),
    used(
        "normalize.schemas", _WRITE, "format.normalize_schemas", BOOLEAN,
        "Has the registry normalize a schema before it is looked up or registered, so that "
        "differences in insignificant order do not matter.",
    ),
    used(
        "ignoreEncryptionRules", _WRITE, "format.ignore_encryption_rules", BOOLEAN,
        "true: rows are written in plain text to a subject whose rules encrypt fields or payloads. "
        "No rules of a registry are run here, so false refuses such a write.",
    ),
)  # fmt: skip

REGISTRY: tuple[Option, ...] = (
    *_registry(
        "url", "url", URLS,
        "Where the Schema Registry is. Of several each is tried in turn. All settings below may "
        "hold references, but for numbers: ${env:NAME}, ${file:/path:key}, "
        "${directory:/path:name}.", default_text="",
    ),
    *_registry(
        "basic.auth.credentials.source", "credentials_source",
        _source(
            (USER_INFO,),
            f"write user and password into {REGISTRY_PREFIX}basic.auth.user.info; they may be a "
            "reference",
        ),
        "Where user and password are; it need not be given.",
        also="basic.auth.credentials.source", default_text="",
    ),
    *_identity(
        "basic.auth.user.info", "user_info",
        "user:password. Give a reference, since Spark's plans and UI hide no option of this name.",
        secret=True,
    ),
    *_registry(
        "bearer.auth.credentials.source", "bearer_source",
        _source(
            (STATIC_TOKEN, OAUTHBEARER),
            f"give a token in {REGISTRY_PREFIX}bearer.auth.token, which may be a reference, or an "
            f"issuer in {REGISTRY_PREFIX}bearer.auth.issuer.endpoint.url",
        ),
        "Whether the token is given, or got from an issuer with client id and secret; it need not "
        "be given.", also="bearer.auth.credentials.source", default_text="",
    ),
    *_identity("bearer.auth.token", "bearer_token", "The token itself.", secret=True),
    *_identity(
        "bearer.auth.issuer.endpoint.url", "issuer_url",
        "Where the token comes from: https://….",
    ),
    *_identity("bearer.auth.client.id", "client_id", "The client's id at the issuer."),
    *_identity(
        "bearer.auth.client.secret", "client_secret", "The client's secret at the issuer.",
        secret=True,
    ),
    *_identity("bearer.auth.scope", "scope", "What the issuer is asked for."),
    *_identity(
        "bearer.auth.logical.cluster", "logical_cluster",
        "Confluent Cloud: the registry's logical cluster, lsrc-….",
    ),
    *_identity(
        "bearer.auth.identity.pool.id", "identity_pool_id",
        "Confluent Cloud: the identity pool, pool-….",
    ),
    *_tls_rows(),
    *_registry(
        "request.timeout.ms", "request_timeout_ms", integer(1),
        "How long one request may take, connecting and answer together.",
    ),
    *_registry(
        "api.timeout.ms", "api_timeout_ms", integer(1),
        "How long one question to the registry may take, with all URLs and retries.",
    ),
    *_registry(
        "max.retries", "max_retries", integer(0),
        "How often all URLs are tried again after a failure that may pass.",
        default_text="3; in tasks as often as schema.registry.api.timeout.ms has time for",
    ),
    *_registry(
        "retries.wait.ms", "retries_wait_ms", long_ms(0),
        "Wait before the first retry; doubles each time.",
    ),
    *_registry(
        "retries.max.wait.ms", "retries_max_wait_ms", long_ms(0), "Longest wait between retries.",
    ),
    *_registry(
        "cache.capacity", "cache_capacity", integer(1),
        "How many schemas a Python worker keeps of one registry. What has an id never changes, so "
        "that kept schemas count also while the registry is unavailable.",
    ),
    *each(
        Status.UNNEEDED, _BOTH,
        "schema.registry.ssl.keystore.type schema.registry.ssl.truststore.type "
        "schema.registry.ssl.protocol",
        "whether a store is PEM, PKCS#12 or JKS, its content says",
    ),
)  # fmt: skip
