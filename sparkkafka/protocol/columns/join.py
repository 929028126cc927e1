"""Joins keys, values and the varints before them to records: fast, for records of usual shape.

The varints of a record (its length, timestamp and offset delta, length of the key) nearly always
fit twelve bytes. Then shifts put those of all rows together as two words of 64 bits a row, in the
form of Arrow's binary views: 4 bytes of length, 12 of content. Longer keys and values are
references in the same table of views. One cast from views to plain binary makes the only copy.

Other records (with headers, or longer varints) are encoded by `encode`; tests compare both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.columns.byte_columns import MAX_INLINE, VIEW_BYTES, WordColumn
from sparkkafka.protocol.records.arrow import BATCH_POOL
from sparkkafka.protocol.records.varint_columns import Ints, encode_words, zigzag
from sparkkafka.protocol.wire.varints import varint_size, zigzag_bytes

_MAX_NUMBER_BYTES = 3  # enough for a body, key or value of less than 1 MiB


class Blobs(NamedTuple):
    """A column of keys or values."""

    array: pa.Array
    """Of Arrow's binary type."""
    starts: Ints
    """Where each row's bytes begin in the array's data."""
    lengths: Ints
    """-1 for null."""
    min_length: int
    max_length: int
    """The least and the greatest of `lengths`, or of the larger column that they are a part of."""


def _varint(value: int) -> WordColumn | None:
    """Encode the same number for all rows; None if it takes more than three bytes."""
    data = zigzag_bytes(value)
    if len(data) > _MAX_NUMBER_BYTES:
        return None
    return WordColumn(np.uint64(int.from_bytes(data, "little")), len(data), len(data))


def _varints(values: Ints) -> WordColumn | None:
    """Encode `values`, one number for each row, as zigzag varints; None if one takes more than
    three bytes."""
    smallest, largest = int(values.min()), int(values.max())
    if smallest == largest:
        return _varint(smallest)
    # The zigzag code of a number is its double; of a negative one, that of -n minus 1.
    largest_code = max(2 * largest, -2 * smallest - 1)
    widest = varint_size(largest_code)
    if widest > _MAX_NUMBER_BYTES:
        return None
    return WordColumn(*encode_words(zigzag(values), largest_code), widest)


def _offset_deltas(counts: Sequence[int]) -> WordColumn | None:
    """Encode the offset deltas of consecutive batches, 0, 1, 2, … in each. `counts`: the rows of
    each batch. None if a delta takes more than three bytes."""
    longest = max(counts)
    widest = varint_size(2 * (longest - 1))
    if widest > _MAX_NUMBER_BYTES:
        return None
    # Zigzag coding makes 0, 2, 4, … of them. A shorter batch has the first ones of the longest.
    codes = np.arange(0, 2 * longest, 2, dtype=np.uint64)
    words, sizes = encode_words(codes, 2 * (longest - 1))
    if len(counts) > 1:
        words = np.concatenate([words[:count] for count in counts])
        if not isinstance(sizes, int):
            sizes = np.concatenate([sizes[:count] for count in counts])
    return WordColumn(words, sizes, widest)


ZERO = WordColumn(np.uint8(0), 1, 1)  # attributes, or the number of headers of each record
NULL_LENGTH = WordColumn(np.uint8(1), 1, 1)  # the zigzag code of -1
_EMPTY = pa.py_buffer(b"")


def join_records(
    keys: Blobs | None, values: Blobs, timestamp_deltas: Ints, counts: Sequence[int]
) -> tuple[memoryview, Ints] | None:
    """Encode records of consecutive batches of `counts` rows: (their bytes, where each begins and
    then where the last ends). None if the varints of some record take more than twelve bytes.

    The records have no headers; `keys` None means that all are null.
    """
    prefixes = _encode_prefixes(keys, values, timestamp_deltas, counts)
    if prefixes is None:
        return None
    front, tail, value_length = prefixes
    columns = [values] if keys is None else [keys, values]
    rows = len(timestamp_deltas)

    # The views of a row: its varints, [key, length of the value,] value. Then one view more for all
    # rows, the zero that ends the last record. A view is four int32: the length, then the bytes
    # themselves or (first four bytes, index of the buffer, position in it).
    per_row = 2 * len(columns)
    views = np.zeros((rows * per_row + 1, 4), np.int32)
    views[-1, 0] = 1
    shift, tail_words = front.bits, tail.words.astype(np.uint64)
    _write_column(views, 0, per_row, "<i4", 0, front.sizes + tail.sizes)
    _write_column(views, 0, per_row, "<u8", 4, front.words | tail_words << shift)
    _write_column(views, 0, per_row, "<u4", 12, tail_words >> (np.uint64(64) - shift))
    if keys is not None:
        _write_column(views, 2, per_row, "<i4", 0, value_length.sizes)
        _write_column(views, 2, per_row, "<u4", 4, value_length.words)
    for index, blobs in enumerate(columns):
        _write_blob_views(views[2 * index + 1 : -1 : per_row], blobs, index)
    joined = pa.Array.from_buffers(
        pa.binary_view(),
        len(views),
        [None, pa.py_buffer(views), *(blobs.array.buffers()[2] or _EMPTY for blobs in columns)],
    ).cast(pa.binary(), memory_pool=BATCH_POOL)
    _, offsets, content = joined.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(views) : per_row].astype(np.int64)
    edges += 1  # the zero at the beginning of a view belongs to the record before
    return memoryview(content), edges


