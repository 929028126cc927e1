"""Servers that are no Kafka, or a bad one: each is named, soon, and gets little memory."""

from __future__ import annotations

import contextlib
import ssl
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.errors import (
    AuthenticationError,
    DecodeError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)
from sparkkafka.protocol.messages import SaslHandshakeResponse
from tests.client.hostile import HostileServer, Peer
from tests.support.certificates import signed
from tests.support.options import parse_client_options

AUTHORITY = signed("authority")
SERVER = signed("server", AUTHORITY, hosts=("127.0.0.1", "localhost"))
HUSH = "hush-hush"
# Much sooner than any timeout of the options: only a server that waits for more may take it.
SILENCE_MS = 400
TLS = {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.pem}


def sasl(mechanism: str, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": HUSH,
    } | more


def sasl_tls(mechanism: str) -> dict[str, str]:
    return sasl(mechanism) | TLS | {"security.protocol": "SASL_SSL"}


@pytest.fixture(scope="module")
def server_context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return SERVER.server_context(tmp_path_factory.mktemp("tls"))


def connect(server: HostileServer, config: dict[str, str], total_ms: float = 20_000) -> Connection:
    options = parse_client_options(
        {"bootstrap.servers": f"127.0.0.1:{server.port}", "client.id": "test"} | config
    )
    return Connection.open("127.0.0.1", server.port, options, Deadline(total_ms))


def failure(
    script: Callable[[Peer], None],
    config: dict[str, str],
    kind: type[KafkaError],
    *,
    tls: ssl.SSLContext | None = None,
    total_ms: float = 20_000,
    connections: int = 1,
) -> str:
    """The words of the error when a connection is opened; it holds no secret, and one connection
    was enough, or as many as are said."""
    with HostileServer(script, tls) as server:
        with pytest.raises(kind) as caught:
            connect(server, config, total_ms).close()
        assert server.connections == connections
    text = str(caught.value)
    assert f"127.0.0.1:{server.port}" in text
    for secret in (HUSH, "BEGIN CERT"):
        assert secret not in text
    assert len(text) < 1500
    return text


# --- other protocols -----------------------------------------------------------------------------


def http(peer: Peer) -> None:
    peer.sock.recv(65536)
    peer.say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def html(blanks: bytes) -> Callable[[Peer], None]:
    """As Python's http.server, which takes the request for one of HTTP/0.9."""

    def script(peer: Peer) -> None:
        peer.sock.recv(65536)
        peer.say(blanks + b"<!DOCTYPE HTML>\n<html lang='en'>...</html>")

    return script


def ssh(peer: Peer) -> None:
    peer.say(b"SSH-2.0-OpenSSH_9.6\r\n")
    peer.wait()


def alert(peer: Peer) -> None:
    peer.sock.recv(65536)
    peer.say(b"\x15\x03\x03\x00\x02\x02\x46")


def smtp(peer: Peer) -> None:
    peer.say(b"220 mail.example ESMTP\r\n")
    peer.wait()


