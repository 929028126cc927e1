"""Resets of files: refusals, writes, and crashes, after which the query must start.

What Spark then does is in test_checkpoint_queries.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.checkpoints.comparison import verify
from sparkkafka.checkpoints.logs import BACKUPS, MARKER, Checkpoint, backups_of
from sparkkafka.checkpoints.reset import KEPT, ResetPlan, plan_reset
from sparkkafka.checkpoints.storage import LocalStorage
from sparkkafka.client import Admin, Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.source import OffsetBound, parse_bound
from sparkkafka.errors import CheckpointError, OptionError
from tests.checkpoints.checkpoint_files import (
    COMMIT,
    contents,
    kafka_line,
    make_checkpoint,
    plan_text,
    put,
    use_as_hdfs,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def to(text: str) -> OffsetBound:
    """Parse the text as startingOffsets."""
    return parse_bound({"startingOffsets": text}, "starting", streaming=True)


def plan(folder: Path, bound: OffsetBound, admin: Admin | None = None, **more: Any) -> ResetPlan:
    return plan_reset(Checkpoint(folder), bound, admin, **more)


@pytest.fixture
def admin(fake_cluster: Any) -> Iterator[Admin]:
    """An Admin of a cluster whose topic t has offsets 10 to 100 in partition 0, 0 to 0 in 1."""
    fake_cluster.create_topic("t", partitions=2)
    settings = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    with Producer(settings) as producer:
        for _ in range(100):
            producer.send("t", b"x", partition=0)
    with Admin(settings) as client:
        client.delete_records({T0: 10}).all()
        yield client


# --- what is written -----------------------------------------------------------------------------


def test_given_offsets_need_no_broker(tmp_path: Path) -> None:
    lines = [kafka_line({"t": {0: 50, 1: 7}}), "17"]
    make_checkpoint(
        tmp_path, {0: plan_text(kafka_line({"t": {0: 5}}), "16"), 1: plan_text(*lines)}, [0, 1]
    )
    before = contents(tmp_path)
    reset = plan(tmp_path, to('{"t":{"0":20}}'))
    assert contents(tmp_path) == before
    assert (reset.batch_id, reset.next_batch, reset.obstacles) == (1, 2, ())
    assert [(row.partition, row.before, row.after) for row in reset.changes] == [
        (T0, 50, 20),
        (T1, 7, 7),
    ]
    assert "not compared" in reset.notes[0]
    backup = reset.apply()
    after = contents(tmp_path)
    text = after["offsets/1"].decode()
    assert text == plan_text('{"t":{"0":20,"1":7}}', "17")
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"offsets/1", "offsets/.1.crc"}
    assert verify(Checkpoint(tmp_path)) == []
    assert contents(Path(backup)) == before | {MARKER: b""}
    assert list(tmp_path.rglob("*.tmp")) == []


def test_no_checksums_where_there_are_none(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0], sums=False)
    plan(tmp_path, to('{"t":{"0":20}}')).apply()
    assert [name for name in contents(tmp_path) if name.endswith(".crc")] == []


def test_version_2(tmp_path: Path) -> None:
    text = plan_text('b:{"b":{"0":1}}', 'a:{"t": {"0": 100}}', version=2)
    make_checkpoint(tmp_path, {0: text}, [0])
    plan(tmp_path, to('{"t":{"0":5}}'), source="a").apply()
    assert contents(tmp_path)["offsets/0"].decode() == plan_text(
        'b:{"b":{"0":1}}', 'a:{"t":{"0":5}}', version=2
    )


def test_two_backups_in_one_second(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    positions = {plan(tmp_path, to('{"t":{"0":5}}'), stopped=True).apply() for _ in range(3)}
    assert len(positions) == 3


_KILLED = """
import os, signal, sys
from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.checkpoints.reset import plan_reset
from sparkkafka.checkpoints import storage
from sparkkafka.config.source import OffsetBound, TopicPartition
folder, kind, survive = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder += "/c"
if kind == "arrow":
    import pytest
    from tests.checkpoints.checkpoint_files import use_as_hdfs
    use_as_hdfs(folder, pytest.MonkeyPatch())
    folder = "hdfs://host/c"
written = []
for row in (storage.LocalStorage, storage.ArrowStorage):
    def write(self, *args, _real=row.write, **more):
        if len(written) == survive:
            os.kill(os.getpid(), signal.SIGKILL)
        written.append(args)
        _real(self, *args, **more)
    row.write = write
