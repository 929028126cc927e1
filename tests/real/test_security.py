"""Secured brokers: TLS, SASL, ACLs, for our client and, over the same listeners, a second one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.secured import (
    MECHANISMS,
    PROTOCOLS,
    Secured,
    confluent_read,
    confluent_write,
    eventually,
    secured_broker,
)

pytestmark = pytest.mark.real

# Every listener whose certificate is good, with every mechanism that it has.
WAYS = [
    (listener, mechanism)
    for listener, protocol in PROTOCOLS.items()
    if listener not in ("OTHERNAME", "EXPIRED", "SCRAMONLY")
    for mechanism in (MECHANISMS if protocol.startswith("SASL") else ("",))
] + [("SCRAMONLY", "SCRAM-SHA-512")]


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with secured_broker() as broker:
        yield broker


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_the_second_client_gets_in(secured: Secured, listener: str, mechanism: str) -> None:
    """The broker is what these tests take it for."""
    topic = f"second-{listener}-{mechanism}"
    secured.cluster.create_topic(topic)
    config = secured.confluent(listener, mechanism) | {"client.id": topic}
    confluent_write(config, topic, [b"one", b"two"])
    assert confluent_read(config, topic, 2) == [b"one", b"two"]
    eventually(lambda: secured.request_counts(topic)["PRODUCE"] >= 1)
    rows = [row for row in secured.requests(topic) if row["listener"] == listener]
    user = {"TLS": "User:ANONYMOUS", "MTLS": "User:CN=client"}.get(listener, "User:alice")
    assert {row["principal"] for row in rows} == {user}
