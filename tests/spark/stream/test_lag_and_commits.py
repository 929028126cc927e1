"""Lag and committed offsets from reports of progress. No Spark session."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import sparkkafka
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import parse_group_options
from sparkkafka.errors import OptionError
from sparkkafka.spark.stream import progress as progress_module
from sparkkafka.spark.stream.group_committer import GroupCommitter, commit_to_group
from sparkkafka.spark.stream.progress import end_offsets
from sparkkafka.testing.fake.cluster import FakeCluster

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RATE = {"description": "RateStreamV2[]", "endOffset": 5, "latestOffset": 7}


def source(end: Any, latest: Any = None) -> dict[str, Any]:
    return {"description": "PythonMicroBatchStream@1", "endOffset": end, "latestOffset": latest}


def report(
    *sources: dict[str, Any],
    run: str = "r",
    name: str | None = None,
    timestamp: str = "2026-11-28T18:00:00.000Z",
) -> Any:
    shown = [SimpleNamespace(**row) for row in sources]
    about = {"runId": run, "id": "id-of-it", "name": name, "timestamp": timestamp}
    return SimpleNamespace(sources=shown, batchId=3, **about)


BEHIND = report(source('{"t": {"0": 5, "1": 7}}', '{"t": {"0": 9, "1": 7}}'), RATE)


@pytest.mark.parametrize(
    "given",
    [
        BEHIND,
        SimpleNamespace(lastProgress=BEHIND),
        {"sources": [RATE, source({"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 7}})]},
        json.dumps({"sources": [source({"t": {"0": 5, "1": 7}}, {"t": {"0": 9, "1": 7}})]}),
    ],
)
def test_lag_of_all_forms_of_a_report(given: Any) -> None:
    assert sparkkafka.lag(given) == {T0: 4, T1: 0}


def test_lag_before_the_first_batch_and_of_other_sources() -> None:
    assert sparkkafka.lag(SimpleNamespace(lastProgress=None)) == {}
    assert sparkkafka.lag(report(RATE)) == {}


def test_lag_of_two_sources_counts_a_partition_once() -> None:
    two = report(
        source({"t": {"0": 5}}, {"t": {"0": 9}}),
        source({"t": {"0": 2}, "u": {"0": 1}}, {"t": {"0": 8}, "u": {"0": 4}}),
    )
    assert sparkkafka.lag(two) == {T0: 6, U0: 3}
    assert end_offsets(two) == {T0: 2, U0: 1}


@pytest.mark.parametrize("given", ["", "no JSON", "7", "{}", {}, object()])
def test_lag_of_something_else(given: Any) -> None:
    with pytest.raises(OptionError, match="takes a query, a report"):
        sparkkafka.lag(given)


@pytest.mark.parametrize("latest", [None, "null"])
def test_lag_without_the_end_of_the_log(latest: Any) -> None:
    with pytest.raises(OptionError, match=r"repeated after a restart.*lag\(query, options\)"):
        sparkkafka.lag(report(source({"t": {"0": 5}}, latest)))


def test_lag_on_older_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LATEST_IS_REPORTED", False)
    with pytest.raises(OptionError, match=r"Spark 4\.2 and later does"):
        sparkkafka.lag(BEHIND)


# What `lastProgress` of a classic session and its `json` gave when a query over two topics and
# Spark's rate-micro-batch source was read from a real broker (4.3.1), maxOffsetsPerTrigger=13.
# PySpark 4.0.5 and 4.1.4 gave the same, but for the numbers behind "@"; 4.3.0 gives JSON.
PYTHON_STREAM = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@"
RATE_STREAM = (
    "RatePerMicroBatchStream[rowsPerBatch=1, numPartitions=2, startTimestamp=0, "
    "advanceMsPerBatch=1000]"
)
KAFKA_OFFSETS = {"t-1": {"0": 10, "1": 10}, "u": {"0": 6}}
RATE_OFFSETS = {"offset": 2, "timestamp": 2000}
OBJECTS = {
    version: report(
        {
            "description": PYTHON_STREAM + number,
            "startOffset": "{'t-1': {'0': 5, '1': 5}, 'u': {'0': 3}}",
            "endOffset": "{'t-1': {'0': 10, '1': 10}, 'u': {'0': 6}}",
            "latestOffset": "{'t-1': {'0': 10, '1': 10}, 'u': {'0': 6}}",
        },
        {
            "description": RATE_STREAM,
            "startOffset": "{'offset': 1, 'timestamp': 1000}",
            "endOffset": "{'offset': 2, 'timestamp': 2000}",
            "latestOffset": "None",
        },
    )
    for version, number in (("4.0.5", "2613fb65"), ("4.1.4", "5f28cf8d"))
}
JSON_TEXT = json.dumps(
    {
        "batchId": 1,
        "sources": [
            {
                "description": PYTHON_STREAM + "2613fb65",
                "startOffset": {"t-1": {"0": 5, "1": 5}, "u": {"0": 3}},
                "endOffset": KAFKA_OFFSETS,
                "latestOffset": KAFKA_OFFSETS,
            },
            {
                "description": RATE_STREAM,
                "startOffset": {"offset": 1, "timestamp": 1000},
                "endOffset": RATE_OFFSETS,
                "latestOffset": None,
            },
        ],
    }
)
READ = {TopicPartition("t-1", 0): 10, TopicPartition("t-1", 1): 10, TopicPartition("u", 0): 6}


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LATEST_IS_REPORTED", False)


@pytest.mark.parametrize("given", [*OBJECTS.values(), JSON_TEXT], ids=[*OBJECTS, "json"])
def test_reports_of_older_sparks(given: Any, old_spark: None) -> None:
    assert end_offsets(given) == READ
    with pytest.raises(OptionError, match=r"Spark 4\.2 and later does.*lag\(query, options\)"):
        sparkkafka.lag(given)
    with FakeCluster() as cluster:
        cluster.create_topic("t-1", partitions=2)
        cluster.create_topic("u")
        cluster.append("u", 0, b"?", end_offset=9)
        cluster.append("t-1", 1, b"?", end_offset=2010)
        cluster.append("t-1", 0, b"?", end_offset=10)
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        assert sparkkafka.lag(given, options) == {
            TopicPartition("t-1", 0): 0,
            TopicPartition("t-1", 1): 2000,
            TopicPartition("u", 0): 3,
        }


CANNOT_BE_READ = ("{'t': {'0': 5", '{"t": ', "Offset(5)", "{'t': " * 2000, "{" * 100_000, "")


@pytest.mark.parametrize("text", CANNOT_BE_READ, ids=lambda text: text[:10])
def test_offsets_that_cannot_be_read(text: str) -> None:
    """Those of a source that may be Kafka's are an error; which other ones have is not asked."""
    for description in (PYTHON_STREAM + "1", "KafkaV2[Subscribe[t]]"):
        unread = report({"description": description, "endOffset": text, "latestOffset": text})
        for question in (sparkkafka.lag, end_offsets):
            with pytest.raises(OptionError, match=r"offsets of the source .* cannot be read"):
                question(unread)
    other = {"description": "MyStream[]", "endOffset": text, "latestOffset": text}
    assert end_offsets(report(other, source({"t": {"0": 5}}))) == {T0: 5}


