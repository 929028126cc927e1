"""GSSAPI on a real broker, whose users a real KDC knows: `make kerberos`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparkkafka.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from sparkkafka.errors import AuthenticationError, KafkaError, OptionError
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.docs.snippets import SECURITY, page, snippets
from tests.kerberos.kdc import REALM, Kdc, kdc

pytestmark = [pytest.mark.kerberos, pytest.mark.real]

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
SERVICE = "sasl.kerberos.service.name"
SESSION_MS = 4_000
Settings = dict[str, Any]


class Realm(NamedTuple):
    kdc: Kdc
    cluster: KafkaCluster
    keytab: Path

    def settings(self, listener: str = "KERBEROS") -> Settings:
        return {
            "bootstrap.servers": self.cluster.address_list(listener),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
        }

    def by_keytab(self, listener: str = "KERBEROS", user: str = "alice") -> Settings:
        jaas = f'{MODULE} useKeyTab=true storeKey=true keyTab="{self.keytab}" principal="{user}";'
        return self.settings(listener) | {SERVICE: "kafka", "sasl.jaas.config": jaas}


@pytest.fixture(scope="session")
def realm() -> Iterator[Realm]:
    with kdc() as found:
        before = {name: os.environ.get(name) for name in found.environment}
        os.environ.update(found.environment)  # of Spark's processes too
        broker = f"kafka/127.0.0.1@{REALM}"
        of_broker = found.keytab(broker, "broker.keytab")
        keytab = found.keytab("alice", "alice.keytab")
        jaas = f'{MODULE} useKeyTab=true storeKey=true keyTab="{of_broker}" principal="{broker}";'
        properties: dict[str, object] = {"connection.failed.authentication.delay.ms": 0}
        for listener in ("kerberos", "short"):
            prefix = f"listener.name.{listener}."
            properties[f"{prefix}sasl.enabled.mechanisms"] = "GSSAPI"
            properties[f"{prefix}sasl.kerberos.service.name"] = "kafka"
            properties[f"{prefix}gssapi.sasl.jaas.config"] = jaas
        properties["listener.name.short.gssapi.connections.max.reauth.ms"] = SESSION_MS
        cluster = KafkaCluster(
            1,
            properties,
            listeners={"KERBEROS": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT"},
            jvm_options=[f"-Djava.security.krb5.conf={found.folder}/krb5.conf"],
        )
        with cluster:
            yield Realm(found, cluster, keytab)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def topic_of(settings: Settings, name: str) -> None:
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name, 1, 1)]).all()


def there_and_back(settings: Settings, topic: str) -> None:
    topic_of(settings, topic)
    with Producer(settings) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
    with Consumer(settings | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        values: list[bytes | None] = []
        until_s = time.monotonic() + 60
        while len(values) < 100 and time.monotonic() < until_s:
            values += [record.value for record in consumer.poll(1.0)]
    assert values == [b"%d" % number for number in range(100)]


def test_keytab_in_javas_settings(realm: Realm) -> None:
    there_and_back(realm.by_keytab(), "by-jaas")


def test_keytab_in_librdkafkas_settings(realm: Realm) -> None:
    names = {"sasl.kerberos.keytab": str(realm.keytab), "sasl.kerberos.principal": "alice"}
    there_and_back(realm.settings() | names, "by-names")


def test_what_the_page_shows(realm: Realm) -> None:
    (snippet,) = [text for text in snippets(page(SECURITY[0])) if "GSSAPI" in text]
    found: dict[str, Any] = {}
    exec(snippet, found)
    options = {name.removeprefix("kafka."): value for name, value in found["options"].items()}
    jaas = options["sasl.jaas.config"].replace("/etc/security/orders.keytab", str(realm.keytab))
    options["sasl.jaas.config"] = jaas.replace("orders@EXAMPLE.COM", f"alice@{REALM}")
    own = {name: realm.settings()[name] for name in ("security.protocol", "bootstrap.servers")}
    with Admin(options | own) as admin:
        admin.list_topics()


def test_ticket_cache(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = realm.kdc.cache("alice", realm.keytab, "cache")
    jaas = f'{MODULE} useTicketCache=true ticketCache="{cache}";'
    there_and_back(realm.settings() | {"sasl.jaas.config": jaas}, "by-cache")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    there_and_back(realm.settings(), "by-default-cache")


def test_a_ticket_that_ends_is_got_again(realm: Realm) -> None:
    """A cache that holds an old ticket, and a keytab that a new one comes by."""
    cache = realm.kdc.cache("alice", realm.keytab, "short-cache", life="2s")
    jaas = (
        f'{MODULE} useTicketCache=true ticketCache="{cache}" useKeyTab=true '
        f'keyTab="{realm.keytab}" principal="alice";'
    )
    settings = realm.settings() | {"sasl.jaas.config": jaas}
    time.sleep(3)
    topic_of(settings, "renewed")
    only_cache = realm.settings() | {
        "sasl.jaas.config": f'{MODULE} useTicketCache=true ticketCache="{cache}";'
    }
    with (
        pytest.raises(AuthenticationError, match=r"ticket cache.*xpired"),
        Admin(only_cache) as admin,
    ):
        admin.list_topics()


def test_sessions_are_renewed(realm: Realm) -> None:
    with Producer(realm.by_keytab("SHORT")) as producer:
        topic_of(realm.by_keytab(), "sessions")
        end_s = time.monotonic() + 2.5 * SESSION_MS / 1000
        sent = 0
        while time.monotonic() < end_s:
            producer.send("sessions", b"%d" % sent).result(30)
            sent += 1
            time.sleep(0.1)
    assert sent > 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({SERVICE: "other"}, "for other/127.0.0.1: .*not found in Kerberos database"),
        ({"sasl.jaas.config": "user"}, "of bob, from the keytab .*alice.keytab"),
        ({"sasl.jaas.config": "file"}, "the keytab .*gone cannot be read on this machine"),
    ],
)
def test_what_is_wrong_is_said(realm: Realm, change: Settings, message: str) -> None:
    settings = realm.by_keytab() | change
    if change.get("sasl.jaas.config") == "user":
        settings = realm.by_keytab(user="bob")
    elif change.get("sasl.jaas.config") == "file":
        jaas = realm.by_keytab()["sasl.jaas.config"].replace("alice.keytab", "gone")
        settings["sasl.jaas.config"] = jaas
    with pytest.raises(AuthenticationError, match=message), Admin(settings) as admin:
        admin.list_topics()


def test_no_kdc(realm: Realm) -> None:
    """It may come back: it is asked again until the deadline."""
    copy = realm.kdc.folder / "other.keytab"  # no ticket of it is in memory
    copy.write_bytes(realm.keytab.read_bytes())
    settings = realm.by_keytab() | {"default.api.timeout.ms": "8000", "request.timeout.ms": "5000"}
    jaas = settings["sasl.jaas.config"].replace("alice.keytab", "other.keytab")
    settings["sasl.jaas.config"] = jaas
    realm.kdc.stop()
    begin_s = time.monotonic()
    try:
        with pytest.raises(KafkaError, match="KDC") as failed, Admin(settings) as admin:
            admin.list_topics()
    finally:
        realm.kdc.start()
    assert time.monotonic() - begin_s < 60
    assert failed.value.retriable or "gave up" in str(failed.value)
    with Admin(settings) as admin:
        assert "by-jaas" in admin.list_topics()


@pytest.mark.spark
def test_spark_reads_and_writes(realm: Realm, spark: Any) -> None:
    options = {f"kafka.{name}": value for name, value in realm.by_keytab().items()}
    rows = spark.range(500).selectExpr("CAST(id AS string) AS value")
    rows.write.format("pykafka").options(**options, topic="rows", createTopic="true").mode(
        "append"
    ).save()
    found = spark.read.format("pykafka").options(**options, subscribe="rows").load()
    assert found.selectExpr("sum(CAST(CAST(value AS string) AS int))").first()[0] == 124750


def test_it_is_not_here(monkeypatch: pytest.MonkeyPatch, realm: Realm) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with (
        pytest.raises(OptionError, match=r"sparkkafka\[kerberos\]"),
        Admin(realm.by_keytab()) as admin,
    ):
        admin.list_topics()
