"""Batch writes: rows of an Arrow batch -> columns of records per partition -> the producer.

At least once: what a task has sent stays in Kafka when the task or the job fails later, and a task
that Spark runs again sends its rows again. Inside a task the idempotent producer keeps retries from
doubling records. With deliveryGuarantee=exactly-once tasks write in transactions, which commit()
ends (`exactly_once.commit`).

Neither Arrow nor numpy is imported here: the processes that plan and commit a write are new each
time, and start much faster without them.
"""

from __future__ import annotations

import difflib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from sparkkafka.client.arguments import InputColumns, find_columns
from sparkkafka.config.check import warn
from sparkkafka.config.format_rows import STRING
from sparkkafka.config.options import EXACTLY_ONCE, WriteOptions
from sparkkafka.errors import OptionError, some
from sparkkafka.spark.logs import EXECUTOR, set_up_logging
from sparkkafka.spark.pyspark_internals import PickledToTasks
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.write.commit_message import (
    KafkaCommitMessage,
    log_abort,
    log_commit,
    report_write,
    task_reports,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.config.formats import FormatOptions
    from sparkkafka.schemas.column import EncodePlan

log = logging.getLogger(__name__)


class KafkaBatchWriter(PickledToTasks, DataSourceArrowWriter):
    """Writes each task's rows with a producer of its own.

    Raises OptionError for columns that are missing or have a type that cannot be written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__()
        self.options = options
        self.columns = input_columns(schema, options.topic, options.formats)
        self.plans = encode_plans(options, schema, self.columns)
        # Spark hands this object to the tasks and to commit(): an id that all of a job share.
        self.writer_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Sends all rows and waits until they are acknowledged. Runs on an executor.

        Raises ProduceError (topic, partition, the broker's message, written or not), EncodeError
        for rows that cannot be written, TransactionError if another writer took its place, or a
        connection's or broker's error.
        """
        # Here, not above, for Arrow.
        from sparkkafka.spark.exactly_once.task import TaskAttempt
        from sparkkafka.spark.write.write_task import write_rows

        set_up_logging(EXECUTOR)
        attempt = None
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            attempt = TaskAttempt.of_job(self.options.transactional_id_prefix, self.writer_id)
        return write_rows(iterator, self.columns, self.options, attempt, self.plans)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One line with the totals. The records are visible already, or become so here.

        Raises as `commit_job`.
        """
        set_up_logging()
        ended = None
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            from sparkkafka.spark.exactly_once.commit import commit_job

            ended = commit_job(self.options, task_reports(messages))
            log.info("%s", ended.text)
        log_commit(messages)
        report_write(self.options.metrics_address, messages, ended)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what a failed job leaves behind; takes back what can be."""
        set_up_logging()
        if self.options.delivery_guarantee == EXACTLY_ONCE:
            from sparkkafka.spark.exactly_once.commit import abort_job
            from sparkkafka.spark.exactly_once.decision_text import WriterNames

            names = WriterNames.of_job(self.options.transactional_id_prefix, self.writer_id)
            reports = task_reports(messages)
            stopped = len(reports) < len(messages)
            ended = abort_job(self.options, reports, names, stopped_tasks=stopped)
            log.warning("the job failed: %s", ended.text)
            report_write(self.options.metrics_address, messages, ended, visible=False)
            return
        log_abort(messages, "running the job again writes such rows a second time")


def encode_plans(
    options: WriteOptions, schema: StructType, columns: InputColumns
) -> tuple[EncodePlan, ...]:
    """How columns with a schema are written; none without valueFormat and keyFormat.

    Raises OptionError, SchemaError, RegistryError.
    """
    if options.formats is None:
        return ()
    from sparkkafka.spark.write.encoding import plan_encoding

    return plan_encoding(options.formats, schema, columns)


def input_columns(
    schema: StructType, topic: str | None, formats: FormatOptions | None = None
) -> InputColumns:
    """Finds and checks the columns of a DataFrame; the rules are those of Spark's KafkaWriter.

    The column timestamp is our own: the JVM connector ignores it, whatever its type, so one that is
    no timestamp is ignored here too, with a warning. With `formats`, key and value can have any
    type that their schema can.

    Raises OptionError with the text of the JVM connector's AnalysisException.
    """
    names = schema.names

    both = (formats.key, formats.value) if formats is not None else ()
    typed = {column.column for column in both if column.has_schema}
    texts = {column.column for column in both if column.format == STRING}

    def fits(name: str, position: int) -> bool:
        kind = schema.fields[position].dataType
        is_valid, expected, hint = _KINDS[name]
        if name in typed:
            return True
        if name in texts and not _is_text(kind):
            raise OptionError(
                f"{name}Format={STRING} needs a column {name} of type string, not "
                f"{kind.simpleString()}: cast it"
            )
        if is_valid(kind):
            return True
        if name == "timestamp":
            warn(
                "column timestamp",
                f"the column timestamp is not written: its type is {kind.simpleString()}, not "
                "timestamp; records get the time of writing (cast it, or drop it)",
            )
            return False
        raise OptionError(
            f"{name} attribute unsupported type {kind.simpleString()}. {name} must be a(n) "
            f"{expected}{hint}"
        )

    def near(name: str) -> str:
        """Return a hint if a column differs only in case: names are case-sensitive."""
        other = next((known for known in names if known.lower() == name), None)
        return f" (the column {other!r} must be written {name!r})" if other else ""

    missing = {
        "topic": "topic option required when no 'topic' attribute is present. "
        f"Use the topic option for setting a topic.{near('topic')}",
        "value": "Required attribute 'value' not found"
        f"{near('value') or _value_advice(names, typed='value' in typed)}",
    }
    found = find_columns(names, topic, fits, missing)
    # No warning for columns of a Kafka read, such as offset, which no one expects to be written.
    known = {*_KINDS, *(column.name for column in default_columns(include_headers=True))}
    unwritten = [name for name in names if name not in known]
    if unwritten:
        noun, verb = ("column", "is") if len(unwritten) == 1 else ("columns", "are")
        warn(
            f"columns {unwritten}",
            f"the {noun} {some(unwritten, 5)} {verb} not written: a record is made of "
            f"{', '.join(_KINDS)}. Put others in the value, with to_json(struct(*)) for instance, "
            "or drop them",
        )
    return found


def _value_advice(names: Sequence[str], *, typed: bool) -> str:
    near = difflib.get_close_matches("value", names, n=1)
    return (
        f": the columns are {', '.join(names) or 'none'}. Name the one to write "
        f"('{near[0] if near else '…'} AS value'), or write all as "
        f"{'struct(*)' if typed else 'to_json(struct(*))'} AS value"
    )


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and _is_text(fields[0].dataType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_KINDS: Mapping[str, tuple[Callable[[DataType], bool], str, str]] = {
    "value": (
        _is_bytes,
        "string or binary",
        ": cast it, put several columns in one with to_json(struct(*)), or set valueFormat to "
        "write it with a schema",
    ),
    "key": (_is_bytes, "string or binary", ": cast it"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>", ""),
    "topic": (_is_text, "string", ": cast it"),
    "partition": (lambda kind: isinstance(kind, IntegerType), "int", ": cast it"),
    "timestamp": (lambda kind: isinstance(kind, TimestampType), "timestamp", ""),
}
