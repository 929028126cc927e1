"""From rows of a table to records of partitions: checks, choice of partitions, sorting.

Without I/O: partition counts and random numbers come as arguments. `protocol.partitioning` has the
rules for keys, `arguments` finds a table's columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.arguments import InputColumns
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.kinds import RANDOM, ROUND_ROBIN
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import EncodeError
from sparkkafka.protocol.columns.encode import RecordColumns, sliced
from sparkkafka.protocol.constants import NO_TIMESTAMP
from sparkkafka.protocol.partitioning import KEY_RULES, NO_PARTITION
from sparkkafka.protocol.records.arrow import blob_offsets, from_numpy, is_valid, or_zero, to_numpy

TASK = "this task"  # what rows are counted in, for errors

STICKY_BYTES = 2**20
STICKY_BATCHES = 8
MIN_STICKY_BYTES = 2**14
STICKY_RECORD_BYTES = 16  # stand for a record's own fields, so that tombstones count as well
"""Rows without key and partition go to one partition up to so many bytes, then to the next: rows
that are encoded together cost less. Partitions with small batches (batch.size) take turns earlier,
so that little data is spread as well."""


class InputRows(NamedTuple):
    """One Arrow batch's columns. `topics` is None if all rows go to `fixed_topic`."""

    length: int
    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    topics: pa.Array | None
    fixed_topic: str | None
    partitions: pa.Array | None
    timestamps: pa.Array | None = None  # microseconds since 1970, int64

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: InputColumns) -> InputRows:
        """One Arrow batch, in the types that the protocol needs."""
        at = columns
        return cls(
            length=batch.num_rows,
            keys=None if at.key is None else _cast(batch.column(at.key), pa.binary()),
            values=_cast(batch.column(at.value), pa.binary()),
            headers=None if at.headers is None else _plain_headers(batch.column(at.headers)),
            topics=(
                _cast(batch.column(at.topic), pa.string())
                if at.fixed_topic is None and at.topic is not None
                else None
            ),
            fixed_topic=at.fixed_topic,
            partitions=(
                None if at.partition is None else _cast(batch.column(at.partition), pa.int32())
            ),
            timestamps=None if at.timestamp is None else _micros(batch.column(at.timestamp)),
        )

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values, nulls as none."""
        return sum(_bytes_in(column) for column in (self.keys, self.values) if column is not None)

    @property
    def records(self) -> RecordColumns:
        """All rows as records without a time, to be measured."""
        return _columns(self, np.broadcast_to(np.int64(0), self.length))

    def take(self, at: NDArray[np.int64]) -> InputRows:
        """What records are made of, of these rows."""
        take = from_numpy(at)
        return self._replace(
            length=len(at),
            keys=None if self.keys is None else self.keys.take(take),
            values=self.values.take(take),
            headers=None if self.headers is None else self.headers.take(take),
        )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as `kind`. Arrow's text to binary copies nothing; large_* types shrink."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _plain_headers(column: pa.Array) -> pa.Array:
    """A list of structs as Spark has it; another layout of the same is turned into it."""
    if pa.types.is_list(column.type):
        struct = column.type.value_type
        if (
            pa.types.is_struct(struct)
            and struct.field(0).type == pa.string()
            and struct.field(1).type == pa.binary()
        ):
            return column
    return column.cast(_HEADERS)


def _micros(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = pa.timestamp("us", column.type.tz)
    return column.cast(kind, safe=False).cast(pa.int64())  # the same moment, whatever the zone


class Block(NamedTuple):
    """Records sorted by partition, in one table. `run_ends` are where each partition's run ends,
    `rows` the records' rows in the original table."""

    records: RecordColumns
    tps: list[TopicPartition]
    run_ends: list[int]
    rows: NDArray[np.int64] | range


