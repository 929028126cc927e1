"""A Kafka cluster to break: brokers in pure Python on loopback sockets, in this process.

    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=4)
        cluster.fault(api="Produce", topic="orders", action=Drop.AFTER)
        ...                                 # a client writes to cluster.bootstrap_servers
        assert len(cluster.log("orders", 0).records()) == 100
        assert len(cluster.requests_of("Produce")) == 2

It speaks enough of the protocol for reading and writing (no other APIs are offered), applies the
rules of a real broker to requests, and fails where a `fault` says so. There is no replication, and
nothing is kept on disk. Records are deleted and transactions time out only when a test says so.
Messages are encoded by this package's own code, so its errors cannot show here: tests against real
brokers and with other clients find those.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sparkkafka.errors import error_name
from sparkkafka.testing.fake.broker import MAX_REQUEST_BYTES, BrokerListener
from sparkkafka.testing.fake.call import Handler
from sparkkafka.testing.fake.dispatch import Dispatcher
from sparkkafka.testing.fake.faults import Action, Drop, Fault, RecordedRequest
from sparkkafka.testing.fake.groups.apis import GroupControls
from sparkkafka.testing.fake.groups.state import METADATA_MAX_BYTES
from sparkkafka.testing.fake.handlers import API_NAMES, IMPLEMENTED
from sparkkafka.testing.fake.log.log import PartitionLog
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.profiles import PROFILES
from sparkkafka.testing.fake.security.sasl import FakeSasl
from sparkkafka.testing.fake.security.state import FakeAcls
from sparkkafka.testing.fake.state import BrokerAddress, ClusterState, FakeTopic
from sparkkafka.testing.fake.transactions.controls import TransactionControls
from sparkkafka.testing.fake.transactions.transactions import MAX_TIMEOUT_MS
from sparkkafka.testing.fake.versions import DEFAULT_RELEASE, VersionRange, release

CLOSE_TIMEOUT_S = 10.0


class FakeCluster(TransactionControls, GroupControls):
    """A cluster of `brokers` fake brokers with the ids 0, 1, …: use it under `with`, or `close` it.

    `kafka_version` ("2.1", "2.8", "3.9", "4.0", "4.2") sets the versions that brokers offer, and
    `api_versions` changes them per API: `{"Produce": (3, 7), "DescribeCluster": None}`.
    `configs` are broker-wide defaults of topic configurations. `check_records` False skips the
    broker's walk over each record that is produced, for large writes. `host` may be "::1".
    With `rack_aware` leaders send readers to a replica in their rack, as brokers with
    RackAwareReplicaSelector do; all replicas have the same log.
    `max_transaction_timeout_ms` is transaction.max.timeout.ms. `transaction_verification` False is
    how brokers before 3.6 are: a late write begins a transaction that nobody ends; None is what
    `kafka_version` says. `transaction_version` is the cluster's feature transaction.version: with 2
    (Kafka 4.0) clients may use transactions V2. `tls_context` (of a server) makes all listeners
    speak TLS; `sasl_users` (passwords by name) makes them require SASL PLAIN, in sessions of
    `sasl_session_ms`. SCRAM users that an Admin has set may then use SCRAM as well.
    ACLs that an Admin has created are enforced for the user of the connection (User:ANONYMOUS
    without SASL): what no ACL is about, everyone may use (allow.everyone.if.no.acl.found), and
    `super_users` ("User:admin") may do anything.
    `max_request_bytes` is socket.request.max.bytes (a broker closes the connection at a larger
    request), `max_offset_metadata_bytes` is offset.metadata.max.bytes, `max_idle_ms` is
    connections.max.idle.ms (None: a connection may be idle for any time).
    `profile` names a managed service (oci, event-hubs, …) whose differences from Kafka apply.

    `state` is all that the brokers know. It is not locked: read it while no client is served.

    All methods may be called from any thread, and from callable faults. Leaving the `with` block
    raises RuntimeError if a handler failed: that is a bug of the fake.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        host: str = "127.0.0.1",
        kafka_version: str = DEFAULT_RELEASE,
        api_versions: Mapping[str, VersionRange | None] | None = None,
        configs: Mapping[str, str] | None = None,
        racks: Sequence[str] | None = None,
        rack_aware: bool = False,
        check_records: bool = True,
        max_transaction_timeout_ms: int = MAX_TIMEOUT_MS,
        transaction_verification: bool | None = None,
        transaction_version: int = 1,
        tls_context: ssl.SSLContext | None = None,
        sasl_users: Mapping[str, str] | None = None,
        sasl_session_ms: int = 0,
        super_users: Collection[str] = (),
        max_request_bytes: int = MAX_REQUEST_BYTES,
        max_offset_metadata_bytes: int = METADATA_MAX_BYTES,
        max_idle_ms: int | None = None,
        profile: str | None = None,
    ) -> None:
        if profile is not None and profile not in PROFILES:
            raise ValueError(f"no such profile: {profile!r}, there are {', '.join(PROFILES)}")
        service = None if profile is None else PROFILES[profile]
        if service is not None:
            kafka_version = service.kafka_version
            api_versions = {**service.api_versions, **(api_versions or {})}
            max_request_bytes = service.max_request_bytes or max_request_bytes
            max_offset_metadata_bytes = (
                service.max_offset_metadata_bytes or max_offset_metadata_bytes
            )
            max_idle_ms = max_idle_ms or service.max_idle_ms
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, got {brokers}")
        if racks is not None and len(racks) != brokers:
            raise ValueError(f"{len(racks)} racks for {brokers} brokers")
        offered = release(kafka_version, IMPLEMENTED, api_versions or {})
        self.state = ClusterState(
            default_configs={
                "message.timestamp.after.max.ms": str(offered.timestamp_after_max_ms),
                **(configs or {}),
            }
        )
        self.state.rack_aware = rack_aware
        self.state.groups.max_metadata_bytes = max_offset_metadata_bytes
        self.state.acls = FakeAcls(super_users)
        self.state.sasl = FakeSasl(sasl_users, sasl_session_ms, self.state.scram_users)
        if service is not None:
            self.state.quirks = service.quirks
            self.state.groups.max_groups = service.max_groups
            self.state.sasl.mechanisms = service.sasl_mechanisms
        transactions = self.state.transactions
        transactions.max_timeout_ms = max_transaction_timeout_ms
        transactions.keeps_last_epoch = offered.keeps_last_epoch
        transactions.verifies = offered.verifies_transactions
        transactions.version = transaction_version
        if transaction_verification is not None:
            transactions.verifies = transaction_verification
        self._changed = threading.Condition(threading.RLock())
        self._dispatcher = Dispatcher(
            self.state, offered, self._changed, check_records=check_records
        )
        if service is not None:
            rules = [*service.rules, ("Produce", service.check_codec, None)]
            for api, action, times in rules:
                self._dispatcher.faults.append(Fault(action, api=api, times=times))
        self._listeners: dict[int, BrokerListener] = {}
        try:
            for node_id in range(brokers):
                listener = BrokerListener(
                    node_id,
                    host,
                    self._dispatcher.respond,
                    self._dispatcher.notify,
                    tls_context,
                    max_request_bytes,
                    max_idle_ms,
                )
                self._listeners[node_id] = listener
                self.state.addresses[node_id] = BrokerAddress(
                    node_id, host, listener.port, racks[node_id] if racks else None
                )
            for node_id, listener in self._listeners.items():
                listener.up()
                self.state.live.add(node_id)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if kind is None and self.failures:
            raise RuntimeError(
                f"{len(self.failures)} requests made the fake broker fail, the first with "
                f"{self.failures[0]!r}"
            ) from self.failures[0]

    def __repr__(self) -> str:
        return f"<FakeCluster {self.bootstrap_servers} {list(self.state.topics)}>"

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close every socket and end every thread. May be called again.

        Raises RuntimeError if a thread had not ended after `timeout_s`.
        """
        until_s = time.monotonic() + timeout_s
        stuck = [name for row in self._listeners.values() for name in row.close(until_s)]
        if stuck:
            raise RuntimeError(f"still running after {timeout_s:g} s: {', '.join(stuck)}")

    @property
    def handlers(self) -> dict[str, Handler]:
        """Handlers by API name; a test may replace one."""
        return self._dispatcher.handlers

    @property
    def sasl_attempts(self) -> list[str]:
        """The user of each attempt to be authenticated."""
        return self.state.sasl.attempts

    @property
    def failures(self) -> list[BaseException]:
        """Exceptions of handlers and callable faults; the requests' connections were closed."""
        return self._dispatcher.failures

    # --- brokers ---------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """host:port of all brokers, also of those that are down, separated by commas."""
        return ",".join(self.address(node_id) for node_id in self._listeners)

    @property
    def broker_ids(self) -> list[int]:
        return list(self._listeners)

    @property
    def cluster_id(self) -> str:
        return self.state.cluster_id

    def address(self, broker: int) -> str:
        """Return host:port of one broker, which never changes."""
        listener = self._listener(broker)
        host = f"[{listener.host}]" if ":" in listener.host else listener.host
        return f"{host}:{listener.port}"

    def _listener(self, broker: int) -> BrokerListener:
        if broker not in self._listeners:
            raise ValueError(f"no broker {broker}, there are {sorted(self._listeners)}")
        return self._listeners[broker]

    def connections(self, broker: int) -> int:
        """Return the number of clients that are connected to a broker now."""
        return self._listener(broker).connections

    def broker_down(
        self, broker: int, *, move_leaders: bool = True, timeout_s: float = CLOSE_TIMEOUT_S
    ) -> None:
        """Kill a broker: its connections close, new ones are refused.

        The next live replica, if there is one, becomes the leader of each of its partitions, in a
        new epoch. With `move_leaders` False the controller has not noticed the loss: metadata still
        names the broker as leader.
        """
        stuck = self._listener(broker).down(time.monotonic() + timeout_s)
        with self._changed:
            if move_leaders:
                self.state.broker_lost(broker)
            self._changed.notify_all()
        if stuck:
            raise RuntimeError(f"still running after {timeout_s:g} s: {', '.join(stuck)}")

    def broker_up(self, broker: int) -> None:
        """Start a broker again, on its port. It becomes the leader of those of its partitions that
        have none."""
        with self._changed:
            self.state.broker_back(broker)
            self._changed.notify_all()
        self._listener(broker).up()

    def disconnect(self, broker: int) -> None:
        """Close a broker's connections. It still accepts new ones."""
        self._listener(broker).disconnect()

    # --- topics ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, with leaders spread over the brokers and by default a replica on each.

        Raises ValueError with the broker's message if a broker would refuse it.
        """
        with self._changed:
            factor = len(self.state.live) if replication_factor is None else replication_factor
            try:
                self.state.create_topic(name, partitions, factor, configs or {})
            except Refused as error:
                raise ValueError(f"{error_name(error.code)}: {error.message}") from error

    def delete_topic(self, name: str) -> None:
        with self._changed:
            self.state.delete_topic(name)
            self._changed.notify_all()

    def recreate_topic(self, name: str, partitions: int | None = None) -> None:
        """Delete a topic and create it again, empty, with another topic id.

        It keeps its configuration, and by default the number of partitions.
        """
        with self._changed:
            old = self._topic(name)
            self.state.delete_topic(name)
            self.state.create_topic(
                name,
                partitions or len(old.partitions),
                min(len(old.partitions[0].replicas), len(self.state.live)),
                {key: old.config[key] for key in old.set_configs},
            )
            self._changed.notify_all()

    def add_partitions(self, name: str, total: int) -> None:
        """Raise a topic's number of partitions to `total`."""
        with self._changed:
            self.state.add_partitions(self._topic(name), total)

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition, with `records()`, `batches()`, `raw()`, `end_offset`, …

        Later writes change it, and it is not locked: read it while no client writes.
        """
        with self._changed:
            return self.state.partition(topic, partition).log

    def append(
        self,
        topic: str,
        partition: int,
        data: bytes,
        *,
        assign_offsets: bool = False,
        end_offset: int | None = None,
    ) -> int:
        """Store bytes in a partition without a producer: see `PartitionLog.append`.

        Nothing is checked; by default the bytes are stored, and fetched, as they are. Returns the
        log's end offset before them. Use a Producer to append records.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"data is the bytes of record batches, got {type(data).__name__}: use a Producer "
                "to append records"
            )
        with self._changed:
            first = self.log(topic, partition).append(
                bytes(data), assign_offsets=assign_offsets, end_offset=end_offset
            )
            self._changed.notify_all()
            return first

    def append_marker(
        self, topic: str, partition: int, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> int:
        """End a producer's transaction in a partition. Returns the control batch's offset."""
        with self._changed:
            offset = self.log(topic, partition).append_marker(
                producer_id, producer_epoch, commit=commit
            )
            self._changed.notify_all()
            return offset

    def advance_log_start(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records below `offset`, as retention does."""
        with self._changed:
            self.log(topic, partition).advance_start(offset)
            self._changed.notify_all()

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Lose the batches that reach beyond `offset`, as in an unclean leader election."""
        with self._changed:
            self.log(topic, partition).truncate(offset)
            self._changed.notify_all()

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the broker that leads a partition, -1 if none does."""
        with self._changed:
            return self.state.partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Make another broker (or none: -1) the leader of a partition, in a new leader epoch."""
        with self._changed:
            self.state.move_leader(self.state.partition(topic, partition), to)
            self._changed.notify_all()

    def finish_reassignments(self) -> None:
        """Finish all reassignments: the partitions have their new replicas, one of which leads."""
        with self._changed:
            for (topic, number), target in self.state.cluster_wide.moves.items():
                partition = self.state.partition(topic, number)
                partition.replicas = target
                if partition.leader not in target:
                    self.state.move_leader(partition, target[0])
            self.state.cluster_wide.moves.clear()
            self._changed.notify_all()

    # --- consumer groups -------------------------------------------------------------------------

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group: {(topic, partition): offset}."""
        with self._changed:
            return {key: row.offset for key, row in self.state.group(group_id).offsets.items()}

    def committed_metadata(self, group_id: str) -> dict[tuple[str, int], str]:
        """Return the metadata of a group's offsets: {(topic, partition): text}."""
        with self._changed:
            return {key: row.metadata for key, row in self.state.group(group_id).offsets.items()}

    def set_group_members(self, group_id: str, present: bool = True) -> None:
        """Let a group refuse commits from outside, as if it had members, until `present` is
        False."""
        with self._changed:
            self.state.group(group_id).has_members = present

    def coordinator(self, key: str) -> int:
        """Return the broker id of the coordinator of a group or transactional id, -1 without
        one."""
        with self._changed:
            found = self.state.coordinator(key)
            return -1 if found is None else found

    def move_coordinator(self, key: str, to: int) -> None:
        """Make another broker the coordinator of a group or transactional id, while it is up."""
        with self._changed:
            self.state.coordinators[key] = to

    # --- faults and the request log --------------------------------------------------------------

    def fault(
        self,
        action: Action,
        *,
        api: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Fault:
        """Let requests fail: the `nth` that matches, and `times` in all (None: all from then on).

        `api`, `topic`, `partition` and `broker` say which requests match; None matches all. Rules
        are tried in the order in which they were made, and only the first that fires counts the
        request. Returns the rule, whose `fired` counts how often it fired.
        """
        if api is not None and api not in IMPLEMENTED:
            raise ValueError(f"no such API here: {api!r}, there are {sorted(IMPLEMENTED)}")
        rule = Fault(
            action, api=api, topic=topic, partition=partition, broker=broker, nth=nth, times=times
        )
        with self._changed:
            self._dispatcher.faults.append(rule)
        return rule

    def clear_faults(self) -> None:
        with self._changed:
            self._dispatcher.faults.clear()

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests so far, in the order of arrival. Those to Produce keep their records."""
        with self._changed:
            return list(self._dispatcher.requests)

    def requests_of(
        self,
        api: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
    ) -> list[RecordedRequest]:
        """Return the requests of one API, perhaps only those for a topic, partition or broker.

        Raises ValueError if Kafka has no such API.
        """
        if api not in API_NAMES.values():
            raise ValueError(f"no such API: {api!r}, there are {sorted(API_NAMES.values())}")
        filter_ = Fault(Drop.BEFORE, api=api, topic=topic, partition=partition, broker=broker)
        return [row for row in self.requests if filter_.matches(row)]

    def wait_for_requests(
        self, api: str, count: int = 1, *, timeout_s: float = 10.0, **where: Any
    ) -> list[RecordedRequest]:
        """Wait until `requests_of` (with the filters `where`) returns at least `count` requests,
        and return them. Raises TimeoutError."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while len(found := self.requests_of(api, **where)) < count:
                remaining_s = until_s - time.monotonic()
                if remaining_s <= 0:
                    raise TimeoutError(
                        f"{len(found)} of {count} {api} requests within {timeout_s:g} s"
                    )
                self._changed.wait(remaining_s)
            return found

    def clear_requests(self) -> None:
        with self._changed:
            self._dispatcher.requests.clear()

    def _topic(self, name: str) -> FakeTopic:
        return self.state.topics[name]
