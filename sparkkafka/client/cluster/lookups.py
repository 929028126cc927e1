"""Which broker a request about an item goes to, and what to distrust when that was wrong.

A route is asked before each attempt. It never waits for long: what it cannot tell is an error of
that item alone, and the loop in `item_calls` decides whether to ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.coordinator import ask_coordinators, forget_coordinators
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.errors import BrokerError, ErrorCode, KafkaConnectionError, KafkaError, OptionError

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

ANY_BROKER = None


class Route(Protocol[K_contra]):
    """Where items are looked after: a node id, or ANY_BROKER."""

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        """For each item the broker, or why it is not known. One attempt."""

    def failed(self, item: K_contra, error: KafkaError) -> None:
        """The broker did not do it: distrust what the cluster knows, if the error says so."""


class ToAny:
    """Whatever every broker can answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def find(self, items: Iterable[Any], _deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        return dict.fromkeys(items, ANY_BROKER)

    def failed(self, item: Hashable, error: KafkaError) -> None:
        pass


class ToController:
    """What changes the cluster. Brokers in KRaft mode pass it on, so any of them will do there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        return dict.fromkeys(items, self._cluster.controller(deadline))

    def failed(self, item: Hashable, error: KafkaError) -> None:
        self._cluster.controller_id = None


class ToLeader:
    """The leader of a partition. Items are TopicPartitions, or `partition_of` finds theirs."""

    def __init__(
        self,
        cluster: Cluster,
        partition_of: Callable[[Any], TopicPartition] = lambda item: item,
    ) -> None:
        self._cluster = cluster
        self._partition_of = partition_of

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        cluster = self._cluster
        partitions = {item: self._partition_of(item) for item in items}
        unknown = {tp.topic for tp in partitions.values() if cluster.known_leader(tp) is None}
        refused = _cannot_be(unknown)
        unknown -= refused.keys()
        failed = cluster.look_up(sorted(unknown), deadline) if unknown else {}
        found: dict[Any, int | KafkaError | None] = {}
        for item, tp in partitions.items():
            leader = cluster.known_leader(tp)
            if leader is not None:
                found[item] = leader.leader
            elif tp.topic in refused:
                found[item] = refused[tp.topic]
            elif tp.topic in failed:
                found[item] = BrokerError(failed[tp.topic], f"Metadata of {tp}")
            else:
                found[item] = _no_leader(cluster, tp)
        return found

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


def _no_leader(cluster: Cluster, tp: TopicPartition) -> BrokerError:
    count = cluster.partition_count(tp.topic)
    if count is not None and not 0 <= tp.partition < count:
        return BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Metadata of {tp}",
            f"topic {tp.topic} has {count} partitions",
        )
    return BrokerError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"Metadata of {tp}",
        f"partition {tp.partition} of topic {tp.topic} has no leader; the brokers that hold it "
        "may be down",
    )


class ToCoordinator:
    """The coordinator of a group or transactional id. Items are these, or `key_of` finds theirs."""

    def __init__(
        self, cluster: Cluster, kind: int, key_of: Callable[[Any], str] = lambda item: item
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._key_of = key_of

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        keys = {item: self._key_of(item) for item in items}
        known = self._cluster.coordinators
        unknown = [key for key in dict.fromkeys(keys.values()) if (self._kind, key) not in known]
        asked: dict[str, int | KafkaError] = {}
        if unknown:
            try:
                asked = ask_coordinators(self._cluster, unknown, self._kind, deadline)
            except KafkaError as error:
                asked = dict.fromkeys(unknown, error)
        return {
            item: asked[key] if key in asked else known[self._kind, key]
            for item, key in keys.items()
        }

    def failed(self, item: Hashable, error: KafkaError) -> None:
        forget_coordinators(self._cluster, [self._key_of(item)], self._kind)


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
