"""Messages, declared once for all versions. `codec` encodes and decodes them.

    from sparkkafka.protocol.wire import schema as wire

    @wire.request(api_key=1, versions=(4, 12), flexible=12)
    class FetchRequest(wire.Request["FetchResponse"]):
        max_wait_ms: int = wire.int32()
        session_id: int = wire.int32(0, since=7, ignorable=True)

The keywords are those of Kafka's message JSON (`clients/src/main/resources/common/message`):
`since` and `until` are the versions that have the field (both inclusive), `nullable_since` the
first in which it may be null (if that is a later one), `tag` its number as a tagged field
(KIP-482), and `ignorable` lets a value that the version lacks be dropped in silence. Without it a
value other than the default is an `EncodeError`: nothing is lost unnoticed. A struct's fields exist
wherever the struct itself does, so they repeat its `since` only where it is narrower.

A declared class has slots, and every field has Kafka's default. Type checkers see a keyword-only
dataclass; at run time the codec passes all values by position, which is far faster.
"""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Callable, Iterator, Sequence
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
)

from sparkkafka.errors import UnsupportedVersionError
from sparkkafka.protocol.wire.primitives import NULL_UUID, BytesLike

# --- fields -------------------------------------------------------------------------------------

RecordsLike: TypeAlias = BytesLike | Sequence[BytesLike]
"""The value of a records field to encode: bytes, or pieces that are written one after the other."""

_T = TypeVar("_T")


class Primitive(Generic[_T]):
    """A wire type that is not a struct or an array. `code` is the letter of a number or boolean in
    the stdlib's `struct`, else empty."""

    __slots__ = ("code", "name")

    def __init__(self, name: str, code: str = "") -> None:
        self.name = name
        self.code = code

    def __repr__(self) -> str:
        return self.name


BOOLEAN = Primitive[bool]("bool", "?")
INT8 = Primitive[int]("int8", "b")
INT16 = Primitive[int]("int16", "h")
UINT16 = Primitive[int]("uint16", "H")
INT32 = Primitive[int]("int32", "i")
INT64 = Primitive[int]("int64", "q")
FLOAT64 = Primitive[float]("float64", "d")
UUID = Primitive[uuid_module.UUID]("uuid")
STRING = Primitive[str]("string")
BYTES = Primitive[bytes]("bytes")
RECORDS = Primitive[Any]("records")


class ArrayOf(NamedTuple):
    """The wire type of an array; `element` is a Primitive or a struct class."""

    element: Primitive[Any] | type[Any]


WireType: TypeAlias = Primitive[Any] | ArrayOf | type[Any]


class Field(NamedTuple):
    """The declaration of one field. `nullable_since` None: never null; `until` None: to the last
    version."""

    name: str
    wire_type: WireType
    default: object  # arrays and structs: None, or the class that makes an empty one
    nullable_since: int | None
    secret: bool  # not shown by the message's repr
    since: int = 0
    until: int | None = None
    tag: int | None = None
    ignorable: bool = False

    def exists(self, version: int) -> bool:
        """Return whether this version has the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable(self, version: int) -> bool:
        """Return whether the field may be null in this version, if it exists there."""
        return self.nullable_since is not None and version >= self.nullable_since

    def make_default(self) -> object:
        """Return the default value, a new object if it is a list or struct."""
        return self.default() if isinstance(self.default, type) else self.default


class FieldKeywords(TypedDict, total=False):
    """Keywords of every field; the module's docstring explains them."""

    since: int
    until: int
    tag: int
    ignorable: bool


# Each function below declares a field of its type in a class body. To a type checker it returns a
# value of the field's Python type, so that `acks: int = int16()` is a default.


def boolean(default: bool = False, **keywords: Unpack[FieldKeywords]) -> bool:
    """Declare a BOOLEAN field."""
    return cast(bool, _declare(BOOLEAN, default, keywords))


def int8(default: int = 0, **keywords: Unpack[FieldKeywords]) -> int:
    """Declare an INT8 field."""
    return cast(int, _declare(INT8, default, keywords))


def int16(default: int = 0, **keywords: Unpack[FieldKeywords]) -> int:
    """Declare an INT16 field."""
    return cast(int, _declare(INT16, default, keywords))


