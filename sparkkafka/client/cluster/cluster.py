"""The cluster as a client sees it: bootstrap, brokers, topic metadata, leaders, connections.

A `Cluster` belongs to one thread (a Spark task, or the driver's planning call). It keeps one
connection per broker, opens it when first needed and again after it broke. Clients with several
threads have a `Cluster` for each, so that no thread waits for a response to another; what brokers
say of the cluster is kept once, in the `Metadata` that all of them share.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from sparkkafka import errors
from sparkkafka.client.cluster.metadata import (
    Metadata,
    PartitionMetadata,
    TopicMetadata,
    nearest_topics,
    read_topics,
    unknown_topic_error,
)
from sparkkafka.client.deadline import Backoff, CloseSignal, Deadline, Retry
from sparkkafka.client.metrics import NetworkMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.pool import CONNECTION_CACHE, ConnectionPool
from sparkkafka.client.values import Address, Broker, TopicPartition, some_topics
from sparkkafka.config.options import ClientOptions
from sparkkafka.protocol.constants import NO_LEADER_EPOCH
from sparkkafka.protocol.messages import MetadataRequest, MetadataRequestTopic
from sparkkafka.protocol.wire.primitives import NULL_UUID, uuid_of

log = logging.getLogger(__name__)

# How long a topic may be unknown to brokers before it counts as missing. A topic that was just
# created is unknown to some brokers for a moment, and a broker that has just started may not know
# any.
UNKNOWN_TOPIC_GRACE_MS = 5_000
# The same for a topic that has existed, since a job fails if it counts as missing too soon.
KNOWN_TOPIC_GRACE_MS = 30_000
# The same if every broker of the cluster says that the topic does not exist. Java's Admin believes
# the first response; the JVM connector requests metadata three times in two seconds.
UNKNOWN_TO_ALL_GRACE_MS = 2_000

# Metadata may be used for at least this time: with metadata.max.age.ms=0 it would be outdated
# immediately.
MIN_METADATA_AGE_MS = 1_000


class Cluster:
    """A Kafka cluster, found through `options.bootstrap_servers`. Use it under `with`.

    `try_first` (host, port) is tried once before the bootstrap servers: a broker that the caller
    will need anyway. A call ends at the `close_signal`, whatever its deadline. `for_task` keeps the
    connections for the next task of this process (`ConnectionCache`), and `metrics` do not count
    them. `metadata` is that of another `Cluster` of the client: see `for_thread`.

    There are three ways to get metadata. `known_topic`, `known_leader` and `partition_count` read
    the cache. `request_metadata` requests it and does not wait for missing topics. `topics` and
    `all_topics` retry until the deadline.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        try_first: Address | None = None,
        close_signal: CloseSignal | None = None,
        for_task: bool = False,
        metrics: NetworkMetrics | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        self.options = options
        self.metadata = metadata or Metadata()
        self._metrics = metrics
        self.metadata_age_ms = max(options.metadata_max_age_ms, MIN_METADATA_AGE_MS)
        """How long a response about topics may be used."""
        self._for_task = for_task
        self.close_signal = close_signal or CloseSignal()
        self.topic_errors: dict[str, int] = {}
        self.connections = (CONNECTION_CACHE.take(options) if for_task else None) or ConnectionPool(
            options,
            try_first=try_first,
            close_signal=self.close_signal,
            for_task=for_task,
            metrics=metrics,
        )
        self._unknown_since_s: dict[str, float] = {}  # monotonic; topics that are unknown now
        self.retries = 0
        """How often a request was retried."""
        self.lists_short_ends = False
        """Whether ListOffsets has given a lower end of a log than Fetch: see `confirmed_ends`."""
        self.failing: errors.KafkaError | None = None
        """The error of the last attempt of `call`, if it is retried. Any thread may read it."""
        self._no_metadata_since_s: float | None = None  # None: the last request succeeded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if self._for_task and exc_type is None:
            return CONNECTION_CACHE.keep(self.connections)
        self.close()

    def close(self) -> None:
        self.connections.close()

    def for_thread(self) -> Cluster:
        """Make a `Cluster` for another thread of this client. It has its own connections and close
        signal, and shares the metadata: what one thread has found the others need not request."""
        return Cluster(self.options, metrics=self._metrics, metadata=self.metadata)

    # --- time -----------------------------------------------------------------------------------

    def deadline(self) -> Deadline:
        """Return the deadline of an operation whose caller gives none: default.api.timeout.ms."""
        return Deadline(self.options.default_api_timeout_ms, self.close_signal)

    def backoff(self) -> Backoff:
        return Backoff(self.options.retry_backoff_ms, self.options.retry_backoff_max_ms)

    def retry(self, deadline: Deadline, what: str, backoff: Backoff | None = None) -> Retry:
        """Make the retry loop of an operation; it is counted in `retries`."""

        def count() -> None:
            self.retries += 1

        deadline = deadline.with_close_signal(self.close_signal)
        return Retry(deadline, backoff or self.backoff(), what, on_retry=count)

    # --- connections ----------------------------------------------------------------------------

    def connection(self, node_id: int, deadline: Deadline) -> Connection:
        """Return the connection to a broker, and open it if needed: see `ConnectionPool.to`.

        Raises KafkaConnectionError, also if the broker is unknown.
        """
        return self.connections.to(self.broker(node_id), deadline)

    def any_connection(self, deadline: Deadline) -> Connection:
        """Return a connection to whichever broker answers: see `ConnectionPool.to_any`."""
        return self.connections.to_any(self.brokers.values(), deadline)

    def broker(self, node_id: int) -> Broker:
        """Return the broker with this id. Raises KafkaConnectionError if it is not known."""
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise errors.KafkaConnectionError(f"broker {node_id} is not in the cluster's metadata")
        return broker

    # --- requests -------------------------------------------------------------------------------

    def call(
        self,
        request: Any,
        *,
        deadline: Deadline | None = None,
        what: str | None = None,
        once: bool = False,
    ) -> Any:
        """Send a request that any broker can answer (for metadata and producer ids) until one does.
        Most others are sent by `request_driver`.

        Connection failures and retriable top-level error codes are retried until the deadline, or,
        with `once`, raised. Raises BrokerError for other codes, KafkaTimeoutError (with the last
        failure) at the end.
        """
        deadline = (deadline or self.deadline()).with_close_signal(self.close_signal)
        retry = self.retry(deadline, what or request.API_NAME)
        while True:
            try:
                response = self._call_once(request, deadline)
                self.failing = None
                if isinstance(request, MetadataRequest):
                    self._no_metadata_since_s = None
                return response
            except errors.KafkaError as error:
                failure = error
                if isinstance(request, MetadataRequest):
                    failure = self._rebootstrap_if_needed(error)
                self.failing = failure if failure.retriable else None
                if once:
                    raise failure from failure.__cause__
                retry.after(failure)

    def _call_once(self, request: Any, deadline: Deadline) -> Any:
        """Send the request to one broker, and raise the error code of its response."""
        connection = self.any_connection(deadline)
        # request.timeout.ms starts here: finding a broker that answers may have taken longer.
        response = connection.call(request, deadline.sooner(self.options.request_timeout_ms))
        where = f"{request.API_NAME} @ {connection}"
        code = getattr(response, "error_code", 0)
        if code:
            raise errors.BrokerError(code, where, getattr(response, "error_message", None))
        throttle(response, deadline)
        if isinstance(request, MetadataRequest) and not response.brokers:
            # As in Java's clients, this is no response: the broker is starting, or cut off.
            raise errors.BrokerError(
                errors.ErrorCode.LEADER_NOT_AVAILABLE, where, "the response names no brokers at all"
            )
        if isinstance(request, MetadataRequest) and not connection.supports(MetadataRequest, 9):
            # Brokers before Kafka 2.4 report outdated leader epochs during a reassignment, and
            # leaders refuse requests with these (KAFKA-9212).
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.leader_epoch = NO_LEADER_EPOCH
        return response

    def _rebootstrap_if_needed(self, error: errors.KafkaError) -> errors.KafkaError:
        """Handle a failed Metadata request, and return the error to report for it.

        If a broker answers REBOOTSTRAP_REQUIRED, or none has answered for too long, the next
        request goes to bootstrap.servers (KIP-1102), unless metadata.recovery.strategy=none.
        """
        now_s, prefix = time.monotonic(), self.options.prefix
        since_s = self._no_metadata_since_s = self._no_metadata_since_s or now_s
        is_required = getattr(error, "code", 0) == errors.ErrorCode.REBOOTSTRAP_REQUIRED
        if self.options.metadata_recovery_strategy == "none":
            if not isinstance(error, errors.BrokerError) or not is_required:
                return error
            hint = f"{prefix}metadata.recovery.strategy=none does not go back to bootstrap.servers"
            return errors.BrokerError(error.code, error.where, hint)
        patience_s = self.options.metadata_recovery_rebootstrap_trigger_ms / 1000
        is_late = self.brokers and error.retriable and now_s - since_s >= patience_s
        if is_required or is_late:
            log.warning("starting over from %sbootstrap.servers: %s", prefix, error)
            self.connections.close_idle()
            self.metadata.forget_brokers()
            self._no_metadata_since_s = None
        # Unlike REBOOTSTRAP_REQUIRED, a KafkaConnectionError is retried.
        return errors.KafkaConnectionError(str(error)) if is_required else error

    def controller(self, deadline: Deadline) -> int:
        """Return the node id of the controller (KRaft: of a broker that forwards to it)."""
        if self.metadata.controller_id is None:
            self._refresh([], deadline)
        node_id = self.metadata.controller_id
        return next(iter(self.brokers)) if node_id is None or node_id < 0 else node_id

    # --- metadata -------------------------------------------------------------------------------

    def topics(
        self,
        names: Iterable[str],
        deadline: Deadline | None = None,
        *,
        grace_ms: float | None = None,
    ) -> dict[str, TopicMetadata]:
        """Request metadata of these topics from a broker.

        Raises UnknownTopicError if a topic stays unknown for `grace_ms` (None: as long as
        `believed_missing` says), or until the deadline if that is sooner; BrokerError for another
        error that is not retriable. Both name the topics. A partition without a leader is no error.
        """
        requested = list(dict.fromkeys(names))
        deadline = deadline or self.deadline()
        began_at_s = time.monotonic()
        retry = self.retry(deadline, f"metadata of {some_topics(requested)}")
        missing: list[str] = []
        creates = self.options.allow_auto_create_topics
        while True:
            try:
                topics, failed = self._refresh(requested, deadline)
                if not failed:
                    return {name: topics[name] for name in requested}
                code = next(iter(failed.values()))
                with_code = [name for name, other in failed.items() if other == code]
                missing = with_code if code == errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else []
                if missing and grace_ms is not None:
                    if (time.monotonic() - began_at_s) * 1000 >= grace_ms:
                        raise unknown_topic_error(missing, creates=creates)
                elif believed := self.believed_missing(
                    self.unknown_since_s(missing, began_at_s), deadline
                ):
                    nearest = self.nearest_topics(believed, deadline)
                    raise unknown_topic_error(believed, creates=creates, nearest=nearest)
                retry.after(errors.BrokerError(code, f"Metadata of {some_topics(with_code)}"))
            except errors.KafkaTimeoutError as error:
                if missing:  # more useful than that there was no time for a last attempt
                    raise unknown_topic_error(missing, creates=creates) from error
                raise

    def request_metadata(
        self, names: Iterable[str], deadline: Deadline, *, once: bool = False
    ) -> dict[str, int]:
        """Request metadata of these topics into the cache, without waiting for missing ones.

        Returns {topic: error code} of those that have no metadata. Raises what `call` raises; with
        `once` it does not retry.
        """
        _, failed = self._refresh(list(names), deadline, once=once)
        return failed

    def unknown_since_s(self, names: Iterable[str], began_at_s: float) -> dict[str, float]:
        """Return the monotonic time since which each of these topics counts as unknown, in an
        operation that began at `began_at_s`.

        That is `began_at_s`. In a Spark task it is the time of the first response without the
        topic: a task reads partitions one by one, and only the first read must wait for the topic.
        """
        if not self._for_task:
            return dict.fromkeys(names, began_at_s)
        return {name: self._unknown_since_s.get(name, began_at_s) for name in names}

    def believed_missing(
        self, unknown_since_s: Mapping[str, float], deadline: Deadline
    ) -> list[str]:
        """Return which of these topics count as missing: those that brokers have not known for
        `grace_ms`, and those that no broker of the cluster knows now. `unknown_since_s` has the
        monotonic time since which each is unknown."""
        now_s = time.monotonic()
        missing, doubtful = [], []
        for name, since_s in unknown_since_s.items():
            unknown_ms = (now_s - since_s) * 1000
            if unknown_ms >= self.grace_ms([name]):
                missing.append(name)
            elif unknown_ms >= UNKNOWN_TO_ALL_GRACE_MS and name not in self.metadata.known_names:
                doubtful.append(name)
        # With allow.auto.create.topics a broker may be creating them.
        if doubtful and not self.options.allow_auto_create_topics:
            missing += doubtful if self._are_unknown_to_all(doubtful, deadline) else []
        return missing

    def nearest_topics(self, names: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Return for each missing topic the topic with the most similar name that this user may
        see, for an error message. Topics that have existed are left out. Return {} if no broker
        answers."""
        never_known = [name for name in names if name not in self.metadata.known_names]
        if not never_known:
            return {}
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        try:
            # Do not wait long for a hint: the caller has other topics to serve.
            response = self._call_once(request, deadline.sooner(UNKNOWN_TO_ALL_GRACE_MS))
        except errors.KafkaError as error:
            log.info("no topics to compare %s with: %s", some_topics(names), error)
            return {}
        topics, _ = read_topics(response.topics or (), None)
        existing = [name for name, topic in topics.items() if not topic.is_internal]
        return nearest_topics(never_known, existing)

    def missing_topic_errors(
        self, names: Sequence[str], deadline: Deadline
    ) -> dict[str, errors.UnknownTopicError]:
        """Return an error for each of these topics, which count as missing; it names the most
        similar topic."""
        nearest = self.nearest_topics(names, deadline)
        creates = self.options.allow_auto_create_topics
        known = self.metadata.known_names
        return {
            name: unknown_topic_error(
                [name], creates=creates, nearest=nearest, existed=name in known
            )
            for name in names
        }

    def _are_unknown_to_all(self, names: Sequence[str], deadline: Deadline) -> bool:
        """Return whether every broker of the cluster answers that it does not know these topics.
        Return False if a broker does not answer soon: then topics count as missing after
        `grace_ms`."""
        deadline = deadline.sooner(UNKNOWN_TO_ALL_GRACE_MS)
        requested = [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=requested, allow_auto_topic_creation=False)
        try:
            for broker in list(self.brokers.values()):
                response = self.connections.to(broker, deadline).call(request, deadline)
                _, failed = read_topics(response.topics or (), names)
                if any(
                    failed.get(name) != errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    for name in names
                ):
                    return False
        except errors.KafkaError as error:
            log.info("whether any broker knows %s is not certain: %s", some_topics(names), error)
            return False
        return True

    def grace_ms(self, topics: Iterable[str]) -> int:
        """Return how long these topics may stay unknown: longer if all are known to have existed
        (see `assume_exists`)."""
        known = self.metadata.known_names.issuperset(topics)
        return KNOWN_TOPIC_GRACE_MS if known else UNKNOWN_TOPIC_GRACE_MS

    def all_topics(self, deadline: Deadline | None = None) -> dict[str, TopicMetadata]:
        """Request metadata of all topics that this user may see.

        Retries (until the deadline) while a topic has a retriable error. Topics with another error
        are left out and are in `topic_errors`, {name: error code}. Topics that are being deleted
        are left out.
        """
        deadline = deadline or self.deadline()
        retry = self.retry(deadline, "metadata of all topics")
        while True:
            topics, failed = self._refresh(None, deadline)
            failed = {
                name: code
                for name, code in failed.items()
                if code != errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
            retriable = [
                errors.BrokerError(code, f"Metadata of topic {name}")
                for name, code in failed.items()
                if errors.is_retriable(code)
            ]
            if not retriable:
                self.topic_errors = failed
                return topics
            retry.after(retriable[0])

    @property
    def cluster_id(self) -> str | None:
        return self.metadata.cluster_id

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The brokers by node id, as far as they are known."""
        return self.metadata.brokers

    @property
    def coordinators(self) -> dict[tuple[int, str], int]:
        """The coordinators that are known: see `Metadata`."""
        return self.metadata.coordinators

    def assume_exists(self, topic: str) -> None:
        """Note that the caller knows this topic: if it is unknown to brokers, it gets more time
        before it counts as missing."""
        self.metadata.known_names.add(topic)

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic in the cache (Kafka 2.8+), None if it is not known."""
        known = self.metadata.topics.get(topic)
        return known.topic_id if known is not None else None

    def topic_uuid(self, topic: str) -> uuid.UUID:
        """Return the id of a topic in the cache as the UUID for requests, NULL_UUID if it is not
        known."""
        known = self.topic_id(topic)
        return NULL_UUID if known is None else uuid_of(known)

    def was_recreated(self, topic: str, topic_id: bytes | None) -> bool:
        """Return whether the topic in the cache has another id than `topic_id`: the same offsets
        then have other records. False if one of the ids is not known."""
        cached_id = self.topic_id(topic)
        return topic_id is not None and cached_id is not None and cached_id != topic_id

    def known_topic(self, topic: str) -> TopicMetadata | None:
        """Return a topic's metadata in the cache, however old."""
        return self.metadata.topics.get(topic)

    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions in the cache, however old, None if the topic is not
        there."""
        known = self.metadata.topics.get(topic)
        return len(known.partitions) if known is not None else None

    def known_leader(self, tp: TopicPartition) -> PartitionMetadata | None:
        """Return the leader in the cache; None if it is not known, or if its metadata is stale or
        older than metadata.max.age.ms."""
        metadata = self.metadata
        topic = metadata.topics.get(tp.topic)
        if (
            topic is None
            or tp.topic in metadata.stale
            or (time.monotonic() - topic.refreshed_at_s) * 1000 > self.metadata_age_ms
        ):
            return None
        partition = topic.partitions.get(tp.partition)
        return partition if partition is not None and partition.leader in metadata.brokers else None

    def leader_epoch(self, tp: TopicPartition) -> int:
        """Return the leader epoch of the partition in the cache, NO_LEADER_EPOCH if `known_leader`
        would return None."""
        leader = self.known_leader(tp)
        return NO_LEADER_EPOCH if leader is None else leader.leader_epoch

    def mark_stale(self, topic: str) -> None:
        """Mark the cached metadata of a topic as stale: the next lookup requests it again.

        It stays in the cache (`partition_count`), since there is nothing better while no broker
        answers, and a producer continues with it, as Java's does.
        """
        self.metadata.mark_stale(topic)

    def is_stale(self, topic: str) -> bool:
        """Return whether the cached metadata of the topic is marked as stale."""
        return topic in self.metadata.stale

    def look_for_leaders(self, topic: str) -> None:
        """Mark the cached metadata of a topic as stale if it names a partition without a leader and
        is older than MIN_METADATA_AGE_MS. A producer sends nothing to such a partition, so no batch
        would request the metadata."""
        known = self.metadata.topics.get(topic)
        if (
            known is not None
            and len(known.with_leader) < len(known.partitions)
            and (time.monotonic() - known.refreshed_at_s) * 1000 > MIN_METADATA_AGE_MS
        ):
            self.mark_stale(topic)

    def extend_age(self, topics: Iterable[str]) -> None:
        """Let outdated metadata be used for a moment longer, because no broker answers."""
        # For longer than a partition backs off: else it could be outdated each time one is ready.
        moment_ms = 5 * MIN_METADATA_AGE_MS
        refreshed_at_s = time.monotonic() - (self.metadata_age_ms - moment_ms) / 1000
        known = filter(None, map(self.known_topic, topics))
        self.metadata.replace(
            replace(topic, refreshed_at_s=refreshed_at_s)
            for topic in known
            if topic.refreshed_at_s < refreshed_at_s
        )

    def note_error(self, tp: TopicPartition, code: int) -> None:
        """Mark the metadata of a topic as stale if the error code of a broker implies that."""
        if errors.needs_metadata(code) or code == errors.ErrorCode.UNKNOWN_LEADER_EPOCH:
            self.mark_stale(tp.topic)

    def _refresh(
        self, names: list[str] | None, deadline: Deadline, *, once: bool = False
    ) -> tuple[dict[str, TopicMetadata], dict[str, int]]:
        """Request metadata (None: of all topics) into the cache. Returns the topics, and {topic:
        error code} of those that have none."""
        requested = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        creates = self.options.allow_auto_create_topics  # brokers create only those that are named
        request = MetadataRequest(topics=requested, allow_auto_topic_creation=creates)
        what = f"metadata of {some_topics(names)}"
        response = self.call(request, deadline=deadline, what=what, once=once)
        topics, failed = self.metadata.update(response, names)
        for name in topics:
            self._unknown_since_s.pop(name, None)
        for name, code in failed.items():
            if code == errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._unknown_since_s.setdefault(name, time.monotonic())
        return topics, failed


def throttle(response: Any, deadline: Deadline) -> None:
    """Sleep for the response's throttle time (KIP-219: brokers answer without delay, and the client
    waits)."""
    wait_ms = getattr(response, "throttle_time_ms", 0)
    if wait_ms > 0:
        log.info("throttled by the broker for %d ms", wait_ms)
        deadline.pause(wait_ms)
