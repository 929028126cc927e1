"""Debezium's envelope: before, after, op and source, as a table's row and a change.

`change_type` has the fields of a change that the envelope itself gives. Its key and what Kafka
knows are added where the rows of a read are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import Flags, Ints
from sparkkafka.schemas.arrays import field_of, flags_of, offsets_of, scalar, struct_of
from sparkkafka.schemas.envelopes.connect_types import ConnectType, type_of_arrow
from sparkkafka.schemas.envelopes.semantic_types import (
    PLACEHOLDER,
    SCALARS,
    BadRows,
    FieldContext,
    Placeholder,
    check_target,
    convert,
    find_placeholders,
    value_type,
    without,
)
from sparkkafka.schemas.schema_errors import label

CHANGE: Final = "change"
"""The column of a read that says what happened to the row."""

ROW, TRUNCATE, MESSAGE, TOMBSTONE = "row", "truncate", "message", "tombstone"
HEARTBEAT, SCHEMA_CHANGE, TRANSACTION = "heartbeat", "schema_change", "transaction"

TRANSACTION_TYPE: Final = pa.struct(
    [("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())]
)
_UNAVAILABLE_TYPE: Final = pa.list_(pa.field("element", pa.string()))

KIND_OF_OP: Final = {"c": ROW, "u": ROW, "d": ROW, "r": ROW, "t": TRUNCATE, "m": MESSAGE}

_OTHER_RECORDS: Final = {
    HEARTBEAT: r'^\s*\{\s*"ts_ms"\s*:\s*\d+\s*\}\s*$',
    TRANSACTION: (
        r'^\s*\{\s*"status"\s*:\s*"(BEGIN|END)"\s*,'
        r'\s*"id"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"(event_count|ts_ms)"\s*:'
    ),
    SCHEMA_CHANGE: rf'^\s*\{{\s*"source"\s*:\s*\{{{SCALARS}\}}{SCALARS}"(databaseName|ddl)"\s*:',
    MESSAGE: r'^\s*\{\s*"op"\s*:\s*"m"[^{}]*"source"\s*:\s*\{',
}
"""The other records of Debezium, as JSON without a schema, by kind. A row may have the same columns
in another order, or others. Debezium's `source` has no objects in it."""

_POSITION_FIELDS: Final = {
    **dict.fromkeys(("lsn", "pos", "row", "ssn", "ord", "ts_ms"), pa.int64()),
    # Read as text, which numbers can be: Informix's change_lsn and commit_lsn are numbers, and
    # Debezium's docs show event_serial_no, a number, in quotes.
    **dict.fromkeys(
        ("file", "change_lsn", "commit_lsn", "event_serial_no", "scn", "rs_id", "sequence"),
        pa.string(),
    ),
}
"""Fields of `source` from which the position is made, with the type that connectors give them."""


def change_type(source: pa.DataType) -> pa.DataType:
    """Return the type of a change, as far as the envelope gives it."""
    return pa.struct(
        [
            ("op", pa.string()),
            ("kind", pa.string()),
            ("ts_ms", pa.int64()),
            ("ts_us", pa.int64()),
            ("position", pa.string()),
            ("source", source),
            ("transaction", TRANSACTION_TYPE),
            ("unavailable", _UNAVAILABLE_TYPE),
        ]
    )


def full_type(node: ConnectType) -> pa.DataType:
    """Return the type of all that `unwrap` makes: struct<row: …, change: …>. Raises SchemaError if
    the schema is not an envelope's."""
    after = node.children.get("after", node.children.get("before"))
    if after is None or "op" not in node.children:
        names = ", ".join(node.children) or "no fields"
        is_flat = any(name.startswith("__") for name in node.children)
        hint = ". If the connector uses ExtractNewRecordState, set envelope=debezium-flat"
        raise SchemaError(
            f"the schema is not one of Debezium's envelopes, which have op and after: "
            f"it has {names}{hint if is_flat else ''}"
        )
    _check_row(after)
    source = node.children.get("source")
    source_type = value_type(source) if source else pa.struct([("ts_ms", pa.int64())])
    return pa.struct([("row", value_type(after)), ("change", change_type(source_type))])


