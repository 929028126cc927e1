"""`write`: send lines, JSON lines or a file's rows to a topic.

`TopicWriter` sends Arrow batches and reports what is not written, `ProgressBar` shows a bar; `copy`
uses both, too.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, Self

import pyarrow as pa
import typer
from typer import Option

from sparkkafka.cli import commands, files
from sparkkafka.cli.format_flags import TEXT, FormatFlags
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import print_note
from sparkkafka.cli.text_formats import parse_delimiters, parse_hex
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import check_servers
from sparkkafka.client.producer.futures import TableDelivery
from sparkkafka.client.producer.producer import Producer
from sparkkafka.config.client_settings import parse_producer_settings
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.option_table import Side
from sparkkafka.errors import EncodeError, KafkaError, OptionError, ProduceError, counted
from sparkkafka.protocol.records.arrow import binary_array

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("write")
@commands.with_option_groups
def write(
    context: typer.Context,
    topic: commands.Topic,
    *,
    input: Path | None = Option(
        None,
        metavar="FILE",
        help="Lines of a file, or rows of a .parquet, .arrow or .csv file.",
        show_default="stdin",
    ),
    as_json: bool = Option(False, "-J", "--json", help="Lines are JSON as read --json prints it."),
    format: str = Option(
        TEXT, metavar="text|hex", help="hex: keys and values are hexadecimal digits."
    ),
    delimiter: commands.Delimiter = "\\n",
    key_delimiter: str | None = Option(
        None, "-K", "--key-delimiter", metavar="TEXT", help="The text between key and value."
    ),
    empty_is_null: bool = Option(
        False, "-Z", "--empty-is-null", help="Write empty keys and values as null."
    ),
    key: str | None = Option(None, "-k", "--key", help="The key of records without one."),
    header: list[str] | None = Option(
        None, "-H", "--header", metavar="NAME=VALUE", help="A header of all records."
    ),
    partition: int | None = Option(
        None, "-p", "--partition", min=0, max=INT32_MAX, help="The partition of all records."
    ),
    keep_partitions: bool = Option(
        False, "--keep-partitions", help="Write each record to the partition that its input names."
    ),
    partitioner: str | None = Option(
        None, metavar="NAME", help="murmur2_random, consistent_random, random, …"
    ),
    compression: str | None = Option(
        None, "-z", "--compression", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."
    ),
    count: commands.Count = None,
    formats: FormatFlags,
    option: list[str] | None = Option(
        None,
        metavar="NAME=VALUE",
        help="Another option of formats, such as auto.register.schemas=true.",
    ),
) -> None:
    """Write lines of stdin, or of a file, to a topic.

    \b
      echo hello | sparkkafka -b localhost:9092 write orders
      sparkkafka -b localhost:9092 write orders --input orders.txt -K :        key:value lines
      sparkkafka -b localhost:9092 write orders --input orders.jsonl --json    from read --json
      sparkkafka -b localhost:9092 write orders --input orders.parquet
      sparkkafka -b localhost:9092 write orders --input orders.csv --format hex
      sparkkafka write orders --input rows.csv --value-format json --option valueFraming=none
      sparkkafka write orders --value-format avro --schema-registry http://localhost:8081

    It ends with exit code 0 once all records are acknowledged. --timeout limits the delivery of
    each record.
    """
    session = commands.session_of(context)
    is_table = input is not None and input.suffix.lower() in files.ENDINGS
    shapes_lines = key_delimiter is not None or delimiter != "\\n" or empty_is_null
    if format not in (TEXT, "hex"):
        raise OptionError(
            f"--format is {TEXT} or hex, got {format!r}: for JSON lines give -J, for values with a "
            "schema --value-format"
        )
    if format == "hex" and (as_json or formats.value_format != TEXT or formats.key_format != TEXT):
        raise OptionError("--format hex excludes -J, --value-format and --key-format: remove one")
    if is_table and (as_json or shapes_lines):
        raise OptionError(f"{input} is a table: -J, -D, -K and -Z are for lines, remove them")
    if as_json and shapes_lines:
        raise OptionError("JSON lines have keys and nulls of their own: remove -D, -K and -Z")
    if keep_partitions and not (is_table or as_json):
        raise OptionError("--keep-partitions is for files and --json: lines name no partition")
    if partition is not None and (keep_partitions or partitioner is not None):
        raise OptionError("-p excludes --keep-partitions and --partitioner: remove one")
    settings = {}
    if compression is not None:
        settings["compression.type"] = compression
    if partitioner is not None:
        settings["partitioner.class"] = partitioner
    source = Input(
        path=None if input is None or str(input) == "-" else input,
        kind="table" if is_table else "json" if as_json else "lines",
        lines=files.LineFormat(*parse_delimiters(delimiter, key_delimiter), empty_is_null),
        hex=format == "hex",
        keeps_partitions=keep_partitions,
        key=None if key is None else os.fsencode(key),
        headers=commands.parse_headers(header or ()),
        partition=partition,
        count=count,
        shows_progress=sys.stderr.isatty() and not (input is None and sys.stdin.isatty()),
    )
    options = formats.options(Side.WRITE, session, option or ())
    written = write_topic(session, topic, source, settings, options)
    if sys.stderr.isatty():
        print_note(f"{counted(written, 'record')} written to {topic}")


# --- input ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """The input of a write. `path` None is stdin. If `kind` is "record", the whole input is the
    value of one record.

    `lines` is the format for the kind "lines". `hex`: keys and values are hexadecimal digits, as
    `read --format hex` shows them. `key` is the key of records without one; `headers` and
    `partition` are those of all records. `count` is the maximum number of records. `tee`: also
    print the values on stdout.
    """

    path: Path | None = None
    kind: Literal["lines", "json", "table", "record"] = "lines"
    lines: files.LineFormat = field(default_factory=files.LineFormat)
    hex: bool = False
    keeps_partitions: bool = False
    key: bytes | None = None
    headers: files.Headers = ()
    partition: int | None = None
    count: int | None = None
    tee: bool = False
    shows_progress: bool = False

    def location(self, number: int) -> str:
        """Return the name of a line or row, for errors."""
        return f"{self.path or 'stdin'} {'row' if self.kind == 'table' else 'line'} {number}"

    def batches(self, progress: ProgressBar) -> Iterator[files.NumberedRows]:
        """Yield columns for the Producer. Raises BadRowError, OptionError, OSError."""
        remaining = self.count
        for batch, numbers in self._read(progress):
            bad = None  # the error of the row after the batch
            if self.hex:
                batch, bad = _decode_hex(batch, numbers)
            if remaining is not None:
                batch = batch.slice(0, remaining)
                remaining -= batch.num_rows
            if batch.num_rows:
                batch = files.with_constants(batch, self.key, self.headers, self.partition)
                yield files.NumberedRows(batch, numbers)
            if remaining == 0:
                return
            if bad is not None:
                raise bad

    def _read(self, progress: ProgressBar) -> Iterator[files.NumberedRows]:
        """Read the input. Raises BadRowError, OptionError, OSError."""
        if self.path is not None and self.kind == "table":
            # What describes a record that was read is not written.
            dropped = {"topic", "offset", "timestamp_type", "next_offset"}
            if not self.keeps_partitions:
                dropped.add("partition")
            for batch, numbers in files.read_table_file(self.path):
                batch = files.with_value(batch)
                names = [name for name in batch.schema.names if name in dropped]
                yield files.NumberedRows(batch.drop_columns(names), numbers)
            return
        with ExitStack() as stack:
            file: IO[bytes] = sys.stdin.buffer
            if self.path is not None:
                file = stack.enter_context(self.path.open("rb"))
                progress.total = os.fstat(file.fileno()).st_size
            # read1 does not wait for a full buffer.
            read = getattr(file, "read1", file.read)
            chunks = progress.count_bytes(iter(partial(read, 4 << 20), b""))
            if self.kind == "record":
                if text := b"".join(chunks):  # as kcat, which skips empty files
                    batch = pa.RecordBatch.from_arrays([binary_array([text])], names=["value"])
                    yield files.NumberedRows(batch, (1,))
            elif self.kind == "json":
                yield from files.json_batches(chunks, keeps_partitions=self.keeps_partitions)
            else:
                yield from files.line_batches(chunks, self.lines)


def _decode_hex(
    batch: pa.RecordBatch, numbers: Sequence[int]
) -> tuple[pa.RecordBatch, files.BadRowError | None]:
    """Decode hexadecimal keys and values. Return the rows before the first that holds something
    else, and the error of that row (None: all rows are decoded)."""
    error = None
    for name in ("key", "value"):
        index = batch.schema.get_field_index(name)
        if index < 0 or pa.types.is_null(batch.schema.field(index).type):
            continue
        column, bad = parse_hex(batch.column(index))
        if bad is not None:
            text = batch.column(index)[bad].cast(pa.binary()).as_py()[:40]
            error = files.BadRowError(
                numbers[bad],
                f"the {name} {text.decode('utf-8', 'replace')!r} is not pairs of hexadecimal "
                "digits (--format hex)",
            )
            batch = batch.slice(0, bad)  # so a bad value, which is looked for next, comes earlier
        batch = batch.set_column(index, name, column)
    return batch, error


# --- writing ----------------------------------------------------------------------------------


class StoppedError(KafkaError):
    """A row of the input cannot be written. The rows before it are written, and the message says
    where to continue."""


def write_topic(
    session: Session, topic: str, source: Input, settings: dict[str, str], options: dict[str, str]
) -> int:
    """Write the whole input. Return the number of records, all of them acknowledged. `settings` are
    more of the producer, `options` those of formats.

    Raises NotWrittenError if brokers have not acknowledged all records, StoppedError for a row that
    cannot be written, and other errors as they are if they occur before the first record is sent.
    """
    producer: dict[str, Any] = session.settings("producer") | settings
    with ExitStack() as stack:
        encoding = None
        if options:
            from sparkkafka.cli.typed_records import Encoding, parse_formats

            formats = parse_formats(options, Side.WRITE)
            encoding = stack.enter_context(Encoding(formats, topic))
        progress = stack.enter_context(ProgressBar(f"write {topic}", source.shows_progress))
        writer = stack.enter_context(TopicWriter(producer, topic, session.timeout_s))
        next_number = 1
        try:
            for batch, numbers in source.batches(progress):
                if source.tee:
                    for value in batch.column("value").to_pylist():
                        sys.stdout.buffer.write((value or b"") + b"\n")
                reason = None
                if encoding is not None:
                    batch, reason = encoding.encode(batch)
                elif pa.types.is_nested(batch.schema.field("value").type):
                    raise OptionError(
                        f"{source.path}: values are {batch.schema.field('value').type}: say what "
                        "they become, with --value-format json, avro or protobuf"
                    )
                next_number = numbers[0]
                sent, refusal = writer.send_until_bad(batch)
                reason = refusal or reason  # the row that is refused comes before one not encoded
                if sent:
                    next_number = numbers[sent - 1] + 1
                if reason is not None:
                    location = source.location(numbers[sent])
                    # The Producer counts the rows of the batch.
                    reason = reason.replace(f"row {sent} of the table", location)
                    raise files.BadRowError(numbers[sent], reason)
                progress.update(writer.sent)
        except NotWrittenError:
            raise
        except (KafkaError, OSError) as error:
            if not writer.sent and not isinstance(error, files.BadRowError):
                raise
            raise _stopped_error(source, topic, writer, error, next_number) from error
    return writer.written


def _stopped_error(
    source: Input, topic: str, writer: TopicWriter, error: Exception, next_number: int
) -> StoppedError:
    """Wait until all rows before the error are acknowledged, and return the error to raise. It says
    what is written, and where to continue: at the bad row of a BadRowError, else at `next_number`.
    Raises NotWrittenError."""
    message = str(error)
    if isinstance(error, files.BadRowError):
        next_number = error.number
        location = source.location(next_number)
        if location not in message:
            message = f"{location}: {message}"
    writer.finish()
    if not writer.written:
        return StoppedError(f"{message}. No record is written to topic {topic}")
    before = (
        f"{counted(writer.written, 'record')} before it {'is' if writer.written == 1 else 'are'}"
    )
    return StoppedError(
        f"{message}. The {before} written to topic {topic}: continue from "
        f"{source.location(next_number)}"
    )


class NotWrittenError(KafkaError):
    """The delivery of records has failed. The message has their number and the first error."""


def producer_settings(timeout_s: float) -> dict[str, Any]:
    """Return the command's defaults of a Producer's settings. `timeout_s` is the time for the
    delivery of each record."""
    timeout_ms, linger_ms = max(1, int(timeout_s * 1000)), 5
    return {
        "linger.ms": linger_ms,
        "max.block.ms": timeout_ms,
        # Kafka's rule: at least linger.ms + request.timeout.ms.
        "delivery.timeout.ms": timeout_ms + linger_ms,
        "request.timeout.ms": min(timeout_ms, 30_000),  # 30 s is Java's default
    }


class TopicWriter:
    """Sends batches to one topic; use it under `with`, which waits for all acknowledgements.

    `settings` are a Producer's; each record may take `timeout_s`, unless they say something else.
    `written` counts acknowledged records. The constructor connects, and raises KafkaConnectionError
    as `check_servers` does. Raises NotWrittenError, and what Producer.send_table raises.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, timeout_s: float) -> None:
        if "transactional.id" in settings:
            raise OptionError("transactional.id: records go without a transaction here: remove it")
        self._topic = topic
        settings = {**producer_settings(timeout_s), **settings}
        check_servers(parse_producer_settings(settings).client, Deadline(0))
        self._producer = Producer(settings)
        self._unsettled: deque[tuple[TableDelivery, int]] = deque()
        # Numbers of records: queued, acknowledged, and failed.
        self.sent = 0
        self.written = 0
        self.failed = 0
        self._first_error: KafkaError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: Any, error: BaseException | None, traceback: Any) -> None:
        """Wait for the acknowledgements, or after an exception only a moment."""
        try:
            if exc_type is None:
                self.finish()
        finally:
            # With an exception the producer waits only a moment for records in flight.
            self._producer.__exit__(
                exc_type or (NotWrittenError if self.failed else None), error, traceback
            )
            if isinstance(error, KeyboardInterrupt):
                self._settle_completed()
                error.add_note(
                    f"{self.written:,} records were written to {self._topic}{self._unknown_text()}"
                )

    def send(self, batch: pa.RecordBatch) -> None:
        """Queue the rows; wait while the producer's memory is full.

        Raises NotWrittenError once the delivery of earlier records has failed.
        """
        self._unsettled.append((self._producer.send_table(batch, self._topic), batch.num_rows))
        self.sent += batch.num_rows
        # buffer.memory bounds the records; this bounds the number of their deliveries.
        while self._unsettled and (self._unsettled[0][0].done() or len(self._unsettled) > 1_000):
            self._settle(*self._unsettled.popleft())
        self._raise_if_failed()

    def send_until_bad(self, batch: pa.RecordBatch) -> tuple[int, str | None]:
        """Send the rows before the first that cannot be a record. Return their number, and the
        reason for that row (None: all rows are sent). Raises the errors of `send`."""
        reason = None
        while batch.num_rows:
            try:
                self.send(batch)  # checks all rows before it queues any
                break
            except (EncodeError, ProduceError) as error:
                match = re.search(r"row (\d+) of the table", str(error))
                if match is None:
                    raise
                reason = str(error)
                batch = batch.slice(0, int(match[1]))  # a row before it may have another fault
        return batch.num_rows, reason

    def finish(self) -> None:
        """Wait until everything that was sent is acknowledged. Raises NotWrittenError."""
        while self._unsettled:
            self._settle(*self._unsettled.popleft())
        self._raise_if_failed()

    def _settle(self, delivery: TableDelivery, rows: int) -> None:
        """Wait until these rows are acknowledged or have failed, and count them."""
        failures = delivery.failures()
        self.failed += len(failures)
        self.written += rows - len(failures)
        if failures and self._first_error is None:
            self._first_error = failures[0].error

    def _settle_completed(self) -> None:
        """Count the rows that brokers have already acknowledged, or that have failed."""
        for delivery, rows in self._unsettled:
            if delivery.done():
                self._settle(delivery, rows)

    def _raise_if_failed(self) -> None:
        """Raise NotWrittenError if the delivery of records has failed."""
        if not self.failed:
            return
        self._settle_completed()
        raise NotWrittenError(
            f"{self.failed:,} of {self.sent:,} records were not written to topic {self._topic}"
            f"{self._unknown_text()}; the first: {self._first_error}"
        ) from self._first_error

    def _unknown_text(self) -> str:
        """Return the end of a sentence with the number of records that have neither been
        acknowledged nor failed; "" if there are none."""
        unknown = self.sent - self.written - self.failed
        return f", and of {unknown:,} it is not known" if unknown > 0 else ""


class ProgressBar:
    """Shows a progress bar on stderr if `shown`; use it under `with`.

    The bar shows the bytes of `done`, or if that is 0 the records, as a share of `total`; if that
    is None, it only counts records.
    """

    def __init__(self, title: str, shown: bool, total: int | None = None) -> None:
        self._title = title
        self._bar: Any = None
        self._task: Any = None
        self._started_at_s = 0.0
        self.done = 0
        self.total = total
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[records]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._bar is not None:
            self._started_at_s = time.monotonic()
            self._bar.__enter__()
            self._task = self._bar.add_task(
                self._title, total=self.total, records=counted(0, "record")
            )
        return self

    def __exit__(self, *details: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*details)

    def update(self, records: int) -> None:
        """Show that this many records are sent or read."""
        if self._bar is not None:
            rate = records / max(time.monotonic() - self._started_at_s, 0.1)
            text = f"{counted(records, 'record')}, {rate:,.0f}/s"
            done = self.done or records
            self._bar.update(self._task, total=self.total, completed=done, records=text)

    def count_bytes(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks, and add their bytes to `done`."""
        for chunk in chunks:
            self.done += len(chunk)
            yield chunk
