"""Compressors and decompressors of the user's own."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.errors import CorruptRecordError, DecodeError, EncodeError, OptionError
from sparkkafka.protocol import (
    Codec,
    OutputTooLargeError,
    PlainRecord,
    compress,
    decode_records,
    decompress,
    encode_batch,
    register_codec,
)

DATA = b"snow " * 1000
CODECS = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    for codec in CODECS:
        register_codec(codec)


def packed(data: memoryview, level: int | None) -> bytes:
    return b"mine" + zlib.compress(data)


def unpacked(data: memoryview, max_bytes: int) -> bytes:
    return zlib.decompressobj().decompress(data[4:], max_bytes + 1)


@pytest.mark.parametrize("codec", CODECS)
def test_functions_replace_a_codec_and_are_removed_again(codec: Codec) -> None:
    before = compress(codec, DATA)
    for name in (codec, int(codec), codec.name.lower()):
        register_codec(name, compress=packed, decompress=unpacked)
        assert bytes(compress(codec, DATA)).startswith(b"mine")
        assert bytes(decompress(codec, compress(codec, DATA), len(DATA))) == DATA
        register_codec(name)
        assert compress(codec, DATA) == before


def test_records_go_through_them() -> None:
    limits: list[int] = []

    def watch(data: memoryview, max_bytes: int) -> bytes:
        limits.append(max_bytes)
        return unpacked(data, max_bytes)

    register_codec("zstd", compress=packed, decompress=watch)
    batch = encode_batch([PlainRecord(DATA)], compression="zstd")
    assert b"mine" in batch
    assert [row.value for row in decode_records(batch, max_payload_bytes=50_000)] == [DATA]
    assert limits == [50_000]


def test_one_function_leaves_the_other_as_it_was() -> None:
    register_codec("gzip", compress=lambda data, level: gzip.compress(data, level or 1))
    assert bytes(decompress(Codec.GZIP, compress(Codec.GZIP, DATA, 3), len(DATA))) == DATA
    register_codec("gzip", decompress=lambda data, max_bytes: gzip.decompress(data))
    assert bytes(decompress(Codec.GZIP, compress(Codec.GZIP, DATA), len(DATA))) == DATA


def test_a_larger_result_is_refused() -> None:
    register_codec("lz4", decompress=lambda data, max_bytes: bytes(max_bytes + 1))
    with pytest.raises(OutputTooLargeError, match="more than the 99 bytes"):
        decompress(Codec.LZ4, b"x", 99)
    batch = encode_batch([PlainRecord(DATA)], compression="lz4")
    with pytest.raises(CorruptRecordError):
        list(decode_records(batch, max_payload_bytes=1000))


@pytest.mark.parametrize("result", ["text", None, 5])
def test_what_is_not_bytes_is_refused(result: Any) -> None:
    register_codec(
        "gzip", compress=lambda data, level: result, decompress=lambda data, limit: result
    )
    with pytest.raises(EncodeError, match="registered to compress gzip failed"):
        compress(Codec.GZIP, DATA)
    with pytest.raises(DecodeError, match="registered to decompress gzip failed"):
        decompress(Codec.GZIP, DATA, 10_000)


def test_what_a_function_raises_is_named() -> None:
    def fail(data: memoryview, number: int | None) -> bytes:
        raise ValueError("no dictionary")

    register_codec("zstd", compress=fail, decompress=fail)
    with pytest.raises(EncodeError, match="compress zstd failed: no dictionary"):
        encode_batch([PlainRecord(DATA)], compression="zstd")
    with pytest.raises(DecodeError, match="decompress zstd failed: no dictionary"):
        decompress(Codec.ZSTD, DATA, 10_000)


@pytest.mark.parametrize("codec", ["none", "GZIP", "brotli", 0, 5, -1, True, None, 1.5])
def test_other_codecs_are_refused(codec: Any) -> None:
    with pytest.raises(OptionError, match=r"codec is one of gzip \(1\), .*zstd \(4\), got"):
        register_codec(codec, compress=packed)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(OptionError, match="decompress is a function, got str"):
        register_codec("gzip", decompress="gunzip")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="compress is a function, got int"):
        register_codec("gzip", compress=1)  # type: ignore[arg-type]


def test_threads_that_register_lose_nothing() -> None:
    def register(codec: Codec) -> None:
        for _ in range(200):
            register_codec(codec)
            register_codec(codec, compress=packed, decompress=unpacked)

    threads = [threading.Thread(target=register, args=(codec,)) for codec in CODECS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(compress(codec, DATA).startswith(b"mine") for codec in CODECS)
