"""`write`: send lines, JSON lines or a file's rows to a topic."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Final, Self

import pyarrow as pa
import typer

from sparkkafka.cli.bounded_admin import check_not_refused
from sparkkafka.cli.commands import (
    MAX_PARTITIONS,
    Count,
    Delimiter,
    KeyFormat,
    KeySchema,
    NoRegistry,
    Registry,
    Topic,
    ValueFormat,
    ValueSchema,
    session_of,
)
from sparkkafka.cli.format_flags import TEXT, FormatFlags, format_options_of, registry_of
from sparkkafka.cli.input import (
    BadPlaceError,
    Headers,
    LineFormat,
    Piece,
    chunks_of,
    json_batches,
    line_batches,
    with_constants,
)
from sparkkafka.cli.session import DEFAULT_TIMEOUT_S, Session
from sparkkafka.cli.tables import print_note, records
from sparkkafka.cli.text_formats import bytes_of_hex, unescaped
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.producer.tables import TableDelivery
from sparkkafka.config.client_settings import parse_producer_settings
from sparkkafka.config.option_table import Side
from sparkkafka.errors import EncodeError, KafkaError, OptionError, ProduceError

# --- progress ---------------------------------------------------------------------------------


class Progress:
    """Counts, and shows what it counts if it is `shown`; use it under `with`.

    The bar is of bytes if `total_bytes` is known, else it shows records.
    """

    def __init__(self, what: str, shown: bool) -> None:
        self._what = what
        self._bar: Any = None
        self._task: Any = None
        self._records = 0
        self._bytes = 0
        self.total_bytes: int | None = None
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[records]} records"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.__enter__()
            self._task = self._bar.add_task(self._what, total=None, records="0")
        return self

    def __exit__(self, *details: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*details)

    @property
    def records(self) -> int:
        """How many have gone."""
        return self._records

    @records.setter
    def records(self, count: int) -> None:
        self._records = count
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=self.total_bytes,
                completed=self._bytes,
                records=f"{count:,}",
            )

    def counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks, their bytes counted."""
        for chunk in chunks:
            self._bytes += len(chunk)
            yield chunk


# --- sending ----------------------------------------------------------------------------------

DEFAULTS: Final = {"linger.ms": 5, "batch.size": 512 << 10}
"""Of a Producer, where nothing else is said. Java's batches of 16 KB are for services: a file's
records of one partition take four times as long in them."""

THE_ROW: Final = "{row}"

_ROW = re.compile(r"row (\d+) of the table")
_MAX_WAITING = 1_000  # handles; their records are bounded by buffer.memory
_MAX_REQUEST_MS = 30_000


def bounded(timeout_s: float) -> dict[str, Any]:
    """Settings of a Producer for which so much time is enough for each record."""
    timeout_ms = max(1, int(timeout_s * 1000))
    return {
        **DEFAULTS,
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms + DEFAULTS["linger.ms"],
        "request.timeout.ms": min(timeout_ms, _MAX_REQUEST_MS),
    }


class NotWrittenError(KafkaError):
    """Some records were given up; the message counts them and has the first one's error."""


