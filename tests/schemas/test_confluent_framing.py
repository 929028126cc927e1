"""Frames of keys and values, against a plain reader of one frame at a time."""

from __future__ import annotations

import io
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.config import kinds
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.schemas.framings import (
    MAX_INDEXES,
    Unframed,
    WriterId,
    add_header,
    frame_of,
    header_name,
    unframe_bare,
    unframe_column,
)
from sparkkafka.schemas.values import with_prefix

GUID = uuid.UUID("0e0a1d5c-8a71-44a9-9b0f-2f6a8f2f1e33")
Headers = list[tuple[str, bytes | None]] | None


def binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


def by_row(unframed: Unframed, count: int) -> list[tuple[WriterId, bytes | None] | str | None]:
    """(writer, payload), the reason of a bad row, or None for a row of no group, by row."""
    found: list[tuple[WriterId, bytes | None] | str | None] = [None] * count
    for group in unframed.groups:
        group.payloads.validate(full=True)
        rows = range(count) if group.rows is None else group.rows.tolist()
        assert list(rows) == sorted(rows)
        for row, payload in zip(rows, group.payloads.to_pylist(), strict=True):
            assert found[row] is None
            found[row] = (group.writer, payload)
    assert unframed.bad_rows.tolist() == sorted(unframed.bad_rows.tolist())
    for row, reason in zip(unframed.bad_rows.tolist(), unframed.reasons, strict=True):
        assert found[row] is None
        found[row] = reason
    return found


# --- the plain reader ---------------------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    for _ in range(5):
        if at >= len(data):
            raise ValueError
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise ValueError


def one_frame(data: bytes, with_indexes: bool) -> tuple[WriterId, int] | None:
    """None for a bad one."""
    if not data or data[0] > 1 or len(data) < (5, 17)[data[0]]:
        return None
    schema_id, guid, at = None, None, (5, 17)[data[0]]
    if data[0]:
        guid = data[1:17]
    else:
        schema_id = int.from_bytes(data[1:5], "big")
    message: tuple[int, ...] = (0,)
    if with_indexes:
        try:
            size, at = varint(data, at)
            if not 0 <= size <= MAX_INDEXES:
                return None
            indexes = []
            for _ in range(size):
                index, at = varint(data, at)
                if index < 0:
                    return None
                indexes.append(index)
        except ValueError:
            return None
        message = tuple(indexes) or (0,)
    return WriterId(schema_id, guid, message), at


def expected(
    payload: bytes | None, headers: Headers, with_indexes: bool
) -> tuple[WriterId, bytes | None] | str | None:
    if payload is None:
        return None
    frames = [value for name, value in headers or () if name == "__value_schema_id"]
    if frames:
        found = one_frame(frames[-1] or b"", with_indexes)
        if found is None or found[1] != len(frames[-1] or b""):
            return "bad"
        return found[0], payload
    found = one_frame(payload, with_indexes)
    return "bad" if found is None else (found[0], payload[found[1] :])


FRAMES = st.builds(
    lambda writer, cut, data: (frame_of(writer, with_indexes=True) + data)[cut:],
    st.builds(
        WriterId,
        st.sampled_from([1, 7, 70_000, 2**32 - 1]),
        st.sampled_from([None, None, GUID.bytes]),
        st.sampled_from([(0,), (1,), (0, 0), (3, 0, 200)]),
    ),
    st.sampled_from([0, 0, 0, 0, 1, 5]),
    st.binary(max_size=6),
)
PAYLOADS = st.one_of(st.none(), FRAMES, FRAMES, st.binary(max_size=20))
HEADERS: st.SearchStrategy[Headers] = st.one_of(
    st.none(),
    st.lists(
        st.tuples(
            st.sampled_from(["__value_schema_id", "__key_schema_id", "x"]),
            st.one_of(
                st.none(),
                st.binary(max_size=6),
                st.just(b"\x01" + GUID.bytes),
                st.just(b"\x01" + GUID.bytes + b"\0"),
                st.just(b"\0\0\0\0\x07"),
            ),
        ),
        max_size=3,
    ),
)


