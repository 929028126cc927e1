"""A member of a share group: its heartbeats, and the partitions that it reads (KIP-932).

The brokers may assign one partition to several members, so nothing is revoked: the next fetch reads
the partitions of a new assignment. (Java's ShareHeartbeatRequestManager and
ShareMembershipManager.)
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.consumer_group_membership import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerGroupMemberThread,
    Partitions,
)
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.values import some_partitions
from sparkkafka.config.client_settings import ShareConsumerOptions
from sparkkafka.protocol.messages import ShareGroupHeartbeatRequest

log = logging.getLogger(__name__)


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


class ShareMember:
    """The membership of a ShareConsumer. The first `poll` sends the first request."""

    def __init__(
        self,
        options: ShareConsumerOptions,
        cluster: Cluster,
        wake: Callable[[], None],
        metrics: FetchMetrics,
    ) -> None:
        """The membership shares the metadata of the consumer's `cluster`. `wake` is called from any
        thread when `poll` has something to do."""
        self._options = options
        self._cluster = cluster
        self._wake = wake
        self._metrics = metrics
        self._thread: ShareMemberThread | None = None
        self._topics: frozenset[str] = frozenset()
        self._joined_topics: frozenset[str] = frozenset()
        self.partitions: Partitions = {}
        """The assigned partitions, with the ids of their topics."""

    @property
    def member_id(self) -> str:
        return "" if self._thread is None else self._thread.member_id

    def subscribe(self, topics: frozenset[str]) -> None:
        self._topics = topics

    def poll(self) -> None:
        """Join if due, and take over a new assignment. Waits for nothing; raises final errors."""
        thread = self._thread
        if thread is None:
            thread = self._thread = ShareMemberThread(
                self._options, self._cluster, self._wake, self._metrics
            )
            weakref.finalize(self, thread.stop_in_background).atexit = False
            thread.start()
        thread.max_poll_interval.restart()
        with thread.lock:
            is_lost, thread.is_lost = thread.is_lost, False
            failure = None if is_lost else thread.take_failure()
            is_in_group = thread.is_in_group
        if is_lost:
            self.partitions = {}
        if failure is not None:
            raise failure
        if not is_in_group:
            self._joined_topics = self._topics
            thread.join(self._topics)
        elif self._topics != self._joined_topics:
            self._joined_topics = self._topics
            thread.subscribe(self._topics)
        target = thread.take_target()
        if target is not None and target != self.partitions:
            self.partitions = target
            self._metrics.rebalanced()
            log.info("group %s: reading %s", self._options.group_id, some_partitions(target))

    def close(self, deadline: Deadline) -> None:
        """Leave the group. Failures are logged."""
        thread, self._thread = self._thread, None
        self.partitions = {}
        if thread is not None:
            thread.stop(deadline, leave=True)
