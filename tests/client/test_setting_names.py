"""Messages name a setting as their reader writes it: `retries` in the library, `kafka.retries` in
Spark. Each trouble below meets both, at the same servers."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparkkafka.client import Admin, Connection, Consumer, Producer
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.transactions import SingleTransaction, init_transactions
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import (
    parse_admin_settings,
    parse_consumer_settings,
    parse_producer_settings,
)
from sparkkafka.config.options import (
    ClientOptions,
    parse_group_options,
    parse_read_options,
    parse_stream_options,
    parse_stream_write_options,
    parse_write_options,
)
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, error_description
from sparkkafka.protocol.messages import MetadataRequest
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.hostile import HostileServer, Peer
from tests.client.support import QUICK, values_of
from tests.support.certificates import Identity, signed
from tests.support.partition_producer import PartitionProducer

AUTHORITY = signed("authority")
SERVER = signed("broker", AUTHORITY, hosts=("127.0.0.1",))
ELSEWHERE = signed("other", AUTHORITY, hosts=("other.example",))
STRANGER = signed("stranger", hosts=("127.0.0.1",))

TLS = {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.pem}
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "hush-hush",
}
USERS = {"alice": "hush-hush"}
NOT_IDEMPOTENT = {"enable.idempotence": "false"}

Config = dict[str, str]
Servers = AbstractContextManager[str]


def for_spark(config: Mapping[str, str], **more: str) -> Config:
    return {f"kafka.{name}": value for name, value in config.items()} | more


def said(act: Callable[[Config], None], config: Config) -> str:
    with pytest.raises(KafkaError) as caught:
        act(config)
    assert "hush" not in str(caught.value)
    return str(caught.value)


def check(library: str, spark: str, names: tuple[str, ...]) -> None:
    """One text, with the prefix and without."""
    for name in names:
        assert name in library
        assert f"kafka.{name}" in spark
    assert "kafka." not in library


# --- who is there --------------------------------------------------------------------------------


def server_context(
    folder: Path, identity: Identity, *, wants_certificate: bool = False
) -> ssl.SSLContext:
    context = identity.server_context(folder)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def nobody(folder: Path) -> Servers:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return contextlib.nullcontext(f"127.0.0.1:{port}")


def fake(
    identity: Identity | None = None, *, wants_certificate: bool = False, **more: Any
) -> Callable[[Path], Servers]:
    @contextmanager
    def start(folder: Path) -> Iterator[str]:
        context = None
        if identity is not None:
            context = server_context(folder, identity, wants_certificate=wants_certificate)
        with FakeCluster(1, tls_context=context, **more) as cluster:
            yield cluster.bootstrap_servers

    return start


def scripted(
    script: Callable[[Peer], None], identity: Identity | None = None
) -> Callable[[Path], Servers]:
    @contextmanager
    def start(folder: Path) -> Iterator[str]:
        context = None if identity is None else server_context(folder, identity)
        with HostileServer(script, context) as server:
            yield f"127.0.0.1:{server.port}"

    return start


def hangs_up(peer: Peer) -> None:
    peer.sock.recv(65536)


def mail(peer: Peer) -> None:
    peer.say(b"220 mail.example ESMTP\r\n")
    peer.wait()


# --- connections ---------------------------------------------------------------------------------


class Trouble(NamedTuple):
    servers: Callable[[Path], Servers]
    config: Config
    names: tuple[str, ...]


# What may pass by itself: one attempt, since the last of many may have run out of time half-way.
PASSING = {
    "hangs up": Trouble(scripted(hangs_up), {}, ("security.protocol",)),
    "hangs up on SASL": Trouble(scripted(hangs_up), SASL, ("security.protocol",)),
    "hangs up on TLS": Trouble(scripted(hangs_up), TLS, ("security.protocol",)),
    "hangs up after TLS": Trouble(scripted(hangs_up, SERVER), TLS, ("ssl.keystore.location",)),
    "silent on TLS": Trouble(
        scripted(Peer.wait), TLS | {"request.timeout.ms": "300"}, ("security.protocol",)
    ),
    "no SASL where it is wanted": Trouble(
        fake(sasl_users=USERS), {}, ("security.protocol to SASL_PLAINTEXT",)
    ),
    "no SASL over TLS": Trouble(
        fake(SERVER, sasl_users=USERS),
        TLS,
        ("security.protocol to SASL_SSL",),
    ),
    "no certificate of ours": Trouble(
        fake(SERVER, wants_certificate=True), TLS, ("ssl.keystore.location",)
    ),
}

LASTING = {
    "nobody there": Trouble(nobody, {"default.api.timeout.ms": "700"}, ("bootstrap.servers",)),
    "TLS to a plain port": Trouble(scripted(mail), TLS, ("security.protocol",)),
    "SASL where none is wanted": Trouble(fake(), SASL, ("security.protocol",)),
    "another mechanism": Trouble(
        fake(sasl_users=USERS), SASL | {"sasl.mechanism": "SCRAM-SHA-256"}, ("sasl.mechanism",)
    ),
    "a stranger's certificate": Trouble(fake(STRANGER), TLS, ("ssl.truststore.location",)),
    "another host's certificate": Trouble(
        fake(ELSEWHERE), TLS, ("bootstrap.servers", "ssl.endpoint.identification.algorithm")
    ),
}


def check_both(
    tmp_path: Path,
    trouble: Trouble,
    library: Callable[[Config], None],
    spark: Callable[[Config], None],
) -> None:
    """The same servers, through the library and with Spark's options."""
    with trouble.servers(tmp_path) as address:
        config = QUICK | trouble.config | {"bootstrap.servers": address}
        check(said(library, config), said(spark, config), trouble.names)