class TopicWriter:
    """Sends batches to one topic; use it under `with`, which waits for all acknowledgements.

    `settings` are a Producer's; `timeout_s` is for each record, unless they say something else.
    `written` counts acknowledged records. Raises NotWrittenError, and what Producer.send_table
    raises.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, timeout_s: float) -> None:
        if "transactional.id" in settings:
            raise OptionError("transactional.id: records go without a transaction here: remove it")
        self._topic = topic
        given = {**bounded(timeout_s), **settings}
        self._options = parse_producer_settings(given).client
        self._producer = Producer(given)
        self._waiting: deque[tuple[TableDelivery, int]] = deque()
        self.sent = 0
        self.written = 0
        self.failed = 0
        self._first: KafkaError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._producer.__exit__(kind or self._failure_kind(), error, traceback)
            if isinstance(error, KeyboardInterrupt):
                self._settle_done()
                error.add_note(
                    f"{self.written:,} records were written to {self._topic}{self._rest()}"
                )

    def _failure_kind(self) -> type[BaseException] | None:
        return NotWrittenError if self.failed else None

    def send(self, batch: pa.RecordBatch) -> None:
        """Queues the rows; waits while the producer's memory is full. Raises NotWrittenError once
        records before were given up; KafkaConnectionError, before anything is sent, if all servers
        refuse connections."""
        if not self.sent:
            check_not_refused(self._options)
        self._waiting.append((self._producer.send_table(batch, self._topic), batch.num_rows))
        self.sent += batch.num_rows
        while self._waiting and (self._waiting[0][0].done() or len(self._waiting) > _MAX_WAITING):
            self._settle(*self._waiting.popleft())
        self._check()

    def send_good(self, batch: pa.RecordBatch) -> tuple[int, str | None]:
        """Sends the rows before the first that no record can be made of: how many they are, and
        what is wrong with that one, which the text calls `THE_ROW` (None: all are sent). Raises as
        `send`."""
        reason = None
        while batch.num_rows:
            try:
                self.send(batch)  # which checks all rows before it queues any
                break
            except (EncodeError, ProduceError) as error:
                found = _ROW.search(str(error))
                if found is None:
                    raise
                reason = str(error).replace(found[0], THE_ROW)
                batch = batch.slice(0, int(found[1]))  # a row before it may have another fault
        return batch.num_rows, reason

    def finish(self) -> None:
        """Waits until all that was sent is acknowledged. Raises NotWrittenError."""
        while self._waiting:
            self._settle(*self._waiting.popleft())
        self._check()

    def _settle(self, handle: TableDelivery, rows: int) -> None:
        failures = handle.failures()
        self.failed += len(failures)
        self.written += rows - len(failures)
        if failures and self._first is None:
            self._first = failures[0].error

    def _check(self) -> None:
        if not self.failed:
            return
        self._settle_done()
        raise NotWrittenError(
            f"{self.failed:,} of {self.sent:,} records were not written to topic {self._topic}"
            f"{self._rest()}; the first: {self._first}"
        ) from self._first

    def _settle_done(self) -> None:
        for handle, rows in self._waiting:
            if handle.done():
                self._settle(handle, rows)

    def _rest(self) -> str:
        open_ = self.sent - self.written - self.failed
        return f", and of {open_:,} it is not known" if open_ > 0 else ""


_LONGEST_SLEEP_S = 3600.0


class Pace:
    """Keeps a rate: `wait` before so many units returns when those before them are due."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._since_s = time.monotonic()
        self._units = 0.0

    def wait(self, units: float) -> None:
        due_s = self._since_s + self._units / self._per_second
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LONGEST_SLEEP_S))
        self._units += units


# --- the verb ---------------------------------------------------------------------------------

app = typer.Typer(rich_markup_mode=None)

HEX: Final = "hex"
STDIN: Final = "-"
PLAIN_LINES: Final = LineFormat()

HELP: Final = """Write lines of stdin, or of a file, to a topic.

\b
  echo hello | sparkkafka -b localhost:9092 write orders
  sparkkafka -b localhost:9092 write orders --input orders.txt -K :        key:value lines
  sparkkafka -b localhost:9092 write orders --input orders.jsonl --json    as read --json shows them
  sparkkafka -b localhost:9092 write orders --input orders.parquet
  sparkkafka -b localhost:9092 write orders --input orders.csv --format hex   as read --format hex
  sparkkafka -b localhost:9092 write orders --input rows.csv --value-format json
  sparkkafka -b localhost:9092 write orders --value-format avro --schema-registry http://localhost:8081

It ends with 0 once every record is acknowledged. --timeout is what one record may take.
"""


class StoppedError(KafkaError):
    """Something of the input cannot be written; what stands before it is, and the message says
    where to go on."""


