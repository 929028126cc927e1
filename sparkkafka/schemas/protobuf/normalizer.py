"""Rewrites messages that `decode.py` cannot read so that it can, by protobuf's own runtime. The
runtime merges fields that occur twice, drops unknown fields, sorts fields, and rejects damaged
messages.

`decode.py` can read what the runtime writes, except for groups: these are rewritten as messages
with a length. If the runtime refuses a message, `_explain` finds the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.plan import Cardinality, ProtobufField, ProtobufMessage
from sparkkafka.schemas.protobuf.wire import read_one_varint, read_tag, read_value

MAX_LEVELS: Final = 100
"""The limit of protobuf's runtime."""


class ProtobufNormalizer:
    """Normalizes messages of one type."""

    def __init__(self, message: ProtobufMessage) -> None:
        protobuf = library()
        self._error = protobuf.message.DecodeError
        self._class = protobuf.message_factory.GetMessageClass(message.descriptor)
        self._message = message
        self._has_groups = _any_message(message, _may_have_groups)
        self._must_rewrite = _any_message(
            message,
            lambda inner: any(
                field.cardinality is Cardinality.MAP or field.checks_range for field in inner.fields
            ),
        )

    def normalize(self, payload: bytes, *, explains: bool) -> bytes | str:
        """Return the same message as bytes that `decode.py` can read, or (a str) why it is invalid,
        with its first wrong field if `explains`, which takes some time. Required fields may be
        missing."""
        data = payload
        try:
            if self._must_rewrite:
                data = _rewrite(memoryview(payload), self._message, by_runtime=False)
            parsed = self._class.FromString(data)
        except (self._error, ValueError, RecursionError, MemoryError) as error:
            if not explains:
                return f"message {self._message.full_name}: its bytes cannot be read"
            whole = memoryview(payload), 0, len(payload)
            return _explain(*whole, self._message.descriptor, "", 0) or str(error)[:300]
        parsed.DiscardUnknownFields()
        written: bytes = parsed.SerializePartialToString()
        if not self._has_groups:
            return written
        return _rewrite(memoryview(written), self._message, by_runtime=True)


def _may_have_groups(message: ProtobufMessage) -> bool:
    """Return whether a message may have groups, also in fields that are not read, since the runtime
    writes all. Extensions may be groups."""
    skipped = any(wire == types.SGROUP for _, wire in message.skipped)
    known = skipped or any(field.kind == types.GROUP for field in message.fields)
    return known or bool(message.descriptor.is_extendable)


def _any_message(message: ProtobufMessage, test: Callable[[ProtobufMessage], bool]) -> bool:
    """Return whether `test` is true for the message, or for that of a field at any level."""
    inner = (field.message for field in message.fields if field.message is not None)
    return test(message) or any(_any_message(nested, test) for nested in inner)


def _rewrite(data: memoryview, message: ProtobufMessage, *, by_runtime: bool) -> bytes:
    """Copy a message, and all messages inside it. `by_runtime`: the runtime wrote it.

    For the runtime (not `by_runtime`) the entries of maps are copied without unknown fields: Java,
    Go and C++ skip these fields, but the runtime for Python drops the whole entry. For `decode.py`
    (`by_runtime`) fields that are not read are left out, and groups become messages with a length.
    Raises ValueError for damaged bytes, and for numbers that the runtime would cut although the
    field `checks_range`.
    """
    fields = {field.number: field for field in message.fields}
    in_map_entry = types.is_map_entry(message.descriptor)
    drops_unknown = by_runtime or in_map_entry
    out = bytearray()
    at, end = 0, len(data)
    while at < end:
        start = at
        tag, at = read_tag(data, at, end)
        begin, stop, at = _find_value(data, tag, at, end)
        number, wire_type = tag >> 3, tag & 7  # the two parts of a tag
        field = fields.get(number)
        has_wire_type = field is not None and wire_type == types.FIELD_TYPES[field.kind].wire
        if field is None or (in_map_entry and not has_wire_type):  # an unknown field
            if not drops_unknown:
                out += data[start:at]
            continue
        is_packed = field.cardinality is Cardinality.LIST and wire_type == types.LEN
        if field.checks_range and (has_wire_type or is_packed):
            _check_range(field, data[begin:stop])
        # A special field (Timestamp, Decimal, …) is read from its bytes: it is copied as it is.
        inner = field.message if has_wire_type and field.special is None else None
        is_group = wire_type == types.SGROUP
        content: bytes | memoryview = data[begin:stop]
        if inner is not None:
            content = _rewrite(data[begin:stop], inner, by_runtime=by_runtime)
        if (is_group and by_runtime) or (inner is not None and not is_group):
            out += varint_bytes(number << 3 | types.LEN) + varint_bytes(len(content)) + content
        else:
            out += b"".join((data[start:begin], content, data[stop:at]))
    return bytes(out)


