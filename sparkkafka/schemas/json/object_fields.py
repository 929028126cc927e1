"""Finds the outermost fields of many JSON objects at once.

The bytes that give a text its structure (quotes, brackets, colons, commas) are found first. A
quote opens or closes a string by their number before it in its text, and brackets count only
outside of strings. So each text is read by itself, and damage in one harms no other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.schemas.arrays import offsets_of

_PIECE_BYTES: Final = 1 << 18
"""Texts are searched in pieces of about this size, which stay in the processor's cache."""

_QUOTE, _OPEN, _CLOSE, _COLON, _COMMA = 1, 2, 3, 4, 5

_KINDS: Final = np.zeros(256, np.uint8)
"""The kind of each byte."""
for _kind, _bytes in (
    (_QUOTE, b'"'),
    (_OPEN, b"{["),
    (_CLOSE, b"}]"),
    (_COLON, b":"),
    (_COMMA, b","),
):
    _KINDS[list(_bytes)] = _kind


class ObjectFields(NamedTuple):
    """Fields of objects, in order: the index of each one's text, and where its name (without
    quotes) and its value begin and end."""

    texts: Ints
    name_starts: Ints
    name_ends: Ints
    value_starts: Ints
    value_ends: Ints

    def select(self, indexes: Ints | Flags) -> ObjectFields:
        """Return some of the fields."""
        return ObjectFields(*(column[indexes] for column in self))

    def named(self, name: bytes, data: Bytes) -> ObjectFields:
        """Return the fields of this name."""
        found = np.flatnonzero(self.name_ends - self.name_starts == len(name))
        for index, byte in enumerate(name):
            found = found[data[self.name_starts[found] + index] == byte]
        return self.select(found)


def outermost_fields(data: Bytes, starts: Ints, ends: Ints) -> tuple[ObjectFields, Flags]:
    """Return the outermost fields of the objects that lie in `data` from `starts` to `ends`, in
    order; and flags of the objects that must be read otherwise: one with an escape in a name, or
    with an escaped quote or backslash, of which the end of a string is not looked for.

    The fields of a text that is no valid JSON object mean nothing, but lie inside of the text.
    """
    pieces: list[ObjectFields] = []
    is_unclear = np.zeros(len(starts), np.bool_)
    low = 0
    while low < len(starts):
        high = max(low + 1, int(np.searchsorted(ends, starts[low] + _PIECE_BYTES, "right")))
        begin = int(starts[low])
        fields = _fields_of_piece(
            data[begin : int(ends[high - 1])],
            starts[low:high] - begin,
            ends[low:high] - begin,
            is_unclear[low:high],
        )
        pieces.append(ObjectFields(fields.texts + low, *(at + begin for at in fields[1:])))
        low = high
    if not pieces:
        return ObjectFields(*(np.zeros(0, np.int64) for _ in range(5))), is_unclear
    return ObjectFields(*map(np.concatenate, zip(*pieces, strict=True))), is_unclear


def _fields_of_piece(data: Bytes, starts: Ints, ends: Ints, is_unclear: Flags) -> ObjectFields:
    """As `outermost_fields`; sets the flags in `is_unclear`."""
    kinds = _KINDS.take(data)
    at = np.flatnonzero(kinds)
    kind = kinds[at]
    texts, first = _texts_of(at, starts)
    between = at >= ends[texts]  # bytes of texts that are not read
    if between.any():
        at, kind = at[~between], kind[~between]
        texts, first = _texts_of(at, starts)
    quotes = offsets_of(kind == _QUOTE)
    in_string = (quotes[1:] - quotes[first][texts]) & 1 != 0
    outside = np.flatnonzero(~in_string & (kind != _QUOTE))
    quote_at = at[kind == _QUOTE]
    quotes_before = quotes[outside]
    at, kind = at[outside], kind[outside]
    texts, first = _texts_of(at, starts)
    levels = offsets_of((kind == _OPEN).astype(np.int8) - (kind == _CLOSE).astype(np.int8))
    level = levels[1:] - levels[first][texts]

    colons = np.flatnonzero((kind == _COLON) & (level == 1) & (quotes_before >= 2))
    is_end = ((kind == _COMMA) & (level == 1)) | ((kind == _CLOSE) & (level == 0))
    end_at = np.append(at[is_end], len(data))
    texts, colon_at = texts[colons], at[colons]
    value_ends = end_at[np.searchsorted(end_at, colon_at)]
    name_starts = quote_at[quotes_before[colons] - 2] + 1
    name_ends = quote_at[quotes_before[colons] - 1]

    backslashes = np.flatnonzero(data == ord("\\"))
    if len(backslashes):
        following = data.take(backslashes + 1, mode="clip")
        unclear = backslashes[(following == ord('"')) | (following == ord("\\"))]
        is_unclear[np.searchsorted(starts, unclear, "right") - 1] = True
        in_name = np.searchsorted(backslashes, name_ends) > np.searchsorted(
            backslashes, name_starts
        )
        is_unclear[texts[in_name]] = True
    # In a text that is not valid, these may lie anywhere.
    name_starts = np.maximum(name_starts, starts[texts])
    return ObjectFields(
        texts,
        name_starts,
        np.maximum(name_ends, name_starts),
        colon_at + 1,
        np.minimum(value_ends, ends[texts]),
    )


def _texts_of(at: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """Return (the index of the text of each position, the index of each text's first position).
    The positions ascend; those before the next text's start belong to a text."""
    first = np.searchsorted(at, starts)
    counts = np.diff(first, append=len(at))
    return np.repeat(np.arange(len(starts)), counts), first
