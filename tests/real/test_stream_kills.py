"""The driver of a stream is killed (`kill -9`: Python, JVM and workers at once) at random moments.

A producer keeps writing meanwhile. After the restarts no row may be lost and none be there twice.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.real.drivers import driver, wait_for_start
from tests.real.streams import Job, SteadyWriter, assert_each_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

PARTITIONS = 3


def finished_more(job: Job, before: int) -> bool:
    return job.batches()[1] > before


# In `make test` notebook 3 and test_brokers_die.py kill drivers of streams.
@pytest.mark.soak
@pytest.mark.parametrize("kills", [20])
def test_no_row_is_lost_or_doubled(
    kills: int, spark: SparkSession, kafka_cluster, new_topic, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SPARKKAFKA_SEED") or time.time_ns() % 1_000_000)
    moments = random.Random(seed)
    print(f"SPARKKAFKA_SEED={seed}")  # pytest shows it if the test fails
    topic = new_topic(partitions=PARTITIONS)
    bootstrap = kafka_cluster.bootstrap_servers
    # Small batches, one after the other: the kill may come at any step of one.
    job = Job(bootstrap, str(tmp_path), {"subscribe": topic, "maxOffsetsPerTrigger": "700"})
    with SteadyWriter(bootstrap, topic, PARTITIONS, per_second=200) as writer:
        for number in range(1, kills + 1):
            _, before = job.batches()
            started_s = time.monotonic()
            with driver(job) as process:
                wait_for_start(process, job)
                # Every second one while batches follow each other, the others also before the
                # first batch, which takes a new driver some seconds.
                if number % 2:
                    wait_until(partial(finished_more, job, before), "a batch is finished")
                delay_s = moments.uniform(0, 2 if number % 2 else 6)
                time.sleep(delay_s)
                assert process.poll() is None, "the driver ended by itself"
            planned, finished = job.batches()
            seconds = time.monotonic() - started_s
            print(f"kill {number} after {seconds:.1f} s: {planned} planned, {finished} finished")
        count = writer.stop()
    job.run_to_end(spark, seconds=300)
    assert_each_once(job.values(spark), count)
    planned, finished = job.batches()
    print(f"{count} rows, {planned} batches")
