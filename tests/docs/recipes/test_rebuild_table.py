"""The table that is built again: the page prints its rows after each step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.snippets import run

PAGE = "docs/recipes/rebuild-table.md"


@pytest.mark.real
@pytest.mark.spark
def test_a_rebuilt_table_has_the_source_s_rows(spark: Any, kafka_cluster: Any, capsys: Any) -> None:
    names, _ = run(PAGE, capsys, kafka_cluster.bootstrap_servers)
    db = names["connect"]()
    deletes = db.execute("SELECT id FROM customers__deletes ORDER BY id").fetchall()
    db.close()
    assert deletes == [(2,), (3,)]
