"""Secured brokers: TLS, SASL and ACLs with our client, a second one over the same listeners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from sparkkafka.client.admin.brokers import describe_cluster
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.consumer.range_reader import PlannedRange, RangeReader
from sparkkafka.client.group.committed_offsets import fetch_all_committed
from sparkkafka.client.producer.transactions import SingleTransaction
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import AuthenticationError, BrokerError, KafkaError, ProduceError
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.encode import RecordColumns
from tests.real.secured import (
    MECHANISMS,
    PASSWORDS,
    PROTOCOLS,
    Secured,
    confluent_read,
    confluent_write,
)
from tests.support.certificates import signed
from tests.support.options import parse_client_options, parse_fetch_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.token_server import Signer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


# Every listener whose certificate is good, with every mechanism that it has.
WAYS = [
    (listener, mechanism)
    for listener, protocol in PROTOCOLS.items()
    if listener not in ("OTHERNAME", "EXPIRED", "SCRAMONLY")
    for mechanism in (MECHANISMS if protocol.startswith("SASL") else ("",))
] + [("SCRAMONLY", "SCRAM-SHA-512")]


# --- our client ----------------------------------------------------------------------------------


def columns(values: list[bytes]) -> RecordColumns:
    return RecordColumns(
        keys=None,
        values=pa.array(values, pa.binary()),
        headers=None,
        timestamps_ms=np.full(len(values), 1_700_000_000_000, np.int64),
    )


def write(config: dict[str, str], topic: str, values: list[bytes]) -> None:
    with (
        Cluster(parse_client_options(config)) as cluster,
        PartitionProducer(cluster, parse_producer_options(config)) as producer,
    ):
        producer.send(topic, 0, columns(values))
        producer.flush()


def read(config: dict[str, str], topic: str) -> list[bytes | None]:
    tp = TopicPartition(topic, 0)
    with Cluster(parse_client_options(config)) as cluster:
        first, end = OffsetLookup(cluster).earliest_and_latest([tp])
        return list(values_of(cluster, config, topic, first[tp], end[tp]))


def values_of(cluster: Cluster, config: dict[str, str], topic: str, start: int, end: int) -> Any:
    options = parse_fetch_options(config)
    tp = TopicPartition(topic, 0)
    ranges = {tp: PlannedRange(Selection(start, end))}
    with RangeReader(cluster, ranges, options, poll_timeout_ms=20_000) as reader:
        for _, records in reader:
            yield from records.values.to_pylist()


@pytest.fixture
def topic(secured: Secured, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in request.node.name)[:200]
    secured.cluster.create_topic(name)
    return name


@dataclass
class Refused:
    """An error, and what it cost the broker."""

    error: KafkaError
    authentications: int  # that failed

    @property
    def words(self) -> str:
        return str(self.error)


@pytest.fixture
def refused(secured: Secured) -> Callable[..., Refused]:
    """Look for all topics, in vain."""

    def run(config: dict[str, str], kind: type[KafkaError] = AuthenticationError) -> Refused:
        before = secured.failed_authentications()
        with Cluster(parse_client_options(config)) as cluster:
            with pytest.raises(kind) as caught:
                cluster.all_topics()
        text = str(caught.value)
        assert "hush" not in text
        assert "PRIVATE" not in text
        # Whoever came before a later one is in the log when that one is.
        before_probe = secured.requests_seen("probe")
        with Cluster(parse_client_options(secured.ours("CLIENT") | {"client.id": "probe"})) as it:
            it.all_topics()
        wait_until(lambda: secured.requests_seen("probe") > before_probe)
        return Refused(caught.value, secured.failed_authentications() - before)

    return run


# --- every way in --------------------------------------------------------------------------------


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_what_one_client_writes_the_other_reads(
    secured: Secured, topic: str, listener: str, mechanism: str
) -> None:
    theirs = secured.confluent(listener, mechanism) | {"client.id": f"{topic}-theirs"}
    ours = secured.ours(listener, mechanism) | {"client.id": topic}
    confluent_write(theirs, topic, [b"one", b"two"])
    write(ours, topic, [b"three", b"four"])
    expected = [b"one", b"two", b"three", b"four"]
    assert confluent_read(theirs, topic, 4) == expected
    assert read(ours, topic) == expected
    user = {"TLS": "User:ANONYMOUS", "MTLS": "User:CN=client"}.get(listener, "User:alice")
    for client_id in (topic, f"{topic}-theirs"):
        wait_until(lambda client_id=client_id: "FETCH" in secured.request_counts(client_id))
        rows = [row for row in secured.requests(client_id) if row["listener"] == listener]
        assert {row["principal"] for row in rows} == {user}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_full_of_signs(secured: Secured, topic: str, mechanism: str) -> None:
    config = secured.ours("SASLTLS", mechanism, "bob")
    write(config, topic, [b"v"])
    plain_names = config | {"sasl.username": "bob", "sasl.password": PASSWORDS["bob"]}
    del plain_names["sasl.jaas.config"]
    assert read(plain_names, topic) == [b"v"]


def identities(secured: Secured) -> dict[str, dict[str, str]]:
    client, folder, secret = secured.client, secured.folder, "hush-store"
    (folder / "client.p12").write_bytes(client.pkcs12(secret, [secured.authority]))
    (folder / "client.pem").write_text(client.key_pem(secret) + client.pem)
    (folder / "chain.pem").write_text(client.pem + secured.authority.pem)
    (folder / "key.pem").write_text(client.key_pem())
    (folder / "store.password").write_text(secret)
    return {
        "PKCS12": {
            "ssl.keystore.location": f"{folder}/client.p12",
            "ssl.keystore.password": secret,
            "ssl.keystore.type": "PKCS12",
        },
        "PKCS12 by reference": {
            "ssl.keystore.location": f"{folder}/client.p12",
            "ssl.keystore.password": f"${{directory:{folder}:store.password}}",
        },
        "encrypted PEM": {
            "ssl.keystore.location": f"{folder}/client.pem",
            "ssl.key.password": secret,
            "ssl.keystore.type": "PEM",
        },
        "inline PEM": {
            "ssl.keystore.certificate.chain": client.pem,
            "ssl.keystore.key": client.key_pem(secret),
            "ssl.key.password": secret,
        },
        "librdkafka's names": {
            "ssl.certificate.location": f"{folder}/chain.pem",
            "ssl.key.location": f"{folder}/key.pem",
        },
    }


IDENTITIES = (
    "PKCS12", "PKCS12 by reference", "encrypted PEM", "inline PEM", "librdkafka's names"
)  # fmt: skip


@pytest.mark.parametrize("kind", IDENTITIES)
def test_client_certificates(secured: Secured, topic: str, kind: str) -> None:
    config = secured.ours("MTLS") | {"client.id": topic}
    for name in [name for name in config if "keystore" in name]:
        del config[name]
    config |= identities(secured)[kind]
    write(config, topic, [b"v"])
    wait_until(lambda: "PRODUCE" in secured.request_counts(topic))
    assert {row["principal"] for row in secured.requests(topic)} == {"User:CN=client"}


def test_every_identity_is_tried(secured: Secured) -> None:
    assert (*identities(secured),) == IDENTITIES


@pytest.mark.parametrize("listener", ["TLS", "SASLTLS"])
def test_the_host_name_is_localhost_too(secured: Secured, listener: str) -> None:
    config = secured.ours(listener, "PLAIN" if listener == "SASLTLS" else "")
    config["bootstrap.servers"] = f"localhost:{secured.port(listener)}"
    with Cluster(parse_client_options(config)) as cluster:
        assert describe_cluster(cluster, cluster.deadline()).brokers


def test_thirty_megabytes(secured: Secured, topic: str) -> None:
    """TLS keeps bytes back that poll() does not know of: a reader that forgets them stalls."""
    config = secured.ours("SASLTLS", "SCRAM-SHA-512") | {"max.request.size": "2000000"}
    value = bytes(range(256)) * 400
    count = 30_000_000 // len(value)
    with (
        Cluster(parse_client_options(config)) as cluster,
        PartitionProducer(cluster, parse_producer_options(config)) as producer,
    ):
        for start in range(0, count, 50):
            producer.send(topic, 0, columns([value] * min(50, count - start)))
        producer.flush()
        read_back = 0
        for found in values_of(cluster, config, topic, 0, count):
            assert found == value
            read_back += 1
    assert read_back == count


# --- the wrong password --------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["SASLTEXT", "SASLTLS"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_tried_once(
    secured: Secured, refused: Callable[..., Refused], listener: str, mechanism: str
) -> None:
    found = refused(secured.ours(listener, mechanism, password="hush-wrong"))
    assert f"authentication with {mechanism} as user alice failed: Authentication fail" in (
        found.words
    )
    assert found.authentications == 1


def test_who_is_not_known(secured: Secured, refused: Callable[..., Refused]) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        found = refused(secured.ours("SASLTEXT", mechanism, "mallory", password="hush"))
        assert "user mallory failed" in found.words
        assert found.authentications == 1


def test_a_wrong_client_secret(secured: Secured, refused: Callable[..., Refused]) -> None:
    asked = len(secured.tokens.requests)
    found = refused(secured.ours("SASLTLS", "OAUTHBEARER", password="hush-wrong"))
    assert "status 401: invalid_client: no such client" in found.words
    assert "client.secret" in found.words
    assert found.authentications == 0
    assert len(secured.tokens.requests) - asked == 1


@pytest.mark.parametrize("case", ["of another signer", "that has ended", "that is none"])
def test_a_token_that_the_broker_does_not_take(
    secured: Secured, refused: Callable[..., Refused], case: str
) -> None:
    tokens = {
        "of another signer": Signer().token("alice"),
        "that has ended": secured.tokens.signer.token("alice", -3600),
        "that is none": "abc",
    }
    config = secured.ours("SASLTLS", "OAUTHBEARER")
    del config["sasl.oauthbearer.token.endpoint.url"], config["sasl.jaas.config"]
    found = refused(config | {"sasl.oauthbearer.token": tokens[case]})
    assert "OAUTHBEARER" in found.words
    assert "invalid_token" in found.words
    assert tokens[case] not in found.words
    # RFC 7628: the refusal, and an end that both sides say.
    assert found.authentications == 1


# --- the wrong kind of listener ------------------------------------------------------------------


def change(config: dict[str, str], **changes: str | None) -> dict[str, str]:
    """Java's names with underscores; None takes one away."""
    for name, value in changes.items():
        config.pop(name.replace("_", "."), None)
        if value is not None:
            config[name.replace("_", ".")] = value
    return config


