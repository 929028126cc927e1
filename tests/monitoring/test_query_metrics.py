"""Metrics of real queries, compared with the produced records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException

import sparkkafka
from sparkkafka.client import Producer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
GOOD, BAD = 60, 7


def fill(servers: str, topic: str, good: int = GOOD, bad: int = BAD, key: str = "k") -> int:
    """Produce good and bad records; return the bytes of keys and values."""
    values = [b'{"id": %d}' % n for n in range(good)] + [b"not JSON"] * bad
    with Producer({"bootstrap.servers": servers}) as producer:
        for value in values:
            producer.send(topic, value, key=key.encode(), partition=0)
    return sum(map(len, values)) + len(key) * len(values)


def scraped(port: int) -> dict[tuple[str, str, str], float]:
    """Return values by name, query and topic (or part, or reason)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text = response.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            query = labels.pop("query", "")
            found[sample.name, query, "".join(labels.values())] = sample.value
    return found


def test_an_exactly_once_stream_with_bad_records_and_dead_letters(
    spark: Any, kafka_cluster: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    source, target, dead = new_topic(2), new_topic(2), new_topic()
    size_bytes = fill(servers, source)
    kafka = {"kafka.bootstrap.servers": servers}
    metrics = sparkkafka.metrics(spark, kafka, prometheus_port=0, every_s=0.2)
    reported = kafka | metrics.options

    def rows(**more: str) -> Any:
        given = reported | {
            "subscribe": source,
            "startingOffsets": "earliest",
            "valueFormat": "json",
        }
        given |= {"valueSchema": SCHEMA, "valueFraming": "none", **more}
        return spark.readStream.format("pykafka").options(**given).load()

    def run() -> Any:
        return (
            rows(onBadRecord="deadLetter", **{"deadLetter.topic": dead})
            .selectExpr("key", "to_json(value) AS value")
            .writeStream.format("pykafka")
            .options(**reported, topic=target, deliveryGuarantee="exactly-once")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("orders")
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    def value(name: str, position: str = "") -> float | None:
        return scraped(metrics.prometheus_port).get((f"sparkkafka_{name}", "orders", position))

    query = run()
    try:
        wait_until(lambda: value("written_rows_total", target) == GOOD, "the first rows")
        size_bytes += fill(servers, source, 5, 0)
        wait_until(lambda: value("written_rows_total", target) == GOOD + 5, "the other rows")
        wait_until(lambda: value("lag_seconds", source) == 0, "a lag")
        # Five records that are appended in two batches may be read by two micro-batches.
        wait_until(lambda: value("input_rows_total") == GOOD + 5, "the progress")
        assert (value("batches_total") or 0) >= 2
        assert value("oldest_open_transaction_timestamp_seconds") is None
        own = {
            "bootstrap.servers": servers,
            "transactional.id": f"sparkkafka-{query.id}-{0:012}-0-0",
        }
        with Producer(own) as left_open:
            left_open.init_transactions()
            left_open.begin_transaction()
            left_open.send(target, b"never seen", partition=0).result(30)
            oldest = "oldest_open_transaction_timestamp_seconds"
            wait_until(lambda: value(oldest), "an open transaction")
            assert abs(time.time() - (value(oldest) or 0)) < 300
            left_open.abort_transaction()
        wait_until(lambda: value(oldest) is None, "none")
        query.stop()
        assert query.exception() is None
        wait_until(lambda: value("query_active") == 0, "the end")
        fails = rows().writeStream.format("noop").queryName("fails").start()
        with pytest.raises(StreamingQueryException, match="BadRecordError"):
            fails.awaitTermination(60)
        failures = ("sparkkafka_query_failures_total", "fails", "")
        wait_until(lambda: scraped(metrics.prometheus_port).get(failures), "the failure")
        found = scraped(metrics.prometheus_port)
    finally:
        query.stop()
        metrics.close()
    expected = {
        "read_records_total": (source, GOOD + BAD + 5),
        "read_bytes_total": (source, size_bytes),
        "read_offsets_total": (source, GOOD + BAD + 5),
        "bad_records_total": (source, BAD),
        "dead_letters_total": (source, BAD),
        "written_rows_total": (target, GOOD + 5),
        "lag_records": (source, 0),
        "input_rows_total": ("", GOOD + 5),
        "query_failures_total": ("", 0),
    }
    for name, (position, number) in expected.items():
        assert found[f"sparkkafka_{name}", "orders", position] == number, name
    assert 2 <= found["sparkkafka_transactions_committed_total", "orders", ""] <= 4
    whole_s = found["sparkkafka_trigger_seconds_total", "orders", ""]
    parts = {key[2]: s for key, s in found.items() if "trigger_part" in key[0]}
    assert {"addBatch", "latestOffset", "queryPlanning", "walCommit"} <= parts.keys()
    assert 0 < sum(parts.values()) <= whole_s * 1.2
    assert found["sparkkafka_query_active", "fails", ""] == 0
    assert ("sparkkafka_read_records_total", "fails", source) not in found
    assert not [key for key in found if "reports_dropped" in key[0]]
    assert found["sparkkafka_lookup_failures_total", "", ""] == 0


CONNECT = """
import json, sys, time
import sparkkafka
from pyspark.sql import SparkSession

url, servers, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
kafka = {"kafka.bootstrap.servers": servers}
metrics = sparkkafka.metrics(spark, kafka, every_s=0.2)
query = (
    spark.readStream.format("pykafka").options(**kafka, **metrics.options, subscribe=topic)
    .option("startingOffsets", "earliest").load().writeStream.format("noop").queryName("far")
    .option("checkpointLocation", folder + "/ck").trigger(processingTime="1 second").start()
)

def values():
    return {row.metric.name: row.value for row in metrics.samples() if row.labels.get("query")}

until_s = time.monotonic() + 100
while time.monotonic() < until_s:
    wanted = {"sparkkafka_lag_seconds", "sparkkafka_batches_total", "sparkkafka_read_records_total"}
    if wanted <= values().keys():
        break
    time.sleep(0.1)
query.stop()
while values()["sparkkafka_query_active"] and time.monotonic() < until_s:
    time.sleep(0.1)
print(json.dumps(values()))
metrics.close()
spark.stop()
"""


def test_over_connect(kafka_cluster: Any, new_topic: Any, tmp_path: Path, connect_url: str) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, new_topic()
    size_bytes = fill(servers, topic)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CONNECT, connect_url, servers, topic, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, number in {
        "read_records_total": GOOD + BAD,
        "read_bytes_total": size_bytes,
        "input_rows_total": GOOD + BAD,
        "lag_records": 0,
        "lag_seconds": 0,
        "batches_total": 1,
        "query_active": 0,
        "query_failures_total": 0,
    }.items():
        assert found[f"sparkkafka_{name}"] == number, name
