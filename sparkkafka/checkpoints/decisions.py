"""Compare a checkpoint with the last decision of an exactly-once query.

The sink commits a decision, the list of a micro-batch's transactions, before it commits the
transactions themselves; see docs/exactly-once-protocol.md. So after a crash Kafka knows whether the
batch that the checkpoint shows as planned is decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.client.admin.admin import Admin
from sparkkafka.errors import DecodeError, counted
from sparkkafka.spark.exactly_once.decision_text import (
    Decision,
    WriterNames,
    is_decision,
    latest_decision,
)


class Standing(NamedTuple):
    """The last decision under a prefix, and how it compares with the checkpoint.

    - "none": there is no decision. The query does not write exactly-once, has another prefix, or
      never finished a batch.
    - "other query": the decision is of a query with another id.
    - "done": the decided batch is finished in the checkpoint as well.
    - "decided": the decided batch is unfinished in the checkpoint. The next start commits it and
      writes nothing twice.
    - "undecided": the decision is about an earlier batch. The next start writes the unfinished one.
    - "ahead": the decision is about a later batch than any in the checkpoint, which is an old copy.
      The next start fails.
    """

    group: str
    decision: Decision | None
    verdict: Literal["none", "other query", "done", "decided", "undecided", "ahead"]
    text: str
    """The verdict as a sentence."""


def decision_of(checkpoint: Checkpoint, admin: Admin, *, prefix: str | None = None) -> Standing:
    """Look up the last decision of this checkpoint's query, and compare the two. `prefix` is the
    query's transactionalIdPrefix, if it has one.

    Raises KafkaError if the lookup fails (it needs READ on the group), DecodeError if the group
    has an entry that is not a decision.
    """
    query_id = checkpoint.query_id
    group = WriterNames.of_query(prefix, query_id, "").decisions
    committed = admin.list_consumer_group_offsets(group).all()
    try:
        decision = latest_decision(row.metadata for row in committed.values() if row is not None)
    except DecodeError as error:
        raise DecodeError(f"group {group}: {error}") from error
    if decision is None:
        return Standing(group, None, "none", f"there is no decision in group {group}")
    last_planned = checkpoint.planned[-1] if checkpoint.planned else -1
    last_finished = checkpoint.committed[-1] if checkpoint.committed else -1
    batch_id = decision.batch_id
    verdict: Literal["other query", "done", "decided", "undecided", "ahead"]
    if decision.query_id != query_id:
        verdict = "other query"
        outcome = f", of another query, {decision.query_id}"
    elif batch_id > max(last_planned, last_finished):
        verdict = "ahead"
        outcome = (
            f", and the last batch in the checkpoint is {max(last_planned, last_finished)}: the "
            "checkpoint is older than what was written, and the next start fails"
        )
    elif last_planned <= last_finished:
        verdict = "done"
        outcome = "; it is finished in the checkpoint, too"
    elif batch_id == last_planned:
        verdict = "decided"
        outcome = (
            ", and is not finished in the checkpoint: the next start commits what is not "
            "committed yet, and writes nothing twice"
        )
    else:
        verdict = "undecided"
        outcome = (
            f"; batch {last_planned} is planned and not decided: none of its rows is visible, and "
            "the next start writes it"
        )
    return Standing(
        group,
        decision,
        verdict,
        f"batch {batch_id} is decided (decision {decision.number} in group {group}, "
        f"{counted(len(decision.transactions), 'transaction')}, by {decision.application})"
        f"{outcome}",
    )


def holds_decisions(group: str, texts: Iterable[str]) -> bool:
    """Return whether a group, whose offsets have these texts as metadata, holds decisions: its
    offsets are not those of a consumer."""
    # The name first: a cluster may have thousands of offsets with metadata.
    prefix = group.removesuffix("-decisions")
    return group == WriterNames(prefix, "").decisions and any(map(is_decision, texts))
