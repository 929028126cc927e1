"""Whoever installs sparkkafka with its extras gets no licence that an Apache-2.0 product may not
depend on."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
OURS = {"dev"}  # extras for working on sparkkafka itself
ALLOWED = re.compile(
    r"apache|\bmit\b|mit-0|mit-cmu|\bbsd\b|\bisc\b|psf|python software foundation|mpl-2\.0"
    r"|mozilla public license 2|lgpl|lesser general public",
    re.IGNORECASE,
)
STRONG = re.compile(r"(?<!l)gpl|affero|(?<!lesser )general public|sspl|busl", re.IGNORECASE)


def licence_of(found: metadata.PackageMetadata) -> str:
    """The licence by its short name; older packages have a classifier, or the first line of it."""
    kinds = [row for row in found.get_all("Classifier") or () if row.startswith("License ::")]
    texts = (found.get("License-Expression"), "; ".join(kinds), found.get("License"))
    return next((text for text in texts if text), "").strip().splitlines()[0]


def needed() -> dict[str, metadata.PackageMetadata]:
    """All packages that the extras for users bring, as far as they are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    first = [*project["dependencies"], *(row for e in extras if e not in OURS for row in extras[e])]
    todo = [Requirement(row) for row in first]
    seen: set[tuple[str, frozenset[str]]] = set()
    found: dict[str, metadata.PackageMetadata] = {}
    while todo:
        one = todo.pop()
        key = one.name.lower(), frozenset(one.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            package = metadata.distribution(one.name)
        except metadata.PackageNotFoundError:
            continue
        found[one.name.lower()] = package.metadata
        for row in map(Requirement, package.requires or ()):
            if row.marker is None or any(
                row.marker.evaluate({"extra": extra}) for extra in one.extras or {""}
            ):
                todo.append(row)
    return found


def test_licences_of_what_is_needed() -> None:
    packages = needed()
    assert {"pyarrow", "numpy", "crc32c", "lz4", "cryptography"} <= packages.keys()
    licences = {name: licence_of(one) for name, one in sorted(packages.items())}
    assert {n: text for n, text in licences.items() if not allowed(text)} == {}


@pytest.mark.parametrize("text", ["GPL-3.0-only", "GNU Affero General Public License", "", "BUSL"])
def test_what_is_not_allowed(text: str) -> None:
    assert not allowed(text)


def allowed(text: str) -> bool:
    return bool(ALLOWED.search(text)) and not STRONG.search(text)
