"""Damaged and malicious bodies: a DecodeError with a position, or a message, and nothing else."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import DecodeError
from sparkkafka.protocol.messages import FetchResponse, MetadataResponse
from sparkkafka.protocol.wire.codec import decode, encode
from sparkkafka.protocol.wire.schema import Message, is_flexible
from tests.protocol.kafka_oracle import (
    MESSAGE_VERSIONS,
    MESSAGES,
    Generator,
    each_version,
    name_version,
)
from tests.support.properties import examples
from tests.support.waiting import processor_time

# Lengths and counts as an attacker would like them: -1, the most negative, the largest, in each
# width, and as unsigned varints of legal and of too great length.
EVIL_LENGTHS = [
    bytes.fromhex(text)
    for text in (
        "ffff",
        "8000",
        "7fff",
        "ffffffff",
        "80000000",
        "7fffffff",
        "00ffffff",
        "ffffffff0f",
        "ffffffffff01",
        "8080808010",
        "ffff03",
    )
]


def sample(cls: type[Message], version: int) -> bytes:
    return encode(Generator(3, full=True, small=True).message(cls, version), version)


def outcome(cls: type[Message], version: int, data: bytes) -> Message | None:
    """The message, or None for a DecodeError with a position inside the data."""
    try:
        message = decode(cls, version, data)
    except DecodeError as error:
        assert type(error) is DecodeError
        assert error.position is not None
        assert 0 <= error.position <= len(data)
        assert f"{cls.__name__} v{version}" in str(error)
        assert str(error).count("(at byte ") == 1
        return None
    assert type(message) is cls
    return message


@pytest.mark.slow
@each_version
def test_cut_at_every_byte(cls: type[Message], version: int) -> None:
    data = sample(cls, version)
    assert outcome(cls, version, data) is not None
    for size in range(len(data)):
        assert outcome(cls, version, data[:size]) is None


@each_version
def test_bytes_left_over(cls: type[Message], version: int) -> None:
    assert outcome(cls, version, sample(cls, version) + b"\0") is None


@pytest.mark.slow
@each_version
def test_every_byte_flipped(cls: type[Message], version: int) -> None:
    data = bytearray(sample(cls, version))
    masks = itertools.cycle((0x01, 0x80, 0xFF))
    for at, byte in enumerate(data):
        data[at] = byte ^ next(masks)
        outcome(cls, version, bytes(data))
        data[at] = byte


@pytest.mark.slow
@pytest.mark.parametrize("cls", MESSAGES, ids=name_version)
def test_evil_lengths_cost_nothing(cls: type[Message]) -> None:
    """Put where any length may be, they never make the decoder allocate or run for long. Each byte
    gets a third of them, in turn."""
    for version in sorted({cls.MIN_VERSION, cls.MAX_VERSION}):
        data = sample(cls, version)
        outcome(cls, version, data)  # compiled, so that only decoding is measured
        tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with processor_time(0.05 * (len(EVIL_LENGTHS) * len(data) or 1)):
                for at in range(len(data)):
                    for evil in EVIL_LENGTHS[at % 3 :: 3]:
                        outcome(cls, version, data[:at] + evil + data[at + len(evil) :])
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        assert peak < 200_000


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_count_that_the_bytes_cannot_hold_allocates_nothing(version: int) -> None:
    """Each topic takes several bytes, so a count just below the number of bytes is refused too."""
    padding = bytes(100_000)
    count = len(padding) - 10
    flexible = is_flexible(FetchResponse, version)
    head = bytes(4 if version < 7 else 10)
    length = _uvarint(count + 1) if flexible else count.to_bytes(4, "big")
    with pytest.raises(DecodeError, match=f"responses: {count} elements of"):
        decode(FetchResponse, version, head + length + padding)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@settings(max_examples=examples(200))
@given(st.sampled_from(MESSAGE_VERSIONS), st.binary(max_size=200))
def test_any_bytes(case: tuple[type[Message], int], data: bytes) -> None:
    outcome(*case, data)


@pytest.mark.parametrize(
    "filler", [b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", None], ids=repr
)
def test_a_megabyte_of_rubbish(filler: bytes | None) -> None:
    size = 2**20
    data = random.Random(1).randbytes(size) if filler is None else filler * size
    with processor_time(10):
        for cls in (MetadataResponse, FetchResponse):
            for version in (cls.MIN_VERSION, cls.MAX_VERSION):
                outcome(cls, version, data)


def position_of(cls: type[Any], version: int, data: bytes) -> tuple[str, int | None]:
    with pytest.raises(DecodeError) as caught:
        decode(cls, version, data)
    return str(caught.value), caught.value.position


def test_errors_say_where() -> None:
    # throttle_time_ms, then one broker whose host is not UTF-8
    broker = b"\0\0\0\1" + b"\0\2\xc3\x28" + b"\0\0\x23\x84" + b"\xff\xff"
    data = bytes(4) + b"\0\0\0\1" + broker
    text, position = position_of(MetadataResponse, 4, data)
    assert text.startswith("MetadataResponse v4 brokers.host: not UTF-8")
    assert position == data.index(b"\xc3")

    text, position = position_of(MetadataResponse, 4, bytes(4) + b"\0\0\0\1" + bytes(3))
    assert text.startswith("MetadataResponse v4 brokers: 1 elements of 12 or more bytes")

    text, position = position_of(MetadataResponse, 4, bytes(4) + b"\xff\xff\xff\xff")
    assert text == "MetadataResponse v4 brokers: null where a value is required (at byte 4)"
    assert position == 4

    text, position = position_of(MetadataResponse, 4, bytes(4) + b"\xff\xff\xff\xfe")
    assert text == "MetadataResponse v4 brokers: negative length -2 (at byte 4)"
