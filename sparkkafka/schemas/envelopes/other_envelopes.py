"""The envelopes of Maxwell, Canal, GoldenGate (ogg) and of flattened Debezium.

Each form is decoded as its own struct, and `EnvelopeForm.reshape` makes Debezium's envelope of it,
whose fields are those of `debezium.unwrap`. Maxwell, Canal and GoldenGate name the key's columns in
the value, or not at all, so their keys are taken from the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.config.kinds import CANAL, DEBEZIUM_FLAT, MAXWELL, OGG
from sparkkafka.protocol.records.arrow import blob_offsets, from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import Flags
from sparkkafka.schemas.arrays import field_of, flags_of, item_counts, scalar, struct_of
from sparkkafka.schemas.envelopes import debezium
from sparkkafka.schemas.envelopes.connect_types import ConnectType, type_of_arrow
from sparkkafka.schemas.envelopes.semantic_types import (
    BadRows,
    FieldContext,
    convert,
    value_type,
    without,
)
from sparkkafka.schemas.json import syntax

_TEXT: Final = ConnectType(pa.string())
_LONG: Final = ConnectType(pa.int64())


@dataclass(frozen=True)
class EnvelopeForm:
    """An envelope that is not Debezium's.

    `row`, `old`: the fields that have the row, and its values before an update. `reshape` returns
    the fields of Debezium's envelope by name. `marks`: fields that each record has, and that no
    earlier form of `FORMS` has all of. `has_lists`: one record has several rows.
    `numbers_are_text`: a column's value is text in JSON, whatever its type. `omits_columns`: an
    update has only the columns that changed, unless the source is set to send all.
    """

    row: str
    old: str
    fields: Mapping[str, ConnectType]
    reshape: Callable[[pa.Array], dict[str, pa.Array]]
    marks: frozenset[str]
    has_lists: bool = False
    numbers_are_text: bool = False
    omits_columns: bool = False

    def node(self, row: ConnectType, change: pa.DataType) -> ConnectType:
        """Return the type of JSON whose rows and change are of these types."""
        if self.numbers_are_text:
            row = _with_text_columns(row)
        index = change.get_field_index("source")
        source = type_of_arrow(change.field(index).type).children if index >= 0 else {}
        sides = {self.row: row, self.old: row}
        if self.has_lists:
            sides = {name: ConnectType(children={"": row}, is_list=True) for name in sides}
        return ConnectType(children={**source, **self.fields, **sides})


def _with_text_columns(row: ConnectType) -> ConnectType:
    """Return a row's type with text for each column that is neither nested nor binary."""
    children = {
        name: _TEXT if child.leaf is not None and not pa.types.is_binary(child.leaf) else child
        for name, child in row.children.items()
    }
    return ConnectType(children=children)


def _child(values: pa.Array, name: str) -> pa.Array:
    return pc.struct_field(values, [values.type.get_field_index(name)])


def _ops(types: pa.Array, ops: Mapping[str, str]) -> pa.Array:
    """Return Debezium's op for each type of change. Other types stay, and make their rows bad."""
    result = types
    for name, op in ops.items():
        matches = flags_of(pc.equal(types, scalar(name)))
        if matches.any():
            result = pc.if_else(from_numpy(matches), scalar(op), result)
    return result


# --- Maxwell ------------------------------------------------------------------------------------

_MAXWELL_OPS: Final = {
    "insert": "c",
    "update": "u",
    "delete": "d",
    "bootstrap-insert": "r",
    "bootstrap-start": "m",
    "bootstrap-complete": "m",
}


_THOUSAND: Final = scalar(1000).cast(pa.int16()).cast(pa.decimal128(5))


