"""The cluster as a client sees it: bootstrap, brokers, topic metadata, leaders, connections.

A `Cluster` belongs to one thread (a Spark task, or the driver's planning call). It keeps one
connection a broker, opens it when first needed and again after it broke. `call` repeats one request
until its deadline; what may be retried is decided by Kafka's error table, the default for an
unknown code is not to retry.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from sparkkafka.client.bootstrap import BootstrapServers
from sparkkafka.client.connection import Connection
from sparkkafka.client.deadline import Backoff, Deadline, End, Retry
from sparkkafka.client.metadata import (
    Address,
    Broker,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
    read_topics,
    some_topics,
)
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
    UnsupportedVersionError,
    is_retriable,
    needs_metadata,
)
from sparkkafka.options import ClientOptions
from sparkkafka.protocol.messages import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
)

log = logging.getLogger(__name__)

# A topic that was just created is unknown to some brokers for a moment, and a broker that was just
# started may not know any. After this long an unknown topic is believed to be missing; one that is
# known to have been there gets more time, since the price of believing it too soon is a failed job.
UNKNOWN_TOPIC_GRACE_MS = 5_000
KNOWN_TOPIC_GRACE_MS = 30_000

# An answer may be used for this long whatever metadata.max.age.ms says: with an age of 0 it would
# be too old before its first use.
MIN_METADATA_AGE_MS = 1_000

_NO_TOPIC = (
    "the topic does not exist, or this user may not see it (needs DESCRIBE on the topic): check "
    "its name, or create it first"
)

MIN_REFUSED_MS = 1_000

MIN_SHARE_MS = 1_000  # the least that a bootstrap server gets to answer, if there is so much time


class _Unreachable(NamedTuple):
    """A broker that could not be connected to: not tried again until then."""

    until_s: float
    reason: str
    backoff: Backoff


class Cluster:
    """A Kafka cluster, found through `options.bootstrap_servers`. Use it under `with`.

    `try_first` (host, port) is asked before the bootstrap servers, once: the address of a
    broker that the caller will need anyway. Whatever the deadline of a call, it is over at the
    `end`.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        try_first: Address | None = None,
        end: End | None = None,
    ) -> None:
        self.options = options
        self.end = end
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.brokers: dict[int, Broker] = {}
        self.topic_errors: dict[str, int] = {}
        # (kind, key) -> node id, as it was told; kept by `coordinator`.
        self.coordinators: dict[tuple[int, str], int] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._connections: dict[int, Connection] = {}
        self._servers = BootstrapServers(options)
        self._bootstrap: Connection | None = None
        self._try_first = [try_first] if try_first else []
        self._bootstrap_failures: dict[tuple[str, int], str] = {}
        self._unreachable: dict[int, _Unreachable] = {}
        self._refused: tuple[float, str] | None = None
        self._known_topics: set[str] = set()
        self._leaders: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._bootstrap is not None:
            self._bootstrap.close()
            self._bootstrap = None

    # --- time -----------------------------------------------------------------------------------

    def deadline(self) -> Deadline:
        """The deadline of an operation whose caller gave none: default.api.timeout.ms."""
        return Deadline(self.options.default_api_timeout_ms, self.end)

    def backoff(self) -> Backoff:
        return Backoff(self.options.retry_backoff_ms, self.options.retry_backoff_max_ms)

    def retry(self, deadline: Deadline, what: str) -> Retry:
        return Retry(deadline.until(self.end), self.backoff(), what)

    # --- connections ----------------------------------------------------------------------------

    def connection(self, node_id: int, deadline: Deadline) -> Connection:
        """The connection to a broker, opened if need be. One attempt.

        Raises KafkaConnectionError if the broker is unknown or cannot be reached; after a failed
        attempt for reconnect.backoff.ms (growing to reconnect.backoff.max.ms) without trying.
        """
        broker = self.brokers.get(node_id)
        if broker is None:
            raise KafkaConnectionError(f"broker {node_id} is not in the cluster's metadata")
        connection = self.open_connection(node_id)
        if connection is not None:
            if connection.in_flight or (connection.host, connection.port) == broker[1:3]:
                return connection
            connection.close()  # the broker moved to another address (a restarted container)
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
        self._connections[node_id] = connection
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
            return Connection.open(host, port, self.options, deadline.until(self.end))
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

    def open_connection(self, node_id: int) -> Connection | None:
        """The connection to a broker if there is one that is open; never makes one."""
        connection = self._connections.get(node_id)
        return connection if connection is not None and connection.is_open else None

    def any_connection(self, deadline: Deadline) -> Connection:
        """A connection to whichever broker answers: an open one, a known one, a bootstrap entry.

        Raises KafkaConnectionError listing every address that was tried and why it failed.
        """
        if self._bootstrap is not None and self._bootstrap.is_open:
            return self._bootstrap
        for connection in self._connections.values():
            if connection.is_open and not connection.in_flight:
                return connection
        # Known brokers first, then the bootstrap list: all known ones may have moved away.
        known = [(broker.host, broker.port) for broker in self.brokers.values()]
        first = self._servers.addresses()
        random.shuffle(known)
        random.shuffle(first)
        failures: list[KafkaError] = []
        addresses = list(dict.fromkeys(self._try_first + known + first))
        self._try_first = []
        for number, address in enumerate(addresses):
            if failures and deadline.expired:
                break
            # A server that accepts and never answers must leave time for the others.
            share_ms = deadline.remaining_s() * 1000 / (len(addresses) - number)
            try:
                self._bootstrap = self.open(*address, deadline.sooner(max(share_ms, MIN_SHARE_MS)))
            except (AuthenticationError, OptionError):
                raise  # the others would be told the same wrong password, and an account locked
            except KafkaError as error:
                # Also a port that is not Kafka's: the other entries may be right.
                log.info("bootstrap: %s", error)
                self._bootstrap_failures[address] = str(error)
                failures.append(error)
            else:
                return self._bootstrap
        # Failures of earlier attempts are kept: the last one may run out of time half-way.
        nobody = KafkaConnectionError(
            "no broker of kafka.bootstrap.servers can be reached: "
            + "; ".join(self._bootstrap_failures.values())
        )
        # If nobody there speaks Kafka, waiting does not help.
        nobody.retriable = any(error.retriable for error in failures)
        raise nobody

    def give_away(self, broker: Broker) -> Connection | None:
        """The idle connection that metadata came by, if it leads to this broker; now the caller's.

        A new one would cost two round trips (connect, ApiVersions).
        """
        given = self._bootstrap
        if given is None or not given.is_open or given.in_flight:
            return None
        if (given.host, given.port) != (broker.host, broker.port):
            return None
        self._bootstrap = None
        return given

    # --- requests -------------------------------------------------------------------------------

    def call(
        self,
        request: Any,
        *,
        node_id: int | None = None,
        deadline: Deadline | None = None,
        what: str | None = None,
    ) -> Any:
        """Send a request to a broker (any, if `node_id` is None) until it is answered.

        Connection failures and retriable top-level error codes are retried until the deadline.
        Raises BrokerError for other codes, KafkaTimeoutError (with the last failure) at the end.
        """
        deadline = (deadline or self.deadline()).until(self.end)
        what = what or f"{request.API_NAME}"
        retry = self.retry(deadline, what)
        while True:
            try:
                return self._call_once(request, node_id, deadline)
            except KafkaError as error:
                retry.after(error)
                if node_id is not None and not isinstance(error, BrokerError):
                    self._refresh_brokers(deadline)

    def _call_once(self, request: Any, node_id: int | None, deadline: Deadline) -> Any:
        limit_ms = self.options.request_timeout_ms
        if node_id is None:
            connection = self.any_connection(deadline)
        else:
            connection = self.connection(node_id, deadline.sooner(limit_ms))
        # The request's own time: finding a broker that answers may have taken longer than it.
        attempt = deadline.sooner(limit_ms)
        response = connection.call(request, attempt)
        code = getattr(response, "error_code", 0)
        if code:
            message = getattr(response, "error_message", None)
            raise BrokerError(code, f"{request.API_NAME} @ {connection}", message)
        throttle(response, deadline)
        return response

    def call_each(
        self, requests: Mapping[int, Any], deadline: Deadline, *, version: int | None = None
    ) -> dict[int, Any | KafkaError]:
        """One request to each of several brokers, all sent before the first reply is awaited.

        One attempt each: the value is the response, or the KafkaError that happened
        (UnsupportedVersionError if a broker does not have the `version`).
        """
        attempt = deadline.sooner(self.options.request_timeout_ms)
        outcome: dict[int, Any | KafkaError] = {}
        sent: list[tuple[int, Connection]] = []
        for node_id, request in requests.items():
            try:
                connection = self.connection(node_id, attempt)
                if version is not None and not connection.supports(type(request), version):
                    raise UnsupportedVersionError(
                        f"{request.API_NAME} version {version} of {connection}"
                    )
                connection.send(request, attempt, version=version)
            except KafkaError as error:
                outcome[node_id] = error
            else:
                sent.append((node_id, connection))
        for node_id, connection in sent:
            try:
                outcome[node_id] = connection.receive(attempt)[1]
            except KafkaError as error:
                outcome[node_id] = error
        return outcome

    def controller(self, deadline: Deadline) -> int:
        """The node id for CreateTopics and the like (KRaft: a broker that forwards)."""
        if self.controller_id is None:
            self._refresh_brokers(deadline)
        if self.controller_id is None or self.controller_id < 0:
            return next(iter(self.brokers))
        return self.controller_id

    # --- metadata -------------------------------------------------------------------------------

    def describe(self, deadline: Deadline | None = None) -> list[Broker]:
        """The cluster's brokers, fresh. `cluster_id` and `controller_id` are set as well.

        Uses DescribeCluster (Kafka 2.8+), Metadata below.
        """
        deadline = deadline or self.deadline()
        retry = self.retry(deadline, "describing the cluster")
        while True:
            try:
                connection = self.any_connection(deadline)
                if not connection.supports(DescribeClusterRequest):
                    self._refresh_brokers(deadline)
                    return list(self.brokers.values())
                attempt = deadline.sooner(self.options.request_timeout_ms)
                response = connection.call(DescribeClusterRequest(), attempt)
                if response.error_code:
                    raise BrokerError(
                        response.error_code,
                        f"DescribeCluster @ {connection}",
                        response.error_message,
                    )
                self.cluster_id = response.cluster_id
                self.controller_id = response.controller_id
                self.brokers = {
                    row.broker_id: Broker(row.broker_id, row.host, row.port, row.rack)
                    for row in response.brokers
                }
                return list(self.brokers.values())
            except KafkaError as error:
                retry.after(error)

    def topics(
        self,
        names: Iterable[str],
        deadline: Deadline | None = None,
        *,
        grace_ms: float | None = None,
    ) -> dict[str, TopicMetadata]:
        """Metadata of these topics, fresh from a broker.

        A topic that stays unknown for `grace_ms` (by default UNKNOWN_TOPIC_GRACE_MS, and
        KNOWN_TOPIC_GRACE_MS if it was seen before, or `expect`ed), or to the deadline if that is
        sooner, raises UnknownTopicError; another error that is not retriable BrokerError. Both
        name the topics. A partition without leader is no error here (see `leader`).
        """
        wanted = list(dict.fromkeys(names))
        deadline = deadline or self.deadline()
        if grace_ms is None:
            new = any(name not in self._known_topics for name in wanted)
            grace_ms = UNKNOWN_TOPIC_GRACE_MS if new else KNOWN_TOPIC_GRACE_MS
        grace = deadline.sooner(grace_ms)
        retry = self.retry(deadline, f"metadata of {some_topics(wanted)}")
        missing: list[str] = []
        while True:
            try:
                failed = self._refresh(wanted, deadline)
                if not failed:
                    return {name: self._topics[name] for name in wanted}
                code = next(iter(failed.values()))
                bad = [name for name, other in failed.items() if other == code]
                missing = bad if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else []
                if missing and grace.expired:
                    raise _no_topic(missing)
                retry.after(BrokerError(code, f"Metadata of {some_topics(bad)}"))
            except KafkaTimeoutError as error:
                if missing:  # what was seen says more than that a last look came too late
                    raise _no_topic(missing) from error
                raise

    def look_up(self, names: Iterable[str], deadline: Deadline) -> dict[str, int]:
        """One answer about these topics into the cache: {topic: error code} of those without one.

        For those who have other things to do than to wait until a topic can be told. Raises what
        `call` raises.
        """
        return self._refresh(list(names), deadline)

    def was_seen(self, topic: str) -> bool:
        """Whether the topic was ever there, or is `expect`ed."""
        return topic in self._known_topics

    def all_topics(self, deadline: Deadline | None = None) -> dict[str, TopicMetadata]:
        """Metadata of every topic that this user may see.

        Waits for topics whose metadata cannot be told at the moment (to the deadline). Those with
        an error that does not pass are left out and stand in `topic_errors`, {name: error code};
        topics that are being deleted are left out.
        """
        deadline = deadline or self.deadline()
        retry = self.retry(deadline, "metadata of all topics")
        while True:
            failed = self._refresh(None, deadline)
            failed = {
                name: code
                for name, code in failed.items()
                if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
            passing = [
                BrokerError(code, f"Metadata of topic {name}")
                for name, code in failed.items()
                if is_retriable(code)
            ]
            if not passing:
                self.topic_errors = failed
                return dict(self._topics)
            retry.after(passing[0])

    def expect(self, topic: str) -> None:
        """The caller knows that this topic exists: be slow to believe otherwise."""
        self._known_topics.add(topic)

    def topic_id(self, topic: str) -> bytes | None:
        """The id of a topic in the cache (Kafka 2.8+), None if it is not known."""
        known = self._topics.get(topic)
        return known.topic_id if known is not None else None

    def known_topic(self, topic: str) -> TopicMetadata | None:
        """What is in the cache of a topic, however old."""
        return self._topics.get(topic)

    def partition_count(self, topic: str) -> int | None:
        """The number of partitions in the cache, however old, None if the topic is not there."""
        known = self._topics.get(topic)
        return len(known.partitions) if known is not None else None

    def leader(self, tp: TopicPartition, deadline: Deadline) -> PartitionMetadata:
        """The partition's leader, from metadata not older than metadata.max.age.ms.

        Raises UnknownTopicError for a partition that an existing topic lacks;
        waits (to the deadline) while a partition has no leader.
        """
        retry = self.retry(deadline, f"finding the leader of {tp}")
        while True:
            topic = self._topics.get(tp.topic)
            if topic is None or self._too_old(topic):
                topic = self.topics([tp.topic], deadline)[tp.topic]
            partition = topic.partitions.get(tp.partition)
            if partition is None:
                # Perhaps added since: look once more before saying so.
                topic = self.topics([tp.topic], deadline)[tp.topic]
                partition = topic.partitions.get(tp.partition)
            if partition is None:
                raise UnknownTopicError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Metadata of {tp}",
                    f"topic {tp.topic} has {len(topic.partitions)} partitions",
                )
            if partition.leader in self.brokers:
                return partition
            error = BrokerError(
                partition.error_code or ErrorCode.LEADER_NOT_AVAILABLE,
                f"Metadata of {tp}",
                f"partition {tp.partition} of topic {tp.topic} has no leader; "
                "the brokers that hold it may be down",
            )
            self.forget(tp.topic)
            retry.after(error)

    def known_leader(self, tp: TopicPartition) -> PartitionMetadata | None:
        """The leader as far as the cache knows it, without asking anybody."""
        topic = self._topics.get(tp.topic)
        if topic is None or self._too_old(topic):
            return None
        partition = topic.partitions.get(tp.partition)
        return partition if partition is not None and partition.leader in self.brokers else None

    def leader_address(self, tp: TopicPartition) -> Address | None:
        """Where the leader is as far as the cache knows it."""
        leader = self.known_leader(tp)
        return None if leader is None else self.brokers[leader.leader][1:3]

    def forget(self, topic: str) -> None:
        """Distrust what the cache says of this topic: the next look asks a broker."""
        self._topics.pop(topic, None)

    def note_error(self, tp: TopicPartition, code: int) -> None:
        """A broker answered for `tp` with `code`: distrust the cache if the code says so."""
        if needs_metadata(code) or code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            self.forget(tp.topic)

    def _too_old(self, topic: TopicMetadata) -> bool:
        limit_ms = max(self.options.metadata_max_age_ms, MIN_METADATA_AGE_MS)
        return (time.monotonic() - topic.refreshed_s) * 1000 > limit_ms

    def _refresh_brokers(self, deadline: Deadline) -> None:
        self._refresh([], deadline)

    def _refresh(self, names: list[str] | None, deadline: Deadline) -> dict[str, int]:
        """Ask for metadata (None: all topics), keep it, return {topic: error code} of failures."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response = self.call(request, deadline=deadline, what=f"metadata of {some_topics(names)}")
        if response.brokers:
            self.brokers = {
                row.node_id: Broker(row.node_id, row.host, row.port, row.rack)
                for row in response.brokers
            }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if names is None:
            self._topics.clear()
        topics, failed = read_topics(response.topics or (), names)
        self._note_moved_leaders(topics)
        self._topics.update(topics)
        self._known_topics.update(topics)
        for name in failed:
            self._topics.pop(name, None)
        return failed

    def _note_moved_leaders(self, topics: Mapping[str, TopicMetadata]) -> None:
        for name, topic in topics.items():
            for partition, leader in topic.partitions.items():
                key = TopicPartition(name, partition)
                before = self._leaders.get(key, leader.leader)
                if before != leader.leader:
                    log.info("%s: the leader moved from %d to %d", key, before, leader.leader)
                self._leaders[key] = leader.leader


def throttle(response: Any, deadline: Deadline) -> None:
    """Wait as long as the broker asked for (KIP-219: it answers first, the client waits)."""
    wait_ms = getattr(response, "throttle_time_ms", 0)
    if wait_ms > 0:
        log.info("throttled by the broker for %d ms", wait_ms)
        deadline.pause(wait_ms)


def _no_topic(names: list[str]) -> UnknownTopicError:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = UnknownTopicError(code, f"Metadata of {some_topics(names)}", _NO_TOPIC)
    error.topics = tuple(names)
    return error
