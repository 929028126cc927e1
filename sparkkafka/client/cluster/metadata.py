"""What brokers have said of the cluster: brokers, coordinators, topics and their leaders."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from sparkkafka.client.cluster.topics import TopicMetadata, read_topics
from sparkkafka.client.values import Broker, TopicPartition
from sparkkafka.errors import ErrorCode, is_retriable

log = logging.getLogger(__name__)


class Metadata:
    """The cache of one client (Java's Metadata), however many threads of it have a `Cluster`.

    Reading needs no lock: `brokers` and `topics` are replaced, never changed in place. What one
    thread has read may be outdated a moment later, as the cluster itself may be.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.brokers: Mapping[int, Broker] = {}
        self.coordinators: dict[tuple[int, str], int] = {}
        """(kind, key) -> node id; `lookups.find_coordinator` fills it."""
        self.topics: Mapping[str, TopicMetadata] = {}
        self.distrusted: set[str] = set()
        """Topics of `topics` whose leaders are known to be doubtful."""
        self.known_names: set[str] = set()
        """Topics that existed at some time."""
        self._leaders: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()  # of whoever changes it

    def update(
        self, response: Any, names: Iterable[str] | None
    ) -> tuple[dict[str, TopicMetadata], dict[str, int]]:
        """Keep a MetadataResponse about these topics (None: about all).

        Returns its topics, and {topic: error code} of those that have no metadata.
        """
        topics, failed = read_topics(response.topics or (), names)
        with self._lock:
            self.brokers = {
                row.node_id: Broker(row.node_id, row.host, row.port, row.rack)
                for row in response.brokers
            }
            self.cluster_id = response.cluster_id
            self.controller_id = response.controller_id
            self._log_moved_leaders(topics)
            self.known_names.update(topics)
            if names is None:
                self.topics, self.distrusted = topics, set()
                return topics, failed
            gone = {
                name
                for name, code in failed.items()
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not is_retriable(code)
            }
            kept = {name: row for name, row in self.topics.items() if name not in gone}
            self.topics = kept | topics
            self.distrusted -= topics.keys() | gone
            # Of the others the broker knows nothing at the moment.
            self.distrusted |= failed.keys() & kept.keys()
        return topics, failed

    def add_broker(self, broker: Broker) -> None:
        """A broker that another answer than metadata names."""
        with self._lock:
            known = self.brokers.get(broker.node_id)
            if known is None or known[1:3] != broker[1:3]:
                self.brokers = {**self.brokers, broker.node_id: broker}

    def forget_brokers(self) -> None:
        """Brokers, controller and coordinators have to be found again."""
        with self._lock:
            self.brokers = {}
            self.controller_id = None
            self.coordinators.clear()

    def distrust(self, topic: str) -> None:
        with self._lock:
            if topic in self.topics:
                self.distrusted.add(topic)

    def replace(self, topics: Iterable[TopicMetadata]) -> None:
        """Of topics that are still known."""
        with self._lock:
            self.topics = {
                **self.topics,
                **{row.name: row for row in topics if row.name in self.topics},
            }

    def _log_moved_leaders(self, topics: Mapping[str, TopicMetadata]) -> None:
        for name, topic in topics.items():
            for partition, leader in topic.partitions.items():
                tp = TopicPartition(name, partition)
                before = self._leaders.get(tp, leader.leader)
                if before != leader.leader:
                    log.info("%s: the leader moved from %d to %d", tp, before, leader.leader)
                self._leaders[tp] = leader.leader
