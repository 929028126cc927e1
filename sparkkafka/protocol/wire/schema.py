"""Messages declared once for all versions, and their codec.

    @request(api_key=1, versions=(4, 12), flexible=12)
    class FetchRequest(Request["FetchResponse"]):
        max_wait_ms: int = int32()
        session_id: int = int32(0, since=7, ignorable=True)

The keywords are those of Kafka's message JSON (`clients/src/main/resources/common/message`):
`since` and `until` are the versions that have the field (both inclusive), `nullable_since` the
first in which it may be null, `tag` its number as a tagged field (KIP-482), and `ignorable` lets a
value that the version lacks be dropped in silence. Without it a value other than the default is
an `EncodeError`: nothing is lost unnoticed. A struct's fields exist wherever the struct itself
does, so they repeat its `since` only where it is narrower.

A declared class is a slotted, keyword-only dataclass in which every field has Kafka's default.
The codec of a class at a version is compiled once, into closures, when it is first used:
neighbouring fields of fixed size become one `struct` call, and nothing looks at dataclass fields
per message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from sparkkafka.errors import DecodeError, EncodeError, UnsupportedVersionError
from sparkkafka.protocol.wire.field_codecs import AbsentFieldError, FieldCodec, struct_codec
from sparkkafka.protocol.wire.fields import ArrayOf, fields, struct
from sparkkafka.protocol.wire.primitives import BytesLike, Reader, Writer
from sparkkafka.protocol.wire.releases import first_kafka


class Message:
    """Base of requests and responses.

    API_KEY and API_NAME ("Fetch") name the API; MIN_VERSION to MAX_VERSION are the versions
    declared; FLEXIBLE_SINCE is the first with compact lengths and tagged fields, or None.
    """

    __slots__ = ()

    API_KEY: ClassVar[int]
    API_NAME: ClassVar[str]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int | None]


class Response(Message):
    """Base of responses. REQUEST is the class that this one answers."""

    __slots__ = ()

    REQUEST: ClassVar[type[Request[Any]]]


ResponseT = TypeVar("ResponseT", bound=Response)
MessageT = TypeVar("MessageT", bound=Message)


class Request(Message, Generic[ResponseT]):
    """Base of requests. RESPONSE is the class of the answer, also the type's parameter.

    USUAL_VERSION is the highest that is chosen by default.
    """

    __slots__ = ()

    USUAL_VERSION: ClassVar[int]
    RESPONSE: ClassVar[type[Response]]


_RequestT = TypeVar("_RequestT", bound=Request[Any])


@dataclass_transform(kw_only_default=True)
def request(
    *, api_key: int, versions: tuple[int, int], flexible: int | None, usual: int | None = None
) -> Callable[[type[_RequestT]], type[_RequestT]]:
    """Declare a request with its API key, first and last version, and first flexible version.

    Versions above `usual` are sent only on request.
    """

    def decorate(cls: type[_RequestT]) -> type[_RequestT]:
        made = struct(cls)
        made.API_KEY = api_key
        made.API_NAME = made.__name__.removesuffix("Request")
        made.MIN_VERSION, made.MAX_VERSION = versions
        made.USUAL_VERSION = made.MAX_VERSION if usual is None else usual
        made.FLEXIBLE_SINCE = flexible
        return made

    return decorate


@dataclass_transform(kw_only_default=True)
def response(to: type[Request[ResponseT]]) -> Callable[[type[ResponseT]], type[ResponseT]]:
    """Declare the response to a request, which gives it its key and versions."""

    def decorate(cls: type[ResponseT]) -> type[ResponseT]:
        made = struct(cls)
        made.API_KEY = to.API_KEY
        made.API_NAME = to.API_NAME
        made.MIN_VERSION, made.MAX_VERSION = to.MIN_VERSION, to.MAX_VERSION
        made.FLEXIBLE_SINCE = to.FLEXIBLE_SINCE
        made.REQUEST = to
        to.RESPONSE = made
        return made

    return decorate


@dataclass_transform(kw_only_default=True)
def data(*, versions: tuple[int, int]) -> Callable[[type[MessageT]], type[MessageT]]:
    """Declare bytes inside a message that have versions of their own ("type": "data" in JSON)."""

    def decorate(cls: type[MessageT]) -> type[MessageT]:
        made = struct(cls)
        made.API_NAME = made.__name__
        made.MIN_VERSION, made.MAX_VERSION = versions
        made.FLEXIBLE_SINCE = None
        return made

    return decorate


def is_flexible(cls: type[Message], version: int) -> bool:
    """Whether this version has compact lengths, tagged fields and the newer header."""
    return cls.FLEXIBLE_SINCE is not None and version >= cls.FLEXIBLE_SINCE


def layout(cls: type[Any], version: int) -> str:
    """The fields that a message has at a version, a line for each, parts indented below.

    `name: type = default`; `[T]` is an array of T, `| None` marks what may be null. Raises
    UnsupportedVersionError for a version that is not declared.
    """
    _check_version(cls, version)
    return "\n".join((f"{cls.__name__} v{version}", *_rows(cls, version, 1)))


def _rows(cls: type[Any], version: int, depth: int) -> Iterator[str]:
    for row in fields(cls):
        if not row.exists(version):
            continue
        kind = row.wire_type
        of = kind.element if isinstance(kind, ArrayOf) else kind
        name = of.__name__ if isinstance(of, type) else of.name
        name = f"[{name}]" if isinstance(kind, ArrayOf) else name
        null = " | None" if row.nullable(version) else ""
        value = row.make_default()
        default = "" if isinstance(of, type) and value is not None else f" = {value!r}"
        yield f"{'    ' * depth}{row.name}: {name}{null}{default}"
        if isinstance(of, type):
            yield from _rows(of, version, depth + 1)


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
        _codec(cls, version).write(writer, message)
    except AbsentFieldError as error:
        place, needed = _place(cls, version, error), ""
        if error.needed_version is not None:
            kafka = first_kafka(cls.API_NAME, error.needed_version)
            needed = f"; {kafka} or later has it" if kafka else ""
        raise EncodeError(f"{place}: {error}{needed}") from None
    except EncodeError as error:
        raise EncodeError(f"{_place(cls, version, error)}: {error}") from None


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
        message: MessageT = _codec(cls, version).read(reader)
        if to_end:
            reader.expect_end()
    except DecodeError as error:
        reason = str(error).removesuffix(f" (at byte {error.position})")
        place = _place(cls, version, error)
        raise DecodeError(f"{place}: {reason}", error.position) from None
    return message


def _place(cls: type[Message], version: int, error: BaseException) -> str:
    # Each struct on the way up has left a note with the name of the field it was in.
    path = ".".join(reversed(getattr(error, "__notes__", [])))
    return f"{cls.__name__} v{version} {path}".rstrip()


def _codec(cls: type[Message], version: int) -> FieldCodec:
    _check_version(cls, version)
    return struct_codec(cls, version, is_flexible(cls, version))


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise UnsupportedVersionError(
            f"{cls.__name__} version {version} is not supported, "
            f"only {cls.MIN_VERSION} to {cls.MAX_VERSION}"
        )
