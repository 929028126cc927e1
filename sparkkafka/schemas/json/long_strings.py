"""Cuts long strings out of JSON texts before pyarrow's reader reads them, and puts them back.

The reader takes more than a nanosecond for each byte of a string. A string without a backslash ends
at the next quote, which is found much faster. So the reader gets a mark instead of such a string:
a byte that the texts do not have and the string's number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.arrow import blob_offsets, from_numpy
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.schemas.arrays import as_texts, offsets_of, positions

MIN_LONG_BYTES: Final = 128
_SAMPLE_BYTES: Final = 1 << 16
_MARK: Final = 0x7F
_DIGITS: Final = 5  # digits of 4 bits, as the letters a to p
_MARK_BYTES: Final = 1 + _DIGITS


def cut_long_strings(texts: pa.Array) -> tuple[pa.Array, pa.Array] | None:
    """Return (the texts with marks instead of long strings, these strings by number); None if the
    texts must be read as they are, or are not mostly long strings. Names of fields are not cut.

    texts: binary, contiguous, without nulls. Any bytes are allowed: what is cut from a text that
    is not JSON leaves one that is not JSON either."""
    offsets = blob_offsets(texts).astype(np.int64)
    data = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    if len(data) < len(texts) * MIN_LONG_BYTES or not _is_mostly_long(data[:_SAMPLE_BYTES]):
        return None
    # Control characters are invalid in strings, and escapes must be decoded.
    if data.min() < ord(" ") or (data == ord("\\")).any():
        return None
    opens, closes = _long_strings(data, offsets)
    if not 0 < len(opens) < 1 << 4 * _DIGITS:  # a digit of a mark has four bits of the number
        return None
    short = _put_marks(data, opens, closes)
    if short is None:
        return None
    lengths = closes - opens
    removed = offsets_of(lengths - _MARK_BYTES)
    short_offsets = offsets - removed[np.searchsorted(closes, offsets, "right")]
    try:
        strings = as_texts(gather(pa.py_buffer(data), opens, lengths))
    except pa.ArrowInvalid:
        return None
    buffers = [None, pa.py_buffer(short_offsets.astype(np.int32)), pa.py_buffer(short)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers), strings


def _is_mostly_long(sample: Bytes) -> bool:
    """Return whether at least half of these bytes are in long strings, or between them: in gaps
    without a quote."""
    gaps = np.diff(np.flatnonzero(sample == ord('"')), append=len(sample))
    return bool(gaps[gaps >= MIN_LONG_BYTES].sum() >= len(sample) // 2)


def _put_marks(data: Bytes, opens: Ints, closes: Ints) -> Bytes | None:
    """Return the bytes with a mark instead of each string from `opens` to `closes`; None if they
    have _MARK already."""
    # Of each string its first bytes are kept, which the mark replaces: a space for now, which
    # becomes _MARK at the end, and the digits of the string's number.
    kept_from = np.append(0, closes)
    kept_to = np.append(opens + _MARK_BYTES, len(data))
    kept = gather(pa.py_buffer(data), kept_from, kept_to - kept_from)
    short = np.frombuffer(kept.buffers()[2], np.uint8)[: blob_offsets(kept)[-1]].copy()
    marks = blob_offsets(kept)[1:-1].astype(np.int64) - _MARK_BYTES
    numbers = np.arange(len(opens))
    short[marks] = ord(" ")
    for digit in range(_DIGITS):
        short[marks + 1 + digit] = ord("a") + (numbers >> 4 * digit & 15)
    if len(positions(short, _MARK)):
        return None
    short[marks] = _MARK
    return short


def _long_strings(data: Bytes, offsets: Ints) -> tuple[Ints, Ints]:
    """Return where long strings of texts that have no backslash begin and end. `offsets`: where the
    texts begin and end in `data`."""
    quotes = positions(data, ord('"'))
    counts = np.diff(np.searchsorted(quotes, offsets))
    is_odd = counts & 1 != 0
    if is_odd.any():  # not JSON
        quotes = quotes[~np.repeat(is_odd, counts)]
    opens, closes = quotes[::2] + 1, quotes[1::2]
    long = np.flatnonzero(closes - opens >= MIN_LONG_BYTES)
    opens, closes = opens[long], closes[long]
    following = data.take(closes + 1, mode="clip")
    is_value: Flags = (following == ord(",")) | (following == ord("}")) | (following == ord("]"))
    return opens[is_value], closes[is_value]


def put_back(values: pa.Array, strings: pa.Array) -> pa.Array:
    """Return an array of strings with the strings that `cut_long_strings` has cut out."""
    offsets = blob_offsets(values)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    marks = positions(data, _MARK)
    marks = marks[marks >= offsets[0]]
    if not len(marks):
        return values
    # The number of each string: a digit of its mark has four bits of it.
    numbers = np.zeros(len(marks), np.int64)
    for digit in range(_DIGITS):
        numbers |= (data[marks + 1 + digit].astype(np.int64) - ord("a")) << 4 * digit
    found = strings.slice(int(numbers[0]), len(numbers))
    if int(numbers[-1] - numbers[0]) != len(numbers) - 1 or np.any(np.diff(numbers) != 1):
        found = strings.take(from_numpy(numbers))
    if len(found) == len(values):
        return found
    has_mark = np.zeros(len(values), np.bool_)
    has_mark[np.searchsorted(offsets, marks, "right") - 1] = True
    return pc.replace_with_mask(values, from_numpy(has_mark), found)
