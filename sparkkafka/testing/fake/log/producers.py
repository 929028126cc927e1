"""The checks of a batch that a producer sends: it is sound, in sequence, and no duplicate.

The rules are Kafka's, in the order in which a broker applies them: `ProduceRequest
.validateRecords`, `UnifiedLog.analyzeAndValidateRecords`, `LogValidator`, `ProducerAppendInfo`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.constants import NO_TIMESTAMP
from sparkkafka.testing.fake.log.records import (
    CODEC_ZSTD,
    BadBatchError,
    BatchHeader,
    add_to_sequence,
    crc_matches,
    entry_sizes,
    magic_of,
    parse_header,
    payload_of,
    read_records,
    wrap64,
)

# zstd came with KIP-110.
FIRST_PRODUCE_VERSION_WITH_ZSTD = 7
NO_EPOCH = -1


class Refused(Exception):
    """A broker's error for one partition."""

    def __init__(
        self, code: int, message: str, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors


class RememberedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class ProducerStateEntry:
    """A broker's state of one producer id in one partition, with its last five batches."""

    epoch: int = NO_EPOCH
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=5))
    open_since: int | None = None  # first offset of the open transaction

    def check(
        self, header: BatchHeader, lowest_sequence: int | None = None
    ) -> RememberedBatch | None:
        """Return the batch that this one duplicates, or None if it may be appended. Raises Refused.

        A duplicate has the same epoch and sequences as one of the remembered batches; the data is
        not compared. `lowest_sequence` is that of batches whose transaction is not verified yet.
        """
        if header.producer_epoch == self.epoch:
            for known in self.batches:
                if (known.first_sequence, known.last_sequence) == (
                    header.base_sequence,
                    header.last_sequence,
                ):
                    return known
        where = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if header.producer_epoch < self.epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{where}: the epoch is smaller than the last seen one {self.epoch}",
            )
        if lowest_sequence is not None and header.base_sequence > lowest_sequence:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{where}: sequence {header.base_sequence} after {lowest_sequence} was refused",
            )
        if self.epoch == NO_EPOCH:
            return None  # a producer id that is not known may begin with any sequence
        if header.producer_epoch > self.epoch or not self.batches:
            expected = 0
        else:
            expected = add_to_sequence(self.batches[-1].last_sequence, 1)
        if header.base_sequence != expected:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{where}: sequence {header.base_sequence} where {expected} is next",
            )
        if self.open_since is not None and not header.is_transactional:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE, f"{where}: a plain batch in an open transaction"
            )
        return None

    def remember(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that was appended. A new epoch forgets the batches of the old one."""
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches.clear()
        if header.base_sequence >= 0 and not header.is_control:
            self.batches.append(
                RememberedBatch(
                    header.base_sequence, header.last_sequence, base_offset, header.max_timestamp
                )
            )


def check_batch(
    data: bytes | memoryview,
    version: int,
    config: Mapping[str, str],
    *,
    now_ms: int,
    check_records: bool,
) -> tuple[memoryview, BatchHeader]:
    """Return the batch of a partition in a Produce request of this version, and its header. Raises
    Refused if a broker would refuse it.

    `check_records` False skips the check of each record (a few microseconds each).
    """
    batch, header = _single_batch(data)
    if header.codec == CODEC_ZSTD and version < FIRST_PRODUCE_VERSION_WITH_ZSTD:
        raise Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce version {version} is not allowed to use ZStandard",
        )
    if header.base_offset != 0:
        raise Refused(ErrorCode.INVALID_RECORD, f"base offset {header.base_offset} is not 0")
    limit = int(config["max.message.bytes"])
    if len(batch) > limit:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes exceeds max.message.bytes {limit}",
        )
    if not crc_matches(batch, header):
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C does not match")
    _check_header(header)
    if check_records:
        _check_records(batch, header, config, now_ms)
    return batch, header


def transactional_header(data: bytes | memoryview) -> BatchHeader | None:
    """Return the header if this is one v2 batch of a transaction, else None."""
    if len(entry_sizes(data)) != 1 or magic_of(data) != 2:
        return None
    header = parse_header(data)
    return header if header.is_transactional and header.producer_id >= 0 else None


def _single_batch(data: bytes | memoryview) -> tuple[memoryview, BatchHeader]:
    """Return the batch and its header. Raises Refused unless there is exactly one v2 batch, as
    Produce requires since version 3."""
    sizes = entry_sizes(data)
    view = memoryview(data)
    if len(sizes) != 1:
        raise Refused(
            ErrorCode.INVALID_RECORD,
            f"{len(sizes)} whole record batches where a Produce request must have exactly one",
        )
    if magic_of(view) != 2:
        raise Refused(ErrorCode.INVALID_RECORD, f"magic {magic_of(view)} where Produce must have 2")
    batch = view[: sizes[0]]
    return batch, parse_header(batch)


def _check_header(header: BatchHeader) -> None:
    """Raise Refused if fields of the header contradict each other."""
    count = header.record_count
    wrong = None
    if count <= 0:
        wrong = f"a batch of {count} records"
    elif header.last_offset_delta != count - 1:
        wrong = f"last offset delta {header.last_offset_delta} in a batch of {count} records"
    elif header.is_control:
        wrong = "clients are not allowed to write control records"
    elif header.producer_id >= 0 and header.base_sequence < 0:
        wrong = f"sequence {header.base_sequence} with producer id {header.producer_id}"
    if wrong:
        raise Refused(ErrorCode.INVALID_RECORD, wrong)


def _check_records(
    batch: memoryview, header: BatchHeader, config: Mapping[str, str], now_ms: int
) -> None:
    """Raise Refused for records without a key in a compacted topic, and for timestamps that the
    topic does not allow."""
    compacted = "compact" in config["cleanup.policy"]
    before_ms = int(config["message.timestamp.before.max.ms"])
    after_ms = int(config["message.timestamp.after.max.ms"])
    check_time = config["message.timestamp.type"] == "CreateTime"
    keyless: list[tuple[int, str]] = []
    mistimed: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(
            read_records(payload_of(batch, header), header.record_count)
        ):
            if record.offset_delta != index:
                raise Refused(
                    ErrorCode.INVALID_RECORD,
                    f"record {index} has the offset delta {record.offset_delta}",
                )
            if compacted and record.key is None:
                keyless.append((index, "a compacted topic needs a key in each record"))
            timestamp_ms = wrap64(header.base_timestamp + record.timestamp_delta)
            if (
                check_time
                and timestamp_ms != NO_TIMESTAMP
                and not -after_ms <= now_ms - timestamp_ms <= before_ms
            ):
                mistimed.append((index, f"timestamp {timestamp_ms} is out of range"))
    except BadBatchError as error:
        raise Refused(ErrorCode.INVALID_RECORD, str(error)) from error
    if keyless:
        raise Refused(
            ErrorCode.INVALID_RECORD, "one or more records have been rejected", tuple(keyless)
        )
    if mistimed:
        raise Refused(
            ErrorCode.INVALID_TIMESTAMP,
            "one or more records have been rejected due to invalid timestamp",
            tuple(mistimed),
        )


def now_ms() -> int:
    """Return the time in milliseconds, as in timestamps of brokers."""
    return int(time.time() * 1000)
