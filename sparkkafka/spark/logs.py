"""Logging in the processes that Spark starts for planning and for tasks.

They run none of the user's code, so nobody configures logging there, and Python would print bare
warnings that do not say who is speaking. The environment variable SPARKKAFKA_LOGGING may name a
file for `logging.config.fileConfig` (conf/logging.ini is one); Spark hands it on to local workers,
and to those of a cluster as `spark.executorEnv.SPARKKAFKA_LOGGING`.
"""

from __future__ import annotations

import logging
import logging.config
import os

from sparkkafka.config.security.references import this_is
from sparkkafka.errors import OptionError

VARIABLE = "SPARKKAFKA_LOGGING"


DRIVER = "Spark's driver"
EXECUTOR = "a Spark executor"


def set_up_logging(role: str = DRIVER) -> None:
    """Give the package's loggers a handler if nobody has. Raises OptionError for a bad file.

    `role` is what this process is, for messages about what it lacks.
    """
    this_is(role)
    logger = logging.getLogger("sparkkafka")
    if logger.handlers or logging.getLogger().handlers:
        return
    path = os.environ.get(VARIABLE)
    if path:
        try:
            logging.config.fileConfig(path, disable_existing_loggers=False)
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"{VARIABLE}={path} is not a logging configuration: {error}"
            ) from error
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    )
    logger.addHandler(handler)
