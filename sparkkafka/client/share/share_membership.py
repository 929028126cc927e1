"""A member of a share group: its heartbeats, and the partitions that it reads (KIP-932).

The brokers may assign one partition to several members, so nothing is revoked: the next fetch reads
the partitions of a new assignment. (Java's ShareHeartbeatRequestManager and
ShareMembershipManager.)
"""

from __future__ import annotations

import time
from typing import Any

from sparkkafka.client.group.consumer_group_membership import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerGroupMember,
    ConsumerGroupMemberThread,
    Partitions,
)
from sparkkafka.protocol.messages import ShareGroupHeartbeatRequest

NEEDS_KAFKA = "share groups need brokers of Kafka 4.1 or later with the feature share.version=1"


class ShareMemberThread(ConsumerGroupMemberThread):
    """As for a consumer group under KIP-848, but heartbeats do not report owned partitions."""

    heartbeat_type = ShareGroupHeartbeatRequest
    needs = NEEDS_KAFKA
    _early_heartbeats_left = 0

    def join(self, topics: frozenset[str]) -> None:
        # The first responses have no partitions while the coordinator prepares the group's state of
        # them, and the next regular heartbeat is due 5 s later. Until then the member sends some
        # early ones.
        self._early_heartbeats_left = 10
        super().join(topics)

    def _on_heartbeat_response(
        self, response: Any, topics: frozenset[str], owned: Partitions
    ) -> None:
        """As for a consumer group; without partitions the next heartbeat may be sent earlier."""
        super()._on_heartbeat_response(response, topics, owned)
        with self.lock:
            if response.assignment is not None and response.assignment.topic_partitions:
                self._early_heartbeats_left = 0
            elif self._early_heartbeats_left:
                self._early_heartbeats_left -= 1
                early_s = time.monotonic() + 0.3
                self.next_heartbeat_s = min(self.next_heartbeat_s, early_s)

    def _heartbeat_request(self) -> tuple[Any, frozenset[str], Partitions]:
        """Return a heartbeat, the topics that it reports, and no partitions."""
        with self.lock:
            # Set before the fields are read: a later change sets it to 0 again.
            self.next_heartbeat_s = time.monotonic() + self._interval_s
            topics, epoch, reported = self._topics, self.epoch, self._reported_topics
        request = ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch
        )
        if epoch == JOIN_EPOCH or reported != topics:
            request.rack_id = self.options.fetch.client_rack or None
            request.subscribed_topic_names = sorted(topics)
        return request, topics, {}

    def _leave_request(self) -> Any:
        return ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH
        )


class ShareMember(ConsumerGroupMember):
    """The membership of a ShareConsumer."""

    thread_type = ShareMemberThread

    @property
    def partitions(self) -> Partitions:
        """The assigned partitions, with the ids of their topics."""
        return self._owned

    def _reconcile(self, target: Partitions, thread: ConsumerGroupMemberThread) -> None:
        """Take over the new assignment, which heartbeats do not report."""
        if target != self._owned:
            self._take_over(target, None)
