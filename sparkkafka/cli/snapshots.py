"""Snapshots of a whole cluster for `top` and `ui`: brokers, topics with rates, groups with lag.

    with Collector(session.admin()) as collector:
        snapshot = collector.collect()      # again and again; rates need two snapshots
        collector.history.curves({"lag": ["billing"]})

A snapshot takes about twenty requests, however many topics and groups there are: requests about
all partitions of a broker, or all groups of a coordinator, are one.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isnan, nan
from typing import Any, Final, NamedTuple, Self

from sparkkafka.cli.bounded_admin import BoundedAdmin, Leaders, LogDirs, leader_sizes, missing_text
from sparkkafka.cli.tables import sum_of
from sparkkafka.client.admin.groups import GroupListing
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, error_name
from sparkkafka.protocol.messages import MetadataRequest

Rates = Mapping[TopicPartition, float]
"""Something per second, by partition."""

CLIENT_LOG: Final = logging.getLogger("sparkkafka.client")
STEP_S: Final = 3.0
"""Maximum time for one kind of request. What a broker has not answered by then is missing from the
snapshot; the next snapshot requests it again."""
RATE_S: Final = 10.0
"""Rates are the change since this time ago, or since two snapshots ago if that is longer. Consumers
commit every 5 s: over a shorter time a lag would seem to grow between two commits."""
HISTORY_S: Final = 900.0
MAX_POINTS: Final = 180


@dataclass(frozen=True, kw_only=True)
class BrokerRow:
    """A broker. `state` is "online"; "no response" if the cluster's metadata has the broker and it
    does not answer; "offline" if the metadata names it only as a replica. `leaders`, `replicas` and
    `out_of_sync` count partitions."""

    broker: int
    address: str | None
    rack: str | None
    state: str
    controller: bool
    leaders: int
    replicas: int
    out_of_sync: int
    size_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    """A topic. Rates are None before the second snapshot, and if its offsets or sizes are not
    known. `skew` is the size of its largest partition, divided by the mean."""

    topic: str
    partitions: int
    records_per_s: float | None
    bytes_per_s: float | None
    size_bytes: int | None
    skew: float | None
    without_leader: int
    out_of_sync: int


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """A consumer group. `lag` is None if it has no offsets. `catch_up_s` is the time until the lag
    is 0 at the present rate, None if the lag does not shrink. `is_growing`: over the last snapshots
    the lag grew, and never shrank."""

    group: str
    state: str | None
    members: int | None
    lag: int | None
    lag_per_s: float | None
    catch_up_s: float | None
    is_growing: bool
    lag_by_topic: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a cluster at `time_ms`; the lookup took `took_s`. Rates are averages over the
    last `rates_s` seconds; the first snapshot has no rates, and there this is 0. `problems` are
    lines about failed lookups. The mappings by partition are for views of one topic or group."""

    time_ms: int
    took_s: float
    rates_s: float
    cluster_id: str | None
    brokers: list[BrokerRow]
    topics: list[TopicRow]
    groups: list[GroupRow]
    problems: list[str]
    leaders: Leaders = field(repr=False)
    ends: Offsets = field(repr=False)
    sizes: Mapping[TopicPartition, int] = field(repr=False)
    rates: Rates = field(repr=False)
    committed: Mapping[str, Offsets] = field(repr=False)

    @property
    def totals(self) -> dict[str, Any]:
        """The sums over all topics and groups, for the first line and for JSON."""
        return {
            "brokers": sum(row.state == "online" for row in self.brokers),
            "brokers_missing": sum(row.state != "online" for row in self.brokers),
            "topics": len(self.topics),
            "partitions": sum(row.partitions for row in self.topics),
            "without_leader": sum(row.without_leader for row in self.topics),
            "out_of_sync": sum(row.out_of_sync for row in self.topics),
            "records_per_s": sum_of(row.records_per_s for row in self.topics),
            "bytes_per_s": sum_of(row.bytes_per_s for row in self.topics),
            "size_bytes": sum_of(row.size_bytes for row in self.topics),
            "groups": len(self.groups),
            "lag": sum_of(row.lag for row in self.groups),
            "groups_growing": sum(row.is_growing for row in self.groups),
        }


TOPIC_ORDERS: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "rate": lambda row: (-(row.records_per_s or 0), row.topic),
    "size": lambda row: (-(row.size_bytes or 0), row.topic),
    "skew": lambda row: (-(row.skew or 0), row.topic),
    "name": lambda row: row.topic,
}
GROUP_ORDERS: Final[Mapping[str, Callable[[GroupRow], Any]]] = {
    "lag": lambda row: (-(row.lag or 0), row.group),
    "growth": lambda row: (-(row.lag_per_s or 0), row.group),
    "name": lambda row: row.group,
}
"""The sort keys of topics and groups: the largest value first, equal ones by name."""