def uint16(default: int = 0, **keywords: Unpack[FieldKeywords]) -> int:
    """Declare a UINT16 field."""
    return cast(int, _declare(UINT16, default, keywords))


def int32(default: int = 0, **keywords: Unpack[FieldKeywords]) -> int:
    """Declare an INT32 field."""
    return cast(int, _declare(INT32, default, keywords))


def int64(default: int = 0, **keywords: Unpack[FieldKeywords]) -> int:
    """Declare an INT64 field."""
    return cast(int, _declare(INT64, default, keywords))


def float64(default: float = 0.0, **keywords: Unpack[FieldKeywords]) -> float:
    """Declare a FLOAT64 field."""
    return cast(float, _declare(FLOAT64, default, keywords))


def uuid(**keywords: Unpack[FieldKeywords]) -> uuid_module.UUID:
    """Declare a UUID field."""
    return cast(uuid_module.UUID, _declare(UUID, NULL_UUID, keywords))


def string(default: str = "", **keywords: Unpack[FieldKeywords]) -> str:
    """Declare a STRING field, which cannot be null."""
    return cast(str, _declare(STRING, default, keywords))


def nullable_string(
    default: str | None = "", *, nullable_since: int = 0, **keywords: Unpack[FieldKeywords]
) -> str | None:
    """Declare a STRING field that may be null from version `nullable_since` on."""
    return cast("str | None", _declare(STRING, default, keywords, nullable_since))


def bytes_(*, secret: bool = False, **keywords: Unpack[FieldKeywords]) -> bytes:
    """Declare a BYTES field, which decoding copies out of the buffer. `secret` keeps it out of the
    message's repr."""
    return cast(bytes, _declare(BYTES, b"", keywords, secret=secret))


def nullable_bytes(**keywords: Unpack[FieldKeywords]) -> bytes | None:
    """Declare a BYTES field that may be null, which is the default."""
    return cast("bytes | None", _declare(BYTES, None, keywords, 0))


def records(*, nullable: bool = True, **keywords: Unpack[FieldKeywords]) -> Any:
    """Declare a field of record batches as they lie on the wire; null is the default, as in Java.

    Decoding gives a memoryview of the decoded buffer; encoding takes RecordsLike.
    """
    return _declare(RECORDS, None, keywords, 0 if nullable else None)


def array(element: Primitive[_T] | type[_T], **keywords: Unpack[FieldKeywords]) -> list[_T]:
    """Declare a field with an array, which cannot be null; its default is an empty array."""
    return cast("list[_T]", _declare(ArrayOf(element), list, keywords))


def nullable_array(
    element: Primitive[_T] | type[_T],
    *,
    nullable_since: int = 0,
    null_default: bool = False,
    **keywords: Unpack[FieldKeywords],
) -> list[_T] | None:
    """Declare a field with an array that may be null; its default is an empty array, as in Java, or
    null (`null_default`)."""
    default = None if null_default else list
    return cast("list[_T] | None", _declare(ArrayOf(element), default, keywords, nullable_since))


def nested(struct_type: type[_T], **keywords: Unpack[FieldKeywords]) -> _T:
    """Declare a field with one struct, which cannot be null."""
    return cast(_T, _declare(struct_type, struct_type, keywords))


def nullable_nested(struct_type: type[_T], **keywords: Unpack[FieldKeywords]) -> _T | None:
    """Declare a field with one struct that may be null, which is the default (KIP-893: a byte
    before it says which)."""
    return cast("_T | None", _declare(struct_type, None, keywords, 0))


def _declare(
    wire_type: WireType,
    default: object,
    keywords: FieldKeywords,
    nullable_since: int | None = None,
    *,
    secret: bool = False,
) -> Any:
    """Return the declaration of a field without its name, which `struct` adds. `default` is a
    value, or the class that makes one; a `secret` is not shown by the message's repr."""
    return Field("", wire_type, default, nullable_since, secret, **keywords)


