"""What every call of `Admin` uses: the cluster, one lock, and a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from sparkkafka.client.arguments import ClientBase
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.metrics import Metrics, NetworkMetrics
from sparkkafka.client.net.connecting import address_text
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import KafkaError


class AdminCalls(ClientBase):
    """The base of the classes that `Admin` consists of, one for each subject."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises OptionError for a setting that is missing, unknown or has a bad value."""
        self._metrics = NetworkMetrics()
        self._cluster = Cluster(parse_admin_settings(config), metrics=self._metrics)
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        servers = ",".join(
            address_text(host, port) for host, port in self._cluster.options.bootstrap_servers
        )
        return f"<Admin {servers}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Close the connections, after a call that another thread is in. May be called again."""
        with self._lock:
            self._closed = True
            self._cluster.close()

    def metrics(self) -> Metrics:
        """Return requests, bytes and connections under Kafka's names; see `Consumer.metrics`."""
        with self._metrics.lock:
            return {"admin-client-metrics": self._metrics.figures(time.monotonic())}

    @contextmanager
    def _call(self, timeout_s: float | None) -> Iterator[tuple[Cluster, Deadline]]:
        """Take the lock, so that calls of other threads wait, and yield the cluster and the call's
        deadline. Raises KafkaError if this Admin is closed."""
        with self._lock:
            if self._closed:
                raise KafkaError("this Admin is closed: make a new one")
            yield self._cluster, deadline_of(timeout_s) or self._cluster.deadline()
