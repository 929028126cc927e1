"""The rules that all pages keep: they are short, name what there is, and lead to what there is."""

from __future__ import annotations

import re

import pytest

import sparkkafka
import sparkkafka.client
import sparkkafka.protocol
from sparkkafka.client.metrics import FetchMetrics, SendMetrics, ShareMetrics
from tests.docs.snippets import README, ROOT, blocks, hand_written_pages, page
from tests.tools.docs_site import pages_not_in_nav

PAGES = hand_written_pages()
README_BYTES = 10 * 1024
PAGE_BYTES = 30 * 1024
GENERATED = {"docs/benchmarks.md", "docs/cli-reference.md"}  # tables of all there is
API = "".join(map(page, PAGES))


@pytest.mark.parametrize("name", sorted({*PAGES} - GENERATED))
def test_a_page_is_short(name: str) -> None:
    assert len(page(name).encode()) <= (README_BYTES if name == README else PAGE_BYTES)


def test_readme_has_what_a_reader_looks_for() -> None:
    text = page(README)
    for words in (
        "pip install",
        "make demo",
        "make test",
        "docs-serve",
        "exactly-once",
        "readStream",
    ):
        assert words in text
    threads, aio = (text for _, text in blocks(text) if "sparkkafka.client" in text)
    for client in (threads, aio):
        assert len([line for line in client.splitlines() if line.strip()]) <= 8
    limits = text.partition("## Limits\n")[2].partition("\n## ")[0]
    assert 1 <= limits.count("\n- ") <= 5


def test_the_front_page_names_the_version_and_what_it_supports() -> None:
    text, supported = page("docs/index.md"), page("docs/compatibility.md")
    python = re.search(r'^requires-python = ">=(.+)"', page("pyproject.toml"), re.MULTILINE)[1]
    spark = re.search(r"^(Spark .+?) are supported", supported, re.MULTILINE)[1]
    kafka = re.search(r"^Brokers from (.+?) are supported", supported, re.MULTILINE)[1]
    needs = f"Version {sparkkafka.__version__} needs Python {python} or later"
    for words in (needs, spark, f"Kafka {kafka}"):
        assert words in text


@pytest.mark.parametrize("name", PAGES)
def test_make_targets_that_are_named_exist(name: str) -> None:
    makefile = page("Makefile")
    for target in re.findall(r"(?:`|^    )make ([a-z][a-z-]*)\b", page(name), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"


@pytest.mark.parametrize("name", PAGES)
def test_paths_and_modules_that_are_named_exist(name: str) -> None:
    text = page(name)
    paths = re.findall(r"(?<![\w/.-])((?:sparkkafka|tests|conf|notebooks|docs)/[\w/.-]*\w)", text)
    paths = [path for path in paths if not re.fullmatch(r"notebooks/.*\.md", path)]  # made
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = re.findall(r"python -m ((?:sparkkafka|tests)[\w.]*\w)", text)
    modules += re.findall(r"^from (sparkkafka[\w.]*) import", text, re.MULTILINE)
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), module


def test_the_ways_of_the_architecture_name_files_that_exist() -> None:
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py|/))`", page("docs/architecture.md"))
    assert len(named) > 40
    assert [path for path in named if not (ROOT / "sparkkafka" / path).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_pages_and_headings(name: str) -> None:
    """Also those of README, which the build of the site does not see."""
    text = page(name)
    folder = (ROOT / name).parent
    links = re.findall(r"\]\((?!\w+:)([^)\s]+)\)", text)
    for link in (*links, *re.findall(r'<(?:img|source)[^>]* src(?:set)?="([^"]+)"', text)):
        path, _, anchor = link.partition("#")
        if path.startswith("notebooks/") and path.endswith(".md"):  # a page that is made
            path = f"../notebooks/{path.removeprefix('notebooks/').removesuffix('.md')}.ipynb"
        target = folder / path if path else ROOT / name
        assert target.exists(), link
        if anchor in ("gh-light-mode-only", "gh-dark-mode-only"):
            assert (target.suffix, "dark" in target.stem) == (".png", "dark" in anchor)
        else:
            assert not anchor or anchor in _anchors(target.read_text("utf-8")), link


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())) for title in titles}


def test_every_page_is_in_the_nav() -> None:
    missing = [line for line in pages_not_in_nav() if not line.startswith("notebooks/")]
    assert missing == []


def test_pre_commit_runs_the_pinned_tools() -> None:
    config = page(".pre-commit-config.yaml")
    pinned = set(re.findall(r'^  "([\w-]+)==', page("pyproject.toml"), re.MULTILINE))
    entries = re.findall(r"^ +entry: (.*)$", config, re.MULTILINE)
    modules = [re.fullmatch(r"\.venv/bin/python -m (\S+).*", entry)[1] for entry in entries]
    assert {"ruff", "mypy"} <= set(modules)
    for module in modules:
        assert module in pinned or (ROOT / f"{module.replace('.', '/')}.py").exists()
    assert "://" not in config


# --- what is public is on a page ----------------------------------------------------------------


@pytest.mark.parametrize(
    "package", [sparkkafka, sparkkafka.client, sparkkafka.protocol], ids=lambda p: p.__name__
)
def test_the_pages_of_the_api_have_all_that_is_public(package: object) -> None:
    names = {name for name in package.__all__ if not name.startswith("_")}
    prefix = re.escape(package.__name__)
    named = set(re.findall(rf"^::: {prefix}\.(\w+)$", API, re.MULTILINE))
    assert named - {"errors", "testing"} == names


def test_the_page_of_metrics_names_all_of_the_clients() -> None:
    groups = [FetchMetrics().figures([]), SendMetrics(1).figures(0, 0)]
    groups.append(ShareMetrics().share_figures())
    figures = [metrics for group in groups for metrics in group.values()]
    headings = re.findall(r"^#### (.*)$", page("docs/metrics.md"), re.MULTILINE)
    named = set(re.findall(r"`([^`]+)`", " ".join(headings)))
    assert sorted({name for metrics in figures for name in metrics} - named) == []


def test_the_page_of_the_codec_names_all_that_is_public() -> None:
    named = set(re.findall(r"\w+", page("docs/low-level.md")))
    assert sorted(set(sparkkafka.protocol.__all__) - named) == []


def test_the_page_of_admin_names_every_call() -> None:
    calls = {
        name
        for name in dir(sparkkafka.client.Admin)
        if not name.startswith("_") and callable(getattr(sparkkafka.client.Admin, name))
    }
    named = set(re.findall(r"\w+", page("docs/client-admin.md")))
    assert sorted(calls - named - {"close"}) == []
