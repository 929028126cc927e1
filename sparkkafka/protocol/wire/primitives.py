"""Kafka's primitive types: `Reader` takes them out of a buffer, `Writer` puts them into one.

The types are those of Kafka's protocol guide ("Protocol Primitive Types"), big endian. Lengths come
in two forms: classic (int16 for strings, int32 for bytes and arrays, -1 for null) and compact
(KIP-482: unsigned varint of length + 1, 0 for null). Record fields use the signed (zigzag) varints.

A `Reader` fails only with `DecodeError` and a position, whatever the bytes: every access is checked
against its end first, by `Reader.claim` or, where that call would cost as much as the read, beside
it. A `Writer` fails with `EncodeError` when a value does not fit its type.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable
from typing import TypeAlias

from sparkkafka.errors import DecodeError, EncodeError
from sparkkafka.protocol.wire import varints

BytesLike: TypeAlias = bytes | bytearray | memoryview

NULL_UUID = uuid.UUID(int=0)  # Kafka's Uuid.ZERO_UUID: "no id"

_MAX_UINT32 = 2**32 - 1

MAX_ELEMENTS, MAX_TAGGED_FIELDS = 1_000_000, 10_000
"""Limits of what is decoded from a broker: an element may take a hundred times the
memory of its bytes, so that the size of the frame is no limit."""


@functools.lru_cache(1_000)
def uuid_of(id_bytes: bytes) -> uuid.UUID:
    """Return the UUID of 16 bytes, usually the topic id of the message before."""
    return uuid.UUID(bytes=id_bytes)


def byte_view(value: BytesLike) -> memoryview:
    """View anything bytes-like as plain bytes; a copy only if it is scattered in memory."""
    try:
        view = memoryview(value)
    except TypeError:
        raise EncodeError(f"{type(value).__name__} where bytes are required") from None
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    if not view.c_contiguous or not view.nbytes:  # the shape (0, 3) cannot be cast
        return memoryview(view.tobytes())
    return view.cast("B")


class Reader:
    """Reads primitives from `buffer[pos:end]`, never a byte outside.

    `pos` is the position of the next byte in `buffer`, which is also what errors report. Each
    method reads the type of its name.
    """

    __slots__ = ("buffer", "end", "pos")

    def __init__(self, buffer: BytesLike, pos: int = 0, end: int | None = None) -> None:
        self.buffer = byte_view(buffer)
        size = len(self.buffer)
        self.end = size if end is None else end
        self.pos = pos
        if not 0 <= pos <= self.end <= size:
            raise DecodeError(f"no bytes {pos} to {self.end} in a buffer of {size}", pos)

    @property
    def remaining(self) -> int:
        """How many bytes are not read yet."""
        return self.end - self.pos

    def claim(self, size: int) -> int:
        """Step over the next `size` bytes and return where they start. Raises DecodeError if there
        are fewer."""
        start = self.pos
        stop = start + size
        if not start <= stop <= self.end:
            if size < 0:
                raise DecodeError(f"negative size {size}", start)
            raise DecodeError(f"need {size} bytes, have {self.end - start}", start)
        self.pos = stop
        return start

    def span(self, size: int) -> memoryview:
        """Read the next `size` bytes as a view of the buffer."""
        start = self.claim(size)
        return self.buffer[start : self.pos]

    def expect_end(self) -> None:
        """Raise DecodeError if bytes are left."""
        if self.pos != self.end:
            raise DecodeError(f"{self.end - self.pos} bytes left over", self.pos)

    # Numbers

    def int8(self) -> int:
        """Read an INT8."""
        return int.from_bytes(self.buffer[self.claim(1) : self.pos], "big", signed=True)

    def int16(self) -> int:
        """Read an INT16."""
        return int.from_bytes(self.buffer[self.claim(2) : self.pos], "big", signed=True)

    def int32(self) -> int:
        """Read an INT32."""
        return int.from_bytes(self.buffer[self.claim(4) : self.pos], "big", signed=True)

    def uuid(self) -> uuid.UUID:
        """Read a UUID of 16 bytes."""
        return uuid_of(bytes(self.buffer[self.claim(16) : self.pos]))

    def unsigned_varint(self) -> int:
        """Read an unsigned varint of up to 5 bytes: 0 to 2**32 - 1."""
        start = self.pos
        if start < self.end and (first := self.buffer[start]) < 0x80:
            self.pos = start + 1
            return first
        return self._any_varint(varints.VARINT_BITS)

    def varint(self) -> int:
        """Read a zigzag varint of up to 5 bytes: a signed number of 32 bits."""
        value = self.unsigned_varint()
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Read a zigzag varint of up to 10 bytes: a signed number of 64 bits."""
        value = self._any_varint(varints.VARLONG_BITS)
        return (value >> 1) ^ -(value & 1)

    def _any_varint(self, bits: int) -> int:
        """Read an unsigned varint. More than `bits` bits are damage here; Java drops them."""
        start = self.pos
        if start == self.end:
            self.claim(1)  # raises
        try:
            value, self.pos = varints.read_varint(self.buffer, start, self.end, bits)
        except varints.BadVarintError as error:
            raise DecodeError(str(error), start) from None
        except IndexError as error:
            raise DecodeError(str(error), self.end) from None
        return value

    def text(self, size: int) -> str:
        """Read `size` bytes as UTF-8. Raises DecodeError for other bytes."""
        start = self.pos
        stop = start + size
        if stop > self.end:
            self.claim(size)  # raises
        self.pos = stop
        try:
            return str(self.buffer[start:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"not UTF-8: {error.reason}", start + error.start) from None

    def check_count(self, count: int, element_size: int, limit: int = MAX_ELEMENTS) -> None:
        """Raise DecodeError if the bytes left cannot hold `count` elements of `element_size` or
        more bytes, or if there are more than `limit`: before anything is allocated for them."""
        if count * element_size > self.end - self.pos:
            raise DecodeError(
                f"{count} elements of {element_size} or more bytes, "
                f"but only {self.end - self.pos} bytes left",
                self.pos,
            )
        if count > limit:
            raise DecodeError(f"{count} elements, more than the limit of {limit}", self.pos)

    # Tagged fields

    def tagged_fields(self) -> list[tuple[int, int, int]]:
        """Step over the tagged fields (KIP-482), and return (tag, start, stop) of each value in
        `buffer`, in ascending order of the tags."""
        count = self.unsigned_varint()
        if count == 0:
            return []
        fields: list[tuple[int, int, int]] = []
        previous = -1
        self.check_count(count, 2, MAX_TAGGED_FIELDS)  # at least a byte each for tag and size
        for _ in range(count):
            at = self.pos
            tag = self.unsigned_varint()
            if tag <= previous:
                raise DecodeError(f"tag {tag} after tag {previous}", at)
            previous = tag
            size = self.unsigned_varint()
            fields.append((tag, self.claim(size), self.pos))
        return fields


class Writer:
    """Appends primitives to `buffer`. A value that its type cannot hold is an `EncodeError`.

    The methods are those of `Reader`.
    """

    __slots__ = ("_before", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._before: list[BytesLike] = []  # the parts before `buffer`: see `lend`

    def getvalue(self) -> bytes:
        """Return everything written so far."""
        return b"".join(self.parts())

    def parts(self) -> list[BytesLike]:
        """Return everything written so far, in order, without a copy; the first part is a
        bytearray."""
        return [*self._before, self.buffer]

    def lend(self, parts: Iterable[BytesLike]) -> None:
        """Append bytes that nobody changes until the message is sent: large ones are not copied.

        Use `parts` or `getvalue` afterwards; `buffer` holds what came after the last large one.
        """
        for part in parts:
            # From this size on a copy would cost more than sending the part from where it is.
            if len(part) < 16384:
                self.buffer += part
            else:
                self._before += (self.buffer, part)
                self.buffer = bytearray()

    def uuid(self, value: uuid.UUID) -> None:
        """Append a UUID of 16 bytes."""
        if not isinstance(value, uuid.UUID):
            raise EncodeError(f"{value!r} is not a uuid.UUID")
        self.buffer += value.int.to_bytes(16, "big")  # `bytes` takes a call more

    def unsigned_varint(self, value: int) -> None:
        """Append an unsigned varint of up to 5 bytes: 0 to 2**32 - 1."""
        if 0 <= value < 0x80:
            self.buffer.append(value)
        elif 0 <= value <= _MAX_UINT32:
            varints.append_varint(self.buffer, value)
        else:
            raise EncodeError(f"{value} is not an unsigned varint")

    def varint(self, value: int) -> None:
        """Append a zigzag varint of up to 5 bytes: a signed number of 32 bits."""
        if not -(2**31) <= value < 2**31:
            raise EncodeError(f"{value} is not a varint")
        varints.append_varint(self.buffer, varints.zigzag(value))

    def varlong(self, value: int) -> None:
        """Append a zigzag varint of up to 10 bytes: a signed number of 64 bits."""
        if not -(2**63) <= value < 2**63:
            raise EncodeError(f"{value} is not a varlong")
        varints.append_varint(self.buffer, varints.zigzag(value))

    def tagged_fields(self, fields: list[tuple[int, bytes | bytearray]]) -> None:
        """Append tagged fields, given as (tag, encoded value) in ascending order of their tags."""
        self.unsigned_varint(len(fields))
        for tag, encoded in fields:
            self.unsigned_varint(tag)
            self.unsigned_varint(len(encoded))
            self.buffer += encoded


def utf8(value: str) -> bytes:
    """Encode a string. Raises EncodeError for another type, a lone surrogate, or more bytes than
    Kafka's strings may have."""
    if not isinstance(value, str):
        raise EncodeError(f"{type(value).__name__} where a string is required")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"string cannot be UTF-8: {error.reason}") from None
    # Java's Writable keeps int16's limit for compact strings too.
    if len(encoded) > 0x7FFF:
        raise EncodeError(f"string of {len(encoded)} bytes, at most 32767 are possible")
    return encoded
