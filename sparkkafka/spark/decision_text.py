"""The names that an exactly-once query writes under, and its decisions as text.

A decision lists the transactions of a micro-batch that will be committed. It is stored as metadata
of offsets in a consumer group without members, in as many partitions as its length needs.
`exactly_once` writes and reads it; docs/exactly-once-protocol.md says what it is for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkkafka.errors import DecodeError

if TYPE_CHECKING:
    from sparkkafka.client.values import TopicPartition

MAX_TEXT_CHARS = 4096
"""The default of a broker's offset.metadata.max.bytes; the text is ASCII."""

FORMAT_VERSION = 1
NO_BATCH = -1  # the batch id of a batch job
RUN_CHARS = 12  # characters of Spark's run id in transactional ids

STAGE_RETRY = 1_000
"""When Spark runs a stage again (shuffle files were lost), it counts the attempts of a task from 0
again, which Python cannot see. Attempts of the first run may still run, and may be those that Spark
commits. So an attempt whose transactional id is in use adds a multiple of STAGE_RETRY to its
number."""


class TaskTransaction(NamedTuple):
    """The transaction in which one attempt of a task has written."""

    task: int
    attempt: int
    producer_id: int
    producer_epoch: int


class WriterNames(NamedTuple):
    """The names under which one query (or one batch job) writes.

    `prefix` is transactionalIdPrefix, or made from the query's id. `run` identifies one start of
    the query, or the batch job. So each start has transactional ids of its own, and a task of an
    earlier start can neither write in a transaction of a later one nor end it.
    """

    prefix: str
    run: str

    @classmethod
    def of_query(cls, prefix: str | None, query_id: str, run_id: str) -> WriterNames:
        """Return the names of one start of a query. `run_id` is Spark's id of that start."""
        return cls(prefix or f"sparkkafka-{query_id}", run_id.replace("-", "")[:RUN_CHARS])

    @classmethod
    def of_job(cls, prefix: str | None, job_id: str) -> WriterNames:
        """Return the names of a batch job. `job_id` is 32 hexadecimal digits."""
        return cls(prefix or "sparkkafka", f"job{job_id}")

    def transactional_id(self, task: int, attempt: int) -> str:
        """Return the transactional id of one attempt of a task."""
        return f"{self.prefix}-{self.run}-{task}-{attempt}"

    def is_of_query(self, transactional_id: str) -> bool:
        """Return whether the id belongs to a task of any start of a query with this prefix; not of
        a job, and not of a query whose longer prefix begins with this one."""
        suffix = transactional_id.removeprefix(f"{self.prefix}-")
        task = re.fullmatch(rf"[0-9a-f]{{{RUN_CHARS}}}-[0-9]+-[0-9]+", suffix)
        return suffix != transactional_id and task is not None

    def is_of_run(self, transactional_id: str) -> bool:
        """Return whether the id belongs to a task of this start of the query, or of this job."""
        suffix = transactional_id.removeprefix(f"{self.prefix}-{self.run}-")
        return suffix != transactional_id and re.fullmatch("[0-9]+-[0-9]+", suffix) is not None

    @property
    def decisions(self) -> str:
        """The transactional id that decides, and the group that holds decisions."""
        return f"{self.prefix}-decisions"


class TaskReport(NamedTuple):
    """What a task reports to the driver about its transaction, which is None if it had no rows.

    `attempt` may contain a multiple of STAGE_RETRY. In a batch job `query_id` is "" and `batch_id`
    NO_BATCH.
    """

    names: WriterNames
    query_id: str
    batch_id: int
    task: int
    attempt: int
    rows: int
    transaction: TaskTransaction | None
    partitions: tuple[TopicPartition, ...]

    @property
    def transactional_id(self) -> str:
        """The transactional id under which the task has written."""
        return self.names.transactional_id(self.task, self.attempt)


