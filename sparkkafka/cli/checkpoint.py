"""`checkpoint`: show, compare, verify and reset the checkpoint of a streaming query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from sparkkafka.checkpoints import logs
from sparkkafka.checkpoints.against_kafka import Position, decision_of, positions_of
from sparkkafka.checkpoints.comparison import PartitionChange, VerifyFinding, diff, verify
from sparkkafka.checkpoints.reset import KEPT, ResetPlan, plan_reset
from sparkkafka.cli import commands
from sparkkafka.cli.lag import LagOptions, show_lag_of_checkpoint
from sparkkafka.cli.tables import print_error, print_json, print_line, print_table, text_of
from sparkkafka.client.admin.admin import Admin
from sparkkafka.config.source import FROM_EARLIEST, TO_LATEST, OffsetBound, parse_offsets
from sparkkafka.errors import (
    AuthenticationError,
    CheckpointError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    counted,
    some,
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Dir = Annotated[
    str,
    Argument(
        metavar="DIR", help="The checkpointLocation: a path, or s3://, gs://, abfss://, hdfs://."
    ),
]
WithKafka = Annotated[bool, Option("--kafka", help="Also compare with the brokers.")]
Prefix = Annotated[
    str | None,
    Option("--prefix", help="The query's transactionalIdPrefix, if it is not the default."),
]


@app.callback()
def checkpoint_commands() -> None:
    """Checkpoints of streaming queries, of this connector and of the JVM connector.

    \b
      sparkkafka checkpoint show /data/checkpoints/orders
      sparkkafka -b localhost:9092 checkpoint lag /data/checkpoints/orders
      sparkkafka -b localhost:9092 checkpoint reset DIR --to-time -2h
    """


def _check_prefix(prefix: str | None, with_kafka: bool) -> None:
    """Raise OptionError for --prefix without --kafka, where it has no effect."""
    if prefix is not None and not with_kafka:
        raise OptionError("--prefix is for the lookups of --kafka: give --kafka too")


# --- show -------------------------------------------------------------------------------------


@app.command()
def show(
    context: typer.Context,
    location: Dir,
    batches: int = Option(10, "-n", "--batches", min=1, help="The number of last batches."),
    kafka: WithKafka = False,
    prefix: Prefix = None,
    as_json: commands.AsJson = False,
) -> None:
    """Show the last batches, by source and topic, and the offsets from which the next start reads.

    With --kafka it also shows the unread offsets, those that retention has deleted, and the
    decision of an exactly-once query.
    """
    _check_prefix(prefix, kafka)
    checkpoint = logs.Checkpoint(location)
    errors: list[KafkaError] = []
    document: dict[str, Any] = {
        "checkpoint": checkpoint.location,
        "query_id": _result_or_none(lambda: checkpoint.query_id, errors),
        "stateful": checkpoint.is_stateful,
        "batches": batch_documents(checkpoint, batches, errors),
        "next_start": _result_or_none(lambda: _next_start_document(checkpoint), errors),
    }
    backups = _result_or_none(lambda: logs.backups_of(checkpoint.storage), errors) or []
    document["backups"] = [{"folder": row.name, "whole": row.is_complete} for row in backups]
    if kafka:
        with commands.session_of(context).admin() as admin:
            _add_from_kafka(document, checkpoint, admin, prefix, errors)
    if as_json:
        print_json(document)
    else:
        _print_shown(document)
        if complete := [row.name for row in backups if row.is_complete]:
            print_line(f"the files before the last reset are in {complete[-1]}")
        for text in logs.incomplete_backup_notes(backups):
            print_line(f"-- {text}")
    # A file that was read twice has two equal errors.
    commands.fail_each({str(error): error for error in errors}.values())


def _add_from_kafka(
    document: dict[str, Any],
    checkpoint: logs.Checkpoint,
    admin: Admin,
    prefix: str | None,
    errors: list[KafkaError],
) -> None:
    """Add to the document of `show` the unread offsets and the decision of an exactly-once query.
    Errors of lookups are appended to `errors`."""
    positions = _result_or_none(lambda: positions_of(checkpoint, admin), errors)
    if document["next_start"] is not None and positions is not None:
        document["next_start"]["partitions"] = [_position_document(row) for row in positions]
    no_cluster = (AuthenticationError, KafkaConnectionError, KafkaTimeoutError)
    if errors and isinstance(errors[-1], no_cluster):
        return  # it will not answer another request either
    status = _result_or_none(lambda: decision_of(checkpoint, admin, prefix=prefix), errors)
    if status is not None:
        document["decision"] = {
            "verdict": status.verdict,
            "group": status.group,
            "batch": None if status.decision is None else status.decision.batch_id,
            "text": status.text,
        }


def _result_or_none(read: Callable[[], Any], errors: list[KafkaError]) -> Any:
    """Call `read`. If it raises a KafkaError, append that to `errors` and return None."""
    try:
        return read()
    except KafkaError as error:
        errors.append(error)
        return None


def batch_documents(
    checkpoint: logs.Checkpoint, count: int, errors: list[KafkaError]
) -> list[dict[str, Any]]:
    """Return the last `count` planned batches for JSON. The errors of plans that cannot be read are
    appended to `errors`."""
    finished = set(checkpoint.committed)
    plans: dict[int, logs.Plan | None] = {
        batch_id: _result_or_none(partial(checkpoint.plan, batch_id), errors)
        # One more than is shown: the records of the first one are counted from its predecessor.
        for batch_id in checkpoint.planned[-count - 1 :]
    }
    rows = []
    for batch_id in checkpoint.planned[-count:]:
        plan, before = plans[batch_id], plans.get(batch_id - 1)
        rows.append(
            {
                "batch": batch_id,
                "finished": batch_id in finished,
                "planned_ms": None if plan is None else plan.planned_ms,
                "watermark_ms": None if plan is None else plan.watermark_ms,
                "sources": [] if plan is None else _source_documents(before, plan),
            }
        )
    return rows


def _source_documents(before: logs.Plan | None, plan: logs.Plan) -> list[dict[str, Any]]:
    """Return for JSON what a batch read from each source. `before` is the plan of the batch before;
    if that is None, `records` is None."""
    return [
        {
            "source": change.name,
            "kafka": change.after.offsets is not None,
            "offset": _foreign_offset(change.after),
            "partitions": [
                {**row.partition._asdict(), "offset": row.after, "records": row.records}
                for row in change.partitions
                if row.after is not None
            ],
        }
        for change in diff(before, plan)
        if change.after is not None
    ]


def records_read(partitions: Iterable[Mapping[str, Any]]) -> int | None:
    """Return how many records a batch read from the partitions of its document; None if the plan
    before it lacks one of them."""
    records = [row["records"] for row in partitions]
    return sum(records) if records and None not in records else None


def _next_start_document(checkpoint: logs.Checkpoint) -> dict[str, Any]:
    """Return, for JSON, the batch and offsets with which the query starts when it is run again."""
    start = checkpoint.next_start()
    return {
        "kind": start.kind,
        "batch": start.batch_id,
        "partitions": [
            {"source": source, **tp._asdict(), "offset": offset}
            for source, offsets in logs.offsets_of_next_batch(checkpoint, start).items()
            for tp, offset in offsets.items()
        ],
    }


def _position_document(row: Position) -> dict[str, Any]:
    """Return a source's position in a partition for JSON, with the brokers' offsets."""
    return {
        "source": row.source,
        **row.partition._asdict(),
        "offset": row.next_offset,
        "new": row.is_new,
        "gone": row.is_gone,
        "earliest": row.earliest,
        "latest": row.latest,
        "left": None if row.is_gone else row.left,
        "lost": row.lost,
        "beyond": row.beyond,
    }


def _print_shown(document: Mapping[str, Any]) -> None:
    """Print the document of `show`."""
    state = ", keeps state" if document["stateful"] else ""
    print_line(f"{document['checkpoint']}: query {document['query_id'] or '?'}{state}")
    print_table(
        ("batch", "planned", "finished", "source", "topic", "partitions", "records", "offset"),
        [cells for row in document["batches"] for cells in _batch_cells(row)],
    )
    start = document["next_start"]
    if start is not None:
        batch = start["batch"]
        # Without a batch before it, the query looks up startingOffsets again.
        origin = ", from:" if start["partitions"] else ", from its startingOffsets"
        print_line(
            {
                "new": "no batch was planned yet: the next start begins at its startingOffsets",
                "next": f"the next start plans batch {batch}, which reads from:",
                "repeat": f"batch {batch} is planned and not finished: the next start runs it "
                f"again{origin}",
            }[start["kind"]]
        )
        _print_starts(start["partitions"])
    if "decision" in document:
        print_line(f"exactly-once: {document['decision']['text']}")


def _batch_cells(batch: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return a row of the table in `_print_shown` for each topic of a batch."""
    head: tuple[Any, ...] = (
        str(batch["batch"]),  # as text: a number would be shown with commas
        None if batch["planned_ms"] is None else commands.local_time(batch["planned_ms"]),
        batch["finished"],
    )
    cells: list[tuple[Any, ...]] = []
    for source in batch["sources"]:
        topics: dict[str, list[Mapping[str, Any]]] = {}
        for partition in source["partitions"]:
            topics.setdefault(partition["topic"], []).append(partition)
        for topic, partitions in topics.items():
            records = records_read(partitions)
            cells.append((*head, source["source"], topic, len(partitions), records, None))
        if not topics:
            cells.append((*head, source["source"], None, None, None, source["offset"]))
    return cells or [(*head, None, None, None, None, "unreadable")]


