"""Decodes batches that decompress to many MiB, a few MiB at a time.

`_Payload` holds the bytes that are decompressed and not yet decoded. The complete records in it are
decoded together, like those of small batches (`decode`); the rest is the beginning of the next
record. A record larger than a piece of decompressed bytes is read apart: its key, value and headers
are copied to the memory that the columns then use. So a batch of any size takes the memory of some
pieces and of its largest record.

Empty chunks are yielded between steps, so that the caller can check deadlines.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator

import numpy as np
import pyarrow as pa

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError
from sparkkafka.protocol.columns import record_starts
from sparkkafka.protocol.columns.columns import (
    HEADERS,
    HEADERS_TYPE,
    KEY,
    MAX_HEADERS,
    TIMESTAMP,
    VALUE,
    DamageError,
    DecodedRecords,
    LargeFields,
    Selection,
    copy_headers,
    follow_headers,
    headers_cost_bytes,
    make_header_lists,
    no_records,
)
from sparkkafka.protocol.columns.damage import MIN_HEADER_BYTES, ReadProgress, check_batch
from sparkkafka.protocol.columns.record_starts import RecordBounds
from sparkkafka.protocol.records.batches import RecordBatch
from sparkkafka.protocol.records.compression import PIECE_BYTES
from sparkkafka.protocol.wire import varints
from sparkkafka.protocol.wire.primitives import BytesLike

DecodePart = Callable[
    [memoryview, RecordBounds, ReadProgress], Generator[DecodedRecords, None, int]
]
"""Decodes complete records, which follow `ReadProgress` and lie at `RecordBounds` in the bytes.
Yields their columns and returns the last one's offset delta."""


def decode(
    batch: RecordBatch,
    pieces: Iterator[BytesLike],
    selection: Selection,
    max_payload_bytes: int,
    decode_part: DecodePart,
) -> Iterator[DecodedRecords]:
    """Decode one batch whose uncompressed bytes come in `pieces`, a few MiB at a time. Yields the
    selected columns in chunks; some are empty, so that the caller can check deadlines.

    Raises BatchTooLargeError for a batch or record beyond `max_payload_bytes`, CorruptRecordError
    for damage. `decode_part` decodes the complete records in the bytes so far."""
    empty_chunk = no_records(selection.columns)
    payload = _Payload(pieces)
    progress = ReadProgress()
    while True:
        yield empty_chunk
        # Decode the complete records that are here.
        data = np.frombuffer(payload.data, np.uint8)
        remaining = batch.record_count - progress.records
        bounds = record_starts.find_complete(data, remaining)
        count = len(bounds.starts)
        if count:
            stop = int(bounds.ends[-1])
            last_delta = yield from decode_part(payload.data[:stop], bounds, progress)
            progress = ReadProgress(
                progress.records + count, progress.payload_bytes + stop, last_delta
            )
            payload.drop(stop)
            remaining -= count
        if remaining:
            # Then read more bytes for the next record, or read it apart if it is large.
            size = _record_size(payload.data)
            if size is not None and size > max(PIECE_BYTES, len(payload.data)):
                record = _LargeRecord(batch, payload, progress, selection, max_payload_bytes)
                yield from record.decode()
                progress = record.next_progress
                continue
            if (size is None or size > len(payload.data)) and payload.grow():
                continue
        elif not len(payload.data):
            if payload.grow():  # no bytes may follow the last record: the next round checks that
                continue
            return
        # The next record is damaged or cut, or bytes follow the last record.
        check_batch(batch, bytes(payload.data), progress)
        raise CorruptRecordError("damaged records", offset=batch.base_offset)


def _record_size(data: memoryview) -> int | None:
    """Return the bytes of the record that `data` begins with, length prefix included; None without
    a valid prefix. The record may be longer than `data`."""
    try:
        length, at = varints.read_zigzag(data, 0, len(data), varints.VARINT_BITS)
    except (IndexError, varints.BadVarintError):
        return None
    return at + length if length >= 0 else None


