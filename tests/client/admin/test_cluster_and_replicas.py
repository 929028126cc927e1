"""Quotas, replicas that move, elections and features by Admin on fake brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client import (
    Admin,
    ClientQuotaAlteration,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaFilterComponent,
    FeatureUpdate,
    PartitionReassignment,
    TopicPartition,
)
from sparkkafka.client.admin.brokers import FeatureRange
from sparkkafka.errors import BrokerError, ErrorCode, OptionError, UnsupportedVersionError
from sparkkafka.testing.fake.faults import Drop, ErrorResponse
from tests.client.support import settings

ALICE = ClientQuotaEntity({"user": "alice"})
ALICES_APP = ClientQuotaEntity({"user": "alice", "client-id": "app"})
ANY_USER = ClientQuotaEntity({"user": None})
TP = TopicPartition("t", 0)
RATE = "producer_byte_rate"


@pytest.fixture
def admin(fake_cluster: Any) -> Iterator[Admin]:
    fake_cluster.create_topic("t", partitions=2)
    with Admin(settings(fake_cluster)) as admin:
        yield admin


def test_quotas_are_set_found_and_taken_away(admin: Admin) -> None:
    of = ClientQuotaFilterComponent
    admin.alter_client_quotas(
        [
            ClientQuotaAlteration(ALICE, {RATE: 1000, "consumer_byte_rate": 2000.5}),
            ClientQuotaAlteration(ALICES_APP, {RATE: 10}),
            ClientQuotaAlteration(ANY_USER, {RATE: 1}),
        ]
    ).all()
    of_alice = {RATE: 1000.0, "consumer_byte_rate": 2000.5}
    everything = {ALICE: of_alice, ALICES_APP: {RATE: 10.0}, ANY_USER: {RATE: 1.0}}
    assert admin.describe_client_quotas() == everything
    for components, strict, found in (
        ([of.of_entity("user", "alice")], False, {ALICE, ALICES_APP}),
        ([of.of_entity("user", "alice")], True, {ALICE}),
        ([of.of_default_entity("user")], False, {ANY_USER}),
        ([of.of_entity_type("user")], False, set(everything)),
        ([of.of_entity_type("user"), of.of_entity_type("client-id")], True, {ALICES_APP}),
        ([of.of_entity_type("ip")], False, set()),
    ):
        wanted = ClientQuotaFilter(components, strict)
        assert set(admin.describe_client_quotas(wanted)) == found
    admin.alter_client_quotas([ClientQuotaAlteration(ALICE, {RATE: None})]).all()
    assert admin.describe_client_quotas()[ALICE] == {"consumer_byte_rate": 2000.5}


def test_quotas_that_are_only_checked_or_refused(admin: Admin) -> None:
    alteration = ClientQuotaAlteration(ALICE, {RATE: 5})
    admin.alter_client_quotas([alteration], validate_only=True).all()
    bad = ClientQuotaAlteration(ALICES_APP, {"speed": 5})
    results = admin.alter_client_quotas([bad, alteration])
    assert list(results.errors) == [ALICES_APP]
    with pytest.raises(BrokerError, match=r"INVALID_REQUEST.*client-id app, user alice.*speed"):
        results.all()
    assert admin.describe_client_quotas() == {ALICE: {RATE: 5.0}}


def test_what_is_not_allowed_names_the_grant(admin: Admin, fake_cluster: Any) -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    fake_cluster.fault(ErrorResponse(denied), api="DescribeClientQuotas", times=None)
    fake_cluster.fault(ErrorResponse(denied, top_level=True), api="ElectLeaders", times=None)
    with pytest.raises(BrokerError, match="grant DESCRIBE_CONFIGS on the cluster"):
        admin.describe_client_quotas()
    with pytest.raises(BrokerError, match="grant ALTER on the cluster"):
        admin.elect_leaders("PREFERRED", [TP]).all()


def test_replicas_move_and_are_called_back(admin: Admin, fake_cluster: Any) -> None:
    fake_cluster.create_topic("one", replication_factor=1)
    one = TopicPartition("one", 0)
    (before,) = admin.describe_topic("one").partitions[0].replicas
    target = [node for node in fake_cluster.broker_ids if node != before]
    admin.alter_partition_reassignments({one: target}).all()
    moving = PartitionReassignment((*target, before), tuple(target), (before,))
    assert admin.list_partition_reassignments() == {one: moving}
    assert admin.list_partition_reassignments([TP]) == {}
    assert admin.list_partition_reassignments([TP, one]) == {one: moving}
    admin.alter_partition_reassignments({one: None}).all()
    results = admin.alter_partition_reassignments({one: None, TP: [7], TopicPartition("t", 1): [1]})
    assert {tp: error.code for tp, error in results.errors.items()} == {
        one: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        TP: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
    admin.alter_partition_reassignments({one: target}).all()
    fake_cluster.finish_reassignments()
    assert admin.list_partition_reassignments() == {}
    assert admin.describe_topic("one").partitions[0].replicas == tuple(target)


@pytest.mark.parametrize("drop", list(Drop))
def test_a_lost_response_is_no_failure(admin: Admin, fake_cluster: Any, drop: Drop) -> None:
    admin.alter_partition_reassignments({TP: [0, 1]}).all()
    apis = ("AlterPartitionReassignments", "AlterClientQuotas", "ElectLeaders", "UpdateFeatures")
    rules = [fake_cluster.fault(drop, api=api) for api in apis]
    fake_cluster.move_leader("t", 1, (fake_cluster.leader("t", 1) + 1) % 3)
    admin.alter_partition_reassignments({TP: None}).all()
    admin.alter_client_quotas([ClientQuotaAlteration(ALICE, {RATE: 5})]).all()
    admin.elect_leaders("PREFERRED", [TopicPartition("t", 1)]).all()
    admin.update_features({"metadata.version": FeatureUpdate(26)}).all()
    assert [rule.fired for rule in rules] == [1, 1, 1, 1]


def test_the_preferred_leader_is_elected(admin: Admin, fake_cluster: Any) -> None:
    preferred = fake_cluster.leader("t", 0)
    fake_cluster.move_leader("t", 0, (preferred + 1) % 3)
    assert admin.elect_leaders("PREFERRED").all() == {TP: None}
    assert fake_cluster.leader("t", 0) == preferred
    results = admin.elect_leaders("PREFERRED", [TP, TopicPartition("none", 0)])
    assert {tp: error.code for tp, error in results.errors.items()} == {
        TP: ErrorCode.ELECTION_NOT_NEEDED,
        TopicPartition("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    fake_cluster.move_leader("t", 0, (preferred + 1) % 3)
    fake_cluster.broker_down(preferred)
    results = admin.elect_leaders("PREFERRED")
    assert results.errors[TP].code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_leader_is_elected(admin: Admin, fake_cluster: Any) -> None:
    fake_cluster.move_leader("t", 0, -1)
    assert admin.elect_leaders("UNCLEAN").all() == {TP: None}
    assert fake_cluster.leader("t", 0) >= 0


def test_features_are_described_and_updated(admin: Admin) -> None:
    found = admin.describe_features()
    assert found.finalized_features["metadata.version"] == FeatureRange(25, 25)
    assert found.supported_features["metadata.version"] == FeatureRange(7, 27)
    assert found.supported_features["group.version"] == FeatureRange(0, 1)
    assert found.finalized_features_epoch == 1
    admin.update_features({"group.version": FeatureUpdate(1)}, validate_only=True).all()
    assert "group.version" not in admin.describe_features().finalized_features
    both = {"group.version": FeatureUpdate(1), "metadata.version": FeatureUpdate(20)}
    results = admin.update_features(both)
    assert len(results.errors) == 2  # all or none
    with pytest.raises(BrokerError, match=r"INVALID_UPDATE_VERSION.*downgrade"):
        results.all()
    both["metadata.version"] = FeatureUpdate(20, "SAFE_DOWNGRADE")
    assert admin.update_features(both).all() == dict.fromkeys(both)
    found = admin.describe_features()
    assert found.finalized_features["group.version"].max_version_level == 1
    assert found.finalized_features["metadata.version"].max_version_level == 20


def test_older_brokers(fake_cluster_factory: Any) -> None:
    with Admin(settings(fake_cluster_factory(1, kafka_version="2.8"))) as admin:
        assert admin.describe_features().finalized_features
        admin.update_features({"metadata.version": FeatureUpdate(20, "UNSAFE_DOWNGRADE")}).all()
        with pytest.raises(UnsupportedVersionError, match=r"validate_only needs Kafka 3\.3"):
            admin.update_features({"f": FeatureUpdate(1)}, validate_only=True).all()
    with Admin(settings(fake_cluster_factory(1, kafka_version="2.1"))) as admin:
        assert admin.describe_features().finalized_features_epoch is None
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 2\.6"):
            admin.describe_client_quotas()
        with pytest.raises(UnsupportedVersionError, match=r"UNCLEAN needs Kafka 2\.4"):
            admin.elect_leaders("UNCLEAN", [TP]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda admin: ClientQuotaEntity({}), "at least one of user, client-id and ip"),
        (lambda admin: ClientQuotaEntity({"client_id": "a"}), "did you mean 'client-id'"),
        (lambda admin: admin.describe_client_quotas("alice"), "is a ClientQuotaFilter"),
        (
            lambda admin: admin.alter_client_quotas([ClientQuotaAlteration(ALICE, {RATE: "fast"})]),
            "producer_byte_rate of user alice is a number",
        ),
        (
            lambda admin: admin.alter_client_quotas([ClientQuotaAlteration(ALICE, {RATE: 1})] * 2),
            "user alice are altered twice",
        ),
        (lambda admin: admin.alter_partition_reassignments({TP: "12"}), r"reassignments\[t-0\]"),
        (lambda admin: admin.elect_leaders("preferred"), "did you mean 'PREFERRED'"),
        (lambda admin: admin.update_features({"f": 1}), r"FeatureUpdate\(20\)"),
        (lambda admin: admin.update_features({"f": FeatureUpdate(-1)}), "from 0 to 32767"),
        (lambda admin: admin.update_features({"f": FeatureUpdate(1, "UP")}), "upgrade_type must"),
    ],
)
def test_arguments_that_cannot_be(admin: Admin, fake_cluster: Any, call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(admin)
    assert not fake_cluster.requests
