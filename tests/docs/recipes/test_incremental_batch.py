"""The recipe's job, run after run: it reads what is new, and a run that dies is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparkkafka
from tests.client.support import write
from tests.docs import snippets


@pytest.mark.real
@pytest.mark.spark
def test_incremental_batch(
    spark: Any, kafka_cluster: Any, new_topic: Any, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, new_topic(partitions=2)
    write(kafka_cluster, topic, 8, partitions=2, per_send=2)
    text = snippets.page("docs/recipes/incremental-batch.md")
    text = text.replace("/data/orders", str(tmp_path)).replace('"orders"', f'"{topic}"')
    monkeypatch.setattr(snippets, "page", lambda name: text)
    names, printed = snippets.run("docs/recipes/incremental-batch.md", capsys, servers)
    assert "8 rows" in printed

    def offsets() -> list[tuple[int, int]]:
        rows = spark.read.parquet(str(tmp_path)).select("partition", "offset").collect()
        return sorted(tuple(row) for row in rows)

    def load_new() -> None:
        names["load_new"](str(tmp_path))

    expected = [(partition, offset) for partition in (0, 1) for offset in range(4)]
    assert offsets() == expected
    load_new()  # nothing is new
    assert offsets() == expected

    class Killed(BaseException): ...

    def die(options: Any) -> None:
        raise Killed

    write(kafka_cluster, topic, 2)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(sparkkafka, "commit", die)
        load_new()
    write(kafka_cluster, topic, 2, partitions=2, per_send=1)
    load_new()
    expected = sorted([*expected, (0, 4), (0, 5), (0, 6), (1, 4)])
    assert offsets() == expected
    folders = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")}
    assert folders == {
        f"topic={topic}/partition={partition}/start={start}"
        for partition in (0, 1)
        for start in (0, 4)
    }
