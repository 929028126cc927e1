"""Varints of one value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.protocol.wire.varints import (
    BadVarintError,
    read_varint,
    read_zigzag,
    varint_bytes,
    varint_size,
    zigzag_bytes,
)
from tests.support import reference


@given(st.integers(0, 2**64 - 1))
def test_unsigned_values_come_back(value: int) -> None:
    data = varint_bytes(value)
    assert len(data) == varint_size(value)
    assert read_varint(b"\xff" + data + b"\xff", 1, len(data) + 1) == (value, len(data) + 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_values_are_those_of_kafka(value: int) -> None:
    data = zigzag_bytes(value)
    assert data == reference.encode_varlong(value)
    assert read_zigzag(data, 0, len(data)) == (value, len(data))


@pytest.mark.parametrize(
    ("text", "bits", "error", "message"),
    [
        ("", 64, IndexError, "cut off"),
        ("8080", 64, IndexError, "cut off"),
        ("8080808010", 32, BadVarintError, "too large for 32 bits"),
        ("808080808000", 32, BadVarintError, "longer than 5 bytes"),
        ("80808080808080808002", 64, BadVarintError, "too large for 64 bits"),
        ("8080808080808080808000", 64, BadVarintError, "longer than 10 bytes"),
        ("8080808080808080808000", 70, BadVarintError, "longer than 10 bytes"),
    ],
)
def test_what_is_no_varint_is_refused(
    text: str, bits: int, error: type[Exception], message: str
) -> None:
    data = bytes.fromhex(text)
    with pytest.raises(error, match=message):
        read_varint(data, 0, len(data), bits)


def test_longer_forms_than_needed_are_read() -> None:
    assert read_varint(b"\x81\x80\x00", 0, 3, 32) == (1, 3)
    assert read_varint(b"\xff" * 9 + b"\x7f", 0, 10, 70) == ((1 << 70) - 1, 10)
