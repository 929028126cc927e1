"""Requests of Admin about topics, settings, log directories, quotas, replicas and leaders,
features, ACLs, SCRAM users and delegation tokens. Those about groups and transactions are in
`groups`, `share_groups` and `transactions`."""

from __future__ import annotations

import uuid

from sparkkafka.protocol.wire import schema as wire


@wire.struct
class CreatableReplicaAssignment:
    """The brokers that get a partition, the preferred leader first."""

    partition_index: int = wire.int32()
    broker_ids: list[int] = wire.array(wire.INT32)


@wire.struct
class CreatableTopicConfig:
    """One setting of the new topic."""

    name: str = wire.string()
    value: str | None = wire.nullable_string()


@wire.struct
class CreatableTopic:
    """A topic to create.

    Partition count and replication factor are -1 with `assignments`, or (since version 4) for
    the broker's defaults.
    """

    name: str = wire.string()
    num_partitions: int = wire.int32()
    replication_factor: int = wire.int16()
    assignments: list[CreatableReplicaAssignment] = wire.array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = wire.array(CreatableTopicConfig)


@wire.request(api_key=19, versions=(2, 7), flexible=5, kafka="2.1:3 2.4:5 2.7:6 2.8:7")
class CreateTopicsRequest(wire.Request["CreateTopicsResponse"]):
    """Creates topics; goes to the controller. `validate_only` only says whether it would work."""

    topics: list[CreatableTopic] = wire.array(CreatableTopic)
    timeout_ms: int = wire.int32(60000)
    validate_only: bool = wire.boolean(since=1)


@wire.struct
class CreatableTopicConfigs:
    """A setting of the topic as created."""

    name: str = wire.string()
    value: str | None = wire.nullable_string()
    read_only: bool = wire.boolean()
    config_source: int = wire.int8(-1, ignorable=True)
    is_sensitive: bool = wire.boolean()


@wire.struct
class CreatableTopicResult:
    """The outcome of one topic."""

    name: str = wire.string()
    topic_id: uuid.UUID = wire.uuid(since=7, ignorable=True)
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(since=1, ignorable=True)
    topic_config_error_code: int = wire.int16(since=5, tag=0, ignorable=True)
    num_partitions: int = wire.int32(-1, since=5, ignorable=True)
    replication_factor: int = wire.int16(-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = wire.nullable_array(
        CreatableTopicConfigs, since=5, ignorable=True
    )


@wire.response(CreateTopicsRequest)
class CreateTopicsResponse(wire.Response):
    """The outcome of each topic."""

    throttle_time_ms: int = wire.int32(since=2, ignorable=True)
    topics: list[CreatableTopicResult] = wire.array(CreatableTopicResult)


@wire.struct
class DeleteTopicState:
    """A topic by name, or by id with a null name."""

    name: str | None = wire.nullable_string(None)
    topic_id: uuid.UUID = wire.uuid()


@wire.request(api_key=20, versions=(1, 6), flexible=4, kafka="2.1:3 2.4:4 2.7:5 2.8:6")
class DeleteTopicsRequest(wire.Request["DeleteTopicsResponse"]):
    """Deletes topics: `topics` from version 6 on, `topic_names` before."""

    topics: list[DeleteTopicState] = wire.array(DeleteTopicState, since=6)
    topic_names: list[str] = wire.array(wire.STRING, until=5, ignorable=True)
    timeout_ms: int = wire.int32()


@wire.struct
class DeletableTopicResult:
    """The outcome of one topic."""

    name: str | None = wire.nullable_string(nullable_since=6)
    topic_id: uuid.UUID = wire.uuid(since=6, ignorable=True)
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None, since=5, ignorable=True)


