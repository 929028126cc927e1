"""Kafka's share consumer (KIP-932, Kafka 4.1): many consumers work on the same partitions, as on a
queue, and say of each record whether it is done with.

    with ShareConsumer({"bootstrap.servers": "localhost:9092", "group.id": "work"}) as consumer:
        consumer.subscribe(["jobs"])
        while True:
            for record in consumer.poll(1.0):
                ...
            consumer.commit()

Names, defaults and rules are those of Java's KafkaShareConsumer. Keys and values are bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Self, TypeAlias

from sparkkafka.client.arguments import (
    NotPickled,
    checked_flag,
    checked_function,
    checked_int,
    checked_names,
    checked_partition,
)
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer import (
    CLOSE_AFTER_ERROR_S,
    CLOSE_TIMEOUT_S,
    SingleThreadGuard,
)
from sparkkafka.client.deadline import Deadline, deadline_of, seconds_of
from sparkkafka.client.metrics.fetching import ShareMetrics
from sparkkafka.client.metrics.sampled import Metrics
from sparkkafka.client.share.acknowledgements import (
    AcknowledgeType,
    Acquired,
    DamagedError,
    Delivery,
    ShareRecord,
    must_be_decided,
    offsets_of,
    renewed_offsets,
)
from sparkkafka.client.share.share_fetcher import Outcome, ShareFetcher
from sparkkafka.client.share.share_membership import ShareMember
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.config.client_settings import parse_share_consumer_settings
from sparkkafka.errors import (
    AcknowledgeError,
    ConsumerStateError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnsupportedVersionError,
    WakeupError,
)

log = logging.getLogger(__name__)

_Renewal: TypeAlias = tuple[ShareRecord, Acquired]
Callback: TypeAlias = Callable[[TopicPartition, list[range], KafkaError | None], object]


class ShareConsumer(NotPickled):
    """A member of a share group; `config` has Java's names, bootstrap.servers and group.id at
    least. Use it under `with`.

    One thread at a time may call it (ConsumerStateError says so), except `wakeup`. All methods
    raise ConsumerStateError after `close`, BrokerError for what brokers refuse. Raises OptionError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._options = options = parse_share_consumer_settings(config)
        self._guard = SingleThreadGuard("ShareConsumer")
        self._metrics = ShareMetrics()
        self._cluster = Cluster(options.client, metrics=self._metrics.network)
        self._fetcher = ShareFetcher(self._cluster, options, self._note, self._metrics)
        self._member = ShareMember(options, self._cluster, self._fetcher.wake, self._metrics)
        self._topics: frozenset[str] = frozenset()
        self._deliveries: list[Delivery] = []
        self._renewing: dict[tuple[TopicPartition, int], _Renewal] = {}
        self._renewed: list[_Renewal] = []
        self._outcomes: list[Outcome] = []
        self._callback: Callback | None = None
        self._late_error: KafkaError | None = None
        self._wakeup = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        self.close(CLOSE_TIMEOUT_S if kind is None else CLOSE_AFTER_ERROR_S)

    def __repr__(self) -> str:
        return f"<ShareConsumer of group {self._options.group_id!r}>"

    # --- what to read -----------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics together with the other members of group.id. Replaces an earlier list.

        A group begins at the end of a new partition, or where its share.auto.offset.reset says.
        """
        with self._guard:
            wanted = frozenset(checked_topic(name) for name in checked_names(topics, "topics"))
            if not wanted:
                raise OptionError("topics is empty: call unsubscribe to read nothing")
            self._topics = wanted
            self._member.subscribe(wanted)

    def subscription(self) -> frozenset[str]:
        """The topics of `subscribe`."""
        with self._guard:
            return self._topics

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the brokers let this member read, perhaps together with others."""
        with self._guard:
            return frozenset(self._member.partitions)

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group. As `close`, the consumer stays usable."""
        with self._guard:
            self._leave(self._cluster.deadline())
            self._topics = frozenset()

    # --- reading ----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[ShareRecord]:
        """The next records that the group hands out to this member; empty if none came within
        `timeout_s`. Some max.poll.records; more if batches are larger.

        They are this member's for `acquisition_lock_timeout_ms`. With implicit acknowledgement this
        call accepts the records of the last one; with explicit all of them must be acknowledged
        (ConsumerStateError). Also serves the group: call it at least every max.poll.interval.ms.
        Raises CorruptRecordError for records that cannot be decoded: the group gets rid of them.
        """
        is_polling = False
        try:
            with self._guard:
                deadline = Deadline(seconds_of(timeout_s) * 1000)
                if not self._topics:
                    raise ConsumerStateError(
                        "there is nothing to read: call subscribe(topics) first"
                    )
                self._settle_last()
                is_polling = True
                self._tell()
                self._metrics.poll_begins()
                found = self._poll(deadline)
                self._metrics.poll_ends()
                return found
        except BaseException:  # also Ctrl-C on the way out: the user does not get these records
            if is_polling and not self._guard.is_closed:
                self._release()
            raise

    def _poll(self, deadline: Deadline) -> list[ShareRecord]:
        if self._guard.is_closed:
            raise ConsumerStateError("this ShareConsumer was closed by a callback, inside poll")
        if self._late_error is not None:
            error, self._late_error = self._late_error, None
            raise error
        has_looked = False
        while True:
            if self._wakeup.is_set():
                self._wakeup.clear()
                raise WakeupError("poll was ended by wakeup()")
            if self._fetcher.failures:
                raise self._fetcher.failures.pop(0)
            self._member.poll()
            self._fetcher.read(self._member.partitions, self._member.member_id)
            # As in Java, a poll that renews records fetches nothing new: those come first.
            is_renewing = bool(self._renewing)
            found = [] if is_renewing else self._take_renewed() or self._collect(deadline)
            if found:
                self._fetcher.acknowledge()
                return found
            if has_looked and deadline.expired:
                return []
            if is_renewing:
                self._fetcher.acknowledge()
            else:
                self._fetcher.fetch(deadline)
            mark_polled_s = self._options.max_poll_interval_ms / 3_000
            self._fetcher.receive(
                min(deadline.remaining_s(), self._fetcher.next_step_s, mark_polled_s)
            )
            has_looked = True

    def _collect(self, deadline: Deadline) -> list[ShareRecord]:
        """Decode acquired records, at most max.poll.records. Gaps, offsets without a record, are
        acknowledged as such; a damaged batch ends the poll."""
        found: list[ShareRecord] = []
        acquired = self._fetcher.acquired
        while acquired and len(found) < self._options.max_poll_records:
            source = acquired[0]
            try:
                rows, offsets, gaps = source.next(deadline)
            except DamagedError as damage:
                acquired.popleft()
                self._fetcher.settle(source, damage.settled)
                if not found:
                    raise damage.error from None
                self._late_error = damage.error
                break
            except BaseException:  # Ctrl-C: what is decoded and what is not cannot be told apart
                self._fetcher.release(source)
                raise
            self._fetcher.settle(source, gaps)
            if len(offsets):
                records = [record for row in rows for record in row.records()]
                self._deliveries.append(Delivery(source.tp, source, records))
                found += records
                size_bytes = sum(row.size_bytes for row in rows)
                self._metrics.handed_out(source.tp.topic, len(offsets), size_bytes)
            if source.is_over:
                acquired.popleft()
            elif deadline.expired:
                break
        return found

    def _take_renewed(self) -> list[ShareRecord]:
        """The records whose time the brokers have renewed: they are to be acknowledged again."""
        renewed, self._renewed = self._renewed, []
        found: list[ShareRecord] = []
        for source, rows in groupby(renewed, lambda renewal: renewal[1]):
            records = sorted((record for record, _ in rows), key=lambda record: record.offset)
            self._deliveries.append(Delivery(source.tp, source, records))
            found += records
        return found

    def wakeup(self) -> None:
        """Let the `poll` that waits now, or else the next one, raise WakeupError. From any thread
        or signal handler."""
        self._wakeup.set()
        self._fetcher.wake()

    # --- acknowledging ----------------------------------------------------------------------

    def acknowledge(
        self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Say of a record of the last poll that it is done with (ACCEPT), that it is to be handed
        out again (RELEASE), that it cannot be processed (REJECT), or that it takes longer (RENEW,
        Kafka 4.2): then the next poll returns it again, and nothing new.

        It is sent with the next poll, commit or close. For share.acknowledgement.mode=explicit.
        """
        if not isinstance(record, ShareRecord):
            raise OptionError(f"record is a ShareRecord that poll has returned, got {record!r}")
        tp = TopicPartition(record.topic, record.partition)
        self.acknowledge_offset(tp, record.offset, kind)

    def acknowledge_offset(
        self,
        partition: TopicPartition,
        offset: int,
        kind: AcknowledgeType = AcknowledgeType.ACCEPT,
    ) -> None:
        """As `acknowledge`, for the record at this offset."""
        with self._guard:
            if self._options.acknowledgement_mode != "explicit":
                raise ConsumerStateError(
                    "records are acknowledged by the next poll, or by commit: to acknowledge "
                    "single ones set share.acknowledgement.mode=explicit"
                )
            if not isinstance(kind, AcknowledgeType):
                raise OptionError(f"kind is an AcknowledgeType such as ACCEPT, got {kind!r}")
            wanted = checked_partition(partition, "partition")
            checked_int(offset, "offset")
            if kind == AcknowledgeType.RENEW:
                self._must_renew(wanted)
            if not any(row.tp == wanted and row.decide(offset, kind) for row in self._deliveries):
                raise ConsumerStateError(
                    f"the last poll has returned no record {offset} of {partition}, or its "
                    "acknowledgement is sent already (the next poll returns a renewed record)"
                )

    def _must_renew(self, tp: TopicPartition) -> None:
        if any(row.tp == tp and row.source.session.cannot_renew for row in self._deliveries):
            raise UnsupportedVersionError(
                f"RENEW needs Kafka 4.2 or later, which the leader of {tp} is not: acknowledge "
                "otherwise, or raise share.record.lock.duration.ms of the group"
            )

    def commit(self, timeout_s: float | None = None, *, asynchronous: bool = False) -> None:
        """Send the acknowledgements that there are, and wait until the brokers have them. With
        implicit acknowledgement the records of the last poll are accepted.

        Raises AcknowledgeError with the error of each partition whose records are handed out again;
        KafkaTimeoutError after `timeout_s` (default.api.timeout.ms). `asynchronous` waits for
        nothing: the callback is told, or a failure is a warning in the log.
        """
        checked_flag(asynchronous, "asynchronous")
        with self._guard:
            self._tell()
            self._decide_implicitly()
            self._hand_over()
            if asynchronous:
                self._fetcher.acknowledge()
                return
            deadline = deadline_of(timeout_s) or self._cluster.deadline()
            self._await_answers(deadline)
            failed: dict[tuple[str, int], KafkaError] = {
                row.tp: row.error for row in self._outcomes if row.error is not None
            }
            self._tell(warn=False)
            if failed:
                raise AcknowledgeError(failed)

    def _await_answers(self, deadline: Deadline) -> None:
        while self._fetcher.has_unsent:
            if deadline.expired:
                raise KafkaTimeoutError(
                    f"no answer to acknowledgements of share group {self._options.group_id!r} "
                    f"within {deadline.text}: whether the brokers have them is not known"
                )
            self._fetcher.acknowledge()
            self._fetcher.receive(min(deadline.remaining_s(), self._fetcher.next_step_s))

    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """`callback(partition, offsets, error)` is called for each partition whose leader has
        answered to acknowledgements, inside poll, commit or close: `offsets` is a list of ranges,
        `error` None if the leader has them."""
        with self._guard:
            self._callback = checked_function(callback, "callback")

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long records are this member's after poll, as the brokers have said last; None before
        the first answer. It is share.record.lock.duration.ms of the group."""
        return self._fetcher.lock_timeout_ms

    def _settle_last(self) -> None:
        self._decide_implicitly()
        must_be_decided(self._deliveries)
        self._hand_over()

    def _decide_implicitly(self) -> None:
        if self._options.acknowledgement_mode == "implicit":
            for delivery in self._deliveries:
                delivery.decide_all(AcknowledgeType.ACCEPT)

    def _hand_over(self) -> None:
        """What is decided goes to the sessions."""
        for delivery in self._deliveries:
            batches, renewals = delivery.take()
            for record in renewals:
                self._renewing[delivery.tp, record.offset] = record, delivery.source
            self._fetcher.settle(delivery.source, batches)
        self._deliveries = [row for row in self._deliveries if row.undecided]

    def _release(self) -> None:
        for delivery in self._deliveries:
            delivery.decide_all(AcknowledgeType.RELEASE)
        self._hand_over()

    def _note(self, outcome: Outcome) -> None:
        count = sum(len(row) for row in offsets_of(outcome.batches))
        if count:
            self._metrics.acknowledged(count, failed=outcome.error is not None)
        for offset in renewed_offsets(outcome.batches):
            renewal = self._renewing.pop((outcome.tp, offset), None)
            if renewal is not None and outcome.error is None:
                self._renewed.append(renewal)
        self._outcomes.append(outcome)

    def _tell(self, *, warn: bool = True) -> None:
        """Tell the user what became of acknowledgements."""
        while self._outcomes:
            tp, batches, error = self._outcomes.pop(0)
            if self._callback is not None:
                offsets = offsets_of(batches)
                if offsets:
                    self._callback(tp, offsets, error)
            elif error is not None and warn:
                log.warning("acknowledgements of %s failed: %s", tp, error)

    def metrics(self) -> Metrics:
        """What this consumer has done: figures under Kafka's names, as of `Consumer.metrics`. From
        any thread; asks no broker."""
        return self._metrics.share_figures()

    # --- the end ----------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements that there are, give back what is not acknowledged, leave the
        group, close all connections. May be called again.

        As in Java, the records of the last poll are not accepted by this: call `commit` before.
        """
        limit = Deadline(seconds_of(timeout_s) * 1000)
        if self._guard.is_over:
            return
        with self._guard:
            try:
                self._leave(limit)
            finally:
                self._guard.is_closed = True
                self._fetcher.close()
                self._cluster.close()

    def _leave(self, deadline: Deadline) -> None:
        self._hand_over()
        self._fetcher.drop_acquired()
        self._deliveries = []
        try:
            self._end_sessions(deadline)
        except KafkaError as error:
            log.warning("share group %s: while leaving: %s", self._options.group_id, error)
        finally:
            self._member.close(deadline)
            self._fetcher.read({}, "")
            self._renewing.clear()
            self._renewed.clear()
        self._tell()

    def _end_sessions(self, deadline: Deadline) -> None:
        while self._fetcher.has_sessions and not deadline.expired:
            self._fetcher.close_sessions()
            self._fetcher.receive(min(deadline.remaining_s(), self._fetcher.next_step_s))
            self._fetcher.drop_acquired()
