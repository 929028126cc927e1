"""Security options as the user set them, and the settings that connections get from them.

    security_from      parsed options -> SecurityOptions, a field of ClientOptions
    secure_settings    SecurityOptions -> TlsSettings, SaslChoice, for a new connection

Options without references are checked when they are parsed, those with one when it is resolved.
Rules between options are Java's (SslFactory, DefaultSslEngineFactory, LoginManager) where it has
some. Messages name options, and never contain the value of a secret one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sparkkafka.config.kinds import BROKEN_TLS, Referable, split_list
from sparkkafka.config.option_table import SECURITY, names_by_attribute
from sparkkafka.config.parsed_options import ParsedOptions, warn
from sparkkafka.config.security import references
from sparkkafka.config.security.java import jvm_truststore
from sparkkafka.config.security.sasl import sasl_choice
from sparkkafka.config.security.settings import SaslChoice, Servers, Store, TlsSettings, TokenMethod
from sparkkafka.errors import OptionError, exclusive
from sparkkafka.secret import NO_SECRET, Secret

TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")

_ROWS: Final = {
    row.field.removeprefix("security."): row for row in SECURITY if row.field and not row.alias_of
}

# mypy cannot know the fields of such a class: their types are str and Secret.
_TableFields: Any = dataclasses.make_dataclass(
    "_TableFields",
    [
        *(
            (field, Secret if row.secret else str, NO_SECRET if row.secret else row.default)
            for field, row in _ROWS.items()
        ),
        ("names", tuple[tuple[str, str], ...], dataclasses.field(default=(), compare=False)),
    ],
    bases=(references.WithReferences,),
    # Without a text, Python makes one of all fields, which takes 5 ms.
    namespace={"__doc__": "The fields of SecurityOptions."},
    frozen=True,
    kw_only=True,
    init=False,
    eq=False,
    repr=False,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SecurityOptions(_TableFields):  # type: ignore[misc]
    """security.*, ssl.* and sasl.* as the user set them: a field for each row of SECURITY, with the
    row's default if it is not set."""

    GROUP = "security"
    OPTION_NAMES = names_by_attribute(SECURITY, GROUP)
    URL_FIELDS = frozenset({"oauth_token_endpoint_url"})


NO_SECURITY: Final = SecurityOptions()


class SecureSettings(NamedTuple):
    """How a connection is secured: with TLS if there is `tls`, with SASL if there is `sasl`."""

    tls: TlsSettings | None
    sasl: SaslChoice | None


def security_from(parsed: ParsedOptions, servers: Servers) -> SecurityOptions:
    """Return the security options, checked. Warns of options without effect, secrets that Spark
    shows, and connections that others can read. Raises OptionError."""
    fields = parsed.group(SecurityOptions.GROUP)
    names = tuple((name, parsed.names[f"security.{name}"]) for name in fields)
    options = SecurityOptions(**fields, names=names)
    if not references.has_reference(options.protocol):
        _warn_of_unused(options, parsed.prefix)
    if parsed.prefix:
        name = parsed.prefix + options.name_of("keystore_key")
        warn_of_visible_secret(name, "ssl[.].*key", options.keystore_key)
    warn_of_other_references(options, parsed.prefix)
    if not options.has_references:
        with explained_prefix(parsed.prefix):
            settings = secure_settings(options, servers)
        _warn_of_weak_security(options, settings, parsed.prefix)
    return options


def warn_of_other_references(options: references.WithReferences, prefix: str = "") -> None:
    """Warn of each ${…:…} whose provider is neither ours nor one of config.providers."""
    for name, text in options.texts():
        if references.has_other_reference(text):
            option = prefix + options.name_of(name)
            warn(
                f"{option} as it stands",
                f"{option} has a ${{…:…}} of no provider that is set up: it is used literally",
            )


