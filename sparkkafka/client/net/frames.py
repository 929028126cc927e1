"""Frames on a socket: writing requests, reading responses, and the memory for responses."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import KafkaConnectionError
from sparkkafka.protocol.framing import PREFIX_BYTES
from sparkkafka.protocol.wire.primitives import BytesLike, byte_view

LARGE_BYTES = 1 << 20
"""Buffers of at least this size are mapped memory."""


class FrameBuffer:
    """Memory that is used for one frame after the other: filling new memory takes 50 % longer.

    Receiving a frame overwrites the one before.
    """

    def __init__(self) -> None:
        self._data: Any = bytearray()

    def view(self, size_bytes: int) -> memoryview:
        """Return writable memory of this size; its content is undefined."""
        if len(self._data) < size_bytes:
            # The next frames may be a little larger. (Views of the old memory keep it alive.)
            self._data = _allocate(size_bytes + size_bytes // 8)
        return memoryview(self._data)[:size_bytes]


def _allocate(size_bytes: int) -> bytearray | mmap.mmap:
    """Allocate memory, mapped if it is large: mapped memory is used only as far as it is written,
    but a bytearray is filled with zeros, so that a wrong size in a response would use all of it.

    Raises MemoryError.
    """
    if size_bytes < LARGE_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return bytearray(size_bytes)
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # not an error of the socket, after which the client connects again
        raise MemoryError(f"there are no {size_bytes} bytes for a response: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without it
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


# The low-water mark (SO_RCVLOWAT): poll() and a blocking recv() return only once that many bytes
# have arrived. More important on Linux: unread bytes are acknowledged without delay only up to the
# mark, and the system reserves memory for twice as many. Without it a broker stops after a megabyte
# until its reader reads.
_MAX_MARK_BYTES = 16 << 20


class HungUpError(KafkaConnectionError):
    """The other side closed the connection."""


class ResponseReader:
    """Reads responses from one socket. `frame_length` returns the size in a prefix, or raises.

    `read` and `read_ready` continue a response that `read_ready` has begun. Both raise HungUpError,
    and what the socket raises."""

    def __init__(self, frame_length: Callable[[BytesLike], int]) -> None:
        self._frame_length = frame_length
        # The size of the next response and what follows it: a small response takes one call of
        # recv. The next responses too, if they are small and came with it.
        self._ahead = memoryview(bytearray(1024))
        self._ahead_bytes = 0
        self._view: memoryview | None = None  # the incomplete response, of which `_done` are read
        self._done = 0
        # The socket's SO_RCVLOWAT, from how many bytes on it counts as readable; 0: not known.
        self._low_water_bytes = 1
        self._has_low_water_marks = True  # whether the system lets them be set
        self._wakes_at_mark = True  # False for the rest of a response that it did not wake for

    @property
    def partial_bytes(self) -> int:
        """The number of bytes of the next response that have been read. While it is above 0, the
        socket's descriptor may not report bytes that have arrived."""
        return self._ahead_bytes + (0 if self._view is None else PREFIX_BYTES + self._done)

    def has_input(self, sock: socket.socket) -> bool:
        """Return whether bytes are here that the socket's descriptor does not report: those that
        came with the last response, and those that TLS has decrypted."""
        return self._ahead_bytes >= PREFIX_BYTES or (
            isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        )

    def receive_in_kernel(self, sock: socket.socket, size_bytes: int) -> None:
        """Let the socket count as readable only once the operating system has received about
        `size_bytes`, the size of the next response (SO_RCVLOWAT). One read then takes all of it.
        `prepare_to_poll` undoes this, for polls that must report the response's first byte."""
        if self._view is None:
            self._set_low_water_mark(sock, min(size_bytes, _MAX_MARK_BYTES))

    def prepare_to_poll(self, sock: socket.socket) -> None:
        """Make the socket's descriptor report the first byte of the next response."""
        if self._view is None:
            self._set_low_water_mark(sock, 1)

    def read(self, sock: socket.socket, buffer: FrameBuffer, deadline: Deadline) -> memoryview:
        """Read a whole response, and return it without its prefix. Raises TimeoutError.

        The thread sleeps until the socket has all bytes (its low-water mark). If it has not after
        0.2 s, the thread reads the rest as it arrives.
        """
        self.prepare_to_poll(sock)  # `receive_in_kernel` may have set a larger mark
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while True:
            if not self.has_input(sock):
                has_mark = self._low_water_bytes != 1
                remaining_s = min(max(deadline.remaining_s(), 0.001), 86_400)  # poll has 32 bits
                # Systems may fail to wake a reader at its mark (Linux did so under memory pressure
                # until 2021).
                is_ready = poll.poll((min(remaining_s, 0.2) if has_mark else remaining_s) * 1000)
                self._wakes_at_mark = self._wakes_at_mark and bool(is_ready or not has_mark)
            response = self.read_ready(sock, buffer)
            if response is not None:
                return response
            if deadline.expired:
                raise TimeoutError

    def read_ready(self, sock: socket.socket, buffer: FrameBuffer) -> memoryview | None:
        """Read as much of a response as has arrived. Return None until it is complete; `buffer`
        belongs to this response until then."""
        if sock.gettimeout() != 0:
            sock.settimeout(0)
        while True:
            if self._view is None and self._ahead_bytes >= PREFIX_BYTES:
                self._begin_response(buffer)
            view = self._view
            if view is not None and self._done == len(view):
                self._view, self._wakes_at_mark = None, True
                self._set_low_water_mark(sock, 1)
                return view
            rest = self._ahead[self._ahead_bytes :] if view is None else view[self._done :]
            try:
                count = sock.recv_into(rest)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._set_mark_to_rest(sock, 1 if view is None else len(rest))
                return None
            if count == 0:
                raise HungUpError("the broker closed the connection")
            if view is None:
                self._ahead_bytes += count
            else:
                self._done += count

    def _begin_response(self, buffer: FrameBuffer) -> None:
        """Begin the response whose prefix has been read, with the bytes that came with it."""
        size = self._frame_length(self._ahead[:PREFIX_BYTES])
        self._view = buffer.view(size)
        end = min(self._ahead_bytes, PREFIX_BYTES + size)
        self._done = end - PREFIX_BYTES
        self._view[: self._done] = self._ahead[PREFIX_BYTES:end]
        self._ahead_bytes -= end
        self._ahead[: self._ahead_bytes] = self._ahead[end : end + self._ahead_bytes]

    def _set_mark_to_rest(self, sock: socket.socket, size_bytes: int) -> None:
        """Set the low-water mark to the `size_bytes` of a response that have not arrived; to 1 if
        they are few, if the system did not wake at the mark, or with TLS, whose bytes are not those
        of the response."""
        is_large = size_bytes >= 64 << 10  # fewer bytes are not worth a system call
        has_mark = is_large and self._wakes_at_mark and not isinstance(sock, ssl.SSLSocket)
        self._set_low_water_mark(sock, min(size_bytes, _MAX_MARK_BYTES) if has_mark else 1)

    def _set_low_water_mark(self, sock: socket.socket, size_bytes: int) -> None:
        """Set SO_RCVLOWAT: the socket becomes readable only once this many bytes have arrived."""
        if size_bytes == self._low_water_bytes or (
            size_bytes > 1 and not self._has_low_water_marks
        ):
            return
        self._low_water_bytes = 0  # not known if Ctrl-C interrupts the next call
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
            if size_bytes > 1:
                # Linux before 4.18, and others, reserve no memory: the mark might be unreachable.
                mark = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
                if mark > sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF):
                    self._has_low_water_marks = False
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                    size_bytes = 1
        except OSError:  # a system without marks, or a socket that is closed
            self._has_low_water_marks = False
            size_bytes = 1
        self._low_water_bytes = size_bytes


