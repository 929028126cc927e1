"""SPARKKAFKA_DEBUG: log levels of the package from the environment, the short way.

    SPARKKAFKA_DEBUG="client:debug,protocol:info"     parts of the package (or single modules,
                                                      as client.sender.sender), each with a level
    SPARKKAFKA_DEBUG=debug                            the whole package

Read once, when the package is imported: on the driver, and in each worker that Spark starts, if the
variable is set there (`spark.executorEnv.SPARKKAFKA_DEBUG`). What is logged goes to stderr, unless
the program has handlers of its own. Without the variable nothing is touched: each module logs to
the logger of its name (`sparkkafka.client.sender.sender`), requests and answers by name and size to
`sparkkafka.protocol`, and errors, never their contents.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Mapping

VARIABLE = "SPARKKAFKA_DEBUG"
ROOT = "sparkkafka"
LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def parse_levels(text: str) -> dict[str, int]:
    """Logger name -> level. Raises ValueError, which names the piece that cannot be read."""
    levels: dict[str, int] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, colon, word = piece.rpartition(":")
        name, word = name.strip(), word.strip().lower()
        if word not in LEVELS or (colon and not name):
            raise ValueError(
                f"{VARIABLE}: {piece!r} is not PART:LEVEL or LEVEL, with a LEVEL of "
                f"{', '.join(LEVELS)}; for example client:debug,protocol:info"
            )
        if name and name != ROOT and not name.startswith(f"{ROOT}."):
            name = f"{ROOT}.{name}"
        if name and not _is_module(name):
            raise ValueError(
                f"{VARIABLE}: {piece!r} names no part of the package; parts are client, protocol, "
                "spark, config, and what is in these, as client.sender"
            )
        levels[name or ROOT] = LEVELS[word]
    return levels


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of a module in something that is no package
        return False


def apply_levels(text: str | None) -> None:
    """Set the levels that the variable's text asks for. Text that cannot be read is warned of, and
    changes nothing: a program must not fail over how much it logs."""
    if not text:
        return
    logger = logging.getLogger(ROOT)
    try:
        levels = parse_levels(text)
    except ValueError as error:
        logger.warning("%s", error)
        return
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr while the program has no handlers of its own."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s")
        )

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)
