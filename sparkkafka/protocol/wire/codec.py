"""Encodes and decodes messages at a version.

The codec of a class at a version is compiled once, into closures, when it is first used. A struct
is read into a list of its fields' values, in the order of declaration, and written from a tuple of
them. Neighbouring numbers become one `struct` call with one bounds check. Errors carry
notes (PEP 678): each struct on the way up adds the name of the field that failed, and the names are
joined into a path such as `topics.partitions.records`.
"""

from __future__ import annotations

import itertools
import operator
import struct as struct_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sparkkafka.errors import DecodeError, EncodeError
from sparkkafka.protocol.wire.primitives import BytesLike, Reader, Writer, byte_view, utf8
from sparkkafka.protocol.wire.schema import (
    BYTES,
    INT16,
    INT32,
    RECORDS,
    STRING,
    UUID,
    ArrayOf,
    Field,
    Message,
    MessageT,
    Primitive,
    RecordsLike,
    WireType,
    check_version,
    fields,
    first_kafka,
    is_flexible,
)


def encode(message: Message, version: int) -> bytes:
    """Return the body of a message (no header) at a version.

    Raises EncodeError for a value that does not fit its type, a null that the version does not
    allow, or a value that the version has no field for (unless ignorable);
    UnsupportedVersionError for a version that is not declared.
    """
    writer = Writer()
    encode_into(writer, message, version)
    return writer.getvalue()


def encode_into(writer: Writer, message: Message, version: int) -> None:
    """Append the body of a message to `writer`, whose content is undefined after an error.

    Raises the errors of `encode`.
    """
    cls = type(message)
    try:
        codec = _CODECS.get((cls, version)) or _compile_codec(cls, version)
        codec.write(writer, message)
    except AbsentFieldError as error:
        path, needed = _path(cls, version, error), ""
        if error.needed_version is not None:
            kafka = first_kafka(cls, error.needed_version)
            needed = f"; {kafka} or later has it" if kafka else ""
        raise EncodeError(f"{path}: {error}{needed}") from None
    except EncodeError as error:
        raise EncodeError(f"{_path(cls, version, error)}: {error}") from None


def decode(cls: type[MessageT], version: int, data: BytesLike, *, pos: int = 0) -> MessageT:
    """Return the message whose body is `data[pos:]`, all of it.

    Fields that the version lacks have their defaults; unknown tagged fields are skipped; records
    are memoryviews of `data`. Raises DecodeError, with a position in `data`, for anything that is
    not such a message; UnsupportedVersionError for a version that is not declared.
    """
    return decode_from(Reader(data, pos), cls, version, to_end=True)


def decode_from(
    reader: Reader, cls: type[MessageT], version: int, *, to_end: bool = False
) -> MessageT:
    """Read a message's body from `reader`; with `to_end` bytes after it are an error.

    Otherwise as `decode`.
    """
    try:
        codec = _CODECS.get((cls, version)) or _compile_codec(cls, version)
        message: MessageT = codec.read(reader)
        if to_end:
            reader.expect_end()
    except DecodeError as error:
        reason = str(error).removesuffix(f" (at byte {error.position})")
        path = _path(cls, version, error)
        raise DecodeError(f"{path}: {reason}", error.position) from None
    return message


def _path(cls: type[Message], version: int, error: BaseException) -> str:
    """Return where an error was: "FetchRequest v4 topics.partitions", from the error's notes."""
    names = ".".join(reversed(getattr(error, "__notes__", [])))
    return f"{cls.__name__} v{version} {names}".rstrip()


# --- codecs of structs --------------------------------------------------------------------------


class ValueCodec(NamedTuple):
    """Reads and writes one value of a type at a version."""

    min_size: int  # bytes that any value takes at least
    read: Callable[[Reader], Any]
    write: Callable[[Writer, Any], None]


_CODECS: dict[tuple[type[Message], int], ValueCodec] = {}


def _compile_codec(cls: type[Message], version: int) -> ValueCodec:
    """Compile the codec of a message at a version, and keep it. Raises
    UnsupportedVersionError."""
    check_version(cls, version)
    # Two threads may both compile it; either result is as good.
    codec = _CODECS[cls, version] = _struct_codec(cls, version, is_flexible(cls, version))
    return codec


