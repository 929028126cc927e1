"""The table of all options, for parsing, validation and the docs.

    CONNECTOR     the connector's own options (startingOffsets), with FORMATS and REGISTRY
    KAFKA         Kafka's client properties, which Spark users write with the prefix kafka.
                  (kafka.request.timeout.ms) and the client library without, with SECURITY
    CONSUMER, SHARE_CONSUMER, PRODUCER
                  properties that only the client library uses, or uses for something else

A row of status USED names the dataclass field it fills ("client.request_timeout_ms"); the default
is that field's, and stands nowhere else. The dataclass of SECURITY has its fields and defaults from
these rows.

Sources: Spark's `KafkaSourceProvider` for names, refusals and their first words; Kafka's
`ConsumerConfig`, `ProducerConfig`, `CommonClientConfigs`, `SslConfigs`, `SaslConfigs` (4.1) for
names and ranges; librdkafka's CONFIGURATION.md; Confluent's `SchemaRegistryClientConfig` and
`AbstractKafkaSchemaSerDeConfig`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sparkkafka.config import kinds
from sparkkafka.config.kinds import (
    INT64_MAX,
    LOGIN_CALLBACK_OPTION,
    PATH,
    PEM,
    REGISTRY_PREFIX,
    TEXT,
    TRIMMED_TEXT,
    Kind,
    boolean,
    integer,
    long_ms,
    one_of,
    referable,
    time_limit_ms,
    wire_name,
)
from sparkkafka.config.security import java
from sparkkafka.config.source import topic_ids


class Status(enum.Enum):
    """What happens to an option that a user sets. `Option.doc` has the reason."""

    USED = "used"
    IGNORED = "ignored"  # accepted with one warning: it has no meaning here
    UNNEEDED = "unneeded"  # accepted: it asks for what is done anyway, or Java ignores it too
    REFUSED = "refused"  # an error


class Side(enum.Enum):
    """Whether an option is for reads (consumers), for writes (producers), or for both."""

    READ = "read"
    WRITE = "write"
    BOTH = "both"

    def covers(self, other: Side) -> bool:
        """Return whether an option for this side has an effect on the other."""
        return self is Side.BOTH or other is Side.BOTH or self is other


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the table.

    `doc` is the meaning in the docs, or why the option is not used. `field` is "group.attribute":
    the attribute of the dataclass with this GROUP that the option fills, "client.client_id".
    `default` is that of a security option; other options have that of their field. `default_text`
    is what the docs show in its place. A `secret` value is in no message. `alias_of` is the name of
    the row that this is another name of, mostly librdkafka's.
    """

    name: str
    side: Side
    status: Status
    doc: str
    kind: Kind | None = None
    field: str | None = None
    default: str = ""
    default_text: str | None = None
    secret: bool = False
    alias_of: str = ""

    @property
    def key(self) -> str:
        """The name in lower case, as Spark passes it on."""
        return self.name.lower()


def used(name: str, side: Side, field: str, kind: Kind, doc: str, **more: Any) -> Option:
    """Return the row of an option that sets a field."""
    return Option(name=name, side=side, status=Status.USED, field=field, kind=kind, doc=doc, **more)


def not_used(status: Status, side: Side, names: str, doc: str) -> list[Option]:
    """Return a row of this status for each name in the space-separated `names`; `doc` says why the
    options have no effect."""
    return [Option(name=name, side=side, status=status, doc=doc) for name in names.split()]


def names_by_attribute(rows: Iterable[Option], group: str) -> dict[str, str]:
    """Return the name of each option of the group by the dataclass attribute that it sets."""
    return {
        row.field.removeprefix(f"{group}."): row.name
        for row in rows
        if row.field and row.field.startswith(f"{group}.") and not row.alias_of
    }


_READ, _WRITE, _BOTH = Side.READ, Side.WRITE, Side.BOTH

# --- security --------------------------------------------------------------------------------
# Every name of Java's clients is here: used, ignored with a reason, or refused.


def _security_rows(
    name: str,
    field: str,
    kind: Kind,
    doc: str,
    *,
    secret: bool = False,
    also: str = "",
    **more: Any,
) -> list[Option]:
    """Return the row of a security option, whose value may contain references, and one for each
    other name that librdkafka has for it (`also`)."""
    names = f" librdkafka: {', '.join(f'`{other}`' for other in also.split())}." if also else ""
    kind = referable(kind, secret=secret)
    row = used(name, _BOTH, f"security.{field}", kind, doc + names, secret=secret, **more)
    aliases = [replace(row, name=other, doc=doc, alias_of=name) for other in also.split()]
    return [row, *aliases]


