"""Export to Prometheus with prometheus-client: serve a port, or push to a Pushgateway."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, core, push_to_gateway, start_http_server
from prometheus_client.registry import Collector

from sparkkafka.errors import OptionError
from sparkkafka.monitoring.aggregator import METRICS, Metric, MetricAggregator

log = logging.getLogger(__name__)

PUSH_LIMIT_S: Final = 10.0


class MetricCollector(Collector):
    """Passes the values to a registry of prometheus-client at each scrape."""

    def __init__(self, aggregator: MetricAggregator) -> None:
        self._aggregator = aggregator

    def describe(self) -> Iterable[core.Metric]:
        """Return the metrics without values. prometheus-client checks their names when this is
        registered; without this method it would read the values for that."""
        return [_family(metric, metric.labels) for metric in METRICS]

    def collect(self) -> Iterable[core.Metric]:
        """Return the current values, as prometheus-client's objects."""
        families: dict[str, Any] = {}
        for sample in self._aggregator.samples():
            name = sample.metric.name
            if name not in families:
                families[name] = _family(sample.metric, tuple(sample.labels))
            families[name].add_metric(list(sample.labels.values()), sample.value)
        return families.values()


def _family(metric: Metric, labels: Iterable[str]) -> Any:
    """Return prometheus-client's object for a metric, without values."""
    family_class = core.CounterMetricFamily if metric.is_counter else core.GaugeMetricFamily
    return family_class(metric.name, metric.doc, labels=list(labels))


class ScrapePort:
    """Serves /metrics until it is closed. Raises OptionError if the port is taken."""

    def __init__(self, aggregator: MetricAggregator, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(MetricCollector(aggregator))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise OptionError(
                f"metrics cannot be served at prometheus_host={host!r} prometheus_port={port}: "
                f"{error}. Choose another port; 0 takes one that is free"
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Pusher(threading.Thread):
    """Pushes all values every `every_s` seconds, and a last time when it is closed. Raises
    OptionError for an invalid address."""

    def __init__(
        self, aggregator: MetricAggregator, gateway: str, job: str, every_s: float
    ) -> None:
        super().__init__(name="sparkkafka-metrics-push", daemon=True)
        _check_gateway(gateway)
        self._registry = CollectorRegistry()
        self._registry.register(MetricCollector(aggregator))
        self._gateway, self._job, self._every_s = gateway, job, every_s
        self._failing = False
        self._closing = threading.Event()
        self.start()

    def close(self) -> None:
        """Wait for the last push, at most as long as two pushes may take: a gateway that answers
        one byte at a time could delay it for ever."""
        self._closing.set()
        self.join(2 * PUSH_LIMIT_S)

    def run(self) -> None:
        """Push the metrics every `_every_s`, and once more at the end."""
        while not self._closing.wait(self._every_s):
            self.push()
        self.push()

    def push(self) -> None:
        """Push the current values. A failure is logged once; until the next push the gateway keeps
        the old values."""
        try:
            push_to_gateway(self._gateway, self._job, self._registry, timeout=PUSH_LIMIT_S)
        except (OSError, ValueError, HTTPException) as error:
            if not self._failing:
                log.warning("metrics are not pushed to %s: %s", self._gateway, error)
            self._failing = True
        else:
            self._failing = False


def _check_gateway(gateway: str) -> None:
    """Check HOST:PORT or a URL. The error does not show it, since it may hold a password."""
    try:
        parts = urlsplit(gateway if "//" in gateway else f"http://{gateway}")
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or any(map(str.isspace, gateway)):
        raise OptionError("pushgateway is HOST:PORT or a URL of http or https")
    if "@" in parts.netloc:
        raise OptionError(
            "pushgateway holds a user or a password, which prometheus-client does not send: give "
            "HOST:PORT of a gateway, or of a proxy that signs in"
        )
