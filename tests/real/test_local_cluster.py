"""Executors in processes of their own: nothing depends on the one process that local[2] is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.drivers import driver, wait_for_start
from tests.real.peers import confluent_read
from tests.real.standalone import executors
from tests.real.streams import Job, SteadyWriter, assert_each_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak]

MASTER = "local-cluster[2,1,1024]"
PARTITIONS = 4
PER_SECOND = 100
BATCHES = 3
WAIT_S = 180.0


@pytest.mark.parametrize("by_driver", ["10000", "0"], ids=["driver-reads", "tasks-read"])
def test_executors_that_die_lose_nothing(
    by_driver: str, kafka_cluster: Any, new_topic: Any, tmp_path: Path
) -> None:
    bootstrap = kafka_cluster.bootstrap_servers
    source, sink = new_topic(partitions=PARTITIONS), new_topic(partitions=PARTITIONS)
    job = Job(
        bootstrap,
        str(tmp_path),
        {"subscribe": source, "maxRecordsReadByDriver": by_driver, "maxRangesPerTask": "1"},
        sink_options={
            "topic": sink,
            "deliveryGuarantee": "exactly-once",
            "transactionalIdPrefix": f"local-cluster-{by_driver}",
        },
        columns=["value", "partition"],
        master=MASTER,
    )

    def some_batches() -> None:
        before = job.last_finished()
        wait_until(lambda: job.last_finished() >= before + BATCHES, "micro-batches", WAIT_S)

    def values() -> list[int]:
        rows = confluent_read(bootstrap, sink, PARTITIONS, "read_committed")
        return [int(row.value or b"") for row in rows]

    with SteadyWriter(bootstrap, source, PARTITIONS, PER_SECOND) as writer, driver(job) as process:
        wait_for_start(process, job)
        some_batches()
        first = executors(process.pid)
        assert len(first) == 2
        for executor in first:
            executor.kill()
            some_batches()
        count = writer.stop()
        wait_until(lambda: len(values()) >= count, f"all {count} rows", WAIT_S, poll_s=2)
        assert len({row.pid for row in executors(process.pid)} - {row.pid for row in first}) == 2
    assert_each_once(values(), count)
