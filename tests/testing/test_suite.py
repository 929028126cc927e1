"""How the project's own tests are run: in which order, by which process, with which Java."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.support import quick_spark
from tests.support.parallel import LONGEST, SHARE_A_SESSION, SHARE_NOTHING, LongestFirst, in_turn

TESTS = Path(__file__).parents[1]


def items(*names: str) -> list[Any]:
    return [SimpleNamespace(path=path) for name in names for path in TESTS.rglob(name)]


def test_files_that_are_named_exist() -> None:
    names = {path.name for path in TESTS.rglob("test_*.py")}
    assert {*LONGEST, *SHARE_NOTHING, *SHARE_A_SESSION} - names == set()


def test_no_two_files_have_one_name() -> None:
    """pytest cannot import both: their folders are not packages."""
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_the_longest_are_first_at_both_ends() -> None:
    given = items("test_bombs.py", "test_wheel.py", "test_groups.py", "test_demo.py")
    found = [item.path.name for item in in_turn([*given, *items("test_brokers_die.py")])]
    assert found == [
        "test_brokers_die.py",
        "test_demo.py",
        "test_groups.py",
        "test_wheel.py",
        "test_bombs.py",
    ]


class Process:
    """What the scheduler sees of a process of pytest-xdist."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(tests: list[str], processes: int) -> list[list[str]]:
    """The first tests of each process."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=True, tx=[f"{processes}*popen"]),
        getvalue=lambda name: [f"{processes}*popen"],
        rootpath=TESTS.parent,
    )
    scheduler = LongestFirst(config, None)
    started = [Process() for _ in range(processes)]
    for process in started:
        scheduler.add_node(process)  # type: ignore[arg-type]
    for process in started:
        scheduler.add_node_collection(process, tests)  # type: ignore[arg-type]
    scheduler.schedule()
    return [[tests[index] for index in process.given] for process in started]


def test_one_process_begins_at_the_end() -> None:
    tests = [f"tests/test_{letter}.py::test_{number}" for letter in "abcdef" for number in range(4)]
    assert scheduled(tests, 2) == [tests[:4], tests[-4:]]


def test_half_of_the_processes_prefer_spark() -> None:
    files = [
        "real/test_groups.py",
        "spark/test_parity.py",
        "real/test_consumer_real.py",
        "spark/stream/test_streams.py",
        "config/test_options.py",
    ]
    tests = [f"tests/{file}::test_{number}" for file in files for number in range(4)]
    found = scheduled(tests, 4)
    assert [{test.partition("::")[0] for test in of_one} for of_one in found] == [
        {"tests/spark/test_parity.py"},
        {"tests/spark/stream/test_streams.py"},
        {"tests/real/test_groups.py"},
        {"tests/config/test_options.py"},
    ]


def test_files_with_one_costly_fixture_are_one_unit() -> None:
    files = ["real/test_security.py", "real/test_groups.py", "real/test_security_clients.py"]
    tests = [f"tests/{file}::test_{number}" for file in files for number in range(4)]
    assert scheduled(tests, 2) == [[*tests[:4], *tests[8:]], tests[4:8]]


@pytest.mark.slow
def test_one_row_names_the_ten_slowest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support.slowest import pytest_runtest_logreport, pytest_terminal_summary\n"
    )
    body = "import time, pytest\n@pytest.mark.parametrize('n', range(11))\n"
    body += "def test_it(n):\n    time.sleep(1.2 if n == 7 else 0.1 if n else 0)\n"
    (tmp_path / "test_eleven.py").write_text(body)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**quick_spark.outside({}), "PYTHONPATH": str(TESTS.parent), "PATH": "/usr/bin:/bin"},
        timeout=120,
        check=False,
    )
    *_, row, last = run.stdout.splitlines()
    assert re.search(r"=+ 11 passed in ", last), run.stdout
    assert re.match(r"slowest: [1-9]\.[0-9] s test_eleven::test_it\[7\], [0-9.]+ s test_", row)
    assert row.count(" s ") == 10
    assert "test_it[0]" not in row


def test_programs_with_folders_of_their_own_are_quick_too(tmp_path: Path) -> None:
    environment = {"HOME": "/home/x"}
    quick_spark.set_environment(environment, tmp_path / "java")
    assert environment["SPARK_LOCAL_DIRS"] == str(tmp_path / "java")
    assert f"-Djava.io.tmpdir={tmp_path / 'java' / 'tmp'}" in environment["SPARK_SUBMIT_OPTS"]
    outside = quick_spark.outside(environment)
    assert str(tmp_path) not in str(outside)
    assert outside["HOME"] == "/home/x"
    assert "-XX:TieredStopAtLevel=1" in outside["SPARK_SUBMIT_OPTS"]


def test_workflows_run_make_targets_that_exist() -> None:
    root = TESTS.parent
    makefile = (root / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    workflow = yaml.safe_load((root / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"].split() for step in steps if "run" in step]
    assert {words[0] for words in commands} == {"make"}
    assert {words[-1] for words in commands} <= targets
