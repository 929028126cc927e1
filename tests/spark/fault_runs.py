"""One write with one fault, without Spark: the tasks' and the driver's real code on a FakeCluster.

`run` writes the same rows under a guarantee while a fault strikes, and says what became of them:
how many are lost or doubled, and whether the error told the truth about each partition. Which
faults there are is the matter of `fault_cases`.
"""

from __future__ import annotations

import contextlib
import enum
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from sparkkafka.client.arguments import InputColumns
from sparkkafka.config.options import WriteOptions, parse_write_options
from sparkkafka.errors import DataLossError, KafkaError
from sparkkafka.spark.decision_text import TaskReport, WriterNames
from sparkkafka.spark.exactly_once import TaskAttempt, abort_batch, commit_batch
from sparkkafka.spark.write.write_task import write_rows
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Action, Fault

COLUMNS = InputColumns(value=0, topic=1, partition=2)
TOPIC = "out"
BROKERS = 3
PARTITIONS = 3
ROWS = 120
TASKS = 2  # of an exactly-once batch; the others are written by one task
ARROW_ROWS = 30
QUERY_ID = "6f2ff5d3-ab4b-4d5c-9d0f-0d1c5a9f7d2e"
BATCH_ID = 7
"""With these, a write makes about twelve Produce requests, four to each leader."""

QUICK = {
    "kafka.linger.ms": "0",
    "kafka.request.timeout.ms": "2000",
    "kafka.default.api.timeout.ms": "4000",
    "kafka.max.block.ms": "4000",
    "kafka.delivery.timeout.ms": "4000",
    "kafka.retry.backoff.ms": "2",
    "kafka.retry.backoff.max.ms": "20",
    "kafka.reconnect.backoff.ms": "2",
    "kafka.reconnect.backoff.max.ms": "20",
}


class Guarantee(enum.Enum):
    """The columns of the table."""

    AT_LEAST_ONCE = "at-least-once"
    NOT_IDEMPOTENT = "at-least-once, `kafka.enable.idempotence=false`"
    EXACTLY_ONCE = "exactly-once"

    @property
    def options(self) -> dict[str, str]:
        if self is Guarantee.NOT_IDEMPOTENT:
            return {"kafka.enable.idempotence": "false"}
        return {"deliveryGuarantee": self.value}


@dataclass
class Scene:
    """Where a fault is set up. `before_commit` is called once the tasks have written, `restart`
    before the query is started again, once faults are cleared."""

    cluster: FakeCluster
    before_commit: Callable[[], object] = lambda: None
    restart: Callable[[], object] = lambda: None
    rules: list[Fault] = field(default_factory=list)

    def fault(self, action: Action, api: str = "Produce", **where: Any) -> None:
        """A rule that must strike as often as it says, or at least once."""
        self.rules.append(self.cluster.fault(action, api=api, **where))

    def leader(self, partition: int = 0) -> int:
        return self.cluster.leader(TOPIC, partition)

    def move_leader(self, partition: int) -> None:
        self.cluster.move_leader(TOPIC, partition, (self.leader(partition) + 1) % BROKERS)


Strike = Callable[[Scene], None]


@dataclass(frozen=True)
class Case:
    """A row of the table. Each of `strikes` is a run of its own, and all must end alike.

    `may_double`: the brokers may have appended what is sent again, so that without idempotence rows
    may be there twice. `told_lost`: Kafka has lost rows, and the error says so; in `unnoticed`
    nobody can notice. `around` is what the whole run is wrapped in.
    """

    name: str
    strikes: Sequence[Strike]
    options: Mapping[str, str] = field(default_factory=dict)
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    guarantees: tuple[Guarantee, ...] = tuple(Guarantee)
    may_double: bool = False
    told_lost: bool = False
    unnoticed: tuple[Guarantee, ...] = ()
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class Outcome(NamedTuple):
    """`lost`: written or reported as written, and not there. `lies`: partitions of which the error
    said what the logs do not bear out.

    Of an exactly-once batch `lost` and `doubled` are what readers see in the end: after the next
    start if it failed. `visible` is how many rows they saw before that, `open` how many
    transactions are open in the end, and a DataLossError is the next start's."""

    error: KafkaError | None
    lost: int
    doubled: int
    in_order: bool
    lies: tuple[str, ...] = ()
    visible: int = 0
    open: int = 0


