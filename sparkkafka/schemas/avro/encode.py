"""Encodes one Arrow column as Avro payloads, chunk by chunk.

There is a ValueEncoder for each Avro type; `resolve.py` chooses them. It checks the values and
returns columns of bytes, a few for each field. `byte_columns.join` puts all of them together, row
by row.

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
from sparkkafka.protocol.columns.byte_columns import (
    BinaryColumn,
    ByteColumn,
    VarintColumn,
    binary_of,
    blobs_of,
    constant,
    counts_of,
    join,
    numbers_of,
    only_valid,
    regroup,
)
from sparkkafka.protocol.records.arrow import bits, blob_offsets, from_numpy, is_valid, to_numpy
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import encode_chunks, offsets_of, spread_bytes
from sparkkafka.schemas.avro.types import UUID_DIGITS, rescale_times
from sparkkafka.schemas.schema_errors import cut, label
from sparkkafka.schemas.values import ValueRowError, type_name


class AvroEncoder:
    """Encodes a column of type `source` in Avro's binary form (a `values.Encoder`)."""

    def __init__(self, encoder: ValueEncoder, source: pa.DataType) -> None:
        self._encoder = encoder
        self._source = source

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """Return the payload of each value, after `prefix`: binary, or large_binary above 2 GiB."""
        if values.type != self._source:
            raise OptionError(
                f"the column is {type_name(values.type)}, but it was {type_name(self._source)} "
                "when its encoder was made"
            )
        encode = self._encoder.encode
        return encode_chunks(
            values, prefix, lambda valid, rows: encode(valid, lambda index: int(rows[index]))
        )


RowOf = Callable[[int], int]
"""Returns the row of the encoded column that a value belongs to, by the value's index in the array
that is being encoded."""


class ValueEncoder:
    """Encodes the values of one type. Raises ValueRowError for a value that does not fit."""

    reads_nulls = False
    """Whether `_encode` may be called for an array with nulls: their bytes mean nothing then."""

    def __init__(self, path: str) -> None:
        self.path = path

    def encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Check the values, which must not be null, and return their bytes."""
        self.refuse_nulls(array, row_of)
        return self._encode(array, row_of)

    def encode_valid(self, array: pa.Array, row_of: RowOf, valid: Flags) -> list[ByteColumn]:
        """Check the values that are `valid` and return their bytes; the others get no bytes."""
        if self.reads_nulls:
            return [only_valid(column, valid) for column in self._encode(array, row_of)]
        rows = np.flatnonzero(valid)
        values = array.take(from_numpy(rows))
        columns = self._encode(values, lambda index: row_of(int(rows[index])))
        return [blobs_of(spread_bytes(join(columns, len(rows)), valid))]

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the bytes of values that are not null."""
        raise NotImplementedError

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
        self._columns = constant(encoded)
        self._only_nulls = only_nulls

    def encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        return self._encode(array, row_of)

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        if self._only_nulls and array.null_count < len(array):
            self.refuse(is_valid(array), row_of, "a value where the Avro schema has only null")
        return self._columns


# --- numbers ------------------------------------------------------------------------------------


class BooleanEncoder(ValueEncoder):
    """boolean: the byte 0 or 1."""

    reads_nulls = True

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        if not len(array):
            return []
        return [numbers_of(bits(array.buffers()[1], array.offset, len(array)))]


class FloatEncoder(ValueEncoder):
    """float and double. `source`: the NumPy type of the column's numbers; `written`: the
    schema's."""

    reads_nulls = True

    def __init__(self, path: str, source: Any, written: Any) -> None:
        super().__init__(path)
        self._source = source
        self._written = written

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        return [numbers_of(_to_numbers(array, self._source).astype(self._written, copy=False))]


class LongEncoder(ValueEncoder):
    """int and long, from numbers of the NumPy type `source`; or from times in microseconds,
    converted to `unit` (a key of NANOSECONDS)."""

    reads_nulls = True

    def __init__(self, path: str, source: Any, unit: str = "micros") -> None:
        super().__init__(path)
        self._source = source
        self._unit = unit

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the varint of each number. Raises ValueRowError for a time beyond 64 bits."""
        values = _to_numbers(array, self._source)
        if self._unit != "micros":
            if array.null_count:  # the number of a null may be any, and must not be checked
                values = values * is_valid(array)
            values, bad = rescale_times(values, "micros", self._unit)
            if bad is not None:
                self.refuse(bad, row_of, "the time is out of the range of 64 bits of nanoseconds")
        return [VarintColumn(values)]


def _to_numbers(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the numbers of an array; the number at a null means nothing."""
    if not len(array):
        return np.zeros(0, dtype)
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset : array.offset + len(array)]


