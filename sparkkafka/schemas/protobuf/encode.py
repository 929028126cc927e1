"""Encodes a struct column as messages, one call for each message type.

A field's tag, and its number, or length and bytes, are columns of bytes, in which an absent field
has none. `byte_columns.join` puts those of all fields together, row by row. The values of a list
lie one after the other already, so the bytes of a list are those of its values with other offsets.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.byte_columns import (
    BinaryColumn,
    ByteColumn,
    VarintColumn,
    blobs_of,
    constant,
    join,
    numbers_of,
    only_valid,
    regroup,
)
from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import Flags, Ints, zigzag
from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import (
    encode_chunks,
    flags_of,
    item_counts,
    map_items,
    offsets_of,
    spread_bytes,
)
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.plan import Cardinality, ProtobufField, ProtobufMessage
from sparkkafka.schemas.protobuf.types import Special
from sparkkafka.schemas.schema_errors import names_hint
from sparkkafka.schemas.values import ValueRowError


class ProtobufEncoder:
    """Encodes structs as Protobuf messages (a `values.Encoder`)."""

    def __init__(self, message: ProtobufMessage) -> None:
        _check_required(message)
        self._message = message

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """Return the message of each struct, after `prefix`; null for a null struct."""
        if values.type != self._message.type:
            values = values.cast(self._message.type)
        return encode_chunks(
            values,
            prefix,
            lambda structs, rows: _encode_messages(self._message, structs.flatten(), rows),
        )


def _check_required(message: ProtobufMessage) -> None:
    """Raises OptionError for a required field (proto2) without a column."""
    numbers = {field.number for field in message.fields}
    for descriptor in message.descriptor.fields:
        if types.is_required(descriptor) and descriptor.number not in numbers:
            raise OptionError(
                f"message {message.full_name}: field {descriptor.name} is required, and no column "
                "has it"
            )
    for field in message.fields:
        value = field
        if field.cardinality is Cardinality.MAP and field.message is not None:
            value = field.message.fields[1]
        if value.message is not None and value.special is None:
            _check_required(value.message)


# --- messages and fields. `rows`: the row of each message or value in the column, for errors ------


def _encode_messages(
    message: ProtobufMessage, arrays: list[pa.Array], rows: Ints
) -> list[ByteColumn]:
    """Return columns whose bytes, one after the other, are the messages. `arrays`: the column of
    each field, with a value for each message; `rows`: the row of each message, for errors."""
    columns: list[ByteColumn] = []
    _check_oneofs(message, arrays, rows)
    for index in sorted(range(len(arrays)), key=lambda index: message.fields[index].number):
        columns += _encode_field(message.fields[index], arrays[index], rows)
    return columns


def _check_oneofs(message: ProtobufMessage, arrays: list[pa.Array], rows: Ints) -> None:
    """Raises ValueRowError if several fields of a oneof have a value."""
    oneofs: dict[int, list[int]] = {}
    for index, field in enumerate(message.fields):
        if field.oneof >= 0:
            oneofs.setdefault(field.oneof, []).append(index)
    for group in oneofs.values():
        if len(group) < 2:
            continue
        flags = [arrow.is_valid(arrays[index]) for index in group]
        set_fields = np.sum(flags, axis=0)
        for index in np.flatnonzero(set_fields > 1)[:1].tolist():
            names = [message.fields[i].path for i, f in zip(group, flags, strict=True) if f[index]]
            raise ValueRowError(
                int(rows[index]),
                f"fields {' and '.join(names)} belong to one oneof: only one can be set",
            )


def _encode_field(field: ProtobufField, array: pa.Array, rows: Ints) -> list[ByteColumn]:
    """Return the bytes of a field of any cardinality in all messages. `array` is its column, `rows`
    are the numbers of the messages' rows, for errors."""
    if field.cardinality is Cardinality.ONE:
        valid = arrow.is_valid(array) if array.null_count else None
        if valid is not None and field.required:
            row = int(rows[np.flatnonzero(~valid)[0]])
            raise ValueRowError(row, f"field {field.path} is required, and null")
        return _encode_values(field, array, rows, valid)
    if field.is_json_text:  # one JSON text has the whole list or map
        array = _split_json_texts(field, array, rows)
    lengths = item_counts(array)
    element_rows = np.repeat(rows, lengths)
    offsets = offsets_of(lengths)
    if field.cardinality is Cardinality.MAP:
        columns = _encode_entries(field, map_items(array), element_rows)
        return [blobs_of(regroup(join(columns, len(element_rows)), offsets))]
    elements = array.flatten()
    if elements.null_count:
        index = int(np.flatnonzero(~arrow.is_valid(elements))[0])
        position = index - int(offsets[np.searchsorted(offsets, index, "right") - 1])
        raise ValueRowError(
            int(element_rows[index]),
            f"field {field.path}: element {position} is null, which a repeated field cannot have",
        )
    if field.packed:
        numbers = _number_column(field, _raw_numbers(field, elements, element_rows))
        content = blobs_of(regroup(join([numbers], len(elements)), offsets))
        return _with_length(field.number << 3 | types.LEN, content, lengths > 0)
    columns = _encode_values(field, elements, element_rows, None)
    return [blobs_of(regroup(join(columns, len(elements)), offsets))]


