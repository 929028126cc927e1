"""Makes docs/cli-reference.md from the command's own help.

`python -m tests.tools.cli_docs` updates the page; a test checks that it is up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from sparkkafka.cli.commands import VERBS, root_command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli-reference.md"

HEAD = """# Command reference

This page is generated from the command's `--help` (`python -m tests.tools.cli_docs`).
[Command line](cli.md) explains the command with examples.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | something failed, or a problem was found |
| 2 | wrong usage |
| 129 | ended by SIGHUP |
| 130 | ended by Ctrl-C |
| 141 | the reader of the pipe has ended |
| 143 | ended by SIGTERM |

## Options of all verbs

You can put these options before or after the verb.

"""


def reference() -> str:
    """Return the page's text."""
    root = root_command()
    context: Any = typer.Context(root, info_name="sparkkafka")
    text = HEAD + options_table(root, context)
    for name in VERBS:
        command = root.get_command(context, name)
        text += "".join(section(command, typer.Context(command, context, name)))
    return text


def section(command: Any, context: Any) -> Iterator[str]:
    """Yield a command's section of the page, and the sections of its subcommands."""
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
    """Return a help text as Markdown. Paragraphs after \\b keep their lines, in a code block."""
    parts = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b"):
            lines = "\n".join(line.strip() for line in paragraph.splitlines()[1:])
            parts.append(f"```text\n{lines}\n```\n")
        else:
            parts.append(f"{_escaped(' '.join(paragraph.split()))}\n")
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Return the text with options as code, so that Markdown changes no dash, and without HTML."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):  # those between are code already
        options = re.sub(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", r"`\1`", parts[index])
        parts[index] = options.replace("<", "&lt;")
    return "`".join(parts)


def options_table(command: Any, context: Any) -> str:
    """Return the table of a command's arguments and options, "" if there are none."""
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        kind = f" {parameter.metavar}"
        if getattr(parameter, "is_flag", False):
            kind = ""
        names = ", ".join((*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            names, kind = parameter.metavar, ""
        default = parameter.default
        if isinstance(parameter.show_default, str):
            default = parameter.show_default
        has_default = default not in (None, False, [], "") and not callable(default)
        meaning = parameter.help or ""
        if parameter.min is not None:
            is_open = parameter.max in (None, 2**15 - 1, 2**31 - 1)  # limits of Kafka's protocol
            limits = "or more" if is_open else f"to {parameter.max:,}"
            meaning = f"{meaning.removesuffix('.')} ({parameter.min:,} {limits})."
        shown = f" Default: {default}." if has_default else ""
        rows.append(f"| `{names}{kind}` | {_escaped(meaning)}{shown} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n" if rows else ""


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")
