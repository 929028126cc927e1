"""Reads JSON objects that have the same names in the same order, as one producer writes them.

The bytes between the values are compared with those of one text, the model. Then the values of each
field are copied to a column, which Arrow converts as its JSON reader does: this takes about half of
the reader's time.

Nothing is assumed: each byte of a text that is read here equals the model's, or belongs to a value
that is checked. All other texts are left to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, words_at
from sparkkafka.schemas import arrays
from sparkkafka.schemas.json import syntax
from sparkkafka.schemas.json.plan import JsonNode
from sparkkafka.schemas.json.schema import JsonKind

_TEXTS: Final = frozenset(
    {
        *(JsonKind.TEXT, JsonKind.LENIENT, JsonKind.BINARY),
        *(JsonKind.DATE, JsonKind.TIMESTAMP, JsonKind.LOCAL_TIMESTAMP),
    }
)
_WHOLE_NUMBERS: Final = frozenset({JsonKind.INTEGER, JsonKind.EPOCH_MILLIS, JsonKind.EPOCH_DAYS})
_READABLE: Final = _TEXTS | _WHOLE_NUMBERS | {JsonKind.FLOAT, JsonKind.BOOL}

_NAME: Final = re.compile(rb'[{,] *"([^"]*)" *: *')
_VALUE: Final = re.compile(rb'"[^"]*"|[^"{}\[\],: ]+')
_END: Final = re.compile(rb" *\}")

Convert: TypeAlias = Callable[[JsonNode, pa.Array], pa.Array]
"""Converts a binary array with strings, or with the texts of numbers, to the type of a node. Raises
ValueError."""
Fields: TypeAlias = dict[str, Any]
"""An object's fields: by name the index of the value, the Fields of an object, or None for null."""


def read_uniform(
    root: JsonNode, data: Bytes, offsets: Ints, convert: Convert
) -> tuple[Ints, pa.Array] | None:
    """Return the rows whose texts differ from the middle one only in their values, and the values
    of these rows; None if they are less than three quarters, so that a reader of all is faster.

    Text i has the bytes of `data` from offsets[i] to offsets[i + 1]; all texts are UTF-8."""
    middle = len(offsets) // 2 - 1
    try:
        model = _Model(root, data[offsets[middle] : offsets[middle + 1]].tobytes())
        fits, spans = model.find_values(data, offsets)
        rows = np.flatnonzero(fits)
        if not _are_most(fits):
            return None
        if len(rows) < len(fits):
            spans = [(starts[rows], lengths[rows]) for starts, lengths in spans]
        return rows, model.struct_of(data, spans, convert)
    except ValueError:  # ArrowInvalid is one
        return None


def _are_most(fits: Flags) -> bool:
    """Return whether at least three quarters of the texts fit."""
    return bool(4 * np.count_nonzero(fits) >= 3 * len(fits))


def _quotes_and_special_bytes(data: Bytes) -> tuple[Ints, Ints]:
    """Return the positions of quotes, and of bytes that strings cannot have as they are:
    backslashes begin escapes, and control characters are invalid."""
    quotes, special = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for begin in range(0, len(data), arrays.PIECE_BYTES):
        piece = data[begin : begin + arrays.PIECE_BYTES]
        quotes.append(np.flatnonzero(piece == ord('"')) + begin)
        is_backslash = piece == ord("\\")
        if piece.min() < ord(" ") or is_backslash.any():
            special.append(np.flatnonzero(is_backslash | (piece < ord(" "))) + begin)
    quotes.append(np.array([len(data) + 1]))  # none follows
    return np.concatenate(quotes), np.concatenate(special)


_Spans: TypeAlias = tuple[Ints, Ints]
"""Where the values of a field begin in the data, and their lengths: -1 for null."""


class _Value(NamedTuple):
    """A value of the model. `before`: the bytes between the value before it, or the begin of the
    text, and this one."""

    before: bytes
    node: JsonNode