class _Step(NamedTuple):
    """Reads and writes one field, or the values of neighbouring numbers as a tuple."""

    position: int | slice  # in the list of the struct's values
    name: str  # the field's; "" for several, whose codec adds the names to errors
    codec: ValueCodec


class _TaggedField(NamedTuple):
    """A field that is sent only if it has another value than its default (KIP-482)."""

    position: int  # in the list of the struct's values
    name: str
    default: object  # the default is not sent
    codec: ValueCodec


def _struct_codec(cls: type[Any], version: int, flexible: bool) -> ValueCodec:
    """Return the codec of a struct or message in one version, which is made of the codecs of its
    fields."""
    declared = fields(cls)
    steps = _steps(declared, version, flexible)
    reads = [(step.position, step.name, step.codec.read) for step in steps]
    writes = [(step.position, step.name, step.codec.write) for step in steps]
    tagged = _tagged_fields(declared, version)
    get_unsendable = unsendable_defaults = None
    if unsendable := _unsendable_fields(declared, version):
        get_unsendable = operator.attrgetter(*(field.name for field in unsendable))
        unsendable_defaults = get_unsendable(cls())
    # One name twice: of a single one, attrgetter returns no tuple.
    get_values = operator.attrgetter(*(field.name for field in declared), declared[0].name)
    # The values of fields that `read` may not find in the bytes; any others are replaced.
    defaults = [None if isinstance(field.default, type) else field.default for field in declared]
    factories = [
        (index, field.default)
        for index, field in enumerate(declared)
        if isinstance(field.default, type) and (field.tag is not None or not field.exists(version))
    ]

    def read(reader: Reader) -> Any:
        """Read one struct: its fields in the order of the version, then its tagged fields."""
        values = defaults.copy()
        for index, make in factories:
            values[index] = make()
        for position, name, read_value in reads:
            try:
                values[position] = read_value(reader)
            except DecodeError as error:
                _note(error, name)
                raise
        if flexible:
            at = reader.pos
            if at < reader.end and not reader.buffer[at]:  # no tagged fields, as nearly always
                reader.pos = at + 1
            else:
                _read_tagged(reader, tagged, values)
        return cls(*values)

    def write(writer: Writer, value: Any) -> None:
        """Write one struct. Raises EncodeError, which names the field."""
        if type(value) is not cls:
            raise EncodeError(f"{type(value).__name__} where {cls.__name__} is required")
        if get_unsendable is not None and get_unsendable(value) != unsendable_defaults:
            _check_unsendable(value, unsendable, declared, version)
        values = get_values(value)
        for position, name, write_value in writes:
            field_value = values[position]
            try:
                write_value(writer, field_value)
            except EncodeError as error:
                refusal = error
                if field_value is None:
                    refusal = EncodeError("must not be null in this version")
                _note(refusal, name)
                raise refusal from None
        if tagged:
            _write_tagged(writer, tagged, values)
        elif flexible:
            writer.buffer.append(0)  # no tagged fields

    min_size = sum(step.codec.min_size for step in steps) + (1 if flexible else 0)
    return ValueCodec(min_size, read, write)


def _note(error: BaseException, name: str) -> None:
    """Add the name of the field that failed to an error (see `_path`); "" adds nothing."""
    if name:
        error.add_note(name)


def _steps(declared: Sequence[Field], version: int, flexible: bool) -> list[_Step]:
    """Return the steps that read and write the fields of a version, but for the tagged ones."""
    steps: list[_Step] = []
    index = 0
    while index < len(declared):
        numbers = list(
            itertools.takewhile(lambda field: _is_number(field, version), declared[index:])
        )
        field = declared[index]
        if len(numbers) > 1:
            positions = slice(index, index + len(numbers))
            steps.append(_Step(positions, "", _numbers_codec(numbers)))
        elif field.tag is None and field.exists(version):
            codec = value_codec(
                field.wire_type,
                nullable=field.nullable(version),
                version=version,
                flexible=flexible,
            )
            steps.append(_Step(index, field.name, codec))
        index += len(numbers) or 1
    return steps


def _is_number(field: Field, version: int) -> bool:
    """Return whether a version has the field, not tagged, and it is a number or boolean."""
    kind = field.wire_type
    is_number = isinstance(kind, Primitive) and bool(kind.code)
    return is_number and field.tag is None and field.exists(version)


