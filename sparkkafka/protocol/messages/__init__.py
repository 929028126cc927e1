"""The requests and responses in use, by subject. Declarations only; `schema` explains them.

Names are those of Kafka's message JSON, the fields' in snake_case. `REQUESTS` finds a request
class by its API key, and its `RESPONSE` is the class of the answer.

A subject is imported when the first of its names is asked for: Spark starts new processes all the
time, each needs a few messages, and to declare one costs a fifth of a millisecond or more.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.protocol.messages.admin import (
        AlterableConfig,
        AlterConfigsResource,
        AlterConfigsResourceResponse,
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreatableTopicConfigs,
        CreatableTopicResult,
        CreatePartitionsAssignment,
        CreatePartitionsRequest,
        CreatePartitionsResponse,
        CreatePartitionsTopic,
        CreatePartitionsTopicResult,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeletableTopicResult,
        DeleteRecordsPartition,
        DeleteRecordsPartitionResult,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteRecordsTopic,
        DeleteRecordsTopicResult,
        DeleteTopicsRequest,
        DeleteTopicsResponse,
        DeleteTopicState,
        DescribableLogDirTopic,
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResourceResult,
        DescribeConfigsResponse,
        DescribeConfigsResult,
        DescribeConfigsSynonym,
        DescribeLogDirsPartition,
        DescribeLogDirsRequest,
        DescribeLogDirsResponse,
        DescribeLogDirsResult,
        DescribeLogDirsTopic,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
    )
    from sparkkafka.protocol.messages.data import (
        AbortedTransaction,
        BatchIndexAndErrorMessage,
        EpochEndOffset,
        FetchableTopicResponse,
        FetchPartition,
        FetchRequest,
        FetchResponse,
        FetchTopic,
        ForgottenTopic,
        LeaderIdAndEpoch,
        ListOffsetsPartition,
        ListOffsetsPartitionResponse,
        ListOffsetsRequest,
        ListOffsetsResponse,
        ListOffsetsTopic,
        ListOffsetsTopicResponse,
        NodeEndpoint,
        PartitionData,
        PartitionProduceData,
        PartitionProduceResponse,
        ProduceRequest,
        ProduceResponse,
        SnapshotId,
        TopicProduceData,
        TopicProduceResponse,
    )
    from sparkkafka.protocol.messages.group_admin import (
        ConsumerGroupDescribeRequest,
        ConsumerGroupDescribeResponse,
        DeletableGroupResult,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        DescribedAssignment,
        DescribedConsumer,
        DescribedConsumerGroup,
        DescribedGroup,
        DescribedGroupMember,
        DescribedTopicPartitions,
        DescribeGroupsRequest,
        DescribeGroupsResponse,
        ListedGroup,
        ListGroupsRequest,
        ListGroupsResponse,
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
        OffsetDeleteResponse,
        OffsetDeleteResponsePartition,
        OffsetDeleteResponseTopic,
    )
    from sparkkafka.protocol.messages.groups import (
        Coordinator,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
        OffsetCommitResponse,
        OffsetCommitResponsePartition,
        OffsetCommitResponseTopic,
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopic,
        OffsetFetchRequestTopics,
        OffsetFetchResponse,
        OffsetFetchResponseGroup,
        OffsetFetchResponsePartition,
        OffsetFetchResponsePartitions,
        OffsetFetchResponseTopic,
        OffsetFetchResponseTopics,
    )
    from sparkkafka.protocol.messages.membership import (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
        HeartbeatAssignment,
        HeartbeatRequest,
        HeartbeatResponse,
        HeartbeatTopicPartitions,
        JoinGroupRequest,
        JoinGroupRequestProtocol,
        JoinGroupResponse,
        JoinGroupResponseMember,
        LeaveGroupRequest,
        LeaveGroupResponse,
        MemberIdentity,
        MemberResponse,
        SyncGroupRequest,
        SyncGroupRequestAssignment,
        SyncGroupResponse,
    )
    from sparkkafka.protocol.messages.metadata import (
        NO_AUTHORIZED_OPERATIONS,
        ApiVersion,
        ApiVersionsRequest,
        ApiVersionsResponse,
        DescribeClusterBroker,
        DescribeClusterRequest,
        DescribeClusterResponse,
        FinalizedFeatureKey,
        MetadataRequest,
        MetadataRequestTopic,
        MetadataResponse,
        MetadataResponseBroker,
        MetadataResponsePartition,
        MetadataResponseTopic,
        SupportedFeatureKey,
    )
    from sparkkafka.protocol.messages.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )
    from sparkkafka.protocol.messages.transactions import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnPartitionResult,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        AddPartitionsToTxnTopic,
        AddPartitionsToTxnTopicResult,
        DescribedTransactionState,
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ListedTransactionState,
        ListTransactionsRequest,
        ListTransactionsResponse,
        ProducersPartitionResponse,
        ProducerState,
        ProducersTopic,
        ProducersTopicResponse,
        TopicData,
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
        TxnOffsetCommitResponse,
        TxnOffsetCommitResponsePartition,
        TxnOffsetCommitResponseTopic,
        WritableTxnMarker,
        WritableTxnMarkerPartitionResult,
        WritableTxnMarkerResult,
        WritableTxnMarkerTopic,
        WritableTxnMarkerTopicResult,
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )
    from sparkkafka.protocol.wire.schema import Request

    REQUESTS: Mapping[int, type[Request[Any]]]
__all__ = [
    "NO_AUTHORIZED_OPERATIONS",
    "REQUESTS",
    "AbortedTransaction",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnPartitionResult",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddPartitionsToTxnTopic",
    "AddPartitionsToTxnTopicResult",
    "AlterConfigsResource",
    "AlterConfigsResourceResponse",
    "AlterableConfig",
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BatchIndexAndErrorMessage",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "Coordinator",
    "CreatableReplicaAssignment",
    "CreatableTopic",
    "CreatableTopicConfig",
    "CreatableTopicConfigs",
    "CreatableTopicResult",
    "CreatePartitionsAssignment",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreatePartitionsTopic",
    "CreatePartitionsTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeletableGroupResult",
    "DeletableTopicResult",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsPartition",
    "DeleteRecordsPartitionResult",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
    "DeleteTopicState",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribableLogDirTopic",
    "DescribeClusterBroker",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResourceResult",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeConfigsSynonym",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribedAssignment",
    "DescribedConsumer",
    "DescribedConsumerGroup",
    "DescribedGroup",
    "DescribedGroupMember",
    "DescribedTopicPartitions",
    "DescribedTransactionState",
    "EndTxnRequest",
    "EndTxnResponse",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "FinalizedFeatureKey",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "ForgottenTopic",
    "HeartbeatAssignment",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "HeartbeatTopicPartitions",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupRequestProtocol",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
    "LeaderIdAndEpoch",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "ListedGroup",
    "ListedTransactionState",
    "MemberIdentity",
    "MemberResponse",
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
    "NodeEndpoint",
    "OffsetCommitRequest",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
    "OffsetDeleteRequest",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteResponse",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
    "OffsetFetchRequest",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequestTopic",
    "OffsetFetchRequestTopics",
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponsePartition",
    "OffsetFetchResponsePartitions",
    "OffsetFetchResponseTopic",
    "OffsetFetchResponseTopics",
    "PartitionData",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "ProducerState",
    "ProducersPartitionResponse",
    "ProducersTopic",
    "ProducersTopicResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SnapshotId",
    "SupportedFeatureKey",
    "SyncGroupRequest",
    "SyncGroupRequestAssignment",
    "SyncGroupResponse",
    "TopicData",
    "TopicProduceData",
    "TopicProduceResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitRequestPartition",
    "TxnOffsetCommitRequestTopic",
    "TxnOffsetCommitResponse",
    "TxnOffsetCommitResponsePartition",
    "TxnOffsetCommitResponseTopic",
    "WritableTxnMarker",
    "WritableTxnMarkerPartitionResult",
    "WritableTxnMarkerResult",
    "WritableTxnMarkerTopic",
    "WritableTxnMarkerTopicResult",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]

# A test holds this to what the imports above say.
_NAMES: Mapping[str, str] = {
    "admin": """
        AlterableConfig AlterConfigsResource AlterConfigsResourceResponse
        CreatableReplicaAssignment CreatableTopic CreatableTopicConfig CreatableTopicConfigs
        CreatableTopicResult CreatePartitionsAssignment CreatePartitionsRequest
        CreatePartitionsResponse CreatePartitionsTopic CreatePartitionsTopicResult
        CreateTopicsRequest CreateTopicsResponse DeletableTopicResult DeleteRecordsPartition
        DeleteRecordsPartitionResult DeleteRecordsRequest DeleteRecordsResponse
        DeleteRecordsTopic DeleteRecordsTopicResult DeleteTopicsRequest DeleteTopicsResponse
        DeleteTopicState DescribableLogDirTopic DescribeConfigsRequest
        DescribeConfigsResource DescribeConfigsResourceResult DescribeConfigsResponse
        DescribeConfigsResult DescribeConfigsSynonym DescribeLogDirsPartition
        DescribeLogDirsRequest DescribeLogDirsResponse DescribeLogDirsResult
        DescribeLogDirsTopic IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse
    """,
    "data": """
        AbortedTransaction BatchIndexAndErrorMessage EpochEndOffset FetchableTopicResponse
        FetchPartition FetchRequest FetchResponse FetchTopic ForgottenTopic LeaderIdAndEpoch
        ListOffsetsPartition ListOffsetsPartitionResponse ListOffsetsRequest
        ListOffsetsResponse ListOffsetsTopic ListOffsetsTopicResponse NodeEndpoint
        PartitionData PartitionProduceData PartitionProduceResponse ProduceRequest
        ProduceResponse SnapshotId TopicProduceData TopicProduceResponse
    """,
    "group_admin": """
        ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse DeletableGroupResult
        DeleteGroupsRequest DeleteGroupsResponse DescribedAssignment DescribedConsumer
        DescribedConsumerGroup DescribedGroup DescribedGroupMember DescribedTopicPartitions
        DescribeGroupsRequest DescribeGroupsResponse ListedGroup ListGroupsRequest
        ListGroupsResponse OffsetDeleteRequest OffsetDeleteRequestPartition
        OffsetDeleteRequestTopic OffsetDeleteResponse OffsetDeleteResponsePartition
        OffsetDeleteResponseTopic
    """,
    "groups": """
        Coordinator FindCoordinatorRequest FindCoordinatorResponse OffsetCommitRequest
        OffsetCommitRequestPartition OffsetCommitRequestTopic OffsetCommitResponse
        OffsetCommitResponsePartition OffsetCommitResponseTopic OffsetFetchRequest
        OffsetFetchRequestGroup OffsetFetchRequestTopic OffsetFetchRequestTopics
        OffsetFetchResponse OffsetFetchResponseGroup OffsetFetchResponsePartition
        OffsetFetchResponsePartitions OffsetFetchResponseTopic OffsetFetchResponseTopics
    """,
    "membership": """
        ConsumerGroupHeartbeatRequest ConsumerGroupHeartbeatResponse HeartbeatAssignment
        HeartbeatRequest HeartbeatResponse HeartbeatTopicPartitions JoinGroupRequest
        JoinGroupRequestProtocol JoinGroupResponse JoinGroupResponseMember LeaveGroupRequest
        LeaveGroupResponse MemberIdentity MemberResponse SyncGroupRequest
        SyncGroupRequestAssignment SyncGroupResponse
    """,
    "metadata": """
        NO_AUTHORIZED_OPERATIONS ApiVersion ApiVersionsRequest ApiVersionsResponse
        DescribeClusterBroker DescribeClusterRequest DescribeClusterResponse
        FinalizedFeatureKey MetadataRequest MetadataRequestTopic MetadataResponse
        MetadataResponseBroker MetadataResponsePartition MetadataResponseTopic
        SupportedFeatureKey
    """,
    "sasl": """
        SaslAuthenticateRequest SaslAuthenticateResponse SaslHandshakeRequest
        SaslHandshakeResponse
    """,
    "transactions": """
        AddOffsetsToTxnRequest AddOffsetsToTxnResponse AddPartitionsToTxnPartitionResult
        AddPartitionsToTxnRequest AddPartitionsToTxnResponse AddPartitionsToTxnTopic
        AddPartitionsToTxnTopicResult DescribedTransactionState DescribeProducersRequest
        DescribeProducersResponse DescribeTransactionsRequest DescribeTransactionsResponse
        EndTxnRequest EndTxnResponse InitProducerIdRequest InitProducerIdResponse
        ListedTransactionState ListTransactionsRequest ListTransactionsResponse
        ProducersPartitionResponse ProducerState TopicData ProducersTopic ProducersTopicResponse
        TxnOffsetCommitRequest TxnOffsetCommitRequestPartition TxnOffsetCommitRequestTopic
        TxnOffsetCommitResponse TxnOffsetCommitResponsePartition
        TxnOffsetCommitResponseTopic WritableTxnMarker WritableTxnMarkerPartitionResult
        WritableTxnMarkerResult WritableTxnMarkerTopic WritableTxnMarkerTopicResult
        WriteTxnMarkersRequest WriteTxnMarkersResponse
    """,
}
_SUBJECTS = {name: subject for subject, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "REQUESTS":
        value: Any = MappingProxyType(_requests())
    elif name in _SUBJECTS:
        value = getattr(importlib.import_module(f"{__name__}.{_SUBJECTS[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """For completion: also the names that have not been used yet."""
    return sorted({*globals(), *__all__})


def _requests() -> dict[int, type[Request[Any]]]:
    known = (__getattr__(name) for name in __all__ if name.endswith("Request"))
    return {cls.API_KEY: cls for cls in known}
