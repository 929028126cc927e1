"""Coordinators and the offsets of groups: FindCoordinator, OffsetCommit, OffsetFetch."""

from __future__ import annotations

from sparkkafka.protocol.wire.schema import (
    INT32,
    STRING,
    Request,
    Response,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nullable_array,
    nullable_string,
    request,
    response,
    string,
    struct,
)


@request(api_key=10, versions=(1, 4), flexible=3)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Asks for the coordinator of a group (`key_type` 0) or of a transactional id (1).

    `key` until version 3, `coordinator_keys` from version 4 on.
    """

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(STRING, since=4)


@struct
class Coordinator:
    """The coordinator of one key."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(ignorable=True)


@response(FindCoordinatorRequest)
class FindCoordinatorResponse(Response):
    """One coordinator until version 3, `coordinators` from version 4 on."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(until=3)
    error_message: str | None = nullable_string(since=1, until=3, ignorable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


@struct
class OffsetCommitRequestPartition:
    """The next offset to read, with a string of at most 4096 bytes that is kept beside it."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=6, ignorable=True)
    committed_metadata: str | None = nullable_string()


@struct
class OffsetCommitRequestTopic:
    """Partitions of one topic."""

    name: str = string(ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@request(api_key=8, versions=(2, 9), flexible=8)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Commits offsets of a group. A group without members has generation -1 and member "".

    Version 9 is version 8, and what a member under KIP-848 has to send.
    """

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(-1, since=1, ignorable=True)
    member_id: str = string(since=1, ignorable=True)
    group_instance_id: str | None = nullable_string(None, since=7, nullable_since=7)
    retention_time_ms: int = int64(-1, since=2, until=4, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@struct
class OffsetCommitResponsePartition:
    """What became of one partition."""

    partition_index: int = int32()
    error_code: int = int16()


@struct
class OffsetCommitResponseTopic:
    """Partitions of one topic."""

    name: str = string(ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@response(OffsetCommitRequest)
class OffsetCommitResponse(Response):
    """What became of each partition."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, until version 7."""

    name: str = string()
    partition_indexes: list[int] = array(INT32)


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, from version 8 on."""

    name: str = string(ignorable=True)
    partition_indexes: list[int] = array(INT32)


@struct
class OffsetFetchRequestGroup:
    """One group; `topics` None means all that it has offsets of."""

    group_id: str = string()
    topics: list[OffsetFetchRequestTopics] | None = nullable_array(OffsetFetchRequestTopics)


@request(api_key=9, versions=(1, 8), flexible=6)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """Asks for committed offsets: of one group until version 7, of `groups` from version 8 on.

    `topics` None (from version 2 on) means all. `require_stable` waits for open transactions.
    """

    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = nullable_array(
        OffsetFetchRequestTopic, until=7, nullable_since=2
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


@struct
class OffsetFetchResponsePartition:
    """A committed offset, -1 if there is none; until version 7."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=5, ignorable=True)
    metadata: str | None = nullable_string()
    error_code: int = int16()


@struct
class OffsetFetchResponseTopic:
    """Partitions of one topic, until version 7."""

    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@struct
class OffsetFetchResponsePartitions:
    """A committed offset, -1 if there is none; from version 8 on."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, ignorable=True)
    metadata: str | None = nullable_string()
    error_code: int = int16()


@struct
class OffsetFetchResponseTopics:
    """Partitions of one topic, from version 8 on."""

    name: str = string(ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


@struct
class OffsetFetchResponseGroup:
    """Offsets of one group."""

    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


@response(OffsetFetchRequest)
class OffsetFetchResponse(Response):
    """Offsets of one group until version 7, `groups` from version 8 on."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)
