"""conf/databricks: what says that it ran does run, on plain Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.find_spark_home import _find_spark_home

from sparkkafka.client import Producer
from tests.real.peers import confluent_read

FOLDER = Path(__file__).parents[2] / "conf" / "databricks"
VALUES = ("one", "two", "three")


@pytest.fixture
def servers(servers: str, kafka_cluster: Any) -> str:
    """With the topics that the files name."""
    for topic in ("orders", "shouted"):
        kafka_cluster.create_topic(topic)
    with Producer({"bootstrap.servers": servers}) as producer:
        for value in VALUES:
            producer.send("orders", value)
    return servers


def shouted(servers: str) -> list[str]:
    rows = confluent_read(servers, "shouted", 1, "read_committed")
    return [(row.value or b"").decode() for row in rows]


def cells() -> list[tuple[str, str]]:
    """The word and the code of each cell of the notebook."""
    head, *found = (FOLDER / "stream.py").read_text().split("# COMMAND ----------\n")
    assert head.startswith("# Databricks notebook source\n")
    words = [re.match(r"# (ran|documentation): ", cell) for cell in found]
    assert all(words)
    return [(word[1], cell) for word, cell in zip(words, found, strict=True) if word]


@pytest.mark.real
@pytest.mark.spark
def test_the_cells_that_ran(servers: str, spark: Any, tmp_path: Path, capsys: Any) -> None:
    names = {"spark": spark, "bootstrap_servers": servers, "checkpoint": str(tmp_path)}
    for word, cell in cells():
        if word == "ran":
            exec(compile(cell, "stream.py", "exec"), names)
    assert shouted(servers) == [value.upper() for value in VALUES]
    assert capsys.readouterr().out.splitlines()[0] == "3 orders"


def run_pipeline(
    folder: Path, command: str, servers: str, tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    shutil.copytree(folder / "transformations", tmp_path / "transformations")
    text = (folder / "spark-pipeline.yml").read_text()
    spec = tmp_path / "spark-pipeline.yml"
    storage = (tmp_path / "storage").as_uri()
    spec.write_text(
        text.replace("localhost:9092", servers).replace("storage: storage", f"storage: {storage}")
    )
    home = Path(_find_spark_home())
    return subprocess.run(
        [str(home / "bin" / "spark-pipelines"), command, "--spec", str(spec)],
        cwd=tmp_path,
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.soak
def test_the_pipeline(servers: str, tmp_path: Path, connect_port: None) -> None:
    done = run_pipeline(FOLDER, "run", servers, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr
    assert shouted(servers) == [value.upper() for value in VALUES]


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.soak
def test_the_pipeline_of_changes(kafka_cluster: Any, tmp_path: Path, connect_port: None) -> None:
    servers = kafka_cluster.bootstrap_servers
    done = run_pipeline(FOLDER / "changes", "dry-run", servers, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


def test_the_bundle_deploys_these_files() -> None:
    """Its keys stand in Databricks' documentation, and nothing here can try them."""
    bundle = yaml.safe_load((FOLDER / "databricks.yml").read_text())
    pipeline = bundle["resources"]["pipelines"]["orders"]
    spec = yaml.safe_load((FOLDER / "spark-pipeline.yml").read_text())
    assert pipeline["libraries"] == spec["libraries"]
    assert pipeline["configuration"].keys() == spec["configuration"].keys()
    changes = yaml.safe_load((FOLDER / "changes" / "spark-pipeline.yml").read_text())
    of_changes = bundle["resources"]["pipelines"]["customers"]
    assert of_changes["configuration"].keys() == changes["configuration"].keys()
    (glob,) = (library["glob"]["include"] for library in of_changes["libraries"])
    assert [*FOLDER.glob(glob)]
    (task,) = bundle["resources"]["jobs"]["stream"]["tasks"]
    assert (FOLDER / task["notebook_task"]["notebook_path"]).is_file()
    used = set(re.findall(r"\$\{var\.(\w+)\}", (FOLDER / "databricks.yml").read_text()))
    assert used == bundle["variables"].keys()
    code = " ".join(code for word, code in cells() if word == "documentation")
    read = set(re.findall(r'widgets\.get\("(\w+)"\)', code))
    assert read == task["notebook_task"]["base_parameters"].keys()
