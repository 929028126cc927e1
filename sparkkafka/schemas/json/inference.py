"""Infers the type of sample texts, by the rules of Spark's `schema_of_json`.

Whole numbers are long, others double, and conflicts are string (which takes any value's text).
Fields keep the order in which they were first seen. Strings are never dates or times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.json.syntax import JsonSyntaxError, Number, parse

MAX_FIELDS: Final = 1_000
"""An object with more fields is a map: its names are data."""
MAX_LEVELS: Final = 32
"""Deeper values stay JSON text."""


@dataclass
class _FieldTypes:
    """The types that a field has in the samples. `kinds`: "object", "array", "boolean", "text", and
    for numbers "long", "big" (integers of more than 64 bits) and "double". `fields` are those of
    its objects, `item` that of its arrays; its longest "big" integer has `digits` digits."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, _FieldTypes] = field(default_factory=dict)
    item: _FieldTypes | None = None
    digits: int = 0

    def add(self, value: Any, level: int) -> None:
        """Add a sample's value. `level`: how many objects and arrays are around it."""
        if value is None:
            return
        python_type = type(value)
        if level > MAX_LEVELS:
            self.kinds.add("text")
        elif python_type is dict:
            self.kinds.add("object")
            for name, item in value.items():
                if name not in self.fields and len(self.fields) > MAX_FIELDS:
                    name = next(iter(self.fields))  # a map: any field will do
                self.fields.setdefault(name, _FieldTypes()).add(item, level + 1)
        elif python_type is list:
            self.kinds.add("array")
            self.item = self.item or _FieldTypes()
            for item in value:
                self.item.add(item, level + 1)
        elif python_type is bool:
            self.kinds.add("boolean")
        elif (python_type is int and -(2**63) <= value < 2**63) or (
            python_type is Number and value == "-0"
        ):
            self.kinds.add("long")
        elif python_type is str or math.isinf(float(str(value))):
            self.kinds.add("text")
        elif python_type is int:
            self.kinds.add("big")
            self.digits = max(self.digits, len(str(abs(value))))
        else:
            self.kinds.add("double")

    def type(self) -> pa.DataType:
        """Return the type that all values of the field have."""
        kinds = self.kinds
        if kinds == {"object"} and self.fields:
            if len(self.fields) > MAX_FIELDS:
                merged = _FieldTypes()
                for types in self.fields.values():
                    merged.merge(types)
                return pa.map_(pa.string(), merged.type())
            return pa.struct([(name, types.type()) for name, types in self.fields.items()])
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

    def merge(self, other: _FieldTypes) -> None:
        """Add the types of another field, which becomes a value of the same map."""
        self.kinds |= other.kinds
        self.digits = max(self.digits, other.digits)
        for name, types in other.fields.items():
            self.fields.setdefault(name, _FieldTypes()).merge(types)
        if other.item:
            self.item = self.item or _FieldTypes()
            self.item.merge(other.item)


def infer(samples: list[bytes]) -> pa.DataType:
    """Return the type of samples, without those that are null or not JSON. Raises SchemaError if no
    other samples are left."""
    types = _FieldTypes()
    hint = ""
    for sample in samples:
        try:
            types.add(parse(sample), 0)
        except JsonSyntaxError as error:
            hint = f"; one of them {error.reason}"
    if not types.kinds:
        raise SchemaError(
            f"no type can be inferred: of {len(samples)} samples none is JSON with a value{hint}"
        )
    return types.type()
