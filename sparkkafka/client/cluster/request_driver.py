"""The request driver: sends a request about several items to the right brokers, retries it, and
ends with a value or an error for each item.

An `ApiHandler` builds one kind of request and reads its answers; a `Lookup` finds the broker of
each item (as Java's AdminApiDriver, AdminApiHandler and AdminApiLookupStrategy do). Items of one
broker share a request, and requests to several brokers are in flight together. An item is done when
it has a value or an error that is not retriable, or at the deadline.

The driver calls a lookup before each attempt. A lookup does not wait: what it cannot find is an
error of that item only, and the driver decides whether to try again.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeGuard, TypeVar

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, throttle
from sparkkafka.client.cluster.metadata import no_leader, no_partition, no_topic
from sparkkafka.client.deadline import Backoff, Deadline, has_given_up
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.pool import closed_if_interrupted
from sparkkafka.client.values import Broker, Results, TopicPartition, checked_topic
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
    UnsupportedVersionError,
    some,
)
from sparkkafka.protocol.messages import FindCoordinatorRequest
from sparkkafka.protocol.wire.releases import first_kafka

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

ANY_BROKER = None

NO_VERSION = -1

_DENIED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

_MAX_STALE = 5  # a server that sends what nobody asked for would make it look stale every time


class Row(NamedTuple):
    """What an answer says of an item. `value` counts if `code` is 0."""

    code: int
    value: Any = None
    message: str | None = None


class ApiHandler(Generic[K, V]):
    """One kind of request about several items: how to ask, and how to read the answer."""

    request_type: ClassVar[Any]

    named: ClassVar[str] = "{}"
    """The item in an error: "topic {}"."""

    acl: ClassVar[str] = ""
    """What a user lacks who is denied: "DELETE on topic {}"."""

    version: int | None = None
    """The version to use; None: the highest that both sides have."""

    final_codes: ClassVar[frozenset[int]] = frozenset()
    """Codes that Kafka's table calls retriable: here a wait would only hide a typing error."""

    done_codes: ClassVar[frozenset[int]] = frozenset()
    """Codes that say that an earlier attempt, whose answer was lost, had worked."""

    empty_codes: ClassVar[frozenset[int]] = frozenset()
    """Codes that say that there is nothing of an item: it has no value, and no error."""

    backoff_ms: float | None = None
    """The first wait after a failure; None: retry.backoff.ms."""

    grace_ms: float = UNKNOWN_TOPIC_GRACE_MS
    """How long UNKNOWN_TOPIC_OR_PARTITION may pass: brokers learn of new topics one by one."""

    def build(self, items: Sequence[K], version: int) -> Any:
        """The request for these items. EncodeError for what cannot be put on the wire."""
        raise NotImplementedError

    def parts(self, items: Sequence[K], version: int) -> Iterable[Sequence[K]]:
        """The items of one broker, by request."""
        return [items]

    def read(self, response: Any, items: Sequence[K]) -> Iterable[tuple[K, Row]]:
        """What the answer says of each item. An item that it leaves out has failed."""
        raise NotImplementedError

    def name(self, item: K) -> str:
        return self.named.format(item)

    def about(self, items: Iterable[K]) -> str:
        """What a request is about, in an error."""
        return some(self.name(item) for item in items)

    def explain(self, item: K, error: BrokerError) -> KafkaError:
        """The broker's error in words for people."""
        if error.code in _DENIED and (grant := self.grant(item)):
            return BrokerError(error.code, error.where, f"not allowed: grant {grant}")
        return error

    def grant(self, item: K) -> str:
        return self.acl.format(item)

    def needs(self, what: str, version: int) -> str:
        """Which Kafka has it: "a filter of types needs Kafka 3.8 or later"."""
        kafka = first_kafka(self.request_type.API_NAME, version)
        return f"{what} needs {kafka} or later"

    def lacking(self, item: K, version: int) -> str | None:
        """Why this item cannot be asked for in a version, None if it can; NO_VERSION if the broker
        does not have the request at all."""
        return None

    def done_before(self, item: K, code: int) -> bool:
        return code in self.done_codes


