"""Samples of JSON texts -> the type that reads them, as Spark's `schema_of_json` would say it.

Whole numbers are long, others double, conflicts are string (which takes any value's text). Fields
stand in the order in which they were first seen. No string is taken for a date or a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.json.texts import BrokenTextError, Number, parse

MAX_FIELDS: Final = 1_000
"""An object with more names than that has them as data: it becomes a map."""
MAX_LEVELS: Final = 32
"""What is nested deeper stays JSON text."""


@dataclass
class _Seen:
    """What was seen at a place, over all samples."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, _Seen] = field(default_factory=dict)
    item: _Seen | None = None
    digits: int = 0

    def add(self, value: Any, level: int) -> None:
        if value is None:
            return
        kind = type(value)
        if level > MAX_LEVELS:
            self.kinds.add("text")
        elif kind is dict:
            self.kinds.add("object")
            for name, each in value.items():
                if name not in self.fields and len(self.fields) > MAX_FIELDS:
                    name = next(iter(self.fields))  # a map: any field will do
                self.fields.setdefault(name, _Seen()).add(each, level + 1)
        elif kind is list:
            self.kinds.add("array")
            self.item = self.item or _Seen()
            for each in value:
                self.item.add(each, level + 1)
        elif kind is bool:
            self.kinds.add("boolean")
        elif (kind is int and -(2**63) <= value < 2**63) or (kind is Number and value == "-0"):
            self.kinds.add("long")
        elif kind is str or math.isinf(float(str(value))):
            self.kinds.add("text")
        elif kind is int:
            self.kinds.add("big")
            self.digits = max(self.digits, len(str(abs(value))))
        else:
            self.kinds.add("double")

    def type(self) -> pa.DataType:
        kinds = self.kinds
        if kinds == {"object"} and self.fields:
            if len(self.fields) > MAX_FIELDS:
                merged = _Seen()
                for each in self.fields.values():
                    merged.merge(each)
                return pa.map_(pa.string(), merged.type())
            return pa.struct([(name, each.type()) for name, each in self.fields.items()])
        if kinds == {"array"}:
            return pa.list_(self.item.type() if self.item else pa.string())
        if kinds == {"boolean"}:
            return pa.bool_()
        if kinds and kinds <= {"long", "big", "double"}:
            if kinds == {"long"}:
                return pa.int64()
            if "double" in kinds or self.digits > 38:
                return pa.float64()
            return pa.decimal128(38, 0)
        return pa.string()

    def merge(self, other: _Seen) -> None:
        self.kinds |= other.kinds
        self.digits = max(self.digits, other.digits)
        for name, each in other.fields.items():
            self.fields.setdefault(name, _Seen()).merge(each)
        if other.item:
            self.item = self.item or _Seen()
            self.item.merge(other.item)


def infer(samples: list[bytes]) -> pa.DataType:
    """The type of samples. Those that are not JSON, or are null, are passed over. Raises
    SchemaError if nothing is left, or if they have no more than null."""
    seen = _Seen()
    last = ""
    for sample in samples:
        try:
            seen.add(parse(sample), 0)
        except BrokenTextError as error:
            last = f"; the last one {error}"
    if not seen.kinds:
        raise SchemaError(
            f"no type can be inferred: of {len(samples)} samples none is JSON with a value{last}"
        )
    return seen.type()
