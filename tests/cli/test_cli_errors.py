"""Every verb fails in one line, with the right exit code, within --timeout."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from sparkkafka.cli import app, lag, tables
from sparkkafka.cli.app import main
from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.commands import VERBS
from sparkkafka.cli.files import NumberedRows
from sparkkafka.client import Admin, Producer, TopicPartition
from sparkkafka.client.admin.groups import GroupListing
from sparkkafka.client.lags import PartitionLag
from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.cluster import FakeCluster

ANY = [
    "topics list",
    "topics describe t",
    "topics create t",
    "topics alter t -c retention.ms=1",
    "topics add-partitions t 2 --yes",
    "topics delete t --yes",
    "brokers list",
    "brokers describe 0",
    "groups list",
    "groups describe g",
    "groups reset g --all-topics --to-latest",
    "groups delete g --yes",
    "lag",
    "lag g",
    "top --once",
    "ui --port 0",
    "acls list",
    "acls create --principal User:a --topic t --operation read",
    "acls delete --topic t --yes",
    "cdc check t",
    "users list",
    "users create u --yes",
    "users delete u --yes",
]
"""Each command except `check`, which prints findings instead of an error."""

PASSWORD = "hunter2"
CLOSED = "sparkkafka: stdin or stdout is closed (<&- or >&-): this verb needs it\n"
MISSING_COMMAND = (
    "sparkkafka: Missing command: one of list, describe, create, alter, add-partitions, delete "
    "(see sparkkafka topics --help)\n"
)
DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def dead_port():
    """A bound port without a listener, so that connections are refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def silent_port():
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


def one_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("sparkkafka: ")
    return line


def test_all_verbs_are_here():
    others = {"bench", "check", "checkpoint", "copy", "read", "write"}
    assert {verb.split()[0] for verb in ANY} == {*VERBS} - others


@pytest.mark.parametrize("verb", ANY)
def test_a_server_that_refuses(verb, dead_port, capsys):
    """The error does not wait for --timeout, which no test outlives."""
    servers = f"127.0.0.1:{dead_port}"
    assert main(["-b", servers, "--timeout", "86400", *verb.split()]) == 1
    assert f"{servers} refused the connection" in one_line(capsys)


def test_one_of_several_servers_refuses(dead_port, capsys):
    with FakeCluster() as fake:
        fake.create_topic("t")
        servers = f"127.0.0.1:{dead_port},nobody.invalid:9092,{fake.bootstrap_servers}"
        assert main(["-b", servers, "topics", "list"]) == 0
    assert capsys.readouterr().err == ""


def test_all_of_several_servers_are_named_with_their_reasons(dead_port, capsys):
    servers = f"127.0.0.1:{dead_port},localhost:{dead_port},nobody.invalid:9092"
    assert main(["-b", servers, "--timeout", "86400", "topics", "list"]) == 1
    line = one_line(capsys)
    for server in servers.split(",")[:2]:
        assert f"{server} refused the connection" in line
    assert "nobody.invalid:9092: the host name cannot be resolved" in line


@pytest.mark.parametrize("verb", ["topics list", "lag g"])
def test_a_server_that_does_not_answer(verb, silent_port, capsys):
    assert main(["-b", f"127.0.0.1:{silent_port}", "--timeout", "2", *verb.split()]) == 1
    text = one_line(capsys)
    assert f"127.0.0.1:{silent_port}" in text
    after = re.search(r"gave up after ([\d.]+) s", text)
    assert after is not None, text
    assert float(after[1]) <= 2  # and not request.timeout.ms, or a minute


@pytest.mark.parametrize("verb", ANY)
def test_no_cluster_is_named(verb, capsys):
    assert main(verb.split()) == 2
    assert "-b HOST:PORT" in one_line(capsys)


def test_a_wrong_password(capsys):
    with FakeCluster(sasl_users={"alice": "right"}) as fake:
        given = ["-b", fake.bootstrap_servers, "--timeout", "30"]
        for setting in (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            "sasl.username=alice",
            f"sasl.password={PASSWORD}",
        ):
            given += ["-X", setting]
        for verb in ANY:
            assert main([*given, *verb.split()]) == 1, verb
            out, err = capsys.readouterr()
            assert out == ""
            assert PASSWORD not in err
            # The first time there is also a warning about a password in plain text.
            (line,) = [line for line in err.splitlines() if ": warning: " not in line]
            assert "alice" in line
        assert main([*given, "--debug", "topics", "list"]) == 1
        assert PASSWORD not in capsys.readouterr().err


