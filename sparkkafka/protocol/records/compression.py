"""Kafka's compression codecs: bytes in, bytes out, never more bytes out than the caller allows.

`decompressed_pieces` yields a few MiB at a time, so that data of any size takes little memory;
`decompress` joins the pieces.

    codec     written as                                read as
    gzip      one gzip member                           any number of members
    snappy    xerial stream of 32 KiB chunks            any number of xerial streams, or one raw
              (what Java's SnappyOutputStream writes)   block (librdkafka and franz-go write raw)
    lz4       one LZ4 frame: independent 64 KiB         one LZ4 frame of any kind
              blocks, no content size, no checksum
              (what Java's Lz4BlockInputStream takes)
    zstd      one zstd frame                            any number of frames

Bytes after the compressed data are handled as in Java's consumer (tried with Kafka 4.3.1): gzip
ignores them if they do not begin a member or are up to 18 bytes; snappy ignores up to 3 bytes after
the last chunk; lz4 ignores all after its frame; otherwise they are an error.

Every library call here works without the GIL, so threads of one process (de)compress in parallel.

Libraries, chosen by measurement on a 1 MiB batch of JSON: MB/s of uncompressed data on one core,
good to about a fifth; alternatives in brackets.

    gzip      write 53 zlib [46 pyarrow]              read 412 zlib [387 pyarrow]
    snappy    write 801 pyarrow [776 cramjam]         read 840-1230 pyarrow [1540-1730 cramjam]
    lz4       write 667 lz4                           read 3130 lz4 [2610 pyarrow stream]
    zstd      write 256 pyarrow [261 zstandard]       read 980 pyarrow at once, 870-1100 as a
                                                      stream [970 zstandard, 910 cramjam]

cramjam reads snappy faster, but is not worth a dependency that Spark does not already have.
pyarrow's lz4 codec cannot write: its blocks depend on each other, which Java refuses. Reading lz4
with pyarrow at once (3800) needs the exact size, which a frame from Kafka does not have.
"""

from __future__ import annotations

import enum
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import lz4.frame
import pyarrow as pa

from sparkkafka.errors import DecodeError, EncodeError, OptionError
from sparkkafka.protocol.wire.primitives import BytesLike
from sparkkafka.protocol.wire.varints import VARINT_BITS, BadVarintError, read_varint