@wire.response(DeleteTopicsRequest)
class DeleteTopicsResponse(wire.Response):
    """The outcome of each topic."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = wire.array(DeletableTopicResult)


@wire.struct
class CreatePartitionsAssignment:
    """The brokers that get one of the new partitions, the preferred leader first."""

    broker_ids: list[int] = wire.array(wire.INT32)


@wire.struct
class CreatePartitionsTopic:
    """A topic and its new total of partitions. `assignments` are those of the new partitions; None
    lets the brokers choose."""

    name: str = wire.string()
    count: int = wire.int32()
    assignments: list[CreatePartitionsAssignment] | None = wire.nullable_array(
        CreatePartitionsAssignment
    )


@wire.request(api_key=37, versions=(0, 3), flexible=2, kafka="2.1:1 2.5:2 2.7:3")
class CreatePartitionsRequest(wire.Request["CreatePartitionsResponse"]):
    """Gives topics more partitions; goes to the controller."""

    topics: list[CreatePartitionsTopic] = wire.array(CreatePartitionsTopic)
    timeout_ms: int = wire.int32()
    validate_only: bool = wire.boolean()


@wire.struct
class CreatePartitionsTopicResult:
    """The outcome of one topic."""

    name: str = wire.string()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)


@wire.response(CreatePartitionsRequest)
class CreatePartitionsResponse(wire.Response):
    """The outcome of each topic."""

    throttle_time_ms: int = wire.int32()
    results: list[CreatePartitionsTopicResult] = wire.array(CreatePartitionsTopicResult)


@wire.struct
class DeleteRecordsPartition:
    """Records below `offset` are deleted; -1 means those below the high watermark."""

    partition_index: int = wire.int32()
    offset: int = wire.int64()


@wire.struct
class DeleteRecordsTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[DeleteRecordsPartition] = wire.array(DeleteRecordsPartition)


@wire.request(api_key=21, versions=(0, 2), flexible=2, kafka="2.1:1 2.6:2")
class DeleteRecordsRequest(wire.Request["DeleteRecordsResponse"]):
    """Moves the beginning of partitions forward; goes to their leaders."""

    topics: list[DeleteRecordsTopic] = wire.array(DeleteRecordsTopic)
    timeout_ms: int = wire.int32()


@wire.struct
class DeleteRecordsPartitionResult:
    """The first offset that remains in all replicas."""

    partition_index: int = wire.int32()
    low_watermark: int = wire.int64()
    error_code: int = wire.int16()


@wire.struct
class DeleteRecordsTopicResult:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[DeleteRecordsPartitionResult] = wire.array(DeleteRecordsPartitionResult)


@wire.response(DeleteRecordsRequest)
class DeleteRecordsResponse(wire.Response):
    """The outcome of each partition."""

    throttle_time_ms: int = wire.int32()
    topics: list[DeleteRecordsTopicResult] = wire.array(DeleteRecordsTopicResult)


@wire.struct
class DescribeConfigsResource:
    """A resource (type 2 topic, 4 broker) and the names of its settings; None means all."""

    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configuration_keys: list[str] | None = wire.nullable_array(wire.STRING)


@wire.request(api_key=32, versions=(1, 4), flexible=4, kafka="2.1:2 2.6:3 2.8:4")
class DescribeConfigsRequest(wire.Request["DescribeConfigsResponse"]):
    """Requests settings of topics and brokers."""

    resources: list[DescribeConfigsResource] = wire.array(DescribeConfigsResource)
    include_synonyms: bool = wire.boolean(since=1)
    include_documentation: bool = wire.boolean(since=3)


@wire.struct
class DescribeConfigsSynonym:
    """Another source of the same setting; the sources are in order of precedence."""

    name: str = wire.string()
    value: str | None = wire.nullable_string()
    source: int = wire.int8()


@wire.struct
class DescribeConfigsResourceResult:
    """One setting; the value of a sensitive one is null."""

    name: str = wire.string()
    value: str | None = wire.nullable_string()
    read_only: bool = wire.boolean()
    config_source: int = wire.int8(-1, since=1, ignorable=True)
    is_sensitive: bool = wire.boolean()
    synonyms: list[DescribeConfigsSynonym] = wire.array(
        DescribeConfigsSynonym, since=1, ignorable=True
    )
    config_type: int = wire.int8(since=3, ignorable=True)
    documentation: str | None = wire.nullable_string(since=3, ignorable=True)


@wire.struct
class DescribeConfigsResult:
    """Settings of one resource."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configs: list[DescribeConfigsResourceResult] = wire.array(DescribeConfigsResourceResult)


@wire.response(DescribeConfigsRequest)
class DescribeConfigsResponse(wire.Response):
    """Settings by resource."""

    throttle_time_ms: int = wire.int32()
    results: list[DescribeConfigsResult] = wire.array(DescribeConfigsResult)


@wire.struct
class AlterableConfig:
    """One change: operation 0 set, 1 delete (value null), 2 append to a list, 3 remove from it."""

    name: str = wire.string()
    config_operation: int = wire.int8()
    value: str | None = wire.nullable_string()