# --- strings and bytes --------------------------------------------------------------------------


class BytesEncoder(ValueEncoder):
    """string and bytes, from strings or binaries, also large ones."""

    reads_nulls = True

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        return _with_length(blobs_of(array))


def _with_length(blobs: BinaryColumn) -> list[ByteColumn]:
    """Return the bytes with their number in front."""
    return [counts_of(blobs.lengths), blobs]


def _equally_long(data: Any, size: int) -> BinaryColumn:
    """Return the column of the values of `size` bytes that are concatenated in `data`."""
    count = len(data) // size if size else 0
    return blobs_of(binary_of(np.arange(count + 1, dtype=np.int32) * size, pa.py_buffer(data)))


class FixedEncoder(ValueEncoder):
    """fixed, from binaries of its size."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self._size = size

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the bytes of each value. Raises ValueRowError for a value of another size."""
        blobs = blobs_of(array)
        lengths = blobs.lengths
        self.refuse(
            lengths != self._size,
            row_of,
            lambda index: f"{lengths[index]:,} bytes for a fixed of {self._size:,}",
        )
        return [blobs]


class UuidEncoder(ValueEncoder):
    """A fixed of 16 bytes, from texts of 36 characters."""

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the 16 bytes of each text. Raises ValueRowError for a text that is not a UUID."""
        data, offsets = bytes_of(array)
        self.refuse(np.diff(offsets) != 36, row_of, "the text is no UUID of 36 characters")
        text = data[offsets[0] : offsets[-1]].reshape(-1, 36)
        digits = text[:, UUID_DIGITS]
        bad = (text[:, [8, 13, 18, 23]] != ord("-")).any(axis=1)
        uuids = b""
        try:
            uuids = unhexlify(digits.tobytes())
        except ValueError:
            bad |= ~_IS_HEX[digits].all(axis=1)
        self.refuse(bad, row_of, "the text is no UUID (8-4-4-4-12 hexadecimal digits)")
        return [_equally_long(uuids, 16)]


def bytes_of(array: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of a string or binary array, and the offsets of its values in them."""
    content = array.buffers()[2] if len(array) else None
    return np.frombuffer(content or b"", np.uint8), blob_offsets(array).astype(np.int64)


_IS_HEX: Final = np.array([chr(byte) in string.hexdigits for byte in range(256)])


class EnumEncoder(ValueEncoder):
    """enum, from strings."""

    def __init__(self, path: str, symbols: Sequence[str]) -> None:
        super().__init__(path)
        self._numbers = {symbol: number for number, symbol in enumerate(symbols)}

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the number of each symbol, as varints. Raises ValueRowError for a text that is not
        a symbol, with its row, which `row_of` returns for an index in the array."""
        coded = array.dictionary_encode()
        names = coded.dictionary.to_pylist()
        numbers = np.array([self._numbers.get(name, -1) for name in names], np.int64)
        codes = to_numpy(coded.indices)
        if not len(codes):
            return []
        if -1 in numbers:
            known = ", ".join(list(self._numbers)[:20])
            self.refuse(
                numbers[codes] < 0,
                row_of,
                lambda index: (
                    f"{cut(names[codes[index]], 40)!r} is not a symbol of the enum: {known}"
                ),
            )
        return [counts_of(numbers.take(codes))]


class DecimalEncoder(ValueEncoder):
    """Two's complement with the highest byte first: in the fewest bytes (bytes) or in `size` bytes
    (fixed). `source`: the column's type; `precision` and `scale` are the schema's."""

    def __init__(
        self, path: str, source: pa.DataType, precision: int, scale: int, size: int | None
    ) -> None:
        super().__init__(path)
        self._precision = precision
        more_digits = scale - source.scale
        # The type of the column with the scale of the schema; None if it has that.
        self._rescaled = (
            pa.decimal128(source.precision + more_digits, scale) if more_digits else None
        )
        self._size = size

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the bytes of each decimal. Raises ValueRowError for one with too many digits."""
        if self._rescaled is not None:
            array = array.cast(self._rescaled)
        count = len(array)
        words = decimals.words_of(array)
        bad = decimals.exceeds(words, 10**self._precision - 1)
        self.refuse(bad, row_of, f"the decimal has more than {self._precision} digits")
        width = max(16, self._size or 0)  # 16: of a decimal128; a fixed may have more
        data = np.empty((count, width), np.uint8)
        data[:, width - 16 :] = decimals.to_bytes(words)
        signs = (words[:, 1].view(np.int64) >> 63).astype(np.uint8)
        data[:, : width - 16] = signs[:, None]
        if self._size is not None:
            return [_equally_long(data[:, width - self._size :].ravel(), self._size)]
        sizes = decimals.min_sizes(words)
        is_written = np.arange(width) >= (width - sizes)[:, None]
        joined = binary_of(offsets_of(sizes, np.int32), pa.py_buffer(data[is_written]))
        return _with_length(blobs_of(joined))


