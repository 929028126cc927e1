"""How a decision is written to brokers that keep less metadata than Kafka's do by default."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.producer.transactions import end_transactions, init_transactions
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import TransactionError
from sparkkafka.spark.decision_text import Decision, TaskTransaction, WriterNames
from sparkkafka.spark.exactly_once import _read_decision, _write_texts
from tests.client.support import open_cluster

LIMIT = 1_024  # Azure Event Hubs
NAMES = WriterNames.of_query(None, str(uuid.UUID(int=5)), str(uuid.UUID(int=6)))
PARTITIONS = [TopicPartition("t", number) for number in range(20)]


@pytest.fixture
def cluster(fake_cluster_factory: Any) -> Iterator[Cluster]:
    fake = fake_cluster_factory(1, max_offset_metadata_bytes=LIMIT)
    fake.create_topic("t", partitions=len(PARTITIONS))
    with open_cluster(fake) as cluster:
        yield cluster


def decision_of(tasks: int, number: int = 0) -> Decision:
    return Decision(
        query_id=str(uuid.UUID(int=5)),
        run=NAMES.run,
        batch_id=number,
        number=number,
        application="host",
        transactions=tuple(TaskTransaction(n, 0, 40_000 + n, 7) for n in range(tasks)),
    )


def write(cluster: Cluster, decision: Decision, partitions: list[TopicPartition]) -> None:
    tid = NAMES.decisions
    decider = init_transactions(cluster, [tid], 10_000, cluster.deadline())[tid]
    _write_texts(cluster, decider, decision, partitions)
    assert end_transactions(cluster, [decider], commit=True) == {tid: None}


@pytest.mark.parametrize("tasks", [0, 50, 90, 300, 500])
def test_what_is_cut_smaller_is_read_whole(cluster: Cluster, tasks: int) -> None:
    """The second of two long texts may be short enough, and is taken: it must not be read."""
    for number in range(2):
        decision = decision_of(tasks, number)
        write(cluster, decision, PARTITIONS)
        assert _read_decision(cluster, NAMES).decision == decision


def test_too_many_tasks_for_the_partitions_leave_the_last_decision(cluster: Cluster) -> None:
    write(cluster, decision_of(50), PARTITIONS[:2])
    message = "500 tasks are too many .* 2048 characters in each of 2 partitions: write with fewer"
    with pytest.raises(TransactionError, match=message):
        write(cluster, decision_of(500, 1), PARTITIONS[:2])
    tid = NAMES.decisions
    init_transactions(cluster, [tid], 10_000, cluster.deadline())  # as abort_batch does
    assert _read_decision(cluster, NAMES).decision == decision_of(50)
