"""df.write with deliveryGuarantee=exactly-once on a real broker: all rows of a job, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.producer.transactions import Transaction, end_transactions
from sparkkafka.errors import DataLossError, TransactionError
from sparkkafka.spark.decision_text import TaskReport, WriterNames
from sparkkafka.spark.exactly_once import (
    abort_job,
    commit_job,
)
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.real.drivers import kill_family
from tests.real.exactly_once import (
    SCAN_S,
    job_names,
    options_of,
    run_task,
    start_script,
    visible,
    written,
)
from tests.real.faults import fails_in
from tests.real.streams import write_values
from tests.real.transactions import held_back, open_ids
from tests.support.options import parse_client_options
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

SCRIPT_S = 120.0


@pytest.fixture
def bootstrap(kafka_cluster: KafkaCluster) -> str:
    return kafka_cluster.bootstrap_servers


@pytest.fixture
def topic(kafka_cluster: KafkaCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.originalname.removeprefix("test_")
    kafka_cluster.create_topic(name, partitions=2)
    return name


@pytest.fixture
def save(bootstrap: str) -> Callable[..., None]:
    def save(frame: Any, **options: str) -> None:
        (
            frame.write.format("pykafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("deliveryGuarantee", "exactly-once")
            .options(**options)
            .mode("append")
            .save()
        )

    return save


def numbers(spark: SparkSession, count: int, tasks: int) -> Any:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) AS value")


def nothing_left(bootstrap: str, *topics: str) -> None:
    assert open_ids(bootstrap, "sparkkafka-") == []
    assert held_back(bootstrap, topics, 2) == {}


def test_a_job_is_visible_wholly_or_leaves_nothing(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    bootstrap: str,
    save: Callable[..., None],
    tmp_path: Path,
) -> None:
    """In several topics. Its last task fails when the others have written."""
    topics = ["several-0", "several-1", "several-2"]
    for name in topics:
        kafka_cluster.create_topic(name, partitions=2)
    frame = numbers(spark, 900, 3).selectExpr(
        "value", "concat('several-', cast(value as long) % 3) AS topic"
    )
    others_wrote = tmp_path / "others-wrote"

    def watch() -> None:
        wait_until(
            lambda: sum(written(bootstrap, name) for name in topics) >= 600, "the other tasks write"
        )
        others_wrote.touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(PySparkException, match="was chosen to fail"):
        save(frame.mapInArrow(fails_in(2, str(others_wrote)), frame.schema))
    watcher.join()
    assert others_wrote.exists(), "the other tasks have not written: nothing is tested"
    assert [visible(bootstrap, name) for name in topics] == [[], [], []]
    nothing_left(bootstrap, *topics)
    save(frame)
    for rest, name in enumerate(topics):
        assert visible(bootstrap, name) == list(range(rest, 900, 3))
    nothing_left(bootstrap, *topics)


def test_a_task_that_is_run_again_and_a_driver_that_is_killed_before_commit(
    kafka_cluster: KafkaCluster, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The rows of the task count once, and the killed driver leaves nothing. Both in one Spark of
    their own, which tries tasks four times."""
    killed = f"{topic}-killed"
    kafka_cluster.create_topic(killed, partitions=2)
    process = start_script(
        """
        def fail(batches):
            import os, signal, time
            from pyspark import TaskContext
            context = TaskContext.get()
            for batch in batches:
                yield batch
                if context.attemptNumber() == 0 and context.partitionId() == 1:
                    time.sleep(0.5)
                    raise RuntimeError("attempt 0 fails")
                if context.attemptNumber() == 0 and context.partitionId() == 2:
                    time.sleep(0.5)
                    os.kill(os.getpid(), signal.SIGKILL)
                Path(folder, f"attempt-{context.partitionId()}-{context.attemptNumber()}").touch()
        def stop(batches):
            import time
            from pyspark import TaskContext
            for batch in batches:
                yield batch
            time.sleep(1000 if TaskContext.get().partitionId() else 0)
        spark = session("local[2,4]")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
        frame = rows(spark, 1000, 4)
        write(frame.mapInArrow(fail, frame.schema))
        topic += "-killed"
        frame = rows(spark, 1000, 2)
        write(frame.mapInArrow(stop, frame.schema), timeout_ms="5000")
        """,
        bootstrap,
        topic,
        tmp_path,
    )
    try:
        wait_until(
            lambda: process.poll() is not None or written(bootstrap, killed) >= 500,
            "a task of the second write has written",
            SCRIPT_S,
        )
        assert process.poll() is None, (tmp_path / "script.log").read_text()[-3000:]
    finally:
        kill_family(process)
    names = {path.name for path in tmp_path.glob("attempt-*")}
    assert {"attempt-1-1", "attempt-2-1"} <= names
    assert visible(bootstrap, topic) == list(range(1000))
    assert visible(bootstrap, killed) == []
    # Readers wait for the broker, which takes back what is older than the 5 s of the script.
    write_values(bootstrap, killed, [7])
    wait_until(lambda: held_back(bootstrap, [killed], 2) == {}, "readers go on", SCAN_S)
    assert visible(bootstrap, killed) == [7]
    nothing_left(bootstrap, topic, killed)


# --- the driver's part without Spark -------------------------------------------------------------


def three_tasks(bootstrap: str, topic: str) -> tuple[Any, list[TaskReport]]:
    options, names = options_of(bootstrap, topic=topic), job_names()
    reports = [run_task(options, names, task, range(task * 10, task * 10 + 10)) for task in (0, 1)]
    return options, [*reports, run_task(options, names, 2, [])]


def end(bootstrap: str, names: WriterNames, report: TaskReport, *, commit: bool) -> None:
    assert report.transaction is not None
    key = names.transactional_id(report.task, report.attempt)
    row = Transaction(key, report.transaction.producer_id, report.transaction.producer_epoch)
    with Cluster(parse_client_options({"bootstrap.servers": bootstrap})) as cluster:
        outcome = end_transactions(cluster, [row], commit=commit, deadline=cluster.deadline())
    assert outcome == {key: None}


def test_an_abort_after_a_part_was_committed_says_so(bootstrap: str, topic: str) -> None:
    options, reports = three_tasks(bootstrap, topic)
    end(bootstrap, reports[0].names, reports[0], commit=True)
    text = abort_job(options, reports, reports[0].names).text
    assert "1 had been committed or ended before (tasks 0, 10 rows" in text
    assert visible(bootstrap, topic) == list(range(10))
    nothing_left(bootstrap, topic)


def test_a_transaction_that_is_gone_fails_the_job_before_anything_is_visible(
    bootstrap: str, topic: str
) -> None:
    options, reports = three_tasks(bootstrap, topic)
    end(bootstrap, reports[1].names, reports[1], commit=False)
    with pytest.raises(TransactionError, match="1 of 2 transactions are not open any more"):
        commit_job(options, reports)
    assert visible(bootstrap, topic) == []
    abort_job(options, reports, reports[0].names)
    nothing_left(bootstrap, topic)


def test_a_part_that_is_lost_while_it_is_committed_is_named(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, reports = three_tasks(bootstrap, topic)
    end(bootstrap, reports[1].names, reports[1], commit=False)
    # As if it ended between the look and the commit.
    monkeypatch.setattr("sparkkafka.spark.exactly_once.check_transactions_open", lambda *_: None)
    with pytest.raises(DataLossError, match="1 of 2 transactions of this job are committed") as e:
        commit_job(options, reports)
    assert "tasks 1 (10 rows) are not" in str(e.value)
    assert visible(bootstrap, topic) == list(range(10))
