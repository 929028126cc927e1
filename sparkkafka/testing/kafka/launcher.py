"""Runs one command that must not outlive the process that started it.

Started as a file (`python -I -S launcher.py …`), never imported: it needs the standard library
only, so it starts in some 30 ms and does not pull in the package or Spark.

    launcher.py [--remove DIRECTORY] -- COMMAND ARGUMENT…

Standard input is the leash. The parent holds its other end and writes single letters: `T` asks the
command to end (SIGTERM), `K` kills it. When the leash closes, or this process gets a new parent
process, the parent is gone (even `kill -9` closes its files), so the command is killed and
DIRECTORY is removed. Should the launcher itself be killed, Linux kills the command
(PR_SET_PDEATHSIG); that signal is not used between parent and launcher because it follows the
parent's *thread*, and clusters are started from short-lived threads.

The exit status is the command's, or 128 + the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_SECONDS = 0.5


def _tie_to_parent(parent_pid: int) -> None:
    """Let the kernel kill this forked child if the launcher dies. Linux only; on other systems only
    the leash ends it."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # the launcher died before the call above
        os._exit(1)


def _start(command: list[str]) -> int:
    """Start the command, and return its process id."""
    launcher_pid = os.getpid()
    child_pid = os.fork()
    if child_pid:
        return child_pid
    try:
        _tie_to_parent(launcher_pid)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)  # the command must not read the leash
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _watch(child_pid: int, parent_pid: int, child_ended: int) -> tuple[int, bool]:
    """Wait for the command to end. Returns its status, and whether the parent is gone."""
    while True:
        ready, _, _ = select.select([0, child_ended], [], [], _PARENT_CHECK_SECONDS)
        # A child that the parent forked without exec keeps the leash open after the parent's
        # death, so the parent's id is checked as well.
        orphaned = os.getppid() != parent_pid
        if 0 in ready:
            orders = os.read(0, 64)
            orphaned = orphaned or not orders
            if b"T" in orders:
                os.kill(child_pid, signal.SIGTERM)
            if b"K" in orders:
                os.kill(child_pid, signal.SIGKILL)
        if child_ended in ready:
            os.read(child_ended, 64)
        if orphaned:
            os.kill(child_pid, signal.SIGKILL)
        pid, status = os.waitpid(child_pid, 0 if orphaned else os.WNOHANG)
        if pid:
            return status, orphaned


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        directory.parent.rmdir()  # the cluster's folder, once its last broker's folder is gone


def main(arguments: list[str]) -> int:
    parent_pid = os.getppid()
    directory: Path | None = None
    if arguments[0] == "--remove":
        directory = Path(arguments[1])
        arguments = arguments[2:]
    if arguments[0] != "--":
        raise SystemExit("launcher.py [--remove DIRECTORY] -- COMMAND ARGUMENT…")
    child_ended, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # so that the pipe is written
    child_pid = _start(arguments[1:])
    # Only the parent ends the command, by the leash. The signals are ignored after the fork: the
    # command would inherit that, and a `T` that comes before its exec would be lost.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status, orphaned = _watch(child_pid, parent_pid, child_ended)
    if orphaned and directory is not None:
        _remove(directory)
    exit_code = os.waitstatus_to_exitcode(status)
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
