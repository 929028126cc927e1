"""The page about platforms: its commands compile Spark's own archive of PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from pyspark import loose_version

from tests.docs.snippets import blocks, page

#: A part of PySpark that can be imported without the rest.
MODULE, FILE = "pyspark.loose_version", "pyspark/loose_version.py"


def test_after_the_commands_python_imports_compiled_modules_from_the_archive(tmp_path: Path):
    archive = tmp_path / "python/lib/pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as part:
        part.writestr("pyspark/__init__.py", "")
        part.write(loose_version.__file__, FILE)
    found = blocks(page("docs/platforms.md"))
    (commands,) = (text for language, text in found if language == "bash")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "SPARK_HOME": str(tmp_path), "PATH": path}
    for _ in range(2):  # the second time there are compiled modules, which are replaced
        subprocess.run(["bash", "-ec", commands], env=environment, check=True, timeout=120)
    assert [file.name for file in archive.parent.iterdir()] == [archive.name]
    script = f"import {MODULE} as m; print(m.__file__, m.LooseVersion.parse.__code__.co_filename)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    compiled, source = done.stdout.split()
    assert compiled == f"{archive / FILE}c"
    assert source == str(archive / FILE)
