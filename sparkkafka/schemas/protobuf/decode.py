"""Decodes messages to Arrow columns: one call for each message type, one for each of its fields.

The decoder is our own. ptars (Rust) is faster for most shapes, but has no bad rows, and nested
groups crash it with a segmentation fault. Damaged payloads become bad rows here, and the parts of a
message that occurs twice are merged here. protobuf's runtime makes an object for each
message, so it gets only the payloads that need it (`needs_runtime`): those with groups, and those
in which something else occurs twice or in an order that is not seen here, so that the runtime's
rules of merging apply. It writes them anew (`normalizer.py`), and then they are decoded here like
the others.

A row is a row of the column. Messages of one type are decoded together, those of all rows at any
level: a message's index is its index among these, and `rows` has the row of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.columns.columns import gather, validity
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import Flags, Ints, unzigzag, zigzag
from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas import decimals
from sparkkafka.schemas.arrays import (
    as_texts,
    is_utf8,
    null_outside,
    offsets_of,
    repeated_keys,
    replace_bad_texts,
    spread,
)
from sparkkafka.schemas.protobuf import types
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.protobuf.normalizer import ProtobufNormalizer, field_label
from sparkkafka.schemas.protobuf.plan import Cardinality, ProtobufField, ProtobufMessage
from sparkkafka.schemas.protobuf.types import Special
from sparkkafka.schemas.protobuf.wire import (
    MAX_TAG,
    SKIP,
    Damage,
    KnownTag,
    Tokens,
    WireData,
    join_tokens,
    read_varints,
    sort_tokens,
    tokenize,
)
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS, OTHER_REASON
from sparkkafka.schemas.values import BUDGET_PER_BYTE, Decoded, MemoryBudget, bytes_per_value


class ProtobufDecoder:
    """Decodes Protobuf messages to structs (a `values.Decoder`)."""

    def __init__(self, message: ProtobufMessage) -> None:
        self._message = message
        self._layout = layout_of(message, has_groups=True)
        self._normalized_layout = layout_of(message, has_groups=False)
        self._normalizer: ProtobufNormalizer | None = None

    @property
    def type(self) -> pa.DataType:
        """The struct that payloads become."""
        return self._message.type

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """Decode messages (binary; null stays null) into a column of `type`. Messages that are bad
        become null, with a reason. Raises TooManyRowsError if the columns exceed `budget`."""
        count = len(payloads)
        budget = budget or MemoryBudget(payloads)
        budget.take(count * self._layout.column_bytes)  # one row always fits; several may raise
        valid = arrow.is_valid(payloads)
        present = payloads.drop_null() if payloads.null_count else payloads
        values, state = _decode_messages(self._layout, present, budget)
        # Rows are indexes of `present` from here on.
        # What is wrong may be in a value that a later one replaces: the runtime then ignores it.
        wrong = np.fromiter(state.bad, np.int64, len(state.bad))
        state.needs_runtime[wrong[state.has_replaced[wrong]]] = True
        damaged = state.damage_reasons()
        state.needs_runtime[np.fromiter(damaged, np.int64, len(damaged))] = False
        bad, normalized_rows, normalized = state.bad | damaged, [], []
        explanations_left = MAX_OWN_REASONS
        rows = np.flatnonzero(state.needs_runtime)
        unread = present.take(arrow.from_numpy(rows)).to_pylist()
        for row, payload in zip(rows.tolist(), unread, strict=True):
            bad.pop(row, None)  # only a part of the payload was read
            if self._normalizer is None:
                self._normalizer = ProtobufNormalizer(self._message)
            bytes_or_reason = self._normalizer.normalize(payload, explains=explanations_left > 0)
            if isinstance(bytes_or_reason, str):
                bad[row] = bytes_or_reason
                explanations_left -= 1
            else:
                normalized_rows.append(row)
                normalized.append(bytes_or_reason)
        if normalized_rows:
            others, other_state = _decode_messages(
                self._normalized_layout, arrow.binary_array(normalized), MemoryBudget(payloads)
            )
            unreadable = other_state.needs_runtime
            unreadable[list(other_state.damage_reasons())] = True
            for index, row in enumerate(normalized_rows):
                if index in other_state.bad:
                    bad[row] = other_state.bad[index]
                elif unreadable[index]:
                    bad[row] = f"message {self._message.full_name}: its bytes cannot be read"
            values = pa.concat_arrays([values, others])
        if len(present) == count and not bad and not normalized_rows:
            return Decoded.of(values, {})
        payload_rows = np.flatnonzero(valid)
        bad_rows = payload_rows[np.fromiter(bad, np.int64, len(bad))]
        reasons = dict(zip(bad_rows.tolist(), bad.values(), strict=True))
        good = valid.copy()
        good[bad_rows] = False
        if len(present) < count or normalized_rows:
            indexes = np.zeros(count, np.int64)
            indexes[payload_rows] = np.arange(len(present))
            indexes[payload_rows[normalized_rows]] = len(present) + np.arange(len(normalized_rows))
            values = values.take(null_outside(arrow.from_numpy(indexes), good))
        else:
            values = null_outside(values, good)
        return Decoded.of(values, reasons)


@dataclass(slots=True)
class DecodeState:
    """What the decoders of all fields share: where each row begins, which rows protobuf's runtime
    must read, and which have map entries that a later one of the same key replaced; the memory
    budget of the call, and why rows are bad. `damage` has (layout of the messages, row of each,
    what is wrong with each) for messages that cannot be read."""

    starts: Ints
    needs_runtime: Flags
    has_replaced: Flags
    budget: MemoryBudget
    bad: dict[int, str]
    damage: list[tuple[MessageLayout, Ints, Damage]]

    def add_bad(self, rows: Ints, path: str, reason: Callable[[int], str]) -> None:
        """Mark rows as bad because of the field `path`, unless they already are bad. `reason`
        returns why, by the index in `rows`."""
        for index, row in enumerate(rows.tolist()):
            if row not in self.bad:
                self.bad[row] = f"field {path}: {reason(index)}"

    def damage_reasons(self) -> dict[int, str]:
        """Return why damaged rows are bad: each by its first damaged field, and the first
        MAX_OWN_REASONS in detail."""
        if not self.damage:
            return {}
        rows, at, tags = (
            np.concatenate(columns)
            for columns in zip(*((rows, d.at, d.tags) for _, rows, d in self.damage), strict=True)
        )
        begins = offsets_of([len(damage.at) for _, _, damage in self.damage])
        order = np.lexsort((at, rows))
        first = order[np.flatnonzero(np.diff(rows[order], prepend=-1))]
        rows, parts = rows[first], np.searchsorted(begins, first, "right") - 1
        kinds, kind_of = np.unique(parts << 32 | tags[first], return_inverse=True)
        labels: list[str] = []
        for kind in kinds.tolist():
            layout = self.damage[kind >> 32][0]
            # The lowest three bits of a tag are the wire type, the others the field's number.
            number = (kind & MAX_TAG) >> 3
            labels.append(field_label(layout.message.descriptor, layout.path, number))
        texts = np.array([f"{label}: {OTHER_REASON}" for label in labels], object)[kind_of].tolist()
        for index, row in enumerate(rows[:MAX_OWN_REASONS].tolist()):
            part, token = parts[index], int(first[index])
            reason = self.damage[part][2].reason(token - int(begins[part]))
            position = at[token] - self.starts[row]
            texts[index] = f"{labels[kind_of[index]]}: at byte {position}: {reason}"
        return dict(zip(rows.tolist(), texts, strict=True))


class MessageParts(NamedTuple):
    """Messages of which some lie in several parts, which are read one by one and then merged: where
    each part lies, and the index of its message, which ascends."""

    starts: Ints
    ends: Ints
    messages: Ints

    def merge(self, tokens: list[Tokens]) -> list[Tokens]:
        """Return a field's tokens with the index of the message in place of that of the part
        (`tokens` count the parts as messages)."""
        merged, _ = sort_tokens(tokens, len(self.starts))
        if merged is None:
            return []
        parts = merged.sparse(len(self.starts)).messages
        return [merged._replace(messages=self.messages[parts], ascending=False)]


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """A message's tags, in the order in which they are searched, and its fields' layouts. `path`:
    of the field that has the message, "" for the outermost one.

    Slots (see `wire.py`): 2i is field i, 2i + 1 the same packed; then come members of `oneofs` that
    are not read. `inner`: the layout of each field's message, None for scalars. `oneofs`: the slots
    of each oneof. `column_bytes`: the most bytes that one message takes in columns, without its
    texts and elements. `has_required`: a field is required, at any level, so absent messages must
    not be decoded.
    """

    message: ProtobufMessage
    path: str
    tags: tuple[KnownTag, ...]
    inner: tuple[MessageLayout | None, ...]
    slot_count: int
    oneofs: tuple[tuple[int, ...], ...]
    column_bytes: int
    has_required: bool


def layout_of(message: ProtobufMessage, path: str = "", *, has_groups: bool) -> MessageLayout:
    """Return the layout of a message. `has_groups` is false for normalized messages, where groups
    have a length, as messages."""
    tags: list[KnownTag] = []
    inner: list[MessageLayout | None] = []
    oneofs: dict[int, list[int]] = {}
    column_bytes, has_required = 1, False
    for index, field in enumerate(message.fields):
        repeated = field.cardinality is not Cardinality.ONE
        wire = types.FIELD_TYPES[field.kind].wire
        if field.kind == types.GROUP and not has_groups:
            wire = types.LEN
        may_repeat = repeated or field.message is not None  # the parts of a message are merged
        tags.append(_known_tag(field.number, wire, 2 * index, may_repeat))
        if repeated and wire not in (types.LEN, types.SGROUP):
            tags.append(_known_tag(field.number, types.LEN, 2 * index + 1, repeated))
        if field.oneof >= 0:
            oneofs.setdefault(field.oneof, []).append(2 * index)
        nested = None
        if field.message is not None:
            nested = layout_of(field.message, field.path, has_groups=has_groups)
        inner.append(nested)
        # The memory of repeated messages is taken when they are decoded.
        if nested is None or repeated:
            column_bytes += bytes_per_value(field.type)
        else:
            column_bytes += nested.column_bytes
        column_bytes += len(field.default) if isinstance(field.default, (str, bytes)) else 0
        has_required |= field.required or (nested is not None and nested.has_required)
    slot_count = 2 * len(message.fields)
    for number, wire in message.skipped:
        slot = SKIP
        oneof = message.descriptor.fields_by_number[number].containing_oneof
        if oneof is not None and oneof.index in oneofs:
            oneofs[oneof.index].append(slot_count)  # it clears an earlier member that is read
            slot, slot_count = slot_count, slot_count + 1
        tags.append(_known_tag(number, wire, slot, repeated=True))
    return MessageLayout(
        message,
        path,
        tuple(sorted(known for known in tags if known.tag & 7 != types.SGROUP)),
        tuple(inner),
        slot_count,
        tuple(tuple(group) for group in oneofs.values() if len(group) > 1),
        column_bytes,
        has_required,
    )


def _known_tag(number: int, wire: int, slot: int, repeated: bool) -> KnownTag:
    """Return the tag of field `number` with a wire type. `slot`: where its values are put;
    `repeated`: a message may have the field several times."""
    tag = number << 3 | wire
    return KnownTag(tag, varint_bytes(tag), slot, repeated)


def _decode_messages(
    layout: MessageLayout, payloads: pa.Array, budget: MemoryBudget
) -> tuple[pa.Array, DecodeState]:
    """Decode payloads without nulls to structs. The state says which of them are bad or need the
    runtime: their structs mean nothing."""
    count = len(payloads)
    offsets = arrow.blob_offsets(payloads).astype(np.int64)
    content = np.frombuffer((payloads.buffers()[2] if count else None) or b"", np.uint8)
    data = WireData(content[offsets[0] : offsets[-1]])
    offsets -= offsets[0]
    needs_runtime, has_replaced = np.zeros((2, count), np.bool_)
    state = DecodeState(offsets[:-1], needs_runtime, has_replaced, budget, bad={}, damage=[])
    arrays = _decode_fields(layout, data, offsets[:-1], offsets[1:], np.arange(count), state)
    return _struct_array(layout, arrays, count, None), state


def _decode_fields(
    layout: MessageLayout,
    data: WireData,
    starts: Ints,
    ends: Ints,
    rows: Ints,
    state: DecodeState,
    parts: MessageParts | None = None,
) -> list[pa.Array]:
    """Return one array for each field of the messages that lie at `starts` to `ends` of `data`, or
    in `parts`. `rows`: the row of each message, for errors."""
    if parts is None:
        spans, found_rows = (starts, ends), rows
    else:
        spans, found_rows = (parts.starts, parts.ends), rows[parts.messages]
    tokens, needs_runtime, damage = tokenize(data, *spans, layout.tags, layout.slot_count)
    state.damage += [(layout, found_rows[part.messages], part) for part in damage]
    if needs_runtime.any():
        state.needs_runtime[found_rows[needs_runtime]] = True
    if parts is not None:
        tokens = [parts.merge(slot_tokens) for slot_tokens in tokens]
    for slots in layout.oneofs:
        _flag_oneof_conflicts([tokens[slot] for slot in slots], rows, state)
    columns = _MessageColumns(data, starts, rows, state)
    return [
        columns.decode_field(field, layout.inner[index], tokens[2 * index], tokens[2 * index + 1])
        for index, field in enumerate(layout.message.fields)
    ]


def _struct_array(
    layout: MessageLayout, arrays: list[pa.Array], count: int, valid: Flags | None
) -> pa.Array:
    """Return an array of `count` structs with these fields' arrays, null where not `valid` (None:
    none is null)."""
    bitmap = None if valid is None else validity(valid)
    return pa.Array.from_buffers(layout.message.type, count, [bitmap], children=arrays)


def _flag_oneof_conflicts(members: list[list[Tokens]], rows: Ints, state: DecodeState) -> None:
    """Flag rows for the runtime if a message has several fields of a oneof: the last one counts.
    `members`: the tokens of each field of the oneof."""
    count = len(rows)
    joined_tokens = [
        joined for parts in members if (joined := join_tokens(parts, count)) is not None
    ]
    if len(joined_tokens) < 2:
        return
    field_counts = np.zeros(count, np.int64)
    for tokens in joined_tokens:
        # once for each field, even if it occurs twice
        field_counts[slice(None) if tokens.messages is None else tokens.messages] += 1
    if int(field_counts.max()) > 1:
        state.needs_runtime[rows[field_counts > 1]] = True


class _MessageColumns:
    """Decodes the fields of some messages, one column for each field. `starts`: where each message
    begins; `rows`: the row of each message."""

    def __init__(self, data: WireData, starts: Ints, rows: Ints, state: DecodeState) -> None:
        self.data, self.starts, self.rows, self.state = data, starts, rows, state
        self.count = len(starts)

    def decode_field(
        self,
        field: ProtobufField,
        inner: MessageLayout | None,
        parts: list[Tokens],
        packed_parts: list[Tokens],
    ) -> pa.Array:
        """Return the field of all messages. `inner`: the layout of its message, None for a scalar;
        `parts`, `packed_parts`: its tokens, without and with packing."""
        if field.cardinality is Cardinality.ONE:
            return self._decode_single(field, inner, join_tokens(parts, self.count))
        messages: Ints | None = None
        if packed_parts:
            counts, child = self._decode_packed(field, parts, packed_parts)
        else:
            messages, counts, child = self._decode_elements(field, inner, parts)
        if field.cardinality is Cardinality.MAP and messages is not None and len(messages):
            counts, child = self._last_entries(messages, counts, child)
        offsets = offsets_of(counts, np.int32)
        if field.is_json_text:
            return _join_texts(field, offsets.tolist(), child)
        buffers = [None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(field.type, self.count, buffers, children=[child])

    # --- one value --------------------------------------------------------------------------------

    def _decode_single(
        self, field: ProtobufField, inner: MessageLayout | None, tokens: Tokens | None
    ) -> pa.Array:
        """Return the column of a field that has one value. In messages without the field, the value
        is its default, or null."""
        present: Flags | None = None  # which messages have the field; None: all of them
        if tokens is None:
            present = np.zeros(self.count, np.bool_)
        elif tokens.messages is not None:
            present = self._is_among(tokens.messages)
        if field.required and present is not None:
            self.state.add_bad(
                self.rows[~present], field.path, lambda _: "it is required, and missing"
            )
        if tokens is None:
            if field.default is None or field.message is not None:
                return pa.nulls(self.count, field.type)
            return _repeat_default(field, self.count)
        if inner is not None and field.special not in types.FROM_BYTES:
            return self._decode_single_message(field, inner, tokens, present)
        if types.FIELD_TYPES[field.kind].wire == types.LEN or field.closed:
            self._flag_repeated_fields(field, tokens)
        if tokens.value is None:
            at, size = self._by_message(tokens)
            if present is not None and field.special in types.FROM_BYTES:
                indexes = np.flatnonzero(present)
                texts = self._decode_texts(field, at[indexes], size[indexes], self.rows[indexes])
                return spread(texts, indexes, self.count)
            array = self._decode_texts(field, at, size, self.rows)
        else:
            raw = tokens.value
            if tokens.messages is not None:
                raw = np.zeros(self.count, raw.dtype)
                raw[tokens.messages] = tokens.value
            array = self._decode_numbers(field, raw, present, lambda: self.rows)
        if present is None or present.all():
            return array
        if field.default is None:
            return null_outside(array, present)
        if field.default:  # zero is what absent values have already
            index = np.arange(self.count, dtype=np.int32)
            index[~present] = self.count
            default = _repeat_default(field, self.count).slice(0, 1)
            return pa.concat_arrays([array, default]).take(arrow.from_numpy(index))
        return array

    def _is_among(self, messages: Ints) -> Flags:
        """Return for each message whether its index is among `messages`."""
        flags = np.zeros(self.count, np.bool_)
        flags[messages] = True
        return flags

    def _by_message(self, tokens: Tokens) -> tuple[Ints, Ints]:
        """Return the position and size of each message's value; without one, the size is 0."""
        own_at, own_size = _bytes_of(tokens)
        if tokens.messages is None:
            return own_at, own_size
        at, size = self.starts.copy(), np.zeros(self.count, np.int64)
        at[tokens.messages], size[tokens.messages] = own_at, own_size
        return at, size

    def _decode_numbers(
        self,
        field: ProtobufField,
        raw: NDArray[Any],
        present: Flags | None,
        rows: Callable[[], Ints],
    ) -> pa.Array:
        """Return the column's values of raw numbers. `present`: see `_number_array`. `rows` returns
        the row of each number, and is called only if one is bad."""
        name_size = field.max_name_size
        if name_size > BUDGET_PER_BYTE and not self.state.budget.take(len(raw) * name_size):
            reason = f"the names of its {len(raw):,} values are too many bytes"
            self.state.add_bad(rows()[:1], field.path, lambda _: reason)
            return pa.nulls(len(raw), field.value_type)
        array, needs_runtime, wrong = _number_array(field, raw, present)
        if needs_runtime is not None:
            self.state.needs_runtime[rows()[needs_runtime]] = True
        if wrong is not None:
            indexes = np.flatnonzero(wrong)
            self.state.add_bad(
                rows()[indexes],
                field.path,
                lambda index: _misfit_reason(field, int(raw[indexes[index]])),
            )
        return array

    def _decode_texts(self, field: ProtobufField, at: Ints, size: Ints, rows: Ints) -> pa.Array:
        """Return strings, bytes, and messages that become text or bytes, which lie at `at` with
        these sizes. `rows`: the row of each value."""
        array = gather(self.data.buffer, at, size)
        if field.special is Special.JSON or field.special is Special.TEXT:
            array, reasons = _json_texts(field, array, self.state.budget)
            self._add_bad_values(field, rows, reasons)
            return array
        if field.kind == types.BYTES or field.special is Special.BYTES:
            return array
        try:
            texts = as_texts(array)
        except pa.ArrowInvalid:
            texts, is_good = replace_bad_texts(array)
            self.state.add_bad(rows[~is_good], field.path, lambda _: "its text is not UTF-8")
        return texts.cast(field.value_type)

    def _decode_single_message(
        self, field: ProtobufField, inner: MessageLayout, tokens: Tokens, present: Flags | None
    ) -> pa.Array:
        """Return the column of a field that is a message, null in messages without the field
        (`present` is false). If most messages have the field, the others are decoded as if theirs
        were empty, which is faster than leaving them out, unless required fields would be missing.
        """
        if self._has_several(tokens) is not None:
            return self._merge_messages(field, inner, tokens)
        at, size = self._by_message(tokens)
        most_have = present is None or 2 * int(np.count_nonzero(present)) >= self.count
        if present is None or (most_have and not inner.has_required):
            return self._decode_nested(field, inner, at, size, self.rows, present)
        indexes = np.flatnonzero(present)
        at, size, rows = at[indexes], size[indexes], self.rows[indexes]
        return spread(self._decode_nested(field, inner, at, size, rows, None), indexes, self.count)

    def _has_several(self, tokens: Tokens) -> Flags | None:
        """Return which messages have several values of a field that may have one; None if none."""
        if tokens.messages is None or tokens.ascending:  # at most one value for each message
            return None
        counts = np.bincount(tokens.messages, minlength=self.count)
        return counts > 1 if int(counts.max()) > 1 else None

    def _merge_messages(
        self, field: ProtobufField, inner: MessageLayout, tokens: Tokens
    ) -> pa.Array:
        """Return the column of a field that is a message and that some messages have several times:
        these parts are merged into one message, as protobuf's runtime does."""
        messages: Any = tokens.messages
        # Sort the tokens by message: those of one become its parts.
        order = np.argsort(messages, kind="stable")
        at, size = (array[order] for array in _bytes_of(tokens))
        messages = messages[order]
        is_first = np.diff(messages, prepend=-1) > 0
        parts = MessageParts(at, at + size, np.cumsum(is_first) - 1)
        first = np.flatnonzero(is_first)
        indexes = messages[first]
        array = self._decode_nested(
            field, inner, at[first], size[first], self.rows[indexes], None, parts
        )
        return array if len(indexes) == self.count else spread(array, indexes, self.count)

    def _flag_repeated_fields(self, field: ProtobufField, tokens: Tokens) -> None:
        """Flag rows for the runtime if a message has the field, which is not repeated, several
        times: the runtime refuses invalid texts, merges messages that become text, and takes an
        unknown number of a closed enum for absent. (Otherwise the last value counts.)"""
        repeated = self._has_several(tokens)
        if repeated is None or field.kind == types.BYTES:
            return
        if field.kind == types.STRING:
            at, size = _bytes_of(tokens)
            order = np.argsort(at)
            texts = gather(self.data.buffer, at[order], size[order])
            messages: Any = tokens.messages
            repeated &= self._is_among(messages[order[~is_utf8(texts)]])
        self.state.needs_runtime[self.rows[repeated]] = True

    def _add_bad_values(self, field: ProtobufField, rows: Ints, reasons: dict[int, str]) -> None:
        """Mark the rows of bad values as bad. `rows` has the row of each value; `reasons` says by
        the index of a value why it is bad."""
        indexes = np.array(sorted(reasons), np.int64)
        self.state.add_bad(rows[indexes], field.path, lambda index: reasons[int(indexes[index])])

    def _decode_nested(
        self,
        field: ProtobufField,
        inner: MessageLayout,
        at: Ints,
        size: Ints,
        rows: Ints,
        present: Flags | None,
        parts: MessageParts | None = None,
    ) -> pa.Array:
        """Return the messages of a field, as structs or as its special type; null where not
        `present` (None: all are). Message i has size[i] bytes from position at[i] on, or lies in
        several `parts`; `rows` has the row of each, for errors."""
        arrays = _decode_fields(inner, self.data, at, at + size, rows, self.state, parts)
        if field.special is None:
            return _struct_array(inner, arrays, len(at), present)
        array, reasons = _special_array(field, arrays, present)
        self._add_bad_values(field, rows, reasons)
        return array if present is None else null_outside(array, present)

    # --- many values ------------------------------------------------------------------------------

    def _decode_elements(
        self, field: ProtobufField, inner: MessageLayout | None, parts: list[Tokens]
    ) -> tuple[Ints | None, Ints, pa.Array]:
        """Return the message of each value of a repeated field or map (None: each message has one
        value), how many each message has, and all values, in the order of the messages."""
        tokens, counts = sort_tokens(parts, self.count)
        if tokens is None:
            return None, counts, pa.nulls(0, _element_type(field))
        messages = tokens.messages
        rows = self.rows if messages is None else self.rows[messages]
        if tokens.value is not None:
            array = self._decode_numbers(field, tokens.value, None, lambda: rows)
            return messages, counts, array
        at, size = _bytes_of(tokens)
        if inner is None or field.special in types.FROM_BYTES:
            array = self._decode_texts(field, at, size, rows)
        elif not self.state.budget.take(len(at) * inner.column_bytes):
            reason = (
                f"its {len(at):,} messages take too much memory as columns for the size of the "
                "payload"
            )
            # There is only one: with several rows, take raises.
            self.state.add_bad(rows[:1], field.path, lambda _: reason)
            return None, np.zeros(self.count, np.int64), pa.nulls(0, _element_type(field))
        elif field.cardinality is Cardinality.MAP:
            array = self._decode_entries(field, inner, at, size, rows)
        else:
            array = self._decode_nested(field, inner, at, size, rows, None)
        return messages, counts, array

    def _decode_packed(
        self, field: ProtobufField, parts: list[Tokens], packed_parts: list[Tokens]
    ) -> tuple[Ints, pa.Array]:
        """Return how many values of a repeated field each message has, and all values, in the order
        of the messages. `packed_parts`: the tokens of packed values; `parts`: of those that are not
        packed. The runtime reads messages that have both."""
        packed: Any = packed_parts[0]
        if len(packed_parts) > 1 or not packed.ascending:
            packed = sort_tokens(packed_parts, self.count)[0]
        raw, counts, wrong = _unpack(self.data, *_bytes_of(packed), field.kind)
        if wrong is not None:
            wrong_messages = wrong if packed.messages is None else packed.messages[wrong]
            self.state.needs_runtime[self.rows[wrong_messages]] = True
        if packed.messages is not None:
            sums = np.bincount(packed.messages, counts, self.count)
            counts = sums.astype(np.int64)
        tokens: Any
        tokens, other_counts = sort_tokens(parts, self.count)
        if tokens is not None:
            both = (counts > 0) & (other_counts > 0)  # the order of their values is lost
            self.state.needs_runtime[self.rows[both]] = True
            others = tokens.sparse(self.count).messages
            messages: Any = np.append(np.repeat(np.arange(self.count), counts), others)
            raw = np.append(raw, tokens.value)[np.argsort(messages, kind="stable")]
            counts = counts + other_counts
        array = self._decode_numbers(field, raw, None, lambda: np.repeat(self.rows, counts))
        return counts, array

    def _decode_entries(
        self, field: ProtobufField, inner: MessageLayout, at: Ints, size: Ints, rows: Ints
    ) -> pa.Array:
        """Return the entries of maps as structs of key and value; they lie at `at` with these
        sizes. `rows`: the row of each entry."""
        arrays = _decode_fields(inner, self.data, at, at + size, rows, self.state)
        if arrays[1].null_count:  # for the runtime, a value (a message) that is absent is empty
            self.state.needs_runtime[rows[~arrow.is_valid(arrays[1])]] = True
        return pa.Array.from_buffers(_element_type(field), len(at), [None], children=arrays)

    def _last_entries(
        self, messages: Ints, counts: Ints, entries: pa.Array
    ) -> tuple[Ints, pa.Array]:
        """Return how many entries each map keeps, and these: of several with one key the last.
        `messages`: the message of each entry; `counts`: how many each has."""
        replaced = repeated_keys(entries.field(0), np.bincount(messages))
        if not len(replaced):
            return counts, entries
        self.state.has_replaced[self.rows[messages[replaced]]] = True
        kept = np.delete(np.arange(len(messages)), replaced)
        counts = counts - np.bincount(messages[replaced], minlength=self.count)
        return counts, entries.take(arrow.from_numpy(kept))


