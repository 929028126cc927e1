"""Faults for FakeCluster: which requests fail, and how.

`FakeCluster.fault` makes a rule, `Fault`, with an action: one of the classes below, an `ErrorCode`,
or a callable that takes the request. The callable returns one of these, a response message to send
in place of the handler's, or None to let the request through.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sparkkafka.errors import ErrorCode

RESOURCE_TOPIC = 2

# Errors that a broker gives after it has appended the records.
APPENDED_ERRORS = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


class RecordedRequest(NamedTuple):
    """One request that a fake broker received.

    `message` is None if the broker does not have the API or the version (`api` is then the key's
    number as text if it has no name). `time_s` is `time.monotonic()` at its arrival, `connection`
    a number that no other connection to this cluster has.
    """

    broker: int
    api: str
    version: int
    message: Any
    time_s: float
    client_id: str | None
    correlation_id: int
    connection: int

    @property
    def topic_partitions(self) -> list[tuple[str, int | None]]:
        """(topic, partition) of all that the request names; partition None for a whole topic."""
        return list(_topic_partitions(self.message))


class Drop(enum.Enum):
    """Close the connection before the request is applied, or after it and without a response."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Reply with an error code for the rule's partitions, or for all of the request's.

    With `applied` the request still takes effect (records are appended). With `top_level` the code
    goes into the error field of the whole response, if there is one.
    """

    code: int
    applied: bool = False
    top_level: bool = False
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """Hold the response back for `ms` milliseconds; with `before`, the request's effect as well."""

    ms: float
    before: bool = False


@dataclass(frozen=True, slots=True)
class Throttle:
    """Reply immediately with throttle_time_ms, then read nothing for that time (KIP-219).

    With `empty` a Fetch gets no records and no error, as from Azure Event Hubs above its quota.
    """

    ms: int
    empty: bool = False


@dataclass(frozen=True, slots=True)
class CutFrame:
    """Apply the request, send only the first `size` bytes of the response frame, then close.

    The frame begins with its four bytes of length. A negative size leaves that many bytes out at
    the end.
    """

    size: int


@dataclass(frozen=True, slots=True)
class Garbage:
    """Apply the request, send these bytes instead of the response frame, then close (or not)."""

    data: bytes
    close: bool = True


@dataclass(frozen=True, slots=True)
class WrongCorrelationId:
    """Apply the request and respond, with a correlation id that is `by` too high."""

    by: int = 1


PlainAction: TypeAlias = (
    ErrorCode | ErrorResponse | Drop | Delay | Throttle | CutFrame | Garbage | WrongCorrelationId
)
Action: TypeAlias = PlainAction | Callable[[RecordedRequest], Any]
_PLAIN = (ErrorCode, ErrorResponse, Drop, Delay, Throttle, CutFrame, Garbage, WrongCorrelationId)


class Fault:
    """A rule: `action` happens to `times` requests that match, from the `nth` on (None: to all).

    `matched` counts the requests that matched, `fired` those to which the action happened.
    """

    def __init__(
        self,
        action: Action,
        *,
        api: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> None:
        if not isinstance(action, _PLAIN) and not callable(action):
            raise TypeError(f"not an action: {action!r}")
        if nth < 1 or (times is not None and times < 1):
            raise ValueError(f"nth and times count from 1, got nth={nth}, times={times}")
        self.action = action
        self.api = api
        self.topic = topic
        self.partition = partition
        self.broker = broker
        self.nth = nth
        self.times = times
        self.matched = 0
        self.fired = 0

    def __repr__(self) -> str:
        where = {
            name: getattr(self, name)
            for name in ("api", "topic", "partition", "broker")
            if getattr(self, name) is not None
        }
        text = "".join(f"{name}={value!r}, " for name, value in where.items())
        return f"Fault({text}nth={self.nth}, times={self.times}, {self.action!r}, {self.fired=})"

    @property
    def spent(self) -> bool:
        """Whether it can never fire again."""
        return self.times is not None and self.fired >= self.times

    def matches(self, request: RecordedRequest) -> bool:
        """Return whether the request is for the rule's API, broker, topic and partition."""
        if self.api is not None and request.api != self.api:
            return False
        if self.broker is not None and request.broker != self.broker:
            return False
        if self.topic is None and self.partition is None:
            return True
        if request.api == "Metadata" and getattr(request.message, "topics", None) is None:
            return True  # a request for all topics
        return any(self.covers(topic, number) for topic, number in request.topic_partitions)

    def covers(self, topic: str | None, partition: int | None) -> bool:
        """Return whether the rule is about this partition of a matching request."""
        return (self.topic is None or self.topic == topic) and (
            self.partition is None or partition is None or self.partition == partition
        )

    def fires_for(self, request: RecordedRequest) -> bool:
        """Count the request if it matches, and return whether the action happens to it."""
        if self.spent or not self.matches(request):
            return False
        self.matched += 1
        if self.matched < self.nth:
            return False
        self.fired += 1
        return True


def as_error_response(action: Any) -> Any:
    """Return the Answer that an ErrorCode stands for; any other action as it is."""
    if isinstance(action, ErrorCode):
        return ErrorResponse(action, applied=action in APPENDED_ERRORS)
    return action


def _topic_partitions(message: Any) -> Iterable[tuple[str, int | None]]:
    """Yield the partitions that a request of any type names, by the names of Kafka's fields."""
    for resource in getattr(message, "resources", None) or ():
        if resource.resource_type == RESOURCE_TOPIC:
            yield resource.resource_name, None
    for acl in getattr(message, "creations", None) or ():
        if acl.resource_type == RESOURCE_TOPIC:
            yield acl.resource_name, None
    for acl_filter in getattr(message, "filters", None) or ():
        yield acl_filter.resource_name_filter, None
    for group in getattr(message, "groups", None) or ():
        yield from _topic_partitions(group)
    for field in ("topic_data", "topics", "topic_names", "v3_and_below_topics"):
        for topic in getattr(message, field, None) or ():
            if isinstance(topic, str):
                yield topic, None
                continue
            name = getattr(topic, "name", None) or getattr(topic, "topic", None)
            if name is None:
                continue
            rows = next(
                (
                    getattr(topic, attribute)
                    for attribute in ("partition_data", "partitions", "partition_indexes")
                    if getattr(topic, attribute, None)
                ),
                None,
            )
            if not rows:
                yield name, None
                continue
            for row in rows:
                if isinstance(row, int):
                    yield name, row
                else:
                    yield (
                        name,
                        next(
                            (
                                getattr(row, attribute)
                                for attribute in ("partition_index", "partition", "index")
                                if hasattr(row, attribute)
                            ),
                            None,
                        ),
                    )
