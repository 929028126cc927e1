"""Decodes payloads of one writer's schema to one Arrow column, chunk by chunk.

There is a ValueDecoder for each Avro type. It reads one value of every entry of a cursor (see
`cursor.py`) in a few steps of NumPy and returns an array with a value for each entry. Inactive
entries get the type's zero; the decoder that made them inactive makes them null. `resolve.py`
chooses the decoders.

The columns of a chunk fit in the processor's cache, and the memory that a chunk needs is bounded by
its bytes.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.errors import SchemaError, counted
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records.arrow import (
    as_binary,
    binary_array,
    blob_offsets,
    from_numpy,
    is_valid,
)
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, unzigzag
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import (
    as_texts,
    null_outside,
    offsets_of,
    repeated_keys,
    replace_bad_texts,
    spread,
)
from sparkkafka.schemas.avro.cursor import INACTIVE, NOT_UTF8, Chunk, Cursor
from sparkkafka.schemas.avro.skip import BlobSkipper, ItemsSkipper, Skipper, UnionSkipper
from sparkkafka.schemas.avro.types import UUID_DIGITS, rescale_times
from sparkkafka.schemas.schema_errors import MAX_DEFAULTS, label, limit_reasons
from sparkkafka.schemas.values import (
    BUDGET_PER_BYTE,
    COLUMN_BYTES_PER_BYTE,
    Decoded,
    MemoryBudget,
    bytes_per_value,
)

CHUNK_ROWS: Final = 1 << 15
"""The most rows of a chunk. With 8,192, calls of NumPy take a quarter to a third of the time."""
CHUNK_BYTES: Final = 4 << 20
"""The most bytes of a chunk; a larger payload is a chunk of its own."""

_MAX_BYTES = (1 << 31) - 1024  # the most bytes of a payload: Arrow's offsets have 32 bits


class AvroDecoder:
    """Decodes payloads in Avro's binary form (a `values.Decoder`)."""

    def __init__(self, decoder: ValueDecoder) -> None:
        self._decoder = decoder
        self._row_bytes = bytes_per_value(decoder.type) + decoder.default_bytes

    @property
    def type(self) -> pa.DataType:
        return self._decoder.type

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """Decode the payloads (binary; null stays null) into a column of `type`: those that are bad
        become null, with a reason. Some CHUNK_BYTES are decoded at a time, so that columns stay in
        the processor's cache. Raises TooManyRowsError if the columns of several payloads exceed
        `budget`."""
        budget = budget or MemoryBudget(payloads)
        budget.take(len(payloads) * self._row_bytes)
        payloads = as_binary(payloads, "payload")
        offsets = blob_offsets(payloads).astype(np.int64)
        data = np.frombuffer((payloads.buffers()[2] if len(payloads) else None) or b"", np.uint8)
        valid = is_valid(payloads)
        arrays: list[pa.Array] = []
        bad_rows = np.zeros(0, np.int64)
        reasons: list[str] = []
        low = 0
        while low < len(payloads):
            limit = int(offsets[low]) + CHUNK_BYTES
            high = int(np.searchsorted(offsets, limit, side="right")) - 1
            high = min(max(high, low + 1), low + CHUNK_ROWS, len(payloads))
            values, bad, chunk_reasons = self._decode_chunk(
                data, offsets[low : high + 1], valid[low:high], budget
            )
            arrays.append(values)
            bad_rows = np.append(bad_rows, bad + low)
            reasons += chunk_reasons
            low = high
        if not arrays:
            values = pa.nulls(0, self.type)
        else:
            values = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return Decoded(values, bad_rows, limit_reasons(reasons))

    def _decode_chunk(
        self, data: Bytes, offsets: Ints, valid: Flags, budget: MemoryBudget
    ) -> tuple[pa.Array, Ints, list[str]]:
        """Decode some payloads: (values, which rows are bad, why). `offsets`: where these payloads
        begin in `data`, and where the last one ends; `valid`: which are not null."""
        begin, end = int(offsets[0]), int(offsets[-1])
        count = len(offsets) - 1
        if end - begin > _MAX_BYTES:  # of more than CHUNK_BYTES: it is a single payload
            reason = f"the value: {end - begin:,} bytes are too many"
            return pa.nulls(count, self.type), np.zeros(1, np.int64), [reason]
        cursor = cursor_of(data[begin:end], offsets - begin, budget)
        if not valid.all():
            cursor = cursor.where(valid)
        values = self._decoder.read(cursor)
        remaining = cursor.end - cursor.at
        over = (remaining != 0) & cursor.is_active()
        if over.any():
            cursor.fail(over, "", lambda row: f"{counted(int(remaining[row]), 'byte')} left over")
        bad = np.flatnonzero(cursor.chunk.is_bad)
        if len(bad) or not valid.all():
            values = null_outside(values, valid & ~cursor.chunk.is_bad)
        return values, bad, cursor.chunk.reasons[bad].tolist() if len(bad) else []