SECURITY: tuple[Option, ...] = (
    *_security_rows("security.protocol", "protocol",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", fold=str.upper),
        "Whether connections are encrypted (SSL) and authenticated (SASL): see "
        "[Security](docs/security.md). This setting and those below may contain references: "
        "${env:NAME}, ${file:/path:key}, ${directory:/path:name}.", default="PLAINTEXT"),
    *_security_rows("ssl.truststore.location", "truststore_location", PATH,
        "File with the certificate authorities that are trusted to sign the brokers' "
        "certificates: PEM, PKCS#12 or JKS. It must exist on the driver and each executor.",
        also="ssl.ca.location", default_text="the system's authorities"),
    *_security_rows("ssl.truststore.certificates", "truststore_certificates", PEM,
        "The trusted certificate authorities as PEM text.", secret=True, also="ssl.ca.pem"),
    *_security_rows("ssl.truststore.password", "truststore_password", TEXT,
        "Password of a PKCS#12 or JKS truststore.", secret=True),
    *_security_rows("ssl.keystore.location", "keystore_location", PATH,
        "File with the client's certificate, its chain and its private key: PEM, PKCS#12 or JKS."),
    *_security_rows("ssl.keystore.certificate.chain", "keystore_certificate_chain", PEM,
        "The client's certificate and its chain as PEM text. It needs ssl.keystore.key.",
        secret=True, also="ssl.certificate.pem"),
    *_security_rows("ssl.keystore.key", "keystore_key", PEM,
        "The client's private key as PEM text (PKCS#8 or an older form).", secret=True,
        also="ssl.key.pem"),
    *_security_rows("ssl.keystore.password", "keystore_password", TEXT,
        "Password of a PKCS#12 or JKS keystore.", secret=True),
    *_security_rows("ssl.certificate.location", "certificate_location", PATH,
        "librdkafka's name for a PEM file with the client's certificate and chain."),
    *_security_rows("ssl.key.location", "key_location", PATH,
        "librdkafka's name for a PEM file with the client's private key."),
    *_security_rows("ssl.key.password", "key_password", TEXT,
        "Password of an encrypted private key.", secret=True),
    *_security_rows("ssl.endpoint.identification.algorithm", "identification", kinds.hostname_check,
        "https: a broker's certificate must contain the host name that the client connects to, "
        "from bootstrap.servers or from the broker's listener. Empty: names are not checked, so "
        "any server with a certificate of a trusted authority can pose as a broker.",
        default="https"),
    *_security_rows("enable.ssl.certificate.verification", "verify", boolean,
        "librdkafka's name. false: every certificate is accepted, so anyone between client and "
        "broker can read and change all data.", default="true"),
    *_security_rows("ssl.enabled.protocols", "enabled_protocols", kinds.tls_versions,
        "Allowed TLS versions. Older versions in the list are ignored with a warning.",
        default="TLSv1.2,TLSv1.3"),
    *_security_rows("ssl.cipher.suites", "cipher_suites",
        Kind("a list of names, Java's or OpenSSL's", kinds.split_list),
        "Allowed cipher suites up to TLS 1.2. For TLS 1.3, OpenSSL chooses the cipher suites.",
        default_text="OpenSSL's"),
    *_security_rows("ssl.crl.location", "crl_location", PATH,
        "librdkafka's name: file with certificate revocation lists (CRLs), PEM or DER, of the "
        "authorities that sign the brokers' certificates. A connection fails if the broker's "
        "certificate is in a list, or if its authority has no list that is currently valid."),
    *_security_rows("sasl.mechanism", "mechanism", one_of(*kinds.MECHANISMS, fold=str.upper),
        "The SASL mechanism. Required if security.protocol is SASL_PLAINTEXT or SASL_SSL.",
        also="sasl.mechanisms"),
    *_security_rows("sasl.jaas.config", "jaas_config", TEXT,
        "User and password, or the source of tokens, in Java's syntax: PlainLoginModule, "
        "ScramLoginModule, OAuthBearerLoginModule, IAMLoginModule or Krb5LoginModule.",
        secret=True),
    *_security_rows("sasl.username", "username", TEXT,
        "librdkafka's name for the user of PLAIN and SCRAM."),
    *_security_rows("sasl.password", "password", TEXT, "The password of the user.", secret=True),
    *_security_rows("sasl.kerberos.service.name", "kerberos_service_name", TRIMMED_TEXT,
        "The name of the brokers' Kerberos principal without host and realm. In "
        "sasl.jaas.config: serviceName.", default_text="kafka"),
    *_security_rows("sasl.kerberos.keytab", "kerberos_keytab", PATH,
        "librdkafka's name: the keytab file with the key of sasl.kerberos.principal. It must "
        "exist on the driver and each executor. In sasl.jaas.config: keyTab, with "
        "useKeyTab=true."),
    *_security_rows("sasl.kerberos.principal", "kerberos_principal", TRIMMED_TEXT,
        "librdkafka's name: the client's Kerberos principal. In sasl.jaas.config: principal."),
    *_security_rows(LOGIN_CALLBACK_OPTION, "login_callback", kinds.login_handler,
        "A Python function without arguments that returns an OAUTHBEARER token, or (token, "
        "expiry in seconds since 1970). The client library also takes the function itself."),
    *_security_rows("sasl.client.callback.handler.class", "client_callback",
        kinds.java_class(java.CLIENT_HANDLERS, "it is not needed for SASL, leave it out"),
        "Java's own classes are accepted and not needed."),
    *_security_rows("sasl.login.class", "login_class",
        kinds.java_class(
            (f"{java.SECURITY_PACKAGE}authenticator.DefaultLogin",),
            f"a Python function may give tokens, see {LOGIN_CALLBACK_OPTION}",
        ),
        "Java's default class is accepted and not needed."),
    *_security_rows("ssl.engine.factory.class", "engine_factory",
        kinds.java_class(
            (f"{java.SECURITY_PACKAGE}ssl.DefaultSslEngineFactory",),
            "give certificates as files, text or references",
        ),
        "Java's default class is accepted and not needed."),
    *_security_rows("sasl.oauthbearer.token.endpoint.url", "oauth_token_endpoint_url",
        Kind("https://… or file:/…", str.strip),
        "The token endpoint, which issues OAUTHBEARER tokens for a client id and secret. With "
        "file:, the content of the file is the token."),
    *_security_rows(
        "sasl.oauthbearer.client.credentials.client.id", "oauth_client_id", TEXT,
        "The client id for the token endpoint. In sasl.jaas.config: clientId.",
        also="sasl.oauthbearer.client.id"),
    *_security_rows(
        "sasl.oauthbearer.client.credentials.client.secret", "oauth_client_secret", TEXT,
        "The client secret for the token endpoint. In sasl.jaas.config: clientSecret.", secret=True,
        also="sasl.oauthbearer.client.secret"),
    *_security_rows("sasl.oauthbearer.scope", "oauth_scope", TRIMMED_TEXT,
        "The scope to request. In sasl.jaas.config: scope."),
    *_security_rows("sasl.oauthbearer.extensions", "oauth_extensions", kinds.sasl_extensions,
        "librdkafka's name for SASL extensions; in sasl.jaas.config: extension_name."),
    *_security_rows("sasl.oauthbearer.token", "oauth_token", TEXT,
        "Only in this package: the token itself, usually as a reference to a file that another "
        "program renews.", secret=True),
    *_security_rows("sasl.oauthbearer.method", "oauth_method",
        one_of("oidc", "default", fold=str.lower),
        "librdkafka's name. Both values have the same effect.", default="oidc"),
    *_security_rows("sasl.oauthbearer.grant.type", "oauth_grant_type",
        one_of("client_credentials", kinds.JWT_BEARER_GRANT),
        "librdkafka's name. The second value sends an assertion in place of client id and "
        "secret.", default="client_credentials"),
    *_security_rows("sasl.oauthbearer.assertion.file", "assertion_file", PATH,
        "File with an assertion that another program creates and renews."),
    *_security_rows("sasl.oauthbearer.assertion.private.key.file", "assertion_key_file", PATH,
        "PEM file with the private key that signs assertions."),
    *_security_rows("sasl.oauthbearer.assertion.private.key.pem", "assertion_key", PEM,
        "librdkafka's name: the private key that signs assertions, as PEM text.", secret=True),
    *_security_rows(
        "sasl.oauthbearer.assertion.private.key.passphrase", "assertion_passphrase", TEXT,
        "Password of the private key that signs assertions, if it is encrypted.", secret=True),
    *_security_rows("sasl.oauthbearer.assertion.algorithm", "assertion_algorithm",
        one_of("RS256", "ES256"),
        "How assertions are signed: RS256 with an RSA key, ES256 with a key on the curve P-256.",
        default="RS256"),
    *_security_rows("sasl.oauthbearer.assertion.template.file", "assertion_template_file", PATH,
        'JSON file with more fields of an assertion: `{"header": {…}, "payload": {…}}`.',
        also="sasl.oauthbearer.assertion.jwt.template.file"),
    *_security_rows("sasl.oauthbearer.assertion.claim.aud", "assertion_aud", TEXT,
        "The audience of assertions (claim aud), usually the token endpoint."),
    *_security_rows("sasl.oauthbearer.assertion.claim.iss", "assertion_iss", TEXT,
        "The issuer of assertions (claim iss)."),
    *_security_rows("sasl.oauthbearer.assertion.claim.sub", "assertion_sub", TEXT,
        "The subject of assertions (claim sub)."),
    *_security_rows(
        "sasl.oauthbearer.assertion.claim.exp.seconds", "assertion_exp_s", integer(1, 86_400),
        "How many seconds an assertion is valid.", default="300"),
    *_security_rows(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", "assertion_nbf_s", integer(0, 3_600),
        "The validity of an assertion starts this many seconds before its creation, to allow for "
        "clock skew.", default="60"),
    *_security_rows(
        "sasl.oauthbearer.assertion.claim.jti.include", "assertion_jti", boolean,
        "Whether each assertion has an id (claim jti).", default="false"),
    *_security_rows("sasl.oauthbearer.jwt.retriever.class", "oauth_retriever",
        kinds.java_class(java.RETRIEVERS, f"see {LOGIN_CALLBACK_OPTION}"),
        "JwtBearerJwtRetriever: an assertion replaces client id and secret. The other classes "
        "are accepted and not needed."),
    *_security_rows("sasl.oauthbearer.header.urlencode", "oauth_header_urlencode", boolean,
        "Whether client id and secret are URL-encoded in the Authorization header.",
        default="false"),
    *_security_rows("https.ca.location", "https_ca_location", PATH,
        "librdkafka's name: file with the certificate authorities that are trusted for the token "
        "endpoint. In sasl.jaas.config: ssl.truststore.location.",
        default_text="the system's authorities"),
    *_security_rows("sasl.oauthbearer.token.endpoint.allow.http", "oauth_allow_http", boolean,
        "Only in this package. true: a token endpoint on another machine may be http://, "
        "although anyone on the network path can read the client secret and the token.",
        default="false"),
    *_security_rows("enable.sasl.oauthbearer.unsecure.jwt", "oauth_unsecured", boolean,
        "librdkafka's name. true: tokens without a signature are allowed, from unsecuredLogin… "
        "in sasl.jaas.config or from sasl.oauthbearer.config. Anyone can create such tokens: use "
        "them only with test brokers.", default="false"),
    *_security_rows("sasl.oauthbearer.config", "oauth_config",
        Kind("name=value name=value …", str.strip),
        "librdkafka's name: the content of an unsecured token, e.g. `principal=alice scope=a,b "
        "lifeSeconds=600`."),
    *_security_rows("https.ca.pem", "https_ca_pem", PEM,
        "The certificate authorities that are trusted for the token endpoint, as PEM text.",
        secret=True),
    *_security_rows("sasl.login.connect.timeout.ms", "login_connect_timeout_ms", integer(1),
        "Maximum time to connect to the token endpoint.", default="10000"),
    *_security_rows("sasl.login.read.timeout.ms", "login_read_timeout_ms", integer(1),
        "Maximum wait for the token endpoint's response once connected.", default="10000"),
    *_security_rows("sasl.login.retry.backoff.ms", "login_retry_backoff_ms", integer(1),
        "Wait before the first retry of a token request. It doubles with each retry.",
        default="100"),
    *_security_rows("sasl.login.retry.backoff.max.ms", "login_retry_backoff_max_ms", integer(1),
        "Maximum wait between retries of a token request.", default="10000"),
    *not_used(Status.UNNEEDED, _BOTH,
        "ssl.keymanager.algorithm ssl.secure.random.implementation ssl.trustmanager.algorithm",
        "Python's ssl module does this with OpenSSL"),
    *not_used(Status.IGNORED, _BOTH,
        "security.providers ssl.provider ssl.ca.certificate.stores ssl.curves.list "
        "ssl.sigalgs.list ssl.providers",
        "it chooses among Java's implementations of TLS, and this package uses Python's ssl"),
    *not_used(Status.UNNEEDED, _BOTH, "ssl.keystore.type ssl.truststore.type",
        "the content of a store shows whether it is PEM, PKCS#12 or JKS"),
    *not_used(Status.UNNEEDED, _BOTH, "ssl.protocol",
        "the versions of TLS are those of ssl.enabled.protocols"),
    *not_used(Status.UNNEEDED, _BOTH,
        "sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter",
        "a new token is requested when one is needed and the old one is about to expire"),
    *not_used(Status.UNNEEDED, _BOTH,
        "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
        "sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url "
        "sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name "
        "sasl.oauthbearer.sub.claim.name", "only brokers use it, to check tokens"),
    *not_used(Status.REFUSED, _BOTH, "ssl.engine.location ssl.engine.id",
        "OpenSSL's engines are not used: give the key as a file, text or reference."),
    *not_used(Status.UNNEEDED, _BOTH,
        "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin "
        "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor",
        "a new ticket is requested with the keytab when one is needed and the old one is about "
        "to expire"),
    *not_used(Status.REFUSED, _BOTH,
        "sasl.oauthbearer.metadata.authentication.type",
        "Token requests send client id and secret, or an assertion. For other grants write a "
        f"function that returns the token, and name it in {LOGIN_CALLBACK_OPTION}."),
)  # fmt: skip

