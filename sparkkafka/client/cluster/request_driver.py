"""The request driver: sends a request about several items to the right brokers, retries it, and
ends with a value or an error for each item.

An `ApiHandler` builds one kind of request and reads its responses; a `Lookup` finds the broker of
each item (as Java's AdminApiDriver, AdminApiHandler and AdminApiLookupStrategy do). Items of one
broker share a request, and requests to several brokers are in flight together. An item is done when
it has a value or an error that is not retriable, or at the deadline.

The driver calls a lookup before each attempt. A lookup does not wait: what it cannot find is an
error of that item only, and the driver decides whether to try again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeGuard, TypeVar

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, throttle
from sparkkafka.client.cluster.metadata import (
    no_leader_error,
    unknown_partition_error,
    unknown_topic_error,
)
from sparkkafka.client.deadline import Backoff, Deadline, has_given_up
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Broker, Results, TopicPartition, checked_topic
from sparkkafka.protocol.messages import FindCoordinatorRequest
from sparkkafka.protocol.wire.schema import OLDEST_KAFKA, first_kafka

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ANY_BROKER = None

NO_VERSION = -1


class Outcome(NamedTuple):
    """What a broker answers about one item: an error code, or with code 0 a value."""

    code: int
    value: Any = None
    message: str | None = None

    @classmethod
    def of(cls, response: Any, value: Any = None) -> Self:
        """Return the outcome with the error_code and error_message of a response, or of the part of
        one that is about the item."""
        return cls(response.error_code, value, getattr(response, "error_message", None))


Outcomes: TypeAlias = Iterable[tuple[K, Outcome]]


class ApiHandler(Generic[K, V]):
    """Builds one kind of request about several items, and reads its responses."""

    request_type: ClassVar[Any]

    name_format: ClassVar[str] = "{}"
    """How an error names an item: "topic {}", "{} of group {handler.group_id!r}"."""

    acl: ClassVar[str] = ""
    """The ACL to grant if the request is denied, in the same way: "DELETE on topic {}"."""

    version: int | None = None
    """The version to use. If it is None: the highest one that client and broker have, up to
    `highest_version`."""

    highest_version: int | None = None
    """The highest version to use. If it is None: the USUAL_VERSION of the request."""

    final_codes: ClassVar[frozenset[int]] = frozenset()
    """Codes that are retriable in Kafka, but not here, where they mean a mistyped name."""

    done_codes: ClassVar[frozenset[int]] = frozenset()
    """Codes that, after an attempt without a response, mean that this attempt has succeeded."""

    empty_codes: ClassVar[frozenset[int]] = frozenset()
    """Codes that are no error: they mean that there is nothing about an item."""

    hints: ClassVar[Mapping[int, str]] = {}
    """By error code, the text of the error, which replaces the broker's message."""

    backoff_ms: float | None = None
    """The first wait after a failure; retry.backoff.ms if it is None."""

    grace_ms: float = UNKNOWN_TOPIC_GRACE_MS
    """How long UNKNOWN_TOPIC_OR_PARTITION is retried: brokers learn of new topics one by one."""

    def build(self, items: Sequence[K], version: int) -> Any:
        """Build the request for these items; the driver sets its `timeout_ms`, if it has one.
        Raises EncodeError for what cannot be encoded."""
        raise NotImplementedError

    def split(self, items: Sequence[K], version: int) -> Iterable[Sequence[K]]:
        """Split the items of one broker into requests."""
        return [items]

    def read(self, response: Any, items: Sequence[K]) -> Outcomes[K]:
        """Read the outcome of each item. An item that the response leaves out has failed."""
        raise NotImplementedError

    def name(self, item: K) -> str:
        """Return how an error names an item."""
        text = self.name_format.format(item, handler=self)
        return f"{text}''" if text.endswith(" ") else text  # the name is empty

    def describe(self, items: Iterable[K]) -> str:
        """Describe the items of a request for an error."""
        return errors.some(self.name(item) for item in items)

    def explain(self, item: K, error: errors.BrokerError) -> errors.KafkaError:
        """Return a broker's error with a message that says what to do."""
        if error.code in self.hints:
            return errors.BrokerError(error.code, error.where, self.hints[error.code])
        denied = (
            errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            errors.ErrorCode.GROUP_AUTHORIZATION_FAILED,
            errors.ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            errors.ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )
        if error.code in denied and (grant := self.needed_acl(item)):
            return errors.BrokerError(error.code, error.where, f"not allowed: grant {grant}")
        return error

    def needed_acl(self, item: K) -> str:
        """Return the ACL to grant if the request about this item is denied; "" if not known."""
        return self.acl.format(item, handler=self)

    def needs(self, what: str, version: int) -> str:
        """Return the sentence "a filter of types needs Kafka 3.8 or later" for an error.

        If the oldest supported Kafka has this version, the brokers are not Kafka (but, for example,
        a cloud service), and the sentence says so.
        """
        kafka = first_kafka(self.request_type, version)
        if kafka in ("", OLDEST_KAFKA):
            return f"this broker does not offer {what}, although every supported Kafka does"
        return f"{what} needs {kafka} or later"

    def unsupported_reason(self, item: K, version: int) -> str | None:
        """Return why the request about this item cannot have this version, None if it can. The
        version is NO_VERSION if the broker does not know the request."""
        for what, since in self.needed_versions(item).items():
            if version < since:
                return self.needs(what, since)
        return None

    def needed_versions(self, item: K) -> Mapping[str, int]:
        """Return the fields of the request about this item that old versions lack: {name for an
        error, like "a filter of types": first version with it}."""
        return {}

    def is_already_done(self, item: K, code: int) -> bool:
        """Return whether this error code means that an earlier request about the item, whose
        response was lost, has succeeded."""
        return code in self.done_codes


