"""Periodic lookups at the brokers, in their own thread: current lags (also of a query that hangs),
their ages, and open transactions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.transactions import ONGOING
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import AgeReader, list_lags
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.config.client_settings import ADMIN_ROWS, CONSUMER_ROWS
from sparkkafka.config.option_table import Option, Status
from sparkkafka.config.options import parse_group_options
from sparkkafka.config.security.references import PROVIDERS_OPTION
from sparkkafka.errors import KafkaError, UnsupportedVersionError
from sparkkafka.monitoring.aggregator import MetricAggregator
from sparkkafka.spark.decision_text import WriterNames

log = logging.getLogger(__name__)

LIMIT_S: Final = 10.0
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


class Lookups:
    """Looks up lags and transactions every `every_s` seconds in a thread, until it is closed.
    `options` are those of a stream. Raises OptionError."""

    def __init__(
        self, aggregator: MetricAggregator, options: Mapping[str, Any], every_s: float
    ) -> None:
        parse_group_options(options)  # raises OptionError for misspelt names
        self._aggregator = aggregator
        self._every_s = every_s
        self._admin = Admin(_client_settings(options, ADMIN_ROWS))
        self._age_reader = AgeReader(_client_settings(options, CONSUMER_ROWS))
        self._warned: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._look_up_until_closed, name="sparkkafka-metrics-lookups", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for at most LIMIT_S until it has."""
        self._closing.set()
        self._thread.join(LIMIT_S)
        self._admin.close()

    def _look_up_until_closed(self) -> None:
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
        deadline = Deadline(LIMIT_S * 1000)
        lags: Offsets = {}
        ages_s: dict[TopicPartition, float] = {}
        try:
            partition_lags = list_lags(self._admin, read, timeout_s=LIMIT_S)
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
            open_ids = self._admin.list_transactions(states=[ONGOING], timeout_s=LIMIT_S)
            owners = {
                row.transactional_id: query_id
                for row in open_ids
                for query_id, prefix in prefixes.items()
                if WriterNames(prefix, "").is_of_query(row.transactional_id)
            }
            states = self._admin.describe_transactions(list(owners), timeout_s=LIMIT_S)
            for tid, state in states.values_by_item.items():
                if state.is_open and state.started_ms is not None:
                    owner, started_at_s = owners[tid], state.started_ms / 1000
                    oldest[owner] = min(started_at_s, oldest.get(owner, started_at_s))
        except UnsupportedVersionError as error:  # before Kafka 3.0
            self._warn_once(f"the oldest open transaction is not known: {error}")
        except KafkaError as error:
            self._count_failure("transactions", error)
        for query_id in prefixes:
            self._aggregator.set_oldest_transaction(query_id, oldest.get(query_id))

    def _count_failure(self, what: str, error: Exception) -> None:
        """Count a failed lookup, and log it once."""
        self._aggregator.count_lookup_failure()
        self._warn_once(f"{what} were not looked up: {error}")

    def _warn_once(self, text: str) -> None:
        """Log a warning, unless the same one was logged before."""
        if text not in self._warned and len(self._warned) < 100:
            self._warned.add(text)
            log.warning("metrics: %s", text)
