"""Loopback ports that no other program gets while a test cluster uses them."""

from __future__ import annotations

import socket
import sys
from types import TracebackType

from sparkkafka.testing.kafka.process import UnavailableError

LOOPBACK = "127.0.0.1"


class ReservedPorts:
    """Free TCP ports on 127.0.0.1, kept for one cluster.

    On Linux each port stays bound, without listening, by a socket with SO_REUSEADDR: the kernel
    then gives it to no one else, not to `bind(0)` and not to an outgoing connection, while a
    server that sets SO_REUSEADDR too (Java does) can listen on it. So a broker that was killed
    finds its port free when it comes back. Other systems refuse the second bind, so there the
    port is only found free, and the cluster tries again with new ports after a clash.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def take(self, port: int = 0) -> int:
        """Reserve and return a port, by default any free one. Raises `UnavailableError` if it is in
        use."""
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if port:
                _refuse_if_served(port)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((LOOPBACK, port))
            number = int(holder.getsockname()[1])
        except OSError as error:
            holder.close()
            what = f"port {port}" if port else "any port"
            raise UnavailableError(
                f"cannot use {what} of {LOOPBACK}: {error}. "
                "End what uses it, or choose another port"
            ) from error
        self._sockets.append(holder)
        return number

    def hand_over(self) -> None:
        """Call this before the servers start: on other systems than Linux it releases the ports,
        which a server could not bind otherwise."""
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Release all ports."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _refuse_if_served(port: int) -> None:
    """Raise OSError if another program listens on the port or has reserved it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without this a port in TIME_WAIT, left by a broker that has just ended, counts as in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        probe.listen(1)
