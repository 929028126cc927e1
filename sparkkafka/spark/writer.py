"""Batch writes: rows of an Arrow batch -> columns of records per partition -> the producer.

At least once: what a task has sent stays in Kafka when the task or the job fails later, and a task
that Spark runs again sends its rows again. Inside a task the idempotent producer keeps retries from
doubling records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparkkafka.options import WriteOptions
from sparkkafka.spark.commit_message import KafkaCommitMessage, log_abort, log_commit
from sparkkafka.spark.logs import set_up_logging
from sparkkafka.spark.row_columns import input_columns

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes each task's rows with a producer of its own.

    Raises OptionError for columns that are missing or have a type that cannot be written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = input_columns(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Sends all rows and waits until they are acknowledged. Runs on an executor.

        Raises ProduceError (topic, partition, the broker's words, written or not), EncodeError for
        rows that cannot be written, or a connection's or broker's error.
        """
        # Here, not above: the processes that plan and commit a write need none of it.
        from sparkkafka.spark.write_task import write_rows

        set_up_logging()
        return write_rows(iterator, self.columns, self.options)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One line with the totals. The records are visible already."""
        set_up_logging()
        log_commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what a failed job leaves behind."""
        set_up_logging()
        log_abort(messages, "running the job again writes them a second time")
