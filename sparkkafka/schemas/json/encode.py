"""Encodes columns as JSON texts, whole columns at a time.

A field that is null is left out, as by Spark's `to_json`. If the JSON Schema requires the field, it
is written as null, or refused if the schema does not allow null. Null items of arrays and values of
maps are written as null.
"""

from __future__ import annotations

import binascii
import enum
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
from sparkkafka.protocol.records import arrow
from sparkkafka.schemas.arrays import (
    content_of,
    flags_of,
    item_counts,
    map_items,
    null_outside,
    offsets_of,
)
from sparkkafka.schemas.json import syntax
from sparkkafka.schemas.json.schema import (
    JsonKind,
    Shape,
    Subschema,
    is_recursive,
    kind_of_type,
    shape_of,
    shape_of_field,
)
from sparkkafka.schemas.schema_errors import MAX_KEY, check_distinct, child_path, cut, label
from sparkkafka.schemas.values import ValueRowError, type_name, with_prefix


class Null(enum.Enum):
    """How a null is written."""

    OMITTED = "omitted"
    WRITTEN = "written"
    REFUSED = "refused"


@dataclass(frozen=True)
class Form:
    """How values of a type are written. `null`: how a null of the type is written; `scale`: the
    scale of a decimal that has the schema's.

    children: a struct's fields by name; the one item of a list, or value of a map, under "".
    """

    kind: JsonKind
    null: Null = Null.WRITTEN
    children: Mapping[str, Form] = field(default_factory=dict)
    scale: int = 0

    @property
    def item(self) -> Form:
        """How a list's items, or a map's values, are written."""
        return self.children[""]


class JsonEncoder:
    """Encodes values of one type."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """Return the JSON text of each value, after `prefix`; null stays null. Raises ValueRowError
        for a value that the schema does not allow."""
        try:
            return with_prefix(prefix, _write(self.form, values).cast(pa.binary()))
        except _WriteError as error:
            path = "".join(reversed(error.path)).removeprefix(".")
            raise ValueRowError(error.row, f"{label(path)} {error.reason}") from None


class _WriteError(Exception):
    """A value cannot be written. `row`: its row in the array that is being written; `path`: the
    steps to it, innermost first. Both are changed on the way to the outermost array."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason
        self.path: list[str] = []


# --- forms ----------------------------------------------------------------------------------------

# The kinds of a JSON Schema as which values of a kind can be written.
_WRITABLE_AS: Final[Mapping[JsonKind, set[JsonKind]]] = {
    JsonKind.BOOL: {JsonKind.BOOL},
    JsonKind.INTEGER: {JsonKind.INTEGER, JsonKind.FLOAT, JsonKind.DECIMAL},
    JsonKind.FLOAT: {JsonKind.FLOAT},
    JsonKind.DECIMAL: {JsonKind.DECIMAL, JsonKind.DECIMAL_BYTES, JsonKind.FLOAT, JsonKind.TEXT},
    JsonKind.AS_TEXT: {JsonKind.TEXT, JsonKind.DATE, JsonKind.TIMESTAMP, JsonKind.LOCAL_TIMESTAMP},
    JsonKind.BINARY: {JsonKind.BINARY, JsonKind.TEXT},
    JsonKind.DATE: {JsonKind.DATE, JsonKind.TEXT, JsonKind.EPOCH_DAYS},
    JsonKind.TIMESTAMP: {JsonKind.TIMESTAMP, JsonKind.TEXT, JsonKind.EPOCH_MILLIS},
    JsonKind.LOCAL_TIMESTAMP: {JsonKind.LOCAL_TIMESTAMP, JsonKind.TEXT},
    JsonKind.DURATION: {JsonKind.DURATION, JsonKind.TEXT},
    JsonKind.NULL: set(),
}


def form_of(source: pa.DataType, subschema: Subschema | None) -> Form:
    """Return how a type is written by a JSON Schema, or by the type only. Raises OptionError for a
    type or field that does not fit the schema, SchemaError for a schema that cannot be used."""
    shape = None if subschema is None else shape_of(subschema)
    return _make_form(source, shape, "", Null.WRITTEN)


def with_nulls(form: Form) -> Form:
    """Return the same form, but fields that are null are written."""
    children = {name: with_nulls(child) for name, child in form.children.items()}
    return replace(form, null=Null.WRITTEN, children=children)


