"""Streaming reads: the classes that Spark calls, and how they plan small micro-batches.

On the driver a reader has a Python process of its own, as long as its query runs, which looks up
and plans (`StreamPlanner`). On the executors a pickled copy, which has only options, reads. Offsets
have the form {"topic": {"0": 23}}, the JSON of the JVM connector's checkpoints.

The driver's process reads small micro-batches itself and hands Spark their rows with the plan: a
Python task costs Spark more than reading some thousand rows. Spark stores such rows as a block,
which the batch's one task reads; if the block is lost, that task reads its InputPartition from
Kafka. So the driver may give up at any error or delay: tasks then wait, retry and report it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import offsets_of_tree, tree_of_offsets
from sparkkafka.errors import KafkaError
from sparkkafka.logs import set_up_logging
from sparkkafka.spark import pyspark_internals
from sparkkafka.spark.metric_reports import Report
from sparkkafka.spark.read.input_partitions import KafkaInputPartition, SmallRanges, TaskPartition
from sparkkafka.spark.schema import ReadColumn

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.client.cluster.cluster import Cluster
    from sparkkafka.client.deadline import CloseSignal
    from sparkkafka.spark.read.typed_columns import NewerSchemas
    from sparkkafka.spark.stream.planner import StreamPlanner

log = logging.getLogger(__name__)

Tree = dict[str, dict[str, int]]
"""Offsets as Spark's JSON has them: {topic: {partition: offset}}."""

MAX_DRIVER_BYTES = 4 * 2**20
"""The maximum Arrow bytes of rows that are handed over with a plan. Spark's driver keeps those of
the last plan in memory."""
DRIVER_READ_MS = 2_000
"""The time after which the driver leaves a micro-batch to tasks."""


class MicroBatch(NamedTuple):
    """The input partitions of a micro-batch; and its rows, if the driver has read them."""

    partitions: Sequence[TaskPartition]
    rows: list[pa.RecordBatch] | None = None


class KafkaStreamReader(
    pyspark_internals.PickledToTasks, pyspark_internals.RowsWithPlan, DataSourceStreamReader
):
    """The methods that all versions of Spark call. `KafkaDataSource.streamReader` chooses a
    subclass."""

    _plan_ahead: PlanAhead  # set together with `_open_planner`

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...]) -> None:
        super().__init__()
        self.options = options
        self.columns = columns
        self._open_planner: StreamPlanner | None = None
        self._driver_reader: DriverReader | None = None
        self._newer_schemas: NewerSchemas | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Sockets and rows are not pickled.
        not_pickled = ["_open_planner", "_plan_ahead", "_driver_reader", "_newer_schemas"]
        return {**self.__dict__, **dict.fromkeys([*not_pickled, "rows_with_plan"])}

    @property
    def _planner(self) -> StreamPlanner:
        """The planner, opened at first use, once no batch is being planned ahead."""
        if self._open_planner is not None:
            self._plan_ahead.wait()
            return self._open_planner
        # Imported here: executors do not need it.
        from sparkkafka.spark.stream.planner import StreamPlanner

        set_up_logging()
        if self.uses_internals:
            pyspark_internals.disable_socket_delays(pyspark_internals.find_spark_socket())
        planner = self._open_planner = StreamPlanner(self.options)
        self._plan_ahead = PlanAhead(partial(self._plan, planner))
        has_metadata = any(column.metadata for column in self.columns)
        if self.uses_internals and pyspark_internals.accepts_rows_with_plan(
            has_metadata=has_metadata
        ):
            self._driver_reader = DriverReader(planner.cluster, self.options, self.columns)
        formats = self.options.formats
        if formats is not None and any(column.plans for column in self.columns):
            from sparkkafka.spark.read.typed_columns import NewerSchemas

            self._newer_schemas = NewerSchemas(formats, self.columns)
            if topic := formats.dead_letter_topic:
                from sparkkafka.spark.read.dead_letters import check_dead_letter_topic

                try:
                    check_dead_letter_topic(planner.cluster, self.options, topic)
                except KafkaError:
                    self.stop()
                    raise
        return planner

    def initialOffset(self) -> Tree:
        """Return where a query without a checkpoint starts."""
        return tree_of_offsets(self._planner.initial_offsets())

    def partitions(self, start: Tree, end: Tree) -> Sequence[InputPartition]:
        """Return the input partitions of the micro-batch from `start` to `end`."""
        planner, end_offsets = self._planner, offsets_of_tree(end)
        batch = self._plan_ahead.take(offsets_of_tree(start), end_offsets)
        if self._newer_schemas is not None:
            self._newer_schemas.check()
        planner.begin_batch(end_offsets)
        if batch.rows is not None:  # Spark gets them from `getCache`
            self.rows_with_plan = batch.rows
        return batch.partitions

    def _plan(self, planner: StreamPlanner, start: Offsets, end: Offsets) -> MicroBatch:
        """Plan a micro-batch, and read it if it is small."""
        batch = MicroBatch(planner.plan(start, end))
        if self._driver_reader is None:
            return batch
        small = self._driver_reader.read(batch.partitions, planner.offset_bytes, planner.report)
        return small or batch

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of an input partition as Arrow batches. Runs on an executor."""
        from sparkkafka.spark.read.read_task import read_partition

        return read_partition(self.options, self.columns, partition)

    def commit(self, end: Tree) -> None:
        """Log the batch. There is nothing to commit: the offsets are in Spark's checkpoint."""
        if self._open_planner is not None:
            self._open_planner.finish_batch()

    def stop(self) -> None:
        """Close the planner, if there is one, and interrupt what it does. Spark calls this at the
        query's end."""
        if self._open_planner is not None:
            self._plan_ahead.stop(self._open_planner.close_signal)
            self._open_planner.close()
            self._open_planner = None


