"""What changes partitions: adding some to a topic, deleting the oldest records (KIP-107)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sparkkafka.client.admin.topics import LOOK_AGAIN_MS, after, broker_timeout_ms, wait_for_leaders
from sparkkafka.client.arguments import flag, mapping, numbers, one_name, partition, whole
from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from sparkkafka.client.cluster.lookups import ToController, ToLeader
from sparkkafka.client.cluster.offsets import OffsetSpec, list_offsets_each
from sparkkafka.client.cluster.request_driver import ApiHandler, Row, call_each
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Results, TopicPartition, by_partition, by_topic
from sparkkafka.errors import ErrorCode, KafkaError, OptionError
from sparkkafka.protocol.messages import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

HIGH_WATERMARK = -1
"""Delete everything that all replicas in sync have."""


class NewPartitions(NamedTuple):
    """How many partitions a topic shall have in all. `assignments` may give the brokers of each
    new one, the preferred leader first."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


class _Grow(ApiHandler[str, None]):
    request_type = CreatePartitionsRequest
    named = "topic {}"
    acl = "ALTER on topic {}"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[str, NewPartitions],
        deadline: Deadline,
        validate_only: bool,
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._deadline = deadline
        self._validate_only = validate_only

    def build(self, items: Sequence[str], version: int) -> CreatePartitionsRequest:
        return CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name, count=row.total, assignments=_new_assignments(row.assignments)
                )
                for name, row in ((name, self._wanted[name]) for name in items)
            ],
            timeout_ms=broker_timeout_ms(self._cluster, self._deadline),
            validate_only=self._validate_only,
        )

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        return [
            (row.name, Row(row.error_code, None, row.error_message)) for row in response.results
        ]

    def done_before(self, item: str, code: int) -> bool:
        """INVALID_PARTITIONS because an earlier attempt succeeded: the count is the wanted one."""
        if code != ErrorCode.INVALID_PARTITIONS:
            return False
        total = self._wanted[item].total
        grace = self._deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)
        while True:
            self._cluster.look_up([item], grace)
            count = self._cluster.partition_count(item) or 0
            if count >= total or grace.expired:
                return count == total
            grace.pause(LOOK_AGAIN_MS)


def _new_assignments(
    rows: Sequence[Sequence[int]] | None,
) -> list[CreatePartitionsAssignment] | None:
    if rows is None:
        return None
    return [CreatePartitionsAssignment(broker_ids=list(row)) for row in rows]


def create_partitions(
    cluster: Cluster,
    totals: Mapping[str, int | NewPartitions],
    deadline: Deadline,
    *,
    validate_only: bool = False,
) -> Results[str, None]:
    """Give topics more partitions, and wait until all have leaders."""
    flag(validate_only, "validate_only")
    wanted = {
        topic: row if isinstance(row, NewPartitions) else NewPartitions(row)
        for topic, row in mapping(totals, "totals", '"orders": 6').items()
    }
    for topic, row in wanted.items():
        one_name(topic, "each key of totals")
        whole(row.total, f"topic {topic}: the total of partitions (totals)")
        if row.assignments is not None:
            what = f"topic {topic}: assignments"
            if isinstance(row.assignments, str | bytes) or not isinstance(
                row.assignments, Sequence
            ):
                raise OptionError(f"{what} is a list of lists of node ids, got {row.assignments!r}")
            for brokers in row.assignments:
                numbers(brokers, f"each row of {what}")
    api = _Grow(cluster, wanted, deadline, validate_only)
    results = call_each(cluster, wanted, api, ToController(cluster), deadline, "growing topics")
    if validate_only:
        return results
    counts = {name: wanted[name].total for name in results.values_by_item}
    return after(results, wait_for_leaders(cluster, counts, deadline))


class _DeleteRecords(ApiHandler[TopicPartition, int]):
    request_type = DeleteRecordsRequest
    acl = "DELETE on topic {0.topic}"

    def __init__(self, before: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        self._before = before
        self._timeout_ms = timeout_ms

    def build(self, items: Sequence[TopicPartition], version: int) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        DeleteRecordsPartition(
                            partition_index=number,
                            offset=self._before[TopicPartition(name, number)],
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
            (tp, Row(row.error_code, row.low_watermark))
            for tp, row in by_partition(response.topics)
        ]

    def name(self, item: TopicPartition) -> str:
        return f"{item} before offset {self._before[item]}"


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
    api = _DeleteRecords(wanted, broker_timeout_ms(cluster, deadline))
    done = call_each(cluster, able, api, ToLeader(cluster), deadline, "deleting records")
    outcome: dict[TopicPartition, int | KafkaError] = {
        tp: errors.get(tp) or done.errors.get(tp) or done[tp] for tp in wanted
    }
    return Results(outcome)
