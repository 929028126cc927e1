"""Columns with a schema in a task: decoding, and the handling of bad records by onBadRecord."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sparkkafka.client.values import TopicPartition
from sparkkafka.config import kinds
from sparkkafka.config.formats import FormatOptions
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import BadRecordError, KafkaError, OptionError, SchemaError
from sparkkafka.protocol.columns.columns import (
    ALL_COLUMNS,
    HEADERS,
    TIMESTAMP,
    DecodedRecords,
    validity,
)
from sparkkafka.protocol.records.arrow import binary_array, filtered_positions, from_numpy
from sparkkafka.protocol.records.varint_columns import Flags
from sparkkafka.schemas.column import BadRow, ColumnDecoder, ColumnPlan, DecodedColumn, in_pieces
from sparkkafka.schemas.framings import WriterId
from sparkkafka.schemas.registry.client import RegistryClient, connect
from sparkkafka.schemas.schema_errors import MAX_REASON
from sparkkafka.spark.arrow_types import has_null_items, to_arrow_type
from sparkkafka.spark.metric_reports import Count, Report
from sparkkafka.spark.read.change_columns import are_other_records, table_columns
from sparkkafka.spark.schema import BAD_RECORD_TYPE, ReadColumn

if TYPE_CHECKING:
    from sparkkafka.spark.read.dead_letters import DeadLetters

log = logging.getLogger(__name__)

Causes = list[tuple[str, BadRow]]
"""Why one record is bad: for each of its bad columns the name (key or value) and the error."""

BAD_RECORD_ARROW_TYPE = to_arrow_type(BAD_RECORD_TYPE, "bad_record")


class LeftToTaskError(KafkaError):
    """The driver cannot read a small micro-batch, but a task can: a bad record must be written to
    the dead-letter topic, or Spark accepts a row only from a task."""


def needed_columns(columns: tuple[ReadColumn, ...], formats: FormatOptions) -> frozenset[str]:
    """Return the columns of records that decoding needs besides those of the read."""
    if formats.on_bad_record == kinds.DEAD_LETTER:
        return ALL_COLUMNS
    plans = [plan for column in columns for _, plan in column.plans]
    names = {TIMESTAMP} if formats.unwraps else set()
    # A header may have the id of the schema that wrote a record, but not with these framings, and
    # JSON does not need that schema.
    without_header = (kinds.NO_FRAMING, kinds.GLUE, kinds.GLUE_ZLIB, kinds.SINGLE_OBJECT)
    if any(plan.framing not in without_header and plan.format != kinds.JSON for plan in plans):
        names.add(HEADERS)
    return frozenset(names)


class TaskDecoder:
    """Decodes the columns with a schema of a task's partitions, which share the registry's client,
    decoders and the producer of dead letters. A context manager; it logs the number of bad records.

    `on_driver`: the driver reads a small micro-batch, and leaves what only a task can do to a task.
    """

    def __init__(
        self,
        options: ReadOptions,
        formats: FormatOptions,
        columns: tuple[ReadColumn, ...],
        report: Report | None = None,
        *,
        on_driver: bool = False,
    ) -> None:
        self._options, self._formats = options, formats
        self._report = Report() if report is None else report
        self._plans = {column.name: dict(column.plans) for column in columns if column.plans}
        self._visible_columns = [
            (column.name, column.arrow_type) for column in columns if not column.is_hidden
        ]
        self._on_driver = on_driver
        self._stack = ExitStack()
        self._registry: RegistryClient | None = None
        self._dead_letters: DeadLetters | None = None
        self._decoders: dict[tuple[str, ColumnPlan], ColumnDecoder] = {}
        self._rows = 0
        self._bad_rows = 0
        self._first_bad = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *details: Any) -> None:
        """Close the client and the producer, and log the bad records if the task has succeeded."""
        self._stack.__exit__(exc_type, *details)
        # GeneratorExit: Spark needs no more rows.
        if exc_type in (None, GeneratorExit) and self._bad_rows:
            context = TaskContext.get()
            reader = "the driver, for a small micro-batch: " if self._on_driver else ""
            if context is not None:
                reader = f"task {context.partitionId()}.{context.attemptNumber()}: "
            log.warning(
                "%sbad records: %d of %d (onBadRecord=%s%s); the first is %s",
                reader,
                self._bad_rows,
                self._rows,
                self._formats.on_bad_record,
                f", written to {self._formats.dead_letter_topic}" if self._dead_letters else "",
                self._first_bad,
            )

    def decode_in_pieces(
        self, tp: TopicPartition, records: DecodedRecords
    ) -> Iterator[tuple[dict[str, pa.Array], DecodedRecords]]:
        """Yield what `decode` returns, for parts of the records if all of them need too much
        memory."""
        return in_pieces(
            lambda start, stop: self.decode(tp, records.slice(start, stop)), 0, len(records)
        )

    def decode(
        self, tp: TopicPartition, records: DecodedRecords
    ) -> tuple[dict[str, pa.Array], DecodedRecords]:
        """Decode records of a partition. Return the columns by name, and their records: all but
        those that were written to the dead-letter topic.

        Raises BadRecordError with onBadRecord=fail, SchemaError for a change with a new column,
        RegistryError, TooManyRowsError, and the errors of `DeadLetters.write`.
        """
        formats, count = self._formats, len(records)
        decoders = self._decoders_of(tp.topic)
        decoded: dict[str, DecodedColumn] = {}
        payloads_by_column: dict[str, pa.Array] = {}
        for name, decoder in decoders.items():
            payloads = records.keys if name == "key" else records.values
            if payloads is None:
                payloads = pa.nulls(count, pa.binary())
            payloads_by_column[name] = payloads
            try:
                decoded[name] = decoder.decode(payloads, records.headers)
            except SchemaError as error:
                where = f"topic {tp.topic} partition {tp.partition}"
                raise SchemaError(
                    f"{where}, from offset {records.offsets[0]} on: {error}"
                ) from None
        if formats.unwraps and (key := decoded.get("key")) and key.bad:
            is_other = are_other_records(decoded["value"].values)
            bad = [cause for cause in key.bad if not is_other[cause.row]]
            decoded["key"] = replace(key, bad=bad)
        causes_by_row = _causes_by_row(decoded)
        if causes_by_row:
            row, causes = next(iter(causes_by_row.items()))
            name, cause = causes[0]
            text = f"topic {tp.topic} partition {tp.partition} offset {int(records.offsets[row])}"
            text += f"{cause.writer.note}: {reason_of(causes)}"
            self._first_bad = self._first_bad or text
            if formats.on_bad_record == kinds.FAIL:
                text += self._other_subjects_hint(cause.writer, decoders[name].plan)
                raise _bad_record_error(text, name, payloads_by_column[name][row])
        columns = {name: column.values for name, column in decoded.items()}
        if self._on_driver and any(map(has_null_items, columns.values())):
            raise LeftToTaskError(
                "an array or map has a null in it, which Spark accepts only from a task"
            )
        self._rows += count
        self._bad_rows += len(causes_by_row)
        self._report.add(Count.BAD, len(causes_by_row), *tp)
        is_bad = np.zeros(count, np.bool_)
        value = decoded.get("value")
        if value is not None:
            is_bad[[cause.row for cause in value.bad]] = True
            if value.rest is not None:
                columns["rescued"] = value.rest
        if formats.on_bad_record == kinds.COLUMN:
            columns["bad_record"] = _bad_record_column(count, causes_by_row, payloads_by_column)
        if causes_by_row and formats.on_bad_record == kinds.DEAD_LETTER:
            keep = np.ones(count, np.bool_)
            keep[list(causes_by_row)] = False
            self._write_dead_letters(tp, _filter_records(records, ~keep), causes_by_row)
            records = _filter_records(records, keep)
            mask = from_numpy(keep)
            columns = {name: array.filter(mask) for name, array in columns.items()}
            is_bad = is_bad[keep]
        if formats.unwraps:
            columns = table_columns(self._visible_columns, columns, is_bad, records, tp)
        return columns, records

    def _decoders_of(self, topic: str) -> dict[str, ColumnDecoder]:
        """Return the decoders of a topic's records by column."""
        decoders = {}
        for name, plans in self._plans.items():
            # A topic that subscribePattern did not match at planning is read with another's plan:
            # all topics of a column have one type.
            plan = plans.get(topic) or next(iter(plans.values()))
            decoder = self._decoders.get((name, plan))
            if decoder is None:
                registry = self._registry_client if self._formats.registry is not None else None
                decoder = self._decoders[name, plan] = ColumnDecoder(plan, registry)
            decoders[name] = decoder
        return decoders

    def _registry_client(self) -> RegistryClient:
        """Return the registry's client, which is opened at first use."""
        if self._registry is None:
            options = self._formats.registry
            if options is None:
                raise OptionError("the schema registry is not known: set schema.registry.url")
            if self._on_driver:  # the micro-batch waits for it; a task may take longer
                limit_ms = min(options.api_timeout_ms, 2_000)
                options = replace(options, api_timeout_ms=limit_ms, max_retries=0)
            self._registry = self._stack.enter_context(connect(options.for_tasks()))
        return self._registry

    def _other_subjects_hint(self, writer: WriterId, plan: ColumnPlan) -> str:
        """Return a hint if the schema that wrote a bad record belongs to another subject than the
        plan's, else ""."""
        schema_id = writer.schema_id
        if writer.kind or schema_id is None or schema_id == plan.schema_id or plan.subject is None:
            return ""
        if self._formats.registry is None:
            return ""
        text = self._registry_client().other_subjects_hint(schema_id, plan.subject)
        return f"; {text}" if text else ""

    def _write_dead_letters(
        self, tp: TopicPartition, records: DecodedRecords, causes_by_row: dict[int, Causes]
    ) -> None:
        """Write bad records to the dead-letter topic, whose producer is opened for the first one.
        Raises LeftToTaskError on the driver."""
        if self._on_driver:
            raise LeftToTaskError("a bad record must be written to the dead-letter topic")
        from sparkkafka.spark.read.dead_letters import DeadLetters

        if self._dead_letters is None:
            self._dead_letters = self._stack.enter_context(
                DeadLetters(self._options, self._formats.dead_letter_topic)
            )
        # Of each row the column of its first cause.
        reasons = [(causes[0][0], reason_of(causes)) for causes in causes_by_row.values()]
        self._dead_letters.write(tp, records, reasons)
        self._report.add(Count.DEAD, len(reasons), *tp)


