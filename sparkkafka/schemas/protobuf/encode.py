"""A struct column -> messages: for each message type sizes first, then all bytes at their places.

A field's bytes in all rows are one binary array, where an absent field is empty; Arrow joins those
of one message. What stands in several messages is put together first: the values of a list lie
behind each other already, so a list's bytes are those of its values with other offsets.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records.arrow import is_valid
from sparkkafka.protocol.records.varint_columns import (
    NO_SLACK,
    Varints,
    dense,
    put_varints,
    unpacked,
)
from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas.protobuf import inputs, types
from sparkkafka.schemas.protobuf.plan import Count, Field, Message
from sparkkafka.schemas.protobuf.scalars import binary_array
from sparkkafka.schemas.protobuf.wire import Flags, Ints, Words
from sparkkafka.schemas.values import ValueRowError, with_prefix

_NOTHING: Final = binary_array([b""])[0]
_WIDTHS: Final = {types.I64: 8, types.I32: 4}


class ProtobufEncoder:
    """See `values.Encoder`."""

    def __init__(self, message: Message) -> None:
        _check_required(message)
        self._message = message

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        return with_prefix(prefix, self._payloads(values))

    def _payloads(self, values: pa.Array) -> pa.Array:
        if values.type != self._message.type:
            values = values.cast(self._message.type)
        count = len(values)
        valid = is_valid(values) if values.null_count else None
        rows = np.arange(count) if valid is None else np.flatnonzero(valid)
        given = values if valid is None else values.drop_null()
        encoded = _messages(self._message, _children(given), rows)
        if valid is None:
            return encoded
        spread = _spread(encoded, rows, count)
        return pa.Array.from_buffers(pa.binary(), count, [validity(valid), *spread.buffers()[1:]])


def _check_required(message: Message) -> None:
    """Raises OptionError for a required field (proto2) without a column."""
    given = {field.number for field in message.fields}
    for field in message.descriptor.fields:
        if types.is_required(field) and field.number not in given:
            raise OptionError(
                f"message {message.full_name}: field {field.name} is required, and no column has it"
            )
    for one in message.fields:
        if one.message is not None and one.special is None and one.count is not Count.MAP:
            _check_required(one.message)
        elif one.count is Count.MAP and one.message is not None:
            value = one.message.fields[1]
            if value.message is not None and value.special is None:
                _check_required(value.message)


def _children(values: pa.Array) -> list[pa.Array]:
    return [values.field(index) for index in range(values.type.num_fields)]


class _Rows:
    """The bytes of `count` messages, field by field."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._run: list[tuple[bytes, Varints | None, Flags | None]] = []
        self._parts: list[pa.Array] = []

    def number(self, tag: int, raw: Any, present: Flags | None) -> None:
        """A number: uint64 that become varints, or what has its own width."""
        width = _WIDTHS.get(tag & 7)
        value = unpacked(raw) if width is None else Varints(raw, width, width)
        self._run.append((varint_bytes(tag), value, present))

    def content(self, tag: int, content: pa.Array, present: Flags | None) -> None:
        """What has a length. Where it is not present it is empty."""
        sizes = unpacked(_sizes(content).astype(np.uint64))
        self._run.append((varint_bytes(tag), sizes, present))
        self.plain(content)

    def mark(self, tag: int, present: Flags | None) -> None:
        """A tag alone, of a group."""
        self._run.append((varint_bytes(tag), None, present))

    def plain(self, content: pa.Array) -> None:
        """Bytes that have their tags."""
        self._flush()
        self._parts.append(content)

    def close(self) -> pa.Array:
        self._flush()
        if not self._parts:
            return pa.Array.from_buffers(
                pa.binary(),
                self.count,
                [None, pa.py_buffer(np.zeros(self.count + 1, np.int32)), pa.py_buffer(b"")],
            )
        if len(self._parts) == 1:
            return self._parts[0]
        return pc.binary_join_element_wise(*self._parts, _NOTHING)

    def _flush(self) -> None:
        if not self._run:
            return
        total = np.zeros(self.count, np.int64)
        sizes = []
        for tag, value, present in self._run:
            size: Any = len(tag) if value is None else value.sizes + len(tag)
            if present is not None:
                size = size * present
            sizes.append(size)
            total += size
        offsets = np.zeros(self.count + 1, np.int64)
        np.cumsum(total, out=offsets[1:])
        out = np.empty(int(offsets[-1]) + 8, np.uint8)
        cursor = offsets[:-1].copy()
        for (tag, value, present), size in zip(self._run, sizes, strict=True):
            some = None if present is None or present.all() else np.flatnonzero(present)
            at = cursor.copy() if some is None else cursor[some]
            for byte in tag:
                out[at] = byte
                at += 1
            if value is not None:
                put_varints(out, at, value if some is None else value.take(some), NO_SLACK)
            cursor += size
        self._run = []
        self._parts.append(_binary(offsets, out))


