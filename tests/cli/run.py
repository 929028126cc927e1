"""Run the command in this process: exit code, output, and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sparkkafka.cli.app import main


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line on stderr."""
        (line,) = self.err.splitlines()
        return line


class Command:
    """`command("topics", "list")` runs against these brokers, and must exit with `code`."""

    def __init__(self, capsys: pytest.CaptureFixture[str], servers: str) -> None:
        self._capsys = capsys
        self.servers = servers

    def __call__(self, *arguments: str, code: int | None = 0) -> Run:
        self._capsys.readouterr()
        found = main(["-b", self.servers, "--timeout", "60", *arguments])
        out, err = self._capsys.readouterr()
        assert code is None or found == code, f"exit code {found}: {out}{err}"
        return Run(found, out, err)
