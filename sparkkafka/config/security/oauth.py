"""The source of OAUTHBEARER's tokens: Java's and librdkafka's settings, Amazon's and Strimzi's.

A token comes from an endpoint, a file, a setting, a function or Amazon's signer, or is unsecured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sparkkafka.config.kinds import JWT_BEARER_GRANT, LOGIN_CALLBACK_OPTION
from sparkkafka.config.security.java import (
    JAAS,
    JWT_BEARER_RETRIEVER,
    LOGIN_HANDLERS,
    UNSECURED_HANDLER,
    LoginModule,
    jvm_truststore,
)
from sparkkafka.config.security.settings import (
    AWS_MSK_IAM,
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


def oauth_timing(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "connect_timeout_ms": values["login_connect_timeout_ms"],
        "read_timeout_ms": values["login_read_timeout_ms"],
        "retry_backoff_ms": values["login_retry_backoff_ms"],
        "retry_backoff_max_ms": values["login_retry_backoff_max_ms"],
    }


def oauth_settings(values: Mapping[str, Any], name_of: Names, jaas: LoginModule) -> OAuthSettings:
    """Choose the one source of tokens that Java's or librdkafka's settings name.

    `values` are those of `SecurityOptions` with references resolved. Raises OptionError.
    """
    unsecured = _unsecured(values, name_of, jaas)

    def chosen(field: str, jaas_name: str) -> Any:
        """Return the setting, or the login module's option. Raises OptionError for both."""
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
    sources = [
        name
        for name, value in (
            (name_of("oauth_token"), token),
            (name_of("oauth_unsecured"), unsecured),
            (LOGIN_CALLBACK_OPTION, callback),
            (name_of("oauth_token_endpoint_url"), url),
        )
        if value
    ]
    if len(sources) != 1:
        raise OptionError(
            f"{' and '.join(sources)} exclude each other: a token comes from one of them"
            if sources
            else "sasl.mechanism=OAUTHBEARER needs a token: set "
            "sasl.oauthbearer.token.endpoint.url with client id and secret, or "
            f"{LOGIN_CALLBACK_OPTION}=module:function, or sasl.oauthbearer.token"
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
                    f"from {sources[0]}: remove one of them"
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
    assertion = _assertion(values, name_of)
    if assertion is not None:
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
        assertion=assertion,
        tls=TlsSettings(truststore=_endpoint_truststore(values, name_of, jaas)),
        **common,
    )


def _unsecured(
    values: Mapping[str, Any], name_of: Names, jaas: LoginModule
) -> UnsecuredToken | None:
    """Return the token that needs no secret, if settings ask for it. Raises OptionError if they do
    not also allow it."""
    has_jaas = any(name.startswith(_UNSECURED_PREFIX) for name in jaas.options)
    config = values["oauth_config"]
    if has_jaas and config:
        raise OptionError(
            f"{name_of('oauth_config')} and {_UNSECURED_PREFIX}… in {JAAS} exclude each other"
        )
    if not (has_jaas or config or values["login_callback"] == UNSECURED_HANDLER):
        return None
    if not values["oauth_unsecured"]:
        where = name_of("oauth_config") if config else f"{_UNSECURED_PREFIX}… in {JAAS}"
        raise OptionError(
            f"{where} asks for an unsecured token, which anybody can make: give clientId and "
            f"clientSecret, or allow it for a test with {name_of('oauth_unsecured')}=true"
        )
    if config:
        return _librdkafka_unsecured_token(config, name_of("oauth_config"))
    return _java_unsecured_token(jaas.options)


