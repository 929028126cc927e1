"""The Schema Registry's options as given, and what they come to where it is asked.

    RegistryOptions       text with references, picklable: in a plan and in its tasks
    registry_from         what was given -> RegistryOptions
    registry_settings     RegistryOptions -> RegistrySettings, with references looked up now

Messages name options, and never hold a value of a secret one.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field, replace
from typing import Final

from sparkkafka.config.check import GivenOptions, warn
from sparkkafka.config.format_rows import (
    OAUTHBEARER,
    REGISTRY,
    REGISTRY_PREFIX,
    STATIC_TOKEN,
    URLS,
    RegistryUrl,
)
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.security.options import SecurityOptions, secure_settings
from sparkkafka.config.security.references import (
    WithReferences,
    has_other_reference,
    has_reference,
    resolved,
)
from sparkkafka.config.security.settings import (
    CLIENT_CREDENTIALS,
    GIVEN_TOKEN,
    OAuthOptionNames,
    OAuthSettings,
    TlsSettings,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import NO_SECRET, Secret

NO_TLS: Final = SecurityOptions(protocol="SSL")
"""TLS as it is without a setting about it: the system's authorities, no certificate shown."""


RETRIES: Final = 3
"""While somebody waits for a read to be planned, and the address may be a wrong one."""

_SYSTEM_TLS: Final = TlsSettings()


@dataclass(frozen=True, kw_only=True, repr=False)
class RegistryOptions(WithReferences):
    """schema.registry.* as given; empty if not given. Times in milliseconds.

    `url` is one or more, with commas between. `tls` has the settings of schema.registry.ssl.*.
    `max_retries` None: RETRIES, and where a failure would end a query as many as there is time for.
    """

    GROUP = "registry"

    url: str
    credentials_source: str = ""
    user_info: Secret = NO_SECRET
    bearer_source: str = ""
    bearer_token: Secret = NO_SECRET
    issuer_url: str = ""
    client_id: str = ""
    client_secret: Secret = NO_SECRET
    scope: str = ""
    logical_cluster: str = ""
    identity_pool_id: str = ""
    tls: SecurityOptions = NO_TLS
    request_timeout_ms: int = 10_000
    api_timeout_ms: int = 60_000
    max_retries: int | None = None
    retries_wait_ms: int = 200
    retries_max_wait_ms: int = 5_000
    cache_capacity: int = 1_000
    names: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        """What differs from the defaults; secrets are hidden, and so is the issuer's path."""
        shown = ", ".join(
            f"{f.name}={_shown(f.name, getattr(self, f.name))!r}"
            for f in dataclasses.fields(self)
            if f.name != "names" and getattr(self, f.name) != f.default
        )
        return f"RegistryOptions({shown})"

    def name_of(self, name: str) -> str:
        """How the user called this field."""
        return dict(self.names).get(name) or _NAMES[name]

    def patient(self) -> RegistryOptions:
        """For a task that meets a new id: a registry that starts again must not end the query."""
        return self if self.max_retries is not None else replace(self, max_retries=INT32_MAX)

    @property
    def has_references(self) -> bool:
        return self.tls.has_references or super().has_references


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """What a request needs: plain values, with every reference resolved. Never pickled.

    `user_info`: user:password of basic authentication. `oauth`: a token that is given or fetched.
    `headers`: of Confluent Cloud, beside a token.
    """

    urls: tuple[RegistryUrl, ...]
    user_info: Secret = NO_SECRET
    oauth: OAuthSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tls: TlsSettings = _SYSTEM_TLS


_NAMES = {
    (row.field or "").partition(".")[2]: row.name
    for row in REGISTRY
    if (row.field or "").startswith("registry.") and not row.alias_of
}


def _shown(name: str, value: object) -> object:
    """Addresses of issuers may have keys in their query, or in place of a user."""
    if name not in ("issuer_url", "url"):
        return value
    return ",".join(_without_secrets(part) for part in str(value).split(","))


