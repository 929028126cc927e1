"""Arrow values of a column -> the numbers, texts and fields of messages they are written as."""

from __future__ import annotations

import difflib
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.records.arrow import from_numpy, is_valid, to_numpy
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.plan import Count, Field
from sparkkafka.schemas.protobuf.scalars import binary_array
from sparkkafka.schemas.protobuf.specials import json_class
from sparkkafka.schemas.protobuf.types import Special
from sparkkafka.schemas.protobuf.wire import Ints
from sparkkafka.schemas.values import ValueRowError

_LIMITS: Final = {
    types.INT32: (-(1 << 31), (1 << 31) - 1),
    types.SINT32: (-(1 << 31), (1 << 31) - 1),
    types.SFIXED32: (-(1 << 31), (1 << 31) - 1),
    types.ENUM: (-(1 << 31), (1 << 31) - 1),
    types.UINT32: (0, (1 << 32) - 1),
    types.FIXED32: (0, (1 << 32) - 1),
    types.UINT64: (0, (1 << 64) - 1),
    types.FIXED64: (0, (1 << 64) - 1),
}
_POWERS: Final = np.array([10**digits for digits in range(19)], np.int64)


def integers(array: pa.Array) -> Ints:
    """As int64; 0 for null."""
    values = to_numpy(array).astype(np.int64)
    if array.null_count:
        values *= is_valid(array)
    return values


def raw(one: Field, array: pa.Array, rows: Ints) -> Any:
    """Numbers as the wire has them: uint64 for varints and eight bytes, uint32 for four. What is
    null is 0. Raises ValueRowError."""
    kind, given = one.kind, array.type
    if kind == types.BOOL:
        bits = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.zeros(0, np.uint8)
        flags = np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)]
        return (flags & is_valid(array)).astype(np.uint64)
    if kind in (types.DOUBLE, types.FLOAT):
        return _floats(one, array)
    if kind == types.ENUM and not pa.types.is_integer(given):
        return _enum_numbers(one, array, rows).view(np.uint64)
    if pa.types.is_decimal(given):
        return _from_decimals(one, array, rows)
    values = integers(array)
    least, most = _LIMITS.get(kind, (-(1 << 63), (1 << 63) - 1))
    if len(values) and (int(values.min()) < least or int(values.max()) > most):
        at = int(np.flatnonzero((values < least) | (values > most))[0])
        raise _misfit(one, rows[at], int(values[at]))
    if kind == types.ENUM and one.closed:
        _check_known(one, values, rows, is_valid(array))
    return _on_wire(kind, values)


def _on_wire(kind: int, values: Ints) -> Any:
    if kind in (types.SINT32, types.SINT64):
        return ((values << 1) ^ (values >> 63)).view(np.uint64)
    if kind in (types.SFIXED32, types.FIXED32):
        return values.view(np.uint64).astype(np.uint32)
    return values.view(np.uint64)


def _misfit(one: Field, row: Any, value: Any) -> ValueRowError:
    return ValueRowError(
        int(row), f"field {one.path}: {value} does not fit {types.NAMES[one.kind]}"
    )


def _floats(one: Field, array: pa.Array) -> Any:
    width = np.float64 if pa.types.is_float64(array.type) else np.float32
    if not len(array):
        values = np.zeros(0, width)
    else:
        values = np.frombuffer(array.buffers()[1], width)
        values = values[array.offset : array.offset + len(array)]
    if array.null_count:
        values = np.where(is_valid(array), values, width(0))
    if one.kind == types.FLOAT:
        return values.view(np.uint32)
    return values.astype(np.float64).view(np.uint64)


