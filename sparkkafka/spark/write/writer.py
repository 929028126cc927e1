"""The writers that Spark calls, for batch jobs and for streams.

Delivery is at least once: what a task has sent stays in Kafka if the task or the job fails later,
and a task or micro-batch that Spark runs again sends its rows again. Inside a task the idempotent
producer prevents duplicates by retries. With deliveryGuarantee=exactly-once tasks write in
transactions, and commit() commits all of them or none (`exactly_once`).

Neither Arrow nor numpy is imported here: Spark starts a new process to plan and to commit each
write, which starts much faster without them.
"""

from __future__ import annotations

import difflib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import datasource, types
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from sparkkafka import errors
from sparkkafka.client.arguments import InputColumns, find_columns
from sparkkafka.config.formats import FormatOptions
from sparkkafka.config.kinds import STRING
from sparkkafka.config.options import EXACTLY_ONCE, WriteOptions
from sparkkafka.config.parsed_options import warn
from sparkkafka.logs import EXECUTOR, set_up_logging
from sparkkafka.spark.pyspark_internals import PickledToTasks
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.write.commit_message import KafkaCommitMessage, report_write

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.schemas.column import EncodePlan
    from sparkkafka.spark.write.change_records import ChangeRecords

    class _ArrowSink(DataSourceStreamWriter):
        pass

elif hasattr(datasource, "DataSourceStreamArrowWriter"):  # Spark 4.1
    _ArrowSink = datasource.DataSourceStreamArrowWriter
