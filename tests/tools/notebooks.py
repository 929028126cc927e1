"""Notebooks executed as a user would, in folders of their own, and as pages of the docs.

What was executed is kept in the ignored folder .cache/notebooks, under a name that has a hash of
the notebook: the docs show it, and `make test` renews it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from sparkkafka.testing.kafka.jars import cache_directory
from sparkkafka.testing.kafka.process import LeashedProcess

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KEPT = ROOT / ".cache" / "notebooks"

CELL_SECONDS = 180
NOTEBOOK_SECONDS = 400

# Leaves the executed notebook, and the words of a failure, in files beside each other.
_RUNNER = """
import sys
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

source, executed, failure, cell_seconds = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
client = NotebookClient(
    notebook,
    kernel_name="python3",
    timeout=float(cell_seconds),
    on_cell_start=lambda cell, cell_index: print(f"cell {cell_index}", flush=True),
)
try:
    client.execute()
except (CellExecutionError, CellTimeoutError) as error:
    open(failure, "w").write(str(error))
    sys.exit(1)
nbformat.write(notebook, executed)
"""


class NotebookError(Exception):
    """A notebook was not executed to its end; the message has the cell and its error."""


def executed(
    notebook: Path,
    folder: Path,
    *,
    cell_seconds: float = CELL_SECONDS,
    seconds: float = NOTEBOOK_SECONDS,
) -> Any:
    """The notebook with its outputs; everything that the run leaves is in `folder`.

    Folders in `folder`: `run`, where the notebook ran; `tmp`, its temp folder; `home`. Raises
    NotebookError with the error of the cell that failed.
    """
    run, tmp, home = (folder / name for name in ("run", "tmp", "home"))
    for made in (run, tmp, home):
        made.mkdir()
    log, executed, failure = (folder / name for name in ("log", "executed.ipynb", "failure"))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp),
        "TMPDIR": str(tmp),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(cache_directory().parent),  # Kafka's jars are not fetched again
        "JUPYTER_CONFIG_DIR": str(home / "jupyter"),
        "JUPYTER_DATA_DIR": str(home / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(home / "jupyter"),
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not the machine's
        "IPYTHONDIR": str(home / "ipython"),
        "MPLCONFIGDIR": str(home / "matplotlib"),
    }
    environment.pop("JUPYTER_PATH", None)
    environment.pop("MPLBACKEND", None)  # the kernel chooses
    command = [sys.executable, "-c", _RUNNER]
    command += [str(notebook), str(executed), str(failure), str(cell_seconds)]
    with log.open("wb") as output:
        process = LeashedProcess(
            command, output=output, environment=environment, working_directory=run
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.close()  # a kernel ends when the process that started it is gone
    if status == 0:
        return nbformat.read(executed, as_version=4)
    if failure.exists():
        raise NotebookError(f"{notebook.name}: {failure.read_text()}")
    what = f"not done after {seconds:.0f} s" if status is None else f"status {status}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    raise NotebookError(f"{notebook.name}: {what}; the end of its log:\n{tail}")


def kept_path(notebook: Path) -> Path:
    """Where the executed copy of the notebook, as it is now, is kept."""
    digest = hashlib.sha256(notebook.read_bytes()).hexdigest()[:16]
    return KEPT / f"{notebook.stem}-{digest}.ipynb"


def keep(notebook: Path, executed: Any) -> None:
    """Keep the executed copy, in place of older ones."""
    target = kept_path(notebook)
    target.parent.mkdir(parents=True, exist_ok=True)
    for old in target.parent.glob(f"{notebook.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(executed, target)


def kept_copy(notebook: Path, *, execute: bool) -> Any:
    """The executed copy that was kept; without one the notebook as it is, or, with `execute`,
    executed now."""
    if not kept_path(notebook).exists():
        if not execute:
            return nbformat.read(notebook, as_version=4)
        with tempfile.TemporaryDirectory(prefix="sparkkafka-notebook-") as folder:
            keep(notebook, executed(notebook, Path(folder)))
    return nbformat.read(kept_path(notebook), as_version=4)


def as_page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown of an executed notebook, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"\]\(\.\./docs/(?:([\w-]+)\.md)", r"](../\1.md", cell.source))
            continue
        parts.append(_fenced(cell.source, "python"))
        for kind, content in _outputs(cell):
            if kind == "png":
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(content)
                parts.append(f"![plot]({file})")
            elif kind == "html":
                parts.append(f'<div class="output">\n{_bare(content)}\n</div>')
            else:
                parts.append(_fenced(content, "text"))
    return "\n\n".join(parts) + "\n", pictures


def _outputs(cell: Any) -> Iterator[tuple[str, str]]:
    """What a cell shows, as png, html or text; streams that follow each other are one."""
    texts: list[str] = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            if output.name == "stdout":  # stderr has Spark's words about itself
                texts.append(output.text)
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
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def _bare(html: str) -> str:
    """Without styles and blank lines, at which Markdown would end the block."""
    html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    return "\n".join(line.strip() for line in html.splitlines() if line.strip())
