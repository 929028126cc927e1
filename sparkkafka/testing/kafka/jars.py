"""Jars in the user's cache folder: Apache Kafka's, a Schema Registry's, those of Spark's own
Kafka connector and of its Avro functions.

pyspark brings Apache Ivy, so Java is all that a download needs. A set of jars is complete in
`$XDG_CACHE_HOME/sparkkafka/<name>` (default `~/.cache/sparkkafka/<name>`), or does not exist: Ivy
fills a hidden folder beside it, with its own Ivy cache. Then the jars are checked and listed in a
manifest, and the folder is renamed. Ivy compares downloads with Maven Central's checksums.

`python -m sparkkafka.testing.kafka.jars [connector] [avro] [registry]` fetches what is missing; as
root on Debian or Ubuntu it installs Java too.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.sax.saxutils import quoteattr

from sparkkafka.testing.kafka.java import find_java, say
from sparkkafka.testing.kafka.process import LeashedProcess, UnavailableError

KAFKA_VERSION = "4.3.1"
REGISTRY_VERSION = "2.6.13.Final"

_MANIFEST = "manifest.txt"
LOCK_SECONDS = 900.0
DOWNLOAD_SECONDS = 900.0
SILENCE_SECONDS = 5.0  # how often progress is shown


@dataclass(frozen=True)
class JarSet:
    """Jars to fetch. `modules` are (organisation, name, revision, with dependencies) of Maven."""

    name: str
    title: str
    modules: tuple[tuple[str, str, str, bool], ...]
    #: The number of jars that the set is known to have; None: as many as Ivy says.
    jar_count: int | None = None
    #: Maven's classifier of the modules' tar.gz archives, which hold the jars; "": single jars.
    archive: str = ""

    def file_names(self) -> list[str]:
        """Return the names of the files that Ivy fetches for the modules, without dependencies."""
        end = f"-{self.archive}.tar.gz" if self.archive else ".jar"
        return [f"{name}-{revision}{end}" for _, name, revision, _ in self.modules]


def kafka_jars(version: str = KAFKA_VERSION) -> JarSet:
    """Return the jars of a broker of this version, and slf4j-simple, which prints its log."""
    return JarSet(
        name=f"kafka-{version}",
        title=f"Apache Kafka {version}",
        modules=(
            ("org.apache.kafka", "kafka_2.13", version, True),
            ("org.slf4j", "slf4j-simple", "1.7.36", False),
        ),
        jar_count=46 if version == KAFKA_VERSION else None,
    )


#: Spark's own Kafka connector, as rival and oracle: the newest complete combination that works
#: with pyspark 4.3.0. Its dependencies are in pyspark already.
CONNECTOR_JARS = JarSet(
    name="spark-sql-kafka-4.2.0",
    title="Spark's JVM Kafka connector 4.2.0",
    modules=(
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", False),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", False),
        ("org.apache.kafka", "kafka-clients", "3.9.2", False),
        ("org.apache.commons", "commons-pool2", "2.12.0", False),
    ),
    jar_count=4,
)

#: Spark's `from_avro` and `to_avro`, as rival and oracle: the newest that there is for Spark 4.
AVRO_JARS = JarSet(
    name="spark-avro-4.2.0",
    title="Spark's Avro functions 4.2.0",
    modules=(("org.apache.spark", "spark-avro_2.13", "4.2.0", False),),
    jar_count=1,
)

#: Apicurio Registry, which answers as Confluent's Schema Registry does; 142 MB.
REGISTRY_JARS = JarSet(
    name=f"apicurio-registry-{REGISTRY_VERSION}",
    title=f"Apicurio Registry {REGISTRY_VERSION}",
    modules=(("io.apicurio", "apicurio-registry-app", REGISTRY_VERSION, False),),
    jar_count=310,
    archive="all",
)

#: Runs a command to its end, calls the callback with each line of output, returns the status.
Runner = Callable[[Sequence[str], Callable[[str], None]], int]


def cache_directory() -> Path:
    """Return the folder of downloads: `$XDG_CACHE_HOME/sparkkafka`, else `~/.cache/sparkkafka`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and must be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "sparkkafka"


def find_jars(jars: JarSet) -> list[Path] | None:
    """Return the paths of a set that was fetched before, else None. Starts nothing."""
    return _complete_paths(cache_directory() / jars.name)


