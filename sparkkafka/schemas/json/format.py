"""The interface of JSON (see `schemas/values.py`) and `exact_decoder`, `text_encoder`, `infer`.
Needs no library but pyarrow.

What a JSON Schema demands beyond types (minimum, pattern, enum, required) is not validated; neither
do Confluent's deserializers by default. A field that is absent is null.
"""

from __future__ import annotations

import pyarrow as pa

from sparkkafka.config.kinds import JSON
from sparkkafka.errors import OptionError
from sparkkafka.schemas import values
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.json.decode import JsonDecoder
from sparkkafka.schemas.json.encode import JsonEncoder, form_of, with_nulls
from sparkkafka.schemas.json.inference import infer
from sparkkafka.schemas.json.schema import (
    JsonKind,
    TooLargeSchemaError,
    inline_tags,
    root_of,
    schema_text,
    shape_of,
)
from sparkkafka.schemas.schema_errors import check_levels, schema_errors, too_deep_error

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
    schema: values.Schema,
    *,
    message: tuple[int, ...] = values.FIRST_MESSAGE,
    depth: int | None = None,
) -> pa.DataType:
    """Return the Arrow type of a JSON Schema. `depth`: recursive.fields.max.depth; `message` is for
    Protobuf, which has the same function. Raises SchemaError that names the field."""
    with schema_errors("JSON Schema"):
        try:
            return check_levels(_node(schema, None, depth).type, depth)
        except TooLargeSchemaError:
            if depth is None:
                raise
            raise too_deep_error(depth, "has too many fields or levels") from None


def decoder(
    writer: values.Schema,
    reader: values.Schema | None,
    target: pa.DataType | None,
    *,
    message: tuple[int, ...] = values.FIRST_MESSAGE,
    rest: bool = False,
) -> values.Decoder:
    """Return a decoder of `target`, or of all fields of the reader's schema. JSON needs no writer's
    schema; if neither schema has a text, only `target` says what is read.

    With `rest`, the parts of an object that match no field become JSON text in `Decoded.rest`:
    fields that `target` lacks, and values that do not fit (their field becomes null, and the row is
    good). The text is an object that has the parts at their paths; in arrays, null stands for
    items that fit. It is null if all parts match.

    Raises SchemaError for a schema that cannot be used, OptionError for a `target` that does not
    fit it."""
    with schema_errors("JSON Schema"):
        root = _node(reader or writer, target)
        if rest and root.kind != JsonKind.STRUCT:
            raise OptionError(
                "rescuedColumn needs JSON objects with fields, and the values are "
                f"{values.type_name(root.type)}"
            )
        return JsonDecoder(root, rest)


def exact_decoder(schema: values.Schema, target: pa.DataType) -> values.Decoder:
    """Return a decoder of texts that are to be written: a field that `target` lacks, at any level,
    makes a row bad. Raises the errors of `decoder`."""
    with schema_errors("JSON Schema"):
        return JsonDecoder(_node(schema, target), exact=True)


def encoder(
    schema: values.Schema, source: pa.DataType, *, message: tuple[int, ...] = values.FIRST_MESSAGE
) -> values.Encoder:
    """Return an encoder by a JSON Schema, or by the type only if the schema has no text. Raises
    SchemaError for a schema that cannot be used, OptionError for a field that it does not have, a
    field that it requires and `source` lacks, and a type that cannot be written as it says."""
    with schema_errors("JSON Schema"):
        root = root_of(schema, 1) if schema.text.strip() else None
        return JsonEncoder(form_of(source, root))


def text_encoder(source: pa.DataType, schema: values.Schema | None = None) -> values.Encoder:
    """Return an encoder of JSON that people read: it also writes fields that are null, as null.

    `schema`: the JSON Schema by which the values were read, if any. Then a field that the schema
    does not type is written as JSON, not as a string with JSON in it, and `exact_decoder` reads the
    same values.
    """
    root = root_of(schema) if schema is not None else None
    return JsonEncoder(with_nulls(form_of(source, root)))


def schema_of(source: pa.DataType, name: str) -> values.Schema:
    """Return the JSON Schema (draft-07) of a type, with `name` as its title. Raises OptionError for
    a type that JSON has nothing for."""
    return values.Schema(JSON, schema_text(source, name))


def _node(
    schema: values.Schema, target: pa.DataType | None, depth: int | None = None
) -> plan.JsonNode:
    """Return how values are read: by the schema, if it has a text, and as `target`, if it is given.
    Raises OptionError if there is neither."""
    if not schema.text.strip():
        if target is None:
            raise OptionError(
                "JSON without a JSON Schema needs the type of its values: give it as the"
                " column's type in .schema(…), or have it inferred"
            )
        return plan.node_of_type(target)
    if target is None:
        return plan.node_of_schema(root_of(schema, depth))
    # `target` ends recursion. Where types are compared, one level of it is enough.
    return plan.node_of_type(target, shape_of(root_of(schema, 1)))
