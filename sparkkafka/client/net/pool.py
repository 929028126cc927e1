"""A client's connections to the brokers, one for each, and the cache of those of ended tasks."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from sparkkafka import errors
from sparkkafka.client.deadline import Backoff, CloseSignal, Deadline
from sparkkafka.client.metrics import NetworkMetrics
from sparkkafka.client.net.connecting import BootstrapServers, connect_to_first
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Address, Broker
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.options import SecureSettings, explained_prefix, secure_settings

MIN_REFUSED_MS = 1_000
"""The shortest wait after a broker has refused a password."""


class _Wait(NamedTuple):
    """The backoff after a failed connection: when it ends (monotonic), and why the connection
    failed."""

    until_s: float
    reason: str
    backoff: Backoff


class ReconnectBackoff:
    """The backoffs of one client before it connects again. During a backoff `check` raises the last
    failure.

    That of a broker grows from reconnect.backoff.ms to reconnect.backoff.max.ms. After a wrong
    password the backoff is for all brokers, because a wrong password that is sent to each of them
    may lock the account.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._initial_ms = options.reconnect_backoff_ms
        self._max_ms = options.reconnect_backoff_max_ms
        self._waits: dict[int, _Wait] = {}  # by node id
        # A broker has refused the credentials, for this reason: no connection until then.
        self._refused_until_s = 0.0
        self._refusal = ""

    def check(self, node_id: int) -> None:
        """Raise KafkaConnectionError if the backoff after the last failed connection to this broker
        is not over."""
        wait = self._waits.get(node_id)
        if wait is not None and time.monotonic() < wait.until_s:
            raise errors.KafkaConnectionError(wait.reason)

    def check_refusal(self) -> None:
        """Raise AuthenticationError if a broker has refused the password and the backoff after that
        is not over."""
        if time.monotonic() < self._refused_until_s:
            raise errors.AuthenticationError(self._refusal)

    def on_failure(self, node_id: int, reason: str) -> None:
        """Delay the next attempt to connect to this broker, longer after each failure."""
        known = self._waits.get(node_id)
        backoff = Backoff(self._initial_ms, self._max_ms) if known is None else known.backoff
        until_s = time.monotonic() + backoff.next_ms() / 1000
        self._waits[node_id] = _Wait(until_s, reason, backoff)

    def on_success(self, node_id: int) -> None:
        """End the backoff of this broker."""
        self._waits.pop(node_id, None)

    def on_refusal(self, reason: str) -> None:
        """Delay all attempts to connect: a broker has refused the credentials."""
        self._refused_until_s = time.monotonic() + max(self._max_ms, MIN_REFUSED_MS) / 1000
        self._refusal = reason

    def forget(self) -> None:
        """Forget the backoffs of single brokers, because brokers may have other addresses now."""
        self._waits.clear()


log = logging.getLogger(__name__)


