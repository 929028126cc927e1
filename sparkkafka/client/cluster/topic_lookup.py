"""Looks up the topics and leaders of many partitions: one request at a time, errors by topic.

Unlike `Cluster.topics` it never waits for one topic while other partitions can be read or written.
`MissingTopicsLookup` does it for the topics of a subscription.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from sparkkafka.client.cluster.metadata import (
    NOT_CREATED,
    missing_topics_text,
    no_leader_error,
    unknown_partition_error,
)
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.values import TopicPartition, some_topics
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, UnknownTopicError, is_retriable

log = logging.getLogger(__name__)

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

MAX_LOOKUP_MS = 6_000  # the longest lookup, when brokers do not answer

MISSING_TOPICS_LOOKUP_S = 30.0
"""The time between lookups of subscribed topics that do not exist, each with a warning."""

TOPIC_CREATION_S = 1.0
"""The time until the second lookup of subscribed topics, if the first one creates them."""


@dataclass(slots=True)
class _MissingTopic:
    """A topic without metadata since `since_s`, because of `error`; its next lookup is due at
    `due_at_s` (both monotonic)."""

    backoff: Backoff
    since_s: float
    due_at_s: float = 0.0
    error: KafkaError | None = None
    is_warned: bool = False


class Leaderless(Protocol):
    """A partition that waits for its leader, in a producer or consumer."""

    tp: TopicPartition

    def back_off(self, error: KafkaError) -> None:
        """Delay the next lookup, longer each time; `error` is the reason."""


LeaderlessT = TypeVar("LeaderlessT", bound=Leaderless)


class TopicLookup:
    """Looks up topics that `cluster` does not know, until it is sure that they are missing.

    A lookup takes at most `max_ms`, MAX_LOOKUP_MS and request.timeout.ms; a topic may stay unknown
    for at most `grace_ms`.
    """

    def __init__(
        self, cluster: Cluster, max_ms: float = MAX_LOOKUP_MS, grace_ms: float = math.inf
    ) -> None:
        self._grace_ms = grace_ms
        self._lookup_ms = min(cluster.options.request_timeout_ms, MAX_LOOKUP_MS, max_ms)
        self._cluster = cluster
        self._missing: dict[str, _MissingTopic] = {}
        self._missing_partitions_since_s: dict[TopicPartition, float] = {}
        """Partitions that their topics do not have, and since when (monotonic)."""

    def request_metadata(
        self, names: Iterable[str], within_ms: float = math.inf
    ) -> dict[str, KafkaError]:
        """Request the metadata of the topics whose lookup is due, in one request of at most
        `within_ms`. Return the topics with a final error.

        That is UnknownTopicError for a topic that stays unknown for as long as
        `Cluster.believed_missing` says, BrokerError for an error that does not pass (not
        authorised).
        """
        now_s = time.monotonic()
        due = []
        for name, since_s in self._cluster.unknown_since_s(names, now_s).items():
            backoff = self._cluster.backoff()
            if self._missing.setdefault(name, _MissingTopic(backoff, since_s)).due_at_s <= now_s:
                due.append(name)
        if not due:
            return {}
        deadline = Deadline(min(self._lookup_ms, within_ms))
        try:
            # Once: between two attempts the caller has batches to expire.
            failed = self._cluster.request_metadata(due, deadline, once=True)
        except KafkaError as error:
            if error.retriable:
                for name in due:
                    self._retry_later(name, error)
                self._cluster.extend_age(due)
                return {}
            return {name: self._give_up(name, error) for name in due}
        unknown = [name for name in due if failed.get(name) == _UNKNOWN]
        missing_errors = self._cluster.missing_topic_errors(
            self._believed_missing(unknown, deadline), deadline
        )
        final: dict[str, KafkaError] = {}
        for name in due:
            code = failed.get(name)
            if code is None:
                self._missing.pop(name, None)
            elif name in missing_errors:
                final[name] = self._give_up(name, missing_errors[name])
            elif is_retriable(code):
                error_type = UnknownTopicError if code == _UNKNOWN else BrokerError
                self._retry_later(name, error_type(code, f"Metadata of topic {name}"))
            else:
                final[name] = self._give_up(name, BrokerError(code, f"Metadata of topic {name}"))
        return final

    def lookup_at_s(self, names: Iterable[str]) -> float:
        """Return when the next lookup of one of these topics is due (monotonic seconds), infinite
        for never."""
        due_at_s = (self._missing[name].due_at_s for name in names if name in self._missing)
        return min(due_at_s, default=math.inf)

    def last_error(self, topic: str) -> KafkaError | None:
        """Return the error of the last lookup of a topic; None if it found the topic."""
        missing = self._missing.get(topic)
        return missing.error if missing else None

    def errors(self) -> list[KafkaError]:
        """Return the errors of the topics that the last lookups did not find. May be called from
        any thread."""
        return [missing.error for missing in list(self._missing.values()) if missing.error]

    def stop_lookup(self, topic: str) -> None:
        """Forget a topic for which no records wait any more, so that it is not looked up again."""
        self._missing.pop(topic, None)

    def look_up_leaders(
        self, leaderless: Iterable[LeaderlessT], within_ms: float
    ) -> Iterator[tuple[LeaderlessT, KafkaError]]:
        """Look up the leaders of partitions that have no known leader, in one request of at most
        `within_ms` for the topics whose lookup is due.

        Yields the partitions with a final error: also one that its topic does not have for
        UNKNOWN_TOPIC_GRACE_MS, since it may just have been added. Others without a leader back off.
        """
        partitions = list(leaderless)
        if not partitions:
            return
        final = self.request_metadata((row.tp.topic for row in partitions), within_ms)
        now_s = time.monotonic()
        stale: set[str] = set()  # marked at the end: until then their other partitions have leaders
        for partition in partitions:
            tp = partition.tp
            count = self._cluster.partition_count(tp.topic)
            if tp.topic in final:
                yield partition, final[tp.topic]
            elif count is not None and tp.partition >= count:
                error = unknown_partition_error(tp, count)
                since_s = self._missing_partitions_since_s.get(tp, -math.inf)
                # A time that long ago is left from an earlier lookup that ended without a result.
                if (now_s - since_s) * 1000 > 2 * UNKNOWN_TOPIC_GRACE_MS:
                    self._missing_partitions_since_s[tp] = since_s = now_s
                if (now_s - since_s) * 1000 < UNKNOWN_TOPIC_GRACE_MS:
                    partition.back_off(error)
                    stale.add(tp.topic)
                else:
                    del self._missing_partitions_since_s[tp]
                    yield partition, error
            else:
                self._missing_partitions_since_s.pop(tp, None)
                if self._cluster.known_leader(tp) is None:
                    partition.back_off(self.last_error(tp.topic) or no_leader_error(tp))
                    stale.add(tp.topic)
        for topic in stale:
            self._cluster.mark_stale(topic)

    def _believed_missing(self, unknown: list[str], deadline: Deadline) -> list[str]:
        """Return those of the topics in `unknown`, which brokers do not know, that count as missing
        now."""
        since_s = {name: self._missing[name].since_s for name in unknown}
        overdue_since_s = time.monotonic() - self._grace_ms / 1000
        overdue = [name for name, at_s in since_s.items() if at_s <= overdue_since_s]
        return overdue or self._cluster.believed_missing(since_s, deadline)

    def _retry_later(self, name: str, error: KafkaError) -> None:
        """Schedule the next lookup of a topic, and keep the reason."""
        missing = self._missing[name]
        missing.error = error
        now_s = time.monotonic()
        missing.due_at_s = now_s + missing.backoff.next_ms() / 1000
        # Brokers need a moment for a new topic: only a longer wait is worth a warning.
        if not missing.is_warned and now_s - missing.since_s > 4.0:
            missing.is_warned = True
            log.warning("metadata of topic %s: still trying: %s", name, error)

    def _give_up(self, name: str, error: KafkaError) -> KafkaError:
        """Forget a topic, and return its final error."""
        self._missing.pop(name, None)
        return error


class MissingTopicsLookup:
    """Looks up the topics of a group's subscription that have no assigned partition, and logs those
    that do not exist. As in Java they may be created later, so this is repeated and no error. With
    allow.auto.create.topics the lookup also creates them."""

    def __init__(self, cluster: Cluster, group_id: str | None) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._creates_topics = cluster.options.allow_auto_create_topics
        self._lookup_at_s = 0.0
        self._is_first = True

    def restart(self) -> None:
        """Look up the topics of a new subscription: immediately if that creates them, else after
        the time in which brokers learn of a new topic."""
        grace_s = 0.0 if self._creates_topics else UNKNOWN_TOPIC_GRACE_MS / 1000
        self._lookup_at_s = time.monotonic() + grace_s
        self._is_first = True

    @property
    def is_due(self) -> bool:
        """Whether to call `look_up` now."""
        return time.monotonic() >= self._lookup_at_s

    def look_up(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Look up these topics, which have no assigned partition. Raises BrokerError for a topic
        with an invalid name, or that this user may not see."""
        names = sorted(topics)
        self._lookup_at_s = time.monotonic() + MISSING_TOPICS_LOOKUP_S
        if not names:
            return
        try:
            failed = self._cluster.request_metadata(names, deadline)
        except KafkaError as error:
            if not error.retriable:
                raise
            log.info("whether %s exist is not known: %s", some_topics(names), error)
            return
        for name, code in failed.items():
            if code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                raise BrokerError(code, f"Metadata of topic {name}")
            if not is_retriable(code):
                # As in Java: a failure of one broker does not end a member that reads other topics.
                failure = BrokerError(code, f"Metadata of topic {name}")
                log.warning("group %s: %s; it is looked up again", self._group_id, failure)
        missing = [name for name in names if failed.get(name) == _UNKNOWN]
        if missing and self._creates_topics and self._is_first:
            # A broker that creates a topic answers first that it does not exist.
            self._lookup_at_s = time.monotonic() + TOPIC_CREATION_S
        elif missing:
            nearest = self._cluster.nearest_topics(missing, deadline)
            log.warning(
                "group %s: %s, or not for this user (needs DESCRIBE on the topic). A missing topic "
                "is read once it appears, and the group's other topics are read meanwhile%s",
                self._group_id,
                missing_topics_text(missing, nearest),
                f"; {NOT_CREATED}" if self._creates_topics else "",
            )
        self._is_first = False
