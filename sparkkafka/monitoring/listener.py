"""`metrics`: what feeds the aggregator, and the exporters of its values.

Values come from Spark's progress (`QueryMetrics`, a listener of the session's streaming queries),
from the reports of the driver's processes and the tasks (`Receiver`), and from lookups at the
brokers (`Lookups`).
"""

from __future__ import annotations

import atexit
import ipaddress
import logging
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.transactions import ONGOING
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import AgeReader, list_lags
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.config.client_settings import ADMIN_ROWS, CONSUMER_ROWS
from sparkkafka.config.kinds import MetricsAddress
from sparkkafka.config.option_table import Option, Status
from sparkkafka.config.options import parse_group_options
from sparkkafka.config.security.references import PROVIDERS_OPTION
from sparkkafka.errors import KafkaError, OptionError, UnsupportedVersionError, needs_extra
from sparkkafka.monitoring.aggregator import MetricAggregator, Sample
from sparkkafka.spark.decision_text import WriterNames
from sparkkafka.spark.metric_reports import MAC_BYTES, MAX_BYTES, BadReportError, parse_report
from sparkkafka.spark.stream.group_committer import wait_for_listeners
from sparkkafka.spark.stream.progress import kafka_sources

log = logging.getLogger(__name__)

MAX_LOOKUP_S: Final = 10.0
"""Maximum time of one lookup for each query."""