class Codec(enum.IntEnum):
    """Codec ids: bits 0-2 of a batch's attributes (`CompressionType.java`)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Levels(NamedTuple):
    """The levels of a codec, and the default (KIP-390)."""

    lowest: int
    highest: int
    default: int


# The ranges of Java's compression.<codec>.level options. Snappy has no levels.
LEVELS = {
    Codec.GZIP: Levels(1, 9, -1),
    Codec.LZ4: Levels(1, 17, 9),
    Codec.ZSTD: Levels(-131072, 22, 3),
}


def codec_of(
    value: Codec | int | str, *, argument: str = "codec", allowed: Sequence[Codec] = tuple(Codec)
) -> Codec:
    """Return the codec with this number or name. Raises OptionError, which names `argument`, if it
    is none of those `allowed`, and for a bool, although True equals 1."""
    if not isinstance(value, bool):
        for codec in allowed:
            if value == (codec.name.lower() if isinstance(value, str) else codec):
                return codec
    known = ", ".join(f"{codec.name.lower()} ({codec:d})" for codec in allowed)
    raise OptionError(f"{argument} is one of {known}, got {value!r}")


def level_of(codec: Codec, level: int | None) -> int:
    """Return the level to compress with, the default for None; 0 for a codec without levels.

    Raises EncodeError for a level that the codec does not have.
    """
    levels = LEVELS.get(codec)
    if levels is None:
        if level is not None:
            raise EncodeError(f"{codec.name.lower()} has no compression levels, got {level}")
        return 0
    if level is None or level == levels.default:
        return levels.default
    if not levels.lowest <= level <= levels.highest:
        raise EncodeError(
            f"{codec.name.lower()} compression level must be {levels.lowest} to "
            f"{levels.highest}, got {level}"
        )
    return level


# --- a user's functions ---------------------------------------------------------------------------

Compress = Callable[[memoryview, int | None], BytesLike]
Decompress = Callable[[memoryview, int], BytesLike]


class RegisteredCodec(NamedTuple):
    """Functions that replace those of `compression`; None does not replace it."""

    compress: Compress | None
    decompress: Decompress | None


# The dict is replaced and never changed, so that reading it needs no lock.
_registered: dict[Codec, RegisteredCodec] = {}
_registered_lock = threading.Lock()
_NOT_REGISTERED = RegisteredCodec(None, None)


def register_codec(
    codec: Codec | int | str,
    *,
    compress: Compress | None = None,
    decompress: Decompress | None = None,
) -> None:
    """Use these functions for a codec from now on, in all threads of this process.

    `codec` is one of Kafka's by name or id: gzip 1, snappy 2, lz4 3, zstd 4; brokers refuse others.
    None stands for the package's own function, so that `register_codec("zstd")` removes functions.
    `compress(data, level)` returns what Java's consumer can read; `level` is None for the default,
    and not checked. `decompress(data, max_bytes)` returns the uncompressed bytes, and should stop
    once they are more than `max_bytes`: a larger result is refused (OutputTooLargeError), but it
    has taken the memory. Several threads may call both at the same time. Their exceptions become
    EncodeError or DecodeError. Raises OptionError for another codec, and for an argument that is
    not a function.
    """
    chosen = codec_of(codec, allowed=tuple(codec for codec in Codec if codec is not Codec.NONE))
    for name, function in (("compress", compress), ("decompress", decompress)):
        if function is not None and not callable(function):
            raise OptionError(f"{name} is a function, got {type(function).__name__}")
    with _registered_lock:
        global _registered
        registered = {key: pair for key, pair in _registered.items() if key is not chosen}
        if compress is not None or decompress is not None:
            registered[chosen] = RegisteredCodec(compress, decompress)
        _registered = registered


def registered_codec(codec: Codec) -> RegisteredCodec:
    """Return the functions that are registered for a codec, each None if there is none."""
    return _registered.get(codec, _NOT_REGISTERED)


# --- compressing and decompressing ----------------------------------------------------------------


class OutputTooLargeError(DecodeError):
    """The data decompresses to more bytes than the caller allows; it need not be damaged."""


PIECE_BYTES = 4 << 20
"""Limit of a piece's bytes. A snappy block is decompressed whole, and then cut into such pieces."""

# Compressed bytes that a library gets in one call: each call copies the bytes that it did not use.
_INPUT_BYTES = 1 << 20

_GZIP_WBITS = 31  # zlib: 15 bits of window, and 16 for the gzip wrapper

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_CHUNK_BYTES = 32 * 1024
_XERIAL_SIZE_BYTES = 4

_LZ4_LENGTH = struct.Struct("<I")
_LZ4_RAW_BLOCK = 0x80000000


def compress(codec: Codec | int | str, data: BytesLike, level: int | None = None) -> bytes:
    """Compress `data` in the form that Java's consumer reads.

    `codec` is a Codec, its number or its name. `level` None means Java's default. EncodeError for a
    level outside Java's range, and for any level with a codec that has none; OptionError for a
    codec that is unknown.
    """
    codec = codec_of(codec)
    registered = registered_codec(codec).compress
    if registered is not None:
        return _registered_compress(codec, registered, data, level)
    level = level_of(codec, level)
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return zlib.compress(data, level, _GZIP_WBITS)
    if codec is Codec.SNAPPY:
        return _snappy_compress(data)
    if codec is Codec.LZ4:
        return _lz4_compress(data, level)
    return cast(bytes, pa.Codec("zstd", compression_level=level).compress(data, asbytes=True))


