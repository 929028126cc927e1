"""Counts of plans, reads, writes and commits, on fake brokers with injected faults. No Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparkkafka.config.kinds import MetricsAddress
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import ErrorCode, KafkaError
from sparkkafka.spark.decision_text import CommitOutcome
from sparkkafka.spark.exactly_once import abort_batch, commit_batch
from sparkkafka.spark.metric_reports import Report, ends_key
from sparkkafka.spark.read.input_partitions import KafkaInputPartition, SmallRanges
from sparkkafka.spark.read.read_task import read_partition
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.write.commit_message import KafkaCommitMessage, report_write
from sparkkafka.spark.write.write_task import write_rows
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import write
from tests.spark.exactly_once.exactly_once_model import COLUMNS, Query
from tests.spark.stream.stream_support import fake, reader, short_grace, stop_readers

__all__ = ["fake", "short_grace", "stop_readers"]  # fixtures

ADDRESS = MetricsAddress("127.0.0.1", 1, bytes(16))
Sent = list[Report]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The reports that would be sent."""
    found: Sent = []

    def keep(self: Report, address: MetricsAddress | None) -> None:
        if address == ADDRESS and self:
            found.append(dataclasses.replace(self))

    monkeypatch.setattr(Report, "send", keep)
    return found


def filled(fake: FakeCluster, count: int = 100) -> int:
    """Write numbers to two partitions; return the bytes of their values."""
    fake.create_topic("t", partitions=2)
    write(fake, "t", count, partitions=2)
    return sum(len(b"%d" % number) for number in range(count))


def test_a_small_batch_is_counted_by_the_process_that_plans(fake: FakeCluster, sent: Sent) -> None:
    size_bytes = filled(fake)
    source = reader(fake, metricsAddress=ADDRESS.text, maxRecordsReadByDriver="1000")
    start = source.initialOffset()
    fake.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="ListOffsets")
    end = source.latestOffset(start, source.getDefaultReadLimit())
    source.partitions(start, end)
    assert source.getCache(start, end) is not None
    (report,) = sent
    counts = [report.counts["t", partition] for partition in (0, 1)]
    assert sum(row["records"] for row in counts) == 100
    assert sum(row["bytes"] for row in counts) == size_bytes
    assert report.totals == {"retries": 1}
    assert report.query == ""
    assert report.ends == ends_key([("t", 0, 50), ("t", 1, 50)], is_first=True)
    sent.clear()
    source.partitions(end, end)
    assert sent == []  # nothing to report


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_plan_reports_offsets_without_a_start_in_progress(
    fake: FakeCluster, sent: Sent, starting: str
) -> None:
    """These are a query's first batch, and partitions that are new to it."""
    filled(fake)
    source = reader(fake, metricsAddress=ADDRESS.text, startingOffsets=starting)
    start = source.initialOffset()
    limit = source.getDefaultReadLimit()
    end = source.latestOffset(start, limit)
    source.partitions(start, end)
    first = {("t", 0): {"offsets": 50}, ("t", 1): {"offsets": 50}}
    assert [report.counts for report in sent] == ([first] if starting == "earliest" else [])
    sent.clear()
    fake.add_partitions("t", 3)
    for partition in (0, 2):
        fake.append("t", partition, b"?", end_offset=fake.log("t", partition).end_offset + 5)
    start, end = end, source.latestOffset(end, limit)
    source.partitions(start, end)
    assert [report.counts for report in sent] == [{("t", 2): {"offsets": 5}}]
    assert sent[0].ends == ends_key([("t", 0, 55), ("t", 1, 50), ("t", 2, 5)])
    # After a restart the checkpoint has the start, and Spark reports it.
    sent.clear()
    again = reader(fake, metricsAddress=ADDRESS.text, startingOffsets=starting)
    again.partitions({"t": {"0": 50, "1": 50, "2": 0}}, end)
    assert sent == []


def test_lost_offsets_of_plans_and_tasks(
    fake: FakeCluster, sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    filled(fake)
    given = {"metricsAddress": ADDRESS.text, "failOnDataLoss": "false"}
    source = reader(fake, **given)
    start = source.initialOffset()
    fake.advance_log_start("t", 1, 4)
    end = source.latestOffset(start, source.getDefaultReadLimit())
    tasks = source.partitions(start, end)
    assert [report.counts["t", 1] for report in sent] == [{"lost": 4, "offsets": 46}]
    fake.advance_log_start("t", 1, 10)  # after the plan
    rows = sum(batch.num_rows for task in tasks for batch in source.read(task))
    assert rows == 90
    lost = sum(row.get("lost", 0) for report in sent for row in report.counts.values())
    records = sum(row.get("records", 0) for report in sent for row in report.counts.values())
    assert (lost, records) == (10, 90)
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": fake.bootstrap_servers,
            "subscribe": "t",
            "startingOffsets": '{"t":{"0":0,"1":0}}',
            **given,
        }
    )
    sent.clear()
    KafkaBatchReader(options).partitions()
    assert [report.counts for report in sent] == [{("t", 1): {"lost": 10}}]


