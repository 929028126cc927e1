"""Downloads are complete or not there at all. No network here: Ivy is replaced by a function."""

from __future__ import annotations

import fcntl
import gzip
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparkkafka.testing.kafka import jars as jars_module
from sparkkafka.testing.kafka.jars import (
    AVRO_JARS,
    REGISTRY_JARS,
    JarSet,
    ensure_jars,
    find_jars,
    kafka_jars,
)
from sparkkafka.testing.kafka.process import UnavailableError

TWO_JARS = JarSet(
    name="two-1.0",
    title="Two",
    modules=(("org.two", "one", "1.0", True), ("org.two", "two", "1.0", False)),
    jar_count=2,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars_module, "find_java", lambda **_options: Path("/some/java"))
    return tmp_path / "sparkkafka"


class FakeIvy:
    """Writes jars where Ivy would; `damage` may change them afterwards."""

    def __init__(
        self,
        names: Sequence[str] = ("one-1.0.jar", "two-1.0.jar"),
        status: int = 0,
        output: Sequence[str] = (),
        damage: Callable[[Path], None] = lambda _folder: None,
    ) -> None:
        self.names, self.status, self.output, self.damage = names, status, output, damage
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], follow: Callable[[str], None]) -> int:
        self.commands.append(list(command))
        folder = Path(command[command.index("-retrieve") + 1]).parent
        for name in self.names:
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr("Some.class", name * 500)
        self.damage(folder)
        for line in self.output:
            follow(line)
        return self.status


def quiet(_text: str) -> None:
    pass


def fetch(ivy: FakeIvy, jars: JarSet = TWO_JARS) -> list[Path]:
    return ensure_jars(jars, runner=ivy, say=quiet)


def left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_a_download_is_kept_and_not_repeated(cache: Path) -> None:
    ivy = FakeIvy()
    assert find_jars(TWO_JARS) is None
    paths = fetch(ivy)
    assert paths == [cache / "two-1.0" / "one-1.0.jar", cache / "two-1.0" / "two-1.0.jar"]
    assert fetch(ivy) == paths == find_jars(TWO_JARS)
    assert len(ivy.commands) == 1
    assert left_over(cache) == ["two-1.0"]


def test_ivy_writes_only_below_its_own_temporary_folder(cache: Path) -> None:
    """No machine-wide Ivy or Maven cache is read or changed."""
    modules = []
    ivy = FakeIvy(damage=lambda folder: modules.append((folder.parent / "ivy.xml").read_text()))
    fetch(ivy)
    (command,) = ivy.commands
    partial = str(cache / ".two-1.0.partial-")
    assert command[command.index("-cache") + 1].startswith(partial)
    assert command[command.index("-retrieve") + 1].startswith(partial)
    assert any(word.startswith(f"-Divy.default.ivy.user.dir={partial}") for word in command)
    assert 'org="org.two" name="two" rev="1.0"' in modules[0]


