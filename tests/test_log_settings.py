"""SPARKKAFKA_LOGGING sets the levels of the package's loggers; one logger there is per module."""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkkafka
from sparkkafka.logs import VARIABLE, apply_levels, parse_levels
from sparkkafka.spark.pyspark_internals import VARIABLE as INTERNALS


@pytest.fixture(autouse=True)
def levels_as_before() -> Iterator[None]:
    names = ["sparkkafka", "sparkkafka.client", "sparkkafka.protocol"]
    before = {name: logging.getLogger(name).level for name in names}
    handlers = list(logging.getLogger("sparkkafka").handlers)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("sparkkafka").handlers[:] = handlers


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        (
            "client:debug,protocol:info",
            {"sparkkafka.client": logging.DEBUG, "sparkkafka.protocol": logging.INFO},
        ),
        ("debug", {"sparkkafka": logging.DEBUG}),
        (
            " client.producer.sender : WARNING , ",
            {"sparkkafka.client.producer.sender": logging.WARNING},
        ),
        ("sparkkafka.spark:error", {"sparkkafka.spark": logging.ERROR}),
        ("info,client:off", {"sparkkafka": logging.INFO, "sparkkafka.client": 51}),
        ("", {}),
    ],
)
def test_levels_of_parts(text: str, levels: dict[str, int]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["client:loud", "client", ":debug", "client=debug"])
def test_text_that_cannot_be_read_is_warned_of(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    apply_levels()
    assert "SPARKKAFKA_LOGGING" in caplog.text
    assert "client:debug,protocol:info" in caplog.text


def test_levels_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "client:debug")
    apply_levels()
    assert logging.getLogger("sparkkafka.client.producer.sender").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("sparkkafka.protocol").isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(
    ("debug", "text", "level"),
    [
        ("1", "", logging.DEBUG),
        ("true", "", logging.DEBUG),
        ("0", "", logging.NOTSET),
        ("", "", logging.NOTSET),
        ("1", "info", logging.INFO),
        ("0", "debug", logging.DEBUG),
    ],
)
def test_the_short_variable(
    debug: str, text: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger("sparkkafka").setLevel(logging.NOTSET)
    monkeypatch.setenv("SPARKKAFKA_DEBUG", debug)
    monkeypatch.setenv(VARIABLE, text)
    apply_levels()
    assert logging.getLogger("sparkkafka").level == level


@pytest.mark.parametrize("own_handler", [False, True])
def test_in_a_process_of_its_own(own_handler: bool) -> None:
    """Lines go to stderr once, also where the program logs to a handler of its own."""
    program = (
        "import logging, sys\n"
        + ("logging.basicConfig(stream=sys.stderr, format='own %(message)s')\n" * own_handler)
        + "import sparkkafka\n"
        "logging.getLogger('sparkkafka.client.x').debug('seen')\n"
        "logging.getLogger('sparkkafka.protocol').debug('not seen')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {VARIABLE: "client:debug"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "seen" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].endswith("own seen" if own_handler else "sparkkafka.client.x: seen")


@pytest.mark.parametrize("text", ["/no/such/file", "logging.ini", "conf/logging.ini"])
def test_a_file_is_for_processes_of_spark(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    apply_levels()
    assert caplog.text == ""


def test_pages_name_no_other_variable() -> None:
    root = Path(sparkkafka.__file__).parent.parent
    for page in [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob(".github/**/*.md")]:
        named = set(re.findall(r"SPARKKAFKA_[A-Z_]+", page.read_text("utf-8")))
        known = {VARIABLE, "SPARKKAFKA_DEBUG", INTERNALS, "SPARKKAFKA_SEED", "SPARKKAFKA_PROFILE"}
        assert named <= known, page


@pytest.mark.slow
def test_each_module_logs_under_its_own_name() -> None:
    """`config.parsed_options` logs as `sparkkafka.config.options`, which is what its users know."""
    for path in Path(sparkkafka.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if "getLogger" in text else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                function = ast.unparse(node.value.func)
                name = ast.unparse(node.value.args[0]) if node.value.args else ""
                if function == "logging.getLogger" and isinstance(node.targets[0], ast.Name):
                    allowed = {"__name__", "'sparkkafka.config.options'", "'sparkkafka.protocol'"}
                    assert name in allowed, path