class ConnectionPool:
    """One connection to each broker, opened when it is first needed, and opened again after it
    broke. The arguments are those of `Cluster`."""

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
        self._bootstrap_failures: dict[tuple[str, int], str] = {}  # the last one, by host and port
        self._reconnect_backoff = ReconnectBackoff(options)
        self._expiry_at_s = 0.0  # monotonic; no connection expires before it
        self._made_at_s = time.monotonic()
        self.security = _resolve_security(options) if for_task else None
        self.had_no_time_to_open = False
        """Whether a broker accepted the last connection, and the deadline passed before the
        connection was open. The user of the pool may reset it."""

    def close(self) -> None:
        for connection in self._by_node.values():
            connection.close()
        self._by_node.clear()

    def close_idle(self) -> None:
        """Close connections with nothing in flight: their brokers may belong to another cluster
        now. Others stay open until their responses are read."""
        for connection in self._by_node.values():
            if not connection.in_flight:
                connection.close()
        self._reconnect_backoff.forget()

    def _close_expired(self) -> None:
        """Close connections that were idle for connections.max.idle.ms."""
        max_idle_ms = self.options.connections_max_idle_ms
        now_s = time.monotonic()
        if not max_idle_ms or now_s < self._expiry_at_s:
            return
        for node_id, connection in list(self._by_node.items()):
            if connection.has_expired:
                log.debug("%s: closed, idle for %d ms or longer", connection, max_idle_ms)
                connection.close()
                del self._by_node[node_id]
        expire_at_s = [connection.expires_at_s for connection in self._by_node.values()]
        self._expiry_at_s = min([now_s + max_idle_ms / 1000, *expire_at_s])

    def to(self, broker: Broker, deadline: Deadline) -> Connection:
        """Return the connection to a broker. If there is none, try once to open it.

        Raises KafkaConnectionError if it cannot be reached, and after that without an attempt for
        reconnect.backoff.ms, which grows to reconnect.backoff.max.ms.
        """
        node_id = broker.node_id
        connection = self.find_usable(broker)
        if connection is not None:
            return connection
        self._reconnect_backoff.check(node_id)
        try:
            connection = self.take_idle(broker) or self.open(broker.host, broker.port, deadline)
        except (errors.AuthenticationError, errors.OptionError):
            raise
        except errors.KafkaError as error:
            self._reconnect_backoff.on_failure(node_id, str(error))
            raise
        self._reconnect_backoff.on_success(node_id)
        self._by_node[node_id] = connection
        return connection

    def find_usable(self, broker: Broker) -> Connection | None:
        """Return the open connection to a broker, None if there is none. Closes one that the broker
        has closed while it was idle (a request with acks=0 would be lost), or that is to a former
        address of the broker (a restarted container)."""
        self._close_expired()
        connection = self.find_open(broker.node_id)
        if connection is not None:
            has_address = connection.host == broker.host and connection.port == broker.port
            # With requests in flight its user reads the responses first, or the error.
            if (has_address and connection.is_quiet) or connection.in_flight:
                return connection
            connection.close()
        return None

    def open(self, host: str, port: int, deadline: Deadline) -> Connection:
        """Try once to open a connection, which the caller owns and closes.

        Raises KafkaConnectionError, and AuthenticationError if one side does not trust the other.
        After an AuthenticationError calls raise it without an attempt, for the reconnect backoff.
        """
        self._reconnect_backoff.check_refusal()
        try:
            deadline = deadline.with_close_signal(self._close_signal)
            return Connection.open(host, port, self.options, deadline, self._metrics)
        except errors.AuthenticationError as error:
            self._reconnect_backoff.on_refusal(str(error))
            raise
        except errors.KafkaTimeoutError:
            self.had_no_time_to_open = True
            raise

    def find_open(self, node_id: int | None) -> Connection | None:
        """Return the open connection to a broker, or None; opens none. For the node id None, return
        the connection of `to_any`."""
        connection = self._by_node.get(node_id)
        return connection if connection is not None and connection.is_open else None

    def to_any(self, brokers: Iterable[Broker], deadline: Deadline) -> Connection:
        """Return a connection to any broker: an open one, else to the first that answers.

        It tries `brokers`, then bootstrap.servers (with metadata.recovery.strategy=none only if no
        broker is known). Raises KafkaConnectionError with each address and why it failed.
        """
        self._close_expired()
        earlier = self.find_open(None)  # the one that an earlier call has opened
        if earlier is not None and earlier.in_flight:  # its user reads the responses first
            return earlier
        for connection in filter(None, (earlier, *self._by_node.values())):
            if connection.is_quiet:
                return connection
        if earlier is not None:
            earlier.close()
        # Known brokers first, then the bootstrap list: all known ones may have other addresses now.
        known = [(broker.host, broker.port) for broker in brokers]
        known_only = known and self.options.metadata_recovery_strategy == "none"
        bootstrap = [] if known_only else self._servers.addresses()
        random.shuffle(known)
        random.shuffle(bootstrap)
        addresses = list(dict.fromkeys(self._try_first + known + bootstrap))
        self._try_first = []
        connection = self._by_node[None] = connect_to_first(
            addresses, self.open, deadline, self.options.prefix, self._bootstrap_failures
        )
        return connection

    def take_idle(self, broker: Broker) -> Connection | None:
        """Remove and return an idle connection to this broker; None if there is none. `put_back`
        returns it.

        A new one takes two round trips (connect, ApiVersions), and those of TLS and SASL.
        """
        self._close_expired()
        for node_id in (broker.node_id, None):  # None: the bootstrap connection
            idle = self.find_open(node_id)
            if idle is None or idle.in_flight:
                continue
            if (idle.host, idle.port) == (broker.host, broker.port):
                return self._by_node.pop(node_id)
        return None

    def put_back(self, node_id: int, connection: Connection) -> None:
        """Store a connection that its owner no longer needs. Close it if it is not usable, or if
        there is an open connection to this broker."""
        if connection.in_flight or not connection.is_open or self.find_open(node_id) is not None:
            connection.close()
        else:
            self._by_node[node_id] = connection

    @property
    def connection_count(self) -> int:
        return len(self._by_node)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._made_at_s

    def drop_unusable(self) -> int:
        """Close connections with requests in flight, and those that the broker has closed. Return
        the number of the other connections."""
        for node_id, connection in list(self._by_node.items()):
            if not connection.is_quiet:
                connection.close()
                del self._by_node[node_id]
        return self.connection_count


