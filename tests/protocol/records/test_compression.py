"""Codecs against other libraries, and against data that lies about its size."""

from __future__ import annotations

import gzip
import struct
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import DecodeError, EncodeError, OptionError
from sparkkafka.protocol.records.compression import (
    LEVELS,
    Codec,
    OutputTooLargeError,
    _xxh32_short,
    codec_of,
    compress,
    decompress,
)
from tests.support.properties import examples
from tests.support.waiting import processor_time

MIB = 1 << 20
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
XERIAL_HEADER = bytes.fromhex("82534e41505059000000000100000001")
JSON_LINES = b"".join(
    b'{"id":%d,"name":"user %d","city":"%s"}\n' % (i, i * 7919 % 10007, b"ABCDEFGH"[i % 7 :])
    for i in range(5000)
)
INCOMPRESSIBLE = bytes(zlib.crc32(i.to_bytes(4, "big")) & 0xFF for i in range(100_000))
SAMPLES = [b"", b"x", b"ab" * 40, JSON_LINES, INCOMPRESSIBLE, bytes(300_000), bytes(32 * 1024)]


def xerial(*blocks: bytes, header: bytes = XERIAL_HEADER) -> bytes:
    return header + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def unxerial(data: bytes) -> tuple[bytes, list[int]]:
    """The content and the sizes of the blocks, by other means than the package's."""
    assert data[:16] == XERIAL_HEADER
    position, blocks = 16, []
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        block = data[position + 4 : position + 4 + size]
        assert len(block) == size
        blocks.append(bytes(cramjam.snappy.decompress_raw(block)))
        position += 4 + size
    return b"".join(blocks), [len(block) for block in blocks]


def snappy_raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def zstd_without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


OTHER_WRITERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    # No time in it: the bytes are parts of names of tests.
    "gzip module": (Codec.GZIP, lambda data: gzip.compress(data, mtime=0)),
    "gzip with a name": (
        Codec.GZIP,
        lambda data: (
            bytes.fromhex("1f8b0808000000000003") + b"name\0" + gzip.compress(data, mtime=0)[10:]
        ),
    ),
    "snappy raw": (Codec.SNAPPY, snappy_raw),
    "snappy xerial": (Codec.SNAPPY, lambda data: xerial(*[snappy_raw(data)] if data else [])),
    "snappy xerial, Redpanda's little-endian versions": (
        Codec.SNAPPY,
        lambda data: xerial(
            snappy_raw(data), header=XERIAL_HEADER[:8] + bytes.fromhex("0100000001000000")
        ),
    ),
    "lz4 with content size and checksums": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(
            data, store_size=True, content_checksum=True, block_checksum=True
        ),
    ),
    "lz4 with linked 4 MiB blocks": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, block_size=7, block_linked=True, store_size=False),
    ),
    "cramjam lz4": (Codec.LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd with size": (Codec.ZSTD, zstandard.ZstdCompressor().compress),
    "zstd without size": (Codec.ZSTD, zstd_without_size),
    "zstd with checksum": (Codec.ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress),
    "cramjam zstd": (Codec.ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
}

OTHER_READERS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: gzip.decompress,
    Codec.SNAPPY: lambda data: unxerial(data)[0],
    Codec.LZ4: lz4.frame.decompress,
    Codec.ZSTD: lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{len(sample)}B")
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_round_trip_and_other_reader(codec: Codec, sample: bytes, kind: type) -> None:
    packed = compress(codec, kind(sample))
    assert type(packed) is bytes
    assert OTHER_READERS[codec](packed) == sample
    out = memoryview(decompress(codec, kind(packed), len(sample)))
    assert out.format == "B"  # a signed view would turn byte 0xff into -1
    assert bytes(out) == sample


@pytest.mark.parametrize("writer", OTHER_WRITERS)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{len(sample)}B")
def test_other_writers(writer: str, sample: bytes) -> None:
    codec, write = OTHER_WRITERS[writer]
    packed = write(sample)
    assert bytes(decompress(codec, packed, len(sample))) == sample
    assert bytes(decompress(codec, packed, 1 << 31)) == sample
    if sample:
        with pytest.raises(OutputTooLargeError):
            decompress(codec, packed, len(sample) - 1)


@settings(max_examples=examples(60))
@given(st.sampled_from(list(Codec)), st.binary(max_size=2000), st.integers(1, 60))
def test_round_trip_property(codec: Codec, data: bytes, repeat: int) -> None:
    data *= repeat
    packed = compress(codec, data)
    assert OTHER_READERS[codec](packed) == data
    assert bytes(decompress(codec, packed, len(data))) == data


def test_names() -> None:
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [codec_of(name) for name in names] == list(range(5))
    for wrong in ("LZ4", "", "lz5", "none ", "Codec"):
        with pytest.raises(
            OptionError, match=r"none \(0\), gzip \(1\), snappy \(2\), lz4 \(3\), zstd \(4\)"
        ):
            codec_of(wrong)


@pytest.mark.parametrize("codec", Codec)
def test_a_codec_may_be_its_name_or_number(codec: Codec) -> None:
    """Both were taken for zstd once, in silence."""
    data = b"snow " * 100
    packed = compress(codec, data)
    for same in (codec.name.lower(), int(codec)):
        assert compress(same, data) == packed
        assert bytes(decompress(same, packed, len(data))) == data


@pytest.mark.parametrize("wrong", ["brotli", "Zstd", "", 5, -1, True, None])
def test_what_is_no_codec_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"codec is one of none \(0\), gzip"):
        compress(wrong, b"data")
    with pytest.raises(OptionError, match=r"codec is one of none \(0\), gzip"):
        decompress(wrong, b"data", 10)


