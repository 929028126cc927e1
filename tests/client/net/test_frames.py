"""Responses out of a socket: in pieces, waiting or not, and what its descriptor tells of."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net import frames
from sparkkafka.client.net.frames import FrameBuffer, HungUpError, ResponseReader

LARGE = 3 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(ours, the broker's)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def reader() -> ResponseReader:
    return ResponseReader(lambda prefix: int.from_bytes(prefix, "big"))


def frame(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(range(256)) * (size // 256) + b"x" * (size % 256)


def tells_of(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def is_told(sock: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def send_later(sock: socket.socket, *pieces: bytes) -> threading.Thread:
    def send() -> None:
        for piece in pieces:
            time.sleep(0.02)
            sock.sendall(piece)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def check_a_large_response(
    reader: ResponseReader, ours: socket.socket, theirs: socket.socket
) -> None:
    sender = send_later(theirs, frame(LARGE))
    assert bytes(reader.read(ours, FrameBuffer(), Deadline(20_000))) == frame(LARGE)[4:]
    sender.join()


@pytest.mark.parametrize("size", [0, 1, 100, 70_000, LARGE])
@pytest.mark.parametrize("cut", [1, 4, 5, 1000])
def test_a_response_in_two_pieces(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader, size: int, cut: int
) -> None:
    ours, theirs = pair
    for waits in (True, False):
        whole = frame(size) + frame(3)
        sender = send_later(theirs, whole[:cut], whole[cut:])
        buffer = FrameBuffer()
        for expected in (frame(size)[4:], frame(3)[4:]):
            found = None
            while found is None:
                if waits:
                    found = reader.read(ours, buffer, Deadline(20_000))
                else:
                    assert reader.has_input(ours) or is_told(ours, 20)
                    found = reader.read_ready(ours, buffer)
            assert bytes(found) == expected
            assert tells_of(ours) == 1
        assert not reader.partial_bytes
        sender.join()


def test_small_responses_that_arrive_together_are_read_together(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    theirs.sendall(frame(10) + frame(20) + frame(2000)[:30])
    assert is_told(ours, 20)
    buffer = FrameBuffer()
    assert bytes(reader.read_ready(ours, buffer) or b"") == frame(10)[4:]
    assert reader.has_input(ours)
    assert not is_told(ours, 0)
    assert bytes(reader.read_ready(ours, buffer) or b"") == frame(20)[4:]
    assert reader.has_input(ours)
    assert reader.read_ready(ours, buffer) is None
    assert not reader.has_input(ours)  # the descriptor reports the rest
    theirs.sendall(frame(2000)[30:])
    assert bytes(reader.read(ours, buffer, Deadline(20_000))) == frame(2000)[4:]


def test_what_was_begun_without_waiting_is_waited_for(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    whole = frame(LARGE)
    buffer = FrameBuffer()
    theirs.sendall(whole[:1000])
    assert is_told(ours, 20)
    assert reader.read_ready(ours, buffer) is None
    assert reader.partial_bytes == 1000
    sender = send_later(theirs, whole[1000:])
    assert bytes(reader.read(ours, buffer, Deadline(20_000))) == whole[4:]
    sender.join()


def test_the_descriptor_tells_of_no_more_than_will_come(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    whole = frame(LARGE)
    theirs.sendall(whole[:1000])
    assert is_told(ours, 20)
    buffer = FrameBuffer()
    assert reader.read_ready(ours, buffer) is None
    assert 1 < tells_of(ours) <= len(whole) - 1000
    theirs.sendall(whole[1000:-20_000])
    while reader.read_ready(ours, buffer) is None and tells_of(ours) > 1:
        time.sleep(0.01)
    theirs.sendall(whole[-20_000:])
    assert is_told(ours, 20)


def test_while_nobody_waits_the_descriptor_may_keep_quiet(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    reader.receive_in_kernel(ours, LARGE)
    assert 1 < tells_of(ours) <= LARGE
    theirs.sendall(frame(10))
    reader.prepare_to_poll(ours)
    assert is_told(ours, 20)
    reader.receive_in_kernel(ours, LARGE)
    found = reader.read_ready(ours, FrameBuffer())
    assert found is not None
    assert bytes(found) == frame(10)[4:]
    reader.receive_in_kernel(ours, LARGE)
    theirs.sendall(frame(11))
    assert bytes(reader.read(ours, FrameBuffer(), Deadline(20_000))) == frame(11)[4:]


def test_a_begun_response_decides_what_is_reported(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    theirs.sendall(frame(100)[:50])
    assert is_told(ours, 20)
    assert reader.read_ready(ours, FrameBuffer()) is None
    reader.receive_in_kernel(ours, LARGE)
    assert tells_of(ours) == 1


def test_a_system_that_knows_nothing_of_it(
    pair: tuple[socket.socket, socket.socket],
    reader: ResponseReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pair
    monkeypatch.setattr(frames.socket, "SO_RCVLOWAT", 12_345)
    reader.receive_in_kernel(ours, LARGE)
    check_a_large_response(reader, ours, theirs)


def test_a_system_that_has_no_memory(
    pair: tuple[socket.socket, socket.socket],
    reader: ResponseReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Linux before 4.18: the mark would never be reached."""
    ours, theirs = pair
    monkeypatch.setattr(frames.socket, "SO_RCVBUF", socket.SO_TYPE)  # a small number
    reader.receive_in_kernel(ours, LARGE)
    assert tells_of(ours) == 1
    check_a_large_response(reader, ours, theirs)


