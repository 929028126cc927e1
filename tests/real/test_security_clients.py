"""Producer, Consumer and Admin on secured brokers: in, not in, and through sessions that end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import AuthenticationError, KafkaError, KafkaTimeoutError, ProduceError
from sparkkafka.testing import account_check
from tests.real.secured import (
    MECHANISMS,
    PASSWORDS,
    SESSIONS_S,
    Secured,
    confluent_read,
    confluent_write,
)
from tests.real.test_security import columns, values_of
from tests.support.options import parse_client_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

PROTOCOLS = ("classic", "consumer")


@pytest.fixture
def topic(secured: Secured, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in request.node.name)[:200]
    name = f"clients-{name}"
    secured.cluster.create_topic(name)
    return name


def consumed(consumer: Consumer, count: int) -> list[bytes | None]:
    """The values of the next `count` records."""
    values: list[bytes | None] = []
    end_s = time.monotonic() + 40
    while len(values) < count:
        assert time.monotonic() < end_s, f"{len(values)} of {count} records"
        values += [record.value for record in consumer.poll(0.5)]
    return values


def group_config(config: dict[str, str], group: str, protocol: str) -> dict[str, Any]:
    return config | {
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }


# --- in ------------------------------------------------------------------------------------------


def test_account_check(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that an Apache Kafka offers works for a user of SCRAM, and the report has no password."""
    settings = tmp_path / "client.properties"
    config = secured.ours("SASLTLS", "SCRAM-SHA-512")
    settings.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    assert account_check.main(["-F", str(settings), "--write", "checked"]) == 0
    report = capsys.readouterr().out
    assert "SCRAM-SHA-512 as user alice" in report
    assert PASSWORDS["alice"] not in report
    refused = [line for line in report.splitlines() if not line.startswith("ok")]
    assert refused == []
    with Admin(config) as admin:
        assert "checked" not in admin.list_topics()
        assert account_check.NAME not in admin.list_groups()


@pytest.mark.parametrize(
    ("listener", "mechanism", "protocol"),
    [
        ("MTLS", "", "classic"),
        ("SASLTLS", "SCRAM-SHA-512", "consumer"),
        ("SASLTLS", "OAUTHBEARER", "classic"),
    ],
)
def test_all_three_get_in(
    secured: Secured, topic: str, listener: str, mechanism: str, protocol: str
) -> None:
    config = secured.ours(listener, mechanism)
    theirs = secured.confluent(listener, mechanism)
    confluent_write(theirs, topic, [b"theirs"])
    with Producer(config) as producer:
        producer.send(topic, value=b"ours", partition=0).result(timeout_s=30)
    assert confluent_read(theirs, topic, 2) == [b"theirs", b"ours"]
    group = f"group-{topic}"
    with Consumer(group_config(config, group, protocol)) as consumer:
        consumer.subscribe([topic])
        assert consumed(consumer, 2) == [b"theirs", b"ours"]
        consumer.commit()
    with Admin(config) as admin:
        assert topic in admin.list_topics()
        assert group in {row.group_id for row in admin.list_consumer_groups()}


# --- not in --------------------------------------------------------------------------------------


def produces(config: dict[str, str], topic: str) -> None:
    with Producer(config) as producer:
        producer.send(topic, value=b"v").result(timeout_s=90)


def consumes(config: dict[str, str], topic: str) -> None:
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumed(consumer, 1)


def joins(config: dict[str, str], topic: str) -> None:
    with Consumer(group_config(config, f"wrong-{topic}", "classic")) as consumer:
        consumer.subscribe([topic])
        consumed(consumer, 1)


def joins_by_broker(config: dict[str, str], topic: str) -> None:
    with Consumer(group_config(config, f"wrong-{topic}", "consumer")) as consumer:
        consumer.subscribe([topic])
        consumed(consumer, 1)


def administers(config: dict[str, str], topic: str) -> None:
    with Admin(config) as admin:
        admin.list_topics()


def transacts(config: dict[str, str], topic: str) -> None:
    with Producer(config | {"transactional.id": f"id-{topic}"}) as producer:
        producer.init_transactions()


