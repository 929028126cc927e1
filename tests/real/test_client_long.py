"""Gigabytes through a Producer and a Consumer: what their processes hold stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from sparkkafka.client import Admin
from tests.real.client_process import PARTITIONS, VALUE_BYTES
from tests.real.processes import Held, held_by

pytestmark = pytest.mark.real

SOAK_GB = float(os.environ.get("SPARKKAFKA_SOAK_GB", "10"))
GROWTH_BYTES = 30_000_000
WARM_UP = 0.2
"""The part that is done before the first look: buffers are filled, and libraries loaded."""


@pytest.mark.parametrize(
    "gigabytes",
    [pytest.param(0.05, id="quick"), pytest.param(SOAK_GB, id="soak", marks=pytest.mark.soak)],
)
@pytest.mark.parametrize(
    ("writes", "reads"), [("send", "poll"), ("send_table", "poll_arrow")], ids=["records", "arrow"]
)
def test_memory_is_flat(
    gigabytes: float, writes: str, reads: str, kafka_cluster: Any, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    count = int(gigabytes * 1e9 / VALUE_BYTES)
    try:
        for kind in (writes, reads):
            looks = _looks_at(kind, kafka_cluster.bootstrap_servers, topic, count)
            first = next(held for done, held in looks if done >= WARM_UP * count)
            later = [held for done, held in looks if done >= WARM_UP * count]
            highest = max(held.rss_bytes for held in later)
            assert highest - first.rss_bytes < GROWTH_BYTES, looks
            assert {held[1:] for held in later} == {first[1:]}, looks
    finally:
        with Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as admin:
            admin.delete_topic(topic)


def _looks_at(kind: str, bootstrap: str, topic: str, count: int) -> list[tuple[int, Held]]:
    """The number of records done and what the process held, some 20 times."""
    command = [
        sys.executable,
        "-m",
        "tests.real.client_process",
        kind,
        bootstrap,
        topic,
        f"{count}",
    ]
    looks: list[tuple[int, Held]] = []
    started_s = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        process = psutil.Process(child.pid)
        last = ""
        for last in child.stdout:
            if not last.endswith("bytes\n"):
                looks.append((int(last), held_by(process)))
            child.stdin.write("\n")
            child.stdin.flush()
        child.wait(60)
    assert last == f"{count * VALUE_BYTES} bytes\n"
    assert child.returncode == 0
    seconds = time.monotonic() - started_s
    print(
        f"{kind}: {count * VALUE_BYTES / 1e9:g} GB in {seconds:.0f} s; RSS in MB "
        + " ".join(f"{held.rss_bytes / 1e6:.0f}" for _, held in looks)
        + f"; threads {looks[-1][1].threads}, open files {looks[-1][1].open_files}"
    )
    return looks
