"""Logging in Spark's Python processes: who is speaking is said, and a file may decide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONF = Path(__file__).parent.parent.parent / "conf"
SCRIPT = """
import logging
from sparkkafka.logs import set_up_logging
set_up_logging()
set_up_logging()
logging.getLogger("sparkkafka.client.x").warning("a warning")
logging.getLogger("sparkkafka.client.x").info("an info")
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_warnings_say_who_speaks_and_come_once():
    (line,) = run().stderr.splitlines()
    assert line.endswith("WARNING sparkkafka.client.x: a warning")


def test_a_file_decides():
    lines = run(SPARKKAFKA_LOGGING=str(CONF / "logging.ini")).stderr.splitlines()
    assert [line.rpartition(" - ")[2] for line in lines] == ["a warning", "an info"]


def test_a_bad_file_is_named():
    ran = run(SPARKKAFKA_LOGGING="/no/such/file.ini")
    assert ran.returncode != 0
    assert "OptionError: SPARKKAFKA_LOGGING=/no/such/file.ini" in ran.stderr


def test_levels_by_part_come_once():
    (line, *more) = run(SPARKKAFKA_LOGGING="client:info,protocol:debug").stderr.splitlines()
    assert line.endswith("WARNING MainThread sparkkafka.client.x: a warning")
    assert [item.rpartition(": ")[2] for item in more] == ["an info"]


def test_what_is_neither_is_warned_of():
    first, second = run(SPARKKAFKA_LOGGING="loud").stderr.splitlines()
    assert first.startswith("SPARKKAFKA_LOGGING: 'loud' is not PART:LEVEL or LEVEL")
    assert second.endswith("WARNING sparkkafka.client.x: a warning")
