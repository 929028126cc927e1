"""What is not plain goes through protobuf's own runtime, which has the last word: it merges what
stands twice, drops what is unknown, puts fields in order, and refuses what is damaged.

The bytes that it writes again are plain. Only groups stay what they are: they are rewritten as
messages with a length. For what it refuses, `explain` looks for the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.plan import Count, Message, is_map
from sparkkafka.schemas.protobuf.wire import varint, varint_bytes

_MOST_LEVELS: Final = 100
"""As protobuf's runtime has it."""


class Normalizer:
    """Of one message type."""

    def __init__(self, message: Message) -> None:
        protobuf = library()
        self._error = protobuf.message.DecodeError
        self._class = protobuf.message_factory.GetMessageClass(message.descriptor)
        self._message = message
        self._groups = _any(message, _has_groups)
        self._maps = _any(message, _has_maps)

    def normal(self, payload: bytes) -> bytes | str:
        """Plain bytes of the same message, or why it is none."""
        if self._maps:
            strange = explain(payload, self._message.descriptor, entries_only=True)
            if strange is not None:
                return strange
        try:
            parsed = self._class.FromString(payload)
        except (self._error, RecursionError, MemoryError) as error:
            return explain(payload, self._message.descriptor) or str(error)[:300]
        if not parsed.IsInitialized():
            return f"field {_missing(parsed, '')}: it is required, and missing"
        parsed.DiscardUnknownFields()
        written: bytes = parsed.SerializePartialToString()
        return _rewritten(memoryview(written), self._message) if self._groups else written


def _missing(message: Any, path: str) -> str | None:
    """The first required field that is missing. (The runtime's own FindInitializationErrors ends
    the process with a segmentation fault now and then; seen with protobuf 7.36.)"""
    for field in message.DESCRIPTOR.fields:
        if types.is_required(field) and not message.HasField(field.name):
            return f"{path}{field.name}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if is_map(field):
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            inner = list(value.values())
        else:
            inner = list(value) if types.is_repeated(field) else [value]
        for one in inner:
            found = _missing(one, f"{path}{field.name}.")
            if found is not None:
                return found
    return None


def _has_groups(message: Message) -> bool:
    """Wanted or not: what is written again has them all."""
    skipped = any(wire == types.START for _, wire in message.skipped)
    return skipped or any(field.kind == types.GROUP for field in message.fields)


def _has_maps(message: Message) -> bool:
    return any(field.count is Count.MAP for field in message.fields)


def _any(message: Message, test: Callable[[Message], bool]) -> bool:
    """Whether the message, or one of a wanted field at any level, passes."""
    inner = (field.message for field in message.fields if field.message is not None)
    return test(message) or any(_any(one, test) for one in inner)


def _rewritten(data: memoryview, message: Message) -> bytes:
    """The wanted fields of valid bytes, with groups as messages."""
    fields = {field.number: field for field in message.fields}
    out = bytearray()
    at, end = 0, len(data)
    while at < end:
        start = at
        tag, at = varint(data, at, end)
        begin, stop, at = _value(data, tag, at, end)
        field = fields.get(tag >> 3)
        if field is None:
            continue
        if field.nested is not None and tag & 7 == types.START:
            inside = bytes(data[begin:stop])
        elif field.message is None or field.special is not None or tag & 7 not in (2, 3):
            out += data[start:at]
            continue
        else:
            inside = _rewritten(data[begin:stop], field.message)
        out += varint_bytes(tag & ~7 | types.LEN) + varint_bytes(len(inside)) + inside
    return bytes(out)


