"""The handler table of the fake broker, and the responses about the cluster and its topics.

A new API is a function here (or in data.py, admin.py, groups/apis.py, security/apis.py,
transactions/apis.py) and a row in `HANDLERS`; the row also makes brokers offer it in
ApiVersions (versions.py says since which release).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    REQUESTS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterBroker,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesResponse,
    ListedConfigResource,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from sparkkafka.testing.fake.admin import (
    create_partitions,
    delete_groups,
    delete_records,
    describe_groups,
    describe_log_dirs,
    list_groups,
)
from sparkkafka.testing.fake.call import Call, Handler, reported_in
from sparkkafka.testing.fake.cluster_admin import (
    alter_client_quotas,
    alter_partition_reassignments,
    describe_client_quotas,
    elect_leaders,
    finalized_features,
    list_partition_reassignments,
    supported_features,
    update_features,
)
from sparkkafka.testing.fake.data import fetch, list_offsets, produce
from sparkkafka.testing.fake.faults import RESOURCE_TOPIC
from sparkkafka.testing.fake.groups.apis import (
    consumer_group_heartbeat,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
    offset_fetch,
    sync_group,
)
from sparkkafka.testing.fake.groups.share import (
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.security.apis import (
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_user_scram_credentials,
)
from sparkkafka.testing.fake.state import (
    NO_LEADER,
    TOPIC_CONFIGS,
    TYPE_INT,
    BrokerAddress,
    ConfigDefault,
    FakeTopic,
    Quirk,
    check_topic_name,
)
from sparkkafka.testing.fake.transactions.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
)
from sparkkafka.testing.fake.versions import VersionRange

RESOURCE_BROKER = 4
# DescribeConfigsResponse.ConfigSource
SOURCE_TOPIC = 1
SOURCE_DEFAULT = 5
BROKER_DEFAULT = -1  # in CreateTopics: num.partitions or default.replication.factor, which are 1
DELETE_TOPICS_VERSION_WITH_IDS = 6
CREATE_TOPICS_VERSION_WITH_CONFIGS = 5

# Settings that a broker reports. Each is how the fake behaves.
_BROKER_CONFIGS = {
    "auto.create.topics.enable": ConfigDefault(1, "false"),
    "default.replication.factor": ConfigDefault(TYPE_INT, "1"),
    "message.max.bytes": TOPIC_CONFIGS["max.message.bytes"],
    "num.partitions": ConfigDefault(TYPE_INT, "1"),
    "socket.request.max.bytes": ConfigDefault(TYPE_INT, str(100 << 20)),
}


def api_versions(call: Call) -> ApiVersionsResponse:
    """Answer ApiVersions with the versions of the release that this broker imitates."""
    injected = call.error_of()
    offered = call.release.versions
    return ApiVersionsResponse(
        error_code=injected.code if injected else 0,
        api_keys=_ranges(offered),
        finalized_features_epoch=1,
        finalized_features=finalized_features(call),
        supported_features=supported_features(call),
    )


def refused_api_versions(
    offered: Mapping[str, VersionRange], with_range: bool
) -> ApiVersionsResponse:
    """Return the response, in version 0, to a version of ApiVersions that the broker does not have.
    `with_range`: it names the versions of ApiVersions that the broker has."""
    own = {"ApiVersions": offered["ApiVersions"]} if with_range else {}
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ranges(own))


def _ranges(offered: Mapping[str, VersionRange]) -> list[ApiVersion]:
    """Return the version ranges of requests in the form of the response."""
    keys = {cls.API_NAME: key for key, cls in REQUESTS.items()}
    return [
        ApiVersion(api_key=key, min_version=lowest, max_version=highest)
        for key, lowest, highest in sorted(
            (keys[name], lowest, highest) for name, (lowest, highest) in offered.items()
        )
    ]


# --- Metadata, DescribeCluster --------------------------------------------------------------------


def metadata(call: Call) -> MetadataResponse:
    """Answer Metadata of the named topics, or of all; create missing ones if the request allows
    it."""
    message: MetadataRequest = call.message
    state = call.state
    if call.top_level is not None:
        return MetadataResponse(error_code=call.top_level.code)
    if message.topics is None:
        topics = [
            _topic_row(call, topic)
            for topic in state.topics.values()
            if call.authorizer.refusal(topic.name) is None
        ]
    else:
        topics = []
        for requested in message.topics:
            if requested.name is None:
                topic = state.topic_by_id(requested.topic_id)
                missing = MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=requested.topic_id
                )
            else:
                topic = state.topics.get(requested.name)
                missing = MetadataResponseTopic(
                    error_code=_missing_topic(requested.name), name=requested.name
                )
                injected = call.error_of(requested.name)
                if topic is None and injected is not None:
                    missing.error_code = injected.code
                elif topic is None and message.allow_auto_topic_creation:
                    _auto_create(call, requested.name)
            topics.append(missing if topic is None else _topic_row(call, topic))
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=row.node_id, host=row.host, port=row.port, rack=row.rack)
            for row in _live_brokers(call)
        ],
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        topics=topics,
    )


def _auto_create(call: Call, name: str) -> None:
    """Create the topic if auto.create.topics.enable is true. As from a real broker, this response
    still says that the topic is missing."""
    if call.state.auto_creates:
        with contextlib.suppress(Refused):
            call.state.create_topic(name, 1, 1, {})


def _missing_topic(name: str) -> int:
    """Return the error code for a topic that does not exist."""
    try:
        check_topic_name(name)
    except Refused as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic_row(call: Call, topic: FakeTopic) -> MetadataResponseTopic:
    """Return a topic's part of a Metadata response."""
    row = MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal
    )
    injected = call.error_of(topic.name)
    if injected is not None and (call.fault is None or call.fault.partition is None):
        row.error_code = injected.code
        return row
    for partition in topic.partitions:
        in_sync = call.state.in_sync(partition)
        leader = partition.leader
        if Quirk.ANY_BROKER_LEADS in call.state.quirks:
            leader = call.broker_id
        code = 0
        if injected is not None and call.error_of(topic.name, partition.number):
            leader, code = NO_LEADER, injected.code
        elif leader == NO_LEADER:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        row.partitions.append(
            MetadataResponsePartition(
                error_code=code,
                partition_index=partition.number,
                leader_id=leader,
                leader_epoch=partition.log.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=in_sync,
                offline_replicas=[row for row in partition.replicas if row not in in_sync],
            )
        )
    return row


