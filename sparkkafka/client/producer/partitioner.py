"""Chooses the partition of each record: by its key, round robin, or sticky.

`Partitioner` does it for columns, `RecordPartitioner` for a Producer's records.
`protocol.partitioning` has the rules for keys. It waits only for metadata: of a topic that is
not known yet, or if a row names a partition that is not known yet.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import TopicMetadata, unknown_partition_error
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.futures import Indexes, TopicRecords
from sparkkafka.client.producer.producer_records import AppendedRecords, InputRows, max_size_bytes
from sparkkafka.client.producer.record_accumulator import MAX_SCALAR_RECORDS, RowRange
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.config.kinds import RANDOM, ROUND_ROBIN
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import EncodeError, KafkaError, OptionError
from sparkkafka.protocol.columns.encode import RecordColumns, RecordFields, run_sizes, taken
from sparkkafka.protocol.partitioning import KEY_RULES, NO_PARTITION
from sparkkafka.protocol.records.arrow import blob_offsets, from_numpy, is_valid, or_zero, to_numpy

ROWS_OF = "this task"  # errors say "row 7 of this task"
MIN_STICKY_BYTES = 2**14
"""Java's default batch: a run of rows for each tiny batch would cost far more."""
STICKY_RECORD_BYTES = 16
"""The bytes that a record counts in addition to its value, so that tombstones also count."""


class PartitionedRecords(NamedTuple):
    """Records of one table sorted by partition. `run_ends` are the ends of each partition's run of
    rows, `rows` are the numbers of the rows in the original table."""

    columns: RecordColumns
    tps: list[TopicPartition]
    run_ends: list[int]
    rows: NDArray[np.int64] | range

    def runs(self) -> Iterator[tuple[TopicPartition, RowRange, int]]:
        """Yield for each run its partition, its rows, and the bytes that they take encoded,
        roughly. Raises EncodeError for a column that cannot be written."""
        sizes = run_sizes(self.columns, self.run_ends)
        starts = (0, *self.run_ends)
        for tp, low, high, size in zip(self.tps, starts, self.run_ends, sizes, strict=False):
            yield tp, RowRange(self.columns, low, high), size