def _make_form(source: pa.DataType, shape: Shape | None, path: str, null: Null) -> Form:
    """Return how values of type `source` are written by a schema of this shape; without one (None)
    by their type. `path`: the field, for errors; `null`: how a null is written."""
    if shape is not None and shape.kind == JsonKind.JSON_TEXT:
        if pa.types.is_string(source):
            return Form(JsonKind.JSON_TEXT, null)
        shape = None
    if shape is not None and (pa.types.is_string(source) or pa.types.is_binary(source)):
        is_object = shape.kind in (JsonKind.STRUCT, JsonKind.MAP)
        if (is_object or shape.kind == JsonKind.LIST) and is_recursive(shape):
            return Form(JsonKind.OBJECT_TEXT if is_object else JsonKind.ARRAY_TEXT, null)
    if pa.types.is_struct(source):
        return Form(JsonKind.STRUCT, null, _field_forms(source, shape, path))
    if pa.types.is_map(source):
        if not pa.types.is_string(source.key_type):
            raise OptionError(
                f"{label(path)}: JSON has strings as keys, not {type_name(source.key_type)}"
            )
        return _form_with_item(JsonKind.MAP, source, shape, path, null)
    if pa.types.is_list(source):
        return _form_with_item(JsonKind.LIST, source, shape, path, null)
    kind = kind_of_type(source)
    if kind is None:
        raise OptionError(f"{label(path)}: {type_name(source)} cannot be written as JSON")
    if shape is None:
        return Form(kind, null)
    fits = shape.kind in _WRITABLE_AS[kind] or (kind == JsonKind.NULL and shape.nullable)
    if not fits or (
        kind == shape.kind == JsonKind.INTEGER and source.bit_width > shape.type.bit_width
    ):
        raise _type_error(source, shape, path)
    if shape.kind in (JsonKind.EPOCH_DAYS, JsonKind.EPOCH_MILLIS):
        return Form(shape.kind, null)
    if kind == JsonKind.DECIMAL and shape.kind == JsonKind.TEXT:
        return Form(JsonKind.DECIMAL_TEXT, null)
    if kind == JsonKind.DECIMAL and shape.kind in (JsonKind.DECIMAL, JsonKind.DECIMAL_BYTES):
        whole_digits = source.precision - source.scale
        has_room = whole_digits <= shape.type.precision - shape.type.scale
        if source.scale > shape.type.scale or not has_room:
            raise _type_error(source, shape, path)
        # the bytes have no scale of their own, so it must be the schema's
        return Form(shape.kind, null, scale=shape.type.scale)
    return Form(kind, null)


def _form_with_item(
    kind: JsonKind, source: pa.DataType, shape: Shape | None, path: str, null: Null
) -> Form:
    """Return how lists or maps (`kind`) of type `source` are written. `shape`: that of the JSON
    Schema, None without one; `null`: how a null list or map is written. Raises OptionError for
    items that do not fit the schema."""
    is_map = kind == JsonKind.MAP
    item_type = source.item_type if is_map else source.value_type
    item_path = f"{path}{{}}" if is_map else f"{path}[]"
    if shape is None:
        return Form(kind, null, {"": _make_form(item_type, None, item_path, Null.WRITTEN)})
    if shape.kind != kind:
        raise _type_error(source, shape, path)
    inner = shape_of_field(shape.item)
    item_null = Null.WRITTEN if inner.nullable else Null.REFUSED
    return Form(kind, null, {"": _make_form(item_type, inner, item_path, item_null)})


def _field_forms(source: pa.DataType, shape: Shape | None, path: str) -> dict[str, Form]:
    """Return how each field of structs of type `source` is written, by name. `shape`: that of the
    JSON Schema, None without one; `path` names the structs in errors. Raises OptionError for a
    field that does not fit the schema, and for one that it requires and `source` lacks."""
    if shape is not None and shape.kind not in (JsonKind.STRUCT, JsonKind.MAP):
        raise _type_error(source, shape, path)
    check_distinct(source, path)
    forms: dict[str, Form] = {}
    for column in source:
        field_path = child_path(path, column.name)
        if shape is None:
            forms[column.name] = _make_form(column.type, None, field_path, Null.OMITTED)
            continue
        inner = shape.field_shape(column.name, field_path)
        null = Null.OMITTED
        if column.name in shape.required:
            null = Null.WRITTEN if inner.nullable else Null.REFUSED
        forms[column.name] = _make_form(column.type, inner, field_path, null)
    if shape is not None:
        missing = sorted(shape.required & shape.children.keys() - forms.keys())
        if missing:
            raise OptionError(
                f"{label(path)}: the JSON Schema requires the field {missing[0]}, which is not "
                "there"
            )
    return forms


