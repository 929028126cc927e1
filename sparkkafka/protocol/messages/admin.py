"""Requests of Admin about topics, settings, log directories, quotas, replicas and leaders,
features, ACLs, SCRAM users and delegation tokens. Those about groups and transactions are in
`groups`, `share_groups` and `transactions`."""

from __future__ import annotations

import uuid as uuid_module

from sparkkafka.protocol.wire.schema import (
    INT8,
    INT32,
    STRING,
    Request,
    Response,
    array,
    boolean,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    nullable_array,
    nullable_string,
    request,
    response,
    string,
    struct,
    uuid,
)


@struct
class CreatableReplicaAssignment:
    """The brokers that get a partition, the preferred leader first."""

    partition_index: int = int32()
    broker_ids: list[int] = array(INT32)


@struct
class CreatableTopicConfig:
    """One setting of the new topic."""

    name: str = string()
    value: str | None = nullable_string()


@struct
class CreatableTopic:
    """A topic to create.

    Partition count and replication factor are -1 with `assignments`, or (since version 4) for
    the broker's defaults.
    """

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@request(api_key=19, versions=(2, 7), flexible=5, kafka="2.1:3 2.4:5 2.7:6 2.8:7")
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """Creates topics; goes to the controller. `validate_only` only says whether it would work."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(60000)
    validate_only: bool = boolean(since=1)


@struct
class CreatableTopicConfigs:
    """A setting of the topic as created."""

    name: str = string()
    value: str | None = nullable_string()
    read_only: bool = boolean()
    config_source: int = int8(-1, ignorable=True)
    is_sensitive: bool = boolean()


@struct
class CreatableTopicResult:
    """The outcome of one topic."""

    name: str = string()
    topic_id: uuid_module.UUID = uuid(since=7, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(since=1, ignorable=True)
    topic_config_error_code: int = int16(since=5, tag=0, ignorable=True)
    num_partitions: int = int32(-1, since=5, ignorable=True)
    replication_factor: int = int16(-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = nullable_array(
        CreatableTopicConfigs, since=5, ignorable=True
    )


@response(CreateTopicsRequest)
class CreateTopicsResponse(Response):
    """The outcome of each topic."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@struct
class DeleteTopicState:
    """A topic by name, or by id with a null name."""

    name: str | None = nullable_string(None)
    topic_id: uuid_module.UUID = uuid()


@request(api_key=20, versions=(1, 6), flexible=4, kafka="2.1:3 2.4:4 2.7:5 2.8:6")
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Deletes topics: `topics` from version 6 on, `topic_names` before."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(STRING, until=5, ignorable=True)
    timeout_ms: int = int32()


@struct
class DeletableTopicResult:
    """The outcome of one topic."""

    name: str | None = nullable_string(nullable_since=6)
    topic_id: uuid_module.UUID = uuid(since=6, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=5, ignorable=True)


@response(DeleteTopicsRequest)
class DeleteTopicsResponse(Response):
    """The outcome of each topic."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@struct
class CreatePartitionsAssignment:
    """The brokers that get one of the new partitions, the preferred leader first."""

    broker_ids: list[int] = array(INT32)


@struct
class CreatePartitionsTopic:
    """A topic and its new total of partitions. `assignments` are those of the new partitions; None
    lets the brokers choose."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = nullable_array(
        CreatePartitionsAssignment
    )


@request(api_key=37, versions=(0, 3), flexible=2, kafka="2.1:1 2.5:2 2.7:3")
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Gives topics more partitions; goes to the controller."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    """The outcome of one topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@response(CreatePartitionsRequest)
class CreatePartitionsResponse(Response):
    """The outcome of each topic."""

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


@struct
class DeleteRecordsPartition:
    """Records below `offset` are deleted; -1 means those below the high watermark."""

    partition_index: int = int32()
    offset: int = int64()


@struct
class DeleteRecordsTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@request(api_key=21, versions=(0, 2), flexible=2, kafka="2.1:1 2.6:2")
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Moves the beginning of partitions forward; goes to their leaders."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


@struct
class DeleteRecordsPartitionResult:
    """The first offset that remains in all replicas."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


@struct
class DeleteRecordsTopicResult:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@response(DeleteRecordsRequest)
class DeleteRecordsResponse(Response):
    """The outcome of each partition."""

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


@struct
class DescribeConfigsResource:
    """A resource (type 2 topic, 4 broker) and the names of its settings; None means all."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = nullable_array(STRING)


