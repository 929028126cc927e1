"""Why a listener refused us, broke a connection off or hung up; in words that say what to set.

Kafka's brokers hang up on who speaks another protocol than the listener's, and so does a broker
that is starting or dying: the first will never work, the second must be tried again. Another
connection tells them apart, by an answer to the right protocol. It sends nothing secret: it asks
what a listener can do, and names a SASL mechanism.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from sparkkafka.client.auth.sasl import printable
from sparkkafka.client.auth.tls import alert_hint
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.frames import FrameBuffer, HungUpError, ReplyReader
from sparkkafka.errors import (
    AuthenticationError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)
from sparkkafka.protocol.framing import Framing, is_tls
from sparkkafka.protocol.messages import ApiVersionsRequest, SaslHandshakeRequest

LOOK_MS = 1_000
"""For all of one look: it is made while somebody waits for an error."""

MAX_OPENING_FRAME_BYTES = 512 * 1024
"""Until the broker is known to be one: org.apache.kafka.common.network.ChannelBuilders reads no
larger frame before authentication either (sasl.server.max.receive.size)."""

Peer = tuple[Any, ...]

# The end of the stream without a TLS alert: a broker that died, or whose alert was lost since
# we wrote to a connection that it had closed.
_TLS_GONE = ssl.SSLEOFError | ssl.SSLSyscallError | ssl.SSLZeroReturnError


class Stage(enum.Enum):
    """How far a connection has come."""

    OPENING = "opening"
    NEW = "new"  # open, and no request of a caller has been answered
    PROVED = "proved"


# What it may mean that a listener hangs up, by our protocol and how far we came. Kafka's brokers
# give no reason on such a connection: they cannot even read what it sends. {prefix} stands before
# names of settings.
_HINTS = {
    ("PLAINTEXT", Stage.OPENING): "; if it always does, the listener may want TLS "
    "({prefix}security.protocol SSL or SASL_SSL), or not be Kafka's",
    ("PLAINTEXT", Stage.NEW): "; if it always does, the listener may want SASL "
    "({prefix}security.protocol SASL_PLAINTEXT)",
    ("SASL_PLAINTEXT", Stage.OPENING): "; if it always does, the listener may want TLS "
    "({prefix}security.protocol SASL_SSL), or not be Kafka's",
    ("SSL", Stage.OPENING): "; if it always does, the listener may want a client certificate "
    "({prefix}ssl.keystore.location), or not be Kafka's",
    ("SASL_SSL", Stage.OPENING): "; if it always does, the listener may want a client certificate "
    "({prefix}ssl.keystore.location), or not be Kafka's",
    ("SSL", Stage.NEW): "; if it always does, the listener may want SASL "
    "({prefix}security.protocol SASL_SSL), or a client certificate ({prefix}ssl.keystore.location)",
}


class Listener(NamedTuple):
    """Whom a connection leads to: `peer` is None if it had broken already. `prefix` stands before
    names of settings in messages."""

    where: str
    host: str
    peer: Peer | None
    protocol: str
    context: ssl.SSLContext | None
    prefix: str


def failure(
    listener: Listener,
    stage: Stage,
    doing: str,
    error: OSError,
    started_s: float,
    *,
    is_kafka: bool,
) -> KafkaConnectionError | KafkaTimeoutError | AuthenticationError:
    """What `error` means, which a connection's socket raised. `is_kafka`: it has told its versions.

    May take LOOK_MS, for a second look at a listener that hung up.
    """
    gone = isinstance(error, HungUpError | ConnectionError | _TLS_GONE)
    if isinstance(error, ssl.SSLError) and not gone and stage is Stage.OPENING:
        # With TLS 1.3 a server looks at our certificate when we believe to be connected.
        return AuthenticationError(tls_refusal(error, listener.where, listener.prefix))
    if isinstance(error, TimeoutError):
        return KafkaTimeoutError(
            f"{listener.where}: no answer within {time.monotonic() - started_s:.1f} s while {doing}"
        )
    hint = ""
    if gone:
        mistaken = _mistake(listener, stage, is_kafka=is_kafka)
        if mistaken:
            final = KafkaConnectionError(f"{listener.where}: {mistaken}")
            final.retriable = False
            return final
        hint = _HINTS.get((listener.protocol, stage), "").format(prefix=listener.prefix)
        if listener.protocol == "SASL_PLAINTEXT" and is_kafka:
            hint = ""  # it has understood us
    what = "the broker closed the connection" if isinstance(error, _TLS_GONE) else reason(error)
    return KafkaConnectionError(f"{listener.where}: {what} while {doing}{hint}")


def _mistake(listener: Listener, stage: Stage, *, is_kafka: bool) -> str:
    """Why the listener will always hang up, if that is certain; else empty."""
    peer, prefix = listener.peer, listener.prefix
    if peer is None:
        return ""
    encrypted = listener.context is not None
    if stage is Stage.OPENING and not encrypted and not is_kafka:
        if speaks_tls(peer):
            wanted = "SSL or SASL_SSL" if listener.protocol == "PLAINTEXT" else "SASL_SSL"
            return f"this listener speaks TLS: it wants {prefix}security.protocol {wanted}"
    elif stage is Stage.NEW and listener.protocol in ("PLAINTEXT", "SSL"):
        found = sasl_mechanisms(peer, listener.context, listener.host)
        if found is not None:
            wanted = "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
            return (
                f"this listener wants SASL: set {prefix}security.protocol to {wanted} and "
                f"{prefix}sasl.mechanism to one of {printable(', '.join(found))}"
            )
    return ""


def reason(error: BaseException) -> str:
    """What the system says, without number and class."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def tls_refusal(error: OSError, where: str, prefix: str) -> str:
    """Words for what the server, or OpenSSL, did not like; `prefix` is that of the user's
    settings."""
    reason = str(getattr(error, "reason", None) or error)
    meaning = alert_hint(error, prefix)
    return f"{where}: TLS failed: {_plain(reason)}" + (f"; {meaning}" if meaning else "")


