"""One row with the ten slowest tests, above the line that closes pytest's summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from pathlib import PurePosixPath

import pytest

COUNT = 10

_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    yield
    if len(_seconds) > COUNT:
        terminalreporter.write_line(row(_seconds))


def row(seconds: dict[str, float]) -> str:
    """`slowest: 12.3 s test_file::test_name[case], …`; set-up and removal are part of a test."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:COUNT]
    texts = (f"{spent:.1f} s {_short(nodeid)}" for nodeid, spent in slowest)
    return "slowest: " + ", ".join(texts)


def _short(nodeid: str) -> str:
    file, _, test = nodeid.partition("::")
    return f"{PurePosixPath(file).stem}::{test}"