class Lookup(Protocol[K_contra]):
    """Finds the broker of each item: a node id, or ANY_BROKER. See `lookups`."""

    def find(self, items: Iterable[Any], deadline: Deadline) -> dict[Any, int | KafkaError | None]:
        """For each item the broker, or why it is not known. One attempt, without a wait."""

    def failed(self, item: K_contra, error: KafkaError) -> None:
        """The broker did not do it: distrust what the cluster knows, if the error says so."""


def call_each(
    cluster: Cluster,
    items: Iterable[K],
    handler: ApiHandler[K, V],
    lookup: Lookup[K],
    deadline: Deadline,
    what: str,
) -> Results[K, V]:
    """The outcome of each item. `what` is the whole in a log: "deleting topics"."""
    return Results(_drive(cluster, items, handler, lookup, deadline, what))


def call_once(
    cluster: Cluster,
    items: Sequence[K],
    handler: ApiHandler[K, V],
    lookup: Lookup[K],
    deadline: Deadline,
) -> Results[K, V]:
    """`call_each` with one attempt, for those who repeat it themselves."""
    return Results(_drive(cluster, items, handler, lookup, deadline, "", once=True))


def call_all(
    cluster: Cluster,
    items: Iterable[K],
    handler: ApiHandler[K, V],
    lookup: Lookup[K],
    deadline: Deadline | None,
    what: str,
    *,
    on_retry: Callable[[KafkaError], None] = lambda error: None,
) -> dict[K, V]:
    """The value of every item, for those who need all or nothing.

    Raises the first error that does not pass, without waiting for the other items: a BrokerError
    names all items of that request that have the same code. KafkaTimeoutError, with the last
    failure, at the deadline (None: default.api.timeout.ms). `on_retry` gets each failure that is
    retried.
    """
    deadline = deadline or cluster.deadline()
    return _drive(
        cluster, items, handler, lookup, deadline, what, all_or_nothing=True, on_retry=on_retry
    )


def _drive(
    cluster: Cluster,
    items: Iterable[K],
    handler: ApiHandler[K, V],
    lookup: Lookup[K],
    deadline: Deadline,
    what: str,
    *,
    all_or_nothing: bool = False,
    once: bool = False,
    on_retry: Callable[[KafkaError], None] = lambda error: None,
) -> dict[K, Any]:
    """The value or the KafkaError of each item."""
    wanted = list(dict.fromkeys(items))
    pending = list(wanted)
    outcome: dict[K, V | KafkaError] = {}
    doubtful: set[K] = set()
    said: dict[K, KafkaError] = {}
    options = cluster.options
    first_ms = handler.backoff_ms or options.retry_backoff_ms
    retry = cluster.retry(deadline, what, Backoff(first_ms, options.retry_backoff_max_ms))
    deadline = retry.deadline
    grace = deadline.sooner(handler.grace_ms)
    while pending:
        attempt = _Attempt(cluster, handler, deadline)
        attempt.run(_placed(pending, lookup, deadline, attempt.failures))
        failures = attempt.failures
        for item, row in attempt.rows.items():
            is_fine = not row.code or row.code in handler.empty_codes
            if is_fine or (item in doubtful and handler.done_before(item, row.code)):
                outcome[item] = row.value
            else:
                failures[item] = BrokerError(row.code, attempt.where(item), row.message)
        doubtful |= attempt.unanswered
        if deadline.expired:  # there was no time for this attempt: what was said before tells more
            failures |= {
                item: said.get(item, error)
                for item, error in failures.items()
                if isinstance(error, KafkaTimeoutError)
            }
        said |= failures
        final: dict[K, KafkaError] = {}
        for item in [item for item in pending if item in failures]:
            lookup.failed(item, failures[item])
            error = failures[item] = _explained(handler, item, failures[item], grace)
            is_final = not error.retriable or has_given_up(error)
            if once or is_final or getattr(error, "code", 0) in handler.final_codes:
                final[item] = error
        if final and all_or_nothing:
            raise _of_all(handler, attempt, final)
        outcome |= final
        pending = [item for item in pending if item not in outcome]
        if pending:
            for item in pending:
                on_retry(failures[item])
            try:
                retry.after(failures[pending[0]])
            except KafkaTimeoutError as late:
                # That a topic is unknown says more than that there was no time for a last look.
                unknown = {
                    item: _unknown(error)
                    for item, error in failures.items()
                    if item in pending and _is_unknown(error)
                }
                if all_or_nothing:
                    raise next(iter(unknown.values()), late) from late.__cause__
                outcome |= unknown
                for item in pending:
                    if item not in outcome:
                        outcome[item] = _late(handler, item, what, failures[item], deadline, late)
                break
    return {item: outcome[item] for item in wanted}


