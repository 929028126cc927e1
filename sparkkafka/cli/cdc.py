"""`cdc check`: which envelope, keys and types a connector's records have, and problems with them.

It reads the last records of each partition and the topic's configuration. It changes nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import typer
from typer import Option

from sparkkafka.cli import changes
from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.check import Finding, ok, print_findings, problem, topic_settings, unknown
from sparkkafka.cli.commands import AsJson, Topic, session_of, with_option_groups
from sparkkafka.cli.format_flags import TEXT, FormatFlags
from sparkkafka.cli.read import Bound, ReadPlan, TopicReader
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import duration_text
from sparkkafka.config.kinds import AVRO, DEBEZIUM_FLAT, JSON, PROTOBUF
from sparkkafka.config.option_table import Side
from sparkkafka.errors import BadRecordError, KafkaError, SchemaError, counted, some
from sparkkafka.schemas.envelopes import connect_types
from sparkkafka.schemas.envelopes.debezium import HEARTBEAT, ROW, TOMBSTONE
from sparkkafka.schemas.envelopes.other_envelopes import form_of
from sparkkafka.schemas.envelopes.semantic_types import value_type
from sparkkafka.schemas.values import FIRST_MESSAGE

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)


@app.callback()
def group() -> None:
    """Change data capture."""


@app.command("check")
@with_option_groups
def check(
    context: typer.Context,
    topic: Topic,
    *,
    count: int = Option(
        1_000,
        "-c",
        "--count",
        min=1,
        max=1_000_000,
        help="The number of records that are read, from the end of each partition.",
    ),
    formats: FormatFlags,
    as_json: AsJson = False,
) -> None:
    """Check a topic of changes: its envelope, keys, deletes, order, types, and heartbeats.

    Each line begins with ok, with !! (a problem, and what to do), or with ?? (it could not be
    checked). Values in Avro need --schema-registry. The requests change nothing. The exit code is 1
    if a line begins with !!.

    \b
      sparkkafka -b localhost:9092 cdc check shop.public.orders
    """
    session = session_of(context)
    sample = read_sample(session, topic, count, formats)
    with session.admin() as admin:
        findings = chain(sample_findings(sample), topic_findings(admin, topic, sample))
        print_findings(findings, as_json)


_FORMAT_NAMES: Final = {TEXT: "JSON", JSON: "JSON", AVRO: "Avro", PROTOBUF: "Protobuf"}


@dataclass
class SampledRecords:
    """The records that were read."""

    format: str = ""  # of the values, as JSON
    is_whole: bool = False  # the topic has no other records
    records: list[SampledRecord] = field(default_factory=list)
    decimals: dict[str, bool] = field(default_factory=dict)
    """Whether each decimal column of an Avro schema is a decimal in Spark."""
    value_bytes: int = 0
    bad: list[str] = field(default_factory=list)
    """Why records are not changes."""
    others: list[Mapping[str, Any]] = field(default_factory=list)
    """Values that are objects, but no envelopes of Debezium."""

    def rows(self, *ops: str) -> list[SampledRecord]:
        """Return the changes of rows, with one of these operations if any are given."""
        rows = [record for record in self.records if record.change.kind == ROW]
        return [record for record in rows if record.change.op in ops] if ops else rows

    def none(self, about: str) -> Finding:
        """Return the finding that no records of a kind (`about`) were read."""
        where = "the topic has none" if self.is_whole else "none were read: give a larger --count"
        return unknown(about, where)


class SampledRecord(NamedTuple):
    """A record of the sample; `key` as it is in Kafka."""

    partition: int
    key: bytes | None
    change: changes.Change


def read_sample(session: Session, topic: str, count: int, formats: FormatFlags) -> SampledRecords:
    """Read the last `count` records of each partition. Raises KafkaError, OptionError."""
    plan = ReadPlan(topic, start=Bound("tail", count), until=Bound("latest"))
    sample = SampledRecords()
    with ExitStack() as stack:
        reader = stack.enter_context(
            TopicReader(session.settings("consumer"), plan, session.timeout_s)
        )
        reader.look_up_bounds()
        batches = list(reader.batches())
        counts: Counter[int] = Counter()
        for batch in batches:
            # A batch has records of one partition.
            counts[batch.column("partition")[0].as_py()] += batch.num_rows
        # The sample is the whole topic if each partition had fewer than `count` records.
        sample.is_whole = max(counts.values(), default=0) < count
        formats = _formats_of(batches, formats)
        decode = None
        if options := formats.options(Side.READ, session, ()):
            from sparkkafka.cli.typed_records import Decoding, parse_formats
            from sparkkafka.schemas.column import format_module
            from sparkkafka.schemas.envelopes.decode import node_of

            parsed = parse_formats(options | changes.ENVELOPE_OPTIONS, Side.READ)
            decoding = Decoding(parsed, topic, as_text=False, skips_bad=True)
            decode = stack.enter_context(decoding).decode
            schema = decoding.schemas.get("value")
            if schema is not None and schema.format == AVRO:
                node = node_of(format_module(AVRO), schema, FIRST_MESSAGE)
                sample.decimals = _decimals(node)
        sample.format = _FORMAT_NAMES.get(formats.value_format.lower(), formats.value_format)
        for batch in batches:
            sample.value_bytes += sum(map(len, filter(None, batch.column("value").to_pylist())))
            offsets, keys = (batch.column(name).to_pylist() for name in ("offset", "key"))
            key_by_offset = dict(zip(offsets, keys, strict=True))  # `decode` changes keys
            for decoded in [batch] if decode is None else decode(batch):
                _add_records(sample, decoded, key_by_offset)
    return sample


def _formats_of(batches: Iterable[pa.RecordBatch], flags: FormatFlags) -> FormatFlags:
    """Return the flags, with the format Avro for values, or keys, that begin with a zero byte as a
    registry's framing does, unless the flags name another format."""

    def format_of(column: str, flag: str) -> str:
        """Return the format that a flag names. With the default, text, it is Avro if the column's
        first payload begins with a zero byte, as Confluent's frames do."""
        values = (value for batch in batches for value in batch.column(column).to_pylist())
        first: bytes = next(filter(None, values), b"")
        return AVRO if flag == TEXT and first[:1] == b"\0" else flag

    return replace(
        flags,
        value_format=format_of("value", flags.value_format),
        key_format=format_of("key", flags.key_format),
    )


