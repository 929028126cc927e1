"""docs/client.md: its snippets run, in order, against a real broker that is empty."""

from __future__ import annotations

import re
from typing import Any

import pytest

import sparkkafka.client
import sparkkafka.errors
from sparkkafka.client import Consumer, TopicPartition
from tests import api_docs
from tests.snippets import ROOT, page, run, shown, snippets

PAGE = page("docs/client.md")


@pytest.mark.real
def test_the_snippets_run_in_order(
    kafka_cluster_factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # A broker of its own, on which nothing is but what the page makes.
    servers = kafka_cluster_factory().bootstrap_servers
    before, heading, after = PAGE.partition("## Administration\n")
    names, text = run(before, capsys, servers)
    # Administration ends with deleting what the transaction has written.
    settings = {"bootstrap.servers": servers, "isolation.level": "read_committed"}
    with Consumer(settings | {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("shouted", 0)])
        shouted = [record.value for record in consumer.poll(10)]
    assert shouted == [record.value.upper() for record in names["records"]]
    assert any(value.startswith(b"ORDER ") for value in shouted)
    _, rest = run(heading + after, capsys, servers, names)
    text += rest
    assert "RecordMetadata(topic='orders'" in text
    assert re.search(r"^orders \d \d+ \d{13} b'", text, re.MULTILINE)
    assert "got 4" in text
    assert "gave up 4" in text
    assert "3600000" in text
    assert "OffsetAndMetadata(offset=10, metadata='up to the break'" in text
    assert re.search(r"^orders-3 0 \d+$", text, re.MULTILINE)
    assert re.search(r"^3 [1-9]\d*$", text, re.MULTILINE)
    assert re.search(r"^committed \[\[TopicPartition\(topic='orders'", text, re.MULTILINE)
    assert names["table"].num_rows == 1002
    assert f"connected to ['{servers}']" in text
    (_, errors) = shown(PAGE)
    assert errors in text


def test_the_page_of_all_calls_is_current() -> None:
    assert api_docs.PAGE.read_text("utf-8") == api_docs.page(), "run: python -m tests.api_docs"
    assert "`poll(timeout_s) -> Records`" in api_docs.page()


def test_there_are_snippets_to_run() -> None:
    assert len(snippets(PAGE)) >= 10


def test_the_page_names_only_what_there_is() -> None:
    for line in re.findall(r"from sparkkafka\.client import (.*)", PAGE):
        for name in line.split(","):
            assert name.strip() in sparkkafka.client.__all__
    for link in re.findall(r"\]\((?!#|http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    """On the page and in the module's docstring: each class under its base, with Python's own."""
    for text in (shown(PAGE)[0], sparkkafka.errors.__doc__ or ""):
        found: dict[str, str] = {}
        above: dict[int, str] = {}
        for before, name, python in re.findall(
            r"^([ │├└─]*)\b(\w+Error)(?: \((\w+)\))?(?:  .*)?$", text, re.MULTILINE
        ):
            depth = len(before)
            above = {level: other for level, other in above.items() if level < depth}
            parent = above[max(above)] if above else "Exception"
            above[depth] = name
            found[name] = f"{parent} {python}".strip()
        expected = {}
        for name in sparkkafka.errors.__all__:
            cls = getattr(sparkkafka.errors, name)
            if isinstance(cls, type) and issubclass(cls, sparkkafka.errors.KafkaError):
                expected[name] = " ".join(base.__name__ for base in cls.__bases__)
        assert found == expected
