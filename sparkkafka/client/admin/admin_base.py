"""What all parts of Admin share: the cluster, the lock, the deadline of a call."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import KafkaError


class AdminBase:
    """Holds the connections. One call at a time: those of other threads wait for their turn."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._cluster = Cluster(parse_admin_settings(config))
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def _call(self, timeout_s: float | None) -> Iterator[tuple[Cluster, Deadline]]:
        with self._lock:
            if self._closed:
                raise KafkaError("this Admin is closed: make a new one")
            yield self._cluster, self._deadline(timeout_s)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return deadline_of(timeout_s) or self._cluster.deadline()

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            self._cluster.close()
