"""docs/compatibility.md has a cell for each test, Kafka and Spark, and none of them failed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tools import compat

TESTS = Path(__file__).parents[1] / "compat"


def features(axis: str) -> list[str]:
    tree = ast.parse((TESTS / f"test_{axis}s.py").read_text())
    return [
        (ast.get_docstring(node) or node.name).strip()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


TABLES = [("kafka", compat.PYTHONS[0])] + [("spark", python) for python in compat.PYTHONS]


@pytest.mark.parametrize(("axis", "python"), TABLES)
def test_the_page_has_every_cell(axis: str, python: str) -> None:
    page, mark = compat.PAGE.read_text(), compat.table_name(axis, python)
    part = page.partition(f"<!-- compat:{mark} -->\n")[2].partition(f"<!-- /compat:{mark} -->")[0]
    head, _, *rows = [line for line in part.splitlines() if line.startswith("|")]
    names = [compat.column_head(axis, name) for name in compat.AXES[axis]]
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["", *names]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == features(axis)
    assert {cell[:2] for row in cells for cell in row[1:]} <= {"ye", "no"}
    assert all(len(row) == 1 + len(names) for row in cells)


def test_gaps_are_numbered_once() -> None:
    ok, gap = {"passed": True, "gap": None}, {"passed": True, "gap": "needs more"}
    columns = {"1": {"a": ok, "b": gap}, "2": {"a": gap, "b": {"passed": False, "gap": None}}}
    text = compat.table("kafka", columns)
    assert text.splitlines()[2:] == [
        "| a | yes | no (1) |", "| b | no (1) | **fails** |", "", "1. needs more",
    ]  # fmt: skip
    page = "x\n<!-- compat:kafka -->\nold\n<!-- /compat:kafka -->\ny\n"
    assert (
        compat.with_table(compat.with_table(page, "kafka", text), "kafka", text).count("needs more")
        == 1
    )
