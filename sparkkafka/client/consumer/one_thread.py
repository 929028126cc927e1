"""A guard for objects that one thread at a time may use."""

from __future__ import annotations

import threading

from sparkkafka.errors import ConsumerStateError


class OneThread:
    """`with guard:` around each method. A thread may enter again while it is inside (callbacks)."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking=False):
                raise ConsumerStateError(
                    f"{self._what} is in use by another thread, and it is made for one at a time: "
                    "give each thread its own, or hold a lock around every call. Only wakeup() may "
                    "be called meanwhile"
                )
            self._owner = me
        self._depth += 1

    def __exit__(self, *exc_info: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()
