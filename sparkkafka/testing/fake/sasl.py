"""SASL PLAIN at a fake broker: who may speak, and how long a session lasts (KIP-368).

A listener with `users` closes a connection on which anything but ApiVersions comes before the user
is authenticated, and one whose session is over; brokers do it without a word as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from sparkkafka.testing.fake.faults import RecordedRequest

MECHANISM = "PLAIN"
_BEFORE = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")


class FakeSasl:
    """`users` are passwords by name; None is a listener without SASL. `session_ms` 0: no end.

    `attempts` counts the user names with which somebody tried.
    """

    def __init__(self, users: Mapping[str, str] | None = None, session_ms: int = 0) -> None:
        self.users = users
        self.session_ms = session_ms
        self.attempts: list[str] = []
        self._ends_s: dict[int, float] = {}  # by connection

    def closes(self, request: RecordedRequest) -> bool:
        """Whether this request ends its connection."""
        if self.users is None or request.api in _BEFORE:
            return False
        ends_s = self._ends_s.get(request.connection)
        return ends_s is None or time.monotonic() > ends_s

    def handshake(self, mechanism: str) -> SaslHandshakeResponse:
        if self.users is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        code = ErrorCode.NONE if mechanism == MECHANISM else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=[MECHANISM])

    def authenticate(self, auth_bytes: bytes, connection: int) -> SaslAuthenticateResponse:
        _, _, rest = bytes(auth_bytes).partition(b"\0")
        name, _, password = (part.decode() for part in rest.partition(b"\0"))
        self.attempts.append(name)
        if (self.users or {}).get(name) != password:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed: Invalid username or password",
            )
        lifetime_s = self.session_ms / 1000 or float("inf")
        self._ends_s[connection] = time.monotonic() + lifetime_s
        return SaslAuthenticateResponse(session_lifetime_ms=self.session_ms)
