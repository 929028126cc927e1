"""kfake, the fake broker of franz-go: a broker by other hands, in Go. Its version is in
tests/tools/kfake/go.mod."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KFAKE = "kfake 2026-09-18"
SOURCE = Path(__file__).parents[1] / "tools" / "kfake"
BINARY = Path(__file__).parents[2] / ".cache" / "compat" / "kfake"


def missing_reason() -> str | None:
    """Return why kfake cannot run, None if it can. The first call builds it, in minutes, and
    downloads its modules."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return "Go is not installed"
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    command = [go, "build", "-o", str(BINARY), "."]
    built = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=900)
    return f"kfake cannot be built: {built.stderr.strip()}" if built.returncode else None


@contextmanager
def kfake() -> Iterator[str]:
    """Run a broker, and return its address."""
    command = [str(BINARY)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
