"""InputRows -> records of partitions, with a producer that only takes notes. No broker."""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.cluster.metadata import PartitionMetadata, TopicMetadata
from sparkkafka.client.producer.partitioner import PartitionedRecords, Partitioner
from sparkkafka.client.producer.producer_records import InputRows, row_times_ms
from sparkkafka.client.producer.sender import ProducerMetrics
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.kinds import PARTITIONERS
from sparkkafka.config.options import ProducerOptions, parse_write_options
from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.protocol.columns.encode import RecordColumns, encode_batches, sliced
from sparkkafka.protocol.partitioning import KEY_RULES
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.write import write_task
from sparkkafka.spark.write.commit_message import KafkaCommitMessage
from sparkkafka.spark.write.writer import KafkaBatchWriter, input_columns
from tests.spark.schemas import ddl
from tests.support.reference import decode_payload

murmur2_partitions = KEY_RULES["murmur2_random"].partitions

WRITE = {"kafka.bootstrap.servers": "nowhere.invalid:9092"}
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
DDL_HEADERS = "array<struct<key:string,value:binary>>"
COUNTS = {"a": 4, "b": 3, "c": 1}


def router(
    sticky_bytes: int = 1000, counts: dict[str, int] = COUNTS, partitioner: str = "murmur2_random"
) -> Partitioner:
    return Partitioner(
        ProducerOptions(partitioner=partitioner),
        lambda names: {n: counts[n] for n in names},
        sticky_bytes=sticky_bytes,
        pick=lambda n: n - 1,
    )


def rows(
    values: list[bytes | None],
    *,
    keys: list[bytes | None] | None = None,
    topics: list[str | None] | None = None,
    partitions: list[int | None] | None = None,
    headers: list[Any] | None = None,
    timestamps: list[int | None] | None = None,
    topic: str = "a",
) -> InputRows:
    return InputRows(
        length=len(values),
        keys=None if keys is None else pa.array(keys, pa.binary()),
        values=pa.array(values, pa.binary()),
        headers=None if headers is None else pa.array(headers, HEADERS),
        topics=None if topics is None else pa.array(topics, pa.string()),
        fixed_topic=topic if topics is None else None,
        partitions=None if partitions is None else pa.array(partitions, pa.int32()),
        timestamps=None if timestamps is None else pa.array(timestamps, pa.int64()),
    )


def route(
    partitioner: Partitioner, rows: InputRows, timestamp_ms: int
) -> Iterator[tuple[TopicPartition, RecordColumns]]:
    """Runs of rows of one partition."""
    columns, tps, run_ends, _ = partitioner.partition_rows(rows, timestamp_ms)
    runs = itertools.pairwise((0, *run_ends))
    return ((tp, sliced(columns, *run)) for tp, run in zip(tps, runs, strict=True))


def routed(router: Partitioner, batch: InputRows) -> dict[TopicPartition, list[bytes | None]]:
    out: dict[TopicPartition, list[bytes | None]] = {}
    for tp, records in route(router, batch, 99):
        assert tp not in out, "one run per partition"
        assert records.timestamps_ms.tolist() == [99] * len(records.values)
        out[tp] = records.values.to_pylist()
    return out