# No field_specifiers: to a type checker each `= int32()` is a plain default, so that every field
# may be left out, which is what happens at run time.
@dataclass_transform(kw_only_default=True)
def struct(cls: type[_T]) -> type[_T]:
    """Declare a struct inside a message (class decorator). Raises TypeError for a field without
    wire type or annotation."""
    # A dataclass takes ten times as long to make, and each process makes hundreds of structs.
    namespace = {
        name: value
        for name, value in vars(cls).items()
        if name not in ("__dict__", "__weakref__") and not isinstance(value, Field)
    }
    names = list(vars(cls).get("__annotations__", ()))
    declared = {name for name, value in vars(cls).items() if isinstance(value, Field)}
    for name in declared.symmetric_difference(names):
        raise TypeError(f"{cls.__name__}.{name} has no wire type, or no annotation")
    namespace |= {"__slots__": names, "__init__": _init, "__repr__": _repr, "__eq__": _eq}
    namespace["__hash__"] = None  # mutable
    message_class: Any = type(cls.__name__, cls.__bases__, namespace)
    inherited = next((_FIELDS[base] for base in cls.__mro__ if base in _FIELDS), ())
    own = (vars(cls)[name]._replace(name=name) for name in names)
    _FIELDS[message_class] = (*inherited, *own)
    return cast("type[_T]", message_class)


def _init(self: Any, *values: Any, **named: Any) -> None:
    """`__init__` of a struct before its first call, which compiles one of the struct's own: a
    process uses few of the structs that it imports."""
    declared = fields(type(self))
    defaults = {f"_{field.name}": field.default for field in declared}
    parameters = ", ".join(f"{field.name}=_{field.name}" for field in declared)
    lines = ["pass"]
    for name, default in ((field.name, field.default) for field in declared):
        # A default that is a class makes a new list or struct for each message.
        made = f"_{name}() if {name} is _{name} else " if isinstance(default, type) else ""
        lines.append(f"self.{name} = {made}{name}")
    exec(f"def __init__(self, {parameters}):\n " + "\n ".join(lines), defaults)  # noqa: S102
    type(self).__init__ = defaults["__init__"]
    self.__init__(*values, **named)


def _repr(self: Any) -> str:
    """`__repr__` of all structs (see `struct`)."""
    shown = (field.name for field in fields(type(self)) if not field.secret)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _eq(self: Any, other: object) -> Any:
    """`__eq__` of all structs (see `struct`)."""
    if type(other) is not type(self):
        return NotImplemented
    return all(
        getattr(self, field.name) == getattr(other, field.name) for field in fields(type(self))
    )


_FIELDS: dict[type[Any], tuple[Field, ...]] = {}


def fields(cls: type[Any]) -> tuple[Field, ...]:
    """Return the declared fields of a message or struct, in wire order."""
    return _FIELDS[cls]


# --- messages -----------------------------------------------------------------------------------


class Message:
    """Base of requests and responses.

    API_KEY and API_NAME ("Fetch") name the API; MIN_VERSION to MAX_VERSION are the versions
    declared; FLEXIBLE_SINCE is the first with compact lengths and tagged fields, or None. KAFKA
    has the releases whose brokers have a higher version than those before: "2.1:10 2.3:11".
    """

    __slots__ = ()

    API_KEY: ClassVar[int]
    API_NAME: ClassVar[str]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int | None]
    KAFKA: ClassVar[str] = ""


class Response(Message):
    """Base of responses. REQUEST is the class that this one answers."""

    __slots__ = ()

    REQUEST: ClassVar[type[Request[Any]]]


ResponseT = TypeVar("ResponseT", bound=Response)
MessageT = TypeVar("MessageT", bound=Message)


class Request(Message, Generic[ResponseT]):
    """Base of requests. RESPONSE is the class of the response, which is the type's parameter too.

    USUAL_VERSION is the highest version that is chosen unless the caller names a version.
    """

    __slots__ = ()

    USUAL_VERSION: ClassVar[int]
    RESPONSE: ClassVar[type[Response]]


_RequestT = TypeVar("_RequestT", bound=Request[Any])


@dataclass_transform(kw_only_default=True)
def request(
    *,
    api_key: int,
    versions: tuple[int, int],
    flexible: int | None,
    usual: int | None = None,
    kafka: str = "",
) -> Callable[[type[_RequestT]], type[_RequestT]]:
    """Declare a request with its API key, first and last version, and first flexible version.

    Versions above `usual` are sent only if the caller names the version. `kafka` says which release
    brought which version, from the oldest that is supported: "2.1:10 2.3:11".
    """

    def decorate(cls: type[_RequestT]) -> type[_RequestT]:
        """Return the message class with the API's key, name and versions as its attributes."""
        message = struct(cls)
        message.API_KEY = api_key
        message.API_NAME = message.__name__.removesuffix("Request")
        message.MIN_VERSION, message.MAX_VERSION = versions
        message.USUAL_VERSION = message.MAX_VERSION if usual is None else usual
        message.FLEXIBLE_SINCE = flexible
        message.KAFKA = kafka
        return message

    return decorate