def _add_records(
    sample: SampledRecords, batch: pa.RecordBatch, keys: Mapping[int, bytes | None]
) -> None:
    """Add the records of a decoded batch to the sample. `keys` has the bytes of each key, by
    offset."""
    columns = (batch.column(name) for name in ("partition", "offset", "key", "value"))
    for partition, offset, key, value in zip(*map(changes.python_values, columns), strict=True):
        try:
            change = changes.parse_change(key, value)
        except BadRecordError as error:
            sample.bad.append(f"partition {partition} offset {offset}: {error}")
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value) if isinstance(value, bytes) else value
            if isinstance(value, Mapping):
                sample.others.append(value.get("payload", value))
        else:
            sample.records.append(SampledRecord(partition, keys[offset], change))


# --- findings ------------------------------------------------------------------------------------


def sample_findings(sample: SampledRecords) -> Iterator[Finding]:
    """Check the records. If none of them is a change, only their envelope and kinds."""
    if not sample.records and not sample.bad:
        yield unknown("records", "the topic has none: check it again once the connector has run")
        return
    kinds = Counter(record.change.kind for record in sample.records)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    if sample.bad:
        yield _other_envelope(sample)
        if not sample.rows():
            return
    ops = Counter(record.change.op for record in sample.rows())
    letters = ", ".join(f"{op} {count:,}" for op, count in ops.most_common())
    yield ok("records", f"{counts}{f' ({letters})' if letters else ''}")
    if not ops:
        yield sample.none("rows")
        return
    yield _envelope(sample)
    yield _keys(sample)
    yield _tombstones(sample)
    yield _before(sample)
    yield from _types(sample)


