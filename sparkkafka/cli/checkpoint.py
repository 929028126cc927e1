"""`checkpoint`: show, compare, verify and reset the checkpoint of a streaming query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from sparkkafka.checkpoints.changes import Finding, PartitionChange, diff, verify
from sparkkafka.checkpoints.logs import (
    Checkpoint,
    Plan,
    SourceOffsets,
    backups_of,
    part_words,
    starting_offsets,
)
from sparkkafka.checkpoints.reset import KEPT, ResetPlan, plan_reset
from sparkkafka.cli.commands import AsJson, Execute, fail_each, session_of
from sparkkafka.cli.lag import Interval, Watch, WithAges
from sparkkafka.cli.lag import lag as lag_of_group_or_checkpoint
from sparkkafka.cli.tables import print_error, print_json, print_line, print_table, text_of
from sparkkafka.cli.times import (
    ToEarliest,
    ToLatest,
    ToTime,
    iso_of,
    timestamp_ms_of,
)
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

if TYPE_CHECKING:
    from sparkkafka.checkpoints.positions import Position


# --- arguments of several commands ------------------------------------------------------------

Dir = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="The checkpointLocation: a path, or s3://, gs://, abfss://, hdfs://."
    ),
]
Ask = Annotated[bool, typer.Option("--kafka", help="Ask the brokers, too.")]
Prefix = Annotated[
    str | None,
    typer.Option("--prefix", help="The query's transactionalIdPrefix, if it has one of its own."),
]


def check_prefix(prefix: str | None, *, asks: bool) -> None:
    """Raises OptionError for one that has no effect."""
    if prefix is not None and not asks:
        raise OptionError("--prefix is of what Kafka is asked: give --kafka too")


app = typer.Typer(rich_markup_mode=None)


@app.callback()
def checkpoint() -> None:
    """Checkpoints of streaming queries, of this connector and of the JVM connector.

    \b
      sparkkafka checkpoint show /data/checkpoints/orders
      sparkkafka -b localhost:9092 checkpoint lag /data/checkpoints/orders
      sparkkafka -b localhost:9092 checkpoint reset DIR --to-time -2h
    """


# --- show -------------------------------------------------------------------------------------

UNREACHABLE: Final = (AuthenticationError, KafkaConnectionError, KafkaTimeoutError)
"""Of the cluster, which answers no other question either."""


@app.command()
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


# --- diff -------------------------------------------------------------------------------------


@app.command("diff")
def diff_batches(
    location: Dir,
    before: Annotated[
        int | None, typer.Argument(metavar="BATCH", help="[default: the last but one]")
    ] = None,
    after: Annotated[
        int | None, typer.Argument(metavar="BATCH", help="[default: the last]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What two batches differ in: offsets by partition, other sources, Spark's settings.

    One number compares that batch with the one before it.
    """
    found = Checkpoint(location)
    if not found.planned:
        raise CheckpointError(f"{found.location}: no batch was planned yet")
    if after is None:
        after = found.planned[-1] if before is None else before
        before = None
    if before is None:
        earlier = [batch for batch in found.planned if batch < after]
        if not earlier:
            raise CheckpointError(f"{found.location} has no batch before batch {after}")
        before = earlier[-1]
    for batch in (before, after):
        if batch not in found.planned:
            kept = f"{found.planned[0]} to {found.planned[-1]}"
            raise OptionError(f"{found.location} has no batch {batch}; it has {kept}")
    old, new = found.plan(before), found.plan(after)
    changes = diff(old, new)
    settings = _changed_settings(old, new)
    if as_json:
        print_json(
            {
                "checkpoint": found.location,
                "before": before,
                "after": after,
                "sources": [
                    {
                        "source": change.name,
                        "before": _other_text(change.before),
                        "after": _other_text(change.after),
                        "partitions": [
                            {
                                "topic": row.partition.topic,
                                "partition": row.partition.partition,
                                "before": row.before,
                                "after": row.after,
                                "records": row.records,
                            }
                            for row in change.partitions
                        ],
                    }
                    for change in changes
                ],
                "settings": {name: {"before": a, "after": b} for name, (a, b) in settings.items()},
            }
        )
        return
    print_line(f"{found.location}: batch {before} and batch {after}")
    cells: list[tuple[Any, ...]] = []
    for change in changes:
        texts = _other_text(change.before), _other_text(change.after)
        if any(texts):
            cells.append((change.name, None, None, *texts, None))
        cells += ((change.name, *change_cells(row)) for row in change.partitions)
    print_table(("source", "topic", "partition", "before", "after", "records"), cells)
    for name, (a, b) in settings.items():
        print_line(f"{name}: {text_of(a)} -> {text_of(b)}")


