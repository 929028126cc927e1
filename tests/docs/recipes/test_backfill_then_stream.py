"""The recipe's batch and its stream: together they read each record once, also when repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparkkafka
from tests.client.support import write
from tests.docs import snippets
from tests.real.peers import Record, confluent_write

PAGE = "docs/recipes/backfill-then-stream.md"


@pytest.mark.real
@pytest.mark.spark
def test_backfill_then_stream(
    spark: Any, kafka_cluster: Any, new_topic: Any, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, new_topic(partitions=3)
    write(kafka_cluster, topic, 4, partitions=2, per_send=2)  # of 2023
    new = [Record(None, b"new", (), 1_735_689_600_000 + ms) for ms in (5, 0, 7)]
    confluent_write(servers, topic, new)
    text = snippets.page(PAGE).replace('"64"', '"4"').replace("/data/", f"{tmp_path}/")
    text = text.replace('"orders"', f'"{topic}"')
    monkeypatch.setattr(snippets, "page", lambda name: text)
    resolve = sparkkafka.resolve_offsets

    def resolve_and_write(options: Any) -> Any:
        resolved = resolve(options)
        write(kafka_cluster, topic, 6, partitions=3, per_send=2)  # between the two steps
        return resolved

    monkeypatch.setattr(sparkkafka, "resolve_offsets", resolve_and_write)

    def offsets(where: str) -> list[tuple[int, int]]:
        rows = spark.read.parquet(f"{tmp_path}/all-orders").where(where)
        return sorted(tuple(row) for row in rows.select("partition", "offset").collect())

    _, printed = snippets.run(PAGE, capsys, servers)
    assert "9 rows" in printed
    past = [(0, 2), (0, 3), (0, 4)]
    later = [(0, 5), (0, 6), (1, 2), (1, 3), (2, 0), (2, 1)]
    assert offsets("batch = 'backfill'") == past
    assert offsets("batch = '0'") == later
    # All of it again, as after a failure.
    write(kafka_cluster, topic, 1)
    _, printed = snippets.run(PAGE, capsys, servers)
    assert "10 rows" in printed
    assert offsets("true") == sorted([*past, *later, (0, 7)])
