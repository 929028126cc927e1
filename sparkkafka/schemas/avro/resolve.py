"""Matches schemas with each other and with a column's type; compiles decoders and encoders.

Errors that follow from schemas and types only are raised here, before any row is read. Errors that
depend on the data are left to the decoders, which make a row bad: a branch of a union, or a symbol
of an enum, that the reader lacks.

Reading follows Avro's schema resolution. Where the specification leaves something open, the rules
are those of Java's `Resolver`: names of records count only inside unions, and a branch of the same
type is preferred to one that needs a promotion. Unlike in Java, logical types count: a time of
another unit is converted, and values with two meanings (a date and a timestamp) do not resolve.
"""

from __future__ import annotations

import reprlib
import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas.avro import decode, encode, json_text, skip
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.decode import ValueDecoder
from sparkkafka.schemas.avro.encode import ValueEncoder
from sparkkafka.schemas.avro.schema import MISSING, AvroField, Node
from sparkkafka.schemas.avro.skip import Skipper, skipper_of
from sparkkafka.schemas.avro.types import becomes_struct, holds_recursive_value, type_if_any
from sparkkafka.schemas.schema_errors import (
    check_distinct,
    child_path,
    count_steps,
    cut,
    label,
    names_hint,
)
from sparkkafka.schemas.values import MemoryBudget, type_name

_PROMOTIONS: Final = {
    avro.INT: (avro.LONG, avro.FLOAT, avro.DOUBLE),
    avro.LONG: (avro.FLOAT, avro.DOUBLE),
    avro.FLOAT: (avro.DOUBLE,),
    avro.STRING: (avro.BYTES,),
    avro.BYTES: (avro.STRING,),
}


# --- decoders: the writer's schema, the reader's schema and the column's type ---------------------


