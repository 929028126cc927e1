"""The streaming sink: each micro-batch is written as a batch is.

At least once: a micro-batch that failed, or that had not been recorded in the checkpoint when the
query died, is written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sparkkafka.options import WriteOptions
from sparkkafka.spark.commit_message import KafkaCommitMessage, log_abort, log_commit
from sparkkafka.spark.logs import set_up_logging
from sparkkafka.spark.row_columns import input_columns

if TYPE_CHECKING:
    import pyarrow as pa

    class _ArrowSink(DataSourceStreamWriter):
        pass

elif hasattr(datasource, "DataSourceStreamArrowWriter"):  # Spark 4.1
    _ArrowSink = datasource.DataSourceStreamArrowWriter
else:

    class _ArrowSink(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 has Arrow for batch writers only; but what it looks at when it runs a task is
        whether the writer is one, not whether it is a stream's."""


class KafkaStreamWriter(_ArrowSink):
    """Writes each task's rows of a micro-batch with a producer of its own.

    Spark makes this object twice for each micro-batch: for the tasks, and for commit. Raises
    OptionError for columns that are missing or have a type that cannot be written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = input_columns(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """As `KafkaBatchWriter.write`."""
        from sparkkafka.spark.write_task import write_rows

        set_up_logging()
        return write_rows(iterator, self.columns, self.options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """One line with the totals. The records are visible already."""
        set_up_logging()
        log_commit(messages, f"micro-batch {batchId}: ")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Says what a failed micro-batch leaves behind."""
        set_up_logging()
        log_abort(
            messages,
            "the query writes the micro-batch again when it is started again",
            f"micro-batch {batchId}: ",
        )
