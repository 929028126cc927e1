"""Secrets in Spark: what plans, Spark's own records of queries, and our objects show of them."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.testing.fake.cluster import FakeCluster

pytestmark = pytest.mark.spark

PASSWORD = "hush-hush"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{PASSWORD}";'
)


@pytest.fixture
def cluster() -> Any:
    with FakeCluster(2, sasl_users={"alice": PASSWORD}) as fake:
        fake.create_topic("t", partitions=2)
        yield fake


def options(cluster: FakeCluster, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


WAYS = {
    "jaas": {"kafka__sasl__jaas__config": JAAS},
    "librdkafka": {"kafka__sasl__username": "alice", "kafka__sasl__password": PASSWORD},
}


def shown_by_spark(spark: Any, since: int) -> str:
    """What Spark keeps of the queries from number `since` on, for its UI and history."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    texts = []
    for number in range(since, executions.size()):
        one = executions.apply(number)
        texts += [one.physicalPlanDescription(), one.description(), one.details()]
    return "\n".join(texts)


def explained(df: Any) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in ("simple", "extended", "formatted"):
            df.explain(mode)
    return shown.getvalue() + str(df._jdf.queryExecution().toString())


@pytest.mark.parametrize("way", WAYS)
def test_plans_do_not_show_a_password(spark: Any, cluster: FakeCluster, way: str) -> None:
    given = options(cluster, **WAYS[way])
    since = spark._jsparkSession.sharedState().statusStore().executionsList().size()
    rows = spark.createDataFrame([(b"one",), (b"two",)], "value binary")
    rows.write.format("pykafka").options(**given).option("topic", "t").mode("append").save()
    read = spark.read.format("pykafka").options(**given).option("subscribe", "t").load()
    assert sorted(bytes(row.value) for row in read.collect()) == [b"one", b"two"]
    texts = explained(read) + shown_by_spark(spark, since)
    assert "pykafka" in texts
    assert PASSWORD not in texts
    assert set(cluster.sasl_attempts) == {"alice"}


def test_sql_text_does_not_show_a_password(spark: Any, cluster: FakeCluster) -> None:
    """Spark hides values by spark.redaction.regex, which knows the word password."""
    given = options(cluster, **WAYS["jaas"], subscribe="t")
    text = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    plan = spark.sql(f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW v USING pykafka OPTIONS ({text})")
    (row,) = plan.collect()
    assert "kafka.sasl.jaas.config" in row[0]
    assert PASSWORD not in row[0]


def test_streams_do_not_show_a_password(spark: Any, cluster: FakeCluster, tmp_path: Path) -> None:
    given = options(cluster, **WAYS["librdkafka"], startingOffsets="earliest", subscribe="t")
    cluster.create_topic("copy")
    sink = options(cluster, **WAYS["jaas"], topic="copy")
    rows = spark.createDataFrame([(b"one",)], "value binary")
    rows.write.format("pykafka").options(**sink).option("topic", "t").mode("append").save()
    query = (
        spark.readStream.format("pykafka").options(**given).load().select("value")
        .writeStream.format("pykafka").options(**sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(60)
        said = repr(query.lastProgress) + str(query._jsq.explainInternal(True))
    finally:
        query.stop()
    assert PASSWORD not in said
    kept = "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    )
    assert '{"t": {' in kept  # the checkpoint was looked at
    assert PASSWORD not in kept
    assert cluster.log("copy", 0).end_offset == 1


def test_our_objects_do_not_show_a_password(cluster: FakeCluster) -> None:
    for way in WAYS.values():
        source = KafkaDataSource(options(cluster, **way, subscribe="t"))
        reader = source.reader(source.schema())
        sink = KafkaDataSource(options(cluster, **way, topic="t"))
        writer = sink.writer(source.schema(), False)
        shown = f"{source!r} {reader!r} {reader.options!r} {sink!r} {writer!r} {vars(writer)!r}"
        assert PASSWORD not in shown
        # It has to get to the executors, as what it is.
        assert PASSWORD.encode() in pickle.dumps(reader)


def test_references_get_to_the_executors_as_they_are(
    spark: Any, cluster: FakeCluster, tmp_path: Path
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"password={PASSWORD}\n")
    reference = f"${{file:{file}:password}}"
    given = options(cluster, kafka__sasl__username="alice", kafka__sasl__password=reference)
    source = KafkaDataSource({**given, "subscribe": "t"})
    reader = source.reader(source.schema())
    assert PASSWORD.encode() not in pickle.dumps(reader)
    rows = spark.createDataFrame([(b"one",)], "value binary")
    rows.write.format("pykafka").options(**given).option("topic", "t").mode("append").save()

    def load() -> Any:
        return spark.read.format("pykafka").options(**given).option("subscribe", "t").load()

    planned = load()
    assert planned.count() == 1
    before = len(cluster.sasl_attempts)
    file.unlink()
    for read, role in ((planned, "a Spark executor"), (load(), "Spark's driver")):
        with pytest.raises(Exception, match=re.escape(reference)) as caught:
            read.collect()
        said = str(caught.value)
        assert f"cannot be looked up in {role} (host " in said
        assert "No such file or directory" in said
        assert PASSWORD not in said
    assert len(cluster.sasl_attempts) == before


def test_a_wrong_password_fails_the_query_after_one_attempt(
    spark: Any, cluster: FakeCluster
) -> None:
    given = options(
        cluster, kafka__sasl__username="alice", kafka__sasl__password="hush-wrong", subscribe="t"
    )
    read = spark.read.format("pykafka").options(**given).load()
    with pytest.raises(Exception, match="authentication with PLAIN as user alice failed") as caught:
        read.collect()
    assert "hush" not in str(caught.value)
    assert cluster.sasl_attempts == ["alice"]
