"""Encodes and decodes messages at a version.

The codec of a class at a version is compiled once, into closures, when it is first used.
Neighbouring fields of fixed size become one `struct` call with one bounds check; each other field
is one step. Errors carry notes (PEP 678) with the names of the fields they passed through on the
way up, which are joined into one path such as `topics.partitions.records`.
"""

from __future__ import annotations

import operator
import struct as struct_module
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from sparkkafka.errors import DecodeError, EncodeError
from sparkkafka.protocol.wire.primitives import BytesLike, Reader, Writer, byte_view
from sparkkafka.protocol.wire.releases import first_kafka
from sparkkafka.protocol.wire.schema import (
    BYTES,
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
    is_flexible,
)


def encode(message: Message, version: int) -> bytes:
    """The body of a message (no header) at a version.

    Raises EncodeError for a value that does not fit its type, a null that the version does not
    allow, or a value that the version has no field for (unless ignorable);
    UnsupportedVersionError for a version that is not declared.
    """
    writer = Writer()
    encode_into(writer, message, version)
    return writer.getvalue()


def encode_into(writer: Writer, message: Message, version: int) -> None:
    """`encode`, appended to `writer`, whose content is undefined after an error."""
    cls = type(message)
    try:
        _message_codec(cls, version).write(writer, message)
    except AbsentFieldError as error:
        path, needed = _path(cls, version, error), ""
        if error.needed_version is not None:
            kafka = first_kafka(cls.API_NAME, error.needed_version)
            needed = f"; {kafka} or later has it" if kafka else ""
        raise EncodeError(f"{path}: {error}{needed}") from None
    except EncodeError as error:
        raise EncodeError(f"{_path(cls, version, error)}: {error}") from None


def decode(cls: type[MessageT], version: int, data: BytesLike, *, pos: int = 0) -> MessageT:
    """The message whose body is `data[pos:]`, all of it.

    Fields that the version lacks have their defaults; unknown tagged fields are skipped; records
    are memoryviews of `data`. Raises DecodeError, with a position in `data`, for anything that is
    not such a message; UnsupportedVersionError for a version that is not declared.
    """
    return decode_rest(cls, version, Reader(data, pos))


def decode_rest(cls: type[MessageT], version: int, reader: Reader) -> MessageT:
    """`decode` of everything that `reader` has left."""
    return _decode(cls, version, reader, to_end=True)


def decode_start(cls: type[MessageT], version: int, reader: Reader) -> MessageT:
    """`decode` from the front of what `reader` has left."""
    return _decode(cls, version, reader, to_end=False)


def _decode(cls: type[MessageT], version: int, reader: Reader, *, to_end: bool) -> MessageT:
    try:
        message: MessageT = _message_codec(cls, version).read(reader)
        if to_end:
            reader.expect_end()
    except DecodeError as error:
        reason = str(error).removesuffix(f" (at byte {error.position})")
        path = _path(cls, version, error)
        raise DecodeError(f"{path}: {reason}", error.position) from None
    return message


def _path(cls: type[Message], version: int, error: BaseException) -> str:
    # Each struct on the way up has left a note with the name of the field it was in.
    names = ".".join(reversed(getattr(error, "__notes__", [])))
    return f"{cls.__name__} v{version} {names}".rstrip()


def _message_codec(cls: type[Message], version: int) -> FieldCodec:
    check_version(cls, version)
    return struct_codec(cls, version, is_flexible(cls, version))


# --- codecs of structs --------------------------------------------------------------------------


ReadValue: TypeAlias = Callable[[Reader], Any]
WriteValue: TypeAlias = Callable[[Writer, Any], None]
_ReadStep: TypeAlias = Callable[[Reader, Any], None]  # sets attributes of the second
_WriteStep: TypeAlias = Callable[[Writer, Any], None]  # gets attributes of the second


class FieldCodec(NamedTuple):
    """Reads and writes one value of a type at a version."""

    min_size: int  # bytes that a value takes at least
    read: ReadValue
    write: WriteValue


class _Step(NamedTuple):
    name: str  # of the field, "" if errors name it themselves
    min_size: int
    read: _ReadStep
    write: _WriteStep


_CODECS: dict[tuple[type[Any], int, bool], FieldCodec] = {}