# --- columns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        ("key string", "t", "'value' not found: the columns are key. Name the one"),
        ("Value string", "t", "the column 'Value' must be written 'value'"),
        (
            "value string",
            None,
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic: subscribe is the option of reads.",
        ),
        (
            "value int",
            "t",
            "value attribute unsupported type int. value must be a(n) string or binary",
        ),
        (
            "value string, key bigint",
            "t",
            "key attribute unsupported type bigint. key must be a(n) string or binary",
        ),
        (
            "value string, topic int",
            None,
            "topic attribute unsupported type int. topic must be a(n) string",
        ),
        (
            "value string, partition bigint",
            "t",
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
        (
            "value string, headers map<string,binary>",
            "t",
            "headers attribute unsupported type map<string,binary>",
        ),
        (
            "value string, headers array<struct<key:string,value:string>>",
            "t",
            "headers must be a(n) array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_bad_columns_have_the_jvm_connectors_messages(
    schema: str, topic: str | None, message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        input_columns(ddl(schema), topic)
    assert message in str(caught.value)


def test_other_columns_are_ignored_with_a_warning_and_the_topic_option_wins(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.config.parsed_options._warned", set())
    columns = input_columns(ddl("x int, value binary, topic int, offset bigint, KEY int"), "t")
    assert (columns.value, columns.topic, columns.key, columns.fixed_topic) == (1, None, None, "t")
    (warning,) = caplog.messages  # a frame that was read from Kafka has an offset
    assert warning.startswith("the columns x, KEY are not written: a record is made of value, key,")


def test_strings_and_large_types_become_binary() -> None:
    columns = input_columns(ddl("key string, value string, topic string"), None)
    for text in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        batch = pa.record_batch(
            [pa.array(["k", None], text), pa.array([None, "é"], text), pa.array(["a", "b"], text)],
            names=["key", "value", "topic"],
        )
        got = InputRows.of(batch, columns)
        assert got.keys.equals(pa.array([b"k", None], pa.binary()))
        assert got.values.equals(pa.array([None, "é".encode()], pa.binary()))
        assert got.topics.equals(pa.array(["a", "b"], pa.string()))
        assert got.payload_bytes == 3


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.large_list(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
        pa.list_(
            pa.struct([("key", pa.dictionary(pa.int8(), pa.string())), ("value", pa.binary())])
        ),
        HEADERS,
    ],
    ids=str,
)
def test_headers_of_other_arrow_types(kind: pa.DataType) -> None:
    columns = input_columns(ddl(f"value string, headers {DDL_HEADERS}"), "a")
    wanted = [None, [], [{"key": "h", "value": b"1"}, {"key": "é", "value": None}]]
    batch = pa.record_batch(
        [pa.array(["0", "1", "2"]), pa.array(wanted, kind)], names=["value", "headers"]
    )
    for some in (batch, batch.slice(1)):
        (run,) = route(router(counts={"a": 1}), InputRows.of(some, columns), 5)
        (encoded,) = encode_batches(run[1], max_batch_bytes=1000)
        records = decode_payload(bytes(encoded.payload), record_count=encoded.record_count)
        plain = [tuple((h["key"], h["value"]) for h in row or []) for row in wanted]
        assert [record.headers for record in records] == plain[-some.num_rows :]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.large_binary()], ids=str)
def test_views_become_binary(kind: pa.DataType) -> None:
    columns = input_columns(ddl("key string, value string"), "a")
    values = [None, b"v" * 40]
    batch = pa.record_batch(
        [pa.array([b"k", None]).cast(kind), pa.array(values).cast(kind)], names=["key", "value"]
    )
    got = InputRows.of(batch, columns)
    assert got.keys.equals(pa.array([b"k", None], pa.binary()))
    assert got.values.equals(pa.array(values, pa.binary()))


# --- timestamps ------------------------------------------------------------------------------


def test_the_column_timestamp_is_written_in_milliseconds_rounded_down() -> None:
    columns = input_columns(ddl("value string, timestamp timestamp"), "a")
    micros = pa.array([1_700_000_000_000_999, None, 0, -1, -1000])
    for zone in ("UTC", "Asia/Tokyo", None):
        batch = pa.record_batch(
            [pa.array(list("abcde")), micros.cast(pa.timestamp("us", zone))],
            names=["value", "timestamp"],
        )
        ((_, records),) = route(router(counts={"a": 1}), InputRows.of(batch, columns), 99)
        assert records.timestamps_ms.tolist() == [1_700_000_000_000, 99, 0, -1, -1]


def test_rows_that_are_sorted_keep_their_timestamps() -> None:
    batch = rows([b"0", b"1", b"2"], partitions=[2, 0, 2], timestamps=[1000, 2000, None])
    got = {
        tp.partition: records.timestamps_ms.tolist() for tp, records in route(router(), batch, 7)
    }
    assert got == {0: [2], 2: [1, 7]}


