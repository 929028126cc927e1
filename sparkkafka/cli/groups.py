"""`groups`: list, describe, reset and delete consumer groups and share groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sparkkafka.cli import commands, tables
from sparkkafka.cli.bounded_admin import BoundedAdmin, offsets_of
from sparkkafka.cli.lag import committed_of_group
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.groups import ConsumerGroupDescription, ShareGroupDescription
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.lags import PartitionLag, list_lags
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.errors import ErrorCode, KafkaError, OptionError, counted, some
from sparkkafka.protocol.constants import NO_OFFSET

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Group = ConsumerGroupDescription | ShareGroupDescription
Groups = Annotated[
    list[str],
    Argument(metavar="GROUP", help="Names of groups.", autocompletion=commands.group_names),
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
    state: list[str] | None = Option(
        None, help="Only groups in this state: Stable, Empty, …; may be repeated."
    ),
    as_json: commands.AsJson = False,
) -> None:
    """List all consumer groups and share groups that you may see."""
    with commands.session_of(context).admin() as admin:
        listing = admin.list_groups(states=state or None)
    rows = [
        {"group": row.group_id, "state": row.state, "type": row.type, "simple": row.is_simple}
        for row in listing
        if row.protocol_type in ("", "consumer", "share")  # "": it only has offsets
    ]
    empty = None if listing.errors else "no groups"
    tables.print_rows(("group", "state", "type"), rows, as_json, empty=empty)
    commands.fail_each(listing.errors.values())


# --- describe ---------------------------------------------------------------------------------


@app.command()
def describe(context: typer.Context, groups: Groups, as_json: commands.AsJson = False) -> None:
    """Show state, members, and for each partition the committed offset, the lag and its member."""
    documents: list[dict[str, Any]] = []
    errors: list[KafkaError] = []
    with commands.session_of(context).admin() as admin:
        described, failures = _describe_groups(admin, groups)
        for row in described.values():
            if isinstance(row, ShareGroupDescription):
                documents.append(_share_group_document(admin, row))
            else:
                lags = list_lags(admin, committed_of_group(admin, row.group_id))
                errors += [lag.error for lag in lags if lag.error is not None]
                documents.append(_consumer_group_document(row, lags))
    tables.print_documents(documents, _print_group, as_json)
    commands.fail_each([*failures.values(), *errors])


def _describe_groups(
    admin: BoundedAdmin, names: Sequence[str]
) -> tuple[dict[str, Group], dict[str, KafkaError]]:
    """Describe groups as consumer groups, and those that are no consumer groups as share groups.
    Return the descriptions and the errors by name."""
    found = admin.describe_consumer_groups(names)
    missing = [
        name for name, error in found.errors.items() if error.code == ErrorCode.GROUP_ID_NOT_FOUND
    ]
    share_groups = admin.describe_share_groups(missing).values_by_item if missing else {}
    errors = {
        name: admin.with_nearest_group(name, error)
        for name, error in found.errors.items()
        if name not in share_groups
    }
    return {**found.values_by_item, **share_groups}, errors


def _consumer_group_document(
    group: ConsumerGroupDescription, lags: Iterable[PartitionLag]
) -> dict[str, Any]:
    """Describe a consumer group for JSON. A static member is named by its group.instance.id. `gone`
    is the number of unread offsets that retention has deleted."""
    members = {tp: member for member in group.members for tp in member.assignment}
    partitions = []
    for lag in lags:
        member = members.get(lag.partition)
        partitions.append(
            {
                **lag.partition._asdict(),
                "committed": lag.committed,
                "latest": lag.latest,
                "lag": lag.lag,
                "gone": lag.gone,
                "client_id": member and member.client_id,
                "host": member and member.host,
                "member_id": member and (member.group_instance_id or member.member_id),
            }
        )
    return _group_document(group, group.type, partitions)


def _share_group_document(admin: Admin, group: ShareGroupDescription) -> dict[str, Any]:
    """Describe a share group for JSON. `committed` is the first offset that is not yet
    processed."""
    offsets = admin.list_share_group_offsets(group.group_id).all()
    ends = offsets_of(admin, sorted(offsets), OffsetSpec.latest())
    partitions = []
    for tp, position in sorted(offsets.items()):
        members = [member for member in group.members if tp in member.assignment]
        partitions.append(
            {
                **tp._asdict(),
                "committed": None if position is None else position.start_offset,
                "latest": ends[tp],
                "lag": None if position is None else position.lag,
                "gone": 0,
                **{
                    name: ", ".join(sorted({getattr(member, name) for member in members})) or None
                    for name in ("client_id", "host", "member_id")
                },
            }
        )
    return _group_document(group, "share", partitions)


def _group_document(
    group: Group, type_name: str, partitions: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the fields that both kinds of groups have, for JSON."""
    return {
        "group": group.group_id,
        "state": group.state,
        "type": type_name,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "members": len(group.members),
        "partitions": partitions,
    }


