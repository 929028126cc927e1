"""OpenLineage events of jobs on topics, by the transport to a file."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkException

import sparkkafka
from sparkkafka.client import Producer
from sparkkafka.errors import OptionError
from sparkkafka.monitoring.lineage import Lineage
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.support.waiting import interrupt_main_thread

pytest.importorskip("openlineage.client")

pytestmark = pytest.mark.spark

PASSWORD = "a-password-of-the-job"
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]

Event = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        for topic in ("a", "b", "c"):
            cluster.create_topic(topic)
        with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            for topic in ("a", "b"):
                producer.send(topic, b"1").result()
        yield cluster


@pytest.fixture
def options(cluster: FakeCluster) -> dict[str, str]:
    secret = {"kafka.ssl.key.password": PASSWORD}
    return {"kafka.bootstrap.servers": f"PLAINTEXT://{cluster.bootstrap_servers}", **secret}


@pytest.fixture
def events(spark: Any, tmp_path: Path) -> Iterator[Callable[[], list[Event]]]:
    """`events()` stops the lineage of the session and returns what was emitted."""
    from openlineage.client import OpenLineageClient

    file = tmp_path / "events.json"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    client = OpenLineageClient(config={"transport": transport})
    lineage = sparkkafka.lineage(spark, client, namespace="ns", job="Orders job")

    def read() -> list[Event]:
        lineage.close()
        lines = file.read_text().splitlines() if file.exists() else []
        assert not any(PASSWORD in line for line in lines)
        return [json.loads(line) for line in lines]

    yield read
    lineage.close()


def names(event: Event, side: str) -> list[str]:
    return [f"{row['namespace']} {row['name']}" for row in event[side]]


def fields(event: Event, side: str) -> list[str]:
    return [field["name"] for field in event[side][0]["facets"]["schema"]["fields"]]


def test_a_job_from_topics_to_a_topic(
    spark: Any, cluster: FakeCluster, options: dict[str, str], events: Callable[[], list[Event]]
) -> None:
    rows = spark.read.format("pykafka").options(**options, subscribe="a, b").load()
    rows.write.format("pykafka").options(**options, topic="c").mode("append").save()
    start, end = events()
    namespace = f"kafka://{cluster.bootstrap_servers}"
    for event in (start, end):
        assert event["job"]["namespace"] == "ns"
        assert event["job"]["name"] == "orders_job.execute_save_into_data_source_command"
        assert event["job"]["facets"]["jobType"]["processingType"] == "BATCH"
        assert names(event, "inputs") == [f"{namespace} a", f"{namespace} b"]
        assert names(event, "outputs") == [f"{namespace} c"]
        assert fields(event, "inputs") == fields(event, "outputs") == COLUMNS
        assert event["run"]["facets"]["processing_engine"]["name"] == "spark"
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["eventTime"] < end["eventTime"]
    assert start["run"]["runId"] == end["run"]["runId"]


def test_reads_of_all_kinds_of_queries(
    spark: Any, options: dict[str, str], events: Callable[[], list[Event]], tmp_path: Path
) -> None:
    assign = json.dumps({"b": [0]})
    spark.read.format("pykafka").options(**options, assign=assign).load().createTempView("rows_b")
    rows = spark.read.format("pykafka").options(**options, subscribe="a").load()
    rows.createTempView("rows_a")
    spark.range(3).collect()  # no topic, no event
    rows.write.parquet(str(tmp_path / "rows"))
    spark.sql("SELECT value FROM rows_a WHERE value IN (SELECT value FROM rows_b)").collect()
    with pytest.raises(PySparkException):
        rows.selectExpr("raise_error(CAST(offset AS STRING))").collect()
    ends = [event for event in events() if event["eventType"] != "START"]
    assert [[row["name"] for row in event["inputs"]] for event in ends] == [
        ["a"],
        ["a", "b"],
        ["a"],
    ]
    assert [event["eventType"] for event in ends] == ["COMPLETE", "COMPLETE", "FAIL"]
    name = "orders_job.execute_insert_into_hadoop_fs_relation_command"
    assert ends[0]["job"]["name"] == name
    assert not any(event["outputs"] for event in ends)


def test_streams(
    spark: Any, options: dict[str, str], events: Callable[[], list[Event]], tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("pykafka")
        .options(**options, subscribePattern="(?=a|b)", startingOffsets="earliest")
        .load()
        .select("value")
    )

    def run(frame: Any, folder: str) -> None:
        writer = frame.writeStream.format("pykafka").options(**options, Topic="c")
        writer = writer.option("checkpointLocation", str(tmp_path / folder))
        query = writer.trigger(availableNow=True).start()
        with suppress(PySparkException):
            assert query.awaitTermination(120)

    run(stream, "good")
    run(stream.selectExpr("raise_error(CAST(value AS STRING)) AS value"), "bad")
    found = events()
    assert [event["eventType"] for event in found] == ["START", "COMPLETE", "START", "FAIL"]
    for event in found[:2]:
        assert event["job"]["name"] == "orders_job.write_to_data_source_v2"
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert [row["name"] for row in event["inputs"]] == ["a", "b"]
        assert [row["name"] for row in event["outputs"]] == ["c"]
        assert fields(event, "outputs") == ["value"]


def test_a_stream_into_foreach_batch(
    spark: Any, options: dict[str, str], events: Callable[[], list[Event]], tmp_path: Path
) -> None:
    stream = spark.readStream.format("pykafka").options(**options, subscribe="a")
    writer = stream.option("startingOffsets", "earliest").load().writeStream
    writer = writer.foreachBatch(lambda rows, _: rows.collect()).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    found = events()
    assert [event["eventType"] for event in found] == ["START", "COMPLETE"]
    assert [row["name"] for row in found[1]["inputs"]] == ["a"]
    assert found[1]["outputs"] == []


def test_a_transport_that_fails_is_logged_and_fails_no_job(
    spark: Any,
    cluster: FakeCluster,
    options: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def emit(self, event: object) -> None:
            raise OSError("the backend is down")

    caplog.set_level(logging.WARNING, "sparkkafka.monitoring.lineage")
    broken: Any = Broken()
    lineage = sparkkafka.lineage(spark, broken)
    spark.read.format("pykafka").options(**options, subscribe="a").load().collect()
    lineage.close()
    lineage.close()
    assert "failed to emit an OpenLineage event" in caplog.text


def test_close_after_ctrl_c_in_close_waits_again() -> None:
    gate = threading.Event()

    class Slow:
        def emit(self, event: object) -> None:
            interrupt_main_thread(lambda: not lineage._waiting.empty())
            gate.wait(10)

    spark: Any = MagicMock()
    slow: Any = Slow()
    lineage = Lineage(spark, slow, None, None)
    event: Any = "an event"
    lineage._put_waiting(event)
    with pytest.raises(KeyboardInterrupt):
        lineage.close()
    threading.Timer(0.1, gate.set).start()
    lineage.close()
    assert gate.is_set()


def test_the_parent_of_the_scheduler(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Any] = []

    class Client:
        def emit(self, event: object) -> None:
            emitted.append(event)

    client: Any = Client()
    lineage = Lineage(spark, client, None, None)
    run_id = "01a22160-e2b3-74ad-a744-70448c40812c"
    monkeypatch.setattr(lineage, "_parent", [run_id, "airflow", "dag.task"])
    topic = ("kafka://h:1", "t", {"fields": [{"name": "v", "type": "string"}]})
    lineage._put("x", "BATCH", [topic, topic], [], timedelta(0), failed=False)
    lineage.close()
    parent = emitted[0].run.facets["parent"]
    assert (parent.run.runId, parent.job.namespace, parent.job.name) == (
        *(run_id, "airflow"),
        "dag.task",
    )
    assert len(emitted[0].inputs) == 1


def test_a_session_of_spark_connect() -> None:
    session: Any = object()
    with pytest.raises(OptionError, match="call it in the program that starts the server"):
        sparkkafka.lineage(session)
