"""Questions to Kafka whose answer is a refusal in any case: which one tells what a user may do.

Brokers look at ACLs before they look at the rest of a request. None of these changes anything: the
member, and the producer, that they name cannot be.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.client.cluster.request_driver import (
    FOR_GROUP,
    FOR_TRANSACTION,
    ApiHandler,
    Row,
    ToAny,
    ToCoordinator,
    call_each,
)
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError
from sparkkafka.protocol.constants import NO_PRODUCER_ID
from sparkkafka.protocol.messages import (
    DescribeQuorumRequest,
    EndTxnRequest,
    HeartbeatRequest,
    QuorumPartition,
    QuorumTopic,
)

NO_MEMBER = "sparkkafka-check"
METADATA_TOPIC = "__cluster_metadata"


class _MayRead(ApiHandler[str, None]):
    """READ on a group: a heartbeat of a member that it does not have."""

    request_type = HeartbeatRequest
    named = "group {!r}"
    acl = "READ on group {}"

    def build(self, items: Sequence[str], version: int) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=items[0], generation_id=-1, member_id=NO_MEMBER)

    def parts(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        return [[item] for item in items]

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        return [(items[0], Row(response.error_code))]


_NO_SUCH_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_ID_NOT_FOUND,
        # A group that the brokers assign (KIP-848) takes no heartbeats of this kind.
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class _MayWrite(ApiHandler[str, None]):
    """WRITE on a transactional id: to abort a transaction of a producer id that cannot be."""

    request_type = EndTxnRequest
    named = "transactional id {!r}"
    acl = "WRITE on transactional id {}"
    version = 1  # transactions V2 would change nothing here

    def build(self, items: Sequence[str], version: int) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=items[0],
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            committed=False,
        )

    def parts(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        return [[item] for item in items]

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        return [(items[0], Row(response.error_code))]


_NO_SUCH_PRODUCER = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
    }
)


def _but(error: KafkaError | None, expected: frozenset[ErrorCode]) -> KafkaError | None:
    """The error, unless it is the refusal that was to come: then the ACLs were passed."""
    return None if isinstance(error, BrokerError) and error.code in expected else error


def may_read_group(admin: BoundedAdmin, group: str) -> KafkaError | None:
    """None if this user may read with the group, else why not, and what to grant."""
    with admin.asking() as (cluster, deadline):
        route = ToCoordinator(cluster, FOR_GROUP)
        results = call_each(cluster, [group], _MayRead(), route, deadline, "asking for a group")
    return _but(results.errors.get(group), _NO_SUCH_MEMBER)


def may_write_transactions(admin: BoundedAdmin, transactional_id: str) -> KafkaError | None:
    """The same for writing under a transactional id."""
    with admin.asking() as (cluster, deadline):
        route = ToCoordinator(cluster, FOR_TRANSACTION)
        what = "asking for a transactional id"
        results = call_each(cluster, [transactional_id], _MayWrite(), route, deadline, what)
    return _but(results.errors.get(transactional_id), _NO_SUCH_PRODUCER)


# --- the time -----------------------------------------------------------------------------------


class Clock(NamedTuple):
    """`ahead_s`: how far this machine's clock is ahead of the active controller's, negative if it
    is behind; true to `within_s`, half the time that the question took."""

    ahead_s: float
    within_s: float
    controller_id: int


class _Time(ApiHandler[str, tuple[int, int]]):
    """(node id, ms since 1970) of the active controller, by what it says of itself."""

    request_type: ClassVar[Any] = DescribeQuorumRequest
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[str], version: int) -> DescribeQuorumRequest:
        return DescribeQuorumRequest(
            topics=[QuorumTopic(topic_name=METADATA_TOPIC, partitions=[QuorumPartition()])]
        )

    def lacking(self, item: str, version: int) -> str | None:
        return self.needs("the controller's time", 1) if version < 1 else None

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        if response.error_code:
            return [(items[0], Row(response.error_code))]
        for topic in response.topics:
            for row in topic.partitions:
                own = [one for one in row.current_voters if one.replica_id == row.leader_id]
                time_ms = own[0].last_caught_up_timestamp if own else -1
                code = row.error_code or (0 if time_ms >= 0 else ErrorCode.LEADER_NOT_AVAILABLE)
                return [(items[0], Row(code, (row.leader_id, time_ms)))]
        return [(items[0], Row(ErrorCode.LEADER_NOT_AVAILABLE))]


def clock(admin: BoundedAdmin) -> Clock:
    """Compare clocks. Raises UnsupportedVersionError for a cluster with ZooKeeper or before Kafka
    3.3, BrokerError without DESCRIBE on the cluster."""
    best: Clock | None = None
    with admin.asking() as (cluster, deadline):
        for _ in range(2):  # the first may have to connect
            before_s = time.time()
            results = call_each(cluster, ["clock"], _Time(), ToAny(), deadline, "asking the time")
            after_s = time.time()
            node_id, time_ms = results["clock"]
            within_s = (after_s - before_s) / 2
            found = Clock((before_s + after_s) / 2 - time_ms / 1000, within_s, node_id)
            if best is None or found.within_s < best.within_s:
                best = found
    if best is None:
        raise KafkaError("the clock was not asked for")
    return best
