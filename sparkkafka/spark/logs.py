"""What each process that Spark starts for planning and for tasks does first."""

from __future__ import annotations

from sparkkafka import logs
from sparkkafka.process import set_role

DRIVER = "Spark's driver"
EXECUTOR = "a Spark executor"


def set_up_logging(role: str = DRIVER) -> None:
    """Say what this process is, and set up logging (`sparkkafka.logs`). Raises OptionError."""
    set_role(role)
    logs.set_up()
