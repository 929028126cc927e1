"""A TCP connection to a host, TLS on it, and which entry of bootstrap.servers answers first.

Failures of trust are final (AuthenticationError): asking again makes nobody trustworthy. A server
that hangs up in the middle of a TLS handshake may be starting, so that is worth another attempt.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from sparkkafka.client.auth.tls import NAME_MISMATCHES, context_of, untrusted_message
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.refusals import first_words, is_plain, reason, tls_refusal
from sparkkafka.client.values import Address
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
)

log = logging.getLogger(__name__)

_ConnectionT = TypeVar("_ConnectionT")

MIN_SHARE_MS = 1_000  # the least that a bootstrap server gets to answer, if there is so much time

RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"

_ONLY = {"v4": socket.AF_INET, "v6": socket.AF_INET6}
_FIRST = {"v4_first": socket.AF_INET, "v6_first": socket.AF_INET6}

LOOK_TIMEOUT_MS = 3_000
"""For a second look at a server, after it failed, to say what is wrong with it."""

_MAX_NAMES = 8

# {prefix} stands before names of settings that have one in Spark.
_NO_TLS = (
    "a listener without TLS, perhaps: compare {prefix}security.protocol with the listener's "
    "(PLAINTEXT or SASL_PLAINTEXT)"
)
# X509_V_ERR_… of OpenSSL.
_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def connect(host: str, port: int, options: ClientOptions, deadline: Deadline) -> socket.socket:
    """Raises KafkaConnectionError, which names host and port, with each address's failure. Its
    `errno` is ECONNREFUSED if an address refused, and none may still answer."""
    try:
        # client.dns.lookup=use_all_dns_ips: every address, IPv4 and IPv6, in the resolver's order.
        family = _ONLY.get(options.address_family, socket.AF_UNSPEC)
        addresses = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise KafkaConnectionError(
            f"{where(host, port)}: the host name cannot be resolved ({reason(error)})"
            + (
                f"; broker.address.family={options.address_family} allows no other addresses"
                if options.address_family in _ONLY
                else ""
            )
        ) from error
    first = _FIRST.get(options.address_family)
    if first is not None:
        addresses.sort(key=lambda row: row[0] != first)
    failures: list[str] = []
    has_refused = may_answer = False
    for family, kind, protocol, _, address in addresses:
        timeout_s = deadline.sooner(options.socket_connection_setup_timeout_ms).remaining_s()
        if timeout_s <= 0:
            failures.append(f"{address[0]}: no time left")
            may_answer = True
            break
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine lacks
            failures.append(f"{address[0]}: {reason(error)}")
            continue
        try:
            sock.settimeout(timeout_s)
            if deadline.close_signal is not None:
                deadline.close_signal.watch(sock)
            # Requests are written whole: waiting for more to send (Nagle) only adds delay.
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
            failures.append(f"{address[0]}: no answer within {timeout_s:.3g} s")
            may_answer = True
        except OSError as error:
            sock.close()
            has_refused = has_refused or isinstance(error, ConnectionRefusedError)
            failures.append(f"{address[0]}: {reason(error)}")
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    failure = KafkaConnectionError(f"{where(host, port)}: cannot connect ({'; '.join(failures)})")
    if has_refused and not may_answer:
        failure.errno = errno.ECONNREFUSED
    raise failure


def encrypt(
    sock: socket.socket,
    context: ssl.SSLContext,
    settings: TlsSettings,
    host: str,
    where: str,
    deadline: Deadline,
    prefix: str,
) -> ssl.SSLSocket:
    """The socket with TLS; takes it over, and closes it if anything fails.

    `where` is host and port for messages, `prefix` that of the user's settings. Raises
    AuthenticationError for a certificate that is not trusted and for a refusal,
    KafkaConnectionError and KafkaTimeoutError for the rest.
    """
    started_s = time.monotonic()
    try:
        peer = sock.getpeername()  # fails if it has hung up already
        # A dot at the end makes a name complete, but is not part of it in certificates and SNI.
        tls = context.wrap_socket(
            sock, server_hostname=host.removesuffix("."), do_handshake_on_connect=False
        )
    except (ValueError, OSError) as error:  # a name that IDNA does not know
        sock.close()
        raise KafkaConnectionError(f"{where}: TLS cannot begin ({error})") from error
    try:
        if deadline.close_signal is not None:
            deadline.close_signal.watch(tls)
        tls.settimeout(max(deadline.remaining_s(), 0.001))
        tls.do_handshake()
    except ssl.SSLCertVerificationError as error:
        tls.close()
        mismatch = error.verify_code in NAME_MISMATCHES
        words = untrusted_message(
            error,
            settings,
            host,
            address=f"{prefix}bootstrap.servers, and the brokers' advertised.listeners",
            trust=f"{prefix}ssl.truststore.location",
            prefix=prefix,
            names=_names_of(peer, settings, host) if mismatch else (),
        )
        raise AuthenticationError(f"{where}: the broker's certificate {words}") from error
    except TimeoutError as error:
        tls.close()
        raise KafkaTimeoutError(
            f"{where}: TLS was not agreed on within {time.monotonic() - started_s:.1f} s; "
            f"{_no_tls(prefix)}"
        ) from error
    except OSError as error:
        tls.close()
        if getattr(error, "reason", "") in _NO_TLS_REASONS:
            raise _not_tls(where, peer, context, prefix) from error
        gone = ssl.SSLEOFError | ssl.SSLSyscallError | ConnectionError
        if isinstance(error, ssl.SSLError) and not isinstance(error, gone):
            raise AuthenticationError(tls_refusal(error, where, prefix)) from error
        if is_plain(peer):
            raise _plain_listener(where, prefix) from error
        what = "the server closed the connection"
        if not isinstance(error, gone):
            what = f"the connection broke ({error.strerror or error})"
        raise KafkaConnectionError(
            f"{where}: {what} when TLS was to begin; {_no_tls(prefix)}"
        ) from error
    except BaseException:
        tls.close()
        raise
    return tls


def where(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class BootstrapServers:
    """Host and port of each entry, as given, or as the canonical names of all its addresses.

    The latter is for names that stand for several brokers, where TLS or Kerberos wants each
    broker's own name. They are looked up once, when first needed, as in Java.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._given = list(options.bootstrap_servers)
        self._canonical = options.client_dns_lookup == RESOLVE_CANONICAL
        self._found: list[tuple[str, int]] | None = None

    def addresses(self) -> list[tuple[str, int]]:
        """A new list. An entry that cannot be looked up stands in it as it was given: whoever
        connects to it says why it cannot be, and the next call looks again."""
        if not self._canonical:
            return list(self._given)
        if self._found is not None:
            return list(self._found)
        found: list[tuple[str, int]] = []
        complete = True
        for host, port in self._given:
            names = [(name, port) for name in _canonical_names(host)]
            complete = complete and bool(names)
            log.info("%s:%d stands for %s", host, port, names or "nothing: it cannot be resolved")
            found += names or [(host, port)]
        found = list(dict.fromkeys(found))
        if complete:
            self._found = found
        return list(found)