def run(case: Case, guarantee: Guarantee) -> list[Outcome]:
    """What each of the case's strikes did."""
    found = []
    for strike in case.strikes:
        with FakeCluster(BROKERS) as cluster, case.around():
            cluster.create_topic(TOPIC, PARTITIONS, 2, dict(case.topic_configs))
            scene = Scene(cluster)
            strike(scene)
            rules = list(scene.rules)
            given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **QUICK}
            options = parse_write_options({**given, **guarantee.options, **case.options})
            write = _exactly_once if guarantee is Guarantee.EXACTLY_ONCE else _at_least_once
            found.append(write(scene, options))
            struck = all(rule.fired >= (rule.times or 1) for rule in rules)
            assert struck, f"{case.name}: did not happen: {rules}"
    return found


def _at_least_once(scene: Scene, options: WriteOptions) -> Outcome:
    logs = _Logs(scene.cluster)
    try:
        write_rows(_arrow(range(ROWS)), COLUMNS, options)
    except KafkaError as error:
        held = logs.rows()
        return Outcome(
            error,
            logs.missing_of(error),
            logs.doubled(),
            logs.in_order(held),
            logs.lies(error, range(ROWS)),
        )
    held = logs.rows()
    lost = sum((Counter(range(ROWS)) - Counter(row for rows in held for row in rows)).values())
    return Outcome(None, lost, logs.doubled(), logs.in_order(held))


def _exactly_once(scene: Scene, options: WriteOptions) -> Outcome:
    """A micro-batch; if it fails, the query's next start after what was wrong has been mended."""
    names = WriterNames.of_query(None, QUERY_ID, str(uuid.uuid4()))
    logs = _Logs(scene.cluster)
    error: KafkaError | None = None
    lies: tuple[str, ...] = ()
    reports: list[TaskReport] = []
    try:
        for task in range(TASKS):
            reports.append(_task(options, names, task))
        scene.before_commit()
        commit_batch(options, BATCH_ID, reports)
    except KafkaError as failure:
        error = failure
        lies = logs.lies(failure, _rows_of(len(reports)))
        with suppress(KafkaError):
            abort_batch(options, BATCH_ID, reports)
    visible = sum(map(len, logs.rows(committed=True)))
    if error is not None:
        scene.cluster.clear_faults()
        scene.restart()
        logs.reopen()
        names = WriterNames.of_query(None, QUERY_ID, str(uuid.uuid4()))
        try:
            again = [_task(options, names, task) for task in range(TASKS)]
            commit_batch(options, BATCH_ID, again)
        except DataLossError as failure:
            error = failure
    held = logs.rows(committed=True)
    seen = Counter(row for rows in held for row in rows)
    wanted = Counter(range(ROWS))
    return Outcome(
        error,
        (wanted - seen).total(),
        (seen - wanted).total(),
        logs.in_order(held),
        lies,
        visible,
        len(scene.cluster.open_transactions()),
    )


def _task(options: WriteOptions, names: WriterNames, task: int) -> TaskReport:
    attempt = TaskAttempt(names, QUERY_ID, BATCH_ID, task, 0)
    report = write_rows(_arrow(_rows_of(task)), COLUMNS, options, attempt).report
    assert report is not None
    return report


def _rows_of(task: int) -> range:
    share = ROWS // TASKS
    return range(task * share, (task + 1) * share)


def _arrow(rows: range) -> Iterator[pa.RecordBatch]:
    for start in range(rows.start, rows.stop, ARROW_ROWS):
        part = range(start, start + ARROW_ROWS)
        yield pa.record_batch(
            [
                pa.array([b"%d" % row for row in part], pa.binary()),
                pa.array([TOPIC] * len(part), pa.string()),
                pa.array([row % PARTITIONS for row in part], pa.int32()),
            ],
            names=["value", "topic", "partition"],
        )


