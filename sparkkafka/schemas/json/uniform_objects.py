"""Reads JSON objects that have the same names in the same order, as one producer writes them.

The bytes between the values are compared with those of one text, the model. Then the values of each
field are copied to a column, which Arrow converts as its JSON reader does: this takes about half of
the reader's time. So are the items of arrays and maps without other arrays, maps or objects in
them. What no field takes (the rest) is copied, too: values of fields that the type lacks, and
values that do not fit their field.

Nothing is assumed: each byte of a text that is read here equals the model's, or belongs to a value
that is checked. All other texts are left to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.protocol.columns.columns import gather, validity
from sparkkafka.protocol.records.arrow import binary_array, blob_offsets, from_numpy
from sparkkafka.protocol.records.varint_columns import (
    Bytes,
    Flags,
    Ints,
    has_any,
    operand,
    words_at,
)
from sparkkafka.schemas import arrays
from sparkkafka.schemas.json import syntax
from sparkkafka.schemas.json.object_fields import escaped_bytes
from sparkkafka.schemas.json.plan import JsonNode
from sparkkafka.schemas.json.schema import JsonKind
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS, OTHER_REASON

_TEXTS: Final = frozenset(
    {
        *(JsonKind.TEXT, JsonKind.AS_TEXT, JsonKind.BINARY),
        *(JsonKind.DATE, JsonKind.TIMESTAMP, JsonKind.LOCAL_TIMESTAMP),
    }
)
_NUMBERS: Final = frozenset(
    {JsonKind.INTEGER, JsonKind.EPOCH_MILLIS, JsonKind.EPOCH_DAYS, JsonKind.FLOAT}
)
_READABLE: Final = _TEXTS | _NUMBERS | {JsonKind.BOOL}
_COMPARED: Final = _READABLE | {JsonKind.STRUCT, JsonKind.LIST, JsonKind.MAP}
"""Of the others, a string or number may be a value."""

_NAME: Final = re.compile(rb'[{,] *"([^"\\]*)" *: *')
_VALUE: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^"{}\[\],: ]+')
_ITEMS: Final = re.compile(rb"[\[{][^\[\]{}]*[\]}]")
_END: Final = re.compile(rb" *\}")

_LONG_TEXT: Final = 512
"""Bytes of texts, on average, that take another reader longer than two comparisons here."""

Convert: TypeAlias = Callable[[JsonNode, pa.Array], pa.Array]
"""Converts a binary array with strings, or with the texts of numbers, to the type of a node. Raises
ValueError."""
ConvertEach: TypeAlias = Callable[[JsonNode, str, pa.Array], tuple[pa.Array, dict[int, str], Flags]]
"""Converts the JSON texts of values of a node one by one; the string is its path. Returns also why
values do not fit, by their index, and which texts are not JSON; both become null."""
Fields: TypeAlias = dict[str, Any]
"""An object's fields: by name the index of the value, the Fields of an object, or None for null."""


def _are_most(fits: Flags, share: float = 3 / 4) -> bool:
    """Return whether at least this share of the texts fit."""
    return bool(np.count_nonzero(fits) >= share * len(fits))


class _Spans(NamedTuple):
    """Where the values of a field begin in the data, and their lengths, without the quotes of
    strings; which are strings; which have the type of the field; and which do not fit it. If both
    are false, the value is null. `items`: the items, if the values are arrays or maps."""

    starts: Ints
    lengths: Ints
    is_string: Flags
    is_typed: Flags
    is_misfit: Flags
    items: _Items | None = None

    def at(self, rows: Ints) -> _Spans:
        """Return the values at these indexes."""
        columns: list[Any] = [column.take(rows) for column in self[:5]]
        return _Spans._make([*columns, self.items and self.items.at(rows)])


