"""Values are added up and exported: prometheus-client's parser and OpenTelemetry's SDK read them.
All metrics in docs, dashboard and alerts are exported."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import sparkkafka
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import OptionError, needs_extra
from sparkkafka.monitoring import aggregator, prometheus
from sparkkafka.monitoring.aggregator import (
    EXPORT_METRICS,
    MAX_QUERIES,
    MAX_SUMMED,
    METRICS,
    MetricAggregator,
)
from sparkkafka.monitoring.otel import Instruments, name_and_unit
from sparkkafka.monitoring.prometheus import MetricCollector, Pusher, ScrapePort
from sparkkafka.spark import metric_reports
from sparkkafka.spark.metric_reports import Count, Report, ends_key
from sparkkafka.spark.stream.progress import KafkaSourceProgress
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
ONE, TWO = (f"{n:08}-0000-0000-0000-000000000000" for n in (1, 2))
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def source(
    start: int | None, end: int, latest: int | None = None, rows: int = 0
) -> KafkaSourceProgress:
    """Progress of a source; both partitions have the same offsets."""
    first, last, log_end = (None if at is None else {A: at, B: at} for at in (start, end, latest))
    return KafkaSourceProgress(last or {}, log_end, first, rows)


def values(metrics: MetricAggregator) -> dict[tuple[str, ...], float]:
    return {(row.metric.field, *row.labels.values()): row.value for row in metrics.samples()}


def filled(**more: Any) -> MetricAggregator:
    """Return an aggregator with a value of each metric."""
    metrics = MetricAggregator(**more)
    metrics.query_started(ONE, 'a "name"\n')
    metrics.add_batch(
        ONE, [source(None, 10, 30, rows=20)], {"triggerExecution": 500, "addBatch": 400}
    )
    metrics.add_batch(
        ONE, [source(10, 20, 30, rows=20)], {"triggerExecution": 1_000, "addBatch": 700}
    )
    report = Report(ONE)
    from_tasks = metric_reports.BY_PARTITION - {Count.OFFSETS}
    for number, name in enumerate(sorted(from_tasks), start=1):
        report.add(name, number, "t", 0)
        report.add(name, number, "t", 1)
    for name in sorted(metric_reports.OF_QUERY):
        report.add(name, 5)
    metrics.add_report(report)
    metrics.set_lags(ONE, {A: 7, B: 8}, {A: 1.5, B: 2.5})
    metrics.set_oldest_transaction(ONE, 1_700_000_000.0)
    metrics.count_dropped("signature")
    return metrics


def test_offsets_that_progress_does_not_count() -> None:
    """Spark reports no start for a query's first batch and for new partitions. The planner does,
    again if the batch failed and is repeated. Two queries may read the same records."""
    metrics = MetricAggregator()
    for query in (ONE, TWO):
        metrics.query_started(query, f"q-{query[7]}")
    for _ in range(2):
        report = Report(ends=ends_key([(*A, 10), (*B, 10)], is_first=True))
        report.add(Count.OFFSETS, 7, *A)
        report.add(Count.OFFSETS, 8, *B)
        report.add(Count.LOST, 1, *A)
        metrics.add_report(report)
    assert ("offsets", "q-1", "t") not in values(metrics)
    metrics.add_batch(ONE, [source(None, 10)], {})
    assert values(metrics)["offsets", "q-1", "t"] == 15
    metrics.add_batch(TWO, [source(None, 10)], {})
    assert values(metrics)["offsets", "q-2", "t"] == 15
    assert values(metrics)["lost", "q-1", "t"] == 2
    new = Report(ends=ends_key([(*A, 12), (*B, 12)]))
    new.add(Count.OFFSETS, 12, *B)
    metrics.add_report(new)
    metrics.add_batch(ONE, [KafkaSourceProgress({A: 12, B: 12}, None, {A: 10}, 0)], {})
    assert values(metrics)["offsets", "q-1", "t"] == 15 + 2 + 12
    metrics.add_batch(TWO, [source(10, 12)], {})  # it knew the partition
    assert values(metrics)["offsets", "q-2", "t"] == 15 + 4


def test_offsets_that_are_reported_late() -> None:
    metrics = MetricAggregator()
    metrics.query_started(ONE, "q")
    metrics.add_batch(ONE, [source(None, 10)], {})
    report = Report(ends=ends_key([(*A, 10), (*B, 10)], is_first=True))
    report.add(Count.OFFSETS, 7, *A)
    metrics.add_report(report)
    assert values(metrics)["offsets", "q", "t"] == 7


def test_values_add_up() -> None:
    found = values(filled())
    name = 'a "name"\n'
    for key, value in {
        ("batches", name): 2, ("input_rows", name): 40, ("trigger_s", name): 1.5,
        ("last_trigger_s", name): 1.0, ("duration_s", name, "addBatch"): 1.1,
        ("offsets", name, "t"): 20, ("lag", name, "t"): 15, ("behind_s", name, "t"): 2.5,
        ("retries", name): 5, ("retries", name, "t"): 12, ("received",): 1,
        ("dropped", "signature"): 1, ("active", name): 1, ("failures", name): 0,
        ("oldest_transaction_s", name): 1_700_000_000.0,
    }.items():  # fmt: skip
        assert found[key] == pytest.approx(value), key
    found = values(filled(partitions=True))
    assert found["lag", name, "t", "1"] == 8
    assert found["behind_s", name, "t", "0"] == 1.5


def test_the_lag_from_progress_counts_until_a_lookup() -> None:
    metrics = MetricAggregator()
    metrics.query_started(ONE, "q")
    metrics.add_batch(ONE, [source(0, 10, 30), source(0, 10, 35)], {})
    assert values(metrics)["lag", "q", "t"] == 50  # the source that is further behind
    metrics.set_lags(ONE, {A: 100, B: 1}, {})
    metrics.add_batch(ONE, [source(10, 20, 30)], {})
    assert values(metrics)["lag", "q", "t"] == 101
    metrics.set_lags(ONE, {}, {})
    metrics.add_batch(ONE, [source(20, 30, 31)], {})
    assert values(metrics)["lag", "q", "t"] == 2
    metrics.add_batch(ONE, [KafkaSourceProgress({A: 40}, {A: 44}, {A: 30}, 0)], {})  # B is gone
    assert values(metrics)["lag", "q", "t"] == 4


def plan(end: int) -> Report:
    report = Report(ends=ends_key([(*A, end), (*B, end)]))
    report.add(Count.LOST, 3, "t", 0)
    return report


def test_a_plan_s_report_counts_for_the_query_with_these_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = MetricAggregator()
    metrics.query_started(ONE, "one")
    metrics.query_started(TWO, "two")
    metrics.add_report(plan(10))
    metrics.add_batch(TWO, [source(0, 9)], {})
    assert ("lost", "two", "t") not in values(metrics)
    metrics.add_batch(ONE, [source(0, 10)], {})
    assert values(metrics)["lost", "one", "t"] == 3
    metrics.add_batch(TWO, [source(9, 12)], {})
    metrics.add_report(plan(12))  # a little late
    assert values(metrics)["lost", "two", "t"] == 3
    metrics.add_batch(TWO, [source(12, 13)], {})
    monkeypatch.setattr(aggregator, "MAX_DELAY_S", -1.0)
    metrics.add_report(plan(13))  # of another query, which is behind
    metrics.add_batch(ONE, [source(10, 13)], {})
    assert values(metrics)["lost", "one", "t"] == 6
    for end in range(1_000):
        metrics.add_report(plan(100 + end))
    assert len(metrics._unmatched) == aggregator.MAX_UNMATCHED


def test_reports_before_the_start_event_of_a_query() -> None:
    metrics = MetricAggregator()
    report = Report(ONE, prefix="p")
    report.add(Count.ROWS, 4, "t")
    metrics.add_report(report)
    assert metrics.running_queries() == {}
    assert not [key for key in values(metrics) if key[0] == "rows"]
    metrics.query_started(ONE, None)
    assert values(metrics)["rows", ONE, "t"] == 4
    assert metrics.running_queries() == {ONE: ({}, "p")}
    report.query = ""
    metrics.add_report(report)
    assert values(metrics)["rows", "batch", "t"] == 4  # a batch write
    metrics.query_started(TWO, "batch")
    assert values(metrics)["active", TWO] == 1


def test_ended_queries_are_dropped_and_names_are_unique() -> None:
    metrics = MetricAggregator(forget_s=100)
    metrics.query_started(ONE, "q")
    metrics.add_batch(ONE, [source(0, 1)], {})
    metrics.query_started(TWO, "q")  # restarted, with another checkpoint
    assert ("batches", "q") not in values(metrics)
    metrics.query_ended(TWO, failed=True)
    assert values(metrics)["failures", "q"] == 1
    assert values(metrics)["active", "q"] == 0
    metrics._queries[TWO].ended_at_s = -1e6
    assert not [key for key in values(metrics) if "q" in key]
    for number in range(2 * MAX_QUERIES):
        metrics.query_started(f"{number:08}-0000-0000-0000-000000000000", None)
    assert len(metrics._queries) <= MAX_QUERIES + 1
    many = Report(ONE)
    for number in range(MAX_SUMMED + 10):
        many.add(Count.ROWS, 1, "t", number)
    metrics.add_report(many)
    found = values(metrics)
    assert found["rows", ONE, "t"] == MAX_SUMMED
    assert found["dropped", "too many partitions"] == 10
    assert found["dropped", "too many queries"] > 0


# --- exporters ----------------------------------------------------------------------------------


def test_prometheus_s_text() -> None:
    registry = CollectorRegistry()
    registry.register(MetricCollector(filled(partitions=True)))
    text = generate_latest(registry).decode()
    families = {row.name: row for row in text_string_to_metric_families(text)}
    named = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    assert families.keys() == named.keys()
    for name, family in families.items():
        assert family.type == ("counter" if named[name].is_counter else "gauge")
        assert family.documentation == named[name].doc
        for sample in family.samples:
            assert sample.name == named[name].name
            assert sample.labels.get("query", 'a "name"\n') == 'a "name"\n'
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_port_that_is_taken_is_an_error() -> None:
    served = ScrapePort(MetricAggregator(), "127.0.0.1", 0)
    try:
        with pytest.raises(OptionError, match=f"prometheus_port={served.port}: "):
            ScrapePort(MetricAggregator(), "127.0.0.1", served.port)
    finally:
        served.close()


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    got: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            got.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_gateway_gets_the_last_values(
    gateway: tuple[str, list[tuple[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    address, got = gateway
    some = filled()
    pusher = Pusher(some, address, "night", 0.05)
    wait_until(lambda: got, "a push")
    some.query_ended(ONE, failed=False)
    pusher.close()
    path, text = got[-1]
    assert path == "/metrics/job/night"
    found = {row.name: row.samples for row in text_string_to_metric_families(text)}
    assert [row.value for row in found["sparkkafka_query_active"]] == [0]
    away = Pusher(some, "127.0.0.1:1", "night", 1e6)
    away.push()
    away.close()
    assert caplog.text.count("metrics are not pushed to 127.0.0.1:1") == 1


def test_a_gateway_that_is_no_http_server(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "PUSH_LIMIT_S", 0.2)
    requests: list[float] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(time.monotonic())
            if len(requests) == 1:
                self.wfile.write(b"SSH-2.0-x\r\n")
                return
            with contextlib.suppress(OSError):
                while not over.wait(0.05):
                    self.wfile.write(b"X")

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        pusher = Pusher(filled(), f"127.0.0.1:{server.server_port}", "night", 0.01)
        wait_until(lambda: len(requests) == 2, "a push after the one that failed")
        assert caplog.text.count("metrics are not pushed to") == 1
        pusher.close()  # while the gateway still answers
        over.set()
        server.shutdown()
        thread.join()


def test_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instruments = Instruments(filled(), provider)
    data = json.loads(reader.get_metrics_data().to_json())
    (scope,) = data["resource_metrics"][0]["scope_metrics"]
    found = {(row["name"], row["unit"]): row["data"] for row in scope["metrics"]}
    assert found.keys() == {name_and_unit(metric) for metric in METRICS}
    assert found["sparkkafka.lag_seconds", "s"]["data_points"][0]["value"] == 2.5
    rows = found["sparkkafka.written_rows", ""]
    assert rows["is_monotonic"]
    assert rows["data_points"][0]["attributes"] == {"query": 'a "name"\n', "topic": "t"}
    instruments.close()
    assert reader.get_metrics_data() is None
    provider.shutdown()


@pytest.mark.slow
def test_an_extra_that_is_not_here_is_named() -> None:
    script = """
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
import sparkkafka
for more in ({"prometheus_port": 0}, {"pushgateway": "h:1"}, {"otel": "default"}):
    try:
        sparkkafka.metrics(None, **more)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert [line.rpartition("pip install ")[2] for line in lines] == [
        "'sparkkafka[prometheus]'", "'sparkkafka[prometheus]'", "'sparkkafka[otel]'"
    ], done.stderr  # fmt: skip
    assert "metrics(pushgateway=…) needs prometheus-client, which is not here" in lines[1]
    with pytest.raises(ModuleNotFoundError), needs_extra("needs", "otel", "opentelemetry"):
        import no_such_module  # noqa: F401


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every_s": 0}, "every_s is a number of seconds above 0, got 0"),
        ({"reports_port": 70_000}, "reports_port is a whole number from 0 to 65535, got 70000"),
        ({"pushgateway": "http://bob:hunter2@h"}, "pushgateway holds a user or a password"),
        ({"pushgateway": "file:///x"}, "pushgateway is HOST:PORT or a URL"),
        ({"pushgateway": "a host"}, "pushgateway is HOST:PORT or a URL"),
        ({"forget_s": float("inf")}, "forget_s is a number of seconds above 0, got inf"),
        ({"otel": "mine"}, "otel is a MeterProvider or 'default', got 'mine'"),
        ({"options": {}}, r"kafka\.bootstrap\.servers"),
        ({"options": {"kafka.bootstrap.servers": "h:1", "subscrib": "t"}}, "unknown option"),
        ({"reports_host": "203.0.113.1"}, "metrics cannot listen on reports_host='203.0.113.1'"),
    ],
)
def test_invalid_arguments(given: dict[str, Any], message: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(OptionError, match=message):
        sparkkafka.metrics(None, prometheus_port=0, **given)  # type: ignore[arg-type]
    assert set(threading.enumerate()) <= before  # nothing of it is left; a thread of others may end


# --- docs, dashboard and alerts -----------------------------------------------------------------


def exported(text: str) -> set[str]:
    return set(re.findall(r"sparkkafka_[a-z_]+[a-z]", text))


def test_docs_name_all_metrics_and_dashboard_and_alerts_no_others() -> None:
    names = {metric.name for metric in METRICS}
    assert len(names) == len(METRICS)
    page = (ROOT / "docs/metrics.md").read_text("utf-8")
    assert exported(page) == names
    dashboard = (ROOT / "conf/grafana-dashboard.json").read_text("utf-8")
    expressions = [
        target["expr"]
        for panel in json.loads(dashboard)["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(expressions) > 15
    assert exported(dashboard) <= names
    alerts = (ROOT / "conf/prometheus-alerts.yml").read_text("utf-8")
    assert exported(alerts) <= names
    own = {metric.name for metric in EXPORT_METRICS}
    assert exported(dashboard + alerts) >= names - own - {
        "sparkkafka_input_rows_total", "sparkkafka_trigger_seconds_total",
        "sparkkafka_read_offsets_total", "sparkkafka_written_bytes_total",
    }  # fmt: skip
    if shutil.which("promtool"):
        path = str(ROOT / "conf/prometheus-alerts.yml")
        done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
