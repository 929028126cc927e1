"""Calls by several threads: all return, or the first failure ends them."""

from __future__ import annotations

import threading

import pytest

from sparkkafka.errors import RegistryError
from sparkkafka.schemas.registry.client import MAX_THREADS, call_concurrently


def test_each_item_is_called_once_and_the_first_alone() -> None:
    calls: list[int] = []
    concurrent = threading.Barrier(MAX_THREADS)

    def function(item: int) -> int:
        calls.append(item)
        if item:
            concurrent.wait(60)  # returns only while MAX_THREADS calls are running
        return item * 2

    items = [0, *range(1, 3 * MAX_THREADS + 1), 0, 1]
    assert call_concurrently(function, items) == {item: item * 2 for item in items}
    assert sorted(calls) == sorted(set(items))
    assert calls[0] == 0
    assert call_concurrently(function, []) == {}


@pytest.mark.parametrize("bad", [0, 5])
def test_a_failure_ends_the_calls(bad: int) -> None:
    calls: list[int] = []

    def function(item: int) -> int:
        calls.append(item)
        if item == bad:
            raise RegistryError("no")
        if item > bad:
            failed.wait(60)
        return item

    failed = threading.Event()
    with pytest.raises(RegistryError, match="no"):
        call_concurrently(function, range(1000))
    failed.set()
    assert len(calls) <= bad + 1 + MAX_THREADS
