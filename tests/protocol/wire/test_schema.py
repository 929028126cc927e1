"""The declaration language and its codec, on messages made up for the purpose."""

from __future__ import annotations

import copy
import pickle
import re
import struct as struct_module
import uuid as uuid_module
from typing import Any

import numpy as np
import pytest

from sparkkafka.errors import DecodeError, EncodeError, UnsupportedVersionError
from sparkkafka.protocol.messages import (
    REQUESTS,
    DeleteTopicsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    SaslAuthenticateRequest,
)
from sparkkafka.protocol.wire.codec import decode, encode, encode_into
from sparkkafka.protocol.wire.primitives import NULL_UUID, Writer
from sparkkafka.protocol.wire.schema import (
    INT16,
    INT32,
    STRING,
    Message,
    Request,
    array,
    boolean,
    bytes_,
    fields,
    int8,
    int16,
    int32,
    int64,
    is_flexible,
    layout,
    nested,
    nullable_array,
    nullable_string,
    records,
    request,
    string,
    struct,
    uuid,
)


@struct
class Point:
    x: int = int16()
    y: int = int16(-1, since=2)


@request(api_key=999, versions=(1, 4), flexible=3)
class DemoRequest(Request[Any]):
    flag: bool = boolean()
    small: int = int8()
    number: int = int64(7)
    old: int = int32(since=1, until=2)
    name: str = string()
    rack: str | None = nullable_string(None, since=2, nullable_since=3)
    id: uuid_module.UUID = uuid(since=2, ignorable=True)
    blob: bytes = bytes_(since=2)
    points: list[Point] = array(Point)
    numbers: list[int] | None = nullable_array(INT32, nullable_since=2)
    words: list[str] = array(STRING, since=2)
    data: Any = records()
    extra: str = string("none", since=3, tag=3)
    shorts: list[int] = array(INT16, since=3, tag=0)
    origin: Point = nested(Point, since=4, tag=1)


FULL = DemoRequest(
    flag=True,
    small=-1,
    number=1,
    name="ab",
    rack="r",
    id=uuid_module.UUID(int=5),
    blob=b"xy",
    points=[Point(x=1, y=2), Point()],
    numbers=[1, -1],
    words=["w"],
    data=b"DATA",
    extra="e",
    shorts=[1, 2],
    origin=Point(x=3),
)


def test_layout_of_a_classic_version() -> None:
    message = DemoRequest(flag=True, old=9, name="ab", points=[Point(x=1)], numbers=[5])
    assert encode(message, 1).hex(" ") == (
        "01 00 00 00 00 00 00 00 00 07 00 00 00 09 "  # flag, small, number, old
        "00 02 61 62 "  # name
        "00 00 00 01 00 01 "  # points
        "00 00 00 01 00 00 00 05 "  # numbers
        "ff ff ff ff"  # data
    )


def test_layout_of_a_flexible_version() -> None:
    assert encode(FULL, 4).hex(" ") == (
        "01 ff 00 00 00 00 00 00 00 01 "  # flag, small, number
        "03 61 62 02 72 "  # name, rack
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 05 "  # id
        "03 78 79 "  # blob
        "03 00 01 00 02 00 00 00 ff ff 00 "  # points, each with its own tagged fields
        "03 00 00 00 01 ff ff ff ff "  # numbers
        "02 02 77 "  # words
        "05 44 41 54 41 "  # data
        "03 "  # three tagged fields, by tag and not by declaration
        "00 05 03 00 01 00 02 "
        "01 05 00 03 ff ff 00 "
        "03 02 02 65"
    )


@pytest.mark.parametrize("version", [3, 4])
def test_tagged_fields_at_their_default_are_not_sent(version: int) -> None:
    assert encode(DemoRequest(), version)[-1:] == b"\0"
    assert len(encode(DemoRequest(extra=""), version)) == len(encode(DemoRequest(), version)) + 3


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_defaults_come_back(version: int) -> None:
    assert DemoRequest().number == 7
    assert DemoRequest().rack is None
    assert DemoRequest().id == NULL_UUID
    assert DemoRequest().origin == Point(x=0, y=-1)
    if version == 2:
        with pytest.raises(EncodeError, match="DemoRequest v2 rack: must not be null"):
            encode(DemoRequest(), 2)
    else:
        assert decode(DemoRequest, version, encode(DemoRequest(), version)) == DemoRequest()