def _other_text(source: SourceOffsets | None) -> str | None:
    """The offset of a source that is not Kafka's."""
    return None if source is None or source.offsets is not None else source.text


def change_cells(row: PartitionChange) -> tuple[Any, ...]:
    return (*row.partition, row.before, row.after, row.records)


def _changed_settings(old: Plan, new: Plan) -> dict[str, tuple[Any, Any]]:
    """Spark's settings that a checkpoint keeps, and the watermark."""
    sides = []
    for plan in (old, new):
        conf = plan.about.get("conf")
        sides.append(
            {
                **(conf if isinstance(conf, dict) else {}),
                "watermark_ms": plan.watermark_ms,
            }
        )
    names = sorted({*sides[0], *sides[1]})
    pairs = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


# --- verify -----------------------------------------------------------------------------------


@app.command("verify")
def verify_files(
    context: typer.Context,
    location: Dir,
    kafka: Ask = False,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Is the checkpoint whole? Torn files, gaps, checksums; with --kafka also lost records.

    Exit code 1 if something keeps Spark from starting the query, or has it read other records
    than it should.
    """
    check_prefix(prefix, asks=kafka)
    found = Checkpoint(location)
    rows = verify(found)
    if kafka:
        with session_of(context).admin() as admin:
            rows += _asked(found, admin, prefix)
    is_well = not any(level == "error" for level, _, _ in rows)
    if as_json:
        print_json(
            {
                "checkpoint": found.location,
                "ok": is_well,
                "findings": [row._asdict() for row in rows],
            }
        )
    else:
        for level, where, text in rows:
            print_line(f"{'!!' if level == 'error' else '--'} {where}: {text}")
        if is_well:
            read = counted(len(found.planned), "plan")
            print_line(f"ok {found.location}: {read} read, nothing keeps the query from starting")
    if not is_well:
        raise typer.Exit(1)


def _asked(found: Checkpoint, admin: Admin, prefix: str | None) -> list[Finding]:
    """What the brokers say against the checkpoint."""
    from sparkkafka.checkpoints.decisions import decision_of
    from sparkkafka.checkpoints.positions import positions_of

    rows = []
    try:
        positions = positions_of(found, admin)
    except CheckpointError:
        positions = []  # a file that `verify` has named
    for row in positions:
        where = f"source {row.source}, {row.partition}"
        if row.is_gone:
            rows.append(Finding("error", where, "is not there any more"))
        elif row.lost:
            text = f"{text_of(row.lost)} offsets are deleted that were not read (from offset "
            rows.append(Finding("error", where, f"{text}{row.next_offset} to {row.earliest})"))
        elif row.beyond:
            text = f"the query reads on at offset {row.next_offset}, and the log ends at "
            rows.append(Finding("error", where, f"{text}{row.latest}: was the topic made again?"))
    standing = decision_of(found, admin, prefix=prefix)
    if standing.verdict in ("ahead", "other query"):
        rows.append(Finding("error", standing.group, standing.text))
    elif standing.verdict != "none":
        rows.append(Finding("note", standing.group, standing.text))
    return rows


# --- reset ------------------------------------------------------------------------------------


@app.command()
def reset(
    context: typer.Context,
    location: Dir,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_time: ToTime = None,
    to_offsets: Annotated[
        str | None,
        typer.Option(
            "--to-offsets",
            metavar="JSON",
            help='As startingOffsets: {"orders":{"0":23,"1":-1}}; others stay.',
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="No offset moves: only mend what is broken.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="Which source, if Kafka has several.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this one; may be repeated.")
    ] = None,
    unfinished: Annotated[
        str | None,
        typer.Option(
            "--unfinished",
            metavar="done|drop",
            help="What a batch that is planned and not finished counts as.",
        ),
    ] = None,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Accept that state stays as it is.")
    ] = False,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="The query is stopped, however new its files are.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no brokers: offsets are not checked.")
    ] = False,
    prefix: Prefix = None,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Set where the next start reads on. Without --execute nothing is changed.

    Stop the query first. The logs are copied into DIR/backups before anything is written; a copy
    without _SUCCESS in it is in part. Exit code 1 if something stands against it.
    """
    bound = _bound(to_earliest, to_latest, to_time, to_offsets, keep)
    if unfinished not in (None, "done", "drop"):
        raise OptionError(f"--unfinished is done or drop, got {unfinished!r}")
    if offline and prefix is not None:
        raise OptionError("--offline asks nobody about a decision: remove --prefix")
    if keep and topic:
        raise OptionError("--keep moves no offset: remove --topic")
    word: Literal["done", "drop"] | None = unfinished  # type: ignore[assignment]
    found = Checkpoint(location)

    def plan(admin: Admin | None) -> ResetPlan:
        return plan_reset(
            found,
            bound,
            admin,
            source=source,
            topics=topic or (),
            unfinished=word,
            keep_state=keep_state,
            stopped=stopped,
            prefix=prefix,
        )

    if offline:
        planned = plan(None)
    else:
        with session_of(context).admin() as admin:
            planned = plan(admin)
    backup = None
    if execute and not planned.obstacles:
        backup = planned.apply()
    _print_reset(planned, backup, as_json)
    if planned.obstacles:
        for text in planned.obstacles:
            print_error(text)
        raise typer.Exit(1)


def _bound(
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    to_offsets: str | None,
    keep: bool,
) -> OffsetBound:
    ways = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-time": to_time,
        "--to-offsets": to_offsets,
        "--keep": keep or None,
    }
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) != 1:
        given = f", not {' and '.join(chosen)}" if chosen else ""
        raise OptionError(f"give one of {', '.join(ways)}{given}")
    if to_time is not None:
        at_ms = timestamp_ms_of(to_time, "--to-time")
        return OffsetBound("timestamp", timestamp_ms=at_ms, option="--to-time")
    if to_offsets is not None:
        offsets = parse_offsets(to_offsets, "--to-offsets")
        return OffsetBound("specific", offsets, option="--to-offsets")
    if keep:
        return KEPT
    return FROM_EARLIEST if to_earliest else TO_LATEST


