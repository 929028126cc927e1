"""The reference of the command, docs/cli-reference.md, from the command itself.

`python -m tests.tools.cli_docs` brings it up to date; a test checks that it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from sparkkafka.cli.commands import VERBS, root_command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli-reference.md"

HEAD = """# The command: reference

Made from the command's own `--help` by `python -m tests.tools.cli_docs`.
[The command](cli.md) shows it at work.

Exit codes: 0 well, 1 something failed or was found, 2 wrong use, 130 after Ctrl-C, 143 after
SIGTERM, 129 after SIGHUP, 141 when the reader of a pipe has gone.

## Options of all verbs

They may stand before the verb or behind it.

"""


def reference() -> str:
    """The page's text."""
    root = root_command()
    context: Any = typer.Context(root, info_name="sparkkafka")
    text = HEAD + options_table(root, context)
    for name in VERBS:
        command = root.get_command(context, name)
        text += "".join(section(command, typer.Context(command, context, name)))
    return text


def section(command: Any, context: Any) -> Iterator[str]:
    """A command's part of the page, and those of the commands under it."""
    children = getattr(command, "commands", {})
    level = "##" if context.parent.parent is None else "###"
    yield f"\n{level} {context.command_path}\n\n{prose(command.help or '')}"
    if not children:
        pieces = " ".join(command.collect_usage_pieces(context))
        yield f"\n```text\n{context.command_path} {pieces}\n```\n"
        if table := options_table(command, context):
            yield f"\n{table}"
    for name, child in children.items():
        yield from section(child, typer.Context(child, context, name))


def prose(text: str) -> str:
    """Help as a page has it: what stands behind \\b as it is, the rest flows."""
    parts = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b"):
            parts.append(f"```text\n{_cleaned(paragraph)}\n```\n")
        else:
            parts.append(f"{_escaped(' '.join(paragraph.split()))}\n")
    return "\n".join(parts)


def _cleaned(paragraph: str) -> str:
    return "\n".join(line.strip() for line in paragraph.splitlines()[1:])


def _escaped(text: str) -> str:
    """An option in prose is code, so that no dash is taken for something else; what is code
    already stays."""
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        options = re.sub(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", r"`\1`", parts[at])
        parts[at] = options.replace("<", "&lt;")
    return "`".join(parts)


def options_table(command: Any, context: Any) -> str:
    """Arguments and options; "" if there are none."""
    rows = []
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        kind = (
            "" if getattr(one, "is_flag", False) else f" {one.metavar or one.display_type(context)}"
        )
        names = ", ".join((*one.opts, *one.secondary_opts))
        if one.param_type_name == "argument":
            names, kind = one.metavar or one.name.upper(), ""
        default = one.default
        shown = (
            "" if default in (None, False, [], "") or callable(default) else f" Default: {default}."
        )
        # Typer has some words of its own behind the help in square brackets.
        words = re.sub(r"\s*\[default: (.*?)\]$", r" Default: \1.", one.help or "")
        rows.append(f"| `{names}{kind}` | {_escaped(words)}{shown} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n" if rows else ""


def main() -> None:
    PAGE.write_text(reference(), "utf-8")


if __name__ == "__main__":
    main()
