"""The rows of the option table about security: security.*, ssl.* and sasl.*.

Every name of Java's clients is here, used, ignored with a reason or refused, beside librdkafka's
names: `also` is another name of the same setting. Values may hold references (`references.py`), so
a row's value stays text until a connection is opened: the kind checks it now if it holds none, and
`Referable.final` makes the value then.

Sources: Kafka's SslConfigs, SaslConfigs, CommonClientConfigs (4.1); librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkkafka.config.kinds import (
    BOOLEAN,
    TRIMMED,
    Kind,
    Option,
    Side,
    Status,
    each,
    integer,
    one_of,
    used,
)
from sparkkafka.config.security.java_classes import (
    CLIENT_HANDLERS,
    ENGINE_FACTORIES,
    LOGIN_HANDLERS,
    LOGINS,
    RETRIEVERS,
    known_class,
)
from sparkkafka.config.security.references import has_reference
from sparkkafka.config.security.settings import TLS_VERSIONS
from sparkkafka.secret import Secret

CALLBACK_OPTION = "sasl.login.callback.handler.class"
"""The one whose value may be a callable, in the client library."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI")

JWT_BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass(frozen=True, slots=True)
class Referable(Kind):
    """A kind whose `parse` gives text (a Secret, if it is one), and `final` the value."""

    final: Callable[[str], Any]


def referable(kind: Kind, *, secret: bool = False) -> Referable:
    def parse(text: str) -> str | Secret:
        if not has_reference(text):
            value = kind.parse(text)
            text = value if isinstance(value, str) else text  # perhaps folded or trimmed
        return Secret(text) if secret else text.strip()

    return Referable(kind.values, parse, kind.parse)


# --- kinds -----------------------------------------------------------------------------------


def _mechanism(text: str) -> str:
    word = text.strip().upper()
    if word not in MECHANISMS:
        raise ValueError
    return word


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,:\s]+", text) if word)


BROKEN_TLS = ("TLSv1.1", "TLSv1", "SSLv3", "SSLv2Hello", "SSLv2")
"""Left out where a safe version stands beside them."""


def _versions(text: str) -> tuple[str, ...]:
    names = _words(text)
    safe = tuple(name for name in names if name in TLS_VERSIONS)
    if not names or {*names} - {*safe, *BROKEN_TLS}:
        raise ValueError
    if not safe:
        raise ValueError("TLS before 1.2 is broken")
    return safe


def _identification(text: str) -> bool:
    """Whether the broker's name is compared with its certificate. Java: "" does not; librdkafka:
    none does not."""
    word = text.strip().lower()
    if word not in ("https", "", "none"):
        raise ValueError
    return word == "https"


_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _login_handler(text: str) -> str:
    name = text.strip()
    known = known_class(name, LOGIN_HANDLERS)
    if known is None and not _FUNCTION.fullmatch(name):
        raise ValueError(NO_JAVA if "." in name and ":" not in name else "")
    return known or name


NO_JAVA = "no Java class runs here but those whose work is done here"


def _java_class(classes: tuple[str, ...], instead: str) -> Kind:
    """One of these classes of Java, which then have no effect."""

    def parse(text: str) -> str:
        known = known_class(text, classes)
        if known is None:
            raise ValueError(f"{NO_JAVA}: {instead}")
        return known

    return Kind(f"Java's {' or '.join(row.rpartition('.')[2] for row in classes)}", parse)


_EXTENSION = re.compile(r"\s*([A-Za-z]+)=([\x21-\x7E]+)\s*")


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(str.strip, text.split(",")):
        match = _EXTENSION.fullmatch(part)
        if match is None:
            raise ValueError
        pairs.append((match[1], match[2]))
    return tuple(pairs)


TEXT = Kind("text", str)
_PATH = Kind("the path of a file", str.strip)
_PEM = Kind("PEM text", str)
_MILLISECONDS = integer(1)

