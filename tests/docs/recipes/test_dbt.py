"""The load of the page stores each record once; dbt builds its models if it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sparkkafka.client import Consumer, Producer
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.docs.snippets import blocks, page, run

PAGE = "docs/recipes/dbt.md"


class Killed(Exception):
    pass


def send(servers: str, states: list[tuple[str, str | None]]) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        records = [
            {"key": key, "value": status and f'{{"status": "{status}"}}'} for key, status in states
        ]
        producer.send_many("shipments", records).result()


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / "shop.duckdb")) as database:
        return database.sql(query).fetchall()


@pytest.mark.real
def test_a_load_that_is_killed_before_its_commit_stores_nothing_twice(
    kafka_cluster: Any, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    kafka_cluster.create_topic("shipments", partitions=2)
    send(servers, [("a", "packed"), ("b", "packed")])
    monkeypatch.chdir(tmp_path)
    names, _ = run(PAGE, capsys, servers)
    load, path = names["load"], str(tmp_path / "shop.duckdb")

    def fail(consumer: Consumer) -> None:
        monkeypatch.undo()
        raise Killed

    send(servers, [("a", "sent"), ("b", None)])
    monkeypatch.setattr(Consumer, "commit", fail)
    with pytest.raises(Killed):
        load(path)
    load(path)
    load(path)
    found = rows(
        tmp_path, "SELECT key, value->>'status' FROM kafka.shipments ORDER BY key, kafka_offset"
    )
    assert found == [("a", "packed"), ("a", "sent"), ("b", "packed"), ("b", None)]
    with Consumer(names["SETTINGS"]) as consumer:
        consumer.assign(list(consumer.offsets_for("shipments")))
        assert sum(partition.lag for partition in consumer.lag().values()) == 0


@pytest.mark.skipif(importlib.util.find_spec("dbt") is None, reason="dbt is not installed")
@pytest.mark.filterwarnings("default")  # dbt's own
def test_dbt_builds_the_latest_states(
    fake_cluster: FakeCluster, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    from dbt.cli.main import dbtRunner

    servers = fake_cluster.bootstrap_servers
    fake_cluster.create_topic("shipments", partitions=2)
    send(servers, [("a", "packed"), ("b", "packed"), ("a", "sent")])
    monkeypatch.chdir(tmp_path)
    names, _ = run(PAGE, capsys, servers)
    (tmp_path / "models").mkdir()
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    sources, profiles = [code for language, code in blocks(page(PAGE)) if language == "yaml"]
    (model,) = [code for language, code in blocks(page(PAGE)) if language == "sql"]
    (tmp_path / "models/sources.yml").write_text(sources)
    (tmp_path / "models/shipments.sql").write_text(model)
    (tmp_path / "profiles.yml").write_text(profiles)

    def build(*options: str) -> list[tuple[Any, ...]]:
        result = dbtRunner().invoke(["build", "--profiles-dir", ".", *options])
        assert result.success, result
        return rows(tmp_path, "SELECT shipment_id, status FROM shipments ORDER BY shipment_id")

    assert build() == [("a", "sent"), ("b", "packed")]
    send(servers, [("b", "sent"), ("c", "packed"), ("b", "lost"), ("a", None)])
    names["load"](str(tmp_path / "shop.duckdb"))
    latest = [("a", None), ("b", "lost"), ("c", "packed")]
    assert build() == latest
    assert build() == latest
    assert build("--full-refresh") == latest
