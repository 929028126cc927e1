"""Committed offsets of a group from outside, with an error for each partition.

`groups` has the same for those who need all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.arguments import flag, mapping, offset_to_commit, one_name, partition
from sparkkafka.client.arguments import partitions as partition_list
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.coordinator import FOR_GROUP, ToCoordinator
from sparkkafka.client.cluster.requests import ApiHandler, Row, call_each
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import (
    GROUPS_VERSION,
    NO_GENERATION,
    NO_MEMBER,
    NO_OFFSET,
    REQUIRE_STABLE_VERSION,
    StoredOffset,
    offsets_in_parts,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

_HAS_MEMBERS = (
    "the group has active consumers, and only they may commit: stop them first, or wait until the "
    "session timeout of those that died has passed"
)
_SUBSCRIBED = (
    "members of the group subscribe to the topic: their offsets cannot be deleted while they do"
)
_NO_GROUP = "there is no such group"
_WORDS: Mapping[int, str] = {
    **dict.fromkeys(
        (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.STALE_MEMBER_EPOCH,
            ErrorCode.NON_EMPTY_GROUP,
        ),
        _HAS_MEMBERS,
    ),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: _SUBSCRIBED,
    ErrorCode.GROUP_ID_NOT_FOUND: _NO_GROUP,
}


def _row(code: int, value: Any = None) -> Row:
    return Row(code, value, _WORDS.get(code))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics


class _OfGroup(ApiHandler[TopicPartition, Any]):
    """Something about a group's offsets of partitions."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    def name(self, item: TopicPartition) -> str:
        return f"{item} of group {self.group_id!r}"


# --- looking up -------------------------------------------------------------------------------


def _fetch_request(
    group_id: str, topics: Mapping[str, list[int]] | None, stable: bool, version: int
) -> OffsetFetchRequest:
    if version >= GROUPS_VERSION:
        wanted = None
        if topics is not None:
            wanted = [
                OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                for name, numbers in topics.items()
            ]
        group = OffsetFetchRequestGroup(group_id=group_id, topics=wanted)
        return OffsetFetchRequest(groups=[group], require_stable=stable)
    rows = None
    if topics is not None:
        rows = [
            OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ]
    return OffsetFetchRequest(group_id=group_id, topics=rows, require_stable=stable)


def _fetched(response: Any) -> tuple[int, dict[TopicPartition, Row]]:
    """The error of the group, and what is said of partitions."""
    group = response.groups[0] if response.groups else response
    return group.error_code, {
        TopicPartition(topic.name, row.partition_index): _row(row.error_code, _offset(row))
        for topic in group.topics
        for row in topic.partitions
    }


def _offset(row: Any) -> OffsetAndMetadata | None:
    if row.committed_offset == NO_OFFSET:
        return None
    epoch = row.committed_leader_epoch
    return OffsetAndMetadata(
        row.committed_offset, row.metadata or "", epoch if epoch >= 0 else None
    )


def _lacks_stable(api: ApiHandler[Any, Any], stable: bool, version: int) -> str | None:
    lacks = stable and version < REQUIRE_STABLE_VERSION
    return api.needs("require_stable", REQUIRE_STABLE_VERSION) if lacks else None


class _Fetch(_OfGroup):
    request_type = OffsetFetchRequest

    def __init__(self, group_id: str, stable: bool) -> None:
        super().__init__(group_id)
        self._stable = stable

    def build(self, items: Sequence[TopicPartition], version: int) -> OffsetFetchRequest:
        return _fetch_request(self.group_id, _by_topic(items), self._stable, version)

    def lacking(self, item: TopicPartition, version: int) -> str | None:
        return _lacks_stable(self, self._stable, version)

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        code, rows = _fetched(response)
        return [(tp, _row(code)) for tp in items] if code else rows.items()

    def grant(self, item: TopicPartition) -> str:
        return f"DESCRIBE on group {self.group_id} and on topic {item.topic}"


class _FetchAll(ApiHandler[str, dict[TopicPartition, Row]]):
    """All offsets of a group; the item is the group."""

    request_type = OffsetFetchRequest

    def __init__(self, stable: bool) -> None:
        self._stable = stable

    def build(self, items: Sequence[str], version: int) -> OffsetFetchRequest:
        (group_id,) = items
        return _fetch_request(group_id, None, self._stable, version)

    def lacking(self, item: str, version: int) -> str | None:
        return _lacks_stable(self, self._stable, version)

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        code, rows = _fetched(response)
        return [(item, Row(code, rows, _WORDS.get(code))) for item in items]

    def name(self, item: str) -> str:
        return f"group {item!r}"

    def grant(self, item: str) -> str:
        return f"DESCRIBE on group {item}"


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
        api = _FetchAll(require_stable)
        route: Any = ToCoordinator(cluster, FOR_GROUP)
        what = f"looking up the offsets of group {group_id!r}"
        rows = call_each(cluster, [group_id], api, route, deadline, what)[group_id]
        found = {tp: row.value for tp, row in rows.items() if not row.code and row.value}
        # Errors of single partitions are asked for again by name: some of them pass.
        wanted = [tp for tp, row in rows.items() if row.code]
    else:
        wanted = partition_list(partitions, "partitions")
    results = _of_partitions(
        cluster, wanted, _Fetch(group_id, require_stable), deadline, "looking up the offsets"
    )
    return Results(found | results.errors | results.values_by_item)


# --- changing ---------------------------------------------------------------------------------


class _Commit(_OfGroup):
    request_type = OffsetCommitRequest

    def __init__(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        super().__init__(group_id)
        self._offsets = offsets

    def build(self, items: Sequence[TopicPartition], version: int) -> OffsetCommitRequest:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp in items:
            offset, metadata, epoch = self._offsets[tp]
            topics.setdefault(tp.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1 if epoch is None else epoch,
                    committed_metadata=metadata,
                )
            )
        return OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=NO_GENERATION,
            member_id=NO_MEMBER,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=rows)
                for name, rows in topics.items()
            ],
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        return _partition_rows(response)

    def grant(self, item: TopicPartition) -> str:
        return f"READ on group {self.group_id} and on topic {item.topic}"


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
    api = _Commit(group_id, wanted)
    sizes = {tp: StoredOffset(row.offset, row.metadata) for tp, row in wanted.items()}
    outcome: dict[TopicPartition, KafkaError | None] = {}
    for part in offsets_in_parts(group_id, sizes):
        results = _of_partitions(cluster, part, api, deadline, "setting the offsets")
        outcome |= results.values_by_item | results.errors
    return Results({tp: outcome[tp] for tp in wanted})


class _Delete(_OfGroup):
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
                for name, numbers in _by_topic(items).items()
            ],
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        return _partition_rows(response)

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


def _partition_rows(response: Any) -> list[tuple[TopicPartition, Row]]:
    return [
        (TopicPartition(topic.name, row.partition_index), _row(row.error_code))
        for topic in response.topics
        for row in topic.partitions
    ]


def _of_partitions(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    api: _OfGroup,
    deadline: Deadline,
    doing: str,
) -> Results[TopicPartition, Any]:
    route = ToCoordinator(cluster, FOR_GROUP, lambda _: api.group_id)
    what = f"{doing} of group {api.group_id!r}"
    return call_each(cluster, partitions, api, route, deadline, what)
