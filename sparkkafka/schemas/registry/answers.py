"""Answers of a registry: JSON, each value of which is validated before it is used.

Texts of a registry get into errors only through `Redactor`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sparkkafka.config.format_rows import AVRO, JSON, PROTOBUF
from sparkkafka.errors import RegistryError, SchemaError
from sparkkafka.schemas.data_contract import (
    MIGRATION_MODES,
    READ_MODES,
    WRITE_MODES,
    DataContract,
    Rule,
)
from sparkkafka.schemas.registry.redactor import Redactor
from sparkkafka.schemas.values import Schema
from sparkkafka.secret import SecretBytes

MAX_ID: Final = 2**31 - 1

_FORMATS: Final = {"AVRO": AVRO, "PROTOBUF": PROTOBUF, "JSON": JSON}
_TYPES: Final = {ours: theirs for theirs, ours in _FORMATS.items()}


class Reference(NamedTuple):
    """A name that a schema uses, and the version of a subject that it stands for."""

    name: str
    subject: str
    version: int


class Found(NamedTuple):
    """A schema as a registry answers it: what it refers to is not yet looked up."""

    format: str
    text: str
    references: tuple[Reference, ...]
    subject: str | None
    version: int | None
    id: int | None
    guid: bytes | None
    contract: DataContract | None = None


@dataclass(frozen=True)
class Registered:
    """A schema with its place in the registry. `version` and `guid`: None if it says none."""

    subject: str
    id: int
    version: int | None
    guid: bytes | None
    schema: Schema


def json_of(body: SecretBytes) -> Any:
    """Raises ValueError if it is not JSON."""
    try:
        return json.loads(body.reveal())
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


def kind_of(body: SecretBytes) -> str:
    """What an answer is that is not what was asked for."""
    head = body.reveal()[:1000].lower()
    if b"<html" in head or b"<!doctype" in head:
        return "an HTML page"
    return "something other than JSON" if body else "nothing"


def refusal_of(body: SecretBytes) -> tuple[int | None, str]:
    """Return (error_code or None, message or "") of an answer that is an error."""
    try:
        answer = json_of(body)
    except ValueError:
        return None, ""
    if not isinstance(answer, dict):
        return None, ""
    code, message = answer.get("error_code"), answer.get("message")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        message if isinstance(message, str) else "",
    )


def is_no_such_page(status: int | None, code: int | str | None) -> bool:
    """Whether the address itself is unknown, and not what was asked for: Confluent's codes have
    five digits."""
    return status == 404 and not (isinstance(code, int) and code >= 10_000)


def body_of(schema: Schema) -> dict[str, Any]:
    """What a schema is in a request."""
    body: dict[str, Any] = {"schema": schema.text}
    if schema.format != AVRO:
        body["schemaType"] = _TYPES[schema.format]
    return body


def found_in(answer: Any, what: str, redactor: Redactor) -> Found:
    """The schema in an answer. Raises RegistryError, which says what it lacks, and SchemaError for
    a type of schema that is none of ours."""
    answer = object_of(answer, what)
    kind = answer.get("schemaType") or "AVRO"
    text = answer.get("schema")
    if not isinstance(text, str):
        raise RegistryError(f"the Schema Registry answers without a schema for {what}")
    if not isinstance(kind, str) or kind.upper() not in _FORMATS:
        raise SchemaError(
            f"{what} in the Schema Registry is of the type {redactor.redact(str(kind), 50)!r}, "
            "which is not supported: there are AVRO, PROTOBUF and JSON"
        )
    subject = answer.get("subject")
    return Found(
        _FORMATS[kind.upper()],
        text,
        _references(answer.get("references"), what),
        subject if isinstance(subject, str) else None,
        _number(answer.get("version")),
        _number(answer.get("id")),
        _guid(answer.get("guid")),
        _contract(answer, what, redactor),
    )


def object_of(answer: Any, what: str) -> Mapping[str, Any]:
    """Raises RegistryError if the answer is not a JSON object."""
    if not isinstance(answer, dict):
        raise RegistryError(f"the Schema Registry answers {what} with JSON that is not an object")
    return answer


def id_in(answer: Any, what: str) -> int:
    """Raises RegistryError if the answer has no id of a schema."""
    schema_id = _number(object_of(answer, what).get("id"))
    if schema_id is None:
        raise RegistryError(f"the Schema Registry answers without an id for {what}")
    return schema_id


def names_in(answer: Any, what: str) -> tuple[str, ...]:
    """Raises RegistryError if the answer is not a list of names."""
    if not isinstance(answer, list) or not all(isinstance(name, str) for name in answer):
        raise RegistryError(f"the Schema Registry answers {what} with something else than names")
    return tuple(answer)


def versions_in(answer: Any) -> tuple[int, ...]:
    """Whole numbers of a list; others are left out."""
    rows = answer if isinstance(answer, list) else []
    return tuple(number for number in map(_number, rows) if number is not None)


def owners_in(answer: Any) -> tuple[tuple[str, int | None], ...]:
    """(subject, version) of each place of a schema."""
    rows = answer if isinstance(answer, list) else []
    return tuple(
        (row["subject"], _number(row.get("version")))
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("subject"), str)
    )


def messages_in(answer: Any, redactor: Redactor) -> tuple[str, ...]:
    """Why a schema is not compatible: nothing if it is, and at least one sentence if it is not."""
    answer = object_of(answer, "whether a schema is compatible")
    if answer.get("is_compatible") is True:
        return ()
    rows = answer.get("messages")
    # Apicurio's has one text in place of a list.
    rows = rows if isinstance(rows, list) and rows else [answer.get("reason")]
    found = tuple(
        redactor.redact(row, 500) for row in rows[:10] if isinstance(row, str) and row.strip()
    )
    return found or ("the registry says no more than that it is not compatible",)


def _references(rows: Any, what: str) -> tuple[Reference, ...]:
    found = []
    for row in rows if isinstance(rows, list) else [rows] if rows else ():
        name, subject, version = (
            (row.get("name"), row.get("subject"), _number(row.get("version")))
            if isinstance(row, dict)
            else (None, None, None)
        )
        if not isinstance(name, str) or not isinstance(subject, str) or version is None:
            raise RegistryError(
                f"the Schema Registry answers {what} with a reference that has no name, subject "
                "and version"
            )
        found.append(Reference(name, subject, version))
    return tuple(found)


def _number(value: Any) -> int | None:
    """An id or a version."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -1 <= value <= MAX_ID else None