def _encode_prefixes(
    keys: Blobs | None, values: Blobs, timestamp_deltas: Ints, counts: Sequence[int]
) -> tuple[WordColumn, WordColumn, WordColumn] | None:
    """Encode the varints of the records: those before the key (before the value if there are no
    keys), in two parts, and the length of the value. None if some take more than twelve bytes. The
    arguments are those of `join_records`."""
    columns = [values] if keys is None else [keys, values]
    lengths = [
        _varint(blobs.max_length)
        if blobs.min_length == blobs.max_length
        else _varints(blobs.lengths)
        for blobs in columns
    ]
    timestamp = _varints(timestamp_deltas)
    offset = _offset_deltas(counts)
    first_length, value_length = lengths[0], lengths[-1]  # without keys both are the values'
    if timestamp is None or offset is None:
        return None
    if first_length is None or value_length is None:
        return None
    # Attributes, the length of a null key or of the value, the count of headers.
    other_bytes = 3 if keys is None else 2 + value_length.sizes
    sizes = offset.sizes + timestamp.sizes + first_length.sizes + other_bytes
    # Bytes of each record after its length.
    body = np.full(len(timestamp_deltas), sizes, np.int64)
    for blobs in columns:
        if blobs.min_length == blobs.max_length:
            body += max(blobs.max_length, 0)
        else:
            body += blobs.lengths if blobs.min_length >= 0 else np.maximum(blobs.lengths, 0)
    body_length = _varints(body)
    if body_length is None:
        return None
    if keys is None:
        first_length = NULL_LENGTH.followed_by(first_length)
    # The bytes before a key, or before a value if there are no keys: front, then tail. A record
    # ends in a zero, the count of its headers. It is written before the next record's varints,
    # since every further view costs time.
    front = ZERO.followed_by(body_length).followed_by(ZERO).followed_by(timestamp)
    tail = offset.followed_by(first_length)
    return None if front.max_size + tail.max_size > MAX_INLINE else (front, tail, value_length)


def _write_column(
    views: NDArray[np.int32], first: int, step: int, dtype: str, at: int, values: Any
) -> None:
    """Write one number of each row, of type `dtype`, at byte `at` of its view. The rows' views are
    `first`, `first + step`, … of `views`, which has one view more at its end."""
    count = (len(views) - 1) // step
    begin = first * VIEW_BYTES + at
    target: NDArray[Any] = np.ndarray((count,), dtype, views, begin, (step * VIEW_BYTES,))
    np.copyto(target, values, casting="unsafe")


def _write_blob_views(views: NDArray[np.int32], blobs: Blobs, buffer_index: int) -> None:
    """Write the views of keys or values: references to long ones in buffer `buffer_index`, the
    bytes of short ones. A null becomes empty.

    The view of a long one would repeat its first four bytes. They may be left out, since only
    comparisons read them.
    """
    if blobs.min_length > MAX_INLINE:
        views[:, 0] = blobs.lengths
        views[:, 2] = buffer_index
        views[:, 3] = blobs.starts
        return
    cast = blobs.array.cast(pa.binary_view())
    content = np.frombuffer(cast.buffers()[1], "<c16")  # 16 bytes are the fastest to copy
    views.view("<c16")[:, 0] = content[cast.offset :][: len(views)]
    np.maximum(blobs.lengths, 0, out=views[:, 0], casting="unsafe")
    if blobs.max_length > MAX_INLINE:
        views[np.flatnonzero(blobs.lengths > MAX_INLINE), 2] = buffer_index
