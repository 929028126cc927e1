"""The broker that looks after a consumer group or a transactional id, and requests to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster, throttle
from sparkkafka.client.deadline import Backoff, Deadline, Retry
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.pool import closed_if_interrupted
from sparkkafka.client.values import Broker
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)
from sparkkafka.protocol.messages import FindCoordinatorRequest

log = logging.getLogger(__name__)

FOR_GROUP = 0
FOR_TRANSACTION = 1

VERSION_WITH_LIST = 4  # several keys in one request (KIP-699)

BUSY_BACKOFF_MS = 20
"""First wait after CONCURRENT_TRANSACTIONS and the like: markers take a few milliseconds (Java's
TransactionManager waits as long)."""


def find_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """Node id of the coordinator of a group (FOR_GROUP) or transactional id (FOR_TRANSACTION).

    Retries until the deadline: on a new cluster the question is what creates the internal topic.
    """
    return find_coordinators(cluster, [key], kind, deadline)[key]


def find_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> dict[str, int]:
    """`find_coordinator` for several keys at once. Raises if one of them cannot be told."""
    pending = list(keys)
    nodes: dict[str, int] = {}
    some = ", ".join(repr(key) for key in pending[:3]) + (", …" if len(pending) > 3 else "")
    retry = cluster.retry(deadline, f"finding the coordinator of {some}")
    while pending:
        try:
            found = ask_coordinators(cluster, pending, kind, deadline)
            nodes.update((key, node) for key, node in found.items() if isinstance(node, int))
            pending = [key for key in pending if key not in nodes]
            if pending:
                # One that does not pass, if there is any.
                raise min(
                    (error for error in found.values() if isinstance(error, KafkaError)),
                    key=lambda error: error.retriable,
                )
        except KafkaError as error:
            retry.after(error)
    return nodes


def ask_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """`find_coordinator` with one attempt: raises why it was not told."""
    found = ask_coordinators(cluster, [key], kind, deadline)[key]
    if isinstance(found, KafkaError):
        raise found
    return found


def known_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> dict[str, int]:
    """`find_coordinators`, without asking for those that the cluster has told before."""
    known = {key: cluster.coordinators.get((kind, key)) for key in keys}
    unknown = [key for key, node in known.items() if node is None]
    asked = find_coordinators(cluster, unknown, kind, deadline) if unknown else {}
    return asked | {key: node for key, node in known.items() if node is not None}


def forget_coordinators(cluster: Cluster, keys: Iterable[str], kind: int) -> None:
    """After a failure: the next request asks who it is."""
    for key in keys:
        cluster.coordinators.pop((kind, key), None)


def learn_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> None:
    """Ask for several at once what requests that follow would ask one after the other.

    One attempt, and no error: whoever needs one that was not told asks again, and says why not.
    """
    try:
        ask_coordinators(cluster, keys, kind, deadline)
    except KafkaError as error:
        log.info("coordinators are not known yet: %s", error)


def call_coordinators(
    cluster: Cluster,
    requests: Mapping[str, Any],
    kind: int,
    deadline: Deadline,
    what: str,
    *,
    code_of: Callable[[Any], int] = lambda response: response.error_code,
    version: int | None = None,
    on_retry: Callable[[KafkaError], None] = lambda error: None,
) -> dict[str, Any | KafkaError]:
    """Send each key's request to the coordinator of that key, all at once, until it is answered.

    Failures that may pass are retried until the deadline, so each request must be one that may be
    repeated. The value is the response, or the KafkaError that is final for this key:
    KafkaTimeoutError, with the last failure in its message, if the deadline passed. `code_of` finds
    the error code of a response, `version` is that of the request (None: the highest usual one),
    and `on_retry` hears of each failure that is retried.
    """
    outcome: dict[str, Any | KafkaError] = {}
    pending = dict(requests)
    deadline = deadline.until(cluster.close_signal)
    backoff = Backoff(BUSY_BACKOFF_MS, cluster.options.retry_backoff_max_ms)
    retry = Retry(deadline, backoff, what)
    while pending:
        failed = _attempt(cluster, pending, kind, deadline, code_of, outcome, version)
        for key in list(pending):
            if key in outcome:
                del pending[key]
        passing: dict[str, KafkaError] = {}
        for key, error in failed.items():
            if error.retriable:
                on_retry(error)
                passing[key] = error
            else:
                outcome[key] = error
                del pending[key]
        if not passing:
            continue
        try:
            retry.after(next(iter(passing.values())))
        except KafkaTimeoutError:
            for key, error in passing.items():
                late = KafkaTimeoutError(
                    f"{what}: gave up after {deadline.total_ms / 1000:g} s; the last failure: "
                    f"{error}"
                )
                late.__cause__ = error
                outcome[key] = late
            return outcome
    return outcome


def _attempt(
    cluster: Cluster,
    requests: Mapping[str, Any],
    kind: int,
    deadline: Deadline,
    code_of: Callable[[Any], int],
    outcome: dict[str, Any | KafkaError],
    version: int | None = None,
) -> dict[str, KafkaError]:
    """One attempt for each key: answers go to `outcome`; what failed is returned.

    Coordinators that the cluster has told before are not asked for; those that turn out wrong are
    forgotten.
    """
    failed: dict[str, KafkaError] = {}
    nodes = cluster.coordinators
    unknown = [key for key in requests if (kind, key) not in nodes]
    if unknown:
        try:
            found = ask_coordinators(cluster, unknown, kind, deadline)
        except KafkaError as error:
            found = dict.fromkeys(unknown, error)
        failed = {key: node for key, node in found.items() if isinstance(node, KafkaError)}
    attempt = deadline.sooner(cluster.options.request_timeout_ms)
    sent: list[tuple[str, Connection]] = []
    with closed_if_interrupted(lambda: [connection for _, connection in sent]):
        for key, request in requests.items():
            if key in failed:
                continue
            try:
                connection = cluster.connection(nodes[kind, key], attempt)
                connection.send(request, attempt, version=version)
            except KafkaError as error:
                failed[key] = error
                nodes.pop((kind, key), None)
            else:
                sent.append((key, connection))
        for key, connection in sent:
            try:
                if not connection.is_open:  # broken by an earlier answer that did not come
                    raise KafkaConnectionError(f"{connection}: the connection broke")
                response = connection.receive(attempt)[1]
                throttle(response, deadline)
                code = code_of(response)
                if code:
                    where = f"{requests[key].API_NAME} of {key!r} @ {connection}"
                    raise BrokerError(code, where, getattr(response, "error_message", None))
                outcome[key] = response
            except KafkaError as error:
                failed[key] = error
                if getattr(error, "code", None) != ErrorCode.CONCURRENT_TRANSACTIONS:
                    nodes.pop((kind, key), None)
    return failed


def ask_coordinators(
    cluster: Cluster, keys: Iterable[str], kind: int, deadline: Deadline
) -> dict[str, int | KafkaError]:
    """Each key's coordinator, or why it was not told. One attempt; the cluster keeps what it was
    told."""
    connection = cluster.any_connection(deadline)
    attempt = deadline.sooner(cluster.options.request_timeout_ms)
    found: dict[str, int | KafkaError] = {}
    if connection.supports(FindCoordinatorRequest, VERSION_WITH_LIST):
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        response = connection.call(request, attempt, version=VERSION_WITH_LIST)
        rows = {row.key: row for row in response.coordinators}
    else:
        rows = {
            key: connection.call(FindCoordinatorRequest(key_type=kind, key=key), attempt)
            for key in keys
        }
    for key in keys:
        where = f"FindCoordinator of {key!r}"
        row = rows.get(key)
        if row is None:
            found[key] = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, where)
        elif row.error_code:
            found[key] = BrokerError(row.error_code, where, row.error_message)
        else:
            known = cluster.brokers.get(row.node_id)
            if known is None or known[1:3] != (row.host, row.port):
                cluster.brokers[row.node_id] = Broker(row.node_id, row.host, row.port)
            found[key] = cluster.coordinators[kind, key] = int(row.node_id)
    return found
