"""Varints of one value. `protocol.records.varint_columns` has those of a numpy column.

A varint carries seven bits a byte, lowest first; the high bit says that another byte follows.
Kafka's records and Avro have signed values, zigzag coded (0, -1, 1, -2, … as 0, 1, 2, 3, …): see
Kafka's `ByteUtils`. Kafka's flexible messages and Protobuf's tags and lengths are unsigned.
"""

from __future__ import annotations

from typing import Any

VARINT_BITS = 32  # at most 5 bytes
VARLONG_BITS = 64  # at most 10 bytes


class BadVarintError(ValueError):
    """A varint has more bytes or bits than its type."""


def read_varint(data: Any, at: int, end: int, bits: int = VARLONG_BITS) -> tuple[int, int]:
    """Read an unsigned varint from `data[at:end]`: (value, position after it).

    `data` gives ints for its indexes. Varints longer than they need to be are accepted, as Java
    accepts them. Raises IndexError if it is cut off, BadVarintError for more than `bits` bits.
    """
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value >> bits:
                raise BadVarintError(f"a varint of {value} is too large for {bits} bits")
            return value, at
        if shift >= bits:
            raise BadVarintError(f"a varint is longer than {shift // 7} bytes")
    raise IndexError("a varint is cut off")


def read_zigzag(data: Any, at: int, end: int, bits: int = VARLONG_BITS) -> tuple[int, int]:
    """Read a signed, zigzag coded varint; otherwise as `read_varint`."""
    value, at = read_varint(data, at, end, bits)
    return (value >> 1) ^ -(value & 1), at


def append_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint of `value`, 0 or more."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint_bytes(value: int) -> bytes:
    """Encode `value`, 0 or more, as an unsigned varint."""
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


def zigzag(value: int) -> int:
    """Map a signed to an unsigned number: 0, -1, 1, -2, … to 0, 1, 2, 3, …"""
    return value << 1 if value >= 0 else (-value << 1) - 1


def zigzag_bytes(value: int) -> bytes:
    """Encode a signed value as a zigzag varint."""
    return varint_bytes(zigzag(value))


def varint_size(value: int) -> int:
    """Return the bytes that an unsigned varint of `value` takes."""
    return max(1, (value.bit_length() + 6) // 7)