def _type_error(source: pa.DataType, shape: Shape, path: str) -> OptionError:
    """Return the error for rows of type `source` that cannot be written as values of this shape."""
    return OptionError(
        f"{label(path)} is {type_name(source)}, which cannot be written as {shape.description} of "
        "the JSON Schema"
    )


# --- writing columns: string arrays, null where the value is null -------------------------------


@cache
def _literal(text: str) -> Any:
    """Return a string scalar, made without pa.scalar, which imports pandas."""
    return arrow.repeat_text(text, 1)[0]


def _enclose(before: str, texts: pa.Array, after: str) -> pa.Array:
    """Return each text with `before` in front of it and `after` behind it; null stays null."""
    return pc.binary_join_element_wise(
        _literal(before), texts, _literal(after), _literal(""), null_handling="emit_null"
    )


def _write(form: Form, values: pa.Array) -> pa.Array:
    """Return the JSON text of each value, written as `form` says; null for null. Raises
    _WriteError."""
    if form.null is Null.REFUSED and values.null_count:
        raise _null_error(int(np.flatnonzero(~arrow.is_valid(values))[0]))
    if form.kind == JsonKind.STRUCT:
        return _write_structs(form, values)
    if form.kind == JsonKind.LIST:
        return _write_lists(form, values)
    if form.kind == JsonKind.MAP:
        return _write_maps(form, values)
    if form.kind == JsonKind.DECIMAL_BYTES:
        return _write_each(values, lambda value: _write_decimal_bytes(value, form.scale))
    return _WRITERS[form.kind](values)


def _null_error(row: int) -> _WriteError:
    """Return the error for a null in this row where the JSON Schema forbids null."""
    return _WriteError(row, "is null, which the JSON Schema forbids")


def _write_structs(form: Form, values: pa.Array) -> pa.Array:
    """Write structs as objects: the texts ,"name":value of all fields are joined, where an omitted
    field has none; then the first comma becomes the brace."""
    valid = arrow.is_valid(values)
    parts = []
    # flatten: a field is null where the struct is null, whatever its column has there
    for (name, field_form), column in zip(form.children.items(), values.flatten(), strict=True):
        try:
            if field_form.null is Null.REFUSED and values.null_count:
                rows = np.flatnonzero(valid)
                nulls = np.flatnonzero(~arrow.is_valid(column)[rows])
                if len(nulls):
                    raise _null_error(int(rows[nulls[0]]))
                field_form = replace(field_form, null=Null.OMITTED)
            texts = _write(field_form, column)
        except _WriteError as error:
            error.path.append(f".{name}")
            raise
        if field_form.null is Null.WRITTEN:
            texts = texts.fill_null(_literal("null"))
        parts.append(_enclose(f",{syntax.quote(name)}:", texts, ""))
    if parts:
        # not null_handling="skip": pyarrow 26 loses a row that has only nulls
        joined = pc.binary_join_element_wise(
            *parts, _literal("}"), _literal(""), null_handling="replace", null_replacement=""
        )
        joined = pc.if_else(
            pc.equal(joined, _literal("}")),
            _literal("{}"),
            pc.binary_replace_slice(joined, 0, 1, "{"),
        )
    else:
        joined = arrow.repeat_text("{}", len(values))
    return null_outside(joined, valid) if values.null_count else joined


def _write_lists(form: Form, values: pa.Array) -> pa.Array:
    """Return the JSON array of each list; null stays null. Raises _WriteError."""
    offsets = offsets_of(item_counts(values), np.int32)
    items = values.flatten()
    try:
        texts = _write(form.item, items).fill_null(_literal("null"))
    except _WriteError as error:
        raise _as_list_error(error, offsets) from None
    return _join_items(values, offsets, texts, "[", "]")


