"""Writer's schema, reader's schema and the wanted type -> readers: Avro's schema resolution.

What can be told from the schemas alone is told here, once. What depends on the data is a refusal in
a reader: a branch of a union, or a symbol of an enum, that the reader lacks.

Where the specification leaves something open, this is as Java's `Resolver`: names of records count
only inside of unions, and a branch of the same type comes before one that needs a promotion.
Logical types count, which Java ignores while it resolves: a time of another unit is converted, and
values of two different meanings (a date and a timestamp) do not resolve.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.errors import SchemaError
from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.cursor import PADDING, Chunk, Cursor
from sparkkafka.schemas.avro.defaults import default_bytes
from sparkkafka.schemas.avro.encoder import AvroEncoder, compile_writer
from sparkkafka.schemas.avro.json_text import (
    READER_LEVELS,
    AvroBytesReader,
    JsonTextReader,
    Level,
    OtherBytesReader,
    shared,
)
from sparkkafka.schemas.avro.nested import (
    Branch,
    ListReader,
    MapReader,
    MemberReader,
    RecordReader,
    UnionReader,
)
from sparkkafka.schemas.avro.scalars import (
    BooleanReader,
    BytesReader,
    Convert,
    DecimalReader,
    EnumReader,
    FixedReader,
    NullReader,
    NumberReader,
    Reader,
    RefusingReader,
    TextReader,
    UuidReader,
    as_numpy,
    floor_div,
    times,
)
from sparkkafka.schemas.avro.schema import MISSING, Field, Node, below, place
from sparkkafka.schemas.avro.types import becomes_struct, is_text, parts, type_if_any
from sparkkafka.schemas.avro.wire_plan import wire_of
from sparkkafka.schemas.avro.wires import (
    BlobWire,
    ItemsWire,
    RecordWire,
    UnionWire,
    Wire,
)
from sparkkafka.schemas.bounds import cut, spend
from sparkkafka.schemas.values import MemoryBudget

PROMOTIONS: Final = {
    avro.INT: (avro.LONG, avro.FLOAT, avro.DOUBLE),
    avro.LONG: (avro.FLOAT, avro.DOUBLE),
    avro.FLOAT: (avro.DOUBLE,),
    avro.STRING: (avro.BYTES,),
    avro.BYTES: (avro.STRING,),
}


def compile_reader(writer: Node, reader: Node, wanted: pa.DataType, path: str = "") -> Reader:
    """A reader of `wanted`, a type that `types.check_wanted` takes for the reader's schema. Raises
    SchemaError, which names the field, where the schemas do not resolve."""
    spend()
    if is_text(reader, wanted) and (reader.kind == avro.UNION or writer.kind != avro.UNION):
        return _text(writer, reader, wanted, path)
    if writer.kind == avro.UNION:
        return _writers_union(writer, reader, wanted, path)
    if reader.kind == avro.UNION:
        index = matching(writer, reader)
        if index is None:
            raise _misfit(writer, reader, path)
        made, member = _branch(writer, reader, index, wanted, path)
        if not becomes_struct(reader):
            return made or NullReader(wanted, wire_of(writer, path))
        if made is None:  # null, or a member that is not wanted
            wire = wire_of(writer, path)
            if writer.kind == avro.NULL:
                return NullReader(wanted, wire)
            return MemberReader(wanted, NullReader(pa.null(), wire), -1)
        return MemberReader(wanted, made, member)
    if writer.kind == reader.kind:
        same = _SAME.get(writer.kind)
        if same is not None:
            return same(writer, reader, wanted, path)
        return _scalar(writer, reader, wanted, path)
    if reader.kind in PROMOTIONS.get(writer.kind, ()):
        return _scalar(writer, reader, wanted, path)
    raise _misfit(writer, reader, path)


def _text(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    """A reader of what recurs, as JSON text or Avro's bytes."""
    wire = wire_of(writer, path)
    if pa.types.is_binary(wanted) and writer is reader:
        return AvroBytesReader(wire)
    with shared(READER_LEVELS) as levels:
        key = writer.identity, reader.identity
        level = levels.get(key)
        if level is None:
            level = levels[key] = Level(reader)
            level.reader = compile_reader(writer, reader, level.type, reader.name or path)
    texts = JsonTextReader(wire, level)
    if pa.types.is_string(wanted):
        return texts
    return OtherBytesReader(texts, AvroEncoder(compile_writer(reader, pa.string()), pa.string()))


