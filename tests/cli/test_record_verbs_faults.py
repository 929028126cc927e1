"""read, write, copy, bench and kcat's letters with errors: one line, the right exit code."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkkafka.cli import files
from sparkkafka.cli.app import main
from sparkkafka.client import Admin, Deadline, NewTopic, Producer, TopicPartition
from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.faults import Drop

AVRO = ["--value-format", "avro"]
REGISTRY = ["--schema-registry", "http://127.0.0.1:9"]
VERBS = [
    ["read", "t"],
    ["write", "t"],
    ["copy", "t", "u"],
    ["bench"],
    ["bench", "--topic", "t"],
    ["-C", "-t", "t"],
    ["-P", "-t", "t"],
    ["-L"],
    ["-Q", "-t", "t:0:1"],
]


@pytest.fixture
def dead_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))


def one_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("sparkkafka: ")
    return line


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_server_can_be_reached(verb, dead_port, capsys, lines):
    """The error does not wait for --timeout, which no test outlives."""
    servers = f"127.0.0.1:{dead_port},nobody.invalid:9092"
    assert main(["-b", servers, "--timeout", "86400", *verb]) == 1
    line = one_line(capsys)
    assert f"127.0.0.1:{dead_port} refused the connection" in line
    assert "nobody.invalid:9092: the host name cannot be resolved" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["read", "t", "--from", "soon"], "--from is earliest"),
        (["read", "t", "--from", "@soon"], "--from is ms since 1970 (1767225600000), ISO 8601"),
        (["read", "t", "--from", "committed"], "--group"),
        (["read", "t", "--group", "g", "--from", "latest"], "--group begins at the group's"),
        (["read", "t", "-e", "--until", "5"], "exclude each other"),
        (["read", "t", "-f", "%z"], "there is no '%z'"),
        (
            ["read", "t", "--isolation", "committed"],
            "--isolation is read_committed or read_uncommitted, got 'committed'",
        ),
        (["read", "t", "-p", "x"], "--partitions: partitions are written 0, or"),
        (["read", "t", "--output", "a.txt"], ".parquet"),
        (["read", "t", "--format", "xml"], "--format"),
        (["read", "t", "-D", r"\q"], r"\q"),
        (
            ["read", "t", "--value-format", "avro"],
            "--value-format avro needs a schema: set --schema-registry to the Schema Registry, or "
            "--value-schema to the schema's text or a file's path",
        ),
        (["read", "t", "--value-format", "avo"], ": --value-format must be one of binary"),
        (["read", "t", "--option", "valueSubject"], "NAME=VALUE"),
        (["read", "t", "--option", "onbadrecord=null"], "--on-bad is"),
        (["read", "t", "--option", "valueformat=avro"], "--value-format is"),
        (["read", "t", "--option", "deadLetter.topic=d"], "--option deadLetter.topic is for Spark"),
        (["read", "t", "--option", "rescuedColumn=true"], "--option rescuedColumn is for Spark"),
        (["read", "t", "--option", "startingOffsets=latest"], "no such option of formats"),
        (["read", "t", "--option", "valueSubjct=s"], "did you mean 'valueSubject'"),
        (["read", "t", "--option", "use.latest.version=true"], "is for `write`"),
        (["read", "t", "--value-format", "json", "--value-schema", "infer"], "is for Spark"),
        (["read", "t", "--on-bad", "skip"], "is for --value-format, --key-format and --envelope"),
        (["read", "t", "--schema-registry", "http://a"], "--schema-registry has no effect"),
        (["read", "t", "--schema-registry", "", *AVRO], "--no-schema-registry"),
        (["read", "t", "--schema-registry", "x", "--no-schema-registry"], "exclude each other"),
        (["write", "t", "--option", "onBadRecord=fail"], "--on-bad is"),
        (
            ["write", "t", "--value-format", "json"],
            "set --schema-registry, or --option valueFraming=none to write bare payloads",
        ),
        (["write", "t", "--keep-partitions"], "name no partition"),
        (["write", "t", "-z", "rar"], "rar"),
        (["write", "t", "--partitioner", "best"], "best"),
        (["write", "t", "-J", "-K", ":"], "remove -D, -K and -Z"),
        (["read", "t", "-J", "-f", "%k"], "so do -f and -J"),
        (["read", "t", "--for", "0"], "--for is seconds above 0"),
        (["read", "t", "--for", "nan"], "--for is seconds above 0"),
        (["read", "t", "-c", "9" * 20], "--count is a whole number, "),
        (["write", "t", "-p", "3000000000"], "--partition is a whole number, "),
        (["bench", "--partitions", "99999999999"], "--partitions is a whole number, "),
        (["bench", "--replication", "70000"], "--replication is a whole number, "),
        (["topics", "create", "t", "-p", "3000000000"], "--partitions is a whole number, "),
        (["topics", "create", "t", "-r", "70000"], "--replication-factor is a whole number, "),
        (
            ["topics", "add-partitions", "t", "99999999999"],
            "TOTAL is a whole number, 2,147,483,647 or less",
        ),
        (["-F", "~nobody-of-this-name/x", "topics", "list"], "unknown home folder"),
        (["read", "t", "--output", "FOLDER.parquet"], "is there, and is not a plain file"),
        (["read", "t", "-J", "--format", "hex"], "(-J) and --format hex exclude each other"),
        (["read", "t", "--format", "json", "-K", ":"], "-D and -K are of text and hex"),
        (["read", "t", "-f", "%k", "-D", ""], "-D and -K are of text and hex"),
        (["read", "t", "-J", "--null", "-"], "--null is not for JSON"),
        (["copy", "t", "u", "--rate-limit", "fast"], "--rate-limit"),
        (["copy", "t", "u", "--follow", "--until", "5"], "exclude each other"),
        (["bench", "--topic", "t", "--partitions", "2"], "remove --topic"),
        (["-C", "-P", "-t", "t"], "-C and -P exclude each other"),
        (["-C", "-t", "t", "-G", "g"], ": -G is not here: `read TOPIC --group GROUP`"),
        (["-t", "t"], "-t needs a mode beside it: -C reads, -P writes"),
        (["-C", "-t", "t", "-d", "all"], "--debug"),
        (["-C", "-t", "t", "-Y"], "-C: option -Y not recognized; see kcat-compatible options"),
        (["-t", "t", "-Ce", "--json"], "-C: option --json not recognized; -C and -L print JSON"),
        (["-C", "-t"], "-C: option -t requires argument"),
        (["topics", "list", "--hel"], "No such option: --hel (see"),
        (["read", "t", "--from-beginning"], "(Possible options: --from)"),
        (["read", "--topic", "t"], "(Possible options: TOPIC)"),
        (["topics", "describe", "--topic", "t"], "No such option: --topic (see"),
        (["-C", "-t", "t", "-H", "a=b"], "-C has no -H here"),
        (["-C"], "-t TOPIC"),
        (["-C", "-t", "t", "-o", "x"], "-o is earliest"),
        (["-C", "-t", "t", "-c", "0"], "-c is a number above 0"),
        (["-C", "-t", "t", "-s", "hH"], "-s is avro"),
        (["-C", "-t", "t", "-r", "http://localhost:1"], "-r has no effect"),
        (["-C", "-t", "t", "-X", "list"], "-X list"),
        (["-Q", "-t", "t:1"], "TOPIC:PARTITION:MS"),
        (["-G", "g", "t"], "-G is not here"),
        (["-P", "-t", "t", "-l"], "-l needs one file"),
    ],
)
def test_wrong_use_is_named(arguments, message, dead_port, capsys, lines, tmp_path, monkeypatch):
    """These errors come before any request: there is no broker."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER.parquet").mkdir()
    assert main(["-b", f"127.0.0.1:{dead_port}", "--timeout", "1", *arguments]) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["write", "t", *AVRO, "--option", "auto.register.schemas=true", *REGISTRY],
            "--option auto.register.schemas=true needs --value-schema",
        ),
        (["write", "t", "-D", ""], "--delimiter must not be empty"),
    ],
)
def test_wrong_use_that_the_input_shows(arguments, message, fake_cluster, capsys, lines):
    assert main(["-b", fake_cluster.bootstrap_servers, *arguments]) == 2
    assert message in one_line(capsys)


