"""Run the command in this process: exit code, output, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Producer
from sparkkafka.testing.fake.cluster import FakeCluster


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


def produce(
    fake: FakeCluster,
    topic: str,
    counts: Mapping[int, int],
    headers: Mapping[str, bytes] | None = None,
) -> None:
    """Write records, as many as `counts` says of each partition."""
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for partition, count in counts.items():
            for number in range(count):
                value = b"value %d" % number
                producer.send(topic, value, b"key", headers or {}, partition=partition)
