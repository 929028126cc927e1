"""Errors about schemas: their texts, and the limits of what a schema may demand."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import pyarrow as pa

from sparkkafka.config.kinds import DEPTH_OPTION
from sparkkafka.errors import KafkaError, OptionError, SchemaError, some, spark_hint

MAX_REASON: Final = 1000
MAX_REASONS: Final = 8 << 20
"""The most characters of all reasons that one call returns."""

MAX_OWN_REASONS: Final = 64
"""How many bad rows that are decoded together get a reason with their own figures, each of which
takes as long as decoding ten rows. The others get a common reason."""

MAX_FIELDS: Final = 20_000
"""The most fields of a column's type, at all levels."""
MAX_LEVELS: Final = 60
"""The most levels of a column's type, a map being two. Arrow's IPC, which Spark uses, has 64."""

RECURSION_HINT: Final = (
    f"Set {DEPTH_OPTION} to the levels to be read (what is deeper becomes JSON text)"
    + spark_hint(
        ", or in .schema(…) (type= of a function) name the fields down to some level, or the "
        "recurring field as string (its JSON text) or binary"
    )
)

MAX_STEPS: Final = 500_000
"""The most work for one schema: a writer's types times a reader's types have no other limit."""

_STEPS_LEFT: ContextVar[list[int] | None] = ContextVar("steps left", default=None)

DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    pa.ArrowException,
)
"""What our code raises for a damaged schema that no check finds; `schema_errors` makes SchemaError
of them. Tests empty it, so that an error of our own is not taken for a damaged schema."""

MAX_DEFAULTS: Final = 16 << 10
"""The most bytes of the default texts of one record: each row that lacks the fields gets them."""

OTHER_REASON: Final = "the value is not what its schema says"
"""Why a row is bad if too many are to say more."""


def cut(text: str, max_length: int = MAX_REASON) -> str:
    """Leave out the middle of a longer text, and escape what UTF-8 cannot encode."""
    if len(text) > max_length:
        text = f"{text[: max_length // 2]}…{text[-(max_length // 2 - 1) :]}"
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


@contextmanager
def schema_errors(what: str) -> Iterator[None]:
    """Use around all work on a schema, or as a decorator: its errors become SchemaError or
    OptionError with a short message, and `count_steps` limits the work. `what`: "Avro schema".

    Parsers find most damage late: text that is not UTF-8, a map without a key, options of another
    type. They raise whatever Python, Arrow or protobuf's runtime raises there.
    """
    token = _STEPS_LEFT.set([MAX_STEPS])
    try:
        yield
    except (SchemaError, OptionError) as error:
        raise type(error)(cut(str(error))) from None
    except KafkaError:
        raise
    except (*DAMAGE_ERRORS, *_protobuf_errors()) as error:
        if isinstance(error, RecursionError):
            reason = "is nested too deep"
        elif isinstance(error, UnicodeEncodeError):
            reason = f"has a name that is not valid text: {cut(error.reason)}"
        else:
            reason = f"cannot be used: {cut(f'{type(error).__name__}: {error}')}"
        raise SchemaError(f"the {what} {reason}") from error
    finally:
        _STEPS_LEFT.reset(token)


def _protobuf_errors() -> tuple[type[Exception], ...]:
    """Return the errors of protobuf's runtime, if it is loaded: they have no base class in common
    with Python's."""
    module = sys.modules.get("google.protobuf.message")
    return () if module is None else (module.Error,)


def count_steps(steps: int = 1) -> None:
    """Count steps of work, each of about the time that compiling one type takes; what takes less,
    as comparing names, is counted by the share. Raises SchemaError once they are more than
    `schema_errors` allows."""
    remaining = _STEPS_LEFT.get()
    if remaining is not None:
        remaining[0] -= steps
        if remaining[0] < 0:
            raise SchemaError("the schema takes too many steps to be read: it is too large")


def limit_reasons(reasons: list[str]) -> tuple[str, ...]:
    """Return the reasons, each of them cut; if all together are too long, a short text replaces the
    last ones. The same string (object) several times in a row takes memory once, and is counted
    once."""
    different = set(reasons)
    longest = max(map(len, different), default=0)
    is_little = longest <= MAX_REASON and longest * len(reasons) <= MAX_REASONS
    if is_little and all(map(str.isascii, different)):
        return tuple(reasons)
    remaining = MAX_REASONS
    kept: list[str] = []
    last = ""
    for reason in reasons:
        if remaining > 0 and (not kept or reason is not last):
            last = reason
            kept.append(cut(reason))
            remaining -= len(kept[-1])
        else:
            kept.append(kept[-1] if reason is last else OTHER_REASON)
    return tuple(kept)


def check_levels(arrow_type: pa.DataType, depth: int | None) -> pa.DataType:
    """Return this type of a schema's column. Raises SchemaError if Spark cannot take such a column,
    because `depth` levels of a recursive part are too many. Without a depth any type is allowed."""
    if depth is not None and type_levels(arrow_type) > MAX_LEVELS:
        raise too_deep_error(depth, f"nests in more than {MAX_LEVELS} levels")
    return arrow_type


def too_deep_error(depth: int, reason: str) -> SchemaError:
    """Return the error for a depth at which a recursive schema's type is too large. `reason` says
    what is wrong with the type."""
    return SchemaError(
        f"with {DEPTH_OPTION}={depth} the column's type {reason}. Set a lower depth, or name the "
        "fields to be read in .schema(…) (type= of a function)"
    )


def type_levels(arrow_type: pa.DataType) -> int:
    """Return how many levels a type has; a map has two."""
    if pa.types.is_struct(arrow_type):
        return 1 + max((type_levels(field.type) for field in arrow_type), default=0)
    if pa.types.is_list(arrow_type):
        return 1 + type_levels(arrow_type.value_type)
    if pa.types.is_map(arrow_type):
        return 2 + type_levels(arrow_type.item_type)
    return 1


# --- names of fields ------------------------------------------------------------------------------

MAX_PATH: Final = 300
"""The most characters of a field's path in messages: names and depth multiply its length."""
MAX_KEY: Final = 40
"""The most characters of a key in a path, since keys are data."""


def label(path: str) -> str:
    """Return what messages call a field: "field customer.age", or "the value" for the outermost
    type."""
    return f"field {path}" if path else "the value"


def child_path(path: str, name: str) -> str:
    """Return the path of a field below `path`, cut to MAX_PATH."""
    return cut(f"{path}.{name}" if path else name, MAX_PATH)


def check_distinct(struct: pa.StructType, path: str) -> None:
    """Raises OptionError if a struct has two fields of one name."""
    for name, count in Counter(field.name for field in struct).items():
        if count > 1:
            raise OptionError(f"{label(child_path(path, name))} appears twice in the column")


def names_hint(name: str, known: Collection[str]) -> str:
    """Return what a message about an unknown name adds: "did you mean price? It has id, price"."""
    near = difflib.get_close_matches(name[:100], known, n=3)
    near = near or [other for other in known if other.lower() == name.lower()]
    names = some((cut(other, 200) for other in known), 20) or "none"
    return f"did you mean {' or '.join(near)}? It has {names}" if near else f"it has {names}"
