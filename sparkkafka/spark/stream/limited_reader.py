"""The stream reader for Spark 4.2 and later, which hands over start and limit of a micro-batch.

It cannot be imported on an older Spark: `KafkaDataSource.streamReader` looks for that.
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sparkkafka.spark.stream.reader import KafkaStreamReader, Tree, offsets_of, tree_of


class LimitedStreamReader(KafkaStreamReader, SupportsTriggerAvailableNow):
    """Keeps maxOffsetsPerTrigger and its kin, and stops Trigger.AvailableNow where it should."""

    def latestOffset(self, start: Tree, limit: ReadLimit) -> Tree:
        """Where the next micro-batch ends.

        Trigger.Once passes ReadAllAvailable whatever the options say: it reads all there is, as
        with the JVM connector. Otherwise the options decide, since no ReadLimit holds all of them.
        """
        limited = not isinstance(limit, ReadAllAvailable)
        return tree_of(self._offsets.next_end(offsets_of(start), limited=limited))

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self.options.stream
        if limits.max_offsets_per_trigger is not None:
            return ReadMaxRows(limits.max_offsets_per_trigger)
        if limits.max_bytes_per_trigger is not None:
            return ReadMaxBytes(limits.max_bytes_per_trigger)
        if limits.min_offsets_per_trigger is not None:
            return ReadMinRows(limits.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Tree | None:
        """The ends of the partitions when a batch was last asked for; `sources[].latestOffset`
        of the query's progress."""
        self._offsets.finish_batch()
        return tree_of(self._offsets.latest) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self._offsets.stop_at_latest()
