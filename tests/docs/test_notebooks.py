"""The notebooks run from top to bottom on a real broker, and show what is committed.

They run in a process of their own: what nbclient and the kernel warn of stays there, their
environment is not that of the other tests, and a deadline can end it. The environment points every
place where Jupyter, IPython and matplotlib keep things into the test's temp folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sparkkafka.testing.kafka.jars import ensure_jars, kafka_jars
from sparkkafka.testing.kafka.java import export_java_home, find_java
from sparkkafka.testing.kafka.process import UnavailableError
from tests.support.postgres_server import find_postgres
from tests.tools.notebooks import (
    NOTEBOOKS,
    NotebookError,
    as_page,
    comparable_outputs,
    execute_notebooks,
    with_outputs,
)

ROOT = Path(__file__).parents[2]

# What a notebook's outputs must hold, besides that no cell fails.
SHOWN = {
    "01_batch.ipynb": (
        r"headers: array",
        r"\[source=shop\]",
        r"\| +0\| +100\| +10\|",  # partition 0 from offset 100 to 110
        r"\| orders\|10001\|\n\|returns\| +1\|",
        r"OptionError: .*did you mean 'startingOffsets'\?",
    ),
    "02_streaming.ipynb": (
        r"clicks-0 is \d+,\d+ offsets behind",
        r'offsets/2: \{"clicks": ?\{"0": ?\d+, ?"1": ?6000, ?"2": ?3600, ?"3": ?\d+\}\}',
        r"commits: \['0', '1'",
        r"clicks-to-files  batch \d  [\d,]+ rows in .*  lag 0  ended",
        r"60,000 rows, 60,000 different ones",
        r"\d batches, the largest of 8,000 rows",
        r"clicks +0 +25,000 +25,000 +0 .*\nclicks +1 +15,000 +15,000 +0 ",
        r"group clicks-to-files: 0 behind in 4 partitions",
    ),
    "03_exactly_once.ipynb": (
        r"at-least-once: killed in batch \d, after [\d,]+ rows of it",
        r"exactly-once: killed in batch \d, after [\d,]+ rows of it",
        r"batches done: \{'at-least-once': 5, 'exactly-once': 5\}",
        r"at-least-once: 1\d,\d{3} rows, [1-9][\d,]* of 10,000 orders duplicated, 0 lost",
        r"exactly-once: 10,000 rows, 0 of 10,000 orders duplicated, 0 lost",
        r"exactly-once, read_uncommitted: 1\d,\d{3} rows, [1-9][\d,]* duplicated",
    ),
    "04_schemas.ipynb": (
        r"read as struct<id:bigint,item:string,price:double>\n",
        r"read as struct<id:bigint,item:string,price:double,currency:string>\n",
        r"\|  1601\| *fax\| *value: field item: ",
        r"dead letters: \[[0-3, ]*\]",
        r"batch \d  [\d,]+ rows in .*  lag 0  ended",
        r"3,000 orders, 6 dead letters",
        r"3,000 orders checked, 3 refused",
    ),
    "05_changes.ipynb": (
        r"500 records; the first key: \{'id': 1\}",
        r"struct<id:bigint,city:string,amount:decimal\(10,2\)>",
        r"500 rows in the copy",
        r"4,125 rows in Postgres, 0 differ in the copy",
    ),
}

# With Debezium and Postgres: too much for each run of the tests.
SOAKED = {"05_changes.ipynb"}


def text_of(notebook: Any) -> str:
    return "".join(
        str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )


def plots_in(notebook: Any) -> int:
    return sum(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )


@pytest.fixture
def kafka() -> None:
    """Java and Kafka's jars. Without them: a failure where CI is set, else the test is skipped."""
    try:
        export_java_home(find_java())
        ensure_jars(kafka_jars())
    except UnavailableError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no real Kafka: {error}")