# --- rows ------------------------------------------------------------------------------------


def _row(
    name: str, field: str, kind: Kind, doc: str, *, secret: bool = False, also: str = ""
) -> list[Option]:
    """The row, and one for each of its other names."""
    names = f" librdkafka: {', '.join(f'`{other}`' for other in also.split())}." if also else ""
    more: dict[str, Any] = {
        "secret": secret,
        "default_text": None if field in _WITH_DEFAULT else _DEFAULT_WORDS.get(field, ""),
    }
    target, text_kind = f"security.{field}", referable(kind, secret=secret)
    row = used(name, Side.BOTH, target, text_kind, doc + names, **more)
    others = [
        used(other, Side.BOTH, target, text_kind, doc, alias_of=name, **more)
        for other in also.split()
    ]
    return [row, *others]


# Defaults that are not in `SecurityOptions`, in words; "" for those that have none at all.
_DEFAULT_WORDS = {
    "truststore_location": "the system's authorities",
    "cipher_suites": "OpenSSL's",
    "https_ca_location": "the system's authorities",
    "kerberos_service_name": "kafka",
}
_WITH_DEFAULT = (
    "protocol", "identification", "verify", "enabled_protocols", "oauth_method",
    "assertion_algorithm", "assertion_exp_s", "assertion_nbf_s", "assertion_jti",
    "oauth_header_urlencode", "oauth_grant_type", "oauth_allow_http", "oauth_unsecured",
    "login_connect_timeout_ms", "login_read_timeout_ms", "login_retry_backoff_ms",
    "login_retry_backoff_max_ms",
)  # fmt: skip

