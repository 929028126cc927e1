"""Protobuf's wire format: finds where each field lies in the messages, many messages at once.

The messages of one type are read in waves. A wave is one field of all messages that have it next.
Writers put fields in the order of their numbers, so one pass over the known fields takes most
messages to their end; what is left (unknown fields, another order) takes another pass. A few
messages that are longer than the others are read one by one.

A message that is damaged gets an error here, the same in waves and one by one. One with groups is
only flagged (`needs_runtime`): protobuf's own runtime then decides what it means, see
`normalizer.py`.

A message's index is its index among the messages that are read together. A slot is an index in the
list of tokens that `tokenize` returns: its caller chooses a slot for each tag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.varint_columns import (
    Bytes,
    Flags,
    Ints,
    read_unsigned,
    widths,
    words_at,
)
from sparkkafka.protocol.wire.varints import read_varint
from sparkkafka.schemas.protobuf.types import EGROUP, FIXED_WIDTH, I32, I64, LEN, SGROUP, VARINT

MIN_WAVE_MESSAGES: Final = 13
"""Fewer messages are read one by one: that takes about as long as a wave."""

SKIP: Final = -1
"""The slot of a field that is not read."""

MAX_TAG: Final = (1 << 32) - 1

_VARINT_BITS = 70  # ten bytes

_WRONG_WIRES: Final = {
    EGROUP: "a group ends that did not begin",
    6: "there is no wire type 6",
    7: "there is no wire type 7",
}
"""What is wrong with a field of a wire type that has no value."""


class WireData:
    """Bytes in which messages lie, for NumPy, Arrow and Python."""

    __slots__ = ("buffer", "bytes", "raw")

    def __init__(self, content: Bytes) -> None:
        self.bytes = content if len(content) else np.zeros(1, np.uint8)  # `take` needs a byte
        self.buffer = pa.py_buffer(self.bytes)
        self.raw = memoryview(self.bytes.data)


@dataclass(order=True, slots=True)
class KnownTag:
    """A tag (number << 3 | wire type) of messages. `encoded`: its bytes. `slot`: where its tokens
    are put, or SKIP. `repeated`: it may come several times in a row. `last_were_long`: the last
    varints had more than three bytes, as the next ones may."""

    tag: int
    encoded: bytes
    slot: int
    repeated: bool
    last_were_long: bool = False


class Tokens(NamedTuple):
    """The values of one field: numbers (`value`, as read: unsigned), or where bytes lie (`at`, and
    their `size`). `messages`: the index of each value's message; None if there is one for each
    message, in order."""

    messages: Ints | None
    value: NDArray[Any] | None
    at: Ints | None
    size: Ints | None
    ascending: bool = True
    """The indexes in `messages` ascend, and none occurs twice."""

    def sparse(self, count: int) -> Tokens:
        """Return the same tokens, with the numbers of all messages as `messages` if that is None.
        `count`: how many messages there are."""
        return self if self.messages is not None else self._replace(messages=np.arange(count))


def join_tokens(parts: list[Tokens], count: int) -> Tokens | None:
    """Join the tokens of a field in `count` messages; None if there are none. Tokens of one message
    keep their order, but `messages` need not ascend."""
    if len(parts) < 2:
        return parts[0] if parts else None
    joined: list[Any] = []
    for arrays in zip(*(part.sparse(count)[:4] for part in parts), strict=True):
        known = [array for array in arrays if array is not None]
        joined.append(np.concatenate(known) if known else None)
    messages, value, at, size = joined
    return Tokens(messages, value, at, size, ascending=False)


def sort_tokens(parts: list[Tokens], count: int) -> tuple[Tokens | None, Ints]:
    """Join the tokens of a field in `count` messages, in the order of the messages, and of each
    message's values: (tokens, or None if there are none; how many each message has)."""
    joined = join_tokens(parts, count)
    if joined is None:
        return None, np.zeros(count, np.int64)
    if joined.messages is None:
        return joined, np.ones(count, np.int64)
    counts = np.bincount(joined.messages, minlength=count)
    if not joined.ascending:
        order = np.argsort(joined.messages, kind="stable")
        columns: list[Any] = [None if column is None else column[order] for column in joined[:4]]
        joined = Tokens(*columns)
    return joined, counts