@pytest.mark.notebook
@pytest.mark.real
@pytest.mark.spark
@pytest.mark.parametrize(
    "paths",
    [
        pytest.param([path for path in NOTEBOOKS if path.name not in SOAKED], id="in-turn"),
        *(
            pytest.param([path], id=path.stem, marks=pytest.mark.soak)
            for path in NOTEBOOKS
            if path.name in SOAKED
        ),
    ],
)
def test_the_notebooks_run(paths: list[Path], tmp_path: Path, kafka: None) -> None:
    if SOAKED & {path.name for path in paths} and find_postgres() is None:
        pytest.skip("no Postgres was found: `apt-get install postgresql`")
    committed = [path.read_bytes() for path in paths]
    beside = set(NOTEBOOKS[0].parent.rglob("*"))
    for path, notebook in zip(paths, execute_notebooks(paths, tmp_path, seconds=900), strict=True):
        text = text_of(notebook)
        for pattern in SHOWN[path.name]:
            assert re.search(pattern, text), f"{pattern} is not in\n{text}"
        assert plots_in(notebook) == 1
        renew = f"the outputs of {path.name} are old: python -m tests.tools.notebooks {path.stem}"
        shown = comparable_outputs(nbformat.read(path, as_version=4))
        assert shown == comparable_outputs(with_outputs(notebook, notebook)), renew
    # Whoever runs them in the clone finds nothing new there, and no broker's data elsewhere.
    # (Spark's own temp folders go when its JVM ends, which may be a moment after the kernel.)
    assert list((tmp_path / "run").iterdir()) == []
    assert list((tmp_path / "tmp").glob("sparkkafka-*")) == []
    assert set(NOTEBOOKS[0].parent.rglob("*")) == beside
    assert [path.read_bytes() for path in paths] == committed


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("code", "limits", "message"),
    [
        ("wrong = fine", {}, r"(?s)^bad\.ipynb: .*wrong = fine.*NameError"),
        ("import time; time.sleep(99)", {"cell_seconds": 1}, r"(?s)timed out.*time\.sleep\(99\)"),
        (
            "import time; time.sleep(99)",
            {"seconds": 1},
            r"^good\.ipynb, bad\.ipynb: not finished after 1 s",
        ),
    ],
    ids=["error", "slow-cell", "slow-notebook"],
)
def test_a_notebook_that_fails_says_where(
    tmp_path: Path, code: str, limits: dict[str, float], message: str
) -> None:
    paths = {tmp_path / "good.ipynb": "fine = 1", tmp_path / "bad.ipynb": code}
    for path, text in paths.items():
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text)]), path)
    with pytest.raises(NotebookError, match=message):
        execute_notebooks([*paths], tmp_path, **limits)


def test_an_executed_notebook_is_a_page() -> None:
    plot = {"image/png": "AAEC", "text/plain": "<Figure>"}
    table = {"text/html": "<style>x</style>\n<table>\n\n<tr></tr></table>", "text/plain": "a"}
    cell = nbformat.v4.new_code_cell("show()")
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[1mone\x1b[0m\n"),
        nbformat.v4.new_output("stream", name="stderr", text="WARN"),
        nbformat.v4.new_output("stream", name="stdout", text="two\n"),
        nbformat.v4.new_output("display_data", data=plot),
        nbformat.v4.new_output("execute_result", data=table),
    ]
    title = nbformat.v4.new_markdown_cell("# Title\n\n[see](../docs/batch.md)")
    text, pictures = as_page(nbformat.v4.new_notebook(cells=[title, cell]), "01_x")
    assert text.startswith("# Title\n\n[see](../batch.md)\n\n```python\nshow()\n```\n")
    assert '\n\n<div class="output" markdown>\n\n```text\none\ntwo\n```\n' in text
    assert "WARN" not in text
    assert "![plot](01_x-1.png)" in text
    assert pictures == {"01_x-1.png": bytes([0, 1, 2])}
    assert "<div>\n<table>\n<tr></tr></table>\n</div>\n\n</div>\n" in text
    assert "style" not in text


def executed(*outputs: Any) -> Any:
    cell = nbformat.v4.new_code_cell("show()", id="a")
    cell.outputs, cell.execution_count = list(outputs), 3
    return nbformat.v4.new_notebook(
        cells=[cell], metadata={"language_info": {"name": "python", "version": "3"}}
    )


def printed(text: str, name: str = "stdout") -> Any:
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_a_notebook_gets_outputs_and_nothing_of_the_machine() -> None:
    plain = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("show()", id="a")])
    result = with_outputs(plain, executed(printed("WARN", "stderr"), printed("one\n")))
    assert [output.text for output in result.cells[0].outputs] == ["one\n"]
    assert result.cells[0].execution_count == 3
    assert result.metadata == {}
    assert plain.cells[0].outputs == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("7 rows at 127.0.0.1:4000", "1,234 rows at 127.0.0.1:35", True),
        ("|  7|\n+---+", "| 1234|\n+-----+", True),
        ("[1000, 0, 3]", "[1000, 3]", True),
        ("['0', '1']", "['0']", True),
        ("7 rows", "7 records", False),
        ("7 rows", "", False),
    ],
)
def test_outputs_that_differ_in_numbers_are_the_same(one: str, other: str, same: bool) -> None:
    shown = [comparable_outputs(executed(printed(text))) for text in (one, other)]
    assert (shown[0] == shown[1]) is same
    assert comparable_outputs(executed()) != shown[0]


def test_there_are_notebooks_and_each_is_checked() -> None:
    assert {path.name for path in NOTEBOOKS} == set(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_committed_with_outputs_and_nothing_of_the_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code_cells] == list(range(1, len(code_cells) + 1))
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert plots_in(notebook) == 1
    for pattern in SHOWN[path.name]:
        assert re.search(pattern, text_of(notebook))
    # The version of a Python or an editor's settings would change with each machine.
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info == {"name": "python"}
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert "Databricks" in first.source
    text = path.read_text()
    assert str(ROOT) not in text
    assert len(text) < 250_000
    found = re.search(r"(?<![\w.])/(home|Users|root|tmp|var|opt|mnt|usr|work)/|[A-Z]:\\\\", text)
    assert found is None