# --- records, arrays, maps ----------------------------------------------------------------------


class RecordEncoder(ValueEncoder):
    """Records, from structs. `fields`, in the schema's order: an encoder and the index of its
    column in the struct; None for a field that the column lacks, of which the encoder writes the
    default."""

    def __init__(self, path: str, fields: Sequence[tuple[ValueEncoder, int | None]]) -> None:
        super().__init__(path)
        self._fields = fields

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        columns: list[ByteColumn] = []
        for encoder, index in self._fields:  # None: a ConstantEncoder, which only counts rows
            columns += encoder.encode(array if index is None else array.field(index), row_of)
        return columns


class ArrayEncoder(ValueEncoder):
    """Arrays as one block of all items, followed by the count 0. An empty array is only that."""

    def __init__(self, path: str, item: ValueEncoder) -> None:
        super().__init__(path)
        self._item = item

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return, for each list: the count of its items, unless it is empty; the items; the count
        0."""
        offsets = blob_offsets(array)
        begin, end = int(offsets[0]), int(offsets[-1])
        counts = np.diff(offsets)
        columns = self._encode_items(
            array,
            slice(begin, end),
            # the row of the array that has this item
            lambda item: row_of(int(np.searchsorted(offsets, begin + item, "right")) - 1),
        )
        items = join(columns, end - begin)
        content = blobs_of(regroup(items, offsets - begin))
        return [only_valid(counts_of(counts), counts > 0), content, *constant(b"\0")]

    def _encode_items(self, array: pa.Array, items: slice, row_of: RowOf) -> list[ByteColumn]:
        """Encode some items of the lists in `array`."""
        return self._item.encode(array.values[items], row_of)


class MapEncoder(ArrayEncoder):
    """Maps, whose items are a key and its value."""

    def __init__(self, path: str, key: ValueEncoder, value: ValueEncoder) -> None:
        super().__init__(path, value)
        self._key = key

    def _encode_items(self, array: pa.Array, items: slice, row_of: RowOf) -> list[ByteColumn]:
        keys = self._key.encode(array.keys[items], row_of)
        return keys + self._item.encode(array.items[items], row_of)


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
        self._null_branch = null
        self._branches = branches
        self._has_members = has_members

    def encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the branch number of each value, then the bytes of the value in the columns of its
        branch. Raises ValueRowError for a null without a null branch, and for a struct in which not
        exactly one member has a value."""
        if self._null_branch is None:
            self.refuse_nulls(array, row_of)
        valid = is_valid(array)
        columns, masks = [array], [valid]
        if self._has_members:
            columns = array.flatten()  # null where the struct is
            masks = [is_valid(column) for column in columns]
            set_members = np.sum(masks, axis=0)
            self.refuse(
                valid & (set_members != 1),
                row_of,
                lambda index: f"{set_members[index]} members of the union have a value, not one",
            )
        elif not array.null_count:
            number, encoder = self._branches[0]
            return constant(zigzag_bytes(number)) + encoder.encode(array, row_of)
        null = self._null_branch or 0
        is_byte = max(null, max(self._branches)[0]) < 64
        dtype: Any = np.uint8 if is_byte else np.uint32
        # The zigzag code (2 n for branch n) of each value, less that of null: summed over branches,
        # of which all but one have 0. (A negative one wraps around, until that of null is added.)
        codes: NDArray[Any] | None = None
        written: list[ByteColumn] = []
        for (number, encoder), column, mask in zip(self._branches, columns, masks, strict=True):
            if mask.any():
                of_branch = mask.view(np.uint8) * np.array(2 * (number - null)).astype(dtype)
                codes = of_branch if codes is None else codes + of_branch
                written += encoder.encode_valid(column, row_of, mask)
        if codes is None:
            codes = np.zeros(len(array), dtype)
        if null:
            codes += dtype(2 * null)
        return [numbers_of(codes) if is_byte else VarintColumn(codes, is_zigzag=False), *written]
