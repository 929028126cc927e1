"""Delegation tokens (KIP-48) on a real broker: through Admin, and by spark.kafka.clusters.*."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

import sparkkafka
from sparkkafka.client import Admin, Consumer, DelegationToken, Producer
from sparkkafka.errors import AuthenticationError, BrokerError, ErrorCode
from sparkkafka.spark import delegation_tokens, registration
from sparkkafka.spark.delegation_tokens import CLUSTERS, VARIABLE, TokenKeeper, parse_clusters
from tests.real.secured import Secured
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

PRINCIPAL = "User:alice"
VALUES = {b"%d" % number for number in range(20)}


def admin_of(secured: Secured, user: str = "alice") -> Admin:
    return Admin(secured.ours("SASLTLS", "SCRAM-SHA-512", user))


def with_token(secured: Secured, token: DelegationToken) -> dict[str, str]:
    """Settings of a client that logs in by the token."""
    text = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required tokenauth=true "
        f'username="{token.token_id}" password="{token.hmac_as_base64.reveal()}";'
    )
    return secured.ours("SASLTLS", "SCRAM-SHA-256") | {"sasl.jaas.config": text}


def test_a_tokens_life(secured: Secured) -> None:
    with admin_of(secured) as admin, admin_of(secured, "bob") as renewer:
        token = admin.create_delegation_token(renewers=["User:bob"], max_lifetime_ms=3_600_000)
        assert (token.owner, token.renewers) == ("User:alice", ("User:bob",))
        assert token.hmac_as_base64.reveal() not in f"{token!r} {token} {token.hmac_as_base64}"
        assert token.max_timestamp_ms - token.issue_timestamp_ms == 3_600_000
        wait_until(lambda: token in admin.describe_delegation_tokens(["User:alice"]))
        (seen,) = (row for row in renewer.describe_delegation_tokens() if row == token)
        assert seen.hmac_as_base64 == token.hmac_as_base64

        ends_ms = renewer.renew_delegation_token(seen, renew_period_ms=60_000)
        assert abs(ends_ms / 1000 - time.time() - 60) < 30
        login = with_token(secured, token)
        with Admin(login) as other:
            assert other.list_topics() is not None
            with pytest.raises(BrokerError) as caught:  # no token by a token
                other.create_delegation_token()
            assert caught.value.code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

        assert admin.expire_delegation_token(token) <= time.time() * 1000 + 30_000
        wait_until(lambda: token not in admin.describe_delegation_tokens())
        with Admin(login) as other, pytest.raises(AuthenticationError):
            other.list_topics()
        with pytest.raises(BrokerError) as caught:
            admin.renew_delegation_token(token)
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def conf_of(secured: Secured, user: str = "alice", cluster: str = "main") -> dict[str, str]:
    """What a user writes into spark-defaults.conf."""
    login = secured.ours("SASLTLS", "SCRAM-SHA-512", user)
    prefix = f"{CLUSTERS}{cluster}."
    return {
        f"{prefix}auth.bootstrap.servers": login["bootstrap.servers"],
        f"{prefix}target.bootstrap.servers.regex": r"(localhost|127\.0\.0\.1):\d+",
        f"{prefix}ssl.truststore.location": secured.authority_file,
        f"{prefix}kafka.sasl.mechanism": "SCRAM-SHA-512",
        f"{prefix}kafka.sasl.jaas.config": login["sasl.jaas.config"],
    }


@pytest.fixture
def keeper(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenKeeper]:
    two_seconds = 2 / 86_400  # of the broker's 24 hours
    monkeypatch.setattr(delegation_tokens, "RENEWAL_RATIO", two_seconds)
    made = TokenKeeper(parse_clusters(conf_of(secured)))
    yield made
    made.close()


def row_of(keeper: TokenKeeper) -> dict[str, Any]:
    (row,) = json.loads(keeper.path.read_text())
    return dict(row)


def test_a_token_is_renewed(keeper: TokenKeeper) -> None:
    first = row_of(keeper)
    assert keeper.path.stat().st_mode & 0o777 == 0o600
    assert keeper.path.parent.stat().st_mode & 0o777 == 0o700
    wait_until(lambda: row_of(keeper)["ends_ms"] > first["ends_ms"])
    assert row_of(keeper)["token_id"] == first["token_id"]
    assert first["hmac"] not in repr(keeper.__dict__)
    keeper.close()
    assert not keeper.path.exists()


@pytest.fixture
def session(spark: Any, secured: Secured) -> Iterator[Any]:
    """A Spark whose conf has a cluster, as if it were in its defaults."""
    conf = conf_of(secured)
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        for name in conf:
            spark.conf.unset(name)
        if registration._keeper is not None:
            registration._keeper.close()
            registration._keeper = None
        spark.sparkContext.environment.pop(VARIABLE, None)
        sparkkafka.register(spark)


def test_spark_jobs_use_it(session: Any, secured: Secured, tmp_path: Any) -> None:
    """A job without a login of its own reads, writes and streams; its requests are alice's."""
    sparkkafka.register(session)
    plain = {
        "kafka.bootstrap.servers": secured.servers("SASLTLS"),
        "kafka.ssl.truststore.location": secured.authority_file,
    }
    topics = [f"token-{name}-{uuid.uuid4().hex[:6]}" for name in ("in", "out", "stream")]
    for topic in topics:
        secured.cluster.create_topic(topic)
    with Producer(secured.ours("CLIENT")) as producer:
        for value in VALUES:
            producer.send(topics[0], value)
    frame = session.read.format("pykafka").options(**plain, subscribe=topics[0]).load()
    (
        frame.select("value")
        .write.format("pykafka")
        .options(**plain, topic=topics[1], **{"kafka.client.id": topics[1]})
        .mode("append")
        .save()
    )
    assert {row["principal"] for row in secured.requests(topics[1])} == {PRINCIPAL}
    query = (
        session.readStream.format("pykafka")
        .options(**plain, subscribe=topics[1], startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("pykafka")
        .options(**plain, topic=topics[2], deliveryGuarantee="exactly-once")
        .options(transactionalIdPrefix=topics[2], checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    settings = secured.ours("CLIENT") | {"auto.offset.reset": "earliest"}
    with Consumer(settings | {"isolation.level": "read_committed"}) as consumer:
        consumer.assign({(topics[2], 0): 0})
        found: set[bytes] = set()
        until_s = time.monotonic() + 30
        while len(found) < len(VALUES) and time.monotonic() < until_s:
            found |= {record.value for record in consumer.poll(500)}
    assert found == VALUES

    # A login of the job's own counts before the token.
    own = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "alice"}
    wrong = session.read.format("pykafka").options(**plain, **own, subscribe=topics[0])
    with pytest.raises(PySparkException, match="authentication with PLAIN as user alice failed"):
        wrong.option("kafka.sasl.password", "not hers").option(
            "kafka.security.protocol", "SASL_SSL"
        ).load().collect()


def test_what_fails_is_an_error_of_the_query(session: Any, secured: Secured) -> None:
    name = f"{CLUSTERS}main.kafka.sasl.jaas.config"
    session.conf.set(
        name, secured.ours("SASLTLS", "SCRAM-SHA-512", "alice", "wr0ng")["sasl.jaas.config"]
    )
    sparkkafka.register(session)
    options = {"kafka.bootstrap.servers": secured.servers("SASLTLS"), "subscribe": "t"}
    with pytest.raises(
        PySparkException, match=r"clusters\.main has no valid delegation token"
    ) as caught:
        session.read.format("pykafka").options(**options).load().collect()
    assert "wr0ng" not in str(caught.value)