def by_hand(config: Config) -> None:
    with Connection.to(config) as connection:
        connection.call(MetadataRequest(topics=[]))


def by_hand_for_spark(config: Config) -> None:
    options = parse_read_options(for_spark(config, subscribe="t")).client
    deadline = Deadline(options.request_timeout_ms)
    with Connection.open(*options.bootstrap_servers[0], options, deadline) as connection:
        connection.call(MetadataRequest(topics=[]))


@pytest.mark.parametrize("trouble", PASSING)
def test_one_connection(tmp_path: Path, trouble: str) -> None:
    check_both(tmp_path, PASSING[trouble], by_hand, by_hand_for_spark)


def administer(config: Config) -> None:
    with Admin(config) as admin:
        admin.list_topics()


def administer_for_spark(config: Config) -> None:
    with Cluster(parse_read_options(for_spark(config, subscribe="t")).client) as cluster:
        cluster.all_topics()


@pytest.mark.parametrize("trouble", LASTING)
def test_a_cluster(tmp_path: Path, trouble: str) -> None:
    check_both(tmp_path, LASTING[trouble], administer, administer_for_spark)


def produce(config: Config) -> None:
    with Producer(config) as producer:
        producer.send("t", value=b"1").result(20)


def consume(config: Config) -> None:
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        for _ in range(100):
            consumer.poll(0.2)


@pytest.mark.parametrize("act", [produce, consume, by_hand])
def test_each_class_of_the_library(tmp_path: Path, act: Callable[[Config], None]) -> None:
    with fake(STRANGER)(tmp_path) as address:
        words = said(act, QUICK | TLS | {"bootstrap.servers": address})
    assert "Set ssl.truststore.location" in words
    assert "kafka." not in words


# --- writes --------------------------------------------------------------------------------------


def produce_for_spark(config: Config) -> None:
    options = parse_write_options(for_spark(config, topic="t"))
    with (
        Cluster(options.client) as cluster,
        PartitionProducer(cluster, options.producer) as producer,
    ):
        for _ in range(50):
            producer.send("t", 0, values_of(range(1)))
            producer.flush()