def _assertion(values: Mapping[str, Any], name_of: Names) -> AssertionSettings | None:
    """Return how to make the assertion of the JWT bearer grant; None for another grant."""
    names = ("file", "key_file", "key", "passphrase", "template_file", "aud", "iss", "sub")
    fields = [name for name in names if values[f"assertion_{name}"]]
    if (
        values["oauth_retriever"] != JWT_BEARER_RETRIEVER
        and values["oauth_grant_type"] != JWT_BEARER_GRANT
    ):
        if fields:
            raise OptionError(
                f"{name_of(f'assertion_{fields[0]}')} is for a grant with an assertion: set "
                f"{name_of('oauth_grant_type')}={JWT_BEARER_GRANT}, or "
                f"{name_of('oauth_retriever')}={JWT_BEARER_RETRIEVER}"
            )
        return None
    sources = [name for name in ("file", "key_file", "key") if name in fields]
    if len(sources) != 1 or (sources == ["file"] and len(fields) > 1):
        both = " and ".join(name_of(f"assertion_{name}") for name in fields[:2])
        raise OptionError(
            f"{both} exclude each other: an assertion comes from a file, or is signed here"
            if len(sources) > 1 or (sources and len(fields) > 1)
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
    from_jaas = tuple(
        (name.removeprefix("extension_"), value)
        for name, value in jaas.options.items()
        if name.startswith("extension_")
    )
    if from_jaas and values["oauth_extensions"]:
        raise OptionError(
            f"{name_of('oauth_extensions')} and extension_… in {JAAS} exclude each other"
        )
    return from_jaas or tuple(values["oauth_extensions"] or ())


def _endpoint_truststore(values: Mapping[str, Any], name_of: Names, jaas: LoginModule) -> Store:
    """Return the endpoint's own truststore. As in Java it is not that of brokers, since most token
    endpoints have a certificate of a public authority."""
    path, text = values["https_ca_location"], values["https_ca_pem"]
    if path and text:
        raise OptionError(
            f"{name_of('https_ca_location')} and {name_of('https_ca_pem')} exclude each other"
        )
    if path or text:
        return Store(name_of("https_ca_location" if path else "https_ca_pem"), path, text)
    store = Store(
        f"ssl.truststore.location in {JAAS}",
        jaas.options.get("ssl.truststore.location", ""),
        Secret(jaas.options.get("ssl.truststore.certificates", "")),
        Secret(jaas.options.get("ssl.truststore.password", "")),
    )
    return store or jvm_truststore() or store


# --- unsecured tokens ------------------------------------------------------------------------
# They have no signature, so anybody can make one. Brokers accept them only in tests.

_UNSECURED_PREFIX = "unsecuredLogin"
_LIFE_S = 3_600

Claim = str | float | tuple[str, ...]


class UnsecuredToken(NamedTuple):
    """`claims` lack the times, which are set when it is made: iat, and exp `life_s` later."""

    claims: tuple[tuple[str, Claim], ...]
    life_s: float
    extensions: tuple[tuple[str, str], ...]


def _java_unsecured_token(options: Mapping[str, str]) -> UnsecuredToken:
    """Parse unsecuredLogin… of OAuthBearerLoginModule. Raises OptionError naming the option."""
    settings = {
        name.removeprefix(_UNSECURED_PREFIX): value
        for name, value in options.items()
        if name.startswith(_UNSECURED_PREFIX)
    }
    principal = settings.pop("PrincipalClaimName", "") or "sub"
    scope = settings.pop("ScopeClaimName", "") or "scope"
    life_s = _number(settings.pop("LifetimeSeconds", str(_LIFE_S)), "LifetimeSeconds", JAAS)
    claims: dict[str, Claim] = {}
    extensions = []
    kinds = ("StringClaim_", "NumberClaim_", "ListClaim_")
    for name, value in settings.items():
        if name.startswith("Extension_"):
            extensions.append((name.removeprefix("Extension_"), value))
            continue
        kind = next((kind for kind in kinds if name.startswith(kind) and name != kind), None)
        if kind is None:
            raise OptionError(f"{JAAS} has an option {_UNSECURED_PREFIX}… that Java does not know")
        claim = name.removeprefix(kind)
        if kind == "StringClaim_":
            claims[claim] = value
        elif kind == "NumberClaim_":
            claims[claim] = _number(value, name, JAAS)
        else:  # the first character is the separator
            claims[claim] = tuple(filter(None, value[1:].split(value[0]))) if value else ()
    if not isinstance(claims.get(principal), str) or not claims[principal]:
        raise OptionError(
            f"{JAAS}: an unsecured token needs a principal: "
            f"{_UNSECURED_PREFIX}StringClaim_{principal}"
        )
    if isinstance(claims.get(scope), int | float):
        raise OptionError(f"{JAAS}: the scope of an unsecured token is text or a list")
    return UnsecuredToken((*claims.items(),), life_s, (*extensions,))


def _librdkafka_unsecured_token(text: str, option: str) -> UnsecuredToken:
    """Parse `principalClaimName=… principal=… scopeClaimName=… scope=a,b lifeSeconds=…
    extension_name=…`. Raises OptionError."""
    pair = re.compile(r'\s*([A-Za-z_]+)=(?:"([^"]*)"|(\S+))')
    found: dict[str, str] = {}
    rest = text.strip()
    while rest:
        match = pair.match(rest)
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


def _number(text: str, name: str, option: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not abs(found) < 1e15 or (name[0] in "Ll" and found <= 0):
        raise OptionError(f"{name} in {option} must be a number")
    return int(found) if found == int(found) else found


# --- Amazon MSK ------------------------------------------------------------------------------
# The options of Amazon's MSKCredentialProvider for Java, and awsRegion.

_AWS_ROLE = ("awsRoleSessionName", "awsRoleExternalId")
_AWS_KEYS = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey")
_AWS_KEY_TOKEN = "awsRoleSessionToken"  # noqa: S105
_AWS_FLAGS = ("awsShouldUseFips", "awsAddDefaultProviders", "awsDebugCreds")
_AWS_NUMBERS = ("awsMaxRetries", "awsMaxBackOffTimeMs")
_AWS_OPTIONS: Final = (
    "awsProfileName",
    "awsRoleArn",
    *_AWS_ROLE,
    *_AWS_KEYS,
    _AWS_KEY_TOKEN,
    "awsStsRegion",
    "awsRegion",
    *_AWS_FLAGS,
    *_AWS_NUMBERS,
)


def msk_settings(
    timing: dict[str, Any], jaas: LoginModule, servers: tuple[tuple[str, int], ...]
) -> OAuthSettings:
    """Return the settings of Amazon's signer, from IAMLoginModule's options.

    The region is that of `servers` if no option names it. Raises OptionError, also for options with
    which another identity would sign than the one that they name.
    """
    options = jaas.options
    _check_aws(options)
    aws_host = re.compile(
        r".+\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?", re.IGNORECASE
    )
    regions = {match[1].lower() for host, _ in servers if (match := aws_host.fullmatch(host))}
    if "awsMaxBackOffTimeMs" in options:
        timing["retry_backoff_max_ms"] = int(options["awsMaxBackOffTimeMs"])
        timing["retry_backoff_ms"] = min(timing["retry_backoff_ms"], timing["retry_backoff_max_ms"])
    return OAuthSettings(
        method=AWS_MSK_IAM,
        aws_region=options.get("awsRegion", "") or (regions.pop() if len(regions) == 1 else ""),
        aws_profile=options.get("awsProfileName", ""),
        aws_role_arn=options.get("awsRoleArn", ""),
        aws_role_session_name=options.get("awsRoleSessionName", ""),
        aws_role_external_id=options.get("awsRoleExternalId", ""),
        aws_role_access_key_id=options.get("awsRoleAccessKeyId", ""),
        aws_role_secret_access_key=Secret(options.get("awsRoleSecretAccessKey", "")),
        aws_role_session_token=Secret(options.get(_AWS_KEY_TOKEN, "")),
        aws_sts_region=options.get("awsStsRegion", ""),
        aws_use_fips=options.get("awsShouldUseFips") == "true",
        aws_max_retries=int(options.get("awsMaxRetries", 3)),
        **timing,
    )


def _check_aws(options: Mapping[str, str]) -> None:
    for name in options:
        if name == "awsMskRegionProvider":
            raise OptionError(
                f"{name} in {JAAS} names a Java class, which cannot run here: set awsRegion"
            )
        if name not in _AWS_OPTIONS:
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{JAAS} has an option that is unknown for AWS_MSK_IAM; there are "
                f"{', '.join(_AWS_OPTIONS)}"
            )
    for name in _AWS_OPTIONS:
        if options.get(name) == "" and not name.startswith("awsMax"):
            raise OptionError(f"{name} in {JAAS} is empty: remove it, or give it a value")
    if "awsRoleArn" not in options:
        for name in (*_AWS_ROLE, *_AWS_KEYS, _AWS_KEY_TOKEN):
            if name in options:
                raise OptionError(f"{name} in {JAAS} is for a role: awsRoleArn is missing")
    keys = [name for name in _AWS_KEYS if name in options]
    if len(keys) == 1 or (_AWS_KEY_TOKEN in options and not keys):
        present = keys[0] if keys else _AWS_KEY_TOKEN
        missing = [name for name in _AWS_KEYS if name not in options]
        raise OptionError(f"{present} in {JAAS} needs {' and '.join(missing)}, too")
    named = "awsProfileName" in options or "awsRoleArn" in options
    if options.get("awsAddDefaultProviders") == "true" and named:
        raise OptionError(
            f"awsAddDefaultProviders=true in {JAAS} would sign as whoever the machine is when the "
            "profile or role fails: remove it, or the profile and role"
        )
    if options.get("awsAddDefaultProviders") == "false" and not named:
        raise OptionError(
            f"awsAddDefaultProviders=false in {JAAS} leaves nobody to sign as: give "
            "awsProfileName or awsRoleArn"
        )
    if options.get("awsShouldUseFips") == "true":
        for name in ("awsRoleArn", "awsStsRegion"):
            if name not in options:
                raise OptionError(
                    f"awsShouldUseFips=true in {JAAS} is for the token service of a region: "
                    f"{name} is missing"
                )
    for name in _AWS_FLAGS:
        if options.get(name, "true") not in ("true", "false"):
            raise OptionError(f"{name} in {JAAS} must be true or false")
    for name in _AWS_NUMBERS:
        if not re.fullmatch("[0-9]{1,7}", options.get(name, "0")):
            raise OptionError(f"{name} in {JAAS} must be a whole number from 0 to 9999999")


# --- Strimzi ---------------------------------------------------------------------------------

_STRIMZI_EXTENSION: Final = "oauth.sasl.extension."
_TOKEN, _TOKEN_FILE = "oauth.access.token", "oauth.access.token.location"
_URL, _ID, _SECRET = "oauth.token.endpoint.uri", "oauth.client.id", "oauth.client.secret"
_TRUSTSTORE = "oauth.ssl.truststore."
_USED: Final = (
    _TOKEN,
    _TOKEN_FILE,
    _URL,
    _ID,
    _SECRET,
    "oauth.scope",
    "oauth.audience",
    f"{_TRUSTSTORE}location",
    f"{_TRUSTSTORE}certificates",
    f"{_TRUSTSTORE}password",
    "oauth.ssl.endpoint.identification.algorithm",
    "oauth.connect.timeout.seconds",
    "oauth.read.timeout.seconds",
)
# They ask for what is done anyway, or do not affect what a broker receives.
_UNNEEDED: Final = (
    f"{_TRUSTSTORE}type",
    "oauth.ssl.secure.random.implementation",
    "oauth.access.token.is.jwt",
    "oauth.tokens.not.jwt",
    "oauth.max.token.expiry.seconds",
    "oauth.http.retries",
    "oauth.http.retry.pause.millis",
    "oauth.username.claim",
    "oauth.username.prefix",
    "oauth.fallback.username.claim",
    "oauth.fallback.username.prefix",
    "oauth.force.jsonpath.username.extraction",
    "oauth.config.id",
    "oauth.enable.metrics",
    "oauth.include.accept.header",
)
# Options of other grants are errors, since they name another identity.
_GRANTS: Final = (
    "oauth.refresh.token",
    "oauth.refresh.token.location",
    "oauth.password.grant.username",
    "oauth.password.grant.password",
    "oauth.client.assertion",
    "oauth.client.assertion.location",
    "oauth.client.assertion.type",
    "oauth.client.credentials.grant.type",
)


def strimzi_settings(timing: dict[str, Any], jaas: LoginModule) -> OAuthSettings:
    """Return the source of tokens that the options of JaasClientOauthLoginCallbackHandler name.

    As in Strimzi's library an environment variable of the name (OAUTH_CLIENT_ID for
    oauth.client.id) overrides the option. Raises OptionError, which names the option, and never a
    value.
    """
    options = dict(jaas.options)
    for name in (*_USED, *_GRANTS):
        from_environment = os.environ.get(name.upper().replace(".", "_"))
        if from_environment is not None:
            options[name] = from_environment
    extensions = tuple(
        (name.removeprefix(_STRIMZI_EXTENSION), options.pop(name))
        for name in list(options)
        if name.startswith(_STRIMZI_EXTENSION)
    )
    for name in options:
        if name in _GRANTS and (name, options[name]) != (_GRANTS[-1], "client_credentials"):
            raise OptionError(
                f"{name} in {JAAS} asks for a grant that is not supported: a token comes from "
                f"{_ID} and {_SECRET}, {_TOKEN} or {_TOKEN_FILE}; for others write a function, and "
                "name it in sasl.login.callback.handler.class"
            )
        if name not in (*_USED, *_UNNEEDED, *_GRANTS):
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{JAAS} has an option that is unknown to Strimzi's handler; there are "
                f"{', '.join(_USED)}"
            )
    for name, unit in (("connect", "connect_timeout_ms"), ("read", "read_timeout_ms")):
        timing[unit] = _ms(options, f"oauth.{name}.timeout.seconds", timing[unit])
    common = timing | {"extensions": extensions}
    if _TOKEN_FILE in options:
        return OAuthSettings(method=TOKEN_FILE, token_path=options[_TOKEN_FILE], **common)
    if _TOKEN in options:
        return OAuthSettings(method=GIVEN_TOKEN, token=Secret(options[_TOKEN]), **common)
    for name in (_URL, _ID, _SECRET):
        if not options.get(name):
            raise OptionError(
                f"{JAAS} needs {name} (or {_TOKEN}, or {_TOKEN_FILE}) for Strimzi's handler"
            )
    return OAuthSettings(
        method=CLIENT_CREDENTIALS,
        token_endpoint_url=options[_URL],
        client_id=options[_ID],
        client_secret=Secret(options[_SECRET]),
        scope=options.get("oauth.scope", ""),
        audience=options.get("oauth.audience", ""),
        tls=TlsSettings(
            truststore=Store(
                f"{_TRUSTSTORE}location in {JAAS}",
                options.get(f"{_TRUSTSTORE}location", ""),
                Secret(options.get(f"{_TRUSTSTORE}certificates", "")),
                Secret(options.get(f"{_TRUSTSTORE}password", "")),
            ),
            check_hostname=_has_hostname_check(options),
        ),
        **common,
    )


def _ms(options: Mapping[str, str], name: str, default_ms: int) -> int:
    text = options.get(name)
    if text is None:
        return default_ms
    if not (text.isdecimal() and text.isascii() and 0 < int(text) < 1_000_000):
        raise OptionError(f"{name} in {JAAS} must be a whole number of seconds")
    return int(text) * 1000


def _has_hostname_check(options: Mapping[str, str]) -> bool:
    name = "oauth.ssl.endpoint.identification.algorithm"
    value = options.get(name, "HTTPS").upper()
    if value not in ("HTTPS", ""):
        raise OptionError(f"{name} in {JAAS} must be HTTPS or empty")
    return value == "HTTPS"
