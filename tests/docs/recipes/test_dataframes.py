"""Each library reads what is new, and a failed run leaves no duplicates."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, Producer
from tests.docs.snippets import blocks, page, run

PAGE = "docs/recipes/dataframes.md"


def block_with(word: str) -> str:
    (code,) = [code for _, code in blocks(page(PAGE)) if word in code]
    return code


@pytest.fixture
def kafka(request: pytest.FixtureRequest, fake_cluster_factory: Any) -> Any:
    """A real broker for one test, which is the only one to create the page's topics there."""
    if request.node.get_closest_marker("real"):
        return request.getfixturevalue("kafka_cluster")
    return fake_cluster_factory(1)


@pytest.fixture
def run_again(kafka: Any, capsys: Any, tmp_path: Path) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Run the page in an empty folder, then return a function that runs its block with a word
    again."""

    def again(word: str) -> dict[str, Any]:
        exec(block_with(word).replace("/data/", f"{tmp_path}/"), names)
        return names

    with chdir(tmp_path):
        names, _ = run(PAGE, capsys, kafka.bootstrap_servers)
        yield again


def send_sale(names: dict[str, Any]) -> None:
    with Producer(names["servers"]) as producer:
        sale = '{"id": 4, "city": "Kiel", "price": 2.0}'
        producer.send_many("sales", [sale, {"key": "gone", "value": None}]).result()


def discounted(names: dict[str, Any]) -> list[bytes | None]:
    with Consumer(names["settings"]("check")) as consumer:
        tables = list(names["new_tables"](consumer, "discounted-sales"))
    return [value for table in tables for value in table["value"].to_pylist()]


class Killed(Exception):
    pass


def fail_once(monkeypatch: Any, client: type, method: str) -> None:
    def fail(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        raise Killed

    monkeypatch.setattr(client, method, fail)


def test_duckdb_has_each_record_once_after_a_failed_commit(
    run_again: Any, monkeypatch: Any
) -> None:
    names = run_again("duckdb.connect")
    send_sale(names)
    fail_once(monkeypatch, Consumer, "commit")
    with pytest.raises(Killed):
        run_again("duckdb.connect")
    sales = run_again("duckdb.connect")["database"].sql("SELECT id FROM sales ORDER BY id")
    assert [row[0] for row in sales.fetchall()] == [1, 2, 3, 4]
    with Admin(names["servers"]) as admin:
        offsets = admin.list_consumer_group_offsets("sales-to-duckdb").all()
    assert sum(offset.offset for offset in offsets.values()) == 5  # the tombstone, too


@pytest.mark.real
def test_polars_counts_each_sale_once_after_a_failed_transaction(
    run_again: Any, monkeypatch: Any
) -> None:
    names = run_again("transactional.id")
    assert len(discounted(names)) == 3  # the second run found nothing new
    send_sale(names)
    fail_once(monkeypatch, Producer, "commit_transaction")
    with pytest.raises(Killed):
        run_again("transactional.id")
    assert len(discounted(names)) == 3
    run_again("transactional.id")
    found = discounted(names)
    assert len(found) == 4
    assert b'{"id":4,"city":"Kiel","price":1.6}' in found


def test_a_broker_that_does_not_answer_ends_the_loop(kafka: Any, run_again: Any) -> None:
    names = run_again("def new_tables")
    with Consumer(names["settings"]("patient")) as consumer:
        tables = names["new_tables"](consumer, "sales", timeout_s=0.0)
        assert next(tables).num_rows >= 1
        send_sale(names)
        list(tables)  # ends before the new records
        tables = names["new_tables"](consumer, "sales", timeout_s=0.0)
        consumer.pause(consumer.assignment())
        with pytest.raises(TimeoutError, match="topic sales: no records"):
            list(tables)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # Ray's own
def test_ray(run_again: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    names = run_again("import ray")
    run_again("import ray")
    assert sorted(pq.read_table(tmp_path / "sales")["id"].to_pylist()) == [1, 2, 3]
    names["ray"].shutdown()
