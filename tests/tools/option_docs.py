"""The option tables of the README, and of docs/client.md, from the tables and defaults in the code.

The README holds each between `<!-- options:read -->` and `<!-- /options:read -->` (likewise
`write` and `kafka`), docs/client.md those of `client`, `consumer` and `producer`.
`python -m tests.tools.option_docs README.md docs/client.md` brings them up to date; a test checks
that they are.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Literal

from sparkkafka.config.check import as_text
from sparkkafka.config.client_settings import (
    ADMIN_ROWS,
    CLIENT_DEFAULTS,
    CONSUMER_ROWS,
    PRODUCER_ROWS,
    ConsumerOptions,
)
from sparkkafka.config.options import GROUPS
from sparkkafka.config.table import CONNECTOR, KAFKA, Option, Side, Status
from sparkkafka.errors import OptionError

_TABLES: tuple[Literal["read", "write", "kafka"], ...] = ("read", "write", "kafka")
_SECURITY = re.compile(r"\b(?:ssl|sasl|https)\.")  # these have a page of their own
_CLIENT_TABLES: tuple[Literal["client", "consumer", "producer"], ...] = (
    "client",
    "consumer",
    "producer",
)


def update(text: str) -> str:
    """The text of a README with its option tables made current."""
    for which in _TABLES:
        text = _replaced(text, which, markdown_table(which))
    return text


def update_client(text: str) -> str:
    """The text of docs/client.md with its tables made current."""
    for which in _CLIENT_TABLES:
        text = _replaced(text, which, client_table(which))
    return text


def _replaced(text: str, which: str, table: str) -> str:
    start, end = f"<!-- options:{which} -->", f"<!-- /options:{which} -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no {start} … {end} in the text")
    return f"{before}{start}\n{table}{end}{after}"


def client_table(which: Literal["client", "consumer", "producer"]) -> str:
    """Settings of the library's classes: those of all of them but for security, or of one."""
    shared = {key for key, row in ADMIN_ROWS.items() if row.status is Status.USED}
    if which == "client":
        rows = [
            row for key, row in ADMIN_ROWS.items() if key in shared and not _SECURITY.search(key)
        ]
    else:
        own = CONSUMER_ROWS if which == "consumer" else PRODUCER_ROWS
        rows = [row for key, row in own.items() if row.status is Status.USED and key not in shared]
    lines = ["| setting | values | default | meaning |", "|" + "---|" * 4]
    for row in rows:
        if row.kind is not None and not row.alias_of:
            values = row.kind.values.replace("|", "\\|")
            doc = row.doc.replace("](docs/", "](")  # the page lies beside what is linked to
            lines.append(f"| `{row.name}` | {values} | {_client_default(row)} | {doc} |")
    return "\n".join(lines) + "\n"


def _client_default(row: Option) -> str:
    if row.name == "partitioner.class":
        return f"{_default(row)}; may be a Python callable"
    if row.default_text is not None:
        return row.default_text
    group, _, attribute = (row.field or "").partition(".")
    if (group, attribute) in CLIENT_DEFAULTS:
        return as_text(CLIENT_DEFAULTS[group, attribute])
    if group == ConsumerOptions.GROUP:
        fields = dataclasses.fields(ConsumerOptions)
        return as_text({f.name: f.default for f in fields}[attribute])
    return _default(row)


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
        fields = dataclasses.fields(GROUPS[group])  # type: ignore[arg-type]
        value = {f.name: f.default for f in fields}[attribute]
        return as_text(value)
    raise OptionError(f"option {row.name} has a broken row in the option table")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        made = update if page.name == "README.md" else update_client
        page.write_text(made(page.read_text("utf-8")), "utf-8")