def struct_codec(cls: type[Any], version: int, flexible: bool) -> FieldCodec:
    """The codec of a struct or message at a version, compiled when first asked for."""
    key = (cls, version, flexible)
    codec = _CODECS.get(key)
    if codec is None:
        # Two threads may both compile it; either result is as good.
        codec = _CODECS[key] = _compile(cls, version, flexible)
    return codec


def _compile(cls: type[Any], version: int, flexible: bool) -> FieldCodec:
    rows = fields(cls)
    present = [row for row in rows if row.exists(version)]
    steps = _steps([row for row in present if row.tag is None], cls, version, flexible)
    if flexible:
        tagged = [row for row in present if row.tag is not None]
        steps.append(_tagged_step(tagged, version) if tagged else _no_tagged_step())

    absent = [row for row in rows if not row.exists(version)]
    tagged_or_absent = [*absent, *(row for row in present if row.tag is not None)]
    constants = [
        (row.name, row.default) for row in tagged_or_absent if not isinstance(row.default, type)
    ]
    factories = [
        (row.name, row.default) for row in tagged_or_absent if isinstance(row.default, type)
    ]
    unsendable = [row for row in absent if not row.ignorable or _was_replaced(row, rows)]
    names = tuple(step.name for step in steps)
    reads = tuple(step.read for step in steps)
    writes: tuple[_WriteStep, ...] = tuple(step.write for step in steps)
    write_names = names
    if unsendable:
        writes = (_absence_check(unsendable, version, present), *writes)
        write_names = ("", *names)
    new = object.__new__

    def read(reader: Reader) -> Any:
        value = new(cls)
        for name, default in constants:
            setattr(value, name, default)
        for name, make in factories:
            setattr(value, name, make())
        for step in reads:
            try:
                step(reader, value)
            except DecodeError as error:
                _note(error, names[reads.index(step)])
                raise
        return value

    def write(writer: Writer, value: Any) -> None:
        if type(value) is not cls:
            raise EncodeError(f"{type(value).__name__} where {cls.__name__} is required")
        for step in writes:
            try:
                step(writer, value)
            except EncodeError as error:
                _note(error, write_names[writes.index(step)])
                raise

    return FieldCodec(sum(step.min_size for step in steps), read, write)


def _note(error: BaseException, name: str) -> None:
    if name:
        error.add_note(name)


class AbsentFieldError(EncodeError):
    """Checks a value for which the version has no field."""

    needed_version: int | None = None
    """The first that has it, if that is a later one and nothing is in its place before."""


def _absence_check(rows: list[Field], version: int, present: list[Field]) -> _WriteStep:
    get = _getter([row.name for row in rows])
    defaults = tuple(row.make_default() for row in rows)

    def check(writer: Writer, value: Any) -> None:
        values = get(value)
        if values == defaults:
            return
        for row, item, default in zip(rows, values, defaults, strict=True):
            # An empty tuple is as good as the empty list.
            if item != default and not (isinstance(row.wire_type, ArrayOf) and item == ()):
                error = AbsentFieldError(
                    f"cannot be sent in version {version}, which has no such field "
                    f"({_whereabouts(row, version, present)})"
                )
                if row.since > version and not _successors(row, present):
                    error.needed_version = row.since
                error.add_note(row.name)
                raise error

    return check


def _whereabouts(row: Field, version: int, present: list[Field]) -> str:
    """Which versions have an absent field, and what has taken its place in this one."""
    if row.until is None:
        text = f"since version {row.since}"
    elif row.since:
        text = f"in versions {row.since} to {row.until}"
    else:
        text = f"until version {row.until}"
    if successors := [other.name for other in _successors(row, present)]:
        text += f"; version {version} has {' and '.join(successors)} in its place"
    return text


def _was_replaced(row: Field, rows: Iterable[Field]) -> bool:
    """Whether exactly one other field replaced this one, or the other way round.

    Its value then has a place in every version. Kafka's JSON still lets DeleteTopics v6 drop
    topic_names, and such a request would delete nothing: here it is an error.
    """
    others = _successors(row, rows)
    return len(others) == 1 and len(_successors(others[0], rows)) == 1