# --- formats and the Schema Registry ---------------------------------------------------------
# The registry's settings have Confluent's names, with its prefix. Those about TLS are the brokers',
# under that prefix.


def _column_rows(column: str) -> list[Option]:
    """Return the rows about keys, or about values."""
    return [
        used(f"{column}Format", _BOTH, f"{column}.format", kinds.column_format,
            f"The format of {column}s. avro, protobuf and json have a schema, and their columns "
            "are typed. binary: bytes as they are. string: UTF-8 text."),
        used(f"{column}Schema", _BOTH, f"{column}.schema",
            Kind("a schema's text, or the path of a file with it", str),
            f"The schema of the column {column}: reads return rows of this schema, writes encode "
            "rows with it. A text that contains a line end or one of the characters { } [ ] \" ; "
            "is the schema itself, as is the name of an Avro type such as long. Any other text is "
            "the path of a file on the driver. infer, for JSON in reads: the schema is inferred "
            "from a sample of the records.",
            default_text="the registry's latest (reads), made from the column's type (writes)"),
        used(f"{column}SchemaVersion", _BOTH, f"{column}.schema_version", integer(1),
            "The subject's version to use, in place of the latest one (reads) or of the schema "
            "that is made from the column's type (writes)."),
        used(f"{column}SchemaMessage", _BOTH, f"{column}.message", TRIMMED_TEXT,
            "Protobuf: the message's name, with or without its package.",
            default_text="the first message of the schema (reads)"),
        used(f"{column}Subject", _BOTH, f"{column}.subject", wire_name,
            f"The registry's subject. Overrides {column}.subject.name.strategy."),
        used(f"{column}Framing", _BOTH, f"{column}.framing", kinds.framing,
            f"Where the schema's id is. confluent: a zero byte and the id's four bytes precede the "
            f"{column}; reads look for the header `__{column}_schema_id` first. headers: only in "
            f"this header. glue: AWS Glue's 18 bytes precede the {column}, which is decompressed "
            f"if they say so. glue-zlib: the same, and writes compress the {column}. apicurio: a "
            "zero byte and 8 bytes of Apicurio's global id; reads look for its headers first. "
            "apicurio-content-id: the same with its content id. apicurio-headers: only in its "
            f"header `apicurio.{column}.globalId` (reads: or `contentId`). "
            + (
                "azure: in the header `content-type`, as avro/binary+ID. "
                if column == "value"
                else "azure: an error, because its header has the id of the value's schema. "
            )
            + "single-object: Avro's marker 0xC3 0x01 and the schema's fingerprint. auto: each "
            "record that is read has one of these frames, and a record without one is bad. "
            f"none: there is no id, and the {column} is the bare payload."),
        used(f"{column}.subject.name.strategy", _BOTH, f"{column}.strategy",
            kinds.subject_name_strategy,
            f"How the subject is named: TOPIC-{column}, the record's full name, or TOPIC-RECORD."),
    ]  # fmt: skip