MONGODB_HINT: Final = (
    "changes of MongoDB have documents as JSON text; set envelope.columns=envelope and parse "
    "value.after with from_json, or set envelope=debezium-flat and let the connector use the "
    "transform ExtractNewDocumentState"
)


def _check_row(node: ConnectType) -> None:
    """Raise OptionError if a field `before` or `after` is not a row."""
    if not node.is_struct:
        raise OptionError(f"the field after is not a struct: {MONGODB_HINT}")


def kind_of(names: Set[str]) -> str | None:
    """Return the kind of records with these fields; None for envelopes, whose kind `op` says.
    Raises SchemaError if no record of Debezium has these fields."""
    if "op" in names:
        return None
    if {"status", "id"} <= names:
        return TRANSACTION
    if names & {"ddl", "tableChanges"}:
        return SCHEMA_CHANGE
    if names == {"ts_ms"}:
        return HEARTBEAT
    raise SchemaError(
        f"it is not a record of Debezium: it has the fields {', '.join(names) or 'none'}, not op"
    )


def node_of_target(target: pa.DataType, row: ConnectType) -> ConnectType:
    """Return the type of envelopes without a schema whose rows are of the type `row`, and whose
    change is that of `target`."""
    change = target.field("change").type
    source = pa.struct([])
    if change.get_field_index("source") >= 0:
        source = change.field("source").type
    known = {field.name: field for field in source}
    for name, position_type in _POSITION_FIELDS.items():
        known.setdefault(name, pa.field(name, position_type))
    others = type_of_arrow(
        pa.struct(
            [
                ("op", pa.string()),
                ("source", pa.struct(list(known.values()))),
                ("ts_ms", pa.int64()),
                ("ts_us", pa.int64()),
                ("transaction", TRANSACTION_TYPE),
            ]
        )
    )
    return ConnectType(children={"before": row, "after": row, **others.children})


def prune(node: ConnectType, target: pa.DataType, *, lenient: bool) -> ConnectType:
    """Return the fields of an envelope that `unwrap` needs for `target`. Raises OptionError for a
    field or type of `target` that it cannot give, and SchemaError if `op` is not text or `before`
    and `after` are no rows of one table; `lenient`: fields that it lacks are null."""
    row, change = target.field("row").type, target.field("change").type
    children = node.children
    if "op" in children and children["op"].leaf != pa.string():
        raise SchemaError("field op is not a string, so this is not an envelope of Debezium")
    wanted = {field.name for field in change}
    pruned: dict[str, ConnectType] = {}
    for name in ("before", "after"):
        if name in children:
            _check_row(children[name])
            check_target(children[name], row, "", lenient=lenient)
            pruned[name] = children[name].pruned(row)
    before, after = (pruned.get(side, ConnectType()).children for side in ("before", "after"))
    for name in before:
        if name in after and before[name].wire != after[name].wire:
            raise SchemaError(f"{label(name)} has another type in before than in after")
    for name in ("op", "ts_ms", "ts_us"):
        if name in children and children[name].leaf is not None:
            pruned[name] = children[name]
    if "transaction" in children and "transaction" in wanted:
        pruned["transaction"] = children["transaction"].pruned(TRANSACTION_TYPE)
    if "source" in children and children["source"].is_struct:
        fields: dict[str, ConnectType] = {}
        source = children["source"]
        if "source" in wanted:
            source_type = change.field("source").type
            check_target(source, source_type, "change.source", lenient=lenient)
            fields.update(source.pruned(source_type).children)
        if "position" in wanted:
            names = [name for name in _POSITION_FIELDS if name in source.children]
            fields.update({name: source.children[name] for name in names})
        if fields:
            pruned["source"] = ConnectType(children=fields, name=source.name)
    return ConnectType(children=pruned, name=node.name)


