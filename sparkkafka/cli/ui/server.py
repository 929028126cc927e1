"""The web server of `ui`: files of the page, and JSON. It reads only.

- Only GET is served. Nothing that a request says changes anything.
- A page of another site cannot read the responses: none has a CORS header, and a request whose Host
  is a foreign name (DNS rebinding) is refused.
- The page loads nothing from another host: see CSP.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from sparkkafka.errors import KafkaError, OptionError

Query = Mapping[str, str]
"""The parameters of a URL: the last value of each name."""

FILES: Final = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/logo.svg": ("logo.svg", "image/svg+xml"),
}
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
IDLE_S: Final = 10.0
"""Maximum time for which a connection may neither send nor receive, and for its whole request."""
MAX_CONNECTIONS: Final = 32
"""Maximum number of open connections, each with a thread. A browser opens six."""
BUSY: Final = b"""HTTP/1.0 503 Service Unavailable\r
Content-Type: application/json\r
Content-Length: 38\r
\r
{"error":"there are too many clients"}
"""


class NotFoundError(KafkaError):
    """A request about a topic, group or page that is not there."""


class PageServer(ThreadingHTTPServer):
    """Serves the page at an address. Use it under `with`. Raises OptionError if it cannot listen
    there."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, documents: Mapping[str, Callable[[Query], Any]]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host = host
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self.reading: dict[socket.socket, float] = {}
        """The connections whose request is incomplete, and when they were opened (monotonic)."""
        handler = partial(_Handler, documents=documents)
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            hint = ": give another --port" if error.errno == errno.EADDRINUSE else ""
            raise OptionError(
                f"cannot listen at {host} port {port}: {error.strerror or error}{hint}"
            ) from error
        self.port: int = self.server_address[1]

    def server_bind(self) -> None:
        # HTTPServer also looks up the host's name, which may take a minute.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; refuse the request if MAX_CONNECTIONS are open."""
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.send(BUSY)  # one packet, which does not wait
            self.shutdown_request(request)
            return
        self.reading[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: socket.socket) -> None:
        """Let another connection take the place of this one."""
        self.reading.pop(request, None)
        self._free.release()

    def service_actions(self) -> None:
        """Cut connections whose request is incomplete after IDLE_S. `timeout` does not end those
        that send their request byte by byte."""
        for connection, since_s in list(self.reading.items()):
            if time.monotonic() - since_s > IDLE_S:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # OSError: a browser closes connections when a page is left. Others get a traceback.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def serve(self) -> None:
        """Answer requests until an exception, such as Ctrl-C."""
        self.serve_forever(poll_interval=0.2)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/"

    def is_own_host(self, header: str | None) -> bool:
        """Return whether a Host header names this server: by an IP address, as localhost, by the
        name in --host or by this machine's name. Another name is what DNS rebinding uses."""
        try:
            parts = urlsplit(f"//{header or ''}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port or parts.username is not None or parts.path:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in {"localhost", self._host.lower(), socket.gethostname().lower()}


class _Handler(BaseHTTPRequestHandler):
    """Answers one request. `documents` makes the JSON of each path below /api/."""

    server: PageServer
    server_version, sys_version = "sparkkafka", ""
    timeout = IDLE_S

    def __init__(
        self, *arguments: Any, documents: Mapping[str, Callable[[Query], Any]], **values: Any
    ) -> None:
        self._documents = documents
        super().__init__(*arguments, **values)

    def parse_request(self) -> bool:
        """Parse the request line and headers. Then the request is complete, and the connection no
        longer closed for being slow (`reading`)."""
        is_valid = super().parse_request()
        self.server.reading.pop(self.connection, None)
        return is_valid

    def do_GET(self) -> None:
        """Send a file of the page or a JSON document, or the reason for refusing the request."""
        if not self.server.is_own_host(self.headers.get("Host")):
            self._refuse(403, "the Host header is not an address of this server")
            return
        if len(self.path) > 4_096:
            self._refuse(414, "the URL is too long")
            return
        path, _, query = self.path.partition("?")
        if path in FILES:
            name, media_type = FILES[path]
            content = files("sparkkafka.cli.ui").joinpath(name).read_bytes()
            self._respond(200, media_type, content)
            return
        document = self._documents.get(path)
        if document is None:
            self._refuse(404, f"there is no {path}")
            return
        try:
            self._response_json(200, document(dict(parse_qsl(query))))
        except NotFoundError as error:
            self._refuse(404, str(error))
        except OptionError as error:
            self._refuse(400, str(error))
        except KafkaError as error:
            self._refuse(502, str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no GET, or none at all."""
        if code == 501:
            code, message = 405, "this server only answers GET"
        self._refuse(code, message or "")

    def _refuse(self, code: int, message: str) -> None:
        """Send an error as JSON, and close the connection."""
        self.close_connection = True
        self._response_json(code, {"error": message})

    def _response_json(self, code: int, document: Any) -> None:
        # ASCII, because the name of a topic or a header may have half a pair of surrogates.
        content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        self._respond(code, "application/json", content)

    def _respond(self, code: int, media_type: str, content: bytes) -> None:
        """Send a response with this status code."""
        self.send_response(code)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if code == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the terminal has the address of the page."""
