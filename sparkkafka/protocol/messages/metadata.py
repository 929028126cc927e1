"""The brokers and controllers of a cluster, their APIs, authentication, coordinators, and the
metadata of topics: ApiVersions, SaslHandshake, SaslAuthenticate, Metadata, FindCoordinator,
DescribeCluster, DescribeQuorum."""

from __future__ import annotations

import uuid

from sparkkafka.protocol.wire import schema as wire

# The value of an authorized_operations field that was not requested.
NO_AUTHORIZED_OPERATIONS = -(2**31)


@wire.request(api_key=18, versions=(0, 5), flexible=3, usual=4, kafka="2.1:2 2.4:3 3.9:4 4.4:5")
class ApiVersionsRequest(wire.Request["ApiVersionsResponse"]):
    """Requests the version ranges of a broker (KIP-35). Names the client software (KIP-511), and
    the broker that the client means to reach (KIP-1242): another one refuses the request."""

    client_software_name: str = wire.string(since=3, ignorable=True)
    client_software_version: str = wire.string(since=3, ignorable=True)
    cluster_id: str | None = wire.nullable_string(None, since=5, ignorable=True)
    node_id: int = wire.int32(-1, since=5, ignorable=True)


@wire.struct
class ApiVersion:
    """One API and the first and last version of it that the broker knows."""

    api_key: int = wire.int16()
    min_version: int = wire.int16()
    max_version: int = wire.int16()


@wire.struct
class SupportedFeatureKey:
    """A feature of the broker, such as `transaction.version`, and its range (KIP-584)."""

    name: str = wire.string()
    min_version: int = wire.int16()
    max_version: int = wire.int16()


@wire.struct
class FinalizedFeatureKey:
    """A feature that the whole cluster uses, and the range of its levels in use."""

    name: str = wire.string()
    max_version_level: int = wire.int16()
    min_version_level: int = wire.int16()