def _messages(message: Message, arrays: list[pa.Array], rows: Ints) -> pa.Array:
    """rows: the column's row of each message."""
    out = _Rows(len(rows))
    order = sorted(range(len(arrays)), key=lambda index: message.fields[index].number)
    _one_of(message, arrays, rows)
    for index in order:
        _field(out, message.fields[index], arrays[index], rows)
    return out.close()


def _one_of(message: Message, arrays: list[pa.Array], rows: Ints) -> None:
    groups: dict[int, list[int]] = {}
    for index, one in enumerate(message.fields):
        if one.oneof >= 0:
            groups.setdefault(one.oneof, []).append(index)
    for group in groups.values():
        if len(group) < 2:
            continue
        flags = [is_valid(arrays[index]) for index in group]
        count = np.sum(flags, axis=0)
        for row in np.flatnonzero(count > 1)[:1].tolist():
            names = [message.fields[i].path for i, f in zip(group, flags, strict=True) if f[row]]
            raise ValueRowError(
                int(rows[row]), f"fields {' and '.join(names)} are of one oneof: one can be set"
            )


def _field(out: _Rows, one: Field, array: pa.Array, rows: Ints) -> None:
    if one.count is Count.ONE:
        _single(out, one, array, rows)
        return
    if one.joined:
        array = inputs.split_texts(one, array, rows)
    if one.count is Count.MAP:
        array = _as_list(array)
    lengths = np.zeros(len(array), np.int64)
    lengths[:] = inputs.integers(pc.list_value_length(array))
    elements = array.flatten()
    inner_rows = np.repeat(rows, lengths)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if one.count is Count.MAP:
        encoded = _entries(one, elements, inner_rows)
    else:
        if elements.null_count:
            _refuse_null(one, elements, inner_rows, offsets)
        if one.packed:
            raw = inputs.raw(one, elements, inner_rows)
            content = _packed(one, raw)
            spans = _regrouped(content, offsets)
            out.content(one.number << 3 | types.LEN, spans, lengths > 0)
            return
        each = _Rows(len(elements))
        _value(each, one, elements, inner_rows, None)
        encoded = each.close()
    out.plain(_regrouped(encoded, offsets))


def _refuse_null(one: Field, elements: pa.Array, rows: Ints, offsets: Ints) -> None:
    at = int(np.flatnonzero(~is_valid(elements))[0])
    place = at - int(offsets[np.searchsorted(offsets, at, "right") - 1])
    raise ValueRowError(
        int(rows[at]),
        f"field {one.path}: element {place} is null, which a repeated field cannot have",
    )


def _entries(one: Field, elements: pa.Array, rows: Ints) -> pa.Array:
    """Entries of a map, each with its tag."""
    if one.message is None:
        raise ValueError(one.path)
    arrays = _children(elements)
    for what, array in zip(("key", "value"), arrays, strict=True):
        if array.null_count:
            at = int(np.flatnonzero(~is_valid(array))[0])
            raise ValueRowError(
                int(rows[at]), f"field {one.path}: a {what} is null, which a map cannot have"
            )
    inside = _Rows(len(rows))
    for field, array in zip(one.message.fields, arrays, strict=True):
        _value(inside, field, array, rows, None)
    each = _Rows(len(rows))
    each.content(one.number << 3 | types.LEN, inside.close(), None)
    return each.close()


