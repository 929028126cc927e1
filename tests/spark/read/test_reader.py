"""Shape of what a read gives to Spark, and what is shipped to executors. No broker."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import GreaterThan, InputPartition
from pyspark.sql.types import IntegerType, StructType

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.net import connecting
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import (
    BrokerError,
    DecodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
)
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, DecodedRecords
from sparkkafka.spark.arrow_types import arrow_schema
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.read import offset_reader, read_task
from sparkkafka.spark.read.input_partitions import KafkaInputPartition
from sparkkafka.spark.read.offset_reader import OffsetReader
from sparkkafka.spark.read.pushdown import FilterPushdownReader
from sparkkafka.spark.read.read_task import BatchShaper
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import columns_of_schema, default_columns, spark_schema
from sparkkafka.spark.stream.planner import StreamPlanner
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import RecordedRequest
from tests.spark.schemas import arrow_schema_of, ddl
from tests.support.topics import delete_during_lookups

T0 = TopicPartition("t", 0)

READ = {"kafka.bootstrap.servers": "nowhere.invalid:9092", "subscribe": "t"}


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port of 127.0.0.1 that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        yield taken.getsockname()[1]


def loopback_only(host: str, port: int, *, real: Any = socket.getaddrinfo, **kind: Any) -> Any:
    if host != "127.0.0.1":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return real(host, port, **kind)


def first_stream_offsets(reader: KafkaBatchReader) -> None:
    StreamPlanner(reader.options).initial_offsets()


def decoded(rows: int, *, value: bytes = b"v", timestamp_ms: int = 0) -> DecodedRecords:
    return DecodedRecords(
        offsets=np.arange(rows, dtype=np.int64) + 7,
        timestamps_ms=np.full(rows, timestamp_ms, np.int64),
        timestamp_types=np.zeros(rows, np.int32),
        keys=pa.array([None] * rows, pa.binary()),
        values=pa.array([value] * rows, pa.binary()),
        headers=None,
    )


@pytest.mark.parametrize("headers", [False, True])
def test_arrow_schema_is_what_spark_makes_of_the_declared_one(headers: bool) -> None:
    """Spark refuses a first batch whose schema differs in anything."""
    assert arrow_schema_of(spark_schema(headers)).equals(arrow_schema(default_columns(headers)))


def test_schema_is_the_jvm_connectors() -> None:
    assert spark_schema(True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in spark_schema(True))


def test_rows() -> None:
    records = DecodedRecords(
        offsets=np.array([3, 5]),
        timestamps_ms=np.array([1_700_000_000_123, -1]),
        timestamp_types=np.array([1, -1], np.int32),
        keys=pa.array([b"k", None], pa.binary()),
        values=pa.array([None, b""], pa.binary()),
        headers=pa.array([[("a", b"1"), ("a", None)], None], HEADERS_TYPE),
    )
    (batch,) = BatchShaper(TopicPartition("top", 4), default_columns(True)).batches(records)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(default_columns(True)))
    first, second = batch.to_pylist()
    assert first == {
        "key": b"k",
        "value": None,
        "topic": "top",
        "partition": 4,
        "offset": 3,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "timestampType": 1,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }
    # No timestamp is -1 ms, and shows as that moment, as with the JVM connector.
    assert second["timestamp"] == datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    assert second["headers"] is None


def test_missing_columns_are_null() -> None:
    records = DecodedRecords(
        np.array([1]), np.array([0]), np.array([0], np.int32), None, None, None
    )
    (batch,) = BatchShaper(T0, default_columns(True)).batches(records)
    row = batch.to_pylist()[0]
    assert (row["key"], row["value"], row["headers"]) == (None, None, None)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(0, []), (1, [1]), (16384, [16384]), (16385, [8193, 8192]), (40_000, [13334, 13334, 13332])],
)
def test_batches_are_of_about_16k_rows(rows: int, sizes: list[int]) -> None:
    batches = list(BatchShaper(T0, default_columns(False)).batches(decoded(rows)))
    assert [batch.num_rows for batch in batches] == sizes
    offsets = [o for batch in batches for o in batch.column("offset").to_pylist()]
    assert offsets == list(range(7, 7 + rows))


def test_large_records_make_shorter_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_task, "BYTES_PER_BATCH", 10_000)
    batches = list(BatchShaper(T0, default_columns(False)).batches(decoded(100, value=b"x" * 1000)))
    assert all(batch.num_rows <= 10 for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 100
    monkeypatch.setattr(read_task, "BYTES_PER_BATCH", 10)
    assert (
        len(list(BatchShaper(T0, default_columns(False)).batches(decoded(3, value=b"x" * 1000))))
        == 3
    )


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63)])
def test_timestamps_that_do_not_fit_microseconds(timestamp_ms: int) -> None:
    with pytest.raises(
        DecodeError, match=rf"topic t partition 0 offset 7: the timestamp {timestamp_ms}"
    ):
        list(BatchShaper(T0, default_columns(False)).batches(decoded(1, timestamp_ms=timestamp_ms)))


def test_no_partitions_become_one_that_reads_nothing() -> None:
    """Spark turns [] into InputPartition(None), and must not need a broker for it."""
    reader = KafkaBatchReader(parse_read_options(READ))
    assert list(reader.read(InputPartition(None))) == []


def test_a_refused_fetch_names_settings_as_users_of_spark_do(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.append("t", 0, b"?", end_offset=5)
    fake_cluster.fault(ErrorCode.INVALID_FETCH_SIZE, api="Fetch", times=None)
    reader = KafkaBatchReader(
        parse_read_options({**READ, "kafka.bootstrap.servers": fake_cluster.bootstrap_servers})
    )
    (part,) = reader.partitions()
    with pytest.raises(BrokerError, match=r"see kafka\.fetch\.max\.bytes and kafka\.max"):
        list(reader.read(part))


# --- topics that are deleted while a read is planned -----------------------------------------


@pytest.fixture
def one_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """The topics t, u and v with five records each; a missing topic is not waited for."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 100)
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 300)
    with FakeCluster(brokers=1) as cluster:
        for topic in "tuv":
            cluster.create_topic(topic)
            cluster.append(topic, 0, b"?", end_offset=5)
        yield cluster


