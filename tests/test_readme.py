"""What the README shows works: its Python runs, its make targets and paths exist."""

from __future__ import annotations

import re

import pytest

from tests.snippets import ROOT, page, run, snippets

README = page("README.md")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.real
@pytest.mark.spark
def test_the_snippets_run_in_order(spark, kafka_cluster, capsys):
    # No other test makes topics of these names: to the README the broker is an empty one.
    names, printed = run(README, capsys, kafka_cluster.bootstrap_servers)
    assert re.search(r"\|\s*three\|", printed)  # orders.show()
    assert "\n2\n" in printed  # shouted from offset 1 on
    assert "read without Spark: 0 b" in printed
    assert re.search(r"^127\.0\.0\.1:\d+$", printed, re.MULTILINE)  # the broker of one's own
    shouted = (
        names["spark"]
        .read.format("pykafka")
        .options(
            **{"kafka.bootstrap.servers": kafka_cluster.bootstrap_servers, "subscribe": "shouted"}
        )
    )
    # Two tasks wrote them, each its own rows: the order between the tasks is anybody's guess.
    values = sorted(row.value for row in shouted.load().select("value").collect())
    assert values == [b"ONE", b"THREE", b"TWO"]


@pytest.mark.real
@pytest.mark.spark
def test_the_snippet_of_the_exactly_once_page_runs(spark, kafka_cluster, tmp_path):
    text = page("docs/exactly-once.md")
    (snippet,) = snippets(text)
    options = {
        "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
        "subscribe": "page-in",
        "startingOffsets": "earliest",
    }
    kafka_cluster.create_topic("page-in")  # `stream` is the reader's own; page-out the page makes
    rows = spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
    rows.write.format("pykafka").options(topic="page-in", **options).mode("append").save()
    stream = spark.readStream.format("pykafka").options(**options).load()
    snippet = snippet.replace('"shouted"', '"page-out"')
    names = {"spark": spark, "stream": stream, "checkpoint": str(tmp_path)}
    exec(snippet.replace("localhost:9092", kafka_cluster.bootstrap_servers), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert sorted(row.value for row in names["written"].collect()) == [b"1", b"2"]


def test_there_are_snippets_to_run():
    assert len(snippets(README)) >= 6


def test_make_targets_that_are_named_exist():
    named = set(re.findall(r"\bmake ([a-z]+)\b", README))
    assert {"demo", "test"} <= named
    for target in named - {"sure"}:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"no target {target}"


def test_paths_that_are_named_exist():
    named = set(re.findall(r"`?\b((?:sparkkafka|tests|conf|notebooks)/[\w/.]*)", README))
    assert len(named) > 4
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing == []
