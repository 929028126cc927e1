"""Batch writes: rows of an Arrow batch -> columns of records per partition -> the producer.

At least once: what a task has sent stays in Kafka when the task or the job fails later, and a task
that Spark runs again sends its rows again. Inside a task the idempotent producer keeps retries from
doubling records. With deliveryGuarantee=exactly-once tasks write in transactions, which commit()
ends (`transactional_job`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparkkafka.config.options import EXACTLY_ONCE, WriteOptions
from sparkkafka.spark.logs import EXECUTOR, set_up_logging
from sparkkafka.spark.write.commit_message import (
    KafkaCommitMessage,
    log_abort,
    log_commit,
    task_reports,
)
from sparkkafka.spark.write.row_columns import input_columns

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes each task's rows with a producer of its own.

    Raises OptionError for columns that are missing or have a type that cannot be written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = input_columns(schema, options.topic)
        # Spark hands this object to the tasks and to commit(): an id that all of a job share.
        self.writer_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Sends all rows and waits until they are acknowledged. Runs on an executor.

        Raises ProduceError (topic, partition, the broker's words, written or not), EncodeError for
        rows that cannot be written, TransactionError if another writer took its place, or a
        connection's or broker's error.
        """
        # Here, not above: the processes that plan and commit a write need none of it.
        from sparkkafka.spark.exactly_once.task import TaskPlace
        from sparkkafka.spark.write.write_task import write_rows

        set_up_logging(EXECUTOR)
        place = None
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            place = TaskPlace.of_job(self.options.transactional_id_prefix, self.writer_id)
        return write_rows(iterator, self.columns, self.options, place)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One line with the totals. The records are visible already, or become so here.

        Raises as `transactional_job.commit_job`.
        """
        set_up_logging()
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            from sparkkafka.spark.exactly_once.job import commit_job

            logger.info("%s", commit_job(self.options, task_reports(messages)))
        log_commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what a failed job leaves behind; takes back what can be."""
        set_up_logging()
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            from sparkkafka.spark.exactly_once.decision import WriterNames
            from sparkkafka.spark.exactly_once.job import abort_job

            names = WriterNames.of_job(self.options.transactional_id_prefix, self.writer_id)
            reports = task_reports(messages)
            stopped = len(reports) < len(messages)
            text = abort_job(self.options, reports, names, stopped_tasks=stopped)
            logger.warning("the job failed: %s", text)
            return
        log_abort(messages, "running the job again writes them a second time")
