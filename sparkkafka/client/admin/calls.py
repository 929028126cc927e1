"""The base of Admin's calls: the cluster, one lock, and a deadline for each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from sparkkafka.client.arguments import ClientBase
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    ApiHandler,
    K,
    Lookup,
    Outcome,
    Outcomes,
    ToAny,
    ToController,
    V,
)
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.metrics import Metrics, NetworkMetrics
from sparkkafka.client.values import Results
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.config.kinds import address_text
from sparkkafka.errors import KafkaError

T = TypeVar("T")


class _OneRequest(ApiHandler[str, T]):
    """One request, whose response the function `read` reads. Its only item is the text that names
    the operation in errors."""

    def __init__(
        self, request: Any, read: Callable[[Any], T], acl: str, versions: Mapping[str, int]
    ) -> None:
        self.request_type = type(request)  # type: ignore[misc]  # of this handler only
        self.acl = acl  # type: ignore[misc]
        self._request = request
        self._read = read
        self._versions = versions

    def needed_versions(self, item: str) -> Mapping[str, int]:
        return self._versions

    def build(self, items: Sequence[str], version: int) -> Any:
        return self._request

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        return [(items[0], Outcome(0, self._read(response)))]


def call_one(
    cluster: Cluster,
    what: str,
    request: Any,
    read: Callable[[Any], T],
    deadline: Deadline,
    *,
    acl: str = "",
    versions: Mapping[str, int] | None = None,
    to_controller: bool = False,
) -> T:
    """Send one request to any broker or to the controller, and return what the function `read`
    returns for the response.

    Raises the errors of `Lookup.call_all`. `what` names the operation in errors, `acl` the ACL to
    grant; `versions` has what `ApiHandler.needed_versions` returns.
    """
    handler = _OneRequest(request, read, acl, versions or {})
    lookup = ToController(cluster) if to_controller else ToAny(cluster)
    return lookup.call_all([what], handler, deadline, what)[what]


class AdminCalls(ClientBase):
    """The base of the classes that `Admin` consists of, one for each subject."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises OptionError for a setting that is missing, unknown or has a bad value."""
        self._metrics = NetworkMetrics()
        self._cluster = Cluster(parse_admin_settings(config), metrics=self._metrics)
        self._lock = threading.RLock()  # a call may make another one
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
        """Close the connections. If another thread is inside a call, wait for its end. May be
        called again."""
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

    def _one(
        self,
        what: str,
        request: Any,
        read: Callable[[Any], T],
        timeout_s: float | None,
        **options: Any,
    ) -> T:
        """Send one request by `call_one`, which takes the `options`, within the call's timeout."""
        with self._call(timeout_s) as (cluster, deadline):
            return call_one(cluster, what, request, read, deadline, **options)

    def _each(
        self,
        items: Iterable[K],
        handler: ApiHandler[K, V],
        lookup: Lookup,
        what: str,
        timeout_s: float | None,
    ) -> Results[K, V]:
        """Send the request about each item by `Lookup.call_each`, within the call's timeout."""
        with self._call(timeout_s) as (_, deadline):
            return lookup.call_each(items, handler, deadline, what)
