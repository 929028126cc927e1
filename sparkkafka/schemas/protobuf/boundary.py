"""Schemas come from outside: whatever one of them breaks in here is a SchemaError.

A descriptor in Base64 need not be one that protoc would make, and protobuf's runtime says so late
and in many ways: text that is no UTF-8, a map without a key, options of another type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa

from sparkkafka.errors import KafkaError, SchemaError

Given = ParamSpec("Given")
Made = TypeVar("Made")

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

_MOST_WORDS = 2000


def _of_runtime() -> tuple[type[Exception], ...]:
    """The errors of protobuf's runtime, which are none of those above."""
    module = sys.modules.get("google.protobuf.message")
    return () if module is None else (module.Error,)


def of_schema(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function that uses a schema: it raises the package's own errors alone."""

    @wraps(function)
    def guarded(*given: Given.args, **named: Given.kwargs) -> Made:
        try:
            return function(*given, **named)
        except KafkaError as error:
            if isinstance(error, SchemaError) and len(str(error)) > _MOST_WORDS:
                # Each bad row has a copy of it.
                raise SchemaError(f"{str(error)[:_MOST_WORDS]}…") from error
            raise
        except (*BROKEN, *_of_runtime()) as error:
            words = f"{type(error).__name__}: {str(error)[:500]}"
            words = words.encode("utf-8", "backslashreplace").decode()
            raise SchemaError(f"the schema cannot be used: it is damaged ({words})") from error

    return guarded
