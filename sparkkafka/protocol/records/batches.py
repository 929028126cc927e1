"""Record batches of format 2: split, checked and built. The records stay bytes here.

    offset
    0    i64  baseOffset
    8    i32  batchLength: the bytes after this field, at least 49
    12   i32  partitionLeaderEpoch
    16   i8   magic = 2
    17   u32  crc: CRC-32C (Castagnoli) of everything from attributes to the end
    21   i16  attributes: bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control,
              6 baseTimestamp is a delete horizon
    23   i32  lastOffsetDelta
    27   i64  baseTimestamp, ms
    35   i64  maxTimestamp, ms
    43   i64  producerId
    51   i16  producerEpoch
    53   i32  baseSequence
    57   i32  recordCount
    61        records; if a codec is set, all of them compressed as one blob

Not covered by the CRC: baseOffset, batchLength, partitionLeaderEpoch, magic. The broker writes
them after the producer has made the checksum. Source: `DefaultRecordBatch.java`, and
`CompletedFetch.java` for what a consumer may see.

A control batch ends a transaction; `AbortedTransactions` decides which batches a consumer with
read_committed may see.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any, NamedTuple

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError, DecodeError, EncodeError
from sparkkafka.protocol import constants
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD
from sparkkafka.protocol.records import compression
from sparkkafka.protocol.records.compression import Codec
from sparkkafka.protocol.records.legacy import (
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
    convert_message_set,
    entry_size,
)
from sparkkafka.protocol.wire.primitives import BytesLike, Reader


def _import_crc32c() -> Any:
    """Return the function of the package crc32c.

    The package imports argparse for a command of its own, and importlib.metadata for its version: a
    tenth of the time until a new process has its first record. Its extension needs neither.
    """
    package = PathFinder.find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    spec = None if folders is None else PathFinder.find_spec("crc32c._crc32c", folders)
    if spec is None or spec.loader is None:  # another version of the package
        from crc32c import crc32c

        return crc32c
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension.crc32c


crc32c = _import_crc32c()

# The header in two parts: the fields up to the CRC, and those that the CRC covers.
_FRONT = struct.Struct(">qiibI")
_CHECKED_HEADER = struct.Struct(">hiqqqhii")
HEADER = struct.Struct(_FRONT.format + _CHECKED_HEADER.format.removeprefix(">"))

_CRC_START = 21

TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20


# TimestampType.java; the ids are what Spark's timestampType column shows.
NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1

# Length, attributes, two deltas, two sizes, header count: one byte each at least.
MIN_RECORD_BYTES = 7
# Default limit of a compressed batch's unpacked bytes, and of the old-format messages of one
# response together: the size of a whole response (`Framing`'s default).
DEFAULT_MAX_PAYLOAD_BYTES = 256 << 20


class RecordBatch(NamedTuple):
    """A batch as received. Messages of magic 0 and 1 are converted to one; see `magic`."""

    base_offset: int
    magic: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """Milliseconds. Timestamp deltas count from here, also when it is a delete horizon."""
    max_timestamp: int
    """Milliseconds; with LogAppendTime the timestamp of every record."""
    record_count: int
    """0 in a batch that compaction has emptied and keeps for its producer's state."""
    data: memoryview
    """The records, compressed by `codec`: a view of the response's bytes."""
    size_bytes: int
    """Bytes on the wire, header included."""
    producer_id: int = constants.NO_PRODUCER_ID
    producer_epoch: int = constants.NO_PRODUCER_EPOCH
    base_sequence: int = constants.NO_SEQUENCE
    partition_leader_epoch: int = constants.NO_LEADER_EPOCH

    @property
    def codec(self) -> Codec:
        """The codec of `data`. Raises CorruptRecordError for an id that no codec has."""
        codec_id = self.attributes & constants.CODEC_MASK
        if codec_id > Codec.ZSTD:
            raise CorruptRecordError(
                f"compression codec {codec_id} is not known", 0, offset=self.base_offset
            )
        return Codec(codec_id)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the timestamps are those at which the broker appended the batch
        (LogAppendTime)."""
        return bool(self.attributes & constants.LOG_APPEND_TIME_FLAG)

    @property
    def timestamp_type(self) -> int:
        """NO_TIMESTAMP_TYPE (magic 0), CREATE_TIME or LOG_APPEND_TIME."""
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME if self.attributes & constants.LOG_APPEND_TIME_FLAG else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch has a control record, which commits or aborts a transaction."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def last_offset(self) -> int:
        """The last offset when it was written; compaction may have removed its record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset to fetch next.

        KAFKA-5443: not "last record + 1". If the last records are compacted away, that offset
        lies in this batch, and the broker would send the same batch for ever.
        """
        return self.base_offset + self.last_offset_delta + 1

    def payload_pieces(self, max_bytes: int) -> Iterator[BytesLike]:
        """Yield the uncompressed records, at most `max_bytes`, a few MiB at a time.

        Raises BatchTooLargeError beyond that, and CorruptRecordError for damage, perhaps after
        some pieces; positions count from the start of `data`.
        """
        if not self.record_count and not len(self.data):
            return
        try:
            yield from compression.decompressed_pieces(self.codec, self.data, max_bytes)
        except compression.OutputTooLargeError as error:
            raise at_offset(BatchTooLargeError, error, self.base_offset) from error
        except CorruptRecordError:
            raise
        except DecodeError as error:
            raise at_offset(CorruptRecordError, error, self.base_offset) from error

    def payload(self, max_bytes: int) -> BytesLike:
        """Return the uncompressed records, as `payload_pieces` does, in one piece.

        The record count is checked against the bytes, so memory may be allocated for it.
        """
        pieces = list(self.payload_pieces(max_bytes))
        out = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.record_count * MIN_RECORD_BYTES > len(out):
            raise CorruptRecordError(
                f"{self.record_count} records cannot lie in {len(out)} bytes",
                0,
                offset=self.base_offset,
            )
        return out


class EncodedBatch(NamedTuple):
    """The uncompressed records of one batch to write, and the fields of its header. Timestamps are
    in milliseconds."""

    payload: bytes | memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int


def split_batches(
    data: BytesLike,
    *,
    check_crcs: bool = True,
    end_offset: int | None = None,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
) -> list[RecordBatch]:
    """Split a fetch response's records into its complete batches, in order, without copying
    records.

    A broker cuts its response at any byte, so an incomplete last batch is left out; if none is
    complete the list is empty, and `first_batch_size` returns the size of the first. The first
    batch may start before the fetch offset. With `end_offset` (exclusive) the batches after the one
    that reaches it are left out, unchecked: damage there does not concern this reader.

    Messages of magic 0 and 1 are converted, possibly several to a batch or several batches to a
    compressed message; these may decompress to `max_payload_bytes` (see legacy.py; format 2 is not
    decompressed here). `check_crcs` is Java's check.crcs.

    Raises CorruptRecordError, with the position in `data` and the offset, for impossible headers,
    wrong CRCs, and offsets that do not ascend from batch to batch.
    """
    # Positions below need plain unsigned bytes; arrow buffers, for one, export signed ones.
    view = memoryview(data)
    if view.format != "B":
        view = view.cast("B")
    size = len(view)
    batches: list[RecordBatch] = []
    position = next_offset = 0
    budget_bytes = max_payload_bytes
    # RecordBatch(...) without its __new__ in Python: small batches come by the thousand.
    new_tuple = tuple.__new__
    while end_offset is None or next_offset < end_offset or not batches:
        # No whole header of format 2: messages of an older format, or the end of the data, where an
        # entry is cut off.
        if size - position < RECORD_BATCH_OVERHEAD or view[position + MAGIC_POSITION] != MAGIC_V2:
            if entry_size(view, position) is None or view[position + MAGIC_POSITION] == MAGIC_V2:
                break
            converted = convert_message_set(
                view,
                position,
                check_crcs=check_crcs,
                max_payload_bytes=max_payload_bytes,
                budget_bytes=budget_bytes,
                end_offset=end_offset,
            )
            for batch in itertools.starmap(RecordBatch, converted.batches):
                if batch.base_offset < next_offset:
                    raise CorruptRecordError(
                        f"message of offset {batch.base_offset}, after offset {next_offset - 1}",
                        position,
                        offset=batch.base_offset,
                    )
                next_offset = batch.next_offset
                batches.append(batch)
            position, budget_bytes = converted.position, converted.budget_bytes
            if converted.stopped:
                break
            continue
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = HEADER.unpack_from(view, position)
        if length < MIN_BATCH_LENGTH:
            raise CorruptRecordError(
                f"batch length {length}",
                position + 8,  # of the field batchLength
                offset=base_offset,
            )
        end = position + LOG_OVERHEAD_BYTES + length
        if end > size:
            break
        if check_crcs:
            actual = crc32c(view[position + _CRC_START : end])
            if actual != crc:
                hint = (
                    ". Brokers that send no CRC (0), as those of YDB, need check.crcs=false (in "
                    "Spark kafka.check.crcs=false)"
                )
                raise CorruptRecordError(
                    f"CRC-32C of the batch is {actual:#010x}, its header says {crc:#010x}"
                    + ("" if crc else hint),
                    position + 17,  # of the field crc
                    offset=base_offset,
                )
        if (
            not 0 <= last_offset_delta < constants.MAX_INT64 - base_offset
            or base_offset < next_offset
        ):
            # The CRC does not cover the offset, so this is its only check. A batch that ended
            # before it began would send the reader in circles.
            raise CorruptRecordError(
                f"batch of offset {base_offset} + {last_offset_delta}, after offset "
                f"{next_offset - 1}",
                position,
                offset=base_offset,
            )
        next_offset = base_offset + last_offset_delta + 1
        start = position + RECORD_BATCH_OVERHEAD
        if record_count < 0 or (record_count == 0) != (start == end):
            # Compaction may take all records of a batch, and then nothing follows the header.
            raise CorruptRecordError(
                f"{record_count} records in {end - start} bytes",
                position + 57,  # of the field recordCount
                offset=base_offset,
            )
        fields = (
            base_offset,
            magic,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            record_count,
            view[start:end],
            end - position,
            producer_id,
            producer_epoch,
            base_sequence,
            leader_epoch,
        )
        batches.append(new_tuple(RecordBatch, fields))
        position = end
    return batches


def first_batch_size(data: BytesLike) -> int | None:
    """Return the size that the header of the first batch claims; None if the header is cut off.

    For responses without a complete batch. Raises CorruptRecordError as `split_batches` does.
    """
    view = memoryview(data).cast("B")
    if len(view) < LOG_OVERHEAD_BYTES:
        return None
    entry_size(view, 0)  # raises for an impossible header
    return LOG_OVERHEAD_BYTES + int.from_bytes(view[8:12], "big", signed=True)  # batchLength


def at_offset(
    error_type: type[CorruptRecordError], error: DecodeError, offset: int
) -> CorruptRecordError:
    """Make an error of type `error_type` out of `error`, with the batch's offset; `position` still
    counts in the batch's data."""
    message = str(error).removesuffix(f" (at byte {error.position})")
    return error_type(message, error.position, offset=offset)