def _numbers_codec(numbers: Sequence[Field]) -> ValueCodec:
    """Compile the codec of neighbouring numbers and booleans, whose values are one tuple."""
    names = [field.name for field in numbers]
    kinds = [cast("Primitive[Any]", field.wire_type) for field in numbers]
    form = struct_module.Struct(">" + "".join(kind.code for kind in kinds))
    pack, unpack_from, size = form.pack, form.unpack_from, form.size

    def read(reader: Reader) -> tuple[Any, ...]:
        """Read all numbers in one `struct` call. Raises DecodeError, which names them."""
        start = reader.pos
        if start + size > reader.end:
            try:
                reader.claim(size)  # raises
            except DecodeError as error:
                error.add_note(f"{names[0]} to {names[-1]}")
                raise
        reader.pos = start + size
        return unpack_from(reader.buffer, start)

    def write(writer: Writer, values: tuple[Any, ...]) -> None:
        """Write all numbers in one `struct` call. Raises EncodeError, which names the bad one."""
        try:
            writer.buffer += pack(*values)
        except struct_module.error:
            # One by one, to find which it is.
            for name, kind, value in zip(names, kinds, values, strict=True):
                try:
                    _number_codec(kind).write(writer, value)
                except EncodeError as error:
                    error.add_note(name)
                    raise
            raise

    return ValueCodec(size, read, write)


def _number_codec(kind: Primitive[Any]) -> ValueCodec:
    """Return the codec of one number or boolean."""
    form = struct_module.Struct(">" + kind.code)
    unpack_from, size = form.unpack_from, form.size

    def read(reader: Reader) -> Any:
        start = reader.pos
        if start + size > reader.end:
            reader.claim(size)  # raises
        reader.pos = start + size
        return unpack_from(reader.buffer, start)[0]

    def write(writer: Writer, value: Any) -> None:
        """Write a number. Raises EncodeError if the type cannot hold it."""
        try:
            writer.buffer += form.pack(value)
        except struct_module.error:
            raise EncodeError(f"{value!r} is not {kind.name}") from None

    return ValueCodec(size, read, write)


# --- tagged fields ------------------------------------------------------------------------------


def _tagged_fields(declared: Sequence[Field], version: int) -> dict[int, _TaggedField]:
    """Compile the tagged fields of a version: by tag, in ascending order."""
    return {
        tag: _TaggedField(
            index,
            field.name,
            field.make_default(),
            value_codec(
                field.wire_type, nullable=field.nullable(version), version=version, flexible=True
            ),
        )
        for tag, index, field in sorted(
            (field.tag, index, field)
            for index, field in enumerate(declared)
            if field.tag is not None and field.exists(version)
        )
    }


def _read_tagged(reader: Reader, tagged: Mapping[int, _TaggedField], values: list[Any]) -> None:
    """Read the tagged fields that were sent, and set them in `values`, the struct's values in
    order; unknown ones are skipped."""
    for tag, start, stop in reader.tagged_fields():
        field = tagged.get(tag)
        if field is None:
            continue
        part = Reader(reader.buffer, start, stop)
        try:
            values[field.position] = field.codec.read(part)
            part.expect_end()
        except DecodeError as error:
            error.add_note(field.name)
            raise


def _write_tagged(
    writer: Writer, tagged: Mapping[int, _TaggedField], values: Sequence[Any]
) -> None:
    """Write the tagged fields whose values are not their defaults; `values` are all of the
    struct's."""
    encoded: list[tuple[int, bytes | bytearray]] = []
    for tag, field in tagged.items():
        value = values[field.position]
        if value == field.default:
            continue
        part = Writer()
        try:
            field.codec.write(part, value)
        except EncodeError as error:
            error.add_note(field.name)
            raise
        encoded.append((tag, part.getvalue()))
    writer.tagged_fields(encoded)


# --- fields that a version lacks ----------------------------------------------------------------


class AbsentFieldError(EncodeError):
    """A value cannot be sent, because the version has no field for it."""

    needed_version: int | None = None
    """The first version that has the field, if it is a later one and no other field stands for it
    before."""


def _unsendable_fields(declared: Sequence[Field], version: int) -> list[Field]:
    """Return the fields that a version lacks and whose values may not be dropped."""
    return [
        field
        for field in declared
        if not field.exists(version) and (not field.ignorable or _was_replaced(field, declared))
    ]