def _bytes_of(tokens: Tokens) -> tuple[Ints, Ints]:
    """Return the positions and sizes of values that have a length."""
    if tokens.at is None or tokens.size is None:
        raise ValueError("values without a length")
    return tokens.at, tokens.size


def _element_type(field: ProtobufField) -> pa.DataType:
    """Return the Arrow type of one element of the column: of a list, or an entry of a map."""
    if field.is_json_text and field.message is not None:
        return field.message.type
    if field.cardinality is Cardinality.MAP:
        return pa.struct([field.type.key_field, field.type.item_field])
    return field.value_type


# --- numbers --------------------------------------------------------------------------------------
#
# Raw numbers are as read: unsigned, in any width (and bits of floats), before zigzag decoding.

_MAX_UINT32: Final = (1 << 32) - 1


def _unpack(
    data: WireData, at: Ints, size: Ints, kind: int
) -> tuple[NDArray[Any], Ints, Flags | None]:
    """Return the raw numbers of packed fields, all in one array; how many each field has; and which
    fields are damaged (None: none), whose numbers mean nothing. Field i lies in size[i] bytes from
    at[i] on. `kind` is its protobuf type, as in FIELD_TYPES."""
    width = types.FIXED_WIDTH.get(types.FIELD_TYPES[kind].wire)
    if width is not None:
        is_damaged = size % width != 0
    else:
        # A field whose last byte has a continuation bit ends inside a varint.
        last = data.bytes.take(at + size - 1)
        is_damaged = (last >= 0x80) & (size > 0)
    any_damaged = bool(is_damaged.any())
    if any_damaged:
        size = np.where(is_damaged, 0, size)
    gathered = gather(data.buffer, at, size)
    content: Any = np.frombuffer(gathered.buffers()[2] or b"", np.uint8)
    content = content[: arrow.blob_offsets(gathered)[-1]]
    if width is not None:
        raw = content.view("<u8" if width == 8 else "<u4")
        return raw, size // width, is_damaged if any_damaged else None
    if not len(content) or int(content.max()) < 0x80:
        return content, size, is_damaged if any_damaged else None
    is_last = content < 0x80
    stops = np.flatnonzero(is_last)  # the last byte of each varint
    starts = np.empty_like(stops)
    starts[0], starts[1:] = 0, stops[:-1] + 1
    raw, _, is_too_long = read_varints(content, starts)
    counts = np.diff(offsets_of(is_last, np.int32)[offsets_of(size)])
    if is_too_long is not None:
        is_damaged[np.repeat(np.arange(len(size)), counts)[is_too_long]] = True
    return raw, counts, is_damaged if is_damaged.any() else None