def test_decoded_defaults_are_not_shared() -> None:
    data = encode(DemoRequest(), 1)
    one, other = decode(DemoRequest, 1, data), decode(DemoRequest, 1, data)
    one.words.append("x")
    one.origin.x = 5
    assert other.words == []
    assert other.origin == DemoRequest().origin == Point()
    assert DemoRequest().words == []


def test_round_trip_of_all_types() -> None:
    assert decode(DemoRequest, 4, encode(FULL, 4)) == FULL


def test_any_byte_but_zero_is_true() -> None:
    data = encode(FULL, 4)
    assert data[0] == 1
    assert decode(DemoRequest, 4, b"\2" + data[1:]) == FULL


def test_class_attributes() -> None:
    assert (DemoRequest.API_KEY, DemoRequest.API_NAME) == (999, "Demo")
    assert (DemoRequest.MIN_VERSION, DemoRequest.MAX_VERSION) == (1, 4)
    assert DemoRequest.FLEXIBLE_SINCE == 3
    assert [is_flexible(DemoRequest, version) for version in (2, 3)] == [False, True]
    assert FetchRequest.RESPONSE.REQUEST is FetchRequest


def test_messages_have_slots() -> None:
    assert not hasattr(FULL, "__dict__")
    with pytest.raises(TypeError, match="nam"):
        DemoRequest(nam="x")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        FULL.nam = "x"  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def test_a_field_without_wire_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Broken\.number has no wire type"):

        @struct
        class Broken:
            number: int = 1

    with pytest.raises(TypeError, match=r"Unannotated\.number has no wire type, or no annotation"):

        @struct
        class Unannotated:
            number = int32()


def test_secrets_are_not_shown() -> None:
    message = SaslAuthenticateRequest(auth_bytes=b"\0user\0password")
    assert "password" not in repr(message)
    assert b"password" in encode(message, 2)


# What a version lacks


def test_value_that_the_version_lacks() -> None:
    with pytest.raises(EncodeError, match="DemoRequest v1 words: cannot be sent in version 1"):
        encode(DemoRequest(words=["x"]), 1)
    with pytest.raises(EncodeError, match="DemoRequest v3 old: cannot be sent"):
        encode(DemoRequest(old=1), 3)
    with pytest.raises(EncodeError, match="DemoRequest v3 origin: cannot be sent"):
        encode(DemoRequest(origin=Point(x=1)), 3)
    with pytest.raises(EncodeError, match=r"DemoRequest v1 points\.y: cannot be sent"):
        encode(DemoRequest(points=[Point(y=0)]), 1)
    with pytest.raises(EncodeError, match="DemoRequest v1 rack: cannot be sent"):
        encode(DemoRequest(rack=""), 1)  # the default is null, which is not the same
    with pytest.raises(EncodeError, match=r"no such field \(since version 2\)$"):
        encode(DemoRequest(words=["x"]), 1)
    ignorable = DemoRequest(id=uuid_module.UUID(int=1))
    assert encode(ignorable, 1) == encode(DemoRequest(), 1)


@pytest.mark.parametrize(
    ("message", "version", "text"),
    [
        (
            FindCoordinatorRequest(key="readers"),
            4,
            "(until version 3; version 4 has coordinator_keys in its place)",
        ),
        (
            FindCoordinatorRequest(coordinator_keys=["readers"]),
            3,
            "(since version 4; version 3 has key in its place)",
        ),
        (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="readers")]),
            7,
            "(since version 8; version 7 has group_id and topics in its place)",
        ),
        # In Kafka's JSON this may be dropped: the request would then delete nothing.
        (
            DeleteTopicsRequest(topic_names=["orders"]),
            6,
            "(until version 5; version 6 has topics in its place)",
        ),
        (
            MetadataRequest(include_cluster_authorized_operations=True),
            12,
            "(in versions 8 to 10)",
        ),
    ],
)
def test_a_field_of_another_version_names_the_right_one(
    message: Request[Any], version: int, text: str
) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(message, version)
    assert str(caught.value).endswith(
        f"cannot be sent in version {version}, which has no such field {text}"
    )


