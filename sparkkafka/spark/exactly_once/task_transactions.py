"""The driver's view of tasks' transactions: are they open, abort them, clear up what is left."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.transactions.inspection import describe_transactions, list_open_transactions
from sparkkafka.client.transactions.requests import (
    EXPLANATIONS,
    FENCED,
    GONE,
    Transaction,
    add_partitions_each,
    end_transactions,
    init_transactions,
)
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    TransactionError,
    UnsupportedVersionError,
    some,
)
from sparkkafka.spark.exactly_once.decision_text import (
    STAGE_RETRY,
    Decision,
    TaskReport,
    TaskTransaction,
    WriterNames,
)

log = logging.getLogger(__name__)

_NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_TOO_LONG = ErrorCode.INVALID_TRANSACTION_TIMEOUT

OF_TRANSACTIONS: Mapping[int, str] = {
    **EXPLANATIONS,
    _NO_ID: EXPLANATIONS[_NO_ID]
    + " (a prefixed ACL on transactionalIdPrefix covers all ids of a query)",
    _TOO_LONG: EXPLANATIONS[_TOO_LONG]
    + ". Left out, it is the broker's maximum, or 15 minutes if this user may not see that "
    "(DESCRIBE_CONFIGS on the cluster)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group in which decisions are kept: grant READ on it"
    ),
}
"""What error codes mean to those who run a query with exactly-once."""

SHORT_TIMEOUT_MS = 60_000
"""For transactions that are to be empty, or are ended at once."""

MIN_TIMEOUT_MS = 1_000

SPECULATIVE_ATTEMPT = 1
"""The attempt that Spark may run, and kill, beside a first one that succeeds."""

KILLED_BY_S = 2.5
"""Spark lets a task that it has given up run for 2 s more (spark.python.task.killTimeout), and then
kills its worker, which so cannot abort anything."""


def take_over(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> dict[str, Transaction | KafkaError]:
    """`init_transactions`, also with brokers that allow less than SHORT_TIMEOUT_MS. (No option
    lowers this timeout, and not every user may see the brokers' limit.)"""
    timeout_ms = SHORT_TIMEOUT_MS
    found = init_transactions(
        cluster, transactional_ids, timeout_ms, cluster.deadline(), words=OF_TRANSACTIONS
    )
    while timeout_ms > MIN_TIMEOUT_MS:
        refused = [
            key
            for key, row in found.items()
            if isinstance(row, BrokerError) and row.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        ]
        if not refused:
            break
        timeout_ms //= 4
        found |= init_transactions(
            cluster, refused, timeout_ms, cluster.deadline(), words=OF_TRANSACTIONS
        )
    return found


def transaction_of(names: WriterNames, row: TaskTransaction) -> Transaction:
    """A task's transaction under its transactional id."""
    return Transaction(
        names.transactional_id(row.task, row.attempt), row.producer_id, row.producer_epoch
    )


def id_of(report: TaskReport) -> str:
    """The transactional id that a task has written under."""
    return report.names.transactional_id(report.task, report.attempt)


def transactions_of(names: WriterNames, reports: Iterable[TaskReport]) -> dict[str, Transaction]:
    """The tasks' transactions by transactional id."""
    rows = (
        transaction_of(names, row.transaction) for row in reports if row.transaction is not None
    )
    return {row.transactional_id: row for row in rows}


def check_open(
    cluster: Cluster, own: dict[str, Transaction], reports: Iterable[TaskReport]
) -> None:
    """Raise TransactionError unless every task's transaction is open and still the task's."""
    if not own:
        return
    problems: dict[str, str] = {}
    deadline = cluster.deadline()
    try:
        states = describe_transactions(cluster, own, deadline)
    except UnsupportedVersionError:  # before Kafka 3.0
        written = {
            own[id_of(row)]: row.partitions for row in reports if row.transaction is not None
        }
        outcome = add_partitions_each(cluster, written, deadline, OF_TRANSACTIONS)
        problems = {key: str(error) for key, error in failures(outcome).items()}
    else:
        for key, transaction in own.items():
            state = states.get(key)
            if state is None:
                problems[key] = "its coordinator does not know it"
            elif state.transaction != transaction:
                # Not state.timeout_ms: whoever took it over has set that.
                problems[key] = (
                    f"it is held under producer epoch {state.transaction.producer_epoch}, ours was "
                    f"{transaction.producer_epoch}: the query runs twice, or another query has the "
                    "same transactionalIdPrefix, or it was open for longer than "
                    "kafka.transaction.timeout.ms and the broker ended it"
                )
            elif not state.is_open:
                problems[key] = f"it is not open, but {state.state}"
    if problems:
        raise TransactionError(
            f"{len(problems)} of {len(own)} transactions are not open any more, so nothing is "
            "committed and nothing becomes visible; run it again: "
            + "; ".join(f"{key}: {text}" for key, text in list(problems.items())[:3])
        )


def clear_up(
    cluster: Cluster,
    names: WriterNames,
    reports: Sequence[TaskReport],
    *,
    every: bool,
    before: Decision | None = None,
) -> None:
    """Abort what attempts of tasks left open whose work does not count.

    `every` includes what earlier starts of the query left; `before` is the previous decision. Open
    transactions only make read_committed readers wait, so a failure here is only logged.
    """
    try:
        left = set(_left_by_attempts(cluster, names, reports))
        if every:
            # All transactions that count are committed: none of this prefix may stay open.
            left |= set(_open_of_query(cluster, names, reports, before))
        if left:
            log.info("aborting %d transactions that were left open: %s", len(left), some(left))
            take_over(cluster, left)
    except KafkaError as error:
        log.warning("transactions that were left open could not be aborted: %s", error)


def _open_of_query(
    cluster: Cluster, names: WriterNames, reports: Sequence[TaskReport], before: Decision | None
) -> Iterable[str]:
    try:
        every = list_open_transactions(cluster, cluster.deadline())
    except UnsupportedVersionError:
        return _may_be_open(names, reports, before)
    return [key for key in every if names.is_of_query(key)]


def _may_be_open(
    names: WriterNames, reports: Sequence[TaskReport], before: Decision | None
) -> Iterable[str]:
    """Brokers before 3.0 do not say which transactions are open: ids of the last start that decided
    anything, for as many tasks as are known. Its transactions that count are committed by now."""
    if before is None or before.run == names.run:
        return []
    of_run = WriterNames(names.prefix, before.run)
    attempts = {0, *(row.attempt for row in before.transactions)}
    tasks = [row.task for row in reports] + [row.task for row in before.transactions]
    last = max(tasks, default=-1)
    return [
        of_run.transactional_id(task, attempt)
        for task in range(last + 1)
        for attempt in sorted(attempts)
    ]


def abort_stopped(cluster: Cluster, names: WriterNames) -> int:
    """Abort transactions of tasks of this run that Spark stops because another task failed.

    Otherwise read_committed readers wait for kafka.transaction.timeout.ms, 15 minutes by default.
    It looks twice, since a task may begin its transaction until it is killed. Returns how many
    there were; a failure is only logged.
    """
    found: set[str] = set()
    try:
        for wait_s in (0.0, KILLED_BY_S):
            time.sleep(wait_s)
            left = {
                key
                for key in list_open_transactions(cluster, cluster.deadline())
                if names.is_of_run(key)
            }
            take_over(cluster, left)
            found |= left
    except UnsupportedVersionError:
        log.info("brokers before 3.0 do not say which transactions are open")
    except KafkaError as error:
        log.warning("transactions of tasks that were stopped could not be aborted: %s", error)
    return len(found)


def _left_by_attempts(
    cluster: Cluster, names: WriterNames, reports: Sequence[TaskReport]
) -> Iterable[str]:
    """Open transactions of attempts that did not succeed, of this start's tasks."""
    others = other_attempts(names, reports)
    try:
        states = describe_transactions(cluster, others, cluster.deadline())
    except UnsupportedVersionError:
        # Only attempts that are known to have run: taking over an unused id would create it.
        return [
            names.transactional_id(row.task, attempt)
            for row in reports
            for attempt in range(row.attempt)
        ]
    return [key for key, state in states.items() if state.is_open]


def other_attempts(names: WriterNames, reports: Iterable[TaskReport]) -> set[str]:
    """Transactional ids of attempts that may have run beside those that reported."""
    return {
        names.transactional_id(row.task, number)
        for row in reports
        for number in _numbers(row.attempt)
        if number != row.attempt
    }


def _numbers(attempt: int) -> Iterable[int]:
    """Attempts of a task that may have run if this one succeeded."""
    again, number = divmod(attempt, STAGE_RETRY)
    for stage in range(max(again, 1) + 1):
        first = stage * STAGE_RETRY
        yield from range(first, first + max(number, SPECULATIVE_ATTEMPT) + 1)


def abort_each(cluster: Cluster, own: Iterable[Transaction]) -> dict[str, KafkaError]:
    """Abort tasks' transactions; returns the errors of those that may not be aborted by this.

    If one is fenced, a copy of the task may have a transaction open under its id.
    """
    outcome = end_transactions(cluster, own, commit=False)
    left = failures(outcome)
    fenced = [key for key, row in left.items() if getattr(row, "code", None) in FENCED]
    for key, row in take_over(cluster, fenced).items():
        if isinstance(row, KafkaError):
            log.warning("what is open under %s could not be aborted: %s", key, row)
    return left


def failures(outcome: dict[str, KafkaError | None]) -> dict[str, KafkaError]:
    """Of outcomes by transactional id, those that are errors."""
    return {key: error for key, error in outcome.items() if error is not None}


def is_gone(error: KafkaError) -> bool:
    """Whether the transaction ended in another way or has another owner; False: unknown."""
    return isinstance(error, BrokerError) and error.code in GONE
