"""Encodes the default of a field: JSON in the schema becomes the bytes that a writer would write.

So a default is decoded by the same code as a value. This is done once for a field, never for rows.
"""

from __future__ import annotations

import reprlib
import struct
from typing import Any

from sparkkafka.errors import SchemaError
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.schema import MISSING, Node
from sparkkafka.schemas.bounds import count_steps
from sparkkafka.schemas.field_names import child_path, label


class _MismatchError(Exception):
    """A JSON value does not match its type. The message names the part of the default, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{label(path)}: {reason}")


def default_bytes(node: Node, value: Any, path: str) -> bytes:
    """Encode a default. Raises SchemaError, which names the field, or the item in it."""
    try:
        return _encode(node, value, path)
    except _MismatchError as error:
        raise SchemaError(f"Avro schema, the default of {error}") from None


def _encode(node: Node, value: Any, path: str) -> bytes:
    """Encode a default, or a part of it. Raises _MismatchError if it does not match the type."""
    count_steps(1 + (len(value) // 64 if isinstance(value, str) else 0))
    if node.kind == avro.UNION:
        # The specification allows a default of the first branch; since 1.12 of any branch.
        for number, branch in enumerate(node.branches):
            try:
                return zigzag_bytes(number) + _encode(branch, value, path)
            except _MismatchError:
                continue
        raise _MismatchError(path, f"{reprlib.repr(value)} fits no branch of {node}")
    encoded: bytes | None = None
    if node.kind == avro.RECORD:
        if isinstance(value, dict):
            encoded = _encode_record(node, value, path)
    elif node.kind == avro.ARRAY:
        if isinstance(value, list):
            encoded = _encode_block([_encode(node.item, item, f"{path}[]") for item in value])
    elif node.kind == avro.MAP:
        if isinstance(value, dict):
            key = Node(avro.STRING)
            encoded = _encode_block(
                [
                    _encode(key, name, path) + _encode(node.item, item, f"{path}{{}}")
                    for name, item in value.items()
                ]
            )
    else:
        encoded = _encode_scalar(node, value)
    if encoded is None:
        raise _MismatchError(path, f"{reprlib.repr(value)} is not {node}")
    return encoded


def _encode_record(node: Node, value: dict[str, Any], path: str) -> bytes:
    """Encode a record; fields that `value` lacks get their own defaults. Raises _MismatchError."""
    encoded = []
    for field in node.fields:
        own = value.get(field.name, field.default)
        if own is MISSING:
            raise _MismatchError(
                path, f"it has no field {field.name!r}, which has no default either"
            )
        encoded.append(_encode(field.node, own, child_path(path, field.name)))
    return b"".join(encoded)


def _encode_block(items: list[bytes]) -> bytes:
    """Return an array or map of these encoded items, as one block."""
    return b"".join([zigzag_bytes(len(items)), *items, b"\0"]) if items else b"\0"


def _encode_scalar(node: Node, value: Any) -> bytes | None:
    """Encode a value of a type without types below it; None if it does not match the type."""
    kind = node.kind
    if kind == avro.NULL:
        return b"" if value is None else None
    if kind == avro.BOOLEAN:
        return bytes([value]) if isinstance(value, bool) else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in (avro.INT, avro.LONG):
        limit = 1 << (31 if kind == avro.INT else 63)
        is_integer = is_number and (isinstance(value, int) or value.is_integer())
        return zigzag_bytes(int(value)) if is_integer and -limit <= value < limit else None
    if kind in (avro.FLOAT, avro.DOUBLE):
        # Java also reads these three, which are not numbers in JSON.
        if value in ("NaN", "Infinity", "-Infinity"):
            value = float(value)
        elif not is_number:
            return None
        try:
            return struct.pack("<f" if kind == avro.FLOAT else "<d", value)
        except OverflowError:
            return None
    if not isinstance(value, str):
        return None
    if kind == avro.ENUM:
        return zigzag_bytes(node.symbols.index(value)) if value in node.symbols else None
    try:
        # In bytes and fixed, a character is a byte. Half of a surrogate pair is no UTF-8.
        data = value.encode("utf-8" if kind == avro.STRING else "latin-1")
    except UnicodeEncodeError:
        return None
    if kind == avro.FIXED:
        return data if len(data) == node.size else None
    return zigzag_bytes(len(data)) + data