@request(api_key=32, versions=(1, 4), flexible=4, kafka="2.1:2 2.6:3 2.8:4")
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Requests settings of topics and brokers."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@struct
class DescribeConfigsSynonym:
    """Another source of the same setting; the sources are in order of precedence."""

    name: str = string()
    value: str | None = nullable_string()
    source: int = int8()


@struct
class DescribeConfigsResourceResult:
    """One setting; the value of a sensitive one is null."""

    name: str = string()
    value: str | None = nullable_string()
    read_only: bool = boolean()
    config_source: int = int8(-1, since=1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1, ignorable=True)
    config_type: int = int8(since=3, ignorable=True)
    documentation: str | None = nullable_string(since=3, ignorable=True)


@struct
class DescribeConfigsResult:
    """Settings of one resource."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@response(DescribeConfigsRequest)
class DescribeConfigsResponse(Response):
    """Settings by resource."""

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


@struct
class AlterableConfig:
    """One change: operation 0 set, 1 delete (value null), 2 append to a list, 3 remove from it."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = nullable_string()


@struct
class AlterConfigsResource:
    """A resource (types as in DescribeConfigsResource) and its changes."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@request(api_key=44, versions=(0, 1), flexible=1, kafka="2.3:0 2.4:1")
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Changes some settings and leaves the others (KIP-339, Kafka 2.3)."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@struct
class AlterConfigsResourceResponse:
    """The outcome of one resource."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()


@response(IncrementalAlterConfigsRequest)
class IncrementalAlterConfigsResponse(Response):
    """The outcome of each resource."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@request(api_key=74, versions=(0, 1), flexible=0, kafka="4.0:0 4.1:1")
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """Requests the names of what has settings of its own: of client metrics in version 0, else of
    these types (KIP-1142). An empty list means all types."""

    resource_types: list[int] = array(INT8, since=1)


@struct
class ListedConfigResource:
    """A resource; `resource_type` 16 is a subscription to client metrics."""

    resource_name: str = string()
    resource_type: int = int8(16, since=1, ignorable=True)


@response(ListConfigResourcesRequest)
class ListConfigResourcesResponse(Response):
    """The resources."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ListedConfigResource] = array(ListedConfigResource)


@struct
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(INT32)


@request(api_key=35, versions=(1, 5), flexible=2, kafka="2.1:1 2.6:2 3.2:3 3.3:4 4.3:5")
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Requests the log directories of a broker with these partitions; None means all."""

    topics: list[DescribableLogDirTopic] | None = nullable_array(DescribableLogDirTopic)


@struct
class DescribeLogDirsPartition:
    """A replica's log. A future one is a copy that will replace the one in another directory."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@struct
class DescribeLogDirsTopic:
    """Replicas of one topic in a directory."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@struct
class DescribeLogDirsResult:
    """One directory, and its volume's size without what lies in remote storage. A cordoned one gets
    no new replicas."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(-1, since=4, ignorable=True)
    usable_bytes: int = int64(-1, since=4, ignorable=True)
    is_cordoned: bool = boolean(since=5, ignorable=True)


@response(DescribeLogDirsRequest)
class DescribeLogDirsResponse(Response):
    """The broker's directories. Before version 3 a refused request gets no directories and no error
    code."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


# --- quotas, reassignments, elections, features ---------------------------------------------------


@struct
class QuotaComponent:
    """Selects entities by one of their types. `match_type` 0: the name `match`, 1: the
    default, 2: any that is given."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = nullable_string()


@request(api_key=48, versions=(0, 1), flexible=1, kafka="2.6:0 2.8:1")
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """Requests the quotas of entities; `strict`: only of those without other types."""

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
    """A quota to set, or with `remove` to delete."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class AlteredQuotaEntry:
    """An entity and what changes."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart)
    ops: list[QuotaOp] = array(QuotaOp)


@request(api_key=49, versions=(0, 1), flexible=1, kafka="2.6:0 2.8:1")
class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    """Changes quotas."""

    entries: list[AlteredQuotaEntry] = array(AlteredQuotaEntry)
    validate_only: bool = boolean()


