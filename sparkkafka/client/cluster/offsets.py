"""Offsets of partitions: the earliest, the latest and those of timestamps, by ListOffsets.

In Kafka the latest offset of ListOffsets is the high watermark, or with read_committed the last
stable offset, and Fetch responses have the same. Another broker may give an offset inside the last
batch (Tansu 0.6: the batch's first offset plus 1), so that a read up to it would leave out the rest
of the batch: `OffsetLookup.confirmed_ends` compares them with those of Fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sparkkafka.client.arguments import (
    checked_by_partition,
    checked_int,
    offset_number,
    whole_number,
)
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import ApiHandler, Outcome, Outcomes, ToLeader
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import (
    OffsetAndMetadata,
    Offsets,
    Results,
    TopicPartition,
    by_partition,
    by_topic,
    request_topics,
)
from sparkkafka.errors import BrokerError, ErrorCode, OptionError, UnsupportedVersionError
from sparkkafka.protocol import constants, messages

log = logging.getLogger(__name__)


# Timestamps that need a version of ListOffsets: a broker without it would take them for times.
_NEEDED_VERSIONS = {
    constants.MAX_TIMESTAMP: (7, "Kafka 3.0 (KIP-734)"),
    constants.EARLIEST_LOCAL: (8, "Kafka 3.6 (KIP-405)"),
    constants.LATEST_TIERED: (9, "Kafka 3.9 (KIP-1005)"),
    constants.EARLIEST_PENDING_UPLOAD: (11, "Kafka 4.2 (KIP-1023)"),
}
# Verbs for an error: each log has both offsets, so a negative one is impossible.
_EDGES = {constants.EARLIEST: "begins", constants.LATEST: "ends"}


class OffsetSpec(NamedTuple):
    """Which offset to list; made by the class methods, which are those of Java's OffsetSpec."""

    timestamp_ms: int

    @classmethod
    def earliest(cls) -> Self:
        """The first offset of the log."""
        return cls(constants.EARLIEST)

    @classmethod
    def latest(cls) -> Self:
        """The end: the offset that the next record gets. With read_committed, the first offset
        whose transaction is still open (the last stable offset)."""
        return cls(constants.LATEST)

    @classmethod
    def max_timestamp(cls) -> Self:
        """The record with the largest timestamp (Kafka 3.0 and later)."""
        return cls(constants.MAX_TIMESTAMP)

    @classmethod
    def for_timestamp(cls, timestamp_ms: int) -> Self:
        """The first record with this timestamp, in ms since 1970 UTC, or a later one."""
        return cls(checked_int(timestamp_ms, "timestamp_ms, a timestamp in milliseconds,", 0))

    @classmethod
    def earliest_local(cls) -> Self:
        """With tiered storage, the first offset on the leader's own disk (Kafka 3.6 and later)."""
        return cls(constants.EARLIEST_LOCAL)

    @classmethod
    def latest_tiered(cls) -> Self:
        """With tiered storage, the last offset that is in the remote storage (Kafka 3.9)."""
        return cls(constants.LATEST_TIERED)

    @classmethod
    def earliest_pending_upload(cls) -> Self:
        """With tiered storage, the first offset that is not in the remote storage yet (Kafka
        4.2)."""
        return cls(constants.EARLIEST_PENDING_UPLOAD)


