"""What a format is: payloads of keys or values <-> one typed Arrow column.

Each format's package has the same five functions:

    arrow_type(schema, message=…, depth=…)         the column's type, for a read of all fields
    decoder(writer, reader, wanted, message=…)     -> Decoder
    encoder(schema, given, message=…)              -> Encoder
    schema_of(given, name)                         -> Schema: that of an Arrow type
    inline_tags(schema)                            -> tags of fields in Confluent's properties

`message` counts for Protobuf alone: which message of the file, as Confluent's framing has it.
`depth`: how often what contains itself is there as a struct, one in another; the next one is a
string with its JSON text. None: a schema that contains itself is a SchemaError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.schemas.data_contract import DataContract

FIRST_MESSAGE: Final = (0,)
"""Message indexes of the first message of a Protobuf file."""


@dataclass(frozen=True)
class Schema:
    """A schema's text with all that it refers to. Plain values: it is pickled into tasks.

    `references`: (name as the text imports or uses it, its schema), in the registry's order.
    `contract`: the registry's rules and tags; what they are changes nothing of how bytes are read.
    """

    format: str
    text: str = field(repr=False)
    references: tuple[tuple[str, Schema], ...] = field(default=(), repr=False)
    contract: DataContract | None = field(default=None, repr=False, compare=False)


MAX_AT_ONCE: Final = 64 << 20
IN_PROPORTION: Final = 32
"""What the columns of one call may take: so much, and so much for each byte of its payloads."""


class TooManyRowsError(Exception):
    """The columns of all rows of a call would take too much memory; the caller gives fewer."""


class Room:
    """Bytes that the columns of one call may take, whatever its decoders and their payloads.

    What takes at most IN_PROPORTION for each byte that it was made of need not be counted."""

    def __init__(self, payloads: pa.Array) -> None:
        self._left = MAX_AT_ONCE + IN_PROPORTION * payloads.nbytes
        self._has_several = len(payloads) > 1

    def take(self, size: int) -> bool:
        """Takes so much, before it is made. False if there is too little, and the one row is bad.
        Raises TooManyRowsError for several rows."""
        self._left -= size
        if self._left >= 0:
            return True
        if self._has_several:
            raise TooManyRowsError
        return False


@dataclass(frozen=True)
class Decoded:
    """What a decoder made of payloads.

    values: one for each payload, of the decoder's type; null where the payload is null or bad.
    bad_rows: rows, ascending, whose payload is not what the schema says; `reasons` has a sentence
    for each, which names the field ("field customer.age: …"). A bad row never affects another.
    rest: with JSON and if asked for, what no field took, as JSON text; else None.
    """

    values: pa.Array
    bad_rows: NDArray[np.int64]
    reasons: tuple[str, ...]
    rest: pa.Array | None = None


class Decoder(Protocol):
    """Payloads without framing, of one writer's schema, -> values of the reader's type."""

    @property
    def type(self) -> pa.DataType: ...

    def decode(self, payloads: pa.Array, room: Room | None = None) -> Decoded:
        """`payloads`: binary, may have nulls; `room`: of the call, if these are not all of its
        payloads. Raises nothing for bytes that are wrong: those are bad rows. Raises
        TooManyRowsError for several rows that take more than `room` has."""
        ...


class Encoder(Protocol):
    """Values of an Arrow column -> payloads."""

    def encode(self, values: pa.Array, front: bytes = b"") -> pa.Array:
        """Binary, each behind the same bytes in `front`; null where the value is null. Raises
        ValueRowError for a value that the schema cannot have."""
        ...


def behind(front: bytes, payloads: pa.Array) -> pa.Array:
    """Each payload behind `front`; null stays null."""
    if not front or payloads.null_count == len(payloads):
        return payloads
    return pc.binary_join_element_wise(
        binary_array([front])[0], payloads, binary_array([b""])[0], null_handling="emit_null"
    )


class ValueRowError(ValueError):
    """A value that cannot be encoded: its row in the given array, and a sentence with the field."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


_WORDS = {
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


def type_words(kind: pa.DataType) -> str:
    """The type's name in Spark, for messages: users have said "bigint", not "int64"."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    if pa.types.is_map(kind):
        return f"map<{type_words(kind.key_type)},{type_words(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{type_words(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = ",".join(f"{one.name}:{type_words(one.type)}" for one in kind)
        return f"struct<{fields}>"
    return _WORDS.get(kind, str(kind))
