"""`python -m tests.tools.docs_site` builds the docs as a site in site/, and checks it.

The build fails if a page is not in mkdocs.yml, if the target of a link, anchor, picture or
reference does not exist, or if a browser would load something from another host. The site has
the notebooks with the outputs that are committed.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat

import sparkkafka
import sparkkafka.client
import sparkkafka.protocol
from tests.tools import notebooks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = ROOT / "site"

_FETCHED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src")}


def main() -> int:
    started = time.monotonic()
    write_notebook_pages()
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        return 1
    for path in SITE.rglob("*.html"):
        path.write_text(with_breaks_in_names(path.read_text("utf-8")), "utf-8")
    index = SITE / "search.json"
    text = without_tables_of_benchmarks(with_names_in_texts(index.read_text("utf-8")))
    index.write_text(text, "utf-8")
    wrong = [*pages_not_in_nav(), *broken_addresses(SITE), *calls_not_in_the_api(SITE)]
    for line in wrong:
        print(line, file=sys.stderr)
    done = time.monotonic()
    if not wrong:
        pages = len(list(SITE.rglob("*.html")))
        print(f"site/index.html is there: {pages} pages in {done - started:.0f} s")
    return 1 if wrong else 0


def write_notebook_pages() -> None:
    """Write the pages of notebooks into docs/notebooks."""
    files: dict[str, bytes] = {}
    for path in notebooks.NOTEBOOKS:
        text, pictures = notebooks.as_page(nbformat.read(path, as_version=4), path.stem)
        files |= {f"{path.stem}.md": text.encode(), **pictures}
    folder = DOCS / "notebooks"  # ignored by git
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def with_breaks_in_names(html: str) -> str:
    """Return a page whose long names in tables and in the list of its headings may break after dots
    and before capitals."""

    def with_breaks(code: re.Match[str]) -> str:
        if len(code[1]) <= 16:
            return code[0]
        return re.sub(r"(?<=[._=,(])(?=[a-zA-Z])|(?<=[a-z])(?=[A-Z])", "<wbr>", code[0])

    return re.sub(
        r'<td\b.*?</td>|<span class="md-ellipsis">.*?</a>',
        lambda cell: re.sub(r"<code>([^<]*)</code>", with_breaks, cell[0]),
        html,
        flags=re.DOTALL,
    )


def with_names_in_texts(index: str) -> str:
    """Return the search index, in which the text under a heading that is a name (an option, a
    metric) begins with that name. So a search finds `startingOffsets` before longer names."""
    tree = json.loads(index)
    for item in tree["items"]:
        if re.fullmatch(r"<code>[^<]*</code>", item["title"]):
            item["text"] = f"<p>{item['title']}</p>{item['text']}"
    return json.dumps(tree)


def without_tables_of_benchmarks(index: str) -> str:
    """Return the search index without the tables of the benchmarks' rows: their headings name the
    features, and would be found before the pages that explain them."""
    tree = json.loads(index)
    tree["items"] = [
        item
        for item in tree["items"]
        if not (item["location"].startswith("benchmarks.html#") and item["level"] > 2)
    ]
    return json.dumps(tree)


def pages_not_in_nav(docs: Path = DOCS, config: Path = ROOT / "mkdocs.yml") -> Iterator[str]:
    """Yield an error for each page that the nav of mkdocs.yml lacks."""
    named = set(re.findall(r"[\w/-]+\.md", config.read_text("utf-8").partition("\nnav:")[2]))
    for path in sorted(docs.rglob("*.md")):
        if (name := path.relative_to(docs).as_posix()) not in named:
            yield f"{name} is not in the nav of mkdocs.yml"


class _Page(HTMLParser):
    """The anchors of a page, and (tag, attribute, address) of its links and resources."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.addresses.append((tag, name, value))


def broken_addresses(site: Path) -> Iterator[str]:
    """Yield an error for each address in the HTML that does not exist, or would be loaded from
    another host."""
    pages = {path: _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its addresses are absolute
        for tag, attribute, address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme in ("data", "mailto", "javascript"):
                continue
            where = f"{path.relative_to(site)}: {address}"
            if parts.netloc:
                if (tag, attribute) in _FETCHED:
                    yield f"{where} would be fetched from another host"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{where} leads nowhere"
            elif parts.fragment and target in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[target].anchors and not anchor.startswith("__"):
                    yield f"{where}: no such anchor"


def calls_not_in_the_api(site: Path) -> Iterator[str]:
    """Yield an error for each public name, or public method of a class, that no page has."""
    pages = site.glob("*.html")
    anchors = {anchor for page in pages for anchor in _Page(page.read_text("utf-8")).anchors}
    for package in (sparkkafka, sparkkafka.client, sparkkafka.protocol):
        for name in package.__all__:
            found = getattr(package, name)
            members: Iterable[str] = vars(found) if inspect.isclass(found) else ()
            if found is sparkkafka.client.Admin:
                members = dir(found)  # from its base classes too
            names = [name, *(f"{name}.{member}" for member in members if member[0] != "_")]
            for dotted in names:
                # Spark calls KafkaDataSource; what named tuples inherit from Python needs no page.
                is_own = not name.startswith("_") and (found is not sparkkafka.KafkaDataSource)
                if is_own and f"{package.__name__}.{dotted}" not in anchors:
                    yield f"the pages of the API lack {package.__name__}.{dotted}"


if __name__ == "__main__":
    sys.exit(main())
