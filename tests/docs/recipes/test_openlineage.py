"""The recipe's job tells its topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.client.support import write
from tests.docs import snippets

PAGE = "docs/recipes/openlineage.md"


@pytest.mark.real
@pytest.mark.spark
def test_openlineage(
    spark: Any, kafka_cluster: Any, new_topic: Any, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    pytest.importorskip("openlineage.client")
    servers, topic = kafka_cluster.bootstrap_servers, new_topic(partitions=1)
    write(kafka_cluster, topic, 2, partitions=1)
    text = snippets.page(PAGE).replace("orders-copy", f"{topic}-copy")
    text = text.replace('"orders"', f'"{topic}"').replace("'orders'", f"'{topic}'")
    monkeypatch.setattr(snippets, "page", lambda name: text)
    snippets.run(PAGE, capsys, servers, folder=str(tmp_path))
    events = [json.loads(line) for line in (tmp_path / "lineage.json").read_text().splitlines()]
    assert {row["namespace"] for event in events for row in event["inputs"]} == {
        f"kafka://{servers}"
    }
