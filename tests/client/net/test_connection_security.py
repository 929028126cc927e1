"""TLS and SASL as a client meets them: brokers that are fakes, and servers that are none."""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkkafka.client import Consumer, Producer
from sparkkafka.client.auth.sasl import authenticate
from sparkkafka.client.auth.tls import context_of
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net import connecting, frames
from sparkkafka.client.net import connection as connection_module
from sparkkafka.client.net.connecting import MAX_OPENING_FRAME_BYTES
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import join_small
from sparkkafka.config.options import (
    ClientOptions,
)
from sparkkafka.config.security.options import secure_settings
from sparkkafka.errors import (
    AuthenticationError,
    DecodeError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
)
from sparkkafka.protocol.framing import Framing
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import (
    numbers,
    open_cluster,
    read_range,
    settings,
    values_of,
    write,
)
from tests.support.certificates import Identity, signed
from tests.support.frames import variables_of
from tests.support.options import parse_client_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer

AUTHORITY = signed("authority")
SERVER = signed("broker", AUTHORITY, hosts=("localhost", "127.0.0.1", "::1"))
CLIENT = signed("client", AUTHORITY)
TLS = {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.pem}
ALICE = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "hush-hush"}
USERS = {"alice": "hush-hush"}


def server_context(folder: Path, identity: Identity = SERVER, **more: Any) -> ssl.SSLContext:
    context = identity.server_context(folder)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    for name, value in more.items():
        setattr(context, name, value)
    return context


def options(servers: Any, config: dict[str, str]) -> ClientOptions:
    return parse_client_options(settings(servers) | config)


def connect(servers: str, config: dict[str, str], timeout_ms: int = 10_000) -> Connection:
    host, _, port = servers.rpartition(":")
    return Connection.open(
        host.strip("[]"), int(port), options(servers, config), Deadline(timeout_ms)
    )


