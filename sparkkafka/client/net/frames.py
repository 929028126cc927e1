"""Requests into a socket, replies out of it, and the memory that they are received into."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import KafkaConnectionError
from sparkkafka.protocol.framing import PREFIX_BYTES
from sparkkafka.protocol.wire.primitives import BytesLike, byte_view

LARGE_BYTES = 1 << 20
"""From here on memory comes straight from the system."""


class FrameBuffer:
    """Memory for one frame after the other. Filling fresh memory takes half as long again.

    Receiving into it overwrites the frame before.
    """

    def __init__(self) -> None:
        self._data: Any = bytearray()

    def room(self, size_bytes: int) -> memoryview:
        """Writable memory of this size; its content is undefined."""
        if len(self._data) < size_bytes:
            # Frames of one series differ a little. (Views of the old memory keep it alive.)
            self._data = _memory(size_bytes + size_bytes // 8)
        return memoryview(self._data)[:size_bytes]


def _memory(size_bytes: int) -> bytearray | mmap.mmap:
    """A large piece is not a bytearray, which writes zeros first: that would touch all that a false
    length asks for. (Nor numpy's, which the driver's processes do without.)"""
    if size_bytes < LARGE_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return bytearray(size_bytes)
    piece = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without it
            piece.madvise(mmap.MADV_HUGEPAGE)
    return piece


# The low-water mark (SO_RCVLOWAT): poll() and a recv() that waits see a socket only once that many
# bytes are there. More important on Linux: bytes that nobody has read yet are acknowledged without
# delay only up to the mark, and the system makes room for twice as many. Otherwise a broker stops
# after a megabyte until its reader is back.
_MAX_MARKED_BYTES = 16 << 20
_FEW_BYTES = 64 << 10  # fewer are not worth a call
# Systems may fail to wake a reader at its mark (Linux did so under memory pressure until 2021).
_PATIENCE_S = 0.2


class HungUpError(KafkaConnectionError):
    """The end of the stream."""


class _BegunReply(NamedTuple):
    """A frame, or the prefix with its size, of which `done` bytes have been read."""

    view: memoryview
    done: int
    is_prefix: bool


class ReplyReader:
    """Reads from one socket. `frame_length` reads the size from a prefix, or raises.

    Either method continues a reply that `read_ready` has begun. Both raise HungUpError, and what
    the socket raises.
    """

    def __init__(self, frame_length: Callable[[bytes], int]) -> None:
        self._frame_length = frame_length
        self._prefix = bytearray(PREFIX_BYTES)
        self._begun: _BegunReply | None = None
        self._mark_bytes = 1  # 0: not known
        self._knows_marks = True

    @property
    def begun_bytes(self) -> int:
        """How much of a reply `read_ready` has read without having its end; 0 if it has begun none.
        Such a socket may seem to be quiet while bytes are there."""
        begun = self._begun
        if begun is None:
            return 0
        return begun.done if begun.is_prefix else PREFIX_BYTES + begun.done

    def expect_unattended(self, sock: socket.socket, size_bytes: int) -> None:
        """Nobody waits for the next reply now, of some `size_bytes`: let it come all the same.

        Before somebody waits for the socket's descriptor, `expect_polled`.
        """
        if self._begun is None:
            self._mark(sock, min(size_bytes, _MAX_MARKED_BYTES))

    def expect_polled(self, sock: socket.socket) -> None:
        """Let the socket's descriptor report the first byte of the next reply."""
        if self._begun is None:
            self._mark(sock, 1)

    def read(self, sock: socket.socket, buffer: FrameBuffer, deadline: Deadline) -> memoryview:
        """A whole reply, without its prefix. Raises TimeoutError."""
        self._mark(sock, 1)
        view, done, is_prefix = self._take_begun()
        self._read_into(sock, view[done:], deadline)
        if is_prefix:
            view = buffer.room(self._frame_length(bytes(view)))
            self._read_into(sock, view, deadline)
        self._mark(sock, 1)
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
                    if done or not is_prefix:
                        self._begun = _BegunReply(view, done, is_prefix)
                    self._mark_missing(sock, len(view) - done)
                    return None
                if count == 0:
                    raise HungUpError("the broker closed the connection")
                done += count
            if not is_prefix:
                self._mark(sock, 1)
                return view
            view, done, is_prefix = buffer.room(self._frame_length(bytes(view))), 0, False

    def _read_into(self, sock: socket.socket, view: memoryview, deadline: Deadline) -> None:
        done = 0
        is_patient = True
        while done < len(view):
            if done and deadline.expired:  # or a server that gives byte after byte never ends
                raise TimeoutError
            if is_patient:
                self._mark_missing(sock, len(view) - done)
            left_s = max(deadline.remaining_s(), 0.001)
            sock.settimeout(left_s if self._mark_bytes == 1 else min(left_s, _PATIENCE_S))
            try:
                count = sock.recv_into(view[done:])
            except TimeoutError:
                if self._mark_bytes == 1:
                    raise
                is_patient = False
                self._mark(sock, 1)
                continue
            if count == 0:
                raise HungUpError("the broker closed the connection")
            done += count

    def _take_begun(self) -> _BegunReply:
        """What is there of the next reply."""
        begun, self._begun = self._begun, None
        return begun or _BegunReply(memoryview(self._prefix), 0, is_prefix=True)

    def _mark_missing(self, sock: socket.socket, size_bytes: int) -> None:
        """Never more than will come. With TLS the socket's bytes are not the reply's."""
        few = size_bytes < _FEW_BYTES or isinstance(sock, ssl.SSLSocket)
        self._mark(sock, 1 if few else min(size_bytes, _MAX_MARKED_BYTES))

    def _mark(self, sock: socket.socket, size_bytes: int) -> None:
        if size_bytes == self._mark_bytes or (size_bytes > 1 and not self._knows_marks):
            return
        self._mark_bytes = 0  # Ctrl-C may come on either side of the call
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
            if size_bytes > 1:
                # Linux before 4.18, and others, make no room: such a mark would never be reached.
                mark = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
                room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                if mark > room:
                    self._knows_marks = False
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                    size_bytes = 1
        except OSError:  # a system without marks, or a socket that is closed
            self._knows_marks = False
            size_bytes = 1
        self._mark_bytes = size_bytes


