"""Limits on schemas and reasons that come from outside; their failures become our errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa

from sparkkafka.config.kinds import DEPTH_OPTION
from sparkkafka.errors import KafkaError, OptionError, SchemaError

Given = ParamSpec("Given")
Made = TypeVar("Made")

MAX_PATH: Final = 300
"""Characters of a field's path in messages: names, depth and columns multiply them."""
MAX_REASON: Final = 1000
MAX_REASONS: Final = 8 << 20
"""Characters of all reasons that one call gives."""

MAX_FIELDS: Final = 20_000
"""Of a column's type, at all levels."""
MAX_LEVELS: Final = 60
"""Of a column's type, a map being two: Arrow's IPC, by which Spark gets columns, has 64."""

RECURSION_HINT: Final = (
    f"Set {DEPTH_OPTION} to the levels to be read (what is deeper becomes JSON text), or in "
    ".schema(…) (type= of a function) name the fields down to some level, or the recurring field "
    "as string (its JSON text) or binary"
)

MAX_STEPS: Final = 500_000
"""Of the work that a schema may ask for: a writer's types times a reader's have no other bound."""

_LEFT: ContextVar[list[int] | None] = ContextVar("steps left", default=None)

MAX_DEFAULTS: Final = 16 << 10
"""Bytes of the default texts of one record: each row that lacks the fields gets them."""

ROW_BYTES: Final = 256 << 10
BYTES_PER_BYTE: Final = 256
"""What the items of one payload may take as columns: so much, and so much for each of its bytes.
Data that means something takes less: an item of many columns has more than a byte or two."""


def cut(text: str, most: int = MAX_REASON) -> str:
    """The text with its middle left out if it is longer; always text that UTF-8 can have."""
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


@contextmanager
def schema_errors(what: str) -> Iterator[None]:
    """Around all that is made of a schema from outside: it raises SchemaError or OptionError, and
    their messages are short. `spend` bounds the work inside."""
    token = _LEFT.set([MAX_STEPS])
    try:
        yield
    except (SchemaError, OptionError) as error:
        raise type(error)(cut(str(error))) from None
    except KafkaError:
        raise
    except RecursionError:
        raise SchemaError(f"the {what} is nested too deep") from None
    except UnicodeEncodeError as error:
        raise SchemaError(f"the {what} has a name that is not valid text: {error.reason}") from None
    except Exception as error:
        words = cut(f"{type(error).__name__}: {error}")
        raise SchemaError(f"the {what} cannot be used: {words}") from error
    finally:
        _LEFT.reset(token)


def spend(steps: int = 1) -> None:
    """Takes steps off what `schema_errors` allows. Raises SchemaError if they are too many."""
    left = _LEFT.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise SchemaError("the schema takes too many steps to be read: it is too large")


def limit_reasons(reasons: list[str]) -> tuple[str, ...]:
    """Reasons cut, and the last ones replaced if all together are too long."""
    left = MAX_REASONS
    kept: list[str] = []
    last = ""
    for reason in reasons:
        if left > 0 and (not kept or reason is not last):
            last = reason
            kept.append(cut(reason))
            left -= len(kept[-1])
        else:
            kept.append(kept[-1] if reason is last else "the value is not what its schema says")
    return tuple(kept)


def check_levels(kind: pa.DataType, depth: int) -> pa.DataType:
    """The type, if columns of it can be handed over. Raises SchemaError."""
    if type_levels(kind) > MAX_LEVELS:
        raise too_deep_error(depth, f"nests in more than {MAX_LEVELS} levels")
    return kind


def too_deep_error(depth: int, reason: str) -> SchemaError:
    """`reason`: what is wrong with the type that a schema has at this depth."""
    return SchemaError(
        f"with {DEPTH_OPTION}={depth} the column's type {reason}. Set a lower depth, or name the "
        "fields to be read in .schema(…) (type= of a function)"
    )


def type_levels(kind: pa.DataType) -> int:
    """How deep a type nests; a map is two levels."""
    if pa.types.is_struct(kind):
        return 1 + max((type_levels(field.type) for field in kind), default=0)
    if pa.types.is_list(kind):
        return 1 + type_levels(kind.value_type)
    if pa.types.is_map(kind):
        return 2 + type_levels(kind.item_type)
    return 1


def slot_bytes(kind: pa.DataType) -> int:
    """What one value of a type takes in its column and those below, without texts and items."""
    if pa.types.is_struct(kind):
        return 1 + sum(slot_bytes(field.type) for field in kind)
    if pa.types.is_null(kind):
        return 0
    try:
        return int(kind.bit_width) // 8 + 1
    except ValueError:  # offsets
        return 5


# --- Protobuf ---

BROKEN: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    pa.ArrowException,
)
"""What becomes a SchemaError. Tests empty it, except where a schema is broken on purpose: what is
wrong in here is not to hide behind it."""

_MAX_WORDS = 2000


def _of_runtime() -> tuple[type[Exception], ...]:
    """The errors of protobuf's runtime, which are none of those above."""
    module = sys.modules.get("google.protobuf.message")
    return () if module is None else (module.Error,)


def of_schema(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function that uses a Protobuf schema: it raises the package's own errors alone.

    A descriptor in Base64 need not be one that protoc would make, and protobuf's runtime says so
    late and in many ways: text that is no UTF-8, a map without a key, options of another type."""

    @wraps(function)
    def guarded(*given: Given.args, **named: Given.kwargs) -> Made:
        try:
            return function(*given, **named)
        except KafkaError as error:
            if isinstance(error, SchemaError) and len(str(error)) > _MAX_WORDS:
                # Each bad row has a copy of it.
                raise SchemaError(f"{str(error)[:_MAX_WORDS]}…") from error
            raise
        except (*BROKEN, *_of_runtime()) as error:
            words = f"{type(error).__name__}: {str(error)[:500]}"
            words = words.encode("utf-8", "backslashreplace").decode()
            raise SchemaError(f"the schema cannot be used: it is damaged ({words})") from error

    return guarded
