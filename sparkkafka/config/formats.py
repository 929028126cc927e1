"""Formats of keys and values: the options as the user set them, and the rules between them.

    formats_from          parsed options -> FormatOptions, or None if keys and values are bytes
    uses_registry         whether the formats can use a Schema Registry

`registry` has the registry's own options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkkafka.config import kinds
from sparkkafka.config.option_table import Side
from sparkkafka.config.parsed_options import ParsedOptions
from sparkkafka.config.registry import RegistryOptions, registry_from, registry_settings
from sparkkafka.config.security.references import read_text
from sparkkafka.errors import OptionError, exclusive, spark_hint

INFER: Final = "infer"

_DRIVER_HINT: Final = spark_hint(" It is read on the driver.")

MAX_SCHEMA_BYTES: Final = 4 * 2**20
"""The largest file that valueSchema or keySchema may name."""

WITH_SCHEMA: Final = (kinds.AVRO, kinds.PROTOBUF, kinds.JSON)
ANY_WITH_SCHEMA: Final = f"{kinds.AVRO}, {kinds.PROTOBUF} or {kinds.JSON}"


@dataclass(frozen=True, kw_only=True)
class ColumnFormat:
    """The format of keys, or of values: `column` is "key" or "value".

    `schema` is the text of valueSchema, or of the file that it names; None if it is not set.
    `infer`: valueSchema is "infer". `schema_version` None is the latest version, `message` "" the
    first of a Protobuf schema, `subject` "" the subject of the strategy. `envelope` is the envelope
    of the changes in the column, "" for none; `unwraps`: they become the columns of the table.
    `placeholder` is what Debezium sends in place of a value that the source did not send.
    `is_optional`: the option envelope sets the format of keys, which records need not have.
    """

    column: str
    format: str = kinds.BINARY
    schema: str | None = dataclasses.field(default=None, repr=False)
    infer: bool = False
    schema_version: int | None = None
    message: str = ""
    subject: str = ""
    framing: str = kinds.CONFLUENT
    strategy: str = kinds.TOPIC_NAME
    envelope: str = ""
    unwraps: bool = False
    placeholder: str = kinds.PLACEHOLDER
    is_optional: bool = False

    @property
    def has_schema(self) -> bool:
        """Whether the format has schemas: neither bytes nor text."""
        return self.format in WITH_SCHEMA


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Formats of both columns, and the options that both share.

    `registry` is None if none is needed. Only reads have `on_bad_record`, `dead_letter_topic` (set
    if that is "deadLetter"), `rescued_column`, `envelope_columns` and `envelope_unavailable`; only
    writes have `envelope_schemas`, `auto_register_schemas` and the fields after it.
    `recursive_fields_max_depth` is the number of levels of a recursive type that are structs; None:
    such a type is an error.
    """

    GROUP = "format"

    key: ColumnFormat = ColumnFormat(column="key")
    value: ColumnFormat = ColumnFormat(column="value")
    registry: RegistryOptions | None = None
    on_bad_record: str = kinds.FAIL
    dead_letter_topic: str = ""
    rescued_column: bool = False
    envelope: str = ""
    envelope_columns: str = kinds.ROW_COLUMNS
    envelope_unavailable: str = kinds.PLACEHOLDER
    envelope_schemas: bool = True
    recursive_fields_max_depth: int | None = None
    auto_register_schemas: bool = False
    use_latest_version: bool = False
    normalize_schemas: bool = False
    ignore_encryption_rules: bool = False

    @property
    def unwraps(self) -> bool:
        """Whether the columns of a read are those of a table."""
        return self.value.unwraps


