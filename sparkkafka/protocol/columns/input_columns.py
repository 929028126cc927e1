"""Columns of keys, values and headers as encoding needs them: sizes, numbers, and bytes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.errors import EncodeError
from sparkkafka.protocol.columns.join import Blobs
from sparkkafka.protocol.records.arrow import BATCH_POOL, is_valid, or_zero, repeat_text
from sparkkafka.protocol.records.varint_columns import (
    Ints,
    Room,
    Varints,
    encode,
    put_varints,
    widths,
    zigzag,
)
from sparkkafka.protocol.wire.varints import varint_size

_NOTHING = repeat_text("", 1).cast(pa.binary())[0]  # b"" itself would make pyarrow import pandas


def pack(fields: Sequence[Varints | int], count: int) -> pa.Array:
    """Varints of several fields one after the other, for each record; an int is a constant byte."""
    sizes = np.zeros(count, np.int64)
    least = 0
    for field in fields:
        sizes += 1 if isinstance(field, int) else field.sizes
        least += 1 if isinstance(field, int) else field.least
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    content = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].astype(np.int64)
    for field in fields:
        if isinstance(field, int):
            content[at] = field
            at += 1
            least -= 1
        else:
            least -= field.least
            put_varints(content, at, field, Room(least, 0))
            at += field.sizes
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def joined(pieces: Sequence[Any]) -> pa.Array:
    """Concatenates arrays of binary row by row; null counts as empty."""
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(
        *pieces,
        _NOTHING,
        null_handling="replace",
        null_replacement=b"",
        memory_pool=BATCH_POOL,
    )


class BlobColumn:
    """A key or value column, also of headers: Arrow data and what stands before each entry."""

    def __init__(self, column: pa.Array, name: str) -> None:
        self.array = as_binary(column, name)
        self.offsets: Ints = blob_offsets(self.array).astype(np.int64)
        taken = self.lengths = np.diff(self.offsets)
        """Bytes of each row, -1 for null."""
        if self.array.null_count:
            null = ~is_valid(self.array)
            self.lengths = np.where(null, -1, taken)
            taken = np.where(null, 0, taken)
        self.smallest = int(self.lengths.min()) if len(taken) else 0
        self.largest = int(self.lengths.max()) if len(taken) else 0
        even = self.smallest >= 0 and varint_size(2 * self.smallest) == varint_size(
            2 * self.largest
        )
        number_sizes: Any = varint_size(2 * self.largest) if even else widths(zigzag(self.lengths))
        self.sizes: Ints = taken + number_sizes
        """Bytes of each row and of the number in front of it."""

    def numbers(self, low: int, high: int) -> Varints:
        return encode(zigzag(self.lengths[low:high]))

    def plain(self, low: int, high: int) -> Blobs | None:
        """Rows low..high for `join_records`, which needs 32 bit offsets; else None."""
        if not pa.types.is_binary(self.array.type):
            return None
        content = self.array.buffers()[2]
        data = np.frombuffer(b"" if content is None else content, np.uint8)
        lengths = self.lengths[low:high]
        return Blobs(data, self.offsets[low:high], lengths, self.smallest, self.largest)

    def slice(self, low: int, high: int) -> pa.Array:
        part = self.array.slice(low, high - low)
        # Large ones only now: this many bytes fit int32, the whole column need not.
        return part.cast(pa.binary()) if pa.types.is_large_binary(part.type) else part


def as_binary(column: pa.Array, name: str) -> pa.Array:
    """The column as binary or large_binary. Raises EncodeError, with `name`, for other data."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_string(kind):
        return column.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if pa.types.is_dictionary(kind):
        return as_binary(column.cast(kind.value_type), name)
    if pa.types.is_fixed_size_binary(kind) or str(kind) == "binary_view":
        return column.cast(pa.large_binary())
    if str(kind) == "string_view":
        return column.cast(pa.large_string()).cast(pa.large_binary())
    raise EncodeError(f"{name} column is {kind}; only binary and string can be written")


class HeaderColumn:
    """The headers column."""

    def __init__(self, column: pa.Array) -> None:
        kind = column.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(
            kind.value_type
        ):
            raise EncodeError(
                f"headers column is {kind}; it must be a list of (key, value) structs"
            )
        fields = {field.name: index for index, field in enumerate(kind.value_type)}
        if set(fields) != {"key", "value"}:
            raise EncodeError(f"headers have fields {sorted(fields)}; they must be key and value")
        counts = or_zero(pc.list_value_length(column)).astype(np.int64)
        self._counts = counts
        self._edges = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self._edges[1:])
        # Both flatten() leave out what lies under null lists and pass down null structs.
        children = column.flatten().flatten()
        self._names = BlobColumn(children[fields["key"]], "header key")
        self._contents = BlobColumn(children[fields["value"]], "header value")
        if self._names.array.null_count:
            null = int(is_valid(self._names.array).argmin())
            row = int(np.searchsorted(self._edges, null, "right")) - 1
            raise EncodeError(f"row {row}: a header key is null")
        ends = np.zeros(int(self._edges[-1]) + 1, np.int64)
        np.cumsum(self._names.sizes + self._contents.sizes, out=ends[1:])
        self.sizes = np.diff(ends[self._edges]) + widths(zigzag(counts))

    def numbers(self, low: int, high: int) -> Varints:
        return encode(zigzag(self._counts[low:high]))

    def slice(self, low: int, high: int) -> pa.Array:
        """The encoded headers of each row, without their count."""
        edges = self._edges[low : high + 1]
        first, last = int(edges[0]), int(edges[-1])
        if first == last:
            return pa.nulls(high - low, pa.binary())
        entries = joined(
            [
                pack([self._names.numbers(first, last)], last - first),
                self._names.slice(first, last),
                pack([self._contents.numbers(first, last)], last - first),
                self._contents.slice(first, last),
            ]
        )
        # Entries of one row lie side by side: a row's bytes go from its first to its last entry.
        _, offsets_buffer, content = entries.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[edges - first]
        return pa.Array.from_buffers(
            pa.binary(), high - low, [None, pa.py_buffer(offsets), content]
        )


def blob_offsets(column: pa.Array) -> NDArray[Any]:
    """Arrow's offsets of a binary or large_binary array: row i is bytes [offsets[i], offsets[i+1]).

    Of the array's own type (int32 or int64); what lies under a null is not always empty.
    """
    if not len(column):
        return np.zeros(1, np.int32)
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    offsets = np.frombuffer(column.buffers()[1], kind)
    return offsets[column.offset : column.offset + len(column) + 1]
