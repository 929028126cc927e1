"""Responses of a Schema Registry: JSON, each value of which is validated before it is used.

A registry, or a proxy in front of it, may repeat what it was sent. So each text of a response that
becomes part of an error passes `Redactor`: it removes our secrets, and makes one short line.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, quote_plus

from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.config.registry import RegistrySettings
from sparkkafka.errors import RegistryError, SchemaError, printable
from sparkkafka.schemas.data_contract import (
    MIGRATION_MODES,
    READ_MODES,
    WRITE_MODES,
    DataContract,
    Rule,
)
from sparkkafka.schemas.values import Schema
from sparkkafka.secret import Secret, SecretBytes

Entries = TypeVar("Entries", dict[str, Any], list[Any])

MAX_ID: Final = 2**31 - 1

MAX_CONTRACT_ENTRIES: Final = 10_000
"""Rules of one kind, tags of one rule or field, and fields with tags."""

_FORMATS: Final = {"AVRO": AVRO, "PROTOBUF": PROTOBUF, "JSON": JSON}


# --- secrets ------------------------------------------------------------------------------------


class Redactor:
    """Removes the secrets of one registry's settings from texts. Thread-safe."""

    def __init__(self, settings: RegistrySettings) -> None:
        password = settings.user_info.reveal().partition(":")[2]
        secrets = [settings.user_info, Secret(password)]
        del password
        if settings.oauth is not None:
            secrets += [settings.oauth.token, settings.oauth.client_secret]
        self._secrets = _encodings(secrets)
        self._credentials: tuple[Secret, ...] = ()

    def remember(self, authorization: Secret) -> None:
        """Also remove the credentials of this Authorization header. Tokens are renewed, so the last
        four are kept."""
        secret = Secret(authorization.reveal().partition(" ")[2])
        if secret not in self._credentials:
            self._credentials = (*self._credentials, secret)[-4:]

    def redact(self, text: str, max_chars: int = 300) -> str:
        """Return the text with *** for each secret, printable, in one line, cut to `max_chars`."""
        # Secrets first: one that is cut, or whose spaces have changed, would not be found.
        for secret in (*_encodings(list(self._credentials)), *self._secrets):
            text = text.replace(secret.reveal(), "***")
        text = " ".join(printable(text[: 4 * max_chars]).split())
        return text if len(text) <= max_chars else f"{text[:max_chars]}…"

    def list_names(self, names: list[str]) -> str:
        """Return the first five names, redacted and quoted, and how many more there are."""
        first = ", ".join(repr(self.redact(name, 200)) for name in names[:5])
        return f"{first} and {len(names) - 5} more" if len(names) > 5 else first


def _encodings(secrets: list[Secret]) -> tuple[Secret, ...]:
    """Return all forms in which a response may repeat these secrets, the longest first."""
    encodings = {form for secret in secrets for form in _encodings_of_one(secret) if form}
    return tuple(sorted(encodings, key=lambda form: -len(form.reveal())))


def _encodings_of_one(secret: Secret) -> list[Secret]:
    """Return all forms in which a response may repeat this secret."""

    def in_base64(alphabet: bytes) -> Secret:
        text = secret.reveal().encode("utf-8", "replace")
        return Secret(base64.b64encode(text, alphabet).decode().rstrip("="))

    in_json = [
        Secret(json.dumps(secret.reveal(), ensure_ascii=ascii_only)[1:-1])
        for ascii_only in (True, False)
    ]
    return [
        secret,
        *in_json,
        *(Secret(form.reveal().replace("/", "\\/")) for form in in_json),
        Secret(secret.reveal().strip()),
        Secret(" ".join(secret.reveal().split())),
        Secret(quote(secret.reveal(), safe="", errors="replace")),
        Secret(quote_plus(secret.reveal(), errors="replace")),
        in_base64(b"+/"),
        in_base64(b"-_"),
    ]


# --- bodies -------------------------------------------------------------------------------------


def parse_json(body: SecretBytes) -> Any:
    """Return the body's JSON. Raises ValueError, without the body's text, if it is not JSON."""
    try:
        return json.loads(body.reveal())
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


