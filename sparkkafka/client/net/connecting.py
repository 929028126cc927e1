"""The entries of bootstrap.servers, which of them answers, and a TCP connection to a host."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Address
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, KafkaError, OptionError

log = logging.getLogger(__name__)

_ConnectionT = TypeVar("_ConnectionT")

MIN_SHARE_MS = 1_000  # the least that a bootstrap server gets to answer, if there is so much time

RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"

_ONLY = {"v4": socket.AF_INET, "v6": socket.AF_INET6}
_FIRST = {"v4_first": socket.AF_INET, "v6_first": socket.AF_INET6}


def connect(host: str, port: int, options: ClientOptions, deadline: Deadline) -> socket.socket:
    """Raises KafkaConnectionError, which names host and port, with each address's failure."""
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
    for family, kind, protocol, _, address in addresses:
        timeout_s = deadline.sooner(options.socket_connection_setup_timeout_ms).remaining_s()
        if timeout_s <= 0:
            failures.append(f"{address[0]}: no time left")
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
        except OSError as error:
            sock.close()
            failures.append(f"{address[0]}: {reason(error)}")
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise KafkaConnectionError(f"{where(host, port)}: cannot connect ({'; '.join(failures)})")


def where(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reason(error: BaseException) -> str:
    """What the system says, without number and class."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


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
    all of them, and what does not depend on the address, at once.
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
            raise  # the others would be told the same wrong password, and an account locked
        except KafkaError as error:
            # Also a port that is not Kafka's: the other entries may be right.
            log.info("bootstrap: %s", error)
            reasons[address] = str(error)
            failures.append(error)
    nobody = KafkaConnectionError(
        f"no broker of {prefix}bootstrap.servers can be reached: " + "; ".join(reasons.values())
    )
    # If nobody there speaks Kafka, waiting does not help.
    nobody.retriable = any(error.retriable for error in failures)
    raise nobody


def _canonical_names(host: str) -> list[str]:
    """Of each address that the name has, in the resolver's order; none if it has no address."""
    return [_canonical_name(address) for address in _addresses_of(host)]


def _canonical_name(address: str) -> str:
    """Java's getCanonicalHostName: the name that the address leads to, if that leads back to it;
    else the address itself."""
    try:
        name = socket.gethostbyaddr(address)[0]
    except (OSError, UnicodeError):
        return address
    return name if address in _addresses_of(name) else address


def _addresses_of(host: str) -> list[str]:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(row[4][0]) for row in rows))
