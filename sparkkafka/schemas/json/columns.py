"""Many JSON texts at once -> an Arrow column, by pyarrow's reader (RapidJSON).

It is many times faster than one by one, but all or nothing: one value that it cannot take fails the
whole block. And it takes what is not JSON, and worse: `doubtful` keeps such texts away from it.
"""

from __future__ import annotations

import binascii
import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.json.plan import Node
from sparkkafka.schemas.json.texts import MAX_NESTED, too_deep

CLEAN: Final = "v"
"""The field of a clean text that has its value."""

# null after an object: the reader crashes on null where it expects an object.
_NULL: Final = re.compile(rb"\}[ \t\r\n]*n")
# NaN and Infinity are numbers to the reader. (NUL ends its input.)
_WORDS: Final = re.compile(rb"[:\[,\-][ \t\r\n]*(?:NaN|Inf)")
_NOT_AT_ONCE: Final = frozenset(
    {plan.MAP, plan.JSON_TEXT, plan.DURATION, plan.DECIMAL_BYTES, plan.NULL}
)


class NotReadError(Exception):
    """pyarrow's reader took not all texts. `row`: the one that it stopped at, if it says so;
    `text`: the value that it did not take, if it says that; `unknown`: a field that was not asked
    for, and all were to be."""

    def __init__(
        self, row: int | None = None, text: bytes | None = None, *, unknown: bool = False
    ) -> None:
        super().__init__("not all texts were taken")
        self.row, self.text, self.unknown = row, text, unknown


def at_once(root: Node) -> bool:
    """Whether texts as they come can be read at once: an object, of types that the reader has."""
    return root.kind == plan.STRUCT and bool(root.children) and _simple(root)


def _simple(node: Node) -> bool:
    return node.kind not in _NOT_AT_ONCE and all(map(_simple, node.children.values()))


