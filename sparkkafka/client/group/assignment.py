"""What members of a classic group agree on: their subscriptions, and who gets which partitions.

Before a rebalance each member says what it wants (`GroupAssignors.subscriptions`); the one that the
brokers make leader shares the partitions out (`assign`), for members of any client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.assignors import ASSIGNORS, Assignor, read_subscription
from sparkkafka.client.values import TopicPartition, some_topics
from sparkkafka.errors import BrokerError, DecodeError, ErrorCode, is_retriable
from sparkkafka.protocol.messages import (
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
)
from sparkkafka.protocol.messages.consumer_protocol import (
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

MISSING_TOPIC_LOOK_S = 1.0
"""A leader looks so often for subscribed topics that do not exist, else every metadata.max.age.ms
(Java asks for metadata at about this pace while there is such a topic)."""


class GroupAssignors:
    """The assignors of `partition.assignment.strategy`, best liked first, one object of each.

    `cooperative`: members keep their partitions through a rebalance (KIP-429). As in Java's
    ConsumerCoordinator that is so if all assignors of the list can do it; cooperative-sticky can be
    eager as well, so that with `range,cooperative-sticky` a group can move from one to the other.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._assignors: dict[str, Assignor] = {name: ASSIGNORS[name]() for name in names}
        self.cooperative = all(row.cooperative for row in self._assignors.values())

    def subscriptions(
        self,
        topics: Iterable[str],
        owned: Iterable[TopicPartition],
        generation_id: int,
        rack_id: str | None,
    ) -> list[JoinGroupRequestProtocol]:
        """What this member says in JoinGroup, once for each assignor."""
        topics, owned = list(topics), list(owned)
        return [
            JoinGroupRequestProtocol(
                name=name,
                metadata=encode_subscription(
                    topics,
                    user_data=assignor.user_data(),
                    owned=owned,
                    generation_id=generation_id,
                    rack_id=rack_id,
                ),
            )
            for name, assignor in self._assignors.items()
        ]

    def topics_of(self, members: Iterable[JoinGroupResponseMember]) -> set[str]:
        """All that some member subscribes to. Raises DecodeError, which names the member."""
        return {topic for member in members for topic in _subscription(member).topics}

    def assign(
        self,
        protocol: str,
        members: Iterable[JoinGroupResponseMember],
        partition_counts: Mapping[str, int],
    ) -> dict[str, bytes]:
        """What each member gets. Raises DecodeError, which names the member."""
        shared = self._assignor(protocol).assign(
            partition_counts, {member.member_id: _subscription(member) for member in members}
        )
        return {member: encode_assignment(partitions) for member, partitions in shared.items()}

    def read_assignment(
        self, protocol: str, encoded: bytes, generation_id: int
    ) -> frozenset[TopicPartition]:
        """What this member got, which its assignor learns. Raises DecodeError."""
        # A leader that leaves a member out gives it nothing, not even an empty list.
        rows = decode_assignment(encoded).partitions if encoded else ()
        assigned = [TopicPartition(*row) for row in rows]
        self._assignor(protocol).on_assignment(assigned, generation_id)
        return frozenset(assigned)

    def _assignor(self, protocol: str) -> Assignor:
        if protocol not in self._assignors:
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "JoinGroup",
                f"the coordinator chose the assignor {protocol!r}, but this member has only "
                f"{', '.join(self._assignors)} (partition.assignment.strategy)",
            )
        return self._assignors[protocol]


class TopicWatch:
    """The leader's eye on what it shared out: more partitions, and topics that come or go, are a
    reason to share out anew (Java's ConsumerCoordinator compares metadata snapshots)."""

    def __init__(
        self, topics: Iterable[str], counts: Mapping[str, int], metadata_max_age_ms: int
    ) -> None:
        self._topics = frozenset(topics)
        self._counts = counts
        self.missing = sorted(self._topics - counts.keys())
        age_s = max(metadata_max_age_ms / 1000, MISSING_TOPIC_LOOK_S)
        self._interval_s = MISSING_TOPIC_LOOK_S if self.missing else age_s
        self._next_look_s = time.monotonic() + self._interval_s

    def until_look_s(self) -> float:
        """Seconds until the next look is due."""
        return self._next_look_s - time.monotonic()

    def look(self, cluster: Cluster, deadline: Deadline) -> list[str]:
        """The topics that are not as they were. Raises KafkaError if that cannot be told."""
        self._next_look_s = time.monotonic() + self._interval_s
        now = partition_counts(cluster, self._topics, deadline)
        return sorted(name for name in self._topics if now.get(name) != self._counts.get(name))


def _subscription(member: JoinGroupResponseMember) -> Any:
    try:
        return read_subscription(member.metadata, member.group_instance_id)
    except DecodeError as error:
        raise DecodeError(
            f"the subscription of the group's member {member.member_id!r} cannot be read: {error}"
        ) from error


def partition_counts(cluster: Cluster, topics: Iterable[str], deadline: Deadline) -> dict[str, int]:
    """The number of partitions of each topic that exists now; the others are left out.

    Raises BrokerError, which names topics, if this user may not see some of them.
    """
    names = sorted(topics)
    if not names:
        return {}
    failed = cluster.look_up(names, deadline)
    final = {name: code for name, code in failed.items() if not is_retriable(code)}
    if final:
        code = next(iter(final.values()))
        bad = [name for name, other in final.items() if other == code]
        raise BrokerError(
            code,
            f"Metadata of {some_topics(bad)}",
            "the group subscribes to it, and this member has to share out its partitions: grant "
            "DESCRIBE on the topic to all members"
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else None,
        )
    return {name: cluster.partition_count(name) or 0 for name in names if name not in failed}
