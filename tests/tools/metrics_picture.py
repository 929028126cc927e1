"""Makes the picture of docs/metrics.md from what Prometheus scrapes from a stream on a real broker.

`python -m tests.tools.metrics_picture` replaces it, in about three minutes; it needs Debian's
package prometheus. It also evaluates all expressions of the dashboard and the alerts,
and fails if Prometheus refuses one, or finds no series although there must be some.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from pyspark.sql import SparkSession

import sparkkafka
from sparkkafka import plot
from sparkkafka.testing.kafka.cluster import KafkaCluster
from sparkkafka.testing.kafka.java import export_java_home, find_java, say
from tests.tools.pictures import save_both
from tests.tools.writing import write_in_background

ROOT = Path(__file__).resolve().parents[2]
PORT, SCRAPED = 9390, 9364

SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})


def records(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the records of one call, in bursts more than the stream reads. Some are no JSON."""
    for number in range(1_000 if seconds % 60 > 40 else 100):
        yield {"value": b"not JSON" if random.random() < 0.001 else b'{"id": %d}' % number}


@contextmanager
def prometheus(folder: Path) -> Iterator[None]:
    """Run a Prometheus that scrapes the stream's metrics."""
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(ROOT / "conf/prometheus-alerts.yml")],
        "scrape_configs": [
            {"job_name": "spark", "static_configs": [{"targets": [f"127.0.0.1:{SCRAPED}"]}]}
        ],
    }
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(config))  # YAML, too
    subprocess.run(["promtool", "check", "config", path], check=True, stdout=subprocess.DEVNULL)
    flags = [f"--config.file={path}", f"--storage.tsdb.path={folder}/data"]
    flags += [f"--web.listen-address=127.0.0.1:{PORT}", "--log.level=error"]
    process = subprocess.Popen(["prometheus", *flags])
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def query_prometheus(path: str, **parameters: str) -> Any:
    """Return the `data` of a response of Prometheus' API."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/{path}?{query}") as response:
        return json.load(response)["data"]


def check() -> None:
    """Evaluate all expressions of the dashboard, and check that the alert of bad records fires."""
    # Metrics that exist only when something is wrong, or for a moment.
    may_be_empty = ("lost_offsets", "aborted", "oldest_open", "retries")
    dashboard = json.loads((ROOT / "conf/grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in (("query", ".*"), ("topic", ".*"), ("__rate_interval", "30s")):
                text = text.replace(f"${name}", value)
            found = query_prometheus("query", query=text.replace("$__range", "5m"))["result"]
            say(f"{len(found)} series: {panel['title']}: {text}")
            if not found and not any(word in text for word in may_be_empty):
                raise SystemExit(f"nothing is found for {text}")
    rules = [rule for group in query_prometheus("rules")["groups"] for rule in group["rules"]]
    for rule in rules:
        say(f"alert {rule['name']}: {rule['health']}, {rule['state']}")
    wrong = [rule["name"] for rule in rules if rule["health"] != "ok"]
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    if wrong or "BadRecords" not in firing:
        raise SystemExit(f"alerts that fail: {wrong}; firing: {firing}")


def query_range(expression: str, label: str) -> tuple[list[datetime], dict[str, list[float]]]:
    """Return the times of the last three minutes, and for each value of a label its figures, NaN
    where there is none."""
    now = round(time.time())
    found = query_prometheus(
        "query_range", query=expression, start=str(now - 180), end=str(now), step="2"
    )["result"]
    figures = {row["metric"][label]: dict(row["values"]) for row in found}
    seconds = sorted({second for values in figures.values() for second in values})
    return [datetime.fromtimestamp(second, UTC) for second in seconds], {
        name: [float(values.get(second, math.nan)) for second in seconds]
        for name, values in figures.items()
    }


def save_picture() -> None:
    """Save the picture of two graphs."""
    lags = query_range("sparkkafka_lag_seconds", "topic")
    parts = query_range(
        "rate(sparkkafka_trigger_part_seconds_total[30s]) / on (query) group_left () "
        "rate(sparkkafka_batches_total[30s])",
        "part",
    )

    def draw() -> None:
        _, (top, low) = pyplot.subplots(2, figsize=(8, 6.4))
        for axes, (times, lines), title in (
            (top, lags, "Lag by topic: sparkkafka_lag_seconds"),
            (low, parts, "Parts of a trigger: sparkkafka_trigger_part_seconds_total by batches"),
        ):
            plot.draw_lines(axes, times, lines, named=True)
            plot.add_labels(axes, title=title, y="seconds")
            plot.add_time_axis(axes, "time")
            axes.yaxis.set_major_formatter("{x:g}")

    save_both("metrics", draw)


def main() -> None:
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    if missing:
        raise SystemExit(f"this needs {', '.join(missing)}")
    export_java_home(find_java())
    with KafkaCluster(say=say) as kafka, tempfile.TemporaryDirectory() as name:
        folder, servers = Path(name), kafka.bootstrap_servers
        for topic in ("orders", "orders-checked", "orders-dead"):
            kafka.create_topic(topic, partitions=2)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )
        options = {"kafka.bootstrap.servers": servers}
        metrics = sparkkafka.metrics(spark, options, prometheus_port=SCRAPED, every_s=2)
        options |= metrics.options
        rows = (
            spark.readStream.format("pykafka")
            .options(**options, subscribe="orders", startingOffsets="earliest", valueFormat="json")
            .options(valueSchema=SCHEMA, valueFraming="none", onBadRecord="deadLetter")
            .options(maxOffsetsPerTrigger="6000", **{"deadLetter.topic": "orders-dead"})
            .load()
        )
        with write_in_background(servers, records, every_s=0.25), prometheus(folder):
            query = (
                rows.selectExpr("key", "to_json(value) AS value")
                .writeStream.format("pykafka")
                .options(**options, topic="orders-checked", deliveryGuarantee="exactly-once")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .queryName("check orders")
                .trigger(processingTime="2 seconds")
                .start()
            )
            query.awaitTermination(200)
            check()
            save_picture()
            query.stop()
        metrics.close()
        spark.stop()


if __name__ == "__main__":
    main()
