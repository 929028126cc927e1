"""Topics: create, delete, read their settings. One item's failure is that item's error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metadata import some_topics
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
)
from sparkkafka.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

BROKER_DEFAULT = -1
RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
DELETE_BY_STATE_VERSION = 6  # the request's layout changed


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
) -> None:
    """Create a topic and wait until every partition has a leader.

    Raises BrokerError TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION and so on.
    """
    create_topics(
        cluster,
        [name],
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs,
        deadline=deadline,
    )


def create_topics(
    cluster: Cluster,
    names: Sequence[str],
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
    exist_ok: bool = False,
) -> None:
    """Create topics that are alike, and wait until every partition has a leader.

    Raises BrokerError for the first that was refused; the others may be there.
    """
    deadline = deadline or cluster.deadline()
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=[
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ],
            )
            for name in names
        ],
        timeout_ms=cluster.options.request_timeout_ms,
    )
    what = f"creating {some_topics(names)}"
    response, repeated = _to_controller(cluster, request, deadline, what)
    for row in response.topics:
        # After a lost answer, "there already" is the answer that was lost.
        there = row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and (repeated or exist_ok)
        if row.error_code and not there:
            raise BrokerError(row.error_code, f"CreateTopics of {row.name}", row.error_message)
    _wait_for_leaders(cluster, names, deadline)


def delete_topic(cluster: Cluster, name: str, *, deadline: Deadline | None = None) -> None:
    """Delete a topic and wait until metadata no longer shows it.

    Raises BrokerError UNKNOWN_TOPIC_OR_PARTITION and so on, KafkaTimeoutError if it stays.
    """
    deadline = deadline or cluster.deadline()
    response, repeated = _to_controller(
        cluster,
        lambda version: (
            DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name)], timeout_ms=cluster.options.request_timeout_ms
            )
            if version >= DELETE_BY_STATE_VERSION
            else DeleteTopicsRequest(
                topic_names=[name], timeout_ms=cluster.options.request_timeout_ms
            )
        ),
        deadline,
        f"deleting topic {name}",
        request_type=DeleteTopicsRequest,
    )
    for row in response.responses:
        gone = repeated and row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if row.error_code and not gone:
            raise BrokerError(row.error_code, f"DeleteTopics of {name}")
    while name in cluster.all_topics(deadline):
        if deadline.expired:
            raise KafkaTimeoutError(
                f"topic {name} is marked for deletion, and still there after "
                f"{deadline.total_ms / 1000:g} s"
            )
        deadline.pause(50)


def topic_configs(
    cluster: Cluster,
    name: str,
    keys: Iterable[str] | None = None,
    *,
    deadline: Deadline | None = None,
) -> dict[str, str | None]:
    """A topic's settings, all or only `keys`; sensitive ones are None. Raises BrokerError."""
    return _configs(cluster, RESOURCE_TOPIC, name, keys, deadline, what=f"topic {name}")


def broker_configs(
    cluster: Cluster,
    node_id: int,
    keys: Iterable[str] | None = None,
    *,
    deadline: Deadline | None = None,
) -> dict[str, str | None]:
    """A broker's settings, all or only `keys`; sensitive ones are None. Raises BrokerError."""
    what = f"broker {node_id}"
    return _configs(
        cluster, RESOURCE_BROKER, str(node_id), keys, deadline, what=what, node_id=node_id
    )


def _configs(
    cluster: Cluster,
    kind: int,
    name: str,
    keys: Iterable[str] | None,
    deadline: Deadline | None,
    *,
    what: str,
    node_id: int | None = None,
) -> dict[str, str | None]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if keys is None else list(keys),
            )
        ]
    )
    response = cluster.call(request, node_id=node_id, deadline=deadline, what=f"settings of {what}")
    found: dict[str, str | None] = {}
    for row in response.results:
        if row.error_code:
            raise BrokerError(row.error_code, f"DescribeConfigs of {what}", row.error_message)
        found.update({config.name: config.value for config in row.configs})
    return found


def _to_controller(
    cluster: Cluster,
    request: Any,
    deadline: Deadline,
    what: str,
    *,
    request_type: Any = None,
) -> tuple[Any, bool]:
    """Send to the controller, found anew when it moved. `request` may depend on the version.

    Returns the answer, and whether an earlier attempt may have been carried out unanswered.
    """
    repeated = False
    retry = cluster.retry(deadline, what)
    while True:
        try:
            attempt = deadline.sooner(cluster.options.request_timeout_ms)
            connection = cluster.connection(cluster.controller(deadline), attempt)
            if request_type is None:
                return _checked(cluster, connection.call(request, attempt)), repeated
            version = connection.choose(request_type)
            answer = connection.call(request(version), attempt, version=version)
            return _checked(cluster, answer), repeated
        except KafkaError as error:
            retry.after(error)
            repeated = repeated or not isinstance(error, BrokerError)
            cluster.controller_id = None


def _checked(cluster: Cluster, response: Any) -> Any:
    """Turn NOT_CONTROLLER, in whichever row it stands, into an error that is tried again."""
    rows = getattr(response, "topics", None) or getattr(response, "responses", None) or ()
    for row in rows:
        if row.error_code == ErrorCode.NOT_CONTROLLER:
            raise BrokerError(row.error_code, f"broker {cluster.controller_id}")
    return response


def _wait_for_leaders(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> None:
    """A topic is created before its partitions have leaders, and brokers learn of it in turn."""
    what = some_topics(names)
    retry = cluster.retry(deadline, f"waiting for the leaders of {what}")
    while True:
        try:
            found = cluster.topics(names, deadline).values()
            rows = [row for topic in found for row in topic.partitions.values()]
            if rows and all(row.leader in cluster.brokers for row in rows):
                return
            error: KafkaError = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"Metadata of {what}")
        except UnknownTopicError as unknown:
            error = BrokerError(unknown.code, unknown.where)
        retry.after(error)
