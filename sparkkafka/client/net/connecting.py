"""Connecting to a broker: TCP, TLS, bootstrap.servers, and why a listener refused or hung up.

A certificate that is not trusted is final (AuthenticationError). A server that closes the
connection during a TLS handshake may be starting, so that is retriable.

Kafka's brokers close a connection that uses another protocol than the listener's, and so does a
broker that is starting or stopping. The first will never work, the second is worth a retry. A
probe, which is a second connection, distinguishes them: it sends a request of the right protocol,
with no secret in it.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from sparkkafka import errors
from sparkkafka.client.auth.tls import (
    NAME_MISMATCHES,
    alert_hint,
    context_of,
    system_message,
    untrusted_message,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.frames import FrameBuffer, HungUpError, ResponseReader
from sparkkafka.client.values import Address
from sparkkafka.config.kinds import address_text
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.protocol.framing import Framing, is_tls
from sparkkafka.protocol.messages import ApiVersionsRequest, SaslHandshakeRequest

log = logging.getLogger(__name__)

_ConnectionT = TypeVar("_ConnectionT")


RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"

PROBE_MS = 1_000
"""The longest time for a probe. The user waits for the error meanwhile."""

TLS_PROBE_MS = 3_000
"""The longest time for a probe after a failed TLS handshake."""

MAX_OPENING_FRAME_BYTES = 512 * 1024
"""The largest frame before the broker has authenticated us, as in Kafka's brokers
(sasl.server.max.receive.size)."""

Peer = tuple[str, int]
"""Host and port of the other side of a socket."""

# The end of the stream without a TLS alert: a broker that stopped, or whose alert was lost because
# we wrote to a connection that it had closed.
_TLS_HUNG_UP = ssl.SSLEOFError | ssl.SSLSyscallError | ssl.SSLZeroReturnError


def connect(host: str, port: int, options: ClientOptions, deadline: Deadline) -> socket.socket:
    """Connect to the first address of the host that accepts.

    Raises KafkaConnectionError, which names host and port, with each address's failure. Its `errno`
    is ECONNREFUSED if an address refused, and no other may still answer.
    """
    where = address_text(host, port)
    preference = options.address_family  # any, v4, v6, v4_first or v6_first
    families = {"v4": socket.AF_INET, "v6": socket.AF_INET6}
    preferred_family = families.get(preference[:2], socket.AF_UNSPEC)
    only_preferred = preference in ("v4", "v6")
    try:
        # client.dns.lookup=use_all_dns_ips: every address, IPv4 and IPv6, in the resolver's order.
        addresses = socket.getaddrinfo(
            host,
            port,
            family=preferred_family if only_preferred else socket.AF_UNSPEC,
            type=socket.SOCK_STREAM,
        )
    except (OSError, UnicodeError) as error:
        raise errors.KafkaConnectionError(
            f"{where}: the host name cannot be resolved ({system_message(error)})"
            + (
                f"; broker.address.family={preference} allows no other addresses"
                if only_preferred
                else ""
            )
        ) from error
    if preferred_family != socket.AF_UNSPEC:
        addresses.sort(key=lambda row: row[0] != preferred_family)  # a row begins with the family
    failures: list[str] = []
    has_refused = may_respond = False  # an address refused; another one was not tried to the end
    for family, kind, protocol, _, address in addresses:
        timeout_s = deadline.sooner(options.socket_connection_setup_timeout_ms).remaining_s()
        if timeout_s <= 0:
            failures.append(f"{address[0]}: no time left")
            may_respond = True
            break
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine lacks
            failures.append(f"{address[0]}: {system_message(error)}")
            continue
        try:
            sock.settimeout(timeout_s)
            if deadline.close_signal is not None:
                deadline.close_signal.watch(sock)
            # Requests are written whole: to wait for more to send (Nagle) only adds delay.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in (
                (socket.SO_SNDBUF, options.send_buffer_bytes),
                (socket.SO_RCVBUF, options.receive_buffer_bytes),
            ):
                if size > 0:
                    sock.setsockopt(socket.SOL_SOCKET, option, size)
            sock.connect(address)
        except TimeoutError:
            sock.close()
            failures.append(f"{address[0]}: no response within {timeout_s:.3g} s")
            may_respond = True
        except OSError as error:
            sock.close()
            has_refused = has_refused or isinstance(error, ConnectionRefusedError)
            failures.append(f"{address[0]}: {system_message(error)}")
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    failure = errors.KafkaConnectionError(f"{where}: cannot connect ({'; '.join(failures)})")
    if has_refused and not may_respond:
        failure.errno = errno.ECONNREFUSED
    raise failure


def start_tls(
    sock: socket.socket,
    context: ssl.SSLContext,
    settings: TlsSettings,
    host: str,
    where: str,
    deadline: Deadline,
    prefix: str,
) -> ssl.SSLSocket:
    """Do the TLS handshake and return the encrypted socket; close `sock` if anything fails. `where`
    is host and port for messages, `prefix` stands before names of settings in them ("kafka." in
    Spark).

    Raises AuthenticationError if the certificate is not trusted or the server refuses,
    KafkaConnectionError and KafkaTimeoutError for the rest.
    """
    started_at_s = time.monotonic()
    try:
        peer = sock.getpeername()[:2]  # fails if it has hung up already
        # A dot at the end completes a name, but is not part of it in certificates and SNI.
        tls = context.wrap_socket(
            sock, server_hostname=host.removesuffix("."), do_handshake_on_connect=False
        )
    except (ValueError, OSError) as error:  # a name that IDNA does not know
        sock.close()
        raise errors.KafkaConnectionError(f"{where}: TLS cannot begin ({error})") from error
    try:
        if deadline.close_signal is not None:
            deadline.close_signal.watch(tls)
        tls.settimeout(max(deadline.remaining_s(), 0.001))
        tls.do_handshake()
    except ssl.SSLCertVerificationError as error:
        tls.close()
        mismatch = error.verify_code in NAME_MISMATCHES
        message = untrusted_message(
            error,
            settings,
            host,
            address=f"{prefix}bootstrap.servers, and the brokers' advertised.listeners",
            trust=f"{prefix}ssl.truststore.location",
            prefix=prefix,
            names=_probe_certificate_names(peer, settings, host) if mismatch else (),
        )
        raise errors.AuthenticationError(f"{where}: the broker's certificate {message}") from error
    except TimeoutError as error:
        tls.close()
        raise errors.KafkaTimeoutError(
            f"{where}: TLS was not agreed on within {time.monotonic() - started_at_s:.1f} s; "
            f"{_no_tls_hint(prefix)}"
        ) from error
    except OSError as error:
        tls.close()
        not_tls = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
        if getattr(error, "reason", "") in not_tls:
            raise _not_tls_error(where, peer, context, prefix) from error
        hung_up = ssl.SSLEOFError | ssl.SSLSyscallError | ConnectionError
        if isinstance(error, ssl.SSLError) and not isinstance(error, hung_up):
            raise errors.AuthenticationError(_tls_refusal(error, where, prefix)) from error
        if _send_probe(peer, ApiVersionsRequest(), 0, None, "") is not None:
            raise _final_error(
                f"{where}: this Kafka listener does not use TLS: set {prefix}security.protocol to "
                "PLAINTEXT or SASL_PLAINTEXT (then nothing is encrypted, not even passwords), or "
                "connect to a listener with TLS"
            ) from error
        what = "the server closed the connection"
        if not isinstance(error, hung_up):
            what = f"the connection broke ({error.strerror or error})"
        raise errors.KafkaConnectionError(
            f"{where}: {what} at the start of TLS; {_no_tls_hint(prefix)}"
        ) from error
    except BaseException:
        tls.close()
        raise
    return tls


class BootstrapServers:
    """The entries of bootstrap.servers, or with client.dns.lookup=resolve_canonical_… the canonical
    names of all their addresses.

    Those are for names with several brokers, if TLS or Kerberos needs each broker's own name. They
    are resolved once, when first needed, as in Java.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._entries = list(options.bootstrap_servers)
        self._needs_canonical_names = options.client_dns_lookup == RESOLVE_CANONICAL

    def addresses(self) -> list[Address]:
        """Return (host, port) of each entry. An entry that cannot be resolved is returned as it is:
        connecting to it raises the error, and the next call tries to resolve it again."""
        if not self._needs_canonical_names:
            return list(self._entries)
        addresses: list[Address] = []
        has_resolved_all = True
        for host, port in self._entries:
            names = [(_canonical_name(address), port) for address in addresses_of(host)]
            has_resolved_all = has_resolved_all and bool(names)
            log.info("%s:%d has the names %s", host, port, names or "of no address")
            addresses += names or [(host, port)]
        addresses = list(dict.fromkeys(addresses))
        if has_resolved_all:
            self._entries, self._needs_canonical_names = addresses, False
        return list(addresses)