class _Payload:
    """The uncompressed bytes of a batch that are not decoded yet, and the pieces that follow."""

    def __init__(self, pieces: Iterator[BytesLike]) -> None:
        self._pieces = pieces
        self.data = memoryview(b"")

    def grow(self) -> bool:
        """Append one more piece, perhaps an empty one; return False if there is none."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        more = memoryview(piece).cast("B")
        if len(more):
            self.data = memoryview(b"".join((self.data, more))) if len(self.data) else more
        return True

    def drop(self, size: int) -> None:
        """Drop the first `size` bytes, which have been read."""
        self.data = self.data[size:]

    def read_varint(self, bits: int = varints.VARINT_BITS) -> tuple[int, int]:
        """Read and drop a zigzag varint. Return (value, size in bytes). Raises IndexError for a
        varint that is cut off, BadVarintError."""
        value, size = varints.read_zigzag(self.data, 0, len(self.data), bits)
        self.drop(size)
        return value, size


class _LargeRecord:
    """The record at the beginning of the payload, which does not hold all of it yet.

    The generators below read its fields one by one from the payload. They yield an empty chunk
    whenever more bytes must be decompressed. `next_progress` is the progress after the record.
    """

    def __init__(
        self,
        batch: RecordBatch,
        payload: _Payload,
        progress: ReadProgress,
        selection: Selection,
        max_payload_bytes: int,
    ) -> None:
        self._batch = batch
        self._payload = payload
        self._progress = progress
        self._selection = selection
        self._max_bytes = max_payload_bytes
        self._empty_chunk = no_records(selection.columns)
        self._remaining = 0  # bytes of the record that are not read yet
        self.next_progress = progress

    def decode(self) -> Iterator[DecodedRecords]:
        """Yield an empty chunk for each piece that is decompressed, then the record if it is
        selected. Raises CorruptRecordError."""
        try:
            yield from self._decode()
        except (DamageError, varints.BadVarintError):
            raise self._damaged("its fields do not fit into it") from None

    def _decode(self) -> Iterator[DecodedRecords]:
        """Yield what `decode` yields. Raises CorruptRecordError, and DamageError or BadVarintError,
        which `decode` turns into a CorruptRecordError."""
        batch, progress = self._batch, self._progress
        start_offset, end_offset, columns, times_ms = self._selection
        length, prefix_bytes = self._payload.read_varint()
        if progress.payload_bytes + prefix_bytes + length > self._max_bytes:
            raise self._too_large(f"it has {length} bytes")
        self._remaining = length
        yield from self._read_bytes(1, keep=False)  # attributes, which Kafka does not use
        timestamp_delta = yield from self._read_varint(varints.VARLONG_BITS)
        delta = yield from self._read_varint()
        if not progress.last_delta < delta <= batch.last_offset_delta:
            raise self._damaged(
                f"its offset delta is {delta}, behind {progress.last_delta}, in a batch that ends "
                f"with {batch.last_offset_delta}"
            )
        offset = batch.base_offset + delta
        time_ms = batch.max_timestamp
        if not batch.is_log_append_time:
            time_ms = _wrap_int64(batch.base_timestamp + timestamp_delta)
        keep = start_offset <= offset < end_offset
        if times_ms is not None:
            keep = keep and times_ms[0] <= time_ms <= times_ms[1]
        fields: list[bytes | None] = []
        for name in (KEY, VALUE):
            size = yield from self._read_varint()
            if size < -1:
                raise DamageError
            fields.append(
                None
                if size < 0
                else bytes((yield from self._read_bytes(size, keep=keep and name in columns)))
            )
        count = yield from self._read_varint()
        if count < 0 or count * MIN_HEADER_BYTES > self._remaining:
            raise DamageError
        headers = pa.nulls(1, HEADERS_TYPE)
        selects_headers = keep and HEADERS in columns
        if count:
            headers_bytes = self._remaining
            if (
                selects_headers
                and headers_cost_bytes(count, headers_bytes)
                + sum(len(field or b"") for field in fields)
                > self._max_bytes
            ):
                fields.clear()  # the error's traceback would keep them in memory
                raise self._too_large(f"it has {count} headers in {headers_bytes} bytes")
            raw = yield from self._read_bytes(headers_bytes, keep=selects_headers)
            if selects_headers:
                headers = yield from self._decode_headers(raw, count)
        if self._remaining:
            raise DamageError
        self.next_progress = ReadProgress(
            progress.records + 1, progress.payload_bytes + prefix_bytes + length, delta
        )
        if not keep:
            return
        key, value = fields
        yield DecodedRecords(
            np.array([offset], np.int64),
            np.array([time_ms], np.int64) if TIMESTAMP in columns else None,
            np.array([batch.timestamp_type], np.int32),
            _single_value(key) if KEY in columns else None,
            _single_value(value) if VALUE in columns else None,
            headers if HEADERS in columns else None,
            LargeFields(key, value),
        )

    def _decode_headers(
        self, raw: BytesLike, count: int
    ) -> Generator[DecodedRecords, None, pa.Array]:
        """Make the HEADERS_TYPE array of one row with the `count` headers that `raw` has."""
        data, buffer, at = np.frombuffer(raw, np.uint8), pa.py_buffer(raw), 0
        parts = []
        for done in range(0, count, MAX_HEADERS):
            positions, at = follow_headers(data, at, len(data), min(MAX_HEADERS, count - done))
            parts.append(copy_headers(buffer, positions))
            yield self._empty_chunk  # so that the caller can check its deadline
        if at != len(data):
            raise DamageError
        keys, values = (pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True))
        return make_header_lists(np.array([count]), keys, values)

    def _read_varint(self, bits: int = varints.VARINT_BITS) -> Generator[DecodedRecords, None, int]:
        """Read and drop the next field, a zigzag varint. Raises DamageError if it leaves the
        record, BadVarintError."""
        while True:
            try:
                value, size = self._payload.read_varint(bits)
                break
            except IndexError:
                yield self._empty_chunk  # so that the caller can check its deadline
                if not self._payload.grow():
                    raise DamageError from None
        self._remaining -= size
        if self._remaining < 0:
            raise DamageError
        return value

    def _read_bytes(self, size: int, *, keep: bool) -> Generator[DecodedRecords, None, BytesLike]:
        """Copy the next bytes of the record if `keep`; otherwise skip them and return b""."""
        self._remaining -= size
        if self._remaining < 0:
            raise DamageError
        # It grows only with the bytes that arrive, and gives its memory away without a copy.
        out = io.BytesIO()
        while size:
            if not len(self._payload.data):
                yield self._empty_chunk  # so that the caller can check its deadline
                if not self._payload.grow():
                    raise self._damaged(f"it ends {size + self._remaining} bytes too early")
            part = self._payload.data[:size]
            if keep:
                out.write(part)
            size -= len(part)
            self._payload.drop(len(part))
        return out.getvalue()

    def _damaged(self, reason: str) -> CorruptRecordError:
        """Return the error for a record that is damaged; `reason` says how."""
        return self._error(CorruptRecordError, f"is damaged: {reason}")

    def _too_large(self, reason: str) -> CorruptRecordError:
        """Return the error for a record that would take too much memory; `reason` says how much."""
        return self._error(
            BatchTooLargeError, f"is too large: {reason}, {self._max_bytes} bytes are allowed"
        )

    def _error(self, error_type: type[CorruptRecordError], message: str) -> CorruptRecordError:
        """Return an error of this type about the record: `message` follows the record's number."""
        progress, batch = self._progress, self._batch
        return error_type(
            f"record {progress.records + 1} of {batch.record_count} of a batch {message}",
            position=progress.payload_bytes,
            # The offset after the last good record: the record's own may be unreadable.
            offset=batch.base_offset + progress.last_delta + 1,
        )


def _wrap_int64(value: int) -> int:
    """Wrap around 64 bits, as Java's sums do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _single_value(value: bytes | None) -> pa.Array:
    """Make a column of one row that shares the memory of `value`."""
    if value is None:
        return pa.nulls(1, pa.binary())
    ends = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(value)])