# --- what Java demands of writers -----------------------------------------------------------------


def test_snappy_is_written_as_java_does() -> None:
    data = JSON_LINES + INCOMPRESSIBLE
    content, sizes = unxerial(compress(Codec.SNAPPY, data))
    assert content == data
    assert set(sizes[:-1]) == {32 * 1024}
    assert 0 < sizes[-1] <= 32 * 1024


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{len(sample)}B")
@pytest.mark.parametrize("level", [None, 1, 9, 17])
def test_lz4_frame_is_one_that_java_reads(sample: bytes, level: int | None) -> None:
    packed = compress(Codec.LZ4, sample, level)
    magic, flags, block_descriptor = struct.unpack_from("<IBB", packed)
    assert magic == 0x184D2204
    # Version 1, independent blocks; no block checksum, content size, content checksum, dictionary.
    assert flags == 0b0110_0000
    assert block_descriptor == 4 << 4  # 64 KiB
    # The header checksum, from a table: there is only this one header.
    assert packed[6] == 0x82
    position = 7
    while size := struct.unpack_from("<I", packed, position)[0] & 0x7FFFFFFF:
        assert size <= 64 * 1024
        position += 4 + size
    assert position + 4 == len(packed)


def test_lz4_blocks_stand_alone() -> None:
    packed = compress(Codec.LZ4, JSON_LINES)
    position, out = 7, b""
    while size := struct.unpack_from("<I", packed, position)[0]:
        assert not size >> 31
        block = packed[position + 4 : position + 4 + size]
        out += bytes(cramjam.lz4.decompress_block(block, output_len=64 * 1024))[: 64 * 1024]
        position += 4 + size
    assert out[: len(JSON_LINES)] == JSON_LINES


@pytest.mark.slow
def test_levels_are_honoured() -> None:
    def size(codec: Codec, level: int | None) -> int:
        return len(compress(codec, JSON_LINES, level))

    for codec, levels in LEVELS.items():
        assert size(codec, levels.lowest) > size(codec, levels.highest)
        assert size(codec, None) == size(codec, levels.default)
        for level in (levels.lowest, levels.highest, levels.default, None):
            packed = compress(codec, JSON_LINES, level)
            assert OTHER_READERS[codec](packed) == JSON_LINES
        for level in (levels.lowest - 1, levels.highest + 1):
            if level != levels.default:
                with pytest.raises(EncodeError, match=f"{levels.lowest} to {levels.highest}"):
                    compress(codec, JSON_LINES, level)
    assert size(Codec.GZIP, 1) > size(Codec.GZIP, 6) == size(Codec.GZIP, None)
    # As in Java, lz4's default level 9 is the fast compressor, 8 the high one.
    assert size(Codec.LZ4, 9) > size(Codec.LZ4, 8)
    for codec in (Codec.NONE, Codec.SNAPPY):
        with pytest.raises(EncodeError, match="no compression levels"):
            compress(codec, b"x", 1)


