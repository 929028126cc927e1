"""Kafka's compression codecs: bytes in, bytes out, never more bytes out than the caller allows.

`decompressed_pieces` gives a few MiB at a time, so that data of any size is read in little memory;
`decompress` joins the pieces. How each codec is written and read stands in `codecs`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sparkkafka.errors import DecodeError, EncodeError, OptionError
from sparkkafka.protocol.records import codecs
from sparkkafka.protocol.records.codecs import (
    PIECE_BYTES,
    BytesLike,
    Codec,
    OutputTooLargeError,
    slices,
    too_large,
)


class Levels(NamedTuple):
    """The levels that a codec takes, and the one used when none is asked for (KIP-390)."""

    lowest: int
    highest: int
    default: int


# The ranges of Java's compression.<codec>.level options. Snappy has no levels.
LEVELS = {
    Codec.GZIP: Levels(1, 9, -1),
    Codec.LZ4: Levels(1, 17, 9),
    Codec.ZSTD: Levels(-131072, 22, 3),
}

COMPRESSING = tuple(row for row in Codec if row is not Codec.NONE)

# After so many tiny chunks or members an empty piece comes, so that the caller can check deadlines;
# no writer makes a piece of so many.
_PARTS_OF_A_PIECE = 1024


def codec_by_name(name: str) -> Codec:
    """The codec that Java's `compression.type` calls `name`; OptionError for any other name."""
    codec = Codec.__members__.get(name.upper())
    if codec is None or name != name.lower():
        known = ", ".join(c.name.lower() for c in Codec)
        raise OptionError(f"compression.type must be one of {known}, got {name!r}")
    return codec


def codec_of(
    value: Codec | int | str, *, argument: str = "codec", of: Sequence[Codec] = tuple(Codec)
) -> Codec:
    """The codec with this number or name, if it is one `of` these. Raises OptionError.

    True, which equals 1, is no codec.
    """
    if not isinstance(value, bool):
        for row in of:
            if value == (row.name.lower() if isinstance(value, str) else row):
                return row
    known = ", ".join(f"{row.name.lower()} ({row:d})" for row in of)
    raise OptionError(f"{argument} is one of {known}, got {value!r}")


def compress(codec: Codec | int | str, data: BytesLike, level: int | None = None) -> bytes:
    """`data` as one blob in the form that Java's consumer reads.

    `codec` is a Codec, its number or its name. `level` None means Java's default. EncodeError for a
    level outside Java's range, and for any level with a codec that has none; OptionError for a
    codec that there is not.
    """
    codec = codec_of(codec)
    own = _own.get(codec)
    if own is not None and own.compress is not None:
        return _own_compress(codec, own.compress, data, level)
    level = _level(codec, level)
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return codecs.gzip_compress(data, level)
    if codec is Codec.SNAPPY:
        return codecs.snappy_compress(data)
    if codec is Codec.LZ4:
        # lz4-java's default level means its fast compressor, whatever its number says.
        return codecs.lz4_compress(data, level, fast=level == LEVELS[codec].default)
    return codecs.zstd_compress(data, level)


