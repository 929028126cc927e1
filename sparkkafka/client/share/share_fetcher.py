"""Acquires records from all leaders concurrently, and sends them the acknowledgements.

Each leader has a connection and a share session (Java's ShareSessionHandler), with one request in
flight: a ShareFetch, which also carries acknowledgements, or a ShareAcknowledge. When a session is
lost (connection broken, broker restarted), the leader gives the records that this member had
acquired to other members: acknowledgements that were in flight have failed then. Java's
ShareConsumeRequestManager.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import no_leader
from sparkkafka.client.consumer.fetched_records import (
    AnswerBuffer,
    FetchedRecords,
    take_batches,
    take_before_damage,
)
from sparkkafka.client.consumer.leader_connections import LeaderConnection
from sparkkafka.client.deadline import Deadline, Waker
from sparkkafka.client.metrics.fetching import ShareMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.share.acknowledgements import (
    Acquired,
    checked_ranges,
    in_order,
    renews,
    without_renewals,
)
from sparkkafka.client.share.share_membership import NEEDS_KAFKA
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ShareConsumerOptions
from sparkkafka.errors import (
    BrokerError,
    CorruptRecordError,
    DecodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    UnsupportedVersionError,
)
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

OPEN_EPOCH = 0
CLOSE_EPOCH = -1
LAST_EPOCH = 2**31 - 1

WHOLE_BATCHES, RECORD_LIMIT = 0, 1  # of share_acquire_mode
ACQUIRE_MODE_VERSION = RENEW_VERSION = 2

Batches = list[AcknowledgementBatch]
TopicIds = Mapping[TopicPartition, uuid.UUID]


class ShareSession:
    """One leader: its connection, its session, and what is to be said to it."""

    def __init__(self, leader: LeaderConnection, options: ShareConsumerOptions) -> None:
        self.leader = leader
        self._options = options
        self.epoch = OPEN_EPOCH
        self.generation = 0
        """Counts the sessions."""
        self.partitions: TopicIds = {}
        """Those that the broker has in the session."""
        self.ids: dict[TopicPartition, uuid.UUID] = {}
        """Ids of all topics that were read, for acknowledgements and answers."""
        self.unsent: dict[TopicPartition, Batches] = {}
        self.sent: dict[TopicPartition, Batches] = {}
        self.request: ShareFetchRequest | ShareAcknowledgeRequest | None = None
        """The one in flight."""

    @property
    def node_id(self) -> int:
        return self.leader.node_id

    @property
    def is_fetch(self) -> bool:
        return isinstance(self.request, ShareFetchRequest)

    def end(self) -> None:
        """The broker has closed it, or forgotten it."""
        self.epoch = OPEN_EPOCH
        self.generation += 1
        self.partitions = {}

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def lose(self) -> dict[TopicPartition, Batches]:
        """Returns the acknowledgements that are lost with it."""
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
        connection = self.leader.connection
        if connection is None or not connection.is_open:
            return False
        return not connection.supports(ShareAcknowledgeRequest, RENEW_VERSION)

    def fetch_request(
        self, connection: Connection, member_id: str, wanted: TopicIds
    ) -> ShareFetchRequest:
        """For records of these partitions, with what there is to acknowledge of them."""
        options, known = self._options, self.partitions
        limits = options.acquire_mode == "record_limit"
        if not connection.supports(ShareFetchRequest, ACQUIRE_MODE_VERSION if limits else 0):
            needs = "share.acquire.mode=record_limit needs Kafka 4.2 or later"
            raise UnsupportedVersionError(f"{connection}: {needs if limits else NEEDS_KAFKA}")
        topics: dict[uuid.UUID, list[ShareFetchPartition]] = {}
        for tp, topic_id in wanted.items():
            if tp in self.unsent or known.get(tp) != topic_id:
                row = ShareFetchPartition(
                    partition_index=tp.partition,
                    acknowledgement_batches=in_order(self.unsent.get(tp, [])),
                )
                topics.setdefault(topic_id, []).append(row)
        gone: dict[uuid.UUID, list[int]] = {}
        for tp, topic_id in known.items():
            if wanted.get(tp) != topic_id:
                gone.setdefault(topic_id, []).append(tp.partition)
        self.partitions = dict(wanted)
        self.ids.update(wanted)
        return ShareFetchRequest(
            group_id=options.group_id,
            member_id=member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=options.fetch.fetch_max_wait_ms,
            min_bytes=options.fetch.fetch_min_bytes,
            max_bytes=options.fetch.fetch_max_bytes,
            max_records=options.max_poll_records,
            batch_size=options.max_poll_records,
            share_acquire_mode=RECORD_LIMIT if limits else WHOLE_BATCHES,
            topics=[ShareFetchTopic(topic_id=key, partitions=row) for key, row in topics.items()],
            forgotten_topics_data=[
                ForgottenShareTopic(topic_id=key, partitions=row) for key, row in gone.items()
            ],
        )

    def acknowledge_request(self, member_id: str, *, closes: bool) -> ShareAcknowledgeRequest:
        """All that there is to acknowledge; `closes` ends the session with it."""
        topics: dict[uuid.UUID, list[AcknowledgePartition]] = {}
        is_renewing = not closes and any(map(renews, chain(*self.unsent.values())))
        for tp, given in self.unsent.items():
            batches = [without_renewals(batch) for batch in given] if closes else given
            row = AcknowledgePartition(
                partition_index=tp.partition, acknowledgement_batches=in_order(batches)
            )
            topics.setdefault(self.ids[tp], []).append(row)
        return ShareAcknowledgeRequest(
            group_id=self._options.group_id,
            member_id=member_id,
            share_session_epoch=CLOSE_EPOCH if closes else self.epoch,
            is_renew_ack=is_renewing,
            topics=[AcknowledgeTopic(topic_id=key, partitions=row) for key, row in topics.items()],
        )


# The session is gone: a new one is opened.
_SESSION_OVER = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)

LOCK_OVER = (
    "the brokers had taken these records back: group.share.record.lock.duration.ms had passed "
    "since they were handed out. They may be handed out again: acknowledge sooner, or with RENEW, "
    "lower max.poll.records, or raise share.record.lock.duration.ms of the group"
)


class Outcome(NamedTuple):
    """What became of acknowledgements of a partition; `error` None: the leader has them."""

    tp: TopicPartition
    batches: Batches
    error: KafkaError | None


class ShareFetcher:
    """For one thread, except `wake`. `outcome` is called with what became of acknowledgements."""

    def __init__(
        self,
        cluster: Cluster,
        options: ShareConsumerOptions,
        outcome: Callable[[Outcome], None],
        metrics: ShareMetrics,
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._options = options
        self._outcome = outcome
        self._sessions: dict[int, ShareSession] = {}
        self._wanted: TopicIds = {}
        self._member_id = ""
        self._waker = Waker()
        self._backoff = cluster.backoff()
        self._next_lookup_s = 0.0
        self.acquired: deque[Acquired] = deque()
        """Records that no poll has returned yet."""
        self.failures: list[KafkaError] = []
        """What no retry can fix, for polls to raise; other partitions go on."""
        self.lock_timeout_ms: int | None = None
        """How long records stay this member's, as the brokers said last."""

    def read(self, partitions: TopicIds, member_id: str) -> None:
        """Read these from now on."""
        self._wanted = partitions
        self._member_id = member_id

    def wake(self) -> None:
        self._waker.wake()

    @property
    def has_unsent(self) -> bool:
        """Whether acknowledgements wait to be sent, or for their answer."""
        return any(row.unsent or row.sent for row in self._sessions.values())

    def close(self) -> None:
        for session in self._sessions.values():
            session.leader.close()
        self._sessions.clear()
        self.acquired.clear()
        self._waker.close()

    # --- asking -----------------------------------------------------------------------------

    def fetch(self, deadline: Deadline) -> None:
        """Ask all idle leaders for records, with what there is to acknowledge."""
        by_node: dict[int, dict[TopicPartition, uuid.UUID]] = {}
        unknown = set()
        for tp, topic_id in self._wanted.items():
            known = self._cluster.known_leader(tp)
            if known is None:
                unknown.add(tp.topic)
            else:
                by_node.setdefault(known.leader, {})[tp] = topic_id
        for node_id, session in self._sessions.items():
            if session.partitions or session.unsent:
                by_node.setdefault(node_id, {})
        for node_id, wanted in by_node.items():
            session = self._session(node_id)
            leavers = session.unsent.keys() - wanted.keys()
            if not wanted and not session.unsent:
                self._send(session, closes=True)
            elif leavers or not wanted:
                self._send(session)
            else:
                self._send(session, wanted)
        if unknown and time.monotonic() >= self._next_lookup_s:
            self._look_up(sorted(unknown), deadline)

    def acknowledge(self) -> None:
        """Send what is to be acknowledged to leaders that are idle."""
        for session in self._sessions.values():
            if session.unsent:
                self._send(session)

    def close_sessions(self) -> None:
        """Tell idle leaders that this member reads no more, with the last acknowledgements. What
        it has acquired besides goes to others."""
        for session in self._sessions.values():
            if session.request is None and session.epoch != OPEN_EPOCH:
                self._send(session, closes=True)

    @property
    def has_sessions(self) -> bool:
        return any(
            row.request is not None or row.epoch != OPEN_EPOCH for row in self._sessions.values()
        )

    def _session(self, node_id: int) -> ShareSession:
        session = self._sessions.get(node_id)
        if session is None:
            leader = LeaderConnection(node_id, self._cluster.backoff())
            session = self._sessions[node_id] = ShareSession(leader, self._options)
        return session

    def _send(
        self,
        session: ShareSession,
        wanted: TopicIds | None = None,
        *,
        closes: bool = False,
    ) -> None:
        """Acknowledge, and with `wanted` acquire records of these. Not while it is busy."""
        leader = session.leader
        if session.request is not None or time.monotonic() < leader.not_before_s:
            return
        try:
            broker = self._cluster.brokers.get(session.node_id)
            if broker is None:
                raise KafkaConnectionError(f"broker {session.node_id} is gone")
            connection = leader.open(broker, self._cluster.connections, self.wake)
            if connection is None:
                return
            if wanted is None:
                request: Any = session.acknowledge_request(self._member_id, closes=closes)
            else:
                request = session.fetch_request(connection, self._member_id, wanted)
            connection.send(request, Deadline(self._cluster.options.request_timeout_ms))
            session.request = request
            session.sent, session.unsent = session.unsent, {}
            leader.sent_s = time.monotonic()
        except KafkaError as error:
            self._failed(session, error)
        except BaseException:  # Ctrl-C: what was sent is not known
            self._lose(session, KafkaConnectionError(f"broker {session.node_id}: interrupted"))
            raise

    def _look_up(self, topics: list[str], deadline: Deadline) -> None:
        self._next_lookup_s = time.monotonic() + self._backoff.next_ms() / 1000
        limit = Deadline(max(deadline.remaining_s() * 1000, 1_000))
        try:
            self._cluster.look_up(topics, limit)
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("no metadata of %d topics: %s", len(topics), error)
            return
        leaderless = [
            tp
            for tp in self._wanted
            if tp.topic in topics and self._cluster.known_leader(tp) is None
        ]
        if leaderless:
            log.info("%s", no_leader(leaderless[0]))
        else:
            self._backoff.reset()

    # --- answers ----------------------------------------------------------------------------

    def receive(self, wait_s: float) -> None:
        """Wait until something arrives, and take the answers that are complete."""
        waiting = [
            (session, session.leader.connection)
            for session in self._sessions.values()
            if session.request is not None
            and session.leader.connection is not None
            and session.leader.connection.is_open
        ]
        ready = self._waker.wait(wait_s, [connection for _, connection in waiting])
        for session, connection in waiting:
            limit_s = self._cluster.options.request_timeout_ms / 1000
            limit_s += self._options.fetch.fetch_max_wait_ms / 1000 if session.is_fetch else 0
            try:
                answer = session.leader.read_answer(
                    is_ready=connection in ready, limit_s=limit_s, metrics=self._metrics
                )
                if answer is not None:
                    response, buffer = answer
                    try:
                        self._on_answer(session, connection, response, buffer)
                    finally:
                        buffer.release()
            except KafkaError as error:
                self._failed(session, error)
            except BaseException:  # Ctrl-C: the answer is lost
                self._lose(session, KafkaConnectionError(f"broker {session.node_id}: interrupted"))
                raise

    def _on_answer(
        self, session: ShareSession, connection: Connection, response: Any, buffer: AnswerBuffer
    ) -> None:
        leader, request = session.leader, session.request
        if request is None:
            return
        is_fetch = session.is_fetch
        where = f"{request.API_NAME} of share group {self._options.group_id!r} @ {connection}"
        session.request = None
        if is_fetch:
            self._metrics.throttled(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            leader.not_before_s = time.monotonic() + response.throttle_time_ms / 1000
        if response.acquisition_lock_timeout_ms > 0:
            self.lock_timeout_ms = response.acquisition_lock_timeout_ms
        code = response.error_code
        if code:
            self._refused(session, BrokerError(code, where, response.error_message))
            return
        if request.share_session_epoch == CLOSE_EPOCH:
            session.end()
        else:
            session.next_epoch()
        asked = {(topic_id, tp.partition): tp for tp, topic_id in session.ids.items()}
        is_new = False
        for topic in response.responses:
            for row in topic.partitions:
                tp = asked.pop((topic.topic_id, row.partition_index), None)
                if tp is None:
                    raise DecodeError(
                        f"{where}: the answer has partition {row.partition_index} of topic "
                        f"{topic.topic_id}, which was not asked for, or has it twice"
                    )
                ack_code = row.acknowledge_error_code if is_fetch else row.error_code
                batches = session.sent.pop(tp, None)
                if batches:
                    message = row.acknowledge_error_message if is_fetch else row.error_message
                    self._acknowledged(tp, batches, ack_code, f"{where} for {tp}", message)
                if is_fetch:
                    found = self._take_partition(session, tp, row, buffer, f"{where} for {tp}")
                    is_new = is_new or found
        # An answer to a fetch need not name what was acknowledged without an error.
        code = 0 if is_fetch else ErrorCode.UNKNOWN_SERVER_ERROR
        left_out, session.sent = session.sent, {}
        for tp, batches in left_out.items():
            message = f"the answer leaves {tp} out"
            self._acknowledged(tp, batches, code, where, message)
        leader.pace(self._options.fetch.fetch_max_wait_ms, has_news=is_new or not is_fetch)

    def _refused(self, session: ShareSession, error: BrokerError) -> None:
        """The broker has done nothing of a request. What was acquired before stays this member's,
        as long as there is the session."""
        if error.code in _SESSION_OVER:
            log.info("broker %d: opening a new share session: %s", session.node_id, error)
            self._lose(session, error)
        else:
            session.next_epoch()
            lost, session.sent = session.sent, {}
            for tp, batches in lost.items():
                self._outcome(Outcome(tp, batches, error))
            if _passes(error):
                log.warning("broker %d: asking again: %s", session.node_id, error)
                for tp in session.partitions:
                    self._cluster.forget(tp.topic)
            else:
                self.failures.append(error)
        session.leader.back_off()

    def _acknowledged(
        self, tp: TopicPartition, batches: Batches, code: int, where: str, message: str | None
    ) -> None:
        error = None
        if code:
            words = LOCK_OVER if code == ErrorCode.INVALID_RECORD_STATE else message
            error = BrokerError(code, where, words)
            self._cluster.note_error(tp, code)
        self._outcome(Outcome(tp, batches, error))

    def _take_partition(
        self, session: ShareSession, tp: TopicPartition, row: Any, buffer: AnswerBuffer, where: str
    ) -> bool:
        """Whether there is something to decode."""
        if row.error_code:
            error = BrokerError(row.error_code, where, row.error_message)
            self._cluster.note_error(tp, row.error_code)
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                self._cluster.forget(tp.topic)
            if _passes(error):
                log.info("%s: asking again: %s", tp, error)
            else:
                self.failures.append(error)
            session.leader.back_off()
            return False
        if not row.acquired_records:
            return False
        ranges = checked_ranges(row.acquired_records)
        if ranges is None:
            raise DecodeError(f"{where}: the acquired records are no ranges in order")
        self.acquired.append(Acquired(tp, session, self._fetched(tp, row, ranges, buffer), ranges))
        return len(row.records) > 0

    def _fetched(
        self, tp: TopicPartition, row: Any, ranges: list[Any], buffer: AnswerBuffer
    ) -> Any:
        options = self._options.fetch
        start, end = ranges[0].first_offset, ranges[-1].last_offset + 1
        damage: CorruptRecordError | None = None
        try:
            taken = take_batches(row, options, end)
        except CorruptRecordError as error:
            taken, damage = take_before_damage(tp, row, options, error, start)
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

    def _failed(self, session: ShareSession, error: KafkaError) -> None:
        """No answer from a leader: its session is lost, and is opened anew later."""
        self._lose(session, error)
        for tp in self._wanted:
            known = self._cluster.known_leader(tp)
            if known is not None and known.leader == session.node_id:
                self._cluster.forget(tp.topic)
        session.leader.close()
        session.leader.back_off()
        if not error.retriable:
            raise error
        level = logging.INFO if isinstance(error, KafkaConnectionError) else logging.WARNING
        log.log(level, "broker %d: trying again: %s", session.node_id, error)

    def _lose(self, session: ShareSession, error: KafkaError) -> None:
        """What was acquired in the session, and not returned by a poll, is others' again."""
        for acquired in [row for row in self.acquired if row.session is session]:
            acquired.drop()
            self.acquired.remove(acquired)
        if session.leader.connection is not None and session.request is not None:
            session.leader.close()  # an answer may come that nobody waits for
        for tp, batches in session.lose().items():
            self._outcome(Outcome(tp, batches, error))

    def drop_acquired(self) -> None:
        """Release what no poll has returned."""
        while self.acquired:
            self.release(self.acquired[0])

    def release(self, acquired: Acquired) -> None:
        """Others get what is left of it."""
        self.acquired.remove(acquired)
        self.settle(acquired, acquired.drop())

    def settle(self, acquired: Acquired, batches: Batches) -> None:
        """To be sent with the next request to the leader that handed them out."""
        session: ShareSession = acquired.session
        if not batches:
            return
        if session.generation == acquired.generation:
            session.unsent.setdefault(acquired.tp, []).extend(batches)
            return
        error = KafkaError(
            f"{acquired.tp}: the share session with broker {session.node_id} in which these "
            "records were handed out is over: they are handed out again, to any member"
        )
        self._outcome(Outcome(acquired.tp, batches, error))

    @property
    def next_step_s(self) -> float:
        """Seconds until something that waits may go on; at most one."""
        now_s = time.monotonic()
        times = [now_s + 1.0, self._next_lookup_s]
        times += [row.leader.not_before_s for row in self._sessions.values()]
        return max(0.0, min(time_s for time_s in times if time_s > now_s) - now_s)


def _passes(error: BrokerError) -> bool:
    """As in Java, also an error of which a broker does not say more: a topic may be deleted now."""
    return error.retriable or error.code == ErrorCode.UNKNOWN_SERVER_ERROR
