"""Lookups of the request driver: which broker a request about an item goes to.

The driver asks one before each attempt. A lookup does not wait: what it cannot find is an error of
that item alone, and the driver decides whether to ask again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    ANY_BROKER,
    ApiHandler,
    Row,
    call_all,
    call_once,
)
from sparkkafka.client.cluster.topics import no_leader, no_partition, no_topic
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Broker, TopicPartition, checked_topic
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    OptionError,
    UnknownTopicError,
    some,
)
from sparkkafka.protocol.messages import FindCoordinatorRequest

log = logging.getLogger(__name__)


class ToAny:
    """Whatever every broker can answer."""

    def find(self, items: Iterable[Any], _deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        return dict.fromkeys(items, ANY_BROKER)

    def failed(self, item: Any, error: KafkaError) -> None:
        pass


class ToController:
    """What changes the cluster. Brokers in KRaft mode pass it on, so any of them will do there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        return dict.fromkeys(items, self._cluster.controller(deadline))

    def failed(self, item: Hashable, error: KafkaError) -> None:
        self._cluster.metadata.controller_id = None


class ToLeader:
    """The leader of a partition. Items are TopicPartitions, or `partition_of` finds theirs.

    A partition that the topic lacks may be added a moment later, as after create_partitions;
    without `awaits_partitions` it is an error at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition_of: Callable[[Any], TopicPartition] = lambda item: item,
        *,
        awaits_partitions: bool = True,
    ) -> None:
        self._cluster = cluster
        self._partition_of = partition_of
        self._awaits_partitions = awaits_partitions
        self._unknown_since_s: dict[str, float] = {}

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        cluster = self._cluster
        partitions = {item: self._partition_of(item) for item in items}
        unknown = {tp.topic for tp in partitions.values() if cluster.known_leader(tp) is None}
        refused = _cannot_be(unknown)
        unknown -= refused.keys()
        failed = cluster.look_up(sorted(unknown), deadline) if unknown else {}
        missing = self._missing(failed, deadline)
        found: dict[Any, int | KafkaError | None] = {}
        for item, tp in partitions.items():
            leader = cluster.known_leader(tp)
            if leader is not None:
                found[item] = leader.leader
            elif tp.topic in refused:
                found[item] = refused[tp.topic]
            elif tp.topic in missing:
                error = missing[tp.topic]
                where = f"Metadata of {tp}"
                found[item] = UnknownTopicError(error.code, where, error.broker_message)
            elif tp.topic in failed:
                found[item] = _not_told(cluster, tp, failed[tp.topic])
            else:
                found[item] = self._not_found(tp)
        return found

    def _missing(
        self, failed: Mapping[str, int], deadline: Deadline
    ) -> dict[str, UnknownTopicError]:
        """The error of each topic that is believed to be missing, of those without metadata."""
        cluster = self._cluster
        unknown = [
            name for name, code in failed.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        for name, at_s in cluster.unknown_since_s(unknown, time.monotonic()).items():
            self._unknown_since_s.setdefault(name, at_s)
        since_s = {name: self._unknown_since_s[name] for name in unknown}
        names = cluster.believed_missing(since_s, deadline)
        nearest = cluster.nearest_topics(names, deadline)
        creates = cluster.options.allow_auto_create_topics
        return {name: no_topic([name], creates=creates, nearest=nearest) for name in names}

    def _not_found(self, tp: TopicPartition) -> BrokerError:
        count = self._cluster.partition_count(tp.topic)
        if count is None or 0 <= tp.partition < count:
            return no_leader(tp)
        error = no_partition(tp, count)
        if self._awaits_partitions:
            return BrokerError(error.code, error.where, error.broker_message)
        return error

    def failed(self, item: Hashable, error: KafkaError) -> None:
        self._cluster.forget(self._partition_of(item).topic)


def _cannot_be(names: Iterable[str]) -> dict[str, KafkaError]:
    """The names that no request can hold, each with its error."""
    refused: dict[str, KafkaError] = {}
    for name in names:
        try:
            checked_topic(name)
        except OptionError as error:
            refused[name] = error
    return refused


def _not_told(cluster: Cluster, tp: TopicPartition, code: int) -> BrokerError:
    """Why a topic has no metadata; it may be created yet."""
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return BrokerError(code, f"Metadata of {tp}")
    error = no_topic([tp.topic], creates=cluster.options.allow_auto_create_topics)
    return BrokerError(code, f"Metadata of {tp}", error.broker_message)


class ToBroker:
    """One certain broker. Items are node ids, or `node_of` finds theirs (ANY_BROKER: any)."""

    def __init__(
        self, cluster: Cluster, node_of: Callable[[Any], int | None] = lambda item: item
    ) -> None:
        self._cluster = cluster
        self._node_of = node_of
        self._distrusted = False

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        cluster = self._cluster
        nodes = {item: self._node_of(item) for item in items}
        wanted = {node for node in nodes.values() if node is not None}
        if self._distrusted or wanted - cluster.brokers.keys():
            cluster.look_up([], deadline)
            self._distrusted = False
        return {
            item: node if node is None or node in cluster.brokers else _no_broker(cluster, node)
            for item, node in nodes.items()
        }

    def failed(self, item: Hashable, error: KafkaError) -> None:
        # It may have got another address, or be gone for good.
        self._distrusted = True


def _no_broker(cluster: Cluster, node_id: int) -> KafkaConnectionError:
    known = ", ".join(map(str, sorted(cluster.brokers)))
    error = KafkaConnectionError(
        f"there is no broker {node_id} in the cluster now; its brokers are {known}"
    )
    error.retriable = False
    return error


# --- coordinators -------------------------------------------------------------------------------

FOR_GROUP = 0
FOR_TRANSACTION = 1

_ELSEWHERE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

VERSION_WITH_LIST = 4  # several keys in one request (KIP-699)


class _FindCoordinator(ApiHandler[str, int]):
    """The node id of each key's coordinator. The cluster keeps it, and the broker's address."""

    request_type = FindCoordinatorRequest

    def __init__(self, cluster: Cluster, kind: int) -> None:
        self._cluster = cluster
        self._kind = kind

    def parts(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        return [items] if version >= VERSION_WITH_LIST else [[item] for item in items]

    def build(self, items: Sequence[str], version: int) -> FindCoordinatorRequest:
        if version >= VERSION_WITH_LIST:
            return FindCoordinatorRequest(key_type=self._kind, coordinator_keys=list(items))
        return FindCoordinatorRequest(key_type=self._kind, key=items[0])

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        if not response.coordinators:
            return [(items[0], self._row(items[0], response))] if len(items) == 1 else []
        return [(row.key, self._row(row.key, row)) for row in response.coordinators]

    def _row(self, key: str, row: Any) -> Row:
        if not row.error_code:
            self._cluster.metadata.add_broker(Broker(row.node_id, row.host, row.port))
            self._cluster.coordinators[self._kind, key] = row.node_id
        return Row(row.error_code, row.node_id, row.error_message)

    def name(self, item: str) -> str:
        return f"{'group' if self._kind == FOR_GROUP else 'transactional id'} {item!r}"


def find_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """Node id of the coordinator of a group (FOR_GROUP) or transactional id (FOR_TRANSACTION).

    Retries until the deadline: on a new cluster the question is what creates the internal topic.
    Raises if it cannot be found.
    """
    handler = _FindCoordinator(cluster, kind)
    what = f"finding the coordinator of {key!r}"
    return call_all(cluster, [key], handler, ToAny(), deadline, what)[key]


def ask_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """`find_coordinator` with one attempt: raises why it was not found."""
    return call_once(cluster, [key], _FindCoordinator(cluster, kind), ToAny(), deadline)[key]


def learn_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> None:
    """Ask for several at once what requests that follow would ask one after the other.

    One attempt, and no error: whoever needs one that was not found asks again, and says why not.
    """
    handler = _FindCoordinator(cluster, kind)
    errors = call_once(cluster, list(keys), handler, ToAny(), deadline).errors
    if errors:
        log.info("coordinators are not known yet: %s", some(map(str, errors.values()), 1))


class ToCoordinator:
    """The coordinator of a group or transactional id. Items are these, or `key_of` finds theirs."""

    def __init__(
        self, cluster: Cluster, kind: int, key_of: Callable[[Any], str] = lambda item: item
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._key_of = key_of

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        cluster, kind = self._cluster, self._kind
        keys = {item: self._key_of(item) for item in items}
        found: dict[str, int | KafkaError | None] = {
            key: cluster.coordinators.get((kind, key)) for key in keys.values()
        }
        unknown = [key for key, node_id in found.items() if node_id is None]
        if unknown:
            handler = _FindCoordinator(cluster, kind)
            results = call_once(cluster, unknown, handler, ToAny(), deadline)
            found |= results.values_by_item
            found |= results.errors
        return {item: found[key] for item, key in keys.items()}

    def failed(self, item: Any, error: KafkaError) -> None:
        # A broker that answers otherwise is the coordinator (Java's CoordinatorStrategy).
        if not isinstance(error, BrokerError) or error.code in _ELSEWHERE:
            self._cluster.coordinators.pop((self._kind, self._key_of(item)), None)
