"""Settings of TLS and SASL that a job gave to its JVM: -Djavax.net.ssl.trustStore, and the file of
-Djava.security.auth.login.config.

Spark's Python processes are children of the JVM of their driver or executor. What that was started
with stands in /proc, and in the environment that it hands on. Elsewhere (no Linux, the client
library in a program of its own) there is nothing to find.
"""

from __future__ import annotations

import os
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Final

from sparkkafka.config.security.settings import Store
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

LOGIN_CONFIG: Final = "java.security.auth.login.config"
TRUSTSTORE: Final = "javax.net.ssl.trustStore"

_SECTION: Final = "KafkaClient"  # of Kafka's JaasContext
_MAX_FILE_BYTES: Final = 2**20
_MAX_COMMAND_BYTES: Final = 2**20
_MAX_ANCESTORS: Final = 16
_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "KAFKA_OPTS")
_JVM: Final = re.compile(rb"(?:.*/)?java")

_SECTION_TEXT = re.compile(
    _SECTION + r"""\s*\{((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^"'{}])*)\}""", re.DOTALL
)


def jvm_property(name: str) -> Secret:
    """A system property of the JVM whose child this process is; empty if there is none."""
    return _properties(os.getpid()).get(name, Secret(""))


def jvm_truststore() -> Store:
    """The authorities of the JVM, if it was told any: Java looks there before the system's."""
    password = jvm_property(f"{TRUSTSTORE}Password")
    return Store(f"the JVM's {TRUSTSTORE}", jvm_property(TRUSTSTORE).reveal(), password=password)


def login_section() -> tuple[Secret, str]:
    """(text of KafkaClient in the file of LOGIN_CONFIG, path); both empty without such a file.

    Raises OptionError if the file cannot be read, or has no such section.
    """
    path = jvm_property(LOGIN_CONFIG).reveal()
    if not path:
        return Secret(""), ""
    where = f"{path}, which the JVM's {LOGIN_CONFIG} names,"
    try:
        with Path(path.removeprefix("file:")).open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise OptionError(
            f"{where} cannot be read ({what}): set sasl.jaas.config, which needs no file"
        ) from None
    found = _SECTION_TEXT.search(text)
    if found is None or len(text) > _MAX_FILE_BYTES:
        raise OptionError(f"{where} has no section {_SECTION}: set sasl.jaas.config")
    return Secret(found[1].strip()), path


@cache
def _properties(pid: int, proc: Path = Path("/proc")) -> dict[str, Secret]:
    """`pid` is the key of the cache: a forked process has another."""
    command = _jvm_command(pid, proc)
    if command is None:
        return {}
    found: dict[str, Secret] = {}
    for variable in _VARIABLES:  # the command line comes last, and counts
        found |= _given(_split(os.environ.get(variable, "")))
    return found | _given(command)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark is not closed
        return text.split()


def _given(arguments: list[str]) -> dict[str, Secret]:
    pairs = (word[2:].partition("=") for word in arguments if word.startswith("-D"))
    return {name: Secret(value) for name, _, value in pairs}


def _jvm_command(pid: int, proc: Path) -> list[str] | None:
    """The arguments of the nearest ancestor that is a JVM, up to its main class."""
    for _ in range(_MAX_ANCESTORS):
        try:
            status = (proc / str(pid) / "status").read_text()
            pid = int(status.partition("PPid:")[2].split()[0])
            with (proc / str(pid) / "cmdline").open("rb") as file:
                words = file.read(_MAX_COMMAND_BYTES).split(b"\0")
        except (OSError, ValueError, IndexError):
            return None
        if _JVM.fullmatch(words[0]):
            return [word.decode("utf-8", "replace") for word in words[1:]]
    return None
