"""Decodes JSON texts: as many at once as possible, the others one by one.

pyarrow's reader (RapidJSON) reads many texts at once. It is many times faster than `normalizer.py`,
but one value that it cannot read fails the whole block. It also accepts texts that are not JSON,
and can even crash: `_is_doubtful` finds such texts, which are read one by one.
"""

from __future__ import annotations

import binascii
import itertools
import re
import uuid
from collections.abc import Collection, Iterator, Set
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
    NOTHING,
    JsonNormalizer,
    WrongTypeError,
    make_writer,
    max_item_bytes,
    may_take_too_much,
)
from sparkkafka.schemas.json.object_fields import (
    OtherFields,
    ValueSpans,
    compact,
    object_fields,
    other_fields,
)
from sparkkafka.schemas.json.plan import JsonNode
from sparkkafka.schemas.json.schema import JsonKind
from sparkkafka.schemas.json.syntax import MAX_NESTING, JsonSyntaxError, UnfitError, nests_too_deep
from sparkkafka.schemas.json.uniform_objects import USUAL_STRINGS, UniformReader
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS
from sparkkafka.schemas.values import Decoded, MemoryBudget, bytes_per_value

MIN_BLOCK_ROWS: Final = 64
"""Fewer texts are read one by one, which takes no longer than a call of the fast reader."""
UNIFORM_RETRY_BATCHES: Final = 30
"""After this number of batches, texts that differed in more than their values are compared again:
if they still differ, a batch takes up to two thirds more time."""
MAX_MODELS: Final = 3
"""With how many of a batch's texts the others are compared, if less than three quarters of them
differ from one in their values only."""
MAX_ROWS_AFTER_FAILURE: Final = 1024
"""The rows after one that the fast reader could not read are read in parts of this number, since a
part is read in vain if it has another such row."""
MAX_BLOCK_BYTES: Final = 16 << 20
CALL_COST_ROWS: Final = 256
"""A call of the fast reader costs as much as it takes to read this number of rows."""
MAX_SEPARATIONS: Final = 3
"""How many times the fields that pyarrow's reader cannot read in some rows are read separately."""
_PARSED_BYTES: Final = 1 << 16
_TOGETHER_BYTES: Final = 1 << 20
"""Of arrays; their items take up to 60 times as much memory."""
MAX_FAILED_READS: Final = 2
"""Once the fast reader has read this multiple of a batch's rows in vain, the remaining rows are
read one by one: they are full of what it cannot read."""


