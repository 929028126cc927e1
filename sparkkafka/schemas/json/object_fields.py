"""Finds fields of many JSON objects at once, and rewrites maps so that pyarrow's reader reads them.

The bytes that give a text its structure (quotes, brackets, colons, commas) are found first. Texts
in which these do not match are left out, so damage in one text harms no other.

The reader reads no maps, but lists: `{"a": 1, "b": 2}` becomes `[      1,      2]`, of the same
length. Whoever reads the list compares its length with the number of names. Then the text was a
valid map: each item had one name, right after its comma or bracket, and a colon.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_STEPS: Final = np.array([0, 0, 1, -1, 0, 0], np.int8)  # by kind: how the level changes


class Spans(NamedTuple):
    """The text that each span is in, ascending, and where it begins and ends."""

    texts: Ints
    starts: Ints
    ends: Ints


class ObjectFields(NamedTuple):
    """What `object_fields` finds.

    values: the values of each field that is no map. names: those of the items of each map. has_map:
    which texts have an object for each map. data: the texts with lists instead of these objects.
    is_unclear: the texts for which all this means nothing."""

    values: list[Spans]
    names: list[Spans]
    has_map: list[Flags]
    data: Bytes
    is_unclear: Flags


def object_fields(
    data: Bytes, offsets: Ints, fields: Sequence[bytes], maps: Sequence[bytes]
) -> ObjectFields:
    """Find outermost fields of objects, one after the other in `data`. `maps`: names of fields that
    are maps. A text may have a field twice."""
    count = len(offsets) - 1
    has_map = [np.zeros(count, np.bool_) for _ in maps]
    rewritten, is_unclear = data.copy(), np.zeros(count, np.bool_)
    values: list[list[Spans]] = [[] for _ in fields]
    names: list[list[Spans]] = [[] for _ in maps]
    low = 0
    while low < count:
        begin = int(offsets[low])
        high = max(low + 1, int(np.searchsorted(offsets, begin + _PIECE_BYTES, "right")) - 1)
        end = int(offsets[high])
        piece = _Piece(data[begin:end], offsets[low : high + 1] - begin)
        found = [piece.values(name) for name in fields]
        if maps:
            flags = [has[low:high] for has in has_map]
            found += piece.rewrite_maps(maps, rewritten[begin:end], flags)
        for spans, parts in zip(found, values + names, strict=True):
            parts.append(Spans(spans.texts + low, spans.starts + begin, spans.ends + begin))
        is_unclear[low:high] = piece.is_unclear
        low = high
    joined = [
        Spans(*map(np.concatenate, zip(*parts, strict=True))) if parts else _NO_SPANS
        for parts in values + names
    ]
    return ObjectFields(
        joined[: len(fields)], joined[len(fields) :], has_map, rewritten, is_unclear
    )


_NO_SPANS: Final = Spans(*(np.zeros(0, np.int64) for _ in range(3)))


class _Piece:
    """The structure of some texts: where its bytes are, their kinds, the level after each, and
    their texts. Brackets, colons and commas in strings are left out."""

    def __init__(self, data: Bytes, offsets: Ints) -> None:
        self._data = data
        self.is_unclear = np.zeros(len(offsets) - 1, np.bool_)
        kinds = _KINDS.take(data)
        self._backslashes = np.flatnonzero(data == ord("\\"))
        if len(self._backslashes):
            kinds[_escaped(self._backslashes, len(data))] = 0
        while True:
            at = np.flatnonzero(kinds != 0)
            kind = kinds[at]
            is_quote = kind == _QUOTE
            quotes = offsets_of(is_quote, np.int32)
            first = np.searchsorted(at, offsets)
            is_damaged = np.diff(quotes[first]) & 1 != 0
            if not is_damaged.any():
                is_outside = is_quote | (quotes[1:] & 1 == 0)
                if not is_outside.all():
                    at, kind = at[is_outside], kind[is_outside]
                    first = np.searchsorted(at, offsets)
                levels = offsets_of(_STEPS.take(kind), np.int32)
                is_damaged = np.diff(levels[first]) != 0
                if not is_damaged.any():
                    break
            self.is_unclear |= is_damaged
            kinds[np.repeat(is_damaged, np.diff(offsets))] = 0
        self._at, self._kind, self._level = at, kind, levels[1:]
        self._texts = np.repeat(np.arange(len(offsets) - 1), np.diff(first))
        colons = np.flatnonzero(kind == _COLON)
        colon_levels = self._level[colons]
        self._colons, self._item_colons = colons[colon_levels == 1], colons[colon_levels == 2]
        self._name_lengths = at[self._colons - 1] - at[self._colons - 2] - 1
        self._refuse_escapes(self._colons)

    def _refuse_escapes(self, colons: Ints) -> None:
        """Make texts unclear in which a name before these colons has a backslash."""
        if len(self._backslashes):
            before = np.searchsorted(self._backslashes, self._at[colons - 2])
            has_backslash = np.searchsorted(self._backslashes, self._at[colons - 1]) > before
            self.is_unclear[self._texts[colons[has_backslash]]] = True

    def _colons_of(self, name: bytes) -> Ints:
        """Return the colons after a name."""
        found: Ints = self._colons[self._name_lengths == len(name)]
        for index, byte in enumerate(name):
            found = found[self._data.take(self._at[found - 2] + 1 + index, mode="clip") == byte]
        return found

    def values(self, name: bytes) -> Spans:
        """Return the values of an outermost field."""
        colons = self._colons_of(name)
        is_end = (self._kind == _COMMA) & (self._level == 1)
        ends = np.flatnonzero(is_end | (self._kind == _CLOSE) & (self._level == 0))
        ends = ends[np.searchsorted(ends, colons)]
        return Spans(self._texts[colons], self._at[colons] + 1, self._at[ends])

    def rewrite_maps(
        self, maps: Sequence[bytes], data: Bytes, has_map: Sequence[Flags]
    ) -> list[Spans]:
        """Rewrite the maps of outermost fields in `data`, a copy of the texts; return the names of
        the items of each, without quotes."""
        at, kind = self._at, self._kind
        ends = np.flatnonzero((kind == _CLOSE) & (self._level == 1))
        changes = np.zeros(len(at), np.int16)  # at brackets of maps: their numbers, from 1
        for number, (name, flags) in enumerate(zip(maps, has_map, strict=True), 1):
            opens = self._colons_of(name) + 1
            opens = opens[self._data[at[opens]] == ord("{")]
            closes = ends[np.searchsorted(ends, opens)]
            texts = self._texts[opens]
            self.is_unclear[texts[self._data[at[closes]] != ord("}")]] = True
            flags[texts] = True
            data[at[opens]], data[at[closes]] = ord("["), ord("]")
            changes[opens], changes[closes] = number, -number

        numbers = np.cumsum(changes, dtype=np.int16)[self._item_colons]
        colons, numbers = self._item_colons[numbers != 0], numbers[numbers != 0]
        texts, before = self._texts[colons], kind[colons - 3]
        is_name = (kind[colons - 1] == _QUOTE) & (kind[colons - 2] == _QUOTE)
        is_name &= (before == _OPEN) | (before == _COMMA)
        starts, ends = at[colons - 2], at[colons - 1] + 1
        is_name &= self._is_blank(at[colons - 3] + 1, starts) & self._is_blank(ends, at[colons])
        self.is_unclear[texts[~is_name]] = True
        self._refuse_escapes(colons)

        lengths = np.where(is_name, ends - starts, 0)
        before_each = offsets_of(lengths)
        data[at[colons]] = ord(" ")
        data[np.repeat(starts - before_each[:-1], lengths) + np.arange(before_each[-1])] = ord(" ")
        names = (texts, starts + 1, ends - 1)
        if len(maps) == 1:
            return [Spans(*names)]
        return [
            Spans(*(column[numbers == number] for column in names))
            for number in range(1, len(maps) + 1)
        ]

    def _is_blank(self, starts: Ints, ends: Ints) -> Flags:
        """Return for ascending spans whether each has only white space. A control character is none
        for the reader, which refuses it."""
        lengths = ends - starts
        is_blank: Flags = lengths == 0
        one = lengths == 1
        is_blank[one] = self._data[starts[one]] <= ord(" ")
        long = np.flatnonzero(lengths > 1)
        if len(long):
            bounds = np.stack((starts[long], ends[long]), 1).ravel()
            is_blank[long] = np.maximum.reduceat(self._data, bounds)[::2] <= ord(" ")
        return is_blank


def _escaped(backslashes: Ints, length: int) -> Ints:
    """Return the positions of the bytes that are escaped by these backslashes."""
    indexes = np.arange(len(backslashes))
    begins_run = np.diff(backslashes, prepend=-2) != 1
    in_run = indexes - np.maximum.accumulate(np.where(begins_run, indexes, 0))
    escaped: Ints = backslashes[in_run & 1 == 0] + 1
    return escaped if not len(escaped) or escaped[-1] < length else escaped[:-1]
