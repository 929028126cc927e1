"""Export to Prometheus, by prometheus-client: a port to scrape, or a Pushgateway to push to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, push_to_gateway, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sparkkafka.errors import OptionError
from sparkkafka.monitoring import catalogue
from sparkkafka.monitoring.numbers import Numbers

log = logging.getLogger(__name__)

PUSH_LIMIT_S: Final = 10.0


class NumbersCollector(Collector):
    """What a registry of prometheus-client asks at each scrape."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        """So that registering asks for no values, and a name that is taken is found at once."""
        return [_family(metric, metric.labels) for metric in catalogue.ALL]

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Any] = {}
        for sample in self._numbers.samples():
            name = sample.metric.name
            if name not in found:
                found[name] = _family(sample.metric, tuple(sample.labels))
            found[name].add_metric(list(sample.labels.values()), sample.value)
        return found.values()


def _family(metric: catalogue.Metric, labels: Iterable[str]) -> Any:
    kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    return kind(metric.name, metric.doc, labels=list(labels))


class ScrapePort:
    """Serves /metrics. To be closed. Raises OptionError if the port is taken."""

    def __init__(self, numbers: Numbers, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(NumbersCollector(numbers))
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


class Pusher:
    """Pushes every so often, and a last time when it is closed. Raises OptionError for an address
    that is none."""

    def __init__(self, numbers: Numbers, gateway: str, job: str, every_s: float) -> None:
        _check_gateway(gateway)
        self._registry = CollectorRegistry()
        self._registry.register(NumbersCollector(numbers))
        self._gateway, self._job, self._every_s = gateway, job, every_s
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="sparkkafka-metrics-push", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Waits for the last push, but no longer than two may take: a gateway that answers with a
        byte now and then would be waited for without an end."""
        self._closing.set()
        self._thread.join(2 * PUSH_LIMIT_S)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self.push()
        self.push()

    def push(self) -> None:
        """The gateway keeps what it has until the next time; a failure is logged once."""
        try:
            push_to_gateway(self._gateway, self._job, self._registry, timeout=PUSH_LIMIT_S)
        except (OSError, ValueError, HTTPException) as error:
            if not self._failing:
                log.warning("metrics are not pushed to %s: %s", self._gateway, error)
            self._failing = True
        else:
            self._failing = False


def _check_gateway(gateway: str) -> None:
    """HOST:PORT, or a URL. What is wrong is not shown: it may hold a password."""
    try:
        parts = urlsplit(gateway if "//" in gateway else f"http://{gateway}")
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or any(one.isspace() for one in gateway):
        raise OptionError("pushgateway is HOST:PORT or a URL of http or https")
    if "@" in parts.netloc:
        raise OptionError(
            "pushgateway holds a user or a password, which prometheus-client does not send: give "
            "HOST:PORT of a gateway, or of a proxy that signs in"
        )