def _registry_row(name: str, field: str, kind: Kind, doc: str, **more: Any) -> Option:
    """Return the row of an option of the Schema Registry; `name` is without its prefix."""
    return used(REGISTRY_PREFIX + name, _BOTH, f"registry.{field}", kind, doc, **more)


def _credential_rows(
    name: str, field: str, doc: str, *, kind: Kind | None = None, secret: bool = False
) -> list[Option]:
    """Return the row of an option of the registry's credentials, and one for the name without
    prefix, which Confluent's clients take too."""
    kind = kind or referable(TEXT, secret=secret)
    row = _registry_row(name, field, kind, doc, secret=secret)
    return [row, replace(row, name=name, alias_of=row.name)]


def _registry_tls_rows() -> list[Option]:
    """Return the brokers' ssl.* rows that the registry has too, under the registry's prefix."""
    docs = {
        "ssl.truststore.location": "File with the certificate authorities that are trusted to sign "
        "the registry's certificate: PEM, PKCS#12 or JKS. It must exist on the driver and each "
        "executor. The certificate of the issuer of tokens is checked with them too, as in "
        "Confluent's clients.",
        "ssl.endpoint.identification.algorithm": "https: the registry's certificate must contain "
        "its host name. Empty: names are not checked, so any server with a certificate of a "
        "trusted authority can pose as the registry.",
        "ssl.enabled.protocols": "Allowed TLS versions.",
    }
    rows = []
    for row in SECURITY:
        if (
            row.field is not None
            and row.name.startswith("ssl.")
            and row.name not in ("ssl.crl.location", "ssl.engine.factory.class")
        ):
            doc = row.doc.replace("ssl.", f"{REGISTRY_PREFIX}ssl.").replace(
                "librdkafka: ", "Also: "
            )
            if row.name in docs:  # only the other names at the end of the brokers' text are kept
                doc = docs[row.name] + "".join(re.findall(r" Also: .*", doc))
            rows.append(
                replace(
                    row,
                    name=REGISTRY_PREFIX + row.name,
                    alias_of=row.alias_of and REGISTRY_PREFIX + row.alias_of,
                    field=row.field.replace("security.", "registry_tls."),
                    doc=doc,
                )
            )
    return rows


FORMATS: tuple[Option, ...] = (
    *_column_rows("value"),
    *_column_rows("key"),
    used("envelope", _BOTH, "format.envelope", kinds.envelope,
        "The records are changes of a table, in the envelope of this tool (writes: debezium, "
        "with valueFormat=json or avro). debezium-flat: as Debezium's ExtractNewRecordState "
        "leaves them. valueFormat says how the envelope is encoded (json for maxwell, canal and "
        "ogg), and keyFormat is the same unless it is set.",
        default_text="none: values are what they are"),
    used("envelope.columns", _READ, "format.envelope_columns", kinds.envelope_columns,
        "The columns of a read with envelope. row: those of the table, as they are after the "
        "change (before it, if it is a delete), and a column change. envelope: those of Kafka, "
        "and value is the envelope."),
    used("envelope.unavailable", _READ, "format.envelope_unavailable", wire_name,
        "The connector's unavailable.value.placeholder: what Debezium sends for values that the "
        "source did not send. Such a column is null, and change.unavailable names it."),
    used("envelope.schemas", _WRITE, "format.envelope_schemas", boolean,
        "envelope=debezium and valueFormat=json: put the schema beside each payload, as Kafka "
        "Connect's JsonConverter does with schemas.enable=true."),
    used("onBadRecord", _READ, "format.on_bad_record", kinds.bad_record_action,
        "What to do with a record whose key or value does not match its schema. fail: the read "
        "fails, and the error names the record. null: its key or value is null. column: its key "
        "or value is null, and the column bad_record has the error, the schema's id and the "
        "bytes. deadLetter: the record is written to deadLetter.topic and left out."),
    used("deadLetter.topic", _READ, "format.dead_letter_topic", wire_name,
        "The topic to which onBadRecord=deadLetter writes bad records, on the cluster that is "
        "read."),
    used("rescuedColumn", _READ, "format.rescued_column", boolean,
        "valueFormat=json: adds the column rescued, with the JSON text of all parts of the value "
        "that match no field of the schema."),
    used(kinds.DEPTH_OPTION, _BOTH, "format.recursive_fields_max_depth", integer(1, 15),
        "How many levels of a recursive record or message are structs in the column's type. The "
        "next level is a string with its JSON text (Spark's option of from_protobuf drops this "
        "level). Without this option, a recursive schema is an error. The option applies where "
        "the schema determines the type: in reads without .schema(…), SQL views, functions and "
        "the command. Elsewhere, as in a DataFrame's write, it is an error."),
    used("auto.register.schemas", _WRITE, "format.auto_register_schemas", boolean,
        "true: a schema that the registry does not have is registered. false: such a schema is "
        "an error."),
    used("use.latest.version", _WRITE, "format.use_latest_version", boolean,
        "true: rows are written with the subject's latest schema, in place of the schema that is "
        "made from their type."),
    used("normalize.schemas", _WRITE, "format.normalize_schemas", boolean,
        "true: the registry normalizes a schema before it looks it up or registers it, so "
        "insignificant differences in order do not matter."),
    used("ignoreEncryptionRules", _WRITE, "format.ignore_encryption_rules", boolean,
        "true: rows are written as plain text to a subject whose rules encrypt fields or "
        "payloads. false: such a write fails, because the connector runs no rules of a registry."),
)  # fmt: skip

