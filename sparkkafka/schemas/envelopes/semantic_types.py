"""Semantic types of Debezium and Kafka Connect as types of Spark: whole columns at once.

`value_type` is the type that a Connect type becomes, `convert` converts decoded values to it or to
another type that the user chose. A value that cannot be converted makes its row bad.
`find_placeholders` finds what Debezium's Postgres and Oracle connectors send for values that they
do not have.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.config import kinds
from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records.arrow import binary_array, blob_offsets, from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import Flags, Ints
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import (
    as_type,
    flags_of,
    item_counts,
    map_items,
    null_outside,
    offsets_of,
    scalar,
    struct_of,
)
from sparkkafka.schemas.envelopes.connect_types import (
    DECIMAL,
    MAX_DIGITS,
    VARIABLE_SCALE,
    ConnectType,
)
from sparkkafka.schemas.json.syntax import scale_number
from sparkkafka.schemas.schema_errors import child_path, label, names_hint
from sparkkafka.schemas.values import MemoryBudget, type_name

_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."

DATE: Final = f"{_TIME}Date"

_MAX_SCALE: Final = 16_383
_MAX_TEXT_DIGITS: Final = 131_072 + _MAX_SCALE
"""The limits of Postgres's numeric, which are the largest of all databases."""

SCALARS: Final = r'(?:[^{}"]|"(?:[^"\\]|\\.)*")*'
"""JSON text without an object."""

_INSTANT = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")

INFINITIES: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
"""Postgres's infinity in ZonedTimestamp, and the microseconds that Debezium sends for it where a
timestamp has no zone."""

_INFINITE_TEXTS: Final = {
    "infinity": re.compile(r"infinity$|\+294247-01-10T04:00:25|\+292278994-|-5877611-06-21"),
    "-infinity": re.compile(r"-infinity$|-290308-12-21T19:59:27|\+292269055-|-5877611-06-22"),
}
"""What Debezium sends for it as ISO texts, which have the same overflows as `_INFINITE_DAYS`."""

_INFINITE_NANOS: Final = {"infinity": 2**63 - 1, "-infinity": -(2**63)}

DAY_US: Final = 86_400 * 10**6
_FIRST_DAY: Final = -2_440_588
"""The first day of Postgres, in 4714 BC. No other database has an earlier one."""

# Not by pa.array, which imports pandas.
_INFINITE_DAYS: Final = {
    "infinity": from_numpy(np.array([-622_191_234, -622_191_233, -2_147_472_692], np.int32)),
    "-infinity": from_numpy(np.array([-625_821_272, -625_821_271, -2_147_472_691], np.int32)),
}
"""What Debezium sends for an infinite date. In snapshots and arrays the days of the JDBC driver's
infinity overflow, which begins a day later in time zones east of UTC; in changes those of
Postgres's infinity, which counts from 2000."""

CYCLE_US: Final = 146_097 * DAY_US
"""The microseconds of 400 years, after which the calendar repeats."""

_TIMES_OF_DAY: Final = {
    f"{_TIME}Time": 3,
    f"{_CONNECT}Time": 3,
    f"{_TIME}MicroTime": 6,
    f"{_TIME}NanoTime": 9,
}
"""The digits behind the seconds."""

_TYPES: Final[Mapping[str, pa.DataType]] = {
    DATE: pa.date32(),
    f"{_CONNECT}Date": pa.date32(),
    f"{_TIME}IsoDate": pa.date32(),
    **dict.fromkeys(_TIMES_OF_DAY, pa.string()),
    f"{_TIME}Timestamp": _LOCAL,
    f"{_TIME}MicroTimestamp": _LOCAL,
    f"{_TIME}NanoTimestamp": _LOCAL,
    f"{_TIME}IsoTimestamp": _LOCAL,
    f"{_TIME}ZonedTimestamp": _INSTANT,
    f"{_CONNECT}Timestamp": _INSTANT,
    f"{_TIME}MicroDuration": pa.duration("us"),
    f"{_TIME}NanoDuration": pa.duration("us"),
    VARIABLE_SCALE: pa.string(),
}
"""The types of the semantic types that are not what their values are."""


