"""What a consumer and its membership in a group say to each other: plain types.

The consumer talks to its `GroupMember` (`group_member.make_member`), which asks the consumer's
`RebalanceHooks` for what a rebalance needs; `GroupMetadata` is what a producer commits with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition

NO_GENERATION = -1
NO_MEMBER_ID = ""


class GroupMetadata(NamedTuple):
    """Which member of which generation speaks (Java's ConsumerGroupMetadata).

    `generation_id` is the member epoch under KIP-848; NO_GENERATION and NO_MEMBER_ID stand for
    somebody who is no member. `is_outside` is a consumer that subscribes to topics and is not in
    the group now: it was put out, or has not joined yet. Brokers would take its offsets in a
    transaction as those of anybody, so nothing is committed for it.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    is_outside: bool = False


class RebalanceHooks(Protocol):
    """What the consumer does in a rebalance. Called on the thread that called `poll`."""

    def before_revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """They are still this member's, and will not be: commit, tell the user. May raise."""

    def after_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """They are no longer this member's, others may have them: do not commit. May raise."""

    def after_assign(
        self, new: frozenset[TopicPartition], all_owned: frozenset[TopicPartition]
    ) -> None:
        """A rebalance has ended; `new` may be empty. May raise."""


class OffsetToCommit(Protocol):
    """An offset with what is kept beside it; `leader_epoch` None or -1 if it is not known."""

    @property
    def offset(self) -> int: ...
    @property
    def metadata(self) -> str: ...
    @property
    def leader_epoch(self) -> int | None: ...


class Commit(Protocol):
    """Commits as whom it was made for, over connections of the caller's."""

    def __call__(
        self,
        cluster: Cluster,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        deadline: Deadline,
    ) -> None:
        """Raises as `GroupMember.commit`."""


class GroupMember(Protocol):
    """Membership in a group, of either protocol. Used by one thread, but for `metadata`.

    Nothing is on the network before the first `poll`.
    """

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns."""

    @property
    def metadata(self) -> GroupMetadata: ...

    def subscribe(self, topics: frozenset[str]) -> None:
        """The names of the wanted topics; may be called again, the next `poll` acts on it."""

    def poll(self, deadline: Deadline) -> None:
        """Do what is due, as far as the deadline lets; what is begun goes on at the next call.

        Returns soon when nothing is due. Raises what is final, and what hooks raise.
        """

    def rejoin_needed(self) -> bool:
        """Whether the next `poll` has something to do with the group."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetToCommit], deadline: Deadline) -> None:
        """Commit offsets as this member.

        Raises CommitFailedError when the group has moved on, BrokerError for other refusals,
        KafkaTimeoutError with the last failure. In the last two cases a part may be committed.
        """

    def committer(self) -> Commit:
        """For commits later and in another thread: as the member that this is now. What it has
        lost by then it cannot commit. Raises CommitFailedError if it is no member."""

    def close(self, deadline: Deadline, *, leave: bool = True) -> None:
        """Leave the group (a static member under its session timeout does not), end the thread.

        Calls no hook. Failures are logged.
        """