def test_a_dead_target_is_one_line(fake_cluster, dead_port, capsys):
    fake_cluster.create_topic("t")
    servers = fake_cluster.bootstrap_servers
    target = ["--to-bootstrap-server", f"127.0.0.1:{dead_port}"]
    assert main(["-b", servers, "copy", "t", "t", *target]) == 1
    assert f"127.0.0.1:{dead_port} refused the connection" in one_line(capsys)


def test_a_line_that_is_no_json_is_named_by_its_number(fake_cluster, capsys, monkeypatch):
    fake_cluster.create_topic("t")
    text = b'{"payload": "a"}\n{"payload": "b"}\n{"payload": 1}\nnothing\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["-b", fake_cluster.bootstrap_servers, "write", "t", "--json"]) == 1
    assert "stdin line 4: it is not a record in JSON: Expecting value" in one_line(capsys)


BIG = "x" * (1 << 20)


def test_records_before_an_invalid_one_are_written(fake_cluster, capsys, monkeypatch, tmp_path):
    fake_cluster.create_topic("t")
    servers = ["-b", fake_cluster.bootstrap_servers]
    text = f"one\n{BIG}\n{BIG}y\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main([*servers, "write", "t"]) == 1
    line = one_line(capsys)
    assert line.startswith("sparkkafka: stdin line 2: topic t: a record takes 1048")
    assert line.endswith("The 1 record before it is written to topic t: continue from stdin line 2")
    path = tmp_path / "rows.parquet"
    rows = {"value": ["two", "three", "four", BIG], "partition": [0, 0, -1, 0]}
    pq.write_table(pa.table(rows), path)
    given = ["write", "t", "--input", str(path), "--keep-partitions"]
    assert main([*servers, *given]) == 1
    line = one_line(capsys)
    assert f"{path} row 3 has partition -1: partitions are counted from 0. The 2 records" in line
    path = tmp_path / "rows.csv"
    path.write_text('value,headers\nfour,\nfive,"[""a"", ""b""]"\nsix,a\nseven,\n')
    assert main([*servers, "write", "t", "--input", str(path)]) == 1
    assert f"{path} row 3: headers are written like" in one_line(capsys)
    assert main([*servers, "read", "t", "-e"]) == 0
    assert capsys.readouterr().out.split() == ["one", "two", "three", "four", "five"]


