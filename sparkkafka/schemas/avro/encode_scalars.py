"""Writers of leaf types: an Arrow array -> bytes at given places.

Writing has two steps. `prepare` says how many bytes each value takes; then all is allocated at
once, and `write` fills in the bytes of all values at their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import bits, is_valid
from sparkkafka.protocol.records.varint_columns import (
    NO_ROOM,
    PAD,
    Bytes,
    Ints,
    Room,
    Sizes,
    copy_pieces,
    dense,
    encode,
    put,
    put_rest,
    put_varints,
    windows,
    zigzag,
)
from sparkkafka.schemas.avro.cursor import Bools
from sparkkafka.schemas.avro.scalars import beyond
from sparkkafka.schemas.avro.schema import place
from sparkkafka.schemas.values import ValueRowError

Rows = Callable[[int], int] | None
"""The row of the given column that an entry belongs to; None if they are the rows themselves."""


class Filler:
    """Values that are ready to be written; `sizes` are their bytes, at least `least`."""

    def __init__(self, sizes: Sizes, least: int) -> None:
        self.sizes = sizes
        self.least = least

    def keep(self, valid: Bools | None) -> None:
        """Nothing is written where not valid."""
        if valid is not None:
            self.sizes = self.sizes * valid
            self.least = 0

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        """Fills in each value at its place."""
        raise NotImplementedError


class Writer:
    """One type. `rows` of `prepare` says to which row each value belongs. Raises ValueRowError."""

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        raise NotImplementedError

    def prepare_valid(self, array: pa.Array, rows: Rows, valid: Bools) -> Filler | None:
        """As `prepare`, of values that may be null, which get no bytes: all at once costs less than
        to take out the others. None if the type has no such way."""
        return None

    def refuse(self, bad: Bools, rows: Rows, reason: str | Callable[[int], str]) -> None:
        """Raises ValueRowError for the first value of the mask, if there is one. `reason` may be a
        function of the value's index."""
        entries = np.flatnonzero(bad)
        if not len(entries):
            return
        entry = int(entries[0])
        words = reason if isinstance(reason, str) else reason(entry)
        row = entry if rows is None else rows(entry)
        raise ValueRowError(row, f"{place(self.path)}: {words}")

    def need_all(self, array: pa.Array, rows: Rows) -> None:
        """Refuses nulls."""
        if array.null_count:
            self.refuse(~is_valid(array), rows, "null, which the Avro schema does not allow here")


def fixed_width(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """The values of an array of numbers; what stands under a null means nothing."""
    if not len(array):
        return np.zeros(0, dtype)
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset : array.offset + len(array)]


class ConstantWriter(Writer):
    """The same bytes for each value: null, which has none, and defaults."""

    def __init__(self, path: str, written: bytes, *, null: bool = False) -> None:
        super().__init__(path)
        self._filler = _Constant(np.frombuffer(written, np.uint8))
        self._null = null

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        if self._null and array.null_count < len(array):
            self.refuse(is_valid(array), rows, "a value where the Avro schema has null alone")
        return self._filler


class _Constant(Filler):
    def __init__(self, data: Bytes) -> None:
        super().__init__(len(data), len(data))
        self._data = data

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        size = len(self._data)
        if size and size <= 8 <= size + room.after:
            word = int.from_bytes(self._data.tobytes(), "little")
            windows(out, "<u8")[at] = np.uint64(word)
            return
        for index, byte in enumerate(self._data.tolist()):
            out[at + index] = byte


class BooleanWriter(Writer):
    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        if not len(array):
            return Plain(np.zeros(0, np.uint8))
        return Plain(bits(array.buffers()[1], array.offset, len(array)))


class FloatWriter(Writer):
    def __init__(self, path: str, given: Any, written: Any) -> None:
        super().__init__(path)
        self._given = given
        self._written = written

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        return Plain(fixed_width(array, self._given).astype(self._written, copy=False))

    def prepare_valid(self, array: pa.Array, rows: Rows, valid: Bools) -> Filler | None:
        found = Plain(fixed_width(array, self._given).astype(self._written, copy=False))
        found.keep(valid)
        return found


class Plain(Filler):
    """Numbers as they stand in memory, lowest byte first."""

    def __init__(self, values: NDArray[Any]) -> None:
        size = values.dtype.itemsize
        super().__init__(size, size)
        self._values = values

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        if len(at):
            words = self._values.view(f"<u{self._values.dtype.itemsize}")
            put(out, at, words, self.sizes, self.least, room)


Change = Callable[[Ints, Writer, Rows], Ints]


class LongWriter(Writer):
    """int and long, of numbers, dates and times; `change` makes the unit of the schema."""

    def __init__(self, path: str, given: Any, change: Change | None = None) -> None:
        super().__init__(path)
        self._given = given
        self._change = change

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        values = fixed_width(array, self._given).astype(np.int64, copy=False)
        if self._change is not None:
            values = self._change(values, self, rows)
        return Varints(values)

    def prepare_valid(self, array: pa.Array, rows: Rows, valid: Bools) -> Filler | None:
        # What stands under a null may be anything, and must not be looked at.
        values = fixed_width(array, self._given).astype(np.int64, copy=False) * valid
        if self._change is not None:
            values = self._change(values, self, rows)
        return Varints(values, valid)


