"""Columns with a schema in a task: decoded, and bad records where onBadRecord wants them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from sparkkafka.config.formats import FormatOptions
from sparkkafka.config.kinds import COLUMN, DEAD_LETTER, FAIL, JSON, NO_FRAMING
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import BadRecordError, KafkaError, OptionError
from sparkkafka.protocol.columns.columns import ALL_COLUMNS, HEADERS, DecodedRecords, validity
from sparkkafka.protocol.records.arrow import binary_array, from_numpy, places
from sparkkafka.schemas.bounds import MAX_REASON
from sparkkafka.schemas.column import (
    BadRow,
    ColumnDecoder,
    ColumnPlan,
    DecodedColumn,
    in_pieces,
)
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.spark.arrow_types import has_null_items
from sparkkafka.spark.metric_reports import BAD, DEAD, Report
from sparkkafka.spark.schema import ReadColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sparkkafka.spark.read.dead_letters import DeadLetters

log = logging.getLogger(__name__)

BAD_RECORD_ARROW_TYPE = pa.struct(
    [
        pa.field("error", pa.string()),
        pa.field("schema_id", pa.int32()),
        pa.field("raw", pa.binary()),
    ]
)

DRIVER_LIMIT_MS = 2_000
"""How long the driver waits for the registry while it reads a small micro-batch."""


class NotHereError(KafkaError):
    """The driver found what it leaves to a task: a bad record for the dead-letter topic, or rows
    that Spark cannot take with a plan."""


def needed_columns(columns: tuple[ReadColumn, ...], formats: FormatOptions) -> frozenset[str]:
    """What must be read of records besides the columns: headers with ids."""
    if formats.on_bad_record == DEAD_LETTER:
        return ALL_COLUMNS
    plans = [plan for column in columns for _, plan in column.plans]
    if any(plan.framing != NO_FRAMING and plan.format != JSON for plan in plans):
        return frozenset({HEADERS})
    return frozenset()


class Typed:
    """What the decoding of one task shares: registry, decoders, dead letters. Use under `with`."""

    def __init__(
        self,
        options: ReadOptions,
        formats: FormatOptions,
        columns: tuple[ReadColumn, ...],
        report: Report | None = None,
        *,
        on_driver: bool = False,
    ) -> None:
        self.options, self.formats = options, formats
        self._report = report
        self._plans = {column.name: dict(column.plans) for column in columns if column.plans}
        self._on_driver = on_driver
        self._stack = ExitStack()
        self._registry: RegistryClient | None = None
        self._dead_letters: DeadLetters | None = None
        self._decoders: dict[tuple[str, ColumnPlan], ColumnDecoder] = {}
        self.rows = 0
        self.bad = 0
        self._first = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *details: Any) -> None:
        self._stack.__exit__(exc_type, *details)
        if exc_type in (None, GeneratorExit) and self.bad:  # the latter: Spark wants no more rows
            context = TaskContext.get()
            place = "the driver, for a small micro-batch: " if self._on_driver else ""
            if context is not None:
                place = f"task {context.partitionId()}.{context.attemptNumber()}: "
            log.warning(
                "%s%d of %d records are bad (onBadRecord=%s%s); the first is %s",
                place,
                self.bad,
                self.rows,
                self.formats.on_bad_record,
                f", written to {self.formats.dead_letter_topic}" if self._dead_letters else "",
                self._first,
            )

    def of_partition(self, topic: str, partition: int) -> TypedRecords:
        return TypedRecords(self, topic, partition)

    def decoders(self, topic: str) -> dict[str, ColumnDecoder]:
        """Of the columns of a topic's records."""
        found = {}
        for name, plans in self._plans.items():
            # A topic that the pattern did not match when the read was planned has the others' type.
            plan = plans.get(topic) or next(iter(plans.values()))
            decoder = self._decoders.get((name, plan))
            if decoder is None:
                asks = self._registry_client if self.formats.registry is not None else None
                decoder = self._decoders[name, plan] = ColumnDecoder(plan, asks)
            found[name] = decoder
        return found

    def _registry_client(self) -> RegistryClient:
        if self._registry is None:
            options = self.formats.registry
            if options is None:
                raise OptionError("there is no registry to ask: set schema.registry.url")
            if self._on_driver:  # which has no time, and leaves it to tasks
                limit_ms = min(options.api_timeout_ms, DRIVER_LIMIT_MS)
                options = replace(options, api_timeout_ms=limit_ms, max_retries=0)
            self._registry = self._stack.enter_context(RegistryClient(options.patient()))
        return self._registry

    def other_subjects_hint(self, schema_id: int | None, subject: str | None) -> str:
        """A sentence if the schema belongs to another subject, else ""."""
        if schema_id is None or subject is None or self.formats.registry is None:
            return ""
        text = self._registry_client().other_subjects_hint(schema_id, subject)
        return f"; {text}" if text else ""

    def dead_letters(self) -> DeadLetters:
        if self._on_driver:
            raise NotHereError("a record is for the dead-letter topic")
        if self._dead_letters is None:
            from sparkkafka.spark.read.dead_letters import DeadLetters

            self._dead_letters = self._stack.enter_context(
                DeadLetters(self.options, self.formats.dead_letter_topic)
            )
        return self._dead_letters

    def check(self, found: dict[str, pa.Array]) -> None:
        """Raises NotHereError for rows that Spark takes only from a task."""
        if self._on_driver and any(map(has_null_items, found.values())):
            raise NotHereError(
                "an array or map has a null in it, which Spark takes only from a task"
            )

    def count(self, rows: int, bad: int, first: str) -> None:
        self.rows += rows
        self.bad += bad
        self._first = self._first or first

    def report(self, name: str, count: int, topic: str, partition: int) -> None:
        """For `sparkkafka.metrics`."""
        if self._report is not None:
            self._report.add(name, count, topic, partition)


