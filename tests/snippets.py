"""The Python of a page of the docs, found and run in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def snippets(text: str) -> list[str]:
    return _blocks(text, "python")


def shown(text: str) -> list[str]:
    """What the page says that is printed: blocks that are of no language."""
    return _blocks(text, "")


def _blocks(text: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for word, block in found if word == language]


def run(
    text: str,
    capsys: pytest.CaptureFixture[str],
    servers: str = "",
    given: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], str]:
    """The names that the page's snippets leave behind, and what they print.

    They see `servers` for localhost:9092 and the names `given`, and else what those before have
    made.
    """
    names: dict[str, Any] = dict(given or {})
    for number, snippet in enumerate(snippets(text), start=1):
        code = snippet.replace("localhost:9092", servers)
        exec(compile(code, f"snippet {number}", "exec"), names)
    return names, capsys.readouterr().out
