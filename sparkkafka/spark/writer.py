"""Batch writes: rows of an Arrow batch -> columns of records per partition -> the producer.

At least once: what a task has sent stays in Kafka when the task or the job fails later, and a task
that Spark runs again sends its rows again. Inside a task the idempotent producer keeps retries from
doubling records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparkkafka.options import WriteOptions
from sparkkafka.spark.logs import set_up_logging
from sparkkafka.spark.row_columns import input_columns

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KafkaCommitMessage(WriterCommitMessage):
    """What one task wrote, all of it acknowledged as `kafka.acks` says.

    `payload_bytes` are those of keys and values. `partition_rows` counts rows by
    (topic, partition).
    """

    rows: int
    payload_bytes: int
    partition_rows: dict[tuple[str, int], int] = field(default_factory=dict)


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
        return KafkaCommitMessage(*write_rows(iterator, self.columns, self.options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One line with the totals. The records are visible already."""
        set_up_logging()
        done = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        partitions = {key for message in done for key in message.partition_rows}
        logger.info(
            "wrote %d rows (%d bytes of keys and values) to %d partitions of %d topics in %d tasks",
            sum(message.rows for message in done),
            sum(message.payload_bytes for message in done),
            len(partitions),
            len({topic for topic, _ in partitions}),
            len(done),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what a failed job leaves behind: Kafka cannot take records back."""
        set_up_logging()
        done = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        logger.warning(
            "the write failed, and writes are at-least-once: %d rows of %d finished tasks, and "
            "perhaps some rows of unfinished ones, are in Kafka and stay there; running the job "
            "again writes them a second time",
            sum(message.rows for message in done),
            len(done),
        )
