"""Functions on Arrow arrays for the decoders and encoders of all formats: no pandas, no copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.protocol.columns import byte_columns
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, words_at
from sparkkafka.schemas.values import ValueRowError

CHUNK_ROWS: Final = 1 << 15
"""The most rows that are encoded together. More make the tables of views larger, not faster."""

PIECE_BYTES: Final = 1 << 17
"""NumPy searches bytes in pieces that stay in the processor's cache, which is five times faster."""


def scalar(
    value: str | bytes | int | bool | None, arrow_type: pa.DataType | None = None
) -> pa.Scalar:
    """Return an Arrow scalar; a null is of type `arrow_type`. (`pa.scalar` imports pandas.)"""
    if value is None:
        return pa.nulls(1, arrow_type)[0]
    if isinstance(value, str):
        return arrow.repeat_text(value, 1)[0]
    if isinstance(value, bytes):
        return arrow.binary_array([value])[0]
    return arrow.from_numpy(np.array([value], np.bool_ if isinstance(value, bool) else np.int64))[0]


def flags_of(array: pa.Array) -> Flags:
    """Return a boolean array as flags, false for null."""
    if not len(array):
        return np.zeros(0, np.bool_)
    flags: Flags = arrow.bits(array.buffers()[1], array.offset, len(array)).view(np.bool_)
    return flags & arrow.is_valid(array) if array.null_count else flags


def positions(data: Bytes, byte: int) -> Ints:
    """Return the positions in the data at which this byte is."""
    return np.concatenate(
        [
            np.flatnonzero(data[begin : begin + PIECE_BYTES] == byte) + begin
            for begin in range(0, len(data), PIECE_BYTES)
        ]
        or [np.zeros(0, np.int64)]
    )


def has_pair(data: Bytes, pair: bytes) -> bool:
    """Return whether the data has these two bytes side by side."""
    for begin in range(0, len(data), PIECE_BYTES):
        piece = data[begin : begin + PIECE_BYTES + 1]
        is_first = piece[:-1] == pair[0]
        if is_first.any() and (is_first & (piece[1:] == pair[1])).any():
            return True
    return False


def offsets_of(lengths: Any, dtype: Any = np.int64) -> NDArray[Any]:
    """Return the offsets of concatenated lists or texts of these lengths: one number more than
    there are lengths, from 0 on."""
    offsets = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def null_outside(values: pa.Array, mask: Flags) -> pa.Array:
    """Return the values as an array that is also null where `mask` is false. The memory of the
    values is shared."""
    arrow_type = values.type
    if pa.types.is_null(arrow_type):
        return values
    if values.null_count:
        mask = mask & arrow.is_valid(values)
    if values.offset:  # no decoder returns such an array
        values = pa.concat_arrays([values])
    children = None
    buffers = values.buffers()[1:]
    if pa.types.is_struct(arrow_type):
        children, buffers = [values.field(i) for i in range(arrow_type.num_fields)], []
    elif pa.types.is_map(arrow_type):
        entry = pa.struct([arrow_type.key_field, arrow_type.item_field])
        pairs = [values.keys, values.items]
        children = [pa.Array.from_buffers(entry, len(values.keys), [None], children=pairs)]
        buffers = buffers[:1]
    elif pa.types.is_list(arrow_type):
        children, buffers = [values.values], buffers[:1]
    return pa.Array.from_buffers(
        arrow_type, len(values), [validity(mask), *buffers], children=children
    )


def spread(values: pa.Array, rows: Ints, count: int) -> pa.Array:
    """Return an array of `count` rows: value i at rows[i], and null in all other rows."""
    indexes = np.zeros(count, np.int32)
    indexes[rows] = np.arange(len(rows), dtype=np.int32)
    has_value = np.zeros(count, np.bool_)
    has_value[rows] = True
    buffers = [validity(has_value), pa.py_buffer(indexes)]
    return values.take(pa.Array.from_buffers(pa.int32(), count, buffers))