def cursor_of(data: Bytes, offsets: Ints, budget: MemoryBudget) -> Cursor:
    """Return a cursor that stands at the begin of each payload. Payload i lies in `data` from
    offsets[i] up to offsets[i + 1]."""
    return Cursor(Chunk(data, np.diff(offsets), budget), offsets[:-1], offsets[1:])


class LocatedTexts(NamedTuple):
    """Texts of the field `path` that have not been copied out of the data yet, one for each entry.
    `valid`: which are not null (None: all)."""

    path: str
    starts: Ints
    lengths: Ints
    valid: Flags | None = None


class ValueDecoder:
    """Decodes one value of each entry to an array of the Arrow type `type`. `skipper` skips the
    same values. `default_bytes`: how many bytes of defaults a value may have, which were not
    written. `reads_kept_values`: it also reads an ItemsCursor. `reads_zero`: the byte 0 is a valid
    value. `reads_any_bytes`: each value has `skipper.size` bytes, which are never bad."""

    default_bytes = 0
    reads_kept_values = False
    reads_zero = False
    reads_any_bytes = False

    def __init__(self, column_type: pa.DataType, skipper: Skipper) -> None:
        self.type = column_type
        self.skipper = skipper
        self.path = skipper.path

    def read(self, cursor: Cursor) -> pa.Array:
        """Read one value of each entry, and move the cursor behind it. Return one value for each
        entry; the caller makes those of inactive entries null."""
        raise NotImplementedError

    def locate(self, cursor: Cursor) -> pa.Array | LocatedTexts:
        """As `read`; but texts may be left for the caller to copy, together with other fields'."""
        return self.read(cursor)


class NullDecoder(ValueDecoder):
    """Skips the values; all are null."""

    def read(self, cursor: Cursor) -> pa.Array:
        self.skipper.skip(cursor)
        return pa.nulls(len(cursor), self.type)


class RefusingDecoder(ValueDecoder):
    """Makes the rows of all entries bad: the writer's type does not resolve to the reader's."""

    def __init__(self, column_type: pa.DataType, skipper: Skipper, reason: str) -> None:
        super().__init__(column_type, skipper)
        self._reason = reason

    def read(self, cursor: Cursor) -> pa.Array:
        cursor.fail(np.ones(len(cursor), np.bool_), self.path, self._reason)
        return pa.nulls(len(cursor), self.type)


