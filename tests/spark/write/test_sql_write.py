"""INSERT in SQL on a real broker: into tables, whose options Spark keeps to itself, and views."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.real.peers import Row, confluent_read

pytestmark = [pytest.mark.real, pytest.mark.spark]


@pytest.fixture
def with_options(kafka_cluster: Any) -> Callable[[str], str]:
    """The options of a write to a topic, as SQL has them in brackets."""
    servers = kafka_cluster.bootstrap_servers
    return lambda topic: f"(`kafka.bootstrap.servers` = '{servers}', topic = '{topic}')"


@pytest.fixture
def table(spark: Any) -> Iterator[str]:
    spark.sql("CREATE TABLE kafka_table USING pykafka")
    yield "kafka_table"
    spark.sql("DROP TABLE kafka_table")


def rows(cluster: Any, topic: str) -> list[Row]:
    return confluent_read(cluster.bootstrap_servers, topic, 1)


def test_insert_with_options_and_column_names(
    spark: Any,
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    table: str,
    with_options: Callable[[str], str],
) -> None:
    """All columns of a read are there; those that are not named are null, which is as absent."""
    topic = new_topic()
    started_ms = time.time_ns() // 1_000_000
    spark.sql(
        f"INSERT INTO {table} WITH {with_options(topic)} (key, value) "
        "VALUES (X'6B', X'76'), (NULL, CAST('text' AS BINARY))"
    )
    spark.sql(
        f"INSERT INTO {table} WITH {with_options(topic)} BY NAME "
        "SELECT X'31' AS value, timestamp'2024-01-01' AS timestamp"
    )
    got = rows(kafka_cluster, topic)
    assert sorted((row.key or b"", row.value) for row in got) == [
        (b"", b"1"),
        (b"", b"text"),
        (b"k", b"v"),
    ]
    times = sorted(row.timestamp_ms for row in got)
    assert times[0] == 1704067200000
    assert times[1] >= started_ms


def test_insert_with_the_topic_of_each_row(
    spark: Any,
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    table: str,
    with_options: Callable[[str], str],
) -> None:
    topic = new_topic()
    options = with_options("").replace(", topic = ''", "")
    spark.sql(f"INSERT INTO {table} WITH {options} (topic, value) VALUES ('{topic}', X'76')")
    assert [row.value for row in rows(kafka_cluster, topic)] == [b"v"]
    with pytest.raises(PySparkException, match="null topic present in the data"):
        spark.sql(f"INSERT INTO {table} WITH {options} (value) VALUES (X'76')")


def test_a_table_with_text_columns(
    spark: Any,
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    with_options: Callable[[str], str],
) -> None:
    topic = new_topic()
    spark.sql("CREATE TABLE kafka_text (key STRING, value STRING) USING pykafka")
    try:
        spark.sql(f"INSERT INTO kafka_text WITH {with_options(topic)} VALUES ('k', 'wért')")
        got = rows(kafka_cluster, topic)
        assert [(row.key, row.value.decode()) for row in got] == [(b"k", "wért")]
    finally:
        spark.sql("DROP TABLE kafka_text")


def test_insert_into_a_temporary_view(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str]
) -> None:
    """A view keeps its options, and the same one reads what was inserted."""
    topic = new_topic()
    servers = kafka_cluster.bootstrap_servers
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW kafka_view USING pykafka OPTIONS "
        f"(`kafka.bootstrap.servers` '{servers}', topic '{topic}', subscribe '{topic}')"
    )
    spark.sql("INSERT INTO kafka_view (key, value) VALUES (X'6B', X'76')")
    assert [(row.key, row.value) for row in rows(kafka_cluster, topic)] == [(b"k", b"v")]
    assert [bytes(row.value) for row in spark.sql("SELECT value FROM kafka_view").collect()] == [
        b"v"
    ]
    spark.catalog.dropTempView("kafka_view")


def test_insert_into_a_temporary_view_with_columns(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW kafka_short (value STRING, key BINARY) USING pykafka "
        f"OPTIONS (`kafka.bootstrap.servers` '{kafka_cluster.bootstrap_servers}', topic '{topic}')"
    )
    spark.sql("INSERT INTO kafka_short VALUES ('wért', X'6B')")
    assert [(row.key, row.value.decode()) for row in rows(kafka_cluster, topic)] == [(b"k", "wért")]
    spark.catalog.dropTempView("kafka_short")


def test_data_frames_into_a_table(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], table: str
) -> None:
    topic = new_topic()
    df = spark.sql("SELECT X'76' AS value")
    options = {"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers, "topic": topic}
    df.writeTo(table).options(**options).append()
    df.write.format("pykafka").options(**options).mode("append").saveAsTable(table)
    assert [row.value for row in rows(kafka_cluster, topic)] == [b"v", b"v"]


def test_options_of_create_table_reach_nobody(
    spark: Any, new_topic: Callable[..., str], kafka_cluster: Any
) -> None:
    """If this fails one day, docs/batch.md can say so: Spark hands them over now."""
    spark.sql(
        "CREATE TABLE kafka_lost USING pykafka OPTIONS "
        f"(`kafka.bootstrap.servers` '{kafka_cluster.bootstrap_servers}', topic 't')"
    )
    try:
        with pytest.raises(PySparkException) as caught:
            spark.sql("INSERT INTO kafka_lost (value) VALUES (X'76')")
        assert "Option 'kafka.bootstrap.servers' must be specified" in str(caught.value)
        assert "INSERT INTO table WITH (option = 'value')" in str(caught.value)
    finally:
        spark.sql("DROP TABLE kafka_lost")


def test_what_spark_refuses(spark: Any, table: str, with_options: Callable[[str], str]) -> None:
    with pytest.raises(AnalysisException, match="NOT_ENOUGH_DATA_COLUMNS"):
        spark.sql(f"INSERT INTO {table} WITH {with_options('t')} VALUES (X'6B', X'76')")
    with pytest.raises(AnalysisException, match="CANNOT_SAFELY_CAST"):
        spark.sql(f"INSERT INTO {table} WITH {with_options('t')} (value) VALUES ('text')")
    with pytest.raises(PySparkException, match="can only be appended to"):
        spark.sql(f"INSERT OVERWRITE {table} WITH {with_options('t')} (value) VALUES (X'76')")
