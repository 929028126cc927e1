"""read, write, copy and kcat's letters on a real broker, and kcat itself if it is installed."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkkafka.cli.app import main
from sparkkafka.cli.tables import bytes_text
from sparkkafka.client import Consumer, Producer, TopicPartition
from tests.cli.kcat_cases import OPTIONS, RECORDS, TIME_MS, VECTORS, fill, kcat
from tests.real.peers import wait_for_markers

pytestmark = pytest.mark.real


@pytest.fixture
def command(kafka_cluster, capsysbinary, monkeypatch):
    """`command("read", …)` reads `stdin`, must exit with `code`, and returns its output as
    bytes."""

    class Command:
        err = ""

        def __call__(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> bytes:
            capsysbinary.readouterr()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            found = main(["-b", kafka_cluster.bootstrap_servers, "--timeout", "60", *arguments])
            out, err = capsysbinary.readouterr()
            self.err = err.decode()
            assert found == code, f"exit code {found}: {self.err}"
            return out

    return Command()


@pytest.fixture(scope="module")
def odd(kafka_cluster):
    """A topic with RECORDS, which nobody changes."""
    topic = "odd-records"
    kafka_cluster.create_topic(topic)
    fill(kafka_cluster.bootstrap_servers, topic)
    return topic


def renamed(text: bytes, topic: str) -> bytes:
    """The topic's name in the vectors."""
    return text.replace(topic.encode(), b"odd")


# --- kcat's letters ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_kcat_s_letters_give_kcat_s_text(name, command, odd):
    out = command("-C", "-q", "-e", "-t", odd, *OPTIONS[name])
    assert renamed(out, odd) == (VECTORS / f"{name}.bin").read_bytes()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_itself_prints_the_same(command, odd, kafka_cluster):
    """What the files above do not have."""
    servers = kafka_cluster.bootstrap_servers
    for options in (
        ["-o", "-3", "-c", "2"],
        ["-o", f"s@{TIME_MS + 4}", "-o", f"e@{TIME_MS + 7}", "-J"],
        ["-p", "0", "-o", "5"],
        ["-D", "", "-K", ""],
    ):
        assert command("-C", "-q", "-e", "-t", odd, *options) == kcat(servers, odd, *options)
    for options in (
        ["-L", "-t", odd],
        ["-L", "-J", "-t", odd],
        ["-Q", "-t", f"{odd}:0:{TIME_MS + 3}"],
        ["-Q", "-t", f"{odd}:0:{TIME_MS * 2}"],
    ):
        run = subprocess.run(
            ["kcat", "-b", servers, *options], capture_output=True, check=True, timeout=60
        )
        assert command(*options) == run.stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_s_letters_write_what_kcat_writes(command, new_topic, kafka_cluster):
    servers = kafka_cluster.bootstrap_servers
    template = ["-f", r"%p %K:%k=%S:%s|%h\n"]
    lines = b"k1:v\nno key\n\n:v\nk2:\nk3:a:b"
    for options in (
        [],
        ["-K", ":", "-H", "a=1", "-H", "b"],
        ["-K:", "-Z", "-k", "fixed"],
        ["-D", ":", "-z", "gzip"],
        ["-K:", "-c", "2", "-p", "2"],
        ["-K:"],
    ):
        theirs, ours = new_topic(partitions=3), new_topic(partitions=3)
        subprocess.run(
            ["kcat", "-b", servers, "-P", "-t", theirs, *options], input=lines, check=True
        )
        command("-P", "-t", ours, *options, stdin=lines)

        def printed(topic, keyed="-K:" in options):
            rows = command("-C", "-q", "-e", "-t", topic, *template).splitlines()
            # Records without a key, or with an empty one, may go anywhere.
            return sorted(row if keyed and b":=" not in row else row[1:] for row in rows)

        assert printed(ours) == printed(theirs), options