def warn_of_visible_secret(option: str, pattern: str, secret: Secret) -> None:
    """Warn if a secret is set that Spark's plans, UI and event log show: what Spark hides depends
    on an option's name. `pattern` is what spark.redaction.regex lacks."""
    if secret and not references.has_reference(secret.reveal()):
        warn(
            f"{option} shown",
            f"{option} is shown by Spark's plans, UI and event log unless spark.redaction.regex "
            f"has {pattern} (conf/spark-defaults.conf has such a line): set it, or give a "
            "reference, ${env:NAME}, ${file:/path:key} or ${directory:/path:name}",
        )


def _warn_of_unused(options: SecurityOptions, prefix: str) -> None:
    """Warn of options ssl.* and sasl.* that have no effect with this security.protocol. Java
    silently ignores them."""
    for begin, protocols in (("ssl.", TLS_PROTOCOLS), ("sasl.", SASL_PROTOCOLS)):
        unused = sorted(
            options.name_of(field)
            for field, _ in options.names
            if options.OPTION_NAMES[field].startswith(begin)
        )
        if unused and options.protocol not in protocols:
            warn(
                f"unused {begin}",
                f"{', '.join(prefix + name for name in unused)}: no effect with "
                f"{prefix}security.protocol={options.protocol}; set it to {' or '.join(protocols)}",
            )


def _warn_of_weak_security(options: SecurityOptions, settings: SecureSettings, prefix: str) -> None:
    """Warn of settings with which others can read or change the data, or impersonate a broker or a
    user."""
    tls, sasl = settings
    if tls is not None and not (tls.verify and tls.check_hostname):
        name = options.name_of("identification" if tls.verify else "verify")
        warn(
            "not verified",
            f"{prefix}{name} accepts brokers "
            f"{'whose name is not in their certificate' if tls.verify else 'with any certificate'}",
        )
    versions = split_list(options.enabled_protocols)
    if tls is not None and (broken := [name for name in BROKEN_TLS if name in versions]):
        warn(
            "broken TLS",
            f"{prefix}{options.name_of('enabled_protocols')} has {', '.join(broken)}, which "
            f"attackers can break: only {', '.join(tls.versions)} is used",
        )
    if sasl is not None and sasl.oauth is not None:
        oauth = sasl.oauth
        if oauth.method == TokenMethod.UNSECURED:
            warn(
                "unsecured token",
                f"{prefix}{options.name_of('oauth_unsecured')}: the token has no signature, and "
                "anybody can make one: use it only for test brokers",
            )
        if oauth.allow_http and oauth.token_endpoint_url.lower().startswith("http:"):
            warn(
                "token in the clear",
                f"{prefix}{options.name_of('oauth_token_endpoint_url')} is not https: anyone "
                "on the network path can read the client's secret and the token",
            )
    if sasl is not None and tls is None and sasl.mechanism in ("PLAIN", "OAUTHBEARER"):
        what = "password" if sasl.mechanism == "PLAIN" else "token"
        warn(
            "in the clear",
            f"{prefix}security.protocol=SASL_PLAINTEXT sends the {what} of {sasl.mechanism} in the "
            "clear: use SASL_SSL outside of a test",
        )


@contextmanager
def explained_prefix(prefix: str) -> Iterator[None]:
    """Say in an OptionError of the block, which names settings without `prefix`, that the options
    of Spark have it. (A path may contain it: kafka.client.truststore.jks.)"""
    try:
        yield
    except OptionError as error:
        if not re.search(rf"(^|\s){re.escape(prefix)}", str(error)):
            error.args = (f"{error}. In Spark these names begin with {prefix}",)
        raise


def secure_settings(options: SecurityOptions, servers: Servers = ()) -> SecureSettings:
    """Return the settings of a new connection, with all references resolved now.

    `servers` are the bootstrap servers: names of Amazon MSK contain the region. Raises OptionError.
    """
    values = _resolve_values(options)
    protocol = values["protocol"]
    return SecureSettings(
        _tls_settings(values) if protocol in TLS_PROTOCOLS else None,
        sasl_choice(values, servers) if protocol in SASL_PROTOCOLS else None,
    )