def failure(
    servers: str, config: dict[str, str], kind: type[KafkaError], timeout_ms: int = 10_000
) -> str:
    with pytest.raises(kind) as caught:
        connect(servers, config, timeout_ms).close()
    assert "hush" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def server_saying() -> Iterator[Callable[..., str]]:
    """A server that reads a little, says something, and hangs up: `server_saying(b"HTTP/1.1 400
    …")`."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(listener: socket.socket, words: bytes, context: ssl.SSLContext | None) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            try:
                sock.settimeout(10)
                if context is not None:
                    sock = context.wrap_socket(sock, server_side=True)
                sock.recv(65536)
                sock.sendall(words)
            except OSError:
                pass
            finally:
                sock.close()

    def start(words: bytes, context: ssl.SSLContext | None = None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threads.append(threading.Thread(target=serve, args=(listener, words, context)))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(10)


# --- TLS -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_records_go_to_and_fro_over_tls(tmp_path: Path, fake_cluster_factory: Any, host: str):
    cluster = fake_cluster_factory(2, host=host, tls_context=server_context(tmp_path))
    cluster.create_topic("t", partitions=2)
    # Batches above and below the size of a record of TLS; responses of several records.
    write(cluster, "t", 20_000, partitions=2, per_send=5_000, **_dotted(TLS))
    sent = [value for part in (0, 1) for value in read_all(cluster, part)]
    assert sorted(sent) == sorted(numbers(20_000))


def read_all(cluster: Any, partition: int) -> list[bytes | None]:
    with open_cluster(cluster, **_dotted(TLS)) as client:
        return read_range(client, "t", 0, 10_000, partition=partition)


def _dotted(config: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in config.items()}


@pytest.mark.parametrize("sizes", [[], [1], [5, 16_384, 5], [9_000] * 5, [40_000, 1, 1], [1] * 99])
def test_pieces_are_the_parts_in_order(sizes: list[int]):
    """Small parts share a record of TLS, large ones are not copied."""
    parts = [memoryview(bytes([number % 251]) * size) for number, size in enumerate(sizes)]
    pieces = list(join_small(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert all(any(piece is part for piece in pieces) for part in parts if len(part) >= 16_384)
    assert len(pieces) <= 1 + 2 * sum(sizes) // 16_384


def test_bytes_that_tls_has_read_already_count_as_input(tmp_path: Path, fake_cluster_factory: Any):
    """Two responses in one record of TLS: after the first the socket has nothing to read."""
    cluster = fake_cluster_factory(1, tls_context=server_context(tmp_path))
    with connect(cluster.bootstrap_servers, TLS) as connection:
        sock = connection._sock
        assert isinstance(sock, ssl.SSLSocket)
        assert not connection.has_input
        for _ in range(2):
            connection.send(ApiVersionsRequest(), Deadline(5_000))
        sock.settimeout(5)
        sock.recv_into(bytearray(4))
        assert connection.has_input  # the rest of the first response


def test_a_client_certificate_is_shown(tmp_path: Path, fake_cluster_factory: Any):
    context = server_context(tmp_path, verify_mode=ssl.CERT_REQUIRED)
    servers = fake_cluster_factory(1, tls_context=context).bootstrap_servers
    shown = TLS | {
        "ssl.keystore.certificate.chain": CLIENT.pem,
        "ssl.keystore.key": CLIENT.key_pem(),
    }
    connect(servers, shown).close()
    (tmp_path / "client.pem").write_text(CLIENT.pem)
    (tmp_path / "key.pem").write_text(CLIENT.key_pem("hush"))
    librdkafka = TLS | {
        "ssl.certificate.location": str(tmp_path / "client.pem"),
        "ssl.key.location": str(tmp_path / "key.pem"),
        "ssl.key.password": "hush",
    }
    connect(servers, librdkafka).close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_listener_that_wants_a_client_certificate(
    tmp_path: Path, fake_cluster_factory: Any, version: ssl.TLSVersion
):
    context = server_context(
        tmp_path,
        verify_mode=ssl.CERT_REQUIRED,
        maximum_version=version,
    )
    servers = fake_cluster_factory(1, tls_context=context).bootstrap_servers
    with pytest.raises((AuthenticationError, KafkaConnectionError)) as caught:
        connect(servers, TLS)
    assert "ssl.keystore.location" in str(caught.value)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (
            signed("other", AUTHORITY, hosts=("other.example", "10.1.2.3")),
            "the broker's certificate is not for 127.0.0.1: it has the names other.example, "
            "10.1.2.3. Connect by one",
        ),
        (signed("old", AUTHORITY, hosts=("127.0.0.1",), days=(-9, -8)), "certificate has expired"),
        (signed("new", AUTHORITY, hosts=("127.0.0.1",), days=(8, 9)), "is not valid yet"),
        (
            signed("stranger", hosts=("127.0.0.1",)),
            "is self-signed, and not trusted here (the text of ssl.truststore.certificates",
        ),
        (
            signed("ours", signed("another authority"), hosts=("127.0.0.1",)),
            "is not signed by an authority that is trusted here",
        ),
    ],
    ids=["name", "expired", "future", "self-signed", "authority"],
)
def test_certificates_that_are_not_trusted(
    tmp_path: Path, fake_cluster_factory: Any, identity: Identity, message: str
):
    cluster = fake_cluster_factory(1, tls_context=server_context(tmp_path, identity))
    said = failure(cluster.bootstrap_servers, TLS, AuthenticationError)
    assert message in said
    assert cluster.bootstrap_servers in said


def test_names_may_be_passed_over(tmp_path: Path, fake_cluster_factory: Any):
    other = signed("other", AUTHORITY, hosts=("other.example",))
    servers = fake_cluster_factory(1, tls_context=server_context(tmp_path, other)).bootstrap_servers
    for name, value in (
        ("ssl.endpoint.identification.algorithm", ""),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("enable.ssl.certificate.verification", "false"),
    ):
        connect(servers, TLS | {name: value}).close()


def test_no_version_in_common(tmp_path: Path, fake_cluster_factory: Any):
    context = server_context(tmp_path, minimum_version=ssl.TLSVersion.TLSv1_3)
    servers = fake_cluster_factory(1, tls_context=context).bootstrap_servers
    said = failure(servers, TLS | {"ssl.enabled.protocols": "TLSv1.2"}, AuthenticationError)
    assert "compare ssl.enabled.protocols with the server's" in said


def test_trust_is_not_asked_for_twice(tmp_path: Path, fake_cluster_factory: Any, monkeypatch: Any):
    """Fatal at the first broker: neither the others nor the retries are tried."""
    stranger = signed("stranger", hosts=("127.0.0.1",))
    cluster = fake_cluster_factory(3, tls_context=server_context(tmp_path, stranger))
    tries: list[str] = []
    real = connecting.start_tls

    def counted(*args: Any) -> Any:
        tries.append(args[4])
        return real(*args)

    monkeypatch.setattr("sparkkafka.client.net.connecting.start_tls", counted)
    with open_cluster(cluster, **_dotted(TLS)) as client, pytest.raises(AuthenticationError):
        client.topics(["t"])
    assert len(tries) == 1


def test_a_context_is_made_once_and_again_when_its_file_changes(tmp_path: Path):
    path = tmp_path / "ca.pem"
    path.write_text(AUTHORITY.pem)
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(path)}

    def context() -> ssl.SSLContext:
        tls = secure_settings(options("h:1", given).security).tls
        assert tls is not None
        return context_of(tls)

    first = context()
    assert context() is first
    path.write_text(AUTHORITY.pem + signed("another").pem)
    assert context() is not first


def test_a_server_that_never_answers_the_hello(tmp_path: Path):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        servers = f"127.0.0.1:{listener.getsockname()[1]}"
        said = failure(servers, TLS, KafkaTimeoutError, 300)
        assert "TLS was not agreed on within" in said


# --- servers that are none of Kafka's, or of another kind ------------------------------------

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("config", "said_by_server", "message"),
    [
        ({}, HTTP, "the response is HTTP: this port is a web server's"),
        (TLS, HTTP, "the response is HTTP: this port is a web server's"),
        (TLS, b"SSH-2.0-x\r\n", "the response is SSH: this port is not a Kafka listener's"),
        (TLS, b"\0\0\0\x10whatever", "not TLS; perhaps a listener without TLS"),
        ({}, b"\x15\x03\x03\x00\x02\x02\x50", "this listener wants security.protocol SSL"),
        ({}, b"\0\x10\0\0rest", f"the limit is {MAX_OPENING_FRAME_BYTES}"),
    ],
    ids=["http", "http on tls", "ssh on tls", "plain on tls", "tls on plain", "large frame"],
)
def test_another_protocol_is_named(
    server_saying, config: dict[str, str], said_by_server: bytes, message
):
    with pytest.raises((KafkaConnectionError, DecodeError)) as caught:
        connect(server_saying(said_by_server), config)
    assert message in str(caught.value)
    assert not caught.value.retriable


def test_a_tls_listener_is_named_with_the_setting_of_spark(server_saying):
    servers = server_saying(b"\x15\x03\x03\x00\x02\x02\x50")
    host, _, port = servers.rpartition(":")
    in_spark = replace(options(servers, {}), prefix="kafka.")
    with pytest.raises(DecodeError, match=r"wants kafka\.security\.protocol SSL or SASL_SSL"):
        Connection.open(host, int(port), in_spark, Deadline(10_000))


def test_https_is_named(server_saying, tmp_path: Path):
    servers = server_saying(HTTP, server_context(tmp_path))
    assert "the response is HTTP" in failure(servers, TLS, DecodeError)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "the listener may want TLS (security.protocol SSL or SASL_SSL)"),
        (TLS, "perhaps a listener without TLS"),
    ],
)
def test_who_hangs_up_at_once_may_be_of_another_kind(
    server_saying, config: dict[str, str], message: str
):
    said = failure(server_saying(b""), config, KafkaConnectionError)
    assert message in said


def test_a_plain_listener_of_tls(tmp_path: Path, fake_cluster_factory: Any):
    """A fake broker with TLS, spoken to without."""
    servers = fake_cluster_factory(1, tls_context=server_context(tmp_path)).bootstrap_servers
    with pytest.raises((KafkaConnectionError, DecodeError), match=r"security\.protocol to SSL or"):
        connect(servers, {})


@pytest.mark.parametrize("encrypted", [False, True])
def test_no_variable_of_a_frame_has_what_was_to_be_sent(
    tmp_path: Path, fake_cluster_factory: Any, monkeypatch: Any, encrypted: bool
):
    """A connection that breaks while it sends the password."""
    context = server_context(tmp_path) if encrypted else None
    cluster = fake_cluster_factory(1, tls_context=context, sasl_users=USERS)
    config = TLS | ALICE | {"security.protocol": "SASL_SSL"} if encrypted else SASL
    send_parts = Framing.send_parts

    def broken_from_now(framing: Framing, request: Any, *more: Any, **named: Any) -> Any:
        if isinstance(request, SaslAuthenticateRequest):
            monkeypatch.setattr(ssl.SSLSocket, "send", broken)
            monkeypatch.setattr(frames, "itertools", SimpleNamespace(islice=broken))
        return send_parts(framing, request, *more, **named)

    def broken(*_: Any) -> Any:
        raise ConnectionResetError

    monkeypatch.setattr(Framing, "send_parts", broken_from_now)
    with pytest.raises(KafkaConnectionError, match="while sending SaslAuthenticate") as caught:
        connect(cluster.bootstrap_servers, config)
    seen = variables_of(caught.value)
    assert "write_rest: has_patience" in seen
    assert "hush" not in seen


def test_a_listener_of_sasl_spoken_to_without(tmp_path: Path, fake_cluster_factory: Any):
    for config, more, word in (
        ({}, {}, "SASL_PLAINTEXT"),
        (TLS, {"tls_context": server_context(tmp_path)}, "SASL_SSL"),
    ):
        servers = fake_cluster_factory(1, sasl_users=USERS, **more).bootstrap_servers
        with connect(servers, config) as connection:
            with pytest.raises(
                KafkaConnectionError, match=f"requires SASL: .*{word} .*PLAIN"
            ) as caught:
                connection.call(MetadataRequest(), Deadline(5_000))
            assert not caught.value.retriable


def test_a_broker_that_hangs_up_later_is_not_suspected(fake_cluster_factory: Any):
    cluster = fake_cluster_factory(1)
    with connect(cluster.bootstrap_servers, {}) as connection:
        connection.call(MetadataRequest(), Deadline(5_000))
        cluster.fault(api="Metadata", action=Drop.BEFORE)
        with pytest.raises(KafkaConnectionError, match=r"while waiting for a response$"):
            connection.call(MetadataRequest(), Deadline(5_000))


# --- SASL ------------------------------------------------------------------------------------

SASL = {"security.protocol": "SASL_PLAINTEXT", **ALICE}


@pytest.mark.parametrize("encrypted", [False, True])
def test_records_go_to_and_fro_with_sasl(tmp_path: Path, fake_cluster_factory: Any, encrypted):
    context = server_context(tmp_path) if encrypted else None
    cluster = fake_cluster_factory(1, tls_context=context, sasl_users=USERS)
    cluster.create_topic("t")
    config = _dotted(TLS | ALICE | {"security.protocol": "SASL_SSL"} if encrypted else SASL)
    write(cluster, "t", 100, **config)
    with open_cluster(cluster, **config) as client:
        assert read_range(client, "t", 0, 100) == numbers(100)
    assert set(cluster.sasl_attempts) == {"alice"}


def test_frames_may_be_large_only_once_who_is_there_is_known(fake_cluster_factory: Any):
    cluster = fake_cluster_factory(1, sasl_users=USERS)
    with connect(cluster.bootstrap_servers, SASL) as connection:
        assert connection._framing.max_frame_bytes > 100 * MAX_OPENING_FRAME_BYTES


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_wrong_password_is_tried_once(fake_cluster_factory: Any, brokers: int):
    cluster = fake_cluster_factory(brokers, sasl_users=USERS)
    cluster.create_topic("t", partitions=brokers)
    wrong = _dotted(SASL | {"sasl.password": "hush-wrong"})
    with open_cluster(cluster, **wrong) as client:
        for _ in range(3):  # whoever asks again at once is told the same
            with pytest.raises(AuthenticationError, match="alice failed: Authentication") as error:
                client.topics(["t"])
            assert "hush" not in str(error.value)
    assert cluster.sasl_attempts == ["alice"]


def test_a_wrong_password_at_a_leader(fake_cluster_factory: Any, monkeypatch: Any):
    """Found out when the leaders are connected to, and not the bootstrap server."""
    cluster = fake_cluster_factory(3, sasl_users=USERS)
    cluster.create_topic("t", partitions=3)
    monkeypatch.setenv("SECW_PASSWORD", "hush-hush")
    config = _dotted(SASL | {"sasl.password": "${env:SECW_PASSWORD}"})
    with open_cluster(cluster, **config) as client:
        client.topics(["t"])
        os.environ["SECW_PASSWORD"] = "hush-wrong"
        bootstrap = cluster.sasl_attempts.copy()
        with pytest.raises(KafkaError) as caught:
            with PartitionProducer(client, parse_producer_options(settings(cluster))) as producer:
                for partition in range(3):
                    producer.send("t", partition, values_of(range(10)))
                producer.flush()
        assert isinstance(caught.value, ProduceError | AuthenticationError)
        assert "alice failed" in str(caught.value)
    assert len(cluster.sasl_attempts) == len(bootstrap) + 1


def test_sasl_where_there_is_none(fake_cluster_factory: Any):
    said = failure(fake_cluster_factory(1).bootstrap_servers, SASL, AuthenticationError)
    assert "this listener does not use SASL" in said


def test_a_mechanism_that_the_broker_lacks(fake_cluster_factory: Any):
    servers = fake_cluster_factory(1, sasl_users=USERS).bootstrap_servers
    said = failure(servers, SASL | {"sasl.mechanism": "SCRAM-SHA-512"}, AuthenticationError)
    assert "has no SASL mechanism SCRAM-SHA-512, but PLAIN" in said


# --- sessions that end (KIP-368) -------------------------------------------------------------


def reauthenticate_now(connection: Connection) -> None:
    assert connection._session is not None
    connection._session = connection._session._replace(reauthenticate_at_s=0.0)


def test_a_connection_reauthenticates_before_the_next_request(fake_cluster_factory: Any):
    cluster = fake_cluster_factory(1, sasl_users=USERS, sasl_session_ms=60_000)
    with connect(cluster.bootstrap_servers, SASL) as connection:
        connection.call(MetadataRequest(), Deadline(5_000))
        assert cluster.sasl_attempts == ["alice"]
        reauthenticate_now(connection)
        connection.call(MetadataRequest(), Deadline(5_000))
        connection.call(MetadataRequest(), Deadline(5_000))
    assert cluster.sasl_attempts == ["alice"] * 2
    numbers_ = {row.connection for row in cluster.requests_of("Metadata")}
    assert len(numbers_) == 1


def test_a_busy_connection_reauthenticates_as_late_as_possible(fake_cluster_factory: Any):
    cluster = fake_cluster_factory(1, sasl_users=USERS, sasl_session_ms=60_000)
    deadline = Deadline(5_000)
    with connect(cluster.bootstrap_servers, SASL) as connection:
        sent = [connection.send(MetadataRequest(), deadline)]
        reauthenticate_now(connection)
        sent.append(connection.send(MetadataRequest(), deadline))
        assert cluster.sasl_attempts == ["alice"]
        # Now it is high time: the responses in flight are read first, and are not lost.
        connection._session = connection._session._replace(forced_reauthenticate_at_s=0.0)  # type: ignore[union-attr]
        sent.append(connection.send(ApiVersionsRequest(), deadline))
        assert cluster.sasl_attempts == ["alice"] * 2
        assert connection.in_flight == 3
        assert connection.has_input
        responses = [connection.receive(deadline) for _ in range(3)]
        assert [number for number, _ in responses] == sent
        assert hasattr(responses[1][1], "brokers")
        assert connection.in_flight == 0
        assert not connection.has_input


def test_a_renewal_that_is_refused_is_final(fake_cluster_factory: Any, monkeypatch: Any):
    cluster = fake_cluster_factory(1, sasl_users=USERS, sasl_session_ms=60_000)
    monkeypatch.setenv("SECW_PASSWORD", "hush-hush")
    config = SASL | {"sasl.password": "${env:SECW_PASSWORD}"}
    with connect(cluster.bootstrap_servers, config) as connection:
        reauthenticate_now(connection)
        monkeypatch.setenv("SECW_PASSWORD", "hush-wrong")
        with pytest.raises(AuthenticationError, match="alice failed"):
            connection.send(MetadataRequest(), Deadline(5_000))
        assert not connection.is_open


class Surprising:
    """In place of `authenticate`: fails as nothing should, so often."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left, self.error = failures, error

    def __call__(self, *arguments: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return authenticate(*arguments)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_what_nobody_expects_names_the_broker(
    fake_cluster_factory: Any, monkeypatch: Any, kind: type[Exception]
):
    cluster = fake_cluster_factory(1, sasl_users=USERS, sasl_session_ms=60_000)
    with connect(cluster.bootstrap_servers, SASL) as connection:
        reauthenticate_now(connection)
        monkeypatch.setattr(connection_module, "authenticate", Surprising(2, kind("hush")))
        with pytest.raises(KafkaError) as caught:
            connection.send(MetadataRequest(), Deadline(5_000))
        assert f"{connection}: opening the connection failed" in str(caught.value)
        assert not connection.is_open
        # The words of a ValueError often are what it was given.
        assert isinstance(caught.value.__cause__, RuntimeError) == (kind is RuntimeError)
        assert caught.value.__suppress_context__
    said = failure(cluster.bootstrap_servers, SASL, KafkaError)
    assert f"{connection}: opening the connection failed" in said


def test_clients_outlive_what_nobody_expects(fake_cluster_factory: Any, monkeypatch: Any):
    cluster = fake_cluster_factory(1, sasl_users=USERS)
    cluster.create_topic("t")
    config = {"bootstrap.servers": cluster.bootstrap_servers} | SASL
    monkeypatch.setattr(connection_module, "authenticate", Surprising(1, RuntimeError("odd")))
    with Producer(config) as producer:
        with pytest.raises(KafkaError, match="RuntimeError"):
            producer.send("t", b"lost").result(10)
        producer.send("t", b"x").result(10)
    monkeypatch.setattr(connection_module, "authenticate", Surprising(1, RuntimeError("odd")))
    more = {"group.id": "g", "auto.offset.reset": "earliest", "reconnect.backoff.max.ms": 1}
    with Consumer(config | more) as consumer:
        consumer.subscribe(["t"])
        found, failures, deadline = [], 0, Deadline(20_000)
        while not found and not deadline.expired:
            try:
                found = [record.value for record in consumer.poll(1)]
            except KafkaError:
                failures += 1
        assert (found, failures) == ([b"x"], 1)


# --- references and secrets ------------------------------------------------------------------


def test_a_reference_is_looked_up_when_a_connection_is_opened(
    fake_cluster_factory: Any, monkeypatch: Any
):
    cluster = fake_cluster_factory(2, sasl_users=USERS)
    config = SASL | {"sasl.password": "${env:SECW_PASSWORD}"}
    parsed = options(cluster, config)
    assert b"hush" not in pickle.dumps(parsed)
    with pytest.raises(OptionError, match=r"sasl\.password: \$\{env:SECW_PASSWORD\} cannot be"):
        connect(cluster.address(0), config)
    with open_cluster(cluster, **_dotted(config)) as client:
        with pytest.raises(OptionError, match="there is no such environment variable"):
            client.topics(["t"])  # said at once, and not as a broker that cannot be reached
    monkeypatch.setenv("SECW_PASSWORD", "hush-hush")
    connect(cluster.address(0), config).close()
    assert "hush" not in repr(parsed)


def test_nothing_secret_is_logged(tmp_path: Path, fake_cluster_factory: Any, caplog: Any):
    caplog.set_level(0)
    context = server_context(tmp_path)
    cluster = fake_cluster_factory(1, tls_context=context, sasl_users=USERS)
    cluster.create_topic("t")
    config = TLS | ALICE | {"security.protocol": "SASL_SSL"}
    with open_cluster(cluster, **_dotted(config)) as client:
        client.topics(["t"])
    with open_cluster(cluster, **_dotted(config | {"sasl.password": "hush-wrong"})) as client:
        with pytest.raises(AuthenticationError):
            client.topics(["t"])
    assert "hush" not in caplog.text
    assert isinstance(cluster, FakeCluster)
