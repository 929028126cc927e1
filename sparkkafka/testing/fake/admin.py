"""How the fake broker answers an administrator: CreatePartitions, DeleteRecords, ListGroups,
DescribeGroups (classic groups), DeleteGroups, DescribeLogDirs.

They do only what tests of lost responses and moved brokers need.
"""

from __future__ import annotations

from typing import Any

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    DeletableGroupResult,
    DeleteGroupsResponse,
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ListedGroup,
    ListGroupsResponse,
)
from sparkkafka.testing.fake.call import Call
from sparkkafka.testing.fake.groups.apis import group_error

HIGH_WATERMARK = -1
# Before this version of DescribeGroups a group that does not exist is in the state Dead.
DESCRIBE_GROUPS_VERSION_WITH_NOT_FOUND = 6


def create_partitions(call: Call) -> CreatePartitionsResponse:
    """Answer CreatePartitions."""
    rows = []
    for requested in call.message.topics:
        injected = call.error_of(requested.name)
        topic = call.state.topics.get(requested.name)
        code = 0
        if call.release.has_controller_broker and call.broker_id != call.state.controller_id:
            code = ErrorCode.NOT_CONTROLLER
        elif topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif requested.count <= len(topic.partitions):
            code = ErrorCode.INVALID_PARTITIONS
        elif not call.message.validate_only and (injected is None or injected.applied):
            call.state.add_partitions(topic, requested.count)
        rows.append(
            CreatePartitionsTopicResult(
                name=requested.name, error_code=code if injected is None else injected.code
            )
        )
    call.changed.notify_all()
    return CreatePartitionsResponse(results=rows)


def delete_records(call: Call) -> DeleteRecordsResponse:
    """Answer DeleteRecords."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_delete_records(call, topic.name, row) for row in topic.partitions],
            )
            for topic in call.message.topics
        ]
    )


def _delete_records(call: Call, topic: str, row: Any) -> DeleteRecordsPartitionResult:
    """Delete the records of one partition before an offset, unless a fault is injected."""
    number = row.partition_index
    result = DeleteRecordsPartitionResult(partition_index=number, low_watermark=-1)
    injected = call.error_of(topic, number)
    try:
        partition = call.state.partition(topic, number)
    except KeyError:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return result
    offset = partition.log.end_offset if row.offset == HIGH_WATERMARK else row.offset
    if injected is not None:
        result.error_code = injected.code
    elif partition.leader != call.broker_id:
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif offset > partition.log.end_offset:
        result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
    if not result.error_code or (injected is not None and injected.applied):
        partition.log.advance_start(max(offset, partition.log.start_offset))
        result.low_watermark = partition.log.start_offset
    return result


def list_groups(call: Call) -> ListGroupsResponse:
    """List the groups that this broker coordinates."""
    injected = call.top_level or call.error_of()
    if injected is not None:
        return ListGroupsResponse(error_code=injected.code)
    groups = [
        ListedGroup(
            group_id=group_id,
            group_state="Stable" if group.is_active else "Empty",
            group_type="consumer" if group.consumer_protocol.members else "classic",
            protocol_type="consumer" if group.is_active else "",
        )
        for group_id, group in call.state.groups.existing()
        if call.state.coordinator(group_id) == call.broker_id
    ]
    states = call.message.states_filter
    return ListGroupsResponse(
        groups=[row for row in groups if not states or row.group_state in states]
    )


def describe_groups(call: Call) -> DescribeGroupsResponse:
    """Describe classic groups. `member_metadata` is that of a member's first protocol."""
    injected = call.error_of()
    rows = []
    for group_id in call.message.groups:
        group = call.state.group(group_id)
        code = group_error(call, group_id)
        if injected is not None:
            code = injected.code
        if (
            not code
            and not group.exists
            and call.request.version >= DESCRIBE_GROUPS_VERSION_WITH_NOT_FOUND
        ):
            code = ErrorCode.GROUP_ID_NOT_FOUND
        state = group.membership.state.value if group.exists else "Dead"
        members = [
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_host="/127.0.0.1",
                member_metadata=member.protocols[0][1] if member.protocols else b"",
                member_assignment=member.assignment,
            )
            for member in group.membership.members.values()
        ]
        if code:
            rows.append(DescribedGroup(group_id=group_id, error_code=code))
        else:
            rows.append(
                DescribedGroup(
                    group_id=group_id,
                    group_state=state,
                    protocol_type="consumer" if members else "",
                    members=members,
                )
            )
    return DescribeGroupsResponse(groups=rows)


def delete_groups(call: Call) -> DeleteGroupsResponse:
    """Answer DeleteGroups: a group with members is refused."""
    rows = []
    injected = call.error_of()
    for group_id in call.message.groups_names:
        group = call.state.group(group_id)
        code = group_error(call, group_id)
        if not code and not group.exists:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not code and group.is_active:
            code = ErrorCode.NON_EMPTY_GROUP
        if not code and (injected is None or injected.applied):
            call.state.groups.delete(group_id)
        rows.append(
            DeletableGroupResult(
                group_id=group_id,
                error_code=code if injected is None else injected.code,
                error_message=None if injected is None else injected.message,
            )
        )
    return DeleteGroupsResponse(results=rows)


def describe_log_dirs(call: Call) -> DescribeLogDirsResponse:
    """Describe one directory with all replicas. A fault rule with a topic fails the directory."""
    message: DescribeLogDirsRequest = call.message
    refused = call.top_level or call.error_of()
    if refused is not None:
        return DescribeLogDirsResponse(error_code=refused.code)
    result = DescribeLogDirsResult(log_dir=f"/fake/{call.broker_id}")
    requested = {(row.topic, number) for row in message.topics or () for number in row.partitions}
    for topic in call.state.topics.values():
        rows = []
        for partition in topic.partitions:
            if call.broker_id not in partition.replicas or not (
                message.topics is None or (topic.name, partition.number) in requested
            ):
                continue
            injected = call.error_of(topic.name, partition.number)
            if injected is not None:
                result.error_code = injected.code
                continue
            rows.append(
                DescribeLogDirsPartition(
                    partition_index=partition.number, partition_size=len(partition.log.raw())
                )
            )
        if rows:
            result.topics.append(DescribeLogDirsTopic(name=topic.name, partitions=rows))
    return DescribeLogDirsResponse(results=[result])
