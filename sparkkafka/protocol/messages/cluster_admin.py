"""The cluster as a whole: client quotas, replicas that move, elections of leaders, features."""

from __future__ import annotations

from sparkkafka.protocol.wire.fields import (
    INT32,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    nullable_array,
    nullable_string,
    string,
    struct,
)
from sparkkafka.protocol.wire.schema import Request, Response, request, response


@struct
class QuotaComponent:
    """Which entities are meant by one of their parts. `match_type` 0: the name `match`, 1: the
    default, 2: any that is given."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = nullable_string()


@request(api_key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """Asks for the quotas of entities; `strict`: only of those that have no other parts."""

    components: list[QuotaComponent] = array(QuotaComponent)
    strict: bool = boolean()


@struct
class QuotaEntityPart:
    """A part of an entity: user, client-id or ip; the name is null for the default."""

    entity_type: str = string()
    entity_name: str | None = nullable_string()


@struct
class QuotaValue:
    """A quota and its limit."""

    key: str = string()
    value: float = float64()


@struct
class DescribedQuotaEntry:
    """An entity and its quotas."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart)
    values: list[QuotaValue] = array(QuotaValue)


@response(DescribeClientQuotasRequest)
class DescribeClientQuotasResponse(Response):
    """Quotas by entity."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    entries: list[DescribedQuotaEntry] | None = nullable_array(DescribedQuotaEntry)


@struct
class QuotaOp:
    """A quota to set, or with `remove` to take away."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class AlteredQuotaEntry:
    """An entity and what changes."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart)
    ops: list[QuotaOp] = array(QuotaOp)


@request(api_key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    """Changes quotas."""

    entries: list[AlteredQuotaEntry] = array(AlteredQuotaEntry)
    validate_only: bool = boolean()


@struct
class AlterQuotaResult:
    """Whether an entity's quotas were changed."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    entity: list[QuotaEntityPart] = array(QuotaEntityPart)


@response(AlterClientQuotasRequest)
class AlterClientQuotasResponse(Response):
    """Results by entity."""

    throttle_time_ms: int = int32()
    entries: list[AlterQuotaResult] = array(AlterQuotaResult)


@struct
class ReassignablePartition:
    """A partition and the brokers that shall have it; null ends a reassignment under way."""

    partition_index: int = int32()
    replicas: list[int] | None = nullable_array(INT32, null_default=True)


@struct
class ReassignableTopic:
    """Partitions of a topic."""

    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@request(api_key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Begins to move replicas to other brokers, or ends that."""

    timeout_ms: int = int32(60_000)
    allow_replication_factor_change: bool = boolean(True, since=1)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@struct
class ReassignablePartitionResponse:
    """Whether it has begun."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@struct
class ReassignableTopicResponse:
    """Partitions of a topic."""

    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@response(AlterPartitionReassignmentsRequest)
class AlterPartitionReassignmentsResponse(Response):
    """Results by partition."""

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(True, since=1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string()
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of a topic."""

    name: str = string()
    partition_indexes: list[int] = array(INT32)


@request(api_key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """Asks which of these partitions (null: of all) are moving."""

    timeout_ms: int = int32(60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = nullable_array(
        ListPartitionReassignmentsTopics, null_default=True
    )


@struct
class OngoingPartitionReassignment:
    """A partition that moves: all replicas, those that come and those that go."""

    partition_index: int = int32()
    replicas: list[int] = array(INT32)
    adding_replicas: list[int] = array(INT32)
    removing_replicas: list[int] = array(INT32)


@struct
class OngoingTopicReassignment:
    """Partitions of a topic."""

    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@response(ListPartitionReassignmentsRequest)
class ListPartitionReassignmentsResponse(Response):
    """The partitions that are moving."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)


@struct
class ElectionPartitions:
    """Partitions of a topic."""

    topic: str = string()
    partitions: list[int] = array(INT32)


@request(api_key=43, versions=(0, 2), flexible=2)
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Elects leaders of these partitions (null: of all that need it). `election_type` 0 makes the
    first replica the leader, 1 any replica that lives, in sync or not."""

    election_type: int = int8(since=1)
    topic_partitions: list[ElectionPartitions] | None = nullable_array(ElectionPartitions)
    timeout_ms: int = int32(60_000)


@struct
class ElectionPartitionResult:
    """Whether a partition has a leader by it."""

    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@struct
class ReplicaElectionResult:
    """Partitions of a topic."""

    topic: str = string()
    partition_result: list[ElectionPartitionResult] = array(ElectionPartitionResult)


@response(ElectLeadersRequest)
class ElectLeadersResponse(Response):
    """Results by partition."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


@struct
class FeatureUpdateKey:
    """A feature and its new level, 0 to take it away. `upgrade_type` 1: higher only, 2: lower where
    nothing is lost, 3: lower all the same."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(1, since=1)


@request(api_key=57, versions=(0, 2), flexible=0)
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """Sets levels of features (KIP-584), such as metadata.version."""

    timeout_ms: int = int32(60_000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


@struct
class UpdatableFeatureResult:
    """Whether a feature was updated."""

    feature: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@response(UpdateFeaturesRequest)
class UpdateFeaturesResponse(Response):
    """Results by feature; from version 2 on all or none are updated, and only the whole is told."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1, ignorable=True)
