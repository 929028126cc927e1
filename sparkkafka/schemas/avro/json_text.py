"""Decodes and encodes recursive types in one column, as JSON text or as Avro's bytes, at any depth.

The text is that of a column of the value's type (records with all fields, unions of several types
as member0 …, bytes in base64). The same record inside of it is such a text again. So one level of
all values is decoded or encoded at a time, and the next level only where there is a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.byte_columns import ByteColumn, blobs_of
from sparkkafka.protocol.records.arrow import from_numpy, repeat_text
from sparkkafka.schemas.arrays import null_outside, scalar
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.cursor import INACTIVE, Cursor
from sparkkafka.schemas.avro.decode import ValueDecoder, cursor_of
from sparkkafka.schemas.avro.encode import RowOf, ValueEncoder, bytes_of
from sparkkafka.schemas.avro.schema import Node
from sparkkafka.schemas.avro.skip import Skipper
from sparkkafka.schemas.avro.types import (
    arrow_type,
    becomes_struct,
    holds_recursive_value,
    may_be_null,
)
from sparkkafka.schemas.json.decode import JsonDecoder
from sparkkafka.schemas.json.encode import Form, JsonEncoder, Null, form_of
from sparkkafka.schemas.json.plan import node_of_type
from sparkkafka.schemas.json.schema import JsonKind
from sparkkafka.schemas.schema_errors import type_levels
from sparkkafka.schemas.values import Encoder, MemoryBudget, ValueRowError

_DEPTH: ContextVar[int] = ContextVar("depth", default=0)
"""How many levels are being decoded or encoded, one inside the other."""


class Level:
    """One level of a recursive type; the next level in it is text. `avro_decoder` and
    `avro_encoder` are those of `type`. They contain the level, so they are set after it is made."""

    avro_decoder: ValueDecoder
    avro_encoder: ValueEncoder

    def __init__(self, node: Node) -> None:
        self.type = arrow_type(node, 1)
        self.may_be_null = may_be_null(node)
        self._node = node
        # All levels of one value may take 600 of Python's 1000 frames. A level of a type takes at
        # most three: for a record or array, and a union around it.
        self._max_depth = max(2, 600 // (3 * type_levels(self.type)))

    @cached_property
    def json_encoder(self) -> JsonEncoder:
        return JsonEncoder(_form(self._node, self.type))

    @cached_property
    def json_decoder(self) -> JsonDecoder:
        return JsonDecoder(node_of_type(self.type), exact=True)

    @property
    def refusal(self) -> str:
        """Why no further level can be decoded or encoded; "" if one can."""
        if _DEPTH.get() < self._max_depth:
            return ""
        return f"it is nested in itself more than {self._max_depth} levels deep"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count one level more while it is decoded or encoded."""
        token = _DEPTH.set(_DEPTH.get() + 1)
        try:
            yield
        finally:
            _DEPTH.reset(token)


def _form(node: Node, column_type: pa.DataType) -> Form:
    """Return how a level's values, of the Arrow type `column_type`, are written in JSON text:
    fields that are null are written, but only the member of a union that has a value."""
    if holds_recursive_value(node, column_type):
        return Form(JsonKind.OWN_TEXT)
    if node.kind == avro.RECORD:
        return Form(
            JsonKind.STRUCT,
            children={
                field.name: _form(field.node, column_type.field(index).type)
                for index, field in enumerate(node.fields)
            },
        )
    if node.kind == avro.ARRAY:
        return Form(JsonKind.LIST, children={"": _form(node.item, column_type.value_type)})
    if node.kind == avro.MAP:
        return Form(JsonKind.MAP, children={"": _form(node.item, column_type.item_type)})
    if node.kind == avro.UNION:
        if becomes_struct(node):
            members = {}
            for index, number in enumerate(node.value_branches):
                form = _form(node.branches[number], column_type.field(index).type)
                members[f"member{index}"] = Form(form.kind, Null.OMITTED, form.children, form.scale)
            return Form(JsonKind.STRUCT, children=members)
        if len(node.value_branches) == 1:
            return _form(node.branches[node.value_branches[0]], column_type)
    return form_of(column_type, None)


# --- decoding -----------------------------------------------------------------------------------


