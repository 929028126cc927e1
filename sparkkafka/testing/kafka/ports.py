"""Loopback ports that nobody else gets while a test cluster uses them."""

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
        """Reserves a port, any free one by default. Raises `UnavailableError` if it is taken."""
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
        """To be called before the servers start: frees what only its next user may bind."""
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Gives all ports back."""
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
    """A plain bind, which fails where another program listens or holds the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without this a port in TIME_WAIT, left by a broker that has just ended, counts as in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        probe.listen(1)
