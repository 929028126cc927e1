"""How the processes of pytest-xdist share the tests of `make test`.

A file is a unit, since its tests share brokers and topics. Files that take longest come first, so
that no process is left alone with one at the end. One process begins at the other end, with files
that need neither broker nor Spark: they compute while the others wait.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HEAVY = ("real", "spark", "notebook")
"""Marks of tests that start brokers or Spark."""

LONGEST: tuple[str, ...] = (
    "test_exactly_once_streams.py",
    "test_parity.py",
    "test_streams.py",
    "test_schema_peers.py",
    "test_batch_write.py",
    "test_notebooks.py",
    "test_transform.py",
    "test_exactly_once_kills.py",
    "test_stream_brokers.py",
    "test_kafka_cluster.py",
    "test_schema_outages.py",
    "test_registry.py",
    "test_exactly_once_batch.py",
    "test_reliability_real.py",
    "test_brokers_die.py",
    "test_other_producers.py",
    "test_mixed_group.py",
    "test_stream_topics.py",
    "test_security.py",
    "test_group_member_real.py",
    "test_read_others.py",
    "test_consumer_real.py",
    "test_stream_writer.py",
    "test_producer_outages_real.py",
    "test_write_others.py",
    "test_pushdown_real.py",
    "test_demo.py",
    "test_security_clients.py",
    "test_stream_transactions.py",
    "test_exactly_once_acls.py",
    "test_sql_write.py",
    "test_registration.py",
    "test_reliability.py",
    "test_exactly_once_model.py",
    "test_bombs.py",
    "test_transaction_requests.py",
    "test_large_batches.py",
)
"""Files that take longest, in order."""

SHARE_NOTHING = ("test_demo.py", "test_notebooks.py", "test_registration.py")
"""Each test of these files may run anywhere."""


class LongestFirst(LoadScopeScheduling):
    """Hands out units in the order of `in_turn`, and to one process from its end."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if Path(file).name in SHARE_NOTHING else file

    def _assign_work_unit(self, node: Any) -> None:
        if len(self.nodes) > 1 and node is self.nodes[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """The longest first, then the rest with brokers or Spark, then those without."""
    return sorted(items, key=lambda item: _turn(item.path))


@functools.cache
def _turn(file: Path) -> tuple[bool, int]:
    heavy = re.search(rf"mark\.({'|'.join(HEAVY)})\b", file.read_text("utf-8")) is not None
    rank = LONGEST.index(file.name) if file.name in LONGEST else len(LONGEST)
    # The process that begins at the end finds the longest of the others there.
    return not heavy, rank if heavy else -rank
