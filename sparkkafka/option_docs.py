"""The option tables of the README, from `option_table` and the defaults in `options`.

The README holds each between `<!-- options:read -->` and `<!-- /options:read -->` (likewise
`write` and `kafka`). `python -m sparkkafka.option_docs README.md` brings them up to date; a test
checks that they are.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Literal

from sparkkafka.errors import OptionError
from sparkkafka.option_check import as_text
from sparkkafka.option_table import CONNECTOR, KAFKA, Option, Side, Status
from sparkkafka.options import GROUPS

_TABLES: tuple[Literal["read", "write", "kafka"], ...] = ("read", "write", "kafka")


def update(text: str) -> str:
    """The text of a README with its option tables made current."""
    for which in _TABLES:
        start, end = f"<!-- options:{which} -->", f"<!-- /options:{which} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"no {start} … {end} in the text")
        text = f"{before}{start}\n{markdown_table(which)}{end}{after}"
    return text


def markdown_table(which: Literal["read", "write", "kafka"]) -> str:
    """The options as Markdown, from the table and the defaults of the dataclasses."""
    rows = KAFKA if which == "kafka" else CONNECTOR
    if which != "kafka":
        rows = tuple(row for row in rows if row.side.covers(Side(which)))
    prefix = "kafka." if which == "kafka" else ""
    side_head = " for |" if which == "kafka" else ""
    lines = [f"| option |{side_head} values | default | meaning |"]
    lines.append("|" + "---|" * (5 if which == "kafka" else 4))
    for row in rows:
        if row.status is Status.USED and row.kind is not None and not row.alias_of:
            side = f" {_SIDE_WORDS[row.side]} |" if which == "kafka" else ""
            values = row.kind.values.replace("|", "\\|")
            lines.append(f"| `{prefix}{row.name}` |{side} {values} | {_default(row)} | {row.doc} |")
    for status, words in (
        (Status.REFUSED, "Refused"),
        (Status.IGNORED, "Accepted without effect, with one warning"),
    ):
        names = [f"`{prefix}{row.name}`" for row in rows if row.status is status]
        if names:
            lines.append(f"\n{words}: {', '.join(names)}.")
    return "\n".join(lines) + "\n"


_SIDE_WORDS = {Side.READ: "read", Side.WRITE: "write", Side.BOTH: "both"}


def _default(row: Option) -> str:
    if row.default_text is not None:
        return row.default_text
    group, _, attribute = (row.field or "").partition(".")
    if group in GROUPS:
        value = {f.name: f.default for f in dataclasses.fields(GROUPS[group])}[attribute]
        return as_text(value)
    raise OptionError(f"option {row.name} has a broken row in the option table")


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    readme.write_text(update(readme.read_text("utf-8")), "utf-8")