class _RateSample(NamedTuple):
    """What rates are computed from."""

    taken_at_s: float
    ends: Offsets
    sizes: Mapping[TopicPartition, int]
    lags: Mapping[str, int]


class History:
    """Curves of the last 15 minutes, in at most MAX_POINTS points: of "records" and "bytes" per
    second by topic, and of "lag" by group. The name "" has the totals. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times_ms = array("q")
        self._curves: dict[tuple[str, str], array[float]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add a point to each curve. It replaces the last point if that is too close to the point
        before it. The curve of a deleted topic or group is kept until all its points are older than
        HISTORY_S."""
        # A tenth less than a snapshot's time, because threads do not wake up to the millisecond.
        distance_ms = 0.9 * HISTORY_S * 1000 / MAX_POINTS
        with self._lock:
            if len(self._times_ms) > 1 and self._times_ms[-1] - self._times_ms[-2] < distance_ms:
                self._pop(-1)
            self._add(snapshot)

    def _add(self, snapshot: Snapshot) -> None:
        """Add a point to each curve, and drop points that are too old or too many."""
        count = len(self._times_ms)
        totals = snapshot.totals
        values: dict[tuple[str, str], float | None] = {
            ("records", ""): totals["records_per_s"],
            ("bytes", ""): totals["bytes_per_s"],
            ("lag", ""): totals["lag"],
        }
        for topic in snapshot.topics:
            values["records", topic.topic] = topic.records_per_s
            values["bytes", topic.topic] = topic.bytes_per_s
        for group in snapshot.groups:
            values["lag", group.group] = group.lag
        self._curves = {  # without those of topics and groups that are gone for long
            key: curve
            for key, curve in self._curves.items()
            if key in values or not all(map(isnan, curve))
        }
        self._times_ms.append(snapshot.time_ms)
        for key in {*values, *self._curves}:
            curve = self._curves.setdefault(key, array("d", [nan]) * count)
            value = values.get(key)
            curve.append(nan if value is None else value)
        oldest_ms = snapshot.time_ms - HISTORY_S * 1000
        while len(self._times_ms) > MAX_POINTS or self._times_ms[0] < oldest_ms:
            self._pop(0)

    def _pop(self, index: int) -> None:
        """Drop the point at this index from all curves."""
        self._times_ms.pop(index)
        for curve in self._curves.values():
            curve.pop(index)

    def curves(self, names: Mapping[str, Iterable[str]]) -> dict[str, Any]:
        """Return the curves of these names, by kind, for JSON: {"times_ms": […], "lag": [{"name":
        …, "points": […]}]}. A point is None where the value is not known."""
        with self._lock:
            document: dict[str, Any] = {"times_ms": list(self._times_ms)}
            unknown = array("d", [nan]) * len(self._times_ms)
            for kind, chosen in names.items():
                curves = {name: self._curves.get((kind, name), unknown) for name in chosen}
                document[kind] = [
                    {"name": name, "points": [None if isnan(value) else value for value in curve]}
                    for name, curve in curves.items()
                ]
            return document


