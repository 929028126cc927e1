"""The choice of the sasl.* settings: mechanism, and user or source of tokens.

Users come as sasl.username and sasl.password (librdkafka) or in sasl.jaas.config (Java); `oauth`,
`msk` and `strimzi` know where tokens come from. Anything given twice is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sparkkafka.config.security.jaas import JAAS, LoginModule, parse_jaas
from sparkkafka.config.security.java_classes import (
    AWS_LOGIN_HANDLER,
    DEFAULT_LOGIN_HANDLER,
    ENDPOINT_HANDLERS,
    GOOGLE_HANDLER,
    LOGIN_HANDLERS,
    STRIMZI_HANDLER,
)
from sparkkafka.config.security.jvm import LOGIN_CONFIG, login_section
from sparkkafka.config.security.msk import msk_settings
from sparkkafka.config.security.oauth import Names, oauth_settings, oauth_timing
from sparkkafka.config.security.references import resolved
from sparkkafka.config.security.rows import CALLBACK_OPTION, MECHANISMS
from sparkkafka.config.security.settings import (
    GOOGLE,
    KerberosSettings,
    OAuthSettings,
    SaslChoice,
)
from sparkkafka.config.security.strimzi import strimzi_settings
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

log = logging.getLogger(__name__)

_PLAIN_MODULE, _SCRAM_MODULE = "PlainLoginModule", "ScramLoginModule"
_OAUTH_MODULE, _AWS_MODULE = "OAuthBearerLoginModule", "IAMLoginModule"
_KERBEROS_MODULE = "Krb5LoginModule"
MODULES: Final = {
    "PLAIN": _PLAIN_MODULE,
    "SCRAM-SHA-256": _SCRAM_MODULE,
    "SCRAM-SHA-512": _SCRAM_MODULE,
    "OAUTHBEARER": _OAUTH_MODULE,
    "AWS_MSK_IAM": _AWS_MODULE,
    "GSSAPI": _KERBEROS_MODULE,
}
_ENDPOINT_OPTIONS = (
    "oauth_token_endpoint_url",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_scope",
)
_KERBEROS_OPTIONS = ("kerberos_service_name", "kerberos_keytab", "kerberos_principal")


def sasl_choice(
    values: Mapping[str, Any], name_of: Names, servers: tuple[tuple[str, int], ...]
) -> SaslChoice:
    """Of `SecurityOptions` with references looked up. Raises OptionError."""
    module = _login_module(values["jaas_config"], name_of("jaas_config"))
    mechanism: str = values["mechanism"]
    if not mechanism and module is not None and module.name == _KERBEROS_MODULE:
        mechanism = "GSSAPI"  # as in Java, where it is what counts if nothing is said
    if module is None and not _has_identity(values):
        module = _module_of_the_jvm(mechanism)
    if not mechanism:
        named = [name for name, wanted in MODULES.items() if module and wanted == module.name]
        hint = f"{' or '.join(named)}, as {JAAS} says" if named else f"one of {_listed(MECHANISMS)}"
        raise OptionError(
            f"security.protocol={values['protocol']} needs sasl.mechanism: set it to {hint} "
            "(without it Java takes GSSAPI, Kerberos)"
        )
    if module is not None and not _fits(module.name, mechanism):
        raise OptionError(
            f"sasl.mechanism={mechanism} wants {MODULES[mechanism]} in {JAAS}, which has "
            f"{module.name}"
        )
    if mechanism in ("OAUTHBEARER", "AWS_MSK_IAM"):
        return _tokens(mechanism, values, name_of, module, servers)
    if mechanism == "GSSAPI":
        return _ticket(values, name_of, module)
    return _user(mechanism, values, name_of, module)


_IDENTITY = (
    "username",
    "password",
    "oauth_token",
    "oauth_client_id",
    "oauth_client_secret",
    "kerberos_keytab",
)


def _has_identity(values: Mapping[str, Any]) -> bool:
    callback = values["login_callback"]
    return any(values[one] for one in _IDENTITY) or bool(
        callback and callback not in LOGIN_HANDLERS
    )


def _module_of_the_jvm(mechanism: str) -> LoginModule | None:
    """As in Java: without sasl.jaas.config, the file that the JVM was started with. It may be there
    for another cluster, with another mechanism."""
    text, path = login_section()
    if not path:
        return None
    try:
        name = parse_jaas(text.reveal()).name
    except ValueError as error:
        raise OptionError(
            f"{path}, which the JVM's {LOGIN_CONFIG} names, cannot be read: {error}: set {JAAS}"
        ) from None
    if not _fits(name, mechanism):
        log.debug("%s of the JVM is for another mechanism than %s", LOGIN_CONFIG, mechanism)
        return None
    log.info("user and password, or token, by %s of the JVM: %s", LOGIN_CONFIG, path)
    return _login_module(text, f"the JVM's {LOGIN_CONFIG}={path}")


def _fits(module: str, mechanism: str) -> bool:
    wanted = MODULES.get(mechanism)
    if module == _AWS_MODULE and mechanism == "OAUTHBEARER":
        return True
    # In Java either of these does no more than hand over user and password.
    users = {_PLAIN_MODULE, _SCRAM_MODULE}
    return module == wanted or (module in users and wanted in users)


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
        raise OptionError(f"{JAAS} cannot be read: {error}") from None
    if module.name not in MODULES.values():
        # Its name is not shown: in a garbled text it may be a secret.
        raise OptionError(
            f"{JAAS} names a login module that is not here; there are "
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
        if values[one] and values[one] not in (DEFAULT_LOGIN_HANDLER, *ENDPOINT_HANDLERS):
            raise OptionError(f"{name_of(one)} is for OAUTHBEARER, and sasl.mechanism={mechanism}")
    _pass_over(_ENDPOINT_OPTIONS + _KERBEROS_OPTIONS, values, name_of, mechanism)
    username, password = values["username"], values["password"]
    token_auth = False
    if module is not None:
        given = [name_of(one) for one in ("username", "password") if values[one]]
        if given:
            raise OptionError(f"{given[0]} and {JAAS} exclude each other: remove one")
        username = module.options.get("username", "")
        password = Secret(module.options.get("password", ""))
        token_auth = _is_true(module, "tokenauth")
        if token_auth and mechanism == "PLAIN":
            raise OptionError(f"tokenauth=true in {JAAS} is for SCRAM")
    if not username or not password:
        what = "user" if not username else "password"
        raise OptionError(
            f"sasl.mechanism={mechanism} needs a {what}: set sasl.username and sasl.password, or "
            f"{JAAS} with username and password"
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
    _pass_over(_KERBEROS_OPTIONS, values, name_of, mechanism)
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
        oauth = msk_settings(oauth_timing(values), options, servers)
    elif handler in (STRIMZI_HANDLER, GOOGLE_HANDLER):
        if values["oauth_token"]:
            raise OptionError(f"{name_of('oauth_token')} and {handler} exclude each other")
        _pass_over(_ENDPOINT_OPTIONS, values, name_of, f"OAUTHBEARER of {handler}")
        if handler == STRIMZI_HANDLER:
            oauth = strimzi_settings(options.options, JAAS, oauth_timing(values))
        elif options.options:
            raise OptionError(f"{JAAS} has options, and {handler} takes none")
        else:
            oauth = OAuthSettings(method=GOOGLE, **oauth_timing(values))
    else:
        oauth = oauth_settings(values, name_of, options)
    return SaslChoice(mechanism="OAUTHBEARER", oauth=oauth)


def _ticket(values: Mapping[str, Any], name_of: Names, module: LoginModule | None) -> SaslChoice:
    """As in Java's Krb5LoginModule and KerberosLogin; the options of librdkafka without one."""
    for one in ("username", "password", "oauth_token"):
        if values[one]:
            raise OptionError(f"{name_of(one)} is not for sasl.mechanism=GSSAPI: remove it")
    if values["login_callback"] not in ("", DEFAULT_LOGIN_HANDLER, *ENDPOINT_HANDLERS):
        raise OptionError(f"{CALLBACK_OPTION} is not for sasl.mechanism=GSSAPI: remove it")
    _pass_over(_ENDPOINT_OPTIONS, values, name_of, "GSSAPI")
    keytab, principal = values["kerberos_keytab"], values["kerberos_principal"]
    service, cache, use_cache = values["kerberos_service_name"], "", not keytab
    if module is not None:
        given = [name_of(one) for one in _KERBEROS_OPTIONS[1:] if values[one]]
        if given:
            raise OptionError(f"{given[0]} and {JAAS} exclude each other: remove one")
        principal = module.options.get("principal", "")
        named = module.options.get("serviceName", "")
        if named and service and named != service:
            raise OptionError(
                f"{name_of('kerberos_service_name')}={service}, and {JAAS} has "
                f"serviceName={named}: remove one"
            )
        service = service or named
        use_cache = _is_true(module, "useTicketCache")
        if use_cache:
            cache = _path(module.options.get("ticketCache", ""))
        if _is_true(module, "useKeyTab"):
            keytab = _path(module.options.get("keyTab", ""))
            if not keytab:
                raise OptionError(f"{JAAS} has useKeyTab=true without keyTab: name the file")
        elif not use_cache:
            raise OptionError(
                f"{JAAS} has Krb5LoginModule, which would ask for a password: add "
                'useKeyTab=true keyTab="…" principal="…", or useTicketCache=true'
            )
    if keytab and not principal:
        what = f"principal in {JAAS}" if module is not None else "sasl.kerberos.principal"
        raise OptionError(f"a keytab holds keys of several names: set {what}")
    kerberos = KerberosSettings(
        service_name=service or "kafka",
        principal=principal,
        keytab=keytab,
        ticket_cache=cache,
        prefer_cache=use_cache,
    )
    return SaslChoice(mechanism="GSSAPI", username=principal, kerberos=kerberos)


def _is_true(module: LoginModule, name: str) -> bool:
    return module.options.get(name, "").lower() == "true"


def _path(text: str) -> str:
    """Of a file, which Java also takes as a URL."""
    return text[5:] if text[:5].lower() == "file:" else text


def _pass_over(
    fields: Iterable[str], values: Mapping[str, Any], name_of: Names, mechanism: str
) -> None:
    """Java never looks at these for this mechanism, and jobs carry them along."""
    given = [name_of(one) for one in fields if values[one]]
    if given:
        log.debug("no effect with sasl.mechanism=%s: %s", mechanism, _listed(given))


def _listed(names: Any) -> str:
    return ", ".join(names)
