"""Spark and its processes, as far as exactly-once depends on them, around the real writing code.

A `Process` is a thread whose requests to Kafka are counted: it can be killed, or stopped for a
while, before a request or between a request and its response. A killed process sends nothing more,
so no clean-up of ours runs, as after kill -9. A `Query` has what outlives processes: the checkpoint
(which batches were planned and which are done) and its id.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from sparkkafka.client.arguments import InputColumns
from sparkkafka.client.net.connection import Connection
from sparkkafka.config.options import WriteOptions, parse_write_options
from sparkkafka.errors import KafkaError
from sparkkafka.spark.decision_text import TaskReport, WriterNames
from sparkkafka.spark.exactly_once import TaskAttempt, abort_batch, commit_batch
from sparkkafka.spark.write.write_task import write_rows
from sparkkafka.testing.fake.cluster import FakeCluster

COLUMNS = InputColumns(value=0, topic=1)
PARTITIONS = 2
WAIT_S = 30.0


class Killed(BaseException):
    """kill -9: nothing of ours may catch it."""


class Process:
    """`at` counts requests from 1 (those called `only`, if that is given), `answered` False stops
    before it is sent, True before its response is read. What happens there: `then` "kill" or
    "pause"; None lets everything through."""

    def __init__(
        self,
        at: int = 0,
        *,
        answered: bool = False,
        then: str | None = None,
        only: str | None = None,
    ) -> None:
        self.at, self.answered, self.then, self.only = at, answered, then, only
        self.requests: list[str] = []
        self.dead = False
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def before(self, request: Any) -> None:
        self._check()
        if request.API_NAME == "ApiVersions":
            return  # of a new connection: nothing at the cluster depends on it
        self.requests.append(request.API_NAME)
        if self.only in (None, request.API_NAME) and self._count() == self.at and not self.answered:
            self._stop()

    def after(self) -> None:
        self._check()
        # "At least": several requests may be sent before the first response is read.
        if self.at and self._count() >= self.at and self.answered:
            self.answered = False
            self._stop()

    def _count(self) -> int:
        return len(self.requests) if self.only is None else self.requests.count(self.only)

    def _check(self) -> None:
        if self.dead:
            raise Killed

    def _stop(self) -> None:
        self.reached.set()
        if self.then == "kill":
            self.dead = True
            raise Killed
        if self.then == "pause":
            assert self.go_on.wait(WAIT_S), "nobody let it go on"
            self._check()  # it may have been killed meanwhile

    # --- running -----------------------------------------------------------------------------

    def start(self, work: Callable[[], Any]) -> None:
        def body() -> None:
            _here.process = self
            try:
                self.result = work()
            except BaseException as error:  # handed to whoever waits
                self.error = error
            finally:
                self.reached.set()

        self._thread = threading.Thread(target=body, daemon=True)
        self._thread.start()

    def wait(self) -> Any:
        """Its result. Raises what it raised."""
        assert self._thread is not None
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"hangs after {self.requests}"
        if self.error is not None:
            raise self.error
        return self.result

    def run(self, work: Callable[[], Any]) -> Any:
        self.start(work)
        return self.wait()


_here = threading.local()


@contextmanager
def watched_connections(monkeypatch: Any) -> Iterator[None]:
    """Requests of `Process` threads pass by their `before` and `after`."""
    send, receive = Connection.send, Connection.receive

    def counted_send(self: Connection, request: Any, *args: Any, **kwargs: Any) -> Any:
        process = getattr(_here, "process", None)
        if process is not None:
            process.before(request)
        return send(self, request, *args, **kwargs)

    def counted_receive(self: Connection, *args: Any, **kwargs: Any) -> Any:
        process = getattr(_here, "process", None)
        response = receive(self, *args, **kwargs)
        if process is not None:
            process.after()
        return response

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", counted_send)
        patch.setattr(Connection, "receive", counted_receive)
        yield


class Query:
    """A streaming query whose batch N holds the rows N * 100 … N * 100 + rows - 1."""

    numbers = itertools.count()

    def __init__(
        self, cluster: FakeCluster, *, tasks: int = 3, rows: int = 9, prefix: str | None = None
    ) -> None:
        self.cluster = cluster
        self.tasks, self.rows = tasks, rows
        self.id = str(uuid.uuid4())
        self.prefix = prefix
        number = next(self.numbers)
        self.topics = [f"out-{number}-a", f"out-{number}-b"]
        for topic in self.topics:
            cluster.create_topic(topic, PARTITIONS, replication_factor=2)
        self.options: WriteOptions = parse_write_options(
            {
                "kafka.bootstrap.servers": cluster.bootstrap_servers,
                "deliveryGuarantee": "exactly-once",
                "kafka.request.timeout.ms": "15000",
                "kafka.default.api.timeout.ms": "30000",
                "kafka.max.block.ms": "30000",
                "kafka.delivery.timeout.ms": "30000",
                "kafka.retry.backoff.ms": "2",
                "kafka.retry.backoff.max.ms": "20",
            }
        )
        self.done: list[int] = []

    # --- what Spark does ------------------------------------------------------------------------

    def new_run(self) -> WriterNames:
        return WriterNames.of_query(self.prefix, self.id, str(uuid.uuid4()))

    def rows_of(self, batch: int, task: int, plan: int) -> list[int]:
        """A plan that is made again may hand the same rows to other tasks."""
        every = range(batch * 100, batch * 100 + self.rows)
        return [row for row in every if (row + plan) % self.tasks == task]

    def place(self, run: WriterNames, batch: int, task: int, attempt: int = 0) -> TaskAttempt:
        return TaskAttempt(run, self.id, batch, task, attempt)

    def write_task(
        self, run: WriterNames, batch: int, task: int, *, attempt: int = 0, plan: int = 0
    ) -> TaskReport:
        rows = self.rows_of(batch, task, plan)
        # Two Arrow batches, so that a task can be stopped with a part of its rows sent.
        arrow = [self._arrow(rows[:1]), self._arrow(rows[1:])]
        task_attempt = self.place(run, batch, task, attempt)
        report = write_rows(iter(arrow), COLUMNS, self.options, task_attempt).report
        assert report is not None
        return report

    def _arrow(self, rows: list[int]) -> pa.RecordBatch:
        values = pa.array([str(row).encode() for row in rows], pa.binary())
        topics = pa.array([self.topics[row % 2] for row in rows], pa.string())
        return pa.record_batch([values, topics], names=["value", "topic"])

    def commit(self, batch: int, reports: list[TaskReport]) -> None:
        """Spark's WriteToDataSourceV2Exec: if commit fails, abort gets the same messages."""
        try:
            commit_batch(self.options, batch, reports)
        except KafkaError:
            with suppress(KafkaError):
                abort_batch(self.options, batch, reports)
            raise

    def run_batch(self, run: WriterNames, batch: int, *, plan: int = 0) -> None:
        """One micro-batch without incidents; Spark's commit log has it afterwards."""
        self.commit(batch, [self.write_task(run, batch, n, plan=plan) for n in range(self.tasks)])
        self.done.append(batch)

    def run_up_to(self, last: int, *, plan: int = 0) -> None:
        """A start of the query: everything that is not in the commit log, up to batch `last`."""
        run = self.new_run()
        for batch in range(len(self.done), last + 1):
            self.run_batch(run, batch, plan=plan)

    # --- what must hold -------------------------------------------------------------------------

    def visible(self) -> Counter[int]:
        return Counter(
            int(record.value)
            for topic in self.topics
            for record in self.cluster.read_committed(topic)
        )

    def assert_each_row_once(self, batches: int) -> None:
        expected = Counter(
            batch * 100 + row for batch in range(batches) for row in range(self.rows)
        )
        seen = self.visible()
        assert seen == expected, f"lost {expected - seen}, doubled or foreign {seen - expected}"

    def assert_nothing_open(self) -> None:
        prefix = WriterNames.of_query(self.prefix, self.id, "").prefix
        open_ids = [row.transactional_id for row in self.cluster.open_transactions()]
        assert [tid for tid in open_ids if tid.startswith(prefix)] == []
        for topic in self.topics:
            for number in range(PARTITIONS):
                log = self.cluster.log(topic, number)
                assert log.last_stable_offset == log.high_watermark