class BooleanDecoder(ValueDecoder):
    """boolean: the byte 0 or 1."""

    reads_zero = True

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a boolean for each entry; a byte other than 0 and 1 makes its row bad."""
        byte = cursor.chunk.data.take(cursor.at, mode="clip")
        cursor.skip(1, self.path)
        bad = byte > 1
        if bad.any():
            # Writers write 0 or 1 (Java's, and by the specification): others are damage.
            cursor.fail(bad, self.path, lambda entry: f"a boolean of {byte[entry]}, not 0 or 1")
        return from_numpy(byte == 1)


# --- numbers ------------------------------------------------------------------------------------

Convert = Callable[[NDArray[Any], Cursor, str], NDArray[Any]]
"""Converts numbers, as they are written, to those of the column, maybe of another width. Gets the
cursor and the path to make rows bad."""


class NumberDecoder(ValueDecoder):
    """int, long, float and double, which are the NumPy type `written`, to a type of numbers, dates
    or timestamps, which is `read`."""

    def __init__(
        self,
        column_type: pa.DataType,
        skipper: Skipper,
        written: np.dtype[Any],
        read: np.dtype[Any],
        convert: Convert | None,
    ) -> None:
        super().__init__(column_type, skipper)
        self._written, self._read, self._convert = written, read, convert
        self._last_were_long = False
        self._int_dtype = np.int32 if written.itemsize == read.itemsize == 4 else np.int64
        self.reads_any_bytes = written.kind == "f"
        self.reads_kept_values = self.reads_zero = not self.reads_any_bytes

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a number for each entry, of the column's type; 0 in bad rows."""
        values: NDArray[Any]
        size = self._written.itemsize
        if not self.reads_any_bytes:
            raw, bad = cursor.read_varints(self.path, 8 * size, are_long=self._last_were_long)
            self._last_were_long = raw.itemsize == 8
            values = unzigzag(raw, overwrite=True, dtype=self._int_dtype)
            if bad is not None:
                values[bad] = 0
        else:
            words = cursor.read_words(size, self.path)
            values = words.astype(f"u{size}", copy=False).view(self._written)
        if self._convert is not None:
            values = self._convert(values, cursor, self.path)
        buffer = pa.py_buffer(values.astype(self._read, copy=False))
        return pa.Array.from_buffers(self.type, len(values), [None, buffer])


def to_float(values: NDArray[Any], cursor: Cursor, path: str) -> NDArray[Any]:
    """Round numbers to 32 bits, as in Java."""
    return values.astype(np.float32)


def to_unit(written: str, read: str) -> Convert:
    """Return a function that converts times from the unit `written` to the unit `read` (both are
    keys of NANOSECONDS). A time beyond 64 bits of a finer unit is a bad value, as it is an error in
    Spark."""

    def convert(values: NDArray[Any], cursor: Cursor, path: str) -> NDArray[Any]:
        """Return `values` (one for each entry) in the unit `read`; a time beyond 64 bits makes its
        row bad."""
        times, bad = rescale_times(values, written, read)
        if bad is not None:
            unit = f"{read.removesuffix('s')}seconds"
            cursor.fail(
                bad, path, lambda entry: f"the time {values[entry]:,} is out of range in {unit}"
            )
        return times

    return convert


# --- strings and bytes --------------------------------------------------------------------------


class BytesDecoder(ValueDecoder):
    """bytes and fixed."""

    def __init__(self, column_type: pa.DataType, skipper: BlobSkipper) -> None:
        super().__init__(column_type, skipper)
        self._blobs = skipper
        self.reads_kept_values = self.reads_zero = skipper.keeps_values

    def read(self, cursor: Cursor) -> pa.Array:
        return cursor.gather(*self._blobs.locate(cursor))


