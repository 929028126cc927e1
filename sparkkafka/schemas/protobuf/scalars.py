"""Raw numbers of the wire -> Arrow arrays of the column's type, and what does not fit it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.arrow import from_numpy, to_numpy
from sparkkafka.protocol.records.varint_columns import unzigzag
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.plan import Field
from sparkkafka.schemas.protobuf.wire import (
    Data,
    Flags,
    Ints,
    read_fixed,
    read_varints,
)

_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_UINT32: Final = (1 << 32) - 1
_INT64: Final = (1 << 63) - 1
_SIGNED32: Final = (types.INT32, types.ENUM)
_WIDTH: Final = {
    types.DOUBLE: 8,
    types.FIXED64: 8,
    types.SFIXED64: 8,
    types.FLOAT: 4,
    types.FIXED32: 4,
    types.SFIXED32: 4,
}


def fixed(data: Data, at: Ints, kind: int) -> Any:
    """Raw numbers of 4 or 8 bytes, unsigned."""
    return read_fixed(data, at, _WIDTH[kind])


def unpack(data: Data, at: Ints, size: Ints, kind: int) -> tuple[Any, Ints, Flags | None]:
    """Raw numbers of packed spans, how many each has, and which spans are wrong."""
    width = _WIDTH.get(kind)
    if width is not None:
        wrong = size % width != 0
        size = np.where(wrong, 0, size) if wrong.any() else size
        content = _content(data, at, size)
        raw = content.view("<u8" if width == 8 else "<u4")
        return raw, size // width, wrong if wrong.any() else None
    last = data.bytes.take(at + size - 1)
    wrong = (last >= 0x80) & (size > 0)
    size = np.where(wrong, 0, size) if wrong.any() else size
    content = _content(data, at, size)
    if not len(content) or int(content.max()) < 0x80:
        return content, size, wrong if wrong.any() else None
    last_bytes = content < 0x80
    stops = np.flatnonzero(last_bytes)
    if int((content[:-1] & content[1:]).max(initial=0)) < 0x80:
        raw, longer = _of_two_bytes(content, stops), None
    else:
        starts = np.empty_like(stops)
        starts[0], starts[1:] = 0, stops[:-1] + 1
        raw, _, longer = read_varints(Data(content), starts)
    before = np.zeros(len(content) + 1, np.int64)
    np.cumsum(last_bytes, out=before[1:])
    counts = np.diff(before.take(np.cumsum(size)), prepend=0)
    if longer is not None:
        wrong[np.repeat(np.arange(len(size)), counts)[longer]] = True
    return raw, counts, wrong if wrong.any() else None


def _of_two_bytes(content: Any, stops: Ints) -> Any:
    """Varints of one byte or two, by the places of their last bytes."""
    values = content.take(stops).astype(np.uint16)
    earlier = content.take(stops - 1, mode="clip")  # of the first, its own byte: below 0x80
    shift = (earlier >> 7).astype(np.uint16)
    values <<= shift * np.uint16(7)
    earlier &= np.negative(earlier >> 7) & np.uint8(0x7F)
    values |= earlier
    return values


def _content(data: Data, at: Ints, size: Ints) -> Any:
    taken = gather(data.buffer, at, size)
    if not len(taken):
        return np.zeros(0, np.uint8)
    _, offsets, content = taken.buffers()
    end = int(np.frombuffer(offsets, np.int32)[len(taken)])
    return np.frombuffer(content, np.uint8)[:end] if end else np.zeros(0, np.uint8)


def numbers(one: Field, raw: Any, present: Flags | None) -> tuple[pa.Array, Any, Any]:
    """The array, which rows protobuf's runtime must look at, and which do not fit the type (None:
    none do). Where not `present` raw is 0."""
    kind, item = one.kind, one.item
    if kind == types.DOUBLE:
        return from_numpy(raw, pa.float64()), None, None
    if kind == types.FLOAT:
        if item == pa.float32():
            return from_numpy(raw, item), None, None
        return from_numpy(raw.view(np.float32).astype(np.float64), item), None, None
    if kind == types.BOOL:
        return from_numpy(raw != 0), None, None
    wrong = _too_wide(kind, raw) if one.exact else None
    values = _integers(kind, raw)
    if kind == types.ENUM:
        array, odd = _enums(one, values, present)
        return array, odd, wrong
    array, also = _as(values, item)
    if also is not None:
        wrong = also if wrong is None else wrong | also
    return array, None, wrong


def _too_wide(kind: int, raw: Any) -> Flags | None:
    """Which numbers a field of 32 bits cannot have."""
    if raw.itemsize < 8 or kind not in types.VARINT32:
        return None
    if kind in _SIGNED32:
        return _outside(raw.view(np.int64), *_INT32)
    return raw > np.uint64(_UINT32) if len(raw) and int(raw.max()) > _UINT32 else None


def _integers(kind: int, raw: Any) -> Any:
    """The numbers. Those wider than the field are cut to its bits, as Protobuf's encoding guide has
    it ("as if you had cast the number to that type in C++")."""
    if raw.itemsize == 8 and kind in types.VARINT32:
        raw = raw.astype(np.uint32)
    if kind in (types.UINT64, types.FIXED64):
        return raw.astype(np.uint64, copy=False)
    if kind in (types.SINT32, types.SINT64):
        return unzigzag(raw)
    if kind == types.SFIXED32 or (kind in _SIGNED32 and raw.itemsize == 4):
        return raw.view(np.int32)
    return _signed(raw)


def _signed(raw: Any) -> Any:
    """What was read as unsigned, and narrow if it happened to be so, as int64; bytes stay."""
    if raw.itemsize == 1:
        return raw
    return raw.view(np.int64) if raw.itemsize == 8 else raw.astype(np.int64)


def _outside(values: Any, least: int, most: int) -> Flags | None:
    if not len(values) or (values.itemsize == 1 and most >= 255):
        return None
    if int(values.min()) >= least and int(values.max()) <= most:
        return None
    flags: Flags = (values < least) | (values > most)
    return flags


def _as(values: Any, item: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Integers as the column's type, and which do not fit."""
    if pa.types.is_decimal(item):
        high = np.zeros(len(values), np.int64) if values.dtype == np.uint64 else None
        low = values.astype(np.int64) if values.dtype != np.uint64 else values.view(np.int64)
        words = np.empty((len(values), 2), np.int64)
        words[:, 0] = low
        words[:, 1] = low >> 63 if high is None else high
        whole = pa.decimal128(38 if item.scale == 0 else 20, 0)
        kind = item if item.scale == 0 else whole
        array = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(words)])
        return (array if item.scale == 0 else array.cast(item)), None
    if item == pa.float64():
        return from_numpy(values.astype(np.float64), item), None
    wide = item == pa.int64()
    wrong = None
    if wide and values.dtype == np.uint64:
        wrong = _outside(values, 0, _INT64)
    elif not wide and values.dtype != np.int32:
        wrong = _outside(values, *_INT32)
    return from_numpy(values.astype(np.int64 if wide else np.int32), item), wrong


