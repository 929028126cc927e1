"""The metrics: names by Prometheus' rules, what they count, and their labels."""

from __future__ import annotations

from typing import Final, NamedTuple

from sparkkafka.spark import metric_reports

TOPIC: Final = ("query", "topic")
QUERY: Final = ("query",)


class Metric(NamedTuple):
    """`field` is its name in `numbers`; metrics with the label topic may have partition as well.
    A name that ends in _total is a counter's, any other a gauge's."""

    field: str
    name: str
    doc: str
    labels: tuple[str, ...] = QUERY

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


# --- of Spark's progress
BATCHES: Final = "batches"
INPUT_ROWS: Final = "input_rows"
LAG: Final = "lag"
LAST_BATCH_S: Final = "last_batch_s"
LAST_TRIGGER_S: Final = "last_trigger_s"
TRIGGER_S: Final = "trigger_s"
PART_S: Final = "part_s"
ACTIVE: Final = "active"
FAILURES: Final = "failures"
# --- of the brokers
BEHIND_S: Final = "behind_s"
OLDEST_TRANSACTION_S: Final = "oldest_transaction_s"
LOOKUP_FAILURES: Final = "lookup_failures"
# --- of metrics itself
RECEIVED: Final = "received"
DROPPED: Final = "dropped"

BY_QUERY: Final = (
    Metric(ACTIVE, "sparkkafka_query_active", "1 while the query runs, 0 after its end."),
    Metric(FAILURES, "sparkkafka_query_failures_total", "Ends of the query with an error."),
    Metric(BATCHES, "sparkkafka_batches_total", "Micro-batches that are finished."),
    Metric(INPUT_ROWS, "sparkkafka_input_rows_total", "Rows that Spark took from Kafka sources."),
    Metric(
        LAST_BATCH_S, "sparkkafka_last_progress_timestamp_seconds",
        "When the query last made progress, or said that it had nothing to do.",
    ),
    Metric(
        LAST_TRIGGER_S, "sparkkafka_last_trigger_seconds", "Time that the last micro-batch took.",
    ),
    Metric(TRIGGER_S, "sparkkafka_trigger_seconds_total", "Time that micro-batches took."),
    Metric(
        PART_S, "sparkkafka_trigger_part_seconds_total",
        "Parts of that time under Spark's names: addBatch, latestOffset, walCommit, …",
        ("query", "part"),
    ),
    Metric(
        metric_reports.RETRIES, "sparkkafka_plan_retries_total",
        "Requests of the plan of a micro-batch that were tried again.",
    ),
    Metric(
        metric_reports.WRITTEN_BYTES, "sparkkafka_written_bytes_total",
        "Bytes of keys and values that were written.",
    ),
    Metric(
        metric_reports.WRITE_RETRIES, "sparkkafka_write_retries_total",
        "Batches of records that were sent to a broker again.",
    ),
    Metric(
        metric_reports.COMMITTED, "sparkkafka_transactions_committed_total",
        "Transactions of exactly-once writes that were committed.",
    ),
    Metric(
        metric_reports.ABORTED, "sparkkafka_transactions_aborted_total",
        "Transactions of exactly-once writes that were aborted.",
    ),
    Metric(
        OLDEST_TRANSACTION_S, "sparkkafka_oldest_open_transaction_timestamp_seconds",
        "When the oldest transaction of the query that is not decided yet began. None: no value.",
    ),
)  # fmt: skip

BY_TOPIC: Final = (
    Metric(
        metric_reports.OFFSETS, "sparkkafka_read_offsets_total",
        "Offsets that finished micro-batches went over, markers and gaps included.", TOPIC,
    ),
    Metric(LAG, "sparkkafka_lag_records", "Offsets that are not read yet.", TOPIC),
    Metric(
        BEHIND_S, "sparkkafka_lag_seconds",
        "Age of the oldest record that is not read yet; of a topic that of its oldest partition.",
        TOPIC,
    ),
    Metric(
        metric_reports.RECORDS, "sparkkafka_read_records_total",
        "Records that tasks, or the driver for a small micro-batch, have read.", TOPIC,
    ),
    Metric(
        metric_reports.BYTES, "sparkkafka_read_bytes_total",
        "Bytes of their keys, values and headers, of the columns that the query reads.", TOPIC,
    ),
    Metric(
        metric_reports.RETRIES,
        "sparkkafka_read_retries_total",
        "Fetches that were tried again.",
        TOPIC,
    ),
    Metric(
        metric_reports.LOST, "sparkkafka_lost_offsets_total",
        "Offsets that were gone and skipped (failOnDataLoss=false).", TOPIC,
    ),
    Metric(
        metric_reports.BAD, "sparkkafka_bad_records_total",
        "Records that are not what their schema says.", TOPIC,
    ),
    Metric(
        metric_reports.DEAD, "sparkkafka_dead_letters_total",
        "Bad records of the topic that were written to the dead-letter topic.", TOPIC,
    ),
    Metric(
        metric_reports.ROWS, "sparkkafka_written_rows_total",
        "Rows that were written to the topic; with exactly-once, that are visible.", TOPIC,
    ),
)  # fmt: skip

OWN: Final = (
    Metric(
        RECEIVED, "sparkkafka_reports_received_total",
        "Reports of the driver's processes and tasks that count.", (),
    ),
    Metric(
        DROPPED, "sparkkafka_reports_dropped_total",
        "Datagrams that do not: signature, form, repeated, or too many names.", ("reason",),
    ),
    Metric(
        LOOKUP_FAILURES, "sparkkafka_lookup_failures_total",
        "Lookups of lags and transactions that failed.", (),
    ),
)  # fmt: skip

ALL: Final = (*BY_QUERY, *BY_TOPIC, *OWN)

# A topic's is that of its worst partition; the others are sums.
LARGEST_OF_PARTITIONS: Final = frozenset({BEHIND_S})
