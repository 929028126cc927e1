"""Executes notebooks like a user, in folders of their own, and makes pages of the docs from them.

`python -m tests.tools.notebooks [NAME …]` executes notebooks (all, or those whose names begin so)
and writes them with their outputs. These are committed, so that the pages of the repository and the
site show them. A test fails if a new execution shows something else.
"""

from __future__ import annotations

import base64
import copy
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat

from sparkkafka.testing.kafka.jars import cache_directory, ensure_jars, kafka_jars
from sparkkafka.testing.kafka.java import export_java_home, find_java
from sparkkafka.testing.kafka.process import LeashedProcess

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Writes the executed notebooks, or the error of a failed cell, into a folder.
_RUNNER = """
import pathlib
import sys
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

folder, cell_seconds, *sources = sys.argv[1:]
client = NotebookClient(
    None,
    kernel_name="python3",
    timeout=float(cell_seconds),
    record_timing=False,
    on_cell_start=lambda cell, cell_index: print(f"cell {cell_index}", flush=True),
)
for source in sources:
    name = pathlib.Path(source).name
    print(name, flush=True)
    client.nb = nbformat.read(source, as_version=4)
    client.nb.cells.append(nbformat.v4.new_code_cell("get_ipython().reset()"))
    try:
        client.execute(cleanup_kc=source == sources[-1])
    except (CellExecutionError, CellTimeoutError) as error:
        pathlib.Path(folder, "failure").write_text(f"{name}: {error}")
        sys.exit(1)
    del client.nb.cells[-1]
    nbformat.write(client.nb, pathlib.Path(folder, name))
"""


class NotebookError(Exception):
    """A notebook failed. The message has the cell and its error."""


def execute_notebooks(
    notebooks: Sequence[Path], folder: Path, *, cell_seconds: float = 180, seconds: float = 400
) -> list[Any]:
    """Execute notebooks in turn, and return them with their outputs. All files are in `folder`.

    They share a kernel, so that Spark's JVM is started once, but no names. `folder` gets `run`,
    where they run, `tmp` for temporary files, `home`, and `executed`. Raises NotebookError with the
    error of the cell that failed; `seconds` are those of all notebooks together.
    """
    run, tmp, home, executed = (folder / name for name in ("run", "tmp", "home", "executed"))
    for path in (run, tmp, home, executed):
        path.mkdir()
    log, failure = folder / "log", executed / "failure"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp),
        "TMPDIR": str(tmp),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(cache_directory().parent),  # keeps Kafka's jars
        "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
        "JUPYTER_DATA_DIR": str(home / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(home / "jupyter"),
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not the machine's
        "IPYTHONDIR": str(home / "ipython"),
        "MPLCONFIGDIR": str(home / "matplotlib"),
    }
    environment.pop("JUPYTER_PATH", None)
    environment.pop("MPLBACKEND", None)  # the kernel chooses
    command = [sys.executable, "-c", _RUNNER, str(executed), str(cell_seconds)]
    command += map(str, notebooks)
    with log.open("wb") as output:
        process = LeashedProcess(
            command, output=output, environment=environment, working_directory=run
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.close()  # the kernel ends with the process that started it
    if status == 0:
        return [nbformat.read(executed / path.name, as_version=4) for path in notebooks]
    if failure.exists():
        raise NotebookError(failure.read_text())
    what = f"not finished after {seconds:.0f} s" if status is None else f"status {status}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    names = ", ".join(path.name for path in notebooks)
    raise NotebookError(f"{names}: {what}; the end of the log:\n{tail}")


def with_outputs(notebook: Any, executed: Any) -> Any:
    """Return the notebook with the outputs of its executed copy, but without what differs with the
    machine: Spark's log and the version of Python."""
    result = copy.deepcopy(notebook)
    for cell, ran in zip(result.cells, executed.cells, strict=True):
        if cell.cell_type == "code":
            cell.execution_count = ran.execution_count
            cell.outputs = [output for output in ran.outputs if output.get("name") != "stderr"]
    return result


def comparable_outputs(notebook: Any) -> list[list[str]]:
    """Return the outputs of each code cell as text, without what differs with each execution:
    numbers, and the spaces and lines of tables with them."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [content if kind == "text" else kind for kind, content in cell_outputs(cell)]
            texts = [re.sub(r"\d+(?:[,.:]\d+)*", "#", text) for text in texts]
            texts = [re.sub(r"'?#'?(, '?#'?)*", "#", text) for text in texts]  # lists, too
            texts = [re.sub(r"[\s-]+", " ", text).strip() for text in texts]
            cells.append([re.sub(r" ?\| ?", "|", text) for text in texts])  # the width of columns
    return cells


def as_page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"\]\(\.\./docs/(?:([\w-]+)\.md)", r"](../\1.md", cell.source))
            continue
        parts.append(_fenced(cell.source, "python"))
        shown = []
        for kind, content in cell_outputs(cell):
            if kind == "png":
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(content)
                shown.append(f"![plot]({file})")
            elif kind == "html":
                shown.append(f"<div>\n{_without_styles(content)}\n</div>")
            else:
                shown.append(_fenced(content, "text"))
        if shown:
            parts += ['<div class="output" markdown>', *shown, "</div>"]
    return "\n\n".join(parts) + "\n", pictures


def cell_outputs(cell: Any) -> Iterator[tuple[str, str]]:
    """Yield (kind, content) of a cell's outputs; kind is png, html or text. Consecutive texts of
    print are one output, without the colours of a terminal."""
    texts: list[str] = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            if output.name == "stdout":  # stderr has Spark's log
                texts.append(re.sub(r"\x1b\[[\d;]*m", "", output.text))
            continue
        if texts:
            yield "text", "".join(texts)
            texts = []
        data = output.get("data", {})
        if "image/png" in data:
            yield "png", data["image/png"]
        elif "text/html" in data:
            yield "html", data["text/html"]
        elif "text/plain" in data:
            yield "text", data["text/plain"]
    if texts:
        yield "text", "".join(texts)


def _fenced(text: str, language: str) -> str:
    """Return the text as a code block."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def _without_styles(html: str) -> str:
    """Return the HTML without styles, and without blank lines, which would end a block of
    Markdown."""
    html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    return "\n".join(line.strip() for line in html.splitlines() if line.strip())


def main(names: Sequence[str]) -> None:
    export_java_home(find_java(install=True))
    ensure_jars(kafka_jars())
    for path in NOTEBOOKS:
        if not names or path.stem.startswith(tuple(names)):
            with tempfile.TemporaryDirectory(prefix="sparkkafka-notebook-") as folder:
                (executed,) = execute_notebooks([path], Path(folder))
            notebook = with_outputs(nbformat.read(path, as_version=4), executed)
            nbformat.write(notebook, path)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
