"""The permissions that a request needs (Kafka's KafkaApis), and whether its sender has them
(StandardAuthorizer with allow.everyone.if.no.acl.found=true).

A request that names several groups or transactional ids is refused as a whole if its sender may
not use one of them. ListGroups and ListTransactions list everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.faults import RecordedRequest
from sparkkafka.testing.fake.security.state import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    FakeAcls,
)

_OPERATIONS_ON_TOPICS = {
    "AddPartitionsToTxn": WRITE,
    "CreatePartitions": ALTER,
    "DeleteRecords": DELETE,
    "DeleteTopics": DELETE,
    "DescribeConfigs": DESCRIBE_CONFIGS,
    "Fetch": READ,
    "ListOffsets": DESCRIBE,
    "Metadata": DESCRIBE,
    "OffsetCommit": READ,
    "OffsetFetch": DESCRIBE,
    "Produce": WRITE,
    "ShareAcknowledge": READ,
    "ShareFetch": READ,
    "TxnOffsetCommit": READ,
}
_OPERATIONS_ON_GROUPS = {
    "AddOffsetsToTxn": READ,
    "ConsumerGroupHeartbeat": READ,
    "DeleteGroups": DELETE,
    "DescribeGroups": DESCRIBE,
    "Heartbeat": READ,
    "JoinGroup": READ,
    "LeaveGroup": READ,
    "OffsetCommit": READ,
    "OffsetFetch": DESCRIBE,
    "ShareAcknowledge": READ,
    "ShareFetch": READ,
    "ShareGroupHeartbeat": READ,
    "SyncGroup": READ,
    "TxnOffsetCommit": READ,
}
_OPERATIONS_ON_TRANSACTIONAL_IDS = {
    "AddOffsetsToTxn": WRITE,
    "AddPartitionsToTxn": WRITE,
    "DescribeTransactions": DESCRIBE,
    "EndTxn": WRITE,
    "InitProducerId": WRITE,
    "Produce": WRITE,
    "TxnOffsetCommit": WRITE,
}
_OPERATIONS_ON_CLUSTER = {
    "AlterClientQuotas": ALTER_CONFIGS,
    "AlterPartitionReassignments": ALTER,
    "AlterUserScramCredentials": ALTER,
    "CreateAcls": ALTER,
    "DeleteAcls": ALTER,
    "DescribeAcls": DESCRIBE,
    "DescribeClientQuotas": DESCRIBE_CONFIGS,
    "DescribeLogDirs": DESCRIBE,
    "DescribeUserScramCredentials": DESCRIBE,
    "ElectLeaders": ALTER,
    "ListPartitionReassignments": DESCRIBE,
    "UpdateFeatures": ALTER,
}


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Checks one request of one principal against the ACLs."""

    acls: FakeAcls
    principal: str
    host: str
    request: RecordedRequest

    def refusal(self, topic: str | None = None) -> ErrorCode | None:
        """Return the error of the whole request, or of its part about a topic; None if it is
        allowed."""
        if not self.acls:
            return None
        api, message = self.request.api, self.request.message
        if api == "FindCoordinator":
            keys = message.coordinator_keys or [message.key]
            if message.key_type == 0:  # a group's coordinator
                return self._refused(GROUP, DESCRIBE, keys)
            return self._refused(TRANSACTIONAL_ID, DESCRIBE, keys)
        if api == "CreateTopics":
            if topic is None or self._refused(CLUSTER, CREATE, [CLUSTER_NAME]) is None:
                return None
            return self._refused(TOPIC, CREATE, [topic])
        return (
            self._refused(CLUSTER, _OPERATIONS_ON_CLUSTER.get(api), [CLUSTER_NAME])
            or self._refused(GROUP, _OPERATIONS_ON_GROUPS.get(api), _groups(message))
            or self._refused(
                TRANSACTIONAL_ID,
                _OPERATIONS_ON_TRANSACTIONAL_IDS.get(api),
                _transactional_ids(message),
            )
            or self._refused(TOPIC, _OPERATIONS_ON_TOPICS.get(api), [topic] if topic else [])
        )

    def _refused(
        self, resource_type: int, operation: int | None, names: Iterable[str]
    ) -> ErrorCode | None:
        """Return the error if the operation (None: no operation) is refused on one of the names."""
        if operation is None or all(
            self.acls.allow(self.principal, self.host, operation, resource_type, name)
            for name in names
        ):
            return None
        return {
            CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
            TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }[resource_type]


def _groups(message: Any) -> list[str]:
    """Return the groups that a request names, in whichever field it has them."""
    rows = getattr(message, "groups", None) or getattr(message, "groups_names", None) or ()
    names = [row if isinstance(row, str) else row.group_id for row in rows]
    return [name for name in (*names, getattr(message, "group_id", None)) if name]


def _transactional_ids(message: Any) -> list[str]:
    """Return the transactional ids that a request names, in whichever field it has them."""
    fields = ("transactional_id", "v3_and_below_transactional_id")
    names = [getattr(message, field, None) for field in fields]
    return [name for name in (*names, *(getattr(message, "transactional_ids", None) or ())) if name]
