"""Decodes JSON texts: as many at once as possible, the others one by one.

pyarrow's reader (RapidJSON) reads many texts at once. It is many times faster than `normalizer.py`,
but one value that it cannot read fails the whole block. It also accepts texts that are not JSON,
and can even crash: `_is_doubtful` finds such texts, which are read one by one.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Set
from copy import copy
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.schemas import arrays
from sparkkafka.schemas.json import syntax
from sparkkafka.schemas.json.normalizer import (
    JsonNormalizer,
    make_writer,
    max_item_bytes,
    may_take_too_much,
)
from sparkkafka.schemas.json.object_fields import ValueSpans, object_fields
from sparkkafka.schemas.json.plan import JsonNode
from sparkkafka.schemas.json.schema import JsonKind
from sparkkafka.schemas.json.syntax import MAX_NESTING, JsonSyntaxError, UnfitError, nests_too_deep
from sparkkafka.schemas.json.uniform_objects import UniformReader
from sparkkafka.schemas.values import Decoded, MemoryBudget, bytes_per_value

MIN_BLOCK_ROWS: Final = 64
"""Fewer texts are read one by one, which takes no longer than a call of the fast reader."""
UNIFORM_RETRY_BATCHES: Final = 30
"""After this number of batches, texts that differed in more than their values are compared again:
if they still differ, a batch takes up to two thirds more time."""
MAX_ROWS_AFTER_FAILURE: Final = 1024
"""The rows after one that the fast reader could not read are read in parts of this number, since a
part is read in vain if it has another such row."""
MAX_BLOCK_BYTES: Final = 16 << 20
CALL_COST_ROWS: Final = 256
"""A call of the fast reader costs as much as it takes to read this number of rows."""
MAX_SEPARATIONS: Final = 3
"""How many times the fields that pyarrow's reader cannot read in many rows are read separately."""


class JsonDecoder:
    """Decodes JSON texts into the values of a node. `JsonNormalizer` explains `with_rest`, `exact`.

    normalizer: normalizes texts one by one. normalized: reads normalized texts, many at once. raw:
    reads texts as they are, many at once; with `with_rest` or `exact` it fails if a text has a
    field that the type lacks. None if pyarrow's reader cannot read such texts.

    separate_fields: the outermost fields that pyarrow's reader does not read.
    """

    def __init__(self, root: JsonNode, with_rest: bool = False, *, exact: bool = False) -> None:
        self.type = root.type
        self.root = root
        self._row_bytes = bytes_per_value(root.type)
        self.with_rest = with_rest  # fields that the type lacks are returned as JSON texts
        self.is_strict = with_rest or exact
        self.has_decimals = _has_decimals(root)
        self.normalizer = JsonNormalizer(root, with_rest, exact)
        self.normalized = BlockReader(root, normalized=True)
        self._plan(frozenset())
        self.batches_until_uniform = 0
        """The number of batches whose texts are not compared with one of them, since those of the
        batch before them differed."""

    def with_separate(self, names: Collection[str]) -> JsonDecoder:
        """Return a decoder of the same values that also reads these outermost fields separately: it
        cuts their values out of the texts and reads them as columns of their own."""
        decoder = copy(self)
        decoder._plan(self.separate_fields.keys() | names)
        return decoder

    def _plan(self, separate: Set[str]) -> None:
        """Plan which fields are read separately: these, and those that pyarrow's reader cannot
        read."""
        root = self.root
        readable = {}
        self.separate_fields: dict[str, _SeparateField] = {}
        for name, node in root.children.items() if root.kind == JsonKind.STRUCT else ():
            if name not in separate and _can_read_raw(node):
                readable[name] = node
            else:
                self.separate_fields[name] = _SeparateField(node)
        self.raw: BlockReader | None = None
        # A strict reader would refuse a field that is read separately in each text.
        if root.kind == JsonKind.STRUCT and not (self.is_strict and self.separate_fields):
            raw_type = pa.struct([(name, node.type) for name, node in readable.items()])
            raw_node = JsonNode(JsonKind.STRUCT, raw_type, readable)
            self.raw = BlockReader(raw_node, normalized=False, strict=self.is_strict)

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """Decode JSON texts (binary or string; null stays null) into a column of `type`. Texts that
        are bad become null, with a reason. Raises TooManyRowsError if the columns exceed `budget`.
        """
        budget = budget or MemoryBudget(payloads)
        budget.take(len(payloads) * self._row_bytes)  # one row always fits; several may raise
        batch = _Batch(self, payloads)
        if self.normalizer.item_bytes:  # if one row takes too much, JsonNormalizer refuses it
            budget.take(max_item_bytes(batch.data, self.normalizer.item_bytes))
        return batch.run()