# --- traps of readers -----------------------------------------------------------------------------


def test_gzip_members_are_joined() -> None:
    parts = [b"first", b"", JSON_LINES, b"x" * 1000, b"last"]
    packed = b"".join(gzip.compress(part, mtime=0) for part in parts)
    assert decompress(Codec.GZIP, packed, MIB) == b"".join(parts)


def test_snappy_streams_are_joined() -> None:
    parts = [b"first", b"", JSON_LINES, b"last"]
    packed = b"".join(compress(Codec.SNAPPY, part) for part in parts)
    assert decompress(Codec.SNAPPY, packed, MIB) == b"".join(parts)
    with pytest.raises(OutputTooLargeError):
        decompress(Codec.SNAPPY, packed, len(JSON_LINES))


# What follows whole data, and the codecs whose records Java's consumer reads all the same.
BEHIND = {
    "one byte": (b"\xab", "gzip snappy lz4"),
    "three bytes": (b"\xab" * 3, "gzip snappy lz4"),
    "four bytes": (b"\xab" * 4, "gzip lz4"),
    "zeros": (bytes(4096), "gzip lz4"),
    "noise": (b"\xab" * 100, "gzip lz4"),
    "gzip's first bytes": (b"\x1f\x8b\x08" + bytes(15), "gzip lz4"),
    "a gzip member that is cut": (b"\x1f\x8b\x08" + bytes(7) + b"\x4b" * 9, "lz4"),
    "a damaged gzip member": (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 100, "lz4"),
    "half of snappy's header": (XERIAL_HEADER[:8], "gzip lz4"),
    "snappy's header": (XERIAL_HEADER, "gzip snappy lz4"),
    "snappy's header and three bytes": (XERIAL_HEADER + bytes(3), "gzip snappy lz4"),
    "a chunk that is cut": ((100).to_bytes(4, "big") + b"abc", "gzip lz4"),
    "another lz4 frame": (compress(Codec.LZ4, b"more"), "gzip lz4"),
}


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec.name)
@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("sample", [b"ab" * 40, INCOMPRESSIBLE], ids=["small", "large"])
def test_bytes_behind_the_data_are_taken_as_java_takes_them(
    name: str, codec: Codec, sample: bytes
) -> None:
    """As Kafka 4.3.1's MemoryRecords has read the same batches."""
    behind, takers = BEHIND[name]
    packed = compress(codec, sample) + behind
    if codec.name.lower() in takers.split():
        assert decompress(codec, packed, len(sample)) == sample
    else:
        with pytest.raises(DecodeError):
            decompress(codec, packed, MIB)


def test_bytes_behind_the_data_do_not_lift_the_limit() -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        with pytest.raises(OutputTooLargeError):
            decompress(codec, compress(codec, b"ab" * 40) + b"\xab", 79)
    more = compress(Codec.GZIP, b"ab" * 40) + compress(Codec.GZIP, bytes(MIB))
    with pytest.raises(OutputTooLargeError):
        decompress(Codec.GZIP, more, 1_000)


def test_zstd_frames_are_joined_and_skippable_ones_skipped() -> None:
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    for write in (zstandard.ZstdCompressor().compress, zstd_without_size):
        packed = write(b"one") + skippable + write(JSON_LINES)
        assert bytes(decompress(Codec.ZSTD, packed, MIB)) == b"one" + JSON_LINES


def test_lz4_header_checksum_of_message_format_0() -> None:
    for options in ({}, {"store_size": True}, {"content_checksum": True, "store_size": True}):
        right = bytearray(lz4.frame.compress(JSON_LINES, **{"store_size": False} | options))
        header_end = 14 if options.get("store_size") else 6
        assert _xxh32_short(bytes(right[4:header_end])) >> 8 & 0xFF == right[header_end]
        wrong = bytearray(right)
        wrong[header_end] ^= 0x5A
        with pytest.raises(DecodeError):
            decompress(Codec.LZ4, wrong, MIB)
        for frame in (right, wrong):
            out = decompress(Codec.LZ4, frame, MIB, any_lz4_header_checksum=True)
            assert out == JSON_LINES


