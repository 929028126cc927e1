"""Spark's Python worker as a task finds it: its socket, and what later collections look at."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyspark import daemon

from sparkkafka.spark import worker_delays as of_spark

QUICKACK = getattr(socket, "TCP_QUICKACK", None)


class Reader(of_spark.PickledToTasks):
    def __init__(self) -> None:
        self.options = {"topic": "orders"}


def worker(sock: socket.socket, pickled: bytes) -> Reader:
    """Named as pyspark's function under which a task runs, with its socket under the same name."""
    return pickle.loads(pickled)


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())) as one,
        closing(server.accept()[0]),
    ):
        yield one


@pytest.fixture
def no_freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(of_spark, "_freezes", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_pysparks_worker_has_its_socket_under_this_name():
    assert daemon.worker.__code__.co_varnames[: daemon.worker.__code__.co_argcount][0] == "sock"


@pytest.mark.skipif(QUICKACK is None, reason="TCP_QUICKACK is Linux's")
@pytest.mark.usefixtures("no_freezes")
def test_a_task_acknowledges_what_came_as_soon_as_it_is_unpickled(tcp: socket.socket):
    tcp.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)
    assert not tcp.getsockopt(socket.IPPROTO_TCP, QUICKACK)
    assert worker(tcp, pickle.dumps(Reader())).options == {"topic": "orders"}
    assert tcp.getsockopt(socket.IPPROTO_TCP, QUICKACK)
    assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.usefixtures("no_freezes")
def test_a_task_runs_over_other_sockets_and_without_one():
    first, second = socket.socketpair()
    with closing(first), closing(second):
        assert worker(first, pickle.dumps(Reader())).options
    first.close()
    assert pickle.loads(pickle.dumps(Reader())).options
    of_spark.hurry(None)


def test_a_closed_socket_is_no_error(tcp: socket.socket):
    descriptor = tcp.fileno()
    tcp.close()
    of_spark.hurry(descriptor)


def test_a_process_of_its_own_finds_the_socket_that_it_has_opened():
    """As the one that plans micro-batches, which pyspark gives a file of the socket only."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        script = (
            "import os, socket\n"
            "from sparkkafka.spark.worker_delays import hurry, socket_of_spark\n"
            "assert socket_of_spark() is None\n"
            "port = int(os.environ['PYTHON_WORKER_FACTORY_PORT'])\n"
            "sock = socket.create_connection(('127.0.0.1', port))\n"
            "file = sock.makefile('rwb')\n"
            "assert socket_of_spark() == sock.fileno()\n"
            "hurry(socket_of_spark())\n"
            "assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)\n"
            "file.write(b'still open'); file.flush()\n"
        )
        port = server.getsockname()[1]
        environment = {**os.environ, "PYTHON_WORKER_FACTORY_PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr.decode()
        with closing(server.accept()[0]) as there:
            assert there.recv(100) == b"still open"


@pytest.mark.usefixtures("no_freezes")
def test_only_the_first_tasks_leave_objects_out_of_collections():
    kept = []
    for _ in range(of_spark.MOST_FREEZES):
        kept.append([[] for _ in range(1_000)])
        before = gc.get_freeze_count()
        of_spark.begin_task()
        assert gc.get_freeze_count() > before
    kept.append([[] for _ in range(1_000)])
    before = gc.get_freeze_count()
    of_spark.begin_task()
    assert gc.get_freeze_count() <= before
