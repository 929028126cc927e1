"""One reply after the other out of a socket, waiting for it or not."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.frame_buffer import FrameBuffer
from sparkkafka.errors import KafkaConnectionError
from sparkkafka.protocol.framing import PREFIX_BYTES

# SO_RCVLOWAT: the socket's descriptor tells of so many bytes, not of fewer. More weighty on Linux:
# bytes that nobody reads are acknowledged at once only up to there, and the system makes room for
# them. Else a broker stops after a megabyte until its reader is back.
_MOST_BYTES = 16 << 20
_FEW_BYTES = 64 << 10  # fewer are not worth a call


class HungUpError(KafkaConnectionError):
    """The end of the stream."""


class _BegunReply(NamedTuple):
    """A frame, or the prefix that tells its size, of which `done` bytes are there."""

    view: memoryview
    done: int
    is_prefix: bool


class ReplyReader:
    """Reads from one socket. What `frame_length` makes of a prefix, or raises, holds.

    A reply that `read_ready` has begun goes on in either method. Both raise HungUpError, and what
    the socket raises.
    """

    def __init__(self, frame_length: Callable[[bytes], int]) -> None:
        self._frame_length = frame_length
        self._prefix = bytearray(PREFIX_BYTES)
        self._begun: _BegunReply | None = None
        self._told_of_bytes = 1

    @property
    def has_begun(self) -> bool:
        return self._begun is not None

    def fill(self, sock: socket.socket) -> None:
        """Nobody waits for the next reply now: let it come. Its size is not known, so before its
        descriptor is waited for, `watch` it."""
        if self._begun is None:
            self._tell_of(sock, _MOST_BYTES)

    def watch(self, sock: socket.socket) -> None:
        """Let the socket's descriptor tell of the first byte of a reply."""
        if self._begun is None:
            self._tell_of(sock, 1)

    def read(self, sock: socket.socket, buffer: FrameBuffer, deadline: Deadline) -> memoryview:
        """A whole reply, without its prefix. Raises TimeoutError."""
        self._tell_of(sock, 1)
        view, done, is_prefix = self._take_begun()
        self._read_into(sock, view[done:], deadline)
        if is_prefix:
            view = buffer.room(self._frame_length(bytes(view)))
            self._read_into(sock, view, deadline)
        self._tell_of(sock, 1)
        return view

    def read_ready(self, sock: socket.socket, buffer: FrameBuffer) -> memoryview | None:
        """The same as far as bytes are there; None until the reply is whole. `buffer` is this
        reply's until then."""
        sock.settimeout(0)
        view, done, is_prefix = self._take_begun()
        while True:
            while done < len(view):
                try:
                    count = sock.recv_into(view[done:])
                except (BlockingIOError, ssl.SSLWantReadError):
                    self._begun = _BegunReply(view, done, is_prefix)
                    self._tell_of_missing(sock, len(view) - done)
                    return None
                if count == 0:
                    raise HungUpError("the broker closed the connection")
                done += count
            if not is_prefix:
                self._tell_of(sock, 1)
                return view
            view, done, is_prefix = buffer.room(self._frame_length(bytes(view))), 0, False

    def _take_begun(self) -> _BegunReply:
        """What is there of the next reply."""
        begun, self._begun = self._begun, None
        return begun or _BegunReply(memoryview(self._prefix), 0, is_prefix=True)

    def _tell_of_missing(self, sock: socket.socket, size_bytes: int) -> None:
        """Never more than will come. With TLS the socket's bytes are not the reply's."""
        if size_bytes < _FEW_BYTES or isinstance(sock, ssl.SSLSocket):
            size_bytes = 1
        self._tell_of(sock, min(size_bytes, _MOST_BYTES))

    def _tell_of(self, sock: socket.socket, size_bytes: int) -> None:
        if size_bytes == self._told_of_bytes:
            return
        with contextlib.suppress(OSError):  # a system that does not know it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
        self._told_of_bytes = size_bytes

    def _read_into(self, sock: socket.socket, view: memoryview, deadline: Deadline) -> None:
        done = 0
        while done < len(view):
            if done and deadline.expired:  # or a server that gives byte after byte never ends
                raise TimeoutError
            self._tell_of_missing(sock, len(view) - done)
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            count = sock.recv_into(view[done:])
            if count == 0:
                raise HungUpError("the broker closed the connection")
            done += count
