"""A client's connections to the brokers: one per broker, and how soon to try one again.

A broker that cannot be reached is left alone for a while, and after a refused password so is every
broker. Those of a task that has ended are kept for the next.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sparkkafka.client.deadline import Backoff, CloseSignal, Deadline
from sparkkafka.client.metrics.network import NetworkMetrics
from sparkkafka.client.net.connecting import BootstrapServers, first_to_answer
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Address, Broker
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.options import SecureSettings, secure_settings
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    OptionError,
)

log = logging.getLogger(__name__)

MIN_REFUSED_MS = 1_000


class _Unreachable(NamedTuple):
    """A broker that could not be connected to: not tried again until then."""

    until_s: float
    reason: str
    backoff: Backoff


class Connections:
    """Opened when first needed, again after they broke. The arguments are those of `Cluster`."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        try_first: Address | None,
        close_signal: CloseSignal | None,
        for_task: bool,
        metrics: NetworkMetrics | None = None,
    ) -> None:
        self.options = options
        self._metrics = metrics
        self._close_signal = close_signal
        self._by_node: dict[int | None, Connection] = {}  # None: that of `to_any`
        self._servers = BootstrapServers(options)
        self._try_first = [try_first] if try_first else []
        self._bootstrap_failures: dict[tuple[str, int], str] = {}
        self._unreachable: dict[int, _Unreachable] = {}
        self._refused: tuple[float, str] | None = None
        self._next_expiry_s = 0.0  # monotonic; no connection expires before it
        self._made_s = time.monotonic()
        self.looked_up = _looked_up(options) if for_task else None

    def close(self) -> None:
        for connection in self._by_node.values():
            connection.close()
        self._by_node.clear()

    def close_idle(self) -> None:
        """Close those that nobody waits for: the brokers may not be ours any more."""
        for connection in self._by_node.values():
            if not connection.in_flight:
                connection.close()
        self._unreachable.clear()

    def _close_expired(self) -> None:
        """Close connections that were idle for connections.max.idle.ms."""
        max_idle_ms = self.options.connections_max_idle_ms
        now_s = time.monotonic()
        if not max_idle_ms or now_s < self._next_expiry_s:
            return
        for node_id, connection in list(self._by_node.items()):
            if connection.has_expired:
                log.debug("%s: closed, idle for %d ms or longer", connection, max_idle_ms)
                connection.close()
                del self._by_node[node_id]
        expiries_s = [connection.expires_s for connection in self._by_node.values()]
        self._next_expiry_s = min([now_s + max_idle_ms / 1000, *expiries_s])

    def to(self, broker: Broker, deadline: Deadline) -> Connection:
        """The connection to a broker, opened if need be. One attempt.

        Raises KafkaConnectionError if it cannot be reached; after a failed attempt for
        reconnect.backoff.ms (growing to reconnect.backoff.max.ms) without trying.
        """
        self._close_expired()
        node_id = broker.node_id
        connection = self.open_to(node_id)
        if connection is not None:
            is_there = (connection.host, connection.port) == broker[1:3]
            if connection.in_flight or (is_there and connection.is_quiet):
                return connection
            # The broker moved to another address (a restarted container), or closed the connection
            # while it was idle: what is sent with acks=0 would be lost.
            connection.close()
        unreachable = self._unreachable.get(node_id)
        if unreachable is not None and time.monotonic() < unreachable.until_s:
            raise KafkaConnectionError(unreachable.reason)
        try:
            connection = self.give_away(broker) or self.open(broker.host, broker.port, deadline)
        except (AuthenticationError, OptionError):
            raise
        except KafkaError as error:
            self._note_unreachable(node_id, str(error))
            raise
        self._unreachable.pop(node_id, None)
        self._by_node[node_id] = connection
        return connection

    def open(self, host: str, port: int, deadline: Deadline) -> Connection:
        """A new connection, the caller's own. One attempt.

        Raises KafkaConnectionError; AuthenticationError if one side does not trust the other. For
        a moment after that nobody is asked again: a wrong password that is tried at each broker
        can lock the account.
        """
        if self._refused is not None and time.monotonic() < self._refused[0]:
            raise AuthenticationError(self._refused[1])
        try:
            limit = deadline.until(self._close_signal)
            return Connection.open(host, port, self.options, limit, self._metrics)
        except AuthenticationError as error:
            wait_s = max(self.options.reconnect_backoff_max_ms, MIN_REFUSED_MS) / 1000
            self._refused = time.monotonic() + wait_s, str(error)
            raise

    def _note_unreachable(self, node_id: int, reason: str) -> None:
        known = self._unreachable.get(node_id)
        backoff = (
            known.backoff
            if known is not None
            else Backoff(self.options.reconnect_backoff_ms, self.options.reconnect_backoff_max_ms)
        )
        until_s = time.monotonic() + backoff.next_ms() / 1000
        self._unreachable[node_id] = _Unreachable(until_s, reason, backoff)

    def open_to(self, node_id: int | None) -> Connection | None:
        """The connection to a broker if there is one that is open; never makes one. With None that
        of `to_any`."""
        connection = self._by_node.get(node_id)
        return connection if connection is not None and connection.is_open else None

    def to_any(self, brokers: Iterable[Broker], deadline: Deadline) -> Connection:
        """A connection to whoever answers: an open one, one of `brokers`, a bootstrap entry (with
        metadata.recovery.strategy=none, if no broker is known).

        Raises KafkaConnectionError listing every address that was tried and why it failed.
        """
        self._close_expired()
        given = self.open_to(None)
        if given is not None:
            return given
        for connection in self._by_node.values():
            if connection.is_open and not connection.in_flight:
                return connection
        # Known brokers first, then the bootstrap list: all known ones may have moved away.
        known = [(broker.host, broker.port) for broker in brokers]
        knows_enough = known and self.options.metadata_recovery_strategy == "none"
        first = [] if knows_enough else self._servers.addresses()
        random.shuffle(known)
        random.shuffle(first)
        addresses = list(dict.fromkeys(self._try_first + known + first))
        self._try_first = []
        given = self._by_node[None] = first_to_answer(
            addresses, self.open, deadline, self.options.prefix, self._bootstrap_failures
        )
        return given

    def give_away(self, broker: Broker) -> Connection | None:
        """An idle connection to this broker, if there is one; now the caller's. `take_back` takes
        it again.

        A new one would cost two round trips (connect, ApiVersions), and those of TLS and SASL.
        """
        self._close_expired()
        for node_id in (broker.node_id, None):
            kept = self.open_to(node_id)
            if kept is not None and not kept.in_flight and (kept.host, kept.port) == broker[1:3]:
                return self._by_node.pop(node_id)
        return None

    def take_back(self, node_id: int, connection: Connection) -> None:
        """A connection that its owner needs no longer; closed if it cannot be used again."""
        if connection.in_flight or not connection.is_open or self.open_to(node_id) is not None:
            connection.close()
        else:
            self._by_node[node_id] = connection

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._by_node)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._made_s

    def drop_unusable(self) -> int:
        """Close what has an answer to come, or was closed by its broker; returns how many are
        left."""
        for node_id, connection in list(self._by_node.items()):
            if not connection.is_quiet:
                connection.close()
                del self._by_node[node_id]
        return self.count


