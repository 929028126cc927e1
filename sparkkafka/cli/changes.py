"""Records of change data capture as lines, for `read --envelope`, and as facts, for `cdc check`.

Keys and values come as JSON texts, or decoded, from Avro and Protobuf. Envelopes differ from the
other records of a connector by their fields.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from sparkkafka.cli.tables import has_colours, printable
from sparkkafka.config.kinds import DEBEZIUM, ENVELOPE_COLUMN, JSON
from sparkkafka.errors import BadRecordError, SchemaError
from sparkkafka.schemas.envelopes.debezium import KIND_OF_OP, ROW, TOMBSTONE, TRUNCATE, kind_of
from sparkkafka.schemas.envelopes.semantic_types import DAY_US, INFINITIES, is_unavailable
from sparkkafka.schemas.values import Schema

ENVELOPE_OPTIONS: Final = {"envelope": DEBEZIUM, "envelope.columns": ENVELOPE_COLUMN}
"""Options of a read of envelopes, whose values get Debezium's semantic types."""

_COLOURS: Final = {  # by Debezium's op: create, read (of a snapshot), update, delete, truncate
    "c": typer.colors.GREEN,
    "r": typer.colors.BLUE,
    "u": typer.colors.YELLOW,
    "d": typer.colors.RED,
    "t": typer.colors.MAGENTA,
}


@dataclass(frozen=True)
class Change:
    """A record of a Debezium connector. `key`, `before` and `after` are the fields by their names,
    None if the record has none. `value` is the whole envelope, `schema` the schema that
    JsonConverter put beside it."""

    kind: str
    op: str = ""
    key: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    value: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def source(self) -> Mapping[str, Any]:
        """The envelope's field `source`; empty if there is none."""
        source = (self.value or {}).get("source")
        return source if isinstance(source, Mapping) else {}

    @property
    def unavailable(self) -> list[str]:
        """The columns whose value the database has not sent."""
        return [name for name, value in (self.after or {}).items() if is_unavailable(value)]


def parse_change(key: Any, value: Any) -> Change:
    """Return the change of a record. Key and value are JSON texts, or values that are decoded
    already. Raises BadRecordError if it is not a record of Debezium, without its location."""
    key, _ = _payload(key, "key")
    if key is not None and not isinstance(key, Mapping):
        key = {"key": key}
    value, schema = _payload(value, "value")
    if value is None:
        return Change(TOMBSTONE, key=key)
    if not isinstance(value, Mapping):
        raise BadRecordError("the value is not a JSON object, so it is not a change of Debezium")
    op = value.get("op")
    if op is not None and (not isinstance(op, str) or op not in KIND_OF_OP):
        raise BadRecordError(f"field op: {value_text(op)} is none of {', '.join(KIND_OF_OP)}")
    if op is not None:
        parts = (_row(value, "before"), _row(value, "after"))
        return Change(KIND_OF_OP[op], op, key, *parts, value, schema)
    try:
        kind = kind_of(value.keys() - {"op"})
    except SchemaError as error:
        raise BadRecordError(f"the value: {error}") from None
    return Change(str(kind), key=key, value=value, schema=schema)


def _payload(text: Any, column: str) -> tuple[Any, Mapping[str, Any] | None]:
    """Return a key or value without its schema, and the schema. Raises BadRecordError."""
    if isinstance(text, bytes | str):
        if text[:1] == b"\0":
            raise BadRecordError(
                f"the {column} begins as one with a schema of a registry: give --value-format avro "
                "and --schema-registry"
            )
        try:
            text = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecordError(f"the {column} is not JSON: {error}") from None
    if isinstance(text, Mapping) and text.keys() == {"schema", "payload"}:
        return text["payload"], text["schema"]
    return text, None


