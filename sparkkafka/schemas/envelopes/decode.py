"""Decoders of envelopes: the struct that a format's decoder returns becomes a row and a change.

full_type     the type of all that a read of a schema's envelopes gives
sample_type   the same for JSON, from samples with or without a schema
decoder       a decoder of envelopes, or of values with semantic types
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.config.kinds import DEBEZIUM, DEBEZIUM_FLAT, JSON
from sparkkafka.errors import OptionError, SchemaError, some
from sparkkafka.protocol.columns.columns import gather, validity
from sparkkafka.protocol.records.arrow import blob_offsets, from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import Ints
from sparkkafka.schemas.arrays import as_type, flags_of, null_outside, offsets_of, spread
from sparkkafka.schemas.envelopes import connect_types, debezium, other_envelopes, semantic_types
from sparkkafka.schemas.values import FIRST_MESSAGE, Decoded, Decoder, MemoryBudget, Schema

_MAX_SCHEMAS: Final = 64
"""How many schemas beside payloads a decoder keeps."""

_MAX_CALL_SCHEMAS: Final = 1_000
"""How many more schemas one call makes decoders for. Each decoder takes milliseconds."""


@dataclass(frozen=True)
class Envelope:
    """How a column is read.

    `form` is the value of the option envelope. With `unwraps` the column becomes struct<row,
    change>, otherwise only its semantic types are converted. `names` are pairs of column and
    semantic type, for records without a schema. `placeholder` stands for values that were not sent.
    `columns` are the table's, if all are read: a change with a new column then fails the read,
    because its value would be lost.
    """

    form: str
    unwraps: bool
    names: tuple[tuple[str, str], ...] = ()
    placeholder: semantic_types.Placeholder = semantic_types.PLACEHOLDER
    columns: tuple[str, ...] = ()


def check_columns(envelope: Envelope, node: connect_types.ConnectType, schema: object) -> None:
    """Raise SchemaError if changes of this type have columns that the read, which is of all
    columns, began without. `schema` describes the schema of the changes."""
    if not envelope.columns or node.name.startswith("io.debezium."):  # heartbeats, transactions
        return
    try:
        row = _type_of(envelope, node).field("row").type
    except SchemaError:  # no change of a table
        return
    new = [field.name for field in row if field.name not in envelope.columns]
    if new:
        raise SchemaError(
            f"{'column' if len(new) == 1 else 'columns'} {some(new)} of {schema}: the table did "
            "not have it when this read began. Start the read again, and it continues at this "
            "change with the new columns (or name the columns to read in .schema(…))"
        )


def full_type(
    format_module: Any,
    envelope: Envelope,
    schema: Schema,
    message: tuple[int, ...],
    depth: int | None,
) -> pa.DataType:
    """Return the type of a column of a schema's envelopes. Raises SchemaError, OptionError."""
    return _type_of(envelope, node_of(format_module, schema, message, depth))


def has_rows(format_module: Any, schema: Schema, message: tuple[int, ...]) -> bool:
    """Return whether a schema is that of a table's changes, and not of Debezium's other records."""
    children = node_of(format_module, schema, message).children
    return "op" in children and ("after" in children or "before" in children)


def _type_of(envelope: Envelope, node: connect_types.ConnectType) -> pa.DataType:
    """Return the type that values of a Connect type become with this envelope."""
    if envelope.unwraps and envelope.form == DEBEZIUM_FLAT:
        return other_envelopes.flat_type(node)
    return debezium.full_type(node) if envelope.unwraps else semantic_types.value_type(node)


def node_of(
    format_module: Any, schema: Schema, message: tuple[int, ...], depth: int | None = None
) -> connect_types.ConnectType:
    """Return the Connect type of a schema's values. `message`: the indexes of a Protobuf message in
    its file; `depth`: how many levels of a recursive type become structs."""
    schema = connect_types.without_long_decimals(schema)
    arrow_type = format_module.arrow_type(schema, message=message, depth=depth)
    return connect_types.type_of_schema(schema, arrow_type)