def test_files_of_the_letter_p(command, new_topic, tmp_path):
    topic = new_topic()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() + b"\nsecond")
    (tmp_path / "empty").touch()  # skipped, as by kcat
    command("-P", "-t", topic, *(str(tmp_path / name) for name in ("a", "empty", "b")))
    command("-P", "-t", topic, "-l", str(tmp_path / "a"))
    assert command("-C", "-e", "-q", "-t", topic, "-D", ";") == b"a\nsecond;b\nsecond;a;second;"
    assert command("-P", "-T", "-t", topic, stdin=b"x\ny") == b"x\ny\n"


def test_the_end_is_reported_on_stderr_unless_q(command, odd):
    command("-C", "-t", odd, "-e")
    assert command.err == f"% Reached end of topic {odd} [0] at offset {len(RECORDS)}: exiting\n"
    command("-C", "-t", odd, "-e", "-q")
    assert command.err == ""


# --- read ----------------------------------------------------------------------------------------


def test_starts_and_ends(command, new_topic, kafka_cluster):
    topic = new_topic(partitions=2)
    with Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as producer:
        for number in range(20):
            producer.send(
                topic, f"{number}", partition=number % 2, timestamp_ms=TIME_MS + number * 1000
            )
    config = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": topic}
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 7})

    def numbers(*options: str) -> list[int]:
        return sorted(map(int, command("read", topic, *options).split()))

    everything = list(range(20))
    assert numbers("-e") == everything
    assert numbers("--until", "end", "--from", "earliest") == everything
    assert numbers("-e", "--from", "-2") == [16, 17, 18, 19]
    assert numbers("-e", "--from", "8") == [16, 17, 18, 19]
    assert numbers("-e", "--from", f"@{TIME_MS + 15_500}") == [16, 17, 18, 19]
    assert numbers("-e", "--from", "@2023-11-14T22:13:35.5") == [16, 17, 18, 19]
    assert numbers("-e", "--from", "@2023-11-14T23:13:35.5+01:00") == [16, 17, 18, 19]
    assert numbers("--until", "2") == [0, 1, 2, 3]
    assert numbers("--until", f"@{TIME_MS + 3000}") == [0, 1, 2]
    assert numbers("-e", "-p", "1") == list(range(1, 20, 2))
    assert numbers("-e", "-p", "0,1", "--from", "9") == [18, 19]
    assert len(numbers("-c", "7")) == 7
    assert numbers("-e", "--from", "latest") == []
    assert numbers("-e", "--group", topic) == sorted([14, 16, 18, *range(1, 20, 2)])
    assert numbers("--for", "1") == everything
    with Consumer(config) as consumer:  # nothing was committed
        committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert [row and row.offset for row in committed.values()] == [7, None]


def test_filters_of_keys_and_headers(command, odd):
    def offsets(*options: str) -> list[int]:
        return list(map(int, command("read", odd, "-e", "-f", "%o\\n", *options).split()))

    assert offsets("--key", "k") == [0, 3, 4]
    assert offsets("--key", "") == [2]
    assert offsets("--header", "a") == [9]
    assert offsets("--header", "a=2") == [9]
    assert offsets("--header", "a=3") == []
    assert offsets("--header", "h=v", "--header", "n") == [6]
    assert offsets("--key", "k", "-c", "2") == [0, 3]


def test_aborted_transactions_and_markers(command, new_topic, kafka_cluster):
    topic = new_topic()
    config = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "transactional.id": topic}
    with Producer(config) as producer:
        producer.init_transactions()
        for value in ("good", "bad", "better"):
            producer.begin_transaction()
            producer.send(topic, value)
            producer.flush()
            if value == "bad":
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    wait_for_markers(kafka_cluster.bootstrap_servers)
    assert command("read", topic, "-e") == b"good\nbetter\n"
    out = command("read", topic, "-e", "--isolation", "read_uncommitted")
    assert out == b"good\nbad\nbetter\n"
    # Markers and aborted records have offsets, but are not among the last N records.
    assert command("read", topic, "--from", "-1", "-e") == b"better\n"
    assert command("read", topic, "--from", "-2", "-e") == b"good\nbetter\n"
    assert command("read", topic, "--from", "-5", "-e") == b"good\nbetter\n"
    assert command("read", topic, "--from", "-0", "-e") == b""