def _maxwell(values: pa.Array) -> dict[str, pa.Array]:
    """Return the parts of Maxwell's messages, one array for each field of Debezium's envelope."""
    types, data = _child(values, "type"), _child(values, "data")
    is_ddl = flags_of(pc.match_substring_regex(types, "^(table|database)-"))
    binlog = _child(values, "position")  # such as mysql-bin.000003:1234
    file = pc.replace_substring_regex(binlog, r"^.*\.(\d+):.*$", r"\1")
    at = pc.replace_substring_regex(binlog, r"^.*:", "")
    # The last row of a transaction has `commit` in the place of `xoffset`.
    last = pc.if_else(_child(values, "commit"), scalar(9_999_999_999), scalar(0))
    row = pc.coalesce(_child(values, "xoffset"), last, scalar(0))
    position = pc.binary_join_element_wise(
        pc.utf8_lpad(file, 20, "0"),
        pc.utf8_lpad(at, 20, "0"),
        pc.utf8_lpad(row.cast(pa.string()), 10, "0"),
        scalar(":"),
    )
    return {
        "op": _ops(without(types, is_ddl), _MAXWELL_OPS),
        "ddl": without(types, ~is_ddl),
        "before": data,
        "after": data,
        "old": _child(values, "old"),
        # As decimals, which do not overflow; one that is no number of 64 bits makes its row bad.
        "ts_ms": pc.multiply(_child(values, "ts").cast(pa.decimal128(19)), _THOUSAND),
        "position": position,
        "transaction": _transaction(_child(values, "xid").cast(pa.string())),
    }


def _transaction(ids: pa.Array) -> pa.Array:
    """Return transactions of which only the id is known."""
    nulls = pa.nulls(len(ids), pa.int64())
    return struct_of(debezium.TRANSACTION_TYPE, len(ids), is_valid(ids), [ids, nulls, nulls])


# --- Canal --------------------------------------------------------------------------------------


def _canal(values: pa.Array) -> dict[str, pa.Array]:
    """Return Debezium's fields of records that `explode` has split, with one row each."""
    types, data = _child(values, "type"), _child(values, "data")
    is_ddl = flags_of(_child(values, "isDdl"))
    is_ddl &= ~flags_of(pc.equal(types, scalar("TRUNCATE")))
    return {
        # INIT is a row of the initial load, by Alibaba's services that write Canal's messages.
        "op": _ops(
            without(types, is_ddl),
            {"INIT": "r", "INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"},
        ),
        "ddl": without(types, ~is_ddl),
        "before": data,
        "after": data,
        "old": _child(values, "old"),
        "ts_ms": _child(values, "ts"),
        "position": pa.nulls(len(values), pa.string()),
    }


def copied_bytes(values: pa.Array, form: EnvelopeForm) -> int:
    """Return the bytes of text that `explode` copies to each of a record's rows."""
    counts = np.maximum(item_counts(_child(values, form.row)), 1)
    texts = [_child(values, field.name) for field in values.type if pa.types.is_string(field.type)]
    return sum(int(np.diff(blob_offsets(text)).astype(np.int64) @ counts) for text in texts)


def explode(values: pa.Array, form: EnvelopeForm) -> tuple[pa.Array, Any]:
    """Split decoded records with lists of rows (and of old rows): return one struct for each row,
    with the record's other fields, and the index of its record. A record without rows has one
    struct."""
    counts = np.maximum(item_counts(_child(values, form.row)), 1)
    records = np.repeat(np.arange(len(values)), counts)
    # Each struct's index in its record.
    ordinal = np.arange(len(records)) - np.repeat(np.cumsum(counts) - counts, counts)
    index = from_numpy(records)
    children = []
    for field in values.type:
        child = _child(values, field.name)
        if field.name not in (form.row, form.old):
            children.append(child.take(index))
            continue
        row_counts = item_counts(child)
        starts = np.cumsum(row_counts) - row_counts
        has_item = ordinal < row_counts[records]
        at = np.where(has_item, starts[records] + ordinal, 0)
        items = child.flatten()
        if not len(items):
            children.append(pa.nulls(len(records), field.type.value_type))
            continue
        taken = items.take(from_numpy(at))
        children.append(
            struct_of(taken.type, len(taken), is_valid(taken) & has_item, taken.flatten())
        )
    fields = [
        pa.field(field.name, child.type) for field, child in zip(values.type, children, strict=True)
    ]
    valid = is_valid(values)[records]
    return struct_of(pa.struct(fields), len(records), valid, children), records


# --- GoldenGate -----------------------------------------------------------------------------------


def _ogg(values: pa.Array) -> dict[str, pa.Array]:
    """Return the parts of Oracle GoldenGate's messages, one array for each field of Debezium's
    envelope."""
    before = _child(values, "before")
    return {
        # K is an update of the key.
        "op": _ops(_child(values, "op_type"), {"I": "c", "U": "u", "K": "u", "D": "d", "T": "t"}),
        "before": before,
        "after": _child(values, "after"),
        "old": before,
        "ts_ms": _epoch_ms(_child(values, "current_ts")),
        "position": pc.utf8_lpad(_child(values, "pos"), 20, "0"),
    }