@wire.struct
class AlterConfigsResource:
    """A resource (types as in DescribeConfigsResource) and its changes."""

    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    configs: list[AlterableConfig] = wire.array(AlterableConfig)


@wire.request(api_key=44, versions=(0, 1), flexible=1, kafka="2.3:0 2.4:1")
class IncrementalAlterConfigsRequest(wire.Request["IncrementalAlterConfigsResponse"]):
    """Changes some settings and leaves the others (KIP-339, Kafka 2.3)."""

    resources: list[AlterConfigsResource] = wire.array(AlterConfigsResource)
    validate_only: bool = wire.boolean()


@wire.struct
class AlterConfigsResourceResponse:
    """The outcome of one resource."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    resource_type: int = wire.int8()
    resource_name: str = wire.string()


@wire.response(IncrementalAlterConfigsRequest)
class IncrementalAlterConfigsResponse(wire.Response):
    """The outcome of each resource."""

    throttle_time_ms: int = wire.int32()
    responses: list[AlterConfigsResourceResponse] = wire.array(AlterConfigsResourceResponse)


@wire.request(api_key=74, versions=(0, 1), flexible=0, kafka="4.0:0 4.1:1")
class ListConfigResourcesRequest(wire.Request["ListConfigResourcesResponse"]):
    """Requests the names of what has settings of its own: of client metrics in version 0, else of
    these types (KIP-1142). An empty list means all types."""

    resource_types: list[int] = wire.array(wire.INT8, since=1)


@wire.struct
class ListedConfigResource:
    """A resource; `resource_type` 16 is a subscription to client metrics."""

    resource_name: str = wire.string()
    resource_type: int = wire.int8(16, since=1, ignorable=True)


@wire.response(ListConfigResourcesRequest)
class ListConfigResourcesResponse(wire.Response):
    """The resources."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    config_resources: list[ListedConfigResource] = wire.array(ListedConfigResource)


@wire.struct
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.request(api_key=35, versions=(1, 5), flexible=2, kafka="2.1:1 2.6:2 3.2:3 3.3:4 4.3:5")
class DescribeLogDirsRequest(wire.Request["DescribeLogDirsResponse"]):
    """Requests the log directories of a broker with these partitions; None means all."""

    topics: list[DescribableLogDirTopic] | None = wire.nullable_array(DescribableLogDirTopic)


@wire.struct
class DescribeLogDirsPartition:
    """A replica's log. A future one is a copy that will replace the one in another directory."""

    partition_index: int = wire.int32()
    partition_size: int = wire.int64()
    offset_lag: int = wire.int64()
    is_future_key: bool = wire.boolean()


@wire.struct
class DescribeLogDirsTopic:
    """Replicas of one topic in a directory."""

    name: str = wire.string()
    partitions: list[DescribeLogDirsPartition] = wire.array(DescribeLogDirsPartition)


@wire.struct
class DescribeLogDirsResult:
    """One directory, and its volume's size without what lies in remote storage. A cordoned one gets
    no new replicas."""

    error_code: int = wire.int16()
    log_dir: str = wire.string()
    topics: list[DescribeLogDirsTopic] = wire.array(DescribeLogDirsTopic)
    total_bytes: int = wire.int64(-1, since=4, ignorable=True)
    usable_bytes: int = wire.int64(-1, since=4, ignorable=True)
    is_cordoned: bool = wire.boolean(since=5, ignorable=True)


@wire.response(DescribeLogDirsRequest)
class DescribeLogDirsResponse(wire.Response):
    """The broker's directories. Before version 3 a refused request gets no directories and no error
    code."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = wire.array(DescribeLogDirsResult)


# --- quotas, reassignments, elections, features ---------------------------------------------------


@wire.struct
class QuotaComponent:
    """Selects entities by one of their types. `match_type` 0: the name `match`, 1: the
    default, 2: any that is given."""

    entity_type: str = wire.string()
    match_type: int = wire.int8()
    match: str | None = wire.nullable_string()


@wire.request(api_key=48, versions=(0, 1), flexible=1, kafka="2.6:0 2.8:1")
class DescribeClientQuotasRequest(wire.Request["DescribeClientQuotasResponse"]):
    """Requests the quotas of entities; `strict`: only of those without other types."""

    components: list[QuotaComponent] = wire.array(QuotaComponent)
    strict: bool = wire.boolean()


@wire.struct
class QuotaEntityPart:
    """A part of an entity: user, client-id or ip; the name is null for the default."""

    entity_type: str = wire.string()
    entity_name: str | None = wire.nullable_string()


@wire.struct
class QuotaValue:
    """A quota and its limit."""

    key: str = wire.string()
    value: float = wire.float64()


@wire.struct
class DescribedQuotaEntry:
    """An entity and its quotas."""

    entity: list[QuotaEntityPart] = wire.array(QuotaEntityPart)
    values: list[QuotaValue] = wire.array(QuotaValue)


@wire.response(DescribeClientQuotasRequest)
class DescribeClientQuotasResponse(wire.Response):
    """Quotas by entity."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    entries: list[DescribedQuotaEntry] | None = wire.nullable_array(DescribedQuotaEntry)