class _SeparateField:
    """Reads the normalized texts of a field that is read separately."""

    def __init__(self, node: JsonNode) -> None:
        self.node = node
        self.write = make_writer(node)
        self.reader = BlockReader(node, normalized=True)


class _Batch:
    """The work of one call of `decode`. Its rows are indexes among the payloads that are not null.
    `separations_left`: how many times more fields can be read separately."""

    def __init__(
        self, decoder: JsonDecoder, payloads: pa.Array, separations_left: int = MAX_SEPARATIONS
    ) -> None:
        self._decoder, self._separations_left = decoder, separations_left
        self._count = len(payloads)
        self._present = np.flatnonzero(arrow.is_valid(payloads)) if payloads.null_count else None
        texts = payloads.drop_null() if payloads.null_count else payloads
        self._texts = texts if pa.types.is_binary(texts.type) else texts.cast(pa.binary())
        self.data, self._offsets = arrays.content_of(self._texts)
        self._blocks: list[pa.Array] = []  # values that were read together
        self._block_rows: list[Ints] = []  # the rows of each block
        self._normalized: list[tuple[int, str]] = []  # rows and their normalized texts
        self._rests: list[tuple[int, str]] = []  # rows and the JSON texts of their rests
        self._uniform_rests: list[tuple[Ints, pa.Array]] = []  # the same, of many rows
        self._reasons: dict[int, str] = {}  # why rows are bad
        self._misfit_reasons: dict[int, str] = {}  # of rows with a separate field that does not fit

    def run(self) -> Decoded:
        """Decode all payloads, and return their values, the reasons of bad rows, and the rests."""
        is_read = self._read_uniform()
        if not is_read.any():
            self._read()
        elif not is_read.all():
            self._read_part(self._decoder, np.flatnonzero(~is_read), self._separations_left)
        rows = self._payload_rows(np.array(list(self._reasons), np.int64)).tolist()
        reasons = dict(zip(rows, self._reasons.values(), strict=True))
        rest = self._rest_texts() if self._decoder.with_rest else None
        return Decoded.of(self._values(), reasons, rest)

    def _read(self) -> None:
        """Read all rows. If they are enough to make that fast, pyarrow's reader reads them as they
        are (see `_read_blocks`); the others are normalized one by one, and then read."""
        raw = self._decoder.raw
        if raw is None or len(self._texts) < MIN_BLOCK_ROWS:
            self._normalize(np.arange(len(self._texts)))
        else:
            self._normalize(np.sort(np.concatenate(self._read_blocks(raw))))
        self._read_normalized()

    def _read_uniform(self) -> Flags:
        """Read texts that differ only in their values, if they are enough. Return which rows were
        read."""
        is_read = np.zeros(len(self._texts), np.bool_)
        decoder = self._decoder
        if len(is_read) < MIN_BLOCK_ROWS or decoder.root.kind != JsonKind.STRUCT:
            return is_read
        if decoder.batches_until_uniform:  # an earlier batch could not be read in this way
            decoder.batches_until_uniform -= 1
            return is_read
        for part in self._cut_by_size(np.arange(len(is_read))):
            first, last = int(part[0]), int(part[-1]) + 1
            offsets = self._offsets[first : last + 1]
            data = self.data[offsets[0] : offsets[-1]]
            try:
                reader = UniformReader(
                    decoder.root,
                    data,
                    offsets - offsets[0],
                    self._is_utf8[first:last],
                    _convert_texts,
                    with_rest=decoder.with_rest,
                )
            except ValueError:
                continue
            rows = reader.rows + first
            self._blocks.append(reader.values)
            self._block_rows.append(rows)
            if reader.rests is not None:
                self._uniform_rests.append((rows, reader.rests.view(pa.string())))
            is_read[rows] = True
        if not is_read.any():
            decoder.batches_until_uniform = UNIFORM_RETRY_BATCHES
        return is_read

    @cached_property
    def _is_utf8(self) -> Flags:
        """Which texts are UTF-8."""
        return arrays.is_utf8(self._texts)

    def _read_part(self, decoder: JsonDecoder, rows: Ints, separations_left: int) -> None:
        """Read only these rows, as a batch of their own."""
        part = _Batch(decoder, _take(self._texts, rows), separations_left)
        part._read()
        self._blocks += part._blocks
        self._block_rows += [rows[block_rows] for block_rows in part._block_rows]
        self._rests += [(int(rows[row]), rest) for row, rest in part._rests]
        self._reasons |= {int(rows[row]): reason for row, reason in part._reasons.items()}

    # --- many texts at once -----------------------------------------------------------------------

    def _read_blocks(self, reader: BlockReader) -> list[Ints]:
        """Read all rows that pyarrow's reader can read, in blocks; return the others, to be read
        one by one. A block that fails is cut, and its parts are read again. If many fail, the
        fields that pyarrow's reader cannot read are read separately, in all remaining rows."""
        doubtful = self._doubtful_texts()
        fields: dict[str, pa.Array] = {}
        if self._decoder.separate_fields:
            fields = self._read_separate_fields(doubtful)
        others = [np.flatnonzero(doubtful)]
        pending = self._cut_by_size(np.flatnonzero(~doubtful))
        rows_read_in_vain = 0
        while pending:
            rows = pending.pop()
            if len(rows) < MIN_BLOCK_ROWS:
                others.append(rows)
                continue
            try:
                block = reader.read(_take(self._texts, rows))
            except ReadError as error:
                stopped_at = len(rows) if error.row is None else min(error.row, len(rows))
                rows_read_in_vain += stopped_at + CALL_COST_ROWS
                if rows_read_in_vain <= len(self._texts):
                    others.append(rows[stopped_at : stopped_at + 1])
                    pending += _cut_at_failure(rows, stopped_at)
                    continue
                names = reader.fields_of_failure(error)
                remaining = [rows, *pending]
                if self._decoder.is_strict or not names or not self._separations_left:
                    return others + remaining
                decoder = self._decoder.with_separate(names)
                all_rows = np.sort(np.concatenate(remaining))
                self._read_part(decoder, all_rows, self._separations_left - 1)
                return others
            reasons = self._misfit_reasons
            if reasons:
                self._reasons |= {row: reasons[row] for row in rows.tolist() if row in reasons}
            self._blocks.append(self._add_fields(block, rows, fields) if fields else block)
            self._block_rows.append(rows)
        return others

    def _doubtful_texts(self) -> Flags:
        """Return a flag for each text: whether it must be read without pyarrow's reader."""
        starts, ends = self._offsets[:-1], self._offsets[1:]
        full = np.flatnonzero(starts < ends)
        doubtful = np.ones(len(starts), np.bool_)
        if len(full):
            doubtful[full] = _is_doubtful(
                self.data, starts[full], ends[full], has_decimals=self._decoder.has_decimals
            )
            doubtful |= ~self._is_utf8  # the reader does not check it
            if size := self._decoder.normalizer.item_bytes:
                doubtful |= may_take_too_much(self.data, starts, ends, size)
        return doubtful

    def _read_separate_fields(self, doubtful: Flags) -> dict[str, pa.Array]:
        """Return the column of each of `separate_fields`: with a value for each row that is not
        doubtful, null for the others. Rows with a value that cannot be read without its row become
        doubtful."""
        fields = self._decoder.separate_fields
        spans, is_unclear = object_fields(
            self.data, self._offsets, [name.encode() for name in fields]
        )
        doubtful |= is_unclear
        columns = {}
        for name, values in zip(fields, spans, strict=True):
            is_repeated = values.texts[1:] == values.texts[:-1]
            doubtful[values.texts[1:][is_repeated]] = True
            is_good = ~doubtful[values.texts]
            values = ValueSpans(*(column[is_good] for column in values))
            columns[name] = self._read_separate_field(name, values, doubtful)
        return columns

    def _read_separate_field(self, name: str, values: ValueSpans, doubtful: Flags) -> pa.Array:
        """Return the column of one separate field, null for doubtful rows, and add the reasons why
        values do not fit to `_misfit_reasons`. `values` are the positions of its values. Rows with
        a value that is not JSON become doubtful."""
        texts = gather(pa.py_buffer(self.data), values.starts, values.ends - values.starts)
        field = self._decoder.separate_fields[name]
        normalized, normalized_rows = [], []
        for row, content in zip(values.texts.tolist(), texts.to_pylist(), strict=True):
            try:
                value = syntax.parse(content)
                if value is None:
                    continue
                text = field.write(value)
            except JsonSyntaxError:
                doubtful[row] = True
                continue
            except UnfitError as error:
                error.path.append(f".{name}")
                self._misfit_reasons.setdefault(row, str(error))
                continue
            normalized.append(f'{{"v":{text}}}'.encode())
            normalized_rows.append(row)
        try:
            column = field.reader.read(arrow.binary_array(normalized))
        except ReadError:  # no such text is known
            doubtful[normalized_rows] = True
            return pa.nulls(len(doubtful), field.node.type)
        return arrays.spread(column, np.array(normalized_rows, np.int64), len(doubtful))

    def _add_fields(self, block: pa.Array, rows: Ints, fields: dict[str, pa.Array]) -> pa.Array:
        """Return the structs of rows: the block's columns, and those of separate fields."""
        index = arrow.from_numpy(rows)
        children = [
            fields[field.name].take(index) if field.name in fields else block.field(field.name)
            for field in self._decoder.type
        ]
        return pa.Array.from_buffers(self._decoder.type, len(rows), [None], children=children)

    def _cut_by_size(self, rows: Ints) -> list[Ints]:
        """Cut rows into parts whose texts have about MAX_BLOCK_BYTES."""
        ends = np.cumsum(self._offsets[rows + 1] - self._offsets[rows])
        if not len(rows) or ends[-1] <= MAX_BLOCK_BYTES:
            return [rows]
        return np.split(rows, np.flatnonzero(np.diff(ends // MAX_BLOCK_BYTES)) + 1)

    # --- one by one -------------------------------------------------------------------------------

    def _normalize(self, rows: Ints) -> None:
        """Normalize the texts of rows one by one: add the text of each good row to `_normalized`,
        and the reason of each bad one to `_reasons`."""
        read = self._decoder.normalizer.read
        content = self.data.tobytes() if len(rows) else b""
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        for row, start, end in zip(rows.tolist(), starts, ends, strict=True):
            try:
                text, rest = read(content[start:end])
            except UnfitError as error:
                self._reasons[row] = str(error)
                continue
            self._normalized.append((row, text))
            if rest is not None:
                self._rests.append((row, rest))

    def _read_normalized(self) -> None:
        """Read the normalized texts as a block."""
        if not self._normalized:
            return
        texts = arrow.binary_array([f'{{"v":{text}}}'.encode() for _, text in self._normalized])
        rows = np.array([row for row, _ in self._normalized], np.int64)
        try:
            self._blocks.append(self._decoder.normalized.read(texts))
            self._block_rows.append(rows)
        except ReadError:  # no such text is known; if there is one, only its row is bad
            for at, row in enumerate(rows.tolist()):
                try:
                    self._blocks.append(self._decoder.normalized.read(texts.slice(at, 1)))
                    self._block_rows.append(rows[at : at + 1])
                except ReadError:
                    self._reasons[row] = "the value cannot be read as its type"

    # --- results ----------------------------------------------------------------------------------

    def _payload_rows(self, rows: Ints) -> Ints:
        """Convert indexes among the payloads that are not null to indexes among all payloads."""
        return rows if self._present is None else self._present[rows]

    def _values(self) -> pa.Array:
        """Return the column of all payloads: the values of the blocks that were read, in the
        payloads' order, and null for all other rows."""
        if not self._blocks:
            return pa.nulls(self._count, self._decoder.type)
        values = self._blocks[0] if len(self._blocks) == 1 else pa.concat_arrays(self._blocks)
        if len(self._blocks) > 1 or len(values) < self._count:
            rows = self._payload_rows(np.concatenate(self._block_rows))
            values = arrays.spread(values, rows, self._count)
        if self._reasons:  # rows with a value that a separate field cannot take
            is_good = np.ones(self._count, np.bool_)
            is_good[self._payload_rows(np.array(list(self._reasons), np.int64))] = False
            values = arrays.null_outside(values, is_good)
        return values

    def _rest_texts(self) -> pa.Array:
        """Return a JSON text for each payload: the values that do not fit the type and the fields
        that it lacks (the row's rest), null where there are none."""
        texts = arrow.binary_array([rest.encode() for _, rest in self._rests]).view(pa.string())
        rows = np.array([row for row, _ in self._rests], np.int64)
        for uniform_rows, uniform_texts in self._uniform_rests:
            texts = pa.concat_arrays([texts, uniform_texts])
            rows = np.append(rows, uniform_rows)
        return arrays.spread(texts, self._payload_rows(rows), self._count)


# --- parts of arrays ------------------------------------------------------------------------------


def _take(texts: pa.Array, rows: Ints) -> pa.Array:
    """Return the texts of these rows, which ascend. The memory is shared if the rows are
    neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return texts.slice(first, len(rows))
    return texts.take(arrow.from_numpy(rows))


def _cut_at_failure(rows: Ints, stopped_at: int) -> list[Ints]:
    """Return the parts in which rows are read again that pyarrow's reader could not read together:
    without the row at this index, at which it stopped (len(rows): at an unknown one)."""
    if stopped_at == len(rows):
        return np.array_split(rows, 4)
    after = rows[stopped_at + 1 :]
    cuts = range(MAX_ROWS_AFTER_FAILURE, len(after), MAX_ROWS_AFTER_FAILURE)
    return [rows[:stopped_at], *np.split(after, list(cuts))]


# --- what pyarrow's reader must not get -----------------------------------------------------------

# The reader crashes on null after an object, where it expects an object.
_NULL_AFTER_OBJECT: Final = re.compile(rb"\}[ \t\r\n]*n")
# It reads NaN and Infinity as numbers.
_NOT_A_NUMBER: Final = re.compile(rb"[:\[,\-][ \t\r\n]*(?:NaN|Inf)")


def _can_read_raw(node: JsonNode) -> bool:
    """Return whether pyarrow's reader can read texts as they are."""
    needs_normalizing = (
        JsonKind.MAP,
        JsonKind.JSON_TEXT,
        JsonKind.DURATION,
        JsonKind.DECIMAL_BYTES,
        JsonKind.NULL,
    )
    return node.kind not in needs_normalizing and all(map(_can_read_raw, node.children.values()))


def _count_brackets(data: Bytes, brace: str) -> int:
    """Return how many objects and arrays may begin ("{") or end ("}") in the data."""
    pieces = (
        data[begin : begin + arrays.PIECE_BYTES]
        for begin in range(0, len(data), arrays.PIECE_BYTES)
    )
    # `| 0x20` makes [ and {, ] and } the same.
    return sum(int(np.count_nonzero(piece | 0x20 == ord(brace))) for piece in pieces)


def _has_decimals(node: JsonNode) -> bool:
    """Return whether values of the node are decimals or have some."""
    return node.kind == JsonKind.DECIMAL or any(map(_has_decimals, node.children.values()))


def _is_doubtful(data: Bytes, starts: Ints, ends: Ints, *, has_decimals: bool) -> Flags:
    """Return which texts pyarrow's reader must not get. The texts are concatenated in `data`, from
    `starts` to `ends`; none is empty.

    All other texts begin with { and end with }. So no object can reach from one text into the next
    if a newline is between them: inside an object, { never follows }, and strings have no newline.
    The number of objects then shows whether each text is exactly one object."""
    flags: Flags = (data[starts] != ord("{")) | (data[ends - 1] != ord("}"))
    suspects: list[int] = []
    if _count_brackets(data, "}") > np.count_nonzero(~flags):  # one that ends no text
        following = data[arrays.positions(data[:-1], ord("}")) + 1]
        if np.any((following == ord("n")) | (following <= ord(" "))):
            suspects += [match.end() - 1 for match in _NULL_AFTER_OBJECT.finditer(data.data)]
    if arrays.has_pair(data, b"Na") or arrays.has_pair(data, b"In"):
        suspects += [match.end() - 1 for match in _NOT_A_NUMBER.finditer(data.data)]
    if data.min() == 0:  # NUL ends the reader's input
        suspects += arrays.positions(data, 0).tolist()
    if has_decimals:
        # The reader looks up the power of ten of such a decimal without a check of its bounds: the
        # number is wrong, or the process crashes.
        minus = arrays.positions(data, ord("-"))
        is_exponent = data[minus - 1] | 0x20 == ord("e")
        for step in (-2, 1, 2):  # a number of two digits and more, as in 1e-40
            character = data.take(minus[is_exponent] + step, mode="clip")
            is_exponent[is_exponent] = (character >= ord(".")) & (character <= ord("9"))
        suspects += minus[is_exponent].tolist()
    if suspects:
        flags[np.searchsorted(ends, suspects, side="right")] = True
    long = np.flatnonzero(ends - starts > 2 * MAX_NESTING)
    # The other texts have a bracket each.
    if len(long) and _count_brackets(data, "{") - np.count_nonzero(~flags) >= MAX_NESTING:
        counts = np.zeros(len(long), np.int64)
        for bracket in b"{[":
            opening = arrays.positions(data, bracket)
            counts += np.searchsorted(opening, ends[long])
            counts -= np.searchsorted(opening, starts[long])
        for row in long[counts > MAX_NESTING].tolist():
            flags[row] |= nests_too_deep(data[starts[row] : ends[row]].tobytes())
    return flags


# --- pyarrow's reader -----------------------------------------------------------------------------


class ReadError(Exception):
    """pyarrow's reader could not read all texts. `message`: its own; `row`: the one at which it
    stopped, if known; `field`: the outermost one that could not be converted, if known."""

    def __init__(self, message: str = "", field: str | None = None) -> None:
        super().__init__("not all texts could be read")
        self.message = message[:1000]
        self.field = field
        match = re.search(r"in row (\d+)$", message[-40:])
        self.row = int(match[1]) if match else None


class BlockReader:
    """Reads many texts of one node at once, normalized or as they are. With `strict`, a field
    that the type lacks is an error."""

    def __init__(self, root: JsonNode, *, normalized: bool, strict: bool = False) -> None:
        self._root = root
        self._normalized = normalized
        fields = [("v", root)] if normalized else list(root.children.items())
        # The reader counts no rows without fields.
        types = [(name, _reader_type(node)) for name, node in fields] or [("\0", pa.bool_())]
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema(types),
            newlines_in_values=True,
            unexpected_field_behavior="error" if strict else "ignore",
        )

    def read(self, texts: pa.Array) -> pa.Array:
        """Return the column of texts (binary, no nulls). Raises ReadError."""
        count = len(texts)
        if not count:
            return pa.schema([("v", self._root.type)]).empty_table().column(0).combine_chunks()
        try:
            lines = _join_lines(texts)
            table = pj.read_json(
                pa.BufferReader(lines),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 64),
                parse_options=self._options,
            )
            if table.num_rows != count:
                raise ReadError
            columns = [
                column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
                for column in table.columns
            ]
        except (pa.ArrowException, ValueError) as error:
            raise ReadError(str(error)) from None
        if self._normalized:
            return self._converted("v", self._root, columns[0])
        children = [
            self._converted(name, node, column)
            for (name, node), column in zip(self._root.children.items(), columns, strict=False)
        ]
        return pa.Array.from_buffers(self._root.type, count, [None], children=children)

    def _converted(self, name: str, node: JsonNode, column: pa.Array) -> pa.Array:
        """Convert a field's column, as the reader gave it, to the type of its node. Raises
        ReadError, which names the field."""
        try:
            return _convert(node, column)
        except (pa.ArrowException, ValueError) as error:
            raise ReadError(str(error), name) from None

    def fields_of_failure(self, error: ReadError) -> set[str]:
        """Return the outermost fields that may have the value with which the reader failed: the
        field that the error names, or all fields of the type that it names."""
        if error.field is not None:
            return {error.field}
        match = re.search(r"Column\((/.*)\) changed from ", error.message)
        return {
            name
            for name, node in self._root.children.items()
            if (
                f"{match[1]}/".startswith(f"/{name}/")
                if match
                else any(kind in error.message for kind in _type_names(node))
            )
        }


def _type_names(node: JsonNode) -> set[str]:
    """Return the names of the types, as in messages of pyarrow's reader, of a node without fields,
    or of all nodes below one with fields."""
    if not node.children:
        return {str(_reader_type(node)), str(node.type)}
    return set().union(*map(_type_names, node.children.values()))


def _join_lines(texts: pa.Array) -> pa.Buffer:
    """Return one buffer with all texts, a newline behind each but the last."""
    offsets = arrow.from_numpy(np.array([0, len(texts)], np.int32))
    newline = arrow.binary_array([b"\n"])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), newline)
    return joined.buffers()[2].slice(0, int(arrow.blob_offsets(joined)[1]))  # as_buffer copies


