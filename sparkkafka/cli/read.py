"""`read`: print a topic's records, or write them to a file."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from numpy.typing import NDArray

from sparkkafka.cli.bounded_admin import check_not_refused
from sparkkafka.cli.commands import (
    Count,
    Delimiter,
    KeyFormat,
    KeySchema,
    NoRegistry,
    Partitions,
    Registry,
    Topic,
    ValueFormat,
    ValueSchema,
    session_of,
)
from sparkkafka.cli.format_flags import TEXT, FormatFlags, format_options_of, registry_of
from sparkkafka.cli.session import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S, Session
from sparkkafka.cli.tables import print_error, printable
from sparkkafka.cli.text_formats import (
    NOTHING_FOR_NULL,
    Format,
    Nulls,
    Text,
    hex_columns,
    json_format,
    template_format,
    text_format,
    unescaped,
)
from sparkkafka.cli.times import timestamp_ms_of
from sparkkafka.client.cluster.offsets import OffsetRange
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.client_settings import parse_consumer_settings
from sparkkafka.config.given_options import warn
from sparkkafka.config.option_table import Side
from sparkkafka.errors import KafkaTimeoutError, OptionError, counted, some
from sparkkafka.protocol.records.arrow import (
    binary_array,
    from_numpy,
    is_valid,
    repeat_text,
    to_numpy,
)

if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer
    from sparkkafka.client.deadline import Deadline


# --- where to start and end -------------------------------------------------------------------

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TAIL: Final = "tail"
OFFSET: Final = "offset"
TIME: Final = "time"
COMMITTED: Final = "committed"

_WORDS: Final = {
    "earliest": EARLIEST,
    "beginning": EARLIEST,
    "latest": LATEST,
    "end": LATEST,
    "committed": COMMITTED,
    "stored": COMMITTED,
}


@dataclass(frozen=True)
class Place:
    """Where to start or end in each partition. `number`: how many records before the end (TAIL), an
    offset, or ms since 1970 UTC."""

    kind: str
    number: int = 0


def place_of(text: str, option: str) -> Place:
    """earliest, latest, committed, -N, N, or @TIME. Raises OptionError."""
    word = text.strip().lower()
    if word in _WORDS:
        return Place(_WORDS[word])
    if word.startswith("@"):
        return Place(TIME, timestamp_ms_of(text.strip()[1:], f"the time of {option}"))
    if re.fullmatch(r"-?[0-9]{1,19}", word) and int(word) < 1 << 63:
        number = int(word)
        if word == "-0":
            return Place(LATEST)
        return Place(TAIL, -number) if number < 0 else Place(OFFSET, number)
    raise OptionError(
        f"{option} is earliest, latest, an offset, -N for the last N of each partition, or @TIME, "
        f"as in @2026-01-31T12:00 (UTC), @1769860800000 or @-2h; got {text!r}"
    )


def partitions_of(text: str, option: str) -> tuple[int, ...]:
    """0,3,5-7 -> their numbers. Raises OptionError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        last = match and int(match[2] or match[1])
        if match is None or last is None or not int(match[1]) <= last < int(match[1]) + 100_000:
            raise OptionError(f"{option} is like 0, or 0,3,5-7; got {text!r}")
        found += range(int(match[1]), last + 1)
    return tuple(dict.fromkeys(found))


# --- offsets -------------------------------------------------------------------------------------


def chosen_ranges(
    consumer: Consumer, topic: str, partitions: Sequence[int] | None, deadline: Deadline
) -> dict[TopicPartition, OffsetRange]:
    """What the chosen partitions (None: all) have. Raises UnknownTopicError, OptionError for a
    partition that the topic does not have."""
    ranges = consumer.offsets_for(topic, deadline.remaining_s())
    if partitions is None:
        return ranges
    missing = [number for number in partitions if TopicPartition(topic, number) not in ranges]
    if missing:
        raise OptionError(
            f"topic {topic} has no partition {some(missing)}: it has {len(ranges)}, from 0 to "
            f"{len(ranges) - 1}"
        )
    return {TopicPartition(topic, n): ranges[TopicPartition(topic, n)] for n in partitions}


