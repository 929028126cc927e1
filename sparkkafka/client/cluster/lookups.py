"""Lookups of the request driver: which broker a request about an item goes to.

The driver asks one before each attempt. A lookup does not wait: what it cannot find is an error of
that item alone, and the driver decides whether to ask again. `coordinator` has ToCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import no_leader, no_partition, no_topic
from sparkkafka.client.cluster.requests import ANY_BROKER
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.errors import BrokerError, ErrorCode, KafkaConnectionError, KafkaError, OptionError


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
        self._cluster.controller_id = None


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
                found[item] = _not_told(cluster, tp, failed[tp.topic])
            else:
                found[item] = self._not_found(tp)
        return found

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