def batch_reader(cluster: FakeCluster, kind: Any = KafkaBatchReader, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
    return kind(parse_read_options({"fetchOffset.retryIntervalMs": "10", **given}))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_topics_of_a_pattern_that_are_deleted_during_the_lookup(
    one_broker: FakeCluster, fail: str
) -> None:
    """A read that has no offsets yet loses nothing: the topics no longer match the pattern."""
    source = batch_reader(one_broker, subscribePattern="^[tuv]$", failOnDataLoss=fail)
    delete_during_lookups(one_broker, "u", "v")
    assert [part.topic for part in source.partitions()] == ["t"]


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_a_named_topic_that_is_deleted_during_the_lookup(one_broker: FakeCluster, how: str) -> None:
    value = {"subscribe": "t,u", "assign": '{"t":[0],"u":[0]}'}[how]
    source = batch_reader(one_broker, **{how: value}, failOnDataLoss="false")
    delete_during_lookups(one_broker, "u")
    with pytest.raises(UnknownTopicError, match="Metadata of topic u: the topic does not exist"):
        source.partitions()


def test_a_topic_that_is_deleted_while_filters_are_pushed_down(one_broker: FakeCluster) -> None:
    """The offsets of times only make the read shorter: the task finds out about the topic."""
    source = batch_reader(one_broker, FilterPushdownReader, subscribePattern="^[tu]$")
    source.pushFilters([GreaterThan(("timestamp",), datetime(2020, 1, 1, tzinfo=UTC))])

    def delete(request: RecordedRequest) -> None:
        times = {row.timestamp for topic in request.message.topics for row in topic.partitions}
        if max(times) > 0:
            one_broker.delete_topic("u")

    one_broker.fault(delete, api="ListOffsets", nth=3)  # after earliest and latest
    assert [part.topic for part in source.partitions()] == ["t", "u"]


def test_what_spark_ships_survives_pickle() -> None:
    given = {**READ, "startingOffsets": '{"t":{"0":5}}', "kafka.secret.thing": "hunter2"}
    source = KafkaDataSource(given)
    reader = source.reader(source.schema())
    part = KafkaInputPartition("t", 0, 5, 9)
    for thing in (source, reader, part):
        pickled = pickle.dumps(thing)
        assert b"hunter2" not in pickled
        copy = pickle.loads(pickled)
        assert type(copy) is type(thing)
        assert "hunter2" not in repr(thing)
    assert pickle.loads(pickle.dumps(reader)).options == reader.options
    assert pickle.loads(pickle.dumps(part)) == part
    assert pickle.loads(pickle.dumps(source)).options == source.options


def test_data_source_needs_no_network_and_shows_no_values() -> None:
    source = KafkaDataSource({**READ, "kafka.client.id": "hunter2"})
    assert "hunter2" not in repr(source)
    assert "kafka.client.id" in repr(source)
    assert len(source.schema()) == 7
    assert KafkaDataSource({**READ, "IncludeHeaders": "TRUE"}).schema()[7].name == "headers"


# --- columns of the user's own ---------------------------------------------------------------


def shaped(text: str, records: DecodedRecords, **more: Any) -> pa.RecordBatch:
    columns = columns_of_schema(ddl(text))
    (batch,) = BatchShaper(TopicPartition("t", 3), columns, **more).batches(records)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema_of(ddl(text)))
    return batch