Nodes: TypeAlias = dict[Any, int | errors.KafkaError | None]
"""{item: node id of its broker, or ANY_BROKER, or the error why the broker is not known}."""


@dataclass(eq=False)
class Lookup:
    """Finds the broker to which the request about each item goes, and sends the requests there."""

    cluster: Cluster

    def find(self, items: Iterable[Any], deadline: Deadline) -> Nodes:
        """Find the brokers, in one attempt."""
        raise NotImplementedError

    def on_failure(self, item: Any, error: errors.KafkaError) -> None:
        """Forget the broker of an item whose request failed, if the error implies a wrong one."""

    def call_each(
        self, items: Iterable[K], handler: ApiHandler[K, V], deadline: Deadline, what: str
    ) -> Results[K, V]:
        """Send the request about each item, until it has a value or an error of its own.

        `what` names the operation in logs and errors: "deleting topics".
        """
        return Results(_drive(self, items, handler, deadline, what))

    def call_once(
        self, items: Iterable[K], handler: ApiHandler[K, V], deadline: Deadline
    ) -> Results[K, V]:
        """Send the request about each item once, for callers that retry themselves. Return the
        value or the error of each item."""
        return Results(_drive(self, items, handler, deadline, "", once=True))

    def call_all(
        self,
        items: Iterable[K],
        handler: ApiHandler[K, V],
        deadline: Deadline | None,
        what: str,
        *,
        on_retry: Callable[[errors.KafkaError], None] = lambda error: None,
    ) -> dict[K, V]:
        """Send the request about all items, and return every item's value.

        Raises the first error that is not retriable, without waiting for the other items; a
        BrokerError names all items of that request that have the same code. Raises
        KafkaTimeoutError, with the last failure, at the deadline (None: default.api.timeout.ms).
        `on_retry` gets each failure that is retried.
        """
        deadline = deadline or self.cluster.deadline()
        return _drive(self, items, handler, deadline, what, all_or_nothing=True, on_retry=on_retry)