def _enums(one: Field, values: Any, present: Flags | None) -> tuple[pa.Array, Flags | None]:
    odd = None
    numbers = sorted(one.names)
    at, unknown = _places(values, numbers)
    if unknown is not None and present is not None:
        unknown &= present
    if unknown is not None and not unknown.any():
        unknown = None
    if one.closed:
        odd = unknown
    if not pa.types.is_string(one.item):
        return from_numpy(values.astype(np.int32 if one.item == pa.int32() else np.int64)), odd
    names = [one.names[number] for number in numbers]
    if unknown is not None:
        others, place = np.unique(values[unknown], return_inverse=True)
        at = at.astype(np.int64)
        at[unknown] = len(names) + place
        names += [str(number) for number in others.tolist()]
    return text_array(names).take(from_numpy(at.astype(np.int32, copy=False))), odd


def _places(values: Any, known: list[int]) -> tuple[Ints, Flags | None]:
    """The place of each value among `known`, which ascend; and those that are not there."""
    if known == list(range(len(known))):
        unknown = _outside(values, 0, len(known) - 1)
        return (values if unknown is None else np.where(unknown, 0, values)), unknown
    table = np.array(known, np.int64)
    at = np.searchsorted(table, values)
    at[at == len(table)] = 0
    return at, table[at] != values


def text_array(texts: list[str], kind: pa.DataType | None = None) -> pa.Array:
    return binary_array([text.encode() for text in texts]).cast(kind or pa.string())


def binary_array(pieces: list[bytes]) -> pa.Array:
    offsets = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    content = pa.py_buffer(b"".join(pieces))
    return pa.Array.from_buffers(pa.binary(), len(pieces), [None, pa.py_buffer(offsets), content])


def constant(one: Field, count: int) -> pa.Array:
    """The field's default, `count` times."""
    value = one.default
    if one.kind in (types.STRING, types.BYTES):
        data = value.encode() if isinstance(value, str) else value
        if len(data) * count >= 1 << 31:
            raise MemoryError(one.path)
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
        return pa.Array.from_buffers(one.item, count, buffers)
    if one.kind == types.DOUBLE:
        return from_numpy(np.full(count, value, np.float64), one.item)
    if one.kind == types.FLOAT:
        narrow = np.full(count, value, np.float32)
        return from_numpy(
            narrow if one.item == pa.float32() else narrow.astype(np.float64), one.item
        )
    if one.kind == types.BOOL:
        return from_numpy(np.full(count, value, np.bool_))
    if one.kind == types.ENUM and pa.types.is_string(one.item):
        return text_array([one.names.get(value, str(value))] * min(count, 1)).take(
            from_numpy(np.zeros(count, np.int32))
        )
    unsigned = one.kind in (types.UINT64, types.FIXED64)
    return _as(np.full(count, value, np.uint64 if unsigned else np.int64), one.item)[0]


def misfit(one: Field, raw: int) -> str:
    """Why a raw number is no value of the column."""
    target = types.NAMES[one.kind]
    if one.kind in _SIGNED32:
        shown = raw - (1 << 64) if raw >= 1 << 63 else raw
    elif one.kind == types.SINT32:
        shown = (raw >> 1) ^ -(raw & 1)
    else:
        shown = raw
        if one.kind == types.UINT32 and not one.exact:
            shown &= _UINT32
        if one.kind != types.UINT32 or shown <= _UINT32:
            target = str(one.item)
    return f"{shown} does not fit {target}"


def not_utf8(array: pa.Array) -> Ints:
    """Which texts of a binary array are not UTF-8."""
    wrong = []
    for index in range(len(array)):
        try:
            str(array[index].as_buffer(), "utf-8")
        except UnicodeDecodeError:
            wrong.append(index)
    return np.array(wrong, np.int64)


def codes(array: pa.Array) -> Ints:
    """The same number for the same value."""
    return to_numpy(array.dictionary_encode().indices).astype(np.int64)
