"""Kafka's consumer: reads partitions that the user assigns, or that its group assigns.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["orders"])
        while True:
            for record in consumer.poll(1.0):
                ...
            consumer.commit()

Names, defaults and rules are those of Java's KafkaConsumer. Keys and values are bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeAlias

import pyarrow as pa

from sparkkafka.client import arguments
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import PartitionInfo, TopicMetadata
from sparkkafka.client.cluster.offsets import (
    ListedOffset,
    OffsetRange,
    OffsetSpec,
    StartingPoint,
    confirmed_ends,
    earliest_and_latest,
    list_offsets,
    starting_point,
)
from sparkkafka.client.consumer.consumer_coordinator import Callback, ConsumerCoordinator, Topics
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.poll_loop import PollLoop
from sparkkafka.client.consumer.record import Records
from sparkkafka.client.consumer.subscription_state import PartitionState, SubscriptionState
from sparkkafka.client.deadline import Deadline, deadline_of, seconds_of
from sparkkafka.client.group.commits import CommitCallback
from sparkkafka.client.group.membership import GroupMetadata
from sparkkafka.client.metrics import FetchMetrics, Metrics, PartitionFigures
from sparkkafka.client.values import LagInfo, OffsetAndMetadata, TopicPartition, checked_topic
from sparkkafka.config.client_settings import parse_consumer_settings
from sparkkafka.errors import ConsumerStateError, OptionError
from sparkkafka.protocol.constants import EARLIEST, LATEST, NO_OFFSET

CLOSE_TIMEOUT_S = 30.0

CLOSE_AFTER_ERROR_S = 5.0
"""The timeout of `close` after an exception in a `with` block: Ctrl-C must end a program soon."""

StartOffset: TypeAlias = int | OffsetAndMetadata | OffsetSpec


class Consumer(arguments.ClientBase):
    """A consumer; `config` has Java's names, bootstrap.servers at least. Use it under `with`.

    One thread at a time may call it (ConsumerStateError says so), except `wakeup`. All methods
    raise ConsumerStateError after `close`, BrokerError for errors of brokers and KafkaTimeoutError
    after `timeout_s` (None: default.api.timeout.ms). The first call that needs a response sends the
    first request. Raises OptionError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._options = options = parse_consumer_settings(config)
        self._guard = SingleThreadGuard("Consumer")
        self._metrics = metrics = FetchMetrics()
        self._cluster = cluster = Cluster(options.client, metrics=metrics.network)
        self._subscription = subscription = SubscriptionState(cluster)
        self._fetcher = Fetcher(cluster, options.fetch, subscription, metrics)
        self._coordinator = ConsumerCoordinator(
            options, cluster, subscription, self._fetcher.wake, metrics
        )
        self._loop = PollLoop(
            options, cluster, subscription, self._fetcher, self._coordinator, metrics
        )
        self._is_closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # After an exception it is unknown whether the records of the last poll were processed.
        if kind is None:
            self._close(CLOSE_TIMEOUT_S, commit=True)
        else:
            self._close(CLOSE_AFTER_ERROR_S, commit=False)

    def __repr__(self) -> str:
        group = f" of group {self._options.group_id!r}" if self._options.group_id else ""
        return f"<Consumer{group}, {len(self._subscription)} partitions>"

    # --- what to read -----------------------------------------------------------------------

    def assign(
        self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, StartOffset]
    ) -> None:
        """Read these partitions, without a group's assignment. Partitions that were assigned before
        keep their positions; an empty list is `unsubscribe`. ConsumerStateError after `subscribe`.

        `{partition: offset}` also sets the position, as `seek` does: `assign({tp: 3})`. Others
        start at the committed offset of group.id, or where auto.offset.reset says.
        """
        with self._guard:
            starts: dict[TopicPartition, StartingPoint] = {}
            try:
                if isinstance(partitions, Mapping):
                    for key, offset in partitions.items():
                        tp = _partition(key, "partitions")
                        starts[tp] = starting_point(tp, offset, "partitions")
                    partitions = starts.keys()
                chosen = _partitions(partitions)
            except OptionError as error:
                example = 'assign({TopicPartition("orders", 0): 17})'
                raise OptionError(f"{error}. To start at an offset, write {example}") from None
            if not chosen:
                self._coordinator.unsubscribe(self._deadline(None))
                return
            self._coordinator.assign(chosen)
            for tp, start in starts.items():
                self._subscription.state(tp).seek(*start)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        with self._guard:
            return self._subscription.partitions

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read these topics as a member of group.id, which assigns their partitions to members.

        `topics` are names, or a pattern: a `re.Pattern` that matches whole names, or text that
        begins with ^ (then, as in librdkafka, it matches the beginnings of names). New topics that
        match are found within metadata.max.age.ms.

        The callbacks get a list of partitions, inside `poll` (or close): `on_assigned` those that
        were added, `on_revoked` those that will be revoked (a last chance to commit), `on_lost`
        those that other members may own already. Without on_lost, on_revoked gets these too.
        """
        with self._guard:
            self._coordinator.subscribe(
                topics,
                arguments.checked_function(on_assigned, "on_assigned"),
                arguments.checked_function(on_revoked, "on_revoked"),
                arguments.checked_function(on_lost, "on_lost"),
            )

    def subscription(self) -> frozenset[str]:
        """The topics of `subscribe`; with a pattern those that match so far."""
        with self._guard:
            return self._coordinator.topics

    def unsubscribe(self) -> None:
        """Stop reading all partitions, and leave the group."""
        with self._guard:
            self._coordinator.unsubscribe(self._deadline(None))

    # --- reading ----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Records:
        """The next records, max.poll.records at most; empty if none came within `timeout_s`.

        Returns as soon as there are some; 0 returns what has arrived. Records of one partition come
        in order. Also serves the group: call it at least every max.poll.interval.ms. Raises
        CorruptRecordError for records that cannot be decoded (the position stays: `seek` past
        them, or set damaged=yield), NoOffsetError with auto.offset.reset=none, WakeupError, and
        what callbacks raise.
        """
        with self._guard:
            return self._loop.poll_records(seconds_of(timeout_s))

    def poll_arrow(self, timeout_s: float, max_records: int | None = None) -> pa.Table:
        """As `poll`, but as an Arrow table (`record.RECORD_SCHEMA`): many times faster.

        Returns all records that have arrived, at most `max_records`; max.poll.records is ignored.
        """
        with self._guard:
            if max_records is not None and arguments.checked_int(max_records, "max_records") < 1:
                raise OptionError(f"max_records must be at least 1, got {max_records}")
            return self._loop.poll_table(seconds_of(timeout_s), max_records)

    def wakeup(self) -> None:
        """Let the `poll` that waits now, else the next one, raise WakeupError. May be called from
        any thread or signal handler."""
        self._loop.wakeup()

    # --- positions --------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: StartOffset) -> None:
        """Continue at this offset: a number, a value of `committed`, or one that the leader looks
        up: `OffsetSpec.latest()` or -1, `OffsetSpec.earliest()` or -2, another `OffsetSpec` (the
        end, if no record is that late). Records that were fetched before are dropped."""
        with self._guard:
            tp = _partition(partition, "partition")
            start = starting_point(tp, offset, "offset")
            self._subscription.state(tp).seek(*start)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first record; None: of all assigned partitions."""
        with self._guard:
            for state in self._states(partitions):
                state.seek(None, lookup=EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the end: with read_committed the last stable offset. None: of all assigned
        partitions."""
        with self._guard:
            for state in self._states(partitions):
                state.seek(None, lookup=LATEST)

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the committed offsets of group.id, else where auto.offset.reset says: for
        example to read the records of an aborted transaction again. None: all assigned partitions.
        OptionError without group.id."""
        with self._guard:
            self._coordinator.need_group("seek_to_committed")
            for state in self._states(partitions):
                state.seek(None)
            self._subscription.may_lack_positions = True

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record that poll will return. Waits until it is known."""
        with self._guard:
            state = self._subscription.state(_partition(partition, "partition"))
            position = self._loop.position(state, self._deadline(timeout_s))
            return self._subscription.unread.get(state.tp, position)

    def lag(
        self, partitions: Iterable[TopicPartition] | None = None, timeout_s: float | None = None
    ) -> dict[TopicPartition, LagInfo]:
        """Position, end and lag of each partition, as the leaders answer now; None: of all
        assigned partitions. With read_committed the end is the last stable offset."""
        with self._guard:
            deadline = self._deadline(timeout_s)
            chosen = [state.tp for state in self._states(partitions)]
            positions = {tp: self.position(tp, deadline.remaining_s()) for tp in chosen}
            ends = self._list_offsets(dict.fromkeys(chosen, LATEST), deadline)
            return {
                tp: LagInfo(positions[tp], ends[tp].offset, max(0, ends[tp].offset - positions[tp]))
                for tp in chosen
            }

    def _states(self, partitions: Iterable[TopicPartition] | None) -> list[PartitionState]:
        """The states of these partitions; of all assigned ones for None or an empty list."""
        named = [] if partitions is None else _partitions(partitions)
        return [self._subscription.state(tp) for tp in named] or list(self._subscription)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Let poll return no records of these until `resume`; fetched records are kept."""
        with self._guard:
            for state in [self._subscription.state(tp) for tp in _partitions(partitions)]:
                state.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        with self._guard:
            for state in [self._subscription.state(tp) for tp in _partitions(partitions)]:
                state.paused = False

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        with self._guard:
            return frozenset(state.tp for state in self._subscription if state.paused)

    # --- the group's offsets ----------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout_s: float | None = None,
        *,
        asynchronous: bool = False,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit offsets for group.id, and wait for the broker's response: the positions of all
        assigned partitions, or these offsets (the next ones to read).

        Raises CommitFailedError if this is no longer a member, or the group rebalances.

        `asynchronous` does not wait: commits are made in the background in the order of the calls,
        each retried until `timeout_s` is over. A later poll, commit or close then calls
        `callback(offsets, error)`, error None after a success; a failure without a callback is a
        warning in the log. Later synchronous commits, and close, wait for asynchronous ones, and
        raise what their callbacks raise.
        """
        arguments.checked_flag(asynchronous, "asynchronous")
        if arguments.checked_function(callback, "callback") is not None and not asynchronous:
            raise OptionError(
                "callback needs asynchronous=True: without it commit raises the error"
            )
        with self._guard:
            chosen: dict[TopicPartition, int | OffsetAndMetadata] = {}
            if offsets is None:
                chosen.update(self._subscription.positions_to_commit())
            else:
                example = 'TopicPartition("orders", 0): 100'
                what = "offsets (records.next_offsets has them)"
                for key, offset in arguments.checked_mapping(offsets, what, example).items():
                    tp = _partition(key, "offsets")
                    chosen[tp] = arguments.offset_to_commit(tp, offset, "offsets")
            deadline = self._deadline(timeout_s)
            if asynchronous:
                self._coordinator.commit_later(chosen, deadline, callback)
            else:
                self._coordinator.commit(chosen, deadline)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of group.id; None for a partition without one."""
        with self._guard:
            chosen = _partitions(partitions)
            return self._coordinator.committed(chosen, self._deadline(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """The identity of this member, for a producer's send_offsets_to_transaction."""
        with self._guard:
            return self._coordinator.metadata

    # --- offsets and topics of the cluster --------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition, assigned or not."""
        with self._guard:
            lookups = dict.fromkeys(_partitions(partitions), EARLIEST)
            found = self._list_offsets(lookups, self._deadline(timeout_s))
            return {tp: found[tp].offset for tp in lookups}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition, assigned or not; with
        isolation.level=read_committed the last stable offset."""
        with self._guard:
            deadline = self._deadline(timeout_s)
            listed = self._list_offsets(dict.fromkeys(_partitions(partitions), LATEST), deadline)
            return self._confirm_ends({tp: row.offset for tp, row in listed.items()}, deadline)

    def _confirm_ends(
        self, latest: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Return these ends, or later ones: some brokers list ends that are too early."""
        isolation = self._options.fetch.isolation_level
        return confirmed_ends(self._cluster, latest, isolation_level=isolation, deadline=deadline)

    def offsets_for(
        self, topic: str, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetRange]:
        """`beginning_offsets` and `end_offsets` of all partitions of a topic, looked up together.
        Raises UnknownTopicError."""
        with self._guard:
            deadline = self._deadline(timeout_s)
            found = self._cluster.topics([checked_topic(topic)], deadline)[topic]
            chosen = [TopicPartition(topic, number) for number in sorted(found.partitions)]
            isolation = self._options.fetch.isolation_level
            first, end = earliest_and_latest(
                self._cluster, chosen, isolation_level=isolation, deadline=deadline
            )
            end = self._confirm_ends(end, deadline)
            return {tp: OffsetRange(first[tp], end[tp]) for tp in chosen}

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """The first record of each partition with this timestamp or a later one (offset,
        timestamp_ms); None if there is none."""
        with self._guard:
            lookups = {}
            example = 'TopicPartition("orders", 0): 1700000000000'
            for key, time_ms in arguments.checked_mapping(times_ms, "times_ms", example).items():
                tp = _partition(key, "times_ms")
                what = f"times_ms: the time of {tp}, in milliseconds,"
                lookups[tp] = arguments.checked_int(arguments.whole_float_as_int(time_ms), what)
                if not 0 <= lookups[tp] < 1 << 63:
                    raise OptionError(f"times_ms: the time of {tp} is not negative, got {time_ms}")
            found = self._list_offsets(lookups, self._deadline(timeout_s))
            return {tp: None if found[tp].offset == NO_OFFSET else found[tp] for tp in lookups}

    def _list_offsets(
        self, lookups: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        """Look up a timestamp (EARLIEST, LATEST, or milliseconds) in each partition."""
        isolation = self._options.fetch.isolation_level
        return list_offsets(self._cluster, lookups, isolation_level=isolation, deadline=deadline)

    def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[PartitionInfo]:
        """A topic's partitions and their leaders. Raises UnknownTopicError."""
        with self._guard:
            found = self._cluster.topics([checked_topic(topic)], self._deadline(timeout_s))
            return self._partition_infos(found[topic])

    def list_topics(self, timeout_s: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this user may see, by name."""
        with self._guard:
            found = self._cluster.all_topics(self._deadline(timeout_s))
            return {name: self._partition_infos(topic) for name, topic in sorted(found.items())}

    def _partition_infos(self, topic: TopicMetadata) -> list[PartitionInfo]:
        brokers = self._cluster.brokers
        return [
            PartitionInfo(topic.name, number, brokers.get(partition.leader))
            for number, partition in sorted(topic.partitions.items())
        ]

    def metrics(self) -> Metrics:
        """Metrics under Kafka's names, by group.

            consumer.metrics()["consumer-fetch-manager-metrics"]["records-lag-max"]

        Names of groups end with their topic and partition, as in JMX:
        "consumer-fetch-manager-metrics,topic=orders,partition=0". Rates, means and maxima cover the
        last 30 to 60 s; NaN stands for no value. May be called from any thread; sends no request.
        """
        return self._metrics.figures(
            [
                PartitionFigures(state.tp, state.lag, state.lags)
                for state in list(self._subscription)
            ]
        )

    # --- the end ----------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the positions (with enable.auto.commit), leave the group, close all connections.
        May be called again. An exception that leaves the `with` block commits nothing."""
        self._close(seconds_of(timeout_s), commit=True)

    def _close(self, timeout_s: float, *, commit: bool) -> None:
        """Close all parts, even if leaving the group fails. `commit`: first commit positions."""
        if self._guard.is_unusable:
            return
        with self._guard:
            if self._is_closing:
                return
            # Callbacks may still use the consumer, so it is not closed yet.
            self._is_closing = True
            try:
                self._coordinator.close(Deadline(timeout_s * 1000), commit=commit)
            finally:
                self._guard.is_closed = True
                self._subscription.assign([])
                self._fetcher.close()
                self._cluster.close()

    def _deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call; None: default.api.timeout.ms."""
        return deadline_of(timeout_s) or self._cluster.deadline()


def _partitions(value: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return a list of partitions whose topics a request can hold. Raises OptionError."""
    listed = arguments.checked_list(
        value, TopicPartition, "partitions", 'TopicPartition("orders", 0)'
    )
    return [_partition(partition, "partitions") for partition in listed]


def _partition(value: TopicPartition, what: str) -> TopicPartition:
    """Return a partition whose topic a request can hold. Raises OptionError."""
    found = arguments.checked_partition(value, what)
    checked_topic(found.topic)
    return found


class SingleThreadGuard:
    """Lets one thread at a time call the methods of a client: each runs under `with guard:`. The
    thread may enter again while it is inside (callbacks)."""

    def __init__(self, what: str) -> None:
        """`what` is the name of the client's class."""
        self._what = what
        # Ctrl-C may leave it locked, but by this thread, which may lock it again.
        self._lock = threading.RLock()
        self._process_id = os.getpid()
        self.is_closed = False

    @property
    def is_unusable(self) -> bool:
        """Whether the client is closed, or is a copy in a forked process, whose connections are
        the parent's: no method may use it."""
        return self.is_closed or os.getpid() != self._process_id

    def __enter__(self) -> None:
        if self.is_closed:
            raise ConsumerStateError(f"this {self._what} is closed")
        if self.is_unusable:
            raise ConsumerStateError(
                f"this {self._what} was made before a fork, and its connections are the parent "
                f"process's: make a {self._what} in each process"
            )
        if not self._lock.acquire(blocking=False):
            raise ConsumerStateError(
                f"this {self._what} is in use by another thread, and it is made for one at a time: "
                "give each thread its own, or hold a lock around every call. Only wakeup() may "
                "be called meanwhile"
            )

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
