"""`groups`: list, describe, reset and delete consumer groups and share groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from sparkkafka.cli.commands import AsJson, Execute, Yes, confirm, fail_each, not_empty, session_of
from sparkkafka.cli.lag import committed_of_group
from sparkkafka.cli.tables import print_error, print_json, print_line, print_table, text_of
from sparkkafka.cli.times import (
    ToEarliest,
    ToLatest,
    ToTime,
    timestamp_ms_of,
)
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.groups import (
    ConsumerGroupDescription,
    MemberDescription,
)
from sparkkafka.client.admin.share_groups import (
    ShareGroupDescription,
    ShareMemberDescription,
)
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.lags import lags_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    OptionError,
    counted,
    some,
)
from sparkkafka.protocol.constants import NO_OFFSET

app = typer.Typer(rich_markup_mode=None)

Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP", help="Names of groups.", callback=not_empty)
]


@app.callback()
def groups() -> None:
    """Consumer groups and share groups: list, describe, reset, delete.

    \b
      sparkkafka -b localhost:9092 groups describe billing
      sparkkafka -b localhost:9092 groups reset billing --topic orders --to-time -2h
    """


@app.command("list")
def list_groups(
    context: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only these: Stable, Empty, …; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """All consumer groups and share groups that you may see."""
    with session_of(context).admin() as admin:
        found = admin.list_groups(states=state or None)
    rows = [
        {"group": row.group_id, "state": row.state, "type": row.type, "simple": row.is_simple}
        for row in found
        if row.protocol_type in ("", "consumer", "share")
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ("group", "state", "type")
        empty = None if found.errors else "no groups"
        print_table(columns, [[row[column] for column in columns] for row in rows], empty=empty)
    fail_each(found.errors.values())


# --- describe ---------------------------------------------------------------------------------


@app.command()
def describe(context: typer.Context, groups: Groups, as_json: AsJson = False) -> None:
    """State, members, and for each partition the committed offset, the lag and who reads it."""
    documents: list[dict[str, Any]] = []
    errors: list[KafkaError] = []
    with session_of(context).admin() as admin:
        found = admin.describe_consumer_groups(groups)
        unknown = _share_groups_among(admin, found.errors)
        for group, row in found.values_by_item.items():
            lags = lags_of(admin, committed_of_group(admin, group))
            errors += [one.error for one in lags if one.error is not None]
            readers = {tp: member for member in row.members for tp in member.assignment}
            partitions = [
                {
                    "topic": one.partition.topic,
                    "partition": one.partition.partition,
                    "committed": one.committed,
                    "latest": one.latest,
                    "lag": one.lag,
                    "gone": one.gone,
                    **_reader(readers.get(one.partition)),
                }
                for one in lags
            ]
            documents.append({**_group(row), "partitions": partitions})
        documents += [_share_group(admin, row) for row in unknown.values()]
    if as_json:
        print_json(documents)
    else:
        for number, document in enumerate(documents):
            if number:
                print_line("")
            _print_group(document)
    fail_each([*(row for key, row in found.errors.items() if key not in unknown), *errors])


def _share_groups_among(
    admin: Admin, errors: Mapping[str, KafkaError]
) -> dict[str, ShareGroupDescription]:
    """Those of groups that are no consumer groups which are share groups."""
    missing = [
        key
        for key, error in errors.items()
        if isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_ID_NOT_FOUND
    ]
    return dict(admin.describe_share_groups(missing).values_by_item) if missing else {}


def _share_group(admin: Admin, row: ShareGroupDescription) -> dict[str, Any]:
    """As of a consumer group: `committed` is the first offset that is not done with."""
    offsets = admin.list_share_group_offsets(row.group_id).all()
    ends = _listed(admin, sorted(offsets), OffsetSpec.latest())
    members: dict[TopicPartition, list[ShareMemberDescription]] = {}
    for member in row.members:
        for tp in member.assignment:
            members.setdefault(tp, []).append(member)
    return {
        "group": row.group_id,
        "state": row.state,
        "type": "share",
        "assignor": row.assignor or None,
        "coordinator": row.coordinator,
        "members": len(row.members),
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": None if at is None else at.start_offset,
                "latest": ends[tp],
                "lag": None if at is None else at.lag,
                "gone": 0,
                "client_id": _each(one.client_id for one in members.get(tp, ())),
                "host": _each(one.host for one in members.get(tp, ())),
                "member_id": _each(one.member_id for one in members.get(tp, ())),
            }
            for tp, at in sorted(offsets.items())
        ],
    }


def _each(texts: Iterable[str]) -> str | None:
    return ", ".join(sorted(set(texts))) or None


def _group(row: ConsumerGroupDescription) -> dict[str, Any]:
    return {
        "group": row.group_id,
        "state": row.state,
        "type": row.type,
        "assignor": row.assignor or None,
        "coordinator": row.coordinator,
        "members": len(row.members),
    }


def _reader(member: MemberDescription | None) -> dict[str, str | None]:
    if member is None:
        return {"client_id": None, "host": None, "member_id": None}
    return {
        "client_id": member.client_id,
        "host": member.host,
        "member_id": member.group_instance_id or member.member_id,
    }


def _print_group(document: Mapping[str, Any]) -> None:
    parts = [
        f"group {document['group']}",
        document["state"],
        document["type"],
        counted(document["members"], "member"),
        f"assignor {document['assignor']}" if document["assignor"] else None,
        f"coordinator {document['coordinator']}" if document["coordinator"] is not None else None,
    ]
    print_line(", ".join(part for part in parts if part))
    columns = ("topic", "partition", "committed", "latest", "lag", "gone", "client_id", "host")
    rows = [
        [row[column] if column != "gone" else row["gone"] or None for column in columns]
        for row in document["partitions"]
    ]
    print_table(columns, rows)
    print_line(f"{text_of(sum(row['lag'] or 0 for row in document['partitions']))} behind in all")


# --- reset ------------------------------------------------------------------------------------


@app.command()
def reset(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", callback=not_empty)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:0,1]", help="A topic, or partitions; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All that the group has offsets in.")
    ] = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_time: ToTime = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", help="This offset.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="On by N; back, if negative.")
    ] = None,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Set where a group goes on reading. Without --execute nothing is changed.

    Offsets stay within what the partition has. The group must have no members: stop its consumers.
    """
    ways = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-time": to_time,
        "--to-offset": to_offset,
        "--shift-by": shift_by,
    }
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) != 1:
        raise OptionError(f"give one of {', '.join(ways)}{_both(chosen)}")
    if bool(topic) == all_topics:
        raise OptionError("give --topic TOPIC or --all-topics, and not both")
    if to_offset is not None and to_offset < 0:
        raise OptionError(f"--to-offset is not negative, got {to_offset}; there is --shift-by")
    timestamp_ms = None if to_time is None else timestamp_ms_of(to_time, "--to-time")
    with session_of(context).admin() as admin:
        is_shared = _refuse_members(admin, group)
        committed = _positions(admin, group, is_shared=is_shared)
        partitions = _partitions(admin, group, committed, topic or ())
        first = _listed(admin, partitions, OffsetSpec.earliest())
        end = _listed(admin, partitions, OffsetSpec.latest())
        at_time = (
            {}
            if timestamp_ms is None
            else _listed(admin, partitions, OffsetSpec.for_timestamp(timestamp_ms))
        )
        plan: dict[TopicPartition, int] = {}
        for tp in partitions:
            if to_earliest:
                wanted = first[tp]
            elif to_latest:
                wanted = end[tp]
            elif timestamp_ms is not None:
                wanted = end[tp] if at_time[tp] == NO_OFFSET else at_time[tp]
            elif to_offset is not None:
                wanted = to_offset
            else:
                if tp not in committed:
                    raise OptionError(
                        f"--shift-by: group {group} has no offset in {tp}: use another way there"
                    )
                wanted = committed[tp] + (shift_by or 0)
            plan[tp] = min(max(wanted, first[tp]), end[tp])
            if plan[tp] != wanted:
                print_error(
                    f"{tp}: offset {wanted} is not there, {plan[tp]} is the nearest of "
                    f"{first[tp]} to {end[tp]}"
                )
        if execute and is_shared:
            admin.alter_share_group_offsets(group, plan).all()
        elif execute:
            admin.alter_consumer_group_offsets(group, plan).all()
    _print_plan(group, plan, committed, execute, as_json)


