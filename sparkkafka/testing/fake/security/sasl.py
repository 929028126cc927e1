"""SASL at a fake broker: which connections are authenticated, and for how long (KIP-368).

Like a real broker, a listener with `users` closes a connection without a response if it sends
another request than ApiVersions before it is authenticated, or after its session has expired.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from sparkkafka.testing.fake.faults import RecordedRequest
from sparkkafka.testing.fake.security.state import Credential, FakeScramUsers

PLAIN = "PLAIN"
SCRAM = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}


class _Session(NamedTuple):
    user: str
    ends_at_s: float


class _Challenge(NamedTuple):
    """The state after the first round of SCRAM (RFC 5802); `messages` are those so far."""

    user: str
    credential: Credential
    messages: bytes


class FakeSasl:
    """Authenticates connections. `users` are passwords by name, for PLAIN; None: no SASL. Users in
    `scram_users` may use SCRAM. `session_ms` is the life of a session, 0 without an end.

    `attempts` has the user name of each attempt. `mechanisms` are those of a service: a client that
    logs in with another one is refused, whether or not there are `users`.
    """

    def __init__(
        self,
        users: Mapping[str, str] | None = None,
        session_ms: int = 0,
        scram_users: FakeScramUsers | None = None,
    ) -> None:
        self.users = users
        self.session_ms = session_ms
        self.scram_users = scram_users or FakeScramUsers()
        self.attempts: list[str] = []
        self.mechanisms: tuple[str, ...] | None = None
        # By connection.
        self._mechanisms: dict[int, str] = {}
        self._challenges: dict[int, _Challenge] = {}
        self._sessions: dict[int, _Session] = {}

    def closes(self, request: RecordedRequest) -> bool:
        """Return whether the broker closes the connection because of this request."""
        before_login = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
        if self.users is None or request.api in before_login:
            return False
        session = self._sessions.get(request.connection)
        return session is None or time.monotonic() > session.ends_at_s

    def principal(self, connection: int) -> str:
        """Return the principal of a connection, User:ANONYMOUS before it is authenticated."""
        session = self._sessions.get(connection)
        return "User:ANONYMOUS" if session is None else f"User:{session.user}"

    def handshake(self, mechanism: str, connection: int) -> SaslHandshakeResponse:
        """Answer SaslHandshake, and keep the mechanism of the connection."""
        if self.users is None and self.mechanisms is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        enabled = list(self.mechanisms or (PLAIN, *(SCRAM if self.scram_users.users else ())))
        self._mechanisms[connection] = mechanism
        code = ErrorCode.NONE if mechanism in enabled else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=enabled)

    def authenticate(self, auth_bytes: bytes, connection: int) -> SaslAuthenticateResponse:
        """Answer SaslAuthenticate: PLAIN has one request, SCRAM two."""
        mechanism = self._mechanisms.get(connection, PLAIN)
        if mechanism == PLAIN:
            return self._authenticate_plain(bytes(auth_bytes), connection)
        try:
            if connection in self._challenges:
                return self._finish_scram(mechanism, bytes(auth_bytes), connection)
            return self._begin_scram(mechanism, bytes(auth_bytes), connection)
        except (KeyError, ValueError):  # a message of the client without its fields
            return _refusal(f"Authentication failed: invalid {mechanism} message")

    def _authenticate_plain(self, auth_bytes: bytes, connection: int) -> SaslAuthenticateResponse:
        """Check user and password of PLAIN."""
        _, _, rest = auth_bytes.partition(b"\0")
        name, _, password = (part.decode() for part in rest.partition(b"\0"))
        self.attempts.append(name)
        if (self.users or {}).get(name) != password:
            return _refusal("Authentication failed: Invalid username or password")
        return self._accept(name, connection)

    def _begin_scram(
        self, mechanism: str, auth_bytes: bytes, connection: int
    ) -> SaslAuthenticateResponse:
        """Answer the first message of SCRAM with salt and iterations."""
        bare = auth_bytes.split(b",", 2)[2]
        fields = _fields(bare)
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self.attempts.append(user)
        credential = self.scram_users.credential(user, SCRAM[mechanism][0])
        if credential is None:
            return _refusal("Authentication failed: invalid credentials")
        nonce = fields["r"] + secrets.token_hex(12)
        salt = base64.b64encode(credential.salt).decode()
        first = f"r={nonce},s={salt},i={credential.iterations}".encode()
        self._challenges[connection] = _Challenge(user, credential, bare + b"," + first)
        return SaslAuthenticateResponse(auth_bytes=first)

    def _finish_scram(
        self, mechanism: str, auth_bytes: bytes, connection: int
    ) -> SaslAuthenticateResponse:
        """Check the client's proof, and answer with the server's signature."""
        challenge = self._challenges.pop(connection)
        digest = SCRAM[mechanism][1]
        salted = challenge.credential.salted_password
        signed = challenge.messages + b"," + auth_bytes.rpartition(b",p=")[0]
        stored_key = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
        proof = base64.b64decode(_fields(auth_bytes)["p"])
        signature = hmac.digest(stored_key, signed, digest)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if hashlib.new(digest, client_key).digest() != stored_key:
            return _refusal("Authentication failed: invalid credentials")
        server_key = hmac.digest(salted, b"Server Key", digest)
        response = self._accept(challenge.user, connection)
        response.auth_bytes = b"v=" + base64.b64encode(hmac.digest(server_key, signed, digest))
        return response

    def _accept(self, user: str, connection: int) -> SaslAuthenticateResponse:
        """Open a session of this user on the connection."""
        lifetime_s = self.session_ms / 1000 or float("inf")
        self._sessions[connection] = _Session(user, time.monotonic() + lifetime_s)
        return SaslAuthenticateResponse(session_lifetime_ms=self.session_ms)


def _refusal(message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
    )


def _fields(message: bytes) -> dict[str, str]:
    """Return the values of a SCRAM message by their letters."""
    return {part[:1]: part[2:] for part in message.decode().split(",")}