def doubtful(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each text that the reader must not see. The texts lie one after the other in `data`,
    none is empty. What is left begins with { and ends with }, so that with a newline between texts
    no object can reach from one into the next: } and { never follow each other inside one, and a
    string has no newline in it. The count of objects then says whether each text is just one."""
    numbers = np.frombuffer(data, np.uint8)
    bad: NDArray[np.bool_] = (numbers[starts] != ord("{")) | (numbers[ends - 1] != ord("}"))
    suspects: list[int] = []
    following = numbers[np.flatnonzero(numbers[:-1] == ord("}")) + 1]
    if np.any((following == ord("n")) | (following <= ord(" "))):
        suspects += [match.end() - 1 for match in _NULL.finditer(data)]
    if _has_pair(numbers, b"Na") or _has_pair(numbers, b"In"):
        suspects += [match.end() - 1 for match in _WORDS.finditer(data)]
    if b"\0" in data:
        suspects += np.flatnonzero(numbers == 0).tolist()
    if suspects:
        bad[np.searchsorted(ends, suspects, side="right")] = True
    long = np.flatnonzero(ends - starts > 2 * MAX_NESTED)
    if len(long):
        opening = np.flatnonzero((numbers | 0x20) == 0x7B)  # { and [
        counts = np.searchsorted(opening, ends[long]) - np.searchsorted(opening, starts[long])
        for row in long[counts > MAX_NESTED].tolist():
            bad[row] |= too_deep(data[starts[row] : ends[row]])
    return bad


def _has_pair(numbers: NDArray[np.uint8], pair: bytes) -> bool:
    """Whether two bytes stand side by side: several times faster than `pair in data`."""
    return bool(np.any((numbers[:-1] == pair[0]) & (numbers[1:] == pair[1])))


class ColumnReader:
    """Reads texts of one node at once: as they come (`clean` false), or clean ones."""

    def __init__(self, root: Node, *, clean: bool, all_fields: bool = False) -> None:
        self._root = root
        self._clean = clean
        fields = [(CLEAN, root)] if clean else list(root.children.items())
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([(name, _read_type(node)) for name, node in fields]),
            newlines_in_values=True,
            unexpected_field_behavior="error" if all_fields else "ignore",
        )

    def read(self, texts: pa.Array) -> pa.Array:
        """The column of texts (binary, no nulls). Raises NotReadError."""
        count = len(texts)
        if not count:
            return _empty(self._root.type)
        try:
            texts.cast(pa.string())  # the reader does not look at UTF-8
            joined = _joined(texts)
            table = pj.read_json(
                pa.BufferReader(joined),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 64),
                parse_options=self._options,
            )
            if table.num_rows != count:
                raise NotReadError
            columns = [_one(column) for column in table.columns]
            if self._clean:
                return _finished(self._root, columns[0])
            children = [
                _finished(node, column)
                for node, column in zip(self._root.children.values(), columns, strict=True)
            ]
            return pa.Array.from_buffers(self._root.type, count, [None], children=children)
        except (pa.ArrowException, ValueError) as error:
            raise _failure(str(error)) from None


def _failure(message: str) -> NotReadError:
    match = re.search(r"in row (\d+)$", message[-40:])
    if match:
        return NotReadError(row=int(match[1]))
    if message.endswith("unexpected field"):
        return NotReadError(unknown=True)
    match = _VALUE.search(message[:400])
    return NotReadError(text=match[match.lastindex or 0].encode() if match else None)


# "Failed to convert JSON to int64, couldn't parse:1.5", "Failed to parse string: 'x' as a scalar"
_VALUE = re.compile(r"couldn't parse:(.{1,100})$|decimal256\(\d+, \d+\): (\S+) requires |'(.+)' ")


def _joined(texts: pa.Array) -> pa.Buffer:
    """All texts, with newlines between them."""
    offsets = from_numpy(np.array([0, len(texts)], np.int32))
    newline = pa.Array.from_buffers(
        texts.type, 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\n")]
    )
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), newline)[0].as_buffer()


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks)


def _empty(kind: pa.DataType) -> pa.Array:
    return pa.schema([("v", kind)]).empty_table().column(0).combine_chunks()


def _read_type(node: Node) -> pa.DataType:
    """The type that the reader is asked for."""
    kind = node.kind
    if kind == plan.STRUCT:
        return pa.struct([(name, _read_type(child)) for name, child in node.children.items()])
    if kind == plan.LIST:
        return pa.list_(_read_type(node.item))
    if kind == plan.MAP:
        return pa.list_(pa.struct([("key", pa.string()), ("value", _read_type(node.item))]))
    if kind in (plan.DATE, plan.TIMESTAMP, plan.LOCAL_TIMESTAMP, plan.BINARY, plan.JSON_TEXT):
        return pa.string()
    if kind in (plan.EPOCH_MILLIS, plan.DURATION):
        return pa.int64()
    if kind == plan.NULL:
        return pa.bool_()  # pyarrow 18 counts nulls in lists wrong
    if kind in (plan.DECIMAL, plan.DECIMAL_BYTES):
        # The reader counts a number's digits before it appends zeros to reach the scale, and lets
        # the result wrap around: in 256 bits any 38 digits and 38 zeros have room.
        return pa.decimal256(node.type.precision, node.type.scale)
    return pa.int32() if kind == plan.EPOCH_DAYS else node.type


def _finished(node: Node, array: pa.Array) -> pa.Array:
    """What was read, as the node's type. Raises ValueError (ArrowInvalid is one)."""
    kind = node.kind
    if kind == plan.STRUCT:
        children = [
            _finished(child, array.field(at)) for at, child in enumerate(node.children.values())
        ]
        return _built(node.type, array, array.buffers()[:1], children)
    if kind == plan.LIST:
        return _built(node.type, array, array.buffers()[:2], [_finished(node.item, array.values)])
    if kind == plan.MAP:
        pairs = array.values
        entries = pa.Array.from_buffers(
            pa.struct([node.type.key_field, node.type.item_field]),
            len(pairs),
            [None],
            children=[pairs.field(0), _finished(node.item, pairs.field(1))],
        )
        return _built(node.type, array, array.buffers()[:2], [entries])
    if kind == plan.NULL:
        return pa.nulls(len(array))
    if kind == plan.FLOAT:
        if pc.any(pc.is_inf(array)).as_py():
            raise ValueError("a number is too large")
        return array
    if kind in (plan.DATE, plan.TIMESTAMP, plan.LOCAL_TIMESTAMP, plan.EPOCH_DAYS, plan.JSON_TEXT):
        return array.cast(node.type)
    if kind == plan.EPOCH_MILLIS:
        return array.cast(pa.timestamp("ms", "UTC")).cast(node.type)
    if kind in (plan.DURATION, plan.DECIMAL, plan.DECIMAL_BYTES):
        return array.cast(node.type)
    return _decoded(array) if kind == plan.BINARY else array


def _built(
    kind: pa.DataType, like: pa.Array, buffers: list[Any], children: list[pa.Array]
) -> pa.Array:
    return pa.Array.from_buffers(
        kind, len(like), buffers, like.null_count, like.offset, children=children
    )


def _decoded(array: pa.Array) -> pa.Array:
    """Texts in base64 as their bytes. Raises ValueError for what is not base64."""
    parts = [
        None if text is None else binascii.a2b_base64(text, strict_mode=True)
        for text in array.to_pylist()
    ]
    sizes = [0 if part is None else len(part) for part in parts]
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    valid = from_numpy(is_valid(array)).buffers()[1] if array.null_count else None
    data = pa.py_buffer(b"".join([part for part in parts if part]))
    return pa.Array.from_buffers(
        pa.binary(), len(parts), [valid, pa.py_buffer(offsets), data], array.null_count
    )
