"""The recipe's join: each micro-batch meets the latest customers, or those that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import run

PAGE = "docs/recipes/stream-static-join.md"


@pytest.mark.real
@pytest.mark.spark
def test_stream_static_join(spark: Any, kafka_cluster: Any, capsys: Any, tmp_path: Path) -> None:
    names, _ = run(PAGE, capsys, kafka_cluster.bootstrap_servers, folder=str(tmp_path))
    customers, send, start = names["customers"], names["send"], names["start"]
    try:
        customers.count()  # persisted by the page, and read now
        send("customers", a="Eve")
        send("purchases", a="kept")
        start().awaitTermination()
        customers.unpersist()
        send("purchases", a="fresh")
        start().awaitTermination()
    finally:
        customers.unpersist()
    named = sorted(row.value.decode() for row in names["named"].collect())
    assert named[2:] == ["cup of Bob", "fresh of Eve", *named[4:]]
    assert "kept of Anna" in named
    assert len(named) == 8