def starts(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, OffsetRange],
    place: Place,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition, for all starts but TAIL.

    An offset that is gone is a warning, and reading begins with the first that is left; one that is
    not there yet raises OptionError. Partitions without a committed offset begin at the earliest,
    those without a record so young at the end.
    """
    if place.kind == EARLIEST:
        return {tp: row.earliest for tp, row in ranges.items()}
    if place.kind == LATEST:
        return {tp: row.latest for tp, row in ranges.items()}
    if place.kind == TIME:
        return _at_time(consumer, ranges, place.number, deadline)
    if place.kind == COMMITTED:
        committed = consumer.committed(list(ranges), deadline.remaining_s())
        unread = [tp for tp, row in committed.items() if row is None]
        if unread:
            warn(
                f"cli group {unread[0].topic}",
                f"the group has no offset in {some_partitions(unread)}: reading begins at the "
                "earliest there",
            )
        wanted = {
            tp: ranges[tp].earliest if row is None else row.offset for tp, row in committed.items()
        }
    else:
        wanted = dict.fromkeys(ranges, place.number)
    return {tp: _in_range(tp, offset, ranges[tp]) for tp, offset in wanted.items()}


def _in_range(tp: TopicPartition, offset: int, row: OffsetRange) -> int:
    if offset > row.latest:
        raise OptionError(
            f"partition {tp} ends before offset {row.latest}: there is no offset {offset} yet"
        )
    if offset < row.earliest:
        warn(
            f"cli start {tp}",
            f"offset {offset} of partition {tp} is gone: reading begins at {row.earliest}, the "
            "first that is left",
        )
    return max(offset, row.earliest)


def ends(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, OffsetRange],
    place: Place,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """The offset before which reading ends, no later than what is there now. Raises OptionError for
    a place that is no end."""
    if place.kind == LATEST:
        return {tp: row.latest for tp, row in ranges.items()}
    if place.kind == OFFSET:
        return {tp: min(place.number, row.latest) for tp, row in ranges.items()}
    if place.kind == TIME:
        return _at_time(consumer, ranges, place.number, deadline)
    raise OptionError("--until is end, an offset, or @TIME")


def _at_time(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, OffsetRange],
    time_ms: int,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    found = consumer.offsets_for_times(dict.fromkeys(ranges, time_ms), deadline.remaining_s())
    rows = {tp: found[tp] for tp in ranges}
    return {
        tp: ranges[tp].latest if row is None else min(row.offset, ranges[tp].latest)
        for tp, row in rows.items()
    }


# --- reading ----------------------------------------------------------------------------------

FROM_EARLIEST: Final = Place(EARLIEST)

_FETCH_BYTES: Final = 4 << 20
"""Of one partition in one answer: a terminal's reader wants throughput, Java's default is 1 MB."""

_WAIT_S: Final = 0.5  # so that Ctrl-C and the end of --for are seen
_WAIT_FOR_END_S: Final = 0.05
"""Where only a marker or compacted records lie before the end, poll gives nothing, and the position
is what tells."""


@dataclass(frozen=True)
class Filter:
    """Which records are wanted. `headers`: name, and the value that one of them has (None: any)."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __bool__(self) -> bool:
        return self.key is not None or bool(self.headers)

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted rows."""
        keep: NDArray[np.bool_] = np.ones(batch.num_rows, np.bool_)
        if self.key is not None:
            keep &= _bits(pc.equal(batch.column("key"), binary_array([self.key])[0]))
        for name, value in self.headers:
            keep &= _has_header(batch.column("headers"), name, value)
        return batch if keep.all() else batch.filter(from_numpy(keep))


def _bits(column: pa.Array) -> NDArray[np.bool_]:
    """True where the column is; null is False."""
    return is_valid(column) & to_numpy(column.cast(pa.uint8())).astype(np.bool_)


def _has_header(headers: pa.Array, name: str, value: bytes | None) -> NDArray[np.bool_]:
    rows = to_numpy(pc.list_parent_indices(headers))
    names, values = headers.flatten().flatten()
    found = _bits(pc.equal(names, repeat_text(name, 1)[0]))
    if value is not None:
        found &= _bits(pc.equal(values, binary_array([value])[0]))
    has: NDArray[np.bool_] = np.zeros(len(headers), np.bool_)
    has[rows[found]] = True
    return has


@dataclass(frozen=True)
class ReadPlan:
    """What is read. `partitions` None: all. `until` None: for ever. `count` and `seconds`: at most;
    the count is of what the filter lets through."""

    topic: str
    partitions: tuple[int, ...] | None = None
    start: Place = FROM_EARLIEST
    until: Place | None = None
    count: int | None = None
    seconds: float | None = None
    filter: Filter = Filter()


class TopicReader:
    """Reads by a plan; use it under `with`. `settings` are a Consumer's.

    `timeout_s` bounds the first questions, and each wait for records that are there. Nothing is
    committed, and no group is joined. Aborted transactions are not shown, as in kcat, unless
    isolation.level says so. Raises OptionError, UnknownTopicError, KafkaTimeoutError, BrokerError.
    """

    def __init__(self, settings: Mapping[str, Any], plan: ReadPlan, timeout_s: float) -> None:
        given = {"isolation.level": "read_committed", "max.partition.fetch.bytes": _FETCH_BYTES}
        given |= settings
        given["enable.auto.commit"] = "false"
        if plan.start.kind == COMMITTED and "group.id" not in given:
            raise OptionError("to begin at committed offsets needs a group: give --group NAME")
        self._plan = plan
        self._timeout_s = timeout_s
        self._consumer = Consumer(given)
        self._options = parse_consumer_settings(given).client
        self.positions: dict[TopicPartition, int] = {}
        """Where each partition's reading has got to."""
        self.ends: dict[TopicPartition, int] = {}
        """Where it ends; empty if it goes on for ever."""
        self.leaders: dict[int, int] = {}
        """The broker that leads each partition, as far as it is known."""
        self._is_bound = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._consumer.__exit__(kind, *details)

    def bind(self) -> None:
        """Finds partitions, and where they begin and end. Waits `timeout_s` at most.

        Raises KafkaConnectionError if all servers refuse connections.
        """
        check_not_refused(self._options)
        plan, consumer, deadline = self._plan, self._consumer, Deadline(self._timeout_s * 1000)
        ranges = chosen_ranges(consumer, plan.topic, plan.partitions, deadline)
        if plan.start.kind == TAIL:
            self.positions = self._tail_starts(ranges, plan.start.number)
        else:
            self.positions = starts(consumer, ranges, plan.start, deadline)
        if plan.until is not None:
            self.ends = ends(consumer, ranges, plan.until, deadline)
        for row in consumer.partitions_for(plan.topic, deadline.remaining_s()):
            self.leaders[row.partition] = -1 if row.leader is None else row.leader.node_id
        self._is_bound = True

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches of one partition each, of RECORD_SCHEMA; never an empty one."""
        if not self._is_bound:
            self.bind()
        seconds = self._plan.seconds
        until_s = None if seconds is None else time.monotonic() + seconds
        return self._batches(self._plan.filter, self._plan.count, until_s)

    def _tail_starts(
        self, ranges: Mapping[TopicPartition, OffsetRange], count: int
    ) -> dict[TopicPartition, int]:
        """The offset of the last record but `count` - 1 of each partition.

        Transaction markers, aborted records and compacted ones take offsets too, so the last
        `count` offsets may hold fewer records: the search reads further back, in windows of twice
        the size each time.
        """
        found = {tp: row.earliest for tp, row in ranges.items()}
        missing = dict.fromkeys(ranges, count)
        below = {tp: row.latest for tp, row in ranges.items() if row.latest - row.earliest > count}
        width = count
        while below:
            windows = {tp: max(found[tp], end - width) for tp, end in below.items()}
            self.positions, self.ends = dict(windows), dict(below)
            offsets: dict[TopicPartition, list[NDArray[np.int64]]] = {tp: [] for tp in below}
            for batch in self._batches(Filter(), None, None):
                tp = TopicPartition(self._plan.topic, batch.column("partition")[0].as_py())
                offsets[tp].append(to_numpy(batch.column("offset")))
            for tp, parts in offsets.items():
                records = np.concatenate([*parts, np.empty(0, np.int64)])
                if len(records) >= missing[tp]:
                    found[tp] = int(records[len(records) - missing[tp]])
                    del below[tp]
                elif windows[tp] == ranges[tp].earliest:
                    del below[tp]
                else:
                    missing[tp] -= len(records)
                    below[tp] = windows[tp]
            width *= 2
        self.ends = {}
        return found

    def _batches(
        self, wanted: Filter, left: int | None, until_s: float | None
    ) -> Iterator[pa.RecordBatch]:
        """Batches from `positions` to `ends`, `left` records at most (None: all)."""
        self._assign()
        patience = Deadline(self._timeout_s * 1000)
        while self._consumer.assignment() and left != 0:
            wait_s = _WAIT_FOR_END_S if self.ends else _WAIT_S
            if until_s is not None:
                wait_s = min(wait_s, until_s - time.monotonic())
                if wait_s <= 0:
                    return
            table = self._consumer.poll_arrow(wait_s, None if wanted else left)
            if table.num_rows:
                patience = Deadline(self._timeout_s * 1000)
            for batch in table.to_batches():
                batch = self._within(batch, wanted)
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                if batch.num_rows:
                    yield batch
                if left == 0:
                    return
            if self.ends and self._moved_on(is_empty=not table.num_rows):
                patience = Deadline(self._timeout_s * 1000)
            elif self.ends and patience.expired:
                raise self._no_records()

    def _assign(self) -> None:
        """Those that have something left to read; the others are over."""
        open_ = {
            tp: offset
            for tp, offset in self.positions.items()
            if not self.ends or offset < self.ends[tp]
        }
        there = self._consumer.assignment()
        self._consumer.assign(list(open_) if there else open_)

    def _within(self, batch: pa.RecordBatch, wanted: Filter) -> pa.RecordBatch:
        tp = TopicPartition(self._plan.topic, batch.column("partition")[0].as_py())
        self.positions[tp] = batch.column("next_offset")[batch.num_rows - 1].as_py()
        if self.ends and self.positions[tp] > self.ends[tp]:
            offsets = to_numpy(batch.column("offset"))
            batch = batch.slice(0, int(np.searchsorted(offsets, self.ends[tp])))
        return wanted.kept(batch) if wanted and batch.num_rows else batch

    def _moved_on(self, *, is_empty: bool) -> bool:
        """Whether some position is further than before, or some partition done."""
        before = dict(self.positions)
        if is_empty:  # markers and compacted records give no rows
            for tp in self._consumer.assignment():
                self.positions[tp] = self._consumer.position(tp, self._timeout_s)
        is_done = any(self.positions[tp] >= self.ends[tp] for tp in self._consumer.assignment())
        if is_done:
            self._assign()
        return is_done or self.positions != before

    def _no_records(self) -> KafkaTimeoutError:
        waiting = {tp: self.positions[tp] for tp in self._consumer.assignment()}
        tp, offset = next(iter(waiting.items()))
        return KafkaTimeoutError(
            f"nothing came of {some_partitions(waiting)} for {self._timeout_s:g} s, at offset "
            f"{offset} of {self.ends[tp]} of {tp}: is its broker there? Give --timeout more "
            "seconds, or --debug to see why"
        )


# --- the verb ---------------------------------------------------------------------------------

app = typer.Typer(rich_markup_mode=None)

FAIL: Final = "fail"
SKIP: Final = "skip"
HEX: Final = "hex"
JSON_LINES: Final = "json"

HELP: Final = """Show a topic's records, from the earliest on, until Ctrl-C or as options say.