@dataclass(frozen=True)
class Input:
    """What is written. `path` None is stdin. `count`: so many records at most."""

    path: Path | None = None
    lines: LineFormat | None = PLAIN_LINES
    json: bool = False
    hex: bool = False
    """Keys and values are hexadecimal digits, as `read --format hex` shows them."""
    keeps_partitions: bool = False
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    count: int | None = None
    whole: bool = False
    """A file is one record."""

    @property
    def is_table(self) -> bool:
        return self.path is not None and self.lines is None and not self.json and not self.whole

    def place(self, number: int) -> str:
        """A line or row by its number, as errors name it."""
        return f"{self.path or 'stdin'} {'row' if self.is_table else 'line'} {number}"

    def pieces(self, progress: Progress) -> Iterator[Piece]:
        """Columns for the Producer. Raises BadPlaceError, OptionError, OSError."""
        left = self.count
        for batch, numbers in self._read(progress):
            bad = None
            if self.hex:
                batch, bad = _without_hex(batch, numbers)
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                batch = with_constants(batch, self.key, self.headers, self.partition)
                yield Piece(batch, numbers)
            if left == 0:
                return
            if bad is not None:
                raise bad

    def _read(self, progress: Progress) -> Iterator[Piece]:
        if self.path is not None and self.is_table:
            from sparkkafka.cli.files import read_file

            for batch, numbers in read_file(self.path):
                yield Piece(self._of_file(batch), numbers)
            return
        with ExitStack() as stack:
            file: IO[bytes] = sys.stdin.buffer
            if self.path is not None:
                file = stack.enter_context(self.path.open("rb"))
                progress.total_bytes = os.fstat(file.fileno()).st_size
            chunks = progress.counted(chunks_of(file))
            if self.whole:
                from sparkkafka.protocol.records.arrow import binary_array

                text = b"".join(chunks)
                batch = pa.RecordBatch.from_arrays([binary_array([text])], names=["value"])
                yield Piece(batch, (1,))
            elif self.json:
                yield from json_batches(chunks, with_places=self.keeps_partitions)
            elif self.lines is not None:
                yield from line_batches(chunks, self.lines)

    def _of_file(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from sparkkafka.cli.typed_records import with_value

        batch = with_value(batch)
        drop = [
            name
            for name in ("topic", "offset", "timestamp_type", "next_offset")
            + (() if self.keeps_partitions else ("partition",))
            if name in batch.schema.names
        ]
        return batch.drop_columns(drop)


def _without_hex(
    batch: pa.RecordBatch, numbers: Sequence[int]
) -> tuple[pa.RecordBatch, BadPlaceError | None]:
    """The rows before the first that is not hexadecimal, with keys and values as bytes; and the
    error of that row."""
    error = None
    for name in ("key", "value"):
        at = batch.schema.get_field_index(name)
        if at < 0 or pa.types.is_null(batch.schema.field(at).type):
            continue
        column, bad = bytes_of_hex(batch.column(at))
        if bad is not None:
            text = batch.column(at)[bad].cast(pa.binary()).as_py()[:40].decode("utf-8", "replace")
            error = BadPlaceError(
                numbers[bad],
                f"the {name} {text!r} is not pairs of hexadecimal digits (--format hex)",
            )
            batch = batch.slice(0, bad)
        batch = batch.set_column(at, name, column)
    return batch, error


def write_topic(
    session: Session,
    topic: str,
    given: Input,
    *,
    settings: dict[str, str] | None = None,
    format_options: dict[str, str] | None = None,
    shows_progress: bool = False,
    tee: bool = False,
) -> int:
    """Writes all of the input. Returns how many records are acknowledged: all of them.

    Raises NotWrittenError for the first that is not, StoppedError for input that cannot be written,
    and what was wrong before anything was.
    """
    producer: dict[str, Any] = session.settings("producer") | (settings or {})
    timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S
    with ExitStack() as stack:
        encoding = None
        if format_options:
            from sparkkafka.cli.typed_records import Encoding, write_formats

            encoding = stack.enter_context(Encoding(write_formats(topic, format_options), topic))
        progress = stack.enter_context(Progress(f"write {topic}", shows_progress))
        writer = stack.enter_context(TopicWriter(producer, topic, timeout_s))
        next_number = 1
        try:
            for batch, numbers in given.pieces(progress):
                reason = None
                if tee:
                    _tee(batch)
                if encoding is not None:
                    batch, reason = encoding.encoded(batch)
                elif pa.types.is_nested(batch.schema.field("value").type):
                    raise OptionError(
                        f"{given.path}: values are {batch.schema.field('value').type}: say what "
                        "they become, with --value-format json, avro or protobuf"
                    )
                next_number = numbers[0]
                sent, refused = writer.send_good(batch)
                reason = refused or reason
                if sent:
                    next_number = numbers[sent - 1] + 1
                if reason is not None:
                    raise BadPlaceError(numbers[sent], reason)
                progress.records = writer.sent
        except NotWrittenError:
            raise
        except (KafkaError, OSError) as error:
            if not writer.sent and not isinstance(error, BadPlaceError):
                raise
            raise _stopped(given, topic, writer, error, next_number) from error
    return writer.written


def _stopped(
    given: Input, topic: str, writer: TopicWriter, error: Exception, next_number: int
) -> StoppedError:
    """The error, once all that stands before it is acknowledged. Raises NotWrittenError."""
    words = str(error)
    if isinstance(error, BadPlaceError):
        next_number = error.number
        place = given.place(next_number)
        words = words.replace(THE_ROW, place) if THE_ROW in words else f"{place}: {words}"
    writer.finish()
    if not writer.written:
        return StoppedError(f"{words}. No record is written to topic {topic}")
    before = (
        "1 record before it is"
        if writer.written == 1
        else (f"{writer.written:,} records before it are")
    )
    return StoppedError(
        f"{words}. The {before} written to topic {topic}: go on from {given.place(next_number)}"
    )


def _tee(batch: pa.RecordBatch) -> None:
    for value in batch.column("value").to_pylist():
        sys.stdout.buffer.write((value or b"") + b"\n")


def fixed_headers(texts: list[str]) -> Headers:
    """NAME=VALUE; without = the value is null, as in kcat."""
    found: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise OptionError(f"-H is written NAME=VALUE, got {text!r}")
        found.append((name, os.fsencode(value) if equals else None))
    return tuple(found)


@app.command("write", help=HELP)
def write(
    context: typer.Context,
    topic: Topic,
    input: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Lines of a file, or rows of a .parquet, .arrow or .csv file. [default: stdin]",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("-J", "--json", help="Lines are JSON, as read --json shows them.")
    ] = False,
    format: Annotated[
        str, typer.Option("--format", help="text, or hex for keys and values in digits.")
    ] = TEXT,
    delimiter: Delimiter = "\\n",
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", "--key-delimiter", help="What stands between key and value."),
    ] = None,
    empty_is_null: Annotated[
        bool, typer.Option("-Z", "--empty-is-null", help="Write empty keys and values as null.")
    ] = False,
    key: Annotated[
        str | None, typer.Option("-k", "--key", help="The key of records that have none.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header of all records."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p", "--partition", min=0, max=MAX_PARTITIONS, help="The partition of all records."
        ),
    ] = None,
    keep_partitions: Annotated[
        bool,
        typer.Option("--keep-partitions", help="Records go to the partitions that they name."),
    ] = False,
    partitioner: Annotated[
        str | None,
        typer.Option("--partitioner", help="As murmur2_random, consistent_random or random."),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option("-z", "--compression", help="none, gzip, snappy, lz4 or zstd."),
    ] = None,
    count: Count = None,
    value_format: ValueFormat = TEXT,
    key_format: KeyFormat = TEXT,
    value_schema: ValueSchema = None,
    key_schema: KeySchema = None,
    schema_registry: Registry = None,
    no_schema_registry: NoRegistry = False,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="As auto.register.schemas=true."),
    ] = None,
) -> None:
    session = session_of(context)
    is_file = input is not None and _is_table(input)
    if format not in (TEXT, HEX):
        raise OptionError(f"--format is {TEXT} or {HEX}, got {format!r}: for JSON lines give -J")
    if format == HEX and (as_json or value_format != TEXT or key_format != TEXT):
        raise OptionError("--format hex excludes -J, --value-format and --key-format: remove one")
    if is_file and (as_json or key_delimiter is not None or delimiter != "\\n" or empty_is_null):
        raise OptionError(f"{input} is a table: -J, -D, -K and -Z are for lines, remove them")
    if as_json and (key_delimiter is not None or delimiter != "\\n" or empty_is_null):
        raise OptionError("JSON lines have keys and nulls of their own: remove -D, -K and -Z")
    if keep_partitions and not (is_file or as_json):
        raise OptionError("--keep-partitions is for files and --json: lines name no partition")
    if partition is not None and (keep_partitions or partitioner is not None):
        raise OptionError("-p excludes --keep-partitions and --partitioner: remove one")
    settings = {}
    if compression is not None:
        settings["compression.type"] = compression
    if partitioner is not None:
        settings["partitioner.class"] = partitioner
    lines = None
    if not is_file and not as_json:
        lines = LineFormat(
            unescaped(delimiter, "--delimiter"),
            None if key_delimiter is None else unescaped(key_delimiter, "--key-delimiter"),
            empty_is_null,
        )
    given = Input(
        path=None if input is None or str(input) == STDIN else input,
        lines=lines,
        json=as_json,
        hex=format == HEX,
        keeps_partitions=keep_partitions,
        key=None if key is None else os.fsencode(key),
        headers=fixed_headers(header or []),
        partition=partition,
        count=count,
    )
    flags = FormatFlags(
        value_format=value_format,
        key_format=key_format,
        value_schema=value_schema,
        key_schema=key_schema,
        registry=registry_of(schema_registry, no_schema_registry),
        others=tuple(option or ()),
    )
    options = format_options_of(Side.WRITE, flags, session)
    written = write_topic(
        session,
        topic,
        given,
        settings=settings,
        format_options=options,
        shows_progress=sys.stderr.isatty() and not (input is None and sys.stdin.isatty()),
    )
    if sys.stderr.isatty():
        print_note(f"{records(written)} written to {topic}")


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".arrow", ".feather", ".csv")