def unwrap(
    values: pa.Array,
    node: ConnectType,
    target: pa.DataType,
    kind: str | None,
    bad_rows: BadRows,
    rows: Ints | None = None,
    placeholder: Placeholder = PLACEHOLDER,
    payloads: pa.Array | None = None,
    omitted: Mapping[str, Flags] | None = None,
) -> pa.Array:
    """Return decoded envelopes of the type `node` as `target`, struct<row, change>. `kind`: that of
    all records, if their schema says it. `rows`: the record of each, if records have several.
    `placeholder`: what stands for values that were not sent. `payloads`: the texts, if they are
    JSON of which some may be other records of Debezium. `omitted`: by column, the records without
    it.

    Envelopes of Maxwell, Canal and GoldenGate have a field `old` with the values that an update
    replaced. Then key and old_key come from the rows.
    """
    count = len(values)
    rows = np.arange(count) if rows is None else rows
    context = FieldContext(bad_rows, rows)
    present = is_valid(values)

    op = field_of(values, "op") if kind is None else None
    kinds, is_row, is_delete = _kinds(values, present, op, kind, payloads, context)
    row_type, change = target.field("row").type, target.field("change").type
    before, after = field_of(values, "before"), field_of(values, "after")
    lacks_after = is_row & ~is_delete
    if after is not None:
        lacks_after &= ~is_valid(after)
    if lacks_after.any():
        bad_rows.add(rows, lacks_after, "after", "it is missing, and op is not a delete")
    row_node = node.children.get("after", node.children.get("before", ConnectType()))

    def row_column(name: str) -> pa.Array | None:
        """Return a column of the rows; None if they do not have it."""
        return _row_column(before, after, is_delete, name) if name in row_node.children else None

    columns: list[pa.Array] = []
    missing_names: dict[str, Flags] = {}
    for column in row_type:
        wire = row_column(column.name)  # the values as decoded
        if wire is None:
            columns.append(pa.nulls(count, column.type))
            continue
        column_node = row_node.children[column.name]
        flags = find_placeholders(wire, column_node, placeholder)
        if omitted and (is_omitted := omitted[column.name]).any():
            flags = is_omitted if flags is None else is_omitted | flags
        if flags is not None:
            missing_names[column.name] = flags
            wire = without(wire, flags)
        columns.append(convert(wire, column_node, column.type, context.below(column.name)))
    old = field_of(values, "old")
    parts = []
    for part in change:
        if part.name in ("key", "old_key") and old is not None:
            keys = _keys(part, row_column, old, is_row & ~is_delete, context, row_node)
            parts.append(keys if part.name == "old_key" else without(keys, ~is_row))
        else:
            parts.append(_change_part(part, values, node, op, kinds, context, missing_names))
    columns_by_name = {
        "row": struct_of(row_type, count, is_row, columns),
        "change": struct_of(change, count, None, parts),
    }
    return struct_of(target, count, present, [columns_by_name[part.name] for part in target])


def _keys(
    part: pa.Field,
    row_column: Callable[[str], pa.Array | None],
    old: pa.Array,
    may_change: Flags,
    context: FieldContext,
    node: ConnectType,
) -> pa.Array:
    """Return the column key or old_key of changes (`part` says which), as structs of the key's
    columns. `row_column` returns a column of the rows, `old` are the rows before the change (a
    struct, null if unknown), and `may_change` says which changes can have another key."""
    count = len(old)
    is_old = part.name == "old_key"
    changed = np.zeros(count, np.bool_)
    children = []
    for field in part.type:
        column = row_column(field.name)
        if column is None:
            children.append(pa.nulls(count, field.type))
            continue
        before = field_of(old, field.name)
        if is_old and before is not None:
            changed |= flags_of(pc.not_equal(before, column))
            column = pc.coalesce(before, column)
        field_context = context.below("change").below(part.name).below(field.name)
        children.append(convert(column, node.children[field.name], field.type, field_context))
    return struct_of(part.type, count, changed & may_change if is_old else None, children)