def _check_unsendable(
    value: Any, unsendable: Iterable[Field], declared: Sequence[Field], version: int
) -> None:
    """Raise AbsentFieldError if one of the `unsendable` fields of a struct is not its default."""
    for field in unsendable:
        field_value = getattr(value, field.name)
        if field_value == field.make_default():
            continue
        if isinstance(field.wire_type, ArrayOf) and field_value == ():
            continue  # the default is an empty list, and an empty tuple is as good
        present = [other for other in _replacements(field, declared) if other.exists(version)]
        if field.ignorable and any(
            getattr(value, other.name) != other.make_default() for other in present
        ):
            continue  # both are set, so that any version can be sent
        replacements = [other.name for other in present]
        if field.until is None:
            versions = f"since version {field.since}"
        elif field.since:
            versions = f"in versions {field.since} to {field.until}"
        else:
            versions = f"until version {field.until}"
        if replacements:
            versions += f"; version {version} has {' and '.join(replacements)} in its place"
        error = AbsentFieldError(
            f"cannot be sent in version {version}, which has no such field ({versions})"
        )
        if field.since > version and not replacements:
            error.needed_version = field.since
        error.add_note(field.name)
        raise error


def _was_replaced(field: Field, declared: Iterable[Field]) -> bool:
    """Return whether exactly one other field replaced this one, or was replaced by it.

    Then every version has a field for the value, and a request that sets the other field is an
    error, even if Kafka's JSON calls the field ignorable: DeleteTopics v6 without topic_names would
    delete nothing.
    """
    others = _replacements(field, declared)
    return len(others) == 1 and len(_replacements(others[0], declared)) == 1


def _replacements(field: Field, declared: Iterable[Field]) -> list[Field]:
    """Return the fields that replaced `field` (the version that removed it added them), or that it
    replaced (the version that added it removed them)."""
    return [
        other
        for other in declared
        if (field.until is not None and other.since == field.until + 1)
        or (field.since and other.until is not None and other.until == field.since - 1)
    ]


# --- codecs of values -----------------------------------------------------------------------------


def value_codec(wire_type: WireType, *, nullable: bool, version: int, flexible: bool) -> ValueCodec:
    """Compile the codec of a value of a type: compact if `flexible` (KIP-482)."""
    if isinstance(wire_type, ArrayOf):
        return _array_codec(
            wire_type.element, nullable=nullable, version=version, flexible=flexible
        )
    if wire_type is UUID:
        return ValueCodec(16, Reader.uuid, Writer.uuid)
    if isinstance(wire_type, Primitive):
        if wire_type.code:
            return _number_codec(wire_type)
        return _text_codec(wire_type, nullable=nullable, flexible=flexible)
    codec = _struct_codec(wire_type, version, flexible)
    return _nullable_struct_codec(codec) if nullable else codec


def _nullable_struct_codec(codec: ValueCodec) -> ValueCodec:
    """Make the codec of a struct that may be null (KIP-893): an int8 before it is negative for
    null."""

    def read(reader: Reader) -> Any:
        """Read the byte, and the struct unless it is null."""
        return None if reader.int8() < 0 else codec.read(reader)

    def write(writer: Writer, value: Any) -> None:
        """Write a struct behind the byte that says whether it is null."""
        writer.buffer.append(0xFF if value is None else 1)
        if value is not None:
            codec.write(writer, value)

    return ValueCodec(1, read, write)


def _length_codec(kind: Primitive[int], *, nullable: bool, flexible: bool) -> ValueCodec:
    """Compile the codec of the length of a string, bytes or array, in which -1 stands for null:
    the unsigned varint of length + 1 if `flexible` (KIP-482), else a number of this kind."""
    size, read_number, write_number = _number_codec(kind)

    def read(reader: Reader) -> int:
        """Read the length. Raises DecodeError for null, unless it is allowed."""
        start = reader.pos
        if not flexible:
            length: int = read_number(reader)
        elif start < reader.end and (byte := reader.buffer[start]) < 0x80:
            # A varint of one byte, as nearly always: without a call.
            reader.pos, length = start + 1, byte - 1
        else:
            length = reader.unsigned_varint() - 1
        if length < 0 and (length < -1 or not nullable):
            reason = (
                f"negative length {length}" if length < -1 else "null where a value is required"
            )
            raise DecodeError(reason, start)
        return length

    def write(writer: Writer, length: int) -> None:
        """Write the length, -1 for null."""
        if not flexible:
            write_number(writer, length)
        elif length < 0x7F:
            writer.buffer.append(length + 1)  # without a call, as nearly always
        else:
            writer.unsigned_varint(length + 1)

    return ValueCodec(1 if flexible else size, read, write)