def test_ends_are_printed_unless_count_ends_the_read(fake_cluster, capsys):
    fake_cluster.create_topic("t", partitions=1)
    servers = ["-b", fake_cluster.bootstrap_servers]
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send_many("t", ["a", "b", "c"])
    for count, err in [
        ("1", ""),
        ("3", ""),
        ("4", "% Reached end of topic t [0] at offset 3: exiting\n"),
    ]:
        assert main([*servers, "-C", "-t", "t", "-e", "-c", count]) == 0
        assert capsys.readouterr().err == err


def test_a_missing_file_is_named(fake_cluster, capsys, tmp_path):
    path = tmp_path / "none.parquet"
    code = main(["-b", fake_cluster.bootstrap_servers, "write", "t", "--input", str(path)])
    assert code == 1
    assert "none.parquet: No such file or directory" in one_line(capsys)
    path.write_bytes(b"no parquet at all")
    code = main(["-b", fake_cluster.bootstrap_servers, "write", "t", "--input", str(path)])
    assert code == 2
    assert "is not a file of Parquet" in one_line(capsys)


def test_a_full_disk_is_one_line(fake_cluster, capsys, tmp_path, monkeypatch):
    fake_cluster.create_topic("t")

    class Full(io.BytesIO):
        def write(self, _data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Path, "open", lambda *_: Full())
    path = tmp_path / "a.parquet"
    code = main(["-b", fake_cluster.bootstrap_servers, "read", "t", "--output", str(path)])
    assert code == 1
    assert "a.parquet: No space left on device" in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 2000])  # 2 MB do not fit into a pipe