class Collector:
    """Takes snapshots of a cluster, and keeps the data of rates and curves. Use it under `with`.

    In the block the client logs no warnings: `Snapshot.problems` says the same, and lines on stderr
    would damage the screen that `top` draws.
    """

    def __init__(self, admin: BoundedAdmin) -> None:
        self._admin = admin
        self._samples: deque[_RateSample] = deque()
        self.history = History()

    def __enter__(self) -> Self:
        self._level = CLIENT_LOG.level
        CLIENT_LOG.setLevel(logging.ERROR)
        return self

    def __exit__(self, *exc_info: object) -> None:
        CLIENT_LOG.setLevel(self._level)
        self._admin.close()

    def interrupt(self) -> None:
        """End the lookup that another thread is in."""
        self._admin.interrupt()

    def collect(self) -> Snapshot:
        """Take a snapshot, under a new deadline. Raises KafkaError if no broker answers."""
        admin, problems = self._admin, list[str]()
        admin.restart_deadline()
        began_at_s = time.monotonic()
        with admin.cluster_and_deadline() as (cluster, deadline):
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            # Without this answer there is no snapshot, so it has more time than the others.
            metadata = cluster.call(
                request, deadline=deadline.sooner(2 * STEP_S * 1000), what="describing the cluster"
            )
        rows = {
            TopicPartition(topic.name, row.partition_index): row
            for topic in metadata.topics
            for row in topic.partitions
        }
        live = {broker.node_id for broker in metadata.brokers}
        leaders = {tp: row.leader_id if row.leader_id in live else None for tp, row in rows.items()}
        log_dirs, silent = self._log_dirs(live, problems)
        reachable = live - silent
        sizes = leader_sizes(log_dirs, leaders)
        groups, committed = self._groups(problems)
        # The ends are looked up after the committed offsets, so no group is ahead of them.
        specs = {tp: OffsetSpec.latest() for tp, node in leaders.items() if node in reachable}
        listed = admin.list_offsets(specs, timeout_s=STEP_S)
        _note(problems, "offsets of partitions", listed.errors)
        ends = {tp: row.offset for tp, row in listed.values_by_item.items()}
        members = self._members(groups, problems)
        lags = {name: lag_by_topic(offsets, ends) for name, offsets in committed.items()}
        totals = {name: sum(by_topic.values()) for name, by_topic in lags.items() if by_topic}
        sample = _RateSample(time.monotonic(), ends, sizes, totals)
        self._samples.append(sample)
        # Three stay, for rates since two snapshots ago: see RATE_S.
        while len(self._samples) > 3 and sample.taken_at_s - self._samples[1].taken_at_s >= RATE_S:
            self._samples.popleft()
        rates, growth = self._rates(sample)
        topics = {
            topic.name: topic
            for topic in metadata.topics
            if not topic.is_internal and topic.partitions
        }
        for topic in metadata.topics:
            if topic.error_code:
                problems.append(f"topic {topic.name}: {error_name(topic.error_code)}")
        snapshot = Snapshot(
            time_ms=int(time.time() * 1000),
            took_s=time.monotonic() - began_at_s,
            rates_s=sample.taken_at_s - self._samples[0].taken_at_s,
            cluster_id=metadata.cluster_id,
            brokers=_broker_rows(metadata, rows, leaders, log_dirs, silent),
            topics=[
                _topic_row(topics[name], leaders, sizes, rates, growth) for name in sorted(topics)
            ],
            groups=[
                self._group_row(row, members.get(row.group_id), lags.get(row.group_id, {}))
                for row in groups
            ],
            problems=problems,
            leaders=leaders,
            ends=ends,
            sizes=sizes,
            rates=rates,
            committed=committed,
        )
        self.history.add(snapshot)
        return snapshot

    # --- requests

    def _log_dirs(self, live: Iterable[int], problems: list[str]) -> tuple[LogDirs, set[int]]:
        """Return the brokers' log directories, and the brokers that do not answer."""
        results = self._admin.describe_log_dirs(sorted(live), timeout_s=STEP_S)
        silent = {
            node_id
            for node_id, error in results.errors.items()
            if isinstance(error, KafkaConnectionError | KafkaTimeoutError)
        }
        _note(problems, "sizes", results.errors)
        for node_id, directories in results.values_by_item.items():
            problems += (
                f"broker {node_id}: {row.error}" for row in directories.values() if row.error
            )
        return results.values_by_item, silent

    def _groups(self, problems: list[str]) -> tuple[list[GroupListing], Mapping[str, Offsets]]:
        """List the consumer groups, and return the committed offsets of those that have any."""
        try:
            listed = self._admin.list_consumer_groups(timeout_s=STEP_S)
        except KafkaError as error:
            _note(problems, "groups", {None: error})
            return [], {}
        _note(problems, "groups", listed.errors)
        group_offsets = self._admin.offsets_of_groups(
            [row.group_id for row in listed], timeout_s=STEP_S
        )
        _note(problems, "offsets of groups", group_offsets.errors)
        groups = [row for row in listed if row.group_id in group_offsets]
        return groups, {
            name: offsets for name, offsets in group_offsets.values_by_item.items() if offsets
        }

    def _members(self, groups: Iterable[GroupListing], problems: list[str]) -> dict[str, int]:
        """Return the number of members of each group. One that is Empty has none."""
        names = [row.group_id for row in groups if row.state != "Empty" and not row.is_simple]
        results = self._admin.describe_consumer_groups(names, timeout_s=STEP_S)
        _note(problems, "members of groups", results.errors)
        described = {name: len(row.members) for name, row in results.values_by_item.items()}
        return {row.group_id: 0 for row in groups if row.group_id not in names} | described

    # --- rates

    def _rates(self, now: _RateSample) -> tuple[Rates, Rates]:
        """Return the records and the bytes per second of each partition. A log that became shorter,
        by retention or because its topic was recreated, grew by 0 bytes."""
        base = self._samples[0]
        seconds = now.taken_at_s - base.taken_at_s
        if seconds <= 0:
            return {}, {}
        records, growth = (
            {tp: max(0, value - old[tp]) / seconds for tp, value in new.items() if tp in old}
            for new, old in ((now.ends, base.ends), (now.sizes, base.sizes))
        )
        return records, growth

    def _group_row(
        self, group: GroupListing, members: int | None, by_topic: Mapping[str, int]
    ) -> GroupRow:
        """Return a group's row, with the rate of its lag over the last samples. `by_topic` has its
        lag in each topic."""
        name = group.group_id
        lags = [(row.taken_at_s, row.lags[name]) for row in self._samples if name in row.lags]
        lag = sum(by_topic.values()) if by_topic else None
        rate = catch_up_s = None
        if lag is not None and len(lags) > 1:
            (first_at_s, first), (last_at_s, last) = lags[0], lags[-1]
            rate = (last - first) / max(last_at_s - first_at_s, 1e-3)  # not by 0
            if lag == 0 or rate < 0:
                catch_up_s = lag / -rate if lag else 0.0
        return GroupRow(
            group=name,
            state=group.state,
            members=members,
            lag=lag,
            lag_per_s=rate,
            catch_up_s=catch_up_s,
            is_growing=len(lags) > 2
            and lags[-1][1] > lags[0][1]
            and all(after >= before for (_, before), (_, after) in pairwise(lags)),
            lag_by_topic=by_topic,
        )


