"""The streaming sink: each micro-batch is written as a batch is.

At least once: a micro-batch that failed, or that the checkpoint did not have when the query died,
is written again. With deliveryGuarantee=exactly-once tasks write in transactions, and commit()
commits all of them or none (`exactly_once`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sparkkafka.config.options import EXACTLY_ONCE, WriteOptions
from sparkkafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RegistryError,
)
from sparkkafka.spark.logs import EXECUTOR, set_up_logging
from sparkkafka.spark.pyspark_internals import PickledToTasks
from sparkkafka.spark.write.commit_message import (
    KafkaCommitMessage,
    log_abort,
    log_commit,
    report_write,
    task_reports,
)
from sparkkafka.spark.write.writer import encode_plans, input_columns

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.schemas.column import EncodePlan

    class _ArrowSink(DataSourceStreamWriter):
        pass

elif hasattr(datasource, "DataSourceStreamArrowWriter"):  # Spark 4.1
    _ArrowSink = datasource.DataSourceStreamArrowWriter
else:

    class _ArrowSink(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 has Arrow for batch writers only; but what it looks at when it runs a task is
        whether the writer is one, not whether it is a stream's."""


class KafkaStreamWriter(PickledToTasks, _ArrowSink):
    """Writes each task's rows of a micro-batch with a producer of its own.

    Spark makes this object twice for each micro-batch: for the tasks, and for commit. Raises
    OptionError for columns that are missing or have a type that cannot be written; and for columns
    with a schema SchemaError and RegistryError. That the registry is away is raised by the tasks,
    since it must not keep from commit what they have written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__()
        self.options = options
        self.columns = input_columns(schema, options.topic, options.formats)
        self.plans: tuple[EncodePlan, ...] = ()
        self.no_plans: KafkaError | None = None
        try:
            self.plans = encode_plans(options, schema, self.columns)
        except (KafkaConnectionError, KafkaTimeoutError) as error:
            self.no_plans = error
        except RegistryError as error:
            if (error.status or 0) < 500:
                raise
            self.no_plans = error
        self.writer_id = uuid.uuid4().hex  # the same for all tasks of a micro-batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """As `KafkaBatchWriter.write`."""
        from sparkkafka.spark.exactly_once.task import TaskAttempt
        from sparkkafka.spark.write.write_task import write_rows

        set_up_logging(EXECUTOR)
        if self.no_plans is not None:
            raise self.no_plans
        attempt = None
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            attempt = TaskAttempt.of_stream(self.options.transactional_id_prefix, self.writer_id)
        return write_rows(iterator, self.columns, self.options, attempt, self.plans)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """One line with the totals. The records are visible already, or become so here.

        Raises as `exactly_once.commit.commit_batch`.
        """
        set_up_logging()
        ended = None
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            from sparkkafka.spark.exactly_once.commit import commit_batch

            ended = commit_batch(self.options, batchId, task_reports(messages))
            log.info("%s", ended.text)
        log_commit(messages, f"micro-batch {batchId}: ")
        visible = ended is None or ended.visible
        report_write(self.options.metrics_address, messages, ended, visible=visible)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Says what a failed micro-batch leaves behind; takes back what can be."""
        set_up_logging()
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            from sparkkafka.spark.exactly_once.commit import abort_batch

            reports = task_reports(messages)
            stopped = len(reports) < len(messages)
            ended = abort_batch(self.options, batchId, reports, stopped_tasks=stopped)
            log.warning("%s", ended.text)
            report_write(self.options.metrics_address, messages, ended, visible=False)
            return
        log_abort(
            messages,
            "the query writes the micro-batch again when it is started again",
            f"micro-batch {batchId}: ",
        )
