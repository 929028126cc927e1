"""Export by OpenTelemetry: an instrument for each metric, observed when a reader collects.

Names are those of `catalogue` with a dot behind the first word, and without _total. What exports to
Prometheus makes them the same again: it adds a unit only where the name has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import CallbackOptions, Observation, get_meter

from sparkkafka.monitoring import catalogue
from sparkkafka.monitoring.numbers import Numbers

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

_UNITS: Final = {"_seconds": "s", "_bytes": "By"}


def name_and_unit(metric: catalogue.Metric) -> tuple[str, str]:
    name = metric.name.removesuffix("_total")
    unit = next((word for ending, word in _UNITS.items() if name.endswith(ending)), "")
    return name.replace("_", ".", 1), unit


class Instruments:
    """Those of a meter provider, by default the global one. After `close` they observe nothing:
    OpenTelemetry takes none back."""

    def __init__(self, numbers: Numbers, provider: MeterProvider | None) -> None:
        self._numbers: Numbers | None = numbers
        meter = get_meter("sparkkafka", meter_provider=provider)
        for metric in catalogue.ALL:
            name, unit = name_and_unit(metric)
            make: Any = (
                meter.create_observable_counter
                if metric.is_counter
                else meter.create_observable_gauge
            )
            make(name, callbacks=[self._observing(metric)], unit=unit, description=metric.doc)

    def close(self) -> None:
        self._numbers = None

    def _observing(
        self, metric: catalogue.Metric
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            if self._numbers is None:
                return []
            return [
                Observation(sample.value, dict(sample.labels))
                for sample in self._numbers.samples([metric])
            ]

        return observe