def test_a_closed_pipe_ends_a_read_quietly(fake_cluster, count):
    fake_cluster.create_topic("t")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send_many("t", [b"x" * 1000] * count)
    command = [sys.executable, "-m", "sparkkafka", "-b", fake_cluster.bootstrap_servers]
    with subprocess.Popen(
        [*command, "read", "t"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.slow
def test_a_full_stdout_is_one_line(fake_cluster):
    fake_cluster.create_topic("t")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("t", "x")
    device = Path("/dev/full")
    if not device.exists():
        pytest.skip(f"no {device}")
    command = [sys.executable, "-m", "sparkkafka", "-b", fake_cluster.bootstrap_servers]
    with device.open("wb") as full:
        run = subprocess.run([*command, "read", "t", "-e"], stdout=full, stderr=subprocess.PIPE)
    assert run.returncode == 1
    (line,) = run.stderr.decode().splitlines()
    assert "No space left on device" in line


def test_an_unreachable_broker_is_a_timeout(fake_cluster, capsys):
    fake_cluster.create_topic("t")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("t", "x")
    fake_cluster.fault(Drop.BEFORE, api="Fetch", times=None)
    code = main(["-b", fake_cluster.bootstrap_servers, "--timeout", "1", "read", "t", "-e"])
    assert code == 1
    assert "no records of t-0 arrived for 1 s, at offset 0 of 1" in one_line(capsys)


@pytest.mark.slow
def test_a_read_imports_nothing_that_it_does_not_need(fake_cluster):
    """Each of these modules takes a large part of the half second to the first record."""
    fake_cluster.create_topic("t")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("t", "x", headers={"h": "v"})
    code = (
        "import sys\n"
        "from sparkkafka.cli.app import main\n"
        "read = [*sys.argv[1:], 'read', 't', '-c', '1']\n"
        "codes = [main([*read, *more]) for more in ([], ['-J'], ['-f', '%h %K %R'])]\n"
        "print('modules:', *sys.modules)\n"
        "sys.exit(any(codes))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "-b", fake_cluster.bootstrap_servers],
        capture_output=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    imported = set(run.stdout.rpartition(b"modules:")[2].decode().split())
    slow = ("pandas", "pyspark", "rich", "pyarrow.parquet", "sparkkafka.schemas.column")
    assert [name for name in slow if name in imported] == []


# Python writes "Exception ignored in …" if a signal arrives while a callback of its own runs.
@pytest.mark.flaky(reruns=1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_no_file_and_no_output(number, code, fake_cluster, tmp_path):
    fake_cluster.create_topic("t")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("t", "x")
    path = tmp_path / "a.parquet"
    # With nohup the tests ignore SIGHUP, and child processes inherit that.
    heard = (
        "import os, signal, sys; signal.signal(int(sys.argv[1]), signal.SIG_DFL); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    )
    command = [sys.executable, "-c", heard, str(int(number)), "-m", "sparkkafka"]
    with subprocess.Popen(
        [
            *(*command, "-b", fake_cluster.bootstrap_servers),
            *("read", "t", "--output", str(path), "--for", "60"),
        ],
        stderr=subprocess.PIPE,
    ) as process:
        limit = Deadline(60_000)
        while not list(tmp_path.iterdir()) and not limit.expired:
            limit.pause(20)
        process.send_signal(number)
        assert process.stderr.read() == b""
        assert process.wait(60) == code
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_and_its_file_is_written(fake_cluster, tmp_path):
    fake_cluster.create_topic("t")
    path, link = tmp_path / "real.csv", tmp_path / "link.csv"
    link.symlink_to(path)
    command = ["-b", fake_cluster.bootstrap_servers, "read", "t", "--output", str(link)]
    assert main(command) == 0
    assert link.is_symlink()
    assert path.read_text().startswith('"topic"')
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_csv_refuses_a_header_that_is_no_text(fake_cluster, tmp_path, capsys):
    fake_cluster.create_topic("t")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("t", "x", headers=[("h", b"\xff")])
    path = tmp_path / "a.csv"
    assert main(["-b", fake_cluster.bootstrap_servers, "read", "t", "--output", str(path)]) == 1
    error = one_line(capsys)
    assert "partition 0 offset 0: the value of header 'h' is not UTF-8" in error
    assert error.rstrip().endswith("which CSV needs: write .parquet")
    assert not path.exists()


def test_a_signal_that_is_swallowed_still_ends_the_process():
    """Like a callback of an import, which swallows exceptions."""
    code = (
        "import os, signal, sys, time\n"
        "from sparkkafka.cli import app\n"
        "app.CLEANUP_S = 0.3\n"
        "signal.signal(signal.SIGTERM, app._on_signal)\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(1)\n"
        "except KeyboardInterrupt:\n"
        "    print('swallowed', flush=True)\n"
        "time.sleep(60)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50)
    assert (run.returncode, run.stdout) == (-signal.SIGTERM, b"swallowed\n")


def test_the_rate_limit_does_not_delay_the_end(fake_cluster, capsys):
    for name in ("t", "u"):
        fake_cluster.create_topic(name)
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("t", "x")
    command = ["-b", fake_cluster.bootstrap_servers, "copy", "t", "u", "--rate-limit", "0.0001"]
    assert main(command) == 0
    assert capsys.readouterr().err == "1 record copied from t to u\n"


def test_a_partition_without_an_offset_of_the_group_is_a_warning(fake_cluster, capsys):
    fake_cluster.create_topic("t", partitions=2)
    servers = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    with Producer(servers) as producer:
        producer.send("t", "x", partition=0)
    command = ["-b", fake_cluster.bootstrap_servers, "read", "t", "-e", "--group", "g"]
    assert main(command) == 2
    assert "the group has no offset in topic t: is its name right" in one_line(capsys)
    with Admin(servers) as admin:
        admin.alter_consumer_group_offsets("g", {TopicPartition("t", 1): 0})
    assert main(command) == 0
    out, error = capsys.readouterr()
    assert out == "x\n"
    assert "the group has no offset in t-0: reading begins at the earliest there" in error


def test_bench_ends_with_its_timeout(fake_cluster, capsys):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce", times=None)
    command = ["-b", fake_cluster.bootstrap_servers, "--timeout", "1", "bench", "--topic", "t"]
    assert main(command) == 1
    assert "NOT_LEADER_OR_FOLLOWER" in one_line(capsys)


def test_offsets_of_tiered_storage(fake_cluster_factory, capsys):
    """The topic has none: the first record on the leader's disk is the earliest."""
    fake = fake_cluster_factory(1, kafka_version="4.2")
    fake.create_topic("t")
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for number in range(4):
            producer.send("t", b"%d" % number).result()
    fake.advance_log_start("t", 0, 2)
    read = ["-b", fake.bootstrap_servers, "read", "t", "-e", "--from"]
    assert main([*read, "earliest-local"]) == 0
    assert capsys.readouterr().out == "2\n3\n"
    for name in ("latest-tiered", "earliest-pending-upload"):
        assert main([*read, name]) == 1
        assert "there is no such offset: the topic has no tiered storage" in one_line(capsys)


def test_a_broker_without_tiered_storage(fake_cluster_factory, capsys):
    fake = fake_cluster_factory(1, kafka_version="3.0")
    fake.create_topic("t")
    assert main(["-b", fake.bootstrap_servers, "read", "t", "-e", "--from", "earliest-local"]) == 1
    assert "this kind of offset needs Kafka 3.6" in one_line(capsys)


def test_records_before_one_whose_time_arrow_lacks_are_shown(fake_cluster, capfdbinary):
    with Admin({"bootstrap.servers": fake_cluster.bootstrap_servers}) as admin:
        limit = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        admin.create_topics([NewTopic("t", 1, configs=limit)]).all()
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        for value, time_ms in (("one", 1), ("two", 2), ("late", 2**62), ("last", 3)):
            producer.send("t", value, timestamp_ms=time_ms)
    assert main(["-b", fake_cluster.bootstrap_servers, "read", "t", "-e"]) == 1
    out, err = capfdbinary.readouterr()
    assert out == b"one\ntwo\n"
    assert b"topic t partition 0 offset 2: the timestamp 4611686018427387904 ms" in err
    assert err.endswith(b"To continue after it give --partitions and --from\n")
    assert main(["-b", fake_cluster.bootstrap_servers, "read", "t", "-e", "--from", "3"]) == 0
    assert capfdbinary.readouterr().out == b"last\n"


def test_a_header_may_have_an_empty_name(fake_cluster, capfdbinary, monkeypatch):
    fake_cluster.create_topic("t")
    verb = ["-b", fake_cluster.bootstrap_servers]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"v\n")))
    assert main([*verb, "write", "t", "-H", "=x"]) == 0
    assert main([*verb, "read", "t", "-e", "-f", "%s %h\\n", "--header", "=x"]) == 0
    assert capfdbinary.readouterr().out == b"v =x\n"


def test_a_time_without_zone_in_csv_is_named(fake_cluster, capsys, tmp_path):
    fake_cluster.create_topic("t")
    path = tmp_path / "rows.csv"
    path.write_text("value,timestamp\na,2026-01-01 00:00:00\n")
    assert main(["-b", fake_cluster.bootstrap_servers, "write", "t", "--input", str(path)]) == 2
    assert (
        f"{path}: the time '2026-01-01 00:00:00' in column timestamp has no zone: add Z"
        in one_line(capsys)
    )
