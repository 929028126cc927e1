"""How the processes of pytest-xdist share the tests of `make test`.

A file is a unit, since its tests share brokers and topics. Files that share a costly fixture of the
session are one unit, so that one process starts it. The units that take longest come first, so
that no process is left alone with one at the end.

Half of the processes prefer units with Spark and the others those without, since each process
starts a Spark of its own, for half a minute of processor time. The last process begins at the
other end, with files that need neither broker nor Spark: they compute while the others wait.
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
    "test_schema_peers.py",  # with it all files that share its registry
    "test_parity.py",
    "test_security.py",  # with it all files that share its broker, of which one waits for 45 s
    "test_streams.py",
    "test_batch_write.py",
    "test_notebooks.py",
    "test_exactly_once_batch.py",
    "test_brokers_die.py",
    "test_delegation_tokens_real.py",
    "test_mixed_group.py",
    "test_reliability_real.py",
    "test_other_producers.py",
    "test_registration.py",
    "test_stream_brokers.py",
    "test_kafka_cluster.py",
    "test_schema_outages.py",
    "test_stream_topics.py",
    "test_group_member_real.py",
    "test_transform.py",
    "test_read_others.py",
    "test_consumer_real.py",
    "test_stream_writer.py",
    "test_write_others.py",
    "test_pushdown_real.py",
    "test_demo.py",
    "test_security_clients.py",
    "test_stream_transactions.py",
    "test_sql_write.py",
    "test_reliability.py",
    "test_exactly_once_model.py",
    "test_bombs.py",
    "test_transactions.py",
    "test_large_batches.py",
)
"""Files that take longest, in order."""

SHARE_NOTHING = ("test_demo.py", "test_notebooks.py", "test_registration.py")
"""Each test of these files may run anywhere."""

SHARE_A_SESSION: dict[str, str] = {
    "test_acls_and_users.py": "secured",
    "test_check_real.py": "secured",
    "test_security.py": "secured",
    "test_security_clients.py": "secured",
    "test_security_sets.py": "secured",
    "test_delegation_tokens_real.py": "secured and spark",
    "test_exactly_once_acls.py": "secured and spark",
    "test_security_spark.py": "secured and spark",
    "test_unauthorised.py": "secured and spark",
    "test_registry.py": "schema_registry",
    "test_registry_client_real.py": "schema_registry",
    "test_schema_peers.py": "schema_registry",
    "test_snippets.py": "schema_registry",
}
"""The costly fixtures of these files: a broker with TLS, SASL and ACLs, a registry, Spark."""


class LongestFirst(LoadScopeScheduling):
    """Hands out units in the order of `in_turn`, and to one process from its end."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = Path(file).name
        return nodeid if name in SHARE_NOTHING else SHARE_A_SESSION.get(name, file)

    def _assign_work_unit(self, node: Any) -> None:
        nodes = self.nodes
        if len(nodes) > 1 and node is nodes[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        elif len(nodes) > 2:
            prefers_spark = nodes.index(node) < len(nodes) // 2
            for scope, unit in self.workqueue.items():
                file = Path(self.config.rootpath, next(iter(unit)).partition("::")[0])
                if has_mark(file, "spark") == prefers_spark and has_mark(file, *HEAVY):
                    self.workqueue.move_to_end(scope, last=False)
                    break
        super()._assign_work_unit(node)


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """The longest first, then the rest with brokers or Spark, then those without."""
    return sorted(items, key=lambda item: _turn(item.path))


@functools.cache
def _turn(file: Path) -> tuple[bool, int]:
    heavy = has_mark(file, *HEAVY)
    rank = LONGEST.index(file.name) if file.name in LONGEST else len(LONGEST)
    # The process that begins at the end finds the longest of the others there.
    return not heavy, rank if heavy else -rank


@functools.cache
def has_mark(file: Path, *marks: str) -> bool:
    """Whether any test of the file has one of the marks."""
    return re.search(rf"mark\.({'|'.join(marks)})\b", file.read_text("utf-8")) is not None
