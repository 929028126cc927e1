"""Many questions at once: one by one, each would wait for the whole way to the registry."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Final, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

MAX_THREADS: Final = 8


def each(ask: Callable[[Item], Found], items: Iterable[Item]) -> dict[Item, Found]:
    """`ask(item)` of each different item, by at most MAX_THREADS threads.

    Raises what the first one that fails raises, and begins no other. The first item goes alone: a
    registry that is away is asked, and spoken of in the log, once and not by all threads.
    """
    waiting = deque(dict.fromkeys(items))
    found: dict[Item, Found] = {}
    if waiting:
        first = waiting.popleft()
        found[first] = ask(first)
    answers: SimpleQueue[tuple[Item, Found | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        while waiting:
            try:
                item = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                answers.put((item, ask(item), None))
            except BaseException as error:
                answers.put((item, None, error))

    left = len(waiting)
    for number in range(min(MAX_THREADS, left)):
        # Daemons: an interrupt waits for no answer.
        threading.Thread(target=work, name=f"registry-{number}", daemon=True).start()
    try:
        for _ in range(left):
            item, answer, error = answers.get()
            if error is not None:
                raise error
            found[item] = answer  # type: ignore[assignment]
    finally:
        waiting.clear()
    return found
