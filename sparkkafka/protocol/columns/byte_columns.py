"""Joins columns of bytes row by row: the bytes of a row are those of all columns, in their order.

Short bytes (varints, floats) are words of up to 64 bits. Shifts put neighbouring ones together
until up to four words are one slice. Arrow copies slices in the order of rows, at 4 ns each, or 8
if their lengths differ by more than the processor's branch prediction can guess. Long bytes are a
table of Arrow's binary views (as in `encode.join_records`) instead, and are copied only once.

Columns of the same kind are converted in one call, since a call of NumPy or Arrow takes as long as
a thousand values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import blob_offsets, odd_values
from sparkkafka.protocol.records.varint_columns import Flags, Ints, Sizes, encode_words, windows
from sparkkafka.protocol.wire.varints import varint_size

_MAX_WORD: Final = 8
_BITS: Final = np.uint64(64)
MAX_INLINE: Final = 12  # a view holds up to 12 bytes itself, and references longer values
MAX_BYTES: Final = (1 << 31) - 1  # the most bytes of an array with offsets of 32 bits
VIEW_BYTES: Final = 16


class WordColumn(NamedTuple):
    """Up to eight bytes of each row."""

    words: Any
    """Unsigned numbers of any width, whose lowest byte is the first one, and which are 0 beyond the
    row's bytes; or one number for all rows."""
    sizes: Sizes
    """How many bytes."""
    max_size: int
    """An upper bound of `sizes`, at least 1."""

    @property
    def size(self) -> int:
        """How many bytes, if each row has the same number; else 0."""
        return self.sizes if isinstance(self.sizes, int) else 0

    @property
    def bits(self) -> NDArray[np.uint64]:
        """The sizes in bits, as the type by which NumPy shifts words."""
        return np.asarray(self.sizes << 3).astype(np.uint64)

    def followed_by(self, other: WordColumn) -> WordColumn:
        """Return a column with the bytes of both columns in each row, those of `other` last. Both
        together have at most eight bytes."""
        max_size = self.max_size + other.max_size
        dtype = np.uint32 if max_size <= 4 else np.uint64
        words = other.words.astype(dtype) << np.asarray(self.sizes << 3).astype(dtype)
        return WordColumn(words | self.words, self.sizes + other.sizes, max_size)


class VarintColumn(NamedTuple):
    """A varint in each row."""

    values: NDArray[Any]
    """The numbers, of any width; any number where they are not valid."""
    valid: Flags | None = None
    """Rows where it is false have no bytes."""
    is_zigzag: bool = True
    """Numbers are signed, and written as zigzag codes. Else they are unsigned."""


class BinaryColumn(NamedTuple):
    """Bytes of any length."""

    array: pa.Array
    """binary or string: one for each row, or one for all."""
    lengths: NDArray[Any]
    """How many bytes of each are written: all or none."""
    valid: Flags | None = None
    """Rows where it is false have no bytes."""


ByteColumn = WordColumn | VarintColumn | BinaryColumn


def only_valid(column: ByteColumn, valid: Flags) -> Any:
    """Return the column with no bytes in the rows whose flag in `valid` is false."""
    if isinstance(column, BinaryColumn):
        return column._replace(lengths=column.lengths * valid, valid=valid)
    if isinstance(column, VarintColumn):
        return column._replace(valid=valid)
    flags = valid.view(np.uint8)
    return WordColumn(column.words * flags, column.sizes * flags, column.max_size)


def numbers_of(values: NDArray[Any]) -> WordColumn:
    """Return the bytes of numbers as they are in memory."""
    size = values.dtype.itemsize
    return WordColumn(values.view(f"u{size}"), size, size)


def constant(data: bytes) -> list[ByteColumn]:
    """Return columns that give each row the same bytes: one column, or none for no bytes."""
    size = len(data)
    if size > _MAX_WORD:
        offsets = np.array([0, size], np.int32)
        return [BinaryColumn(binary_of(offsets, pa.py_buffer(data)), offsets[1:])]
    dtype = np.uint32 if size <= 4 else np.uint64
    return [WordColumn(dtype(int.from_bytes(data, "little")), size, size)] if size else []


