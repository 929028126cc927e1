"""Upserts into Iceberg: what the page says holds when a micro-batch is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.recipes.upserts import (
    AFTER_CHANGES,
    assert_a_record_without_a_key_is_an_error,
    start_after_a_kill,
)
from tests.docs.snippets import run

PAGE = "docs/recipes/upsert-iceberg.md"


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")  # the page says so
def test_a_repeated_micro_batch_changes_nothing(
    spark: Any, kafka_cluster: Any, capsys: Any
) -> None:
    # Here, because each process of the tests imports all test modules.
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import CommitFailedException

    servers = kafka_cluster.bootstrap_servers
    names, _ = run(PAGE, capsys, servers)
    start_after_a_kill(names, servers, "orders-to-iceberg", names["upsert"], names["append"])
    with load_catalog("local", **names["settings"]) as catalog:
        orders = catalog.load_table("shop.orders").scan().to_arrow()
        assert orders.sort_by("key").to_pylist() == AFTER_CHANGES
        history = catalog.load_table("shop.history").scan().to_arrow()
        assert sorted(history["offset"].to_pylist()) == [*range(10)]
        # Two drivers that commit at the same time: the tables' setting makes the second fail.
        for name, rows in (("shop.orders", orders), ("shop.history", history)):
            first, second = (catalog.load_table(name) for _ in range(2))
            first.append(rows)
            with pytest.raises(CommitFailedException):
                second.append(rows)
    assert_a_record_without_a_key_is_an_error(names)
