"""Topics, their configuration, their disks: CreateTopics, DeleteTopics, CreatePartitions,
DescribeConfigs, IncrementalAlterConfigs, DeleteRecords, DescribeLogDirs."""

from __future__ import annotations

import uuid as uuid_module

from sparkkafka.protocol.wire.fields import (
    INT32,
    STRING,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nullable_array,
    nullable_string,
    string,
    struct,
    uuid,
)
from sparkkafka.protocol.wire.schema import Request, Response, request, response


@struct
class CreatableReplicaAssignment:
    """The brokers that shall hold a partition, the preferred leader first."""

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


@request(api_key=19, versions=(2, 7), flexible=5)
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
    """What became of one topic."""

    name: str = string()
    topic_id: uuid_module.UUID = uuid(since=7, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(since=1, ignorable=True)
    topic_config_error_code: int = int16(since=5, tag=0, ignorable=True)
    num_partitions: int = int32(-1, since=5, ignorable=True)
    replication_factor: int = int16(-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = nullable_array(
        CreatableTopicConfigs, since=5, nullable_since=5, ignorable=True
    )


@response(CreateTopicsRequest)
class CreateTopicsResponse(Response):
    """What became of each topic."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@struct
class DeleteTopicState:
    """A topic by name, or by id with a null name."""

    name: str | None = nullable_string(None)
    topic_id: uuid_module.UUID = uuid()


@request(api_key=20, versions=(1, 6), flexible=4)
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Deletes topics: `topics` from version 6 on, `topic_names` before."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(STRING, until=5, ignorable=True)
    timeout_ms: int = int32()


@struct
class DeletableTopicResult:
    """What became of one topic."""

    name: str | None = nullable_string(nullable_since=6)
    topic_id: uuid_module.UUID = uuid(since=6, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=5, nullable_since=5, ignorable=True)


@response(DeleteTopicsRequest)
class DeleteTopicsResponse(Response):
    """What became of each topic."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@struct
class CreatePartitionsAssignment:
    """The brokers that shall hold one of the new partitions, the preferred leader first."""

    broker_ids: list[int] = array(INT32)


@struct
class CreatePartitionsTopic:
    """A topic and how many partitions it shall have in all. The brokers choose if no assignments
    (of the new ones only) are given."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = nullable_array(
        CreatePartitionsAssignment
    )


@request(api_key=37, versions=(0, 3), flexible=2)
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Gives topics more partitions; goes to the controller."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@response(CreatePartitionsRequest)
class CreatePartitionsResponse(Response):
    """What became of each topic."""

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


@struct
class DeleteRecordsPartition:
    """Records below `offset` go; -1 means those below the high watermark."""

    partition_index: int = int32()
    offset: int = int64()


@struct
class DeleteRecordsTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@request(api_key=21, versions=(0, 2), flexible=2)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Moves the beginning of partitions forward; goes to their leaders."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


@struct
class DeleteRecordsPartitionResult:
    """The first offset that is left in all replicas."""

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
    """What became of each partition."""

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


@struct
class DescribeConfigsResource:
    """A resource (type 2 topic, 4 broker) and the settings wanted; None means all."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = nullable_array(STRING)


@request(api_key=32, versions=(1, 4), flexible=4)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Asks for settings of topics and brokers."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@struct
class DescribeConfigsSynonym:
    """Another place that sets the same thing, in order of precedence."""

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
    """One change: operation 0 set, 1 delete (value null), 2 append to a list, 3 take from it."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = nullable_string()


@struct
class AlterConfigsResource:
    """A resource (types as in DescribeConfigsResource) and its changes."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@request(api_key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Changes some settings and leaves the others (KIP-339, Kafka 2.3)."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@struct
class AlterConfigsResourceResponse:
    """What became of one resource."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()


@response(IncrementalAlterConfigsRequest)
class IncrementalAlterConfigsResponse(Response):
    """What became of each resource."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@struct
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(INT32)


@request(api_key=35, versions=(1, 4), flexible=2)
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Asks a broker what it has on disk of these partitions; None means of all."""

    topics: list[DescribableLogDirTopic] | None = nullable_array(DescribableLogDirTopic)


@struct
class DescribeLogDirsPartition:
    """A replica's log. A future one is a copy that shall replace the one in another directory."""

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
    """One directory, and its volume's size without what lies in remote storage."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(-1, since=4, ignorable=True)
    usable_bytes: int = int64(-1, since=4, ignorable=True)


@response(DescribeLogDirsRequest)
class DescribeLogDirsResponse(Response):
    """The broker's directories. Without an error code (before version 3) a refusal has none."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
