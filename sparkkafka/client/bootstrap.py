"""The addresses of bootstrap.servers, by the rule of client.dns.lookup."""

from __future__ import annotations

import logging
import socket

from sparkkafka.options import ClientOptions

log = logging.getLogger(__name__)

RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"


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
