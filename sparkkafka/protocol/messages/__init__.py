"""The requests and responses in use, by subject. Declarations only; `wire.schema` explains them.

Names are those of Kafka's message JSON, the fields' in snake_case. `REQUESTS` finds a request
class by its API key, and its `RESPONSE` is the class of the response.

A subject is imported when the first of its names is used: Spark starts new processes all the time,
each needs a few messages, and declaring one takes a fifth of a millisecond or more.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.protocol.messages.admin import *  # noqa: F403
    from sparkkafka.protocol.messages.data import *  # noqa: F403
    from sparkkafka.protocol.messages.groups import *  # noqa: F403
    from sparkkafka.protocol.messages.metadata import *  # noqa: F403
    from sparkkafka.protocol.messages.sasl import *  # noqa: F403
    from sparkkafka.protocol.messages.share_groups import *  # noqa: F403
    from sparkkafka.protocol.messages.transactions import *  # noqa: F403
    from sparkkafka.protocol.wire.schema import Request

    REQUESTS: Mapping[int, type[Request[Any]]]

# A test compares this with the imports above.
_NAMES: Mapping[str, str] = {
    "admin": """
        AlterableConfig AlterConfigsResource AlterConfigsResourceResponse
        CreatableReplicaAssignment CreatableTopic CreatableTopicConfig CreatableTopicConfigs
        CreatableTopicResult CreatePartitionsAssignment CreatePartitionsRequest
        CreatePartitionsResponse CreatePartitionsTopic CreatePartitionsTopicResult
        CreateTopicsRequest CreateTopicsResponse DeletableTopicResult ListConfigResourcesRequest
        ListConfigResourcesResponse ListedConfigResource DeleteRecordsPartition
        DeleteRecordsPartitionResult DeleteRecordsRequest DeleteRecordsResponse DeleteRecordsTopic
        DeleteRecordsTopicResult DeleteTopicsRequest DeleteTopicsResponse DeleteTopicState
        DescribableLogDirTopic DescribeConfigsRequest DescribeConfigsResource
        DescribeConfigsResourceResult DescribeConfigsResponse DescribeConfigsResult
        DescribeConfigsSynonym DescribeLogDirsPartition DescribeLogDirsRequest
        DescribeLogDirsResponse DescribeLogDirsResult DescribeLogDirsTopic
        IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse AlterClientQuotasRequest
        AlterClientQuotasResponse AlteredQuotaEntry AlterPartitionReassignmentsRequest
        AlterPartitionReassignmentsResponse AlterQuotaResult DescribeClientQuotasRequest
        DescribeClientQuotasResponse DescribedQuotaEntry ElectionPartitionResult
        ElectionPartitions ElectLeadersRequest ElectLeadersResponse FeatureUpdateKey
        ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse
        ListPartitionReassignmentsTopics OngoingPartitionReassignment OngoingTopicReassignment
        QuotaComponent QuotaEntityPart QuotaOp QuotaValue ReassignablePartition
        ReassignablePartitionResponse ReassignableTopic ReassignableTopicResponse
        ReplicaElectionResult UpdatableFeatureResult UpdateFeaturesRequest UpdateFeaturesResponse
        AclCreation AclCreationResult AclDescription AlterUserScramCredentialsRequest
        AlterUserScramCredentialsResponse AlterUserScramCredentialsResult CreateAclsRequest
        CreateAclsResponse CredentialInfo DeleteAclsFilter DeleteAclsFilterResult
        DeleteAclsMatchingAcl DeleteAclsRequest DeleteAclsResponse DescribeAclsRequest
        DescribeAclsResource DescribeAclsResponse DescribeUserScramCredentialsRequest
        DescribeUserScramCredentialsResponse DescribeUserScramCredentialsResult CreatableRenewers
        CreateDelegationTokenRequest CreateDelegationTokenResponse DescribedDelegationToken
        DescribedDelegationTokenRenewer DescribeDelegationTokenOwner
        DescribeDelegationTokenRequest DescribeDelegationTokenResponse
        ExpireDelegationTokenRequest ExpireDelegationTokenResponse RenewDelegationTokenRequest
        RenewDelegationTokenResponse ScramCredentialDeletion ScramCredentialUpsertion UserName
    """,
    "data": """
        AbortedTransaction BatchIndexAndErrorMessage EpochEndOffset FetchableTopicResponse
        FetchPartition FetchRequest FetchResponse FetchTopic ForgottenTopic LeaderIdAndEpoch
        ListOffsetsPartition ListOffsetsPartitionResponse ListOffsetsRequest ListOffsetsResponse
        ReplicaState
        ListOffsetsTopic ListOffsetsTopicResponse NodeEndpoint PartitionData PartitionProduceData
        PartitionProduceResponse ProduceRequest ProduceResponse SnapshotId TopicProduceData
        TopicProduceResponse
    """,
    "groups": """
        OffsetCommitRequest
        OffsetCommitRequestPartition OffsetCommitRequestTopic OffsetCommitResponse
        OffsetCommitResponsePartition OffsetCommitResponseTopic OffsetFetchRequest
        OffsetFetchRequestGroup OffsetFetchRequestTopic OffsetFetchRequestTopics
        OffsetFetchResponse OffsetFetchResponseGroup OffsetFetchResponsePartition
        OffsetFetchResponsePartitions OffsetFetchResponseTopic OffsetFetchResponseTopics
        ConsumerGroupHeartbeatRequest ConsumerGroupHeartbeatResponse HeartbeatAssignment
        HeartbeatRequest HeartbeatResponse HeartbeatTopicPartitions JoinGroupRequest
        JoinGroupRequestProtocol JoinGroupResponse JoinGroupResponseMember LeaveGroupRequest
        LeaveGroupResponse MemberIdentity MemberResponse SyncGroupRequest
        SyncGroupRequestAssignment SyncGroupResponse ConsumerGroupDescribeRequest
        ConsumerGroupDescribeResponse DeletableGroupResult DeleteGroupsRequest
        DeleteGroupsResponse DescribedAssignment DescribedConsumer DescribedConsumerGroup
        DescribedGroup DescribedGroupMember DescribedTopicPartitions DescribeGroupsRequest
        DescribeGroupsResponse ListedGroup ListGroupsRequest ListGroupsResponse
        OffsetDeleteRequest OffsetDeleteRequestPartition OffsetDeleteRequestTopic
        OffsetDeleteResponse OffsetDeleteResponsePartition OffsetDeleteResponseTopic
    """,
    "metadata": """
        NO_AUTHORIZED_OPERATIONS ApiVersion ApiVersionsRequest ApiVersionsResponse
        Coordinator FindCoordinatorRequest FindCoordinatorResponse QuorumListener QuorumNode
        DescribeClusterBroker DescribeClusterRequest DescribeClusterResponse DescribeQuorumRequest
        DescribeQuorumResponse QuorumPartition QuorumPartitionState QuorumReplicaState QuorumTopic
        QuorumTopicState FinalizedFeatureKey MetadataRequest MetadataRequestTopic MetadataResponse
        MetadataResponseBroker MetadataResponsePartition MetadataResponseTopic SupportedFeatureKey
    """,
    "sasl": """
        SaslAuthenticateRequest SaslAuthenticateResponse SaslHandshakeRequest
        SaslHandshakeResponse
    """,
    "share_groups": """
        AcknowledgementBatch AcknowledgePartition AcknowledgePartitionData AcknowledgeTopic
        AcquiredRecords AlterShareGroupOffsetsRequest AlterShareGroupOffsetsRequestPartition
        AlterShareGroupOffsetsRequestTopic AlterShareGroupOffsetsResponse
        AlterShareGroupOffsetsResponsePartition AlterShareGroupOffsetsResponseTopic
        DeleteShareGroupOffsetsRequest DeleteShareGroupOffsetsRequestTopic
        DeleteShareGroupOffsetsResponse DeleteShareGroupOffsetsResponseTopic DescribedShareGroup
        DescribedShareMember DescribeShareGroupOffsetsRequest
        DescribeShareGroupOffsetsRequestGroup DescribeShareGroupOffsetsRequestTopic
        DescribeShareGroupOffsetsResponse DescribeShareGroupOffsetsResponseGroup
        DescribeShareGroupOffsetsResponsePartition DescribeShareGroupOffsetsResponseTopic
        ForgottenShareTopic ShareAcknowledgeRequest ShareAcknowledgeResponse
        ShareAcknowledgeTopicResponse ShareFetchableTopicResponse ShareFetchPartition
        ShareFetchRequest ShareFetchResponse ShareFetchTopic ShareGroupDescribeRequest
        ShareGroupDescribeResponse ShareGroupHeartbeatRequest ShareGroupHeartbeatResponse
        ShareLeader SharePartitionData
    """,
    "transactions": """
        AddOffsetsToTxnRequest AddOffsetsToTxnResponse AddPartitionsToTxnPartitionResult
        AddPartitionsToTxnRequest AddPartitionsToTxnResponse AddPartitionsToTxnTopic
        AddPartitionsToTxnTopicResult DescribedTransactionState DescribeProducersRequest
        DescribeProducersResponse DescribeTransactionsRequest DescribeTransactionsResponse
        EndTxnRequest EndTxnResponse InitProducerIdRequest InitProducerIdResponse
        ListedTransactionState ListTransactionsRequest ListTransactionsResponse
        ProducersPartitionResponse DescribedProducer TopicData ProducersTopic
        ProducersTopicResponse TxnOffsetCommitRequest TxnOffsetCommitRequestPartition
        TxnOffsetCommitRequestTopic TxnOffsetCommitResponse TxnOffsetCommitResponsePartition
        TxnOffsetCommitResponseTopic WritableTxnMarker WritableTxnMarkerPartitionResult
        WritableTxnMarkerResult WritableTxnMarkerTopic WritableTxnMarkerTopicResult
        WriteTxnMarkersRequest WriteTxnMarkersResponse
    """,
}
_SUBJECTS = {name: subject for subject, names in _NAMES.items() for name in names.split()}
__all__ = ["REQUESTS", *_SUBJECTS]


def __getattr__(name: str) -> Any:
    """Import the subject of a name when it is first used."""
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
    """Import all subjects and return the request classes by API key."""
    known = (__getattr__(name) for name in __all__ if name.endswith("Request"))
    return {cls.API_KEY: cls for cls in known}
