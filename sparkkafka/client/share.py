"""Kafka's share consumer (KIP-932, Kafka 4.1): many consumers read the same partitions, as a queue,
and acknowledge each record.

    with ShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "work"}) as consumer:
        consumer.subscribe(["jobs"])
        while True:
            for record in consumer.poll(1.0):
                ...
            consumer.commit()

Names, defaults and rules are those of Java's KafkaShareConsumer. Keys and values are bytes.

A member acquires ranges of offsets for a limited time. Some of the offsets have no record (markers,
and records that compaction removed): they are acknowledged as gaps. In implicit mode `poll` accepts
the records of the last poll. (Java's ShareInFlightBatch and Acknowledgements.)

Each leader has a connection and a share session (Java's ShareSessionHandler), with one request in
flight: a ShareFetch, which also carries acknowledgements, or a ShareAcknowledge. If a session is
lost (connection broken, broker restarted), acknowledgements in flight have failed, and the leader
gives the records that this member had acquired to other members. (Java's
ShareConsumeRequestManager.) The membership is in `group/consumer_group_membership.py`.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparkkafka import errors
from sparkkafka.client import arguments
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import no_leader_error
from sparkkafka.client.cluster.topic_lookup import MissingTopicsLookup
from sparkkafka.client.consumer.consumer import (
    CLOSE_AFTER_ERROR_S,
    CLOSE_TIMEOUT_S,
    MIN_RESPONSE_MS,
    SingleThreadGuard,
)
from sparkkafka.client.consumer.fetched_records import (
    FetchedRecords,
    ResponseBuffer,
    take_batches,
    with_setting,
)
from sparkkafka.client.consumer.fetcher import LeaderConnection, LeaderFetcher
from sparkkafka.client.consumer.record import Header, RecordBlock
from sparkkafka.client.deadline import Backoff, Deadline, deadline_of, seconds_of
from sparkkafka.client.group.consumer_group_membership import NEEDS_SHARE, ShareMember
from sparkkafka.client.group.membership import RebalanceHooks
from sparkkafka.client.metrics import Metrics, ShareMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.config.client_settings import ShareConsumerOptions, parse_share_consumer_settings
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.constants import NO_LEADER_EPOCH
from sparkkafka.protocol.messages import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)

log = logging.getLogger(__name__)

# --- acquired records and their acknowledgements --------------------------------------------------

UNACKNOWLEDGED = -1
GAP = 0


class AcknowledgeType(enum.IntEnum):
    """What a group does with a record (KIP-932)."""

    ACCEPT = 1
    """The record is processed."""
    RELEASE = 2
    """The record is handed out again, to any member, until group.share.delivery.count.limit."""
    REJECT = 3
    """The record cannot be processed, so it is not handed out again."""
    RENEW = 4
    """The record is still being processed: its lock is renewed, and the next poll returns it again
    (KIP-1222, Kafka 4.2)."""


class ShareRecord(NamedTuple):
    """One record that a share group has handed out."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970, -1 for none."""
    timestamp_type: int
    """-1 none, 0 the producer's (CreateTime), 1 the broker's (LogAppendTime)."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone, b"" an empty value."""
    headers: tuple[Header, ...]
    """(name, value) pairs in the producer's order; a name may come several times."""
    delivery_count: int
    """How often the record was handed out, including this time."""


class AcquiredRange(NamedTuple):
    """Offsets first..last, both included, and how often they have been handed out."""

    first_offset: int
    last_offset: int
    delivery_count: int


class PolledRecords:
    """The records of a partition that one poll has returned, and the acknowledgement of each.

    `source` is the AcquiredPartition from which they came.
    """

    def __init__(self, source: AcquiredPartition, records: list[ShareRecord]) -> None:
        self.tp = source.tp
        self.source = source
        self._records = records
        self._offsets = np.array([record.offset for record in records], np.int64)
        self._types = np.full(len(records), UNACKNOWLEDGED, np.int8)

    @property
    def unacknowledged_count(self) -> int:
        """The number of records without an acknowledgement."""
        return int((self._types == UNACKNOWLEDGED).sum())

    @property
    def first_unacknowledged(self) -> int:
        """The offset of the first record without an acknowledgement."""
        return int(self._offsets[np.argmax(self._types == UNACKNOWLEDGED)])

    def acknowledge_rest(self, kind: AcknowledgeType) -> None:
        """Acknowledge all records that have no acknowledgement yet."""
        self._types[self._types == UNACKNOWLEDGED] = kind

    def acknowledge(self, offset: int, kind: AcknowledgeType) -> bool:
        """Acknowledge one record. Return False if this object does not have the record."""
        row = int(np.searchsorted(self._offsets, offset))
        if row == len(self._offsets) or self._offsets[row] != offset:
            return False
        self._types[row] = kind
        return True

    def take_acknowledged(self) -> tuple[list[AcknowledgementBatch], list[ShareRecord]]:
        """Remove the acknowledged records. Return the acknowledgements to send, and the records
        that they renew."""
        chosen = self._types != UNACKNOWLEDGED
        batches = list(_acknowledgement_batches(self._offsets[chosen], self._types[chosen]))
        renewed_rows = np.flatnonzero(self._types == AcknowledgeType.RENEW)
        renewed = [self._records[row] for row in renewed_rows]
        self._records = [self._records[row] for row in np.flatnonzero(~chosen)]
        self._offsets, self._types = self._offsets[~chosen], self._types[~chosen]
        return batches, renewed


def _acknowledgement_batches(
    offsets: NDArray[np.int64], types: NDArray[np.int8]
) -> Iterator[AcknowledgementBatch]:
    """Yield an AcknowledgementBatch for each run of consecutive offsets. If all types of a run are
    equal, the batch has the type only once."""
    if not len(offsets):
        return
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    for start, stop in pairwise([0, *breaks.tolist(), len(offsets)]):
        run = types[start:stop]
        kinds = run[:1] if (run == run[0]).all() else run
        yield AcknowledgementBatch(
            first_offset=int(offsets[start]),
            last_offset=int(offsets[stop - 1]),
            acknowledge_types=kinds.tolist(),
        )


