"""SPARKKAFKA_LOGGING: what the package logs, from the environment.

    SPARKKAFKA_LOGGING="client:debug,protocol:info"   parts of the package (or single modules,
                                                      as client.producer.sender), each with a level
    SPARKKAFKA_LOGGING=debug                          the whole package; SPARKKAFKA_DEBUG=1 is short
                                                      for it, if the other is not set
    SPARKKAFKA_LOGGING=conf/logging.ini               a file for `logging.config.fileConfig`: text
                                                      with a slash, or that ends in .ini

Spark passes the variable on to local workers, and to those of a cluster as
`spark.executorEnv.SPARKKAFKA_LOGGING`. Levels are set when the package is imported, in any process;
the log then goes to stderr, unless the program has handlers of its own. A file is read only in the
processes that Spark starts for planning and for tasks, where no user code can configure logging.
Without the variable these processes print warnings with the logger's name, and nothing changes in
others.

Each module logs to the logger of its name (`sparkkafka.client.producer.sender`), requests and
responses by name and size to `sparkkafka.protocol`; errors are logged, contents of records never.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Mapping

from sparkkafka.errors import OptionError

EXECUTOR = "a Spark executor"
"""The role of a process, for messages."""

VARIABLE = "SPARKKAFKA_LOGGING"
ROOT = "sparkkafka"
LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}

_role = "this process"


def parse_levels(text: str) -> dict[str, int]:
    """Return the levels that the text gives, by logger name. Raises ValueError, which names the
    item that cannot be parsed."""
    levels: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, level = item.rpartition(":")
        name, level = name.strip(), level.strip().lower()
        if level not in LEVELS or (colon and not name):
            raise ValueError(
                f"{VARIABLE}: {item!r} is not PART:LEVEL or LEVEL, with a LEVEL of "
                f"{', '.join(LEVELS)}, nor a path: for example client:debug,protocol:info"
            )
        if name and name != ROOT and not name.startswith(f"{ROOT}."):
            name = f"{ROOT}.{name}"
        if name and not _is_module(name):
            raise ValueError(
                f"{VARIABLE}: {item!r} names no part of the package; parts are client, protocol, "
                "spark, config, and what is in these, as client.producer"
            )
        levels[name or ROOT] = LEVELS[level]
    return levels


def _is_module(name: str) -> bool:
    """Return whether this is the name of a package or module."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # its parent is a module
        return False


def apply_levels() -> None:
    """Set the levels of the variable. A text that cannot be parsed is only a warning: a program
    must not fail because of its logging."""
    text = _setting()
    if not text or _is_path(text):
        return
    try:
        levels = parse_levels(text)
    except ValueError as error:
        logging.getLogger(ROOT).warning("%s", error)
        return
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _add_handler("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s")


def set_up_logging(role: str = "Spark's driver") -> None:
    """Configure logging in a process that Spark has started, before anything else.

    `role` names the process in messages. Reads the variable's file, or else adds a handler to the
    package's logger if there is none. Raises OptionError for a bad file.
    """
    global _role
    _role = role
    if logging.getLogger(ROOT).handlers or logging.getLogger().handlers:
        return
    text = _setting()
    if not _is_path(text):
        _add_handler("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        return
    from logging.config import fileConfig  # many modules, for few processes

    try:
        fileConfig(text, disable_existing_loggers=False)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise OptionError(f"{VARIABLE}={text} is not a logging configuration: {error}") from error


def process_role() -> str:
    """Return the role that `set_up_logging` was called with, "this process" before: for messages
    about what the process lacks."""
    return _role


def _setting() -> str:
    """Return SPARKKAFKA_LOGGING; if it is not set, "debug" if SPARKKAFKA_DEBUG is, else ""."""
    debug = os.environ.get("SPARKKAFKA_DEBUG", "").strip().lower()
    is_debug = debug not in ("", "0", "false", "no", "off")
    return os.environ.get(VARIABLE, "") or ("debug" if is_debug else "")


def _is_path(text: str) -> bool:
    """Return whether the variable names a configuration file, not levels."""
    return os.sep in text or text.endswith(".ini")


def _add_handler(line_format: str, time_format: str | None = None) -> None:
    """Add a handler that writes to stderr to the package's logger, unless it has one."""
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        handler = _Stderr()
        handler.setFormatter(logging.Formatter(line_format, time_format))
        logger.addHandler(handler)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr while the program has no handlers of its own."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)