OTHERS = {
    "HTTP": (http, "HTTP: this port is a web server's"),
    "HTML": (html(b""), "HTML: this port is a web server's"),
    "HTML after blanks": (html(b"\r\n"), "HTML: this port is a web server's"),
    "SSH": (ssh, "SSH: this port is not a Kafka listener's"),
    "TLS": (alert, "security.protocol SSL or SASL_SSL"),
    "SMTP": (smtp, "is this a Kafka listener?"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("config", [{}, sasl("PLAIN")], ids=["PLAINTEXT", "SASL_PLAINTEXT"])
def test_another_protocol_is_named(other: str, config: dict[str, str]) -> None:
    script, words = OTHERS[other]
    assert words in failure(script, config, DecodeError)


NO_TLS = {
    "HTTP": "HTTP: this port is a web server's",
    "SSH": "SSH: this port is not a Kafka listener's",
    "SMTP": "not TLS; perhaps a listener without TLS: compare security.protocol",
}


@pytest.mark.parametrize("other", NO_TLS)
@pytest.mark.parametrize("config", [TLS, sasl_tls("PLAIN")], ids=["SSL", "SASL_SSL"])
def test_no_tls_where_it_is_wanted(other: str, config: dict[str, str]) -> None:
    # The second is to see what it is, which OpenSSL does not tell.
    text = failure(OTHERS[other][0], config, KafkaConnectionError, connections=2)
    assert NO_TLS[other] in text


def plain_broker(peer: Peer) -> None:
    """Takes the client's first bytes for a frame's size, which is too large, and hangs up; so it
    does on the second look at it, as one that is about to end."""
    peer.sock.recv(4)
    # Else the kernel would reset the connection for what was not read.
    peer.sock.recv(65536)


@pytest.mark.parametrize("config", [TLS, sasl_tls("PLAIN")], ids=["SSL", "SASL_SSL"])
def test_tls_to_a_listener_without(config: dict[str, str]) -> None:
    text = failure(plain_broker, config, KafkaError, connections=2)
    assert "TLS" in text
    assert "PLAINTEXT" in text


@pytest.mark.parametrize("config", [{}, sasl("PLAIN")], ids=["PLAINTEXT", "SASL_PLAINTEXT"])
def test_no_tls_to_a_tls_listener(server_context: ssl.SSLContext, config: dict[str, str]) -> None:
    """OpenSSL's server answers with an alert or hangs up; Java's does the first."""
    with HostileServer(lambda peer: peer.wait(), server_context) as server:
        with pytest.raises(KafkaError) as caught:
            connect(server, config)
    assert "SSL" in str(caught.value)


def test_whose_certificate_is_a_strangers(server_context: ssl.SSLContext) -> None:
    stranger = {"ssl.truststore.certificates": signed("authority").pem}
    text = failure(Peer.wait, TLS | stranger, AuthenticationError, tls=server_context)
    assert "certificate" in text
    assert "ssl.truststore" in text


# --- silence, and ends ---------------------------------------------------------------------------


def until_here(steps: int, mechanism: str, then: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """A broker that does what is right for so many steps, and then something else."""

    def script(peer: Peer) -> None:
        if steps == 1:
            peer.greet()
        elif steps > 1:
            peer.shake(mechanism)
        if steps > 2:
            peer.step(scram_first)
        if steps < 4:
            peer.ask() if steps else None
        then(peer)

    return script


def scram_first(said: bytes) -> bytes:
    nonce = said.partition(b",r=")[2]
    return b"r=" + nonce + b"server,s=c2FsdA==,i=4096"


STEPS = ["at once", "after ApiVersions", "after SaslHandshake", "after the first round"]


@pytest.mark.parametrize("steps", range(4), ids=STEPS)
def test_silence_ends_at_the_deadline(steps: int) -> None:
    script = until_here(steps, "SCRAM-SHA-256", Peer.wait)
    text = failure(script, sasl("SCRAM-SHA-256"), KafkaTimeoutError, total_ms=SILENCE_MS)
    assert "no response within 0." in text, "request.timeout.ms is 30 s"


@pytest.mark.parametrize("drop", [b"", b"\x16\x03\x03"], ids=["silent", "half a record"])
def test_silence_in_the_tls_handshake_ends_at_the_deadline(drop: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.say(drop)
        peer.wait()

    assert failure(script, TLS, KafkaTimeoutError, total_ms=SILENCE_MS)


def test_silence_inside_tls_ends_at_the_deadline(server_context: ssl.SSLContext) -> None:
    text = failure(
        Peer.wait, sasl_tls("PLAIN"), KafkaTimeoutError, tls=server_context, total_ms=SILENCE_MS
    )
    assert "no response within" in text


@pytest.mark.parametrize("steps", range(4), ids=STEPS)
def test_who_hangs_up_is_named(steps: int) -> None:
    script = until_here(steps, "SCRAM-SHA-256", lambda peer: None)
    # Who hung up at once may want TLS: that is looked at.
    looks = 1 if steps == 0 else 0
    text = failure(script, sasl("SCRAM-SHA-256"), KafkaConnectionError, connections=1 + looks)
    assert ("during authentication with SCRAM-SHA-256 as user alice" in text) == (steps > 0)


@pytest.mark.parametrize("encrypted", [False, True], ids=["SASL_PLAINTEXT", "SASL_SSL"])
def test_half_a_frame(encrypted: bool, server_context: ssl.SSLContext) -> None:
    def script(peer: Peer) -> None:
        peer.shake("PLAIN")
        peer.ask()
        peer.say(b"\x00\x00\x00\x40half")

    config = sasl_tls("PLAIN") if encrypted else sasl("PLAIN")
    text = failure(script, config, KafkaConnectionError, tls=server_context if encrypted else None)
    assert "closed the connection" in text


# --- too much ------------------------------------------------------------------------------------


@contextlib.contextmanager
def little_memory(most_bytes: int = 4 << 20) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [200 << 20, 2**31 - 1, -1, 0])
@pytest.mark.parametrize("steps", range(4), ids=STEPS)
def test_a_huge_frame_before_authentication(steps: int, size: int) -> None:
    def then(peer: Peer) -> None:
        peer.say(size.to_bytes(4, "big", signed=True) + b"x" * 100)
        peer.wait()

    script = until_here(steps, "SCRAM-SHA-256", then)
    with little_memory():
        text = failure(script, sasl("SCRAM-SHA-256"), DecodeError)
    assert f"frame of {size} bytes" in text


@pytest.mark.parametrize("config", [{}, TLS], ids=["PLAINTEXT", "SSL"])
def test_a_huge_first_frame_without_authentication(
    server_context: ssl.SSLContext, config: dict[str, str]
) -> None:
    def script(peer: Peer) -> None:
        peer.ask()
        peer.say((200 << 20).to_bytes(4, "big"))
        peer.wait()

    with little_memory():
        text = failure(script, config, DecodeError, tls=server_context if config else None)
    assert f"frame of {200 << 20} bytes" in text


def test_rounds_without_end() -> None:
    """PLAIN is done after one round; SCRAM's second is the last."""

    def script(peer: Peer) -> None:
        peer.shake("SCRAM-SHA-256")
        while True:
            peer.step(scram_first)

    text = failure(script, sasl("SCRAM-SHA-256"), AuthenticationError)
    assert "SCRAM-SHA-256" in text


@pytest.mark.parametrize("count", ["2147483648", "2147483647", "1000001", "1", "-1", "9" * 500])
def test_iterations_that_would_take_for_ever(count: str) -> None:
    def script(peer: Peer) -> None:
        peer.shake("SCRAM-SHA-512")
        peer.step(lambda said: scram_first(said).replace(b"4096", count.encode()))
        peer.wait()

    text = failure(script, sasl("SCRAM-SHA-512"), AuthenticationError)
    assert f"the server requires {count[:20]} iterations" in text


def test_a_server_that_does_not_know_the_password() -> None:
    """SCRAM is mutual: who has no password cannot pose as the broker."""

    def script(peer: Peer) -> None:
        peer.shake("SCRAM-SHA-512")
        peer.step(scram_first)
        peer.step(b"v=" + b"QUJD" * 20)
        peer.wait()

    text = failure(script, sasl("SCRAM-SHA-512"), AuthenticationError)
    assert "it is not who it claims to be" in text


def test_messages_without_end() -> None:
    """A broker's words come into ours cut, and without what would paint the terminal."""

    def script(peer: Peer) -> None:
        peer.shake("PLAIN")
        peer.step(b"", error_code=58, error_message="no\x1b[31m\r\n" * 2000)
        peer.wait()

    text = failure(script, sasl("PLAIN"), AuthenticationError)
    assert "authentication with PLAIN as user alice failed: no" in text
    assert text.isprintable()


def test_mechanisms_without_end() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        request = peer.ask()
        offered = [f"MECHANISM-{n}" for n in range(5000)]
        peer.respond(request, SaslHandshakeResponse(error_code=33, mechanisms=offered))
        peer.wait()

    text = failure(script, sasl("PLAIN"), AuthenticationError)
    assert "no SASL mechanism PLAIN" in text
    assert "MECHANISM-0" in text


# --- a whole client ------------------------------------------------------------------------------


def refuse(peer: Peer) -> None:
    peer.shake("PLAIN")
    peer.step(b"", error_code=58, error_message="Authentication failed: Invalid username")
    peer.wait()


@pytest.mark.parametrize(
    ("script", "config", "kind", "connections"),
    [
        (refuse, sasl("PLAIN"), AuthenticationError, 1),
        (ssh, TLS, KafkaConnectionError, 2),  # and a look at what it is
        (http, {}, KafkaConnectionError, 1),
    ],
    ids=["wrong password", "no TLS", "HTTP"],
)
def test_a_client_tries_once(
    script: Callable[[Peer], None], config: dict[str, str], kind: type[KafkaError], connections: int
) -> None:
    """Retries would lock accounts, and no second response would be another."""
    with HostileServer(script) as server:
        options = parse_client_options(
            {"bootstrap.servers": f"127.0.0.1:{server.port}", "retry.backoff.ms": "1"} | config
        )
        with Cluster(options) as cluster:
            with pytest.raises(kind):
                cluster.all_topics()
        assert server.connections == connections


def test_a_wrong_password_goes_to_only_one_of_many_servers() -> None:
    with (
        HostileServer(refuse) as first,
        HostileServer(refuse) as second,
        HostileServer(refuse) as third,
    ):
        servers = (first, second, third)
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        options = parse_client_options({"bootstrap.servers": addresses} | sasl("PLAIN"))
        with Cluster(options) as cluster:
            with pytest.raises(AuthenticationError, match="Invalid username"):
                cluster.all_topics()
        assert sum(server.connections for server in servers) == 1