def acknowledge_range(first_offset: int, last_offset: int, kind: int) -> AcknowledgementBatch:
    """Return one acknowledgement of this type for all offsets of a range."""
    return AcknowledgementBatch(
        first_offset=first_offset, last_offset=last_offset, acknowledge_types=[kind]
    )


@dataclass(eq=False)
class AcquiredPartition:
    """The acquired records of one partition in one response. They are decoded when polls take them.

    `session` is the ShareSession in which they must be acknowledged. `ranges` has the acquired
    offsets that no poll has returned yet, sorted and without overlaps.
    """

    tp: TopicPartition
    session: Any
    fetched: FetchedRecords | None
    ranges: list[AcquiredRange]

    def __post_init__(self) -> None:
        self.generation = self.session.generation
        """The session's generation. Brokers refuse acknowledgements in a later one."""
        self._end_offset = 0 if self.fetched is None else self.fetched.next_offset

    @property
    def is_exhausted(self) -> bool:
        return self.fetched is None

    def next(self, deadline: Deadline) -> tuple[list[ShareRecord], int, list[AcknowledgementBatch]]:
        """Return the next records, their size in bytes, and acknowledgements of gaps (offsets
        without a record).

        Raises DamagedError after the last record that could be decoded. It contains
        acknowledgements that, as in Java, reject the damaged records and release those after them.
        """
        if self.fetched is None:
            return [], 0, []
        try:
            decoded = self.fetched.next_records(deadline)
        except errors.CorruptRecordError as error:
            self.fetched = None
            batches = self._acknowledge_remaining(AcknowledgeType.REJECT, error.next_offset or 0)
            raise DamagedError(with_setting(error, prefix="").at(*self.tp), batches) from error
        if decoded is None:
            self.fetched = None
            return [], 0, self._acknowledge_remaining(GAP, self._end_offset)
        records, size_bytes, gaps = self._take_acquired(decoded)
        if self.fetched.is_decoded:
            self.fetched = None
            gaps += self._acknowledge_remaining(GAP, self._end_offset)
        return records, size_bytes, gaps

    def drop(self) -> list[AcknowledgementBatch]:
        """Drop the records that are left; return the acknowledgements that release them."""
        if self.fetched is not None:
            self.fetched.drop()
            self.fetched = None
        ranges, self.ranges = self.ranges, []
        return [
            acknowledge_range(acquired.first_offset, acquired.last_offset, AcknowledgeType.RELEASE)
            for acquired in ranges
        ]

    def _take_acquired(
        self, decoded: DecodedRecords
    ) -> tuple[list[ShareRecord], int, list[AcknowledgementBatch]]:
        """Return those of the decoded records that are acquired, their size in bytes, and
        acknowledgements of the gaps among them. Remove their offsets from the remaining ranges."""
        offsets = decoded.offsets
        end_offset = int(offsets[-1]) + 1 if len(offsets) else 0
        records: list[ShareRecord] = []
        size_bytes = 0
        gaps: list[AcknowledgementBatch] = []
        remaining: list[AcquiredRange] = []
        for acquired in self.ranges:
            if acquired.first_offset >= end_offset:
                remaining.append(acquired)
                continue
            last = min(acquired.last_offset, end_offset - 1)
            if last < acquired.last_offset:
                remaining.append(acquired._replace(first_offset=last + 1))
            start, stop = np.searchsorted(offsets, [acquired.first_offset, last + 1]).tolist()
            gaps += _gaps(acquired.first_offset, last, offsets[start:stop])
            if start < stop:
                columns = decoded.slice(start, stop)
                size_bytes += columns.column_bytes
                rows = RecordBlock(self.tp, columns, last + 1).records(0, stop - start)
                # A ShareRecord has the fields of a Record up to the headers.
                records += [ShareRecord(*row[:8], acquired.delivery_count) for row in rows]
        self.ranges = remaining
        return records, size_bytes, gaps

    def _acknowledge_remaining(self, kind: int, end: int) -> list[AcknowledgementBatch]:
        """Return acknowledgements of this type for the remaining offsets before `end`, and
        acknowledgements that release those from `end` on, which were not decoded."""
        batches = []
        for first, last, _ in self.ranges:
            if first < end:
                batches.append(acknowledge_range(first, min(last, end - 1), kind))
            if last >= end:
                batches.append(acknowledge_range(max(first, end), last, AcknowledgeType.RELEASE))
        self.ranges = []
        return batches


def _gaps(first: int, last: int, offsets: NDArray[np.int64]) -> list[AcknowledgementBatch]:
    """Return acknowledgements of the offsets of first..last that are not in `offsets`."""
    if len(offsets) == last - first + 1:
        return []
    edges = np.concatenate([[first - 1], offsets, [last + 1]])
    # A gap lies between neighbouring offsets that differ by more than one.
    return [
        acknowledge_range(int(edges[index]) + 1, int(edges[index + 1]) - 1, GAP)
        for index in np.flatnonzero(np.diff(edges) > 1).tolist()
    ]


