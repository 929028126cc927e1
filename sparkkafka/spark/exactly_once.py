"""deliveryGuarantee=exactly-once: transactions of tasks, and the driver's decisions and commits.

Tasks write in transactions of their own and leave them open. For each micro-batch of a stream the
driver stores a decision (the list of transactions to commit, see `decision_text`) in a transaction
of its own transactional id, and then commits the tasks' transactions. If the driver dies in
between, Spark plans the same batch again, and the next driver finishes what was decided.
docs/exactly-once-protocol.md says how each crash is recovered; comments here use its names for the
steps. The driver's part comes first, then a task's.

Spark never plans a batch job again, so a job needs no decision: `commit_job` checks that every
transaction is open, and commits them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pyspark import TaskContext

from sparkkafka.client.admin.transactions import (
    describe_known_transactions,
    fence,
    list_ongoing_transactions,
)
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import FOR_TRANSACTION, ToCoordinator
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_all_committed
from sparkkafka.client.producer.transactions import (
    FENCED,
    GONE,
    HINTS,
    SingleTransaction,
    Transaction,
    add_partitions,
    commit_offsets_in,
    end_transactions,
    with_hint,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import (
    BrokerError,
    DataLossError,
    DecodeError,
    ErrorCode,
    KafkaError,
    TransactionError,
    UnsupportedVersionError,
    some,
)
from sparkkafka.spark.decision_text import (
    MAX_TEXT_CHARS,
    NO_BATCH,
    STAGE_RETRY,
    CommitOutcome,
    Decision,
    TaskReport,
    TaskTransaction,
    WriterNames,
    latest_decision,
)
from sparkkafka.spark.metric_reports import QUERY_ID, Count, Report

log = logging.getLogger(__name__)

TRANSACTION_HINTS: Mapping[int, str] = {
    **HINTS,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        f"{HINTS[ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]} (a prefixed ACL on "
        "transactionalIdPrefix covers all ids of a query)"
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        f"{HINTS[ErrorCode.INVALID_TRANSACTION_TIMEOUT]}. Left out, it is the broker's "
        "maximum, or 15 minutes if this user may not see that (DESCRIBE_CONFIGS on the cluster)"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group in which decisions are kept: grant READ on it"
    ),
}
"""What error codes mean to a user who runs a query with exactly-once."""

MIN_TEXT_CHARS = 512
"""The shortest limit for a decision's text, whose head has about 250 characters."""

DECISION_HINTS: Mapping[int, str] = {
    **TRANSACTION_HINTS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "decisions are kept beside offsets of the topics that are written: grant READ on the topic "
        "as well, WRITE is not enough for this"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "decisions are kept as metadata of offsets: set the brokers' offset.metadata.max.bytes to "
        f"{MIN_TEXT_CHARS} or more"
    ),
}


class _StoredDecision(NamedTuple):
    """The last decision under a prefix, None if there is none, and the partitions under which the
    group has its texts."""

    decision: Decision | None
    partitions: tuple[TopicPartition, ...]