@given(
    st.lists(st.tuples(PAYLOADS, HEADERS), max_size=12),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_rows_are_those_of_a_plain_reader(
    rows: list[tuple[bytes | None, Headers]], with_indexes: bool, with_headers: bool, skip: int
) -> None:
    payloads = binary([b"skipped"] * skip + [payload for payload, _ in rows]).slice(skip)
    headers = None
    if with_headers:
        headers = pa.array([None] * skip + [one for _, one in rows], HEADERS_TYPE).slice(skip)
    found = by_row(
        unframe_column(payloads, headers, "value", kinds.CONFLUENT, with_indexes=with_indexes),
        len(rows),
    )
    for row, (payload, some) in zip(found, rows, strict=True):
        wanted = expected(payload, some if with_headers else None, with_indexes)
        if wanted is None:
            assert row is None or (isinstance(row, tuple) and row[1] is None)
        elif isinstance(wanted, str):
            assert isinstance(row, str)
        else:
            assert row == wanted


def test_one_writer_is_one_group_with_its_nulls() -> None:
    payloads = binary([b"\0\0\0\0\x07a", None, b"\0\0\0\0\x07", b"\0\0\0\0\x07ccc"])
    (group,) = unframe_column(payloads, None, "value", kinds.CONFLUENT, with_indexes=False).groups
    assert group.writer == WriterId(7)
    assert group.rows is None
    assert group.payloads.to_pylist() == [b"a", None, b"", b"ccc"]


def test_many_writers() -> None:
    rows = [
        b"\0" + (number * 7919 % 50).to_bytes(4, "big") + b"%d" % number for number in range(300)
    ]
    unframed = unframe_column(binary(rows), None, "value", kinds.CONFLUENT, with_indexes=False)
    assert len(unframed.groups) == 50
    assert by_row(unframed, 300) == [
        (WriterId(int.from_bytes(row[1:5], "big")), row[5:]) for row in rows
    ]


def test_no_rows_and_no_payloads() -> None:
    assert (
        unframe_column(binary([]), None, "value", kinds.CONFLUENT, with_indexes=True).groups == []
    )
    assert (
        unframe_column(
            binary([None, None]), None, "value", kinds.CONFLUENT, with_indexes=True
        ).groups
        == []
    )


def test_only_headers() -> None:
    headers = pa.array([[("__value_schema_id", b"\0\0\0\0\7")], None, [("a", b"")]], HEADERS_TYPE)
    payloads = binary([b"\0\0\0\0\1a", b"b", None])
    unframed = unframe_column(payloads, headers, "value", kinds.HEADERS, with_indexes=False)
    reason = "the record has no header __value_schema_id"
    assert by_row(unframed, 3) == [(WriterId(7), b"\0\0\0\0\1a"), reason, None]
    unframed = unframe_column(payloads, None, "value", kinds.HEADERS, with_indexes=False)
    assert by_row(unframed, 3) == [reason, reason, None]


def test_texts_with_and_without_frames() -> None:
    bare = binary([b"{}", None, b"", b"1"])
    (group,) = unframe_column(bare, None, "value", kinds.CONFLUENT, is_text=True).groups
    assert group.payloads is bare
    mixed = binary([b"{}", b"\0\0\0\0\1[]", None, b"\0\0", b"", b"\0\0\0\0\1"])
    assert by_row(unframe_column(mixed, None, "value", kinds.CONFLUENT, is_text=True), 6) == [
        (WriterId(), b"{}"),
        (WriterId(1), b"[]"),
        None,
        "it has 2 bytes, and a schema id takes 5",
        (WriterId(), b""),
        (WriterId(1), b""),
    ]


def test_without_frames() -> None:
    (group,) = unframe_bare(binary([b"a", None])).groups
    assert (group.writer, group.rows) == (WriterId(), None)


@pytest.mark.parametrize(
    ("payload", "with_indexes", "message"),
    [
        (b"", False, "it has 0 bytes, and a schema id takes 5"),
        (b"\0\0\0", False, "it has 3 bytes, and a schema id takes 5"),
        (b"\1\0\0", False, "it has 3 bytes, and a schema id takes 17"),
        (b'{"a": 1}', False, r"begins with byte 0x7b, not with 0x00 .*valueFraming=none"),
        (b"\0\0\0\0\7", True, "broken message indexes behind schema id 7"),
        (b"\0\0\0\0\7\1", True, "broken message indexes behind schema id 7"),
    ],
)
def test_reasons(payload: bytes, with_indexes: bool, message: str) -> None:
    unframed = unframe_column(
        binary([payload]), None, "value", kinds.CONFLUENT, with_indexes=with_indexes
    )
    assert pa.array(unframed.reasons).to_pylist() == unframed.reasons
    with pytest.raises(ValueError, match=message):
        raise ValueError(unframed.reasons[0])


def test_a_guid_shows_as_one() -> None:
    assert str(WriterId(guid=GUID.bytes)) == f"schema GUID {GUID}"


@pytest.mark.parametrize("message", [(0,), (1,), (2, 0, 300), (0, 0)])
@pytest.mark.parametrize("schema_type", ["AVRO", "PROTOBUF"])
@pytest.mark.parametrize("guid", [None, GUID])
def test_frames_are_confluent_s(
    message: tuple[int, ...], schema_type: str, guid: uuid.UUID | None
) -> None:
    with_indexes = schema_type == "PROTOBUF"
    theirs = SchemaId(
        schema_type,
        None if guid else 77,
        str(guid) if guid else None,
        list(message) if with_indexes else None,
    )
    writer = WriterId(
        None if guid else 77, guid.bytes if guid else None, message if with_indexes else (0,)
    )
    frame = frame_of(writer, with_indexes=with_indexes)
    assert frame == (theirs.guid_to_bytes() if guid else theirs.id_to_bytes())
    again = SchemaId(schema_type)
    assert again.from_bytes(io.BytesIO(frame + b"rest")).read() == b"rest"
    if with_indexes:
        assert again.message_indexes == list(message)


def test_with_prefix() -> None:
    payloads = binary([b"skipped", b"a", None, b""]).slice(1)
    framed = with_prefix(b"\0\0\0\0\7", payloads)
    assert framed.type == pa.binary()
    assert framed.to_pylist() == [b"\0\0\0\0\x07a", None, b"\0\0\0\0\x07"]


def test_header() -> None:
    old = pa.array([[("skipped", b"")], [("a", b"1"), ("b", None)], None, [], None], HEADERS_TYPE)
    payloads = binary([b"", b"v", b"v", None, None])
    frame = b"\1" + GUID.bytes
    added = add_header(old.slice(1), header_name("value"), frame, payloads.slice(1))
    added.validate(full=True)
    assert added.type == HEADERS_TYPE
    own = {"key": "__value_schema_id", "value": frame}
    assert added.to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, own],
        [own],
        None,
        None,
    ]
    assert (
        add_header(None, header_name("value"), frame, payloads).to_pylist()
        == [[own]] * 3 + [None] * 2
    )
