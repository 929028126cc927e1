"""Values that the whole client uses: partitions, offsets, brokers, results of several items."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, overload

from sparkkafka.config.source import Offsets as Offsets
from sparkkafka.config.source import TopicPartition as TopicPartition
from sparkkafka.errors import KafkaError, OptionError, shortened, some
from sparkkafka.protocol.wire.schema import fields

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

MAX_NAME_BYTES = 32_767
"""Limit of a string in a request; brokers allow much shorter names."""


Address = tuple[str, int]
"""Host and port of a broker."""


def by_topic(
    partitions: Iterable[TopicPartition],
    row: Callable[[TopicPartition], Any] = operator.itemgetter(1),
) -> dict[str, list[Any]]:
    """Group the numbers of partitions, or what `row` returns for each partition, by topic."""
    topics: dict[str, list[Any]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(row(tp))
    return topics


def request_topics(
    topic_type: type[T],
    partitions: Iterable[TopicPartition],
    row: Callable[[TopicPartition], Any] = operator.itemgetter(1),
) -> list[T]:
    """Return the topics of a request about partitions. `topic_type` has two fields: the name of a
    topic, and its rows, which are the numbers of the partitions, or what `row` returns for each."""
    name_field, rows_field = [each.name for each in fields(topic_type)]
    return [
        topic_type(**{name_field: name, rows_field: rows})
        for name, rows in by_topic(partitions, row).items()
    ]


def by_partition(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield (partition, row) for each row of a response's `topics`, which have a `name` and
    `partitions`."""
    for topic in topics:
        for row in topic.partitions:
            yield TopicPartition(topic.name, row.partition_index), row


def checked_topic(name: Any) -> str:
    """Return a topic name that can be encoded in a request; one that cannot would fail the whole
    request. Brokers decide which names are legal (INVALID_TOPIC_EXCEPTION).

    Raises OptionError.
    """
    if not isinstance(name, str) or not name:
        raise OptionError(f"topic must be the name of a topic, got {name!r}")
    # Most names are done here.
    if name.isascii() and len(name) <= MAX_NAME_BYTES:
        return name
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        why = f"UTF-8 cannot encode it ({error.reason})"
    else:
        if size_bytes <= MAX_NAME_BYTES:
            return name
        why = f"it takes {size_bytes} bytes"
    raise OptionError(
        f"{shortened(name)} is not a valid topic name: {why}; names have 1 to 249 characters of "
        "a-z A-Z 0-9 . _ -"
    )


class OffsetAndMetadata(NamedTuple):
    """An offset to commit or a committed one: the next one to read. `metadata` is a text of at most
    4096 characters; `leader_epoch` is that of the record before it (None: not known)."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class LagInfo(NamedTuple):
    """How far a Consumer is behind in a partition (Kafka Streams' LagInfo).

    `position` is the next offset to read, `end` the offset after the last record that it may read,
    and `lag` their difference. Offsets of markers and compacted records count too.
    """

    position: int
    end: int
    lag: int


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.node_id} ({self.host}:{self.port})"


def some_topics(names: Iterable[str] | None, limit: int = 5) -> str:
    """Name the topics of a metadata request in a message: "topic a", "topics a, b and 7 more".
    None requests all topics, an empty list only the brokers."""
    if names is None:
        return "all topics"
    listed = list(names)
    if not listed:
        return "the brokers"
    return f"topic{'s' if len(listed) > 1 else ''} {some(listed, limit)}"


def some_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Name partitions in a message: "a-0, a-1 and 7 more", or "nothing"."""
    return some(sorted(partitions), 5) or "nothing"


class Results(Mapping[K, V]):
    """The outcome of each item of one call, in the order of the items.

        results = admin.delete_topics(["a", "b"])
        results.all()          # {"a": None, "b": None}, or raises the first error
        results["a"]           # the value of one item, or raises its error
        results.errors         # {item: error} of those that failed
        results.values_by_item # {item: value} of those that did not

    Errors are only raised by these accesses: after a call that changes something, `all()` is the
    safe one. `items()` and `values()` use `[]`, so they raise at the first item that failed. `in`,
    `len` and iteration cover all items.
    """

    def __init__(self, outcome: Mapping[K, V | KafkaError]) -> None:
        self._outcome = dict(outcome)

    def __getitem__(self, item: K) -> V:
        outcome = self._outcome[item]
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def __iter__(self) -> Iterator[K]:
        return iter(self._outcome)

    def __len__(self) -> int:
        return len(self._outcome)

    def __contains__(self, item: object) -> bool:
        return item in self._outcome

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._outcome == other._outcome
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Results({self._outcome!r})"

    @property
    def outcomes(self) -> dict[K, V | KafkaError]:
        """The value or the error of each item."""
        return self._outcome

    # Cached, since callers use them in loops over all items.
    @cached_property
    def errors(self) -> dict[K, KafkaError]:
        """The error of each item that failed."""
        return {
            item: outcome
            for item, outcome in self._outcome.items()
            if isinstance(outcome, KafkaError)
        }

    @cached_property
    def values_by_item(self) -> dict[K, V]:
        """The value of each item that did not fail."""
        return {
            item: outcome
            for item, outcome in self._outcome.items()
            if not isinstance(outcome, KafkaError)
        }

    def all(self) -> dict[K, V]:
        """Return every item's value. Raises the error of the first item that failed."""
        return {item: self[item] for item in self._outcome}


class Listing(Sequence[T], Generic[T]):
    """The joined lists of all brokers, each of which knows only its own items.

        for group in admin.list_consumer_groups(): ...   # of the brokers that answered
        listing.errors                                   # {broker's node id: error} of the others
        listing.all()                                    # a list, or raises the first error

    A broker that failed is also logged as a warning, since the list is incomplete.
    """

    def __init__(self, items: Sequence[T], errors: Mapping[int, KafkaError]) -> None:
        self._found = tuple(items)
        self.errors: dict[int, KafkaError] = dict(errors)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        errors = f", errors={self.errors!r}" if self.errors else ""
        return f"Listing({list(self._found)!r}{errors})"

    def all(self) -> list[T]:
        """All listed items. Raises the error of the first broker that failed."""
        for error in self.errors.values():
            raise error
        return list(self._found)
