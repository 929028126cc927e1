"""docs/cli.md, records: each pipeline of the page runs, in order, and prints what stands there."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys

import pytest

from sparkkafka.cli.app import main
from tests.docs.snippets import blocks, page
from tests.docs.test_cli_page import matches

PAGE = "docs/cli.md"
PART = (
    page(PAGE)
    .partition("\n## Read, write and copy records\n")[2]
    .partition("\n## Checkpoints\n")[0]
)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "total", "type": "double"}],
}


def change(op: str, before: object, after: object) -> str:
    source = {"connector": "postgresql", "name": "shop", "schema": "public", "table": "customers"}
    return json.dumps({"op": op, "before": before, "after": after, "source": source, "ts_ms": 1})


BONN, KIEL, ULM = {"id": 1, "city": "Bonn"}, {"id": 1, "city": "Kiel"}, {"id": 2, "city": "Ulm"}
CHANGES = f"""{{"id": 1}}|{change("c", None, BONN)}
{{"id": 2}}|{change("c", None, ULM)}
{{"id": 1}}|{change("u", BONN, KIEL)}
{{"id": 2}}|{change("d", ULM, None)}
{{"id": 2}}|
"""


@pytest.mark.real
def test_the_page_shows_what_the_command_prints(servers, capsysbinary, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sparkkafka").mkdir()
    (tmp_path / "sparkkafka" / "config.toml").write_text(
        f'default = "local"\n[profiles.local]\nbootstrap.servers = "{servers}"\n'
    )
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "changes.txt").write_text(CHANGES)
    for language, text in blocks(PART):
        if language != "console":
            continue
        for command, *shown in (part.splitlines() for part in text.split("$ ")[1:]):
            piped, said = b"", ""
            for stage in command.split(" | "):
                program, *arguments = shlex.split(stage)
                if program != "sparkkafka":
                    run = subprocess.run(["sh", "-c", stage], capture_output=True, check=True)
                    piped = run.stdout
                    continue
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
                code = main(arguments)
                piped, err = capsysbinary.readouterr()
                fails = any(line.startswith(("sparkkafka: ", "!!")) for line in shown)
                assert code == int(fails), f"{command}: {err.decode()}"
                said += err.decode()
            printed = [line.rstrip() for line in (piped.decode() + said).splitlines()]
            assert matches(shown, printed), f"{command}\n{printed}"
