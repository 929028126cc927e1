"""Columns of a DataFrame that is written: which there are, and whether their types fit.

Rules and messages are those of Spark's KafkaWriter. Neither Arrow nor numpy is needed here: the
processes that plan and commit a write are new each time, and start much faster without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from sparkkafka.client.sender.row_columns import RowColumns
from sparkkafka.config.check import warn
from sparkkafka.errors import OptionError


def input_columns(schema: StructType, topic: str | None) -> RowColumns:
    """Finds and checks the columns; names count in their exact case, other columns are ignored.

    The column timestamp is our own: the JVM connector ignores it, whatever its type, so one that is
    no timestamp is ignored here too, with a warning.

    Raises OptionError in the words of the JVM connector's AnalysisException.
    """
    positions: dict[str, int] = {}
    for position, column in enumerate(schema.fields):
        positions.setdefault(column.name, position)

    def find(name: str, fits: Callable[[DataType], bool], wanted: str) -> int | None:
        position = positions.get(name)
        if position is not None and not fits(schema.fields[position].dataType):
            raise OptionError(
                f"{name} attribute unsupported type "
                f"{schema.fields[position].dataType.simpleString()}. {name} must be a(n) {wanted}"
                f"{_HELP.get(name, '')}"
            )
        return position

    # With the option set, the column is not looked at, whatever its type.
    topic_at = find("topic", _is_text, "string") if topic is None else None
    if topic is None and topic_at is None:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. "
            f"Use the topic option for setting a topic.{_near(positions, 'topic')}"
        )
    value_at = find("value", _is_bytes, "string or binary")
    if value_at is None:
        raise OptionError(f"Required attribute 'value' not found{_near(positions, 'value')}")
    timestamp_at = positions.get("timestamp")
    if timestamp_at is not None:
        kind = schema.fields[timestamp_at].dataType
        if not isinstance(kind, TimestampType):
            timestamp_at = None
            warn(
                "column timestamp",
                f"the column timestamp is not written: its type is {kind.simpleString()}, not "
                "timestamp; records get the time of writing (cast it, or drop it)",
            )
    return RowColumns(
        value=value_at,
        key=find("key", _is_bytes, "string or binary"),
        headers=find("headers", _is_headers, "array<struct<key:string,value:binary>>"),
        topic=topic_at,
        partition=find("partition", lambda kind: isinstance(kind, IntegerType), "int"),
        timestamp=timestamp_at,
        fixed_topic=topic,
    )


_HELP = {
    "value": ": cast it, or put several columns in one with to_json(struct(*))",
    "key": ": cast it",
    "topic": ": cast it",
    "partition": ": cast it",
}


def _near(positions: Mapping[str, int], name: str) -> str:
    """A column that differs in case only is the likely mistake: names count as written."""
    other = next((known for known in positions if known.lower() == name), None)
    return f" (the column {other!r} must be written {name!r})" if other else ""


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and _is_text(fields[0].dataType)
        and isinstance(fields[1].dataType, BinaryType)
    )
