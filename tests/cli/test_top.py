"""`top`: what its snapshots say of a cluster, one screen of them, and its keys."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from itertools import pairwise

import pytest
from rich.console import Console

from sparkkafka.cli import snapshots, tables, top
from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.snapshots import HISTORY_S, MAX_POINTS, Collector, History, Snapshot
from sparkkafka.client import Admin, TopicPartition
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import ErrorCode, KafkaConnectionError
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.cli.run import produce


@pytest.fixture
def fake():
    with FakeCluster(brokers=3, racks=["a", "b", "c"]) as fake:
        fake.create_topic("orders", partitions=4)
        fake.create_topic("empty", partitions=2)
        yield fake


@pytest.fixture
def collector(fake):
    admin = BoundedAdmin({"bootstrap.servers": fake.bootstrap_servers}, Deadline(30_000))
    with Collector(admin) as collector:
        yield collector


def row_of(rows, name):
    """The row of a broker, topic or group: its first field is its name."""
    (row,) = (row for row in rows if next(iter(vars(row).values())) == name)
    return row


def commit(admin, group, offsets):
    admin.alter_consumer_group_offsets(
        group, {TopicPartition("orders", number): offset for number, offset in offsets.items()}
    ).all()


# --- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_has_rates_sizes_skew_and_lag(fake, admin, collector, monkeypatch):
    produce(fake, "orders", {0: 30, 1: 10})
    commit(admin, "billing", {0: 5, 1: 10})
    first = collector.collect()
    assert row_of(first.topics, "orders").records_per_s is None
    assert row_of(first.groups, "billing").lag == 25
    produce(fake, "orders", {0: 70})
    second = collector.collect()
    orders, empty = row_of(second.topics, "orders"), row_of(second.topics, "empty")
    seconds = collector._samples[1].taken_at_s - collector._samples[0].taken_at_s
    assert orders.records_per_s == pytest.approx(70 / seconds)
    assert orders.bytes_per_s > 0
    assert orders.size_bytes == sum(second.sizes.values())
    assert orders.skew == pytest.approx(max(second.sizes.values()) * 4 / orders.size_bytes)
    assert (empty.records_per_s, empty.size_bytes, empty.skew) == (0, 0, None)
    billing = row_of(second.groups, "billing")
    assert (billing.lag, billing.lag_by_topic) == (95, {"orders": 95})
    assert (billing.state, billing.members) == ("Empty", 0)
    assert billing.lag_per_s == pytest.approx(70 / seconds)
    assert billing.catch_up_s is None
    assert second.problems == []
    assert second.totals["lag"] == 95


def test_a_lag_that_shrinks_has_a_time_to_catch_up_and_one_that_only_grows_is_growing(
    fake, admin, collector
):
    produce(fake, "orders", {0: 100})
    for offset in (0, 20, 40):
        commit(admin, "fast", {0: offset})
        commit(admin, "idle", {0: 100})
        commit(admin, "stuck", {0: 0})
        snapshot = collector.collect()
        produce(fake, "orders", {0: 10})
    fast, idle, stuck = (row_of(snapshot.groups, name) for name in ("fast", "idle", "stuck"))
    assert (fast.lag, fast.is_growing) == (80, False)
    assert fast.catch_up_s == pytest.approx(80 / -fast.lag_per_s)
    assert (idle.lag, idle.is_growing) == (20, True)
    assert (stuck.lag, stuck.is_growing, stuck.catch_up_s) == (120, True, None)


@pytest.mark.parametrize(("rate_s", "kept"), [(0.0, 3), (3600.0, 6)])
def test_a_rate_is_that_of_a_time_and_of_two_snapshots_at_least(
    fake, collector, monkeypatch, rate_s, kept
):
    monkeypatch.setattr("sparkkafka.cli.snapshots.RATE_S", rate_s)
    for _ in range(6):
        collector.collect()
    assert len(collector._samples) == kept


@pytest.mark.parametrize("version", ["2.1", "4.0"])
def test_requests_do_not_multiply_with_topics_and_groups(version):
    with FakeCluster(brokers=3, kafka_version=version) as fake:
        settings = {"bootstrap.servers": fake.bootstrap_servers}
        with (
            Admin(settings) as admin,
            Collector(BoundedAdmin(settings, Deadline(30_000))) as collector,
        ):
            for number in range(30):
                fake.create_topic(f"t{number}", partitions=10)
                admin.alter_consumer_group_offsets(
                    f"g{number}", {TopicPartition(f"t{number}", 0): 0}
                ).all()
            collector.collect()
            fake.clear_requests()
            snapshot = collector.collect()
        assert len(snapshot.groups) == 30
        assert {row.lag for row in snapshot.groups} == {0}
        per_broker = ("ListOffsets", "DescribeLogDirs", "ListGroups")
        assert [len(fake.requests_of(api)) for api in per_broker] == [3, 3, 3]
        # Before Kafka 3.0 a request is about one group.
        assert len(fake.requests_of("OffsetFetch")) <= (30 if version == "2.1" else 3)


def test_a_broker_that_dies_is_offline_and_the_rest_is_shown(fake, admin, collector):
    produce(fake, "orders", {0: 10})
    collector.collect()
    fake.broker_down(2)
    snapshot = collector.collect()
    assert [row.state for row in snapshot.brokers] == ["online", "online", "offline"]
    assert row_of(snapshot.brokers, 2).out_of_sync == 6
    assert row_of(snapshot.topics, "orders").out_of_sync == 4
    assert top.problem_lines(snapshot)[0] == "broker 2: offline"
    fake.broker_up(2)
    assert {row.state for row in collector.collect().brokers} == {"online"}


def test_a_broker_that_metadata_still_names_does_not_answer(fake, collector, monkeypatch, caplog):
    monkeypatch.setattr("sparkkafka.cli.snapshots.STEP_S", 0.2)
    collector.collect()
    fake.broker_down(2, move_leaders=False)
    snapshot = collector.collect()
    assert caplog.records == []  # on a terminal the command prints them
    assert row_of(snapshot.brokers, 2).state == "no response"
    assert any("broker 2" in problem for problem in snapshot.problems)
    # Its partitions are not looked up, those of the other brokers are.
    assert {snapshot.leaders[tp] for tp in snapshot.ends} == {0, 1}


def test_without_a_permission_a_line_says_what_is_missing(fake, collector):
    fake.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeLogDirs", times=None)
    snapshot = collector.collect()
    (problem,) = snapshot.problems
    assert problem.startswith("sizes are not all known: ")
    assert "grant DESCRIBE on the cluster" in problem
    assert row_of(snapshot.topics, "orders").size_bytes is None
    assert row_of(snapshot.brokers, 0).state == "online"


def test_a_cluster_that_is_gone_is_an_error(fake, monkeypatch):
    settings = {"bootstrap.servers": fake.bootstrap_servers}
    for broker in fake.broker_ids:
        fake.broker_down(broker)
    with Collector(BoundedAdmin(settings, Deadline(5_000))) as collector:
        with pytest.raises(KafkaConnectionError, match="no broker listens there"):
            collector.collect()


# --- history ----------------------------------------------------------------------------------


def snapshot_at(time_ms, *, topics=(), problems=()):
    """A snapshot with these topics, of 1 record per second each."""
    rows = [
        snapshots.TopicRow(
            topic=name,
            partitions=1,
            records_per_s=1.0,
            bytes_per_s=None,
            size_bytes=None,
            skew=None,
            without_leader=0,
            out_of_sync=0,
        )
        for name in topics
    ]
    return Snapshot(
        time_ms=time_ms,
        took_s=0.1,
        rates_s=10.0,
        cluster_id="c",
        brokers=[],
        topics=rows,
        groups=[],
        problems=list(problems),
        leaders={},
        ends={},
        sizes={},
        rates={},
        committed={},
    )


def points(history, name):
    (curve,) = history.curves({"records": [name]})["records"]
    return curve["points"]


def test_curves_are_bounded_in_points_and_time_and_end_with_their_topic():
    history = History()
    for second in range(0, 2 * int(HISTORY_S)):
        topics = ["a", "b"] if second < 10 else ["a"]
        history.add(snapshot_at(second * 1000, topics=topics))
    times_ms = history.curves({})["times_ms"]
    assert len(times_ms) <= MAX_POINTS
    assert times_ms[-1] - times_ms[0] <= HISTORY_S * 1000
    assert times_ms[-1] == second * 1000, "the last snapshot is in the curves"
    assert {after - before for before, after in pairwise(times_ms[:-1])} == {5_000}
    assert points(history, "a") == [1.0] * len(times_ms)
    assert points(history, "b") == [None] * len(times_ms)
    assert {name for _, name in history._curves} == {"", "a"}


def test_a_new_topic_has_no_earlier_points():
    history = History()
    history.add(snapshot_at(0))
    history.add(snapshot_at(5_000, topics=["late"]))
    assert points(history, "late") == [None, 1.0]
    assert points(history, "") == [None, 1.0]


# --- the verb ---------------------------------------------------------------------------------


def test_once_prints_one_screen(fake, admin, command, monkeypatch):
    produce(fake, "orders", {0: 10})
    commit(admin, "billing", {0: 4})
    monkeypatch.setattr(tables, "pause", lambda seconds: produce(fake, "orders", {0: 40}))
    run = command("top", "--once")
    lines = run.out.splitlines()
    assert lines[0] == f"cluster {fake.cluster_id}: 3 brokers, 2 topics with 6 partitions"
    assert lines[1].endswith("1 group 46 behind")
    assert " records/s, " in lines[1]
    (orders,) = (line.split() for line in lines if line.startswith("orders"))
    assert float(orders[2].replace(",", "")) > 0
    (billing,) = (line.split() for line in lines if line.startswith("billing"))
    assert billing[:4] == ["billing", "Empty", "0", "46"]
    assert run.err == ""


@pytest.mark.parametrize("argument", ["--rows=1", "--filter=ORD"])
def test_once_limits_and_filters_topics(fake, command, monkeypatch, argument):
    monkeypatch.setattr(tables, "pause", lambda seconds: None)
    out = command("top", "--once", "--sort", "name", argument).out
    assert ("orders" in out, "empty" in out) == ("ORD" in argument, "ORD" not in argument)
    assert ("and 1 topic more" in out) == (argument == "--rows=1")


def test_json_is_one_document(fake, admin, command, monkeypatch):
    monkeypatch.setattr(tables, "pause", lambda seconds: None)
    commit(admin, "billing", {0: 0})
    document = command("top", "--json").json
    assert document["totals"]["partitions"] == 6
    assert [row["topic"] for row in document["topics"]] == ["empty", "orders"]
    assert document["groups"][0]["lag_by_topic"] == {"orders": 0}
    assert {row["rack"] for row in document["brokers"]} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--once or --json"),
        (["--once", "--every", "1ms"], "--every is a time from 500ms to 1h"),
        (["--once", "--every", "2"], "--every is a time with a unit"),
        (["--once", "--sort", "colour"], "--sort is one of rate, size, name"),
    ],
)
def test_wrong_use(fake, command, arguments, message):
    assert message in command("top", *arguments, code=2).error


# --- the screen -------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (160, 50)])
def test_a_screen_fits_the_terminal(fake, admin, collector, width, height):
    for number in range(60):
        fake.create_topic(f"a-topic-with-a-rather-long-name-{number}")
        commit(admin, f"group-{number}", {0: 0})
    collector.collect()
    snapshot = collector.collect()
    text = io.StringIO()
    console = Console(file=text, width=width, height=height, highlight=False)
    console.print(top.picture(top.View(), snapshot, "broker 1 is slow", console))
    lines = text.getvalue().removesuffix("\n").split("\n")
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert any(line.startswith("BROKER") for line in lines)
    assert any(line.startswith("group-0 ") for line in lines)
    assert any("topics more" in line for line in lines)
    assert any(line.startswith("the last lookup failed: broker 1") for line in lines)


def test_keys_sort_filter_and_end():
    view = top.View()
    assert top.press(view, "s")
    assert view.sort == "size"
    for key in ("/", "q", "x", "\x7f"):
        assert top.press(view, key)  # q is a letter of the filter
    assert (view.filter, view.is_typing) == ("q", True)
    assert top.press(view, "\n")
    assert (view.filter, view.is_typing) == ("q", False)
    assert top.press(view, "/")
    assert top.press(view, "\x1b")
    assert view.filter == ""
    assert not top.press(view, "q")


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        (b"q", 0),
        (b"\x03", 130),
        (b"/orders\nq", 0),  # typed while a snapshot is taken: they are read together
    ],
)
def test_a_terminal_is_redrawn_until_a_key_ends_it(fake, admin, keys, code):
    commit(admin, "gr\u00fcn", {0: 0})
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sparkkafka",
            "-b",
            fake.bootstrap_servers,
            "top",
            "--every",
            "500ms",
        ],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    ) as process:
        os.close(follower)
        screen = b""
        try:
            fake.wait_for_requests("ListOffsets", 7, timeout_s=60)  # three refreshes
            while b"q ends" not in screen:
                screen += os.read(leader, 65536)
            os.write(leader, keys)
            while True:
                try:
                    screen += os.read(leader, 65536)
                except OSError:  # the process has ended
                    break
            assert process.wait(60) == code
        finally:
            process.kill()
            os.close(leader)
    assert b"\x1b[?1049h" in screen  # the alternate screen
    assert b"\x1b[?1049l" in screen
    assert b"orders" in screen
    assert b"gr\\xfcn" in screen  # the encoding of the terminal lacks the letter
