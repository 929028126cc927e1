"""Well-known messages that become scalars: their fields' columns -> one column."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.records.arrow import from_numpy, to_numpy
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.plan import Count, Field
from sparkkafka.schemas.protobuf.scalars import binary_array
from sparkkafka.schemas.protobuf.types import Special
from sparkkafka.schemas.protobuf.wire import Flags, Ints
from sparkkafka.schemas.values import BUDGET_PER_BYTE, MemoryBudget

Wrong = dict[int, str]

_MAX_SECONDS: Final = (1 << 63) // 1_000_000 - 10


def made(one: Field, arrays: list[pa.Array], present: Flags | None) -> tuple[pa.Array, Wrong]:
    """The column, and for each value that cannot be in it the reason. Where not `present` all
    fields are 0."""
    if one.special is Special.WRAPPER:
        return arrays[0], {}
    if one.special is Special.DATE:
        year, month, day = (to_numpy(array).astype(np.int64) for array in arrays)
        return _dates(year, month, day, present)
    if one.special is Special.DECIMAL:
        return _decimals(arrays[0], to_numpy(arrays[2]), one.item)
    seconds, nanos = to_numpy(arrays[0]), to_numpy(arrays[1]).astype(np.int64)
    wrong = (seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)
    reasons = {}
    if wrong.any():
        for index in np.flatnonzero(wrong).tolist():
            reasons[index] = f"{seconds[index]} s do not fit a {one.item} in microseconds"
        seconds = np.where(wrong, 0, seconds)
    # Towards zero, as Java's TimeUnit: nanos of a negative duration are negative.
    micros = seconds * 1_000_000 + np.where(nanos < 0, -(-nanos // 1000), nanos // 1000)
    return from_numpy(micros, one.item), reasons


def _dates(year: Ints, month: Ints, day: Ints, present: Flags | None) -> tuple[pa.Array, Wrong]:
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    lengths = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    in_year = (month >= 1) & (month <= 12)
    length = lengths[np.where(in_year, month, 0)] + (leap & (month == 2))
    right = in_year & (year >= 1) & (year <= 9999) & (day >= 1) & (day <= length)
    wrong = ~right if present is None else ~right & present
    # Days from civil: years begin in March, so that the leap day is the last one.
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    reasons = {
        index: f"year {year[index]}, month {month[index]}, day {day[index]} is not a date"
        for index in np.flatnonzero(wrong).tolist()
    }
    return from_numpy(np.where(right, days, 0).astype(np.int32), pa.date32()), reasons


def _decimals(unscaled: pa.Array, scales: Any, kind: pa.DataType) -> tuple[pa.Array, Wrong]:
    """Big-endian two's complement, as Java's BigInteger, with a scale of each value's own."""
    count = len(unscaled)
    _, offsets_, content_ = unscaled.buffers()
    offsets = np.frombuffer(offsets_, np.int32)[: count + 1].astype(np.int64)
    content = np.frombuffer(content_, np.uint8) if content_ is not None else np.zeros(1, np.uint8)
    if not len(content):
        content = np.zeros(1, np.uint8)
    ends, sizes = offsets[1:], np.diff(offsets)
    first = content.take(np.minimum(offsets[:-1], len(content) - 1))
    negative = (first >= 0x80) & (sizes > 0)
    words = np.empty((count, 2), np.uint64)
    words[:] = np.where(negative, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0))[:, None]
    for place in range(min(int(sizes.max()) if count else 0, 8)):
        having = np.flatnonzero(sizes > place)
        byte = content[ends[having] - 1 - place].astype(np.uint64)
        shift = np.uint64(8 * place)
        words[having, 0] &= ~(np.uint64(0xFF) << shift)
        words[having, 0] |= byte << shift
    limit = 10**kind.precision
    low = words[:, 0].view(np.int64)
    plain = (sizes <= 8) & (scales == kind.scale)
    if limit < 1 << 63:
        plain &= (low < limit) & (low > -limit)
    reasons: Wrong = {}
    for index in np.flatnonzero(~plain).tolist():
        data = content[offsets[index] : ends[index]].tobytes()
        value = _rescaled(data, int(scales[index]), kind)
        if isinstance(value, str):
            reasons[index] = value
            value = 0
        words[index, 0] = value & 0xFFFFFFFFFFFFFFFF
        words[index, 1] = (value >> 64) & 0xFFFFFFFFFFFFFFFF
    buffer = pa.py_buffer(np.ascontiguousarray(words))
    return pa.Array.from_buffers(kind, count, [None, buffer]), reasons


def _rescaled(data: bytes, scale: int, kind: pa.DataType) -> int | str:
    """The unscaled value at the column's scale, or why there is none."""
    value = int.from_bytes(data, "big", signed=True) if len(data) <= 64 else None
    if value == 0:
        return 0
    if value is not None and abs(scale) <= 200:
        move = int(kind.scale) - scale
        power = int(10 ** abs(move))
        moved, rest = (value * power, 0) if move >= 0 else divmod(value, power)
        if rest == 0 and abs(moved) < 10 ** int(kind.precision):
            return moved
    return f"a decimal of {len(data)} bytes and scale {scale} does not fit {kind}"


def json_texts(one: Field, payloads: pa.Array, budget: MemoryBudget) -> tuple[pa.Array, Wrong]:
    """google.protobuf.Struct, Value and ListValue, and messages that contain themselves, as JSON,
    one by one. An empty payload is an empty message: {}, [] or, where a Value has no kind, null."""
    protobuf = library()
    kind = json_class(one)
    texts: list[bytes] = []
    reasons: Wrong = {}
    for index in range(len(payloads)):
        data = payloads[index].as_buffer()
        text = b"null"
        try:
            message = kind.FromString(bytes(data))
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
            value = protobuf.json_format.MessageToDict(message, preserving_proto_field_name=True)
            found = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            text = found.encode()
        except (protobuf.message.DecodeError, ValueError, TypeError, RecursionError) as error:
            name = one.json or one.nested.full_name
            reasons[index] = f"it is no {name} that JSON can say: {str(error)[:200]}"
        if len(text) > BUDGET_PER_BYTE * len(data) and not budget.take(len(text)):
            reasons[index], text = "its JSON text takes too much memory, for so few bytes", b"null"
        texts.append(text)
    return binary_array(texts).cast(pa.string()), reasons


def joined_texts(one: Field, offsets: list[int], child: pa.Array) -> pa.Array:
    """One text of each list or map, whose items are texts."""
    if one.count is Count.MAP:
        keys, texts = child.field(0).cast(pa.string()).to_pylist(), child.field(1).to_pylist()
        pieces = [f"{json.dumps(key)}:{text}" for key, text in zip(keys, texts, strict=True)]
        form = "{%s}"
    else:
        pieces, form = child.to_pylist(), "[%s]"
    ends = pairwise(offsets)
    made = [(form % ",".join(pieces[start:end])).encode() for start, end in ends]
    return binary_array(made).cast(pa.string())


def json_class(one: Field) -> Any:
    """The runtime's class of a message that becomes JSON."""
    protobuf = library()
    if one.json is not None:
        return getattr(protobuf.struct_pb2, one.json)
    return protobuf.message_factory.GetMessageClass(one.nested)