def decompress(
    codec: Codec | int | str,
    data: BytesLike,
    max_bytes: int,
    *,
    any_lz4_header_checksum: bool = False,
) -> BytesLike:
    """The uncompressed bytes: at most `max_bytes`, for codec NONE `data` itself.

    `codec` is a Codec, its number or its name; OptionError for one that there is not. All of
    `decompressed_pieces`, which see, in one piece.
    """
    codec = codec_of(codec)
    pieces = list(
        decompressed_pieces(codec, data, max_bytes, any_lz4_header_checksum=any_lz4_header_checksum)
    )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompressed_pieces(
    codec: Codec, data: BytesLike, max_bytes: int, *, any_lz4_header_checksum: bool = False
) -> Iterator[BytesLike]:
    """The uncompressed bytes, at most `max_bytes` of them, in pieces of up to PIECE_BYTES; for
    codec NONE `data` itself.

    Some pieces are empty, if nothing came for a while. A frame's claimed size can make it fail
    early, but no memory is allocated by it: there are only a piece or two, the codec's window, and
    for snappy the block (whose claim is checked against its bytes and `max_bytes`). Raises
    DecodeError for damaged, cut, and empty input and for bytes behind the end of the compressed
    data, perhaps after some pieces; OutputTooLargeError for output beyond `max_bytes`.
    `any_lz4_header_checksum` is for message format 0, where Kafka computed the LZ4 header
    checksum over the wrong bytes (KIP-57).
    """
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise OutputTooLargeError(f"{len(data)} bytes, more than the {max_bytes} allowed", 0)
        return iter((data,))
    if not len(data):
        raise DecodeError(f"no {codec.name.lower()} data at all", 0)
    view = memoryview(data)
    own = _own.get(codec)
    # Nobody's LZ4 but ours reads the frames of message format 0.
    old_lz4 = codec is Codec.LZ4 and any_lz4_header_checksum
    if own is not None and own.decompress is not None and not old_lz4:
        return _gathered(codec, _own_parts(codec, own.decompress, view, max_bytes), max_bytes)
    if codec is Codec.GZIP:
        parts: Iterator[BytesLike] = codecs.gzip_parts(view, max_bytes)
    elif codec is Codec.SNAPPY:
        parts = codecs.snappy_parts(view, max_bytes)
    elif codec is Codec.LZ4:
        parts = codecs.lz4_parts(view, any_lz4_header_checksum, max_bytes)
    else:
        parts = codecs.zstd_parts(view, max_bytes)
    return _gathered(codec, parts, max_bytes)


Compress = Callable[[memoryview, int | None], BytesLike]
Decompress = Callable[[memoryview, int], BytesLike]


class _Own(NamedTuple):
    """Functions of the user's in place of this module's; None: this module's."""

    compress: Compress | None
    decompress: Decompress | None


# Never changed, always replaced: who reads it needs no lock.
_own: dict[Codec, _Own] = {}
_own_lock = threading.Lock()


def register_codec(
    codec: Codec | int | str,
    *,
    compress: Compress | None = None,
    decompress: Decompress | None = None,
) -> None:
    """Take these functions for a codec from now on, in all threads of this process.

    `codec` is one of Kafka's by name or id: gzip 1, snappy 2, lz4 3, zstd 4; brokers refuse others.
    What is None is the package's own, so that `register_codec("zstd")` takes functions back.
    `compress(data, level)` gives what Java's consumer can read; `level` is None for the default,
    and not checked. `decompress(data, max_bytes)` gives the uncompressed bytes, and should stop
    once they are more than `max_bytes`: a larger result is refused (OutputTooLargeError), but then
    the memory has been used. Both may be called from several threads at once. What they raise
    comes out as EncodeError or DecodeError. Raises OptionError for another codec, and for what is
    no function.
    """
    chosen = codec_of(codec, of=COMPRESSING)
    for name, function in (("compress", compress), ("decompress", decompress)):
        if function is not None and not callable(function):
            raise OptionError(f"{name} is a function, got {type(function).__name__}")
    with _own_lock:
        global _own
        own = {key: row for key, row in _own.items() if key is not chosen}
        if compress is not None or decompress is not None:
            own[chosen] = _Own(compress, decompress)
        _own = own


def _own_compress(codec: Codec, function: Compress, data: BytesLike, level: int | None) -> bytes:
    try:
        return bytes(memoryview(function(memoryview(data), level)))
    except Exception as error:
        raise EncodeError(
            f"the function that is registered to compress {codec.name.lower()} failed: {error}"
        ) from error


def _own_parts(
    codec: Codec, function: Decompress, data: memoryview, max_bytes: int
) -> Iterator[memoryview]:
    try:
        out = memoryview(function(data, max_bytes)).cast("B")
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(
            f"the function that is registered to decompress {codec.name.lower()} failed: {error}", 0
        ) from error
    if len(out) > max_bytes:
        raise too_large(codec, max_bytes)
    yield from slices(out)


def _gathered(codec: Codec, parts: Iterable[BytesLike], max_bytes: int) -> Iterator[BytesLike]:
    """What a library gave, joined to pieces; many small parts take no room as objects."""
    room = max_bytes
    piece: BytesLike = b""
    for number, part in enumerate(parts, 1):
        if number % _PARTS_OF_A_PIECE == 0:
            yield b""
        room -= len(part)
        if room < 0:
            raise too_large(codec, max_bytes)
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


def _level(codec: Codec, level: int | None) -> int:
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
