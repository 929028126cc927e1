"""Tests each Kafka and each Spark that the docs name, and makes the tables of
docs/compatibility.md.

`python -m tests.tools.compat [kafka VERSION …] [spark VERSION …]` runs `tests/compat` with each
version, one after another, and writes the results into the page unless versions are named. Another
Spark than the installed one is installed into a folder of its own in .cache. The page has a table
of Sparks for each of `PYTHONS`; only that of this process's Python is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from sparkkafka.testing.kafka.jars import KAFKA_VERSION
from tests.real.kfake import KFAKE, missing_reason
from tests.real.tansu import TANSU
from tests.tools.drift import NEWEST_KAFKA

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
CACHE = ROOT / ".cache" / "compat"

KAFKAS = ("2.1.1", "2.8.2", "3.3.2", "3.9.2", KAFKA_VERSION, NEWEST_KAFKA, KFAKE, TANSU)
SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
PYTHONS = ("3.11", "3.13")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SAIL = ("pysail==0.7.2", "pyspark-client==4.1.1")
"""Sail, and the newest client that it takes."""
AXES: dict[str, tuple[str, ...]] = {"kafka": KAFKAS, "spark": SPARKS}

Cells = dict[str, dict[str, object]]
"""The results of one version by feature: `passed`, and `gap`, the feature's limitation if any."""


def python_with(name: str, *pins: str) -> Path:
    """Return a Python with these packages, and otherwise this environment's. It is made once, in
    the folder of this name in .cache."""
    home = CACHE / name
    python = home / "bin" / "python"
    done = home / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *pins], check=True)
        (packages,) = home.glob("lib/python*/site-packages")
        ours = next(path for path in sys.path if path.endswith("site-packages"))
        # The .pth file is read after the folder's own packages, which take precedence.
        (packages / "zz_more.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        done.touch()
    return python


def run_tests(axis: str, tested: str) -> Cells:
    """Run the tests with one version of Kafka or Spark (`axis`), and return its column."""
    python = Path(sys.executable)
    if axis == "spark" and tested != version("pyspark"):
        python = python_with(f"spark-{tested}", f"pyspark=={tested}")
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / "cells.jsonl"
    file.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARKKAFKA_COMPAT_CELLS": str(file),
        "SPARKKAFKA_COMPAT_KAFKA": tested if axis == "kafka" else KAFKA_VERSION,
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # PySpark 4.0 and 4.1 leave some of their sockets to the garbage collector.
    command += ["-W", "ignore::ResourceWarning"]
    command += ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    tests = f"tests/compat/test_{axis}s.py"
    subprocess.run([*command, tests], cwd=ROOT, env=environment, timeout=1200)
    cells: Cells = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        cell = json.loads(line)
        cells[cell.pop("feature")] = cell
    if not cells:
        raise SystemExit(f"{axis} {tested}: no test ran")
    return cells


def table(axis: str, columns: Mapping[str, Cells]) -> str:
    """Return a table with a row for each feature and a column for each version. Gaps have numbers,
    and are explained below the table."""
    features = list(dict.fromkeys(feature for cells in columns.values() for feature in cells))
    gaps: list[str] = []

    def cell(cells: Cells, feature: str) -> str:
        found = cells.get(feature)
        if found is None or not found["passed"]:
            return "**fails**"
        if not found["gap"]:
            return "yes"
        gap = str(found["gap"])
        if gap not in gaps:
            gaps.append(gap)
        return f"no ({gaps.index(gap) + 1})"

    heads = [column_head(axis, name) for name in columns]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(columns)]
    for feature in features:
        row = " | ".join(cell(cells, feature) for cells in columns.values())
        lines.append(f"| {feature} | {row} |")
    notes = [f"{number}. {text}" for number, text in enumerate(gaps, 1)]
    return "\n".join([*lines, "", *notes, ""] if notes else [*lines, ""])


def column_head(axis: str, name: str) -> str:
    """Return the title of a column: "Kafka 4.4.0", or the name of a broker by other hands."""
    return name if " " in name else f"{axis.capitalize()} {name}"


def table_name(axis: str, python: str) -> str:
    """Return the name of a table in the page."""
    return axis if python == PYTHONS[0] else f"{axis}:{python}"


def with_table(page: str, name: str, text: str) -> str:
    """Return the page with the text in place of the table of this name."""
    start, end = f"<!-- compat:{name} -->\n", f"<!-- /compat:{name} -->"
    before, found, rest = page.partition(start)
    if not found:
        raise SystemExit(f"{PAGE.name} has no comments around a table {name}")
    return f"{before}{start}\n{text}{end}{rest.partition(end)[2]}"


def main(arguments: Sequence[str]) -> int:
    """Run the tests, and return 0 if all pass. Writes the page unless versions are named."""
    axis = ""
    chosen: dict[str, Sequence[str]] = {}
    for word in arguments:
        if word in AXES:
            axis = word
        elif axis:
            chosen[axis] = [*chosen.get(axis, ()), word]
        else:
            raise SystemExit(f"write kafka or spark before {word}")
    # Brokers do not see which Python a client has, so the first one suffices for them.
    tables = AXES if PYTHONS[0] == PYTHON else {"spark": SPARKS}
    if KFAKE in (chosen or tables).get("kafka", ()) and (reason := missing_reason()) is not None:
        raise SystemExit(f"{KFAKE}: {reason}. Without it, name the versions: kafka 4.4.0 …")
    failed = False
    for axis, versions in (chosen or tables).items():
        columns = {tested: run_tests(axis, tested) for tested in versions}
        failed |= any(not cell["passed"] for cells in columns.values() for cell in cells.values())
        text = table(axis, columns)
        print(f"\n{text}")
        if not chosen:
            PAGE.write_text(with_table(PAGE.read_text(), table_name(axis, PYTHON), text))
    if not chosen:
        sail = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        failed |= subprocess.run([*sail, "tests/compat/test_sail.py"], cwd=ROOT).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
