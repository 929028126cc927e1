"""Security options as given: text with references, checked as far as possible before a connection.

    security_from      what was given -> SecurityOptions, a field of ClientOptions
    secure_settings    SecurityOptions -> TlsSettings, SaslChoice: where a connection is opened

Options without references are checked when they are parsed; with one, when it is looked up. Rules
between options are Java's (SslFactory, DefaultSslEngineFactory, LoginManager) where Java has them.
Messages name options, and never hold a value of a secret one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparkkafka.config.check import GivenOptions, warn
from sparkkafka.config.security.jvm import jvm_truststore
from sparkkafka.config.security.references import (
    WithReferences,
    has_other_reference,
    has_reference,
    resolved,
)
from sparkkafka.config.security.rows import BROKEN_TLS, SECURITY, Referable
from sparkkafka.config.security.sasl import sasl_choice
from sparkkafka.config.security.settings import (
    UNSECURED,
    SaslChoice,
    Store,
    TlsSettings,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import NO_SECRET, Secret

TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
_ENDPOINT = "oauth_token_endpoint_url"
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, kw_only=True, repr=False)
class SecurityOptions(WithReferences):
    """security.*, ssl.* and sasl.* as given; empty if not given.

    `names` has the given names by field, where they are not the table's own.
    """

    GROUP = "security"

    protocol: str = "PLAINTEXT"
    truststore_location: str = ""
    truststore_certificates: Secret = NO_SECRET
    truststore_password: Secret = NO_SECRET
    keystore_location: str = ""
    keystore_certificate_chain: Secret = NO_SECRET
    keystore_key: Secret = NO_SECRET
    keystore_password: Secret = NO_SECRET
    certificate_location: str = ""
    key_location: str = ""
    key_password: Secret = NO_SECRET
    identification: str = "https"
    verify: str = "true"
    enabled_protocols: str = "TLSv1.2,TLSv1.3"
    cipher_suites: str = ""
    crl_location: str = ""
    mechanism: str = ""
    jaas_config: Secret = NO_SECRET
    username: str = ""
    password: Secret = NO_SECRET
    kerberos_service_name: str = ""
    kerberos_keytab: str = ""
    kerberos_principal: str = ""
    login_callback: str | Callable[[], Any] = ""
    client_callback: str = ""
    login_class: str = ""
    engine_factory: str = ""
    oauth_token_endpoint_url: str = ""
    oauth_client_id: str = ""
    oauth_client_secret: Secret = NO_SECRET
    oauth_scope: str = ""
    oauth_extensions: str = ""
    oauth_token: Secret = NO_SECRET
    oauth_method: str = "oidc"
    oauth_grant_type: str = "client_credentials"
    oauth_retriever: str = ""
    assertion_file: str = ""
    assertion_algorithm: str = "RS256"
    assertion_key_file: str = ""
    assertion_key: Secret = NO_SECRET
    assertion_passphrase: Secret = NO_SECRET
    assertion_template_file: str = ""
    assertion_aud: str = ""
    assertion_iss: str = ""
    assertion_sub: str = ""
    assertion_exp_s: str = "300"
    assertion_nbf_s: str = "60"
    assertion_jti: str = "false"
    oauth_header_urlencode: str = "false"
    oauth_allow_http: str = "false"
    oauth_unsecured: str = "false"
    oauth_config: str = ""
    https_ca_location: str = ""
    https_ca_pem: Secret = NO_SECRET
    login_connect_timeout_ms: str = "10000"
    login_read_timeout_ms: str = "10000"
    login_retry_backoff_ms: str = "100"
    login_retry_backoff_max_ms: str = "10000"
    names: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        """What differs from the defaults; secrets are hidden, also those in URLs."""
        shown = ", ".join(
            f"{f.name}={_shown(f.name, getattr(self, f.name))!r}"
            for f in dataclasses.fields(self)
            if f.name != "names" and getattr(self, f.name) != f.default
        )
        return f"SecurityOptions({shown})"

    def name_of(self, name: str) -> str:
        """How the user called this field."""
        return dict(self.names).get(name) or _NAMES[name]


NO_SECURITY: Final = SecurityOptions()


class SecureSettings(NamedTuple):
    """What a connection does: TLS if `tls`, SASL if `sasl`."""

    tls: TlsSettings | None
    sasl: SaslChoice | None


def _shown(name: str, value: Any) -> Any:
    """Without what stands before the host of a URL, or in its query: passwords, keys."""
    if name != _ENDPOINT:
        return value
    scheme, slashes, rest = str(value).partition("://")
    if not slashes:
        return str(value).partition("?")[0]
    # A password may hold a slash, or a question mark: what the last @ ends is not shown.
    _, at, rest = rest.rpartition("@")
    where, question, _ = re.sub("#.*", "", rest, flags=re.DOTALL).partition("?")
    return f"{scheme}://{'[hidden]@' if at else ''}{where}{'?[hidden]' if question else ''}"


_ROWS = {
    (row.field or "").partition(".")[2]: row for row in SECURITY if row.field and not row.alias_of
}
_NAMES = {name: row.name for name, row in _ROWS.items()}


# --- as given --------------------------------------------------------------------------------


def security_from(given: GivenOptions, servers: tuple[tuple[str, int], ...]) -> SecurityOptions:
    """The given security options, checked. Raises OptionError."""
    fields = given.group(SecurityOptions.GROUP)
    names = tuple((name, given.names[f"security.{name}"]) for name in fields)
    options = SecurityOptions(**fields, names=names)
    if not has_reference(options.protocol):
        _warn_of_idle(options, given.prefix)
    if given.prefix:
        _warn_of_shown(options)
    for name, text in options.texts():
        if has_other_reference(text):
            option = given.prefix + options.name_of(name)
            warn(
                f"{option} as it stands",
                f"{option} has a ${{…:…}} of no provider that is set up: it is taken as it stands",
            )
    if not options.has_references:
        settings = secure_settings(options, servers)
        _warn_of_weak(options, settings, given.prefix)
    return options


def _warn_of_shown(options: SecurityOptions) -> None:
    """Spark hides options whose name or value has one of its words; a key in PEM has none."""
    if options.keystore_key and not has_reference(options.keystore_key.reveal()):
        name = f"kafka.{options.name_of('keystore_key')}"
        warn(
            f"{name} shown",
            f"{name} is shown by Spark's plans, UI and event log unless spark.redaction.regex has "
            "ssl[.].*key (conf/spark-defaults.conf has such a line): set it, or give a reference, "
            "${file:/path:key} or ${directory:/path:name}",
        )


def _warn_of_idle(options: SecurityOptions, prefix: str) -> None:
    """Warns of options without effect, which Java silently ignores."""
    for begin, allowed in (("ssl.", TLS_PROTOCOLS), ("sasl.", SASL_PROTOCOLS)):
        idle = sorted(
            options.name_of(name) for name, _ in options.names if _NAMES[name].startswith(begin)
        )
        if idle and options.protocol not in allowed:
            warn(
                f"idle {begin}",
                f"{', '.join(prefix + name for name in idle)}: no effect with "
                f"{prefix}security.protocol={options.protocol}; set it to {' or '.join(allowed)}",
            )


def _broken_versions(options: SecurityOptions) -> list[str]:
    given = re.split(r"[,:\s]+", options.enabled_protocols)
    return [name for name in BROKEN_TLS if name in given]


def _warn_of_weak(options: SecurityOptions, settings: SecureSettings, prefix: str) -> None:
    tls, sasl = settings
    if tls is not None and not (tls.verify and tls.check_hostname):
        name = options.name_of("identification" if tls.verify else "verify")
        warn(
            "not verified",
            f"{prefix}{name} lets brokers pass whose "
            f"{'name is not in their certificate' if tls.verify else 'certificate nobody checks'}",
        )
    if tls is not None and (broken := _broken_versions(options)):
        warn(
            "broken TLS",
            f"{prefix}{options.name_of('enabled_protocols')} has {', '.join(broken)}, which "
            f"anybody can break: {', '.join(tls.versions)} is used, without them",
        )
    if sasl is not None and sasl.oauth is not None:
        oauth = sasl.oauth
        if oauth.method == UNSECURED:
            warn(
                "unsecured token",
                f"{prefix}{options.name_of('oauth_unsecured')}: the token has no signature, and "
                "anybody can make one: for brokers of tests",
            )
        if oauth.allow_http and oauth.token_endpoint_url.lower().startswith("http:"):
            warn(
                "token in the clear",
                f"{prefix}{options.name_of(_ENDPOINT)} is not https: everybody on the way reads "
                "the client's secret and the token",
            )
    if sasl is not None and tls is None and sasl.mechanism in ("PLAIN", "OAUTHBEARER"):
        what = "password" if sasl.mechanism == "PLAIN" else "token"
        warn(
            "in the clear",
            f"{prefix}security.protocol=SASL_PLAINTEXT sends the {what} of {sasl.mechanism} in the "
            "clear: use SASL_SSL outside of a test",
        )


# --- where a connection is opened ------------------------------------------------------------


def secure_settings(
    options: SecurityOptions, servers: tuple[tuple[str, int], ...] = ()
) -> SecureSettings:
    """The settings of a connection, with all references looked up now.

    `servers`: some hosts of the cluster; Amazon's say their region. Raises OptionError.
    """
    values = _looked_up(options)
    protocol = values["protocol"]
    tls = _tls(options, values) if protocol in TLS_PROTOCOLS else None
    sasl = None
    if protocol in SASL_PROTOCOLS:
        sasl = sasl_choice(values, options.name_of, servers)
    return SecureSettings(tls, sasl)


def _looked_up(options: SecurityOptions) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in (one.name for one in dataclasses.fields(options)):
        if not isinstance(getattr(options, name), str | Secret):
            values[name] = getattr(options, name)
            continue
        option = options.name_of(name)
        kind = _ROWS[name].kind
        text = _hidden(getattr(options, name))
        if text and name != "jaas_config":  # its parser looks up what is in it
            text = resolved(text, option)
        values[name] = text
        # An endpoint stays hidden: some have a key in their query, and a dict shows what it has.
        if isinstance(getattr(options, name), Secret) or name == _ENDPOINT:
            continue
        values[name] = getattr(options, name)
        if isinstance(kind, Referable) and (text or name == "identification"):
            try:
                values[name] = kind.final(text.reveal())
            except ValueError as error:
                reason = f": {error}" if str(error) else ""
                # The content of a reference is never shown.
                raise OptionError(f"option {option} must be {kind.values}{reason}") from None
    return values


def _hidden(value: str | Secret) -> Secret:
    return value if isinstance(value, Secret) else Secret(value)


def _tls(options: SecurityOptions, values: Mapping[str, Any]) -> TlsSettings:
    def store(path: str, text: str = "", password: str = "") -> Store:
        chosen = text if text and values[text] and not values[path] else path
        return Store(
            options.name_of(chosen),
            path=values[path],
            text=values[text] if text else NO_SECRET,
            password=values[password] if password else NO_SECRET,
        )

    _check_stores(options, values)
    if values["certificate_location"] or values["key_location"]:
        certificates = store("certificate_location", "keystore_certificate_chain")
    else:
        certificates = store("keystore_location", "keystore_certificate_chain", "keystore_password")
    key = certificates
    if values["key_location"] or values["keystore_key"]:
        key = store("key_location", "keystore_key")
    truststore = store("truststore_location", "truststore_certificates", "truststore_password")
    return TlsSettings(
        truststore=truststore or jvm_truststore() or truststore,
        certificates=certificates,
        key=key,
        # Of PKCS#12, Java's stores have a password of their own, and their key may have another.
        key_password=values["key_password"],
        verify=values["verify"],
        check_hostname=values["identification"],
        versions=values["enabled_protocols"],
        cipher_suites=values["cipher_suites"] or (),
        revoked=store("crl_location"),
    )


_EITHER = (
    ("truststore_location", "truststore_certificates"),
    ("keystore_location", "keystore_certificate_chain"),
    ("keystore_location", "keystore_key"),
    ("keystore_location", "certificate_location"),
    ("keystore_location", "key_location"),
    ("certificate_location", "keystore_certificate_chain"),
    ("key_location", "keystore_key"),
)
_NEEDS = (
    ("truststore_password", ("truststore_location",)),
    ("keystore_password", ("keystore_location",)),
    ("keystore_certificate_chain", ("keystore_key", "key_location")),
    ("keystore_key", ("keystore_certificate_chain", "certificate_location")),
    ("key_location", ("certificate_location", "keystore_certificate_chain")),
    ("key_password", ("keystore_location", "keystore_key", "key_location", "certificate_location")),
)


def _check_stores(options: SecurityOptions, values: Mapping[str, Any]) -> None:
    name = options.name_of
    for one, other in _EITHER:
        if values[one] and values[other]:
            raise OptionError(f"{name(one)} and {name(other)} exclude each other: remove one")
    for one, others in _NEEDS:
        if values[one] and not any(values[other] for other in others):
            wanted = " or ".join(name(other) for other in others)
            raise OptionError(f"{name(one)} is set, and {wanted} is not")
