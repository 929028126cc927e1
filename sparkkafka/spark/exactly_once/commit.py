"""The driver's part of deliveryGuarantee=exactly-once: deciding, ending, clearing up.

Tasks write in transactions of their own and end none. For each micro-batch of a stream the driver
writes a decision down (see `decision`), in a transaction of its own transactional id, and then
commits the tasks' transactions; what was decided and not finished is finished when Spark plans the
same batch again. docs/exactly-once-protocol.md says why each crash ends well; its names for the
steps stand in the comments here.

Spark never plans a batch job again, so a job needs no decision: `commit_job` checks that every
transaction is open, and commits them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import FOR_TRANSACTION, learn_coordinators
from sparkkafka.client.group.committed_offsets import fetch_stored
from sparkkafka.client.transactions.requests import (
    GONE,
    Transaction,
    commit_offsets_in,
    end_transactions,
    explained,
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
    some,
)
from sparkkafka.spark.exactly_once.decision_text import (
    MAX_TEXT_CHARS,
    MIN_TEXT_CHARS,
    Decision,
    Ended,
    TaskReport,
    WriterNames,
    latest_decision,
)
from sparkkafka.spark.exactly_once.task_transactions import (
    OF_TRANSACTIONS,
    abort_each,
    abort_stopped,
    check_open,
    clear_up,
    failures,
    id_of,
    is_gone,
    other_attempts,
    take_over,
    transaction_of,
    transactions_of,
)

log = logging.getLogger(__name__)

OF_DECISIONS: Mapping[int, str] = {
    **OF_TRANSACTIONS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "decisions are kept beside offsets of the topics that are written: grant READ on the topic "
        "as well, WRITE alone is not enough for this"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "decisions are kept as metadata of offsets: set the brokers' offset.metadata.max.bytes to "
        f"{MIN_TEXT_CHARS} or more"
    ),
}


class _Stored(NamedTuple):
    """The last decision under a prefix, and the partitions of the group that hold it."""

    decision: Decision | None
    partitions: tuple[TopicPartition, ...]


def commit_batch(options: WriteOptions, batch_id: int, reports: Sequence[TaskReport]) -> Ended:
    """Make all tasks' rows of a micro-batch visible, or finish what an earlier driver decided.

    Raises TransactionError if the batch is not decided
    (Spark plans it again, and nothing of this attempt becomes visible), DataLossError if it is
    decided and Kafka has lost a part of it.
    """
    if not reports:
        return Ended("no tasks")
    names, query_id = reports[0].names, reports[0].query_id
    own = transactions_of(names, reports)
    with Cluster(options.client) as cluster:
        keys = [names.decisions, *own, *other_attempts(names, reports)]
        learn_coordinators(cluster, keys, FOR_TRANSACTION, cluster.deadline())
        # "fence": no other driver of this prefix can decide from here on.
        decider = _become_decider(cluster, names)
        stored = _read_decision(cluster, names)
        last = stored.decision
        if last is not None and last.query_id != query_id:
            _finish_other_query(cluster, names, last, query_id, batch_id)
        elif last is not None and last.batch_id > batch_id:
            raise TransactionError(
                f"batch {batch_id} is planned again although batch {last.batch_id} was decided: "
                "the checkpoint is older than what was written. Use the checkpoint that belongs to "
                f"it, or delete the consumer group {names.decisions} to write again (rows of these "
                "batches are then doubled)"
            )
        elif last is not None and last.batch_id == batch_id:
            # "replay": what was written this time must never be seen.
            decided = _decided_transactions(names, last)
            mine = [row for key, row in own.items() if key not in decided]
            end_transactions(cluster, mine, commit=False)
            _finish(cluster, names, last, options.fail_on_data_loss)
            clear_up(cluster, names, reports, every=True, before=last)
            return Ended(
                f"batch {batch_id} was decided by an earlier start of the query (run {last.run}):"
                f" {len(last.transactions)} transactions of it committed, rows written this time "
                "left out",
                committed=len(last.transactions),
                aborted=len(mine),
            )
        check_open(cluster, own, reports)
        decision = Decision(
            query_id=query_id,
            run=names.run,
            batch_id=batch_id,
            number=0 if last is None else last.number + 1,
            application=socket.gethostname(),
            transactions=tuple(row.transaction for row in reports if row.transaction is not None),
        )
        first = last is None or last.run != names.run
        # The first micro-batch of a run is decided even without rows: the decision tells later
        # runs which query owns the prefix. Only then are transactions of other runs aborted
        # (`every`): no other run can have decided about them since they were looked up.
        decides = bool(own) or (first and bool(stored.partitions))
        if decides:
            _decide(cluster, names, decider, decision, stored.partitions, reports)
            _finish(cluster, names, decision, options.fail_on_data_loss)
        clear_up(cluster, names, reports, every=first and decides, before=last)
        text = f"batch {batch_id}: {len(own)} transactions committed"
        return Ended(text, committed=len(own), visible=True)


def abort_batch(
    options: WriteOptions,
    batch_id: int,
    reports: Sequence[TaskReport],
    *,
    stopped_tasks: bool = False,
) -> Ended:
    """End a failed micro-batch: take back what is not decided, leave alone what is.

    `stopped_tasks`: there are tasks without a report, which may run for a moment more. Spark also
    calls this after `commit_batch` failed.
    Raises KafkaError if Kafka cannot be asked; the next start of the query then clears up.
    """
    if not reports:
        return Ended(
            f"batch {batch_id} failed, or the query was stopped; what its tasks wrote is taken "
            "back by the next start"
        )
    names = reports[0].names
    own = transactions_of(names, reports)
    with Cluster(options.client) as cluster:
        # Taking the id over settles a decision that is half written, one way or the other.
        _become_decider(cluster, names)
        last = _read_decision(cluster, names).decision
        if last is not None and (last.query_id, last.batch_id, last.run) == (
            reports[0].query_id,
            batch_id,
            names.run,
        ):
            return Ended(
                f"batch {batch_id} is decided: its rows become visible at the latest when the "
                "query is started again, and are not written a second time"
            )
        left = abort_each(cluster, own.values())
        stopped = abort_stopped(cluster, names) if stopped_tasks else 0
    aborted = len(own) - len(left) + stopped
    text = f"batch {batch_id} failed, or the query was stopped: {aborted} transactions aborted"
    if left:
        text += f", {len(left)} not ({next(iter(left.values()))})"
    return Ended(text, aborted=aborted)


def _become_decider(cluster: Cluster, names: WriterNames) -> Transaction:
    key = names.decisions
    found = take_over(cluster, [key])[key]
    if isinstance(found, KafkaError):
        raise found
    return found


def _read_decision(cluster: Cluster, names: WriterNames) -> _Stored:
    try:
        stored = fetch_stored(cluster, names.decisions)
    except BrokerError as error:
        raise explained(error, cluster.options.prefix, OF_DECISIONS) from error
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
    partitions = tuple(
        sorted(tp for tp, row in stored.items() if number is not None and number in row.metadata)
    )
    return _Stored(decision, partitions)


def _decide(
    cluster: Cluster,
    names: WriterNames,
    decider: Transaction,
    decision: Decision,
    known_partitions: Iterable[TopicPartition],
    reports: Iterable[TaskReport],
) -> None:
    """Write the decision down; it holds once the decider's transaction is committed."""
    written = sorted({tp for report in reports for tp in report.partitions})
    partitions = list(dict.fromkeys([*known_partitions, *written]))
    try:
        _write_texts(cluster, names, decider, decision, partitions)
        outcome = end_transactions(cluster, [decider], commit=True)
        failure = outcome[names.decisions]
        if failure is not None and not is_gone(failure):
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


