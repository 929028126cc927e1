"""One Fetch: its request, the replica to send it to, and a partition's part of the answer.

No sockets and no positions: `fetcher` keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.errors import BatchTooLargeError, CorruptRecordError
from sparkkafka.protocol.constants import (
    CONSUMER_REPLICA_ID,
    ISOLATION_LEVELS,
    NO_LEADER_EPOCH,
    NO_SESSION_EPOCH,
)
from sparkkafka.protocol.messages import FetchPartition, FetchRequest, FetchTopic
from sparkkafka.protocol.records.batches import (
    HEADER,
    MAGIC,
    AbortedTransactions,
    RecordBatch,
    first_batch_size,
    split_batches,
)
from sparkkafka.protocol.records.legacy import MAGIC_POSITION

# KIP-227: no fetch session; sessions help readers of thousands of quiet partitions.
NO_SESSION_ID = 0

# The largest batch to ask for when one does not fit the fetch size. Brokers refuse larger requests
# anyway (socket.request.max.bytes 100 MiB); the frame limit lies above it.
MAX_BATCH_BYTES = 200 << 20

# How long to read from the leader after a replica failed. Java asks the leader immediately, which
# names the same replica until it has noticed the failure too.
LEADER_ONLY_MS = 30_000

# Up to this version Fetch does not tell a leader the rack, so it names no replica.
LEADER_ONLY_FETCH_VERSION = 10

# Waits after an answer without news, for brokers that do not wait (fetch.max.wait.ms may be 0).
IDLE_BACKOFF_MS = 10
IDLE_BACKOFF_MAX_MS = 200


# From this version on (Kafka 2.7) a leader says if the records before the offset are not its own.
TRUNCATION_FETCH_VERSION = 12


class FetchOffset(NamedTuple):
    """Where to read a partition. `required_bytes` is set if its next batch exceeds the fetch
    size. `last_epoch` is the leader epoch of the record before, as it was read."""

    offset: int
    leader_epoch: int
    required_bytes: int | None = None
    last_epoch: int = NO_LEADER_EPOCH

    @property
    def epoch_to_check(self) -> int:
        """KIP-320: a leader of a later epoch is asked whether its log has what was read. By the
        Fetch itself, as followers do it (KIP-595): no moment lies between question and read."""
        return self.last_epoch if self.last_epoch < self.leader_epoch else NO_LEADER_EPOCH


class EpochEnd(NamedTuple):
    """The last leader epoch up to one in question that a leader's log has, and where it ends."""

    epoch: int
    end_offset: int

    def lost_before(self, position: int) -> str:
        """For a message."""
        return (
            f"records before offset {position} that were read are gone: an unclean leader was "
            f"elected, whose log of leader epoch {self.epoch} ends at offset {self.end_offset}"
        )


class LogBounds(NamedTuple):
    """What a leader's answer says of the partition's log; -1 for what the version does not say."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int

    def end_offset(self, isolation_level: str) -> int:
        """Where the log ends for a reader."""
        is_committed = isolation_level == "read_committed"
        return self.last_stable_offset if is_committed else self.high_watermark


def truncation(partition: Any) -> EpochEnd | None:
    """Where the leader's log left that of the reader, if it has."""
    found = EpochEnd(partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset)
    return found if found.end_offset >= 0 else None


def fetch_request(
    options: FetchOptions, wanted: Mapping[TopicPartition, FetchOffset], version: int
) -> FetchRequest:
    """One Fetch for these partitions, in their order: a broker fills its answer from the front."""
    topics: dict[str, list[FetchPartition]] = {}
    max_bytes = options.fetch_max_bytes
    checks = version >= TRUNCATION_FETCH_VERSION
    for tp, row in wanted.items():
        required_bytes = row.required_bytes
        topics.setdefault(tp.topic, []).append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=row.leader_epoch,
                fetch_offset=row.offset,
                last_fetched_epoch=row.epoch_to_check if checks else NO_LEADER_EPOCH,
                partition_max_bytes=required_bytes or options.max_partition_fetch_bytes,
            )
        )
        if required_bytes is not None and (len(wanted) == 1 or required_bytes > max_bytes):
            max_bytes = required_bytes
    return FetchRequest(
        replica_id=CONSUMER_REPLICA_ID,
        max_wait_ms=options.fetch_max_wait_ms,
        min_bytes=options.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=ISOLATION_LEVELS[options.isolation_level],
        session_id=NO_SESSION_ID,
        session_epoch=NO_SESSION_EPOCH,
        topics=[FetchTopic(topic=name, partitions=rows) for name, rows in topics.items()],
        rack_id=options.client_rack,
    )