def _write_maps(form: Form, values: pa.Array) -> pa.Array:
    """Return the JSON object of each map; null stays null. Raises _WriteError."""
    offsets = offsets_of(item_counts(values), np.int32)
    keys, items = map_items(values)
    try:
        texts = _write(form.item, items).fill_null(_literal("null"))
    except _WriteError as error:
        raise _as_list_error(error, offsets, str(keys[error.row].as_py())) from None
    pairs = pc.binary_join_element_wise(_write_strings(keys), texts, _literal(":"))
    return _join_items(values, offsets, pairs, "{", "}")


def _as_list_error(
    error: _WriteError, offsets: NDArray[np.int32], key: str | None = None
) -> _WriteError:
    """Return the error of an item as an error of the list or map that has the item: with its row,
    and the item's index in the list, or its `key` in the map, added to the path."""
    row = int(np.searchsorted(offsets, error.row, side="right")) - 1
    index = error.row - int(offsets[row])
    error.path.append(f"[{index}]" if key is None else f".{cut(key, MAX_KEY)}")
    error.row = row
    return error


def _join_items(
    values: pa.Array, offsets: NDArray[np.int32], texts: pa.Array, before: str, after: str
) -> pa.Array:
    """Return the JSON text of each list or map (`values`), null for null. `texts`: those of all
    items; `offsets`: list i has the items from offsets[i] up to offsets[i + 1]. `before` and
    `after` are the brackets."""
    lists = pa.ListArray.from_arrays(arrow.from_numpy(offsets), texts)
    joined = _enclose(before, pc.binary_join(lists, _literal(",")), after)
    return null_outside(joined, arrow.is_valid(values)) if values.null_count else joined


def _write_strings(values: pa.Array) -> pa.Array:
    """Write strings with quotes, and escape each character that they have and that needs it."""
    data, _ = content_of(values)
    needs_escape = (data < 0x20) | (data == ord('"')) | (data == ord("\\"))
    chars = map(chr, np.unique(data[needs_escape]).tolist())
    escaped = values
    for char in sorted(chars, key=lambda char: char != "\\"):  # backslash first
        escaped = pc.replace_substring(escaped, pattern=char, replacement=syntax.quote(char)[1:-1])
    return _enclose('"', escaped, '"')


def _cast_to_text(values: pa.Array) -> pa.Array:
    """Return numbers, or booleans, as their JSON texts, which are those of a cast to string."""
    return values.cast(pa.string())


def _write_floats(values: pa.Array) -> pa.Array:
    """Write numbers, each with a point or an exponent. Raises _WriteError for NaN and infinity."""
    rows = np.flatnonzero(~flags_of(pc.is_finite(values)) & arrow.is_valid(values))
    if len(rows):
        raise _WriteError(
            int(rows[0]), f"is {values[int(rows[0])].as_py()}, which JSON does not have"
        )
    texts = values.cast(pa.string())
    whole = pc.equal(pc.floor(values), values)
    if pc.any(whole).as_py():  # 1.0, as Spark writes it: 1 would be taken for an integer
        bare = pc.invert(pc.match_substring_regex(texts, "[.e]"))
        texts = pc.if_else(bare, _enclose("", texts, ".0"), texts)
    return texts