class _Items(NamedTuple):
    """The items of arrays or maps: how many each has, and their values. names: where the names of a
    map's items begin, and their lengths."""

    counts: Ints
    values: _Spans
    names: tuple[Ints, Ints] | None

    def rows(self) -> Ints:
        """Return the index of each item's array or map."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def at(self, rows: Ints) -> _Items:
        """Return the items of the arrays or maps at these indexes."""
        is_kept = np.zeros(len(self.counts), np.bool_)
        is_kept[rows] = True
        kept = np.flatnonzero(np.repeat(is_kept, self.counts))
        names = self.names and (self.names[0].take(kept), self.names[1].take(kept))
        return _Items(self.counts.take(rows), self.values.at(kept), names)


class _Value(NamedTuple):
    """A value of the model. `before`: the bytes between the value before it, or the begin of the
    text, and this one. `node`: None for a field that the type lacks."""

    before: bytes
    node: JsonNode | None
    path: str


class UniformReader:
    """Reads the texts that differ from the middle one, the model, only in their values. Text i has
    the bytes of `data` from offsets[i] to offsets[i + 1].

    `rows`: the indexes of the texts that were read. `values`: their structs. `rests`: the JSON text
    of what no field took, null for nothing; None if nothing is left of any text. `reasons`: why
    values do not fit, by row; with a rest, they are a part of it.

    Raises ValueError (ArrowInvalid is one) if less than three quarters of the texts can be read, or
    a third of long ones, so that another reader is faster: they must have the model's bytes between
    values. Not read are arrays and maps of arrays, maps or objects, and other arrays unless
    `with_arrays`, which take longer here; and fields that the type lacks unless `with_rest`, and no
    arrays and empty objects in these."""

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
        with_arrays: bool = False,
    ) -> None:
        self._data, self._with_rest, self._with_arrays = data, with_rest, with_arrays
        self._convert, self._convert_each = convert, convert_each
        middle = len(offsets) // 2 - 1
        self._text = text = data[offsets[middle] : offsets[middle + 1]].tobytes()
        if syntax.nests_too_deep(text):
            raise ValueError
        self._values: list[_Value] = []
        self._last_end = 0  # of the last value so far
        self._fields, end = self._find_fields(root, 0, "")
        if end != len(text) or not self._values:
            raise ValueError
        syntax.parse(text, is_shallow=True)
        # Another reader takes as long for each byte, this one for each value.
        self._share = 1 / 3 if len(data) > _LONG_TEXT * len(is_utf8) else 3 / 4
        fits, self._spans = self._find_values(offsets, is_utf8)
        if not _are_most(fits, self._share):
            raise ValueError
        self.rows = np.flatnonzero(fits)
        if len(self.rows) < len(fits):
            self._spans = [spans.at(self.rows) for spans in self._spans]
        # Not read is what only looks like a number, as 2024-01-31, and a name twice in a map.
        self._is_read = np.ones(len(self.rows), np.bool_)
        reasons: dict[int, str] = {}
        self.values = self._structs_of(root, self._fields, reasons)
        self.rests = self._rests_of(self._fields) if with_rest else None
        if not self._is_read.all():
            read = np.flatnonzero(self._is_read)
            self.values = self.values.take(from_numpy(read))
            self.rests = None if self.rests is None else self.rests.take(from_numpy(read))
            reasons = {row: why for row, why in reasons.items() if self._is_read[row]}
        self.reasons = dict(zip(self.rows[list(reasons)].tolist(), reasons.values(), strict=True))
        self.rows = self.rows[self._is_read]

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
            if self._has_items(child):
                value = value or _ITEMS.match(text, at)
            if value is None or (value[0] != b"null" and child and child.kind not in _COMPARED):
                raise ValueError
            fields[name] = None
            is_compared = child is None or child.kind in _READABLE or self._has_items(child)
            if is_compared or value[0] != b"null":
                fields[name] = len(self._values)
                self._values.append(_Value(text[self._last_end : at], child, field_path))
                self._last_end = value.end()
            at = value.end()
        end = _END.match(text, at)
        if end is None or (node is None and not fields):
            raise ValueError
        return fields, end.end()

    def _has_items(self, node: JsonNode | None) -> bool:
        """Return whether values of the node are arrays or maps whose items can be read."""
        if node is None or node.kind not in (JsonKind.LIST, JsonKind.MAP):
            return False
        return node.item.kind in _READABLE and (node.kind == JsonKind.MAP or self._with_arrays)

    # --- where the values are ---------------------------------------------------------------------

    def _find_values(self, offsets: Ints, is_utf8: Flags) -> tuple[Flags, list[_Spans]]:
        """Return which texts have the model's bytes between values, and the values of each field.
        Those of other texts are anywhere, and some are left out if the texts are many."""
        data = self._data
        before = self._values[0].before
        at, ends = offsets[:-1], offsets[1:]
        fits = is_utf8 & _begins_with(data, at, before)
        spans: list[_Spans] = []
        if not _are_most(fits, self._share):
            return fits, spans
        quotes, backslashes, controls = _special_bytes(data)
        self._quotes = quotes
        if any(self._has_items(value.node) for value in self._values):
            # The positions of what ends an item.
            self._marks = {
                byte: np.append(arrays.positions(data, byte), len(data)) for byte in b",]}"
            }
        fits[np.searchsorted(ends, controls, "right")] = False
        # The backslashes of each text: all must be in strings of fields that the type lacks.
        escapes = np.diff(np.searchsorted(backslashes, offsets))
        quote = np.searchsorted(quotes, at)  # the index of each text's next quote
        # For each text: `at` is the position behind what was compared so far, and `quote` the index
        # of the next quote from there on. Each step reads one value of all texts, up to the quote
        # that ends it or the bytes that follow it, and compares these bytes.
        at, quote = at + len(before), quote + before.count(b'"')
        following = [value.before for value in self._values[1:]] + [self._text[self._last_end :]]
        for (_, node, _), after in zip(self._values, following, strict=True):
            begin, next_quote = at, quotes.take(quote, mode="clip")
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
            is_list = items = None
            if node is not None and self._has_items(node):
                found = self._find_items(node, begin, ends)
                if not _are_most(found[-1]):
                    self._drop_marks_in_strings(offsets)
                    found = self._find_items(node, begin, ends)
                is_list, close, items, are_valid = found
                end, at = np.where(is_list, close + 1, end), np.where(is_list, close + 1, at)
                quote = np.where(is_list, np.searchsorted(quotes, at), quote)
                fits &= are_valid
            if node is None and len(backslashes):
                in_string = np.searchsorted(backslashes, end) - np.searchsorted(backslashes, start)
                escapes = escapes - in_string * is_string
            values, is_value = self._fit(node, start, end - start, is_string, is_list, items)
            spans.append(values)
            fits &= is_value
            fits &= _begins_with(data, at, after)
            if not _are_most(fits, self._share):
                break
            at, quote = at + len(after), quote + after.count(b'"')
        fits &= (at == ends) & (escapes == 0)
        return fits, spans

    def _drop_marks_in_strings(self, offsets: Ints) -> None:
        """Drop the commas and brackets in strings. Most maps have none there."""
        quotes = self._quotes
        before = np.searchsorted(quotes, offsets)
        for byte, marks in self._marks.items():
            text = np.searchsorted(offsets, marks, "right") - 1
            is_outside = (np.searchsorted(quotes, marks) - before[text]) % 2 == 0
            self._marks[byte] = marks[is_outside]

    def _fit(
        self,
        node: JsonNode | None,
        starts: Ints,
        lengths: Ints,
        is_string: Flags,
        is_list: Flags | None = None,
        items: _Items | None = None,
    ) -> tuple[_Spans, Flags]:
        """Return the values of a node, and which of them are JSON, as far as bytes at their ends
        show; the caller's reader takes the texts of others. Without a node, which is a field that
        the type lacks, none fits. `is_list`: which are arrays or maps, with these `items`."""
        data = self._data
        kind = None if node is None else node.kind
        if kind in _TEXTS:
            is_typed = is_string
        elif is_list is not None:
            is_typed = is_list
        elif kind not in _READABLE:
            is_typed = np.zeros(len(starts), np.bool_)
        else:
            is_typed = _are_values(data, starts, lengths, kind) & ~is_string
        is_misfit = ~is_typed
        is_value = is_typed
        if has_any(is_misfit):
            is_null = (lengths == 4) & ~is_string & _begins_with(data, starts, b"null")
            if node is not None:
                is_misfit &= ~is_null
            is_value = is_typed | is_null
            if has_any(is_misfit):
                is_other = is_string | _are_values(data, starts, lengths, JsonKind.BOOL)
                if kind not in _NUMBERS:  # in a field of integers 1e3 may fit, so it is not read
                    is_other |= _are_values(data, starts, lengths, JsonKind.FLOAT)
                is_value |= is_other
                if kind == JsonKind.AS_TEXT:  # which takes the text of any value
                    is_typed, is_misfit = is_typed | (is_misfit & is_other), is_misfit & ~is_other
        return _Spans(starts, lengths, is_string, is_typed, is_misfit, items), is_value

    def _find_items(
        self, node: JsonNode, at: Ints, text_ends: Ints
    ) -> tuple[Flags, Ints, _Items, Flags]:
        """Find arrays or maps, as the node says, at these positions of texts with these ends.
        Return at which positions there is one, where its closing bracket is, the items, and which
        have only valid items: values, in maps each with a name.

        A comma in a string is taken for a separator, but then the item before it and the one behind
        it are not valid, since each has an odd number of quotes. `_drop_marks_in_strings` is for
        maps with such commas."""
        data, quotes, commas = self._data, self._quotes, self._marks[ord(",")]
        opening, closing = b"[]" if node.kind == JsonKind.LIST else b"{}"
        closes = self._marks[closing]
        ends = closes.take(np.searchsorted(closes, at), mode="clip")
        is_list = (data.take(at, mode="clip") == opening) & (ends < text_ends)
        before = np.searchsorted(commas, at)
        counts = np.searchsorted(commas, ends) - before
        if node.kind == JsonKind.MAP and 2 * counts[is_list].sum() > len(quotes):
            # Many commas are in strings. With more of them than names, it is no map of such items.
            is_list &= 2 * counts <= np.searchsorted(quotes, ends) - np.searchsorted(quotes, at)
        starts = np.where(is_list, at + 1, ends)
        counts = counts * is_list + (ends > starts)
        offsets = arrays.offsets_of(counts)
        # Each item ends at a comma, the last one at the bracket, and begins behind the one before.
        comma = np.repeat(before - offsets[:-1], counts) + np.arange(offsets[-1])
        item_ends = commas.take(comma, mode="clip")
        filled = np.flatnonzero(counts)
        item_ends[offsets[filled + 1] - 1] = ends[filled]
        item_starts = np.append(0, item_ends[:-1] + 1)[: len(item_ends)]
        item_starts[offsets[filled]] = starts[filled]
        item_starts += data.take(item_starts, mode="clip") == ord(" ")
        quote = np.searchsorted(quotes, item_starts)
        names = None
        is_item = np.ones(len(item_ends), np.bool_)
        if node.kind == JsonKind.MAP:
            name_ends = quotes.take(quote + 1, mode="clip")
            names = item_starts + 1, name_ends - item_starts - 1
            is_item = quotes.take(quote, mode="clip") == item_starts
            is_item &= data.take(name_ends + 1, mode="clip") == ord(":")
            item_starts = name_ends + 2
            item_starts += data.take(item_starts, mode="clip") == ord(" ")
            is_item &= item_starts < item_ends
            quote += 2
        next_quote = quotes.take(quote, mode="clip")
        is_string = next_quote == item_starts
        string_ends = quotes.take(quote + 1, mode="clip")
        is_item &= np.where(is_string, string_ends == item_ends - 1, next_quote >= item_ends)
        lengths = item_ends - item_starts - 2 * is_string
        values, is_value = self._fit(node.item, item_starts + is_string, lengths, is_string)
        items = _Items(counts, values, names)
        are_valid = np.ones(len(counts), np.bool_)
        is_item &= is_value
        if not is_item.all():
            are_valid[items.rows()[~is_item]] = False
        return is_list, ends, items, are_valid

    # --- columns ----------------------------------------------------------------------------------

    def _structs_of(self, node: JsonNode, fields: Fields, reasons: dict[int, str]) -> pa.Array:
        """Return the structs of a node, whose `fields` have the indexes of their values. Without a
        rest, add the reasons why values do not fit."""
        children = []
        for name, child in node.children.items():
            part = fields.get(name)
            if isinstance(part, dict):
                children.append(self._structs_of(child, part, reasons))
            elif part is None:
                children.append(pa.nulls(len(self.rows), child.type))
            else:
                path, spans = self._values[part].path, self._spans[part]
                column, found = self._column_of(child, path, spans, None)
                children.append(column)
                if not self._with_rest:
                    found |= self._reasons_of(child, path, spans, found)
                    for row, why in found.items():
                        reasons.setdefault(row, why)  # that of the first field counts
        return pa.Array.from_buffers(node.type, len(self.rows), [None], children=children)

    def _reasons_of(
        self, node: JsonNode, path: str, spans: _Spans, known: Collection[int]
    ) -> dict[int, str]:
        """Return why values do not fit, by index, but for those whose reasons are known."""
        have_misfits = [spans.is_misfit] + ([spans.items.values.is_misfit] if spans.items else [])
        if not any(map(has_any, have_misfits)):
            return {}
        is_misfit = spans.is_misfit.copy()
        if known:
            is_misfit[list(known)] = False
        # A string is JSON, and fits in no field of another type: all have the reason of the first,
        # except for items, whose position the reason has.
        alike = np.flatnonzero(is_misfit & spans.is_string & (node.kind not in _TEXTS))
        others = alike[:0]
        is_misfit[alike[1:]] = False
        if spans.items is not None:
            rows, items = spans.items.rows(), spans.items.values
            is_misfit[rows[items.is_misfit]] = True
            if node.item.kind not in _TEXTS:
                others = np.unique(rows[items.is_misfit & items.is_string])[MAX_OWN_REASONS:]
                is_misfit[others] = False
        if not has_any(is_misfit):
            return {}
        _, reasons, is_no_json = self._convert_each(node, path, self._texts(spans, is_misfit))
        self._is_read[is_no_json] = False
        if len(alike):
            reasons |= dict.fromkeys(alike.tolist(), reasons[int(alike[0])])
        return reasons | dict.fromkeys(others.tolist(), f"field {path[1:]}: {OTHER_REASON}")

    def _column_of(
        self, node: JsonNode, path: str, spans: _Spans, rows: Ints | None
    ) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of values, null where they do not fit, and the reasons of those whose
        text had to be parsed to find that out. `rows`: the row of each value, if they are items."""
        if spans.items is not None:
            return self._lists_of(node, spans, spans.items), {}
        starts, lengths, is_string, is_typed, is_misfit, _ = spans
        if node.kind not in _READABLE:
            return pa.nulls(len(starts), node.type), {}
        if node.kind == JsonKind.AS_TEXT and has_any(is_typed & ~is_string):
            _check_numbers(self._texts(spans, is_typed & ~is_string))
        if has_any(~is_typed):
            lengths = np.where(is_typed, lengths, -1)
        texts = gather(pa.py_buffer(self._data), starts, lengths)
        failed = np.zeros(len(starts), np.bool_)
        if node.kind == JsonKind.FLOAT:
            _flag_points(texts, failed)
        try:
            column = self._convert(node, texts)
        except ValueError:
            failed |= _may_not_fit(node, texts)
            texts = gather(pa.py_buffer(self._data), starts, np.where(failed, -1, lengths))
            try:
                column = self._convert(node, texts)
            except ValueError:
                failed[:], column = True, pa.nulls(len(starts), node.type)
        failed &= is_typed
        if not has_any(failed):
            return column, {}
        others, reasons, is_no_json = self._convert_each(node, path, self._texts(spans, failed))
        is_misfit[list(reasons)] = True
        self._is_read[is_no_json if rows is None else rows[is_no_json]] = False
        return pc.if_else(from_numpy(failed), others, column), reasons

    def _lists_of(self, node: JsonNode, spans: _Spans, items: _Items) -> pa.Array:
        """Return the column of arrays or maps."""
        rows = items.rows()
        values, _ = self._column_of(node.item, "", items.values, rows)
        if items.names is not None:
            keys = gather(pa.py_buffer(self._data), *items.names)
            self._is_read[rows[arrays.repeated_keys(keys, items.counts)]] = False
            entry = pa.struct([node.type.key_field, node.type.item_field])
            children = [keys.view(pa.string()), values]
            values = pa.Array.from_buffers(entry, len(keys), [None], children=children)
        buffers = [
            None if spans.is_typed.all() else validity(spans.is_typed),
            pa.py_buffer(arrays.offsets_of(items.counts, np.int32)),
        ]
        return pa.Array.from_buffers(node.type, len(items.counts), buffers, children=[values])

    def _texts(self, spans: _Spans, is_wanted: Flags) -> pa.Array:
        """Return the JSON texts of values where they are wanted, else null."""
        lengths = np.where(is_wanted, spans.lengths + 2 * spans.is_string, -1)
        return gather(pa.py_buffer(self._data), spans.starts - spans.is_string, lengths)

    # --- rests ------------------------------------------------------------------------------------

    def _rests_of(self, fields: Fields) -> pa.Array | None:
        """Return JSON objects of what no field took of objects with these `fields`, null for
        nothing; None if there is nothing in any text."""
        members = []
        for name, part in fields.items():
            values = None
            if isinstance(part, dict):
                values = self._rests_of(part)
            elif part is not None:
                values = self._rest_of(self._spans[part])
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

    def _rest_of(self, spans: _Spans) -> pa.Array | None:
        """Return JSON texts of the values that do not fit, and of arrays and maps with such items;
        None if there are none."""
        rest = None
        if has_any(spans.is_misfit):
            rest = self._misfits_of(spans)
        items = spans.items
        if items is None or not has_any(items.values.is_misfit):
            return rest
        rows, is_misfit = items.rows(), items.values.is_misfit
        counts = np.bincount(rows[is_misfit], minlength=len(items.counts))
        has_rest = counts > 0
        texts = self._misfits_of(items.values)
        comma, colon, null = binary_array([b",", b":", b"null"])
        if items.names is None:  # in arrays, null stands for items that fit
            counts = items.counts * has_rest
            texts = pc.coalesce(texts, null).filter(from_numpy(has_rest[rows]))
            brackets = "[]"
        else:
            starts, lengths = items.names
            lengths = np.where(is_misfit, lengths + 2, -1)
            names = gather(pa.py_buffer(self._data), starts - 1, lengths)
            texts = pc.binary_join_element_wise(names, texts, colon).drop_null()
            brackets = "{}"
        lists = pa.ListArray.from_arrays(from_numpy(arrays.offsets_of(counts, np.int32)), texts)
        joined = _joined(brackets[0], pc.binary_join(lists, comma), brackets[1])
        joined = arrays.null_outside(joined, has_rest)
        return joined if rest is None else pc.coalesce(rest, joined)

    def _misfits_of(self, spans: _Spans) -> pa.Array:
        """Return JSON texts of the values that do not fit, null for the others. Raises ValueError
        if one is no JSON."""
        texts = self._texts(spans, spans.is_misfit)
        _check_numbers(texts)
        data, offsets = arrays.content_of(texts)
        escapes = arrays.positions(data, ord("\\"))
        if not len(escapes):
            return texts
        # Only what must be escaped is escaped in a rest.
        indexes = np.flatnonzero(np.diff(np.searchsorted(escapes, offsets)))
        strings = texts.take(from_numpy(indexes)).to_pylist()
        strings = syntax.parse(b"[%s]" % b",".join(strings), is_shallow=True)
        quoted = binary_array([syntax.quote(text).encode() for text in strings])
        has_escape = np.zeros(len(texts), np.bool_)
        has_escape[indexes] = True
        return pc.replace_with_mask(texts, from_numpy(has_escape), quoted)


