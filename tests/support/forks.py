"""Pieces of code, each in a process of its own, whose memory can be measured: forks of one process
that has the imports. A crash ends one of them alone."""

from __future__ import annotations

import atexit
import functools
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, NamedTuple

_SECONDS = 120

_CHILD = """
import os, pickle, signal, sys, tempfile, traceback
imports, seconds = pickle.load(sys.stdin.buffer)
names = {}
exec(imports, names)
import pandas  # which pyarrow imports with the first list that it converts: once, not in each fork

def ended_and_said(code):
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            ended = 1
            try:
                signal.alarm(seconds)
                os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
                exec(code, dict(names))
                ended = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read().decode(errors="replace")

while sys.stdin.buffer.peek(1):
    codes = pickle.load(sys.stdin.buffer)
    found = {name: ended_and_said(code) for name, code in codes.items()}
    sys.stdout.buffer.write(pickle.dumps(found))
    sys.stdout.flush()
"""


class Ended(NamedTuple):
    """How one of them ended: 0, 1 after an error, or minus a signal; and what it printed."""

    code: int
    text: str


def run(imports: str, codes: Mapping[str, str]) -> dict[str, Ended]:
    """Each code after the imports, one after the other; by its name."""
    stdin, stdout = _streams(imports)
    stdin.write(pickle.dumps(dict(codes)))
    stdin.flush()
    return {name: Ended(*ended) for name, ended in pickle.load(stdout).items()}


@functools.cache
def _streams(imports: str) -> tuple[IO[bytes], IO[bytes]]:
    """Of the process that has these imports. It waits for codes until this one ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(process.communicate)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(pickle.dumps((imports, _SECONDS)))
    return process.stdin, process.stdout
