"""Acquires records from all leaders concurrently, and sends them the acknowledgements.

Each leader has a connection and a share session (Java's ShareSessionHandler), with one request in
flight: a ShareFetch, which also carries acknowledgements, or a ShareAcknowledge. If a session is
lost (connection broken, broker restarted), acknowledgements in flight have failed, and the leader
gives the records that this member had acquired to other members. (Java's
ShareConsumeRequestManager.)
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import no_leader_error
from sparkkafka.client.consumer.fetched_records import FetchedRecords, ResponseBuffer, take_batches
from sparkkafka.client.consumer.leader_connections import LeaderConnection, LeaderFetcher
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.group.consumer_group_membership import NEEDS_SHARE
from sparkkafka.client.metrics import ShareMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.share.acknowledgements import (
    AcquiredPartition,
    AcquiredRange,
    is_renewal,
    sorted_by_offset,
    sorted_ranges,
    without_renewals,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ShareConsumerOptions
from sparkkafka.protocol.columns.columns import Selection
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
        fetched = self._fetched_records(tp, row, ranges, buffer)
        self.acquired.append(AcquiredPartition(tp, session, fetched, ranges))
        return len(row.records) > 0

    def _fetched_records(
        self, tp: TopicPartition, row: Any, ranges: list[AcquiredRange], buffer: ResponseBuffer
    ) -> FetchedRecords:
        """Return the records of a partition in the response. They are not decoded yet."""
        options = self._options.fetch
        start, end = ranges[0].first_offset, ranges[-1].last_offset + 1
        taken, damage = take_batches(tp, row, options, start, end)
        return FetchedRecords(
            tp,
            [] if taken is None else taken.visible,
            start,
            start if taken is None else taken.next_offset,
            buffer,
            damage,
            last_epoch=NO_LEADER_EPOCH,
            selection=Selection(start_offset=start, end_offset=end),
            max_payload_bytes=options.max_decompressed_batch_bytes,
        )

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