def content_of(values: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of all values of a binary or string array as one array, which shares their
    memory, and their offsets in it: value i has the bytes from offsets[i] up to offsets[i + 1]."""
    offsets = arrow.blob_offsets(values).astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    return data, offsets


def as_texts(values: pa.Array) -> pa.Array:
    """Return a binary array as strings, of the same memory. Raises ArrowInvalid if a value is not
    UTF-8."""
    if len(values):
        offsets = arrow.blob_offsets(values)
        data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        if data.max(initial=0) < 128:  # only ASCII, which Arrow would check value by value
            return values.view(pa.string())
    return values.cast(pa.string())


def is_utf8(texts: pa.Array) -> Flags:
    """Return for each value of a binary array whether it is UTF-8. Unless all are, those that are
    not ASCII are checked one by one."""
    with suppress(pa.ArrowInvalid):
        as_texts(texts)
        return np.ones(len(texts), np.bool_)
    return _check_utf8(texts)[0]


def replace_bad_texts(texts: pa.Array) -> tuple[pa.Array, Flags]:
    """Return a binary array, some values of which are not UTF-8, as strings of the same memory, and
    for each value whether it is UTF-8. In this memory the bytes of bad values become question
    marks: all of them, or only those that are not ASCII."""
    flags, rows, others = _check_utf8(texts)
    data, offsets = content_of(texts)
    if rows is not None:
        data[others[~flags[rows]]] = ord("?")
    else:
        bad = np.flatnonzero(~flags)
        for start, end in zip(offsets[bad].tolist(), offsets[bad + 1].tolist(), strict=True):
            data[start:end] = ord("?")
    return texts.view(pa.string()), flags


def _check_utf8(texts: pa.Array) -> tuple[Flags, Ints | None, Ints]:
    """Return for each value of a binary array whether it is UTF-8; for each byte that is not ASCII
    the value that has it, or None if they are more than a few in each value; and the positions of
    these bytes in `content_of`."""
    flags = np.ones(len(texts), np.bool_)
    data, offsets = content_of(texts)
    others = np.flatnonzero(data >= 0x80)
    rows_of_others = None
    if len(others) < 4 * len(texts):
        rows_of_others = np.searchsorted(offsets, others, "right") - 1
        is_first = np.diff(rows_of_others, prepend=-1) != 0
        rows, first = rows_of_others[is_first], others[is_first]
    else:
        indexes = np.searchsorted(others, offsets)
        rows = np.flatnonzero(np.diff(indexes))
        first = others[indexes[rows]]
    # The first byte that is not ASCII begins a character, and another byte of it follows.
    second = data.take(first + 1, mode="clip")
    flags[rows] = (data[first] >= 0xC2) & (second >= 0x80) & (second < 0xC0)
    rows = rows[flags[rows]]
    spans = zip(rows.tolist(), offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
    for row, start, end in spans:
        try:
            str(data.data[start:end], "utf-8")
        except UnicodeDecodeError:
            flags[row] = False
    return flags, rows_of_others, others


def as_type(
    array: pa.Array,
    target: pa.DataType,
    leaf: Callable[[pa.Array, pa.DataType], pa.Array] = lambda array, target: array.cast(target),
) -> pa.Array:
    """Return the array as the type `target`. Other names of list items and other nullability need
    no copy. `leaf` converts values that are not nested, if their type differs."""
    source = array.type
    if source.equals(target, check_metadata=True):
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    if not pa.types.is_nested(source):
        return leaf(array, target)
    is_known = pa.types.is_struct(source) or pa.types.is_map(source) or pa.types.is_list(source)
    if source.id != target.id or source.num_fields != target.num_fields or not is_known:
        return array.cast(target)
    if array.offset:
        array = pa.concat_arrays([array])
    buffers = array.buffers()[:2]
    if pa.types.is_struct(source):
        buffers = buffers[:1]
        children = [as_type(array.field(i), part.type, leaf) for i, part in enumerate(target)]
    elif pa.types.is_map(source):
        parts = [target.key_field.with_name("key"), target.item_field.with_name("value")]
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        children = [as_type(entries, pa.struct(parts), leaf)]
    else:
        children = [as_type(array.values, target.value_type, leaf)]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, children=children)


def as_nullable(
    arrow_type: pa.DataType,
    leaf: Callable[[pa.DataType], pa.DataType] = lambda arrow_type: arrow_type,
) -> pa.DataType:
    """Return the type with all its fields nullable, as Spark writes files: in a row whose struct is
    null, the struct's fields are null too. `leaf` replaces types that are not nested."""
    if pa.types.is_map(arrow_type):
        key = pa.field("key", as_nullable(arrow_type.key_type, leaf), nullable=False)
        return pa.map_(key, pa.field("value", as_nullable(arrow_type.item_type, leaf)))
    if pa.types.is_list(arrow_type):
        return pa.list_(pa.field("element", as_nullable(arrow_type.value_type, leaf)))
    if pa.types.is_struct(arrow_type):
        return pa.struct([(field.name, as_nullable(field.type, leaf)) for field in arrow_type])
    return leaf(arrow_type)


def with_small_offsets(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type with strings and binaries of 32-bit offsets, at all levels, in place of those
    of 64 bits; the same type if it has none of these."""
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    target = as_nullable(arrow_type, lambda leaf: small.get(leaf, leaf))
    return arrow_type if target == as_nullable(arrow_type) else target


def repeated_keys(keys: pa.Array, counts: Ints) -> Ints:
    """Return the indexes of keys that come again later in the same map. `counts`: how many keys
    each map has."""
    max_items = int(counts.max(initial=0))
    has_bytes = pa.types.is_string(keys.type) or pa.types.is_binary(keys.type)
    if max_items < 2 or (has_bytes and not _may_repeat(keys, counts, max_items)):
        return np.zeros(0, np.int64)
    coded = keys.dictionary_encode()
    codes = _maps_of(counts) * len(coded.dictionary) + arrow.to_numpy(coded.indices)
    order = np.argsort(codes, kind="stable")
    repeated: Ints = order[:-1][np.diff(codes[order]) == 0]
    return repeated


def _maps_of(counts: Ints) -> Ints:
    """Return for each key the number of its map. `counts`: how many keys each map has."""
    return np.repeat(np.arange(len(counts)), counts)


def _may_repeat(keys: pa.Array, counts: Ints, max_items: int) -> bool:
    """Return whether a map may have a key twice: one of the same length, with the same first eight
    bytes and last byte. That costs a fraction of a comparison of whole keys."""
    offsets = arrow.blob_offsets(keys)
    lengths = np.diff(offsets)
    content = np.frombuffer(keys.buffers()[2] or bytes(1), np.uint8)

    def words_of(index: Any) -> NDArray[np.uint64]:
        return first_words(content, offsets[index].astype(np.int64), lengths[index])

    if max_items > 32:  # comparing neighbours is faster than sorting, up to there
        words = words_of(slice(0, len(lengths)))
        # Mixed to one number; two that differ are rarely mixed to the same one.
        words ^= lengths.astype(np.uint64) * _MIXER
        words ^= _maps_of(counts).view(np.uint64) * (_MIXER << np.uint64(1))
        words.sort()
        return bool((words[1:] == words[:-1]).any())
    # Each mark is a key's length and last byte.
    marks = lengths << 8 | content.take(offsets[1:] - 1, mode="clip")
    marks[lengths == 0] = 0
    begins = np.zeros(len(marks) + 1, np.bool_)
    begins[np.cumsum(counts)] = True
    other = np.zeros(len(marks), np.bool_)  # whether the key so far behind is of another map
    for distance in range(1, max_items):
        other = other[:-1] | begins[distance:-1]
        alike = np.flatnonzero((marks[distance:] == marks[:-distance]) > other)
        if len(alike) and (words_of(alike) == words_of(alike + distance)).any():
            return True
    return False


def first_words(data: Bytes, at: Ints, lengths: Ints) -> NDArray[np.uint64]:
    """Return the first eight bytes of each text as a number, whose lowest byte is the first one;
    zeros stand behind a shorter text. `at`: where each text begins in `data`."""
    words = words_at(data, at)
    words &= _FIRST_BYTES.take(lengths, mode="clip")
    return words


_FIRST_BYTES: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / the golden ratio: Fibonacci hashing


def field_of(values: pa.Array, name: str) -> pa.Array | None:
    """Return one field of an array of structs as an array, null where the struct is null; None if
    the structs have no such field."""
    index = values.type.get_field_index(name)
    return None if index < 0 else pc.struct_field(values, [index])


def item_counts(lists: pa.Array) -> Ints:
    """Return how many items each list or map has; 0 for null."""
    counts: Ints = np.diff(arrow.blob_offsets(lists)).astype(np.int64)
    return counts * arrow.is_valid(lists) if lists.null_count else counts


def map_items(maps: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of all maps that are not null, one after the other."""
    offsets = arrow.blob_offsets(maps)
    first, last = int(offsets[0]), int(offsets[-1])
    if not maps.null_count:
        return maps.keys[first:last], maps.items[first:last]
    has_map = np.repeat(arrow.is_valid(maps), np.diff(offsets))
    index = arrow.from_numpy((np.flatnonzero(has_map) + first).astype(np.int64))
    return maps.keys.take(index), maps.items.take(index)


def struct_of(
    arrow_type: pa.DataType, count: int, valid: Flags | None, children: list[pa.Array]
) -> pa.Array:
    """Return an array of `count` structs of type `arrow_type` with these columns (`children`), null
    where `valid` is false (None: none is null)."""
    children = [as_type(child, part.type) for child, part in zip(children, arrow_type, strict=True)]
    bitmap = None if valid is None or valid.all() else validity(valid)
    return pa.Array.from_buffers(arrow_type, count, [bitmap], children=children)


def spread_bytes(array: pa.Array, valid: Flags) -> pa.Array:
    """Return a binary array of as many values as `valid` has: those of `array` where it is true,
    and no bytes elsewhere."""
    return byte_columns.regroup(array, offsets_of(valid))


def encode_chunks(
    values: pa.Array,
    prefix: bytes,
    encode_rows: Callable[[pa.Array, Ints], Sequence[byte_columns.ByteColumn]],
) -> pa.Array:
    """Return the payload of each value, after `prefix`, null for a null, as a binary array; as
    large_binary if they take more than 2 GiB. `encode_rows` is called with values that are not null
    and the index of each (which its ValueRowError has), and returns columns of their bytes."""

    def encode_range(low: int, high: int) -> list[pa.Array]:
        """Encode the rows from `low` to `high`: all at once, unless they take too much."""
        chunk = values.slice(low, high - low)
        not_null, rows, valid = chunk, np.arange(low, high), None
        if chunk.null_count:
            valid = arrow.is_valid(chunk)
            not_null, rows = chunk.drop_null(), rows[valid]
        try:
            encoded = byte_columns.join(
                [*byte_columns.constant(prefix), *encode_rows(not_null, rows)], len(rows)
            )
        except byte_columns.TooLargeError:
            if high - low == 1:
                raise ValueRowError(low, "the value takes more than 2 GiB") from None
            middle = (low + high) // 2
            return encode_range(low, middle) + encode_range(middle, high)
        if valid is None:
            return [encoded]
        _, offsets, data = spread_bytes(encoded, valid).buffers()
        return [pa.Array.from_buffers(pa.binary(), len(chunk), [validity(valid), offsets, data])]

    arrays: list[pa.Array] = []
    step = -(-len(values) // max(1, -(-len(values) // CHUNK_ROWS)))  # 50,000 as 25,000 twice
    for low in range(0, len(values), max(step, 1)):
        arrays += encode_range(low, min(low + step, len(values)))
    if not arrays:
        return pa.nulls(0, pa.binary())
    if len(arrays) == 1:
        return arrays[0]
    if sum(array.nbytes for array in arrays) > byte_columns.MAX_BYTES:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    return pa.concat_arrays(arrays)
