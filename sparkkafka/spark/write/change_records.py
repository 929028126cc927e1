"""Records of changes (envelope=debezium in a write): keys and envelopes of a DataFrame's rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructType

from sparkkafka.config.formats import FormatOptions
from sparkkafka.config.kinds import AVRO, JSON
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.schemas.arrays import scalar
from sparkkafka.schemas.envelopes import encode
from sparkkafka.schemas.envelopes.debezium import CHANGE
from sparkkafka.schemas.json.format import text_encoder
from sparkkafka.schemas.values import Schema, ValueRowError
from sparkkafka.spark.arrow_types import from_arrow_type, to_arrow_type
from sparkkafka.spark.read.change_columns import check_change


@dataclass(frozen=True)
class ChangeRecords:
    """How the rows of a DataFrame become records.

    `columns`: its columns besides change. `schema`: key and value as the write gets them: bytes of
    JSON, or structs for `formats`, those of the write.
    """

    columns: tuple[str, ...]
    schema: StructType
    formats: FormatOptions | None
    envelope: pa.DataType
    value: encode.EncodedType
    key: encode.EncodedType | None
    with_schemas: bool

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> ChangeRecords:
        """Return how a DataFrame of this schema is written. Raises OptionError."""
        formats = cast(FormatOptions, options.formats)
        change = schema[CHANGE].dataType if CHANGE in schema.names else None
        if not isinstance(change, StructType) or "op" not in change.names:
            raise OptionError(
                "a write with envelope=debezium needs the column change, a struct with op (c, u, d "
                "or r): add for instance struct('c' AS op, struct(id) AS key) AS change"
            )
        if options.topic is None:
            raise OptionError(
                "a write with envelope=debezium needs the option topic: the columns of the "
                "DataFrame are those of the table"
            )
        fields = [field for field in schema.fields if field.name != CHANGE]
        row = cast(pa.StructType, to_arrow_type(StructType(fields), "row"))
        if not fields:
            raise OptionError("the DataFrame has no column of the table beside change")
        change_type = to_arrow_type(change, CHANGE)
        check_change(change_type)
        kind = encode.envelope_type(row, change_type)
        value = encode.encoded_type(kind, f"{_name(options.topic)}.Envelope")
        index = change_type.get_field_index("key")
        key = None
        if index >= 0:
            key_type = change_type.field(index).type
            if not pa.types.is_struct(key_type):
                raise OptionError("field change.key must be a struct with the key's columns")
            key = encode.encoded_type(key_type, f"{_name(options.topic)}.Key")
        written = StructType()
        for name, part in (("key", key), ("value", value)):
            if part is not None:
                is_json = formats.value.format == JSON
                written = written.add(name, BinaryType() if is_json else from_arrow_type(part.wire))
        return cls(
            columns=tuple(field.name for field in fields),
            schema=written,
            formats=_formats_of_avro(formats, value, key) if formats.value.format == AVRO else None,
            envelope=kind,
            value=value,
            key=key,
            with_schemas=formats.envelope_schemas,
        )

    def records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of batches of rows. Raises EncodeError for a change that no envelope
        can have."""
        first = 0
        for batch in batches:
            try:
                yield self._records(batch)
            except ValueRowError as error:
                raise EncodeError(f"row {first + error.row} of this task: {error.reason}") from None
            first += batch.num_rows

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a batch of rows. Raises ValueRowError."""
        row_type = self.envelope.field("after").type
        rows = pa.StructArray.from_arrays(
            [batch.column(name) for name in self.columns], fields=list(row_type)
        )
        change = batch.column(CHANGE)
        values = encode.envelopes(rows, change, self.envelope, int(time.time() * 1000))
        arrays, names = [], []
        if self.key is not None:
            key = change.flatten()[change.type.get_field_index("key")]
            arrays.append(self._encoded(key, self.key))
            names.append("key")
        arrays.append(self._encoded(values, self.value))
        return pa.RecordBatch.from_arrays(arrays, names=[*names, "value"])

    def _encoded(self, values: pa.Array, kind: encode.EncodedType) -> pa.Array:
        """Return the values as structs, if the format has a schema, else as bytes of JSON."""
        values = encode.wire_values(values, kind.wire)
        if self.formats is not None:
            return values
        encoder = text_encoder(kind.wire, Schema(JSON, json.dumps(kind.json)))
        texts = encoder.encode(values)
        if not self.with_schemas:
            return texts
        schema = json.dumps(kind.connect, separators=(",", ":"))
        before = scalar(f'{{"schema":{schema},"payload":'.encode())
        return pc.binary_join_element_wise(before, texts, scalar(b"}"), scalar(b""))


def _name(topic: str) -> str:
    """Return the topic as a full name of Avro, with _ for characters that such names cannot
    have."""
    parts = (
        "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in part)
        for part in topic.split(".")
    )
    return ".".join(f"_{part}" if part[:1].isdigit() or not part else part for part in parts)


def _formats_of_avro(
    formats: FormatOptions, value: encode.EncodedType, key: encode.EncodedType | None
) -> FormatOptions:
    """Return the formats of a write with the schemas of envelopes and keys."""
    with_value = replace(formats.value, schema=json.dumps(value.avro), envelope="")
    with_key = replace(formats.value, column="key", envelope="", is_optional=False)
    if key is not None:
        with_key = replace(with_key, schema=json.dumps(key.avro))
    else:
        with_key = replace(with_key, format="binary")
    return replace(formats, value=with_value, key=with_key, envelope="")
