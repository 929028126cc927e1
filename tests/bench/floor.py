"""The floor under every Python data source: what Spark's own Arrow transfer takes.

`PrebuiltReader` hands the same Arrow batch to Spark again and again, `DiscardWriter` takes batches
and drops them. Neither knows of Kafka, so no source or sink in Python can be faster than they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from sparkkafka.spark.arrow_types import arrow_schema
from sparkkafka.spark.schema import default_columns, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FLOOR = "prebuilt Arrow batches"
FLOOR_FORMAT = "floor"
_BATCH_ROWS, _BATCH_BYTES = 16384, 4 << 20  # as the reader makes them


def register(spark: SparkSession) -> None:
    # By value: workers need not find this folder.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FloorDataSource)


def floor_options(value_bytes: int, rows: int, partitions: int) -> dict[str, str]:
    """For a read of `rows` rows of all `partitions` together."""
    return {
        "value_bytes": str(value_bytes),
        "rows": str(rows // partitions),
        "partitions": str(partitions),
    }


class FloorDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FLOOR_FORMAT

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def reader(self, schema: StructType) -> PrebuiltReader:
        options = {name: int(self.options[name]) for name in ("value_bytes", "rows", "partitions")}
        return PrebuiltReader(**options)

    def writer(self, schema: StructType, overwrite: bool) -> DiscardWriter:
        return DiscardWriter()


class PrebuiltReader(DataSourceReader):
    def __init__(self, value_bytes: int, rows: int, partitions: int) -> None:
        self.value_bytes, self.rows, self.count = value_bytes, rows, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // self.value_bytes, self.rows))
        schema = arrow_schema(default_columns(include_headers=False))
        zeros = pa.array([0] * rows, pa.int64())
        columns = {
            "key": pa.array([b"12345678"] * rows, pa.binary()),
            "value": pa.array([bytes(self.value_bytes)] * rows, pa.binary()),
            "topic": pa.array(["a-topic"] * rows),
            "partition": zeros.cast(pa.int32()),
            "offset": zeros,
            "timestamp": zeros.cast(schema.field("timestamp").type),
            "timestampType": zeros.cast(pa.int32()),
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
        for first in range(0, self.rows, rows):
            yield batch.slice(0, min(rows, self.rows - first))


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