def parse_error(body: SecretBytes) -> tuple[int | None, str]:
    """Return (error_code or None, message or "") of an error's body."""
    try:
        response = parse_json(body)
    except ValueError:
        return None, ""
    if not isinstance(response, dict):
        return None, ""
    error = response.get("error")
    if isinstance(error, dict):  # Azure's
        response = error
    code = response.get("error_code")
    # Apicurio's own API has a title, and a detail that repeats it behind a Java class.
    message = response.get("message") or response.get("title")
    return (
        code if isinstance(code, int) and not isinstance(code, bool) else None,
        message if isinstance(message, str) else "",
    )


def is_unknown_path(status: int | None, code: int | str | None) -> bool:
    """Return whether a 404 means that the server does not know the URL's path. For a subject,
    version or schema that does not exist, Confluent's error codes have five digits."""
    return status == 404 and not (isinstance(code, int) and code >= 10_000)


# --- subjects, versions and ids -----------------------------------------------------------------


def parse_id(response: Any, what: str) -> int:
    """Return the id of the schema. Raises RegistryError if the response has none."""
    schema_id = _number(_require_object(response, what).get("id"))
    if schema_id is None:
        raise RegistryError(f"the Schema Registry answers without an id for {what}")
    return schema_id


def parse_subjects(response: Any) -> tuple[str, ...]:
    """Return the names in a list. Raises RegistryError if the response is anything else."""
    if not isinstance(response, list) or not all(isinstance(name, str) for name in response):
        raise RegistryError(
            "the Schema Registry answers the request for all subjects with something other than a "
            "list of names"
        )
    return tuple(response)


def parse_versions(response: Any) -> tuple[int, ...]:
    """Return the version numbers in a list; other values are left out."""
    elements = response if isinstance(response, list) else []
    return tuple(number for number in map(_number, elements) if number is not None)


def parse_subject_versions(response: Any) -> tuple[tuple[str, int | None], ...]:
    """Return (subject, version) of each subject that has a schema."""
    elements = response if isinstance(response, list) else []
    return tuple(
        (element["subject"], _number(element.get("version")))
        for element in elements
        if isinstance(element, dict) and isinstance(element.get("subject"), str)
    )


def parse_incompatibilities(response: Any, redactor: Redactor) -> tuple[str, ...]:
    """Return why a schema is not compatible: () if it is, else at least one sentence."""
    response = _require_object(response, "whether a schema is compatible")
    if response.get("is_compatible") is True:
        return ()
    elements = response.get("messages")
    # Apicurio sends one text, `reason`, instead of a list.
    elements = elements if isinstance(elements, list) and elements else [response.get("reason")]
    incompatibilities = tuple(
        redactor.redact(element, 500)
        for element in elements[:10]
        if isinstance(element, str) and element.strip()
    )
    return incompatibilities or ("the registry gives no reason",)


# --- schemas ------------------------------------------------------------------------------------


class Reference(NamedTuple):
    """A name that a schema uses, and the version of a subject that it stands for."""

    name: str
    subject: str
    version: int


class SchemaResponse(NamedTuple):
    """A schema in a response, with its references not yet resolved."""

    format: str
    text: str
    references: tuple[Reference, ...]
    version: int | None
    guid: bytes | None
    contract: DataContract | None = None


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema and the subject, version and ids under which it is registered. `version` and `guid`
    are None if the registry does not send them; `id` if schemas have only GUIDs (AWS Glue, Azure).
    `content_id` is Apicurio's."""

    subject: str
    id: int | None
    version: int | None
    guid: bytes | None
    schema: Schema
    content_id: int | None = None


def request_body(schema: Schema) -> dict[str, Any]:
    """Return the body of a request that looks up, registers or compares a schema."""
    body: dict[str, Any] = {"schema": schema.text}
    if schema.format != AVRO:
        types = {name: schema_type for schema_type, name in _FORMATS.items()}
        body["schemaType"] = types[schema.format]
    return body


def parse_schema(response: Any, what: str, redactor: Redactor) -> SchemaResponse:
    """Return the schema in a response. Raises RegistryError, which names the missing value, and
    SchemaError for a schema type that is not supported."""
    response = _require_object(response, what)
    schema_type = response.get("schemaType") or "AVRO"
    text = response.get("schema")
    if not isinstance(text, str):
        raise RegistryError(f"the Schema Registry answers without a schema for {what}")
    if not isinstance(schema_type, str) or schema_type.upper() not in _FORMATS:
        raise SchemaError(
            f"{what} in the Schema Registry is of the type "
            f"{redactor.redact(str(schema_type), 50)!r}, which is not supported: use AVRO, "
            "PROTOBUF and JSON"
        )
    return SchemaResponse(
        _FORMATS[schema_type.upper()],
        text,
        _references(response.get("references"), what),
        _number(response.get("version")),
        _guid(response.get("guid")),
        _contract(response, what, redactor),
    )


