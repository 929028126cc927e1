"""Real brokers: what a test may rely on when it uses KafkaCluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from sparkkafka.errors import BrokerError, ErrorCode, KafkaTimeoutError
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.kafka import admin, storage
from sparkkafka.testing.kafka.broker import read_properties
from sparkkafka.testing.kafka.cluster import CLIENT_LISTENER, Broker, KafkaCluster
from sparkkafka.testing.kafka.ports import LOOPBACK, ReservedPorts
from sparkkafka.testing.kafka.process import UnavailableError
from sparkkafka.testing.kafka.properties import MANAGED_PROPERTIES, default_properties
from sparkkafka.testing.pytest_plugin import KafkaClusterFactory
from tests.real.processes import assert_a_killed_run_leaves_nothing

CONF = Path(__file__).parents[2] / "conf" / "broker.properties"


def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(message.value())
        return values
    finally:
        consumer.close()


def broker_configs(bootstrap: str, broker_id: int) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    (future,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in future.result(30).items()}


@pytest.mark.real
def test_one_broker_writes_and_reads(kafka_cluster: KafkaCluster) -> None:
    kafka_cluster.create_topic("one-broker", partitions=2, configs={"retention.ms": 1000000})
    values = [b"%d" % number for number in range(100)]
    write(kafka_cluster.bootstrap_servers, "one-broker", values)
    assert sorted(read(kafka_cluster.bootstrap_servers, "one-broker", 100)) == sorted(values)


@pytest.mark.real
def test_a_refused_topic_has_the_brokers_message(kafka_cluster: KafkaCluster) -> None:
    kafka_cluster.create_topic("twice")
    with pytest.raises(BrokerError, match="36 TOPIC_ALREADY_EXISTS from CreateTopics twice"):
        kafka_cluster.create_topic("twice")
    with pytest.raises(BrokerError, match="Unknown topic config name: no_such"):
        kafka_cluster.create_topic("bad-config", configs={"no_such": 1})
    with pytest.raises(KafkaTimeoutError, match="38 INVALID_REPLICATION_FACTOR"):
        kafka_cluster.create_topic("too-many", replication_factor=3, timeout_seconds=0.5)


@pytest.mark.real
def test_a_misspelt_topic_is_not_created(kafka_cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.list_topics("never-created", timeout=10)
    assert "never-created" not in admin.list_topics(timeout=10).topics


@pytest.mark.soak  # in each run test_brokers_die has it under Spark's jobs
@pytest.mark.real
def test_three_brokers_survive_the_loss_of_one_after_another(
    kafka_cluster_factory: KafkaClusterFactory,
) -> None:
    cluster = kafka_cluster_factory(
        3, {"min.insync.replicas": 2}, broker_properties={1: {"num.io.threads": 5}}
    )
    assert cluster.broker_ids == (0, 1, 2)
    assert [
        broker_configs(cluster.bootstrap_servers, number)["num.io.threads"] for number in range(3)
    ] == ["8", "5", "8"]
    cluster.create_topic("t", partitions=3, replication_factor=3)
    cluster.kill(1)
    write(cluster.bootstrap_servers, "t", [b"%d" % number for number in range(30)])
    cluster.create_topic("made-by-the-rest", replication_factor=2)
    cluster.start(1)
    cluster.kill(0)
    assert len(read(cluster.bootstrap_servers, "t", 30)) == 30


class TwoBrokers(NamedTuple):
    cluster: KafkaCluster
    started: list[Sequence[str]]
    """The arguments of each Java that was started."""


@pytest.fixture(scope="module")
def two_brokers(kafka_cluster: KafkaCluster) -> Iterator[TwoBrokers]:
    """`kafka_cluster` is asked for so that a machine without Java skips here too."""
    started: list[Sequence[str]] = []
    run_java = KafkaCluster.run_java

    def run(self: KafkaCluster, broker: Any, arguments: Sequence[str]) -> Any:
        started.append(arguments)
        return run_java(self, broker, arguments)

    cluster = KafkaCluster(2, {"num.io.threads": 3}, listeners={"OTHER": "PLAINTEXT"})
    with contextlib.closing(cluster):
        with pytest.MonkeyPatch.context() as patch:
            options = os.environ["KAFKA_JVM_PERFORMANCE_OPTS"]  # see tests/support/quick_spark.py
            patch.setenv("KAFKA_JVM_PERFORMANCE_OPTS", f"{options} '-Dthe.words=two words'")
            patch.setattr(KafkaCluster, "run_java", run)
            patch.setattr(storage, "known_features", {})
            cluster.open()
        yield TwoBrokers(cluster, started)


@pytest.mark.real
def test_the_storage_tool_runs_once_for_each_configuration(two_brokers: TwoBrokers) -> None:
    """The other brokers get its features, the cluster's id, and ids of their own."""
    cluster, started = two_brokers
    assert sum("kafka.tools.StorageTool" in arguments for arguments in started) == 1
    texts = [(broker.data / "meta.properties").read_text() for broker in cluster.brokers.values()]
    found = [dict(re.findall(r"^([\w.]+)=(.*)$", text, re.MULTILINE)) for text in texts]
    assert [row["node.id"] for row in found] == ["0", "1"]
    assert len({row["cluster.id"] for row in found}) == 1
    assert len({row["directory.id"] for row in found}) == 2
    cluster.create_topic("copied", partitions=1, replication_factor=2)