def _check_range(field: ProtobufField, varints: memoryview) -> None:
    """Raises ValueError if one of the field's numbers does not fit its 32 bits."""
    if field.kind not in types.VARINT32:
        return
    field_type, at = types.FIELD_TYPES[field.kind], 0
    low, high = field_type.range or types.RANGE32
    while at < len(varints):
        number, at = read_one_varint(varints, at, len(varints))
        if field.kind == types.SINT32:
            number = (number >> 1) ^ -(number & 1)
        elif low < 0 and number >= 1 << 63:
            number -= 1 << 64
        if not low <= number <= high:
            raise ValueError(f"field {field.path}: {number} does not fit {field_type.name}")


def _find_value(data: Any, tag: int, at: int, end: int) -> tuple[int, int, int]:
    """Return where a value begins and ends, and where the next field begins. Raises ValueError."""
    wire = tag & 7
    if wire == types.SGROUP:
        begin = at
        open_groups = [tag >> 3]
        while open_groups:
            stop = at
            if at >= end:
                raise ValueError("a group does not end")
            inner, at = read_one_varint(data, at, end)
            if inner & 7 == types.EGROUP:
                if open_groups.pop() != inner >> 3:
                    raise ValueError("a group ends that did not begin")
            elif inner & 7 == types.SGROUP:
                open_groups.append(inner >> 3)
                if len(open_groups) > MAX_LEVELS:
                    raise ValueError(f"groups are nested in more than {MAX_LEVELS} levels")
            else:
                _, _, at = _find_value(data, inner, at, end)
        return begin, stop, at
    _, begin, after = read_value(data, wire, at, end)
    return begin, after, after


def _explain(
    data: memoryview, at: int, end: int, descriptor: Any, path: str, depth: int
) -> str | None:
    """Return what is wrong first, with its field and byte, in the message of type `descriptor` that
    lies from `at` to `end`; None if nothing is found. It is nested `depth` levels deep, in the
    field `path` ("" for the outermost)."""
    fields = descriptor.fields_by_number
    while at < end:
        start, number = at, 0
        try:
            tag, at = read_tag(data, at, end)
            number = tag >> 3
            begin, stop, at = _find_value(data, tag, at, end)
        except ValueError as error:
            return f"{field_label(descriptor, path, number)}: at byte {start}: {error}"
        field = fields.get(number)
        if field is None:
            continue
        wire, reason = tag & 7, None
        if wire == types.LEN and field.type == types.STRING:
            try:
                str(data[begin:stop], "utf-8")
            except UnicodeDecodeError:
                reason = "its text is not UTF-8"
        elif field.message_type is not None and wire == types.FIELD_TYPES[field.type].wire:
            if depth < MAX_LEVELS:
                name = f"{path}.{field.name}" if path else field.name
                inner = _explain(data, begin, stop, field.message_type, name, depth + 1)
                if inner is not None:
                    return inner
            else:
                reason = f"nested in more than {MAX_LEVELS} levels"
        elif wire == types.LEN and types.is_repeated(field) and not types.is_map(field):
            wrong = _packed_error(data, begin, stop, field)
            reason = wrong and f"at byte {start}: {wrong}"
        if reason:
            return f"{field_label(descriptor, path, number)}: {reason}"
    return None


def field_label(descriptor: Any, path: str, number: int) -> str:
    """Return how reasons name the field with this number (0: the message itself). `descriptor`: of
    the message; `path`: the field that has the message, "" for the outermost one."""
    message_label = f"field {path}" if path else f"message {descriptor.full_name}"
    field = descriptor.fields_by_number.get(number)
    if field is not None:
        return f"field {path}.{field.name}" if path else f"field {field.name}"
    return f"{message_label}: unknown field {number}" if number else message_label


def _packed_error(data: memoryview, at: int, end: int, field: Any) -> str | None:
    """Return what is wrong with the packed numbers from `at` to `end`; None if nothing is."""
    wire = types.FIELD_TYPES[field.type].wire
    if wire == types.VARINT:
        try:
            while at < end:
                _, at = read_one_varint(data, at, end)
        except ValueError as error:
            return str(error)
    elif wire in types.FIXED_WIDTH and (end - at) % types.FIXED_WIDTH[wire]:
        return f"{end - at} bytes are not packed {types.FIELD_TYPES[field.type].name}"
    return None
