"""Values -> JSON texts, whole columns at a time.

A null field is left out, as Spark's `to_json` does; where the JSON Schema requires the field it is
written as null, if the schema allows that. Items of arrays and values of maps are written as null.
"""

from __future__ import annotations

import binascii
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.errors import OptionError
from sparkkafka.protocol.records.arrow import from_numpy, is_valid, repeat_text, to_numpy
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.json.document import Place, Shape, inside, recurs, shape_of
from sparkkafka.schemas.json.texts import BrokenTextError, name_of, parse, quoted
from sparkkafka.schemas.json.times import duration_text
from sparkkafka.schemas.values import ValueRowError, type_name, with_prefix

OMITTED: Final = "omitted"
WRITTEN: Final = "written"
REFUSED: Final = "refused"

OWN_TEXT: Final = "own text"
"""Kind of a form: JSON texts that this encoder has made, and takes into its text as they are."""


@dataclass(frozen=True)
class Form:
    """How values of a type are written. `kind`: one of plan.py's. `null`: what becomes of null."""

    kind: str
    null: str = WRITTEN
    children: Mapping[str, Form] = field(default_factory=dict)
    scale: int = 0

    @property
    def item(self) -> Form:
        return self.children[""]


class JsonEncoder:
    """Encodes values of one type."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """See `schemas.values.Encoder`."""
        try:
            return with_prefix(prefix, _texts(self.form, values).cast(pa.binary()))
        except _UnfitError as error:
            path = "".join(reversed(error.path)).removeprefix(".")
            where = f"field {path}" if path else "the value"
            raise ValueRowError(error.row, f"{where} {error.reason}") from None


class _UnfitError(Exception):
    """A value that cannot be written: its row among the values at hand, and its path, inmost
    first."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason
        self.path: list[str] = []


# What values are given as -> what a JSON Schema may say for them.
_WRITTEN_AS: Final[Mapping[str, frozenset[str]]] = {
    plan.BOOL: frozenset({plan.BOOL}),
    plan.INTEGER: frozenset({plan.INTEGER, plan.FLOAT, plan.DECIMAL}),
    plan.FLOAT: frozenset({plan.FLOAT}),
    plan.DECIMAL: frozenset({plan.DECIMAL, plan.DECIMAL_BYTES, plan.FLOAT, plan.TEXT}),
    plan.LENIENT: frozenset({plan.TEXT, plan.DATE, plan.TIMESTAMP, plan.LOCAL_TIMESTAMP}),
    plan.BINARY: frozenset({plan.BINARY, plan.TEXT}),
    plan.DATE: frozenset({plan.DATE, plan.TEXT, plan.EPOCH_DAYS}),
    plan.TIMESTAMP: frozenset({plan.TIMESTAMP, plan.TEXT, plan.EPOCH_MILLIS}),
    plan.LOCAL_TIMESTAMP: frozenset({plan.LOCAL_TIMESTAMP, plan.TEXT}),
    plan.DURATION: frozenset({plan.DURATION, plan.TEXT}),
    plan.NULL: frozenset(),
}


def form_of(given: pa.DataType, place: Place | None) -> Form:
    """How `given` is written by a JSON Schema, or by its type alone. Raises OptionError for a type
    or field that does not go with the schema, SchemaError for a schema that cannot be used."""
    return _form(given, None if place is None else shape_of(place), "", WRITTEN)


def with_nulls(form: Form) -> Form:
    """The same, but that a field's null is written, too."""
    children = {name: with_nulls(child) for name, child in form.children.items()}
    return replace(form, null=WRITTEN, children=children)


def _form(given: pa.DataType, shape: Shape | None, path: str, null: str) -> Form:
    if shape is not None and shape.kind == plan.JSON_TEXT:
        if pa.types.is_string(given):
            return Form(plan.JSON_TEXT, null)
        shape = None
    if shape is not None and (pa.types.is_string(given) or pa.types.is_binary(given)):
        text = _NESTED_TEXT.get(shape.kind)
        if text is not None and recurs(shape):
            return Form(text, null)
    if pa.types.is_struct(given):
        return Form(plan.STRUCT, null, _fields(given, shape, path))
    if pa.types.is_map(given):
        if not pa.types.is_string(given.key_type):
            raise OptionError(
                f"{_what(path)}: JSON has strings as keys, not {type_name(given.key_type)}"
            )
        return Form(plan.MAP, null, {"": _below(given.item_type, shape, f"{path}{{}}", plan.MAP)})
    if pa.types.is_list(given):
        return Form(plan.LIST, null, {"": _below(given.value_type, shape, f"{path}[]", plan.LIST)})
    kind = plan.kind_of_type(given)
    if kind is None:
        raise OptionError(f"{_what(path)}: {type_name(given)} cannot be written as JSON")
    if shape is None:
        return Form(kind, null)
    wrong = shape.kind not in _WRITTEN_AS[kind] and not (kind == plan.NULL and shape.nullable)
    if wrong or (kind == shape.kind == plan.INTEGER and given.bit_width > shape.type.bit_width):
        raise _other_type(given, shape, path)
    if shape.kind in (plan.EPOCH_DAYS, plan.EPOCH_MILLIS):
        return Form(shape.kind, null)
    if kind == plan.DECIMAL and shape.kind == plan.TEXT:
        return Form(_DECIMAL_TEXT, null)
    if kind == plan.DECIMAL and shape.kind in (plan.DECIMAL, plan.DECIMAL_BYTES):
        if not _fits(given, shape.type):
            raise _other_type(given, shape, path)
        # bytes say no scale, so it must be the schema's
        return Form(shape.kind, null, scale=shape.type.scale)
    return Form(kind, null)