def value_type(node: ConnectType) -> pa.DataType:
    """Return the type that values of a Connect type become."""
    if node.name == DECIMAL and node.leaf is not None and not pa.types.is_decimal(node.leaf):
        digits = _decimal_digits(node)
        return pa.decimal128(*digits) if digits else pa.string()
    if node.name in _TYPES:
        return _TYPES[node.name]
    if node.is_base64:
        return pa.binary()
    if node.leaf is not None:
        return node.leaf
    if node.is_list:
        return pa.list_(pa.field("element", value_type(node.item)))
    if node.is_map:
        return pa.map_(pa.string(), pa.field("value", value_type(node.item)))
    return pa.struct([(name, value_type(child)) for name, child in node.children.items()])


def _decimal_digits(node: ConnectType) -> tuple[int, int] | None:
    """Return precision and scale of Connect's Decimal; None if no column can have them."""
    scale = int(node.parameters["scale"])  # `connect_types` has checked it
    try:
        precision = int(node.parameters["connect.decimal.precision"])
    except (KeyError, TypeError, ValueError):
        precision = MAX_DIGITS  # the connector did not send it
    if not 0 <= scale <= precision <= MAX_DIGITS or not precision:
        return None
    return precision, scale


def check_target(node: ConnectType, target: pa.DataType, path: str, *, lenient: bool) -> None:
    """Raise OptionError, with the field, unless values of the type can become `target`. `lenient`:
    a field that the type lacks is null."""
    if pa.types.is_struct(target) and node.is_struct and node.name not in _TYPES:
        for child in target:
            field_path = child_path(path, child.name)
            if child.name in node.children:
                check_target(node.children[child.name], child.type, field_path, lenient=lenient)
            elif not lenient:
                raise OptionError(
                    f"{label(field_path)} of the requested schema is not in the records' schema: "
                    f"{names_hint(child.name, node.children)}"
                )
        return
    if pa.types.is_list(target) and node.is_list:
        check_target(node.item, target.value_type, f"{path}[]", lenient=lenient)
        return
    if pa.types.is_map(target) and node.is_map:
        check_target(node.item, target.item_type, f"{path}{{}}", lenient=lenient)
        return
    source = value_type(node)
    if source == target or pa.types.is_null(source) or _can_cast(source, target):
        return
    raise OptionError(
        f"{label(path)} is {node.name or type_name(source)}, which cannot become "
        f"{type_name(target)}"
    )


