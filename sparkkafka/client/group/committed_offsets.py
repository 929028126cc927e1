"""Offsets of a consumer group: reads and commits them, as a member or not.

Kafka keeps offsets for any group name. Any client may commit offsets of a group without members
(generation -1, member ""); if a group has members, only they may. The coordinator refuses the
commit of a former member, whose partitions other members may own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_GROUP,
    ApiHandler,
    Nodes,
    Outcome,
    Outcomes,
    ToCoordinator,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import (
    OffsetAndMetadata,
    Results,
    TopicPartition,
    by_partition,
    by_topic,
    some_partitions,
)
from sparkkafka.protocol import messages
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID, NO_OFFSET
from sparkkafka.protocol.wire.primitives import NULL_UUID

TopicIds: TypeAlias = Mapping[TopicPartition, bytes]
"""The ids of the topics to which offsets belong, as far as they are known."""

NewOffsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
"""The offsets of a commit, each with its metadata and leader epoch."""

Committer: TypeAlias = Callable[[Cluster, NewOffsets, Deadline], None]
"""Commits offsets as the member for which it was made, over connections of the given cluster.

Raises CommitFailedError if the group has removed the member or began a rebalance, UnknownTopicError
for a topic that does not exist or was recreated, BrokerError for other refusals, KafkaTimeoutError
with the last failure. In the last three cases some of the offsets may be committed."""

REQUIRE_STABLE_VERSION = 7
"""From this version on OffsetFetch has require_stable."""

GROUPS_VERSION = 8
"""From this version on OffsetFetch has a list of groups."""

MAX_ID_AGE_S = 1.0
"""The age up to which metadata shows that a commit by name is one to the topic that was read."""

MAX_COMMIT_BYTES = 512_000
"""A broker writes the offsets of one request as one batch, and refuses a batch above its
message.max.bytes (1 MB), 4.x without a reason. Larger commits are split into several requests."""


class GroupMetadata(NamedTuple):
    """A member of a group, and its generation (Java's ConsumerGroupMetadata).

    `generation_id` is the member epoch under KIP-848. NO_GENERATION and NO_MEMBER_ID stand for a
    client that is not a member. `is_outside`: a consumer subscribes to topics but is not in the
    group now, since it was removed or has not joined yet. A producer must commit nothing for it:
    brokers would take its offsets as those of a client that is not a member. `topic_ids` has the
    ids of the topics in which the consumer's positions are: a producer commits no offsets to later
    topics of the same names.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    is_outside: bool = False
    topic_ids: TopicIds | None = None

    @property
    def is_member(self) -> bool:
        """Whether it names a member or generation, not only a group."""
        return self.generation_id != NO_GENERATION or self.member_id != NO_MEMBER_ID


_HINTS: Mapping[int, str] = {
    **dict.fromkeys(
        (
            errors.ErrorCode.UNKNOWN_MEMBER_ID,
            errors.ErrorCode.ILLEGAL_GENERATION,
            errors.ErrorCode.REBALANCE_IN_PROGRESS,
            errors.ErrorCode.FENCED_MEMBER_EPOCH,
            errors.ErrorCode.STALE_MEMBER_EPOCH,
            errors.ErrorCode.NON_EMPTY_GROUP,
        ),
        "the group has active consumers, and only they may commit to it: use another group id, or "
        "stop them first (those that died count until their session timeout has passed)",
    ),
    errors.ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "members of the group subscribe to the topic: their offsets cannot be deleted while they do"
    ),
    errors.ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
}
NO_GROUP = frozenset({errors.ErrorCode.GROUP_ID_NOT_FOUND})
"""Kafka answers that a group that does not exist (or is a share group) has no offsets; franz-go's
kfake answers with this error."""


class OffsetsHandler(ApiHandler[TopicPartition, Any]):
    """Base of the requests about offsets of one group; items are partitions."""

    name_format = "{} of group {handler.group_id!r}"
    hints = _HINTS

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    def describe(self, items: Iterable[TopicPartition]) -> str:
        return f"group {self.group_id!r} for {some_partitions(items)}"


