"""Decisions of an exactly-once query, and resets after which its sink would drop rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.checkpoints.against_kafka import decision_of
from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.checkpoints.reset import KEPT, plan_reset
from sparkkafka.client import Admin, OffsetAndMetadata, TopicPartition
from sparkkafka.errors import CheckpointError, DecodeError
from sparkkafka.spark.decision_text import Decision, TaskTransaction
from tests.checkpoints.checkpoint_files import QUERY, make_checkpoint, put

GROUP = f"sparkkafka-{QUERY}-decisions"


@pytest.fixture
def admin(fake_cluster: Any) -> Iterator[Admin]:
    fake_cluster.create_topic("t", partitions=1)
    with Admin({"bootstrap.servers": fake_cluster.bootstrap_servers}) as client:
        yield client


@pytest.fixture
def decide(admin: Admin) -> Callable[..., None]:
    """Commit a decision about a batch, as the sink does."""

    def store(batch_id: int, query_id: str = QUERY, group: str = GROUP) -> None:
        (text,) = Decision(
            query_id=query_id,
            run="0" * 12,
            batch_id=batch_id,
            number=batch_id,
            application="host",
            transactions=(TaskTransaction(0, 0, 5, 0), TaskTransaction(1, 0, 6, 0)),
        ).texts()
        place = {TopicPartition("t", 0): OffsetAndMetadata(batch_id, text)}
        admin.alter_consumer_group_offsets(group, place).all()

    return store


def verdict(folder: Path, admin: Admin, **more: Any) -> str:
    return decision_of(Checkpoint(folder), admin, **more).verdict


def test_each_verdict(tmp_path: Path, admin: Admin, decide: Callable[..., None]) -> None:
    finished = make_checkpoint(tmp_path / "a", {3: {0: 0}, 4: {0: 0}}, [3, 4])
    unfinished = make_checkpoint(tmp_path / "b", {3: {0: 0}, 4: {0: 0}}, [3])
    assert verdict(finished, admin) == "none"
    for batch, expected in (
        (3, ("done", "undecided")),
        (4, ("done", "decided")),
        (5, ("ahead",) * 2),
    ):
        decide(batch)
        assert (verdict(finished, admin), verdict(unfinished, admin)) == expected
    status = decision_of(Checkpoint(finished), admin)
    assert status.group == GROUP
    assert "2 transactions, by host" in status.text
    decide(1, query_id="another")
    assert verdict(finished, admin) == "other query"


def test_a_prefix(tmp_path: Path, admin: Admin, decide: Callable[..., None]) -> None:
    folder = make_checkpoint(tmp_path, {3: {0: 0}}, [3])
    decide(3, group="orders-decisions")
    assert (verdict(folder, admin), verdict(folder, admin, prefix="orders")) == ("none", "done")


def test_an_entry_that_is_no_decision(tmp_path: Path, admin: Admin) -> None:
    folder = make_checkpoint(tmp_path, {3: {0: 0}}, [3])
    place = {TopicPartition("t", 0): OffsetAndMetadata(1, "mine")}
    admin.alter_consumer_group_offsets(GROUP, place).all()
    with pytest.raises(DecodeError, match=GROUP):
        verdict(folder, admin)
    # A query that does not write to Kafka can still be reset.
    reset = plan_reset(Checkpoint(folder), KEPT, admin)
    assert any("is not known" in note for note in reset.notes)
    assert reset.obstacles == ()


def test_a_decided_batch_is_finished_by_its_query(
    tmp_path: Path, admin: Admin, decide: Callable[..., None]
) -> None:
    folder = make_checkpoint(tmp_path, {3: {0: 0}, 4: {0: 0}}, [3])
    decide(4)
    with pytest.raises(CheckpointError, match="In Kafka: batch 4 is decided"):
        plan_reset(Checkpoint(folder), KEPT, admin)
    for choice in ("done", "drop"):
        (obstacle,) = plan_reset(Checkpoint(folder), KEPT, admin, unfinished=choice).obstacles  # type: ignore[arg-type]
        assert "Start the query once" in obstacle


def test_an_undecided_batch_can_only_be_dropped(
    tmp_path: Path, admin: Admin, decide: Callable[..., None]
) -> None:
    folder = make_checkpoint(tmp_path, {3: {0: 0}, 4: {0: 0}}, [3])
    decide(3)
    assert plan_reset(Checkpoint(folder), KEPT, admin, unfinished="drop").obstacles == ()
    (obstacle,) = plan_reset(Checkpoint(folder), KEPT, admin, unfinished="done").obstacles
    assert "cannot count as done" in obstacle


def test_a_finished_batch_that_cannot_be_read_is_not_dropped(
    tmp_path: Path, admin: Admin, decide: Callable[..., None]
) -> None:
    """The next batch would get its number, and the sink would drop its rows."""
    folder = make_checkpoint(tmp_path, {3: {0: 0}, 4: {0: 0}}, [3, 4])
    put(folder / "commits" / "4", "v1\n{")
    decide(4)
    assert plan_reset(Checkpoint(folder), KEPT, admin, unfinished="done").obstacles == ()
    (obstacle,) = plan_reset(Checkpoint(folder), KEPT, admin, unfinished="drop").obstacles
    assert "batch 4 for one that is already written" in obstacle
    assert "--unfinished done" in obstacle


def test_an_older_copy_is_not_reset(
    tmp_path: Path, admin: Admin, decide: Callable[..., None]
) -> None:
    folder = make_checkpoint(tmp_path, {3: {0: 0}}, [3])
    decide(4)
    (obstacle,) = plan_reset(Checkpoint(folder), KEPT, admin).obstacles
    assert "Use the right checkpoint" in obstacle