REGISTRY: tuple[Option, ...] = (
    _registry_row("url", "url", kinds.registry_urls,
        "The address of the Schema Registry. Several URLs are tried in turn. The URL shows the "
        "API: glue://region/registry is AWS Glue's, a path with /apis/registry/v3 (or v2) "
        "Apicurio's own, a path with /$schemaGroups/GROUP Azure's, any other Confluent's. All "
        "settings below, except numbers, may contain references: ${env:NAME}, ${file:/path:key}, "
        "${directory:/path:name}."),
    *_credential_rows("basic.auth.credentials.source", "credentials_source",
        "Where user and password come from. You do not need to set it.",
        kind=one_of(
            "USER_INFO", fold=str.upper,
            hint=f"write user and password into {REGISTRY_PREFIX}basic.auth.user.info; they may be "
            "a reference",
        )),
    *_credential_rows("basic.auth.user.info", "user_info",
        "user:password. Use a reference, because Spark's plans and UI do not redact an option of "
        "this name.", kind=referable(Kind("user:password", str), secret=True), secret=True),
    *_credential_rows("bearer.auth.credentials.source", "bearer_source",
        "Where the token comes from: the option bearer.auth.token, or an issuer that returns it "
        "for a client id and secret. You do not need to set it.",
        kind=one_of(
            kinds.STATIC_TOKEN, kinds.OAUTHBEARER, fold=str.upper,
            hint=f"give a token in {REGISTRY_PREFIX}bearer.auth.token, which may be a reference, "
            f"or an issuer in {REGISTRY_PREFIX}bearer.auth.issuer.endpoint.url",
        )),
    *_credential_rows("bearer.auth.token", "bearer_token", "The bearer token.", secret=True),
    *_credential_rows("bearer.auth.issuer.endpoint.url", "issuer_url",
        "The URL of the issuer of tokens, https://…."),
    *_credential_rows("bearer.auth.client.id", "client_id", "The client id at the issuer."),
    *_credential_rows("bearer.auth.client.secret", "client_secret",
        "The client secret at the issuer.", secret=True),
    *_credential_rows("bearer.auth.scope", "scope", "The scope to request from the issuer."),
    *_credential_rows("bearer.auth.logical.cluster", "logical_cluster",
        "Confluent Cloud: the registry's logical cluster, lsrc-…."),
    *_credential_rows("bearer.auth.identity.pool.id", "identity_pool_id",
        "Confluent Cloud: the identity pool, pool-…."),
    *_registry_tls_rows(),
    _registry_row("request.timeout.ms", "request_timeout_ms", integer(1),
        "Maximum time for one request to the registry, including connecting."),
    _registry_row("api.timeout.ms", "api_timeout_ms", integer(1),
        "Maximum time for one lookup or registration, including all URLs and retries."),
    _registry_row("max.retries", "max_retries", integer(0),
        "How often all URLs are tried again after a transient failure.",
        default_text="3; in tasks as many as schema.registry.api.timeout.ms allows"),
    _registry_row("retries.wait.ms", "retries_wait_ms", long_ms(0),
        "Wait before the first retry. It doubles with each retry."),
    _registry_row("retries.max.wait.ms", "retries_max_wait_ms", long_ms(0),
        "Maximum wait between retries."),
    _registry_row("cache.capacity", "cache_capacity", integer(1),
        "How many schemas of one registry a Python worker caches. A schema with an id never "
        "changes, so cached schemas stay in use while the registry is unavailable."),
    *not_used(Status.UNNEEDED, _BOTH,
        "schema.registry.ssl.keystore.type schema.registry.ssl.truststore.type "
        "schema.registry.ssl.protocol",
        "the content of a store shows whether it is PEM, PKCS#12 or JKS"),
)  # fmt: skip

# --- the connector ---------------------------------------------------------------------------