@struct
class AlterQuotaResult:
    """The outcome of one entity."""

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
    """A partition and its new replicas; null cancels a reassignment in progress."""

    partition_index: int = int32()
    replicas: list[int] | None = nullable_array(INT32, null_default=True)


@struct
class ReassignableTopic:
    """Partitions of a topic."""

    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@request(api_key=45, versions=(0, 1), flexible=0, kafka="2.4:0 4.1:1")
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Starts to move replicas to other brokers, or cancels that."""

    timeout_ms: int = int32(60_000)
    allow_replication_factor_change: bool = boolean(True, since=1)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@struct
class ReassignablePartitionResponse:
    """The outcome of one partition."""

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


@request(api_key=46, versions=(0, 0), flexible=0, kafka="2.4:0")
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """Requests the reassignments of these partitions (null: of all) in progress."""

    timeout_ms: int = int32(60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = nullable_array(
        ListPartitionReassignmentsTopics, null_default=True
    )


@struct
class OngoingPartitionReassignment:
    """A partition that is being moved: all replicas, those to add and those to remove."""

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


@request(api_key=43, versions=(0, 2), flexible=2, kafka="2.2:0 2.4:2")
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Elects leaders of these partitions (null: of all that need it). `election_type` 0 makes the
    first replica the leader, 1 any live replica, in sync or not."""

    election_type: int = int8(since=1)
    topic_partitions: list[ElectionPartitions] | None = nullable_array(ElectionPartitions)
    timeout_ms: int = int32(60_000)


@struct
class ElectionPartitionResult:
    """The outcome of one partition."""

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
    """A feature and its new level, 0 to remove it. `upgrade_type` 1: only a higher level, 2: a
    lower one if nothing is lost, 3: a lower one in any case."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(1, since=1)


@request(api_key=57, versions=(0, 2), flexible=0, kafka="2.7:0 3.3:1 4.0:2")
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """Sets levels of features (KIP-584), such as metadata.version."""

    timeout_ms: int = int32(60_000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


@struct
class UpdatableFeatureResult:
    """The outcome of one feature."""

    feature: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@response(UpdateFeaturesRequest)
class UpdateFeaturesResponse(Response):
    """Results by feature; from version 2 on all or none, with one error code for all."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1, ignorable=True)


# --- ACLs, SCRAM users, delegation tokens ---------------------------------------------------------

_LITERAL = 3


@struct
class DeleteAclsFilter:
    """Selects ACLs: 1 matches any type, operation or permission, None any name."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = nullable_string()
    pattern_type_filter: int = int8(_LITERAL, since=1)
    principal_filter: str | None = nullable_string()
    host_filter: str | None = nullable_string()
    operation: int = int8()
    permission_type: int = int8()


@request(api_key=29, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class DescribeAclsRequest(DeleteAclsFilter, Request["DescribeAclsResponse"]):
    """Requests the ACLs that a filter matches."""


@struct
class AclDescription:
    """Allows or denies a principal an operation, from a host."""

    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DescribeAclsResource:
    """A resource and its ACLs."""

    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(_LITERAL, since=1)
    acls: list[AclDescription] = array(AclDescription)


@response(DescribeAclsRequest)
class DescribeAclsResponse(Response):
    """ACLs by resource."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