_DECIMAL_TEXT: Final = "decimal text"
_OBJECT_TEXT: Final = "object text"
_ARRAY_TEXT: Final = "array text"
_NESTED_TEXT: Final = {
    plan.STRUCT: _OBJECT_TEXT,
    plan.MAP: _OBJECT_TEXT,
    plan.LIST: _ARRAY_TEXT,
}


def _fits(given: pa.DataType, into: pa.DataType) -> bool:
    whole = given.precision - given.scale
    return bool(given.scale <= into.scale and whole <= into.precision - into.scale)


def _below(given: pa.DataType, shape: Shape | None, path: str, kind: str) -> Form:
    if shape is None:
        return _form(given, None, path, WRITTEN)
    if shape.kind != kind:
        raise _other_type(given, shape, path[:-2])
    inner = inside(shape.only)
    return _form(given, inner, path, WRITTEN if inner.nullable else REFUSED)


def _fields(given: pa.DataType, shape: Shape | None, path: str) -> dict[str, Form]:
    if shape is not None and shape.kind not in (plan.STRUCT, plan.MAP):
        raise _other_type(given, shape, path)
    forms: dict[str, Form] = {}
    for each in given:
        below = f"{path}.{each.name}" if path else each.name
        if each.name in forms:
            raise OptionError(f"the field {below} is there twice")
        if shape is None:
            forms[each.name] = _form(each.type, None, below, OMITTED)
            continue
        place = shape.only if shape.kind == plan.MAP else shape.fields.get(each.name)
        if place is None:
            near = difflib.get_close_matches(each.name, list(shape.fields), n=3, cutoff=0.6)
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            raise OptionError(f"the JSON Schema has no field {below}{hint}")
        inner = inside(place)
        null = OMITTED
        if each.name in shape.required:
            null = WRITTEN if inner.nullable else REFUSED
        forms[each.name] = _form(each.type, inner, below, null)
    missing = [] if shape is None else sorted(shape.required & shape.fields.keys() - forms.keys())
    if missing:
        raise OptionError(
            f"{_what(path)}: the JSON Schema requires the field {missing[0]}, which is not there"
        )
    return forms


def _what(path: str) -> str:
    return f"field {path}" if path else "the value"


def _other_type(given: pa.DataType, shape: Shape, path: str) -> OptionError:
    return OptionError(
        f"{_what(path)} is {type_name(given)}, which cannot be written as {shape.words} of the "
        "JSON Schema"
    )


# Texts of columns. Each is a string array, null where the value is null.


@cache
def _literal(text: str) -> Any:
    """A string scalar, made without pa.scalar."""
    return repeat_text(text, 1)[0]