class FetchOffsets(OffsetsHandler):
    """Fetches the offset of each partition, None if the group has none or does not exist.

    With `require_stable` the broker waits for open transactions that commit offsets (KIP-447, Kafka
    2.5). If it is None, brokers that can wait do.
    """

    request_type = messages.OffsetFetchRequest
    acl = "DESCRIBE on group {handler.group_id} and on topic {0.topic}"
    empty_codes = NO_GROUP

    def __init__(self, group_id: str, require_stable: bool | None = None) -> None:
        super().__init__(group_id)
        self._require_stable = require_stable

    def build(self, items: Sequence[TopicPartition], version: int) -> messages.OffsetFetchRequest:
        return _fetch_request(self.group_id, by_topic(items), self._require_stable, version)

    def needed_versions(self, item: TopicPartition) -> Mapping[str, int]:
        """Return the version that has `require_stable`, if that is requested."""
        return {"require_stable": REQUIRE_STABLE_VERSION} if self._require_stable else {}

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the committed offset of each partition; an error of the group is that of all."""
        group_code, outcomes = _read_group(response.groups[0] if response.groups else response)
        return [(tp, Outcome(group_code)) for tp in items] if group_code else outcomes.items()


class FetchAllOffsets(ApiHandler[str, dict[TopicPartition, Outcome]]):
    """Fetches all offsets of each group, each with its own error; the items are groups. A group
    that does not exist has none."""

    request_type = messages.OffsetFetchRequest
    name_format = "group {!r}"
    acl = "DESCRIBE on group {}"
    empty_codes = NO_GROUP
    hints = _HINTS

    def __init__(self, require_stable: bool | None = None) -> None:
        self._require_stable = require_stable

    def split(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        """Make one request, or for old brokers one for each group."""
        return [items] if version >= GROUPS_VERSION else [[item] for item in items]

    def build(self, items: Sequence[str], version: int) -> messages.OffsetFetchRequest:
        """Build the request for all offsets of these groups: of one before GROUPS_VERSION."""
        request = _fetch_request(items[0], None, self._require_stable, version)
        request.groups += [
            messages.OffsetFetchRequestGroup(group_id=item, topics=None) for item in items[1:]
        ]
        return request

    def needed_versions(self, item: str) -> Mapping[str, int]:
        """Return the version that has `require_stable`, if that is requested."""
        return {"require_stable": REQUIRE_STABLE_VERSION} if self._require_stable else {}

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Yield the outcome of each group: its offsets by partition. Old versions have one
        group."""
        groups = {row.group_id: row for row in response.groups} or {items[0]: response}
        for group_id, row in groups.items():
            code, outcomes = _read_group(row)
            yield group_id, Outcome(code, outcomes)


class _FetchAllOrFail(FetchAllOffsets):
    """Fetches all offsets of each group. An error of one offset fails the group, since the response
    may lack other offsets of the same transaction."""

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Yield the offsets of each group, with the error of an offset as that of its group."""
        for group, outcome in super().read(response, items):
            codes = {offset.code for offset in (outcome.value or {}).values() if offset.code}
            # The code of a final error if there is one (False sorts first), else a retriable one.
            code = outcome.code or min(codes, key=errors.is_retriable, default=0)
            yield group, Outcome(code, outcome.value)


def _fetch_request(
    group_id: str, topics: Mapping[str, list[int]] | None, require_stable: bool | None, version: int
) -> messages.OffsetFetchRequest:
    """Return an OffsetFetch. `topics` has partition numbers by topic; with None it requests all
    offsets of the group. If `require_stable` is None, the request has it wherever the version knows
    it."""
    if require_stable is None:
        require_stable = version >= REQUIRE_STABLE_VERSION
    named = (topics or {}).items()
    if version < GROUPS_VERSION:
        rows = [messages.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in named]
        return messages.OffsetFetchRequest(
            group_id=group_id,
            topics=None if topics is None else rows,
            require_stable=require_stable,
        )
    chosen = [messages.OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in named]
    group = messages.OffsetFetchRequestGroup(
        group_id=group_id, topics=None if topics is None else chosen
    )
    return messages.OffsetFetchRequest(groups=[group], require_stable=require_stable)


def _read_group(group: Any) -> tuple[int, dict[TopicPartition, Outcome]]:
    """Return the error code of a group in an OffsetFetch response, and the outcome of each
    partition: an OffsetAndMetadata, or None without an offset. (Before version 8 the group is the
    whole response.)"""
    return group.error_code, {
        tp: Outcome.of(row, _read_offset(row)) for tp, row in by_partition(group.topics)
    }


def _read_offset(row: Any) -> OffsetAndMetadata | None:
    """Return the committed offset of a partition's row in a response; None if it has none."""
    if row.committed_offset == NO_OFFSET:
        return None
    epoch = row.committed_leader_epoch
    return OffsetAndMetadata(
        row.committed_offset, row.metadata or "", epoch if epoch >= 0 else None
    )


