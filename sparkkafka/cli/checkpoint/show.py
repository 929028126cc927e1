"""`checkpoint show`: the last batches, and where the next start reads on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sparkkafka.checkpoints.backups import backups_of, part_words
from sparkkafka.checkpoints.changes import PartitionChange, diff
from sparkkafka.checkpoints.logs import Checkpoint, Plan, starting_offsets
from sparkkafka.cli.checkpoint.arguments import Ask, Dir, Prefix, check_prefix
from sparkkafka.cli.commands import AsJson, fail_each, session_of
from sparkkafka.cli.tables import print_json, print_line, print_table, text_of
from sparkkafka.cli.times import iso_of
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)

if TYPE_CHECKING:
    from sparkkafka.checkpoints.positions import Position

UNREACHABLE: Final = (AuthenticationError, KafkaConnectionError, KafkaTimeoutError)
"""Of the cluster, which answers no other question either."""


def show(
    context: typer.Context,
    location: Dir,
    batches: Annotated[
        int, typer.Option("-n", "--batches", min=1, help="How many of the last batches.")
    ] = 10,
    kafka: Ask = False,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """The last batches, by source and topic, and where the next start reads on.

    With --kafka also what is left to read, what retention has deleted meanwhile, and which
    decision of an exactly-once query stands.
    """
    check_prefix(prefix, asks=kafka)
    found = Checkpoint(location)
    errors: list[KafkaError] = []
    query_id = or_error(lambda: found.query_id, errors)
    rows = _batches(found, batches, errors)
    document: dict[str, Any] = {
        "checkpoint": found.location,
        "query_id": query_id,
        "stateful": found.is_stateful,
        "batches": rows,
        "next_start": or_error(lambda: _next_start(found), errors),
    }
    backups = or_error(lambda: backups_of(found.storage), errors) or []
    document["backups"] = [{"folder": one.name, "whole": one.is_whole} for one in backups]
    if kafka:
        from sparkkafka.checkpoints.decisions import decision_of
        from sparkkafka.checkpoints.positions import positions_of

        with session_of(context).admin() as admin:
            positions = or_error(lambda: positions_of(found, admin), errors)
            standing = None
            if not (errors and isinstance(errors[-1], UNREACHABLE)):
                standing = or_error(lambda: decision_of(found, admin, prefix=prefix), errors)
        if document["next_start"] is not None and positions is not None:
            document["next_start"]["partitions"] = [_position(row) for row in positions]
        if standing is not None:
            document["decision"] = {
                "verdict": standing.verdict,
                "group": standing.group,
                "batch": None if standing.decision is None else standing.decision.batch_id,
                "text": standing.text,
            }
    if as_json:
        print_json(document)
    else:
        _print_shown(document, found)
        if whole := [one.name for one in backups if one.is_whole]:
            print_line(f"the files before the last reset are in {whole[-1]}")
        for text in part_words(backups):
            print_line(f"-- {text}")
    # The same file may have been read twice.
    fail_each(dict((str(error), error) for error in errors).values())


def _batches(found: Checkpoint, most: int, errors: list[KafkaError]) -> list[dict[str, Any]]:
    """The last batches that were planned; one that cannot be read is an error beside the others."""
    finished = set(found.committed)
    plans: dict[int, Plan | None] = {}
    for batch_id in found.planned[-most - 1 :]:
        plans[batch_id] = or_error(partial(found.plan, batch_id), errors)
    rows = []
    for batch_id in found.planned[-most:]:
        plan, before = plans[batch_id], plans.get(batch_id - 1)
        rows.append(
            {
                "batch": batch_id,
                "finished": batch_id in finished,
                "planned_ms": None if plan is None else plan.planned_ms,
                "watermark_ms": None if plan is None else plan.watermark_ms,
                "sources": [] if plan is None else _sources(before, plan),
            }
        )
    return rows


def _sources(before: Plan | None, plan: Plan) -> list[dict[str, Any]]:
    """`records` is what the batch read: None where the plan before it is not known."""
    rows = []
    for change in diff(before, plan):
        if change.after is None:
            continue
        is_kafka = change.after.offsets is not None
        rows.append(
            {
                "source": change.name,
                "kafka": is_kafka,
                "offset": None if is_kafka else change.after.text,
                "partitions": [_change(row) for row in change.partitions if row.after is not None],
            }
        )
    return rows


def _change(row: PartitionChange) -> dict[str, Any]:
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "offset": row.after,
        "records": row.records,
    }


def _next_start(found: Checkpoint) -> dict[str, Any]:
    start = found.next_start()
    return {
        "kind": start.kind,
        "batch": start.batch_id,
        "partitions": [
            {"source": name, "topic": tp.topic, "partition": tp.partition, "offset": at}
            for name, offsets in starting_offsets(found, start).items()
            for tp, at in offsets.items()
        ],
    }


def _position(row: Position) -> dict[str, Any]:
    return {
        "source": row.source,
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "offset": row.next_offset,
        "new": row.is_new,
        "gone": row.is_gone,
        "earliest": row.earliest,
        "latest": row.latest,
        "left": None if row.is_gone else row.left,
        "lost": row.lost,
        "beyond": row.beyond,
    }


def _print_shown(document: Mapping[str, Any], found: Checkpoint) -> None:
    state = ", keeps state" if document["stateful"] else ""
    print_line(f"{document['checkpoint']}: query {document['query_id'] or '?'}{state}")
    print_table(
        ("batch", "planned", "finished", "source", "topic", "partitions", "records", "offset"),
        [cells for row in document["batches"] for cells in _batch_cells(row)],
    )
    start = document["next_start"]
    if start is not None:
        print_line(_start_text(start, found))
        _print_starts(start["partitions"])
    if "decision" in document:
        print_line(f"exactly-once: {document['decision']['text']}")


def _batch_cells(row: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """A row for each topic of a batch."""
    # Batches are names: without commas.
    head: tuple[Any, ...] = (
        str(row["batch"]),
        None if row["planned_ms"] is None else iso_of(row["planned_ms"]),
        row["finished"],
    )
    cells: list[tuple[Any, ...]] = []
    for source in row["sources"]:
        topics: dict[str, list[Mapping[str, Any]]] = {}
        for one in source["partitions"]:
            topics.setdefault(one["topic"], []).append(one)
        for topic, ones in topics.items():
            known = [one["records"] for one in ones if one["records"] is not None]
            records = sum(known) if known else None
            cells.append((*head, source["source"], topic, len(ones), records, None))
        if not topics:
            cells.append((*head, source["source"], None, None, None, source["offset"]))
    return cells or [(*head, None, None, None, None, "unreadable")]


def _start_text(start: Mapping[str, Any], found: Checkpoint) -> str:
    batch = start["batch"]
    if start["kind"] == "new":
        return "no batch was planned yet: the next start begins where its options say"
    if start["kind"] == "on":
        return f"the next start plans batch {batch}, which reads on from:"
    return f"batch {batch} is planned and not finished: the next start runs it again, from:"


def _print_starts(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("source", "topic", "partition", "offset", "earliest", "latest", "left", "lost")
    print_table(
        (*columns, "note"),
        [
            (
                *(row.get(column) for column in columns[:-1]),
                row.get("lost") or None,
                _note(row),
            )
            for row in rows
        ],
    )


def _note(row: Mapping[str, Any]) -> str | None:
    if row.get("gone"):
        return "is not there any more"
    if row.get("beyond"):
        return f"{text_of(row['beyond'])} behind the end: was the topic made again?"
    return "new: read from its beginning" if row.get("new") else None


def or_error(read: Callable[[], Any], errors: list[KafkaError]) -> Any:
    """What `read` gives; None if it fails, and then its error is kept."""
    try:
        return read()
    except KafkaError as error:
        errors.append(error)
        return None
