"""What recurs as JSON text, or as Avro's bytes, in one column: read and written at any depth.

The text is that of a column of the value's type (records with all fields, unions of several types
as member0 …, bytes in base64), in which the same record is such a text again. So one level is read
or written at a time, of all values at once, and the next one only where there is a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.records.arrow import from_numpy, repeat_text
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.cursor import PADDING, PARKED, Chunk, Cursor
from sparkkafka.schemas.avro.encode_scalars import (
    Blobs,
    ConstantWriter,
    Filler,
    Rows,
    Writer,
    blobs,
)
from sparkkafka.schemas.avro.nested import masked
from sparkkafka.schemas.avro.scalars import Reader
from sparkkafka.schemas.avro.schema import Node
from sparkkafka.schemas.avro.types import arrow_type, becomes_struct, is_text, parts
from sparkkafka.schemas.avro.wires import Wire
from sparkkafka.schemas.bounds import type_levels
from sparkkafka.schemas.json.decode import JsonDecoder
from sparkkafka.schemas.json.encode import OMITTED, OWN_TEXT, Form, JsonEncoder, form_of
from sparkkafka.schemas.json.plan import LIST, MAP, STRUCT, node_of_type
from sparkkafka.schemas.values import Encoder, MemoryBudget, ValueRowError

_MAX_FRAMES: Final = 600
"""Of Python's 1000: what reading and writing all levels of one value may take."""
_FRAMES: Final = 3
"""At most, of a level of a type: a record or array, and a union around it."""

_OPEN: ContextVar[int] = ContextVar("levels", default=0)