class Damage(NamedTuple):
    """Messages that cannot be read: their indexes, where the damaged field of each begins, its tag
    (0 if there is none), and a function of the index in these arrays that returns what is wrong."""

    messages: Ints
    at: Ints
    tags: Ints
    reason: Callable[[int], str]


class TokenizedMessages(NamedTuple):
    """What `tokenize` finds. `tokens` has a list for each slot, to be joined by `join_tokens` or
    `sort_tokens`. `needs_runtime`: which messages the runtime must read. The tokens of those, and
    of damaged messages, mean nothing, but lie inside the message."""

    tokens: list[list[Tokens]]
    needs_runtime: Flags
    damage: list[Damage]


def tokenize(
    data: WireData, starts: Ints, ends: Ints, tags: tuple[KnownTag, ...], slot_count: int
) -> TokenizedMessages:
    """Find the fields of all messages, which lie at `starts` to `ends` of `data`. `tags`: those to
    look for; `slot_count`: how many lists of tokens the result has."""
    tokenizer = _Tokenizer(data, len(starts), tags, slot_count)
    if len(starts) < MIN_WAVE_MESSAGES:
        tokenizer.read_one_by_one(np.arange(len(starts)), starts, ends)
    else:
        tokenizer.read_waves(starts, ends)
    tokenizer.add_single_tokens()
    return tokenizer.result


