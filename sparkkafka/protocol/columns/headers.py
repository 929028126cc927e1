"""Headers of many records: where the key and the value of each lies.

A header is known to begin only where the one before it ends. The j-th headers of all records are
read in one step while that pays; what is left of a record is followed header by header, but only
from begin to begin: lengths and positions of all are columns again. Rules are those of Kafka's
`DefaultRecord`.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from sparkkafka.protocol.columns.record_fields import DamageError, skip
from sparkkafka.protocol.records.varints import BadVarintError, Bytes, Ints, read

_FEW_ROWS = 16  # below, following the headers is faster than numpy steps
_MOST_STEPS = 32  # of all rows; few records have more headers
_COPIED_BYTES = 4 << 20


class HeaderPlaces(NamedTuple):
    """Of all headers, in the order of records and headers. A value's length -1 is null."""

    key_at: Ints
    key_lengths: Ints
    value_at: Ints
    value_lengths: Ints


def read_headers(data: Bytes, at: Ints, ends: Ints, counts: Ints) -> HeaderPlaces:
    """`counts` headers from `at` to `ends` of each record, all of them inside.

    The caller has checked `counts` against the bytes that are there. Raises DamageError and
    BadVarintError.
    """
    rows = np.flatnonzero(counts)
    at, ends, left = at[rows], ends[rows], counts[rows]
    slot = np.cumsum(left) - left
    columns = HeaderPlaces(*(np.empty(int(left.sum()), np.int64) for _ in range(4)))
    for _ in range(_MOST_STEPS):
        if len(left) < _FEW_ROWS:
            break
        found, at = _read_at(data, at)
        for column, values in zip(columns, found, strict=True):
            column[slot] = values
        slot += 1
        left -= 1
        if not left.all():
            if ((left == 0) & (at != ends)).any():
                raise DamageError
            going_on = left > 0
            at, ends, left, slot = at[going_on], ends[going_on], left[going_on], slot[going_on]
    for begin, end, count, first in zip(
        at.tolist(), ends.tolist(), left.tolist(), slot.tolist(), strict=True
    ):
        found, after = follow_headers(data, begin, end, count)
        if after != end:
            raise DamageError
        for column, values in zip(columns, found, strict=True):
            column[first : first + count] = values
    return columns


def follow_headers(data: Bytes, begin: int, end: int, count: int) -> tuple[HeaderPlaces, int]:
    """`count` headers of one record from `begin` on, and the place behind them, which is not beyond
    `end`. Raises DamageError and BadVarintError."""
    starts = _follow(data, begin, end, count)
    found, after = _read_at(data, starts)
    if int(after[-1]) > end or not np.array_equal(after[:-1], starts[1:]):
        raise DamageError
    return found, int(after[-1])


def _read_at(data: Bytes, at: Ints) -> tuple[HeaderPlaces, Ints]:
    """The headers at these places, and the places behind them."""
    key_lengths, key_at = read(data, at)
    if int(key_lengths.min()) < 0:
        raise DamageError
    value_lengths, value_at = read(data, key_at + key_lengths)
    return HeaderPlaces(key_at, key_lengths, value_at, value_lengths), skip(value_at, value_lengths)


def _follow(data: Bytes, begin: int, end: int, count: int) -> Ints:
    """Where each of `count` headers begins, if all are sound: the caller sees whether they are.
    Raises DamageError if they leave [begin, end)."""
    # Indexing bytes is faster than indexing a view, but takes a copy.
    raw: memoryview | bytes = data[begin:end].data
    if end - begin <= _COPIED_BYTES:
        raw = bytes(raw)
    starts = array("q", (0,)) * count
    at = 0
    try:
        for index in range(count):
            starts[index] = at
            byte = raw[at]
            at = at + (byte >> 1) + 1 if byte < 0x80 else _skip_long(raw, at)
            byte = raw[at]
            # Null is -1, which is 1 here, and so takes no more bytes either.
            at = at + (byte >> 1) + 1 if byte < 0x80 else _skip_long(raw, at)
    except IndexError:
        raise DamageError from None
    return np.frombuffer(starts, np.int64) + begin


def _skip_long(raw: memoryview | bytes, at: int) -> int:
    """Behind a field whose length takes more than a byte."""
    value = shift = 0
    while (byte := raw[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 28:
            raise BadVarintError
    return at + 1 + ((value | byte << shift) >> 1)
