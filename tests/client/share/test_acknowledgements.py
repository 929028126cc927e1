"""What is acknowledged of records that a leader has handed out, against a slow model."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.share import (
    GAP,
    AcknowledgeType,
    AcquiredPartition,
    AcquiredRange,
    DamagedError,
    PolledRecords,
    ShareRecord,
    acknowledge_range,
    acknowledged_ranges,
    renewed_offsets,
    sorted_by_offset,
    sorted_ranges,
    without_renewals,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.columns.columns import DecodedRecords
from sparkkafka.protocol.messages import AcknowledgementBatch, AcquiredRecords

TP = TopicPartition("t", 0)
SOON = Deadline(1_000)


class Fetched:
    """Stands for FetchedRecords: pieces of offsets, then perhaps damage."""

    def __init__(self, pieces: list[list[int]], next_offset: int, damage: Any = None) -> None:
        self._pieces = [columns(offsets) for offsets in pieces]
        self._damage = damage
        self.next_offset = next_offset

    @property
    def is_decoded(self) -> bool:
        return not self._pieces and self._damage is None

    def next_records(self, deadline: Deadline) -> DecodedRecords | None:
        if self._pieces:
            return self._pieces.pop(0)
        if self._damage is not None:
            raise self._damage
        return None

    def drop(self) -> None:
        self._pieces = []


def columns(offsets: list[int]) -> DecodedRecords:
    count = len(offsets)
    return DecodedRecords(
        np.array(offsets, np.int64), None, np.zeros(count, np.int32), None, None, None
    )


def acquired(pieces: list[list[int]], ranges: list[AcquiredRange], end: int, damage: Any = None):
    fetched: Any = Fetched(pieces, end, damage)
    return AcquiredPartition(TP, SimpleNamespace(generation=0), fetched, ranges)


def expanded(batches: list[AcknowledgementBatch]) -> dict[int, int]:
    """Offset -> type, as a broker reads it; checks the order that brokers require."""
    found: dict[int, int] = {}
    last = -1
    for batch in sorted_by_offset(batches):
        assert last < batch.first_offset <= batch.last_offset
        last = batch.last_offset
        size = batch.last_offset - batch.first_offset + 1
        kinds = batch.acknowledge_types
        assert len(kinds) in (1, size)
        for at in range(size):
            found[batch.first_offset + at] = kinds[0 if len(kinds) == 1 else at]
    return found


def test_records_gaps_and_what_lies_outside_against_a_model() -> None:
    """Random ranges over random records, decoded in random pieces."""
    chance = random.Random(1)
    for _ in range(300):
        end = chance.randint(1, 60)
        offsets = sorted(chance.sample(range(end), chance.randint(0, end)))
        ranges, at = [], 0
        while at < end:
            first = at + chance.randint(0, 3)
            last = min(first + chance.randint(0, 12), end + 3)
            if first <= last and first < end:
                ranges.append(AcquiredRange(first, last, chance.randint(1, 5)))
            at = last + 1
        cuts = sorted(chance.sample(range(len(offsets) + 1), min(2, len(offsets))))
        pieces = [
            row
            for row in (
                offsets[start:stop]
                for start, stop in zip([0, *cuts], [*cuts, len(offsets)], strict=True)
            )
            if row
        ]
        source = acquired(pieces, list(ranges), end)
        got: list[tuple[int, int]] = []
        said: list[AcknowledgementBatch] = []
        while not source.is_exhausted:
            records, _, gaps = source.next(SOON)
            got += [(row.offset, row.delivery_count) for row in records]
            said += gaps
        counts = {
            offset: row.delivery_count
            for row in ranges
            for offset in range(row.first_offset, row.last_offset + 1)
        }
        assert got == [(offset, counts[offset]) for offset in offsets if offset in counts]
        # Behind the last batch it is not known whether there are records.
        expected = {
            offset: GAP if offset < end else AcknowledgeType.RELEASE
            for offset in counts
            if offset not in offsets
        }
        assert expanded(said) == expected


def test_a_range_of_all_offsets_that_exist_costs_nothing() -> None:
    source = acquired([[5, 9]], [AcquiredRange(0, 2**63 - 2, 1)], 2**62)
    records, _, gaps = source.next(SOON)
    assert [row.offset for row in records] == [5, 9]
    assert [(row.first_offset, row.last_offset) for row in sorted_by_offset(gaps)] == [
        (0, 4), (6, 8), (10, 2**62 - 1), (2**62, 2**63 - 2),
    ]  # fmt: skip


def test_decisions_are_runs() -> None:
    polled = PolledRecords(acquired([], [], 0), [record(at) for at in (3, 4, 5, 6, 9, 10)])
    assert polled.acknowledge(4, AcknowledgeType.REJECT)
    assert not polled.acknowledge(7, AcknowledgeType.ACCEPT)
    assert not polled.acknowledge(11, AcknowledgeType.ACCEPT)
    assert (polled.unacknowledged_count, polled.first_unacknowledged) == (5, 3)
    assert [batch.acknowledge_types for batch in polled.take_acknowledged()[0]] == [[3]]
    assert not polled.acknowledge(4, AcknowledgeType.ACCEPT), "its response is on its way"
    assert polled.acknowledge(6, AcknowledgeType.RELEASE)
    polled.acknowledge_rest(AcknowledgeType.ACCEPT)
    batches, renewed = polled.take_acknowledged()
    assert renewed == []
    assert expanded(batches) == {3: 1, 5: 1, 6: 2, 9: 1, 10: 1}
    assert [batch.acknowledge_types for batch in batches] == [[1], [1, 2], [1]]
    assert polled.unacknowledged_count == 0
    assert polled.take_acknowledged() == ([], [])


def record(offset: int) -> ShareRecord:
    return ShareRecord(TP.topic, TP.partition, offset, -1, -1, None, b"x", (), 1)


def test_what_is_renewed_is_told_apart() -> None:
    polled = PolledRecords(acquired([], [], 0), [record(at) for at in (3, 4, 5, 9)])
    for offset in (4, 5, 9):
        assert polled.acknowledge(offset, AcknowledgeType.RENEW)
    assert polled.acknowledge(5, AcknowledgeType.ACCEPT), "the last word counts"
    batches, renewed = polled.take_acknowledged()
    assert renewed == [record(4), record(9)]
    assert renewed_offsets(batches) == [4, 9]
    assert polled.first_unacknowledged == 3
    given_back = [without_renewals(batch) for batch in batches]
    assert expanded(given_back) == {4: 2, 5: 1, 9: 2}
    (whole,) = [without_renewals(acknowledge_range(20, 23, AcknowledgeType.RENEW))]
    assert expanded([whole]) == dict.fromkeys(range(20, 24), 2)
    assert renewed_offsets([acknowledge_range(20, 23, AcknowledgeType.RENEW)]) == [20, 21, 22, 23]
    assert renewed_offsets([acknowledge_range(0, 2**63 - 2, GAP)]) == [], "a gap costs nothing"


@pytest.mark.parametrize("next_offset", [8, None])
def test_damage_is_rejected_and_what_lies_behind_it_released(next_offset: int | None) -> None:
    damage = CorruptRecordError("a CRC is wrong")
    damage.next_offset = next_offset
    source = acquired([[0, 1, 2]], [AcquiredRange(0, 9, 1)], 3, damage)
    records, _, gaps = source.next(SOON)
    assert ([row.offset for row in records], gaps) == ([0, 1, 2], [])
    with pytest.raises(DamagedError) as caught:
        source.next(SOON)
    assert source.is_exhausted
    rejected = {} if next_offset is None else dict.fromkeys(range(3, 8), 3)
    assert expanded(caught.value.batches) == dict.fromkeys(range(3, 10), 2) | rejected


def test_what_nobody_wants_is_released() -> None:
    source = acquired([[0, 1], [2, 3]], [AcquiredRange(0, 3, 1), AcquiredRange(6, 7, 2)], 8)
    source.next(SOON)
    assert expanded(source.drop()) == {2: 2, 3: 2, 6: 2, 7: 2}
    assert source.drop() == []


def test_offsets_of_a_callback_have_no_gaps() -> None:
    batches = [
        AcknowledgementBatch(first_offset=5, last_offset=6, acknowledge_types=[1, 2]),
        AcknowledgementBatch(first_offset=3, last_offset=4, acknowledge_types=[0]),
        AcknowledgementBatch(first_offset=1, last_offset=2, acknowledge_types=[1]),
    ]
    assert acknowledged_ranges(batches) == [range(1, 3), range(5, 7)]


@pytest.mark.parametrize(
    "rows",
    [[(0, 3), (3, 5)], [(4, 3)], [(-1, 3)], [(0, 10), (2, 3)]],
    ids=["overlap", "backwards", "negative", "inside"],
)
def test_what_is_no_list_of_ranges(rows: list[tuple[int, int]]) -> None:
    given = [AcquiredRecords(first_offset=a, last_offset=b, delivery_count=1) for a, b in rows]
    assert sorted_ranges(given) is None
