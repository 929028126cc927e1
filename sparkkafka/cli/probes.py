"""Requests by which `check` learns what a user may do, and what the cluster's clock says.

Brokers check ACLs before the rest of a request. So these requests name a member and a producer that
cannot exist: they change nothing, and the error says whether the ACLs allow them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.client.cluster import request_driver
from sparkkafka.errors import ErrorCode, KafkaError
from sparkkafka.protocol import messages


class _Probe(request_driver.ApiHandler[str, None]):
    """A request about one group or transactional id that changes nothing.

    `expected_codes` are the errors that only a user with the needed ACLs gets.
    """

    coordinator_type: ClassVar[int]
    purpose: ClassVar[str]
    expected_codes: ClassVar[tuple[ErrorCode, ...]]

    def split(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        return [[item] for item in items]

    def read(self, response: Any, items: Sequence[str]) -> request_driver.Outcomes[str]:
        return [(items[0], request_driver.Outcome(response.error_code))]

    def refusal(self, admin: BoundedAdmin, name: str) -> KafkaError | None:
        """Send the request about `name`. Return why this user may not use it, and what to grant;
        None if the user may."""
        with admin.cluster_and_deadline() as (cluster, deadline):
            route = request_driver.ToCoordinator(cluster, self.coordinator_type)
            results = request_driver.call_each(cluster, [name], self, route, deadline, self.purpose)
        error = results.errors.get(name)
        return None if error is not None and error.code in self.expected_codes else error


class _ReadGroup(_Probe):
    """READ on a group: a heartbeat of a member that the group does not have."""

    request_type = messages.HeartbeatRequest
    name_format = "group {!r}"
    acl = "READ on group {}"
    coordinator_type = request_driver.FOR_GROUP
    purpose = "asking for a group"
    expected_codes = (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_ID_NOT_FOUND,
        # A group with the consumer protocol (KIP-848) takes no heartbeats of this kind.
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNSUPPORTED_VERSION,
    )

    def build(self, items: Sequence[str], version: int) -> messages.HeartbeatRequest:
        return messages.HeartbeatRequest(
            group_id=items[0], generation_id=-1, member_id="sparkkafka-check"
        )


class _WriteTransactions(_Probe):
    """WRITE on a transactional id: aborts a transaction of a producer id that cannot exist."""

    request_type = messages.EndTxnRequest
    name_format = "transactional id {!r}"
    acl = "WRITE on transactional id {}"
    version = 1  # transactions V2 would change nothing here
    coordinator_type = request_driver.FOR_TRANSACTION
    purpose = "asking for a transactional id"
    expected_codes = (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
    )

    def build(self, items: Sequence[str], version: int) -> messages.EndTxnRequest:
        return messages.EndTxnRequest(
            transactional_id=items[0], producer_id=-1, producer_epoch=-1, committed=False
        )


def refusal_to_read(admin: BoundedAdmin, group: str) -> KafkaError | None:
    """Return why this user may not read with the group, and what to grant; None if the user may."""
    return _ReadGroup().refusal(admin, group)


def refusal_to_write(admin: BoundedAdmin, transactional_id: str) -> KafkaError | None:
    """Return why this user may not write with the transactional id, and what to grant; None if the
    user may."""
    return _WriteTransactions().refusal(admin, transactional_id)


# --- the cluster's clock ------------------------------------------------------------------------


class Clock(NamedTuple):
    """How far this machine's clock is ahead of the active controller's (negative: behind), exact to
    `within_s`, half the time of the request."""

    ahead_s: float
    within_s: float
    controller_id: int


class _ControllerTime(request_driver.ApiHandler[str, tuple[int, int]]):
    """(node id, ms since 1970) of the active controller, from its entry among the voters: it says
    when the controller last caught up with itself, which is now."""

    request_type: ClassVar[Any] = messages.DescribeQuorumRequest
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[str], version: int) -> messages.DescribeQuorumRequest:
        topic = messages.QuorumTopic(
            topic_name="__cluster_metadata", partitions=[messages.QuorumPartition()]
        )
        return messages.DescribeQuorumRequest(topics=[topic])

    def unsupported_reason(self, item: str, version: int) -> str | None:
        return self.needs("the controller's time", 1) if version < 1 else None

    def read(self, response: Any, items: Sequence[str]) -> request_driver.Outcomes[str]:
        if response.error_code:
            return [(items[0], request_driver.Outcome(response.error_code))]
        for topic in response.topics:
            for row in topic.partitions:
                times_ms = (
                    voter.last_caught_up_timestamp
                    for voter in row.current_voters
                    if voter.replica_id == row.leader_id
                )
                time_ms = next(times_ms, -1)
                code = row.error_code or (0 if time_ms >= 0 else ErrorCode.LEADER_NOT_AVAILABLE)
                return [(items[0], request_driver.Outcome(code, (row.leader_id, time_ms)))]
        return [(items[0], request_driver.Outcome(ErrorCode.LEADER_NOT_AVAILABLE))]


def compare_clocks(admin: BoundedAdmin) -> Clock:
    """Compare this machine's clock with the active controller's.

    Raises UnsupportedVersionError for a cluster with ZooKeeper or before Kafka 3.3, BrokerError
    without DESCRIBE on the cluster.
    """
    measured = []
    with admin.cluster_and_deadline() as (cluster, deadline):
        for _ in range(2):  # the first request may have to connect
            before_s = time.time()
            results = request_driver.call_each(
                cluster,
                ["clock"],
                _ControllerTime(),
                request_driver.ToAny(),
                deadline,
                "asking the time",
            )
            after_s = time.time()
            node_id, time_ms = results["clock"]
            ahead_s = (before_s + after_s) / 2 - time_ms / 1000
            measured.append(Clock(ahead_s, (after_s - before_s) / 2, node_id))
    return min(measured, key=lambda clock: clock.within_s)
