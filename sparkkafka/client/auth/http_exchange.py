"""One request and its answer over HTTPS, for what is asked beside Kafka: tokens, and schemas.

By http.client, on a socket whose every wait ends at the deadline. An answer is bounded in size.
Redirects are not followed and proxies not used, since a request may hold a secret; and no frame of
a traceback has a secret in a variable.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple

from sparkkafka.client.auth.tls_context import context_of
from sparkkafka.client.auth.tls_words import alert_words, untrusted_words
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, KafkaError
from sparkkafka.secret import Secret, SecretBytes

TRY_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that may pass. Java asks again for all but what its UNRETRYABLE_HTTP_CODES list; these
are what is left of 4xx, and what servers say of 5xx."""

HEADER_BYTES: Final = 256 * 1024
"""Of an answer's headers and the sizes of its chunks. http.client believes a size that is negative,
and would read without end."""


class Server(NamedTuple):
    """Whom to ask. `name` is how messages call it: an address without secrets.

    `refusal` is raised if it does not answer in HTTP, or with more than `most_bytes`; `kind` says
    whose answer that cannot be. `address`, `trust` and `versions` are the options of its address,
    of authorities and of versions of TLS; `prefix` stands before names of other options of TLS.
    """

    name: str
    secure: bool
    host: str
    port: int
    tls: TlsSettings
    most_bytes: int
    refusal: type[KafkaError]
    kind: str
    address: str
    trust: str
    versions: str
    prefix: str = ""


class Request(NamedTuple):
    """`target`: path and query. Some token endpoints want keys in it."""

    method: str
    target: Secret
    headers: Mapping[str, str | Secret]
    body: SecretBytes | None = None


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: SecretBytes


def exchange(
    server: Server, request: Request, deadline: Deadline, *, connect_ms: float, answer_ms: float
) -> Answer:
    """Ask once. Connecting takes `connect_ms` at most, and then the answer `answer_ms`.

    Raises KafkaConnectionError for what may pass, AuthenticationError if TLS fails,
    `server.refusal` if the answer is not HTTP or is too long, OptionError for TLS settings.
    """
    with connected(server, deadline.sooner(connect_ms)) as sock:
        timed = TimedSocket(sock, deadline.sooner(answer_ms), server.most_bytes)
        return _exchange(server, request, timed)


@contextmanager
def connected(server: Server, deadline: Deadline) -> Iterator[socket.socket]:
    """A connection to the server, under TLS if it is `secure`, until the block ends.

    Raises as `exchange`, also for what fails in the block.
    """
    with _words_for_failures(server), closing(_connect(server, deadline)) as sock:
        yield sock


def _exchange(server: Server, request: Request, sock: TimedSocket) -> Answer:
    connection = http.client.HTTPConnection(server.host, server.port)
    connection.sock = sock
    try:
        connection.request(
            request.method,
            request.target.reveal(),
            None if request.body is None else request.body.reveal(),
            _revealed(request.headers),
        )
        response = connection.getresponse()
        body = SecretBytes(response.read(server.most_bytes + 1))
        if len(body) > server.most_bytes:
            raise _TooLongError
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
    except Exception as error:
        # The frames of http.client have the secret, or the token, in variables.
        raise error.with_traceback(None) from None
    return Answer(response.status, response.headers, body)


def _revealed(headers: Mapping[str, str | Secret]) -> dict[str, str]:
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in headers.items()
    }


# --- sockets ---------------------------------------------------------------------------------


def _connect(server: Server, deadline: Deadline) -> socket.socket:
    context = context_of(server.tls) if server.secure else None
    addresses = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses:
        if deadline.expired:
            break
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine lacks
            failure = error
            continue
        try:
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            sock.connect(address)
            if context is None:
                return sock
            # Its timeout counts for the whole handshake.
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            return context.wrap_socket(sock, server_hostname=server.host)
        except ssl.SSLError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


class TimedSocket:
    """What http.client wants of a socket. A timeout of the socket alone would begin anew with each
    byte of a server that sends them one by one."""

    def __init__(self, sock: socket.socket, deadline: Deadline, most_bytes: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self._most_bytes = most_bytes

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(max(self._deadline.remaining_s(), 0.001))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline, self._most_bytes))

    def close(self) -> None:
        """http.client closes as soon as it has the headers; the answer is still to be read."""


class _TooLongError(Exception):
    """More than such an answer has."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Deadline, most_bytes: int) -> None:
        super().__init__()
        self._sock = sock
        self._deadline = deadline
        self._left_bytes = most_bytes + HEADER_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._deadline.expired:
            raise TimeoutError
        if self._left_bytes <= 0:
            raise _TooLongError
        self._sock.settimeout(max(self._deadline.remaining_s(), 0.001))
        count = self._sock.recv_into(buffer)
        self._left_bytes -= count
        return count


@contextmanager
def _words_for_failures(server: Server) -> Iterator[None]:
    try:
        yield
    except KafkaError:  # before what some of them are as well: OSError, ValueError
        raise
    except _TooLongError:
        raise server.refusal(
            f"{server.name}: the answer is longer than {server.most_bytes} bytes: not {server.kind}"
        ) from None
    except ssl.SSLCertVerificationError as error:
        words = untrusted_words(
            error,
            server.tls,
            server.host,
            address=server.address,
            trust=server.trust,
            prefix=server.prefix,
        )
        raise AuthenticationError(f"{server.name}: its certificate {words}") from error
    except (TimeoutError, ssl.SSLEOFError, ConnectionError) as error:
        what = _reason(error)
        if isinstance(error, TimeoutError):
            what = "no answer in time"
        elif server.secure and not isinstance(error, ConnectionRefusedError):
            # With TLS 1.3 it looks at our certificate when we send, and its alert may get lost.
            what = (
                f"it hung up ({what}); if it always does, it may not be an https server, or want "
                f"another client certificate than we have ({server.prefix}ssl.keystore.…)"
            )
        raise KafkaConnectionError(f"{server.name}: {what}") from error
    except ssl.SSLError as error:
        hint = alert_words(error, server.prefix) or (
            f"is it an https server, and {server.versions} right?"
        )
        raise AuthenticationError(
            f"{server.name}: no TLS connection ({error.reason or 'unknown reason'}): {hint}"
        ) from error
    except (OSError, UnicodeError) as error:
        raise KafkaConnectionError(f"{server.name}: {_reason(error)}") from error
    except http.client.IncompleteRead as error:
        raise KafkaConnectionError(f"{server.name}: the answer ends in the middle") from error
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: http.client does not look at all that a server may say.
        raise server.refusal(f"{server.name} does not answer in HTTP") from error


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:200]