def _plain(reason: str) -> str:
    """OpenSSL's TLSV1_ALERT_UNKNOWN_CA -> unknown ca, as far as it is one of those."""
    if not reason.isupper():
        return reason[:200]
    for begin in ("TLSV13_ALERT_", "TLSV1_ALERT_", "SSLV3_ALERT_", "TLSV1_"):
        if reason.startswith(begin):
            return "the server says: " + reason.removeprefix(begin).replace("_", " ").lower()
    return reason.replace("_", " ").lower()


def peer_of(sock: socket.socket) -> Peer | None:
    """Where it leads, None if it has broken already."""
    try:
        peer = sock.getpeername()
    except OSError:
        return None
    return peer if isinstance(peer, tuple) else None


# --- a second look ------------------------------------------------------------


def is_plain(peer: Peer) -> bool:
    """Whether a Kafka listener without TLS answers there."""
    return _answer(peer, ApiVersionsRequest(), 0, None, "") is not None


def sasl_mechanisms(peer: Peer, context: ssl.SSLContext | None, host: str) -> list[str] | None:
    """What the listener offers if it wants SASL; None if it does not, or cannot be asked.

    Kafka's brokers name what they offer in any case. One without SASL refuses; franz-go's kfake
    does not, but offers nothing.
    """
    answer = _answer(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1, context, host)
    wants = (ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    return None if answer is None or answer.error_code not in wants else answer.mechanisms or None


def speaks_tls(peer: Peer) -> bool:
    """Whether the listener answers TLS with TLS, even if it is an alert."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return is_tls(first_words(peer, context, LOOK_MS))


def first_words(peer: Peer, context: ssl.SSLContext, timeout_ms: float) -> bytes:
    """How a server begins its answer to TLS; empty if it does not answer."""
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


@contextlib.contextmanager
def kafka_errors_only(broker: str) -> Iterator[None]:
    """Whatever fails in here is a KafkaError: the threads of clients go on after those alone.

    Others are not expected. A ValueError is not kept as the cause, since it may quote a secret.
    """
    try:
        yield
    except KafkaError:
        raise
    except Exception as error:
        raise KafkaError(
            f"{broker}: opening the connection failed for a reason that sparkkafka does not know "
            f"({type(error).__name__})"
        ) from (None if isinstance(error, ValueError) else error)