def _special_bytes(data: Bytes) -> tuple[Ints, Ints, Ints]:
    """Return the positions of quotes that begin or end strings, of backslashes, and of control
    characters, which strings cannot have."""
    quotes, *special = ([np.zeros(0, np.int64)] for _ in range(3))
    for begin in range(0, len(data), arrays.PIECE_BYTES):
        piece = data[begin : begin + arrays.PIECE_BYTES]
        quotes.append(np.flatnonzero(piece == ord('"')) + begin)
        is_backslash = piece == ord("\\")
        if is_backslash.any():
            special[0].append(np.flatnonzero(is_backslash) + begin)
        if piece.min() < ord(" "):
            special[1].append(np.flatnonzero(piece < ord(" ")) + begin)
    quotes.append(np.array([len(data) + 1]))  # none follows
    backslashes, controls = map(np.concatenate, special)
    positions = np.concatenate(quotes)
    if len(backslashes):
        positions = np.setdiff1d(positions, escaped_bytes(backslashes, len(data)), True)
    return positions, backslashes, controls


def _begins_with(data: Bytes, at: Ints, expected: bytes) -> Flags:
    """Return at which of the positions in the data these bytes begin."""
    flags: Flags = np.ones(len(at), np.bool_)
    for begin in range(0, len(expected), 8):
        part = expected[begin : begin + 8]
        if len(part) == 1:  # which is found faster than a word
            flags &= data.take(at + begin, mode="clip") == operand(part[0], np.uint8)
        else:
            mask = operand((1 << 8 * len(part)) - 1)
            word = np.uint64(int.from_bytes(part, "little"))
            flags &= (words_at(data, at + begin) & mask) == word
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
    is_negative = first == operand(ord("-"), np.uint8)
    if has_any(is_negative):
        first = data.take(starts + is_negative, mode="clip")
    fits = _are_digits(first) & _are_digits(last) & (lengths > is_negative)
    is_zero = first == operand(ord("0"), np.uint8)
    is_wrong = is_zero & (lengths - is_negative > 1)
    if has_any(is_wrong):  # 007 is no number, and 0x7 none of JSON
        second = data.take(starts + is_negative + 1, mode="clip")
        is_wrong &= _are_digits(second) if kind == JsonKind.FLOAT else second != ord(".")
        fits &= ~is_wrong
    return fits


