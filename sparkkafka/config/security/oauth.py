"""Where a token for OAUTHBEARER comes from: an endpoint, a file, a value, a function, or nobody.

The settings are Java's and librdkafka's; those of clouds are in `msk` and `strimzi`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sparkkafka.config.security.jaas import JAAS, LoginModule
from sparkkafka.config.security.java_classes import (
    JWT_BEARER_RETRIEVER,
    LOGIN_HANDLERS,
    UNSECURED_HANDLER,
)
from sparkkafka.config.security.jvm import jvm_truststore
from sparkkafka.config.security.rows import CALLBACK_OPTION, JWT_BEARER_GRANT
from sparkkafka.config.security.settings import (
    CALLBACK,
    CLIENT_CREDENTIALS,
    GIVEN_TOKEN,
    TOKEN_FILE,
    UNSECURED,
    AssertionSettings,
    OAuthSettings,
    Store,
    TlsSettings,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import NO_SECRET, Secret

Names = Callable[[str], str]

JAVA_PREFIX = "unsecuredLogin"
_KINDS = ("StringClaim_", "NumberClaim_", "ListClaim_")
_LIFE_S = 3_600
_PAIR = re.compile(r'\s*([A-Za-z_]+)=(?:"([^"]*)"|(\S+))')

Claim = str | float | tuple[str, ...]


def oauth_timing(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "connect_timeout_ms": values["login_connect_timeout_ms"],
        "read_timeout_ms": values["login_read_timeout_ms"],
        "retry_backoff_ms": values["login_retry_backoff_ms"],
        "retry_backoff_max_ms": values["login_retry_backoff_max_ms"],
    }


def oauth_settings(values: Mapping[str, Any], name_of: Names, jaas: LoginModule) -> OAuthSettings:
    unsecured = _unsecured(values, name_of, jaas)

    def chosen(field: str, jaas_name: str) -> Any:
        """The setting, or the option of the login module."""
        value = values[field]
        if value and jaas.options.get(jaas_name):
            raise OptionError(
                f"{name_of(field)} and {jaas_name} in {JAAS} exclude each other: remove one"
            )
        other = jaas.options.get(jaas_name, "")
        return value or (Secret(other) if isinstance(value, Secret) else other)

    url: Secret = values["oauth_token_endpoint_url"]
    token, client_id = chosen("oauth_token", "token"), chosen("oauth_client_id", "clientId")
    secret = chosen("oauth_client_secret", "clientSecret")
    handler = values["login_callback"]
    callback = "" if handler in LOGIN_HANDLERS else handler
    ways = [
        name
        for name, there in (
            (name_of("oauth_token"), token),
            (name_of("oauth_unsecured"), unsecured),
            (CALLBACK_OPTION, callback),
            (name_of("oauth_token_endpoint_url"), url),
        )
        if there
    ]
    if len(ways) != 1:
        raise OptionError(
            f"{' and '.join(ways)} exclude each other: a token comes from one of them"
            if ways
            else "sasl.mechanism=OAUTHBEARER needs a token: set "
            "sasl.oauthbearer.token.endpoint.url with client id and secret, or "
            f"{CALLBACK_OPTION}=module:function, or sasl.oauthbearer.token"
        )
    common = oauth_timing(values) | {"extensions": _extensions(values, name_of, jaas)}
    scope = chosen("oauth_scope", "scope")
    if not url:
        for field, name, value in (
            ("oauth_client_id", "clientId", client_id),
            ("oauth_client_secret", "clientSecret", secret),
            ("oauth_scope", "scope", scope),
        ):
            if value:
                name = name_of(field) if values[field] else f"{name} in {JAAS}"
                raise OptionError(
                    f"{name} is for {name_of('oauth_token_endpoint_url')}, and the token comes "
                    f"from {ways[0]}: remove one of them"
                )
    if unsecured:
        common["extensions"] += unsecured.extensions
        return OAuthSettings(
            method=UNSECURED,
            unsecured_claims=unsecured.claims,
            unsecured_life_s=unsecured.life_s,
            **common,
        )
    if token:
        return OAuthSettings(method=GIVEN_TOKEN, token=token, **common)
    if callback:
        return OAuthSettings(method=CALLBACK, callback=callback, **common)
    scheme = url.reveal().partition(":")[0].lower()
    if scheme == "file":
        path = re.sub(r"^[^:]*:(//[^/]*)?", "", url.reveal())
        return OAuthSettings(method=TOKEN_FILE, token_path=path, **common)
    if scheme not in ("https", "http"):
        raise OptionError(f"{name_of('oauth_token_endpoint_url')} begins with https:// or file:/")
    own = _assertion(values, name_of)
    if own is not None:
        if client_id or secret:
            name = "oauth_client_id" if client_id else "oauth_client_secret"
            raise OptionError(
                f"{name_of(name)} (or clientId and clientSecret in {JAAS}) is not for a grant that "
                "shows an assertion: remove it"
            )
    elif not client_id or not secret:
        what = "client id" if not client_id else "client secret"
        raise OptionError(
            f"{name_of('oauth_token_endpoint_url')} needs a {what}: set "
            f"sasl.oauthbearer.client.credentials.{what.replace(' ', '.')}, or clientId and "
            f"clientSecret in {JAAS}"
        )
    return OAuthSettings(
        method=CLIENT_CREDENTIALS,
        token_endpoint_url=url.reveal(),
        client_id=client_id,
        client_secret=secret,
        scope=scope,
        header_urlencode=values["oauth_header_urlencode"],
        allow_http=values["oauth_allow_http"],
        assertion=own,
        tls=TlsSettings(truststore=_endpoint_truststore(values, name_of, jaas)),
        **common,
    )


def _unsecured(
    values: Mapping[str, Any], name_of: Names, jaas: LoginModule
) -> UnsecuredToken | None:
    """The token that needs no secret, if it is wanted and allowed."""
    by_java = any(name.startswith(JAVA_PREFIX) for name in jaas.options)
    by_config = values["oauth_config"]
    if by_java and by_config:
        raise OptionError(
            f"{name_of('oauth_config')} and {JAVA_PREFIX}… in {JAAS} exclude each other"
        )
    if not (by_java or by_config or values["login_callback"] == UNSECURED_HANDLER):
        return None
    if not values["oauth_unsecured"]:
        where = name_of("oauth_config") if by_config else f"{JAVA_PREFIX}… in {JAAS}"
        raise OptionError(
            f"{where} asks for an unsecured token, which anybody can make: give clientId and "
            f"clientSecret, or allow it for a test with {name_of('oauth_unsecured')}=true"
        )
    if by_config:
        return _of_librdkafka(by_config, name_of("oauth_config"))
    return _of_java(jaas.options, JAAS)


_ASSERTION = ("file", "key_file", "key", "passphrase", "template_file", "aud", "iss", "sub")


def _assertion(values: Mapping[str, Any], name_of: Names) -> AssertionSettings | None:
    """What is shown in place of a secret, if the grant is that one."""
    wanted = (
        values["oauth_retriever"] == JWT_BEARER_RETRIEVER
        or values["oauth_grant_type"] == JWT_BEARER_GRANT
    )
    given = [name for name in _ASSERTION if values[f"assertion_{name}"]]
    if not wanted:
        if given:
            raise OptionError(
                f"{name_of(f'assertion_{given[0]}')} is for a grant with an assertion: set "
                f"{name_of('oauth_grant_type')}={JWT_BEARER_GRANT}, or "
                f"{name_of('oauth_retriever')}={JWT_BEARER_RETRIEVER}"
            )
        return None
    sources = [name for name in ("file", "key_file", "key") if name in given]
    if len(sources) != 1 or (sources == ["file"] and len(given) > 1):
        both = " and ".join(name_of(f"assertion_{name}") for name in given[:2])
        raise OptionError(
            f"{both} exclude each other: an assertion comes from a file, or is signed here"
            if len(sources) > 1 or (sources and len(given) > 1)
            else f"an assertion needs {name_of('assertion_key_file')} (or "
            f"{name_of('assertion_file')} with one that is made elsewhere)"
        )

    def store(name: str, text: Secret = NO_SECRET) -> Store:
        field = f"assertion_{name}"
        return Store(name_of(field), "" if text else values[field], text)

    key_text: Secret = values["assertion_key"]
    claims = ((name, values[f"assertion_{name}"]) for name in ("aud", "iss", "sub"))
    return AssertionSettings(
        file=store("file"),
        key=store("key", key_text) if key_text else store("key_file"),
        passphrase=values["assertion_passphrase"],
        template=store("template_file"),
        algorithm=values["assertion_algorithm"],
        claims=tuple((name, value) for name, value in claims if value),
        exp_s=values["assertion_exp_s"],
        nbf_s=values["assertion_nbf_s"],
        include_jti=values["assertion_jti"],
    )


def _extensions(
    values: Mapping[str, Any], name_of: Names, jaas: LoginModule
) -> tuple[tuple[str, str], ...]:
    given = tuple(
        (name.removeprefix("extension_"), value)
        for name, value in jaas.options.items()
        if name.startswith("extension_")
    )
    if given and values["oauth_extensions"]:
        raise OptionError(
            f"{name_of('oauth_extensions')} and extension_… in {JAAS} exclude each other"
        )
    return given or tuple(values["oauth_extensions"] or ())


def _endpoint_truststore(values: Mapping[str, Any], name_of: Names, jaas: LoginModule) -> Store:
    """As in Java not the brokers' truststore: a token endpoint mostly has a certificate of a public
    authority."""
    path, text = values["https_ca_location"], values["https_ca_pem"]
    if path and text:
        raise OptionError(
            f"{name_of('https_ca_location')} and {name_of('https_ca_pem')} exclude each other"
        )
    if path or text:
        return Store(name_of("https_ca_location" if path else "https_ca_pem"), path, text)
    own = Store(
        f"ssl.truststore.location in {JAAS}",
        jaas.options.get("ssl.truststore.location", ""),
        Secret(jaas.options.get("ssl.truststore.certificates", "")),
        Secret(jaas.options.get("ssl.truststore.password", "")),
    )
    return own or jvm_truststore() or own


# --- tokens without a signature ------------------------------------------------------------------
# Anybody can make one, so brokers take them in tests alone.


class UnsecuredToken(NamedTuple):
    """`claims` without times, which are those of its making: iat, and exp `life_s` later."""

    claims: tuple[tuple[str, Claim], ...]
    life_s: float
    extensions: tuple[tuple[str, str], ...]


def _of_java(options: Mapping[str, str], place: str) -> UnsecuredToken:
    """From the options of OAuthBearerLoginModule. Raises OptionError, which names the option."""
    given = {
        name.removeprefix(JAVA_PREFIX): value
        for name, value in options.items()
        if name.startswith(JAVA_PREFIX)
    }
    principal = given.pop("PrincipalClaimName", "") or "sub"
    scope = given.pop("ScopeClaimName", "") or "scope"
    life_s = _number(given.pop("LifetimeSeconds", str(_LIFE_S)), "LifetimeSeconds", place)
    claims: dict[str, Claim] = {}
    extensions = []
    for name, value in given.items():
        if name.startswith("Extension_"):
            extensions.append((name.removeprefix("Extension_"), value))
            continue
        kind = next((row for row in _KINDS if name.startswith(row) and name != row), None)
        if kind is None:
            raise OptionError(f"{place} has an option {JAVA_PREFIX}… that Java does not know")
        claim = name.removeprefix(kind)
        if kind == "StringClaim_":
            claims[claim] = value
        elif kind == "NumberClaim_":
            claims[claim] = _number(value, name, place)
        else:  # the first character stands between the others
            claims[claim] = tuple(filter(None, value[1:].split(value[0]))) if value else ()
    if not isinstance(claims.get(principal), str) or not claims[principal]:
        raise OptionError(
            f"{place}: an unsecured token needs a principal: {JAVA_PREFIX}StringClaim_{principal}"
        )
    if isinstance(claims.get(scope), int | float):
        raise OptionError(f"{place}: the scope of an unsecured token is text or a list")
    return UnsecuredToken((*claims.items(),), life_s, (*extensions,))


def _of_librdkafka(text: str, option: str) -> UnsecuredToken:
    """From `principalClaimName=… principal=… scopeClaimName=… scope=a,b lifeSeconds=…
    extension_name=…`. Raises OptionError."""
    found: dict[str, str] = {}
    rest = text.strip()
    while rest:
        match = _PAIR.match(rest)
        if match is None:
            raise OptionError(f"{option} is name=value name=value …")
        found[match[1]] = match[3] if match[2] is None else match[2]
        rest = rest[match.end() :]
    extensions = tuple(
        (name.removeprefix("extension_"), found.pop(name))
        for name in [name for name in found if name.startswith("extension_")]
    )
    principal = found.pop("principalClaimName", "") or "sub"
    scope_name = found.pop("scopeClaimName", "") or "scope"
    life_s = _number(found.pop("lifeSeconds", str(_LIFE_S)), "lifeSeconds", option)
    claims: dict[str, Claim] = {principal: found.pop("principal", "")}
    scope = found.pop("scope", "")
    if scope:
        claims[scope_name] = tuple(scope.split(","))
    if found:
        raise OptionError(
            f"{option} has names that are not known; there are principalClaimName, principal, "
            "scopeClaimName, scope, lifeSeconds and extension_…"
        )
    if not claims[principal]:
        raise OptionError(f"{option} needs a principal: principal=NAME")
    return UnsecuredToken((*claims.items(),), life_s, extensions)


def _number(text: str, name: str, place: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not abs(found) < 1e15 or (name[0] in "Ll" and found <= 0):
        raise OptionError(f"{name} in {place} must be a number")
    return int(found) if found == int(found) else found
