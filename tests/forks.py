"""Pieces of code, each in a process of its own, whose memory can be measured: forks of one process
that has the imports. A crash ends one of them alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

_SECONDS = 120

_CHILD = """
import os, pickle, signal, sys, tempfile, traceback
imports, codes, seconds = pickle.load(sys.stdin.buffer)
names = {}
exec(imports, names)
found = {}
for name, code in codes.items():
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
        found[name] = code, said.read().decode(errors="replace")
sys.stdout.buffer.write(pickle.dumps(found))
"""


class Ended(NamedTuple):
    """How one of them ended: 0, 1 after an error, or minus a signal; and what it printed."""

    code: int
    text: str


def run(imports: str, codes: Mapping[str, str]) -> dict[str, Ended]:
    """Each code after the imports, one after the other; by its name."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=pickle.dumps((imports, dict(codes), _SECONDS)),
        stdout=subprocess.PIPE,
        timeout=_SECONDS * (1 + len(codes)),
        check=True,
    )
    return {name: Ended(*ended) for name, ended in pickle.loads(done.stdout).items()}
