"""The verb `checkpoint`: files without brokers, then with a cluster; errors are one line."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Admin, Producer
from sparkkafka.client.values import TopicPartition
from tests.checkpoints.checkpoint_files import (
    QUERY,
    contents,
    kafka_line,
    make_checkpoint,
    plan_text,
    put,
)
from tests.cli.run import Command, Run

Runs = Callable[..., Run]


@pytest.fixture
def files(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> Runs:
    """`files("show", …)` runs without a cluster."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-profiles"))

    def run(*arguments: str, code: int = 0) -> Run:
        capsys.readouterr()
        found = main(["checkpoint", *arguments])
        out, err = capsys.readouterr()
        assert found == code, f"exit code {found}: {out}{err}"
        return Run(found, out, err)

    return run


@pytest.fixture
def cluster(fake_cluster: Any, capsys: pytest.CaptureFixture[str]) -> Iterator[Runs]:
    """`cluster("lag", …)` runs with brokers whose topic t has offsets 10 to 30."""
    fake_cluster.create_topic("t", partitions=1)
    settings = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    with Producer(settings) as producer:
        for _ in range(30):
            producer.send("t", b"x", partition=0)
    with Admin(settings) as admin:
        admin.delete_records({TopicPartition("t", 0): 10}).all()
    command = Command(capsys, fake_cluster.bootstrap_servers)
    yield lambda *arguments, **more: command("checkpoint", *arguments, **more)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Three batches; the last one is not finished."""
    folder = tmp_path / "c"
    make_checkpoint(folder, {0: {0: 5}, 1: {0: 12}, 2: {0: 20}}, [0, 1])
    return str(folder)


# --- files only --------------------------------------------------------------------------------


def test_show(files: Runs, checkpoint: str) -> None:
    shown = files("show", checkpoint).out.splitlines()
    assert shown[0] == f"{checkpoint}: query {QUERY}"
    assert shown[1].split() == [
        "BATCH",
        "PLANNED",
        "FINISHED",
        "SOURCE",
        "TOPIC",
        "PARTITIONS",
        "RECORDS",
    ]
    assert shown[4].split()[0] == "2"
    assert shown[4].split()[-5:] == ["no", "0", "t", "1", "8"]
    assert "batch 2 is planned and not finished: the next start runs it again" in shown[5]
    assert shown[7].split() == ["0", "t", "0", "12"]


def test_show_does_not_count_the_records_of_a_batch_with_a_new_partition(
    files: Runs, tmp_path: Path
) -> None:
    plans = {0: {0: 5}, 1: {0: 12, 1: 43}, 2: {0: 14, 1: 44}}
    make_checkpoint(tmp_path / "c", plans, [0, 1, 2])
    shown = files("show", str(tmp_path / "c")).out.splitlines()
    assert [line.split()[-1] for line in shown[2:5]] == ["-", "-", "3"]


def test_show_as_json(files: Runs, checkpoint: str) -> None:
    found = files("show", checkpoint, "--json", "-n", "1").json
    assert (found["query_id"], found["stateful"]) == (QUERY, False)
    (batch,) = found["batches"]
    assert (batch["batch"], batch["finished"]) == (2, False)
    (source,) = batch["sources"]
    assert source["partitions"] == [{"topic": "t", "partition": 0, "offset": 20, "records": 8}]
    assert found["next_start"] == {
        "kind": "repeat",
        "batch": 2,
        "partitions": [{"source": "0", "topic": "t", "partition": 0, "offset": 12}],
    }


def test_show_reports_unreadable_files(files: Runs, checkpoint: str) -> None:
    put(Path(checkpoint, "offsets", "1"), "\x1b[31mred")
    run = files("show", checkpoint, code=1)
    assert "unreadable" in run.out
    assert "offsets/1 is damaged" in run.error
    assert "\x1b" not in run.out + run.err


def test_show_before_the_first_batch(files: Runs, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", {}, [])
    assert "begins at its startingOffsets" in files("show", str(tmp_path / "c")).out


def test_show_the_first_batch_that_is_not_finished(files: Runs, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", {0: plan_text(kafka_line({"t": {0: 5}}))}, [])
    last = files("show", str(tmp_path / "c")).out.splitlines()[-1]
    assert last == (
        "batch 0 is planned and not finished: the next start runs it again, from its "
        "startingOffsets"
    )


def test_other_sources(files: Runs, tmp_path: Path) -> None:
    lines = [[kafka_line({"t": {0: n}}), str(n)] for n in (5, 9)]
    plans = {n: plan_text(*rows) for n, rows in enumerate(lines)}
    make_checkpoint(tmp_path / "c", plans, [0, 1])
    assert files("show", str(tmp_path / "c"), "-n", "1").out.splitlines()[3].split()[-1] == "9"
    assert files("diff", str(tmp_path / "c")).out.splitlines()[1:] == [
        "SOURCE  TOPIC  PARTITION  BEFORE  AFTER  RECORDS",
        "0       t              0  5       9            4",
        "1       -              -  5       9            -",
    ]


def test_diff(files: Runs, checkpoint: str) -> None:
    found = files("diff", checkpoint, "0", "2", "--json").json
    assert (found["before"], found["after"], found["settings"]) == (0, 2, {})
    assert found["sources"][0]["partitions"][0]["records"] == 15
    assert files("diff", checkpoint, "1", "--json").json["before"] == 0
    assert files("diff", checkpoint, "--json").json["before"] == 1
    assert "it has 0 to 2" in files("diff", checkpoint, "0", "7", code=2).error
    assert "no batch before batch 0" in files("diff", checkpoint, "0", code=1).error


def test_diff_of_settings(files: Runs, tmp_path: Path) -> None:
    texts = [plan_text("{}"), plan_text("{}").replace('"2"', '"8"')]
    make_checkpoint(tmp_path / "c", dict(enumerate(texts)), [0, 1])
    out = files("diff", str(tmp_path / "c")).out
    assert "spark.sql.shuffle.partitions: 2 -> 8" in out


def test_verify(files: Runs, checkpoint: str) -> None:
    run = files("verify", checkpoint)
    assert "-- " in run.out
    assert f"ok {checkpoint}: 3 plans read" in run.out
    put(Path(checkpoint, "commits", "1"), "")
    assert "!! " in files("verify", checkpoint, code=1).out
    found = files("verify", checkpoint, "--json", code=1).json
    assert not found["ok"]
    assert found["findings"][0]["where"] == f"{checkpoint}/commits/1"


def test_reset_shows_the_plan_and_executes_it(files: Runs, checkpoint: str) -> None:
    before = contents(Path(checkpoint))
    how = ("reset", checkpoint, "--to-offsets", '{"t":{"0":3}}', "--offline")
    assert "--unfinished" not in files(*how, code=1).out
    dropped = (*how, "--unfinished", "drop")
    run = files(*dropped)
    assert "batch 2 would start from there" in run.out
    assert "add --execute to do it" in run.out
    assert contents(Path(checkpoint)) == before
    found = files(*dropped, "--execute", "--json").json
    assert (found["executed"], found["next_batch"], found["removes"]) == (True, 2, ["offsets/2"])
    backup = Path(found["backup"])
    assert contents(backup) == before | {"_SUCCESS": b""}
    shown = files("show", checkpoint, "--json").json
    assert shown["backups"] == [{"folder": f"backups/{backup.name}", "whole": True}]
    assert f"are in backups/{backup.name}" in files("show", checkpoint).out
    (backup / "_SUCCESS").unlink()
    assert f"in it): backups/{backup.name}. The reset stopped" in files("show", checkpoint).out
    start = shown["next_start"]
    assert (start["kind"], start["batch"], start["partitions"][0]["offset"]) == ("next", 2, 3)


def test_obstacles_of_a_reset(files: Runs, checkpoint: str) -> None:
    os.utime(Path(checkpoint, "commits", "1"))
    put(Path(checkpoint, "state", "0", "0", "1.delta"), "")
    how = ("reset", checkpoint, "--keep", "--offline", "--unfinished", "drop")
    before = contents(Path(checkpoint))
    for more in ((), ("--execute",)):
        lines = files(*how, *more, code=1).err.splitlines()
        assert len(lines) == 2
        assert "seems to run" in lines[0]
        assert "--stopped" in lines[0]
        assert "--keep-state" in lines[1]
        assert contents(Path(checkpoint)) == before
    files(*how, "--stopped", "--keep-state", "--execute")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --to-earliest"),
        (("--to-earliest", "--to-latest"), "not --to-earliest and --to-latest"),
        (("--to-time", "soon"), "--to-time is"),
        (("--to-offsets", "{"), "--to-offsets"),
        (("--keep", "--unfinished", "perhaps"), "--unfinished is done or drop"),
        (("--to-earliest",), "no cluster is named"),
        (("--to-earliest", "--offline", "--unfinished", "drop"), "with brokers"),
    ],
)
def test_wrong_use_of_reset(
    files: Runs, checkpoint: str, arguments: tuple[str, ...], message: str
) -> None:
    assert message in files("reset", checkpoint, *arguments, code=2).error


@pytest.mark.parametrize("verb", ["show", "diff", "verify", "reset"])
def test_no_checkpoint(files: Runs, tmp_path: Path, verb: str) -> None:
    more = ("--keep", "--offline") if verb == "reset" else ()
    run = files(verb, str(tmp_path), *more, code=1)
    assert run.out == ""
    assert f"{tmp_path} is not the checkpoint of a query" in run.error


# --- with a cluster ----------------------------------------------------------------------------


def test_what_is_left_and_lost(cluster: Runs, tmp_path: Path) -> None:
    folder = str(make_checkpoint(tmp_path / "c", {0: {0: 4}}, [0]))
    shown = cluster("show", folder, "--kafka").out
    assert shown.splitlines()[5].split() == ["0", "t", "0", "4", "10", "30", "20", "6"]
    assert "exactly-once: there is no decision" in shown
    run = cluster("verify", folder, "--kafka", code=1)
    assert "6 offsets are deleted that were not read (from offset 4 to 10)" in run.out
    found = cluster("lag", folder, "--json").json
    assert (found["lag"], found["gone"]) == (26, 6)
    assert found["behind_s"] is not None
    assert "26 behind in 1 partition" in cluster("lag", folder, "--no-ages").out


def test_the_lag_is_not_known_before_the_first_batch_has_finished(
    cluster: Runs, tmp_path: Path
) -> None:
    folder = str(make_checkpoint(tmp_path / "c", {0: {0: 14}}, []))
    run = cluster("lag", folder, code=1)
    assert "no batch has finished yet, so the lag is not known" in run.error


def test_a_deleted_or_recreated_topic(cluster: Runs, tmp_path: Path) -> None:
    text = plan_text(kafka_line({"t": {0: 99}, "gone": {0: 1}}))
    folder = str(make_checkpoint(tmp_path / "c", {0: text}, [0]))
    out = cluster("verify", folder, "--kafka", code=1).out
    assert "gone-0: no longer exists" in out
    assert "was the topic recreated?" in out


def test_reset_compares_with_the_cluster(cluster: Runs, tmp_path: Path) -> None:
    folder = str(make_checkpoint(tmp_path / "c", {0: {0: 4}}, [0]))
    for way, offset in (
        (("--to-earliest",), 10),
        (("--to-latest",), 30),
        (("--to-time", "-1d"), 10),
    ):
        found = cluster("reset", folder, *way, "--execute", "--stopped", "--json").json
        assert [row["after"] for row in found["partitions"]] == [offset]
    error = cluster("reset", folder, "--to-offsets", '{"t":{"0":9}}', "--stopped", code=2).error
    assert "partition t-0 has no offset 9: it has 10 to 30" in error


def test_a_dead_cluster(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{held.getsockname()[1]}"
        for arguments in (
            ["lag", checkpoint],
            ["reset", checkpoint, "--to-earliest", "--unfinished", "drop"],
            ["verify", checkpoint, "--kafka"],
            ["show", checkpoint, "--kafka"],
        ):
            assert main(["-b", dead, "--timeout", "1", "checkpoint", *arguments]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert dead in line
