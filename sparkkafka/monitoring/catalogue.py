"""The metrics: names by Prometheus' conventions, what they count, and their labels."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from sparkkafka.spark.metric_reports import Count


class Value(StrEnum):
    """Names of the aggregator's values. Those that come from reports are in `Count`."""

    # from Spark's progress
    BATCHES = "batches"
    INPUT_ROWS = "input_rows"
    LAG = "lag"
    LAST_BATCH_S = "last_batch_s"
    LAST_TRIGGER_S = "last_trigger_s"
    TRIGGER_S = "trigger_s"
    PART_S = "part_s"
    ACTIVE = "active"
    FAILURES = "failures"
    # from the brokers
    BEHIND_S = "behind_s"
    OLDEST_TRANSACTION_S = "oldest_transaction_s"
    LOOKUP_FAILURES = "lookup_failures"
    # of the reports themselves
    RECEIVED = "received"
    DROPPED = "dropped"


class Metric(NamedTuple):
    """A metric's `field` in the aggregator, its name and description, and its labels. Metrics with
    the label topic may also have partition. Names of counters end in _total; all others are gauges.
    """

    field: str
    name: str
    doc: str
    labels: tuple[str, ...] = ("query",)

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


_BY_TOPIC: Final = ("query", "topic")

BY_QUERY: Final = (
    Metric(Value.ACTIVE, "sparkkafka_query_active", "1 while the query runs, 0 after its end."),
    Metric(Value.FAILURES, "sparkkafka_query_failures_total", "Ends of the query with an error."),
    Metric(Value.BATCHES, "sparkkafka_batches_total", "Finished micro-batches."),
    Metric(Value.INPUT_ROWS, "sparkkafka_input_rows_total",
        "Rows that Spark read from Kafka sources."),
    Metric(Value.LAST_BATCH_S, "sparkkafka_last_progress_timestamp_seconds",
        "When the query last made progress, or reported that there was nothing to do."),
    Metric(Value.LAST_TRIGGER_S, "sparkkafka_last_trigger_seconds",
        "Duration of the last micro-batch."),
    Metric(Value.TRIGGER_S, "sparkkafka_trigger_seconds_total", "Total duration of micro-batches."),
    Metric(Value.PART_S, "sparkkafka_trigger_part_seconds_total",
        "Parts of that duration by Spark's names: addBatch, latestOffset, walCommit, …",
        ("query", "part")),
    Metric(Count.RETRIES, "sparkkafka_plan_retries_total",
        "Requests of planning that were retried."),
    Metric(Count.WRITTEN_BYTES, "sparkkafka_written_bytes_total",
        "Written bytes of keys and values."),
    Metric(Count.WRITE_RETRIES, "sparkkafka_write_retries_total",
        "Record batches that were sent again."),
    Metric(Count.COMMITTED, "sparkkafka_transactions_committed_total",
        "Committed transactions of exactly-once writes."),
    Metric(Count.ABORTED, "sparkkafka_transactions_aborted_total",
        "Aborted transactions of exactly-once writes."),
    Metric(Value.OLDEST_TRANSACTION_S,
        "sparkkafka_oldest_open_transaction_timestamp_seconds",
        "When the query's oldest open transaction began. Without one there is no value."),
)  # fmt: skip

BY_TOPIC: Final = (
    Metric(Count.OFFSETS, "sparkkafka_read_offsets_total",
        "Offsets read by finished micro-batches, markers and gaps included.", _BY_TOPIC),
    Metric(Value.LAG, "sparkkafka_lag_records", "Unread offsets.", _BY_TOPIC),
    Metric(Value.BEHIND_S, "sparkkafka_lag_seconds",
        "Age of the oldest unread record; for a topic the largest of its partitions.", _BY_TOPIC),
    Metric(Count.RECORDS, "sparkkafka_read_records_total",
        "Records read by tasks, or by the driver for a small micro-batch.", _BY_TOPIC),
    Metric(Count.BYTES, "sparkkafka_read_bytes_total",
        "Bytes of their keys, values and headers, as far as the query reads these columns.",
        _BY_TOPIC),
    Metric(Count.RETRIES, "sparkkafka_read_retries_total", "Fetches that were retried.", _BY_TOPIC),
    Metric(Count.LOST, "sparkkafka_lost_offsets_total",
        "Deleted offsets that were skipped (failOnDataLoss=false).", _BY_TOPIC),
    Metric(Count.BAD, "sparkkafka_bad_records_total", "Records that their schema cannot read.",
        _BY_TOPIC),
    Metric(Count.DEAD, "sparkkafka_dead_letters_total",
        "Bad records of the topic written to the dead-letter topic.", _BY_TOPIC),
    Metric(Count.ROWS, "sparkkafka_written_rows_total",
        "Rows written to the topic; with exactly-once only visible ones.", _BY_TOPIC),
)  # fmt: skip

# Metrics of the export, not of a query.
OWN: Final = (
    Metric(Value.RECEIVED, "sparkkafka_reports_received_total",
        "Valid reports from the driver's processes and the tasks.", ()),
    Metric(Value.DROPPED, "sparkkafka_reports_dropped_total",
        "Dropped reports, by reason: signature, form, repeated, or too many names.", ("reason",)),
    Metric(Value.LOOKUP_FAILURES, "sparkkafka_lookup_failures_total",
        "Failed lookups of lags and transactions.", ()),
)  # fmt: skip

ALL: Final = (*BY_QUERY, *BY_TOPIC, *OWN)
