"""Record batches by the codec of the package, for tests that look at one whole."""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from sparkkafka.protocol.constants import LOG_APPEND_TIME_FLAG, NO_LEADER_EPOCH
from sparkkafka.protocol.records.batches import CONTROL_FLAG, HEADER, EncodedBatch, batch_parts
from sparkkafka.protocol.wire.primitives import BytesLike


def build_batch(
    payload: BytesLike,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    control: bool = False,
    log_append_time: bool = False,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    **fields: Any,
) -> bytes:
    """Header and records in one piece; other arguments as of `batch_parts`. Only brokers write
    control batches, LogAppendTime and leader epochs; only compaction leaves fewer records than
    offsets."""
    encoded = EncodedBatch(memoryview(payload), max(record_count, 1), base_timestamp, max_timestamp)
    front, records = batch_parts(encoded, **fields)
    header = list(HEADER.unpack(front))
    header[2] = partition_leader_epoch
    header[5] |= CONTROL_FLAG * control | LOG_APPEND_TIME_FLAG * log_append_time
    header[6] = record_count - 1 if last_offset_delta is None else last_offset_delta
    header[12] = record_count
    header[4] = crc32c(records, crc32c(HEADER.pack(*header)[21:]))  # from the attributes on
    return HEADER.pack(*header) + bytes(records)