def _enum_numbers(one: Field, array: pa.Array, rows: Ints) -> Ints:
    """Numbers of names; an open enum also has numbers as text, as they are read."""
    coded = array.dictionary_encode()
    numbers = dict(one.aliases)
    found = np.zeros(len(coded.dictionary) + 1, np.int64)
    for index in range(len(coded.dictionary)):
        name = coded.dictionary[index].as_py()
        number: int | None = numbers.get(name)
        if number is None and not one.closed and name.lstrip("-").isdecimal():
            number = int(name) if -(1 << 31) <= int(name) < 1 << 31 else None
        if number is None:
            at = int(np.flatnonzero(is_valid(array) & (integers(coded.indices) == index))[0])
            near = difflib.get_close_matches(name, list(numbers), 3) or list(numbers)[:5]
            raise ValueRowError(
                int(rows[at]),
                f"field {one.path}: the enum has no value {name[:100]!r}: it has {', '.join(near)}",
            )
        found[index] = number
    indices = integers(coded.indices)
    if array.null_count:
        indices = np.where(is_valid(array), indices, len(coded.dictionary))
    return found[indices]


def _check_known(one: Field, values: Ints, rows: Ints, valid: Any) -> None:
    known = np.isin(values, np.array(sorted(one.names), np.int64)) | ~valid
    if not known.all():
        at = int(np.flatnonzero(~known)[0])
        raise ValueRowError(
            int(rows[at]), f"field {one.path}: the enum has no number {int(values[at])}"
        )


def _words(array: pa.Array) -> tuple[Ints, Ints]:
    """Low and high words of decimals; 0 for null."""
    if not len(array):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    if array.null_count:
        words = words * is_valid(array)[:, None]
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])


def _from_decimals(one: Field, array: pa.Array, rows: Ints) -> Any:
    """Whole decimals as an integer field."""
    low, high = _words(array)
    unsigned = one.kind in (types.UINT64, types.FIXED64)
    fits = high == 0 if unsigned else high == low >> 63
    least, most = _LIMITS.get(one.kind, (-(1 << 63), (1 << 63) - 1))
    if not unsigned:
        fits &= (low >= max(least, -(1 << 63))) & (low <= min(most, (1 << 63) - 1))
    if not fits.all():
        at = int(np.flatnonzero(~fits)[0])
        raise _misfit(one, rows[at], array[at].as_py())
    return _on_wire(one.kind, low)


def texts(one: Field, array: pa.Array) -> pa.Array:
    """Strings and bytes as a binary array of its own, where null is empty."""
    plain = array.cast(pa.binary()) if pa.types.is_string(array.type) else array
    if not plain.null_count:
        return plain
    sizes = np.diff(np.frombuffer(plain.buffers()[1], np.int32)[plain.offset :][: len(plain) + 1])
    if not int((sizes * ~is_valid(plain)).sum()):
        buffers = [None, *plain.buffers()[1:]]
        return pa.Array.from_buffers(pa.binary(), len(plain), buffers, offset=plain.offset)
    return plain.fill_null(b"")


def special(one: Field, array: pa.Array, rows: Ints) -> list[pa.Array]:
    """The fields of a well-known message, for values without nulls. Raises ValueRowError."""
    if one.special is Special.DATE:
        return _date_fields(one, to_numpy(array.cast(pa.int32())).astype(np.int64), rows)
    if one.special is Special.DECIMAL:
        return _decimal_fields(array)
    micros = to_numpy(array.cast(pa.int64()))
    seconds = micros // 1_000_000
    rest = micros - seconds * 1_000_000
    if one.special is Special.DURATION:  # both of one sign
        towards_zero = (micros < 0) & (rest != 0)
        seconds = seconds + towards_zero
        rest = rest - 1_000_000 * towards_zero
    return [from_numpy(seconds), from_numpy((rest * 1000).astype(np.int32))]


def _date_fields(one: Field, days: Ints, rows: Ints) -> list[pa.Array]:
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_ = (5 * of_year + 2) // 153
    day = of_year - (153 * month_ + 2) // 5 + 1
    month = np.where(month_ < 10, month_ + 3, month_ - 9)
    year = year_of_era + era * 400 + (month <= 2)
    wrong = (year < 1) | (year > 9999)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ValueRowError(
            int(rows[at]), f"field {one.path}: the year {year[at]} is not one of google.type.Date"
        )
    return [from_numpy(part.astype(np.int32)) for part in (year, month, day)]