MAX_KEPT = 64
"""Connections that a process keeps."""
OLDEST_KEPT_S = 600.0
"""How old connections may get by being kept: a later one has newer credentials."""


def _looked_up(options: ClientOptions) -> SecureSettings | None:
    """What references in security settings stand for now; None without references."""
    if not options.security.has_references:
        return None
    return secure_settings(options.security, options.bootstrap_servers)


def _has_changed(connections: Connections) -> bool:
    """Whether a reference stands for something else now, or nothing, so that nobody could say of a
    connection whose it is."""
    try:
        return _looked_up(connections.options) != connections.looked_up
    except OptionError:
        return True


class _Kept(NamedTuple):
    until_s: float
    connections: Connections


class KeptConnections:
    """The connections of tasks that have ended, for later tasks of this process.

    Only for the same options, and these hold all that makes a connection: brokers, user,
    credentials, trust; references in them must stand for the same as before. They are closed after
    connections.max.idle.ms, by default sooner than those of a client that is open.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[_Kept] = []
        self._timer: threading.Timer | None = None

    def take(self, options: ClientOptions) -> Connections | None:
        """Connections that are open; None if there are none."""
        with self._lock:
            for row in reversed(self._rows):
                kept = row.connections
                if kept.options == options and not _has_changed(kept):
                    self._rows.remove(row)
                    if kept.drop_unusable():
                        return kept
        return None

    def keep(self, connections: Connections) -> None:
        """Connections that nobody uses now; closed if they cannot be kept."""
        idle_s = connections.options.kept_max_idle_ms / 1000
        old = not idle_s or connections.age_s > OLDEST_KEPT_S
        if old or not connections.drop_unusable() or _has_changed(connections):
            connections.close()
            return
        with self._lock:
            self._rows.append(_Kept(time.monotonic() + idle_s, connections))
            while sum(row.connections.count for row in self._rows) > MAX_KEPT:
                self._rows.pop(0).connections.close()
            self._close_later()

    def close_all(self) -> None:
        with self._lock:
            for row in self._rows:
                row.connections.close()
            self._rows.clear()
            self._close_later()

    def _close_old(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            for row in [row for row in self._rows if row.until_s <= now_s]:
                self._rows.remove(row)
                row.connections.close()
            self._close_later()

    def _close_later(self) -> None:
        """With the lock: a timer for the row that is due first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._rows:
            first_s = min(row.until_s for row in self._rows)
            self._timer = threading.Timer(max(0.0, first_s - time.monotonic()), self._close_old)
            self._timer.daemon = True
            self._timer.start()

    def after_fork(self) -> None:
        """The parent's connections are not the child's."""
        rows = self._rows
        self._forget()
        for row in rows:
            row.connections.close()


KEPT = KeptConnections()
os.register_at_fork(after_in_child=KEPT.after_fork)


@contextmanager
def closed_if_interrupted(waited_for: Callable[[], Iterable[Connection]]) -> Iterator[None]:
    """Around requests to several brokers. Interrupted (Ctrl-C), it closes those connections, so
    that no later caller takes a late answer for its own."""
    try:
        yield
    except BaseException:
        for connection in waited_for():
            connection.close()
        raise