def commit_batch(
    options: WriteOptions, batch_id: int, reports: Sequence[TaskReport]
) -> CommitOutcome:
    """Make all tasks' rows of a micro-batch visible, or finish what an earlier driver decided.

    Raises TransactionError if the batch is not decided (nothing of this attempt becomes visible,
    and Spark plans the batch again); DataLossError if it is decided and Kafka has lost a part.
    """
    if not reports:
        return CommitOutcome("no tasks")
    names, query_id = reports[0].names, reports[0].query_id
    reported = _reported_transactions(reports)
    with Cluster(options.client) as cluster:
        # One lookup, which the cluster keeps, of the coordinators of all ids that the following
        # requests name. Those that are not known yet are looked up again.
        ids = [names.decisions, *_ids_of_attempts(names, reports)]
        ToCoordinator(cluster, FOR_TRANSACTION).find(ids, cluster.deadline())
        # From here on no other driver with the prefix of these transactional ids can decide.
        decider = _become_decider(cluster, names)
        stored = _read_decision(cluster, names)
        last_decision = stored.decision
        if last_decision is not None and last_decision.query_id != query_id:
            _finish_other_query(cluster, names, last_decision, query_id, batch_id)
        elif last_decision is not None and last_decision.batch_id > batch_id:
            raise TransactionError(
                f"batch {batch_id} is planned again although batch {last_decision.batch_id} was "
                "decided: the checkpoint is older than what was written. Use the checkpoint that "
                f"belongs to it, or delete the consumer group {names.decisions} to write again "
                "(rows of these batches are then duplicated)"
            )
        elif last_decision is not None and last_decision.batch_id == batch_id:
            return _finish_decided(cluster, options, reports, last_decision)
        check_transactions_open(cluster, reports)
        decision = Decision(
            query_id=query_id,
            run=names.run,
            batch_id=batch_id,
            number=0 if last_decision is None else last_decision.number + 1,
            application=socket.gethostname(),
            transactions=tuple(
                report.transaction for report in reports if report.transaction is not None
            ),
        )
        is_first_of_run = last_decision is None or last_decision.run != names.run
        # The first micro-batch of a run is decided even without rows, so that later runs know which
        # query owns the prefix. Transactions of other runs are aborted (`all_runs`) only after such
        # a decision: no other run can have decided about them since they were looked up.
        needs_decision = bool(reported) or (is_first_of_run and bool(stored.partitions))
        if needs_decision:
            # Those with the last decision's texts come first, so that the new texts replace these.
            written = sorted({tp for report in reports for tp in report.partitions})
            partitions = list(dict.fromkeys([*stored.partitions, *written]))
            _decide(cluster, decider, decision, partitions)
            _commit_decided(cluster, names, decision, options.fail_on_data_loss)
        _abort_other_attempts(
            cluster,
            reports,
            all_runs=is_first_of_run and needs_decision,
            last_decision=last_decision,
        )
        text = f"batch {batch_id}: {len(reported)} transactions committed"
        return CommitOutcome(text, committed=len(reported), visible=True)


def _finish_decided(
    cluster: Cluster, options: WriteOptions, reports: Sequence[TaskReport], decision: Decision
) -> CommitOutcome:
    """Commit a batch that an earlier start of the query has decided, and abort the reported
    transactions of this attempt: their rows must never become visible."""
    names, reported = reports[0].names, _reported_transactions(reports)
    decided = _decided_transactions(names, decision)
    undecided = [reported[tid] for tid in reported if tid not in decided]
    end_transactions(cluster, undecided, commit=False)
    _commit_decided(cluster, names, decision, options.fail_on_data_loss)
    _abort_other_attempts(
        cluster, reports, all_runs=True, last_decision=decision, committed=decided
    )
    return CommitOutcome(
        f"batch {decision.batch_id} was decided by an earlier start of the query (run "
        f"{decision.run}): {len(decision.transactions)} transactions of it committed, rows written "
        "this time left out",
        committed=len(decision.transactions),
        aborted=len(undecided),
    )


def abort_batch(
    options: WriteOptions,
    batch_id: int,
    reports: Sequence[TaskReport],
    *,
    stopped_tasks: bool = False,
) -> CommitOutcome:
    """End a failed micro-batch: abort its transactions, unless the batch is decided.

    Spark also calls this after `commit_batch` failed. `stopped_tasks`: some tasks have no report,
    and may still run for a moment. Raises KafkaError if Kafka cannot be reached; the next start of
    the query then aborts the open transactions.
    """
    if not reports:
        return CommitOutcome(
            f"batch {batch_id} failed, or the query was stopped; the next start aborts what its "
            "tasks wrote"
        )
    names = reports[0].names
    reported = _reported_transactions(reports)
    with Cluster(options.client) as cluster:
        # If a decision is half written, its transaction is now committed or aborted.
        _become_decider(cluster, names)
        last = _read_decision(cluster, names).decision
        this_batch = (reports[0].query_id, batch_id, names.run)
        if last is not None and (last.query_id, last.batch_id, last.run) == this_batch:
            return CommitOutcome(
                f"batch {batch_id} is decided: its rows become visible at the latest when the "
                "query is started again, and are not written a second time"
            )
        failed = _abort_each(cluster, reported.values())
        stopped = _abort_stopped_tasks(cluster, names) if stopped_tasks else 0
    aborted = len(reported) - len(failed) + stopped
    text = f"batch {batch_id} failed, or the query was stopped: {aborted} transactions aborted"
    if failed:
        text += f", {len(failed)} not ({next(iter(failed.values()))})"
    return CommitOutcome(text, aborted=aborted)