class CommitOutcome(NamedTuple):
    """How the driver has ended the transactions of a micro-batch or a job.

    `text` is a line for the log; `committed` and `aborted` count transactions. `visible`: the rows
    of this attempt are visible.
    """

    text: str
    committed: int = 0
    aborted: int = 0
    visible: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The transactions of one micro-batch that will be committed, even if the driver dies now.

    `number` counts the decisions under a prefix. `application` is the driver's host, for messages.
    """

    query_id: str
    run: str
    batch_id: int
    number: int
    application: str
    transactions: tuple[TaskTransaction, ...]

    def texts(self, max_chars: int = MAX_TEXT_CHARS) -> list[str]:
        """Return the decision in texts of at most `max_chars`, each of them valid JSON with a piece
        of the transactions. `latest_decision` puts them together."""
        head = {
            "v": FORMAT_VERSION,
            "query": self.query_id,
            "run": self.run,
            "batch": self.batch_id,
            "number": self.number,
            "app": self.application[:100],
        }
        # The longest text without transactions.
        frame = _dump({**head, "piece": 99_999, "of": 99_999, "tasks": ""})
        pieces: list[str] = []
        for transaction in self.transactions:
            text = ".".join(map(_base36, transaction))
            if pieces and len(pieces[-1]) + len(" ") + len(text) <= max_chars - len(frame):
                pieces[-1] += f" {text}"
            else:
                pieces.append(text)
        pieces = pieces or [""]
        return [
            _dump({**head, "piece": index, "of": len(pieces), "tasks": tasks})
            for index, tasks in enumerate(pieces)
        ]


def latest_decision(texts: Iterable[str]) -> Decision | None:
    """Return the decision with the highest number among stored texts; None if there is no text.

    Raises DecodeError for text that is not a decision, or a decision of which a piece is missing.
    """
    entries = [_parse_text(text) for text in texts]
    if not entries:
        return None
    number = max(entry["number"] for entry in entries)
    pieces = {entry["piece"]: entry for entry in entries if entry["number"] == number}
    first = next(iter(pieces.values()))
    if len(pieces) != first["of"] or sorted(pieces) != list(range(len(pieces))):
        raise DecodeError(
            f"the decision about batch {first['batch']} is incomplete: only pieces "
            f"{sorted(pieces)} of {first['of']} are stored. Was a topic deleted that held others?"
        )
    transactions = tuple(
        _parse_transaction(transaction)
        for index in sorted(pieces)
        for transaction in pieces[index]["tasks"].split()
    )
    if len({(written.task, written.attempt) for written in transactions}) < len(transactions):
        raise DecodeError(f"the decision about batch {first['batch']} names a task twice")
    return Decision(
        query_id=first["query"],
        run=first["run"],
        batch_id=first["batch"],
        number=number,
        application=first["app"],
        transactions=transactions,
    )


def is_decision(text: str) -> bool:
    """Return whether a text is a decision or a piece of one."""
    try:
        _parse_text(text)
    except DecodeError:
        return False
    return True


def _dump(row: Mapping[str, object]) -> str:
    """Return JSON without white space."""
    return json.dumps(row, separators=(",", ":"))


_TYPES_BY_FIELD: Mapping[str, type] = {
    "v": int, "query": str, "run": str, "batch": int, "number": int, "app": str, "piece": int,
    "of": int, "tasks": str,
}  # fmt: skip


def _parse_text(text: str) -> dict[str, Any]:
    """Parse one stored text, and check its fields. Raises DecodeError."""
    try:
        entry = json.loads(text)
        # `type` and not `isinstance`: True is an int as well.
        is_valid = (
            isinstance(entry, dict)
            and all(
                type(entry.get(name)) is field_type for name, field_type in _TYPES_BY_FIELD.items()
            )
            and 0 <= entry["piece"] < entry["of"]
            and entry["run"].isascii()
            and entry["v"] == FORMAT_VERSION
        )
    except (ValueError, RecursionError):
        is_valid = False
    if not is_valid:
        raise DecodeError(
            f"the group that holds decisions has an entry that is not a decision: {text[:100]!r}; "
            "is another program using this group?"
        )
    return dict(entry)


def _parse_transaction(text: str) -> TaskTransaction:
    """Parse a task's transaction, four numbers of base 36. Raises DecodeError."""
    try:
        transaction = TaskTransaction(*(int(part, 36) for part in text.split(".")))
    except (TypeError, ValueError):
        transaction = None
    if (
        transaction is None
        or min(transaction) < 0
        or transaction.producer_id >= 1 << 63
        or transaction.producer_epoch >= 1 << 15
    ):
        raise DecodeError(f"a decision names an invalid transaction: {text[:100]!r}")
    return transaction


def _base36(number: int) -> str:
    """Return a number, 0 or more, as digits of base 36."""
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
        if not number:
            return digits