def _encode_entries(
    field: ProtobufField, entries: tuple[pa.Array, pa.Array], rows: Ints
) -> list[ByteColumn]:
    """Return the bytes of entries of a map, each with its tag. `entries`: their keys and values;
    `rows`: the row of each entry, for errors."""
    if field.message is None:
        raise ValueError(f"{field.path} is neither a message nor bytes")
    columns: list[ByteColumn] = []
    for key_or_value, array in zip(field.message.fields, entries, strict=True):
        if array.null_count:
            index = int(np.flatnonzero(~arrow.is_valid(array))[0])
            raise ValueRowError(
                int(rows[index]),
                f"field {field.path}: a {key_or_value.name} is null, which a map cannot have",
            )
        columns += _encode_values(key_or_value, array, rows, None)
    content = blobs_of(join(columns, len(rows)))
    return _with_length(field.number << 3 | types.LEN, content, None)


def _encode_values(
    field: ProtobufField, array: pa.Array, rows: Ints, valid: Flags | None
) -> list[ByteColumn]:
    """Return the bytes of the field's values, each with its tag, where they are `valid` (None: in
    all messages)."""
    # Without presence, zero and empty are not written: an absent field is read as these.
    skips_zero = field.cardinality is Cardinality.ONE and not field.presence and not field.required
    wire = types.FIELD_TYPES[field.kind].wire
    tag = field.number << 3 | wire
    if wire not in (types.LEN, types.SGROUP):
        raw = _raw_numbers(field, array, rows)
        present = valid
        if skips_zero:
            present = raw != 0 if valid is None else valid & (raw != 0)
        return _with_tag(tag, [_number_column(field, raw)], present)
    if field.message is None and field.special is None:
        content = blobs_of(array)
        if valid is not None:
            content = only_valid(content, valid)  # a null may have bytes
        return _with_length(tag, content, content.lengths > 0 if skips_zero else valid)
    inner = array if valid is None else array.drop_null()
    inner_rows = rows if valid is None else rows[valid]
    encoded = _encode_content(field, inner, inner_rows)
    content = blobs_of(encoded if valid is None else spread_bytes(encoded, valid))
    if wire == types.LEN:
        return _with_length(tag, content, valid)
    end = constant(varint_bytes(field.number << 3 | types.EGROUP))
    return _with_tag(tag, [content, *end], valid)


def _with_length(tag: int, content: BinaryColumn, present: Flags | None) -> list[ByteColumn]:
    """Return columns that give each row a tag, a length and the bytes `content`; no bytes where not
    `present` (None: all are)."""
    lengths = VarintColumn(content.lengths, is_zigzag=False)
    return _with_tag(tag, [lengths, content], present)