def _write_texts(
    cluster: Cluster,
    names: WriterNames,
    decider: Transaction,
    decision: Decision,
    partitions: Sequence[TopicPartition],
) -> None:
    """Make the decision's texts part of the decider's transaction, as metadata of offsets.

    A broker whose offset.metadata.max.bytes is below Kafka's default gets more and shorter texts:
    what it took of the longer ones is replaced, in the same transaction.
    """
    max_chars = MAX_TEXT_CHARS
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
                cluster, decider, names.decisions, offsets, cluster.deadline(), words=OF_DECISIONS
            )
            return
        except BrokerError as error:
            longest = max(map(len, texts))
            while max_chars >= longest:
                max_chars //= 2
            if error.code != ErrorCode.OFFSET_METADATA_TOO_LARGE or max_chars < MIN_TEXT_CHARS:
                raise
            log.info("%s; the decision is written in texts of %d characters", error, max_chars)


def _finish(
    cluster: Cluster, names: WriterNames, decision: Decision, fail_on_data_loss: bool
) -> None:
    """Commit what was decided. Raises DataLossError for what Kafka does not have any more."""
    transactions = _decided_transactions(names, decision)
    failed = failures(end_transactions(cluster, transactions.values(), commit=True))
    unknown = {key: error for key, error in failed.items() if not is_gone(error)}
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
        f"{some(tasks)} are lost, those of the other tasks are visible. Either nobody finished "
        "the batch within kafka.transaction.timeout.ms, or another writer took over the ids "
        f"({next(iter(failed.values()))}). "
    )
    if fail_on_data_loss:
        raise DataLossError(
            text + "To write the whole batch again (rows of the other tasks are then doubled), "
            f"delete the consumer group {names.decisions} and start the query again; to go on "
            "without the lost rows, set failOnDataLoss=false"
        )
    log.warning("%s Going on without them (failOnDataLoss=false)", text)


