"""Encodes a struct column as messages, one call for each message type.

The bytes of one field in all messages are one binary array, in which an absent field is empty.
Arrow joins the arrays of all fields. The values of a list lie one after the other already, so the
bytes of a list are those of its values with other offsets.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.columns import gather, validity
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import (
    Flags,
    Ints,
    Varints,
    encode_when_written,
    join_varints,
    write_varints,
    zigzag,
)
from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import offsets_of
from sparkkafka.schemas.field_names import names_hint
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.plan import Cardinality, Field, Message
from sparkkafka.schemas.protobuf.types import Special
from sparkkafka.schemas.values import ValueRowError, with_prefix


class ProtobufEncoder:
    """See `values.Encoder`."""

    def __init__(self, message: Message) -> None:
        _check_required(message)
        self._message = message

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """Return the message of each struct, after `prefix`; null for a null struct."""
        if values.type != self._message.type:
            values = values.cast(self._message.type)
        if not values.null_count:
            rows = np.arange(len(values))
            return with_prefix(prefix, _encode_messages(self._message, _field_arrays(values), rows))
        count, valid = len(values), arrow.is_valid(values)
        rows = np.flatnonzero(valid)
        spread = _spread(
            _encode_messages(self._message, _field_arrays(values.drop_null()), rows), rows, count
        )
        buffers = [validity(valid), *spread.buffers()[1:]]
        return with_prefix(prefix, pa.Array.from_buffers(pa.binary(), count, buffers))


def _check_required(message: Message) -> None:
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


def _field_arrays(values: pa.Array) -> list[pa.Array]:
    return [values.field(index) for index in range(values.type.num_fields)]


class _MessageBytes:
    """Builds the bytes of `count` messages, field by field. A field has no bytes in messages where
    it is not `present` (None: it is present in all)."""

    def __init__(self, count: int) -> None:
        self.count = count
        # (tag, number behind it, present) that are not written yet
        self._pending: list[tuple[bytes, Varints | None, Flags | None]] = []
        self._parts: list[pa.Array] = []  # what is written: bytes of each message, to be joined

    def add_numbers(self, tag: int, raw: Any, present: Flags | None) -> None:
        """Add a tag and a number: uint64 that become varints, or numbers of fixed width."""
        width = types.FIXED_WIDTH.get(tag & 7)
        value = encode_when_written(raw) if width is None else Varints(raw, width, width)
        self.add_tag(tag, value, present)

    def add_content(self, tag: int, content: pa.Array, present: Flags | None) -> None:
        """Add a tag, a length and bytes, which are empty where not present."""
        self.add_tag(tag, encode_when_written(_sizes(content).astype(np.uint64)), present)
        self.add_bytes(content)

    def add_tag(self, tag: int, value: Varints | None, present: Flags | None) -> None:
        """Add a tag, and a number after it unless it is None (the tags of a group)."""
        self._pending.append((varint_bytes(tag), value, present))

    def add_bytes(self, content: pa.Array) -> None:
        """Add bytes that have their tags."""
        self._write_pending()
        self._parts.append(content)

    def build(self) -> pa.Array:
        """Return the bytes of all messages."""
        self._write_pending()
        if not self._parts:
            return _binary(np.zeros(self.count + 1, np.int64), b"")
        if len(self._parts) == 1:
            return self._parts[0]
        return pc.binary_join_element_wise(*self._parts, arrow.binary_array([b""])[0])

    def _write_pending(self) -> None:
        """Write the pending tags and numbers of all messages as one array of bytes."""
        if not self._pending:
            return
        total = np.zeros(self.count, np.int64)
        sizes = []
        for tag, value, present in self._pending:
            size: Any = len(tag) if value is None else value.sizes + len(tag)
            if present is not None:
                size = size * present
            sizes.append(size)
            total += size
        offsets = offsets_of(total)
        out = np.empty(int(offsets[-1]) + 8, np.uint8)
        cursor = offsets[:-1].copy()
        for (tag, value, present), size in zip(self._pending, sizes, strict=True):
            some = None if present is None or present.all() else np.flatnonzero(present)
            at = cursor.copy() if some is None else cursor[some]
            for byte in tag:
                out[at] = byte
                at += 1
            if value is not None:
                write_varints(out, at, value if some is None else value.take(some), 0)
            cursor += size
        self._pending = []
        self._parts.append(_binary(offsets, out))


# --- messages and fields. `rows`: the row of each message or value in the column, for errors ------


def _encode_messages(message: Message, arrays: list[pa.Array], rows: Ints) -> pa.Array:
    """Return the bytes of messages. `arrays`: the column of each field."""
    out = _MessageBytes(len(rows))
    _check_oneofs(message, arrays, rows)
    for index in sorted(range(len(arrays)), key=lambda index: message.fields[index].number):
        _add_field(out, message.fields[index], arrays[index], rows)
    return out.build()


def _check_oneofs(message: Message, arrays: list[pa.Array], rows: Ints) -> None:
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


def _add_field(out: _MessageBytes, field: Field, array: pa.Array, rows: Ints) -> None:
    """Add a field of any cardinality to all messages. `array` is its column, `rows` are the numbers
    of the messages' rows, for errors."""
    if field.cardinality is Cardinality.ONE:
        valid = arrow.is_valid(array) if array.null_count else None
        if valid is not None and field.required:
            row = int(rows[np.flatnonzero(~valid)[0]])
            raise ValueRowError(row, f"field {field.path} is required, and null")
        _add_value(out, field, array, rows, valid)
        return
    if field.joined:  # one JSON text has the whole list or map
        array = _split_json_texts(field, array, rows)
    if field.cardinality is Cardinality.MAP:
        array = _as_list(array)
    lengths = arrow.or_zero(pc.list_value_length(array)).astype(np.int64)
    elements = array.flatten()
    element_rows = np.repeat(rows, lengths)
    offsets = offsets_of(lengths)
    if field.cardinality is Cardinality.MAP:
        out.add_bytes(_regroup(_encode_entries(field, elements, element_rows), offsets))
        return
    if elements.null_count:
        index = int(np.flatnonzero(~arrow.is_valid(elements))[0])
        position = index - int(offsets[np.searchsorted(offsets, index, "right") - 1])
        raise ValueRowError(
            int(element_rows[index]),
            f"field {field.path}: element {position} is null, which a repeated field cannot have",
        )
    if field.packed:
        content = _regroup(_pack(field, _raw_numbers(field, elements, element_rows)), offsets)
        out.add_content(field.number << 3 | types.LEN, content, lengths > 0)
        return
    values = _MessageBytes(len(elements))
    _add_value(values, field, elements, element_rows, None)
    out.add_bytes(_regroup(values.build(), offsets))


