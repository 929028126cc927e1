"""Kafka's share consumer (KIP-932, Kafka 4.1): many consumers read the same partitions, as a queue,
and acknowledge each record.

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
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Self, TypeAlias

from sparkkafka import errors
from sparkkafka.client import arguments
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.topic_lookup import MissingTopicsLookup
from sparkkafka.client.consumer.consumer import (
    CLOSE_AFTER_ERROR_S,
    CLOSE_TIMEOUT_S,
    MIN_RESPONSE_MS,
    SingleThreadGuard,
)
from sparkkafka.client.deadline import Deadline, deadline_of, seconds_of
from sparkkafka.client.group.consumer_group_membership import ShareMember
from sparkkafka.client.group.membership import RebalanceHooks
from sparkkafka.client.metrics import Metrics, ShareMetrics
from sparkkafka.client.share import acknowledgements
from sparkkafka.client.share.share_fetcher import AcknowledgementResult, ShareFetcher
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.config.client_settings import parse_share_consumer_settings

log = logging.getLogger(__name__)

_Renewal: TypeAlias = tuple[acknowledgements.ShareRecord, acknowledgements.AcquiredPartition]
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
        self._polled: list[acknowledgements.PolledRecords] = []
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

    def poll(self, timeout_s: float) -> list[acknowledgements.ShareRecord]:
        """Return the next records that the group delivers to this member: about max.poll.records,
        or more if batches are larger. Returns none if none came within `timeout_s`.

        This member has acquired them for `acquisition_lock_timeout_ms`. With implicit
        acknowledgement the next call accepts them; with explicit they must be acknowledged before
        it (ConsumerStateError). Also serves the group: call it at least every max.poll.interval.ms.
        Raises CorruptRecordError for records that cannot be decoded: they are rejected.
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
                acknowledgements.require_all_acknowledged(self._polled)
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
            polled.acknowledge_rest(acknowledgements.AcknowledgeType.RELEASE)
        self._submit_acknowledgements()

    def _poll(self, deadline: Deadline) -> list[acknowledgements.ShareRecord]:
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

    def _collect(self, deadline: Deadline) -> list[acknowledgements.ShareRecord]:
        """Decode and return acquired records, at most max.poll.records. Acknowledge gaps (offsets
        without a record). A damaged batch ends this; its error is raised here if there are no
        records before it, else by the next poll."""
        collected: list[acknowledgements.ShareRecord] = []
        acquired = self._fetcher.acquired
        while acquired and len(collected) < self._options.max_poll_records:
            source = acquired[0]
            try:
                records, size_bytes, gaps = source.next(deadline)
            except acknowledgements.DamagedError as damage:
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
                self._polled.append(acknowledgements.PolledRecords(source.tp, source, records))
                collected += records
                self._metrics.handed_out(source.tp.topic, len(records), size_bytes)
            if source.is_exhausted:
                acquired.popleft()
            elif deadline.expired:
                break
        return collected

    def _take_renewed(self) -> list[acknowledgements.ShareRecord]:
        """Return the records whose locks the brokers have renewed, which the user must acknowledge
        again."""
        renewed, self._renewed = self._renewed, []
        found: list[acknowledgements.ShareRecord] = []
        for source, rows in groupby(renewed, lambda renewal: renewal[1]):  # where they came from
            records = sorted((record for record, _ in rows), key=lambda record: record.offset)
            self._polled.append(acknowledgements.PolledRecords(source.tp, source, records))
            found += records
        return found

    def wakeup(self) -> None:
        """Make the waiting `poll`, or else the next one, raise WakeupError. May be called from
        any thread or signal handler."""
        self._wakeup.set()
        self._fetcher.wake()

    # --- acknowledging ----------------------------------------------------------------------

    def acknowledge(
        self,
        record: acknowledgements.ShareRecord,
        kind: acknowledgements.AcknowledgeType = acknowledgements.AcknowledgeType.ACCEPT,
    ) -> None:
        """Acknowledge a record of the last poll: it is processed (ACCEPT), must be handed out again
        (RELEASE), cannot be processed (REJECT), or takes longer (RENEW, Kafka 4.2). After RENEW the
        next poll returns the record again, and no new ones.

        The next poll, commit or close sends it. For share.acknowledgement.mode=explicit.
        """
        if not isinstance(record, acknowledgements.ShareRecord):
            raise errors.OptionError(
                f"record is a ShareRecord that poll has returned, got {record!r}"
            )
        tp = TopicPartition(record.topic, record.partition)
        self.acknowledge_offset(tp, record.offset, kind)

    def acknowledge_offset(
        self,
        partition: TopicPartition,
        offset: int,
        kind: acknowledgements.AcknowledgeType = acknowledgements.AcknowledgeType.ACCEPT,
    ) -> None:
        """Acknowledge the record of the last poll at this offset, for example one that could not be
        decoded. For share.acknowledgement.mode=explicit."""
        with self._guard:
            if self._options.acknowledgement_mode != "explicit":
                raise errors.ConsumerStateError(
                    "records are acknowledged by the next poll, or by commit: to acknowledge "
                    "single ones set share.acknowledgement.mode=explicit"
                )
            if not isinstance(kind, acknowledgements.AcknowledgeType):
                raise errors.OptionError(f"kind is an AcknowledgeType such as ACCEPT, got {kind!r}")
            tp = arguments.checked_partition(partition, "partition")
            offset = arguments.checked_int(offset, "offset")
            if kind == acknowledgements.AcknowledgeType.RENEW:
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
            self._await_responses(deadline)
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
                polled.acknowledge_rest(acknowledgements.AcknowledgeType.ACCEPT)

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
        count = sum(
            len(offsets) for offsets in acknowledgements.acknowledged_ranges(result.batches)
        )
        if count:
            self._metrics.acknowledged(count, failed=result.error is not None)
        for offset in acknowledgements.renewed_offsets(result.batches):
            renewal = self._renewing.pop((result.tp, offset), None)
            if renewal is not None and result.error is None:
                self._renewed.append(renewal)
        self._results.append(result)

    def _report_results(self, *, warn: bool = True) -> None:
        """Call the user's callback for results, or (with `warn`) log failures."""
        while self._results:
            tp, batches, error = self._results.pop(0)
            if self._callback is not None:
                offsets = acknowledgements.acknowledged_ranges(batches)
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
        limit = Deadline(seconds_of(timeout_s) * 1000)
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
