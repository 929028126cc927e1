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
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreatableTopicConfigs,
        CreatableTopicResult,
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeletableTopicResult,
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
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ListedTransactionState,
        ListTransactionsRequest,
        ListTransactionsResponse,
        TopicData,
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
        TxnOffsetCommitResponse,
        TxnOffsetCommitResponsePartition,
        TxnOffsetCommitResponseTopic,
    )
    from sparkkafka.protocol.schema import Request

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
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BatchIndexAndErrorMessage",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "Coordinator",
    "CreatableReplicaAssignment",
    "CreatableTopic",
    "CreatableTopicConfig",
    "CreatableTopicConfigs",
    "CreatableTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeletableTopicResult",
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
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
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
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupRequestProtocol",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
    "LeaderIdAndEpoch",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
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
]

# A test holds this to what the imports above say.
_NAMES: Mapping[str, str] = {
    "admin": """
        CreatableReplicaAssignment CreatableTopic CreatableTopicConfig CreatableTopicConfigs
        CreatableTopicResult CreateTopicsRequest CreateTopicsResponse DeletableTopicResult
        DeleteTopicsRequest DeleteTopicsResponse DeleteTopicState DescribableLogDirTopic
        DescribeConfigsRequest DescribeConfigsResource DescribeConfigsResourceResult
        DescribeConfigsResponse DescribeConfigsResult DescribeConfigsSynonym
        DescribeLogDirsPartition DescribeLogDirsRequest DescribeLogDirsResponse
        DescribeLogDirsResult DescribeLogDirsTopic
    """,
    "data": """
        AbortedTransaction BatchIndexAndErrorMessage EpochEndOffset FetchableTopicResponse
        FetchPartition FetchRequest FetchResponse FetchTopic ForgottenTopic LeaderIdAndEpoch
        ListOffsetsPartition ListOffsetsPartitionResponse ListOffsetsRequest ListOffsetsResponse
        ListOffsetsTopic ListOffsetsTopicResponse NodeEndpoint PartitionData PartitionProduceData
        PartitionProduceResponse ProduceRequest ProduceResponse SnapshotId TopicProduceData
        TopicProduceResponse
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
        DescribeClusterBroker DescribeClusterRequest DescribeClusterResponse FinalizedFeatureKey
        MetadataRequest MetadataRequestTopic MetadataResponse MetadataResponseBroker
        MetadataResponsePartition MetadataResponseTopic SupportedFeatureKey
    """,
    "sasl": """
        SaslAuthenticateRequest SaslAuthenticateResponse SaslHandshakeRequest
        SaslHandshakeResponse
    """,
    "transactions": """
        AddOffsetsToTxnRequest AddOffsetsToTxnResponse AddPartitionsToTxnPartitionResult
        AddPartitionsToTxnRequest AddPartitionsToTxnResponse AddPartitionsToTxnTopic
        AddPartitionsToTxnTopicResult DescribedTransactionState DescribeTransactionsRequest
        DescribeTransactionsResponse EndTxnRequest EndTxnResponse InitProducerIdRequest
        InitProducerIdResponse ListedTransactionState ListTransactionsRequest
        ListTransactionsResponse TopicData TxnOffsetCommitRequest TxnOffsetCommitRequestPartition
        TxnOffsetCommitRequestTopic TxnOffsetCommitResponse TxnOffsetCommitResponsePartition
        TxnOffsetCommitResponseTopic
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


def _requests() -> dict[int, type[Request[Any]]]:
    known = (__getattr__(name) for name in __all__ if name.endswith("Request"))
    return {cls.API_KEY: cls for cls in known}
