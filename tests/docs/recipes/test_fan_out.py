"""The recipe's routes: each row is in its topics, and the files have all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import run

PAGE = "docs/recipes/fan-out.md"


@pytest.mark.real
@pytest.mark.spark
def test_fan_out(spark: Any, kafka_cluster: Any, capsys: Any, tmp_path: Path) -> None:
    # What is printed is compared with the page: the rows of each topic.
    names, _ = run(PAGE, capsys, kafka_cluster.bootstrap_servers, folder=str(tmp_path))
    assert spark.read.parquet(f"{tmp_path}/events").count() == 4
    names["show"]("events-audit")
    assert capsys.readouterr().out.splitlines() == [
        'events-audit a {"type": "order", "price": 5000}',
        'events-audit a {"type": "order", "price": 5000}',
        'events-audit b {"type": "order", "price": 7}',
    ]