@pytest.mark.real
def test_brokers_take_javas_options_of_the_environment(two_brokers: TwoBrokers) -> None:
    # What a process that has ended says of itself is None.
    commands = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "name"])
        if process.info["name"] == "java"
        and str(two_brokers.cluster.folder) in " ".join(process.info["cmdline"] or ())
    ]
    assert len(commands) == 2
    for java in commands:
        assert "-Dthe.words=two words" in java
        assert "-XX:+UseSerialGC" in java
        assert "-XX:+UseG1GC" not in java


@pytest.mark.real
def test_a_further_listener_and_data_that_survives_a_restart(two_brokers: TwoBrokers) -> None:
    cluster, _ = two_brokers
    address, other = cluster.bootstrap_servers, cluster.address_list("OTHER")
    assert other != address
    cluster.create_topic("t", partitions=2)
    write(other, "t", [b"1", b"2"])
    cluster.restart(1)
    assert cluster.bootstrap_servers == address
    write(address, "t", [b"3", b"4"])
    assert sorted(read(address, "t", 4)) == [b"1", b"2", b"3", b"4"]
    with pytest.raises(RuntimeError, match="runs already"):
        cluster.start(1)
    cluster.kill(1)
    assert not cluster.is_running(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(cluster.address(1), 1).close()


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("num.io.threads", "did not format broker 0 .*num.io.threads: Not a number"),
        ("authorizer.class.name", r"broker 0 ended \(status 1\).*ClassNotFoundException: nonsense"),
    ],
)
def test_a_broker_that_does_not_start_shows_its_log(
    kafka_cluster: KafkaCluster, name: str, message: str
) -> None:
    cluster = KafkaCluster(properties={name: "nonsense"})
    with pytest.raises(UnavailableError, match=f"(?s){message}"):
        cluster.open()
    cluster.close()


_UNTIL_KILLED = """
import sys, time
from sparkkafka.testing.kafka.cluster import CLIENT_LISTENER, Broker, KafkaCluster
with KafkaCluster() as cluster:
    print(cluster.folder, cluster.address(0)[1], flush=True)
    time.sleep(600)
"""


@pytest.mark.real
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(signal.SIGINT, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left_behind_when_the_run_is_killed(
    kafka_cluster: KafkaCluster, number: signal.Signals
) -> None:
    """`kafka_cluster` is asked for so that a machine without Java skips here too."""
    assert_a_killed_run_leaves_nothing(_UNTIL_KILLED, number)


@pytest.mark.real
def test_conf_broker_properties_are_accepted_by_a_real_broker(kafka_cluster: KafkaCluster) -> None:
    """Each cluster is started with them, as the next test says."""
    ours = read_properties(CONF)
    used = broker_configs(kafka_cluster.bootstrap_servers, 0)
    assert {name: used[name] for name in ours} == ours


# -- without a broker ----------------------------------------------------------------------


def test_conf_broker_properties_are_what_the_cluster_uses() -> None:
    """The package must not read conf/, so the same values stand in code; here they are compared."""
    ours = read_properties(CONF)
    assert ours == default_properties(1)


@pytest.mark.parametrize("name", sorted(MANAGED_PROPERTIES))
def test_properties_that_the_cluster_decides_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is set by KafkaCluster itself"):
        KafkaCluster(properties={name: "x"})


def test_impossible_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="brokers must be at least 1, got 0"):
        KafkaCluster(0)
    with pytest.raises(ValueError, match="broker_properties names broker 1 of 1"):
        KafkaCluster(1, broker_properties={1: {}})
    with pytest.raises(ValueError, match="2 client_ports for 1 brokers"):
        KafkaCluster(1, client_ports=[1, 2])
    with pytest.raises(RuntimeError, match="not open"):
        _ = KafkaCluster().bootstrap_servers


@pytest.mark.parametrize(
    ("lost", "is_created"),
    [(TimeoutError("slow"), True), (ErrorCode.REQUEST_TIMED_OUT, True), (None, False)],
)
def test_a_topic_that_an_attempt_without_a_result_has_created(
    fake_cluster: FakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: OSError | ErrorCode | None,
    is_created: bool,
) -> None:
    send = admin.create_topic
    cluster = KafkaCluster()
    port = int(fake_cluster.bootstrap_servers.partition(",")[0].rpartition(":")[2])
    running: Any = SimpleNamespace(running=True)
    cluster.brokers[0] = Broker(0, tmp_path, {CLIENT_LISTENER: port}, process=running)
    results = [lost]

    def create(*arguments: Any) -> tuple[int, str | None]:
        """Create the topic. The first response is lost on its way."""
        response = send(*arguments)
        if isinstance(error := results.pop() if results else None, OSError):
            raise error
        return response if error is None else (error, None)

    monkeypatch.setattr(admin, "create_topic", create)
    if not is_created:
        cluster.create_topic("slow")
    with contextlib.nullcontext() if is_created else pytest.raises(BrokerError, match="error 36"):
        cluster.create_topic("slow", partitions=2)


def test_a_reserved_port_is_given_to_nobody_else_but_can_be_served() -> None:
    with ReservedPorts() as ports:
        port = ports.take()
        with socket.socket() as other, pytest.raises(OSError):
            other.bind((LOOPBACK, port))
        ports.hand_over()
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((LOOPBACK, port))
            server.listen()
            with pytest.raises(UnavailableError, match=f"port {port} of 127.0.0.1: .*in use"):
                ReservedPorts().take(port)
