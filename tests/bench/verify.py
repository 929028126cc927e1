"""Recomputes the figures of the docs from bundles: `python tests/bench/verify.py BUNDLE …`.

It has its own arithmetic: it reads the seconds of the runs from the bundles' JSON, and the numbers
from the text of docs/benchmarks.md, README.md, docs/index.md and docs/client-others.md. It also
compares the counts and sums of hashes that the programs of a row found. Returns 1 and says what is
wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a script has only its own folder

from tests.bench.report import (  # noqa: E402
    FIGURES_END,
    FIGURES_START,
    FRONT_PAGE_ROWS,
    OTHERS_ROWS,
    README_END,
    README_ROWS,
    README_START,
)

SECOND_PROGRAM = "confluent-kafka"
_WRITES = re.compile(r"^(write|send|Producer\.send)")
_SCALES = {"records/s": 1.0, "rows/s": 1.0, "GB/s": 1e9, "s": 1.0, "ms": 1e-3}
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout with the docs")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    wrong: list[str] = []
    for path in options.bundles:
        bundle = json.loads(path.read_text("utf-8"))
        rows += bundle["rows"]
        about = bundle["about"]
        wrong += [f"{path.name}: {text}" for text in _wrong_checks(bundle)]
        read_back = sum(any(map(_is_second, row.get("checks", ()))) for row in bundle["rows"])
        print(
            f"{path.name}: {len(bundle['rows'])} rows of {about['date']}, commit "
            f"{about.get('commit', 'unknown')}, load before {about.get('load before', 'unknown')}; "
            f"{read_back} have sums of {SECOND_PROGRAM}"
        )
    wrong += _wrong_page((options.root / "docs" / "benchmarks.md").read_text("utf-8"), rows)
    for name, chosen in (("README.md", README_ROWS), ("docs/client-others.md", OTHERS_ROWS)):
        text = _between((options.root / name).read_text("utf-8"), README_START, README_END)
        wrong += _wrong_table(name, text, chosen, rows)
    front_page = (options.root / "docs" / "index.md").read_text("utf-8")
    wrong += _wrong_front_page(_between(front_page, FIGURES_START, FIGURES_END), rows)
    for text in wrong:
        print(f"WRONG: {text}", file=sys.stderr)
    if not wrong:
        print(f"all figures of the docs are those of the {len(rows)} rows")
    return 1 if wrong else 0


# --- bundles -------------------------------------------------------------------------------------


def _wrong_checks(bundle: dict[str, Any]) -> Iterator[str]:
    for row in bundle["rows"]:
        what = f"{row['group']}: {row['name']}"
        if row.get("rival") and len(row["ours_s"]) != len(row["theirs_s"]):
            yield f"{what}: the runs are not pairs"
        checks = row.get("checks", {})
        if any(found != next(iter(checks.values())) for found in checks.values()):
            yield f"{what}: the programs found different counts or sums: {checks}"
        if len(checks) < 2:
            yield f"{what}: fewer than two programs looked at the result"
        if (row["group"] == "write" or _WRITES.match(row["name"])) and not any(
            map(_is_second, checks)
        ):
            yield f"{what}: {SECOND_PROGRAM} did not read back what was written"


def _is_second(program: str) -> bool:
    return program.startswith(SECOND_PROGRAM)


def _figures(row: Row, side: int) -> list[float]:
    """Those of one side, in the row's unit."""
    scale = _SCALES[row["unit"]]
    seconds = row[("ours_s", "theirs_s")[side]]
    if row["unit"] in ("s", "ms"):
        return [value / scale for value in seconds]
    return [row["work"][side] / scale / value for value in seconds]


def _ratios(row: Row) -> list[float]:
    pairs = zip(_figures(row, 0), _figures(row, 1), strict=True)
    turned = row["unit"] in ("s", "ms")
    return [b / a if turned else a / b for a, b in pairs]


def _is_met(row: Row) -> bool | None:
    if row.get("target") is None:
        return None
    ours, kind = _figures(row, 0), row.get("target_kind", "ratio")
    if kind == "absolute":
        return statistics.median(ours) >= row["target"]
    if kind == "difference":
        return _difference(row) <= float(row["target"])
    return statistics.median(_ratios(row)) >= row["target"]


def _difference(row: Row) -> float:
    pairs = zip(_figures(row, 0), _figures(row, 1), strict=True)
    return statistics.median(a - b for a, b in pairs)


# --- pages ---------------------------------------------------------------------------------------


