"""Offsets of partitions: earliest, latest, by timestamp. No Spark types.

All leaders are asked at once; partitions whose leader moved are asked again at the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, UnsupportedVersionError
from sparkkafka.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

log = logging.getLogger(__name__)

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


class OffsetRange(NamedTuple):
    """What a partition has: `earliest` is the first offset, `latest` the one behind the last."""

    earliest: int
    latest: int


_Question: TypeAlias = tuple[TopicPartition, int]
"""A partition, and the time that its leader is asked for."""


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
    found = _list_all(cluster, wanted.items(), isolation_level, deadline, version)
    return {tp: row for (tp, _), row in found.items()}


def _list_all(
    cluster: Cluster,
    questions: Iterable[_Question],
    isolation_level: str,
    deadline: Deadline | None,
    version: int | None = None,
) -> dict[_Question, ListedOffset]:
    """As `list_offsets`, of a partition more than once if need be."""
    deadline = deadline or cluster.deadline()
    found: dict[_Question, ListedOffset] = {}
    pending = dict.fromkeys(questions)
    retry = cluster.retry(deadline, "listing offsets")
    while pending:
        failure: KafkaError | None = None
        try:
            by_leader = leaders_of(cluster, dict.fromkeys(tp for tp, _ in pending), deadline)
        except KafkaError as error:
            retry.after(error)
            continue
        asked = [
            (node_id, turn)
            for node_id, epochs in by_leader.items()
            for turn in _turns(pending, epochs)
        ]
        requests = [
            (node_id, _request(turn, by_leader[node_id], ISOLATION_LEVELS[isolation_level]))
            for node_id, turn in asked
        ]
        answers = cluster.call_all(requests, deadline, version=version)
        for (node_id, turn), response in zip(asked, answers, strict=True):
            if isinstance(response, KafkaError):
                # The leader may have moved off a dead broker: ask for the metadata again.
                for tp in turn:
                    cluster.forget(tp.topic)
                failure = response
                continue
            for topic in response.topics:
                for row in topic.partitions:
                    tp = TopicPartition(topic.name, row.partition_index)
                    if tp not in turn or (tp, turn[tp]) not in pending:
                        continue
                    if not row.error_code:
                        question = tp, turn[tp]
                        found[question] = ListedOffset(row.offset, row.timestamp, row.leader_epoch)
                        del pending[question]
                        continue
                    cluster.note_error(tp, row.error_code)
                    failure = BrokerError(
                        row.error_code, f"ListOffsets of {tp} @ {cluster.brokers.get(node_id)}"
                    )
                    if not failure.retriable:
                        raise failure
        if pending:
            left = list(dict.fromkeys(str(tp) for tp, _ in pending))
            retry.after(
                failure
                or BrokerError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    "ListOffsets",
                    f"the brokers left out {', '.join(left[:5])}",
                )
            )
    return found


def _turns(
    questions: Iterable[_Question], partitions: Container[TopicPartition]
) -> list[dict[TopicPartition, int]]:
    """Those of a leader, in as many requests as there are of one partition: brokers refuse a
    request that has it twice."""
    turns: list[dict[TopicPartition, int]] = []
    for tp, time_ms in questions:
        if tp in partitions:
            turn = next((one for one in turns if tp not in one), None)
            if turn is None:
                turns.append(turn := {})
            turn[tp] = time_ms
    return turns


def earliest_and_latest(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    isolation_level: str = "read_uncommitted",
    deadline: Deadline | None = None,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first and the end offset of each partition: two requests to each leader, both under way
    at once."""
    chosen = list(partitions)
    questions = [(tp, which) for which in (EARLIEST, LATEST) for tp in chosen]
    found = _list_all(cluster, questions, isolation_level, deadline)
    first, end = ({tp: found[tp, which].offset for tp in chosen} for which in (EARLIEST, LATEST))
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
        log.info("largest timestamps are not known: %s", error)
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
    for tp, time_ms in wanted.items():
        topics.setdefault(tp.topic, []).append(
            ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=epochs[tp],
                timestamp=time_ms,
            )
        )
    return ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
    )