checkpoint = Checkpoint(folder)
bound = OffsetBound("specific", {TopicPartition("t", 0): 5})
plan_reset(checkpoint, bound, stopped=True).apply()
"""


@pytest.mark.parametrize("kind", ["local", "arrow"])
@pytest.mark.parametrize("survive", [1, 10])
def test_a_backup_of_a_killed_reset_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, survive: int
) -> None:
    """Killed after the first file, and after all files: then only the marker is missing."""
    folder = make_checkpoint(tmp_path / "c", {0: {0: 1}, 1: {0: 2}}, [0, 1])
    before = contents(folder)
    child = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), kind, str(survive)], timeout=60
    )
    assert child.returncode == -signal.SIGKILL
    assert contents(folder) == before
    storage = Checkpoint(folder).storage
    (part,) = backups_of(storage)
    assert not part.is_complete

    # The next reset, in the same second.
    at = time.strptime(part.name, f"{BACKUPS}/%Y%m%dT%H%M%SZ")
    monkeypatch.setattr(time, "gmtime", lambda: at)
    reset = plan(folder, to('{"t":{"0":5}}'), stopped=True)
    assert any(f"{MARKER} in it): {part.name}. The reset stopped" in note for note in reset.notes)
    whole = f"{part.name}-2"
    assert reset.apply() == storage.location_of(whole)
    assert backups_of(storage) == [part, (whole, True)]
    assert contents(folder / whole) == before | {MARKER: b""}


def test_arrow_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 9}}, [0], sums=False)
    use_as_hdfs(tmp_path, monkeypatch)
    checkpoint = Checkpoint("hdfs://host/c")
    plan_reset(checkpoint, to('{"t":{"0":5}}'), unfinished="done").apply()
    again = checkpoint.reload()
    assert again.next_start().batch_id == 2
    assert again.plan(1).sources[0].offsets == {T0: 5}
    assert verify(again) == []


# --- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "offsets"),
    [
        (to("earliest"), {T0: 10, T1: 0}),
        (to("latest"), {T0: 100, T1: 0}),
        (OffsetBound("timestamp", timestamp_ms=4_000_000_000_000), {T0: 100, T1: 0}),
        (OffsetBound("timestamp", timestamp_ms=0), {T0: 10, T1: 0}),
        (to('{"t":{"0":-2}}'), {T0: 10}),
        (to('{"t":{"0":-1,"1":0}}'), {T0: 100, T1: 0}),
        (to('{"t":{"0":55}}'), {T0: 55}),
        (KEPT, {T0: 50}),
    ],
)
def test_brokers_are_asked(
    tmp_path: Path, admin: Admin, bound: OffsetBound, offsets: dict[TopicPartition, int]
) -> None:
    make_checkpoint(tmp_path, {0: {0: 50}}, [0])
    plan(tmp_path, bound, admin).apply()
    assert Checkpoint(tmp_path).plan(0).sources[0].offsets == offsets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"t":{"0":5}}', "partition t-0 has no offset 5: it has 10 to 100"),
        ('{"t":{"0":101}}', "partition t-0 has no offset 101"),
        ('{"t":{"7":1}}', "no partition t-7"),
        ('{"u":{"0":1}}', "offsets of u: source 0 does not read that; it reads t"),
        ("committed", "not to committed"),
    ],
)
def test_offsets_that_do_not_exist(tmp_path: Path, admin: Admin, text: str, message: str) -> None:
    make_checkpoint(tmp_path, {0: {0: 50}}, [0])
    with pytest.raises(OptionError, match=message):
        plan(tmp_path, to(text), admin)


@pytest.mark.parametrize("text", ["earliest", '{"t":{"0":-1}}', '{"t":{"1":4}}'])
def test_targets_that_need_brokers(tmp_path: Path, text: str) -> None:
    make_checkpoint(tmp_path, {0: {0: 50}}, [0])
    with pytest.raises(OptionError, match="with brokers"):
        plan(tmp_path, to(text))


def test_deleted_topics_and_topics_that_keep_their_offsets(tmp_path: Path, admin: Admin) -> None:
    line = kafka_line({"t": {0: 50, 1: 0}, "gone": {0: 7}})
    make_checkpoint(tmp_path, {0: plan_text(line)}, [0])
    reset = plan(tmp_path, to("earliest"), admin)
    assert any("gone-0 no longer exist" in note for note in reset.notes)
    assert [(row.partition.topic, row.after) for row in reset.changes] == [
        ("gone", None),
        ("t", 10),
        ("t", 0),
    ]
    kept = plan(tmp_path, to("earliest"), admin, topics=["t"])
    assert kept.changes[0].after == 7
    with pytest.raises(OptionError, match="does not read u"):
        plan(tmp_path, to("earliest"), admin, topics=["u"])


def test_offsets_outside_of_the_log_are_noted(tmp_path: Path, admin: Admin) -> None:
    make_checkpoint(tmp_path, {0: {0: 3, 1: 0}}, [0])
    reset = plan(tmp_path, to('{"t":{"1":0}}'), admin)
    assert any("the offsets of t-0, which stay, have no records" in note for note in reset.notes)


# --- refusals ------------------------------------------------------------------------------------


def test_a_query_that_seems_to_run(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    now_s = time.time()
    os.utime(tmp_path / "commits" / "0", (now_s - 50, now_s - 50))
    before = contents(tmp_path)
    reset = plan(tmp_path, to('{"t":{"0":5}}'), now_s=now_s)
    with pytest.raises(CheckpointError, match=r"was written 50 s ago, less than 60 s"):
        reset.apply()
    assert contents(tmp_path) == before
    assert plan(tmp_path, to('{"t":{"0":5}}'), now_s=now_s + 20).obstacles == ()
    assert plan(tmp_path, to('{"t":{"0":5}}'), now_s=now_s, stopped=True).obstacles == ()


def test_a_query_with_long_pauses_is_quiet_later(tmp_path: Path) -> None:
    start_ms = 1_700_000_000_000
    lines = [
        plan_text(kafka_line({"t": {0: n}}), planned_ms=start_ms + n * 600_000) for n in range(5)
    ]
    make_checkpoint(tmp_path, dict(enumerate(lines)), range(5))
    at_s = (tmp_path / "commits" / "4").stat().st_mtime
    assert plan(tmp_path, to('{"t":{"0":5}}'), now_s=at_s + 1790).obstacles
    assert not plan(tmp_path, to('{"t":{"0":5}}'), now_s=at_s + 1801).obstacles


def test_a_checkpoint_that_changes_during_a_reset(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    reset = plan(tmp_path, to('{"t":{"0":5}}'))
    put(tmp_path / "offsets" / "1", plan_text(kafka_line({"t": {0: 2}})))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="have changed since"):
        reset.apply()
    assert contents(tmp_path) == before


def test_one_reset_at_a_time(tmp_path: Path, admin: Admin) -> None:
    make_checkpoint(tmp_path, {0: {0: 12}}, [0])
    made = plan(tmp_path, to("earliest"), admin)
    before = contents(tmp_path)
    with (
        LocalStorage(str(tmp_path)).locked(),
        pytest.raises(CheckpointError, match="is being changed by another process"),
    ):
        made.apply()
    assert contents(tmp_path) == before
    made.apply()


def test_state_needs_keep_state(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    put(tmp_path / "state" / "0" / "0" / "1.delta", "")
    refused = plan(tmp_path, to('{"t":{"0":5}}'))
    with pytest.raises(CheckpointError, match="count again in aggregates"):
        refused.apply()
    accepted = plan(tmp_path, to('{"t":{"0":5}}'), keep_state=True)
    assert any("keeps state" in note for note in accepted.notes)
    accepted.apply()


def test_an_unfinished_batch_needs_done_or_drop(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 9}}, [0])
    with pytest.raises(
        CheckpointError,
        match=r"batch 1 is planned and not finished\. It is best to start the query.*"
        r"--unfinished done.*--unfinished drop",
    ):
        plan(tmp_path, to('{"t":{"0":5}}'))
    make_checkpoint(tmp_path, {}, [1])
    with pytest.raises(OptionError, match=r"the last batch of .* is finished"):
        plan(tmp_path, to('{"t":{"0":5}}'), unfinished="drop")


def test_nothing_to_reset(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {}, [])
    with pytest.raises(CheckpointError, match="no batch was planned yet"):
        plan(tmp_path, to('{"t":{"0":5}}'))
    make_checkpoint(tmp_path, {0: "17"}, [])
    with pytest.raises(CheckpointError, match="no finished batch after which the query could"):
        plan(tmp_path, KEPT, unfinished="drop")


# --- unfinished and damaged batches --------------------------------------------------------------


def test_an_unfinished_batch_counts_as_done(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 9}}, [0])
    plan(tmp_path, KEPT, unfinished="done").apply()
    start = Checkpoint(tmp_path).next_start()
    assert (start.kind, start.batch_id) == ("next", 2)
    assert (tmp_path / "commits" / "1").read_text() == COMMIT
    assert start.start is not None and start.start.sources[0].offsets == {T0: 9}


def test_the_first_batch_counts_as_done(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 9}}, [])
    plan(tmp_path, to('{"t":{"0":5}}'), unfinished="done").apply()
    assert Checkpoint(tmp_path).commit(0) == COMMIT


def test_an_unfinished_batch_is_dropped(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 9}}, [0])
    reset = plan(tmp_path, KEPT, unfinished="drop")
    assert reset.removals == ("offsets/1",)
    reset.apply()
    start = Checkpoint(tmp_path).next_start()
    assert (start.kind, start.batch_id) == ("next", 1)
    assert start.start is not None and start.start.sources[0].offsets == {T0: 1}


def test_a_stateful_unfinished_batch_cannot_count_as_done(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}, 1: {0: 9}}, [0])
    put(tmp_path / "state" / "0" / "0" / "1.delta", "")
    assert plan(tmp_path, KEPT, unfinished="done", keep_state=True).obstacles
    assert not plan(tmp_path, KEPT, unfinished="drop", keep_state=True).obstacles


@pytest.mark.parametrize("torn", ["", "v1\n", 'v1\n{"batchW', "\0" * 300])
@pytest.mark.parametrize("name", ["offsets/2", "commits/2"])
@pytest.mark.parametrize("choice", ["done", "drop"])
def test_torn_files_are_repaired(tmp_path: Path, torn: str, name: str, choice: Any) -> None:
    make_checkpoint(tmp_path, {n: {0: n * 10} for n in range(3)}, range(3))
    put(tmp_path / name, torn, sums=False)
    if name == "commits/2" and torn == "v1\n":
        return  # Spark accepts a commit without its second line
    with pytest.raises(CheckpointError, match=f"batch 2 cannot be read.*{name}") as refused:
        plan(tmp_path, KEPT)
    assert ". Set --unfinished done if" in str(refused.value)
    assert "start the query" not in str(refused.value)  # which Spark would not do
    reset = plan(tmp_path, to('{"t":{"0":5}}'), unfinished=choice)
    reset.apply()
    checkpoint = Checkpoint(tmp_path)
    assert [row for row in verify(checkpoint) if row.level == "error"] == []
    start = checkpoint.next_start()
    assert (start.kind, start.batch_id) == ("next", 3 if choice == "done" else 2)
    assert start.start is not None and start.start.sources[0].offsets == {T0: 5}


def test_a_plan_that_is_made_from_an_older_one(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 10}, 1: ""}, [0, 1])
    reset = plan(tmp_path, KEPT, unfinished="done")
    assert any("based on that of batch 0" in note for note in reset.notes)


def test_a_finished_batch_whose_plan_is_missing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 10}, 1: {0: 20}}, [0, 1, 2])
    plan(tmp_path, to('{"t":{"0":5}}'), unfinished="done").apply()
    assert Checkpoint(tmp_path).next_start().batch_id == 3


def test_the_plan_before_the_last_is_rewritten(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {0: {0: 10}, 2: {0: 20}}, [0, 2])
    plan(tmp_path, to('{"t":{"0":5}}')).apply()
    assert [row for row in verify(Checkpoint(tmp_path)) if row.level == "error"] == []


def test_untrusted_files_stop_a_reset(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {n: {0: n} for n in range(3)}, range(3))
    (tmp_path / "offsets" / "0").unlink()
    (tmp_path / "offsets" / "0").symlink_to("/etc/passwd")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"offsets/0 is a symbolic link"):
        plan(tmp_path, to('{"t":{"0":5}}'), stopped=True).apply()
    assert contents(tmp_path) == before


# --- crashes -------------------------------------------------------------------------------------


class Crash(Exception):
    """Stands for a crash of the machine."""


@pytest.mark.parametrize("choice", ["done", "drop", None])
@pytest.mark.parametrize("survive", range(4))
def test_a_crash_between_two_writes_leaves_a_checkpoint_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: Any, survive: int
) -> None:
    """Either nothing or everything has changed; no batch ever reads a wrong range."""
    make_checkpoint(
        tmp_path, {0: {0: 10}, 1: {0: 20}, 2: {0: 30}}, [0, 1, 2] if choice is None else [0, 1]
    )
    reset = plan(tmp_path, to('{"t":{"0":5}}'), unfinished=choice)
    left = [survive]
    for change in ("write", "remove"):
        real = getattr(LocalStorage, change)

        def counted(self: Any, name: str, *args: Any, _real: Any = real, **kwargs: Any) -> None:
            if not name.startswith("backups"):
                if not left[0]:
                    raise Crash
                left[0] -= 1
            _real(self, name, *args, **kwargs)

        monkeypatch.setattr(LocalStorage, change, counted)
    crashed = False
    try:
        reset.apply()
    except Crash:
        crashed = True
    monkeypatch.undo()
    assert crashed or survive >= len(reset.writes) + len(reset.removals)
    start = Checkpoint(tmp_path).next_start()
    assert start.start is not None
    offset = dict(start.start.sources[0].offsets or {})[T0]
    if start.kind == "repeat":
        assert start.end is not None and (start.end.sources[0].offsets, offset) == ({T0: 30}, 20)
    else:
        assert offset in (5, 20, 30)


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, {0: {0: 1}}, [0])
    before = contents(tmp_path)
    reset = plan(tmp_path, to('{"t":{"0":5}}'))

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        reset.apply()
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert list(tmp_path.rglob("*.tmp")) == []