class StringDecoder(BytesDecoder):
    """Strings, which must be UTF-8."""

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a text for each entry; bytes that are not UTF-8 make their row bad."""
        return self._copy(cursor, *self._blobs.locate(cursor))

    def locate(self, cursor: Cursor) -> pa.Array | LocatedTexts:
        starts, lengths = self._blobs.locate(cursor)
        # Items are so many that calls matter less than the processor's cache.
        joins = type(cursor) is Cursor and cursor.rows is None
        # If all texts have 13 bytes or more, `gather` copies each field faster on its own.
        if joins and pa.types.is_string(self.type) and (lengths[0] < 13 or lengths.min() < 13):
            return LocatedTexts(self.path, starts, lengths)
        return self._copy(cursor, starts, lengths)

    def _copy(self, cursor: Cursor, starts: Ints, lengths: Ints) -> pa.Array:
        """Return the texts at these positions; bytes that are not UTF-8 make their row bad."""
        raw = cursor.gather(starts, lengths)
        try:
            texts = as_texts(raw)
        except pa.ArrowInvalid:
            texts, is_good = replace_bad_texts(raw)
            cursor.fail(~is_good, self.path, NOT_UTF8)
        return texts if texts.type == self.type else texts.cast(self.type)


class UuidDecoder(ValueDecoder):
    """A fixed of 16 bytes as text: 8-4-4-4-12 hexadecimal digits."""

    def read(self, cursor: Cursor) -> pa.Array:
        """Return the 36 characters of each entry's UUID: two hexadecimal digits for a byte, and the
        dashes."""
        at = np.minimum(cursor.at, cursor.chunk.zeros_at)
        cursor.skip(16, self.path)
        raw = cursor.chunk.data.take(at[:, None] + np.arange(16), mode="clip")
        text = np.full((len(at), 36), ord("-"), np.uint8)
        text[:, UUID_DIGITS] = np.frombuffer(hexlify(raw.data), np.uint8).reshape(len(at), 32)
        offsets = np.arange(len(at) + 1, dtype=np.int32) * np.int32(36)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(at), buffers)


class EnumDecoder(ValueDecoder):
    """Symbols as texts. `written`: the writer's symbols; `read`: what each is for the reader, None
    where the reader has neither the symbol nor a default."""

    def __init__(
        self,
        column_type: pa.DataType,
        skipper: Skipper,
        written: Sequence[str],
        read: list[str | None],
    ) -> None:
        super().__init__(column_type, skipper)
        self._written = written
        self._is_known = np.array([symbol is not None for symbol in read], np.bool_)
        texts = [(symbol or "").encode() for symbol in read]
        self._texts = binary_array(texts).view(pa.string())
        self._lengths = np.array([len(text) for text in texts], np.int64)

    def read(self, cursor: Cursor) -> pa.Array:
        """Return the symbol of each entry; a number or a symbol that the enum lacks makes its row
        bad."""
        numbers = cursor.read_longs(self.path, 32)
        count = len(self._written)
        bad = (numbers < 0) | (numbers >= count)
        if bad.any():
            cursor.fail(
                bad, self.path, lambda entry: f"symbol {numbers[entry]} of an enum that has {count}"
            )
            numbers = np.where(bad, 0, numbers)
        if not count:
            return pa.nulls(len(numbers), self.type)
        if not self._is_known.all():
            cursor.fail(
                ~self._is_known[numbers],
                self.path,
                lambda entry: f"the reader's enum has no symbol {self._written[numbers[entry]]!r}",
            )
        # One byte of a payload becomes a symbol of any length.
        if int(self._lengths.max()) > BUDGET_PER_BYTE and not cursor.chunk.budget.take(
            int(self._lengths[numbers].sum())
        ):
            reason = "the symbols of all its items are too many bytes"
            cursor.fail(np.ones(len(numbers), np.bool_), self.path, reason)
            return pa.nulls(len(numbers), self.type)
        symbols = self._texts.take(from_numpy(numbers.astype(np.int32)))
        return symbols if self.type == pa.string() else symbols.cast(self.type)


# --- decimals -----------------------------------------------------------------------------------


class DecimalDecoder(BytesDecoder):
    """Two's complement with the highest byte first, of any length (bytes) or one length (fixed).
    `written`: the decimal type that has all values of the reader's schema."""

    def __init__(
        self, column_type: pa.DataType, skipper: BlobSkipper, written: pa.DataType
    ) -> None:
        super().__init__(column_type, skipper)
        self._written = written
        self.reads_zero = False
        self._too_long = f"a decimal of more than {written.precision} digits"

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a decimal for each entry; one with too many digits, or without bytes, makes its
        row bad."""
        starts, lengths = self._blobs.locate(cursor)
        empty = lengths == 0
        if empty.any():  # Java: "Zero length BigInteger"
            cursor.fail(empty, self.path, "a decimal of no bytes")
        data = cursor.chunk.data
        if len(lengths) and int(lengths.max()) > 16:
            starts, lengths, too_long = decimals.without_padding(data, starts, lengths)
            cursor.fail(too_long, self.path, self._too_long)
        words = decimals.read_words(data, starts, lengths)
        bad = decimals.exceeds(words, 10**self._written.precision - 1)
        if bad.any():
            cursor.fail(bad, self.path, self._too_long)
            words[bad] = 0
        array = pa.Array.from_buffers(self._written, len(words), [None, pa.py_buffer(words)])
        return array if self.type == self._written else array.cast(self.type)


# --- records, arrays, maps ----------------------------------------------------------------------


class RecordDecoder(ValueDecoder):
    """Records as structs. `steps`: how the writer's fields are read, in its order: by a decoder, as
    the column with this index in the struct, or only by a skipper. `defaults`: index in the struct
    -> an array of one value, for fields that the writer lacks."""

    def __init__(
        self,
        column_type: pa.DataType,
        skipper: Skipper,
        steps: Sequence[tuple[ValueDecoder, int] | Skipper],
        defaults: dict[int, pa.Array],
    ) -> None:
        super().__init__(column_type, skipper)
        self._steps = steps
        self._defaults = defaults
        self.reads_kept_values = all(
            step.keeps_values if isinstance(step, Skipper) else step[0].reads_kept_values
            for step in steps
        )
        # What a default takes beside `bytes_per_value`, which counts one of its offsets (4 bytes).
        self.default_bytes = sum(
            max(0, value.nbytes - 4 - bytes_per_value(value.type)) for value in defaults.values()
        ) + sum(step[0].default_bytes for step in steps if not isinstance(step, Skipper))
        if self.default_bytes > MAX_DEFAULTS:
            raise SchemaError(
                f"{label(skipper.path)}: the defaults of fields that the writer's Avro schema "
                f"lacks have {self.default_bytes:,} bytes; {MAX_DEFAULTS:,} are allowed"
            )

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a struct for each entry. Each of the writer's fields is read, or skipped if the
        reader lacks it, for all entries, in order; those that the writer lacks get defaults."""
        count = len(cursor)
        children: dict[int, Any] = {}
        for step in self._steps:
            if isinstance(step, Skipper):
                step.skip(cursor)
            else:
                decoder, index = step
                children[index] = decoder.locate(cursor)
        _copy_texts(cursor, children)
        for index, value in self._defaults.items():
            children[index] = value.take(from_numpy(np.zeros(count, np.int32)))
        arrays = [children[index] for index in range(self.type.num_fields)]
        return pa.Array.from_buffers(self.type, count, [None], children=arrays)


