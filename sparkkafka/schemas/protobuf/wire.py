"""Protobuf's wire format: finds where each field lies in the messages, many messages at once.

The messages of one type are read in waves. A wave is one field of all messages that have it next.
Writers put fields in the order of their numbers, so one pass over the known fields takes most
messages to their end; what is left (unknown fields, another order) takes another pass. A few
messages that are longer than the others are read one by one.

A message that cannot be read in this way (damaged, or with groups) is only flagged here
(`needs_runtime`): protobuf's own runtime then decides what it means, see `normalizer.py`.

A message's index is its index among the messages that are read together. A slot is an index in the
list of tokens that `tokenize` returns: its caller chooses a slot for each tag.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.varint_columns import Flags, Ints, read_unsigned, windows
from sparkkafka.protocol.wire.varints import read_varint
from sparkkafka.schemas.protobuf.types import I32, I64, LEN, VARINT

MIN_WAVE_MESSAGES: Final = 13
"""Fewer messages are read one by one: that takes about as long as a wave."""

SKIP: Final = -1
"""The slot of a field that is not read."""

# Instead of a tag:
_ENDED: Final = 0  # the message has ended; tags are multiplied by 0
_INVALID: Final = 7  # no valid tag begins there

_VARINT_BITS = 70  # ten bytes; protobuf drops the bits above the 64th


class PaddedBytes:
    """The bytes from `first` to `last` with padding, for numpy and Arrow. `shift` must be added to
    positions that count from `first`. Not copied if other bytes follow that can be the padding."""

    __slots__ = ("buffer", "bytes", "raw", "shift", "words")

    def __init__(self, content: NDArray[np.uint8], first: int = 0, last: int | None = None) -> None:
        last = len(content) if last is None else last
        padding = 16  # may be read, and has no meaning
        if last + padding <= len(content):
            self.bytes, self.shift = content, first
        else:
            size = last - first
            self.bytes, self.shift = np.empty(size + padding, np.uint8), 0
            self.bytes[:size] = content[first:last]
            self.bytes[size:] = 0
        self.words: NDArray[np.uint64] = windows(self.bytes, "<u8")
        self.buffer = pa.py_buffer(self.bytes)
        self.raw = memoryview(self.bytes.data)


class KnownTag(NamedTuple):
    """A tag (number << 3 | wire type) of messages. `slot`: where its tokens are put, or SKIP."""

    tag: int
    slot: int
    repeated: bool


class Tokens(NamedTuple):
    """Where values of one field lie. `messages`: the index of each value's message; None if each
    message has one value, in order. `at`: the position of the value, after its length. `value`: the
    numbers of varints, else None. `size`: the lengths of values that have one, else None."""

    messages: Ints | None
    at: Ints
    value: NDArray[Any] | None
    size: Ints | None
    ascending: bool
    """The indexes in `messages` ascend, and none occurs twice."""


def join_tokens(parts: list[Tokens], count: int) -> Tokens | None:
    """Join the tokens of a field in `count` messages; None if there are none. Tokens of one message
    keep their order, but `messages` need not ascend."""
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    messages = [np.arange(count) if part.messages is None else part.messages for part in parts]
    values = [part.value for part in parts if part.value is not None]
    sizes = [part.size for part in parts if part.size is not None]
    return Tokens(
        np.concatenate(messages),
        np.concatenate([part.at for part in parts]),
        np.concatenate(values) if values else None,
        np.concatenate(sizes) if sizes else None,
        False,
    )


def tokenize(
    data: PaddedBytes, starts: Ints, ends: Ints, tags: tuple[KnownTag, ...], slot_count: int
) -> tuple[list[list[Tokens]], Flags]:
    """Return the tokens of each slot, to be joined by `join_tokens`, and which messages need the
    runtime: their tokens mean nothing, but lie inside the message."""
    tokenizer = _Tokenizer(data, len(starts), tags, slot_count)
    if len(starts) < MIN_WAVE_MESSAGES:
        tokenizer.read_one_by_one(np.arange(len(starts)), starts, ends)
    else:
        tokenizer.read_waves(starts, ends)
    tokenizer.add_single_tokens()
    return tokenizer.tokens, tokenizer.needs_runtime


class _Tokenizer:
    """Finds the tokens of `count` messages: see `tokenize`."""

    def __init__(
        self, data: PaddedBytes, count: int, tags: tuple[KnownTag, ...], slot_count: int
    ) -> None:
        self.data = data
        self.tags = tags
        self.slot_of = {known.tag: known.slot for known in tags}
        self.tag_numbers = np.array(sorted(self.slot_of), np.int64)
        self.tokens: list[list[Tokens]] = [[] for _ in range(slot_count)]
        self.needs_runtime = np.zeros(count, np.bool_)
        # Tokens of messages that are read one by one. By slot: the wire type; then for each token
        # the message, the position, and the value or size.
        self.single_tokens: dict[int, tuple[int, list[int], list[int], list[int]]] = {}

    # --- in waves ---------------------------------------------------------------------------------

    def read_waves(self, starts: Ints, ends: Ints) -> None:
        """Read all fields of all messages, wave by wave."""
        # The indexes of open messages: those that had not ended when the last pass over the tags
        # ended. None: all messages.
        self.open_messages: Ints | None = None
        # For each open message: its position, its end, the tag that is read next (_ENDED if it has
        # ended since), and the position after this tag.
        self.at, self.end = starts.copy(), ends
        self.tag, self.body = _read_tags(self.data, self.at, self.end)
        while True:
            for known in self.tags:
                while self._read_wave(self.tag == known.tag, known.tag & 7, known.slot):
                    if not known.repeated:
                        break
            if not self._drop_ended_messages():
                return
            unknown = ~np.isin(self.tag, self.tag_numbers) & (self.tag != _ENDED)
            if unknown.any():
                wire = np.where(unknown, self.tag & 7, 7)
                for wire_type in (VARINT, I64, LEN, I32):
                    self._read_wave(wire == wire_type, wire_type, SKIP)
                # Groups, and wire types that do not exist. (7 stands for known tags, too.)
                unreadable = unknown & ((wire == 3) | (wire == 4) | (wire >= 6))
                self._give_up(np.flatnonzero(unreadable))

    def _drop_ended_messages(self) -> bool:
        """Keep only messages that have not ended as open ones. False if there are none."""
        rest = np.flatnonzero(self.tag)
        if not len(rest):
            return False
        self.open_messages = rest if self.open_messages is None else self.open_messages[rest]
        self.at, self.end = self.at[rest], self.end[rest]
        self.tag, self.body = self.tag[rest], self.body[rest]
        # Tags below 8 have the number 0, which no field has.
        self._give_up(np.flatnonzero((self.tag < 8) & (self.tag != _ENDED)))
        return True

    def _read_wave(self, is_next: Flags, wire: int, slot: int) -> bool:
        """Read one field of the open messages that have it next; False if there are none."""
        count = int(np.count_nonzero(is_next))
        if not count:
            return False
        if count < MIN_WAVE_MESSAGES:  # these are read to their end
            few = np.flatnonzero(is_next)
            self.read_one_by_one(self._indexes_of(few), self.at[few], self.end[few])
            self.tag[few] = _ENDED
            return True
        some = None if count == len(is_next) else np.flatnonzero(is_next)  # None: all open ones
        at, end = (self.body, self.end) if some is None else (self.body[some], self.end[some])
        value: NDArray[Any] | None = None
        size: Ints | None = None
        wrong: Flags | None = None
        if wire == VARINT:
            value, after, wrong = read_varints(self.data, at)
        elif wire == LEN:
            raw, at, wrong = read_varints(self.data, at)
            size = raw.astype(np.int64)
            if raw.itemsize == 8:  # may not fit int64
                over = raw > np.uint64(1 << 31)
                size[over] = 1 << 31  # beyond any end
            after = at + size
        else:
            after = at + (8 if wire == I64 else 4)
        over = after > end
        if over.any():
            wrong = over if wrong is None else wrong | over
        if wrong is not None:
            read = np.arange(count) if some is None else some
            self._give_up(read[wrong])
            good = ~wrong
            some, at, after, end = read[good], at[good], after[good], end[good]
            value = None if value is None else value[good]
            size = None if size is None else size[good]
        if slot != SKIP:
            messages = self.open_messages if some is None else self._indexes_of(some)
            self.tokens[slot].append(Tokens(messages, at, value, size, True))
        tags, body = _read_tags(self.data, after, end)
        if some is None:
            self.at, self.tag, self.body = after, tags, body
        else:
            if tags.itemsize > self.tag.itemsize:
                self.tag = self.tag.astype(tags.dtype)
            self.at[some], self.tag[some], self.body[some] = after, tags, body
        return True

    def _indexes_of(self, some: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indexes of open messages among all messages."""
        return some if self.open_messages is None else self.open_messages[some]

    def _give_up(self, some: NDArray[np.int64]) -> None:
        """Flag open messages for the runtime, and read no more of them."""
        if len(some):
            self.needs_runtime[self._indexes_of(some)] = True
            self.tag[some] = _ENDED

    # --- one by one -------------------------------------------------------------------------------

    def read_one_by_one(self, messages: Ints, starts: Ints, ends: Ints) -> None:
        """Read all fields from `starts` to `ends` of some messages, without NumPy."""
        for message, at, end in zip(messages.tolist(), starts.tolist(), ends.tolist(), strict=True):
            try:
                self._read_message(message, at, end)
            except ValueError:
                self.needs_runtime[message] = True

    def _read_message(self, message: int, at: int, end: int) -> None:
        """Read all fields of one message. Raises ValueError if the runtime must read it."""
        raw, slot_of = self.data.raw, self.slot_of
        while at < end:
            tag = raw[at]
            at += 1
            if tag >= 0x80:
                start = at - 1
                tag, at = read_one_varint(raw, start, end)
                if at - start > 5 or tag > 0xFFFFFFFF:
                    raise ValueError("a tag is too long")
            wire = tag & 7
            value = 0
            if wire == VARINT:
                begin = at
                value, at = read_one_varint(raw, at, end)
            elif wire == LEN:
                value, begin = read_one_varint(raw, at, end)
                at = begin + value
            elif wire in (I64, I32):
                begin, at = at, at + (8 if wire == I64 else 4)
            else:
                raise ValueError("a group")
            if at > end or tag < 8:
                raise ValueError("a field goes beyond the message's end")
            slot = slot_of.get(tag, SKIP)
            if slot == SKIP:
                continue
            found = self.single_tokens.get(slot)
            if found is None:
                found = self.single_tokens[slot] = (wire, [], [], [])
            found[1].append(message)
            found[2].append(begin)
            found[3].append(value)

    def add_single_tokens(self) -> None:
        """Add the tokens of messages that were read one by one to `tokens`."""
        for slot, (wire, messages, at, values) in self.single_tokens.items():
            numbers = np.array(values, np.uint64)
            self.tokens[slot].append(
                Tokens(
                    np.array(messages, np.int64),
                    np.array(at, np.int64),
                    numbers if wire == VARINT else None,
                    numbers.view(np.int64) if wire == LEN else None,
                    False,
                )
            )