def _can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of one type can be cast to another; False for types with fields or
    items."""
    types = pa.types
    if types.is_nested(source) or types.is_nested(target):
        return False
    own_number, target_number = (
        types.is_integer(side) or types.is_floating(side) or types.is_decimal(side)
        for side in (source, target)
    )
    return bool(
        (own_number and target_number)
        or (types.is_string(target) and not types.is_binary(source))
        or (
            types.is_string(source)
            and not types.is_boolean(target)
            and not types.is_duration(target)
        )
        or (_is_day_or_instant(source) and _is_day_or_instant(target))
    )


def _is_day_or_instant(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type))


# --- conversion -------------------------------------------------------------------------------


@dataclass
class BadRows:
    """Why rows are bad, by row. `budget`: the memory for values that are much larger than their
    bytes; `payloads`: the bytes of all rows."""

    reasons: dict[int, str] = field(default_factory=dict)
    budget: MemoryBudget | None = None
    payloads: pa.Array | None = None

    def add(self, rows: Ints, flags: Flags, path: str, reason: str) -> None:
        """Add the rows of values for which `flags` is true. `rows`: the row of each value."""
        for row in rows[flags].tolist():
            self.reasons.setdefault(row, f"{label(path)}: {reason}")


@dataclass(frozen=True)
class FieldContext:
    """The field whose values are converted, the row of each value, and the bad rows so far."""

    bad_rows: BadRows
    rows: Ints
    path: str = ""

    def below(self, name: str) -> FieldContext:
        return FieldContext(self.bad_rows, self.rows, child_path(self.path, name))

    def fail(self, flags: Flags, reason: str) -> None:
        if flags.any():
            self.bad_rows.add(self.rows, flags, self.path, reason)


def convert(
    values: pa.Array, node: ConnectType, target: pa.DataType, context: FieldContext
) -> pa.Array:
    """Convert decoded values of the Connect type `node` to the Arrow type `target`. Values that
    cannot be converted become null, and their rows bad (`context`); fields of `target` that `node`
    lacks are null."""
    if _is_plain(node, target):
        return as_type(values, target)
    if node.name == DECIMAL and node.is_base64 and pa.types.is_string(values.type):
        return _json_decimal(values, node, target, context)
    if node.name in _CONVERSIONS or node.is_base64:
        values = _without_base64(values, node, context)
        if node.name in _CONVERSIONS:
            needs_conversion, conversion = _CONVERSIONS[node.name]
            if needs_conversion(values.type):  # otherwise the decoder has converted it
                values = conversion(values, node, context)
        return _cast(values, target, context)
    if pa.types.is_struct(target) and node.is_struct:
        children = []
        for child in target:
            if child.name in node.children:
                inner = pc.struct_field(values, [values.type.get_field_index(child.name)])
                child_node = node.children[child.name]
                children.append(convert(inner, child_node, child.type, context.below(child.name)))
            else:
                children.append(pa.nulls(len(values), child.type))
        return struct_of(target, len(values), is_valid(values), children)
    is_map = pa.types.is_map(target) and node.is_map
    if is_map or (pa.types.is_list(target) and node.is_list):
        counts = item_counts(values)
        own_keys, own_items = map_items(values) if is_map else (None, values.flatten())
        rows = np.repeat(context.rows, counts)
        item_context = FieldContext(context.bad_rows, rows, context.path)
        item_type = target.item_type if is_map else target.value_type
        items = convert(own_items, node.item, item_type, item_context)
        if is_map:
            entry = pa.struct([target.key_field, target.item_field])
            items = struct_of(entry, len(items), None, [own_keys, items])
        buffers = [validity(is_valid(values)), pa.py_buffer(offsets_of(counts, np.int32))]
        return pa.Array.from_buffers(target, len(values), buffers, children=[items])
    return _cast(values, target, context)


def _is_plain(node: ConnectType, target: pa.DataType) -> bool:
    """Return whether decoded values have the type `target` without a conversion."""
    if node.is_base64 or node.name in _CONVERSIONS:
        return False
    if node.leaf is not None:
        return bool(node.leaf == target)
    if node.is_struct:
        return (
            pa.types.is_struct(target)
            and [child.name for child in target] == list(node.children)
            and all(_is_plain(node.children[child.name], child.type) for child in target)
        )
    if node.is_list:
        return pa.types.is_list(target) and _is_plain(node.item, target.value_type)
    return pa.types.is_map(target) and _is_plain(node.item, target.item_type)


def _cast(values: pa.Array, target: pa.DataType, context: FieldContext) -> pa.Array:
    """Return the values as `target`. Values that cannot be converted become null, and their rows
    bad."""
    source = values.type
    if source == target or pa.types.is_null(source):
        return as_type(values, target)
    if (
        pa.types.is_timestamp(source)
        and pa.types.is_timestamp(target)
        and source.unit == target.unit
    ):
        return values.view(target)  # a time without a zone is taken for UTC
    if pa.types.is_nested(source) or pa.types.is_nested(target) or pa.types.is_binary(source):
        # The schema gives a semantic type to a type that cannot have it.
        context.fail(is_valid(values), f"a {type_name(source)}, not of type {type_name(target)}")
        return pa.nulls(len(values), target)
    bad, fitting = np.zeros(len(values), np.bool_), values
    if pa.types.is_decimal(source if pa.types.is_floating(target) else target):
        fitting = values.cast(pa.string())  # Arrow converts decimals and numbers inexactly
    if pa.types.is_string(source) and pa.types.is_integer(target):
        bad = flags_of(pc.match_substring_regex(values, "^0[xX]"))  # Arrow would accept hexadecimal
        fitting = without(values, bad) if bad.any() else values
    elif pa.types.is_decimal(target):
        bad, fitting = _checked_decimals(fitting, target)
    result, failed = _cast_parts(fitting, target)
    bad |= failed
    if pa.types.is_floating(target) and pc.any(pc.is_inf(result)).as_py():
        # Of a number that is too large Arrow makes infinity, which a text may be itself.
        is_text = pa.types.is_string(source)
        is_number = pc.match_substring_regex(values, r"\d") if is_text else pc.is_finite(values)
        bad |= flags_of(pc.is_inf(result)) & flags_of(is_number)
    if bad.any():  # Python has no objects for some of Arrow's days and times
        texts = values.filter(from_numpy(bad)).cast(pa.string()).to_pylist()
        for row, text in zip(context.rows[bad].tolist(), texts, strict=True):
            reason = f"{label(context.path)}: {text[:100]!r} is not of type {type_name(target)}"
            context.bad_rows.reasons.setdefault(row, reason)
    return result


def _checked_decimals(texts: pa.Array, target: pa.DataType) -> tuple[Flags, pa.Array]:
    """Return which numbers do not fit, as far as Arrow does not find out, and the others. Of some
    numbers with many digits or an exponent Arrow makes wrong decimals, or the process crashes."""
    pattern = rf"[eE]|[\d.]{{39}}|^[-+]?\d{{{MAX_DIGITS + 1 - target.scale}}}"
    is_unsafe = flags_of(pc.match_substring_regex(texts, pattern))
    if not is_unsafe.any():
        return is_unsafe, texts
    unsafe = texts.filter(from_numpy(is_unsafe)).to_pylist()
    numbers = [scale_number(text, target.scale, target.precision) for text in unsafe]
    checked = [f"{number or 0}e{-target.scale}".encode() for number in numbers]
    texts = pc.replace_with_mask(
        texts, from_numpy(is_unsafe), binary_array(checked).view(pa.string())
    )
    bad = is_unsafe.copy()
    bad[is_unsafe] = [number is None for number in numbers]
    return bad, without(texts, bad)


def _cast_parts(values: pa.Array, target: pa.DataType) -> tuple[pa.Array, Flags]:
    """Return the values as `target`, null for those that cannot be cast, and which these are.
    Values that cannot be cast together are cut in halves, and these again."""
    try:
        return values.cast(target), np.zeros(len(values), np.bool_)
    except pa.ArrowException:
        if len(values) < 2:
            return pa.nulls(len(values), target), is_valid(values)
    middle = len(values) // 2
    halves = [_cast_parts(part, target) for part in (values[:middle], values[middle:])]
    arrays, failed = zip(*halves, strict=True)
    return pa.concat_arrays(arrays), np.concatenate(failed)


# --- bytes ------------------------------------------------------------------------------------


def _without_base64(values: pa.Array, node: ConnectType, context: FieldContext) -> pa.Array:
    """Decode values that JSON has as base64; other values are returned as they are."""
    if not (node.is_base64 and pa.types.is_string(values.type)):
        return values
    bad = np.zeros(len(values), np.bool_)
    contents: list[bytes | None] = []
    for index, text in enumerate(values.to_pylist()):
        content = None
        try:
            content = None if text is None else binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            bad[index] = True
        contents.append(content)
    context.fail(bad, "the text is not base64")
    return binary_array(contents)


def _json_decimal(
    values: pa.Array, node: ConnectType, target: pa.DataType, context: FieldContext
) -> pa.Array:
    """Convert Connect's Decimal in JSON to `target`: texts with bytes in base64, or with a number
    (decimal.format=NUMERIC)."""
    is_number = _json_numbers(values, context)
    texts = without(values, is_number) if is_number.any() else values
    decoded = _cast(_decimal(_without_base64(texts, node, context), node, context), target, context)
    if not is_number.any():
        return decoded
    numbers = _cast(without(values, ~is_number), target, context)
    return pc.if_else(from_numpy(is_number), numbers, decoded)


def _json_numbers(texts: pa.Array, context: FieldContext) -> Flags:
    """Return which texts are numbers. A number of four digits, or eight, may also be Base64: it is
    a number if the payload has the field's name before a number and nowhere before a string, other
    than in an envelope's own fields, as the transaction's id."""
    found = flags_of(pc.match_substring_regex(texts, r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"))
    unsure = found & flags_of(pc.match_substring_regex(texts, r"^([\deE+]{4})+$"))
    payloads = context.bad_rows.payloads
    if payloads is not None and unsure.any():
        rows, inverse = np.unique(context.rows[unsure], return_inverse=True)
        own_fields = rf'"(source|transaction)"\s*:\s*\{{{SCALARS}\}}|"op"\s*:\s*"\w"'
        row_payloads = pc.replace_substring_regex(payloads.take(from_numpy(rows)), own_fields, "")
        name = context.path.rpartition(".")[2]
        forms = (re.escape(json.dumps(name, ensure_ascii=is_ascii)) for is_ascii in (False, True))
        start = rf"(?:{'|'.join(forms)})\s*:\s*"
        is_number = flags_of(pc.match_substring_regex(row_payloads, rf"{start}-?\d"))
        is_number &= ~flags_of(pc.match_substring_regex(row_payloads, rf'{start}"'))
        found[unsure] = is_number[inverse]
    return found


def _decimal(values: pa.Array, node: ConnectType, context: FieldContext) -> pa.Array:
    """Convert Connect's Decimal, the unscaled number's bytes (highest first), to decimals; to text
    if no column can have its precision and scale."""
    digits = _decimal_digits(node)
    if digits is None:
        return _decimal_texts(values, int(node.parameters["scale"]), context)
    words, bad = _words(values, 10 ** digits[0] - 1)
    context.fail(bad, f"a number of more than {digits[0]} digits")
    return _decimal_array(words, is_valid(values) & ~bad, *digits)


def _words(values: pa.Array, limit: int) -> tuple[Any, Flags]:
    """Read numbers of any size from bytes, highest first: (an array of two 64-bit words for each
    number, which are outside -limit..limit)."""
    offsets = blob_offsets(values).astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or bytes(8), np.uint8)
    starts, lengths, too_long = decimals.without_padding(data, offsets[:-1], np.diff(offsets))
    words = decimals.read_words(data, starts, lengths)
    bad = (too_long | decimals.exceeds(words, limit)) & is_valid(values)
    return words, bad


def _decimal_array(words: Any, valid: Flags, precision: int, scale: int) -> pa.Array:
    """Return decimals of 128-bit words, null where `valid` is false."""
    words = np.where(valid[:, None], words, np.uint64(0))
    buffers = [validity(valid), pa.py_buffer(np.ascontiguousarray(words))]
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(words), buffers)


def _decimal_texts(
    values: pa.Array, scale: int | list[int | None], context: FieldContext
) -> pa.Array:
    """Return the digits of numbers that no decimal can hold, one by one. `values`: their unscaled
    numbers as bytes; `scale`: the scale of all, or a list with that of each. Rows with too many
    digits become bad."""
    scales = scale if isinstance(scale, list) else [scale] * len(values)
    texts: list[bytes | None] = []
    too_long = np.zeros(len(values), np.bool_)
    for row, (number, row_scale) in enumerate(zip(values.to_pylist(), scales, strict=True)):
        text = None
        if number is not None:
            text = _digits(number, row_scale or 0)
            budget = context.bad_rows.budget
            if text is not None and budget is not None and not budget.take(len(text)):
                text = None
            too_long[row] = text is None
        texts.append(text)
    reason = (
        f"a number of more than {_MAX_TEXT_DIGITS} digits, a scale beyond {_MAX_SCALE}, or too "
        "many such numbers"
    )
    context.fail(too_long, reason)
    return binary_array(texts).view(pa.string())


def _digits(unscaled: bytes, scale: int) -> bytes | None:
    """Return a decimal's text, as Java's BigDecimal.toPlainString; None if it is too long.
    `unscaled` has the number without the point: signed, the highest byte first."""
    # A digit takes log(10, 256) bytes.
    if abs(scale) > _MAX_SCALE or len(unscaled) > _MAX_TEXT_DIGITS * math.log(10, 256) + 1:
        return None
    number = int.from_bytes(unscaled, "big", signed=True)
    text = str(Decimal(abs(number)))  # `str` of an int refuses many digits
    if scale <= 0:
        text += "0" * -scale if number else ""
    else:
        text = text.rjust(scale + 1, "0")
        text = f"{text[:-scale]}.{text[-scale:]}"
    return f"{'-' if number < 0 else ''}{text}".encode()


def _variable_scale(values: pa.Array, node: ConnectType, context: FieldContext) -> pa.Array:
    """Convert VariableScaleDecimal, structs of scale and bytes, to the digits of the numbers."""
    scales = pc.struct_field(values, [values.type.get_field_index("scale")])
    numbers = pc.struct_field(values, [values.type.get_field_index("value")])
    value_node = node.children.get("value", ConnectType(pa.binary()))
    numbers = _without_base64(numbers, value_node, context)
    words, bad = _words(numbers, 10**MAX_DIGITS - 1)
    valid = is_valid(numbers) & is_valid(scales)
    texts = pa.nulls(len(values), pa.string())
    for scale in pc.unique(scales.drop_null()).to_pylist():
        is_scale = flags_of(pc.equal(scales, scalar(scale).cast(scales.type)))
        if 0 <= scale <= MAX_DIGITS:
            decimals = _decimal_array(words, valid & ~bad, MAX_DIGITS, scale).cast(pa.string())
            texts = pc.if_else(from_numpy(is_scale), decimals, texts)
        else:
            bad |= is_scale & valid
    bad |= flags_of(pc.match_substring(texts, "E"))  # Arrow writes small numbers with exponents
    if not bad.any():
        return texts
    rows = np.flatnonzero(bad)
    index = from_numpy(rows)
    context = FieldContext(context.bad_rows, context.rows[rows], context.path)
    long_texts = _decimal_texts(numbers.take(index), scales.take(index).to_pylist(), context)
    return pc.replace_with_mask(texts, from_numpy(bad), long_texts)


# --- dates and times --------------------------------------------------------------------------


def _epoch(
    values: pa.Array, node: ConnectType, context: FieldContext, *, unit: str, target: pa.DataType
) -> pa.Array:
    """Convert numbers of milli-, micro- or nanoseconds (`unit`) since 1970 to the timestamp type
    `target`, in microseconds."""
    values = values.cast(pa.int64())
    if unit == "ns":
        values = _floor(values, 1000)
        for text, nanos in _INFINITE_NANOS.items():
            is_infinite = pc.equal(values, scalar(nanos // 1000))
            values = pc.if_else(is_infinite, scalar(INFINITIES[text]), values)
    if unit == "ms":
        limit = (2**63 - 1) // 1000
        values = _within(values, limit, "the time is beyond Spark's range", context)
        values = pc.multiply(values, scalar(1000))
    return values.view(target)


def _within(values: pa.Array, limit: int, reason: str, context: FieldContext) -> pa.Array:
    """Return the numbers between -limit and limit; others are null, and their rows are bad."""
    # Without abs(), which has no value for the lowest number.
    bad = flags_of(pc.or_(pc.greater(values, scalar(limit)), pc.less(values, scalar(-limit))))
    context.fail(bad, reason)
    return without(values, bad) if bad.any() else values


def _floor(values: pa.Array, divisor: int) -> pa.Array:
    """Divide integers, rounding down."""
    quotient = pc.divide(values, scalar(divisor))
    is_rounded_up = pc.less(values, pc.multiply(quotient, scalar(divisor)))
    return pc.subtract(quotient, is_rounded_up.cast(pa.int64()))


def _date(values: pa.Array, node: ConnectType, context: FieldContext) -> pa.Array:
    days = _cast(values, pa.int32(), context)
    if (pc.min(days).as_py() or 0) < _FIRST_DAY:
        for text, overflows in _INFINITE_DAYS.items():
            infinite = scalar(INFINITIES[text] // DAY_US).cast(pa.int32())
            days = pc.if_else(pc.is_in(days, overflows), infinite, days)
    return days.view(pa.date32())


def _time_of_day(
    values: pa.Array, node: ConnectType, context: FieldContext, *, digits: int
) -> pa.Array:
    """Convert numbers of milli-, micro- or nanoseconds to 13:05:09.123456."""
    parts, unit = [], 10**digits
    limit = 839 * 3600 * unit - 1  # MySQL's TIME is the widest of all databases
    values = _within(values.cast(pa.int64()), limit, "the time is beyond 838:59:59", context)
    size = pc.abs(values)
    for divisor in (3600 * unit, 60 * unit, unit):
        quotient = pc.divide(size, scalar(divisor))
        size = pc.subtract(size, pc.multiply(quotient, scalar(divisor)))
        parts.append(pc.utf8_lpad(quotient.cast(pa.string()), 2, "0"))
    fraction = pc.utf8_lpad(size.cast(pa.string()), digits, "0")
    text = pc.binary_join_element_wise(*parts, scalar(":"))
    text = pc.binary_join_element_wise(text, fraction, scalar("."))
    minus = pc.if_else(pc.less(values, scalar(0)), scalar("-"), scalar(""))
    return pc.binary_join_element_wise(minus, text, scalar(""))


def _zoned(values: pa.Array, node: ConnectType, context: FieldContext) -> pa.Array:
    """Return texts with an offset from UTC as timestamps."""
    try:
        return values.cast(_INSTANT)
    except pa.ArrowException:  # perhaps nanoseconds, a far year, or Postgres's infinity
        return _iso_times(values, _INSTANT, context)


def _iso(
    values: pa.Array, node: ConnectType, context: FieldContext, *, target: pa.DataType
) -> pa.Array:
    """Convert ISO texts with a Z behind, which means no zone."""
    return _iso_times(pc.replace_substring_regex(values, "Z$", ""), target, context)


def _iso_times(texts: pa.Array, target: pa.DataType, context: FieldContext) -> pa.Array:
    """Convert ISO texts to dates or timestamps. Java writes years beyond 0 to 9999 with a sign, as
    +12024-02-29: these are read as the year 2024, and then moved, since the calendar repeats.
    Infinity is moved from 1970."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    is_far = flags_of(pc.match_substring_regex(texts, r"^(?:[-+]\d{4,9}-|-?infinity$)"))
    if not is_far.any():
        return _cast(texts, target, context)
    is_date = target == pa.date32()
    unit_us, number = (DAY_US, pa.int32()) if is_date else (1, pa.int64())
    near, moves = [], np.zeros(len(texts), np.int64)
    for row, text in zip(
        np.flatnonzero(is_far), texts.filter(from_numpy(is_far)).to_pylist(), strict=True
    ):
        infinities = [name for name, known in _INFINITE_TEXTS.items() if known.match(text)]
        digits, minus, rest = text[1:].partition("-")
        if infinities:
            moves[row] = INFINITIES[infinities[0]] // unit_us
            text = "1970-01-01T00:00:00Z" if target == _INSTANT else "1970-01-01"
        elif -290_000 <= (year := int(text[0] + digits)) < 294_000:  # all that timestamps have
            moves[row] = (year // 400 - 5) * (CYCLE_US // unit_us)
            text = f"{2000 + year % 400}{minus}{rest}"
        near.append(text.encode())
    texts = pc.replace_with_mask(texts, from_numpy(is_far), binary_array(near).view(pa.string()))
    times = _cast(texts, target, context).view(number)
    return pc.add(times, from_numpy(moves).cast(number)).view(target)


def _duration(
    values: pa.Array, node: ConnectType, context: FieldContext, *, divisor: int
) -> pa.Array:
    """Return numbers of a unit of 1/`divisor` microseconds as durations."""
    return _floor(values.cast(pa.int64()), divisor).view(pa.duration("us"))


_is_number, _is_text = pa.types.is_integer, pa.types.is_string


def _is_day(type: pa.DataType) -> bool:
    """Return whether values are days, which Avro has decoded if they have its logical type."""
    return bool(pa.types.is_integer(type) or pa.types.is_date32(type))


_CONVERSIONS: Final[Mapping[str, tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array]]]] = {
    DATE: (_is_number, _date),
    f"{_CONNECT}Date": (_is_day, _date),
    f"{_TIME}IsoDate": (_is_text, partial(_iso, target=pa.date32())),
    **{
        name: (_is_number, partial(_time_of_day, digits=digits))
        for name, digits in _TIMES_OF_DAY.items()
    },
    f"{_TIME}Timestamp": (_is_number, partial(_epoch, unit="ms", target=_LOCAL)),
    f"{_TIME}MicroTimestamp": (_is_number, partial(_epoch, unit="us", target=_LOCAL)),
    f"{_TIME}NanoTimestamp": (_is_number, partial(_epoch, unit="ns", target=_LOCAL)),
    f"{_TIME}IsoTimestamp": (_is_text, partial(_iso, target=_LOCAL)),
    f"{_TIME}ZonedTimestamp": (_is_text, _zoned),
    f"{_CONNECT}Timestamp": (_is_number, partial(_epoch, unit="ms", target=_INSTANT)),
    f"{_TIME}MicroDuration": (_is_number, partial(_duration, divisor=1)),
    f"{_TIME}NanoDuration": (_is_number, partial(_duration, divisor=1000)),
    DECIMAL: (pa.types.is_binary, _decimal),
    VARIABLE_SCALE: (pa.types.is_struct, _variable_scale),
}
"""By semantic type: which decoded values must be converted, and how."""


