"""How long a transaction may stay open at most: transaction.max.timeout.ms of the brokers."""

from __future__ import annotations

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import broker_configs
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import BrokerError, ErrorCode

MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS = 900_000
"""A broker's transaction.max.timeout.ms if nobody changed it."""


def max_timeout_ms(cluster: Cluster, node_id: int, deadline: Deadline) -> int:
    """The largest transaction timeout that a broker allows; its default if this user may not see
    settings of brokers. Raises KafkaTimeoutError."""
    try:
        configs = broker_configs(cluster, node_id, [MAX_TIMEOUT_CONFIG], deadline=deadline)
    except BrokerError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return DEFAULT_MAX_TIMEOUT_MS
    return int(configs.get(MAX_TIMEOUT_CONFIG) or DEFAULT_MAX_TIMEOUT_MS)