def decompress(
    codec: Codec | int | str,
    data: BytesLike,
    max_bytes: int,
    *,
    any_lz4_header_checksum: bool = False,
) -> BytesLike:
    """Return the uncompressed bytes: at most `max_bytes` (max.decompressed.batch.bytes), for codec
    NONE `data` itself.

    `codec` is a Codec, its number or its name; OptionError for an unknown one. Raises DecodeError
    for damaged, cut, and empty input, OutputTooLargeError for output beyond `max_bytes`. With
    `any_lz4_header_checksum` the checksum in an LZ4 header may be wrong, as in message format 0.
    """
    codec = codec_of(codec)
    pieces = list(
        decompressed_pieces(codec, data, max_bytes, any_lz4_header_checksum=any_lz4_header_checksum)
    )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed_pieces(
    codec: Codec, data: BytesLike, max_bytes: int, *, any_lz4_header_checksum: bool = False
) -> Iterator[BytesLike]:
    """Yield the uncompressed bytes, at most `max_bytes`, in pieces of up to PIECE_BYTES; for codec
    NONE `data` itself.

    Some pieces are empty, so that the caller can check deadlines. The size that a frame claims can
    make it fail early, but allocates nothing: memory holds a piece or two, the codec's window, and
    for snappy the block (whose claim is checked against its bytes and `max_bytes`). Raises
    DecodeError for damaged, cut, and empty input, perhaps after some pieces; OutputTooLargeError
    for output beyond `max_bytes`. `any_lz4_header_checksum` is for message format 0, where Kafka
    computed the LZ4 header checksum over the wrong bytes (KIP-57).
    """
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise OutputTooLargeError(f"{len(data)} bytes, more than the {max_bytes} allowed", 0)
        return iter((data,))
    if not len(data):
        raise DecodeError(f"no {codec.name.lower()} data at all", 0)
    view = memoryview(data)
    registered = registered_codec(codec).decompress
    # A registered function need not read the frames of message format 0, with their bad checksum.
    old_lz4 = codec is Codec.LZ4 and any_lz4_header_checksum
    if registered is not None and not old_lz4:
        parts: Iterator[BytesLike] = _registered_parts(codec, registered, view, max_bytes)
    elif codec is Codec.GZIP:
        parts = _gzip_parts(view, max_bytes)
    elif codec is Codec.SNAPPY:
        parts = _snappy_parts(view, max_bytes)
    elif codec is Codec.LZ4:
        parts = _lz4_parts(view, any_lz4_header_checksum, max_bytes)
    else:
        parts = _zstd_parts(view, max_bytes)
    return _join_parts(codec, parts, max_bytes)


def _registered_compress(
    codec: Codec, function: Compress, data: BytesLike, level: int | None
) -> bytes:
    """Compress with a user's function. Raises EncodeError if that fails."""
    try:
        return bytes(memoryview(function(memoryview(data), level)))
    except Exception as error:
        raise EncodeError(
            f"the function that is registered to compress {codec.name.lower()} failed: {error}"
        ) from error


def _registered_parts(
    codec: Codec, function: Decompress, data: memoryview, max_bytes: int
) -> Iterator[memoryview]:
    """Decompress with a user's function, and yield its result in parts. Raises DecodeError if that
    fails, OutputTooLargeError beyond `max_bytes`."""
    try:
        out = memoryview(function(data, max_bytes)).cast("B")
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(
            f"the function that is registered to decompress {codec.name.lower()} failed: {error}", 0
        ) from error
    if len(out) > max_bytes:
        raise _too_large(codec, max_bytes)
    yield from slices(out)


def _join_parts(codec: Codec, parts: Iterable[BytesLike], max_bytes: int) -> Iterator[BytesLike]:
    """Join the parts that a library returns to pieces of up to PIECE_BYTES, so that many small
    parts take no memory as objects. Some pieces are empty (after many tiny parts).

    Raises OutputTooLargeError beyond `max_bytes`.
    """
    budget_bytes = max_bytes
    piece: BytesLike = b""
    for number, part in enumerate(parts, 1):
        # After this number of tiny chunks or members an empty piece is yielded, so that the caller
        # can check deadlines; no writer makes a piece of as many.
        if number % 1024 == 0:
            yield b""
        budget_bytes -= len(part)
        if budget_bytes < 0:
            raise _too_large(codec, max_bytes)
        if not piece:
            piece = part
        elif len(piece) + len(part) > PIECE_BYTES:
            yield piece
            piece = part
        else:
            if not isinstance(piece, bytearray):
                piece = bytearray(piece)
            piece += part
    if piece:
        yield piece


def _too_large(codec: Codec, max_bytes: int, position: int = 0) -> OutputTooLargeError:
    """Make the error for more output than allowed; `position` is in the compressed data."""
    return OutputTooLargeError(
        f"{codec.name.lower()} data unpacks to more than the {max_bytes} bytes allowed", position
    )