def _both(chosen: list[str]) -> str:
    return f", not {' and '.join(chosen)}" if chosen else ""


def _positions(admin: Admin, group: str, *, is_shared: bool) -> dict[TopicPartition, int]:
    if is_shared:
        shared = admin.list_share_group_offsets(group).all()
        return {tp: at.start_offset for tp, at in shared.items() if at is not None}
    committed = admin.list_consumer_group_offsets(group).all()
    return {tp: row.offset for tp, row in committed.items() if row is not None}


def _refuse_members(admin: Admin, group: str) -> bool:
    """The coordinator would refuse each partition, in fewer words. A consumer group that is not
    there yet is made by its first offset. Returns whether it is a share group."""
    described = admin.describe_consumer_groups([group])
    for error in described.errors.values():
        if not (isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_ID_NOT_FOUND):
            raise error
    shared = _share_groups_among(admin, described.errors)
    found: list[Any] = [*described.values_by_item.values(), *shared.values()]
    for row in found:
        if row.members:
            who = some(sorted({f"{one.client_id} at {one.host}" for one in row.members}), most=3)
            raise KafkaError(
                f"group {group} has {counted(len(row.members), 'member')} ({who}) and is "
                f"{row.state}: stop its consumers first (those that died count until their "
                "session timeout has passed)"
            )
    return bool(shared)


