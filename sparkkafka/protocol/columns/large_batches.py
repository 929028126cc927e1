"""Batches that unpack to many MiB -> Arrow columns, a few MiB at a time.

A window holds the part of the records that is unpacked and not yet decoded. Whole records in it
are decoded together, like those of small batches (`decode`); the rest is the beginning of the next
record. A record larger than a piece bypasses the window: its key, value and headers are assembled
in the memory that the columns then use. So a batch of any size takes the memory of some pieces and
of its largest record.

Empty chunks come between steps, so that the caller can check deadlines.
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
    follow_headers,
    header_fields,
    header_lists,
    headers_cost_bytes,
    no_records,
)
from sparkkafka.protocol.columns.damage import MIN_HEADER_BYTES, Before, check_batch
from sparkkafka.protocol.columns.record_starts import Layout
from sparkkafka.protocol.records.batches import RecordBatch
from sparkkafka.protocol.records.codecs import BytesLike
from sparkkafka.protocol.records.compression import PIECE_BYTES
from sparkkafka.protocol.wire.varints import (
    VARINT_BITS,
    VARLONG_BITS,
    BadVarintError,
    read_zigzag,
)

_WRAP = 1 << 64

_Pauses = Generator[DecodedRecords, None, BytesLike]
DecodePart = Callable[[memoryview, Layout, Before], Generator[DecodedRecords, None, int]]
"""Decodes whole records, which stand behind those before; returns the last one's offset delta."""


def decode(
    batch: RecordBatch,
    pieces: Iterator[BytesLike],
    wanted: Selection,
    max_payload_bytes: int,
    decode_part: DecodePart,
) -> Iterator[DecodedRecords]:
    """The records of one batch, whose uncompressed bytes come in `pieces`. Arguments and errors as
    of `decode_chunks`; some chunks are empty."""
    pause = no_records(wanted.columns)
    window = _Window(pieces)
    before = Before()
    while True:
        yield pause
        data = np.frombuffer(window.data, np.uint8)
        left = batch.record_count - before.records
        layout = record_starts.find_whole(data, left)
        count = len(layout.starts)
        if count:
            stop = int(layout.ends[-1])
            last_delta = yield from decode_part(window.data[:stop], layout, before)
            before = Before(before.records + count, before.payload_bytes + stop, last_delta)
            window.drop(stop)
            left -= count
        if left:
            size = _record_size(window.data)
            if size is not None and size > max(PIECE_BYTES, len(window.data)):
                record = _LargeRecord(batch, window, before, wanted, max_payload_bytes)
                yield from record.decode()
                before = record.after
                continue
            if (size is None or size > len(window.data)) and window.grow():
                continue
        elif not len(window.data):
            if window.grow():
                continue
            return
        # The next record is damaged or cut, or bytes follow the last.
        check_batch(batch, bytes(window.data), before)
        raise CorruptRecordError("damaged records", offset=batch.base_offset)


def _record_size(data: memoryview) -> int | None:
    """Bytes of the record that begins there, with its length; None if that is cut, or no length."""
    try:
        length, at = read_zigzag(data, 0, len(data), VARINT_BITS)
    except (IndexError, BadVarintError):
        return None
    return at + length if length >= 0 else None