def _become_decider(cluster: Cluster, names: WriterNames) -> Transaction:
    """Take over the transactional id that decides for this prefix, which fences the driver that had
    it; return a transaction of it. Raises KafkaError."""
    decider = _fence(cluster, [names.decisions])[names.decisions]
    if isinstance(decider, KafkaError):
        raise decider
    return decider


def _read_decision(cluster: Cluster, names: WriterNames) -> _StoredDecision:
    """Read the last decision from the group. Raises DecodeError if it cannot be read."""
    try:
        stored = fetch_all_committed(cluster, names.decisions)
    except BrokerError as error:
        raise with_hint(error, cluster.options.prefix, DECISION_HINTS) from error
    try:
        decision = latest_decision(offset.metadata for offset in stored.values())
    except DecodeError as error:
        raise DecodeError(
            f"the last decision under transactionalIdPrefix {names.prefix} cannot be read "
            f"({error}). It is kept in the consumer group {names.decisions}, which is for nothing "
            "else. Delete the group and start the query again; if the query died in the middle of "
            "a commit, the rows of that micro-batch may then be duplicated"
        ) from error
    if decision is None:
        return _StoredDecision(None, ())
    # Texts with an older number, of decisions that had more of them, may be left elsewhere.
    number = f'"number":{decision.number},'
    partitions = sorted(tp for tp, offset in stored.items() if number in offset.metadata)
    return _StoredDecision(decision, tuple(partitions))


def _decide(
    cluster: Cluster, decider: Transaction, decision: Decision, partitions: Sequence[TopicPartition]
) -> None:
    """Store the decision in the group, as metadata of offsets of the first of these partitions. It
    is final once the decider's transaction is committed.

    Raises TransactionError if another driver has taken over, or if the outcome is not known.
    """
    try:
        _write_texts(cluster, decider, decision, partitions)
        failure = end_transactions(cluster, [decider], commit=True)[decider.transactional_id]
        if failure is not None and not _is_gone(failure):
            raise TransactionError(
                f"it is not known yet whether batch {decision.batch_id} is decided. Start the "
                f"query again: it finds out, and writes nothing twice. ({failure})"
            ) from failure
        if failure is not None:
            raise failure
    except BrokerError as error:
        if error.code not in GONE:
            raise
        raise TransactionError(
            f"batch {decision.batch_id} is not decided by this driver: another driver has taken "
            f"over ({decider.transactional_id}). Does the query run twice, or another one with the "
            f"same transactionalIdPrefix? ({error})"
        ) from error


def _write_texts(
    cluster: Cluster, decider: Transaction, decision: Decision, partitions: Sequence[TopicPartition]
) -> None:
    """Commit the decision's texts as metadata of offsets, in the decider's transaction.

    If the broker's offset.metadata.max.bytes is below Kafka's default, it refuses the texts. Then
    more and shorter ones are committed in the same transaction, and replace those it accepted.
    """
    max_chars, group = MAX_TEXT_CHARS, decider.transactional_id  # which has the group's name
    while True:
        texts = decision.texts(max_chars)
        if len(texts) > len(partitions):
            raise TransactionError(
                f"{len(decision.transactions)} tasks are too many for one decision, which may have "
                f"{max_chars} characters in each of {len(partitions)} partitions: write with fewer "
                "tasks (coalesce), or to topics with more partitions"
            )
        offsets = {
            tp: OffsetAndMetadata(decision.batch_id, text)
            for tp, text in zip(partitions, texts, strict=False)
        }
        try:
            commit_offsets_in(
                cluster, decider, group, offsets, cluster.deadline(), hints=DECISION_HINTS
            )
            return
        except BrokerError as error:
            longest = max(map(len, texts))
            while max_chars >= longest:
                max_chars //= 2
            if error.code != ErrorCode.OFFSET_METADATA_TOO_LARGE or max_chars < MIN_TEXT_CHARS:
                raise
            log.info("%s; the decision is written in texts of %d characters", error, max_chars)


