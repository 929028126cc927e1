"""A client of one security protocol at a listener of another: if that is certain, an error."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, Producer
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import KafkaError, KafkaTimeoutError
from sparkkafka.protocol.messages import SaslHandshakeResponse
from sparkkafka.testing.fake.faults import Drop
from sparkkafka.testing.fake.security.sasl import FakeSasl
from tests.client.hostile import HostileServer, Peer
from tests.support.certificates import signed
from tests.support.options import parse_client_options

TLS = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
ALICE = {
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="hush";',
}
USERS = {"alice": "hush"}
LONG_S = 60.0
BROKER = signed("broker")


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    return BROKER.server_context(tmp_path)


def trusting(config: dict[str, str]) -> dict[str, str]:
    if not config.get("security.protocol", "").endswith("SSL"):
        return config
    return config | {"ssl.truststore.certificates": BROKER.pem}


@pytest.mark.parametrize(
    ("listener", "config", "message"),
    [
        ("", TLS, "does not use TLS.*set security.protocol to PLAINTEXT or SASL_PLAINTEXT"),
        ("sasl", {**TLS, **ALICE, "security.protocol": "SASL_SSL"}, "does not use TLS"),
        ("tls", {}, "TLS.*security.protocol to SSL or SASL_SSL"),
        ("tls", {**ALICE, "security.protocol": "SASL_PLAINTEXT"}, "TLS.*SASL_SSL"),
        ("sasl", {}, "requires SASL: set security.protocol to SASL_PLAINTEXT .*one of .*PLAIN"),
        ("tls sasl", TLS, "requires SASL: set security.protocol to SASL_SSL .*one of .*PLAIN"),
        ("", {**ALICE, "security.protocol": "SASL_PLAINTEXT"}, "does not use SASL"),
        ("tls", {**TLS, **ALICE, "security.protocol": "SASL_SSL"}, "does not use SASL"),
    ],
)
def test_what_is_certain_is_final_codes(
    fake_cluster_factory: Any, tls: ssl.SSLContext, listener: str, config: Any, message: str
) -> None:
    cluster = fake_cluster_factory(
        1,
        tls_context=tls if "tls" in listener else None,
        sasl_users=USERS if "sasl" in listener else None,
    )
    servers = cluster.bootstrap_servers
    given = trusting({"bootstrap.servers": servers, **config})
    with Admin(given) as admin, pytest.raises(KafkaError, match=message) as caught:
        admin.list_topics(timeout_s=LONG_S)
    assert not isinstance(caught.value, KafkaTimeoutError)
    assert not caught.value.retriable
    assert servers.split(":")[1] in str(caught.value)


def test_consumer_and_producer_say_it_too(fake_cluster_factory: Any) -> None:
    given = {"bootstrap.servers": fake_cluster_factory(1).bootstrap_servers, **TLS}
    with Consumer(given) as consumer, pytest.raises(KafkaError, match="does not use TLS"):
        consumer.beginning_offsets([("t", 0)], timeout_s=LONG_S)  # type: ignore[list-item]
    with Producer(given | {"max.block.ms": "60000"}) as producer:
        with pytest.raises(KafkaError, match="does not use TLS"):
            producer.send("t", b"v").result(LONG_S)


@pytest.mark.parametrize("config", [{}, TLS], ids=["PLAINTEXT", "SSL"])
def test_who_hangs_up_on_everybody_is_asked_again(config: dict[str, str]) -> None:
    """A broker that starts, or dies: nothing is certain."""

    def script(peer: Peer) -> None:
        peer.sock.recv(65536)

    with HostileServer(script) as server:
        options = parse_client_options({"bootstrap.servers": f"127.0.0.1:{server.port}", **config})
        with Cluster(options) as cluster, pytest.raises(KafkaTimeoutError):
            cluster.all_topics(Deadline(600))
        assert server.connections > 3


@pytest.mark.parametrize("kfake", [False, True])
def test_a_broker_that_hangs_up_on_the_first_request_is_asked_again(
    fake_cluster_factory: Any, monkeypatch: pytest.MonkeyPatch, kfake: bool
) -> None:
    """It does not use SASL: so it was a restart, or the like. franz-go's kfake does not say so, but
    names no mechanism."""
    cluster = fake_cluster_factory(1)
    if kfake:
        monkeypatch.setattr(FakeSasl, "handshake", lambda *_: SaslHandshakeResponse())
    cluster.fault(api="Metadata", action=Drop.BEFORE, times=2)
    options = parse_client_options({"bootstrap.servers": cluster.bootstrap_servers})
    with Cluster(options) as client:
        assert client.all_topics(Deadline(10_000)) == {}