def _drive(
    lookup: Lookup,
    items: Iterable[K],
    handler: ApiHandler[K, V],
    deadline: Deadline,
    what: str,
    *,
    all_or_nothing: bool = False,
    once: bool = False,
    on_retry: Callable[[errors.KafkaError], None] = lambda error: None,
) -> dict[K, Any]:
    """Send requests until each item has a value or a KafkaError, and return these.

    With `all_or_nothing` the first final error is raised, with `once` there is one attempt.
    """
    cluster, all_items = lookup.cluster, list(dict.fromkeys(items))
    pending = list(all_items)
    results: dict[K, V | errors.KafkaError] = {}
    maybe_done: set[K] = set()  # a request that was not answered may have been carried out
    last_errors: dict[K, errors.KafkaError] = {}
    options = cluster.options
    first_ms = handler.backoff_ms or options.retry_backoff_ms
    retry = cluster.retry(deadline, what, Backoff(first_ms, options.retry_backoff_max_ms))
    deadline = retry.deadline
    grace = deadline.sooner(handler.grace_ms)  # until then an unknown topic is retried
    # A round: send requests about all pending items; of these keep the values and the final
    # errors, and wait before the next round for those that failed otherwise.
    while pending:
        attempt = _Attempt(cluster, handler, deadline)
        attempt.run(pending, lookup)
        failures = attempt.failures
        for item, outcome in attempt.outcomes.items():
            code = outcome.code
            is_value = not code or code in handler.empty_codes
            if is_value or (item in maybe_done and handler.is_already_done(item, code)):
                results[item] = outcome.value
            else:
                failures[item] = errors.BrokerError(code, attempt.where(item), outcome.message)
        maybe_done |= attempt.unanswered
        if deadline.expired:  # there was no time for this attempt: the errors before it say more
            failures |= {
                item: last_errors.get(item, error)
                for item, error in failures.items()
                if isinstance(error, errors.KafkaTimeoutError)
            }
        last_errors |= failures
        final: dict[K, errors.KafkaError] = {}
        for item in [item for item in pending if item in failures]:
            lookup.on_failure(item, failures[item])
            error = failures[item] = _explain(handler, item, failures[item], grace)
            is_final = not error.retriable or has_given_up(error)
            if once or is_final or getattr(error, "code", 0) in handler.final_codes:
                final[item] = error
        if final and all_or_nothing:
            raise _first_final_error(attempt, final)
        results |= final
        pending = [item for item in pending if item not in results]
        if pending:
            for item in pending:
                on_retry(failures[item])
            try:
                retry.after(failures[pending[0]])  # waits; any of the failures can be the reason
            except errors.KafkaTimeoutError as timeout:
                left = {item: failures[item] for item in pending}
                if all_or_nothing:
                    unknown = filter(_is_unknown_topic, left.values())
                    raise next(map(_as_unknown_topic_error, unknown), timeout) from (
                        timeout.__cause__
                    )
                for item, failure in left.items():
                    results[item] = _timeout_error(handler, item, failure, what, deadline)
                break
    return {item: results[item] for item in all_items}


def _timeout_error(
    handler: ApiHandler[K, V], item: K, failure: errors.KafkaError, what: str, deadline: Deadline
) -> errors.KafkaError:
    """Return the error of an item that has failed until the deadline."""
    # A better reason than too little time for a last attempt.
    if _is_unknown_topic(failure):
        return _as_unknown_topic_error(failure)
    error = errors.KafkaTimeoutError(
        f"{what}: gave up after {deadline.text}; the last failure of {handler.name(item)}: "
        f"{failure}"
    )
    error.__cause__ = failure
    return error