def _around(before: str, texts: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(
        _literal(before), texts, _literal(after), _literal(""), null_handling="emit_null"
    )


def _texts(form: Form, values: pa.Array) -> pa.Array:
    if form.null == REFUSED and values.null_count:
        raise _UnfitError(
            int(np.flatnonzero(~is_valid(values))[0]), "is null, which the JSON Schema forbids"
        )
    if form.kind == plan.STRUCT:
        return _struct_texts(form, values)
    if form.kind == plan.LIST:
        return _list_texts(form, values)
    if form.kind == plan.MAP:
        return _map_texts(form, values)
    if form.kind == plan.DECIMAL_BYTES:
        return _each(values, lambda each: _decimal_bytes(each, form.scale))
    return _PLAIN[form.kind](values)


def _struct_texts(form: Form, values: pa.Array) -> pa.Array:
    valid = is_valid(values)
    parts = []
    # flatten: a field is null where the struct is, and what lies there is not looked at
    for (name, below), column in zip(form.children.items(), values.flatten(), strict=True):
        refused = below.null == REFUSED
        try:
            if refused and values.null_count:
                rows = np.flatnonzero(valid)
                nulls = np.flatnonzero(~is_valid(column)[rows])
                if len(nulls):
                    raise _UnfitError(int(rows[nulls[0]]), "is null, which the JSON Schema forbids")
                below = replace(below, null=OMITTED)
            texts = _texts(below, column)
        except _UnfitError as error:
            error.path.append(f".{name}")
            raise
        if below.null == WRITTEN:
            texts = texts.fill_null(_literal("null"))
        parts.append(_around(f",{quoted(name)}:", texts, ""))
    if parts:
        # not null_handling="skip": with pyarrow 26 a row of nulls alone gets lost
        joined = pc.binary_join_element_wise(
            *parts, _literal("}"), _literal(""), null_handling="replace", null_replacement=""
        )
        # the first field's comma becomes the brace
        joined = pc.if_else(
            pc.equal(joined, _literal("}")),
            _literal("{}"),
            pc.binary_replace_slice(joined, 0, 1, "{"),
        )
    else:
        joined = repeat_text("{}", len(values))
    return _null_where(joined, ~valid) if values.null_count else joined


def _list_texts(form: Form, values: pa.Array) -> pa.Array:
    offsets = _offsets(values)
    items = values.flatten()
    try:
        texts = _texts(form.item, items).fill_null(_literal("null"))
    except _UnfitError as error:
        raise _outside(error, offsets, "[{}]") from None
    return _joined(values, offsets, texts, "[", "]")


def _map_texts(form: Form, values: pa.Array) -> pa.Array:
    offsets = _offsets(values)
    keys, items = _entries(values)
    try:
        texts = _texts(form.item, items).fill_null(_literal("null"))
    except _UnfitError as error:
        key = str(keys[error.row].as_py())
        raise _outside(error, offsets, f".{key if len(key) <= 40 else key[:37] + '…'}") from None
    pairs = pc.binary_join_element_wise(_string_texts(keys), texts, _literal(":"))
    return _joined(values, offsets, pairs, "{", "}")


def _entries(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Keys and items of maps that are not null, one after the other."""
    raw = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    if not len(values):
        return values.keys[:0], values.items[:0]
    if not values.null_count:
        first, count = int(raw[0]), int(raw[-1] - raw[0])
        return values.keys.slice(first, count), values.items.slice(first, count)
    inside = np.repeat(is_valid(values), np.diff(raw))
    rows = from_numpy((np.flatnonzero(inside) + raw[0]).astype(np.int64))
    return values.keys.take(rows), values.items.take(rows)


def _offsets(values: pa.Array) -> NDArray[np.int32]:
    """Where the items of each list begin once those of null lists are left out."""
    count = len(values)
    offsets = np.zeros(count + 1, np.int32)
    if count:
        raw = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: count + 1]
        np.cumsum(np.diff(raw) * is_valid(values), out=offsets[1:])
    return offsets


def _outside(error: _UnfitError, offsets: NDArray[np.int32], step: str) -> _UnfitError:
    """The same error seen from the list around it."""
    row = int(np.searchsorted(offsets, error.row, side="right")) - 1
    error.path.append(step.format(error.row - int(offsets[row])))
    error.row = row
    return error


def _joined(
    values: pa.Array, offsets: NDArray[np.int32], texts: pa.Array, before: str, after: str
) -> pa.Array:
    lists = pa.ListArray.from_arrays(from_numpy(offsets), texts)
    joined = _around(before, pc.binary_join(lists, _literal(",")), after)
    return _null_where(joined, ~is_valid(values)) if values.null_count else joined


def _null_where(texts: pa.Array, missing: NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(from_numpy(missing), pa.nulls(len(texts), pa.string()), texts)


def _string_texts(values: pa.Array) -> pa.Array:
    offsets = np.frombuffer(values.buffers()[1] or b"\0\0\0\0", np.int32)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    if len(values):
        data = data[offsets[values.offset] : offsets[values.offset + len(values)]]
    special = np.flatnonzero(np.bincount(data, minlength=256)).tolist()
    escaped = values
    for byte in sorted(special, key=lambda byte: bool(byte != ord("\\"))):  # backslash first
        if byte < 0x20 or byte in b'"\\':
            char = chr(byte)
            escaped = pc.replace_substring(escaped, pattern=char, replacement=quoted(char)[1:-1])
    return _around('"', escaped, '"')


def _plain(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _float_texts(values: pa.Array) -> pa.Array:
    finite = pc.is_finite(values)
    if values.null_count:
        finite = finite.fill_null(from_numpy(np.ones(1, np.bool_))[0])
    rows = np.flatnonzero(~_bits(finite))
    if len(rows):
        raise _UnfitError(int(rows[0]), f"is {values[int(rows[0])].as_py()}, which JSON has not")
    texts = values.cast(pa.string())
    whole = pc.equal(pc.floor(values), values)
    if pc.any(whole).as_py():  # 1 would be taken for an integer: 1.0, as Spark writes it
        bare = pc.invert(pc.match_substring_regex(texts, "[.e]"))
        texts = pc.if_else(bare, _around("", texts, ".0"), texts)
    return texts


def _bits(values: pa.Array) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(values.buffers()[1], np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)].view(np.bool_)


def _quoted(texts: pa.Array) -> pa.Array:
    return _around('"', texts, '"')


def _each(values: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    """Texts by Python, one by one: what Arrow has no function for."""
    texts = [None if each is None else write(each) for each in values.to_pylist()]
    data = [b"" if text is None else text.encode() for text in texts]
    offsets = np.zeros(len(data) + 1, np.int32)
    np.cumsum([len(each) for each in data], out=offsets[1:])
    valid = from_numpy(is_valid(values)).buffers()[1] if values.null_count else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(data), buffers, values.null_count)


def _binary_texts(values: pa.Array) -> pa.Array:
    return _each(values, lambda each: f'"{binascii.b2a_base64(each, newline=False).decode()}"')


def _decimal_bytes(value: Decimal, scale: int) -> str:
    number = int(value.scaleb(scale, _EXACT))
    size = (number + (number < 0)).bit_length() // 8 + 1  # as Java's BigInteger.toByteArray
    digits = number.to_bytes(size, "big", signed=True)
    return f'"{binascii.b2a_base64(digits, newline=False).decode()}"'


_EXACT: Final = Context(prec=80)


def _duration_texts(values: pa.Array) -> pa.Array:
    return _each(values.cast(pa.int64()), lambda micros: f'"{duration_text(micros)}"')


def _date_texts(values: pa.Array) -> pa.Array:
    _check_range(values.cast(pa.int32()), *_DAYS, "is a date outside of the years 0 to 9999")
    return _quoted(values.cast(pa.string()))


def _time_texts(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.int64())
    _check_range(micros, *_MICROS, "is a time outside of the years 0 to 9999")
    zone = "" if values.type.tz is None else "Z"
    texts = micros.cast(pa.timestamp("us")).cast(pa.string())
    return _around('"', pc.binary_replace_slice(texts, 10, 11, "T"), f'{zone}"')


_DAYS: Final = (-719_528, 2_932_896)
_MICROS: Final = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def _check_range(numbers: pa.Array, least: int, most: int, reason: str) -> None:
    values = to_numpy(numbers)
    wrong = np.flatnonzero(((values < least) | (values > most)) & is_valid(numbers))
    if len(wrong):
        raise _UnfitError(int(wrong[0]), reason)


def _day_texts(values: pa.Array) -> pa.Array:
    return values.cast(pa.int32()).cast(pa.string())


def _milli_texts(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.int64())
    wrong = np.flatnonzero((to_numpy(micros) % 1000 != 0) & is_valid(micros))
    if len(wrong):
        raise _UnfitError(
            int(wrong[0]), "has microseconds, and the JSON Schema has milliseconds (Connect's)"
        )
    return (
        micros.cast(pa.timestamp("us")).cast(pa.timestamp("ms")).cast(pa.int64()).cast(pa.string())
    )


def _json_texts(values: pa.Array, kind: type[Any] = object) -> pa.Array:
    """Strings, or their bytes, that are JSON texts already, of values of this kind."""
    texts = values.cast(pa.binary())
    for row, text in enumerate(texts.to_pylist()):
        if text is not None:
            try:
                value = parse(b" " + text)  # a BOM is no JSON in the middle
            except BrokenTextError as error:
                raise _UnfitError(row, f"must be JSON text, and {error}") from None
            if not isinstance(value, kind):
                what = "an object" if kind is dict else "an array"
                raise _UnfitError(row, f"must be the JSON text of {what}, not {name_of(value)}")
    return texts.cast(pa.string())


def _null_texts(values: pa.Array) -> pa.Array:
    return pa.nulls(len(values), pa.string())


_PLAIN: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    plan.BOOL: _plain,
    plan.INTEGER: _plain,
    plan.FLOAT: _float_texts,
    plan.DECIMAL: _plain,
    _DECIMAL_TEXT: lambda values: _quoted(_plain(values)),
    plan.LENIENT: _string_texts,
    plan.JSON_TEXT: _json_texts,
    OWN_TEXT: lambda values: values,
    _OBJECT_TEXT: lambda values: _json_texts(values, dict),
    _ARRAY_TEXT: lambda values: _json_texts(values, list),
    plan.BINARY: _binary_texts,
    plan.DATE: _date_texts,
    plan.TIMESTAMP: _time_texts,
    plan.LOCAL_TIMESTAMP: _time_texts,
    plan.DURATION: _duration_texts,
    plan.EPOCH_DAYS: _day_texts,
    plan.EPOCH_MILLIS: _milli_texts,
    plan.NULL: _null_texts,
}
