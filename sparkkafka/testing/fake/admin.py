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
from sparkkafka.testing.fake.call import Call, reported_in
from sparkkafka.testing.fake.groups.apis import group_error
from sparkkafka.testing.fake.log.producers import Refused

HIGH_WATERMARK = -1
# Before this version of DescribeGroups a group that does not exist is in the state Dead.
DESCRIBE_GROUPS_VERSION_WITH_NOT_FOUND = 6


def create_partitions(call: Call) -> CreatePartitionsResponse:
    """Answer CreatePartitions."""
    rows = []
    for requested in call.message.topics:
        row = CreatePartitionsTopicResult(name=requested.name)
        with reported_in(row):
            call.check_fault(requested.name)
            call.check_controller()
            topic = call.state.topics.get(requested.name)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            if requested.count <= len(topic.partitions):
                raise Refused(ErrorCode.INVALID_PARTITIONS, "")
            if not call.message.validate_only:
                call.state.add_partitions(topic, requested.count)
            call.check_fault(requested.name, applied=True)
        rows.append(row)
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
    with reported_in(result):
        call.check_fault(topic, number)
        log = call.state.led_by(call.broker_id, topic, number).log
        offset = log.end_offset if row.offset == HIGH_WATERMARK else row.offset
        if offset > log.end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, "")
        log.advance_start(max(offset, log.start_offset))
        result.low_watermark = log.start_offset
        call.check_fault(topic, number, applied=True)
    return result


def list_groups(call: Call) -> ListGroupsResponse:
    """List the groups that this broker coordinates."""
    injected = call.error_of()
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
    for group_id in call.message.groups_names:
        row = DeletableGroupResult(group_id=group_id, error_message=None)
        with reported_in(row):
            call.check_fault()
            group = call.state.group(group_id)
            code = group_error(call, group_id)
            if code:
                raise Refused(code, "")
            if not group.exists:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, "")
            if group.is_active:
                raise Refused(ErrorCode.NON_EMPTY_GROUP, "")
            call.state.groups.delete(group_id)
            call.check_fault(applied=True)
        rows.append(row)
    return DeleteGroupsResponse(results=rows)


def describe_log_dirs(call: Call) -> DescribeLogDirsResponse:
    """Describe one directory with all replicas. A fault rule with a topic fails the directory."""
    message: DescribeLogDirsRequest = call.message
    refused = call.error_of()
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
