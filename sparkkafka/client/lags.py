"""How far somebody is behind, partition by partition: offsets from Admin, ages from the records.

    lags_of(admin, committed)          for offsets from anywhere: a group, a checkpoint
    Ages(settings).added_to(lags, deadline)

The age is that of the oldest record that is not read yet: it is fetched, and its timestamp (the
producer's, or the broker's with message.timestamp.type=LogAppendTime) is held against this
machine's clock. Kafka keeps no other trace of when the reader was at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError

if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer

AGES_MS: Final = 5_000
"""The longest that ages are waited for: a lag without them says much, too."""

_SETTINGS: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    # One batch of each partition is enough.
    "max.partition.fetch.bytes": "65536",
}
_NO_GROUP: Final = ("group.id", "group.instance.id", "group.protocol", "group.remote.assignor")


@dataclass(frozen=True, kw_only=True)
class PartitionLag:
    """One partition. `committed` is the next offset to read, None if there is none; `gone` how many
    offsets after it retention has deleted; `behind_s` the age of the oldest unread record."""

    partition: TopicPartition
    committed: int | None
    earliest: int | None
    latest: int | None
    behind_s: float | None = None
    error: KafkaError | None = None

    @property
    def lag(self) -> int | None:
        """Offsets that are not read yet. Markers and what compaction took count, as everywhere."""
        if self.committed is None or self.latest is None:
            return None
        return max(0, self.latest - self.committed)

    @property
    def beyond(self) -> int:
        """How far it is behind the end: the topic was made again, or has lost records."""
        if self.committed is None or self.latest is None:
            return 0
        return max(0, self.committed - self.latest)

    @property
    def gone(self) -> int:
        if self.committed is None or self.earliest is None:
            return 0
        return max(0, self.earliest - self.committed)


def lags_of(
    admin: Admin,
    committed: Mapping[TopicPartition, int | None],
    *,
    timeout_s: float | None = None,
) -> list[PartitionLag]:
    """In the order of topics and partitions; an error stands in its partition's row. `timeout_s` is
    for each of two calls."""
    partitions = sorted(committed)
    earliest, latest = (
        dict.fromkeys(partitions, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    first = admin.list_offsets(earliest, timeout_s=timeout_s)
    last = admin.list_offsets(latest, timeout_s=timeout_s)
    found = []
    for tp in partitions:
        error = first.errors.get(tp) or last.errors.get(tp)
        found.append(
            PartitionLag(
                partition=tp,
                committed=committed[tp],
                earliest=None if error else first[tp].offset,
                latest=None if error else last[tp].offset,
                error=error,
            )
        )
    return found


class Ages:
    """Fetches the oldest unread record of each partition for its timestamp; to be closed.

    `settings` are a consumer's; its group is not joined, nothing is committed. The consumer is made
    at the first look that needs one, and keeps its connections for the next.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        own = {
            key: value
            for key, value in settings.items()
            if key.lower() not in _NO_GROUP and key.lower() not in _SETTINGS
        }
        self._settings = own | _SETTINGS
        self._consumer: Consumer | None = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(0)

    def added_to(self, rows: Iterable[PartitionLag], deadline: Deadline) -> list[PartitionLag]:
        """The rows with `behind_s` where there is something to read and it could be fetched in
        time; 0 where nothing is. Raises KafkaError if records may not be read."""
        rows = list(rows)
        starts = {
            row.partition: max(row.committed, row.earliest)
            for row in rows
            if row.lag and row.committed is not None and row.earliest is not None
        }
        timestamps = self._first_timestamps(starts, deadline.sooner(AGES_MS)) if starts else {}
        now_ms = time.time() * 1000
        aged = []
        for row in rows:
            timestamp_ms = timestamps.get(row.partition)
            if row.lag == 0:
                row = replace(row, behind_s=0.0)
            elif timestamp_ms is not None:
                row = replace(row, behind_s=max(0.0, (now_ms - timestamp_ms) / 1000))
            aged.append(row)
        return aged

    def _first_timestamps(
        self, starts: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """The timestamp in ms of the first record at or behind each offset, of those that came in
        time and have one (-1: none)."""
        # Here: it brings Arrow, which offsets alone do not need.
        from sparkkafka.client.consumer.consumer import Consumer

        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        consumer = self._consumer
        found: dict[TopicPartition, int] = {}
        consumer.assign(starts)
        consumer.resume(list(starts))
        while len(found) < len(starts) and not deadline.expired:
            table = consumer.poll_arrow(deadline.remaining_s())
            if not table.num_rows:
                continue
            rows = table.select(["topic", "partition", "timestamp"])
            rows = rows.set_column(2, "timestamp", rows["timestamp"].cast("int64"))  # microseconds
            groups = rows.group_by(["topic", "partition"], use_threads=False)
            seen = []
            for row in groups.aggregate([("timestamp", "first")]).to_pylist():
                tp = TopicPartition(row["topic"], row["partition"])
                seen.append(tp)
                found.setdefault(tp, row["timestamp_first"] // 1000)
            consumer.pause(seen)
        return {tp: timestamp_ms for tp, timestamp_ms in found.items() if timestamp_ms >= 0}
