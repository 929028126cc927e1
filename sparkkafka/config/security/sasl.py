"""The mechanism that the sasl.* settings choose, and its user, Kerberos name or source of tokens.

A user is in sasl.username and sasl.password (librdkafka) or in sasl.jaas.config (Java). What is set
twice is an error. OAUTHBEARER's token comes from an endpoint, a file, a setting, a function or
Amazon's signer, or is unsecured.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sparkkafka.config.kinds import JWT_BEARER_GRANT, LOGIN_CALLBACK_OPTION, MECHANISMS
from sparkkafka.config.security import java
from sparkkafka.config.security.references import ResolvedValues, resolve_references
from sparkkafka.config.security.settings import (
    AssertionSettings,
    KerberosSettings,
    OAuthSettings,
    SaslChoice,
    Servers,
    Store,
    TlsSettings,
    TokenMethod,
)
from sparkkafka.errors import OptionError, exclusive
from sparkkafka.secret import NO_SECRET, Secret

log = logging.getLogger(__name__)

# --- the source of OAUTHBEARER's tokens -----------------------------------------------------------


def _timing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `OAuthSettings` about timeouts and retries."""
    return {
        "connect_timeout_ms": values["login_connect_timeout_ms"],
        "read_timeout_ms": values["login_read_timeout_ms"],
        "retry_backoff_ms": values["login_retry_backoff_ms"],
        "retry_backoff_max_ms": values["login_retry_backoff_max_ms"],
    }


