"""`metrics`: a listener of a session's streaming queries, and what exports its numbers."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from sparkkafka.errors import OptionError
from sparkkafka.extras import needs_extra
from sparkkafka.monitoring.lookups import Lookups
from sparkkafka.monitoring.numbers import Numbers, Sample
from sparkkafka.monitoring.receiver import Receiver
from sparkkafka.spark.stream.group_committer import wait_for_listeners
from sparkkafka.spark.stream.progress import kafka_sources

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

METRICS_ADDRESS: Final = "metricsAddress"
DEFAULT_PROVIDER: Final = "default"


def metrics(
    spark: SparkSession,
    options: Mapping[str, Any] | None = None,
    *,
    prometheus_port: int | None = None,
    prometheus_host: str = "127.0.0.1",
    pushgateway: str | None = None,
    job: str = "sparkkafka",
    otel: MeterProvider | str | None = None,
    partitions: bool = False,
    reports_host: str = "127.0.0.1",
    reports_port: int = 0,
    every_s: float = 15.0,
    forget_s: float = 300.0,
) -> QueryMetrics:
    """Export metrics of the session's streaming queries. Call it before the queries start.

    `options` are those of a stream (kafka.bootstrap.servers, …): with them the brokers are asked
    every `every_s` seconds for lags and open transactions.

    Exporters, any of them: `prometheus_port` serves http://`prometheus_host`:port/metrics, 0 takes
    a free one (extra prometheus); `pushgateway` is the address of one, to which the metrics are
    pushed under `job` every `every_s` seconds and at the end (extra prometheus); `otel` is a
    MeterProvider, or "default" for the global one (extra otel).

    `partitions` adds the label partition. `reports_host` and `reports_port` are where reports of
    the driver's processes and the tasks are received, by UDP: an address of this machine that the
    executors reach. Give the result's `options` to reads and writes for it. A query that has ended
    is exported for `forget_s` seconds.

    Raises OptionError, and ImportError for an extra that is not installed.
    """
    return QueryMetrics(
        spark,
        options,
        prometheus_port=prometheus_port,
        prometheus_host=prometheus_host,
        pushgateway=pushgateway,
        job=job,
        otel=otel,
        partitions=partitions,
        reports_host=reports_host,
        reports_port=reports_port,
        every_s=every_s,
        forget_s=forget_s,
    )


class QueryMetrics(StreamingQueryListener):
    """See `metrics`. `options` are for reads and writes: they have `metricsAddress`.
    `prometheus_port` is the port that is served, None without one."""

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, Any] | None,
        *,
        prometheus_port: int | None,
        prometheus_host: str,
        pushgateway: str | None,
        job: str,
        otel: MeterProvider | str | None,
        partitions: bool,
        reports_host: str,
        reports_port: int,
        every_s: float,
        forget_s: float,
    ) -> None:
        for name, seconds in (("every_s", every_s), ("forget_s", forget_s)):
            if not 0 < seconds < 1e9:
                raise OptionError(f"{name} is a number of seconds above 0, got {seconds!r}")
        for name, number in (("prometheus_port", prometheus_port), ("reports_port", reports_port)):
            # The system takes a larger one for what its last 16 bits say.
            if number is not None and (type(number) is not int or not 0 <= number <= 65535):
                raise OptionError(f"{name} is a whole number from 0 to 65535, got {number!r}")
        self._spark = spark
        self._numbers = Numbers(partitions=partitions, forget_s=forget_s)
        self._told: set[str] = set()
        self.prometheus_port: int | None = None
        with ExitStack() as stack:
            # In this order: what exports is closed last, with all that came.
            if prometheus_port is not None or pushgateway is not None:
                argument = "prometheus_port" if pushgateway is None else "pushgateway"
                needs = (
                    f"sparkkafka.metrics({argument}=…) needs prometheus-client, which is not here"
                )
                with needs_extra(needs, "prometheus", "prometheus_client"):
                    from sparkkafka.monitoring import prometheus
                if prometheus_port is not None:
                    served = prometheus.ScrapePort(self._numbers, prometheus_host, prometheus_port)
                    stack.callback(served.close)
                    self.prometheus_port = served.port
                if pushgateway is not None:
                    pusher = prometheus.Pusher(self._numbers, pushgateway, job, every_s)
                    stack.callback(pusher.close)
            if otel is not None:
                needs = "sparkkafka.metrics(otel=…) needs opentelemetry-sdk, which is not here"
                with needs_extra(needs, "otel", "opentelemetry"):
                    from sparkkafka.monitoring.otel import Instruments
                if isinstance(otel, str) and otel != DEFAULT_PROVIDER:
                    raise OptionError(
                        f"otel is a MeterProvider or {DEFAULT_PROVIDER!r}, got {otel!r}"
                    )
                provider = None if isinstance(otel, str) else otel
                stack.callback(Instruments(self._numbers, provider).close)
            receiver = Receiver(self._numbers, reports_host, reports_port)
            stack.callback(receiver.close)
            if options is not None:
                stack.callback(Lookups(self._numbers, options, every_s).close)
            spark.streams.addListener(self)
            self._stack = stack.pop_all()
        self.options: dict[str, str] = {METRICS_ADDRESS: receiver.address.text}
        atexit.register(self._at_exit)

    def __repr__(self) -> str:
        return f"QueryMetrics(prometheus_port={self.prometheus_port})"

    def samples(self) -> list[Sample]:
        """All values of now: (metric, labels, value), for exporters of your own."""
        return self._numbers.samples()

    def close(self) -> None:
        """Listen and export no more; a Pushgateway gets the last values. May be repeated."""
        atexit.unregister(self._at_exit)
        with suppress(Exception):  # the session may be gone, or its JVM
            self._spark.streams.removeListener(self)
        self._stack.close()

    def _at_exit(self) -> None:
        wait_for_listeners(self._spark)
        self._stack.close()

    # --- of Spark. Nothing here may raise, or wait. ----------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        self._numbers.started(str(event.id), event.name)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        query_id = str(progress.id)
        self._numbers.started(query_id, progress.name)
        try:
            sources = kafka_sources(progress)
        except OptionError as error:
            sources = []
            if str(error) not in self._told and len(self._told) < 100:
                self._told.add(str(error))
                log.warning("metrics of query %s lack its sources: %s", query_id, error)
        self._numbers.batch(query_id, sources, dict(progress.durationMs))

    def onQueryIdle(self, event: Any) -> None:
        self._numbers.idle(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:
        self._numbers.ended(str(event.id), failed=event.exception is not None)
