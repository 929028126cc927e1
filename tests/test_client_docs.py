"""docs/client.md: its snippets run, in order, against a real broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import sparkkafka.client
from tests import api_docs

PAGE = (Path(__file__).parent.parent / "docs" / "client.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.real
def test_the_snippets_run_in_order(
    kafka_cluster_factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # A broker of its own: the topics' names are those of the page.
    kafka = kafka_cluster_factory()
    kafka.create_topic("shouted")
    names: dict[str, Any] = {}
    printed: list[str] = []
    for snippet in SNIPPETS:
        code = snippet.replace("localhost:9092", kafka.bootstrap_servers)
        exec(compile(code, f"snippet {len(printed) + 1}", "exec"), names)
        printed.append(capsys.readouterr().out)
    text = "\n".join(printed)
    assert "RecordMetadata(topic='orders'" in text
    assert re.search(r"^orders \d \d+ \d{13} b'", text, re.MULTILINE)
    assert "got 4" in text
    assert "gave up 4" in text
    assert "3600000" in text
    assert "OffsetAndMetadata(offset=10, metadata='up to the break'" in text
    assert names["table"].num_rows == 1002
    assert [record.value.upper() for record in names["records"]]


def test_the_page_of_all_calls_is_current() -> None:
    assert api_docs.PAGE.read_text("utf-8") == api_docs.page(), "run: python -m tests.api_docs"
    assert "`poll(timeout_s) -> Records`" in api_docs.page()


def test_there_are_snippets_to_run() -> None:
    assert len(SNIPPETS) >= 10


def test_the_page_names_only_what_there_is() -> None:
    for line in re.findall(r"from sparkkafka\.client import (.*)", PAGE):
        for name in line.split(","):
            assert name.strip() in sparkkafka.client.__all__
    for link in re.findall(r"\]\((?!#|http)([^)#]+)", PAGE):
        assert (Path(__file__).parent.parent / "docs" / link).exists(), link