class _Window:
    """The uncompressed bytes so far, and the pieces that follow."""

    def __init__(self, pieces: Iterator[BytesLike]) -> None:
        self._pieces = pieces
        self.data = memoryview(b"")

    def grow(self) -> bool:
        """One more piece, perhaps an empty one; False if there is none."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        more = memoryview(piece).cast("B")
        if len(more):
            self.data = memoryview(b"".join((self.data, more))) if len(self.data) else more
        return True

    def drop(self, size: int) -> None:
        """Drop the first bytes."""
        self.data = self.data[size:]

    def number(self, bits: int = VARINT_BITS) -> tuple[int, int]:
        """A varint, and its size. Raises IndexError if it is cut, BadVarintError."""
        value, size = read_zigzag(self.data, 0, len(self.data), bits)
        self.drop(size)
        return value, size


class _LargeRecord:
    """The record at the front of a window, which does not hold it whole."""

    def __init__(
        self,
        batch: RecordBatch,
        window: _Window,
        before: Before,
        wanted: Selection,
        max_payload_bytes: int,
    ) -> None:
        self._batch = batch
        self._window = window
        self._before = before
        self._wanted = wanted
        self._max_bytes = max_payload_bytes
        self._pause = no_records(wanted.columns)
        self._left = 0
        self.after = before

    def decode(self) -> Iterator[DecodedRecords]:
        """Empty chunks, then the record if it is wanted. Raises CorruptRecordError."""
        try:
            yield from self._decode()
        except (DamageError, BadVarintError):
            raise self._damaged("its fields do not fit into it") from None

    def _decode(self) -> Iterator[DecodedRecords]:
        batch, before = self._batch, self._before
        start_offset, end_offset, columns, times_ms = self._wanted
        length, prefix_bytes = self._window.number()
        if before.payload_bytes + prefix_bytes + length > self._max_bytes:
            raise self._too_large(f"it has {length} bytes")
        self._left = length
        yield from self._copy(1, keep=False)  # attributes, which Kafka does not use
        timestamp_delta = yield from self._number(VARLONG_BITS)
        delta = yield from self._number()
        if not before.last_delta < delta <= batch.last_offset_delta:
            raise self._damaged(
                f"its offset delta is {delta}, behind {before.last_delta}, in a batch that ends "
                f"with {batch.last_offset_delta}"
            )
        offset = batch.base_offset + delta
        time_ms = batch.max_timestamp
        if not batch.is_log_append_time:
            time_ms = _wrapped(batch.base_timestamp + timestamp_delta)
        keep = start_offset <= offset < end_offset
        if times_ms is not None:
            keep = keep and times_ms[0] <= time_ms <= times_ms[1]
        fields: list[bytes | None] = []
        for name in (KEY, VALUE):
            size = yield from self._number()
            if size < -1:
                raise DamageError
            fields.append(
                None
                if size < 0
                else bytes((yield from self._copy(size, keep=keep and name in columns)))
            )
        count = yield from self._number()
        if count < 0 or count * MIN_HEADER_BYTES > self._left:
            raise DamageError
        headers = pa.nulls(1, HEADERS_TYPE)
        wants_headers = keep and HEADERS in columns
        if count:
            headers_bytes = self._left
            if (
                wants_headers
                and headers_cost_bytes(count, headers_bytes) + sum(len(n or b"") for n in fields)
                > self._max_bytes
            ):
                fields.clear()  # the error holds this frame
                raise self._too_large(f"it has {count} headers in {headers_bytes} bytes")
            raw = yield from self._copy(headers_bytes, keep=wants_headers)
            if wants_headers:
                headers = yield from self._headers(raw, count)
        if self._left:
            raise DamageError
        self.after = Before(before.records + 1, before.payload_bytes + prefix_bytes + length, delta)
        if not keep:
            return
        key, value = fields
        yield DecodedRecords(
            np.array([offset], np.int64),
            np.array([time_ms], np.int64) if TIMESTAMP in columns else None,
            np.array([batch.timestamp_type], np.int32),
            _one_value(key) if KEY in columns else None,
            _one_value(value) if VALUE in columns else None,
            headers if HEADERS in columns else None,
            LargeFields(key, value),
        )

    def _headers(self, raw: BytesLike, count: int) -> Generator[DecodedRecords, None, pa.Array]:
        """HEADERS_TYPE, of one row."""
        data, buffer, at = np.frombuffer(raw, np.uint8), pa.py_buffer(raw), 0
        parts = []
        for done in range(0, count, MAX_HEADERS):
            places, at = follow_headers(data, at, len(data), min(MAX_HEADERS, count - done))
            parts.append(header_fields(buffer, places))
            yield self._pause
        if at != len(data):
            raise DamageError
        names, contents = (pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True))
        return header_lists(np.array([count]), names, contents)

    def _number(self, bits: int = VARINT_BITS) -> Generator[DecodedRecords, None, int]:
        while True:
            try:
                value, size = self._window.number(bits)
                break
            except IndexError:
                yield self._pause
                if not self._window.grow():
                    raise DamageError from None
        self._left -= size
        if self._left < 0:
            raise DamageError
        return value

    def _copy(self, size: int, *, keep: bool) -> _Pauses:
        """A copy of the next bytes of the record; empty unless `keep`."""
        self._left -= size
        if self._left < 0:
            raise DamageError
        # Grows only with what arrives, and gives its memory away without a copy.
        out = io.BytesIO()
        while size:
            if not len(self._window.data):
                yield self._pause
                if not self._window.grow():
                    raise self._damaged(f"it ends {size + self._left} bytes too early")
            part = self._window.data[:size]
            if keep:
                out.write(part)
            size -= len(part)
            self._window.drop(len(part))
        return out.getvalue()

    def _damaged(self, reason: str) -> CorruptRecordError:
        return self._error(CorruptRecordError, f"is damaged: {reason}")

    def _too_large(self, reason: str) -> CorruptRecordError:
        return self._error(
            BatchTooLargeError, f"is too large: {reason}, {self._max_bytes} bytes are allowed"
        )

    def _error(self, kind: type[CorruptRecordError], words: str) -> CorruptRecordError:
        before, batch = self._before, self._batch
        return kind(
            f"record {before.records + 1} of {batch.record_count} of a batch {words}",
            before.payload_bytes,
            offset=batch.base_offset + before.last_delta + 1,
        )


def _wrapped(value: int) -> int:
    """As Java adds 64-bit numbers."""
    return (value + _WRAP // 2) % _WRAP - _WRAP // 2


def _one_value(value: bytes | None) -> pa.Array:
    """A column of one row, which has the memory of `value`."""
    if value is None:
        return pa.nulls(1, pa.binary())
    ends = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(value)])
