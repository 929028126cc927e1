"""Makes the lists of options and of error codes in the docs from the tables in the code.

A page has a table between the comments `<!-- options:read -->` and `<!-- /options:read -->`, or
those of another name in `TABLES`. `python -m tests.tools.option_docs` updates all pages; a test
checks that they are up to date.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from sparkkafka.config.client_settings import (
    ADMIN_ROWS,
    CONSUMER_ROWS,
    JAVA_DEFAULTS,
    PRODUCER_ROWS,
    ConsumerOptions,
    ProducerSettings,
    ShareConsumerOptions,
)
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.option_table import (
    CONNECTOR,
    FORMATS,
    KAFKA,
    REGISTRY,
    SHARE_CONSUMER,
    Option,
    Side,
    Status,
)
from sparkkafka.config.options import (
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    ReadOptions,
    StreamOptions,
    WriteOptions,
)
from sparkkafka.config.parsed_options import as_text
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.config.security.options import SecurityOptions
from sparkkafka.errors import ErrorCode, OptionError
from sparkkafka.secret import NO_SECRET

DOCS = Path(__file__).resolve().parents[2] / "docs"

GROUPS = {
    cls.GROUP: cls
    for cls in (
        ClientOptions,
        ConsumerOptions,
        FetchOptions,
        FormatOptions,
        ProducerOptions,
        ProducerSettings,
        ReadOptions,
        RegistryOptions,
        SecurityOptions,
        StreamOptions,
        WriteOptions,
    )
} | {
    "key": ColumnFormat,
    "value": ColumnFormat,
    "registry_tls": SecurityOptions,
    "share": ShareConsumerOptions,
}
"""The dataclasses of options by the first part of `Option.field`."""

_SECURITY_PAGE = re.compile(r"\b(?:security|ssl|sasl|https)\.")
#: Texts in the rows' docs, and the links in their place.
LINKS = {
    "see Filter pushdown": "see [Filters](batch.md#filters)",
    "see Partitioners": "see [Partitioners](options-write.md#partitioners)",
    "](docs/": "](",
}
_CAMEL_CASE = "|".join(
    row.name for row in CONNECTOR if "." not in row.name and row.name != row.name.lower()
)
#: Names of settings, perhaps with a value; references; JSON.
_CODE = re.compile(
    rf"(?<![\w.])(?:(?:[a-z]\w+(?:\.\w{{2,}})+|{_CAMEL_CASE})\b(?:=\w[\w.,-]*\w)?"
    r'|\$\{[^}]*\}|\{"\S*\})'
)


def update(text: str) -> str:
    """Return a page's text with its tables up to date."""
    for name, table in TABLES.items():
        start, end = f"<!-- options:{name} -->", f"<!-- /options:{name} -->"
        before, found, rest = text.partition(start)
        if found:
            _, closed, after = rest.partition(end)
            if not closed:
                raise ValueError(f"no {end} after {start}")
            text = f"{before}{start}\n{table()}{end}{after}"
    return text


def client_table(which: Literal["client", "consumer", "share", "producer"]) -> str:
    """Return the settings that all of the library's classes have ("client", without security), or
    the other ones of one class."""
    shared = {key for key, row in ADMIN_ROWS.items() if row.status is Status.USED}
    if which == "client":
        rows = [
            row
            for key, row in ADMIN_ROWS.items()
            if key in shared and not re.search(r"\b(?:ssl|sasl|https)\.", key)
        ]
    elif which == "share":
        rows = list(SHARE_CONSUMER)
    else:
        own = CONSUMER_ROWS if which == "consumer" else PRODUCER_ROWS
        rows = [row for key, row in own.items() if row.status is Status.USED and key not in shared]
    return "\n".join(
        _entry(row.name, row.kind.values, _client_default(row), _doc(row))
        for row in rows
        if row.kind is not None and not row.alias_of
    )


def _client_default(row: Option) -> str:
    """Return a setting's default in the client library as text."""
    if row.name == "partitioner.class":
        return f"{_default(row)}; may be a Python callable"
    group, _, attribute = (row.field or "").partition(".")
    if attribute in JAVA_DEFAULTS.get(group, {}):
        return as_text(JAVA_DEFAULTS[group][attribute])
    return _default(row)


def connector_table(side: Side) -> str:
    """Return the connector's own options of reads or writes, without formats and registry."""
    rows = [
        row
        for row in CONNECTOR
        if row.side.covers(side) and row not in FORMATS and row not in REGISTRY
    ]
    return _table(rows, prefix="", with_side=False) + _not_used(rows, prefix="")


def _kafka_rows(*, security: bool) -> list[Option]:
    """Return Kafka's properties on the page of security, or the others."""
    return [row for row in KAFKA if bool(_SECURITY_PAGE.search(row.name)) == security]


