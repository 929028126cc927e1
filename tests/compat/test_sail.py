"""Batch writes and reads on Sail, an engine in Rust that speaks Spark Connect."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparkkafka.testing.fake.cluster import FakeCluster
from tests.tools.compat import ROOT, SAIL, python_with

JOB = Path(__file__).with_name("sail_job.py")

pytestmark = pytest.mark.compat


def test_sail() -> None:
    python = python_with(f"sail-{SAIL[0].partition('==')[2]}", *SAIL)
    with FakeCluster() as cluster:
        cluster.create_topic("numbers", 2)
        done = subprocess.run(
            [str(python), str(JOB), cluster.bootstrap_servers],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        records = [cluster.log("numbers", partition).records() for partition in (0, 1)]
    assert sum(map(len, records)) == 100
    assert done.stdout.splitlines() == [
        "rows: 100",
        "sum: 9900",
        "partitions: [0, 1]",
        f"filtered: {len(records[1])}",
    ]
