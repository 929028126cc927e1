"""Reads one range of offsets as decoded columns.

The next Fetch is sent as soon as the batch headers of the last answer are known, before its records
are decoded, so the broker works in the meantime. Gaps, aborted transactions, moved leaders and data
loss are handled here. A range ends when the next offset reaches its end, not with record end-1,
which may be a marker, aborted, or compacted away (KAFKA-5443).

An end of the range may be open: it is then bound once, by the leader's first answer, which says
where the log begins and ends. Records appended later are not read, so a read of a growing log ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Self

from sparkkafka.client.cluster.cluster import Cluster, throttle
from sparkkafka.client.cluster.metadata import PartitionMetadata
from sparkkafka.client.cluster.offsets import earliest_and_latest, list_offsets
from sparkkafka.client.consumer.fetch_request import (
    IDLE_BACKOFF_MAX_MS,
    IDLE_BACKOFF_MS,
    LEADER_ONLY_FETCH_VERSION,
    ReadReplica,
    WantedOffset,
    fetch_request,
    required_fetch_bytes,
    take_batches,
    truncation,
    with_setting,
)
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    CorruptRecordError,
    DataLossError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
)
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.columns.decode import decode_chunks
from sparkkafka.protocol.constants import LATEST, NO_LEADER_EPOCH
from sparkkafka.protocol.messages import FetchRequest
from sparkkafka.protocol.records.batches import RecordBatch

log = logging.getLogger(__name__)

# A log that ends below the planned range has lost its end (the topic was recreated, or an unclean
# leader took over). A new leader learns the high watermark late, so wait this long first.
SHORT_LOG_GRACE_MS = 10_000

# A follower learns of new records and of the high watermark within replica.fetch.wait.max.ms
# (500 ms). One that has nothing for this long lags: ask the leader.
REPLICA_GRACE_MS = 2_000


class RangeWords(NamedTuple):
    """The caller's names of settings, for messages."""

    poll_timeout: str = "poll_timeout_ms"
    tolerate_loss: str = "fail_on_data_loss=False"


CLIENT_WORDS = RangeWords()


class OpenEnds(NamedTuple):
    """The ends of a range that its first answer binds.

    `start`: the read begins at the start of the log if that lies behind the range's start; that is
    no data loss. `end`: it ends where the log ends; the range's end is where the log ended under
    the leader of `leader_epoch`. `whole_log`: all that a topic of this name has, so one that was
    recreated is read from its own start.
    """

    start: bool = False
    end: bool = False
    whole_log: bool = False
    leader_epoch: int = NO_LEADER_EPOCH


NO_OPEN_ENDS = OpenEnds()


class _TopicMadeAgainError(Exception):
    """The planned topic is gone; another one has its name."""