def _table(rows: Sequence[Option], *, prefix: str, with_side: bool) -> str:
    entries = []
    for row in rows:
        if row.status is Status.USED and row.kind is not None and not row.alias_of:
            side = _SIDE_TEXTS[row.side] if with_side else ""
            name = f"{prefix}{row.name}"
            entries.append(_entry(name, row.kind.values, _default(row), _doc(row), side))
    return "\n".join(entries)


def _entry(name: str, values: str, default: str, doc: str, side: str = "") -> str:
    """Return an option under a heading of its own, which the site's search and links lead to."""
    facts = [f"*{values}*", side, f"default: {default}" if default else ""]
    return f"### `{name}`\n\n{'; '.join(filter(None, facts))}\n\n{doc}\n"


def _not_used(rows: Sequence[Option], *, prefix: str) -> str:
    """Return lists of the names that are refused, ignored or not needed."""
    parts = []
    for status, heading in (
        (Status.REFUSED, "Refused"),
        (Status.IGNORED, "Accepted without effect, with one warning"),
        (Status.UNNEEDED, "Accepted, and not needed"),
    ):
        names = [f"`{prefix}{row.name}`" for row in rows if row.status is status]
        if names:
            parts.append(f"\n{heading}: {', '.join(names)}.\n")
    return "".join(parts)


def _doc(row: Option) -> str:
    """Return the row's text with links, code and a list of values."""
    text = row.doc
    for phrase, link in LINKS.items():
        text = text.replace(phrase, link)
    values = row.kind.values if row.kind is not None else ""
    return with_code(with_list_of_values(text, values))


def with_code(text: str) -> str:
    """Return Markdown with the names of settings, references and JSON in backticks."""
    parts = re.split(r"(`[^`]*`|\]\([^)]*\))", text)  # code and addresses stay as they are
    parts[::2] = [_CODE.sub(r"`\g<0>`", part) for part in parts[::2]]
    return "".join(parts)


def with_list_of_values(text: str, values: str) -> str:
    """Return an option's text with its sentences about values ("true: …") as a list at the end.

    `values` are those that the option takes, "one of fail, null". A text that describes fewer than
    two of them stays as it is.
    """
    names = re.split(r", or | or |, ", values.removeprefix("one of "))
    start = re.compile(rf"(?:^|(?<=\. ))({'|'.join(map(re.escape, names))}): ", re.IGNORECASE)
    before, *parts = start.split(text)
    if len(parts) < 4:
        return text
    items = []
    for name, meaning in zip(parts[::2], parts[1::2], strict=True):
        shown = f"`{name}`" if name in names else name
        items.append(f"- {shown}: {meaning.strip()}")
    return "\n".join([*([before.strip(), ""] if before else []), *items])


def error_codes() -> str:
    """Return Kafka's error codes, each under a heading of its own."""
    entries = []
    for row in ErrorCode:
        facts = [f"code {int(row)}"]
        if row.retriable:
            facts.append("retriable" + (" with new metadata" if row.refresh else ""))
        text = with_code(row.text.format(prefix=""))
        entries.append(
            f"### `{row.name}`\n\n*{', '.join(facts)}*\n\n{text[0].upper()}{text[1:]}.\n"
        )
    return "\n".join(entries)


_SIDE_TEXTS = {Side.READ: "reads", Side.WRITE: "writes", Side.BOTH: "reads and writes"}


def has_no_default(value: object) -> bool:
    """Return whether a dataclass's default means that the option is not set."""
    return value in (dataclasses.MISSING, None, "", (), NO_SECRET)


def _default(row: Option) -> str:
    """Return an option's default as text, "" if there is none."""
    if row.default_text is not None:
        return row.default_text
    group, _, attribute = (row.field or "").partition(".")
    if group in GROUPS:
        fields = dataclasses.fields(GROUPS[group])  # type: ignore[arg-type]
        value = {f.name: f.default for f in fields}[attribute]
        return "" if has_no_default(value) else as_text(value)
    raise OptionError(f"option {row.name} has no kind or field in the option table")


TABLES: Mapping[str, Callable[[], str]] = {
    "read": lambda: connector_table(Side.READ),
    "write": lambda: connector_table(Side.WRITE),
    "kafka": lambda: _table(_kafka_rows(security=False), prefix="kafka.", with_side=True),
    "kafka-not-used": lambda: _not_used(_kafka_rows(security=False), prefix="kafka."),
    "security": lambda: _table(_kafka_rows(security=True), prefix="kafka.", with_side=False),
    "security-not-used": lambda: _not_used(_kafka_rows(security=True), prefix="kafka."),
    "formats": lambda: _table(FORMATS, prefix="", with_side=True),
    "registry": lambda: _table(REGISTRY, prefix="", with_side=False),
    "registry-not-used": lambda: _not_used(REGISTRY, prefix=""),
    "error-codes": error_codes,
    "client": lambda: client_table("client"),
    "consumer": lambda: client_table("consumer"),
    "share": lambda: client_table("share"),
    "producer": lambda: client_table("producer"),
}


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(update(page.read_text("utf-8")), "utf-8")