def connect_to_first(
    addresses: Sequence[Address],
    open_connection: Callable[[str, int, Deadline], _ConnectionT],
    deadline: Deadline,
    prefix: str,
    reasons: dict[Address, str] | None = None,
) -> _ConnectionT:
    """Return the connection that `open_connection` opens to the first address that works.

    `reasons` collects why each address failed, also over several calls: the last attempt may have
    no time for all addresses. Raises KafkaConnectionError with all of them, and immediately an
    error that does not depend on the address.
    """
    reasons = {} if reasons is None else reasons
    failures: list[errors.KafkaError] = []
    for number, address in enumerate(addresses):
        if failures and deadline.expired:
            break
        # A server that accepts and never answers must leave time for the others.
        share_ms = deadline.remaining_s() * 1000 / (len(addresses) - number)
        try:
            # Each bootstrap server has at least 1 s to answer, if that much time is left.
            return open_connection(*address, deadline.sooner(max(share_ms, 1_000)))
        except (errors.AuthenticationError, errors.OptionError):
            raise  # the others would refuse the same password too, and might lock the account
        except errors.KafkaError as error:
            # Continue even if a port is not Kafka's: the other entries may be right.
            log.info("bootstrap: %s", error)
            reasons[address] = str(error)
            failures.append(error)
    # If none of them is a Kafka listener, a retry does not help.
    retriable = any(error.retriable for error in failures)
    advice = ". Check host and port, and that the brokers have been started" if retriable else ""
    failure = errors.KafkaConnectionError(
        f"no broker of {prefix}bootstrap.servers can be reached: {'; '.join(reasons.values())}"
        f"{advice}"
    )
    failure.retriable = retriable
    raise failure