def first_to_answer(
    addresses: Sequence[Address],
    open_one: Callable[[str, int, Deadline], _ConnectionT],
    deadline: Deadline,
    prefix: str,
    reasons: dict[Address, str] | None = None,
) -> _ConnectionT:
    """What `open_one` opens, tried at each address in turn until the deadline.

    `reasons` is filled in with why an address failed; one that is handed in again keeps those of
    earlier attempts, as the last one may run out of time half-way. Raises KafkaConnectionError with
    all of them; what does not depend on the address ends the series.
    """
    reasons = {} if reasons is None else reasons
    failures: list[KafkaError] = []
    for number, address in enumerate(addresses):
        if failures and deadline.expired:
            break
        # A server that accepts and never answers must leave time for the others.
        share_ms = deadline.remaining_s() * 1000 / (len(addresses) - number)
        try:
            return open_one(*address, deadline.sooner(max(share_ms, MIN_SHARE_MS)))
        except (AuthenticationError, OptionError):
            raise  # the others would refuse the same password, and the account might be locked
        except KafkaError as error:
            # Also a port that is not Kafka's: the other entries may be right.
            log.info("bootstrap: %s", error)
            reasons[address] = str(error)
            failures.append(error)
    nobody = KafkaConnectionError(
        f"no broker of {prefix}bootstrap.servers can be reached: {'; '.join(reasons.values())}. "
        "Check host and port, and that the brokers have been started"
    )
    # If nobody there speaks Kafka, waiting does not help.
    nobody.retriable = any(error.retriable for error in failures)
    raise nobody


def _canonical_names(host: str) -> list[str]:
    """Of each address that the name has, in the resolver's order; none if it has no address."""
    return [_canonical_name(address) for address in addresses_of(host)]


def _canonical_name(address: str) -> str:
    """Java's getCanonicalHostName: the name that the address leads to, if that leads back to it;
    else the address itself."""
    try:
        name = socket.gethostbyaddr(address)[0]
    except (OSError, UnicodeError):
        return address
    return name if address in addresses_of(name) else address


def addresses_of(host: str) -> list[str]:
    """In the resolver's order; none if the name cannot be resolved."""
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def _no_tls(prefix: str) -> str:
    return _NO_TLS.format(prefix=prefix)


def _plain_listener(where: str, prefix: str) -> KafkaConnectionError:
    error = KafkaConnectionError(
        f"{where}: this listener is one of Kafka's without TLS, it answers what is not encrypted: "
        f"set {prefix}security.protocol to PLAINTEXT or SASL_PLAINTEXT (then nothing is encrypted, "
        "passwords neither), or connect to a listener with TLS"
    )
    error.retriable = False
    return error


def _not_tls(
    where: str, peer: tuple[str, int], context: ssl.SSLContext, prefix: str
) -> KafkaConnectionError:
    """OpenSSL only says that something's version number is wrong: look at what it is."""
    first = first_words(peer, context, LOOK_TIMEOUT_MS)
    if first.startswith(b"HTTP"):
        what = "HTTP: this port is a web server's, not a Kafka listener's"
    elif first.startswith(b"SSH-"):
        what = "SSH: this port is not a Kafka listener's"
    else:
        what = f"something else than TLS; {_no_tls(prefix)}"
    error = KafkaConnectionError(f"{where}: the answer is {what}")
    error.retriable = False
    return error


def _names_of(peer: tuple[str, int], settings: TlsSettings, host: str) -> tuple[str, ...]:
    """The names in a certificate that is sound but for them; empty if it shows none.

    Python gives the certificate of a handshake that succeeded only, so there is another one,
    without a look at the name, that ends with it.
    """
    context = context_of(replace(settings, check_hostname=False))
    try:
        with (
            socket.create_connection(peer[:2], timeout=LOOK_TIMEOUT_MS / 1000) as sock,
            context.wrap_socket(sock, server_hostname=host.removesuffix(".")) as tls,
        ):
            found = tls.getpeercert() or {}
    except (OSError, ValueError):
        return ()
    rows = found.get("subjectAltName", ())
    names = [str(row[1]) for row in rows if isinstance(row, tuple)][:_MAX_NAMES]
    return tuple(name if name.isprintable() else repr(name) for name in names)
