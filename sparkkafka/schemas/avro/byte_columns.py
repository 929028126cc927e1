"""Joins columns of bytes row by row: the bytes of a row are those of all columns, in their order.

Short bytes (varints, floats) are words of up to 64 bits. Shifts put neighbouring ones together
until eight bytes are full. Then each row is a few entries in a table of Arrow's binary views (as in
`protocol.columns.join`), which hold short bytes and refer to longer ones. One cast from views to
plain binary copies all of them, at about 5 ns an entry. Short strings with their lengths in front
are copied as slices instead (`_join_slices`), at about 14 ns for both, not 22.

Columns of the same kind are converted in one call, since a call of NumPy or Arrow takes as long as
a thousand values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import blob_offsets, odd_values
from sparkkafka.protocol.records.varint_columns import Flags, Sizes, encode, windows
from sparkkafka.protocol.wire.varints import varint_size

_MAX_WORD: Final = 8
_MAX_INLINE: Final = 12  # a view holds up to 12 bytes itself
MAX_BYTES: Final = (1 << 31) - 1  # of an array with offsets of 32 bits
_VIEW_BYTES: Final = 16


class Words(NamedTuple):
    """Up to eight bytes of each row."""

    words: Any
    """Unsigned numbers of any width, whose lowest byte is the first one, and which are 0 beyond the
    row's bytes; or one number for all rows."""
    sizes: Sizes
    """How many bytes."""
    max_size: int
    """An upper bound of `sizes`, at least 1."""

    @property
    def stored(self) -> int:
        """How many bytes of a view are written."""
        return 4 if self.max_size <= 4 else 8

    def followed_by(self, other: Words) -> Words:
        """Return these bytes followed by those of `other`, which fit a word together."""
        max_size = self.max_size + other.max_size
        dtype = np.uint32 if max_size <= 4 else np.uint64
        words = other.words.astype(dtype) << np.asarray(self.sizes << 3).astype(dtype)
        return Words(words | self.words, self.sizes + other.sizes, max_size)


class Varints(NamedTuple):
    """A zigzag varint in each row."""

    values: NDArray[Any]
    """The numbers, of any width; any number where they are not valid."""
    valid: Flags | None = None
    """Rows where it is false have no bytes."""


class Blobs(NamedTuple):
    """Bytes of any length."""

    array: pa.Array
    """binary or string: one for each row, or one for all."""
    lengths: NDArray[Any]
    """How many bytes of each are written: all or none."""
    valid: Flags | None = None
    """Rows where it is false have no bytes."""


ByteColumn = Words | Varints | Blobs


def only_valid(column: ByteColumn, valid: Flags) -> Any:
    """Return the same bytes, but none for rows that are not valid."""
    if isinstance(column, Blobs):
        return column._replace(lengths=column.lengths * valid, valid=valid)
    if isinstance(column, Varints):
        return Varints(column.values, valid)
    flags = valid.view(np.uint8)
    return Words(column.words * flags, column.sizes * flags, column.max_size)


def numbers_of(values: NDArray[Any]) -> Words:
    """Return the bytes of numbers as they are in memory."""
    size = values.dtype.itemsize
    return Words(values.view(f"u{size}"), size, size)


def constant(data: bytes) -> list[ByteColumn]:
    """Return the same bytes for all rows."""
    size = len(data)
    if size > _MAX_WORD:
        offsets = np.array([0, size], np.int32)
        return [Blobs(binary_of(offsets, pa.py_buffer(data)), offsets[1:])]
    dtype = np.uint32 if size <= 4 else np.uint64
    return [Words(dtype(int.from_bytes(data, "little")), size, size)] if size else []


def blobs_of(array: pa.Array) -> Blobs:
    """Return the values of a string or binary array; a null may have bytes."""
    offsets = blob_offsets(array)
    if offsets.dtype == np.int64:  # views refer to at most 2 GiB
        begin, end = int(offsets[0]), int(offsets[-1])
        if end - begin > MAX_BYTES:
            raise TooLargeError
        offsets = (offsets - begin).astype(np.int32)
        array = binary_of(offsets, array.buffers()[2].slice(begin, end - begin))
    return Blobs(array, offsets[1:] - offsets[:-1])


def counts_of(counts: NDArray[Any]) -> ByteColumn:
    """Return the zigzag varints of numbers that are not negative."""
    if int(counts.max(initial=0)) < 64:
        return numbers_of((counts << 1).astype(np.uint8))
    return Varints(counts)


def binary_of(offsets: NDArray[np.int32], data: pa.Buffer) -> pa.Array:
    """Return the binary array with these offsets."""
    buffer = pa.py_buffer(np.ascontiguousarray(offsets))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, buffer, data])


class TooLargeError(Exception):
    """The rows may take more than the 2 GiB of a binary array together."""


