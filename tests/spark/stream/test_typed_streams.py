"""valueFormat in a stream, by the calls that Spark makes, and without Spark."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from sparkkafka.errors import BadRecordError, OptionError
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.read import typed_columns
from sparkkafka.spark.stream import reader as stream_reader
from tests.schemas.small_registry import (
    SmallRegistry,
    open_registry_clients,
)
from tests.spark.stream.stream_support import opened, plan, stop_readers  # noqa: F401
from tests.spark.stream.test_driver_read import take
from tests.spark.typed_support import ORDER_1, ORDER_2, Topics, framed


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "DRIVER_READ_MS", 30_000)


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    made = Topics(fake_cluster, registry)
    registry.add("t-value", json.dumps(ORDER_1))
    fake_cluster.create_topic("t", partitions=2)
    for partition in (0, 1):
        values = [framed(1, ORDER_1, {"id": n, "who": "a"}) for n in range(3)]
        made.put("t", values, partition=partition)
    return made


def stream(topics: Topics, **more: str) -> Any:
    options = topics.options("t", startingOffsets="earliest", **more)
    source = KafkaDataSource(options)
    opened.append(source.streamReader(KafkaDataSource(options).schema()))
    return opened[-1]


def ids(batches: Any) -> list[int | None]:
    return [row and row["id"] for batch in batches for row in batch["value"].to_pylist()]


def test_the_driver_reads_small_batches(topics: Topics) -> None:
    source = stream(topics)
    (task,) = plan(source)
    rows = take(source)
    assert rows is not None
    assert sorted(ids(rows)) == [0, 0, 1, 1, 2, 2]  # type: ignore[type-var]
    # What Spark compares them with has the pinned version.
    assert b"SPARK::metadata::json" in rows[0].schema.field("value").metadata
    assert sorted(ids(source.read(task))) == [0, 0, 1, 1, 2, 2]  # type: ignore[type-var]


@pytest.mark.parametrize("handling", ["fail", "deadLetter"])
def test_bad_records_are_left_to_a_task(topics: Topics, handling: str) -> None:
    topics.cluster.create_topic("dead")
    topics.put("t", [b"?"])
    more = {"deadLetter.topic": "dead"} if handling == "deadLetter" else {}
    source = stream(topics, onBadRecord=handling, **more)
    tasks = plan(source)
    assert take(source) is None
    if handling == "fail":
        with pytest.raises(BadRecordError):
            [list(source.read(task)) for task in tasks]
        return
    rows = [row for task in tasks for row in ids(source.read(task))]
    assert sorted(rows) == [0, 0, 1, 1, 2, 2]  # type: ignore[type-var]
    assert topics.cluster.log("dead", 0).end_offset == 1


def test_dead_letters_need_their_topic(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300)
    source = stream(topics, onBadRecord="deadLetter", **{"deadLetter.topic": "none"})
    with pytest.raises(OptionError, match=r"deadLetter\.topic=none does not exist"):
        source.initialOffset()


def test_a_newer_version_is_logged_once(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(typed_columns, "SUBJECT_CHECK_S", 0.0)
    source = stream(topics)
    source.initialOffset()
    newer = source._newer_schemas
    open_clients = open_registry_clients(monkeypatch)

    def logged_by_check() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.DEBUG, typed_columns.__name__):
            newer.check()
            newer._thread.join(20)
        return [record.getMessage() for record in caplog.records]

    assert logged_by_check() == []
    topics.registry.add("t-value", json.dumps(ORDER_2))
    (line,) = logged_by_check()
    assert line.startswith(
        "subject t-value has a newer version, 2 (schema id 2); this query continues"
    )
    assert logged_by_check() == []
    topics.registry.refuse = 500
    (line,) = logged_by_check()
    assert line.startswith("newer versions of schemas were not looked up")
    assert not open_clients
