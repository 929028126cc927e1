"""Consumer, Producer and Admin on a secured cluster: short sessions, and who is not let in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, Producer
from sparkkafka.client.auth import sasl
from sparkkafka.errors import AuthenticationError
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.security import sasl as fake_sasl
from tests.client.net.test_connection_security import ALICE, TLS, USERS, server_context
from tests.client.support import QUICK
from tests.support.clock import Clock
from tests.support.waiting import wait_until


def settings(cluster: FakeCluster, **more: str) -> dict[str, str]:
    secure = TLS | ALICE | {"security.protocol": "SASL_SSL"}
    return {"bootstrap.servers": cluster.bootstrap_servers} | QUICK | secure | more


def test_busy_clients_outlive_their_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker closes a connection that sends a request after its session; a lost connection
    would be replaced, so the connections are counted."""
    clock = Clock()
    clock.patch(monkeypatch, sasl, fake_sasl)
    context = server_context(tmp_path)
    session_ms = 6_000_000
    with FakeCluster(
        2, tls_context=context, sasl_users=USERS, sasl_session_ms=session_ms
    ) as cluster:
        cluster.create_topic("t", partitions=2)
        count = 0
        received: set[bytes | None] = set()
        config = settings(cluster)
        with Producer(config) as producer, Consumer(config) as consumer:
            consumer.assign([("t", 0), ("t", 1)])
            consumer.seek_to_beginning()

            def all_have_authenticated() -> bool:
                nonlocal count
                for _ in range(20):
                    producer.send("t", value=b"%d" % count, partition=count % 2)
                    count += 1
                received.update(record.value for record in consumer.poll(0.02))
                return len(cluster.sasl_attempts) >= expected

            expected = 0
            for _ in range(3):
                expected += 4  # each of the two clients has a connection to each broker
                wait_until(all_have_authenticated, "all connections authenticate", poll_s=0)
                # Clients re-authenticate after 92 % of the session at the latest.
                clock.ahead_s += session_ms / 1000 * 0.93
            producer.flush()

            def all_is_received() -> bool:
                received.update(record.value for record in consumer.poll(0.2))
                return len(received) >= count

            wait_until(all_is_received, "all records", poll_s=0)
        assert received == {b"%d" % number for number in range(count)}
        for api in ("Produce", "Fetch"):
            requests = cluster.requests_of(api)
            assert len({row.connection for row in requests}) == len(
                {row.broker for row in requests}
            )


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_a_wrong_password_is_tried_once(tmp_path: Path, kind: Any) -> None:
    with FakeCluster(3, tls_context=server_context(tmp_path), sasl_users=USERS) as cluster:
        cluster.create_topic("t", partitions=3)
        config = settings(cluster, **{"sasl.password": "hush-wrong"})
        with pytest.raises(AuthenticationError, match="as user alice failed") as caught:
            if kind is Producer:
                with Producer(config) as producer:
                    producer.send("t", value=b"x")
                    producer.flush()
            elif kind is Consumer:
                with Consumer(config | {"group.id": "g"}) as consumer:
                    consumer.subscribe(["t"])
                    consumer.poll(5.0)
            else:
                with Admin(config) as admin:
                    admin.describe_cluster()
        assert "hush" not in str(caught.value)
        assert cluster.sasl_attempts == ["alice"]