def test_layout() -> None:
    assert layout(FindCoordinatorRequest, 4).splitlines() == [
        "FindCoordinatorRequest v4",
        "    key_type: int8 = 0",
        "    coordinator_keys: [string] = []",
    ]
    assert "        name: string | None = ''" in layout(MetadataRequest, 12).splitlines()
    with pytest.raises(UnsupportedVersionError, match="only 1 to 6"):
        layout(FindCoordinatorRequest, 0)


@pytest.mark.parametrize(
    "cls", [cls for request in REQUESTS.values() for cls in (request, request.RESPONSE)]
)
def test_every_layout_names_what_can_be_sent(cls: type[Message]) -> None:
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        named = re.findall(r"^ {4}(\w+):", layout(cls, version), re.MULTILINE)
        assert named == [row.name for row in fields(cls) if row.exists(version)]


def test_empty_tuple_is_an_empty_list() -> None:
    assert encode(DemoRequest(words=()), 1) == encode(DemoRequest(), 1)  # type: ignore[arg-type]


# Nulls


def test_null_needs_a_version_that_allows_it() -> None:
    nothing = DemoRequest(numbers=None, rack=None)
    for version in (3, 4):
        decoded = decode(DemoRequest, version, encode(nothing, version))
        assert decoded.numbers is None
        assert decoded.rack is None
    with pytest.raises(EncodeError, match="DemoRequest v1 numbers: must not be null"):
        encode(nothing, 1)
    with pytest.raises(EncodeError, match="DemoRequest v4 name: must not be null"):
        encode(DemoRequest(name=None), 4)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="DemoRequest v4 origin: NoneType where Point"):
        encode(DemoRequest(origin=None), 4)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="DemoRequest v4 words: NoneType where a string is"):
        encode(DemoRequest(words=[None]), 4)  # type: ignore[list-item]


# Values that do not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"small": 128}, "small: 128 is not int8"),
        ({"number": 2**63}, "number: 9223372036854775808 is not int64"),
        ({"number": 1.5}, "number: 1.5 is not int64"),
        ({"small": None}, "small: None is not int8"),
        ({"name": "x" * 40000}, "name: string of 40000 bytes"),
        ({"name": b"x"}, "name: bytes where a string is required"),
        ({"blob": "x"}, "blob: str where bytes are required"),
        ({"id": "x"}, r"id: 'x' is not a uuid.UUID"),
        ({"points": [Point(x=40000)]}, r"points\.x: 40000 is not int16"),
        ({"points": [FULL]}, "points: DemoRequest where Point is required"),
        ({"points": Point()}, "points: Point where a list is required"),
        ({"words": "abc"}, "words: str where a list is required"),
        ({"words": [1]}, "words: int where a string is required"),
        ({"numbers": [2**31]}, "numbers: not all are int32"),
        ({"shorts": ["x"]}, "shorts: not all are int16"),
        ({"data": "x"}, "data: str where bytes are required"),
        ({"data": [b"x", "y"]}, "data: str where bytes are required"),
        ({"origin": Point(y=2**20)}, r"origin\.y: 1048576 is not int16"),
    ],
)
def test_values_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=f"^DemoRequest v4 {message}"):
        encode(_changed(**change), 4)


def _changed(**change: Any) -> DemoRequest:
    message = copy.copy(FULL)
    for name, value in change.items():
        setattr(message, name, value)
    return message


def test_a_failed_encode_leaves_the_next_one_alone() -> None:
    good = encode(FULL, 4)
    with pytest.raises(EncodeError):
        encode(_changed(data=7), 4)
    assert encode(FULL, 4) == good


# Versions and tags


@pytest.mark.parametrize("version", [0, 5, -1])
def test_versions_outside_the_range(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"DemoRequest version {version} .* 1 to 4"):
        encode(DemoRequest(), version)
    with pytest.raises(UnsupportedVersionError):
        decode(DemoRequest, version, b"")