@pytest.mark.parametrize("kind", ["string", "bigint", "timestamp_ntz", "date"])
def test_a_column_timestamp_of_another_type_is_ignored_with_a_warning(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.config.parsed_options._warned", set())
    columns = input_columns(ddl(f"value string, timestamp {kind}"), "a")
    assert columns.timestamp is None
    (warning,) = caplog.messages
    assert f"the column timestamp is not written: its type is {kind}, not timestamp" in warning


def test_a_time_before_1970_names_the_row() -> None:
    batch = rows([b"0"] * 3, keys=[None, b"k", None], timestamps=[0, -1001, -1])
    with pytest.raises(EncodeError, match=r"timestamp -2 ms is before 1970.*row 1 .*key b'k'"):
        route(router(), batch, 0)
    # The last millisecond before 1970 is Kafka's "no time".
    last = rows([b"0"] * 2, timestamps=[-1, -1000])
    assert row_times_ms(last, 7, 0, "task").tolist() == [-1, -1]


# --- partitions ------------------------------------------------------------------------------


def test_keys_go_where_java_puts_them() -> None:
    keys = [b"", b"a", b"key-%d" % 7, b"21"] * 3
    expected = murmur2_partitions(pa.array(keys, pa.binary()), 4).tolist()
    out = routed(router(), rows(keys, keys=keys))
    assert out == {
        TopicPartition("a", p): [k for k, q in zip(keys, expected, strict=True) if q == p]
        for p in sorted(set(expected))
    }


def test_a_given_partition_wins_over_the_key() -> None:
    batch = rows([b"1", b"2", b"3"], keys=[b"k", b"k", b"k"], partitions=[3, None, 0])
    by_key = int(murmur2_partitions(pa.array([b"k"], pa.binary()), 4)[0])
    out = routed(router(), batch)
    assert b"1" in out[TopicPartition("a", 3)]
    assert b"2" in out[TopicPartition("a", by_key)]
    assert b"3" in out[TopicPartition("a", 0)]


def test_rows_without_key_stay_until_enough_bytes_then_move_on() -> None:
    sticky = router(sticky_bytes=200)
    # Each row counts as 84 + 16 bytes: two rows a partition, starting at the picked one, 3.
    out = routed(sticky, rows([b"x" * 84] * 5))
    assert {tp.partition: len(v) for tp, v in out.items()} == {3: 2, 0: 2, 1: 1}
    # The next batch goes on where this one stopped.
    out = routed(sticky, rows([b"x" * 84] * 2))
    assert {tp.partition: len(v) for tp, v in out.items()} == {1: 1, 2: 1}


def test_tombstones_without_key_move_on_too() -> None:
    out = routed(router(sticky_bytes=160), rows([None] * 20))
    assert {tp.partition: len(v) for tp, v in out.items()} == {3: 10, 0: 10}


@pytest.mark.parametrize("name", sorted(KEY_RULES))
@pytest.mark.parametrize("with_topics", [False, True])
def test_each_partitioner_puts_keys_where_its_rule_says(name: str, with_topics: bool) -> None:
    keys = [b"k%d" % i for i in range(40)]
    topics = (["a", "b"] * 20) if with_topics else None
    batch = rows(keys, keys=keys, topics=topics, partitions=[3, 2] + [None] * 38)
    expected: dict[TopicPartition, list[bytes]] = {}
    for i, key in enumerate(keys):
        topic = topics[i] if topics else "a"
        by_key = KEY_RULES[name].partitions(pa.array([key]), COUNTS[topic])[0]
        tp = TopicPartition(topic, 3 - i if i < 2 else int(by_key))
        expected.setdefault(tp, []).append(key)
    assert routed(router(partitioner=name), batch) == expected


@pytest.mark.parametrize("name", ["consistent", "murmur2", "fnv1a"])
@pytest.mark.parametrize("keys", [None, [None, None, b"", None]])
def test_without_random_null_keys_go_where_empty_ones_go(name: str, keys: Any) -> None:
    out = routed(
        router(sticky_bytes=1, partitioner=name), rows([b"1", b"2", b"3", b"4"], keys=keys)
    )
    empty = int(KEY_RULES[name].partitions(pa.array([b""]), 4)[0])
    assert out == {TopicPartition("a", empty): [b"1", b"2", b"3", b"4"]}


def test_consistent_random_spreads_empty_keys_as_null_ones() -> None:
    batch = rows([b"x"] * 40, keys=[b"", None] * 20)
    assert len(routed(router(sticky_bytes=100, partitioner="consistent_random"), batch)) == 4
    batch = rows([b"x"] * 40, keys=[b""] * 40)
    assert len(routed(router(sticky_bytes=100, partitioner="murmur2_random"), batch)) == 1


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_one_record_goes_where_a_column_of_one_goes(partitioner: str) -> None:
    keys = [None, b"", b"a", b"key-1", None, b"another key", None, None]
    values = [None, b"x" * 90, b"y", b"z" * 120, b"", b"1", b"2" * 70, b"3"]
    columns = router(sticky_bytes=100, partitioner=partitioner)
    expected = [
        next(route(columns, rows([value], keys=[key]), 99))[0].partition
        for key, value in zip(keys, values, strict=True)
    ]
    some = router(sticky_bytes=100, partitioner=partitioner)
    fields = [(*pair, [], 99) for pair in zip(keys, values, strict=True)]
    chosen = [some.partition_fields("a", fields[i : i + 3], {}, COUNTS["a"]) for i in (0, 3, 6)]
    assert [*itertools.chain(*chosen)] == expected


def test_round_robin_gives_each_row_the_next_partition_whatever_its_key() -> None:
    some = router(partitioner="round_robin")
    values = [b"%d" % i for i in range(6)]
    out = routed(some, rows(values, keys=[b"same"] * 6))
    assert out == {  # from 3 on, which was picked
        TopicPartition("a", 0): [b"1", b"5"],
        TopicPartition("a", 1): [b"2"],
        TopicPartition("a", 2): [b"3"],
        TopicPartition("a", 3): [b"0", b"4"],
    }
    # The next batch goes on; rows that say where they belong take no turn.
    out = routed(some, rows([b"6", b"7", b"8"], partitions=[None, 3, None]))
    assert out == {
        TopicPartition("a", 1): [b"6"],
        TopicPartition("a", 2): [b"8"],
        TopicPartition("a", 3): [b"7"],
    }


def test_random_spreads_rows_with_keys_in_runs() -> None:
    values = [b"x" * 84] * 5
    out = routed(router(sticky_bytes=200, partitioner="random"), rows(values, keys=[b"k"] * 5))
    assert {tp.partition: len(v) for tp, v in out.items()} == {3: 2, 0: 2, 1: 1}


def metadata_of(topic: str, leaders: tuple[int, ...]) -> TopicMetadata:
    rows = [PartitionMetadata(leader, leader_epoch=0, error_code=0) for leader in leaders]
    return TopicMetadata(topic, None, False, dict(enumerate(rows)))


def test_partitions_that_the_metadata_show_later_get_rows() -> None:
    known: dict[str, TopicMetadata | None] = {"a": None}
    some = Partitioner(
        ProducerOptions(),
        lambda names: {n: 2 for n in names},
        sticky_bytes=1,
        pick=lambda n: 0,
        known_topic=known.__getitem__,
    )
    batch = rows([b"x"] * 12)
    assert {tp.partition for tp, _ in route(some, batch, 0)} == {0, 1}
    known["a"] = metadata_of("a", leaders=(0, 1, 2, 0))
    assert {tp.partition for tp, _ in route(some, batch, 0)} == {0, 1, 2, 3}
    known["a"] = None  # distrusted for the moment, after an error
    assert {tp.partition for tp, _ in route(some, batch, 0)} == {0, 1, 2, 3}
    # Partition 2 has no leader now.
    known["a"] = metadata_of("a", leaders=(0, 1, -1, 0))
    assert {tp.partition for tp, _ in route(some, batch, 0)} == {0, 1, 3}


def test_topics_of_rows_and_stable_order() -> None:
    values = [b"%d" % i for i in range(8)]
    out = routed(
        router(), rows(values, topics=list("babcabcb"), partitions=[0, 1, 0, 0, 1, 2, 0, 0])
    )
    assert out == {
        TopicPartition("a", 1): [b"1", b"4"],
        TopicPartition("b", 0): [b"0", b"2", b"7"],
        TopicPartition("b", 2): [b"5"],
        TopicPartition("c", 0): [b"3", b"6"],
    }


row = st.tuples(
    st.sampled_from("abc"),
    st.none() | st.binary(max_size=6),
    st.none() | st.integers(0, 0),
    st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))),
    st.none() | st.integers(-1, 2**40).map(lambda ms: ms * 1000),
)