@wire.struct
class QuotaOp:
    """A quota to set, or with `remove` to delete."""

    key: str = wire.string()
    value: float = wire.float64()
    remove: bool = wire.boolean()


@wire.struct
class AlteredQuotaEntry:
    """An entity and what changes."""

    entity: list[QuotaEntityPart] = wire.array(QuotaEntityPart)
    ops: list[QuotaOp] = wire.array(QuotaOp)


@wire.request(api_key=49, versions=(0, 1), flexible=1, kafka="2.6:0 2.8:1")
class AlterClientQuotasRequest(wire.Request["AlterClientQuotasResponse"]):
    """Changes quotas."""

    entries: list[AlteredQuotaEntry] = wire.array(AlteredQuotaEntry)
    validate_only: bool = wire.boolean()


@wire.struct
class AlterQuotaResult:
    """The outcome of one entity."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    entity: list[QuotaEntityPart] = wire.array(QuotaEntityPart)


@wire.response(AlterClientQuotasRequest)
class AlterClientQuotasResponse(wire.Response):
    """Results by entity."""

    throttle_time_ms: int = wire.int32()
    entries: list[AlterQuotaResult] = wire.array(AlterQuotaResult)


@wire.struct
class ReassignablePartition:
    """A partition and its new replicas; null cancels a reassignment in progress."""

    partition_index: int = wire.int32()
    replicas: list[int] | None = wire.nullable_array(wire.INT32, null_default=True)


@wire.struct
class ReassignableTopic:
    """Partitions of a topic."""

    name: str = wire.string()
    partitions: list[ReassignablePartition] = wire.array(ReassignablePartition)


@wire.request(api_key=45, versions=(0, 1), flexible=0, kafka="2.4:0 4.1:1")
class AlterPartitionReassignmentsRequest(wire.Request["AlterPartitionReassignmentsResponse"]):
    """Starts to move replicas to other brokers, or cancels that."""

    timeout_ms: int = wire.int32(60_000)
    allow_replication_factor_change: bool = wire.boolean(True, since=1)
    topics: list[ReassignableTopic] = wire.array(ReassignableTopic)


@wire.struct
class ReassignablePartitionResponse:
    """The outcome of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()


@wire.struct
class ReassignableTopicResponse:
    """Partitions of a topic."""

    name: str = wire.string()
    partitions: list[ReassignablePartitionResponse] = wire.array(ReassignablePartitionResponse)


@wire.response(AlterPartitionReassignmentsRequest)
class AlterPartitionReassignmentsResponse(wire.Response):
    """Results by partition."""

    throttle_time_ms: int = wire.int32()
    allow_replication_factor_change: bool = wire.boolean(True, since=1, ignorable=True)
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    responses: list[ReassignableTopicResponse] = wire.array(ReassignableTopicResponse)


@wire.struct
class ListPartitionReassignmentsTopics:
    """Partitions of a topic."""

    name: str = wire.string()
    partition_indexes: list[int] = wire.array(wire.INT32)