TLS_PIECE_BYTES = 16 * 1024
"""A record of TLS. Smaller parts of a request are joined up to it."""

TLS_CALL_BYTES = 16 * TLS_PIECE_BYTES
_PARTS_AT_ONCE = 64  # far below what systems allow in one call (IOV_MAX, 1024)


class RequestWriter:
    """Writes into one socket. Both methods raise what the socket raises, TimeoutError among it.

    With a patience they leave the rest where it is when the other side takes nothing for so long;
    what is written later goes behind it.
    """

    def __init__(self) -> None:
        self._left: deque[memoryview] = deque()

    @property
    def has_unsent(self) -> bool:
        return bool(self._left)

    def write(
        self,
        sock: socket.socket,
        parts: list[BytesLike],
        deadline: Deadline,
        patience_s: float | None = None,
    ) -> None:
        """Send all parts as one stream of bytes; records go to the kernel from where they lie.

        The list is emptied: an error's frames may be shown with their variables.
        """
        views = map(byte_view, parts)
        self._left += tls_pieces(views) if isinstance(sock, ssl.SSLSocket) else views
        parts.clear()
        self.go_on(sock, deadline, patience_s)

    def go_on(
        self, sock: socket.socket, deadline: Deadline, patience_s: float | None = None
    ) -> None:
        """Send what is left."""
        left = self._left
        while left:
            remaining_s = max(deadline.remaining_s(), 0.001)
            is_short = patience_s is not None and patience_s < remaining_s
            sock.settimeout(patience_s if is_short else remaining_s)
            try:
                if isinstance(sock, ssl.SSLSocket):
                    # After a timeout OpenSSL takes nothing but the same bytes again.
                    sent = sock.send(left[0][:TLS_CALL_BYTES])
                else:
                    sent = sock.sendmsg(itertools.islice(left, _PARTS_AT_ONCE))
            except (TimeoutError, BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                if is_short:
                    return
                raise
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = left[0][sent:]

    def clear(self) -> None:
        self._left.clear()


def tls_pieces(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """Large parts as they are, others joined: each piece is a record of TLS of its own at least."""
    # Yields views, whose repr does not show what may be a password.
    small = bytearray()
    for part in parts:
        if len(part) >= TLS_PIECE_BYTES:
            if small:
                yield memoryview(small)
                small = bytearray()
            yield part
        else:
            small += part
            if len(small) >= TLS_PIECE_BYTES:
                yield memoryview(small)
                small = bytearray()
    if small:
        yield memoryview(small)
