"""Finds fields of many JSON objects in one pass.

The structural bytes of the texts (quotes, brackets, colons, commas) are found first. Texts in which
they do not match are left out, so damage in one text affects no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.schemas.arrays import first_words, offsets_of

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


class ValueSpans(NamedTuple):
    """For each span the index of its text, ascending, and its start and end in the data."""

    texts: Ints
    starts: Ints
    ends: Ints


def object_fields(
    data: Bytes, offsets: Ints, names: Sequence[bytes]
) -> tuple[list[ValueSpans], Flags]:
    """Find the outermost fields of these names in JSON objects, which are concatenated in `data`,
    and the texts that could not be searched. A text may have a field twice."""
    is_unclear = np.zeros(len(offsets) - 1, np.bool_)
    values: list[list[ValueSpans]] = [[_NO_SPANS] for _ in names]
    for low, high, structure in _structures(data, offsets):
        for name, parts in zip(names, values, strict=True):
            texts, starts, ends = structure.values(name)
            parts.append(ValueSpans(texts + low, starts + offsets[low], ends + offsets[low]))
        is_unclear[low:high] = structure.is_unclear
    spans = [ValueSpans(*map(np.concatenate, zip(*parts, strict=True))) for parts in values]
    return spans, is_unclear


def _structures(data: Bytes, offsets: Ints) -> Iterator[tuple[int, int, _Structure]]:
    """Yield the structure of about _PIECE_BYTES of texts each time, with the indexes of its first
    text and of that after its last."""
    low, count = 0, len(offsets) - 1
    while low < count:
        begin = int(offsets[low])
        high = max(low + 1, int(np.searchsorted(offsets, begin + _PIECE_BYTES, "right")) - 1)
        yield low, high, _Structure(data[begin : offsets[high]], offsets[low : high + 1] - begin)
        low = high


_NO_SPANS: Final = ValueSpans(*(np.zeros(0, np.int64) for _ in range(3)))


class _Names:
    """The names before colons. `at`: where the bytes of the structure are; `colons`: indexes in
    it."""

    def __init__(self, data: Bytes, at: Ints, colons: Ints) -> None:
        self._data, self._colons = data, colons
        # The two bytes of structure before a colon are the quotes of its name.
        self._starts = at.take(colons - 2) + 1
        self._lengths = at.take(colons - 1) - self._starts
        self._words = first_words(data, self._starts, self._lengths)

    def find(self, name: bytes) -> Ints:
        """Return the colons that follow this name, as indexes into the bytes of structure."""
        first_word = np.uint64(int.from_bytes(name[:8], "little"))
        indexes = np.flatnonzero((self._words == first_word) & (self._lengths == len(name)))
        for index in range(8, len(name)):
            bytes_there = self._data.take(self._starts.take(indexes) + index, mode="clip")
            indexes = indexes.take(np.flatnonzero(bytes_there == name[index]))
        return self._colons.take(indexes)


class _Structure:
    """The structure of some texts: where its bytes are (`_at`), and the kind, the level after it,
    and the text of each. Brackets, colons and commas in strings are left out."""

    def __init__(self, data: Bytes, offsets: Ints) -> None:
        """Find the bytes of structure outside strings. A text whose quotes or brackets do not match
        becomes unclear, and the others are read again without its bytes."""
        self._data = data
        self.is_unclear = np.zeros(len(offsets) - 1, np.bool_)
        lower = data | 0x20  # makes [ and {, ] and } the same
        is_structure = (lower == ord("{")) | (lower == ord("}"))
        for byte in b'":,':
            is_structure |= data == byte
        backslashes = np.flatnonzero(data == ord("\\"))
        if len(backslashes):
            is_structure[escaped_bytes(backslashes, len(data))] = False
        while True:
            at = np.flatnonzero(is_structure)
            kind = _KINDS.take(data.take(at))
            is_quote = kind == _QUOTE
            # The number of quotes before each of these bytes. Only its lowest bit matters: after an
            # odd number of quotes, a byte is in a string.
            quotes = offsets_of(is_quote, np.uint8)
            first = np.searchsorted(at, offsets)  # the first of these bytes in each text
            is_damaged = np.diff(quotes[first]) & 1 != 0
            if not is_damaged.any():
                is_outside = is_quote | (quotes[1:] & 1 == 0)
                if not is_outside.all():
                    kept = np.flatnonzero(is_outside)
                    at, kind = at.take(kept), kind.take(kept)
                    first = np.searchsorted(at, offsets)
                is_open, is_close = kind == _OPEN, kind == _CLOSE
                levels = offsets_of(is_open.view(np.int8) - is_close.view(np.int8), np.int32)
                is_damaged = np.diff(levels[first]) != 0
                if not is_damaged.any():
                    break
            self.is_unclear |= is_damaged
            is_structure[np.repeat(is_damaged, np.diff(offsets))] = False
        self._at, self._kind, self._level = at, kind, levels[1:]
        self._texts = np.repeat(np.arange(len(offsets) - 1), np.diff(first))
        colons = np.flatnonzero(kind == _COLON)
        self._colons = colons.take(np.flatnonzero(self._level[colons] == 1))
        self._names = _Names(data, at, self._colons)
        if len(backslashes):  # in names, which are in the two quotes before each colon
            before = np.searchsorted(backslashes, at[self._colons - 2])
            has_backslash = np.searchsorted(backslashes, at[self._colons - 1]) > before
            self.is_unclear[self._texts[self._colons[has_backslash]]] = True

    def values(self, name: bytes) -> ValueSpans:
        """Return where the values of an outermost field with this name lie: behind its colon, up to
        the next comma or bracket."""
        colons = self._names.find(name)
        return ValueSpans(
            self._texts[colons], self._at[colons] + 1, self._at[self._ends_of(colons)]
        )

    def _ends_of(self, colons: Ints) -> Ints:
        """Return for the colon of each outermost field the comma or bracket that ends its value, as
        indexes into the bytes of structure."""
        is_end = (self._kind == _COMMA) & (self._level == 1)
        ends = np.flatnonzero(is_end | (self._kind == _CLOSE) & (self._level == 0))
        return ends[np.searchsorted(ends, colons)]


def escaped_bytes(backslashes: Ints, length: int) -> Ints:
    """Return the positions of the bytes that are escaped by the backslashes at these positions in
    `length` bytes. In a run of backslashes the first escapes the second, the third the fourth, …,
    and a last one without a partner the byte after the run."""
    indexes = np.arange(len(backslashes))
    begins_run = np.diff(backslashes, prepend=-2) != 1
    in_run = indexes - np.maximum.accumulate(np.where(begins_run, indexes, 0))
    escaped: Ints = backslashes[in_run & 1 == 0] + 1
    return escaped if not len(escaped) or escaped[-1] < length else escaped[:-1]