def _resolve_values(options: SecurityOptions) -> references.ResolvedValues:
    """Return the parsed values of all fields, with their references resolved. Raises OptionError.

    Secrets and endpoints stay a Secret; sasl.jaas.config keeps its references for its own parser.
    """
    values = references.ResolvedValues(options)
    for field in [field.name for field in dataclasses.fields(options)]:
        value = values[field] = getattr(options, field)
        if not isinstance(value, str | Secret):
            continue
        text = value if isinstance(value, Secret) else Secret(value)
        if text and field != "jaas_config":  # its parser resolves the references in it
            text = references.resolve_references(text, options.name_of(field))
        # An endpoint's text is hidden too: some have a key in their query.
        if isinstance(value, Secret) or field in options.URL_FIELDS:
            values[field] = text
            continue
        kind = _ROWS[field].kind
        # An empty value is not parsed, except that of the host name check, where it means none.
        if isinstance(kind, Referable) and (text or field == "identification"):
            try:
                values[field] = kind.final(text.reveal())
            except ValueError as error:
                reason = f": {error}" if str(error) else ""
                # The content of a reference is never shown.
                raise OptionError(
                    f"option {options.name_of(field)} must be {kind.values}{reason}"
                ) from None
    return values


def _tls_settings(values: references.ResolvedValues) -> TlsSettings:
    """Return the settings of TLS. Raises OptionError if those of stores conflict."""

    def store(path_field: str, text_field: str = "", password_field: str = "") -> Store:
        """Return the store that one of the first two fields has: a file's path, or text in PEM."""
        text = values[text_field] if text_field else NO_SECRET
        path = values[path_field]
        return Store(
            values.name_of(text_field if text and not path else path_field),
            path=path,
            text=text,
            password=values[password_field] if password_field else NO_SECRET,
        )

    _check_stores(values)
    if values["certificate_location"] or values["key_location"]:
        certificates = store("certificate_location", "keystore_certificate_chain")
    else:
        certificates = store("keystore_location", "keystore_certificate_chain", "keystore_password")
    key = certificates
    if values["key_location"] or values["keystore_key"]:
        key = store("key_location", "keystore_key")
    truststore = store("truststore_location", "truststore_certificates", "truststore_password")
    # Without one: the one of the JVM's settings. Without that too: the system's authorities.
    return TlsSettings(
        truststore=truststore or jvm_truststore() or truststore,
        certificates=certificates,
        key=key,
        # A Java store has a password, and its key may have another one.
        key_password=values["key_password"],
        verify=values["verify"],
        check_hostname=values["identification"],
        versions=values["enabled_protocols"],
        cipher_suites=values["cipher_suites"] or (),
        revoked=store("crl_location"),
    )


def _check_stores(values: references.ResolvedValues) -> None:
    """Raise OptionError if a store is set twice, or lacks the option that it needs."""
    for fields in (  # the first excludes each of the others
        "truststore_location truststore_certificates",
        "keystore_location keystore_certificate_chain keystore_key certificate_location "
        "key_location",
        "certificate_location keystore_certificate_chain",
        "key_location keystore_key",
    ):
        field, *excluded = fields.split()
        for other in excluded:
            if values[field] and values[other]:
                raise exclusive(values.name_of(field), values.name_of(other))
    for fields in (  # the first needs one of the others
        "truststore_password truststore_location",
        "keystore_password keystore_location",
        "keystore_certificate_chain keystore_key key_location",
        "keystore_key keystore_certificate_chain certificate_location",
        "key_location certificate_location keystore_certificate_chain",
        "key_password keystore_location keystore_key key_location certificate_location",
    ):
        field, *needs_one_of = fields.split()
        if values[field] and not any(values[other] for other in needs_one_of):
            raise OptionError(
                f"{values.name_of(field)} is set, and "
                f"{' or '.join(map(values.name_of, needs_one_of))} is not"
            )