class DecoderCompiler:
    """Compiles one decoder. `target` is a type that `types.check_target` accepts for the reader's
    type, `path` the field's. Raises SchemaError, with the field, where types do not resolve."""

    def __init__(self) -> None:
        # The levels of recursive types by the identities of the writer's and the reader's type, so
        # that each is compiled once.
        self._levels: dict[tuple[int, int], json_text.Level] = {}

    def compile(
        self, writer: Node, reader: Node, target: pa.DataType, path: str = ""
    ) -> ValueDecoder:
        """Return a decoder of values of the writer's type, read as the reader's, to `target`."""
        count_steps()
        # Of such a union each branch is compiled on its own.
        is_only_writers_union = writer.kind == avro.UNION and reader.kind != avro.UNION
        if holds_recursive_value(reader, target) and not is_only_writers_union:
            return self._compile_recursive(writer, reader, target, path)
        if writer.kind == avro.UNION:
            return self._compile_union(writer, reader, target, path)
        if reader.kind == avro.UNION:
            return self._compile_into_union(writer, reader, target, path)
        if writer.kind != reader.kind and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
            raise _mismatch_error(writer, reader, path)
        if writer.kind == avro.RECORD:
            return self._compile_record(writer, reader, target, path)
        if writer.kind == avro.ARRAY:
            item = self._compile_item(writer, reader, target.value_type, f"{path}[]")
            return decode.ArrayDecoder(target, skip.ItemsSkipper(path, item.skipper), item)
        if writer.kind == avro.MAP:
            inner = f"{path}{{}}"
            key = decode.StringDecoder(pa.string(), skip.BytesSkipper(inner))
            value = self._compile_item(writer, reader, target.item_type, inner)
            skipper = skip.RecordSkipper(inner, [key.skipper, value.skipper])
            pair_type = pa.struct([target.key_field, target.item_field])
            pair = decode.RecordDecoder(pair_type, skipper, [(key, 0), (value, 1)], {})
            return decode.MapDecoder(target, skip.ItemsSkipper(path, skipper), pair)
        return _make_scalar_decoder(writer, reader, target, path)

    def _compile_recursive(
        self, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> ValueDecoder:
        """Compile a recursive type as JSON text or Avro's bytes."""
        skipper = skipper_of(writer, path)
        if pa.types.is_binary(target) and writer is reader:
            return json_text.AvroBytesDecoder(skipper)
        key = writer.identity, reader.identity
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = json_text.Level(reader)
            level.avro_decoder = self.compile(writer, reader, level.type, reader.name or path)
        texts = json_text.JsonTextDecoder(skipper, level)
        if pa.types.is_string(target):
            return texts
        encoder = encode.AvroEncoder(EncoderCompiler().compile(reader, pa.string()), pa.string())
        null = reader.null_branch
        null_bytes = b"" if null is None else zigzag_bytes(null)
        return json_text.ReencodedBytesDecoder(texts, encoder, null_bytes)

    # --- unions

    def _compile_union(
        self, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> ValueDecoder:
        """Compile the writer's union, whether the reader's type is a union or not."""
        skipper = skip.UnionSkipper(path, [skipper_of(branch, path) for branch in writer.branches])
        branches: list[decode.Branch] = []
        errors: list[SchemaError] = []
        for number, branch in enumerate(writer.branches):
            try:
                branches.append(
                    self._compile_branch_of_writer(branch, number, writer, reader, target, path)
                )
            except SchemaError as error:
                branches.append(decode.Branch(None, refusal=_reason(error, path)))
                errors.append(error)
        if len(errors) == len(branches):
            raise errors[0]
        has_members = reader.kind == avro.UNION and becomes_struct(reader)
        return decode.UnionDecoder(target, skipper, branches, has_members=has_members)

    def _compile_branch_of_writer(
        self, branch: Node, number: int, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> decode.Branch:
        """Compile how branch `number` of the writer's union is read. Raises SchemaError."""
        if reader.kind != avro.UNION:
            return decode.Branch(self.compile(branch, reader, target, path))
        count_steps(len(reader.branches) // 20)  # a comparison is a small part of a step
        index = number if writer is reader else self._match_branch(branch, reader)
        if index is None:
            raise _mismatch_error(branch, reader, path)
        decoder, member = self._compile_into_branch(branch, reader, index, target, path)
        if decoder is None and branch.kind != avro.NULL:  # `target` lacks it: only skip the values
            return decode.Branch(decode.NullDecoder(pa.null(), skipper_of(branch, path)), member=-1)
        return decode.Branch(decoder, member)

    def _compile_into_union(
        self, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> ValueDecoder:
        """Compile a type that is not a union for the writer as the reader's union. Its column is a
        struct with a field for each branch, or has the type of its only branch beside null."""
        index = self._match_branch(writer, reader)
        if index is None:
            raise _mismatch_error(writer, reader, path)
        decoder, member = self._compile_into_branch(writer, reader, index, target, path)
        if decoder is None and (writer.kind == avro.NULL or not becomes_struct(reader)):
            return decode.NullDecoder(target, skipper_of(writer, path))
        # Without a decoder, `target` lacks the branch: no field of the struct has a value.
        decoder = decoder or decode.NullDecoder(pa.null(), skipper_of(writer, path))
        return decode.MemberDecoder(target, decoder, member) if becomes_struct(reader) else decoder

    def _compile_into_branch(
        self, writer: Node, reader: Node, index: int, target: pa.DataType, path: str
    ) -> tuple[ValueDecoder | None, int]:
        """Compile the writer's type as branch `index` of the reader's union. Return the decoder
        (None if the type is null, or `target` lacks the branch), and the index of the branch's
        field in `target`, if that is a struct: -1 if it lacks the branch."""
        if writer.kind == avro.NULL:
            return None, 0
        branch = reader.branches[index]
        if not becomes_struct(reader):
            return self.compile(writer, branch, target, path), 0
        member = target.get_field_index(f"member{reader.value_branches.index(index)}")
        if member < 0:
            branch_type = type_if_any(branch)
            if branch_type is not None:
                self.compile(writer, branch, branch_type, path)  # raises if it does not resolve
            return None, -1
        return self.compile(writer, branch, target.field(member).type, path), member

    def _match_branch(self, writer: Node, union: Node) -> int | None:
        """Return the number of the branch of the reader's union that takes a writer's type; None if
        no branch does."""
        branches = list(enumerate(union.branches))
        same = [(number, branch) for number, branch in branches if branch.kind == writer.kind]
        if writer.kind in avro.NAMED:
            for is_match in (
                lambda own, other: own.name == other.name,
                _is_alias,
                _has_same_last_name,
            ):
                for number, branch in same:
                    if is_match(writer, branch):
                        return number
            # A record that was renamed without an alias: the only record, or else the first one
            # that can take its fields, as in firstMatchingBranch of Java's Resolver.
            if writer.kind == avro.RECORD:
                for number, branch in same:
                    if len(same) == 1 or self._resolves(writer, branch):
                        return number
            return None
        if same:
            return same[0][0]
        for number, branch in branches:
            if branch.kind in _PROMOTIONS.get(writer.kind, ()):
                return number
        return None

    def _resolves(self, writer: Node, reader: Node) -> bool:
        """Return whether the writer's type resolves to the reader's. A recursive type does not."""
        reader_type = type_if_any(reader)
        if reader_type is None:
            return False
        try:
            self.compile(writer, reader, reader_type, "")
        except SchemaError:
            return False
        return True

    # --- records, and items of arrays and maps

    def _compile_record(
        self, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> ValueDecoder:
        """Compile a record as the struct `target`, which may lack fields of the reader's."""
        count_steps(len(writer.fields) + len(reader.fields))
        read, defaults = self._match_fields(writer, reader, target, path)
        steps: list[tuple[ValueDecoder, int] | Skipper] = []
        skippers: list[Skipper] = []
        for source in writer.fields:
            if source.name in read:
                field, index = read[source.name]
                field_type, field_path = target.field(index).type, child_path(path, field.name)
                decoder = self.compile(source.node, field.node, field_type, field_path)
                steps.append((decoder, index))
                skippers.append(decoder.skipper)
            else:
                skippers.append(skipper_of(source.node, child_path(path, source.name)))
                steps.append(skippers[-1])
        return decode.RecordDecoder(target, skip.RecordSkipper(path, skippers), steps, defaults)

    def _match_fields(
        self, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> tuple[dict[str, tuple[AvroField, int]], dict[int, pa.Array]]:
        """Return what fills the fields of `target`: the reader's field and the index in `target` by
        the name of the writer's field that is read, and by index the defaults of fields that the
        writer does not have. Raises SchemaError."""
        written = {field.name for field in writer.fields}
        # An alias applies only to a field of the writer that no field of the reader is named after.
        aliased = written - {field.name for field in reader.fields}
        indexes = {field.name: index for index, field in enumerate(target)}
        read: dict[str, tuple[AvroField, int]] = {}
        defaults: dict[int, pa.Array] = {}
        for field in reader.fields:
            at = child_path(path, field.name)
            index = indexes.get(field.name)
            if field.name in written:
                source: str | None = field.name
            else:
                source = next((alias for alias in field.aliases if alias in aliased), None)
            if source is None:
                if field.default is MISSING:
                    raise SchemaError(
                        f"{label(at)}: the reader's Avro schema has it without a default, and the "
                        "writer's schema does not have it"
                    )
                if index is not None:
                    defaults[index] = self._decode_default(field, target.field(index).type, at)
            elif index is not None:
                if source in read:
                    raise SchemaError(
                        f"{label(at)}: two fields of the reader's Avro schema are the writer's "
                        f"{source!r}"
                    )
                read[source] = field, index
        return read, defaults

    def _decode_default(self, field: AvroField, field_type: pa.DataType, path: str) -> pa.Array:
        """Return the default of a field as an array of one value, of the Arrow type
        `field_type`."""
        encoded = _default_bytes(field.node, field.default, path)
        count_steps(len(encoded) // 64)
        data, offsets = np.frombuffer(encoded, np.uint8), np.array([0, len(encoded)])
        cursor = decode.cursor_of(data, offsets, MemoryBudget(binary_array([encoded])))
        value = self.compile(field.node, field.node, field_type, path).read(cursor)
        if cursor.chunk.failures:
            raise SchemaError(f"Avro schema, the default of {cursor.chunk.reasons[0]}")
        return value

    def _compile_item(
        self, writer: Node, reader: Node, target: pa.DataType, path: str
    ) -> ValueDecoder:
        """Compile a decoder for the items of an array or map. If their types do not resolve, only
        arrays and maps with items are bad: Java fails when it reads the first item."""
        try:
            return self.compile(writer.item, reader.item, target, path)
        except SchemaError as error:
            return decode.RefusingDecoder(
                target, skipper_of(writer.item, path), _reason(error, path)
            )


def _reason(error: SchemaError, path: str) -> str:
    """Return why a part does not resolve, as the reason of rows that have it. Raises SchemaError
    if the schema takes too much work (`count_steps`): that concerns all rows."""
    count_steps(0)
    return cut(str(error)).removeprefix(f"{label(path)}: ")


def _is_alias(writer: Node, reader: Node) -> bool:
    return writer.name in reader.aliases


def _has_same_last_name(writer: Node, reader: Node) -> bool:
    last = writer.name.rpartition(".")[2]
    return last in [name.rpartition(".")[2] for name in (reader.name, *reader.aliases)]


_WRITTEN: Final = {avro.INT: "i4", avro.LONG: "i8", avro.FLOAT: "f4", avro.DOUBLE: "f8"}


def _make_scalar_decoder(
    writer: Node, reader: Node, target: pa.DataType, path: str
) -> ValueDecoder:
    """Return a decoder of a type without types below it. Raises SchemaError."""
    kind = writer.kind
    skipper = skipper_of(writer, path)
    if kind in (avro.ENUM, avro.FIXED) and not (
        _has_same_last_name(writer, reader) or _is_alias(writer, reader)
    ):
        raise SchemaError(
            f"{label(path)}: {writer} of the writer's Avro schema is not {reader} of the reader's, "
            "nor one of its aliases"
        )
    if kind == avro.ENUM:
        known = set(reader.symbols)
        symbols = [
            symbol if symbol in known else reader.default_symbol for symbol in writer.symbols
        ]
        return decode.EnumDecoder(target, skipper, writer.symbols, symbols)
    if writer.size != reader.size:
        raise SchemaError(
            f"{label(path)}: fixed {writer.name} has {writer.size} bytes in the writer's Avro "
            f"schema and {reader.size} in the reader's"
        )
    _check_meanings(writer, reader, path)
    if kind == avro.NULL:
        return decode.NullDecoder(target, skipper)
    if kind == avro.BOOLEAN:
        return decode.BooleanDecoder(target, skipper)
    if kind in _WRITTEN:
        read = np.dtype(_DTYPES.get(target, np.int64))  # also timestamps, intervals
        convert = _make_conversion(writer, reader, target)
        return decode.NumberDecoder(target, skipper, np.dtype(_WRITTEN[kind]), read, convert)
    if writer.logical == reader.logical == avro.DECIMAL and writer.scale != reader.scale:
        raise SchemaError(
            f"{label(path)}: the decimals of the Avro schemas have different scales, "
            f"{writer.scale} in the writer's and {reader.scale} in the reader's"
        )
    blobs = skip.blob_skipper_of(writer, path)
    if pa.types.is_decimal(target):
        precision = min(reader.precision, avro.MAX_DIGITS)
        return decode.DecimalDecoder(target, blobs, pa.decimal128(precision, reader.scale))
    if pa.types.is_string(target):
        if kind == avro.FIXED:
            return decode.UuidDecoder(target, skipper)
        return decode.StringDecoder(target, blobs)
    return decode.BytesDecoder(target, blobs)


def _check_meanings(writer: Node, reader: Node, path: str) -> None:
    """Raises SchemaError for two logical types whose values cannot be converted to each other. A
    type without one is the number, text or bytes that are written."""
    differs = bool(writer.meaning and reader.meaning) and writer.meaning != reader.meaning
    # The bytes of a decimal are not text, and those of a text no decimal.
    is_string = avro.STRING in (writer.kind, reader.kind)
    if differs or (is_string and avro.DECIMAL in (writer.logical, reader.logical)):
        raise SchemaError(
            f"{_mismatch_error(writer, reader, path)}: the two have different meanings. The type "
            f"{writer.kind} without a logicalType in the reader's schema gives what is written"
        )


def _make_conversion(writer: Node, reader: Node, target: pa.DataType) -> decode.Convert | None:
    """Return how the writer's numbers are converted to those of a column of type `target`; None if
    they are the same."""
    if reader.time_unit:
        read = "micros" if pa.types.is_timestamp(target) else reader.time_unit
        written = writer.time_unit or reader.time_unit  # a number without a unit has the reader's
        if written != read:
            return decode.to_unit(written, read)
    # If the reader's type is float, a number is rounded to one before it becomes a double.
    return decode.to_float if reader.kind == avro.FLOAT and writer.kind != avro.FLOAT else None


_DTYPES: Final = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.date32(): np.int32,
}


def _mismatch_error(writer: Node, reader: Node, path: str) -> SchemaError:
    """Return the error for a type of the writer that the reader's type cannot take."""
    return SchemaError(
        f"{label(path)}: {writer} of the writer's Avro schema cannot be read as {reader} of the "
        "reader's"
    )


# --- encoders: a schema and the type of the column ------------------------------------------------


class EncoderCompiler:
    """Compiles one encoder, of a column of type `source`. Raises OptionError, with the field, if
    the column does not fit the schema."""

    def __init__(self) -> None:
        # The levels of recursive types by their identity.
        self._levels: dict[int, json_text.Level] = {}

    def compile(self, node: Node, source: pa.DataType, path: str = "") -> ValueEncoder:
        """Return an encoder of values of type `source` as the Avro type `node`."""
        types = pa.types
        if holds_recursive_value(node, source):
            return self._compile_recursive(node, source, path)
        if node.kind == avro.UNION:
            return self._compile_union(node, source, path)
        if node.kind == avro.RECORD and types.is_struct(source):
            return self._compile_record(node, source, path)
        if node.kind == avro.ARRAY and (types.is_list(source) or types.is_large_list(source)):
            return encode.ArrayEncoder(
                path, self.compile(node.item, source.value_type, f"{path}[]")
            )
        if node.kind == avro.MAP and types.is_map(source) and _is_string(source.key_type):
            inner = f"{path}{{}}"
            value = self.compile(node.item, source.item_type, inner)
            return encode.MapEncoder(path, encode.BytesEncoder(inner), value)
        if node.kind == avro.NULL:
            return encode.ConstantEncoder(path, only_nulls=True)
        encoder = _make_scalar_encoder(node, source, path)
        if encoder is None:
            raise OptionError(
                f"{label(path)}: {type_name(source)} cannot be written as {node} of the Avro schema"
            )
        return encoder

    def _compile_recursive(self, node: Node, source: pa.DataType, path: str) -> ValueEncoder:
        """Compile a recursive type, whose column has JSON text or Avro's bytes. JSON text is
        encoded level by level (`json_text.Level`)."""
        if pa.types.is_binary(source):
            return json_text.AvroBytesEncoder(path, skipper_of(node, path))
        level = self._levels.get(node.identity)
        if level is None:
            level = self._levels[node.identity] = json_text.Level(node)
            level.avro_encoder = self.compile(node, level.type, node.name or path)
        return json_text.JsonTextEncoder(path, level)

    def _compile_record(self, node: Node, source: pa.DataType, path: str) -> ValueEncoder:
        """Compile a record from a struct, which may lack fields that have a default or may be
        null."""
        check_distinct(source, path)
        indexes = {field.name: index for index, field in enumerate(source)}
        names = [field.name for field in node.fields]
        for name in indexes:
            if name not in names:
                raise OptionError(
                    f"{label(child_path(path, name))} of the column is not in record {node.name} "
                    f"of the Avro schema: {names_hint(name, names)}"
                )
        fields: list[tuple[ValueEncoder, int | None]] = []
        for member in node.fields:
            at = child_path(path, member.name)
            if member.name in indexes:
                index = indexes[member.name]
                fields.append((self.compile(member.node, source.field(index).type, at), index))
            else:
                fields.append((encode.ConstantEncoder(at, _missing_field_bytes(member, at)), None))
        return encode.RecordEncoder(path, fields)

    def _compile_union(self, node: Node, source: pa.DataType, path: str) -> ValueEncoder:
        """Compile a union from a struct with a field for each branch (member0 …), or from a column
        that has the values of one branch."""
        null, numbers = node.null_branch, node.value_branches
        if not numbers or pa.types.is_null(source):
            if null is None:
                raise OptionError(
                    f"{label(path)}: null cannot be written as {node} of the Avro schema"
                )
            return encode.UnionEncoder(
                path, null, [(null, encode.ConstantEncoder(path, only_nulls=True))]
            )
        number_of = {f"member{index}": number for index, number in enumerate(numbers)}
        if (
            len(numbers) > 1
            and pa.types.is_struct(source)
            and source.num_fields
            and all(field.name in number_of for field in source)
        ):
            branches = [
                (
                    number_of[field.name],
                    self.compile(
                        node.branches[number_of[field.name]],
                        field.type,
                        child_path(path, field.name),
                    ),
                )
                for field in source
            ]
            return encode.UnionEncoder(path, null, branches, has_members=True)
        # The branch of the column's type, or else the first one that takes it. A recursive branch,
        # which takes text and bytes, is the last choice.
        errors: list[OptionError] = []
        for number in sorted(
            numbers,
            key=lambda i: (type_if_any(node.branches[i]) != source, node.branches[i].recurs),
        ):
            try:
                encoder = self.compile(node.branches[number], source, path)
            except OptionError as error:
                errors.append(error)
                continue
            return encode.UnionEncoder(path, null, [(number, encoder)])
        if len(errors) == 1:
            raise errors[0]
        raise OptionError(
            f"{label(path)}: {type_name(source)} fits no branch of {node} of the Avro schema"
        )


def _missing_field_bytes(field: AvroField, path: str) -> bytes:
    """Return what is written for a field that the column lacks: its default, or null."""
    if field.default is not MISSING:
        return _default_bytes(field.node, field.default, path)
    if field.node.kind == avro.NULL:
        return b""
    if field.node.null_branch is None:
        raise OptionError(
            f"{label(path)} of the Avro schema is not in the column, and has neither a default nor "
            "null"
        )
    return zigzag_bytes(field.node.null_branch)


_INTS: Final = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32}
# The column's types that a number may be written from.
_NUMBERS: Final[dict[str, dict[pa.DataType, Any]]] = {
    avro.INT: _INTS,
    avro.LONG: {**_INTS, pa.int64(): np.int64},
    avro.FLOAT: {pa.float32(): np.float32},
    avro.DOUBLE: {pa.float32(): np.float32, pa.float64(): np.float64, pa.int32(): np.int32},
}


def _make_scalar_encoder(node: Node, source: pa.DataType, path: str) -> ValueEncoder | None:
    """Return an encoder of a column of type `source` as `node`, a type without types below it; None
    if the column does not fit. `path`: the field's, for errors."""
    kind = node.kind
    types = pa.types
    if kind in _NUMBERS:
        dtype = _NUMBERS[kind].get(source)
        if dtype is not None and kind in (avro.INT, avro.LONG):
            return encode.LongEncoder(path, dtype)
        if dtype is not None:
            return encode.FloatEncoder(
                path, dtype, np.dtype("<f4" if kind == avro.FLOAT else "<f8")
            )
        if node.logical == avro.DATE and types.is_date32(source):
            return encode.LongEncoder(path, np.int32)
        if node.logical == avro.INTERVAL and source == pa.duration("us"):
            return encode.LongEncoder(path, np.int64)
        meaning = ""
        if types.is_timestamp(source) and source.unit == "us":
            meaning = "local-timestamp" if source.tz is None else "timestamp"
        if meaning and node.meaning == meaning:
            return encode.LongEncoder(path, np.int64, node.time_unit)
        return None
    if kind == avro.BOOLEAN:
        return encode.BooleanEncoder(path) if types.is_boolean(source) else None
    if kind == avro.ENUM:
        return encode.EnumEncoder(path, node.symbols) if _is_string(source) else None
    if kind == avro.STRING:
        return encode.BytesEncoder(path) if _is_string(source) else None
    if kind not in (avro.BYTES, avro.FIXED):
        return None
    is_fixed = kind == avro.FIXED
    if types.is_binary(source) or types.is_large_binary(source):
        return encode.FixedEncoder(path, node.size) if is_fixed else encode.BytesEncoder(path)
    if node.logical == avro.UUID and _is_string(source):
        return encode.UuidEncoder(path)
    if node.logical == avro.DECIMAL and types.is_decimal128(source):
        more_digits = node.scale - source.scale
        if more_digits >= 0 and source.precision + more_digits <= avro.MAX_DIGITS:
            precision = min(node.precision, avro.MAX_DIGITS)
            size = node.size if is_fixed else None
            return encode.DecimalEncoder(path, source, precision, node.scale, size)
    return None


def _is_string(source: pa.DataType) -> bool:
    return bool(pa.types.is_string(source) or pa.types.is_large_string(source))


# --- defaults, which become the bytes that a writer would write ---------------------------------
#
# So a default is decoded by the same code as a value, once for a field and never for rows.


class _MismatchError(Exception):
    """A JSON value does not match its type. The message names the part of the default, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{label(path)}: {reason}")


def _default_bytes(node: Node, value: Any, path: str) -> bytes:
    """Encode a default. Raises SchemaError, which names the field, or the item in it."""
    try:
        return _encode_default(node, value, path)
    except _MismatchError as error:
        raise SchemaError(f"Avro schema, the default of {error}") from None


def _encode_default(node: Node, value: Any, path: str) -> bytes:
    """Encode a default, or a part of it. Raises _MismatchError if it does not match the type."""
    count_steps(1 + (len(value) // 64 if isinstance(value, str) else 0))
    if node.kind == avro.UNION:
        # The specification allows a default of the first branch; since 1.12 of any branch.
        for number, branch in enumerate(node.branches):
            try:
                return zigzag_bytes(number) + _encode_default(branch, value, path)
            except _MismatchError:
                continue
        raise _MismatchError(path, f"{reprlib.repr(value)} fits no branch of {node}")
    encoded: bytes | None = None
    if node.kind == avro.RECORD:
        if isinstance(value, dict):
            encoded = _default_record(node, value, path)
    elif node.kind == avro.ARRAY:
        if isinstance(value, list):
            encoded = _default_block(
                [_encode_default(node.item, item, f"{path}[]") for item in value]
            )
    elif node.kind == avro.MAP:
        if isinstance(value, dict):
            key = Node(avro.STRING)
            encoded = _default_block(
                [
                    _encode_default(key, name, path)
                    + _encode_default(node.item, item, f"{path}{{}}")
                    for name, item in value.items()
                ]
            )
    else:
        encoded = _default_scalar(node, value)
    if encoded is None:
        raise _MismatchError(path, f"{reprlib.repr(value)} is not {node}")
    return encoded


def _default_record(node: Node, value: dict[str, Any], path: str) -> bytes:
    """Encode a record; fields that `value` lacks get their own defaults. Raises _MismatchError."""
    encoded = []
    for field in node.fields:
        field_value = value.get(field.name, field.default)
        if field_value is MISSING:
            raise _MismatchError(
                path, f"it has no field {field.name!r}, which has no default either"
            )
        encoded.append(_encode_default(field.node, field_value, child_path(path, field.name)))
    return b"".join(encoded)


def _default_block(items: list[bytes]) -> bytes:
    """Return an array or map of these encoded items, as one block."""
    return b"".join([zigzag_bytes(len(items)), *items, b"\0"]) if items else b"\0"


def _default_scalar(node: Node, value: Any) -> bytes | None:
    """Encode a value of a type without types below it; None if it does not match the type."""
    kind = node.kind
    if kind == avro.NULL:
        return b"" if value is None else None
    if kind == avro.BOOLEAN:
        return bytes([value]) if isinstance(value, bool) else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in (avro.INT, avro.LONG):
        limit = 1 << (31 if kind == avro.INT else 63)
        is_integer = is_number and (isinstance(value, int) or value.is_integer())
        return zigzag_bytes(int(value)) if is_integer and -limit <= value < limit else None
    if kind in (avro.FLOAT, avro.DOUBLE):
        # Java also reads these three, which are not numbers in JSON.
        if value in ("NaN", "Infinity", "-Infinity"):
            value = float(value)
        elif not is_number:
            return None
        try:
            return struct.pack("<f" if kind == avro.FLOAT else "<d", value)
        except OverflowError:
            return None
    if not isinstance(value, str):
        return None
    if kind == avro.ENUM:
        return zigzag_bytes(node.symbols.index(value)) if value in node.symbols else None
    try:
        # In bytes and fixed, a character is a byte. Half of a surrogate pair is not UTF-8.
        data = value.encode("utf-8" if kind == avro.STRING else "latin-1")
    except UnicodeEncodeError:
        return None
    if kind == avro.FIXED:
        return data if len(data) == node.size else None
    return zigzag_bytes(len(data)) + data