CONNECTOR: tuple[Option, ...] = (
    used("subscribe", _READ, "read.subscription", Kind("topic,topic,…", str),
        "Topics to read. Exactly one of `subscribe`, subscribePattern and `assign` is required."),
    used("subscribePattern", _READ, "read.subscription", Kind("a regular expression", str),
        "Reads the topics whose name contains a match of the expression (a search, not a full "
        "match: use ^ and $). The syntax is Python's: nearly all patterns mean the same as in "
        "Java, and syntax that only Java knows is an error. Kafka's internal topics are left "
        "out."),
    used("assign", _READ, "read.subscription", Kind('JSON {"topic":[0,1]}', str),
        "Partitions to read. A partition that does not exist is an error."),
    used("startingOffsets", _READ, "read.starting",
        Kind("earliest, latest (streams only), committed or JSON", str),
        'Where a read starts. JSON has offsets, e.g. {"topic":{"0":23,"1":-2}}, and must name '
        "each partition that is read; -2 is earliest, -1 (streams only) latest. A stream uses "
        "startingOffsets only at its first start. Later it continues from its checkpoint, and "
        "new partitions start at earliest. committed: the committed offsets of the group "
        "kafka.group.id; committed,earliest or committed,latest also set where partitions "
        "without a committed offset start. Topics with tiered storage also have earliest-local "
        "(the first record on the leader's own disk, Kafka 3.6), latest-tiered (the last one in "
        "the remote storage, Kafka 3.9) and earliest-pending-upload (the first one that is not "
        "there yet, Kafka 4.2).", default_text="earliest (batch), latest (streams)"),
    used("endingOffsets", _READ, "read.ending", Kind("latest or JSON", str),
        "Offsets at which the read stops; -1 is latest. The record at the ending offset is not "
        "read. Only for batch reads.", default_text="latest"),
    used("topicIds", _READ, "read.topic_ids", topic_ids,
        "The ids of the topics to which the offsets belong, which resolve_offsets returns: "
        '{"topic":"7wCdKXxUTUGWEtq1EzBqVA"}. If a topic was deleted and recreated since, the '
        "read reports a data loss, and commit an error. Only for batch reads.", default_text=""),
    used("bindOffsets", _READ, "read.bind_offsets", one_of("task", "plan", fold=str.lower),
        "When a batch read resolves earliest and latest to offsets. task: when a task starts to "
        "read, so each query of a DataFrame reads the records that exist then. plan: once, in "
        "the first query of a load(), so all tasks, retries and later queries read the same "
        "offsets (Spark 4.1 and later)."),
    used("startingTimestamp", _READ, "read.starting", Kind("milliseconds since 1970", str),
        "Each partition is read from its first record with this timestamp or a later one. "
        "Overrides startingOffsetsByTimestamp and startingOffsets.", default_text=""),
    used("endingTimestamp", _READ, "read.ending", Kind("milliseconds since 1970", str),
        "Each partition is read up to, but not including, its first record with this timestamp "
        "or a later one. Without such a record it is read to its end. If times are out of order, "
        "as those of records that several tasks wrote, records of the time range may lie behind "
        "it: they are not read. Overrides endingOffsetsByTimestamp and endingOffsets. Only for "
        "batch reads.", default_text=""),
    used("startingOffsetsByTimestamp", _READ, "read.starting", Kind("JSON", str),
        'Like startingTimestamp, but for each partition: {"topic":{"0":1700000000000}}. It must '
        "name each partition that is read. Overrides startingOffsets.", default_text=""),
    used("endingOffsetsByTimestamp", _READ, "read.ending", Kind("JSON", str),
        "Like endingTimestamp, but for each partition. Overrides endingOffsets. Only for batch "
        "reads.", default_text=""),
    used("startingOffsetsByTimestampStrategy", _READ, "read.no_match_strategy",
        one_of("error", "latest", fold=str.lower),
        "What to do with a partition that has no record with the starting timestamp or a later "
        "one. error: the read fails. latest: none of its records are read."),
    used("minPartitions", _READ, "read.min_partitions", integer(1),
        "Minimum number of tasks. Ranges of partitions are split, the largest first. By default "
        "one task reads one partition."),
    used("maxRecordsPerPartition", _READ, "read.max_records_per_partition", integer(1, INT64_MAX),
        "Maximum number of offsets that one task reads. Larger ranges are split evenly, before "
        "minPartitions applies."),
    used("failOnDataLoss", _BOTH, "read.fail_on_data_loss", boolean,
        "What a read does if offsets of its range no longer exist or do not exist yet, and what "
        "an exactly-once stream does if a part of a decided micro-batch is lost. true: it fails. "
        "false: it skips what is missing and logs a warning with the number."),
    used("includeHeaders", _READ, "read.include_headers", boolean, "Adds the column headers."),
    used("invalidUtf8", _READ, "read.invalid_utf8", one_of("error", "null", fold=str.lower),
        "What to do if a key or value that `.schema(…)` declares as a string is not UTF-8. "
        "error: the read fails. null: the key or value is null."),
    used("filterPushdown", _READ, "read.filter_pushdown", boolean,
        "true: only records that filters on topic, partition, offset and timestamp can select "
        "are read. Call load() again for each query: see Filter pushdown. Requires Spark 4.1 or "
        "later and spark.sql.python.filterPushdown.enabled=true."),
    used("limitPushdown", _READ, "read.limit_pushdown", boolean,
        "true: each task of a query with LIMIT n stops after n rows. Requires Spark 4.4 or later "
        "and spark.sql.python.limitPushdown.enabled=true."),
    used("maxTimestampDisorderMs", _READ, "read.max_timestamp_disorder_ms", integer(0, INT64_MAX),
        "With filterPushdown: the most by which a record's timestamp can be earlier than that of "
        "any record before it in its partition. With this limit a read by time can stop early; "
        "it may miss records that exceed the limit."),
    used("kafkaConsumer.pollTimeoutMs", _READ, "read.poll_timeout_ms", long_ms(1),
        "How long a task waits for the next records before it fails."),
    used("topic", _WRITE, "write.topic", TRIMMED_TEXT,
        "The topic of all rows. Overrides the column topic."),
    used("createTopic", _WRITE, "write.create_topic", boolean,
        "true: a missing topic is created when the first row for it is written. Requires the "
        "permission CREATE on the topic or the cluster. false: a missing topic is an error, "
        "regardless of the brokers' auto.create.topics.enable."),
    used("createTopic.partitions", _WRITE, "write.create_partitions", integer(1),
        "Number of partitions of created topics.", default_text="the broker's num.partitions"),
    used("createTopic.replicationFactor", _WRITE, "write.create_replication_factor",
        integer(1, 32767), "Replication factor of created topics.",
        default_text="the broker's default.replication.factor"),
    used("createTopic.configs", _WRITE, "write.create_configs", kinds.string_map,
        'Topic settings of created topics, e.g. {"cleanup.policy":"compact"}.'),
    used("fetchOffset.numRetries", _READ, "read.fetch_offset_num_retries", integer(1),
        "Maximum attempts to look up offsets before the read or the stream fails. Each attempt "
        "takes at most kafka.default.api.timeout.ms. If no broker was ever reached, the first "
        "failure is final, because the address is probably wrong."),
    used("fetchOffset.retryIntervalMs", _READ, "read.fetch_offset_retry_interval_ms", long_ms(0),
        "Wait between attempts to look up offsets."),
    used("maxOffsetsPerTrigger", _READ, "stream.max_offsets_per_trigger", integer(1, INT64_MAX),
        "Streams: maximum number of offsets in a micro-batch over all partitions, which share it "
        "in proportion to their backlogs. Never exceeded."),
    used("maxBytesPerTrigger", _READ, "stream.max_bytes_per_trigger", integer(1, INT64_MAX),
        "Streams: about how many bytes a micro-batch reads, as the brokers store them "
        "(compressed). The number is estimated from the sizes of the partitions. Requires the "
        "permission DESCRIBE on the cluster."),
    used("minOffsetsPerTrigger", _READ, "stream.min_offsets_per_trigger", integer(1, INT64_MAX),
        "Streams: a micro-batch starts when there are this many new offsets, or after "
        "maxTriggerDelay."),
    used("maxTriggerDelay", _READ, "stream.max_trigger_delay_ms", kinds.duration_ms,
        "Streams: maximum wait for minOffsetsPerTrigger.", default_text="15m"),
    used("maxRangesPerTask", _READ, "stream.max_ranges_per_task", integer(1),
        "Streams: maximum number of partitions with few new records that one task reads. 1: each "
        "partition has its own task. minPartitions and maxRecordsPerPartition have the same "
        "effect as 1.", default_text="no maximum"),
    used("maxRecordsReadByDriver", _READ, "stream.max_records_read_by_driver", integer(0),
        "Streams: the driver reads a micro-batch of at most this many records and 4 MiB, and "
        "sends the rows with the plan, so no Python task starts. 0: tasks read each micro-batch."),
    *not_used(Status.IGNORED, _READ, "groupIdPrefix", "the read forms no consumer group"),
    used("deliveryGuarantee", _WRITE, "write.delivery_guarantee",
        one_of("at-least-once", "exactly-once", fold=str.lower),
        "exactly-once: readers with isolation.level=read_committed see each row of a stream "
        "once, and all rows of a batch write or none. at-least-once: rows that are written again "
        "after a failure are duplicates."),
    used("transactionalIdPrefix", _WRITE, "write.transactional_id_prefix", wire_name,
        "The prefix of the transactional ids, and of the group that stores decisions, in "
        "exactly-once writes. Only one query at a time may use it.",
        default_text="`sparkkafka-<the query's id>`; `sparkkafka` for batch writes"),
    used("metricsAddress", _BOTH, "read.metrics_address", kinds.metrics_address,
        "Where the driver and the tasks send metrics that Spark's progress lacks: bytes, "
        "retries, lost offsets, bad records, dead letters, rows written, transactions. Use the "
        "value in `sparkkafka.metrics(…).options`: see [Metrics](metrics.md).", secret=True),
    *not_used(Status.IGNORED, _WRITE, "includeHeaders",
        "headers are written if the rows have the column headers"),
    *FORMATS,
    *REGISTRY,
)  # fmt: skip

# --- the client library ------------------------------------------------------------------------


def _auto_create_row(doc: str) -> Option:
    """Return the row of allow.auto.create.topics: `doc` says when that client creates a topic."""
    return used(
        "allow.auto.create.topics", _BOTH, "client.allow_auto_create_topics", boolean,
        f"{doc} Requires the brokers' auto.create.topics.enable=true and the permission CREATE.",
    )  # fmt: skip


