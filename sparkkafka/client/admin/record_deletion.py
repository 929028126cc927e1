"""Deleting the oldest records of partitions (DeleteRecords, KIP-107)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.arguments import mapping, partition, whole
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToLeader
from sparkkafka.client.cluster.offsets import OffsetSpec, list_offsets_each
from sparkkafka.client.cluster.requests import ApiHandler, Row, call_each
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, by_topic
from sparkkafka.errors import KafkaError
from sparkkafka.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

HIGH_WATERMARK = -1
"""Delete everything that all replicas in sync have."""


class _DeleteRecords(ApiHandler[TopicPartition, int]):
    request_type = DeleteRecordsRequest

    def __init__(self, before: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        self._before = before
        self._timeout_ms = timeout_ms

    def build(self, items: Sequence[TopicPartition], version: int) -> DeleteRecordsRequest:
        before = self._before
        return DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=number, offset=before[TopicPartition(name, number)]
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(items).items()
            ],
            timeout_ms=self._timeout_ms,
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        return [
            (
                TopicPartition(topic.name, row.partition_index),
                Row(row.error_code, row.low_watermark),
            )
            for topic in response.topics
            for row in topic.partitions
        ]

    def name(self, item: TopicPartition) -> str:
        return f"{item} before offset {self._before[item]}"

    def grant(self, item: TopicPartition) -> str:
        return f"DELETE on topic {item.topic}"


def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], deadline: Deadline
) -> Results[TopicPartition, int]:
    """Delete the records before an offset in each partition; the value is the first that is left.

    HIGH_WATERMARK is looked up first: the request is repeated if its answer is lost, and records
    that were written meanwhile must not go as well.
    """
    wanted = {
        (key := partition(tp, "before")): whole(offset, f"before of {key}: the offset")
        for tp, offset in mapping(before, "before", 'TopicPartition("orders", 0): 100').items()
    }
    ends = list_offsets_each(
        cluster,
        {tp: OffsetSpec.latest() for tp, offset in wanted.items() if offset == HIGH_WATERMARK},
        deadline,
    )
    errors = ends.errors
    wanted |= {tp: row.offset for tp, row in ends.values_by_item.items()}
    able = [tp for tp in wanted if tp not in errors]
    timeout_ms = int(min(cluster.options.request_timeout_ms, deadline.remaining_s() * 1000))
    api = _DeleteRecords(wanted, timeout_ms)
    done = call_each(cluster, able, api, ToLeader(cluster), deadline, "deleting records")
    outcome: dict[TopicPartition, int | KafkaError] = {
        tp: errors.get(tp) or done.errors.get(tp) or done[tp] for tp in wanted
    }
    return Results(outcome)
