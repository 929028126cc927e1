"""A task of a micro-batch that reads small ranges of several partitions, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CorruptRecordError, DataLossError
from sparkkafka.spark.read.input_partitions import SmallRanges
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import settings, write
from tests.spark.stream.stream_support import (  # noqa: F401
    fake,
    plan,
    reader,
    stop_readers,
)

PARTITIONS = 8


def planned(fake: FakeCluster, **options: str) -> tuple[Any, SmallRanges]:  # noqa: F811
    fake.create_topic("s", partitions=PARTITIONS)
    write(fake, "s", 400, partitions=PARTITIONS, per_send=10)
    source = reader(fake, subscribe="s", **options)
    (task,) = plan(source)
    assert isinstance(task, SmallRanges)
    return source, task


def rows_of(batches: list[pa.RecordBatch]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            found.setdefault(row["partition"], []).append(row["value"])
    return found


def all_rows() -> dict[int, list[bytes]]:
    turns = [[b"%d" % n for n in range(at, at + 10)] for at in range(0, 400, 10)]
    return {at: [value for turn in turns[at::PARTITIONS] for value in turn] for at in range(8)}


def test_one_task_has_all_rows_in_one_arrow_batch(fake: FakeCluster) -> None:  # noqa: F811
    source, task = planned(fake)
    task = pickle.loads(pickle.dumps(task))
    batches = list(source.read(task))
    assert len(batches) == 1
    assert rows_of(batches) == all_rows()


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_options_about_tasks_win(fake: FakeCluster, option: str) -> None:  # noqa: F811
    fake.create_topic("s", partitions=PARTITIONS)
    write(fake, "s", 400, partitions=PARTITIONS, per_send=10)
    source = reader(fake, subscribe="s", **{option: "8" if option == "minPartitions" else "50"})
    assert len(plan(source)) == PARTITIONS


def test_records_that_are_gone_by_then_fail_the_task(fake: FakeCluster) -> None:  # noqa: F811
    source, task = planned(fake)
    with Admin(settings(fake)) as admin:
        admin.delete_records({TopicPartition("s", 5): 30}).all()
    found = []
    with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*s-5.*0 to 29 are gone"):
        found += source.read(task)
    source = reader(fake, subscribe="s", failOnDataLoss="false")
    expected = all_rows()
    expected[5] = expected[5][30:]
    assert rows_of(list(source.read(task))) == expected


def test_damage_is_named_with_its_partition(fake: FakeCluster) -> None:  # noqa: F811
    source, task = planned(fake)
    raw = bytearray(fake.log("s", 0).raw())
    raw[-30] ^= 4
    fake.create_topic("bad", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        data = raw if partition == 3 else fake.log("s", 0).raw()
        fake.append("bad", partition, bytes(data), end_offset=50)
    source = reader(fake, subscribe="bad")
    (task,) = plan(source)
    with pytest.raises(CorruptRecordError, match="topic bad partition 3"):
        list(source.read(task))