def type_in_json(name: str, column: pa.DataType) -> pa.DataType:
    """Return the type of a semantic type's values in JSON, by the type of the column."""
    is_converted, _ = _CONVERSIONS.get(name, (None, None))
    types = {_is_number: pa.int64(), _is_day: pa.int64(), _is_text: pa.string()}
    return types.get(is_converted, column)


# --- values that the source did not send --------------------------------------------------------


class Placeholder:
    """What a connector sends for a value that the source did not send: its setting
    unavailable.value.placeholder."""

    def __init__(self, text: str = kinds.PLACEHOLDER) -> None:
        self.text, self.bytes = text, text.encode()
        self.base64 = base64.b64encode(self.bytes).decode()
        # Java's UUID.nameUUIDFromBytes
        digest = hashlib.md5(self.bytes, usedforsecurity=False).digest()
        self.uuid = str(UUID(bytes=digest, version=3))
        self.map = json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False)


PLACEHOLDER: Final = Placeholder()


def is_unavailable(value: Any) -> bool:
    """Return whether a value is Debezium's placeholder for an unavailable one, in any of its
    forms."""
    if isinstance(value, list):
        return value == list(PLACEHOLDER.bytes) or (len(value) == 1 and is_unavailable(value[0]))
    if isinstance(value, Mapping):
        return PLACEHOLDER.text in value
    return value in vars(PLACEHOLDER).values()