class JsonDecoder:
    """Decodes JSON texts into the values of a node. `JsonNormalizer` explains `with_rest`, `exact`.

    normalizer: normalizes texts one by one. normalized: reads normalized texts, many at once. raw:
    reads texts as they are, many at once; None if pyarrow's reader cannot read all that is not
    separate. strict: as raw, but, if the rest or exactness needs it, fails if a text has a field
    that the type lacks.

    separate_fields: the outermost fields that pyarrow's reader does not read.
    """

    def __init__(self, root: JsonNode, with_rest: bool = False, *, exact: bool = False) -> None:
        self.type = root.type
        self.root = root
        self._row_bytes = bytes_per_value(root.type)
        self.with_rest = with_rest  # fields that the type lacks are returned as JSON texts
        self.exact = exact
        self.has_decimals = _has_decimals(root)
        self.normalizer = JsonNormalizer(root, with_rest, exact)
        self.normalized = BlockReader(root, normalized=True)
        self._plan(frozenset())
        self.batches_until_uniform = 0
        """How many more batches are not read by `_read_uniform`, because it could read no text of
        an earlier batch."""

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
                self.separate_fields[name] = _SeparateField(node, name)
        self.raw: BlockReader | None = None
        self.strict: BlockReader | None = None
        if root.kind == JsonKind.STRUCT:
            raw_type = pa.struct([(name, node.type) for name, node in readable.items()])
            raw_node = JsonNode(JsonKind.STRUCT, raw_type, readable)
            self.raw = self.strict = BlockReader(raw_node, normalized=False)
            # If fields are read separately, a strict reader would refuse them in each text.
            if (self.with_rest or self.exact) and not self.separate_fields:
                self.strict = BlockReader(raw_node, normalized=False, strict=True)

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

    def __init__(self, node: JsonNode, name: str = "v") -> None:
        self.node = node
        self.write = make_writer(node)
        self.reader = BlockReader(node, normalized=True)
        self.begin = f"{{{syntax.quote(name)}:".encode()  # of an object that has the field
        self.root = JsonNode(JsonKind.STRUCT, pa.struct([(name, node.type)]), {name: node})


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
        if len(self.data) and self.data.take(self._offsets[1:] - 1, mode="clip").min() <= ord(" "):
            # A newline behind texts, as in files, would keep them from being read together.
            trimmed = pc.ascii_rtrim(self._texts.view(pa.string()), syntax.BLANKS)
            self._texts = trimmed.view(pa.binary())
            self.data, self._offsets = arrays.content_of(self._texts)
        self._blocks: list[pa.Array] = []  # values that were read together
        self._block_rows: list[Ints] = []  # the rows of each block
        self._normalized: list[tuple[int, str]] = []  # rows and their normalized texts
        self._rests: list[tuple[int, str]] = []  # rows and the JSON texts of their rests
        self._joined_rests: list[tuple[Ints, pa.Array]] = []  # the same, of many rows
        self._reasons: dict[int, str] = {}  # why rows are bad
        # The rows whose value does not fit a separate field, and why they are bad. With the rest
        # they are good: what is left of arrays, maps and structs as JSON texts, else null.
        self._misfits: dict[str, Flags] = {}
        self._misfit_reasons: dict[int, str] = {}
        self._field_rests: dict[str, pa.Array] = {}

    def run(self) -> Decoded:
        """Decode all payloads, and return their values, the reasons of bad rows, and the rests."""
        is_done = self._read_uniform()
        if not is_done.all():
            self._refuse_no_json(is_done)
        if not is_done.any():
            self._read()
        elif not is_done.all():
            self._read_part(self._decoder, np.flatnonzero(~is_done), self._separations_left)
        rows = self._payload_rows(np.array(list(self._reasons), np.int64)).tolist()
        reasons = dict(zip(rows, self._reasons.values(), strict=True))
        rest = self._rest_texts() if self._decoder.with_rest else None
        return Decoded.of(self._values(), reasons, rest)

    def _read(self) -> None:
        """Read all rows. If they are enough to make that fast, pyarrow's reader reads them as they
        are (see `_read_blocks`); the others are normalized one by one, and then read."""
        strict, raw = self._decoder.strict, self._decoder.raw
        if strict is None or raw is None or len(self._texts) < MIN_BLOCK_ROWS:
            self._normalize(np.arange(len(self._texts)))
        else:
            self._normalize(np.sort(np.concatenate(self._read_blocks(strict, raw))))
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
            rows = part
            for _ in range(MAX_MODELS):
                try:
                    reader = UniformReader(
                        decoder.root,
                        *arrays.content_of(_take(self._texts, rows)),
                        self._is_utf8[rows],
                        _convert_texts,
                        self._convert_each,
                        with_rest=decoder.with_rest,
                    )
                except ValueError:
                    break
                read = rows[reader.rows]
                self._blocks.append(reader.values)
                self._block_rows.append(read)
                self._reasons |= {int(rows[row]): why for row, why in reader.reasons.items()}
                if reader.rests is not None:
                    self._joined_rests.append((read, reader.rests.view(pa.string())))
                is_read[read] = True
                others = np.delete(rows, reader.rows)
                if 4 * len(others) < len(rows):
                    break
                rows = others
        if not is_read.any():
            decoder.batches_until_uniform = UNIFORM_RETRY_BATCHES
        return is_read

    def _refuse_no_json(self, is_done: Flags) -> None:
        """Make rows bad, and done, whose texts cannot be JSON of the root's type. The first
        MAX_OWN_REASONS of them are left to the parser, whose error says more, but takes several
        times as long as reading a good text."""
        if len(is_done) <= MAX_OWN_REASONS:
            return
        for reason, find in (
            ("is not a JSON object: it does not begin with { and end with }", self._is_no_object),
            ("is not UTF-8, which JSON must be", lambda: ~self._is_utf8),
        ):
            refused = np.flatnonzero(find() & ~is_done)[MAX_OWN_REASONS:]
            self._reasons |= dict.fromkeys(refused.tolist(), f"the value {reason}")
            is_done[refused] = True

    @cached_property
    def _is_utf8(self) -> Flags:
        """Which texts are UTF-8."""
        return arrays.is_utf8(self._texts)

    def _is_no_object(self) -> Flags:
        """Return which texts can be neither an object nor null, by their first and last bytes, if
        the root is an object. White space and a byte order mark may precede these."""
        if self._decoder.root.kind not in (JsonKind.STRUCT, JsonKind.MAP):
            return np.zeros(len(self._texts), np.bool_)
        data = self.data if len(self.data) else np.zeros(1, np.uint8)
        starts, last = self._offsets[:-1], self._offsets[1:] - 1
        is_empty = last < starts
        # The first bytes of an object, of null, of a byte order mark and of white space.
        can_begin = np.isin(data.take(starts, mode="clip"), list(b"{n\xef \t\r\n"))
        can_end = np.isin(data.take(last, mode="clip"), list(b"}l"))
        flags: Flags = is_empty | ~can_begin | ~can_end
        return flags

    def _read_part(self, decoder: JsonDecoder, rows: Ints, separations_left: int) -> None:
        """Read only these rows, as a batch of their own."""
        part = _Batch(decoder, _take(self._texts, rows), separations_left)
        part._read()
        self._blocks += part._blocks
        self._block_rows += [rows[block_rows] for block_rows in part._block_rows]
        self._rests += [(int(rows[row]), rest) for row, rest in part._rests]
        self._joined_rests += [(rows[index], rests) for index, rests in part._joined_rests]
        self._reasons |= {int(rows[row]): reason for row, reason in part._reasons.items()}

    # --- many texts at once -----------------------------------------------------------------------

    def _read_blocks(self, strict: BlockReader, raw: BlockReader) -> list[Ints]:
        """Read all rows that pyarrow's reader can read, in blocks; return the others, to be read
        one by one. A block that fails is cut, and its parts are read again. `strict` fails at a
        field that the type lacks, `raw` ignores it."""
        doubtful = self._doubtful_texts()
        fields: dict[str, pa.Array] = {}
        if self._decoder.separate_fields:
            fields = self._read_separate_fields(doubtful)
        others = [np.flatnonzero(doubtful)]
        # Rows to be read with some fields separately, and the names of these fields.
        separate: list[tuple[Ints, Set[str]]] = []
        pending = self._cut_by_size(np.flatnonzero(~doubtful))
        rows_read_in_vain = 0
        while pending:
            rows = pending.pop()
            has_failed_often = rows_read_in_vain > MAX_FAILED_READS * len(self._texts)
            if len(rows) < MIN_BLOCK_ROWS or has_failed_often:
                others.append(rows)
                continue
            texts = _take(self._texts, rows)
            has_rests = self._decoder.with_rest and bool(fields)
            try:
                try:
                    block = strict.read(texts)
                except ReadError as error:
                    if not error.is_unknown_field:
                        raise
                    block = raw.read(texts)
                    has_rests = True  # the fields at which `strict` failed
                if self._decoder.exact and (has_rests or (fields and self._lacks_fields(texts))):
                    others.append(rows)  # read one by one, to find the bad row
                    continue
                if fields:
                    block = self._add_fields(block, rows, fields)
                if has_rests:
                    self._add_rests_of_fitting(rows)
            except ReadError as error:
                stopped_at = min(error.row if error.row is not None else len(rows), len(rows))
                rows_read_in_vain += stopped_at + CALL_COST_ROWS
                unreadable, names, parts = self._cut_at_failure(rows, stopped_at, error, raw)
                if names and len(unreadable) >= MIN_BLOCK_ROWS:
                    separate.append((unreadable, names))
                else:
                    others.append(unreadable)
                pending.extend(parts)
                continue
            reasons = self._misfit_reasons
            if reasons:
                self._reasons |= {row: reasons[row] for row in rows.tolist() if row in reasons}
            self._blocks.append(block)
            self._block_rows.append(rows)
        if separate:
            all_names = frozenset().union(*(names for _, names in separate))
            all_rows = np.sort(np.concatenate([rows for rows, _ in separate]))
            # pyarrow's reader cannot read the values of these fields with the others.
            decoder = self._decoder.with_separate(all_names)
            self._read_part(decoder, all_rows, self._separations_left - 1)
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
        """Return the column of one separate field, null for doubtful rows. `values` are the
        positions of its values. Rows with a value that cannot be read without its row become
        doubtful."""
        texts = gather(pa.py_buffer(self.data), values.starts, values.ends - values.starts)
        field = self._decoder.separate_fields[name]
        column, found = self._read_texts(
            field, f".{name}", texts, values.texts, doubtful, together=True
        )
        if self._decoder.with_rest:
            rows = np.array(list(found), np.int64)
            self._misfits[name] = np.zeros(len(doubtful), np.bool_)
            self._misfits[name][rows] = True
            if field.node.children:
                rests = arrow.binary_array([text.encode() for text in found.values()])
                self._field_rests[name] = arrays.spread(rests, rows, len(doubtful))
        else:
            self._misfit_reasons = found | self._misfit_reasons
        return column

    def _convert_each(
        self, node: JsonNode, path: str, texts: pa.Array
    ) -> tuple[pa.Array, dict[int, str], Flags]:
        """Convert the JSON texts of a node's values one by one; null stays null. Return also why
        values do not fit, by their index, and which texts are not JSON."""
        doubtful = np.zeros(len(texts), np.bool_)
        rows = np.flatnonzero(arrow.is_valid(texts))
        read = self._read_texts(_SeparateField(node), path, texts.drop_null(), rows, doubtful)
        return *read, doubtful

    def _read_texts(
        self,
        field: _SeparateField,
        path: str,
        texts: pa.Array,
        rows: Ints,
        doubtful: Flags,
        *,
        together: bool = False,
    ) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of a field whose values have these JSON texts, one at each of `rows`,
        and why values do not fit, by row, or with the rest what is left of arrays, maps and
        structs, as JSON texts. Rows of texts that are not JSON become doubtful. `together`: most
        may be alike."""
        column = pa.nulls(0, field.node.type)
        read_rows = np.zeros(0, np.int64)
        to_parse = np.arange(len(texts))
        reasons: dict[int, str] = {}
        # Values of a column of any JSON are copied as text; only those with an escape are parsed.
        if field.node.kind in (JsonKind.JSON_TEXT, JsonKind.AS_TEXT):
            texts_of_json, must_parse = compact(
                texts, keep_escapes=field.node.kind == JsonKind.JSON_TEXT
            )
            column = _json_column(texts_of_json, field.node)
            read_rows, to_parse = rows, np.flatnonzero(must_parse)
            if len(to_parse):
                copied = np.flatnonzero(~must_parse)
                read_rows, column = rows[copied], column.take(arrow.from_numpy(copied))
        elif together and field.node.children and len(texts) >= MIN_BLOCK_ROWS:
            column, read, rests = self._read_together(field, texts)
            read_rows, to_parse = rows[read], np.delete(to_parse, read)
            reasons = {int(rows[index]): rest for index, rest in rests.items()}
        normalized, normalized_rows = [], []
        # Why values of a Python type do not fit, and the reason with the path by that without.
        known: dict[type | str, str] = {}
        for row, value in self._parsed_values(texts, to_parse, rows, doubtful):
            python_type = type(value)
            if python_type in known:
                reasons[row] = known[python_type]
                continue
            try:
                if self._decoder.with_rest and field.node.children:
                    text, rest = self._decoder.normalizer.split(field.node, value)
                    if rest is not NOTHING:
                        reasons[row] = syntax.to_json(rest)
                else:
                    text = field.write(value)
            except UnfitError as error:
                is_outermost = not error.path
                error.path.append(path)
                reason = known.get(error.reason) if is_outermost else None
                reasons[row] = reason = reason or str(error)
                if is_outermost:
                    is_wrong_type = isinstance(error, WrongTypeError)
                    known[python_type if is_wrong_type else error.reason] = reason
                continue
            normalized.append(f'{{"v":{text}}}'.encode())
            normalized_rows.append(row)
        if normalized:
            try:
                others = field.reader.read(arrow.binary_array(normalized))
            except ReadError:  # no such text is known
                doubtful[normalized_rows] = True
            else:
                column = pa.concat_arrays([column, others])
                read_rows = np.append(read_rows, normalized_rows)
        return arrays.spread(column, read_rows, len(doubtful)), reasons

    def _read_together(
        self, field: _SeparateField, texts: pa.Array
    ) -> tuple[pa.Array, Ints, dict[int, str]]:
        """Return the column of those JSON texts of a field's values that could be read together,
        their indexes, and by index why they do not fit, or with a rest what is left of them."""
        column, read = pa.nulls(0, field.node.type), np.zeros(0, np.int64)
        with_rest = self._decoder.with_rest or field.node.kind == JsonKind.STRUCT
        is_large = texts.nbytes > _TOGETHER_BYTES
        if is_large and not self._decoder.with_rest and _can_read_raw(field.node):
            return column, read, {}  # parsed one by one, they take less memory and time
        if is_large and len(texts) > 1:
            half = len(texts) // 2
            first, read, rests = self._read_together(field, texts[:half])
            second, others, other_rests = self._read_together(field, texts[half:])
            rests |= {row + half: rest for row, rest in other_rests.items()}
            return pa.concat_arrays([first, second]), np.append(read, others + half), rests
        # Python's bytes would import pandas here.
        begin, end, nothing = arrow.binary_array([field.begin, b"}", b""])
        objects = pc.binary_join_element_wise(begin, texts, end, nothing)
        try:
            reader = UniformReader(
                field.root,
                *arrays.content_of(objects),
                np.ones(len(texts), np.bool_),
                _convert_texts,
                self._convert_each,
                with_rest=with_rest,
                with_arrays=True,
            )
        except ValueError:
            return column, read, {}
        column, read = reader.values.field(0), reader.rows
        if reader.rests is None:
            return column, read, reader.reasons
        has_rest = arrow.is_valid(reader.rests)
        if self._decoder.with_rest:
            objects = reader.rests.drop_null().to_pylist()
            left = [text[len(field.begin) : -1].decode() for text in objects]
            return column, read, dict(zip(read[has_rest].tolist(), left, strict=True))
        fits = np.flatnonzero(~has_rest)  # the others need a reason
        return column.take(arrow.from_numpy(fits)), read[fits], {}

    def _parsed_values(
        self, texts: pa.Array, indexes: Ints, rows: Ints, doubtful: Flags
    ) -> Iterator[tuple[int, Any]]:
        """Yield the row and the parsed value of the texts at `indexes`, except of those that are
        `null`. Rows of texts that are not JSON become doubtful. `rows` has the row of each of
        `texts`, which do not nest too deep."""
        if not len(indexes):
            return
        lengths = np.diff(arrow.blob_offsets(texts))[indexes]
        piece_numbers = np.cumsum(lengths) // _PARSED_BYTES
        for piece in np.split(indexes, np.flatnonzero(np.diff(piece_numbers)) + 1):
            contents = texts.take(arrow.from_numpy(piece)).to_pylist()
            piece_rows = rows[piece].tolist()
            try:
                # Parts of damaged texts, as 1,[2 and 3],4, may be values together. Then the strings
                # between texts, which nobody can know before, are in other positions.
                mark = uuid.uuid4().hex
                joined = (b',"%s",' % mark.encode()).join(contents)
                values = syntax.parse(b"[%s]" % joined, is_shallow=True)
                if values[1::2] != [mark] * (len(contents) - 1):
                    raise ValueError
                read = list(zip(piece_rows, values[::2], strict=True))
            except ValueError:  # a text is not JSON, or has several values
                read = []
                for row, content in zip(piece_rows, contents, strict=True):
                    try:
                        read.append((row, syntax.parse(content)))
                    except JsonSyntaxError:
                        doubtful[row] = True
            yield from ((row, value) for row, value in read if value is not None)

    def _add_fields(self, block: pa.Array, rows: Ints, fields: dict[str, pa.Array]) -> pa.Array:
        """Return the structs of rows: the block's columns, and those of separate fields."""
        index = arrow.from_numpy(rows)
        children = [
            fields[field.name].take(index) if field.name in fields else block.field(field.name)
            for field in self._decoder.type
        ]
        return pa.Array.from_buffers(self._decoder.type, len(rows), [None], children=children)

    def _lacks_fields(self, texts: pa.Array) -> bool:
        """Return whether the type may lack fields of these texts."""
        others = other_fields(
            *arrays.content_of(texts), *self._decoder.normalizer.field_names, misfits={}
        )
        return bool(len(others.texts) or others.is_unclear.any())

    def _add_rests_of_fitting(self, rows: Ints) -> None:
        """Add the rests of rows that were read by pyarrow's reader. Their rests are fields that the
        type lacks and separate fields that do not fit; these are cut out of the text, and parsed
        unless they are compact JSON."""
        texts = _take(self._texts, rows)
        data, offsets = arrays.content_of(texts)
        misfits = {name.encode(): flags[rows] for name, flags in self._misfits.items()}
        known, structs = self._decoder.normalizer.field_names
        others = other_fields(data, offsets, known, structs, misfits)
        buffer = pa.py_buffer(data)
        names = gather(buffer, others.starts, others.name_ends - others.starts)
        fields, must_parse = compact(
            gather(buffer, others.starts, others.ends - others.starts), keep_escapes=True
        )
        # Python's bytes would import pandas here.
        nothing, colon, comma, begin, end = arrow.binary_array([b"", b":", b",", b"{", b"}"])
        # Of a separate field's array, map or struct, only the parts that do not fit are left.
        for name, rests in self._field_rests.items():
            quoted = arrow.binary_array([syntax.quote(name).encode()])[0]
            is_field = arrays.flags_of(pc.equal(names, quoted))
            left = rests.take(arrow.from_numpy(rows[others.texts[is_field]]))
            left = pc.binary_join_element_wise(quoted, left, colon)
            fields = pc.replace_with_mask(fields, arrow.from_numpy(is_field), left)
            must_parse[is_field] = False
        is_parsed = others.is_unclear.copy()  # which texts are parsed to find their rests
        is_parsed[others.texts[must_parse | others.is_struct]] = True
        is_parsed[others.texts[_is_invalid_or_repeated(names, others.texts)]] = True
        self._rests += self._parse_rests(rows, np.flatnonzero(is_parsed), data, offsets, others)
        kept = np.flatnonzero(~is_parsed[others.texts])
        if not len(kept):
            return
        fields = fields.take(arrow.from_numpy(kept))
        counts = np.bincount(others.texts[kept])
        with_rest = np.flatnonzero(counts)
        ends = arrow.from_numpy(arrays.offsets_of(counts[with_rest], np.int32))
        joined = pc.binary_join(pa.ListArray.from_arrays(ends, fields), comma)
        rests = pc.binary_join_element_wise(begin, joined, end, nothing)
        self._joined_rests.append((rows[with_rest], rests.view(pa.string())))

    def _parse_rests(
        self, rows: Ints, indexes: Ints, data: Bytes, offsets: Ints, others: OtherFields
    ) -> list[tuple[int, str]]:
        """Return (row, rest) for the rows at these indexes that have a rest: JSON of the parts that
        match no column. `data` has the texts of all rows, and `others` their other fields."""
        if not len(indexes):
            return []
        content = data.tobytes()
        spans = list(zip(others.starts.tolist(), others.ends.tolist(), strict=True))
        columns = [offsets[indexes], offsets[indexes + 1], others.is_unclear[indexes]]
        # Where the other fields of each text begin in `spans`, and those of the next text.
        columns += [np.searchsorted(others.texts, indexes + step) for step in (0, 1)]
        texts = []
        for begin, end, is_unclear, first, last in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            text = content[begin:end]
            if not is_unclear:
                objects = [content[start:stop] for start, stop in spans[first:last]]
                text = b"{%s}" % b",".join(objects)
            texts.append(text)
        rests = []
        unread = np.zeros(len(self._texts), np.bool_)
        for row, value in self._parsed_values(
            arrow.binary_array(texts), np.arange(len(texts)), rows[indexes], unread
        ):
            rest = self._decoder.normalizer.rest_of(value)
            if rest is not None:
                rests.append((row, rest))
        if unread.any():  # no text is known on which the two parsers differ
            raise ReadError
        return rests

    def _cut_by_size(self, rows: Ints) -> list[Ints]:
        """Cut rows into parts whose texts have about MAX_BLOCK_BYTES."""
        ends = np.cumsum(self._offsets[rows + 1] - self._offsets[rows])
        if not len(rows) or ends[-1] <= MAX_BLOCK_BYTES:
            return [rows]
        return np.split(rows, np.flatnonzero(np.diff(ends // MAX_BLOCK_BYTES)) + 1)

    def _cut_at_failure(
        self, rows: Ints, stopped_at: int, error: ReadError, reader: BlockReader
    ) -> tuple[Ints, Set[str], list[Ints]]:
        """Cut rows that pyarrow's reader could not read together. Return: the rows that the reader
        cannot read, as far as they are known; the outermost fields that have the values it cannot
        read (none if unknown, or if they cannot be read separately); and the parts in which the
        other rows are read again. `stopped_at`: the index of the row at which the reader stopped,
        len(rows) if unknown."""
        knows_row = stopped_at < len(rows)
        pattern, names_by_group = reader.misfit_pattern(error.message)
        if names_by_group:
            # Look for all texts with such a value, not only the one at which the reader stopped.
            matches = pattern.finditer(self.data.data, *self._offsets[[rows[0], rows[-1] + 1]])
            candidates = [(match.start(), match.lastindex or 0) for match in matches]
            misfits = np.array([at for at, _ in candidates], np.int64)
            is_suspect = np.isin(rows, np.searchsorted(self._offsets, misfits, "right") - 1)
            if knows_row:
                is_suspect[stopped_at] = True
            if np.count_nonzero(is_suspect) > knows_row:  # other rows, too
                groups = {group for _, group in candidates}
                names = set().union(*(names_by_group[group - 1] for group in groups))
                if not self._can_be_separate:
                    names = set()
                return rows[is_suspect], names, [rows[~is_suspect]]
        if error.field is not None and self._can_be_separate:
            return rows, {error.field}, []
        if error.is_syntax and np.any(is_damaged := self._is_no_json[rows]):
            damaged = rows[is_damaged]
            self._reasons |= dict.fromkeys(
                damaged[MAX_OWN_REASONS:].tolist(), "the value is not JSON"
            )
            return damaged[:MAX_OWN_REASONS], set(), [rows[~is_damaged]]
        if knows_row:
            after = rows[stopped_at + 1 :]
            cuts = range(MAX_ROWS_AFTER_FAILURE, len(after), MAX_ROWS_AFTER_FAILURE)
            parts = [rows[:stopped_at], *np.split(after, list(cuts))]
            return rows[stopped_at : stopped_at + 1], set(), parts
        return rows[:0], set(), np.array_split(rows, 4)

    @property
    def _can_be_separate(self) -> bool:
        """Whether more fields can be read separately: the limit of such reads is not reached."""
        return self._separations_left > 0 and not self._decoder.exact

    @cached_property
    def _is_no_json(self) -> Flags:
        """Which texts Python's parser refuses. As Latin-1 they have a character for each byte, and
        no other structure: UTF-8 is ASCII but for bytes inside strings."""
        content = self.data.tobytes().decode("latin-1")
        bounds = self._offsets.tolist()
        return np.array(
            [not syntax.is_json(content[start:end]) for start, end in itertools.pairwise(bounds)],
            np.bool_,
        )

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
        texts = [arrow.binary_array([rest.encode() for _, rest in self._rests]).view(pa.string())]
        rows = [np.array([row for row, _ in self._rests], np.int64)]
        for joined_rows, joined in self._joined_rests:
            texts.append(joined)
            rows.append(joined_rows)
        return arrays.spread(
            pa.concat_arrays(texts), self._payload_rows(np.concatenate(rows)), self._count
        )


# --- parts of arrays ------------------------------------------------------------------------------


def _take(texts: pa.Array, rows: Ints) -> pa.Array:
    """Return the texts of these rows, which ascend. The memory is shared if the rows are
    neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return texts.slice(first, len(rows))
    return texts.take(arrow.from_numpy(rows))


def _is_invalid_or_repeated(keys: pa.Array, maps: Ints) -> Flags:
    """Return which names of a map's items are not valid strings, or are in the map twice. `maps`:
    the number of each key's map."""
    flags = np.zeros(len(keys), np.bool_)
    data, offsets = arrays.content_of(keys)
    if data.min(initial=255) < ord(" "):
        controls = np.flatnonzero(data < ord(" "))
        flags[np.searchsorted(offsets, controls, "right") - 1] = True
    flags |= ~arrays.is_utf8(keys)
    flags[arrays.repeated_keys(keys, np.bincount(maps))] = True
    return flags


def _json_column(texts: pa.Array, node: JsonNode) -> pa.Array:
    """Return values that may be any JSON as a column of text (of a string its content, unless the
    node keeps JSON), null for null. `texts`: their compact JSON."""
    offsets = arrow.blob_offsets(texts).astype(np.int64)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    first = data.take(offsets[:-1], mode="clip") if len(data) else np.zeros(len(texts), np.uint8)
    if node.kind == JsonKind.AS_TEXT:
        is_string = (first == ord('"')) & (np.diff(offsets) > 1)
        starts = offsets[:-1] + is_string
        texts = gather(texts.buffers()[2], starts, offsets[1:] - is_string - starts)
    column = arrays.as_texts(texts).cast(node.type)
    is_null = (first == ord("n")) & (np.diff(offsets) > 0)
    return arrays.null_outside(column, ~is_null) if is_null.any() else column


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
    stopped, if known; `is_unknown_field`: it stopped at a field that the type lacks; `is_syntax`:
    at what is not JSON; `field`: the outermost one that could not be converted, if known."""

    def __init__(self, message: str = "", field: str | None = None) -> None:
        super().__init__("not all texts could be read")
        self.message = message[:1000]
        self.field = field
        self.is_syntax = "JSON parse error: " in message[:100] and "changed from" not in message
        match = re.search(r"in row (\d+)$", message[-40:])
        self.row = int(match[1]) if match else None
        self.is_unknown_field = message.endswith("unexpected field")


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

    def misfit_pattern(self, message: str) -> tuple[re.Pattern[bytes], list[Set[str]]]:
        """Return a pattern that finds values like the one with which the reader failed, for its
        message: of the same field, or of all fields of the same type; and for each group of it, the
        outermost fields that have the group's field (no group if neither is known)."""
        match = _CHANGED_COLUMN.search(message)
        fitting: dict[str, list[bytes]] = {}
        names: dict[str, set[str]] = {}
        for outer, root in self._root.children.items():
            inner_fields = _fields_below(root, f"/{outer}")
            for name, path, node in itertools.chain([(outer, f"/{outer}", root)], inner_fields):
                fitting.setdefault(name, []).append(_fitting_pattern(node))
                while node.kind == JsonKind.LIST:  # the reader names the type of the items
                    node = node.item
                # Messages about strings name a decimal without its precision.
                types = (str(_reader_type(node)).split("(")[0], str(node.type))
                if path == match[1] if match else any(kind in message for kind in types):
                    names.setdefault(name, set()).add(outer)
        parts = [
            rb'"%s"%s:(?!%s(?:null|%s))()'
            % (re.escape(name.encode()), _BLANK, _BLANK, b"|".join(fitting[name]))
            for name in names
        ]
        return re.compile(b"|".join(parts)), list(names.values())


_BLANK: Final = rb"[ \t\r\n]*+"
_STRING: Final = rb'"(?:[^"\\]|\\.)*+"'
_CHANGED_COLUMN = re.compile(r"Column\((/.*?)(?:/\[\])*\) changed from ")


def _fields_below(node: JsonNode, path: str) -> Iterator[tuple[str, str, JsonNode]]:
    """Yield (name, path as in messages of pyarrow's reader, such as /a/[]/b, node) of all fields of
    structs."""
    if node.kind == JsonKind.LIST:
        yield from _fields_below(node.item, f"{path}/[]")
    elif node.kind == JsonKind.STRUCT:
        for name, child in node.children.items():
            yield name, f"{path}/{name}", child
            yield from _fields_below(child, f"{path}/{name}")


def _fitting_pattern(node: JsonNode) -> bytes:
    """Return a pattern for how values of a node begin that pyarrow's reader can read; of arrays
    without objects for all of the value. A few of these values do not match."""
    kind = node.kind
    if kind in (JsonKind.INTEGER, JsonKind.EPOCH_DAYS, JsonKind.EPOCH_MILLIS):
        limit = 2 ** (_reader_type(node).bit_width - 1)
        return rb"-?\d{1,%d}(?![\d.eE])" % (len(str(limit)) - 1)
    if kind == JsonKind.DECIMAL:
        scale = max(node.type.scale, 0)
        digits = max(node.type.precision - scale, 1), scale
        return rb'"?[+-]?\d{1,%d}(?:\.\d{0,%d})?(?![\d.eE])' % digits
    if kind in (JsonKind.DATE, JsonKind.TIMESTAMP, JsonKind.LOCAL_TIMESTAMP):
        return b'"%s"' % USUAL_STRINGS[kind].encode()
    if kind == JsonKind.LIST and node.item.children:
        return rb"\["
    if kind == JsonKind.LIST:
        item = rb"%s(?=null|%s)(?:%s|[^\[\]{},\"\s]++)%s" % (
            *(_BLANK, _fitting_pattern(node.item), _STRING, _BLANK),
        )
        return rb"\[(?:%s(?:,%s)*+|%s)\]" % (item, item, _BLANK)
    return {JsonKind.STRUCT: rb"\{", JsonKind.FLOAT: rb"-?\d", JsonKind.BOOL: rb"[tf]"}.get(
        kind, b'"'
    )


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
    if reader_type == column.type:
        return _convert(node, column)
    try:
        numbers = column.cast(reader_type)
    except pa.ArrowInvalid:
        if not pa.types.is_integer(reader_type):
            raise
        numbers = pc.replace_substring_regex(column, r"^(-?\d+)\.0+$", r"\1").cast(reader_type)
    return _convert(node, numbers)


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
    if array.type == node.type:
        return array
    try:
        return array.cast(node.type)
    except pa.ArrowInvalid:
        if kind not in (JsonKind.TIMESTAMP, JsonKind.LOCAL_TIMESTAMP):
            raise
        # Arrow refuses digits below microseconds, which are cut off.
        return pc.replace_substring_regex(array, r"(\.\d{6})\d+", r"\1").cast(node.type)


def _rebuild(
    column_type: pa.DataType, like: pa.Array, buffers: list[Any], children: list[pa.Array]
) -> pa.Array:
    """Return an array of this type with these buffers and children, and the length, offset and
    nulls of `like`."""
    return pa.Array.from_buffers(
        column_type, len(like), buffers, like.null_count, like.offset, children=children
    )
