"""A second connection to a listener that hung up, to say for certain what it wants.

Kafka's brokers hang up on who speaks another protocol than the listener's, and so does a broker
that is starting or dying: the one will never pass, the other must be tried again. What tells them
apart is an answer to the right protocol. Nothing secret is sent: what a listener can do, and the
name of a SASL mechanism.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.frame_buffer import FrameBuffer
from sparkkafka.client.net.reply_reader import ReplyReader
from sparkkafka.errors import ErrorCode, KafkaError
from sparkkafka.protocol.framing import Framing, is_tls
from sparkkafka.protocol.messages import ApiVersionsRequest, SaslHandshakeRequest

LOOK_MS = 1_000
"""For all of one look: it is made while somebody waits for an error."""

MAX_OPENING_FRAME_BYTES = 512 * 1024
"""Until the broker is known to be one: org.apache.kafka.common.network.ChannelBuilders reads no
larger frame before authentication either (sasl.server.max.receive.size)."""

Peer = tuple[Any, ...]


def is_plain(peer: Peer) -> bool:
    """Whether a Kafka listener without TLS answers there."""
    return _answer(peer, ApiVersionsRequest(), 0, None, "") is not None


def sasl_mechanisms(peer: Peer, context: ssl.SSLContext | None, host: str) -> list[str] | None:
    """What the listener offers if it wants SASL; None if it does not, or cannot be asked."""
    answer = _answer(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1, context, host)
    wants = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    return None if answer is None or answer.error_code not in wants else list(answer.mechanisms)


def speaks_tls(peer: Peer) -> bool:
    """Whether the listener answers to TLS with TLS, be it a refusal."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return is_tls(first_words(peer, context, LOOK_MS))


def first_words(peer: Peer, context: ssl.SSLContext, timeout_ms: float) -> bytes:
    """How a server begins its answer to TLS; empty if that cannot be had."""
    hello = ssl.MemoryBIO()
    begun = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    try:
        with contextlib.suppress(ssl.SSLWantReadError):
            begun.do_handshake()
        with socket.create_connection(peer[:2], timeout=timeout_ms / 1000) as sock:
            sock.sendall(hello.read())
            return sock.recv(5)
    except (OSError, ValueError):
        return b""


def _answer(
    peer: Peer, request: Any, version: int, context: ssl.SSLContext | None, host: str
) -> Any:
    """The answer to one request; None if what comes is none."""
    limit = Deadline(LOOK_MS)
    framing = Framing(None, MAX_OPENING_FRAME_BYTES)
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.create_connection(peer[:2], timeout=LOOK_MS / 1000))
            if context is not None:
                wrapped = context.wrap_socket(sock, server_hostname=host.removesuffix("."))
                sock = stack.enter_context(wrapped)
            sock.sendall(framing.send(request, version)[1])
            reader = ReplyReader(framing.frame_length)
            return framing.receive(reader.read(sock, FrameBuffer(), limit))[1]
    except (KafkaError, OSError, ValueError):
        return None
