"""Questions by several threads: all are answered, or the first failure ends them."""

from __future__ import annotations

import threading

import pytest

from sparkkafka.errors import RegistryError
from sparkkafka.schemas.registry.several import MAX_THREADS, each


def test_each_is_asked_once_and_the_first_alone() -> None:
    asked: list[int] = []
    together = threading.Barrier(MAX_THREADS)

    def ask(item: int) -> int:
        asked.append(item)
        if item:
            together.wait(60)  # nobody gets on unless so many ask at once
        return item * 2

    items = [0, *range(1, 3 * MAX_THREADS + 1), 0, 1]
    assert each(ask, items) == {item: item * 2 for item in items}
    assert sorted(asked) == sorted(set(items))
    assert asked[0] == 0
    assert each(ask, []) == {}


@pytest.mark.parametrize("bad", [0, 5])
def test_a_failure_ends_the_questions(bad: int) -> None:
    asked: list[int] = []

    def ask(item: int) -> int:
        asked.append(item)
        if item == bad:
            raise RegistryError("no")
        if item > bad:
            failed.wait(60)
        return item

    failed = threading.Event()
    with pytest.raises(RegistryError, match="no"):
        each(ask, range(1000))
    failed.set()
    assert len(asked) <= bad + 1 + MAX_THREADS
