"""Strimzi's OAuth options."""

from __future__ import annotations

import pytest

from sparkkafka.config.security.options import secure_settings
from sparkkafka.config.security.settings import (
    OAuthSettings,
    Store,
    TlsSettings,
    TokenMethod,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.options import parse_client_options

HANDLER = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
CLIENT = {
    "oauth.token.endpoint.uri": "https://id.example/token",
    "oauth.client.id": "me",
    "oauth.client.secret": "hush",
}


def settings_of(options: dict[str, str], handler: str = HANDLER) -> OAuthSettings:
    pairs = " ".join(f'{name}="{value}"' for name, value in options.items())
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    given = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{module} required {pairs};",
        "sasl.login.callback.handler.class": handler,
    }
    found = secure_settings(parse_client_options(given).security).sasl
    assert found is not None
    assert found.oauth is not None
    return found.oauth


def test_client_credentials() -> None:
    more = {
        "oauth.scope": "s",
        "oauth.audience": "kafka",
        "oauth.ssl.truststore.location": "/ca.p12",
        "oauth.ssl.truststore.password": "hush-2",
        "oauth.ssl.truststore.type": "PKCS12",
        "oauth.connect.timeout.seconds": "3",
        "oauth.read.timeout.seconds": "4",
        "oauth.sasl.extension.traceId": "1",
        "oauth.username.claim": "preferred_username",
        "oauth.http.retries": "2",
    }
    found = settings_of(CLIENT | more)
    assert found == OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS,
        token_endpoint_url="https://id.example/token",
        client_id="me",
        client_secret=Secret("hush"),
        scope="s",
        audience="kafka",
        tls=TlsSettings(
            truststore=Store(
                "oauth.ssl.truststore.location in sasl.jaas.config",
                "/ca.p12",
                password=Secret("hush-2"),
            )
        ),
        connect_timeout_ms=3_000,
        read_timeout_ms=4_000,
        extensions=(("traceId", "1"),),
    )
    assert "hush" not in repr(found)
    unchecked = {"oauth.ssl.endpoint.identification.algorithm": ""}
    assert not settings_of(CLIENT | unchecked).tls.check_hostname


def test_tokens_as_they_are() -> None:
    given = settings_of({"oauth.access.token": "hush"})
    assert (given.method, given.token) == (TokenMethod.GIVEN_TOKEN, Secret("hush"))
    file = settings_of({"oauth.access.token.location": "/var/run/token"})
    assert (file.method, file.token_path) == (TokenMethod.TOKEN_FILE, "/var/run/token")


def test_environment_variables_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTH_CLIENT_ID", "other")
    monkeypatch.setenv("OAUTH_CLIENT_SECRET", "hush-3")
    found = settings_of(CLIENT)
    assert (found.client_id, found.client_secret) == ("other", Secret("hush-3"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs oauth.token.endpoint.uri"),
        ({**CLIENT, "oauth.client.secret": ""}, "needs oauth.client.secret"),
        ({**CLIENT, "oauth.refresh.token": "hush"}, "oauth.refresh.token in sasl.jaas.config asks"),
        (
            {**CLIENT, "oauth.password.grant.username": "hush"},
            "oauth.password.grant.username in sasl.jaas.config asks for a grant that is not",
        ),
        ({**CLIENT, "oauth.hush": "x"}, "unknown to Strimzi's handler"),
        ({**CLIENT, "oauth.read.timeout.seconds": "hush"}, "must be a whole number of seconds"),
        (
            {**CLIENT, "oauth.ssl.endpoint.identification.algorithm": "hush"},
            "must be HTTPS or empty",
        ),
    ],
)
def test_faults(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        settings_of(options)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


def test_google_takes_no_options() -> None:
    handler = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
    assert settings_of({}, handler).method is TokenMethod.GOOGLE
    with pytest.raises(OptionError, match="takes none"):
        settings_of(CLIENT, handler)
