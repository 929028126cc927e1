"""`resolve_offsets` and `commit`: each run of a batch job reads what is new since the last one."""

from __future__ import annotations

import base64
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import sparkkafka
from sparkkafka.errors import (
    BrokerError,
    DataLossError,
    ErrorCode,
    OptionError,
    UnknownTopicError,
)
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import ErrorResponse
from tests.client.support import commit_offsets, open_cluster, write
from tests.spark.read.test_bind_offsets import append
from tests.support.batches import build_batch
from tests.support.topics import delete_topic
from tests.support.waiting import wait_until

Rows = list[tuple[int, int]]


def options_of(cluster: Any, **more: str) -> dict[str, Any]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.group.id": "job",
        "kafka.retry.backoff.ms": "5",
        "subscribe": "t",
        "startingOffsets": "committed,earliest",
        **more,
    }


def rows_of(options: dict[str, Any]) -> Rows:
    """Partition and offset of each row that Spark would get with these options."""
    source = KafkaDataSource(options)
    reader = source.reader(source.schema())
    return [
        (row["partition"], row["offset"])
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def run(cluster: Any, before_commit: Callable[[], object] = lambda: None, **more: str) -> Rows:
    """One run of a job: read what is new, do something, commit."""
    new = sparkkafka.resolve_offsets(options_of(cluster, **more))
    rows = rows_of(new)
    before_commit()
    sparkkafka.commit(new)
    return rows


@pytest.fixture
def fake(fake_cluster: FakeCluster) -> FakeCluster:
    """The topic t with two partitions; the first one has three records."""
    fake_cluster.create_topic("t", partitions=2)
    write(fake_cluster, "t", 3)
    return fake_cluster


# --- what a run reads and commits -----------------------------------------------------------------


def test_each_run_reads_what_is_new(fake: FakeCluster) -> None:
    assert run(fake) == [(0, 0), (0, 1), (0, 2)]
    assert fake.committed("job") == {("t", 0): 3, ("t", 1): 0}
    assert run(fake) == []
    write(fake, "t", 4, partitions=2, per_send=2)
    assert run(fake) == [(0, 3), (0, 4), (1, 0), (1, 1)]
    assert fake.committed("job") == {("t", 0): 5, ("t", 1): 2}


def test_nothing_is_committed_that_was_not_read(fake: FakeCluster) -> None:
    """Records and partitions that are added after the offsets were resolved: before the read,
    between two reads, and before the commit."""
    new = sparkkafka.resolve_offsets(options_of(fake))
    write(fake, "t", 1)
    fake.add_partitions("t", 3)
    write(fake, "t", 3, partitions=3, per_send=1)
    first = rows_of(new)
    write(fake, "t", 3, partitions=3, per_send=1)
    assert rows_of(new) == first == [(0, 0), (0, 1), (0, 2)]
    sparkkafka.commit(new)
    assert fake.committed("job") == {("t", 0): 3, ("t", 1): 0}
    assert run(fake) == [(0, 3), (0, 4), (0, 5), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_what_is_resolved(fake: FakeCluster) -> None:
    given = options_of(fake, minPartitions="2") | {"STARTINGOFFSETS": "committed,earliest"}
    given.pop("startingOffsets")
    new = sparkkafka.resolve_offsets(given)
    topic_id = base64.urlsafe_b64encode(fake.state.topics["t"].topic_id.bytes).decode().strip("=")
    assert new == {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "job",
        "kafka.retry.backoff.ms": "5",
        "minPartitions": "2",
        "assign": '{"t": [0, 1]}',
        "startingOffsets": '{"t": {"0": 0, "1": 0}}',
        "endingOffsets": '{"t": {"0": 3, "1": 0}}',
        "topicIds": f'{{"t": "{topic_id}"}}',
    }
    sparkkafka.commit(new)
    nothing = sparkkafka.resolve_offsets(given)
    assert nothing["startingOffsets"] == nothing["endingOffsets"] == new["endingOffsets"]
    assert sparkkafka.resolve_offsets(new) == new  # what is resolved stays as it is


def test_a_topic_that_is_recreated_while_its_offsets_are_looked_up(fake: FakeCluster) -> None:
    """The committed offset is of the old topic, the end of the new one: it is read from its
    start."""
    assert len(run(fake)) == 3

    def recreate(_: object) -> ErrorResponse:
        fake.recreate_topic("t")
        write(fake, "t", 5)
        return ErrorResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    fake.fault(recreate, api="ListOffsets")
    assert run(fake, **{"fetchOffset.retryIntervalMs": "1"}) == [(0, offset) for offset in range(5)]
    assert fake.committed("job")["t", 0] == 5


@pytest.mark.parametrize("release", ["3.9", "4.4"])
def test_a_topic_that_is_recreated_during_the_job(fake_cluster_factory: Any, release: str) -> None:
    """Its records are not read as those of the old one, nor the old offsets committed to it."""
    fake = fake_cluster_factory(1, kafka_version=release)
    fake.create_topic("t")
    write(fake, "t", 3)
    new = sparkkafka.resolve_offsets(options_of(fake))
    fake.recreate_topic("t")
    write(fake, "t", 5)
    with pytest.raises(DataLossError, match="recreated"):
        rows_of(new)
    assert sparkkafka.resolve_offsets(new) == new
    with pytest.raises(UnknownTopicError, match=r"t-0 of group 'job'.* deleted and recreated"):
        sparkkafka.commit(new)
    assert fake.committed("job") == {}
    assert len(run(fake)) == 5


@pytest.mark.parametrize("text", ["[]", '{"t": "AAA"}', '{"t": 5}', '{"t": "%s"}' % ("B" * 22)])
def test_topic_ids_that_are_none(fake: FakeCluster, text: str) -> None:
    new = sparkkafka.resolve_offsets(options_of(fake)) | {"topicIds": text}
    with pytest.raises(OptionError, match="option topicIds: Expected"):
        sparkkafka.commit(new)


def test_other_bounds(fake: FakeCluster) -> None:
    append(fake, 1_800_000_000_000)  # the time of the three before is 1_700_000_000_000
    bounds = {"startingTimestamp": "1700000000000", "endingTimestamp": "1750000000000"}
    new = sparkkafka.resolve_offsets(
        options_of(fake, **bounds, startingOffsetsByTimestampStrategy="latest")
    )
    assert json.loads(new["startingOffsets"]) == {"t": {"0": 0, "1": 0}}
    assert json.loads(new["endingOffsets"]) == {"t": {"0": 3, "1": 0}}
    assert rows_of(new) == [(0, 0), (0, 1), (0, 2)]
    part = options_of(fake, startingOffsets='{"t":{"0":1}}', endingOffsets='{"t":{"0":-1}}')
    part["assign"] = '{"t":[0]}'
    del part["subscribe"]
    assert rows_of(sparkkafka.resolve_offsets(part)) == [(0, 1), (0, 2), (0, 3)]


def test_the_end_of_a_transaction_is_passed(fake: FakeCluster) -> None:
    """A marker is an offset without a record: committing max(offset) + 1 would leave a lag."""
    committed = {"kafka.isolation.level": "read_committed"}
    append(fake, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    assert run(fake, **committed) == [(0, 0), (0, 1), (0, 2)]
    assert fake.committed("job")["t", 0] == 3  # the transaction is open
    fake.append_marker("t", 0, 7, 0, commit=False)
    assert run(fake, **committed) == []
    assert fake.committed("job")["t", 0] == 5


def test_records_that_compaction_has_removed(fake: FakeCluster) -> None:
    """Those at the end of the log, whose offsets are passed."""
    times = {"base_timestamp": 0, "max_timestamp": 0}
    emptied = build_batch(b"", record_count=0, last_offset_delta=8, **times)
    fake.append("t", 1, emptied)
    assert run(fake) == [(0, 0), (0, 1), (0, 2)]
    assert fake.committed("job") == {("t", 0): 3, ("t", 1): 9}
    assert run(fake) == []


def test_a_killed_run_is_repeated(fake: FakeCluster) -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, json.dumps(options_of(fake))],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "[0, 1, 2]\n"  # its output is written
    finally:
        job.send_signal(signal.SIGKILL)
        job.communicate()
    assert fake.committed("job") == {}
    write(fake, "t", 1)
    assert run(fake) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert run(fake) == []


JOB = """
import json, sys, time
import sparkkafka
new = sparkkafka.resolve_offsets(json.loads(sys.argv[1]))
source = sparkkafka.KafkaDataSource(new)
reader = source.reader(source.schema())
tables = [table for partition in reader.partitions() for table in reader.read(partition)]
print([offset for table in tables for offset in table["offset"].to_pylist()], flush=True)
time.sleep(600)
sparkkafka.commit(new)
"""


# --- records that are gone ------------------------------------------------------------------------


def test_records_that_are_deleted_before_they_are_read(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    run(fake)
    write(fake, "t", 4)
    fake.advance_log_start("t", 0, 5)
    with pytest.raises(DataLossError, match=r"t-0: requested offsets \[3, 7\), available \[5, 7\)"):
        run(fake)
    assert fake.committed("job")["t", 0] == 3
    caplog.set_level(logging.WARNING)
    assert run(fake, failOnDataLoss="false") == [(0, 5), (0, 6)]
    assert "2 requested offsets in 1 partition do not exist and are skipped" in caplog.text
    assert run(fake) == []


def test_a_log_that_is_shorter_than_what_was_read(fake: FakeCluster) -> None:
    """An unclean leader election."""
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "job", {sparkkafka.client.TopicPartition("t", 0): 9})
    with pytest.raises(DataLossError, match=r"requested offsets from 9 on, available \[0, 3\)"):
        run(fake)
    assert run(fake, failOnDataLoss="false") == []
    assert fake.committed("job")["t", 0] == 3
    write(fake, "t", 1)
    assert run(fake) == [(0, 3)]


@pytest.mark.real
def test_a_topic_that_is_deleted_and_created_again(
    kafka_cluster: Any, new_topic: Callable[..., str]
) -> None:
    """Brokers delete the offsets of a deleted topic, so the new one is read from its first
    record."""
    topic = new_topic()
    job = {"subscribe": topic, "kafka.group.id": f"job-{topic}"}
    write(kafka_cluster, topic, 5)
    assert len(run(kafka_cluster, **job)) == 5
    with open_cluster(kafka_cluster) as cluster:
        delete_topic(cluster, topic)
    kafka_cluster.create_topic(topic, partitions=1)
    write(kafka_cluster, topic, 7)

    def new_start() -> Any:
        new = sparkkafka.resolve_offsets(options_of(kafka_cluster, **job))
        return json.loads(new["startingOffsets"])[topic]["0"] == 0

    wait_until(new_start, "the group's offsets are deleted")
    assert len(run(kafka_cluster, **job)) == 7


# --- errors ---------------------------------------------------------------------------------------


def test_a_group_that_is_named_apart(fake: FakeCluster) -> None:
    options = options_of(fake, startingOffsets="earliest")
    del options["kafka.group.id"]
    new = sparkkafka.resolve_offsets(options)
    sparkkafka.commit(new, "other")
    sparkkafka.commit({**new, "kafka.group.id": "job"}, group="another")
    assert fake.committed("other") == fake.committed("another") == {("t", 0): 3, ("t", 1): 0}
    assert fake.committed("job") == {}


def test_a_group_with_members(fake: FakeCluster) -> None:
    with pytest.raises(BrokerError, match=r"group 'job' for t-0, t-1.*only they may commit to it"):
        run(fake, lambda: fake.set_group_members("job"))
    assert fake.committed("job") == {}


def test_what_cannot_be_committed(fake: FakeCluster) -> None:
    new = sparkkafka.resolve_offsets(options_of(fake))
    for ending in (
        {"endingOffsets": "latest"},
        {"endingOffsets": '{"t": {"0": 3, "1": -1}}'},
        {"endingOffsets": '{"t": {}}'},
        {"endingTimestamp": "1700000000000"},
    ):
        with pytest.raises(OptionError, match=r"^commit needs endingOffsets with an offset for"):
            sparkkafka.commit({**new, **ending})
    with pytest.raises(OptionError, match=r"^commit needs endingOffsets"):
        sparkkafka.commit(options_of(fake))
    del new["kafka.group.id"]
    with pytest.raises(OptionError, match=r"set kafka\.group\.id"):
        sparkkafka.commit(new)
    assert fake.committed("job") == {}


@pytest.mark.parametrize("function", [sparkkafka.resolve_offsets, sparkkafka.commit])
def test_a_dataframe_does_not_say_what_it_has_read(function: Any) -> None:
    class DataFrame: ...

    with pytest.raises(OptionError, match=rf"^{function.__name__} takes the .*, not DataFrame: a"):
        function(DataFrame())


def test_a_group_without_an_offset_and_a_pattern_without_a_topic(fake: FakeCluster) -> None:
    with pytest.raises(OptionError, match="has no committed offset of t-0, t-1"):
        sparkkafka.resolve_offsets(options_of(fake, startingOffsets="committed"))
    pattern = options_of(fake, subscribePattern="^u")
    del pattern["subscribe"]
    with pytest.raises(OptionError, match=r"'\^u' matches no topic: there are no offsets to read"):
        sparkkafka.resolve_offsets(pattern)
