"""df.write.format("pykafka") on a real broker, checked by other clients."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka
import kafka
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from sparkkafka import register
from sparkkafka.client import Producer
from tests.real.peers import (
    Row,
    codecs_in,
    confluent_read,
    confluent_write,
    kafka_python_read,
    mixed_records,
)

pytestmark = [pytest.mark.real, pytest.mark.spark]

HEADERS = "array<struct<key:string,value:binary>>"
Read = Callable[..., Any]
Write = Callable[..., None]


def seen_by_others(cluster: Any, topic: str, partitions: int = 1) -> list[Row]:
    """The topic's rows, for confluent-kafka and kafka-python the same ones."""
    rows = confluent_read(cluster.bootstrap_servers, topic, partitions)
    assert rows == kafka_python_read(cluster.bootstrap_servers, topic, partitions)
    return rows


def test_keys_values_headers_and_tombstones(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    rows = [
        (b"k1", b"v1", None),
        (None, b"v2", []),
        (b"", b"", [("h", b"1"), ("h", None), ("é", b"")]),
        (b"dead", None, None),
        (None, None, [("only", b"header")]),
    ]
    df = spark.createDataFrame(rows, f"key binary, value binary, headers {HEADERS}").coalesce(1)
    topic = new_topic()
    write(df, topic=topic)
    got = seen_by_others(kafka_cluster, topic)
    assert [(row.key, row.value, row.headers) for row in got] == [
        (key, value, tuple(map(tuple, headers)) if headers else None)
        for key, value, headers in rows
    ]
    assert [row.offset for row in got] == list(range(5))
    assert {row.timestamp_type for row in got} == {0}


def test_a_thread_of_ones_own_registers(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    """Java looks formats up in the thread's active session, and a new thread has none. After Ctrl-C
    py4j goes on over another connection, and then it is the same."""
    topic = new_topic()
    df = spark.createDataFrame([("v",)], "value string")

    def in_a_thread(*steps: Callable[[], None]) -> BaseException | None:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: [step() for step in steps]).exception(60)

    refused = in_a_thread(lambda: write(df, topic=topic))
    assert "DATA_SOURCE_NOT_FOUND" in str(refused), "Spark knows by itself by now: drop the advice"
    assert in_a_thread(lambda: register(spark), lambda: write(df, topic=topic)) is None
    assert [row.value for row in seen_by_others(kafka_cluster, topic)] == [b"v"]


def test_strings(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic()
    write(spark.createDataFrame([("ключ", "wért")], "key string, value string"), topic=topic)
    (row,) = seen_by_others(kafka_cluster, topic)
    assert (row.key.decode(), row.value.decode()) == ("ключ", "wért")


def keyed_rows(partitioner: str | None) -> list[tuple[str | None, str]]:
    """Keys that another producer with this partitioner puts where ours does."""
    keys: list[str | None] = [f"key-{'ž' * (i % 9)}{i}" for i in range(500)]
    if partitioner != "consistent_random":
        keys.append("")
    if partitioner in ("murmur2", "consistent", "fnv1a"):
        keys.append(None)  # of which the others say nothing: anywhere is right
    return [(key, str(number)) for number, key in enumerate(keys)]


def write_with_librdkafka(servers: str, topic: str, partitioner: str, rows: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "partitioner": partitioner})
    for key, value in rows:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0


def assert_same_partitions(cluster: Any, ours: str, theirs: str, count: int) -> None:
    found = [
        {(row.partition, row.key, row.value) for row in seen_by_others(cluster, topic, 7)}
        for topic in (ours, theirs)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == count


@pytest.mark.parametrize("partitioner", [None, "fnv1a"])
def test_partitions_are_those_of_another_producer(
    spark: Any,
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    write: Write,
    partitioner: str | None,
) -> None:
    ours, theirs = new_topic(partitions=7), new_topic(partitions=7)
    rows = keyed_rows(partitioner)
    given = {} if partitioner is None else {"kafka.partitioner.class": partitioner}
    write(spark.createDataFrame(rows, "key string, value string"), topic=ours, **given)
    servers = kafka_cluster.bootstrap_servers
    if partitioner is not None:
        write_with_librdkafka(servers, theirs, partitioner, rows)
    else:  # kafka-python's default is Java's, and so is ours
        producer = kafka.KafkaProducer(bootstrap_servers=servers)
        sent = [producer.send(theirs, key=k.encode(), value=v.encode()) for k, v in rows]
        producer.close(30)
        assert all(future.succeeded() for future in sent)
    assert_same_partitions(kafka_cluster, ours, theirs, len(rows))


@pytest.mark.parametrize(
    "partitioner",
    ["murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random"],
)
def test_other_partitioners_are_those_of_librdkafka(
    kafka_cluster: Any, new_topic: Callable[..., str], partitioner: str
) -> None:
    """Without Spark, which only hands the option over."""
    ours, theirs = new_topic(partitions=7), new_topic(partitions=7)
    rows = keyed_rows(partitioner)
    servers = kafka_cluster.bootstrap_servers
    with Producer({"bootstrap.servers": servers, "partitioner.class": partitioner}) as producer:
        producer.send_many(ours, [{"key": key, "value": value} for key, value in rows]).result()
    write_with_librdkafka(servers, theirs, partitioner, rows)
    assert_same_partitions(kafka_cluster, ours, theirs, len(rows))


def test_topic_and_partition_columns(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    first, second = new_topic(partitions=3), new_topic(partitions=2)
    rows = [(i, [first, second][i % 2], i % 2) for i in range(100)]
    df = spark.createDataFrame(rows, "value int, topic string, partition int").selectExpr(
        "cast(value as string) as value", "topic", "partition", "'ignored' as other"
    )
    write(df.coalesce(1))
    for topic, partition in ((first, 0), (second, 1)):
        got = seen_by_others(kafka_cluster, topic, 2)
        assert {row.partition for row in got} == {partition}
        assert [int(row.value) for row in got] == list(range(partition, 100, 2))


def test_the_option_overrides_the_column(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic()
    write(spark.createDataFrame([("v", 5)], "value string, topic int"), topic=f" {topic} ")
    assert len(seen_by_others(kafka_cluster, topic)) == 1


def test_rows_without_keys_are_spread(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(partitions=4)
    df = spark.range(20_000).selectExpr("repeat('x', 100) as value").coalesce(1)
    write(df, topic=topic, kafka__batch__size="16384")
    counts = [0] * 4
    for row in seen_by_others(kafka_cluster, topic, 4):
        counts[row.partition] += 1
    assert sum(counts) == 20_000
    assert min(counts) > 4_000


def test_a_codec(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    """The others are in tests/real/test_write_others.py."""
    topic = new_topic()
    df = spark.range(3_000).selectExpr("cast(id as string) as key", "repeat('v', id % 50) as value")
    write(df.coalesce(1), topic=topic, kafka__compression__type="zstd")
    got = seen_by_others(kafka_cluster, topic)
    assert [(r.key, r.value) for r in got] == [(b"%d" % i, b"v" * (i % 50)) for i in range(3_000)]
    assert codecs_in(kafka_cluster.bootstrap_servers, topic, 1) == {"zstd"}


def test_a_topic_copied_with_its_partitions_is_the_same(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], read: Read, write: Write
) -> None:
    source, copy = new_topic(partitions=2), new_topic(partitions=2)
    for partition in (0, 1):
        confluent_write(kafka_cluster.bootstrap_servers, source, mixed_records(), partition)
    columns = ["partition", "offset", "key", "value", "headers"]
    original = read(subscribe=source, includeHeaders="true")
    write(original.drop("topic"), topic=copy)
    copied = read(subscribe=copy, includeHeaders="true")
    order = ["partition", "offset"]
    assert_df_equality(
        copied.select(columns).orderBy(order), original.select(columns).orderBy(order)
    )


def test_a_column_timestamp_is_the_records_time(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], read: Read, write: Write
) -> None:
    source, copy, now = new_topic(), new_topic(), new_topic()
    confluent_write(kafka_cluster.bootstrap_servers, source, mixed_records(), 0)
    original = read(subscribe=source)
    write(original, topic=copy)
    times = [row.timestamp_ms for row in seen_by_others(kafka_cluster, source)]
    assert [row.timestamp_ms for row in seen_by_others(kafka_cluster, copy)] == times
    started_ms = time.time_ns() // 1_000_000
    write(original.drop("timestamp"), topic=now)
    assert all(row.timestamp_ms >= started_ms for row in seen_by_others(kafka_cluster, now))


def test_rows_without_a_time_get_that_of_writing(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic()
    started_ms = time.time_ns() // 1_000_000
    df = spark.sql("SELECT 'a' AS value, timestamp'2024-05-06 07:08:09.123999' AS timestamp")
    write(df.union(spark.sql("SELECT 'b', null")).coalesce(1), topic=topic)
    first, second = seen_by_others(kafka_cluster, topic)
    assert first.timestamp_ms == 1714979289123
    assert second.timestamp_ms >= started_ms


def test_a_column_timestamp_that_is_text_is_ignored_as_the_jvm_connector_does(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic()
    started_ms = time.time_ns() // 1_000_000
    write(spark.sql("SELECT 'a' AS value, '2020-01-01' AS timestamp"), topic=topic)
    (row,) = seen_by_others(kafka_cluster, topic)
    assert row.timestamp_ms >= started_ms


@pytest.mark.jvm
def test_the_jvm_connector_reads_what_we_wrote(
    spark: Any, new_topic: Callable[..., str], read: Read, write: Write, jvm_connector: str
) -> None:
    topic = new_topic(partitions=3)
    rows = [(f"k{i % 10}", f"v{i}" if i % 7 else None, [(f"h{i}", b"x")]) for i in range(500)]
    df = spark.createDataFrame(rows, f"key string, value string, headers {HEADERS}")
    write(df, topic=topic)
    got = read(jvm_connector, subscribe=topic, includeHeaders="true").selectExpr(
        "cast(key as string) as key", "cast(value as string) as value", "headers"
    )
    assert_df_equality(got, df, ignore_row_order=True, ignore_nullable=True)


def test_nothing_to_write(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic()
    write(spark.createDataFrame([], "value string"), topic=topic)
    assert seen_by_others(kafka_cluster, topic) == []


# --- errors ----------------------------------------------------------------------------------


def test_overwrite_is_refused(spark: Any, write: Write) -> None:
    with pytest.raises(PySparkException, match="can only be appended to"):
        write(spark.createDataFrame([("v",)], "value string"), mode="overwrite", topic="t")


def test_default_mode_is_refused_by_spark(spark: Any, write: Write) -> None:
    """Python data sources know append and overwrite only; the JVM connector takes the default."""
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        write(spark.createDataFrame([("v",)], "value string"), mode="errorifexists", topic="t")


@pytest.mark.parametrize(
    ("schema", "row", "options", "message"),
    [
        ("key string", ("k",), {"topic": "t"}, "Required attribute 'value' not found"),
        # Spark's own error, before it calls the writer.
        ("value string, id int, id int", ("v", 1, 2), {"topic": "t"}, "got [value, id, id]"),
        ("value string", ("v",), {"topc": "t"}, "did you mean 'topic'?"),
        ("value string, partition int", ("v", 7), {"topic": "TOPIC"}, "partition 7 of topic TOPIC"),
    ],
)
def test_errors_name_the_culprit(
    spark: Any,
    new_topic: Callable[..., str],
    write: Write,
    schema: str,
    row: tuple[Any, ...],
    options: dict[str, str],
    message: str,
) -> None:
    """Errors of planning and of tasks; the messages are in test_writer.py and test_options.py."""
    topic = new_topic() if "TOPIC" in str(options) else ""
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        write(spark.createDataFrame([row], schema), **given)
    assert message.replace("TOPIC", topic) in str(caught.value)


def test_a_record_that_is_too_large_is_an_error_with_its_location(
    spark: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic()
    df = spark.range(1).selectExpr("repeat('x', 2000000) as value")
    with pytest.raises(PySparkException) as caught:
        write(df, topic=topic)
    assert f"topic {topic} partition 0" in str(caught.value)
    assert "kafka.max.request.size=1048576" in str(caught.value)
    topic = new_topic(configs={"max.message.bytes": "1000"})
    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr("repeat('x', 5000) as value"), topic=topic)
    assert f"topic {topic} partition 0" in str(caught.value)
    assert "MESSAGE_TOO_LARGE" in str(caught.value)
    assert "one record of 5009 bytes, sent as a batch of 5070" in str(caught.value)
    assert "above the topic's max.message.bytes=1000" in str(caught.value)
    rows = spark.range(1).selectExpr("repeat('x', 5000) as value")
    write(rows, topic=topic, kafka__compression__type="lz4")  # that fits


def test_a_time_that_the_topic_refuses_is_an_error_with_its_settings(
    spark: Any, new_topic: Callable[..., str], write: Write
) -> None:
    topic = new_topic(configs={"message.timestamp.before.max.ms": "3600000"})
    df = spark.range(1).selectExpr("'v' as value", "timestamp'2020-01-01' as timestamp")
    with pytest.raises(PySparkException) as caught:
        write(df, topic=topic)
    assert f"topic {topic} partition 0" in str(caught.value)
    assert "INVALID_TIMESTAMP" in str(caught.value)
    assert "begins at timestamp 1577836800000 ms" in str(caught.value)
    assert "message.timestamp.before.max.ms=3600000" in str(caught.value)


def test_missing_topics_are_made_on_request(
    spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], write: Write
) -> None:
    base = new_topic()
    df = spark.range(100).selectExpr("'v' as value", f"concat('{base}-', id % 3) as topic")
    with pytest.raises(PySparkException, match="createTopic=true creates missing topics"):
        # One task: a second one could outlive the failed job and find the topics made below.
        write(df.coalesce(1))
    # Several tasks at once.
    configs = '{"retention.ms": "7200000"}'
    write(
        df.repartition(4),
        createTopic="true",
        createTopic__partitions="2",
        createTopic__configs=configs,
    )
    for number in range(3):
        assert len(seen_by_others(kafka_cluster, f"{base}-{number}", 2)) == 33 + (number == 0)


def test_a_cluster_that_cannot_be_reached(spark: Any) -> None:
    """Two addresses refuse, one takes the connection and never answers: each is named in time."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for unused in sockets:
            unused.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        sockets[0].listen()
        addresses = [f"127.0.0.1:{unused.getsockname()[1]}" for unused in sockets]
        with pytest.raises(PySparkException) as caught:
            (
                spark.createDataFrame([("v",)], "value string")
                .write.format("pykafka")
                .option("kafka.bootstrap.servers", ",".join(addresses))
                .option("kafka.request.timeout.ms", "500")
                .option("kafka.max.block.ms", "2000")
                .option("topic", "t")
                .mode("append")
                .save()
            )
    reasons = [line for line in str(caught.value).splitlines() if "can be reached" in line]
    assert reasons and all(address in reasons[-1] for address in addresses)
    assert " 2 s" in reasons[-1]  # the default is a minute