def _value(data: Any, tag: int, at: int, end: int) -> tuple[int, int, int]:
    """Where a value begins and ends, and what comes after it begins. Raises ValueError."""
    wire = tag & 7
    if wire == types.VARINT:
        _, after = varint(data, at, end)
        return at, after, after
    if wire == types.LEN:
        size, begin = varint(data, at, end)
        if begin + size > end:
            raise ValueError(f"a length of {size} goes beyond the end, {end - begin} bytes on")
        return begin, begin + size, begin + size
    if wire in (types.I64, types.I32):
        after = at + (8 if wire == types.I64 else 4)
        if after > end:
            raise ValueError(f"{after - at} bytes are wanted, {end - at} are there")
        return at, after, after
    if wire == types.START:
        begin = at
        depth = [tag >> 3]
        while depth:
            stop = at
            if at >= end:
                raise ValueError("a group does not end")
            inner, at = varint(data, at, end)
            if inner & 7 == types.END:
                if depth.pop() != inner >> 3:
                    raise ValueError("a group ends that did not begin")
            elif inner & 7 == types.START:
                depth.append(inner >> 3)
                if len(depth) > _MOST_LEVELS:
                    raise ValueError(f"groups are nested in more than {_MOST_LEVELS} levels")
            else:
                _, _, at = _value(data, inner, at, end)
        return begin, stop, at
    if wire == types.END:
        raise ValueError("a group ends that did not begin")
    raise ValueError(f"there is no wire type {wire}")


def explain(payload: bytes, descriptor: Any, *, entries_only: bool = False) -> str | None:
    """The first thing that is wrong with a message, with its field and place; None if all looks
    right.

    entries_only: looks for an unknown field in an entry of a map alone. Java reads such an entry,
    protobuf's runtime for Python drops it, and no writer makes one: it is a bad row.
    """
    return _explained(memoryview(payload), 0, len(payload), descriptor, "", 0, entries_only)


def _explained(
    data: memoryview, at: int, end: int, descriptor: Any, path: str, depth: int, only: bool
) -> str | None:
    entry = types.is_entry(descriptor)
    where = f"field {path}" if path else f"message {descriptor.full_name}"
    while at < end:
        start = at
        try:
            tag, at = varint(data, at, end)
        except ValueError as error:
            return None if only else f"{where}: at byte {start}: {error}"
        number = tag >> 3
        if number == 0 or tag > 0xFFFFFFFF or at - start > 5:
            return None if only else f"{where}: byte {start} begins no field"
        field = descriptor.fields_by_number.get(number)
        name = f"{path}.{field.name}" if path and field else field.name if field else ""
        here = f"field {name}" if field else f"{where}: unknown field {number}"
        try:
            begin, stop, at = _value(data, tag, at, end)
        except ValueError as error:
            return None if only else f"{here}: at byte {start}: {error}"
        wire = tag & 7
        if entry and (field is None or wire != types.WIRE[field.type]):
            return f"field {path}: at byte {start}: an entry of the map has an unknown field"
        if field is None:
            continue
        if field.message_type is not None and wire == types.WIRE[field.type]:
            if depth >= _MOST_LEVELS:
                return None if only else f"{here}: nested in more than {_MOST_LEVELS} levels"
            found = _explained(data, begin, stop, field.message_type, name, depth + 1, only)
            if found is not None:
                return found
        elif only:
            continue
        elif wire == types.LEN and field.type == types.STRING:
            try:
                str(data[begin:stop], "utf-8")
            except UnicodeDecodeError:
                return f"{here}: its text is not UTF-8"
        elif wire == types.LEN and types.is_repeated(field) and not is_map(field):
            wrong = _packed_wrong(data, begin, stop, field)
            if wrong:
                return f"{here}: at byte {start}: {wrong}"
    return None


def _packed_wrong(data: memoryview, at: int, end: int, field: Any) -> str | None:
    wire = types.WIRE[field.type]
    if wire == types.VARINT:
        try:
            while at < end:
                _, at = varint(data, at, end)
        except ValueError as error:
            return str(error)
    elif wire in (types.I64, types.I32) and (end - at) % (8 if wire == types.I64 else 4):
        return f"{end - at} bytes are no packed {types.NAMES[field.type]}"
    return None
