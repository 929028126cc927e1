"""All consumer groups, and all transactional ids: every broker lists what it coordinates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from sparkkafka.client.admin.brokers import describe_cluster
from sparkkafka.client.arguments import names, numbers, one_name, whole
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToBroker
from sparkkafka.client.cluster.requests import ItemApi, Row, call_items
from sparkkafka.client.cluster.results import Listing
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import ErrorCode, OptionError
from sparkkafka.protocol.messages import ListGroupsRequest, ListTransactionsRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP_STATES = frozenset(
    {
        "Assigning",
        "CompletingRebalance",
        "Dead",
        "Empty",
        "PreparingRebalance",
        "Reconciling",
        "Stable",
    }
)
GROUP_TYPES = frozenset({"classic", "consumer"})
"""Classic groups, and those whose partitions the brokers assign (KIP-848)."""

OPEN_STATES = frozenset({"Ongoing", "PrepareAbort", "PrepareCommit", "PrepareEpochFence"})
"""A transaction in one of these has begun, and is not yet ended in all its partitions."""

STATES_VERSION = 4
TYPES_VERSION = 5
DURATION_VERSION = 1
PATTERN_VERSION = 2


class GroupListing(NamedTuple):
    """A group. `state` is None before Kafka 2.6, `type` (classic, consumer, …) before 3.8.

    `is_simple` is a group that has offsets and no protocol: nobody ever joined it.
    """

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None

    @property
    def is_simple(self) -> bool:
        return not self.protocol_type


class TransactionListing(NamedTuple):
    """A transactional id, the producer id it has now, and the state of its transaction."""

    transactional_id: str
    producer_id: int
    state: str


class _Lists(ItemApi[int, list[Any]]):
    """A question that each broker is asked; items are node ids."""

    def name(self, item: int) -> str:
        return f"broker {item}"


class _ListGroups(_Lists):
    request_type = ListGroupsRequest

    def __init__(self, states: list[str], types: list[str]) -> None:
        self._states = states
        self._types = types

    def build(self, items: Sequence[int], version: int) -> ListGroupsRequest:
        return ListGroupsRequest(states_filter=self._states, types_filter=self._types)

    def read(self, response: Any, items: Sequence[int]) -> Iterable[tuple[int, Row]]:
        found = [
            GroupListing(
                row.group_id, row.protocol_type, row.group_state or None, row.group_type or None
            )
            for row in response.groups
        ]
        return [(item, Row(0, found)) for item in items]

    def lacking(self, item: int, version: int) -> str | None:
        if self._types and version < TYPES_VERSION:
            return self.needs("a filter of types", TYPES_VERSION)
        if self._states and version < STATES_VERSION:
            return self.needs("a filter of states", STATES_VERSION)
        return None

    def grant(self, item: int) -> str:
        return "DESCRIBE on the cluster, or on each group"


class _ListTransactions(_Lists):
    request_type = ListTransactionsRequest

    def __init__(
        self,
        states: list[str],
        producer_ids: list[int],
        open_for_ms: int | None,
        pattern: str | None,
    ) -> None:
        self._states = states
        self._producer_ids = producer_ids
        self._open_for_ms = -1 if open_for_ms is None else open_for_ms
        self._pattern = pattern

    def build(self, items: Sequence[int], version: int) -> ListTransactionsRequest:
        return ListTransactionsRequest(
            state_filters=self._states,
            producer_id_filters=self._producer_ids,
            duration_filter=self._open_for_ms,
            transactional_id_pattern=self._pattern,
        )

    def read(self, response: Any, items: Sequence[int]) -> Iterable[tuple[int, Row]]:
        found = [
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
            # A broker's clock goes on after the end, and by it what never began is open since 1970.
            if self._open_for_ms < 0 or row.transaction_state in OPEN_STATES
        ]
        unknown = response.unknown_state_filters
        row = (
            Row(
                ErrorCode.INVALID_REQUEST,
                message=f"the broker knows no transaction state {', '.join(map(repr, unknown))}",
            )
            if unknown
            else Row(0, found)
        )
        return [(item, row) for item in items]

    def lacking(self, item: int, version: int) -> str | None:
        if self._pattern is not None and version < PATTERN_VERSION:
            return self.needs("transactional_id_pattern", PATTERN_VERSION)
        if self._open_for_ms >= 0 and version < DURATION_VERSION:
            return self.needs("open_for_ms", DURATION_VERSION)
        return None

    def grant(self, item: int) -> str:
        return "DESCRIBE on each transactional id"


def list_consumer_groups(
    cluster: Cluster,
    deadline: Deadline,
    *,
    states: Iterable[str] | None = None,
    types: Iterable[str] | None = None,
) -> Listing[GroupListing]:
    """The consumer groups of all brokers, in the order of their names.

    Groups of other protocols (Kafka Connect's, share groups) are left out, as in Java. Raises
    OptionError for a state or type that is none: brokers find nothing then.
    """
    states = None if states is None else names(states, "states")
    types = None if types is None else names(types, "types")
    api = _ListGroups(_known("state", GROUP_STATES, states), _known("type", GROUP_TYPES, types))
    found = _listed(cluster, api, deadline, "listing groups")
    # A group whose coordinator moved meanwhile is told twice.
    groups = {row.group_id: row for row in found if row.protocol_type in ("", "consumer")}
    return Listing([groups[key] for key in sorted(groups)], found.errors)


def _known(what: str, names: frozenset[str], wanted: Iterable[str] | None) -> list[str]:
    chosen = list(wanted or ())
    for name in chosen:
        if name not in names:
            raise OptionError(
                f"no group has the {what} {name!r}: it is one of {', '.join(sorted(names))}"
            )
    return chosen


def list_transactions(
    cluster: Cluster,
    deadline: Deadline,
    *,
    states: Iterable[str] | None = None,
    producer_ids: Iterable[int] | None = None,
    open_for_ms: int | None = None,
    transactional_id_pattern: str | None = None,
) -> Listing[TransactionListing]:
    """The transactional ids of all brokers, in the order of their names.

    With `open_for_ms`, only those whose transaction is open (OPEN_STATES) for longer than that.
    Raises OptionError for an argument of the wrong kind.
    """
    states = None if states is None else names(states, "states")
    producer_ids = None if producer_ids is None else numbers(producer_ids, "producer_ids")
    if open_for_ms is not None and whole(open_for_ms, "open_for_ms") < 0:
        raise OptionError(f"open_for_ms is not negative, got {open_for_ms}")
    if transactional_id_pattern is not None:
        one_name(transactional_id_pattern, "transactional_id_pattern")
    api = _ListTransactions(
        list(states or ()), list(producer_ids or ()), open_for_ms, transactional_id_pattern
    )
    found = _listed(cluster, api, deadline, "listing transactions")
    ids = {row.transactional_id: row for row in found}
    return Listing([ids[key] for key in sorted(ids)], found.errors)


def _listed(cluster: Cluster, api: _Lists, deadline: Deadline, what: str) -> Listing[Any]:
    """What all brokers list. Raises the error that all have in common."""
    brokers = [broker.node_id for broker in describe_cluster(cluster, deadline).brokers]
    results = call_items(cluster, brokers, api, ToBroker(cluster), deadline, what)
    errors = results.errors
    if errors and len(errors) == len(brokers):
        raise next(iter(errors.values()))
    for node_id, error in errors.items():
        log.warning("%s: what broker %d knows is missing: %s", what, node_id, error)
    rows = [row for found in results.values_by_item.values() for row in found]
    return Listing(rows, errors)
