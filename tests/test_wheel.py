"""What an install ships: one pure wheel, typed, licensed, with the module that Spark looks for."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sparkkafka.cli.ui import FILES

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_it_holds_the_package_and_the_module_that_spark_imports(wheel):
    names = set(wheel.namelist())
    assert {"sparkkafka/__init__.py", "sparkkafka/py.typed", "pyspark_pykafka.py"} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "sparkkafka",
        "pyspark_pykafka.py",
    }
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "sparkkafka").rglob("*.py")}
    assert {f"sparkkafka/cli/page/{name}" for name, _ in FILES.values()} <= names
    # Tools of the project are not of its users.
    assert not any("demo" in name or "option_docs" in name for name in names)
    assert modules - {"sparkkafka/spark/pyspark_pykafka.py"} <= names


def test_metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(name).decode().split("\n\n")[0].splitlines()
    assert "License-Expression: Apache-2.0" in lines
    assert "Requires-Python: >=3.11" in lines
    assert "Requires-Dist: pyspark>=4.0; extra == 'spark'" in lines
    # Platforms have a Spark of their own.
    plain = [line for line in lines if line.startswith("Requires-Dist") and "extra" not in line]
    assert len(plain) == 5
    assert not any("spark" in line for line in plain)
    assert any(n.endswith("licenses/LICENSE") for n in wheel.namelist())


def installed(wheel: zipfile.ZipFile, extra: str, home: Path) -> Path:
    """The Python of a new environment, with the wheel and what it requires with this extra, and no
    other package. Nothing is downloaded: files are links to those of this environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = next(home.glob("lib/python*/site-packages"))
    wheel.extractall(packages)
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    head = wheel.read(metadata).decode().split("\n\n")[0].splitlines()
    lines = [line.removeprefix("Requires-Dist: ") for line in head if "Requires-Dist" in line]
    wanted = [(line, extra) for line in lines]
    linked: set[str] = set()
    while wanted:
        line, of = wanted.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of}):
            continue
        found = distribution(requirement.name)
        assert requirement.specifier.contains(found.version)
        if found.name in linked:
            continue
        linked.add(found.name)
        wanted += [(other, "") for other in found.requires or []]
        for file in found.files or []:
            if ".." not in file.parts:
                link = packages / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(found.locate_file(file))
    return home / "bin" / "python"


def test_the_extra_protobuf_has_the_protos_of_google_type(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    python = installed(wheel, "protobuf", tmp_path / "environment")
    code = """
import sparkkafka.schemas.protobuf.format as protobuf
from sparkkafka.schemas.values import Schema
text = 'syntax = "proto3"; import "google/type/money.proto"; message M { google.type.Money m = 1; }'
print(protobuf.__file__, protobuf.arrow_type(Schema("protobuf", text)))
"""
    run = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    path, _, kind = run.stdout.strip().partition(" ")
    assert path.startswith(str(tmp_path))
    assert kind == "struct<m: struct<currency_code: string, units: int64, nanos: int32>>"
