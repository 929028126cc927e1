"""Each asyncio class has the methods of its class of the threads, with the same signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, Producer, ShareConsumer
from sparkkafka.client.aio import AsyncAdmin, AsyncConsumer, AsyncProducer, AsyncShareConsumer

PAIRS = [
    (Admin, AsyncAdmin),
    (Consumer, AsyncConsumer),
    (Producer, AsyncProducer),
    (ShareConsumer, AsyncShareConsumer),
]
ONLY_ASYNC = {"send_nowait", "drain", "batches", "arrow_batches"}
PLAIN = {"metrics", "wakeup", "send_nowait"}
"""Methods that are not awaited."""


def public(kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(method).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


@pytest.mark.parametrize(("threads", "aio"), PAIRS)
def test_names_signatures_and_docs_are_the_same(threads: type, aio: type) -> None:
    expected, found = public(threads), public(aio)
    assert found.keys() - ONLY_ASYNC == expected.keys()
    for name, method in expected.items():
        if isinstance(method, property):
            assert isinstance(found[name], property)
            continue
        assert parameters(found[name]) == parameters(method), name
        assert inspect.iscoroutinefunction(found[name]) == (name not in PLAIN), name
        if hasattr(found[name], "__wrapped__"):
            assert found[name].__doc__ == method.__doc__
        else:
            assert found[name].__doc__


@pytest.mark.parametrize(("threads", "aio"), PAIRS)
def test_settings_are_checked_by_the_same_rules(threads: type, aio: type) -> None:
    errors = []
    for kind in (threads, aio):
        with pytest.raises(ValueError, match=r"bootstrap\.servrs") as found:
            kind({"bootstrap.servrs": "localhost:9092", "group.id": "g"})
        errors.append(str(found.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("kind", [kind for pair in PAIRS for kind in pair])
def test_keywords_of_other_libraries_are_an_error_that_says_what_to_pass(kind: type) -> None:
    name = kind.__name__
    with pytest.raises(TypeError, match=rf'{name}\(\{{"bootstrap.servers": .*client-asyncio.md'):
        kind(bootstrap_servers="localhost:9092")


def test_a_subclass_may_take_the_keyword() -> None:
    class Orders(Admin):
        def __init__(self, bootstrap_servers: str) -> None:
            super().__init__({"bootstrap.servers": bootstrap_servers})

    with Orders(bootstrap_servers="localhost:9092") as orders:
        assert "localhost:9092" in repr(orders)
