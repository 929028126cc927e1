"""A broker for pages that name their topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client import Admin
from tests.support.waiting import wait_until


@pytest.fixture
def servers(kafka_cluster: Any) -> Iterator[str]:
    """The session's broker, to a page an empty one: the topics that the page makes are deleted."""
    with Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as admin:
        before = admin.list_topics()
        yield kafka_cluster.bootstrap_servers
        made = admin.list_topics().keys() - before
        admin.delete_topics(made).all()
        wait_until(lambda: not made & admin.list_topics().keys(), "topics are left")