def formats_from(parsed: ParsedOptions) -> FormatOptions | None:
    """Return the formats of keys and values, checked; None if both are bytes.

    Reads the file of valueSchema or keySchema. Raises OptionError naming the option and what to do.
    """
    names = {
        field: name
        for field, name in parsed.names.items()
        if field.startswith(("key.", "value.", "format.", "registry.", "registry_tls."))
    }
    if not names:
        return None
    key, value = _column_format("key", parsed), _column_format("value", parsed)
    fields = parsed.group("format")
    if any(field.startswith("envelope") for field in fields):
        key, value = _with_envelope(key, value, parsed)
    columns = [column for column in (value, key) if column.format != kinds.BINARY]
    if not columns:
        others = [name for field, name in names.items() if not field.endswith(".format")]
        if not others:
            return None
        raise OptionError(
            f"option {others[0]} has no effect while keys and values are {kinds.BINARY}: set "
            f"valueFormat or keyFormat to {ANY_WITH_SCHEMA}"
        )
    registry = registry_from(parsed)
    with_schema = [column for column in columns if column.has_schema]
    for column in with_schema:
        _check_schema_source(column, registry, names, parsed.side)
    for column in with_schema:
        _check_framing(column, registry, parsed.side)
    if registry is not None and not any(map(_can_use_registry, columns)):
        first = columns[0]
        raise OptionError(
            f"option {names['registry.url']} has no effect: {first.column}Format={first.format} "
            + (
                "needs no registry"
                if first.format == kinds.STRING
                else f"has {first.column}Framing={kinds.NO_FRAMING} and its schema from "
                f"{first.column}Schema"
            )
            + "; remove it"
        )
    if "recursive_fields_max_depth" in fields:
        _check_depth(columns, registry)
    _check_bad_records(fields)
    if fields.get("rescued_column") and value.format != kinds.JSON:
        raise OptionError(
            f"rescuedColumn=true has no effect with valueFormat={value.format}: it is for "
            f"{kinds.JSON}, whose records may have fields that are not in the schema"
        )
    _check_registration(with_schema, registry, fields, names)
    return FormatOptions(key=key, value=value, registry=registry, **fields)


def uses_registry(options: Mapping[str, Any], side: Side) -> bool:
    """Return whether these options' formats can use a Schema Registry. Raises OptionError."""
    parsed = ParsedOptions(options, side)
    return any(_can_use_registry(_column_format(column, parsed)) for column in ("key", "value"))


# --- one column ------------------------------------------------------------------------------


def _column_format(column: str, parsed: ParsedOptions) -> ColumnFormat:
    """Return the format of "key" or "value". Raises OptionError if options of the column conflict,
    or its schema's file cannot be read."""
    fields, side = parsed.group(column), parsed.side
    attributes = dict(fields)
    text = attributes.pop("schema", None)
    chosen = ColumnFormat(column=column, **attributes)

    def refusal(field: str, reason: str) -> OptionError:
        """Return the error for the option of a field of this column."""
        return OptionError(f"option {parsed.names.get(f'{column}.{field}')} {reason}")

    setting = f"{column}Format={chosen.format}"
    others = [field for field in fields if field != "format"]
    if others and not chosen.has_schema and (chosen.format == kinds.STRING or "format" in fields):
        raise refusal(
            others[0], f"has no effect with {setting}: it is for {', '.join(WITH_SCHEMA)}"
        )
    if others and not chosen.has_schema:
        raise refusal(others[0], f"needs {column}Format: set it to one of {', '.join(WITH_SCHEMA)}")
    if text is not None:
        # In a write the subject is where the schema is registered.
        for field in ("schema_version", *(["subject"] if side is Side.READ else [])):
            if field in fields:
                hint = "the schema is set, or it is the registry's; remove one"
                raise refusal(field, f"and {column}Schema exclude each other: {hint}")
        chosen = _with_schema(chosen, text, side)
    if chosen.message and chosen.format != kinds.PROTOBUF:
        raise refusal("message", f"has no effect with {setting}: it is for {kinds.PROTOBUF}")
    for field in ("message", "subject"):
        if field in fields and not fields[field]:
            raise refusal(field, "is empty")
    if chosen.subject and "strategy" in fields:
        raise refusal("strategy", f"has no effect beside {column}Subject: remove one")
    if side is Side.READ and chosen.strategy != kinds.TOPIC_NAME and chosen.schema is None:
        raise refusal(
            "strategy",
            f"({chosen.strategy}) needs the record's name, which a read does not know without the "
            f"schema: remove it and set {column}Subject to the subject, or set {column}Schema",
        )
    return chosen