def _epoch_ms(texts: pa.Array) -> pa.Array:
    """Return the milliseconds since 1970 of times as text, null for other texts."""
    is_time = flags_of(
        pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?$")
    )
    texts = pc.replace_substring_regex(without(texts, ~is_time), r"(\.\d{3})\d+", r"\1")
    context = FieldContext(BadRows(), np.arange(len(texts)))  # the row of a 30 February is good
    return convert(texts, _TEXT, pa.timestamp("ms"), context).view(pa.int64())


# --- flattened Debezium ---------------------------------------------------------------------------


def flat_node(node: ConnectType) -> ConnectType:
    """Return Debezium's envelope that has what a flattened row says. Its fields `before` and
    `after` are the row."""
    row = {name: child for name, child in node.children.items() if not name.startswith("__")}
    source = {
        _source_name(name): child
        for name, child in node.children.items()
        if name.startswith("__") and name not in _FLAT_FIELDS
    }
    return ConnectType(
        children={
            "before": ConnectType(children=row),
            "after": ConnectType(children=row),
            "source": ConnectType(children=source),
            "op": _TEXT,
            "ts_ms": _LONG,
            "ts_us": _LONG,
        }
    )


def _source_name(name: str) -> str:
    """Return the name, within Debezium's `source`, of a flattened row's field: `lsn` for `__lsn` or
    `__source_lsn`, which ExtractNewRecordState adds for add.fields=lsn or source.lsn."""
    return name.removeprefix("__").removeprefix("source_")


def flat_kind(node: ConnectType) -> str | None:
    """Return HEARTBEAT, TRANSACTION or MESSAGE if `node`, the type of a record's value, is that of
    a record that Debezium's ExtractNewRecordState leaves unchanged; None if it is a row's."""
    names = node.children.keys()
    if any(name.startswith("__") for name in names):
        return None
    if names == {"ts_ms"}:
        return debezium.HEARTBEAT
    if {"status", "id", "event_count"} <= names:
        return debezium.TRANSACTION
    return debezium.MESSAGE if {"op", "source", "message"} <= names else None


_FLAT_FIELDS: Final = ("__op", "__deleted", "__ts_ms", "__ts_us", "__ts_ns")


def prune_flat(node: ConnectType, wanted: ConnectType) -> ConnectType:
    """Return the fields of a flattened row that are needed for Debezium's envelope `wanted`."""
    row, source = wanted.children["after"], wanted.children.get("source", ConnectType())

    def is_needed(name: str) -> bool:
        """Return whether the envelope needs the flattened row's field of this name."""
        if not name.startswith("__"):
            return name in row.children
        return name in _FLAT_FIELDS or _source_name(name) in source.children

    children = {name: row.children.get(name, child) for name, child in node.children.items()}
    return ConnectType(children={name: children[name] for name in children if is_needed(name)})


def flat_wire(node: ConnectType) -> ConnectType:
    """Return the flattened row of Debezium's envelope `node`, to decode it without a schema."""
    children = dict(node.children["after"].children)
    source = node.children.get("source", ConnectType()).children
    children["__op"] = children["__deleted"] = _TEXT
    children["__ts_ms"] = children["__ts_us"] = _LONG
    for name, child in source.items():
        children.setdefault(f"__{name}", child)
        children.setdefault(f"__source_{name}", child)
    return ConnectType(children=children)


