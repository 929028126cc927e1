"""Exactly-once with the ACLs that docs/exactly-once.md lists and the command makes, and without one
of them each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
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

pytestmark = [pytest.mark.real, pytest.mark.spark]

# docs/exactly-once.md, section ACLs; all for User:ANONYMOUS, the one user of a plain-text listener.
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
def guarded() -> Iterator[Any]:
    """A broker where, of topics, groups and transactional ids called "<case>…", only what the case
    allows is allowed; everything else is free for all."""
    from sparkkafka.testing.kafka.cluster import KafkaCluster

    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
    }
    with KafkaCluster(1, properties) as cluster:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.create_topic("in", partitions=2)
        confluent_write(cluster.bootstrap_servers, "in", [Record(None, b"v")] * 10)
        cluster.create_topic("none", partitions=2)
        made = ["acls", "create", "--exactly-once", "--topic", "none", "--prefix", "none"]
        servers = cluster.bootstrap_servers
        assert main([*made, "--principal", "User:ANONYMOUS", "-b", servers]) == 0
        rules = []
        for case in NEEDED:
            cluster.create_topic(case, partitions=2)
            for name, (resource, pattern, operation) in NEEDED.items():
                if name == case:
                    if resource is ResourceType.TOPIC:
                        continue  # the other rule guards it
                    operation = AclOperation.DESCRIBE  # without any rule everybody may do all
                rules.append(
                    AclBinding(
                        *(resource, case, pattern, "User:ANONYMOUS", "*"),
                        *(operation, AclPermissionType.ALLOW),
                    )
                )
        for future in admin.create_acls(rules, request_timeout=30).values():
            future.result(30)
        yield cluster


def run(spark: Any, cluster: Any, case: str) -> BaseException | None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("pykafka")
            .options(**options)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("value")
            .writeStream.format("pykafka")
            .options(**options)
            .option("topic", case)
            .option("deliveryGuarantee", "exactly-once")
            .option("transactionalIdPrefix", case)
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
