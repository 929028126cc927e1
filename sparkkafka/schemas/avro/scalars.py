"""Readers of leaf types: bytes -> one Arrow array with a value for each entry.

A parked entry (see `cursor.py`) gets its type's zero; whoever parked it makes that null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.varint_columns import Ints, words_at
from sparkkafka.schemas.avro.cursor import Bools, Cursor
from sparkkafka.schemas.avro.wires import Wire
from sparkkafka.schemas.values import BUDGET_PER_BYTE


class Reader:
    """Reads one value of each entry into an array of `type`; `wire` is how they are written;
    `defaults`: bytes of texts that a value may have without having been written."""

    defaults = 0

    def __init__(self, kind: pa.DataType, wire: Wire) -> None:
        self.type = kind
        self.wire = wire

    @property
    def path(self) -> str:
        return self.wire.path

    def read(self, cursor: Cursor) -> pa.Array:
        raise NotImplementedError


class NullReader(Reader):
    """All null, after moving over what is there."""

    def read(self, cursor: Cursor) -> pa.Array:
        self.wire.skip(cursor)
        return pa.nulls(len(cursor), self.type)


class RefusingReader(Reader):
    """Makes the row of each entry bad: the writer's type does not resolve to the reader's."""

    def __init__(self, kind: pa.DataType, wire: Wire, reason: str) -> None:
        super().__init__(kind, wire)
        self._reason = reason

    def read(self, cursor: Cursor) -> pa.Array:
        cursor.fail(np.ones(len(cursor), np.bool_), self.path, self._reason)
        return pa.nulls(len(cursor), self.type)


class BooleanReader(Reader):
    def read(self, cursor: Cursor) -> pa.Array:
        byte = cursor.bytes_at(cursor.at)
        cursor.skip(1, self.path)
        bad = byte > 1
        if bad.any():
            # As Java's and the specification's writers do; another number is a sign of damage.
            cursor.fail(bad, self.path, lambda entry: f"a boolean of {byte[entry]}, not 0 or 1")
        return from_numpy(byte == 1)


# --- numbers ------------------------------------------------------------------------------------

Convert = Callable[[NDArray[Any], Cursor, str], NDArray[Any]]
"""Numbers as written -> numbers of the type read; may make rows bad."""


class NumberReader(Reader):
    """int, long, float and double, to a type of numbers, dates or timestamps."""

    def __init__(
        self, kind: pa.DataType, wire: Wire, *, bits: int, floats: bool, convert: Convert
    ) -> None:
        super().__init__(kind, wire)
        self._bits = bits
        self._floats = floats
        self._convert = convert

    def read(self, cursor: Cursor) -> pa.Array:
        values: NDArray[Any]
        if not self._floats:
            values = cursor.longs(self.path, self._bits)
        else:
            word = words_at(cursor.chunk.data, cursor.at)
            cursor.skip(self._bits // 8, self.path)
            if self._bits == 64:
                values = word.view(np.float64)
            else:
                values = word.astype(np.uint32).view(np.float32)
        values = self._convert(values, cursor, self.path)
        buffer = pa.py_buffer(np.ascontiguousarray(values))
        return pa.Array.from_buffers(self.type, len(values), [None, buffer])


def as_numpy(dtype: Any, through: Any = None) -> Convert:
    """Numbers of another width; `through` a narrower one first, which rounds as Java does."""

    def convert(values: NDArray[Any], cursor: Cursor, path: str) -> NDArray[Any]:
        if through is not None:
            values = values.astype(through)
        return values.astype(dtype, copy=False)

    return convert


def times(factor: int, unit: str) -> Convert:
    """Times -> a finer unit, which is named for messages. A time beyond 64 bits of it is a bad
    value, as it is an error in Spark."""
    most = (2**63 - 1) // factor

    def convert(values: NDArray[Any], cursor: Cursor, path: str) -> NDArray[Any]:
        bad = (values > most) | (values < -most)
        if bad.any():
            cursor.fail(
                bad, path, lambda entry: f"the time {values[entry]:,} is out of range in {unit}"
            )
            values = np.where(bad, 0, values)
        return values * factor

    return convert


def floor_div(divisor: int) -> Convert:
    """Times -> a coarser unit, rounded down (toward the past, also before 1970)."""

    def convert(values: NDArray[Any], cursor: Cursor, path: str) -> NDArray[Any]:
        floored: NDArray[Any] = values // divisor
        return floored

    return convert


# --- texts and bytes ----------------------------------------------------------------------------


class BytesReader(Reader):
    def read(self, cursor: Cursor) -> pa.Array:
        return cursor.gather(*cursor.blobs(self.path))


class TextReader(Reader):
    """UTF-8, checked."""

    def read(self, cursor: Cursor) -> pa.Array:
        starts, lengths = cursor.blobs(self.path)
        raw = cursor.gather(starts, lengths)
        try:
            return raw.cast(self.type)
        except pa.ArrowInvalid:
            bad = ~_are_texts(raw)
        cursor.fail(bad, self.path, "the text is not UTF-8")
        return cursor.gather(starts, np.where(bad, 0, lengths)).cast(self.type)


def _are_texts(raw: pa.Array) -> Bools:
    """Which values are UTF-8: one by one, where some are not."""
    _, offsets, content = raw.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(raw) + 1].tolist()
    data = content.to_pybytes()
    fine = np.ones(len(raw), np.bool_)
    for row in range(len(raw)):
        try:
            data[edges[row] : edges[row + 1]].decode()
        except UnicodeDecodeError:
            fine[row] = False
    return fine


class FixedReader(Reader):
    def read(self, cursor: Cursor) -> pa.Array:
        starts, lengths = fixed_places(self, cursor)
        return cursor.gather(starts, lengths)


def fixed_places(reader: Reader, cursor: Cursor) -> tuple[Ints, Ints]:
    """Starts and lengths of a fixed, which has no bytes where the entry is parked: its size may be
    anything."""
    at = cursor.at
    size = reader.wire.least
    cursor.skip(size, reader.path)
    return at, np.where(cursor.live(), size, 0)


class UuidReader(Reader):
    """A fixed of 16 bytes as text: 8-4-4-4-12 hexadecimal digits."""

    def read(self, cursor: Cursor) -> pa.Array:
        at = np.minimum(cursor.at, cursor.chunk.park)
        cursor.skip(16, self.path)
        raw = cursor.chunk.data.take(at[:, None] + np.arange(16), mode="clip")
        text = np.full((len(at), 36), ord("-"), np.uint8)
        text[:, _HEX_PLACES] = _HEX[raw].reshape(len(at), 32)
        offsets = np.arange(len(at) + 1, dtype=np.int32) * np.int32(36)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(at), buffers)


_HEX: Final = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint8).reshape(256, 2)
_HEX_PLACES: Final = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])


class EnumReader(Reader):
    """Symbols as texts. `symbols`: of each number that the writer has, what it is for the reader;
    None where the reader has neither the symbol nor a default."""

    def __init__(
        self, wire: Wire, symbols: Sequence[str | None], names: Sequence[str], kind: pa.DataType
    ) -> None:
        super().__init__(kind, wire)
        self._names = names
        self._known = np.array([symbol is not None for symbol in symbols], np.bool_)
        self._all_known = bool(self._known.all())
        self._texts = texts([symbol or "" for symbol in symbols])
        self._lengths = np.array([len((symbol or "").encode()) for symbol in symbols], np.int64)
        self._longest = int(self._lengths.max(initial=0))

    def read(self, cursor: Cursor) -> pa.Array:
        index = cursor.longs(self.path, 32)
        count = len(self._names)
        bad = (index < 0) | (index >= count)
        if bad.any():
            cursor.fail(
                bad, self.path, lambda entry: f"symbol {index[entry]} of an enum that has {count}"
            )
            index = np.where(bad, 0, index)
        if not count:
            return pa.nulls(len(index), self.type)
        if not self._all_known:
            bad = ~self._known[index]
            names = self._names
            cursor.fail(
                bad,
                self.path,
                lambda entry: f"the reader's enum has no symbol {names[index[entry]]!r}",
            )
        # A byte becomes a symbol of any length.
        if self._longest > BUDGET_PER_BYTE and not cursor.chunk.budget.take(
            int(self._lengths[index].sum())
        ):
            words = "the symbols of all its items are too many bytes"
            cursor.fail(np.ones(len(index), np.bool_), self.path, words)
            return pa.nulls(len(index), self.type)
        taken = self._texts.take(from_numpy(index.astype(np.int32)))
        return taken if self.type == pa.string() else taken.cast(self.type)


def texts(values: Sequence[str]) -> pa.Array:
    """A string array, without pandas (see `protocol.records.arrow`)."""
    data = [value.encode() for value in values]
    offsets = np.zeros(len(data) + 1, np.int32)
    np.cumsum([len(each) for each in data], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(data), buffers)


# --- decimals -----------------------------------------------------------------------------------


class DecimalReader(Reader):
    """Two's complement with the highest byte first, of any length, or of a fixed one."""

    def __init__(
        self, wire: Wire, *, precision: int, scale: int, fixed: bool, kind: pa.DataType
    ) -> None:
        super().__init__(kind, wire)
        self._written = pa.decimal128(precision, scale)
        self._fixed = fixed

    def read(self, cursor: Cursor) -> pa.Array:
        if self._fixed:
            starts, lengths = fixed_places(self, cursor)
        else:
            starts, lengths = cursor.blobs(self.path)
            empty = lengths == 0
            if empty.any():  # Java: "Zero length BigInteger"
                cursor.fail(empty, self.path, "a decimal of no bytes")
        words = np.empty((len(starts), 2), np.uint64)
        words[:, 0], words[:, 1] = self._words(cursor, starts, lengths)
        most = 10**self._written.precision - 1
        bad = beyond(words, most)
        if bad.any():
            digits = self._written.precision
            cursor.fail(bad, self.path, f"a decimal of more than {digits} digits")
            words[bad] = 0
        buffer = pa.py_buffer(words)
        array = pa.Array.from_buffers(self._written, len(words), [None, buffer])
        return array if self.type == self._written else array.cast(self.type)

    def _words(self, cursor: Cursor, starts: Ints, lengths: Ints) -> tuple[Any, Any]:
        """Low and high word."""
        if len(lengths) and int(lengths.max()) > 16:
            starts, lengths = self._shortened(cursor, starts, lengths)
        first = words_at(cursor.chunk.data, starts).byteswap().view(np.int64)
        # Short: shifted down with its sign. The shift stays below 64: no bytes are parked.
        shift = 8 * (8 - np.clip(lengths, 1, 8))
        low: Any = first >> shift
        high: Any = low >> 63
        longer = np.flatnonzero(lengths > 8)
        if len(longer):
            size = lengths[longer]
            high[longer] = first[longer] >> (8 * (16 - size))
            last = words_at(cursor.chunk.data, starts[longer] + size - 8).byteswap()
            low[longer] = last.view(np.int64)
        none = lengths == 0
        if none.any():
            low[none] = high[none] = 0
        return low.view(np.uint64), high.view(np.uint64)

    def _shortened(self, cursor: Cursor, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """Numbers of more than 16 bytes without the bytes in front, which may only repeat the
        sign."""
        data = cursor.chunk.data
        starts, lengths = starts.copy(), lengths.copy()
        bad = np.zeros(len(starts), np.bool_)
        for entry in np.flatnonzero(lengths > 16).tolist():
            begin, size = int(starts[entry]), int(lengths[entry])
            front = data[begin : begin + size - 16]
            sign = 0xFF if data[begin + size - 16] >= 0x80 else 0
            bad[entry] = bool((front != sign).any())
            starts[entry], lengths[entry] = begin + size - 16, 16
        cursor.fail(bad, self.path, f"a decimal of more than {self._written.precision} digits")
        return np.where(bad, cursor.chunk.park, starts), np.where(bad, 0, lengths)


def beyond(words: NDArray[np.uint64], most: int) -> Bools:
    """Which 128-bit numbers (low word, high word; signed) lie outside of -most to `most`."""
    low, high = words[:, 0], words[:, 1].view(np.int64)
    top, rest = most >> 64, np.uint64(most & (2**64 - 1))
    larger = (high > top) | ((high == top) & (low > rest))
    # Not by turning signs: the smallest number has no positive one beside it.
    top, rest = -most >> 64, np.uint64(-most & (2**64 - 1))
    outside: Bools = larger | (high < top) | ((high == top) & (low < rest))
    return outside