@wire.request(api_key=46, versions=(0, 0), flexible=0, kafka="2.4:0")
class ListPartitionReassignmentsRequest(wire.Request["ListPartitionReassignmentsResponse"]):
    """Requests the reassignments of these partitions (null: of all) in progress."""

    timeout_ms: int = wire.int32(60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = wire.nullable_array(
        ListPartitionReassignmentsTopics, null_default=True
    )


@wire.struct
class OngoingPartitionReassignment:
    """A partition that is being moved: all replicas, those to add and those to remove."""

    partition_index: int = wire.int32()
    replicas: list[int] = wire.array(wire.INT32)
    adding_replicas: list[int] = wire.array(wire.INT32)
    removing_replicas: list[int] = wire.array(wire.INT32)


@wire.struct
class OngoingTopicReassignment:
    """Partitions of a topic."""

    name: str = wire.string()
    partitions: list[OngoingPartitionReassignment] = wire.array(OngoingPartitionReassignment)


@wire.response(ListPartitionReassignmentsRequest)
class ListPartitionReassignmentsResponse(wire.Response):
    """The partitions that are moving."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    topics: list[OngoingTopicReassignment] = wire.array(OngoingTopicReassignment)


@wire.struct
class ElectionPartitions:
    """Partitions of a topic."""

    topic: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.request(api_key=43, versions=(0, 2), flexible=2, kafka="2.2:0 2.4:2")
class ElectLeadersRequest(wire.Request["ElectLeadersResponse"]):
    """Elects leaders of these partitions (null: of all that need it). `election_type` 0 makes the
    first replica the leader, 1 any live replica, in sync or not."""

    election_type: int = wire.int8(since=1)
    topic_partitions: list[ElectionPartitions] | None = wire.nullable_array(ElectionPartitions)
    timeout_ms: int = wire.int32(60_000)


@wire.struct
class ElectionPartitionResult:
    """The outcome of one partition."""

    partition_id: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()


@wire.struct
class ReplicaElectionResult:
    """Partitions of a topic."""

    topic: str = wire.string()
    partition_result: list[ElectionPartitionResult] = wire.array(ElectionPartitionResult)


@wire.response(ElectLeadersRequest)
class ElectLeadersResponse(wire.Response):
    """Results by partition."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = wire.array(ReplicaElectionResult)


@wire.struct
class FeatureUpdateKey:
    """A feature and its new level, 0 to remove it. `upgrade_type` 1: only a higher level, 2: a
    lower one if nothing is lost, 3: a lower one in any case."""

    feature: str = wire.string()
    max_version_level: int = wire.int16()
    allow_downgrade: bool = wire.boolean(until=0)
    upgrade_type: int = wire.int8(1, since=1)


@wire.request(api_key=57, versions=(0, 2), flexible=0, kafka="2.7:0 3.3:1 4.0:2")
class UpdateFeaturesRequest(wire.Request["UpdateFeaturesResponse"]):
    """Sets levels of features (KIP-584), such as metadata.version."""

    timeout_ms: int = wire.int32(60_000)
    feature_updates: list[FeatureUpdateKey] = wire.array(FeatureUpdateKey)
    validate_only: bool = wire.boolean(since=1)


@wire.struct
class UpdatableFeatureResult:
    """The outcome of one feature."""

    feature: str = wire.string()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()


@wire.response(UpdateFeaturesRequest)
class UpdateFeaturesResponse(wire.Response):
    """Results by feature; from version 2 on all or none, with one error code for all."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    results: list[UpdatableFeatureResult] = wire.array(
        UpdatableFeatureResult, until=1, ignorable=True
    )


# --- ACLs, SCRAM users, delegation tokens ---------------------------------------------------------

_LITERAL = 3


@wire.struct
class DeleteAclsFilter:
    """Selects ACLs: 1 matches any type, operation or permission, None any name."""

    resource_type_filter: int = wire.int8()
    resource_name_filter: str | None = wire.nullable_string()
    pattern_type_filter: int = wire.int8(_LITERAL, since=1)
    principal_filter: str | None = wire.nullable_string()
    host_filter: str | None = wire.nullable_string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


@wire.request(api_key=29, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class DescribeAclsRequest(DeleteAclsFilter, wire.Request["DescribeAclsResponse"]):
    """Requests the ACLs that a filter matches."""


@wire.struct
class AclDescription:
    """Allows or denies a principal an operation, from a host."""

    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


@wire.struct
class DescribeAclsResource:
    """A resource and its ACLs."""

    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    pattern_type: int = wire.int8(_LITERAL, since=1)
    acls: list[AclDescription] = wire.array(AclDescription)


@wire.response(DescribeAclsRequest)
class DescribeAclsResponse(wire.Response):
    """ACLs by resource."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    resources: list[DescribeAclsResource] = wire.array(DescribeAclsResource)


@wire.struct
class AclCreation:
    """An ACL to create."""

    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    resource_pattern_type: int = wire.int8(_LITERAL, since=1)
    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


@wire.request(api_key=30, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class CreateAclsRequest(wire.Request["CreateAclsResponse"]):
    """Creates ACLs. Creating one that exists succeeds and changes nothing."""

    creations: list[AclCreation] = wire.array(AclCreation)


@wire.struct
class AclCreationResult:
    """The outcome of the ACL at the same index of the request."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()


@wire.response(CreateAclsRequest)
class CreateAclsResponse(wire.Response):
    """The outcome of each ACL, in the request's order."""

    throttle_time_ms: int = wire.int32()
    results: list[AclCreationResult] = wire.array(AclCreationResult)


@wire.request(api_key=31, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class DeleteAclsRequest(wire.Request["DeleteAclsResponse"]):
    """Deletes all ACLs that a filter matches."""

    filters: list[DeleteAclsFilter] = wire.array(DeleteAclsFilter)


@wire.struct
class DeleteAclsMatchingAcl:
    """An ACL that matched, and whether it was deleted."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    resource_type: int = wire.int8()
    resource_name: str = wire.string()
    pattern_type: int = wire.int8(_LITERAL, since=1)
    principal: str = wire.string()
    host: str = wire.string()
    operation: int = wire.int8()
    permission_type: int = wire.int8()


@wire.struct
class DeleteAclsFilterResult:
    """The outcome of the filter at the same index of the request."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    matching_acls: list[DeleteAclsMatchingAcl] = wire.array(DeleteAclsMatchingAcl)


@wire.response(DeleteAclsRequest)
class DeleteAclsResponse(wire.Response):
    """The outcome of each filter, in the request's order."""

    throttle_time_ms: int = wire.int32()
    filter_results: list[DeleteAclsFilterResult] = wire.array(DeleteAclsFilterResult)


@wire.struct
class UserName:
    """A user whose credentials are requested."""

    name: str = wire.string()


@wire.request(api_key=50, versions=(0, 0), flexible=0, kafka="2.7:0")
class DescribeUserScramCredentialsRequest(wire.Request["DescribeUserScramCredentialsResponse"]):
    """Requests the SCRAM credentials of users; None means all users (KIP-554, Kafka 2.7)."""

    users: list[UserName] | None = wire.nullable_array(UserName)


@wire.struct
class CredentialInfo:
    """A password's mechanism (1 SCRAM-SHA-256, 2 SCRAM-SHA-512) and iterations."""

    mechanism: int = wire.int8()
    iterations: int = wire.int32()


@wire.struct
class DescribeUserScramCredentialsResult:
    """The mechanisms and iterations of one user's passwords."""

    user: str = wire.string()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    credential_infos: list[CredentialInfo] = wire.array(CredentialInfo)


@wire.response(DescribeUserScramCredentialsRequest)
class DescribeUserScramCredentialsResponse(wire.Response):
    """Passwords by user."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    results: list[DescribeUserScramCredentialsResult] = wire.array(
        DescribeUserScramCredentialsResult
    )


@wire.struct
class ScramCredentialDeletion:
    """A password to delete."""

    name: str = wire.string()
    mechanism: int = wire.int8()


@wire.struct
class ScramCredentialUpsertion:
    """A salted password to set. It suffices to log in: the repr shows neither it nor the salt."""

    name: str = wire.string()
    mechanism: int = wire.int8()
    iterations: int = wire.int32()
    salt: bytes = wire.bytes_(secret=True)
    salted_password: bytes = wire.bytes_(secret=True)


@wire.request(api_key=51, versions=(0, 0), flexible=0, kafka="2.7:0")
class AlterUserScramCredentialsRequest(wire.Request["AlterUserScramCredentialsResponse"]):
    """Sets and deletes SCRAM passwords; goes to the controller (KIP-554, Kafka 2.7)."""

    deletions: list[ScramCredentialDeletion] = wire.array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = wire.array(ScramCredentialUpsertion)


@wire.struct
class AlterUserScramCredentialsResult:
    """The outcome of all changes of one user."""

    user: str = wire.string()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()


@wire.response(AlterUserScramCredentialsRequest)
class AlterUserScramCredentialsResponse(wire.Response):
    """The outcome of each user."""

    throttle_time_ms: int = wire.int32()
    results: list[AlterUserScramCredentialsResult] = wire.array(AlterUserScramCredentialsResult)


@wire.struct
class CreatableRenewers:
    """A principal, such as User and alice, that may renew a token beside its owner."""

    principal_type: str = wire.string()
    principal_name: str = wire.string()


@wire.struct
class DescribeDelegationTokenOwner(CreatableRenewers):
    """An owner whose tokens are requested."""


@wire.struct
class DescribedDelegationTokenRenewer(CreatableRenewers):
    """A principal that may renew a token."""


@wire.request(api_key=38, versions=(1, 3), flexible=2, kafka="2.1:1 2.4:2 3.3:3")
class CreateDelegationTokenRequest(wire.Request["CreateDelegationTokenResponse"]):
    """Requests a delegation token for this user, or for another owner (KIP-48, KIP-373)."""

    owner_principal_type: str | None = wire.nullable_string("", since=3)
    owner_principal_name: str | None = wire.nullable_string("", since=3)
    renewers: list[CreatableRenewers] = wire.array(CreatableRenewers)
    max_lifetime_ms: int = wire.int64()


@wire.response(CreateDelegationTokenRequest)
class CreateDelegationTokenResponse(wire.Response):
    """The new token. Its id and HMAC are enough to log in, so the repr does not show the HMAC."""

    error_code: int = wire.int16()
    principal_type: str = wire.string()
    principal_name: str = wire.string()
    token_requester_principal_type: str = wire.string(since=3)
    token_requester_principal_name: str = wire.string(since=3)
    issue_timestamp_ms: int = wire.int64()
    expiry_timestamp_ms: int = wire.int64()
    max_timestamp_ms: int = wire.int64()
    token_id: str = wire.string()
    hmac: bytes = wire.bytes_(secret=True)
    throttle_time_ms: int = wire.int32()


@wire.request(api_key=39, versions=(1, 2), flexible=2, kafka="2.1:1 2.5:2")
class RenewDelegationTokenRequest(wire.Request["RenewDelegationTokenResponse"]):
    """Makes a token last longer."""

    hmac: bytes = wire.bytes_(secret=True)
    renew_period_ms: int = wire.int64()


@wire.response(RenewDelegationTokenRequest)
class RenewDelegationTokenResponse(wire.Response):
    """When the token ends now."""

    error_code: int = wire.int16()
    expiry_timestamp_ms: int = wire.int64()
    throttle_time_ms: int = wire.int32()


@wire.request(api_key=40, versions=(1, 2), flexible=2, kafka="2.1:1 2.5:2")
class ExpireDelegationTokenRequest(wire.Request["ExpireDelegationTokenResponse"]):
    """Makes a token end earlier; a negative period ends it immediately."""

    hmac: bytes = wire.bytes_(secret=True)
    expiry_time_period_ms: int = wire.int64()


@wire.response(ExpireDelegationTokenRequest)
class ExpireDelegationTokenResponse(wire.Response):
    """When the token ends now."""

    error_code: int = wire.int16()
    expiry_timestamp_ms: int = wire.int64()
    throttle_time_ms: int = wire.int32()


@wire.request(api_key=41, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class DescribeDelegationTokenRequest(wire.Request["DescribeDelegationTokenResponse"]):
    """Requests the tokens of owners; None means all that this user may see."""

    owners: list[DescribeDelegationTokenOwner] | None = wire.nullable_array(
        DescribeDelegationTokenOwner
    )


@wire.struct
class DescribedDelegationToken:
    """A token. Its repr does not show the HMAC."""

    principal_type: str = wire.string()
    principal_name: str = wire.string()
    token_requester_principal_type: str = wire.string(since=3)
    token_requester_principal_name: str = wire.string(since=3)
    issue_timestamp: int = wire.int64()
    expiry_timestamp: int = wire.int64()
    max_timestamp: int = wire.int64()
    token_id: str = wire.string()
    hmac: bytes = wire.bytes_(secret=True)
    renewers: list[DescribedDelegationTokenRenewer] = wire.array(DescribedDelegationTokenRenewer)


@wire.response(DescribeDelegationTokenRequest)
class DescribeDelegationTokenResponse(wire.Response):
    """The tokens."""

    error_code: int = wire.int16()
    tokens: list[DescribedDelegationToken] = wire.array(DescribedDelegationToken)
    throttle_time_ms: int = wire.int32()