def _with_envelope(
    key: ColumnFormat, value: ColumnFormat, parsed: ParsedOptions
) -> tuple[ColumnFormat, ColumnFormat]:
    """Return the formats of key and value with what the option envelope changes in them. Raises
    OptionError for options that conflict with envelope."""
    fields = parsed.group("format")
    envelope = fields.get("envelope")
    if envelope is None:
        name = next(parsed.names[f"format.{field}"] for field in fields if "envelope" in field)
        raise OptionError(
            f"option {name} has no effect without envelope: set envelope, or remove it"
        )
    if not value.has_schema:
        if parsed.side is Side.WRITE:
            ways = f"{kinds.AVRO} or {kinds.JSON}"
        else:
            ways = f"{ANY_WITH_SCHEMA}, as the connector writes the records"
        raise OptionError(f"option envelope={envelope} needs valueFormat: set it to {ways}")
    if envelope in (kinds.MAXWELL, kinds.CANAL, kinds.OGG) and value.format != kinds.JSON:
        raise OptionError(
            f"option envelope={envelope} is for valueFormat={kinds.JSON}, not {value.format}"
        )
    if parsed.side is Side.WRITE:
        return key, _envelope_of_write(value, parsed)
    unwraps = fields.get("envelope_columns", kinds.ROW_COLUMNS) == kinds.ROW_COLUMNS
    placeholder = fields.get("envelope_unavailable", kinds.PLACEHOLDER)
    if "envelope_unavailable" in fields and not (
        unwraps and envelope in (kinds.DEBEZIUM, kinds.DEBEZIUM_FLAT)
    ):
        raise OptionError(
            f"option envelope.unavailable has no effect: it is for envelope={kinds.DEBEZIUM} or "
            f"{kinds.DEBEZIUM_FLAT}, and envelope.columns={kinds.ROW_COLUMNS}"
        )
    if not placeholder:
        raise OptionError("option envelope.unavailable is empty: remove it")
    for field in ("rescued_column", "recursive_fields_max_depth"):
        if fields.get(field):
            name = parsed.names[f"format.{field}"]
            raise exclusive(f"option {name}", f"envelope={envelope}")
    # Without a registry only JSON needs no schema of the keys.
    if "format" not in parsed.group("key") and (
        value.format == kinds.JSON or parsed.group("registry").get("url") is not None
    ):
        key = dataclasses.replace(
            key, format=value.format, framing=value.framing, infer=value.infer, is_optional=True
        )
    return (
        dataclasses.replace(key, envelope=envelope if key.has_schema else ""),
        dataclasses.replace(value, envelope=envelope, unwraps=unwraps, placeholder=placeholder),
    )


def _envelope_of_write(value: ColumnFormat, parsed: ParsedOptions) -> ColumnFormat:
    """Return the format of values for a write with the option envelope. Raises OptionError for
    options that conflict with it."""
    fields = parsed.group("format")
    if fields["envelope"] != kinds.DEBEZIUM or value.format not in (kinds.JSON, kinds.AVRO):
        raise OptionError(
            f"option envelope={fields['envelope']} with valueFormat={value.format} is for reads: "
            f"writes support envelope={kinds.DEBEZIUM} with {kinds.JSON} or {kinds.AVRO}"
        )
    if "format" in parsed.group("key") or value.schema is not None:
        name = "keyFormat" if "format" in parsed.group("key") else "valueSchema"
        hint = "in a write keys have the format of values, and schemas are made from the rows"
        raise exclusive(f"option {name}", f"envelope={kinds.DEBEZIUM}", hint)
    if value.format == kinds.AVRO:
        if "envelope_schemas" in fields:
            raise OptionError(
                f"option envelope.schemas has no effect with valueFormat={kinds.AVRO}: it is for "
                f"{kinds.JSON}"
            )
        return dataclasses.replace(value, envelope=kinds.DEBEZIUM)
    if parsed.group("registry").get("url") is not None:
        raise OptionError(
            f"option {kinds.REGISTRY_PREFIX}url has no effect: a write with "
            f"envelope={kinds.DEBEZIUM} and valueFormat={kinds.JSON} has the schemas beside the "
            "payloads; remove it"
        )
    return dataclasses.replace(value, envelope=kinds.DEBEZIUM, framing=kinds.NO_FRAMING)