def _without_secrets(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url.rpartition("@")[2].partition("?")[0]
    _, at, rest = rest.rpartition("@")
    where, question, _ = rest.partition("?")
    return f"{scheme}://{'[hidden]@' if at else ''}{where}{'?[hidden]' if question else ''}"


def registry_from(given: GivenOptions) -> RegistryOptions | None:
    """The given options of the registry, checked; None if there is no URL and nothing else.

    Raises OptionError.
    """
    fields = given.group(RegistryOptions.GROUP)
    tls = given.group("registry_tls")
    if not fields and not tls:
        return None
    if not fields.get("url"):
        other = next(
            name
            for field, name in given.names.items()
            if field.startswith(("registry.", "registry_tls."))
        )
        raise OptionError(
            f"option {other} is for the Schema Registry, and {REGISTRY_PREFIX}url is not set"
        )
    names = tuple((name, given.names[f"registry.{name}"]) for name in fields)
    # All fields, so that messages name the registry's options also where one is missing.
    tls_names = tuple(
        ((row.field or "").partition(".")[2], row.name)
        for row in REGISTRY
        if (row.field or "").startswith("registry_tls.") and not row.alias_of
    ) + tuple((name, given.names[f"registry_tls.{name}"]) for name in tls)
    options = RegistryOptions(
        **fields, tls=SecurityOptions(protocol="SSL", **tls, names=tls_names), names=names
    )
    _check_identity(options)
    _warn_of_shown(options)
    for name, text in options.texts():
        if has_other_reference(text):
            option = options.name_of(name)
            warn(
                f"{option} as it stands",
                f"{option} has a ${{…:…}} of no provider that is set up: it is taken as it stands",
            )
    if not options.has_references:
        settings = registry_settings(options)
        _check_use_of_tls(settings, [given.names[f"registry_tls.{name}"] for name in tls])
        _warn_of_clear_text(options, settings)
    return options


_BEARER = ("bearer_source", "bearer_token", "issuer_url", "client_id", "client_secret", "scope")
_BEARER_HEADERS = ("logical_cluster", "identity_pool_id")


def _check_identity(options: RegistryOptions) -> None:
    """One identity at most, and all that it needs. Raises OptionError."""
    name = options.name_of
    basic = [one for one in ("user_info", "credentials_source") if getattr(options, one)]
    bearer = [one for one in (*_BEARER, *_BEARER_HEADERS) if getattr(options, one)]
    if basic and bearer:
        raise OptionError(
            f"{name(basic[0])} and {name(bearer[0])} exclude each other: a request shows a user "
            "and password, or a token"
        )
    if options.credentials_source and not options.user_info:
        raise OptionError(
            f"{name('credentials_source')}={options.credentials_source} needs user and password: "
            f"set {name('user_info')}=user:password"
        )
    if not bearer:
        return
    source = _bearer_source(options)
    by_issuer = [
        one
        for one in ("issuer_url", "client_id", "client_secret", "scope")
        if getattr(options, one)
    ]
    if source == STATIC_TOKEN:
        if by_issuer:
            raise OptionError(
                f"{name(by_issuer[0])} is for {name('bearer_source')}={OAUTHBEARER}, and the token "
                "is given: remove one of them"
            )
        if not options.bearer_token:
            raise OptionError(
                f"{name(bearer[0])} needs a token: set {name('bearer_token')}, or "
                f"{name('issuer_url')} with client id and secret"
            )
        return
    if options.bearer_token:
        raise OptionError(
            f"{name('bearer_token')} and {name('issuer_url')} exclude each other: the token is "
            "given, or the issuer is asked for one"
        )
    for one in ("issuer_url", "client_id", "client_secret"):
        if not getattr(options, one):
            raise OptionError(
                f"{name('bearer_source')}={OAUTHBEARER} needs {name('issuer_url')}, "
                f"{name('client_id')} and {name('client_secret')}: {name(one)} is not set"
            )


def _bearer_source(options: RegistryOptions) -> str:
    if options.bearer_source:
        return options.bearer_source
    by_issuer = options.issuer_url or options.client_id or options.client_secret or options.scope
    return OAUTHBEARER if by_issuer and not options.bearer_token else STATIC_TOKEN


def _warn_of_shown(options: RegistryOptions) -> None:
    """Spark hides options whose name or value has one of its words; these have none of them."""
    shown = (("user_info", "user[.]info", options.user_info),)
    key = options.tls.keystore_key
    for name, words, value in (
        *((options.name_of(one), words, value) for one, words, value in shown),
        (options.tls.name_of("keystore_key"), "ssl[.].*key", key),
    ):
        if value and not has_reference(value.reveal()):
            warn(
                f"{name} shown",
                f"{name} is shown by Spark's plans, UI and event log unless spark.redaction.regex "
                f"has {words}: set it, or give a reference, ${{env:NAME}}, ${{file:/path:key}} or "
                "${directory:/path:name}",
            )


def _check_use_of_tls(settings: RegistrySettings, given: list[str]) -> None:
    if given and not any(url.secure for url in settings.urls) and settings.oauth is None:
        raise OptionError(
            f"{given[0]} has no effect: no URL of {REGISTRY_PREFIX}url begins with https://"
        )


def _warn_of_clear_text(options: RegistryOptions, settings: RegistrySettings) -> None:
    what = "password" if settings.user_info else "token"
    if not settings.user_info and settings.oauth is None:
        return
    for url in settings.urls:
        if not url.secure and not _is_loopback(url.host):
            warn(
                "registry in the clear",
                f"{options.name_of('url')}: the {what} is sent to {url} in the clear, where "
                "everybody on the way reads it: use https:// outside of a test",
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- where the registry is asked -------------------------------------------------------------


def registry_settings(options: RegistryOptions) -> RegistrySettings:
    """What requests need, with all references looked up now. Raises OptionError."""

    def text(name: str) -> Secret:
        value = getattr(options, name)
        secret = value if isinstance(value, Secret) else Secret(value)
        return resolved(secret, options.name_of(name)) if secret else secret

    address = text("url")
    try:
        urls = URLS.final(address.reveal())
    except ValueError as error:  # the content of a reference is never shown
        reason = "" if has_reference(options.url) else f": {error}"
        raise OptionError(f"{options.name_of('url')} must be {URLS.values}{reason}") from None
    tls = secure_settings(options.tls).tls or _SYSTEM_TLS
    user_info = text("user_info")
    if user_info and ":" not in user_info.reveal():
        raise OptionError(f"{options.name_of('user_info')} is written user:password; it has no :")
    return RegistrySettings(
        urls=urls,
        user_info=user_info,
        oauth=_oauth(options, text("bearer_token"), text("client_secret"), tls),
        headers=tuple(
            (header, text(one).reveal())
            for one, header in _HEADER_NAMES.items()
            if getattr(options, one)
        ),
        tls=tls,
    )


# Confluent Cloud's; its Java client sends them with any token.
_HEADER_NAMES = {
    "logical_cluster": "target-sr-cluster",
    "identity_pool_id": "Confluent-Identity-Pool-Id",
}


def _oauth(
    options: RegistryOptions, token: Secret, client_secret: Secret, tls: TlsSettings
) -> OAuthSettings | None:
    if token:
        return OAuthSettings(method=GIVEN_TOKEN, token=token)
    if not options.issuer_url:
        return None

    def text(name: str) -> str:
        return resolved(Secret(getattr(options, name)), options.name_of(name)).reveal()

    return OAuthSettings(
        method=CLIENT_CREDENTIALS,
        token_endpoint_url=text("issuer_url"),
        client_id=text("client_id"),
        client_secret=client_secret,
        scope=text("scope"),
        tls=dataclasses.replace(tls, certificates=_SYSTEM_TLS.certificates),
        connect_timeout_ms=options.request_timeout_ms,
        read_timeout_ms=options.request_timeout_ms,
        options=OAuthOptionNames(
            url=options.name_of("issuer_url"),
            allow_http="",
            client=f"{options.name_of('client_id')} and {options.name_of('client_secret')}",
            identity=", ".join(map(options.name_of, ("client_id", "client_secret", "scope"))),
            trust=f"the {REGISTRY_PREFIX}ssl.truststore options",
            versions=f"{REGISTRY_PREFIX}ssl.enabled.protocols",
        ),
    )