def _live_brokers(call: Call) -> list[BrokerAddress]:
    return [call.state.addresses[node_id] for node_id in sorted(call.state.live)]


def describe_cluster(call: Call) -> DescribeClusterResponse:
    """Answer DescribeCluster."""
    injected = call.error_of()
    if injected is not None:
        return DescribeClusterResponse(
            error_code=injected.code, error_message=injected.message, cluster_id=""
        )
    return DescribeClusterResponse(
        cluster_id=call.state.cluster_id,
        controller_id=call.state.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=row.node_id, host=row.host, port=row.port, rack=row.rack
            )
            for row in _live_brokers(call)
        ],
    )


# --- topics and configurations --------------------------------------------------------------------


def create_topics(call: Call) -> CreateTopicsResponse:
    """Answer CreateTopics."""
    message: CreateTopicsRequest = call.message
    rows = []
    for requested in message.topics:
        result = CreatableTopicResult(name=requested.name, configs=[])
        with reported_in(result):
            call.check_fault(requested.name)
            call.check_controller()
            created = _create_topic(call, requested)
            call.check_fault(requested.name, applied=True)
            result = created
        rows.append(result)
    call.changed.notify_all()
    return CreateTopicsResponse(topics=rows)


def _create_topic(call: Call, requested: CreatableTopic) -> CreatableTopicResult:
    """Create a topic, or only check the request if it says so. Raises Refused."""
    topic = call.state.create_topic(
        requested.name,
        1 if requested.num_partitions == BROKER_DEFAULT else requested.num_partitions,
        1 if requested.replication_factor == BROKER_DEFAULT else requested.replication_factor,
        {row.name: row.value for row in requested.configs if row.value is not None},
        {row.partition_index: row.broker_ids for row in requested.assignments},
        validate_only=call.message.validate_only,
    )
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
    )
    if call.version >= CREATE_TOPICS_VERSION_WITH_CONFIGS:
        result.configs = [
            CreatableTopicConfigs(name=name, value=value, config_source=_source(topic, name))
            for name, value in topic.config.items()
        ]
    return result


