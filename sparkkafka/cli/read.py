"""`read`: print a topic's records, or write them to a file.

`TopicReader` reads a topic from where to where its `ReadPlan` says, as Arrow batches; `copy` and
`bench` use it, too.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from io import UnsupportedOperation
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from typer import Option

from sparkkafka.cli import commands, tables, text_formats
from sparkkafka.cli.commands import parse_partitions, timestamp_ms_of
from sparkkafka.cli.format_flags import TEXT, FormatFlags
from sparkkafka.cli.session import MAX_TIMEOUT_S, Session
from sparkkafka.client.cluster.offsets import OffsetRange, OffsetSpec
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import check_servers
from sparkkafka.client.values import Offsets, TopicPartition, some_partitions
from sparkkafka.config.client_settings import parse_consumer_settings
from sparkkafka.config.kinds import DEBEZIUM
from sparkkafka.config.option_table import Side
from sparkkafka.config.parsed_options import warn
from sparkkafka.config.source import TIERED_OFFSETS
from sparkkafka.errors import DecodeError, KafkaTimeoutError, OptionError, counted, exclusive, some
from sparkkafka.protocol.records import arrow

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("read")
@commands.with_option_groups
def read(
    context: typer.Context,
    topic: commands.Topic,
    *,
    start: str | None = Option(
        None,
        "-o",
        "--from",
        metavar="START",
        help="earliest, latest, an offset, -N for the last N of each partition, @TIME (ISO, "
        "ms since 1970, -2h), or of tiered storage earliest-local, latest-tiered, "
        "earliest-pending-upload.",
        show_default="earliest",
    ),
    until: str | None = Option(None, metavar="END", help="end, an offset, or @TIME (exclusive)."),
    at_end: bool = Option(
        False, "-e", "--exit", help="Stop at the current end of the topic; same as --until end."
    ),
    count: commands.Count = None,
    seconds: float | None = Option(None, "--for", metavar="SECONDS", help="Stop after this time."),
    partitions: commands.Partitions = None,
    group: str | None = Option(
        None,
        help="Begin at this group's committed offsets, without joining it. Not with --from.",
        autocompletion=commands.group_names,
    ),
    isolation: Literal["read_committed", "read_uncommitted"] | None = Option(
        None,
        metavar="LEVEL",
        help="read_committed, or read_uncommitted for records of aborted and open "
        "transactions, too.",
        show_default="read_committed",
    ),
    key: str | None = Option(None, help="Only records with this key."),
    header: list[str] | None = Option(
        None, metavar="NAME[=VALUE]", help="Only records with this header."
    ),
    format: str = Option(
        TEXT, metavar="text|hex|json", help="How records are shown; json as by kcat's -J."
    ),
    as_json: bool = Option(False, "-J", "--json", help="Same as --format json."),
    template: str | None = Option(
        None, "-f", "--template", help="A template of kcat: %t %p %o %k %s %h %T %K %S %R %%"
    ),
    delimiter: commands.Delimiter = "\\n",
    key_delimiter: str | None = Option(
        None,
        "-K",
        "--key-delimiter",
        metavar="TEXT",
        help="Show the key, and this text between key and value.",
    ),
    null: str = Option("", metavar="TEXT", help="The text that is shown for null."),
    output: Path | None = Option(
        None, metavar="FILE", help="Write a .parquet, .arrow or .csv file, until the topic's end."
    ),
    formats: FormatFlags,
    envelope: str | None = Option(
        None,
        metavar=DEBEZIUM,
        help="Show changes of a table: operation, key, and the columns that have changed.",
    ),
    option: list[str] | None = Option(
        None, metavar="NAME=VALUE", help="Another option of formats, such as valueSubject=s."
    ),
    on_bad: Literal["fail", "skip"] = Option(
        "fail", metavar="fail|skip", help="What to do with a record that does not match the schema."
    ),
) -> None:
    """Show a topic's records from the earliest on, until Ctrl-C or an end that you set.

    \b
      sparkkafka -b localhost:9092 read orders -e                    all records
      sparkkafka -b localhost:9092 read orders --from -10 -e         the last 10 of each partition
      sparkkafka -b localhost:9092 read orders --from @2026-01-31T12:00 --json
      sparkkafka -b localhost:9092 read orders -f '%t %p %o: %k=%s\\n' -c 5
      sparkkafka -b localhost:9092 read orders --output orders.parquet
      sparkkafka read orders --value-format avro --schema-registry http://localhost:8081
      sparkkafka -b localhost:9092 read shop.public.orders --envelope debezium

    --timeout limits each wait for the cluster, not the whole read.
    """
    session = commands.session_of(context)
    if format not in (TEXT, "hex", "json"):
        raise OptionError(
            f"--format is {TEXT}, hex or json, got {format!r}: for values with a schema give "
            "--value-format"
        )
    if isolation is not None:
        session.set_option("property", [f"isolation.level={isolation}"])
    if output is not None:
        from sparkkafka.cli.files import file_kind

        file_kind(output, "--output")
        if output.exists() and not output.is_file():
            raise OptionError(f"--output: {output} is there, and is not a plain file")
    if seconds is not None and not 0 < seconds < MAX_TIMEOUT_S:
        raise OptionError(f"--for is seconds above 0, of 24 days at most, got {seconds:g}")
    if until is not None and at_end:
        raise exclusive("-e", "--until", "-e is --until end")
    shapes_text = template or as_json or key_delimiter or null or delimiter != "\\n"
    if output is not None and (shapes_text or format == "json"):
        raise OptionError(
            "--output writes columns: remove --json (-J), -f, -D, -K, --null and --format json"
        )
    if template is not None and (as_json or format != TEXT):
        raise OptionError("-f and --format exclude each other, and so do -f and -J")
    if as_json and format == "hex":
        raise exclusive("--json (-J)", "--format hex")
    is_json = as_json or format == "json"
    has_delimiter = key_delimiter is not None or delimiter != "\\n"
    if has_delimiter and (is_json or template is not None):
        raise OptionError("-D and -K are of text and hex: remove them, or -f or -J")
    if null and is_json:
        raise OptionError("--null is not for JSON, which has a null of its own")
    if envelope is not None:
        if envelope.lower() != DEBEZIUM:
            raise OptionError(f"--envelope is {DEBEZIUM}, got {envelope!r}")
        if shapes_text or output is not None or format != TEXT:
            raise OptionError(
                "--envelope has lines of its own: remove --output, --format, --json (-J), -f, -D, "
                "-K and --null"
            )
    options = formats.options(Side.READ, session, option or ())
    if envelope is not None and options:
        from sparkkafka.cli.changes import ENVELOPE_OPTIONS

        options |= ENVELOPE_OPTIONS
    if on_bad == "skip" and not options and envelope is None:
        raise OptionError("--on-bad skip is for --value-format, --key-format and --envelope")
    if start is not None:
        start_bound = parse_bound(start, "--from")
    else:
        start_bound = Bound("earliest" if group is None else "committed")
    if group is not None and start_bound.kind != "committed":
        hint = "--group begins at the group's committed offsets. Remove one of them"
        raise exclusive("--group", "--from", hint)
    end = parse_bound(until, "--until") if until is not None else None
    has_limit = end is not None or count is not None or seconds is not None
    if at_end or (output is not None and not has_limit):  # a file must be complete at some time
        end = Bound("latest")
    read_topic(
        session,
        ReadPlan(
            topic=topic,
            partitions=None if partitions is None else parse_partitions(partitions, "--partitions"),
            start=start_bound,
            until=end,
            count=count,
            seconds=seconds,
            filter=Filter(
                None if key is None else os.fsencode(key), commands.parse_headers(header or ())
            ),
        ),
        Output(
            format="json" if as_json else format,
            template=template,
            delimiters=text_formats.parse_delimiters(delimiter, key_delimiter),
            nulls=text_formats.Nulls(os.fsencode(null)),
            file=output,
            is_changes=envelope is not None,
            skips_bad=on_bad == "skip",
        ),
        group,
        options,
    )


@dataclass(frozen=True)
class Output:
    """Where records are written to, and in which form: to a `file`, or to stdout.

    `format` is text, hex or json; it is ignored if there is a `template`, kcat's -f. `delimiters`
    are those of records and of keys, None without keys. `is_changes`: records are shown as the
    changes of a table. `skips_bad`: records that no schema reads are left out. `prints_ends`: print
    the end offset of each partition on stderr, as kcat does.
    """

    format: str = TEXT
    template: str | None = None
    delimiters: tuple[bytes, bytes | None] = (b"\n", None)
    nulls: text_formats.Nulls = field(default_factory=text_formats.Nulls)
    file: Path | None = None
    is_changes: bool = False
    skips_bad: bool = False
    prints_ends: bool = False


def read_topic(
    session: Session, plan: ReadPlan, output: Output, group: str | None, options: dict[str, str]
) -> None:
    """Read a topic to stdout or to a file. `group` is that of committed offsets, `options` are
    those of formats. Raises KafkaError, and OSError for the file."""
    settings: dict[str, Any] = session.settings("consumer")
    if group is not None:
        settings["group.id"] = group
    if output.template is not None:
        # Reports an invalid template before any request.
        text_formats.template_format(output.template)
    is_text = output.file is None and not output.is_changes
    with ExitStack() as stack:
        decoding = None
        if options:
            # Schemas are many modules, and most reads have none.
            from sparkkafka.cli.typed_records import Decoding, parse_formats

            formats = parse_formats(options, Side.READ)
            decoding = stack.enter_context(
                Decoding(formats, plan.topic, as_text=is_text, skips_bad=output.skips_bad)
            )
        reader = stack.enter_context(TopicReader(settings, plan, session.timeout_s))
        reader.look_up_bounds()
        if output.file is not None:
            from sparkkafka.cli.files import FileSink

            sink = stack.enter_context(FileSink(output.file, decoding.types if decoding else {}))
            write: Any = sink.write
        elif output.is_changes:
            from sparkkafka.cli.changes import ChangeLines

            write = ChangeLines(skips_bad=output.skips_bad).write
        else:
            if output.template is not None:
                text = text_formats.template_format(output.template, output.nulls)
            elif output.format == "json":
                json_columns = decoding.json_columns if decoding else frozenset()
                text = text_formats.json_format(reader.leaders, json_columns)
            else:
                text = text_formats.text_format(*output.delimiters, output.nulls)
            write = StdoutSink(text, sys.stdout.buffer).write
        batches: Any = reader.batches() if output.file else reader.batches(_check_pipe)
        if decoding is not None:
            batches = chain.from_iterable(map(decoding.decode, batches))
        records = 0
        for batch in batches:
            records += batch.num_rows
            write(text_formats.hex_columns(batch) if output.format == "hex" else batch)
    if decoding is not None and decoding.skipped:
        tables.print_error(
            f"warning: {counted(decoding.skipped, 'record')} that no schema reads "
            f"{'was' if decoding.skipped == 1 else 'were'} left out"
        )
    if output.file is not None:
        size = tables.bytes_text(output.file.stat().st_size)
        tables.print_note(f"{counted(records, 'record')} written to {output.file} ({size})")
    if output.prints_ends and records != plan.count:  # kcat prints no ends after -c records
        for number, (tp, offset) in enumerate(sorted(reader.ends.items()), 1):
            last = ": exiting" if number == len(reader.ends) else ""
            sys.stderr.write(
                f"% Reached end of topic {tp.topic} [{tp.partition}] at offset {offset}{last}\n"
            )


class StdoutSink:
    """Writes bytes to a pipe or file as they are, without a copy in Python's buffer.

    On a terminal control characters are written as text like \\x1b, so that records cannot move the
    cursor or change colours and title.
    """

    def __init__(self, text: text_formats.Format, out: BinaryIO) -> None:
        self._format = text
        self._out = out
        self._is_terminal = out.isatty()
        out.flush()  # earlier output comes first

    def write(self, batch: Any) -> None:
        """Write the records of a batch; for a terminal, without control characters."""
        for text in self._format.texts(batch):
            self._out.write(_escape_controls(text) if self._is_terminal else text)
        self._out.flush()


def _check_pipe() -> None:
    """Raise BrokenPipeError if stdout is a pipe whose reader has ended, as in `read orders | head`:
    a write would notice it only at the next record."""
    with suppress(UnsupportedOperation):  # stdout has no file descriptor
        poll = select.poll()
        poll.register(sys.stdout, 0)  # no event but errors
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            raise BrokenPipeError


def _escape_controls(text: text_formats.Text) -> bytes:
    """Replace control characters other than line ends and tabs by escapes, like \\x1b."""
    lines = bytes(text).decode("utf-8", "backslashreplace").split("\n")
    return "\n".join("\t".join(map(tables.printable, line.split("\t"))) for line in lines).encode()


# --- what is read -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """Where to start or end in each partition. `number` depends on `kind`: for "tail" a count of
    records before the end, for "offset" an offset, for "time" ms since 1970 UTC, for "tiered" a
    number of TIERED_OFFSETS."""

    kind: Literal["earliest", "latest", "tail", "offset", "time", "committed", "tiered"]
    number: int = 0


def parse_bound(text: str, option: str) -> Bound:
    """Parse earliest, latest, committed, -N, N, @TIME, or an offset of tiered storage. Raises
    OptionError."""
    word = text.strip().lower()
    if word in TIERED_OFFSETS:
        return Bound("tiered", TIERED_OFFSETS[word])
    if word in ("earliest", "beginning"):
        return Bound("earliest")
    if word in ("latest", "end", "-0"):
        return Bound("latest")
    if word in ("committed", "stored"):
        return Bound("committed")
    if word.startswith("@"):
        return Bound("time", timestamp_ms_of(text.strip()[1:], f"the time of {option}"))
    if re.fullmatch(r"-?[0-9]{1,19}", word) and int(word) < 1 << 63:
        number = int(word)
        return Bound("tail", -number) if number < 0 else Bound("offset", number)
    raise OptionError(
        f"{option} is earliest, latest, an offset, -N for the last N of each partition, or @TIME, "
        f"as in @2026-01-31T12:00 (UTC), @1769860800000 or @-2h; got {text!r}"
    )


@dataclass(frozen=True)
class Filter:
    """Selects records with this key (None: any) and with all of these headers. A header whose value
    is None here may have any value."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __bool__(self) -> bool:
        return self.key is not None or bool(self.headers)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a batch that have the key and the headers."""
        keep: NDArray[np.bool_] = np.ones(batch.num_rows, np.bool_)
        if self.key is not None:
            key = arrow.binary_array([self.key])[0]
            keep &= _is_true(arrow.call("equal", batch.column("key"), key))
        for name, value in self.headers:
            keep &= _has_header(batch.column("headers"), name, value)
        return batch if keep.all() else batch.filter(arrow.from_numpy(keep))


def _is_true(column: pa.Array) -> NDArray[np.bool_]:
    """Convert a boolean column; null counts as False."""
    return arrow.is_valid(column) & arrow.to_numpy(column.cast(pa.uint8())).astype(np.bool_)


def _has_header(headers: pa.Array, name: str, value: bytes | None) -> NDArray[np.bool_]:
    """Return which rows have a header of this name, and of this value if it is not None."""
    rows = arrow.to_numpy(headers.value_parent_indices())  # the row of each header
    names, values = headers.flatten().flatten()  # of all headers
    matches = _is_true(arrow.call("equal", names, arrow.repeat_text(name, 1)[0]))
    if value is not None:
        matches &= _is_true(arrow.call("equal", values, arrow.binary_array([value])[0]))
    has: NDArray[np.bool_] = np.zeros(len(headers), np.bool_)
    has[rows[matches]] = True
    return has


@dataclass(frozen=True)
class ReadPlan:
    """Which records of a topic are read. `partitions` None: all. `until` None: the read does not
    end. `count` limits the records that pass the filter, `seconds` the time."""

    topic: str
    partitions: tuple[int, ...] | None = None
    start: Bound = Bound("earliest")
    until: Bound | None = None
    count: int | None = None
    seconds: float | None = None
    filter: Filter = Filter()


# --- reading ----------------------------------------------------------------------------------


Ranges = Mapping[TopicPartition, OffsetRange]
"""The first offset and the end of each partition's log."""