@wire.response(ApiVersionsRequest)
class ApiVersionsResponse(wire.Response):
    """The broker's version ranges. Error 35 comes in version 0, whatever version was requested."""

    error_code: int = wire.int16()
    api_keys: list[ApiVersion] = wire.array(ApiVersion)
    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = wire.array(
        SupportedFeatureKey, since=3, tag=0, ignorable=True
    )
    finalized_features_epoch: int = wire.int64(-1, since=3, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = wire.array(
        FinalizedFeatureKey, since=3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = wire.boolean(since=3, tag=3, ignorable=True)


@wire.struct
class MetadataRequestTopic:
    """A topic by name. By id (and name null) only from version 12 on."""

    topic_id: uuid.UUID = wire.uuid(since=10, ignorable=True)
    name: str | None = wire.nullable_string(nullable_since=10)


@wire.request(
    api_key=3, versions=(4, 13), flexible=9, kafka="2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13"
)
class MetadataRequest(wire.Request["MetadataResponse"]):
    """Requests brokers, and for topics: `topics` None means all, an empty list none."""

    topics: list[MetadataRequestTopic] | None = wire.nullable_array(
        MetadataRequestTopic, nullable_since=1
    )
    allow_auto_topic_creation: bool = wire.boolean(True, since=4)
    include_cluster_authorized_operations: bool = wire.boolean(since=8, until=10)
    include_topic_authorized_operations: bool = wire.boolean(since=8)


@wire.struct
class MetadataResponseBroker:
    """A live broker and its address for clients of this listener."""

    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.nullable_string(None, since=1, ignorable=True)


@wire.struct
class MetadataResponsePartition:
    """A partition; `leader_id` is -1 while it has no leader."""

    error_code: int = wire.int16()
    partition_index: int = wire.int32()
    leader_id: int = wire.int32()
    leader_epoch: int = wire.int32(-1, since=7, ignorable=True)
    replica_nodes: list[int] = wire.array(wire.INT32)
    isr_nodes: list[int] = wire.array(wire.INT32)
    offline_replicas: list[int] = wire.array(wire.INT32, since=5, ignorable=True)


@wire.struct
class MetadataResponseTopic:
    """A topic; its `error_code` is set when it is unknown or may not be described."""

    error_code: int = wire.int16()
    name: str | None = wire.nullable_string(nullable_since=12)
    topic_id: uuid.UUID = wire.uuid(since=10, ignorable=True)
    is_internal: bool = wire.boolean(since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = wire.array(MetadataResponsePartition)
    topic_authorized_operations: int = wire.int32(NO_AUTHORIZED_OPERATIONS, since=8)


@wire.response(MetadataRequest)
class MetadataResponse(wire.Response):
    """Brokers, controller, and the requested topics. The error code for all came with KIP-1102."""

    throttle_time_ms: int = wire.int32(since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = wire.array(MetadataResponseBroker)
    cluster_id: str | None = wire.nullable_string(None, since=2, ignorable=True)
    controller_id: int = wire.int32(-1, since=1, ignorable=True)
    topics: list[MetadataResponseTopic] = wire.array(MetadataResponseTopic)
    cluster_authorized_operations: int = wire.int32(NO_AUTHORIZED_OPERATIONS, since=8, until=10)
    error_code: int = wire.int16(since=13, ignorable=True)


@wire.request(api_key=10, versions=(1, 6), flexible=3, kafka="2.1:2 2.4:3 3.0:4 3.8:5 3.9:6")
class FindCoordinatorRequest(wire.Request["FindCoordinatorResponse"]):
    """Requests the coordinator of a group (`key_type` 0), a transactional id (1) or a
    partition of a share group (2).

    `key` until version 3, `coordinator_keys` from version 4 on.
    """

    key: str = wire.string(until=3)
    key_type: int = wire.int8(since=1)
    coordinator_keys: list[str] = wire.array(wire.STRING, since=4)


@wire.struct
class Coordinator:
    """The coordinator of one key."""

    key: str = wire.string()
    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(ignorable=True)


@wire.response(FindCoordinatorRequest)
class FindCoordinatorResponse(wire.Response):
    """One coordinator until version 3, `coordinators` from version 4 on."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    error_code: int = wire.int16(until=3)
    error_message: str | None = wire.nullable_string(since=1, until=3, ignorable=True)
    node_id: int = wire.int32(until=3)
    host: str = wire.string(until=3)
    port: int = wire.int32(until=3)
    coordinators: list[Coordinator] = wire.array(Coordinator, since=4)


@wire.request(api_key=60, versions=(0, 2), flexible=0, kafka="2.8:0 3.7:1 4.0:2")
class DescribeClusterRequest(wire.Request["DescribeClusterResponse"]):
    """Requests the cluster's id and brokers; `endpoint_type` is 1 for brokers, 2 for controllers.
    Brokers that are fenced (not in service) are in the response only if they are requested.

    Brokers before 2.8 do not know it.
    """

    include_cluster_authorized_operations: bool = wire.boolean()
    endpoint_type: int = wire.int8(1, since=1)
    include_fenced_brokers: bool = wire.boolean(since=2)


@wire.struct
class DescribeClusterBroker:
    """A broker and its address."""

    broker_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.nullable_string(None)
    is_fenced: bool = wire.boolean(since=2)


@wire.response(DescribeClusterRequest)
class DescribeClusterResponse(wire.Response):
    """The cluster's id, controller and brokers."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    endpoint_type: int = wire.int8(1, since=1)
    cluster_id: str = wire.string()
    controller_id: int = wire.int32(-1)
    brokers: list[DescribeClusterBroker] = wire.array(DescribeClusterBroker)
    cluster_authorized_operations: int = wire.int32(NO_AUTHORIZED_OPERATIONS)


@wire.struct
class QuorumPartition:
    """A partition of the metadata log: there is one, 0."""

    partition_index: int = wire.int32()


@wire.struct
class QuorumTopic:
    """The metadata log, `__cluster_metadata`."""

    topic_name: str = wire.string()
    partitions: list[QuorumPartition] = wire.array(QuorumPartition)


@wire.request(api_key=55, versions=(0, 2), flexible=0, kafka="4.0:2")
class DescribeQuorumRequest(wire.Request["DescribeQuorumResponse"]):
    """Requests the controllers of KRaft (KIP-595); brokers forward it to the active one."""

    topics: list[QuorumTopic] = wire.array(QuorumTopic)


@wire.struct
class QuorumReplicaState:
    """A controller (a voter) or a broker (an observer), and how far it has read the log.

    `last_caught_up_timestamp` is in ms of the active controller's clock; for the active controller
    itself it is the current time.
    """

    replica_id: int = wire.int32()
    replica_directory_id: uuid.UUID = wire.uuid(since=2)
    log_end_offset: int = wire.int64()
    last_fetch_timestamp: int = wire.int64(-1, since=1, ignorable=True)
    last_caught_up_timestamp: int = wire.int64(-1, since=1, ignorable=True)


@wire.struct
class QuorumPartitionState:
    """`leader_id` is the active controller, -1 if there is none."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(since=2, ignorable=True)
    leader_id: int = wire.int32()
    leader_epoch: int = wire.int32()
    high_watermark: int = wire.int64()
    current_voters: list[QuorumReplicaState] = wire.array(QuorumReplicaState)
    observers: list[QuorumReplicaState] = wire.array(QuorumReplicaState)


@wire.struct
class QuorumTopicState:
    """The metadata log."""

    topic_name: str = wire.string()
    partitions: list[QuorumPartitionState] = wire.array(QuorumPartitionState)


@wire.struct
class QuorumListener:
    """A listener of a controller."""

    name: str = wire.string()
    host: str = wire.string()
    port: int = wire.uint16()


@wire.struct
class QuorumNode:
    """A controller, with its listeners."""

    node_id: int = wire.int32()
    listeners: list[QuorumListener] = wire.array(QuorumListener)


@wire.response(DescribeQuorumRequest)
class DescribeQuorumResponse(wire.Response):
    """All controllers and brokers as the active controller sees them."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(since=2, ignorable=True)
    topics: list[QuorumTopicState] = wire.array(QuorumTopicState)
    nodes: list[QuorumNode] = wire.array(QuorumNode, since=2)


# --- authentication -------------------------------------------------------------------------------


@wire.request(api_key=17, versions=(0, 1), flexible=None, kafka="2.1:1")
class SaslHandshakeRequest(wire.Request["SaslHandshakeResponse"]):
    """Chooses a mechanism. After a handshake of version 0 the tokens are sent without Kafka's
    framing, so clients send version 1."""

    mechanism: str = wire.string()


@wire.response(SaslHandshakeRequest)
class SaslHandshakeResponse(wire.Response):
    """The mechanisms that the listener has."""

    error_code: int = wire.int16()
    mechanisms: list[str] = wire.array(wire.STRING)


@wire.request(api_key=36, versions=(0, 2), flexible=2, kafka="2.1:0 2.2:1 2.5:2")
class SaslAuthenticateRequest(wire.Request["SaslAuthenticateResponse"]):
    """One step of the mechanism, from the client. Its repr does not show the bytes."""

    auth_bytes: bytes = wire.bytes_(secret=True)


@wire.response(SaslAuthenticateRequest)
class SaslAuthenticateResponse(wire.Response):
    """One step from the broker; a session lasts `session_lifetime_ms`, 0 for ever (KIP-368)."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string()
    auth_bytes: bytes = wire.bytes_(secret=True)
    session_lifetime_ms: int = wire.int64(since=1, ignorable=True)
