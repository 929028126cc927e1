"""A task's part of deliveryGuarantee=exactly-once: the names it writes under, and its report.

The task begins a transaction and fills it; the driver ends it (`commit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark import TaskContext

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_stored
from sparkkafka.client.transactions.inspection import describe_transactions
from sparkkafka.client.transactions.requests import GONE
from sparkkafka.client.transactions.sender_transaction import ProducerTransaction
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import ErrorCode, KafkaError, TransactionError
from sparkkafka.spark.exactly_once.decision_text import (
    NO_BATCH,
    STAGE_ATTEMPTS,
    STAGE_RETRY,
    TaskReport,
    TaskTransaction,
    WriterNames,
    latest_decision,
)
from sparkkafka.spark.exactly_once.task_transactions import OF_TRANSACTIONS
from sparkkafka.spark.metric_reports import ABORTED, QUERY_ID, Report

# Properties that Spark's StreamExecution and MicroBatchExecution set for a micro-batch's tasks.
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"

# Errors of brokers to a writer whose transaction has ended.
_OVER = GONE | {ErrorCode.TRANSACTION_ABORTABLE}

LOOKUP_MS = 3_000
"""How long a failed task looks up which writer has taken its transactional id over."""


class TaskAttempt(NamedTuple):
    """Identifies one attempt of a task. In a batch job `query_id` is "" and `batch_id` NO_BATCH."""

    names: WriterNames
    query_id: str
    batch_id: int
    task: int
    attempt: int

    @classmethod
    def of_stream(cls, prefix: str | None, writer_id: str) -> TaskAttempt:
        """`writer_id` is 32 hexadecimal digits that the tasks of one micro-batch share; it stands
        in for Spark's id of this start of the query, should that be missing."""
        context = _context()
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if not query_id or not batch_id:
            raise TransactionError(
                "this version of Spark does not tell tasks which query and micro-batch they belong "
                "to, which deliveryGuarantee=exactly-once needs"
            )
        names = WriterNames.of_query(
            prefix, query_id, context.getLocalProperty(RUN_ID) or writer_id
        )
        return cls(names, query_id, int(batch_id), context.partitionId(), context.attemptNumber())

    @classmethod
    def of_job(cls, prefix: str | None, writer_id: str) -> TaskAttempt:
        context = _context()
        names = WriterNames.of_job(prefix, writer_id)
        return cls(names, "", NO_BATCH, context.partitionId(), context.attemptNumber())

    @property
    def attempts(self) -> dict[str, int]:
        """Return the attempt number by transactional id; the task uses the first id without an
        open transaction."""
        numbers = (self.attempt + STAGE_RETRY * retry for retry in range(STAGE_ATTEMPTS))
        return {self.names.transactional_id(self.task, number): number for number in numbers}

    def report(self, rows: int, transaction: ProducerTransaction | None) -> TaskReport:
        """The report to the driver; `transaction` is None if the task had no rows."""
        written = None
        attempt = self.attempt
        if transaction is not None and transaction.identity is not None:
            transactional_id, producer_id, producer_epoch = transaction.identity
            attempt = self.attempts[transactional_id]
            written = TaskTransaction(self.task, attempt, producer_id, producer_epoch)
        return TaskReport(
            names=self.names,
            query_id=self.query_id,
            batch_id=self.batch_id,
            task=self.task,
            attempt=attempt,
            rows=rows,
            transaction=written,
            partitions=tuple(sorted(transaction.partitions)) if transaction is not None else (),
        )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TransactionError("deliveryGuarantee=exactly-once works in Spark tasks only")
    return context


@contextmanager
def task_transaction(task: TaskAttempt, options: WriteOptions) -> Iterator[ProducerTransaction]:
    """Open the transaction of one attempt of a task; an exception inside aborts it.

    Raises TransactionError, saying who, if another writer took the transactional id over.
    """
    first, *others = task.attempts
    transaction = ProducerTransaction(
        options.client,
        first,
        options.producer.transaction_timeout_ms,
        min(options.client.request_timeout_ms, options.producer.delivery_timeout_ms),
        others,
        OF_TRANSACTIONS,
    )
    try:
        with transaction:
            yield transaction
    except BaseException as error:
        if transaction.partitions:
            report = Report(task.query_id, prefix=task.names.prefix)
            report.add(ABORTED, 1)
            report.send(options.metrics_address)
        if not isinstance(error, KafkaError):
            raise
        if getattr(error, "code", None) not in _OVER:
            raise
        raise TransactionError(
            f"task {task.task} (attempt {task.attempt}) may not go on writing in transaction "
            f"{transaction.transactional_id}: {_who(task, options, transaction)} ({error})"
        ) from error


def _who(task: TaskAttempt, options: WriteOptions, transaction: ProducerTransaction) -> str:
    """Describe who holds the task's transactional id, as far as Kafka knows."""
    tid = transaction.transactional_id
    try:
        with Cluster(options.client) as cluster:
            state = describe_transactions(cluster, [tid], Deadline(LOOKUP_MS)).get(tid)
            decision = latest_decision(
                row.metadata
                for row in fetch_stored(
                    cluster, task.names.decisions, deadline=Deadline(LOOKUP_MS)
                ).values()
            )
    except KafkaError as error:
        return f"who holds it could not be found out ({error})"
    own = transaction.identity
    if state is None:
        text = "its coordinator does not know the id any more (transactional.id.expiration.ms)"
    elif own is not None and state.transaction.producer_epoch != own.producer_epoch:
        text = (
            f"it is held under producer epoch {state.transaction.producer_epoch} (this task's was "
            f"{own.producer_epoch}; it is {state.state}). Either the driver, or a newer start of "
            "the query, or another one with its transactionalIdPrefix, has given this task up, "
            "or the task was at it for longer than kafka.transaction.timeout.ms"
        )
    else:
        text = f"it is {state.state}"
    if decision is not None:
        text += (
            f". The last batch under this prefix, {decision.batch_id}, was decided by query "
            f"{decision.query_id} (run {decision.run}) on {decision.application}; this one is "
            f"query {task.query_id} (run {task.names.run}), batch {task.batch_id}"
        )
    return text
