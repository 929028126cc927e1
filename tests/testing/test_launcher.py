"""No process and no file may outlive a test run, however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkkafka.testing.kafka import process as launched
from sparkkafka.testing.kafka.process import LeashedProcess
from tests.support.waiting import wait_until

# A parent that starts a leashed `sleep`, writes the pids, and waits to be killed.
_PARENT = """
import subprocess, sys, time
from pathlib import Path
from sparkkafka.testing.kafka.process import LeashedProcess
folder = Path(sys.argv[1])
shell = f"echo $$ > {folder}/pid; echo $PPID > {folder}/launcher; exec sleep 600"
child = LeashedProcess(["sh", "-c", shell], output=subprocess.DEVNULL, remove=folder / "c" / "b")
%s
time.sleep(600)
"""
# What keeps the leash open although the parent is dead: a child forked without exec.
_FORK = """
import os
if os.fork() == 0:
    (folder / "fork").write_text(str(os.getpid()))
    time.sleep(60)
    os._exit(0)
"""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")  # a killed process whose parent is slow to reap is dead
        return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
    except (ProcessLookupError, FileNotFoundError):  # it may end between two of these
        return False


def _number(path: Path) -> int:
    assert wait_until(lambda: path.exists() and path.read_text().strip() != "", seconds=10)
    return int(path.read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c" / "b").mkdir(parents=True)
    (tmp_path / "c" / "b" / "data").write_text("x")
    return tmp_path


def _start_parent(folder: Path, extra: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PARENT % extra, str(folder)])


def test_kill_9_of_the_parent_ends_the_command_and_removes_its_folder(folder: Path) -> None:
    with _start_parent(folder) as parent:
        command, launcher = _number(folder / "pid"), _number(folder / "launcher")
        parent.kill()
    assert wait_until(lambda: not _alive(command) and not _alive(launcher), seconds=10)
    assert not (folder / "c").exists()


def test_a_forked_child_that_holds_the_leash_does_not_keep_the_command_alive(folder: Path) -> None:
    with _start_parent(folder, _FORK) as parent:
        command, fork = _number(folder / "pid"), _number(folder / "fork")
        parent.kill()
    try:
        assert _alive(fork)
        assert wait_until(lambda: not _alive(command), seconds=10)
    finally:
        os.kill(fork, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_kill_9_of_the_launcher_ends_the_command(folder: Path) -> None:
    with _start_parent(folder) as parent:
        command = _number(folder / "pid")
        os.kill(_number(folder / "launcher"), signal.SIGKILL)
        assert wait_until(lambda: not _alive(command), seconds=10)
        parent.kill()


def test_exit_status_and_signals_come_through() -> None:
    process = LeashedProcess(["sh", "-c", "exit 7"], output=subprocess.DEVNULL)
    assert process.wait(10) == 7
    process.close()
    process = LeashedProcess(["sleep", "600"], output=subprocess.DEVNULL)
    assert process.running
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGTERM
    process.close()
    process.close()  # again is fine


def test_close_ends_though_an_interrupt_left_the_lock_of_popen_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C inside Popen.poll, between taking its lock and `try`."""
    monkeypatch.setattr(launched, "END_S", 0.1)
    process = LeashedProcess(["sleep", "600"], output=subprocess.DEVNULL)
    process._popen._waitpid_lock.acquire()  # type: ignore[attr-defined]
    process.close()
    assert process._popen.returncode == 128 + signal.SIGKILL


def test_a_command_that_does_not_exist_is_named() -> None:
    process = LeashedProcess(["/no/such/command"], output=subprocess.PIPE)
    assert b"cannot run /no/such/command" in process.stdout.read()
    assert process.wait(10) == 127
    process.close()


def test_the_command_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Else Ctrl-C in a terminal would stop the brokers under a test that is still running."""
    process = LeashedProcess(["sh", "-c", "ps -o sid= -p $$"], output=subprocess.PIPE)
    assert int(process.stdout.read()) != os.getsid(0)
    process.close()