def test_any_columns_in_any_order() -> None:
    records = decoded(2)
    batch = shaped("offset bigint, topic string, value string", records)
    assert batch.to_pylist() == [
        {"offset": 7, "topic": "t", "value": "v"},
        {"offset": 8, "topic": "t", "value": "v"},
    ]
    everything = shaped(
        "headers array<struct<key:string,value:binary>>, timestampType int, partition int, "
        "timestamp timestamp, key string, value binary",
        records,
    )
    assert everything.num_columns == 6


def test_columns_that_are_never_null_may_say_so() -> None:
    shaped("topic string not null, partition int not null, offset bigint not null", decoded(1))
    with pytest.raises(OptionError, match="'value' of the schema cannot be NOT NULL"):
        columns_of_schema(ddl("value binary not null"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("valeu binary", "'valeu' of the schema does not exist.*did you mean 'value'"),
        ("Value binary", "did you mean 'value'"),
        ("timestamptype int", "did you mean 'timestampType'"),
        ("x int", "there are key, value, topic, partition, offset, timestamp, timestampType, head"),
        ("value int", "'value' of the schema must be binary or string, not int: cast it after"),
        ("value binary, bad_record string", "bad_record needs onBadRecord=column, beside value"),
        ("value binary, rescued string", "rescued needs rescuedColumn=true, beside value"),
        ("partition bigint", "'partition' of the schema must be int, not bigint"),
        ("topic binary", "'topic' of the schema must be string"),
        ("headers map<string,binary>", "'headers' of the schema must be array<struct<"),
        ("offset bigint, offset bigint", "'offset' appears twice"),
    ],
)
def test_columns_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaDataSource(READ).reader(ddl(text))


def test_a_typed_column_without_its_format() -> None:
    kind = StructType().add("a", IntegerType())
    for name in ("value", "key"):
        message = rf"not struct<a:int>: set {name}Format to avro, protobuf or json$"
        with pytest.raises(OptionError, match=message):
            columns_of_schema(StructType().add(name, kind))


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(OptionError, match="no columns"):
        columns_of_schema(StructType([]))


