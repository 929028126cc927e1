"""The driver's part of deliveryGuarantee=exactly-once: deciding, ending and clearing up.

Tasks write in transactions of their own and end none. The driver writes a decision down (see
`decision`), in a transaction of its own transactional id, and then commits the tasks' transactions;
what was decided and not finished is finished when Spark plans the same batch again. Why each crash
ends well is written in docs/exactly-once.md; its names for the steps stand in the comments here.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.coordinator import FOR_TRANSACTION, learn_coordinators
from sparkkafka.client.groups import StoredOffset, fetch_stored
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.transaction_states import describe_transactions, list_open_transactions
from sparkkafka.client.transactions import (
    FENCED,
    GONE,
    Transaction,
    add_partitions_each,
    commit_offsets_in,
    end_transactions,
    explained,
    init_transactions,
)
from sparkkafka.errors import (
    BrokerError,
    DataLossError,
    DecodeError,
    ErrorCode,
    KafkaError,
    TransactionError,
    UnsupportedVersionError,
)
from sparkkafka.options import WriteOptions
from sparkkafka.spark.decision import (
    STAGE_RETRY,
    Decision,
    TaskReport,
    TaskTransaction,
    WriterNames,
    latest_decision,
)

logger = logging.getLogger(__name__)

SHORT_TIMEOUT_MS = 60_000
"""For transactions that are to be empty, or are ended at once."""

LEAST_TIMEOUT_MS = 1_000

SPECULATIVE_ATTEMPT = 1
"""The attempt that Spark may run, and kill, beside a first one that succeeds."""


KILLED_BY_S = 2.5
"""Spark lets a task that it has given up run for 2 s more (spark.python.task.killTimeout), and then
kills its worker, which so cannot abort anything."""


class _Stored(NamedTuple):
    """The last decision under a prefix, and where it is kept."""

    decision: Decision | None
    places: tuple[TopicPartition, ...]


# --- streams -----------------------------------------------------------------------------------


def commit_batch(options: WriteOptions, batch_id: int, reports: Sequence[TaskReport]) -> str:
    """Make all tasks' rows of a micro-batch visible, or finish what an earlier driver decided.

    Returns a line that says what was done. Raises TransactionError if the batch is not decided
    (Spark plans it again, and nothing of this attempt becomes visible), DataLossError if it is
    decided and Kafka has lost a part of it.
    """
    if not reports:
        return "no tasks"
    names, query_id = reports[0].names, reports[0].query_id
    own = _transactions(names, reports)
    with Cluster(options.client) as cluster:
        keys = [names.decisions, *own, *_other_attempts(names, reports)]
        learn_coordinators(cluster, keys, FOR_TRANSACTION, cluster.deadline())
        # "fence": no other driver of this prefix can decide from here on.
        decider = _become_decider(cluster, names)
        stored = _read_decision(cluster, names)
        before = stored.decision
        if before is not None and before.query_id != query_id:
            _finish_other_query(cluster, names, before, query_id, batch_id)
        elif before is not None and before.batch_id > batch_id:
            raise TransactionError(
                f"batch {batch_id} is planned again although batch {before.batch_id} was decided: "
                "the checkpoint is older than what was written. Use the checkpoint that belongs to "
                f"it, or delete the consumer group {names.decisions} to write again (rows of these "
                "batches are then doubled)"
            )
        elif before is not None and before.batch_id == batch_id:
            # "replay": what was written this time must never be seen.
            decided = _decided(names, before)
            mine = [row for key, row in own.items() if key not in decided]
            end_transactions(cluster, mine, commit=False, deadline=cluster.deadline())
            _finish(cluster, names, before, options.fail_on_data_loss)
            _clear_up(cluster, names, reports, every=True)
            return (
                f"batch {batch_id} was decided by an earlier start of the query (run {before.run}):"
                f" {len(before.transactions)} transactions of it committed, rows written this time "
                "left out"
            )
        _check_open(cluster, own, reports)
        decision = Decision(
            query_id=query_id,
            run=names.run,
            batch_id=batch_id,
            number=0 if before is None else before.number + 1,
            application=socket.gethostname(),
            transactions=tuple(row.transaction for row in reports if row.transaction is not None),
        )
        first = before is None or before.run != names.run
        # Without rows too, the first micro-batch of a run says in the group whose the prefix is: a
        # later one could not tell an older query from one that runs now. What other runs have open
        # is aborted only once none of them can have decided about it since it was looked up.
        decides = bool(own) or (first and bool(stored.places))
        if decides:
            _decide(cluster, names, decider, decision, stored.places, reports)
            _finish(cluster, names, decision, options.fail_on_data_loss)
        _clear_up(cluster, names, reports, every=first and decides)
        return f"batch {batch_id}: {len(own)} transactions committed"


def abort_batch(
    options: WriteOptions,
    batch_id: int,
    reports: Sequence[TaskReport],
    *,
    stopped_tasks: bool = False,
) -> str:
    """End a failed micro-batch: take back what is not decided, leave alone what is.

    `stopped_tasks`: there are tasks without a report, which may run for a moment more. Spark also
    calls this after `commit_batch` failed. Returns a line that says what was done.
    Raises KafkaError if Kafka cannot be asked; the next start of the query then clears up.
    """
    if not reports:
        return f"batch {batch_id} failed; what its tasks wrote is taken back by the next start"
    names = reports[0].names
    own = _transactions(names, reports)
    with Cluster(options.client) as cluster:
        # Taking the id over settles a decision that is half written, one way or the other.
        _become_decider(cluster, names)
        before = _read_decision(cluster, names).decision
        if before is not None and (before.query_id, before.batch_id, before.run) == (
            reports[0].query_id,
            batch_id,
            names.run,
        ):
            return (
                f"batch {batch_id} is decided: its rows become visible at the latest when the "
                "query is started again, and are not written a second time"
            )
        left = _abort(cluster, own.values())
        stopped = _abort_stopped(cluster, names) if stopped_tasks else 0
    return f"batch {batch_id} failed: {len(own) - len(left) + stopped} transactions aborted" + (
        f", {len(left)} not ({next(iter(left.values()))})" if left else ""
    )


def _become_decider(cluster: Cluster, names: WriterNames) -> Transaction:
    key = names.decisions
    found = _take_over(cluster, [key])[key]
    if isinstance(found, KafkaError):
        raise found
    return found


def _take_over(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> dict[str, Transaction | KafkaError]:
    """`init_transactions`, also where brokers allow less than SHORT_TIMEOUT_MS: nobody who set no
    timeout could lower this one. Not every user may see what they allow."""
    timeout_ms = SHORT_TIMEOUT_MS
    found = init_transactions(cluster, transactional_ids, timeout_ms, cluster.deadline())
    while timeout_ms > LEAST_TIMEOUT_MS:
        refused = [
            key
            for key, row in found.items()
            if isinstance(row, BrokerError) and row.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        ]
        if not refused:
            break
        timeout_ms //= 4
        found |= init_transactions(cluster, refused, timeout_ms, cluster.deadline())
    return found


def _read_decision(cluster: Cluster, names: WriterNames) -> _Stored:
    try:
        stored = fetch_stored(cluster, names.decisions)
    except BrokerError as error:
        raise explained(error) from error
    try:
        decision = latest_decision(row.metadata for row in stored.values())
    except DecodeError as error:
        raise DecodeError(
            f"the last decision under transactionalIdPrefix {names.prefix} cannot be read "
            f"({error}). It is kept in the consumer group {names.decisions}, which is for nothing "
            "else. Delete the group and start the query again; if the query died in the middle of "
            "a commit, the rows of that micro-batch may then be there twice"
        ) from error
    number = None if decision is None else f'"number":{decision.number},'
    places = tuple(
        sorted(tp for tp, row in stored.items() if number is not None and number in row.metadata)
    )
    return _Stored(decision, places)


def _decide(
    cluster: Cluster,
    names: WriterNames,
    decider: Transaction,
    decision: Decision,
    known_places: Iterable[TopicPartition],
    reports: Iterable[TaskReport],
) -> None:
    """Write the decision down; it holds once the decider's transaction is committed."""
    written = sorted({tp for report in reports for tp in report.partitions})
    places = list(dict.fromkeys([*known_places, *written]))
    texts = decision.texts()
    if len(texts) > len(places):
        raise TransactionError(
            f"{len(decision.transactions)} tasks are too many for one decision, which has room in "
            f"{len(places)} partitions: write with fewer tasks (coalesce), or to topics with more "
            "partitions"
        )
    offsets = {
        place: StoredOffset(decision.batch_id, text)
        for place, text in zip(places, texts, strict=False)
    }
    try:
        commit_offsets_in(cluster, decider, names.decisions, offsets, cluster.deadline())
        outcome = end_transactions(cluster, [decider], commit=True, deadline=cluster.deadline())
        failure = outcome[names.decisions]
        if failure is not None and not _is_gone(failure):
            raise TransactionError(
                f"nobody knows yet whether batch {decision.batch_id} is decided. Start the query "
                f"again: it finds out, and writes nothing twice. ({failure})"
            ) from failure
        if failure is not None:
            raise failure
    except BrokerError as error:
        if error.code not in GONE:
            raise
        raise TransactionError(
            f"batch {decision.batch_id} is not decided by this driver: another driver has taken "
            f"over ({names.decisions}). Does the query run twice, or another one with the same "
            f"transactionalIdPrefix? ({error})"
        ) from error