def sample_type(
    format_module: Any,
    envelope: Envelope,
    samples: Sequence[bytes],
    keys: Sequence[bytes],
    *,
    infers: bool,
) -> pa.DataType | None:
    """Return the type of JSON samples: by the schemas beside their payloads; without them by their
    values if `infers`, else None. `keys` are record keys (not those of `samples`), which name the
    key's columns. Raises SchemaError."""
    if envelope.unwraps and (form := other_envelopes.FORMS.get(envelope.form)):
        infer = format_module.infer
        found = other_envelopes.sample_type(form, samples, keys, infer, infers=infers)
        return pa.list_(pa.field("element", found)) if found and form.has_lists else found
    node = no_envelope = None  # the types of envelopes together, and that of another record
    payloads: list[bytes] = []
    prefix = b"\0"  # the text of the last schema, up to its payload
    for sample in samples:
        if sample.startswith(prefix):  # the same schema again
            continue
        parts = _split(sample)
        if parts is None:
            payloads.append(sample)
            continue
        if parts.schema == b"null":
            payloads += [parts.payload] if parts.payload.startswith(b"{") else []
            continue
        prefix = parts.prefix
        with suppress(SchemaError):  # the record is bad
            found = connect_types.type_of_connect_schema(json.loads(parts.schema))
            is_flat = envelope.form == DEBEZIUM_FLAT
            if found.name.startswith("io.debezium."):  # a heartbeat's, or a transaction's
                continue
            if not envelope.unwraps or is_flat or "op" in found.children:
                node = found if node is None else _merge(node, found)
            else:
                no_envelope = found
    if node is None and no_envelope is not None:
        return _type_of(envelope, no_envelope)  # raises SchemaError
    if node is None:
        if not infers or not payloads:
            return None
        node = connect_types.type_of_arrow(format_module.infer(payloads))
        is_debezium = envelope.unwraps and envelope.form == DEBEZIUM
        if is_debezium and not node.children.get("after", connect_types.ConnectType()).children:
            before = node.children.get("before")  # all samples are deletes
            if before is not None and before.is_struct:
                node = replace(node, children={**node.children, "after": before})
    return _type_of(envelope, node)


def _merge(
    first: connect_types.ConnectType, last: connect_types.ConnectType
) -> connect_types.ConnectType:
    """Return the type with the fields of both, the last one's if both have them."""
    if not (first.is_struct and last.is_struct):
        return last
    children = dict(first.children)
    for name, child in last.children.items():
        children[name] = _merge(children[name], child) if name in children else child
    return replace(last, children=children)


def decoder(
    format_module: Any,
    envelope: Envelope,
    writer: Schema,
    reader: Schema | None,
    target: pa.DataType,
    message: tuple[int, ...] = FIRST_MESSAGE,
) -> Decoder:
    """Return a decoder of payloads of `writer`, resolved to `reader` (None: the writer's), as
    `target`. Raises SchemaError and OptionError as the format's decoder."""
    if writer.format == JSON:
        node = None
        if (reader or writer).text.strip():
            node = node_of(format_module, reader or writer, message)
            _plan(envelope, node, target, lenient=False)
        return _JsonEnvelopeDecoder(format_module, envelope, target, node)
    writer = connect_types.without_long_decimals(writer)
    written = node_of(format_module, writer, message)
    if reader is not None:
        reader = connect_types.without_long_decimals(reader)
        read = node_of(format_module, reader, message)
        # Not a heartbeat's, or a transaction's, which have no `op`.
        is_row = not envelope.unwraps or envelope.form != DEBEZIUM or "op" in written.children
        if written.resolves_to(read) and is_row:
            try:
                envelope_decoder = _make(
                    format_module, envelope, writer, reader, read, target, message
                )
                if writer != reader:  # a null of a column that is NOT NULL now
                    envelope_decoder.fallback = _make(
                        format_module, envelope, writer, None, written, target, message
                    )
                return envelope_decoder
            except SchemaError:  # the values of another version may fit one by one
                pass
    lenient = reader is not None
    return _make(format_module, envelope, writer, None, written, target, message, lenient=lenient)


def _plan(
    envelope: Envelope, node: connect_types.ConnectType, target: pa.DataType, *, lenient: bool
) -> connect_types.ConnectType:
    """Return the part of the type `node` that must be decoded for `target`. Raises OptionError if
    it cannot become `target`; unless `lenient`, also if it lacks a field of `target`."""
    if envelope.unwraps and envelope.form == DEBEZIUM_FLAT:
        pruned = debezium.prune(other_envelopes.flat_node(node), target, lenient=lenient)
        return other_envelopes.prune_flat(node, pruned)
    if envelope.unwraps and envelope.form in other_envelopes.FORMS:
        return node
    if envelope.unwraps:
        return debezium.prune(node, target, lenient=lenient)
    semantic_types.check_target(node, target, "", lenient=lenient)
    return node.pruned(target)