\b
  sparkkafka -b localhost:9092 read orders -e                    all there is
  sparkkafka -b localhost:9092 read orders --from -10 -e         the last 10 of each partition
  sparkkafka -b localhost:9092 read orders --from @2026-01-31T12:00 --json
  sparkkafka -b localhost:9092 read orders -f '%t %p %o: %k=%s\\n' -c 5
  sparkkafka -b localhost:9092 read orders --output orders.parquet
  sparkkafka -b localhost:9092 read orders --value-format avro --schema-registry http://localhost:8081

--timeout bounds each wait for the cluster, not the whole read.
"""


@dataclass(frozen=True)
class Output:
    """What becomes of the records. `format` is text, hex or json; a template counts before it."""

    format: str = TEXT
    template: str | None = None
    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    nulls: Nulls = NOTHING_FOR_NULL
    file: Path | None = None

    def text_format(self, leaders: dict[int, int], json_columns: frozenset[str]) -> Format:
        if self.template is not None:
            return template_format(self.template, self.nulls)
        if self.format == JSON_LINES:
            return json_format(leaders, json_columns)
        return text_format(self.delimiter, self.key_delimiter, self.nulls)


def read_topic(
    session: Session,
    plan: ReadPlan,
    output: Output,
    *,
    group: str | None = None,
    format_options: dict[str, str] | None = None,
    on_bad: str = FAIL,
    says_ends: bool = False,
) -> int:
    """Reads by the plan into stdout or the file. Returns how many records came. `says_ends` is on
    stderr, as kcat does it.

    Raises KafkaError, and OSError of the file.
    """
    settings: dict[str, Any] = session.settings("consumer")
    if group is not None:
        settings["group.id"] = group
    if output.template is not None:
        template_format(output.template)  # its errors come before the network's
    timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S
    count = 0
    with ExitStack() as stack:
        decoding = None
        if format_options:
            # Schemas are many modules, and most reads have none.
            from sparkkafka.cli.typed_records import Decoding, read_formats

            formats = read_formats(plan.topic, format_options)
            decoding = stack.enter_context(
                Decoding(formats, plan.topic, as_text=output.file is None, skips_bad=on_bad == SKIP)
            )
        reader = stack.enter_context(TopicReader(settings, plan, timeout_s))
        reader.bind()
        if output.file is not None:
            from sparkkafka.cli.files import FileSink

            sink = stack.enter_context(FileSink(output.file, decoding.types if decoding else {}))
            write: Any = sink.write
        else:
            json_columns = decoding.json_columns if decoding else frozenset()
            printer = output.text_format(reader.leaders, json_columns)
            write = _Stdout(printer, sys.stdout.buffer).write
        batches: Any = reader.batches()
        if decoding is not None:
            batches = chain.from_iterable(map(decoding.decoded, batches))
        for batch in batches:
            if output.format == HEX:
                batch = hex_columns(batch)
            count += batch.num_rows
            write(batch)
    if decoding is not None and decoding.skipped:
        print_error(
            f"warning: {counted(decoding.skipped, 'record')} that no schema reads "
            f"{'was' if decoding.skipped == 1 else 'were'} left out"
        )
    if says_ends:
        for number, (tp, offset) in enumerate(sorted(reader.ends.items()), 1):
            last = ": exiting" if number == len(reader.ends) else ""
            sys.stderr.write(
                f"% Reached end of topic {tp.topic} [{tp.partition}] at offset {offset}{last}\n"
            )
    return count


class _Stdout:
    """Bytes as they are to a pipe or file, without a copy in Python's buffer. To a terminal what
    would move its cursor, or change its colours or its title, goes as text like \\x1b: records are
    from anybody."""

    def __init__(self, printer: Format, out: BinaryIO) -> None:
        self._format = printer
        self._out = out
        self._is_terminal = out.isatty()
        out.flush()  # what is there comes first

    def write(self, batch: Any) -> None:
        for text in self._format.texts(batch):
            self._out.write(_for_terminal(text) if self._is_terminal else text)
        self._out.flush()


def _for_terminal(text: Text) -> bytes:
    lines = bytes(text).decode("utf-8", "backslashreplace").split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines).encode()


def headers_of(texts: list[str]) -> tuple[tuple[str, bytes | None], ...]:
    """NAME=VALUE, or NAME for any value."""
    found: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        found.append((name, os.fsencode(value) if equals else None))
    return tuple(found)


@app.command("read", help=HELP)
def read(
    context: typer.Context,
    topic: Topic,
    start: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--from",
            metavar="PLACE",
            help="earliest, latest, an offset, -N for the last N of each partition, @TIME (ISO, "
            "ms since 1970, -2h), committed (with --group). [default: earliest]",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="PLACE", help="end, an offset, or @TIME (not included)."),
    ] = None,
    at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="Stop where the topic ends now; as --until end.")
    ] = False,
    count: Count = None,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Stop after this time.")
    ] = None,
    partitions: Partitions = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Begin at this group's committed offsets, not joining it."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only records with this key.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME[=VALUE]", help="Only records with this header."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="text, hex, or json (kcat's -J).")] = TEXT,
    as_json: Annotated[bool, typer.Option("-J", "--json", help="As --format json.")] = False,
    template: Annotated[
        str | None,
        typer.Option("-f", "--template", help="kcat's: %t %p %o %k %s %h %T %K %S %R %%"),
    ] = None,
    delimiter: Delimiter = "\\n",
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", "--key-delimiter", help="Show the key, and this before the value."),
    ] = None,
    null: Annotated[str, typer.Option("--null", help="What is shown for null.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Into a .parquet, .arrow or .csv file instead, until the topic's end.",
        ),
    ] = None,
    value_format: ValueFormat = TEXT,
    key_format: KeyFormat = TEXT,
    value_schema: ValueSchema = None,
    key_schema: KeySchema = None,
    schema_registry: Registry = None,
    no_schema_registry: NoRegistry = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="Another option of formats, as valueSubject=s."
        ),
    ] = None,
    on_bad: Annotated[
        str, typer.Option("--on-bad", help="fail or skip, for what the schema cannot read.")
    ] = FAIL,
) -> None:
    session = session_of(context)
    _check(topic, format, on_bad, output)
    if seconds is not None and not 0 < seconds < LONGEST_TIMEOUT_S:
        raise OptionError(f"--for is seconds above 0, of 24 days at most, got {seconds:g}")
    if until is not None and at_end:
        raise OptionError("-e and --until exclude each other: -e is --until end")
    of_text = template or as_json or key_delimiter or null or delimiter != "\\n"
    if output is not None and (of_text or format == JSON_LINES):
        raise OptionError("--output writes columns: remove -f, -J, -D, -K, --null, --format json")
    if template is not None and (as_json or format != TEXT):
        raise OptionError("-f and --format exclude each other, and so do -f and -J")
    if as_json and format == HEX:
        raise OptionError("--json (-J) and --format hex exclude each other: remove one")
    as_text = template is None and not as_json and format != JSON_LINES
    if not as_text and (key_delimiter is not None or delimiter != "\\n"):
        raise OptionError("-D and -K are of text and hex: remove them, or -f or -J")
    if null and (as_json or format == JSON_LINES):
        raise OptionError("--null is not for JSON, which has a null of its own")
    flags = FormatFlags(
        value_format=value_format,
        key_format=key_format,
        value_schema=value_schema,
        key_schema=key_schema,
        registry=registry_of(schema_registry, no_schema_registry),
        others=tuple(option or ()),
    )
    options = format_options_of(Side.READ, flags, session)
    if on_bad == SKIP and not options:
        raise OptionError("--on-bad skip is for --value-format and --key-format: give one")
    place = place_of(start, "--from") if start is not None else None
    if place is None:
        place = Place("committed" if group is not None else EARLIEST)
    if group is not None and place.kind != "committed":
        raise OptionError("--group and --from exclude each other: a group says where to begin")
    end = place_of(until, "--until") if until is not None else None
    if at_end or (output is not None and end is None and count is None and seconds is None):
        end = Place(LATEST)
    plan = ReadPlan(
        topic=topic,
        partitions=None if partitions is None else partitions_of(partitions, "--partitions"),
        start=place,
        until=end,
        count=count,
        seconds=seconds,
        filter=Filter(None if key is None else os.fsencode(key), headers_of(header or [])),
    )
    read_topic(
        session,
        plan,
        Output(
            format=JSON_LINES if as_json else format,
            template=template,
            delimiter=unescaped(delimiter, "--delimiter"),
            key_delimiter=None
            if key_delimiter is None
            else unescaped(key_delimiter, "--key-delimiter"),
            nulls=Nulls(os.fsencode(null)),
            file=output,
        ),
        group=group,
        format_options=options,
        on_bad=on_bad,
    )


def _check(topic: str, format: str, on_bad: str, output: Path | None) -> None:
    if format not in (TEXT, HEX, JSON_LINES):
        raise OptionError(f"--format is {TEXT}, {HEX} or {JSON_LINES}, got {format!r}")
    if on_bad not in (FAIL, SKIP):
        raise OptionError(f"--on-bad is {FAIL} or {SKIP}, got {on_bad!r}")
    if output is not None:
        from sparkkafka.cli.files import check_output

        check_output(output)
