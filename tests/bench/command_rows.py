"""The command's `read` beside kcat, each as a process of its own on one core, start included.

It runs as pip installs it, with compiled modules: half of its time is the start.

Without kcat (Debian's package kcat) only the rows without it are measured, and a note says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import checks
from tests.bench.client_rows import PARTITIONS, SEND_ROWS, write
from tests.bench.codec_rows import KILO_BATCH, columns
from tests.bench.data import make_topic, open_cluster, remove_topic
from tests.bench.library_rows import one_core
from tests.bench.results import WRITTEN, Row
from tests.bench.turns import take_turns

GROUP = "command"
TARGETS = {"text": 2.0, "JSON lines": 1.0}
VALUE_BYTES = 100
_BYTES_PER_RECORD = 8
_FULL, _QUICK = 64 * SEND_ROWS, 16 * SEND_ROWS
_LIMIT_S = 120.0
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
OPTIONS = {"text": [], "JSON lines": ["-J"]}


def command_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Rows of reading a topic to a pipe's end, and to a file. Makes a topic and deletes it."""
    count = _QUICK if quick else _FULL
    data = columns(str(VALUE_BYTES), count * (VALUE_BYTES + _BYTES_PER_RECORD) + 1)
    count = len(data.timestamps_ms)
    pairs = 2 if quick else 5
    topic = "bench-command"
    ours = [sys.executable, "-m", "sparkkafka", "-b", bootstrap_servers, "read", topic, "-e"]
    kcat = ["kcat", "-b", bootstrap_servers, "-C", "-t", topic, "-e", "-q"]
    rows: list[Row] = []
    folder = ""

    def row(name: str, rival: str, target: float | None, one: list[str], other: list[str]) -> None:
        made = Row(GROUP, name, "records/s", rival, [count, count], target=target, note=NOTE)
        options = one[len(ours) :]
        made.settings = {"pykafka": {"options": " ".join(options).replace(folder, "")}}
        made.settings[rival] = {"options": " ".join(other[len(kcat) :])}
        made.checks = found
        with one_core():
            rows.append(
                take_turns(
                    made,
                    lambda: seconds_of(one),
                    lambda: seconds_of(other),
                    pairs,
                    say,
                )
            )

    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic, PARTITIONS)
    try:
        write(bootstrap_servers, topic, data, KILO_BATCH)
        found = {WRITTEN: checks.sums(data.values.to_pylist()), "pykafka": lines_of(ours)}
        what = f"read {VALUE_BYTES} B, {PARTITIONS} partitions"
        version = kcat_version()
        if version is None:
            say("kcat is not installed: the command is not measured beside it")
        else:
            found[version] = lines_of(kcat)
            checks.compare(found, topic)
            for name, options in OPTIONS.items():
                target = TARGETS[name]
                row(f"{what}, {name}", version, target, [*ours, *options], [*kcat, *options])
        with tempfile.TemporaryDirectory(prefix="sparkkafka-bench-") as folder:
            path = str(Path(folder, "records.parquet"))
            into = [*ours, "--output", path]
            row(f"{what}, Parquet", "our own text", None, into, ours)
    finally:
        remove_topic(bootstrap_servers, topic)
    return rows


NOTE = "one core, start of the process included, stdout is /dev/null"


def seconds_of(command: list[str]) -> float:
    """How long it runs."""
    begin = time.perf_counter()
    subprocess.run(
        command, stdout=subprocess.DEVNULL, check=True, timeout=_LIMIT_S, env=ENVIRONMENT
    )
    return time.perf_counter() - begin


def lines_of(command: list[str]) -> list[int | None]:
    """The count and the sum of hashes of the values that it prints."""
    done = subprocess.run(
        command, capture_output=True, check=True, timeout=_LIMIT_S, env=ENVIRONMENT
    )
    return checks.sums(done.stdout.splitlines())


def kcat_version() -> str | None:
    """ "kcat 1.7.1"; None if it is not installed."""
    if shutil.which("kcat") is None:
        return None
    text = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", text)
    return f"kcat {found[1]}" if found else "kcat"