def _make(
    format_module: Any,
    envelope: Envelope,
    writer: Schema,
    reader: Schema | None,
    node: connect_types.ConnectType,
    target: pa.DataType,
    message: tuple[int, ...],
    *,
    lenient: bool = True,
) -> _EnvelopeDecoder:
    """Return a decoder of the writer's envelopes to the type `target`. `node` is the Connect type
    of the writer's schema; `message` has the indexes of a Protobuf message. Raises SchemaError if
    the envelopes do not fit `target`; unless `lenient`, that is an OptionError."""
    try:
        kind = None
        if envelope.unwraps and envelope.form == DEBEZIUM:
            kind = debezium.kind_of(node.children.keys())
        elif envelope.unwraps and envelope.form == DEBEZIUM_FLAT:
            kind = other_envelopes.flat_kind(node)
            node = node if kind is None else connect_types.ConnectType()  # no column of the table
        node = _plan(envelope, node, target, lenient=lenient)
    except OptionError as error:
        if not lenient:
            raise
        raise SchemaError(str(error)) from None
    inner = format_module.decoder(writer, reader, node.wire, message=message)
    made = _EnvelopeDecoder(inner, envelope, node, target, kind)
    if writer.format == JSON:
        made.has_other_records = kind is None and envelope.form in (DEBEZIUM, DEBEZIUM_FLAT)
        # Connect writes NaN as text in a field of numbers. Rows that cannot be read as they are
        # are read again, with text for such numbers.
        texts = connect_types.with_text_floats(node)
        if texts != node:
            inner = format_module.decoder(writer, None, texts.wire)
            made.fallback = _EnvelopeDecoder(inner, envelope, texts, target, kind)
            made.fallback.has_other_records = made.has_other_records
    return made