@dataclass_transform(kw_only_default=True)
def response(request: type[Request[ResponseT]]) -> Callable[[type[ResponseT]], type[ResponseT]]:
    """Declare the response to a request, which gives it its key and versions."""

    def decorate(cls: type[ResponseT]) -> type[ResponseT]:
        """Return the message class with the attributes of its request, to which it is linked."""
        message = struct(cls)
        message.API_KEY = request.API_KEY
        message.API_NAME = request.API_NAME
        message.MIN_VERSION, message.MAX_VERSION = request.MIN_VERSION, request.MAX_VERSION
        message.FLEXIBLE_SINCE = request.FLEXIBLE_SINCE
        message.KAFKA = request.KAFKA
        message.REQUEST = request
        request.RESPONSE = message
        return message

    return decorate


@dataclass_transform(kw_only_default=True)
def data(*, versions: tuple[int, int]) -> Callable[[type[MessageT]], type[MessageT]]:
    """Declare bytes inside a message that have versions of their own ("type": "data" in JSON)."""

    def decorate(cls: type[MessageT]) -> type[MessageT]:
        """Return the message class with its name and versions as its attributes."""
        message = struct(cls)
        message.API_NAME = message.__name__
        message.MIN_VERSION, message.MAX_VERSION = versions
        message.FLEXIBLE_SINCE = None
        return message

    return decorate


def is_flexible(cls: type[Message], version: int) -> bool:
    """Return whether this version has compact lengths, tagged fields and the newer header."""
    return cls.FLEXIBLE_SINCE is not None and version >= cls.FLEXIBLE_SINCE


def releases(cls: type[Message]) -> dict[str, int]:
    """Return the highest version of a request that brokers have, by the release that brought it."""
    return {
        release: int(version) for release, version in (row.split(":") for row in cls.KAFKA.split())
    }


def release_number(release: str) -> tuple[int, ...]:
    """Return a release's numbers, so that 3.10 is after 3.9."""
    return tuple(map(int, release.split(".")))


OLDEST_KAFKA = "Kafka 2.1"
"""The oldest Kafka that is supported, and that the declarations name."""


def first_kafka(cls: type[Message], version: int = 0) -> str:
    """Return the first Kafka that has this version of a request: "Kafka 2.4"; "" if not known."""
    matching = (release for release, highest in releases(cls).items() if highest >= version)
    return next((f"Kafka {release}" for release in matching), "")


def layout(cls: type[Any], version: int) -> str:
    """Describe the fields of a message at a version, a line for each, those of structs indented.

    `name: type = default`; `[T]` is an array of T, `| None` marks what may be null. Raises
    UnsupportedVersionError for a version that is not declared.
    """
    check_version(cls, version)
    return "\n".join((f"{cls.__name__} v{version}", *_layout_lines(cls, version, 1)))


def _layout_lines(cls: type[Any], version: int, depth: int) -> Iterator[str]:
    """Yield the lines of `layout` for a struct's fields, indented `depth` times, and below each
    those of its own struct."""
    for field in fields(cls):
        if not field.exists(version):
            continue
        kind = field.wire_type
        element = kind.element if isinstance(kind, ArrayOf) else kind
        name = element.__name__ if isinstance(element, type) else element.name
        name = f"[{name}]" if isinstance(kind, ArrayOf) else name
        null = " | None" if field.nullable(version) else ""
        value = field.make_default()
        default = "" if isinstance(element, type) and value is not None else f" = {value!r}"
        yield f"{'    ' * depth}{field.name}: {name}{null}{default}"
        if isinstance(element, type):
            yield from _layout_lines(element, version, depth + 1)


def check_version(cls: type[Message], version: int) -> None:
    """Raise UnsupportedVersionError for a version that is not declared."""
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise UnsupportedVersionError(
            f"{cls.__name__} version {version} is not supported, "
            f"only {cls.MIN_VERSION} to {cls.MAX_VERSION}"
        )
