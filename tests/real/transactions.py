"""What Kafka says of the transactions of exactly-once writes, for tests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from sparkkafka.client.admin.transactions import (
    describe_known_transactions,
    list_ongoing_transactions,
)
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_all_committed
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError
from sparkkafka.spark.decision_text import Decision, WriterNames, latest_decision
from tests.client.support import open_cluster

_WAIT_MS = 30_000
_ASK_MS = 500


class _Mark(NamedTuple):
    """Which transaction of the decider it is, and its state."""

    owner: tuple[int, int]
    state: str


class DecisionWatch:
    """Tells at once when a query with this prefix has decided a micro-batch."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._names = WriterNames(prefix, "")
        self._cluster: Any = open_cluster(bootstrap)
        self._before = self._mark()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cluster.close()

    def decided(self) -> bool:
        """Whether there is a decision that was not there at the time of the last response True."""
        mark = self._mark()
        if mark is None or mark.state not in ("PrepareCommit", "CompleteCommit"):
            return False
        if self._before is not None and mark.owner == self._before.owner:
            return False
        self._before = mark
        return True

    def _mark(self) -> _Mark | None:
        key = self._names.decisions
        try:
            state = describe_known_transactions(self._cluster, [key], Deadline(_ASK_MS)).get(key)
        except KafkaError:  # a broker is away
            return None
        return state and _Mark(state.transaction[1:], state.state)


def stored_decision(bootstrap: str, prefix: str) -> Decision | None:
    key = WriterNames(prefix, "").decisions
    with open_cluster(bootstrap) as cluster:
        # A first decision cannot be read until its marker is written; brokers do not say so when
        # they are asked for all offsets. (The sink takes the id over first, which waits for it.)
        until = time.monotonic() + _WAIT_MS / 1000
        while time.monotonic() < until:
            state = describe_known_transactions(cluster, [key], Deadline(_WAIT_MS)).get(key)
            if state is None or state.state != "PrepareCommit":
                break
            time.sleep(0.05)
        stored = fetch_all_committed(cluster, key, deadline=Deadline(_WAIT_MS))
        return latest_decision(row.metadata for row in stored.values())


def unfinished(bootstrap: str, prefix: str) -> tuple[int, int]:
    """How many of the transactions that were decided last are open, and how many there are."""
    decision = stored_decision(bootstrap, prefix)
    if decision is None:
        return 0, 0
    names = WriterNames(prefix, decision.run)
    keys = [names.transactional_id(row.task, row.attempt) for row in decision.transactions]
    with open_cluster(bootstrap) as cluster:
        states = describe_known_transactions(cluster, keys, Deadline(_WAIT_MS))
    return sum(state.is_open for state in states.values()), len(keys)


def open_ids(bootstrap: str, prefix: str = "") -> list[str]:
    """Transactional ids with an open transaction, that begin with this."""
    with open_cluster(bootstrap) as cluster:
        found = list_ongoing_transactions(cluster, Deadline(_WAIT_MS))
    return [key for key in found if key.startswith(prefix)]


def held_back(bootstrap: str, topics: Iterable[str], partitions: int) -> dict[TopicPartition, int]:
    """How many offsets of each partition a reader of read_committed may not read yet."""
    tps = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
    with open_cluster(bootstrap) as cluster:
        _, stable = OffsetLookup(cluster, "read_committed").earliest_and_latest(tps)
        _, high = OffsetLookup(cluster, "read_uncommitted").earliest_and_latest(tps)
    return {tp: high[tp] - stable[tp] for tp in tps if high[tp] != stable[tp]}
