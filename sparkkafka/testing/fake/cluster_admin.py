"""How the fake broker answers about the cluster as a whole: quotas, replicas that move, elections,
features. A move ends with `FakeCluster.finish_reassignments`."""

from __future__ import annotations

from typing import Any

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AlterClientQuotasResponse,
    AlterPartitionReassignmentsResponse,
    AlterQuotaResult,
    DescribeClientQuotasResponse,
    DescribedQuotaEntry,
    ElectionPartitionResult,
    ElectLeadersResponse,
    FinalizedFeatureKey,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    QuotaEntityPart,
    QuotaValue,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
    SupportedFeatureKey,
    UpdatableFeatureResult,
    UpdateFeaturesResponse,
)
from sparkkafka.testing.fake.call import Call, reported_in
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.state import NO_LEADER, FakePartition

PREFERRED = 0
UPGRADE = 1
LAST_VERSION_WITHOUT_ZERO = 3  # of ApiVersions
TRANSACTION_FEATURE = "transaction.version"
SUPPORTED_FEATURES = {"group.version": (0, 1), "metadata.version": (7, 27)}
QUOTAS = ("consumer_byte_rate", "connection_creation_rate", "producer_byte_rate")

_EXACT, _DEFAULT = 0, 1


# --- quotas -------------------------------------------------------------------------------------


def describe_client_quotas(call: Call) -> DescribeClientQuotasResponse:
    """Answer DescribeClientQuotas."""
    injected = call.error_of()
    if injected is not None:
        return DescribeClientQuotasResponse(
            error_code=injected.code, error_message=injected.message, entries=None
        )
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            DescribedQuotaEntry(
                entity=[
                    QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[QuotaValue(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in call.state.cluster_wide.quotas.items()
            if _matches(dict(entity), call.message)
        ],
    )


def _matches(entity: dict[str, str | None], message: Any) -> bool:
    """Return whether an entity of quotas fits the filters of a DescribeClientQuotas request."""
    for row in message.components:
        if row.entity_type not in entity:
            return False
        name = entity[row.entity_type]
        if (row.match_type == _EXACT and name != row.match) or (
            row.match_type == _DEFAULT and name is not None
        ):
            return False
    return not message.strict or len(entity) == len(message.components)


def alter_client_quotas(call: Call) -> AlterClientQuotasResponse:
    """Answer AlterClientQuotas."""
    rows = []
    for entry in call.message.entries:
        row = AlterQuotaResult(error_message=None, entity=entry.entity)
        with reported_in(row):
            call.check_fault()
            _alter_quotas(call, entry)
            call.check_fault(applied=True)
        rows.append(row)
    return AlterClientQuotasResponse(entries=rows)


def _alter_quotas(call: Call, entry: Any) -> None:
    """Change the quotas of one entity. Raises Refused."""
    unknown = [op.key for op in entry.ops if op.key not in QUOTAS]
    if unknown:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {unknown[0]}")
    if call.message.validate_only:
        return
    entity = tuple((row.entity_type, row.entity_name) for row in entry.entity)
    values = call.state.cluster_wide.quotas.setdefault(entity, {})
    for op in entry.ops:
        values.pop(op.key, None)
        if not op.remove:
            values[op.key] = op.value
    if not values:
        del call.state.cluster_wide.quotas[entity]


# --- replicas -----------------------------------------------------------------------------------


def alter_partition_reassignments(call: Call) -> AlterPartitionReassignmentsResponse:
    """Answer AlterPartitionReassignments."""
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_begin_reassignment(call, topic.name, row) for row in topic.partitions],
            )
            for topic in call.message.topics
        ],
    )


def _begin_reassignment(call: Call, topic: str, requested: Any) -> ReassignablePartitionResponse:
    """Begin to move a partition, or cancel its move if no replicas are requested."""
    number, moves = requested.partition_index, call.state.cluster_wide.moves
    row = ReassignablePartitionResponse(partition_index=number, error_message=None)
    with reported_in(row):
        call.check_fault(topic, number)
        call.check_controller()
        _existing_partition(call, topic, number)
        if requested.replicas is None and (topic, number) not in moves:
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "Nothing moves.")
        if requested.replicas is None:
            del moves[topic, number]
        elif requested.replicas and set(requested.replicas) <= set(call.state.addresses):
            moves[topic, number] = tuple(requested.replicas)
        else:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{requested.replicas}")
        call.check_fault(topic, number, applied=True)
    return row


def _existing_partition(call: Call, topic: str, number: int) -> FakePartition:
    if not call.state.has_partition(topic, number):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    return call.state.partition(topic, number)