def _kinds(
    values: pa.Array,
    present: Flags,
    op: pa.Array | None,
    kind: str | None,
    payloads: pa.Array | None,
    context: FieldContext,
) -> tuple[pa.Array, Flags, Flags]:
    """Return the kind of each record (ROW, TRUNCATE, …), and which are rows and which deletes, by
    `op`, or `kind` for all. Records of no kind are bad."""
    count = len(values)
    none = np.zeros(count, np.bool_)
    if op is None:
        return _texts({kind or "": present}, count), none, none
    flags = {letter: flags_of(pc.equal(op, scalar(letter))) for letter in KIND_OF_OP}
    by_kind: dict[str, Flags] = {}
    for letter, name in KIND_OF_OP.items():
        by_kind[name] = by_kind.get(name, none) | flags[letter]
    unknown = is_valid(op) & ~(by_kind[ROW] | by_kind[TRUNCATE] | by_kind[MESSAGE])
    if unknown.any():
        for index in np.flatnonzero(unknown).tolist():
            text = f"field op: {str(op[index])[:20]!r} is none of {', '.join(KIND_OF_OP)}"
            context.bad_rows.reasons.setdefault(int(context.rows[index]), text)
    others = present & ~is_valid(op)
    if others.any():
        kinds = {} if payloads is None else other_records(payloads, others)
        if (ddl := field_of(values, "ddl")) is not None:  # another form has `ddl`
            kinds[SCHEMA_CHANGE] = others & is_valid(ddl)
        for name, is_other in kinds.items():
            by_kind[name] = by_kind.get(name, none) | is_other
            others &= ~is_other
        context.bad_rows.add(
            context.rows, others, "op", "it is missing, so this is not an envelope"
        )
    return _texts(by_kind, count), by_kind[ROW], flags["d"]


def other_records(payloads: pa.Array, candidates: Flags) -> dict[str, Flags]:
    """Return which of the candidates, JSON without a schema, are other records of Debezium, by
    kind."""
    index = np.flatnonzero(candidates)
    texts = payloads.take(from_numpy(index))
    flags = {kind: np.zeros(len(candidates), np.bool_) for kind in _OTHER_RECORDS}
    for kind, pattern in _OTHER_RECORDS.items() if len(index) else ():
        flags[kind][index] = flags_of(pc.match_substring_regex(texts, pattern))
    return flags


def without_other_records(payloads: pa.Array) -> pa.Array:
    """Return JSON texts, with an empty object for each other record of Debezium, whose fields a
    flattened row may have, too, as the id and status of a transaction."""
    is_other = pc.match_substring_regex(payloads, "|".join(_OTHER_RECORDS.values()))
    if not pc.any(is_other).as_py():
        return payloads
    has_added_field = pc.match_substring_regex(payloads, r'"__\w+"\s*:')  # only rows have any
    return pc.if_else(pc.and_not(is_other, has_added_field), scalar(b"{}"), payloads)


def _texts(flags_by_text: dict[str, Flags], count: int) -> pa.Array:
    """Return the text of each row whose flag is true; null for others."""
    texts = pa.nulls(count, pa.string())
    for text, flags in flags_by_text.items():
        if flags.all():
            return pc.if_else(from_numpy(flags), scalar(text), texts)
        if flags.any():
            texts = pc.if_else(from_numpy(flags), scalar(text), texts)
    return texts


def _row_column(
    before: pa.Array | None, after: pa.Array | None, is_delete: Flags, name: str
) -> pa.Array | None:
    """Return a column of the rows: after the change, and before it for deletes."""
    old, new = (None if side is None else field_of(side, name) for side in (before, after))
    if not is_delete.any():
        return new
    if is_delete.all():
        return old
    if old is None or new is None or old.type != new.type:
        return new if new is not None else old
    if pa.types.is_nested(old.type):
        index = np.arange(len(new)) + np.where(is_delete, len(new), 0)
        return pa.concat_arrays([new, old]).take(from_numpy(index))
    return pc.if_else(from_numpy(is_delete), old, new)