class ListedOffset(NamedTuple):
    """`offset` is NO_OFFSET if no record has the timestamp or a later one.

    `timestamp_ms` is that record's, -1 for earliest and latest; `leader_epoch` -1 if not known.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int


class OffsetRange(NamedTuple):
    """The offsets of a partition: `earliest` is the first, `latest` the one after the last."""

    earliest: int
    latest: int


class StartingPoint(NamedTuple):
    """Where to start reading: at `offset`, or if that is None at the offset that a leader lists for
    `lookup_ms` (as in OffsetSpec). `epoch` is the leader epoch of the record before `offset`, -1 if
    it is not known."""

    offset: int | None
    lookup_ms: int | None = None
    epoch: int = -1


def starting_point(
    tp: TopicPartition, start: int | OffsetSpec | OffsetAndMetadata, what: str
) -> StartingPoint:
    """Return the starting point that an argument of `assign` or `seek` names: an offset, a value of
    `committed`, -1 for the latest or -2 for the earliest offset (as in Kafka's protocol), or an
    OffsetSpec.

    Raises OptionError, which names the argument as `what`.
    """
    if isinstance(start, OffsetSpec):
        return StartingPoint(None, checked_timestamp(tp, start))
    offset = start.offset if isinstance(start, OffsetAndMetadata) else start
    number = offset_number(offset)
    if number is not None:
        epoch = start.leader_epoch if isinstance(start, OffsetAndMetadata) else None
        return StartingPoint(
            number, epoch=-1 if epoch is None else checked_int(epoch, "leader_epoch")
        )
    end = whole_number(start)
    if end in (constants.EARLIEST, constants.LATEST):
        return StartingPoint(None, end)
    raise OptionError(
        f"{what}: cannot seek to offset {offset!r} of {tp}; give a whole number, what committed "
        "gives, -1 or OffsetSpec.latest() for the end, -2 or OffsetSpec.earliest() for the first "
        "record, or OffsetSpec.for_timestamp(ms)"
    )


def checked_timestamp(tp: TopicPartition, spec: OffsetSpec) -> int:
    """Return the timestamp to send in ListOffsets for a spec: a time, or a negative number such as
    LATEST. Raises OptionError for anything but an OffsetSpec that was made by its class methods."""
    if not isinstance(spec, OffsetSpec):
        raise OptionError(
            f"the spec of {tp}: a spec is OffsetSpec.earliest(), "
            f"OffsetSpec.latest() or OffsetSpec.for_timestamp(ms), got {spec!r}"
        )
    number = checked_int(spec.timestamp_ms, f"the spec of {tp}: the timestamp_ms of an OffsetSpec")
    # The lowest of the numbers that are no times, in the class methods.
    if not constants.EARLIEST_PENDING_UPLOAD <= number < 1 << 63:
        raise OptionError(f"the spec of {tp}: no {spec!r}: use OffsetSpec's class methods")
    return number


# --- ListOffsets ------------------------------------------------------------------------------


def unsupported_reason(timestamp_ms: int, version: int) -> str | None:
    """Return why this version of ListOffsets cannot list this kind of offset; None if it can."""
    min_version, kafka = _NEEDED_VERSIONS.get(timestamp_ms, (0, ""))
    return f"this kind of offset needs {kafka}" if version < min_version else None


def list_offsets_request(
    cluster: Cluster, timestamps: Iterable[tuple[TopicPartition, int]], isolation_level: str
) -> messages.ListOffsetsRequest:
    """Build the request for timestamps of partitions, with the leader epochs in the cache."""
    timestamp_of = dict(timestamps)

    def row(tp: TopicPartition) -> messages.ListOffsetsPartition:
        """Return the row of one partition in the request."""
        return messages.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=cluster.leader_epoch(tp),
            timestamp=timestamp_of[tp],
        )

    return messages.ListOffsetsRequest(
        replica_id=constants.CONSUMER_REPLICA_ID,
        isolation_level=constants.ISOLATION_LEVELS[isolation_level],
        topics=request_topics(messages.ListOffsetsTopic, timestamp_of, row),
    )


class _OffsetQuery(NamedTuple):
    """A partition, and the timestamp whose offset is listed, or EARLIEST, LATEST, …"""

    tp: TopicPartition
    timestamp_ms: int


class _ListOffsets(ApiHandler[_OffsetQuery, ListedOffset]):
    request_type = messages.ListOffsetsRequest
    name_format = "{0.tp}"
    acl = "DESCRIBE on topic {0.tp.topic}"

    def __init__(self, cluster: Cluster, isolation_level: str) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level

    def split(
        self, items: Sequence[_OffsetQuery], version: int
    ) -> Iterable[Sequence[_OffsetQuery]]:
        """Make several requests if a partition occurs twice: brokers refuse it in one."""
        requests: list[dict[TopicPartition, _OffsetQuery]] = []
        for item in items:
            request = next((other for other in requests if item.tp not in other), None)
            if request is None:
                request = {}
                requests.append(request)
            request[item.tp] = item
        return [list(request.values()) for request in requests]

    def build(self, items: Sequence[_OffsetQuery], version: int) -> Any:
        return list_offsets_request(self._cluster, items, self._isolation_level)

    def read(self, response: Any, items: Sequence[_OffsetQuery]) -> Outcomes[_OffsetQuery]:
        """Yield the offset, timestamp and leader epoch that the broker found for each query."""
        item_of = {item.tp: item for item in items}
        for tp, row in by_partition(response.topics):
            item = item_of.get(tp)
            if item is not None:
                listed = ListedOffset(row.offset, row.timestamp, row.leader_epoch)
                yield item, Outcome.of(row, listed)

    def unsupported_reason(self, item: _OffsetQuery, version: int) -> str | None:
        return unsupported_reason(item.timestamp_ms, version)


def list_offsets_each(
    cluster: Cluster,
    specs: Mapping[TopicPartition, OffsetSpec],
    deadline: Deadline,
    *,
    isolation_level: str = "read_uncommitted",
) -> Results[TopicPartition, ListedOffset]:
    """List the offset of each partition's spec; -1 if there is no such record.

    Raises OptionError for an invalid isolation level, partition or spec.
    """
    if not isinstance(isolation_level, str) or isolation_level not in constants.ISOLATION_LEVELS:
        raise OptionError(
            f"isolation_level must be one of {', '.join(constants.ISOLATION_LEVELS)}, got "
            f"{isolation_level!r}"
        )
    checked = checked_by_partition(specs, "specs", "OffsetSpec.latest()")
    queries = [_OffsetQuery(tp, checked_timestamp(tp, spec)) for tp, spec in checked.items()]
    handler = _ListOffsets(cluster, isolation_level)
    lookup = ToLeader(cluster, lambda query: query.tp)
    results = lookup.call_each(queries, handler, deadline, "listing offsets")
    return Results({query.tp: outcome for query, outcome in results.outcomes.items()})


class _FetchEnds(ApiHandler[TopicPartition, int]):
    """Fetches from the end on: the response has no records, and says where the log ends."""

    request_type = messages.FetchRequest

    def __init__(
        self, cluster: Cluster, offsets: Mapping[TopicPartition, int], isolation_level: str
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._isolation_level = constants.ISOLATION_LEVELS[isolation_level]

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build a Fetch with the smallest size and wait: only the ends of the partitions in its
        response are used, not the records."""

        def row(tp: TopicPartition) -> messages.FetchPartition:
            """Return the row of one partition in the request."""
            return messages.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=self._cluster.leader_epoch(tp),
                fetch_offset=self._offsets[tp],
                partition_max_bytes=1,
            )

        return messages.FetchRequest(
            replica_id=constants.CONSUMER_REPLICA_ID,
            max_wait_ms=1,
            min_bytes=0,
            max_bytes=1,
            isolation_level=self._isolation_level,
            session_epoch=constants.NO_SESSION_EPOCH,
            topics=[
                messages.FetchTopic(topic=name, partitions=rows)
                for name, rows in by_topic(items, row).items()
            ],
        )

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Yield the end offset of each partition: the high watermark, for read_committed the last
        stable offset."""
        for topic in response.responses:
            for row in topic.partitions:
                # 0 is read_uncommitted, 1 is read_committed.
                end = row.last_stable_offset if self._isolation_level else row.high_watermark
                tp = TopicPartition(topic.topic, row.partition_index)
                yield tp, Outcome.of(row, end)


@dataclass(frozen=True)
class OffsetLookup:
    """Looks up offsets of many partitions, for readers of one isolation level: all of them, or it
    raises the error of one.

    Its methods raise BrokerError, which names the partitions, for an error that is not retriable,
    also for a partition that its topic lacks and for a log without an earliest or latest offset;
    KafkaTimeoutError (with the last failure) at the deadline (None: default.api.timeout.ms).
    """

    cluster: Cluster
    isolation_level: str = "read_uncommitted"

    def list(
        self, timestamps: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """List the offset of each partition at its timestamp: LATEST, EARLIEST, or ms since 1970.

        With read_committed, LATEST is the last stable offset. Requests to all leaders are in flight
        together.
        """
        queries = [_OffsetQuery(tp, timestamp_ms) for tp, timestamp_ms in timestamps.items()]
        return {query.tp: row for query, row in self._list_all(queries, deadline).items()}

    def offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> Offsets:
        """Return only the offsets of `list`."""
        return {tp: row.offset for tp, row in self.list(timestamps, deadline).items()}

    def earliest_and_latest(
        self, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> tuple[Offsets, Offsets]:
        """Return the earliest offset of each partition, and the latest. Two requests to each leader
        are in flight together."""
        chosen = [*partitions]
        edges = (constants.EARLIEST, constants.LATEST)
        queries = [_OffsetQuery(tp, edge) for edge in edges for tp in chosen]
        listed = self._list_all(queries, deadline)
        earliest, latest = (
            {tp: listed[_OffsetQuery(tp, edge)].offset for tp in chosen} for edge in edges
        )
        return earliest, latest

    def confirmed_ends(
        self, latest: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> Offsets:
        """Return the ends `latest`, which ListOffsets gave, or those of the leaders' Fetch
        responses where these are later. Sends one more request to each leader.

        The first time that ListOffsets was wrong is logged as a warning, and
        `cluster.lists_short_ends` is set. A partition that cannot be fetched keeps its end.
        """
        if not latest:
            return {}
        cluster = self.cluster
        deadline = deadline or cluster.deadline()
        handler = _FetchEnds(cluster, latest, self.isolation_level)
        fetched = ToLeader(cluster).call_once(latest, handler, deadline)
        later = {tp: end for tp, end in fetched.values_by_item.items() if end > latest[tp]}
        if not later:
            return dict(latest)
        # Records may have been appended between the two requests. Then ListOffsets knows them now.
        listed = self.offsets(dict.fromkeys(later, constants.LATEST), deadline)
        for tp, end in later.items():
            if listed[tp] < end and not cluster.lists_short_ends:
                cluster.lists_short_ends = True
                leader = cluster.known_leader(tp)
                broker = "the broker" if leader is None else cluster.brokers[leader.leader]
                log.warning(
                    "%s: %s says in ListOffsets that the log ends at offset %d, and in Fetch that "
                    "it ends at %d. The latter is taken, here and for other partitions, so that no "
                    "record of the last batch is left out; brokers of Kafka say the same in both",
                    *(tp, broker, listed[tp], end),
                )
        return {**latest, **{tp: max(end, listed[tp]) for tp, end in later.items()}}

    def _list_all(
        self, queries: Sequence[_OffsetQuery], deadline: Deadline | None
    ) -> dict[_OffsetQuery, ListedOffset]:
        """List the offset of each query, without waiting for a partition that its topic lacks
        (`awaits_partitions`)."""
        handler = _ListOffsets(self.cluster, self.isolation_level)
        lookup = ToLeader(self.cluster, lambda query: query.tp, awaits_partitions=False)
        handler.grace_ms = self.cluster.grace_ms(query.tp.topic for query in queries)
        offsets = lookup.call_all(queries, handler, deadline, "listing offsets")
        for (tp, timestamp_ms), (offset, _, _) in offsets.items():
            if offset < 0 and timestamp_ms in _EDGES:
                raise BrokerError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"ListOffsets of {tp}",
                    f"the broker says that its log {_EDGES[timestamp_ms]} at offset {offset}",
                )
        return offsets


def largest_timestamps(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Offsets:
    """List the largest timestamp in each partition, in ms, of all records that its log has or had.

    Partitions without records are left out. Empty if a broker refuses the request, as brokers
    before Kafka 3.0 do.
    """
    try:
        listed = OffsetLookup(cluster).list(dict.fromkeys(partitions, constants.MAX_TIMESTAMP))
    except (UnsupportedVersionError, BrokerError) as error:
        log.info("largest timestamps are not known: %s", error)
        return {}
    return {tp: row.timestamp_ms for tp, row in listed.items() if row.offset != constants.NO_OFFSET}
