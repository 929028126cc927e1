"""Streaming reads: the classes that Spark talks to.

A reader lives in a process of its own on the driver as long as its query, where it answers for
offsets (`StreamOffsets`); a pickled copy of it, which holds options only, reads on the executors.
Offsets cross as {"topic": {"0": 23}}, the JSON of the JVM connector's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import offsets_of_tree, tree_of_offsets
from sparkkafka.errors import KafkaError
from sparkkafka.logs import set_up_logging
from sparkkafka.spark.pyspark_internals import (
    PickledToTasks,
    RowsWithPlan,
    accepts_rows_with_plan,
    disable_socket_delays,
    find_spark_socket,
)
from sparkkafka.spark.read.reader import check_dead_letter_topic, read_partition
from sparkkafka.spark.schema import ReadColumn

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.spark.stream.driver_read import DriverReads, SmallBatch
    from sparkkafka.spark.stream.micro_batch import Offsets
    from sparkkafka.spark.stream.newer_schemas import NewerSchemas
    from sparkkafka.spark.stream.plan_ahead import PlanAhead
    from sparkkafka.spark.stream.planner import StreamOffsets

Tree = dict[str, dict[str, int]]


class _Planned(NamedTuple):
    """The tasks of a micro-batch, and its rows if it is small."""

    tasks: Sequence[InputPartition]
    small: SmallBatch | None


class KafkaStreamReader(PickledToTasks, RowsWithPlan, DataSourceStreamReader):
    """What all versions of Spark call. `KafkaDataSource.streamReader` chooses a subclass."""

    _ahead: PlanAhead[_Planned]  # with `_live`

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...]) -> None:
        super().__init__()
        self.options = options
        self.columns = columns
        self._live: StreamOffsets | None = None
        self._driver_reads: DriverReads | None = None
        self._newer_schemas: NewerSchemas | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Neither sockets nor rows.
        not_pickled = ("_live", "_ahead", "_driver_reads", "_newer_schemas", "rows_with_plan")
        return {**self.__dict__, **dict.fromkeys(not_pickled)}

    @property
    def _offsets(self) -> StreamOffsets:
        if self._live is None:
            # Imported here, since executors do not need it.
            from sparkkafka.spark.stream.driver_read import DriverReads
            from sparkkafka.spark.stream.plan_ahead import PlanAhead
            from sparkkafka.spark.stream.planner import StreamOffsets

            set_up_logging()
            if self.uses_internals:
                disable_socket_delays(find_spark_socket())
            self._live = StreamOffsets(self.options)
            self._ahead = PlanAhead(partial(self._plan, self._live))
            has_metadata = any(column.metadata for column in self.columns)
            if self.uses_internals and accepts_rows_with_plan(has_metadata=has_metadata):
                self._driver_reads = DriverReads(self._live.cluster, self.options, self.columns)
            if any(column.plans for column in self.columns):
                from sparkkafka.spark.stream.newer_schemas import NewerSchemas

                self._newer_schemas = NewerSchemas(self.options, self.columns)
                try:
                    check_dead_letter_topic(self._live.cluster, self.options)
                except KafkaError:
                    self.stop()
                    raise
        else:
            self._ahead.wait()
        return self._live

    def initialOffset(self) -> Tree:
        """Where a query without a checkpoint starts."""
        return tree_of(self._offsets.initial())

    def partitions(self, start: Tree, end: Tree) -> Sequence[InputPartition]:
        """The tasks of the micro-batch that reads from `start` to `end`."""
        offsets, finish = self._offsets, offsets_of(end)
        tasks, small = self._ahead.take(offsets_of(start), finish)
        if self._newer_schemas is not None:
            self._newer_schemas.check()
        offsets.begin_batch(finish)
        if small is None:
            return tasks
        self.rows_with_plan = small.rows
        return [small.partition]

    def _plan(self, offsets: StreamOffsets, start: Offsets, end: Offsets) -> _Planned:
        tasks = offsets.plan(start, end)
        if self._driver_reads is None:
            return _Planned(tasks, None)
        small = self._driver_reads.read(tasks, offsets.offset_bytes, offsets.report)
        return _Planned(tasks, small)

    def _plan_ahead(self, start: Offsets, end: Offsets) -> None:
        """Begin to plan the batch that Spark will plan next, unless it is empty."""
        if start != end:
            self._ahead.begin(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records as Arrow batches. Runs on an executor."""
        return read_partition(self.options, self.columns, partition)

    def commit(self, end: Tree) -> None:
        """Nothing to do: the offsets are in Spark's checkpoint."""
        if self._live is not None:
            self._live.finish_batch()

    def stop(self) -> None:
        if self._live is not None:
            self._ahead.stop(self._live.close_signal)
            self._live.close()
            self._live = None


class BookkeepingStreamReader(KafkaStreamReader):
    """For Spark 4.0 and 4.1, which do not say where the next micro-batch starts.

    It is where the last one ended; after a restart Spark has that planned again, without rows.
    The first batch of a query starts where the query does, and Spark asks for its end first.
    """

    _at: Tree | None = None

    def latestOffset(self) -> Tree:  # type: ignore[override]
        start = offsets_of(self._at or self.initialOffset())
        end = self._offsets.next_end(start, limited=True)
        self._plan_ahead(start, end)
        return tree_of(end)

    def partitions(self, start: Tree, end: Tree) -> Sequence[InputPartition]:
        planned = super().partitions(start, end)
        self._at = end
        return planned


if find_spec("pyspark.sql.streaming.datasource"):  # Spark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    class LimitedStreamReader(KafkaStreamReader, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later, which hands over start and limit of a micro-batch."""

        _next: tuple[Offsets, Offsets] | None = None

        def latestOffset(self, start: Tree, limit: ReadLimit) -> Tree:
            """Where the next micro-batch ends.

            Trigger.Once passes ReadAllAvailable whatever the options say: it reads all there is,
            as with the JVM connector. Otherwise the options decide: no ReadLimit holds all of them.
            """
            limited, begin = not isinstance(limit, ReadAllAvailable), offsets_of(start)
            end = self._offsets.next_end(begin, limited=limited)
            self._next = (begin, end)
            return tree_of(end)

        def getDefaultReadLimit(self) -> ReadLimit:
            limits = self.options.stream
            if limits.max_offsets_per_trigger is not None:
                return ReadMaxRows(limits.max_offsets_per_trigger)
            if limits.max_bytes_per_trigger is not None:
                return ReadMaxBytes(limits.max_bytes_per_trigger)
            if limits.min_offsets_per_trigger is not None:
                return ReadMinRows(limits.min_offsets_per_trigger)
            return ReadAllAvailable()

        def reportLatestOffset(self) -> Tree | None:
            """The ends of the partitions when a batch was last asked for; `sources[].latestOffset`
            of the query's progress. Spark asks right after `latestOffset`, then writes to disk."""
            if self._live is None:
                return None
            if self._next is not None:
                self._plan_ahead(*self._next)
                self._next = None
            return tree_of(self._live.latest) or None

        def prepareForTriggerAvailableNow(self) -> None:
            self._offsets.stop_at_latest()


def offsets_of(tree: Tree) -> Offsets:
    return {TopicPartition(*key): offset for key, offset in offsets_of_tree(tree).items()}


def tree_of(offsets: Mapping[TopicPartition, int]) -> Tree:
    return tree_of_offsets({(tp.topic, tp.partition): at for tp, at in offsets.items()})