class CommitHandler(OffsetsHandler):
    """A request that commits offsets of a group.

    `topic_ids` has the ids of the topics that were read. If all offsets have one and the version
    has topic ids, these stand for the names: the broker refuses offsets of a recreated topic.
    """

    topic_id_version: ClassVar[int]
    """From this version on the request has topic ids in place of names."""

    def __init__(self, group_id: str, offsets: NewOffsets, topic_ids: TopicIds) -> None:
        super().__init__(group_id)
        self._offsets = offsets
        self._topic_ids = {tp: uuid.UUID(bytes=topic_ids[tp]) for tp in offsets if tp in topic_ids}
        self.has_all_ids = len(self._topic_ids) == len(offsets)

    def split(
        self, items: Sequence[TopicPartition], version: int
    ) -> Iterable[Sequence[TopicPartition]]:
        """Split the partitions into parts whose offsets a broker can write as one batch."""
        part: list[TopicPartition] = []
        size_bytes = 0
        # The bytes of one offset's record beside its names: lengths, versions, numbers, timestamps.
        fixed_bytes = 80 + len(self.group_id.encode())
        for tp in items:
            record_bytes = fixed_bytes + len(tp.topic) + len(self._offsets[tp].metadata.encode())
            if part and size_bytes + record_bytes > MAX_COMMIT_BYTES:
                yield part
                part, size_bytes = [], 0
            part.append(tp)
            size_bytes += record_bytes
        if part:
            yield part

    def request_topics(
        self,
        topic_type: Callable[..., Any],
        row_type: Callable[..., Any],
        items: Iterable[TopicPartition],
    ) -> list[Any]:
        """Return the offsets of these partitions as the topics of a request: objects of
        `topic_type`, with a `row_type` for each partition."""

        def request_row(tp: TopicPartition) -> Any:
            """Return the row of one partition in the request."""
            offset, metadata, epoch = self._offsets[tp]
            return row_type(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_leader_epoch=-1 if epoch is None else epoch,
                committed_metadata=metadata,
            )

        return [
            topic_type(
                name=name,
                # One for all partitions: the lookup lets no others pass.
                topic_id=self._topic_ids.get(TopicPartition(name, numbers[0]), NULL_UUID),
                partitions=[request_row(TopicPartition(name, number)) for number in numbers],
            )
            for name, numbers in by_topic(items).items()
        ]

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the error code of each partition. Topic ids are replaced by names first."""
        names = {topic_id: tp.topic for tp, topic_id in self._topic_ids.items()}
        for topic in response.topics:
            topic.name = topic.name or names.get(topic.topic_id, "")
        return partition_outcomes(response)

    def knows_ids(self, connection: Connection) -> bool:
        """Return whether the version for this broker has topic ids."""
        version = self.version
        if version is None:
            version = connection.choose_version(self.request_type, self.highest_version)
        return version >= self.topic_id_version


# --- commits as a member --------------------------------------------------------------------------

MEMBER_HINTS: Mapping[int, str] = {
    errors.ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group: grant READ on it, or set another group.id"
    ),
    errors.ErrorCode.INVALID_GROUP_ID: "the brokers do not take this group.id: choose another one",
    errors.ErrorCode.FENCED_INSTANCE_ID: (
        "another consumer has joined with the same group.instance.id and replaced this one: "
        "each consumer needs an id of its own"
    ),
    errors.ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "the group has as many members as the brokers allow (group.max.size, or "
        "group.consumer.max.size): stop a member first, or let an admin raise the limit. IBM Event "
        "Streams says so when the plan has no more groups: delete a group"
    ),
}
"""What a member can do about an error of the coordinator."""


_COMMIT_HINTS: Mapping[int, str] = {
    **MEMBER_HINTS,
    errors.ErrorCode.REBALANCE_IN_PROGRESS: (
        "the group is rebalancing: call poll until that is over, then commit what is still this "
        "consumer's"
    ),
    errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "this user may not commit offsets of the topic: grant READ on it"
    ),
    errors.ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "the text beside an offset is longer than the brokers' offset.metadata.max.bytes"
    ),
}

NO_LONGER_A_MEMBER = (
    "this consumer is no longer a member of that generation, its partitions may be another's: the "
    "time between two polls was longer than max.poll.interval.ms, or the brokers heard nothing for "
    "session.timeout.ms. Call poll to join again. To avoid it, raise max.poll.interval.ms or lower "
    "max.poll.records"
)


def commit_failed(code: int, group_id: str) -> errors.CommitFailedError:
    """Return the error of a commit by a client that is not a member, or whose group is
    rebalancing."""
    where = f"OffsetCommit of group {group_id!r}"
    return errors.CommitFailedError(code, where, _COMMIT_HINTS.get(code, NO_LONGER_A_MEMBER))


class _StaleEpoch(errors.BrokerError):
    """The member's epoch has just changed: a retry sends the new one (Java's
    CommitRequestManager)."""

    _retriable = True


class CommitOffsets(CommitHandler):
    """Commits offsets of a group as the member that `identity` returns, which is called for each
    request; without it as a client that is not a member, which needs a group without members.

    An offset without an id in `topic_ids` gets the one in the metadata of `cluster`. Brokers know
    ids in commits since Kafka 4.2. The request has at least the version `min_version`.
    """

    request_type = messages.OffsetCommitRequest
    acl = "READ on group {handler.group_id} and on topic {0.topic}"
    topic_id_version = 10

    def __init__(
        self,
        group_id: str,
        offsets: NewOffsets,
        cluster: Cluster | None = None,
        topic_ids: TopicIds | None = None,
        identity: Callable[[], GroupMetadata] | None = None,
        min_version: int = 0,
    ) -> None:
        ids = {} if cluster is None else {tp: cluster.topic_id(tp.topic) for tp in offsets}
        known = {tp: topic_id for tp, topic_id in ids.items() if topic_id is not None}
        super().__init__(group_id, offsets, known | dict(topic_ids or {}))
        self._identity = identity
        self._min_version = min_version
        if self.has_all_ids:
            self.highest_version = messages.OffsetCommitRequest.MAX_VERSION

    def build(self, items: Sequence[TopicPartition], version: int) -> messages.OffsetCommitRequest:
        """Build the OffsetCommit of these partitions, with the member's present generation or epoch
        (or as a client that is not a member)."""
        identity = GroupMetadata(self.group_id) if self._identity is None else self._identity()
        return messages.OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            topics=self.request_topics(
                messages.OffsetCommitRequestTopic, messages.OffsetCommitRequestPartition, items
            ),
        )

    def unsupported_reason(self, item: TopicPartition, version: int) -> str | None:
        """Return why this version of OffsetCommit cannot be used, None if it can: versions before
        `min_version` have no member epoch."""
        if version >= self._min_version:
            return None
        return (
            f"there is no version {self._min_version} of OffsetCommit, which "
            "group.protocol=consumer needs: set group.protocol=classic"
        )

    def explain(self, item: TopicPartition, error: errors.BrokerError) -> errors.KafkaError:
        """Return the error for users: CommitFailedError if the member is no longer in the group."""
        if self._identity is None:
            return super().explain(item, error)
        if isinstance(error, errors.CommitFailedError):  # raised by `identity`
            return error
        code, where = error.code, error.where
        if code in (
            errors.ErrorCode.UNKNOWN_MEMBER_ID,
            errors.ErrorCode.ILLEGAL_GENERATION,
            errors.ErrorCode.REBALANCE_IN_PROGRESS,
            errors.ErrorCode.FENCED_MEMBER_EPOCH,
            errors.ErrorCode.FENCED_INSTANCE_ID,
        ):
            return errors.CommitFailedError(
                code, where, _COMMIT_HINTS.get(code, NO_LONGER_A_MEMBER)
            )
        if code == errors.ErrorCode.STALE_MEMBER_EPOCH:
            return _StaleEpoch(code, where)
        return errors.BrokerError(code, where, _COMMIT_HINTS.get(code))


def partition_outcomes(response: Any) -> list[tuple[TopicPartition, Outcome]]:
    """Return the outcome of each partition in a response that has only their error codes."""
    return [(tp, Outcome.of(row)) for tp, row in by_partition(response.topics)]


def coordinator_of(cluster: Cluster, group_id: str) -> ToCoordinator:
    """Return the lookup for requests about partitions of one group."""
    return ToCoordinator(cluster, FOR_GROUP, lambda _: group_id)


class ToCoordinatorOfReader(ToCoordinator):
    """The coordinator of a group, for the offsets of topics that are still the ones that were read.

    A topic that was deleted and recreated keeps its name, but the offset of a record in the old
    topic is one of another record in the new one: a reader that starts from it would skip what is
    before it. Brokers before Kafka 4.2 know only the name, and a retry may come after the new topic
    was created. So before each attempt the id that was read is compared with that in the metadata,
    which is requested if it is missing, stale, or different, or for a commit by name if it is old.
    """

    def __init__(self, cluster: Cluster, handler: CommitHandler, topic_ids: TopicIds) -> None:
        super().__init__(cluster, FOR_GROUP, lambda _: handler.group_id)
        self._handler = handler
        self._topic_ids = topic_ids

    def find(self, items: Iterable[TopicPartition], deadline: Deadline) -> Nodes:
        """Return, for each partition, the node id of the group's coordinator; the error
        UNKNOWN_TOPIC_ID for one whose topic was recreated. Requests metadata of topics that may
        have been recreated.
        """
        nodes = super().find(items, deadline)
        ids = {
            tp: self._topic_ids[tp]
            for tp, node_id in nodes.items()
            if tp in self._topic_ids and isinstance(node_id, int)
        }
        commits_by_name = not all(
            self._handler.knows_ids(self.cluster.connection(node_id, deadline))
            for node_id in {nodes[tp] for tp in ids}
            if isinstance(node_id, int)
        )
        doubtful = {
            tp.topic
            for tp, topic_id in ids.items()
            if self._may_be_recreated(tp.topic, topic_id, commits_by_name)
        }
        failed = self.cluster.request_metadata(sorted(doubtful), deadline) if doubtful else {}
        for tp, topic_id in ids.items():
            where = f"{self._handler.request_type.API_NAME} of {self._handler.name(tp)}"
            if tp.topic in failed:
                nodes[tp] = errors.BrokerError(failed[tp.topic], where)
            elif self.cluster.was_recreated(tp.topic, topic_id):
                why = "the topic was deleted and recreated, the offset is of the old one"
                nodes[tp] = errors.UnknownTopicError(errors.ErrorCode.UNKNOWN_TOPIC_ID, where, why)
        return nodes

    def _may_be_recreated(self, topic: str, topic_id: bytes, commits_by_name: bool) -> bool:
        """Return whether the known metadata leave open that the topic has another id than
        `topic_id` now. A coordinator that gets ids checks them, so only commits by name
        (`commits_by_name`) need recent metadata."""
        known = self.cluster.known_topic(topic)
        if known is None or known.topic_id != topic_id or self.cluster.is_stale(topic):
            return True
        return commits_by_name and time.monotonic() - known.refreshed_at_s > MAX_ID_AGE_S

    def on_failure(self, item: TopicPartition, error: errors.KafkaError) -> None:
        """Look up the coordinator again if the broker may not be it, and the topic if it is not
        known."""
        super().on_failure(item, error)
        if isinstance(error, errors.BrokerError) and error.code in (
            errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            errors.ErrorCode.UNKNOWN_TOPIC_ID,
        ):
            self.cluster.mark_stale(item.topic)


def fetch_all_committed(
    cluster: Cluster, group_id: str, *, deadline: Deadline | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Fetch all committed offsets of a group, of topics that this user may see.

    Waits and raises as `fetch_committed`.
    """
    what = f"looking up the offsets of group {group_id!r}"
    lookup = ToCoordinator(cluster, FOR_GROUP)
    outcomes = lookup.call_all([group_id], _FetchAllOrFail(), deadline, what)[group_id]
    return {
        tp: outcome.value for tp, outcome in (outcomes or {}).items() if outcome.value is not None
    }