SECURITY: tuple[Option, ...] = (
    *_row(
        "security.protocol", "protocol",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", fold=str.upper),
        "Whether connections are encrypted (SSL) and authenticated (SASL): see "
        "[Security](docs/security.md). Each setting below, and this one, may hold references: "
        "${env:NAME}, ${file:/path:key}, ${directory:/path:name}.",
    ),
    *_row(
        "ssl.truststore.location", "truststore_location", _PATH,
        "Authorities that brokers' certificates are checked against: PEM, PKCS#12 or JKS, on the "
        "driver and each executor.", also="ssl.ca.location",
    ),
    *_row(
        "ssl.truststore.certificates", "truststore_certificates", _PEM,
        "The same as text, PEM.", secret=True, also="ssl.ca.pem",
    ),
    *_row(
        "ssl.truststore.password", "truststore_password", TEXT,
        "Password of a truststore of PKCS#12 or JKS.", secret=True,
    ),
    *_row(
        "ssl.keystore.location", "keystore_location", _PATH,
        "The client's certificate, its chain, and its key: PEM, PKCS#12 or JKS.",
    ),
    *_row(
        "ssl.keystore.certificate.chain", "keystore_certificate_chain", _PEM,
        "The client's certificate and chain as text, PEM; needs ssl.keystore.key.", secret=True,
        also="ssl.certificate.pem",
    ),
    *_row(
        "ssl.keystore.key", "keystore_key", _PEM,
        "The client's key as text, PEM (PKCS#8 or older).", secret=True, also="ssl.key.pem",
    ),
    *_row(
        "ssl.keystore.password", "keystore_password", TEXT,
        "Password of a keystore of PKCS#12 or JKS.", secret=True,
    ),
    *_row(
        "ssl.certificate.location", "certificate_location", _PATH,
        "librdkafka's name for a PEM file with the client's certificate and chain.",
    ),
    *_row(
        "ssl.key.location", "key_location", _PATH,
        "librdkafka's name for a PEM file with the client's key.",
    ),
    *_row(
        "ssl.key.password", "key_password", TEXT, "Password of an encrypted key.", secret=True,
    ),
    *_row(
        "ssl.endpoint.identification.algorithm", "identification",
        Kind("https, or nothing", _identification),
        "https: the name in bootstrap.servers and in the brokers' listeners must be in the "
        "broker's certificate. Empty: not checked, so that any certificate of the authorities can "
        "pose as a broker.",
    ),
    *_row(
        "enable.ssl.certificate.verification", "verify", BOOLEAN,
        "librdkafka's name. false: any certificate is accepted, and anyone in between can read and "
        "change everything.",
    ),
    *_row(
        "ssl.enabled.protocols", "enabled_protocols",
        Kind(f"a list of {', '.join(TLS_VERSIONS)}", _versions),
        "Versions of TLS. Older ones beside them are left out, with a warning.",
    ),
    *_row(
        "ssl.cipher.suites", "cipher_suites", Kind("a list of names, Java's or OpenSSL's", _words),
        "Cipher suites up to TLS 1.2; those of TLS 1.3 are OpenSSL's.",
    ),
    *_row(
        "ssl.crl.location", "crl_location", _PATH,
        "librdkafka's name. Lists of revoked certificates by the authorities of brokers' "
        "certificates, PEM or DER: a broker whose certificate is in them, or in none that is valid "
        "now, is refused.",
    ),
    *_row(
        "sasl.mechanism", "mechanism", Kind(f"one of {', '.join(MECHANISMS)}", _mechanism),
        "Needed if security.protocol is SASL_….", also="sasl.mechanisms",
    ),
    *_row(
        "sasl.jaas.config", "jaas_config", TEXT,
        "User and password, or the source of tokens, in Java's form: PlainLoginModule, "
        "ScramLoginModule, OAuthBearerLoginModule, IAMLoginModule or Krb5LoginModule.", secret=True,
    ),
    *_row("sasl.username", "username", TEXT, "librdkafka's name for the user of PLAIN and SCRAM."),
    *_row("sasl.password", "password", TEXT, "The user's password.", secret=True),
    *_row(
        "sasl.kerberos.service.name", "kerberos_service_name", TRIMMED,
        "The brokers' Kerberos name without host and realm. In sasl.jaas.config: serviceName.",
    ),
    *_row(
        "sasl.kerberos.keytab", "kerberos_keytab", _PATH,
        "librdkafka's name: the file with the key of sasl.kerberos.principal, on the driver and "
        "each executor. In sasl.jaas.config: keyTab, with useKeyTab=true.",
    ),
    *_row(
        "sasl.kerberos.principal", "kerberos_principal", TRIMMED,
        "librdkafka's name: who to be. In sasl.jaas.config: principal.",
    ),
    *_row(
        CALLBACK_OPTION, "login_callback", Kind("module:function", _login_handler),
        "A Python function without arguments that returns a token for OAUTHBEARER, or (token, "
        "seconds since 1970 at which it ends). In the client library also the function itself.",
    ),
    *_row(
        "sasl.client.callback.handler.class", "client_callback",
        _java_class(CLIENT_HANDLERS, "it is not needed for SASL, leave it out"),
        "Understood, and not needed.",
    ),
    *_row(
        "sasl.login.class", "login_class",
        _java_class(LOGINS, f"a Python function may give tokens, see {CALLBACK_OPTION}"),
        "Understood, and not needed.",
    ),
    *_row(
        "ssl.engine.factory.class", "engine_factory",
        _java_class(ENGINE_FACTORIES, "give certificates as files, text or references"),
        "Understood, and not needed.",
    ),
    *_row(
        "sasl.oauthbearer.token.endpoint.url", "oauth_token_endpoint_url",
        Kind("https://… or file:/…", str.strip),
        "Where OAUTHBEARER gets its token with client id and secret; file: a file whose content "
        "is the token.",
    ),
    *_row(
        "sasl.oauthbearer.client.credentials.client.id", "oauth_client_id", TEXT,
        "The id. In sasl.jaas.config: clientId.", also="sasl.oauthbearer.client.id",
    ),
    *_row(
        "sasl.oauthbearer.client.credentials.client.secret", "oauth_client_secret", TEXT,
        "The secret. In sasl.jaas.config: clientSecret.", secret=True,
        also="sasl.oauthbearer.client.secret",
    ),
    *_row(
        "sasl.oauthbearer.scope", "oauth_scope", TRIMMED,
        "What is asked for. In sasl.jaas.config: scope.",
    ),
    *_row(
        "sasl.oauthbearer.extensions", "oauth_extensions",
        Kind("name=value,name=value,…", _extensions),
        "librdkafka's name for SASL extensions; in sasl.jaas.config: extension_name.",
    ),
    *_row(
        "sasl.oauthbearer.token", "oauth_token", TEXT,
        "A token as it is (this package's own; a reference to a file that something else renews, "
        "most often).", secret=True,
    ),
    *_row(
        "sasl.oauthbearer.method", "oauth_method", one_of("oidc", "default", fold=str.lower),
        "librdkafka's; the same is done for both.",
    ),
    *_row(
        "sasl.oauthbearer.grant.type", "oauth_grant_type",
        one_of("client_credentials", JWT_BEARER_GRANT),
        "librdkafka's. The second one shows an assertion in place of id and secret.",
    ),
    *_row(
        "sasl.oauthbearer.assertion.file", "assertion_file", _PATH,
        "An assertion that something else makes and renews: the content of this file.",
    ),
    *_row(
        "sasl.oauthbearer.assertion.private.key.file", "assertion_key_file", _PATH,
        "The key that signs assertions made here, PEM.",
    ),
    *_row(
        "sasl.oauthbearer.assertion.private.key.pem", "assertion_key", _PEM,
        "librdkafka's name: the key as text.", secret=True,
    ),
    *_row(
        "sasl.oauthbearer.assertion.private.key.passphrase", "assertion_passphrase", TEXT,
        "Password of an encrypted key.", secret=True,
    ),
    *_row(
        "sasl.oauthbearer.assertion.algorithm", "assertion_algorithm", one_of("RS256", "ES256"),
        "How assertions are signed: RS256 with an RSA key, ES256 with one of the curve P-256.",
    ),
    *_row(
        "sasl.oauthbearer.assertion.template.file", "assertion_template_file", _PATH,
        "JSON with what else an assertion says: `{\"header\": {…}, \"payload\": {…}}`.",
        also="sasl.oauthbearer.assertion.jwt.template.file",
    ),
    *_row(
        "sasl.oauthbearer.assertion.claim.aud", "assertion_aud", TEXT,
        "For whom an assertion is: the token endpoint, most often.",
    ),
    *_row("sasl.oauthbearer.assertion.claim.iss", "assertion_iss", TEXT, "Who says it."),
    *_row("sasl.oauthbearer.assertion.claim.sub", "assertion_sub", TEXT, "Of whom it speaks."),
    *_row(
        "sasl.oauthbearer.assertion.claim.exp.seconds", "assertion_exp_s", integer(1, 86_400),
        "How many seconds an assertion is valid.",
    ),
    *_row(
        "sasl.oauthbearer.assertion.claim.nbf.seconds", "assertion_nbf_s", integer(0, 3_600),
        "How many seconds back its validity starts, to allow for clock skew.",
    ),
    *_row(
        "sasl.oauthbearer.assertion.claim.jti.include", "assertion_jti", BOOLEAN,
        "Whether each has an id of its own.",
    ),
    *_row(
        "sasl.oauthbearer.jwt.retriever.class", "oauth_retriever",
        _java_class(RETRIEVERS, f"see {CALLBACK_OPTION}"),
        "JwtBearerJwtRetriever: an assertion is shown in place of id and secret. The others are "
        "not needed.",
    ),
    *_row(
        "sasl.oauthbearer.header.urlencode", "oauth_header_urlencode", BOOLEAN,
        "Whether id and secret are URL-encoded before they go into the Authorization header.",
    ),
    *_row(
        "https.ca.location", "https_ca_location", _PATH,
        "librdkafka's name for the authorities of the token endpoint; in sasl.jaas.config: "
        "ssl.truststore.location.",
    ),
    *_row(
        "sasl.oauthbearer.token.endpoint.allow.http", "oauth_allow_http", BOOLEAN,
        "This package's own. true: a token endpoint may be http:// on another machine, where "
        "everybody on the way reads the client's secret and the token.",
    ),
    *_row(
        "enable.sasl.oauthbearer.unsecure.jwt", "oauth_unsecured", BOOLEAN,
        "librdkafka's name. true: tokens without a signature, which anybody can make, by "
        "unsecuredLogin… in sasl.jaas.config or sasl.oauthbearer.config. For brokers of tests.",
    ),
    *_row(
        "sasl.oauthbearer.config", "oauth_config", Kind("name=value name=value …", str.strip),
        "librdkafka's: what an unsecured token says, `principal=alice scope=a,b lifeSeconds=600`.",
    ),
    *_row("https.ca.pem", "https_ca_pem", _PEM, "The same as text, PEM.", secret=True),
    *_row(
        "sasl.login.connect.timeout.ms", "login_connect_timeout_ms", _MILLISECONDS,
        "How long connecting to the token endpoint may take.",
    ),
    *_row(
        "sasl.login.read.timeout.ms", "login_read_timeout_ms", _MILLISECONDS,
        "How long its answer may take.",
    ),
    *_row(
        "sasl.login.retry.backoff.ms", "login_retry_backoff_ms", _MILLISECONDS,
        "Wait before it is asked again after a failure; doubles each time.",
    ),
    *_row(
        "sasl.login.retry.backoff.max.ms", "login_retry_backoff_max_ms", _MILLISECONDS,
        "Longest of these waits.",
    ),
    *each(
        Status.UNNEEDED, Side.BOTH,
        "ssl.keymanager.algorithm ssl.secure.random.implementation ssl.trustmanager.algorithm",
        "here it is Python's ssl with OpenSSL that does it",
    ),
    *each(
        Status.IGNORED, Side.BOTH,
        "security.providers ssl.provider ssl.ca.certificate.stores ssl.curves.list "
        "ssl.sigalgs.list ssl.providers",
        "it chooses among implementations of TLS, and here it is Python's ssl with OpenSSL",
    ),
    *each(
        Status.UNNEEDED, Side.BOTH, "ssl.keystore.type ssl.truststore.type",
        "whether a store is PEM, PKCS#12 or JKS, its content says",
    ),
    *each(
        Status.UNNEEDED, Side.BOTH, "ssl.protocol",
        "the versions of TLS are those of ssl.enabled.protocols",
    ),
    *each(
        Status.UNNEEDED, Side.BOTH,
        "sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter",
        "a new token is got when one is needed and the old one is about to end",
    ),
    *each(
        Status.UNNEEDED, Side.BOTH,
        "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
        "sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url "
        "sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name "
        "sasl.oauthbearer.sub.claim.name",
        "it is for the broker, which checks tokens",
    ),
    *each(
        Status.REFUSED, Side.BOTH, "ssl.engine.location ssl.engine.id",
        "OpenSSL's engines are not used: give the key as a file, text or reference.",
    ),
    *each(
        Status.UNNEEDED, Side.BOTH,
        "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin "
        "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor",
        "a new ticket is got by the keytab when one is needed and the old one is about to end",
    ),
    *each(
        Status.REFUSED, Side.BOTH, "sasl.oauthbearer.metadata.authentication.type",
        "A token endpoint gets client id and secret, or an assertion; for other grants write a "
        f"function that gets the token, and name it in {CALLBACK_OPTION}.",
    ),
)  # fmt: skip