@struct
class AclCreation:
    """An ACL to create."""

    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(_LITERAL, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@request(api_key=30, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class CreateAclsRequest(Request["CreateAclsResponse"]):
    """Creates ACLs. Creating one that exists succeeds and changes nothing."""

    creations: list[AclCreation] = array(AclCreation)


@struct
class AclCreationResult:
    """The outcome of the ACL at the same index of the request."""

    error_code: int = int16()
    error_message: str | None = nullable_string()


@response(CreateAclsRequest)
class CreateAclsResponse(Response):
    """The outcome of each ACL, in the request's order."""

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


@request(api_key=31, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    """Deletes all ACLs that a filter matches."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


@struct
class DeleteAclsMatchingAcl:
    """An ACL that matched, and whether it was deleted."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(_LITERAL, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DeleteAclsFilterResult:
    """The outcome of the filter at the same index of the request."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@response(DeleteAclsRequest)
class DeleteAclsResponse(Response):
    """The outcome of each filter, in the request's order."""

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


@struct
class UserName:
    """A user whose credentials are requested."""

    name: str = string()


@request(api_key=50, versions=(0, 0), flexible=0, kafka="2.7:0")
class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    """Requests the SCRAM credentials of users; None means all users (KIP-554, Kafka 2.7)."""

    users: list[UserName] | None = nullable_array(UserName)


@struct
class CredentialInfo:
    """A password's mechanism (1 SCRAM-SHA-256, 2 SCRAM-SHA-512) and iterations."""

    mechanism: int = int8()
    iterations: int = int32()


@struct
class DescribeUserScramCredentialsResult:
    """The mechanisms and iterations of one user's passwords."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@response(DescribeUserScramCredentialsRequest)
class DescribeUserScramCredentialsResponse(Response):
    """Passwords by user."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


@struct
class ScramCredentialDeletion:
    """A password to delete."""

    name: str = string()
    mechanism: int = int8()


@struct
class ScramCredentialUpsertion:
    """A salted password to set. It suffices to log in: the repr shows neither it nor the salt."""

    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = bytes_(secret=True)
    salted_password: bytes = bytes_(secret=True)


@request(api_key=51, versions=(0, 0), flexible=0, kafka="2.7:0")
class AlterUserScramCredentialsRequest(Request["AlterUserScramCredentialsResponse"]):
    """Sets and deletes SCRAM passwords; goes to the controller (KIP-554, Kafka 2.7)."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@struct
class AlterUserScramCredentialsResult:
    """The outcome of all changes of one user."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@response(AlterUserScramCredentialsRequest)
class AlterUserScramCredentialsResponse(Response):
    """The outcome of each user."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)


@struct
class CreatableRenewers:
    """A principal, such as User and alice, that may renew a token beside its owner."""

    principal_type: str = string()
    principal_name: str = string()


@struct
class DescribeDelegationTokenOwner(CreatableRenewers):
    """An owner whose tokens are requested."""


@struct
class DescribedDelegationTokenRenewer(CreatableRenewers):
    """A principal that may renew a token."""


@request(api_key=38, versions=(1, 3), flexible=2, kafka="2.1:1 2.4:2 3.3:3")
class CreateDelegationTokenRequest(Request["CreateDelegationTokenResponse"]):
    """Requests a delegation token for this user, or for another owner (KIP-48, KIP-373)."""

    owner_principal_type: str | None = nullable_string("", since=3)
    owner_principal_name: str | None = nullable_string("", since=3)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


@response(CreateDelegationTokenRequest)
class CreateDelegationTokenResponse(Response):
    """The new token. Its id and HMAC are enough to log in, so the repr does not show the HMAC."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_(secret=True)
    throttle_time_ms: int = int32()


@request(api_key=39, versions=(1, 2), flexible=2, kafka="2.1:1 2.5:2")
class RenewDelegationTokenRequest(Request["RenewDelegationTokenResponse"]):
    """Makes a token last longer."""

    hmac: bytes = bytes_(secret=True)
    renew_period_ms: int = int64()


@response(RenewDelegationTokenRequest)
class RenewDelegationTokenResponse(Response):
    """When the token ends now."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@request(api_key=40, versions=(1, 2), flexible=2, kafka="2.1:1 2.5:2")
class ExpireDelegationTokenRequest(Request["ExpireDelegationTokenResponse"]):
    """Makes a token end earlier; a negative period ends it immediately."""

    hmac: bytes = bytes_(secret=True)
    expiry_time_period_ms: int = int64()


@response(ExpireDelegationTokenRequest)
class ExpireDelegationTokenResponse(Response):
    """When the token ends now."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


@request(api_key=41, versions=(1, 3), flexible=2, kafka="2.1:1 2.5:2 3.3:3")
class DescribeDelegationTokenRequest(Request["DescribeDelegationTokenResponse"]):
    """Requests the tokens of owners; None means all that this user may see."""

    owners: list[DescribeDelegationTokenOwner] | None = nullable_array(DescribeDelegationTokenOwner)


@struct
class DescribedDelegationToken:
    """A token. Its repr does not show the HMAC."""

    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_(secret=True)
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


@response(DescribeDelegationTokenRequest)
class DescribeDelegationTokenResponse(Response):
    """The tokens."""

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
