"""`copy`: records of one topic into another, of the same cluster or not."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from sparkkafka.cli.commands import Count, Partitions, not_empty, session_of
from sparkkafka.cli.read import (
    EARLIEST,
    LATEST,
    Place,
    ReadPlan,
    TopicReader,
    partitions_of,
    place_of,
)
from sparkkafka.cli.session import DEFAULT_TIMEOUT_S, Session
from sparkkafka.cli.tables import print_note, records
from sparkkafka.cli.write import Pace, Progress, TopicWriter
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import OptionError, counted
from sparkkafka.protocol.records.arrow import from_numpy, to_numpy

app = typer.Typer(rich_markup_mode=None)

HELP: Final = """Copy the records of a topic into another, with keys, headers and timestamps.

\b
  sparkkafka -b one:9092 copy orders orders-test
  sparkkafka -b one:9092 copy orders orders --to-bootstrap-server two:9092 --rate-limit 5MB
  sparkkafka --profile prod copy orders orders --to-profile test --from -1000 --by-key

It ends where the topic ends now (--follow: never), once every record is acknowledged.
"""

_SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_STEPS_A_SECOND = 10
_PER_RECORD_BYTES = 20  # besides key, value and headers


class Rate:
    """A limit: records, or bytes, in a second."""

    def __init__(self, per_second: float, *, of_bytes: bool) -> None:
        self.per_second = per_second
        self.of_bytes = of_bytes

    def steps(self, batch: pa.RecordBatch) -> list[tuple[pa.RecordBatch, float]]:
        """The batch in parts of a tenth of a second or less, or of a record, with their units."""
        units = float(batch.num_rows)
        if self.of_bytes:
            units = batch.nbytes + _PER_RECORD_BYTES * batch.num_rows
        parts = max(1, min(batch.num_rows, round(units / self.per_second * _STEPS_A_SECOND)))
        rows = -(-batch.num_rows // parts)
        return [
            (part := batch.slice(at, rows), units * part.num_rows / batch.num_rows)
            for at in range(0, batch.num_rows, rows)
        ]


def rate_of(text: str) -> Rate:
    """1000 -> records, 5MB or 500KB -> bytes, each in a second. Raises OptionError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?B)?(?:/s)?", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise OptionError(
            f"--rate-limit is records a second, as 1000, or bytes, as 500KB or 5MB; got {text!r}"
        )
    unit = (match[2] or "").upper()
    return Rate(float(match[1]) * _SIZES.get(unit, 1), of_bytes=bool(unit))


def copy_topic(
    session: Session,
    plan: ReadPlan,
    target: Session,
    to_topic: str,
    *,
    by_key: bool = False,
    rate: Rate | None = None,
    shows_progress: bool = False,
) -> int:
    """Copies by the plan; returns how many records are acknowledged: all.

    Raises OptionError if the target has too few partitions, and as read and write do.
    """
    timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S
    with ExitStack() as stack:
        reader = stack.enter_context(TopicReader(session.settings("consumer"), plan, timeout_s))
        progress = stack.enter_context(Progress(f"copy {plan.topic} to {to_topic}", shows_progress))
        reader.bind()
        with target.admin(Deadline(timeout_s * 1000)) as admin:
            there = len(admin.describe_topic(to_topic).partitions)
        needed = max((tp.partition for tp in reader.positions), default=0) + 1
        if not by_key and there < needed:
            raise OptionError(
                f"topic {to_topic} has {counted(there, 'partition')}, and records of partition "
                f"{needed - 1} would have no place: add partitions, or give --by-key"
            )
        writer = stack.enter_context(TopicWriter(target.settings("producer"), to_topic, timeout_s))
        pace = None if rate is None else Pace(rate.per_second)
        for batch in reader.batches():
            rows = _to_send(batch, by_key)
            if rate is None or pace is None:
                writer.send(rows)
            else:
                for part, units in rate.steps(rows):
                    pace.wait(units)
                    writer.send(part)
            progress.records = writer.sent
    return writer.written


def _to_send(batch: pa.RecordBatch, by_key: bool) -> pa.RecordBatch:
    names = ["key", "value", "headers", "timestamp"] + ([] if by_key else ["partition"])
    rows = batch.select(names)
    times = to_numpy(batch.column("timestamp").view(pa.int64()))
    if (times < 0).any():  # without a timestamp: it gets one now
        column = pc.if_else(
            from_numpy(np.asarray(times >= 0)), rows.column("timestamp"), _no_time(batch)
        )
        rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", column)
    return rows


def _no_time(batch: pa.RecordBatch) -> Any:
    return pa.nulls(1, batch.schema.field("timestamp").type)[0]


@app.command("copy", help=HELP)
def copy(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="The topic to read.", callback=not_empty)],
    to_topic: Annotated[
        str, typer.Argument(help="The topic to write, which must be there.", callback=not_empty)
    ],
    to_servers: Annotated[
        str | None,
        typer.Option(
            "--to-bootstrap-server", metavar="HOST:PORT,…", help="The cluster to write to."
        ),
    ] = None,
    to_profile: Annotated[
        str | None, typer.Option("--to-profile", metavar="NAME", help="The same by a profile.")
    ] = None,
    start: Annotated[
        str, typer.Option("-o", "--from", metavar="PLACE", help="As of read.")
    ] = EARLIEST,
    until: Annotated[
        str, typer.Option("--until", metavar="PLACE", help="end, an offset, or @TIME.")
    ] = "end",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    count: Count = None,
    partitions: Partitions = None,
    by_key: Annotated[
        bool,
        typer.Option("--by-key", help="Keys choose partitions; else each record keeps its own."),
    ] = False,
    rate_limit: Annotated[
        str | None,
        typer.Option(
            "--rate-limit", metavar="RATE", help="A second: records as 1000, bytes as 5MB."
        ),
    ] = None,
) -> None:
    session = session_of(context)
    if to_servers is not None and to_profile is not None:
        raise OptionError("--to-bootstrap-server and --to-profile exclude each other: remove one")
    end: Place | None = place_of(until, "--until")
    if follow:
        if end != Place(LATEST):
            raise OptionError("--follow and --until exclude each other: remove one")
        end = None
    target = session
    if to_servers is not None or to_profile is not None:
        target = Session()
        if to_servers is not None:
            target.give("bootstrap_server", to_servers)
        if to_profile is not None:
            target.give("profile", to_profile)
    elif source == to_topic:
        raise OptionError(
            f"{source} would be copied into itself: name another topic, or another cluster with "
            "--to-bootstrap-server or --to-profile"
        )
    plan = ReadPlan(
        topic=source,
        partitions=None if partitions is None else partitions_of(partitions, "--partitions"),
        start=place_of(start, "--from"),
        until=end,
        count=count,
    )
    copied = copy_topic(
        session,
        plan,
        target,
        to_topic,
        by_key=by_key,
        rate=None if rate_limit is None else rate_of(rate_limit),
        shows_progress=sys.stderr.isatty(),
    )
    print_note(f"{records(copied)} copied from {source} to {to_topic}")
