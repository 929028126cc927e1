"""From chunks of records to runs of one partition each."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.cluster.cluster import Cluster, no_partition
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.accumulator import Chunk
from sparkkafka.client.sender.rows import Block, Router, Rows
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.errors import KafkaError, OptionError
from sparkkafka.protocol.partitioning.partitioner import NO_PARTITION
from sparkkafka.protocol.records.arrow import from_numpy

LOOK_MS = 3_000
_GIVEN_UP = -2  # in place of a partition


class RecordRouter:
    """Chooses the partition of each record of a chunk, as Java's producer or librdkafka does.

    Records that ask for a partition that does not exist, and those for which the user's callable
    fails, are given up; the others of their chunk go on.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._partitioner = settings.partitioner
        self._router = Router.of(
            settings.producer,
            lambda names: {name: self._count(name) for name in names},
            cluster.partition_count,
        )

    def block(self, chunk: Chunk) -> Block | None:
        """The chunk's records by partition, None if all were given up; `rows` are their places. The
        cluster knows the topic."""
        rows, times_ms, partitions = chunk.rows()
        kept: NDArray[np.int64] | None = None
        if self._partitioner is not None:
            partitions = self._ask(chunk, rows, partitions)
        if partitions is not None:
            self._check(chunk, partitions)
            if (partitions == _GIVEN_UP).any():
                kept = np.flatnonzero(partitions != _GIVEN_UP)
                rows, partitions, times_ms = _take(rows, kept), partitions[kept], times_ms[kept]
        if not rows.length:
            return None
        block = self._router.checked_block(rows, partitions, times_ms)
        if kept is None:
            return block
        places = block.rows
        at = slice(places.start, places.stop) if isinstance(places, range) else places
        return block._replace(rows=kept[at])

    def _count(self, topic: str) -> int:
        count = self._cluster.partition_count(topic)
        if count is None:
            raise RuntimeError(f"routing for topic {topic} before it is known")
        return count

    def _ask(
        self, chunk: Chunk, rows: Rows, partitions: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """Ask the user's callable for each record without a partition."""
        partitioner, topic = self._partitioner, chunk.topic
        if partitions is None:
            partitions = np.full(rows.length, NO_PARTITION, np.int64)
        count = self._count(topic)
        for place in np.flatnonzero(partitions == NO_PARTITION).tolist():
            key = None if rows.keys is None else rows.keys[place].as_py()
            error: KafkaError | None = None
            try:
                chosen = partitioner(topic, key, rows.values[place].as_py(), count)  # type: ignore[misc]
            except (Exception, SystemExit) as failure:
                error = OptionError(
                    f"the callable partitioner.class failed for a record of topic {topic}: "
                    f"{type(failure).__name__}: {failure}"
                )
                error.__cause__ = failure
            else:
                if type(chosen) is int and 0 <= chosen < count:
                    partitions[place] = chosen
                    continue
                error = OptionError(
                    f"the callable partitioner.class returned {chosen!r} for a record of topic "
                    f"{topic}: it must be a whole number from 0 to {count - 1}"
                )
            partitions[place] = _GIVEN_UP
            chunk.failed(range(place, place + 1), error)
        return partitions

    def _check(self, chunk: Chunk, partitions: NDArray[np.int64]) -> None:
        """Give up records for partitions that do not exist, even after another look."""
        topic = chunk.topic
        if int(partitions.max()) >= self._count(topic):
            with contextlib.suppress(KafkaError):  # then what is known counts
                self._cluster.look_up([topic], Deadline(LOOK_MS))
        count = self._cluster.partition_count(topic)
        if count is None:
            return
        for number in np.unique(partitions[partitions >= count]).tolist():
            places = np.flatnonzero(partitions == number)
            partitions[places] = _GIVEN_UP
            error = no_partition(TopicPartition(topic, number), count)
            chunk.failed(places, error, partition=number)


def _take(rows: Rows, kept: NDArray[np.int64]) -> Rows:
    at = from_numpy(kept)
    return rows._replace(
        length=len(kept),
        keys=None if rows.keys is None else pc.take(rows.keys, at),
        values=pc.take(rows.values, at),
        headers=None if rows.headers is None else pc.take(rows.headers, at),
    )