def _with_tag(tag: int, columns: list[ByteColumn], present: Flags | None) -> list[ByteColumn]:
    """Return columns that give each row a tag and the bytes of `columns`; no bytes where not
    `present` (None: all are)."""
    columns = [*constant(varint_bytes(tag)), *columns]
    if present is None or present.all():
        return columns
    return [only_valid(column, present) for column in columns]


def _number_column(field: ProtobufField, raw: Any) -> ByteColumn:
    """Return the bytes of raw numbers, without tags."""
    if types.FIELD_TYPES[field.kind].wire in types.FIXED_WIDTH:
        return numbers_of(raw)
    return VarintColumn(raw, is_zigzag=False)


def _encode_content(field: ProtobufField, array: pa.Array, rows: Ints) -> pa.Array:
    """Return each value's content without tag and length: bytes, a message, or a well-known type.
    `array` has no nulls."""
    if field.special is Special.BYTES:
        return _checked_bytes(field, array, rows)
    if field.special in types.FROM_BYTES:
        return _parse_json(field, array, rows)
    if field.message is None:
        raise ValueError(f"{field.path} is neither a message nor bytes")
    if field.special is None:
        arrays = array.flatten()
    elif field.special is Special.WRAPPER:
        arrays = [array]
    else:
        arrays = _special_fields(field, array, rows)
    return join(_encode_messages(field.message, arrays, rows), len(rows))


# --- numbers --------------------------------------------------------------------------------------


def _raw_numbers(field: ProtobufField, array: pa.Array, rows: Ints) -> Any:
    """Return numbers as they are written: uint64 for varints and eight bytes, uint32 for four; any
    for null. `rows`: the row of each, for errors. Raises ValueRowError for a number that the field
    cannot have."""
    kind, source = field.kind, array.type
    if kind == types.BOOL:
        return flags_of(array).astype(np.uint64)
    if kind in (types.DOUBLE, types.FLOAT):
        return _raw_floats(field, array)
    if kind == types.ENUM and not pa.types.is_integer(source):
        return _enum_numbers(field, array, rows).view(np.uint64)
    first, last = types.FIELD_TYPES[kind].range or (0, 0)
    if pa.types.is_decimal(source):
        words = decimals.words_of(array)
        if array.null_count:
            words = words * arrow.is_valid(array)[:, None]
        # A decimal has two words: the lower 64 bits, then the higher ones.
        values, high = np.ascontiguousarray(words.T).view(np.int64)
        if kind in (types.UINT64, types.FIXED64):
            fits = high == 0
        else:
            fits = (high == values >> 63) & (values >= first) & (values <= last)
        if not fits.all():
            index = int(np.flatnonzero(~fits)[0])
            raise _misfit_error(field, rows[index], array[index].as_py())
    else:
        values = arrow.or_zero(array).astype(np.int64)
        if len(values) and (int(values.min()) < first or int(values.max()) > last):
            index = int(np.flatnonzero((values < first) | (values > last))[0])
            raise _misfit_error(field, rows[index], int(values[index]))
        if kind == types.ENUM and field.closed:
            _check_enum_numbers(field, values, rows, arrow.is_valid(array))
    if kind in (types.SINT32, types.SINT64):
        return zigzag(values)
    if kind in (types.SFIXED32, types.FIXED32):
        return values.view(np.uint64).astype(np.uint32)
    return values.view(np.uint64)


def _misfit_error(field: ProtobufField, row: Any, value: Any) -> ValueRowError:
    """Return the error for a value in this row that the field's type cannot have."""
    return ValueRowError(
        int(row), f"field {field.path}: {value} does not fit {types.FIELD_TYPES[field.kind].name}"
    )


def _raw_floats(field: ProtobufField, array: pa.Array) -> Any:
    """Return float or double as it is written: uint32 or uint64, any number for null."""
    dtype = np.float64 if pa.types.is_float64(array.type) else np.float32
    values = np.zeros(0, dtype)
    if len(array):
        values = np.frombuffer(array.buffers()[1], dtype)
        values = values[array.offset : array.offset + len(array)]
    if field.kind == types.FLOAT:
        return values.view(np.uint32)
    return values.astype(np.float64).view(np.uint64)


