"""Each Kafka and each Spark that the docs name, tried: the tables of docs/compatibility.md.

`python -m tests.tools.compat [kafka VERSION …] [spark VERSION …]` runs `tests/compat` with each,
one after another, and writes what it saw into the page. A Spark other than the installed one gets
a folder of its own in .cache, which lies before this environment's packages. Each Python has its
own table of Sparks: that of this process is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
CACHE = ROOT / ".cache" / "compat"

KAFKAS = ("2.1.1", "2.8.2", "3.3.2", "3.9.2", "4.3.1")
SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
PYTHONS = ("3.11", "3.13")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
AXES: dict[str, tuple[str, ...]] = {"kafka": KAFKAS, "spark": SPARKS}

# PySpark 4.0 and 4.1 leave sockets of their own to the garbage collector.
_QUIET = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")
_MAX_SECONDS = 1200

Cells = dict[str, dict[str, object]]
"""By feature: whether it passed, and the hole that a user sees, if there is one."""


def python_with(name: str, *pins: str) -> Path:
    """A Python in a folder of this name with these packages, and all others of this environment."""
    home = CACHE / name
    python = home / "bin" / "python"
    done = home / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *pins], check=True)
        (packages,) = home.glob("lib/python*/site-packages")
        ours = next(path for path in sys.path if path.endswith("site-packages"))
        # Read after this folder itself: what is in it is the first.
        (packages / "zz_more.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        done.touch()
    return python


def run(axis: str, tried: str) -> Cells:
    """The cells of one column."""
    here = axis == "kafka" or tried == version("pyspark")
    python = Path(sys.executable) if here else python_with(f"spark-{tried}", f"pyspark=={tried}")
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / "cells.jsonl"
    file.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARKKAFKA_COMPAT_CELLS": str(file),
        "SPARKKAFKA_COMPAT_KAFKA": tried if axis == "kafka" else KAFKAS[-1],
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += _QUIET
    tests = f"tests/compat/test_{axis}s.py"
    subprocess.run([*command, tests], cwd=ROOT, env=environment, timeout=_MAX_SECONDS)
    cells: Cells = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        cell = json.loads(line)
        cells[cell.pop("feature")] = cell
    if not cells:
        raise SystemExit(f"{axis} {tried}: no test ran")
    return cells


def table(axis: str, columns: Mapping[str, Cells]) -> str:
    """Rows are features; holes are numbered, and follow the table with their words."""
    features = list(dict.fromkeys(feature for cells in columns.values() for feature in cells))
    holes: list[str] = []

    def cell(cells: Cells, feature: str) -> str:
        found = cells.get(feature)
        if found is None or not found["passed"]:
            return "**fails**"
        if not found["hole"]:
            return "yes"
        words = str(found["hole"])
        if words not in holes:
            holes.append(words)
        return f"no ({holes.index(words) + 1})"

    heads = [f"{axis.capitalize()} {name}" for name in columns]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(columns)]
    for feature in features:
        row = " | ".join(cell(cells, feature) for cells in columns.values())
        lines.append(f"| {feature} | {row} |")
    words = [f"{number}. {text}" for number, text in enumerate(holes, 1)]
    return "\n".join([*lines, "", *words, ""] if words else [*lines, ""])


def mark_of(axis: str, python: str) -> str:
    """The name of a table in the page."""
    return axis if python == PYTHONS[0] else f"{axis}:{python}"


def put(page: str, axis: str, text: str) -> str:
    """The page with the table between its marks."""
    start, end = f"<!-- compat:{axis} -->\n", f"<!-- /compat:{axis} -->"
    before, found, rest = page.partition(start)
    if not found:
        raise SystemExit(f"{PAGE.name} has no place for a table of {axis}")
    return f"{before}{start}\n{text}{end}{rest.partition(end)[2]}"


def _axes() -> dict[str, tuple[str, ...]]:
    """The tables of this Python: a broker does not see which one a client has."""
    return AXES if PYTHONS[0] == PYTHON else {"spark": SPARKS}


def main(arguments: Sequence[str]) -> int:
    """0 if every cell is as it should be. With versions named, nothing is written."""
    axis = ""
    chosen: dict[str, Sequence[str]] = {}
    for word in arguments:
        if word in AXES:
            axis = word
        elif axis:
            chosen[axis] = [*chosen.get(axis, ()), word]
        else:
            raise SystemExit(f"say kafka or spark before {word}")
    failed = False
    for axis, versions in (chosen or _axes()).items():
        columns = {tried: run(axis, tried) for tried in versions}
        failed |= any(not cell["passed"] for one in columns.values() for cell in one.values())
        text = table(axis, columns)
        print(f"\n{text}")
        if not chosen:
            PAGE.write_text(put(PAGE.read_text(), mark_of(axis, PYTHON), text))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
