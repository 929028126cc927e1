"""The interface of a format, which converts payloads to one Arrow column and back.

The module `format` in each format's package has the same five functions:

    arrow_type(schema, message=…, depth=…)             the column's type for a read of all fields
    decoder(writer, reader, target, message=…, rest=…) a Decoder of payloads of the schema `writer`
    encoder(schema, source, message=…)                 an Encoder for a column of type `source`
    schema_of(source, name)                            the Schema for an Arrow type
    inline_tags(schema)                                the tags of fields in Confluent's properties

`message` is used by Protobuf only: the indexes of the message in its file, as in frames.
`depth`: how many levels of a recursive type become structs; the next level is a string with JSON
text. With None, a recursive schema raises SchemaError. `rest`: see `Decoded`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.protocol.records.varint_columns import Ints
from sparkkafka.schemas.data_contract import DataContract
from sparkkafka.schemas.schema_errors import limit_reasons

FIRST_MESSAGE: Final = (0,)
"""Message indexes of the first message of a Protobuf file."""


@dataclass(frozen=True)
class Schema:
    """A schema's text and the schemas that it refers to. Plain values: it is pickled into tasks.

    `references`: (the name that the text uses, its schema), in the registry's order.
    `contract`: the registry's rules and tags, which do not change how bytes are read.
    """

    format: str
    text: str = field(repr=False)
    references: tuple[tuple[str, Schema], ...] = field(default=(), repr=False)
    contract: DataContract | None = field(default=None, repr=False, compare=False)


BASE_BUDGET: Final = 64 << 20
BUDGET_PER_BYTE: Final = 32
"""The columns of one call may take BASE_BUDGET bytes, and BUDGET_PER_BYTE for each payload byte."""

ROW_BYTES: Final = 256 << 10
COLUMN_BYTES_PER_BYTE: Final = 256
"""The items of one payload may take ROW_BYTES as columns, and COLUMN_BYTES_PER_BYTE for each of its
bytes. Real data takes less: an item of many columns has more than a byte or two."""


class TooManyRowsError(Exception):
    """The columns for the rows of a call would take too much memory; call again with fewer rows."""


class MemoryBudget:
    """The bytes that the columns of one decode call may take, over all of its decoders.

    Columns that take at most BUDGET_PER_BYTE bytes for each payload byte need not be counted.
    `left`: how many are left; a decoder that decodes something again sets it back."""

    def __init__(self, payloads: pa.Array) -> None:
        self.left = BASE_BUDGET + BUDGET_PER_BYTE * payloads.nbytes
        self._has_several = len(payloads) > 1

    def take(self, size: int) -> bool:
        """Take `size` bytes before they are allocated. False if too few are left and the call has
        one row, which is then bad. Raises TooManyRowsError if the call has several rows."""
        self.left -= size
        if self.left >= 0:
            return True
        if self._has_several:
            raise TooManyRowsError
        return False


def bytes_per_value(arrow_type: pa.DataType) -> int:
    """Return the bytes that one value of a type takes in its column and in those below, without the
    bytes of texts and the items of arrays and maps."""
    if pa.types.is_struct(arrow_type):
        return 1 + sum(bytes_per_value(field.type) for field in arrow_type)
    if pa.types.is_null(arrow_type):
        return 0
    try:
        return int(arrow_type.bit_width) // 8 + 1
    except ValueError:  # offsets
        return 5


@dataclass(frozen=True)
class Decoded:
    """Decoded payloads.

    values: one for each payload, of the decoder's type; null where the payload is null or bad.
    bad_rows: the rows, ascending, whose payload does not match the schema. `reasons` has a sentence
    for each, which names the field ("field customer.age: …"). A bad row never affects another.
    rest: JSON text of the properties that match no field, if the caller wants them (JSON only).
    """

    values: pa.Array
    bad_rows: Ints
    reasons: tuple[str, ...]
    rest: pa.Array | None = None

    @classmethod
    def of(
        cls, values: pa.Array, reasons: Mapping[int, str], rest: pa.Array | None = None
    ) -> Decoded:
        """`reasons`: why rows are bad, by row, in any order. They are shortened if they are long or
        many."""
        rows = sorted(reasons)
        shortened = limit_reasons([reasons[row] for row in rows])
        return cls(values, np.array(rows, np.int64), shortened, rest)


class Decoder(Protocol):
    """Converts payloads of one writer's schema, without framing, to values of the reader's type."""

    @property
    def type(self) -> pa.DataType:
        """The type of the values."""

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """Decode binary payloads, which may be null. `budget`: the call's, if these are only a part
        of its payloads. Invalid bytes never raise: they make bad rows. Raises TooManyRowsError if
        several rows need more memory than `budget` has."""
        ...


class Encoder(Protocol):
    """Converts the values of an Arrow column to payloads."""

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """Encode values to binary payloads that begin with `prefix`; null stays null. Raises
        ValueRowError for a value that the schema does not allow."""
        ...


def with_prefix(prefix: bytes, payloads: pa.Array) -> pa.Array:
    """Put `prefix` before each payload; null stays null."""
    if not prefix or payloads.null_count == len(payloads):
        return payloads
    return pc.binary_join_element_wise(
        binary_array([prefix])[0], payloads, binary_array([b""])[0], null_handling="emit_null"
    )


class ValueRowError(ValueError):
    """A value that cannot be encoded. `row` is its index in the array; `reason` names the field."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


_TYPE_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.duration("us"): "interval day to second",
    pa.null(): "void",
}


def type_name(arrow_type: pa.DataType) -> str:
    """Return the type's name in Spark, for messages: users write "bigint", not "int64"."""
    if pa.types.is_decimal(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None:
        return "timestamp"
    if pa.types.is_map(arrow_type):
        return f"map<{type_name(arrow_type.key_type)},{type_name(arrow_type.item_type)}>"
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return f"array<{type_name(arrow_type.value_type)}>"
    if pa.types.is_struct(arrow_type):
        fields = ",".join(f"{field.name}:{type_name(field.type)}" for field in arrow_type)
        return f"struct<{fields}>"
    return _TYPE_NAMES.get(arrow_type, str(arrow_type))