def lag_by_topic(offsets: Offsets, ends: Offsets) -> dict[str, int]:
    """Return a group's unread offsets in each topic, in the partitions whose ends are known."""
    lags: dict[str, int] = {}
    for tp, offset in offsets.items():
        if tp in ends:
            lags[tp.topic] = lags.get(tp.topic, 0) + max(0, ends[tp] - offset)
    return lags


def _note(problems: list[str], what: str, errors: Mapping[Any, KafkaError]) -> None:
    """Add a line about failed lookups of `what` to the problems, if there are errors."""
    if errors:
        problems.append(missing_text(what, errors))


def _broker_rows(
    metadata: Any,
    rows: Mapping[TopicPartition, Any],
    leaders: Leaders,
    log_dirs: LogDirs,
    silent: set[int],
) -> list[BrokerRow]:
    """Describe the live brokers, and those that have replicas and are not there."""
    led = Counter(leaders.values())
    replicas: Counter[int] = Counter()
    lagging: Counter[int] = Counter()
    for row in rows.values():
        replicas.update(row.replica_nodes)
        lagging.update(set(row.replica_nodes) - set(row.isr_nodes))
    live = {broker.node_id: broker for broker in metadata.brokers}
    found = []
    for node_id in sorted({*live, *replicas}):
        broker = live.get(node_id)
        directories = list(log_dirs.get(node_id, {}).values())
        state = "offline" if broker is None else "no response" if node_id in silent else "online"
        found.append(
            BrokerRow(
                broker=node_id,
                address=None if broker is None else f"{broker.host}:{broker.port}",
                rack=None if broker is None else broker.rack,
                state=state,
                controller=node_id == metadata.controller_id,
                leaders=led[node_id],
                replicas=replicas[node_id],
                out_of_sync=lagging[node_id],
                size_bytes=sum_of(row.size_bytes for row in directories),
                free_bytes=sum_of(row.usable_bytes for row in directories),
            )
        )
    return found


def _topic_row(
    topic: Any, leaders: Leaders, sizes: Mapping[TopicPartition, int], rates: Rates, growth: Rates
) -> TopicRow:
    """Return a topic's row. `rates` are records per second, `growth` bytes per second."""
    partitions = [TopicPartition(topic.name, row.partition_index) for row in topic.partitions]
    known = [sizes[tp] for tp in partitions if tp in sizes]
    total = sum(known)
    return TopicRow(
        topic=topic.name,
        partitions=len(partitions),
        records_per_s=sum_of(rates.get(tp) for tp in partitions),
        bytes_per_s=sum_of(growth.get(tp) for tp in partitions),
        size_bytes=total if known else None,
        skew=max(known) * len(known) / total if total and len(known) > 1 else None,
        without_leader=sum(leaders[tp] is None for tp in partitions),
        out_of_sync=sum(len(row.isr_nodes) < len(row.replica_nodes) for row in topic.partitions),
    )


def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as a JSON document."""
    return {
        "cluster_id": snapshot.cluster_id,
        "time_ms": snapshot.time_ms,
        "took_s": round(snapshot.took_s, 3),
        "totals": snapshot.totals,
        "problems": snapshot.problems,
        "brokers": [vars(row) for row in snapshot.brokers],
        "topics": [vars(row) for row in snapshot.topics],
        "groups": [vars(row) for row in snapshot.groups],
    }
