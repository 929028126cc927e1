"""Authentication on a connection whose broker is a script."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterable
from typing import Any

import pytest

from sparkkafka.client.auth.sasl import SaslSettings, SessionLifetime, authenticate
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from sparkkafka.secret import Secret, SecretBytes
from tests.support.frames import variables_of

HUSH = Secret("hush")
PLAIN = SaslSettings("PLAIN", "alice", HUSH)
OFFERED = SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-512"])


class Script:
    """A connection that answers what it is told to, and notes what it was asked."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.asked: list[Any] = []

    def __str__(self) -> str:
        return "broker:9092"

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any:
        self.asked.append((request, version))
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def said(auth_bytes: bytes = b"", lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=auth_bytes, session_lifetime_ms=lifetime_ms)


def refused(code: ErrorCode, words: str | None) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=words)


def run(script: Script, settings: SaslSettings = PLAIN) -> SessionLifetime | None:
    return authenticate(script, settings, Deadline(10_000), "")  # type: ignore[arg-type]


def failure(responses: Iterable[Any], settings: SaslSettings, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        run(Script(*responses), settings)
    assert "hush" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "echoed"),
    [
        (PLAIN, "no \0alice\0hush, alice"),
        (SaslSettings("OAUTHBEARER", token=lambda _: Secret("hush.hush==")), "got hush.hush=="),
    ],
)
def test_a_broker_that_repeats_the_secret_does_not_bring_it_into_the_message(
    settings: SaslSettings, echoed: str
) -> None:
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    responses = [OFFERED, refused(code, echoed + " x" * 5_000)]
    text = failure(responses, settings, AuthenticationError)
    assert "[hidden]" in text
    assert len(text) < 500
    assert ("alice" in text) == (settings is PLAIN)


def test_plain_is_one_round() -> None:
    script = Script(OFFERED, said())
    assert run(script) is None
    assert script.asked == [
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=b"\0alice\0hush"), None),
    ]


def test_a_session_that_ends_is_renewed_before_it_does() -> None:
    now_s = time.monotonic()
    session = run(Script(OFFERED, said(lifetime_ms=100_000)))
    assert session is not None
    assert (
        now_s + 80 < session.reauthenticate_at_s < session.forced_reauthenticate_at_s < now_s + 100
    )


