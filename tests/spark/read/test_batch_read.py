"""spark.read.format("pykafka") on a real broker, against what other clients see."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import confluent_kafka.admin
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException

from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import DataLossError
from sparkkafka.spark.read.reader import KafkaBatchReader
from tests.real.peers import (
    Record,
    confluent_read,
    confluent_transaction,
    confluent_write,
    mixed_records,
)

pytestmark = [pytest.mark.real, pytest.mark.spark]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Read = Callable[..., Any]


def as_peer_rows(df: Any) -> list[tuple[Any, ...]]:
    """Rows in the form of peers.Row, in order of partition and offset."""
    rows = []
    for row in df.collect():
        headers = None
        if row.headers is not None:
            headers = tuple(
                (h.key, None if h.value is None else bytes(h.value)) for h in row.headers
            )
        at = row.timestamp.replace(tzinfo=UTC) if row.timestamp.tzinfo is None else row.timestamp
        rows.append(
            (
                row.partition,
                row.offset,
                row.timestampType,
                (at - EPOCH) // timedelta(milliseconds=1),
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                headers,
            )
        )
    return sorted(rows, key=lambda row: row[:2])


@pytest.fixture
def numbered(kafka_cluster: Any, new_topic: Callable[..., str]) -> str:
    """A topic of two partitions with ten records each: values p:0 … p:9."""
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        records = [Record(None, f"{partition}:{i}".encode()) for i in range(10)]
        confluent_write(kafka_cluster.bootstrap_servers, topic, records, partition)
    return topic


def values(df: Any) -> list[str]:
    return sorted(row[0] for row in df.selectExpr("cast(value as string)").collect())


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records(
        [confluent_kafka.TopicPartition(topic, partition, before)]
    ).values():
        future.result(30)


# --- rows ------------------------------------------------------------------------------------


def test_rows_are_those_that_another_client_sees(
    kafka_cluster: Any, new_topic: Callable[..., str], read: Read
) -> None:
    topic = new_topic(partitions=3)
    for partition, codec in enumerate(("none", "lz4", "zstd")):
        confluent_write(
            kafka_cluster.bootstrap_servers,
            topic,
            mixed_records(),
            partition,
            compression_type=codec,
        )
    df = read(subscribe=topic, includeHeaders="true")
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert as_peer_rows(df) == confluent_read(kafka_cluster.bootstrap_servers, topic, partitions=3)
    assert [row.topic for row in df.select("topic").distinct().collect()] == [topic]
    assert df.rdd.getNumPartitions() == 3


@pytest.mark.jvm
@pytest.mark.parametrize("headers", ["true", "false"])
def test_rows_and_schema_are_the_jvm_connectors(
    kafka_cluster: Any, new_topic: Callable[..., str], read: Read, jvm_connector: str, headers: str
) -> None:
    topic = new_topic(partitions=2, configs={"message.timestamp.type": "LogAppendTime"})
    other = new_topic()
    confluent_write(kafka_cluster.bootstrap_servers, topic, mixed_records(), 1)
    confluent_write(
        kafka_cluster.bootstrap_servers, other, mixed_records(), compression_type="gzip"
    )
    options = {"subscribe": f"{topic},{other}", "includeHeaders": headers}
    ours, theirs = read(**options), read(jvm_connector, **options)
    assert ours.schema == theirs.schema
    order = ["topic", "partition", "offset"]
    assert_df_equality(ours.orderBy(order), theirs.orderBy(order))


def test_log_append_time(kafka_cluster: Any, new_topic: Callable[..., str], read: Read) -> None:
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = time.time()
    confluent_write(kafka_cluster.bootstrap_servers, topic, [Record(None, b"v")])
    (row,) = read(subscribe=topic).collect()
    assert row.timestampType == 1
    assert before - 5 < row.timestamp.timestamp() < time.time() + 5


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [("read_committed", ["c0", "c1"]), ("read_uncommitted", ["a0", "a1", "c0", "c1"])],
)
def test_transactions(
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    read: Read,
    isolation: str,
    expected: list[str],
) -> None:
    topic = new_topic()
    confluent_transaction(
        kafka_cluster.bootstrap_servers,
        topic,
        f"txn-{topic}",
        [
            (True, [Record(None, b"c0")]),
            (False, [Record(None, b"a0"), Record(None, b"a1")]),
            (True, [Record(None, b"c1")]),
        ],
    )
    assert values(read(subscribe=topic, kafka__isolation__level=isolation)) == expected


def test_count_and_projection(numbered: str, read: Read) -> None:
    df = read(subscribe=numbered)
    assert df.count() == 20
    assert df.select("offset", "partition").where("offset >= 8").count() == 4
    assert len(df.limit(3).collect()) == 3


# --- what is read ----------------------------------------------------------------------------


def test_assign(numbered: str, read: Read) -> None:
    assert values(read(assign=f'{{"{numbered}":[1]}}')) == [f"1:{i}" for i in range(10)]


def test_pattern_is_searched_for_and_internal_topics_are_left_out(
    kafka_cluster: Any, new_topic: Callable[..., str], read: Read
) -> None:
    names = [new_topic(prefix=f"{word}-searched") for word in ("one", "two")]
    for name in names:
        confluent_write(kafka_cluster.bootstrap_servers, name, [Record(None, name.encode())])
    assert values(read(subscribePattern="-searched-")) == sorted(names)
    assert values(read(subscribePattern="^two-sea")) == names[1:]
    reader = KafkaBatchReader(
        parse_read_options(
            {
                "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
                "subscribePattern": "offsets|transaction_state",
            }
        )
    )
    assert reader.partitions() == []


def test_nothing_matches_or_nothing_is_there(new_topic: Callable[..., str], read: Read) -> None:
    assert read(subscribePattern="no-such-topic").collect() == []
    assert read(subscribe=new_topic(partitions=2)).collect() == []


def test_offsets(numbered: str, read: Read) -> None:
    got = values(
        read(
            subscribe=numbered,
            startingOffsets=f'{{"{numbered}":{{"0":8,"1":-2}}}}',
            endingOffsets=f'{{"{numbered}":{{"0":-1,"1":2}}}}',
        )
    )
    assert got == ["0:8", "0:9", "1:0", "1:1"]
    same = f'{{"{numbered}":{{"0":4,"1":4}}}}'
    assert read(subscribe=numbered, startingOffsets=same, endingOffsets=same).collect() == []


def test_offsets_that_the_plan_binds_are_a_snapshot(numbered: str, kafka_cluster: Any) -> None:
    servers = kafka_cluster.bootstrap_servers
    reader = KafkaBatchReader(
        parse_read_options(
            {"kafka.bootstrap.servers": servers, "subscribe": numbered, "bindOffsets": "plan"}
        )
    )
    partitions = reader.partitions()
    confluent_write(servers, numbered, [Record(None, b"late")])
    read = [v for p in partitions for b in reader.read(p) for v in b.column("value").to_pylist()]
    assert sorted(read) == sorted(f"{p}:{i}".encode() for p in (0, 1) for i in range(10))


# --- data loss -------------------------------------------------------------------------------


def test_deleted_records(numbered: str, kafka_cluster: Any, read: Read) -> None:
    delete_records(kafka_cluster.bootstrap_servers, numbered, 0, before=7)
    assert values(read(subscribe=numbered)) == sorted(
        [f"0:{i}" for i in range(7, 10)] + [f"1:{i}" for i in range(10)]
    )
    wanted = {"subscribe": numbered, "startingOffsets": f'{{"{numbered}":{{"0":2,"1":9}}}}'}
    with pytest.raises(PySparkException) as caught:
        read(**wanted).collect()
    assert f"{numbered}-0: requested offsets [2, 10), available [7, 10)" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    assert values(read(**wanted, failOnDataLoss="false")) == ["0:7", "0:8", "0:9", "1:9"]


def test_records_that_are_deleted_after_planning(numbered: str, kafka_cluster: Any) -> None:
    """Between planning and reading, retention can take records away."""
    given = {
        "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
        "assign": f'{{"{numbered}":[0]}}',
        "bindOffsets": "plan",
    }
    strict = KafkaBatchReader(parse_read_options(given))
    lenient = KafkaBatchReader(parse_read_options({**given, "failOnDataLoss": "false"}))
    (partition,) = strict.partitions()
    delete_records(kafka_cluster.bootstrap_servers, numbered, 0, before=7)
    with pytest.raises(DataLossError, match=rf"{numbered}-0: offsets 0 to 6 are gone"):
        list(strict.read(partition))
    rows = [v for batch in lenient.read(partition) for v in batch.column("value").to_pylist()]
    assert rows == [b"0:7", b"0:8", b"0:9"]


def test_offsets_behind_the_end(numbered: str, read: Read) -> None:
    wanted = {"subscribe": numbered, "endingOffsets": f'{{"{numbered}":{{"0":25,"1":1}}}}'}
    with pytest.raises(PySparkException, match=r"requested offsets \[0, 25\), available \[0, 10\)"):
        read(**wanted).collect()
    assert len(values(read(**wanted, failOnDataLoss="false"))) == 11


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assign": '{"TOPIC":[0,5]}'}, "TOPIC-5 (TOPIC has 2 partitions)"),
        ({"subscribe": "TOPIC", "startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
    ],
)
def test_errors_name_the_culprit(
    new_topic: Callable[..., str], read: Read, options: dict[str, str], message: str
) -> None:
    topic = new_topic(partitions=2) if "TOPIC" in str(options) else ""
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        read(**given).collect()
    assert message.replace("TOPIC", topic) in str(caught.value)


@pytest.fixture
def read_columns(spark: Any, kafka_cluster: Any) -> Callable[..., Any]:
    """`read_columns("value string", topic)`."""

    def load(schema: str, topic: str, **options: str) -> Any:
        return (
            spark.read.format("pykafka")
            .schema(schema)
            .option("kafka.bootstrap.servers", kafka_cluster.bootstrap_servers)
            .option("subscribe", topic)
            .options(**options)
            .load()
        )

    return load


def test_columns_of_the_users_own(numbered: str, read: Read, read_columns: Read) -> None:
    schema = "offset bigint, value string, partition int"
    df = read_columns(schema, numbered)
    assert df.schema.simpleString() == "struct<offset:bigint,value:string,partition:int>"
    expected = read(subscribe=numbered).selectExpr(
        "offset", "cast(value as string) as value", "partition"
    )
    assert_df_equality(df.orderBy("value"), expected.orderBy("value"))
    # Headers need no option, and counting reads but what the schema names.
    assert (
        read_columns("headers array<struct<key:string,value:binary>>", numbered).first().headers
        is None
    )
    assert read_columns("partition int", numbered).count() == 20


def test_bytes_that_are_no_text(
    kafka_cluster: Any, new_topic: Callable[..., str], read_columns: Read
) -> None:
    topic = new_topic()
    records = [Record(None, value) for value in (b"good", b"\xff\xfe", None)]
    confluent_write(kafka_cluster.bootstrap_servers, topic, records)
    with pytest.raises(PySparkException, match=f"topic {topic} partition 0 offset 1: the value is"):
        read_columns("value string", topic).collect()
    found = read_columns("value string", topic, invalidUtf8="null").collect()
    assert [row.value for row in found] == ["good", None, None]


def test_columns_that_do_not_exist(read_columns: Read) -> None:
    with pytest.raises(PySparkException, match="did you mean 'value'"):
        read_columns("valeu string", "t").collect()


def test_a_cluster_that_cannot_be_reached(read: Read) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PySparkException, match=address) as caught:
            read(
                subscribe="t",
                kafka__bootstrap__servers=address,
                kafka__default__api__timeout__ms="1000",
            ).collect()
        assert " 1 s" in str(caught.value)