def fetch_offsets_of_groups(
    cluster: Cluster, group_ids: Iterable[str], deadline: Deadline
) -> Results[str, dict[TopicPartition, OffsetAndMetadata]]:
    """Fetch all committed offsets of several groups, those of one coordinator in one request (Kafka
    3.0). An offset that has an error is left out."""
    lookup = ToCoordinator(cluster, FOR_GROUP)
    what = "looking up the offsets of groups"
    handler = FetchAllOffsets(require_stable=False)
    results = lookup.call_each(group_ids, handler, deadline, what)
    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata] | errors.KafkaError] = {
        group_id: {tp: row.value for tp, row in outcomes.items() if row.value is not None}
        for group_id, outcomes in results.values_by_item.items()
    }
    return Results({**offsets, **results.errors})


def fetch_committed(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition],
    *,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Fetch the committed offsets of a group. Partitions without one are left out.

    Waits for open transactions that commit offsets of these partitions (Kafka 2.5+). Raises
    BrokerError naming group and partitions, KafkaTimeoutError (with the last failure).
    """
    what = f"looking up the offsets of group {group_id!r}"
    lookup = coordinator_of(cluster, group_id)
    offsets = lookup.call_all(partitions, FetchOffsets(group_id), deadline, what)
    return {tp: committed for tp, committed in offsets.items() if committed is not None}


def commit_group_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: NewOffsets,
    *,
    deadline: Deadline | None = None,
    topic_ids: TopicIds | None = None,
    identity: Callable[[], GroupMetadata] | None = None,
    min_version: int = 0,
) -> None:
    """Commit offsets (the next ones to read) of a group that has no members at the moment, or as
    the member that `identity` returns, which is called for each request.

    `topic_ids` has the ids of the topics that were read, as far as they are known. Raises
    UnknownTopicError for a topic that does not exist or was recreated; CommitFailedError if the
    coordinator does not have the member of `identity` or its group rebalances; BrokerError, naming
    group and partitions, if without `identity` the group has members, or for other refusals;
    KafkaTimeoutError (with the last failure). In these cases a part may have been committed.
    """
    what = f"committing offsets of group {group_id!r}"
    handler = CommitOffsets(group_id, offsets, cluster, topic_ids, identity, min_version)
    lookup = ToCoordinatorOfReader(cluster, handler, topic_ids or {})
    try:
        lookup.call_all(offsets, handler, deadline, what)
    except errors.KafkaTimeoutError as late:
        if isinstance(late.__cause__, _StaleEpoch):
            raise commit_failed(late.__cause__.code, group_id) from late.__cause__
        raise