# --- unions -------------------------------------------------------------------------------------


def _writers_union(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    wire = UnionWire(path, [wire_of(branch, path) for branch in writer.branches])
    branches: list[Branch] = []
    errors: list[SchemaError] = []
    for number, branch in enumerate(writer.branches):
        try:
            branches.append(_from_branch(branch, number, writer, reader, wanted, path))
        except SchemaError as error:
            branches.append(Branch(None, refusal=_reason(error, path)))
            errors.append(error)
    if len(errors) == len(branches):
        raise errors[0]
    struct = reader.kind == avro.UNION and becomes_struct(reader)
    return UnionReader(wanted, wire, branches, members=struct)


def _from_branch(
    branch: Node, number: int, writer: Node, reader: Node, wanted: pa.DataType, path: str
) -> Branch:
    """How the reader takes a branch of the writer's union. Raises SchemaError."""
    if reader.kind != avro.UNION:
        return Branch(compile_reader(branch, reader, wanted, path))
    spend(len(reader.branches) // 20)
    index = number if writer is reader else matching(branch, reader)
    if index is None:
        raise _misfit(branch, reader, path)
    made, member = _branch(branch, reader, index, wanted, path)
    if made is None and branch.kind != avro.NULL:
        return Branch(NullReader(pa.null(), wire_of(branch, path)), member=-1)
    return Branch(made, member)


def _branch(
    writer: Node, reader: Node, index: int, wanted: pa.DataType, path: str
) -> tuple[Reader | None, int]:
    """A reader for a branch of the reader's union, and the place of its member in the struct. No
    reader if it is null, or a member that is not wanted."""
    if writer.kind == avro.NULL:
        return None, 0
    branch = reader.branches[index]
    if not becomes_struct(reader):
        return compile_reader(writer, branch, wanted, path), 0
    member = wanted.get_field_index(f"member{parts(reader)[0].index(index)}")
    if member < 0:
        type_ = type_if_any(branch)
        if type_ is not None:
            compile_reader(writer, branch, type_, path)  # does it resolve at all?
        return None, -1
    return compile_reader(writer, branch, wanted.field(member).type, path), member


def matching(writer: Node, union: Node) -> int | None:
    """Which branch of the reader's union takes a writer's type; None if none does."""
    branches = list(enumerate(union.branches))
    same = [(i, branch) for i, branch in branches if branch.kind == writer.kind]
    if writer.kind in avro.NAMED:
        for is_named in (_same_name, _alias, _same_last_name):
            for i, branch in same:
                if is_named(writer, branch):
                    return i
        # A record that was renamed without an alias: the first that can have its fields, as in
        # firstMatchingBranch of Java's Resolver.
        if writer.kind == avro.RECORD:
            if len(same) == 1:
                return same[0][0]
            return next((i for i, branch in same if _resolves(writer, branch)), None)
        return None
    if same:
        return same[0][0]
    for i, branch in branches:
        if branch.kind in PROMOTIONS.get(writer.kind, ()):
            return i
    return None


def _resolves(writer: Node, reader: Node) -> bool:
    """Whether values of the writer's type become the reader's. A type that recurs does not."""
    type_ = type_if_any(reader)
    if type_ is None:
        return False
    try:
        compile_reader(writer, reader, type_)
    except SchemaError:
        return False
    return True


def _same_name(writer: Node, reader: Node) -> bool:
    return writer.name == reader.name


def _alias(writer: Node, reader: Node) -> bool:
    return writer.name in reader.aliases


def _same_last_name(writer: Node, reader: Node) -> bool:
    last = writer.name.rpartition(".")[2]
    return last in [name.rpartition(".")[2] for name in (reader.name, *reader.aliases)]


# --- records, arrays, maps ----------------------------------------------------------------------


def _record(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    spend(len(writer.fields) + len(reader.fields))
    there = {field.name for field in writer.fields}
    # An alias is looked for among what is left by the names.
    by_alias = there - {field.name for field in reader.fields}
    places = {field.name: place for place, field in enumerate(wanted)}
    taken: dict[str, tuple[Field, int]] = {}
    defaults: dict[int, pa.Array] = {}
    for field in reader.fields:
        source = field.name if field.name in there else None
        if source is None:
            source = next((alias for alias in field.aliases if alias in by_alias), None)
        at = below(path, field.name)
        target = places.get(field.name)
        if source is None:
            if field.default is MISSING:
                raise SchemaError(
                    f"{place(at)}: the reader's Avro schema has it without a default, and the "
                    "writer's schema does not have it"
                )
            if target is not None:
                kind = wanted.field(target).type
                defaults[target] = default_value(field.node, field.default, kind, at)
        elif target is not None:
            if source in taken:
                raise SchemaError(
                    f"{place(at)}: two fields of the reader's Avro schema are the writer's "
                    f"{source!r}"
                )
            taken[source] = (field, target)
    steps: list[tuple[Reader, int] | Wire] = []
    wires: list[Wire] = []
    for own in writer.fields:
        at = below(path, own.name)
        if own.name in taken:
            field, target = taken[own.name]
            kind = wanted.field(target).type
            made = compile_reader(own.node, field.node, kind, below(path, field.name))
            steps.append((made, target))
            wires.append(made.wire)
        else:
            wires.append(wire_of(own.node, at))
            steps.append(wires[-1])

    return RecordReader(wanted, RecordWire(path, wires), steps, defaults)


def _array(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    item = _items(writer.item, reader.item, wanted.value_type, f"{path}[]")
    return ListReader(wanted, ItemsWire(path, item.wire), item)


def _map(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    inner = f"{path}{{}}"
    value = _items(writer.item, reader.item, wanted.item_type, inner)
    key = TextReader(pa.string(), BlobWire(inner))
    kind = pa.struct([wanted.key_field, wanted.item_field])
    entry = RecordReader(
        kind, RecordWire(inner, [key.wire, value.wire]), [(key, 0), (value, 1)], {}
    )
    return MapReader(wanted, ItemsWire(path, entry.wire), entry)


def _items(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    """A reader of the items of an array or map. If they do not resolve, arrays and maps without
    items are still good, as in Java, whose `Resolver` fails when it reads the first item."""
    try:
        return compile_reader(writer, reader, wanted, path)
    except SchemaError as error:
        return RefusingReader(wanted, wire_of(writer, path), _reason(error, path))


def _reason(error: SchemaError, path: str) -> str:
    """Why a part does not resolve, for the values that have it. Raises SchemaError if the schema
    takes too many steps: that is not the part's fault."""
    spend(0)
    return cut(str(error)).removeprefix(f"{place(path)}: ")


def default_value(node: Node, default: Any, kind: pa.DataType, path: str) -> pa.Array:
    """A default as an array of one value."""
    written = default_bytes(node, default, path)
    spend(len(written) // 64)
    data = np.zeros(len(written) + PADDING, np.uint8)
    data[: len(written)] = np.frombuffer(written, np.uint8)
    size = np.array([len(written)], np.int64)
    chunk = Chunk(data, size, MemoryBudget(binary_array([written])))
    value = compile_reader(node, node, kind, path).read(Cursor(chunk, np.zeros(1, np.int64), size))
    if chunk.failures:
        raise SchemaError(f"Avro schema, the default of {chunk.reasons[0]}")
    return value


# --- types without types below ------------------------------------------------------------------


def _enum(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    _check_names(writer, reader, path)
    known = set(reader.symbols)
    symbols = [symbol if symbol in known else reader.symbol for symbol in writer.symbols]
    return EnumReader(wire_of(writer, path), symbols, writer.symbols, wanted)


def _fixed(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    _check_names(writer, reader, path)
    if writer.size != reader.size:
        raise SchemaError(
            f"{place(path)}: fixed {writer.name} has {writer.size} bytes in the writer's Avro "
            f"schema and {reader.size} in the reader's"
        )
    return _scalar(writer, reader, wanted, path)


def _check_names(writer: Node, reader: Node, path: str) -> None:
    if not (_same_last_name(writer, reader) or _alias(writer, reader)):
        raise SchemaError(
            f"{place(path)}: {writer} of the writer's Avro schema is not {reader} of the reader's, "
            "nor one of its aliases"
        )


_SAME: Final = {
    avro.RECORD: _record,
    avro.ARRAY: _array,
    avro.MAP: _map,
    avro.ENUM: _enum,
    avro.FIXED: _fixed,
}


def _scalar(writer: Node, reader: Node, wanted: pa.DataType, path: str) -> Reader:
    _check_meanings(writer, reader, path)
    wire = wire_of(writer, path)
    kind = writer.kind
    if kind == avro.NULL:
        return NullReader(wanted, wire)
    if kind == avro.BOOLEAN:
        return BooleanReader(wanted, wire)
    if kind in _BITS:
        floats = kind in (avro.FLOAT, avro.DOUBLE)
        convert = _conversion(writer, reader, wanted)
        return NumberReader(wanted, wire, bits=_BITS[kind], floats=floats, convert=convert)
    if pa.types.is_decimal(wanted):
        if writer.logical == avro.DECIMAL and writer.scale != reader.scale:
            raise SchemaError(
                f"{place(path)}: the decimals of the Avro schemas have different scales, "
                f"{writer.scale} in the writer's and {reader.scale} in the reader's"
            )
        return DecimalReader(
            wire,
            precision=min(reader.precision, avro.MAX_DIGITS),
            scale=reader.scale,
            fixed=kind == avro.FIXED,
            kind=wanted,
        )
    if kind == avro.FIXED:
        if pa.types.is_string(wanted):
            return UuidReader(wanted, wire)
        return FixedReader(wanted, wire)
    return (TextReader if pa.types.is_string(wanted) else BytesReader)(wanted, wire)


def _check_meanings(writer: Node, reader: Node, path: str) -> None:
    """Raises SchemaError for two logical types whose values cannot be converted to each other. A
    type without one is the number, text or bytes that are written."""
    other = bool(writer.meaning and reader.meaning) and writer.meaning != reader.meaning
    # The bytes of a decimal are no text, and those of a text no decimal.
    is_text = avro.STRING in (writer.kind, reader.kind)
    if other or (is_text and avro.DECIMAL in (writer.logical, reader.logical)):
        raise SchemaError(
            f"{_misfit(writer, reader, path)}: the two have different meanings. The type "
            f"{writer.kind} without a logicalType in the reader's schema gives what is written"
        )


_NUMPY: Final = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.date32(): np.int32,
}
_BITS: Final = {avro.INT: 32, avro.LONG: 64, avro.FLOAT: 32, avro.DOUBLE: 64}


def _conversion(writer: Node, reader: Node, wanted: pa.DataType) -> Convert:
    if reader.time_unit:
        unit = "micros" if pa.types.is_timestamp(wanted) else reader.time_unit
        # A number without a unit is in the one that the reader's schema says.
        written = avro.NANOSECONDS[writer.time_unit or reader.time_unit]
        read = avro.NANOSECONDS[unit]
        if written > read:
            return times(written // read, f"{unit.removesuffix('s')}seconds")
        if written < read:
            return floor_div(read // written)
    # A float of the reader's schema has been rounded to one before it becomes a double.
    through = np.float32 if reader.kind == avro.FLOAT and writer.kind != avro.FLOAT else None
    return as_numpy(_NUMPY.get(wanted, np.int64), through)  # timestamps and intervals: 64 bits


def _misfit(writer: Node, reader: Node, path: str) -> SchemaError:
    return SchemaError(
        f"{place(path)}: {writer} of the writer's Avro schema cannot be read as {reader} of the "
        "reader's"
    )
