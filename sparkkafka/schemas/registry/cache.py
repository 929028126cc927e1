"""Schemas by their ids, kept for the process: what has an id never changes. And for a short time,
that there is none.

One cache for each registry and identity, since what one user may read another perhaps may not.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from sparkkafka.config.registry import RegistrySettings
from sparkkafka.schemas.values import Schema

MAX_CACHES: Final = 32
MAX_BYTES: Final = 64 * 2**20
"""Of the texts in one cache, as long as it has more than one schema."""

ABSENT_S: Final = 10.0
"""How long "no such schema" counts: the id may be registered at any moment."""
FEW_ABSENT: Final = 16
"""So few are asked for again at once: it takes no time, and a server of the registry that is a
moment behind the others has the schema when Spark tries the task again."""
MAX_ABSENT: Final = 20_000


class SchemaCache:
    """The most recently used schemas, at most `capacity`; and which there are not. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._rows: OrderedDict[Hashable, tuple[Schema, int]] = OrderedDict()
        self._bytes = 0
        self._absent: OrderedDict[Hashable, float] = OrderedDict()  # until when, ascending
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Schema | None:
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                return None
            self._rows.move_to_end(key)
            return row[0]

    def put(self, key: Hashable, schema: Schema) -> None:
        size = _size(schema)
        with self._lock:
            if key in self._rows:
                self._bytes -= self._rows.pop(key)[1]
            self._rows[key] = schema, size
            self._bytes += size
            while len(self._rows) > 1 and (
                len(self._rows) > self.capacity or self._bytes > MAX_BYTES
            ):
                self._bytes -= self._rows.popitem(last=False)[1][1]

    def is_absent(self, key: Hashable) -> bool:
        """Whether the registry has just said that there is no such schema, as of many others."""
        with self._lock:
            now_s = time.monotonic()
            while self._absent and next(iter(self._absent.values())) <= now_s:
                self._absent.popitem(last=False)
            return len(self._absent) > FEW_ABSENT and key in self._absent

    def put_absent(self, key: Hashable) -> None:
        with self._lock:
            self._absent.pop(key, None)
            self._absent[key] = time.monotonic() + ABSENT_S
            if len(self._absent) > MAX_ABSENT:
                self._absent.popitem(last=False)

    def __len__(self) -> int:
        return len(self._rows)

    def after_fork(self) -> None:
        """The thread that held the lock is not in the child."""
        self._lock = threading.Lock()


def _size(schema: Schema) -> int:
    """Characters of all its texts, each once, and of its contract."""
    seen: dict[int, int] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen[id(one)] = len(one.text)
            waiting += [other for _, other in one.references]
    return sum(seen.values()) + (schema.contract.size if schema.contract else 0)


_caches: OrderedDict[Hashable, SchemaCache] = OrderedDict()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for cache in _caches.values():
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def cache_of(settings: RegistrySettings, capacity: int) -> SchemaCache:
    """The cache of this registry for this identity; the same for equal settings."""
    with _lock:
        cache = _caches.get(settings)
        if cache is None:
            cache = _caches[settings] = SchemaCache(capacity)
            while len(_caches) > MAX_CACHES:
                _caches.popitem(last=False)
        _caches.move_to_end(settings)
        cache.capacity = capacity
        return cache
