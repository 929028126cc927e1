"""Batch reads that let Spark's filters narrow what is read: the option filterPushdown.

A class of its own: Spark fails every read of a reader class that has `pushFilters` as long as
spark.sql.python.filterPushdown.enabled is false, so it is made only on request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql.datasource import Filter

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import largest_timestamps, list_offsets
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.spark.read import pushdown
from sparkkafka.spark.read.planning import KafkaInputPartition
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import ReadColumn

log = logging.getLogger(__name__)


class FilterPushdownReader(KafkaBatchReader):
    """Reads what can pass the filters. (Its name stands in Spark's error if the conf is off.)"""

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        super().__init__(options, columns)
        self.bounds = pushdown.Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Spark calls this before `partitions`, on the same object, if there are any filters.

        All are given back: to check them again costs Spark next to nothing.

        What is planned after this stays with the DataFrame's relation in Spark (4.1 to 4.3: one
        PythonDataSourceV2.readInfo for all its scans), also for a later query that has no filter to
        push. Nothing that Python is told shows it, hence "call load() anew" in the docs.
        """
        self.bounds = pushdown.bounds_of(filters)
        return filters

    def narrowed(
        self, cluster: Cluster, ranges: list[KafkaInputPartition]
    ) -> list[KafkaInputPartition]:
        kept = pushdown.narrowed(ranges, self.bounds)
        start_ms, end_ms = pushdown.times_to_ask(
            self.bounds, self.options.max_timestamp_disorder_ms
        )
        partitions = [one.tp for one in kept]
        starts = _first_at(cluster, partitions, start_ms)
        ends = _first_at(cluster, partitions, end_ms)
        silent = [tp for tp, offset in starts.items() if offset < 0]
        largest_ms = largest_timestamps(cluster, silent)
        kept = pushdown.within_times(kept, start_ms, starts, ends, largest_ms)
        # A warning, since the next query of the same DataFrame may miss rows and nothing says so.
        log.warning(
            "filterPushdown: the filters of this query leave %d of %d offsets to read. Spark may "
            "keep that for later queries of the same DataFrame: load() anew for each",
            sum(one.count for one in kept),
            sum(one.count for one in ranges),
        )
        if self.bounds.times_ms == pushdown.EVERYTHING:
            return kept
        first_ms, last_ms = self.bounds.times_ms
        return [replace(one, times_ms=(first_ms, last_ms)) for one in kept]


def _first_at(
    cluster: Cluster, partitions: list[TopicPartition], time_ms: int | None
) -> Mapping[TopicPartition, int]:
    """Offsets of the first records of a time or later, -1 for none; nothing if there is no time.

    Records of open and aborted transactions count, whatever the reader is to see: the first record
    of all is never behind the first one that is visible.
    """
    if time_ms is None or not partitions:
        return {}
    found = list_offsets(cluster, dict.fromkeys(partitions, time_ms))
    return {tp: row.offset for tp, row in found.items()}