def _enum_numbers(field: ProtobufField, array: pa.Array, rows: Ints) -> Ints:
    """Return the numbers of an enum's names, 0 for null. An open enum also takes numbers as text,
    as they are read. Raises ValueRowError for another name; `rows` has the row of each."""
    encoded = array.dictionary_encode()
    known = dict(field.aliases)
    indices = arrow.or_zero(encoded.indices).astype(np.int64)
    numbers = np.zeros(len(encoded.dictionary) + 1, np.int64)
    for index in range(len(encoded.dictionary)):
        name = encoded.dictionary[index].as_py()
        number: int | None = known.get(name)
        if number is None and not field.closed and re.fullmatch("-?[0-9]{1,10}", name):
            number = int(name) if -(1 << 31) <= int(name) < 1 << 31 else None
        if number is None:
            bad = int(np.flatnonzero(arrow.is_valid(array) & (indices == index))[0])
            raise ValueRowError(
                int(rows[bad]),
                f"field {field.path}: the enum has no value {name[:100]!r}: "
                f"{names_hint(name, known)}",
            )
        numbers[index] = number
    if array.null_count:
        indices = np.where(arrow.is_valid(array), indices, len(encoded.dictionary))
    return numbers[indices]


def _check_enum_numbers(field: ProtobufField, values: Ints, rows: Ints, valid: Flags) -> None:
    """Raises ValueRowError for a number that the enum does not have; any may be where not
    `valid`."""
    known = np.isin(values, np.array(sorted(field.names), np.int64)) | ~valid
    if not known.all():
        index = int(np.flatnonzero(~known)[0])
        raise ValueRowError(
            int(rows[index]), f"field {field.path}: the enum has no number {int(values[index])}"
        )


# --- messages that are not made of structs --------------------------------------------------------


def _special_fields(field: ProtobufField, array: pa.Array, rows: Ints) -> list[pa.Array]:
    """Return the columns of a well-known message's fields, for values without nulls. Raises
    ValueRowError."""
    if field.special is Special.DATE:
        return _date_fields(field, arrow.to_numpy(array.cast(pa.int32())).astype(np.int64), rows)
    if field.special is Special.DECIMAL:
        return _decimal_fields(array)
    micros = arrow.to_numpy(array.cast(pa.int64()))
    seconds = micros // 1_000_000
    rest_us = micros - seconds * 1_000_000
    if field.special is Special.DURATION:  # seconds and nanos have one sign
        towards_zero = (micros < 0) & (rest_us != 0)
        seconds = seconds + towards_zero
        rest_us = rest_us - 1_000_000 * towards_zero
    return [arrow.from_numpy(seconds), arrow.from_numpy((rest_us * 1000).astype(np.int32))]