class _Logs:
    """The topic's logs, also after somebody has deleted it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.reopen()

    def reopen(self) -> None:
        """Look at the topic that is there now."""
        self._logs = [self._cluster.log(TOPIC, number) for number in range(PARTITIONS)]

    def rows(self, *, committed: bool = False) -> list[list[int]]:
        """Each partition's rows."""
        return [
            [int(record.value or b"") for record in log.records(committed=committed)]
            for log in self._logs
        ]

    def doubled(self) -> int:
        return sum(len(rows) - len(set(rows)) for rows in self.rows())

    def in_order(self, held: list[list[int]]) -> bool:
        return all(rows == sorted(rows) for rows in held)

    def missing_of(self, error: KafkaError) -> int:
        """Rows that the error reports as written and that are not there."""
        held = self.rows()
        return sum(
            max(0, outcome.written_records - len(set(held[number])))
            for (_, number), outcome in error.partitions.items()
        )

    def lies(self, error: KafkaError, given: range) -> tuple[str, ...]:
        """Where fewer of the `given` rows are there than the error says are written, or more than
        may be."""
        found = []
        for (topic, number), outcome in error.partitions.items():
            held = len(set(self.rows()[number]) & set(given))
            written, _, unknown = outcome
            if not written <= held <= written + unknown:
                found.append(f"{topic}-{number}: {held} rows are there, the error says {outcome}")
        return tuple(found)


# --- words -------------------------------------------------------------------------------------

ALL_ONCE = "all rows, once"
_CHANGING = [
    # What differs from run to run, or is told by other columns.
    (re.compile(r"; \d+ partitions? so far: .*", re.DOTALL), ""),
    (re.compile(r"; the last failures?: .*", re.DOTALL), ""),
    (re.compile(r" \(records (not|possibly) written\)"), ""),
    (re.compile(r"; records in this batch: \d+"), ""),
    (re.compile(r" @ 127\.0\.0\.1:\d+( for out-\d+)?"), ""),
    (re.compile(r"127\.0\.0\.1:\d+"), "host:port"),
    (re.compile(r" from \w+( of (group )?'[\w…-]+'( for out-\d+)?)?(?=:)"), ""),
    (re.compile(r"(broker|partition) \d+"), r"\1 N"),
    (re.compile(r"out-\d+((,| and) out-\d+)*(?=: )"), "out-N"),
    (re.compile(r"\d+ (failed )?attempts?"), r"N \1attempts"),
    (re.compile(r"(epoch|producer) \d+"), r"\1 N"),
    (re.compile(QUERY_ID), "ID"),
    (re.compile(r"ID-[0-9a-f]{12}-\d+-\d+"), "ID-…"),
    (re.compile(r"run [0-9a-f]{12}"), "run …"),
    (re.compile(r"sequence \d+ where \d+"), "sequence N where M"),
    (re.compile(r": sparkkafka-ID-….*| \(error 90 .*?\)", re.DOTALL), ""),
    # The cause, after a sentence that says what it means.
    (re.compile(r" \((topic out|error \d+|committing transactions:) .*", re.DOTALL), ""),
]


def words(case: Case, outcomes: Sequence[Outcome], guarantee: Guarantee) -> str:
    """A cell of the table. Nothing in it changes from run to run."""
    return " / ".join(sorted({_cell(case, row, guarantee) for row in outcomes}))


def _cell(case: Case, outcome: Outcome, guarantee: Guarantee) -> str:
    doubles = case.may_double and guarantee is Guarantee.NOT_IDEMPOTENT
    if guarantee in case.unnoticed:
        return "rows lost, not detected"
    if outcome.error is None:
        return "all rows, duplicates possible" if doubles else ALL_ONCE
    if isinstance(outcome.error, DataLossError):
        return "the next start fails and reports lost rows"
    if case.told_lost:
        return "fails and reports lost rows; 0 duplicated"
    if guarantee is not Guarantee.EXACTLY_ONCE:
        return f"fails; 0 lost, {'duplicates possible' if doubles else '0 duplicated'}"
    seen = {0: "nothing", ROWS: "all"}.get(outcome.visible, "a part")
    return f"fails, {seen} visible; next start: {ALL_ONCE}"


def error_words(error: KafkaError) -> str:
    """The error as a user reads it, without ports, ids and counts."""
    text = str(error)
    for pattern, replacement in _CHANGING:
        text = pattern.sub(replacement, text)
    return f"`{type(error).__name__}`: {text}"
