"""docs/low-level.md and docs/codec.md: their snippets run, in order, as they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest

import sparkkafka.protocol
from tests.snippets import ROOT, page, run, shown, snippets

LOW_LEVEL = page("docs/low-level.md")
CODEC = page("docs/codec.md")


@pytest.mark.real
def test_the_snippets_of_one_broker_run(
    kafka_cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nobody else's topics and groups have the names of the page: to it the broker is an empty one.
    names, printed = run(LOW_LEVEL, capsys, kafka_cluster.bootstrap_servers)
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
    assert len(shown(LOW_LEVEL)) == 2
    for block in shown(LOW_LEVEL):
        assert " ".join(block.removesuffix("…\n").split()) in " ".join(printed.split())
    assert names["connection"].is_open is False
    assert [row.split()[0] for row in names["rows"]] == ["connected", "disconnected"]


def test_the_snippets_of_the_codec_run(capsys: pytest.CaptureFixture[str]) -> None:
    _, printed = run(CODEC, capsys)
    assert len(shown(CODEC)) >= 5
    for block in shown(CODEC):
        assert block in printed


def test_the_page_names_all_that_is_public() -> None:
    named = set(re.findall(r"\w+", CODEC))
    assert sorted(set(sparkkafka.protocol.__all__) - named) == []


@pytest.mark.parametrize("text", [LOW_LEVEL, CODEC], ids=["low-level", "codec"])
def test_the_pages_name_what_there_is(text: str) -> None:
    assert len(snippets(text)) >= 5
    assert len(text.encode()) <= 15 * 1024
    for link in re.findall(r"\]\((?!http)([^)]+)", text):
        name, _, anchor = link.partition("#")
        target = page(f"docs/{name}") if name else text
        assert (ROOT / "docs" / name).exists(), link
        titles = re.findall(r"^#+ (.*)", target, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not anchor or anchor in anchors, link