def test_null_and_hexadecimal(command, odd):
    out = command("read", odd, "--until", "6", "-K", ":", "--null", "~").splitlines()
    assert out == [b"k:v", b"~:v", b":v", b"k:~", b"k:", b"~:~"]
    assert command("read", odd, "--from", "8", "--until", "9", "--format", "hex") == b"80616263\n"


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_a_file_has_all_columns_of_the_records(ending, command, odd, new_topic, tmp_path):
    path = tmp_path / f"records.{ending}"
    command("read", odd, "--output", str(path))
    assert command.err == (
        f"{len(RECORDS)} records written to {path} ({bytes_text(path.stat().st_size)})\n"
    )
    assert [row.name for row in tmp_path.iterdir()] == [path.name]
    copy = new_topic()
    command("write", copy, "--input", str(path))
    out = command("read", copy, "-e", "--json")
    assert renamed(out, copy) == (VECTORS / "json.bin").read_bytes()


def test_csv_is_text(command, odd, new_topic, tmp_path):
    path = tmp_path / "records.csv"
    command("read", odd, "--output", str(path), code=1)
    assert "offset 8: the key is not UTF-8" in command.err
    assert list(tmp_path.iterdir()) == []
    command("read", odd, "--until", "8", "--output", str(path))
    copy = new_topic()
    command("write", copy, "--input", str(path))
    lines = (VECTORS / "json.bin").read_bytes().splitlines()[:8]
    assert renamed(command("read", copy, "-e", "-J"), copy).splitlines() == lines


def test_hexadecimal_csv_is_read_back(command, new_topic, tmp_path):
    path, topic, copy = tmp_path / "records.csv", new_topic(), new_topic()
    command("write", topic, "-K", ":", stdin=b"\xff\xfe:\x80abc\n")
    command("read", topic, "--format", "hex", "--output", str(path))
    command("write", copy, "--input", str(path), "--format", "hex")
    assert command("read", copy, "-e", "-K", ":") == b"\xff\xfe:\x80abc\n"
    command("write", copy, "--format", "hex", "-K", " ", stdin=b"ff00 0a\nzz 00\n", code=1)
    assert "line 2: the key 'zz' is not pairs of hexadecimal digits" in command.err
    assert "The 1 record before it is written" in command.err
    assert command("read", copy, "--from", "1", "-e", "-K", ":") == b"\xff\x00:\n\n"


def test_an_old_file_stays_until_the_new_one_is_complete(command, odd, tmp_path):
    path = tmp_path / "records.csv"
    path.write_text("old")
    command("read", odd, "--output", str(path), code=1)
    assert path.read_text() == "old"


def test_a_table_without_values_becomes_json(command, new_topic, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"key": ["a", "b"], "id": [1, 2], "name": ["x", None]}), path)
    topic = new_topic()
    command("write", topic, "--input", str(path), code=2)
    assert "--value-format json" in command.err
    plain = ["--value-format", "json", "--option", "valueFraming=none"]
    command("write", topic, "--input", str(path), *plain)
    out = command("read", topic, "-e", "-K", ":").splitlines()
    assert out == [b'a:{"id":1,"name":"x"}', b'b:{"id":2}']
    out = command("read", topic, "-e", "-J", "--value-format", "json").splitlines()
    assert [json.loads(line)["payload"] for line in out] == [{"id": 1, "name": "x"}, {"id": 2}]


def test_a_full_disk_is_one_line(command, odd, tmp_path, monkeypatch):
    from sparkkafka.cli import files

    class Full(io.BytesIO):
        def write(self, _data):
            raise OSError(28, "No space left on device")

    real = files.Path.open
    monkeypatch.setattr(
        files.Path,
        "open",
        lambda path, mode="r", *rest: Full() if path.suffix == ".part" else real(path, mode, *rest),
    )
    command("read", odd, "--output", str(tmp_path / "a.parquet"), code=1)
    (line,) = command.err.splitlines()
    assert "a.parquet: No space left on device" in line


