"""What Kafka knows of an exactly-once query's last micro-batch: the decision that stands.

The sink writes down which transactions are a micro-batch before it commits them; see
docs/exactly-once-protocol.md. So after a crash Kafka says whether the batch that the checkpoint
shows as planned is decided.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.client.admin.admin import Admin
from sparkkafka.errors import DecodeError, counted
from sparkkafka.spark.exactly_once.decision_text import Decision, WriterNames, latest_decision


class Standing(NamedTuple):
    """The last decision under a prefix, and how it stands to the checkpoint.

    "none": there is none, so the query does not write exactly once, has another prefix, or never
    finished a batch. "other query": it is of a query with another id. "done": the batch is finished
    in the checkpoint as well. "decided": it is about the batch that the checkpoint shows as not
    finished; the next start commits it, and writes nothing twice. "undecided": it is about an
    earlier batch; the next start writes the unfinished one. "ahead": it is about a later batch
    than any in the checkpoint, which is an old copy: the next start fails.
    """

    group: str
    decision: Decision | None
    verdict: Literal["none", "other query", "done", "decided", "undecided", "ahead"]
    text: str
    """The same as a sentence."""


def decision_of(checkpoint: Checkpoint, admin: Admin, *, prefix: str | None = None) -> Standing:
    """The decision that stands for the query of this checkpoint. `prefix` is its
    transactionalIdPrefix, if it has one.

    Raises KafkaError if Kafka cannot be asked (READ on the group is needed), DecodeError if what is
    kept there is no decision.
    """
    query_id = checkpoint.query_id
    group = WriterNames.of_query(prefix, query_id, "").decisions
    stored = admin.list_consumer_group_offsets(group).all()
    try:
        decision = latest_decision(row.metadata for row in stored.values() if row is not None)
    except DecodeError as error:
        raise DecodeError(f"group {group}: {error}") from error
    if decision is None:
        return Standing(group, None, "none", f"no decision stands in group {group}")
    last = checkpoint.planned[-1] if checkpoint.planned else -1
    finished = checkpoint.committed[-1] if checkpoint.committed else -1
    batch = decision.batch_id
    about = (
        f"batch {batch} is decided (decision {decision.number} in group {group}, "
        f"{counted(len(decision.transactions), 'transaction')}, by {decision.application})"
    )
    if decision.query_id != query_id:
        return Standing(
            group, decision, "other query", f"{about}, of another query, {decision.query_id}"
        )
    if batch > max(last, finished):
        return Standing(
            group,
            decision,
            "ahead",
            f"{about}, and the checkpoint knows of none later than {max(last, finished)}: it is "
            "older than what was written, and the next start fails",
        )
    if last <= finished:
        return Standing(group, decision, "done", f"{about}; the checkpoint has it as finished too")
    if batch == last:
        return Standing(
            group,
            decision,
            "decided",
            f"{about}, which the checkpoint has as unfinished: the next start commits what is not "
            "committed yet, and writes nothing twice",
        )
    return Standing(
        group,
        decision,
        "undecided",
        f"{about}; batch {last} is planned and not decided: none of its rows is visible, and the "
        "next start writes it",
    )
