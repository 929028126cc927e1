"""What the docs show works: the Python of all pages runs, in order, and prints what it says."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.cli.app import main
from sparkkafka.config.options import parse_read_options
from sparkkafka.testing.registry import PATH, USUAL_PORT, SchemaRegistry
from tests.docs.snippets import (
    AUTHORIZER,
    CHAINS,
    ROOT,
    SECURITY,
    hand_written_pages,
    page,
    run,
    snippets,
)
from tests.support.waiting import wait_until


def run_chain(
    chain: str, capsys: pytest.CaptureFixture[str], servers: str = "", registry: str = ""
) -> tuple[dict[str, Any], str]:
    names: dict[str, Any] = {}
    printed = ""
    for name in CHAINS[chain]:
        names, text = run(name, capsys, servers, names, registry)
        printed += text
    return names, printed


def values_of(spark: Any, servers: str, topic: str) -> list[bytes | None]:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    rows = spark.read.format("pykafka").options(**options).load().select("value").collect()
    return sorted(row.value for row in rows)


@pytest.mark.real
@pytest.mark.spark
def test_readme(spark: Any, servers: str, schema_registry: SchemaRegistry, capsys: Any) -> None:
    # The URL that README prints is the one of the registry that it starts, port and path.
    shown_url = re.search(r'"http://localhost(:\d+)(/\S*)"', page("README.md"))
    assert shown_url is not None
    assert shown_url.groups() == (f":{USUAL_PORT}", PATH)
    names, printed = run_chain("readme", capsys, servers, schema_registry.url)
    assert re.search(r"\|\s*three\|", printed)  # orders.show()
    assert re.search(r"\|\s*3\|\s*0\.75\|", printed)  # of the typed ones
    assert "once: 3" in printed
    assert "read without Spark: 0 b" in printed
    assert "acknowledged: RecordMetadata(topic='orders'" in printed
    assert spark.read.parquet(f"{names['folder']}/rows").count() == 3
    shown = re.findall(r"^    .venv/bin/sparkkafka (.*)$", page("README.md"), re.MULTILINE)
    outputs = []
    for line in shown:
        assert main(shlex.split(line.replace("localhost:9092", servers))) == 0, line
        outputs.append(capsys.readouterr().out)
    topics, records = outputs
    assert "orders-once" in topics
    values = sorted(json.loads(line)["payload"] for line in records.splitlines())
    assert values == ["five", "four", "one", "three", "two"]


@pytest.mark.real
@pytest.mark.spark
def test_the_front_page(spark: Any, servers: str, capsys: Any, tmp_path: Any) -> None:
    (name,) = CHAINS["front page"]
    _, printed = run(name, capsys, servers, folder=str(tmp_path))
    assert re.search(r"\|\s*two\|", printed)
    assert values_of(spark, servers, "orders-copy") == [b"one", b"two"]


@pytest.mark.real
@pytest.mark.spark
def test_pages_of_spark(spark: Any, servers: str, capsys: Any) -> None:
    names, printed = run_chain("spark", capsys, servers)
    assert re.search(r"\|\s*three\|", printed)  # orders.show()
    assert "from offset 1 on: 2" in printed
    assert "once: 3" in printed
    assert "columns: ['value', 'offset']" in printed
    assert re.search(r"^today: [1-3]$", printed, re.MULTILINE)
    assert names["values"].count() == 3
    # Two tasks wrote them, each its own rows: the order between the tasks is anybody's guess.
    assert values_of(spark, servers, "shouted") == [b"ONE", b"ONE MORE", b"THREE", b"TWO"]
    assert values_of(spark, servers, "order-copies") == [b"text"] * 3
    assert values_of(spark, servers, "orders-in-time") == [b"one", b"three", b"two"]
    assert values_of(spark, servers, "order-counts") == [b"1"] * 3
    assert len(values_of(spark, servers, "orders-measured")) == 3
    # Spark tells of a batch some time after the query has ended.
    reader = names["reader"]
    wait_until(lambda: "sparkkafka.batches" in reader.get_metrics_data().to_json(), "the metrics")
    names["observed"].close()


@pytest.mark.real
@pytest.mark.spark
def test_pages_of_schemas(
    spark: Any, servers: str, schema_registry: SchemaRegistry, capsys: Any
) -> None:
    names, printed = run_chain("schemas", capsys, servers, schema_registry.url)
    assert re.search(r"\|\s*3\|item-3\|\s*0\.75\|", printed)  # typed.show()
    assert re.search(r"^value: .*field item: ", printed, re.MULTILINE)  # version 2 read as 1
    options = parse_read_options({**names["kafka"], **names["secured"], "subscribe": "a"})
    assert options.formats.registry.url.count("https://") == 2
    assert names["letters"].count() == 3


@pytest.mark.real
def test_pages_of_the_client_library(
    kafka_cluster_factory: Any, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ALICE_PASSWORD", "hush")
    servers = kafka_cluster_factory(1, AUTHORIZER).bootstrap_servers
    handler = signal.getsignal(signal.SIGTERM)  # the page has one of its own
    try:
        names, text = run_chain("client", capsys, servers)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert re.search(r"^handled \d+\nstopped$", text, re.MULTILINE)
    assert "read orders 0 b'first'" in text
    assert "RecordMetadata(topic='orders'" in text
    assert "all delivered or failed" in text
    assert re.search(r"^orders \d \d+ \d{13} b'", text, re.MULTILINE)
    assert "assigned 4" in text
    assert "revoked 4" in text
    # The controller has the new value when it answers, the broker that is asked a moment later.
    assert re.search("^(3600000|604800000)$", text, re.MULTILINE), text
    assert "OffsetAndMetadata(offset=10, metadata='up to the break'" in text
    assert re.search(r"^orders-3 0 \d+$", text, re.MULTILINE)
    assert re.search(r"^3 [1-9]\d*$", text, re.MULTILINE)
    assert re.search(r"^committed \[\[TopicPartition\(topic='orders'", text, re.MULTILINE)
    # One of the overview, 1,001 and one, two of send_many, and the two of the table.
    assert re.search(r"'value'.*\] 1007$", text, re.MULTILINE)
    assert names["shouted"] == [record.value.upper() for record in names["records"]]
    assert any(value.startswith(b"ORDER ") for value in names["shouted"])
    assert "2 ACLs deleted" in text
    assert f"connected to ['{servers}']" in text


@pytest.mark.real
def test_one_broker_by_hand(servers: str, capsys: Any) -> None:
    names, printed = run_chain("low-level", capsys, servers)
    for line in (
        "36 TOPIC_ALREADY_EXISTS False ",
        "by-hand is led by 0",
        "written at offset 0",
        "offsets 0 to 2",
        "0 b'k1' b'first' ()",
        "1 None b'second' (('source', b'docs'),)",
        "0 True",
        "assigned (('by-hand', 0),)",
        "heartbeat NONE",
        "committed 2 both read",
        "left NONE",
        "the partition ends at 4",
    ):
        assert re.search(rf"^{re.escape(line)}", printed, re.MULTILINE), (line, printed)
    assert names["connection"].is_open is False
    assert [row.split()[0] for row in names["rows"]] == ["connected", "disconnected"]


@pytest.mark.real
def test_brokers_of_ones_own(capsys: Any, fake_cluster: Any) -> None:
    names, printed = run_chain("testing", capsys)
    names["test_shout_survives_a_new_leader"](fake_cluster)
    assert re.search(r"^127\.0\.0\.1:\d+$", printed, re.MULTILINE)
    assert "in the log: 1" in printed


def test_errors(capsys: Any) -> None:
    run_chain("errors", capsys)


def test_managed_kafka(capsys: Any) -> None:
    _, printed = run_chain("managed", capsys)
    assert printed == "1\n"


# --- that nothing is left out -------------------------------------------------------------------


def test_every_page_with_snippets_is_run() -> None:
    with_snippets = {name for name in hand_written_pages() if snippets(page(name))}
    recipes = {name for name in with_snippets if name.startswith("docs/recipes/")}
    listed = [name for names in CHAINS.values() for name in names]
    assert with_snippets - recipes == {*listed, SECURITY}
    assert len(listed) == len(set(listed))
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests/docs/recipes").glob("*.py")}
    assert {Path(name).stem.replace("-", "_") for name in recipes} <= tests


def test_what_a_page_prints_is_compared(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("tests.docs.snippets.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```\n2\n```\n")
    run("page.md", capsys)
    page.write_text("```python\nprint(1 + 1)\n```\n\n```\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md, block 2"):
        run("page.md", capsys)