class _Attempt(Generic[K, V]):
    """One attempt of a call: requests to all brokers that are in flight together."""

    def __init__(self, cluster: Cluster, handler: ApiHandler[K, V], deadline: Deadline) -> None:
        self._cluster = cluster
        self._handler = handler
        self._deadline = deadline
        self._request_deadline = deadline.sooner(cluster.options.request_timeout_ms)
        self._sent: list[tuple[Connection, Sequence[K]]] = []
        # The connection to which the request about each item goes.
        self.connections: dict[K, Connection] = {}
        self.outcomes: dict[K, Outcome] = {}
        """The outcomes of the items that a response contains."""
        self.failures: dict[K, errors.KafkaError] = {}
        """The errors of items without a response."""
        self.unanswered: set[K] = set()
        """Items whose request was sent and not answered: the broker may have executed it."""

    def where(self, *items: K) -> str:
        """Describe request and broker for an error about items of one request."""
        name, about = self._handler.request_type.API_NAME, self._handler.describe(items)
        return f"{name} of {about} @ {self.connections[items[0]]}"

    def run(self, items: Sequence[K], lookup: Lookup) -> None:
        """Find the brokers of the items, send requests to all of them, then read the responses."""
        by_node: dict[int | None, list[K]] = {}
        try:
            for item, node in lookup.find(items, self._deadline).items():
                if isinstance(node, errors.KafkaError):
                    self.failures[item] = node
                else:
                    by_node.setdefault(node, []).append(item)
        except errors.KafkaError as error:
            self.failures.update(dict.fromkeys(items, error))
            return
        try:
            for node_id, items_of_node in by_node.items():
                try:
                    self._send_to_broker(node_id, items_of_node)
                except errors.KafkaError as error:
                    unsent = [item for item in items_of_node if item not in self.connections]
                    self.failures |= dict.fromkeys(unsent, error)
            self._receive_all()
        except BaseException:  # Ctrl-C: a later caller must not receive these responses
            for connection, _ in self._sent:
                connection.close()
            raise

    def _receive_all(self) -> None:
        """Read the responses to all requests that were sent."""
        timeouts: dict[Connection, errors.KafkaTimeoutError] = {}
        for connection, items in self._sent:
            try:
                if connection in timeouts:  # the connection is closed: the timeout is clearer
                    raise timeouts[connection]
                _, response = connection.receive(self._request_deadline)
                throttle(response, self._deadline)
            except errors.KafkaError as error:
                if isinstance(error, errors.KafkaTimeoutError):
                    timeouts[connection] = error
                self.unanswered.update(items)
                self.failures |= dict.fromkeys(items, error)
            else:
                self._read_response(response, items)

    def _send_to_broker(self, node_id: int | None, items: list[K]) -> None:
        """Send the requests about these items to a broker. An item gets an error in `failures` if
        its request cannot be encoded, or needs a later version than the broker has."""
        # Both methods check that the broker has not closed the connection since its last use. On a
        # closed one the request would count as sent and unanswered, and errors of the next attempt
        # could be taken for an effect of this one (`is_already_done`).
        if node_id is ANY_BROKER:
            connection = self._cluster.any_connection(self._deadline)
        else:
            connection = self._cluster.connection(node_id, self._request_deadline)
        handler = self._handler
        request_type, version = handler.request_type, handler.version
        unknown_request: errors.UnsupportedVersionError | None = None
        if version is None:
            try:
                version = connection.choose_version(request_type, handler.highest_version)
            except errors.UnsupportedVersionError as error:
                version, unknown_request = NO_VERSION, error
        supported = []
        for item in items:
            # An item may need a later Kafka than the request.
            reason = handler.unsupported_reason(item, version)
            if reason is None and unknown_request is not None:
                reason = handler.needs(request_type.API_NAME, request_type.MIN_VERSION)
            if reason is None:
                supported.append(item)
                continue
            failure = errors.UnsupportedVersionError(
                f"{connection}: {handler.name(item)}: {reason}"
            )
            failure.__cause__ = unknown_request
            self.failures[item] = failure
        requests = deque(handler.split(supported, version) if supported else ())
        while requests:
            request_items = requests.popleft()
            try:
                self._send_request(connection, request_items, version)
            except errors.EncodeError as error:
                if len(request_items) == 1:
                    self.failures[request_items[0]] = error
                else:  # one bad item must not fail the others: each gets a request of its own
                    requests.extend([item] for item in request_items)

    def _send_request(self, connection: Connection, items: Sequence[K], version: int) -> None:
        """Send one request about these items. Raises EncodeError, KafkaError."""
        request = self._handler.build(items, version)
        if hasattr(request, "timeout_ms"):
            # How long the broker may take: not longer than the client waits for its response.
            request.timeout_ms = int(self._request_deadline.remaining_s() * 1000)
        try:
            connection.send(request, self._request_deadline, version=version)
        except (errors.KafkaConnectionError, errors.KafkaTimeoutError):
            # The request may have reached the broker.
            self.unanswered.update(items)
            raise
        self._sent.append((connection, items))
        self.connections.update(dict.fromkeys(items, connection))

    def _read_response(self, response: Any, items: Sequence[K]) -> None:
        """Read the outcome of each item from a response. An error code of the response as a whole
        is the outcome of all items."""
        if getattr(response, "error_code", 0):
            outcomes = dict.fromkeys(items, Outcome.of(response))
        else:
            outcomes = dict(self._handler.read(response, items))
        left_out = Outcome(
            errors.ErrorCode.UNKNOWN_SERVER_ERROR, None, "the broker's response leaves it out"
        )
        for item in items:
            self.outcomes[item] = outcomes.get(item, left_out)
            if self.outcomes[item].code == errors.ErrorCode.REQUEST_TIMED_OUT:
                self.unanswered.add(item)


def _explain(
    handler: ApiHandler[K, V], item: K, error: errors.KafkaError, grace: Deadline
) -> errors.KafkaError:
    """Return the error with the handler's explanation; an UnknownTopicError, which is not
    retriable, if a broker does not know the topic and the grace period is over."""
    if not isinstance(error, errors.BrokerError) or isinstance(error, errors.UnknownTopicError):
        return error  # from a lookup that found the topic missing, too
    if _is_unknown_topic(error) and (grace.expired or error.code in handler.final_codes):
        return _as_unknown_topic_error(error)
    return handler.explain(item, error)


def _is_unknown_topic(error: errors.KafkaError) -> TypeGuard[errors.BrokerError]:
    """Return whether the error is that of a broker which does not know a topic or partition."""
    return isinstance(error, errors.BrokerError) and error.code in (
        errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.ErrorCode.UNKNOWN_TOPIC_ID,
    )


def _as_unknown_topic_error(error: errors.BrokerError) -> errors.UnknownTopicError:
    """Return the same error as an UnknownTopicError, which is not retriable."""
    return errors.UnknownTopicError(error.code, error.where, error.broker_message)


def _first_final_error(
    attempt: _Attempt[K, V], final: Mapping[K, errors.KafkaError]
) -> errors.KafkaError:
    """Return the first of the final errors. If it is a broker's error, its message names all items
    for which that broker returned the same error code."""
    first, error = next(iter(final.items()))
    if not isinstance(error, errors.BrokerError) or first not in attempt.outcomes:
        return error
    connection = attempt.connections[first]
    same = [
        item
        for item, other in final.items()
        if isinstance(other, errors.BrokerError)
        and other.code == error.code
        and attempt.connections.get(item) is connection
    ]
    return type(error)(error.code, attempt.where(*same), error.broker_message)


# --- lookups: which broker a request goes to ------------------------------------------------------


class ToAny(Lookup):
    """Sends requests that every broker can answer to any broker."""

    def find(self, items: Iterable[Any], deadline: Deadline) -> Nodes:
        return dict.fromkeys(items, ANY_BROKER)


class ToController(Lookup):
    """Sends requests to the controller; in KRaft mode any broker forwards them to it."""

    def find(self, items: Iterable[Any], deadline: Deadline) -> Nodes:
        return dict.fromkeys(items, self.cluster.controller(deadline))

    def on_failure(self, item: Hashable, error: errors.KafkaError) -> None:
        """Look up the controller again: it may have moved."""
        self.cluster.metadata.controller_id = None