def _causes_by_row(decoded: dict[str, DecodedColumn]) -> dict[int, Causes]:
    """Return the causes of each bad row, the cause of the value before that of the key. The rows
    ascend."""
    causes_by_row: dict[int, Causes] = {}
    for name in sorted(decoded, reverse=True):
        for cause in decoded[name].bad:
            causes_by_row.setdefault(cause.row, []).append((name, cause))
    return dict(sorted(causes_by_row.items()))


def _bad_record_error(text: str, column: str, payload: pa.Scalar) -> BadRecordError:
    """Return the error of onBadRecord=fail. `text`: where the record is, and why it is bad."""
    return BadRecordError(
        f"{text}. The {column} has {len(payload.as_py() or b'')} bytes. To continue without an "
        "error, set onBadRecord=null, column or deadLetter; the last two keep the bytes"
    )


def reason_of(causes: Causes) -> str:
    """Return why a record is bad, cut to MAX_REASON characters, as valid UTF-8 (names in a schema
    need not be)."""
    text = "; ".join(f"{name}: {cause.reason[:MAX_REASON]}" for name, cause in causes)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def _filter_records(records: DecodedRecords, keep: Flags) -> DecodedRecords:
    """Return the records for which `keep` is true."""
    mask = from_numpy(keep)
    keys, values, headers = (
        None if column is None else column.filter(mask)
        for column in (records.keys, records.values, records.headers)
    )
    return DecodedRecords(
        records.offsets[keep],
        None if records.timestamps_ms is None else records.timestamps_ms[keep],
        records.timestamp_types[keep],
        keys,
        values,
        headers,
    )


