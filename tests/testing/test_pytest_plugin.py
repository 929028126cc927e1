"""The plugin costs nothing unless used, and says why there is no broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The fixtures themselves are those of all tests here that have real brokers and registries.
_USES_THEM = """
def test_broker(kafka_cluster):
    kafka_cluster.create_topic("t")

def test_own_broker(kafka_cluster_factory):
    kafka_cluster_factory(1, {"num.io.threads": 3})

def test_registry(schema_registry):
    schema_registry.register("s", '"string"')

def test_own_registry(schema_registry_factory):
    schema_registry_factory("FULL")
"""


def run_pytest(folder: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_users.py").write_text(body)
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**variables, **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_run_that_uses_no_fixture_loads_next_to_nothing(tmp_path: Path) -> None:
    body = """
import sys
def test_nothing():
    ours = sorted(name for name in sys.modules if name.startswith("sparkkafka.testing"))
    assert ours == ["sparkkafka.testing", "sparkkafka.testing.pytest_plugin"]
    for heavy in ("pyspark", "pyarrow", "numpy", "pandas"):
        assert heavy not in sys.modules, heavy
"""
    run = run_pytest(tmp_path, body)
    assert "1 passed" in run.stdout, run.stdout


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """JAVA_HOME and PATH without Java. A Java in /usr/lib/jvm would still be found."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sparkkafka.testing.kafka.java as java\njava.SYSTEM_JAVAS = '/nowhere'\n"
    )
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "PYTHONPATH": path}


@pytest.mark.slow
def test_without_java_a_users_test_is_skipped_with_the_reason(
    tmp_path: Path, no_java: dict[str, str]
) -> None:
    run = run_pytest(tmp_path, _USES_THEM, **no_java)
    assert "4 skipped" in run.stdout, run.stdout
    assert "no real Kafka: Java 17 or newer is needed" in run.stdout
    assert "no real Schema Registry: Java 17 or newer is needed" in run.stdout


@pytest.mark.slow
def test_without_java_it_fails_in_ci(tmp_path: Path, no_java: dict[str, str]) -> None:
    run = run_pytest(tmp_path, _USES_THEM, CI="true", **no_java)
    assert run.returncode == 1
    # A function that starts brokers is called by the test itself.
    assert "2 failed, 2 errors" in run.stdout, run.stdout
    assert "no real Kafka: Java 17 or newer is needed" in run.stdout
    assert "no real Schema Registry: Java 17 or newer is needed" in run.stdout