def _print_group(document: Mapping[str, Any]) -> None:
    """Print a group: a line, a table of its partitions, and its total lag."""
    parts = [
        f"group {document['group']}",
        document["state"],
        document["type"],
        counted(document["members"], "member"),
        f"assignor {document['assignor']}" if document["assignor"] else None,
        f"coordinator {document['coordinator']}" if document["coordinator"] is not None else None,
    ]
    tables.print_line(", ".join(part for part in parts if part))
    rows = document["partitions"]
    columns = ("topic", "partition", "committed", "latest", "lag", "gone", "client_id", "host")
    tables.print_table(columns, rows)
    tables.print_line(f"{tables.text_of(sum(row['lag'] or 0 for row in rows))} behind in all")


# --- reset ------------------------------------------------------------------------------------


def _offsets_at_time(admin: Admin, end: Offsets, timestamp_ms: int) -> Offsets:
    """Return the offset of each partition's first record at this time or later; `end`, the end of
    the partition, if there is none."""
    offsets = offsets_of(admin, end, OffsetSpec.for_timestamp(timestamp_ms))
    return {tp: end[tp] if offset == NO_OFFSET else offset for tp, offset in offsets.items()}


def _shifted(
    committed: Offsets, partitions: Iterable[TopicPartition], shift_by: int, group: str
) -> Offsets:
    """Return the committed offsets of these partitions plus `shift_by`. Raises OptionError for a
    partition in which the group has no offset."""
    for tp in partitions:
        if tp not in committed:
            raise OptionError(
                f"--shift-by: group {group} has no offset in {tp}: use another way there"
            )
    return {tp: committed[tp] + shift_by for tp in partitions}


@app.command()
def reset(
    context: typer.Context,
    group: Annotated[
        str, Argument(metavar="GROUP", help="The group.", autocompletion=commands.group_names)
    ],
    topic: list[str] | None = Option(
        None,
        metavar="TOPIC[:0,3,5-7]",
        autocompletion=commands.topic_names,
        help="A topic, or partitions; may be repeated.",
    ),
    all_topics: bool = Option(
        False, "--all-topics", help="All topics in which the group has offsets."
    ),
    to_earliest: commands.ToEarliest = False,
    to_latest: commands.ToLatest = False,
    to_time: commands.ToTime = None,
    to_offset: int | None = Option(None, metavar="N", help="To this offset."),
    shift_by: int | None = Option(
        None, metavar="N", help="By N offsets; backward if N is negative."
    ),
    execute: commands.Execute = False,
    as_json: commands.AsJson = False,
) -> None:
    """Set the committed offsets of a group. Without --execute nothing is changed.

    A new offset is limited to those that the partition has. The group must have no members: stop
    its consumers.
    """
    target = commands.choose_option(
        {
            "--to-earliest": to_earliest,
            "--to-latest": to_latest,
            "--to-time": to_time,
            "--to-offset": to_offset,
            "--shift-by": shift_by,
        }
    )
    if bool(topic) == all_topics:
        raise OptionError("give --topic TOPIC or --all-topics, and not both")
    if to_offset is not None and to_offset < 0:
        raise OptionError(f"--to-offset is not negative, got {to_offset}; there is --shift-by")
    number = to_offset or shift_by or 0
    if to_time is not None:
        number = commands.timestamp_ms_of(to_time, "--to-time")
    with commands.session_of(context).admin() as admin:
        described, failures = _describe_groups(admin, [group])
        _check_no_members(described.get(group), failures.get(group))
        is_share_group = isinstance(described.get(group), ShareGroupDescription)
        if is_share_group:  # of which the start offsets are set
            positions = admin.list_share_group_offsets(group).all()
            committed = {tp: row.start_offset for tp, row in positions.items() if row is not None}
        else:
            rows = admin.list_consumer_group_offsets(group).all()
            committed = {tp: row.offset for tp, row in rows.items() if row is not None}
        partitions = _choose_partitions(admin, group, committed, topic or ())
        first = offsets_of(admin, partitions, OffsetSpec.earliest())
        end = offsets_of(admin, partitions, OffsetSpec.latest())
        if target == "--to-time":
            targets = _offsets_at_time(admin, end, number)
        elif target == "--shift-by":
            targets = _shifted(committed, partitions, number, group)
        else:
            targets = {"--to-earliest": first, "--to-latest": end}.get(
                target, dict.fromkeys(partitions, number)
            )
        plan = {tp: min(max(targets[tp], first[tp]), end[tp]) for tp in partitions}
        for tp, offset in plan.items():
            if offset != targets[tp]:
                tables.print_error(
                    f"{tp}: offset {targets[tp]} is not there, {offset} is the nearest of "
                    f"{first[tp]} to {end[tp]}"
                )
        if group in failures:
            hint = admin.nearest_group_text(group)
            creates = "it is created now" if execute else "--execute creates it"
            tables.print_error(f"group {group} does not exist yet ({hint}): {creates}")
        if execute and is_share_group:
            admin.alter_share_group_offsets(group, plan).all()
        elif execute:
            admin.alter_consumer_group_offsets(group, plan).all()
    changes = [
        {
            **tp._asdict(),
            "from": committed.get(tp),
            "to": offset,
            "change": None if tp not in committed else offset - committed[tp],
        }
        for tp, offset in plan.items()
    ]
    if as_json:
        tables.print_json({"group": group, "executed": execute, "partitions": changes})
        return
    tables.print_table(("topic", "partition", "from", "to", "change"), changes)
    done = "was reset" if len(changes) == 1 else "were reset"
    outcome = done if execute else "would be reset; give --execute to do it"
    tables.print_line(f"group {group}: {counted(len(changes), 'partition')} {outcome}")


