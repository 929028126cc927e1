"""Finds the first offset to read: the group's committed one, else by auto.offset.reset."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import earliest_and_latest
from sparkkafka.client.consumer.subscription_state import EpochEnd, LogBounds, PartitionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_committed
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.config.kinds import parse_duration_ms
from sparkkafka.errors import KafkaError, LogTruncationError, NoOffsetError
from sparkkafka.protocol.constants import EARLIEST, LATEST, NO_LEADER_EPOCH

log = logging.getLogger(__name__)


class AutoOffsetReset:
    """Sets the positions of partitions that have none, or whose leader does not have their
    position.

    With auto.offset.reset=none it sets `PartitionState.error` instead, which poll raises.
    """

    def __init__(self, options: ConsumerOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    def set_positions(self, states: Iterable[PartitionState], deadline: Deadline) -> None:
        """Set the position of each partition to the group's committed offset, or else (`lookup`) to
        what auto.offset.reset looks up. One request fetches all committed offsets.

        Raises the errors of `fetch_committed`.
        """
        pending = list(states)
        group_id = self._options.group_id
        committed_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        if group_id is not None:
            committed_offsets = fetch_committed(
                self._cluster, group_id, [state.tp for state in pending], deadline=deadline
            )
        for state in pending:
            committed = committed_offsets.get(state.tp)
            if committed is not None:
                log.debug("%s: group %r is at offset %d", state.tp, group_id, committed.offset)
                epoch = committed.leader_epoch
                state.seek(committed.offset, epoch=NO_LEADER_EPOCH if epoch is None else epoch)
                continue
            lookup = self._policy_lookup()
            if lookup is not None:
                state.seek(None, lookup=lookup)
            else:
                what = (
                    f"group {group_id!r} has committed no offset"
                    if group_id is not None
                    else "the consumer has no group"
                )
                state.error = self._no_offset(state, what, deadline)

    def reset_position(self, state: PartitionState, deadline: Deadline) -> None:
        """Apply auto.offset.reset, as the leader does not have the position: retention deleted it,
        it never existed, or it is one of a topic that was deleted and recreated."""
        state.is_out_of_range = False
        lookup = self._policy_lookup()
        if state.truncated is not None and state.position is not None:
            self._reset_truncated(
                state, state.truncated, state.position, has_policy=lookup is not None
            )
            return
        what = f"offset {state.position} is out of range"
        if self._cluster.was_recreated(state.tp.topic, state.topic_id):
            what = f"the topic was deleted and recreated, offset {state.position} is of the old one"
        if lookup is None:
            state.log_bounds = None
            state.error = self._no_offset(state, what, deadline)
            return
        policy = self._options.auto_offset_reset
        log.warning("%s: %s; continuing by auto.offset.reset=%s", state.tp, what, policy)
        state.seek(None, lookup=lookup)
        state.back_off()  # for a broker that refuses its own offsets again and again

    def _reset_truncated(
        self, state: PartitionState, diverging: EpochEnd, position: int, *, has_policy: bool
    ) -> None:
        """Set the position to where the leader's log diverges from the records that were read, as
        in Java. Without a policy (auto.offset.reset=none) let poll raise LogTruncationError."""
        end_offset = min(diverging.end_offset, position)
        what = diverging.lost_before(position)
        if not has_policy:
            state.error = LogTruncationError(
                f"{what}. What was computed from records from about offset {end_offset} on may be "
                "wrong. auto.offset.reset=none allows no other offset: call seek",
                topic=state.tp.topic,
                partition=state.tp.partition,
                offset=position,
                end_offset=end_offset,
            )
            return
        log.warning("%s: %s; continuing from offset %d", state.tp, what, end_offset)
        state.seek(end_offset, epoch=diverging.epoch)
        state.back_off()  # for a broker that answers so again and again

    def _policy_lookup(self) -> int | None:
        """Return the timestamp that auto.offset.reset looks up, None for `none`."""
        policy = self._options.auto_offset_reset
        lookups = {"none": None, "earliest": EARLIEST, "latest": LATEST}
        if policy in lookups:
            return lookups[policy]
        # by_duration:P1D (KIP-1106)
        return max(0, int(time.time() * 1000) - parse_duration_ms(policy.partition(":")[2]))

    def _no_offset(self, state: PartitionState, what: str, deadline: Deadline) -> NoOffsetError:
        """Return the error of auto.offset.reset=none: why there is no position (`what`), and which
        offsets the log has. They are looked up once, not in each poll that raises the error."""
        tp = state.tp
        try:
            if state.log_bounds is None:
                first, end = earliest_and_latest(self._cluster, [tp], deadline=deadline)
                state.log_bounds = LogBounds(first[tp], end[tp], end[tp])
            bounds = state.log_bounds
            log_text = f"the log has offsets [{bounds.log_start_offset}, {bounds.high_watermark})"
        except KafkaError as error:
            log_text = f"the offsets of the log are not known ({error})"
        return NoOffsetError(
            f"{what}, and auto.offset.reset=none allows no other; {log_text}. Call seek, commit "
            "an offset, or set auto.offset.reset to earliest or latest",
            topic=tp.topic,
            partition=tp.partition,
        )
