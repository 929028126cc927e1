"""The driver's part of deliveryGuarantee=exactly-once in a batch job: all tasks' rows or none.

Nobody plans a batch job again, so there is no decision to write down (`exactly_once` is for
streams): commit() checks that every transaction is open, and commits them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.transactions.requests import end_transactions
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import DataLossError, some
from sparkkafka.spark.exactly_once.decision import TaskReport, WriterNames
from sparkkafka.spark.exactly_once.task_transactions import (
    abort_each,
    abort_stopped,
    check_open,
    clear_up,
    failures,
    id_of,
    is_gone,
    transactions_of,
)


def commit_job(options: WriteOptions, reports: Sequence[TaskReport]) -> str:
    """Commit the transactions of all tasks of a batch job.

    Raises TransactionError before anything is visible if one of them is not open any more;
    DataLossError if that turns out while they are committed.
    """
    if not reports:
        return "no tasks"
    names = reports[0].names
    own = transactions_of(names, reports)
    with Cluster(options.client) as cluster:
        check_open(cluster, own, reports)
        failed = failures(
            end_transactions(cluster, own.values(), commit=True, deadline=cluster.deadline())
        )
        if failed:
            lost = [row for row in reports if id_of(row) in failed]
            raise DataLossError(
                f"{len(own) - len(failed)} of {len(own)} transactions of this job are committed, "
                f"and their rows visible; those of tasks {some(row.task for row in lost)} "
                f"({sum(row.rows for row in lost)} rows) are not: {next(iter(failed.values()))}"
            )
        clear_up(cluster, names, reports, every=False)
    return f"{len(own)} transactions committed"


def abort_job(
    options: WriteOptions,
    reports: Sequence[TaskReport],
    names: WriterNames | None = None,
    *,
    stopped_tasks: bool = False,
) -> str:
    """Take back what the tasks of a failed job wrote; says what could not be.

    `names` are the job's, needed if no task has reported. `stopped_tasks`: there are tasks without
    a report, which may run for a moment more.
    """
    names = reports[0].names if reports else names
    if names is None:
        return "nothing of it is visible to read_committed"
    own = transactions_of(names, reports)
    with Cluster(options.client) as cluster:
        outcome = abort_each(cluster, own.values())
        stopped = abort_stopped(cluster, names) if stopped_tasks else 0
    visible: list[TaskReport] = []
    unsure: list[TaskReport] = []
    for report in reports:
        error = outcome.get(id_of(report))
        if error is not None:
            (visible if is_gone(error) else unsure).append(report)
    text = f"{len(own) - len(visible) - len(unsure) + stopped} transactions aborted"
    if visible:
        text += (
            f"; {len(visible)} had been committed or ended before ("
            f"tasks {some(row.task for row in visible)}, {sum(row.rows for row in visible)} rows, "
            "which are visible if they were committed)"
        )
    if unsure:
        text += (
            f"; {len(unsure)} could not be reached (tasks {some(row.task for row in unsure)}): "
            "the broker aborts them after kafka.transaction.timeout.ms"
        )
    return text
