"""The five functions of the Avro format: see `schemas.values`."""

from __future__ import annotations

import pyarrow as pa

from sparkkafka.config.kinds import AVRO
from sparkkafka.schemas.avro import types
from sparkkafka.schemas.avro.decode import AvroDecoder
from sparkkafka.schemas.avro.encode import AvroEncoder
from sparkkafka.schemas.avro.resolve import compile_decoder, compile_encoder
from sparkkafka.schemas.avro.schema import inline_tags, parse
from sparkkafka.schemas.bounds import check_levels, schema_errors
from sparkkafka.schemas.values import FIRST_MESSAGE, Decoder, Encoder, Schema

__all__ = ["arrow_type", "decoder", "encoder", "inline_tags", "schema_of"]

_WHAT = "Avro schema"


def arrow_type(
    schema: Schema, *, message: tuple[int, ...] = FIRST_MESSAGE, depth: int | None = None
) -> pa.DataType:
    """The column's type for a read of all fields. Raises SchemaError."""
    with schema_errors(_WHAT):
        return check_levels(types.arrow_type(parse(schema), depth), depth)


def decoder(
    writer: Schema,
    reader: Schema | None,
    wanted: pa.DataType | None,
    *,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """Decode payloads of `writer`, resolved to `reader` (None: the writer's), as the type `wanted`
    (None: all fields). Raises SchemaError for schemas that cannot be used or do not resolve, and
    OptionError for a wanted field or type that the reader's schema does not have."""
    with schema_errors(_WHAT):
        written = parse(writer)
        read = written if reader is None else parse(reader)
        if wanted is None:
            wanted = types.arrow_type(read)
        else:
            types.check_wanted(read, wanted)
        return AvroDecoder(compile_decoder(written, read, wanted))


def encoder(
    schema: Schema, given: pa.DataType, *, message: tuple[int, ...] = FIRST_MESSAGE
) -> Encoder:
    """Encode the values of a column of type `given`. Raises SchemaError for a schema that cannot be
    used, and OptionError for a column that does not fit it."""
    with schema_errors(_WHAT):
        return AvroEncoder(compile_encoder(parse(schema), given), given)


def schema_of(given: pa.DataType, name: str) -> Schema:
    """The schema of a type, by the rules of Spark's SchemaConverters. `name`: the full name of the
    outermost record. Raises SchemaError for a type or name that Avro lacks."""
    return Schema(AVRO, types.schema_text(given, name))
