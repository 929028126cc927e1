"""One task of a read: it reads ranges of offsets, and yields Arrow batches with Spark's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.consumer.range_reader import OpenBounds, PlannedRange, RangeReader
from sparkkafka.client.consumer.record import or_nulls, partition_column, times_as_us, topic_column
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import DataLossError, DecodeError, UnknownTopicError
from sparkkafka.logs import EXECUTOR, set_up_logging
from sparkkafka.protocol.columns.columns import (
    ALL_COLUMNS,
    CHUNK_RECORDS,
    HEADERS_TYPE,
    DecodedRecords,
    Selection,
)
from sparkkafka.protocol.constants import NO_OFFSET
from sparkkafka.protocol.records.arrow import filtered_positions, from_numpy
from sparkkafka.spark.arrow_types import arrow_schema
from sparkkafka.spark.metric_reports import Count, Report, task_report
from sparkkafka.spark.read.input_partitions import KafkaInputPartition, TaskPartition
from sparkkafka.spark.schema import ReadColumn

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from sparkkafka.spark.read.decoding import TaskDecoder

ROWS_PER_BATCH = CHUNK_RECORDS
"""The most rows of an Arrow batch: what was decoded together is one batch. More were no faster."""
BYTES_PER_BATCH = 4 * 2**20
"""The most bytes of keys and values of an Arrow batch; large records make it shorter."""


def read_partition(
    options: ReadOptions, columns: tuple[ReadColumn, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Return the records of an input partition, of a batch read or stream, as Arrow batches."""
    set_up_logging(EXECUTOR)
    if not isinstance(partition, TaskPartition):
        # Spark turns an empty list of partitions into one InputPartition(None).
        return iter(())
    return read_ranges(options, columns, partition.ranges)