def with_values(*values: bytes | None) -> DecodedRecords:
    count = len(values)
    return DecodedRecords(
        offsets=np.arange(7, 7 + count),
        timestamps_ms=None,
        timestamp_types=np.zeros(count, np.int32),
        keys=None,
        values=pa.array(values, pa.binary()),
        headers=None,
    )


def test_text_that_is_no_utf8_is_an_error_that_says_where() -> None:
    records = with_values(b"a", None, "é".encode(), b"\xff\xfe", b"\xc3")
    with pytest.raises(DecodeError) as caught:
        shaped("value string", records)
    message = "topic t partition 3 offset 10: the value is not UTF-8 (b'\\xff\\xfe')"
    assert message in str(caught.value)
    assert "invalidUtf8=null" in str(caught.value)


def test_or_it_is_null() -> None:
    values = [b"a", None, b"\xff", "é".encode(), b"\xc3", b""]
    batch = shaped("value string", with_values(*values), null_for_bad_text=True)
    assert batch.column(0).to_pylist() == ["a", None, None, "é", None, ""]
    batch = shaped("value string", with_values(b"\xff"), null_for_bad_text=True)
    assert batch.column(0).to_pylist() == [None]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=6), st.text(max_size=4).map(str.encode))))
def test_bad_utf8_is_null_where_python_refuses_it(values: list[bytes | None]) -> None:
    def text(value: bytes | None) -> str | None:
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            return "BAD"

    bad = [i for i, value in enumerate(values) if text(value) == "BAD" and value != b"BAD"]
    if values:
        batch = shaped("value string", with_values(*values), null_for_bad_text=True)
        expected = [None if i in bad else text(value) for i, value in enumerate(values)]
        assert batch.column(0).to_pylist() == expected


# --- a wrong address --------------------------------------------------------------------------


@pytest.mark.parametrize("read", [KafkaBatchReader.partitions, first_stream_offsets])
@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_the_first_contact_does_not_wait_for_wrong_addresses(host, read, monkeypatch) -> None:
    monkeypatch.setattr(connecting.socket, "getaddrinfo", loopback_only)
    with closed_port() as port:
        options = {**READ, "kafka.bootstrap.servers": f"{host}:{port}"}
        parsed = parse_read_options(options)
        assert parsed.client.first_contact_ms == 10_000
        client = replace(parsed.client, first_contact_ms=100)
        with pytest.raises(KafkaConnectionError) as caught:
            read(KafkaBatchReader(replace(parsed, client=client)))
    assert not isinstance(caught.value, KafkaTimeoutError)
    assert f"no bootstrap server can be reached for 0.1 s: {host}:{port}" in str(caught.value)
    waits = parse_read_options({**options, "kafka.default.api.timeout.ms": "90000"}).client
    assert waits.first_contact_ms == 90_000


def test_only_the_first_contact_gives_up_early(monkeypatch) -> None:
    """A query outlives brokers that restart."""
    with FakeCluster() as fake:
        fake.create_topic("t")
        options = parse_read_options({**READ, "kafka.bootstrap.servers": fake.bootstrap_servers})
        with Cluster(options.client) as cluster:
            reader = OffsetReader(cluster, options)
            first = reader.with_attempts("first", reader.subscribed_partitions)
            monkeypatch.setattr(connecting, "connect", None)  # the check would call it
            assert reader.with_attempts("later", reader.subscribed_partitions) == first


def test_a_batch_write_checks_the_address_on_the_driver(monkeypatch) -> None:
    monkeypatch.setattr(connecting, "check_servers", offset_reader.check_servers)
    with closed_port() as port:
        options = {
            "kafka.bootstrap.servers": f"127.0.0.1:{port}",
            "kafka.default.api.timeout.ms": "100",
            "topic": "t",
        }
        with pytest.raises(KafkaConnectionError, match=f":{port} refused the connection"):
            KafkaDataSource(options).writer(ddl("value binary"), overwrite=False)