def test_unknown_tagged_fields_are_skipped() -> None:
    """In the message, in a struct of an array, and between known ones."""
    data = encode(DemoRequest(points=[Point(x=1, y=2)], extra="e"), 3)
    point = bytes.fromhex("00010002")
    at = data.index(point) + len(point)
    assert data[at] == 0
    changed = data[:at] + bytes.fromhex("01 09 03 616161") + data[at + 1 :]
    tail = bytes.fromhex("01 03 02 02 65")  # one tagged field: extra
    assert changed.endswith(tail)
    changed = changed[: -len(tail)] + bytes.fromhex("03 02 01 00 03 02 02 65 63 00")
    assert decode(DemoRequest, 3, changed) == decode(DemoRequest, 3, data)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("01 03 03 02 65 00", r"extra: 1 bytes left over"),
        ("01 03 01 02", r"extra: need 1 bytes, have 0"),
        ("01 03 01 00", r"extra: null where"),
        ("02 03 02 02 65 03 02 02 65", r"tag 3 after tag 3"),
        ("02 03 02 02 65 00 01 01", r"tag 0 after tag 3"),
    ],
)
def test_bad_tagged_fields(tags: str, message: str) -> None:
    data = encode(DemoRequest(), 3)[:-1] + bytes.fromhex(tags)
    with pytest.raises(DecodeError, match=f"DemoRequest v3.*{message}") as caught:
        decode(DemoRequest, 3, data)
    assert caught.value.position is not None
    assert len(data) >= caught.value.position >= len(data) - len(bytes.fromhex(tags))


def test_a_tagged_field_cannot_read_beyond_itself() -> None:
    # `extra` claims one byte, a length of 9; the bytes it asks for are there, but not its own.
    data = encode(DemoRequest(), 3)[:-1] + bytes.fromhex("02 03 01 0a 05 09 616161616161616161")
    with pytest.raises(DecodeError, match="extra: need 9 bytes, have 0"):
        decode(DemoRequest, 3, data)


# Records


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize(
    "value",
    [
        b"abcdef",
        bytearray(b"abcdef"),
        memoryview(b"abcdef"),
        [b"abc", memoryview(b"de"), bytearray(b"f")],
        (b"abcdef",),
        memoryview(b"fedcba")[::-1],
        [memoryview(b"axbxcx")[::2], memoryview(struct_module.pack(">H", 0x6465)).cast("H"), b"f"],
        [b"", b"abcdef", memoryview(np.empty((0, 3), np.uint8))],
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_are_taken_in_any_shape(value: Any, version: int) -> None:
    message = DemoRequest(data=value)
    assert encode(message, version) == encode(DemoRequest(data=b"abcdef"), version)
    assert decode(DemoRequest, version, encode(message, version)).data == b"abcdef"


@pytest.mark.parametrize("version", [1, 4])
def test_null_and_empty_records_differ(version: int) -> None:
    empty = decode(DemoRequest, version, encode(DemoRequest(data=b""), version)).data
    assert empty == b""
    assert decode(DemoRequest, version, encode(DemoRequest(data=[]), version)).data == b""
    assert decode(DemoRequest, version, encode(DemoRequest(data=None), version)).data is None


@pytest.mark.parametrize("version", [1, 4])
def test_records_are_views_of_the_buffer(version: int) -> None:
    buffer = bytearray(b"head" + encode(DemoRequest(data=b"abcdef"), version))
    view = decode(DemoRequest, version, buffer, pos=4).data
    assert isinstance(view, memoryview)
    at = buffer.index(b"abcdef")
    buffer[at] = ord("X")
    assert view == b"Xbcdef"


def test_positions_are_of_the_whole_buffer() -> None:
    data = b"head" + encode(DemoRequest(), 1)[:-1]
    with pytest.raises(DecodeError) as caught:
        decode(DemoRequest, 1, data, pos=4)
    assert caught.value.position == len(data) - 3  # where the int32 length begins
    with pytest.raises(DecodeError, match="in a buffer of 3"):
        decode(DemoRequest, 1, b"abc", pos=4)
    with pytest.raises(DecodeError, match="DemoRequest v1: 1 bytes left over"):
        decode(DemoRequest, 1, encode(DemoRequest(), 1) + b"\0")


def test_encode_into_appends() -> None:
    writer = Writer()
    writer.buffer += struct_module.pack(">h", 1)
    encode_into(writer, DemoRequest(), 1)
    assert writer.getvalue() == struct_module.pack(">h", 1) + encode(DemoRequest(), 1)
