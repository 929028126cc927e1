"""A type -> how its values are written, at any depth where a record stands in itself."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.cursor import BrokenError, Cursor
from sparkkafka.schemas.avro.schema import Node, below
from sparkkafka.schemas.avro.wires import (
    BlobWire,
    FixedWire,
    ItemsWire,
    RecordWire,
    UnionWire,
    VarintWire,
    Walk,
    Wire,
    step_all,
)
from sparkkafka.schemas.bounds import MAX_PATH, cut

_MAX_OPEN: Final = 20_000
"""Values in each other that are skipped: about half as many records in themselves."""


class RecursiveWire(Wire):
    """A record that stands in itself: each entry is followed by itself, at any depth, without
    Python's stack. Each value in it has a byte at least: without one it would never end."""

    recursive = True

    def __init__(self, node: Node) -> None:
        super().__init__(cut(node.name, MAX_PATH), 1)  # it has many places, and one name
        self._node = node

    @cached_property
    def _inner(self) -> RecordWire:
        return _record_wire(self._node, self.path)

    def skip(self, cursor: Cursor) -> None:
        step_all(self, cursor)

    def walk(self, data: bytes, at: int, end: int) -> Walk:
        return self._inner.walk(data, at, end)

    def step(self, data: bytes, at: int, end: int) -> int:
        todo = [self.walk(data, at, end)]
        sent: int | None = None
        while todo:
            try:
                wire, at = todo[-1].send(sent)  # type: ignore[arg-type]  # None starts it
            except StopIteration as ended:
                todo.pop()
                at = sent = ended.value
            else:
                if len(todo) == _MAX_OPEN:
                    raise BrokenError(self.path, "it is nested too deep to be skipped")
                todo.append(wire.walk(data, at, end))
                sent = None
        return at


def _record_wire(node: Node, path: str) -> RecordWire:
    return RecordWire(path, [wire_of(field.node, below(path, field.name)) for field in node.fields])


def wire_of(node: Node, path: str) -> Wire:
    """How values of a type are written."""
    kind = node.kind
    if kind == avro.RECORD:
        if not node.refusal:
            return _record_wire(node, path)
        if not node.wires:
            node.wires.append(RecursiveWire(node))
        found: Wire = node.wires[0]
        return found
    if kind == avro.UNION:
        return UnionWire(path, [wire_of(branch, path) for branch in node.branches])
    if kind == avro.ARRAY:
        return ItemsWire(path, wire_of(node.item, f"{path}[]"))
    if kind == avro.MAP:
        inner = f"{path}{{}}"
        return ItemsWire(path, RecordWire(inner, [BlobWire(inner), wire_of(node.item, inner)]))
    if kind in (avro.STRING, avro.BYTES):
        return BlobWire(path)
    if kind in (avro.INT, avro.LONG, avro.ENUM):
        return VarintWire(path)
    sizes = {avro.NULL: 0, avro.BOOLEAN: 1, avro.FLOAT: 4, avro.DOUBLE: 8}
    return FixedWire(path, sizes.get(kind, node.size))
