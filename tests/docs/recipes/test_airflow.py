"""The sensor's poke and the load of the page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparkkafka.client import Consumer, Producer
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.docs.snippets import blocks, page, run

PAGE = "docs/recipes/airflow.md"


class Killed(Exception):
    pass


def written(folder: Path) -> list[bytes]:
    values = [pq.read_table(path)["value"].to_pylist() for path in folder.glob("*.parquet")]
    return sorted(value for file in values for value in file)


def send(servers: str, values: list[str], **settings: Any) -> None:
    with Producer({"bootstrap.servers": servers, **settings}) as producer:
        producer.send_many("card-payments", values).result()


def test_a_poke_compares_offsets_only(fake_cluster: FakeCluster, capsys: Any) -> None:
    fake_cluster.create_topic("card-payments", partitions=3)
    names, _ = run(PAGE, capsys, fake_cluster.bootstrap_servers)
    assert names["lag"]() == 0
    send(fake_cluster.bootstrap_servers, ["one", "two", "three"])
    fake_cluster.clear_requests()
    assert names["lag"]() == 3
    assert names["lag"]() == 3
    sent = {request.api for request in fake_cluster.requests}
    assert "OffsetFetch" in sent
    assert not sent & {"JoinGroup", "OffsetCommit"}


@pytest.mark.real
def test_a_load_that_is_killed_before_its_commit_writes_nothing_twice(
    kafka_cluster: Any, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    kafka_cluster.create_topic("card-payments", partitions=3)
    names, _ = run(PAGE, capsys, servers)
    lag, load = names["lag"], names["load"]
    send(servers, [f"first {number}" for number in range(10)])
    assert (lag(), load(str(tmp_path)), lag(), load(str(tmp_path))) == (10, 10, 0, 0)

    with Producer({"bootstrap.servers": servers, "transactional.id": "payer"}) as producer:
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send_many("card-payments", [end.__name__] * 2, partition=0).result()
            end()
        producer.begin_transaction()
        producer.send("card-payments", "open", partition=0).result()

        def fail(consumer: Consumer) -> None:
            monkeypatch.undo()
            raise Killed

        monkeypatch.setattr(Consumer, "commit", fail)
        with pytest.raises(Killed):
            load(str(tmp_path))
        assert len(written(tmp_path)) == 12
        assert load(str(tmp_path)) == 2
        assert lag() == 0  # the open transaction does not count
    first = [b"first %d" % number for number in range(10)]
    assert written(tmp_path) == [b"commit_transaction"] * 2 + first


class Task:
    """Stands in for Airflow's `task`: it collects the functions, and `>>` orders them."""

    def __init__(self) -> None:
        self.functions: dict[str, Any] = {}
        self.order: list[str] = []

    def __call__(self, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            self.functions[function.__name__] = function
            return lambda: Call(self, function.__name__)

        return decorate

    sensor = __call__


class Call:
    def __init__(self, task: Task, name: str) -> None:
        self.task, self.name = task, name

    def __rshift__(self, other: Call) -> None:
        self.task.order = [self.name, other.name]


def test_the_dag_loads_once_there_are_a_thousand_records(
    fake_cluster: FakeCluster, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    """Airflow itself is too large for this environment: see the page."""
    servers = fake_cluster.bootstrap_servers
    fake_cluster.create_topic("card-payments", partitions=3)
    names, _ = run(PAGE, capsys, servers)
    task = Task()
    airflow = ModuleType("airflow.sdk")
    airflow.__dict__.update(task=task, dag=lambda **options: lambda function: function)
    kafka_part = ModuleType("payments_kafka")
    kafka_part.__dict__.update(names)
    for module in (ModuleType("airflow"), airflow, kafka_part):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    (code,) = [code for language, code in blocks(page(PAGE)) if language == "py"]
    exec(code.replace("/data/payments", str(tmp_path / "new")), {})
    assert task.order == ["wait_for_records", "load_records"]

    send(servers, ["x"] * 999)
    assert not task.functions["wait_for_records"]()
    send(servers, ["x"])
    assert task.functions["wait_for_records"]()
    assert task.functions["load_records"]() == 1000
    assert written(tmp_path / "new") == [b"x"] * 1000
    assert not task.functions["wait_for_records"]()
