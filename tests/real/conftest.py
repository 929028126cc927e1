"""Fixtures for tests against real brokers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest

_numbers = itertools.count()


@pytest.fixture
def new_topic(kafka_cluster) -> Callable[..., str]:
    """Make a topic with a name of its own: `new_topic(partitions=4, configs={…})`."""

    def make(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        name = f"topic-{next(_numbers)}"
        kafka_cluster.create_topic(name, partitions=partitions, configs=dict(configs or {}))
        return name

    return make
