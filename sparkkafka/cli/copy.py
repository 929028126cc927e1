"""`copy`: copy the records of a topic into another, of the same cluster or of another one."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from sparkkafka.cli.commands import Count, Partitions, checked_name, session_of
from sparkkafka.cli.read import Bound, ReadPlan, TopicReader, parse_bound, parse_partitions
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import print_note, records_text
from sparkkafka.cli.write import Progress, TopicWriter
from sparkkafka.errors import OptionError, counted
from sparkkafka.protocol.records.arrow import from_numpy, to_numpy

app = typer.Typer(rich_markup_mode=None)

HELP: Final = """Copy the records of a topic into another, with keys, headers and timestamps.

\b
  sparkkafka -b one:9092 copy orders orders-test
  sparkkafka -b one:9092 copy orders orders --to-bootstrap-server two:9092 --rate-limit 5MB
  sparkkafka --profile prod copy orders orders --to-profile test --from -1000 --by-key

It ends at the current end of the topic (with --follow never), once all records are acknowledged.
"""


class RateLimit:
    """Limits a copy to this many records, or bytes, a second."""

    def __init__(self, per_second: float, *, of_bytes: bool) -> None:
        self._per_second = per_second
        self._of_bytes = of_bytes
        self._start_s: float | None = None
        self._units = 0.0

    def pace(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the batch in slices of a tenth of a second or less (at least one record), each when
        it is due."""
        if self._start_s is None:
            self._start_s = time.monotonic()
        units = float(batch.num_rows)
        if self._of_bytes:
            units = batch.nbytes + 20 * batch.num_rows  # 20: a record besides key, value, headers
        count = max(1, min(batch.num_rows, round(10 * units / self._per_second)))
        rows = -(-batch.num_rows // count)
        for start in range(0, batch.num_rows, rows):
            due_s = self._start_s + self._units / self._per_second
            while (left_s := due_s - time.monotonic()) > 0:
                time.sleep(min(left_s, 3600.0))
            part = batch.slice(start, rows)
            self._units += units * part.num_rows / batch.num_rows
            yield part


def parse_rate(text: str) -> RateLimit:
    """Parse 1000 (records a second), or 5MB or 500KB (bytes a second). Raises OptionError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?B)?(?:/s)?", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise OptionError(
            f"--rate-limit is records a second, as 1000, or bytes, as 500KB or 5MB; got {text!r}"
        )
    unit = (match[2] or "").upper()
    factor = {"KB": 10**3, "MB": 10**6, "GB": 10**9}.get(unit, 1)
    return RateLimit(float(match[1]) * factor, of_bytes=bool(unit))


def copy_topic(
    session: Session,
    plan: ReadPlan,
    target: Session,
    to_topic: str,
    *,
    by_key: bool = False,
    rate: RateLimit | None = None,
    shows_progress: bool = False,
) -> int:
    """Copy by the plan; return the number of records, all of them acknowledged.

    Raises OptionError if the target has too few partitions, and as read and write do.
    """
    timeout_s = session.timeout_s
    with ExitStack() as stack:
        reader = stack.enter_context(TopicReader(session.settings("consumer"), plan, timeout_s))
        progress = stack.enter_context(Progress(f"copy {plan.topic} to {to_topic}", shows_progress))
        reader.look_up_bounds()
        with target.admin(session.new_deadline()) as admin:
            count = len(admin.describe_topic(to_topic).partitions)
        needed = max((tp.partition for tp in reader.positions), default=0) + 1
        if not by_key and count < needed:
            raise OptionError(
                f"topic {to_topic} has {counted(count, 'partition')}, and no partition "
                f"{needed - 1} for the source's records: add partitions, or give --by-key"
            )
        writer = stack.enter_context(TopicWriter(target.settings("producer"), to_topic, timeout_s))
        for batch in reader.batches():
            rows = _record_columns(batch, by_key)
            for part in (rows,) if rate is None else rate.pace(rows):
                writer.send(part)
            progress.update(writer.sent)
    return writer.written


def _record_columns(batch: pa.RecordBatch, by_key: bool) -> pa.RecordBatch:
    """Return the columns to write: without the partition if the target chooses it `by_key`."""
    names = ["key", "value", "headers", "timestamp"] + ([] if by_key else ["partition"])
    rows = batch.select(names)
    times = to_numpy(batch.column("timestamp").view(pa.int64()))
    if (times < 0).any():  # a record without a timestamp gets the current time
        column = rows.column("timestamp")
        null = pa.nulls(1, column.type)[0]
        column = pc.if_else(from_numpy(np.asarray(times >= 0)), column, null)
        rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", column)
    return rows


@app.command("copy", help=HELP)
def copy(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The topic to read.", callback=checked_name)
    ],
    to_topic: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The topic to write, which must exist.", callback=checked_name
        ),
    ],
    to_servers: Annotated[
        str | None,
        typer.Option(
            "--to-bootstrap-server", metavar="HOST:PORT,…", help="The cluster to write to."
        ),
    ] = None,
    to_profile: Annotated[
        str | None,
        typer.Option(
            "--to-profile", metavar="NAME", help="The profile of the cluster to write to."
        ),
    ] = None,
    start: Annotated[
        str, typer.Option("-o", "--from", metavar="START", help="As in `read`.")
    ] = "earliest",
    until: Annotated[
        str, typer.Option("--until", metavar="END", help="end, an offset, or @TIME.")
    ] = "end",
    follow: Annotated[bool, typer.Option("--follow", help="Keep copying until Ctrl-C.")] = False,
    count: Count = None,
    partitions: Partitions = None,
    by_key: Annotated[
        bool,
        typer.Option(
            "--by-key", help="Choose the partition by the key; by default a record keeps its own."
        ),
    ] = False,
    rate_limit: Annotated[
        str | None,
        typer.Option(
            "--rate-limit",
            metavar="RATE",
            help="Maximum per second: records (1000) or bytes (5MB).",
        ),
    ] = None,
) -> None:
    session = session_of(context)
    if to_servers is not None and to_profile is not None:
        raise OptionError("--to-bootstrap-server and --to-profile exclude each other: remove one")
    end: Bound | None = parse_bound(until, "--until")
    if follow:
        if end != Bound("latest"):
            raise OptionError("--follow and --until exclude each other: remove one")
        end = None
    target = session
    if to_servers is not None or to_profile is not None:
        target = Session()
        if to_servers is not None:
            target.set_option("bootstrap_server", to_servers)
        if to_profile is not None:
            target.set_option("profile", to_profile)
    elif source == to_topic:
        raise OptionError(
            f"{source} would be copied into itself: name another topic, or another cluster with "
            "--to-bootstrap-server or --to-profile"
        )
    plan = ReadPlan(
        topic=source,
        partitions=None if partitions is None else parse_partitions(partitions, "--partitions"),
        start=parse_bound(start, "--from"),
        until=end,
        count=count,
    )
    copied = copy_topic(
        session,
        plan,
        target,
        to_topic,
        by_key=by_key,
        rate=None if rate_limit is None else parse_rate(rate_limit),
        shows_progress=sys.stderr.isatty(),
    )
    print_note(f"{records_text(copied)} copied from {source} to {to_topic}")
