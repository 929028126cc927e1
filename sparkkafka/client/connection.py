"""One blocking socket to one broker: connect, handshake, requests and replies under a deadline.

A connection is used by one thread. Requests may be pipelined: `send` as often as wished, then
`receive` in the same order (Kafka answers a connection's requests in order). After any failure
inside a frame the stream has no known position, so the connection closes itself and every later
call raises KafkaConnectionError.
"""

from __future__ import annotations

import itertools
import logging
import socket
import ssl
import time
from collections import deque
from typing import Any, NamedTuple, Self

from sparkkafka import __version__
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import (
    BrokerError,
    DecodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from sparkkafka.options import ClientOptions
from sparkkafka.protocol.framing import Framing
from sparkkafka.protocol.messages import ApiVersionsRequest
from sparkkafka.protocol.wire import BytesLike, byte_view

log = logging.getLogger(__name__)

PREFIX_BYTES = 4

# The first flexible one; a broker of 2.4 or later knows it, and 4.x too. Version 4 changes nothing
# for a client, and asking for it would cost brokers before 3.9 a second question.
HANDSHAKE_VERSION = 3

_PARTS_AT_ONCE = 64  # far below what systems allow in one call (IOV_MAX, 1024)


class FrameBuffer:
    """Memory for one frame after the other. Filling fresh memory takes half as long again.

    Whoever receives into it has no more use for the frame before.
    """

    def __init__(self) -> None:
        self._data = bytearray()

    def room(self, size_bytes: int) -> memoryview:
        if len(self._data) < size_bytes:
            # Frames of one series differ a little. (Views of the old memory keep it alive.)
            self._data = bytearray(size_bytes + size_bytes // 8)
        return memoryview(self._data)[:size_bytes]


class _BegunReply(NamedTuple):
    """A frame, or the prefix that tells its size, of which `done` bytes are there."""

    view: memoryview
    done: int
    is_prefix: bool


class Connection:
    """A connected, handshaken socket to `host:port`. Make one with `Connection.open`.

    `call(request, deadline)` is the simple way; `send` and `receive` pipeline. `versions` holds
    the broker's version range per api key.
    """

    def __init__(self, sock: socket.socket, host: str, port: int, framing: Framing) -> None:
        self._sock: socket.socket | None = sock
        self._framing = framing
        self.host = host
        self.port = port
        self._prefix = bytearray(PREFIX_BYTES)
        self._begun: _BegunReply | None = None

    @classmethod
    def open(cls, host: str, port: int, options: ClientOptions, deadline: Deadline) -> Self:
        """Connect, trying each address that the name has, and agree on versions.

        Raises KafkaConnectionError naming host and port, with each address's failure.
        """
        sock = _connect(host, port, options, deadline)
        connection = cls(sock, host, port, Framing(options.client_id))
        try:
            connection._handshake(deadline.sooner(options.request_timeout_ms))
        except BaseException:
            connection.close()
            raise
        log.debug("connected to %s", connection)
        return connection

    def _handshake(self, deadline: Deadline) -> None:
        """ApiVersions first (KIP-35), in the version that brokers know since 2.4; older ones say
        what they know."""
        request = ApiVersionsRequest(
            client_software_name="sparkkafka", client_software_version=__version__
        )
        response = self.call(request, deadline, version=HANDSHAKE_VERSION)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: the refusal is a v0 body, since 2.4 with ApiVersions' own range in it.
            offered = {row.api_key: row.max_version for row in response.api_keys}
            version = min(offered.get(ApiVersionsRequest.API_KEY, 0), HANDSHAKE_VERSION - 1)
            response = self.call(request, deadline, version=max(version, 0))
        if response.error_code:
            raise BrokerError(response.error_code, f"ApiVersions @ {self}")
        self._framing.versions = {
            row.api_key: (row.min_version, row.max_version) for row in response.api_keys
        }

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"<Connection {self}{'' if self.is_open else ' closed'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    @property
    def in_flight(self) -> int:
        """Requests sent and not yet answered."""
        return self._framing.in_flight

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        return dict(self._framing.versions or {})

    def choose(self, request_type: Any) -> int:
        """Highest version of a request that both sides know; UnsupportedVersionError if none."""
        return self._framing.choose(request_type)

    def supports(self, request_type: Any, version: int = 0) -> bool:
        """Whether broker and client share a version of this request that is at least `version`."""
        try:
            return self.choose(request_type) >= version
        except UnsupportedVersionError:
            return False

    def fileno(self) -> int:
        """The socket's descriptor, for select(); raises KafkaConnectionError when closed."""
        return self._open_socket().fileno()

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any:
        """Send one request and return its reply. No other request may be in flight."""
        correlation_id = self.send(request, deadline, version=version)
        answered_id, response = self.receive(deadline)
        if answered_id != correlation_id:
            self.close()
            raise DecodeError(f"reply {answered_id} of {self} to request {correlation_id}")
        return response

    def send(
        self,
        request: Any,
        deadline: Deadline,
        *,
        version: int | None = None,
        expect_reply: bool = True,
    ) -> int:
        """Write a request; returns its correlation id.

        Raises EncodeError or UnsupportedVersionError before anything is sent,
        KafkaConnectionError or KafkaTimeoutError after which the connection is closed.
        """
        sock = self._open_socket()
        correlation_id, parts = self._framing.send_parts(
            request, version, expect_reply=expect_reply
        )
        started_s = time.monotonic()
        try:
            self._write(sock, parts, deadline)
        except OSError as error:
            self.close()
            raise self._failure(f"sending {request.API_NAME}", error, started_s) from error
        except BaseException:
            self.close()
            raise
        return correlation_id

    def receive(self, deadline: Deadline, buffer: FrameBuffer | None = None) -> tuple[int, Any]:
        """Read the next reply: (correlation id, response).

        The response's record fields are views of the frame: of its own memory, or of `buffer`,
        where they last until it is used again.
        """
        sock = self._open_socket()
        started_s = time.monotonic()
        try:
            self._read_into(sock, memoryview(self._prefix), deadline)
            size_bytes = self._framing.frame_length(bytes(self._prefix))
            frame = (buffer or FrameBuffer()).room(size_bytes)
            self._read_into(sock, frame, deadline)
            return self._framing.receive(frame)
        except DecodeError as error:
            self.close()
            raise DecodeError(f"{self}: {error}") from error
        except OSError as error:
            # KafkaConnectionError is an OSError: the end of the stream comes through here too.
            self.close()
            raise self._failure("waiting for a reply", error, started_s) from error
        except BaseException:
            self.close()
            raise

    def receive_ready(self, buffer: FrameBuffer) -> tuple[int, Any] | None:
        """`receive` as far as bytes are there, without waiting: None until the reply is whole.

        For those who wait for several brokers at once (`fileno`). `receive` is not for a connection
        with a reply half read, and `buffer` is this reply's until it is whole.
        """
        sock = self._open_socket()
        begun = self._begun or _BegunReply(memoryview(self._prefix), 0, is_prefix=True)
        self._begun = None
        try:
            sock.settimeout(0)
            while True:
                view, done, is_prefix = begun
                while done < len(view):
                    try:
                        count = sock.recv_into(view[done:])
                    except (BlockingIOError, ssl.SSLWantReadError):
                        self._begun = _BegunReply(view, done, is_prefix)
                        return None
                    if count == 0:
                        raise KafkaConnectionError("the broker closed the connection")
                    done += count
                if not is_prefix:
                    return self._framing.receive(view)
                size_bytes = self._framing.frame_length(bytes(view))
                begun = _BegunReply(buffer.room(size_bytes), 0, is_prefix=False)
        except DecodeError as error:
            self.close()
            raise DecodeError(f"{self}: {error}") from error
        except OSError as error:
            self.close()
            raise self._failure("waiting for a reply", error, time.monotonic()) from error
        except BaseException:
            self.close()
            raise

    def _write(self, sock: socket.socket, parts: list[BytesLike], deadline: Deadline) -> None:
        """Send all parts as one stream of bytes; records go to the kernel from where they lie."""
        left = deque(map(byte_view, parts))
        while left:
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            sent = sock.sendmsg(itertools.islice(left, _PARTS_AT_ONCE))
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = left[0][sent:]

    def _read_into(self, sock: socket.socket, view: memoryview, deadline: Deadline) -> None:
        done = 0
        while done < len(view):
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            count = sock.recv_into(view[done:])
            if count == 0:
                raise KafkaConnectionError("the broker closed the connection")
            done += count

    def _open_socket(self) -> socket.socket:
        if self._sock is None:
            raise KafkaConnectionError(f"{self}: the connection is closed")
        return self._sock

    def _failure(
        self, doing: str, error: OSError, started_s: float
    ) -> KafkaConnectionError | KafkaTimeoutError:
        if isinstance(error, TimeoutError):
            # Retriable for those who may ask again: nothing says that the broker is gone.
            timeout = KafkaTimeoutError(
                f"{self}: no answer within {time.monotonic() - started_s:.1f} s while {doing}"
            )
            timeout.retriable = True
            return timeout
        return KafkaConnectionError(f"{self}: {_reason(error)} while {doing}")


def _connect(host: str, port: int, options: ClientOptions, deadline: Deadline) -> socket.socket:
    try:
        # client.dns.lookup=use_all_dns_ips: every address, IPv4 and IPv6, in the resolver's order.
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise KafkaConnectionError(
            f"{host}:{port}: the host name cannot be resolved ({_reason(error)})"
        ) from error
    failures: list[str] = []
    for family, kind, protocol, _, address in addresses:
        timeout_s = deadline.sooner(options.socket_connection_setup_timeout_ms).remaining_s()
        if timeout_s <= 0:
            failures.append(f"{address[0]}: no time left")
            break
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine lacks
            failures.append(f"{address[0]}: {_reason(error)}")
            continue
        try:
            sock.settimeout(timeout_s)
            # Requests are written whole: waiting for more to send (Nagle) only adds delay.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in (
                (socket.SO_SNDBUF, options.send_buffer_bytes),
                (socket.SO_RCVBUF, options.receive_buffer_bytes),
            ):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
            sock.connect(address)
        except TimeoutError:
            sock.close()
            failures.append(f"{address[0]}: no answer within {timeout_s:.3g} s")
        except OSError as error:
            sock.close()
            failures.append(f"{address[0]}: {_reason(error)}")
        except BaseException:
            sock.close()
            raise
        else:
            # The place of TLS: a later version wraps `sock` here, by options.security_protocol.
            return sock
    raise KafkaConnectionError(f"{host}:{port}: cannot connect ({'; '.join(failures)})")


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