TLS_RECORD_BYTES = 16 * 1024
"""The size of a TLS record. Smaller parts of a request are joined up to it."""


class RequestWriter:
    """Writes requests to one socket. Both methods raise what the socket raises, also TimeoutError.

    If the other side accepts nothing for `patience_s`, they return and keep the rest of a request
    in `unsent`. Later requests are written after it.
    """

    def __init__(self) -> None:
        self.unsent: deque[memoryview] = deque()

    def write(
        self,
        sock: socket.socket,
        parts: list[BytesLike],
        deadline: Deadline,
        patience_s: float | None = None,
    ) -> None:
        """Send all parts of a request, after the rest of earlier ones; records are not copied.
        `patience_s` as for `write_rest`.

        The list is emptied: an error's frames may be shown with their variables.
        """
        views = map(byte_view, parts)
        self.unsent += join_small(views) if isinstance(sock, ssl.SSLSocket) else views
        parts.clear()
        self.write_rest(sock, deadline, patience_s)

    def write_rest(
        self, sock: socket.socket, deadline: Deadline, patience_s: float | None = None
    ) -> None:
        """Send the rest of all requests.

        If the socket accepts nothing for `patience_s` (None: until the deadline, which raises
        TimeoutError), return and keep what is left.
        """
        unsent = self.unsent
        is_first = True
        has_patience = False
        while unsent:
            # Usually a socket accepts the request: without a timeout that takes two system calls
            # fewer.
            wait_s: float | None = 0.0
            if not is_first:
                wait_s = max(deadline.remaining_s(), 0.001)
                has_patience = patience_s is not None and patience_s < wait_s
                if has_patience:
                    wait_s = patience_s
            if sock.gettimeout() != wait_s:
                sock.settimeout(wait_s)
            sent = 0
            try:
                if isinstance(sock, ssl.SSLSocket):
                    # After a timeout OpenSSL requires the same bytes again.
                    sent = sock.send(unsent[0][: 16 * TLS_RECORD_BYTES])
                else:
                    # Systems allow 1,024 parts in one call (IOV_MAX).
                    sent = sock.sendmsg(itertools.islice(unsent, 64))
            except (TimeoutError, BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                if not is_first:
                    if has_patience:
                        return
                    raise
            is_first = False
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = unsent[0][sent:]


def join_small(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """Join small parts, because TLS makes at least one record of each part."""
    # Yields views, since their repr does not show what may be a password.
    small = bytearray()
    for part in parts:
        if len(part) >= TLS_RECORD_BYTES:
            if small:
                yield memoryview(small)
                small = bytearray()
            yield part
        else:
            small += part
            if len(small) >= TLS_RECORD_BYTES:
                yield memoryview(small)
                small = bytearray()
    if small:
        yield memoryview(small)