def _other_envelope(sample: SampledRecords) -> Finding:
    """Report records that are no envelopes of Debezium, and the envelope that they look like."""
    about = "envelope"
    form = form_of(sample.others[0].keys()) if sample.others else None
    if form == DEBEZIUM_FLAT:
        return problem(
            about,
            "the records are flattened (ExtractNewRecordState): truncates and the rows before a "
            "change are not in them. Read them with envelope=debezium-flat, or remove the "
            "transform",
        )
    if form is not None:
        return unknown(
            about, f"read these records with envelope={form}; only Debezium's are checked"
        )
    return problem(
        about,
        f"{counted(len(sample.bad), 'record')} of {len(sample.bad) + len(sample.records):,} "
        f"{'is' if len(sample.bad) == 1 else 'are'} not Debezium's. The first is {sample.bad[0]}",
    )


def _envelope(sample: SampledRecords) -> Finding:
    """Report the connector and the tables of the changes. Several tables are a problem."""
    source = sample.rows()[0].change.source
    tables = sorted({changes.table_of_source(record.change.source) for record in sample.rows()})
    made_by = " ".join(str(source[name]) for name in ("connector", "version") if source.get(name))
    text = f"Debezium{made_by and f' ({made_by})'}, {sample.format}"
    text += f", of {some(tables)}" if any(tables) else " (the source names no table)"
    if len(tables) > 1:
        return problem(
            "envelope",
            f"{text}: keys of several tables may be equal. Read them apart with a filter of "
            "change.source.table, or let the connector write a topic for each",
        )
    return ok("envelope", text)


def _keys(sample: SampledRecords) -> Finding:
    """Check that all rows have keys, and that all changes of a key are in one partition."""
    rows = sample.rows()
    without = [record for record in rows if record.key is None]
    if without:
        return problem(
            "keys",
            f"{len(without):,} of {counted(len(rows), 'row')} have none: the table has no primary "
            "key, so its changes are in any partition. Set message.key.columns of the connector, "
            "or give sparkkafka.cdc keys=[…]",
        )
    fields = list(rows[0].change.key or {})
    partitions: dict[bytes | None, set[int]] = {}
    for record in rows:
        partitions.setdefault(record.key, set()).add(record.partition)
    spread = sum(len(found) > 1 for found in partitions.values())
    if spread:
        return problem(
            "keys",
            f"{some(fields)}; changes of {counted(spread, 'key')} are in several partitions, as "
            "after a change of the partition count: order them by change.position",
        )
    return ok("keys", f"{some(fields)}; all changes of a key are in one partition")


def _tombstones(sample: SampledRecords) -> Finding:
    """Check that a tombstone follows each delete that was read."""
    without_tombstone: set[tuple[int, bytes | None]] = set()
    with_tombstone = 0
    deletes = sample.rows("d")
    for record in sample.records:
        partition_key = (record.partition, record.key)
        if record.change.op == "d":
            without_tombstone.add(partition_key)
        elif record.change.kind == TOMBSTONE and partition_key in without_tombstone:
            without_tombstone.discard(partition_key)
            with_tombstone += 1
    if not deletes:
        return sample.none("deletes")
    if not with_tombstone:
        return problem(
            "tombstones",
            f"none after {counted(len(deletes), 'delete')} (tombstones.on.delete=false): in a "
            "compacted topic the last change of a deleted row stays forever",
        )
    return ok("tombstones", f"after {with_tombstone:,} of {counted(len(deletes), 'delete')}")


def _before(sample: SampledRecords) -> Finding:
    """Check whether updates have the row before the change, and unchanged large values."""
    updates = sample.rows("u")
    if not updates:
        return sample.none("updates")
    have = sum(record.change.before is not None for record in updates)
    text = f"{have:,} of {counted(len(updates), 'update')} have the row before the change"
    missing = Counter(name for r in sample.rows() for name in r.change.unavailable)
    if missing:
        columns = some(f"{name} ({count:,})" for name, count in missing.most_common())
        return problem(
            "updates",
            f"{text}; large values that did not change were not sent: {columns}. A merge must keep "
            "the table's own. ALTER TABLE … REPLICA IDENTITY FULL sends them",
        )
    if not have:
        text += ": deletes have only the key (REPLICA IDENTITY FULL sends the whole row)"
    return ok("updates", text)


