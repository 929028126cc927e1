"""An OAuth token endpoint on loopback, over HTTPS or HTTP, that gives out JWTs and can misbehave.

with TokenServer(authority) as tokens:
    tokens.url, tokens.requests, tokens.answers.append(HttpResponse(503))
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.certificates import Identity
from tests.support.loopback_server import HttpResponse, LoopbackServer, Request

KEY_ID = "test-key"
ISSUER = "https://issuer.example"
AUDIENCE = "kafka"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Signer:
    """Makes tokens, and the file by which brokers know that they are from here."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)

    def jwks(self) -> str:
        numbers = self._key.public_key().public_numbers()
        row = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID}
        for name, number in (("n", numbers.n), ("e", numbers.e)):
            row[name] = base64url(number.to_bytes((number.bit_length() + 7) // 8))
        return json.dumps({"keys": [row]})

    def token(self, subject: str, life_s: float = 3600.0, **claims: Any) -> str:
        now_s = int(time.time())
        body = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "iat": now_s,
            "exp": now_s + int(life_s),
            "scope": "kafka",
        }
        head = {"alg": "RS256", "kid": KEY_ID, "typ": "JWT"}
        parts = [base64url(json.dumps(part).encode()) for part in (head, body | claims)]
        signature = self._key.sign(".".join(parts).encode(), padding.PKCS1v15(), hashes.SHA256())
        return ".".join([*parts, base64url(signature)])


@dataclass(frozen=True)
class TokenRequest(Request):
    """The two parts of `basic` are URL-encoded still."""

    form: Mapping[str, list[str]]


class TokenServer(LoopbackServer):
    """Answers POST with a token for the client id of the Basic header; a context manager.

    `secrets`: the clients and their secrets, anybody if None.
    """

    def __init__(
        self,
        authority: Identity | None,
        signer: Signer | None = None,
        *,
        life_s: float = 3600.0,
        secrets: Mapping[str, str] | None = None,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
    ) -> None:
        self.signer = signer or Signer()
        self.life_s = life_s
        self.secrets = secrets
        super().__init__(authority, "/token", hosts)

    def understand(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> TokenRequest:
        return TokenRequest(method, path, headers, parse_qs(body.decode(), keep_blank_values=True))

    def respond(self, request: TokenRequest) -> HttpResponse:
        client_id, _, secret = request.basic.partition(":")
        if self.secrets is not None and self.secrets.get(client_id) != secret:
            body = {"error": "invalid_client", "error_description": "no such client"}
            return HttpResponse(401, body)
        token = self.signer.token(client_id, self.life_s)
        return HttpResponse(
            200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.life_s)}
        )


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; fails if it does not come."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
