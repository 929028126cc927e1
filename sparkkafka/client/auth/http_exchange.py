"""One request and its response over HTTP or HTTPS, for OAuth token endpoints and schema registries.

http.client writes the request and parses the response, on a socket with one deadline for all its
operations. The size of a response is limited. Redirects are not followed and proxies are not used,
since a request may contain a secret. No frame of a traceback has a secret in a variable.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sparkkafka.client.auth.tls import alert_hint, context_of, system_message, untrusted_message
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.kinds import HttpUrl
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, KafkaError
from sparkkafka.secret import Secret, SecretBytes

RETRIABLE_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""The common ones of 5xx, and those of 4xx that are not in Java's UNRETRYABLE_HTTP_CODES."""


class Server(NamedTuple):
    """A server, and its names in errors.

    `name` is its address without secrets, `url` its URL. `error_class` is raised if the response is
    not HTTP or has more than `max_response_bytes`: its message says that it is not `response_kind`,
    for example "a registry's". `url_option`, `truststore_option` and `versions_option` are the
    options of its address, of its authorities and of the versions of TLS; `prefix` precedes the
    names of other options of TLS."""

    name: str
    url: HttpUrl
    tls: TlsSettings
    max_response_bytes: int
    error_class: type[KafkaError]
    response_kind: str
    url_option: str
    truststore_option: str
    versions_option: str
    prefix: str = ""


class HttpRequest(NamedTuple):
    """A request. Its path and query, `target`, are secret, since some endpoints have keys in
    them."""

    method: str
    target: Secret
    headers: Mapping[str, str | Secret]
    body: SecretBytes | None = None


