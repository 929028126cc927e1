"""Parsing a checkpoint's files, and files that Spark did not write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkkafka.checkpoints.comparison import verify
from sparkkafka.checkpoints.logs import Checkpoint, kafka_source
from sparkkafka.checkpoints.storage import MAX_FILE_BYTES
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CheckpointError
from tests.checkpoints.checkpoint_files import (
    LONG_AGO_S,
    QUERY,
    kafka_line,
    make_checkpoint,
    plan_text,
    put,
    use_as_hdfs,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_batches_sources_and_what_comes_next(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {3: {0: 5, 1: 7}, 4: {0: 9, 1: 7}}, [3, 4])
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.query_id == QUERY
    assert (checkpoint.planned, checkpoint.committed) == ((3, 4), (3, 4))
    plan = checkpoint.plan(4)
    assert (plan.version, plan.planned_ms, plan.watermark_ms) == (1, LONG_AGO_S * 1000, None)
    assert plan.sources[0].offsets == {T0: 9, T1: 7}
    assert plan.text().encode() == (tmp_path / "offsets" / "4").read_bytes()
    assert checkpoint.next_start() == ("next", 5, plan, None)
    assert not checkpoint.is_stateful


def test_a_batch_that_is_not_finished_runs_again(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {3: {0: 5}, 4: {0: 9}}, [3])
    start = Checkpoint(tmp_path).next_start()
    assert (start.kind, start.batch_id) == ("repeat", 4)
    assert start.start is not None and start.end is not None
    assert (start.start.batch_id, start.end.batch_id) == (3, 4)


@pytest.mark.parametrize("content", [None, '{"oops'])
def test_no_start_without_the_plan_before_the_last(tmp_path: Path, content: str | None) -> None:
    """Spark reads it even if the last batch is finished. A reset writes it again."""
    make_checkpoint(tmp_path, {3: {0: 5}, 4: {0: 9}}, [3, 4])
    (tmp_path / "offsets" / "3").unlink()
    if content is not None:
        put(tmp_path / "offsets" / "3", content)
    with pytest.raises(CheckpointError, match="offsets/3 is"):
        Checkpoint(tmp_path).next_start()


def test_the_first_offsets_of_a_jvm_source(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: plan_text('{"t":{"0":9}}')}, [])
    put(tmp_path / "sources" / "0" / "0", '\0v1\n{"t":{"0":2}}')
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.next_start().kind == "repeat"
    assert checkpoint.initial_offsets("0") == {T0: 2}
    assert checkpoint.initial_offsets("1") is None


def test_before_the_first_batch(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {}, [])
    assert Checkpoint(tmp_path).next_start() == ("new", 0, None, None)


def test_several_sources(tmp_path: Path) -> None:
    lines = [kafka_line({"t": {0: 1}}), '{"logOffset":3}', "17", "-", '{"b":{"0":10}}']
    make_checkpoint(tmp_path, {0: plan_text(*lines)}, [0])
    plan = Checkpoint(tmp_path).plan(0)
    assert [row.topics for row in plan.sources] == [("t",), (), (), (), ("b",)]
    assert [row.offsets is None for row in plan.sources] == [False, True, True, True, False]
    assert kafka_source(plan, "4").topics == ("b",)
    with pytest.raises(CheckpointError, match=r"2 Kafka sources: name one of them, 0 \(t\) or 4"):
        kafka_source(plan)
    with pytest.raises(CheckpointError, match="'1' is not a Kafka source"):
        kafka_source(plan, "1")


def test_version_2_names_its_sources(tmp_path: Path) -> None:
    text = plan_text('orders:{"t": {"0": 100}}', "other:-", version=2)
    make_checkpoint(tmp_path, {0: text}, [0])
    plan = Checkpoint(tmp_path).plan(0)
    assert [(row.name, row.offsets) for row in plan.sources] == [
        ("orders", {T0: 100}),
        ("other", None),
    ]
    assert plan.text() == text


def test_commits_of_version_2(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [])
    put(tmp_path / "commits" / "0", 'v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"]]}}')
    (tmp_path / "state" / "0").mkdir(parents=True)
    checkpoint = Checkpoint(tmp_path)
    assert '"nextBatchWatermarkMs":5' in checkpoint.commit(0)
    assert checkpoint.is_stateful


# --- files that Spark did not write --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("v1", "not what Spark writes"),
        ("v1\n{}", "not what Spark writes"),
        ("v1\n{\n{}", "is not JSON"),
        ("v1\n[]\n{}", "not a JSON object"),
        ("v3\n{}\n{}", "newer than those of this release"),
        ("garbage\n{}\n{}", "not what Spark writes"),
        ("v1\n{}\n{" * 3, "is not JSON"),
        ("v1\n{}\n" + "[" * 100_000, "nested too deep"),
        ("v1\n{}\n" + "9" * 5000, "is not JSON"),
        ("v2\n{}\nno-colon", "a line has no name of a source"),
        ('v2\n{}\na:1\na:2', "two lines are of the same source"),
    ],
)  # fmt: skip
def test_a_damaged_plan_is_named(tmp_path: Path, text: str, message: str) -> None:
    make_checkpoint(tmp_path, {7: text}, [])
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint(tmp_path).plan(7)
    assert str(tmp_path / "offsets" / "7") in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "line",
    [
        '{"t":{"0":18446744073709551616}}',
        '{"t":{"0":-3}}',
        '{"t":{"00":1}}',
        '{"t":{"0":1,"0":2}}',
        '{"t":{"0":1.5}}',
        '{"t":{"99999999999":1}}',
        '{"t":7}',
    ],
)
def test_other_offsets_are_those_of_other_sources(tmp_path: Path, line: str) -> None:
    make_checkpoint(tmp_path, {0: plan_text(line)}, [0])
    (source,) = Checkpoint(tmp_path).plan(0).sources
    assert (source.offsets, source.text) == (None, line)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    (tmp_path / "offsets" / "0").write_bytes(b"v1\n\xff\xfe")
    with pytest.raises(CheckpointError, match="is damaged"):
        Checkpoint(tmp_path).plan(0)


def test_links_devices_pipes_and_huge_files(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    offsets = tmp_path / "offsets"
    (offsets / "1").symlink_to("/etc/passwd")
    os.mkfifo(offsets / "2")
    with (offsets / "3").open("wb") as file:
        file.truncate(1 << 30)  # a sparse file
    with (offsets / "4").open("wb") as file:
        file.truncate(MAX_FILE_BYTES)
    (offsets / "5").mkdir()
    checkpoint = Checkpoint(tmp_path)
    wrong = ["symbolic link", "not a file", "1,073,741,824", "damaged", "not a file"]
    for batch, message in enumerate(wrong, 1):
        with pytest.raises(CheckpointError, match=message) as caught:
            checkpoint.plan(batch)
        assert str(offsets / str(batch)) in str(caught.value)


@pytest.mark.parametrize(
    "line", ['{"t":{"0":-5}}', '{"t":{"0":1.5}}', '{"t":{"0":9223372036854775808}}', '{"x":1}']
)
def test_a_source_that_lost_its_kafka_offsets_is_damaged(tmp_path: Path, line: str) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: plan_text(line)}, [0, 1])
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(
        CheckpointError, match="offsets/1 is damaged: source 0 has offsets of Kafka"
    ):
        checkpoint.next_start()
    assert [(row.level, row.where) for row in verify(checkpoint)] == [
        ("error", str(tmp_path / "offsets" / "1"))
    ]


def test_an_impossible_query_id(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    put(tmp_path / "metadata", '{"id":"' + "x" * (1 << 20) + '"}')
    with pytest.raises(CheckpointError, match=r"metadata holds no id of a query: it has 1,048,"):
        Checkpoint(tmp_path).query_id  # noqa: B018 - a property


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    real = make_checkpoint(tmp_path / "real", {0: {0: 1}}, [0])
    reached = tmp_path / "reached"
    reached.symlink_to(real)
    assert Checkpoint(reached).planned == (0,)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "offsets").symlink_to(real / "offsets")
    with pytest.raises(CheckpointError, match=r"mixed/offsets is a symbolic link"):
        Checkpoint(mixed)


def test_names_that_are_no_batches_are_ignored(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    for name in ("007", "x", "9" * 30, ".5.0af.tmp", "-1"):
        (tmp_path / "offsets" / name).write_text("v1")
    assert Checkpoint(tmp_path).planned == (0,)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("ftp://host/path", "ftp: is not a file system"),
        ("s3://key:secret@bucket/path", "holds a password"),
        ("dbfs:/checkpoints/a", "/dbfs/checkpoints/a"),
        ("", "not the path"),
        ("a\0b", "not the path"),
        ("/no/such/folder", "not the checkpoint of a query"),
    ],
)
def test_invalid_locations(location: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint(location)
    assert "secret" not in str(caught.value)


def test_metadata(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    for text, message in (
        ("", "is not JSON"),
        ("{}", "no id"),
        ("[1]", "no id"),
        ('{"id":1}', "no"),
    ):
        put(tmp_path / "metadata", text)
        with pytest.raises(CheckpointError, match=message):
            _ = Checkpoint(tmp_path).query_id
    (tmp_path / "metadata").unlink()
    with pytest.raises(CheckpointError, match="metadata is missing"):
        _ = Checkpoint(tmp_path).query_id


def test_file_urls_and_arrow_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_as_hdfs(tmp_path / "a b", monkeypatch)
    make_checkpoint(tmp_path / "a b", {0: {0: 1}, 1: {0: 2}}, [0])
    for checkpoint in (
        Checkpoint(f"file:{tmp_path}/a%20b"),
        Checkpoint(f"file://{tmp_path}/a%20b"),
        Checkpoint("hdfs://host/c"),
    ):
        assert (checkpoint.planned, checkpoint.committed) == ((0, 1), (0,))
        assert checkpoint.query_id == QUERY
        assert checkpoint.plan(1).sources[0].offsets == {T0: 2}
        assert not checkpoint.is_stateful


def test_local_files_are_read_without_arrow(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    code = (
        "import sys\n"
        "from sparkkafka.checkpoints.comparison import diff, verify\n"
        "from sparkkafka.checkpoints.logs import Checkpoint\n"
        "c = Checkpoint(sys.argv[1]); assert not verify(c); diff(None, c.plan(0))\n"
        "print([n for n in ('pyarrow', 'numpy', 'pyspark', 'ssl') if n in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr
