"""Java: found, too old, missing, installed. Fake `java` and `apt-get` commands, nothing real."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkkafka.testing.kafka import java as java_module
from sparkkafka.testing.kafka.java import export_java_home, find_java, java_version
from sparkkafka.testing.kafka.process import UnavailableError

MakeJava = Callable[[str, str], Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """A machine without Java; the fixture puts fake ones into folders."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_module.shutil, "which", lambda _name: None)
    monkeypatch.setattr(java_module, "SYSTEM_JAVAS", str(tmp_path / "system"))
    monkeypatch.setattr(java_module, "is_debian", lambda: False)

    def make(folder: str, version: str) -> Path:
        path = tmp_path / folder / "bin" / "java"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize(
    ("text", "version"),
    [("1.8.0_442", 8), ("11.0.26", 11), ("17.0.15", 17), ("21", 21), ("26-ea", 26)],
)
def test_versions_are_read(make_java: MakeJava, text: str, version: int) -> None:
    assert java_version(make_java("any", text)) == version


def test_a_broken_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "nothing") is None
    assert java_version(Path("/bin/true")) is None
    assert java_version(Path("/bin/false")) is None


def test_java_home_wins_and_an_old_one_is_passed_over(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = make_java("system/java-21", "21.0.1")
    home = make_java("home", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home.parent.parent))
    assert find_java() == home
    old = make_java("old", "11.0.26")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    assert find_java() == system


def test_missing_java_is_one_line_with_one_command(make_java: MakeJava) -> None:
    with pytest.raises(UnavailableError) as caught:
        find_java(install=True)  # not Debian, so nothing may be installed
    assert "\n" not in str(caught.value)
    assert "Run: " in str(caught.value)


def test_an_old_java_is_named(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_java("old", "1.8.0_442")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    with pytest.raises(UnavailableError, match=r"old/bin/java is Java 8"):
        find_java()


class FakeApt:
    """`apt-get` and `apt-cache` on PATH; each call is logged; installing makes a Java."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: str) -> None:
        self.log = tmp_path / "apt.log"
        folder = tmp_path / "apt"
        folder.mkdir()
        java = tmp_path / "system" / "java-17" / "bin"
        (folder / "apt-cache").write_text("#!/bin/sh\nexit 0\n")
        (folder / "apt-get").write_text(
            f'#!/bin/sh\necho "$@" >> {self.log}\ncase "$2" in install) {install};; esac\n'.replace(
                "@JAVA@", str(java)
            )
        )
        for command in folder.iterdir():
            command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setattr(java_module, "is_debian", lambda: True)
        monkeypatch.setattr(java_module.os, "geteuid", lambda: 0)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


MAKES_JAVA = (
    'mkdir -p @JAVA@; printf \'#!/bin/sh\\necho "openjdk version \\\\"17.0.1\\\\"" >&2\\n\''
    " > @JAVA@/java; chmod +x @JAVA@/java"
)


def test_root_on_debian_gets_the_package_and_a_message(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = FakeApt(tmp_path, monkeypatch, MAKES_JAVA)
    said: list[str] = []
    java = find_java(install=True, say=said.append)
    assert java == tmp_path / "system" / "java-17" / "bin" / "java"
    assert apt.calls == ["-q install -y --no-install-recommends openjdk-17-jre-headless"]
    assert "installing the headless JRE package" in said[0]


def test_a_failed_installation_tries_fresh_lists_once(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = FakeApt(tmp_path, monkeypatch, "exit 100")
    with pytest.raises(UnavailableError, match="could not install openjdk-17-jre-headless"):
        find_java(install=True, say=lambda _text: None)
    assert [call.split()[1] for call in apt.calls] == ["install", "update", "install"]


@pytest.mark.parametrize("user", ["root without install", "not root"])
def test_nothing_is_installed_unasked(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    apt = FakeApt(tmp_path, monkeypatch, MAKES_JAVA)
    if user == "not root":
        monkeypatch.setattr(java_module.os, "geteuid", lambda: 1000)
    sudo = "sudo " if user == "not root" else ""
    with pytest.raises(UnavailableError, match=f"Run: {sudo}apt-get install -y openjdk-17"):
        find_java(install=user == "not root")
    assert apt.calls == []


def test_spark_is_given_the_java_that_was_found(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = make_java("system/java-21", "21.0.1")
    monkeypatch.setattr(java_module.os, "environ", dict(os.environ))
    export_java_home(java)
    assert java_module.os.environ["JAVA_HOME"] == str(java.parent.parent)