def delete_topics(call: Call) -> DeleteTopicsResponse:
    """Answer DeleteTopics, by name or by id."""
    message: DeleteTopicsRequest = call.message
    if call.version >= DELETE_TOPICS_VERSION_WITH_IDS:
        requested: Iterable[tuple[str | None, FakeTopic | None, DeletableTopicResult]] = [
            (
                row.name,
                call.state.topic_by_id(row.topic_id)
                if row.name is None
                else call.state.topics.get(row.name),
                DeletableTopicResult(name=row.name, topic_id=row.topic_id),
            )
            for row in message.topics
        ]
    else:
        requested = [
            (name, call.state.topics.get(name), DeletableTopicResult(name=name))
            for name in message.topic_names
        ]
    rows = []
    for name, topic, result in requested:
        named = name if topic is None else topic.name
        with reported_in(result):
            call.check_fault(named)
            call.check_controller()
            if topic is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID if name is None else code, "")
            result.name, result.topic_id = topic.name, topic.topic_id
            call.state.delete_topic(topic.name)
            call.check_fault(named, applied=True)
        rows.append(result)
    call.changed.notify_all()
    return DeleteTopicsResponse(responses=rows)


def describe_configs(call: Call) -> DescribeConfigsResponse:
    message: DescribeConfigsRequest = call.message
    return DescribeConfigsResponse(
        results=[_configs_of(call, resource) for resource in message.resources]
    )


def _configs_of(call: Call, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    """Return the settings of a topic or broker, unless a fault is injected."""
    result = DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    is_topic = resource.resource_type == RESOURCE_TOPIC
    injected = call.error_of(resource.resource_name if is_topic else None)
    topic = call.state.topics.get(resource.resource_name) if is_topic else None
    if injected is not None:
        result.error_code, result.error_message = injected.code, injected.message
    elif topic is not None:
        result.configs = [
            _config(call, name, value, TOPIC_CONFIGS[name], _source(topic, name))
            for name, value in topic.config.items()
            if _is_requested(resource, name)
        ]
    elif is_topic:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif resource.resource_type == RESOURCE_BROKER and resource.resource_name == str(
        call.broker_id
    ):
        longest = ConfigDefault(TYPE_INT, str(call.state.transactions.max_timeout_ms))
        rows = {**_BROKER_CONFIGS, "transaction.max.timeout.ms": longest}
        result.configs = [
            _config(call, name, row.value, row, SOURCE_DEFAULT)
            for name, row in sorted(rows.items())
            if _is_requested(resource, name)
        ]
    else:
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = f"resource {resource.resource_type} {resource.resource_name!r}"
    return result


def list_config_resources(call: Call) -> ListConfigResourcesResponse:
    """Answer ListConfigResources."""
    injected = call.error_of()
    if injected is not None:
        return ListConfigResourcesResponse(error_code=injected.code)
    found = [(RESOURCE_TOPIC, name) for name in call.state.topics]
    found += [(RESOURCE_BROKER, str(row.node_id)) for row in _live_brokers(call)]
    wanted = call.message.resource_types
    return ListConfigResourcesResponse(
        config_resources=[
            ListedConfigResource(resource_name=name, resource_type=kind)
            for kind, name in found
            if call.version and (not wanted or kind in wanted)
        ]
    )


def _is_requested(resource: DescribeConfigsResource, name: str) -> bool:
    return resource.configuration_keys is None or name in resource.configuration_keys


def _source(topic: FakeTopic, name: str) -> int:
    return SOURCE_TOPIC if name in topic.set_configs else SOURCE_DEFAULT


def _config(
    call: Call, name: str, value: str, default: ConfigDefault, source: int
) -> DescribeConfigsResourceResult:
    """Return one setting as the response has it, with its synonyms if requested."""
    synonyms = []
    if call.message.include_synonyms:
        if source == SOURCE_TOPIC:
            synonyms.append(DescribeConfigsSynonym(name=name, value=value, source=source))
        synonyms.append(
            DescribeConfigsSynonym(name=name, value=default.value, source=SOURCE_DEFAULT)
        )
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        config_source=source,
        synonyms=synonyms,
        config_type=default.type,
        documentation=None,
    )


