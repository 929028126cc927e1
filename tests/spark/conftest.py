"""Fixtures for tests of the data source. The second clients are those of tests/real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sparkkafka.client.net import connecting
from tests.schemas.small_registry import SmallRegistry, small_registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A Schema Registry of this process, without schemas."""
    with small_registry() as one:
        yield one


@pytest.fixture
def read(spark: Any, kafka_cluster: Any) -> Callable[..., DataFrame]:
    """`read(subscribe="t", startingOffsets=…)`; the format is that of this package."""

    def load(format: str = "pykafka", **options: str) -> DataFrame:
        given = {name.replace("__", "."): value for name, value in options.items()}
        if format == "kafka":  # else it waits half a second behind the end of each range
            given.setdefault("kafka.fetch.max.wait.ms", "20")
        return (
            spark.read.format(format)
            .options(**{"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers, **given})
            .load()
        )

    return load


@pytest.fixture
def write(kafka_cluster: Any) -> Callable[..., None]:
    """`write(df, topic="t")`, in append mode."""

    def save(df: DataFrame, mode: str = "append", **options: str) -> None:
        given = {name.replace("__", "."): value for name, value in options.items()}
        (
            df.write.format("pykafka")
            .options(**{"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers, **given})
            .mode(mode)
            .save()
        )

    return save


@pytest.fixture(autouse=True)
def unchecked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `KafkaDataSource.writer` in this process do without a broker: most tests of a writer's
    columns and formats have none."""
    monkeypatch.setattr(connecting, "check_servers", lambda *_: None)