def _types(sample: SampledRecords) -> Iterator[Finding]:
    """Check whether the types of the columns are known, and which decimals become text."""
    first = sample.rows()[0].change
    decimals = dict(sample.decimals)
    if sample.format == _FORMAT_NAMES[TEXT] and first.schema is None:
        yield problem(
            "types",
            "the JSON has no schema: dates are numbers, and decimals are Base64 unless "
            "decimal.handling.mode is string or double. Let the converter write it "
            "(value.converter.schemas.enable=true), use Avro, or name the types: .schema(…)",
        )
        return
    if first.schema is not None:
        try:
            decimals = _decimals(connect_types.type_of_connect_schema(first.schema))
        except SchemaError as error:
            yield problem("types", str(error))
            return
        schemas = sum(len(json.dumps(r.change.schema)) for r in sample.records if r.change.schema)
        # At most 99: json.dumps may use more bytes than the record does.
        share = min(99, 100 * schemas // max(1, sample.value_bytes))
        yield ok("types", f"each value has its schema, {share} % of its bytes: Avro has it once")
    else:
        yield ok("types", "from the schema")
    texts = sorted(name for name, is_exact in decimals.items() if not is_exact)
    if texts:
        yield problem(
            "decimals",
            f"{some(texts)}: more digits than Spark's {connect_types.MAX_DIGITS}, or any number of "
            "them, so the column is text. Give it a type: .schema(…)",
        )
    elif decimals:
        yield ok("decimals", f"exact: {some(sorted(decimals))}")


def _decimals(envelope: connect_types.ConnectType) -> dict[str, bool]:
    """Return whether each decimal column of an envelope's rows is a decimal in Spark."""
    row = envelope.children.get(
        "after", envelope.children.get("before", connect_types.ConnectType())
    )
    types = {name: value_type(child) for name, child in row.children.items()}
    return {
        name: pa.types.is_decimal(types[name])
        for name, child in row.children.items()
        if child.name in (connect_types.DECIMAL, connect_types.VARIABLE_SCALE)
        or pa.types.is_decimal(types[name])
    }


def topic_findings(admin: BoundedAdmin, topic: str, sample: SampledRecords) -> Iterator[Finding]:
    """Check the topic's settings, and the connector's other topics."""
    rows = sample.rows()
    if not rows:
        return
    settings = topic_settings(admin, topic)
    if isinstance(settings, KafkaError):
        yield unknown("retention", settings)
    else:
        yield _retention(settings, sample)
    prefix = str(rows[0].change.source.get("name", ""))
    if not prefix:
        return
    names = set(admin.list_topics())
    heartbeat_topics = [name for name in names if name == f"__debezium-heartbeat.{prefix}"]
    if heartbeat_topics or any(record.change.kind == HEARTBEAT for record in sample.records):
        yield ok("heartbeats", some(heartbeat_topics or [topic]))
    else:
        yield problem(
            "heartbeats",
            "none: while only other tables change, the database keeps its log for the connector. "
            "Set heartbeat.interval.ms of the connector",
        )
    if f"{prefix}.transaction" in names:
        yield ok("transactions", f"{prefix}.transaction has where each begins and ends")


def _retention(settings: Mapping[str, str], sample: SampledRecords) -> Finding:
    """Check that the topic's settings keep the last change of each row."""
    policy = settings.get("cleanup.policy", "")
    if "compact" in policy and "delete" not in policy:
        return ok("retention", f"cleanup.policy={policy}: the last change of each key stays")
    milliseconds = int(settings.get("retention.ms") or -1)
    if milliseconds < 0:
        return ok("retention", "unlimited: all changes stay")
    text = (
        f"changes are deleted after {duration_text(milliseconds / 1000)}, also the last one of a "
        "row: a table that is built later lacks rows. Keep a table"
    )
    if any(record.key is None for record in sample.records):
        text += ", or set retention.ms=-1: a compacted topic would refuse the records without a key"
    else:
        text += (
            ", or set cleanup.policy=compact if no record will lack a key: a compacted topic "
            "refuses truncates and rows without a key, and then the connector fails"
        )
    return problem("retention", text)
