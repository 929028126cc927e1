"""Authentication: SaslHandshake, SaslAuthenticate."""

from __future__ import annotations

from sparkkafka.protocol.wire.schema import (
    STRING,
    Request,
    Response,
    array,
    bytes_,
    int16,
    int64,
    nullable_string,
    request,
    response,
    string,
)


@request(api_key=17, versions=(0, 1), flexible=None, kafka="2.1:1")
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Chooses a mechanism. After a handshake of version 0 the tokens are sent without Kafka's
    framing, so clients send version 1."""

    mechanism: str = string()


@response(SaslHandshakeRequest)
class SaslHandshakeResponse(Response):
    """The mechanisms that the listener has."""

    error_code: int = int16()
    mechanisms: list[str] = array(STRING)


@request(api_key=36, versions=(0, 2), flexible=2, kafka="2.1:0 2.2:1 2.5:2")
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """One step of the mechanism, from the client. Its repr does not show the bytes."""

    auth_bytes: bytes = bytes_(secret=True)


@response(SaslAuthenticateRequest)
class SaslAuthenticateResponse(Response):
    """One step from the broker; a session lasts `session_lifetime_ms`, 0 for ever (KIP-368)."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    auth_bytes: bytes = bytes_(secret=True)
    session_lifetime_ms: int = int64(since=1, ignorable=True)
