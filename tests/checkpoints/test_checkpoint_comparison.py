"""Differences of two batches, and damage in a checkpoint."""

from __future__ import annotations

from pathlib import Path

from sparkkafka.checkpoints.comparison import diff, verify
from sparkkafka.checkpoints.logs import Checkpoint
from tests.checkpoints.checkpoint_files import (
    COMMIT,
    kafka_line,
    make_checkpoint,
    plan_text,
    put,
)


def said(folder: Path, level: str) -> str:
    """Return the findings of a level as lines."""
    found = verify(Checkpoint(folder))
    return "\n".join(f"{row.where}: {row.text}" for row in found if row.level == level)


def test_what_a_batch_reads(tmp_path: Path) -> None:
    make_checkpoint(
        tmp_path,
        {
            0: plan_text(kafka_line({"t": {0: 5, 1: 2}}), "7"),
            1: plan_text(kafka_line({"t": {0: 9, 2: 4}}), "9"),
        },
        [0, 1],
    )
    checkpoint = Checkpoint(tmp_path)
    kafka, other = diff(checkpoint.plan(0), checkpoint.plan(1))
    assert [(row.partition.partition, row.before, row.after) for row in kafka.partitions] == [
        (0, 5, 9),
        (1, 2, None),
        (2, None, 4),
    ]
    assert [row.records for row in kafka.partitions] == [4, None, None]
    assert other.partitions == ()
    assert other.before is not None and other.after is not None
    assert (other.before.text, other.after.text) == ("7", "9")
    first = diff(None, checkpoint.plan(0))[0]
    assert [row.records for row in first.partitions] == [None, None]


def test_a_sound_checkpoint(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {n: {0: n} for n in range(5, 9)}, range(5, 9))
    assert verify(Checkpoint(tmp_path)) == []


def test_no_batch_yet(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {}, [])
    assert said(tmp_path, "error") == ""
    assert "begins as its options say" in said(tmp_path, "note")


def test_torn_files_are_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 2}, 2: {0: 3}}, [0, 1, 2])
    put(tmp_path / "offsets" / "2", "")
    put(tmp_path / "commits" / "1", "v1\n{")
    put(tmp_path / "metadata", "{")
    errors = said(tmp_path, "error")
    for name in ("offsets/2", "commits/1", "metadata"):
        assert f"{tmp_path}/{name}" in errors


def test_a_file_that_does_not_fit_its_checksum(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 2}}, [0, 1])
    put(tmp_path / "offsets" / "1", plan_text(kafka_line({"t": {0: 3}})), sums=False)
    assert "offsets/1: does not match its checksum" in said(tmp_path, "error")


def test_gaps(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 3: {0: 2}, 4: {0: 3}}, [0, 3, 4])
    assert said(tmp_path, "error") == ""
    assert "plans 1, 2 are missing" in said(tmp_path, "note")
    (tmp_path / "offsets" / "3").unlink()
    assert "without the plan before the last one (4)" in said(tmp_path, "error")
    assert "plans 1, 2 are missing" in said(tmp_path, "note")


def test_the_first_of_many_gaps_are_shown(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 10**17 - 1: {0: 2}, 10**17: {0: 2}}, [10**17])
    assert "plans 1, 2, 3, 4, 5 and 1 more" in said(tmp_path, "note")


def test_unfinished_batches(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 2}}, [0])
    assert said(tmp_path, "error") == ""
    assert "batch 1 is planned and not finished" in said(tmp_path, "note")
    make_checkpoint(tmp_path, {2: {0: 3}}, [])
    assert "batches 1, 2 are planned and not finished" in said(tmp_path, "error")


def test_a_finished_batch_without_a_plan(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0, 1])
    assert "offsets/1: missing, although batch 1 is finished" in said(tmp_path, "error")


def test_commits_that_are_missing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {n: {0: n} for n in range(4)}, [0, 2, 3])
    assert "entries 1 are missing" in said(tmp_path, "note")


def test_another_number_of_sources_and_decreasing_offsets(tmp_path: Path) -> None:
    line = kafka_line({"t": {0: 9, 1: 5}})
    make_checkpoint(
        tmp_path,
        {
            0: plan_text(line),
            1: plan_text(kafka_line({"t": {0: 3}})),
            2: plan_text(line, "7"),
        },
        range(3),
    )
    notes = said(tmp_path, "note")
    assert "offsets/1: offsets of source 0 decrease: t-0 9 -> 3" in notes
    assert "offsets/1: source 0 no longer has t-1" in notes
    assert "offsets/2: has 2 sources, the plan before it 1" in said(tmp_path, "error")


def test_files_that_are_not_sparks(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    put(tmp_path / "commits" / ".1.0d0f.tmp", COMMIT)
    put(tmp_path / "offsets" / "0.bak", "x")
    notes = said(tmp_path, "note")
    assert "1 incomplete file" in notes
    assert "not written by Spark: 0.bak" in notes