class _Model:
    """The names and white space of a JSON object, with which other texts are compared.

    Raises ValueError for an object that has something else than readable fields of `root`."""

    def __init__(self, root: JsonNode, text: bytes) -> None:
        self._root = root
        self._text = text
        self._values: list[_Value] = []
        self._last_end = 0  # of the last value so far
        self._fields, end = self._find_fields(root, 0)
        self._after = text[self._last_end :]
        if end != len(text) or not self._values or b"\\" in text:
            raise ValueError
        syntax.parse(text)

    def _find_fields(self, node: JsonNode, at: int) -> tuple[Fields, int]:
        """Find the values of the object at a position of the text. Return its fields and end."""
        text = self._text
        fields: Fields = {}
        while match := _NAME.match(text, at):
            name, at = match[1].decode(), match.end()
            child = node.children.get(name)
            value = _VALUE.match(text, at)
            if child is None or name in fields:
                raise ValueError
            if value is None and child.kind == JsonKind.STRUCT:
                fields[name], at = self._find_fields(child, at)
                continue
            if value is None or (child.kind not in _READABLE and value[0] != b"null"):
                raise ValueError
            fields[name] = None
            if child.kind in _READABLE:
                fields[name] = len(self._values)
                self._values.append(_Value(text[self._last_end : at], child))
                self._last_end = value.end()
            at = value.end()
        end = _END.match(text, at)
        if end is None:
            raise ValueError
        return fields, end.end()

    def find_values(self, data: Bytes, offsets: Ints) -> tuple[Flags, list[_Spans]]:
        """Return which texts have the model's bytes between values, and the values of each field.
        Those of other texts are anywhere, and some are left out if the texts are many."""
        before = self._values[0].before
        at, ends = offsets[:-1], offsets[1:]
        fits = _begins_with(data, at, before)
        spans: list[_Spans] = []
        if not _are_most(fits):
            return fits, spans
        quotes, special = _quotes_and_special_bytes(data)
        fits[np.searchsorted(ends, special, "right")] = False
        # The index of each text's next quote, if all texts have the same number of quotes.
        quote = (len(quotes) - 1) // len(at) * np.arange(len(at))
        if (quotes.take(quote, mode="clip") != at + before.index(b'"')).any():  # they have not
            quote = np.searchsorted(quotes, at)
        at, quote = at + len(before), quote + before.count(b'"')
        following = [*(value.before for value in self._values[1:]), self._after]
        for (_, node), after in zip(self._values, following, strict=True):
            start, next_quote = at, quotes.take(quote, mode="clip")
            if node.kind in _TEXTS:
                is_string = next_quote == at
                start, end = at + 1, quotes.take(quote + 1, mode="clip")
                lengths, at, quote = end - start, end + 1, quote + 2
                if not is_string.all():
                    fits &= is_string | _begins_with(data, start - 1, b"null")
                    lengths = np.where(is_string, lengths, -1)
                    # `start` is behind the quote of a string, so one byte into null.
                    at = np.where(is_string, at, start + len("ull"))
                    quote -= 2 * ~is_string  # null has no quotes
            else:
                at = next_quote - after.index(b'"') if b'"' in after else ends - len(after)
                lengths = at - start
                fits &= _are_values(data, start, lengths, node.kind)
                is_null = data.take(start, mode="clip") == ord("n")
                if is_null.any():
                    lengths = np.where(is_null, -1, lengths)
            spans.append((start, lengths))
            fits &= _begins_with(data, at, after)
            if not _are_most(fits):
                break
            at, quote = at + len(after), quote + after.count(b'"')
        fits &= at == ends
        return fits, spans

    def struct_of(self, data: Bytes, spans: Sequence[_Spans], convert: Convert) -> pa.Array:
        """Return the values of texts, which are at `spans`. Raises ValueError if `convert` does."""
        buffer = pa.py_buffer(data)
        columns = []
        for (_, node), (starts, lengths) in zip(self._values, spans, strict=True):
            column = gather(buffer, starts, lengths)
            if node.kind == JsonKind.FLOAT:
                _check_exponents(column)
            columns.append(convert(node, column))
        return _struct(self._root, self._fields, columns, len(columns[0]))


def _begins_with(data: Bytes, at: Ints, expected: bytes) -> Flags:
    """Return at which of the positions in the data these bytes begin."""
    size = len(expected)
    flags: Flags = np.ones(len(at), np.bool_)
    if size == 1:
        flags &= data.take(at, mode="clip") == expected[0]
        return flags
    mask = np.uint64((1 << 8 * min(size, 8)) - 1)
    for begin in [*range(0, size - 8, 8), max(size - 8, 0)]:
        word = int.from_bytes(expected[begin : begin + 8], "little")
        flags &= (words_at(data, at + begin) & mask) == np.uint64(word)
    return flags


def _struct(node: JsonNode, fields: Fields, columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return the structs of a node, whose `fields` have their values in `columns`."""
    children = []
    for name, child in node.children.items():
        part = fields.get(name)
        if isinstance(part, dict):
            children.append(_struct(child, part, columns, rows))
        else:
            children.append(pa.nulls(rows, child.type) if part is None else columns[part])
    return pa.Array.from_buffers(node.type, rows, [None], children=children)


# --- values ---------------------------------------------------------------------------------------


def _are_values(data: Bytes, starts: Ints, lengths: Ints, kind: JsonKind) -> Flags:
    """Return at which positions a boolean or number, as the kind says, or null can be. That of a
    number is for Arrow to say, except for what it accepts and JSON does not."""
    fits: Flags
    first = data.take(starts, mode="clip")
    if kind == JsonKind.BOOL:
        fits = (lengths == 4) & _begins_with(data, starts, b"true")
        fits |= (lengths == 5) & _begins_with(data, starts, b"false")
    else:
        last = data.take(starts + lengths - 1, mode="clip")
        is_negative = first == ord("-")
        if is_negative.any():
            first = data.take(starts + is_negative, mode="clip")
        fits = _are_digits(first) & _are_digits(last) & (lengths > is_negative)
        is_zero = first == ord("0")
        if is_zero.any():  # 007 is no number, and 0x7 none of JSON
            is_longer = lengths - is_negative > 1
            if kind == JsonKind.FLOAT:
                is_longer &= _are_digits(data.take(starts + is_negative + 1, mode="clip"))
            fits &= ~(is_zero & is_longer)
    if (first == ord("n")).any():
        fits |= (lengths == 4) & _begins_with(data, starts, b"null")
    return fits


def _are_digits(characters: Bytes) -> Flags:
    """Return which characters are digits."""
    flags: Flags = characters - np.uint8(ord("0")) <= 9
    return flags


def _check_exponents(numbers: pa.Array) -> None:
    """Raise ValueError for a number with a point before its exponent, as 1.e5: it is no JSON."""
    data, _ = arrays.content_of(numbers)
    is_exponent = data | 0x20 == ord("e")
    if is_exponent.any() and (data[np.flatnonzero(is_exponent) - 1] == ord(".")).any():
        raise ValueError
