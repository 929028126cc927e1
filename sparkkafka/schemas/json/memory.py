"""What the items of JSON texts take as columns: `{}` has a slot in each column of its type."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sparkkafka.schemas.bounds import BYTES_PER_BYTE, ROW_BYTES, slot_bytes
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.json.plan import Node
from sparkkafka.schemas.values import BASE_BUDGET, BUDGET_PER_BYTE

_LEAST: Final = 3  # bytes of an item that has no more: {} and a comma


def item_bytes(root: Node) -> int:
    """What the largest item takes at most; 0 if that is in proportion to its text."""
    most = _largest(root)
    return most if most > _LEAST * BUDGET_PER_BYTE else 0


def _largest(node: Node) -> int:
    most = max(map(_largest, node.children.values()), default=0)
    if node.kind in (plan.LIST, plan.MAP):
        most = max(most, slot_bytes(node.item.type))
    return most


def suspects(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], size: int
) -> NDArray[np.bool_]:
    """Texts whose items, of `size` bytes, could take too much: objects and nulls are counted."""
    if size <= _LEAST * BYTES_PER_BYTE:
        return np.zeros(len(starts), np.bool_)
    found = np.flatnonzero(_items(data))
    counts = np.searchsorted(found, ends) - np.searchsorted(found, starts)
    bad: NDArray[np.bool_] = counts * size > ROW_BYTES + (ends - starts) * BYTES_PER_BYTE
    return bad


def most_bytes(data: NDArray[np.uint8], size: int) -> int:
    """What the items of all texts take at most."""
    return int(np.count_nonzero(_items(data))) * size


def _items(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where an object or a null begins."""
    first = data[:-1]
    begins: NDArray[np.bool_] = (first == ord("{")) | ((first == ord("n")) & (data[1:] == ord("u")))
    return begins


def too_large(root: Node, payload: bytes, value: Any, size: int) -> bool:
    """Whether the items of a value take too much memory for a payload of so few bytes."""
    length = len(payload)
    most = min(ROW_BYTES + length * BYTES_PER_BYTE, BASE_BUDGET + length * BUDGET_PER_BYTE)
    if (payload.count(b"{") + payload.count(b"nu")) * size <= most:
        return False
    return _bytes(root, value, most) > most


def _bytes(node: Node, value: Any, most: int) -> int:
    """What the items of a value take, or some number above `most`."""
    kind = type(value)
    if node.kind == plan.STRUCT and kind is dict:
        children = node.children
        return sum(_bytes(children[name], value[name], most) for name in value if name in children)
    if node.kind not in (plan.LIST, plan.MAP) or kind not in (list, dict):
        return 0
    own = len(value) * slot_bytes(node.item.type)
    if own > most or not node.item.children:
        return own
    items = value.values() if kind is dict else value
    return own + sum(_bytes(node.item, each, most) for each in items)