def _wrong_page(text: str, rows: list[Row]) -> Iterator[str]:
    """What docs/benchmarks.md has wrong, more or less than the rows."""
    judged = [row for row in rows if _is_met(row) is not None]
    met = sum(_is_met(row) is True for row in judged)
    if f"{met} of {len(judged)} speed targets are met." not in text:
        yield f"benchmarks.md does not say that {met} of {len(judged)} speed targets are met"
    left = {_key(row["group"], row["name"], row.get("rival", "")): row for row in rows}
    for group, head, cells in _tables(text.partition("## All rows")[2]):
        if head[2] == "rival":
            rival = _words_after_figure(cells[2])
            row = left.pop(_key(group, cells[0], rival), None)
            if row is None:
                yield f"benchmarks.md: {group}: {cells[0]} ({rival}) is in no bundle"
                continue
            expected = _expected_cells(row)
            for name, cell, values in zip(head[1:], cells[1:], expected, strict=True):
                if not _shows(cell, values):
                    yield f"benchmarks.md: {group}: {cells[0]}: {name} is not {values}: {cell}"
            yield from _wrong_verdict(row, cells[5], f"benchmarks.md: {group}: {cells[0]}")
            continue
        first = None
        for title, cell in zip(head[2:], cells[2:], strict=True):
            row = left.pop(_key(group, cells[0], title.partition(", target")[0]), None)
            first = first or row
            if cell != "cannot" and (row is None or not _shows(cell, _spread(row))):
                yield f"benchmarks.md: {group}: {cells[0]}, {title}: {cell}"
            elif row is not None and ("missed" in cell) != (_is_met(row) is False):
                yield f"benchmarks.md: {group}: {cells[0]}, {title}: wrong verdict"
        if first is None or not _shows(cells[1], [statistics.median(_figures(first, 0))]):
            yield f"benchmarks.md: {group}: {cells[0]}: {cells[1]}"
    for group, name, rival in left:
        yield f"benchmarks.md lacks {group}: {name} ({rival})"


def _wrong_verdict(row: Row, cell: str, what: str) -> Iterator[str]:
    if cell.strip("*") != {True: "met", False: "missed", None: ""}[_is_met(row)]:
        yield f"{what}: the verdict is {cell!r}"


def _expected_cells(row: Row) -> list[list[float]]:
    """Numbers in the cells after the name: ours, theirs, ratio, target, verdict, memory."""
    ours = [statistics.median(_figures(row, 0))]
    memory = [row["worker_rss_mb"]] if "worker_rss_mb" in row else []
    target = [row["target"]] if "target" in row else []
    if not row.get("rival"):
        return [ours, [], [], target, [], memory]
    ratio = _spread(row)
    if row.get("target_kind") == "difference":
        ratio.append(_difference(row))
    return [ours, [statistics.median(_figures(row, 1))], ratio, target, [], memory]


def _spread(row: Row) -> list[float]:
    ratios = _ratios(row)
    if len(ratios) == 1:
        return [ratios[0]]
    return [statistics.median(ratios), min(ratios), max(ratios)]


def _wrong_table(name: str, text: str, chosen: Sequence[Any], rows: list[Row]) -> Iterator[str]:
    lines = [_cells(line) for line in text.splitlines() if line.startswith("| ")][1:]
    for published, cells in zip_longest(chosen, lines):
        row = None if published is None else _published(published, rows)
        if row is None or cells is None or cells[0] != published.text:
            yield f"{name}: {cells and cells[0]} is not {published and published.text}"
            continue
        medians = [[statistics.median(_figures(row, side))] for side in (0, 1)]
        for cell, values in zip(cells[1:], [*medians, _spread(row)[:1]], strict=True):
            if not _shows(cell, values):
                yield f"{name}: {published.text}: {cell} is not {values}"


def _wrong_front_page(text: str, rows: list[Row]) -> Iterator[str]:
    for published in FRONT_PAGE_ROWS:
        row = _published(published, rows)
        match = re.search(
            rf"\*\*([\d.]+) times\*\* as fast as the .*: {re.escape(published.text)}\n", text
        )
        if row is None or match is None or not _shows(match[1], _spread(row)[:1]):
            yield f"index.md: {published.text}: {match and match[1]}"
    if text.count(" times**") != len(FRONT_PAGE_ROWS):
        yield "index.md has figures of which no row is known"


def _published(published: Any, rows: list[Row]) -> Row | None:
    for row in rows:
        if (row["group"], row["name"]) == (published.group, published.name) and row.get(
            "rival", ""
        ).startswith(published.rival):
            return row
    return None


def _tables(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """The group, the head's cells and the cells of each line of each table."""
    group, head = "", []
    for line in text.splitlines():
        if line.startswith("### "):
            group, head = line[4:], []
        elif line.startswith("|---"):
            continue
        elif line.startswith("| ") and not head:
            head = _cells(line)
        elif line.startswith("| "):
            yield group, head, _cells(line)


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _key(group: str, name: str, rival: str) -> tuple[str, str, str]:
    return group.lower(), name, rival


def _words_after_figure(cell: str) -> str:
    """The rival's name: "640K rows/s JVM connector"."""
    units = sorted(_SCALES, key=len, reverse=True)
    return re.sub(rf"^\S*\d[MK]? ?({'|'.join(units)}) ?", "", cell)


def _shows(cell: str, values: list[float]) -> bool:
    """Whether the numbers at the beginning of the cell are these values, rounded."""
    found = list(_NUMBER.finditer(cell))
    if len(found) < len(values) or (not values and found and "missed" not in cell):
        return False
    for match, value in zip(found, values, strict=False):
        scale = {"M": 1e6, "K": 1e3}.get(cell[match.end() : match.end() + 1], 1.0)
        mantissa, _, exponent = match[0].replace(",", "").partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        number = float(mantissa) * 10.0 ** int(exponent or 0)
        if abs(value / scale - number) > 0.501 * unit:
            return False
    return True


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


if __name__ == "__main__":
    sys.exit(main())