def _print_starts(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the offsets from which the next start reads. `rows` are partitions as
    `_next_start_document` or, compared with the brokers, `_position_document` describes them."""
    noted = []
    for row in rows:
        note = "new: read from its beginning" if row.get("new") else None
        if row.get("gone"):
            note = "no longer exists"
        elif row.get("beyond"):
            note = f"{text_of(row['beyond'])} behind the end: was the topic recreated?"
        noted.append({**row, "note": note})
    columns = ("source", "topic", "partition", "offset", "earliest", "latest", "left")
    print_table((*columns, "lost", "note"), noted)


# --- diff -------------------------------------------------------------------------------------


@app.command("diff")
def diff_batches(
    location: Dir,
    before: int | None = Argument(None, metavar="BATCH", show_default="the last but one"),
    after: int | None = Argument(None, metavar="BATCH", show_default="the last"),
    as_json: commands.AsJson = False,
) -> None:
    """Show the differences of two batches: offsets by partition, other sources, Spark's settings.

    Without numbers these are the last two; with one number, this batch and the one before it.
    """
    checkpoint = logs.Checkpoint(location)
    if not checkpoint.planned:
        raise CheckpointError(f"{checkpoint.location}: no batch was planned yet")
    if after is None:
        after = checkpoint.planned[-1] if before is None else before
        before = None
    if before is None:
        earlier = [batch for batch in checkpoint.planned if batch < after]
        if not earlier:
            raise CheckpointError(f"{checkpoint.location} has no batch before batch {after}")
        before = earlier[-1]
    for batch in (before, after):
        if batch not in checkpoint.planned:
            existing = f"{checkpoint.planned[0]} to {checkpoint.planned[-1]}"
            raise OptionError(f"{checkpoint.location} has no batch {batch}; it has {existing}")
    old, new = checkpoint.plan(before), checkpoint.plan(after)
    sources: list[dict[str, Any]] = [
        {
            "source": change.name,
            "before": _foreign_offset(change.before),
            "after": _foreign_offset(change.after),
            "partitions": _change_documents(change.partitions),
        }
        for change in diff(old, new)
    ]
    settings = _changed_settings(old, new)
    if as_json:
        print_json(
            {
                "checkpoint": checkpoint.location,
                "before": before,
                "after": after,
                "sources": sources,
                "settings": settings,
            }
        )
        return
    print_line(f"{checkpoint.location}: batch {before} and batch {after}")
    columns = ("source", "topic", "partition", "before", "after", "records")
    rows = []
    for source in sources:
        if source["before"] or source["after"]:
            rows.append(source)
        rows += ({**row, "source": source["source"]} for row in source["partitions"])
    print_table(columns, rows)
    for name, change in settings.items():
        print_line(f"{name}: {text_of(change['before'])} -> {text_of(change['after'])}")


def _foreign_offset(source: logs.SourceOffsets | None) -> str | None:
    """Return the text of the offset of another source than Kafka; None for Kafka's."""
    return None if source is None or source.offsets is not None else source.text


def _change_documents(changes: Iterable[PartitionChange]) -> list[dict[str, Any]]:
    """Return the offsets of partitions before and after, for JSON."""
    return [
        {
            **row.partition._asdict(),
            "before": row.before,
            "after": row.after,
            "records": row.records,
        }
        for row in changes
    ]


def _changed_settings(old: logs.Plan, new: logs.Plan) -> dict[str, dict[str, Any]]:
    """Return the values before and after, by name, of each setting of Spark that the checkpoint
    keeps, and of the watermark, if they differ."""
    before, after = ({**plan.settings, "watermark_ms": plan.watermark_ms} for plan in (old, new))
    return {
        name: {"before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


# --- verify -----------------------------------------------------------------------------------


@app.command("verify")
def verify_files(
    context: typer.Context,
    location: Dir,
    kafka: WithKafka = False,
    prefix: Prefix = None,
    as_json: commands.AsJson = False,
) -> None:
    """Check a checkpoint for torn files, gaps, wrong checksums; with --kafka also for lost records.

    The exit code is 1 if something prevents Spark from starting the query, or makes it read other
    records than it should.
    """
    _check_prefix(prefix, kafka)
    checkpoint = logs.Checkpoint(location)
    findings = verify(checkpoint)
    if kafka:
        with commands.session_of(context).admin() as admin:
            findings += _verify_with_kafka(checkpoint, admin, prefix)
    is_ok = not any(row.level == "error" for row in findings)
    if as_json:
        print_json(
            {
                "checkpoint": checkpoint.location,
                "ok": is_ok,
                "findings": [row._asdict() for row in findings],
            }
        )
    else:
        for row in findings:
            print_line(f"{'!!' if row.level == 'error' else '--'} {row.where}: {row.text}")
        if is_ok:
            plans = counted(len(checkpoint.planned), "plan")
            print_line(
                f"ok {checkpoint.location}: {plans} read, nothing prevents the query from starting"
            )
    if not is_ok:
        raise typer.Exit(1)


def _verify_with_kafka(
    checkpoint: logs.Checkpoint, admin: Admin, prefix: str | None
) -> list[VerifyFinding]:
    """Return the findings of `verify --kafka`: partitions that are gone, unread offsets that are
    deleted, logs that end before the query's offsets, and the exactly-once decision."""
    found = []
    try:
        positions = positions_of(checkpoint, admin)
    except CheckpointError:
        positions = []  # a damaged file, which `verify` has reported
    for row in positions:
        text = None
        if row.is_gone:
            text = "no longer exists"
        elif row.lost:
            text = (
                f"{text_of(row.lost)} offsets are deleted that were not read (from offset "
                f"{row.next_offset} to {row.earliest})"
            )
        elif row.beyond:
            text = (
                f"the query continues at offset {row.next_offset}, and the log ends at "
                f"{row.latest}: was the topic recreated?"
            )
        if text is not None:
            found.append(VerifyFinding("error", f"source {row.source}, {row.partition}", text))
    status = decision_of(checkpoint, admin, prefix=prefix)
    if status.verdict != "none":
        is_error = status.verdict in ("ahead", "other query")
        found.append(VerifyFinding("error" if is_error else "note", status.group, status.text))
    return found


# --- reset ------------------------------------------------------------------------------------


@app.command()
def reset(
    context: typer.Context,
    location: Dir,
    to_earliest: commands.ToEarliest = False,
    to_latest: commands.ToLatest = False,
    to_time: commands.ToTime = None,
    to_offsets: str | None = Option(
        None,
        metavar="JSON",
        help='As in startingOffsets: {"orders":{"0":23,"1":-1}}; others are not changed.',
    ),
    keep: bool = Option(False, "--keep", help="Change no offset: only repair damaged files."),
    source: str | None = Option(None, help="The source, if the query has several Kafka sources."),
    topic: list[str] | None = Option(None, help="Only this topic; may be repeated."),
    unfinished: Literal["done", "drop"] | None = Option(
        None, metavar="done|drop", help="How to treat a batch that is planned and not finished."
    ),
    keep_state: bool = Option(
        False, "--keep-state", help="Accept that the reset does not change the query's state."
    ),
    stopped: bool = Option(
        False, "--stopped", help="The query is stopped, even if its files are new."
    ),
    offline: bool = Option(
        False, "--offline", help="Do not contact brokers: offsets are not checked."
    ),
    prefix: Prefix = None,
    execute: commands.Execute = False,
    as_json: commands.AsJson = False,
) -> None:
    """Set the offsets from which the next start reads. Without --execute nothing is changed.

    Stop the query first. The logs are copied into DIR/backups before anything is written; a copy
    without _SUCCESS in it is incomplete. The exit code is 1 if the reset is refused.
    """
    option = commands.choose_option(
        {
            "--to-earliest": to_earliest,
            "--to-latest": to_latest,
            "--to-time": to_time,
            "--to-offsets": to_offsets,
            "--keep": keep,
        }
    )
    if to_time is not None:
        at_ms = commands.timestamp_ms_of(to_time, option)
        bound = OffsetBound("timestamp", timestamp_ms=at_ms, option=option)
    elif to_offsets is not None:
        bound = OffsetBound("specific", parse_offsets(to_offsets, option), option=option)
    else:
        bound = {"--to-earliest": FROM_EARLIEST, "--to-latest": TO_LATEST, "--keep": KEPT}[option]
    if offline and prefix is not None:
        raise OptionError("--offline looks up no decision: remove --prefix")
    if keep and topic:
        raise OptionError("--keep moves no offset: remove --topic")
    plan_with = partial(
        plan_reset,
        logs.Checkpoint(location),
        bound,
        source=source,
        topics=topic or (),
        unfinished=unfinished,
        keep_state=keep_state,
        stopped=stopped,
        prefix=prefix,
    )
    if offline:
        plan = plan_with(None)
    else:
        with commands.session_of(context).admin() as admin:
            plan = plan_with(admin)
    backup = plan.apply() if execute and not plan.obstacles else None
    _print_reset(plan, backup, as_json)
    if plan.obstacles:
        for text in plan.obstacles:
            print_error(text)
        raise typer.Exit(1)


def _print_reset(plan: ResetPlan, backup: str | None, as_json: bool) -> None:
    """Print what a reset has changed or would change. `backup` is the folder of the old files; None
    if the reset was not executed."""
    if as_json:
        print_json(
            {
                "checkpoint": plan.checkpoint.location,
                "source": plan.source,
                "next_batch": plan.next_batch,
                "executed": backup is not None,
                "backup": backup,
                "partitions": _change_documents(plan.changes),
                "removes": list(plan.removals),
                "writes": list(plan.writes),
                "notes": list(plan.notes),
                "obstacles": list(plan.obstacles),
            }
        )
        return
    rows = ({**row, "moved": row["records"]} for row in _change_documents(plan.changes))
    print_table(("topic", "partition", "before", "after", "moved"), rows)
    for note in plan.notes:
        print_line(f"-- {note}")
    files = some((*plan.removals, *plan.writes), limit=20)
    batch = plan.next_batch
    if backup is None:
        print_line(f"batch {batch} would start from there; the reset would change {files}")
        if not plan.obstacles:
            print_line("nothing was changed: add --execute to do it")
    else:
        print_line(f"batch {batch} starts from there; {files} changed")
        print_line(f"the old files are in {backup}")


# --- lag --------------------------------------------------------------------------------------


@app.command()
@commands.with_option_groups
def lag(context: typer.Context, location: Dir, options: LagOptions) -> None:
    """Show the lag of the query, in offsets and in seconds. Same as `lag --checkpoint DIR`.

    The lag counts from the end of the last finished batch, where the next start continues.
    """
    show_lag_of_checkpoint(commands.session_of(context), location, options)