@pytest.mark.slow
@given(st.lists(row, min_size=1, max_size=40), st.integers(1, 200))
def test_no_row_is_lost_doubled_or_reordered(data: list[Any], sticky_bytes: int) -> None:
    values = [b"%d" % i for i in range(len(data))]
    batch = rows(
        values,
        topics=[r[0] for r in data],
        keys=[r[1] for r in data],
        partitions=[r[2] for r in data],
        headers=[None if r[3] is None else [{"key": k, "value": v} for k, v in r[3]] for r in data],
        timestamps=[r[4] for r in data],
    )
    seen = []
    for tp, records in route(router(sticky_bytes), batch, 99):
        numbers = [int(v) for v in records.values.to_pylist()]
        assert numbers == sorted(numbers)
        seen += numbers
        for number, key, headers, ms in zip(
            numbers,
            records.keys.to_pylist(),
            records.headers.to_pylist(),
            records.timestamps_ms.tolist(),
            strict=True,
        ):
            topic, wanted_key, partition, wanted_headers, micros = data[number]
            assert ms == (99 if micros is None else micros // 1000)
            assert (topic, wanted_key) == (tp.topic, key)
            assert headers == (
                None
                if wanted_headers is None
                else [{"key": k, "value": v} for k, v in wanted_headers]
            )
            if partition is not None:
                assert tp.partition == partition
            elif key is not None:
                assert (
                    tp.partition
                    == murmur2_partitions(pa.array([key], pa.binary()), COUNTS[topic])[0]
                )
    assert sorted(seen) == list(range(len(data)))


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=30),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from((1, 16, 100, 1000)),
    st.sampled_from("abc"),
)
def test_rows_without_key_or_partition_go_the_same_way_one_by_one(batches, sticky_bytes, topic):
    # A column of partitions that are all null sends rows the general way.
    fast, slow = router(sticky_bytes), router(sticky_bytes)
    for values in batches:
        partition_of = {}
        for some, partitions in ((fast, None), (slow, [None] * len(values))):
            batch = rows(values, partitions=partitions, topic=topic)
            seen: dict[TopicPartition, list[bytes | None]] = {}
            for tp, records in route(some, batch, 99):
                assert len(records.timestamps_ms) == len(records.values)
                seen.setdefault(tp, []).extend(records.values.to_pylist())
            partition_of[some] = seen
        assert partition_of[fast] == partition_of[slow]


