"""`ui`: the JSON and the files of its page, what it refuses, and the page in a browser."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.resources import files
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from sparkkafka.cli.session import Session
from sparkkafka.cli.snapshots import Collector
from sparkkafka.cli.ui import (
    CACHED_S,
    FILES,
    MAX_LETTERS,
    DeadLetterReader,
    PageServer,
    Responses,
    Watcher,
)
from sparkkafka.client import Admin, Producer, TopicPartition
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay
from tests.cli.run import produce
from tests.support.waiting import wait_until

PREFIX = "__connect.errors."
PASSWORD = "hunter2"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


@pytest.fixture
def fake():
    with FakeCluster(brokers=3) as fake:
        fake.create_topic("orders", partitions=4)
        yield fake


@contextmanager
def serving(fake, *, every_s=3600.0, checkpoints=(), dead_letters=(), settings=()):
    """The page of a cluster, with functions that send it requests."""
    session = Session()
    session.set_option("bootstrap_server", fake.bootstrap_servers)
    session.set_option("property", list(settings))
    with Collector(session.admin()) as collector, Watcher(collector, every_s) as watcher:
        with Responses(watcher, session, checkpoints, dead_letters) as responses:
            with PageServer("127.0.0.1", 0, responses.documents) as server:
                thread = threading.Thread(target=server.serve)
                thread.start()

                def request(path, method="GET", **headers):
                    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
                    connection.request(method, path, headers=headers)
                    response = connection.getresponse()
                    response.text = response.read().decode()
                    connection.close()
                    return response

                def get(path):
                    response = request(path)
                    assert response.status == 200, response.text
                    return json.loads(response.text)

                try:
                    yield SimpleNamespace(
                        get=get,
                        request=request,
                        server=server,
                        responses=responses,
                        watcher=watcher,
                    )
                finally:
                    server.shutdown()
                    thread.join(30)


def commit(fake, group, offsets):
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        admin.alter_consumer_group_offsets(
            group, {TopicPartition("orders", number): offset for number, offset in offsets.items()}
        ).all()


# --- documents --------------------------------------------------------------------------------


def test_the_documents_of_a_cluster(fake):
    produce(fake, "orders", {0: 30, 1: 10})
    commit(fake, "billing", {0: 5, 1: 10})
    with serving(fake) as page:
        overview = page.get("/api/overview")
        assert [row["state"] for row in overview["brokers"]] == ["online"] * 3
        assert overview["totals"]["lag"] == 25
        (time_ms,) = overview["curves"]["times_ms"]
        state = page.get("/api/state")
        assert (state["cluster_id"], state["time_ms"]) == (fake.cluster_id, time_ms)
        assert state["rates_s"] == 0  # no rates yet
        assert overview["curves"]["lag"] == [
            {"name": "", "points": [25.0]},
            {"name": "billing", "points": [25.0]},
        ]
        topic = page.get("/api/topic?name=orders")
        assert [row["end"] for row in topic["partitions"]["rows"]] == [30, 10, 0, 0]
        assert topic["groups"]["rows"] == [{"group": "billing", "lag": 25}]
        group = page.get("/api/group?name=billing")
        assert group["row"]["lag_by_topic"] == {"orders": 25}
        first = group["partitions"]["rows"][0]
        assert first == {"topic": "orders", "partition": 0, "committed": 5, "end": 30, "lag": 25}
        (row,) = page.get("/api/groups")["rows"]
        assert (row["group"], row["topic"], row["topics"]) == ("billing", "orders", 1)


def test_lists_are_sorted_filtered_and_limited(fake):
    for number in range(120):
        fake.create_topic(f"t{number:03}")
    produce(fake, "t007", {0: 5})
    with serving(fake) as page:
        by_size = page.get("/api/topics?sort=size")
        assert (by_size["total"], len(by_size["rows"])) == (121, 100)
        assert by_size["rows"][0]["topic"] == "t007"
        rest = page.get("/api/topics?sort=name&start=100&limit=9999")
        assert [row["topic"] for row in rest["rows"]] == [f"t{n:03}" for n in range(99, 120)]
        found = page.get("/api/topics?filter=T00")
        assert found["total"] == 10


def test_snapshots_go_on_while_brokers_are_down(fake, monkeypatch):
    monkeypatch.setattr("sparkkafka.cli.snapshots.STEP_S", 0.2)
    with serving(fake, every_s=0.05) as page:
        for broker in fake.broker_ids:
            fake.broker_down(broker)
        wait_until(lambda: page.get("/api/state")["failure"])
        assert page.get("/api/topics")["total"] == 1  # of the last good snapshot
        for broker in fake.broker_ids:
            fake.broker_up(broker)
        wait_until(lambda: not page.get("/api/state")["failure"])
        assert page.get("/api/state")["rates_s"] > 0


@pytest.fixture
def letters(fake):
    """A topic with dead letters, by its name and headers; one only by name, one only by headers."""
    for name in ("orders-dlq", "deadlines", "refused"):
        fake.create_topic(name, partitions=2)
    headers = {
        f"{PREFIX}topic": b"orders",
        f"{PREFIX}exception.message": b"<b>bad</b> \xff",
    }
    produce(fake, "orders-dlq", {0: 20, 1: 20}, headers)
    produce(fake, "deadlines", {0: 1})
    produce(fake, "refused", {1: 2}, {"error": b"no schema"})
    return fake


def test_dead_letters_have_their_reasons(letters):
    with serving(letters, dead_letters=["refused", "gone"]) as page:
        refused, gone, found = page.get("/api/dead-letters")["topics"]
    assert (found["topic"], found["records"]) == ("orders-dlq", 40)
    assert len(found["letters"]) == MAX_LETTERS
    letter = found["letters"][0]
    assert letter["errors"] == {"topic": "orders"}
    assert letter["reason"] == "0x" + b"<b>bad</b> \xff".hex()
    assert letter["key"] == "key"
    assert [(row["offset"], row["reason"]) for row in refused["letters"]] == [
        (1, "no schema"),
        (0, "no schema"),
    ]
    assert (gone["letters"], gone["error"]) == ([], "there is no topic 'gone', or it has no leader")


def test_a_time_that_python_lacks(fake):
    fake.create_topic("dlq", configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        producer.send("dlq", b"microseconds", timestamp_ms=1_700_000_000_000_000)
    with serving(fake, dead_letters=["dlq"]) as page:
        (topic,) = page.get("/api/dead-letters")["topics"]
    assert topic["letters"][0]["time_ms"] == 1_700_000_000_000_000


def test_dead_letters_are_read_once_for_all_browsers(letters, monkeypatch):
    # Not Fetch requests: the consumer may send one more after the last record was read.
    with patch.object(
        DeadLetterReader, "read", autospec=True, side_effect=DeadLetterReader.read
    ) as read:
        with serving(letters) as page:
            page.get("/api/dead-letters")
            count = read.call_count
            page.get("/api/dead-letters")
            assert read.call_count == count > 0
            monkeypatch.setattr("sparkkafka.cli.ui.CACHED_S", 0.0)
            page.get("/api/dead-letters")
            assert read.call_count > count
    assert CACHED_S > 0


def test_checkpoints_show_batches_and_lag(fake, tmp_path):
    produce(fake, "orders", {0: 30})
    query_id = "3f7f1c6e-6a6d-4b61-9d0a-1f0f8c2f77aa"
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": query_id}))
    for batch, ends in enumerate(('"0":4', '"0":10,"1":0', '"0":12,"1":0')):
        plan = f'v1\n{{"batchTimestampMs":{batch + 1}000}}\n{{"orders":{{{ends}}}}}'
        (tmp_path / "offsets" / str(batch)).write_text(plan)
        if batch < 2:
            (tmp_path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    with serving(fake, checkpoints=[str(tmp_path), str(tmp_path / "none")]) as page:
        shown, missing = page.get("/api/checkpoints")["checkpoints"]
    assert shown["query_id"] == query_id
    assert shown["batches"][0] == {
        "batch": 2,
        "finished": False,
        "planned_ms": 3000,
        "records": 2,
        "topics": ["orders"],
    }
    assert [batch["records"] for batch in shown["batches"]] == [2, None, None]  # 1: a new partition
    assert shown["lag"] == 20  # the unfinished batch runs again
    assert (shown["partitions"]["total"], shown["errors"]) == (4, [])
    assert "is not the checkpoint of a query" in missing["errors"][0]


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(fake, method):
    with serving(fake) as page:
        response = page.request("/api/overview", method)
        assert (response.status, response.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/secret", 404),
        ("/api", 404),
        ("/../ui.py", 404),
        ("/page.py", 404),
        ("/api/topic?name=nobody", 404),
        ("/api/group", 404),
        ("/api/topics?sort=colour", 400),
        ("/api/topics?limit=-1", 400),
        ("/" + "x" * 5000, 414),
    ],
)
def test_unknown_paths_and_parameters(fake, path, status):
    with serving(fake) as page:
        response = page.request(path)
        assert response.status == status
        assert json.loads(response.text)["error"]


def test_other_paths_are_not_found(fake, capsys):
    with serving(fake) as page:
        for path in ("HTTP://[", "/[", "/../ui.py", "/%2e%2e/ui.py", "*"):
            assert page.request(path).status == 404
    assert capsys.readouterr().err == ""


def test_a_foreign_host_is_refused(fake):
    with serving(fake) as page:
        port = page.server.port
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1",
            f"x@127.0.0.1:{port}",
            "",
        ):
            assert page.request("/api/state", Host=host).status == 403, host
            assert page.request("/", Host=host).status == 403, host
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert page.request("/api/state", Host=host).status == 200, host


def test_a_request_without_a_host_is_refused(fake):
    with serving(fake) as page:
        with socket.create_connection(("127.0.0.1", page.server.port), timeout=30) as connection:
            connection.sendall(b"GET /api/state HTTP/1.0\r\n\r\n")
            assert connection.makefile("rb").readline().split()[1] == b"403"


def test_no_response_has_a_secret_or_lets_other_sites_read_it():
    with FakeCluster(sasl_users={"alice": PASSWORD}) as fake:
        settings = [
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            "sasl.username=alice",
            f"sasl.password={PASSWORD}",
        ]
        with serving(fake, settings=settings) as page:
            for path in [*FILES, *page.responses.documents]:
                response = page.request(path, Origin="http://evil.example")
                assert PASSWORD not in response.text
                assert not [name for name in response.headers if "Access-Control" in name]
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-store"


def test_the_page_loads_nothing_from_another_host(fake):
    with serving(fake) as page:
        for path, (name, media_type) in FILES.items():
            response = page.request(path)
            assert response.headers["Content-Type"] == f"{media_type}; charset=utf-8"
            assert response.text == files("sparkkafka.cli").joinpath("page", name).read_text(
                "utf-8"
            )
            urls = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", response.text))
            assert urls <= {"http://www.w3.org/2000/svg"}


# --- the verb ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "give --allow-remote too"),
        (["--host", "example.test"], "forward the port with ssh -L"),
        (["--every", "1ms"], "--every is a time from 500ms to 1h"),
        (["--port", "70000"], "--port"),
        (["--dead-letters", ""], "empty name"),
    ],
)
def test_wrong_use(fake, command, arguments, message):
    assert message in command("ui", *arguments, code=2).error


def test_a_port_that_is_in_use(fake, command):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        error = command("ui", "--port", port, code=2).error
    assert f"cannot listen at 127.0.0.1 port {port}: " in error
    assert error.endswith("give another --port")


def test_the_end_does_not_wait_for_brokers(fake, monkeypatch):
    monkeypatch.setattr("sparkkafka.cli.snapshots.STEP_S", 300.0)
    ended = threading.Event()

    def serve_until_a_broker_is_silent():
        with serving(fake, every_s=0.05):
            silent = fake.fault(Delay(300_000, before=True), times=None)
            wait_until(lambda: silent.fired)
        ended.set()

    threading.Thread(target=serve_until_a_broker_is_silent, daemon=True).start()
    assert ended.wait(20)  # --timeout is 30 s


def test_slow_clients_are_limited(fake, monkeypatch):
    monkeypatch.setattr("sparkkafka.cli.ui.MAX_CONNECTIONS", 2)
    with serving(fake) as page:
        address = ("127.0.0.1", page.server.port)
        with socket.create_connection(address), socket.create_connection(address):
            busy = page.request("/api/state")
            assert (busy.status, json.loads(busy.text)) == (
                503,
                {"error": "there are too many clients"},
            )
        wait_until(lambda: page.request("/api/state").status == 200)


def test_clients_that_send_byte_by_byte_are_cut(fake, monkeypatch):
    monkeypatch.setattr("sparkkafka.cli.ui.MAX_CONNECTIONS", 1)
    monkeypatch.setattr("sparkkafka.cli.ui.IDLE_S", 0.3)
    with serving(fake) as page, socket.create_connection(("127.0.0.1", page.server.port)) as slow:

        def is_served() -> bool:
            with contextlib.suppress(OSError):
                slow.send(b"a")
            return page.request("/api/state").status == 200

        wait_until(is_served)


def test_a_slow_checkpoint_does_not_hold_up_dead_letters(fake, monkeypatch):
    is_slow, may_end = threading.Event(), threading.Event()

    def wait_for_long(responses, location):
        is_slow.set()
        assert may_end.wait(60)

    monkeypatch.setattr(Responses, "_checkpoint", wait_for_long)
    with serving(fake, checkpoints=["slow"]) as page:
        slow = threading.Thread(target=page.request, args=("/api/checkpoints",))
        slow.start()
        assert is_slow.wait(60)
        assert page.get("/api/dead-letters") == {"topics": []}
        may_end.set()
        slow.join(60)


@contextmanager
def running(fake, *arguments):
    """The command as a process; yields it and the address of its page."""
    command = ["-m", "sparkkafka", "-b", fake.bootstrap_servers, "ui", "--port", "0", *arguments]
    # As a script's shell does in the background, it ignores SIGINT.
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with subprocess.Popen(
        [*shell, sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline()
            assert fake.cluster_id in line, process.stderr.read()
            yield process, re.search(r"http://\S+", line)[0]
        finally:
            process.kill()


def test_ctrl_c_ends_it_and_a_remote_host_warns(fake):
    with running(fake, "--host", "0.0.0.0", "--allow-remote") as (process, url):
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(60) == 130
        (warning,) = process.stderr.read().splitlines()
        assert "there is no authentication" in warning


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("", ["orders", "billing", "online", "25"]),
        ("topic/orders", ["Size of partitions", '<rect class="bar', "billing"]),
        ("topic/a%26b", ["there is no topic 'a&amp;b' (any more)", "cluster "]),
        ("dead-letters", ["&lt;i&gt;bad&lt;/i&gt;", "orders-dlq"]),
    ],
)
def test_the_page_in_a_browser(fake, tmp_path, view, shown):
    produce(fake, "orders", {0: 30, 1: 10})
    commit(fake, "billing", {0: 5, 1: 10})
    fake.create_topic("orders-dlq")
    produce(fake, "orders-dlq", {0: 1}, {"error": b"<i>bad</i>"})
    with serving(fake) as page:
        run = subprocess.run(
            [
                *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", f"--user-data-dir={tmp_path}"),
                *("--virtual-time-budget=2000", "--dump-dom", f"{page.server.url}#/{view}"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert run.returncode == 0, run.stderr
    for text in shown:
        assert text in run.stdout, run.stdout