CONSUMER: tuple[Option, ...] = (
    _auto_create_row("Creates a missing topic when its metadata is first requested."),
    used("group.id", _BOTH, "consumer.group_id", wire_name,
        "The consumer group. Required for subscribe and commit, not for assign."),
    used("group.instance.id", _BOTH, "consumer.group_instance_id", wire_name,
        "Makes the consumer a static member (KIP-345). A static member that rejoins within "
        "session.timeout.ms gets its partitions back without a rebalance."),
    used("group.protocol", _BOTH, "consumer.group_protocol",
        one_of("classic", "consumer", "auto", fold=str.lower),
        "consumer: the brokers assign partitions (KIP-848, Kafka 4.0 and later). classic: one of "
        "the members assigns them. auto: consumer if the brokers have it and no setting of the "
        "classic protocol is set, else classic; the log says which."),
    used("group.remote.assignor", _BOTH, "consumer.group_remote_assignor", wire_name,
        "The brokers' assignor with group.protocol=consumer or auto: uniform or range.",
        default_text="the brokers choose"),
    used("auto.offset.reset", _BOTH, "consumer.auto_offset_reset", kinds.auto_offset_reset,
        "Where to start if the group has no committed offset for a partition, or if that offset "
        "no longer exists. none: an error. by_duration: at records of that age."),
    used("enable.auto.commit", _BOTH, "consumer.enable_auto_commit", boolean,
        "Commits the offsets of records that poll has returned: at a later poll every "
        "auto.commit.interval.ms, when partitions are revoked, and on close."),
    used("auto.commit.interval.ms", _BOTH, "consumer.auto_commit_interval_ms", integer(0),
        "How often enable.auto.commit commits."),
    used("session.timeout.ms", _BOTH, "consumer.session_timeout_ms", integer(1),
        "A member whose heartbeats stop for this long is removed from the group. The value must "
        "be within the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms."),
    used("heartbeat.interval.ms", _BOTH, "consumer.heartbeat_interval_ms", integer(1),
        "How often a member sends a heartbeat. It must be less than session.timeout.ms."),
    used("max.poll.interval.ms", _BOTH, "consumer.max_poll_interval_ms", integer(1),
        "A member that does not poll for this long leaves the group."),
    used("max.poll.records", _BOTH, "consumer.max_poll_records", integer(1),
        "Maximum number of records that one poll returns. poll_arrow has its own argument."),
    used("partition.assignment.strategy", _BOTH, "consumer.partition_assignment_strategy",
        kinds.assignors,
        "How partitions are assigned to members, in order of preference. The group uses one that "
        "all members have.", default_text="range,cooperative-sticky"),
    used("exclude.internal.topics", _BOTH, "consumer.exclude_internal_topics", boolean,
        "true: a topic pattern does not match Kafka's internal topics."),
    used("damaged", _BOTH, "consumer.damaged", one_of("raise", "yield"),
        "What poll does with a damaged batch. raise: CorruptRecordError, and the position stays. "
        "yield: one record, whose error is the CorruptRecordError, stands for the batch, and the "
        "next one is read. poll_arrow always raises."),
)  # fmt: skip

SHARE_CONSUMER: tuple[Option, ...] = (
    used("share.acknowledgement.mode", _BOTH, "share.acknowledgement_mode",
        one_of("implicit", "explicit", fold=str.lower),
        "implicit: the next poll or commit accepts the records of the last poll. explicit: the "
        "application acknowledges each record."),
    used("share.acquire.mode", _BOTH, "share.acquire_mode",
        one_of("batch_optimized", "record_limit", fold=str.lower),
        "batch_optimized: a poll acquires whole batches, perhaps more records than "
        "max.poll.records. record_limit: never more records than that (KIP-1206, Kafka 4.2)."),
)  # fmt: skip

PRODUCER: tuple[Option, ...] = (
    _auto_create_row("Creates a missing topic for its first record."),
    used("transactional.id", _BOTH, "settings.transactional_id", wire_name,
        "Enables transactions. Only one producer at a time may have this id: a later one fences "
        "the earlier one."),
)  # fmt: skip

# --- Kafka's clients --------------------------------------------------------------------------