@pytest.mark.parametrize("together", [False, True])
def test_a_task_counts_records_and_retries(
    fake: FakeCluster, sent: Sent, together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    size_bytes = filled(fake)
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": fake.bootstrap_servers,
            "subscribe": "t",
            "metricsAddress": ADDRESS.text,
            "kafka.retry.backoff.ms": "5",
        }
    )
    ranges = tuple(KafkaInputPartition("t", partition, 0, 50) for partition in (0, 1))
    fake.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Fetch", times=2)
    columns = default_columns(include_headers=False)
    tasks = [SmallRanges(ranges)] if together else list(ranges)
    for task in tasks:
        list(read_partition(options, columns, task))
    rows = [row for report in sent for row in report.counts.values()]
    assert sum(row["records"] for row in rows) == 100
    assert sum(row["bytes"] for row in rows) == size_bytes
    assert sum(row.get("retries", 0) for row in rows) == 2
    sent.clear()
    begun = read_partition(options, columns, ranges[0])
    next(begun)
    begun.close()  # LIMIT
    assert [report.counts["t", 0]["records"] for report in sent] == [50]
    sent.clear()
    gone = KafkaInputPartition("t", 0, 20, 90)
    fake.advance_log_start("t", 0, 50)
    with pytest.raises(KafkaError):
        list(read_partition(options, columns, gone))
    assert not any("records" in row for report in sent for row in report.counts.values())


def test_transactions_of_a_stream(fake: FakeCluster, sent: Sent) -> None:
    query = Query(fake)
    at_once = dataclasses.replace(query.options.producer, linger_ms=0)
    query.options = dataclasses.replace(query.options, metrics_address=ADDRESS, producer=at_once)
    run = query.new_run()
    reports = [query.write_task(run, 0, task) for task in range(query.tasks)]
    assert sent == []  # a task's writes are in its commit message
    done = commit_batch(query.options, 0, reports)
    assert done == CommitOutcome(done.text, committed=query.tasks, visible=True)
    # The driver died after that; another start of the query writes the batch again.
    again = [query.write_task(query.new_run(), 0, task) for task in range(query.tasks)]
    left_out = commit_batch(query.options, 0, again)
    assert (left_out.committed, left_out.aborted, left_out.visible) == (3, 3, False)
    some = [query.write_task(run, 1, task) for task in range(2)]
    assert abort_batch(query.options, 1, some) == CommitOutcome(
        "batch 1 failed, or the query was stopped: 2 transactions aborted", aborted=2
    )

    def rows() -> Iterator[pa.RecordBatch]:
        yield from [query._arrow([1, 2])] * 3
        raise ValueError("the query's own")

    with pytest.raises(ValueError, match="own"):
        write_rows(rows(), COLUMNS, query.options, query.place(run, 2, 0))
    (report,) = sent
    assert (report.query, report.totals) == (query.id, {"aborted": 1})
    assert report.prefix == f"sparkkafka-{query.id}"


def test_the_end_of_a_write(sent: Sent) -> None:
    messages = [
        KafkaCommitMessage(
            3, 30, 1, 99, 2, {("t", 0): (1, 5, 5), ("u", 1): (2, 0, 1)}, query_id="q"
        ),
        KafkaCommitMessage(4, 40, 1, 99, 0, {("t", 0): (4, 6, 9)}, query_id="q"),
    ]
    report_write(ADDRESS, messages, CommitOutcome("", committed=2, visible=True))
    report_write(ADDRESS, messages, CommitOutcome("", aborted=2))
    report_write(ADDRESS, [])
    report_write(None, messages)
    committed, aborted = sent
    assert committed.query == "q"
    assert committed.counts == {("t", 0): {"rows": 5}, ("u", 1): {"rows": 2}}
    assert committed.totals == {"write_retries": 2, "written_bytes": 70, "committed": 2}
    assert (aborted.counts, aborted.totals) == ({}, {"write_retries": 2, "aborted": 2})
