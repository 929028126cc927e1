"""Upserts into Delta: what the page says holds when a micro-batch is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.recipes.upserts import (
    AFTER_CHANGES,
    assert_a_record_without_a_key_is_an_error,
    start_after_a_kill,
)
from tests.docs.snippets import blocks, page, run

PAGE = "docs/recipes/upsert-delta.md"


@pytest.mark.real
@pytest.mark.spark
def test_a_repeated_micro_batch_changes_nothing(
    spark: Any, kafka_cluster: Any, capsys: Any
) -> None:
    from deltalake import DeltaTable  # here: each process of the tests imports all test modules

    servers = kafka_cluster.bootstrap_servers
    names, _ = run(PAGE, capsys, servers)
    start_after_a_kill(names, servers, "orders-to-delta", names["upsert"], names["append"])

    def table(name: str, key: str) -> list[dict[str, Any]]:
        rows = DeltaTable(f"{names['folder']}/{name}").to_pyarrow_table()
        return rows.sort_by(key).to_pylist()

    assert table("orders", "key") == AFTER_CHANGES
    assert [row["offset"] for row in table("history", "offset")] == [*range(10)]
    assert_a_record_without_a_key_is_an_error(names)
    # Delta's jar does not run on this Spark, but the statement is one that Spark parses.
    (merge,) = (text for language, text in blocks(page(PAGE)) if language == "sql")
    parser = spark._jsparkSession.sessionState().sqlParser()
    assert "MergeIntoTable" in parser.parsePlan(merge).toString()