USES = [produces, consumes, joins, joins_by_broker, administers, transacts]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_wrong_password_is_tried_once(
    secured: Secured, topic: str, use: Callable[..., None], mechanism: str
) -> None:
    config = secured.ours("SASLTLS", mechanism, password="hush-wrong")
    before, asked = secured.failed_authentications(), len(secured.tokens.requests)
    with pytest.raises(AuthenticationError) as caught:
        use(config, topic)
    assert "hush" not in str(caught.value)
    if mechanism == "OAUTHBEARER":
        assert "status 401" in str(caught.value)
        assert len(secured.tokens.requests) - asked == 1
    else:
        assert "as user alice failed" in str(caught.value)
        wait_until(lambda: secured.failed_authentications() > before)
        assert secured.failed_authentications() - before == 1


# --- sessions that end (KIP-368) -----------------------------------------------------------------

CLIENTS = ("SCRAM-SHA-256", "OAUTHBEARER")
"""Mechanisms of Producer and Consumer. The others are those of a task's writer and reader."""

# What goes on all the time, by the client's role.
BUSY = {
    "writer": ("PRODUCE",),
    "reader": ("FETCH",),
    "classic": ("FETCH", "HEARTBEAT"),
    "consumer": ("FETCH", "CONSUMER_GROUP_HEARTBEAT"),
}