def _change_part(
    part: pa.Field,
    values: pa.Array,
    node: ConnectType,
    op: pa.Array | None,
    kinds: pa.Array,
    context: FieldContext,
    missing_names: dict[str, Flags],
) -> pa.Array:
    """Return the field `part` of the column change, for all records. `values` are the decoded
    envelopes, of the type `node`; `missing_names` says which records lack a column's value."""
    name, count = part.name, len(values)
    if name == "kind":
        return kinds
    if name == "op":
        return op if op is not None else pa.nulls(count, pa.string())
    if name == "unavailable":
        return _lists_of_names(missing_names, count)
    if name == "position":
        written = field_of(values, "position")
        return position(field_of(values, "source"), count) if written is None else written
    column = field_of(values, name)
    if column is None or name not in node.children:
        return pa.nulls(count, part.type)
    field_context = context.below("change").below(name)
    return convert(column, node.children[name], part.type, field_context)


def _lists_of_names(flags_by_name: dict[str, Flags], count: int) -> pa.Array:
    """Return for each row the names whose flags are true; null for none."""
    if not flags_by_name:
        return pa.nulls(count, _UNAVAILABLE_TYPE)
    table = np.stack(list(flags_by_name.values()), axis=1)
    counts = table.sum(axis=1)
    # pa.array would import pandas, which no task needs.
    names = pa.concat_arrays([_texts({name: np.ones(1, np.bool_)}, 1) for name in flags_by_name])
    items = names.take(from_numpy(np.nonzero(table)[1].astype(np.int64)))
    buffers = [validity(counts > 0), pa.py_buffer(offsets_of(counts, np.int32))]
    return pa.Array.from_buffers(_UNAVAILABLE_TYPE, count, buffers, children=[items])


# --- the position in the source -----------------------------------------------------------------


def position(source: pa.Array | None, count: int) -> pa.Array:
    """Return a text for each record that sorts as its change in the source's log, made of fields of
    `source` (such as lsn, or file and pos) padded with zeros. Null where they are not known."""
    nothing = pa.nulls(count, pa.string())
    if source is None:
        return nothing
    fields = {
        field.name: pc.struct_field(source, [number])
        for number, field in enumerate(source.type)
        if field.name in _POSITION_FIELDS and not pa.types.is_nested(field.type)
    }

    def padded(name: str, digits: int) -> pa.Array:
        """Return a field as texts of this number of digits, which sort as the numbers do: a number
        of 64 bits has up to 20 digits, one of 32 bits up to 10."""
        if name not in fields:
            return nothing
        return pc.utf8_lpad(fields[name].cast(pa.string()), digits, "0")

    def joined(*parts: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(*parts, scalar(":"))

    candidates = [padded("lsn", 20)]  # Postgres
    if "lsn" in fields and "sequence" in fields and fields["lsn"].null_count:
        # A row of an incremental snapshot only has the last LSNs before it: ["LSN","LSN"].
        texts = fields["sequence"].cast(pa.string())
        last = pc.struct_field(pc.extract_regex(texts, r'"(?P<lsn>\d+)"\]$'), "lsn")
        candidates.append(pc.utf8_lpad(last, 20, "0"))
    if "file" in fields:  # MySQL and MariaDB
        number = pc.replace_substring_regex(fields["file"].cast(pa.string()), r"^.*\.", "")
        file = pc.utf8_lpad(number, 20, "0")
        row = pc.coalesce(padded("row", 10), scalar("0" * 10))
        candidates.append(joined(file, padded("pos", 20), row))
    if "change_lsn" in fields or "commit_lsn" in fields:  # SQL Server, Db2; Informix's are numbers
        names = ("change_lsn", "commit_lsn")
        lsn = pc.coalesce(*(padded(name, 20) for name in names if name in fields))
        serial = pc.coalesce(padded("event_serial_no", 10), scalar("0" * 10))
        candidates.append(joined(lsn, serial))
    # Oracle: changes may have the same SCN, and rs_id and ssn say where in the redo log they are.
    candidates.append(joined(padded("scn", 20), padded("rs_id", 1), padded("ssn", 10)))
    candidates.append(padded("scn", 20))
    if "ord" in fields:  # MongoDB
        candidates.append(joined(padded("ts_ms", 20), padded("ord", 10)))
    return pc.coalesce(*candidates)