def _copy_texts(cursor: Cursor, columns: dict[int, Any]) -> None:
    """Replace the located texts among the columns, which are in the order of their bytes, by
    arrays. One step copies those of all fields, since its calls would take a third of the time of
    wide records. A text that is not UTF-8 makes its row bad."""
    located = {index: texts for index, texts in columns.items() if type(texts) is LocatedTexts}
    if not located:
        return
    _, starts, lengths, _ = next(iter(located.values()))
    if len(located) > 1:
        starts = np.concatenate([texts.starts for texts in located.values()])
        lengths = np.concatenate([texts.lengths for texts in located.values()])
    raw = cursor.gather(starts, lengths)
    count = len(cursor)
    try:
        joined = as_texts(raw)
    except pa.ArrowInvalid:
        joined, is_good = replace_bad_texts(raw)
        bad = ~is_good.reshape(-1, count)
        # No text is located after a row has become bad: the first bad text is the first reason.
        for texts, rows in reversed([*zip(located.values(), bad, strict=True)]):
            cursor.fail(rows, texts.path, NOT_UTF8, is_first=True)
    _, offsets, data = joined.buffers()
    for number, (index, texts) in enumerate(located.items()):
        bitmap = None if texts.valid is None else validity(texts.valid)
        # The offsets of the field's texts in those of all fields, of four bytes each.
        buffers = [bitmap, offsets.slice(4 * number * count, 4 * count + 4), data]
        columns[index] = pa.Array.from_buffers(pa.string(), count, buffers)