else:

    class _ArrowSink(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 has Arrow writers only for batch jobs. But to pass Arrow batches to a task it
        checks only whether the writer is a `DataSourceArrowWriter`, which may also be a stream's.
        """


log = logging.getLogger(__name__)


class _KafkaWriter(PickledToTasks):
    """Base of the writers of batch jobs and of streams.

    Raises OptionError for columns that are missing or have a type that cannot be written.
    """

    is_stream = False

    def __init__(self, options: WriteOptions, schema: types.StructType) -> None:
        super().__init__()
        self.changes: ChangeRecords | None = None  # only in a write with an envelope
        if options.formats is not None and options.formats.envelope:
            from sparkkafka.spark.write.change_records import ChangeRecords

            self.changes = ChangeRecords.of(schema, options)
            options = replace(options, formats=self.changes.formats)
            schema = self.changes.schema
        self.options = options
        self.schema = schema
        self.columns = input_columns(schema, options.topic, options.formats)
        self.plans: tuple[EncodePlan, ...] = ()  # plans of the columns with a schema
        self.plan_error: errors.KafkaError | None = None  # tasks raise it
        # All tasks of a job or micro-batch, and its commit(), have the same id.
        self.writer_id = uuid.uuid4().hex

    @property
    def is_exactly_once(self) -> bool:
        """Whether deliveryGuarantee is exactly-once."""
        return self.options.delivery_guarantee == EXACTLY_ONCE

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Send all rows and wait until they are acknowledged. Runs on an executor.

        Raises ProduceError (topic, partition, the broker's message, written or not), EncodeError
        for rows that cannot be written, TransactionError if another writer took over, or a
        connection's or broker's error.
        """
        from sparkkafka.spark.write.write_task import write_rows  # imports Arrow

        set_up_logging(EXECUTOR)
        if self.plan_error is not None:
            raise self.plan_error
        attempt = None
        if self.is_exactly_once:
            from sparkkafka.spark.exactly_once import TaskAttempt

            make_attempt = TaskAttempt.of_stream if self.is_stream else TaskAttempt.of_job
            attempt = make_attempt(self.options.transactional_id_prefix, self.writer_id)
        if self.changes is not None:
            iterator = self.changes.records(iterator)
        return write_rows(iterator, self.columns, self.options, attempt, self.plans)

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Log and report the totals of a micro-batch, or (None) of a job; in an exactly-once write,
        make the rows visible first.

        Raises the errors of `commit_batch` or `commit_job` (`exactly_once`).
        """
        set_up_logging()
        # Spark passes None for a task that failed.
        finished = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        outcome = None
        if self.is_exactly_once:
            from sparkkafka.spark.exactly_once import commit_batch, commit_job

            reports = [message.report for message in finished if message.report is not None]
            if batchId is None:
                outcome = commit_job(self.options, reports)
            else:
                outcome = commit_batch(self.options, batchId, reports)
            log.info("%s", outcome.text)
        partitions = {key for message in finished for key in message.partitions}
        log.info(
            "%swrote %d rows (%d bytes of keys and values) to %d partitions of %d topics in %d "
            "tasks, %d batches (%d bytes as sent, %d retries)",
            "" if batchId is None else f"micro-batch {batchId}: ",
            sum(message.rows for message in finished),
            sum(message.payload_bytes for message in finished),
            len(partitions),
            len({topic for topic, _ in partitions}),
            len(finished),
            sum(message.batches for message in finished),
            sum(message.batch_bytes for message in finished),
            sum(message.retries for message in finished),
        )
        report_write(self.options.metrics_address, finished, outcome)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Log what a failed micro-batch, or (None) job, leaves in Kafka; in an exactly-once write,
        abort its transactions instead."""
        set_up_logging()
        finished = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        if not self.is_exactly_once:
            hint = "running the job again writes such rows a second time"
            if batchId is not None:
                hint = "the query writes the micro-batch again when it is started again"
            log.warning(
                "%sthe write failed, and writes are at-least-once: %d rows of %d finished tasks "
                "are in Kafka and stay there, and tasks that did not finish may have written some "
                "rows, too; %s",
                "" if batchId is None else f"micro-batch {batchId}: ",
                sum(message.rows for message in finished),
                len(finished),
                hint,
            )
            return
        from sparkkafka.spark.decision_text import WriterNames
        from sparkkafka.spark.exactly_once import abort_batch, abort_job

        reports = [message.report for message in finished if message.report is not None]
        stopped = len(reports) < len(messages)
        if batchId is None:
            names = WriterNames.of_job(self.options.transactional_id_prefix, self.writer_id)
            outcome = abort_job(self.options, reports, names, stopped_tasks=stopped)
            log.warning("the job failed: %s", outcome.text)
        else:
            outcome = abort_batch(self.options, batchId, reports, stopped_tasks=stopped)
            log.warning("%s", outcome.text)
        report_write(self.options.metrics_address, finished, outcome)


class KafkaBatchWriter(_KafkaWriter, DataSourceArrowWriter):
    """Writes a DataFrame; each task writes its rows with a producer of its own.

    Also raises SchemaError and RegistryError for columns with a schema.
    """

    def __init__(self, options: WriteOptions, schema: types.StructType) -> None:
        super().__init__(options, schema)
        self.plans = encode_plans(self.options, self.schema, self.columns)


class KafkaStreamWriter(_KafkaWriter, _ArrowSink):
    """Writes micro-batches. Spark creates two of these objects for each: for the tasks and for the
    commit.

    Also raises SchemaError and RegistryError for columns with a schema. But if the registry cannot
    be reached, only the tasks raise the error: it must not prevent the commit of what they have
    written.
    """

    is_stream = True

    def __init__(self, options: WriteOptions, schema: types.StructType) -> None:
        """Plan how columns with a schema are encoded. A status below 500 is a final answer of the
        registry, which a retry of the tasks cannot change."""
        super().__init__(options, schema)
        try:
            self.plans = encode_plans(self.options, self.schema, self.columns)
        except (errors.KafkaConnectionError, errors.KafkaTimeoutError) as error:
            self.plan_error = error
        except errors.RegistryError as error:
            if (error.status or 0) < 500:
                raise
            self.plan_error = error


def encode_plans(
    options: WriteOptions, schema: types.StructType, columns: InputColumns
) -> tuple[EncodePlan, ...]:
    """Return how each column with a schema is written; none without valueFormat and keyFormat.

    Raises OptionError, SchemaError, RegistryError.
    """
    if options.formats is None:
        return ()
    from sparkkafka.spark.write.encoding import plan_encoding

    return plan_encoding(options.formats, schema, columns)


def input_columns(
    schema: types.StructType, topic: str | None, formats: FormatOptions | None = None
) -> InputColumns:
    """Find and check the columns of a DataFrame, by the rules of Spark's KafkaWriter.

    Only this connector writes the column timestamp; the JVM connector ignores it. A column
    timestamp of another type is therefore ignored too, with a warning. With `formats`, key and
    value can have any type that their schema can.

    Raises OptionError with the text of the JVM connector's AnalysisException.
    """
    names = schema.names
    both = (formats.key, formats.value) if formats is not None else ()
    typed = {column.column for column in both if column.has_schema}
    texts = {column.column for column in both if column.format == STRING}

    def fits(name: str, position: int) -> bool:
        """Return whether the column of this name and position is written. Raises OptionError for a
        wrong type."""
        spark_type = schema.fields[position].dataType
        is_valid, expected, hint = _WRITTEN_COLUMNS[name]
        if name in typed:
            return True
        if name in texts and not _is_text(spark_type):
            raise errors.OptionError(
                f"{name}Format={STRING} needs a column {name} of type string, not "
                f"{spark_type.simpleString()}: cast it"
            )
        if is_valid(spark_type):
            return True
        if name == "timestamp":
            warn(
                "column timestamp",
                f"the column timestamp is not written: its type is {spark_type.simpleString()}, "
                "not timestamp; records get the time of writing (cast it, or drop it)",
            )
            return False
        raise errors.OptionError(
            f"{name} attribute unsupported type {spark_type.simpleString()}. {name} must be a(n) "
            f"{expected}{hint}"
        )

    def case_hint(name: str) -> str:
        """Return a hint if a column differs only in case: names are case-sensitive."""
        other = next((known for known in names if known.lower() == name), None)
        return f" (the column {other!r} must be written {name!r})" if other else ""

    # The errors of find_columns if one of these is missing.
    missing_messages = {
        "topic": "topic option required when no 'topic' attribute is present. "
        "Use the topic option for setting a topic: subscribe is the option of reads."
        f"{case_hint('topic')}",
        "value": "Required attribute 'value' not found"
        f"{case_hint('value') or _value_advice(names, typed='value' in typed)}",
    }
    columns = find_columns(names, topic, fits, missing_messages)
    # No warning for columns of a Kafka read, such as offset: nobody expects them to be written.
    known = {*_WRITTEN_COLUMNS, *(column.name for column in default_columns(include_headers=True))}
    unwritten = [name for name in names if name not in known]
    if unwritten:
        noun, verb = ("column", "is") if len(unwritten) == 1 else ("columns", "are")
        warn(
            f"columns {unwritten}",
            f"the {noun} {errors.some(unwritten, 5)} {verb} not written: a record is made of "
            f"{', '.join(_WRITTEN_COLUMNS)}. Put others in the value, with to_json(struct(*)) for "
            "instance, or drop them",
        )
    return columns


def _value_advice(names: Sequence[str], *, typed: bool) -> str:
    """Return what to do if there is no column value. `typed`: value has a schema."""
    near = difflib.get_close_matches("value", names, n=1)
    return (
        f": the columns are {', '.join(names) or 'none'}. Name the one to write "
        f"('{near[0] if near else '…'} AS value'), or write all as "
        f"{'struct(*)' if typed else 'to_json(struct(*))'} AS value"
    )


def _is_text(spark_type: types.DataType) -> bool:
    """Return whether this is the type string."""
    return isinstance(spark_type, types.StringType)


def _is_text_or_bytes(spark_type: types.DataType) -> bool:
    """Return whether this is the type string or binary."""
    return isinstance(spark_type, types.StringType | types.BinaryType)


def _is_headers(spark_type: types.DataType) -> bool:
    """Return whether this is the type of the column headers."""
    if not isinstance(spark_type, types.ArrayType) or not isinstance(
        spark_type.elementType, types.StructType
    ):
        return False
    fields = spark_type.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and _is_text(fields[0].dataType)
        and isinstance(fields[1].dataType, types.BinaryType)
    )


# By column: whether a type can be written, and for the error the expected types and what to do.

_WRITTEN_COLUMNS: Mapping[str, tuple[Callable[[types.DataType], bool], str, str]] = {
    "value": (
        _is_text_or_bytes,
        "string or binary",
        ": cast it, put several columns in one with to_json(struct(*)), or set valueFormat to "
        "write it with a schema",
    ),
    "key": (_is_text_or_bytes, "string or binary", ": cast it"),
    "headers": (
        _is_headers,
        "array<struct<key:string,value:binary>>",
        ": array(struct('source' AS key, CAST(text AS binary) AS value)), for instance",
    ),
    "topic": (_is_text, "string", ": cast it"),
    "partition": (lambda spark_type: isinstance(spark_type, types.IntegerType), "int", ": cast it"),
    "timestamp": (lambda spark_type: isinstance(spark_type, types.TimestampType), "timestamp", ""),
}
