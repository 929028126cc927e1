"""Reads JSON objects that have the same names in the same order, as one producer writes them.

The bytes between the values are compared with those of one text, the model. Then the values of each
field are copied to a column, which Arrow converts as its JSON reader does: this takes about half of
the reader's time. What no field takes (the rest) is copied, too: values of fields that the type
lacks, and values that do not fit their field.

Nothing is assumed: each byte of a text that is read here equals the model's, or belongs to a value
that is checked. All other texts are left to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.arrow import binary_array, blob_offsets, from_numpy
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
_NUMBERS: Final = frozenset(
    {JsonKind.INTEGER, JsonKind.EPOCH_MILLIS, JsonKind.EPOCH_DAYS, JsonKind.FLOAT}
)
_READABLE: Final = _TEXTS | _NUMBERS | {JsonKind.BOOL}
_COMPARED: Final = _READABLE | {JsonKind.STRUCT, JsonKind.LIST, JsonKind.MAP}
"""Of the others, a string or number may be a value."""

_NAME: Final = re.compile(rb'[{,] *"([^"]*)" *: *')
_VALUE: Final = re.compile(rb'"[^"]*"|[^"{}\[\],: ]+')
_END: Final = re.compile(rb" *\}")

Convert: TypeAlias = Callable[[JsonNode, pa.Array], pa.Array]
"""Converts a binary array with strings, or with the texts of numbers, to the type of a node. Raises
ValueError."""
ConvertEach: TypeAlias = Callable[[JsonNode, str, pa.Array], tuple[pa.Array, dict[int, str]]]
"""Converts the JSON texts of values of a node one by one; the string is its path. Returns also why
values do not fit, by their index; they become null. Raises ValueError for what is not JSON."""
Fields: TypeAlias = dict[str, Any]
"""An object's fields: by name the index of the value, the Fields of an object, or None for null."""


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


class _Spans(NamedTuple):
    """Where the values of a field begin in the data, and their lengths, without the quotes of
    strings; which are strings; which have the type of the field; and which do not fit it. The
    others are null."""

    starts: Ints
    lengths: Ints
    is_string: Flags
    is_typed: Flags
    is_misfit: Flags


class _Value(NamedTuple):
    """A value of the model. `before`: the bytes between the value before it, or the begin of the
    text, and this one. `node`: None for a field that the type lacks."""

    before: bytes
    node: JsonNode | None
    path: str


