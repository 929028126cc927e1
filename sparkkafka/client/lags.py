"""A consumer's lag by partition: in offsets, from Admin, and as an age, from the records.

    list_lags(admin, committed)            for offsets of a group or a checkpoint
    AgeReader(settings).add_ages(lags, deadline)

The age is that of the oldest unread record. The record is fetched, and its timestamp (the
producer's, or the broker's with message.timestamp.type=LogAppendTime) is compared with this
machine's clock. Kafka does not store when a consumer was last at the end of the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.metadata import unknown_partition_error
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError

if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer


@dataclass(frozen=True, kw_only=True)
class PartitionLag:
    """The lag of one partition. `committed` is the next offset to read, None if there is none;
    `behind_s` the age of the oldest unread record."""

    partition: TopicPartition
    committed: int | None
    earliest: int | None
    latest: int | None
    behind_s: float | None = None
    error: KafkaError | None = None

    @property
    def lag(self) -> int | None:
        """The number of unread offsets. Transaction markers and compacted records count, as in
        Kafka's tools."""
        if self.committed is None or self.latest is None:
            return None
        return max(0, self.latest - self.committed)

    @property
    def beyond(self) -> int:
        """The number of offsets from the end of the log to `committed`, if that is later: the topic
        was recreated, or the log lost records. Otherwise 0."""
        if self.committed is None or self.latest is None:
            return 0
        return max(0, self.committed - self.latest)

    @property
    def gone(self) -> int:
        """The number of unread offsets whose records retention has deleted."""
        if self.committed is None or self.earliest is None:
            return 0
        return max(0, self.earliest - self.committed)


def list_lags(
    admin: Admin, committed: Mapping[TopicPartition, int | None], *, timeout_s: float | None = None
) -> list[PartitionLag]:
    """Look up the lag of each partition, and return them sorted by partition. The error of a
    partition is in its row.

    `timeout_s` is for each of three calls.
    """
    partitions = sorted(committed)
    # Groups keep the offsets of deleted topics for days. Listing offsets would wait for such a
    # topic, which may have been created a moment ago: describing it does not wait.
    described = admin.describe_topics({tp.topic for tp in partitions}, timeout_s=timeout_s)
    errors: dict[TopicPartition, KafkaError] = {}
    for tp in partitions:
        topic = described.values_by_item.get(tp.topic)
        if topic is None:
            errors[tp] = described.errors[tp.topic]
        elif tp.partition >= len(topic.partitions):
            errors[tp] = unknown_partition_error(tp, len(topic.partitions))
    existing = [tp for tp in partitions if tp not in errors]
    earliest, latest = (
        admin.list_offsets(dict.fromkeys(existing, spec), timeout_s=timeout_s)
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    errors |= latest.errors | earliest.errors
    lags = []
    for tp in partitions:
        error = errors.get(tp)
        lags.append(
            PartitionLag(
                partition=tp,
                committed=committed[tp],
                earliest=None if error else earliest[tp].offset,
                latest=None if error else latest[tp].offset,
                error=error,
            )
        )
    return lags


def settings_without_group(settings: Mapping[str, str], fixed: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a consumer that joins no group and commits nothing: `settings` with
    the values of `fixed` in place of their own."""
    fixed = {"enable.auto.commit": "false", **fixed}
    group = ("group.id", "group.instance.id", "group.protocol", "group.remote.assignor")
    replaced = {*fixed, *group}
    others = {key: value for key, value in settings.items() if key.lower() not in replaced}
    return {**others, **fixed}


class AgeReader:
    """Fetches the oldest unread record of each partition, for its timestamp. Call `close` at the
    end.

    `settings` are a consumer's. The consumer joins no group and commits nothing. It is created when
    the first record is fetched, and keeps its connections.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        # One batch of each partition is enough.
        fixed = {"auto.offset.reset": "earliest", "max.partition.fetch.bytes": "65536"}
        self._settings = settings_without_group(settings, fixed)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(0)

    def add_ages(self, lags: Iterable[PartitionLag], deadline: Deadline) -> list[PartitionLag]:
        """Return the lags with `behind_s`: 0 without unread records, None if the oldest unread
        record did not come in time. Raises KafkaError if records may not be read."""
        lags = list(lags)
        starts = {
            lag.partition: max(lag.committed, lag.earliest)
            for lag in lags
            if lag.lag and lag.committed is not None and lag.earliest is not None
        }
        # No longer than 5 s: a lag in offsets is useful without its age.
        timestamps_ms = self._first_timestamps(starts, deadline.sooner(5_000))
        now_ms = time.time() * 1000
        aged = []
        for lag in lags:
            timestamp_ms = timestamps_ms.get(lag.partition)
            if lag.lag == 0:
                lag = replace(lag, behind_s=0.0)
            elif timestamp_ms is not None:
                lag = replace(lag, behind_s=max(0.0, (now_ms - timestamp_ms) / 1000))
            aged.append(lag)
        return aged

    def _first_timestamps(
        self, starts: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Return the timestamp in ms of the first record at or after each offset, if it comes in
        time and has a timestamp (-1 in a record stands for none)."""
        if not starts:
            return {}
        # Not at the top: it loads Arrow, which offsets do not need.
        from sparkkafka.client.consumer.consumer import Consumer

        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        consumer = self._consumer
        timestamps_ms: dict[TopicPartition, int] = {}
        consumer.assign(starts)
        consumer.resume(list(starts))  # an earlier call has paused them
        while len(timestamps_ms) < len(starts) and not deadline.expired:
            table = consumer.poll_arrow(deadline.remaining_s())
            if not table.num_rows:
                continue
            rows = table.select(["topic", "partition", "timestamp"])
            rows = rows.set_column(2, "timestamp", rows["timestamp"].cast("int64"))  # microseconds
            groups = rows.group_by(["topic", "partition"], use_threads=False)
            answered = []
            for row in groups.aggregate([("timestamp", "first")]).to_pylist():
                tp = TopicPartition(row["topic"], row["partition"])
                answered.append(tp)
                timestamps_ms.setdefault(tp, row["timestamp_first"] // 1000)
            consumer.pause(answered)  # one record of each is enough
        return {tp: time_ms for tp, time_ms in timestamps_ms.items() if time_ms >= 0}
