"""The interface of Avro: see `schemas.values`."""

from __future__ import annotations

import pyarrow as pa

from sparkkafka.config.kinds import AVRO
from sparkkafka.schemas.avro.decoder import AvroDecoder
from sparkkafka.schemas.avro.encoder import AvroEncoder, compile_writer
from sparkkafka.schemas.avro.json_text import READER_LEVELS, WRITER_LEVELS, shared
from sparkkafka.schemas.avro.resolve import compile_reader
from sparkkafka.schemas.avro.schema import parse
from sparkkafka.schemas.avro.tags import inline_tags
from sparkkafka.schemas.avro.types import arrow_type as type_of
from sparkkafka.schemas.avro.types import check_wanted, schema_text
from sparkkafka.schemas.bounds import check_levels, schema_errors
from sparkkafka.schemas.values import FIRST_MESSAGE, Decoder, Encoder, Schema

__all__ = ["arrow_type", "decoder", "encoder", "inline_tags", "schema_of"]

_WHAT = "Avro schema"


def arrow_type(
    schema: Schema, *, message: tuple[int, ...] = FIRST_MESSAGE, depth: int | None = None
) -> pa.DataType:
    """The column's type for a read of all fields. Raises SchemaError."""
    with schema_errors(_WHAT):
        kind = type_of(parse(schema), depth)
        return kind if depth is None else check_levels(kind, depth)


def decoder(
    writer: Schema,
    reader: Schema | None,
    wanted: pa.DataType | None,
    *,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """Payloads of `writer`, resolved to `reader` (None: the writer's own), as `wanted` (None: all
    fields). Raises SchemaError for schemas that cannot be used or do not resolve, and OptionError
    for a wanted field or type that the reader's schema does not give."""
    with schema_errors(_WHAT):
        written = parse(writer)
        read = written if reader is None else parse(reader)
        if wanted is None:
            wanted = type_of(read)
        else:
            check_wanted(read, wanted)
        with shared(READER_LEVELS):
            return AvroDecoder(compile_reader(written, read, wanted))


def encoder(
    schema: Schema, given: pa.DataType, *, message: tuple[int, ...] = FIRST_MESSAGE
) -> Encoder:
    """Values of a column of type `given` -> payloads. Raises SchemaError for a schema that cannot
    be used, and OptionError for a column that does not fit it."""
    with schema_errors(_WHAT), shared(WRITER_LEVELS):
        return AvroEncoder(compile_writer(parse(schema), given), given)


def schema_of(given: pa.DataType, name: str) -> Schema:
    """The schema of a type, by the rules of Spark's SchemaConverters; `name` is the topmost
    record's full name. Raises SchemaError for what Avro has no type or name for."""
    return Schema(AVRO, schema_text(given, name))
