"""Many micro-batches in one query: what the driver's Python process holds stays the same."""

from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.real.processes import RUNNER, held_by
from tests.real.streams import position, stream_of, write_values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

WARM_UP = 20
PER_BATCH = 4
PARTITIONS = 2
GROWTH_BYTES = 20_000_000


def runners() -> set[psutil.Process]:
    """The processes in which stream readers live on the driver."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if RUNNER in process.cmdline():
                found.add(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize(
    "batches", [pytest.param(20, id="20"), pytest.param(2000, id="2000", marks=pytest.mark.soak)]
)
def test_nothing_grows(
    batches: int, spark: SparkSession, kafka_cluster: Any, new_topic: Any, tmp_path: Path
) -> None:
    bootstrap, topic = kafka_cluster.bootstrap_servers, new_topic(partitions=PARTITIONS)
    total = (WARM_UP + batches + 20) * PER_BATCH
    for partition in range(PARTITIONS):
        write_values(bootstrap, topic, range(total // PARTITIONS), partition)
    before = runners()
    options = {"subscribe": topic, "maxOffsetsPerTrigger": str(PER_BATCH)}
    query = (
        stream_of(spark, bootstrap, options)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:

        def reach(batch: int, seconds: float) -> None:
            wait_until(lambda: position(query) >= batch * PER_BATCH, f"batch {batch}", seconds)

        reach(WARM_UP, 120)
        (runner,) = runners() - before
        first, started_s = held_by(runner), time.monotonic()
        print(f"after {WARM_UP} batches: {first}")
        step = max(batches // 8, 20)
        for batch in range(WARM_UP + step, WARM_UP + batches + 1, step):
            reach(batch, 10 + 2 * step)
            now = held_by(runner)
            seconds = (time.monotonic() - started_s) / (batch - WARM_UP)
            print(f"after {batch} batches: {now}, {seconds:.3f} s a batch")
            # A busy machine may take a fetch's time for all that `held_by` reads.
            wait_until(
                lambda: all(map(operator.le, held_by(runner)[1:], first[1:])),
                "threads and files do not grow",
            )
            assert now.rss_bytes - first.rss_bytes < GROWTH_BYTES
    finally:
        query.stop()
    wait_until(lambda: runners() == before, "the process of the stopped query ends")