class TypedRecords:
    """Records of one partition -> its columns with a schema."""

    def __init__(self, typed: Typed, topic: str, partition: int) -> None:
        self._typed = typed
        self._topic, self._partition = topic, partition
        self._decoders = typed.decoders(topic)

    def pieces(
        self, records: DecodedRecords
    ) -> Iterator[tuple[dict[str, pa.Array], DecodedRecords]]:
        """`columns` of all records, of fewer at once where they take too much memory."""
        return in_pieces(
            lambda start, stop: self.columns(records.slice(start, stop)), 0, len(records)
        )

    def columns(self, records: DecodedRecords) -> tuple[dict[str, pa.Array], DecodedRecords]:
        """(columns by name, the records that are left). Raises BadRecordError with
        onBadRecord=fail, RegistryError, TooManyRowsError, and what writing dead letters raises."""
        decoded: dict[str, DecodedColumn] = {}
        raws: dict[str, pa.Array] = {}
        for name, decoder in self._decoders.items():
            raw = records.keys if name == "key" else records.values
            if raw is None:
                raw = pa.nulls(len(records), pa.binary())
            raws[name] = raw
            decoded[name] = decoder.decode(raw, records.headers)
        bad = self._by_row(decoded)
        formats = self._typed.formats
        first = ""
        if bad:
            first = self._words(records, next(iter(bad.items())))
            if formats.on_bad_record == FAIL:
                raise BadRecordError(self._error(records, raws, next(iter(bad.items()))))
        found = {name: one.values for name, one in decoded.items()}
        self._typed.check(found)
        self._typed.count(len(records), len(bad), first)
        self._typed.report(BAD, len(bad), self._topic, self._partition)
        for name, one in decoded.items():
            if one.rest is not None and name == "value":
                found["rescued"] = one.rest
        if formats.on_bad_record == COLUMN:
            found["bad_record"] = _bad_column(len(records), bad, raws)
        if bad and formats.on_bad_record == DEAD_LETTER:
            from sparkkafka.spark.read.dead_letters import DeadLetter

            keep = np.ones(len(records), np.bool_)
            keep[list(bad)] = False
            self._typed.dead_letters().write(
                self._topic,
                self._partition,
                kept(records, ~keep),
                [DeadLetter(one[0][0], reason_of(one)) for one in bad.values()],
            )
            self._typed.report(DEAD, len(bad), self._topic, self._partition)
            records = kept(records, keep)
            mask = from_numpy(keep)
            found = {name: array.filter(mask) for name, array in found.items()}
        return found, records

    @staticmethod
    def _by_row(decoded: dict[str, DecodedColumn]) -> dict[int, list[tuple[str, BadRow]]]:
        """Bad rows in their order; what is wrong with the value before the key."""
        found: dict[int, list[tuple[str, BadRow]]] = {}
        for name in sorted(decoded, reverse=True):
            for one in decoded[name].bad:
                found.setdefault(one.row, []).append((name, one))
        return dict(sorted(found.items()))

    def _words(self, records: DecodedRecords, item: tuple[int, list[tuple[str, BadRow]]]) -> str:
        row, bad = item
        offset = int(records.offsets[row])
        return (
            f"topic {self._topic} partition {self._partition} offset {offset} "
            f"({bad[0][1].writer}): {reason_of(bad)}"
        )

    def _error(
        self,
        records: DecodedRecords,
        raws: dict[str, pa.Array],
        item: tuple[int, list[tuple[str, BadRow]]],
    ) -> str:
        name, first = item[1][0]
        raw = raws[name][item[0]].as_py() or b""
        plan = self._decoders[name].plan
        whose = ""
        if first.writer.schema_id != plan.schema_id:
            whose = self._typed.other_subjects_hint(first.writer.schema_id, plan.subject)
        return (
            f"{self._words(records, item)}{whose}. The {name} has {len(raw)} bytes. "
            "onBadRecord=null, column or deadLetter reads on; the last two keep the bytes"
        )


def reason_of(bad: list[tuple[str, BadRow]]) -> str:
    """What is wrong with a record, of its value and its key: cut, and text that UTF-8 can write,
    which names in a schema need not be."""
    text = "; ".join(f"{name}: {one.reason[:MAX_REASON]}" for name, one in bad)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"


def kept(records: DecodedRecords, keep: NDArray[np.bool_]) -> DecodedRecords:
    """The rows to keep."""
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


def _bad_column(
    count: int, bad: dict[int, list[tuple[str, BadRow]]], raws: dict[str, pa.Array]
) -> pa.Array:
    """bad_record of `count` rows, null for good ones."""
    if not bad:
        return pa.nulls(count, BAD_RECORD_ARROW_TYPE)
    errors, ids, raw = [], [], []
    for row, found in bad.items():
        name, first = found[0]
        errors.append(reason_of(found).encode())
        ids.append(first.writer.schema_id)
        raw.append(raws[name].slice(row, 1))
    numbers = np.array([one if one is not None else 0 for one in ids], np.uint32).view(np.int32)
    known = validity(np.array([one is not None for one in ids]))
    schema_ids = pa.Array.from_buffers(pa.int32(), len(ids), [known, pa.py_buffer(numbers)])
    found_rows = pa.StructArray.from_arrays(
        [binary_array(errors).cast(pa.string()), schema_ids, pa.concat_arrays(raw)],
        fields=list(BAD_RECORD_ARROW_TYPE),
    )
    is_bad = np.zeros(count, np.bool_)
    is_bad[list(bad)] = True
    return found_rows.take(places(is_bad))
