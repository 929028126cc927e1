"""Converts numpy arrays and Python's lists to Arrow arrays and back, without importing pandas.

pyarrow's `pa.array(…)`, `pa.scalar(…)` and `Array.to_numpy` import pandas if it is installed, which
takes half a second in each new worker process of Spark. pyarrow.compute makes a Python function of
each function of Arrow when it is imported, which takes a tenth of the time of a short command: use
`call` where records are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow._compute import CastOptions, TakeOptions, call_function, get_function

from sparkkafka.errors import EncodeError

_TYPES = {
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.uint16): pa.uint16(),
}

Headers = Sequence[tuple[str, bytes | None]]

BATCH_POOL = pa.system_memory_pool()
"""Memory for batches that are about to be sent. libc returns freed memory to the system; Arrow's
mimalloc keeps as much again as is in use, and is no faster for blocks of half a megabyte."""

# glibc gives free memory at the end of its heap back to the system, and each new array then costs
# page faults, a fifth of the time. It keeps twice the largest block that has been freed.
np.empty(4 << 20, np.uint8)


def from_numpy(values: NDArray[Any], arrow_type: pa.DataType | None = None) -> pa.Array:
    """Make an Arrow array without nulls of integers or booleans. Integers share the memory, unless
    that of `values` has gaps; `arrow_type` is another type of the same width (int64 as
    timestamp)."""
    if values.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(arrow_type or _TYPES[values.dtype], len(values), [None, buffer])


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """Return the integers of an array, read-only; the number at a null means nothing."""
    width = array.type.bit_width // 8
    dtype = np.dtype(f"{'i' if pa.types.is_signed_integer(array.type) else 'u'}{width}")
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def or_zero(array: pa.Array) -> NDArray[Any]:
    """Return the integers of an array, with 0 for null."""
    values = to_numpy(array)
    return values * is_valid(array) if array.null_count else values


def call(function: str, *arguments: Any) -> pa.Array:
    """Call a function of Arrow by its name, with its default options."""
    return call_function(function, list(arguments))


def cast(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Cast an array as `Array.cast` does, which imports pyarrow.compute."""
    return call_function("cast", [array], CastOptions.safe(arrow_type))


def odd_values(
    offsets: NDArray[np.int32], data: pa.Buffer, pool: pa.MemoryPool | None = None
) -> pa.Array:
    """Copy slices of the data to a binary array: those between the second and third offset, the
    fourth and fifth, and so on, in any order. They are the odd values of an array with these
    offsets. Arrow estimates the memory of the copy from the first and the last offset, which must
    lie inside the data."""
    count = len(offsets) // 2 - 1
    buffers = [None, pa.py_buffer(offsets), data]
    while len(_ODD[0]) < count:
        _ODD[0] = from_numpy(np.arange(1, 4 * len(_ODD[0]), 2, dtype=np.int32))
    both = pa.Array.from_buffers(pa.binary(), 2 * count + 1, buffers)
    return _TAKE.call([both, _ODD[0].slice(0, count)], _NO_CHECK, pool)


_TAKE: Final = get_function("take")
_NO_CHECK: Final = TakeOptions(boundscheck=False)
_ODD: list[pa.Array] = [from_numpy(np.arange(1, 2 << 14, 2, dtype=np.int32))]
"""The odd numbers; the array is replaced by a longer one when more are needed."""


def repeat_text(text: str | bytes, count: int) -> pa.Array:
    """Make a string (or binary) array of `count` times the same string (or bytes)."""
    data = text.encode() if isinstance(text, str) else text
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
    kind = pa.string() if isinstance(text, str) else pa.binary()
    return pa.Array.from_buffers(kind, count, buffers)


def filtered_positions(keep: NDArray[np.bool_]) -> pa.Array:
    """Return the index that each row has in an array filtered by `keep`, null for a row that is
    left out. `filtered.take(indexes)` has all rows again, with nulls for those left out."""
    numbers = from_numpy(np.cumsum(keep) - 1)
    validity = from_numpy(keep).buffers()[1]
    return pa.Array.from_buffers(numbers.type, len(numbers), [validity, numbers.buffers()[1]])


def is_valid(array: pa.Array) -> NDArray[np.bool_]:
    """Return a flag for each row: whether it is not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    bitmap = array.buffers()[0]
    if bitmap is None:  # the null type has no bitmap
        return np.zeros(len(array), np.bool_)
    return bits(bitmap, array.offset, len(array)).view(np.bool_)


def bits(bitmap: pa.Buffer, offset: int, count: int) -> NDArray[np.uint8]:
    """Unpack `count` bits of an Arrow bitmap, from bit `offset` on, into bytes of 0 and 1."""
    begin, end = offset // 8, -(-(offset + count) // 8)
    packed = np.frombuffer(bitmap, np.uint8, end - begin, begin)
    return np.unpackbits(packed, bitorder="little")[offset - 8 * begin :][:count]


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """Make an Arrow binary array of Python values; None becomes null."""
    count = len(values)
    bitmap = None
    if None in values:
        valid = np.fromiter((value is not None for value in values), np.bool_, count)
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        values = [value or b"" for value in values]
    data = b"".join(values)  # type: ignore[arg-type]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, count), out=offsets[1:])  # type: ignore[arg-type]
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data or bytes(1))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def headers_array(headers: Mapping[int, Headers], count: int) -> pa.Array:
    """Make an array with a list of (key, value) structs for each of `count` records; `headers` has
    those of each record that has any, by its index."""
    sizes = np.zeros(count + 1, np.int32)
    flat: list[tuple[str, bytes | None]] = []
    for index in sorted(headers):
        sizes[index + 1] = len(headers[index])
        flat += headers[index]
    names: Any = binary_array([name.encode() for name, _ in flat]).view(pa.string())
    contents = binary_array([content for _, content in flat])
    structs = pa.StructArray.from_arrays([names, contents], names=["key", "value"])
    offsets = from_numpy(np.cumsum(sizes, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, structs)


def as_binary(column: pa.Array, name: str) -> pa.Array:
    """Convert a column to binary or large_binary. Raises EncodeError, naming it, for other data."""
    arrow_type = column.type
    if pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type):
        return column
    if pa.types.is_string(arrow_type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(arrow_type):
        return column.cast(pa.large_binary())
    if pa.types.is_null(arrow_type):
        return pa.nulls(len(column), pa.binary())
    if pa.types.is_dictionary(arrow_type):
        return as_binary(column.cast(arrow_type.value_type), name)
    if pa.types.is_fixed_size_binary(arrow_type) or str(arrow_type) == "binary_view":
        return column.cast(pa.large_binary())
    if str(arrow_type) == "string_view":
        return column.cast(pa.large_string()).cast(pa.large_binary())
    raise EncodeError(f"{name} column is {arrow_type}; only binary and string can be written")


def blob_offsets(column: pa.Array) -> NDArray[Any]:
    """Return the offsets of a binary, string, list or map array: row i has the bytes, or items,
    [offsets[i], offsets[i+1]).

    They have the array's own type (int32 or int64). A null may have bytes or items.
    """
    if not len(column):
        return np.zeros(1, np.int32)
    is_large = column.type.id in (
        pa.lib.Type_LARGE_BINARY,
        pa.lib.Type_LARGE_STRING,
        pa.lib.Type_LARGE_LIST,
    )
    offsets = np.frombuffer(column.buffers()[1], np.int64 if is_large else np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]
