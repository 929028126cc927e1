"""The choice of the sasl.* settings: mechanism, and user or source of tokens.

Users come as sasl.username and sasl.password (librdkafka) or in sasl.jaas.config (Java), tokens
from an endpoint, a file, a value, a function or Amazon. Anything given twice is an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sparkkafka.config.security.jaas import LoginModule, parse_jaas
from sparkkafka.config.security.java_classes import (
    AWS_LOGIN_HANDLER,
    DEFAULT_LOGIN_HANDLER,
    GOOGLE_HANDLER,
    LOGIN_HANDLERS,
    STRIMZI_HANDLER,
    UNSECURED_HANDLER,
)
from sparkkafka.config.security.jvm import LOGIN_CONFIG, login_section
from sparkkafka.config.security.references import resolved
from sparkkafka.config.security.rows import CALLBACK_OPTION, MECHANISMS, NO_KERBEROS
from sparkkafka.config.security.settings import (
    AWS_MSK_IAM,
    CALLBACK,
    CLIENT_CREDENTIALS,
    GIVEN_TOKEN,
    GOOGLE,
    TOKEN_FILE,
    UNSECURED,
    OAuthSettings,
    SaslChoice,
    Store,
    TlsSettings,
)
from sparkkafka.config.security.strimzi import strimzi_settings
from sparkkafka.config.security.unsecured_token import (
    JAVA_PREFIX,
    UnsecuredToken,
    of_java,
    of_librdkafka,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

log = logging.getLogger(__name__)

_JAAS = "sasl.jaas.config"
_PLAIN_MODULE, _SCRAM_MODULE = "PlainLoginModule", "ScramLoginModule"
_OAUTH_MODULE, _AWS_MODULE = "OAuthBearerLoginModule", "IAMLoginModule"
MODULES: Final = {
    "PLAIN": _PLAIN_MODULE,
    "SCRAM-SHA-256": _SCRAM_MODULE,
    "SCRAM-SHA-512": _SCRAM_MODULE,
    "OAUTHBEARER": _OAUTH_MODULE,
    "AWS_MSK_IAM": _AWS_MODULE,
}
_ENDPOINT_OPTIONS = (
    "oauth_token_endpoint_url",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_scope",
)
Names = Callable[[str], str]


def sasl_choice(
    values: Mapping[str, Any], name_of: Names, servers: tuple[tuple[str, int], ...]
) -> SaslChoice:
    """Of `SecurityOptions` with references looked up. Raises OptionError."""
    module = _login_module(values["jaas_config"], name_of("jaas_config"))
    if module is None and not any(values[one] for one in _IDENTITY):
        module = _module_of_the_jvm()
    mechanism: str = values["mechanism"]
    if not mechanism:
        named = [name for name, wanted in MODULES.items() if module and wanted == module.name]
        hint = (
            f"{' or '.join(named)}, as {_JAAS} says" if named else f"one of {_listed(MECHANISMS)}"
        )
        raise OptionError(
            f"security.protocol={values['protocol']} needs sasl.mechanism: set it to {hint} "
            "(without it Java takes GSSAPI, which is not supported)"
        )
    if module is not None and module.name != MODULES[mechanism]:
        aws = module.name == _AWS_MODULE and mechanism == "OAUTHBEARER"
        # In Java either of them does no more than hand over user and password.
        of_users = {module.name, MODULES[mechanism]} == {_PLAIN_MODULE, _SCRAM_MODULE}
        if not aws and not of_users:
            raise OptionError(
                f"sasl.mechanism={mechanism} wants {MODULES[mechanism]} in {_JAAS}, which has "
                f"{module.name}"
            )
    if mechanism in ("OAUTHBEARER", "AWS_MSK_IAM"):
        return _tokens(mechanism, values, name_of, module, servers)
    return _user(mechanism, values, name_of, module)


_IDENTITY = (
    "username",
    "password",
    "oauth_token",
    "oauth_client_id",
    "oauth_client_secret",
    "login_callback",
)


def _module_of_the_jvm() -> LoginModule | None:
    """As in Java: without sasl.jaas.config, the file that the JVM was started with."""
    text, path = login_section()
    if not path:
        return None
    module = _login_module(text, f"the JVM's {LOGIN_CONFIG}={path}")
    if module is not None:
        log.info("user and password, or token, by %s of the JVM: %s", LOGIN_CONFIG, path)
    return module


def _login_module(text: Secret, option: str) -> LoginModule | None:
    """Its references are looked up after parsing, so that a password needs no escapes for quotation
    marks; before parsing, if all of it is one reference."""
    if not text.reveal().strip():
        return None
    try:
        module = parse_jaas(text.reveal())
    except ValueError:
        module = None
    try:
        if module is None or module.name not in MODULES.values():
            module = parse_jaas(resolved(text, option).reveal())
        else:
            module = _with_values(module, option)
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{_JAAS} cannot be read: {error}") from None
    if module.name == "Krb5LoginModule":
        raise OptionError(f"{_JAAS} has Krb5LoginModule: {NO_KERBEROS}")
    if module.name not in MODULES.values():
        # Its name is not shown: in a garbled text it may be a secret.
        raise OptionError(
            f"{_JAAS} names a login module that is not here; there are "
            f"{_listed(dict.fromkeys(MODULES.values()))}"
        )
    return module


def _with_values(module: LoginModule, option: str) -> LoginModule:
    """With references looked up."""
    found = {name: Secret(value) for name, value in module.options.items()}
    found = {name: resolved(value, option) for name, value in found.items()}
    return LoginModule(module.name, {name: value.reveal() for name, value in found.items()})


def _user(
    mechanism: str, values: Mapping[str, Any], name_of: Names, module: LoginModule | None
) -> SaslChoice:
    for one in ("oauth_token", "login_callback"):
        if values[one] and values[one] not in LOGIN_HANDLERS:
            raise OptionError(f"{name_of(one)} is for OAUTHBEARER, and sasl.mechanism={mechanism}")
    _pass_over(_ENDPOINT_OPTIONS, values, name_of, mechanism)
    username, password = values["username"], values["password"]
    token_auth = False
    if module is not None:
        given = [name_of(one) for one in ("username", "password") if values[one]]
        if given:
            raise OptionError(f"{given[0]} and {_JAAS} exclude each other: remove one")
        username = module.options.get("username", "")
        password = Secret(module.options.get("password", ""))
        token_auth = module.options.get("tokenauth", "").lower() == "true"
        if token_auth and mechanism == "PLAIN":
            raise OptionError(f"tokenauth=true in {_JAAS} is for SCRAM")
    if not username or not password:
        what = "user" if not username else "password"
        raise OptionError(
            f"sasl.mechanism={mechanism} needs a {what}: set sasl.username and sasl.password, or "
            f"{_JAAS} with username and password"
        )
    return SaslChoice(
        mechanism=mechanism, username=username, password=password, token_auth=token_auth
    )


def _tokens(
    mechanism: str,
    values: Mapping[str, Any],
    name_of: Names,
    module: LoginModule | None,
    servers: tuple[tuple[str, int], ...],
) -> SaslChoice:
    for one in ("username", "password"):
        if values[one]:
            raise OptionError(
                f"{name_of(one)} is for PLAIN and SCRAM, and sasl.mechanism={mechanism}"
            )
    handler = values["login_callback"]
    options = module or LoginModule("", {})
    aws = (
        mechanism == "AWS_MSK_IAM"
        or handler == AWS_LOGIN_HANDLER
        or (module is not None and module.name == _AWS_MODULE)
    )
    if aws:
        if values["oauth_token"]:
            raise OptionError(f"{name_of('oauth_token')} is not for tokens of AWS: remove it")
        _pass_over(_ENDPOINT_OPTIONS, values, name_of, "AWS_MSK_IAM")
        if handler not in ("", AWS_LOGIN_HANDLER, DEFAULT_LOGIN_HANDLER):
            raise OptionError(f"{CALLBACK_OPTION} is not for sasl.mechanism=AWS_MSK_IAM: remove it")
        oauth = _aws(values, options, servers)
    elif handler in (STRIMZI_HANDLER, GOOGLE_HANDLER):
        if values["oauth_token"]:
            raise OptionError(f"{name_of('oauth_token')} and {handler} exclude each other")
        _pass_over(_ENDPOINT_OPTIONS, values, name_of, f"OAUTHBEARER of {handler}")
        if handler == STRIMZI_HANDLER:
            oauth = strimzi_settings(options.options, _JAAS, _timing(values))
        elif options.options:
            raise OptionError(f"{_JAAS} has options, and {handler} takes none")
        else:
            oauth = OAuthSettings(method=GOOGLE, **_timing(values))
    else:
        oauth = _oauth(values, name_of, options)
    return SaslChoice(mechanism="OAUTHBEARER", oauth=oauth)


def _pass_over(
    fields: Iterable[str], values: Mapping[str, Any], name_of: Names, mechanism: str
) -> None:
    """Java never looks at these for this mechanism, and jobs carry them along."""
    given = [name_of(one) for one in fields if values[one]]
    if given:
        log.debug("no effect with sasl.mechanism=%s: %s", mechanism, _listed(given))


def _timing(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "connect_timeout_ms": values["login_connect_timeout_ms"],
        "read_timeout_ms": values["login_read_timeout_ms"],
        "retry_backoff_ms": values["login_retry_backoff_ms"],
        "retry_backoff_max_ms": values["login_retry_backoff_max_ms"],
    }


# --- OAUTHBEARER -----------------------------------------------------------------------------


def _oauth(values: Mapping[str, Any], name_of: Names, jaas: LoginModule) -> OAuthSettings:
    unsecured = _unsecured(values, name_of, jaas)

    def chosen(field: str, jaas_name: str) -> Any:
        """The setting, or the option of the login module."""
        value = values[field]
        if value and jaas.options.get(jaas_name):
            raise OptionError(
                f"{name_of(field)} and {jaas_name} in {_JAAS} exclude each other: remove one"
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
    common = _timing(values) | {"extensions": _extensions(values, name_of, jaas)}
    scope = chosen("oauth_scope", "scope")
    if not url:
        for field, name, value in (
            ("oauth_client_id", "clientId", client_id),
            ("oauth_client_secret", "clientSecret", secret),
            ("oauth_scope", "scope", scope),
        ):
            if value:
                name = name_of(field) if values[field] else f"{name} in {_JAAS}"
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
    if not client_id or not secret:
        what = "client id" if not client_id else "client secret"
        raise OptionError(
            f"{name_of('oauth_token_endpoint_url')} needs a {what}: set "
            f"sasl.oauthbearer.client.credentials.{what.replace(' ', '.')}, or clientId and "
            f"clientSecret in {_JAAS}"
        )
    return OAuthSettings(
        method=CLIENT_CREDENTIALS,
        token_endpoint_url=url.reveal(),
        client_id=client_id,
        client_secret=secret,
        scope=scope,
        header_urlencode=values["oauth_header_urlencode"],
        allow_http=values["oauth_allow_http"],
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
            f"{name_of('oauth_config')} and {JAVA_PREFIX}… in {_JAAS} exclude each other"
        )
    if not (by_java or by_config or values["login_callback"] == UNSECURED_HANDLER):
        return None
    if not values["oauth_unsecured"]:
        where = name_of("oauth_config") if by_config else f"{JAVA_PREFIX}… in {_JAAS}"
        raise OptionError(
            f"{where} asks for an unsecured token, which anybody can make: give clientId and "
            f"clientSecret, or allow it for a test with {name_of('oauth_unsecured')}=true"
        )
    if by_config:
        return of_librdkafka(by_config, name_of("oauth_config"))
    return of_java(jaas.options, _JAAS)


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
            f"{name_of('oauth_extensions')} and extension_… in {_JAAS} exclude each other"
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
    return Store(
        f"ssl.truststore.location in {_JAAS}",
        jaas.options.get("ssl.truststore.location", ""),
        Secret(jaas.options.get("ssl.truststore.certificates", "")),
        Secret(jaas.options.get("ssl.truststore.password", "")),
    )


# --- AWS -------------------------------------------------------------------------------------

_AWS_HOST = re.compile(
    r".+\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?", re.IGNORECASE
)


_AWS_ROLE = ("awsRoleSessionName", "awsRoleExternalId")
_AWS_KEYS = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey")
_AWS_KEY_TOKEN = "awsRoleSessionToken"  # noqa: S105
_AWS_FLAGS = ("awsShouldUseFips", "awsAddDefaultProviders", "awsDebugCreds")
_AWS_NUMBERS = ("awsMaxRetries", "awsMaxBackOffTimeMs")
AWS_OPTIONS: Final = (
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
"""Those of Amazon's MSKCredentialProvider for Java, and awsRegion."""


