"""The decision about a micro-batch, as text: the transactions to commit.

It is stored as metadata of offsets in a consumer group without members, in as many partitions as
its length needs. `commit` writes and reads it; docs/exactly-once-protocol.md says what it is for.
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

MIN_TEXT_CHARS = 512
"""A text has the decision's head, some 250 characters, beside transactions."""

FORMAT_VERSION = 1
NO_BATCH = -1
RUN_CHARS = 12
JOB_MARK = "job"
_TASK = re.compile("[0-9]+-[0-9]+")
_TASK_OF_QUERY = re.compile(rf"[0-9a-f]{{{RUN_CHARS}}}-[0-9]+-[0-9]+")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


STAGE_RETRY = 1_000
STAGE_ATTEMPTS = 4
"""Spark counts the attempts of a task anew when it runs a stage again (shuffle files were lost),
and tells Python nothing about that; the first ones may still run, and may be those that count. So
an attempt whose id is in use takes its number plus a multiple of STAGE_RETRY."""


class TaskTransaction(NamedTuple):
    """The transaction that one attempt of one task has written in."""

    task: int
    attempt: int
    producer_id: int
    producer_epoch: int


class WriterNames(NamedTuple):
    """Names under which one query (or one batch job) writes.

    `prefix` is transactionalIdPrefix, or made from the query's id; `run` tells the starts of a
    query, and batch jobs, apart. So transactional ids of different starts never meet: what is left
    of one can neither write in, nor end, a transaction of another.
    """

    prefix: str
    run: str

    @classmethod
    def of_query(cls, prefix: str | None, query_id: str, run_id: str) -> WriterNames:
        """`run_id` is Spark's id of this start of the query."""
        return cls(prefix or f"sparkkafka-{query_id}", run_id.replace("-", "")[:RUN_CHARS])

    @classmethod
    def of_job(cls, prefix: str | None, job_id: str) -> WriterNames:
        """`job_id` is 32 hexadecimal digits."""
        return cls(prefix or "sparkkafka", f"{JOB_MARK}{job_id}")

    def transactional_id(self, task: int, attempt: int) -> str:
        return f"{self.prefix}-{self.run}-{task}-{attempt}"

    def is_of_query(self, transactional_id: str) -> bool:
        """Whether the id is a task's of any start of a query with this prefix; not of a job, and
        not of a query whose longer prefix begins with this one."""
        rest = transactional_id.removeprefix(f"{self.prefix}-")
        return rest != transactional_id and _TASK_OF_QUERY.fullmatch(rest) is not None

    def is_of_run(self, transactional_id: str) -> bool:
        """Whether the id is a task's of this start of the query, or of this job."""
        rest = transactional_id.removeprefix(f"{self.prefix}-{self.run}-")
        return rest != transactional_id and _TASK.fullmatch(rest) is not None

    @property
    def decisions(self) -> str:
        """The transactional id that decides, and the group that holds decisions."""
        return f"{self.prefix}-decisions"


class TaskReport(NamedTuple):
    """What one task tells the driver about the transaction that it has written in. `attempt` may
    have STAGE_RETRY added.

    `transaction` is None if it had no rows; in a batch job `query_id` is "", `batch_id` NO_BATCH.
    """

    names: WriterNames
    query_id: str
    batch_id: int
    task: int
    attempt: int
    rows: int
    transaction: TaskTransaction | None
    partitions: tuple[TopicPartition, ...]


class Ended(NamedTuple):
    """How the driver has ended the transactions of a micro-batch or a job: a line that says what
    was done, and how many were committed and aborted. `visible`: the rows of this attempt are."""

    text: str
    committed: int = 0
    aborted: int = 0
    visible: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """These transactions of one micro-batch will be committed, whatever happens.

    `number` counts the decisions under a prefix; `application` is for people.
    """

    query_id: str
    run: str
    batch_id: int
    number: int
    application: str
    transactions: tuple[TaskTransaction, ...]

    def texts(self, max_chars: int = MAX_TEXT_CHARS) -> list[str]:
        """The decision in pieces of at most `max_chars`, each of them complete in itself."""
        head = {
            "v": FORMAT_VERSION,
            "query": self.query_id,
            "run": self.run,
            "batch": self.batch_id,
            "number": self.number,
            "app": self.application[:100],
        }
        rows = [_pack(row) for row in self.transactions]
        room = max_chars - len(_dump({**head, "piece": 99_999, "of": 99_999, "tasks": ""}))
        pieces: list[str] = []
        for row in rows:
            if pieces and len(pieces[-1]) + 1 + len(row) <= room:
                pieces[-1] += f" {row}"
            else:
                pieces.append(row)
        pieces = pieces or [""]
        return [
            _dump({**head, "piece": index, "of": len(pieces), "tasks": tasks})
            for index, tasks in enumerate(pieces)
        ]


def latest_decision(texts: Iterable[str]) -> Decision | None:
    """The decision with the highest number among stored texts; None if there is no text.

    Raises DecodeError for text that is not ours, or a decision of which a piece is missing.
    """
    found = [_parse(text) for text in texts]
    if not found:
        return None
    number = max(row["number"] for row in found)
    pieces = {row["piece"]: row for row in found if row["number"] == number}
    first = next(iter(pieces.values()))
    if len(pieces) != first["of"] or sorted(pieces) != list(range(len(pieces))):
        raise DecodeError(
            f"of the decision about batch {first['batch']} only pieces {sorted(pieces)} of "
            f"{first['of']} are there: was a topic deleted that held the others?"
        )
    transactions = tuple(
        _unpack(row) for index in sorted(pieces) for row in pieces[index]["tasks"].split()
    )
    if len({row[:2] for row in transactions}) < len(transactions):
        raise DecodeError(f"the decision about batch {first['batch']} names a task twice")
    return Decision(
        query_id=first["query"],
        run=first["run"],
        batch_id=first["batch"],
        number=number,
        application=first["app"],
        transactions=transactions,
    )


def _dump(row: Mapping[str, object]) -> str:
    return json.dumps(row, separators=(",", ":"))


_TYPES: Mapping[str, type] = {
    "v": int, "query": str, "run": str, "batch": int, "number": int, "app": str, "piece": int,
    "of": int, "tasks": str,
}  # fmt: skip


def _parse(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
        # Exactly: True is an int as well.
        sound = isinstance(row, dict) and all(
            type(row.get(name)) is kind for name, kind in _TYPES.items()
        )
        sound = sound and 0 <= row["piece"] < row["of"] and row["run"].isascii()
    except (ValueError, RecursionError):
        sound = False
    if not sound or row["v"] != FORMAT_VERSION:
        raise DecodeError(
            f"the group that holds decisions has an entry that is not a decision: {text[:100]!r}; "
            "is another program using this group?"
        )
    return dict(row)


def _pack(row: TaskTransaction) -> str:
    return ".".join(_base36(number) for number in row)


def _unpack(text: str) -> TaskTransaction:
    try:
        row = TaskTransaction(*(int(part, 36) for part in text.split(".")))
    except (TypeError, ValueError):
        row = None
    if row is None or min(row) < 0 or row.producer_id >= 1 << 63 or row.producer_epoch >= 1 << 15:
        raise DecodeError(f"a decision names an invalid transaction: {text[:100]!r}")
    return row


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
        if not number:
            return digits