REFUSALS: dict[str, tuple[Any, Config, str]] = {
    "retries": (ErrorCode.NOT_ENOUGH_REPLICAS, {"retries": "0"} | NOT_IDEMPOTENT, "retries=0"),
    "lost": (Drop.BEFORE, {"retries": "0"} | NOT_IDEMPOTENT, "retries=0"),
    "late": (
        Delay(60_000),
        {"request.timeout.ms": "300", "delivery.timeout.ms": "400", "linger.ms": "0"},
        "delivery.timeout.ms=400",
    ),
    "too large": (ErrorCode.MESSAGE_TOO_LARGE, {}, "compression.type"),
    "list too large": (ErrorCode.RECORD_LIST_TOO_LARGE, {}, "batch.size"),
    "acks": (ErrorCode.INVALID_REQUIRED_ACKS, {}, "acks"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_write(fake_cluster: FakeCluster, refusal: str) -> None:
    action, config, name = REFUSALS[refusal]
    fake_cluster.create_topic("t")
    fake_cluster.fault(action, api="Produce", times=None)
    config = QUICK | config | {"bootstrap.servers": fake_cluster.bootstrap_servers}
    check(said(produce, config), said(produce_for_spark, config), (name,))


def test_a_codec_that_a_broker_does_not_know(fake_cluster_factory: Any) -> None:
    cluster = fake_cluster_factory(1, api_versions={"Produce": (0, 6)})
    cluster.create_topic("t")
    config = QUICK | {"compression.type": "zstd", "bootstrap.servers": cluster.bootstrap_servers}
    check(said(produce, config), said(produce_for_spark, config), ("compression.type",))


def produce_much(config: Config) -> None:
    producer = Producer(config)
    try:
        for _ in range(1000):
            producer.send("t", value=b"x" * 100)
    finally:
        with contextlib.suppress(KafkaError):  # of what had room
            producer.close(0)


def produce_much_for_spark(config: Config) -> None:
    options = parse_write_options(for_spark(config, topic="t"))
    with (
        Cluster(options.client) as cluster,
        PartitionProducer(cluster, options.producer) as producer,
    ):
        for _ in range(1000):
            producer.send("t", 0, values_of(range(100)))


@pytest.mark.slow
def test_no_memory(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000), api="Produce", times=None)
    config = QUICK | {
        "bootstrap.servers": fake_cluster.bootstrap_servers,
        "buffer.memory": "2000",
        "batch.size": "400",
        "max.block.ms": "1000",
    }
    words = said(produce_much, config), said(produce_much_for_spark, config)
    check(*words, ("max.block.ms=1000",))


def test_a_record_that_is_too_large(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    config = QUICK | {
        "bootstrap.servers": fake_cluster.bootstrap_servers,
        "max.request.size": "60",
    }
    words = said(produce_much, config), said(produce_for_spark, config)
    check(*words, ("max.request.size=60",))
    assert fake_cluster.requests_of("Produce") == []


def begin(config: Config) -> None:
    with Producer(config) as producer:
        producer.init_transactions()


def begin_for_spark(config: Config) -> None:
    given = {name: value for name, value in config.items() if name != "transactional.id"}
    options = parse_write_options(for_spark(given, deliveryGuarantee="exactly-once"))
    timeout_ms = options.producer.transaction_timeout_ms
    with SingleTransaction(options.client, "x", timeout_ms, 5_000) as transaction:
        transaction.begin()


def test_a_transaction_that_may_not_be_so_long(fake_cluster_factory: Any) -> None:
    cluster = fake_cluster_factory(1, max_transaction_timeout_ms=5_000)
    config = QUICK | {
        "bootstrap.servers": cluster.bootstrap_servers,
        "transactional.id": "x",
        "transaction.timeout.ms": "5001",
    }
    check(said(begin, config), said(begin_for_spark, config), ("transaction.timeout.ms is above",))


def test_a_transaction_that_another_has_taken_over(fake_cluster: FakeCluster) -> None:
    fake_cluster.fault(ErrorCode.PRODUCER_FENCED, api="InitProducerId", times=None)
    servers = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    words = []
    for client in (
        parse_producer_settings(QUICK | servers).client,
        parse_write_options(for_spark(QUICK | servers)).client,
    ):
        with Cluster(client) as cluster:
            found = init_transactions(cluster, ["x"], 60_000, cluster.deadline())
        words.append(str(found["x"]))
    check(words[0], words[1], ("transaction.timeout.ms",))


def test_an_abort_that_fails_is_logged(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Of Spark's sink; the library has a line of its own."""
    fake_cluster.create_topic("t")
    given = for_spark(QUICK | {"bootstrap.servers": fake_cluster.bootstrap_servers})
    with (
        caplog.at_level(logging.WARNING),
        contextlib.suppress(ZeroDivisionError),
        SingleTransaction(parse_write_options(given).client, "x", 60_000, 5_000) as transaction,
    ):
        transaction.add([TopicPartition("t", 0)])
        refused = ErrorResponse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        fake_cluster.fault(refused, api="InitProducerId", times=None)
        raise ZeroDivisionError
    assert "or kafka.transaction.timeout.ms, ends it" in caplog.text


# --- reads ---------------------------------------------------------------------------------------


def test_a_fetch(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.INVALID_FETCH_SIZE, api="Fetch", times=None)
    words = said(consume, QUICK | {"bootstrap.servers": fake_cluster.bootstrap_servers})
    of_spark = str(BrokerError(ErrorCode.INVALID_FETCH_SIZE, prefix="kafka."))
    check(words, of_spark, ("fetch.max.bytes", "max.partition.fetch.bytes"))


# --- the prefix itself ---------------------------------------------------------------------------

SERVERS = {"bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        (parse_admin_settings(SERVERS), ""),
        (parse_consumer_settings(SERVERS).client, ""),
        (parse_producer_settings(SERVERS).client, ""),
        (parse_read_options(for_spark(SERVERS, subscribe="t")).client, "kafka."),
        (parse_stream_options(for_spark(SERVERS, subscribe="t")).client, "kafka."),
        (parse_group_options(for_spark(SERVERS)).client, "kafka."),
        (parse_write_options(for_spark(SERVERS)).client, "kafka."),
        (parse_stream_write_options(for_spark(SERVERS)).client, "kafka."),
    ],
)
def test_it_goes_with_the_options(options: ClientOptions, prefix: str) -> None:
    assert options.prefix == prefix
    assert pickle.loads(pickle.dumps(options)).prefix == prefix


def test_descriptions_of_codes() -> None:
    for code in ErrorCode:
        words = error_description(code, "")
        assert "kafka." not in words
        assert "{" not in words + code.description
        error = BrokerError(code, "here", prefix="")
        assert str(error) == str(pickle.loads(pickle.dumps(error)))
        assert str(error).endswith(f": {words}")
