"""`read`: a topic's records on stdout, or in a file."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

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
from sparkkafka.cli.records.formats import (
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
from sparkkafka.cli.records.positions import EARLIEST, LATEST, Place, partitions_of, place_of
from sparkkafka.cli.records.reading import Filter, ReadPlan, TopicReader
from sparkkafka.cli.session import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S, Session
from sparkkafka.cli.tables import print_error, printable
from sparkkafka.config.kinds import Side
from sparkkafka.errors import OptionError, counted

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
            from sparkkafka.cli.records.decoding import Decoding, read_formats

            formats = read_formats(plan.topic, format_options)
            decoding = stack.enter_context(
                Decoding(formats, plan.topic, as_text=output.file is None, skips_bad=on_bad == SKIP)
            )
        reader = stack.enter_context(TopicReader(settings, plan, timeout_s))
        reader.bind()
        if output.file is not None:
            from sparkkafka.cli.records.files import FileSink

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
        from sparkkafka.cli.records.files import check_output

        check_output(output)