class UniformReader:
    """Reads the texts that differ from the middle one, the model, only in their values. `rows`:
    their indexes. `reasons`: why values do not fit, by the index in `rows`, once `values` has read
    them; with a rest, they are a part of it instead.

    Text i has the bytes of `data` from offsets[i] to offsets[i + 1].

    Raises ValueError (ArrowInvalid is one) if less than three quarters of the texts can be read, so
    that another reader is faster: they must have the model's bytes between values. Arrays are not
    read, nor fields that the type lacks unless `with_rest`, and no empty objects in these. Methods
    raise it, too, for what only looks like a number."""

    def __init__(
        self,
        root: JsonNode,
        data: Bytes,
        offsets: Ints,
        is_utf8: Flags,
        convert: Convert,
        convert_each: ConvertEach,
        *,
        with_rest: bool,
    ) -> None:
        self._root, self._data, self._with_rest = root, data, with_rest
        self._convert, self._convert_each = convert, convert_each
        middle = len(offsets) // 2 - 1
        self._text = text = data[offsets[middle] : offsets[middle + 1]].tobytes()
        if syntax.nests_too_deep(text):
            raise ValueError
        self._values: list[_Value] = []
        self._last_end = 0  # of the last value so far
        self._fields, end = self._find_fields(root, 0, "")
        if end != len(text) or not self._values or b"\\" in text:
            raise ValueError
        syntax.parse(text, is_shallow=True)
        fits, spans = self._find_values(offsets, is_utf8)
        if not _are_most(fits):
            raise ValueError
        self.rows = np.flatnonzero(fits)
        if len(self.rows) < len(fits):
            spans = [_Spans._make(column[self.rows] for column in columns) for columns in spans]
        self._spans = spans
        self.reasons: dict[int, str] = {}

    def _find_fields(self, node: JsonNode | None, at: int, path: str) -> tuple[Fields, int]:
        """Find the values of the object at a position of the text. Return its fields and end."""
        text = self._text
        fields: Fields = {}
        while match := _NAME.match(text, at):
            name, at = match[1].decode(), match.end()
            child = None if node is None else node.children.get(name)
            value = _VALUE.match(text, at)
            if name in fields or (child is None and not self._with_rest):
                raise ValueError
            field_path = f"{path}.{name}"
            if value is None and (child is None or child.kind == JsonKind.STRUCT):
                fields[name], at = self._find_fields(child, at, field_path)
                continue
            if value is None or (value[0] != b"null" and child and child.kind not in _COMPARED):
                raise ValueError
            fields[name] = None
            if child is None or child.kind in _READABLE or value[0] != b"null":
                fields[name] = len(self._values)
                self._values.append(_Value(text[self._last_end : at], child, field_path))
                self._last_end = value.end()
            at = value.end()
        end = _END.match(text, at)
        if end is None or (node is None and not fields):
            raise ValueError
        return fields, end.end()

    def _find_values(self, offsets: Ints, is_utf8: Flags) -> tuple[Flags, list[_Spans]]:
        """Return which texts have the model's bytes between values, and the values of each field.
        Those of other texts are anywhere, and some are left out if the texts are many."""
        data = self._data
        before = self._values[0].before
        at, ends = offsets[:-1], offsets[1:]
        fits = is_utf8 & _begins_with(data, at, before)
        spans: list[_Spans] = []
        if not _are_most(fits):
            return fits, spans
        quotes, special = _quotes_and_special_bytes(data)
        fits[np.searchsorted(ends, special, "right")] = False
        # The index of each text's next quote, if all texts have the same number of quotes.
        quote = (len(quotes) - 1) // len(at) * np.arange(len(at))
        if (quotes.take(quote, mode="clip") != at + before.index(b'"')).any():  # they have not
            quote = np.searchsorted(quotes, at)
        # In each text `at` is behind what was compared so far, and `quote` is the index of the next
        # quote from there on.
        at, quote = at + len(before), quote + before.count(b'"')
        following = [value.before for value in self._values[1:]] + [self._text[self._last_end :]]
        for (_, node, _), after in zip(self._values, following, strict=True):
            next_quote = quotes.take(quote, mode="clip")
            is_string = next_quote == at
            string_count = np.count_nonzero(is_string)
            if string_count == len(at):
                start, end = at + 1, quotes.take(quote + 1, mode="clip")
                at, quote = end + 1, quote + 2
            else:
                start = at
                end = next_quote - after.index(b'"') if b'"' in after else ends - len(after)
                at = end
                if string_count:  # the others have no quotes
                    start = start + is_string
                    end = np.where(is_string, quotes.take(quote + 1, mode="clip"), end)
                    at, quote = end + is_string, quote + 2 * is_string
            lengths = end - start
            kind = None if node is None else node.kind
            if kind in _TEXTS:
                is_typed = is_string
            elif kind not in _READABLE:
                is_typed = np.zeros(len(at), np.bool_)
            else:
                is_typed = _are_values(data, start, lengths, kind)
                if string_count:
                    is_typed &= ~is_string
            is_misfit = ~is_typed
            if is_misfit.any():
                is_null = (lengths == 4) & _begins_with(data, start, b"null")
                if node is not None:
                    is_misfit &= is_string | ~is_null
                if is_misfit.any():
                    can_be = ~is_misfit
                    if kind != JsonKind.LENIENT:  # which takes the text of any value
                        can_be |= is_string | is_null
                        can_be |= _are_values(data, start, lengths, JsonKind.BOOL)
                        if kind not in _NUMBERS:  # in which 0.0 may be an integer
                            can_be |= _are_values(data, start, lengths, JsonKind.FLOAT)
                    fits &= can_be
            spans.append(_Spans(start, lengths, is_string, is_typed, is_misfit))
            fits &= _begins_with(data, at, after)
            if not _are_most(fits):
                break
            at, quote = at + len(after), quote + after.count(b'"')
        fits &= at == ends
        return fits, spans

    def values(self) -> pa.Array:
        """Return the structs of all rows."""
        return self._structs_of(self._root, self._fields)

    def rests(self) -> pa.Array | None:
        """Return JSON texts of what no field took, null for nothing; None if there are none."""
        return self._rests_of(self._fields)

    def _structs_of(self, node: JsonNode, fields: Fields) -> pa.Array:
        """Return the structs of a node, whose `fields` have the indexes of their values."""
        children = []
        for name, child in node.children.items():
            part = fields.get(name)
            if isinstance(part, dict):
                children.append(self._structs_of(child, part))
            elif part is None:
                children.append(pa.nulls(len(self.rows), child.type))
            else:
                children.append(self._column_of(child, part))
        return pa.Array.from_buffers(node.type, len(self.rows), [None], children=children)

    def _column_of(self, node: JsonNode, index: int) -> pa.Array:
        """Return the column of a value of the model, null where it does not fit."""
        starts, lengths, _, is_typed, is_misfit = self._spans[index]
        path = self._values[index].path
        reasons: dict[int, str] = {}
        if node.kind not in _READABLE:
            column = pa.nulls(len(self.rows), node.type)
        else:
            if not is_typed.all():
                lengths = np.where(is_typed, lengths, -1)
            texts = gather(pa.py_buffer(self._data), starts, lengths)
            if node.kind == JsonKind.FLOAT:
                _check_exponents(texts)
            try:
                column = self._convert(node, texts)
            except ValueError:
                texts = self._texts(index, is_typed | is_misfit)
                column, reasons = self._convert_each(node, path, texts)
                is_misfit[:] = False
                is_misfit[list(reasons)] = True
        if not self._with_rest and is_misfit.any():
            if not reasons:
                _, reasons = self._convert_each(node, path, self._texts(index, is_misfit))
            self.reasons = reasons | self.reasons  # that of the first field counts
        return column

    def _texts(self, index: int, is_wanted: Flags) -> pa.Array:
        """Return the JSON texts of a value of the model where they are wanted, else null."""
        starts, lengths, is_string, *_ = self._spans[index]
        lengths = np.where(is_wanted, lengths + 2 * is_string, -1)
        return gather(pa.py_buffer(self._data), starts - is_string, lengths)

    def _rests_of(self, fields: Fields) -> pa.Array | None:
        """Return JSON objects of what no field took of objects with these `fields`, null for
        nothing; None if there is nothing in any text."""
        members = []
        for name, part in fields.items():
            values = None
            if isinstance(part, dict):
                values = self._rests_of(part)
            elif part is not None and self._spans[part].is_misfit.any():
                values = self._texts(part, self._spans[part].is_misfit)
                _check_numbers(values)
            if values is not None:
                members.append(_joined(f',"{name}":', values, ""))
        if not members:
            return None
        nothing = binary_array([b""])[0]
        joined = pc.binary_join_element_wise(*members, nothing, null_handling="replace")
        # Without the first comma; without members the length is -1, for null.
        offsets = blob_offsets(joined).astype(np.int64)
        joined = gather(joined.buffers()[2], offsets[:-1] + 1, np.diff(offsets) - 1)
        return _joined("{", joined, "}")


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