def blobs_of(array: pa.Array) -> BinaryColumn:
    """Return the values of a string or binary array as a column of bytes; a null may have bytes.
    Raises TooLargeError for more than 2 GiB."""
    offsets = blob_offsets(array)
    if offsets.dtype == np.int64:  # views refer to at most 2 GiB
        begin, end = int(offsets[0]), int(offsets[-1])
        if end - begin > MAX_BYTES:
            raise TooLargeError
        offsets = (offsets - begin).astype(np.int32)
        array = binary_of(offsets, array.buffers()[2].slice(begin, end - begin))
    return BinaryColumn(array, offsets[1:] - offsets[:-1])


def counts_of(counts: NDArray[Any]) -> ByteColumn:
    """Return a column of the zigzag varints of numbers that are not negative."""
    if int(counts.max(initial=0)) < 64:  # zigzag codes below 128 are varints of one byte
        return numbers_of((counts << 1).astype(np.uint8))
    return VarintColumn(counts)


def binary_of(offsets: NDArray[np.int32], data: pa.Buffer) -> pa.Array:
    """Return a binary array whose value i has the bytes of `data` from offsets[i] up to offsets[i +
    1]."""
    buffer = pa.py_buffer(np.ascontiguousarray(offsets))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, buffer, data])


def regroup(array: pa.Array, offsets: Ints) -> pa.Array:
    """Return a binary array with fewer values: value i is the values of `array` from offsets[i] up
    to offsets[i + 1], joined."""
    return binary_of(blob_offsets(array)[offsets], array.buffers()[2])


class TooLargeError(Exception):
    """The rows may take more than the 2 GiB of a binary array together."""