# --- rows that cannot be written -----------------------------------------------------------------


def test_null_topic_names_the_row() -> None:
    some = router()
    routed(some, rows([b"0"] * 10, topics=["a"] * 10))
    with pytest.raises(
        EncodeError, match=r"KAFKA_NULL_TOPIC_IN_DATA.*row 12 of this task, key b'k2'"
    ):
        route(
            some,
            rows([b"1"] * 4, topics=["a", "b", None, None], keys=[b"k0", b"k1", b"k2", None]),
            0,
        )


@pytest.mark.parametrize("partition", [-1, 3, 2**31 - 1])
def test_partition_out_of_range_is_named(partition: int) -> None:
    requests = []

    def counts(names: Iterable[str]) -> dict[str, int]:
        requests.append(list(names))
        return {name: COUNTS[name] for name in names}

    some = Partitioner(ProducerOptions(), counts, sticky_bytes=1, pick=lambda n: 0)
    with pytest.raises(EncodeError) as caught:
        route(some, rows([b""] * 3, topics=["a", "b", "b"], partitions=[3, 2, partition]), 0)
    assert f"partition {partition} of topic b does not exist: it has partitions 0 to 2" in str(
        caught.value
    )
    assert "row 2 of this task" in str(caught.value)
    assert requests == [["a", "b"], ["a", "b"]], "metadata is asked again before giving up"


def test_partitions_added_meanwhile_are_found() -> None:
    counts = {"a": 1}
    some = Partitioner(
        ProducerOptions(), lambda names: {n: counts[n] for n in names}, sticky_bytes=1
    )
    routed(some, rows([b""]))
    counts["a"] = 2
    assert list(routed(some, rows([b""], partitions=[1]))) == [TopicPartition("a", 1)]


