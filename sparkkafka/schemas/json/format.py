"""JSON's five functions (see `schemas/values.py`), `exact_decoder`, `text_encoder`
and `infer`. Needs no library but pyarrow.

Not checked is what a JSON Schema demands beyond types: minimum, pattern, enum, required. No
deserialiser of Confluent's does by default either. A field that is absent is null.
"""

from __future__ import annotations

import pyarrow as pa

from sparkkafka.config.kinds import JSON
from sparkkafka.errors import OptionError
from sparkkafka.schemas.bounds import check_levels, schema_errors, too_deep_error
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.json.decode import JsonDecoder
from sparkkafka.schemas.json.describe import schema_text
from sparkkafka.schemas.json.document import TooLargeSchemaError, place_of
from sparkkafka.schemas.json.encode import JsonEncoder, form_of, with_nulls
from sparkkafka.schemas.json.inference import infer
from sparkkafka.schemas.json.tags import inline_tags
from sparkkafka.schemas.values import (
    FIRST_MESSAGE,
    Decoder,
    Encoder,
    Schema,
    type_name,
)

_WHAT = "JSON Schema"

__all__ = [
    "arrow_type",
    "decoder",
    "encoder",
    "exact_decoder",
    "infer",
    "inline_tags",
    "schema_of",
    "text_encoder",
]


def arrow_type(
    schema: Schema, *, message: tuple[int, ...] = FIRST_MESSAGE, depth: int | None = None
) -> pa.DataType:
    """The type of all that a JSON Schema types. Raises SchemaError, with the field."""
    with schema_errors(_WHAT):
        try:
            kind = _node(schema, None, depth).type
        except TooLargeSchemaError:
            if depth is None:
                raise
            raise too_deep_error(depth, "has too many fields or levels") from None
        return kind if depth is None else check_levels(kind, depth)


def decoder(
    writer: Schema,
    reader: Schema | None,
    wanted: pa.DataType | None,
    *,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """Reads `wanted`, or all that the reader's schema types. JSON needs no writer's schema: without
    a text in either, `wanted` alone says what is read.

    `rest`: what no field took of an object becomes JSON text of its own in `Decoded.rest`: fields
    that nobody asked for, and values that do not fit (whose field is then null, and the row good).
    It is an object with the same fields around it; in arrays null stands for items that fit. Null
    if nothing is left.

    Raises SchemaError for a schema that cannot be used, OptionError for a `wanted` that does not
    go with it."""
    with schema_errors(_WHAT):
        root = _node(reader or writer, wanted)
        if rest and root.kind != plan.STRUCT:
            raise OptionError(
                "rescuedColumn needs JSON objects with fields, and the values are "
                f"{type_name(root.type)}"
            )
        return JsonDecoder(root, rest)


def exact_decoder(schema: Schema, wanted: pa.DataType) -> Decoder:
    """Reads texts that are to be written: a field that `wanted` lacks makes a row bad, at any
    depth. Raises as `decoder` does."""
    with schema_errors(_WHAT):
        return JsonDecoder(_node(schema, wanted), exact=True)


def encoder(
    schema: Schema, given: pa.DataType, *, message: tuple[int, ...] = FIRST_MESSAGE
) -> Encoder:
    """Writes `given` by a JSON Schema, or by the type alone if the schema has no text. Raises
    SchemaError for a schema that cannot be used, OptionError for a field that it does not have, a
    field that it requires and `given` lacks, and a type that cannot be written as it says."""
    with schema_errors(_WHAT):
        place = place_of(schema, 1) if schema.text.strip() else None
        return JsonEncoder(form_of(given, place))


def text_encoder(given: pa.DataType, schema: Schema | None = None) -> Encoder:
    """Writes `given` for people: a field that is null is there, as null. `schema`: the JSON Schema
    that the values were read by, if it was one; a field that it does not type is then JSON again,
    not a string with JSON in it, and `exact_decoder` reads the same values."""
    place = place_of(schema) if schema is not None else None
    return JsonEncoder(with_nulls(form_of(given, place)))


def schema_of(given: pa.DataType, name: str) -> Schema:
    """The JSON Schema (draft-07) of a type, with `name` as its title. Raises OptionError for a type
    that JSON has nothing for."""
    return Schema(JSON, schema_text(given, name))


def _node(schema: Schema, wanted: pa.DataType | None, depth: int | None = None) -> plan.Node:
    if not schema.text.strip():
        if wanted is None:
            raise OptionError(
                "JSON without a JSON Schema needs the type of its values: give it as the"
                " column's type in .schema(…), or have it inferred"
            )
        return plan.node_of_type(wanted)
    if wanted is None:
        return plan.node_of_schema(place_of(schema, depth))
    # The wanted type ends what contains itself; where types are compared, its first level counts.
    return plan.node_of_both(wanted, place_of(schema, 1))