def find_placeholders(
    values: pa.Array, node: ConnectType, placeholder: Placeholder = PLACEHOLDER
) -> Flags | None:
    """Return which values of a column are the placeholder: as text or bytes, as the only item of an
    array or map, or as an array of its bytes' numbers. None: no value is."""
    arrow_type = values.type
    if pa.types.is_string(arrow_type):
        text = placeholder.base64 if node.is_base64 else placeholder.text
        if node.name == "io.debezium.data.Json":  # an hstore
            as_map = pc.equal(values, scalar(placeholder.map))
            return _any(pc.or_(pc.equal(values, scalar(text)), as_map))
        return _any(pc.equal(values, scalar(text)))
    if pa.types.is_binary(arrow_type):
        return _any(pc.equal(values, scalar(placeholder.bytes)))
    if not (pa.types.is_list(arrow_type) or pa.types.is_map(arrow_type)):
        return None
    counts = item_counts(values)
    items = values.keys if pa.types.is_map(arrow_type) else values.values
    is_numbers = pa.types.is_integer(items.type)
    rows = np.flatnonzero(counts == (len(placeholder.bytes) if is_numbers else 1))
    if not len(rows):
        return None
    found = np.zeros(len(values), np.bool_)
    starts = blob_offsets(values)[:-1][rows]
    if is_numbers:
        numbers = items.cast(pa.int64())
        first = numbers.take(from_numpy(starts.astype(np.int64)))
        for row, start, number in zip(
            rows.tolist(), starts.tolist(), first.to_pylist(), strict=True
        ):
            if number == placeholder.bytes[0]:
                first_bytes = numbers.slice(start, len(placeholder.bytes)).to_pylist()
                found[row] = first_bytes == list(placeholder.bytes)
        return found if found.any() else None
    if not (pa.types.is_string(items.type) or pa.types.is_binary(items.type)):
        return None
    firsts = items.take(from_numpy(starts.astype(np.int64)))
    item_node = ConnectType(pa.string()) if pa.types.is_map(arrow_type) else node.item
    flags = find_placeholders(firsts, item_node, placeholder)
    if flags is not None:
        found[rows[flags]] = True
    if pa.types.is_string(firsts.type):
        found[rows] |= flags_of(pc.equal(firsts, scalar(placeholder.uuid)))
    return found if found.any() else None


def _any(equal: pa.Array) -> Flags | None:
    """Return the flags of a comparison; None if none is true."""
    return flags_of(equal) if pc.any(equal).as_py() else None


def without(values: pa.Array, flags: Flags) -> pa.Array:
    """Return the values, null where the flags are true."""
    return null_outside(values, ~flags)