def _check_no_members(group: Group | None, error: KafkaError | None) -> None:
    """Raise KafkaError if the group has members: the coordinator would refuse each partition, and
    say less. Raise `error`, unless it says that there is no group: its first offset creates it."""
    if error is not None and error.code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise error
    if group is not None and group.members:
        members = sorted({f"{member.client_id} at {member.host}" for member in group.members})
        raise KafkaError(
            f"group {group.group_id} has {counted(len(group.members), 'member')} "
            f"({some(members, limit=3)}) and is {group.state}: stop its consumers first (those "
            "that died count until their session timeout has passed)"
        )


def _choose_partitions(
    admin: Admin, group: str, committed: Iterable[TopicPartition], texts: Iterable[str]
) -> list[TopicPartition]:
    """Return the partitions that the values of --topic (`texts`) name; without any, all partitions
    in which the group has offsets. Raises OptionError, UnknownTopicError."""
    if not texts:
        partitions = sorted(committed)
        if not partitions:
            raise OptionError(f"group {group} has no offsets: name topics with --topic")
        return partitions
    chosen: set[TopicPartition] = set()
    for text in texts:
        name, colon, numbers = text.partition(":")
        known = [row.partition for row in admin.describe_topic(name).partitions]
        named = known
        if colon:
            named = list(commands.parse_partitions(numbers, f"--topic {text}"))
            missing = sorted({*named} - {*known})
            if missing:
                raise OptionError(
                    f"--topic {text}: topic {name} has {counted(len(known), 'partition')}, and "
                    f"none with the number {some(missing)}"
                )
        chosen |= {TopicPartition(name, number) for number in named}
    return sorted(chosen)


# --- delete -----------------------------------------------------------------------------------


@app.command()
def delete(context: typer.Context, groups: Groups, yes: commands.Yes = False) -> None:
    """Delete groups without members, with all their offsets."""
    with commands.session_of(context).admin() as admin:
        _, failures = _describe_groups(admin, groups)
        commands.fail_each(failures.values())  # before any group is deleted
        names = list(dict.fromkeys(groups))
        commands.confirm(
            f"Delete {counted(len(names), 'group')} ({', '.join(names)}) for ever?", yes, admin
        )
        results = admin.delete_consumer_groups(names)
    for name in results.values_by_item:
        tables.print_line(f"group {name} was deleted")
    commands.fail_each(results.errors.values())