def _decimal_fields(array: pa.Array) -> list[pa.Array]:
    """As Confluent's clients write: big-endian two's complement in as few bytes as it needs, the
    value's own precision, the column's scale."""
    count = len(array)
    low, high = _words(array)
    small = high == low >> 63
    magnitude = np.abs(np.where(small & (low != -(1 << 63)), low, 0))
    digits = np.maximum(np.searchsorted(_POWERS, magnitude, "right"), 1)
    folded = np.where(low < 0, ~low, low)
    sizes = np.ones(count, np.int64)
    for width in range(1, 8):
        sizes += folded >= 1 << (8 * width - 1)
    large = np.flatnonzero(~small | (low == -(1 << 63)))
    others: dict[int, bytes] = {}
    for index in large.tolist():
        value = (int(high[index]) << 64) | (int(low[index]) & 0xFFFFFFFFFFFFFFFF)
        bits = (value if value >= 0 else ~value).bit_length()
        others[index] = value.to_bytes(bits // 8 + 1, "big", signed=True)
        sizes[index], digits[index] = len(others[index]), len(str(abs(value)))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    content = np.empty(int(offsets[-1]), np.uint8)
    for place in range(8):
        having = np.flatnonzero(sizes > place)
        content[offsets[1:][having] - 1 - place] = (low[having] >> (8 * place)).astype(np.uint8)
    for index, data in others.items():
        content[offsets[index] : offsets[index + 1]] = np.frombuffer(data, np.uint8)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return [
        pa.Array.from_buffers(pa.binary(), count, buffers),
        from_numpy(digits.astype(np.int64)),
        from_numpy(np.full(count, array.type.scale, np.int32)),
    ]


def from_json(one: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """JSON text as google.protobuf.Struct, Value or ListValue, or as a message that contains
    itself, one by one."""
    protobuf = library()
    kind = json_class(one)
    name = one.json or one.nested.full_name
    pieces = []
    for index in range(len(array)):
        try:
            value = json.loads(array[index].as_py())
            message = protobuf.json_format.ParseDict(value, kind())
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
        except (ValueError, TypeError, RecursionError, protobuf.json_format.ParseError) as error:
            raise ValueRowError(
                int(rows[index]), f"field {one.path}: no JSON of a {name}: {str(error)[:200]}"
            ) from error
        pieces.append(message.SerializeToString(deterministic=True))
    return binary_array(pieces)


def split_texts(one: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """JSON texts of lists or maps as lists or maps of JSON texts."""
    is_map = one.count is Count.MAP
    key = one.message.fields[0] if is_map and one.message else None
    kind = pa.list_(pa.string()) if key is None else pa.map_(key.type, pa.string())
    found: list[Any] = []
    for index, text in enumerate(array.to_pylist()):
        try:
            value = None if text is None else json.loads(text)
            if value is None:
                found.append(None)
            elif key is None and isinstance(value, list):
                found.append([json.dumps(each) for each in value])
            elif key is not None and isinstance(value, dict):
                found.append([(_key(key, name), json.dumps(each)) for name, each in value.items()])
            else:
                raise ValueError(f"it is no {'object' if is_map else 'array'}")
        except (ValueError, LookupError, RecursionError) as error:
            raise ValueRowError(
                int(rows[index]), f"field {one.path}: no JSON of it: {str(error)[:200]}"
            ) from None
    return pa.array(found, kind)


def _key(key: Field, name: str) -> Any:
    """A map's key of its text in JSON."""
    if key.kind == types.BOOL:
        return {"true": True, "false": False}[name]
    return name if key.kind == types.STRING else int(name)


def from_bytes(one: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """Bytes of messages, which must be such, one by one."""
    protobuf = library()
    kind = json_class(one)
    for index in range(len(array)):
        try:
            is_whole = kind.FromString(array[index].as_py()).IsInitialized()
        except protobuf.message.DecodeError:
            is_whole = False
        if not is_whole:
            name = one.nested.full_name
            raise ValueRowError(int(rows[index]), f"field {one.path}: no bytes of a {name}")
    return texts(one, array)
