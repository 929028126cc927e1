"""How many bytes partitions have on disk, as their leaders say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToLeader
from sparkkafka.client.cluster.requests import ApiHandler, Row, call_all
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, by_topic
from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import DescribableLogDirTopic, DescribeLogDirsRequest


class _PartitionSizes(ApiHandler[TopicPartition, int]):
    request_type = DescribeLogDirsRequest

    def build(self, items: Sequence[TopicPartition], version: int) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=name, partitions=numbers)
                for name, numbers in by_topic(items).items()
            ]
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        if not response.results:
            # Before version 3 there is no field for it: a refusal shows no directory at all.
            return [(tp, Row(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)) for tp in items]
        # A leader without the partition: its disk failed, or it leads no longer.
        codes = [row.error_code for row in response.results if row.error_code]
        absent = Row(codes[0] if codes else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return [
            *dict.fromkeys(items, absent).items(),
            *(
                (TopicPartition(topic.name, row.partition_index), Row(0, row.partition_size))
                for result in response.results
                for topic in result.topics
                for row in topic.partitions
                if not row.is_future_key  # a copy on its way to another directory
            ),
        ]

    def grant(self, item: TopicPartition) -> str:
        return "DESCRIBE on the cluster (an ACL of the resource Cluster): sizes need it"


def partition_sizes(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """Bytes of each partition's log segments on its leader's disk, as compressed as they lie there.

    Raises BrokerError (CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster),
    KafkaTimeoutError (with the last failure) at the deadline.
    """
    what = "asking for the sizes of partitions"
    return call_all(cluster, partitions, _PartitionSizes(), ToLeader(cluster), deadline, what)