def _successors(row: Field, present: Iterable[Field]) -> list[Field]:
    """The fields that came in the version in which this one went, or went when it came."""
    return [
        other
        for other in present
        if (row.until is not None and other.since == row.until + 1)
        or (row.since and other.until is not None and other.until == row.since - 1)
    ]


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Like operator.attrgetter, but a tuple for one name too."""
    if len(names) > 1:
        return cast("Callable[[Any], tuple[Any, ...]]", operator.attrgetter(*names))
    get = operator.attrgetter(names[0])
    return lambda value: (get(value),)


def _steps(rows: list[Field], cls: type[Any], version: int, flexible: bool) -> list[_Step]:
    steps: list[_Step] = []
    fixed: list[Field] = []
    for row in rows:
        if isinstance(row.wire_type, Primitive) and row.wire_type.code:
            fixed.append(row)
            continue
        if fixed:
            steps.append(_fixed_step(fixed))
            fixed = []
        steps.append(_field_step(row, version, flexible))
    if fixed:
        steps.append(_fixed_step(fixed))
    return steps


def _fixed_step(rows: list[Field]) -> _Step:
    """Neighbouring fields of fixed size: one bounds check and one struct call for all."""
    names = [row.name for row in rows]
    types = [cast("Primitive[Any]", row.wire_type) for row in rows]
    form = struct_module.Struct(">" + "".join(kind.code for kind in types))
    get = _getter(names)
    pack, unpack_from, size = form.pack, form.unpack_from, form.size

    def read(reader: Reader, value: Any) -> None:
        try:
            at = reader.claim(size)
        except DecodeError as error:
            error.add_note(" to ".join(names[:: max(len(names) - 1, 1)]))
            raise
        for name, item in zip(names, unpack_from(reader.buffer, at), strict=True):
            setattr(value, name, item)

    def write(writer: Writer, value: Any) -> None:
        try:
            writer.buffer += pack(*get(value))
        except struct_module.error:
            for name, kind, item in zip(names, types, get(value), strict=True):
                try:
                    struct_module.pack(">" + kind.code, item)
                except struct_module.error:
                    error = EncodeError(f"{item!r} is not {kind.name}")
                    error.add_note(name)
                    raise error from None
            raise

    return _Step("", size, read, write)


def _field_step(row: Field, version: int, flexible: bool) -> _Step:
    min_size, read_value, write_value = _codec(
        row.wire_type, nullable=row.nullable(version), version=version, flexible=flexible
    )
    name = row.name
    get = operator.attrgetter(name)

    def read(reader: Reader, value: Any) -> None:
        setattr(value, name, read_value(reader))

    def write(writer: Writer, value: Any) -> None:
        write_value(writer, get(value))

    return _Step(name, min_size, read, write)


def _no_tagged_step() -> _Step:
    def read(reader: Reader, value: Any) -> None:
        if reader.buffer[reader.claim(1)]:
            reader.pos -= 1
            reader.tagged_fields()

    def write(writer: Writer, value: Any) -> None:
        writer.buffer.append(0)

    return _Step("", 1, read, write)


def _tagged_step(rows: list[Field], version: int) -> _Step:
    rows = sorted(rows, key=lambda row: row.tag or 0)
    codecs = {
        cast(int, row.tag): (
            row,
            row.make_default(),
            _codec(row.wire_type, nullable=row.nullable(version), version=version, flexible=True),
        )
        for row in rows
    }

    def read(reader: Reader, value: Any) -> None:
        for tag, start, stop in reader.tagged_fields():
            known = codecs.get(tag)
            if known is None:
                continue
            row, _, codec = known
            try:
                part = Reader(reader.buffer, start, stop)
                setattr(value, row.name, codec.read(part))
                part.expect_end()
            except DecodeError as error:
                _note(error, row.name)
                raise

    def write(writer: Writer, value: Any) -> None:
        parts: list[tuple[int, bytes | bytearray]] = []
        for tag, (row, default, codec) in codecs.items():
            item = getattr(value, row.name)
            if item == default:
                continue
            part = Writer()
            try:
                codec.write(part, item)
            except EncodeError as error:
                _note(error, row.name)
                raise
            parts.append((tag, part.getvalue()))
        writer.tagged_fields(parts)

    return _Step("", 1, read, write)


def _codec(wire_type: WireType, *, nullable: bool, version: int, flexible: bool) -> FieldCodec:
    """The codec of one value."""
    if isinstance(wire_type, ArrayOf):
        return _array_codec(wire_type, nullable=nullable, version=version, flexible=flexible)
    if isinstance(wire_type, Primitive):
        return _primitive_codec(wire_type, nullable=nullable, flexible=flexible)
    codec = struct_codec(wire_type, version, flexible)
    return _nullable_struct_codec(codec) if nullable else codec


def _nullable_struct_codec(codec: FieldCodec) -> FieldCodec:
    """KIP-893: an int8 before the struct, negative for null."""

    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else codec.read(reader)

    def write(writer: Writer, value: Any) -> None:
        writer.int8(-1 if value is None else 1)
        if value is not None:
            codec.write(writer, value)

    return FieldCodec(1, read, write)


def _primitive_codec(kind: Primitive[Any], *, nullable: bool, flexible: bool) -> FieldCodec:
    if kind.code or kind is UUID:
        size = struct_module.calcsize(">" + kind.code) if kind.code else 16
        return FieldCodec(size, _reader(kind.method), _writer(kind.method))
    form = ("compact_" if flexible else "") + ("nullable_" if nullable else "")
    if kind is STRING:
        return FieldCodec(1 if flexible else 2, _reader(form + "string"), _writer(form + "string"))
    min_size = 1 if flexible else 4
    bytes_method = form + "bytes" if form else "bytes_"
    write_bytes = _writer(bytes_method)
    if kind is BYTES:
        return FieldCodec(min_size, _reader(bytes_method), write_bytes)

    def write_records(writer: Writer, value: RecordsLike | None) -> None:
        if value is None:
            write_bytes(writer, value)
            return
        parts = value if isinstance(value, (list, tuple)) else [cast(BytesLike, value)]
        views = [byte_view(part) for part in parts]
        size = sum(map(len, views))
        if flexible:
            writer.unsigned_varint(size + 1)
        else:
            writer.int32(size)
        for view in views:
            writer.lend(view)

    return FieldCodec(min_size, _reader(form + "view"), write_records)


def _reader(method: str) -> ReadValue:
    return cast(ReadValue, getattr(Reader, method))


def _writer(method: str) -> WriteValue:
    write = cast(WriteValue, getattr(Writer, method))

    def call(writer: Writer, value: Any) -> None:
        if value is None and "nullable" not in method:
            raise EncodeError("must not be null in this version")
        write(writer, value)

    return call


def _array_codec(wire_type: ArrayOf, *, nullable: bool, version: int, flexible: bool) -> FieldCodec:
    element = wire_type.element
    form = ("compact_" if flexible else "") + ("nullable_" if nullable else "") + "array_length"
    read_length = cast("Callable[[Reader, int], int | None]", getattr(Reader, form))
    write_length = cast("Callable[[Writer, int | None], None]", getattr(Writer, form))
    min_size = 1 if flexible else 4

    if isinstance(element, Primitive) and element.code:
        code = element.code
        size = struct_module.calcsize(">" + code)

        def read_fixed(reader: Reader) -> list[Any] | None:
            count = read_length(reader, size)
            if count is None:
                return None
            at = reader.claim(count * size)
            return list(struct_module.unpack_from(f">{count}{code}", reader.buffer, at))

        def write_fixed(writer: Writer, value: Sequence[Any] | None) -> None:
            write_length(writer, _count(value, nullable))
            if value:
                try:
                    writer.buffer += struct_module.pack(f">{len(value)}{code}", *value)
                except struct_module.error as error:
                    raise EncodeError(f"not all are {element!r}: {error}") from None

        return FieldCodec(min_size, read_fixed, write_fixed)

    element_size, read_element, write_element = _codec(
        element, nullable=False, version=version, flexible=flexible
    )

    def read(reader: Reader) -> list[Any] | None:
        count = read_length(reader, element_size)
        if count is None:
            return None
        return [read_element(reader) for _ in range(count)]

    def write(writer: Writer, value: Sequence[Any] | None) -> None:
        write_length(writer, _count(value, nullable))
        for item in value or ():
            write_element(writer, item)

    return FieldCodec(min_size, read, write)


def _count(value: Sequence[Any] | None, nullable: bool) -> int | None:
    if value is None:
        if not nullable:
            raise EncodeError("must not be null in this version")
        return None
    if not isinstance(value, (list, tuple)):
        # A str is a sequence too, and would be sent letter by letter.
        raise EncodeError(f"{type(value).__name__} where a list is required")
    return len(value)