def _bad_record_column(
    count: int, causes_by_row: dict[int, Causes], payloads_by_column: dict[str, pa.Array]
) -> pa.Array:
    """Return the column bad_record of `count` rows, null for good ones."""
    if not causes_by_row:
        return pa.nulls(count, BAD_RECORD_ARROW_TYPE)
    errors, ids, payloads = [], [], []
    for row, causes in causes_by_row.items():
        name, cause = causes[0]
        errors.append(reason_of(causes).encode())
        schema_id = cause.writer.schema_id
        # Not an id of Apicurio that has more than 32 bits: the column is an int.
        ids.append(None if schema_id is None or schema_id >> 32 else schema_id)
        payloads.append(payloads_by_column[name].slice(row, 1))
    # An id of 2**31 or more, which a damaged payload may have, becomes negative.
    numbers = np.array([schema_id or 0 for schema_id in ids], np.uint32).view(np.int32)
    has_id = validity(np.array([schema_id is not None for schema_id in ids]))
    schema_ids = pa.Array.from_buffers(pa.int32(), len(ids), [has_id, pa.py_buffer(numbers)])
    bad_rows = pa.StructArray.from_arrays(
        [binary_array(errors).cast(pa.string()), schema_ids, pa.concat_arrays(payloads)],
        fields=list(BAD_RECORD_ARROW_TYPE),
    )
    is_bad = np.zeros(count, np.bool_)
    is_bad[list(causes_by_row)] = True
    return bad_rows.take(filtered_positions(is_bad))