class TakenBatches(NamedTuple):
    """`visible` are the batches with records for the reader; `next_offset` is behind all of them,
    and behind those that are not visible (markers, aborted transactions, emptied batches), and
    `last_epoch` the leader epoch of the last."""

    visible: list[RecordBatch]
    next_offset: int
    last_epoch: int


def take_batches(
    partition: Any,
    options: FetchOptions,
    end_offset: int | None = None,
    *,
    size_bytes: int | None = None,
) -> TakenBatches | None:
    """Splits one partition's records (the first `size_bytes`) into batches; None without a whole
    one.

    The first may begin before the fetch offset; `decode_chunks` leaves such records out, and those
    from `end_offset` on. Raises CorruptRecordError.
    """
    data = memoryview(partition.records)[:size_bytes]
    batches = split_batches(
        data,
        check_crcs=options.check_crcs,
        end_offset=end_offset,
        # Converting them takes their bytes a second time.
        max_payload_bytes=options.max_decompressed_batch_bytes // 2,
    )
    if not batches:
        return None
    aborted: Iterable[tuple[int, int]] = ()
    if options.isolation_level == "read_committed":
        aborted = [
            (row.producer_id, row.first_offset) for row in partition.aborted_transactions or ()
        ]
    visible = [
        batch for batch in AbortedTransactions(aborted).visible_of(batches) if batch.record_count
    ]
    return TakenBatches(visible, batches[-1].next_offset, batches[-1].partition_leader_epoch)


class Damage(NamedTuple):
    """Where a damaged batch lies: at this byte of the answer, and up to which offset, if known."""

    start_byte: int
    next_offset: int | None


def find_damage(partition: Any, error: CorruptRecordError) -> Damage:
    """The batch that `take_batches` refused with `error`."""
    data = memoryview(partition.records)
    try:
        sound = split_batches(data[: error.position or 0], check_crcs=False)
    except CorruptRecordError:  # old formats count positions in their own way
        return Damage(0, None)
    start = sum(batch.size_bytes for batch in sound)
    if len(data) - start < HEADER.size or data[start + MAGIC_POSITION] != MAGIC:
        return Damage(start, None)
    header = HEADER.unpack_from(data, start)
    base_offset, last_offset_delta = header[0], header[6]
    if base_offset != error.offset or last_offset_delta < 0:
        return Damage(start, None)
    return Damage(start, base_offset + last_offset_delta + 1)


def with_setting(error: CorruptRecordError, prefix: str) -> CorruptRecordError:
    """The error; if a batch is too large, with the setting that allows more."""
    if isinstance(error, BatchTooLargeError):
        error.reason += f" ({prefix}max.decompressed.batch.bytes: set it higher to read this)"
    return error


def required_fetch_bytes(data: memoryview, before: int | None) -> int:
    """How large an answer must be for the batch that begins with `data`.

    KIP-74 says that the first batch is always whole; not every broker complies. Raises
    CorruptRecordError for an impossible size, or one that did not help before (`before`).
    """
    size = first_batch_size(data)
    if size is None or size <= (before or 0) or not len(data) < size <= MAX_BATCH_BYTES:
        raise CorruptRecordError(
            f"{len(data)} bytes of records without one whole batch"
            + (f"; the first says it has {size} bytes" if size is not None else "")
        )
    return size


class ReadReplica:
    """Which replica of a partition to read from: the leader, or one that it named (KIP-392).

    A leader that knows the reader's rack (client.rack) may answer a Fetch with the id of a nearer
    replica and no records. That replica lags a little and may fail; only the leader decides about
    offsets. The leader's choice holds as long as metadata do, as in Java.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._lease_s = cluster.metadata_age_ms / 1000
        self._node_id: int | None = None
        self._until_s = 0.0
        self._leader_only_until_s = 0.0

    @property
    def node_id(self) -> int | None:
        """The broker to read from, None for the leader."""
        if self._node_id is not None and time.monotonic() >= self._until_s:
            self._node_id = None
        return self._node_id

    @property
    def leader_only(self) -> bool:
        """Whether the leader must not name a replica now."""
        return time.monotonic() < self._leader_only_until_s

    def follow(self, node_id: int) -> None:
        """The leader has named a replica."""
        self._node_id = node_id
        self._until_s = time.monotonic() + self._lease_s

    def give_up(self) -> None:
        """Back to the leader."""
        self._node_id = None
        self._leader_only_until_s = time.monotonic() + LEADER_ONLY_MS / 1000