def list_partition_reassignments(call: Call) -> ListPartitionReassignmentsResponse:
    """Answer ListPartitionReassignments: those of the named partitions, or of all."""
    injected = call.error_of()
    if injected is not None:
        return ListPartitionReassignmentsResponse(
            error_code=injected.code, error_message=injected.message
        )
    requested = call.message.topics
    chosen = (
        None if requested is None else {(t.name, n) for t in requested for n in t.partition_indexes}
    )
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for (topic, number), target in call.state.cluster_wide.moves.items():
        if chosen is not None and (topic, number) not in chosen:
            continue
        now = call.state.partition(topic, number).replicas
        topics.setdefault(topic, []).append(
            OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(dict.fromkeys((*target, *now))),
                adding_replicas=[node for node in target if node not in now],
                removing_replicas=[node for node in now if node not in target],
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[OngoingTopicReassignment(name=n, partitions=rows) for n, rows in topics.items()],
    )


def elect_leaders(call: Call) -> ElectLeadersResponse:
    """Answer ElectLeaders, for the named partitions or all."""
    injected = call.top_level
    if injected is not None:
        return ElectLeadersResponse(error_code=injected.code)
    requested = call.message.topic_partitions
    everything = [
        (topic.name, row.number) for topic in call.state.topics.values() for row in topic.partitions
    ]
    chosen = (
        everything if requested is None else [(t.topic, n) for t in requested for n in t.partitions]
    )
    topics: dict[str, list[ElectionPartitionResult]] = {}
    for topic, number in chosen:
        row = _elect(call, topic, number)
        if requested is not None or row.error_code != ErrorCode.ELECTION_NOT_NEEDED:
            topics.setdefault(topic, []).append(row)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=name, partition_result=rows)
            for name, rows in topics.items()
        ]
    )


def _elect(call: Call, topic: str, number: int) -> ElectionPartitionResult:
    """Elect the leader of one partition, unless a fault is injected."""
    row = ElectionPartitionResult(partition_id=number, error_message=None)
    with reported_in(row):
        call.check_fault(topic, number)
        call.check_controller()
        partition = _existing_partition(call, topic, number)
        call.state.move_leader(partition, _new_leader(call, partition))
        call.check_fault(topic, number, applied=True)
    return row


def _new_leader(call: Call, partition: FakePartition) -> int:
    """Return the broker that the election makes the leader. Raises Refused if none is needed or
    none is up."""
    preferred = partition.replicas[0]
    if call.message.election_type == PREFERRED:
        if partition.leader == preferred:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed.")
        if preferred not in call.state.live:
            raise Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"{preferred} is down.")
        return preferred
    if partition.leader != NO_LEADER:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed.")
    live = call.state.in_sync(partition)
    if not live:
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is up.")
    return live[0]


# --- features -----------------------------------------------------------------------------------


def finalized_features(call: Call) -> list[FinalizedFeatureKey]:
    """Return the levels of features that ApiVersions reports."""
    levels, transactions = call.state.cluster_wide.features, call.state.transactions.version
    if transactions > 1:
        levels = levels | {TRANSACTION_FEATURE: transactions}
    return [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in levels.items()
    ]


def supported_features(call: Call) -> list[SupportedFeatureKey]:
    """Return the ranges of levels that ApiVersions reports. Those that begin with 0 need version 4
    of it (KIP-1022)."""
    return [
        SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest) in SUPPORTED_FEATURES.items()
        if lowest or call.version > LAST_VERSION_WITHOUT_ZERO
    ]


def update_features(call: Call) -> UpdateFeaturesResponse:
    """Answer UpdateFeatures: all levels are set, or none."""
    response = UpdateFeaturesResponse(error_message=None)
    levels = dict(call.state.cluster_wide.features)
    with reported_in(response):
        call.check_fault()
        call.check_controller()
        for row in call.message.feature_updates:
            _set_level(levels, row)
            response.results.append(UpdatableFeatureResult(feature=row.feature, error_message=None))
        if not call.message.validate_only:
            call.state.cluster_wide.features = levels
    return response


def _set_level(levels: dict[str, int], row: Any) -> None:
    """Apply one feature update to `levels`. Raises Refused."""
    lowest, highest = SUPPORTED_FEATURES.get(row.feature, (0, 0))
    level = row.max_version_level
    if not lowest <= level <= highest:
        message = f"Invalid update version {level} for feature {row.feature}."
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
    may_fall = row.upgrade_type != UPGRADE or row.allow_downgrade
    if level < levels.get(row.feature, 0) and not may_fall:
        message = f"Can't downgrade the version of feature {row.feature} without setting the type."
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
    levels[row.feature] = level
    if not level:
        del levels[row.feature]
