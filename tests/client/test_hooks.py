"""`on_connect`, `on_disconnect`, `on_error`: their arguments; their errors change nothing."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
from collections.abc import Callable
from typing import Any

import pytest

from sparkkafka.client import Admin, Connection, Consumer, NewTopic, Producer, TopicPartition
from sparkkafka.errors import EncodeError, KafkaConnectionError, KafkaError, OptionError
from sparkkafka.hooks import NAMES, Hooks
from sparkkafka.protocol.messages import FindCoordinatorRequest, MetadataRequest
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.support.options import parse_client_options


class RecordingHooks:
    """Hooks that record their arguments."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.errors: list[KafkaError] = []

    def settings(self, servers: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": servers,
            "on_connect": lambda broker: self.rows.append(("connect", broker)),
            "on_disconnect": lambda broker: self.rows.append(("disconnect", broker)),
            "on_error": self.failed,
        }

    def failed(self, broker: str, error: KafkaError) -> None:
        self.rows.append(("error", broker))
        self.errors.append(error)


@pytest.fixture
def server(fake_cluster: FakeCluster) -> str:
    return fake_cluster.bootstrap_servers.split(",")[0]


def test_opened_and_closed(server: str) -> None:
    recorded = RecordingHooks()
    with Connection.to(recorded.settings(server)) as connection:
        assert recorded.rows == [("connect", server)]
        with pytest.raises(EncodeError):  # which leaves the connection as it was
            connection.call(FindCoordinatorRequest(key="readers"), version=4)
        connection.call(MetadataRequest(topics=[]))
    connection.close()
    assert recorded.rows == [("connect", server), ("disconnect", server)]


def test_broken(fake_cluster: FakeCluster, server: str) -> None:
    recorded = RecordingHooks()
    with Connection.to(recorded.settings(server)) as connection:
        fake_cluster.fault(Drop.BEFORE, api="Metadata")
        with pytest.raises(KafkaConnectionError) as caught:
            connection.call(MetadataRequest(topics=[]))
    assert recorded.rows == [("connect", server), ("error", server), ("disconnect", server)]
    assert recorded.errors == [caught.value]


def test_not_opened() -> None:
    recorded = RecordingHooks()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(KafkaConnectionError) as caught:
        Connection.to(recorded.settings(server))
    assert (recorded.rows, recorded.errors) == ([("error", server)], [caught.value])


def test_hung_up_while_opening() -> None:
    """One error, whichever request of the opening met it, and no end of what never was open."""
    recorded = RecordingHooks()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(KafkaError):
            Connection.to(recorded.settings(server) | {"request.timeout.ms": 200})
    assert recorded.rows == [("error", server)]


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_that_fails_harms_nobody(
    fake_cluster: FakeCluster, server: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*recorded: object) -> None:
        raise asyncio.CancelledError("mine")

    settings = {"bootstrap.servers": server, name: fail}
    caplog.set_level(logging.WARNING, "sparkkafka.hooks")
    with Connection.to(settings) as connection:
        assert connection.call(MetadataRequest(topics=[])).topics == []
        sent = [connection.send(MetadataRequest(topics=[])) for _ in range(3)]
        assert [connection.receive()[0] for _ in sent] == sent
        fake_cluster.fault(Drop.BEFORE, api="Metadata")
        with pytest.raises(KafkaConnectionError):
            connection.call(MetadataRequest(topics=[]))
    assert not connection.is_open
    (line,) = [row for row in caplog.records if row.name == "sparkkafka.hooks"]
    assert name in line.getMessage()
    assert line.exc_info is not None


def test_an_interrupted_hook_leaves_no_connection_open(server: str) -> None:
    rows: list[str] = []

    def interrupt(broker: str) -> None:
        raise KeyboardInterrupt

    settings = {
        "bootstrap.servers": server,
        "on_connect": interrupt,
        "on_disconnect": rows.append,
    }
    with pytest.raises(KeyboardInterrupt):
        Connection.to(settings)
    assert rows == [server]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [Connection.to, Admin, Consumer, Producer])
def test_what_is_no_function_is_refused(make: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name} is a function .*got str"):
        make({"bootstrap.servers": "h:1", name: "print"})


def test_each_client_tells(fake_cluster: FakeCluster, server: str) -> None:
    for work in (_administer, _produce, _consume):
        recorded = RecordingHooks()
        work(recorded.settings(fake_cluster.bootstrap_servers))
        opened = [broker for what, broker in recorded.rows if what == "connect"]
        closed = [broker for what, broker in recorded.rows if what == "disconnect"]
        assert opened, work
        assert sorted(opened) == sorted(closed)
        assert recorded.errors == []


def _administer(settings: dict[str, Any]) -> None:
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("told")]).all()


def _produce(settings: dict[str, Any]) -> None:
    with Producer(settings) as producer:
        producer.send("told", value=b"v").result(10)


def _consume(settings: dict[str, Any]) -> None:
    with Consumer(settings | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("told", 0)])
        assert len(consumer.poll(10)) == 1


def test_options_without_hooks_can_be_pickled() -> None:
    options = parse_client_options({"bootstrap.servers": "h:1"})
    assert pickle.loads(pickle.dumps(options)).hooks == Hooks()
