"""Encodes one Arrow column as Avro payloads, chunk by chunk.

There is a ValueEncoder for each Avro type; `resolve.py` chooses them. Encoding has two steps.
`prepare` checks the values and computes how many bytes each one takes; then the memory of all
payloads is allocated, and `Prepared.write` fills in the bytes of each value at its position.

The rules are those of Spark's AvroSerializer, except that nothing is dropped silently: a column
that the schema lacks is an error.
"""

from __future__ import annotations

import string
from binascii import unhexlify
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records.arrow import bits, blob_offsets, from_numpy, is_valid, to_numpy
from sparkkafka.protocol.records.varint_columns import (
    NO_SLACK,
    PAD,
    Bytes,
    Flags,
    Ints,
    Sizes,
    Slack,
    copy_pieces,
    encode,
    join_varints,
    windows,
    write_rest,
    write_varints,
    write_words,
    zigzag,
)
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import offsets_of
from sparkkafka.schemas.avro.types import UUID_DIGITS, rescale_times
from sparkkafka.schemas.bounds import cut
from sparkkafka.schemas.field_names import label
from sparkkafka.schemas.values import ValueRowError, type_name

CHUNK_ROWS: Final = 8192
"""The most rows that are encoded together: their columns fit in the processor's cache."""

_MAX_BYTES = (1 << 31) - 1  # of an array with offsets of 32 bits