@pytest.mark.parametrize("codec", COMPRESSED)
def test_empty_input_is_damage(codec: Codec) -> None:
    with pytest.raises(DecodeError, match=r"no .* data"):
        decompress(codec, b"", 10)


def test_no_compression_keeps_the_object_and_the_bound() -> None:
    data = bytearray(b"abc")
    assert decompress(Codec.NONE, data, 3) is data
    with pytest.raises(OutputTooLargeError):
        decompress(Codec.NONE, data, 2)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_gil_is_released(codec: Codec) -> None:
    """With forced switches put off, another thread can only run if the codec lets go of the GIL.

    (Counting busy cores would tell the same, but not on a machine that has other work to do.)
    """
    data = JSON_LINES * 20
    packed = compress(codec, data)
    for work in (lambda: compress(codec, data), lambda: decompress(codec, packed, len(data))):
        assert any(_another_thread_runs_during(work, nap) for nap in (0.01, 0.1, 0.5)), codec.name


def _another_thread_runs_during(work: Callable[[], object], nap_seconds: float) -> bool:
    """False also if the machine was too busy to tell: the other thread then ran too early."""
    ran = threading.Event()
    other = threading.Thread(target=lambda: (time.sleep(nap_seconds), ran.set()))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        other.start()
        until = time.perf_counter() + 3 * nap_seconds
        while time.perf_counter() < until:  # holds the GIL; the other thread wakes and waits
            pass
        if ran.is_set():
            return False
        for _ in range(500):
            work()
            if ran.is_set():
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        other.join(10)


# --- hostile input --------------------------------------------------------------------------------