def _write_each(values: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    """Return the JSON text that `write` returns for each value, null for null: for types that no
    function of Arrow converts."""
    texts = [None if value is None else write(value).encode() for value in values.to_pylist()]
    return arrow.binary_array(texts).view(pa.string())


def _write_base64(data: bytes) -> str:
    """Return bytes as a JSON string of their Base64."""
    return f'"{binascii.b2a_base64(data, newline=False).decode()}"'


def _write_decimal_bytes(value: Decimal, scale: int) -> str:
    """Return a decimal as Kafka Connect writes it: its unscaled number, as bytes of two's
    complement, in a JSON string of their Base64."""
    number = int(value.scaleb(scale, Context(prec=80)))  # exact: decimals have up to 76 digits
    size = (number + (number < 0)).bit_length() // 8 + 1  # as Java's BigInteger.toByteArray
    return _write_base64(number.to_bytes(size, "big", signed=True))


def _write_dates(values: pa.Array) -> pa.Array:
    """Return dates as JSON strings like "2024-01-31". Raises _WriteError outside of the years 0 to
    9999."""
    days = values.cast(pa.int32())
    _check_range(days, *_DAYS, "is a date outside of the years 0 to 9999")
    return _enclose('"', values.cast(pa.string()), '"')


def _write_times(values: pa.Array) -> pa.Array:
    """Return timestamps as JSON strings of ISO 8601, in UTC with a Z, or local ones without a zone.
    Raises _WriteError outside of the years 0 to 9999."""
    micros = values.cast(pa.int64())
    (first_day, last_day), day_us = _DAYS, 86_400_000_000
    first, last = first_day * day_us, (last_day + 1) * day_us - 1
    _check_range(micros, first, last, "is a time outside of the years 0 to 9999")
    zone = "" if values.type.tz is None else "Z"
    texts = micros.cast(pa.timestamp("us")).cast(pa.string())
    return _enclose('"', pc.binary_replace_slice(texts, 10, 11, "T"), f'{zone}"')


_DAYS: Final = (-719_528, 2_932_896)
"""The first and last day of the years 0 to 9999."""


def _check_range(numbers: pa.Array, first: int, last: int, reason: str) -> None:
    """Raise _WriteError with this reason for a number that is not from `first` to `last`."""
    values = arrow.to_numpy(numbers)
    wrong = np.flatnonzero(((values < first) | (values > last)) & arrow.is_valid(numbers))
    if len(wrong):
        raise _WriteError(int(wrong[0]), reason)


def _write_millis(values: pa.Array) -> pa.Array:
    """Return timestamps as numbers of milliseconds. Raises _WriteError for one that has
    microseconds."""
    micros = values.cast(pa.int64())
    wrong = np.flatnonzero((arrow.to_numpy(micros) % 1000 != 0) & arrow.is_valid(micros))
    if len(wrong):
        raise _WriteError(
            int(wrong[0]), "has microseconds, and the JSON Schema has milliseconds (Connect's)"
        )
    return (
        micros.cast(pa.timestamp("us")).cast(pa.timestamp("ms")).cast(pa.int64()).cast(pa.string())
    )


def _check_json(values: pa.Array, kind: type[Any] = object) -> pa.Array:
    """Return strings or bytes unchanged, as strings. Raises _WriteError unless each is the JSON
    text of a value of this Python type."""
    texts = values.cast(pa.binary())
    for row, text in enumerate(texts.to_pylist()):
        if text is not None:
            try:
                value = syntax.parse(b" " + text)  # with the blank, a BOM is an error
            except syntax.JsonSyntaxError as error:
                raise _WriteError(row, f"must be JSON text, and {error.reason}") from None
            if not isinstance(value, kind):
                what = "an object" if kind is dict else "an array"
                raise _WriteError(
                    row, f"must be the JSON text of {what}, not {syntax.json_type_name(value)}"
                )
    return texts.cast(pa.string())


_WRITERS: Final[dict[JsonKind, Callable[[pa.Array], pa.Array]]] = {
    JsonKind.BOOL: _cast_to_text,
    JsonKind.INTEGER: _cast_to_text,
    JsonKind.FLOAT: _write_floats,
    JsonKind.DECIMAL: _cast_to_text,
    JsonKind.DECIMAL_TEXT: lambda values: _enclose('"', _cast_to_text(values), '"'),
    JsonKind.AS_TEXT: _write_strings,
    JsonKind.JSON_TEXT: _check_json,
    JsonKind.OBJECT_TEXT: lambda values: _check_json(values, dict),
    JsonKind.ARRAY_TEXT: lambda values: _check_json(values, list),
    JsonKind.OWN_TEXT: lambda values: values,
    JsonKind.BINARY: lambda values: _write_each(values, _write_base64),
    JsonKind.DATE: _write_dates,
    JsonKind.TIMESTAMP: _write_times,
    JsonKind.LOCAL_TIMESTAMP: _write_times,
    JsonKind.DURATION: lambda values: _write_each(
        values.cast(pa.int64()), lambda micros: f'"{syntax.duration_text(micros)}"'
    ),
    JsonKind.EPOCH_DAYS: lambda values: values.cast(pa.int32()).cast(pa.string()),
    JsonKind.EPOCH_MILLIS: _write_millis,
    JsonKind.NULL: lambda values: pa.nulls(len(values), pa.string()),
}