@dataclass(eq=False)
class ToLeader(Lookup):
    """Sends requests to the leaders of partitions. Items are TopicPartitions, or `partition_of`
    returns an item's partition.

    `awaits_partitions`: if a topic does not have the partition, retry, since create_partitions may
    just have added it. Otherwise that is an error immediately.
    """

    partition_of: Callable[[Any], TopicPartition] = lambda item: item
    awaits_partitions: bool = True
    # By topic: since when brokers do not know it.
    _unknown_since_s: dict[str, float] = field(default_factory=dict, init=False)

    def find(self, items: Iterable[Any], deadline: Deadline) -> Nodes:
        """Return, for each item, the node id of its partition's leader, or the error why there is
        none. Requests metadata once, of topics whose leaders are not in the cache."""
        cluster = self.cluster
        partitions = {item: self.partition_of(item) for item in items}
        unknown = {tp.topic for tp in partitions.values() if cluster.known_leader(tp) is None}
        invalid = _invalid_topics(unknown)
        unknown -= invalid.keys()
        failed = cluster.request_metadata(sorted(unknown), deadline) if unknown else {}
        missing = self._missing_topic_errors(failed, deadline)
        nodes: Nodes = {}
        for item, tp in partitions.items():
            leader = cluster.known_leader(tp)
            if leader is not None:
                nodes[item] = leader.leader
            elif tp.topic in invalid:
                nodes[item] = invalid[tp.topic]
            elif tp.topic in missing:
                error = missing[tp.topic]
                where = f"Metadata of {tp}"
                nodes[item] = errors.UnknownTopicError(error.code, where, error.broker_message)
            elif tp.topic in failed:
                nodes[item] = _no_metadata_error(cluster, tp, failed[tp.topic])
            else:
                nodes[item] = self._no_leader_error(tp)
        return nodes

    def _missing_topic_errors(
        self, failed: Mapping[str, int], deadline: Deadline
    ) -> dict[str, errors.UnknownTopicError]:
        """Return the errors of the topics that brokers have not known for so long that they count
        as missing (`believed_missing`). `failed` has the error codes of topics without metadata."""
        cluster = self.cluster
        unknown = [
            name
            for name, code in failed.items()
            if code == errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        for name, since_s in cluster.unknown_since_s(unknown, time.monotonic()).items():
            self._unknown_since_s.setdefault(name, since_s)
        unknown_since_s = {name: self._unknown_since_s[name] for name in unknown}
        missing = cluster.believed_missing(unknown_since_s, deadline)
        return cluster.missing_topic_errors(missing, deadline)

    def _no_leader_error(self, tp: TopicPartition) -> errors.BrokerError:
        """Return the error for a partition without a leader in the cache, though its topic has
        metadata."""
        count = self.cluster.partition_count(tp.topic)
        if count is None or 0 <= tp.partition < count:
            return no_leader_error(tp)
        error = unknown_partition_error(tp, count)
        if self.awaits_partitions:
            return errors.BrokerError(error.code, error.where, error.broker_message)
        return error

    def on_failure(self, item: Hashable, error: errors.KafkaError) -> None:
        """Look up the leaders of the topic again: the partition's may have moved."""
        self.cluster.mark_stale(self.partition_of(item).topic)


def _invalid_topics(names: Iterable[str]) -> dict[str, errors.KafkaError]:
    """Return the names that no request can hold, each with its error."""
    invalid: dict[str, errors.KafkaError] = {}
    for name in names:
        try:
            checked_topic(name)
        except errors.OptionError as error:
            invalid[name] = error
    return invalid


def _no_metadata_error(cluster: Cluster, tp: TopicPartition, code: int) -> errors.BrokerError:
    """Make the error for a topic without metadata, which may still be created."""
    if code != errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return errors.BrokerError(code, f"Metadata of {tp}")
    error = unknown_topic_error([tp.topic], creates=cluster.options.allow_auto_create_topics)
    return errors.BrokerError(code, f"Metadata of {tp}", error.broker_message)


@dataclass(eq=False)
class ToBroker(Lookup):
    """Sends requests to given brokers. Items are node ids, or `node_of` returns an item's node id
    or ANY_BROKER."""

    node_of: Callable[[Any], int | None] = lambda item: item
    _needs_metadata: bool = field(default=False, init=False)

    def find(self, items: Iterable[Any], deadline: Deadline) -> Nodes:
        """Return, for each item, the node id of its broker (None: any broker), or the error that
        the cluster has no such broker. Requests metadata once if one is not in the cache."""
        cluster = self.cluster
        nodes = {item: self.node_of(item) for item in items}
        node_ids = {node for node in nodes.values() if node is not None}
        if self._needs_metadata or node_ids - cluster.brokers.keys():
            cluster.request_metadata([], deadline)
            self._needs_metadata = False
        return {
            item: node
            if node is None or node in cluster.brokers
            else _no_broker_error(cluster, node)
            for item, node in nodes.items()
        }

    def on_failure(self, item: Hashable, error: errors.KafkaError) -> None:
        """Request metadata before the next attempt."""
        # It may have another address now, or be gone.
        self._needs_metadata = True


def _no_broker_error(cluster: Cluster, node_id: int) -> errors.KafkaConnectionError:
    """Make the error for a broker that is not in the cluster."""
    known = ", ".join(map(str, sorted(cluster.brokers)))
    error = errors.KafkaConnectionError(
        f"there is no broker {node_id} in the cluster now; its brokers are {known}"
    )
    error.retriable = False
    return error


# --- coordinators -------------------------------------------------------------------------------

FOR_GROUP = 0
FOR_TRANSACTION = 1

VERSION_WITH_LIST = 4  # several keys in one request (KIP-699)


class _FindCoordinator(ApiHandler[str, int]):
    """Finds the node id of each key's coordinator, and caches it with the broker's address."""

    request_type = FindCoordinatorRequest

    def __init__(self, cluster: Cluster, kind: int) -> None:
        self._cluster = cluster
        self._kind = kind

    def split(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        """Make one request, or for old brokers one for each key."""
        return [items] if version >= VERSION_WITH_LIST else [[item] for item in items]

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request for the coordinators of these keys; old versions take one key."""
        if version >= VERSION_WITH_LIST:
            return FindCoordinatorRequest(key_type=self._kind, coordinator_keys=list(items))
        return FindCoordinatorRequest(key_type=self._kind, key=items[0])

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the node id of each key's coordinator, or its error."""
        if not response.coordinators:  # before VERSION_WITH_LIST the response is about one key
            return [(items[0], self._cache(items[0], response))] if len(items) == 1 else []
        return [(row.key, self._cache(row.key, row)) for row in response.coordinators]

    def _cache(self, key: str, response: Any) -> Outcome:
        """Cache the key's coordinator and its address, unless the response is an error. Returns the
        outcome of the key."""
        if not response.error_code:
            self._cluster.metadata.add_broker(
                Broker(response.node_id, response.host, response.port)
            )
            self._cluster.coordinators[self._kind, key] = response.node_id
        return Outcome.of(response, response.node_id)

    def name(self, item: str) -> str:
        return f"{'group' if self._kind == FOR_GROUP else 'transactional id'} {item!r}"


def find_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """Return the node id of the coordinator of a group (FOR_GROUP) or transactional id
    (FOR_TRANSACTION).

    Retries until the deadline: on a new cluster this request creates the internal topic. Raises if
    the coordinator cannot be found.
    """
    handler = _FindCoordinator(cluster, kind)
    what = f"finding the coordinator of {key!r}"
    return ToAny(cluster).call_all([key], handler, deadline, what)[key]


def find_group_coordinator(cluster: Cluster, group_id: str, deadline: Deadline) -> int:
    """Return the node id of a group's coordinator, by one request that is not retried."""
    handler = _FindCoordinator(cluster, FOR_GROUP)
    return ToAny(cluster).call_once([group_id], handler, deadline)[group_id]


@dataclass(eq=False)
class ToCoordinator(Lookup):
    """Sends requests to the coordinator of a group or transactional id. Items are these, or
    `key_of` returns the one of an item."""

    kind: int
    key_of: Callable[[Any], str] = lambda item: item

    def find(self, items: Iterable[Any], deadline: Deadline) -> Nodes:
        """Return, for each item, the node id of its coordinator, or the error of the lookup. Sends
        one FindCoordinator for those that are not in the cache."""
        cluster, kind = self.cluster, self.kind
        keys = {item: self.key_of(item) for item in items}
        nodes: Nodes = {key: cluster.coordinators.get((kind, key)) for key in keys.values()}
        unknown = [key for key, node_id in nodes.items() if node_id is None]
        if unknown:
            handler = _FindCoordinator(cluster, kind)
            nodes |= ToAny(cluster).call_once(unknown, handler, deadline).outcomes
        return {item: nodes[key] for item, key in keys.items()}

    def on_failure(self, item: Any, error: errors.KafkaError) -> None:
        """Look up the coordinator again if the broker may not be it."""
        # With other errors the broker is the coordinator (Java's CoordinatorStrategy).
        if not isinstance(error, errors.BrokerError) or error.code in (
            errors.ErrorCode.COORDINATOR_NOT_AVAILABLE,
            errors.ErrorCode.NOT_COORDINATOR,
            errors.ErrorCode.REQUEST_TIMED_OUT,
        ):
            self.cluster.coordinators.pop((self.kind, self.key_of(item)), None)
