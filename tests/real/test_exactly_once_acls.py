"""Exactly-once with the ACLs that docs/exactly-once.md lists and the command makes, and without one
of them each."""

from __future__ import annotations

import tempfile
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sparkkafka.cli.app import main
from tests.real.peers import Record, confluent_write
from tests.real.secured import Secured

pytestmark = [pytest.mark.real, pytest.mark.spark]

# docs/exactly-once.md, section ACLs; all for alice.
NEEDED = {
    "id": (ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED, AclOperation.WRITE),
    "group": (ResourceType.GROUP, ResourcePatternType.PREFIXED, AclOperation.READ),
    "write": (ResourceType.TOPIC, ResourcePatternType.LITERAL, AclOperation.WRITE),
    "read": (ResourceType.TOPIC, ResourcePatternType.LITERAL, AclOperation.READ),
}
# What is missing -> what the error says.
REFUSALS = {
    "id": "grant WRITE on it",
    "group": "grant READ on it",
    "write": "TOPIC_AUTHORIZATION_FAILED",
    "read": "TOPIC_AUTHORIZATION_FAILED",
}


@pytest.fixture(scope="module")
def guarded(secured: Secured) -> Secured:
    """Of topics, groups and transactional ids called "without-<case>…", alice may do only what the
    case allows; everything else is free for all."""
    servers = secured.cluster.bootstrap_servers
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    secured.cluster.create_topic("acls-in", partitions=2)
    confluent_write(servers, "acls-in", [Record(None, b"v")] * 10)
    secured.cluster.create_topic("without-none", partitions=2)
    made = ["acls", "create", "--exactly-once", "--topic", "without-none", "-b", servers]
    assert main([*made, "--prefix", "without-none", "--principal", "User:alice"]) == 0
    rules = []
    for case in NEEDED:
        secured.cluster.create_topic(f"without-{case}", partitions=2)
        for name, (resource, pattern, operation) in NEEDED.items():
            if name == case:
                if resource is ResourceType.TOPIC:
                    continue  # the other rule guards it
                operation = AclOperation.DESCRIBE  # without any rule everybody may do all
            rules.append(
                AclBinding(
                    *(resource, f"without-{case}", pattern, "User:alice", "*"),
                    *(operation, AclPermissionType.ALLOW),
                )
            )
    for future in admin.create_acls(rules, request_timeout=30).values():
        future.result(30)
    return secured


def run(spark: Any, secured: Secured, case: str) -> BaseException | None:
    settings = secured.ours("SASLTEXT", "SCRAM-SHA-512")
    options = {f"kafka.{name}": value for name, value in settings.items()}
    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("pykafka")
            .options(**options)
            .option("subscribe", "acls-in")
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("value")
            .writeStream.format("pykafka")
            .options(**options)
            .option("topic", f"without-{case}")
            .option("deliveryGuarantee", "exactly-once")
            .option("transactionalIdPrefix", f"without-{case}")
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        except Exception as error:
            return error
        finally:
            query.stop()
    return None


def test_the_acls_of_the_docs_are_enough(spark, guarded):
    assert run(spark, guarded, "none") is None


@pytest.mark.parametrize("missing", NEEDED)
def test_each_of_them_is_needed_and_named(spark, guarded, missing):
    error = run(spark, guarded, missing)
    assert error is not None
    assert REFUSALS[missing] in str(error)