def _row(value: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return the row before or after a change (`name`), parsed if it is a text; None without
    one."""
    row = value.get(name)
    if isinstance(row, str):  # a document of MongoDB
        row, _ = _payload(row, name)
    return row if isinstance(row, Mapping) else None


# --- lines ---------------------------------------------------------------------------------------


class ChangeLines:
    """Writes a line per record to stdout: partition/offset, operation, key, and the columns that
    have changed. In colour on a terminal. With `skips_bad`, the line of a record that is no change
    says why."""

    def __init__(self, *, skips_bad: bool) -> None:
        self._has_colours = has_colours()
        self._skips_bad = skips_bad

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the lines of a batch. Without `skips_bad` raises BadRecordError with the location
        of a record that is no change."""
        for line in self._lines(batch):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def _lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield the line of each record."""
        columns = (batch.column(name) for name in ("topic", "partition", "offset", "key", "value"))
        typed = [_decode_typed_values(batch.column(name)) for name in ("key", "value")]
        for topic, partition, offset, key, value, *types in zip(
            *map(python_values, columns), *typed, strict=True
        ):
            location = f"{partition}/{offset}"
            try:
                change = _with_types(parse_change(key, value), *types)
            except BadRecordError as error:
                if not self._skips_bad:
                    raise BadRecordError(
                        f"topic {topic} partition {partition} offset {offset}: {error} (--on-bad "
                        "skip goes on after such records)"
                    ) from None
                bad = self._style("bad", fg=typer.colors.RED, bold=True)
                yield f"{self._style(location, dim=True)}  {bad}  {error}"
                continue
            yield "  ".join(self._parts(location, change))

    def _parts(self, location: str, change: Change) -> Iterator[str]:
        """Yield the parts of a change's line, which two spaces separate."""
        yield self._style(location, dim=True)
        name = change.op if change.kind == ROW else change.kind
        yield self._style(name, fg=_COLOURS.get(change.op, typer.colors.CYAN), bold=True)
        if change.key:
            fields = " ".join(f"{name}={value_text(v)}" for name, v in change.key.items())
            yield self._style(fields, bold=True)
        if change.kind == ROW:
            yield from self._fields(change)
        elif change.kind == TRUNCATE:
            yield table_of_source(change.source)
        elif change.kind != TOMBSTONE and change.value is not None:
            message = change.value.get("message")
            value = message if isinstance(message, Mapping) else change.value
            yield " ".join(
                f"{name}={value_text(v)}"
                for name, v in value.items()
                if v is not None and name not in (change.key or {})
            )

    def _fields(self, change: Change) -> Iterator[str]:
        """Yield the columns of a changed row that are not in its key. If the row before an update
        is known, only the columns that differ."""
        before, after = change.before, change.after
        row = (before if change.op == "d" else after) or {}
        for name, value in row.items():
            if name in (change.key or {}):
                continue
            if change.op == "u" and before is not None:
                if is_unavailable(value) or before.get(name) == value:
                    continue
                old = self._style(value_text(before.get(name)), fg=typer.colors.RED)
                new = self._style(value_text(value), fg=typer.colors.GREEN)
                yield f"{printable(name)}: {old} → {new}"
            elif is_unavailable(value):
                yield self._style(f"{printable(name)}=(not sent)", dim=True)
            elif value is not None:
                yield f"{printable(name)}={value_text(value)}"

    def _style(self, text: str, **styles: Any) -> str:
        """Return the text without control characters, and on a terminal in these styles."""
        text = printable(text)
        return typer.style(text, **styles) if self._has_colours else text


def _decode_typed_values(texts: pa.Array) -> list[Any]:
    """Decode JSON texts that have their schema beside the payload, with the types of that schema;
    None for other texts."""
    from sparkkafka.schemas.column import format_module
    from sparkkafka.schemas.envelopes.decode import Envelope, decoder, may_have_schema, sample_type

    if not pa.types.is_binary(texts.type):  # decoded already
        return [None] * len(texts)
    texts = pc.if_else(pa.array(may_have_schema(texts)), texts, pa.scalar(None, pa.binary()))
    module, envelope = format_module(JSON), Envelope(DEBEZIUM, unwraps=False)
    samples = texts.drop_null().to_pylist()
    target = sample_type(module, envelope, samples, (), infers=False)
    if target is None:
        return [None] * len(texts)
    return python_values(
        decoder(module, envelope, Schema(JSON, ""), None, target).decode(texts).values
    )


def _with_types(change: Change, key: Any, value: Any) -> Change:
    """Return the change with typed values in its rows and key: `key` and `value` are those that
    `_decode_typed_values` returned. Values that do not fit their schema stay as they are."""

    def apply_types(row: Mapping[str, Any] | None, types: Any) -> Mapping[str, Any] | None:
        """Return the row with the values of `types`, a row with the same names; None stays None."""
        if row is None or not isinstance(types, Mapping):
            return row
        known = {
            name: types[name]
            for name, raw in row.items()
            if types.get(name) is not None and not is_unavailable(raw)
        }
        return {**row, **known}

    value = value if isinstance(value, Mapping) else {}
    return replace(
        change,
        key=apply_types(change.key, key),
        before=apply_types(change.before, value.get("before")),
        after=apply_types(change.after, value.get("after")),
    )


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column. A date or time that Python does not have is a text."""
    return [_python_value(scalar) for scalar in column]


def _python_value(scalar: pa.Scalar) -> Any:
    """Return a value of a column, with texts only for the dates and times inside it that Python
    does not have."""
    try:
        return scalar.as_py(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if isinstance(scalar, pa.MapScalar):
            return {item["key"].as_py(): _python_value(item["value"]) for item in scalar.values}
        if isinstance(scalar, pa.StructScalar):
            return {name: _python_value(child) for name, child in scalar.items()}
        if isinstance(scalar, pa.ListScalar):
            return [_python_value(item) for item in scalar.values]
        unit: Any = "D" if pa.types.is_date32(scalar.type) else scalar.type.unit
        text = str(np.datetime64(scalar.value, unit)).replace("T", " ")
        return _INFINITY_TEXTS.get(scalar.value, text)


_INFINITY_TEXTS: Final = {
    number: text for text, time_us in INFINITIES.items() for number in (time_us, time_us // DAY_US)
}
"""By microseconds and by days. NumPy would make other days of these microseconds: they overflow."""


def value_text(value: Any) -> str:
    """Format a column's value on one line, at most 60 characters long."""
    text = json.dumps(value, ensure_ascii=False, default=_json_value)
    return printable(text if len(text) <= 60 else f"{text[:59]}…")


def _json_value(value: Any) -> str:
    """Return the text of a value that JSON does not have."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def table_of_source(source: Mapping[str, Any]) -> str:
    """Return the name of the table that an envelope's source names."""
    names = (source.get("schema") or source.get("db"), source.get("table"))
    return ".".join(str(name) for name in names if name)
