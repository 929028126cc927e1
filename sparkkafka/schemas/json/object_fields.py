"""Finds fields of many JSON objects in one pass.

The structural bytes of the texts (quotes, brackets, colons, commas) are found first. Texts in which
they do not match are left out, so damage in one text affects no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.schemas.arrays import content_of, first_words, offsets_of, positions, repeated_keys

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


FieldTree: TypeAlias = Mapping[bytes, Any]
"""The names of a struct's fields, and a FieldTree for each; an empty one for a field without
fields."""


class OtherFields(NamedTuple):
    """The result of `other_fields`. Each field has the index of its text, ascending; the start and
    end of its name with the quotes; the end of its value; and whether it is one of `structs`.
    is_unclear: the texts that could not be searched."""

    texts: Ints
    starts: Ints
    name_ends: Ints
    ends: Ints
    is_struct: Flags
    is_unclear: Flags


def other_fields(
    data: Bytes,
    offsets: Ints,
    known: Sequence[bytes],
    structs: Mapping[bytes, FieldTree],
    misfits: Mapping[bytes, Flags],
) -> OtherFields:
    """Find the outermost fields of JSON objects that are not among the `known` names. The objects
    are concatenated in `data`.

    A field of `structs` is known too if its value has only the fields that are listed for it.
    `misfits` has a flag for each text, by name: a field of this name is not known in that text,
    since its value does not fit the column."""
    others = []
    for low, high, structure in _structures(data, offsets):
        flags = {name: is_misfit[low:high] for name, is_misfit in misfits.items()}
        texts, *columns, is_struct, is_unclear = structure.others(known, structs, flags)
        columns = [column + offsets[low] for column in columns]
        others.append((texts + low, *columns, is_struct, is_unclear))
    return OtherFields(*map(np.concatenate, zip(*others, strict=True)))


def compact(texts: pa.Array, *, keep_escapes: bool) -> tuple[pa.Array, Flags]:
    """Return JSON values, or fields of objects, without white space outside of strings; and which
    of them must be parsed instead: those with an escape, or with a name twice in an object. With
    `keep_escapes`, only the escapes that `to_json` never writes so: \\u and \\/.

    texts: binary, without nulls; brackets and quotes match in each."""
    data, offsets = content_of(texts)
    escaped = escaped_bytes(positions(data, ord("\\")), len(data))
    rewritten = escaped
    if keep_escapes:
        rewritten = escaped[(data[escaped] == ord("u")) | (data[escaped] == ord("/"))]
    must_parse: Flags = np.diff(np.searchsorted(rewritten, offsets)) != 0
    if must_parse.any():  # their texts become blanks, which are dropped below
        data = np.where(np.repeat(must_parse, np.diff(offsets)), np.uint8(ord(" ")), data)
    is_quote = data == ord('"')
    is_quote[escaped] = False
    in_string = np.cumsum(is_quote, dtype=np.uint8) & 1  # after an odd number of quotes
    is_kept = (data > ord(" ")) | in_string.view(np.bool_)
    offsets -= np.searchsorted(np.flatnonzero(~is_kept), offsets)  # the bytes dropped before each
    data, in_string, is_quote = data[is_kept], in_string[is_kept], is_quote[is_kept]
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    compacted = pa.Array.from_buffers(pa.binary(), len(texts), buffers)

    lower = data | 0x20  # makes [ and {, ] and } the same
    is_structure = (lower == ord("{")) | (lower == ord("}")) | (data == ord(":"))
    at = np.flatnonzero(is_structure & (in_string == 0))
    is_open = lower[at] == ord("{")
    levels = np.cumsum(is_open.view(np.int8) - (lower[at] == ord("}")), dtype=np.int16)
    is_name = (data[at] == ord(":")) & (data[at - 1] == ord('"')) & (levels > 0)
    if is_name.any():
        quotes = np.flatnonzero(is_quote)
        ends = np.searchsorted(quotes, at[is_name])
        starts = quotes[ends - 2]
        keys = gather(buffers[2], starts, quotes[ends - 1] - starts)
        # Sorted by level, the names of an object follow its bracket: the number of brackets so far
        # is that of the object.
        order = np.argsort(levels, kind="stable")
        counts = np.bincount(np.cumsum(is_open[order])[is_name[order]])
        by_object = np.argsort(levels[is_name], kind="stable")
        repeated = by_object[repeated_keys(keys.take(from_numpy(by_object)), counts)]
        must_parse[np.searchsorted(offsets, starts[repeated], "right") - 1] = True
    return compacted, must_parse


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

    def others(
        self,
        known: Sequence[bytes],
        structs: Mapping[bytes, FieldTree],
        misfits: Mapping[bytes, Flags],
    ) -> OtherFields:
        """Return the outermost fields of all texts that are not `known`: see `other_fields`."""
        at = self._at
        is_known, is_struct = np.zeros((2, len(at)), np.bool_)
        for name in known:
            is_known[self._names.find(name)] = True
        for name, fields in structs.items():
            colons = self._names.find(name)
            left = self._kind == _COLON
            self._clear_known(left, self._colons, colons, fields, 2)
            counts = offsets_of(left, np.int32)
            is_known[colons] = counts[colons + 1] == counts[self._ends_of(colons)]
            is_struct[colons] = True
        for name, is_misfit in misfits.items():
            colons = self._names.find(name)
            is_known[colons], is_struct[colons] = ~is_misfit[self._texts[colons]], False
        colons = self._colons[~is_known[self._colons]]
        return OtherFields(
            self._texts[colons],
            at[colons - 2],
            at[colons - 1] + 1,
            at[self._ends_of(colons)],
            is_struct[colons],
            self.is_unclear,
        )

    def _clear_known(
        self, left: Flags, outer_colons: Ints, structs: Ints, fields: FieldTree, level: int
    ) -> None:
        """Clear the flags in `left` of the colons of these fields at a level, in objects that
        follow the colons `structs`, which are some of all `outer_colons` one level above."""
        colons = np.flatnonzero((self._kind == _COLON) & (self._level == level))
        # The last colon one level above that is before each.
        outer = outer_colons.take(np.searchsorted(outer_colons, colons) - 1, mode="clip")
        own = colons[np.isin(outer, structs)]
        names = _Names(self._data, self._at, own)
        for name, inner in fields.items():
            found = names.find(name)
            left[found] = False
            if inner and len(found):
                self._clear_known(left, colons, found, inner, level + 1)


def escaped_bytes(backslashes: Ints, length: int) -> Ints:
    """Return the positions of the bytes that are escaped by the backslashes at these positions in
    `length` bytes. In a run of backslashes the first escapes the second, the third the fourth, …,
    and a last one without a partner the byte after the run."""
    indexes = np.arange(len(backslashes))
    begins_run = np.diff(backslashes, prepend=-2) != 1
    in_run = indexes - np.maximum.accumulate(np.where(begins_run, indexes, 0))
    escaped: Ints = backslashes[in_run & 1 == 0] + 1
    return escaped if not len(escaped) or escaped[-1] < length else escaped[:-1]
