"""Each managed service, as its documents describe it: what we read and write there is neither lost
nor duplicated, and each refusal names what helps. Rules of fake brokers, not the services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from sparkkafka.client import Admin, Consumer, OffsetSpec, Producer, TopicPartition
from sparkkafka.errors import KafkaError, UnsupportedVersionError
from sparkkafka.protocol.records.compression import Codec
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.profiles import PROFILES
from tests.cli.run import Command
from tests.spark.exactly_once.exactly_once_model import Query
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "managed.md"
VALUES = [b"%03d" % number for number in range(100)]
TP = TopicPartition("t", 0)
VALUE = StructType().add("value", BinaryType())

NO_TRANSACTIONS = "set deliveryGuarantee=at-least-once"
REFUSALS = {
    ("oci", "write"): r"Set kafka\.enable\.idempotence=false",
    ("oci", "client"): r"Set enable\.idempotence=false",
    ("oci", "command"): r"Set enable\.idempotence=false",
    **{(name, "exactly-once"): NO_TRANSACTIONS for name in ("oci", "ursa")},
    **{("ydb", f"{what} read"): r"check\.crcs=false" for what in ("Spark", "client", "command")},
}
"""What does not work at a service by default, and what the error says."""

OPTIONS = {"oci": {"enable.idempotence": "false"}, "ydb": {"check.crcs": "false"}}
"""The settings that the errors name."""


@pytest.fixture(params=PROFILES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(name: str) -> Iterator[FakeCluster]:
    with FakeCluster(3, profile=name) as cluster:
        for topic in ("spark", "client", "command"):
            cluster.create_topic(topic, 2)
        yield cluster


def values_of(cluster: FakeCluster, topic: str) -> Counter[bytes]:
    return Counter(record.value for record in cluster.read_committed(topic))


def expecting(name: str, feature: str, work: Callable[[dict[str, str]], Any]) -> None:
    """Call `work` with no settings, and if that is refused as the table says, with those that the
    error names."""
    refusal = REFUSALS.get((name, feature))
    if refusal is None:
        work({})
        return
    with pytest.raises((KafkaError, AssertionError), match=refusal):
        work({})
    if name in OPTIONS:
        work(OPTIONS[name])


def read_all(cluster: FakeCluster) -> list[bytes]:
    """Return what a reader of Spark finds in topic t."""
    source = KafkaDataSource(options(cluster, subscribe="t"))
    reader = source.reader(source.schema())
    return [
        row["value"]
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def options(cluster: FakeCluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers, **more}


def test_spark_writes_reads_and_streams(name: str, cluster: FakeCluster) -> None:
    def write(settings: dict[str, str]) -> None:
        given = {f"kafka.{option}": value for option, value in settings.items()}
        writer = KafkaDataSource(options(cluster, topic="spark", **given)).writer(VALUE, False)
        batch = pa.record_batch({"value": pa.array(VALUES, pa.binary())})
        writer.commit([writer.write(iter([batch]))])

    expecting(name, "write", write)
    assert values_of(cluster, "spark") == Counter(VALUES)

    def read(settings: dict[str, str]) -> None:
        given = {f"kafka.{option}": value for option, value in settings.items()}
        source = KafkaDataSource(
            options(cluster, subscribe="spark", startingOffsets="earliest", **given)
        )
        batch_reader = source.reader(source.schema())
        stream = source.streamReader(source.schema())
        try:
            start = stream.initialOffset()
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            for reader, planned in (
                (batch_reader, batch_reader.partitions()),
                (stream, stream.partitions(start, end)),
            ):
                found = [
                    row["value"]
                    for partition in planned
                    for batch in reader.read(partition)
                    for row in batch.to_pylist()
                ]
                assert sorted(found) == VALUES
        finally:
            stream.stop()

    expecting(name, "Spark read", read)


def test_exactly_once(name: str, cluster: FakeCluster) -> None:
    query = Query(cluster)

    def run(settings: dict[str, str]) -> None:
        query.run_up_to(1)
        query.assert_each_row_once(2)

    refusal = REFUSALS.get((name, "exactly-once"))
    if refusal is None:
        run({})
        query.assert_nothing_open()
        return
    with pytest.raises(UnsupportedVersionError, match=refusal):
        run({})
    assert not query.visible()


def test_the_client_and_a_group(name: str, cluster: FakeCluster) -> None:
    servers = {"bootstrap.servers": cluster.bootstrap_servers}

    def send(settings: dict[str, str]) -> None:
        with Producer(servers | settings) as producer:
            for future in [producer.send("client", value) for value in VALUES]:
                future.result()

    expecting(name, "client", send)

    def read(settings: dict[str, str]) -> None:
        found: list[bytes] = []
        group = {"group.id": "g", "auto.offset.reset": "earliest"}
        with Consumer(servers | group | settings) as consumer:
            consumer.subscribe(["client"])

            def has_all() -> bool:
                found.extend(record.value for record in consumer.poll(0.2))
                return len(found) >= len(VALUES)

            wait_until(has_all)
            consumer.commit()
        assert sorted(found) == VALUES

    expecting(name, "client read", read)
    with Admin(servers) as admin:
        committed = admin.list_consumer_group_offsets("g")
        assert sum(at.offset for at in committed.values() if at) == len(VALUES)


@pytest.mark.parametrize("name", ["event-hubs", "oci", "ydb"])  # the client has them all
def test_the_command(
    name: str,
    cluster: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    command = Command(capsys, cluster.bootstrap_servers)
    lines = tmp_path / "lines"
    lines.write_bytes(b"\n".join(VALUES) + b"\n")

    def write(settings: dict[str, str]) -> None:
        given = [text for item in settings.items() for text in ("-X", "=".join(item))]
        command(*given, "write", "command", "--input", str(lines))

    expecting(name, "command", write)
    assert values_of(cluster, "command") == Counter(VALUES)
    assert "command" in command("topics", "list").out

    def read(settings: dict[str, str]) -> None:
        given = [text for item in settings.items() for text in ("-X", "=".join(item))]
        found = command(*given, "read", "command", "-e")
        assert sorted(found.out.encode().split()) == VALUES

    expecting(name, "command read", read)


def test_codecs_that_a_service_does_not_take(name: str, cluster: FakeCluster) -> None:
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    if name == "oci":
        servers |= OPTIONS["oci"]
    for codec in Codec:
        with Producer(servers | {"compression.type": codec.name.lower()}) as producer:
            sent = producer.send("client", b"x" * 1000)
            if codec in PROFILES[name].codecs:
                sent.result()
            else:
                with pytest.raises(KafkaError, match="set another codec"):
                    sent.result()


def test_a_topic_is_created_by_the_services_own_tools() -> None:
    with (
        FakeCluster(profile="event-hubs") as cluster,
        Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin,
        pytest.raises(UnsupportedVersionError, match="create it with the service's own tools"),
    ):
        admin.create_topic("t")


def test_connections_that_were_idle_are_made_again() -> None:
    assert PROFILES["event-hubs"].max_idle_ms == 240_000
    with FakeCluster(profile="event-hubs", max_idle_ms=100) as cluster:
        cluster.create_topic("t")
        with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            for value in (b"1", b"2"):
                producer.send("t", value).result()
                wait_until(lambda: not cluster.connections(0))
        assert [record.value for record in cluster.log("t", 0).records()] == [b"1", b"2"]


def test_each_offset_has_the_current_leader_epoch() -> None:
    with FakeCluster(2, profile="redpanda") as cluster:
        cluster.create_topic("t", 1, replication_factor=2)
        with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            producer.send("t", b"old").result()
        cluster.move_leader("t", 0, 1)
        with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            found = admin.list_offsets({TP: OffsetSpec.earliest()}).all()[TP]
        assert (found.offset, found.leader_epoch) == (0, cluster.log("t", 0).leader_epoch)
        assert read_all(cluster) == [b"old"]


def test_any_broker_takes_writes_and_reads() -> None:
    with FakeCluster(3, profile="warpstream") as cluster:
        cluster.create_topic("t")
        for node_id in cluster.broker_ids:
            with Producer({"bootstrap.servers": cluster.address(node_id)}) as producer:
                producer.send("t", b"%d" % node_id).result()
        wrote_to = [request.broker for request in cluster.requests if request.api == "Produce"]
        assert wrote_to == cluster.broker_ids
        assert read_all(cluster) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("name", ["bufstream", "aiven"])
def test_a_read_by_time_has_all_records_from_then_on(name: str, cluster: FakeCluster) -> None:
    """With approximate offsets also earlier ones of the first batch, which a filter takes out."""
    one_batch = {"linger.ms": 60_000}  # for what close sends
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, **one_batch}) as producer:
        producer.send("spark", b"before", partition=0, timestamp_ms=500)
        producer.flush()
        for number in range(1, 5):
            producer.send("spark", b"%d" % number, partition=0, timestamp_ms=number * 1_000)
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers}) as consumer:
        tp = TopicPartition("spark", 0)
        found = consumer.offsets_for_times({tp: 3_000})[tp]
    first = 1 if name == "bufstream" else 3
    assert found is not None
    assert found.offset == first
    source = KafkaDataSource(options(cluster, assign='{"spark": [0]}', startingTimestamp="3000"))
    reader = source.reader(source.schema())
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in rows] == list(range(first, 5))
    later = [row["value"] for row in rows if row["timestamp"].timestamp() >= 3]
    assert later == [b"3", b"4"]


@pytest.mark.parametrize("name", ["msk-serverless"])
def test_another_way_to_log_in_is_refused(cluster: FakeCluster) -> None:
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "user",
        "sasl.password": "secret",
    }
    with Admin(settings) as admin, pytest.raises(KafkaError, match="AWS_MSK_IAM"):
        admin.list_topics()


@pytest.mark.parametrize("name", ["ibm"])
def test_one_group_more_than_the_plan_has(cluster: FakeCluster) -> None:
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        for number in range(10):
            admin.alter_consumer_group_offsets(f"g{number}", {TopicPartition("client", 0): 1}).all()
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.protocol": "classic"}
    with (
        Consumer(settings | {"group.id": "more"}) as consumer,
        pytest.raises(KafkaError, match="delete a group"),
    ):
        consumer.subscribe(["client"])
        wait_until(lambda: consumer.poll(0.2))


def test_what_is_missing_at_a_service_is_not_its_age() -> None:
    with (
        FakeCluster(profile="oci") as cluster,
        Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin,
    ):
        cluster.create_topic("t")
        with pytest.raises(UnsupportedVersionError, match="does not offer CreatePartitions"):
            admin.create_partitions({"t": 3}).all()


def test_an_unknown_profile() -> None:
    with pytest.raises(ValueError, match="there are event-hubs, redpanda"):
        FakeCluster(profile="unknown")


def test_the_page_has_each_profile() -> None:
    page = PAGE.read_text()
    for key, profile in PROFILES.items():
        row = f"| [{profile.service}]({profile.source}) | `{key}` | {profile.differs} |"
        assert row in page, row