def ensure_jars(
    jars: JarSet,
    *,
    install_java: bool = False,
    runner: Runner | None = None,
    say: Callable[[str], None] = say,
) -> list[Path]:
    """Return the paths of the jars, after downloading them if necessary.

    Several processes may call this at the same time: one downloads, the others wait for it. Raises
    `UnavailableError` with what to do when there is no Java, no network or no space.
    """
    target = cache_directory() / jars.name
    paths = _complete_paths(target)
    if paths is not None:
        return paths
    java = find_java(install=install_java, say=say)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target, say):
            paths = _complete_paths(target)  # another process may have been faster
            return paths if paths is not None else _download(jars, target, java, runner, say)
    except OSError as error:
        raise UnavailableError(
            f"cannot keep the jars of {jars.title} in {target.parent}: {error}. Free some space "
            "there, or set XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _complete_paths(target: Path) -> list[Path] | None:
    """Return the paths in the manifest, None if a jar is missing or has another size."""
    try:
        lines = (target / _MANIFEST).read_text().splitlines()
        paths = []
        for line in lines:
            size, _, name = line.partition(" ")
            if (target / name).stat().st_size != int(size):
                return None
            paths.append(target / name)
    except (OSError, ValueError):
        return None
    return paths or None


@contextlib.contextmanager
def _lock(target: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time download a set. The kernel drops the lock if its holder dies."""
    deadline = time.monotonic() + LOCK_SECONDS
    reported = False
    with (target.parent / f".{target.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"another process has held {file.name} for {LOCK_SECONDS:.0f} s: end it "
                        "and try again"
                    ) from None
                if not reported:
                    say(f"another process is downloading {target.name}: waiting for it")
                    reported = True
                time.sleep(0.2)
        yield


def _download(
    jars: JarSet, target: Path, java: Path, runner: Runner | None, say: Callable[[str], None]
) -> list[Path]:
    """Let Ivy download the jars into a new folder, and move it to `target`. Return their paths."""
    # Only the lock's holder makes such folders, so those that exist belong to dead processes.
    for leftover in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        say(f"{jars.title}: downloading its jars, once, into {target}")
        started = time.monotonic()
        report = _run_ivy(jars, work, java, runner or run_leashed, say)
        paths = _check_jars(jars, work / "jars", report)
        names = [path.relative_to(work / "jars").as_posix() for path in paths]
        total = 0
        with (work / "jars" / _MANIFEST).open("w") as manifest:
            for path, name in zip(paths, names, strict=True):
                size = path.stat().st_size
                total += size
                manifest.write(f"{size} {name}\n")
        if target.exists():  # incomplete: a jar was removed or cut by someone else
            shutil.rmtree(target)
        (work / "jars").rename(target)
        say(
            f"{jars.title}: {len(paths)} jars, {total / 1e6:.0f} MB, "
            f"{time.monotonic() - started:.0f} s"
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [target / name for name in names]


def _run_ivy(
    jars: JarSet, work: Path, java: Path, runner: Runner, say: Callable[[str], None]
) -> list[str]:
    """Run Ivy once for all modules, and return its output. Raises UnavailableError."""
    (work / "ivy.xml").write_text(_ivy_module(jars))
    (work / "jars").mkdir()
    command = [
        str(java),
        "-Xmx256m",
        # Ivy's default settings also look into the user's folder, where a jar of the same name
        # but of unknown origin may lie.
        f"-Divy.default.ivy.user.dir={work / 'user'}",
        "-jar",
        str(_ivy_jar()),
        "-cache",
        str(work / "cache"),
        "-ivy",
        str(work / "ivy.xml"),
        "-confs",
        "default",
        "-types",
        *(("tar.gz",) if jars.archive else ("jar", "bundle")),
        "-retrieve",
        str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]
    lines: list[str] = []
    found = downloaded = 0
    shown_at = time.monotonic()

    def follow(line: str) -> None:
        """Keep a line of Ivy's output, and show the progress every few seconds."""
        nonlocal found, downloaded, shown_at
        lines.append(line)
        found += line.startswith("\tfound ")
        downloaded += "[SUCCESSFUL ]" in line
        if time.monotonic() - shown_at >= SILENCE_SECONDS:
            shown_at = time.monotonic()
            if jars.archive:  # one file, with all jars in it
                with contextlib.suppress(OSError):  # Ivy renames and removes files
                    size = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
                    say(f"  {size / 1e6:.0f} MB downloaded")
            elif downloaded:
                say(f"  {downloaded} of {found} jars downloaded")
            else:
                say(f"  {found} of {jars.jar_count or 'its'} dependencies found")

    status = runner(command, follow)
    if status != 0:
        raise UnavailableError(_failure(jars, lines, f"Ivy ended with status {status}"))
    return lines


def _ivy_module(jars: JarSet) -> str:
    """Return the XML that names the jars as dependencies for Ivy."""
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(organisation)} name={quoteattr(name)} "
        f"rev={quoteattr(revision)} force='true' conf='default->default' "
        f"transitive='{str(transitive).lower()}'>"
        + (
            f"<artifact name={quoteattr(name)} type='tar.gz' ext='tar.gz' "
            f"m:classifier={quoteattr(jars.archive)}/>"
            if jars.archive
            else ""
        )
        + "</dependency>"
        for organisation, name, revision, transitive in jars.modules
    )
    return (
        "<ivy-module version='2.0' xmlns:m='http://ant.apache.org/ivy/maven'>\n"
        "  <info organisation='sparkkafka' module='jars'/>\n"
        "  <configurations><conf name='default'/></configurations>\n"
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n"
        "</ivy-module>\n"
    )


