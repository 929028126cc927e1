"""pytest fixtures with real and fake Kafka brokers and a real Schema Registry.

    def test_orders(kafka_cluster, spark):
        kafka_cluster.create_topic("orders", partitions=4)
        ...

pytest finds this module by its entry point, and loads it in every run on a machine that has
sparkkafka. So loading it must be cheap: all imports are inside the fixtures.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pytest

if TYPE_CHECKING:
    from sparkkafka.testing.fake.cluster import FakeCluster
    from sparkkafka.testing.kafka.cluster import KafkaCluster
    from sparkkafka.testing.registry import SchemaRegistry


class KafkaClusterFactory(Protocol):
    """Type of `kafka_cluster_factory`: the parameters of `KafkaCluster`."""

    def __call__(self, brokers: int = 1, *args: object, **options: object) -> KafkaCluster: ...


class SchemaRegistryFactory(Protocol):
    """Type of `schema_registry_factory`: the parameters of `SchemaRegistry`."""

    def __call__(self, *args: object, **options: object) -> SchemaRegistry: ...


class FakeClusterFactory(Protocol):
    """Type of `fake_cluster_factory`: the parameters of `FakeCluster`."""

    def __call__(self, brokers: int = 1, **options: Any) -> FakeCluster: ...


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    """One real broker for the whole session. Give each test topics of its own."""
    cluster = _open_cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def kafka_cluster_factory() -> Iterator[KafkaClusterFactory]:
    """A function that starts clusters for one test: `kafka_cluster_factory(3, {"num.partitions":
    2})`.

    It has the parameters of `KafkaCluster`. The clusters are removed after the test.
    """
    clusters: list[KafkaCluster] = []

    def start(brokers: int = 1, *args: object, **options: object) -> KafkaCluster:
        clusters.append(_open_cluster(brokers, *args, **options))
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.close()


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[SchemaRegistry]:
    """One real Schema Registry for the whole session. Give each test subjects of its own."""
    registry = _open_registry()
    yield registry
    registry.close()


@pytest.fixture
def schema_registry_factory() -> Iterator[SchemaRegistryFactory]:
    """A function that starts registries for one test: `schema_registry_factory("FULL")`.

    It has the parameters of `SchemaRegistry`. The registries are removed after the test.
    """
    registries: list[SchemaRegistry] = []

    def start(*args: object, **options: object) -> SchemaRegistry:
        registries.append(_open_registry(*args, **options))
        return registries[-1]

    yield start
    for registry in registries:
        registry.close()


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """Three fake brokers for one test, which fails if a request makes the fake itself fail."""
    from sparkkafka.testing.fake.cluster import FakeCluster

    with FakeCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def fake_cluster_factory() -> Iterator[FakeClusterFactory]:
    """A function that starts fake clusters for one test: `fake_cluster_factory(1,
    rack_aware=True)`.

    It has the parameters of `FakeCluster`. The clusters are closed after the test.
    """
    from sparkkafka.testing.fake.cluster import FakeCluster

    with contextlib.ExitStack() as stack:
        yield lambda brokers=1, **options: stack.enter_context(FakeCluster(brokers, **options))


def _open_cluster(*args: object, **options: object) -> KafkaCluster:
    """Open a cluster. Without Java or the jars the test is skipped, or fails if that is asked
    for."""
    from sparkkafka.testing.kafka.cluster import KafkaCluster
    from sparkkafka.testing.kafka.jars import ensure_jars, kafka_jars
    from sparkkafka.testing.kafka.java import find_java
    from sparkkafka.testing.kafka.process import UnavailableError

    cluster = KafkaCluster(*args, **options)  # type: ignore[arg-type]
    try:
        find_java()
        ensure_jars(kafka_jars(cluster.kafka_version))
    except UnavailableError as error:
        _not_available("Kafka", str(error))
    # A broker that does not start is a failure everywhere.
    cluster.open()
    return cluster


def _open_registry(*args: object, **options: object) -> SchemaRegistry:
    """Open a Schema Registry. Without Java or the jars the test is skipped, or fails if that is
    asked for."""
    from sparkkafka.testing.kafka.jars import REGISTRY_JARS, ensure_jars
    from sparkkafka.testing.kafka.java import find_java
    from sparkkafka.testing.kafka.process import UnavailableError
    from sparkkafka.testing.registry import SchemaRegistry

    registry = SchemaRegistry(*args, **options)  # type: ignore[arg-type]
    try:
        find_java()
        ensure_jars(REGISTRY_JARS)
    except UnavailableError as error:
        _not_available("Schema Registry", str(error))
    registry.open()
    return registry


def _not_available(what: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where the variable CI is set: a run that proves nothing must not
    pass."""
    if os.environ.get("CI"):
        pytest.fail(f"no real {what}: {reason}", pytrace=False)
    pytest.skip(f"no real {what}: {reason}")
