"""The build of the docs is strict: whatever leads nowhere, or would be fetched, fails it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import docs_site

ZENSICAL = Path(sys.executable).with_name("zensical")


def build(folder: Path, text: str) -> tuple[int, str, list[str]]:
    """The status of a strict build of one page with our settings, what it prints, and what our own
    check says."""
    config = (docs_site.ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[0]
    (folder / "mkdocs.yml").write_text(config, "utf-8")
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(text, "utf-8")
    (folder / "docs" / "site.css").write_text("")
    (folder / "docs" / "logo.svg").write_text("<svg/>")
    (folder / "module.py").write_text('"""A module."""\n')
    command = [str(ZENSICAL), "build", "--strict", "--clean"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    wrong = list(docs_site.broken_addresses(folder / "site"))
    return done.returncode, done.stdout + done.stderr, wrong


@pytest.mark.slow
def test_the_whole_site_is_built() -> None:
    program = "from tests.tools import docs_site; raise SystemExit(docs_site.main())"
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=docs_site.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_a_sound_page_is_built(tmp_path: Path) -> None:
    text = "# A\n\n## B\n\n[b](#b) [x](index.md#a)\n\n::: module\n"
    status, _, wrong = build(tmp_path, text)
    assert (status, wrong) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a](none.md) [a](#none) [a][none.such]", "3 issues found"),
        ("::: module.none", "module.none could not be found"),
        ('--8<-- "none.md"', "Snippet at path 'none.md' could not be found"),
    ],
    ids=["link, anchor and reference", "object", "included file"],
)
def test_what_leads_nowhere_fails_the_build(tmp_path: Path, text: str, message: str) -> None:
    status, said, _ = build(tmp_path, f"# A\n\n{text}\n")
    assert status != 0
    assert message in said


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ('<img src="none.png">', "index.html: none.png leads nowhere"),
        ('<a href="sub/index.html#none">', "index.html: sub/index.html#none: no such anchor"),
        ('<a href="sub/#there">', None),
        ('<script src="https://host.example/x.js"></script>', "would be fetched"),
        ('<link href="//host.example/x.css">', "would be fetched"),
        ('<a href="https://host.example/">', None),
    ],
)
def test_what_our_own_check_finds(tmp_path: Path, html: str, message: str | None) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<p id="there">')
    (tmp_path / "index.html").write_text(html)
    found = list(docs_site.broken_addresses(tmp_path))
    assert len(found) == (message is not None)
    assert all(message in line for line in found)


@pytest.mark.parametrize("position", ["<td>{}</td>", '<span class="md-ellipsis">{}</span></a>'])
def test_long_names_in_narrow_columns_may_break(position: str) -> None:
    name = "<code>kafka.x_y=maxOffsets</code>"
    html = docs_site.with_breaks_in_names(
        f"<p>{name}</p>" + position.format(f"{name} <code>a.b</code>")
    )
    broken = "<code>kafka.<wbr>x_<wbr>y=<wbr>max<wbr>Offsets</code>"
    assert html == f"<p>{name}</p>" + position.format(f"{broken} <code>a.b</code>")


def test_the_search_finds_a_name_under_its_own_heading() -> None:
    names = {"title": "<code>topic</code>", "text": "<p>a</p>"}
    others = {"title": "Read <code>topic</code>", "text": "<p>b</p>"}
    index = json.loads(docs_site.with_names_in_texts(json.dumps({"items": [names, others]})))
    texts = [item["text"] for item in index["items"]]
    assert texts == ["<p><code>topic</code></p><p>a</p>", "<p>b</p>"]


def test_the_search_does_not_find_tables_of_benchmarks() -> None:
    items = [
        {"location": "benchmarks.html#exactly-once", "level": 3},
        {"location": "benchmarks.html#result", "level": 2},
        {"location": "exactly-once.html#acls", "level": 3},
    ]
    index = json.loads(docs_site.without_tables_of_benchmarks(json.dumps({"items": items})))
    assert index["items"] == items[1:]


@pytest.mark.parametrize(
    ("question", "response"),
    [
        ("how to reset offsets", "Reset offsets"),
        ("How do I read the last hour", "Read the last hour, or from a timestamp"),
        ("commit offsets in batch", "Commit offsets in a batch job"),
        ("consumer lag", "See the lag of a consumer or stream"),
        ("exactly once", "Write exactly once, without duplicates"),
        ("how can I delete a topic", "Delete a topic, or add partitions"),
        ("rate limit", "Limit records per batch"),
        ("dead letter queue", "Skip bad records, or send them to a dead letter queue"),
        ("test without kafka", "Write a unit test without a Kafka cluster"),
        ("testcontainers", "Write a unit test without a Kafka cluster"),
        (
            "private link",
            "Connect to Kafka in Docker (advertised.listeners, localhost)",
        ),
        (
            "checkpoint compatibility between versions",
            "Upgrade Spark, Kafka or sparkkafka, and keep the checkpoint",
        ),
        (
            "Kafka version compatibility",
            "Upgrade Spark, Kafka or sparkkafka, and keep the checkpoint",
        ),
        ("mirror a topic", "Copy or mirror a topic to another cluster"),
        ("corrupted checkpoint", "Repair a corrupted checkpoint"),
    ],
)
def test_a_question_finds_its_response(question: str, response: str) -> None:
    """The search shows a section if each word of the query begins one of its words."""
    config = (docs_site.ROOT / "mkdocs.yml").read_text("utf-8")
    separator = re.search(r"separator: '(.*)'", config)
    assert separator is not None

    def words(text: str) -> list[str]:
        return [word.lower() for word in re.split(separator[1], text, flags=re.I) if word]

    page = (docs_site.DOCS / "how-to.md").read_text("utf-8")
    sections = {section.partition("\n")[0]: words(section) for section in page.split("\n### ")[1:]}
    found = [
        title
        for title, said in sections.items()
        if all(any(word.startswith(request) for word in said) for request in words(question))
    ]
    assert response in found and len(found) <= 3


def test_a_page_that_the_nav_lacks_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# A")
    (tmp_path / "lost.md").write_text("# B")
    config = tmp_path / "mkdocs.yml"
    config.write_text("site_name: x\nnav:\n  - Home: index.md\n")
    found = list(docs_site.pages_not_in_nav(tmp_path, config))
    assert found == ["lost.md is not in the nav of mkdocs.yml"]