@pytest.mark.parametrize("bad", [[None], [{"key": None, "value": b"x"}]])
def test_null_header_key_names_the_row(bad: list[Any]) -> None:
    headers = [None, [{"key": "a", "value": None}], [], bad]
    with pytest.raises(EncodeError, match=r"a header without a key .row 3 of this task"):
        route(router(), rows([b""] * 4, headers=headers), 0)


def test_nothing_is_given_out_when_one_row_is_bad() -> None:
    with pytest.raises(EncodeError):
        route(router(), rows([b"1", b"2"], partitions=[0, 9]), 0)  # not even iterated


# --- the writer ------------------------------------------------------------------------------


class FakeProducer:
    """Takes notes; `fail_at` is the number of sends after which one fails."""

    made: list[FakeProducer] = []  # noqa: RUF012

    def __init__(self, cluster: Any, options: Any, transaction: Any) -> None:
        assert transaction is None
        self.sent: list[tuple[str, int, list[bytes | None]]] = []
        self.flushed = False
        self.closes = 0
        self.left_with: type[BaseException] | None = None
        self.metrics = ProducerMetrics(
            records=2,
            batches=7,
            batch_bytes=70,
            requests=8,
            retries=1,
            offsets={TopicPartition("t", 1): (10, 11)},
        )
        FakeProducer.made.append(self)

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        self.left_with = exc_type

    def check_sizes(self, records: PartitionedRecords) -> None:
        pass

    def close_batches(self) -> None:
        self.closes += 1

    def append(self, records: PartitionedRecords) -> None:
        assert isinstance(records.columns.timestamps_ms, np.ndarray)
        assert records.columns.timestamps_ms.dtype == np.int64
        runs = itertools.pairwise((0, *records.run_ends))
        for tp, (low, high) in zip(records.tps, runs, strict=True):
            values = records.columns.values.slice(low, high - low)
            self.sent.append((tp.topic, tp.partition, values.to_pylist()))
        self.flushed = False

    def flush(self) -> None:
        self.flushed = True


class FakeCluster:
    def __init__(self, options: Any, **rest: Any) -> None:
        pass

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *rest: object) -> None:
        pass

    def topics(self, names: list[str], deadline: Any = None, **rest: Any) -> dict[str, Any]:
        class Topic:
            partitions = {0: None, 1: None}  # noqa: RUF012

        return {name: Topic() for name in names}

    def known_topic(self, topic: str) -> None:
        return None


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    monkeypatch.setattr(write_task, "ColumnProducer", FakeProducer)
    monkeypatch.setattr(write_task, "Cluster", FakeCluster)
    monkeypatch.setattr(FakeProducer, "made", [])
    return FakeProducer


def writer(schema: str, **more: str) -> KafkaBatchWriter:
    return KafkaBatchWriter(parse_write_options({**WRITE, **more}), ddl(schema))


def batch_of(values: list[bytes | None], partitions: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(values, pa.binary()), pa.array(partitions, pa.int32())],
        names=["value", "partition"],
    )


def test_write_sends_flushes_and_reports(fakes: type[FakeProducer]) -> None:
    task = writer("value binary, partition int", topic="t")
    batches = [batch_of([b"aa", None, b"c"], [1, 0, 1]), batch_of([], []), batch_of([b"d"], [0])]
    message = task.write(iter(batches))
    (producer,) = fakes.made
    assert producer.sent == [("t", 0, [None]), ("t", 1, [b"aa", b"c"]), ("t", 0, [b"d"])]
    assert producer.flushed
    positions = {("t", 0): (2, -1, -1), ("t", 1): (2, 10, 11)}
    assert message == KafkaCommitMessage(4, 4, 7, 70, 1, positions)
    assert pickle.loads(pickle.dumps(message)) == message


def test_an_empty_task_asks_nobody(fakes: type[FakeProducer]) -> None:
    assert writer("value binary", topic="t").write(iter([])) == KafkaCommitMessage()
    assert not fakes.made


