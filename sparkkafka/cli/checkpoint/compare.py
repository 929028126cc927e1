"""`checkpoint diff`: two batches side by side. `checkpoint verify`: is it whole?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkkafka.checkpoints.changes import Finding, PartitionChange, diff, verify
from sparkkafka.checkpoints.logs import Checkpoint, Plan, SourceOffsets
from sparkkafka.cli.checkpoint.arguments import Ask, Dir, Prefix, check_prefix
from sparkkafka.cli.commands import AsJson, session_of
from sparkkafka.cli.tables import print_json, print_line, print_table, text_of
from sparkkafka.errors import CheckpointError, OptionError, counted

if TYPE_CHECKING:
    from sparkkafka.client.admin.admin import Admin


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
