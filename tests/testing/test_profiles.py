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

from sparkkafka.client import Admin, Consumer, Producer
from sparkkafka.errors import KafkaError, UnsupportedVersionError
from sparkkafka.protocol.records.codecs import Codec
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.profiles import PROFILES
from tests.cli.run import Command
from tests.spark.exactly_once.exactly_once_model import Query
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "managed.md"
VALUES = [b"%03d" % number for number in range(100)]
VALUE = StructType().add("value", BinaryType())

NO_TRANSACTIONS = "set deliveryGuarantee=at-least-once"
REFUSALS = {
    ("oci", "write"): r"Set kafka\.enable\.idempotence=false",
    ("oci", "client"): r"Set enable\.idempotence=false",
    ("oci", "command"): r"Set enable\.idempotence=false",
    **{(name, "exactly-once"): NO_TRANSACTIONS for name in ("oci", "ursa", "ydb")},
}
"""What does not work at a service by default, and what the error says."""

OPTIONS = {"oci": {"enable.idempotence": "false"}}
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
    source = KafkaDataSource(options(cluster, subscribe="spark", startingOffsets="earliest"))
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
    found: list[bytes] = []
    with Consumer(servers | {"group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["client"])

        def has_all() -> bool:
            found.extend(record.value for record in consumer.poll(0.2))
            return len(found) >= len(VALUES)

        wait_until(has_all)
        consumer.commit()
    assert sorted(found) == VALUES
    with Admin(servers) as admin:
        committed = admin.list_consumer_group_offsets("g")
        assert sum(at.offset for at in committed.values() if at) == len(VALUES)


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
    read = command("read", "command", "-e")
    assert sorted(read.out.encode().split()) == VALUES


def test_codecs_that_a_service_does_not_take(name: str, cluster: FakeCluster) -> None:
    servers = {"bootstrap.servers": cluster.bootstrap_servers, **OPTIONS.get(name, {})}
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


def test_an_unknown_profile() -> None:
    with pytest.raises(ValueError, match="there are event-hubs, redpanda"):
        FakeCluster(profile="unknown")


def test_the_page_has_each_profile() -> None:
    page = PAGE.read_text()
    for key, profile in PROFILES.items():
        row = f"| [{profile.service}]({profile.source}) | `{key}` | {profile.differs} |"
        assert row in page, row