def _finish(
    cluster: Cluster, names: WriterNames, decision: Decision, fail_on_data_loss: bool
) -> None:
    """Commit what was decided. Raises DataLossError for what Kafka does not have any more."""
    transactions = _decided(names, decision)
    failed = _failures(
        end_transactions(cluster, transactions.values(), commit=True, deadline=cluster.deadline())
    )
    unknown = {key: error for key, error in failed.items() if not _is_gone(error)}
    if unknown:
        raise TransactionError(
            f"batch {decision.batch_id} is decided, and {len(unknown)} of {len(transactions)} "
            "transactions could not be committed yet. Start the query again, before they are older "
            "than kafka.transaction.timeout.ms: it finishes them and writes nothing twice. "
            f"({next(iter(unknown.values()))})"
        )
    if not failed:
        return
    tasks = [
        row.task
        for key, row in zip(transactions, decision.transactions, strict=True)
        if key in failed
    ]
    text = (
        f"batch {decision.batch_id} of query {decision.query_id} was decided, and Kafka has ended "
        f"{len(failed)} of its {len(transactions)} transactions without it: rows of tasks "
        f"{_some(tasks)} are lost, those of the other tasks are visible. Either nobody finished "
        "the batch within kafka.transaction.timeout.ms, or another writer took over the ids "
        f"({next(iter(failed.values()))}). "
    )
    if fail_on_data_loss:
        raise DataLossError(
            text + "To write the whole batch again (rows of the other tasks are then doubled), "
            f"delete the consumer group {names.decisions} and start the query again; to go on "
            "without the lost rows, set failOnDataLoss=false"
        )
    logger.warning("%s Going on without them (failOnDataLoss=false)", text)