def _are_digits(characters: Bytes) -> Flags:
    """Return which characters are digits."""
    flags: Flags = characters - operand(ord("0"), np.uint8) <= operand(9, np.uint8)
    return flags


def _check_numbers(texts: pa.Array) -> None:
    """Raise ValueError if one of these values, which may be null, is what `_are_values` takes for a
    number, and no JSON."""
    data, offsets = arrays.content_of(texts)
    first = data.take(offsets[:-1], mode="clip")
    is_number = ((first == ord("-")) | _are_digits(first)) & (np.diff(offsets) > 0)
    if is_number.any():
        numbers = texts.filter(from_numpy(is_number))
        failed = np.zeros(len(numbers), np.bool_)
        _flag_points(numbers, failed)
        if failed.any():
            raise ValueError
        numbers.view(pa.string()).cast(pa.float64())


def _flag_points(numbers: pa.Array, flags: Flags) -> None:
    """Flag the numbers with a point before their exponent, as 1.e5: they are no JSON."""
    data, offsets = arrays.content_of(numbers)
    is_exponent = data | 0x20 == ord("e")
    if not is_exponent.any():
        return
    exponents = np.flatnonzero(is_exponent)
    points = exponents[data.take(exponents - 1, mode="clip") == ord(".")]
    flags[np.searchsorted(offsets, points, "right") - 1] = True


