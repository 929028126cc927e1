"""The topics of a write: how many partitions they have, and making those that are missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import some_topics
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError

log = logging.getLogger(__name__)

_UNAUTHORISED = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)


def partition_counts(cluster: Cluster, options: WriteOptions, names: list[str]) -> dict[str, int]:
    """{topic: number of its partitions}. With createTopic=true, missing topics are made first.

    Several tasks may try at once: that a topic is there already is what was wanted.

    Raises UnknownTopicError for topics that are missing, BrokerError for one that cannot be made.
    """
    deadline = Deadline(min(options.producer.max_block_ms, options.client.default_api_timeout_ms))
    try:
        # A new topic is unknown to some brokers for a moment, so a missing one is asked for again
        # for a while, unless this write would make it anyway.
        topics = cluster.topics(names, deadline, grace_ms=0 if options.create_topic else None)
    except UnknownTopicError as error:
        if not options.create_topic:
            raise _with_hint(error, "option createTopic=true makes missing topics") from error
        _create(cluster, options, error.topics, deadline)
        topics = cluster.topics(names, deadline)
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _create(
    cluster: Cluster, options: WriteOptions, names: Sequence[str], deadline: Deadline
) -> None:
    topics = [
        NewTopic(
            name,
            partitions=options.create_partitions or BROKER_DEFAULT,
            replication_factor=options.create_replication_factor or BROKER_DEFAULT,
            configs=dict(options.create_configs),
        )
        for name in names
    ]
    for error in create_topics(cluster, topics, deadline).errors.values():
        if not isinstance(error, BrokerError):
            raise error
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            continue
        hint = "it was to be made because of createTopic=true and the options createTopic.*"
        if error.code in _UNAUTHORISED:
            hint = "option createTopic=true was to make it: grant that, or have the topic made"
        raise _with_hint(error, hint) from error
    log.info("%s: made, or there meanwhile (createTopic=true)", some_topics(names))


def _with_hint(error: BrokerError, hint: str) -> BrokerError:
    """The same error with a sentence more."""
    words = str(error).partition(f"from {error.where}: ")[2] or str(error)
    return type(error)(error.code, error.where, f"{words}; {hint}")
