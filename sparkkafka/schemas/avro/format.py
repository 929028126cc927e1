"""The five functions of the Avro format: see `schemas.values`."""

from __future__ import annotations

import pyarrow as pa

from sparkkafka.config.kinds import AVRO
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro import types
from sparkkafka.schemas.avro.decode import AvroDecoder
from sparkkafka.schemas.avro.encode import AvroEncoder
from sparkkafka.schemas.avro.resolve import DecoderCompiler, EncoderCompiler
from sparkkafka.schemas.avro.schema import parse
from sparkkafka.schemas.schema_errors import check_levels, schema_errors
from sparkkafka.schemas.values import FIRST_MESSAGE, Decoder, Encoder, Schema

__all__ = ["arrow_type", "decoder", "encoder", "inline_tags", "schema_of"]

_WHAT = "Avro schema"


def arrow_type(
    schema: Schema, *, message: tuple[int, ...] = FIRST_MESSAGE, depth: int | None = None
) -> pa.DataType:
    """Return the column's type for a read of all fields. Raises SchemaError."""
    with schema_errors(_WHAT):
        return check_levels(types.arrow_type(parse(schema), depth), depth)


def decoder(
    writer: Schema,
    reader: Schema | None,
    target: pa.DataType | None,
    *,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """Return a decoder of payloads of `writer`, resolved to `reader` (None: the writer's), as the
    type `target` (None: all fields). Raises SchemaError for schemas that cannot be used or do not
    resolve, and OptionError for a field or type of `target` that the reader's schema lacks."""
    with schema_errors(_WHAT):
        written = parse(writer)
        read = written if reader is None else parse(reader)
        if target is None:
            target = types.arrow_type(read)
        else:
            types.check_target(read, target)
        return AvroDecoder(DecoderCompiler().compile(written, read, target))


def encoder(
    schema: Schema, source: pa.DataType, *, message: tuple[int, ...] = FIRST_MESSAGE
) -> Encoder:
    """Return an encoder for a column of type `source`. Raises SchemaError for a schema that cannot
    be used, and OptionError for a column that does not fit it."""
    with schema_errors(_WHAT):
        return AvroEncoder(EncoderCompiler().compile(parse(schema), source), source)


def schema_of(source: pa.DataType, name: str) -> Schema:
    """Return the schema of a type, by the rules of Spark's SchemaConverters. `name`: the full name
    of the outermost record. Raises SchemaError for a type or name that Avro lacks."""
    return Schema(AVRO, types.schema_text(source, name))


def inline_tags(schema: Schema) -> dict[str, frozenset[str]]:
    """Return the tags in Confluent's property `confluent:tags`, by the fields' full names
    (`namespace.Record.field`), also in records of the schema's references. Raises SchemaError."""
    with schema_errors(_WHAT):
        return avro.inline_tags(parse(schema))
