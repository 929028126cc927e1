"""The sockets of one fake broker: a listener, and a thread for each connection.

A connection's requests are answered one after the other, in order, as by a real broker. This module
only reads frames and writes responses; the callable `respond` (`Dispatcher.respond`) makes the
responses.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 100 << 20
"""The default of a broker's socket.request.max.bytes."""

_connection_numbers = itertools.count(1)


class ResponseFrame(NamedTuple):
    """What a connection does after a request: it waits `delay_s`, sends `frame` (nothing if it is
    empty), closes if `close` is set, and otherwise reads the next request after `mute_s`."""

    frame: bytes = b""
    close: bool = False
    delay_s: float = 0.0
    mute_s: float = 0.0


class BrokerConnection(threading.Thread):
    """Serves one client socket until it is closed from either side."""

    def __init__(
        self,
        sock: socket.socket,
        broker_id: int,
        respond: Callable[[bytearray, BrokerConnection], ResponseFrame],
        tls_context: ssl.SSLContext | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        max_idle_ms: int | None = None,
    ) -> None:
        self.number = next(_connection_numbers)
        super().__init__(name=f"fake-broker-{broker_id}-connection-{self.number}", daemon=True)
        self.broker_id = broker_id
        self.stopped = threading.Event()
        self.client_host = ""
        self._sock = sock
        self._respond = respond
        self._tls_context = tls_context
        self._max_request_bytes = max_request_bytes
        self._max_idle_ms = max_idle_ms

    def run(self) -> None:
        # Tests end connections by a reset, some in the middle of the handshake: nothing to report.
        with contextlib.suppress(OSError):
            self.client_host = self._sock.getpeername()[0]
            if self._tls_context is not None:
                # Here, not where connections are accepted: a client may take its time.
                self._sock = self._tls_context.wrap_socket(self._sock, server_side=True)
            self._serve()
        with self._sock:
            self.stopped.set()

    def stop(self) -> None:
        """Wake the thread wherever it waits; it closes its socket itself."""
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._max_idle_ms is not None:
            self._sock.settimeout(self._max_idle_ms / 1000)
        while not self.stopped.is_set():
            prefix = self._read(4)
            if prefix is None:
                return
            size = int.from_bytes(prefix, "big", signed=True)
            if not 0 <= size <= self._max_request_bytes:
                log.warning("%s: a request of %d bytes; closing", self.name, size)
                return
            payload = self._read(size)
            if payload is None:
                return
            response = self._respond(payload, self)
            if response.delay_s and self.stopped.wait(response.delay_s):
                return
            if response.frame:
                self._sock.sendall(response.frame)
            if response.close or (response.mute_s and self.stopped.wait(response.mute_s)):
                return

    def _read(self, size: int) -> bytearray | None:
        """Read exactly `size` bytes. Returns None at the end of the stream."""
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = self._sock.recv_into(view[done:])
            if not count:
                return None
            done += count
        return data


class BrokerListener:
    """The listening socket of one broker. It keeps `port` also while the broker is down.

    `respond` makes the responses; `wake` is called after connections are closed, so that `respond`
    stops waiting for their sake.
    """

    def __init__(
        self,
        broker_id: int,
        host: str,
        respond: Callable[[bytearray, BrokerConnection], ResponseFrame],
        wake: Callable[[], None],
        tls_context: ssl.SSLContext | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        max_idle_ms: int | None = None,
    ) -> None:
        self._tls_context = tls_context
        self._max_request_bytes = max_request_bytes
        self._max_idle_ms = max_idle_ms
        self.broker_id = broker_id
        self.host = host
        self._respond = respond
        self._wake = wake
        self._lock = threading.Lock()
        self._connections: set[BrokerConnection] = set()
        self._acceptor: threading.Thread | None = None
        self._waker: socket.socket | None = None
        # Bound but not listening: the port is ours, and connections to it are refused.
        self._sock = self._bind(0)
        self.port: int = self._sock.getsockname()[1]

    @property
    def connections(self) -> int:
        """The number of clients that are connected now."""
        with self._lock:
            return sum(1 for row in self._connections if row.is_alive())

    def up(self) -> None:
        """Accept connections. Does nothing if the broker is up already."""
        if self._acceptor is not None:
            return
        self._waker, wake = socket.socketpair()
        self._sock.listen(128)
        self._sock.setblocking(False)
        self._acceptor = threading.Thread(
            target=self._accept,
            args=(self._sock, wake),
            name=f"fake-broker-{self.broker_id}-listener",
            daemon=True,
        )
        self._acceptor.start()

    def down(self, until_s: float) -> list[str]:
        """Close the listener and all connections; the port stays reserved.

        Returns the names of threads that are still running at `until_s` (of time.monotonic()).
        """
        stuck = self._stop(until_s)
        if self._sock.fileno() == -1:
            self._sock = self._bind(self.port)
        return stuck

    def close(self, until_s: float) -> list[str]:
        """Do what `down` does, and give up the port."""
        stuck = self._stop(until_s)
        self._sock.close()
        return stuck

    def disconnect(self) -> None:
        """Close all connections; new ones are accepted."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.stop()
        self._wake()

    def _bind(self, port: int) -> socket.socket:
        """Return a socket that is bound to the port (0: any free one)."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Else the port could not be bound again while old connections are in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    def _stop(self, until_s: float) -> list[str]:
        """Stop accepting, cut all connections, and return the names of threads that still run."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is None:
            return []
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()  # the acceptor sees the end of its side
        acceptor.join(max(0.0, until_s - time.monotonic()))
        self.disconnect()
        threads: list[threading.Thread] = [acceptor]
        with self._lock:
            threads += self._connections
        me = threading.current_thread()
        for thread in threads:
            # A callable fault may take its own broker down.
            if thread is not me:
                thread.join(max(0.0, until_s - time.monotonic()))
        return [row.name for row in threads if row is not me and row.is_alive()]

    def _accept(self, listener: socket.socket, wake: socket.socket) -> None:
        """Accept connections until `wake` is readable. Runs in a thread of its own."""
        with listener, wake, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if wake in ready:
                    return
                try:
                    sock, _ = listener.accept()
                except OSError:  # the client has gone again
                    continue
                sock.setblocking(True)
                connection = BrokerConnection(
                    sock,
                    self.broker_id,
                    self._respond,
                    self._tls_context,
                    self._max_request_bytes,
                    self._max_idle_ms,
                )
                with self._lock:
                    self._connections = {
                        row for row in self._connections if row.is_alive() or not row.ident
                    }
                    self._connections.add(connection)
                connection.start()
