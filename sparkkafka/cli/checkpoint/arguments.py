"""What the commands of `checkpoint` have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkkafka.errors import OptionError

Dir = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="The checkpointLocation: a path, or s3://, gs://, abfss://, hdfs://."
    ),
]
Ask = Annotated[bool, typer.Option("--kafka", help="Ask the brokers, too.")]
Prefix = Annotated[
    str | None,
    typer.Option("--prefix", help="The query's transactionalIdPrefix, if it has one of its own."),
]


def check_prefix(prefix: str | None, *, asks: bool) -> None:
    """Raises OptionError for one that has no effect."""
    if prefix is not None and not asks:
        raise OptionError("--prefix is of what Kafka is asked: give --kafka too")
