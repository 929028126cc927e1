"""A server that says what a script tells it to, whatever it is asked."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from sparkkafka.protocol.framing import ServerRequest, decode_request, encode_response
from sparkkafka.protocol.messages import (
    ApiVersion,
    ApiVersionsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

LISTEN_S = 30.0
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA = 18, 17, 36, 3
OFFERED = [
    ApiVersion(api_key=key, min_version=0, max_version=version)
    for key, version in ((API_VERSIONS, 3), (SASL_HANDSHAKE, 1), (SASL_AUTHENTICATE, 2))
] + [ApiVersion(api_key=METADATA, min_version=4, max_version=12)]


class Gone(Exception):
    """The client has closed the connection."""


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self) -> ServerRequest:
        """The next request."""
        size = int.from_bytes(self._read(4), "big")
        return decode_request(self._read(size))

    def respond(self, request: ServerRequest, response: Any) -> None:
        self.say(encode_response(response, request.version, request.correlation_id))

    def greet(self) -> None:
        """Answer the question for versions, as a broker does."""
        request = self.ask()
        assert request.api_key == API_VERSIONS
        self.respond(request, ApiVersionsResponse(api_keys=OFFERED))

    def shake(self, *mechanisms: str) -> None:
        """The same, and offer mechanisms."""
        self.greet()
        request = self.ask()
        assert request.api_key == SASL_HANDSHAKE
        self.respond(request, SaslHandshakeResponse(mechanisms=list(mechanisms)))

    def step(self, say: bytes | Callable[[bytes], bytes], **more: Any) -> None:
        """One round of authentication."""
        request = self.ask()
        assert request.api_key == SASL_AUTHENTICATE
        auth_bytes = say(bytes(request.message.auth_bytes)) if callable(say) else say
        self.respond(request, SaslAuthenticateResponse(auth_bytes=auth_bytes, **more))

    def wait(self) -> None:
        """Say nothing until the client goes."""
        while self.sock.recv(65536):
            pass

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(min(size - len(data), 65536))
            if not more:
                raise Gone
            data += more
        return data


class HostileServer:
    """Runs `script(peer)` for each connection, one at a time, and closes it then. A context
    manager; `connections` counts them. What a script does wrong, leaving it raises."""

    def __init__(self, script: Callable[[Peer], None], tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept)
        self.connections = 0
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._acceptor.join(LISTEN_S)
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LISTEN_S)
            assert not thread.is_alive()
        self._listener.close()
        if self._failures and error is None:
            raise self._failures[0]

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            sock.settimeout(LISTEN_S)
            self._open.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            try:
                if self._tls is not None:
                    sock = stack.enter_context(self._tls.wrap_socket(sock, server_side=True))
                self._script(Peer(sock))
            except (OSError, Gone):
                pass
            except BaseException as error:
                self._failures.append(error)
