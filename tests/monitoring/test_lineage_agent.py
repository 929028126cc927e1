"""The events of `sparkkafka.lineage` beside those of OpenLineage's agent for format("kafka")."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.testing.kafka.jars import CONNECTOR_JARS, JarSet, ensure_jars
from tests.client.support import write

JOBS = Path(__file__).with_name("lineage_jobs.py")
AGENT = JarSet(
    name="openlineage-spark-1.53.0",
    title="OpenLineage's agent for Spark 1.53.0",
    modules=(("io.openlineage", "openlineage-spark_2.13", "1.53.0", False),),
    jar_count=1,
)

Event = dict[str, Any]


def comparable(value: Any) -> Any:
    """Return what both emit: not the producer, times, ids, the agent's facets of Spark, and the
    Python client's facet with its own version (tags)."""
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    left_out = {"producer", "schemaURL", "eventTime", "runId", "openlineageAdapterVersion"}
    return {
        key: comparable(item)
        for key, item in value.items()
        if not key.startswith(("_", "spark_", "spark.", "environment"))
        and key not in left_out | {"parent", "tags"}
        and item not in ({}, [])
    }


def ends(file: Path) -> list[Event]:
    """Return the ends of runs with datasets, as far as they are comparable, each once."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    found: list[Event] = []
    for event in events:
        if event["eventType"] == "COMPLETE" and event.get("outputs"):
            kept = comparable(event)
            if kept not in found:
                found.append(kept)
    return found


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.jvm
@pytest.mark.soak  # a Spark of its own
def test_events_are_those_of_the_agent_for_the_jvm_connector(
    kafka_cluster_factory: Any, tmp_path: Path
) -> None:
    pytest.importorskip("openlineage.client")
    cluster = kafka_cluster_factory()
    for topic in ("a", "b"):
        cluster.create_topic(topic)
        write(cluster, topic, 3, partitions=1)
    jars = ",".join(map(str, [*ensure_jars(CONNECTOR_JARS), *ensure_jars(AGENT)]))
    command = [sys.executable, str(JOBS), cluster.bootstrap_servers, jars, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    agent, ours = ends(tmp_path / "agent.json"), ends(tmp_path / "ours.json")
    print(json.dumps({"agent": agent, "ours": ours}, indent=1))
    batch, _ = ours
    assert [event["job"]["name"].partition(".")[2] for event in ours] == [
        "execute_save_into_data_source_command",
        "write_to_data_source_v2",
    ]
    # The agent has no columns for the output of a batch write.
    agent[0]["outputs"][0]["facets"]["schema"] = batch["outputs"][0]["facets"]["schema"]
    assert ours == agent