def _print_reset(planned: ResetPlan, backup: str | None, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "checkpoint": planned.checkpoint.location,
                "source": planned.source,
                "next_batch": planned.next_batch,
                "executed": backup is not None,
                "backup": backup,
                "partitions": [
                    {
                        "topic": row.partition.topic,
                        "partition": row.partition.partition,
                        "before": row.before,
                        "after": row.after,
                        "records": row.records,
                    }
                    for row in planned.changes
                ],
                "removes": list(planned.removals),
                "writes": list(planned.writes),
                "notes": list(planned.notes),
                "obstacles": list(planned.obstacles),
            }
        )
        return
    print_table(
        ("topic", "partition", "before", "after", "moved"),
        [change_cells(row) for row in planned.changes],
    )
    for note in planned.notes:
        print_line(f"-- {note}")
    files = some((*planned.removals, *planned.writes), most=20)
    batch = planned.next_batch
    if backup is None:
        print_line(f"batch {batch} would be the first from there; it would change {files}")
        if not planned.obstacles:
            print_line("nothing was changed: --execute does it")
    else:
        print_line(f"batch {batch} is the first from there; {files} changed")
        print_line(f"the files as they were are in {backup}")


# --- lag --------------------------------------------------------------------------------------


@app.command()
def lag(
    context: typer.Context,
    location: Dir,
    watch: Watch = False,
    interval: Interval = None,
    ages: WithAges = True,
    as_json: AsJson = False,
) -> None:
    """How far the query is behind: in offsets, and in seconds. The same as `lag --checkpoint DIR`.

    What counts is where the next start would read on: the end of the last finished batch.
    """
    lag_of_group_or_checkpoint(
        context,
        checkpoint=location,
        watch=watch,
        interval=interval,
        ages=ages,
        as_json=as_json,
    )
