"""valueSchema=infer: the type of JSON, from a sample of the records that are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from sparkkafka.config.formats import ColumnFormat
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import FROM_EARLIEST, TO_LATEST
from sparkkafka.errors import OptionError
from sparkkafka.schemas.column import format_module
from sparkkafka.schemas.wire_format import unframe_texts
from sparkkafka.spark.arrow_types import from_arrow
from sparkkafka.spark.read.planning import KafkaInputPartition
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import ReadColumn

log = logging.getLogger(__name__)

SAMPLE_ROWS = 1_000
SAMPLE_BYTES = 4 * 2**20


def infer_type(options: ReadOptions, column: ColumnFormat) -> pa.DataType:
    """Return the type of a sample: the first and the last offsets of each partition's range.

    Raises OptionError if there are no records, and what a read raises.
    """
    name = column.column
    plain = replace(
        options,
        formats=None,
        fail_on_data_loss=False,
        bind_offsets="plan",
        min_partitions=None,
        max_records_per_partition=None,
    )
    samples = _sample(plain, name)
    if not samples:  # a stream that starts at latest
        samples = _sample(replace(plain, starting=FROM_EARLIEST, ending=TO_LATEST), name)
    if not samples:
        raise OptionError(
            f"{name}Schema=infer: no record has a {name}, so its type is not known. Call "
            f".schema('{name} struct<…>'), or set {name}Schema to a JSON Schema"
        )
    kind: pa.DataType = format_module(column.format).infer(samples)
    log.warning(
        "%sSchema=infer: by a sample of %d records, column %s is %s. Fields that the sample lacks "
        "are not read: give this type, or a better one, in .schema(…) for all runs to be alike",
        name,
        len(samples),
        name,
        from_arrow(kind).simpleString(),
    )
    return kind


def _sample(options: ReadOptions, name: str) -> list[bytes]:
    from sparkkafka.spark.read.read_task import read_ranges

    columns = (ReadColumn(name),)
    ranges = [
        partition
        for partition in KafkaBatchReader(options, columns).partitions()
        if isinstance(partition, KafkaInputPartition)
    ]
    found: list[bytes] = []
    size_bytes = 0
    for partition in _range_ends(ranges):
        for batch in read_ranges(options, columns, (partition,)):
            for group in unframe_texts(batch.column(0), name).groups:
                for payload in group.payloads.to_pylist():
                    if payload is None:
                        continue
                    found.append(payload)
                    size_bytes += len(payload)
                    if len(found) >= SAMPLE_ROWS or size_bytes >= SAMPLE_BYTES:
                        return found
    return found


def _range_ends(ranges: Sequence[KafkaInputPartition]) -> Iterator[KafkaInputPartition]:
    """Yield the first and the last offsets of each range, about SAMPLE_ROWS offsets in all."""
    if not ranges:
        return
    half = max(1, SAMPLE_ROWS // (2 * len(ranges)))
    for partition in ranges:
        if partition.count <= 2 * half:
            yield partition
            continue
        yield replace(partition, end=partition.start + half)
        yield replace(partition, start=partition.end - half)