def _decided(names: WriterNames, decision: Decision) -> dict[str, Transaction]:
    """The transactions of a decision by transactional id, in its order."""
    of_run = WriterNames(names.prefix, decision.run)
    rows = (_transaction(of_run, row) for row in decision.transactions)
    return {row.transactional_id: row for row in rows}


def _finish_other_query(
    cluster: Cluster, names: WriterNames, before: Decision, query_id: str, batch_id: int
) -> None:
    """A new checkpoint under an old prefix: what the old query decided comes to its end."""
    if batch_id > 0:
        raise TransactionError(
            f"transactionalIdPrefix {names.prefix} is used by another query as well: "
            f"{before.query_id} ({before.application}) decided its batch {before.batch_id} after "
            f"this one ({query_id}, batch {batch_id}) had begun. Give each query a prefix of its "
            "own; if the other one is gone for good, delete the consumer group "
            f"{names.decisions}"
        )
    try:
        _finish(cluster, names, before, fail_on_data_loss=True)
    except DataLossError as error:
        # Or its transactional ids have expired since: that cannot be told apart any more.
        logger.warning("of an earlier query under the same prefix: %s", error)


# --- batch jobs --------------------------------------------------------------------------------


def commit_job(options: WriteOptions, reports: Sequence[TaskReport]) -> str:
    """Commit the transactions of all tasks of a batch job.

    Raises TransactionError before anything is visible if one of them is not open any more;
    DataLossError if that turns out while they are committed.
    """
    if not reports:
        return "no tasks"
    names = reports[0].names
    own = _transactions(names, reports)
    with Cluster(options.client) as cluster:
        _check_open(cluster, own, reports)
        failed = _failures(
            end_transactions(cluster, own.values(), commit=True, deadline=cluster.deadline())
        )
        if failed:
            lost = [row for row in reports if _key(row) in failed]
            raise DataLossError(
                f"{len(own) - len(failed)} of {len(own)} transactions of this job are committed, "
                f"and their rows visible; those of tasks {_some(row.task for row in lost)} "
                f"({sum(row.rows for row in lost)} rows) are not: {next(iter(failed.values()))}"
            )
        _clear_up(cluster, names, reports, every=False)
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
    own = _transactions(names, reports)
    with Cluster(options.client) as cluster:
        outcome = _abort(cluster, own.values())
        stopped = _abort_stopped(cluster, names) if stopped_tasks else 0
    visible: list[TaskReport] = []
    unsure: list[TaskReport] = []
    for report in reports:
        error = outcome.get(_key(report))
        if error is not None:
            (visible if _is_gone(error) else unsure).append(report)
    text = f"{len(own) - len(visible) - len(unsure) + stopped} transactions aborted"
    if visible:
        text += (
            f"; {len(visible)} had been committed or ended before ("
            f"tasks {_some(row.task for row in visible)}, {sum(row.rows for row in visible)} rows, "
            "which are visible if they were committed)"
        )
    if unsure:
        text += (
            f"; {len(unsure)} could not be reached (tasks {_some(row.task for row in unsure)}): "
            "the broker aborts them after kafka.transaction.timeout.ms"
        )
    return text


