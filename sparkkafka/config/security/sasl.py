"""The mechanism that the sasl.* settings choose, and its user, Kerberos name or source of tokens.

A user is in sasl.username and sasl.password (librdkafka) or in sasl.jaas.config (Java). What is set
twice is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from sparkkafka.config.kinds import LOGIN_CALLBACK_OPTION, MECHANISMS
from sparkkafka.config.security import java
from sparkkafka.config.security.oauth import (
    google_settings,
    msk_settings,
    oauth_settings,
    strimzi_settings,
)
from sparkkafka.config.security.references import ResolvedValues, resolve_references
from sparkkafka.config.security.settings import KerberosSettings, SaslChoice
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

log = logging.getLogger(__name__)

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


def sasl_choice(values: ResolvedValues, servers: tuple[tuple[str, int], ...]) -> SaslChoice:
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
    for field in ("oauth_token", "login_callback"):
        if values[field] and values[field] not in (
            java.DEFAULT_LOGIN_HANDLER,
            *java.ENDPOINT_HANDLERS,
        ):
            raise OptionError(
                f"{values.name_of(field)} is for OAUTHBEARER, and sasl.mechanism={mechanism}"
            )
    _log_unused(_ENDPOINT_FIELDS + _KERBEROS_FIELDS, values, mechanism)
    username, password = values["username"], values["password"]
    token_auth = False
    if module is not None:
        names = [values.name_of(field) for field in ("username", "password") if values[field]]
        if names:
            raise OptionError(f"{names[0]} and {java.JAAS} exclude each other: remove one")
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
    mechanism: str,
    values: ResolvedValues,
    module: java.LoginModule | None,
    servers: tuple[tuple[str, int], ...],
) -> SaslChoice:
    """Choose the source of tokens for OAUTHBEARER or AWS_MSK_IAM. Raises OptionError."""
    for field in ("username", "password"):
        if values[field]:
            raise OptionError(
                f"{values.name_of(field)} is for PLAIN and SCRAM, and sasl.mechanism={mechanism}"
            )
    _log_unused(_KERBEROS_FIELDS, values, mechanism)
    handler = values["login_callback"]
    jaas = module or java.LoginModule("", {})
    is_aws = (
        mechanism == "AWS_MSK_IAM"
        or handler == java.AWS_LOGIN_HANDLER
        or (module is not None and module.name == "IAMLoginModule")
    )
    if is_aws:
        if values["oauth_token"]:
            raise OptionError(
                f"{values.name_of('oauth_token')} is not for tokens of AWS: remove it"
            )
        _log_unused(_ENDPOINT_FIELDS, values, "AWS_MSK_IAM")
        if handler not in ("", java.AWS_LOGIN_HANDLER, java.DEFAULT_LOGIN_HANDLER):
            raise OptionError(
                f"{LOGIN_CALLBACK_OPTION} is not for sasl.mechanism=AWS_MSK_IAM: remove it"
            )
        oauth = msk_settings(values, jaas, servers)
    elif handler in (java.STRIMZI_HANDLER, java.GOOGLE_HANDLER):
        if values["oauth_token"]:
            raise OptionError(f"{values.name_of('oauth_token')} and {handler} exclude each other")
        _log_unused(_ENDPOINT_FIELDS, values, f"OAUTHBEARER of {handler}")
        if handler == java.STRIMZI_HANDLER:
            oauth = strimzi_settings(values, jaas)
        elif jaas.options:
            raise OptionError(f"{java.JAAS} has options, and {handler} takes none")
        else:
            oauth = google_settings(values)
    else:
        oauth = oauth_settings(values, jaas)
    return SaslChoice(mechanism="OAUTHBEARER", oauth=oauth)


def _kerberos_choice(values: ResolvedValues, module: java.LoginModule | None) -> SaslChoice:
    """Choose the source of the Kerberos ticket by Krb5LoginModule's options, as Java does, or
    without that module by librdkafka's options. Raises OptionError."""
    for field in ("username", "password", "oauth_token"):
        if values[field]:
            raise OptionError(
                f"{values.name_of(field)} is not for sasl.mechanism=GSSAPI: remove it"
            )
    if values["login_callback"] not in ("", java.DEFAULT_LOGIN_HANDLER, *java.ENDPOINT_HANDLERS):
        raise OptionError(f"{LOGIN_CALLBACK_OPTION} is not for sasl.mechanism=GSSAPI: remove it")
    _log_unused(_ENDPOINT_FIELDS, values, "GSSAPI")
    keytab, principal = values["kerberos_keytab"], values["kerberos_principal"]
    service, ticket_cache, use_cache = values["kerberos_service_name"], "", not keytab
    if module is not None:
        fields = ("kerberos_keytab", "kerberos_principal")
        names = [values.name_of(field) for field in fields if values[field]]
        if names:
            raise OptionError(f"{names[0]} and {java.JAAS} exclude each other: remove one")
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


def _log_unused(fields: Iterable[str], values: ResolvedValues, mechanism: str) -> None:
    """Log options of other mechanisms, which many jobs set. Java ignores them too."""
    names = [values.name_of(field) for field in fields if values[field]]
    if names:
        log.debug("no effect with sasl.mechanism=%s: %s", mechanism, ", ".join(names))
