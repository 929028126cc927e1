"""Options of Strimzi's OAuth library for Java, as settings of our own way to a token.

They stand in sasl.jaas.config beside JaasClientOauthLoginCallbackHandler. As there, an environment
variable of the name (OAUTH_CLIENT_ID for oauth.client.id) comes before the option.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from sparkkafka.config.security.settings import (
    CLIENT_CREDENTIALS,
    GIVEN_TOKEN,
    TOKEN_FILE,
    OAuthSettings,
    Store,
    TlsSettings,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

_EXTENSION: Final = "oauth.sasl.extension."
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
# What they say is done in any case, or has no part in what a broker is told.
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
# Other grants. What asks for one is never passed over: it says who the client is.
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


def strimzi_settings(
    options: Mapping[str, str], place: str, timing: dict[str, Any]
) -> OAuthSettings:
    """Raises OptionError, which names the option, and never a value."""
    given = dict(options)
    for name in (*_USED, *_GRANTS):
        from_environment = os.environ.get(name.upper().replace(".", "_"))
        if from_environment is not None:
            given[name] = from_environment
    extensions = tuple(
        (name.removeprefix(_EXTENSION), given.pop(name))
        for name in list(given)
        if name.startswith(_EXTENSION)
    )
    for name in given:
        if name in _GRANTS and (name, given[name]) != (_GRANTS[-1], "client_credentials"):
            raise OptionError(
                f"{name} in {place} asks for a grant that is not here: a token comes from "
                f"{_ID} and {_SECRET}, {_TOKEN} or {_TOKEN_FILE}; for others write a function, and "
                "name it in sasl.login.callback.handler.class"
            )
        if name not in (*_USED, *_UNNEEDED, *_GRANTS):
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{place} has an option that is unknown to Strimzi's handler; there are "
                f"{', '.join(_USED)}"
            )
    for name, unit in (("connect", "connect_timeout_ms"), ("read", "read_timeout_ms")):
        timing[unit] = _ms(given, f"oauth.{name}.timeout.seconds", place, timing[unit])
    common = timing | {"extensions": extensions}
    if _TOKEN_FILE in given:
        return OAuthSettings(method=TOKEN_FILE, token_path=given[_TOKEN_FILE], **common)
    if _TOKEN in given:
        return OAuthSettings(method=GIVEN_TOKEN, token=Secret(given[_TOKEN]), **common)
    for name in (_URL, _ID, _SECRET):
        if not given.get(name):
            raise OptionError(
                f"{place} needs {name} (or {_TOKEN}, or {_TOKEN_FILE}) for Strimzi's handler"
            )
    return OAuthSettings(
        method=CLIENT_CREDENTIALS,
        token_endpoint_url=given[_URL],
        client_id=given[_ID],
        client_secret=Secret(given[_SECRET]),
        scope=given.get("oauth.scope", ""),
        audience=given.get("oauth.audience", ""),
        tls=TlsSettings(
            truststore=Store(
                f"{_TRUSTSTORE}location in {place}",
                given.get(f"{_TRUSTSTORE}location", ""),
                Secret(given.get(f"{_TRUSTSTORE}certificates", "")),
                Secret(given.get(f"{_TRUSTSTORE}password", "")),
            ),
            check_hostname=_is_checked(given, place),
        ),
        **common,
    )


def _ms(given: Mapping[str, str], name: str, place: str, default_ms: int) -> int:
    text = given.get(name)
    if text is None:
        return default_ms
    if not (text.isdecimal() and text.isascii() and 0 < int(text) < 1_000_000):
        raise OptionError(f"{name} in {place} must be a whole number of seconds")
    return int(text) * 1000


def _is_checked(given: Mapping[str, str], place: str) -> bool:
    name = "oauth.ssl.endpoint.identification.algorithm"
    word = given.get(name, "HTTPS").upper()
    if word not in ("HTTPS", ""):
        raise OptionError(f"{name} in {place} must be HTTPS or empty")
    return word == "HTTPS"
