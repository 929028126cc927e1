"""Starting commands that end with this process, however it ends (see launcher.py)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from sparkkafka.errors import KafkaError

_LAUNCHER = Path(__file__).with_name("launcher.py")
END_S = 10.0
"""How long a command that was killed may take to end."""


class UnavailableError(KafkaError):
    """Java, Kafka's jars, a port or a broker is not available. The message says what to do."""


class LeashedProcess:
    """A command that is killed when this Python process ends, `kill -9` included.

    `output` is a file for its standard output and error, or `subprocess.PIPE` for reading them
    from `stdout`. `remove` is a folder to remove if this process dies without `close`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes] | int,
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
        remove: Path | None = None,
    ) -> None:
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER)]
        if remove is not None:
            launcher += ["--remove", str(remove)]
        self._popen = subprocess.Popen(
            [*launcher, "--", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            cwd=working_directory,
            # Its own session: Ctrl-C in a terminal reaches this process only.
            start_new_session=True,
        )

    @property
    def stdout(self) -> IO[bytes]:
        stream = self._popen.stdout
        if stream is None:
            raise ValueError("the output goes to a file")
        return stream

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def terminate(self) -> None:
        """Ask the command to end (SIGTERM)."""
        self._send(b"T")

    def kill(self) -> None:
        """Kill the command (SIGKILL)."""
        self._send(b"K")

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait for the end, and return the exit status: 128 + its number if a signal ended it.

        Raises `subprocess.TimeoutExpired` after `timeout_seconds`.
        """
        return self._popen.wait(timeout_seconds)

    def close(self) -> None:
        """Kill the command if it still runs, wait for its end and close its streams."""
        self.kill()
        self._reap()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                # If the last letter could not be written, close raises that error again.
                with contextlib.suppress(OSError):
                    stream.close()

    def _reap(self) -> None:
        """Wait for the end of a command that was killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_S)
            return
        # Ctrl-C or SIGTERM inside Popen.poll may have left Popen's lock taken, for good.
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self._popen.pid, 0)
            self._popen.returncode = os.waitstatus_to_exitcode(status)

    def _send(self, letter: bytes) -> None:
        """Send an order to the launcher (see launcher.py), unless it has ended."""
        leash = self._popen.stdin
        if leash is None or leash.closed:
            return
        with contextlib.suppress(OSError):  # broken pipe: it has ended already
            leash.write(letter)
            leash.flush()