@pytest.mark.parametrize("text", ["None", "null", "7", "{'a': 1}", '{"t": {"0": -1}}', "'t'"])
def test_offsets_of_other_python_sources(text: str) -> None:
    assert end_offsets(report(source(text), source({"t": {"0": 5}}))) == {T0: 5}


# --- the committer ---------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.create_topic("u")
        yield cluster


def committer(fake: FakeCluster, query: str | None = None, **options: str) -> GroupCommitter:
    given = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "kafka.retry.backoff.ms": "5",
        "kafka.default.api.timeout.ms": "500",
        **options,
    }
    return GroupCommitter(parse_group_options(given), query)


def finished(listener: GroupCommitter, tree: Any, **about: Any) -> None:
    listener.onQueryProgress(SimpleNamespace(progress=report(source(tree), **about)))


def test_offsets_of_each_batch_are_committed_and_only_what_changed(fake: FakeCluster) -> None:
    listener = committer(fake)
    finished(listener, {"t": {"0": 5, "1": 7}})
    assert fake.committed("g") == {("t", 0): 5, ("t", 1): 7} == listener.committed
    fake.clear_requests()
    finished(listener, {"t": {"0": 5, "1": 7}})
    assert fake.requests_of("OffsetCommit") == []
    finished(listener, {"t": {"0": 5, "1": 9}})
    (request,) = fake.requests_of("OffsetCommit")
    assert [row.partition_index for row in request.message.topics[0].partitions] == [1]
    assert fake.committed("g") == {("t", 0): 5, ("t", 1): 9}