def _aws(
    values: Mapping[str, Any], jaas: LoginModule, servers: tuple[tuple[str, int], ...]
) -> OAuthSettings:
    """Raises OptionError for what would sign as another identity than the options name."""
    options = jaas.options
    _check_aws(options)
    regions = {match[1].lower() for host, _ in servers if (match := _AWS_HOST.fullmatch(host))}
    timing = _timing(values)
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
                f"{name} in {_JAAS} names a Java class, which cannot run here: say the region with "
                "awsRegion"
            )
        if name not in AWS_OPTIONS:
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{_JAAS} has an option that is unknown for AWS_MSK_IAM; there are "
                f"{_listed(AWS_OPTIONS)}"
            )
    for name in AWS_OPTIONS:
        if options.get(name) == "" and not name.startswith("awsMax"):
            raise OptionError(f"{name} in {_JAAS} is empty: remove it, or give it a value")
    if "awsRoleArn" not in options:
        for name in (*_AWS_ROLE, *_AWS_KEYS, _AWS_KEY_TOKEN):
            if name in options:
                raise OptionError(f"{name} in {_JAAS} is for a role: awsRoleArn is missing")
    keys = [name for name in _AWS_KEYS if name in options]
    if len(keys) == 1 or (_AWS_KEY_TOKEN in options and not keys):
        given = keys[0] if keys else _AWS_KEY_TOKEN
        missing = [name for name in _AWS_KEYS if name not in options]
        raise OptionError(f"{given} in {_JAAS} needs {' and '.join(missing)}, too")
    named = "awsProfileName" in options or "awsRoleArn" in options
    if options.get("awsAddDefaultProviders") == "true" and named:
        raise OptionError(
            f"awsAddDefaultProviders=true in {_JAAS} would sign as whoever the machine is when the "
            "profile or role fails: remove it, or the profile and role"
        )
    if options.get("awsAddDefaultProviders") == "false" and not named:
        raise OptionError(
            f"awsAddDefaultProviders=false in {_JAAS} leaves nobody to sign as: give "
            "awsProfileName or awsRoleArn"
        )
    if options.get("awsShouldUseFips") == "true":
        for name in ("awsRoleArn", "awsStsRegion"):
            if name not in options:
                raise OptionError(
                    f"awsShouldUseFips=true in {_JAAS} is for the token service of a region: "
                    f"{name} is missing"
                )
    for name in _AWS_FLAGS:
        if options.get(name, "true") not in ("true", "false"):
            raise OptionError(f"{name} in {_JAAS} must be true or false")
    for name in _AWS_NUMBERS:
        if not re.fullmatch("[0-9]{1,7}", options.get(name, "0")):
            raise OptionError(f"{name} in {_JAAS} must be a whole number from 0 to 9999999")


def _listed(names: Any) -> str:
    return ", ".join(names)
