"""A task's part of deliveryGuarantee=exactly-once: its transaction, and its report to the driver.

The task begins a transaction and writes in it; the driver ends it (`commit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark import TaskContext

from sparkkafka.client.admin.transactions import describe_known_transactions
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_all_committed
from sparkkafka.client.producer.transactions import GONE, SingleTransaction
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import ErrorCode, KafkaError, TransactionError, UnsupportedVersionError
from sparkkafka.spark.exactly_once import decision_text
from sparkkafka.spark.exactly_once.commit import TRANSACTION_HINTS
from sparkkafka.spark.metric_reports import QUERY_ID, Count, Report

BATCH_ID = "streaming.sql.batchId"
"""The property that Spark's MicroBatchExecution sets for the tasks of a micro-batch."""


class TaskAttempt(NamedTuple):
    """One attempt of a task. In a batch job `query_id` is "" and `batch_id` NO_BATCH."""

    names: decision_text.WriterNames
    query_id: str
    batch_id: int
    task: int
    attempt: int

    @classmethod
    def of_stream(cls, prefix: str | None, writer_id: str) -> TaskAttempt:
        """Return the attempt that runs in this process. `writer_id`, which all tasks of a
        micro-batch share, stands for the id of the query's start if Spark does not set that."""
        context = _context()
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if not query_id or not batch_id:
            raise TransactionError(
                f"deliveryGuarantee=exactly-once needs the task properties {QUERY_ID} and "
                f"{BATCH_ID}, which this version of Spark does not set"
            )
        run_id = context.getLocalProperty("spark.jobGroup.id") or writer_id
        names = decision_text.WriterNames.of_query(prefix, query_id, run_id)
        return cls(names, query_id, int(batch_id), context.partitionId(), context.attemptNumber())

    @classmethod
    def of_job(cls, prefix: str | None, writer_id: str) -> TaskAttempt:
        """Return the attempt of a batch job that runs in this process."""
        context = _context()
        names = decision_text.WriterNames.of_job(prefix, writer_id)
        return cls(
            names,
            query_id="",
            batch_id=decision_text.NO_BATCH,
            task=context.partitionId(),
            attempt=context.attemptNumber(),
        )

    @property
    def numbers_by_id(self) -> dict[str, int]:
        """The numbers that the attempt may have, by transactional id. The task writes under the
        first id that has no open transaction (see STAGE_RETRY); there are four, since Spark runs a
        stage at most four times by default."""
        numbers = (self.attempt + decision_text.STAGE_RETRY * retry for retry in range(4))
        return {self.names.transactional_id(self.task, number): number for number in numbers}

    def report(self, rows: int, transaction: SingleTransaction | None) -> decision_text.TaskReport:
        """Return the report to the driver; `transaction` is None if the task had no rows. The
        report's attempt is the number under which the task has written."""
        written = None
        attempt = self.attempt
        if transaction is not None and transaction.identity is not None:
            transactional_id, producer_id, producer_epoch = transaction.identity
            attempt = self.numbers_by_id[transactional_id]
            written = decision_text.TaskTransaction(self.task, attempt, producer_id, producer_epoch)
        return decision_text.TaskReport(
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
    """Return Spark's context of this task. Raises TransactionError outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise TransactionError("deliveryGuarantee=exactly-once works in Spark tasks only")
    return context


@contextmanager
def task_transaction(task: TaskAttempt, options: WriteOptions) -> Iterator[SingleTransaction]:
    """Open the transaction of one attempt of a task; an exception inside aborts it.

    Raises TransactionError, which names the other writer, if one took the transactional id over.
    """
    ids = list(task.numbers_by_id)
    transaction = SingleTransaction(
        options.client,
        ids[0],
        options.producer.transaction_timeout_ms,
        min(options.client.request_timeout_ms, options.producer.delivery_timeout_ms),
        lambda cluster, deadline: _unused_id(cluster, ids, deadline),
        TRANSACTION_HINTS,
    )
    try:
        with transaction:
            yield transaction
    except BaseException as error:
        if transaction.partitions:
            report = Report(task.query_id, prefix=task.names.prefix)
            report.add(Count.ABORTED, 1)
            report.send(options.metrics_address)
        if not isinstance(error, KafkaError):
            raise
        if getattr(error, "code", None) not in GONE | {ErrorCode.TRANSACTION_ABORTABLE}:
            raise
        holder = _describe_holder(task, options, transaction)
        raise TransactionError(
            f"task {task.task} (attempt {task.attempt}) can no longer write in transaction "
            f"{transaction.transactional_id}: {holder} ({error})"
        ) from error


def _unused_id(cluster: Cluster, ids: list[str], deadline: Deadline) -> str:
    """Return the first transactional id without an open transaction, since an open one may still be
    committed; the first of all if each has one."""
    try:
        states = describe_known_transactions(cluster, ids, deadline)
    except UnsupportedVersionError:  # before Kafka 3.0
        return ids[0]
    return next((tid for tid in ids if tid not in states or not states[tid].is_open), ids[0])


def _describe_holder(
    task: TaskAttempt, options: WriteOptions, transaction: SingleTransaction
) -> str:
    """Return which writer holds the task's transactional id, as far as Kafka knows and says within
    3 s."""
    tid = transaction.transactional_id
    try:
        with Cluster(options.client) as cluster:
            state = describe_known_transactions(cluster, [tid], Deadline(3_000)).get(tid)
            stored = fetch_all_committed(cluster, task.names.decisions, deadline=Deadline(3_000))
            decision = decision_text.latest_decision(offset.metadata for offset in stored.values())
    except KafkaError as error:
        return f"which writer holds it could not be looked up ({error})"
    identity = transaction.identity
    if state is None:
        text = "its coordinator no longer knows the id (transactional.id.expiration.ms)"
    elif identity is not None and state.transaction.producer_epoch != identity.producer_epoch:
        text = (
            f"it is held under producer epoch {state.transaction.producer_epoch} (this task's was "
            f"{identity.producer_epoch}; it is {state.state}). Either the driver, a newer start of "
            "the query, or another query with its transactionalIdPrefix has fenced this task, or "
            "the task took longer than kafka.transaction.timeout.ms"
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