def _client_settings(options: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    """Return the settings for a client in a stream's options: those of kafka.* that the client
    knows (`known`, by name) and uses."""
    settings = {}
    for name, value in options.items():
        prefix, _, key = name.lower().partition(".")
        is_used = key in known and known[key].status is Status.USED
        if prefix == "kafka" and (is_used or key.startswith(PROVIDERS_OPTION)):
            settings[key] = value
    return settings


def _warn_once(warned: set[str], text: str) -> None:
    """Log a warning, unless the same one is in `warned`, the first hundred that were logged."""
    if text not in warned and len(warned) < 100:
        warned.add(text)
        log.warning("metrics: %s", text)


class Lookups(threading.Thread):
    """Looks up at the brokers in a thread, every `every_s` seconds until it is closed: current lags
    (also of a query that hangs), their ages, and open transactions.

    `options` are those of a stream. Raises OptionError.
    """

    def __init__(
        self, aggregator: MetricAggregator, options: Mapping[str, Any], every_s: float
    ) -> None:
        super().__init__(name="sparkkafka-metrics-lookups", daemon=True)
        parse_group_options(options)  # raises OptionError for misspelt names
        self._aggregator = aggregator
        self._every_s = every_s
        self._admin = Admin(_client_settings(options, ADMIN_ROWS))
        self._age_reader = AgeReader(_client_settings(options, CONSUMER_ROWS))
        self._warned: set[str] = set()
        self._closing = threading.Event()
        self.start()

    def close(self) -> None:
        """End the thread, and wait for at most MAX_LOOKUP_S until it has."""
        self._closing.set()
        self.join(MAX_LOOKUP_S)
        self._admin.close()

    def run(self) -> None:
        """Look up lags and transactions every `every_s` seconds until `close`."""
        try:
            while not self._closing.wait(self._every_s):
                try:
                    self.look_up()
                except Exception as error:  # the thread must survive any error
                    self._count_failure("lags and transactions", error)
        finally:
            self._age_reader.close()

    def look_up(self) -> None:
        """Look up lags and transactions once. Failures are counted, and logged once each."""
        queries = self._aggregator.running_queries()
        for query_id, (read, _) in queries.items():
            if read and not self._closing.is_set():
                self._look_up_lags(query_id, read)
        prefixes = {query_id: prefix for query_id, (_, prefix) in queries.items()}
        if prefixes and not self._closing.is_set():
            self._look_up_transactions(prefixes)

    def _look_up_lags(self, query_id: str, read: Offsets) -> None:
        """Set a query's lags and their ages. `read`: the offsets up to which it has read."""
        deadline = Deadline(MAX_LOOKUP_S * 1000)
        lags: Offsets = {}
        ages_s: dict[TopicPartition, float] = {}
        try:
            partition_lags = list_lags(self._admin, read, timeout_s=MAX_LOOKUP_S)
            lags = {row.partition: row.lag for row in partition_lags if row.lag is not None}
            aged = self._age_reader.add_ages(partition_lags, deadline)
            ages_s = {row.partition: row.behind_s for row in aged if row.behind_s is not None}
        except KafkaError as error:
            self._count_failure("lags", error)
        self._aggregator.set_lags(query_id, lags, ages_s)

    def _look_up_transactions(self, prefixes: Mapping[str, str]) -> None:
        """Set the start of each query's oldest open transaction. `prefixes`: those of the queries'
        transactional ids, by query id."""
        oldest: dict[str, float] = {}
        try:
            open_ids = self._admin.list_transactions(states=[ONGOING], timeout_s=MAX_LOOKUP_S)
            owners = {
                row.transactional_id: query_id
                for row in open_ids
                for query_id, prefix in prefixes.items()
                if WriterNames(prefix, "").is_of_query(row.transactional_id)
            }
            states = self._admin.describe_transactions(list(owners), timeout_s=MAX_LOOKUP_S)
            for tid, state in states.values_by_item.items():
                if state.is_open and state.started_ms is not None:
                    owner, started_at_s = owners[tid], state.started_ms / 1000
                    oldest[owner] = min(started_at_s, oldest.get(owner, started_at_s))
        except UnsupportedVersionError as error:  # before Kafka 3.0
            _warn_once(self._warned, f"the oldest open transaction is not known: {error}")
        except KafkaError as error:
            self._count_failure("transactions", error)
        for query_id in prefixes:
            self._aggregator.set_oldest_transaction(query_id, oldest.get(query_id))

    def _count_failure(self, what: str, error: Exception) -> None:
        """Count a failed lookup, and log it once."""
        self._aggregator.count_lookup_failure()
        _warn_once(self._warned, f"{what} were not looked up: {error}")


WAIT_S: Final = 0.5
"""Maximum time until the receiver's thread notices `close`."""


class Receiver(threading.Thread):
    """Receives reports by UDP until it is closed. `address` is the value for `metricsAddress`.

    `host` is an address or a name of this machine. Raises OptionError.
    """

    def __init__(self, aggregator: MetricAggregator, host: str, port: int) -> None:
        super().__init__(name="sparkkafka-metrics-reports", daemon=True)
        self._aggregator = aggregator
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            raise OptionError(
                f"reports_host={host!r} is not an address of this machine: {error}"
            ) from None
        try:
            # Many reports may come at the same time. The system may grant less than this.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            self._socket.settimeout(WAIT_S)
            self._socket.bind(address)
            bound = self._socket.getsockname()
            if ipaddress.ip_address(bound[0]).is_unspecified:
                raise OSError("executors send to it, and it is not an address of a machine")
        except OSError as error:
            self._socket.close()
            raise OptionError(
                f"metrics cannot listen on reports_host={host!r} reports_port={port}: {error}. It "
                "is an address of this machine that the executors reach"
            ) from None
        self.address = MetricsAddress(bound[0], bound[1], os.urandom(16))
        self._seen: OrderedDict[bytes, None] = OrderedDict()  # the hashes of the last datagrams
        self._closing = threading.Event()
        self.start()

    def close(self) -> None:
        self._closing.set()
        self.join(4 * WAIT_S)
        self._socket.close()

    def run(self) -> None:
        """Receive datagrams until `close`."""
        while not self._closing.is_set():
            try:
                datagram = self._socket.recv(2 * MAX_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing.is_set():
                    log.warning("reports for metrics are no longer received: %s", error)
                return
            self.receive_datagram(datagram)

    def receive_datagram(self, datagram: bytes) -> None:
        """Add the datagram's report to the values. An invalid or repeated datagram is dropped, and
        counted as that."""
        try:
            report = parse_report(datagram, self.address.key)
        except BadReportError as error:
            self._aggregator.count_dropped(str(error))
            return
        mac = datagram[:MAC_BYTES]  # no two datagrams have the same, since each has random bytes
        if mac in self._seen:
            self._aggregator.count_dropped("repeated")
            return
        self._seen[mac] = None
        if len(self._seen) > 10_000:  # datagrams are repeated soon, if at all
            self._seen.popitem(last=False)
        self._aggregator.add_report(report)


if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql import SparkSession


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

    With `options`, those of a stream (kafka.bootstrap.servers, …), lags and open transactions are
    looked up at the brokers every `every_s` seconds.

    Exporters, which may be combined:

    - `prometheus_port` serves http://`prometheus_host`:port/metrics; 0 takes a free port (extra
      prometheus).
    - `pushgateway` is the address of a Pushgateway. Metrics are pushed to it under `job` every
      `every_s` seconds and at the end (extra prometheus).
    - `otel` is a MeterProvider, or "default" for the global one (extra otel).

    `partitions` adds the label partition. Reports of the driver's processes and the tasks are
    received by UDP at `reports_host` and `reports_port`, an address of this machine that the
    executors reach. Pass the result's `options` to reads and writes, so that they send reports. A
    query that has ended is exported for `forget_s` seconds.

    Raises OptionError, and ImportError for an extra that is not installed.
    """
    for name, seconds in (("every_s", every_s), ("forget_s", forget_s)):
        if not 0 < seconds < 1e9:
            raise OptionError(f"{name} is a number of seconds above 0, got {seconds!r}")
    for name, number in (("prometheus_port", prometheus_port), ("reports_port", reports_port)):
        # The system would use the last 16 bits of a larger number.
        if number is not None and (type(number) is not int or not 0 <= number <= 65535):
            raise OptionError(f"{name} is a whole number from 0 to 65535, got {number!r}")
    aggregator = MetricAggregator(partitions=partitions, forget_s=forget_s)
    served_port = None
    with ExitStack() as stack:
        # In this order, so that exporters are closed last and export all that was received.
        if prometheus_port is not None or pushgateway is not None:
            argument = "prometheus_port" if pushgateway is None else "pushgateway"
            needs = f"sparkkafka.metrics({argument}=…) needs prometheus-client, which is not here"
            with needs_extra(needs, "prometheus", "prometheus_client"):
                from sparkkafka.monitoring import prometheus
            if prometheus_port is not None:
                server = prometheus.ScrapePort(aggregator, prometheus_host, prometheus_port)
                stack.callback(server.close)
                served_port = server.port
            if pushgateway is not None:
                pusher = prometheus.Pusher(aggregator, pushgateway, job, every_s)
                stack.callback(pusher.close)
        if otel is not None:
            needs = "sparkkafka.metrics(otel=…) needs opentelemetry-sdk, which is not here"
            with needs_extra(needs, "otel", "opentelemetry"):
                from sparkkafka.monitoring.otel import Instruments
            if isinstance(otel, str) and otel != "default":
                raise OptionError(f"otel is a MeterProvider or 'default', got {otel!r}")
            provider = None if isinstance(otel, str) else otel
            stack.callback(Instruments(aggregator, provider).close)
        receiver = Receiver(aggregator, reports_host, reports_port)
        stack.callback(receiver.close)
        if options is not None:
            stack.callback(Lookups(aggregator, options, every_s).close)
        listener = QueryMetrics(spark, aggregator, receiver.address.text, served_port)
        spark.streams.addListener(listener)
        listener._exporters = stack.pop_all()
    atexit.register(listener._at_exit)
    return listener


class QueryMetrics(StreamingQueryListener):
    """The result of `metrics`. `options` are for reads and writes: they have `metricsAddress`.
    `prometheus_port` is the served port, None without one."""

    def __init__(
        self, spark: SparkSession, aggregator: MetricAggregator, address: str, port: int | None
    ) -> None:
        self._spark = spark
        self._aggregator = aggregator
        self._exporters = ExitStack()
        self._warned: set[str] = set()
        self.options: dict[str, str] = {"metricsAddress": address}
        self.prometheus_port = port

    def __repr__(self) -> str:
        return f"QueryMetrics(prometheus_port={self.prometheus_port})"

    def samples(self) -> list[Sample]:
        """Return the current values (metric, labels, value), for your own exporters."""
        return self._aggregator.samples()

    def close(self) -> None:
        """Stop listening and exporting; a Pushgateway gets the last values. May be repeated."""
        atexit.unregister(self._at_exit)
        with suppress(Exception):  # the session may be gone, or its JVM
            self._spark.streams.removeListener(self)
        self._exporters.close()

    def _at_exit(self) -> None:
        wait_for_listeners(self._spark)
        self._exporters.close()

    # --- called by Spark: these must neither raise nor wait --------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        self._aggregator.query_started(str(event.id), event.name)

    def onQueryProgress(self, event: Any) -> None:
        """Count a micro-batch, as Spark's listener interface calls it."""
        progress = event.progress
        query_id = str(progress.id)
        self._aggregator.query_started(query_id, progress.name)
        try:
            sources = kafka_sources(progress)
        except OptionError as error:
            sources = []
            _warn_once(self._warned, f"those of query {query_id} lack its sources: {error}")
        self._aggregator.add_batch(query_id, sources, dict(progress.durationMs))

    def onQueryIdle(self, event: Any) -> None:
        self._aggregator.query_idle(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:
        self._aggregator.query_ended(str(event.id), failed=event.exception is not None)