def _number_array(
    field: ProtobufField, raw: NDArray[Any], present: Flags | None
) -> tuple[pa.Array, Flags | None, Flags | None]:
    """Return the column's values of raw numbers, which rows protobuf's runtime must decode, and
    which do not fit the column (None: none). Where not `present` (None: all are), raw is 0."""
    kind, value_type = field.kind, field.value_type
    if kind == types.DOUBLE:
        return arrow.from_numpy(raw, pa.float64()), None, None
    if kind == types.FLOAT:
        if value_type == pa.float32():
            return arrow.from_numpy(raw, value_type), None, None
        return arrow.from_numpy(raw.view(np.float32).astype(np.float64), value_type), None, None
    if kind == types.BOOL:
        return arrow.from_numpy(raw != 0), None, None
    out_of_range = _exceeds_32_bits(kind, raw) if field.checks_range else None
    numbers = _integers(kind, raw)
    if kind == types.ENUM:
        array, needs_runtime = _enum_array(field, numbers, present)
        return array, needs_runtime, out_of_range
    array, too_large = _integer_array(numbers, value_type)
    if too_large is not None:
        out_of_range = too_large if out_of_range is None else out_of_range | too_large
    return array, None, out_of_range


def _exceeds_32_bits(kind: int, raw: NDArray[Any]) -> Flags | None:
    """Return which raw numbers a field of 32 bits cannot have; None if all fit, or if the field has
    64 bits. `kind` is its protobuf type."""
    if raw.itemsize < 8 or kind not in types.VARINT32:
        return None
    if types.VARINT32[kind] == "signed":
        return _outside(raw.view(np.int64), *types.RANGE32)
    is_above = len(raw) and int(raw.max()) > _MAX_UINT32
    return raw > np.uint64(_MAX_UINT32) if is_above else None