def _commit_decided(
    cluster: Cluster, names: WriterNames, decision: Decision, fail_on_data_loss: bool
) -> None:
    """Commit the transactions of a decision.

    Raises TransactionError if some cannot be committed yet, DataLossError (failOnDataLoss) if Kafka
    has ended some without this decision.
    """
    transactions = _decided_transactions(names, decision)
    failed = _errors_of(end_transactions(cluster, transactions.values(), commit=True))
    unknown = {tid: error for tid, error in failed.items() if not _is_gone(error)}
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
        transaction.task
        for tid, transaction in zip(transactions, decision.transactions, strict=True)
        if tid in failed
    ]
    text = (
        f"batch {decision.batch_id} of query {decision.query_id} was decided, and Kafka has ended "
        f"{len(failed)} of its {len(transactions)} transactions without it: rows of tasks "
        f"{some(tasks)} are lost, those of the other tasks are visible. Either nobody finished "
        "the batch within kafka.transaction.timeout.ms, or another writer took over the ids "
        f"({next(iter(failed.values()))}). "
    )
    if fail_on_data_loss:
        raise DataLossError(
            text + "To write the whole batch again (rows of the other tasks are then duplicated), "
            f"delete the consumer group {names.decisions} and start the query again; to continue "
            "without the lost rows, set failOnDataLoss=false"
        )
    log.warning("%s The query continues without them (failOnDataLoss=false)", text)


def _decided_transactions(names: WriterNames, decision: Decision) -> dict[str, Transaction]:
    """Return the transactions of a decision by transactional id, in the decision's order."""
    names_of_run = WriterNames(names.prefix, decision.run)
    transactions = (_transaction(names_of_run, entry) for entry in decision.transactions)
    return {transaction.transactional_id: transaction for transaction in transactions}


def _finish_other_query(
    cluster: Cluster, names: WriterNames, last_decision: Decision, query_id: str, batch_id: int
) -> None:
    """Commit the last decision of another query that used the prefix before this one, which starts
    with a new checkpoint. `query_id` and `batch_id` are this query's. Raises TransactionError if
    both queries run."""
    if batch_id > 0:  # this query had the prefix already when the other one decided
        raise TransactionError(
            f"transactionalIdPrefix {names.prefix} is used by another query as well: "
            f"{last_decision.query_id} ({last_decision.application}) decided its batch "
            f"{last_decision.batch_id} after this one ({query_id}, batch {batch_id}) had begun. "
            "Give each query a prefix of its own; if the other one will never run again, delete "
            f"the consumer group {names.decisions}"
        )
    try:
        _commit_decided(cluster, names, last_decision, fail_on_data_loss=True)
    except DataLossError as error:
        # Or the other query has committed its transactions itself, and may still run, or its ids
        # have expired. The three cases cannot be distinguished any more.
        log.warning(
            "another query used transactionalIdPrefix %s before. If it still runs, it needs a "
            "prefix of its own (and nothing is lost); if it died in a commit: %s",
            names.prefix,
            error,
        )


# --- batch jobs ---------------------------------------------------------------------------------


def commit_job(options: WriteOptions, reports: Sequence[TaskReport]) -> CommitOutcome:
    """Commit the transactions of all tasks of a batch job.

    Raises TransactionError before anything is visible if one of them is not open any more;
    DataLossError if that turns out while they are committed.
    """
    if not reports:
        return CommitOutcome("no tasks")
    reported = _reported_transactions(reports)
    with Cluster(options.client) as cluster:
        check_transactions_open(cluster, reports)
        failed = _errors_of(end_transactions(cluster, reported.values(), commit=True))
        if failed:
            lost = [report for report in reports if report.transactional_id in failed]
            raise DataLossError(
                f"{len(reported) - len(failed)} of {len(reported)} transactions of this job are "
                f"committed, and their rows visible; those of tasks "
                f"{some(report.task for report in lost)} ({sum(report.rows for report in lost)} "
                f"rows) are not: {next(iter(failed.values()))}"
            )
        _abort_other_attempts(cluster, reports)
    return CommitOutcome(
        f"{len(reported)} transactions committed", committed=len(reported), visible=True
    )


