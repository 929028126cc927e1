"""Export to OpenTelemetry: an instrument for each metric, observed when a reader collects.

Names are those of `METRICS` with a dot after the first word, and without _total. OpenTelemetry's
exporter to Prometheus turns them into the names of `METRICS` again: it adds a unit only to a name
that has none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from sparkkafka.monitoring.aggregator import METRICS, Metric, MetricAggregator


def name_and_unit(metric: Metric) -> tuple[str, str]:
    """Return OpenTelemetry's name of a metric, and its unit, "" for none."""
    name = metric.name.removesuffix("_total")
    unit = {"seconds": "s", "bytes": "By"}.get(name.rpartition("_")[2], "")
    return name.replace("_", ".", 1), unit


class Instruments:
    """Instruments of a meter provider, by default the global one. OpenTelemetry cannot remove
    instruments, so after `close` they observe nothing."""

    def __init__(self, aggregator: MetricAggregator, provider: MeterProvider | None) -> None:
        self._aggregator: MetricAggregator | None = aggregator
        meter = get_meter("sparkkafka", meter_provider=provider)
        for metric in METRICS:
            name, unit = name_and_unit(metric)
            make: Any = (
                meter.create_observable_counter
                if metric.is_counter
                else meter.create_observable_gauge
            )
            observe = partial(self._observe, metric)
            make(name, callbacks=[observe], unit=unit, description=metric.doc)

    def close(self) -> None:
        self._aggregator = None

    def _observe(self, metric: Metric, options: CallbackOptions) -> list[Observation]:
        """Return the metric's present values; OpenTelemetry calls this before each export."""
        if self._aggregator is None:
            return []
        return [
            Observation(sample.value, dict(sample.labels))
            for sample in self._aggregator.samples([metric])
        ]
