"""Spark over SASL_SSL, with references instead of secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.real.secured import (
    PASSWORDS,
    TOKEN_SECRETS,
    Secured,
    confluent_read,
    confluent_write,
    jaas_text,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

TOPIC_VALUES = [b"%d" % number for number in range(20)]


@pytest.fixture
def options(secured: Secured, spark: Any) -> dict[str, str]:
    """Whoever opens a connection looks the references up: the driver's worker and the tasks'."""
    folder = secured.folder
    # An environment variable that all processes of this session have.
    (folder / "127.0.0.1.pem").write_text(secured.authority.pem)
    escaped = jaas_text(PASSWORDS["alice"]).replace("\\", "\\\\")
    (folder / "users.properties").write_text(f"# users\nalice.password={escaped}\n")
    (folder / "alice.name").write_text("alice\n")
    return {
        "kafka.bootstrap.servers": secured.servers("SASLTLS"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": f"{folder}/${{env:SPARK_LOCAL_IP}}.pem",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="${{directory:{folder}:alice.name}}" '
            f'password="${{file:{folder}/users.properties:alice.password}}";'
        ),
    }


def load(spark: Any, options: dict[str, str], topic: str) -> Any:
    return spark.read.format("pykafka").options(**options).option("subscribe", topic).load()


def save(frame: Any, options: dict[str, str], topic: str) -> None:
    frame.write.format("pykafka").options(**options).option("topic", topic).mode("append").save()


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_a_batch(spark: Any, secured: Secured, options: dict[str, str]) -> None:
    theirs = secured.confluent("SASLTLS", "SCRAM-SHA-512")
    for topic in ("spark-in", "spark-out"):
        secured.cluster.create_topic(topic)
    confluent_write(theirs, "spark-in", TOPIC_VALUES)
    frame = load(spark, options, "spark-in").select("value")
    save(frame, options | {"kafka.client.id": "spark-writer"}, "spark-out")
    assert sorted(confluent_read(theirs, "spark-out", 20)) == sorted(TOPIC_VALUES)
    assert sorted(bytes(row.value) for row in frame.collect()) == sorted(TOPIC_VALUES)
    wait_until(lambda: "PRODUCE" in secured.request_counts("spark-writer"))
    assert {row["principal"] for row in secured.requests("spark-writer")} == {"User:alice"}


def test_a_secret_is_not_in_the_plan(spark: Any, secured: Secured, options: dict[str, str]) -> None:
    """Given as it is, without a reference."""
    secured.cluster.create_topic("spark-plan")
    options = options | {
        "kafka.sasl.jaas.config": secured.ours("SASLTLS", "SCRAM-SHA-512")["sasl.jaas.config"]
    }
    frame = load(spark, options, "spark-plan")
    assert frame.collect() == []
    assert PASSWORDS["alice"] not in plan_of(frame)


def test_a_stream(spark: Any, secured: Secured, options: dict[str, str], tmp_path: Path) -> None:
    """By OAUTHBEARER this time: each worker has a token of its own."""
    theirs = secured.confluent("SASLTLS", "OAUTHBEARER")
    for topic in ("stream-in", "stream-out"):
        secured.cluster.create_topic(topic)
    confluent_write(theirs, "stream-in", TOPIC_VALUES)
    (secured.folder / "token.secret").write_text(TOKEN_SECRETS["alice"])
    options = {name: value for name, value in options.items() if "jaas" not in name} | {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": secured.tokens.url,
        "kafka.sasl.oauthbearer.client.credentials.client.id": "alice",
        "kafka.sasl.oauthbearer.client.credentials.client.secret": (
            f"${{directory:{secured.folder}:token.secret}}"
        ),
        "kafka.https.ca.location": secured.authority_file,
    }
    query = (
        spark.readStream.format("pykafka")
        .options(**options)
        .option("subscribe", "stream-in")
        .option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format("pykafka")
        .options(**options)
        .option("topic", "stream-out")
        .option("deliveryGuarantee", "exactly-once")
        .option("transactionalIdPrefix", "secured-stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    config = theirs | {"isolation.level": "read_committed"}
    assert sorted(confluent_read(config, "stream-out", 20)) == sorted(TOPIC_VALUES)
    for path in (tmp_path / "checkpoint").rglob("*"):
        if path.is_file():
            assert TOKEN_SECRETS["alice"].encode() not in path.read_bytes()


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_wrong_password_ends_soon(
    spark: Any, secured: Secured, options: dict[str, str], what: str
) -> None:
    secured.cluster.create_topic(f"spark-wrong-{what}")
    wrong = options | {"kafka.sasl.jaas.config": "", "kafka.client.id": f"wrong-{what}"}
    wrong["kafka.sasl.jaas.config"] = secured.ours("SASLTLS", "SCRAM-SHA-512", password="hush-no")[
        "sasl.jaas.config"
    ]
    before = secured.failed_authentications()
    with pytest.raises(PySparkException) as caught:
        if what == "read":
            load(spark, wrong, "spark-wrong-read").collect()
        else:
            save(spark.createDataFrame([("v",)], "value string"), wrong, "spark-wrong-write")
    text = str(caught.value)
    assert "authentication with SCRAM-SHA-512 as user alice failed" in text
    assert "hush" not in text
    # Nothing is tried again. A read asks in its plan; a write in each of its tasks.
    assert 1 <= secured.failed_authentications() - before <= 2


def test_a_reference_to_nothing(spark: Any, secured: Secured, options: dict[str, str]) -> None:
    missing = options | {"kafka.ssl.truststore.location": "${env:NO_SUCH_VARIABLE_HERE}"}
    with pytest.raises(PySparkException) as caught:
        load(spark, missing, "spark-in").collect()
    assert "${env:NO_SUCH_VARIABLE_HERE} cannot be looked up" in str(caught.value)