class DamagedError(Exception):
    """Raised by `AcquiredPartition.next` for damaged records. `batches` are the acknowledgements of
    them and of the records after them."""

    def __init__(
        self, error: errors.CorruptRecordError, batches: list[AcknowledgementBatch]
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.batches = batches


def sorted_ranges(rows: Iterable[Any]) -> list[AcquiredRange] | None:
    """Return the acquired ranges of a partition in a response, sorted; None if one is invalid or
    two overlap."""
    ranges = sorted(
        AcquiredRange(row.first_offset, row.last_offset, row.delivery_count) for row in rows
    )
    previous_offset = -1
    for acquired in ranges:
        if acquired.first_offset <= previous_offset or acquired.last_offset < acquired.first_offset:
            return None
        previous_offset = acquired.last_offset
    return ranges


def sorted_by_offset(batches: Iterable[AcknowledgementBatch]) -> list[AcknowledgementBatch]:
    """Return acknowledgements sorted by offset, as brokers require."""
    return sorted(batches, key=lambda batch: batch.first_offset)


def is_renewal(batch: AcknowledgementBatch) -> bool:
    """Return whether an acknowledgement renews a record."""
    return AcknowledgeType.RENEW in batch.acknowledge_types


def renewed_offsets(batches: Iterable[AcknowledgementBatch]) -> list[int]:
    """Return the offsets that these acknowledgements renew."""
    offsets: list[int] = []
    for batch in filter(is_renewal, batches):  # no gaps, which may be too long for a list
        kinds = batch.acknowledge_types
        if len(kinds) == 1:  # of all offsets of the batch
            offsets += range(batch.first_offset, batch.last_offset + 1)
        else:
            types_by_offset = enumerate(kinds, batch.first_offset)
            offsets += [offset for offset, kind in types_by_offset if kind == AcknowledgeType.RENEW]
    return offsets


def without_renewals(batch: AcknowledgementBatch) -> AcknowledgementBatch:
    """Return an acknowledgement with RELEASE in place of RENEW, for a member that leaves."""
    kinds = [
        AcknowledgeType.RELEASE if kind == AcknowledgeType.RENEW else kind
        for kind in batch.acknowledge_types
    ]
    return AcknowledgementBatch(
        first_offset=batch.first_offset, last_offset=batch.last_offset, acknowledge_types=kinds
    )


def acknowledged_ranges(batches: Iterable[AcknowledgementBatch]) -> list[range]:
    """Return the ranges of acknowledged offsets, without gaps."""
    return [
        range(batch.first_offset, batch.last_offset + 1)
        for batch in sorted_by_offset(batches)
        if batch.acknowledge_types != [GAP]
    ]


def require_all_acknowledged(polled: Iterable[PolledRecords]) -> None:
    """Raise ConsumerStateError if a record of the last poll has no acknowledgement."""
    incomplete = [records for records in polled if records.unacknowledged_count]
    if incomplete:
        count = sum(records.unacknowledged_count for records in incomplete)
        first = incomplete[0]
        raise errors.ConsumerStateError(
            f"{count} records of the last poll are not acknowledged, the first is offset "
            f"{first.first_unacknowledged} of {first.tp}: with share.acknowledgement.mode=explicit "
            "call acknowledge for each record before the next poll"
        )


# --- sessions with the leaders --------------------------------------------------------------------

INITIAL_EPOCH, FINAL_EPOCH = 0, -1  # open and close a session (Java's ShareRequestMetadata)

Batches = list[AcknowledgementBatch]
TopicIds = Mapping[TopicPartition, uuid.UUID]


class ShareSession(LeaderConnection):
    """The share session with one leader, its connection, and the acknowledgements to send to it."""

    def __init__(self, node_id: int, backoff: Backoff, options: ShareConsumerOptions) -> None:
        super().__init__(node_id, backoff)
        self._options = options
        self.epoch = INITIAL_EPOCH
        """The epoch of the next request."""
        self.generation = 0
        """The number of sessions that have ended."""
        self.partitions: TopicIds = {}
        """The partitions that the broker has in the session."""
        self.ids: dict[TopicPartition, uuid.UUID] = {}
        """The topic ids of all partitions that were read, for acknowledgements and responses."""
        self.unsent: dict[TopicPartition, Batches] = {}
        """Acknowledgements for the next request."""
        self.sent: dict[TopicPartition, Batches] = {}
        """Acknowledgements of the request in flight."""
        self.request: ShareFetchRequest | ShareAcknowledgeRequest | None = None
        """The request in flight."""

    @property
    def has_request(self) -> bool:
        return self.request is not None

    @property
    def is_open(self) -> bool:
        """Whether the broker has the session."""
        return self.epoch != INITIAL_EPOCH

    def end(self) -> None:
        """Note that the broker has closed or forgotten the session: the next request opens a new
        one."""
        self.epoch = INITIAL_EPOCH
        self.generation += 1
        self.partitions = {}

    def next_epoch(self) -> None:
        """Count a request: after 2147483647 comes 1, since 0 opens a session."""
        self.epoch = 1 if self.epoch == 2**31 - 1 else self.epoch + 1

    def lose(self) -> dict[TopicPartition, Batches]:
        """End the session. Return the acknowledgements that the broker does not get, or perhaps did
        not get."""
        self.end()
        self.request = None
        lost, self.sent = self.sent, {}
        for tp, batches in self.unsent.items():
            lost.setdefault(tp, []).extend(batches)
        self.unsent = {}
        return lost

    @property
    def cannot_renew(self) -> bool:
        """Whether the broker is known to be too old for RENEW."""
        connection = self.connection
        if connection is None or not connection.is_open:
            return False
        return not connection.supports(ShareAcknowledgeRequest, 2)  # KIP-1222, Kafka 4.2

    def fetch_request(
        self, connection: Connection, member_id: str, assigned: TopicIds
    ) -> ShareFetchRequest:
        """Return a request for records of `assigned`, with all acknowledgements of these
        partitions. It lists only the partitions that have acknowledgements or are not in the
        session yet, and those that leave the session."""
        options, in_session = self._options, self.partitions
        is_limited = options.acquire_mode == "record_limit"
        if not connection.supports(ShareFetchRequest, 2 if is_limited else 0):
            needs = "share.acquire.mode=record_limit needs Kafka 4.2 or later"
            raise errors.UnsupportedVersionError(
                f"{connection}: {needs if is_limited else NEEDS_SHARE}"
            )
        topics: dict[uuid.UUID, list[ShareFetchPartition]] = {}
        for tp, topic_id in assigned.items():
            if tp in self.unsent or in_session.get(tp) != topic_id:
                row = ShareFetchPartition(
                    partition_index=tp.partition,
                    acknowledgement_batches=sorted_by_offset(self.unsent.get(tp, [])),
                )
                topics.setdefault(topic_id, []).append(row)
        forgotten: dict[uuid.UUID, list[int]] = {}
        for tp, topic_id in in_session.items():
            if assigned.get(tp) != topic_id:
                forgotten.setdefault(topic_id, []).append(tp.partition)
        self.partitions = dict(assigned)
        self.ids.update(assigned)
        return ShareFetchRequest(
            group_id=options.group_id,
            member_id=member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=options.fetch.fetch_max_wait_ms,
            min_bytes=options.fetch.fetch_min_bytes,
            max_bytes=options.fetch.fetch_max_bytes,
            max_records=options.max_poll_records,
            batch_size=options.max_poll_records,
            share_acquire_mode=int(is_limited),  # 0 is batch_optimized
            topics=[ShareFetchTopic(topic_id=key, partitions=rows) for key, rows in topics.items()],
            forgotten_topics_data=[
                ForgottenShareTopic(topic_id=key, partitions=rows)
                for key, rows in forgotten.items()
            ],
        )

    def acknowledge_request(self, member_id: str, *, closes: bool) -> ShareAcknowledgeRequest:
        """Return a request with all acknowledgements. With `closes` it also closes the session."""
        topics: dict[uuid.UUID, list[AcknowledgePartition]] = {}
        is_renewing = not closes and any(map(is_renewal, chain(*self.unsent.values())))
        for tp, batches in self.unsent.items():
            if closes:
                batches = [without_renewals(batch) for batch in batches]
            row = AcknowledgePartition(
                partition_index=tp.partition, acknowledgement_batches=sorted_by_offset(batches)
            )
            topics.setdefault(self.ids[tp], []).append(row)
        return ShareAcknowledgeRequest(
            group_id=self._options.group_id,
            member_id=member_id,
            share_session_epoch=FINAL_EPOCH if closes else self.epoch,
            is_renew_ack=is_renewing,
            topics=[
                AcknowledgeTopic(topic_id=key, partitions=rows) for key, rows in topics.items()
            ],
        )


class AcknowledgementResult(NamedTuple):
    """The result of acknowledgements of a partition. `error` is None if the leader has accepted
    them."""

    tp: TopicPartition
    batches: Batches
    error: errors.KafkaError | None


class ShareFetcher(LeaderFetcher[ShareSession]):
    """Sends the requests of one ShareConsumer to the leaders. `on_result` is called for each
    partition whose acknowledgements are answered or lost. For one thread, except `wake`."""

    _metrics: ShareMetrics

    def __init__(
        self,
        cluster: Cluster,
        options: ShareConsumerOptions,
        on_result: Callable[[AcknowledgementResult], None],
        metrics: ShareMetrics,
    ) -> None:
        super().__init__(cluster, options.fetch, metrics)
        self._options = options
        self._on_result = on_result
        self._assigned: TopicIds = {}
        self._member_id = ""
        self._backoff = cluster.backoff()
        self._lookup_at_s = 0.0
        self.acquired: deque[AcquiredPartition] = deque()
        """The acquired records that no poll has returned yet."""
        self.failures: list[errors.KafkaError] = []
        """Errors that a retry cannot fix, for polls to raise; other partitions are read on."""
        self.lock_timeout_ms: int | None = None
        """The time in ms for which this member acquires records, by the last response."""

    def assign(self, partitions: TopicIds, member_id: str) -> None:
        """Read these partitions from now on, as the member with this id."""
        self._assigned = partitions
        self._member_id = member_id

    @property
    def has_unanswered(self) -> bool:
        """Whether there are acknowledgements that are not sent, or whose response has not
        arrived."""
        return any(session.unsent or session.sent for session in self._leaders.values())

    def close(self) -> None:
        super().close()
        self.acquired.clear()

    # --- requests ---------------------------------------------------------------------------

    def fetch(self, deadline: Deadline) -> None:
        """Request records from all leaders without a request in flight, and send them all
        acknowledgements."""
        by_node: dict[int, dict[TopicPartition, uuid.UUID]] = {}
        unknown = set()
        for tp, topic_id in self._assigned.items():
            known = self._cluster.known_leader(tp)
            if known is None:
                unknown.add(tp.topic)
            else:
                by_node.setdefault(known.leader, {})[tp] = topic_id
        # Brokers that lead none of them any more may still have partitions in the session, or need
        # acknowledgements.
        for node_id, session in self._leaders.items():
            if session.partitions or session.unsent:
                by_node.setdefault(node_id, {})
        for node_id, assigned in by_node.items():
            session = self._session(node_id)
            if not assigned and not session.unsent:
                self._send(session, closes=True)
            elif not assigned or session.unsent.keys() - assigned.keys():
                self._send(session)  # a fetch acknowledges only partitions that it reads
            else:
                self._send(session, assigned)
        if unknown and time.monotonic() >= self._lookup_at_s:
            self._look_up(sorted(unknown), deadline)

    def send_acknowledgements(self) -> None:
        """Send acknowledgements to the leaders without a request in flight."""
        for session in self._leaders.values():
            if session.unsent:
                self._send(session)

    def close_sessions(self) -> None:
        """Close the sessions with leaders without a request in flight, and send these the last
        acknowledgements. The leaders give the other acquired records to other members. A session
        with a request in flight stays open: call this again after its response."""
        for session in self._leaders.values():
            if session.is_open and session.request is None:
                self._send(session, closes=True)

    @property
    def has_sessions(self) -> bool:
        """Whether a session is open or a request in flight."""
        return any(session.has_request or session.is_open for session in self._leaders.values())

    def _session(self, node_id: int) -> ShareSession:
        """Return the session with this broker; make one if there is none."""
        if node_id not in self._leaders:
            session = ShareSession(node_id, self._cluster.backoff(), self._options)
            self._leaders[node_id] = session
        return self._leaders[node_id]

    def _send(
        self, session: ShareSession, assigned: TopicIds | None = None, *, closes: bool = False
    ) -> None:
        """Send a ShareFetch for the partitions `assigned` with their acknowledgements, or without
        `assigned` a ShareAcknowledge with all of them. With `closes` also close the session. Do
        nothing while a request is in flight."""
        if session.has_request or time.monotonic() < session.not_before_s:
            return
        try:
            broker = self._cluster.broker(session.node_id)
            connection = session.open(broker, self._cluster.connections, self.wake)
            if connection is None:
                return
            if assigned is None:
                request: Any = session.acknowledge_request(self._member_id, closes=closes)
            else:
                request = session.fetch_request(connection, self._member_id, assigned)
            connection.send(request, Deadline(self._cluster.options.request_timeout_ms))
            session.request, session.is_fetch = request, assigned is not None
            session.sent, session.unsent = session.unsent, {}
            session.sent_at_s = time.monotonic()
        except errors.KafkaError as error:
            self._on_broker_failure(session, error)
        except BaseException:  # Ctrl-C: the request may have been sent
            self._on_interrupt(session)
            raise

    def _look_up(self, topics: list[str], deadline: Deadline) -> None:
        """Look up the leaders of these topics, for the next `fetch`."""
        self._lookup_at_s = time.monotonic() + self._backoff.next_ms() / 1000
        # At least a second: short polls would never get a response.
        limit = Deadline(max(deadline.remaining_s() * 1000, 1_000))
        try:
            self._cluster.request_metadata(topics, limit)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            log.info("%s", error)  # each second in an outage, of which the member's thread warns
            return
        leaderless = [
            tp
            for tp in self._assigned
            if tp.topic in topics and self._cluster.known_leader(tp) is None
        ]
        if leaderless:
            log.info("%s", no_leader_error(leaderless[0]))
        else:
            self._backoff.reset()

    # --- responses ----------------------------------------------------------------------------

    def _on_response(
        self, session: ShareSession, connection: Connection, response: Any, buffer: ResponseBuffer
    ) -> None:
        """Act on the response for each partition: records, and results of acknowledgements."""
        request = session.request
        if request is None:
            return
        is_fetch = session.is_fetch
        where = f"{request.API_NAME} of share group {self._options.group_id!r} @ {connection}"
        session.request = None
        if is_fetch:
            self._metrics.throttled(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            session.not_before_s = time.monotonic() + response.throttle_time_ms / 1000
        if response.acquisition_lock_timeout_ms > 0:
            self.lock_timeout_ms = response.acquisition_lock_timeout_ms
        code = response.error_code
        if code:
            self._on_error_response(
                session, errors.BrokerError(code, where, response.error_message)
            )
            return
        if request.share_session_epoch == FINAL_EPOCH:
            session.end()
        else:
            session.next_epoch()
        requested = {(topic_id, tp.partition): tp for tp, topic_id in session.ids.items()}
        has_news = False
        for topic in response.responses:
            for row in topic.partitions:
                tp = requested.pop((topic.topic_id, row.partition_index), None)
                if tp is None:
                    raise errors.DecodeError(
                        f"{where}: the response has partition {row.partition_index} of topic "
                        f"{topic.topic_id}, which was not requested, or has it twice"
                    )
                ack_code = row.acknowledge_error_code if is_fetch else row.error_code
                batches = session.sent.pop(tp, None)
                if batches:
                    message = row.acknowledge_error_message if is_fetch else row.error_message
                    self._on_acknowledged(tp, batches, ack_code, f"{where} for {tp}", message)
                if is_fetch:
                    has_records = self._take_partition(
                        session, tp, row, buffer, f"{where} for {tp}"
                    )
                    has_news = has_news or has_records
        # The response to a ShareFetch may leave out partitions whose acknowledgements the broker
        # has accepted, that to a ShareAcknowledge may not.
        code = 0 if is_fetch else errors.ErrorCode.UNKNOWN_SERVER_ERROR
        left_out, session.sent = session.sent, {}
        for tp, batches in left_out.items():
            message = f"the response leaves {tp} out"
            self._on_acknowledged(tp, batches, code, where, message)
        session.pace(self._options.fetch.fetch_max_wait_ms, has_news=has_news or not is_fetch)

    def _on_error_response(self, session: ShareSession, error: errors.BrokerError) -> None:
        """Act on an error of a whole response. If it ends the session, the acquired records are
        lost; else this member keeps them."""
        if error.code in (
            errors.ErrorCode.SHARE_SESSION_NOT_FOUND,
            errors.ErrorCode.INVALID_SHARE_SESSION_EPOCH,
            errors.ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ):
            log.info("broker %d: opening a new share session: %s", session.node_id, error)
            self._lose_session(session, error)
        else:
            session.next_epoch()
            lost, session.sent = session.sent, {}
            for tp, batches in lost.items():
                self._on_result(AcknowledgementResult(tp, batches, error))
            if _is_retriable(error):
                log.warning("broker %d: trying again: %s", session.node_id, error)
                for tp in session.partitions:
                    self._cluster.mark_stale(tp.topic)
            else:
                self.failures.append(error)
        session.back_off()

    def _on_acknowledged(
        self, tp: TopicPartition, batches: Batches, code: int, where: str, message: str | None
    ) -> None:
        """Report the result of acknowledgements of a partition."""
        error = None
        if code:
            if code == errors.ErrorCode.INVALID_RECORD_STATE:
                message = (
                    "the brokers had taken these records back: "
                    "group.share.record.lock.duration.ms had passed since they were handed out. "
                    "They may be handed out again: acknowledge sooner, or with RENEW, lower "
                    "max.poll.records, or raise share.record.lock.duration.ms of the group"
                )
            error = errors.BrokerError(code, where, message)
            self._cluster.note_error(tp, code)
        self._on_result(AcknowledgementResult(tp, batches, error))

    def _take_partition(
        self,
        session: ShareSession,
        tp: TopicPartition,
        row: Any,
        buffer: ResponseBuffer,
        where: str,
    ) -> bool:
        """Keep the acquired records of a partition, or its error. Return whether the response has
        records of the partition."""
        if row.error_code:
            error = errors.BrokerError(row.error_code, where, row.error_message)
            self._cluster.note_error(tp, row.error_code)
            if row.error_code == errors.ErrorCode.UNKNOWN_TOPIC_ID:
                self._cluster.mark_stale(tp.topic)
            if _is_retriable(error):
                log.info("%s: trying again: %s", tp, error)
            else:
                self.failures.append(error)
            session.back_off()
            return False
        if not row.acquired_records:
            return False
        ranges = sorted_ranges(row.acquired_records)
        if ranges is None:
            raise errors.DecodeError(f"{where}: the acquired records are not ranges in order")
        options = self._options.fetch
        selection = Selection(ranges[0].first_offset, ranges[-1].last_offset + 1)
        taken = take_batches(tp, row, options, selection, NO_LEADER_EPOCH)
        max_bytes = options.max_decompressed_batch_bytes
        fetched = FetchedRecords(taken, selection, buffer, max_bytes)  # not decoded yet
        self.acquired.append(AcquiredPartition(tp, session, fetched, ranges))
        return len(row.records) > 0

    # --- failures ---------------------------------------------------------------------------

    def _on_broker_failure(self, session: ShareSession, error: errors.KafkaError) -> None:
        """After an error of a connection, or without a response, end the session: a later request
        opens a new one. Raises errors that a retry cannot fix."""
        self._lose_session(session, error)
        for tp in self._assigned:
            known = self._cluster.known_leader(tp)
            if known is not None and known.leader == session.node_id:
                self._cluster.mark_stale(tp.topic)
        self._close_failed(session, error, is_final=not error.retriable)

    def _on_interrupt(self, session: ShareSession) -> None:
        """End the session after Ctrl-C: its request may have been sent, or its response lost."""
        error = errors.KafkaConnectionError(f"broker {session.node_id}: interrupted")
        self._lose_session(session, error)

    def _lose_session(self, session: ShareSession, error: errors.KafkaError) -> None:
        """End the session: drop its acquired records, which go to other members, and report that
        its acknowledgements have failed with `error`."""
        for acquired in [acquired for acquired in self.acquired if acquired.session is session]:
            acquired.drop()
            self.acquired.remove(acquired)
        if session.connection is not None and session.has_request:
            session.close()  # drops the response to its request
        for tp, batches in session.lose().items():
            self._on_result(AcknowledgementResult(tp, batches, error))

    def drop_acquired(self) -> None:
        """Release all acquired records that no poll has returned."""
        while self.acquired:
            self.release(self.acquired[0])

    def release(self, acquired: AcquiredPartition) -> None:
        """Release the records of one response and partition that no poll has returned."""
        self.acquired.remove(acquired)
        self.add_acknowledgements(acquired, batches=acquired.drop())

    def add_acknowledgements(self, acquired: AcquiredPartition, batches: Batches) -> None:
        """Add acknowledgements of records from `acquired` to the next request to their leader. If
        the session in which they were acquired has ended, report that they have failed."""
        session: ShareSession = acquired.session
        if not batches:
            return
        if session.generation == acquired.generation:
            session.unsent.setdefault(acquired.tp, []).extend(batches)
            return
        error = errors.KafkaError(
            f"{acquired.tp}: the share session with broker {session.node_id} in which these "
            "records were handed out is over: they are handed out again, to any member"
        )
        self._on_result(AcknowledgementResult(acquired.tp, batches, error))

    def _retry_at_s(self) -> Iterable[float]:
        return [self._lookup_at_s]


def _is_retriable(error: errors.BrokerError) -> bool:
    """Return whether a retry may help. As in Java it may after UNKNOWN_SERVER_ERROR too, which
    brokers send while a topic is deleted."""
    return error.retriable or error.code == errors.ErrorCode.UNKNOWN_SERVER_ERROR


# --- the consumer ---------------------------------------------------------------------------------

_Renewal: TypeAlias = tuple[ShareRecord, AcquiredPartition]
"""A record that was acknowledged with RENEW, and where it came from."""

Callback: TypeAlias = Callable[[TopicPartition, list[range], errors.KafkaError | None], object]


class ShareConsumer(arguments.ClientBase):
    """A member of a share group; `config` has Java's names, bootstrap.servers and group.id at
    least. Use it under `with`.

    One thread at a time may call it (ConsumerStateError says so), except `wakeup`. All methods
    raise ConsumerStateError after `close`, BrokerError for errors of brokers. Raises OptionError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._options = options = parse_share_consumer_settings(config)
        self._guard = SingleThreadGuard("ShareConsumer")
        self._metrics = ShareMetrics()
        self._cluster = Cluster(options.client, metrics=self._metrics.network)
        on_result = weakref.WeakMethod(self._on_result)  # else they would keep each other alive

        def report(result: AcknowledgementResult) -> None:
            """Pass a result to the consumer, unless it was garbage-collected."""
            if method := on_result():
                method(result)

        self._fetcher = ShareFetcher(self._cluster, options, report, self._metrics)
        self._member = self._new_member()
        self._topics: frozenset[str] = frozenset()
        self._missing_topics = MissingTopicsLookup(self._cluster, options.group_id)
        self._polled: list[PolledRecords] = []
        """What the last poll has returned, without what was acknowledged and submitted."""
        self._renewing: dict[tuple[TopicPartition, int], _Renewal] = {}
        """By partition and offset: records whose RENEW the leader has not answered yet."""
        self._renewed: list[_Renewal] = []
        """Records that the next poll returns again."""
        self._results: list[AcknowledgementResult] = []
        """Results that were not reported to the user yet."""
        self._callback: Callback | None = None
        self._error_of_next_poll: errors.KafkaError | None = None
        self._wakeup = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        self.close(CLOSE_TIMEOUT_S if exc_type is None else CLOSE_AFTER_ERROR_S)

    def __repr__(self) -> str:
        return f"<ShareConsumer of group {self._options.group_id!r}>"

    # --- subscription -----------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics together with the other members of group.id. They replace those of an
        earlier call.

        `topics` are names, or one name; there are no patterns. A group starts at the end of a new
        partition, or where its share.auto.offset.reset says.
        """
        with self._guard:
            chosen = (
                [topics] if isinstance(topics, str) else arguments.checked_names(topics, "topics")
            )
            names = frozenset(map(checked_topic, chosen))
            if not names:
                raise errors.OptionError("topics is empty: call unsubscribe to read nothing")
            self._topics = names
            self._missing_topics.restart()
            self._member.subscribe(names)

    def subscription(self) -> frozenset[str]:
        """Return the topics of `subscribe`."""
        with self._guard:
            return self._topics

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the group has assigned to this member. Other members may read
        them, too."""
        with self._guard:
            return self._member.assignment

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group. The consumer stays usable."""
        with self._guard:
            self._leave(self._cluster.deadline())
            self._topics = frozenset()
            self._member = self._new_member()

    def _new_member(self) -> ShareMember:
        """Return a member of the group that has not joined; its `poll` joins."""
        wake = self._fetcher.wake
        return ShareMember(self._options, RebalanceHooks(), self._cluster, wake, self._metrics)

    # --- reading ----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[ShareRecord]:
        """Return the next records that the group delivers to this member: about max.poll.records,
        or more if batches are larger. Returns none if none came within `timeout_s`.

        This member has acquired them for `acquisition_lock_timeout_ms`. With implicit
        acknowledgement the next call accepts them; with explicit they must be acknowledged before
        it (ConsumerStateError). Also serves the group: call it at least every max.poll.interval.ms.
        Raises errors.CorruptRecordError for records that cannot be decoded: they are rejected.
        """
        is_polling = False
        try:
            with self._guard:
                deadline = Deadline(seconds_of(timeout_s) * 1000)
                if not self._topics:
                    raise errors.ConsumerStateError(
                        "there is nothing to read: call subscribe(topics) first"
                    )
                self._accept_if_implicit()
                require_all_acknowledged(self._polled)
                self._submit_acknowledgements()
                is_polling = True
                self._report_results()
                self._metrics.poll_begins()
                records = self._poll(deadline)
                self._metrics.poll_ends()
                return records
        except BaseException:  # also Ctrl-C at the end: the user does not get these records
            if is_polling and not self._guard.is_closed:
                self._release_polled()
            raise

    def _release_polled(self) -> None:
        """Release the records of the last poll, because the user did not get them."""
        for polled in self._polled:
            polled.acknowledge_rest(AcknowledgeType.RELEASE)
        self._submit_acknowledgements()

    def _poll(self, deadline: Deadline) -> list[ShareRecord]:
        """Send requests and receive responses until there are records or the deadline has passed.
        Return the records."""
        if self._guard.is_closed:
            raise errors.ConsumerStateError(
                "this ShareConsumer was closed by a callback, inside poll"
            )
        if self._error_of_next_poll is not None:
            error, self._error_of_next_poll = self._error_of_next_poll, None
            raise error
        has_received = False
        while True:
            if self._wakeup.is_set():
                self._wakeup.clear()
                raise errors.WakeupError("poll was ended by wakeup()")
            if self._fetcher.failures:
                raise self._fetcher.failures.pop(0)
            if self._missing_topics.is_due:
                assigned_topics = {tp.topic for tp in self._member.assignment}
                limit = Deadline(max(deadline.remaining_s() * 1000, MIN_RESPONSE_MS))
                self._missing_topics.look_up(self._topics - assigned_topics, limit)
            self._member.poll()
            self._fetcher.assign(self._member.partitions, self._member.metadata.member_id)
            # As in Java, a poll that renews records fetches no new ones: renewed ones come first.
            is_renewing = bool(self._renewing)
            records = [] if is_renewing else self._take_renewed() or self._collect(deadline)
            if records:
                self._fetcher.send_acknowledgements()
                return records
            if has_received and deadline.expired:
                return []
            if is_renewing:
                self._fetcher.send_acknowledgements()
            else:
                self._fetcher.fetch(deadline)
            # A long poll calls the member often enough to restart max.poll.interval.ms.
            restart_s = self._options.max_poll_interval_ms / 1000 / 3
            self._fetcher.receive(min(deadline.remaining_s(), self._fetcher.step_wait_s, restart_s))
            has_received = True

    def _collect(self, deadline: Deadline) -> list[ShareRecord]:
        """Decode and return acquired records, at most max.poll.records. Acknowledge gaps (offsets
        without a record). A damaged batch ends this; its error is raised here if there are no
        records before it, else by the next poll."""
        collected: list[ShareRecord] = []
        acquired = self._fetcher.acquired
        while acquired and len(collected) < self._options.max_poll_records:
            source = acquired[0]
            try:
                records, size_bytes, gaps = source.next(deadline)
            except DamagedError as damage:
                acquired.popleft()
                self._fetcher.add_acknowledgements(source, damage.batches)
                if not collected:
                    raise damage.error from None
                self._error_of_next_poll = damage.error
                break
            except BaseException:  # Ctrl-C: it is not known which records of it are decoded
                self._fetcher.release(source)
                raise
            self._fetcher.add_acknowledgements(source, gaps)
            if records:
                self._polled.append(PolledRecords(source, records))
                collected += records
                self._metrics.consumed(source.tp.topic, len(records), size_bytes)
            if source.is_exhausted:
                acquired.popleft()
            elif deadline.expired:
                break
        return collected

    def _take_renewed(self) -> list[ShareRecord]:
        """Return the records whose locks the brokers have renewed, which the user must acknowledge
        again."""
        renewed, self._renewed = self._renewed, []
        found: list[ShareRecord] = []
        for source, pairs in groupby(renewed, lambda record_and_source: record_and_source[1]):
            records = sorted((record for record, _ in pairs), key=lambda record: record.offset)
            self._polled.append(PolledRecords(source, records))
            found += records
        return found

    def wakeup(self) -> None:
        """Make the waiting `poll`, or else the next one, raise WakeupError. May be called from
        any thread or signal handler."""
        self._wakeup.set()
        self._fetcher.wake()

    # --- acknowledging ----------------------------------------------------------------------

    def acknowledge(
        self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Acknowledge a record of the last poll: it is processed (ACCEPT), must be handed out again
        (RELEASE), cannot be processed (REJECT), or takes longer (RENEW, Kafka 4.2). After RENEW the
        next poll returns the record again, and no new ones.

        The next poll, commit or close sends it. For share.acknowledgement.mode=explicit.
        """
        if not isinstance(record, ShareRecord):
            raise errors.OptionError(
                f"record is a ShareRecord that poll has returned, got {record!r}"
            )
        tp = TopicPartition(record.topic, record.partition)
        self.acknowledge_offset(tp, record.offset, kind)

    def acknowledge_offset(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Acknowledge the record of the last poll at this offset, for example one that could not be
        decoded. For share.acknowledgement.mode=explicit."""
        with self._guard:
            if self._options.acknowledgement_mode != "explicit":
                raise errors.ConsumerStateError(
                    "records are acknowledged by the next poll, or by commit: to acknowledge "
                    "single ones set share.acknowledgement.mode=explicit"
                )
            if not isinstance(kind, AcknowledgeType):
                raise errors.OptionError(f"kind is an AcknowledgeType such as ACCEPT, got {kind!r}")
            tp = arguments.checked_partition(partition, "partition")
            offset = arguments.checked_int(offset, "offset")
            if kind == AcknowledgeType.RENEW:
                self._require_renewals(tp)
            if not any(
                polled.tp == tp and polled.acknowledge(offset, kind) for polled in self._polled
            ):
                raise errors.ConsumerStateError(
                    f"the last poll has returned no record {offset} of {partition}, or its "
                    "acknowledgement is sent already (the next poll returns a renewed record)"
                )

    def _require_renewals(self, tp: TopicPartition) -> None:
        """Raise UnsupportedVersionError if the leader of the partition does not know RENEW."""
        if any(polled.tp == tp and polled.source.session.cannot_renew for polled in self._polled):
            raise errors.UnsupportedVersionError(
                f"RENEW needs Kafka 4.2 or later, which the leader of {tp} is not: acknowledge "
                "otherwise, or raise share.record.lock.duration.ms of the group"
            )

    def commit(self, timeout_s: float | None = None, *, asynchronous: bool = False) -> None:
        """Send all acknowledgements, and wait for the brokers' responses. With implicit
        acknowledgement this accepts the records of the last poll.

        Raises AcknowledgeError with the error of each partition whose acknowledgements have failed,
        so that its records are handed out again; KafkaTimeoutError after `timeout_s`
        (default.api.timeout.ms). With `asynchronous` it does not wait: the callback gets the
        result; without a callback a failure is logged as a warning.
        """
        arguments.checked_flag(asynchronous, "asynchronous")
        with self._guard:
            self._report_results()
            self._accept_if_implicit()
            self._submit_acknowledgements()
            if asynchronous:
                self._fetcher.send_acknowledgements()
                return
            deadline = deadline_of(timeout_s) or self._cluster.deadline()
            self._await_responses(deadline.with_close_signal(self._cluster.close_signal))
            failed: dict[tuple[str, int], errors.KafkaError] = {
                result.tp: result.error for result in self._results if result.error is not None
            }
            self._report_results(warn=False)
            if failed:
                raise errors.AcknowledgeError(failed)

    def _await_responses(self, deadline: Deadline) -> None:
        """Wait until the responses to all acknowledgements have arrived. Raises
        KafkaTimeoutError."""
        while self._fetcher.has_unanswered:
            if deadline.expired:
                raise errors.KafkaTimeoutError(
                    f"no response to acknowledgements of share group {self._options.group_id!r} "
                    f"within {deadline.text}: whether the brokers have them is not known"
                )
            self._fetcher.send_acknowledgements()
            self._fetcher.receive(min(deadline.remaining_s(), self._fetcher.step_wait_s))

    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """Set the function that poll, commit or close calls as `callback(partition, offsets,
        error)` for each partition whose leader has answered to acknowledgements. `offsets` is a
        list of ranges; `error` is None if the leader has accepted them."""
        with self._guard:
            self._callback = arguments.checked_function(callback, "callback")

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """The time in ms for which this member acquires records, which is
        share.record.lock.duration.ms of the group. None before the first response."""
        return self._fetcher.lock_timeout_ms

    def _accept_if_implicit(self) -> None:
        """With implicit acknowledgement accept the records of the last poll."""
        if self._options.acknowledgement_mode == "implicit":
            for polled in self._polled:
                polled.acknowledge_rest(AcknowledgeType.ACCEPT)

    def _submit_acknowledgements(self) -> None:
        """Pass the acknowledgements to the fetcher, which sends them with its next requests."""
        for polled in self._polled:
            batches, renewals = polled.take_acknowledged()
            for record in renewals:
                self._renewing[polled.tp, record.offset] = record, polled.source
            self._fetcher.add_acknowledgements(polled.source, batches)
        self._polled = [polled for polled in self._polled if polled.unacknowledged_count]

    def _on_result(self, result: AcknowledgementResult) -> None:
        """Keep a result until it is reported to the user. If records were renewed, let the next
        poll return them."""
        count = sum(len(offsets) for offsets in acknowledged_ranges(result.batches))
        if count:
            self._metrics.acknowledged(count, failed=result.error is not None)
        for offset in renewed_offsets(result.batches):
            renewal = self._renewing.pop((result.tp, offset), None)
            if renewal is not None and result.error is None:
                self._renewed.append(renewal)
        self._results.append(result)

    def _report_results(self, *, warn: bool = True) -> None:
        """Call the user's callback for results, or (with `warn`) log failures."""
        while self._results:
            tp, batches, error = self._results.pop(0)
            if self._callback is not None:
                offsets = acknowledged_ranges(batches)
                if offsets:
                    self._callback(tp, offsets, error)
            elif error is not None and warn:
                log.warning("acknowledgements of %s failed: %s", tp, error)

    def metrics(self) -> Metrics:
        """Return metrics under Kafka's names (see `Consumer.metrics`). May be called from any
        thread; sends no request."""
        return self._metrics.share_figures()

    # --- the end ----------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send all acknowledgements, release other records, leave the group, close all connections.
        May be called again.

        As in Java this does not accept the records of the last poll: call `commit` before.
        """
        limit = Deadline(seconds_of(timeout_s) * 1000, self._cluster.close_signal)
        if self._guard.is_unusable:
            return
        with self._guard:
            try:
                self._leave(limit)
            finally:
                self._guard.is_closed = True
                self._fetcher.close()
                self._cluster.close()

    def _leave(self, deadline: Deadline) -> None:
        """Send all acknowledgements, close the sessions, leave the group. Failures are logged."""
        self._submit_acknowledgements()
        self._fetcher.drop_acquired()
        self._polled = []
        try:
            while self._fetcher.has_sessions and not deadline.expired:
                self._fetcher.close_sessions()
                self._fetcher.receive(min(deadline.remaining_s(), self._fetcher.step_wait_s))
                self._fetcher.drop_acquired()
        except errors.KafkaError as error:
            log.warning("share group %s: while leaving: %s", self._options.group_id, error)
        finally:
            self._member.close(deadline)
            self._fetcher.assign({}, "")
            self._renewing.clear()
            self._renewed.clear()
        self._report_results()
