"""Replies out of a socket: in pieces, waiting or not, and what its descriptor tells of."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sparkkafka.client import reply_reader
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.frame_buffer import FrameBuffer
from sparkkafka.client.reply_reader import HungUpError, ReplyReader

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
def reader() -> ReplyReader:
    return ReplyReader(lambda prefix: int.from_bytes(prefix, "big"))


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


@pytest.mark.parametrize("size", [0, 1, 100, 70_000, LARGE])
@pytest.mark.parametrize("cut", [1, 4, 5, 1000])
def test_a_reply_in_two_pieces(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader, size: int, cut: int
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
                    assert is_told(ours, 20)
                    found = reader.read_ready(ours, buffer)
            assert bytes(found) == expected
            assert tells_of(ours) == 1
            assert not reader.has_begun
        sender.join()


def test_what_was_begun_without_waiting_is_waited_for(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader
) -> None:
    ours, theirs = pair
    whole = frame(LARGE)
    buffer = FrameBuffer()
    theirs.sendall(whole[:1000])
    assert is_told(ours, 20)
    assert reader.read_ready(ours, buffer) is None
    assert reader.has_begun
    sender = send_later(theirs, whole[1000:])
    assert bytes(reader.read(ours, buffer, Deadline(20_000))) == whole[4:]
    sender.join()


def test_the_descriptor_tells_of_no_more_than_will_come(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader
) -> None:
    ours, theirs = pair
    whole = frame(LARGE)
    theirs.sendall(whole[:1000])
    assert is_told(ours, 20)
    assert reader.read_ready(ours, FrameBuffer()) is None
    assert 1 < tells_of(ours) <= len(whole) - 1000
    theirs.sendall(whole[1000:-20_000])
    while reader.read_ready(ours, FrameBuffer()) is None and tells_of(ours) > 1:
        time.sleep(0.01)
    theirs.sendall(whole[-20_000:])
    assert is_told(ours, 20)


def test_while_nobody_waits_the_descriptor_may_keep_quiet(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader
) -> None:
    ours, theirs = pair
    reader.fill(ours)
    assert 1 < tells_of(ours) <= reply_reader._MOST_BYTES
    theirs.sendall(frame(10))
    reader.watch(ours)
    assert is_told(ours, 20)
    reader.fill(ours)
    found = reader.read_ready(ours, FrameBuffer())
    assert found is not None
    assert bytes(found) == frame(10)[4:]
    reader.fill(ours)
    theirs.sendall(frame(11))
    assert bytes(reader.read(ours, FrameBuffer(), Deadline(20_000))) == frame(11)[4:]


def test_a_begun_reply_decides_what_is_told_of(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader
) -> None:
    ours, theirs = pair
    theirs.sendall(frame(100)[:50])
    assert is_told(ours, 20)
    assert reader.read_ready(ours, FrameBuffer()) is None
    reader.fill(ours)
    assert tells_of(ours) == 1


def test_a_system_that_knows_nothing_of_it(
    pair: tuple[socket.socket, socket.socket],
    reader: ReplyReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pair
    monkeypatch.setattr(reply_reader.socket, "SO_RCVLOWAT", 12_345)
    reader.fill(ours)
    sender = send_later(theirs, frame(LARGE))
    assert bytes(reader.read(ours, FrameBuffer(), Deadline(20_000))) == frame(LARGE)[4:]
    sender.join()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("sent", [0, 3, 4, 1000])
def test_the_end_of_the_stream_in_a_large_reply(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader, waits: bool, sent: int
) -> None:
    ours, theirs = pair
    reader.fill(ours)
    theirs.sendall(frame(LARGE)[:sent])
    theirs.close()
    reader.watch(ours)
    with pytest.raises(HungUpError, match="closed the connection"):
        while True:
            if waits:
                reader.read(ours, FrameBuffer(), Deadline(20_000))
            else:
                assert is_told(ours, 20)
                reader.read_ready(ours, FrameBuffer())


def test_a_wait_ends_at_the_deadline(
    pair: tuple[socket.socket, socket.socket], reader: ReplyReader
) -> None:
    ours, theirs = pair
    theirs.sendall(frame(LARGE)[: LARGE // 2])
    with pytest.raises(TimeoutError):
        reader.read(ours, FrameBuffer(), Deadline(300))