def test_sessions_are_renewed(secured: Secured) -> None:
    """Writers and readers live into a third session: no error, no rebalance, no connection but the
    first ones."""
    count = 200
    pause_s = SESSIONS_S / count
    renewed_before, failed_before = secured.authentications()[1], secured.failed_authentications()
    expected = [b"%d" % number for number in range(count)]
    failures: list[BaseException] = []
    found: dict[tuple[str, str], list[Any]] = {}
    assigned: dict[tuple[str, str], list[Any]] = {}

    def config_of(mechanism: str, role: str) -> dict[str, str]:
        return secured.ours("SHORT", mechanism) | {"client.id": f"renewed-{mechanism}-{role}"}

    def writer(mechanism: str, role: str) -> None:
        topic, config = f"renewed-{mechanism}", config_of(mechanism, role)
        if mechanism in CLIENTS:
            with Producer(config) as producer:
                handles = []
                for value in expected:
                    handles.append(producer.send(topic, value=value, partition=0))
                    time.sleep(pause_s)  # a session is time
                for handle in handles:
                    handle.result(timeout_s=30)
            return
        with (
            Cluster(parse_client_options(config)) as cluster,
            PartitionProducer(cluster, parse_producer_options(config | {"linger.ms": "0"})) as task,
        ):
            for value in expected:
                task.send(topic, 0, columns([value]))
                time.sleep(pause_s)
            task.flush()

    def reader(mechanism: str, role: str) -> None:
        """Waits with long polls: a session's end finds one in flight."""
        more = {"fetch.max.wait.ms": "400", "fetch.min.bytes": "100000"}
        config = config_of(mechanism, role) | more
        with Cluster(parse_client_options(config)) as cluster:
            found[mechanism, role] = list(
                values_of(cluster, config, f"renewed-{mechanism}", 0, count)
            )

    def member(mechanism: str, protocol: str) -> None:
        topic = f"renewed-{mechanism}"
        config = group_config(config_of(mechanism, protocol), f"{topic}-{protocol}", protocol)
        seen = assigned.setdefault((mechanism, protocol), [])
        with Consumer(config) as consumer:
            consumer.subscribe([topic], on_assigned=lambda new: seen.append(new))
            found[mechanism, protocol] = consumed(consumer, count)
            consumer.commit()

    def guarded(run: Callable[[str, str], None], *arguments: str) -> None:
        try:
            run(*arguments)
        except BaseException as error:
            failures.append(error)

    runs: list[tuple[Callable[[str, str], None], str, str]] = []
    for mechanism in MECHANISMS:
        secured.cluster.create_topic(f"renewed-{mechanism}")
        runs.append((writer, mechanism, "writer"))
        if mechanism in CLIENTS:
            runs += [(member, mechanism, protocol) for protocol in PROTOCOLS]
        else:
            runs.append((reader, mechanism, "reader"))
    threads = [threading.Thread(target=guarded, args=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    assert failures == []
    assert found == {run[1:]: expected for run in runs if run[0] is not writer}
    assert [len(partitions) for partitions in assigned.values()] == [1] * 4
    for _, mechanism, role in runs:
        for api in BUSY[role]:
            connections = secured.connections(f"renewed-{mechanism}-{role}", api)
            assert len(connections) == 1, (mechanism, role, api)
    assert secured.failed_authentications() == failed_before
    # Each of them on its busy connection, about twice.
    assert secured.authentications()[1] - renewed_before >= 2 * len(threads)


def test_a_password_that_is_taken_away(secured: Secured, topic: str) -> None:
    """At the end of its session whoever had it is told so, and does not try for ever."""
    secured.set_password("dave", "hush-dave")
    config = secured.ours("SHORT", "SCRAM-SHA-512", "dave", password="hush-dave")
    config |= {"client.id": topic, "enable.auto.commit": "false"}
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(config))
        consumers = [
            stack.enter_context(Consumer(group_config(config, f"{protocol}-{topic}", protocol)))
            for protocol in PROTOCOLS
        ]
        producer.send(topic, value=b"v", partition=0).result(timeout_s=30)
        for consumer in consumers:
            consumer.subscribe([topic])
            assert consumed(consumer, 1) == [b"v"]
        secured.set_password("dave", None)
        before = secured.failed_authentications()
        for consumer in consumers:
            with pytest.raises(AuthenticationError, match="as user dave failed"):
                consumed(consumer, 1)
        with pytest.raises((AuthenticationError, ProduceError), match="as user dave failed"):
            for _ in range(1000):
                producer.send(topic, value=b"w", partition=0).result(timeout_s=30)
                time.sleep(0.05)
        end_s = time.monotonic() + 3
        while time.monotonic() < end_s:  # as one does who does not look at errors
            for consumer in consumers:
                with suppress(AuthenticationError):
                    consumer.poll(0.1)
            with suppress(AuthenticationError, ProduceError):
                producer.send(topic, value=b"w", partition=0).result(timeout_s=10)
    # Each connection, and then one attempt a second of each client.
    assert 1 <= secured.failed_authentications() - before <= 30


# --- ACLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [produces, consumes, joins, joins_by_broker])
def test_a_topic_of_others(secured: Secured, topic: str, use: Callable[..., None]) -> None:
    secured.guard(ResourceType.TOPIC, topic, AclOperation.ALL, "carol")
    _denied(secured, topic, use, "TOPIC_AUTHORIZATION_FAILED", topic)


@pytest.mark.parametrize("use", [produces, consumes, joins])
def test_a_topic_that_may_only_be_seen(
    secured: Secured, topic: str, use: Callable[..., None]
) -> None:
    secured.guard(ResourceType.TOPIC, topic, AclOperation.DESCRIBE, "alice")
    _denied(secured, topic, use, "TOPIC_AUTHORIZATION_FAILED", topic)


@pytest.mark.parametrize("use", [joins, joins_by_broker])
def test_a_group_of_others(secured: Secured, topic: str, use: Callable[..., None]) -> None:
    secured.guard(ResourceType.GROUP, f"wrong-{topic}", AclOperation.ALL, "carol")
    _denied(secured, topic, use, "GROUP_AUTHORIZATION_FAILED", f"wrong-{topic}")


def test_a_transactional_id_of_others(secured: Secured, topic: str) -> None:
    secured.guard(ResourceType.TRANSACTIONAL_ID, f"id-{topic}", AclOperation.ALL, "carol")
    _denied(secured, topic, transacts, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", f"id-{topic}")


def _denied(
    secured: Secured, topic: str, use: Callable[..., None], code: str, resource: str
) -> None:
    config = secured.ours("SASLTLS", "SCRAM-SHA-512") | {"client.id": f"denied-{topic}"}
    with pytest.raises(KafkaError) as caught:
        use(config, topic)
    assert not isinstance(caught.value, KafkaTimeoutError)  # nothing is tried again
    assert code in str(caught.value)
    assert resource in str(caught.value)
    wait_until(lambda: secured.requests_seen(f"denied-{topic}") > 0)
    counts = secured.request_counts(f"denied-{topic}")
    # What it takes to come so far; a storm would be hundreds.
    assert counts.total() <= 20, counts