def snappy_bomb(claimed: int, chunks: int = 1) -> bytes:
    """Run-length snappy: a literal byte, then copies of 64 bytes at distance 1."""
    head, value = bytearray(), claimed
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    head.append(value)
    block = bytes(head) + b"\x00x" + b"\xfe\x01\x00" * ((claimed - 1) // 64)
    return xerial(*[block] * chunks) if chunks > 1 else block


ZEROS = bytes(64 * MIB)
BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: zlib.compress(ZEROS, 9, 31)),
    "gzip members": (Codec.GZIP, lambda: zlib.compress(bytes(MIB), 9, 31) * 64),
    "snappy": (Codec.SNAPPY, lambda: snappy_bomb(64 * MIB + 1)),
    "snappy chunks": (Codec.SNAPPY, lambda: snappy_bomb(MIB + 1, chunks=64)),
    "lz4": (Codec.LZ4, lambda: compress(Codec.LZ4, ZEROS)),
    "lz4 4 MiB blocks": (Codec.LZ4, lambda: lz4.frame.compress(ZEROS, block_size=7)),
    "zstd with size": (Codec.ZSTD, lambda: zstandard.ZstdCompressor(19).compress(ZEROS)),
    "zstd without size": (Codec.ZSTD, lambda: zstd_without_size(ZEROS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_stopped(bomb: str) -> None:
    codec, make = BOMBS[bomb]
    packed = make()
    pa_before = pa.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    try:
        with processor_time(2), pytest.raises(OutputTooLargeError, match="1048576"):
            decompress(codec, packed, MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB + len(packed)
    assert pa.default_memory_pool().bytes_allocated() - pa_before < MIB
    # Not a verdict about the bytes: whoever allows them gets them.
    assert len(decompress(codec, packed, 128 * MIB)) >= 64 * MIB


@pytest.mark.parametrize("claimed", [1 << 20, 1 << 28, 1 << 31, (1 << 63) + 6])
def test_claimed_sizes_are_not_believed(claimed: int) -> None:
    """Tiny frames whose headers claim much: refused before anything of that size is allocated."""
    real = b"hello"
    lz4_frame = bytearray(lz4.frame.compress(real, store_size=True))
    struct.pack_into("<Q", lz4_frame, 6, claimed)
    lz4_frame[14] = _xxh32_short(bytes(lz4_frame[4:14])) >> 8 & 0xFF
    raw_block = bytes([(len(real) << 3 | 1) & 0xFF, len(real) << 3 >> 8, 0]) + real
    zstd_frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", claimed) + raw_block
    varint = b"".join(
        bytes([claimed >> shift & 0x7F | (0x80 if claimed >> shift > 0x7F else 0)])
        for shift in range(0, 64, 7)
        if claimed >> shift
    )
    gzip_member = gzip.compress(real, mtime=0)[:-4] + struct.pack("<I", claimed & 0xFFFFFFFF)
    hostile = [
        (Codec.LZ4, bytes(lz4_frame)),
        (Codec.ZSTD, zstd_frame),
        (Codec.SNAPPY, varint + b"\x10hello"),
        (Codec.SNAPPY, xerial(varint + b"\x10hello")),
        (Codec.GZIP, gzip_member),
    ]
    # pyarrow's memory is not traced, and its pool's peak is that of the process's whole life.
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        for codec, packed in hostile:
            tracemalloc.start()
            try:
                with pytest.raises(DecodeError):
                    decompress(codec, packed, 1 << 30)
                assert tracemalloc.get_traced_memory()[1] < MIB
            finally:
                tracemalloc.stop()
        assert pool.max_memory() < 1 << 28
    finally:
        pa.set_memory_pool(usual)


def test_lz4_block_size_is_not_believed() -> None:
    """200 blocks of one byte in a frame that says 4 MiB a block: not 800 MiB to begin with."""
    header = bytearray(b"\x04\x22\x4d\x18\x60\x70\x00")
    header[6] = _xxh32_short(bytes(header[4:6])) >> 8 & 0xFF
    packed = bytes(header) + b"\x02\0\0\0\x10x" * 200 + bytes(4)
    tracemalloc.start()
    try:
        assert decompress(Codec.LZ4, packed, 1 << 30) == b"x" * 200
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_many_tiny_members_take_linear_time() -> None:
    """zlib copies unused input for each member: 80,000 members would copy 64 GB."""
    for codec, packed in [
        (Codec.GZIP, gzip.compress(b"", mtime=0) * 80_000),
        (Codec.SNAPPY, xerial(*[b"\x00"] * 50_000)),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(b"") * 20_000),
        (Codec.LZ4, compress(Codec.LZ4, b"")[:7] + b"\x01\0\0\x80x" * 50_000 + bytes(4)),
    ]:
        with processor_time(3):
            out = decompress(codec, packed, MIB)
            assert len(out) in (0, 50_000)


SMALL = JSON_LINES[:150] + bytes(50)


def _small_samples() -> list[tuple[str, Codec, bytes]]:
    samples = [(codec.name, codec, compress(codec, SMALL)) for codec in COMPRESSED]
    return samples + [(name, codec, write(SMALL)) for name, (codec, write) in OTHER_WRITERS.items()]


@pytest.mark.parametrize(("name", "codec", "packed"), _small_samples(), ids=lambda v: str(v)[:40])
def test_damage_is_one_error(name: str, codec: Codec, packed: bytes) -> None:
    """Cut at every byte: always DecodeError. Each byte changed: DecodeError, or other bytes (the
    CRC of the batch is what finds those), never more than allowed, never another exception."""
    for cut in range(len(packed)):
        if packed[:8] == XERIAL_HEADER[:8] and cut - len(XERIAL_HEADER) in range(4):
            assert not decompress(codec, packed[:cut], MIB)  # a whole stream, with nothing in it
            continue
        with pytest.raises(DecodeError) as caught:
            decompress(codec, packed[:cut], MIB)
        assert caught.value.position is not None
    damaged = bytearray(packed)
    for index in range(len(packed)):
        for flip in (0x01, 0x80, 0xFF):
            damaged[index] ^= flip
            try:
                assert len(decompress(codec, damaged, 1000)) <= 1000
            except DecodeError as error:
                assert error.position is not None
            damaged[index] ^= flip


@settings(max_examples=examples(200))
@given(st.sampled_from(COMPRESSED), st.binary(min_size=1, max_size=100), st.booleans())
def test_noise_is_one_error(codec: Codec, noise: bytes, with_magic: bool) -> None:
    magics = {
        Codec.GZIP: b"\x1f\x8b\x08",
        Codec.SNAPPY: XERIAL_HEADER,
        Codec.LZ4: b"\x04\x22\x4d\x18",
        Codec.ZSTD: b"\x28\xb5\x2f\xfd",
    }
    try:
        out = decompress(codec, magics[codec] + noise if with_magic else noise, 4096)
    except DecodeError as error:
        assert error.position is not None
    else:
        assert len(out) <= 4096