# --- both --------------------------------------------------------------------------------------


def _transaction(names: WriterNames, row: TaskTransaction) -> Transaction:
    return Transaction(
        names.transactional_id(row.task, row.attempt), row.producer_id, row.producer_epoch
    )


def _key(report: TaskReport) -> str:
    return report.names.transactional_id(report.task, report.attempt)


def _transactions(names: WriterNames, reports: Iterable[TaskReport]) -> dict[str, Transaction]:
    """The tasks' transactions by transactional id."""
    rows = (_transaction(names, row.transaction) for row in reports if row.transaction is not None)
    return {row.transactional_id: row for row in rows}


def _check_open(
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
        written = {own[_key(row)]: row.partitions for row in reports if row.transaction is not None}
        outcome = add_partitions_each(cluster, written, deadline)
        problems = {key: str(error) for key, error in _failures(outcome).items()}
    else:
        for key, transaction in own.items():
            state = states.get(key)
            if state is None:
                problems[key] = "its coordinator does not know it"
            elif state.transaction != transaction:
                problems[key] = (
                    f"another writer took it over (producer epoch {state.transaction[2]}, ours was "
                    f"{transaction.producer_epoch}), or it was open for longer than its "
                    f"{state.timeout_ms} ms (kafka.transaction.timeout.ms) and the broker ended it"
                )
            elif not state.is_open:
                problems[key] = f"it is not open, but {state.state}"
    if problems:
        raise TransactionError(
            f"{len(problems)} of {len(own)} transactions are not open any more, so nothing is "
            "committed and nothing becomes visible; run it again: "
            + "; ".join(f"{key}: {text}" for key, text in list(problems.items())[:3])
        )


def _clear_up(
    cluster: Cluster, names: WriterNames, reports: Sequence[TaskReport], *, every: bool
) -> None:
    """Abort what attempts of tasks left open whose work does not count.

    With `every`, what earlier starts of the query left as well. Readers of read_committed wait for
    open transactions; nothing else is wrong with them, so a failure here is only logged.
    """
    try:
        left = set(_left_by_attempts(cluster, names, reports))
        if every:
            # No transaction of this prefix is to stay open now: those that count are committed.
            left |= set(_open_of_query(cluster, names))
        if left:
            logger.info("aborting %d transactions that were left open: %s", len(left), _some(left))
            _take_over(cluster, left)
    except KafkaError as error:
        logger.warning("transactions that were left open could not be aborted: %s", error)


def _open_of_query(cluster: Cluster, names: WriterNames) -> list[str]:
    try:
        every = list_open_transactions(cluster, cluster.deadline())
    except UnsupportedVersionError:
        logger.info("brokers before 3.0 do not say which transactions are open")
        return []
    return [key for key in every if names.is_of_query(key)]


def _abort_stopped(cluster: Cluster, names: WriterNames) -> int:
    """Abort what tasks of this run left open, that Spark stops because another one failed.

    Else readers of read_committed wait for kafka.transaction.timeout.ms, 15 minutes if nobody set
    it. Twice, since a task may begin its transaction until it is killed. Returns how many there
    were; a failure is only logged.
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
            _take_over(cluster, left)
            found |= left
    except UnsupportedVersionError:
        logger.info("brokers before 3.0 do not say which transactions are open")
    except KafkaError as error:
        logger.warning("transactions of tasks that were stopped could not be aborted: %s", error)
    return len(found)


def _left_by_attempts(
    cluster: Cluster, names: WriterNames, reports: Sequence[TaskReport]
) -> Iterable[str]:
    """Open transactions of attempts that did not succeed, of this start's tasks."""
    others = _other_attempts(names, reports)
    try:
        states = describe_transactions(cluster, others, cluster.deadline())
    except UnsupportedVersionError:
        # Those that are known to have run: to take over an id that nobody used would make it.
        return [
            names.transactional_id(row.task, attempt)
            for row in reports
            for attempt in range(row.attempt)
        ]
    return [key for key, state in states.items() if state.is_open]


def _other_attempts(names: WriterNames, reports: Iterable[TaskReport]) -> set[str]:
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


def _abort(cluster: Cluster, own: Iterable[Transaction]) -> dict[str, KafkaError]:
    """Abort tasks' transactions; those of which it is not known that this did it.

    Under the id of one that is fenced a copy of the task may have a transaction open.
    """
    outcome = end_transactions(cluster, own, commit=False, deadline=cluster.deadline())
    left = _failures(outcome)
    fenced = [key for key, row in left.items() if getattr(row, "code", None) in FENCED]
    for key, row in _take_over(cluster, fenced).items():
        if isinstance(row, KafkaError):
            logger.warning("what is open under %s could not be aborted: %s", key, row)
    return left


def _failures(outcome: dict[str, KafkaError | None]) -> dict[str, KafkaError]:
    return {key: error for key, error in outcome.items() if error is not None}


def _is_gone(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.code in GONE


def _some(values: Iterable[object], most: int = 5) -> str:
    rows = [str(value) for value in values]
    return ", ".join(rows[:most]) + (f" and {len(rows) - most} more" if len(rows) > most else "")