def _piece_bytes(max_bytes: int) -> int:
    """Return how many bytes to decompress in one step: at most one above the limit, which is enough
    to notice that the output is too large."""
    return min(PIECE_BYTES, max_bytes + 1)


def _unsigned_view(buffer: pa.Buffer) -> memoryview:
    """Return a view of the buffer whose elements are bytes from 0 to 255."""
    # pyarrow exports signed chars: without the cast, byte 0xff would read as -1.
    return memoryview(buffer).cast("B")


def slices(data: memoryview) -> Iterator[memoryview]:
    """Cut decompressed data into pieces of up to PIECE_BYTES; one empty piece if there is none."""
    for start in range(0, max(1, len(data)), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


# --- gzip ---------------------------------------------------------------------------------------


def _gzip_parts(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    """Yield the uncompressed bytes of all members in parts. Raises DecodeError."""
    position, end = 0, len(data)
    max_piece_bytes = _piece_bytes(max_bytes)
    # zlib copies what it did not use. The first member gets much of the input, as there rarely is a
    # second; further ones get a window that grows, or thousands of tiny members would copy the
    # rest thousands of times.
    window = _INPUT_BYTES
    while position < end:
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            chunk = data[position : position + window]
            if not chunk:
                raise DecodeError("gzip data is cut short", position)
            unused: BytesLike = chunk
            while not member.eof:
                try:
                    out = member.decompress(unused, max_piece_bytes)
                except zlib.error as error:
                    raise DecodeError(f"gzip data is damaged: {error}", position) from error
                yield out
                if len(out) < max_piece_bytes:
                    break
                unused = member.unconsumed_tail
            position += len(chunk) - len(member.unused_data)
            window = min(2 * window, _INPUT_BYTES)
        window = 512
        # java.util.zip.GZIPInputStream.readTrailer looks for no further member in fewer bytes. A
        # member begins with gzip's magic number and the method, deflate.
        if end - position < 19 or bytes(data[position : position + 3]) != b"\x1f\x8b\x08":
            break


# --- snappy -------------------------------------------------------------------------------------


def _snappy_compress(data: BytesLike) -> bytes:
    """Compress to a xerial stream: its header, then size (int32) and bytes of each chunk."""
    view = memoryview(data)
    codec = pa.Codec("snappy")
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_CHUNK_BYTES):
        chunk = codec.compress(view[start : start + _XERIAL_CHUNK_BYTES], asbytes=True)
        parts += (len(chunk).to_bytes(4, "big"), chunk)
    return b"".join(parts)


def _snappy_parts(data: memoryview, max_bytes: int) -> Iterator[memoryview]:
    """Yield the uncompressed bytes of a raw block or of xerial streams in parts. Raises DecodeError
    and OutputTooLargeError."""
    codec = pa.Codec("snappy")
    # Only the magic is compared: Redpanda wrote the two version numbers little-endian.
    if len(data) < len(_XERIAL_HEADER) or data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield from slices(_snappy_block(codec, data, 0, len(data), max_bytes, max_bytes))
        return
    budget_bytes, position, end = max_bytes, len(_XERIAL_HEADER), len(data)
    while end - position >= _XERIAL_SIZE_BYTES:
        header_end = position + len(_XERIAL_HEADER)
        if header_end <= end and data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position = header_end  # SnappyInputStream reads streams that were joined
            yield data[:0]  # counts as a part, so that the caller of many streams gets deadlines
            continue
        start = position + _XERIAL_SIZE_BYTES
        size = int.from_bytes(data[position:start], "big", signed=True)
        if not 0 < size <= end - start:
            raise DecodeError(f"snappy chunk of {size} bytes, {end - start} are left", position)
        position = start + size
        part = _snappy_block(codec, data, start, position, budget_bytes, max_bytes)
        budget_bytes -= len(part)
        yield from slices(part)


def _snappy_block(
    codec: pa.Codec, data: memoryview, start: int, end: int, budget_bytes: int, max_bytes: int
) -> memoryview:
    """Decompress the raw block data[start:end]. Memory is allocated only for a claimed size that is
    possible and at most `budget_bytes`, what is left of `max_bytes`. Raises DecodeError and
    OutputTooLargeError."""
    try:
        claimed, _ = read_varint(data, start, end, VARINT_BITS)
    except (IndexError, BadVarintError):
        raise DecodeError("snappy block without a valid length", start) from None
    # A snappy element of 3 bytes makes at most 64 bytes; no other does better.
    if claimed > (end - start) * 22:
        raise DecodeError(
            f"snappy block of {end - start} bytes cannot hold the {claimed} it claims", start
        )
    if claimed > budget_bytes:
        raise _too_large(Codec.SNAPPY, max_bytes, start)
    # A block is decompressed whole, and a record in it is then copied, so both could take twice the
    # limit.
    if claimed > max(PIECE_BYTES, 0.7 * max_bytes):
        raise OutputTooLargeError(
            f"one block of snappy unpacks to {claimed} bytes, at most 70 % of the {max_bytes} "
            "bytes allowed can be unpacked in one block",
            start,
        )
    try:
        return _unsigned_view(codec.decompress(data[start:end], claimed))
    except OSError as error:
        raise DecodeError(f"snappy data is damaged: {error}", start) from error


# --- lz4 ----------------------------------------------------------------------------------------


def _lz4_compress(data: BytesLike, level: int) -> bytes:
    """Compress to one LZ4 frame in the form that Java writes; `level` is Java's."""
    # Java's default level means the fast compressor, whatever its number says, and all its other
    # levels the high compressor. In liblz4 that is 0, and 3 or more.
    is_default = level == LEVELS[Codec.LZ4].default
    return cast(
        bytes,
        lz4.frame.compress(
            data,
            compression_level=0 if is_default else max(level, 3),
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            block_checksum=False,
            store_size=False,
        ),
    )


def _lz4_parts(data: memoryview, any_header_checksum: bool, max_bytes: int) -> Iterator[bytes]:
    """Yield the uncompressed bytes of one LZ4 frame in parts. Raises DecodeError, and
    OutputTooLargeError if the frame claims more than `max_bytes`.

    With `any_header_checksum` the header's checksum is replaced by the right one before the library
    checks it.
    """
    # `bound` is an upper bound of the output that is still to come.
    header_bytes, end, bound, claimed = _read_lz4_headers(data)
    data = data[:end]
    if claimed is not None and claimed > max_bytes:
        raise _too_large(Codec.LZ4, max_bytes)
    frame = data
    if any_header_checksum:
        # The last byte of the header: the second byte of the checksum of those after the magic.
        patched = bytearray(data)
        patched[header_bytes - 1] = _xxh32_short(bytes(data[4 : header_bytes - 1])) >> 8 & 0xFF
        frame = memoryview(patched)
    decompressor = lz4.frame.LZ4FrameDecompressor()
    position, max_piece_bytes = 0, _piece_bytes(max_bytes)
    while not decompressor.eof:
        chunk = frame[position : position + _INPUT_BYTES] if decompressor.needs_input else b""
        if decompressor.needs_input and not chunk:
            raise DecodeError("lz4 frame ends too early", len(data))
        position += len(chunk)
        try:
            # The library allocates `max_length` bytes: no more than the blocks can fill.
            out = cast(
                bytes, decompressor.decompress(chunk, max_length=min(bound, max_piece_bytes))
            )
        except (RuntimeError, EOFError, ValueError) as error:
            raise DecodeError(f"lz4 data is damaged: {error}", header_bytes) from error
        bound = max(bound - len(out), 1)
        yield out


def _read_lz4_headers(data: memoryview) -> tuple[int, int, int, int | None]:
    """Read the headers of a frame: the size of the frame header, where the frame ends, an upper
    bound of its output, and the output's size if the header has it.

    The bound is close: a writer fills all blocks but the last. No more is allocated, so a frame
    cannot take more memory than its blocks can fill.
    """
    end = len(data)
    if end < 7 or _LZ4_LENGTH.unpack_from(data)[0] != 0x184D2204:  # the magic number
        raise DecodeError("not an LZ4 frame", 0)
    flags, block_descriptor = data[4], data[5]
    # The codes 4 to 7 stand for 64 KiB, 256 KiB, 1 MiB and 4 MiB; no others are allowed.
    block_max_bytes = 1 << (8 + 2 * (block_descriptor >> 4 & 7))
    if flags >> 6 != 1 or block_max_bytes < 1 << 16:
        raise DecodeError("not an LZ4 frame of version 1", 4)
    block_checksum_bytes = 4 if flags & 0x10 else 0
    # magic, flags, block descriptor, [content size], [dictionary id], header checksum
    header_bytes = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    claimed = int.from_bytes(data[6:14], "little") if flags & 0x08 else None
    position, bound = header_bytes, 0
    while True:
        if position + 4 > end:
            raise DecodeError("lz4 frame is cut short", position)
        size = _LZ4_LENGTH.unpack_from(data, position)[0]
        position += 4
        if size == 0:
            break
        if size & _LZ4_RAW_BLOCK:
            size &= ~_LZ4_RAW_BLOCK
            bound += size
        else:
            # LZ4: a length byte of 255 stands for 255 bytes.
            bound += min(block_max_bytes, size * 255)
        if size > block_max_bytes or size + block_checksum_bytes > end - position:
            raise DecodeError(f"lz4 block of {size} bytes is too long", position - 4)
        position += size + block_checksum_bytes
    position += 4 if flags & 0x04 else 0  # the checksum of the content
    if position > end:
        raise DecodeError("lz4 frame is cut short", end)
    return header_bytes, position, max(bound, 1), claimed


def _xxh32_short(data: bytes) -> int:
    """Return xxHash32 (seed 0) of fewer than 16 bytes: all that an LZ4 frame header needs."""
    mask = 0xFFFFFFFF
    value = (0x165667B1 + len(data)) & mask
    lanes_end = len(data) & ~3  # a lane has four bytes
    for start in range(0, lanes_end, 4):
        lane = int.from_bytes(data[start : start + 4], "little")
        value = (value + lane * 0xC2B2AE3D) & mask
        value = ((value << 17 | value >> 15) & mask) * 0x27D4EB2F & mask
    for byte in data[lanes_end:]:
        value = (value + byte * 0x165667B1) & mask
        value = ((value << 11 | value >> 21) & mask) * 0x9E3779B1 & mask
    value = (value ^ value >> 15) * 0x85EBCA77 & mask
    value = (value ^ value >> 13) * 0xC2B2AE3D & mask
    return value ^ value >> 16


# --- zstd ---------------------------------------------------------------------------------------


def _zstd_parts(data: memoryview, max_bytes: int) -> Iterator[memoryview]:
    """Yield the uncompressed bytes of all frames in parts. Raises DecodeError, and
    OutputTooLargeError if the first frame claims more than `max_bytes`."""
    claimed = _zstd_content_bytes(data)
    if claimed is not None and claimed > max_bytes:
        raise _too_large(Codec.ZSTD, max_bytes)
    # zstd: a run-length block of 4 bytes stands for at most 128 KiB.
    if claimed is not None and claimed <= min(PIECE_BYTES, len(data) * 32 * 1024):
        # The size may be wrong: the data may be damaged, or there may be a second frame. Then the
        # stream below decides.
        try:
            whole = _unsigned_view(pa.Codec("zstd").decompress(data, claimed))
        except OSError:
            pass
        else:
            yield whole
            return
    # Java does not know the size when it writes the header, so its frames get here. One read is
    # enough for eightfold compression; further reads double, so that the memory depends on the data
    # that is really there.
    max_piece_bytes = _piece_bytes(max_bytes)
    read_bytes = min(64 * 1024 + 8 * len(data), max_piece_bytes)
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
            while True:
                part = stream.read_buffer(read_bytes)
                if not part.size:
                    break
                yield _unsigned_view(part)
                read_bytes = min(2 * read_bytes, max_piece_bytes)
    except OSError as error:
        raise DecodeError(f"zstd data is damaged: {error}", 0) from error


def _zstd_content_bytes(data: memoryview) -> int | None:
    """Return the size that the first frame's header claims (RFC 8878, 3.1.1.1), None if it has
    none."""
    if len(data) < 6 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":  # the magic number
        return None
    descriptor = data[4]
    # Then: window (no single segment), dictionary id (0, 1, 2 or 4 bytes), content size.
    single_segment = descriptor >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    if not size_bytes:
        return None
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if start + size_bytes > len(data):
        return None
    size = int.from_bytes(data[start : start + size_bytes], "little")
    return size + 256 if size_bytes == 2 else size