def _joined(before: str, values: pa.Array, after: str) -> pa.Array:
    """Return binary values with these texts around each; null stays null."""
    # Python's bytes would import pandas here.
    first, last, nothing = binary_array([before.encode(), after.encode(), b""])
    return pc.binary_join_element_wise(first, values, last, nothing, null_handling="emit_null")


# --- values ---------------------------------------------------------------------------------------


def _are_values(data: Bytes, starts: Ints, lengths: Ints, kind: JsonKind) -> Flags:
    """Return at which positions a boolean or number, as the kind says, can be. That of a number is
    for Arrow to say, except for what it accepts and JSON does not."""
    fits: Flags
    if kind == JsonKind.BOOL:
        fits = (lengths == 4) & _begins_with(data, starts, b"true")
        fits |= (lengths == 5) & _begins_with(data, starts, b"false")
        return fits
    first = data.take(starts, mode="clip")
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


def _check_numbers(texts: pa.Array) -> None:
    """Raise ValueError if one of these texts, of strings, booleans, null and what `_are_values`
    takes for numbers, is no JSON."""
    data, offsets = arrays.content_of(texts)
    first = data.take(offsets[:-1], mode="clip") if len(data) else data
    is_number = (first == ord("-")) | _are_digits(first)
    if is_number.any():
        numbers = texts.filter(from_numpy(is_number & (np.diff(offsets) > 0)))
        _check_exponents(numbers)
        numbers.view(pa.string()).cast(pa.float64())
