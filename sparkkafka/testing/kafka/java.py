"""Finds a Java for Kafka and Spark, or says how to install one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sparkkafka.testing.kafka.process import UnavailableError

#: Kafka 4 brokers (KIP-1013) and Spark 4 both need it.
MINIMUM_JAVA = 17

SYSTEM_JAVAS = "/usr/lib/jvm"
_DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless")


def say(text: str) -> None:
    """Print one line of progress on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def find_java(*, install: bool = False, say: Callable[[str], None] = say) -> Path:
    """Return the `java` command: JAVA_HOME's, else that on PATH, else one under /usr/lib/jvm.

    With `install`, as root on Debian or Ubuntu, a missing Java is installed as a system package;
    only the project's own commands set that, never fixtures. Raises `UnavailableError`, which has
    the command that installs a Java.
    """
    tried: list[str] = []
    for java in _candidates():
        version = java_version(java)
        if version is not None and version >= MINIMUM_JAVA:
            return java
        tried.append(f"{java} is {f'Java {version}' if version else 'not a working Java'}")
    found = f" ({'; '.join(tried)})" if tried else ""
    if install and is_debian() and os.geteuid() == 0:
        say(f"Java {MINIMUM_JAVA} or newer is missing{found}: installing the headless JRE package")
        _install_on_debian(say)
        return find_java(say=say)
    raise UnavailableError(
        f"Java {MINIMUM_JAVA} or newer is needed and was not found{found}. Run: {_advice()}"
    )


def java_version(java: Path) -> int | None:
    """Return the feature release of a `java` command (17, 21, …; 8 for 1.8), None if it does not
    work."""
    try:
        result = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr + result.stdout)
    if match is None:
        return None
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major  # "1.8.0_442" is Java 8


def export_java_home(java: Path) -> None:
    """Set JAVA_HOME so that Spark, which reads only JAVA_HOME and PATH, uses this Java."""
    on_path = shutil.which("java")
    if "JAVA_HOME" in os.environ or on_path is None or Path(on_path).resolve() != java.resolve():
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)


def _candidates() -> Iterator[Path]:
    """Yield the `java` commands of this machine, each once."""
    seen: set[Path] = set()
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    system = sorted(Path(SYSTEM_JAVAS).glob("*/bin/java"))
    for java in [Path(home, "bin/java") if home else None, Path(on_path or ""), *system]:
        if java is not None and java.is_file() and java.resolve() not in seen:
            seen.add(java.resolve())
            yield java


def is_debian() -> bool:
    return Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def _advice() -> str:
    """Return the command that installs a Java on this system."""
    if is_debian():
        package = next(filter(_is_known_to_apt, _DEBIAN_PACKAGES), _DEBIAN_PACKAGES[0])
        sudo = "" if os.geteuid() == 0 else "sudo "
        return f"{sudo}apt-get install -y {package}"
    if shutil.which("dnf"):
        return "sudo dnf install -y java-21-openjdk-headless"
    if shutil.which("apk"):
        return "sudo apk add openjdk21-jre-headless"
    if shutil.which("brew"):
        return 'brew install openjdk@21 && export JAVA_HOME="$(brew --prefix openjdk@21)"'
    return "your system's installer for a JRE of Java 17 or newer, then set JAVA_HOME to its folder"


def _is_known_to_apt(package: str) -> bool:
    """Return whether apt has a package of this name."""
    result = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", package],  # noqa: S607
        capture_output=True,
        check=False,
    )
    return result.returncode == 0


def _install_on_debian(say: Callable[[str], None]) -> None:
    """Install a JRE with apt-get."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def apt_get(*arguments: str) -> bool:
        """Run apt-get; return whether it succeeded."""
        say(f"running: apt-get {' '.join(arguments)}")
        result = subprocess.run(
            ["apt-get", "-q", *arguments],  # noqa: S607
            env=environment,
            stdout=sys.stderr,
            check=False,
        )
        return result.returncode == 0

    if not any(map(_is_known_to_apt, _DEBIAN_PACKAGES)):
        apt_get("update")
    package = next(filter(_is_known_to_apt, _DEBIAN_PACKAGES), _DEBIAN_PACKAGES[0])
    install = ("install", "-y", "--no-install-recommends", package)
    # A second try with fresh lists: old lists name package versions that are gone.
    if not (apt_get(*install) or (apt_get("update") and apt_get(*install))):
        raise UnavailableError(f"apt-get could not install {package}: run it and see why")