class ArrayDecoder(ValueDecoder):
    """Arrays as lists."""

    def __init__(self, column_type: pa.DataType, skipper: ItemsSkipper, item: ValueDecoder) -> None:
        super().__init__(column_type, skipper)
        self._items = skipper
        self._item = item
        self._item_bytes = bytes_per_value(item.type) + item.default_bytes

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a list for each entry: the items of all entries are located, and decoded as one
        column."""
        failures = cursor.chunk.failures
        located = self._items.locate(cursor, keep_values=self._item.reads_kept_values)
        counts, items = self._drop_too_many(cursor, *located)
        values = self._item.read(items)
        cursor.deactivate_bad(failures)
        return self._make_lists(counts, values)

    def _drop_too_many(self, cursor: Cursor, counts: Ints, items: Cursor) -> tuple[Ints, Cursor]:
        """Return counts and items without those of entries whose items would take too much memory,
        and make the rows of these entries bad. An item takes `_item_bytes` bytes in the columns
        below this one, even if it has only one byte in the payload."""
        size, min_size = self._item_bytes, self._items.item.min_size
        # The budgets have BUDGET_PER_BYTE for each byte, so items of enough bytes need no check.
        if size <= min_size * BUDGET_PER_BYTE or not len(items):
            return counts, items
        refused = np.zeros(len(cursor), np.bool_)
        if size > min_size * COLUMN_BYTES_PER_BYTE:
            rows = cursor.rows_of(np.arange(len(cursor)))
            refused = cursor.chunk.take_row_budgets(rows, counts * size)
        if not cursor.chunk.budget.take(int(counts[~refused].sum()) * size):
            refused = counts > 0
        if not refused.any():
            return counts, items
        cursor.fail(
            refused,
            self.path,
            lambda entry: (
                f"{counts[entry]:,} items take too much memory as columns, for so few bytes"
            ),
        )
        kept = np.flatnonzero(~np.repeat(refused, counts))
        return np.where(refused, 0, counts), items.select(kept)

    def _make_lists(self, counts: Ints, values: pa.Array) -> pa.Array:
        """Return the lists with these counts of `values`, the items of all."""
        buffers = [None, pa.py_buffer(offsets_of(counts, np.int32))]
        return pa.Array.from_buffers(self.type, len(counts), buffers, children=[values])


class MapDecoder(ArrayDecoder):
    """Maps, which are read as arrays of structs of key and value. If a key is repeated, its last
    value counts, as in Java and fastavro."""

    def _make_lists(self, counts: Ints, values: pa.Array) -> pa.Array:
        """Make a map of each entry's items. Of items with the same key only the last one is
        kept."""
        repeated = repeated_keys(values.field(0), counts)
        if len(repeated):
            is_last = np.ones(len(values), np.bool_)
            is_last[repeated] = False
            values = values.take(from_numpy(np.flatnonzero(is_last)))
            counts = np.diff(offsets_of(is_last)[offsets_of(counts)])
        return super()._make_lists(counts, values)


# --- unions -------------------------------------------------------------------------------------


class Branch(NamedTuple):
    """How a branch of the writer's union is read. `decoder` None: it is null, which has no bytes.
    `member`: the index of its column where the reader's union is a struct, or -1. `refusal`: why it
    cannot be read."""

    decoder: ValueDecoder | None
    member: int = 0
    refusal: str = ""


class UnionDecoder(ValueDecoder):
    """The writer's union as one type that may be null; or, with `has_members`, as a struct with a
    field for each branch of the reader's union, of which one has a value (`types.becomes_struct`
    says when)."""

    def __init__(
        self,
        column_type: pa.DataType,
        skipper: UnionSkipper,
        branches: Sequence[Branch],
        *,
        has_members: bool = False,
    ) -> None:
        super().__init__(column_type, skipper)
        self._union = skipper
        self._branches = branches
        self._has_members = has_members
        self._optional = None  # the decoder of the other type, if the union is null and that
        if len(branches) == 2 and not has_members and branches[0] == Branch(None):
            self._optional = branches[1].decoder
        self.default_bytes = max(
            (branch.decoder.default_bytes for branch in branches if branch.decoder), default=0
        )

    def read(self, cursor: Cursor) -> pa.Array:
        columns = {0: self.locate(cursor)}
        _copy_texts(cursor, columns)
        return columns[0]

    def locate(self, cursor: Cursor) -> pa.Array | LocatedTexts:
        """Return a value for each entry: the entries of each branch are decoded together, then
        combined."""
        if self._optional is not None:
            byte = cursor.chunk.data.take(cursor.at, mode="clip")
            if np.bitwise_or.reduce(byte) in (0, 2):  # all are 0 or 2: the branches 0 and 1
                return self._read_optional(self._optional, cursor, byte.astype(np.bool_))
            # Some rows are bad, or some numbers were written with several bytes. `_read_optional`
            # expects one: the cursor goes back to the last byte, which for null is 0 in any case.
            mask = self._union.read_branches(cursor).astype(np.bool_)
            cursor.at = cursor.at - cursor.is_active()
            return self._read_optional(self._optional, cursor, mask)
        numbers = self._union.read_branches(cursor)
        count = len(numbers)
        # For each member: the branches that become it, as (which entries have the branch, values).
        columns: list[list[tuple[Flags, pa.Array]]] = [
            [] for _ in range(self.type.num_fields if self._has_members else 1)
        ]
        valid = np.ones(count, np.bool_)
        for number, branch in enumerate(self._branches):
            mask = numbers == number
            if not mask.any():
                continue
            if branch.refusal:
                cursor.fail(mask, self.path, branch.refusal)
                valid &= ~mask
            elif branch.decoder is None:
                valid &= ~mask
            else:
                values = _read_branch(branch.decoder, cursor, mask)
                if branch.member >= 0:
                    columns[branch.member].append((mask, values))
        if not self._has_members:
            return _combine(self.type, count, columns[0])
        children = [
            _combine(field.type, count, found)
            for field, found in zip(self.type, columns, strict=True)
        ]
        bitmap = None if valid.all() else validity(valid)
        return pa.Array.from_buffers(self.type, count, [bitmap], children=children)

    def _read_optional(
        self, decoder: ValueDecoder, cursor: Cursor, mask: Flags
    ) -> pa.Array | LocatedTexts:
        """Read the values of a union of null and one other branch, which the entries in the mask
        have."""
        if decoder.reads_zero:  # a null's number, 0, is read as if it were the value
            cursor.at = cursor.at + mask.astype(np.int64)
            values = decoder.locate(cursor)
            if isinstance(values, LocatedTexts):
                return values._replace(valid=mask)
        elif decoder.reads_any_bytes and (size := decoder.skipper.size):
            # The bytes that are read for a null are those after its number.
            values = decoder.read(Cursor(cursor.chunk, cursor.at + 1, _NO_END))
            cursor.skip(np.where(mask, 1 + size, 1), self.path)
        else:
            cursor.skip(1, self.path)
            values = _read_branch(decoder, cursor, mask)
        return null_outside(values, mask)


_NO_END: Final = np.array([INACTIVE])
"""The end of entries of which some are not moved."""


def _read_branch(decoder: ValueDecoder, cursor: Cursor, mask: Flags) -> pa.Array:
    """Read the values of the entries in the mask, which have this branch, and move the cursor
    behind them. The result has a value for each entry; those of other entries mean nothing."""
    count = int(np.count_nonzero(mask))
    if count == len(mask):
        return decoder.read(cursor)
    failures = cursor.chunk.failures
    if 4 * count >= len(mask):
        inner = cursor.where(mask)
        values = decoder.read(inner)
        cursor.advance(mask, inner, failures)
        return values
    # Few entries have this branch: decode only these, and put nulls between them.
    entries = np.flatnonzero(mask)
    inner = cursor.select(entries)
    values = decoder.read(inner)
    cursor.update(entries, inner)
    cursor.deactivate_bad(failures)
    return spread(values, entries, len(mask))


class MemberDecoder(ValueDecoder):
    """A type that is not a union for the writer, as the struct of the reader's union, of which one
    field has the value (none if `member` is -1)."""

    def __init__(self, column_type: pa.DataType, decoder: ValueDecoder, member: int) -> None:
        super().__init__(column_type, decoder.skipper)
        self._decoder = decoder
        self._member = member
        self.default_bytes = decoder.default_bytes

    def read(self, cursor: Cursor) -> pa.Array:
        """Return a struct for each entry: the value is one of its members, the others are null."""
        values = self._decoder.read(cursor)
        children = [pa.nulls(len(values), field.type) for field in self.type]
        if self._member >= 0:
            children[self._member] = values
        return pa.Array.from_buffers(self.type, len(values), [None], children=children)


def _combine(
    column_type: pa.DataType, count: int, columns: Sequence[tuple[Flags, pa.Array]]
) -> pa.Array:
    """Take each entry's value from the array whose mask has it; null for an entry of no mask."""
    if not columns:
        return pa.nulls(count, column_type)
    if len(columns) == 1:
        mask, values = columns[0]
        return values if mask.all() else null_outside(values, mask)
    index = np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    for number, (mask, _) in enumerate(columns):
        index[mask] = np.flatnonzero(mask) + number * count  # in the concatenated arrays
        valid |= mask
    taken = pa.concat_arrays([values for _, values in columns]).take(from_numpy(index))
    return taken if valid.all() else null_outside(taken, valid)