def _text_codec(kind: Primitive[Any], *, nullable: bool, flexible: bool) -> ValueCodec:
    """Compile the codec of a string, bytes, or records, which are read without a copy."""
    min_size, read_length, write_length = _length_codec(
        INT16 if kind is STRING else INT32, nullable=nullable, flexible=flexible
    )
    take: Callable[[Reader, int], Any] = Reader.text if kind is STRING else Reader.span
    encode_value: Callable[[Any], BytesLike] = utf8 if kind is STRING else byte_view

    def read(reader: Reader) -> Any:
        """Read the length, and as many bytes as a str or a view; None for null."""
        length = read_length(reader)
        return None if length < 0 else take(reader, length)

    def read_bytes(reader: Reader) -> bytes | None:
        """Read the length, and as many bytes as a copy; None for null."""
        length = read_length(reader)
        return None if length < 0 else bytes(reader.span(length))

    def write(writer: Writer, value: Any) -> None:
        """Write the length of the encoded value, and its bytes."""
        if value is None and nullable:
            write_length(writer, -1)
            return
        encoded = encode_value(value)
        write_length(writer, len(encoded))
        writer.buffer += encoded

    def write_records(writer: Writer, value: RecordsLike | None) -> None:
        """Write the bytes of record batches, in one part or several, after their length. Unlike
        `write`, this does not copy large records."""
        if value is None:
            write(writer, None)
            return
        parts = value if isinstance(value, (list, tuple)) else [cast(BytesLike, value)]
        parts = [part if type(part) is bytes else byte_view(part) for part in parts]
        write_length(writer, sum(map(len, parts)))
        writer.lend(parts)

    return ValueCodec(
        min_size, read_bytes if kind is BYTES else read, write_records if kind is RECORDS else write
    )


def _array_codec(
    element: Primitive[Any] | type[Any], *, nullable: bool, version: int, flexible: bool
) -> ValueCodec:
    """Compile the codec of an array. Numbers and booleans (`code`) are read and written in one
    `struct` call."""
    min_size, read_length, write_length = _length_codec(INT32, nullable=nullable, flexible=flexible)
    codec = value_codec(element, nullable=False, version=version, flexible=flexible)
    element_size, read_element, write_element = codec
    code = element.code if isinstance(element, Primitive) else ""

    def read(reader: Reader) -> list[Any] | None:
        """Read the length and the elements; None for a null array."""
        start = reader.pos
        if flexible and start < reader.end and 0 < reader.buffer[start] <= 2:
            # No element or one, as in most responses: half the calls.
            reader.pos = start + 1
            return [read_element(reader)] if reader.buffer[start] == 2 else []
        count = read_length(reader)
        if count < 0:
            return None
        reader.check_count(count, element_size)
        if code:
            at = reader.claim(count * element_size)
            return list(struct_module.unpack_from(f">{count}{code}", reader.buffer, at))
        return [read_element(reader) for _ in range(count)]

    def write(writer: Writer, value: Sequence[Any] | None) -> None:
        """Write the length and the elements. Raises EncodeError for any value but a list or
        tuple."""
        if value is None and nullable:
            write_length(writer, -1)
            return
        if not isinstance(value, (list, tuple)):
            # A str is a sequence too, and would be sent letter by letter.
            raise EncodeError(f"{type(value).__name__} where a list is required")
        if flexible and len(value) < 127:
            writer.buffer.append(len(value) + 1)  # one byte, without two calls
        else:
            write_length(writer, len(value))
        if code:
            try:
                writer.buffer += struct_module.pack(f">{len(value)}{code}", *value)
            except struct_module.error as error:
                raise EncodeError(f"not all are {element!r}: {error}") from None
            return
        for element_value in value:
            write_element(writer, element_value)

    return ValueCodec(min_size, read, write)