class HttpResponse(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: SecretBytes

    def redirect_host(self) -> str:
        """Return scheme and host of the header Location, "" if there is none or its host cannot be
        parsed. Its path may contain a secret, so it is left out."""
        location = self.headers.get("location", "")[:2000]
        try:
            parts = urlsplit(location)
        except ValueError:
            return ""
        host = parts.netloc.rpartition("@")[2]
        # If a password contains a slash, `netloc` ends there.
        is_cut = location.rfind("@") > location.find(parts.netloc) + len(parts.netloc)
        scheme = f"{parts.scheme}://" if parts.scheme else ""
        return f"{scheme}{host}" if host and not is_cut else ""


def basic_header(user_info: str) -> Secret | None:
    """Return the value of the header Authorization with a user and password; None for text that
    UTF-8 cannot encode."""
    try:
        return Secret(f"Basic {base64.b64encode(user_info.encode()).decode()}")
    except UnicodeEncodeError:  # the error's message has the secret
        return None


def describe_body(body: SecretBytes, expected: str) -> str:
    """Return what a body is that is not the `expected` JSON, for an error."""
    head = body.reveal()[:1000].lower()
    if b"<html" in head or b"<!doctype" in head:
        return "an HTML page"
    return f"something other than {expected}" if body else "nothing"


def exchange(
    server: Server,
    request: HttpRequest,
    deadline: Deadline,
    *,
    connect_ms: float,
    response_ms: float,
) -> HttpResponse:
    """Send a request and return its response. Connecting may take `connect_ms`, and the response
    after that `response_ms`.

    Raises KafkaConnectionError for failures that may pass, AuthenticationError if TLS fails,
    `server.error_class` if the response is not HTTP or is too long, OptionError for TLS settings.
    """
    with open_connection(server, deadline.sooner(connect_ms)) as sock:
        connection = http.client.HTTPConnection(server.url.host, server.url.port)
        connection.sock = _BoundedSocket(
            sock, deadline.sooner(response_ms), server.max_response_bytes
        )
        try:
            connection.request(
                request.method,
                request.target.reveal(),
                None if request.body is None else request.body.reveal(),
                {
                    name: value.reveal() if isinstance(value, Secret) else value
                    for name, value in request.headers.items()
                },
            )
            response = connection.getresponse()
            body = SecretBytes(response.read(server.max_response_bytes + 1))
            if len(body) > server.max_response_bytes:
                raise _TooLongError
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
        except Exception as error:
            # Variables in the frames of http.client contain the secret, or the token.
            raise error.with_traceback(None) from None
        return HttpResponse(response.status, response.headers, body)


@contextmanager
def open_connection(server: Server, deadline: Deadline) -> Iterator[socket.socket]:
    """Open a connection to the server, with TLS if it is `secure`, for this block.

    Raises the errors of `exchange`, also for errors in the block.
    """
    with _kafka_errors(server), closing(_connect(server, deadline)) as sock:
        yield sock


def _connect(server: Server, deadline: Deadline) -> socket.socket:
    """Connect to the first address of the server that accepts, and begin TLS if it is secure."""
    context = context_of(server.tls) if server.url.secure else None
    addresses = socket.getaddrinfo(server.url.host, server.url.port, type=socket.SOCK_STREAM)
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses:
        if deadline.expired:
            break
        with ExitStack() as on_failure:
            try:
                sock = on_failure.enter_context(socket.socket(family, kind, protocol))
                sock.settimeout(_timeout_s(deadline))
                sock.connect(address)
                if context is not None:
                    # The timeout is that of the whole handshake. A dot at the end completes a name,
                    # but is not part of it in certificates and SNI.
                    sock.settimeout(_timeout_s(deadline))
                    name = server.url.host.removesuffix(".")
                    sock = on_failure.enter_context(context.wrap_socket(sock, server_hostname=name))
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
            else:
                on_failure.pop_all()
                return sock
    raise failure


def _timeout_s(deadline: Deadline) -> float:
    return max(deadline.remaining_s(), 0.001)  # 0 would mean non-blocking


class _TooLongError(Exception):
    """The response has more than the maximum size."""


class _BoundedSocket(io.RawIOBase):
    """The part of a socket that http.client uses, with one deadline and a limit of bytes.

    A socket's own timeout starts again with each read: a server that sends byte after byte would
    never exceed it.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline, max_response_bytes: int) -> None:
        self._sock = sock
        self._deadline = deadline
        # Maximum size of a response's headers and sizes of chunks. http.client accepts a negative
        # size of a chunk, and would read forever.
        self._left_bytes = max_response_bytes + 256 * 1024

    def sendall(self, data: bytes) -> None:
        self._set_timeout()
        self._sock.sendall(data)  # its timeout is for all of the data

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive bytes into `buffer`; return how many. Raises _TooLongError beyond the limit."""
        if self._left_bytes <= 0:
            raise _TooLongError
        self._set_timeout()
        count = self._sock.recv_into(buffer)
        self._left_bytes -= count
        return count

    def close(self) -> None:
        """Do nothing. http.client calls this after the headers, before the body is read."""

    def _set_timeout(self) -> None:
        """Let the socket wait until the deadline at most. Raises TimeoutError if it has passed."""
        if self._deadline.expired:
            raise TimeoutError
        self._sock.settimeout(_timeout_s(self._deadline))


@contextmanager
def _kafka_errors(server: Server) -> Iterator[None]:
    """Raise a KafkaError in place of errors of sockets, TLS and HTTP in this block."""
    try:
        yield
    except KafkaError:  # first, since some of them are an OSError or ValueError too
        raise
    except _TooLongError:
        raise server.error_class(
            f"{server.name}: the response is longer than {server.max_response_bytes} bytes: not "
            f"{server.response_kind}"
        ) from None
    except ssl.SSLCertVerificationError as error:
        message = untrusted_message(
            error,
            server.tls,
            server.url.host,
            address=server.url_option,
            trust=server.truststore_option,
            prefix=server.prefix,
        )
        raise AuthenticationError(f"{server.name}: its certificate {message}") from error
    except TimeoutError as error:
        raise KafkaConnectionError(f"{server.name}: no response in time") from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        message = system_message(error)
        if server.url.secure and not isinstance(error, ConnectionRefusedError):
            # With TLS 1.3 it checks our certificate after the handshake, and its alert may be lost.
            message = (
                f"it closed the connection ({message}); if it always does, it may not be an https "
                f"server, or require another client certificate ({server.prefix}ssl.keystore.…)"
            )
        raise KafkaConnectionError(f"{server.name}: {message}") from error
    except ssl.SSLError as error:
        hint = alert_hint(error, server.prefix) or (
            f"is it an https server, and {server.versions_option} right?"
        )
        raise AuthenticationError(
            f"{server.name}: no TLS connection ({error.reason or 'unknown reason'}): {hint}"
        ) from error
    except (OSError, UnicodeError) as error:
        raise KafkaConnectionError(f"{server.name}: {system_message(error)}") from error
    except http.client.IncompleteRead as error:
        raise KafkaConnectionError(f"{server.name}: the response ends in the middle") from error
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: http.client does not check all that a server may send.
        raise server.error_class(f"{server.name} does not answer in HTTP") from error