def abort_job(
    options: WriteOptions,
    reports: Sequence[TaskReport],
    names: WriterNames,
    *,
    stopped_tasks: bool = False,
) -> CommitOutcome:
    """Abort the transactions of a failed job's tasks; the outcome says which could not be aborted.

    `names` are the job's. `stopped_tasks`: some tasks have no report, and may still run for a
    moment.
    """
    reported = _reported_transactions(reports)
    with Cluster(options.client) as cluster:
        failed = _abort_each(cluster, reported.values())
        stopped = _abort_stopped_tasks(cluster, names) if stopped_tasks else 0
    visible: list[TaskReport] = []
    unsure: list[TaskReport] = []
    for report in reports:
        error = failed.get(report.transactional_id)
        if error is not None:
            (visible if _is_gone(error) else unsure).append(report)
    aborted = len(reported) - len(visible) - len(unsure) + stopped
    text = f"{aborted} transactions aborted"
    if visible:
        text += (
            f"; {len(visible)} had been committed or ended before ("
            f"tasks {some(report.task for report in visible)}, "
            f"{sum(report.rows for report in visible)} rows, which are visible if they were "
            "committed)"
        )
    if unsure:
        text += (
            f"; {len(unsure)} could not be reached (tasks "
            f"{some(report.task for report in unsure)}): the broker aborts them after "
            "kafka.transaction.timeout.ms"
        )
    return CommitOutcome(text, aborted=aborted)


# --- transactions of tasks ----------------------------------------------------------------------


