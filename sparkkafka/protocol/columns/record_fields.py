"""The fields of many records at once: where each lies, and what the numbers are.

Each field is read for all records in one step (`varints.read`), which tells where the next field
begins. Rules are those of Kafka's `DefaultRecord`; stricter than Java, which takes any negative key
or value length for null: only -1 is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparkkafka.protocol.columns.damage import MIN_HEADER_BYTES
from sparkkafka.protocol.columns.field_places import Grid, Pieces
from sparkkafka.protocol.records.varints import VARLONG_BITS, Bytes, Ints, read


class DamageError(Exception):
    """Some record is damaged. The caller finds out which one."""


class Headers(NamedTuple):
    """Of each record: how many headers, where they begin, and where the record ends."""

    counts: Ints
    at: Ints
    ends: Ints


class Fields(NamedTuple):
    """Of consecutive records."""

    timestamp_deltas: Ints
    offset_deltas: Ints
    keys: Pieces | Grid
    values: Pieces | Grid
    headers: Headers | None
    """None if no record has any."""


def read_fields(data: Bytes, bodies: Ints, ends: Ints) -> Fields:
    """Records from `bodies` (the attributes byte) to `ends`, at least one.

    What comes back lies inside the records; headers are the caller's to look at. Raises DamageError
    and BadVarintError.
    """
    # The first byte of a body, its attributes, is unused by Kafka and ignored by Java.
    timestamp_deltas, at = read(data, bodies + 1, VARLONG_BITS)
    offset_deltas, at = read(data, at)
    key_lengths, key_at = read(data, at)
    value_lengths, value_at = read(data, skip(key_at, key_lengths))
    header_counts, header_at = read(data, skip(value_at, value_lengths))
    headers: Headers | None = None
    if header_counts.any():
        headers = Headers(header_counts, header_at, ends)
        if ((header_counts < 0) | (header_at + header_counts * MIN_HEADER_BYTES > ends)).any():
            # Also keeps a huge count from making a huge array.
            raise DamageError
        if ((header_counts == 0) & (header_at != ends)).any():
            raise DamageError
    elif not np.array_equal(header_at, ends):
        raise DamageError
    return Fields(
        timestamp_deltas,
        offset_deltas,
        Pieces(key_at, key_lengths),
        Pieces(value_at, value_lengths),
        headers,
    )


def skip(at: Ints, lengths: Ints) -> Ints:
    """Positions behind a nullable field; -1 is null and takes no bytes. Raises DamageError."""
    smallest = int(lengths.min())
    if smallest < -1:
        raise DamageError
    return at + lengths if smallest >= 0 else at + np.maximum(lengths, 0)
