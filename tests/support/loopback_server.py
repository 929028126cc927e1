"""An HTTP or HTTPS server on loopback whose answers a test sets: the base of the tests' servers."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.support.certificates import Identity, signed


@dataclass(frozen=True)
class Request:
    """One request, as the server received it."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def basic(self) -> str:
        """The decoded content of `Authorization: Basic`."""
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        return base64.b64decode(text).decode() if kind == "Basic" else ""


@dataclass(frozen=True)
class HttpResponse:
    """What to answer instead. `body` is JSON unless it is bytes.

    `wait`: hold the response back until this event. `drip`: send the body byte by byte, without
    end.
    """

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    hang_up: bool = False
    drip: bool = False


class LoopbackServer:
    """Each request takes the next of `responses`, or else what `respond` makes. `requests` has all.

    By TLS with a certificate that `authority` signs, or with a `context` of the test's own.
    """

    content_type: ClassVar = "application/json"

    def __init__(
        self,
        authority: Identity | None,
        path: str = "",
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Any] = []
        self.responses: list[HttpResponse] = []
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if authority is not None:
            with tempfile.TemporaryDirectory() as folder:
                context = signed("server", authority, hosts=hosts).server_context(Path(folder))
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}{path}"
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
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def understand(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        """The request as `respond` and `requests` have it."""
        raise NotImplementedError

    def respond(self, request: Any) -> HttpResponse:
        """The usual response."""
        raise NotImplementedError

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", "0")))
                request = outer.understand(self.command, self.path, headers, body)
                outer.requests.append(request)
                response = outer.responses.pop(0) if outer.responses else outer.respond(request)
                if response.wait is not None:
                    response.wait.wait(30)
                if response.hang_up:
                    self.close_connection = True
                    return
                content = response.body
                if not isinstance(content, bytes):
                    content = json.dumps(content).encode()
                self.send_response(response.status)
                fields = {"content-type": outer.content_type}
                fields["content-length"] = str(10**6 if response.drip else len(content))
                for name, value in (fields | dict(response.headers)).items():
                    self.send_header(name, value)
                self.end_headers()
                while response.drip and not outer.over.wait(0.02):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                self.wfile.write(content)

            do_GET = do_POST

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # a client that goes away is what some tests are about
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