def _fence(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> dict[str, Transaction | KafkaError]:
    """Take transactional ids over: their open transactions are aborted, and the tasks that wrote in
    them fenced. Return by id the new, empty transaction, or the error.

    The transaction timeout of a minute is long enough, since the new transactions stay empty or are
    ended immediately; no option lowers it.
    """
    return fence(cluster, transactional_ids, 60_000, cluster.deadline(), TRANSACTION_HINTS)


def _transaction(names: WriterNames, task: TaskTransaction) -> Transaction:
    """Return a task's transaction with its transactional id, as the client's functions take it."""
    return Transaction(
        names.transactional_id(task.task, task.attempt), task.producer_id, task.producer_epoch
    )


def _reported_transactions(reports: Iterable[TaskReport]) -> dict[str, Transaction]:
    """Return the tasks' transactions by transactional id; tasks without rows have none."""
    return {
        report.transactional_id: _transaction(report.names, report.transaction)
        for report in reports
        if report.transaction is not None
    }


def check_transactions_open(cluster: Cluster, reports: Sequence[TaskReport]) -> None:
    """Raise TransactionError unless every task's transaction is open and still the task's."""
    transactions = _reported_transactions(reports)
    if not transactions:
        return
    problems: dict[str, str] = {}
    deadline = cluster.deadline()
    try:
        states = describe_known_transactions(cluster, transactions, deadline)
    except UnsupportedVersionError:  # before Kafka 3.0
        # Add a partition that is already part of the transaction: that changes nothing, and fails
        # if the transaction has ended or has another owner.
        written = {
            transactions[report.transactional_id]: report.partitions
            for report in reports
            if report.transaction is not None
        }
        results = add_partitions(cluster, written, deadline, TRANSACTION_HINTS)
        problems = {tid: str(error) for tid, error in _errors_of(results).items()}
    else:
        for tid, transaction in transactions.items():
            state = states.get(tid)
            if state is None:
                problems[tid] = "its coordinator does not know it"
            elif state.transaction != transaction:
                # The text does not name state.timeout_ms, which the other holder has set.
                problems[tid] = (
                    f"it is held under producer epoch {state.transaction.producer_epoch}, ours was "
                    f"{transaction.producer_epoch}: the query runs twice, or another query has the "
                    "same transactionalIdPrefix, or it was open for longer than "
                    "kafka.transaction.timeout.ms and the broker ended it"
                )
            elif not state.is_open:
                problems[tid] = f"it is not open, but {state.state}"
    if problems:
        raise TransactionError(
            f"{len(problems)} of {len(transactions)} transactions are not open any more, so "
            "nothing is committed and nothing becomes visible; run it again: "
            + "; ".join(f"{tid}: {text}" for tid, text in list(problems.items())[:3])
        )


def _abort_other_attempts(
    cluster: Cluster,
    reports: Sequence[TaskReport],
    *,
    all_runs: bool = False,
    last_decision: Decision | None = None,
    committed: Collection[str] = (),
) -> None:
    """Abort the transactions that are still open after those in `reports` were committed: of
    attempts of tasks that failed or were superseded, whose rows must not become visible.

    An attempt that Spark is about to kill may begin its transaction only after this. The next
    micro-batch aborts it. It may have fewer tasks, so those of `last_decision`, the decision before
    this micro-batch, count as well.

    With `all_runs` also transactions of earlier starts of the query are aborted, except the ids
    `committed`, which keep their producer epochs: if Spark plans the batch once more, its decision
    is committed again. An open transaction only makes read_committed readers wait, so a failure
    here is only logged.
    """
    names = reports[0].names
    rows: list[TaskReport | TaskTransaction] = [*reports]
    if last_decision is not None and last_decision.run == names.run:
        rows += last_decision.transactions
    try:
        open_ids = set(_open_ids_of_attempts(cluster, names, rows))
        if all_runs:
            # All decided transactions are committed, so none of this prefix may stay open.
            open_ids |= set(_open_ids_of_all_runs(cluster, reports, last_decision))
            open_ids -= set(committed)
        if open_ids:
            log.info(
                "aborting %d transactions that were left open: %s", len(open_ids), some(open_ids)
            )
            _fence(cluster, open_ids)
    except KafkaError as error:
        log.warning("transactions that were left open could not be aborted: %s", error)


def _open_ids_of_all_runs(
    cluster: Cluster, reports: Sequence[TaskReport], last_decision: Decision | None
) -> Iterable[str]:
    """Return the transactional ids of the query's tasks, in any of its runs, that may have an open
    transaction."""
    names = reports[0].names
    try:
        open_ids = list_ongoing_transactions(cluster, cluster.deadline())
    except UnsupportedVersionError:
        # Brokers before 3.0 do not list open transactions. Return the ids that tasks of the last
        # run may have used; its decided transactions are committed by now.
        if last_decision is None or last_decision.run == names.run:
            return []
        names_of_run = WriterNames(names.prefix, last_decision.run)
        attempts = {0, *(transaction.attempt for transaction in last_decision.transactions)}
        tasks = [report.task for report in reports]
        tasks += [transaction.task for transaction in last_decision.transactions]
        return [
            names_of_run.transactional_id(task, attempt)
            for task in range(max(tasks, default=-1) + 1)
            for attempt in sorted(attempts)
        ]
    return [tid for tid in open_ids if names.is_of_query(tid)]


def _abort_stopped_tasks(cluster: Cluster, names: WriterNames) -> int:
    """Abort transactions of this run's tasks that Spark stops because another task failed. Return
    their number. A failure is only logged.

    If they stay open, read_committed readers wait for kafka.transaction.timeout.ms, 15 minutes by
    default.
    """
    aborted: set[str] = set()
    try:
        # Twice: Spark lets such a task run for 2 s more (spark.python.task.killTimeout), and it may
        # begin its transaction then. A killed worker aborts nothing.
        for wait_s in (0.0, 2.5):
            time.sleep(wait_s)
            open_ids = {
                tid
                for tid in list_ongoing_transactions(cluster, cluster.deadline())
                if names.is_of_run(tid)
            }
            _fence(cluster, open_ids)
            aborted |= open_ids
    except UnsupportedVersionError:
        log.info("brokers before Kafka 3.0 do not list open transactions")
    except KafkaError as error:
        log.warning("transactions of tasks that were stopped could not be aborted: %s", error)
    return len(aborted)


def _open_ids_of_attempts(
    cluster: Cluster, names: WriterNames, rows: Sequence[TaskReport | TaskTransaction]
) -> Iterable[str]:
    """Return the ids of this run's open transactions. Those of `rows` have ended: what is open is
    of another attempt."""
    ids = _ids_of_attempts(names, rows)
    try:
        states = describe_known_transactions(cluster, ids, cluster.deadline())
    except UnsupportedVersionError:
        # Only attempts that have certainly run: fencing an unused id would create it.
        return [
            names.transactional_id(row.task, attempt)
            for row in rows
            if isinstance(row, TaskReport)  # the other ids may be in this micro-batch's decision
            for attempt in range(row.attempt)
        ]
    return [tid for tid, state in states.items() if state.is_open]


def _ids_of_attempts(names: WriterNames, rows: Iterable[TaskReport | TaskTransaction]) -> set[str]:
    """Return the transactional ids of attempts that may have run: those of `rows`, and others."""
    # Spark may run attempt 1 speculatively, and kill it, beside an attempt 0 that succeeds. A
    # second run of the stage (see STAGE_RETRY) may also be killed while the first one succeeds.
    return {
        names.transactional_id(row.task, retry * STAGE_RETRY + number)
        for row in rows
        for retry in range(max(row.attempt // STAGE_RETRY, 1) + 1)
        for number in range(max(row.attempt % STAGE_RETRY, 1) + 1)
    }


def _abort_each(cluster: Cluster, transactions: Iterable[Transaction]) -> dict[str, KafkaError]:
    """Abort tasks' transactions; return by transactional id the errors of those that could not be
    aborted.

    If a task is fenced, a copy of it may have a transaction open under the same id: that one is
    aborted, too.
    """
    failed = _errors_of(end_transactions(cluster, transactions, commit=False))
    fenced = [tid for tid, error in failed.items() if getattr(error, "code", None) in FENCED]
    for tid, result in _fence(cluster, fenced).items():
        if isinstance(result, KafkaError):
            log.warning("the open transaction of %s could not be aborted: %s", tid, result)
    return failed


def _errors_of(results: dict[str, KafkaError | None]) -> dict[str, KafkaError]:
    """Return the errors among results, by transactional id; None stands for success."""
    return {tid: error for tid, error in results.items() if error is not None}


def _is_gone(error: KafkaError) -> bool:
    """Return whether the transaction ended in another way or has another owner. False means that
    its state is unknown."""
    return isinstance(error, BrokerError) and error.code in GONE


# --- a task -------------------------------------------------------------------------------------

BATCH_ID = "streaming.sql.batchId"
"""The property that Spark's MicroBatchExecution sets for the tasks of a micro-batch."""


class TaskAttempt(NamedTuple):
    """One attempt of a task. In a batch job `query_id` is "" and `batch_id` NO_BATCH."""

    names: WriterNames
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
        names = WriterNames.of_query(prefix, query_id, run_id)
        return cls(names, query_id, int(batch_id), context.partitionId(), context.attemptNumber())

    @classmethod
    def of_job(cls, prefix: str | None, writer_id: str) -> TaskAttempt:
        """Return the attempt of a batch job that runs in this process."""
        context = _context()
        names = WriterNames.of_job(prefix, writer_id)
        return cls(names, "", NO_BATCH, context.partitionId(), context.attemptNumber())

    @property
    def numbers_by_id(self) -> dict[str, int]:
        """The numbers that the attempt may have, by transactional id. The task writes under the
        first id that has no open transaction (see STAGE_RETRY); there are four, since Spark runs a
        stage at most four times by default."""
        numbers = (self.attempt + STAGE_RETRY * retry for retry in range(4))
        return {self.names.transactional_id(self.task, number): number for number in numbers}

    def report(self, rows: int, transaction: SingleTransaction | None) -> TaskReport:
        """Return the report to the driver; `transaction` is None if the task had no rows. The
        report's attempt is the number under which the task has written."""
        written = None
        attempt = self.attempt
        if transaction is not None and transaction.identity is not None:
            transactional_id, producer_id, producer_epoch = transaction.identity
            attempt = self.numbers_by_id[transactional_id]
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
            decision = latest_decision(offset.metadata for offset in stored.values())
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