class _Tokenizer:
    """Finds the tokens of `count` messages: see `tokenize`. A message is open until all its fields
    are read; `selected` are indexes of open messages among all open ones."""

    def __init__(
        self, data: WireData, count: int, tags: tuple[KnownTag, ...], slot_count: int
    ) -> None:
        self.data = data
        self.tags = tags
        self.slot_of = {known.tag: known.slot for known in tags}
        self.result = TokenizedMessages(
            [[] for _ in range(slot_count)], np.zeros(count, np.bool_), []
        )
        # Tokens of messages that are read one by one. By slot: the wire type; then for each token
        # the message, the position, and the value or size.
        self.single_tokens: dict[int, tuple[int, list[int], list[int], list[int]]] = {}
        # The messages that were found damaged meanwhile: index, position, tag and reason.
        self.single_damage: list[tuple[int, int, int, str]] = []

    # --- in waves ---------------------------------------------------------------------------------

    def read_waves(self, starts: Ints, ends: Ints) -> None:
        """Read all fields of all messages: in passes over the known tags, and after each pass the
        next unknown field of each message that has not ended."""
        # The indexes of open messages: those that had not ended after the last pass. None: all.
        self.open_messages: Ints | None = None
        # For each open message: its position, its end, and the first byte of the next tag (0 if the
        # message has ended during this pass).
        self.at, self.end = starts.copy(), ends
        self.next_byte = self._read_next_bytes(starts, starts < ends)
        # In a step over all tags. The first one always counts as worth its time.
        self.values_read = len(self.tags)
        while True:
            for known in self.tags:  # one pass
                while self._read_wave(known) and known.repeated:
                    pass
            remaining = np.flatnonzero(self.at < self.end)
            if not len(remaining):
                return
            self.open_messages = self._indexes_of(remaining)
            self.at, self.end, self.next_byte = (
                self.at[remaining],
                self.end[remaining],
                self.next_byte[remaining],
            )
            # For fewer values than tags, reading one by one takes less time than another step.
            if self.values_read < len(self.tags):
                self._read_to_end(np.arange(len(remaining)))
                return
            self.values_read = 0
            self._skip_unknown()

    def _read_next_bytes(self, at: Ints, is_inside: Flags) -> Bytes:
        """Return the byte at each position, 0 where the position is not inside the message."""
        read: Bytes = self.data.bytes.take(at, mode="clip")
        if not is_inside.all():
            read *= is_inside
        return read

    def _read_wave(self, known: KnownTag) -> bool:
        """Read one field with this tag, of each open message in which it is the next one. Return
        False if it is next in none."""
        is_next: Flags = self.next_byte == known.encoded[0]
        count = int(np.count_nonzero(is_next))
        if count and len(known.encoded) > 1:
            for index in range(1, len(known.encoded)):
                byte = self.data.bytes.take(self.at + index, mode="clip")
                is_next &= byte == known.encoded[index]
            count = int(np.count_nonzero(is_next))
        size = len(known.encoded)
        if not count:
            return False
        if count < MIN_WAVE_MESSAGES:
            self._read_to_end(np.flatnonzero(is_next))
        elif count == len(is_next):
            self._read_values(known, self.at + size)
        else:
            selected = np.flatnonzero(is_next)
            self._read_values(known, self.at[selected] + size, selected)
        return True

    def _read_values(self, known: KnownTag, begin: Ints, selected: Ints | None = None) -> None:
        """Read a field, whose value or length is at `begin`, of `selected` open messages (None: of
        all)."""
        self.values_read += len(begin)
        data, wire = self.data.bytes, known.tag & 7  # a tag is the number << 3 | the wire type
        end = self.end if selected is None else self.end[selected]
        value: NDArray[Any] | None = None
        length: NDArray[Any] | None = None  # as written
        body: Ints | None = None  # where the bytes begin that have this length
        size: Ints | None = None  # the length, or if that is larger 2 GiB, beyond any end
        too_long: Flags | None = None  # which varints have more bytes than one may have
        if wire == LEN:
            length, body, too_long = read_varints(data, begin)
            size = length.astype(np.int64)
            if length.itemsize == 8:  # may not fit int64
                size[length > np.uint64(1 << 31)] = 1 << 31
            after = body + size
        elif wire == VARINT:
            value, after, too_long = read_varints(data, begin, are_long=known.last_were_long)
            known.last_were_long = value.itemsize == 8
        else:
            value = words_at(data, begin)
            if wire == I32:
                value = value.astype(np.uint32)
            after = begin + FIXED_WIDTH[wire]
        indexes = self.open_messages if selected is None else self._indexes_of(selected)
        tokens = Tokens(indexes, value, body, size)
        is_inside = after < end
        if too_long is not None or not is_inside.all():
            is_damaged = after > end
            if too_long is not None:
                is_damaged |= too_long
                if body is not None:
                    body[too_long] = end[too_long] + 1  # no length, so nothing is behind it
            bad = np.flatnonzero(is_damaged)
            if len(bad):
                self._add_overrun(
                    known.tag,
                    bad if selected is None else selected[bad],
                    begin[bad],
                    None if body is None or length is None else (body[bad], length[bad]),
                )
                after[bad], is_inside[bad] = end[bad], False  # no more of these is read
                columns = tokens.sparse(len(end))[:4]
                good: Any = [None if column is None else column[~is_damaged] for column in columns]
                tokens = Tokens(*good)
        if known.slot != SKIP:
            self.result.tokens[known.slot].append(tokens)
        next_byte = self._read_next_bytes(after, is_inside)
        if selected is None:
            self.at, self.next_byte = after, next_byte
        else:
            self.at[selected], self.next_byte[selected] = after, next_byte

    def _skip_unknown(self) -> None:
        """Read the next field of all open messages that have an unknown one next."""
        raw, body, too_long = read_varints(self.data.bytes, self.at)
        tags = raw.astype(np.uint64)
        # Field number 0, or more than the 32 bits, or five bytes, that a tag may have.
        invalid = (tags > np.uint64(MAX_TAG)) | (tags < 8) | (body - self.at > 5)
        is_cut = body > self.end
        if too_long is not None:
            is_cut |= too_long
        invalid |= is_cut
        known = np.isin(tags, np.array(list(self.slot_of), np.uint64))
        wires = np.where(known | invalid, -1, (tags & 7).astype(np.int64))
        # Known tags are recognized by their bytes, so longer ones are not read in waves.
        is_long = known & ~invalid & (body - self.at > widths(tags))
        self._read_to_end(np.flatnonzero(is_long))
        groups = np.flatnonzero(wires == SGROUP)
        self.result.needs_runtime[self._indexes_of(groups)] = True
        unreadable = np.flatnonzero((wires == EGROUP) | (wires > I32))
        self._add_damage(
            unreadable, tags[unreadable], lambda index: _WRONG_WIRES[wires.item(unreadable[index])]
        )
        for ended in (groups, unreadable):
            self.at[ended], self.next_byte[ended] = self.end[ended], 0
        if invalid.any():
            self._add_invalid_tags(np.flatnonzero(invalid), is_cut)
        for wire in (VARINT, I64, LEN, I32):
            selected = np.flatnonzero(wires == wire)
            if len(selected) < MIN_WAVE_MESSAGES:
                self._read_to_end(selected)
            else:
                self._read_values(KnownTag(wire, b"", SKIP, True), body[selected], selected)

    def _add_invalid_tags(self, selected: Ints, is_cut: Flags) -> None:
        """Note that the open messages with the indexes `selected` are damaged, because their next
        tag is not valid. `is_cut` says for each open message whether that tag is cut off."""
        remaining = np.where(is_cut, self.end - self.at, 0)[selected]
        self._add_damage(
            selected,
            0,
            lambda index: (
                _reason(VARINT, remaining[index]) if remaining[index] else "there is no valid tag"
            ),
        )
        self.at[selected], self.next_byte[selected] = self.end[selected], 0  # nothing is left

    def _indexes_of(self, selected: Ints) -> Ints:
        """Return the indexes of open messages among all messages."""
        return selected if self.open_messages is None else self.open_messages[selected]

    def _read_to_end(self, selected: Ints) -> None:
        """Read all fields that are left of these open messages, one message after the other."""
        self.read_one_by_one(self._indexes_of(selected), self.at[selected], self.end[selected])
        self.at[selected], self.next_byte[selected] = self.end[selected], 0

    def _add_damage(self, selected: Ints, tags: Any, reason: Callable[[int], str]) -> None:
        """Note that these open messages are damaged at their next field, which has this tag, or
        these tags. `reason`: see `Damage`."""
        if len(selected):
            tags = np.broadcast_to(tags, len(selected)).astype(np.int64)
            messages, at = self._indexes_of(selected), self.at[selected]
            self.result.damage.append(Damage(messages, at, tags, reason))

    def _add_overrun(
        self, tag: int, selected: Ints, begin: Ints, body_and_length: tuple[Ints, Ints] | None
    ) -> None:
        """Add the reason why each of these open messages cannot be read: their next field, which
        has this `tag`, goes beyond the end. `begin`: where its number or length begins;
        `body_and_length`: where a value with a length begins, and the length."""
        messages, at, end = self._indexes_of(selected), self.at[selected], self.end[selected]
        # Read one by one: messages in which the tag itself is cut off, and unknown fields, of which
        # `tag` is only the wire type.
        is_single = (begin > end) | (tag < 8)
        self.read_one_by_one(messages[is_single], at[is_single], end[is_single])
        wires, remaining = np.full(len(end), tag & 7), end - begin
        lengths = remaining
        if body_and_length is not None:
            body, lengths = body_and_length
            wires[body > end] = VARINT  # the length itself is cut off
            remaining = np.where(body > end, remaining, end - body)
        columns = [array[~is_single] for array in (wires, remaining, lengths)]
        self._add_damage(
            selected[~is_single], tag, lambda index: _reason(*(c.item(index) for c in columns))
        )

    # --- one by one -------------------------------------------------------------------------------

    def read_one_by_one(self, messages: Ints, starts: Ints, ends: Ints) -> None:
        """Read all fields from `starts` to `ends` of some messages, without NumPy."""
        for message, at, end in zip(messages.tolist(), starts.tolist(), ends.tolist(), strict=True):
            self._read_message(message, at, end)

    def _read_message(self, message: int, at: int, end: int) -> None:
        """Read all fields of the message with this index, which lies from `at` to `end`."""
        raw, slot_of = self.data.raw, self.slot_of
        while at < end:
            start, tag = at, 0
            try:
                tag, at = read_tag(raw, at, end)
                if tag & 7 == SGROUP:
                    self.result.needs_runtime[message] = True
                    return
                value, begin, at = read_value(raw, tag & 7, at, end)
            except ValueError as error:
                self.single_damage.append((message, start, tag, str(error)))
                return
            slot = slot_of.get(tag, SKIP)
            if slot == SKIP:
                continue
            tokens = self.single_tokens.get(slot)
            if tokens is None:
                tokens = self.single_tokens[slot] = (tag & 7, [], [], [])
            _, messages, begins, values = tokens
            messages.append(message)
            begins.append(begin)
            values.append(value)

    def add_single_tokens(self) -> None:
        """Add the tokens and the damage of messages that were read one by one to the others."""
        if self.single_damage:
            *columns, reasons = zip(*self.single_damage, strict=True)
            messages, at, tags = np.array(columns, np.int64)
            self.result.damage.append(Damage(messages, at, tags, reasons.__getitem__))
        for slot, (wire, messages, at, values) in self.single_tokens.items():
            numbers = np.array(values, np.uint32 if wire == I32 else np.uint64)
            self.result.tokens[slot].append(
                Tokens(
                    np.array(messages, np.int64),
                    numbers if wire != LEN else None,
                    np.array(at, np.int64) if wire == LEN else None,
                    numbers.view(np.int64) if wire == LEN else None,
                    ascending=False,
                )
            )