class Varints(Filler):
    """Zigzag varints. Where not `valid`, nothing."""

    def __init__(self, values: Ints, valid: Bools | None = None) -> None:
        self._encoded = encode(zigzag(values))
        super().__init__(self._encoded.sizes, self._encoded.least)
        self.keep(valid)

    def packed(self) -> Bytes:
        """The bytes of all, one behind the other."""
        return dense(self._encoded._replace(sizes=self.sizes))

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        put_varints(out, at, self._encoded._replace(sizes=self.sizes, least=self.least), room)


def to_millis(values: Ints, writer: Writer, rows: Rows) -> Ints:
    """Down, also before 1970, as Spark does."""
    floored: Ints = values // 1000
    return floored


def to_nanos(values: Ints, writer: Writer, rows: Rows) -> Ints:
    most = (2**63 - 1) // 1000
    bad = (values > most) | (values < -most)
    writer.refuse(bad, rows, "the time is out of the range of 64 bits of nanoseconds")
    return values * 1000


# --- texts and bytes ----------------------------------------------------------------------------


class BlobWriter(Writer):
    """string and bytes, of strings or binaries, also large ones."""

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        return Counted(*blobs(array))

    def prepare_valid(self, array: pa.Array, rows: Rows, valid: Bools) -> Filler | None:
        data, starts, lengths = blobs(array)
        return Counted(data, starts, lengths * valid, valid=valid)