def _placed(
    items: Sequence[K], lookup: Lookup[K], deadline: Deadline, failures: dict[K, KafkaError]
) -> dict[int | None, list[K]]:
    """The items by the broker that they go to; those that have none get into `failures`."""
    try:
        places = lookup.find(items, deadline)
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
    """All brokers asked once, at once."""

    def __init__(self, cluster: Cluster, handler: ApiHandler[K, V], deadline: Deadline) -> None:
        self._cluster = cluster
        self._handler = handler
        self._deadline = deadline
        self._limit = deadline.sooner(cluster.options.request_timeout_ms)
        self._sent: list[tuple[Connection, Sequence[K]]] = []
        self.connections: dict[K, Connection] = {}
        self.rows: dict[K, Row] = {}
        """What brokers said of items."""
        self.failures: dict[K, KafkaError] = {}
        """Why the others were not asked, or not answered."""
        self.unanswered: set[K] = set()
        """Items whose request went out, and of which nobody knows whether it was carried out."""

    def where(self, *items: K) -> str:
        """The request and the broker, for an error about items of one request."""
        name, about = self._handler.request_type.API_NAME, self._handler.about(items)
        return f"{name} of {about} @ {self.connections[items[0]]}"

    def run(self, by_node: Mapping[int | None, list[K]]) -> None:
        with closed_if_interrupted(lambda: [connection for connection, _ in self._sent]):
            for node_id, items in by_node.items():
                try:
                    self._send(node_id, items)
                except KafkaError as error:
                    unsent = [item for item in items if item not in self.connections]
                    self.failures |= dict.fromkeys(unsent, error)
            late: dict[Connection, KafkaTimeoutError] = {}
            for connection, sent in self._sent:
                try:
                    if connection in late:  # it is closed, and that tells less
                        raise late[connection]
                    response = connection.receive(self._limit)[1]
                    throttle(response, self._deadline)
                except KafkaError as error:
                    if isinstance(error, KafkaTimeoutError):
                        late[connection] = error
                    self.unanswered.update(sent)
                    self.failures |= dict.fromkeys(sent, error)
                else:
                    self._read(response, sent)

    def _send(self, node_id: int | None, items: list[K]) -> None:
        connection = self._connection(node_id)
        handler = self._handler
        version = handler.version
        if version is None:
            try:
                version = connection.choose(handler.request_type)
            except UnsupportedVersionError as error:
                self._none_can(connection, items, error)
                return
        able = []
        for item in items:
            reason = handler.lacking(item, version)
            if reason is None:
                able.append(item)
            else:
                self.failures[item] = UnsupportedVersionError(
                    f"{connection}: {handler.name(item)}: {reason}"
                )
        for part in handler.parts(able, version) if able else ():
            try:
                self._put(connection, part, version)
            except EncodeError as error:
                if len(part) == 1:
                    self.failures[part[0]] = error
                    continue
                # One bad item must not be everybody's error: each goes by itself.
                for item in part:
                    try:
                        self._put(connection, [item], version)
                    except EncodeError as own:
                        self.failures[item] = own

    def _none_can(
        self, connection: Connection, items: list[K], error: UnsupportedVersionError
    ) -> None:
        """The broker does not have the request. What an item asks for may need a later Kafka than
        the one that brought the request."""
        handler = self._handler
        kind = handler.request_type
        general = handler.needs(kind.API_NAME, kind.MIN_VERSION)
        for item in items:
            reason = handler.lacking(item, NO_VERSION) or general
            self.failures[item] = UnsupportedVersionError(
                f"{connection}: {handler.name(item)}: {reason}"
            )
            self.failures[item].__cause__ = error

    def _put(self, connection: Connection, items: Sequence[K], version: int) -> None:
        request = self._handler.build(items, version)
        try:
            connection.send(request, self._limit, version=version)
        except (KafkaConnectionError, KafkaTimeoutError):
            # A part may have reached the broker, and the whole as well.
            self.unanswered.update(items)
            raise
        self._sent.append((connection, items))
        self.connections.update(dict.fromkeys(items, connection))

    def _connection(self, node_id: int | None) -> Connection:
        """A connection that the broker has not closed since its last use.

        On a stale one the request would seem to be lost half-way, and what follows be taken for
        what an earlier attempt did.
        """
        for _ in range(_MAX_STALE):
            connection = self._any_or(node_id)
            if connection.in_flight or not select.select([connection.fileno()], [], [], 0)[0]:
                return connection
            connection.close()
        return self._any_or(node_id)

    def _any_or(self, node_id: int | None) -> Connection:
        if node_id is ANY_BROKER:
            return self._cluster.any_connection(self._deadline)
        return self._cluster.connection(node_id, self._limit)

    def _read(self, response: Any, items: Sequence[K]) -> None:
        if code := getattr(response, "error_code", 0):
            row = Row(code, None, getattr(response, "error_message", None))
            rows = dict.fromkeys(items, row)
        else:
            known = set(items)
            read = self._handler.read(response, items)
            rows = {item: row for item, row in read if item in known}
        left_out = Row(ErrorCode.UNKNOWN_SERVER_ERROR, None, "the broker's answer leaves it out")
        for item in items:
            self.rows[item] = row = rows.get(item, left_out)
            if row.code == ErrorCode.REQUEST_TIMED_OUT:
                self.unanswered.add(item)