def join(columns: Sequence[ByteColumn], count: int) -> pa.Array:
    """Return the bytes of `count` rows as a binary array. Raises TooLargeError."""
    if not columns or not count:
        return binary_of(np.zeros(count + 1, np.int32), pa.py_buffer(b""))
    merged = _merge_words(_encode_varints(columns, count))
    slices = _slices_of(merged, count)
    if slices is not None:
        return _join_slices(slices, count)
    entries = _pack_words(merged)
    per_row = len(entries)
    table = pa.allocate_buffer(count * per_row * _VIEW_BYTES)  # libc would return it to the system

    def part(index: int, dtype: str, begin: int) -> NDArray[Any]:
        """Return some bytes of the views of one column, from byte `begin` on."""
        begin += index * _VIEW_BYTES
        return np.ndarray((count,), dtype, table, begin, (per_row * _VIEW_BYTES,))

    total = 0
    groups: dict[Any, list[tuple[int, Blobs]]] = {}  # that become views in one call
    for index, column in enumerate(entries):
        if isinstance(column, list):
            begin = 0
            for words in column:
                part(index, f"<u{words.stored}", 4 + begin)[:] = words.words
                total += count * words.max_size
                begin += words.max_size
            part(index, "<i4", 0)[:] = begin - words.max_size + words.sizes
            continue
        size = int(column.lengths.sum(dtype=np.int64))
        is_short = len(column.lengths) == count and size <= _MAX_SHORT * count
        groups.setdefault(column.array.type if is_short else index, []).append((index, column))
        total += size * (count // len(column.lengths))
    if total > MAX_BYTES:
        raise TooLargeError
    buffers: list[pa.Buffer] = []
    for group in groups.values():
        arrays = [blobs.array for _, blobs in group]
        views = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
        views = views.cast(pa.binary_view())
        _, data, *contents = views.buffers()
        source = np.frombuffer(data, "<c16")[views.offset :]
        for index, blobs in group:
            part(index, "<c16", 0)[:] = source[: len(blobs.lengths)]
            source = source[len(blobs.lengths) :]
            sizes = part(index, "<i4", 0)
            if blobs.valid is not None:
                sizes *= blobs.valid
            if buffers:
                part(index, "<i4", 8)[np.flatnonzero(sizes > _MAX_INLINE)] = len(buffers)
        buffers += [content for content in contents if content is not None]
    joined = pa.Array.from_buffers(pa.binary_view(), count * per_row, [None, table, *buffers])
    joined = joined.cast(pa.binary())
    return binary_of(blob_offsets(joined)[::per_row], joined.buffers()[2])


_MAX_SHORT: Final = 64
"""If values are longer on average, the copy that a group needs takes longer than another call."""


class Slice(NamedTuple):
    """A column that is copied to each row, and the word that is written in front of it."""

    column: Words | Blobs
    front: Words | None = None

    @property
    def source(self) -> tuple[NDArray[Any], NDArray[np.int32], Sizes]:
        """The bytes of all rows, where each row's value starts in them, and its length."""
        if isinstance(self.column, Words):
            data = np.atleast_1d(self.column.words)
            starts = np.arange(0, data.nbytes, data.itemsize, dtype=np.int32)
            return data.view(np.uint8), starts, self.column.sizes
        offsets = blob_offsets(self.column.array)
        data = np.frombuffer(self.column.array.buffers()[2] or b"", np.uint8)
        starts = offsets[:-1] - offsets[0]
        return data[offsets[0] : offsets[-1]], starts, self.column.lengths


def _slices_of(columns: Sequence[Words | Blobs], count: int) -> list[Slice] | None:
    """Return the slices of a row. None if views are faster: if few bytes have a word of one size in
    front of them, as a string's length, or if they are long."""
    slices: list[Slice] = []
    size = fronts = 0
    for column in columns:
        if isinstance(column, Words):
            size += column.words.nbytes
            slices.append(Slice(column))
            continue
        offsets = blob_offsets(column.array)
        size += int(offsets[-1] - offsets[0]) * (count // len(column.lengths))
        last = slices[-1].column if slices else None
        if isinstance(last, Words) and isinstance(last.sizes, int) and last.sizes in (1, 2, 4, 8):
            slices[-1] = Slice(column, last)
            fronts += 1
        else:
            slices.append(Slice(column))
    is_short = size <= min(_MAX_SHORT * count * fronts, MAX_BYTES // 4)
    return slices if is_short and 2 * fronts >= len(slices) else None


def _join_slices(slices: Sequence[Slice], count: int) -> pa.Array:
    """As `join`. All columns are laid side by side, and Arrow copies slices of them in the order of
    rows. A slice begins as many bytes early as its word has, which is written there afterwards."""
    per_row = len(slices)
    offsets = np.empty(2 * count * per_row + 2, np.int32)
    bounds = offsets[1:-1].reshape(count, per_row, 2)
    parts: list[NDArray[Any]] = [np.zeros(_MAX_WORD, np.uint8)]
    begin = _MAX_WORD
    for index, piece in enumerate(slices):
        data, starts, lengths = piece.source
        starts += np.int32(begin)
        np.subtract(starts, piece.front.sizes if piece.front else 0, out=bounds[:, index, 0])
        np.add(starts, lengths, out=bounds[:, index, 1], casting="unsafe")
        begin += len(data)
        parts.append(data)
    # Arrow takes half of this as the memory that it will need.
    source = np.empty(2 * begin, np.uint8)
    np.concatenate(parts, out=source[:begin])
    offsets[0], offsets[-1] = 0, len(source)
    joined = odd_values(offsets, pa.py_buffer(source))
    ends, content = blob_offsets(joined), joined.buffers()[2]
    out = np.ndarray((content.size,), np.uint8, content)
    for index, (_, front) in enumerate(slices):
        if front is not None:
            dtype = np.dtype(f"<u{front.sizes}")
            windows(out, dtype)[ends[index:-1:per_row].astype(np.int64)] = front.words.astype(dtype)
    return binary_of(ends[::per_row], content)


def _encode_varints(columns: Sequence[ByteColumn], count: int) -> list[Words | Blobs]:
    """Return the columns with words instead of varints."""
    varints = [column for column in columns if isinstance(column, Varints)]
    step = max(1, _GROUP_VALUES // count)
    encoded = chain.from_iterable(
        _encode_group(varints[low : low + step], count) for low in range(0, len(varints), step)
    )
    result: list[Words | Blobs] = []
    for column in columns:
        if isinstance(column, Varints):
            result += next(encoded)
        else:
            result.append(column)
    return result


_GROUP_VALUES: Final = 1 << 16
"""The most values that are encoded together: they fit in the processor's cache."""


def _encode_group(varints: Sequence[Varints], count: int) -> list[list[Words]]:
    """Encode varints, those of the same width together: one column of words for each, or two, if
    it has more than eight bytes."""
    values = np.empty((len(varints), count), np.int64)
    for row, column in enumerate(varints):
        if column.valid is None:
            values[row] = column.values
        else:  # 0, whose word has no bits
            np.multiply(column.values, column.valid, out=values[row])
    signs = values >> 63
    values <<= 1
    values ^= signs
    codes = values.view(np.uint64)
    largest = codes.max(axis=1)
    widths = np.searchsorted(_WIDTH_LIMITS, largest, "right")
    encoded: list[list[Words]] = [[] for _ in varints]
    for width in set(widths.tolist()):
        rows = np.flatnonzero(widths == width)
        group = (codes if len(rows) == len(codes) else codes[rows]).ravel()
        for words, sizes in _encode_codes(group):
            if not isinstance(sizes, int):
                sizes = sizes.astype(np.uint8)
            for index, row in enumerate(rows.tolist()):
                part = slice(index * count, (index + 1) * count)
                size = sizes if isinstance(sizes, int) else sizes[part]
                max_size = min(varint_size(int(largest[row])), words.itemsize)
                valid = varints[row].valid
                if valid is not None:
                    size = size * valid.view(np.uint8)
                encoded[row].append(Words(words[part], size, max_size))
    return encoded


_WIDTH_LIMITS: Final = np.array([1 << 7, 1 << 14, 1 << 28, 1 << 56], np.uint64)
"""Smaller codes take words of 8, 16, 32 and 64 bits."""


def _encode_codes(codes: NDArray[np.uint64]) -> list[tuple[Any, Sizes]]:
    """Encode unsigned numbers: words and sizes, and those of the bytes from the ninth on if there
    are any."""
    is_long = codes >= _WIDTH_LIMITS[-1]
    if not is_long.any():
        encoded = encode(codes)
        return [(encoded.words, encoded.sizes)]
    # Where there are nine or ten bytes, the first eight have the low 56 bits.
    [(words, sizes)] = _encode_codes(codes & (_WIDTH_LIMITS[-1] - np.uint64(1)))
    words = words | is_long * np.uint64(0x8080808080808080)
    [(rest, rest_sizes)] = _encode_codes(codes >> np.uint64(56))
    return [(words, np.where(is_long, 8, sizes)), (rest, rest_sizes * is_long)]


def _merge_words(columns: Sequence[Words | Blobs]) -> list[Words | Blobs]:
    """Return the columns with neighbouring words joined where they fit one."""
    merged: list[Words | Blobs] = []
    for column in columns:
        last = merged[-1] if merged else None
        if (
            isinstance(last, Words)
            and isinstance(column, Words)
            and last.max_size + column.max_size <= _MAX_WORD
        ):
            merged[-1] = last.followed_by(column)
        else:
            merged.append(column)
    return merged


def _pack_words(columns: Sequence[Words | Blobs]) -> list[list[Words] | Blobs]:
    """Return the entries of a row: words of one size and the one behind them are one if they fit
    the bytes of a view."""
    entries: list[list[Words] | Blobs] = []
    begin = _MAX_INLINE  # where another word would begin in the last entry
    for column in columns:
        if isinstance(column, Blobs):
            entries.append(column)
            begin = _MAX_INLINE
            continue
        last = entries[-1] if entries else None
        if isinstance(last, list) and begin + column.stored <= _MAX_INLINE:
            last.append(column)
        else:
            entries.append([column])
            begin = 0
        begin = begin + column.sizes if isinstance(column.sizes, int) else _MAX_INLINE
    return entries