def _reader_type(node: JsonNode) -> pa.DataType:
    """Return the type that pyarrow's reader reads for a node."""
    kind = node.kind
    if kind == JsonKind.STRUCT:
        return pa.struct([(name, _reader_type(child)) for name, child in node.children.items()])
    if kind == JsonKind.LIST:
        return pa.list_(_reader_type(node.item))
    if kind == JsonKind.MAP:
        return pa.list_(pa.struct([("key", pa.string()), ("value", _reader_type(node.item))]))
    if kind in (
        JsonKind.DATE,
        JsonKind.TIMESTAMP,
        JsonKind.LOCAL_TIMESTAMP,
        JsonKind.BINARY,
        JsonKind.JSON_TEXT,
    ):
        return pa.string()
    if kind in (JsonKind.EPOCH_MILLIS, JsonKind.DURATION):
        return pa.int64()
    if kind == JsonKind.NULL:
        return pa.bool_()  # the reader of older pyarrows counts nulls in lists wrong
    if kind in (JsonKind.DECIMAL, JsonKind.DECIMAL_BYTES):
        # The reader counts a number's digits before it appends zeros to reach the scale, and lets
        # the result wrap around: 256 bits are enough for 38 digits and 38 zeros.
        return pa.decimal256(node.type.precision, node.type.scale)
    return pa.int32() if kind == JsonKind.EPOCH_DAYS else node.type