def test_an_authority_that_nobody_knows(
    secured: Secured, refused: Callable[..., Refused], tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_text(signed("somebody else").pem)
    for listener in ("TLS", "SASLTLS"):
        config = secured.ours(listener, "PLAIN" if listener == "SASLTLS" else "")
        config["ssl.truststore.location"] = str(tmp_path / "other.pem")
        found = refused(config)
        assert "the broker's certificate is not signed by an authority that is trusted" in (
            found.words
        )
        assert str(tmp_path / "other.pem") in found.words
        assert found.authentications <= 1


def test_the_systems_authorities_do_not_do(
    secured: Secured, refused: Callable[..., Refused]
) -> None:
    found = refused(change(secured.ours("TLS"), ssl_truststore_location=None))
    assert "the system's authorities" in found.words
    assert "Set ssl.truststore.location" in found.words


def test_another_host_name(secured: Secured, refused: Callable[..., Refused], topic: str) -> None:
    config = secured.ours("OTHERNAME")
    found = refused(config)
    assert "certificate is not for 127.0.0.1: it has the names other.example" in found.words
    config["ssl.endpoint.identification.algorithm"] = ""
    write(config, topic, [b"v"])


def test_a_certificate_of_last_week(secured: Secured, refused: Callable[..., Refused]) -> None:
    assert "the broker's certificate has expired" in refused(secured.ours("EXPIRED")).words


def test_no_client_certificate(secured: Secured, refused: Callable[..., Refused]) -> None:
    config = secured.ours("MTLS")
    for name in [name for name in config if "keystore" in name]:
        del config[name]
    found = refused(config)
    assert "set ssl.keystore.location" in found.words
    assert found.authentications == 1


def test_a_strangers_client_certificate(secured: Secured, refused: Callable[..., Refused]) -> None:
    stranger = signed("client", signed("somebody else"))
    config = secured.ours("MTLS") | {
        "ssl.keystore.certificate.chain": stranger.pem,
        "ssl.keystore.key": stranger.key_pem(),
    }
    found = refused(config)
    assert "ssl.keystore" in found.words
    assert found.authentications == 1


def test_plain_where_scram_is_wanted(secured: Secured, refused: Callable[..., Refused]) -> None:
    found = refused(secured.ours("SCRAMONLY", "PLAIN"))
    assert "has no SASL mechanism PLAIN, but SCRAM-SHA-512" in found.words
    assert found.authentications <= 1


# The listener, our protocol, the kind of error, words. Where Java's broker only hangs up, a second
# look at the listener says what it wants.
CROSSED = {
    "PLAINTEXT to SSL": ("TLS", "PLAINTEXT", KafkaError, "SSL or SASL_SSL"),
    "PLAINTEXT to SASL_SSL": ("SASLTLS", "PLAINTEXT", KafkaError, "SSL or SASL_SSL"),
    "PLAINTEXT to SASL_PLAINTEXT": ("SASLTEXT", "PLAINTEXT", KafkaError, "requires SASL"),
    "SSL to PLAINTEXT": ("CLIENT", "SSL", KafkaError, "does not use TLS"),
    "SSL to SASL_SSL": ("SASLTLS", "SSL", KafkaError, "requires SASL"),
    "SASL_SSL to SASL_PLAINTEXT": ("SASLTEXT", "SASL_SSL", KafkaError, "does not use TLS"),
    "SASL_PLAINTEXT to SASL_SSL": ("SASLTLS", "SASL_PLAINTEXT", KafkaError, "SSL or SASL_SSL"),
    "SASL_PLAINTEXT to PLAINTEXT": (
        "CLIENT", "SASL_PLAINTEXT", AuthenticationError, "this listener does not use SASL"
    ),
    "SASL_SSL to SSL": ("TLS", "SASL_SSL", AuthenticationError, "this listener does not use SASL"),
}  # fmt: skip


@pytest.mark.parametrize("case", CROSSED)
def test_protocols_that_are_crossed(
    secured: Secured, refused: Callable[..., Refused], case: str
) -> None:
    listener, protocol, kind, words = CROSSED[case]
    like = {"PLAINTEXT": "CLIENT", "SSL": "TLS", "SASL_PLAINTEXT": "SASLTEXT"}.get(
        protocol, "SASLTLS"
    )
    config = secured.ours(like, "SCRAM-SHA-512" if protocol.startswith("SASL") else "")
    config["bootstrap.servers"] = secured.servers(listener)
    found = refused(config | {"default.api.timeout.ms": "60000"}, kind)
    assert words in found.words
    assert "security.protocol" in found.words
    assert found.authentications <= 2  # the second is the second look


# --- ACLs ----------------------------------------------------------------------------------------


def test_a_topic_that_others_may_write_and_read(secured: Secured, topic: str) -> None:
    secured.guard(ResourceType.TOPIC, topic, AclOperation.ALL, "carol")
    secured.guard(ResourceType.TOPIC, topic, AclOperation.DESCRIBE, "alice")
    for what, run, permission in (
        ("writer", lambda config: write(config, topic, [b"v"]), "WRITE"),
        ("reader", lambda config: read_from(config, topic), "READ"),
    ):
        client_id = f"{topic}-{what}"
        config = secured.ours("SASLTLS", "SCRAM-SHA-512") | {"client.id": client_id}
        with pytest.raises((ProduceError, BrokerError)) as caught:
            run(config)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(caught.value)
        assert topic in str(caught.value)
        assert permission in str(caught.value)
        api = "PRODUCE" if what == "writer" else "FETCH"
        wait_until(lambda client_id=client_id, api=api: api in secured.request_counts(client_id))
        counts = secured.request_counts(client_id)
        assert counts[api] == 1
        assert counts.total() <= 8, counts


def read_from(config: dict[str, str], topic: str) -> list[Any]:
    with Cluster(parse_client_options(config)) as cluster:
        return list(values_of(cluster, config, topic, 0, 1))


def test_a_topic_that_others_may_see(secured: Secured, topic: str) -> None:
    secured.guard(ResourceType.TOPIC, topic, AclOperation.ALL, "carol")
    config = secured.ours("SASLTLS", "PLAIN") | {"client.id": topic}
    with pytest.raises(BrokerError, match=f"TOPIC_AUTHORIZATION_FAILED.*{topic}"):
        read(config, topic)
    wait_until(lambda: "METADATA" in secured.request_counts(topic))
    assert secured.request_counts(topic).total() <= 4


def test_a_group_of_others(secured: Secured, topic: str) -> None:
    group = f"group-of-{topic}"
    secured.guard(ResourceType.GROUP, group, AclOperation.ALL, "carol")
    config = secured.ours("SASLTLS", "PLAIN") | {"client.id": topic}
    with Cluster(parse_client_options(config)) as cluster:
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED") as caught:
            fetch_all_committed(cluster, group)
    assert group in str(caught.value)
    wait_until(lambda: "FIND_COORDINATOR" in secured.request_counts(topic))
    assert secured.request_counts(topic).total() <= 5


def test_a_transactional_id_of_others(secured: Secured, topic: str) -> None:
    name = f"id-of-{topic}"
    secured.guard(ResourceType.TRANSACTIONAL_ID, name, AclOperation.ALL, "carol")
    config = secured.ours("SASLTLS", "PLAIN") | {"client.id": topic}
    options = parse_client_options(config)
    with SingleTransaction(options, name, 60_000, 20_000) as transaction:
        with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
            transaction.begin()
    assert name in str(caught.value)
    assert "WRITE" in str(caught.value)
    wait_until(lambda: "FIND_COORDINATOR" in secured.request_counts(topic))
    assert secured.request_counts(topic).total() <= 5
