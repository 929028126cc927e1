"""One call on several items: sent to the right brokers, repeated where that helps, and in the end
a value or an error for each item.

What a request looks like, and what its answer says of an item, is an `ItemApi`; where it goes is a
`Route`. The loop here is the same for all: items of one broker share a request, all brokers are
asked at once, and an item leaves the loop with its value, with an error that does not pass, or with
KafkaTimeoutError at the deadline.
"""

from __future__ import annotations

import select
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, throttle
from sparkkafka.client.cluster.lookups import ANY_BROKER, Route
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.pool import closed_if_interrupted
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.wire.releases import first_kafka

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_DENIED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


NO_VERSION = -1
_MOST_STALE = 5  # a server that talks unasked for would make it look stale every time


class Row(NamedTuple):
    """What an answer says of an item. `value` counts if `code` is 0."""

    code: int
    value: Any = None
    message: str | None = None


class ItemApi(Generic[K, V]):
    """One request type about several items: how to ask, and how to read the answer."""

    request_type: ClassVar[Any]

    told_at_once: ClassVar[frozenset[int]] = frozenset()
    """Codes that the table calls retriable: waiting for these would only hide a typing error."""

    def build(self, items: Sequence[K], version: int) -> Any:
        """The request for these items. EncodeError for what cannot be put on the wire."""
        raise NotImplementedError

    def read(self, response: Any, items: Sequence[K]) -> Iterable[tuple[K, Row]]:
        """What the answer says of each item. May leave some out: that is an error of theirs."""
        raise NotImplementedError

    def name(self, item: K) -> str:
        """The item in an error: "topic orders"."""
        return str(item)

    def needs(self, what: str, version: int) -> str:
        """What is lacking, in words: "a filter of types needs Kafka 3.8 or later"."""
        kafka = first_kafka(self.request_type.API_NAME, version)
        return f"{what} needs {kafka} or later"

    def grant(self, item: K) -> str:
        """What a user needs who is denied: "DELETE on topic orders"."""
        raise NotImplementedError

    def done_before(self, item: K, code: int) -> bool:
        """Whether `code` tells that an earlier attempt, whose answer was lost, had worked."""
        return False

    def lacking(self, item: K, version: int) -> str | None:
        """Why this item cannot be asked for in a version, None if it can; NO_VERSION if the broker
        does not have the request at all."""
        return None


def call_items(
    cluster: Cluster,
    items: Iterable[K],
    api: ItemApi[K, V],
    route: Route[K],
    deadline: Deadline,
    what: str,
) -> Results[K, V]:
    """The outcome of each item. `what` is the whole in a log: "deleting topics"."""
    wanted = list(dict.fromkeys(items))
    pending = list(wanted)
    outcome: dict[K, V | KafkaError] = {}
    doubtful: set[K] = set()
    retry = cluster.retry(deadline, what)
    grace = deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)
    while pending:
        failures: dict[K, KafkaError] = {}
        attempt = _Attempt(cluster, api, deadline)
        for item, row in attempt.run(_placed(pending, route, deadline, failures), failures):
            settled = item in doubtful and api.done_before(item, row.code)
            if not row.code or settled:
                outcome[item] = row.value
            else:
                failures[item] = BrokerError(row.code, attempt.where[item], row.message)
        doubtful |= attempt.unanswered
        for item, error in failures.items():
            route.failed(item, error)
            final = _final(api, item, error, too_late=grace.expired)
            if final is not None:
                outcome[item] = final
        pending = [item for item in pending if item not in outcome]
        if pending:
            try:
                retry.after(failures[pending[0]])
            except KafkaTimeoutError as late:
                outcome |= {
                    item: _late(api, item, failures[item], deadline, late) for item in pending
                }
                break
    return Results({item: outcome[item] for item in wanted})


def _placed(
    items: Sequence[K], route: Route[K], deadline: Deadline, failures: dict[K, KafkaError]
) -> dict[int | None, list[K]]:
    """The items by the broker that they go to; those that have none get into `failures`."""
    try:
        places = route.find(items, deadline)
    except KafkaError as error:
        failures.update(dict.fromkeys(items, error))
        return {}
    by_node: dict[int | None, list[K]] = {}
    for item, place in places.items():
        if isinstance(place, KafkaError):
            failures[item] = place
        else:
            by_node.setdefault(place, []).append(item)
    return by_node