# --- varints, tags and values ---------------------------------------------------------------------


def read_varints(
    data: Bytes, at: Ints, *, are_long: bool = False
) -> tuple[NDArray[Any], Ints, Flags | None]:
    """Read one varint at each position. Return the values, the positions after them, and which are
    longer than ten bytes (None: none is). The values are unsigned, in a type that is as narrow as
    they allow. Bytes beyond the end of the data are read as if they were inside."""
    return read_unsigned(data, at, _VARINT_BITS, are_long=are_long)


def read_one_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read one varint between two positions: (value, position after it). Raises ValueError with
    what is wrong."""
    if at < end and data[at] < 0x80:  # nearly all are of one byte
        return data[at], at + 1
    try:
        value, at = read_varint(data, at, end, _VARINT_BITS)
    except IndexError as error:  # cut off; a BadVarintError is a ValueError
        raise ValueError(str(error)) from None
    return value & 0xFFFFFFFFFFFFFFFF, at  # protobuf drops the bits above the 64th


def read_tag(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read one tag between two positions: (tag, position after it). Raises ValueError with what is
    wrong."""
    tag, after = read_one_varint(data, at, end)
    # The lowest tag is that of field 1 (1 << 3); five bytes hold all 32 bits.
    if not 8 <= tag <= MAX_TAG or after - at > 5:
        raise ValueError("there is no valid tag")
    return tag, after


