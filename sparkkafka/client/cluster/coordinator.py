"""The broker that coordinates a consumer group or a transactional id, and requests to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToAny
from sparkkafka.client.cluster.requests import ApiHandler, Row, call_all, call_once
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Broker
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, some
from sparkkafka.protocol.messages import FindCoordinatorRequest

log = logging.getLogger(__name__)

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
            known = self._cluster.brokers.get(row.node_id)
            if known is None or known[1:3] != (row.host, row.port):
                self._cluster.brokers[row.node_id] = Broker(row.node_id, row.host, row.port)
            self._cluster.coordinators[self._kind, key] = row.node_id
        return Row(row.error_code, row.node_id, row.error_message)

    def name(self, item: str) -> str:
        return f"{'group' if self._kind == FOR_GROUP else 'transactional id'} {item!r}"


def find_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> dict[str, int]:
    """Node ids of the coordinators of groups (FOR_GROUP) or transactional ids (FOR_TRANSACTION).

    Retries until the deadline: on a new cluster the question is what creates the internal topic.
    Raises if one of them cannot be found.
    """
    keys = list(keys)
    handler = _FindCoordinator(cluster, kind)
    what = f"finding the coordinator of {some(map(repr, keys), 3)}"
    return call_all(cluster, keys, handler, ToAny(), deadline, what)


def find_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """`find_coordinators` for one."""
    return find_coordinators(cluster, [key], kind, deadline)[key]


def ask_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """`find_coordinator` with one attempt: raises why it was not found."""
    return call_once(cluster, [key], _FindCoordinator(cluster, kind), ToAny(), deadline)[key]


def known_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> dict[str, int]:
    """`find_coordinators`, without a request for those that the cluster knows."""
    known = {key: cluster.coordinators.get((kind, key)) for key in keys}
    unknown = [key for key, node in known.items() if node is None]
    asked = find_coordinators(cluster, unknown, kind, deadline) if unknown else {}
    return asked | {key: node for key, node in known.items() if node is not None}


def forget_coordinators(cluster: Cluster, keys: Iterable[str], kind: int) -> None:
    """After a failure: the next request asks who it is."""
    for key in keys:
        cluster.coordinators.pop((kind, key), None)


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
        known = cluster.coordinators
        keys = {item: self._key_of(item) for item in items}
        unknown = [key for key in dict.fromkeys(keys.values()) if (kind, key) not in known]
        asked: Mapping[str, KafkaError] = {}
        if unknown:
            handler = _FindCoordinator(cluster, kind)
            asked = call_once(cluster, unknown, handler, ToAny(), deadline).errors
        return {
            item: asked[key] if key in asked else known[kind, key] for item, key in keys.items()
        }

    def failed(self, item: Any, error: KafkaError) -> None:
        # A broker that answers otherwise is the coordinator (Java's CoordinatorStrategy).
        if not isinstance(error, BrokerError) or error.code in _ELSEWHERE:
            forget_coordinators(self._cluster, [self._key_of(item)], self._kind)