def batch_parts(
    batch: EncodedBatch,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = constants.NO_PRODUCER_ID,
    producer_epoch: int = constants.NO_PRODUCER_EPOCH,
    base_sequence: int = constants.NO_SEQUENCE,
    transactional: bool = False,
    base_offset: int = 0,
) -> tuple[bytes, BytesLike]:
    """Build a producer's batch: (its header, the records to send, which are the payload itself, not
    copied, or what compression made of it). Neither is changed afterwards.

    The offset deltas of the records are 0 to `record_count - 1`. If compression does not make the
    payload smaller, it is sent uncompressed, as in librdkafka: so no batch is larger than its
    payload and 61 bytes, and size limits can be kept before compression.

    Raises EncodeError for values that the header cannot hold.
    """
    payload: BytesLike
    payload, record_count, base_timestamp, max_timestamp = batch
    if codec is not Codec.NONE:
        packed = compression.compress(codec, payload, level)
        if len(packed) < len(payload):
            payload = packed
        else:
            codec = Codec.NONE
    if record_count < 1:
        raise EncodeError(f"batch of {record_count} records")
    try:
        checked = _CHECKED_HEADER.pack(
            codec | (TRANSACTIONAL_FLAG if transactional else 0),
            record_count - 1,  # lastOffsetDelta
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        # The CRC runs over header and payload where they lie.
        front = _FRONT.pack(
            base_offset,
            MIN_BATCH_LENGTH + len(payload),
            constants.NO_LEADER_EPOCH,
            MAGIC_V2,
            crc32c(payload, crc32c(checked)),
        )
    except struct.error as error:
        raise EncodeError(f"a batch header field is out of range: {error}") from error
    return front + checked, payload


# --- control batches ------------------------------------------------------------------------------

# ControlRecordType.java. Other types (KRaft's) exist and mean nothing to a consumer.
ABORT_MARKER = 0
COMMIT_MARKER = 1
NO_CONTROL_TYPE = -1

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_MAX_CONTROL_PAYLOAD_BYTES = 1 << 20


class AbortedTransactions:
    """Decides which batches of one fetch response a consumer may see (`CompletedFetch.java`).

    `aborted` is the response's list of (producer id, first offset), in any order, with entries of
    transactions that began before the fetch offset; None or empty for read_uncommitted. One
    object serves one response: each response has its own list.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]] | None) -> None:
        # Aborted transactions that begin after the batches so far. Redpanda does not sort the list.
        self._pending = [(first_offset, producer_id) for producer_id, first_offset in aborted or ()]
        heapq.heapify(self._pending)
        self._aborting: set[int] = set()
        """Producer ids whose aborted transaction has begun and has not ended."""

    def visible_batches(self, batches: Iterable[RecordBatch]) -> list[RecordBatch]:
        """Return those of `batches`, which are in offset order, that are `visible`."""
        if self._pending or self._aborting:
            return [batch for batch in batches if self.visible(batch)]
        # A shortcut, since small batches come by the thousand: without aborted transactions only
        # control batches are left out.
        return [batch for batch in batches if not batch.attributes & CONTROL_FLAG]

    def visible(self, batch: RecordBatch) -> bool:
        """Return whether a consumer may see the records. Call this for each batch, in offset order.

        It may never see control batches. Raises CorruptRecordError for an unreadable marker that
        could end an aborted transaction.
        """
        # A producer's aborted transaction starts at or before this batch, its ABORT marker ends it,
        # and its next transaction may be a committed one. So the transactions that start up to
        # this batch's last offset are added before the batch is checked for being a marker.
        # (`_pending` has the first offset and the producer id of each.)
        while self._pending and self._pending[0][0] <= batch.last_offset:
            self._aborting.add(heapq.heappop(self._pending)[1])
        if batch.is_control:
            if batch.producer_id in self._aborting and control_type(batch) == ABORT_MARKER:
                self._aborting.discard(batch.producer_id)
            return False
        # A producer may also write outside of transactions; only transactional batches abort.
        return not (batch.is_transactional and batch.producer_id in self._aborting)


def control_type(batch: RecordBatch) -> int:
    """Return the type of a control batch's first record: ABORT_MARKER, COMMIT_MARKER, or another
    number.

    NO_CONTROL_TYPE if compaction has removed the record. Raises CorruptRecordError if there is a
    record without a readable key (`ControlRecordType.java`: i16 version, i16 type).
    """
    if not batch.record_count:
        return NO_CONTROL_TYPE
    try:
        reader = Reader(batch.payload(_MAX_CONTROL_PAYLOAD_BYTES))
    except BatchTooLargeError as error:  # no setting allows more, and no broker writes so much
        raise CorruptRecordError(
            f"control batch of more than {_MAX_CONTROL_PAYLOAD_BYTES} bytes",
            error.position,
            offset=batch.base_offset,
        ) from error
    try:
        reader.varint()  # length
        reader.int8()  # attributes
        reader.varlong()  # timestamp delta
        reader.varint()  # offset delta
        key = reader.span(reader.varint())
        if len(key) < _CONTROL_KEY.size:
            raise DecodeError(f"control record with a key of {len(key)} bytes", reader.pos)
        version, marker_type = _CONTROL_KEY.unpack_from(key)
        if version < 0:
            raise DecodeError(f"control record of version {version}", reader.pos)
    except CorruptRecordError:
        raise
    except DecodeError as error:
        raise at_offset(CorruptRecordError, error, batch.base_offset) from error
    return int(marker_type)
