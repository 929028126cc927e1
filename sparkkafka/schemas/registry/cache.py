"""A cache of schemas by id and GUID for the whole process: what an id means never changes. Ids
that do not exist are cached for some seconds.

Each registry and identity has its own cache, since users may have different rights.
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
MAX_TEXT: Final = 64 * 2**20
"""Characters of the texts in one cache, unless it has only one schema."""

ABSENT_S: Final = 10.0
"""How long an id counts as absent: it may be registered at any moment."""
MIN_ABSENT: Final = 16
"""Up to this number, absent ids are requested again: that is quick, and a registry server that lags
behind the others has the schema when Spark retries the task."""
MAX_ABSENT: Final = 20_000


_lock = threading.Lock()
"""Guards all caches: their operations take microseconds."""


class SchemaCache:
    """The most recently used schemas, at most `capacity`, and absent ids. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._schemas: OrderedDict[Hashable, tuple[Schema, int]] = OrderedDict()  # with their sizes
        self._size = 0
        self._absent: OrderedDict[Hashable, float] = OrderedDict()  # with their expiry, ascending

    def get(self, key: Hashable) -> Schema | None:
        """Return the schema of an id; None if it is not in the cache."""
        with _lock:
            entry = self._schemas.get(key)
            if entry is None:
                return None
            self._schemas.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, schema: Schema) -> None:
        """Add a schema, and drop those that were not used for longest, if there are too many."""
        size = text_size(schema)
        with _lock:
            if key in self._schemas:
                self._size -= self._schemas.pop(key)[1]
            self._schemas[key] = schema, size
            self._size += size
            while len(self._schemas) > 1 and (
                len(self._schemas) > self.capacity or self._size > MAX_TEXT
            ):
                self._size -= self._schemas.popitem(last=False)[1][1]

    def is_absent(self, key: Hashable) -> bool:
        """Return whether this id is known to be absent, so that it is not requested again. While
        few ids are absent, return False: see MIN_ABSENT."""
        with _lock:
            now_s = time.monotonic()
            while self._absent and next(iter(self._absent.values())) <= now_s:
                self._absent.popitem(last=False)
            return len(self._absent) > MIN_ABSENT and key in self._absent

    def put_absent(self, key: Hashable) -> None:
        """Note that this id does not exist."""
        with _lock:
            self._absent.pop(key, None)
            self._absent[key] = time.monotonic() + ABSENT_S
            if len(self._absent) > MAX_ABSENT:
                self._absent.popitem(last=False)


def text_size(schema: Schema) -> int:
    """Return the characters of all its texts, each counted once, and of its contract."""
    sizes: dict[int, int] = {}
    waiting = [schema]
    while waiting:
        current = waiting.pop()
        if id(current) not in sizes:
            sizes[id(current)] = len(current.text)
            waiting += [referenced for _, referenced in current.references]
    return sum(sizes.values()) + (schema.contract.size if schema.contract else 0)


_caches: OrderedDict[Hashable, SchemaCache] = OrderedDict()


def _after_fork() -> None:
    """Replace the lock: a thread that held it does not exist in the child process."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def cache_of(settings: RegistrySettings, capacity: int) -> SchemaCache:
    """Return the cache of this registry and identity; the same for equal settings."""
    with _lock:
        cache = _caches.setdefault(settings, SchemaCache(capacity))
        cache.capacity = capacity
        _caches.move_to_end(settings)
        if len(_caches) > MAX_CACHES:
            _caches.popitem(last=False)
        return cache