KAFKA: tuple[Option, ...] = (
    used("bootstrap.servers", _BOTH, "client.bootstrap_servers", kinds.servers,
        "The first brokers to connect to; required. The default port is 9092. Write IPv6 "
        "addresses as [::1]."),
    used("client.id", _BOTH, "client.client_id", wire_name,
        "The client's name in the brokers' logs and quotas."),
    used("request.timeout.ms", _BOTH, "client.request_timeout_ms", time_limit_ms(),
        "Maximum time for one request before it fails. A failed request may be retried."),
    used("default.api.timeout.ms", _BOTH, "client.default_api_timeout_ms", time_limit_ms(),
        "Maximum time for one operation (metadata, offsets), including its retries. The first "
        "contact of Spark's driver with the cluster ends after 10 seconds if every bootstrap "
        "server refuses connections or has a name that cannot be resolved, because the address "
        "is probably wrong. If you set this option, the first contact takes that long, too."),
    used("retry.backoff.ms", _BOTH, "client.retry_backoff_ms", long_ms(0),
        "Wait before the first retry. It doubles with each retry."),
    used("retry.backoff.max.ms", _BOTH, "client.retry_backoff_max_ms", long_ms(0),
        "Maximum wait between retries."),
    used("reconnect.backoff.ms", _BOTH, "client.reconnect_backoff_ms", long_ms(0),
        "Wait before reconnecting to a broker. It doubles with each attempt."),
    used("reconnect.backoff.max.ms", _BOTH, "client.reconnect_backoff_max_ms", long_ms(0),
        "Maximum wait before reconnecting to a broker."),
    used("socket.connection.setup.timeout.ms", _BOTH, "client.socket_connection_setup_timeout_ms",
        long_ms(1), "Maximum time to connect to a broker."),
    used("connections.max.idle.ms", _BOTH, "client.connections_max_idle_ms", long_ms(-1),
        "A connection that was idle for this long is closed and replaced before its next use. "
        "Set it below the limits of brokers (600000), load balancers and firewalls. In Spark, a "
        "Python worker keeps a task's connections for its next task with the same settings and "
        "credentials: for this long if the option is set, else for 10000 ms. -1: no idle "
        "connection is closed, and workers keep connections for 10000 ms. 0: no idle connection is "
        "closed, and each task opens its own connections."),
    used("metadata.max.age.ms", _BOTH, "client.metadata_max_age_ms", long_ms(0),
        "Age after which metadata is refreshed even if nothing has failed."),
    used("metadata.recovery.strategy", _BOTH, "client.metadata_recovery_strategy",
        one_of("rebootstrap", "none", fold=str.lower),
        "rebootstrap: if no known broker answers, or a broker requests it, connect to "
        "bootstrap.servers again. none: connect only to known brokers (KIP-899)."),
    used("metadata.recovery.rebootstrap.trigger.ms", _BOTH,
        "client.metadata_recovery_rebootstrap_trigger_ms", long_ms(0),
        "If known brokers answer but give no metadata for this long, forget them and connect to "
        "bootstrap.servers again (KIP-1102)."),
    used("client.dns.lookup", _BOTH, "client.client_dns_lookup",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "All addresses of a name are tried in turn. resolve_canonical_bootstrap_servers_only "
        "also replaces the name of a bootstrap server by the canonical names of all its "
        "addresses (reverse lookup)."),
    used("broker.address.family", _BOTH, "client.address_family",
        one_of("any", "v4", "v6", "v4_first", "v6_first"),
        "librdkafka's name: which of a host's addresses are tried. v4: only IPv4. v6: only IPv6. "
        "v4_first: IPv4 before IPv6. v6_first: IPv6 before IPv4."),
    used("send.buffer.bytes", _BOTH, "client.send_buffer_bytes", integer(-1),
        "The socket's SO_SNDBUF; -1: the operating system decides."),
    used("receive.buffer.bytes", _BOTH, "client.receive_buffer_bytes", integer(-1),
        "The socket's SO_RCVBUF; -1: the operating system decides."),
    used("isolation.level", _READ, "fetch.isolation_level",
        one_of("read_uncommitted", "read_committed"),
        "read_committed: records of aborted and open transactions are not returned."),
    used("fetch.min.bytes", _READ, "fetch.fetch_min_bytes", integer(0),
        "How much data the broker collects before it responds, for at most fetch.max.wait.ms."),
    used("fetch.max.bytes", _READ, "fetch.fetch_max_bytes", integer(1),
        "Maximum data in one response; a larger first batch is returned alone."),
    used("max.partition.fetch.bytes", _READ, "fetch.max_partition_fetch_bytes", integer(1),
        "Maximum data of one partition in one response; a larger first batch is returned alone."),
    used("fetch.max.wait.ms", _READ, "fetch.fetch_max_wait_ms", integer(0),
        "How long the broker may wait for fetch.min.bytes."),
    used("group.id", _READ, "read.group_id", wire_name,
        "The consumer group whose committed offsets startingOffsets=committed uses. The query "
        "does not join the group: Spark assigns the partitions, and its checkpoint has the "
        "offsets."),
    used("client.rack", _READ, "fetch.client_rack", wire_name,
        "The rack of this client, as in broker.rack. Group assignors prefer to assign it "
        "partitions with a replica in this rack, and brokers with "
        "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector let it "
        "read from that replica."),
    used("max.decompressed.batch.bytes", _READ, "fetch.max_decompressed_batch_bytes", integer(1024),
        "Maximum size of a batch after decompression. A larger batch is an error, which names "
        "the batch. Batches are decompressed and decoded a few MiB at a time, so only a single "
        "large record takes that much memory."),
    used("check.crcs", _READ, "fetch.check_crcs", boolean, "Checks each batch's CRC-32C."),
    used("acks", _WRITE, "producer.acks", kinds.acks,
        "When a record counts as written. 0 and 1 turn idempotence off. all: when all in-sync "
        "replicas have it. 1: when the leader has it. 0: without a response, except to a "
        "partition's first batch.", default_text="all"),
    used("enable.idempotence", _WRITE, "producer.enable_idempotence", boolean,
        "true: retries within a task never duplicate a record. Requires acks=all, retries above "
        "0 and at most 5 requests in flight."),
    used("retries", _WRITE, "producer.retries", integer(0),
        "Maximum retries of one request. delivery.timeout.ms may end them earlier."),
    used("delivery.timeout.ms", _WRITE, "producer.delivery_timeout_ms", time_limit_ms(),
        "Maximum time to deliver a record, with retries; at least linger.ms + request.timeout.ms."),
    used("linger.ms", _WRITE, "producer.linger_ms", long_ms(0),
        "How long a batch that is not full may wait for more records. In Spark the default is at "
        "most delivery.timeout.ms - request.timeout.ms, if you set the former."),
    used("batch.size", _WRITE, "producer.batch_size", integer(0),
        "Maximum bytes in one batch of one partition. A larger record gets its own batch."),
    used("max.request.size", _WRITE, "producer.max_request_size", integer(1),
        "Maximum bytes in one request, and in one record. For Azure Event Hubs the default is "
        "1000000."),
    used("max.in.flight.requests.per.connection", _WRITE, "producer.max_in_flight", integer(1),
        "Maximum number of unanswered requests to one broker."),
    used("compression.type", _WRITE, "producer.compression_type",
        one_of("none", "gzip", "snappy", "lz4", "zstd"), "Compression of the batches."),
    used("compression.gzip.level", _WRITE, "producer.compression_level", kinds.gzip_level,
        "Compression level with compression.type=gzip.", default_text="-1"),
    used("compression.lz4.level", _WRITE, "producer.compression_level", integer(1, 17),
        "Compression level with compression.type=lz4.", default_text="the library's"),
    used("compression.zstd.level", _WRITE, "producer.compression_level", integer(-131072, 22),
        "Compression level with compression.type=zstd.", default_text="the library's"),
    used("buffer.memory", _WRITE, "producer.buffer_memory", integer(1, INT64_MAX),
        "Maximum bytes of records that wait to be sent or acknowledged. In Spark, each task has "
        "a buffer of this size. Arrow batches that Spark has passed to the task take up to half "
        "of it. In addition to the buffer, the task holds one slice of a batch, of about this "
        "size."),
    used("max.block.ms", _WRITE, "producer.max_block_ms", long_ms(1),
        "Maximum wait for metadata, or for free buffer.memory."),
    used("partitioner.class", _WRITE, "producer.partitioner", kinds.partitioner,
        "How a record's partition is chosen, with or without a key: see Partitioners."),
    used("partitioner.ignore.keys", _WRITE, "producer.partitioner_ignore_keys", boolean,
        "true: the default partitioner treats records with keys like records without keys. It "
        "has no effect if partitioner.class is set, as in Java."),
    used("transaction.timeout.ms", _WRITE, "producer.transaction_timeout_ms", integer(1),
        "How long a transaction may stay open before the broker aborts it.",
        default_text="the brokers' transaction.max.timeout.ms"),
    # They begin as the JVM connector's messages do (KafkaSourceProvider): people search for them.
    *not_used(Status.REFUSED, _READ, "auto.offset.reset",
        "Set startingOffsets instead: Spark, not a consumer group, tracks which offsets were "
        "read."),
    *not_used(Status.REFUSED, _READ, "key.deserializer value.deserializer",
        "Keys and values are read as binary: decode them after the read, or after the poll of a "
        "Consumer."),
    *not_used(Status.REFUSED, _READ, "enable.auto.commit", "Nothing is committed to a group."),
    *not_used(Status.REFUSED, _BOTH, "interceptor.classes",
        "It names Java classes that may change records, and no Java class runs here."),
    *not_used(Status.REFUSED, _WRITE, "key.serializer value.serializer",
        "Keys and values are written as they are: convert them before the write, or before the "
        "send of a Producer."),
    *not_used(Status.REFUSED, _WRITE, "transactional.id",
        "Each task needs an id of its own, so one fixed id cannot work: set "
        "deliveryGuarantee=exactly-once, and transactionalIdPrefix for the prefix of the ids."),
    *SECURITY,
    *not_used(Status.IGNORED, _READ,
        " ".join(
            row.name
            for row in (*CONSUMER, *SHARE_CONSUMER)
            if row.name not in ("group.id", "auto.offset.reset", "enable.auto.commit")
        )
        + " internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported",
        "partitions are assigned by Spark, not by a consumer group"),
    *not_used(Status.IGNORED, _WRITE,
        "metadata.max.idle.ms partitioner.adaptive.partitioning.enable "
        "partitioner.availability.timeout.ms transaction.two.phase.commit.enable",
        "it configures a part of the Java producer that is not needed here"),
    *not_used(Status.IGNORED, _BOTH,
        "auto.include.jmx.reporter enable.metrics.push metric.reporters metrics.num.samples "
        "metrics.recording.level metrics.sample.window.ms socket.connection.setup.timeout.max.ms",
        "it configures a part of the Java clients that is not needed here"),
    *not_used(Status.UNNEEDED, _BOTH, "config.providers",
        "security settings may contain ${env:…}, ${file:…} and ${directory:…} without it; the "
        "names that it gives to these providers are accepted too"),
    *not_used(Status.IGNORED, _BOTH, "config.providers.NAME.param.KEY",
        "providers have no settings here"),
)  # fmt: skip
