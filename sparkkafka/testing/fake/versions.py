"""APIs and versions that a fake broker offers: those of a Kafka release that are implemented
here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

VersionRange = tuple[int, int]

# Highest version of each API in a release (Kafka's message definitions at its tag). A release lacks
# the APIs that have no row.
_RELEASES: dict[str, dict[str, int]] = {
    "2.1": {
        "ApiVersions": 2,
        "Metadata": 7,
        "ListOffsets": 4,
        "Fetch": 10,
        "Produce": 7,
        "InitProducerId": 1,
        "AddPartitionsToTxn": 1,
        "AddOffsetsToTxn": 1,
        "EndTxn": 1,
        "TxnOffsetCommit": 2,
        "FindCoordinator": 2,
        "JoinGroup": 3,
        "SyncGroup": 2,
        "Heartbeat": 2,
        "LeaveGroup": 2,
        "OffsetCommit": 6,
        "OffsetFetch": 5,
        "CreatePartitions": 1,
        "DeleteRecords": 1,
        "DeleteGroups": 1,
        "ListGroups": 2,
        "SaslHandshake": 1,
        "SaslAuthenticate": 0,
        "CreateTopics": 3,
        "DeleteTopics": 3,
        "DescribeConfigs": 2,
        "DescribeGroups": 2,
        "DescribeLogDirs": 1,
        "DescribeAcls": 1,
        "CreateAcls": 1,
        "DeleteAcls": 1,
    },
    "2.8": {
        "ApiVersions": 3,
        "Metadata": 11,
        "ListOffsets": 6,
        "Fetch": 12,
        "Produce": 9,
        "InitProducerId": 4,
        "AddPartitionsToTxn": 3,
        "AddOffsetsToTxn": 3,
        "EndTxn": 3,
        "TxnOffsetCommit": 3,
        "FindCoordinator": 3,
        "JoinGroup": 7,
        "SyncGroup": 5,
        "Heartbeat": 4,
        "LeaveGroup": 4,
        "OffsetCommit": 8,
        "OffsetFetch": 7,
        "CreatePartitions": 3,
        "DeleteRecords": 2,
        "DeleteGroups": 2,
        "ListGroups": 4,
        "SaslHandshake": 1,
        "SaslAuthenticate": 2,
        "CreateTopics": 7,
        "DeleteTopics": 6,
        "DescribeConfigs": 4,
        "DescribeGroups": 5,
        "DescribeLogDirs": 2,
        "DescribeCluster": 0,
        "DescribeAcls": 2,
        "CreateAcls": 2,
        "DeleteAcls": 2,
        "DescribeUserScramCredentials": 0,
        "AlterUserScramCredentials": 0,
        "DescribeClientQuotas": 1,
        "AlterClientQuotas": 1,
        "AlterPartitionReassignments": 0,
        "ListPartitionReassignments": 0,
        "ElectLeaders": 2,
        "UpdateFeatures": 0,
    },
    "3.9": {
        "ApiVersions": 4,
        "Metadata": 12,
        "ListOffsets": 9,
        "Fetch": 17,
        "Produce": 11,
        "InitProducerId": 5,
        "AddPartitionsToTxn": 5,
        "AddOffsetsToTxn": 4,
        "EndTxn": 4,
        "TxnOffsetCommit": 4,
        "DescribeTransactions": 0,
        "ListTransactions": 1,
        "FindCoordinator": 6,
        "JoinGroup": 9,
        "SyncGroup": 5,
        "Heartbeat": 4,
        "LeaveGroup": 5,
        "OffsetCommit": 9,
        "OffsetFetch": 9,
        "CreatePartitions": 3,
        "DeleteRecords": 2,
        "DeleteGroups": 2,
        "ListGroups": 5,
        "SaslHandshake": 1,
        "SaslAuthenticate": 2,
        "CreateTopics": 7,
        "DeleteTopics": 6,
        "DescribeConfigs": 4,
        "DescribeGroups": 5,
        "DescribeLogDirs": 4,
        "DescribeCluster": 1,
        "DescribeAcls": 3,
        "CreateAcls": 3,
        "DeleteAcls": 3,
        "DescribeUserScramCredentials": 0,
        "AlterUserScramCredentials": 0,
        "DescribeClientQuotas": 1,
        "AlterClientQuotas": 1,
        "AlterPartitionReassignments": 0,
        "ListPartitionReassignments": 0,
        "ElectLeaders": 2,
        "UpdateFeatures": 1,
    },
    "4.0": {
        "ApiVersions": 4,
        "Metadata": 13,
        "ListOffsets": 10,
        "Fetch": 17,
        "Produce": 12,
        "InitProducerId": 5,
        "AddPartitionsToTxn": 5,
        "AddOffsetsToTxn": 4,
        "EndTxn": 5,
        "TxnOffsetCommit": 5,
        "DescribeTransactions": 0,
        "ListTransactions": 1,
        "FindCoordinator": 6,
        "JoinGroup": 9,
        "SyncGroup": 5,
        "Heartbeat": 4,
        "LeaveGroup": 5,
        "ConsumerGroupHeartbeat": 1,
        "OffsetCommit": 9,
        "OffsetFetch": 9,
        "CreatePartitions": 3,
        "DeleteRecords": 2,
        "DeleteGroups": 2,
        "ListGroups": 5,
        "SaslHandshake": 1,
        "SaslAuthenticate": 2,
        "CreateTopics": 7,
        "DeleteTopics": 6,
        "DescribeConfigs": 4,
        "DescribeGroups": 6,
        "DescribeLogDirs": 4,
        "DescribeCluster": 2,
        "DescribeAcls": 3,
        "CreateAcls": 3,
        "DeleteAcls": 3,
        "DescribeUserScramCredentials": 0,
        "AlterUserScramCredentials": 0,
        "DescribeClientQuotas": 1,
        "AlterClientQuotas": 1,
        "AlterPartitionReassignments": 0,
        "ListPartitionReassignments": 0,
        "ElectLeaders": 2,
        "UpdateFeatures": 2,
    },
}
_RELEASES["4.2"] = _RELEASES["4.0"] | {
    "ShareGroupHeartbeat": 1,
    "ShareFetch": 2,
    "ShareAcknowledge": 2,
}
DEFAULT_RELEASE = "4.0"

# KAFKA-18659: librdkafka concludes from Produce 0 that a broker is recent. 4.x offers it and then
# refuses it; so does this one, at any release.
_LOWEST_OFFERED = {"Produce": 0}


class Release(NamedTuple):
    """A release of Kafka: the versions of APIs, and other rules that depend on it."""

    versions: Mapping[str, VersionRange]
    # KIP-511 (2.4): the refusal of an ApiVersions version lists the range of ApiVersions.
    names_own_range: bool
    # Before KRaft only the controller creates and deletes topics.
    has_controller_broker: bool
    # message.timestamp.after.max.ms: one hour since 4.0 (KIP-1030)
    timestamp_after_max_ms: int
    # KIP-890: a leader verifies with the coordinator before it writes to a transaction (3.6) ...
    verifies_transactions: bool
    # The coordinator keeps the last epoch of a transaction that it aborts (transactions V2, 4.0).
    keeps_last_epoch: bool


def release(
    name: str, implemented: Mapping[str, VersionRange], changes: Mapping[str, VersionRange | None]
) -> Release:
    """Return the release `name` ("2.1", "2.8", "3.9", "4.0", "4.2"), limited to `implemented`.

    `changes` sets the offered range of an API, or removes the API with None. It may have versions
    that are not implemented, for tests of the client's choice.
    """
    if name not in _RELEASES:
        raise ValueError(f"no such Kafka release here: {name!r}, there are {sorted(_RELEASES)}")
    unknown = set(changes) - set(implemented)
    if unknown:
        raise ValueError(f"no such API here: {sorted(unknown)}, there are {sorted(implemented)}")
    versions: dict[str, VersionRange] = {}
    for api, (lowest, highest) in implemented.items():
        if api in _RELEASES[name]:
            newest = min(highest, _RELEASES[name][api])
            versions[api] = (_LOWEST_OFFERED.get(api, lowest), newest)
        change = changes.get(api, ())
        if change is None:
            versions.pop(api, None)
        elif change:
            versions[api] = change
    number = tuple(int(part) for part in name.split("."))
    return Release(
        versions,
        names_own_range=number >= (2, 4),
        has_controller_broker=number < (3, 0),
        timestamp_after_max_ms=3_600_000 if number >= (4, 0) else (1 << 63) - 1,
        verifies_transactions=number >= (3, 6),
        keeps_last_epoch=number >= (4, 0),
    )