def _require_object(response: Any, what: str) -> Mapping[str, Any]:
    """Return the response. Raises RegistryError if it is not a JSON object."""
    if not isinstance(response, dict):
        raise RegistryError(
            f"the Schema Registry answers the request for {what} with JSON that is not an object"
        )
    return response


def _references(elements: Any, what: str) -> tuple[Reference, ...]:
    """Return the references in a response. Raises RegistryError for one that lacks a value."""
    references = []
    for element in elements if isinstance(elements, list) else [elements] if elements else ():
        name, subject, version = (
            (element.get("name"), element.get("subject"), _number(element.get("version")))
            if isinstance(element, dict)
            else (None, None, None)
        )
        if not isinstance(name, str) or not isinstance(subject, str) or version is None:
            raise RegistryError(
                f"the Schema Registry answers the request for {what} with a reference that has no "
                "name, subject and version"
            )
        references.append(Reference(name, subject, version))
    return tuple(references)


def _number(value: Any) -> int | None:
    """Return the value if it can be an id or a version (-1 is the latest), else None."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -1 <= value <= MAX_ID else None


def _guid(value: Any) -> bytes | None:
    """Return the bytes of a GUID; None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        return uuid.UUID(value).bytes
    except ValueError:
        return None


def _contract(response: Mapping[str, Any], what: str, redactor: Redactor) -> DataContract | None:
    """Return the rules that clients run and the tags of the metadata; None if there is neither.
    Raises SchemaError for more than MAX_CONTRACT_ENTRIES."""
    rule_set = _collection_of(response.get("ruleSet"), dict, what)
    enable_at = rule_set.get("enableAt")
    rules: list[Rule] = []
    if not isinstance(enable_at, str) or enable_at.upper() in ("ALL", "CLIENT"):
        for name, modes in (
            ("domainRules", WRITE_MODES | READ_MODES),
            ("encodingRules", WRITE_MODES | READ_MODES),
            ("migrationRules", MIGRATION_MODES),
        ):
            rules += _rules(_collection_of(rule_set.get(name), list, what), modes, what, redactor)
    metadata = _collection_of(response.get("metadata"), dict, what)
    tags = _collection_of(metadata.get("tags"), dict, what)
    field_tags = tuple(
        (redactor.redact(name, 200), _redacted_texts(path_tags, what, redactor))
        for name, path_tags in tags.items()
    )
    return DataContract(tuple(rules), field_tags) if rules or field_tags else None


def _rules(elements: list[Any], modes: frozenset[str], what: str, redactor: Redactor) -> list[Rule]:
    """Return the rules that have one of these modes and are not disabled. An unknown mode counts as
    one of them: it is better to report a rule too many than to overlook one."""
    known = WRITE_MODES | READ_MODES | MIGRATION_MODES
    rules = []
    for element in elements:
        if not isinstance(element, dict) or element.get("disabled") is True:
            continue
        name, kind, mode = (
            redactor.redact(value, 200) if isinstance(value, str) else ""
            for value in (element.get("name"), element.get("type"), element.get("mode"))
        )
        mode = mode.upper()
        if mode not in known:
            mode = "WRITEREAD" if "WRITEREAD" in modes else "UPDOWN"
        if mode in modes:
            rules.append(
                Rule(name, kind.upper(), mode, _redacted_texts(element.get("tags"), what, redactor))
            )
    return rules


def _redacted_texts(value: Any, what: str, redactor: Redactor) -> tuple[str, ...]:
    """Return the strings in a list, redacted; () for any other value."""
    elements = _collection_of(value, list, what)
    return tuple(redactor.redact(element, 200) for element in elements if isinstance(element, str))


def _collection_of(value: Any, collection_type: type[Entries], what: str) -> Entries:
    """Return the value if it is of this type (dict or list), else an empty one. Raises SchemaError
    for more than MAX_CONTRACT_ENTRIES."""
    collection = value if isinstance(value, collection_type) else collection_type()
    if len(collection) > MAX_CONTRACT_ENTRIES:
        raise SchemaError(f"{what} has more than {MAX_CONTRACT_ENTRIES} rules or tags")
    return collection
