"""One request and its answer over HTTP or HTTPS, for OAuth token endpoints and schema registries.

http.client writes the request and parses the answer, on a socket whose every operation ends at one
deadline. The size of an answer is bounded. Redirects are not followed and proxies are not used,
since a request may hold a secret. No frame of a traceback has a secret in a variable.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sparkkafka.client.auth.tls import alert_hint, context_of, untrusted_message
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, KafkaError
from sparkkafka.secret import Secret, SecretBytes

RETRIABLE_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Java retries all but its UNRETRYABLE_HTTP_CODES; these are what that list leaves of 4xx, and the
5xx that servers send."""

MAX_HEADER_BYTES: Final = 256 * 1024
"""Of an answer's headers and the sizes of its chunks. http.client accepts a negative size of a
chunk, and would read without end."""


class Server(NamedTuple):
    """A server, and the names under which errors speak of it.

    `name` is its address without secrets. `error_class` is raised if it does not answer in HTTP, or
    with more than `max_answer_bytes`: then the answer is not `answer_kind`. `url_option`,
    `truststore_option` and `versions_option` are the options of its address, of its authorities and
    of the versions of TLS; `prefix` precedes the names of other options of TLS.
    """

    name: str
    secure: bool
    host: str
    port: int
    tls: TlsSettings
    max_answer_bytes: int
    error_class: type[KafkaError]
    answer_kind: str
    url_option: str
    truststore_option: str
    versions_option: str
    prefix: str = ""


class Request(NamedTuple):
    """`target`: path and query. It is secret because some token endpoints want keys in it."""

    method: str
    target: Secret
    headers: Mapping[str, str | Secret]
    body: SecretBytes | None = None


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: SecretBytes

    def redirect_host(self) -> str:
        """Scheme and host of the header Location, whose other parts may hold anything; "" if it has
        none."""
        location = self.headers.get("location", "")[:2000]
        try:
            parts = urlsplit(location)
        except ValueError:
            return ""
        host = parts.netloc.rpartition("@")[2]
        # A password with a slash ends what looks like the host.
        is_cut = location.rfind("@") > location.find(parts.netloc) + len(parts.netloc)
        return f"{parts.scheme}://{host}" if host and not is_cut else ""


def exchange(
    server: Server, request: Request, deadline: Deadline, *, connect_ms: float, answer_ms: float
) -> Answer:
    """Send one request. Connecting takes at most `connect_ms`, and then the answer `answer_ms`.

    Raises KafkaConnectionError for failures that may pass, AuthenticationError if TLS fails,
    `server.error_class` if the answer is not HTTP or is too long, OptionError for TLS settings.
    """
    with connected(server, deadline.sooner(connect_ms)) as sock:
        connection = http.client.HTTPConnection(server.host, server.port)
        connection.sock = _BoundedSocket(sock, deadline.sooner(answer_ms), server.max_answer_bytes)
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
            body = SecretBytes(response.read(server.max_answer_bytes + 1))
            if len(body) > server.max_answer_bytes:
                raise _TooLongError
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
        except Exception as error:
            # The frames of http.client have the secret, or the token, in variables.
            raise error.with_traceback(None) from None
        return Answer(response.status, response.headers, body)


@contextmanager
def connected(server: Server, deadline: Deadline) -> Iterator[socket.socket]:
    """A connection to the server, with TLS if it is `secure`, until the block ends.

    Raises as `exchange`, also for what fails in the block.
    """
    with _kafka_errors(server), closing(_connect(server, deadline)) as sock:
        yield sock


def _connect(server: Server, deadline: Deadline) -> socket.socket:
    context = context_of(server.tls) if server.secure else None
    addresses = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
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
                    # The timeout counts for the whole handshake. A dot at the end completes a
                    # name, but is not part of it in certificates and SNI.
                    sock.settimeout(_timeout_s(deadline))
                    name = server.host.removesuffix(".")
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
    return max(deadline.remaining_s(), 0.001)  # 0 would mean "do not wait", and raise another error


class _TooLongError(Exception):
    """The server sends more than such an answer has."""


class _BoundedSocket(io.RawIOBase):
    """What http.client needs of a socket, with one deadline and a limit of what it reads.

    The timeout of a socket begins anew with each read: a server that sends byte by byte would never
    let it pass.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline, max_answer_bytes: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self._left_bytes = max_answer_bytes + MAX_HEADER_BYTES

    def sendall(self, data: bytes) -> None:
        self._set_timeout()
        self._sock.sendall(data)  # its timeout counts for all of the data

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left_bytes <= 0:
            raise _TooLongError
        self._set_timeout()
        count = self._sock.recv_into(buffer)
        self._left_bytes -= count
        return count

    def close(self) -> None:
        """http.client closes as soon as it has the headers; the body is still to be read."""

    def _set_timeout(self) -> None:
        if self._deadline.expired:
            raise TimeoutError
        self._sock.settimeout(_timeout_s(self._deadline))


@contextmanager
def _kafka_errors(server: Server) -> Iterator[None]:
    try:
        yield
    except KafkaError:  # before what some of them are as well: OSError, ValueError
        raise
    except _TooLongError:
        raise server.error_class(
            f"{server.name}: the answer is longer than {server.max_answer_bytes} bytes: not "
            f"{server.answer_kind}"
        ) from None
    except ssl.SSLCertVerificationError as error:
        message = untrusted_message(
            error,
            server.tls,
            server.host,
            address=server.url_option,
            trust=server.truststore_option,
            prefix=server.prefix,
        )
        raise AuthenticationError(f"{server.name}: its certificate {message}") from error
    except TimeoutError as error:
        raise KafkaConnectionError(f"{server.name}: no answer in time") from error
    except (ssl.SSLEOFError, ConnectionError) as error:
        message = _reason(error)
        if server.secure and not isinstance(error, ConnectionRefusedError):
            # With TLS 1.3 it checks our certificate when we send, and its alert may get lost.
            message = (
                f"it hung up ({message}); if it always does, it may not be an https server, or "
                f"want another client certificate than we have ({server.prefix}ssl.keystore.…)"
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
        raise KafkaConnectionError(f"{server.name}: {_reason(error)}") from error
    except http.client.IncompleteRead as error:
        raise KafkaConnectionError(f"{server.name}: the answer ends in the middle") from error
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: http.client does not check all that a server may send.
        raise server.error_class(f"{server.name} does not answer in HTTP") from error


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:200]
