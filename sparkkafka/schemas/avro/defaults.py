"""The default of a field: JSON in the schema -> the bytes that a writer would have written.

So a default is read by the same code as a value. Used once for each field, not for rows.
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Callable
from typing import Any

from sparkkafka.errors import SchemaError
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.schema import MISSING, Node, below, place
from sparkkafka.schemas.bounds import spend


class _MisfitError(Exception):
    """A JSON value is none of its type; the argument says where and why."""


def default_bytes(node: Node, value: Any, path: str) -> bytes:
    """A default of JSON as Avro. Raises SchemaError that names the field."""
    try:
        return _encode(node, value, path)
    except _MisfitError as error:
        raise SchemaError(f"Avro schema, the default of {place(path)}: {error}") from None


def _encode(node: Node, value: Any, path: str) -> bytes:
    spend(1 + (len(value) // 64 if isinstance(value, str) else 0))
    if node.kind == avro.UNION:
        # The specification has the first branch; since 1.12 it may be any.
        for index, branch in enumerate(node.branches):
            try:
                return zigzag_bytes(index) + _encode(branch, value, path)
            except _MisfitError:
                continue
        raise _MisfitError(f"{_brief(value)} fits no branch of {node}")
    encode = _NESTED.get(node.kind)
    if encode is not None:
        return encode(node, value, path)
    encoded = _scalar(node, value)
    if encoded is None:
        raise _MisfitError(f"{_brief(value)} is no {node}")
    return encoded


def _scalar(node: Node, value: Any) -> bytes | None:
    kind = node.kind
    if kind == avro.NULL:
        return b"" if value is None else None
    if kind == avro.BOOLEAN:
        return bytes([value]) if isinstance(value, bool) else None
    if kind in (avro.INT, avro.LONG):
        most = 31 if kind == avro.INT else 63
        fits = _is_number(value) and value == int(value) and -(1 << most) <= value < 1 << most
        return zigzag_bytes(int(value)) if fits else None
    if kind in (avro.FLOAT, avro.DOUBLE):
        # Java also reads these three, which JSON has no numbers for.
        if value in ("NaN", "Infinity", "-Infinity"):
            value = float(value)
        elif not _is_number(value, finite=False):
            return None
        try:
            return struct.pack("<f" if kind == avro.FLOAT else "<d", value)
        except OverflowError:
            return None
    if not isinstance(value, str):
        return None
    if kind == avro.STRING:
        try:
            data = value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return zigzag_bytes(len(data)) + data
    if kind == avro.ENUM:
        return zigzag_bytes(node.symbols.index(value)) if value in node.symbols else None
    try:
        data = value.encode("latin-1")  # a character is a byte
    except UnicodeEncodeError:
        return None
    if kind == avro.FIXED:
        return data if len(data) == node.size else None
    return zigzag_bytes(len(data)) + data


def _brief(value: Any) -> str:
    return reprlib.repr(value)


def _is_number(value: Any, *, finite: bool = True) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and (not finite or math.isfinite(value))


def _record(node: Node, value: Any, path: str) -> bytes:
    if not isinstance(value, dict):
        raise _MisfitError(f"{_brief(value)} is no {node}")
    made = []
    for field in node.fields:
        at = below(path, field.name)
        own = value.get(field.name, field.default)
        if own is MISSING:
            raise _MisfitError(f"it has no field {field.name!r}, which has no default either")
        made.append(_encode(field.node, own, at))
    return b"".join(made)


def _array(node: Node, value: Any, path: str) -> bytes:
    if not isinstance(value, list):
        raise _MisfitError(f"{_brief(value)} is no {node}")
    items = [_encode(node.item, each, f"{path}[]") for each in value]
    return b"".join([zigzag_bytes(len(items)), *items, b"\0"]) if items else b"\0"


def _map(node: Node, value: Any, path: str) -> bytes:
    if not isinstance(value, dict):
        raise _MisfitError(f"{_brief(value)} is no {node}")
    key = Node(avro.STRING)
    items = [
        _encode(key, name, path) + _encode(node.item, each, f"{path}{{}}")
        for name, each in value.items()
    ]
    return b"".join([zigzag_bytes(len(items)), *items, b"\0"]) if items else b"\0"


_NESTED: dict[str, Callable[[Node, Any, str], bytes]] = {
    avro.RECORD: _record,
    avro.ARRAY: _array,
    avro.MAP: _map,
}