def _explained(
    handler: ApiHandler[K, V], item: K, error: KafkaError, grace: Deadline
) -> KafkaError:
    """The error in words for people, and final if its time to pass is over."""
    if not isinstance(error, BrokerError):
        return error
    if _is_unknown(error) and (grace.expired or error.code in handler.final_codes):
        return _unknown(error)
    return handler.explain(item, error)


def _is_unknown(error: KafkaError) -> TypeGuard[BrokerError]:
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _unknown(error: BrokerError) -> UnknownTopicError:
    return UnknownTopicError(error.code, error.where, error.broker_message)


def _of_all(
    handler: ApiHandler[K, V], attempt: _Attempt[K, V], final: Mapping[K, KafkaError]
) -> KafkaError:
    """The first of the final errors; a broker's names all items of which it said the same."""
    first, error = next(iter(final.items()))
    if not isinstance(error, BrokerError) or first not in attempt.rows:
        return error
    connection = attempt.connections[first]
    same = [
        item
        for item, other in final.items()
        if isinstance(other, BrokerError)
        and other.code == error.code
        and attempt.connections.get(item) is connection
    ]
    return type(error)(error.code, attempt.where(*same), error.broker_message)


def _late(
    handler: ApiHandler[K, V],
    item: K,
    what: str,
    error: KafkaError,
    deadline: Deadline,
    late: KafkaTimeoutError,
) -> KafkaTimeoutError:
    own = KafkaTimeoutError(
        f"{what}: gave up after {deadline.text}; the last failure of {handler.name(item)}: {error}"
    )
    own.__cause__ = late.__cause__ if late.__cause__ is error else error
    return own


# --- lookups: which broker a request goes to ------------------------------------------------------


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