def _encode_entries(field: Field, elements: pa.Array, rows: Ints) -> pa.Array:
    """Return the bytes of entries of a map, each with its tag. `rows`: of each entry."""
    if field.message is None:
        raise ValueError(f"{field.path} is neither a message nor bytes")
    arrays = _field_arrays(elements)
    entries = _MessageBytes(len(rows))
    for key_or_value, array in zip(field.message.fields, arrays, strict=True):
        if array.null_count:
            index = int(np.flatnonzero(~arrow.is_valid(array))[0])
            raise ValueRowError(
                int(rows[index]),
                f"field {field.path}: a {key_or_value.name} is null, which a map cannot have",
            )
        _add_value(entries, key_or_value, array, rows, None)
    with_tags = _MessageBytes(len(rows))
    with_tags.add_content(field.number << 3 | types.LEN, entries.build(), None)
    return with_tags.build()


def _add_value(
    out: _MessageBytes, field: Field, array: pa.Array, rows: Ints, valid: Flags | None
) -> None:
    """Add the field's value to each message where it is `valid` (None: in all), with its tag."""
    skips_zero = field.cardinality is Cardinality.ONE and not field.presence and not field.required
    wire = types.FIELD_TYPES[field.kind].wire
    tag = field.number << 3 | wire
    if wire not in (types.LEN, types.SGROUP):
        raw = _raw_numbers(field, array, rows)
        present = valid
        if skips_zero:
            present = raw != 0 if valid is None else valid & (raw != 0)
        out.add_numbers(tag, raw, present)
        return
    if field.message is None and field.special is None:
        content = _as_binary(array)
        out.add_content(tag, content, _sizes(content) > 0 if skips_zero else valid)
        return
    inner = array if valid is None else array.drop_null()
    inner_rows = rows if valid is None else rows[valid]
    content = _encode_content(field, inner, inner_rows)
    if valid is not None:
        content = _spread(content, np.flatnonzero(valid), len(array))
    if wire == types.SGROUP:
        out.add_tag(tag, None, valid)
        out.add_bytes(content)
        out.add_tag(field.number << 3 | types.EGROUP, None, valid)
        return
    out.add_content(tag, content, valid)


