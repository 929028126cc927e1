"""Reads small ranges of several partitions from all their leaders at once, as decoded columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Self

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.partition_state import AssignedPartitions, PartitionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection

log = logging.getLogger(__name__)

PATIENCE_MS = 2_000
"""Partitions that give nothing for so long are left to `RangeFetcher`, which waits longer."""


class WantedRange(NamedTuple):
    """The records of one partition; `topic_id` as in `RangeFetcher`."""

    selection: Selection
    topic_id: bytes | None = None


class SmallRangesFetcher:
    """Iterates over the wanted records of several partitions, from all their leaders at once.

    Use it under `with`. It handles only the normal case. What needs care is left to `RangeFetcher`,
    one range after the other: an error of a partition, offsets that are gone, a topic that was
    recreated, a damaged batch, a partition from which nothing comes for a while.

    Each partition's records come in order. `left` has the ranges that were not read to their end,
    with the offset from which on they are still to be read: none is lost, none comes twice.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[TopicPartition, WantedRange],
        options: FetchOptions,
    ) -> None:
        self._cluster = cluster
        self._wanted = dict(wanted)
        self.left: dict[TopicPartition, int] = {}
        self.left_epochs: dict[TopicPartition, int] = {}
        """The leader epochs of the records before those offsets, for `RangeFetcher`."""
        self._states = AssignedPartitions(cluster)
        self._states.replace(wanted)
        for tp, (selection, _) in wanted.items():
            cluster.expect(tp.topic)
            state = self._states.state(tp)
            state.wanted = selection
            state.seek(selection.start_offset)
        # An answer of a leader takes as much memory as one of a single range.
        most_bytes = min(options.fetch_max_bytes, options.max_partition_fetch_bytes)
        self._fetcher = Fetcher(
            cluster, replace(options, fetch_max_bytes=most_bytes), self._states, for_task=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._fetcher.close()

    @property
    def retries(self) -> Mapping[TopicPartition, int]:
        """How often each was asked for again after an error; none if it never was."""
        return self._fetcher.retries

    def __iter__(self) -> Iterator[tuple[TopicPartition, DecodedRecords]]:
        """Decoded records; every item has at least one.

        Raises errors that are not of one partition: no authentication, an answer not of Kafka.
        """
        patience = Deadline(PATIENCE_MS, self._cluster.close_signal)
        while len(self._states):
            self._fetcher.send(patience)
            self._leave_topics_made_again()
            wait_s = min(self._fetcher.next_step_s, patience.remaining_s())
            self._fetcher.receive(0.0 if self._states.has_ready else wait_s)
            before = self._positions()
            for state in self._states.ready():
                yield from self._records_of(state)
            self._let_go_of_the_read()
            if self._positions() != before:
                patience = Deadline(PATIENCE_MS, self._cluster.close_signal)
            elif patience.expired:
                for state in list(self._states):
                    self._leave(state, f"nothing new for {PATIENCE_MS / 1000:g} s")

    def _positions(self) -> dict[TopicPartition, int]:
        return self._states.positions()

    def _records_of(self, state: PartitionState) -> Iterator[tuple[TopicPartition, DecodedRecords]]:
        try:
            while (found := state.columns(None, Deadline(PATIENCE_MS))) is not None:
                yield state.tp, found[0]
                state.advance(len(found[0]))
        except CorruptRecordError as error:
            self._leave(state, str(error))
            return
        if state.error is not None or state.out_of_range:
            self._leave(state, str(state.error or "its offset is out of range"))
        else:
            self._states.served(state)

    def _let_go_of_the_read(self) -> None:
        ends = {tp: one.selection.end_offset for tp, one in self._wanted.items()}
        at = self._positions()
        if any(offset >= ends[tp] for tp, offset in at.items()):
            self._states.replace([tp for tp, offset in at.items() if offset < ends[tp]])

    def _leave_topics_made_again(self) -> None:
        for state in list(self._states):
            if self._cluster.was_recreated(state.tp.topic, self._wanted[state.tp].topic_id):
                self._leave(state, "the topic has been recreated")

    def _leave(self, state: PartitionState, why: str) -> None:
        log.info("%s: read by itself from offset %s on: %s", state.tp, state.position, why)
        self.left[state.tp] = state.position or 0
        if state.error is not None:
            self._fetcher.retries[state.tp] += 1
        self.left_epochs[state.tp] = state.position_epoch
        self._states.replace([row.tp for row in self._states if row is not state])
