"""What only the brokers know: lags of now, also of a query that hangs, their age, and transactions
that are not decided. Asked for every so often, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.open_transactions import ONGOING
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import AgeReader, list_lags
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ADMIN_ROWS, CONSUMER_ROWS
from sparkkafka.config.option_table import Option, Status
from sparkkafka.config.options import parse_group_options
from sparkkafka.config.security.references import PROVIDERS_OPTION
from sparkkafka.errors import KafkaError, UnsupportedVersionError
from sparkkafka.monitoring.numbers import Numbers
from sparkkafka.spark.exactly_once.decision_text import WriterNames

log = logging.getLogger(__name__)

LIMIT_S: Final = 10.0
"""How long one round may take for each query."""
_PREFIX: Final = "kafka."


def _settings(options: Mapping[str, Any], rows: Mapping[str, Option]) -> dict[str, Any]:
    """The settings of a client with these rows, of what a stream has with the prefix."""
    found = {}
    for name, value in options.items():
        key = name.lower().removeprefix(_PREFIX)
        used = key in rows and rows[key].status is Status.USED
        if name.lower().startswith(_PREFIX) and (used or key.startswith(PROVIDERS_OPTION)):
            found[key] = value
    return found


class Lookups:
    """`options` are those of a stream. To be closed. Raises OptionError."""

    def __init__(self, numbers: Numbers, options: Mapping[str, Any], every_s: float) -> None:
        parse_group_options(options)  # so that a misspelt name is an error
        self._numbers = numbers
        self._every_s = every_s
        self._admin = Admin(_settings(options, ADMIN_ROWS))
        self._ages = AgeReader(_settings(options, CONSUMER_ROWS))
        self._told: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="sparkkafka-metrics-lookups", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(LIMIT_S)
        self._admin.close()

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._every_s):
                try:
                    self.look()
                except Exception as error:  # this thread goes on, whatever it is
                    self._failed("lags and transactions", error)
        finally:
            self._ages.close()

    def look(self) -> None:
        """One round. Failures are logged, once each, and counted."""
        queries = self._numbers.active()
        for query_id, (read, _) in queries.items():
            if read and not self._closing.is_set():
                self._lag(query_id, read)
        prefixes = {query_id: prefix for query_id, (_, prefix) in queries.items()}
        if prefixes and not self._closing.is_set():
            self._transactions(prefixes)

    def _lag(self, query_id: str, read: Mapping[TopicPartition, int]) -> None:
        deadline = Deadline(LIMIT_S * 1000)
        lags: dict[TopicPartition, int] = {}
        ages_s: dict[TopicPartition, float] = {}
        try:
            rows = list_lags(self._admin, read, timeout_s=LIMIT_S)
            lags = {row.partition: row.lag for row in rows if row.lag is not None}
            aged = self._ages.add_ages(rows, deadline)
            ages_s = {row.partition: row.behind_s for row in aged if row.behind_s is not None}
        except KafkaError as error:
            self._failed("lags", error)
        self._numbers.looked_up(query_id, lags, ages_s)

    def _transactions(self, prefixes: Mapping[str, str]) -> None:
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
            for key, state in states.values_by_item.items():
                if state.is_open and state.started_ms is not None:
                    owner, started_s = owners[key], state.started_ms / 1000
                    oldest[owner] = min(started_s, oldest.get(owner, started_s))
        except UnsupportedVersionError as error:  # before Kafka 3.0
            self._tell(f"the oldest open transaction is not known: {error}")
        except KafkaError as error:
            self._failed("transactions", error)
        for query_id in prefixes:
            self._numbers.oldest_transaction(query_id, oldest.get(query_id))

    def _failed(self, what: str, error: Exception) -> None:
        self._numbers.lookup_failed()
        self._tell(f"{what} were not looked up: {error}")

    def _tell(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            log.warning("metrics: %s", text)