def _integers(kind: int, raw: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers that raw ones stand for in a field of the protobuf type `kind`: as signed
    or unsigned integers of 8, 32 or 64 bits. Those wider than the field are cut to its bits, as in
    Protobuf's encoding guide ("as if you had cast the number to that type in C++")."""
    if raw.itemsize == 8 and kind in types.VARINT32:
        raw = raw.astype(np.uint32)
    if kind in (types.UINT64, types.FIXED64):
        return raw.astype(np.uint64, copy=False)
    if kind in (types.SINT32, types.SINT64):
        return unzigzag(raw)
    is_signed32 = types.VARINT32.get(kind) == "signed"
    if kind == types.SFIXED32 or (is_signed32 and raw.itemsize == 4):
        return raw.view(np.int32)
    if raw.itemsize == 1:
        return raw
    return raw.view(np.int64) if raw.itemsize == 8 else raw.astype(np.int64)


def _outside(values: NDArray[Any], first: int, last: int) -> Flags | None:
    """Return which values are below `first` or above `last`; None if none is."""
    if not len(values) or (values.itemsize == 1 and last >= 255):
        return None
    if int(values.min()) >= first and int(values.max()) <= last:
        return None
    flags: Flags = (values < first) | (values > last)
    return flags


def _integer_array(values: NDArray[Any], value_type: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Return integers as an array of the column's type, and which of them do not fit it (None: all
    fit)."""
    if pa.types.is_decimal(value_type):
        words = np.empty((len(values), 2), np.int64)  # of a decimal128: the lower 64 bits first
        if values.dtype == np.uint64:
            words[:, 0], words[:, 1] = values.view(np.int64), 0
        else:
            words[:, 0] = values
            words[:, 1] = words[:, 0] >> 63
        whole = value_type if value_type.scale == 0 else pa.decimal128(20, 0)
        array = pa.Array.from_buffers(whole, len(values), [None, pa.py_buffer(words)])
        return (array if value_type.scale == 0 else array.cast(value_type)), None
    if value_type == pa.float64():
        return arrow.from_numpy(values.astype(np.float64), value_type), None
    is_wide = value_type == pa.int64()
    wrong = None
    if is_wide and values.dtype == np.uint64:
        wrong = _outside(values, 0, (1 << 63) - 1)
    elif not is_wide and values.dtype != np.int32:
        wrong = _outside(values, *types.RANGE32)
    numbers = values.astype(np.int64 if is_wide else np.int32, copy=False)
    return arrow.from_numpy(numbers, value_type), wrong


def _enum_array(
    field: ProtobufField, values: NDArray[Any], present: Flags | None
) -> tuple[pa.Array, Flags | None]:
    """Return the column of an enum: names, or numbers if the column has numbers. Return also which
    values only protobuf's runtime can read (None: none): unknown numbers of a closed enum, unless
    the field is null for them. An unknown number of an open enum becomes its digits. `values` are
    the numbers; where not `present` (None: all are), a number means nothing."""
    numbers = sorted(field.names)
    index, unknown = _find_numbers(values, numbers)
    if unknown is not None and present is not None:
        unknown &= present
    if unknown is not None and not unknown.any():
        unknown = None
    may_be_null = field.presence and field.default is None and not field.required
    if unknown is not None and field.closed and may_be_null:
        known = np.flatnonzero(~unknown)
        return spread(_enum_array(field, values[known], None)[0], known, len(values)), None
    needs_runtime = unknown if field.closed else None
    if not pa.types.is_string(field.value_type):
        dtype = np.int32 if field.value_type == pa.int32() else np.int64
        return arrow.from_numpy(values.astype(dtype)), needs_runtime
    names = [field.names[number] for number in numbers]
    if unknown is not None:
        others, other_index = np.unique(values[unknown], return_inverse=True)
        index = index.astype(np.int64)
        index[unknown] = len(names) + other_index
        names += [str(number) for number in others.tolist()]
    return _text_array(names).take(
        arrow.from_numpy(index.astype(np.int32, copy=False))
    ), needs_runtime


def _find_numbers(values: NDArray[Any], known: list[int]) -> tuple[Ints, Flags | None]:
    """Return the index of each value in `known`, which ascends, and which values are not in it
    (None: all are). The index of a value that is not in it means nothing."""
    if known == list(range(len(known))):
        unknown = _outside(values, 0, len(known) - 1)
        return (values if unknown is None else np.where(unknown, 0, values)), unknown
    table = np.array(known, np.int64)
    index = np.searchsorted(table, values)
    index[index == len(table)] = 0
    return index, table[index] != values


def _text_array(texts: list[str]) -> pa.Array:
    """Return texts as an Arrow array of strings."""
    return arrow.binary_array([text.encode() for text in texts]).view(pa.string())


def _repeat_default(field: ProtobufField, count: int) -> pa.Array:
    """Return an array of `count` times the field's default."""
    value = field.default
    if field.kind in (types.STRING, types.BYTES):
        data = value.encode() if isinstance(value, str) else value
        if len(data) * count >= 1 << 31:
            raise MemoryError(field.path)
        return arrow.repeat_text(data, count).view(field.value_type)
    raw: Any = np.full(count, value, _DEFAULT_TYPES.get(field.kind, np.int64))
    if field.kind in (types.SINT32, types.SINT64):
        raw = zigzag(raw)
    return _number_array(field, raw.view(f"u{raw.itemsize}"), None)[0]


_DEFAULT_TYPES: Final[dict[int, Any]] = {
    types.DOUBLE: np.float64,
    types.FLOAT: np.float32,
    types.BOOL: np.uint8,
    types.UINT64: np.uint64,
    types.FIXED64: np.uint64,
    types.SFIXED32: np.int32,
}


def _misfit_reason(field: ProtobufField, raw: int) -> str:
    """Return why a raw number does not fit the column."""
    target = types.FIELD_TYPES[field.kind].name
    if types.VARINT32.get(field.kind) == "signed":
        number = raw - (1 << 64) if raw >= 1 << 63 else raw
    elif field.kind == types.SINT32:
        number = (raw >> 1) ^ -(raw & 1)
    else:
        number = raw
        if field.kind == types.UINT32 and not field.checks_range:
            number &= _MAX_UINT32
        if field.kind != types.UINT32 or number <= _MAX_UINT32:
            target = str(field.value_type)
    return f"{number} does not fit {target}"


# --- messages that do not become structs ----------------------------------------------------------

_MAX_SECONDS: Final = (1 << 63) // 1_000_000 - 10
"""64 bits of microseconds, less what the field `nanos` of 32 bits can add."""


def _special_array(
    field: ProtobufField, arrays: list[pa.Array], present: Flags | None
) -> tuple[pa.Array, dict[int, str]]:
    """Return the column of a well-known message, and why values do not fit it, by their index.
    `arrays` are the columns of its fields, in the order of the message. Where not `present` (None:
    all are), all fields are 0."""
    if field.special is Special.WRAPPER:
        return arrays[0], {}
    if field.special is Special.DATE:
        year, month, day = (arrow.to_numpy(array).astype(np.int64) for array in arrays)
        return _date_array(year, month, day, present)
    if field.special is Special.DECIMAL:
        unscaled, _, scales = arrays
        return _decimal_array(unscaled, arrow.to_numpy(scales), field.value_type)
    seconds, nanos = (arrow.to_numpy(array).astype(np.int64, copy=False) for array in arrays)
    wrong = (seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)
    reasons = {}
    if wrong.any():
        for index in np.flatnonzero(wrong).tolist():
            reasons[index] = f"{seconds[index]} s do not fit a {field.value_type} in microseconds"
        seconds = np.where(wrong, 0, seconds)
    # Towards zero, as Java's TimeUnit: nanos of a negative duration are negative.
    micros = seconds * 1_000_000 + np.where(nanos < 0, -(-nanos // 1000), nanos // 1000)
    return arrow.from_numpy(micros, field.value_type), reasons


def _date_array(
    year: Ints, month: Ints, day: Ints, present: Flags | None
) -> tuple[pa.Array, dict[int, str]]:
    """Return google.type.Date as dates, and why values are none, by their index. The arrays have a
    number for each value; where not `present` (None: all are), all three are 0."""
    months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64) + day - 1
    next_month = (months + 1).astype("M8[D]").astype(np.int64)
    is_date = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12)
    is_date &= (day >= 1) & (days < next_month)
    wrong = ~is_date if present is None else ~is_date & present
    reasons = {
        index: f"year {year[index]}, month {month[index]}, day {day[index]} is not a date"
        for index in np.flatnonzero(wrong).tolist()
    }
    return arrow.from_numpy(np.where(is_date, days, 0).astype(np.int32), pa.date32()), reasons


def _decimal_array(
    unscaled: pa.Array, scales: NDArray[Any], column_type: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """Return confluent.type.Decimal as decimals of `column_type`, and why values do not fit, as
    `_special_array`. `unscaled`: bytes of numbers, as `schemas.decimals` reads them; `scales`: the
    scale of each."""
    offsets = arrow.blob_offsets(unscaled).astype(np.int64)
    sizes = np.diff(offsets)
    content = np.frombuffer(unscaled.buffers()[2] or bytes(1), np.uint8)
    words = decimals.read_words(content, offsets[:-1], np.minimum(sizes, 16))
    # Most have the column's scale. The others are rescaled one by one.
    is_done = (sizes <= 16) & (scales == column_type.scale)
    is_done &= ~decimals.exceeds(words, 10**column_type.precision - 1)
    reasons: dict[int, str] = {}
    for index in np.flatnonzero(~is_done).tolist():
        data = content[offsets[index] : offsets[index + 1]].tobytes()
        value = _rescale(data, int(scales[index]), column_type)
        if isinstance(value, str):
            reasons[index] = value
            value = 0
        words[index, 0] = value & 0xFFFFFFFFFFFFFFFF
        words[index, 1] = (value >> 64) & 0xFFFFFFFFFFFFFFFF
    return pa.Array.from_buffers(column_type, len(words), [None, pa.py_buffer(words)]), reasons


def _rescale(data: bytes, scale: int, column_type: pa.DataType) -> int | str:
    """Return the number (`data`: its bytes, unscaled) at the column's scale, or why it does not
    fit."""
    # Of more bytes, or with a larger scale, it is refused unseen: powers of 10 take long.
    value = int.from_bytes(data, "big", signed=True) if len(data) <= 64 else None
    if value == 0:
        return 0
    if value is not None and abs(scale) <= 200:
        shift = int(column_type.scale) - scale
        power = int(10 ** abs(shift))
        shifted, remainder = (value * power, 0) if shift >= 0 else divmod(value, power)
        if remainder == 0 and abs(shifted) < 10 ** int(column_type.precision):
            return shifted
    return f"a decimal of {len(data)} bytes and scale {scale} does not fit {column_type}"


def _json_texts(
    field: ProtobufField, payloads: pa.Array, budget: MemoryBudget
) -> tuple[pa.Array, dict[int, str]]:
    """Return google.protobuf.Struct, Value and ListValue, and recursive messages, as JSON texts,
    one by one, and why some cannot be JSON, by their index. An empty payload is an empty message:
    {}, [] or, where a Value has no kind, null."""
    protobuf = library()
    errors = (protobuf.message.DecodeError, protobuf.json_format.Error)
    message_class = field.text_message_class
    texts: list[bytes] = []
    reasons: dict[int, str] = {}
    for index in range(len(payloads)):
        data = payloads[index].as_buffer()
        text = b"null"
        try:
            message = message_class.FromString(bytes(data))
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
            value = protobuf.json_format.MessageToDict(message, preserving_proto_field_name=True)
            dumped = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            text = dumped.encode()
        except (*errors, ValueError, TypeError, RecursionError) as error:
            name = field.text_message_name
            reasons[index] = f"this {name} cannot be written as JSON: {str(error)[:200]}"
        if len(text) > BUDGET_PER_BYTE * len(data) and not budget.take(len(text)):
            reasons[index], text = (
                "its JSON text takes too much memory for the size of the payload",
                b"null",
            )
        texts.append(text)
    return arrow.binary_array(texts).view(pa.string()), reasons


def _join_texts(field: ProtobufField, offsets: list[int], child: pa.Array) -> pa.Array:
    """Return one JSON text for each list or map, whose elements are JSON texts. List i has the
    elements [offsets[i], offsets[i + 1]) of `child`."""
    if field.cardinality is Cardinality.MAP:
        keys, texts = child.field(0).cast(pa.string()).to_pylist(), child.field(1).to_pylist()
        items = [f"{json.dumps(key)}:{text}" for key, text in zip(keys, texts, strict=True)]
        form = "{%s}"
    else:
        items, form = child.to_pylist(), "[%s]"
    return _text_array([form % ",".join(items[start:end]) for start, end in pairwise(offsets)])