def flat(
    values: pa.Array, wanted: ConnectType, payloads: pa.Array | None, bad_rows: BadRows
) -> pa.Array:
    """Return flattened rows as Debezium's envelopes of the type `wanted`. `payloads`: the texts, if
    they are JSON of which some may be other records of Debezium: those have no op."""
    count, valid = len(values), is_valid(values)

    context = FieldContext(bad_rows, np.arange(count))

    def own_field(name: str, target: pa.DataType) -> pa.Array:
        """Return a field that ExtractNewRecordState has added; nulls if it has not."""
        found = field_of(values, name)
        if found is None:
            return pa.nulls(count, target)
        return convert(found, type_of_arrow(found.type), target, context.below(name))

    op = pc.coalesce(own_field("__op", pa.string()), scalar("u"))
    is_deleted = flags_of(pc.equal(own_field("__deleted", pa.string()), scalar("true")))
    if is_deleted.any():
        op = pc.if_else(from_numpy(is_deleted), scalar("d"), op)
    row = wanted.children["after"]
    parts = [field_of(values, name) for name in row.children]
    is_row = valid
    if payloads is not None:
        is_empty = valid.copy()
        for part in (field_of(values, "__op"), *parts):
            if part is not None:
                is_empty &= ~is_valid(part)
        others = debezium.other_records(payloads, is_empty)
        is_row = valid & ~np.logical_or.reduce([*others.values()])
        envelope = r'(?s)^\s*\{\s*"(before|after|source|op)"\s*:.*"op"\s*:\s*"[crudtm]"'
        is_envelope = is_empty & is_row & flags_of(pc.match_substring_regex(payloads, envelope))
        reason = "this is an envelope of Debezium, not a flattened row: set envelope=debezium"
        bad_rows.add(np.arange(count), is_envelope, "op", reason)
    rows = struct_of(row.wire, count, valid, parts)
    # `unwrap` takes `before` of a delete, else `after`.
    children: dict[str, pa.Array] = {"op": without(op, ~is_row), "before": rows, "after": rows}
    for name in ("ts_ms", "ts_us"):
        children[name] = own_field(f"__{name}", pa.int64())
    source = wanted.children.get("source", ConnectType())
    parts = []
    for name, node in source.children.items():
        found = [field_of(values, f"__source_{name}"), field_of(values, f"__{name}")]
        own = [array for array in found if array is not None and array.type == node.wire]
        parts.append(pc.coalesce(*own) if own else pa.nulls(count, node.wire))
    children["source"] = struct_of(source.wire, count, valid, parts)
    kind = pa.struct([(name, array.type) for name, array in children.items()])
    return struct_of(kind, count, valid, list(children.values()))


# --- all forms ------------------------------------------------------------------------------------

FORMS: Final[Mapping[str, EnvelopeForm]] = {
    CANAL: EnvelopeForm(
        "data",
        "old",
        {"type": _TEXT, "ts": _LONG, "isDdl": ConnectType(pa.bool_())},
        _canal,
        frozenset({"database", "table", "type", "data", "isDdl"}),
        has_lists=True,
        numbers_are_text=True,
    ),
    MAXWELL: EnvelopeForm(
        "data",
        "old",
        {
            "type": _TEXT,
            "ts": _LONG,
            "xid": _LONG,
            "xoffset": _LONG,
            "commit": ConnectType(pa.bool_()),
            "position": _TEXT,
        },
        _maxwell,
        frozenset({"database", "table", "type", "data"}),
    ),
    OGG: EnvelopeForm(
        "after",
        "before",
        {"op_type": _TEXT, "current_ts": _TEXT, "pos": _TEXT},
        _ogg,
        frozenset({"table", "op_type", "op_ts", "pos"}),
        omits_columns=True,
    ),
}


def form_of(names: Set[str]) -> str | None:
    """Return the envelope, as the option names it, of records with these fields; None if it is none
    of this module."""
    if names & {*_FLAT_FIELDS, "__lsn", "__source_ts_ms"}:
        return DEBEZIUM_FLAT
    return next((name for name, form in FORMS.items() if form.marks <= names), None)


def omitted_columns(envelopes: pa.Array, form: EnvelopeForm, texts: pa.Array) -> dict[str, Flags]:
    """Return for each column which records omit it: updates whose JSON (`texts`) does not name the
    column, so that it is null in `envelopes`."""
    row = _child(envelopes, "after")
    is_update = flags_of(pc.equal(_child(envelopes, "op"), scalar("u"))) & is_valid(row)
    omitted = {field.name: is_update & ~is_valid(_child(row, field.name)) for field in row.type}
    records = np.flatnonzero(np.logical_or.reduce(list(omitted.values())))
    for record, text in zip(
        records.tolist(), texts.take(from_numpy(records)).to_pylist(), strict=True
    ):
        columns = syntax.parse(text)[form.row]
        for name in columns.keys() & omitted.keys():
            omitted[name][record] = False
    return omitted