def join(columns: Sequence[ByteColumn], count: int, pool: pa.MemoryPool | None = None) -> pa.Array:
    """Return the bytes of `count` rows as a binary array. Raises TooLargeError."""
    if not columns or not count:
        return binary_of(np.zeros(count + 1, np.int32), pa.py_buffer(b""))
    merged = _merge_words(_encode_varints(columns, count))
    slices = _slices_of(merged, count)
    if slices is not None:
        return _join_slices(slices, count, pool)
    # A table of views, one for each column of each row: Arrow's cast copies what they point to.
    per_row = len(merged)
    table = pa.allocate_buffer(count * per_row * VIEW_BYTES)  # libc would return it to the system
    buffers: list[pa.Buffer] = []
    total = 0
    for index, column in enumerate(merged):

        def view_field(dtype: str, begin: int, index: int = index) -> NDArray[Any]:
            """Return the number at byte `begin` of this column's view in each row.

            A view is an int32 length, then up to 12 bytes, or, for more bytes: the first four, and
            as int32 the index of their buffer and their position in it."""
            begin += index * VIEW_BYTES
            return np.ndarray((count,), dtype, table, begin, (per_row * VIEW_BYTES,))

        if isinstance(column, WordColumn):
            view_field("<u8", 4)[:] = column.words
            view_field("<i4", 0)[:] = column.sizes
            total += count * column.max_size
            continue
        # One value may stand for all rows.
        total += int(column.lengths.sum(dtype=np.int64)) * (count // len(column.lengths))
        views = column.array.cast(pa.binary_view())  # their bytes are in buffers of their own
        _, data, *contents = views.buffers()
        view_field("<c16", 0)[:] = np.frombuffer(data, "<c16")[views.offset :][
            : len(column.lengths)
        ]
        sizes = view_field("<i4", 0)
        if column.valid is not None:
            sizes *= column.valid  # a null has no bytes
        # Their buffers come after those of the columns before.
        view_field("<i4", 8)[np.flatnonzero(sizes > MAX_INLINE)] += len(buffers)
        buffers += [content for content in contents if content is not None]
    if total > MAX_BYTES:
        raise TooLargeError
    joined = pa.Array.from_buffers(pa.binary_view(), count * per_row, [None, table, *buffers])
    joined = joined.cast(pa.binary(), memory_pool=pool)
    return binary_of(blob_offsets(joined)[::per_row], joined.buffers()[2])


class Slice(NamedTuple):
    """Bytes of each row that lie side by side, and the word that is written in front of them."""

    column: list[WordColumn] | BinaryColumn
    """At most four words."""
    front: WordColumn | None = None

    def locate(self, begin: int, count: int) -> tuple[NDArray[Any], Any, Any]:
        """Return the bytes of all rows as one array, and where each row's bytes start and end if
        that array lies at position `begin`."""
        if isinstance(self.column, BinaryColumn):
            offsets = blob_offsets(self.column.array)
            data = np.frombuffer(self.column.array.buffers()[2] or b"", np.uint8)
            starts = offsets[:-1] + np.int32(begin - offsets[0])
            return data[offsets[0] : offsets[-1]], starts, starts + self.column.lengths
        if len(self.column) == 1:
            [words] = self.column
            data = np.atleast_1d(words.words)
            starts = np.arange(begin, begin + data.nbytes, data.itemsize, dtype=np.int32)
            return data.view(np.uint8), starts, starts + words.sizes
        # Half of the words end, and the others begin, at the middle of a row of up to 32 bytes.
        bits = [words.bits for words in self.column]
        half = len(self.column) // 2
        before, after = self.column[:half], self.column[half:]
        data = np.empty((count, len(self.column)), np.uint64)
        last = before[-1].words << (_BITS - bits[half - 1])
        if half == 2:
            first = before[0].words << (_BITS - bits[0])
            data[:, 0] = first << (_BITS - bits[1])
            last |= first >> bits[1]
        data[:, half - 1] = last
        first = after[0].words
        if len(after) == 2:
            data[:, half + 1] = after[1].words >> (_BITS - bits[half])
            first = first | (after[1].words << bits[half])
        data[:, half] = first
        middle = np.arange(begin, begin + data.nbytes, data.strides[0], dtype=np.int32)
        middle += np.int32(half * _MAX_WORD)
        starts = middle - sum(words.sizes for words in before)
        return data.view(np.uint8).ravel(), starts, middle + sum(words.sizes for words in after)


def _slices_of(columns: Sequence[WordColumn | BinaryColumn], count: int) -> list[Slice] | None:
    """Return the columns as slices, in the order of their bytes in a row: one of up to four words,
    or of a BinaryColumn. None if the rows have so many bytes that copying slices is slow."""
    slices: list[Slice] = []
    size = 0
    for column in columns:
        last = slices[-1].column if slices else None
        if isinstance(column, WordColumn):
            size += _MAX_WORD * count
            if isinstance(last, list) and len(last) < 4:
                last.append(column)
            else:
                slices.append(Slice([column]))
            continue
        offsets = blob_offsets(column.array)
        repeats = count // len(column.lengths)  # of one value for all rows
        size += int(offsets[-1] - offsets[0]) * repeats
        # A single word that NumPy has a type for can be written in front of the copied bytes.
        if isinstance(last, list) and len(last) == 1 and last[0].size in (1, 2, 4, 8):
            slices[-1] = Slice(column, last[0])
        else:
            slices.append(Slice(column))
    # Beyond 64 bytes a slice, what the copy to a common buffer costs is more than slices gain. That
    # buffer has twice the bytes, and positions of 32 bits.
    is_short = size <= min(64 * count * len(slices), MAX_BYTES // 4)
    return slices if is_short else None


def _join_slices(slices: Sequence[Slice], count: int, pool: pa.MemoryPool | None) -> pa.Array:
    """Return the bytes of `count` rows as a binary array. The columns are concatenated, and Arrow
    copies slices of them in the order of the rows. If a word precedes a slice, the slice begins
    earlier by the word's size, and the word is written there afterwards."""
    per_row = len(slices)
    offsets = np.empty(2 * count * per_row + 2, np.int32)
    bounds = offsets[1:-1].reshape(count, per_row, 2)
    parts: list[NDArray[Any]] = [np.zeros(_MAX_WORD, np.uint8)]
    begin = _MAX_WORD
    for index, piece in enumerate(slices):
        data, starts, ends = piece.locate(begin, count)
        bounds[:, index, 0] = starts - piece.front.sizes if piece.front else starts
        bounds[:, index, 1] = ends
        begin += len(data)
        parts.append(data)
    # Arrow takes half of this as the memory that it will need; with less it copies all again.
    fronts = sum(piece.front.max_size for piece in slices if piece.front)
    source = np.empty(2 * (begin + count * fronts), np.uint8)
    np.concatenate(parts, out=source[:begin])
    offsets[0], offsets[-1] = 0, len(source)
    joined = odd_values(offsets, pa.py_buffer(source), pool)
    ends, content = blob_offsets(joined), joined.buffers()[2]
    out = np.ndarray((content.size,), np.uint8, content)
    for index, (_, front) in enumerate(slices):
        if front is not None:
            dtype = np.dtype(f"<u{front.sizes}")
            windows(out, dtype)[ends[index:-1:per_row].astype(np.int64)] = front.words.astype(dtype)
    return binary_of(ends[::per_row], content)


def _encode_varints(columns: Sequence[ByteColumn], count: int) -> list[WordColumn | BinaryColumn]:
    """Return the columns with each column of varints replaced by its columns of words."""
    encoded: dict[int, list[WordColumn]] = {}
    # Columns that are encoded together: their values fit in the processor's cache.
    step = max(1, (1 << 16) // count)
    groups: dict[Any, list[int]] = {}
    for index, column in enumerate(columns):
        if isinstance(column, VarintColumn):
            dtype = np.int64 if column.values.itemsize > 4 else np.int32
            groups.setdefault((dtype, column.is_zigzag), []).append(index)
    for (dtype, _), indexes in groups.items():
        for low in range(0, len(indexes), step):
            group_indexes = indexes[low : low + step]
            group: Any = [columns[index] for index in group_indexes]
            encoded |= zip(group_indexes, _encode_group(group, count, dtype), strict=True)
    result: list[WordColumn | BinaryColumn] = []
    for index, column in enumerate(columns):
        result += encoded[index] if isinstance(column, VarintColumn) else [column]
    return result


def _encode_group(
    varints: Sequence[VarintColumn], count: int, dtype: Any
) -> list[list[WordColumn]]:
    """Encode columns of varints of one kind; columns of the same width are encoded in one step.

    Return for each column one column of words, or two if a varint has more than eight bytes."""
    values = np.empty((len(varints), count), dtype)
    for row, column in enumerate(varints):
        if column.valid is None:
            values[row] = column.values
        else:  # null becomes 0, whose word has no bits set
            np.multiply(column.values, column.valid, out=values[row])
    if varints[0].is_zigzag:
        if values.min() >= 0:  # then the zigzag code is the double
            values <<= 1
        else:
            values = values << 1 ^ values >> (8 * values.itemsize - 1)
    codes = values.view(f"u{values.itemsize}")
    largest = codes.max(axis=1)
    widths = np.searchsorted(_WIDTH_LIMITS, largest, "right")
    encoded: list[list[WordColumn]] = [[] for _ in varints]
    for width in set(widths.tolist()):
        rows = np.flatnonzero(widths == width)
        group = (codes if len(rows) == len(codes) else codes[rows]).ravel()
        for words, sizes in _encode_codes(group, int(largest[rows].max())):
            for index, row in enumerate(rows.tolist()):
                part = slice(index * count, (index + 1) * count)
                size = sizes if isinstance(sizes, int) else sizes[part]
                max_size = min(varint_size(int(largest[row])), words.itemsize)
                valid = varints[row].valid
                if valid is not None:
                    size = size * valid.view(np.uint8)
                encoded[row].append(WordColumn(words[part], size, max_size))
    return encoded


_WIDTH_LIMITS: Final = np.array([1 << 7, 1 << 14, 1 << 28, 1 << 56], np.uint64)
"""Smaller codes take words of 8, 16, 32 and 64 bits."""


def _encode_codes(codes: NDArray[np.uint64], largest: int) -> list[tuple[Any, Sizes]]:
    """Encode unsigned numbers, the largest of which is `largest`, as varints. Return the words and
    sizes of their first eight bytes; if a varint has nine or ten bytes, then those of the last two.
    """
    if largest < 1 << 56:
        return [encode_words(codes, largest)]
    # A byte has seven bits of the number, so the first eight bytes have the low 56 bits. If others
    # follow, all eight have the bit 0x80.
    is_long = codes >= _WIDTH_LIMITS[-1]
    low_bits = (1 << 56) - 1
    words, sizes = encode_words(codes & np.uint64(low_bits), low_bits)
    words |= is_long * np.uint64(0x8080808080808080)
    rest, rest_sizes = encode_words(codes >> np.uint64(56), largest >> 56)
    return [
        (words, np.where(is_long, np.uint8(8), sizes)),
        (rest, rest_sizes * is_long.view(np.uint8)),
    ]


def _merge_words(columns: Sequence[WordColumn | BinaryColumn]) -> list[WordColumn | BinaryColumn]:
    """Return the columns, in which adjacent words are joined if they fit into one word."""
    merged: list[WordColumn | BinaryColumn] = []
    for column in columns:
        last = merged[-1] if merged else None
        if (
            isinstance(last, WordColumn)
            and isinstance(column, WordColumn)
            and last.max_size + column.max_size <= _MAX_WORD
        ):
            merged[-1] = last.followed_by(column)
        else:
            merged.append(column)
    return merged