def sasl_handshake(call: Call) -> SaslHandshakeResponse:
    return call.state.sasl.handshake(call.message.mechanism, call.request.connection)


def sasl_authenticate(call: Call) -> SaslAuthenticateResponse:
    return call.state.sasl.authenticate(call.message.auth_bytes, call.request.connection)


HANDLERS: dict[str, Handler] = {
    "AddOffsetsToTxn": add_offsets_to_txn,
    "AddPartitionsToTxn": add_partitions_to_txn,
    "AlterClientQuotas": alter_client_quotas,
    "AlterPartitionReassignments": alter_partition_reassignments,
    "AlterUserScramCredentials": alter_user_scram_credentials,
    "ApiVersions": api_versions,
    "ConsumerGroupHeartbeat": consumer_group_heartbeat,
    "CreateAcls": create_acls,
    "CreatePartitions": create_partitions,
    "CreateTopics": create_topics,
    "DeleteAcls": delete_acls,
    "DeleteGroups": delete_groups,
    "DeleteRecords": delete_records,
    "DeleteTopics": delete_topics,
    "DescribeAcls": describe_acls,
    "DescribeClientQuotas": describe_client_quotas,
    "DescribeCluster": describe_cluster,
    "DescribeConfigs": describe_configs,
    "DescribeGroups": describe_groups,
    "DescribeLogDirs": describe_log_dirs,
    "DescribeTransactions": describe_transactions,
    "DescribeUserScramCredentials": describe_user_scram_credentials,
    "ElectLeaders": elect_leaders,
    "EndTxn": end_txn,
    "Fetch": fetch,
    "FindCoordinator": find_coordinator,
    "Heartbeat": heartbeat,
    "InitProducerId": init_producer_id,
    "JoinGroup": join_group,
    "LeaveGroup": leave_group,
    "ListConfigResources": list_config_resources,
    "ListGroups": list_groups,
    "ListOffsets": list_offsets,
    "ListPartitionReassignments": list_partition_reassignments,
    "ListTransactions": list_transactions,
    "Metadata": metadata,
    "OffsetCommit": offset_commit,
    "OffsetFetch": offset_fetch,
    "Produce": produce,
    "SaslAuthenticate": sasl_authenticate,
    "SaslHandshake": sasl_handshake,
    "ShareAcknowledge": share_acknowledge,
    "ShareFetch": share_fetch,
    "ShareGroupHeartbeat": share_group_heartbeat,
    "SyncGroup": sync_group,
    "TxnOffsetCommit": txn_offset_commit,
    "UpdateFeatures": update_features,
}

# The versions of the APIs above that decode_request can decode.
IMPLEMENTED: dict[str, VersionRange] = {
    cls.API_NAME: (cls.MIN_VERSION, cls.MAX_VERSION)
    for cls in REQUESTS.values()
    if cls.API_NAME in HANDLERS
}
API_NAMES: dict[int, str] = {key: cls.API_NAME for key, cls in REQUESTS.items()}
API_VERSIONS_KEY = ApiVersionsRequest.API_KEY