class Level:
    """One level of what recurs, whose next level is text. `reader` and `writer` are of `type`; they
    are set when they are made, since they have the level in them."""

    reader: Reader
    writer: Writer

    def __init__(self, node: Node) -> None:
        self.type = arrow_type(node, 1)
        self._node = node
        self._most = max(2, _MAX_FRAMES // (_FRAMES * type_levels(self.type)))

    @cached_property
    def encoder(self) -> JsonEncoder:
        return JsonEncoder(_form(self._node, self.type))

    @cached_property
    def decoder(self) -> JsonDecoder:
        return JsonDecoder(node_of_type(self.type), exact=True)

    @property
    def too_deep(self) -> str | None:
        """Why no further level can be worked on, if so."""
        if _OPEN.get() < self._most:
            return None
        return f"it is nested in itself more than {self._most} levels deep"

    @contextmanager
    def opened(self) -> Iterator[None]:
        token = _OPEN.set(_OPEN.get() + 1)
        try:
            yield
        finally:
            _OPEN.reset(token)


READER_LEVELS: ContextVar[dict[Any, Level] | None] = ContextVar("reader's levels", default=None)
WRITER_LEVELS: ContextVar[dict[Any, Level] | None] = ContextVar("writer's levels", default=None)
"""Of the reader or writer that is being made: the levels of what recurs in it, by its types."""


@contextmanager
def shared(levels: ContextVar[dict[Any, Level] | None]) -> Iterator[dict[Any, Level]]:
    """Around all that makes a reader or writer: each level is made once for it."""
    known = levels.get()
    if known is not None:
        yield known
        return
    made: dict[Any, Level] = {}
    token = levels.set(made)
    try:
        yield made
    finally:
        levels.reset(token)


def _form(node: Node, kind: pa.DataType) -> Form:
    """How a level's values are written: null fields too, but of a union the member that is set."""
    if is_text(node, kind):
        return Form(OWN_TEXT)
    if node.kind == avro.RECORD:
        return Form(
            STRUCT,
            children={
                field.name: _form(field.node, kind.field(at).type)
                for at, field in enumerate(node.fields)
            },
        )
    if node.kind == avro.ARRAY:
        return Form(LIST, children={"": _form(node.item, kind.value_type)})
    if node.kind == avro.MAP:
        return Form(MAP, children={"": _form(node.item, kind.item_type)})
    if node.kind == avro.UNION:
        rest, _ = parts(node)
        if becomes_struct(node):
            members = {}
            for at, number in enumerate(rest):
                form = _form(node.branches[number], kind.field(at).type)
                members[f"member{at}"] = Form(form.kind, OMITTED, form.children, form.scale)
            return Form(STRUCT, children=members)
        if len(rest) == 1:
            return _form(node.branches[rest[0]], kind)
    return form_of(kind, None)


# --- reading ------------------------------------------------------------------------------------


class JsonTextReader(Reader):
    """JSON text of each value."""

    def __init__(self, wire: Wire, level: Level) -> None:
        super().__init__(pa.string(), wire)
        self._level = level

    def read(self, cursor: Cursor) -> pa.Array:
        entries = np.flatnonzero(cursor.live())
        if not len(entries):
            return _texts(len(cursor), [], [])
        failures = cursor.chunk.failures
        inner = cursor.part(entries)
        reason = self._level.too_deep
        pieces: list[pa.Array] = []
        places: list[np.ndarray] = []
        if reason is None:
            with self._level.opened():
                values = self._level.reader.read(inner)
            inner.settle(failures)
            if not cursor.chunk.budget.take(_text_bytes(self._level.encoder.form, values)):
                reason = "its JSON text takes too much memory, for so few bytes"
        if reason is None:
            for place, piece in self._encoded(values, inner):
                places.append(entries[place])
                pieces.append(piece)
        else:
            inner.fail(np.ones(len(inner), np.bool_), self.path, reason)
        cursor.put_back(entries, inner)
        cursor.settle(failures)
        return _texts(len(cursor), places, pieces)

    def _encoded(self, values: pa.Array, cursor: Cursor) -> Iterator[tuple[np.ndarray, pa.Array]]:
        """Texts of the values, with their places among them. What JSON does not have, such as NaN,
        makes its row bad."""
        waiting = [np.arange(len(values))]
        while waiting:
            some = waiting.pop()
            some = some[cursor.end[some] != PARKED]
            if not len(some):
                continue
            part = values if len(some) == len(values) else values.take(from_numpy(some))
            try:
                yield some, self._level.encoder.encode(part).cast(pa.string())
            except ValueRowError as error:
                mask = np.zeros(len(cursor), np.bool_)
                mask[some[error.row]] = True
                cursor.fail(mask, self.path, error.reason)
                cursor.settle(-1)  # all of its row
                middle = len(some) // 2
                waiting += [some[middle:], some[:middle]]


def _text_bytes(form: Form, values: pa.Array) -> int:
    """What the names and inner texts of values' JSON take: all that is not in proportion to the
    values themselves, which may be of no bytes."""
    if form.kind == STRUCT:
        names = sum(len(name) + len('"":null,') for name in form.children)
        inner = (
            _text_bytes(child, values.field(at)) for at, child in enumerate(form.children.values())
        )
        return len(values) * names + sum(inner)
    if form.kind == LIST:
        return _text_bytes(form.item, values.values)
    if form.kind == MAP:
        return _text_bytes(form.item, values.items)
    return int(values.nbytes) if form.kind == OWN_TEXT else 0


def _texts(count: int, places: list[np.ndarray], pieces: list[pa.Array]) -> pa.Array:
    """The texts at their places, and empty ones between."""
    if len(pieces) == 1 and len(pieces[0]) == count:
        return pieces[0]
    index = np.zeros(count, np.int64)
    at = 1
    for place in places:
        index[place] = np.arange(at, at + len(place))
        at += len(place)
    nothing = repeat_text("", 1)
    return pa.concat_arrays([nothing, *pieces]).take(from_numpy(index))


class AvroBytesReader(Reader):
    """The bytes of each value as they are written."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(pa.binary(), wire)

    def read(self, cursor: Cursor) -> pa.Array:
        starts = cursor.at
        self.wire.skip(cursor)
        live = cursor.live()
        lengths = np.where(live, cursor.at - starts, 0)
        return cursor.gather(np.where(live, starts, cursor.chunk.park), lengths)


class OtherBytesReader(Reader):
    """The bytes that the reader's schema would have written, of another schema's values."""

    def __init__(self, texts: JsonTextReader, encoder: Encoder) -> None:
        super().__init__(pa.binary(), texts.wire)
        self._texts = texts
        self._encoder = encoder

    def read(self, cursor: Cursor) -> pa.Array:
        texts = masked(self._texts.read(cursor), cursor.live())
        return self._encoder.encode(texts).fill_null(b"")


# --- writing ------------------------------------------------------------------------------------


class JsonTextWriter(Writer):
    """Values from their JSON texts."""

    def __init__(self, path: str, level: Level) -> None:
        super().__init__(path)
        self._level = level

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        if not len(array):
            return ConstantWriter(self.path, b"").prepare(array, rows)
        reason = self._level.too_deep
        if reason is not None:
            self.refuse(np.ones(len(array), np.bool_), rows, reason)
        decoded = self._level.decoder.decode(array.cast(pa.binary()))
        bad = np.zeros(len(array), np.bool_)
        bad[decoded.bad_rows] = True
        reasons = dict(zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True))
        self.refuse(bad, rows, lambda entry: f"it must be JSON text, and in it {reasons[entry]}")
        with self._level.opened():
            return self._level.writer.prepare(decoded.values, rows)


class AvroBytesWriter(Writer):
    """Values from their bytes, which must be those of one value."""

    def __init__(self, path: str, wire: Wire) -> None:
        super().__init__(path)
        self._wire = wire

    def prepare(self, array: pa.Array, rows: Rows) -> Filler:
        self.need_all(array, rows)
        data, starts, lengths = blobs(array)
        if len(array):
            begin, end = int(starts[0]), int(starts[-1] + lengths[-1])
            own = np.zeros(end - begin + PADDING, np.uint8)
            own[: end - begin] = data[begin:end]
            chunk = Chunk(own, lengths, MemoryBudget(array))
            cursor = Cursor(chunk, starts - begin, starts - begin + lengths)
            ends = cursor.end
            self._wire.skip(cursor)
            left = (cursor.at != ends) & (cursor.end != PARKED)
            cursor.fail(left, "", "bytes left over")
            reasons = chunk.reasons
            self.refuse(
                chunk.dead,
                rows,
                lambda entry: f"it must be the bytes of one value in Avro: {reasons[entry]}",
            )
        return Blobs(data, starts, lengths)