def _convert_texts(node: JsonNode, texts: pa.Array) -> pa.Array:
    """Convert strings, or the texts of numbers and booleans, to the node's type. Raises ValueError
    (ArrowInvalid is one)."""
    column, reader_type = texts.view(pa.string()), _reader_type(node)
    return _convert(node, column if reader_type == column.type else column.cast(reader_type))


def _convert(node: JsonNode, array: pa.Array) -> pa.Array:
    """Convert the values that pyarrow's reader gives for a node to the node's type. Raises
    ValueError (ArrowInvalid is one)."""
    kind = node.kind
    if kind == JsonKind.STRUCT:
        children = [
            _convert(child, array.field(index))
            for index, child in enumerate(node.children.values())
        ]
        return _rebuild(node.type, array, array.buffers()[:1], children)
    if kind == JsonKind.LIST:
        items = _convert(node.item, array.values)
        return _rebuild(node.type, array, array.buffers()[:2], [items])
    if kind == JsonKind.MAP:
        pairs = array.values
        entries = pa.Array.from_buffers(
            pa.struct([node.type.key_field, node.type.item_field]),
            len(pairs),
            [None],
            children=[pairs.field(0), _convert(node.item, pairs.field(1))],
        )
        return _rebuild(node.type, array, array.buffers()[:2], [entries])
    if kind == JsonKind.NULL:
        return pa.nulls(len(array))
    if kind == JsonKind.FLOAT:
        # NumPy is faster, but also looks at the numbers of nulls.
        numbers = np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())
        if np.isinf(numbers).any() and pc.any(pc.is_inf(array)).as_py():
            raise ValueError("a number is too large")
        return array
    if kind == JsonKind.EPOCH_MILLIS:
        return array.cast(pa.timestamp("ms", "UTC")).cast(node.type)
    if kind == JsonKind.BINARY:
        return arrow.binary_array(
            [
                None if text is None else binascii.a2b_base64(text, strict_mode=True)
                for text in array.to_pylist()
            ]
        )
    return array if array.type == node.type else array.cast(node.type)


def _rebuild(
    column_type: pa.DataType, like: pa.Array, buffers: list[Any], children: list[pa.Array]
) -> pa.Array:
    """Return an array of this type with these buffers and children, and the length, offset and
    nulls of `like`."""
    return pa.Array.from_buffers(
        column_type, len(like), buffers, like.null_count, like.offset, children=children
    )