def _guid(value: Any) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return uuid.UUID(value).bytes
    except ValueError:
        return None


MAX_CONTRACT_ENTRIES: Final = 10_000
"""Rules of one kind, tags of one rule or field, and fields with tags."""

_CLIENT_RULES: Final = ("ALL", "CLIENT")
"""Values of a rule set's `enableAt` with which clients run its rules."""


def _contract(answer: Mapping[str, Any], what: str, redactor: Redactor) -> DataContract | None:
    """Rules that clients run, and tags of the metadata; None if there is neither. Raises
    SchemaError for more than MAX_CONTRACT_ENTRIES."""
    rule_set = _object(answer.get("ruleSet"), what)
    where = rule_set.get("enableAt")
    rules: list[Rule] = []
    if not isinstance(where, str) or where.upper() in _CLIENT_RULES:
        for name, modes in (
            ("domainRules", WRITE_MODES | READ_MODES),
            ("encodingRules", WRITE_MODES | READ_MODES),
            ("migrationRules", MIGRATION_MODES),
        ):
            rules += _rules(_list(rule_set.get(name), what), modes, what, redactor)
    tags = _object(_object(answer.get("metadata"), what).get("tags"), what)
    field_tags = tuple(
        (redactor.redact(name, 200), _texts(own, what, redactor)) for name, own in tags.items()
    )
    return DataContract(tuple(rules), field_tags) if rules or field_tags else None


def _rules(rows: list[Any], modes: frozenset[str], what: str, redactor: Redactor) -> list[Rule]:
    """Rules of one of these modes that are not disabled. An unknown mode counts as all of them: a
    rule too many is better than one that is overlooked."""
    known = WRITE_MODES | READ_MODES | MIGRATION_MODES
    found = []
    for row in rows:
        if not isinstance(row, dict) or row.get("disabled") is True:
            continue
        name, kind, mode = (
            redactor.redact(value, 200) if isinstance(value, str) else ""
            for value in (row.get("name"), row.get("type"), row.get("mode"))
        )
        mode = mode.upper()
        if mode not in known:
            mode = "WRITEREAD" if "WRITEREAD" in modes else "UPDOWN"
        if mode in modes:
            found.append(Rule(name, kind.upper(), mode, _texts(row.get("tags"), what, redactor)))
    return found


def _texts(value: Any, what: str, redactor: Redactor) -> tuple[str, ...]:
    return tuple(redactor.redact(row, 200) for row in _list(value, what) if isinstance(row, str))


def _object(value: Any, what: str) -> Mapping[str, Any]:
    found = value if isinstance(value, dict) else {}
    _check_entries(len(found), what)
    return found


def _list(value: Any, what: str) -> list[Any]:
    found = value if isinstance(value, list) else []
    _check_entries(len(found), what)
    return found


def _check_entries(count: int, what: str) -> None:
    if count > MAX_CONTRACT_ENTRIES:
        raise SchemaError(f"{what} has more than {MAX_CONTRACT_ENTRIES} rules or tags")
