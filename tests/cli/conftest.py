"""The command and an Admin on fake brokers."""

from __future__ import annotations

import pytest

from sparkkafka.client import Admin
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.cli.run import Command


@pytest.fixture
def fake():
    with FakeCluster() as fake:
        yield fake


@pytest.fixture
def command(fake, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Command(capsys, fake.bootstrap_servers)


@pytest.fixture
def admin(fake):
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        yield admin