class _Attempt(Generic[K, V]):
    """All brokers asked once, at once. `where` and `unanswered` are what is known afterwards."""

    def __init__(self, cluster: Cluster, api: ItemApi[K, V], deadline: Deadline) -> None:
        self._cluster = cluster
        self._api = api
        self._deadline = deadline
        self._limit = deadline.sooner(cluster.options.request_timeout_ms)
        self._sent: list[tuple[Connection, list[K]]] = []
        self.where: dict[K, str] = {}
        # Items whose request went out, and of which nobody knows whether it was carried out.
        self.unanswered: set[K] = set()

    def run(
        self, by_node: Mapping[int | None, list[K]], failures: dict[K, KafkaError]
    ) -> list[tuple[K, Row]]:
        """What brokers said of items; why others were not asked or answered is in `failures`."""
        with closed_if_interrupted(lambda: [connection for connection, _ in self._sent]):
            return self._run(by_node, failures)

    def _run(
        self, by_node: Mapping[int | None, list[K]], failures: dict[K, KafkaError]
    ) -> list[tuple[K, Row]]:
        for node_id, items in by_node.items():
            try:
                self._send(node_id, items, failures)
            except KafkaError as error:
                failures.update(dict.fromkeys(items, error))
        rows: list[tuple[K, Row]] = []
        for connection, items in self._sent:
            try:
                response = connection.receive(self._limit)[1]
                throttle(response, self._deadline)
            except KafkaError as error:
                self.unanswered.update(items)
                failures.update(dict.fromkeys(items, error))
            else:
                rows += self._read(connection, response, items, failures)
        return rows

    def _send(self, node_id: int | None, items: list[K], failures: dict[K, KafkaError]) -> None:
        connection = self._connection(node_id)
        api = self._api
        try:
            version = connection.choose(api.request_type)
        except UnsupportedVersionError as error:
            self._none_can(connection, items, error, failures)
            return
        able = []
        for item in items:
            reason = api.lacking(item, version)
            if reason is None:
                able.append(item)
            else:
                failures[item] = UnsupportedVersionError(
                    f"{connection}: {api.name(item)}: {reason}"
                )
        if not able:
            return
        try:
            self._put(connection, able, version)
        except EncodeError as error:
            if len(able) == 1:
                failures[able[0]] = error
                return
            # One bad item must not be everybody's error: each goes by itself.
            for item in able:
                try:
                    self._put(connection, [item], version)
                except EncodeError as own:
                    failures[item] = own

    def _none_can(
        self,
        connection: Connection,
        items: list[K],
        error: UnsupportedVersionError,
        failures: dict[K, KafkaError],
    ) -> None:
        """The broker does not have the request. What an item asks for may need a later Kafka than
        the one that brought the request."""
        kind = self._api.request_type
        general = self._api.needs(kind.API_NAME, kind.MIN_VERSION)
        for item in items:
            reason = self._api.lacking(item, NO_VERSION) or general
            failures[item] = UnsupportedVersionError(
                f"{connection}: {self._api.name(item)}: {reason}"
            )
            failures[item].__cause__ = error

    def _put(self, connection: Connection, items: list[K], version: int) -> None:
        request = self._api.build(items, version)
        try:
            connection.send(request, self._limit, version=version)
        except (KafkaConnectionError, KafkaTimeoutError):
            # A part may have reached the broker, and the whole as well.
            self.unanswered.update(items)
            raise
        self._sent.append((connection, items))
        for item in items:
            self.where[item] = f"{request.API_NAME} of {self._api.name(item)} @ {connection}"

    def _connection(self, node_id: int | None) -> Connection:
        """A connection that the broker has not closed while nobody was looking.

        On a stale one the request would seem to be lost half-way, and what follows be taken for
        what an earlier attempt did.
        """
        for _ in range(_MOST_STALE):
            connection = self._any_or(node_id)
            if connection.in_flight or not select.select([connection.fileno()], [], [], 0)[0]:
                return connection
            connection.close()
        return self._any_or(node_id)

    def _any_or(self, node_id: int | None) -> Connection:
        if node_id is ANY_BROKER:
            return self._cluster.any_connection(self._deadline)
        return self._cluster.connection(node_id, self._limit)

    def _read(
        self,
        connection: Connection,
        response: Any,
        items: list[K],
        failures: dict[K, KafkaError],
    ) -> list[tuple[K, Row]]:
        code = getattr(response, "error_code", 0)
        if code:
            row = Row(code, None, getattr(response, "error_message", None))
            rows = [(item, row) for item in items]
        else:
            known = set(items)
            rows = [pair for pair in self._api.read(response, items) if pair[0] in known]
        answered = {item for item, _ in rows}
        for item in items:
            if item not in answered:
                failures[item] = BrokerError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    self.where[item],
                    "the broker's answer leaves it out",
                )
        self.unanswered.update(
            item for item, row in rows if row.code == ErrorCode.REQUEST_TIMED_OUT
        )
        return rows


def _final(api: ItemApi[K, V], item: K, error: KafkaError, *, too_late: bool) -> KafkaError | None:
    """The error that ends the item's turn, in words for people; None if another try may help."""
    if not isinstance(error, BrokerError):
        return None if error.retriable else error
    if error.code in _DENIED:
        return BrokerError(error.code, error.where, f"not allowed: grant {api.grant(item)}")
    if error.code in api.told_at_once:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return UnknownTopicError(error.code, error.where, error.broker_message)
        return error
    if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and too_late:
        return UnknownTopicError(error.code, error.where, error.broker_message)
    return None if error.retriable else error


def _late(
    api: ItemApi[K, V], item: K, error: KafkaError, deadline: Deadline, late: KafkaTimeoutError
) -> KafkaTimeoutError:
    own = KafkaTimeoutError(
        f"{api.name(item)}: gave up after {deadline.total_ms / 1000:g} s; the last failure: {error}"
    )
    own.__cause__ = late.__cause__ if late.__cause__ is error else error
    return own