def reshape_rows(
    values: pa.Array, form: EnvelopeForm, node: ConnectType
) -> tuple[pa.Array, ConnectType]:
    """Return decoded envelopes of a form, whose type is `node`, as Debezium's envelopes, and the
    type of these."""
    children = form.reshape(values)
    source = {
        field.name: _child(values, field.name)
        for field in values.type
        if field.name not in (form.row, form.old)
    }
    source_type = pa.struct([(name, array.type) for name, array in source.items()])
    valid = is_valid(values)
    children["source"] = struct_of(source_type, len(values), valid, list(source.values()))
    envelope_type = pa.struct([(name, array.type) for name, array in children.items()])
    types = {name: type_of_arrow(array.type) for name, array in children.items()}
    row = node.children[form.row]
    types |= dict.fromkeys(("before", "after", "old"), row.item if form.has_lists else row)
    return (
        struct_of(envelope_type, len(values), valid, list(children.values())),
        ConnectType(children=types),
    )


# --- types from samples ---------------------------------------------------------------------------

_MYSQL_TYPES: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "integer", "year"), pa.int32()),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "real": pa.float64(),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), pa.timestamp("us")),
}


def _mysql_type(text: str) -> pa.DataType:
    """Return the type of a column by its type in MySQL, such as decimal(10,2)."""
    match = re.match(r"\s*(\w+)(?:\(\s*(\d+)(?:\s*,\s*(\d+))?\s*\))?(.*)", text.lower())
    if match is None:
        return pa.string()
    name, precision, scale = match[1], match[2], match[3]
    if name in ("decimal", "numeric"):
        digits = int(precision or 10), int(scale or 0)
        return pa.decimal128(*digits) if digits[0] <= 38 else pa.string()
    if "unsigned" in match[4]:
        wider = {"int": pa.int64(), "integer": pa.int64(), "bigint": pa.decimal128(20, 0)}
        return wider.get(name, _MYSQL_TYPES.get(name, pa.string()))
    return _MYSQL_TYPES.get(name, pa.string())


def sample_type(
    form: EnvelopeForm, samples: Sequence[bytes], keys: Sequence[bytes], infer: Any, *, infers: bool
) -> pa.DataType | None:
    """Return the type struct<row, change> of samples; None if they lack the types of columns and
    `infers` is false. `keys` are record keys, which may name the key's columns; `infer` returns the
    type of JSON texts."""
    documents = [document for document in map(_parsed, samples) if document]
    rows = [document for document in documents if document.get(form.row)]
    if form.numbers_are_text and any("mysqlType" in document for document in rows):
        types: dict[str, pa.DataType] = {}
        for document in rows:
            for name, text in (document.get("mysqlType") or {}).items():
                types[name] = _mysql_type(str(text))
        row = pa.struct(list(types.items()))
    elif not infers:
        return None
    else:
        found = [document[form.row] for document in rows]
        if form.has_lists:
            found = [item for items in found for item in items]
        found += [document["before"] for document in documents if document.get("before")]
        if not found:
            return None
        row = infer([json.dumps(item).encode() for item in found])
    not_of_source = {
        *("data", "old", "before", "after", "mysqlType", "sqlType"),
        *("primary_keys", "primary_key", "primary_key_columns", "pkNames"),
    }
    others = [
        {name: value for name, value in document.items() if name not in not_of_source}
        for document in documents
    ]
    source = infer([json.dumps(document).encode() for document in others])
    change = debezium.change_type(source if pa.types.is_struct(source) else pa.struct([]))
    names = _key_names(documents, keys)
    key = [field for field in row if field.name in names]
    fields = list(change)
    if key:
        at = next(number for number, field in enumerate(fields) if field.name == "unavailable")
        fields[at:at] = [pa.field(name, pa.struct(key)) for name in ("key", "old_key")]
    return pa.struct([("row", row), ("change", pa.struct(fields))])


def _key_names(documents: Sequence[Mapping[str, Any]], keys: Sequence[bytes]) -> set[str]:
    """Return the names of the key's columns: of the newest value that names them, else of the
    record keys of Maxwell, whose fields are pk.NAME."""
    for document in reversed(documents):
        for field in ("primary_keys", "primary_key_columns", "pkNames"):
            if isinstance(names := document.get(field), list) and names:
                return {str(name) for name in names}
    for key in map(_parsed, reversed(keys)):
        if names := [name.removeprefix("pk.") for name in key if name.startswith("pk.")]:
            return set(names)
    return set()


def _parsed(text: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty one for another text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def flat_type(node: ConnectType) -> pa.DataType:
    """Return struct<row, change> of flattened rows."""
    wanted = flat_node(node)
    source = value_type(wanted.children["source"])
    row = value_type(wanted.children["after"])
    return pa.struct([("row", row), ("change", debezium.change_type(source))])