def _date_fields(field: ProtobufField, days: Ints, rows: Ints) -> list[pa.Array]:
    """Return the columns year, month and day of dates, given as days since 1970-01-01. `rows`: the
    row of each date, for errors. Raises ValueRowError."""
    months = days.astype("M8[D]").astype("M8[M]")
    year = months.astype("M8[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    day = days - months.astype("M8[D]").astype(np.int64) + 1
    wrong = (year < 1) | (year > 9999)
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        raise ValueRowError(
            int(rows[index]),
            f"field {field.path}: the year {year[index]} is not one of google.type.Date",
        )
    return [arrow.from_numpy(part.astype(np.int32)) for part in (year, month, day)]


def _decimal_fields(array: pa.Array) -> list[pa.Array]:
    """Return the columns of confluent.type.Decimal's fields, as Confluent's clients write them:
    two's complement in as few bytes as possible, the value's own precision, the column's scale."""
    count = len(array)
    words = decimals.words_of(array)
    sizes = decimals.min_sizes(words)
    starts = 16 * np.arange(1, count + 1) - sizes  # the last bytes of each number's 16
    low = words[:, 0].view(np.int64)
    has_one_word = sizes <= 8
    # The lowest number of a word has no positive counterpart.
    is_large = ~has_one_word | (low == -(1 << 63))
    # A number has as many digits as there are powers of ten that it reaches.
    powers = np.array([10**digits for digits in range(19)], np.int64)
    magnitude = np.abs(np.where(is_large, 0, low))
    digits = np.maximum(np.searchsorted(powers, magnitude, "right"), 1)
    for index in np.flatnonzero(is_large).tolist():
        digits[index] = len(array[index].as_py().as_tuple().digits)
    return [
        gather(pa.py_buffer(decimals.to_bytes(words)), starts, sizes),
        arrow.from_numpy(digits.astype(np.int64)),
        arrow.from_numpy(np.full(count, array.type.scale, np.int32)),
    ]


def _parse_json(field: ProtobufField, array: pa.Array, rows: Ints) -> pa.Array:
    """Encode JSON texts as google.protobuf.Struct, Value or ListValue, or as a recursive message,
    one by one. Raises ValueRowError for other texts; `rows` has the row of each."""
    protobuf = library()
    contents = []
    for index in range(len(array)):
        try:
            value = json.loads(array[index].as_py())
            message = protobuf.json_format.ParseDict(value, field.text_message_class())
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
        except (
            *(ValueError, TypeError, RecursionError, protobuf.json_format.ParseError),
            OverflowError,  # for infinity as an integer
            SystemError,  # for a name with half of a surrogate pair
        ) as error:
            raise ValueRowError(
                int(rows[index]),
                f"field {field.path}: not the JSON of a {field.text_message_name}: "
                f"{str(error)[:200]}",
            ) from error
        contents.append(message.SerializeToString(deterministic=True))
    return arrow.binary_array(contents)


def _checked_bytes(field: ProtobufField, array: pa.Array, rows: Ints) -> pa.Array:
    """Return bytes unchanged. Raises ValueRowError unless each value is a valid message of the
    field's type. `rows` has the row of each value."""
    protobuf = library()
    for index in range(len(array)):
        try:
            is_whole = field.text_message_class.FromString(array[index].as_py()).IsInitialized()
        except protobuf.message.DecodeError:
            is_whole = False
        if not is_whole:
            name = field.text_message_name
            raise ValueRowError(int(rows[index]), f"field {field.path}: not the bytes of a {name}")
    return array


def _split_json_texts(field: ProtobufField, array: pa.Array, rows: Ints) -> pa.Array:
    """Return JSON texts of whole lists or maps as an array of lists or maps, whose values are JSON
    texts. Raises ValueRowError. `rows` has the row of each text."""
    is_map = field.cardinality is Cardinality.MAP
    key = field.message.fields[0] if is_map and field.message else None
    kind = pa.list_(pa.string()) if key is None else pa.map_(key.type, pa.string())
    texts: list[Any] = []
    for index, text in enumerate(array.to_pylist()):
        try:
            value = None if text is None else json.loads(text)
            if value is None:
                texts.append(None)
            elif key is None and isinstance(value, list):
                texts.append([json.dumps(item) for item in value])
            elif key is not None and isinstance(value, dict):
                texts.append(
                    [(_parse_key(key, name), json.dumps(item)) for name, item in value.items()]
                )
            else:
                raise ValueError(f"it is not an {'object' if is_map else 'array'}")
        except (ValueError, LookupError, RecursionError) as error:
            raise ValueRowError(
                int(rows[index]),
                f"field {field.path}: not the JSON of its messages: {str(error)[:200]}",
            ) from None
    return pa.array(texts, kind)


def _parse_key(key: ProtobufField, name: str) -> Any:
    """Return a map's key by the name that it has in a JSON object. Raises ValueError or LookupError
    for another name."""
    if key.kind == types.BOOL:
        return {"true": True, "false": False}[name]
    if key.kind == types.STRING:
        return name
    low, high = types.FIELD_TYPES[key.kind].range or (0, 0)
    if not low <= int(name) <= high:
        raise ValueError(f"the key {name} does not fit {types.FIELD_TYPES[key.kind].name}")
    return int(name)