def _decided_transactions(names: WriterNames, decision: Decision) -> dict[str, Transaction]:
    """The transactions of a decision by transactional id, in its order."""
    of_run = WriterNames(names.prefix, decision.run)
    rows = (transaction_of(of_run, row) for row in decision.transactions)
    return {row.transactional_id: row for row in rows}


def _finish_other_query(
    cluster: Cluster, names: WriterNames, last: Decision, query_id: str, batch_id: int
) -> None:
    """A new checkpoint under an old prefix: finish what the old query decided."""
    if batch_id > 0:
        raise TransactionError(
            f"transactionalIdPrefix {names.prefix} is used by another query as well: "
            f"{last.query_id} ({last.application}) decided its batch {last.batch_id} after "
            f"this one ({query_id}, batch {batch_id}) had begun. Give each query a prefix of its "
            "own; if the other one is gone for good, delete the consumer group "
            f"{names.decisions}"
        )
    try:
        _finish(cluster, names, last, fail_on_data_loss=True)
    except DataLossError as error:
        # Or its transactional ids have expired since, or it has committed them and goes on: that
        # cannot be told apart any more.
        log.warning(
            "of the query that used transactionalIdPrefix %s before: if it still runs, it needs a "
            "prefix of its own (and nothing is lost); if it died in a commit: %s",
            names.prefix,
            error,
        )


# --- batch jobs ---------------------------------------------------------------------------------


def commit_job(options: WriteOptions, reports: Sequence[TaskReport]) -> Ended:
    """Commit the transactions of all tasks of a batch job.

    Raises TransactionError before anything is visible if one of them is not open any more;
    DataLossError if that turns out while they are committed.
    """
    if not reports:
        return Ended("no tasks")
    names = reports[0].names
    own = transactions_of(names, reports)
    with Cluster(options.client) as cluster:
        check_open(cluster, own, reports)
        failed = failures(end_transactions(cluster, own.values(), commit=True))
        if failed:
            lost = [row for row in reports if id_of(row) in failed]
            raise DataLossError(
                f"{len(own) - len(failed)} of {len(own)} transactions of this job are committed, "
                f"and their rows visible; those of tasks {some(row.task for row in lost)} "
                f"({sum(row.rows for row in lost)} rows) are not: {next(iter(failed.values()))}"
            )
        clear_up(cluster, names, reports, every=False)
    return Ended(f"{len(own)} transactions committed", committed=len(own), visible=True)


def abort_job(
    options: WriteOptions,
    reports: Sequence[TaskReport],
    names: WriterNames | None = None,
    *,
    stopped_tasks: bool = False,
) -> Ended:
    """Take back what the tasks of a failed job wrote; says what could not be.

    `names` are the job's, needed if no task has reported. `stopped_tasks`: there are tasks without
    a report, which may run for a moment more.
    """
    names = reports[0].names if reports else names
    if names is None:
        return Ended("nothing of it is visible to read_committed")
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
    aborted = len(own) - len(visible) - len(unsure) + stopped
    text = f"{aborted} transactions aborted"
    if visible:
        text += (
            f"; {len(visible)} had been committed or ended before ("
            f"tasks {some(row.task for row in visible)}, "
            f"{sum(row.rows for row in visible)} rows, which are visible if they were committed)"
        )
    if unsure:
        text += (
            f"; {len(unsure)} could not be reached (tasks {some(row.task for row in unsure)}): "
            "the broker aborts them after kafka.transaction.timeout.ms"
        )
    return Ended(text, aborted=aborted)