class TopicReader:
    """Reads the records of a `ReadPlan`; use it under `with`. `settings` are a Consumer's.

    `timeout_s` limits the lookups, and each wait for records before an end. Nothing is committed,
    and no group is joined. Records of aborted transactions are not returned, as in kcat, unless
    isolation.level says so. Raises OptionError, UnknownTopicError, KafkaTimeoutError, BrokerError.
    """

    def __init__(self, settings: Mapping[str, Any], plan: ReadPlan, timeout_s: float) -> None:
        # Java's default for a partition's part of a fetch is 1 MB; a terminal wants throughput.
        defaults = {"isolation.level": "read_committed", "max.partition.fetch.bytes": 4 << 20}
        settings = {**defaults, **settings, "enable.auto.commit": "false"}
        if plan.start.kind == "committed" and "group.id" not in settings:
            raise OptionError("to begin at committed offsets needs a group: give --group NAME")
        self._plan = plan
        self._timeout_s = timeout_s
        self._consumer = Consumer(settings)
        self._options = parse_consumer_settings(settings).client
        self.positions: Offsets = {}
        """The next offset of each partition."""
        self.ends: Offsets = {}
        """The offset at which each partition's reading ends; empty without an end."""
        self.leaders: dict[int, int] = {}
        """The broker that leads each partition, as far as it is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *details: object) -> None:
        self._consumer.__exit__(exc_type, *details)

    def look_up_bounds(self) -> None:
        """Look up the plan's partitions, and the offsets of its bounds, and set `positions`, `ends`
        and `leaders`. Waits `timeout_s` at most.

        Raises KafkaConnectionError as `check_servers` does.
        """
        if self._plan.until is not None and self._plan.until.kind in (
            "earliest",
            "committed",
            "tail",
        ):
            raise OptionError("--until is end, an offset, @TIME, or an offset of tiered storage")
        check_servers(self._options, Deadline(0))
        plan, consumer, deadline = self._plan, self._consumer, Deadline(self._timeout_s * 1000)
        ranges = self._offset_ranges(deadline)
        if plan.start.kind == "tail":
            self.positions = self._offsets_of_last(ranges, plan.start.number)
        else:
            self.positions = self._start_offsets(ranges, deadline)
        if plan.until is not None and plan.until.kind == "offset":
            self.ends = {tp: min(plan.until.number, row.latest) for tp, row in ranges.items()}
        elif plan.until is not None:
            self.ends = self._bound_offsets(ranges, plan.until, deadline)
        for row in consumer.partitions_for(plan.topic, deadline.remaining_s()):
            self.leaders[row.partition] = -1 if row.leader is None else row.leader.node_id

    def _offset_ranges(self, deadline: Deadline) -> Ranges:
        """Look up the offsets of the plan's partitions. Raises UnknownTopicError, OptionError for a
        partition that the topic does not have."""
        topic, numbers = self._plan.topic, self._plan.partitions
        ranges = self._consumer.offsets_for(topic, deadline.remaining_s())
        if numbers is None:
            return ranges
        missing = [number for number in numbers if TopicPartition(topic, number) not in ranges]
        if missing:
            raise OptionError(
                f"topic {topic} has no partition {some(missing)}: it has {len(ranges)}, from 0 to "
                f"{len(ranges) - 1}"
            )
        return {TopicPartition(topic, n): ranges[TopicPartition(topic, n)] for n in numbers}

    def _start_offsets(self, ranges: Ranges, deadline: Deadline) -> Offsets:
        """Look up the first offset to read of each partition.

        If an offset is deleted, a warning is logged, and reading starts at the earliest offset. An
        offset beyond the end raises OptionError. Partitions without a committed offset start at the
        earliest; partitions without a record at or after the time start at the end.
        """
        start = self._plan.start
        if start.kind not in ("offset", "committed"):
            return self._bound_offsets(ranges, start, deadline)
        if start.kind == "offset":
            offsets = dict.fromkeys(ranges, start.number)
        else:
            committed = self._consumer.committed(list(ranges), deadline.remaining_s())
            missing = [tp for tp, row in committed.items() if row is None]
            if len(missing) == len(committed):
                raise OptionError(
                    f"the group has no offset in topic {self._plan.topic}: is its name right "
                    "(`groups list` shows all)? Without --group reading begins at --from"
                )
            if missing:
                warn(
                    f"cli group {missing[0].topic}",
                    f"the group has no offset in {some_partitions(missing)}: reading begins at the "
                    "earliest there",
                )
            offsets = {
                tp: ranges[tp].earliest if row is None else row.offset
                for tp, row in committed.items()
            }
        for tp, offset in offsets.items():
            first, end = ranges[tp].earliest, ranges[tp].latest
            if offset > end:
                raise OptionError(
                    f"partition {tp} ends before offset {end}: there is no offset {offset} yet"
                )
            if offset < first:
                warn(
                    f"cli start {tp}",
                    f"offset {offset} of partition {tp} is gone: reading begins at {first}, the "
                    "first that is left",
                )
        return {tp: max(offset, ranges[tp].earliest) for tp, offset in offsets.items()}

    def _bound_offsets(self, ranges: Ranges, bound: Bound, deadline: Deadline) -> Offsets:
        """Look up the offsets of a bound that means the same as a start and as an end: earliest,
        latest, a time, or an offset of tiered storage. At a time they are at most the current end.

        If nothing is uploaded to tiered storage, latest-tiered is the earliest offset; if
        everything is uploaded, earliest-pending-upload is the end.
        """
        if bound.kind == "earliest":
            return {tp: row.earliest for tp, row in ranges.items()}
        if bound.kind == "latest":
            return {tp: row.latest for tp, row in ranges.items()}
        if bound.kind == "tiered":
            # The consumer looks up an assigned OffsetSpec when `position` is called.
            self._consumer.assign({tp: OffsetSpec(bound.number) for tp in ranges})
            offsets = {tp: self._consumer.position(tp, deadline.remaining_s()) for tp in ranges}
            self._consumer.assign([])
            return offsets
        times_ms = dict.fromkeys(ranges, bound.number)
        offsets_at_time = self._consumer.offsets_for_times(times_ms, deadline.remaining_s())
        offsets = {tp: row.latest for tp, row in ranges.items()}
        for tp, row in offsets_at_time.items():
            if row is not None:
                offsets[tp] = min(row.offset, offsets[tp])
        return offsets

    def _offsets_of_last(self, ranges: Ranges, count: int) -> Offsets:
        """Find the offset of the first of each partition's last `count` records; the earliest
        offset if it has fewer.

        Transaction markers, aborted and compacted records take offsets too, so the last `count`
        offsets may have fewer records: the search reads further back, in windows that double in
        size.
        """
        starts = {tp: row.earliest for tp, row in ranges.items()}
        missing = dict.fromkeys(ranges, count)  # records that are still to be found
        # The offset below which the search continues, of partitions that are not done.
        limits = {tp: row.latest for tp, row in ranges.items() if row.latest - row.earliest > count}
        window = count
        while limits:
            windows = {tp: max(starts[tp], end - window) for tp, end in limits.items()}
            self.positions, self.ends = dict(windows), dict(limits)  # for `_batches`
            offsets: dict[TopicPartition, list[NDArray[np.int64]]] = {tp: [] for tp in limits}
            for batch in self._batches(Filter(), None, None):
                tp = TopicPartition(self._plan.topic, batch.column("partition")[0].as_py())
                offsets[tp].append(arrow.to_numpy(batch.column("offset")))
            for tp, parts in offsets.items():
                records = np.concatenate([*parts, np.empty(0, np.int64)])
                if len(records) >= missing[tp]:
                    starts[tp] = int(records[len(records) - missing[tp]])
                    del limits[tp]
                elif windows[tp] == ranges[tp].earliest:
                    del limits[tp]  # it has fewer than `count` records
                else:
                    missing[tp] -= len(records)
                    limits[tp] = windows[tp]
            window *= 2
        self.ends = {}
        return starts

    def batches(self, on_idle: Callable[[], object] = lambda: None) -> Iterator[pa.RecordBatch]:
        """Yield batches of RECORD_SCHEMA, each of one partition and never empty. Call
        `look_up_bounds` before this. `on_idle` is called after each wait without records."""
        seconds = self._plan.seconds
        stop_at_s = None if seconds is None else time.monotonic() + seconds
        return self._batches(self._plan.filter, self._plan.count, stop_at_s, on_idle)

    def _batches(
        self,
        filter: Filter,
        remaining: int | None,
        stop_at_s: float | None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches from `positions` to `ends`, with at most `remaining` records (None: all),
        until `stop_at_s` on the monotonic clock."""
        self._assign_unfinished()
        polls_one_by_one = False
        progress_deadline = Deadline(self._timeout_s * 1000)
        while self._consumer.assignment() and remaining != 0:
            # A filter may drop records, so more than `remaining` may be needed.
            limit = 1 if polls_one_by_one else None if filter else remaining
            # Short waits, so that Ctrl-C and the end of --for are noticed. Where only a marker or
            # compacted records lie before the end, poll returns nothing, and only the position
            # shows that the end is reached: then the wait is shorter still.
            wait_s = 0.05 if self.ends else 0.5
            if stop_at_s is not None:
                wait_s = min(wait_s, stop_at_s - time.monotonic())
                if wait_s <= 0:
                    return
            try:
                table = self._consumer.poll_arrow(wait_s, limit)
            except DecodeError as error:
                # Records before the bad one were decoded together with it: poll them one by one.
                if polls_one_by_one:
                    error.args = (f"{error}. To continue after it give --partitions and --from",)
                    raise
                polls_one_by_one = True
                continue
            if table.num_rows:
                progress_deadline = Deadline(self._timeout_s * 1000)
            else:
                on_idle()
            for batch in table.to_batches():
                batch = self._advance(batch)
                if filter and batch.num_rows:
                    batch = filter.apply(batch)
                if remaining is not None:
                    batch = batch.slice(0, remaining)
                    remaining -= batch.num_rows
                if batch.num_rows:
                    yield batch
                if remaining == 0:
                    return
            if self.ends and self._update_progress(is_empty=not table.num_rows):
                progress_deadline = Deadline(self._timeout_s * 1000)
            elif self.ends and progress_deadline.expired:
                raise self._no_records_error()

    def _assign_unfinished(self) -> None:
        """Assign to the consumer the partitions that are not yet read to their end."""
        unfinished = {
            tp: offset
            for tp, offset in self.positions.items()
            if not self.ends or offset < self.ends[tp]
        }
        # A list keeps the consumer's positions, a dict sets them.
        self._consumer.assign(list(unfinished) if self._consumer.assignment() else unfinished)

    def _advance(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Advance the partition's position. Return the batch without records after the end."""
        tp = TopicPartition(self._plan.topic, batch.column("partition")[0].as_py())
        self.positions[tp] = batch.column("next_offset")[batch.num_rows - 1].as_py()
        if self.ends and self.positions[tp] > self.ends[tp]:
            offsets = arrow.to_numpy(batch.column("offset"))
            return batch.slice(0, int(np.searchsorted(offsets, self.ends[tp])))
        return batch

    def _update_progress(self, *, is_empty: bool) -> bool:
        """Update positions and the assignment after a poll. Return whether a position has advanced,
        or a partition is finished. `is_empty`: the poll returned no records."""
        before = dict(self.positions)
        if is_empty:  # markers and compacted records advance positions, too
            for tp in self._consumer.assignment():
                self.positions[tp] = self._consumer.position(tp, self._timeout_s)
        is_finished = any(self.positions[tp] >= self.ends[tp] for tp in self._consumer.assignment())
        if is_finished:
            self._assign_unfinished()
        return is_finished or self.positions != before

    def _no_records_error(self) -> KafkaTimeoutError:
        """Return the error for an end that is not reached: no records arrived for --timeout."""
        waiting = {tp: self.positions[tp] for tp in self._consumer.assignment()}
        tp, offset = next(iter(waiting.items()))
        return KafkaTimeoutError(
            f"no records of {some_partitions(waiting)} arrived for {self._timeout_s:g} s, at "
            f"offset {offset} of {self.ends[tp]} of {tp}: is its leader up? Give --timeout more "
            "seconds, or --debug to see why"
        )