_DATE: Final = (
    r"\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
)
_TIME: Final = _DATE + r"[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
USUAL_STRINGS: Final = {
    JsonKind.DATE: _DATE,
    JsonKind.TIMESTAMP: _TIME + r"(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)",
    JsonKind.LOCAL_TIMESTAMP: _TIME,
    JsonKind.BINARY: r"(?:[A-Za-z\d+/]{4})*(?:[A-Za-z\d+/]{2}==|[A-Za-z\d+/]{3}=)?",
}
"""Patterns of strings that can be converted, but for a few, as of the 29th February."""


def _may_not_fit(node: JsonNode, texts: pa.Array) -> Flags:
    """Return which texts of numbers are long or have other characters than most, as exponents have;
    and which dates, times and Base64 are not written as most are. Others are not flagged."""
    flags = np.zeros(len(texts), np.bool_)
    if node.kind in USUAL_STRINGS:
        pattern = f"^{USUAL_STRINGS[node.kind]}$"
        usual = pc.match_substring_regex(texts.view(pa.string()), pattern)
        flags |= ~arrays.flags_of(usual)
    elif node.kind in _NUMBERS:
        data, offsets = arrays.content_of(texts)
        is_usual = _are_digits(data) | (data == ord("-"))
        if node.kind == JsonKind.FLOAT:
            is_usual |= data == ord(".")
        flags |= np.diff(offsets) > (38 if node.kind == JsonKind.FLOAT else 18)
        flags[np.searchsorted(offsets, np.flatnonzero(~is_usual), "right") - 1] = True
    return flags