def _with_schema(column: ColumnFormat, text: str, side: Side) -> ColumnFormat:
    """Return the format with the schema that valueSchema or keySchema gives: their `text` is
    "infer", the schema itself, or a file's path. Raises OptionError."""
    option = f"{column.column}Schema"
    text = text.strip()
    if not text:
        raise OptionError(f"option {option} is empty")
    if text.lower() == INFER:
        if column.format != kinds.JSON:
            raise OptionError(
                f"{option}={INFER} is for {column.column}Format={kinds.JSON}: {column.format} "
                "cannot be read without the schema that it was written with; set "
                f"{kinds.REGISTRY_PREFIX}url, or {option} to the schema or a file's path"
            )
        if side is not Side.READ:
            raise OptionError(
                f"{option}={INFER} is for reads; leave it out, and the schema is that of the rows"
            )
        return dataclasses.replace(column, infer=True)
    avro_primitives = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
    if set('{}[]";\n') & set(text) or (column.format == kinds.AVRO and text in avro_primitives):
        return dataclasses.replace(column, schema=text)
    return dataclasses.replace(column, schema=_read_schema(option, text))


def _read_schema(option: str, text: str) -> str:
    """Return the schema in the file that the option's text names. Raises OptionError."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() == "file":
        path = rest if not rest.startswith("//") else "/" + rest[2:].partition("/")[2]
    elif "://" in text:
        raise OptionError(
            f"option {option}: {text[:200]!r} is not a file on this machine: set a local path, or "
            "the schema's text"
        )
    else:
        path = text
    try:
        schema = read_text(Path(path).expanduser(), MAX_SCHEMA_BYTES).strip()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"option {option}: the file {path[:500]!r} cannot be read ({reason})."
            f'{_DRIVER_HINT} (A text with one of the characters {{ }} [ ] " ; or a line end is the '
            "schema itself.)"
        ) from None
    if not schema:
        raise OptionError(f"option {option}: the file {path[:500]!r} is empty")
    return schema


# --- rules between options -------------------------------------------------------------------


def _can_use_registry(column: ColumnFormat) -> bool:
    """Return whether a registry is of use for this column: its records have schema ids, or its
    schema may be the subject's latest."""
    return column.has_schema and (
        column.framing != kinds.NO_FRAMING or (column.schema is None and not column.infer)
    )


def _check_schema_source(
    column: ColumnFormat, registry: RegistryOptions | None, names: Mapping[str, str], side: Side
) -> None:
    """Raise OptionError if neither the user nor the registry gives the column's schema. `names` has
    the options that are set, by field."""
    name = column.column
    url = f"{kinds.REGISTRY_PREFIX}url"
    setting = f"{name}Format={column.format}"
    if column.framing == kinds.NO_FRAMING and column.format != kinds.JSON and column.schema is None:
        raise OptionError(
            f"{setting} with {name}Framing={kinds.NO_FRAMING} needs {name}Schema: records do not "
            "say which schema they were written with; set the schema's text or a file's path"
        )
    if registry is not None:
        return
    for field in ("schema_version", "subject", "strategy"):
        if f"{name}.{field}" in names:
            raise OptionError(
                f"option {names[f'{name}.{field}']} is for the Schema Registry: set {url}"
            )
    if side is Side.WRITE and column.framing not in (kinds.NO_FRAMING, kinds.SINGLE_OBJECT):
        raise OptionError(
            f"{setting} needs the Schema Registry, which assigns the schema's id: set {url}, or "
            f"{name}Framing={kinds.NO_FRAMING} to write bare payloads"
            + (f" (with {name}Schema)" if column.format != kinds.JSON else "")
        )
    if column.format != kinds.JSON and column.schema is None:
        raise OptionError(
            f"{setting} needs a schema: set {url} to the Schema Registry, or {name}Schema to the "
            "schema's text or a file's path"
        )


_FRAMINGS: Final = {
    kinds.CONFLUENT: (kinds.CONFLUENT, kinds.HEADERS),
    kinds.GLUE: (kinds.GLUE, kinds.GLUE_ZLIB),
    kinds.APICURIO: (kinds.APICURIO, kinds.APICURIO_CONTENT, kinds.APICURIO_HEADERS),
    kinds.AZURE: (kinds.AZURE,),
}
"""The framings whose ids the registry of each API assigns."""


