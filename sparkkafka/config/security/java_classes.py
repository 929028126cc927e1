"""Java's classes that settings may name, and what each stands for here.

No Java class runs here. A class whose work is done here is taken for that work; Java's defaults,
spelled out, mean nothing else. Platforms move classes into packages of their own (Databricks:
kafkashaded.org.apache.kafka…, shadedmskiam.software.amazon…), so what stands before a known name
does not count.
"""

from __future__ import annotations

from typing import Final

_SECURITY: Final = "org.apache.kafka.common.security."
_OAUTH: Final = f"{_SECURITY}oauthbearer."
_AWS: Final = "software.amazon.msk.auth.iam."
_PROVIDER: Final = "org.apache.kafka.common.config.provider."

AWS_LOGIN_HANDLER: Final = f"{_AWS}IAMOAuthBearerLoginCallbackHandler"
AWS_CLIENT_HANDLER: Final = f"{_AWS}IAMClientCallbackHandler"

DEFAULT_LOGIN_HANDLER: Final = f"{_SECURITY}authenticator.AbstractLogin$DefaultLoginCallbackHandler"
"""Java's for all but OAUTHBEARER."""

ENDPOINT_HANDLERS: Final = (
    f"{_OAUTH}OAuthBearerLoginCallbackHandler",
    f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
)
"""They get a token from an endpoint or a file, as is done here without any."""

UNSECURED_HANDLER: Final = f"{_OAUTH}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
"""Java's for OAUTHBEARER. It makes tokens that anybody can make."""

STRIMZI_HANDLER: Final = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
GOOGLE_HANDLER: Final = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"

LOGIN_HANDLERS: Final = (
    DEFAULT_LOGIN_HANDLER,
    *ENDPOINT_HANDLERS,
    AWS_LOGIN_HANDLER,
    UNSECURED_HANDLER,
    STRIMZI_HANDLER,
    GOOGLE_HANDLER,
)

CLIENT_HANDLERS: Final = (
    f"{_SECURITY}authenticator.SaslClientCallbackHandler",
    f"{_OAUTH}internals.OAuthBearerSaslClientCallbackHandler",
    AWS_CLIENT_HANDLER,
    AWS_LOGIN_HANDLER,
)
"""They hand over what a login has found: nothing is left to do."""

JWT_BEARER_RETRIEVER: Final = f"{_OAUTH}JwtBearerJwtRetriever"
"""It asks by an assertion (KIP-1139); the others by id and secret, or read a file."""

RETRIEVERS: Final = (
    f"{_OAUTH}DefaultJwtRetriever",
    f"{_OAUTH}ClientCredentialsJwtRetriever",
    f"{_OAUTH}FileJwtRetriever",
    JWT_BEARER_RETRIEVER,
)

LOGINS: Final = (f"{_SECURITY}authenticator.DefaultLogin",)
ENGINE_FACTORIES: Final = (f"{_SECURITY}ssl.DefaultSslEngineFactory",)

PROVIDERS: Final = {
    f"{_PROVIDER}EnvVarConfigProvider": "env",
    f"{_PROVIDER}FileConfigProvider": "file",
    f"{_PROVIDER}DirectoryConfigProvider": "directory",
}
"""Of config.providers: the name of the same in `references`."""


def known_class(name: str, classes: tuple[str, ...]) -> str | None:
    """Which of `classes` this is, in whatever package it lies; None for another."""
    name = name.strip()
    return next((row for row in classes if name == row or name.endswith(f".{row}")), None)
