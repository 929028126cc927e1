"""The compression codecs: names, numbers, levels, and functions that users register for them."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparkkafka.errors import EncodeError, OptionError

BytesLike = bytes | bytearray | memoryview


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


def codec_by_name(name: str) -> Codec:
    """Return the codec that Java's `compression.type` calls `name`. Raises OptionError for any
    other name."""
    codec = Codec.__members__.get(name.upper())
    if codec is None or name != name.lower():
        known = ", ".join(known_codec.name.lower() for known_codec in Codec)
        raise OptionError(f"compression.type must be one of {known}, got {name!r}")
    return codec


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


# --- a user's functions ------------------------------------------------------------------------

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