def blobs(array: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """Content, starts and lengths."""
    kind = array.type
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    _, offsets, content = array.buffers()
    if not len(array) or offsets is None:
        nothing = np.zeros(len(array), np.int64)
        return np.zeros(0, np.uint8), nothing, nothing
    edges = offsets_of(array, large=large)
    data = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return data, edges[:-1], edges[1:] - edges[:-1]


def offsets_of(array: pa.Array, *, large: bool) -> Ints:
    """Where the content of each value begins, and the end, of an array that is not empty."""
    edges: NDArray[Any] = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    return edges[array.offset : array.offset + len(array) + 1].astype(np.int64)


class Blobs(Filler):
    """Pieces of bytes. Those of a row lie behind those of the row before, or where all are equally
    long."""

    def __init__(self, data: Bytes, starts: Ints, lengths: Ints) -> None:
        self._data = data
        self._starts = starts
        self._lengths = lengths
        super().__init__(lengths, int(lengths.min()) if len(lengths) else 0)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        copy_pieces(self._data, self._starts, self._lengths, out, at)


class Counted(Filler):
    """Pieces of bytes, which ascend, each behind a number: its length, or one of the `counts`.
    Where not `valid`, nothing: the length there is 0."""

    def __init__(
        self,
        data: Bytes,
        starts: Ints,
        lengths: Ints,
        counts: Ints | None = None,
        valid: Bools | None = None,
    ) -> None:
        self._data = data
        self._starts = starts
        self.lengths = lengths
        self._longest = int(lengths.max()) if len(lengths) else 0
        shortest = int(lengths.min()) if len(lengths) else 0
        self._numbers = lengths if counts is None else counts
        most = self._longest if counts is None else int(counts.max())
        self._front: Varints | None = None
        if most < 64 and self._longest <= _MAX_OF_WORDS:
            super().__init__(lengths + 1, shortest + 1)
        else:
            self._front = Varints(self._numbers)
            super().__init__(lengths + self._front.sizes, shortest + self._front.least)
            self._front.keep(valid)
        self.keep(valid)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        if not len(at):
            return
        front = self._front
        if front is not None:
            front.write(out, at, room.before(self.least - front.least))
            copy_pieces(self._data, self._starts, self.lengths, out, at + front.sizes)
            return
        # A copy with a byte in front and more behind. The number is the byte in front of the first
        # seven, and written with them.
        begin, end = int(self._starts[0]), int(self._starts[-1] + self.lengths[-1])
        data = np.empty(end - begin + 1 + PAD, np.uint8)
        data[1 : 1 + end - begin] = self._data[begin:end]
        starts = self._starts - begin if begin else self._starts
        first = windows(data, "<u8")[starts]
        first &= np.uint64(0xFFFFFFFFFFFFFF00)
        first |= (self._numbers << 1).view(np.uint64)
        put(out, at, first, self.sizes, self.least, room)
        if self._longest > 7:
            put_rest(out, at, data, starts, self.sizes, self.least, room)


_MAX_OF_WORDS: Final = 48
"""Longer texts are copied by other means."""


class FixedWriter(Writer):
    """A fixed, of binaries of just its size."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self._size = size

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        data, starts, lengths = blobs(array)
        self.refuse(
            lengths != self._size,
            rows,
            lambda entry: f"{lengths[entry]:,} bytes for a fixed of {self._size:,}",
        )
        return Blobs(data, starts, lengths)


class UuidWriter(Writer):
    """A fixed of 16 bytes, of texts of 36 characters."""

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        data, starts, lengths = blobs(array)
        self.refuse(lengths != 36, rows, "the text is no UUID of 36 characters")
        if not len(array):
            return Blobs(data, starts, lengths)
        text = data[starts[:, None] + np.arange(36)]
        digits = _DIGITS[text[:, _DIGIT_PLACES]]
        bad = (digits > 15).any(axis=1) | (text[:, _DASH_PLACES] != ord("-")).any(axis=1)
        self.refuse(bad, rows, "the text is no UUID (8-4-4-4-12 hexadecimal digits)")
        made = (digits[:, 0::2] << 4 | digits[:, 1::2]).ravel()
        count = len(array)
        return Blobs(made, np.arange(count) * 16, np.full(count, 16))


_DASH_PLACES: Final = np.array([8, 13, 18, 23])
_DIGIT_PLACES: Final = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])
_DIGITS: Final = np.full(256, 0xFF, np.uint8)
for _value, _pair in enumerate(zip(b"0123456789abcdef", b"0123456789ABCDEF", strict=True)):
    _DIGITS[list(_pair)] = _value


class EnumWriter(Writer):
    def __init__(self, path: str, symbols: Sequence[str]) -> None:
        super().__init__(path)
        self._numbers = {symbol: number for number, symbol in enumerate(symbols)}
        self._narrow = len(symbols) <= 64

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        coded = array.dictionary_encode()
        names = coded.dictionary.to_pylist()
        numbers = np.array([self._numbers.get(name, -1) for name in names], np.int64)
        codes = fixed_width(coded.indices, np.int32)
        if not len(codes):
            return Varints(np.zeros(0, np.int64))
        if -1 in numbers:
            known = ", ".join(list(self._numbers)[:20])
            self.refuse(
                numbers[codes] < 0,
                rows,
                lambda entry: f"{_short(names[codes[entry]])} is no symbol of the enum: {known}",
            )
        if self._narrow:
            return Plain((2 * numbers).astype(np.uint8).take(codes))
        return Varints(numbers[codes])


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


# --- decimals -----------------------------------------------------------------------------------


class DecimalWriter(Writer):
    """Two's complement, highest byte first: in the fewest bytes, or in those of a fixed."""

    def __init__(
        self, path: str, given: pa.DataType, precision: int, scale: int, size: int | None
    ) -> None:
        super().__init__(path)
        self._precision = precision
        more = scale - given.scale
        self._rescaled = pa.decimal128(given.precision + more, scale) if more else None
        self._size = size

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        if self._rescaled is not None:
            array = array.cast(self._rescaled)
        count = len(array)
        words = np.zeros((count, 2), np.uint64)
        if count:
            stored = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
            words = stored[array.offset : array.offset + count]
        most = 10**self._precision - 1
        bad = beyond(words, most)
        self.refuse(bad, rows, f"the decimal has more than {self._precision} digits")
        if self._size is not None:
            return _Decimals(words, np.full(count, self._size, np.int64))
        return _Decimals(words, _decimal_sizes(words), Varints)


def _decimal_sizes(words: NDArray[np.uint64]) -> Ints:
    """The fewest bytes that hold each number and its sign."""
    sign = (words[:, 1].view(np.int64) >> 63).view(np.uint64)
    low, high = words[:, 0] ^ sign, words[:, 1] ^ sign
    sizes = np.ones(len(words), np.int64)
    for size in range(1, 16):
        bits = 8 * size - 1  # that so many bytes have beside the sign
        if bits < 64:
            longer = (high > 0) | (low >= np.uint64(1 << bits))
        else:
            longer = high >= np.uint64(1 << (bits - 64))
        if not longer.any():
            break
        sizes += longer
    return sizes


class _Decimals(Filler):
    def __init__(
        self,
        words: NDArray[np.uint64],
        lengths: Ints,
        front: Callable[[Ints], Filler] | None = None,
    ) -> None:
        self._words = words
        self._lengths = lengths
        self._front = front(lengths) if front else None
        least = int(lengths.min()) if len(lengths) else 0
        if self._front:
            super().__init__(lengths + self._front.sizes, least + self._front.least)
        else:
            super().__init__(lengths, least)

    def write(self, out: Bytes, at: Ints, room: Room) -> None:
        if not len(at):
            return
        if self._front:
            self._front.write(out, at, NO_ROOM)
            at = at + self._front.sizes
        last = at + self._lengths - 1
        sign = (self._words[:, 1].view(np.int64) >> 63).astype(np.uint8)
        for index in range(int(self._lengths.max())):
            if index < 16:
                word = self._words[:, index // 8]
                byte = (word >> np.uint64(8 * (index % 8))).astype(np.uint8)
            else:
                byte = sign
            rows = np.flatnonzero(self._lengths > index)
            out[last[rows] - index] = byte[rows]
