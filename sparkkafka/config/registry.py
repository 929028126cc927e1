"""The Schema Registry's options as the user set them, and the settings of requests made from them.

    registry_from         parsed options -> RegistryOptions, picklable, with references
    registry_settings     RegistryOptions -> RegistrySettings, with references resolved now

Messages name options, and never contain the value of a secret one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from sparkkafka.config import kinds
from sparkkafka.config.option_table import REGISTRY, names_by_attribute
from sparkkafka.config.parsed_options import ParsedOptions, warn
from sparkkafka.config.security import references
from sparkkafka.config.security.options import (
    SecurityOptions,
    secure_settings,
    warn_of_other_references,
    warn_of_visible_secret,
)
from sparkkafka.config.security.settings import (
    OAuthOptionNames,
    OAuthSettings,
    TlsSettings,
    TokenMethod,
)
from sparkkafka.errors import OptionError, exclusive
from sparkkafka.secret import NO_SECRET, Secret

RETRIES: Final = 3
"""The default of max.retries on the driver, where a user waits and the address may be wrong."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RegistryOptions(references.WithReferences):
    """schema.registry.* as the user set them; empty if not set. Times in milliseconds.

    `url` has one or more, separated by commas. `tls` has schema.registry.ssl.*. `max_retries` None:
    RETRIES on the driver, and in tasks as many as `api_timeout_ms` allows.
    """

    GROUP = "registry"
    OPTION_NAMES = names_by_attribute(REGISTRY, GROUP)
    URL_FIELDS = frozenset({"url", "issuer_url"})

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
    tls: SecurityOptions = dataclasses.field(default=SecurityOptions(protocol="SSL"))
    request_timeout_ms: int = 10_000
    api_timeout_ms: int = 60_000
    max_retries: int | None = None
    retries_wait_ms: int = 200
    retries_max_wait_ms: int = 5_000
    cache_capacity: int = 1_000
    names: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)

    def for_tasks(self) -> RegistryOptions:
        """Return the options with more retries: a registry that restarts must not fail a query."""
        return self if self.max_retries is not None else replace(self, max_retries=kinds.INT32_MAX)

    @property
    def has_references(self) -> bool:
        return self.tls.has_references or super().has_references


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """Settings of a request: plain values, with every reference resolved. Never pickled.

    `api` is CONFLUENT, GLUE, APICURIO or AZURE, as the URL shows. `urls` end before the part that
    names `group`, of artifacts (Apicurio) or schemas (Azure). Only `glue` is set for AWS Glue.
    `user_info` is user:password for basic authentication, `oauth` the source of a token, `headers`
    are those that Confluent Cloud needs.
    """

    urls: tuple[kinds.HttpUrl, ...] = ()
    api: str = kinds.CONFLUENT
    group: str = ""
    glue: kinds.GlueUrl | None = None
    user_info: Secret = NO_SECRET
    oauth: OAuthSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tls: TlsSettings = dataclasses.field(default=TlsSettings())


def registry_from(parsed: ParsedOptions) -> RegistryOptions | None:
    """Return the registry's options, checked; None if none is set. Raises OptionError."""
    fields = parsed.group(RegistryOptions.GROUP)
    tls = parsed.group("registry_tls")
    if not fields and not tls:
        return None
    if not fields.get("url"):
        other = next(
            name
            for field, name in parsed.names.items()
            if field.startswith(("registry.", "registry_tls."))
        )
        raise OptionError(
            f"option {other} is for the Schema Registry, and {kinds.REGISTRY_PREFIX}url is not set"
        )
    names = tuple((name, parsed.names[f"registry.{name}"]) for name in fields)
    # All fields: messages also name registry options that are not set.
    tls_names = (
        *names_by_attribute(REGISTRY, "registry_tls").items(),
        *((name, parsed.names[f"registry_tls.{name}"]) for name in tls),
    )
    options = RegistryOptions(
        **fields, tls=SecurityOptions(protocol="SSL", **tls, names=tls_names), names=names
    )
    _check_credentials(options)
    warn_of_visible_secret(options.name_of("user_info"), "user[.]info", options.user_info)
    tls_key = options.tls.keystore_key
    warn_of_visible_secret(options.tls.name_of("keystore_key"), "ssl[.].*key", tls_key)
    warn_of_other_references(options)
    if not options.has_references:
        settings = registry_settings(options)
        if settings.glue is not None:
            _check_glue_options(parsed, [*fields, *tls])
        is_secure = any(url.secure for url in settings.urls) or settings.oauth is not None
        if tls and not is_secure:
            option = parsed.names[f"registry_tls.{next(iter(tls))}"]
            raise OptionError(
                f"{option} has no effect: no URL of {kinds.REGISTRY_PREFIX}url begins with https://"
            )
        _warn_of_clear_text(options, settings)
    return options