def test_a_failing_task_does_not_flush(fakes: type[FakeProducer]) -> None:
    task = writer("value binary, partition int", topic="t")
    with pytest.raises(EncodeError):
        task.write(iter([batch_of([b"a"], [0]), batch_of([b"a"], [7])]))
    (producer,) = fakes.made
    assert producer.left_with is EncodeError
    assert not producer.flushed


def test_huge_arrow_batches_are_halved(
    fakes: type[FakeProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_task, "MAX_PIECE_BYTES", 40)
    values = [b"%03d" % i for i in range(20)]
    message = writer("value binary, partition int", topic="t").write(
        iter([batch_of(values, [0] * 20)])
    )
    sent = fakes.made[0].sent
    assert len(sent) > 2
    assert [v for _, _, some in sent for v in some] == values
    assert message.rows == 20


def test_a_dictionary_counts_as_what_its_rows_take() -> None:
    """Few values behind many rows: the pieces are cut by what is written, not by what came."""
    value = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([b"x" * 1000]))
    batch = pa.record_batch({"value": value, "n": pa.array(["a"] * 64).dictionary_encode()})
    assert batch.nbytes < 2000
    pieces = list(write_task._split_batch(batch, 10_000))
    assert [piece.num_rows for piece in pieces] == [8] * 8


def test_rows_that_wait_do_not_keep_arrow_batches_in_memory(fakes: type[FakeProducer]) -> None:
    """A partition that gets one row of each Arrow batch would keep all of them for linger.ms."""
    memory = {"kafka.buffer.memory": "100"}
    task = writer("value binary, partition int", topic="t", **memory)
    task.write(batch_of([b"x" * 30], [0]) for _ in range(10))
    assert fakes.made[0].closes == 5  # after each two, which are more than half of it
    wide = batch_of([b"x"], [0]).append_column("not_written", pa.array(["y" * 30]))
    task = writer("value binary, partition int, not_written string", topic="t", **memory)
    task.write(wide for _ in range(10))
    assert fakes.made[1].closes == 5  # they are kept as well


def test_writer_survives_pickle_without_what_it_does_not_need() -> None:
    given = {**WRITE, "topic": "t", "kafka.secret.thing": "hunter2"}
    made = KafkaDataSource(given).writer(ddl("value string"), overwrite=False)
    pickled = pickle.dumps(made)
    copy = pickle.loads(pickled)
    assert (copy.options, copy.columns) == (made.options, made.columns)
    assert b"hunter2" not in pickled


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("val string", {}, "('val AS value'), or write all as to_json(struct(*)) AS value"),
        (
            "id string",
            {"valueFormat": "avro", "schema.registry.url": "http://127.0.0.1:1"},
            "('… AS value'), or write all as struct(*) AS value",
        ),
        ("value string", {"topc": "t"}, "did you mean 'topic'?"),
        ("value string", {"kafka.acks": "2"}, "kafka.acks must be all"),
        ("value string", {"deliveryGuarantee": "once"}, "at-least-once or exactly-once"),
    ],
)
def test_planning_names_the_culprit(schema: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        KafkaDataSource({**WRITE, "topic": "t", **options}).writer(ddl(schema), overwrite=False)
    assert message in str(caught.value)


def test_overwrite_is_refused_with_the_reason() -> None:
    with pytest.raises(OptionError, match=r"only be appended to.*mode\('append'\)"):
        KafkaDataSource({**WRITE, "topic": "t"}).writer(ddl("value string"), overwrite=True)


def test_commit_and_abort_say_what_happened(caplog: pytest.LogCaptureFixture) -> None:
    made = writer("value string", topic="t")
    messages = [
        KafkaCommitMessage(3, 30, 1, 100, 0, {("t", 0): (3, 0, 2)}),
        None,
        KafkaCommitMessage(2, 5, 2, 50, 1, {("t", 1): (2, 5, 6)}),
    ]
    with caplog.at_level(logging.INFO):
        made.commit([messages[0], messages[2]])
        made.abort(messages)
    commit, abort = (record.getMessage() for record in caplog.records)
    assert (
        "wrote 5 rows (35 bytes of keys and values) to 2 partitions of 1 topics in 2 tasks, "
        "3 batches (150 bytes as sent, 1 retries)" in commit
    )
    assert "at-least-once: 5 rows of 2 finished tasks" in abort
    assert "a second time" in abort