# --- varints and tags -----------------------------------------------------------------------------


def read_varints(data: PaddedBytes, at: Ints) -> tuple[NDArray[Any], Ints, Flags | None]:
    """Read one varint at each position: values, positions after them, and which are longer than ten
    bytes (None: none is). Values are unsigned, in the narrowest type that they happen to fit."""
    return read_unsigned(data.bytes, at, _VARINT_BITS)


def read_one_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Read one varint between two positions: (value, position after it). Raises ValueError with
    what is wrong."""
    try:
        value, at = read_varint(data, at, end, _VARINT_BITS)
    except IndexError as error:
        raise ValueError(str(error)) from None
    return value & 0xFFFFFFFFFFFFFFFF, at


def _read_tags(data: PaddedBytes, at: Ints, end: Ints) -> tuple[NDArray[Any], Ints]:
    """Return the tag at each position, and the positions after them. The tag is _ENDED where the
    message has ended, and _INVALID where no valid tag begins. Tags are uint8 if all are below
    0x80."""
    tags: NDArray[Any] = data.bytes.take(at)
    after = at + 1
    if not len(at):
        return tags, after
    if int(tags.max()) >= 0x80:
        tags = _read_long_tags(data, at, end, tags, after)
    elif int(tags.min()) == 0:
        tags[tags == 0] = _INVALID
    tags *= at < end  # _ENDED is 0
    return tags, after


def _read_long_tags(
    data: PaddedBytes, at: Ints, end: Ints, first: NDArray[np.uint8], after: Ints
) -> NDArray[Any]:
    """Return tags of which some have two bytes or more. `first`: the first byte of each. `after`:
    the positions after these, which are moved behind the tags."""
    longer = first >> 7
    second = data.bytes.take(after)
    second &= np.negative(longer)  # 0 where the tag has one byte
    if int(second.max()) < 0x80:
        after += longer
        tags: NDArray[Any] = second.astype(np.uint16)
        tags <<= np.uint16(7)
        tags |= first & 0x7F
        invalid = (tags < 8) | (after > end)
    else:
        raw, stop, wrong = read_varints(data, at)
        invalid = (raw > 0xFFFFFFFF) | (raw < 8) | (stop - at > 5) | (stop > end)
        if wrong is not None:
            invalid |= wrong
        tags, after[:] = raw.astype(np.int64), stop
    if invalid.any():
        tags[invalid] = _INVALID
    return tags