def read_ranges(
    options: ReadOptions, columns: tuple[ReadColumn, ...], ranges: Sequence[KafkaInputPartition]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the ranges, each of another partition, as Arrow batches.

    Raises the errors of `RangeReader`, and DecodeError for a timestamp or text that Spark cannot
    hold.
    """
    # The leader at planning time answers the metadata request. If it still leads, the same
    # connection fetches.
    with (
        task_report(options.metrics_address) as report,
        Cluster(options.client, try_first=ranges[0].leader, for_task=True) as cluster,
        _task_decoder(options, columns, report) as decoder,
    ):
        bound = [_bind_times(cluster, options, planned) for planned in ranges]
        ranges = [planned for planned in bound if planned is not None]
        reader = RangeReader(
            cluster,
            _planned_ranges(options, columns, ranges),
            options.fetch,
            poll_timeout_ms=options.poll_timeout_ms,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        with reader:
            batches = _arrow_batches(reader, options, columns, ranges, decoder, report)
            try:
                yield from batches if len(ranges) == 1 else _merge_batches(batches)
            except DataLossError as error:
                # The JVM connector's condition, which people search for.
                condition = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
                raise DataLossError(f"[{condition}] {error}") from error
            finally:
                for tp, count in reader.retries.items():
                    report.add(Count.RETRIES, count, *tp)
                for tp, count in reader.lost.items():
                    report.add(Count.LOST, count, *tp)


def read_small_ranges(
    cluster: Cluster,
    options: ReadOptions,
    columns: tuple[ReadColumn, ...],
    ranges: Sequence[KafkaInputPartition],
    *,
    max_bytes: int,
    limit_ms: int,
    report: Report,
) -> list[pa.RecordBatch] | None:
    """Return all records of the ranges. Return None if they have more than `max_bytes` as Arrow
    batches, if reading takes longer than `limit_ms`, or if a topic has been recreated.

    Raises KafkaError if a range cannot be read completely for another reason, data loss included: a
    task that reads it with `read_ranges` waits, or applies failOnDataLoss.
    """
    leaders = len({planned.leader for planned in ranges})
    # The leaders' first responses have no more than `max_bytes` together, if that is possible.
    fetch = replace(
        options.fetch,
        fetch_max_bytes=min(options.fetch.fetch_max_bytes, max(max_bytes // leaders, 64 * 2**10)),
        max_decompressed_batch_bytes=min(options.fetch.max_decompressed_batch_bytes, 4 * max_bytes),
    )
    deadline = Deadline(limit_ms)
    batches: list[pa.RecordBatch] = []
    size_bytes = 0
    planned_ranges = _planned_ranges(options, columns, ranges)
    with (
        RangeReader(cluster, planned_ranges, fetch, poll_timeout_ms=limit_ms) as reader,
        _task_decoder(options, columns, report, on_driver=True) as decoder,
    ):
        for batch in _arrow_batches(reader, options, columns, ranges, decoder, report):
            batches.append(batch)
            size_bytes += batch.nbytes
            if size_bytes > max_bytes or deadline.expired:
                return None
    if not reader.fetches_by_name:  # brokers have checked the topics' ids
        return list(_merge_batches(batches))
    # Checked after the read: if a topic still has its id, the records are those of that topic.
    cluster.topics(sorted({planned.topic for planned in ranges}), deadline)
    if any(planned.topic_id not in (None, cluster.topic_id(planned.topic)) for planned in ranges):
        return None
    return list(_merge_batches(batches))


def _planned_ranges(
    options: ReadOptions, columns: tuple[ReadColumn, ...], ranges: Sequence[KafkaInputPartition]
) -> dict[TopicPartition, PlannedRange]:
    """Return the ranges for a `RangeReader`, with the columns of records that the read needs."""
    names = ALL_COLUMNS & {column.name for column in columns}
    if options.formats is not None and any(column.plans for column in columns):
        from sparkkafka.spark.read.decoding import needed_columns

        names |= needed_columns(columns, options.formats)
    return {
        planned.tp: PlannedRange(
            Selection(planned.start, planned.end, names, planned.times_ms),
            planned.topic_id,
            open_bounds=OpenBounds(
                planned.open_start, planned.open_end, planned.whole_log, planned.leader_epoch
            ),
        )
        for planned in ranges
    }


def _arrow_batches(
    reader: RangeReader,
    options: ReadOptions,
    columns: tuple[ReadColumn, ...],
    ranges: Sequence[KafkaInputPartition],
    decoder: TaskDecoder | None,
    report: Report,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the reader as Arrow batches, and count them in the report."""
    shapers = {
        planned.tp: BatchShaper(
            planned.tp, columns, null_for_bad_text=options.invalid_utf8 == "null", decoder=decoder
        )
        for planned in ranges
    }
    for tp, records in reader:
        report.add(Count.RECORDS, len(records), *tp)
        report.add(Count.BYTES, records.column_bytes, *tp)
        yield from shapers[tp].batches(records)


def _merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches, of up to ROWS_PER_BATCH and BYTES_PER_BATCH: each batch
    costs Spark half a millisecond, however small it is."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if waiting and (rows > ROWS_PER_BATCH or size_bytes > BYTES_PER_BATCH):
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows, size_bytes = [], batch.num_rows, batch.nbytes
        waiting.append(batch)
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _task_decoder(
    options: ReadOptions,
    columns: tuple[ReadColumn, ...],
    report: Report,
    *,
    on_driver: bool = False,
) -> AbstractContextManager[TaskDecoder | None]:
    """Return the decoder of columns with a schema, to be used in a `with` block; None in it if no
    column has one. `on_driver`: the driver reads, for a small micro-batch."""
    formats = options.formats
    if formats is None or not any(column.plans for column in columns):
        return nullcontext()
    from sparkkafka.spark.read.decoding import TaskDecoder

    return TaskDecoder(options, formats, columns, report, on_driver=on_driver)


def _bind_times(
    cluster: Cluster, options: ReadOptions, planned: KafkaInputPartition
) -> KafkaInputPartition | None:
    """Look up again the times of a range's start and end that no record had reached at planning,
    and return the range with their offsets; None if no record has reached the start's time since.
    Raises the errors of `OffsetLookup`."""
    if planned.start_time_ms is None and planned.end_time_ms is None:
        return planned
    cluster.assume_exists(planned.topic)
    deadline = Deadline(options.client.default_api_timeout_ms)
    lookup = OffsetLookup(cluster, options.fetch.isolation_level)

    def offset_at(time_ms: int | None) -> int:
        """Return the first offset with that time or a later one; NO_OFFSET for none, or no time."""
        if time_ms is None:
            return NO_OFFSET
        return lookup.offsets({planned.tp: time_ms}, deadline)[planned.tp]

    try:
        start, end = offset_at(planned.start_time_ms), offset_at(planned.end_time_ms)
    except UnknownTopicError:
        # RangeReader applies failOnDataLoss. If the topic is back by then, it is another one, whose
        # offsets at these times are not known.
        return replace(planned, whole_log=False)
    if start == NO_OFFSET:
        if planned.start_time_ms is not None:
            return None
        start = planned.start
    if end == NO_OFFSET:  # still: the end stays open
        return replace(planned, start=start, end=max(start, planned.end))
    if planned.whole_log and end < start:
        start = 0  # the topic was recreated, and its log may begin at any offset
    return replace(planned, start=start, end=max(start, end), open_end=False)


class BatchShaper:
    """Makes Arrow batches with the columns of a read from the decoded records of a partition."""

    def __init__(
        self,
        tp: TopicPartition,
        columns: tuple[ReadColumn, ...],
        *,
        null_for_bad_text: bool = False,
        decoder: TaskDecoder | None = None,
    ) -> None:
        self._decoder = decoder
        self._schema = arrow_schema(columns)
        self._partition_name = f"topic {tp.topic} partition {tp.partition}"
        self._null_for_bad_text = null_for_bad_text
        self._tp = tp
        makers: dict[str, Callable[[DecodedRecords], pa.Array]] = {
            "key": lambda records: or_nulls(records.keys, len(records), pa.binary()),
            "value": lambda records: or_nulls(records.values, len(records), pa.binary()),
            "topic": lambda records: topic_column(tp.topic, len(records)),
            "partition": lambda records: partition_column(tp.partition, len(records)),
            "offset": lambda records: from_numpy(records.offsets),
            "timestamp": lambda records: times_as_us(records, self._partition_name),
            "timestampType": lambda records: from_numpy(records.timestamp_types),
            "headers": lambda records: or_nulls(records.headers, len(records), HEADERS_TYPE),
        }
        # None for columns of the decoder: those with a schema, bad_record and rescued.
        self._columns = [
            (column, None if column.arrow_type is not None else makers[column.name])
            for column in columns
            if not column.is_hidden
        ]

    def batches(self, records: DecodedRecords) -> Iterator[pa.RecordBatch]:
        """Yield the records in batches of about equal length."""
        rows = len(records)
        step = ROWS_PER_BATCH
        size_bytes = sum(
            int(column.nbytes) for column in (records.keys, records.values) if column is not None
        )
        if size_bytes > BYTES_PER_BATCH:
            step = max(1, min(step, rows * BYTES_PER_BATCH // size_bytes))
        if rows:
            step = -(-rows // -(-rows // step))  # 10,000 rows as 5,000 twice, not 9,000 and 1,000
        for start in range(0, rows, step):
            piece = records.slice(start, min(start + step, rows))
            if self._decoder is None:
                yield self._batch({}, piece)
            else:
                for decoded, good_records in self._decoder.decode_in_pieces(self._tp, piece):
                    yield self._batch(decoded, good_records)

    def _batch(self, decoded: Mapping[str, pa.Array], records: DecodedRecords) -> pa.RecordBatch:
        """Return a batch of the records. `decoded` has the columns with a schema by name."""
        arrays = []
        for column, make in self._columns:
            if make is None:
                arrays.append(decoded[column.name])
            elif column.as_text:
                arrays.append(self._as_text(column.name, make(records), records))
            else:
                arrays.append(make(records))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _as_text(self, name: str, array: pa.Array, records: DecodedRecords) -> pa.Array:
        """Return the bytes as a string column. Bytes that are not UTF-8 become null
        (invalidUtf8=null), or raise DecodeError."""
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            from sparkkafka.schemas.arrays import is_utf8

            keep = is_utf8(array)
        if self._null_for_bad_text:
            # Cast the good values only, and then insert a null for each bad one.
            return array.filter(from_numpy(keep)).cast(pa.string()).take(filtered_positions(keep))
        bad = int(keep.argmin())
        raise DecodeError(
            f"{self._partition_name} offset {records.offsets[bad]}: the {name} is not UTF-8 "
            f"({array[bad].as_py()[:40]!r}). Read it as binary, or set invalidUtf8=null to get "
            "null for such values"
        )