class Partitioner:
    """Chooses each row's partition and cuts a batch into runs of one partition each.

    `partition_counts`, which `partition_rows` needs, looks up the number of partitions of topics
    (and raises for unknown ones). `known_topic` has the metadata of one topic (None: not known),
    `pick` returns a random number below its argument.

    Rows for which the option partitioner.class has no rule fill one partition up to about
    `sticky_bytes`, then the next (sticky partitioning as in KIP-794, but in a fixed order from a
    random start, so that few batches spread evenly); with round_robin each row goes to the next. As
    in Java, partitions without a leader get no such rows. The default of `sticky_bytes` is for the
    rows of a task: 1 MiB, since rows that are encoded together cost less, but 8 batches if
    batch.size is small, so that little data is spread as well.
    """

    def __init__(
        self,
        options: ProducerOptions,
        partition_counts: Callable[[list[str]], Mapping[str, int]] = lambda names: {},
        known_topic: Callable[[str], TopicMetadata | None] = lambda name: None,
        sticky_bytes: int | None = None,
        pick: Callable[[int], int] = random.randrange,
    ) -> None:
        partitioner = RANDOM if options.partitioner_ignore_keys else options.partitioner
        if sticky_bytes is None:
            batch_size = options.batch_size
            sticky_bytes = max(MIN_STICKY_BYTES, batch_size, min(2**20, 8 * batch_size))
        self._partition_counts = partition_counts
        self._known_topic = known_topic
        self._rule = KEY_RULES.get(partitioner)
        self._is_round_robin = partitioner == ROUND_ROBIN
        self._sticky_bytes = sticky_bytes
        self._pick = pick
        # By topic: its partitions; the bytes of rows without a rule so far, and with round_robin
        # their number; the partition of the first of them.
        self._counts: dict[str, int] = {}
        self._sticky_used_bytes: dict[str, int] = {}
        self._round_robin_counts: dict[str, int] = {}
        self._first_partitions: dict[str, int] = {}
        self._seen_rows = 0  # those of earlier batches, for row numbers in errors

    def partition_rows(self, rows: InputRows, timestamp_ms: int) -> PartitionedRecords:
        """Check a task's rows and sort them by topic, in the order in which topics appear, and by
        partition. If no row has a key or partition, the rows stay in their order.

        Rows without a timestamp get `timestamp_ms`. Raises EncodeError, naming the row, for a null
        topic, a partition that does not exist, a null header key, or a time before 1970.
        """
        first_row = self._seen_rows
        self._seen_rows += rows.length
        columns = rows.checked_columns(timestamp_ms, first_row, ROWS_OF)
        null_text = (
            "[KAFKA_NULL_TOPIC_IN_DATA] null topic present in the data. Use the topic option for "
            "setting a topic."
        )
        topics, topic_of_row = rows.topic_codes(first_row, ROWS_OF, null_text)
        self._update_counts(topics)
        partitions = None
        if rows.partitions is not None:
            partitions = to_numpy(rows.partitions).astype(np.int64)
            is_named = is_valid(rows.partitions)
            self._check_partitions(topics, topic_of_row, partitions, is_named, first_row)
            partitions[~is_named] = NO_PARTITION
        return self._partition(topics, topic_of_row, partitions, columns)

    def partition_columns(
        self, topic: str, columns: RecordColumns, partitions: NDArray[np.int64] | None, count: int
    ) -> PartitionedRecords:
        """Sort checked records of one topic, which has `count` partitions, by partition.
        `partitions` has the partition that each record names, or NO_PARTITION; None if no record
        names one."""
        self._counts[topic] = count
        return self._partition([topic], None, partitions, columns)

    def _partition(
        self,
        topics: list[str],
        topic_of_row: np.ndarray | None,
        partitions: NDArray[np.int64] | None,
        columns: RecordColumns,
    ) -> PartitionedRecords:
        """Choose the partitions that rows do not name, and sort the rows by partition.
        `topic_of_row` has each row's index in `topics` (None: there is one topic)."""
        if topic_of_row is None and partitions is None and self._has_no_rule(columns.keys):
            return self._partition_sticky(topics[0], columns)
        if partitions is None:
            partitions = np.full(len(columns.timestamps_ms), NO_PARTITION, np.int64)
        for code, name in enumerate(topics):
            is_of_topic = topic_of_row == code if topic_of_row is not None else None
            self._choose_missing(name, is_of_topic, partitions, columns)
        return _sort(topics, topic_of_row, partitions, columns)

    # --- checks ---

    def _update_counts(self, names: list[str]) -> None:
        """Store the newest numbers of partitions of these topics: partitions may be added during a
        long write."""
        missing = []
        for name in names:
            topic = self._known_topic(name)
            if topic is not None:
                self._counts[name] = len(topic.partitions)
            elif name not in self._counts:
                missing.append(name)
        self._request_counts(missing)

    def _request_counts(self, names: list[str]) -> None:
        """Look up the numbers of partitions of these topics."""
        if names:
            self._counts.update(self._partition_counts(names))

    def _check_partitions(
        self,
        topics: list[str],
        topic_of_row: np.ndarray | None,
        partitions: np.ndarray,
        is_named: np.ndarray,
        first_row: int,
    ) -> None:
        """Raise EncodeError if a row names (`is_named`) a partition that does not exist."""
        for is_second_try in (False, True):
            counts = np.array([self._counts[name] for name in topics], np.int64)
            limit = counts[0] if topic_of_row is None else counts[topic_of_row]
            bad = is_named & ((partitions < 0) | (partitions >= limit))
            if not bad.any():
                return
            if not is_second_try:
                # Partitions may have been added since the last request.
                self._request_counts(topics)
        row = int(np.argmax(bad))
        name = topics[0 if topic_of_row is None else int(topic_of_row[row])]
        raise EncodeError(
            f"partition {int(partitions[row])} of topic {name} does not exist: it has partitions 0 "
            f"to {self._counts[name] - 1} (column partition, row {first_row + row} of "
            f"{ROWS_OF})"
        )

    # --- choice ---

    def _has_no_rule(self, keys: pa.Array | None) -> bool:
        """Return whether none of these keys decides its row's partition, so that the sticky
        partition is used for all rows."""
        if self._is_round_robin:
            return False
        all_null = keys is None or keys.null_count == len(keys)
        return self._rule is None or (all_null and not self._rule.null_is_empty)

    def partition_fields(
        self, topic: str, records: Iterable[RecordFields], named: Mapping[int, int], count: int
    ) -> list[int]:
        """Return the partitions of a few records of a topic that has `count` partitions. `named`
        has the partitions that records name, by index; the others are chosen."""
        rule, is_round_robin = self._rule, self._is_round_robin
        takes_null = rule is not None and rule.null_is_empty
        first, sticky_bytes = self._first_partition(topic, count), self._sticky_bytes
        targets = self._targets(topic, count)
        turn = self._round_robin_counts.get(topic, 0)
        used_bytes = self._sticky_used_bytes.get(topic, 0)
        partitions = []
        for index, (key, value, _, _) in enumerate(records):
            partition = named.get(index, NO_PARTITION) if named else NO_PARTITION
            if partition == NO_PARTITION and rule is not None and (key is not None or takes_null):
                partition = rule.partition(key, count)
            if partition == NO_PARTITION:
                if is_round_robin:
                    partition = targets[(first + turn) % len(targets)]
                    turn += 1
                else:
                    partition = targets[(first + used_bytes // sticky_bytes) % len(targets)]
                    used_bytes += len(value or b"") + STICKY_RECORD_BYTES
            partitions.append(partition)
        self._round_robin_counts[topic] = turn
        self._sticky_used_bytes[topic] = used_bytes
        return partitions

    def _choose_missing(
        self,
        name: str,
        is_of_topic: np.ndarray | None,
        partitions: np.ndarray,
        columns: RecordColumns,
    ) -> None:
        """Choose partitions for those rows of topic `name` for which `partitions` has a negative
        number: by key, or the sticky one. `is_of_topic` marks the rows of the topic (None: all
        are)."""
        count = self._counts[name]
        needs_choice = partitions < 0 if is_of_topic is None else is_of_topic & (partitions < 0)
        if not needs_choice.any():
            return
        if self._rule is not None:
            if columns.keys is None:
                partitions[needs_choice] = self._rule.partition(None, count)
            elif needs_choice.all():
                partitions[:] = self._rule.partitions(columns.keys, count)
            else:
                keys = columns.keys.take(from_numpy(np.flatnonzero(needs_choice)))
                partitions[needs_choice] = self._rule.partitions(keys, count)
            needs_choice &= partitions < 0
        indexes = np.flatnonzero(needs_choice)
        if not len(indexes):
            return
        if self._is_round_robin:
            turn = self._round_robin_counts.get(name, 0)
            self._round_robin_counts[name] = turn + len(indexes)
            turns = np.arange(turn, turn + len(indexes))
        else:
            lengths = or_zero(pc.binary_length(columns.values))[indexes]
            offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
            turns = self._count_sticky_bytes(name, offsets) // self._sticky_bytes
        targets = np.asarray(self._targets(name, count))
        partitions[indexes] = targets[(self._first_partition(name, count) + turns) % len(targets)]

    def _targets(self, name: str, count: int) -> Sequence[int]:
        """Return the partitions of a topic for rows without key and partition: those that have a
        leader, or all `count` if none is known to have one."""
        topic = self._known_topic(name)
        return range(count) if topic is None else topic.with_leader or range(count)

    def _first_partition(self, name: str, count: int) -> int:
        """Return the partition of the topic's first row without key and partition. It is random."""
        if name not in self._first_partitions:
            self._first_partitions[name] = self._pick(count)
        return self._first_partitions[name]

    def _count_sticky_bytes(self, name: str, offsets: np.ndarray) -> np.ndarray:
        """Return for each of the next rows without key and partition the number of bytes of such
        rows before it in the topic, and count these rows. `offsets` are the Arrow offsets of their
        values."""
        starts = offsets + np.arange(0, STICKY_RECORD_BYTES * len(offsets), STICKY_RECORD_BYTES)
        starts += self._sticky_used_bytes.get(name, 0) - int(offsets[0])
        self._sticky_used_bytes[name] = int(starts[-1])
        return starts[:-1]

    def _partition_sticky(self, name: str, columns: RecordColumns) -> PartitionedRecords:
        """Choose partitions for rows without keys and partitions. This is faster than for other
        rows, because they stay in their order."""
        count = self._counts[name]
        first, targets = self._first_partition(name, count), self._targets(name, count)
        starts = self._count_sticky_bytes(name, blob_offsets(columns.values).astype(np.int64))
        # The sticky partition changes every `sticky_bytes`: run 0, 1, 2, … goes to one partition.
        # `cuts` are the first rows of the runs after the first one here.
        first_run, last_run = (int(starts[row]) // self._sticky_bytes for row in (0, -1))
        runs = range(first_run + 1, last_run + 1) if len(targets) > 1 else ()
        cuts = np.searchsorted(starts, np.array(runs, np.int64) * self._sticky_bytes).tolist()
        tps, ends = [], []
        for run, (start, end) in enumerate(pairwise([0, *cuts, len(starts)]), first_run):
            if start < end:  # a row can be larger than `sticky_bytes`
                tps.append(TopicPartition(name, targets[(first + run) % len(targets)]))
                ends.append(end)
        return PartitionedRecords(columns, tps, ends, range(len(starts)))


def _sort(
    topics: list[str],
    topic_of_row: np.ndarray | None,
    partitions: np.ndarray,
    columns: RecordColumns,
) -> PartitionedRecords:
    """Sort rows by topic and partition; rows of one partition stay in order. Each row has its
    partition in `partitions`, and its topic's index in `topic_of_row` (None: there is one)."""
    order: NDArray[np.int64] | range = range(len(partitions))
    targets = partitions
    span = int(partitions.max()) + 1  # target = topic's index * span + partition
    if topic_of_row is not None:
        targets = topic_of_row.astype(np.int64) * span + partitions
    if (targets[1:] < targets[:-1]).any():
        # Small numbers sort much faster as 16 bits. Stable: a partition's records keep their order.
        small = targets.astype(np.uint16) if int(targets.max()) < 1 << 16 else targets
        order = np.argsort(small, kind="stable")
        targets = targets[order]
        columns = taken(columns, order)
    cuts = np.flatnonzero(targets[1:] != targets[:-1]) + 1
    codes, numbers = np.divmod(targets[np.append(0, cuts)], span)
    tps = [
        TopicPartition(topics[code], number)
        for code, number in zip(codes.tolist(), numbers.tolist(), strict=True)
    ]
    return PartitionedRecords(columns, tps, [*cuts.tolist(), len(targets)], order)


# --- the records of a Producer --------------------------------------------------------------------

_FAILED_PARTITION = -2  # in place of a partition

AppendedRun: TypeAlias = tuple[TopicPartition, RowRange | Sequence[RecordFields], Indexes, int]
"""Records of one partition that follow each other: partition, records, their indexes, and about how
many bytes they take encoded."""


class RecordPartitioner:
    """Chooses the partitions of a Producer's records, as Java's producer or librdkafka does.

    A record fails if its partition does not exist, or if the user's callable fails for it. The
    other records do not.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._callable = settings.partitioner
        self._batch_size = settings.producer.batch_size
        # A quarter of a batch: a service may send little for long, which should not all be in one
        # partition.
        sticky_bytes = max(MIN_STICKY_BYTES, self._batch_size // 4)
        self._partitioner = Partitioner(
            settings.producer, known_topic=cluster.known_topic, sticky_bytes=sticky_bytes
        )

    def partition(self, records: TopicRecords, count: int) -> Iterator[AppendedRun]:
        """Choose partitions, of which the topic has `count`, and yield the records in runs of one
        partition. Records for a missing partition, or for which the user's callable fails, fail and
        are left out. Raises EncodeError."""
        if isinstance(records, AppendedRecords) and self._is_small(records, count):
            return self._partition_fields(records, count)
        return self._partition_columns(records, count)

    def _partition_columns(self, records: TopicRecords, count: int) -> Iterator[AppendedRun]:
        """Choose the partitions of all records of a topic together, with operations on columns.
        Yield the records of each partition; those for which none can be chosen fail."""
        columns, partitions = records.take_columns()
        indexes: Indexes = range(len(columns.timestamps_ms))
        if self._callable is not None:
            partitions = self._call_partitioner(records, columns, partitions, count)
        if partitions is not None:
            count = self._fail_missing_partitions(records, partitions, count)
            if (partitions == _FAILED_PARTITION).any():
                indexes = np.flatnonzero(partitions != _FAILED_PARTITION)
                columns, partitions = taken(columns, indexes), partitions[indexes]
        if not len(indexes):
            return
        partitioned = self._partitioner.partition_columns(records.topic, columns, partitions, count)
        if not isinstance(partitioned.rows, range):  # the rows were sorted
            indexes = partitioned.rows if isinstance(indexes, range) else indexes[partitioned.rows]
        for tp, rows, size_bytes in partitioned.runs():
            yield tp, rows, indexes[rows.low : rows.high], size_bytes

    def _is_small(self, records: AppendedRecords, count: int) -> bool:
        """Return whether it is faster to handle these records one by one, and possible: they fit
        into one batch, their partitions exist, and there is no callable."""
        if (
            self._callable is not None
            or not 0 < len(records.values) <= MAX_SCALAR_RECORDS
            or records.size_bytes > self._batch_size
        ):
            return False
        return not records.partitions or max(records.partitions.values()) < count

    def _partition_fields(self, records: AppendedRecords, count: int) -> Iterator[AppendedRun]:
        """Choose the partitions of a few records one by one. Yield neighbouring records of one
        partition together, with their indexes and their size."""
        topic = records.topic
        named, records.partitions = records.partitions, {}  # frees the memory
        fields = records.take_fields()
        partitions = self._partitioner.partition_fields(topic, fields, named, count)
        first = 0
        for partition, run in groupby(partitions):
            end = first + len(list(run))
            is_all = end - first == len(fields)
            chosen = fields if is_all else fields[first:end]
            size_bytes = records.size_bytes if is_all else sum(map(max_size_bytes, chosen))
            yield TopicPartition(topic, partition), chosen, range(first, end), size_bytes
            first = end

    def _call_partitioner(
        self,
        records: TopicRecords,
        columns: RecordColumns,
        partitions: NDArray[np.int64] | None,
        count: int,
    ) -> NDArray[np.int64]:
        """Call the user's callable for each record without a partition. Return the partitions of
        all records; where the callable fails, fail the record and set _FAILED_PARTITION."""
        partitioner, topic = self._callable, records.topic
        if partitions is None:
            partitions = np.full(len(columns.timestamps_ms), NO_PARTITION, np.int64)
        keys: Any = columns.keys
        values: Any = columns.values
        for index in np.flatnonzero(partitions == NO_PARTITION).tolist():
            key = None if keys is None else keys[index].as_py()
            try:
                chosen = partitioner(topic, key, values[index].as_py(), count)  # type: ignore[misc]
                if type(chosen) is int and 0 <= chosen < count:
                    partitions[index] = chosen
                    continue
                error = OptionError(
                    f"the callable partitioner.class returned {chosen!r} for a record of topic "
                    f"{topic}: it must be a whole number from 0 to {count - 1}"
                )
            except BaseException as failure:  # SystemExit and the like end nothing in this thread
                lines = traceback.format_exception_only(failure)  # str() may fail, too
                text = "".join(lines).strip()
                error = OptionError(
                    f"the callable partitioner.class failed for a record of topic {topic}: {text}"
                )
                error.__cause__ = failure
            partitions[index] = _FAILED_PARTITION
            records.failed(range(index, index + 1), error)
        return partitions

    def _fail_missing_partitions(
        self, records: TopicRecords, partitions: NDArray[np.int64], count: int
    ) -> int:
        """Fail records for partitions that do not exist, after another lookup of the topic, and set
        their partitions to _FAILED_PARTITION.

        Return the number of the topic's partitions. `count` is the number before the lookup.
        """
        topic = records.topic
        if int(partitions.max()) < count:
            return count
        with contextlib.suppress(KafkaError):  # the number that is known counts then
            self._cluster.request_metadata([topic], Deadline(3_000))
        newest_count = self._cluster.partition_count(topic)
        if newest_count is None:  # the sender finds out whether the topic is gone
            return count
        count = newest_count
        for partition in np.unique(partitions[partitions >= count]).tolist():
            indexes = np.flatnonzero(partitions == partition)
            partitions[indexes] = _FAILED_PARTITION
            error = unknown_partition_error(TopicPartition(topic, partition), count)
            records.failed(indexes, error, partition=partition)
        return count
