"""A topic's records as Arrow batches, from where to where one wants, filtered by columns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.cli.records.positions import (
    COMMITTED,
    EARLIEST,
    TAIL,
    Place,
    chosen_ranges,
    ends,
    starts,
)
from sparkkafka.cli.refused_servers import check_not_refused
from sparkkafka.client.cluster.offsets import OffsetRange
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.client_settings import parse_consumer_settings
from sparkkafka.errors import KafkaTimeoutError, OptionError
from sparkkafka.protocol.records.arrow import (
    binary_array,
    from_numpy,
    is_valid,
    repeat_text,
    to_numpy,
)

FROM_EARLIEST: Final = Place(EARLIEST)

_FETCH_BYTES: Final = 4 << 20
"""Of one partition in one answer: a terminal's reader wants throughput, Java's default is 1 MB."""

_WAIT_S: Final = 0.5  # so that Ctrl-C and the end of --for are seen
_WAIT_FOR_END_S: Final = 0.05
"""Where only a marker or compacted records lie before the end, poll gives nothing, and the position
is what tells."""


@dataclass(frozen=True)
class Filter:
    """Which records are wanted. `headers`: name, and the value that one of them has (None: any)."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __bool__(self) -> bool:
        return self.key is not None or bool(self.headers)

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted rows."""
        keep: NDArray[np.bool_] = np.ones(batch.num_rows, np.bool_)
        if self.key is not None:
            keep &= _bits(pc.equal(batch.column("key"), binary_array([self.key])[0]))
        for name, value in self.headers:
            keep &= _has_header(batch.column("headers"), name, value)
        return batch if keep.all() else batch.filter(from_numpy(keep))


def _bits(column: pa.Array) -> NDArray[np.bool_]:
    """True where the column is; null is False."""
    return is_valid(column) & to_numpy(column.cast(pa.uint8())).astype(np.bool_)


def _has_header(headers: pa.Array, name: str, value: bytes | None) -> NDArray[np.bool_]:
    rows = to_numpy(pc.list_parent_indices(headers))
    names, values = headers.flatten().flatten()
    found = _bits(pc.equal(names, repeat_text(name, 1)[0]))
    if value is not None:
        found &= _bits(pc.equal(values, binary_array([value])[0]))
    has: NDArray[np.bool_] = np.zeros(len(headers), np.bool_)
    has[rows[found]] = True
    return has


@dataclass(frozen=True)
class ReadPlan:
    """What is read. `partitions` None: all. `until` None: for ever. `count` and `seconds`: at most;
    the count is of what the filter lets through."""

    topic: str
    partitions: tuple[int, ...] | None = None
    start: Place = FROM_EARLIEST
    until: Place | None = None
    count: int | None = None
    seconds: float | None = None
    filter: Filter = Filter()


class TopicReader:
    """Reads by a plan; use it under `with`. `settings` are a Consumer's.

    `timeout_s` bounds the first questions, and each wait for records that are there. Nothing is
    committed, and no group is joined. Aborted transactions are not shown, as in kcat, unless
    isolation.level says so. Raises OptionError, UnknownTopicError, KafkaTimeoutError, BrokerError.
    """

    def __init__(self, settings: Mapping[str, Any], plan: ReadPlan, timeout_s: float) -> None:
        given = {"isolation.level": "read_committed", "max.partition.fetch.bytes": _FETCH_BYTES}
        given |= settings
        given["enable.auto.commit"] = "false"
        if plan.start.kind == COMMITTED and "group.id" not in given:
            raise OptionError("to begin at committed offsets needs a group: give --group NAME")
        self._plan = plan
        self._timeout_s = timeout_s
        self._consumer = Consumer(given)
        self._options = parse_consumer_settings(given).client
        self.positions: dict[TopicPartition, int] = {}
        """Where each partition's reading has got to."""
        self.ends: dict[TopicPartition, int] = {}
        """Where it ends; empty if it goes on for ever."""
        self.leaders: dict[int, int] = {}
        """The broker that leads each partition, as far as it is known."""
        self._is_bound = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._consumer.__exit__(kind, *details)

    def bind(self) -> None:
        """Finds partitions, and where they begin and end. Waits `timeout_s` at most.

        Raises KafkaConnectionError if all servers refuse connections.
        """
        check_not_refused(self._options)
        plan, consumer, deadline = self._plan, self._consumer, Deadline(self._timeout_s * 1000)
        ranges = chosen_ranges(consumer, plan.topic, plan.partitions, deadline)
        if plan.start.kind == TAIL:
            self.positions = self._tail_starts(ranges, plan.start.number)
        else:
            self.positions = starts(consumer, ranges, plan.start, deadline)
        if plan.until is not None:
            self.ends = ends(consumer, ranges, plan.until, deadline)
        for row in consumer.partitions_for(plan.topic, deadline.remaining_s()):
            self.leaders[row.partition] = -1 if row.leader is None else row.leader.node_id
        self._is_bound = True

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches of one partition each, of RECORD_SCHEMA; never an empty one."""
        if not self._is_bound:
            self.bind()
        seconds = self._plan.seconds
        until_s = None if seconds is None else time.monotonic() + seconds
        return self._batches(self._plan.filter, self._plan.count, until_s)

    def _tail_starts(
        self, ranges: Mapping[TopicPartition, OffsetRange], count: int
    ) -> dict[TopicPartition, int]:
        """The offset of the last record but `count` - 1 of each partition.

        Transaction markers, aborted records and compacted ones take offsets too, so the last
        `count` offsets may hold fewer records: the search reads further back, in windows of twice
        the size each time.
        """
        found = {tp: row.earliest for tp, row in ranges.items()}
        missing = dict.fromkeys(ranges, count)
        below = {tp: row.latest for tp, row in ranges.items() if row.latest - row.earliest > count}
        width = count
        while below:
            windows = {tp: max(found[tp], end - width) for tp, end in below.items()}
            self.positions, self.ends = dict(windows), dict(below)
            offsets: dict[TopicPartition, list[NDArray[np.int64]]] = {tp: [] for tp in below}
            for batch in self._batches(Filter(), None, None):
                tp = TopicPartition(self._plan.topic, batch.column("partition")[0].as_py())
                offsets[tp].append(to_numpy(batch.column("offset")))
            for tp, parts in offsets.items():
                records = np.concatenate([*parts, np.empty(0, np.int64)])
                if len(records) >= missing[tp]:
                    found[tp] = int(records[len(records) - missing[tp]])
                    del below[tp]
                elif windows[tp] == ranges[tp].earliest:
                    del below[tp]
                else:
                    missing[tp] -= len(records)
                    below[tp] = windows[tp]
            width *= 2
        self.ends = {}
        return found

    def _batches(
        self, wanted: Filter, left: int | None, until_s: float | None
    ) -> Iterator[pa.RecordBatch]:
        """Batches from `positions` to `ends`, `left` records at most (None: all)."""
        self._assign()
        patience = Deadline(self._timeout_s * 1000)
        while self._consumer.assignment() and left != 0:
            wait_s = _WAIT_FOR_END_S if self.ends else _WAIT_S
            if until_s is not None:
                wait_s = min(wait_s, until_s - time.monotonic())
                if wait_s <= 0:
                    return
            table = self._consumer.poll_arrow(wait_s, None if wanted else left)
            if table.num_rows:
                patience = Deadline(self._timeout_s * 1000)
            for batch in table.to_batches():
                batch = self._within(batch, wanted)
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                if batch.num_rows:
                    yield batch
                if left == 0:
                    return
            if self.ends and self._moved_on(is_empty=not table.num_rows):
                patience = Deadline(self._timeout_s * 1000)
            elif self.ends and patience.expired:
                raise self._no_records()

    def _assign(self) -> None:
        """Those that have something left to read; the others are over."""
        open_ = {
            tp: offset
            for tp, offset in self.positions.items()
            if not self.ends or offset < self.ends[tp]
        }
        there = self._consumer.assignment()
        self._consumer.assign(list(open_) if there else open_)

    def _within(self, batch: pa.RecordBatch, wanted: Filter) -> pa.RecordBatch:
        tp = TopicPartition(self._plan.topic, batch.column("partition")[0].as_py())
        self.positions[tp] = batch.column("next_offset")[batch.num_rows - 1].as_py()
        if self.ends and self.positions[tp] > self.ends[tp]:
            offsets = to_numpy(batch.column("offset"))
            batch = batch.slice(0, int(np.searchsorted(offsets, self.ends[tp])))
        return wanted.kept(batch) if wanted and batch.num_rows else batch

    def _moved_on(self, *, is_empty: bool) -> bool:
        """Whether some position is further than before, or some partition done."""
        before = dict(self.positions)
        if is_empty:  # markers and compacted records give no rows
            for tp in self._consumer.assignment():
                self.positions[tp] = self._consumer.position(tp, self._timeout_s)
        is_done = any(self.positions[tp] >= self.ends[tp] for tp in self._consumer.assignment())
        if is_done:
            self._assign()
        return is_done or self.positions != before

    def _no_records(self) -> KafkaTimeoutError:
        waiting = {tp: self.positions[tp] for tp in self._consumer.assignment()}
        tp, offset = next(iter(waiting.items()))
        return KafkaTimeoutError(
            f"nothing came of {some_partitions(waiting)} for {self._timeout_s:g} s, at offset "
            f"{offset} of {self.ends[tp]} of {tp}: is its broker there? Give --timeout more "
            "seconds, or --debug to see why"
        )
