"""An OAuth token endpoint on loopback, over HTTPS or HTTP, that gives out JWTs and can misbehave.

with TokenServer(authority) as tokens:
    tokens.url, tokens.asked, tokens.answers.append(Answer(503))
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.certificates import Identity, signed

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
class Asked:
    """One request, as the server saw it."""

    method: str
    path: str
    headers: Mapping[str, str]
    form: Mapping[str, list[str]]

    @property
    def basic(self) -> str:
        """What `Authorization: Basic` holds, decoded once: the two parts are URL-encoded still."""
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        return base64.b64decode(text).decode() if kind == "Basic" else ""


@dataclass(frozen=True)
class Answer:
    """What to answer instead of a token. `body` is JSON unless it is bytes."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    """Waited for before the answer: a server that is slow, until the test lets it go on."""
    hang_up: bool = False


class TokenServer:
    """Answers POST with a token for the client id of the Basic header; a context manager.

    `answers` are used up first, one a request. `asked` has all requests. `secrets`: the clients
    and their secrets, anybody if None.
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
        self.asked: list[Asked] = []
        self.answers: list[Answer] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        scheme = "http"
        if authority is not None:
            scheme = "https"
            self._server.socket = _context(
                signed("token server", authority, hosts=hosts)
            ).wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}/token"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def respond(self, asked: Asked) -> Answer:
        """The usual answer."""
        client_id, _, secret = asked.basic.partition(":")
        if self.secrets is not None and self.secrets.get(client_id) != secret:
            words = {"error": "invalid_client", "error_description": "no such client"}
            return Answer(401, words)
        token = self.signer.token(client_id, self.life_s)
        return Answer(
            200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.life_s)}
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", "0"))
                form = parse_qs(self.rfile.read(size).decode(), keep_blank_values=True)
                self.answer(form)

            def do_GET(self) -> None:
                self.answer({})

            def answer(self, form: Mapping[str, list[str]]) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, form)
                outer.asked.append(asked)
                answer = outer.answers.pop(0) if outer.answers else outer.respond(asked)
                if answer.wait is not None:
                    answer.wait.wait(30)
                if answer.hang_up:
                    self.close_connection = True
                    return
                body = answer.body
                if not isinstance(body, bytes):
                    body = json.dumps(body).encode()
                self.send_response(answer.status)
                given = {"content-type": "application/json", "content-length": str(len(body))}
                for name, value in (given | dict(answer.headers)).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # a client that goes away is what some tests are about
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


def _context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.pem")
        path.write_text(identity.pem + identity.key_pem())
        context.load_cert_chain(path)
    return context


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; fails if it does not come."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