class AvroEncoder:
    """See `schemas.values.Encoder`."""

    def __init__(self, encoder: ValueEncoder, source: pa.DataType) -> None:
        self._encoder = encoder
        self._source = source

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """As `Encoder.encode`; large_binary if there are more than 2 GiB."""
        if values.type != self._source:
            raise OptionError(
                f"the column is {type_name(values.type)}, but it was {type_name(self._source)} "
                "when its encoder was made"
            )
        arrays = []
        step = -(-len(values) // max(1, -(-len(values) // CHUNK_ROWS)))  # 10,000 as 5,000 twice
        for low in range(0, len(values), max(step, 1)):
            try:
                arrays.append(self._encode_chunk(values.slice(low, step), prefix))
            except ValueRowError as error:
                if not low:
                    raise
                raise ValueRowError(low + error.row, error.reason) from None
        if not arrays:
            return pa.nulls(0, pa.binary())
        if len(arrays) == 1:
            return arrays[0]
        if sum(array.nbytes for array in arrays) > _MAX_BYTES:
            arrays = [array.cast(pa.large_binary()) for array in arrays]
        return pa.concat_arrays(arrays)

    def _encode_chunk(self, values: pa.Array, prefix: bytes) -> pa.Array:
        """Encode at most CHUNK_ROWS values; a null value has no payload."""
        valid = is_valid(values)
        rows = np.flatnonzero(valid)
        has_nulls = len(rows) < len(values)
        with_payload = rows if has_nulls else slice(None)
        if has_nulls:
            values = values.take(from_numpy(rows))
        prepared = self._encoder.prepare(values, lambda index: int(rows[index]))
        if prefix:
            prepared = PreparedSequence([PreparedConstant(prefix), prepared])
        ends = np.zeros(len(valid) + 1, np.int64)
        ends[1:][with_payload] = prepared.sizes
        np.cumsum(ends, out=ends)
        total = int(ends[-1])
        memory = np.empty(total + PAD, np.uint8)
        prepared.write(memory, ends[:-1][with_payload], Slack(0, prepared.min_size))
        is_large = total > _MAX_BYTES
        offsets = ends if is_large else ends.astype(np.int32)
        content = pa.py_buffer(memory).slice(0, total)
        kind = pa.large_binary() if is_large else pa.binary()
        buffers = [validity(valid) if has_nulls else None, pa.py_buffer(offsets), content]
        return pa.Array.from_buffers(kind, len(valid), buffers)


RowOf = Callable[[int], int]
"""Returns the row of the encoded column that a value belongs to, by the value's index in the array
that is being prepared."""


class Prepared:
    """Values that are ready to be written. `sizes`: how many bytes each takes (a number, if all
    take the same); `min_size`: no value takes fewer."""

    def __init__(self, sizes: Sizes, min_size: int) -> None:
        self.sizes = sizes
        self.min_size = min_size

    def drop_nulls(self, valid: Flags) -> None:
        """Write nothing for values that are not valid."""
        self.sizes = self.sizes * valid
        self.min_size = 0

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        """Write each value to `out` at its position. `slack`: how far bytes behind it may be
        overwritten."""
        raise NotImplementedError


class ValueEncoder:
    """Encodes the values of one type. Raises ValueRowError for a value that does not fit."""

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        """Check the values and return them ready to be written."""
        raise NotImplementedError

    def prepare_nullable(self, array: pa.Array, row_of: RowOf, valid: Flags) -> Prepared | None:
        """As `prepare`, for values of which some are null (not `valid`) and get no bytes: that is
        faster than to select the others. None if the type's encoder cannot do it."""
        return None

    def refuse(self, bad: Flags, row_of: RowOf, reason: str | Callable[[int], str]) -> None:
        """Raise ValueRowError for the first bad value, if there is one. `reason` may be a function
        of the value's index."""
        indexes = np.flatnonzero(bad)
        if len(indexes):
            index = int(indexes[0])
            text = reason if isinstance(reason, str) else reason(index)
            raise ValueRowError(row_of(index), f"{label(self.path)}: {text}")

    def refuse_nulls(self, array: pa.Array, row_of: RowOf) -> None:
        """Raise ValueRowError for the first null, if there is one."""
        if array.null_count:
            self.refuse(~is_valid(array), row_of, "null, which the Avro schema does not allow here")


class ConstantEncoder(ValueEncoder):
    """Writes the same bytes for each value: those of a default, or none for null. `only_nulls`:
    refuse values that are not null."""

    def __init__(self, path: str, encoded: bytes = b"", *, only_nulls: bool = False) -> None:
        super().__init__(path)
        self._prepared = PreparedConstant(encoded)
        self._only_nulls = only_nulls

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        if self._only_nulls and array.null_count < len(array):
            self.refuse(is_valid(array), row_of, "a value where the Avro schema has only null")
        return self._prepared


class PreparedConstant(Prepared):
    """The same bytes for each value."""

    def __init__(self, data: bytes) -> None:
        super().__init__(len(data), len(data))
        self._data = data

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        size = len(self._data)
        if size and size <= 8 <= size + slack.after:  # one write of eight bytes for each value
            windows(out, "<u8")[at] = np.uint64(int.from_bytes(self._data, "little"))
            return
        for index, byte in enumerate(self._data):
            out[at + index] = byte


# --- numbers ------------------------------------------------------------------------------------


class BooleanEncoder(ValueEncoder):
    """boolean: the byte 0 or 1."""

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        if not len(array):
            return PreparedNumbers(np.zeros(0, np.uint8))
        return PreparedNumbers(bits(array.buffers()[1], array.offset, len(array)))


class FloatEncoder(ValueEncoder):
    """float and double. `source`: the NumPy type of the column's numbers; `written`: the
    schema's."""

    def __init__(self, path: str, source: Any, written: Any) -> None:
        super().__init__(path)
        self._source = source
        self._written = written

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        return PreparedNumbers(_to_numbers(array, self._source).astype(self._written, copy=False))

    def prepare_nullable(self, array: pa.Array, row_of: RowOf, valid: Flags) -> Prepared | None:
        prepared = PreparedNumbers(
            _to_numbers(array, self._source).astype(self._written, copy=False)
        )
        prepared.drop_nulls(valid)
        return prepared


class PreparedNumbers(Prepared):
    """Numbers as they are in memory, the lowest byte first."""

    def __init__(self, values: NDArray[Any]) -> None:
        size = values.dtype.itemsize
        super().__init__(size, size)
        self._values = values

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        if len(at):
            words = self._values.view(f"<u{self._values.dtype.itemsize}")
            write_words(out, at, words, self.sizes, self.min_size, slack)


class LongEncoder(ValueEncoder):
    """int and long, from numbers of the NumPy type `source`; or from times in microseconds,
    converted to `unit` (a key of NANOSECONDS)."""

    def __init__(self, path: str, source: Any, unit: str = "micros") -> None:
        super().__init__(path)
        self._source = source
        self._unit = unit

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        return PreparedVarints(self._longs(_to_numbers(array, self._source), row_of))

    def prepare_nullable(self, array: pa.Array, row_of: RowOf, valid: Flags) -> Prepared | None:
        # The number of a null may be any, and must not be checked.
        prepared = PreparedVarints(self._longs(_to_numbers(array, self._source) * valid, row_of))
        prepared.drop_nulls(valid)
        return prepared

    def _longs(self, values: Ints, row_of: RowOf) -> Ints:
        """Return the numbers that are written."""
        values = values.astype(np.int64, copy=False)
        if self._unit != "micros":
            values, bad = rescale_times(values, "micros", self._unit)
            if bad is not None:
                self.refuse(bad, row_of, "the time is out of the range of 64 bits of nanoseconds")
        return values


class PreparedVarints(Prepared):
    """Zigzag varints."""

    def __init__(self, values: Ints) -> None:
        self._encoded = encode(zigzag(values))
        super().__init__(self._encoded.sizes, self._encoded.min_size)

    def join(self) -> Bytes:
        """Return the bytes of all values, one after the other."""
        return join_varints(self._encoded._replace(sizes=self.sizes))

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        varints = self._encoded._replace(sizes=self.sizes, min_size=self.min_size)
        write_varints(out, at, varints, slack)


def _to_numbers(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the numbers of an array; the number at a null means nothing."""
    if not len(array):
        return np.zeros(0, dtype)
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset : array.offset + len(array)]


# --- strings and bytes --------------------------------------------------------------------------


class BytesEncoder(ValueEncoder):
    """string and bytes, from strings or binaries, also large ones."""

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        return PreparedPrefixed(*blobs_of(array))

    def prepare_nullable(self, array: pa.Array, row_of: RowOf, valid: Flags) -> Prepared | None:
        data, starts, lengths = blobs_of(array)
        return PreparedPrefixed(data, starts, lengths * valid, valid=valid)


def blobs_of(array: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """Return the bytes of a string or binary array, and where each value starts and how long it is
    in them."""
    offsets = blob_offsets(array).astype(np.int64)
    content = array.buffers()[2] if len(array) else None
    return np.frombuffer(content or b"", np.uint8), offsets[:-1], np.diff(offsets)


class PreparedBlobs(Prepared):
    """Slices of `data`, written as they are. They ascend, or all have the same length."""

    def __init__(self, data: Bytes, starts: Ints, lengths: Ints) -> None:
        self._data = data
        self._starts = starts
        self._lengths = lengths
        super().__init__(lengths, int(lengths.min()) if len(lengths) else 0)

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        copy_pieces(self._data, self._starts, self._lengths, out, at)


class PreparedPrefixed(Prepared):
    """Slices of `data` that ascend, each with a varint in front: the number of its bytes, or, if
    `counts` is given, the number of its items. Nothing is written for values that are not `valid`,
    whose length is 0."""

    def __init__(
        self,
        data: Bytes,
        starts: Ints,
        lengths: Ints,
        counts: Ints | None = None,
        valid: Flags | None = None,
    ) -> None:
        self._data = data
        self._starts = starts
        self.lengths = lengths
        self._longest = int(lengths.max()) if len(lengths) else 0
        shortest = int(lengths.min()) if len(lengths) else 0
        self._numbers = lengths if counts is None else counts
        largest = self._longest if counts is None else int(counts.max())
        # The varints in front; None if each has one byte and is written together with the slice.
        self._front: PreparedVarints | None = None
        if largest < 64 and self._longest <= _MAX_WORD_COPY:
            super().__init__(lengths + 1, shortest + 1)
        else:
            self._front = PreparedVarints(self._numbers)
            super().__init__(lengths + self._front.sizes, shortest + self._front.min_size)
            if valid is not None:
                self._front.drop_nulls(valid)
        if valid is not None:
            self.drop_nulls(valid)

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        if not len(at):
            return
        front = self._front
        if front is not None:
            front.write(out, at, slack.before(self.min_size - front.min_size))
            copy_pieces(self._data, self._starts, self.lengths, out, at + front.sizes)
            return
        # The varint has one byte. It is written together with the first seven bytes of its slice,
        # from a copy of the data that has a byte in front and PAD bytes behind.
        begin, end = int(self._starts[0]), int(self._starts[-1] + self.lengths[-1])
        data = np.empty(end - begin + 1 + PAD, np.uint8)
        data[1 : 1 + end - begin] = self._data[begin:end]
        starts = self._starts - begin if begin else self._starts
        first = windows(data, "<u8")[starts]
        first &= np.uint64(0xFFFFFFFFFFFFFF00)
        first |= (self._numbers << 1).view(np.uint64)
        write_words(out, at, first, self.sizes, self.min_size, slack)
        if self._longest > 7:
            write_rest(out, at, data, starts, self.sizes, self.min_size, slack)


_MAX_WORD_COPY: Final = 48
"""Longer strings are copied faster by `copy_pieces` than word by word."""


class FixedEncoder(ValueEncoder):
    """fixed, from binaries of its size."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self._size = size

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        data, starts, lengths = blobs_of(array)
        self.refuse(
            lengths != self._size,
            row_of,
            lambda index: f"{lengths[index]:,} bytes for a fixed of {self._size:,}",
        )
        return PreparedBlobs(data, starts, lengths)


class UuidEncoder(ValueEncoder):
    """A fixed of 16 bytes, from texts of 36 characters."""

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        data, starts, lengths = blobs_of(array)
        self.refuse(lengths != 36, row_of, "the text is no UUID of 36 characters")
        text = data.take(starts[:, None] + np.arange(36)) if len(array) else data.reshape(0, 36)
        digits = text[:, UUID_DIGITS]
        bad = (text[:, _UUID_DASHES] != ord("-")).any(axis=1)
        uuids = b""
        try:
            uuids = unhexlify(digits.tobytes())
        except ValueError:
            bad |= ~_IS_HEX[digits].all(axis=1)
        self.refuse(bad, row_of, "the text is no UUID (8-4-4-4-12 hexadecimal digits)")
        starts = 16 * np.arange(len(array))
        return PreparedBlobs(np.frombuffer(uuids, np.uint8), starts, np.full(len(array), 16))


_IS_HEX: Final = np.array([chr(byte) in string.hexdigits for byte in range(256)])
_UUID_DASHES: Final = np.array([8, 13, 18, 23])


class EnumEncoder(ValueEncoder):
    """enum, from strings."""

    def __init__(self, path: str, symbols: Sequence[str]) -> None:
        super().__init__(path)
        self._numbers = {symbol: number for number, symbol in enumerate(symbols)}

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        coded = array.dictionary_encode()
        names = coded.dictionary.to_pylist()
        numbers = np.array([self._numbers.get(name, -1) for name in names], np.int64)
        codes = to_numpy(coded.indices)
        if not len(codes):
            return PreparedVarints(np.zeros(0, np.int64))
        if -1 in numbers:
            known = ", ".join(list(self._numbers)[:20])
            self.refuse(
                numbers[codes] < 0,
                row_of,
                lambda index: (
                    f"{cut(names[codes[index]], 40)!r} is not a symbol of the enum: {known}"
                ),
            )
        if len(self._numbers) <= 64:  # each number has one byte
            return PreparedNumbers((2 * numbers).astype(np.uint8).take(codes))
        return PreparedVarints(numbers[codes])


class DecimalEncoder(ValueEncoder):
    """Two's complement with the highest byte first: in the fewest bytes (bytes) or in `size` bytes
    (fixed). `source`: the column's type; `precision` and `scale` are the schema's."""

    def __init__(
        self, path: str, source: pa.DataType, precision: int, scale: int, size: int | None
    ) -> None:
        super().__init__(path)
        self._precision = precision
        more_digits = scale - source.scale
        self._rescaled = (
            pa.decimal128(source.precision + more_digits, scale) if more_digits else None
        )
        self._size = size

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        if self._rescaled is not None:
            array = array.cast(self._rescaled)
        count = len(array)
        words = decimals.words_of(array)
        bad = decimals.exceeds(words, 10**self._precision - 1)
        self.refuse(bad, row_of, f"the decimal has more than {self._precision} digits")
        width = max(16, self._size or 0)
        data = np.empty((count, width), np.uint8)
        data[:, width - 16 :] = decimals.to_bytes(words)
        signs = (words[:, 1].view(np.int64) >> 63).astype(np.uint8)
        data[:, : width - 16] = signs[:, None]
        if self._size is not None:
            sizes = np.full(count, self._size, np.int64)
        else:
            sizes = decimals.min_sizes(words)
        starts = width * np.arange(1, count + 1) - sizes
        prepared_class = PreparedBlobs if self._size is not None else PreparedPrefixed
        return prepared_class(data.ravel(), starts, sizes)


# --- records, arrays, maps ----------------------------------------------------------------------


class RecordEncoder(ValueEncoder):
    """Records, from structs. `fields`, in the schema's order: an encoder and the index of its
    column in the struct; None for a field that the column lacks, of which the encoder writes the
    default."""

    def __init__(self, path: str, fields: Sequence[tuple[ValueEncoder, int | None]]) -> None:
        super().__init__(path)
        self._fields = fields

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        return PreparedSequence(
            [
                encoder.prepare(array if index is None else array.field(index), row_of)
                for encoder, index in self._fields
            ]
        )


class PreparedSequence(Prepared):
    """Values of which each consists of several parts, one after the other: fields of a record."""

    def __init__(self, parts: Sequence[Prepared]) -> None:
        total: Any = 0
        for part in parts:
            total = total + part.sizes
        super().__init__(total, sum(part.min_size for part in parts))
        self._parts = parts

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        rest = self.min_size  # the fewest bytes that are written behind the part, later
        for part in self._parts:
            rest -= part.min_size
            part.write(out, at, slack.before(rest))
            at = at + part.sizes


class ArrayEncoder(ValueEncoder):
    """Arrays as one block of all items, followed by the count 0."""

    def __init__(self, path: str, item: ValueEncoder) -> None:
        super().__init__(path)
        self._item = item

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        self.refuse_nulls(array, row_of)
        offsets = blob_offsets(array).astype(np.int64)
        counts = np.diff(offsets)
        begin, count = int(offsets[0]), int(offsets[-1] - offsets[0])

        ends = np.cumsum(counts)
        items = self._prepare_items(
            array, begin, count, lambda item: row_of(int(np.searchsorted(ends, item, "right")))
        )
        byte_offsets = offsets_of(np.broadcast_to(items.sizes, count))
        if isinstance(items, PreparedVarints) and len(counts):
            return _PreparedNumberArrays(counts, items, byte_offsets)
        return _PreparedArrays(counts, items, byte_offsets)

    def _prepare_items(self, array: pa.Array, begin: int, count: int, row_of: RowOf) -> Prepared:
        """Prepare `count` items of the lists in `array`, from item `begin` on."""
        return self._item.prepare(array.values.slice(begin, count), row_of)


class MapEncoder(ArrayEncoder):
    """Maps, whose items are a key and its value."""

    def __init__(self, path: str, key: ValueEncoder, value: ValueEncoder) -> None:
        super().__init__(path, value)
        self._key = key

    def _prepare_items(self, array: pa.Array, begin: int, count: int, row_of: RowOf) -> Prepared:
        return PreparedSequence(
            [
                self._key.prepare(array.keys.slice(begin, count), row_of),
                self._item.prepare(array.items.slice(begin, count), row_of),
            ]
        )


class _PreparedNumberArrays(Prepared):
    """Arrays of varints: the bytes of each array are joined first, and written as a string is, with
    the count of items in front. `byte_offsets`: as of `_PreparedArrays`."""

    def __init__(self, counts: Ints, items: PreparedVarints, byte_offsets: Ints) -> None:
        item_ends = np.cumsum(counts)
        starts = byte_offsets[item_ends - counts]
        lengths = byte_offsets[item_ends] - starts
        self._inner = PreparedPrefixed(items.join(), starts, lengths, counts)
        # An empty array is only its count, 0; others have a 0 behind them.
        is_filled = counts > 0
        shortest = self._inner.min_size + 1 if self._inner.min_size > 1 else 1
        super().__init__(self._inner.sizes + is_filled, shortest)

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        self._inner.write(out, at, slack)
        out[at + self.sizes - 1] = 0


class _PreparedArrays(Prepared):
    """Arrays with these `counts` of items. `byte_offsets`: where each of the `items` begins among
    the bytes of all items."""

    def __init__(self, counts: Ints, items: Prepared, byte_offsets: Ints) -> None:
        self._byte_offsets = byte_offsets
        self._first = np.cumsum(counts) - counts  # the index of each array's first item
        self._counts = counts
        self._front = PreparedVarints(counts)
        self._items = items
        content = byte_offsets[self._first + counts] - byte_offsets[self._first]
        # An empty array is only its count, 0; others have a 0 behind them.
        super().__init__(content + np.where(counts > 0, self._front.sizes + 1, 1), 1)

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        if not len(at):
            return
        self._front.write(out, at, NO_SLACK)
        out[at + self.sizes - 1] = 0
        begin = at + self._front.sizes - self._byte_offsets[self._first]
        positions = np.repeat(begin, self._counts) + self._byte_offsets[:-1]
        self._items.write(out, positions, Slack(0, self._items.min_size))


# --- unions -------------------------------------------------------------------------------------


class UnionEncoder(ValueEncoder):
    """Unions. `null`: the number of the null branch, None if there is none. `branches`: number and
    encoder of the others that are written. With `has_members` the column is a struct of a member
    for each of `branches`, of which exactly one has a value."""

    def __init__(
        self,
        path: str,
        null: int | None,
        branches: Sequence[tuple[int, ValueEncoder]],
        *,
        has_members: bool = False,
    ) -> None:
        super().__init__(path)
        self._null = null
        self._branches = branches
        self._has_members = has_members

    def prepare(self, array: pa.Array, row_of: RowOf) -> Prepared:
        if self._null is None:
            self.refuse_nulls(array, row_of)
        valid = is_valid(array)
        parts: list[tuple[int, Ints, Prepared]] = []
        if self._null is not None and not valid.all():
            if len(self._branches) == 1 and not self._has_members:
                number, encoder = self._branches[0]
                prepared = encoder.prepare_nullable(array, row_of, valid)
                if prepared is not None:
                    return _PreparedNullable(self._null, number, valid, prepared)
            parts.append((self._null, np.flatnonzero(~valid), PreparedConstant(b"")))
        if self._has_members:
            columns = [array.field(index) for index in range(len(self._branches))]
            masks = [is_valid(column) & valid for column in columns]
            set_members = np.sum(masks, axis=0)
            self.refuse(
                valid & (set_members != 1),
                row_of,
                lambda index: f"{set_members[index]} members of the union have a value, not one",
            )
        else:
            columns, masks = [array], [valid]
        for (number, encoder), column, mask in zip(self._branches, columns, masks, strict=True):
            if not mask.any():
                continue
            indexes = np.flatnonzero(mask)
            if len(indexes) < len(column):
                column = column.take(from_numpy(indexes))
            prepared = encoder.prepare(column, _row_of_selected(row_of, indexes))
            parts.append((number, indexes, prepared))
        return _PreparedBranches(len(array), parts)


def _row_of_selected(row_of: RowOf, indexes: Ints) -> RowOf:
    """Return `row_of` for the values that `indexes` selects."""
    return lambda index: row_of(int(indexes[index]))


class _PreparedNullable(Prepared):
    """Values of one branch, or null; each has the number of its branch in front. `null`, `number`:
    the numbers of the null branch, and of the other."""

    def __init__(self, null: int, number: int, valid: Flags, values: Prepared) -> None:
        self._numbers: Prepared
        if max(null, number) < 64:
            self._numbers = PreparedNumbers(
                np.where(valid, np.uint8(2 * number), np.uint8(2 * null))
            )
        else:
            self._numbers = PreparedVarints(np.where(valid, number, null))
        self._values = values
        super().__init__(self._numbers.sizes + values.sizes, self._numbers.min_size)

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        self._numbers.write(out, at, slack)
        self._values.write(out, at + self._numbers.sizes, slack)


class _PreparedBranches(Prepared):
    """Values of several branches. `parts` has for each branch its number, the indexes of the values
    that have it, and these values; `count`: of all values."""

    def __init__(self, count: int, parts: Sequence[tuple[int, Ints, Prepared]]) -> None:
        self._parts = [
            (PreparedConstant(zigzag_bytes(number)), indexes, values)
            for number, indexes, values in parts
        ]
        sizes = np.zeros(count, np.int64)
        for front, indexes, values in self._parts:
            sizes[indexes] = values.sizes + front.min_size
        super().__init__(sizes, int(sizes.min()) if count else 0)

    def write(self, out: Bytes, at: Ints, slack: Slack) -> None:
        for front, indexes, values in self._parts:
            positions = at if len(indexes) == len(at) else at[indexes]
            front.write(out, positions, NO_SLACK)
            values.write(out, positions + front.min_size, slack)
