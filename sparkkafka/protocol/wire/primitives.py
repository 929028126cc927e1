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
import struct
import uuid
from typing import TypeAlias

from sparkkafka.errors import DecodeError, EncodeError
from sparkkafka.protocol.wire.varints import (
    VARINT_BITS,
    VARLONG_BITS,
    BadVarintError,
    append_varint,
    read_varint,
    zigzag,
)

BytesLike: TypeAlias = bytes | bytearray | memoryview

NULL_UUID = uuid.UUID(int=0)  # Kafka's Uuid.ZERO_UUID: "no id"

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

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
    method reads the type of its name. `compact_…` reads KIP-482's lengths. `nullable_…` returns
    None for null, which the others refuse.
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
        value: int = _INT8.unpack_from(self.buffer, self.claim(1))[0]
        return value

    def int16(self) -> int:
        """Read an INT16."""
        value: int = _INT16.unpack_from(self.buffer, self.claim(2))[0]
        return value

    def int32(self) -> int:
        """Read an INT32."""
        value: int = _INT32.unpack_from(self.buffer, self.claim(4))[0]
        return value

    def int64(self) -> int:
        """Read an INT64."""
        value: int = _INT64.unpack_from(self.buffer, self.claim(8))[0]
        return value

    def uuid(self) -> uuid.UUID:
        """Read a UUID of 16 bytes."""
        return uuid_of(bytes(self.span(16)))

    def unsigned_varint(self) -> int:
        """Read an unsigned varint of up to 5 bytes: 0 to 2**32 - 1."""
        start = self.pos
        if start < self.end and (first := self.buffer[start]) < 0x80:
            self.pos = start + 1
            return first
        return self._any_varint(VARINT_BITS)

    def varint(self) -> int:
        """Read a zigzag varint of up to 5 bytes: a signed number of 32 bits."""
        value = self.unsigned_varint()
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Read a zigzag varint of up to 10 bytes: a signed number of 64 bits."""
        value = self._any_varint(VARLONG_BITS)
        return (value >> 1) ^ -(value & 1)

    def _any_varint(self, bits: int) -> int:
        """Read an unsigned varint. More than `bits` bits are damage here; Java drops them."""
        start = self.pos
        if start == self.end:
            self.claim(1)  # raises
        try:
            value, self.pos = read_varint(self.buffer, start, self.end, bits)
        except BadVarintError as error:
            raise DecodeError(str(error), start) from None
        except IndexError as error:
            raise DecodeError(str(error), self.end) from None
        return value

    # Strings and bytes

    def string(self) -> str:
        """Read a STRING: its length as INT16, and its UTF-8."""
        return self._text(self._length(self.int16(), 2))

    def nullable_string(self) -> str | None:
        """Read a NULLABLE_STRING: a STRING, or None for the length -1."""
        size = self._nullable_length(self.int16(), 2)
        return None if size is None else self._text(size)

    def compact_string(self) -> str:
        """Read a COMPACT_STRING: its length + 1 as an unsigned varint, and its UTF-8."""
        size = self.unsigned_varint() - 1
        if size < 0:
            raise self._null_error(1)
        return self._text(size)

    def compact_nullable_string(self) -> str | None:
        """Read a COMPACT_NULLABLE_STRING: a COMPACT_STRING, or None for 0 in place of the length +
        1."""
        size = self.unsigned_varint()
        return None if size == 0 else self._text(size - 1)

    def bytes_(self) -> bytes:
        """Read BYTES: their length as INT32, and a copy of them."""
        return bytes(self.view())

    def nullable_bytes(self) -> bytes | None:
        """Read NULLABLE_BYTES: BYTES, or None for the length -1."""
        view = self.nullable_view()
        return None if view is None else bytes(view)

    def compact_bytes(self) -> bytes:
        """Read COMPACT_BYTES: their length + 1 as an unsigned varint, and a copy of them."""
        return bytes(self.compact_view())

    def compact_nullable_bytes(self) -> bytes | None:
        """Read COMPACT_NULLABLE_BYTES: COMPACT_BYTES, or None for 0 in place of the length + 1."""
        view = self.compact_nullable_view()
        return None if view is None else bytes(view)

    # The same bytes as a view of the buffer, not a copy

    def view(self) -> memoryview:
        """Read BYTES as a view of the buffer."""
        return self.span(self._length(self.int32(), 4))

    def nullable_view(self) -> memoryview | None:
        """Read NULLABLE_BYTES as a view of the buffer."""
        size = self._nullable_length(self.int32(), 4)
        return None if size is None else self.span(size)

    def compact_view(self) -> memoryview:
        """Read COMPACT_BYTES as a view of the buffer."""
        size = self.unsigned_varint() - 1
        if size < 0:
            raise self._null_error(1)
        return self.span(size)

    def compact_nullable_view(self) -> memoryview | None:
        """Read COMPACT_NULLABLE_BYTES as a view of the buffer."""
        size = self.unsigned_varint()
        return None if size == 0 else self.span(size - 1)

    # Array lengths

    def array_length(self, element_size: int = 1) -> int:
        """Read the number of elements, which take `element_size` bytes or more each.

        A count that the bytes left cannot hold is an error, before anything is allocated for it.
        """
        return self._count(self._length(self.int32(), 4), element_size)

    def nullable_array_length(self, element_size: int = 1) -> int | None:
        """Read the number of elements of an array, None for null; each takes `element_size` bytes
        or more."""
        count = self._nullable_length(self.int32(), 4)
        return None if count is None else self._count(count, element_size)

    def compact_array_length(self, element_size: int = 1) -> int:
        """Read the length of a COMPACT_ARRAY, as `array_length`."""
        count = self.unsigned_varint() - 1
        if count < 0:
            raise self._null_error(1)
        return self._count(count, element_size)

    def compact_nullable_array_length(self, element_size: int = 1) -> int | None:
        """Read the length of a COMPACT_ARRAY that may be null, as `nullable_array_length`."""
        count = self.unsigned_varint()
        return None if count == 0 else self._count(count - 1, element_size)

    # Tagged fields

    def tagged_fields(self) -> list[tuple[int, int, int]]:
        """Step over the tagged fields (KIP-482), and return (tag, start, stop) of each value in
        `buffer`, in ascending order of the tags."""
        count = self.unsigned_varint()
        if count == 0:
            return []
        fields: list[tuple[int, int, int]] = []
        previous = -1
        for _ in range(self._count(count, 2, MAX_TAGGED_FIELDS)):
            at = self.pos
            tag = self.unsigned_varint()
            if tag <= previous:
                raise DecodeError(f"tag {tag} after tag {previous}", at)
            previous = tag
            size = self.unsigned_varint()
            fields.append((tag, self.claim(size), self.pos))
        return fields

    def _text(self, size: int) -> str:
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

    def _nullable_length(self, size: int, width: int) -> int | None:
        """Return a length that has just been read from `width` bytes, None for null. Raises
        DecodeError for other negative numbers."""
        if size >= 0:
            return size
        if size == -1:
            return None
        raise DecodeError(f"negative length {size}", self.pos - width)

    def _length(self, size: int, width: int) -> int:
        """Return a length that has just been read from `width` bytes. Raises DecodeError for null
        and other negative numbers."""
        if size == -1:
            raise self._null_error(width)
        if size < 0:
            raise DecodeError(f"negative length {size}", self.pos - width)
        return size

    def _null_error(self, width: int) -> DecodeError:
        """Make the error for a null whose length of `width` bytes has just been read."""
        return DecodeError("null where a value is required", self.pos - width)

    def _count(self, count: int, element_size: int, limit: int = MAX_ELEMENTS) -> int:
        """Return an array's length. Raises DecodeError if the bytes left cannot hold that many
        elements of `element_size` or more bytes, or if there are more than `limit`."""
        if count * element_size > self.end - self.pos:
            raise DecodeError(
                f"{count} elements of {element_size} or more bytes, "
                f"but only {self.end - self.pos} bytes left",
                self.pos,
            )
        if count > limit:
            raise DecodeError(f"{count} elements, more than the limit of {limit}", self.pos)
        return count


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

    def lend(self, data: BytesLike) -> None:
        """Append bytes that nobody changes until the message is sent: large ones are not copied.

        Use `parts` or `getvalue` afterwards; `buffer` holds what came after the last large one.
        """
        # Records of this size or more are sent from where they are: copying them would cost more.
        if len(data) < 16384:
            self.buffer += data
        else:
            self._before += (self.buffer, data)
            self.buffer = bytearray()

    # Numbers

    def int8(self, value: int) -> None:
        """Append an INT8."""
        self._pack(_INT8, value, "int8")

    def int16(self, value: int) -> None:
        """Append an INT16."""
        self._pack(_INT16, value, "int16")

    def int32(self, value: int) -> None:
        """Append an INT32."""
        self._pack(_INT32, value, "int32")

    def int64(self, value: int) -> None:
        """Append an INT64."""
        self._pack(_INT64, value, "int64")

    def uuid(self, value: uuid.UUID) -> None:
        """Append a UUID of 16 bytes."""
        if not isinstance(value, uuid.UUID):
            raise EncodeError(f"{value!r} is not a uuid.UUID")
        self.buffer += value.bytes

    def unsigned_varint(self, value: int) -> None:
        """Append an unsigned varint of up to 5 bytes: 0 to 2**32 - 1."""
        if 0 <= value < 0x80:
            self.buffer.append(value)
        elif 0 <= value <= _MAX_UINT32:
            append_varint(self.buffer, value)
        else:
            raise EncodeError(f"{value} is not an unsigned varint")

    def varint(self, value: int) -> None:
        """Append a zigzag varint of up to 5 bytes: a signed number of 32 bits."""
        if not -(2**31) <= value < 2**31:
            raise EncodeError(f"{value} is not a varint")
        append_varint(self.buffer, zigzag(value))

    def varlong(self, value: int) -> None:
        """Append a zigzag varint of up to 10 bytes: a signed number of 64 bits."""
        if not -(2**63) <= value < 2**63:
            raise EncodeError(f"{value} is not a varlong")
        append_varint(self.buffer, zigzag(value))

    # Strings and bytes

    def string(self, value: str) -> None:
        """Append a STRING: its length as INT16, and its UTF-8."""
        encoded = _utf8(value)
        self.int16(len(encoded))
        self.buffer += encoded

    def nullable_string(self, value: str | None) -> None:
        """Append a NULLABLE_STRING: a STRING, or the length -1 for None."""
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def compact_string(self, value: str) -> None:
        """Append a COMPACT_STRING: its length + 1 as an unsigned varint, and its UTF-8."""
        encoded = _utf8(value)
        self.unsigned_varint(len(encoded) + 1)
        self.buffer += encoded

    def compact_nullable_string(self, value: str | None) -> None:
        """Append a COMPACT_NULLABLE_STRING: a COMPACT_STRING, or 0 for None."""
        if value is None:
            self.buffer.append(0)
        else:
            self.compact_string(value)

    def bytes_(self, value: BytesLike) -> None:
        """Append BYTES: their length as INT32, and the bytes."""
        view = byte_view(value)
        self.int32(len(view))
        self.buffer += view

    def nullable_bytes(self, value: BytesLike | None) -> None:
        """Append NULLABLE_BYTES: BYTES, or the length -1 for None."""
        if value is None:
            self.int32(-1)
        else:
            self.bytes_(value)

    def compact_bytes(self, value: BytesLike) -> None:
        """Append COMPACT_BYTES: their length + 1 as an unsigned varint, and the bytes."""
        view = byte_view(value)
        self.unsigned_varint(len(view) + 1)
        self.buffer += view

    def compact_nullable_bytes(self, value: BytesLike | None) -> None:
        """Append COMPACT_NULLABLE_BYTES: COMPACT_BYTES, or 0 for None."""
        if value is None:
            self.buffer.append(0)
        else:
            self.compact_bytes(value)

    # Array lengths

    def array_length(self, count: int) -> None:
        """Append the length of an ARRAY, an INT32."""
        self.int32(count)

    def nullable_array_length(self, count: int | None) -> None:
        """Append the length of an ARRAY, -1 for None."""
        self.int32(-1 if count is None else count)

    def compact_array_length(self, count: int) -> None:
        """Append the length of a COMPACT_ARRAY: the length + 1 as an unsigned varint."""
        self.unsigned_varint(count + 1)

    def compact_nullable_array_length(self, count: int | None) -> None:
        """Append the length of a COMPACT_ARRAY, 0 for None."""
        self.unsigned_varint(0 if count is None else count + 1)

    # Tagged fields

    def tagged_fields(self, fields: list[tuple[int, bytes | bytearray]]) -> None:
        """Append tagged fields, given as (tag, encoded value) in ascending order of their tags."""
        self.unsigned_varint(len(fields))
        for tag, encoded in fields:
            self.unsigned_varint(tag)
            self.unsigned_varint(len(encoded))
            self.buffer += encoded

    def _pack(self, form: struct.Struct, value: float, name: str) -> None:
        """Append a number; `name` is its type, for the error."""
        try:
            self.buffer += form.pack(value)
        except struct.error:
            raise EncodeError(f"{value!r} is not {name}") from None


def _utf8(value: str) -> bytes:
    """Encode a string. Raises EncodeError for another type, a lone surrogate or a longer one."""
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