MAX_CACHED = 64
"""The maximum number of connections that a process caches."""
MAX_CACHED_AGE_S = 600.0
"""The age from which connections are not cached: a new one has newer credentials."""


def _resolve_security(options: ClientOptions) -> SecureSettings | None:
    """Return the security settings with references resolved now; None without references."""
    if not options.security.has_references:
        return None
    with explained_prefix(options.prefix):
        return secure_settings(options.security, options.bootstrap_servers)


def _has_changed(pool: ConnectionPool) -> bool:
    """Return whether a reference in the security settings (to a file or environment variable) has
    another content than when these connections were opened, or cannot be resolved any more."""
    try:
        return _resolve_security(pool.options) != pool.security
    except errors.OptionError:
        return True


class _Cached(NamedTuple):
    """A pool of an ended task, which is closed at the monotonic time `until_s`."""

    until_s: float
    pool: ConnectionPool


class ConnectionCache:
    """The connections of tasks that have ended, for later tasks of this process.

    A task gets connections of equal options, which include brokers, user, credentials and trust,
    if references in them still have the same content. They are closed after
    connections.max.idle.ms, by default sooner than those of a client that is open.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Remove all connections and replace the lock: after a fork the thread that holds the lock
        does not exist in the child."""
        self._lock = threading.Lock()
        self._entries: list[_Cached] = []
        self._timer: threading.Timer | None = None

    def take(self, options: ClientOptions) -> ConnectionPool | None:
        """Remove and return open connections for these options; None if there are none."""
        with self._lock:
            for entry in reversed(self._entries):
                pool = entry.pool
                if pool.options == options and not _has_changed(pool):
                    self._entries.remove(entry)
                    if pool.drop_unusable():
                        return pool
        return None

    def keep(self, pool: ConnectionPool) -> None:
        """Cache connections that are no longer used, or close them if that is not possible."""
        idle_s = pool.options.kept_max_idle_ms / 1000
        is_old = not idle_s or pool.age_s > MAX_CACHED_AGE_S
        if is_old or not pool.drop_unusable() or _has_changed(pool):
            pool.close()
            return
        with self._lock:
            self._entries.append(_Cached(time.monotonic() + idle_s, pool))
            while sum(entry.pool.connection_count for entry in self._entries) > MAX_CACHED:
                self._entries.pop(0).pool.close()
            self._set_timer()

    def close_all(self) -> None:
        """Close all cached connections."""
        with self._lock:
            for entry in self._entries:
                entry.pool.close()
            self._entries.clear()
            self._set_timer()  # stops it: nothing is left

    def _close_expired(self) -> None:
        """Close the connections that were cached for long enough. Called by the timer."""
        with self._lock:
            now_s = time.monotonic()
            for entry in [entry for entry in self._entries if entry.until_s <= now_s]:
                self._entries.remove(entry)
                entry.pool.close()
            self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for the entry that expires first, if any. The caller has the lock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._entries:
            until_s = min(entry.until_s for entry in self._entries)
            self._timer = threading.Timer(max(0.0, until_s - time.monotonic()), self._close_expired)
            self._timer.daemon = True
            self._timer.start()

    def after_fork(self) -> None:
        """Close the parent's connections in the child."""
        entries = self._entries
        self._reset()
        for entry in entries:
            entry.pool.close()


CONNECTION_CACHE = ConnectionCache()
os.register_at_fork(after_in_child=CONNECTION_CACHE.after_fork)
