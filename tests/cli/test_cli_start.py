"""The command as a process: what it imports before a verb runs, and what it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparkkafka.cli.app import main

# Each of these takes a large part of the time of --help.
SLOW = ("numpy", "pyarrow", "pyspark", "rich", "ssl", "sparkkafka.client", "sparkkafka.protocol")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["no-such-verb"]])
def test_nothing_slow_is_imported_before_a_verb_runs(arguments):
    code = (
        "import sys\n"
        "from sparkkafka.cli.app import main\n"
        "main(sys.argv[1:])\n"
        "print('modules:', *sys.modules)\n"
    )
    run = run_python(code, *arguments)
    assert run.returncode == 0, run.stderr
    imported = set(run.stdout.rpartition("modules:")[2].split())
    assert "typer" in imported
    assert [name for name in SLOW if name in imported] == []


def test_the_options_of_a_verb_are_parsed_without_pydantic():
    code = (
        "import sys\n"
        "from sparkkafka.cli.app import main\n"
        "print(main(sys.argv[1:]), 'pydantic' in sys.modules)\n"
    )
    verb = ("topics", "create", "orders", "-p", "2", "-c", "retention.ms=1")
    run = run_python(code, "-b", "localhost:1", "--timeout", "5", *verb)
    assert run.stdout == "1 False\n", run.stderr


def test_records_are_read_without_modules_that_are_slow_to_import():
    """pyarrow.compute, and what crc32c needs for its version and its own command, would be a
    quarter of the time to the first record."""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "import pyarrow as pa\n"
        "from sparkkafka.cli.app import main\n"
        "from sparkkafka.cli.text_formats import json_format, text_format\n"
        "from sparkkafka.client.consumer.record import to_arrow\n"
        "from sparkkafka.client.values import TopicPartition\n"
        "from sparkkafka.protocol.columns.columns import DecodedRecords, gather\n"
        "main(['-b', 'localhost:1', '--timeout', '5', 'read', 'orders', '-e'])\n"
        "for length in (5, 20):\n"  # Arrow copies short and long values in two ways
        "    starts, lengths = np.array([0, 20]), np.array([length, length + 1])\n"
        "    values = gather(pa.py_buffer(bytes(range(65, 115))), starts, lengths)\n"
        "    types = np.zeros(2, np.int32)\n"
        "    records = DecodedRecords(starts, starts + 5, types, None, values, None)\n"
        "    batch = to_arrow(TopicPartition('orders', 0), records, 21)\n"
        "    for form in (text_format(), json_format()):\n"
        "        print(*map(bytes, form.texts(batch)))\n"
        "print('modules:', *sys.modules)\n"
    )
    run = run_python(code)
    assert run.returncode == 0, run.stderr
    text, _, modules = run.stdout.partition("modules:")
    assert "b'ABCDE\\nUVWXYZ' b'\\n'" in text
    imported = set(modules.split())
    assert "crc32c" not in imported
    assert [name for name in ("pyarrow.compute", "importlib.metadata") if name in imported] == []


def test_without_the_extra_one_line_says_what_to_install():
    code = (
        "import sys\nsys.modules['typer'] = None\nfrom sparkkafka.cli.app import main\nexit(main())"
    )
    run = run_python(code, "--help")
    assert run.returncode == 2
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert "pip install 'sparkkafka[cli]'" in line


@pytest.mark.parametrize(("call", "is_process"), [("main()", True), ("main(['--version'])", False)])
def test_only_the_end_of_the_process_does_without_a_search_for_cycles(call, is_process):
    code = (
        "import gc, sys\n"
        "from sparkkafka.cli.app import main\n"
        f"{call}\n"
        "print('searched:', len(gc.get_objects()) > 1000)\n"
    )
    run = run_python(code, "--version")
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith(f"searched: {not is_process}\n")


def test_python_m_is_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "sparkkafka", "--version"], capture_output=True, timeout=120
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.startswith(b"sparkkafka ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-verb"], "No such command 'no-such-verb' (see"),
        (["topcs", "list"], "No such command 'topcs'. Did you mean 'topics'?"),
        (
            ["delete"],
            "Did you mean 'topics delete', 'groups delete', 'acls delete', 'users delete'?",
        ),
        (["consume", "orders"], "Did you mean 'read'?"),
        (["--no-such-option"], "--no-such-option"),
        (["--timeout", "soon", "topics"], "--timeout"),
        (["--timeout", "0", "topics"], "above 0"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("sparkkafka: ")
    assert message in line


def test_json_of_half_a_pair_of_surrogates_is_printed_escaped():
    code = "from sparkkafka.cli.tables import print_json\nprint_json({'topic': '\\ud800'})"
    run = run_python(code)
    assert (run.returncode, json.loads(run.stdout)) == (0, {"topic": "\ud800"})
