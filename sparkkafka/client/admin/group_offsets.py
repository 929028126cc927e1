"""Committed offsets of a group from outside, with an error for each partition.

`group.committed_offsets` has the handlers, and the same for those who need all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.arguments import flag, mapping, offset_to_commit, one_name, partition
from sparkkafka.client.arguments import partitions as partition_list
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import FOR_GROUP, ToCoordinator
from sparkkafka.client.cluster.request_driver import Row, call_each
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import (
    CommitOffsets,
    FetchAllOffsets,
    FetchOffsets,
    OffsetsHandler,
    coordinator_of,
    partition_rows,
)
from sparkkafka.client.values import OffsetAndMetadata, Results, TopicPartition, by_topic
from sparkkafka.errors import ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


def list_consumer_group_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    deadline: Deadline,
    *,
    require_stable: bool = False,
) -> Results[TopicPartition, OffsetAndMetadata | None]:
    """The offset of each partition, None if the group has none; without `partitions`, all offsets.

    `require_stable` waits for open transactions that are about to change them (Kafka 2.5). Raises
    KafkaError if all are asked for and the group's cannot be told.
    """
    one_name(group_id, "group_id")
    flag(require_stable, "require_stable")
    found: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    if partitions is None:
        handler, lookup = FetchAllOffsets(require_stable), ToCoordinator(cluster, FOR_GROUP)
        what = f"looking up the offsets of group {group_id!r}"
        rows = call_each(cluster, [group_id], handler, lookup, deadline, what)[group_id]
        found = {tp: row.value for tp, row in rows.items() if not row.code and row.value}
        # Errors of single partitions are asked for again by name: some of them pass.
        wanted = [tp for tp, row in rows.items() if row.code]
    else:
        wanted = partition_list(partitions, "partitions")
    results = _of_partitions(
        cluster, wanted, FetchOffsets(group_id, require_stable), deadline, "looking up the offsets"
    )
    return Results(found | results.errors | results.values_by_item)


def alter_consumer_group_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    deadline: Deadline,
) -> Results[TopicPartition, None]:
    """Set the offsets of a group that has no members at the moment.

    Raises OptionError for a negative offset.
    """
    one_name(group_id, "group_id")
    wanted = {}
    for key, row in mapping(offsets, "offsets", 'TopicPartition("orders", 0): 100').items():
        tp = partition(key, "offsets")
        wanted[tp] = offset_to_commit(tp, row, "offsets")
    return _of_partitions(
        cluster, wanted, CommitOffsets(group_id, wanted), deadline, "setting the offsets"
    )


class _Delete(OffsetsHandler):
    request_type = OffsetDeleteRequest
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def build(self, items: Sequence[TopicPartition], version: int) -> OffsetDeleteRequest:
        return OffsetDeleteRequest(
            group_id=self.group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=number) for number in numbers
                    ],
                )
                for name, numbers in by_topic(items).items()
            ],
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        return partition_rows(response)

    def grant(self, item: TopicPartition) -> str:
        return f"DELETE on group {self.group_id} and READ on topic {item.topic}"

    def done_before(self, item: TopicPartition, code: int) -> bool:
        # A group goes with its last offset.
        return code == ErrorCode.GROUP_ID_NOT_FOUND


def delete_consumer_group_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], deadline: Deadline
) -> Results[TopicPartition, None]:
    """Delete a group's offsets of partitions; of a topic that members subscribe to it cannot be."""
    one_name(group_id, "group_id")
    wanted = partition_list(partitions, "partitions")
    return _of_partitions(cluster, wanted, _Delete(group_id), deadline, "deleting offsets")


def _of_partitions(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    handler: OffsetsHandler,
    deadline: Deadline,
    doing: str,
) -> Results[TopicPartition, Any]:
    what = f"{doing} of group {handler.group_id!r}"
    lookup = coordinator_of(cluster, handler.group_id)
    return call_each(cluster, partitions, handler, lookup, deadline, what)