def read_value(data: Any, wire: int, at: int, end: int) -> tuple[int, int, int]:
    """Read one value of a wire type that is not a group, between two positions: (the number, or the
    length of a value that has one; where the value begins, and ends). Raises ValueError with what
    is wrong."""
    if wire == VARINT:
        value, after = read_one_varint(data, at, end)
        return value, at, after
    if wire == LEN:
        value, begin = read_one_varint(data, at, end)
        after = begin + value
        if after > end:
            raise ValueError(_reason(wire, end - begin, value))
        return value, begin, after
    if wire not in FIXED_WIDTH:
        raise ValueError(_WRONG_WIRES[wire])
    after = at + FIXED_WIDTH[wire]
    if after > end:
        raise ValueError(_reason(wire, end - at))
    return int.from_bytes(data[at:after], "little"), at, after


def _reason(wire: int, remaining: int, length: int = 0) -> str:
    """Return why a value goes beyond the end of its message, which has `remaining` bytes more (for
    LEN after the `length`)."""
    if wire in FIXED_WIDTH:
        return f"a value needs {FIXED_WIDTH[wire]} bytes, and only {remaining} are left"
    if wire == LEN:
        return f"a length of {length} goes beyond the end, which is {remaining} bytes away"
    # The reasons of `read_varint`.
    return "a varint is cut off" if remaining < 10 else "a varint is longer than 10 bytes"