def cut(folder: Path) -> None:
    data = (folder / "two-1.0.jar").read_bytes()
    (folder / "two-1.0.jar").write_bytes(data[: len(data) // 2])


def flip(folder: Path) -> None:
    data = bytearray((folder / "two-1.0.jar").read_bytes())
    data[60] ^= 0xFF
    (folder / "two-1.0.jar").write_bytes(data)


@pytest.mark.parametrize(
    ("ivy", "text"),
    [
        (
            FakeIvy(
                names=["one-1.0.jar"],
                status=1,
                output=["\t\t:: org.two#two;1.0: java.net.UnknownHostException", "noise"],
            ),
            "UnknownHostException",
        ),
        (FakeIvy(names=["one-1.0.jar"]), "1 jars came, 2 were expected"),
        (FakeIvy(names=["one-1.0.jar", "three-1.0.jar"]), "two-1.0.jar did not come"),
        (FakeIvy(damage=cut), "two-1.0.jar is damaged"),
        (FakeIvy(damage=flip), "two-1.0.jar is damaged"),
        (FakeIvy(damage=lambda folder: (folder / "two-1.0.jar").write_bytes(b"")), "is damaged"),
    ],
    ids=["no network", "one missing", "wrong one", "cut", "flipped", "empty"],
)
def test_a_broken_download_leaves_nothing_and_says_what_to_do(
    cache: Path, ivy: FakeIvy, text: str
) -> None:
    with pytest.raises(UnavailableError) as caught:
        fetch(ivy)
    message = str(caught.value)
    assert text in message
    assert "run it again" in message and "\n" not in message
    assert left_over(cache) == []
    assert fetch(FakeIvy())  # the next try starts afresh


def test_an_interrupted_download_leaves_nothing(cache: Path) -> None:
    def interrupt(_folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(FakeIvy(damage=interrupt))
    assert left_over(cache) == []


def test_what_a_killed_process_left_is_removed(cache: Path) -> None:
    leftover = cache / ".two-1.0.partial-abc" / "jars"
    leftover.mkdir(parents=True)
    (leftover / "one-1.0.jar").write_bytes(b"PK")
    fetch(FakeIvy())
    assert left_over(cache) == ["two-1.0"]


@pytest.mark.parametrize("change", ["remove", "cut", "manifest"])
def test_a_set_that_someone_damaged_is_fetched_again(cache: Path, change: str) -> None:
    fetch(FakeIvy())
    target = cache / "two-1.0"
    if change == "remove":
        (target / "one-1.0.jar").unlink()
    elif change == "cut":
        cut(target)
    else:
        (target / "manifest.txt").write_text("garbage")
    assert find_jars(TWO_JARS) is None
    ivy = FakeIvy()
    assert len(fetch(ivy)) == 2
    assert len(ivy.commands) == 1
    assert left_over(cache) == ["two-1.0"]


def test_two_processes_download_once(cache: Path) -> None:
    """flock belongs to the open file, so two threads stand for two processes here."""
    ivy = FakeIvy()
    said: list[str] = []
    results: list[list[Path]] = []
    cache.mkdir(parents=True)
    with (cache / ".two-1.0.lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        threads = [
            threading.Thread(
                target=lambda: results.append(ensure_jars(TWO_JARS, runner=ivy, say=said.append))
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(0.5)
        assert ivy.commands == []
    for thread in threads:
        thread.join(10)
    assert len(ivy.commands) == 1
    assert results[0] == results[1]
    assert any("waiting for it" in line for line in said)


def test_waiting_for_another_process_has_an_end(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars_module, "LOCK_SECONDS", 0.3)
    cache.mkdir(parents=True)
    with (cache / ".two-1.0.lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="another process has held"):
            fetch(FakeIvy())


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="set XDG_CACHE_HOME"):
        fetch(FakeIvy())


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert jars_module.cache_directory() == Path("/home/someone/.cache/sparkkafka")


def test_an_unknown_version_must_have_what_ivy_reports() -> None:
    jars = JarSet("two-2.0", "Two", (("org.two", "one", "1.0", True),), jar_count=None)
    with pytest.raises(UnavailableError, match="2 jars came, 3 were expected"):
        fetch(FakeIvy(output=["\t3 artifacts copied, 0 already retrieved (9kB/1ms)"]), jars)
    with pytest.raises(UnavailableError, match="some were expected"):
        fetch(FakeIvy(), jars)
    assert fetch(FakeIvy(output=["\t2 artifacts copied, 0 already retrieved (9kB/1ms)"]), jars)


def test_progress_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars_module, "SILENCE_SECONDS", 0.0)
    said: list[str] = []
    output = ["\tfound org.two#one;1.0 in public", "\t[SUCCESSFUL ] org.two#one;1.0!one.jar (1ms)"]
    ensure_jars(TWO_JARS, runner=FakeIvy(output=output), say=said.append)
    assert said[0].startswith("Two: downloading its jars, once")
    assert "  1 of 2 dependencies found" in said
    assert "  1 of 1 jars downloaded" in said
    assert said[-1].startswith("Two: 2 jars")


def test_only_kafkas_known_version_has_a_known_count() -> None:
    assert kafka_jars().jar_count == 46
    assert kafka_jars("4.2.0").jar_count is None


# -- jars that come in one archive ---------------------------------------------------------

ARCHIVE = JarSet(
    name="app-1.0",
    title="App",
    modules=(("org.two", "app", "1.0", False),),
    jar_count=2,
    archive="all",
)


def jar_bytes(text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as jar:
        jar.writestr("Some.class", text * 500)
    return file.getvalue()


MEMBERS = {"app-1.0-runner.jar": jar_bytes("app"), "lib/org.one-1.0.jar": jar_bytes("one")}


class FakeIvyOfArchives:
    """Writes the archive where Ivy would, cut to `length` bytes if that is given."""

    def __init__(
        self, members: dict[str, bytes], length: int | None = None, name: str = "app-1.0-all.tar.gz"
    ) -> None:
        self.members, self.length, self.name = members, length, name
        self.command: list[str] = []
        self.module = ""

    def __call__(self, command: Sequence[str], follow: Callable[[str], None]) -> int:
        self.command = list(command)
        folder = Path(command[command.index("-retrieve") + 1]).parent
        self.module = (folder.parent / "ivy.xml").read_text()
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in self.members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        (folder / self.name).write_bytes(file.getvalue()[: self.length])
        follow("....")  # Ivy's progress
        return 0


def fetch_archive(ivy: FakeIvyOfArchives) -> list[Path]:
    return ensure_jars(ARCHIVE, runner=ivy, say=quiet)


def test_the_size_of_an_archive_is_shown_while_it_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jars_module, "SILENCE_SECONDS", 0.0)
    said: list[str] = []
    ensure_jars(ARCHIVE, runner=FakeIvyOfArchives(MEMBERS), say=said.append)
    assert said[1] == "  0 MB downloaded"


def test_the_jars_of_an_archive_are_kept_and_the_archive_is_not(cache: Path) -> None:
    ivy = FakeIvyOfArchives({**MEMBERS, "meta/LICENSE": b"text"})
    paths = fetch_archive(ivy)
    folder = cache / "app-1.0"
    assert paths == [folder / name for name in MEMBERS] == find_jars(ARCHIVE)
    assert [path.read_bytes() for path in paths] == list(MEMBERS.values())
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert files == sorted([*paths, folder / "manifest.txt"])
    assert 'm:classifier="all"' in ivy.module and "type='tar.gz'" in ivy.module
    assert ivy.command[ivy.command.index("-types") + 1] == "tar.gz"
    paths[1].unlink()
    assert find_jars(ARCHIVE) is None


@pytest.mark.parametrize(
    ("ivy", "text"),
    [
        (FakeIvyOfArchives(MEMBERS, name="app-1.0.tar.gz"), "app-1.0-all.tar.gz did not come"),
        (FakeIvyOfArchives(MEMBERS, length=0), "app-1.0-all.tar.gz is damaged"),
        (FakeIvyOfArchives(MEMBERS, length=100), "app-1.0-all.tar.gz is damaged"),
        (FakeIvyOfArchives({"a.jar": jar_bytes("a")}), "1 jars came, 2 were expected"),
        (
            FakeIvyOfArchives({"a.jar": jar_bytes("a"), "b.jar": jar_bytes("b")[:-9]}),
            "b.jar is damaged",
        ),
        (FakeIvyOfArchives({**MEMBERS, "../out.jar": b""}), "it has a member ../out.jar"),
        (FakeIvyOfArchives({**MEMBERS, "/tmp/out.jar": b""}), "it has a member /tmp/out.jar"),
    ],
    ids=["no archive", "empty", "cut", "one missing", "damaged inside", "climbs out", "absolute"],
)
def test_a_broken_archive_leaves_nothing_and_says_what_to_do(
    cache: Path, ivy: FakeIvyOfArchives, text: str
) -> None:
    with pytest.raises(UnavailableError) as caught:
        fetch_archive(ivy)
    message = str(caught.value)
    assert text in message
    assert "run it again" in message and "\n" not in message
    assert left_over(cache) == []


def test_a_flipped_byte_of_an_archive_is_found(cache: Path) -> None:
    whole = FakeIvyOfArchives(MEMBERS)

    def flip_one(command: Sequence[str], follow: Callable[[str], None]) -> int:
        status = whole(command, follow)
        file = Path(command[command.index("-retrieve") + 1]).parent / whole.name
        plain = bytearray(gzip.decompress(file.read_bytes()))
        plain[600] ^= 0xFF  # in the first jar
        file.write_bytes(gzip.compress(bytes(plain)))
        return status

    with pytest.raises(UnavailableError, match=r"app-1.0-runner.jar is damaged"):
        ensure_jars(ARCHIVE, runner=flip_one, say=quiet)
    assert left_over(cache) == []


def test_a_silent_download_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ivy shows the progress of one file as dots, without an end of line."""
    monkeypatch.setattr(jars_module, "DOWNLOAD_SECONDS", 0.5)
    lines: list[str] = []
    status = jars_module.run_leashed(
        [sys.executable, "-c", "print('.', end='', flush=True); import time; time.sleep(60)"],
        lines.append,
    )
    assert status != 0
    assert lines == [".", "gave up after 0 s"]


def test_what_each_word_of_the_command_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[JarSet] = []
    monkeypatch.setattr(jars_module, "ensure_jars", fetched.append)
    assert jars_module.main(["registry", "avro"]) == 0
    assert fetched == [kafka_jars(), AVRO_JARS, REGISTRY_JARS]
    assert jars_module.main(["regsitry"]) == 2
