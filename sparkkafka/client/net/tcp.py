"""A TCP connection to a host and port: each address that the name has, in turn."""

from __future__ import annotations

import socket

from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import KafkaConnectionError

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