def test_a_system_that_does_not_wake_at_the_mark(
    pair: tuple[socket.socket, socket.socket],
    reader: ResponseReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark is beyond what will come: after a while the bytes that are there are taken."""
    ours, theirs = pair
    plain = reader._set_low_water_mark

    def beyond(sock: socket.socket, size_bytes: int) -> None:
        plain(sock, size_bytes if size_bytes == 1 else 2 * LARGE)

    monkeypatch.setattr(reader, "_set_low_water_mark", beyond)
    check_a_large_response(reader, ours, theirs)


class Interrupted(socket.socket):
    """Ctrl-C comes right after its mark is set."""

    def setsockopt(self, *args: Any) -> None:
        super().setsockopt(*args)
        if args[1] == socket.SO_RCVLOWAT and args[2] > 1:
            raise KeyboardInterrupt


def test_ctrl_c_while_a_mark_is_set(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    sock = Interrupted(fileno=ours.detach())
    with sock:
        with pytest.raises(KeyboardInterrupt):
            reader.receive_in_kernel(sock, LARGE)
        theirs.sendall(frame(10))
        reader.prepare_to_poll(sock)
        assert is_told(sock, 20)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("sent", [0, 3, 4, 1000])
def test_the_end_of_the_stream_in_a_large_response(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader, waits: bool, sent: int
) -> None:
    ours, theirs = pair
    reader.receive_in_kernel(ours, LARGE)
    theirs.sendall(frame(LARGE)[:sent])
    theirs.close()
    reader.prepare_to_poll(ours)
    buffer = FrameBuffer()
    with pytest.raises(HungUpError, match="closed the connection"):
        while True:
            if waits:
                reader.read(ours, buffer, Deadline(20_000))
            else:
                assert is_told(ours, 20)
                reader.read_ready(ours, buffer)


def test_a_wait_ends_at_the_deadline(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    theirs.sendall(frame(LARGE)[: LARGE // 2])
    with pytest.raises(TimeoutError):
        reader.read(ours, FrameBuffer(), Deadline(300))


def test_a_deadline_may_be_further_away_than_poll_can_wait(
    pair: tuple[socket.socket, socket.socket], reader: ResponseReader
) -> None:
    ours, theirs = pair
    theirs.sendall(frame(100))
    assert bytes(reader.read(ours, FrameBuffer(), Deadline(2**40))) == frame(100)[4:]