def check_servers(options: ClientOptions, deadline: Deadline) -> None:
    """Raise KafkaConnectionError if, until the deadline, every bootstrap server refuses connections
    or has a name that cannot be resolved. Makes at least one attempt.

    Most likely the address is wrong, or no broker was started: the caller need not wait for longer.
    The first server that fails in another way, or accepts, ends the check, after a second at most.
    """
    while failures := _unreachable_servers(options, Deadline(1_000, deadline.close_signal)):
        deadline.pause(options.retry_backoff_max_ms)
        if deadline.expired:
            tried = f" for {deadline.text}" if deadline.total_ms else ""
            raise _final_error(
                f"no bootstrap server can be reached{tried}: {'; '.join(failures)}. Check the "
                "names and ports, and that the brokers are running"
            )


def _unreachable_servers(options: ClientOptions, deadline: Deadline) -> list[str]:
    """Return why the bootstrap servers cannot be reached; empty if one of them may be there."""
    failures: list[str] = []
    for host, port in BootstrapServers(options).addresses():
        where = address_text(host, port)
        try:
            connect(host, port, options, deadline).close()
        except errors.KafkaConnectionError as error:
            if error.errno == errno.ECONNREFUSED:
                failures.append(f"{where} refused the connection, so no broker listens there")
                continue
            if isinstance(error.__cause__, socket.gaierror | UnicodeError):
                failures.append(str(error))
                continue
        return []
    return failures