def oauth_settings(values: ResolvedValues, jaas: java.LoginModule) -> OAuthSettings:
    """Choose the one source of tokens that Java's or librdkafka's settings name.

    Raises OptionError unless there is exactly one.
    """
    unsecured = _unsecured_token(values, jaas)

    def chosen(field: str, jaas_name: str) -> Any:
        """Return the setting, or the login module's option. Raises OptionError for both."""
        value = values[field]
        if value and jaas.options.get(jaas_name):
            raise exclusive(values.name_of(field), f"{jaas_name} in {java.JAAS}")
        other = jaas.options.get(jaas_name, "")
        return value or (Secret(other) if isinstance(value, Secret) else other)

    url: Secret = values["oauth_token_endpoint_url"]
    token, client_id = chosen("oauth_token", "token"), chosen("oauth_client_id", "clientId")
    secret = chosen("oauth_client_secret", "clientSecret")
    handler = values["login_callback"]
    callback = "" if handler in java.LOGIN_HANDLERS else handler
    sources = [
        name
        for name, value in (
            (values.name_of("oauth_token"), token),
            (values.name_of("oauth_unsecured"), unsecured),
            (LOGIN_CALLBACK_OPTION, callback),
            (values.name_of("oauth_token_endpoint_url"), url),
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
    common = _timing(values) | {"extensions": _extensions(values, jaas)}
    scope = chosen("oauth_scope", "scope")
    if not url:
        for field, name, value in (
            ("oauth_client_id", "clientId", client_id),
            ("oauth_client_secret", "clientSecret", secret),
            ("oauth_scope", "scope", scope),
        ):
            if value:
                name = values.name_of(field) if values[field] else f"{name} in {java.JAAS}"
                raise OptionError(
                    f"{name} is for {values.name_of('oauth_token_endpoint_url')}, and the token "
                    f"comes from {sources[0]}: remove one of them"
                )
    if unsecured:
        common["extensions"] += unsecured.extensions
        return OAuthSettings(
            method=TokenMethod.UNSECURED,
            unsecured_claims=unsecured.claims,
            unsecured_life_s=unsecured.life_s,
            **common,
        )
    if token:
        return OAuthSettings(method=TokenMethod.GIVEN_TOKEN, token=token, **common)
    if callback:
        return OAuthSettings(method=TokenMethod.CALLBACK, callback=callback, **common)
    scheme = url.reveal().partition(":")[0].lower()
    if scheme == "file":
        path = re.sub(r"^[^:]*:(//[^/]*)?", "", url.reveal())
        return OAuthSettings(method=TokenMethod.TOKEN_FILE, token_path=path, **common)
    if scheme not in ("https", "http"):
        raise OptionError(
            f"{values.name_of('oauth_token_endpoint_url')} begins with https:// or file:/"
        )
    assertion = _assertion(values)
    if assertion is not None:
        if client_id or secret:
            name = "oauth_client_id" if client_id else "oauth_client_secret"
            raise OptionError(
                f"{values.name_of(name)} (or clientId and clientSecret in {java.JAAS}) is not for "
                "a grant that shows an assertion: remove it"
            )
    elif not client_id or not secret:
        what = "client id" if not client_id else "client secret"
        raise OptionError(
            f"{values.name_of('oauth_token_endpoint_url')} needs a {what}: set "
            f"sasl.oauthbearer.client.credentials.{what.replace(' ', '.')}, or clientId and "
            f"clientSecret in {java.JAAS}"
        )
    return OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS,
        token_endpoint_url=url.reveal(),
        client_id=client_id,
        client_secret=secret,
        scope=scope,
        header_urlencode=values["oauth_header_urlencode"],
        allow_http=values["oauth_allow_http"],
        assertion=assertion,
        tls=TlsSettings(truststore=_endpoint_truststore(values, jaas)),
        **common,
    )


def _unsecured_token(values: ResolvedValues, jaas: java.LoginModule) -> UnsecuredToken | None:
    """Return the unsecured token that settings describe, None if there is none. Raises
    OptionError if they describe one without allowing it."""
    in_jaas = any(name.startswith(_UNSECURED_PREFIX) for name in jaas.options)
    config = values["oauth_config"]
    if in_jaas and config:
        raise exclusive(values.name_of("oauth_config"), f"{_UNSECURED_PREFIX}… in {java.JAAS}")
    if not (in_jaas or config or values["login_callback"] == java.UNSECURED_HANDLER):
        return None
    if not values["oauth_unsecured"]:
        where = values.name_of("oauth_config") if config else f"{_UNSECURED_PREFIX}… in {java.JAAS}"
        raise OptionError(
            f"{where} asks for an unsecured token, which anybody can make: give clientId and "
            f"clientSecret, or allow it for a test with {values.name_of('oauth_unsecured')}=true"
        )
    if config:
        return _librdkafka_unsecured_token(config, values.name_of("oauth_config"))
    return _java_unsecured_token(jaas.options)


def _assertion(values: ResolvedValues) -> AssertionSettings | None:
    """Return how to make the assertion of the JWT bearer grant; None for another grant. Raises
    OptionError for settings that conflict."""
    names = ("file", "key_file", "key", "passphrase", "template_file", "aud", "iss", "sub")
    fields = [name for name in names if values[f"assertion_{name}"]]
    if (
        values["oauth_retriever"] != java.JWT_BEARER_RETRIEVER
        and values["oauth_grant_type"] != JWT_BEARER_GRANT
    ):
        if fields:
            raise OptionError(
                f"{values.name_of(f'assertion_{fields[0]}')} is for a grant with an assertion: set "
                f"{values.name_of('oauth_grant_type')}={JWT_BEARER_GRANT}, or "
                f"{values.name_of('oauth_retriever')}={java.JWT_BEARER_RETRIEVER}"
            )
        return None
    sources = [name for name in ("file", "key_file", "key") if name in fields]
    if len(sources) != 1 or (sources == ["file"] and len(fields) > 1):
        both = " and ".join(values.name_of(f"assertion_{name}") for name in fields[:2])
        raise OptionError(
            f"{both} exclude each other: an assertion comes from a file, or is signed here"
            if len(sources) > 1 or (sources and len(fields) > 1)
            else f"an assertion needs {values.name_of('assertion_key_file')} (or "
            f"{values.name_of('assertion_file')} with one that is made elsewhere)"
        )

    def store(name: str, text: Secret = NO_SECRET) -> Store:
        field = f"assertion_{name}"
        return Store(values.name_of(field), "" if text else values[field], text)

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


def _extensions(values: ResolvedValues, jaas: java.LoginModule) -> tuple[tuple[str, str], ...]:
    """Return the SASL extensions of sasl.jaas.config or of librdkafka's option. Raises OptionError
    for both."""
    from_jaas = tuple(
        (name.removeprefix("extension_"), value)
        for name, value in jaas.options.items()
        if name.startswith("extension_")
    )
    if from_jaas and values["oauth_extensions"]:
        raise exclusive(values.name_of("oauth_extensions"), f"extension_… in {java.JAAS}")
    return from_jaas or tuple(values["oauth_extensions"] or ())


def _endpoint_truststore(values: ResolvedValues, jaas: java.LoginModule) -> Store:
    """Return the endpoint's own truststore. As in Java it is not that of brokers, since most token
    endpoints have a certificate of a public authority."""
    path, text = values["https_ca_location"], values["https_ca_pem"]
    if path and text:
        raise exclusive(values.name_of("https_ca_location"), values.name_of("https_ca_pem"))
    if path or text:
        return Store(values.name_of("https_ca_location" if path else "https_ca_pem"), path, text)
    store = Store(
        f"ssl.truststore.location in {java.JAAS}",
        jaas.options.get("ssl.truststore.location", ""),
        Secret(jaas.options.get("ssl.truststore.certificates", "")),
        Secret(jaas.options.get("ssl.truststore.password", "")),
    )
    return store or java.jvm_truststore() or store  # the last is empty: the system's authorities


# --- unsecured tokens ------------------------------------------------------------------------
# They have no signature, so anybody can make one. Brokers accept them only in tests.

_UNSECURED_PREFIX = "unsecuredLogin"

Claim = str | float | tuple[str, ...]


class UnsecuredToken(NamedTuple):
    """A token without a signature. `claims` lack iat, which is the time when it is made, and exp,
    which is `life_s` later."""

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
    principal_claim = settings.pop("PrincipalClaimName", "") or "sub"
    scope_claim = settings.pop("ScopeClaimName", "") or "scope"
    life_s = _number(settings.pop("LifetimeSeconds", "3600"), "LifetimeSeconds", java.JAAS)
    claims: dict[str, Claim] = {}
    extensions = []
    kinds = ("StringClaim_", "NumberClaim_", "ListClaim_")
    for name, value in settings.items():
        if name.startswith("Extension_"):
            extensions.append((name.removeprefix("Extension_"), value))
            continue
        kind = next((kind for kind in kinds if name.startswith(kind) and name != kind), None)
        if kind is None:
            raise OptionError(
                f"{java.JAAS} has an option {_UNSECURED_PREFIX}… that Java does not know"
            )
        claim = name.removeprefix(kind)
        if kind == "StringClaim_":
            claims[claim] = value
        elif kind == "NumberClaim_":
            claims[claim] = _number(value, name, java.JAAS)
        else:  # the first character is the separator
            claims[claim] = tuple(filter(None, value[1:].split(value[0]))) if value else ()
    if not isinstance(claims.get(principal_claim), str) or not claims[principal_claim]:
        raise OptionError(
            f"{java.JAAS}: an unsecured token needs a principal: "
            f"{_UNSECURED_PREFIX}StringClaim_{principal_claim}"
        )
    if isinstance(claims.get(scope_claim), int | float):
        raise OptionError(f"{java.JAAS}: the scope of an unsecured token is text or a list")
    return UnsecuredToken((*claims.items(),), life_s, (*extensions,))


def _librdkafka_unsecured_token(text: str, option: str) -> UnsecuredToken:
    """Parse `principalClaimName=… principal=… scopeClaimName=… scope=a,b lifeSeconds=…
    extension_name=…`. Raises OptionError."""
    pair = re.compile(r'\s*([A-Za-z_]+)=(?:"([^"]*)"|(\S+))')
    values: dict[str, str] = {}
    remaining = text.strip()
    while remaining:
        match = pair.match(remaining)
        if match is None:
            raise OptionError(f"{option} is name=value name=value …")
        values[match[1]] = match[3] if match[2] is None else match[2]
        remaining = remaining[match.end() :]
    extensions = tuple(
        (name.removeprefix("extension_"), values.pop(name))
        for name in [name for name in values if name.startswith("extension_")]
    )
    principal_claim = values.pop("principalClaimName", "") or "sub"
    scope_claim = values.pop("scopeClaimName", "") or "scope"
    life_s = _number(values.pop("lifeSeconds", "3600"), "lifeSeconds", option)
    claims: dict[str, Claim] = {principal_claim: values.pop("principal", "")}
    scope = values.pop("scope", "")
    if scope:
        claims[scope_claim] = tuple(scope.split(","))
    if values:
        raise OptionError(
            f"{option} has names that are not known; use principalClaimName, principal, "
            "scopeClaimName, scope, lifeSeconds and extension_…"
        )
    if not claims[principal_claim]:
        raise OptionError(f"{option} needs a principal: principal=NAME")
    return UnsecuredToken((*claims.items(),), life_s, extensions)


def _number(text: str, name: str, option: str) -> float:
    """Parse a claim's number, or the life of a token, which is positive. `name` is the value's name
    within `option`. Raises OptionError."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    # NaN is not below any number, and a float holds each whole number below 2**53 (9e15).
    if not abs(number) < 1e15 or (name in ("LifetimeSeconds", "lifeSeconds") and number <= 0):
        raise OptionError(f"{name} in {option} must be a number")
    return int(number) if number == int(number) else number


# --- Amazon MSK ------------------------------------------------------------------------------
# The options of Amazon's MSKCredentialProvider for Java, and awsRegion.


def msk_settings(values: ResolvedValues, jaas: java.LoginModule, servers: Servers) -> OAuthSettings:
    """Return the settings of Amazon's signer, from IAMLoginModule's options.

    The region is that of `servers` if no option names it. Raises OptionError, also if the signer
    could use another identity than the one that options name.
    """
    options, timing = jaas.options, _timing(values)
    _check_aws(options)
    aws_host = re.compile(
        r".+\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?", re.IGNORECASE
    )
    regions = {match[1].lower() for host, _ in servers if (match := aws_host.fullmatch(host))}
    if "awsMaxBackOffTimeMs" in options:
        timing["retry_backoff_max_ms"] = int(options["awsMaxBackOffTimeMs"])
        timing["retry_backoff_ms"] = min(timing["retry_backoff_ms"], timing["retry_backoff_max_ms"])
    return OAuthSettings(
        method=TokenMethod.AWS_MSK_IAM,
        aws_region=options.get("awsRegion", "") or (regions.pop() if len(regions) == 1 else ""),
        aws_profile=options.get("awsProfileName", ""),
        aws_role_arn=options.get("awsRoleArn", ""),
        aws_role_session_name=options.get("awsRoleSessionName", ""),
        aws_role_external_id=options.get("awsRoleExternalId", ""),
        aws_role_access_key_id=options.get("awsRoleAccessKeyId", ""),
        aws_role_secret_access_key=Secret(options.get("awsRoleSecretAccessKey", "")),
        aws_role_session_token=Secret(options.get("awsRoleSessionToken", "")),
        aws_sts_region=options.get("awsStsRegion", ""),
        aws_use_fips=options.get("awsShouldUseFips") == "true",
        aws_max_retries=int(options.get("awsMaxRetries", 3)),
        **timing,
    )


def _check_aws(options: Mapping[str, str]) -> None:
    """Raise OptionError for options of IAMLoginModule that are unknown, empty, incomplete or in
    conflict, also if the signer could then use another identity than they name."""
    key_names = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey")
    token_name = "awsRoleSessionToken"  # noqa: S105
    for_role = ("awsRoleSessionName", "awsRoleExternalId", *key_names, token_name)
    flags = ("awsShouldUseFips", "awsAddDefaultProviders", "awsDebugCreds")
    numbers = ("awsMaxRetries", "awsMaxBackOffTimeMs")
    regions = ("awsStsRegion", "awsRegion")
    known = ("awsProfileName", "awsRoleArn", *for_role, *regions, *flags, *numbers)
    for name in options:
        if name == "awsMskRegionProvider":
            raise OptionError(
                f"{name} in {java.JAAS} names a Java class, which cannot run here: set awsRegion"
            )
        if name not in known:
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{java.JAAS} has an option that is unknown for AWS_MSK_IAM; use {', '.join(known)}"
            )
    for name in known:
        if options.get(name) == "" and not name.startswith("awsMax"):
            raise OptionError(f"{name} in {java.JAAS} is empty: remove it, or give it a value")
    if "awsRoleArn" not in options:
        for name in for_role:
            if name in options:
                raise OptionError(f"{name} in {java.JAAS} is for a role: awsRoleArn is missing")
    keys = [name for name in key_names if name in options]
    if len(keys) == 1 or (token_name in options and not keys):
        present = keys[0] if keys else token_name
        missing = [name for name in key_names if name not in options]
        raise OptionError(f"{present} in {java.JAAS} needs {' and '.join(missing)}, too")
    named = "awsProfileName" in options or "awsRoleArn" in options
    if options.get("awsAddDefaultProviders") == "true" and named:
        raise OptionError(
            f"awsAddDefaultProviders=true in {java.JAAS} would sign as whoever the machine is when "
            "the profile or role fails: remove it, or the profile and role"
        )
    if options.get("awsAddDefaultProviders") == "false" and not named:
        raise OptionError(
            f"awsAddDefaultProviders=false in {java.JAAS} leaves no identity to sign with: give "
            "awsProfileName or awsRoleArn"
        )
    if options.get("awsShouldUseFips") == "true":
        for name in ("awsRoleArn", "awsStsRegion"):
            if name not in options:
                raise OptionError(
                    f"awsShouldUseFips=true in {java.JAAS} is for the token service of a region: "
                    f"{name} is missing"
                )
    for name in flags:
        if options.get(name, "true") not in ("true", "false"):
            raise OptionError(f"{name} in {java.JAAS} must be true or false")
    for name in numbers:
        if not re.fullmatch("[0-9]{1,7}", options.get(name, "0")):
            raise OptionError(f"{name} in {java.JAAS} must be a whole number from 0 to 9999999")


# --- Strimzi ---------------------------------------------------------------------------------

_TOKEN, _TOKEN_FILE = "oauth.access.token", "oauth.access.token.location"
_URL, _ID, _SECRET = "oauth.token.endpoint.uri", "oauth.client.id", "oauth.client.secret"
_TRUSTSTORE = "oauth.ssl.truststore."


def strimzi_settings(values: ResolvedValues, jaas: java.LoginModule) -> OAuthSettings:
    """Return the source of tokens that the options of JaasClientOauthLoginCallbackHandler name.

    As in Strimzi's library an environment variable of the name (OAUTH_CLIENT_ID for
    oauth.client.id) overrides the option. Raises OptionError, which names the option, and never a
    value.
    """
    hostname_check = "oauth.ssl.endpoint.identification.algorithm"
    used = (
        *(_TOKEN, _TOKEN_FILE, _URL, _ID, _SECRET, "oauth.scope", "oauth.audience"),
        *(f"{_TRUSTSTORE}{name}" for name in ("location", "certificates", "password")),
        *(hostname_check, "oauth.connect.timeout.seconds", "oauth.read.timeout.seconds"),
    )
    # They enable what is done anyway, or do not affect what a broker receives.
    unneeded = (
        f"{_TRUSTSTORE}type oauth.ssl.secure.random.implementation oauth.access.token.is.jwt "
        "oauth.tokens.not.jwt oauth.max.token.expiry.seconds oauth.http.retries "
        "oauth.http.retry.pause.millis oauth.username.claim oauth.username.prefix "
        "oauth.fallback.username.claim oauth.fallback.username.prefix "
        "oauth.force.jsonpath.username.extraction oauth.config.id oauth.enable.metrics "
        "oauth.include.accept.header"
    ).split()
    # Options of other grants are errors, since they name another identity.
    grant_type = "oauth.client.credentials.grant.type"
    grants = (
        "oauth.refresh.token oauth.refresh.token.location oauth.password.grant.username "
        "oauth.password.grant.password oauth.client.assertion oauth.client.assertion.location "
        f"oauth.client.assertion.type {grant_type}"
    ).split()
    options, timing = dict(jaas.options), _timing(values)
    for name in (*used, *grants):
        from_environment = os.environ.get(name.upper().replace(".", "_"))
        if from_environment is not None:
            options[name] = from_environment
    extensions = tuple(
        (name.removeprefix("oauth.sasl.extension."), options.pop(name))
        for name in list(options)
        if name.startswith("oauth.sasl.extension.")
    )
    for name in options:
        is_default_grant = name == grant_type and options[name] == "client_credentials"
        if name in grants and not is_default_grant:
            raise OptionError(
                f"{name} in {java.JAAS} asks for a grant that is not supported: a token comes from "
                f"{_ID} and {_SECRET}, {_TOKEN} or {_TOKEN_FILE}; for others write a function, and "
                "name it in sasl.login.callback.handler.class"
            )
        if name not in (*used, *unneeded, *grants):
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{java.JAAS} has an option that is unknown to Strimzi's handler; use "
                f"{', '.join(used)}"
            )
    for name in ("connect", "read"):
        option = f"oauth.{name}.timeout.seconds"
        if (text := options.get(option)) is not None:
            if not re.fullmatch("0*[1-9][0-9]{0,5}", text):
                raise OptionError(f"{option} in {java.JAAS} must be a whole number of seconds")
            timing[f"{name}_timeout_ms"] = int(text) * 1000
    common = timing | {"extensions": extensions}
    if _TOKEN_FILE in options:
        return OAuthSettings(
            method=TokenMethod.TOKEN_FILE, token_path=options[_TOKEN_FILE], **common
        )
    if _TOKEN in options:
        return OAuthSettings(
            method=TokenMethod.GIVEN_TOKEN, token=Secret(options[_TOKEN]), **common
        )
    if options.get(hostname_check, "").upper() not in ("HTTPS", ""):
        raise OptionError(f"{hostname_check} in {java.JAAS} must be HTTPS or empty")
    for name in (_URL, _ID, _SECRET):
        if not options.get(name):
            raise OptionError(
                f"{java.JAAS} needs {name} (or {_TOKEN}, or {_TOKEN_FILE}) for Strimzi's handler"
            )
    return OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS,
        token_endpoint_url=options[_URL],
        client_id=options[_ID],
        client_secret=Secret(options[_SECRET]),
        scope=options.get("oauth.scope", ""),
        audience=options.get("oauth.audience", ""),
        tls=TlsSettings(
            truststore=Store(
                f"{_TRUSTSTORE}location in {java.JAAS}",
                options.get(f"{_TRUSTSTORE}location", ""),
                Secret(options.get(f"{_TRUSTSTORE}certificates", "")),
                Secret(options.get(f"{_TRUSTSTORE}password", "")),
            ),
            check_hostname=options.get(hostname_check, "HTTPS").upper() == "HTTPS",
        ),
        **common,
    )


# --- the mechanism and the user -------------------------------------------------------------------

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "AWS_MSK_IAM": "IAMLoginModule",
    "GSSAPI": "Krb5LoginModule",
}
"""The login module in sasl.jaas.config that each mechanism needs."""

# Fields of SecurityOptions that other mechanisms do not use.
_ENDPOINT_FIELDS = (
    "oauth_token_endpoint_url",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_scope",
)
_KERBEROS_FIELDS = ("kerberos_service_name", "kerberos_keytab", "kerberos_principal")


def sasl_choice(values: ResolvedValues, servers: Servers) -> SaslChoice:
    """Choose the mechanism and the identity. `servers` are the bootstrap servers: names of Amazon
    MSK contain the region. Raises OptionError."""
    module = _login_module(values["jaas_config"], values.name_of("jaas_config"))
    mechanism: str = values["mechanism"]
    if not mechanism and module is not None and module.name == "Krb5LoginModule":
        mechanism = "GSSAPI"  # Java's default mechanism
    if module is None and not _has_credentials(values):
        module = _module_of_the_jvm(mechanism)
    if not mechanism:
        of_module = [name for name, known in _MODULES.items() if module and known == module.name]
        hint = f"one of {', '.join(MECHANISMS)}"
        if of_module:
            hint = f"{' or '.join(of_module)}, as {java.JAAS} says"
        raise OptionError(
            f"security.protocol={values['protocol']} needs sasl.mechanism: set it to {hint} "
            "(without it Java takes GSSAPI, Kerberos)"
        )
    if module is not None and not _has_credentials_for(module.name, mechanism):
        raise OptionError(
            f"sasl.mechanism={mechanism} needs {_MODULES[mechanism]} in {java.JAAS}, which has "
            f"{module.name}"
        )
    if mechanism in ("OAUTHBEARER", "AWS_MSK_IAM"):
        return _token_choice(mechanism, values, module, servers)
    if mechanism == "GSSAPI":
        return _kerberos_choice(values, module)
    return _user_choice(mechanism, values, module)


def _has_credentials(values: ResolvedValues) -> bool:
    """Return whether options other than sasl.jaas.config give credentials."""
    fields = "username password oauth_token oauth_client_id oauth_client_secret kerberos_keytab"
    callback = values["login_callback"]  # Java's known classes have no credentials themselves
    return any(values[field] for field in fields.split()) or bool(
        callback and callback not in java.LOGIN_HANDLERS
    )


def _module_of_the_jvm(mechanism: str) -> java.LoginModule | None:
    """Return the login module in the file that the JVM was started with, which Java uses without
    sasl.jaas.config. Return None without such a file, or if the module is for another mechanism,
    as that of another cluster."""
    text, path = java.login_section()
    if not path:
        return None
    try:
        name = java.parse_jaas(text.reveal()).name
    except ValueError as error:
        raise OptionError(
            f"{path}, which the JVM's {java.LOGIN_CONFIG} names, cannot be read: {error}: set "
            f"{java.JAAS}"
        ) from None
    if not _has_credentials_for(name, mechanism):
        log.debug("%s of the JVM is for another mechanism than %s", java.LOGIN_CONFIG, mechanism)
        return None
    log.info("user and password, or token, from %s of the JVM: %s", java.LOGIN_CONFIG, path)
    return _login_module(text, f"the JVM's {java.LOGIN_CONFIG}={path}")


def _has_credentials_for(module_name: str, mechanism: str) -> bool:
    """Return whether a login module of this name has credentials for the mechanism."""
    needed = _MODULES.get(mechanism)
    # In Java both of these only pass on user and password, so each may be used for the other.
    for_users = {"PlainLoginModule", "ScramLoginModule"}
    return (
        module_name == needed
        or (module_name in for_users and needed in for_users)
        or (module_name == "IAMLoginModule" and mechanism == "OAUTHBEARER")
    )


def _login_module(text: Secret, option: str) -> java.LoginModule | None:
    """Parse sasl.jaas.config, None if it is empty. Raises OptionError.

    References are resolved after parsing, so that quotation marks in a password need no escapes; or
    before, if the whole text is one reference.
    """
    if not text.reveal().strip():
        return None
    try:
        module = java.parse_jaas(text.reveal())
    except ValueError:
        module = None
    try:
        if module is None or module.name not in _MODULES.values():
            module = java.parse_jaas(resolve_references(text, option).reveal())
        else:
            # Secrets: no variable in the frames of an error has an option's value.
            hidden = {name: Secret(value) for name, value in module.options.items()}
            hidden = {name: resolve_references(value, option) for name, value in hidden.items()}
            values = {name: value.reveal() for name, value in hidden.items()}
            module = java.LoginModule(module.name, values)
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{java.JAAS} cannot be read: {error}") from None
    if module.name not in _MODULES.values():
        # Its name is not shown: in a garbled text it may be a secret.
        raise OptionError(
            f"{java.JAAS} names a login module that is not supported; use one of "
            f"{', '.join(dict.fromkeys(_MODULES.values()))}"
        )
    return module


def _user_choice(
    mechanism: str, values: ResolvedValues, module: java.LoginModule | None
) -> SaslChoice:
    """Choose the user of PLAIN or SCRAM: that of sasl.jaas.config (`module`, None without it), or
    of sasl.username. Raises OptionError."""
    for_tokens = ["oauth_token"]
    if values["login_callback"] not in (java.DEFAULT_LOGIN_HANDLER, *java.ENDPOINT_HANDLERS):
        for_tokens.append("login_callback")
    _refuse(values, for_tokens, f"is for OAUTHBEARER, and sasl.mechanism={mechanism}")
    _log_unused(_ENDPOINT_FIELDS + _KERBEROS_FIELDS, values, mechanism)
    username, password = values["username"], values["password"]
    token_auth = False
    if module is not None:
        _refuse(values, ("username", "password"), f"and {java.JAAS} exclude each other: remove one")
        username = module.options.get("username", "")
        password = Secret(module.options.get("password", ""))
        token_auth = module.is_true("tokenauth")
        if token_auth and mechanism == "PLAIN":
            raise OptionError(f"tokenauth=true in {java.JAAS} is for SCRAM")
    if not username or not password:
        what = "user" if not username else "password"
        raise OptionError(
            f"sasl.mechanism={mechanism} needs a {what}: set sasl.username and sasl.password, or "
            f"{java.JAAS} with username and password"
        )
    return SaslChoice(
        mechanism=mechanism, username=username, password=password, token_auth=token_auth
    )


def _token_choice(
    mechanism: str, values: ResolvedValues, module: java.LoginModule | None, servers: Servers
) -> SaslChoice:
    """Choose the source of tokens for OAUTHBEARER or AWS_MSK_IAM. Raises OptionError."""
    for_users = ("username", "password")
    _refuse(values, for_users, f"is for PLAIN and SCRAM, and sasl.mechanism={mechanism}")
    _log_unused(_KERBEROS_FIELDS, values, mechanism)
    handler = values["login_callback"]
    jaas = module or java.LoginModule("", {})
    is_aws = (
        mechanism == "AWS_MSK_IAM"
        or handler == java.AWS_LOGIN_HANDLER
        or (module is not None and module.name == "IAMLoginModule")
    )
    if is_aws:
        _refuse(values, ("oauth_token",), "is not for tokens of AWS: remove it")
        _log_unused(_ENDPOINT_FIELDS, values, "AWS_MSK_IAM")
        if handler not in ("", java.AWS_LOGIN_HANDLER, java.DEFAULT_LOGIN_HANDLER):
            raise OptionError(
                f"{LOGIN_CALLBACK_OPTION} is not for sasl.mechanism=AWS_MSK_IAM: remove it"
            )
        oauth = msk_settings(values, jaas, servers)
    elif handler in (java.STRIMZI_HANDLER, java.GOOGLE_HANDLER):
        _refuse(values, ("oauth_token",), f"and {handler} exclude each other")
        _log_unused(_ENDPOINT_FIELDS, values, f"OAUTHBEARER of {handler}")
        if handler == java.STRIMZI_HANDLER:
            oauth = strimzi_settings(values, jaas)
        elif jaas.options:
            raise OptionError(f"{java.JAAS} has options, and {handler} takes none")
        else:
            oauth = OAuthSettings(method=TokenMethod.GOOGLE, **_timing(values))
    else:
        oauth = oauth_settings(values, jaas)
    return SaslChoice(mechanism="OAUTHBEARER", oauth=oauth)


def _kerberos_choice(values: ResolvedValues, module: java.LoginModule | None) -> SaslChoice:
    """Choose the source of the Kerberos ticket by Krb5LoginModule's options, as Java does, or
    without that module by librdkafka's options. Raises OptionError."""
    others = ("username", "password", "oauth_token")
    _refuse(values, others, "is not for sasl.mechanism=GSSAPI: remove it")
    if values["login_callback"] not in ("", java.DEFAULT_LOGIN_HANDLER, *java.ENDPOINT_HANDLERS):
        raise OptionError(f"{LOGIN_CALLBACK_OPTION} is not for sasl.mechanism=GSSAPI: remove it")
    _log_unused(_ENDPOINT_FIELDS, values, "GSSAPI")
    keytab, principal = values["kerberos_keytab"], values["kerberos_principal"]
    service, ticket_cache, use_cache = values["kerberos_service_name"], "", not keytab
    if module is not None:
        fields = ("kerberos_keytab", "kerberos_principal")
        _refuse(values, fields, f"and {java.JAAS} exclude each other: remove one")
        principal = module.options.get("principal", "")
        module_service = module.options.get("serviceName", "")
        if module_service and service and module_service != service:
            raise OptionError(
                f"{values.name_of('kerberos_service_name')}={service}, and {java.JAAS} has "
                f"serviceName={module_service}: remove one"
            )
        service = service or module_service
        use_cache = module.is_true("useTicketCache")
        if use_cache:
            ticket_cache = _file_path(module.options.get("ticketCache", ""))
        if module.is_true("useKeyTab"):
            keytab = _file_path(module.options.get("keyTab", ""))
            if not keytab:
                raise OptionError(f"{java.JAAS} has useKeyTab=true without keyTab: name the file")
        elif not use_cache:
            raise OptionError(
                f"{java.JAAS} has Krb5LoginModule, which would ask for a password: add "
                'useKeyTab=true keyTab="…" principal="…", or useTicketCache=true'
            )
    if keytab and not principal:
        what = f"principal in {java.JAAS}" if module is not None else "sasl.kerberos.principal"
        raise OptionError(f"a keytab holds keys of several names: set {what}")
    kerberos = KerberosSettings(
        service_name=service or "kafka",
        principal=principal,
        keytab=keytab,
        ticket_cache=ticket_cache,
        prefer_cache=use_cache,
    )
    return SaslChoice(mechanism="GSSAPI", username=principal, kerberos=kerberos)


def _file_path(text: str) -> str:
    """Return the path of a file, which Java also takes as a URL."""
    return text[5:] if text[:5].lower() == "file:" else text


def _refuse(values: ResolvedValues, fields: Iterable[str], reason: str) -> None:
    """Raise OptionError for the first of these fields that is set; `reason` follows its name."""
    for field in fields:
        if values[field]:
            raise OptionError(f"{values.name_of(field)} {reason}")


def _log_unused(fields: Iterable[str], values: ResolvedValues, mechanism: str) -> None:
    """Log options of other mechanisms, which many jobs set. Java ignores them too."""
    names = [values.name_of(field) for field in fields if values[field]]
    if names:
        log.debug("no effect with sasl.mechanism=%s: %s", mechanism, ", ".join(names))