class Partitioner:
    """Chooses each row's partition and cuts a batch into runs of one partition each.

    `partition_counts` looks up the number of partitions of topics (and raises for unknown ones),
    `newest_count` that of one topic without asking a broker (None: not known), `pick` a random
    number below its argument. `partitioner` is one of config.kinds.PARTITIONERS. Rows for which it
    has no rule fill one partition up to about `sticky_bytes`, then the next (KIP-480's sticky
    partitioning, in a fixed order from a random start, so that few batches spread evenly); with
    round_robin each row goes to the next.
    """

    def __init__(
        self,
        partition_counts: Callable[[list[str]], Mapping[str, int]],
        *,
        sticky_bytes: int,
        pick: Callable[[int], int],
        partitioner: str = "murmur2_random",
        newest_count: Callable[[str], int | None] = lambda name: None,
    ) -> None:
        self._ask = partition_counts
        self._newest_count = newest_count
        self._rule = KEY_RULES.get(partitioner)
        self._takes_turns = partitioner == ROUND_ROBIN
        self._counts: dict[str, int] = {}
        self._sticky_bytes = max(1, sticky_bytes)
        self._pick = pick
        self._stuck_bytes: dict[str, int] = {}
        self._start: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._seen_rows = 0

    @classmethod
    def of(
        cls,
        options: ProducerOptions,
        partition_counts: Callable[[list[str]], Mapping[str, int]],
        newest_count: Callable[[str], int | None],
    ) -> Partitioner:
        """By the settings of a producer."""
        wanted = min(STICKY_BYTES, STICKY_BATCHES * options.batch_size)
        return cls(
            partition_counts,
            # Not less than Java's default batch: a run of rows for each tiny batch would cost far
            # more.
            sticky_bytes=max(MIN_STICKY_BYTES, options.batch_size, wanted),
            pick=random.randrange,
            partitioner=RANDOM if options.partitioner_ignore_keys else options.partitioner,
            newest_count=newest_count,
        )

    def route(
        self, rows: InputRows, timestamp_ms: int
    ) -> Iterator[tuple[TopicPartition, RecordColumns]]:
        """Runs of rows of one partition, in the rows' order: one for each partition, by first
        appearance of their topic, then by partition; or, when no row has key or partition, as the
        partitions take turns. All rows are checked first.

        Rows without a timestamp get `timestamp_ms`. Raises EncodeError, naming the row, for a null
        topic, a partition that does not exist, a null header key, or a time before 1970.
        """
        records, tps, run_ends, _ = self.block(rows, timestamp_ms)
        ends = pairwise((0, *run_ends))
        return ((tp, sliced(records, *run)) for tp, run in zip(tps, ends, strict=True))

    def block(self, rows: InputRows, timestamp_ms: int) -> Block:
        """`route`, with all runs in one table."""
        first_row = self._seen_rows
        self._seen_rows += rows.length
        check_headers(rows, first_row, TASK)
        timestamps_ms = row_times_ms(rows, timestamp_ms, first_row, TASK)
        topics, topic_of_row = self._topics(rows, first_row)
        self._keep_counts(topics)
        partitions = None
        if rows.partitions is not None:
            partitions = to_numpy(rows.partitions).astype(np.int64)
            given = is_valid(rows.partitions)
            self._check_given(topics, topic_of_row, partitions, given, first_row)
            partitions[~given] = NO_PARTITION
        return self._arrange(topics, topic_of_row, partitions, rows, timestamps_ms)

    def checked_block(
        self,
        rows: InputRows,
        partitions: NDArray[np.int64] | None,
        timestamps_ms: NDArray[np.int64],
    ) -> Block:
        """As `block`, for rows of one topic that were checked; `partitions` are those that rows ask
        for, else NO_PARTITION."""
        topics = [rows.fixed_topic or ""]
        self._keep_counts(topics)
        return self._arrange(topics, None, partitions, rows, timestamps_ms)

    def _arrange(
        self,
        topics: list[str],
        topic_of_row: np.ndarray | None,
        partitions: NDArray[np.int64] | None,
        rows: InputRows,
        timestamps_ms: NDArray[np.int64],
    ) -> Block:
        if topic_of_row is None and partitions is None and self._any_will_do(rows.keys):
            return self._sticky_block(topics[0], rows, timestamps_ms)
        if partitions is None:
            partitions = np.full(rows.length, NO_PARTITION, np.int64)
        for code, name in enumerate(topics):
            here = topic_of_row == code if topic_of_row is not None else None
            self._fill(name, here, partitions, rows)
        return self._block(topics, topic_of_row, partitions, rows, timestamps_ms)

    # --- checks ---

    def _topics(self, rows: InputRows, first_row: int) -> tuple[list[str], np.ndarray | None]:
        """Distinct topics, and each row's index into them (None: there is one topic)."""
        if rows.topics is None:
            return [rows.fixed_topic or ""], None
        if rows.topics.null_count:
            row = int(np.argmin(is_valid(rows.topics)))
            raise EncodeError(
                "[KAFKA_NULL_TOPIC_IN_DATA] null topic present in the data. Use the topic option "
                f"for setting a topic. (row {first_row + row} of {TASK}"
                f"{_key_fact(rows, row)})"
            )
        coded = rows.topics.dictionary_encode()
        names = coded.dictionary.to_pylist()
        if len(names) == 1:
            return names, None
        return names, to_numpy(coded.indices)

    def _keep_counts(self, names: list[str]) -> None:
        """Take the newest counts: partitions may be added during a long write."""
        missing = []
        for name in names:
            count = self._newest_count(name)
            if count is not None:
                self._counts[name] = count
            elif name not in self._counts:
                missing.append(name)
        self._learn(missing)

    def _learn(self, names: list[str]) -> None:
        if names:
            self._counts.update(self._ask(names))

    def _check_given(
        self,
        topics: list[str],
        topic_of_row: np.ndarray | None,
        partitions: np.ndarray,
        given: np.ndarray,
        first_row: int,
    ) -> None:
        for again in (False, True):
            counts = np.array([self._counts[name] for name in topics], np.int64)
            limit = counts[0] if topic_of_row is None else counts[topic_of_row]
            bad = given & ((partitions < 0) | (partitions >= limit))
            if not bad.any():
                return
            if not again:
                # Partitions may have been added since this task asked.
                self._learn(topics)
        row = int(np.argmax(bad))
        name = topics[0 if topic_of_row is None else int(topic_of_row[row])]
        raise EncodeError(
            f"partition {int(partitions[row])} of topic {name} does not exist: it has partitions 0 "
            f"to {self._counts[name] - 1} (column partition, row {first_row + row} of "
            f"{TASK})"
        )

    # --- choice ---

    def _any_will_do(self, keys: pa.Array | None) -> bool:
        """Whether no rule chooses a partition for rows of these keys."""
        if self._takes_turns:
            return False
        return self._rule is None or (_all_null(keys) and not self._rule.null_is_empty)

    def partition(self, topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        """Choose the partition of one record of a topic with so many partitions."""
        if self._rule is not None:
            partition = self._rule.partition(key, count)
            if partition != NO_PARTITION:
                return partition
        first = self._first(topic, count)
        if self._takes_turns:
            turn = self._turns.get(topic, 0)
            self._turns[topic] = turn + 1
            return (first + turn) % count
        used_bytes = self._stuck_bytes.get(topic, 0)
        self._stuck_bytes[topic] = used_bytes + len(value or b"") + STICKY_RECORD_BYTES
        return (first + used_bytes // self._sticky_bytes) % count

    def _fill(
        self, name: str, here: np.ndarray | None, partitions: np.ndarray, rows: InputRows
    ) -> None:
        """Choose partitions for one topic's rows without one: by key, or in turn."""
        count = self._counts[name]
        open_rows = partitions < 0 if here is None else here & (partitions < 0)
        if not open_rows.any():
            return
        if self._rule is not None:
            if rows.keys is None:
                partitions[open_rows] = self._rule.partition(None, count)
            elif open_rows.all():
                partitions[:] = self._rule.partitions(rows.keys, count)
            else:
                keys = rows.keys.take(from_numpy(np.flatnonzero(open_rows)))
                partitions[open_rows] = self._rule.partitions(keys, count)
            open_rows &= partitions < 0
        at = np.flatnonzero(open_rows)
        if len(at) and self._takes_turns:
            partitions[at] = self._turn(name, count, len(at))
        elif len(at):
            lengths = or_zero(pc.binary_length(rows.values))
            partitions[at] = self._sticky(name, count, lengths[at])

    def _turn(self, name: str, count: int, rows: int) -> np.ndarray:
        """Partitions in turn, one for each row."""
        first = self._first(name, count) + self._turns.get(name, 0)
        self._turns[name] = self._turns.get(name, 0) + rows
        return np.arange(first, first + rows) % count

    def _sticky(self, name: str, count: int, lengths: np.ndarray) -> np.ndarray:
        """Partitions of rows without key and partition."""
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        starts = self._sticky_starts(name, count, ends)
        return (self._start[name] + starts // self._sticky_bytes) % count

    def _first(self, name: str, count: int) -> int:
        """The partition of a topic's first row without key and partition."""
        if name not in self._start:
            self._start[name] = self._pick(count)
        return self._start[name]

    def _sticky_starts(self, name: str, count: int, ends: np.ndarray) -> np.ndarray:
        """Bytes of the topic before each row; `ends` are the rows' offsets."""
        self._first(name, count)
        starts = ends + np.arange(0, STICKY_RECORD_BYTES * len(ends), STICKY_RECORD_BYTES)
        starts += self._stuck_bytes.get(name, 0) - int(ends[0])
        self._stuck_bytes[name] = int(starts[-1])
        return starts[:-1]

    def _sticky_block(self, name: str, rows: InputRows, timestamps_ms: np.ndarray) -> Block:
        """As `_fill` and `_block` for rows without key and partition, without a look at each
        row."""
        count = self._counts[name]
        starts = self._sticky_starts(name, count, blob_offsets(rows.values).astype(np.int64))
        first = int(starts[0]) // self._sticky_bytes
        steps = range(first + 1, int(starts[-1]) // self._sticky_bytes + 1) if count > 1 else ()
        cuts = np.searchsorted(starts, np.array(steps, np.int64) * self._sticky_bytes).tolist()
        tps, ends = [], []
        for step, (start, end) in enumerate(pairwise([0, *cuts, rows.length])):
            if start < end:  # a row can be larger than what a partition gets in one go
                partition = (self._start[name] + first + step) % count
                tps.append(TopicPartition(name, partition))
                ends.append(end)
        return Block(_columns(rows, timestamps_ms), tps, ends, range(rows.length))

    # --- runs ---

    def _block(
        self,
        topics: list[str],
        topic_of_row: np.ndarray | None,
        partitions: np.ndarray,
        rows: InputRows,
        timestamps_ms: np.ndarray,
    ) -> Block:
        order: NDArray[np.int64] | range = range(rows.length)
        targets = partitions
        span = int(partitions.max()) + 1
        if topic_of_row is not None:
            targets = topic_of_row.astype(np.int64) * span + partitions
        cuts = np.flatnonzero(targets[1:] != targets[:-1]) + 1
        if (targets[1:] < targets[:-1]).any():
            # Small numbers sort much faster as 16 bits. Stable: a partition's records keep their
            # order.
            small = targets.astype(np.uint16) if int(targets.max()) < 1 << 16 else targets
            order = np.argsort(small, kind="stable")
            targets = targets[order]
            rows = rows.take(order)
            if timestamps_ms.strides != (0,):  # not one time for all
                timestamps_ms = timestamps_ms[order]
            cuts = np.flatnonzero(targets[1:] != targets[:-1]) + 1
        firsts = targets[np.append(0, cuts)]
        codes, numbers = np.divmod(firsts, span)
        tps = [
            TopicPartition(topics[code], number)
            for code, number in zip(codes.tolist(), numbers.tolist(), strict=True)
        ]
        ends = [*cuts.tolist(), len(targets)]
        return Block(_columns(rows, timestamps_ms), tps, ends, order)


def row_times_ms(rows: InputRows, now_ms: int, first_row: int, place: str) -> NDArray[np.int64]:
    """Each row's time, rounded down, as by Spark's cast to a number and Java's truncation.

    Raises EncodeError for a time before 1970.
    """
    if rows.timestamps is None or rows.timestamps.null_count == rows.length:
        return np.broadcast_to(np.int64(now_ms), rows.length)
    timestamps_ms = to_numpy(rows.timestamps) // 1000
    if rows.timestamps.null_count:
        timestamps_ms[~is_valid(rows.timestamps)] = now_ms
    # -1 means "no timestamp": copies of old records have it.
    if int(timestamps_ms.min()) < NO_TIMESTAMP:
        row = int(timestamps_ms.argmin())
        raise EncodeError(
            f"the timestamp {int(timestamps_ms[row])} ms is before 1970, which a record's "
            f"cannot be (column timestamp, row {first_row + row} of {place}"
            f"{_key_fact(rows, row)})"
        )
    return timestamps_ms


def check_headers(rows: InputRows, first_row: int, place: str) -> None:
    """Raises EncodeError for a header without a key."""
    if rows.headers is None:
        return
    structs = rows.headers.flatten()
    if not structs.null_count and not structs.field(0).null_count:
        return
    bad = np.flatnonzero(~(is_valid(structs) & is_valid(structs.field(0))))[0]
    lengths = or_zero(pc.list_value_length(rows.headers))
    row = int(np.searchsorted(np.cumsum(lengths), bad, side="right"))
    raise EncodeError(
        f"a header without a key (row {first_row + row} of {place}"
        f"{_key_fact(rows, row)}): Kafka's header keys cannot be null"
    )


def _columns(rows: InputRows, timestamps_ms: np.ndarray) -> RecordColumns:
    return RecordColumns(rows.keys, rows.values, rows.headers, timestamps_ms)


def _all_null(column: pa.Array | None) -> bool:
    return column is None or column.null_count == len(column)


def _bytes_in(column: pa.Array) -> int:
    if column.null_count:  # Arrow does not say what lies under a null
        return int(or_zero(pc.binary_length(column)).sum(dtype=np.int64))
    offsets = blob_offsets(column)
    return int(offsets[-1]) - int(offsets[0])


def _key_fact(rows: InputRows, row: int) -> str:
    """The row's key, shortened, to find it by."""
    if rows.keys is None or not rows.keys[row].is_valid:
        return ""
    key = rows.keys[row].as_py()
    return f", key {key[:40]!r}{'…' if len(key) > 40 else ''}"
