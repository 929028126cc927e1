"""A share session with one leader: what both sides know, so that requests name only what is new.

Java's ShareSessionHandler.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from itertools import chain

from sparkkafka.client.consumer.leader_connections import LeaderConnection
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.share.acknowledgements import in_order, renews, without_renewals
from sparkkafka.client.share.share_member import NEEDS_KAFKA
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ShareConsumerOptions
from sparkkafka.errors import UnsupportedVersionError
from sparkkafka.protocol.messages import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)

OPEN_EPOCH = 0
CLOSE_EPOCH = -1
LAST_EPOCH = 2**31 - 1

WHOLE_BATCHES, RECORD_LIMIT = 0, 1  # of share_acquire_mode
ACQUIRE_MODE_VERSION = RENEW_VERSION = 2

Batches = list[AcknowledgementBatch]
TopicIds = Mapping[TopicPartition, uuid.UUID]


class ShareSession:
    """One leader: its connection, its session, and what is to be said to it."""

    def __init__(self, leader: LeaderConnection, options: ShareConsumerOptions) -> None:
        self.leader = leader
        self._options = options
        self.epoch = OPEN_EPOCH
        self.generation = 0
        """Counts the sessions."""
        self.partitions: TopicIds = {}
        """Those that the broker has in the session."""
        self.ids: dict[TopicPartition, uuid.UUID] = {}
        """Ids of all topics that were read, for acknowledgements and answers."""
        self.unsent: dict[TopicPartition, Batches] = {}
        self.sent: dict[TopicPartition, Batches] = {}
        self.request: ShareFetchRequest | ShareAcknowledgeRequest | None = None
        """The one in flight."""

    @property
    def node_id(self) -> int:
        return self.leader.node_id

    @property
    def is_fetch(self) -> bool:
        return isinstance(self.request, ShareFetchRequest)

    def end(self) -> None:
        """The broker has closed it, or forgotten it."""
        self.epoch = OPEN_EPOCH
        self.generation += 1
        self.partitions = {}

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def lose(self) -> dict[TopicPartition, Batches]:
        """Returns the acknowledgements that are lost with it."""
        self.end()
        self.request = None
        lost, self.sent = self.sent, {}
        for tp, batches in self.unsent.items():
            lost.setdefault(tp, []).extend(batches)
        self.unsent = {}
        return lost

    @property
    def cannot_renew(self) -> bool:
        """Whether the broker is known to be too old for RENEW."""
        connection = self.leader.connection
        if connection is None or not connection.is_open:
            return False
        return not connection.supports(ShareAcknowledgeRequest, RENEW_VERSION)

    def fetch_request(
        self, connection: Connection, member_id: str, wanted: TopicIds
    ) -> ShareFetchRequest:
        """For records of these partitions, with what there is to acknowledge of them."""
        options, known = self._options, self.partitions
        limits = options.acquire_mode == "record_limit"
        if not connection.supports(ShareFetchRequest, ACQUIRE_MODE_VERSION if limits else 0):
            needs = "share.acquire.mode=record_limit needs Kafka 4.2 or later"
            raise UnsupportedVersionError(f"{connection}: {needs if limits else NEEDS_KAFKA}")
        topics: dict[uuid.UUID, list[ShareFetchPartition]] = {}
        for tp, topic_id in wanted.items():
            if tp in self.unsent or known.get(tp) != topic_id:
                row = ShareFetchPartition(
                    partition_index=tp.partition,
                    acknowledgement_batches=in_order(self.unsent.get(tp, [])),
                )
                topics.setdefault(topic_id, []).append(row)
        gone: dict[uuid.UUID, list[int]] = {}
        for tp, topic_id in known.items():
            if wanted.get(tp) != topic_id:
                gone.setdefault(topic_id, []).append(tp.partition)
        self.partitions = dict(wanted)
        self.ids.update(wanted)
        return ShareFetchRequest(
            group_id=options.group_id,
            member_id=member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=options.fetch.fetch_max_wait_ms,
            min_bytes=options.fetch.fetch_min_bytes,
            max_bytes=options.fetch.fetch_max_bytes,
            max_records=options.max_poll_records,
            batch_size=options.max_poll_records,
            share_acquire_mode=RECORD_LIMIT if limits else WHOLE_BATCHES,
            topics=[ShareFetchTopic(topic_id=key, partitions=row) for key, row in topics.items()],
            forgotten_topics_data=[
                ForgottenShareTopic(topic_id=key, partitions=row) for key, row in gone.items()
            ],
        )

    def acknowledge_request(self, member_id: str, *, closes: bool) -> ShareAcknowledgeRequest:
        """All that there is to acknowledge; `closes` ends the session with it."""
        topics: dict[uuid.UUID, list[AcknowledgePartition]] = {}
        is_renewing = not closes and any(map(renews, chain(*self.unsent.values())))
        for tp, given in self.unsent.items():
            batches = [without_renewals(batch) for batch in given] if closes else given
            row = AcknowledgePartition(
                partition_index=tp.partition, acknowledgement_batches=in_order(batches)
            )
            topics.setdefault(self.ids[tp], []).append(row)
        return ShareAcknowledgeRequest(
            group_id=self._options.group_id,
            member_id=member_id,
            share_session_epoch=CLOSE_EPOCH if closes else self.epoch,
            is_renew_ack=is_renewing,
            topics=[AcknowledgeTopic(topic_id=key, partitions=row) for key, row in topics.items()],
        )
