"""Streams of topics with transactions and gaps: aborted, committed and open ones, compaction.

An offset is not a row here: markers and aborted records take offsets, compaction leaves gaps, and a
micro-batch may consist of nothing else. The query must pass them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from tests.real.peers import Record, Row, confluent_read, confluent_write, wait_for_markers
from tests.real.streams import Rows, ends, write_values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

NEVER_MS = 600_000
"""For a transaction that stays open as long as a test."""


class Transactions:
    """A transactional producer of one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"writer-of-{topic}",
                "transaction.timeout.ms": NEVER_MS,
                "linger.ms": 1,
            }
        )
        self._producer.init_transactions(30)

    def begin(self, values: Iterable[str]) -> None:
        """Written, and the transaction stays open."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value.encode(), partition=0)
        assert self._producer.flush(30) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(30)
        wait_for_markers(self._bootstrap)

    def abort(self) -> None:
        self._producer.abort_transaction(30)
        wait_for_markers(self._bootstrap)


def options(topic: str, cap: int | None, isolation: str = "read_committed") -> dict[str, str]:
    limit = {"maxOffsetsPerTrigger": str(cap)} if cap else {}
    return {"subscribe": topic, "kafka__isolation__level": isolation, **limit}


@contextmanager
def open_transaction(writer: Transactions, values: list[str]) -> Iterator[None]:
    """Open inside, committed at the end."""
    writer.begin(values)
    yield
    writer.commit()


def test_committed_aborted_and_open(
    spark: SparkSession, kafka_cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    bootstrap, topic, rows = kafka_cluster.bootstrap_servers, new_topic(), Rows(tmp_path)
    writer = Transactions(bootstrap, topic)
    writer.begin(["a0", "a1"])  # offsets 0 and 1, marker 2
    writer.commit()
    writer.begin(["no", "no"])  # 3 and 4, marker 5
    writer.abort()
    write_values(bootstrap, topic, ["b"])  # 6
    with open_transaction(writer, ["c0", "c1"]):  # 7 and 8
        write_values(bootstrap, topic, ["d"])  # 9, behind what is open
        assert ends(kafka_cluster, topic, 1) == {0: 10}
        rows.run_to_end(spark, bootstrap, **options(topic, 2))
        assert rows.values == ["a0", "a1", "b"]
        assert rows.offsets() == {topic: {"0": 7}}  # the last stable offset
        rows.run_to_end(spark, bootstrap, **options(topic, 2))
        assert len(rows.by_batch) == 4  # there is nothing new for it

        all_rows = Rows(tmp_path / "all")
        all_rows.run_to_end(spark, bootstrap, **options(topic, None, "read_uncommitted"))
        assert all_rows.values == ["a0", "a1", "no", "no", "b", "c0", "c1", "d"]
        assert all_rows.offsets() == {topic: {"0": 10}}
    rows.run_to_end(spark, bootstrap, **options(topic, 2))
    assert rows.values == ["a0", "a1", "b", "c0", "c1", "d"]
    assert rows.offsets() == {topic: {"0": 11}}
    assert len(rows.by_batch) == 4 + 2


def test_nothing_but_aborted_records(
    spark, kafka_cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """There is a batch for each record and for each marker."""
    bootstrap, topic, rows = kafka_cluster.bootstrap_servers, new_topic(), Rows(tmp_path)
    writer = Transactions(bootstrap, topic)
    for _ in range(2):
        writer.begin(["no", "no"])
        writer.abort()
    rows.run_to_end(spark, bootstrap, **options(topic, 1))
    assert rows.values == []
    assert rows.offsets() == {topic: {"0": 6}}
    assert len(rows.by_batch) == 6
    writer.begin(["yes"])
    writer.commit()
    rows.run_to_end(spark, bootstrap, **options(topic, None))
    assert rows.values == ["yes"]


def test_a_running_query_goes_on_when_the_transaction_ends(
    spark, kafka_cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    bootstrap, topic, rows = kafka_cluster.bootstrap_servers, new_topic(), Rows(tmp_path)
    writer = Transactions(bootstrap, topic)
    write_values(bootstrap, topic, ["before"])
    with rows.running(spark, bootstrap, **options(topic, 2)) as query:
        rows.wait_for(1, query)
        for number in range(3):
            with open_transaction(writer, [f"{number}-a", f"{number}-b"]):
                time.sleep(0.5)  # a few looks at the end of the log
                assert len(rows.values) == 1 + 2 * number
            rows.wait_for(3 + 2 * number, query)
            writer.begin(["no"])
            writer.abort()
        wait_until(lambda: rows.offsets() == {topic: {"0": 16}}, "the last marker is read")
    assert rows.values == ["before", "0-a", "0-b", "1-a", "1-b", "2-a", "2-b"]


def test_gaps_of_compaction(
    spark: SparkSession, kafka_cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """At the begin of batches, in their middle, and batches of which nothing is left."""
    bootstrap = kafka_cluster.bootstrap_servers
    topic = new_topic(
        configs={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0001",
            "segment.ms": "100",
        }
    )
    # Segments end by the time of records. The last segment is not compacted.
    for number in range(5):
        again = [Record(b"again-%d" % (i % 3), b"a%d" % i) for i in range(4)]
        kept = [Record(b"kept-%d" % number, b"k"), Record(b"x", b"x")]
        at_ms = 1_700_000_000_000 + number * 1_000
        for records in (again, kept):
            stamped = [record._replace(timestamp_ms=at_ms) for record in records]
            confluent_write(bootstrap, topic, stamped)
    left: list[Row] = []

    def done() -> bool:
        left[:] = confluent_read(bootstrap, topic)
        return len(left) == 6 + 4 + 4  # last segment, kept ones, and the last of other keys

    wait_until(done, "compaction", poll_s=0.5)
    rows = Rows(tmp_path)
    rows.run_to_end(spark, bootstrap, **options(topic, 2, "read_uncommitted"))
    found = [(row.offset, row.value.encode()) for row in rows.all]
    assert found == [(row.offset, row.value) for row in left]
    assert rows.offsets() == {topic: {"0": 30}}
