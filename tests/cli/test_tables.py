"""Tables as lines are the same as rich's layout on a terminal, row by row."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from rich.console import Console

from sparkkafka.cli.app import main
from sparkkafka.cli.tables import MAX_DRAWN, bytes_text, print_table, table_of

COLUMNS = ("topic", "partition", "lag", "note", "behind", "gone", "is_new")
ROWS = [
    ("orders", 0, 1_234_567, None, 0.25, None, True),
    ("漢字", 12, None, "\x1b[31mred", 12_345.0, None, False),
    ("e\u0301", -1, 0, "a  b ", None, None, None),
]


def printed_by_rich(columns: Any, rows: Any, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Console(width=10_000, highlight=False, color_system=None).print(table_of(columns, rows))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_lines_are_the_same_as_rich_s_layout(capsys: pytest.CaptureFixture[str]) -> None:
    expected = printed_by_rich(COLUMNS, ROWS, capsys)
    print_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines == expected
    assert "GONE" not in lines[0]
    assert "\\x1b[31mred" in lines[2]


@pytest.mark.parametrize("more", [0, 1])
def test_a_large_table_is_lines_on_a_terminal_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """rich took 15 s for a query of 20,000 partitions."""
    rows = [(f"a topic with a long name {n}", n) for n in range(MAX_DRAWN + more)]
    expected = printed_by_rich(COLUMNS[:2], rows, capsys)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_table(COLUMNS[:2], rows)
    lines = capsys.readouterr().out.splitlines()
    assert (lines == expected) == bool(more)
    assert bool(more) or len(lines) > len(rows) + 1  # folded


def test_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [])
    print_table(COLUMNS, [], empty="no groups")
    assert capsys.readouterr().out == "no groups\n"


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("groups list", "no groups"),
        ("topics list", "no topics"),
        ("users list", "no users with a SCRAM password"),
        ("acls list", "no ACLs"),
    ],
)
def test_an_empty_list_is_reported(
    fake_cluster: Any, capsys: pytest.CaptureFixture[str], verb: str, line: str
) -> None:
    servers = fake_cluster.bootstrap_servers
    assert main(["-b", servers, *verb.split()]) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert main(["-b", servers, *verb.split(), "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_rows_of_json_are_cells_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"broker": 1001, "size_bytes": 1_536, "isr": [1001, 2], "offset": 12_345, "lost": 0},
        {"broker": 2, "size_bytes": None, "isr": [], "offset": 0, "lost": 7},
    ]
    print_table(("broker", "size_bytes", "isr", "offset", "lost"), rows)
    assert capsys.readouterr().out.splitlines() == [
        "BROKER  SIZE    ISR     OFFSET  LOST",
        "  1001  1.5 kB  1001,2  12,345     -",
        "     2  -       -            0     7",
    ]


def test_bytes_are_rounded_before_the_unit_is_chosen() -> None:
    texts = [bytes_text(size) for size in (999, 1_000, 999_949, 999_950, 10**18)]
    assert texts == ["999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1000.0 PB"]