def _check_glue_options(parsed: ParsedOptions, fields: Collection[str]) -> None:
    """Raise OptionError for an option without effect on requests to AWS Glue."""
    effective = {"url", "request_timeout_ms", "api_timeout_ms", "max_retries", "cache_capacity"}
    for field in fields:
        if field not in effective:
            name = parsed.names.get(f"registry.{field}") or parsed.names[f"registry_tls.{field}"]
            raise OptionError(
                f"option {name} has no effect on AWS Glue's registry: the AWS SDK has credentials, "
                "proxies and certificates from the environment (AWS_PROFILE, AWS_CA_BUNDLE) or its "
                "files; remove it"
            )


def _check_credentials(options: RegistryOptions) -> None:
    """Check that there is one kind of credentials at most (user and password, a token, or an issuer
    of tokens), and that it is complete. Raises OptionError."""
    name = options.name_of

    def set_fields(*fields: str) -> list[str]:
        """Return the fields, among these, that are set."""
        return [field for field in fields if getattr(options, field)]

    basic = set_fields("user_info", "credentials_source")
    for_issuer = set_fields("issuer_url", "client_id", "client_secret", "scope")
    bearer = set_fields("bearer_source", "bearer_token") + for_issuer
    bearer += set_fields("logical_cluster", "identity_pool_id")
    if basic and bearer:
        hint = "a request has a user and password, or a token"
        raise exclusive(name(basic[0]), name(bearer[0]), hint)
    if options.credentials_source and not options.user_info:
        raise OptionError(
            f"{name('credentials_source')}={options.credentials_source} needs user and password: "
            f"set {name('user_info')}=user:password"
        )
    if not bearer:
        return
    has_issuer = bool(for_issuer) and not options.bearer_token
    source = options.bearer_source or (kinds.OAUTHBEARER if has_issuer else kinds.STATIC_TOKEN)
    if source == kinds.STATIC_TOKEN:
        if for_issuer:
            raise OptionError(
                f"{name(for_issuer[0])} is for {name('bearer_source')}={kinds.OAUTHBEARER}, and "
                "the token is given: remove one of them"
            )
        if not options.bearer_token:
            raise OptionError(
                f"{name(bearer[0])} needs a token: set {name('bearer_token')}, or "
                f"{name('issuer_url')} with client id and secret"
            )
        return
    if options.bearer_token:
        hint = "the token is set, or requested from the issuer"
        raise exclusive(name("bearer_token"), name("issuer_url"), hint)
    for field in ("issuer_url", "client_id", "client_secret"):
        if not getattr(options, field):
            raise OptionError(
                f"{name('bearer_source')}={kinds.OAUTHBEARER} needs {name('issuer_url')}, "
                f"{name('client_id')} and {name('client_secret')}: {name(field)} is not set"
            )


def _warn_of_clear_text(options: RegistryOptions, settings: RegistrySettings) -> None:
    """Warn if a password or token is sent to another machine without TLS."""
    what = "password" if settings.user_info else "token"
    if not settings.user_info and settings.oauth is None:
        return
    for url in settings.urls:
        if not url.secure and not url.is_loopback:
            warn(
                "registry in the clear",
                f"{options.name_of('url')}: the {what} is sent to {url} in the clear: "
                "anyone on the network path can read it. Use https:// outside of a test",
            )