def test_a_session_does_not_begin_before_its_token_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a token service as slow as a session would let each request authenticate again."""
    now_s = time.monotonic()

    def fetch(_: Deadline) -> Secret:
        monkeypatch.setattr(time, "monotonic", lambda: now_s + 500)
        return Secret("hush")

    settings = SaslSettings("OAUTHBEARER", token=fetch)
    session = authenticate(Script(OFFERED, said(lifetime_ms=100_000)), settings, Deadline(1e6), "")
    assert session is not None
    assert session.reauthenticate_at_s > now_s + 580


def test_a_session_is_not_renewed_before_brokers_allow_it() -> None:
    now_s = time.monotonic()
    session = run(Script(OFFERED, said(lifetime_ms=100)))
    assert session is not None
    assert session.reauthenticate_at_s > now_s + 1


def test_a_token_is_fetched_anew_for_each_conversation() -> None:
    tokens = iter(["one", "two"])
    settings = SaslSettings("OAUTHBEARER", token=lambda _: Secret(next(tokens)))
    script = Script(OFFERED, said(), OFFERED, said())
    run(script, settings)
    run(script, settings)
    sent = [request.auth_bytes for request, version in script.asked if version is None]
    assert sent == [b"n,,\x01auth=Bearer one\x01\x01", b"n,,\x01auth=Bearer two\x01\x01"]


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        (
            [
                SaslHandshakeResponse(
                    error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["GSSAPI"]
                )
            ],
            "broker:9092: this listener has no SASL mechanism PLAIN, but GSSAPI",
        ),
        (
            [SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)],
            "this listener does not use SASL",
        ),
        ([UnsupportedVersionError("no SaslHandshake")], "this listener does not support SASL"),
        (
            [
                OFFERED,
                refused(ErrorCode.SASL_AUTHENTICATION_FAILED, "Invalid username or password"),
            ],
            "authentication with PLAIN as user alice failed: Invalid username or password",
        ),
        (
            [OFFERED, refused(ErrorCode.SASL_AUTHENTICATION_FAILED, None)],
            "alice failed: the broker does not say why",
        ),
    ],
)
def test_refusals(responses: list[Any], message: str) -> None:
    assert message in failure(responses, PLAIN, AuthenticationError)


def test_a_broker_that_hangs_up() -> None:
    responses = [OFFERED, KafkaConnectionError("broker:9092: the broker closed the connection")]
    words = failure(responses, PLAIN, KafkaConnectionError)
    assert "during authentication with PLAIN as user alice" in words


def test_another_error_keeps_its_code() -> None:
    for responses in (
        [SaslHandshakeResponse(error_code=-1)],
        [OFFERED, refused(ErrorCode.UNKNOWN_SERVER_ERROR, "x")],
    ):
        failure(responses, PLAIN, BrokerError)


def test_a_server_that_cheats_at_scram() -> None:
    words = failure(
        [OFFERED, said(b"r=mine,s=QQ==,i=4096")],
        SaslSettings("SCRAM-SHA-512", "alice", HUSH),
        AuthenticationError,
    )
    assert words == "broker:9092: SCRAM-SHA-512: the server does not answer to our nonce"


def test_a_conversation_without_end() -> None:
    class Endless(SaslSettings):
        def begin_conversation(self, deadline: Deadline) -> Any:
            def go_on() -> Any:
                while True:
                    yield SecretBytes(b"more")

            return go_on()

    script = Script(OFFERED, *[said() for _ in range(8)])
    with pytest.raises(AuthenticationError, match="did not end after 8 rounds"):
        run(script, Endless("PLAIN"))
    assert script.responses == []


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", ""])
def test_a_mechanism_that_is_not_here(mechanism: str) -> None:
    words = failure([OFFERED], SaslSettings(mechanism), AuthenticationError)
    assert f"the SASL mechanism {mechanism} is not supported" in words


def test_settings_hide_the_password() -> None:
    assert "hush" not in f"{PLAIN} {PLAIN!r}"
    assert "alice" in repr(PLAIN)


# --- variables of frames -------------------------------------------------------------------------


def scram_first(request: Any) -> SaslAuthenticateResponse:
    mine = request.auth_bytes.partition(b",r=")[2]
    return said(b"r=" + mine + b"theirs,s=c2FsdA==,i=4096")


class Talk(Script):
    """A script whose responses may be made of what was asked."""

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any:
        response = super().call(request, deadline, version=version)
        return response(request) if callable(response) else response


SALTED = hashlib.pbkdf2_hmac("sha256", b"hush", b"salt", 4096)
KEYS = [hmac.digest(SALTED, name, "sha256") for name in (b"Client Key", b"Server Key")]
SCRAM = SaslSettings("SCRAM-SHA-256", "alice", HUSH)
OAUTH = SaslSettings("OAUTHBEARER", token=lambda _: Secret("hush"))
REFUSED = refused(ErrorCode.SASL_AUTHENTICATION_FAILED, "no")
BROKEN = KafkaConnectionError("broker:9092: the broker closed the connection")


@pytest.mark.parametrize(
    ("settings", "responses"),
    [
        (PLAIN, [REFUSED]),
        (PLAIN, [BROKEN]),
        (SaslSettings("PLAIN", "alice", Secret("hush\0")), []),
        (SaslSettings("PLAIN", "alice", Secret("hush\udcff")), []),
        (OAUTH, [REFUSED]),
        (OAUTH, [BROKEN]),
        (OAUTH, [said(b'{"status":"invalid_token"}'), said()]),
        (SaslSettings("OAUTHBEARER", token=OAUTH.token, extensions={"a_b": ""}), []),
        (SCRAM, [REFUSED]),
        (SCRAM, [scram_first, REFUSED]),
        (SCRAM, [scram_first, said(b"e=invalid-proof")]),
        (SCRAM, [scram_first, said(b"v=" + base64.b64encode(bytes(32)))]),
        (SaslSettings("SCRAM-SHA-256", "alice", Secret("hush\udcff")), [scram_first]),
    ],
)
def test_no_variable_of_a_frame_has_a_secret(settings: SaslSettings, responses: list[Any]) -> None:
    with pytest.raises((AuthenticationError, KafkaConnectionError)) as caught:
        run(Talk(OFFERED, *responses), settings)
    seen = variables_of(caught.value)
    assert "authenticate: settings" in seen
    assert "hush" not in seen
    for key in (SALTED, *KEYS):
        assert repr(key)[2:-1] not in seen


def test_a_strangers_message_does_not_color_the_terminal() -> None:
    for settings, responses in (
        (OAUTH, [said(b"\x1b[31m"), said()]),
        (SCRAM, [scram_first, said(b"e=\x1b[31m")]),
        (SCRAM, [said(b"m=\x1b[31m")]),
        (SCRAM, [lambda asked: said(scram_first(asked).auth_bytes[:-4] + b"\x1b[31m")]),
    ):
        with pytest.raises(AuthenticationError) as caught:
            run(Talk(OFFERED, *responses), settings)
        assert str(caught.value).isprintable()
        assert "[31m" in str(caught.value)