# --- write and copy ------------------------------------------------------------------------------


def test_json_lines_make_the_same_records(command, odd, new_topic):
    text = command("read", odd, "-e", "--json")
    copy = new_topic()
    command("write", copy, "--json", stdin=text)
    assert renamed(command("read", copy, "-e", "-J"), copy) == renamed(text, odd)


def test_lines_of_write(command, new_topic):
    topic = new_topic(partitions=2)
    command("write", topic, "-p", "1", "-K", "=", "-H", "h=v", "-z", "zstd", stdin=b"a=1\n\nb=")
    out = command("read", topic, "-e", "-f", r"%p %K:%k=%S:%s|%h\n").splitlines()
    assert out == [b"1 1:a=1:1|h=v", b"1 -1:=0:|h=v", b"1 1:b=0:|h=v"]


def test_records_that_are_not_written_are_reported(command, new_topic):
    topic = new_topic(configs={"max.message.bytes": "1000"})
    command("write", topic, stdin=b"x" * 5000, code=1)
    (line,) = command.err.splitlines()
    assert f"1 of 1 records were not written to topic {topic}" in line


def test_copy_keeps_all_fields(command, odd, new_topic):
    copy = new_topic(partitions=2)
    command("copy", odd, copy, "--rate-limit", "500")
    assert f"{len(RECORDS)} records copied" in command.err
    assert renamed(command("read", copy, "-e", "-J"), copy) == (VECTORS / "json.bin").read_bytes()
    command("copy", odd, copy, "--from", "-1", "--by-key", "--rate-limit", "1MB", "-c", "1")
    assert len(command("read", copy, "-e", "-J").splitlines()) == len(RECORDS) + 1


def test_a_killed_copy_that_is_started_again_loses_nothing(command, new_topic, kafka_cluster):
    """It stores no position: what the first run copied is there twice, before the rest."""
    source, target = new_topic(), new_topic()
    rows = [b"%04d" % n for n in range(2000)]
    command("write", source, stdin=b"\n".join(rows) + b"\n")
    servers = kafka_cluster.bootstrap_servers
    copy = [sys.executable, "-m", "sparkkafka", "-b", servers, "copy", source, target]
    with (
        subprocess.Popen([*copy, "--rate-limit", "100"], stderr=subprocess.DEVNULL) as process,
        Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest"}) as consumer,
    ):
        try:
            consumer.assign([TopicPartition(target, 0)])
            assert consumer.poll(60), "nothing was copied"
        finally:
            process.kill()
    # A request of the first run may still be in flight, before the second run's records.
    command("copy", source, target)
    found = command("read", target, "-e").splitlines()
    first = len(found) - len(rows)
    assert 0 < first < len(rows)
    assert found == rows[:first] + rows


def test_copy_needs_as_many_partitions(command, new_topic):
    source, target = new_topic(partitions=3), new_topic(partitions=2)
    command("copy", source, target, code=2)
    assert f"topic {target} has 2 partitions" in command.err
    command("copy", source, source, code=2)
    assert "copied into itself" in command.err


# --- bench ---------------------------------------------------------------------------------------


def test_bench_measures_and_removes_its_topic(command, kafka_cluster):
    out = command("bench", "--records", "3000", "--size", "10", "--partitions", "2", "--json")
    found = json.loads(out)
    assert [found[name]["records"] for name in ("write", "read")] == [3000, 3000]
    assert all(value > 0 for row in found.values() for value in row.values())
    with Consumer({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as consumer:
        assert not [name for name in consumer.list_topics() if "bench" in name]


def test_bench_of_a_given_topic_keeps_it(command, new_topic):
    topic = new_topic()
    text = command("bench", "--topic", topic, "--records", "10", "--size", "5").decode()
    assert text.splitlines()[0].split() == ["MEASURE", "WRITE", "READ"]
    assert "records/s" in text
    assert max(map(len, text.splitlines())) < 60  # no terminal folds it
    assert len(command("read", topic, "-e", "-D", "")) == 50