def test_shared_options_may_stand_after_the_verb(dead_port, capsys):
    given = ["--timeout", "1", "-b", f"127.0.0.1:{dead_port}"]
    assert main(["topics", "list", *given]) == 1
    assert f"127.0.0.1:{dead_port}" in one_line(capsys)
    assert main(["lag", "g", *given, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(["lag", "g", "--timeout", "-3"]) == 2
    assert "above 0" in one_line(capsys)


def test_an_option_after_the_verb_takes_precedence(dead_port, capsys):
    with FakeCluster() as fake:
        fake.create_topic("t")
        given = ["-b", f"127.0.0.1:{dead_port}"]
        assert main([*given, "topics", "list", "--json", "-b", fake.bootstrap_servers]) == 0
    assert [row["topic"] for row in json.loads(capsys.readouterr().out)] == ["t"]


def test_a_misspelt_verb_and_a_misspelt_setting(capsys):
    assert main(["topic", "list"]) == 2
    assert "Did you mean 'topics'?" in one_line(capsys)
    assert main(["-b", "h:1", "-X", "ssl.keystore.locaton=x", "topics", "list"]) == 2
    assert "ssl.keystore.location" in one_line(capsys)


def test_a_bug_is_one_line_with_its_type(monkeypatch, capsys):
    monkeypatch.setattr(app, "_dispatch", lambda *_: 1 / 0)
    assert main([]) == 1
    assert "ZeroDivisionError: division by zero (--debug shows where)" in one_line(capsys)


def test_ctrl_c_ends_quietly(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "_dispatch", interrupted)
    assert main([]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_ctrl_c_while_it_waits_in_a_process():
    # Not `python -m`: after an interrupt in a text that `exec` runs (a dataclass is being created),
    # Python ends itself by SIGINT, whatever the exit code. Shells show 130 for both.
    command = str(Path(sys.executable).with_name("sparkkafka"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        servers = f"127.0.0.1:{server.getsockname()[1]}"
        with subprocess.Popen(
            [command, "-b", servers, "topics", "list"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)  # the request; now it waits
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly():
    """The reader closes the pipe before anything is written."""
    with FakeCluster() as fake:
        fake.create_topic("t")
        read_end, write_end = os.pipe()
        command = [sys.executable, "-m", "sparkkafka", "-b", fake.bootstrap_servers]
        with subprocess.Popen(
            [*command, "topics", "list"], stdout=write_end, stderr=subprocess.PIPE
        ) as process:
            os.close(write_end)
            os.close(read_end)
            _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.slow
def test_a_full_disk_is_one_line():
    with FakeCluster() as fake, Path("/dev/full").open("w") as full:
        fake.create_topic("t")
        command = [sys.executable, "-m", "sparkkafka", "-b", fake.bootstrap_servers]
        run = subprocess.run(
            [*command, "topics", "list"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert run.returncode == 1
    (line,) = run.stderr.decode().splitlines()
    assert "No space left on device" in line


def test_destructive_verbs_ask_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", Terminal("n\ny\n"))
    with FakeCluster() as fake:
        fake.create_topic("t")
        given = ["-b", fake.bootstrap_servers, "topics", "delete", "t"]
        assert main(given) == 1
        out, err = capsys.readouterr()
        assert out.strip() == ""
        assert "Delete 1 topic (t) for ever?" in err
        assert "nothing was done" in err
        assert main(given) == 0
        assert "topic t was deleted" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def behind():
    """A fake cluster with a topic t of two records, and a group g that has read one of them."""
    with FakeCluster() as fake:
        fake.create_topic("t")
        settings = {"bootstrap.servers": fake.bootstrap_servers}
        with Producer(settings) as producer:
            producer.send("t", b"1")
            producer.send("t", b"2")
        with Admin(settings) as admin:
            admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 1}).all()
        yield fake


def test_the_deadline_restarts_after_a_response(monkeypatch, capsys):
    with FakeCluster() as fake:
        fake.create_topic("t")
        terminal = Terminal("y\n")
        monkeypatch.setattr("sys.stdin", terminal)

        def slowly(*_: object, **__: object) -> bool:
            time.sleep(1.2)
            return True

        monkeypatch.setattr("typer.confirm", slowly)
        given = ["-b", fake.bootstrap_servers, "--timeout", "1", "topics", "delete", "t"]
        assert main(given) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [("", 1, "nothing was done"), (KeyboardInterrupt, 130, "")],
)
def test_a_question_that_is_not_answered_with_yes(typed, code, message, monkeypatch, capsys):
    """Ctrl-C is distinguished from the end of the input."""
    with FakeCluster() as fake:
        fake.create_topic("t")
        terminal = Terminal("" if typed is KeyboardInterrupt else typed)
        if typed is KeyboardInterrupt:
            monkeypatch.setattr(terminal, "readline", lambda *_: _raise(KeyboardInterrupt()))
        monkeypatch.setattr("sys.stdin", terminal)
        assert main(["-b", fake.bootstrap_servers, "topics", "delete", "t"]) == code
        assert message in capsys.readouterr().err
        assert fake.log("t", 0) is not None


def _raise(error):
    raise error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "arguments", "code", "message"),
    [
        (
            ">&-",
            "--version",
            1,
            CLOSED,
        ),
        (
            "<&-",
            "write t",
            1,
            CLOSED,
        ),
        (">&-", "topics", 2, MISSING_COMMAND),
        ("2>&-", "topics", 2, ""),
    ],
)
def test_a_stream_that_the_shell_has_closed(closed, arguments, code, message):
    with FakeCluster() as fake:
        program = f'"{sys.executable}" -m sparkkafka -b {fake.bootstrap_servers}'
        command = ["sh", "-c", f"{program} {arguments} {closed}"]
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
    assert (run.returncode, run.stderr) == (code, message)


def test_an_interrupted_write_says_how_much_is_written(monkeypatch, capsys):
    def lines(self, progress):
        yield NumberedRows(pa.record_batch({"value": [b"1", b"2"]}), (1, 2))
        deadline = time.monotonic() + 60
        while fake.log("t", 0).end_offset < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("sparkkafka.cli.write.Input.batches", lines)
    with FakeCluster() as fake:
        fake.create_topic("t")
        assert main(["-b", fake.bootstrap_servers, "write", "t"]) == 130
    assert re.fullmatch(
        r"sparkkafka: (2 records were written to t|0 records .*, and of 2 it is not known)\n",
        capsys.readouterr().err,
    )


def test_watch_prints_a_line_of_json_for_each_lookup(behind, monkeypatch, capsys):
    steps = iter([None, None, None])

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        if next(steps, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr(tables, "pause", sleep)
    given = ["-b", behind.bootstrap_servers, "lag", "g", "--watch", "--json", "--interval", "0.5"]
    assert main(given) == 130
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["lag"] for line in lines] == [1, 1, 1, 1]
    assert all(line["behind_s"] >= 0 for line in lines)


def test_watch_redraws_a_terminal_and_shows_a_failed_lookup(behind, monkeypatch, capsys):
    steps = iter([lambda: None, lambda: behind.fault(api="OffsetFetch", action=DENIED)])

    def sleep(_seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(tables, "pause", sleep)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["-b", behind.bootstrap_servers, "lag", "g", "--watch", "--no-ages"]) == 130
    out = capsys.readouterr().out
    assert "█" * lag.BAR_CELLS in out
    assert "group g: 1 behind in 1 partition" in out
    assert "the last lookup failed: error 30 GROUP_AUTHORIZATION_FAILED" in out
    assert "q ends" in out


@pytest.mark.parametrize(
    ("offsets", "largest", "text"),
    [(0, 0, ""), (0, 9, ""), (1, 10**9, "▏"), (5, 10, "█" * 15), (10, 10, "█" * 30)],
)
def test_bars(offsets, largest, text):
    assert str(lag.bar(offsets, largest)) == text


@pytest.mark.parametrize(("width", "bars"), [(120, 30), (60, 21), (45, 0)])
def test_a_small_terminal_shows_the_largest_lags_and_folds_no_line(width, bars):
    from rich.console import Console

    rows = [
        PartitionLag(partition=TopicPartition("t", n), committed=0, earliest=0, latest=n)
        for n in range(50)
    ]
    console = Console(width=width, height=9)
    with console.capture() as captured:
        console.print(lag.picture("group g", rows, "", console))
    text = captured.get()
    assert len(text.splitlines()) <= console.height
    table, below = text.split("and ")
    left_out = 50 - (len(table.splitlines()) - 1)
    assert below.startswith(f"{left_out} partitions with less lag")
    assert [line.split()[1] for line in table.splitlines()[1:4]] == ["49", "48", "47"]
    assert table.splitlines()[1].count("█") == bars


def test_many_errors_are_some_lines(capsys, fake_cluster):
    missing = [f"t{number}" for number in range(500)]
    assert main(["-b", fake_cluster.bootstrap_servers, "topics", "describe", *missing]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "sparkkafka: and 490 errors more"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topics", "create", ""], "TOPIC is an empty name"),
        (["groups", "describe", "g", ""], "GROUP is an empty name"),
        (["copy", "", "b"], "SOURCE is an empty name"),
        (["users", "list", ""], "USER is an empty name"),
        (["read", "t", "--output", "x.csv", "-D", "|"], "remove --json (-J), -f, -D"),
        (["read", "t", "--output", "x.csv", "--format", "json"], "remove --json (-J)"),
        (["checkpoint", "show", "x", "--prefix", "p"], "give --kafka too"),
        (["checkpoint", "verify", "x", "--prefix", "p"], "give --kafka too"),
        (["checkpoint", "reset", "x", "--keep", "--offline", "--prefix", "p"], "remove --prefix"),
        (["checkpoint", "reset", "x", "--keep", "--topic", "t"], "remove --topic"),
        (["read", "t", "--format", "avro"], "for values with a schema give --value-format"),
        (["write", "t", "--format", "avro"], "for values with a schema --value-format"),
        (["lag", "g", "--interval", "5"], "--interval is for --watch"),
        (["lag", "--watch"], "`sparkkafka top` redraws all groups"),
        (["lag", "g", "--checkpoint", "c"], "exclude each other"),
        (["check", "--read", "t", "--trigger", "\N{ARABIC-INDIC DIGIT THREE}h"], "--trigger is a"),
        (["brokers", "describe", "x"], "ID is a whole number, got 'x'"),
        (["lag", "g", "--interval", "x"], "--interval is a number, got 'x'"),
        (["write", "t", "-X", "transactional.id=x"], "records go without a transaction"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_options_without_effect_are_wrong_use(capsys, arguments, message):
    assert main(["-b", "127.0.0.1:1", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb",
    [
        "topics describe ordres",
        "topics delete ordres --yes",
        "read ordres -e",
        "check --read ordres",
        "topics alter ordres -c retention.ms=1",
        "groups reset billing --topic ordres --to-latest",
        "copy ordres new --create",
        "bench --topic ordres",
    ],
)
def test_a_mistyped_topic_is_reported_with_the_nearest_one(
    verb: str, fake_cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_cluster.create_topic("orders")
    code = main(["-b", fake_cluster.bootstrap_servers, *verb.split()])
    out, err = capsys.readouterr()
    assert code == 1
    assert "check its name (the nearest is orders)" in out + err
    assert ("create it first" in out + err) == verb.startswith("read")


def test_a_topic_that_exists_is_reported_with_the_option_that_accepts_it(
    fake_cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_cluster.create_topic("orders")
    for option in ((), ("--dry-run",)):
        given = ["-b", fake_cluster.bootstrap_servers, "topics", "create", "orders", *option]
        assert main(given) == 1
        line = one_line(capsys)
        assert "TOPIC_ALREADY_EXISTS" in line and "--if-not-exists accepts that" in line


@pytest.mark.parametrize("verb", ["groups describe", "groups delete --yes", "lag"])
def test_a_mistyped_group_is_reported_with_the_nearest_one(behind, verb, capsys) -> None:
    with Admin({"bootstrap.servers": behind.bootstrap_servers}) as admin:
        admin.alter_consumer_group_offsets("billing", {TopicPartition("t", 0): 1}).all()
    assert main(["-b", behind.bootstrap_servers, *verb.split(), "biling"]) == 1
    line = one_line(capsys)
    assert "GROUP_ID_NOT_FOUND" in line
    assert "group 'biling'" in line
    assert "(the nearest is billing)" in line
    assert main(["-b", behind.bootstrap_servers, *verb.split(), "zzz"]) == 1
    assert "(groups list shows all)" in one_line(capsys)


def test_the_lag_of_a_share_group_is_reported_as_one(behind, capsys, monkeypatch) -> None:
    listed = [GroupListing("workers", "share", "Empty", "share")]
    monkeypatch.setattr(BoundedAdmin, "list_groups", lambda admin: listed)
    assert main(["-b", behind.bootstrap_servers, "lag", "workers"]) == 1
    hint = "(it is a share group; groups describe shows share groups)"
    assert f"there is no consumer group of this name {hint}" in one_line(capsys)


def test_a_reset_says_that_it_creates_a_group(behind, capsys) -> None:
    with Admin({"bootstrap.servers": behind.bootstrap_servers}) as admin:
        admin.alter_consumer_group_offsets("billing", {TopicPartition("t", 0): 1}).all()
    given = ["-b", behind.bootstrap_servers, "groups", "reset", "biling", "--topic", "t"]
    missing = "sparkkafka: group biling does not exist yet (the nearest is billing): "
    plan, done = f"{missing}--execute creates it\n", f"{missing}it is created now\n"
    for option, expected in (("--json", plan), ("--execute", done), ("--execute", "")):
        assert main([*given, "--to-earliest", option]) == 0
        assert capsys.readouterr().err == expected
