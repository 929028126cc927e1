"""What depends on pyspark's internals: a task's socket, frozen objects, and the switch.

A job without them is in test_conf.py.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pyspark import daemon
from pyspark.sql.types import StructType

from sparkkafka.errors import OptionError
from sparkkafka.spark import pyspark_internals
from sparkkafka.spark.datasource import KafkaDataSource

QUICKACK = getattr(socket, "TCP_QUICKACK", None)


class Reader(pyspark_internals.PickledToTasks):
    def __init__(self) -> None:
        super().__init__()
        self.options = {"topic": "orders"}


def worker(sock: socket.socket, pickled: bytes) -> Reader:
    """Named as pyspark's function under which a task runs, with its socket under the same name."""
    return pickle.loads(pickled)


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())) as sock,
        closing(server.accept()[0]),
    ):
        yield sock


@pytest.fixture
def no_freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pyspark_internals, "_freeze_count", 0)
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
    pyspark_internals.disable_socket_delays(None)


def test_a_closed_socket_is_no_error(tcp: socket.socket):
    descriptor = tcp.fileno()
    tcp.close()
    pyspark_internals.disable_socket_delays(descriptor)


def test_a_process_of_its_own_finds_the_socket_that_it_has_opened():
    """As the one that plans micro-batches, which pyspark gives a file of the socket only."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        script = (
            "import os, socket\n"
            "from sparkkafka.spark import pyspark_internals as internals\n"
            "assert internals.find_spark_socket() is None\n"
            "port = int(os.environ['PYTHON_WORKER_FACTORY_PORT'])\n"
            "sock = socket.create_connection(('127.0.0.1', port))\n"
            "file = sock.makefile('rwb')\n"
            "assert internals.find_spark_socket() == sock.fileno()\n"
            "internals.disable_socket_delays(internals.find_spark_socket())\n"
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
    for _ in range(pyspark_internals.MAX_FREEZES):
        kept.append([[] for _ in range(1_000)])
        before = gc.get_freeze_count()
        pyspark_internals.begin_task()
        assert gc.get_freeze_count() > before
    kept.append([[] for _ in range(1_000)])
    before = gc.get_freeze_count()
    pyspark_internals.begin_task()
    assert gc.get_freeze_count() <= before


@pytest.mark.skipif(QUICKACK is None, reason="TCP_QUICKACK is Linux's")
@pytest.mark.usefixtures("no_freezes")
def test_without_internals_a_task_changes_neither_socket_nor_collections(
    tcp: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(pyspark_internals.VARIABLE, "False")
    pickled = pickle.dumps(Reader())
    monkeypatch.delenv(pyspark_internals.VARIABLE)  # an executor may not have it
    tcp.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)
    assert worker(tcp, pickled).options
    assert not tcp.getsockopt(socket.IPPROTO_TCP, QUICKACK)
    assert not tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert gc.get_freeze_count() == 0


SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9"}
READS, WRITES = {**SERVERS, "subscribe": "t"}, {**SERVERS, "topic": "t"}
COLUMNS = StructType().add("value", "binary")


@pytest.mark.parametrize(
    "create",
    [
        lambda: KafkaDataSource(READS).reader(COLUMNS),
        lambda: KafkaDataSource(READS).streamReader(COLUMNS),
        lambda: KafkaDataSource(WRITES).writer(COLUMNS, overwrite=False),
        lambda: KafkaDataSource(WRITES).streamWriter(COLUMNS, overwrite=False),
    ],
    ids=["reader", "streamReader", "writer", "streamWriter"],
)
@pytest.mark.usefixtures("no_freezes")
def test_the_driver_reads_the_switch_and_refuses_other_values(
    create: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
):
    assert create().uses_internals
    assert gc.get_freeze_count() > 0
    monkeypatch.setenv(pyspark_internals.VARIABLE, " TRUE ")
    assert create().uses_internals
    gc.unfreeze()
    monkeypatch.setenv(pyspark_internals.VARIABLE, "false")
    assert not create().uses_internals
    assert gc.get_freeze_count() == 0
    monkeypatch.setenv(pyspark_internals.VARIABLE, "no")
    with pytest.raises(OptionError, match="SPARKKAFKA_PYSPARK_INTERNALS is 'no': set it to true"):
        create()
