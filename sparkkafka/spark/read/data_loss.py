"""failOnDataLoss for batch reads and streams: reports lost records as an error or a warning."""

from __future__ import annotations

import logging
from typing import NamedTuple

from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import DataLossError, counted, some
from sparkkafka.spark.metric_reports import Count, Report

log = logging.getLogger(__name__)

MAX_LISTED = 10
"""How many partitions an error message lists."""


class Loss(NamedTuple):
    """Offsets that a batch read or a micro-batch cannot read, and the JVM connector's condition.

    `missing` counts the offsets, 0 if that is unknown. Some may never have had a record
    (compaction, markers).
    """

    condition: str
    text: str
    missing: int
    tp: TopicPartition | None = None


def apply_fail_on_data_loss(
    losses: list[Loss], report: Report, *, fail: bool, streaming: bool = False
) -> None:
    """Raise DataLossError if `fail` (failOnDataLoss=true). Else log one warning, and count the
    missing offsets in `report`, as far as they are known."""
    if fail:
        raise loss_error(losses, streaming=streaming)
    for loss in losses:
        if loss.tp is not None:
            report.add(Count.LOST, loss.missing, *loss.tp)
    log.warning("%s", loss_warning(losses, streaming=streaming))


def loss_error(losses: list[Loss], *, streaming: bool = False) -> DataLossError:
    """Return the error of failOnDataLoss=true: what was requested, what exists, and what to do. For
    a stream it begins with the JVM connector's sentence."""
    what = _texts_of(losses)
    if streaming:
        text = (
            "Some data may have been lost because they are not available in Kafka any more; either "
            "the data was aged out by Kafka or the topic may have been deleted before all the data "
            f"in the topic was processed. Reason: {what}. To continue with the records that exist, "
            "restart the query with failOnDataLoss=false, which leaves out those of a recreated "
            "topic before the checkpoint's offsets (sparkkafka checkpoint reset chooses others); "
            "to read again from startingOffsets, use a new checkpoint location"
        )
    else:
        text = (
            f"{what}. Records were deleted (retention, or the topic was recreated), or the offsets "
            "lie beyond the end of the log (with read_committed, beyond the start of an open "
            "transaction). Choose startingOffsets and endingOffsets within what is available, or "
            "set failOnDataLoss=false to read what there is"
        )
    conditions = sorted({loss.condition for loss in losses})
    return DataLossError(f"[{', '.join(conditions)}] {text}")


def loss_warning(losses: list[Loss], *, streaming: bool = False) -> str:
    """Return the line that failOnDataLoss=false logs: how many offsets are missing, and where."""
    missing = sum(loss.missing for loss in losses)
    if streaming:
        count = f"{missing} offsets or more" if missing else "an unknown number of offsets"
        skipped = f"{count} skipped"
    else:
        count = f"{missing} requested offsets" if missing else "requested offsets"
        where = counted(len(losses), "partition")
        skipped = f"{count} in {where} do not exist and are skipped"
    return f"data loss, failOnDataLoss=false: {skipped}: {_texts_of(losses)}"


def _texts_of(losses: list[Loss]) -> str:
    """Return the texts of the first losses, and how many more there are."""
    return some((loss.text for loss in losses), MAX_LISTED, separator="; ")