class FailedStreamReader(DataSourceStreamReader):
    """Raises an error in each method that Spark calls first.

    If `streamReader` raised it, Spark's message (4.0 to 4.3) would end with an UnboundLocalError:
    Spark stops the reader, which it does not have then.
    """

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def _raise(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _raise


class StreamReaderSpark40(KafkaStreamReader):
    """For Spark 4.0 and 4.1, which do not pass the start of the next micro-batch to `latestOffset`.

    A micro-batch starts at the end of the one before, which Spark plans first, also after a restart
    (then without rows). The first batch of a query starts at `initialOffset`.
    """

    _last_end: Tree | None = None

    def latestOffset(self) -> Tree:  # type: ignore[override]
        """Return the offsets at which the next micro-batch ends."""
        start = offsets_of_tree(self._last_end or self.initialOffset())
        end = self._planner.next_end(start, limited=True)
        self._plan_ahead.begin(start, end)
        return tree_of_offsets(end)

    def partitions(self, start: Tree, end: Tree) -> Sequence[InputPartition]:
        """Return the input partitions of a micro-batch; note its end, at which the next one
        begins."""
        partitions = super().partitions(start, end)
        self._last_end = end
        return partitions


if find_spec("pyspark.sql.streaming.datasource"):  # Spark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    class StreamReaderSpark42(KafkaStreamReader, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later, which passes the start and the limit of a micro-batch."""

        _to_plan_ahead: tuple[Offsets, Offsets] | None = None  # start and end of the next batch

        def latestOffset(self, start: Tree, limit: ReadLimit) -> Tree:
            """Return the offsets at which the next micro-batch ends.

            With Trigger.Once, Spark passes ReadAllAvailable whatever the options are: the batch
            then has all records, as with the JVM connector. Otherwise the limits of the options
            apply, since no ReadLimit can express all of them.
            """
            begin = offsets_of_tree(start)
            end = self._planner.next_end(begin, limited=not isinstance(limit, ReadAllAvailable))
            self._to_plan_ahead = (begin, end)
            return tree_of_offsets(end)

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return the limit that Spark passes to `latestOffset`, except with Trigger.Once."""
            limits = self.options.stream
            if limits.max_offsets_per_trigger is not None:
                return ReadMaxRows(limits.max_offsets_per_trigger)
            if limits.max_bytes_per_trigger is not None:
                return ReadMaxBytes(limits.max_bytes_per_trigger)
            if limits.min_offsets_per_trigger is not None:
                return ReadMinRows(limits.min_offsets_per_trigger)
            return ReadAllAvailable()

        def reportLatestOffset(self) -> Tree | None:
            """Return the ends of the logs at the last `latestOffset`, which Spark reports as
            `sources[].latestOffset`. Spark calls this right after `latestOffset`, and then writes
            the offsets to disk: meanwhile the batch is planned."""
            if self._open_planner is None:
                return None
            if self._to_plan_ahead is not None:
                self._plan_ahead.begin(*self._to_plan_ahead)
                self._to_plan_ahead = None
            return tree_of_offsets(self._open_planner.latest) or None

        def prepareForTriggerAvailableNow(self) -> None:
            """Let the query end at the present ends of the logs."""
            self._planner.stop_at_latest()


class DriverReader:
    """Reads the small micro-batches of one streaming query, with the planner's connections."""

    def __init__(
        self, cluster: Cluster, options: ReadOptions, columns: tuple[ReadColumn, ...]
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._columns = columns
        self._not_before_s = 0.0  # tasks read before this time, after a failed attempt

    def read(
        self,
        tasks: Sequence[TaskPartition],
        offset_bytes: Mapping[TopicPartition, float],
        report: Report,
    ) -> MicroBatch | None:
        """Read the ranges of these tasks on the driver, and return them with their rows as a
        micro-batch; count the rows in `report`. Return None if the ranges are not small, or if this
        attempt, or one in the last minute, failed."""
        ranges = [planned for task in tasks for planned in task.ranges]
        if not self._is_small(ranges, len(tasks), offset_bytes):
            return None
        # Imported here: a query whose batches are large needs no codec on the driver.
        from sparkkafka.spark.read.read_task import read_small_ranges

        reason = "it is larger than estimated, or takes too long"
        counted = Report()
        try:
            rows = read_small_ranges(
                self._cluster,
                self._options,
                self._columns,
                ranges,
                max_bytes=MAX_DRIVER_BYTES,
                limit_ms=DRIVER_READ_MS,
                report=counted,
            )
        except KafkaError as error:
            rows, reason = None, str(error)
        if rows is None:
            self._not_before_s = time.monotonic() + 60
            log.info("tasks read this micro-batch and those of the next minute: %s", reason)
            return None
        report.add_report(counted)
        return MicroBatch([ranges[0] if len(ranges) == 1 else SmallRanges(tuple(ranges))], rows)

    def _is_small(
        self,
        ranges: Sequence[KafkaInputPartition],
        task_count: int,
        offset_bytes: Mapping[TopicPartition, float],
    ) -> bool:
        """Return whether the driver may read these ranges, which `task_count` tasks would read."""
        options = self._options
        max_ranges = options.stream.max_ranges_per_task
        if task_count > 1 and (
            options.min_partitions is not None
            or options.max_records_per_partition is not None
            or (max_ranges is not None and len(ranges) > max_ranges)
        ):
            return False  # the options require several tasks
        # An unknown size counts as zero: an attempt stops at MAX_DRIVER_BYTES.
        size_bytes = sum(planned.count * offset_bytes.get(planned.tp, 0.0) for planned in ranges)
        return (
            0 < len(ranges) <= 1_000
            and sum(planned.count for planned in ranges)
            <= options.stream.max_records_read_by_driver
            and size_bytes <= MAX_DRIVER_BYTES
            and time.monotonic() >= self._not_before_s
        )


class PlanAhead:
    """Plans the next micro-batch in a thread, while Spark writes its offsets to a file.

    Spark does that between `latestOffset` and `partitions`. It takes 45 ms on a local disk and more
    on others, in which the planning process would only wait.

    `plan` is called with the start and the end of a micro-batch. Call `wait` before anything else
    uses what `plan` uses.
    """

    def __init__(self, plan: Callable[[Offsets, Offsets], MicroBatch]) -> None:
        self._plan = plan
        self._thread: threading.Thread | None = None
        self._range: tuple[Offsets, Offsets] | None = None
        self._planned: Future[MicroBatch] = Future()

    def begin(self, start: Offsets, end: Offsets) -> None:
        """Begin to plan that micro-batch, unless it is empty. Returns immediately, unless another
        batch is being planned."""
        if start == end:
            return
        self.wait()
        self._range, self._planned = (start, end), Future()
        self._thread = threading.Thread(
            target=self._plan_in_thread, args=self._range, name="sparkkafka-plan-ahead", daemon=True
        )
        self._thread.start()

    def _plan_in_thread(self, start: Offsets, end: Offsets) -> None:
        """Plan the micro-batch; keep the plan, or the error, for `take`."""
        # Let the main thread send its response to Spark before planning begins: this frees the GIL.
        time.sleep(0.001)
        try:
            self._planned.set_result(self._plan(start, end))
        except BaseException as error:
            self._planned.set_exception(error)

    def wait(self, limit_s: float | None = None) -> None:
        """Wait until no batch is being planned. `plan` has deadlines of its own."""
        if self._thread is not None:
            self._thread.join(limit_s)

    def stop(self, close_signal: CloseSignal) -> None:
        """Interrupt the planning of a batch. `close_signal` ends the waits of `plan`."""
        if self._thread is None or not self._thread.is_alive():
            return
        close_signal.close_in(0)
        self.wait(0.1)  # enough for a thread that waits, and not for one in a request
        if self._thread.is_alive():
            close_signal.cut_sockets()
            self.wait(2.0)

    def take(self, start: Offsets, end: Offsets) -> MicroBatch:
        """Return the plan of that micro-batch, which is made now unless it was planned ahead.
        Raises the errors of `plan`."""
        self.wait()
        planned_range, planned = self._range, self._planned
        self._thread, self._range, self._planned = None, None, Future()  # it may have many rows
        return planned.result() if planned_range == (start, end) else self._plan(start, end)
