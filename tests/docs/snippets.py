"""The Python of the docs, page by page: which pages are read together, and what they print."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.testing.registry import PATH, USUAL_PORT

ROOT = Path(__file__).parents[2]
README = "README.md"

#: Pages whose snippets run in this order, on one broker that is empty at first, each with the
#: names that those before have made.
CHAINS: Mapping[str, Sequence[str]] = {
    "readme": (README,),
    "front page": ("docs/index.md",),
    "spark": (
        "docs/start.md",
        "docs/batch.md",
        "docs/streams.md",
        "docs/plots.md",
        "docs/exactly-once.md",
        "docs/metrics.md",
    ),
    "client": (
        "docs/client.md",
        "docs/client-producer.md",
        "docs/client-consumer.md",
        "docs/client-admin.md",
        "docs/client-asyncio.md",
    ),
    "schemas": ("docs/schemas.md", "docs/schema-types.md", "docs/bad-records.md", "docs/cdc.md"),
    "low-level": ("docs/low-level.md",),
    "testing": ("docs/testing.md",),
    "errors": ("docs/client-errors.md",),
    "managed": ("docs/managed.md",),
}
#: A broker's, for pages that show ACLs; the tests are User:ANONYMOUS.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
#: Its snippets are for brokers of several kinds, and have a test module of their own.
SECURITY = "docs/security.md"


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def hand_written_pages() -> list[str]:
    """README, CONTRIBUTING and the pages of the docs, recipes included."""
    docs = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/recipes").glob("*.md")])
    return [README, "CONTRIBUTING.md", *(path.relative_to(ROOT).as_posix() for path in docs)]


def snippets(text: str) -> list[str]:
    return [block for language, block in blocks(text) if language == "python"]


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of each fenced block, in order, those in tabs included. One of no language
    is what is printed."""
    found = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(block)) for _, language, block in found]


def run(
    name: str,
    capsys: pytest.CaptureFixture[str],
    servers: str = "",
    given: Mapping[str, Any] | None = None,
    registry: str = "",
    folder: str = "checkpoints",
) -> tuple[dict[str, Any], str]:
    """The names that the page's snippets leave behind, and what they print.

    They see `servers` for localhost:9092, the URL `registry` for http://localhost:8081 (with or
    without the path of the registry that `sparkkafka.testing.registry` starts), `folder` for the
    folder checkpoints, the names `given`, and else what those before have made. Blocks without a
    language must be in what the snippets before them have printed.
    """
    names: dict[str, Any] = dict(given or {})
    printed = ""
    for number, (language, text) in enumerate(blocks(page(name)), start=1):
        if language == "python":
            code = text.replace("localhost:9092", servers).replace("checkpoints/", f"{folder}/")
            code = code.replace(f"http://localhost:{USUAL_PORT}{PATH}", registry)
            code = code.replace(f"http://localhost:{USUAL_PORT}", registry)
            exec(compile(code, f"{name}, block {number}", "exec"), names)
            printed += capsys.readouterr().out
        elif language == "":
            assert _comparable(text) in _comparable(printed), f"{name}, block {number}"
    return names, printed


def _comparable(text: str) -> str:
    """The text with single spaces, and without times and rates."""
    return re.sub(r"[\d.,]+ (?=m?s |rows/s)", "# ", " ".join([*text.split(), ""]))