class RangeFetcher:
    """Iterates over the wanted records of one partition. Use it under `with`.

    Reads from the leader, or from a replica that the leader names for `options.client_rack`.
    `poll_timeout_ms` bounds the time without progress (new records, or an offset that moves).
    With `fail_on_data_loss` an offset that is gone raises DataLossError; without it the loss is
    logged, and the rest is read. With a `topic_id` (Kafka 2.8+) a topic that was
    deleted and recreated under the same name counts as such a loss. So does a record that was read
    and is not in the leader's log any more (KIP-320), or the one before the range, if its
    `leader_epoch` is known. `open_ends` are bound by the first answer.
    """

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        wanted: Selection,
        options: FetchOptions,
        *,
        poll_timeout_ms: int,
        fail_on_data_loss: bool = True,
        topic_id: bytes | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
        words: RangeWords = CLIENT_WORDS,
        open_ends: OpenEnds = NO_OPEN_ENDS,
    ) -> None:
        cluster.expect(tp.topic)
        self._cluster = cluster
        self._tp = tp
        self.position = self._start = wanted.start_offset
        self.retries = 0
        self.lost = 0  # offsets that were skipped, or whose records are other ones now
        self._epoch = leader_epoch  # of the record before `position`
        self._end = wanted.end_offset
        self._options = options
        self._wanted = wanted
        self._poll_timeout_ms = poll_timeout_ms
        self._fail_on_data_loss = fail_on_data_loss
        self._topic_id = None if open_ends.whole_log else topic_id
        self._words = words
        self._open_ends = open_ends
        self._required_bytes: int | None = None
        self._idle = Backoff(IDLE_BACKOFF_MS, IDLE_BACKOFF_MAX_MS)
        self._connection: Connection | None = None
        self._node_id: int | None = None  # whom it leads to
        self._replica = ReadReplica(cluster)
        self._at: int | None = None  # `_replica.node_id` when the connection was opened
        self._read_committed = options.isolation_level == "read_committed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is None and self._connection is not None and self._node_id is not None:
            self._cluster.connections.put_back(self._node_id, self._connection)
            self._connection = None
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __iter__(self) -> Iterator[DecodedRecords]:
        """Decoded records in offset order; every item has at least one record.

        Raises DataLossError, CorruptRecordError (both name topic, partition and offset),
        BrokerError for what a retry cannot mend, and KafkaTimeoutError when nothing moved for
        `poll_timeout_ms`.
        """
        # An answer is decoded before the next one is received; decoded columns are copies.
        buffer = FrameBuffer()
        while self._open_ends.end or self.position < self._end:
            batches = self._next_batches(buffer)
            if self._open_ends.end or self.position < self._end:
                self._ask_ahead()
            if batches:
                yield from self._decode(batches)

    # --- one step forward -----------------------------------------------------------------------

    def _next_batches(self, buffer: FrameBuffer) -> list[RecordBatch]:
        """Visible batches of the next fetch that moves the position; empty if all were skipped."""
        deadline = Deadline(self._poll_timeout_ms)
        short_log = Deadline(min(SHORT_LOG_GRACE_MS, self._poll_timeout_ms / 2))
        lagging = Deadline(min(REPLICA_GRACE_MS, self._poll_timeout_ms / 4))
        retry = self._cluster.retry(
            deadline, f"reading {self._tp} at offset {self.position} (end {self._end_text})"
        )
        partition: Any = None
        while True:
            before = self.position
            try:
                self._ask(deadline)
                partition = self._answer(deadline, buffer)
                if self._was_truncated(partition):
                    continue
                if self._open_ends != NO_OPEN_ENDS and not self._bind(partition, deadline):
                    continue
                if self.position >= self._end:
                    return []
                batches = self._take(partition)
                if self.position > before:
                    self._idle.reset()
                    return batches
                if self._at is None and partition.preferred_read_replica >= 0:
                    self._replica.follow(partition.preferred_read_replica)
                    continue
                if self._at is not None and lagging.expired:
                    self._give_up_replica(f"it has nothing from offset {self.position} on")
                    continue
                if (
                    self._at is None
                    and short_log.expired
                    and 0 <= partition.high_watermark <= self.position
                ):
                    self._lose_rest(f"the log ends at {partition.high_watermark}")
                    return []
                self._no_progress(partition, deadline)
            except DataLossError:
                raise
            except _TopicMadeAgainError:
                self._lose_rest("the topic has been deleted and recreated")
                return []
            except CorruptRecordError as error:
                error = with_setting(error, self._cluster.options.prefix)
                raise error.at(self._tp.topic, self._tp.partition, self.position) from error
            except AuthenticationError:
                raise  # the leader would refuse as well
            except KafkaError as error:
                self.close()
                if isinstance(error, BrokerError):
                    self._cluster.note_error(self._tp, error.code)
                else:
                    self._cluster.forget(self._tp.topic)
                if self._at is not None:
                    # Also OFFSET_OUT_OF_RANGE: only the leader can say that records are lost.
                    self._give_up_replica(str(error))
                    continue
                if isinstance(error, BrokerError):
                    if isinstance(error, UnknownTopicError):
                        self._lose_rest(f"the broker says: {error}")
                        return []
                    if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        if self._skip_lost(deadline):
                            return []
                        self._epoch = NO_LEADER_EPOCH  # it may be this that it does not have
                        error = BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE, error.where)
                if deadline.expired and partition is not None:
                    self._no_progress(partition, deadline)  # its message says more
                self.retries += 1
                retry.after(error)

    def _no_progress(self, partition: Any, deadline: Deadline) -> None:
        """Ask again: the broker has waited fetch.max.wait.ms already. KafkaTimeoutError when
        late."""
        if deadline.expired:
            raise KafkaTimeoutError(
                f"reading {self._tp}: no record from offset {self.position} on arrived within "
                f"{self._poll_timeout_ms / 1000:g} s ({self._words.poll_timeout}), though the "
                f"range ends at {self._end_text}; the broker reports high watermark "
                f"{partition.high_watermark} and last stable offset "
                f"{partition.last_stable_offset}"
                + (
                    "; an open transaction may hold read_committed readers back"
                    if self._read_committed and partition.last_stable_offset <= self.position
                    else ""
                )
            )
        deadline.pause(self._idle.next_ms())

    def _ask_ahead(self) -> None:
        """Send the next Fetch before the last answer is decoded; the next step sees failures."""
        if self._connection is None or not self._connection.is_open:
            return
        if self._at != self._replica.node_id:
            return  # another connection is needed, which takes time
        try:
            self._ask(Deadline(self._poll_timeout_ms))
            self._connection.expect_unattended(
                self._required_bytes or self._options.max_partition_fetch_bytes
            )
        except KafkaError:
            # The next step asks again, with the retry loop around it.
            self.close()

    def _ask(self, deadline: Deadline) -> None:
        if self._connection is not None and self._connection.is_open:
            if self._connection.in_flight:
                return
            if self._at != self._replica.node_id:
                self.close()
        if self._connection is not None and self._connection.is_open:
            leader = self._cluster.known_leader(self._tp)
            epoch = leader.leader_epoch if leader else -1
        else:
            self._at = None  # failures before the leader is known are not the replica's
            leader = self._cluster.leader(self._tp, deadline)
            epoch = leader.leader_epoch
            if self._cluster.was_recreated(self._tp.topic, self._topic_id):
                raise _TopicMadeAgainError
            self._connection = self._open(leader, deadline)
        # A replica may not have heard of the last epoch yet.
        before = self._epoch if self._at is None else NO_LEADER_EPOCH
        wanted = {self._tp: WantedOffset(self.position, epoch, self._required_bytes, before)}
        version = self._connection.choose(FetchRequest)
        if self._replica.leader_only:
            version = min(LEADER_ONLY_FETCH_VERSION, version)
        options = self._options
        if self._open_ends.end:
            # The answer binds the end. In an empty partition the broker would wait for records.
            options = replace(options, fetch_max_wait_ms=0)
        request = fetch_request(options, wanted, version)
        self._connection.send(request, deadline, version=version)

    def _open(self, leader: PartitionMetadata, deadline: Deadline) -> Connection:
        # A connection of its own: a long-polling Fetch blocks everything behind it.
        self._at = self._replica.node_id
        if self._at is None:
            broker = self._cluster.brokers[leader.leader]
        elif self._at in self._cluster.brokers:
            broker = self._cluster.brokers[self._at]
            log.info("%s: reading from the replica of %s", self._tp, broker)
        else:
            raise BrokerError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"Metadata of {self._tp} for broker {self._at}"
            )
        self._node_id = broker.node_id
        connections = self._cluster.connections
        return connections.take_idle(broker) or connections.open(broker.host, broker.port, deadline)

    def _answer(self, deadline: Deadline, buffer: FrameBuffer) -> Any:
        connection = self._connection
        if connection is None:  # cannot happen: _ask opens one or raises
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, f"Fetch of {self._tp}")
        limit_ms = self._cluster.options.request_timeout_ms + self._options.fetch_max_wait_ms
        _, response = connection.receive(deadline.sooner(limit_ms), buffer)
        throttle(response, deadline)
        where = f"Fetch of {self._tp} @ {connection}"
        if response.error_code:
            raise BrokerError(response.error_code, where, prefix=self._cluster.options.prefix)
        for topic in response.responses:
            for row in topic.partitions:
                if topic.topic == self._tp.topic and row.partition_index == self._tp.partition:
                    if row.error_code:
                        prefix = self._cluster.options.prefix
                        raise BrokerError(row.error_code, where, prefix=prefix)
                    return row
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR, where, "the answer leaves the partition out"
        )

    def _bind(self, partition: Any, deadline: Deadline) -> bool:
        """Turns open ends into offsets, by the leader's first answer. False: fetch again, from a
        new position."""
        ends = self._open_ends
        if ends.whole_log and 0 <= partition.log_start_offset < self.position:
            # The start of a log only moves forward, so this is the log of a new topic.
            self.position = partition.log_start_offset
            return False
        if ends.end:
            self._end = self._end_of_log(partition, deadline)
            self._wanted = self._wanted._replace(end_offset=self._end)
        if self._topic_id is None:
            self._topic_id = self._cluster.topic_id(self._tp.topic)
        self._open_ends = NO_OPEN_ENDS
        if ends.end and self.position > self._end:
            self._lose_rest(f"the log ends at {self._end}")
        return True

    def _end_of_log(self, partition: Any, deadline: Deadline) -> int:
        """The end that the answer says, or a later one of ListOffsets if the leader may not know it
        yet: a new one learns the high watermark late, and ListOffsets waits for it (KIP-207)."""
        end: int = (
            partition.last_stable_offset if self._read_committed else partition.high_watermark
        )
        leader = self._cluster.known_leader(self._tp)
        epoch = NO_LEADER_EPOCH if leader is None else leader.leader_epoch
        if end >= self._end and epoch == self._open_ends.leader_epoch:
            return end
        isolation_level = self._options.isolation_level
        listed = list_offsets(
            self._cluster, {self._tp: LATEST}, isolation_level=isolation_level, deadline=deadline
        )
        # Brokers of other make may list an end inside the last batch (see `log_ends`).
        return max(end, listed[self._tp].offset)

    @property
    def _end_text(self) -> str:
        return "latest" if self._open_ends.end else str(self._end)

    def _take(self, partition: Any) -> list[RecordBatch]:
        """Split the answer into batches, move the position behind them, keep the visible ones."""
        data = partition.records
        if data is None or len(data) == 0:
            return []
        taken = take_batches(partition, self._options, self._end)
        if taken is None:
            self._required_bytes = required_fetch_bytes(data, self._required_bytes)
            return []
        self._start = self.position
        self.position = max(self.position, taken.next_offset)
        self._epoch = taken.last_epoch
        return taken.visible

    def _decode(self, batches: list[RecordBatch]) -> Iterator[DecodedRecords]:
        try:
            yield from decode_chunks(
                batches,
                self._wanted._replace(start_offset=self._start),
                max_payload_bytes=self._options.max_decompressed_batch_bytes,
            )
        except CorruptRecordError as error:
            error = with_setting(error, self._cluster.options.prefix)
            raise error.at(self._tp.topic, self._tp.partition, self._start) from error

    def _give_up_replica(self, reason: str) -> None:
        """Ask the leader itself."""
        log.info("%s: from broker %s back to the leader: %s", self._tp, self._at, reason)
        self._replica.give_up()
        self.close()

    # --- data loss ------------------------------------------------------------------------------

    def _was_truncated(self, partition: Any) -> bool:
        """Whether the leader has other records than were read (KIP-320): raises, or logs that."""
        found = truncation(partition)
        if found is None:
            return False
        text = f"{self._tp}: {found.lost_before(self.position)}"
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{text}. What was made of them may be wrong. Read them again, or set "
                f"{self._words.tolerate_loss} to go on with what is there now"
            )
        log.warning("%s. %s: going on", text, self._words.tolerate_loss)
        self.lost += max(0, self.position - found.end_offset)
        self._epoch = found.epoch if found.end_offset >= self.position else NO_LEADER_EPOCH
        return True

    def _skip_lost(self, deadline: Deadline) -> bool:
        """The broker does not have `position`: raise, or log the loss and move on.

        Returns False if the offset exists after all (a leader that had not caught up).
        """
        first, end = earliest_and_latest(self._cluster, [self._tp], deadline=deadline)
        earliest, latest = first[self._tp], end[self._tp]
        if earliest <= self.position <= latest:
            return False
        if self._open_ends.whole_log or (self._open_ends.start and self.position < earliest):
            log.info("%s: from the start of the log, offset %d", self._tp, earliest)
            self.position = earliest
            # Brokers of other make may have an earlier log_start_offset in their Fetch answers.
            self._open_ends = self._open_ends._replace(whole_log=False)
            return True
        found = f"available are [{earliest}, {latest})"
        if self.position < earliest and (self._open_ends.end or earliest < self._end):
            self._lose(earliest, found)
        else:
            self._lose_rest(found)
        return True

    def _lose_rest(self, found: str) -> None:
        """Nothing more of the range can be read. Raises as `_lose`."""
        self._lose(max(self.position, self._end), found)
        self._open_ends = NO_OPEN_ENDS

    def _lose(self, until: int, found: str) -> None:
        """Offsets [position, until) are gone. Raises DataLossError, or logs that and moves on."""
        count = until - self.position
        gone = f"offsets {self.position} to {until - 1} are gone"
        if not count:
            gone = f"no offset from {self.position} on is there"
        text = f"{self._tp}: {gone}; wanted were [{self.position}, {self._end_text}), {found}"
        if found.startswith("available"):
            text += ". Retention deleted them, or the topic was recreated"
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{text}. Plan the read again, start it at an offset that exists, keep records for "
                f"longer (retention.ms), or set {self._words.tolerate_loss} to read what is left"
            )
        self.lost += count
        skipped = f"{count} offsets skipped" if count else "nothing is read"
        log.warning("%s. %s: %s", text, self._words.tolerate_loss, skipped)
        self.position = until
