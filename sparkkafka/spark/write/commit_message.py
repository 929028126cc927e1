"""What a write task reports to the driver, and what the driver logs and measures from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from sparkkafka.config.kinds import MetricsAddress
from sparkkafka.errors import some
from sparkkafka.spark.exactly_once.decision_text import CommitOutcome, TaskReport
from sparkkafka.spark.metric_reports import Count, Report

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KafkaCommitMessage(WriterCommitMessage):
    """What one task wrote, and the brokers acknowledged as `kafka.acks` requires.

    `payload_bytes` counts keys and values, `batch_bytes` record batches as sent, `retries` batches
    that were sent again. `partitions` maps (topic, partition) to the number of rows and the first
    and last offset, -1 if unknown (acks=0); other producers' records may lie between these offsets.
    `report` is about the task's transaction in an exactly-once write, None in any other.
    `query_id` is the streaming query's, "" in a batch write.
    """

    rows: int = 0
    payload_bytes: int = 0
    batches: int = 0
    batch_bytes: int = 0
    retries: int = 0
    partitions: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    report: TaskReport | None = None
    query_id: str = ""

    def text(self, max_partitions: int = 20) -> str:
        """Return one line, with the offsets of at most `max_partitions` partitions."""
        offsets = (
            f"{topic}-{partition}: {first}..{last}"
            for (topic, partition), (_, first, last) in self.partitions.items()
        )
        return (
            f"{self.rows} rows ({self.payload_bytes} bytes of keys and values) in {self.batches} "
            f"batches ({self.batch_bytes} bytes as sent, {self.retries} retries), offsets "
            f"{some(offsets, max_partitions) or 'none'}"
        )


def log_commit(messages: Iterable[WriterCommitMessage | None], prefix: str = "") -> None:
    """Log one line with the totals, beginning with `prefix`."""
    finished = _finished_messages(messages)
    partitions = {key for message in finished for key in message.partitions}
    log.info(
        "%swrote %d rows (%d bytes of keys and values) to %d partitions of %d topics in %d tasks, "
        "%d batches (%d bytes as sent, %d retries)",
        prefix,
        sum(message.rows for message in finished),
        sum(message.payload_bytes for message in finished),
        len(partitions),
        len({topic for topic, _ in partitions}),
        len(finished),
        sum(message.batches for message in finished),
        sum(message.batch_bytes for message in finished),
        sum(message.retries for message in finished),
    )


def log_abort(
    messages: Iterable[WriterCommitMessage | None], rewrite_hint: str, prefix: str = ""
) -> None:
    """Log which rows a failed write leaves in Kafka. `rewrite_hint` says when they are written
    again."""
    finished = _finished_messages(messages)
    log.warning(
        "%sthe write failed, and writes are at-least-once: %d rows of %d finished tasks are in "
        "Kafka and stay there, and tasks that did not finish may have written some rows, too; %s",
        prefix,
        sum(message.rows for message in finished),
        len(finished),
        rewrite_hint,
    )


def report_write(
    address: MetricsAddress | None,
    messages: Iterable[WriterCommitMessage | None],
    outcome: CommitOutcome | None = None,
) -> None:
    """Report a finished write to `sparkkafka.metrics`. `outcome` is that of an exactly-once write:
    its rows are counted only if they are visible."""
    finished = _finished_messages(messages)
    if address is None or not finished:
        return
    report = Report(query=finished[0].query_id)
    if finished[0].report is not None:
        report.prefix = finished[0].report.names.prefix
    for message in finished:
        report.add(Count.WRITE_RETRIES, message.retries)
        if outcome is None or outcome.visible:
            report.add(Count.WRITTEN_BYTES, message.payload_bytes)
            for (topic, partition), (rows, _, _) in message.partitions.items():
                report.add(Count.ROWS, rows, topic, partition)
    if outcome is not None:
        report.add(Count.COMMITTED, outcome.committed)
        report.add(Count.ABORTED, outcome.aborted)
    report.send(address)


def task_reports(messages: Iterable[WriterCommitMessage | None]) -> list[TaskReport]:
    """Return the exactly-once reports of the tasks that succeeded."""
    return [
        message.report for message in _finished_messages(messages) if message.report is not None
    ]


def _finished_messages(
    messages: Iterable[WriterCommitMessage | None],
) -> list[KafkaCommitMessage]:
    """Return the messages of the tasks that succeeded: Spark passes None for each other one."""
    return [message for message in messages if isinstance(message, KafkaCommitMessage)]