class JsonTextDecoder(ValueDecoder):
    """Decodes each value to its JSON text."""

    def __init__(self, skipper: Skipper, level: Level) -> None:
        super().__init__(pa.string(), skipper)
        self._level = level

    def read(self, cursor: Cursor) -> pa.Array:
        """Return the JSON text of each entry; empty for inactive entries and bad rows."""
        entries = np.flatnonzero(cursor.is_active())
        texts = [repeat_text("", 1)]
        # For each entry the index of its text in all `texts`; 0 is the empty one.
        text_indexes = np.zeros(len(cursor), np.int64)
        if len(entries):
            failures = cursor.chunk.failures
            inner = cursor.select(entries)
            count = 1
            for indexes, more_texts in self._read_texts(inner):
                text_indexes[entries[indexes]] = np.arange(count, count + len(more_texts))
                count += len(more_texts)
                texts.append(more_texts)
            cursor.update(entries, inner)
            cursor.deactivate_bad(failures)
        if len(texts) == 2 and len(texts[1]) == len(cursor):
            return texts[1]
        return pa.concat_arrays(texts).take(from_numpy(text_indexes))

    def _read_texts(self, cursor: Cursor) -> Iterator[tuple[np.ndarray, pa.Array]]:
        """Yield texts with the entries of the cursor that they belong to, until all entries that
        are not bad had one. All active entries are encoded at once; if a value cannot be JSON, each
        half of the entries is tried again."""
        reason = self._level.refusal
        if not reason:
            failures = cursor.chunk.failures
            with self._level.entered():
                values = self._level.avro_decoder.read(cursor)
            cursor.deactivate_bad(failures)
            if not cursor.chunk.budget.take(_text_bytes(self._level.json_encoder.form, values)):
                reason = "its JSON text takes too much memory, for so few bytes"
        if reason:
            cursor.fail(np.ones(len(cursor), np.bool_), self.path, reason)
            return
        waiting = [np.arange(len(values))]
        while waiting:
            indexes = waiting.pop()
            indexes = indexes[cursor.end[indexes] != INACTIVE]
            if not len(indexes):
                continue
            written = values if len(indexes) == len(values) else values.take(from_numpy(indexes))
            try:
                yield indexes, self._level.json_encoder.encode(written).cast(pa.string())
            except ValueRowError as error:  # JSON does not have it, for example NaN
                mask = np.zeros(len(cursor), np.bool_)
                mask[indexes[error.row]] = True
                cursor.fail(mask, self.path, error.reason)
                cursor.deactivate_bad(-1)  # also other entries of its row
                middle = len(indexes) // 2
                waiting += [indexes[middle:], indexes[:middle]]


def _text_bytes(form: Form, values: pa.Array) -> int:
    """Return the bytes that names and inner texts take in the JSON text. Everything else is in
    proportion to the payload, but these may come from values without bytes."""
    if form.kind == JsonKind.STRUCT:
        names = sum(len(name) + len('"":null,') for name in form.children)
        inner = (
            _text_bytes(child, values.field(index))
            for index, child in enumerate(form.children.values())
        )
        return len(values) * names + sum(inner)
    if form.kind == JsonKind.LIST:
        return _text_bytes(form.item, values.values)
    if form.kind == JsonKind.MAP:
        return _text_bytes(form.item, values.items)
    return int(values.nbytes) if form.kind == JsonKind.OWN_TEXT else 0


class AvroBytesDecoder(ValueDecoder):
    """Decodes each value to its bytes as they were written."""

    def __init__(self, skipper: Skipper) -> None:
        super().__init__(pa.binary(), skipper)

    def read(self, cursor: Cursor) -> pa.Array:
        """Return the encoded bytes of each entry's value, b"" for an inactive entry."""
        starts = cursor.at
        self.skipper.skip(cursor)
        active = cursor.is_active()
        lengths = np.where(active, cursor.at - starts, 0)
        return cursor.gather(np.where(active, starts, cursor.chunk.zeros_at), lengths)


class ReencodedBytesDecoder(ValueDecoder):
    """Decodes each value of the writer's schema to its bytes in the reader's schema, which are
    `null_bytes` for null."""

    def __init__(self, texts: JsonTextDecoder, encoder: Encoder, null_bytes: bytes) -> None:
        super().__init__(pa.binary(), texts.skipper)
        self._texts = texts
        self._encoder = encoder
        self._null = scalar(null_bytes)

    def read(self, cursor: Cursor) -> pa.Array:
        """Return the bytes of each entry's JSON text; those of entries that became inactive mean
        nothing."""
        texts = null_outside(self._texts.read(cursor), cursor.is_active())
        return self._encoder.encode(texts).fill_null(self._null)


# --- encoding -----------------------------------------------------------------------------------


class JsonTextEncoder(ValueEncoder):
    """Encodes values from their JSON texts."""

    def __init__(self, path: str, level: Level) -> None:
        super().__init__(path)
        self._level = level

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the Avro bytes of each JSON text. Raises ValueRowError for a text that is not JSON
        of the schema."""
        if not len(array):
            return []
        if self._level.refusal:
            self.refuse(np.ones(len(array), np.bool_), row_of, self._level.refusal)
        decoded = self._level.json_decoder.decode(array.cast(pa.binary()))
        bad = np.zeros(len(array), np.bool_)
        bad[decoded.bad_rows] = True
        reasons = dict(zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True))
        self.refuse(bad, row_of, lambda index: f"it must be JSON text, and in it {reasons[index]}")
        if not self._level.may_be_null:
            # Here, since the level's encoder is shared by all fields of its type: it cannot name
            # the field whose text is "null".
            self.refuse_nulls(decoded.values, row_of)
        with self._level.entered():
            return self._level.avro_encoder.encode(decoded.values, row_of)


class AvroBytesEncoder(ValueEncoder):
    """Encodes values from their bytes, which must be those of one value."""

    def __init__(self, path: str, skipper: Skipper) -> None:
        super().__init__(path)
        self._skipper = skipper

    def _encode(self, array: pa.Array, row_of: RowOf) -> list[ByteColumn]:
        """Return the bytes as they are. Raises ValueRowError if they are not those of exactly one
        value."""
        if len(array):
            data, offsets = bytes_of(array)
            begin, end = int(offsets[0]), int(offsets[-1])
            cursor = cursor_of(data[begin:end], offsets - begin, MemoryBudget(array))
            ends = cursor.end
            self._skipper.skip(cursor)
            cursor.fail(cursor.at != ends, "", "bytes left over")
            chunk = cursor.chunk
            self.refuse(
                chunk.is_bad,
                row_of,
                lambda index: f"it must be the bytes of one value in Avro: {chunk.reasons[index]}",
            )
        return [blobs_of(array)]
