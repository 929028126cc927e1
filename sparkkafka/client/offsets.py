"""Offsets of partitions: earliest, latest, by timestamp. No Spark types.

All leaders are asked at once; partitions whose leader moved are asked again at the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, UnsupportedVersionError
from sparkkafka.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

logger = logging.getLogger(__name__)

# Timestamps with a meaning of their own (ListOffsetsRequest in Kafka's protocol guide).
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3  # KIP-734, Kafka 3.0
EARLIEST_LOCAL = -4  # KIP-405
LATEST_TIERED = -5  # KIP-1005
NO_OFFSET = -1

CONSUMER_REPLICA_ID = -1
MAX_TIMESTAMP_VERSION = 7

# A broker without the version would take the number for a time.
_NEEDS = {
    MAX_TIMESTAMP: (MAX_TIMESTAMP_VERSION, "Kafka 3.0 (KIP-734)"),
    EARLIEST_LOCAL: (8, "Kafka 3.6 (KIP-405)"),
    LATEST_TIERED: (9, "Kafka 3.9 (KIP-1005)"),
}
ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}


class ListedOffset(NamedTuple):
    """`offset` is NO_OFFSET if no record has the wanted timestamp or a later one.

    `timestamp_ms` is that record's, -1 for earliest and latest; `leader_epoch` -1 if not known.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int


def lacking(timestamp_ms: int, version: int) -> str | None:
    """Why a broker with this version of ListOffsets cannot be asked for this; None if it can."""
    least, kafka = _NEEDS.get(timestamp_ms, (0, ""))
    return f"this kind of offset needs {kafka}" if version < least else None


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: str = "read_uncommitted",
    deadline: Deadline | None = None,
    version: int | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """For each partition, the offset at `wanted[partition]`: LATEST, EARLIEST, or epoch ms.

    With read_committed, LATEST is the last stable offset. `version` asks for one version of the
    request; a broker without it is UnsupportedVersionError. Raises BrokerError naming the partition
    for what a retry cannot mend, KafkaTimeoutError (with the last failure) at the deadline.
    """
    deadline = deadline or cluster.deadline()
    found: dict[TopicPartition, ListedOffset] = {}
    pending = dict(wanted)
    retry = cluster.retry(deadline, "listing offsets")
    while pending:
        failure: KafkaError | None = None
        try:
            by_leader = leaders_of(cluster, pending, deadline)
        except KafkaError as error:
            retry.after(error)
            continue
        requests = {
            node_id: _request(pending, epochs, ISOLATION_LEVELS[isolation_level])
            for node_id, epochs in by_leader.items()
        }
        for node_id, response in cluster.call_each(requests, deadline, version=version).items():
            if isinstance(response, KafkaError):
                # The leader may have moved off a dead broker: ask for the metadata again.
                for tp in by_leader[node_id]:
                    cluster.forget(tp.topic)
                failure = response
                continue
            for topic in response.topics:
                for row in topic.partitions:
                    tp = TopicPartition(topic.name, row.partition_index)
                    if tp not in pending:
                        continue
                    if not row.error_code:
                        found[tp] = ListedOffset(row.offset, row.timestamp, row.leader_epoch)
                        del pending[tp]
                        continue
                    cluster.note_error(tp, row.error_code)
                    failure = BrokerError(
                        row.error_code, f"ListOffsets of {tp} @ {cluster.brokers.get(node_id)}"
                    )
                    if not failure.retriable:
                        raise failure
        if pending:
            retry.after(
                failure
                or BrokerError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    "ListOffsets",
                    f"the brokers left out {', '.join(map(str, list(pending)[:5]))}",
                )
            )
    return found


def earliest_and_latest(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    isolation_level: str = "read_uncommitted",
    deadline: Deadline | None = None,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first and the end offset of each partition."""
    deadline = deadline or cluster.deadline()
    chosen = list(partitions)
    first, end = (
        {
            tp: row.offset
            for tp, row in list_offsets(
                cluster,
                dict.fromkeys(chosen, spec),
                isolation_level=isolation_level,
                deadline=deadline,
            ).items()
        }
        for spec in (EARLIEST, LATEST)
    )
    return first, end


def largest_timestamps(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """The largest timestamp in each partition, in ms, of all records that its log holds or held.

    Empty if a broker cannot tell. (Before Kafka 3.0 it would take the question for a time.)
    """
    wanted = dict.fromkeys(partitions, MAX_TIMESTAMP)
    try:
        found = list_offsets(cluster, wanted, deadline=deadline, version=MAX_TIMESTAMP_VERSION)
    except (UnsupportedVersionError, BrokerError) as error:
        logger.info("largest timestamps are not known: %s", error)
        return {}
    return {tp: row.timestamp_ms for tp, row in found.items() if row.offset != NO_OFFSET}


def leaders_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline
) -> dict[int, dict[TopicPartition, int]]:
    """{node id: {partition: leader epoch}}; one metadata request for all topics."""
    partitions = list(partitions)
    missing = {tp.topic for tp in partitions if cluster.known_leader(tp) is None}
    if missing:
        cluster.topics(sorted(missing), deadline)
    groups: dict[int, dict[TopicPartition, int]] = {}
    for tp in partitions:
        leader = cluster.known_leader(tp) or cluster.leader(tp, deadline)
        groups.setdefault(leader.leader, {})[tp] = leader.leader_epoch
    return groups


def _request(
    wanted: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int], isolation: int
) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for tp, leader_epoch in epochs.items():
        topics.setdefault(tp.topic, []).append(
            ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=leader_epoch,
                timestamp=wanted[tp],
            )
        )
    return ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
    )
