"""One task of a read: a partition's range of offsets -> Arrow batches with Spark's columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.fetcher import Fetcher
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.errors import DecodeError
from sparkkafka.options import ReadOptions
from sparkkafka.protocol.arrow import from_numpy, repeat_text
from sparkkafka.protocol.columns import ALL_COLUMNS, HEADERS, HEADERS_TYPE, DecodedRecords
from sparkkafka.spark.schema import arrow_schema

ROWS_PER_BATCH = 8192
"""Rows of an Arrow batch handed to Spark. 64K rows were slower at 1 KB a row (measured)."""
BYTES_PER_BATCH = 4 * 2**20
"""Keys and values of an Arrow batch; large records make it shorter than ROWS_PER_BATCH."""

_MAX_MS = (2**63 - 1) // 1000  # what fits into Spark's microseconds


def read_range(
    options: ReadOptions, tp: TopicPartition, start: int, end: int, *, topic_id: bytes | None
) -> Iterator[pa.RecordBatch]:
    """The records with start <= offset < end as Arrow batches.

    Raises what `Fetcher` says, and DecodeError for a timestamp that Spark cannot hold.
    """
    with (
        Cluster(options.client) as cluster,
        Fetcher(
            cluster,
            tp,
            start,
            end,
            options.fetch,
            wanted=ALL_COLUMNS if options.include_headers else ALL_COLUMNS - {HEADERS},
            poll_timeout_ms=options.poll_timeout_ms,
            fail_on_data_loss=options.fail_on_data_loss,
            topic_id=topic_id,
        ) as fetcher,
    ):
        shaper = BatchShaper(tp.topic, tp.partition, include_headers=options.include_headers)
        for records in fetcher:
            yield from shaper.batches(records)


class BatchShaper:
    """Decoded records of one partition -> Arrow batches with the columns of `schema`."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._schema = arrow_schema(include_headers)
        self._include_headers = include_headers
        self._place = f"topic {topic} partition {partition}"
        # Constant columns are made once and sliced, which copies nothing.
        self._topics = repeat_text(topic, ROWS_PER_BATCH)
        self._partitions = from_numpy(np.full(ROWS_PER_BATCH, partition, np.int32))

    def batches(self, records: DecodedRecords) -> Iterator[pa.RecordBatch]:
        rows = len(records)
        step = ROWS_PER_BATCH
        size_bytes = sum(
            int(column.nbytes) for column in (records.keys, records.values) if column is not None
        )
        if size_bytes > BYTES_PER_BATCH:
            step = max(1, min(step, rows * BYTES_PER_BATCH // size_bytes))
        if rows:
            step = -(-rows // -(-rows // step))  # 10,000 rows as 5,000 twice, not 8,192 and 1,808
        for start in range(0, rows, step):
            yield self._batch(records.slice(start, min(start + step, rows)))

    def _batch(self, records: DecodedRecords) -> pa.RecordBatch:
        rows = len(records)
        columns = [
            _binary(records.keys, rows),
            _binary(records.values, rows),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            from_numpy(records.offsets),
            self._timestamps(records),
            from_numpy(records.timestamp_types),
        ]
        if self._include_headers:
            headers = records.headers
            columns.append(pa.nulls(rows, HEADERS_TYPE) if headers is None else headers)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _timestamps(self, records: DecodedRecords) -> pa.Array:
        """Milliseconds -> Spark's microseconds. Kafka's "no timestamp", -1 ms, becomes
        1969-12-31T23:59:59.999Z as in the JVM connector."""
        ms = records.timestamps_ms
        if ms is None:  # a reader always asks for them
            return pa.nulls(len(records), pa.timestamp("us", tz="UTC"))
        if len(ms) and (ms.max() > _MAX_MS or ms.min() < -_MAX_MS):
            row = int(np.argmax((ms > _MAX_MS) | (ms < -_MAX_MS)))
            raise DecodeError(
                f"{self._place} offset {int(records.offsets[row])}: the timestamp {int(ms[row])} "
                "ms does not fit into Spark's microseconds"
            )
        return from_numpy(ms * 1000, pa.timestamp("us", tz="UTC"))


def _binary(column: pa.Array | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.binary()) if column is None else column