def _encode_content(field: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """Return each value's content without tag and length: bytes, a message, or a well-known type.
    `array` has no nulls."""
    if field.special is Special.BYTES:
        return _checked_bytes(field, array, rows)
    if field.special in types.FROM_BYTES:
        return _parse_json(field, array, rows)
    if field.message is None:
        raise ValueError(f"{field.path} is neither a message nor bytes")
    if field.special is None:
        return _encode_messages(field.message, _field_arrays(array), rows)
    if field.special is Special.WRAPPER:
        return _encode_messages(field.message, [array], rows)
    return _encode_messages(field.message, _special_fields(field, array, rows), rows)


# --- binary arrays --------------------------------------------------------------------------------


def _binary(offsets: Ints, content: Any) -> pa.Array:
    """Return a binary array without nulls. `content`: a buffer of all its bytes."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _sizes(array: pa.Array) -> Ints:
    """Return the bytes of each value; 0 for null."""
    sizes = np.diff(arrow.blob_offsets(array))
    if array.null_count:
        sizes *= arrow.is_valid(array)
    return sizes


def _regroup(array: pa.Array, groups: Ints) -> pa.Array:
    """Join neighbouring elements. `groups`: the offsets of each group among the elements."""
    return _binary(arrow.blob_offsets(array)[groups], array.buffers()[2] or b"")


def _spread(array: pa.Array, rows: Ints, count: int) -> pa.Array:
    """Put the elements at their rows, with empty ones between."""
    offsets = arrow.blob_offsets(array)
    sizes = np.zeros(count, np.int64)
    sizes[rows] = np.diff(offsets)
    return _binary(offsets_of(sizes) + offsets[0], array.buffers()[2] or b"")


def _pack(field: Field, raw: Any) -> pa.Array:
    """Return the bytes of each raw number, without tags."""
    width = types.FIXED_WIDTH.get(types.FIELD_TYPES[field.kind].wire)
    if width is not None:
        return _binary(np.arange(len(raw) + 1) * width, np.ascontiguousarray(raw))
    varints = encode_when_written(raw)
    return _binary(offsets_of(np.broadcast_to(varints.sizes, len(raw))), join_varints(varints))


def _as_list(array: pa.Array) -> pa.Array:
    """Return a map as a list of its entries."""
    kind = array.type
    entry = pa.struct([kind.key_field, kind.item_field])
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(entry))
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(entry), len(array), buffers, offset=array.offset, children=[entries]
    )


def _as_binary(array: pa.Array) -> pa.Array:
    """Return strings or bytes as a binary array, where null is empty."""
    binary = array.cast(pa.binary()) if pa.types.is_string(array.type) else array
    if not binary.null_count:
        return binary
    if not int(
        (np.diff(arrow.blob_offsets(binary)) * ~arrow.is_valid(binary)).sum()
    ):  # nulls have no bytes
        buffers = [None, *binary.buffers()[1:]]
        return pa.Array.from_buffers(pa.binary(), len(binary), buffers, offset=binary.offset)
    return binary.fill_null(b"")


# --- numbers --------------------------------------------------------------------------------------


def _raw_numbers(field: Field, array: pa.Array, rows: Ints) -> Any:
    """Return numbers as they are written: uint64 for varints and eight bytes, uint32 for four. Null
    is 0. Raises ValueRowError."""
    kind, source = field.kind, array.type
    if kind == types.BOOL:
        if not len(array):
            return np.zeros(0, np.uint64)
        flags = arrow.bits(array.buffers()[1], array.offset, len(array))
        return (flags & arrow.is_valid(array)).astype(np.uint64)
    if kind in (types.DOUBLE, types.FLOAT):
        return _raw_floats(field, array)
    if kind == types.ENUM and not pa.types.is_integer(source):
        return _enum_numbers(field, array, rows).view(np.uint64)
    first, last = types.FIELD_TYPES[kind].range or (0, 0)
    if pa.types.is_decimal(source):
        words = decimals.words_of(array)
        if array.null_count:
            words = words * arrow.is_valid(array)[:, None]
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


def _misfit_error(field: Field, row: Any, value: Any) -> ValueRowError:
    return ValueRowError(
        int(row), f"field {field.path}: {value} does not fit {types.FIELD_TYPES[field.kind].name}"
    )


def _raw_floats(field: Field, array: pa.Array) -> Any:
    """Return float or double as it is written: uint32 or uint64, 0 for null."""
    dtype = np.float64 if pa.types.is_float64(array.type) else np.float32
    values = np.zeros(0, dtype)
    if len(array):
        values = np.frombuffer(array.buffers()[1], dtype)
        values = values[array.offset : array.offset + len(array)]
    if array.null_count:
        values = np.where(arrow.is_valid(array), values, dtype(0))
    if field.kind == types.FLOAT:
        return values.view(np.uint32)
    return values.astype(np.float64).view(np.uint64)


def _enum_numbers(field: Field, array: pa.Array, rows: Ints) -> Ints:
    """Return the numbers of names. An open enum also has numbers as text, as they are read."""
    encoded = array.dictionary_encode()
    known = dict(field.aliases)
    indices = arrow.or_zero(encoded.indices).astype(np.int64)
    numbers = np.zeros(len(encoded.dictionary) + 1, np.int64)
    for index in range(len(encoded.dictionary)):
        name = encoded.dictionary[index].as_py()
        number: int | None = known.get(name)
        if number is None and not field.closed and name.lstrip("-").isdecimal():
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


def _check_enum_numbers(field: Field, values: Ints, rows: Ints, valid: Flags) -> None:
    """Raises ValueRowError for a number that the enum does not have; any may be where not
    `valid`."""
    known = np.isin(values, np.array(sorted(field.names), np.int64)) | ~valid
    if not known.all():
        index = int(np.flatnonzero(~known)[0])
        raise ValueRowError(
            int(rows[index]), f"field {field.path}: the enum has no number {int(values[index])}"
        )


# --- messages that are not made of structs --------------------------------------------------------


def _special_fields(field: Field, array: pa.Array, rows: Ints) -> list[pa.Array]:
    """Return the columns of a well-known message's fields, for values without nulls. Raises
    ValueRowError."""
    if field.special is Special.DATE:
        return _date_fields(field, arrow.to_numpy(array.cast(pa.int32())).astype(np.int64), rows)
    if field.special is Special.DECIMAL:
        return _decimal_fields(array)
    micros = arrow.to_numpy(array.cast(pa.int64()))
    seconds = micros // 1_000_000
    nanos_us = micros - seconds * 1_000_000
    if field.special is Special.DURATION:  # seconds and nanos have one sign
        towards_zero = (micros < 0) & (nanos_us != 0)
        seconds = seconds + towards_zero
        nanos_us = nanos_us - 1_000_000 * towards_zero
    return [arrow.from_numpy(seconds), arrow.from_numpy((nanos_us * 1000).astype(np.int32))]


def _date_fields(field: Field, days: Ints, rows: Ints) -> list[pa.Array]:
    """Return year, month and day of dates, given as days since 1970-01-01."""
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
    starts = 16 * np.arange(1, count + 1) - sizes
    low = words[:, 0].view(np.int64)
    has_one_word = sizes <= 8
    # The lowest number of a word has no positive counterpart.
    is_large = ~has_one_word | (low == -(1 << 63))
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


def _parse_json(field: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """Encode JSON texts as google.protobuf.Struct, Value or ListValue, or as a recursive message,
    one by one."""
    protobuf = library()
    contents = []
    for index in range(len(array)):
        try:
            value = json.loads(array[index].as_py())
            message = protobuf.json_format.ParseDict(value, field.text_message_class())
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
        except (ValueError, TypeError, RecursionError, protobuf.json_format.ParseError) as error:
            raise ValueRowError(
                int(rows[index]),
                f"field {field.path}: not the JSON of a {field.text_message_name}: "
                f"{str(error)[:200]}",
            ) from error
        contents.append(message.SerializeToString(deterministic=True))
    return arrow.binary_array(contents)


def _checked_bytes(field: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """Return bytes, each of which must be a valid message."""
    protobuf = library()
    for index in range(len(array)):
        try:
            is_whole = field.text_message_class.FromString(array[index].as_py()).IsInitialized()
        except protobuf.message.DecodeError:
            is_whole = False
        if not is_whole:
            name = field.text_message_name
            raise ValueRowError(int(rows[index]), f"field {field.path}: not the bytes of a {name}")
    return _as_binary(array)


def _split_json_texts(field: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """Return JSON texts of lists or maps as lists or maps of JSON texts."""
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


def _parse_key(key: Field, name: str) -> Any:
    """Return a map's key by its name in JSON."""
    if key.kind == types.BOOL:
        return {"true": True, "false": False}[name]
    return name if key.kind == types.STRING else int(name)