class _EnvelopeDecoder:
    """Decodes payloads of one schema. `node`: the type that the inner decoder gives; `fallback`:
    the decoder for rows that this one cannot decode."""

    fallback: _EnvelopeDecoder | None = None
    has_other_records = False
    """Whether payloads are JSON of which some may be other records of Debezium."""

    def __init__(
        self,
        inner: Decoder,
        envelope: Envelope,
        node: connect_types.ConnectType,
        target: pa.DataType,
        kind: str | None,
    ) -> None:
        self.type = target
        self._inner, self._envelope, self._node, self._kind = inner, envelope, node, kind

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """Decode payloads (binary; null stays null) into a column of `type`. A row that cannot be
        decoded is null, with a reason; rows that are not in this envelope are tried with
        `fallback`."""
        budget = budget or MemoryBudget(payloads)
        texts = payloads
        if self.has_other_records and self._envelope.form == DEBEZIUM_FLAT:
            texts = debezium.without_other_records(payloads)
        decoded = self._inner.decode(texts, budget)
        reasons = dict(
            zip(decoded.bad_rows.tolist(), map(_with_hint, decoded.reasons), strict=True)
        )
        bad_rows = semantic_types.BadRows(budget=budget, payloads=payloads)
        if self._envelope.unwraps:
            values = self._unwrap(decoded.values, payloads, bad_rows)
        else:
            context = semantic_types.FieldContext(bad_rows, np.arange(len(payloads)))
            values = semantic_types.convert(decoded.values, self._node, self.type, context)
        if bad_rows.reasons:
            reasons = {**bad_rows.reasons, **reasons}
            good = np.ones(len(values), np.bool_)
            good[list(reasons)] = False
            values = null_outside(values, good)
        if reasons and self.fallback is not None:
            rows = np.array(sorted(reasons), np.int64)
            again = self.fallback.decode(payloads.take(from_numpy(rows)), budget)
            reasons = dict(zip(rows[again.bad_rows].tolist(), again.reasons, strict=True))
            both = pa.concat_arrays([values, again.values])
            values = spread(both, np.append(np.arange(len(values)), rows), len(values))
        return Decoded.of(values, reasons)

    def _unwrap(
        self, values: pa.Array, payloads: pa.Array, bad_rows: semantic_types.BadRows
    ) -> pa.Array:
        """Return decoded values as struct<row, change>, or as lists of these if one record has
        several rows (`has_lists`). Adds to `bad_rows` the records that are no such envelopes."""
        node, target, form = self._node, self.type, other_envelopes.FORMS.get(self._envelope.form)
        if form is None:  # Debezium's, with or without an envelope
            texts = payloads if self.has_other_records else None
            if self._envelope.form == DEBEZIUM_FLAT:
                flat_node = other_envelopes.flat_node(node)
                values, node = other_envelopes.flat(values, flat_node, texts, bad_rows), flat_node
            placeholder = self._envelope.placeholder
            return debezium.unwrap(
                values, node, target, self._kind, bad_rows, placeholder=placeholder, payloads=texts
            )
        if not form.has_lists:
            envelopes, node = other_envelopes.reshape_rows(values, form, node)
            omitted = None
            if form.omits_columns:
                omitted = other_envelopes.omitted_columns(envelopes, form, payloads)
            return debezium.unwrap(envelopes, node, target, None, bad_rows, omitted=omitted)
        # Records with several rows: as many envelopes, which become a list again.
        budget = bad_rows.budget
        if budget is not None and not budget.take(other_envelopes.copied_bytes(values, form)):
            reason = "it has too many rows for the length of its other fields"
            bad_rows.add(np.arange(len(values)), is_valid(values), "", reason)
            values = pa.nulls(len(values), values.type)
        exploded, rows = other_envelopes.explode(values, form)
        envelopes, node = other_envelopes.reshape_rows(exploded, form, node)
        items = debezium.unwrap(envelopes, node, target.value_type, None, bad_rows, rows)
        offsets = offsets_of(np.bincount(rows, minlength=len(values)), np.int32)
        buffers = [validity(is_valid(values)), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(target, len(values), buffers, children=[items])


def _with_hint(reason: str) -> str:
    is_document = reason == "field after: is a string, not an object"
    return f"{reason}: {debezium.MONGODB_HINT}" if is_document else reason


# --- JSON -------------------------------------------------------------------------------------


class _JsonEnvelopeDecoder:
    """Decodes JSON: each record with the schema beside its payload, or all without one.

    `node`: the type by a JSON Schema, if there is one.
    """

    def __init__(
        self,
        format_module: Any,
        envelope: Envelope,
        target: pa.DataType,
        node: connect_types.ConnectType | None,
    ) -> None:
        self.type = target
        self._format, self._envelope = format_module, envelope
        self._plain: _EnvelopeDecoder | None = None
        self._node = node
        self._by_prefix: dict[bytes, _EnvelopeDecoder | str] = {}
        self._without_schema()  # raises for a type that JSON cannot give

    def _without_schema(self) -> _EnvelopeDecoder:
        """Return the decoder of records without a schema."""
        if self._plain is None:
            node = self._node
            if node is None:
                form = other_envelopes.FORMS.get(self._envelope.form)
                if self._envelope.unwraps:
                    target = self.type.value_type if form and form.has_lists else self.type
                    row = connect_types.type_of_arrow(target.field("row").type)
                    named = {
                        name: replace(row.children[name], name=semantic_type)
                        for name, semantic_type in self._envelope.names
                    }
                    row = replace(row, children={**row.children, **named})
                    if form is not None:
                        node = form.node(row, target.field("change").type)
                    else:
                        node = _as_json(debezium.node_of_target(target, row))
                    if self._envelope.form == DEBEZIUM_FLAT:
                        node = other_envelopes.flat_wire(node)
                else:
                    node = connect_types.type_of_arrow(self.type)
                    node = node if form else _as_json(node)  # only Debezium's dates are numbers
            self._plain = self._of_node(node)
        return self._plain

    def _of_node(self, node: connect_types.ConnectType) -> _EnvelopeDecoder:
        schema = Schema(JSON, "")
        return _make(self._format, self._envelope, schema, None, node, self.type, FIRST_MESSAGE)

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        """Decode JSON payloads (binary or string; null stays null) into a column of `type`, those
        with one embedded schema together. A row that cannot be decoded is null, with a reason."""
        texts = payloads if pa.types.is_binary(payloads.type) else payloads.cast(pa.binary())
        budget = budget or MemoryBudget(payloads)
        groups, rest = self._groups(texts)
        if not groups:
            return self._without_schema().decode(texts, budget)
        parts: list[pa.Array] = []
        part_rows: list[Ints] = []
        reasons: dict[int, str] = {}
        again: list[int] = []
        for rows, own_texts, decoder in groups:
            if isinstance(decoder, str):
                nulls = pa.nulls(len(rows), self.type)
                decoded = Decoded.of(nulls, dict.fromkeys(range(len(rows)), decoder))
            else:
                decoded = decoder.decode(own_texts, budget)
            parts.append(as_type(decoded.values, self.type))
            part_rows.append(rows)
            for row, reason in zip(rows[decoded.bad_rows].tolist(), decoded.reasons, strict=True):
                if _split(texts[row].as_py()) is None:  # no payload follows the prefix
                    again.append(row)
                else:
                    reasons[row] = reason
        if again or len(rest):
            rest = np.sort(np.concatenate([rest, np.array(again, np.int64)]))
            decoded = self._without_schema().decode(texts.take(from_numpy(rest)), budget)
            parts.append(as_type(decoded.values, self.type))
            part_rows.append(rest)
            reasons.update(zip(rest[decoded.bad_rows].tolist(), decoded.reasons, strict=True))
        if len(parts) == 1:
            return Decoded.of(parts[0], reasons)
        # If a row was decoded again, its last value counts.
        values = spread(pa.concat_arrays(parts), np.concatenate(part_rows), len(texts))
        return Decoded.of(values, reasons)

    def _groups(
        self, texts: pa.Array
    ) -> tuple[list[tuple[Ints, pa.Array, _EnvelopeDecoder | str]], Ints]:
        """Group the texts by the schema in them: [(rows, payloads, decoder, or why all are bad)],
        and the rows without a schema. If a row is bad, its text may have another form than schema
        and payload."""
        groups: list[tuple[Ints, pa.Array, _EnvelopeDecoder | str]] = []
        remaining = np.flatnonzero(is_valid(texts))
        without_schema: list[Ints] = [np.flatnonzero(~is_valid(texts))]
        # Most texts begin like one of an earlier call: with the same schema, in the same bytes.
        for prefix, decoder in list(self._by_prefix.items()):
            if not len(remaining):
                break
            remaining = self._take_group(texts, remaining, prefix, decoder, groups)
        is_candidate = may_have_schema(texts.take(from_numpy(remaining)))
        without_schema.append(remaining[~is_candidate])
        remaining = remaining[is_candidate]
        # Texts whose payload comes first, or that nearly all have a schema of their own.
        by_schema: dict[bytes, list[tuple[int, bytes]]] = {}
        prefix_count = 0
        while len(remaining):
            row = int(remaining[0])
            parts = _split(texts[row].as_py())
            if parts is not None and parts.is_last and prefix_count < _MAX_SCHEMAS:
                # Take all texts that begin like this one.
                decoder = self._decoder_of(parts.schema)
                if len(self._by_prefix) >= _MAX_SCHEMAS:
                    self._by_prefix.clear()
                self._by_prefix[parts.prefix] = decoder
                prefix_count += 1
                remaining = self._take_group(texts, remaining, parts.prefix, decoder, groups)
                continue
            if parts is None:
                without_schema.append(remaining[:1])
            else:
                by_schema.setdefault(parts.schema, []).append((row, parts.payload))
            remaining = remaining[1:]
        too_many = f"more than {_MAX_CALL_SCHEMAS:,} records in a row have a schema of their own"
        for number, (schema, items) in enumerate(by_schema.items()):
            rows, values = zip(*items, strict=True)
            payloads = pa.array(values, pa.binary())
            decoder = self._decoder_of(schema) if number < _MAX_CALL_SCHEMAS else too_many
            groups.append((np.array(rows, np.int64), payloads, decoder))
        return groups, np.concatenate(without_schema)

    def _decoder_of(self, text: bytes) -> _EnvelopeDecoder | str:
        """Return the decoder of payloads with this schema, or why they are bad. Raises the errors
        of `check_columns`."""
        try:
            schema = json.loads(text)
            if schema is None:  # a tombstone has the schema null
                return self._without_schema()
            node = connect_types.type_of_connect_schema(schema)
            decoder = self._of_node(node)
        except (SchemaError, ValueError, RecursionError) as error:
            return f"the schema beside the payload: {error}"
        check_columns(self._envelope, node, "the schema beside a payload")
        return decoder

    def _take_group(
        self,
        texts: pa.Array,
        remaining: Ints,
        prefix: bytes,
        decoder: _EnvelopeDecoder | str,
        groups: list[tuple[Ints, pa.Array, _EnvelopeDecoder | str]],
    ) -> Ints:
        """Take the texts that begin with a prefix and end with }: what is between these is a
        payload of `decoder`. Add (their rows, the payloads, the decoder) to `groups`, and return
        the rows of `remaining` that have another prefix."""
        candidates = texts if len(remaining) == len(texts) else texts.take(from_numpy(remaining))
        has_prefix = flags_of(pc.starts_with(candidates, prefix))
        has_prefix &= flags_of(pc.ends_with(candidates, b"}"))
        rows = remaining[has_prefix]
        if len(rows):
            offsets = blob_offsets(texts).astype(np.int64)
            starts = offsets[rows] + len(prefix)
            lengths = np.maximum(offsets[rows + 1] - 1 - starts, 0)
            groups.append((rows, gather(texts.buffers()[2], starts, lengths), decoder))
        return remaining[~has_prefix]


def _as_json(node: connect_types.ConnectType) -> connect_types.ConnectType:
    """Return the type as Debezium's JSON has it without a schema: dates are days, and a column with
    a semantic type is a number or text."""
    if node.leaf is None:
        children = {name: _as_json(child) for name, child in node.children.items()}
        return replace(node, children=children)
    if node.name == semantic_types.DATE or (not node.name and pa.types.is_date(node.leaf)):
        return replace(node, name=semantic_types.DATE, leaf=pa.int32())
    if node.name == connect_types.VARIABLE_SCALE:
        value = connect_types.ConnectType(pa.string(), is_base64=True)
        parts = {"scale": connect_types.ConnectType(pa.int32()), "value": value}
        return replace(node, leaf=None, children=parts)
    if node.name and pa.types.is_decimal(node.leaf):
        return connect_types.json_decimal(node, node.leaf)
    return replace(node, leaf=semantic_types.type_in_json(node.name, node.leaf))


# --- {"schema": …, "payload": …} ----------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """The parts of a JSON text with schema and payload. `prefix` is all before the payload;
    `is_last`: only } follows the payload."""

    prefix: bytes
    schema: bytes
    payload: bytes
    is_last: bool


_FIRST: Final = re.compile(rb'\s*\{\s*"(schema|payload)"\s*:\s*')
_SECOND: Final = re.compile(rb'\s*,\s*"(schema|payload)"\s*:\s*')


def may_have_schema(texts: pa.Array) -> Any:
    """Return which texts begin with a schema or payload."""
    return flags_of(pc.match_substring_regex(texts, r'^\s*\{\s*"(schema|payload)"\s*:'))


def _split(text: bytes) -> _Parts | None:
    """Return the parts of a text as Connect's JsonConverter writes it, with schema and payload in
    any order; None for another text."""
    first = _FIRST.match(text)
    middle = None if first is None else _end_of_value(text, first.end())
    if first is None or middle is None:
        return None
    if first[1] == b"payload" and _is_end(text, middle):  # somebody has removed the schema
        payload = text[first.end() : middle]
        is_object = payload.startswith(b"{")  # as each envelope is
        return _Parts(b"", b"null", payload, False) if is_object else None
    second = _SECOND.match(text, middle)
    end = None if second is None else _end_of_value(text, second.end())
    if second is None or end is None or first[1] == second[1] or not _is_end(text, end):
        return None
    parts = {first[1]: text[first.end() : middle], second[1]: text[second.end() : end]}
    is_last = second[1] == b"payload" and text.endswith(b"}")
    return _Parts(text[: second.end()], parts[b"schema"], parts[b"payload"], is_last)


def _is_end(text: bytes, at: int) -> bool:
    """Return whether only the } of the text's object is left."""
    return text[at:].strip(b" \t\r\n") == b"}"


def _end_of_value(text: bytes, start: int) -> int | None:
    """Return the index after the JSON value that begins at `start`; None if there is none."""
    try:
        decoded = text[start:].decode()
        _, end = json.JSONDecoder().raw_decode(decoded)
    except (ValueError, RecursionError):
        return None
    return start + len(decoded[:end].encode())
