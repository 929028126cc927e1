"""The commit message of a write task, and what the driver reports of it to the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from sparkkafka.config.kinds import MetricsAddress
from sparkkafka.errors import some
from sparkkafka.spark.decision_text import CommitOutcome, TaskReport
from sparkkafka.spark.metric_reports import Count, Report


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


def report_write(
    address: MetricsAddress | None,
    finished: Sequence[KafkaCommitMessage],
    outcome: CommitOutcome | None = None,
) -> None:
    """Report to `sparkkafka.metrics` what the finished tasks of a write have written. `outcome`: of
    an exactly-once write, whose rows are counted only if they are visible."""
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