def _partitions(
    admin: Admin, group: str, committed: Iterable[TopicPartition], texts: Iterable[str]
) -> list[TopicPartition]:
    """What --topic names, or (without) all that the group has offsets in. Raises OptionError,
    UnknownTopicError."""
    if not texts:
        found = sorted(committed)
        if not found:
            raise OptionError(f"group {group} has no offsets: name topics with --topic")
        return found
    chosen: list[TopicPartition] = []
    for text in texts:
        name, colon, numbers = text.partition(":")
        there = [row.partition for row in admin.describe_topic(name).partitions]
        wanted = there
        if colon:
            words = [word.strip() for word in numbers.split(",")]
            if not all(word.isascii() and word.isdecimal() for word in words):
                raise OptionError(f"--topic is TOPIC or TOPIC:0,1, got {text!r}")
            wanted = [int(word) for word in words]
            missing = sorted({*wanted} - {*there})
            if missing:
                raise OptionError(
                    f"--topic {text}: topic {name} has {counted(len(there), 'partition')}, and "
                    f"none with the number {some(missing)}"
                )
        chosen += [TopicPartition(name, number) for number in wanted]
    return sorted(set(chosen))


def _listed(
    admin: Admin, partitions: list[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, int]:
    found = admin.list_offsets(dict.fromkeys(partitions, spec)).all()
    return {tp: row.offset for tp, row in found.items()}


def _print_plan(
    group: str,
    plan: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
    executed: bool,
    as_json: bool,
) -> None:
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "from": committed.get(tp),
            "to": offset,
            "change": None if tp not in committed else offset - committed[tp],
        }
        for tp, offset in plan.items()
    ]
    if as_json:
        print_json({"group": group, "executed": executed, "partitions": rows})
        return
    columns = ("topic", "partition", "from", "to", "change")
    print_table(columns, [[row[column] for column in columns] for row in rows])
    done = "was reset" if len(rows) == 1 else "were reset"
    what = done if executed else "would be reset; give --execute to do it"
    print_line(f"group {group}: {counted(len(rows), 'partition')} {what}")


# --- delete -----------------------------------------------------------------------------------


@app.command()
def delete(context: typer.Context, groups: Groups, yes: Yes = False) -> None:
    """Delete groups without members, with all their offsets."""
    with session_of(context).admin() as admin:
        found = admin.describe_consumer_groups(groups)
        shared = _share_groups_among(admin, found.errors)
        # Before any is deleted.
        fail_each(row for key, row in found.errors.items() if key not in shared)
        confirm(f"Delete {counted(len(found), 'group')} ({', '.join(found)}) for ever?", yes, admin)
        results = admin.delete_consumer_groups(list(found))
    for name in results.values_by_item:
        print_line(f"group {name} was deleted")
    fail_each(results.errors.values())