def _check_framing(column: ColumnFormat, registry: RegistryOptions | None, side: Side) -> None:
    """Raise OptionError for a framing that the format, the side or the registry's API lacks."""
    name, framing = column.column, column.framing
    option = f"{name}Framing={framing}"
    if framing == kinds.AUTO and side is Side.WRITE:
        raise OptionError(f"{option} is for reads: set {name}Framing to the framing of the records")
    if framing == kinds.AZURE and name == "key":
        raise OptionError(
            f"{option} cannot be read: the header content-type has the id of the value's schema; "
            f"set keyFraming={kinds.NO_FRAMING} and keySchema"
        )
    only_avro = framing in (kinds.SINGLE_OBJECT, kinds.AZURE)
    framings = (*_FRAMINGS[kinds.CONFLUENT], *_FRAMINGS[kinds.GLUE], kinds.NO_FRAMING)
    has_messages = framing in framings
    if (only_avro and column.format != kinds.AVRO) or (
        column.format == kinds.PROTOBUF and not has_messages
    ):
        raise OptionError(
            f"{option} is for "
            f"{name}Format={kinds.AVRO if only_avro else f'{kinds.AVRO} and {kinds.JSON}'}, not "
            f"{column.format}"
            + ("" if only_avro else ": its frames do not show which message follows")
        )
    if registry is None or registry.has_references or framing not in sum(_FRAMINGS.values(), ()):
        return
    api = registry_settings(registry).api
    if framing not in _FRAMINGS[api]:
        urls = {
            kinds.CONFLUENT: "the URL of Confluent's API",
            kinds.GLUE: "glue://REGION/REGISTRY",
            kinds.APICURIO: "https://HOST/apis/registry/v3",
            kinds.AZURE: "https://NAMESPACE.servicebus.windows.net/$schemaGroups/GROUP",
        }
        url = next(urls[key] for key, framings in _FRAMINGS.items() if framing in framings)
        raise OptionError(
            f"{option} and schema.registry.url do not match: set {name}Framing to "
            f"{' or '.join(_FRAMINGS[api])} for this registry, or schema.registry.url to {url}"
        )


def _check_bad_records(fields: Mapping[str, Any]) -> None:
    """Raise OptionError unless onBadRecord=deadLetter and deadLetter.topic are set together."""
    topic = fields.get("dead_letter_topic")
    if fields.get("on_bad_record") == kinds.DEAD_LETTER:
        if not topic:
            raise OptionError(
                f"onBadRecord={kinds.DEAD_LETTER} needs the topic for bad records: set "
                "deadLetter.topic"
            )
    elif topic is not None:
        raise OptionError(
            f"option deadLetter.topic has no effect without onBadRecord={kinds.DEAD_LETTER}: set "
            "it, or remove deadLetter.topic"
        )


def _check_depth(columns: list[ColumnFormat], registry: RegistryOptions | None) -> None:
    """Raise OptionError if no column has a schema that could be recursive: none is set, and none
    comes from the registry."""
    for column in columns:
        known = column.schema is not None or (registry is not None and not column.infer)
        if column.has_schema and known:
            return
    first = columns[0]
    raise OptionError(
        f"option {kinds.DEPTH_OPTION} has no effect with {first.column}Format={first.format}: "
        f"there is no schema that could be recursive; set {first.column}Schema or "
        f"{kinds.REGISTRY_PREFIX}url, or remove it"
    )


def _check_registration(
    columns: list[ColumnFormat],
    registry: RegistryOptions | None,
    fields: Mapping[str, Any],
    names: Mapping[str, str],
) -> None:
    """Raise OptionError if auto.register.schemas, use.latest.version, normalize.schemas or
    ignoreEncryptionRules conflict with other options, or have no effect. `columns` have schemas."""
    registering = ("auto_register_schemas", "use_latest_version", "normalize_schemas")
    for field in ("ignore_encryption_rules", *registering):
        if fields.get(field) and registry is None:
            raise OptionError(
                f"option {names[f'format.{field}']} is for the Schema Registry: set "
                f"{kinds.REGISTRY_PREFIX}url"
            )
    set_names = [names[f"format.{field}"] for field in registering if fields.get(field)]
    if not set_names:
        return
    hint = "the schema is the registry's, so no other one is looked up or registered"
    if fields.get("use_latest_version"):
        for name in set_names:
            if name != names["format.use_latest_version"]:
                raise exclusive("use.latest.version=true", f"{name}=true", hint)
        for column in columns:
            for field, option in (("schema_version", "SchemaVersion"), ("schema", "Schema")):
                if getattr(column, field) is not None:
                    raise exclusive("use.latest.version=true", f"{column.column}{option}")
    if columns and all(column.schema_version is not None for column in columns):
        option = f"{columns[0].column}SchemaVersion"
        raise OptionError(f"option {set_names[0]} has no effect beside {option}: {hint}")
