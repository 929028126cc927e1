"""Which Kafka release brought which version of a request, for errors that say what is needed."""

from __future__ import annotations

from collections.abc import Mapping

# What brokers of a release offer first: the highest version of a request, where it is higher than
# in the release before. The first row is the oldest Kafka that is supported. (What brokers answer
# to ApiVersions, as kafka-python keeps it; a test compares the two.)
_NEW_IN = {
    "2.1": """
        Produce:7 Fetch:10 ListOffsets:4 Metadata:7 OffsetCommit:6 OffsetFetch:5 FindCoordinator:2
        JoinGroup:3 Heartbeat:2 LeaveGroup:2 SyncGroup:2 DescribeGroups:2 ListGroups:2
        SaslHandshake:1 ApiVersions:2 CreateTopics:3 DeleteTopics:3 DeleteRecords:1
        InitProducerId:1 AddPartitionsToTxn:1 AddOffsetsToTxn:1 EndTxn:1 WriteTxnMarkers:0
        TxnOffsetCommit:2 DescribeConfigs:2 DescribeLogDirs:1 SaslAuthenticate:0 CreatePartitions:1
        DeleteGroups:1 DescribeAcls:1 CreateAcls:1 DeleteAcls:1 CreateDelegationToken:1
        OffsetForLeaderEpoch:2
        RenewDelegationToken:1 ExpireDelegationToken:1 DescribeDelegationToken:1
    """,
    "2.2": "ListOffsets:5 JoinGroup:4 SaslAuthenticate:1 ElectLeaders:0",
    "2.3": """
        Fetch:11 Metadata:8 OffsetCommit:7 JoinGroup:5 Heartbeat:3 SyncGroup:3 DescribeGroups:3
        IncrementalAlterConfigs:0 OffsetForLeaderEpoch:3
    """,
    "2.4": """
        Produce:8 Metadata:9 OffsetCommit:8 OffsetFetch:6 FindCoordinator:3 JoinGroup:6 Heartbeat:4
        LeaveGroup:4 SyncGroup:4 DescribeGroups:5 ListGroups:3 ApiVersions:3 CreateTopics:5
        DeleteTopics:4 InitProducerId:2 DeleteGroups:2 IncrementalAlterConfigs:1 OffsetDelete:0
        ElectLeaders:2 AlterPartitionReassignments:0 ListPartitionReassignments:0
        CreateDelegationToken:2
    """,
    "2.5": """
        OffsetFetch:7 JoinGroup:7 SyncGroup:5 InitProducerId:3 TxnOffsetCommit:3 SaslAuthenticate:2
        CreatePartitions:2 DescribeAcls:2 CreateAcls:2 DeleteAcls:2 RenewDelegationToken:2
        ExpireDelegationToken:2 DescribeDelegationToken:2
    """,
    "2.6": """
        ListGroups:4 DeleteRecords:2 DescribeConfigs:3 DescribeLogDirs:2 DescribeClientQuotas:0
        AlterClientQuotas:0
    """,
    "2.7": """
        Fetch:12 CreateTopics:6 DeleteTopics:5 InitProducerId:4 AddPartitionsToTxn:2
        AddOffsetsToTxn:2 EndTxn:2 CreatePartitions:3 DescribeUserScramCredentials:0
        AlterUserScramCredentials:0 UpdateFeatures:0
    """,
    "2.8": """
        Produce:9 ListOffsets:6 Metadata:11 CreateTopics:7 DeleteTopics:6 AddPartitionsToTxn:3
        OffsetForLeaderEpoch:4 AddOffsetsToTxn:3 EndTxn:3 WriteTxnMarkers:1 DescribeConfigs:4
        DescribeCluster:0 DescribeProducers:0 DescribeClientQuotas:1 AlterClientQuotas:1
    """,
    "3.0": """
        ListOffsets:7 OffsetFetch:8 FindCoordinator:4 DescribeTransactions:0 ListTransactions:0
    """,
    "3.1": "Fetch:13 Metadata:12",
    "3.2": "JoinGroup:9 LeaveGroup:5 DescribeLogDirs:3",
    "3.3": """
        DescribeLogDirs:4 DescribeAcls:3 CreateAcls:3 DeleteAcls:3 UpdateFeatures:1
        CreateDelegationToken:3 DescribeDelegationToken:3
    """,
    "3.5": "Fetch:15 ListOffsets:8",
    "3.6": "AddPartitionsToTxn:4",
    "3.7": """
        Produce:10 Fetch:16 OffsetCommit:9 OffsetFetch:9 DescribeCluster:1 ConsumerGroupHeartbeat:0
    """,
    "3.8": """
        Produce:11 FindCoordinator:5 ListGroups:5 InitProducerId:5 AddPartitionsToTxn:5
        AddOffsetsToTxn:4 EndTxn:4 TxnOffsetCommit:4 ListTransactions:1 ConsumerGroupDescribe:0
    """,
    "3.9": "Fetch:17 ListOffsets:9 FindCoordinator:6 ApiVersions:4",
    "4.0": """
        Produce:12 ListOffsets:10 Metadata:13 DescribeGroups:6 EndTxn:5 TxnOffsetCommit:5
        DescribeCluster:2 ConsumerGroupHeartbeat:1 ConsumerGroupDescribe:1 DescribeQuorum:2
        UpdateFeatures:2 ListConfigResources:0 DescribeTopicPartitions:0
    """,
    "4.1": """
        Produce:13 Fetch:18 ListTransactions:2 AlterPartitionReassignments:1 ShareGroupHeartbeat:1
        ShareGroupDescribe:1 ShareFetch:1 ShareAcknowledge:1 DescribeShareGroupOffsets:0
        AlterShareGroupOffsets:0 DeleteShareGroupOffsets:0 ListConfigResources:1
    """,
    "4.2": """
        ListOffsets:11 OffsetCommit:10 OffsetFetch:10 WriteTxnMarkers:2 ShareFetch:2
        ShareAcknowledge:2 DescribeShareGroupOffsets:1
    """,
    "4.3": "DescribeLogDirs:5",
    "4.4": "ApiVersions:5 DeleteGroups:3 TxnOffsetCommit:6",
}


RELEASES = tuple(_NEW_IN)
"""The releases that brought a version, from the oldest that is supported."""


def newest_versions(release: str) -> dict[str, int]:
    """Return the highest version of each request that brokers of a release of `RELEASES` offer."""
    versions: dict[str, int] = {}
    for name, rows in _NEW_IN.items():
        versions |= {api: int(version) for api, version in (row.split(":") for row in rows.split())}
        if name == release:
            break
    return versions


def first_kafka(api_name: str, version: int = 0) -> str:
    """Return the first Kafka that has this version of a request: "Kafka 2.4"; "" if not known."""
    for release, rows in _NEW_IN.items():
        highest = dict(row.split(":") for row in rows.split())
        if int(highest.get(api_name, -1)) >= version:
            return f"Kafka {release}"
    return ""


def release_of(offered: Mapping[str, int]) -> str:
    """Return the newest Kafka release whose new versions a broker offers all, such as "4.1"; "" if
    the broker is older than the table. `offered` has the highest version by the request's name.

    Requests that a broker does not offer at all, as managed services do, do not count. A release
    without a new version in the table cannot be distinguished from the one before.
    """
    newest = ""
    for release, rows in _NEW_IN.items():
        new = [row.split(":") for row in rows.split()]
        shared = [(offered[name], int(version)) for name, version in new if name in offered]
        if shared and all(highest_offered >= version for highest_offered, version in shared):
            newest = release
    return newest