def registry_settings(options: RegistryOptions) -> RegistrySettings:
    """Return the settings of requests, with all references resolved now. Raises OptionError."""

    def resolve(field: str) -> Secret:
        """Return the field's text with its references resolved."""
        value = getattr(options, field)
        secret = value if isinstance(value, Secret) else Secret(value)
        return references.resolve_references(secret, options.name_of(field)) if secret else secret

    url = resolve("url")
    try:
        parsed = kinds.registry_urls.final(url.reveal())
        located = (
            RegistrySettings(api=kinds.GLUE, glue=parsed)
            if isinstance(parsed, kinds.GlueUrl)
            else _locate(parsed)
        )
    except ValueError as error:  # the content of a reference is never shown
        reason = "" if references.has_reference(options.url) else f": {error}"
        raise OptionError(
            f"{options.name_of('url')} must be {kinds.registry_urls.values}{reason}"
        ) from None
    tls = secure_settings(options.tls).tls or TlsSettings()
    user_info = resolve("user_info")
    if user_info and ":" not in user_info.reveal():
        raise OptionError(f"{options.name_of('user_info')} is written user:password; it has no :")
    return dataclasses.replace(
        located,
        user_info=user_info,
        oauth=_oauth_settings(options, resolve, tls),
        # Headers of Confluent Cloud, which its Java client sends with any token.
        headers=tuple(
            (header, resolve(field).reveal())
            for field, header in (
                ("logical_cluster", "target-sr-cluster"),
                ("identity_pool_id", "Confluent-Identity-Pool-Id"),
            )
            if getattr(options, field)
        ),
        tls=tls,
    )


_APIS: Final = (
    # API, the end of the URLs' path, and the group without one in the URL
    (kinds.APICURIO, re.compile(r"(.*/apis/registry/v[23])(?:/groups/([^/]+))?"), "default"),
    (kinds.AZURE, re.compile(r"(.*)/\$schemagroups/([^/]+)", re.IGNORECASE), ""),
)


def _locate(urls: tuple[kinds.HttpUrl, ...]) -> RegistrySettings:
    """Return the URLs of the API's root, the API and the group. Raises ValueError for URLs of
    several APIs or groups."""
    paths = set()
    for url in urls:
        for api, pattern, default_group in _APIS:
            if match := pattern.fullmatch(url.path):
                paths.add((api, match[2] or default_group, match[1]))
                break
        else:
            if "/$schemagroups" in url.path.lower():
                raise ValueError("Azure's registry is written https://host/$schemaGroups/GROUP")
            paths.add((kinds.CONFLUENT, "", ""))
    if len(paths) > 1:
        raise ValueError("the URLs are of several registries")
    ((api, group, path),) = paths
    if api != kinds.CONFLUENT:
        urls = tuple(url._replace(path=path) for url in urls)
    return RegistrySettings(urls=urls, api=api, group=group)


def _oauth_settings(
    options: RegistryOptions, resolve: Callable[[str], Secret], tls: TlsSettings
) -> OAuthSettings | None:
    """Return the source of a token, None without one. `resolve` returns a field's text with its
    references resolved."""
    if token := resolve("bearer_token"):
        return OAuthSettings(method=TokenMethod.GIVEN_TOKEN, token=token)
    if not options.issuer_url:
        return None
    return OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS,
        token_endpoint_url=resolve("issuer_url").reveal(),
        client_id=resolve("client_id").reveal(),
        client_secret=resolve("client_secret"),
        scope=resolve("scope").reveal(),
        # The issuer gets no client certificate.
        tls=dataclasses.replace(tls, certificates=TlsSettings().certificates),
        connect_timeout_ms=options.request_timeout_ms,
        read_timeout_ms=options.request_timeout_ms,
        options=OAuthOptionNames(
            url=options.name_of("issuer_url"),
            allow_http="",
            client=f"{options.name_of('client_id')} and {options.name_of('client_secret')}",
            identity=", ".join(map(options.name_of, ("client_id", "client_secret", "scope"))),
            trust=f"the {kinds.REGISTRY_PREFIX}ssl.truststore options",
            versions=f"{kinds.REGISTRY_PREFIX}ssl.enabled.protocols",
        ),
    )
