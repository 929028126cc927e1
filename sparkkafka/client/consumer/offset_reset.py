"""Where a consumer begins in a partition: the group's committed offset, else auto.offset.reset."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import EARLIEST, LATEST, earliest_and_latest
from sparkkafka.client.consumer.fetch import EpochEnd
from sparkkafka.client.consumer.partition_state import PartitionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_committed_stored
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions, duration_ms
from sparkkafka.errors import KafkaError, LogTruncationError, NoOffsetError
from sparkkafka.protocol.records.batches import NO_LEADER_EPOCH

log = logging.getLogger(__name__)


class StartingOffsets:
    """Gives partitions without a position one, or a lookup that asks the leader for one."""

    def __init__(self, options: ConsumerOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    def place(self, states: Iterable[PartitionState], deadline: Deadline) -> None:
        """One request for the committed offsets of all. Raises as `fetch_committed_stored`."""
        pending = list(states)
        group_id = self._options.group_id
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        if group_id is not None:
            found = fetch_committed_stored(
                self._cluster, group_id, [state.tp for state in pending], deadline=deadline
            )
        for state in pending:
            at = found.get(state.tp)
            if at is not None:
                log.debug("%s: group %r is at offset %d", state.tp, group_id, at.offset)
                epoch = NO_LEADER_EPOCH if at.leader_epoch is None else at.leader_epoch
                state.seek(at.offset, epoch=epoch)
                continue
            lookup = self._lookup()
            if lookup is not None:
                state.seek(None, lookup=lookup)
            else:
                what = (
                    f"group {group_id!r} has committed no offset"
                    if group_id is not None
                    else "nothing says where to begin"
                )
                state.error = self._no_offset(state.tp, what, deadline)

    def reset(self, state: PartitionState, deadline: Deadline) -> None:
        """The leader does not have the position: retention deleted it, or it never existed."""
        state.out_of_range = False
        lookup = self._lookup()
        if state.truncated is not None and state.position is not None:
            self._reset_truncated(state, state.truncated, state.position, decides=lookup is None)
            return
        if lookup is None:
            what = f"offset {state.position} is out of range"
            state.error = self._no_offset(state.tp, what, deadline)
            return
        log.warning(
            "%s: offset %s is out of range; going on as auto.offset.reset=%s says",
            state.tp,
            state.position,
            self._options.auto_offset_reset,
        )
        state.seek(None, lookup=lookup)

    def _reset_truncated(
        self, state: PartitionState, found: EpochEnd, position: int, *, decides: bool
    ) -> None:
        """As Java does: with a reset policy back to where the logs part, whatever it says."""
        end_offset = min(found.end_offset, position)
        what = found.lost_before(position)
        if decides:
            state.error = LogTruncationError(
                f"{what}. What was made of records from about offset {end_offset} on may be wrong. "
                "auto.offset.reset=none forbids to go on: call seek",
                topic=state.tp.topic,
                partition=state.tp.partition,
                offset=position,
                end_offset=end_offset,
            )
            return
        log.warning("%s: %s; going on from offset %d", state.tp, what, end_offset)
        state.seek(end_offset, epoch=found.epoch)

    def _lookup(self) -> int | None:
        """The time to ask leaders for, None under auto.offset.reset=none."""
        word = self._options.auto_offset_reset
        if word == "none":
            return None
        if word == "earliest":
            return EARLIEST
        if word == "latest":
            return LATEST
        return max(0, int(time.time() * 1000) - duration_ms(word.partition(":")[2]))

    def _no_offset(self, tp: TopicPartition, what: str, deadline: Deadline) -> NoOffsetError:
        try:
            first, end = earliest_and_latest(self._cluster, [tp], deadline=deadline)
            there = f"the log has offsets [{first[tp]}, {end[tp]})"
        except KafkaError as error:
            there = f"what the log has is not known ({error})"
        return NoOffsetError(
            f"{what}, and auto.offset.reset=none forbids to choose one; {there}. Call seek, commit "
            "an offset, or set auto.offset.reset to earliest or latest",
            topic=tp.topic,
            partition=tp.partition,
        )