def _ivy_jar() -> Path:
    """Return the jar of Ivy that pyspark has."""
    # find_spec does not import pyspark.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UnavailableError(
            "pyspark, whose Ivy fetches the jars, is missing: pip install pyspark"
        )
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise UnavailableError(
            f"{Path(spec.origin).parent} has no jars/ivy-*.jar, which fetches the jars: "
            "install the whole pyspark (pyspark-client alone has no jars)"
        )
    return found[-1]


def run_leashed(command: Sequence[str], follow: Callable[[str], None]) -> int:
    """Run Ivy as a process that ends with this one, and return its status: a `Runner`."""
    process = LeashedProcess(command, output=subprocess.PIPE)
    gave_up = threading.Event()

    def give_up() -> None:
        gave_up.set()
        process.kill()

    # Not in the loop below: Ivy's progress is dots of one line, which may never end.
    timer = threading.Timer(DOWNLOAD_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    try:
        for line in process.stdout:
            follow(line.decode(errors="replace").rstrip())
        status = process.wait(60)
        if gave_up.is_set():
            follow(f"gave up after {DOWNLOAD_SECONDS:.0f} s")
        return status
    finally:
        timer.cancel()
        process.close()


def _check_jars(jars: JarSet, directory: Path, report: list[str]) -> list[Path]:
    """Return the paths of the jars. Raises UnavailableError if one is missing or damaged (the CRC
    of every member is read)."""
    if jars.archive:
        _unpack(jars, directory, report)
    paths = sorted(directory.rglob("*.jar"))
    # "45 artifacts copied, 0 already retrieved"
    copied = [int(m[1]) for line in report if (m := re.search(r"(\d+) artifacts copied", line))]
    expected = jars.jar_count if jars.jar_count is not None else sum(copied)
    if not expected or len(paths) != expected:
        raise UnavailableError(
            _failure(jars, report, f"{len(paths)} jars came, {expected or 'some'} were expected")
        )
    names = {path.name for path in paths}
    for file in jars.file_names():
        if not jars.archive and file not in names:
            raise UnavailableError(_failure(jars, report, f"{file} did not come"))
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            damaged = str(error)
        if damaged:
            raise UnavailableError(_failure(jars, report, f"{path.name} is damaged: {damaged}"))
    return paths


def _unpack(jars: JarSet, directory: Path, report: list[str]) -> None:
    """Move the jars of the archives into `directory`, and remove the archives."""
    for file in jars.file_names():
        path = directory / file
        if not path.is_file():
            raise UnavailableError(_failure(jars, report, f"{file} did not come"))
        try:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    name = PurePosixPath(member.name)
                    if not member.isfile() or name.suffix != ".jar":
                        continue
                    if name.is_absolute() or ".." in name.parts:
                        raise tarfile.TarError(f"it has a member {member.name}")
                    content = archive.extractfile(member)
                    if content is None:
                        raise tarfile.TarError(f"{member.name} has no content")
                    (directory / name).parent.mkdir(parents=True, exist_ok=True)
                    with content, (directory / name).open("wb") as copy:
                        shutil.copyfileobj(content, copy)
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise UnavailableError(_failure(jars, report, f"{file} is damaged: {error}")) from error
        path.unlink()


def _failure(jars: JarSet, report: list[str], reason: str) -> str:
    """Return the error's text: the reason, the cause in Ivy's output, and what to do."""
    causes = [
        line.strip(" \t:")
        for line in report
        if re.search(r"not found|Exception|[Ff]ailed|refused|timed out|gave up|No space", line)
    ]
    detail = f" ({causes[-1][:200]})" if causes else ""
    return (
        f"the download of {jars.title} failed: {reason}{detail}. Check that this machine reaches "
        "Maven Central and run it again; behind a proxy set JAVA_TOOL_OPTIONS="
        "'-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT' first"
    )


_OPTIONAL_SETS = {"connector": CONNECTOR_JARS, "avro": AVRO_JARS, "registry": REGISTRY_JARS}


def main(arguments: Sequence[str]) -> int:
    """Fetch Kafka's jars, and the optional sets that the arguments name."""
    if set(arguments) - set(_OPTIONAL_SETS):
        names = " ".join(f"[{name}]" for name in _OPTIONAL_SETS)
        say(f"usage: python -m sparkkafka.testing.kafka.jars {names}")
        return 2
    try:
        find_java(install=True)
        ensure_jars(kafka_jars())
        for word, jars in _OPTIONAL_SETS.items():
            if word in arguments:
                ensure_jars(jars)
    except UnavailableError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