def _canonical_name(address: str) -> str:
    """Return the name of the address if that resolves to it, else the address, as Java does
    (getCanonicalHostName)."""
    try:
        name, _, _ = socket.gethostbyaddr(address)
    except (OSError, UnicodeError):
        return address
    return name if address in addresses_of(name) else address


def addresses_of(host: str) -> list[str]:
    """Return the host's addresses in the resolver's order; none if it cannot be resolved."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def _no_tls_hint(prefix: str) -> str:
    """Return a hint for a TLS handshake that failed because the listener has no TLS."""
    return (
        f"perhaps a listener without TLS: compare {prefix}security.protocol with the listener's "
        "(PLAINTEXT or SASL_PLAINTEXT)"
    )


def _final_error(message: str) -> errors.KafkaConnectionError:
    """Return a KafkaConnectionError that is not retriable."""
    error = errors.KafkaConnectionError(message)
    error.retriable = False
    return error


def _not_tls_error(
    where: str, peer: Peer, context: ssl.SSLContext, prefix: str
) -> errors.KafkaConnectionError:
    """Return the error for a server whose response to the TLS handshake is not TLS. Makes a probe:
    the text of the response may show what the server is (HTTP, SSH)."""
    first = _probe_tls(peer, context, TLS_PROBE_MS)
    if first.startswith(b"HTTP"):
        what = "HTTP: this port is a web server's, not a Kafka listener's"
    elif first.startswith(b"SSH-"):
        what = "SSH: this port is not a Kafka listener's"
    else:
        what = f"not TLS; {_no_tls_hint(prefix)}"
    return _final_error(f"{where}: the response is {what}")


def _probe_certificate_names(peer: Peer, settings: TlsSettings, host: str) -> tuple[str, ...]:
    """Return the first names in the server's certificate, which is valid except that it does not
    have the name of the host.

    Python shows a certificate only after a successful handshake, so this makes a new connection and
    does a handshake that does not check the name.
    """
    context = context_of(replace(settings, check_hostname=False))
    try:
        with (
            socket.create_connection(peer, timeout=TLS_PROBE_MS / 1000) as sock,
            context.wrap_socket(sock, server_hostname=host.removesuffix(".")) as tls,
        ):
            certificate = tls.getpeercert() or {}
    except (OSError, ValueError):
        return ()
    pairs = certificate.get("subjectAltName", ())  # such as ("DNS", "broker1")
    names = [str(pair[1]) for pair in pairs if isinstance(pair, tuple)][:8]
    return tuple(name if name.isprintable() else repr(name) for name in names)


# --- why a listener refused or hung up --------------------------------------------------------


class Stage(enum.Enum):
    """How far a connection has got, for the hints of its errors."""

    OPENING = "opening"
    OPEN = "open"  # no request of a caller has been answered yet
    ANSWERED = "answered"


# Why a listener may have hung up, by our protocol and stage. Kafka's brokers give no reason on such
# a connection, since they cannot read its requests. {prefix} is that of settings.
_HINTS = {
    ("PLAINTEXT", Stage.OPENING): "; if it always does, the listener may want TLS "
    "({prefix}security.protocol SSL or SASL_SSL), or not be Kafka's",
    ("PLAINTEXT", Stage.OPEN): "; if it always does, the listener may want SASL "
    "({prefix}security.protocol SASL_PLAINTEXT)",
    ("SASL_PLAINTEXT", Stage.OPENING): "; if it always does, the listener may want TLS "
    "({prefix}security.protocol SASL_SSL), or not be Kafka's",
    ("SSL", Stage.OPENING): "; if it always does, the listener may want a client certificate "
    "({prefix}ssl.keystore.location), or not be Kafka's",
    ("SASL_SSL", Stage.OPENING): "; if it always does, the listener may want a client certificate "
    "({prefix}ssl.keystore.location), or not be Kafka's",
    ("SSL", Stage.OPEN): "; if it always does, the listener may want SASL "
    "({prefix}security.protocol SASL_SSL), or a client certificate ({prefix}ssl.keystore.location)",
}


class Listener(NamedTuple):
    """The broker's side of a connection, for errors. `peer` is its address, None if the connection
    had broken already; `prefix` is that of settings in messages."""

    where: str
    host: str
    peer: Peer | None
    protocol: str
    context: ssl.SSLContext | None
    prefix: str


def connection_error(
    listener: Listener,
    stage: Stage,
    doing: str,
    error: OSError,
    started_at_s: float,
    *,
    is_kafka: bool,
) -> errors.KafkaConnectionError | errors.KafkaTimeoutError | errors.AuthenticationError:
    """Return the KafkaError for `error`, which the connection's socket raised. `doing` names the
    interrupted work for the message ("reading the response"), which began at `started_at_s`
    (monotonic).

    `is_kafka`: the listener has answered ApiVersions. If the listener closed the connection, this
    function makes probes, which take up to PROBE_MS.
    """
    has_hung_up = isinstance(error, HungUpError | ConnectionError | _TLS_HUNG_UP)
    if isinstance(error, ssl.SSLError) and not has_hung_up and stage is Stage.OPENING:
        # With TLS 1.3 a server checks our certificate after our side of the handshake.
        return errors.AuthenticationError(_tls_refusal(error, listener.where, listener.prefix))
    if isinstance(error, TimeoutError):
        return errors.KafkaTimeoutError(
            f"{listener.where}: no response within {time.monotonic() - started_at_s:.1f} s "
            f"while {doing}"
        )
    hint = ""
    if has_hung_up:
        mismatch = _protocol_mismatch(listener, stage, is_kafka=is_kafka)
        if mismatch:
            return _final_error(f"{listener.where}: {mismatch}")
        hint = _HINTS.get((listener.protocol, stage), "").format(prefix=listener.prefix)
        if listener.protocol == "SASL_PLAINTEXT" and is_kafka:
            hint = ""  # the listener understands this protocol
    what = (
        "the broker closed the connection"
        if isinstance(error, _TLS_HUNG_UP)
        else system_message(error)
    )
    return errors.KafkaConnectionError(f"{listener.where}: {what} while {doing}{hint}")


def _protocol_mismatch(listener: Listener, stage: Stage, *, is_kafka: bool) -> str:
    """Return why the listener closes every connection with the configured security.protocol, "" if
    that is not certain. Makes a probe. `is_kafka`: the listener has answered ApiVersions."""
    peer, prefix = listener.peer, listener.prefix
    if peer is None:
        return ""
    uses_tls = listener.context is not None
    if stage is Stage.OPENING and not uses_tls and not is_kafka:
        # A listener with TLS answers this handshake, if only with an alert.
        if is_tls(_probe_tls(peer, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), PROBE_MS)):
            protocols = "SSL or SASL_SSL" if listener.protocol == "PLAINTEXT" else "SASL_SSL"
            return f"this listener uses TLS: set {prefix}security.protocol to {protocols}"
    elif stage is Stage.OPEN and listener.protocol in ("PLAINTEXT", "SSL"):
        mechanisms = _probe_sasl_mechanisms(peer, listener.context, listener.host)
        if mechanisms is not None:
            protocol = "SASL_SSL" if uses_tls else "SASL_PLAINTEXT"
            return (
                f"this listener requires SASL: set {prefix}security.protocol to {protocol} and "
                f"{prefix}sasl.mechanism to one of {errors.printable(', '.join(mechanisms)[:300])}"
            )
    return ""


def _tls_refusal(error: OSError, where: str, prefix: str) -> str:
    """Return the message for a handshake that the server, or OpenSSL, refused."""
    reason, hint = system_message(error), alert_hint(error, prefix)
    if reason.isupper():  # OpenSSL's TLSV1_ALERT_UNKNOWN_CA
        for alert_prefix in ("TLSV13_ALERT_", "TLSV1_ALERT_", "SSLV3_ALERT_", "TLSV1_"):
            if reason.startswith(alert_prefix):
                reason = f"the server says: {reason.removeprefix(alert_prefix)}"
                break
        reason = reason.replace("_", " ")
        reason = reason if ":" in reason else reason.lower()  # the names of alerts stay upper
    return f"{where}: TLS failed: {reason}" + (f"; {hint}" if hint else "")


def peer_of(sock: socket.socket) -> Peer | None:
    """Return the address of the other side, None if the connection has broken already."""
    try:
        peer = sock.getpeername()
    except OSError:
        return None
    return peer[:2] if isinstance(peer, tuple) else None  # IPv6 has more than host and port


# --- probes ----------------------------------------------------------------------------------


def _probe_sasl_mechanisms(
    peer: Peer, context: ssl.SSLContext | None, host: str
) -> list[str] | None:
    """Return the mechanisms of a listener with SASL; None without, or if it does not answer.

    A broker without SASL refuses the request; franz-go's kfake accepts it with no mechanisms.
    """
    response = _send_probe(peer, SaslHandshakeRequest(mechanism="PLAIN"), 1, context, host)
    has_sasl = (errors.ErrorCode.NONE, errors.ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if response is None or response.error_code not in has_sasl:
        return None
    return response.mechanisms or None


def _probe_tls(peer: Peer, context: ssl.SSLContext, timeout_ms: float) -> bytes:
    """Send the first message of a TLS handshake on a new connection, and return the first bytes of
    the response; empty without one."""
    hello = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    try:
        with contextlib.suppress(ssl.SSLWantReadError):
            handshake.do_handshake()
        with socket.create_connection(peer, timeout=timeout_ms / 1000) as sock:
            sock.sendall(hello.read())
            return sock.recv(5)  # the header of a TLS record
    except (OSError, ValueError):
        return b""


def _send_probe(
    peer: Peer, request: Any, version: int, context: ssl.SSLContext | None, host: str
) -> Any:
    """Send one request on a new connection and return the response, None if there is no valid one.
    `context` is the TLS context, None for a connection without TLS; `host` is the name of the
    server for TLS."""
    limit = Deadline(PROBE_MS)
    framing = Framing(None, MAX_OPENING_FRAME_BYTES)
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.create_connection(peer, timeout=PROBE_MS / 1000))
            if context is not None:
                wrapped = context.wrap_socket(sock, server_hostname=host.removesuffix("."))
                sock = stack.enter_context(wrapped)
            _, frame = framing.send(request, version)
            sock.sendall(frame)
            reader = ResponseReader(framing.frame_length)
            _, response = framing.receive(reader.read(sock, FrameBuffer(), limit))
            return response
    except (errors.KafkaError, OSError, ValueError):
        return None


@contextlib.contextmanager
def kafka_errors_only(broker: str) -> Iterator[None]:
    """Raise a KafkaError in place of any other error of the block, because the threads of clients
    handle only KafkaErrors. The other error is its cause, except a ValueError, whose text may
    contain a secret."""
    try:
        yield
    except errors.KafkaError:
        raise
    except Exception as error:
        raise errors.KafkaError(
            f"{broker}: opening the connection failed with an unexpected error "
            f"({type(error).__name__})"
        ) from (None if isinstance(error, ValueError) else error)