def _single(out: _Rows, one: Field, array: pa.Array, rows: Ints) -> None:
    valid = is_valid(array) if array.null_count else None
    if valid is not None and one.required:
        row = int(rows[np.flatnonzero(~valid)[0]])
        raise ValueRowError(row, f"field {one.path} is required, and null")
    _value(out, one, array, rows, valid)


def _value(out: _Rows, one: Field, array: pa.Array, rows: Ints, valid: Flags | None) -> None:
    """One value in each row where valid, with its tag."""
    skip_zero = one.count is Count.ONE and not one.presence and not one.required
    wire = types.WIRE[one.kind]
    tag = one.number << 3 | wire
    if wire not in (types.LEN, types.START):
        raw = inputs.raw(one, array, rows)
        present = valid
        if skip_zero:
            present = raw != 0 if valid is None else valid & (raw != 0)
        out.number(tag, raw, present)
        return
    if one.message is None and one.special is None:
        content = inputs.texts(one, array)
        present = valid
        if skip_zero:
            present = _sizes(content) > 0
        out.content(tag, content, present)
        return
    inside = array if valid is None else array.drop_null()
    inner_rows = rows if valid is None else rows[valid]
    content = _content(one, inside, inner_rows)
    if valid is not None:
        content = _spread(content, np.flatnonzero(valid), len(array))
    if wire == types.START:
        out.mark(tag, valid)
        out.plain(content)
        out.mark(one.number << 3 | types.END, valid)
        return
    out.content(tag, content, valid)


def _content(one: Field, array: pa.Array, rows: Ints) -> pa.Array:
    """Messages without their tag."""
    if one.special is types.Special.BYTES:
        return inputs.from_bytes(one, array, rows)
    if one.special in types.TEXTS:
        return inputs.from_json(one, array, rows)
    if one.message is None:
        raise ValueError(one.path)
    if one.special is None:
        return _messages(one.message, _children(array), rows)
    if one.special is types.Special.WRAPPER:
        return _messages(one.message, [array], rows)
    return _messages(one.message, inputs.special(one, array, rows), rows)


# --- offsets --------------------------------------------------------------------------------------


def _binary(offsets: Ints, content: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _offsets(array: pa.Array) -> Ints:
    if not len(array):
        return np.zeros(1, np.int64)
    data = np.frombuffer(array.buffers()[1], np.int32)
    return data[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _sizes(array: pa.Array) -> Ints:
    """Bytes of each; a null has none."""
    sizes = np.diff(_offsets(array))
    if array.null_count:
        sizes *= is_valid(array)
    return sizes


def _regrouped(array: pa.Array, groups: Ints) -> pa.Array:
    """Neighbours as one: `groups` are the offsets of groups among the array's elements."""
    offsets = _offsets(array)[groups]
    return _binary(offsets, array.buffers()[2] or b"")


def _spread(array: pa.Array, rows: Ints, count: int) -> pa.Array:
    """The elements at their rows, and empty ones between."""
    offsets = _offsets(array)
    sizes = np.zeros(count, np.int64)
    sizes[rows] = np.diff(offsets)
    spread = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=spread[1:])
    return _binary(spread + offsets[0], array.buffers()[2] or b"")


def _packed(one: Field, raw: Words) -> pa.Array:
    """Numbers without tags."""
    wire = types.WIRE[one.kind]
    if wire != types.VARINT:
        width = _WIDTHS[wire]
        return _binary(np.arange(len(raw) + 1) * width, np.ascontiguousarray(raw))
    found = unpacked(raw)
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(np.broadcast_to(found.sizes, len(raw)), out=offsets[1:])
    return _binary(offsets, dense(found))


def _as_list(array: pa.Array) -> pa.Array:
    """A map as a list of its entries."""
    kind = array.type
    entry = pa.struct([kind.key_field, kind.item_field])
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(entry))
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(entry), len(array), buffers, offset=array.offset, children=[entries]
    )