def test_queries_and_topics_that_are_meant(fake: FakeCluster) -> None:
    listener = committer(fake, "mine")
    finished(listener, {"t": {"0": 5}}, name="other")
    assert fake.committed("g") == {}
    finished(listener, {"t": {"0": 5}}, name="mine")
    assert fake.committed("g") == {("t", 0): 5}
    finished(committer(fake, "id-of-it"), {"t": {"0": 6}})
    assert fake.committed("g") == {("t", 0): 6}
    for what in ({"subscribe": "u"}, {"subscribePattern": "^u"}, {"assign": '{"u":[0],"t":[1]}'}):
        finished(committer(fake, **what), {"t": {"0": 9}, "u": {"0": 2}})
        assert fake.committed("g") == {("t", 0): 6, ("u", 0): 2}


def test_two_queries_of_a_partition_commit_what_both_have_read(fake: FakeCluster) -> None:
    listener = committer(fake)
    finished(listener, {"t": {"0": 9}}, run="fast")
    finished(listener, {"t": {"0": 1}}, run="slow")
    assert fake.committed("g") == {("t", 0): 1}
    listener.onQueryIdle(SimpleNamespace(runId="fast"))
    finished(listener, {"t": {"0": 10}}, run="fast")
    assert fake.committed("g") == {("t", 0): 1}
    finished(listener, {"t": {"0": 10}}, run="slow")
    assert fake.committed("g") == {("t", 0): 10}


def test_a_failed_commit_is_made_good(fake: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    listener = committer(fake)
    caplog.set_level(logging.WARNING)
    for at, again in enumerate(("onQueryIdle", "onQueryTerminated")):
        fake.set_group_members("g")
        finished(listener, {"t": {"0": 5 + at}})
        assert "were not committed to group g" in caplog.text
        assert fake.committed("g").get(("t", 0)) != 5 + at
        fake.set_group_members("g", present=False)
        getattr(listener, again)(SimpleNamespace(runId="r"))
        assert fake.committed("g")[("t", 0)] == 5 + at


def test_offsets_of_a_recreated_topic_are_not_committed_to_the_new_one(fake: FakeCluster) -> None:
    """Those of batches that began before it was noticed, although a commit in between failed."""
    listener = committer(fake)
    finished(listener, {"t": {"0": 5}, "u": {"0": 1}})
    fake.recreate_topic("t")
    finished(listener, {"t": {"0": 6}, "u": {"0": 2}})
    finished(listener, {"t": {"0": 7}, "u": {"0": 3}}, run="other")
    assert fake.committed("g") == {("u", 0): 2} == listener.committed
    listener.onQueryIdle(SimpleNamespace(runId="r"))
    finished(listener, {"t": {"0": 4}, "u": {"0": 3}}, timestamp="2126-11-28T18:00:00.000Z")
    assert fake.committed("g") == {("t", 0): 4, ("u", 0): 3}


@pytest.mark.parametrize("version", list(OBJECTS))
def test_flush_of_a_query_of_older_sparks(fake: FakeCluster, version: str) -> None:
    fake.create_topic("t-1", partitions=2)
    listener = committer(fake)
    listener.flush(SimpleNamespace(lastProgress=OBJECTS[version]))  # type: ignore[arg-type]
    assert listener.committed == READ == fake.committed("g")


def test_a_report_that_cannot_be_read_is_not_passed_over(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    listener = committer(fake)
    caplog.set_level(logging.WARNING)
    finished(listener, "Offset(5)", name="mine")
    assert "of query mine were not committed to group g" in caplog.text
    assert "'Offset(5)' is neither JSON nor" in caplog.text
    query: Any = SimpleNamespace(lastProgress=report(source("Offset(5)")))
    with pytest.raises(OptionError, match="cannot be read"):
        listener.flush(query)
    assert fake.committed("g") == {}


def test_a_committer_needs_a_group(fake: FakeCluster) -> None:
    options = {"kafka.bootstrap.servers": fake.bootstrap_servers}
    with pytest.raises(OptionError, match=r"set kafka\.group\.id"):
        commit_to_group(SimpleNamespace(), options)
    swapped: Any = (options, SimpleNamespace())
    with pytest.raises(OptionError, match=r"SimpleNamespace\. Call commit_to_group\(spark, "):
        commit_to_group(*swapped)
    with pytest.raises(OptionError, match="unknown option 'topics'"):
        commit_to_group(SimpleNamespace(), {**options, "topics": "t"})
    with pytest.raises(OptionError, match="not a regular expression"):
        committer(fake, subscribePattern="(")
