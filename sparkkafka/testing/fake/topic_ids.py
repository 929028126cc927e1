"""Topic ids in place of names (KIP-516): Fetch and Produce 13, OffsetCommit and OffsetFetch 10,
TxnOffsetCommit 6.

Handlers know topics by name. These functions set the names in a request before a handler gets it,
and the ids in its response. An id that no topic has (the topic was deleted, or recreated) becomes a
name that no topic has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.wire.schema import fields
from sparkkafka.testing.fake.state import ClusterState


def set_topic_names(message: Any, state: ClusterState) -> None:
    """Set the names of topics that a request names by id, as they are at present."""
    for topic, attribute in _topics(message):
        if topic.topic_id.int:
            found = state.topic_by_id(topic.topic_id)
            setattr(topic, attribute, str(topic.topic_id) if found is None else found.name)


def set_topic_ids(response: Any, message: Any, version: int, state: ClusterState) -> None:
    """Set the ids of topics in a response, those of the request, where the version has ids. An
    unknown id is UNKNOWN_TOPIC_ID for its partitions."""
    requested = {getattr(topic, name): topic.topic_id for topic, name in _topics(message)}
    for topic, attribute in _topics(response):
        (declared,) = (row for row in fields(type(topic)) if row.name == attribute)
        if declared.exists(version):
            continue
        name = getattr(topic, attribute)
        if name in requested:
            topic.topic_id = requested[name]
        elif name in state.topics:
            topic.topic_id = state.topics[name].topic_id
        if state.topic_by_id(topic.topic_id) is None:
            rows = topic.partition_responses if hasattr(topic, "partition_responses") else ()
            for row in rows or topic.partitions:
                if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_ID


def _topics(message: Any) -> Iterator[tuple[Any, str]]:
    """Yield the topics of a message that have a name in earlier versions and an id in later ones,
    with the name's attribute."""
    for group in getattr(message, "groups", None) or ():
        yield from _topics(group)
    for field in ("topics", "topic_data", "responses"):
        for topic in getattr(message, field, None) or ():
            names = [
                row.name
                for row in (fields(type(topic)) if hasattr(topic, "topic_id") else ())
                if row.name in ("name", "topic") and row.until is not None
            ]
            if names:
                yield topic, names[0]
