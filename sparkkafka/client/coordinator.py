"""The broker that looks after a consumer group or a transactional id."""

from __future__ import annotations

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metadata import Broker
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError
from sparkkafka.protocol.messages import FindCoordinatorRequest

FOR_GROUP = 0
FOR_TRANSACTION = 1

VERSION_WITH_LIST = 4  # several keys in one request (KIP-699)


def find_coordinator(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    """Node id of the coordinator of a group (FOR_GROUP) or transactional id (FOR_TRANSACTION).

    Retries until the deadline: on a new cluster the question is what creates the internal topic.
    """
    retry = cluster.retry(deadline, f"finding the coordinator of {key!r}")
    while True:
        try:
            return _ask(cluster, key, kind, deadline)
        except KafkaError as error:
            retry.after(error)


def _ask(cluster: Cluster, key: str, kind: int, deadline: Deadline) -> int:
    connection = cluster.any_connection(deadline)
    listed = connection.supports(FindCoordinatorRequest, VERSION_WITH_LIST)
    request = (
        FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        if listed
        else FindCoordinatorRequest(key_type=kind, key=key)
    )
    attempt = deadline.sooner(cluster.options.request_timeout_ms)
    version = VERSION_WITH_LIST if listed else None
    response = connection.call(request, attempt, version=version)
    where = f"FindCoordinator of {key!r}"
    if listed and not response.coordinators:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, where)
    row = response.coordinators[0] if listed else response
    if row.error_code:
        raise BrokerError(row.error_code, where, row.error_message)
    cluster.brokers.setdefault(row.node_id, Broker(row.node_id, row.host, row.port))
    return int(row.node_id)
