"""Where logs end, for brokers whose ListOffsets says less than their Fetch.

In Kafka the latest offset of ListOffsets is the high watermark, or with read_committed the last
stable offset, and Fetch answers have the same. A broker of other make may give an offset inside the
last batch (Tansu 0.6: the batch's first offset plus 1), so a read that ends there leaves out the
rest of the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToLeader
from sparkkafka.client.cluster.offsets import list_offsets
from sparkkafka.client.cluster.request_driver import ApiHandler, Row, call_once
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.constants import (
    CONSUMER_REPLICA_ID,
    ISOLATION_LEVELS,
    LATEST,
    NO_SESSION_EPOCH,
)
from sparkkafka.protocol.messages import FetchPartition, FetchRequest, FetchTopic

log = logging.getLogger(__name__)


class _FetchEnds(ApiHandler[TopicPartition, int]):
    """A Fetch from the end on: no records are there, and the answer says where the log ends."""

    request_type = FetchRequest

    def __init__(
        self, cluster: Cluster, offsets: Mapping[TopicPartition, int], isolation_level: str
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._isolation_level = ISOLATION_LEVELS[isolation_level]

    def build(self, items: Sequence[TopicPartition], version: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for tp in items:
            leader = self._cluster.known_leader(tp)
            topics.setdefault(tp.topic, []).append(
                FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=-1 if leader is None else leader.leader_epoch,
                    fetch_offset=self._offsets[tp],
                    partition_max_bytes=1,
                )
            )
        return FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            isolation_level=self._isolation_level,
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=name, partitions=rows) for name, rows in topics.items()],
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        for topic in response.responses:
            for row in topic.partitions:
                end = row.last_stable_offset if self._isolation_level else row.high_watermark
                code = response.error_code or row.error_code
                yield TopicPartition(topic.topic, row.partition_index), Row(code, end)


def confirmed_ends(
    cluster: Cluster,
    latest: Mapping[TopicPartition, int],
    *,
    isolation_level: str,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int]:
    """The ends `latest` of ListOffsets, or those of the leaders' Fetch answers where these are
    later. Takes one request more to each leader.

    The first time that ListOffsets was wrong is logged as a warning, and `cluster.lists_short_ends`
    is set. A partition that cannot be fetched keeps its end. Raises as `list_offsets`.
    """
    if not latest:
        return {}
    deadline = deadline or cluster.deadline()
    handler = _FetchEnds(cluster, latest, isolation_level)
    fetched = call_once(cluster, list(latest), handler, ToLeader(cluster), deadline)
    later = {tp: end for tp, end in fetched.values_by_item.items() if end > latest[tp]}
    if not later:
        return dict(latest)
    # Records may have been appended between the two requests. Then ListOffsets knows them now.
    listed = list_offsets(
        cluster, dict.fromkeys(later, LATEST), isolation_level=isolation_level, deadline=deadline
    )
    for tp, end in later.items():
        if listed[tp].offset < end and not cluster.lists_short_ends:
            cluster.lists_short_ends = True
            broker = cluster.brokers.get(cluster.leader(tp, deadline).leader, "the broker")
            log.warning(
                "%s: %s says in ListOffsets that the log ends at offset %d, and in Fetch that it "
                "ends at %d. The latter is taken, here and for other partitions, so that no record "
                "of the last batch is left out; brokers of Kafka say the same in both",
                tp,
                broker,
                listed[tp].offset,
                end,
            )
    return {**latest, **{tp: max(end, listed[tp].offset) for tp, end in later.items()}}
