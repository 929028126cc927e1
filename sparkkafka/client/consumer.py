"""Kafka's consumer: reads records of partitions that it is given, or that a group shares out.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["orders"])
        while True:
            for record in consumer.poll(1.0):
                ...
            consumer.commit()

Names, defaults and rules are those of Java's KafkaConsumer. Keys and values are bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

import pyarrow as pa

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.consumer_group import Callback, ConsumerGroup, Topics
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group_metadata import GroupMetadata
from sparkkafka.client.leader_fetches import LeaderFetches, lease_ms
from sparkkafka.client.metadata import (
    OffsetAndMetadata,
    PartitionInfo,
    TopicMetadata,
    TopicPartition,
)
from sparkkafka.client.offsets import (
    EARLIEST,
    LATEST,
    NO_OFFSET,
    ListedOffset,
    list_offsets,
)
from sparkkafka.client.one_thread import OneThread
from sparkkafka.client.partition_state import Assignment, PartitionState
from sparkkafka.client.record import RECORD_SCHEMA, Records, TakenRows, to_arrow
from sparkkafka.client.starting_offsets import StartingOffsets
from sparkkafka.client_options import parse_consumer_settings
from sparkkafka.errors import (
    ConsumerStateError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
    WakeupError,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

# What must wait for an answer in poll (metadata, committed offsets) gets so long, whatever poll's
# timeout: with a timeout of 0 nothing would ever come about. Twice as long after each failure.
PATIENCE_MS = 1_000

# While a member of a group waits for records, it looks after the group so often.
GROUP_TICK_S = 0.1

CLOSE_TIMEOUT_S = 30.0


class Consumer:
    """A consumer; `config` has Java's names, bootstrap.servers at least. Use it under `with`.

    One thread at a time may call it (ConsumerStateError says so), except `wakeup`. All methods
    raise ConsumerStateError after `close`, BrokerError for what brokers refuse and
    KafkaTimeoutError after `timeout_s`, which is default.api.timeout.ms where it is not given.
    Nothing is sent before the first call that needs an answer. Raises OptionError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._options = options = parse_consumer_settings(config)
        self._guard = OneThread("this Consumer")
        self._cluster = cluster = Cluster(options.client)
        self._assignment = Assignment(lease_ms(cluster), cluster.backoff)
        self._fetches = LeaderFetches(cluster, options.fetch, self._assignment)
        self._group = ConsumerGroup(options, cluster, self._assignment)
        self._starting = StartingOffsets(options, cluster)
        self._is_closing = self._is_closed = False
        self._wakeup = threading.Event()
        self._patience_ms = float(PATIENCE_MS)
        self._late_error: KafkaError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # After an exception nobody knows what was done with the records of the last poll.
        self._close(CLOSE_TIMEOUT_S, commit=kind is None)

    def __repr__(self) -> str:
        group = f" of group {self._options.group_id!r}" if self._options.group_id else ""
        return f"<Consumer{group}, {len(self._assignment)} partitions>"

    # --- what to read -----------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, whatever a group says. Those that were assigned before keep their
        positions; none at all is `unsubscribe`. ConsumerStateError after `subscribe`."""
        with self._entered():
            chosen = [_partition(tp) for tp in partitions]
            if not chosen:
                self._group.unsubscribe(self._deadline(None))
                return
            self._group.assign(chosen)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        with self._entered():
            return self._assignment.partitions

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics with the other members of group.id.

        `topics` are names, or a pattern: a `re.Pattern` that matches whole names, or text that
        begins with ^ (then, as in librdkafka, it matches the beginnings of names). New topics that
        match are found within metadata.max.age.ms.

        The callbacks get a list of partitions, inside `poll` (or close): those that were added,
        those about to be taken away (a last chance to commit), and those that were lost: another
        member may have them already (without on_lost, on_revoked is called for these too).
        """
        with self._entered():
            self._group.subscribe(topics, on_assigned, on_revoked, on_lost)

    def subscription(self) -> frozenset[str]:
        """The topics of `subscribe`; with a pattern those that match so far."""
        with self._entered():
            return self._group.topics

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        with self._entered():
            self._group.unsubscribe(self._deadline(None))

    # --- reading ----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Records:
        """The next records, max.poll.records at most; empty if none came within `timeout_s`.

        Returns as soon as there are some. 0 takes what is there. Records of one partition come in
        order. Also looks after the group: call it at least every max.poll.interval.ms. Raises
        CorruptRecordError for what cannot be decoded (the position stays: `seek` past it),
        NoOffsetError under auto.offset.reset=none, WakeupError, and what callbacks raise.
        """
        with self._entered():
            return self._poll(timeout_s, self._collect_records) or Records()

    def poll_arrow(self, timeout_s: float, max_records: int | None = None) -> pa.Table:
        """As `poll`, but the records are an Arrow table (RECORD_SCHEMA): many times faster.

        All that has arrived, or `max_records` of it; max.poll.records does not count.
        """
        with self._entered():
            if max_records is not None and max_records < 1:
                raise OptionError(f"max_records must be at least 1, got {max_records}")
            batches = self._poll(timeout_s, lambda: self._collect_batches(max_records))
            return pa.Table.from_batches(batches or [], schema=RECORD_SCHEMA)

    def wakeup(self) -> None:
        """Let the `poll` that waits now, or else the next one, raise WakeupError. From any thread
        or signal handler."""
        self._wakeup.set()
        self._fetches.wake()

    def _poll(self, timeout_s: float, collect: Callable[[], T | None]) -> T | None:
        if not self._group.is_subscribed and not len(self._assignment):
            raise ConsumerStateError(
                "there is nothing to read: call subscribe(topics) or assign(partitions) first"
            )
        if timeout_s < 0:
            raise OptionError(f"timeout_s must not be negative, got {timeout_s}")
        deadline = Deadline(timeout_s * 1000)
        if self._late_error is not None:
            error, self._late_error = self._late_error, None
            raise error
        has_looked = False
        while True:
            if self._wakeup.is_set():
                self._wakeup.clear()
                raise WakeupError("poll was ended by wakeup()")
            self._prepare(deadline)
            found = collect()
            if found:
                self._ask_ahead()
                return found
            if has_looked and deadline.expired:
                return None
            self._exchange(deadline)
            has_looked = True

    def _prepare(self, deadline: Deadline) -> None:
        """The group's business, and where to begin in new partitions."""
        self._group.poll(deadline, self._patient(deadline))
        self._place(deadline)

    def _place(self, deadline: Deadline) -> None:
        unplaced = self._assignment.unplaced()
        if unplaced:
            self._patiently(deadline, lambda limit: self._starting.place(unplaced, limit))
            for state in unplaced:
                self._assignment.note_ready(state)

    def _exchange(self, deadline: Deadline) -> None:
        """Ask the leaders, and wait for something to happen."""
        self._fetches.send(self._patient(deadline))
        wait_s = min(deadline.remaining_s(), self._fetches.next_step_s)
        if self._group.is_subscribed:
            wait_s = min(wait_s, GROUP_TICK_S)
        self._fetches.receive(wait_s)

    def _ask_ahead(self, *, draining: bool = False) -> None:
        """The next records are under way while the user works. Failures can wait."""
        try:
            self._fetches.send(Deadline(PATIENCE_MS), draining=draining)
        except KafkaError as error:
            self._late_error = error

    def _patient(self, deadline: Deadline) -> Deadline:
        """The deadline, or one that leaves time for an answer."""
        if deadline.remaining_s() * 1000 >= self._patience_ms:
            return deadline
        return Deadline(self._patience_ms)

    def _patiently(self, deadline: Deadline, step: Callable[[Deadline], None]) -> None:
        """A step that waits for an answer; what may pass is left to the next poll."""
        try:
            step(self._patient(deadline))
        except KafkaError as error:
            if not (error.retriable or isinstance(error, KafkaTimeoutError)):
                raise
            log.warning("%s", error)
            self._patience_ms = min(
                2 * self._patience_ms,
                max(PATIENCE_MS, self._options.client.request_timeout_ms),
            )
        else:
            self._patience_ms = float(PATIENCE_MS)

    # --- records out of the buffers ---------------------------------------------------------

    def _collect_records(self) -> Records | None:
        parts: list[TakenRows] = []
        most = self._options.max_poll_records

        def take(state: PartitionState, count: int | None) -> int:
            rows = state.take_rows(most if count is None else count)
            if rows is None:
                return 0
            parts.append(rows)
            state.advance(rows.stop - rows.start)
            return rows.stop - rows.start

        self._serve(take, most)
        return Records(parts) if parts else None

    def _collect_batches(self, max_records: int | None) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []

        def take(state: PartitionState, count: int | None) -> int:
            found = state.columns(count)
            if found is None:
                return 0
            columns, next_offset = found
            batches.append(to_arrow(state.tp, columns, next_offset))
            state.advance(len(columns))
            return len(columns)

        if max_records is None and self._assignment.ready():
            self._ask_ahead(draining=True)
        self._serve(take, max_records)
        return batches

    def _serve(self, take: Callable[[PartitionState, int | None], int], most: int | None) -> None:
        """Let partitions give what they have, in turn, up to `most` records.

        An error is raised if nothing was taken before it; else it is left to the next poll.
        """
        left, has_some = most, False
        before: list[tuple[PartitionState, int | None]] = []
        for state in self._assignment.ready():
            before.append((state, state.position))
            try:
                while left is None or left > 0:
                    count = take(state, left)
                    if not count:
                        self._raise_due(state)
                        break
                    has_some = True
                    if left is not None:
                        left -= count
            except KafkaError as error:
                state.error = error
                if has_some:
                    self._assignment.note_ready(state)
                    return
                state.error = None
                self._assignment.has_unplaced = True
                self._assignment.served(state)
                raise
            except BaseException:  # Ctrl-C: the user gets nothing, so nothing was read
                for touched, position in before:
                    if position is not None:
                        touched.seek(position)
                raise
            if state.is_between_pieces:
                self._assignment.served(state)
            if left == 0:
                return

    def _raise_due(self, state: PartitionState) -> None:
        """What a leader said of the partition."""
        if state.out_of_range:
            self._starting.reset(state, Deadline(PATIENCE_MS))
        if state.error is None:
            return
        if isinstance(state.error, UnknownTopicError) and self._group.is_subscribed:
            # The group will take it away, if the topic does not come back.
            log.warning("%s", state.error)
            state.error = None
            return
        raise state.error

    # --- positions --------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from this offset. Records that were fetched before are thrown away."""
        with self._entered():
            if offset < 0:
                raise OptionError(f"cannot seek to offset {offset} of {_partition(partition)}")
            self._assignment.state(_partition(partition)).seek(offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read on from the first record (of all assigned partitions, if none are named)."""
        with self._entered():
            for state in self._assignment.chosen(partitions):
                state.seek(None, lookup=EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read on from the end: with read_committed the last stable offset."""
        with self._entered():
            for state in self._assignment.chosen(partitions):
                state.seek(None, lookup=LATEST)

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record that poll will return, waiting for it if need be."""
        with self._entered():
            deadline = self._deadline(timeout_s)
            state = self._assignment.state(_partition(partition))
            while True:
                self._place(deadline)
                if state.position is None:
                    self._raise_due(state)
                if state.position is not None:
                    return state.position
                if deadline.expired:
                    raise KafkaTimeoutError(
                        f"no position of {state.tp} within {deadline.total_ms / 1000:g} s"
                    )
                self._exchange(deadline)

    def lag(
        self, partitions: Iterable[TopicPartition] | None = None, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the end of each partition, as the leaders
        say now. Markers and compacted records count as offsets."""
        with self._entered():
            deadline = self._deadline(timeout_s)
            chosen = [state.tp for state in self._assignment.chosen(partitions)]
            positions = {tp: self.position(tp, deadline.remaining_s()) for tp in chosen}
            ends = self._listed(dict.fromkeys(chosen, LATEST), deadline)
            return {tp: max(0, ends[tp].offset - positions[tp]) for tp in chosen}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Poll returns nothing of these until `resume`; what was fetched of them is kept."""
        with self._entered():
            for state in [self._assignment.state(_partition(tp)) for tp in partitions]:
                state.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        with self._entered():
            for state in [self._assignment.state(_partition(tp)) for tp in partitions]:
                state.paused = False

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        with self._entered():
            return frozenset(state.tp for state in self._assignment if state.paused)

    # --- the group's offsets ----------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Commit for group.id, and wait until the broker has it: where poll has got to in all
        assigned partitions, or the given offsets (the next ones to read).

        Raises CommitFailedError if the group has given the partitions to others.
        """
        with self._entered():
            chosen: Mapping[TopicPartition, int | OffsetAndMetadata] = (
                self._assignment.positions() if offsets is None else offsets
            )
            self._group.commit(chosen, self._deadline(timeout_s))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What group.id has committed; None for a partition without."""
        with self._entered():
            chosen = [_partition(tp) for tp in partitions]
            return self._group.committed(chosen, self._deadline(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """Who this member is, for a producer's send_offsets_to_transaction."""
        with self._entered():
            return self._group.metadata

    # --- offsets and topics of the cluster --------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition, assigned or not."""
        return self._ends(partitions, EARLIEST, timeout_s)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition, assigned or not; with
        isolation.level=read_committed the last stable offset."""
        return self._ends(partitions, LATEST, timeout_s)

    def _ends(
        self, partitions: Iterable[TopicPartition], which: int, timeout_s: float | None
    ) -> dict[TopicPartition, int]:
        with self._entered():
            wanted = {_partition(tp): which for tp in partitions}
            found = self._listed(wanted, self._deadline(timeout_s))
            return {tp: found[tp].offset for tp in wanted}

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """The first record of each partition with this timestamp or a later one (offset,
        timestamp_ms); None if there is none."""
        with self._entered():
            wanted = {_partition(tp): time_ms for tp, time_ms in times_ms.items()}
            for tp, time_ms in wanted.items():
                if time_ms < 0:
                    raise OptionError(f"the time for {tp} is negative: {time_ms}")
            found = self._listed(wanted, self._deadline(timeout_s))
            return {tp: None if found[tp].offset == NO_OFFSET else found[tp] for tp in wanted}

    def _listed(
        self, wanted: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        isolation = self._options.fetch.isolation_level
        return list_offsets(self._cluster, wanted, isolation_level=isolation, deadline=deadline)

    def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[PartitionInfo]:
        """A topic's partitions and their leaders. Raises UnknownTopicError."""
        with self._entered():
            found = self._cluster.topics([topic], self._deadline(timeout_s))
            return self._infos(found[topic])

    def list_topics(self, timeout_s: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this user may see, by name."""
        with self._entered():
            found = self._cluster.all_topics(self._deadline(timeout_s))
            return {name: self._infos(topic) for name, topic in sorted(found.items())}

    def _infos(self, topic: TopicMetadata) -> list[PartitionInfo]:
        brokers = self._cluster.brokers
        return [
            PartitionInfo(topic.name, number, brokers.get(row.leader))
            for number, row in sorted(topic.partitions.items())
        ]

    # --- the end ----------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit what poll has returned (with enable.auto.commit), leave the group, close all
        connections. May be called again. Leaving `with` by an exception commits nothing."""
        self._close(timeout_s, commit=True)

    def _close(self, timeout_s: float, *, commit: bool) -> None:
        with self._guard:
            if self._is_closing:
                return
            self._is_closing = True  # callbacks may still use it
            try:
                self._group.close(Deadline(timeout_s * 1000), commit=commit)
            finally:
                self._is_closed = True
                self._assignment.replace([])
                self._fetches.close()
                self._cluster.close()

    def _entered(self) -> OneThread:
        if self._is_closed:
            raise ConsumerStateError("this Consumer is closed")
        return self._guard

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return self._cluster.deadline() if timeout_s is None else Deadline(timeout_s * 1000)


def _partition(value: tuple[str, int]) -> TopicPartition:
    """A TopicPartition, also of a plain pair."""
    try:
        topic, partition = value
        if isinstance(topic, str) and int(partition) == partition >= 0:
            return TopicPartition(topic, int(partition))
    except (TypeError, ValueError):
        pass
    raise OptionError(f"not a partition: {value!r}; give TopicPartition(topic, number)")
