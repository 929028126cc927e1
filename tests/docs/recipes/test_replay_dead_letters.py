"""The recipe's replay: each record once, with key, headers and time, and hopeless ones apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Producer
from tests.docs.snippets import run
from tests.real.peers import confluent_read

PAGE = "docs/recipes/replay-dead-letters.md"


@pytest.mark.real
@pytest.mark.spark
def test_replay_dead_letters(spark: Any, kafka_cluster: Any, capsys: Any, tmp_path: Path) -> None:
    servers = kafka_cluster.bootstrap_servers
    names, _ = run(PAGE, capsys, servers, folder=str(tmp_path))
    records = confluent_read(servers, "payments", 1, "read_committed")
    bad, repaired = records[1], records[3]
    assert (repaired.key, repaired.timestamp_ms) == (bad.key, bad.timestamp_ms)
    assert repaired.headers == (*bad.headers, ("replayed", b"1"))

    # A replayed record that is refused again, and a dead letter without the headers.
    at = {"topic": b"payments", "partition": b"0", "offset": b"3"}
    again = {f"__connect.errors.{name}": value for name, value in at.items()} | {"replayed": b"1"}
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send("payments-dead", '{"id": 2}', headers=again)
        producer.send("payments-dead", '{"id": 9}')
    names["replay"]()
    assert len(confluent_read(servers, "payments", 1, "read_committed")) == 4
    hopeless = confluent_read(servers, "payments-hopeless", 1, "read_committed")
    values = sorted((record.value or b"").decode() for record in hopeless)
    assert values == ["no JSON", '{"id": 2}', '{"id": 9}']
