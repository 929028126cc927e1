"""`Connection.to`: one broker, any request, nothing retried. And which addresses are tried."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client import Connection
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import connect
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    error_name,
)
from sparkkafka.protocol import PlainRecord
from sparkkafka.protocol.messages import MetadataRequest, MetadataRequestTopic
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.support.options import parse_client_options


@pytest.fixture
def settings(fake_cluster: FakeCluster) -> dict[str, Any]:
    return {"bootstrap.servers": fake_cluster.bootstrap_servers.split(",")[0]}


def test_any_request_and_several_on_the_way(
    fake_cluster: FakeCluster, settings: dict[str, Any]
) -> None:
    fake_cluster.create_topic("there", partitions=2)
    with Connection.to(settings) as connection:
        assert connection.versions[MetadataRequest.API_KEY][1] > 0
        wanted = [MetadataRequestTopic(name=name) for name in ("there", "gone")]
        response = connection.call(MetadataRequest(topics=wanted))
        codes = {row.name: error_name(row.error_code) for row in response.topics}
        assert codes == {"there": "NONE", "gone": "UNKNOWN_TOPIC_OR_PARTITION"}
        sent = [connection.send(MetadataRequest(topics=[])) for _ in range(3)]
        assert connection.in_flight == 3
        assert [connection.receive()[0] for _ in range(3)] == sent
        with pytest.raises(KafkaError, match="no response will come"):
            connection.receive()
        assert connection.is_open
    assert not connection.is_open


# --- one partition, in one line each -------------------------------------------------------------


@pytest.fixture
def leader(fake_cluster_factory: Any) -> Iterator[tuple[FakeCluster, Connection]]:
    """A cluster of one broker with a topic, and a connection to it."""
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t")
    with Connection.to({"bootstrap.servers": cluster.bootstrap_servers}) as connection:
        yield cluster, connection


def test_records_there_and_back(leader: tuple[FakeCluster, Connection]) -> None:
    _, connection = leader
    assert connection.list_offsets("t", 0) == 0
    assert connection.fetch("t", 0, 0, max_wait_ms=0) == []
    assert connection.produce("t", 0, b"0") == 0
    assert connection.produce("t", 0, "1") == 1
    assert connection.produce("t", 0, None) == 2
    given = PlainRecord(b"3", key=b"k", headers=(("h", b"1"),), timestamp_ms=17)
    assert connection.produce("t", 0, given) == 3
    assert connection.produce("t", 0, [b"4", "5", given], compression="gzip") == 4
    found = connection.fetch("t", 0, 0)
    assert [record.value for record in found] == [b"0", b"1", None, b"3", b"4", b"5", b"3"]
    assert found[3] == given._replace(offset=3)
    assert found[0].timestamp_ms > 1_600_000_000_000
    assert [record.offset for record in connection.fetch("t", 0, 5)] == [5, 6]  # in a batch
    assert connection.list_offsets("t", 0) == 7
    assert connection.list_offsets("t", 0, -2) == 0
    assert connection.list_offsets("t", 0, found[0].timestamp_ms) == 0
    assert connection.list_offsets("t", 0, 1 << 60) == -1


def test_without_a_response(leader: tuple[FakeCluster, Connection]) -> None:
    _, connection = leader
    assert connection.produce("t", 0, b"0", acks=0) == -1
    assert [record.value for record in connection.fetch("t", 0, 0)] == [b"0"]


def test_a_broker_that_refuses_is_an_error(leader: tuple[FakeCluster, Connection]) -> None:
    cluster, connection = leader
    for act in (
        lambda: connection.produce("gone", 0, b""),
        lambda: connection.fetch("gone", 0, 0),
        lambda: connection.list_offsets("gone", 0),
    ):
        with pytest.raises(BrokerError, match="gone-0") as caught:
            act()
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(BrokerError, match="t-0") as caught:
        connection.fetch("t", 0, 5)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    cluster.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce")
    with pytest.raises(BrokerError, match="Produce of t-0"):
        connection.produce("t", 0, b"")
    assert connection.is_open


@pytest.mark.parametrize("records", [5, {"value": b"0"}, [5], [b"0", {}]])
def test_what_is_no_record(leader: tuple[FakeCluster, Connection], records: Any) -> None:
    _, connection = leader
    with pytest.raises(OptionError):
        connection.produce("t", 0, records)
    assert connection.list_offsets("t", 0) == 0


# --- any request ---------------------------------------------------------------------------------


def test_a_call_among_other_requests_says_how_to_go_on(settings: dict[str, Any]) -> None:
    request = MetadataRequest(topics=[])
    with Connection.to(settings) as connection:
        sent = connection.send(request)
        with pytest.raises(KafkaError, match=r"call while 1 request is in flight: .*receive"):
            connection.call(request)
        assert (connection.in_flight, connection.receive()[0]) == (1, sent)
        assert connection.call(request).topics == []
        connection.send(request)
        connection.close()
        with pytest.raises(KafkaConnectionError, match="the connection is closed"):
            connection.call(request)


@pytest.mark.parametrize("given", [5, "Metadata", MetadataRequest, MetadataRequestTopic()])
def test_what_is_no_request_is_refused(settings: dict[str, Any], given: Any) -> None:
    with Connection.to(settings) as connection:
        for act in (connection.send, connection.call):
            with pytest.raises(OptionError, match=r"sparkkafka\.protocol\.messages"):
                act(given)
        assert (connection.in_flight, connection.is_open) == (0, True)


def test_nothing_is_retried(fake_cluster: FakeCluster, settings: dict[str, Any]) -> None:
    with Connection.to(settings) as connection:
        fake_cluster.fault(Drop.BEFORE, api="Metadata")
        with pytest.raises(KafkaConnectionError, match="closed the connection"):
            connection.call(MetadataRequest(topics=[]))
        assert not connection.is_open
    assert len(fake_cluster.requests_of("Metadata")) == 1


def free_address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("as_list", [False, True])
def test_the_first_of_the_list_that_answers_is_taken(
    settings: dict[str, Any], as_list: bool
) -> None:
    servers = [free_address(), settings["bootstrap.servers"], free_address()]
    given: Any = servers if as_list else ",".join(servers)
    with Connection.to({"bootstrap.servers": given}) as connection:
        assert str(connection) == servers[1]
        assert connection.call(MetadataRequest(topics=[])).topics == []


def test_a_silent_server_leaves_time_for_the_next(settings: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = [f"127.0.0.1:{silent.getsockname()[1]}", settings["bootstrap.servers"]]
        with Connection.to({"bootstrap.servers": servers}, timeout_s=4.0) as connection:
            assert str(connection) == servers[1]


def test_why_each_of_the_list_failed() -> None:
    servers = [free_address(), free_address()]
    with pytest.raises(KafkaConnectionError, match=r"no broker of bootstrap\.servers") as caught:
        Connection.to({"bootstrap.servers": servers}, timeout_s=5.0)
    assert all(server in str(caught.value) for server in servers)
    assert caught.value.retriable


def test_a_refused_password_is_not_tried_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []

    def refuse(host: str, port: int, options: Any, deadline: Any) -> Any:
        requests.append(port)
        raise AuthenticationError(f"{host}:{port}: no")

    monkeypatch.setattr(Connection, "open", refuse)
    with pytest.raises(AuthenticationError, match="a:1: no"):
        Connection.to({"bootstrap.servers": "a:1,b:2"})
    assert requests == [1]


def test_calls_without_a_deadline_end_after_request_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(KafkaTimeoutError, match="no response within"):
            Connection.to({"bootstrap.servers": f"127.0.0.1:{port}", "request.timeout.ms": 100})


def test_requests_and_responses_can_be_logged(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sparkkafka.protocol")
    with Connection.to(settings) as connection:
        connection.call(MetadataRequest(topics=[]))
    lines = [row.message for row in caplog.records if row.name == "sparkkafka.protocol"]
    assert any(f"{connection} <- Metadata #" in line for line in lines)
    assert any(f"{connection} -> MetadataResponse #" in line for line in lines)


@pytest.mark.parametrize(
    ("wanted", "tried"),
    [
        ("any", ["::1", "127.0.0.1"]),
        ("v4", ["127.0.0.1"]),
        ("v6", ["::1"]),
        ("v4_first", ["127.0.0.1", "::1"]),
        ("v6_first", ["::1", "127.0.0.1"]),
    ],
)
def test_addresses_by_family(
    wanted: str, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
    ]

    def resolve(host: str, port: int, *, family: int, type: int) -> list[Any]:
        return [row for row in both if family in (socket.AF_UNSPEC, row[0])]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    options = parse_client_options({"bootstrap.servers": "two:1", "broker.address.family": wanted})
    with pytest.raises(KafkaConnectionError) as caught:  # nobody listens on port 1
        connect("two", 1, options, Deadline(5000))
    text = str(caught.value).partition("cannot connect (")[2]
    assert [part.rpartition(": ")[0] for part in text.split("; ")] == tried


def test_a_family_without_addresses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_ADDRFAMILY, "Address family for hostname not supported")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    options = parse_client_options({"bootstrap.servers": "h:1", "broker.address.family": "v6"})
    with pytest.raises(KafkaConnectionError, match=r"broker\.address\.family=v6 allows no other"):
        connect("h", 1, options, Deadline(1000))
